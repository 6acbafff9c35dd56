"""No step of a gated actor begins while its node may not act, and nothing is lost by waiting.

The oracle is a gate that the test moves by hand: what user code did is compared with where the test
had put it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import AuthorityLost, AuthorityLostError, DeadActorError
from node.actor import Actor, Terminated, on
from node.authority import LOSSES_MAX, Gate
from node.cell import Cell
from node.ref import ActorRef
from node.runtime import Runtime
from node.supervision import (
    AllForOne,
    Escalate,
    Restart,
    Resume,
    Stop,
    StopCause,
    StopReason,
    Supervision,
)
from node.testkit import World
from tests.conftest import loop_name
from tests.node.stage import Add, Greet, Pair, Stage

CLOSED = -math.inf
FAST = Restart(backoff_s=0.0)


@dataclass(frozen=True)
class Do:
    """Call this with the actor; what it returns is what the handler returns."""

    act: Callable[[Any], Any]


@dataclass(frozen=True)
class DoLater:
    """As `Do`, by a coroutine function as a handler."""

    act: Callable[[Any], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Note:
    """Written down."""

    text: str


class Doer(Actor):
    """Writes down each step it takes, and does what it is told."""

    def __init__(self, log: list[str], *hooks: Callable[[Doer, str], Any]) -> None:
        self.log, self.hooks = log, hooks
        self.note("built")

    def note(self, text: str) -> None:
        """A step."""
        self.log.append(text)

    def hook(self, name: str) -> Any:
        """What the test put there."""
        self.note(name)
        results = [hook(self, name) for hook in self.hooks]
        return next((result for result in results if result is not None), None)

    def pre_start(self) -> Any:
        return self.hook("pre_start")

    def pre_restart(self, _error: Exception, _message: object) -> Any:
        return self.hook("pre_restart")

    def post_stop(self, reason: StopReason) -> Any:
        self.note(f"post_stop, held: {self.context.authority.held}")
        for hook in self.hooks:
            hook(self, reason.cause.name)

    @on(Do)
    def do(self, msg: Do) -> Any:
        return msg.act(self)

    @on(DoLater)
    async def do_later(self, msg: DoLater) -> Any:
        self.note("later")
        return await msg.act(self)

    @on(Note)
    def write(self, msg: Note) -> None:
        self.note(msg.text)

    @on(Add)
    async def add(self, msg: Add) -> int:
        self.note(f"add {msg.amount}")
        try:
            for number in range(3):
                await asyncio.sleep(1.0)
                self.note(f"add {msg.amount}.{number}")
        finally:
            self.note(f"clean {msg.amount}")
        return msg.amount

    @on(Greet)
    async def greet(self, msg: Greet) -> None:
        self.note(msg.name)

    @on(Terminated)
    async def ended(self, msg: Terminated) -> None:
        self.note(f"ended {msg.ref.path}")


class Gated(Stage):
    """A stage with one gated actor, and its gate at hand."""

    def __init__(
        self,
        *hooks: Callable[[Doer, str], Any],
        supervision: Supervision | None = None,
        is_open: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.log: list[str] = []
        self.started = 0
        self.ends: list[StopReason] = []
        if not is_open:
            self.shut()
        self.ref = self.runtime.spawn_at(
            "/singleton/one",
            Doer,
            (self.log, *hooks),
            gated=True,
            supervision=supervision,
            on_started=self.has_started,
            on_stopped=self.ends.append,
        )
        self.settle()

    def has_started(self) -> None:
        """The first instance runs."""
        self.started += 1

    def shut(self) -> None:
        """No step begins from here on."""
        self.runtime.gate.extend(CLOSED)

    def open(self) -> None:
        """Steps begin again."""
        self.runtime.gate.extend(math.inf)
        self.settle()

    def take(self) -> list[str]:
        """What was written since the last call."""
        taken, self.log[:] = list(self.log), []
        return taken

    def count(self, name: str) -> int:
        """A counter."""
        return self.runtime.counters.get(f"authority: {name}", 0)


def letters(stage: Stage) -> list[str]:
    return [letter.why.name for letter in stage.letters]


# The gate itself


def gate_of(now: list[float]) -> tuple[Gate, list[str], list[Callable[[], None]]]:
    counted: list[str] = []
    turns: list[Callable[[], None]] = []
    return Gate(lambda: now[0], turns.append, counted.append), counted, turns


def test_a_gate_closes_by_time_alone_and_opens_in_order() -> None:
    now = [0.0]
    gate, counted, turns = gate_of(now)
    first, second, third = (lambda: None), (lambda: None), (lambda: None)
    gate.extend(5.0)
    was_open = [gate.is_open_now]
    now[0] = 5.0
    was_open.append(gate.is_open_now)
    assert was_open == [True, False]
    for resume in (first, second, first, third):
        gate.hold(resume)
    gate.forget(third)
    gate.forget(third)
    assert (gate.held_count, len(counted)) == (2, 4)
    gate.extend(5.0)
    gate.extend(2.0)
    assert turns == []
    gate.extend(5.5)
    assert turns == [first, second]
    gate.extend(9.0)
    assert (turns, gate.held_count) == ([first, second], 0)


def test_without_a_gate_nobody_looks_at_the_clock() -> None:
    def clock() -> float:
        raise AssertionError

    assert Gate(clock, lambda _resume: None, lambda _name: None).is_open_now


def test_what_an_actor_is_told_of_its_authority() -> None:
    stage = Gated()
    seen: list[Any] = []

    def look(actor: Doer) -> None:
        authority = actor.context.authority
        seen.append((authority.token, authority.held, authority.valid_until))
        seen.append(authority.remaining_s())
        authority.check()

    stage.ref.tell(Do(look))
    stage.settle()
    assert seen == [(None, True, math.inf), math.inf]
    seen.clear()
    stage.runtime.gate.extend(stage.loop.time() + 2.5)
    stage.ref.tell(Do(look))
    stage.settle()
    assert seen == [(None, True, stage.loop.time() + 2.5), 2.5]
    free = stage.runtime.spawn(Doer, [])
    stage.shut()
    seen.clear()
    free.tell(Do(look))
    stage.settle()
    assert seen == [(None, True, math.inf), math.inf]
    assert not stage.failures


# Messages


def test_messages_wait_in_order_and_asks_with_them() -> None:
    stage = Gated()
    stage.take()
    stage.shut()
    for number in range(200):
        stage.ref.tell(Note(str(number)))
    asking = stage.loop.create_task(stage.ref.ask(Add(7), timeout_s=60.0))
    stage.run_for(5.0)
    assert stage.take() == []
    assert not asking.done()
    assert (stage.count("holds"), stage.runtime.gate.held_count) == (1, 1)
    stage.open()
    assert stage.take() == [*map(str, range(200)), "add 7"]
    assert stage.run(_result(asking)) == 7
    assert stage.letters == []


async def _result(task: asyncio.Task[Any]) -> Any:
    return await task


def test_a_gate_that_closes_again_before_their_turn_keeps_the_order_of_the_held() -> None:
    stage = Gated()
    others = [
        stage.runtime.spawn_at(f"/singleton/{name}", Doer, (stage.log,), gated=True)
        for name in "abc"
    ]
    stage.settle()
    stage.take()
    stage.shut()
    for name, ref in zip("cab", (others[2], others[0], others[1]), strict=True):
        ref.tell(Note(name))
        stage.settle()
    stage.runtime.gate.extend(math.inf)
    stage.shut()
    stage.settle()
    assert stage.take() == []
    stage.open()
    assert stage.take() == ["c", "a", "b"]


def test_the_gate_is_asked_before_each_message_not_before_each_turn() -> None:
    stage = Gated()
    for number in range(20):
        stage.ref.tell(Note(str(number)))
    stage.settle()  # its pace is as high as it gets
    stage.take()
    stage.ref.tell(Note("before"))
    stage.ref.tell(Do(lambda _actor: stage.shut()))
    stage.ref.tell(Note("after"))
    stage.settle()
    assert stage.take() == ["before"]
    stage.open()
    assert stage.take() == ["after"]


def test_others_have_no_gate() -> None:
    stage = Gated()
    free: list[str] = []
    ref = stage.runtime.spawn(Doer, free)
    stage.shut()
    ref.tell(Note("free"))
    stage.settle()
    assert free == ["built", "pre_start", "free"]


def bring_tick(stage: Gated) -> None:
    stage.ref.tell(Do(lambda actor: actor.context.timers.once("t", 1.0, Note("it"))))
    stage.settle()
    stage.shut()
    stage.run_for(2.0)


def bring_end(stage: Gated) -> None:
    other = stage.runtime.spawn(Doer, [], name="other")
    stage.ref.tell(Do(lambda actor: actor.context.watch(other)))
    stage.settle()
    stage.shut()
    stage.runtime.stop(other)
    stage.settle()


def bring_stash(stage: Gated) -> None:
    stage.ref.tell(Do(_stash_once))
    stage.settle()

    def unstash(actor: Doer) -> None:
        actor.context.unstash_all()
        stage.shut()

    stage.ref.tell(Do(unstash))
    stage.settle()


def _stash_once(actor: Doer) -> None:
    if not hasattr(actor, "has_stashed"):
        actor.has_stashed = True  # type: ignore[attr-defined]
        actor.context.stash()
    else:
        actor.note("it")


def bring_pipe(stage: Gated) -> None:
    async def soon() -> str:
        return "it"

    def pipe(actor: Doer) -> None:
        def result(text: str) -> Note:
            actor.note("result")
            return Note(text)

        actor.context.pipe_to_self(soon(), result)

    stage.ref.tell(Do(pipe))
    stage.loop.call_later(0.0, stage.loop.call_soon, stage.shut)
    stage.run_for(2.0)


def bring_behaviour(stage: Gated) -> None:
    stage.ref.tell(Do(lambda actor: actor.context.become(lambda _msg: actor.note("it"))))
    stage.settle()
    stage.shut()
    stage.ref.tell(Note("anything"))
    stage.settle()


@pytest.mark.parametrize(
    ("bring", "comes"),
    [
        (bring_tick, ["it"]),
        (bring_end, ["ended /user/other"]),
        (bring_stash, ["it"]),
        (bring_pipe, ["result", "it"]),
        (bring_behaviour, ["it"]),
    ],
)
def test_whatever_lies_in_the_mailbox_waits(
    bring: Callable[[Gated], None], comes: list[str]
) -> None:
    stage = Gated()
    stage.take()
    bring(stage)
    assert stage.take() == []
    stage.open()
    assert stage.take() == comes
    assert stage.count("losses") == 0


# Coroutines


def steps_after_the_loss(stage: Gated) -> list[str]:
    """What a handler does that is in the middle of its work when the gate closes."""
    stage.ref.tell(Add(1))
    stage.run_for(1.5)
    stage.take()
    stage.shut()
    stage.run_for(30.0)
    return stage.take()


def test_a_coroutine_is_not_resumed_without_authority() -> None:
    stage = Gated()
    assert steps_after_the_loss(stage) == ["clean 1"]
    assert (letters(stage), stage.failures) == (["AUTHORITY_LOST"], [])
    assert stage.count("losses") == 1
    stage.ref.tell(Note("next"))
    stage.open()
    assert stage.take() == ["next"]  # the same instance goes on


def test_a_gate_asked_per_message_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: this is the fault it is for."""
    monkeypatch.setattr(Cell, "_begin_gated_step", lambda self: self.runtime.step())
    assert steps_after_the_loss(Gated()) == ["add 1.1", "add 1.2", "clean 1"]


