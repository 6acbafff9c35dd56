"""Our side, through the public API: two members of a cluster, or one system without sockets.

Decides which actors and messages are measured. `receive` and `drive` are applications of
`python -m node --app …`: the receiver offers a singleton only so that the driver finds it, and
gives out the ref of the plain actor that is measured. `python -m bench.messaging.ours` is the
process of the local rows. Called by `rounds`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections import deque
from time import perf_counter
from typing import Any

import uvloop

from bench.messaging.driver import ROWS, Driver, Figures, Ledger, RefusedError, TellRow
from bench.messaging.session import resident_bytes, say, serve
from node import Actor, ActorRef, ActorSystem, Ask, message, on

DESK = "bench-desk"
ANSWER_TIMEOUT_S = 30.0
SPAWN_COUNT = 100_000
FLOOR_BATCH = 64

logger = logging.getLogger(__name__)


@message("bench.blob")
class Blob:
    """A numbered message with a payload."""

    number: int
    data: bytes


@message("bench.count")
class Count(Ask[int]):
    """How many messages arrived before this one?"""


@message("bench.totals")
class AskTotals(Ask[list[int]]):
    """What have you seen?"""


@message("bench.where")
class Where(Ask[ActorRef[Any]]):
    """Who is the one to measure?"""


class Receiver(Actor):
    """Counts what it gets."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    @on(Blob)
    def blob(self, msg: Blob) -> None:
        """One of many."""
        self.ledger.told(msg.number, msg.data)

    @on(Count)
    def count(self, msg: Count) -> int:
        """Answered in order with the tells."""
        return self.ledger.asked()

    @on(AskTotals)
    def totals(self, msg: AskTotals) -> list[int]:
        """For the check after each row."""
        return self.ledger.totals()


class Desk(Actor):
    """Found by name from any member; says where the receiver is."""

    def __init__(self) -> None:
        self.receiver = self.context.spawn(Receiver, name="receiver")

    @on(Where)
    def where(self, msg: Where) -> ActorRef[Any]:
        """The ref goes straight to the actor, whatever the singleton does."""
        return self.receiver


class Idle(Actor):
    """An actor with one field of its own that waits for its first message."""

    def __init__(self, number: int) -> None:
        self.number = number

    @on(Count)
    def count(self, msg: Count) -> int:
        """Shows that it lives."""
        return self.number


class OurSide:
    """A `Side` over a ref, wherever it leads."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref
        self._count = Count()
        self.tell = ref.tell
        self.message = Blob

    async def ask(self) -> int:
        """With a timeout, as every ask has."""
        return await self._ref.ask(self._count, timeout_s=ANSWER_TIMEOUT_S)

    async def totals(self) -> list[int]:
        """Of the receiver."""
        return await self._ref.ask(AskTotals(), timeout_s=ANSWER_TIMEOUT_S)


def receive(system: ActorSystem) -> None:
    """The application of the receiving member; says its address."""
    system.cluster.singleton.start(type_name=DESK, actor=Desk)
    say(address=system.cluster.self_id.address)


def drive(system: ActorSystem) -> None:
    """The application of the driving member; serves rows until its input ends."""
    Drive(system)


class Drive:
    """The task that drives; says on the pipe why it ended, if it ends by a failure."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        system = self._system
        desk = system.cluster.singleton.start_proxy(type_name=DESK)
        remote = Driver(OurSide(await desk.ask(Where(), timeout_s=ANSWER_TIMEOUT_S)))
        local = Driver(OurSide(system.spawn(Receiver, name="local")))
        view = await system.cluster.up(2)
        [data_port] = [one.data_port for one in view.members if one.id != view.self_id]

        async def perform(row: str, for_s: float) -> Figures:
            return await (local if row.startswith("local_") else remote).run(row, for_s)

        await serve(perform, data_port=data_port)
        await system.leave()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            say(failed=f"{type(error).__name__}: {error}")


async def local() -> None:
    """Serve the rows of one process: the floor, ours over it, and spawning."""
    async with ActorSystem() as system:
        driver = Driver(OurSide(system.spawn(Receiver, name="receiver")))

        async def perform(row: str, for_s: float) -> Figures:
            match row:
                case "floor":
                    return await floor(for_s)
                case "spawn":
                    return await spawn(system)
            return await driver.run(row, for_s)

        await serve(perform)


class _Box:
    """The least that can be called a mailbox: a queue, and one callback while it holds anything."""

    __slots__ = ("_handler", "_loop", "_queue", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: Any) -> None:
        self._loop = loop
        self._handler = handler
        self._queue: deque[object] = deque()
        self._scheduled = False

    def tell(self, item: object) -> None:
        self._queue.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        queue, handler = self._queue, self._handler
        pop = queue.popleft
        for _ in range(FLOOR_BATCH):
            if not queue:
                self._scheduled = False
                return
            handler(pop())
        self._loop.call_soon(self._turn)


async def floor(for_s: float) -> Figures:
    """`local_tell` with a deque and `call_soon` alone: no types, no order kept, no failure seen."""
    row = ROWS["local_tell"]
    assert isinstance(row, TellRow)
    arrived = 0

    def handler(_item: object) -> None:
        nonlocal arrived
        arrived += 1

    box = _Box(asyncio.get_running_loop(), handler)
    items = [Blob(number, b"") for number in range(row.window)]
    told = 0
    begun_at = perf_counter()
    end_at = begun_at + for_s
    while perf_counter() < end_at:
        for item in items:
            box.tell(item)
        told += row.window
        await asyncio.sleep(0)
    while arrived < told:  # noqa: ASYNC110 - turns of the loop are all that is missing
        await asyncio.sleep(0)
    return {"n": told, "per_s": told / (perf_counter() - begun_at)}


async def spawn(system: ActorSystem) -> Figures:
    """Actors per second, and resident bytes of each; in a process in which nothing else ran."""
    gc.collect()
    before_bytes = resident_bytes()
    begun_at = perf_counter()
    refs = [system.spawn(Idle, number) for number in range(SPAWN_COUNT)]
    last = await refs[-1].ask(Count(), timeout_s=ANSWER_TIMEOUT_S)
    elapsed_s = perf_counter() - begun_at
    del refs  # the actors stay: the system holds them
    gc.collect()
    each_bytes = (resident_bytes() - before_bytes) / SPAWN_COUNT
    if last != SPAWN_COUNT - 1:
        raise RefusedError(f"the last of {SPAWN_COUNT} actors says that it is number {last}")
    return {"n": SPAWN_COUNT, "per_s": SPAWN_COUNT / elapsed_s, "bytes": each_bytes}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(local())
    sys.exit(0)
