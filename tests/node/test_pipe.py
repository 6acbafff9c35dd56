"""`pipe_to_self`: outcomes come back as messages, and nothing outlives the instance (I-27)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from node.actor import Actor, on
from node.messages import Ask, message
from node.supervision import Restart, Resume, Stop, StopReason
from tests.node.stage import Add, Greet, Stage


@message("test.pipe.do")
class Do(Ask[str]):
    """Begin something."""

    what: str


@message("test.pipe.done")
class Done:
    """It has ended."""

    text: str


class Busy(Actor):
    """Begins things and notes how they end."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        log.append("built")

    @on(Do)
    def do(self, msg: Do) -> str:
        how: dict[str, Callable[[], Coroutine[Any, Any, str]]] = {
            "later": self.later,
            "fails": self.fails,
            "stubborn": self.stubborn,
            "tidy": self.tidy,
            "cancels": self.cancels,
        }
        self.context.pipe_to_self(how[msg.what](), Done)
        return "begun"

    @on(Add)
    def add(self, msg: Add) -> int:
        self.context.pipe_to_self(
            self.fails(), on_error=lambda error: Done(f"{type(error).__name__} told")
        )
        return 0

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "break":
            raise ValueError
        self.log.append(msg.name)

    @on(Done)
    def done(self, msg: Done) -> None:
        self.log.append(f"done {msg.text}")

    async def later(self) -> str:
        await asyncio.sleep(1.0)
        self.log.append("acts")
        return "later"

    async def fails(self) -> str:
        await asyncio.sleep(0.1)
        raise OSError("no")

    async def cancels(self) -> str:
        raise asyncio.CancelledError

    async def tidy(self) -> str:
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.sleep(0.2)
            self.log.append("tidy")
        return ""

    async def stubborn(self) -> str:
        while True:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                self.log.append("cancelled")
            else:
                self.log.append("acts")

    def post_stop(self, reason: StopReason, /) -> None:
        self.log.append(reason.cause.name)


def busy(stage: Stage, policy: Any = None) -> tuple[Any, list[str]]:
    log: list[str] = []
    ref = stage.runtime.spawn(Busy, log, name="b", supervision=policy)
    stage.settle()
    return ref, log


def test_outcome_comes_back_as_a_message_while_the_actor_goes_on() -> None:
    stage = Stage()
    ref, log = busy(stage)
    assert stage.run(ref.ask(Do("later"))) == "begun"
    ref.tell(Greet("meanwhile"))
    stage.run_for(2.0)
    assert log == ["built", "meanwhile", "acts", "done later"]


def test_error_is_told_or_is_a_failure_of_the_actor() -> None:
    stage = Stage()
    ref, log = busy(stage, Restart(backoff_s=0.0))
    ref.tell(Add(1))
    stage.run_for(1.0)
    assert log == ["built", "done OSError told"]
    assert stage.failures == []
    ref.tell(Do("fails"))
    stage.run_for(1.0)
    assert log[2:] == ["RESTARTED", "built"]
    assert [(f.during, f.type_name, f.outcome) for f in stage.failures] == [
        ("pipe_to_self", "OSError", "restart")
    ]


def test_cancellation_from_within_is_a_failure_and_wedges_nothing() -> None:
    stage = Stage()
    ref, log = busy(stage, Resume())
    ref.tell(Do("cancels"))
    stage.settle()
    assert [failure.text for failure in stage.failures] == ["cancelled while it awaited"]
    ref.tell(Greet("on"))
    stage.settle()
    assert log == ["built", "on"]


@pytest.mark.parametrize("end", ["stop", "restart"])
def test_what_is_on_its_way_ends_before_post_stop_and_tells_nothing(end: str) -> None:
    stage = Stage()
    ref, log = busy(stage, Restart(backoff_s=0.0))
    ref.tell(Do("later"))
    ref.tell(Do("tidy"))
    stage.run_for(0.5)
    if end == "stop":
        stage.runtime.stop(ref)
    else:
        ref.tell(Greet("break"))
    stage.run_for(10.0)
    assert log == ["built", "tidy", *(["STOPPED"] if end == "stop" else ["RESTARTED", "built"])]
    assert "abandoned coroutines" not in stage.runtime.counters


def test_one_that_takes_no_notice_is_abandoned_and_never_acts_again() -> None:
    stage = Stage(stop_timeout_s=2.0)
    ref, log = busy(stage)
    ref.tell(Do("stubborn"))
    stage.run_for(0.6)
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == pytest.approx(0.6 + 3 * 0.5)
    assert log[-1] == "STOPPED"
    assert stage.runtime.counters["abandoned coroutines"] == 1
    seen = len(log)
    stage.run_for(30.0)
    assert len(log) == seen


