"""A cell against hostile user code: what is raised, and coroutines that take no notice (I-27)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from node.actor import Actor, on
from node.errors import ActorFailedError, DeadActorError
from node.events import ActorFailed
from node.messages import Ask, message
from node.runtime import Runtime
from node.supervision import Restart, Resume, Stop, StopReason
from tests.node.stage import Add, Greet, Stage


@message("test.cell.hang")
class Hang(Ask[int]):
    how: str


class CustomError(BaseException):
    """No `Exception`."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "cancelled": asyncio.CancelledError,
    "exit": lambda: SystemExit(3),
    "generator": GeneratorExit,
    "custom": lambda: CustomError("boom"),
}
HOOKS = ("constructor", "pre_start", "pre_restart", "post_stop")


class Hostile(Actor):
    """Raises `what` at `where`, once; later instances are harmless."""

    def __init__(self, log: list[str], where: str, what: str, is_async: bool) -> None:
        self.where = "" if "raised" in log else where
        self.log, self.what, self.is_async = log, what, is_async
        log.append("built")
        self.at("constructor", plain=True)

    def at(self, where: str, *, plain: bool = False) -> Any:
        if where != self.where:
            return None
        self.log.append("raised")
        self.where = ""
        error = RAISED[self.what]()
        if self.is_async and not plain:
            return self.later(error)
        raise error

    async def later(self, error: BaseException) -> None:
        await asyncio.sleep(0.01)
        raise error

    def pre_start(self) -> Any:
        return self.at("pre_start")

    def pre_restart(self, error: Exception, message: object, /) -> Any:
        assert isinstance(error, Exception)
        return self.at("pre_restart")

    def post_stop(self, reason: StopReason, /) -> Any:
        self.log.append(reason.cause.name)
        return self.at("post_stop")

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        raise ValueError(msg.name)

    @on(Add)
    def add(self, msg: Add) -> Any:
        awaits = self.at("handler")
        return msg.amount if awaits is None else awaits


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("policy", [Restart(), Stop(), Resume()])
def test_whatever_a_handler_raises_is_a_failure_of_its_actor(
    is_async: bool, what: str, policy: Any
) -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Hostile, log, "handler", what, is_async, supervision=policy)
    with pytest.raises(ActorFailedError) as failed:
        stage.run(ref.ask(Add(1)))
    if what == "cancelled" and is_async:
        assert failed.value.text == "cancelled while it awaited"
    else:
        assert failed.value.type_name == type(RAISED[what]()).__name__
    if isinstance(policy, Stop):
        with pytest.raises(DeadActorError):
            stage.run(ref.ask(Add(1)))
    else:
        assert stage.run(ref.ask(Add(2))) == 2
    assert stage.run(stage.runtime.shutdown())
    assert stage.runtime.not_ended() == ()
    assert len(stage.failures) == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("where", HOOKS)
def test_whatever_a_hook_raises_never_wedges_the_cell(
    where: str, what: str, is_async: bool
) -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Hostile, log, where, what, is_async)
    if where in ("pre_restart", "post_stop"):
        ref.tell(Greet("break"))
    assert stage.run(ref.ask(Add(2))) == 2
    assert log.count("raised") == 1
    assert stage.runtime.actor_count == 1
    assert stage.run(stage.runtime.shutdown())
    assert stage.loop.time() < 1.0
    assert stage.runtime.not_ended() == ()


@pytest.mark.parametrize("what", RAISED)
def test_whatever_post_stop_raises_at_the_end_the_actor_has_ended(what: str) -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Hostile, [], "post_stop", what, False)
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.runtime.actor_count == 0
    assert [failure.during for failure in stage.failures] == ["post_stop"]


@pytest.mark.parametrize("what", RAISED)
def test_subscriber_that_raises_anything_does_not_wedge_an_actor(what: str) -> None:
    def raises(event: object) -> None:
        raise RAISED[what]()

    stage = Stage()
    stage.runtime.events.subscribe(object, raises)
    ref = stage.runtime.spawn(Hostile, [], "", what, False)
    ref.tell("nobody handles this")
    assert stage.run(ref.ask(Add(2))) == 2