def test_one_that_awaits_while_the_gate_was_closed_never_hears_of_it() -> None:
    stage = Gated()
    stage.take()
    asking = stage.loop.create_task(stage.ref.ask(Add(1), timeout_s=60.0))
    stage.run_for(1.1)
    stage.shut()
    stage.run_for(0.5)
    stage.open()
    assert stage.run(_result(asking)) == 1
    assert stage.take() == ["add 1", "add 1.0", "add 1.1", "add 1.2", "clean 1"]


def test_what_it_was_asked_fails_and_what_follows_waits() -> None:
    stage = Gated()
    first = stage.loop.create_task(stage.ref.ask(Add(1), timeout_s=60.0))
    second = stage.loop.create_task(stage.ref.ask(Add(2), timeout_s=60.0))
    stage.run_for(0.5)
    stage.shut()
    with pytest.raises(AuthorityLostError, match="/singleton/one: its actor lost its authority"):
        stage.run(_result(first))
    stage.run_for(5.0)
    assert not second.done()
    stage.open()
    assert stage.run(_result(second)) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_that_error_travels(version: int) -> None:
    pair = Pair(version)
    log: list[str] = []
    pair.far.spawn_at("/singleton/one", Doer, (log,), gated=True)
    asking = pair.loop.create_task(pair.to_far("/singleton/one").ask(Add(1), timeout_s=60.0))
    pair.run_for(0.5)
    pair.far.gate.extend(CLOSED)
    with pytest.raises(AuthorityLostError, match="what it had begun may have happened"):
        pair.run(_result(asking))
    assert [letter.why.name for letter in pair.far_letters] == ["AUTHORITY_LOST"]


