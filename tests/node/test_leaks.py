"""Hours of random traffic in virtual time leave nothing behind: objects are counted."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter
from typing import Any

import pytest

from node.actor import Actor, Terminated, on
from node.ask import LocalAsk, RemoteAsk
from node.cell import Cell
from node.errors import TenureError
from node.mailbox import Delivery, TimerTick
from node.messages import Ask, message
from node.pipe import Pipe
from node.ref import ActorRef
from node.runtime import Runtime
from node.supervision import AllForOne, Restart, StopReason
from tests.conftest import HowMany
from tests.node.stage import Greet, Pair

COUNTED = (Cell, Delivery, LocalAsk, RemoteAsk, TimerTick, Pipe, Terminated, asyncio.Task)


@message("test.leaks.do")
class Do(Ask[int]):
    """One of many things."""

    what: int


class Anything(Actor):
    """Does whatever it is told to, also wrong things."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    @on(Do)
    def do(self, msg: Do) -> Any:
        context = self.context
        match msg.what % 12:
            case 0:
                return self.later()
            case 1:
                context.pipe_to_self(self.later(), lambda _: Greet("piped"))
            case 2:
                context.timers.once("t", context.rng.random() * 5.0, Greet("tick"))
            case 3:
                context.stash()
            case 4 if self.depth:
                policy = AllForOne(Restart(backoff_s=0.1))
                context.watch(context.spawn(Anything, self.depth - 1, supervision=policy))
            case 5 if context.children:
                context.forward(context.rng.choice(context.children))
            case 6:
                raise ValueError(msg.what)
            case 7:
                context.become(lambda _: context.unbecome())
            case 8:
                context.stop(context.self)
            case 9:
                context.timers.every("e", 1.0, Greet("tick"))
        return 1

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if self.context.rng.random() < 0.1:
            self.context.unstash_all()

    async def later(self) -> int:
        await asyncio.sleep(self.context.rng.random() * 3.0)
        if self.context.rng.random() < 0.2:
            raise OSError
        return 1

    def post_stop(self, reason: StopReason, /) -> Any:
        return asyncio.sleep(0.1) if self.depth else None


def counted() -> Counter[str]:
    gc.collect()
    return Counter(type(found).__name__ for found in gc.get_objects() if type(found) in COUNTED)


def test_random_traffic_leaves_nothing_behind(
    how_many: HowMany, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "node")  # a record that is kept keeps what was raised
    rng = random.Random(5)
    before = counted()
    pair = Pair()
    runtimes: tuple[Runtime, ...] = (pair.runtime, pair.far)

    async def ask(ref: ActorRef[Any]) -> None:
        try:
            await ref.ask(Do(rng.randrange(100)), timeout_s=rng.uniform(0.1, 4.0))
        except TenureError:
            return

    async def traffic() -> None:
        end_s = pair.loop.time() + how_many(short=120, long=6 * 3_600)
        refs: list[ActorRef[Any]] = []
        spawned: list[tuple[Runtime, ActorRef[Any]]] = []
        while pair.loop.time() < end_s:
            runtime = rng.choice(runtimes)
            if rng.random() < 0.1 or not refs:
                local = runtime.spawn(Anything, 2, mailbox_max=100, when_full="wait")
                refs.append(rng.choice(runtimes).ref_at(runtime.here, local.path, local.uid))
                spawned.append((runtime, local))
                if len(spawned) > 20:
                    home, oldest = spawned.pop(0)
                    home.stop(oldest)
                    del refs[0]
            ref = rng.choice(refs)
            match rng.randrange(4):
                case 0:
                    ref.tell(Do(rng.randrange(100)), sender=rng.choice(refs))
                case 1:
                    await ref.send(Do(rng.randrange(100)))
                case _:
                    task = pair.loop.create_task(ask(ref))
                    if rng.random() < 0.1:
                        pair.loop.call_later(rng.random(), task.cancel)
            await asyncio.sleep(rng.random() * 0.2)

    pair.run(traffic(), within_s=1e6)
    for runtime in runtimes:
        pair.run(runtime.shutdown())
        assert runtime.not_ended() == ()
    pair.run_for(60.0)
    for runtime in runtimes:
        assert len(runtime.ask_timers) == 0
        assert not runtime.ask_timers.is_armed
        assert not runtime.turns
    assert pair.loop._timers == [] or all(timer[2].cancelled() for timer in pair.loop._timers)
    pair.memories.clear()  # what a link has learnt of names ends with the link
    pair.letters.clear()
    pair.far_letters.clear()
    pair.failures.clear()
    assert counted() - before == Counter()
