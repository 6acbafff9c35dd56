"""The API as its users write it: these very lines are shown in the guide."""

from __future__ import annotations

from node import Actor, ActorRef, Ask, message, on


@message("greet")
class Greet:
    """Say hello."""


@message("greeted")
class Greeted(Ask[str]):
    """Answered with the last greeting."""


class Hello(Actor):
    """Greets somebody."""

    def __init__(self, whom: str) -> None:
        self.whom = whom
        self.said = ""

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.said = f"hello {self.whom}"

    @on(Greeted)
    async def greeted(self, msg: Greeted) -> str:
        return self.said


@message("counter.add")  # the wire name: stable, unique in the process
class Add(Ask[int]):  # answered with an int
    """Add to the total; the answer is the new one."""

    amount: int


class Counter(Actor):
    """Keeps a total."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    @on(Add)
    def add(self, msg: Add) -> int:  # the return value answers an ask; async def may await
        self.total += msg.amount
        return self.total


@message("jobs.schedule")  # stable wire name
class Schedule(Ask[str]):  # a message that is answered with a str
    """Schedule a job."""

    job_id: str


class JobScheduler(Actor):
    """Schedules jobs; the cluster runs one of it."""

    def __init__(self, prefix: str = "queued") -> None:
        self.prefix = prefix

    @on(Schedule)  # plain def: fastest; async def: may await
    def schedule(self, msg: Schedule) -> str:
        return f"{self.prefix} {msg.job_id}"


@message("remind.in")
class RemindIn:
    """Remind me after so many seconds."""

    delay_s: float


@message("reminded")
class Reminded:
    """The reminder."""


@message("pending")
class Pending(Ask[int]):
    """Answered with the number of reminders to come."""


class Reminder(Actor):
    """Reminds somebody, later."""

    def __init__(self, whom: ActorRef[Reminded]) -> None:
        self.whom = whom
        self.pending = 0

    @on(RemindIn)
    def remind_in(self, msg: RemindIn) -> None:
        self.pending += 1
        self.context.timers.once(self.pending, msg.delay_s, Reminded())

    @on(Reminded)
    def due(self, msg: Reminded) -> None:
        self.pending -= 1
        self.whom.tell(msg)

    @on(Pending)
    def count(self, msg: Pending) -> int:
        return self.pending