async def _swallow_all(actor: Doer) -> None:
    while "release" not in actor.log:
        try:
            await asyncio.sleep(0.0 if "GeneratorExit" in actor.log else 1.0)
            actor.note("acts")
        except BaseException as error:  # noqa: BLE001 - what is to be survived
            actor.note(type(error).__name__)


def test_not_even_one_that_ignores_its_close_goes_on() -> None:
    stage = Gated()
    stage.ref.tell(Do(_swallow_all))
    stage.settle()
    stage.take()
    stage.shut()
    stage.run_for(100.0)
    told = ["AuthorityLost"] * LOSSES_MAX + ["GeneratorExit"]
    assert stage.take() == [*told, "post_stop, held: False"]
    stage.open()
    stage.run_for(100.0)
    assert stage.take() == []
    stage.log.append("release")
    for left in stage.runtime._abandoned:
        if hasattr(left, "close"):
            left.close()


async def _swallow(actor: Doer, times: int) -> int:
    for _ in range(times):
        try:
            await asyncio.sleep(1.0)
            actor.note("acts")
        except AuthorityLost:
            actor.note("lost")
    actor.note("ends")
    return 5


def test_one_that_takes_no_notice_hears_it_again_and_is_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Gated()
    stage.ref.tell(DoLater(lambda actor: _swallow(actor, 100)))
    stage.settle()
    stage.take()
    stage.shut()
    stage.run_for(100.0)
    assert stage.take() == ["lost"] * LOSSES_MAX + ["post_stop, held: False"]
    assert letters(stage) == ["AUTHORITY_LOST"]
    assert "took no notice of having lost its authority" in caplog.text
    assert "took no notice of having lost its authority" in str(stage.ends[0])
    assert stage.runtime.gate.held_count == 0


@pytest.mark.parametrize("how", ["returned", "reply"])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_answer_of_a_coroutine_counts_only_with_authority(how: str, is_open: bool) -> None:
    stage = Gated()

    class Asked(Doer):
        @on(Add)
        async def add(self, msg: Add) -> int:
            await asyncio.sleep(1.0)
            if not is_open:
                stage.shut()  # within the step
            if how == "reply":
                self.context.reply(msg.amount)
            return msg.amount

    ref = stage.runtime.spawn_at("/singleton/two", Asked, (stage.log,), gated=True)
    if is_open:
        assert stage.run(ref.ask(Add(4))) == 4
    else:
        with pytest.raises(AuthorityLostError):
            stage.run(ref.ask(Add(4)))
    assert stage.count("answers dropped") == (not is_open)
    assert not stage.letters


@pytest.mark.parametrize("how", ["returned", "reply"])
def test_an_answer_of_a_plain_handler_goes_out(how: str) -> None:
    """Its one step was begun in time."""
    stage = Gated()

    class Asked(Doer):
        @on(Add)
        def add(self, msg: Add) -> int:  # type: ignore[override]
            stage.shut()
            if how == "reply":
                self.context.reply(msg.amount)
            return msg.amount

    ref = stage.runtime.spawn_at("/singleton/two", Asked, (stage.log,), gated=True)
    ref.tell(Greet("a coroutine before it"))
    assert stage.run(ref.ask(Add(4))) == 4


def test_who_passes_an_ask_on_does_not_fail_it() -> None:
    stage = Gated()
    other = stage.runtime.spawn(Doer, [])

    class Passing(Doer):
        @on(Add)
        async def add(self, _msg: Add) -> int:
            self.context.forward(other)
            await asyncio.sleep(1.0)
            return 0

    ref = stage.runtime.spawn_at("/singleton/two", Passing, (stage.log,), gated=True)
    asking = stage.loop.create_task(ref.ask(Add(4), timeout_s=60.0))
    stage.run_for(0.5)
    stage.shut()
    assert stage.run(_result(asking)) == 4
    assert letters(stage) == ["AUTHORITY_LOST"]


def close_before_its_first_step(stage: Gated, tell: Callable[[], None]) -> None:
    """The task of a coroutine begins in a later turn of the loop than its handler was called."""
    tell()
    stage.loop.call_soon(stage.shut)
    stage.run_for(5.0)


def test_a_coroutine_that_has_not_begun_is_held_with_its_message() -> None:
    stage = Gated()
    stage.take()
    sender = stage.runtime.spawn(Doer, [], name="sender")
    stage.settle()

    def tell() -> None:
        stage.ref.tell(Greet("one"), sender)
        stage.ref.tell(Note("two"))

    close_before_its_first_step(stage, tell)
    assert (stage.take(), stage.letters) == ([], [])
    stage.open()
    assert stage.take() == ["one", "two"]
    asking: list[asyncio.Task[int]] = []
    close_before_its_first_step(
        stage, lambda: asking.append(stage.loop.create_task(stage.ref.ask(Add(3), timeout_s=60.0)))
    )
    assert not asking[0].done()
    stage.open()
    assert stage.run(_result(asking[0])) == 3