@pytest.mark.parametrize("what", ["later", "stubborn", "tidy"])
@pytest.mark.parametrize("is_begun", [False, True])
def test_end_within_the_call_ends_pipes_as_well(what: str, is_begun: bool) -> None:
    stage = Stage()
    ref, log = busy(stage)
    ref.tell(Do(what))
    stage.run_for(0.2 if is_begun else 0.0)
    stage.runtime.abandon_all()
    assert stage.runtime.not_ended() == ()
    assert log[-1] == "STOPPED" or "SHUTDOWN" in log[-1]
    seen = len(log)
    stage.run_for(30.0)
    assert len(log) == seen


def test_outcome_that_waits_in_the_mailbox_ends_with_the_instance() -> None:
    stage = Stage()
    ref, log = busy(stage, Restart(backoff_s=0.0))

    async def at_once() -> str:
        return "at once"

    cell = stage.runtime.cell_at(ref.path, 0)
    assert cell is not None
    cell.pipe(at_once(), Done, None)
    ref.tell(Greet("break"))
    stage.loop.call_soon(lambda: ref.tell(Greet("last")))
    stage.run_for(1.0)
    assert log == ["built", "RESTARTED", "built", "last"]


@pytest.mark.parametrize("kind", ["future", "task", "result itself", "none"])
def test_any_awaitable_will_do_and_none_is_no_message(kind: str) -> None:
    class Awaiting(Actor):
        def pre_start(self) -> None:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            if kind == "task":
                self.task = asyncio.create_task(asyncio.sleep(0.1, "x"))
                self.context.pipe_to_self(self.task, Done)
            elif kind == "future":
                asyncio.get_running_loop().call_later(0.1, future.set_result, "x")
                self.context.pipe_to_self(future, Done)
            elif kind == "result itself":
                self.context.pipe_to_self(asyncio.sleep(0.1, Done("x")))
            else:
                self.context.pipe_to_self(asyncio.sleep(0.1, "x"), lambda _: None)

        def receive(self, message: Any, /) -> None:
            seen.append(message)

    stage = Stage()
    seen: list[Any] = []
    stage.runtime.spawn(Awaiting)
    stage.run_for(1.0)
    assert seen == ([] if kind == "none" else [Done("x")])


def test_mapping_that_raises_is_a_failure_of_the_actor() -> None:
    class Mapping(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            self.context.pipe_to_self(asyncio.sleep(0.0, 1), lambda value: 1 / 0)
            return 1

    stage = Stage()
    ref = stage.runtime.spawn(Mapping, supervision=Stop())
    ref.tell(Add(1))
    stage.settle()
    assert [f.type_name for f in stage.failures] == ["ZeroDivisionError"]
    assert stage.runtime.actor_count == 0


def test_instance_that_ends_begins_nothing_and_leaves_no_warning() -> None:
    class Late(Actor):
        def post_stop(self, reason: StopReason, /) -> None:
            self.context.pipe_to_self(asyncio.sleep(1.0))

    stage = Stage()
    ref = stage.runtime.spawn(Late)
    stage.settle()
    stage.runtime.stop(ref)
    stage.settle()
    gc.collect()
    assert "is stopping and cannot begin anything" in stage.failures[0].text
    assert stage.runtime.actor_count == 0


def test_pipes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.cell.PIPES_MAX", 3)
    stage = Stage()
    ref, log = busy(stage, Resume())
    for _ in range(4):
        ref.tell(Do("later"))
    stage.run_for(3.0)
    assert log.count("done later") == 3
    assert "has 3 pipes under way" in stage.failures[0].text
    ref.tell(Do("later"))
    stage.run_for(3.0)
    assert log.count("done later") == 4


def test_outcomes_come_past_a_full_mailbox_and_can_be_stashed() -> None:
    class Full(Actor):
        def __init__(self) -> None:
            self.is_open = False

        @on(Add)
        async def add(self, msg: Add) -> int:
            self.context.pipe_to_self(asyncio.sleep(0.1, "x"), Done)
            await asyncio.sleep(1.0)
            return 1

        @on(Done)
        def done(self, msg: Done) -> None:
            if self.is_open:
                seen.append(msg.text)
            else:
                self.context.stash()

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            self.is_open = True
            seen.append(msg.name)
            self.context.unstash_all()

    stage = Stage()
    seen: list[str] = []
    ref = stage.runtime.spawn(Full, mailbox_max=1)
    ref.tell(Add(1))
    stage.settle()
    ref.tell(Add(1))
    stage.run_for(5.0)
    ref.tell(Greet("open"))
    stage.run_for(5.0)
    assert seen == ["open", "x", "x"]
