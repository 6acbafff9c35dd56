"""An actor whose every step is written down: what tests and stories put where one must be unique.

It writes to a `StepLog` outside of every node, so what the checkers read is what user code did,
not what the framework believes. Its kinds of user code are those a real one has: a plain handler, a
coroutine that resumes many times, a timer, a child with a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from node.actor import Actor, on
from node.messages import Ask, message
from node.supervision import StopReason
from node.testkit.checkers import StepLog


@message("tenure.testkit.work")
class Work(Ask[int]):
    """Answered with the number of the instance that did it."""


@message("tenure.testkit.toil")
class Toil(Ask[int]):
    """As `Work`, by a coroutine that resumes `resumes` times, `pause_s` apart."""

    resumes: int = 300
    pause_s: float = 0.01


@dataclass(frozen=True, slots=True)
class _Tick:
    kind: str


class Subject(Actor):
    """Steps at start, at each `Work`, each resume of a `Toil`, each `tick_s`, and in its child.

    log, subject: where to write, and under which name. tick_s: 0 for no timers, no child.
    """

    def __init__(self, log: StepLog, subject: str = "subject", tick_s: float = 1.0) -> None:
        self._life = log.begin(subject)
        self._tick_s = tick_s

    def pre_start(self) -> None:
        """Begin to act."""
        self._life.step("start")
        if self._tick_s:
            self.context.timers.every("tick", self._tick_s, _Tick("tick"))
            self.context.spawn(_Child, self._life.step, self._tick_s)

    @on(Work)
    def work(self, _order: Work) -> int:
        """Act once."""
        self._life.step("work")
        return self._life.number

    @on(Toil)
    async def toil(self, order: Toil) -> int:
        """Act again and again."""
        for _ in range(order.resumes):
            self._life.step("resume")
            await asyncio.sleep(order.pause_s)
        return self._life.number

    @on(_Tick)
    def tick(self, tick: _Tick) -> None:
        """Act by timer."""
        self._life.step(tick.kind)

    def post_stop(self, _reason: StopReason) -> None:
        """The clean-up is no act."""
        self._life.end()


class _Child(Actor):
    def __init__(self, step: Callable[[str], None], tick_s: float) -> None:
        self._step = step
        self._tick_s = tick_s

    def pre_start(self) -> None:
        self.context.timers.every("tick", self._tick_s, _Tick("child"))

    @on(_Tick)
    def tick(self, tick: _Tick) -> None:
        self._step(tick.kind)