@pytest.mark.parametrize("what", ["tick", "end", "pipe", "behaviour"])
def test_so_is_what_was_taken_out_already(what: str) -> None:
    """A tick, the word of an end, an outcome: taken out once, handled once."""
    stage = Gated()
    other = stage.runtime.spawn(Doer, [], name="other")
    done = stage.loop.create_future()

    async def behave(msg: Any) -> None:
        stage.log.append(f"{msg.name} behaves")

    def prepare(actor: Doer) -> None:
        actor.context.timers.once("t", 1.0, Greet("tick"))
        actor.context.watch(other)
        actor.context.pipe_to_self(done, Greet)
        if what == "behaviour":
            actor.context.become(behave)

    stage.ref.tell(Do(prepare))
    stage.settle()
    stage.take()
    cell = stage.runtime.cell_at(stage.ref.path, 0)
    assert cell is not None
    bring: dict[str, Callable[[], object]] = {
        "tick": lambda: stage.run_for(0.999_999),
        "end": lambda: stage.runtime.stop(other),
        "pipe": lambda: done.set_result("pipe"),
        "behaviour": lambda: stage.ref.tell(Greet("it")),
    }
    begin = cell._begin

    def begin_and_shut(driver: Coroutine[Any, Any, None]) -> None:
        begin(driver)
        stage.shut()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cell, "_begin", lambda _cell, driver: begin_and_shut(driver))
        bring[what]()
        stage.run_for(0.5)
    assert (stage.take(), stage.count("holds")) == ([], 1)
    stage.open()
    expected = {"end": "ended /user/other", "behaviour": "it behaves"}.get(what, what)
    assert expected in stage.take()
    stage.run_for(5.0)
    assert expected not in stage.take()


def test_a_plain_handler_that_makes_a_coroutine_does_not_run_twice() -> None:
    stage = Gated()
    stage.take()

    def act(actor: Doer) -> Any:
        actor.note("half")
        return _swallow(actor, 0)

    close_before_its_first_step(stage, lambda: stage.ref.tell(Do(act)))
    assert (stage.take(), letters(stage)) == (["half"], ["AUTHORITY_LOST"])
    stage.open()
    assert stage.take() == []


def test_groups_and_waits_of_asyncio_let_the_loss_through() -> None:
    stage = Gated()

    async def group(actor: Doer) -> None:
        async with asyncio.TaskGroup():
            await asyncio.sleep(1.0)
        actor.note("acts")

    async def children(actor: Doer) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(1.0))
            tasks.create_task(asyncio.sleep(50.0))
            await asyncio.sleep(1.0)
        actor.note("acts")

    async def wait_for(actor: Doer) -> None:
        await asyncio.wait_for(asyncio.sleep(1.0), 2.0)
        actor.note("acts")

    async def timeout(actor: Doer) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.sleep(9.0)
        actor.note("acts")

    for act in (group, children, wait_for, timeout):
        stage.open()
        stage.ref.tell(DoLater(act))
        stage.settle()
        stage.take()
        stage.shut()
        stage.run_for(5.0)
        assert stage.take() == [], act.__name__
    assert letters(stage) == ["AUTHORITY_LOST"] * 4
    assert stage.failures == []


@pytest.mark.parametrize("make", [asyncio.Lock, lambda: asyncio.Semaphore(1)])
def test_a_lock_that_was_just_granted_goes_to_the_next(
    make: Callable[[], asyncio.Lock | asyncio.Semaphore],
) -> None:
    stage = Gated()
    lock = make()

    async def use(actor: Doer) -> None:
        async with lock:
            actor.note("acts")

    async def holder() -> None:
        async with lock:
            await asyncio.sleep(2.0)

    async def next_one() -> str:
        async with lock:
            return "got it"

    stage.loop.create_task(holder())
    stage.settle()
    stage.ref.tell(DoLater(use))
    stage.settle()
    following = stage.loop.create_task(next_one())
    stage.settle()
    stage.take()
    stage.shut()
    assert stage.run(_result(following)) == "got it"
    assert stage.take() == []
    assert (letters(stage), stage.failures) == (["AUTHORITY_LOST"], [])


def test_what_it_raises_besides_is_a_failure() -> None:
    stage = Gated(supervision=Resume())

    async def fail(_actor: Doer) -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            raise OSError("in the clean-up")

    stage.ref.tell(DoLater(fail))
    stage.settle()
    stage.shut()
    stage.run_for(2.0)
    assert [failure.text for failure in stage.failures] == ["in the clean-up"]


def test_check_ends_a_handler_without_a_failure_but_only_when_it_is_lost() -> None:
    stage = Gated(supervision=Stop())

    def act(actor: Doer) -> None:
        actor.context.authority.check()
        stage.shut()
        actor.context.authority.check()
        actor.note("acts")

    stage.take()
    stage.ref.tell(Do(act))
    stage.settle()
    assert (stage.take(), letters(stage), stage.failures) == ([], ["AUTHORITY_LOST"], [])

    def lie(_actor: Doer) -> None:
        raise AuthorityLost

    stage.ref.tell(Do(lie))
    stage.open()
    assert stage.runtime.counters["authority: losses"] == 1
    assert [failure.type_name for failure in stage.failures] == ["AuthorityLost"]


def test_a_loss_that_ends_after_the_gate_has_opened_is_still_one() -> None:
    stage = Gated(supervision=Stop())
    tidied = stage.loop.create_future()

    async def act(actor: Doer) -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            await tidied  # resumed with authority
            actor.note("tidy")

    stage.ref.tell(DoLater(act))
    stage.settle()
    stage.take()
    stage.shut()
    stage.run_for(2.0)
    stage.open()
    tidied.set_result(None)
    stage.settle()
    assert (stage.take(), letters(stage), stage.failures) == (["tidy"], ["AUTHORITY_LOST"], [])

    def lie(_actor: Doer) -> None:
        raise AuthorityLost

    stage.ref.tell(Do(lie))
    stage.settle()
    assert len(stage.failures) == 1


# Starts


def test_a_start_waits_and_is_told_once() -> None:
    stage = Gated(is_open=False)
    stage.ref.tell(Note("early"))
    stage.run_for(60.0)
    assert (stage.take(), stage.started) == ([], 0)
    stage.open()
    assert (stage.take(), stage.started) == (["built", "pre_start", "early"], 1)


