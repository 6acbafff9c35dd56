"""The subject of the stories: a singleton that writes its own steps into the world's log."""

from __future__ import annotations

import asyncio
from typing import Any

from node import Actor, ActorRef, ActorSystem, Ask, message, on
from node.supervision import StopReason
from node.testkit import StepLog, TwoOnlyWhileViewsDiffer, World

SUBJECT = "ledger"
STEP_S = 0.1


@message("story.entry")
class Entry(Ask[int]):
    """Answered with how many entries the instance has taken."""

    number: int = 0


@message("story.beat")
class Beat:
    """What the subject tells itself, so that it acts while nobody asks."""


@message("story.grind")
class Grind:
    """Work of the subject's coroutine for so many tenths of a second."""

    tenths: int = 30


class Ledger(Actor):
    """Acts each 0.1 s by itself, and with each entry."""

    def __init__(self, log: StepLog, taken: list[int]) -> None:
        self.log = log
        self.taken = taken  # by all instances, outside of every node
        self.count = 0

    def pre_start(self) -> None:
        self.instance = self.log.begin(SUBJECT)
        self.instance.step("start")
        self.context.timers.every("beat", STEP_S, Beat())

    def post_stop(self, reason: StopReason) -> None:
        self.instance.end()

    @on(Beat)
    def beat(self, msg: Beat) -> None:
        self.instance.step("timer")

    @on(Entry)
    def entry(self, msg: Entry) -> int:
        self.instance.step("message")
        self.taken.append(msg.number)
        self.count += 1
        return self.count

    @on(Grind)
    async def grind(self, msg: Grind) -> None:
        for _ in range(msg.tenths):
            self.instance.step("resume")
            await asyncio.sleep(STEP_S)


class Story(World):
    """A world in which every node hosts the ledger."""

    def __init__(self, seed: int = 11, nodes: int | str = 5, *, watch: bool = True, **kw: Any):
        self.refs: dict[str, ActorRef[Any]] = {}
        self.taken: list[int] = []
        super().__init__(seed, nodes, setup=self.host_ledger, **kw)
        self.log = StepLog(self)
        self.checker = TwoOnlyWhileViewsDiffer()
        if watch:
            self.checker.attach(self, self.log, SUBJECT)

    def host_ledger(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        self.refs[self.here().name] = system.cluster.singleton.start(
            type_name=SUBJECT, actor=Ledger, args=(self.log, self.taken)
        )

    @property
    def hosts(self) -> list[str]:
        """Names of the nodes where an instance runs now."""
        return [instance.node for instance in self.log.running(SUBJECT)]

    def until_hosted(self, *, within_s: float = 30.0, but: str = "") -> str:
        """Let time go by until exactly one instance runs (not on `but`); returns where."""

        def hosted() -> bool:
            return len(self.hosts) == 1 and self.hosts[0] != but

        self.run_until(hosted, within_s=within_s)
        return self.hosts[0]

    def ready(self) -> str:
        """All up and the ledger hosted; returns its host."""
        self.until_all_up()
        return self.until_hosted()

    def younger(self, host: str) -> list[str]:
        """The other running nodes, oldest first."""
        view = self[host].view
        assert view is not None
        ages = {member.id.address: member.up_number for member in view.members}
        names = [node.name for node in self.running if node.name != host]
        return sorted(names, key=lambda name: ages[self[name].address])