class Interrupted(Actor):
    """Ctrl-C arrives while it works."""

    def __init__(self, where: str) -> None:
        self.where = where

    @on(Add)
    def add(self, msg: Add) -> int:
        if msg.amount < 0 and self.where == "plain":
            raise KeyboardInterrupt
        return msg.amount

    @on(Hang)
    async def hang(self, msg: Hang) -> int:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    def post_stop(self, reason: StopReason, /) -> None:
        if self.where == "post_stop":
            raise KeyboardInterrupt


@pytest.mark.parametrize("policy", [Restart(backoff_s=0.0), Resume()])
@pytest.mark.parametrize("where", ["plain", "async", "post_stop"])
def test_keyboard_interrupt_ends_the_run_of_the_loop_and_the_actors_live_on(
    where: str, policy: Any
) -> None:
    loop = asyncio.new_event_loop()
    runtime = Runtime(loop=loop, clock=loop.time, rng=random.Random(1))
    try:
        ref = runtime.spawn(Interrupted, where, supervision=policy)
        loop.run_until_complete(ref.ask(Add(1)))
        if where == "post_stop":
            runtime.stop(ref)
        else:
            ref.tell(Add(-1) if where == "plain" else Hang(""))
        never = loop.create_future()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(never)
        if where != "post_stop":
            assert loop.run_until_complete(ref.ask(Add(5))) == 5
        assert loop.run_until_complete(runtime.shutdown())
        assert runtime.not_ended() == ()
    finally:
        loop.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_keyboard_interrupt_out_of_a_subscriber_wedges_no_actor(is_async: bool) -> None:
    """Ctrl-C may come anywhere, also while a failure is being told."""

    def interrupted(event: ActorFailed) -> None:
        raise KeyboardInterrupt

    class Fails(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            return msg.amount

        @on(Greet)
        def greet(self, msg: Greet) -> Any:
            if is_async:
                return self.later()
            raise ValueError

        async def later(self) -> None:
            await asyncio.sleep(0)
            raise ValueError

    loop = asyncio.new_event_loop()
    runtime = Runtime(loop=loop, clock=loop.time, rng=random.Random(1))
    try:
        end = runtime.events.subscribe(ActorFailed, interrupted)
        ref = runtime.spawn(Fails, supervision=Resume())
        ref.tell(Greet("a"))
        ref.tell(Add(1))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(loop.create_future())
        end()
        assert loop.run_until_complete(ref.ask(Add(5), timeout_s=2.0)) == 5
        assert loop.run_until_complete(runtime.shutdown())
    finally:
        loop.close()


class Stubborn(Actor):
    """Takes no notice of being cancelled; `acts` grows as long as it acts."""

    release = False  # ends the worst of them, once a test is over

    def __init__(self, acts: list[float], ended: list[str], end: str = "") -> None:
        self.acts, self.ended, self.end = acts, ended, end

    async def swallow(self) -> int:
        while True:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                self.ended.append("cancelled")
            self.acts.append(self.context.now())

    async def swallow_all(self) -> int:
        while not Stubborn.release:
            try:
                await asyncio.sleep(0.1)
            except BaseException:  # noqa: BLE001 - that is the test
                self.ended.append("swallowed")
            self.acts.append(self.context.now())
        return 1

    async def wait_for_one_that_swallows(self) -> int:
        await asyncio.get_running_loop().create_task(self.swallow_until_released())
        return 1

    async def swallow_until_released(self) -> None:
        while not Stubborn.release:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    @on(Hang)
    async def hang(self, msg: Hang) -> int:
        result: int = await getattr(self, msg.how)()
        self.acts.append(self.context.now())
        return result

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.ended.append(f"drained {msg.name}")

    def post_stop(self, reason: StopReason, /) -> Any:
        self.ended.append("post_stop")
        return getattr(self, self.end)() if self.end else None


@pytest.fixture
def stage() -> Any:
    Stubborn.release = False
    stage = Stage(stop_timeout_s=2.0)
    yield stage
    Stubborn.release = True
    for left in stage.runtime._abandoned:
        if hasattr(left, "close"):
            left.close()
    stage.run_for(1.0)


WAYS = ("swallow", "swallow_all", "wait_for_one_that_swallows")


@pytest.mark.parametrize("how", WAYS)
def test_handler_that_swallows_cancellation_is_abandoned_and_never_acts_again(
    stage: Stage, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped means that it does not act any more: it is cancelled 3 times, then left."""
    acts: list[float] = []
    ended: list[str] = []
    ref = stage.runtime.spawn(Stubborn, acts, ended, name="s")
    asking = stage.loop.create_task(ref.ask(Hang(how), timeout_s=100.0))
    stage.run_for(1.0)
    ref.tell(Greet("late"))
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == 1.0 + 2.0 + 3 * 0.5
    assert ended[-1] == "post_stop"
    assert "drained late" not in ended
    assert isinstance(asking.exception(), DeadActorError)
    assert stage.whys() == ["STOPPED_EARLY", "STOPPED"]
    seen = len(acts), len(ended)
    stage.run_for(30.0)
    assert (len(acts), len(ended)) == seen
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["path"] for record in errors] == ["/user/s"]
    assert "took no notice of being cancelled" in errors[0].message


@pytest.mark.parametrize("how", WAYS)
def test_post_stop_that_swallows_cancellation_is_abandoned_and_just_ends(
    stage: Stage, how: str
) -> None:
    acts: list[float] = []
    ref = stage.runtime.spawn(Stubborn, acts, [], how)
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == 3.5
    assert [(f.during, f.outcome) for f in stage.failures] == [("post_stop", "resume")]
    seen = len(acts)
    stage.run_for(30.0)
    assert len(acts) == seen


@pytest.mark.parametrize("end", ["", *WAYS])
@pytest.mark.parametrize("how", WAYS)
def test_nothing_acts_once_shutdown_has_returned(stage: Stage, how: str, end: str) -> None:
    acts: list[float] = []
    runtime = stage.runtime

    class Parent(Actor):
        def pre_start(self) -> None:
            child = self.context.spawn(Stubborn, acts, [], end)
            child.tell(Hang(how))

        async def post_stop(self, reason: StopReason, /) -> None:
            while True:
                acts.append(self.context.now())
                await asyncio.sleep(0.05)

    for _ in range(2):
        runtime.spawn(Parent)
    runtime.spawn(Stubborn, acts, [], end, name="s").tell(Hang(how))
    stage.run_for(1.0)
    assert runtime.not_ended() == ("/user/$1", "/user/$1/$3", "/user/$2", "/user/$2/$4", "/user/s")
    assert stage.run(runtime.shutdown(1.0)) is False
    assert stage.loop.time() <= 1.0 + 1.0 + 1.0 + 1.0
    assert runtime.not_ended() == ()
    seen = len(acts)
    stage.run_for(30.0)
    assert len(acts) == seen


def test_abandon_all_ends_every_actor_at_once_whatever_it_does(stage: Stage) -> None:
    class Waiting(Actor):
        def pre_start(self) -> Any:
            return asyncio.sleep(100.0)

    class Broken(Actor):
        def pre_start(self) -> None:
            raise ValueError

    ended: list[str] = []
    runtime = stage.runtime
    runtime.spawn(Stubborn, [], ended, "swallow", name="busy").tell(Hang("swallow"))
    runtime.spawn(Stubborn, [], ended, name="idle")
    runtime.spawn(Waiting, name="starting")
    runtime.spawn(Broken, name="backoff")
    stage.run_for(0.05)
    runtime.spawn(Stubborn, [], ended, name="new")
    assert runtime.abandon_all() == tuple(
        f"/user/{name}" for name in ("backoff", "busy", "idle", "new", "starting")
    )
    assert runtime.not_ended() == ()
    assert ended == ["post_stop", "post_stop"]
    with pytest.raises(RuntimeError, match="the system is ending"):
        runtime.spawn(Waiting)
    stage.run_for(200.0)
    assert len(ended) == 2


def test_actor_may_end_everything_from_its_own_handler(stage: Stage) -> None:
    class Ender(Actor):
        @on(Greet)
        def greet(self, msg: Greet) -> None:
            seen.append(msg.name)
            stage.runtime.abandon_all()

        @on(Hang)
        async def hang(self, msg: Hang) -> int:
            stage.runtime.abandon_all()
            await asyncio.sleep(1.0)
            seen.append("acts after its end")
            return 1

    for first in (Greet("a"), Hang("")):
        seen: list[str] = []
        stage.runtime._is_closing = False
        ref = stage.runtime.spawn(Ender)
        ref.tell(first)
        ref.tell(Greet("b"))
        stage.run_for(5.0)
        assert seen in (["a"], [])
        assert stage.runtime.not_ended() == ()


def test_timeout_in_a_handler_works_after_another_one_was_cancelled() -> None:
    """asyncio counts cancellations per task, and the handlers of a drain share one."""

    class Slow(Actor):
        @on(Hang)
        async def hang(self, msg: Hang) -> int:
            await asyncio.sleep(100.0)
            return 1

        @on(Greet)
        async def greet(self, msg: Greet) -> None:
            try:
                async with asyncio.timeout(0.1):
                    await asyncio.sleep(100.0)
            except TimeoutError:
                seen.append("timeout")

    seen: list[str] = []
    stage = Stage(stop_timeout_s=1.0)
    ref = stage.runtime.spawn(Slow)
    ref.tell(Hang(""))
    ref.tell(Greet("a"))
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert seen == ["timeout"]


def test_handler_that_cleans_up_when_cancelled_may_still_await(stage: Stage) -> None:
    class Tidy(Actor):
        @on(Hang)
        async def hang(self, msg: Hang) -> int:
            try:
                await asyncio.sleep(100.0)
            finally:
                await asyncio.sleep(0.4)
                seen.append("tidy")
            return 1

    seen: list[str] = []
    ref = stage.runtime.spawn(Tidy)
    ref.tell(Hang(""))
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert seen == ["tidy"]
    assert "abandoned coroutines" not in stage.runtime.counters


class Ticking(Actor):
    """Starts timers wherever it can."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.mine = self.context.timers

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.log.append(msg.name)
        if msg.name == "break":
            raise ValueError

    def start(self, where: str) -> None:
        for timers in (self.mine, self.context.timers):
            try:
                timers.every(where, 0.01, Greet(f"tick of {where}"))
            except RuntimeError:
                self.log.append(f"refused in {where}")

    def pre_restart(self, error: Exception, message: object, /) -> None:
        self.start("pre_restart")

    def post_stop(self, reason: StopReason, /) -> None:
        self.start("post_stop")


@pytest.mark.parametrize("end", ["stop", "restart"])
def test_timers_cannot_be_started_in_post_stop_and_none_outlives_its_instance(end: str) -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Ticking, log)
    stage.settle()
    if end == "stop":
        stage.runtime.stop(ref)
    else:
        ref.tell(Greet("break"))
    stage.run_for(5.0)
    assert log == [*(["break"] if end == "restart" else []), *["refused in post_stop"] * 2]
    before = stage.timeline.now
    stage.timeline.run(before + 1_000.0)
    assert log.count("tick of post_stop") == 0


def test_dead_letters_tell_the_message_of_a_timer_not_the_tick(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Timed(Actor):
        def pre_start(self) -> None:
            self.context.timers.once("x", 0.0, Hang(""))

        @on(Hang)
        async def hang(self, msg: Hang) -> int:
            await asyncio.sleep(100.0)
            return 1

    stage = Stage(stop_timeout_s=1.0)
    ref = stage.runtime.spawn(Timed)
    stage.run_for(0.1)
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert [letter.message for letter in stage.letters] == [Hang("")]
    assert [record.__dict__["type"] for record in caplog.records] == ["Hang"]