def test_children_inherit_the_gate_also_of_restarted_ones() -> None:
    stage = Gated()
    refs: dict[str, ActorRef[Any]] = {}

    def grow(actor: Doer, name: str) -> None:
        depth = actor.context.path.count("/")
        if name == "pre_start" and depth < 5:
            refs[f"{depth}"] = actor.context.spawn(Doer, stage.log, grow, supervision=FAST)

    root = stage.runtime.spawn_at("/singleton/root", Doer, (stage.log, grow), gated=True)
    stage.settle()
    for _ in range(2):
        stage.take()
        stage.shut()
        for ref in (root, *refs.values()):
            ref.tell(Note(ref.path))
        stage.run_for(5.0)
        assert stage.take() == []
        stage.open()
        assert sorted(stage.take()) == sorted([root.path, *(ref.path for ref in refs.values())])
        root.tell(Do(_raise))
        stage.run_for(5.0)


def _raise(actor: Doer) -> None:
    actor.note("fails")
    raise OSError("broken")


def overrun_and_fail(stage: Gated) -> Do:
    """A step that was begun in time and fails after the loss."""

    def act(actor: Doer) -> None:
        stage.shut()
        _raise(actor)

    return Do(act)


@pytest.mark.parametrize("where", ["constructor", "pre_start", "awaits", "not begun", "overran"])
def test_a_start_without_authority_is_begun_anew(where: str) -> None:
    """What is half built ends in order, and nobody counts it as a failure."""
    stage = Gated(is_open=False)
    built: list[int] = []
    own: list[str] = []

    class Starting(Doer):
        def __init__(self, log: list[str]) -> None:
            built.append(1)
            self.log, self.hooks = log, ()
            if len(built) == 1 and where in ("constructor", "overran"):
                stage.shut()
                if where == "constructor":
                    self.context.authority.check()

        def pre_start(self) -> Any:
            self.note("pre_start")
            self.context.timers.every("t", 0.1, Note("tick"))
            self.context.spawn(Doer, own)
            if len(built) == 1 and where == "pre_start":
                stage.shut()
                self.context.authority.check()
            if len(built) == 1 and where == "not begun":
                stage.shut()
            return self.later()

        def post_stop(self, reason: StopReason) -> None:
            self.note(f"{reason.cause.name}: {reason.detail}")

        async def later(self) -> None:
            self.note("begins")
            await asyncio.sleep(1.0)
            self.note("started")

    started: list[int] = []
    ref = stage.runtime.spawn_at(
        "/singleton/two", Starting, (own,), gated=True, on_started=lambda: started.append(1)
    )
    ref.tell(Greet("early"))
    stage.runtime.gate.extend(math.inf)
    stage.run_for(0.5)
    stage.shut()
    stage.run_for(60.0)
    end = "RESTARTED: its authority was lost while it started"
    child_end = "post_stop, held: False"
    assert (
        own
        == {
            "constructor": [],
            "overran": [end],
            "pre_start": ["pre_start", end],
            "not begun": ["pre_start", end],
            "awaits": ["pre_start", "begins", "built", "pre_start", child_end, end],
        }[where]
    )
    assert (built, started) == ([1], [])
    assert len(stage.runtime.not_ended()) == 2
    own.clear()
    stage.runtime.gate.extend(math.inf)
    stage.run_for(1.05)
    assert (built, started) == ([1, 1], [1])
    assert [text for text in own if text in ("started", "early")] == ["started", "early"]
    assert (stage.failures, stage.letters) == ([], [])
    assert len(stage.runtime.not_ended()) == 3


def test_a_start_that_only_says_so_is_a_failure() -> None:
    """Else it would be begun anew for ever, without any wait."""
    stage = Stage()
    built: list[float] = []

    class Lying(Actor):
        def __init__(self) -> None:
            built.append(self.context.now())
            if len(built) > 1:
                raise AuthorityLost

        async def pre_start(self) -> None:
            await asyncio.sleep(1.0)

    stage.runtime.spawn_at("/singleton/one", Lying, gated=True, supervision=Restart(retries=2))
    stage.settle()
    stage.runtime.gate.extend(CLOSED)
    stage.run_for(2.0)
    assert (len(built), stage.failures) == (1, [])
    stage.runtime.gate.extend(math.inf)
    stage.run_for(60.0)
    assert (len(built), len(stage.failures)) == (4, 3)


@pytest.mark.parametrize("supervision", [FAST, Restart(backoff_s=0.5)])
def test_a_restart_waits(supervision: Supervision) -> None:
    """The step was begun in time and failed after the loss: the instance ends, the next waits."""
    stage = Gated(supervision=supervision)
    stage.take()
    stage.ref.tell(overrun_and_fail(stage))
    stage.ref.tell(Note("next"))
    stage.run_for(30.0)
    assert stage.take() == ["fails", "post_stop, held: False"]  # and no pre_restart
    stage.open()
    assert stage.take() == ["built", "pre_start", "next"]
    assert [failure.outcome for failure in stage.failures] == ["restart"]


def test_a_pre_restart_is_not_resumed() -> None:
    async def flush(actor: Doer) -> None:
        await asyncio.sleep(1.0)
        actor.note("flushed")

    stage = Gated(
        lambda actor, name: flush(actor) if name == "pre_restart" else None, supervision=FAST
    )
    stage.take()
    stage.ref.tell(Do(_raise))
    stage.settle()
    assert stage.take() == ["fails", "pre_restart"]
    stage.shut()
    stage.run_for(5.0)
    assert stage.take() == ["post_stop, held: False"]
    assert len(stage.failures) == 1
    stage.open()
    assert stage.take() == ["built", "pre_start"]


@pytest.mark.parametrize("whose", ["escalated", "sibling", "stop"])
def test_failures_of_others_need_no_authority(whose: str) -> None:
    stage = Gated()
    log: list[str] = []
    child: list[ActorRef[Any]] = []
    policy: dict[str, Supervision] = {
        "escalated": Escalate(),
        "sibling": AllForOne(FAST),
        "stop": AllForOne(Stop()),
    }

    def grow(actor: Doer, name: str) -> None:
        if name == "pre_start" and actor.context.path == "/singleton/root":
            spawn = actor.context.spawn
            child.extend(spawn(Doer, log, supervision=policy[whose]) for _ in range(2))

    async def fail(_actor: Doer) -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            raise OSError("in the clean-up")

    root = stage.runtime.spawn_at("/singleton/root", Doer, ([], grow), gated=True, supervision=FAST)
    stage.settle()
    child[0].tell(DoLater(fail))
    stage.settle()
    stage.shut()
    for ref in (root, child[1]):
        ref.tell(Note("waits"))  # so that both are held when they hear of it
    stage.run_for(5.0)
    ends = log.count("post_stop, held: False")
    left = stage.runtime.not_ended()
    if whose == "escalated":
        assert (ends, left) == (2, ("/singleton/one", "/singleton/root"))
    elif whose == "sibling":
        assert (ends, len(left)) == (2, 4)
    else:
        assert (ends, left) == (2, ("/singleton/one", "/singleton/root"))
    assert "waits" not in log
    assert log.count("built") == 2
    stage.open()
    assert log.count("built") == (2 if whose == "stop" else 4)


def test_a_siblings_failure_comes_before_what_has_not_begun() -> None:
    stage = Gated()
    log: list[str] = []
    group: list[ActorRef[Any]] = []

    def grow(actor: Doer, name: str) -> None:
        if name == "pre_start":
            spawn = actor.context.spawn
            group.extend(spawn(Doer, log, supervision=AllForOne(FAST)) for _ in range(2))

    stage.runtime.spawn_at("/singleton/root", Doer, ([], grow), gated=True)
    stage.settle()
    log.clear()
    group[0].tell(Greet("later"))
    group[1].tell(overrun_and_fail(stage))
    stage.run_for(5.0)
    assert log == ["fails", *["post_stop, held: False"] * 2]
    stage.open()
    assert log[3:].count("built") == 2
    assert log.count("later") == 1


# Stops


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize(
    "at", ["start", "idle", "held", "awaits", "not begun", "pre_start", "draining"]
)
def test_a_stop_does_not_wait_for_the_gate(at: str, drain: bool) -> None:
    async def slow(actor: Doer) -> None:
        try:
            await asyncio.sleep(99.0)
        finally:
            actor.note("clean")

    causes: list[str] = []

    def hook(actor: Doer, name: str) -> Any:
        causes.append(name)
        return slow(actor) if name == "pre_start" and at == "pre_start" else None

    stage = Gated(hook, is_open=at != "start")
    stage.take()
    if at == "awaits":
        stage.ref.tell(DoLater(slow))
        stage.settle()
        stage.take()
    if at == "draining":
        stage.ref.tell(Do(lambda actor: actor.context.stop(actor.context.self, drain=drain)))
        stage.ref.tell(Do(lambda _actor: stage.shut()))
    elif at != "not begun":
        stage.shut()
    if at != "idle":
        stage.ref.tell(Greet("never"))
    if at == "not begun":
        stage.loop.call_soon(stage.shut)
        stage.loop.call_soon(lambda: stage.runtime.stop(stage.ref, drain=drain))
    elif at != "draining":
        if at == "held":
            stage.run_for(1.0)
        stage.runtime.stop(stage.ref, drain=drain)
    stage.run_for(0.001)
    assert stage.ends, "it waits"
    assert causes == ([] if at == "start" else ["pre_start", "STOPPED"])
    assert stage.ends[0].cause is StopCause.STOPPED
    held = at != "draining" or not drain
    cleans = ["clean"] if at in ("awaits", "pre_start") else []
    if at == "draining":
        held_then = not drain  # without drain it stops before the message that shuts the gate
        assert stage.take() == [f"post_stop, held: {held_then}"]
    else:
        assert held
        assert stage.take() == cleans + ([] if at == "start" else ["post_stop, held: False"])
    lost = [] if at == "idle" else ["STOPPED"] * (2 if at == "draining" and not drain else 1)
    assert letters(stage) == (["AUTHORITY_LOST"] if at == "awaits" else []) + lost
    assert (stage.failures, stage.runtime.gate.held_count) == ([], 0)


def test_an_ask_of_one_that_stops_without_authority_fails() -> None:
    stage = Gated()
    stage.shut()
    asking = stage.loop.create_task(stage.ref.ask(Add(1), timeout_s=60.0))
    stage.settle()
    stage.runtime.stop(stage.ref)
    with pytest.raises(DeadActorError):
        stage.run(_result(asking), within_s=0.1)


@pytest.mark.parametrize("when", ["stop", "restart"])
def test_a_post_stop_goes_on_without_authority(when: str) -> None:
    stage = Gated()

    class Tidy(Doer):
        async def post_stop(self, _reason: StopReason) -> None:
            for number in range(3):
                await asyncio.sleep(0.1)
                self.note(f"tidy {number}, held: {self.context.authority.held}")

    ref = stage.runtime.spawn_at("/singleton/two", Tidy, (stage.log,), gated=True)
    stage.settle()
    stage.take()
    if when == "restart":
        ref.tell(overrun_and_fail(stage))
        stage.settle()
        assert stage.take() == ["fails"]
    else:
        stage.shut()
        stage.runtime.stop(ref)
    stage.run_for(1.0)
    assert stage.take() == [f"tidy {number}, held: False" for number in range(3)]


@pytest.mark.parametrize("how", ["shutdown", "kill", "abandon_all"])
def test_the_end_of_all_does_not_wait_for_the_gate(how: str) -> None:
    """I-99: who is downed stops all that runs on it, at once, although it may not act any more."""
    stage = Gated()
    child: list[str] = []
    stage.ref.tell(Do(lambda actor: actor.context.spawn(Doer, child)))
    stage.settle()
    stage.ref.tell(Add(1))
    stage.settle()
    stage.take()
    stage.shut()
    stage.ref.tell(Note("never"))
    before = stage.loop.time()
    if how == "shutdown":
        assert stage.run(stage.runtime.shutdown())
    elif how == "kill":
        cell = stage.runtime.cell_at(stage.ref.path, 0)
        assert cell is not None
        cell.kill(StopReason(StopCause.SHUTDOWN))
        stage.run_for(0.001)
    else:
        stage.runtime.abandon_all()
        stage.settle()
    assert stage.loop.time() - before < 0.01
    assert stage.runtime.actor_count == 0
    assert stage.take() == ["clean 1", "post_stop, held: False"]
    assert child[-1] == "post_stop, held: False"


# Pipes


def pipe(stage: Gated, coroutine: Callable[[], Any], *, has_on_error: bool = True) -> None:
    def on_error(error: Exception) -> Note:
        stage.log.append(f"told {type(error).__name__}")
        return Note("after")

    def act(actor: Doer) -> None:
        actor.context.pipe_to_self(coroutine(), Note, on_error if has_on_error else None)

    stage.ref.tell(Do(act))


@pytest.mark.parametrize("has_on_error", [True, False])
def test_a_pipe_is_not_resumed_and_its_actor_may_hear_of_it(has_on_error: bool) -> None:
    stage = Gated()
    stage.take()

    async def fetch() -> str:
        try:
            await asyncio.sleep(1.0)
            stage.log.append("acts")
        finally:
            stage.log.append("clean")
        return "fetched"

    pipe(stage, fetch, has_on_error=has_on_error)
    stage.settle()
    stage.shut()
    stage.run_for(2.0)
    assert stage.take() == ["clean"]
    stage.open()
    assert stage.take() == (["told AuthorityLostError", "after"] if has_on_error else [])
    assert (stage.failures, stage.letters) == ([], [])
    cell = stage.runtime.cell_at(stage.ref.path, 0)
    assert cell is not None
    assert not cell._pipes


def test_a_pipe_that_has_not_begun_waits() -> None:
    stage = Gated()
    stage.take()

    async def fetch() -> str:
        stage.log.append("begins")
        return "fetched"

    pipe(stage, fetch)
    stage.loop.call_soon(stage.shut)
    stage.run_for(2.0)
    assert stage.take() == []
    stage.runtime.gate.extend(math.inf)
    stage.shut()
    stage.run_for(2.0)
    assert stage.take() == []
    stage.open()
    assert stage.take() == ["begins", "fetched"]
    pipe(stage, fetch)
    stage.loop.call_soon(stage.shut)
    stage.run_for(1.0)
    stage.runtime.stop(stage.ref)
    stage.settle()
    assert stage.take() == ["post_stop, held: False"]
    assert stage.runtime.gate.held_count == 0


def test_a_future_that_is_piped_loses_nothing() -> None:
    stage = Gated()
    stage.take()
    future = stage.loop.create_future()
    pipe(stage, lambda: future)
    stage.settle()
    stage.shut()
    future.set_result("computed")
    stage.run_for(1.0)
    assert stage.take() == []
    stage.open()
    assert stage.take() == ["computed"]


@pytest.mark.parametrize("survives", [AuthorityLost, BaseException])
def test_a_pipe_that_takes_no_notice_is_abandoned(survives: type[BaseException]) -> None:
    stage = Gated()

    async def stubborn() -> str:
        while "release" not in stage.log:
            try:
                await asyncio.sleep(0.0 if "GeneratorExit" in stage.log else 1.0)
                stage.log.append("acts")
            except survives as error:
                stage.log.append(type(error).__name__)
        return "released"

    pipe(stage, stubborn)
    stage.settle()
    stage.take()
    stage.shut()
    stage.run_for(60.0)
    close = ["GeneratorExit"] if survives is BaseException else []
    assert stage.log == ["AuthorityLost"] * LOSSES_MAX + close
    assert stage.runtime.counters["abandoned coroutines"] == 1
    stage.log.append("release")
    for left in stage.runtime._abandoned:
        if hasattr(left, "close"):
            left.close()


# Pauses


def test_a_node_that_stood_still_begins_nothing_before_it_is_extended() -> None:
    """As SIGSTOP: the gate has closed by the clock while nothing ran, and what came meanwhile, and
    what was due meanwhile, is there at once."""
    with World(seed=3) as world:
        runtime = world.system().runtime
        steps: list[tuple[float, str]] = []

        class Ticking(Doer):
            def note(self, text: str) -> None:
                steps.append((self.context.now(), text))

            def pre_start(self) -> None:
                self.context.timers.every("t", 0.05, Note("tick"))
                self.context.timers.every("u", 0.07, Greet("later tick"))

        ref, toiling = (
            world[0].call(runtime.spawn_at, f"/singleton/{name}", Ticking, ([],), gated=True)
            for name in ("one", "two")
        )
        ends: list[float] = []

        def extend() -> None:
            ends.append(runtime.clock() + 1.0)
            runtime.gate.extend(ends[-1])

        world[0].call(extend)
        for number in range(5):
            world[0].call(ref.tell, Note(str(number)))
            world[0].call(toiling.tell, Add(number))
        world.run_for(s=0.5)
        assert len(steps) > 10
        world.pause(0, s=5.0)
        world.run_for(s=5.5)
        before = len(steps)
        assert all(now < ends[0] for now, text in steps if not text.startswith("clean"))
        world.run_for(s=1.0)
        assert len(steps) == before
        world[0].call(extend)
        world.run_for(s=0.9)
        assert len(steps) > before
        assert all(now < ends[1] for now, _ in steps)


SCRIPT = """
import asyncio, random, sys, time
from node.actor import Actor, on
from node.runtime import Runtime
from tests.node.stage import Add, Greet
from tests.conftest import LOOPS

clock = time.monotonic

class Host(Actor):
    def step(self, text):
        print(text, clock(), flush=True)

    def pre_start(self):
        self.context.timers.every("t", 0.001, Greet("tick"))

    @on(Greet)
    def tick(self, msg):
        self.step("step")

    @on(Add)
    async def toil(self, msg):
        for _ in range(100_000):
            await asyncio.sleep(0.0005)
            self.step("step")

async def main():
    runtime = Runtime(loop=asyncio.get_running_loop(), clock=clock, rng=random.Random(1))
    for name, message in (("a", Add(1)), ("b", Greet("hello"))):
        runtime.spawn_at(f"/singleton/{name}", Host, gated=True).tell(message)
    until = clock() + 0.5
    runtime.gate.extend(until)
    print("until", until, flush=True)
    while clock() < until + 0.5:
        await asyncio.sleep(0.01)
    runtime.abandon_all()
    print("end", clock(), flush=True)

with asyncio.Runner(loop_factory=LOOPS[sys.argv[1]]) as runner:
    runner.run(main())
"""


def test_a_process_that_was_stopped_begins_no_step_when_it_goes_on() -> None:
    """The same with a real SIGSTOP, on a real loop."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, loop_name()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        word, until = process.stdout.readline().split()
        assert word == "until"
        lines = [process.stdout.readline().split() for _ in range(50)]
        process.send_signal(signal.SIGSTOP)
        while time.monotonic() < float(until) + 0.3:
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        lines += [line.split() for line in process.stdout]
    assert lines[-1][0] == "end"
    steps = [float(at) for word, at in lines if word == "step"]
    assert len(steps) >= 50
    # One that was under way when the signal came was begun before.
    assert len([at for at in steps if at >= float(until)]) <= 1


# Whatever happens


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[str, float]]:
    """Moves of the gate, messages, and time that goes by."""
    kinds = st.sampled_from(
        ["told", "toil", "ask", "tick", "pipe", "shut", "open", "until", "time"]
    )
    return draw(st.lists(st.tuples(kinds, st.sampled_from([0.0, 0.3, 1.0, 2.5])), max_size=30))


class Tally:
    """A gate moved by hand, and what a `Counting` did while it was where."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.until = math.inf
        self.seen: list[int] = []
        self.finished: list[int] = []
        self.breaches: list[str] = []
        self.asks: dict[int, asyncio.Task[int]] = {}
        self.ref = self.stage.runtime.spawn_at("/singleton/one", Counting, (self,), gated=True)

    def move(self, instant: float) -> None:
        """Let steps begin until then."""
        self.until = instant
        self.stage.runtime.gate.extend(instant)

    def step(self) -> None:
        """User code has begun a step."""
        now = self.stage.loop.time()
        if not now < self.until:
            self.breaches.append(f"a step at {now}, allowed until {self.until}")

    def do(self, number: int, kind: str, s: float) -> None:
        """One move of a plan."""
        stage, ref = self.stage, self.ref
        if kind == "told":
            ref.tell(Greet(str(number)))
        elif kind == "toil":
            ref.tell(Add(number))
        elif kind == "ask":
            asking = stage.loop.create_task(ref.ask(Add(number), timeout_s=1_000.0))
            self.asks[number] = asking
            if s:
                stage.settle()
        elif kind == "tick":
            ref.tell(Do(functools.partial(_every, s + 0.1)))
        elif kind == "pipe":
            ref.tell(Do(_pipe))
        elif kind == "time":
            stage.run_for(s)
        else:
            self.move({"shut": CLOSED, "open": math.inf, "until": stage.loop.time() + s}[kind])


class Counting(Actor):
    """Tells its tally of each step."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        tally.step()

    async def pre_start(self) -> None:
        self.tally.step()
        await asyncio.sleep(0.1)
        self.tally.step()

    @on(Greet)
    def told(self, msg: Greet) -> None:
        self.tally.step()
        self.tally.seen.append(int(msg.name))
        self.tally.finished.append(int(msg.name))

    @on(Add)
    async def toil(self, msg: Add) -> int:
        self.tally.step()
        self.tally.seen.append(msg.amount)
        for _ in range(2):
            await asyncio.sleep(0.4)
            self.tally.step()
        self.tally.finished.append(msg.amount)
        return msg.amount

    @on(Note)
    async def outcome(self, _msg: Note) -> None:
        self.tally.step()

    @on(Do)
    def do(self, msg: Do) -> None:
        self.tally.step()
        msg.act(self)

    async def fetch(self) -> str:
        """For a pipe."""
        self.tally.step()
        await asyncio.sleep(0.2)
        self.tally.step()
        return "fetched"


def _pipe(actor: Counting) -> None:
    actor.context.pipe_to_self(actor.fetch(), Note, lambda _error: None)


@given(plans())
def test_whenever_the_gate_moves_no_step_begins_closed_and_nothing_is_lost(
    plan: list[tuple[str, float]],
) -> None:
    """Each message is handled once and in order, or is a dead letter after it was begun."""
    tally = Tally()
    stage, seen = tally.stage, tally.seen
    for number, (kind, s) in enumerate(plan):
        tally.do(number, kind, s)
    tally.move(math.inf)
    stage.run_for(100.0)
    assert tally.breaches == []
    told = [number for number, (kind, _) in enumerate(plan) if kind in ("told", "toil")]
    assert [number for number in seen if number in told] == told
    assert sorted(seen) == sorted({*told, *tally.asks})
    assert set(letters(stage)) <= {"AUTHORITY_LOST"}
    lost = [letter.message.amount for letter in stage.letters if isinstance(letter.message, Add)]
    assert sorted([*tally.finished, *lost]) == sorted(seen)
    assert stage.failures == []
    for number, asking in tally.asks.items():
        assert asking.done()
        if number in lost:
            assert isinstance(asking.exception(), AuthorityLostError)
        else:
            assert asking.result() == number
    stage.runtime.abandon_all()


def _every(interval_s: float, actor: Actor) -> None:
    actor.context.timers.every("t", interval_s, Note("tick"))


async def test_on_a_real_loop_no_step_begins_after_the_end() -> None:
    """Resumes 2,000 times a second against a gate of 0.1 s, with callbacks that keep the loop."""
    clock = time.monotonic
    loop = asyncio.get_running_loop()
    runtime = Runtime(loop=loop, clock=clock, rng=random.Random(1))
    until = [0.0]
    late: list[float] = []
    steps = [0]

    class Host(Actor):
        @on(Add)
        async def toil(self, _msg: Add) -> int:
            while True:
                await asyncio.sleep(0.0005)
                self.step()

        @on(Greet)
        def tick(self, _msg: Greet) -> None:
            self.step()

        def step(self) -> None:
            steps[0] += 1
            now = clock()
            if now >= until[0]:
                late.append(now - until[0])

    def keep_the_loop() -> None:
        while clock() < until[0] + 0.05:
            time.sleep(0.001)

    refs = [runtime.spawn_at(f"/singleton/{name}", Host, gated=True) for name in "ab"]
    for _ in range(5):
        until[0] = clock() + 0.1
        runtime.gate.extend(until[0])
        refs[0].tell(Add(1))
        loop.call_later(0.07, keep_the_loop)
        while clock() < until[0] + 0.1:
            refs[1].tell(Greet("x"))
            await asyncio.sleep(0.001)
    assert steps[0] > 50
    # Those that were begun in time and interrupted by the kernel before they looked at the clock.
    assert len(late) <= 3
    await runtime.shutdown()
