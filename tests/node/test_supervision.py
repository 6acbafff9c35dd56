"""Failures, restarts and stops: who runs when, and what becomes of the messages."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

import pytest

from node.actor import Actor, on
from node.errors import ActorFailedError, DeadActorError
from node.messages import Ask, message
from node.supervision import (
    AllForOne,
    Escalate,
    Restart,
    Resume,
    Stop,
    StopCause,
    StopReason,
    restart_delay_s,
)
from tests.node.stage import Add, Greet, Stage


@message("test.supervision.hang")
class Hang(Ask[int]):
    seconds: float
    heeds_cancel: bool = True


class Noisy(Actor):
    """Writes down what happens to it; breaks on "break"."""

    def __init__(self, log: list[str], label: str = "it", children: int = 0) -> None:
        self.log = log
        self.label = label
        self.children = children
        self.total = 0
        log.append(f"{label} built")

    def pre_start(self) -> None:
        for i in range(self.children):
            self.context.spawn(Noisy, self.log, f"{self.label}.{i}", name=f"c{i}")

    def pre_restart(self, error: Exception, message: object, /) -> None:
        self.log.append(f"{self.label} broke on {message}")

    def post_stop(self, reason: StopReason, /) -> None:
        self.log.append(f"{self.label} {reason.cause.name.lower()}")

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "break":
            raise ValueError("broken")
        if msg.name == "break child":
            self.context.children[0].tell(Greet("break"))
        self.log.append(f"{self.label} got {msg.name}")

    @on(Add)
    def add(self, msg: Add) -> int:
        if msg.amount < 0:
            raise ValueError("below zero")
        self.total += msg.amount
        return self.total

    @on(Hang)
    async def hang(self, msg: Hang) -> int:
        until = self.context.now() + msg.seconds
        while (left := until - self.context.now()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if msg.heeds_cancel:
                    self.log.append("cancelled")
                    raise
        return 1


def test_restart_builds_a_new_instance_and_keeps_mailbox_and_ref() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log)

    async def main() -> tuple[Any, ...]:
        return await asyncio.gather(
            ref.ask(Add(5)), ref.ask(Add(-1)), ref.ask(Add(2)), return_exceptions=True
        )

    first, failed, after = stage.run(main())
    assert (first, after) == (5, 2)
    assert isinstance(failed, ActorFailedError)
    assert failed.type_name == "ValueError"
    assert log == ["it built", "it broke on Add(amount=-1)", "it restarted", "it built"]
    assert stage.loop.time() == 0.1
    assert [failure.outcome for failure in stage.failures] == ["restart"]


def test_children_of_a_restarted_actor_stop_before_it() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, "p", 2, name="p")
    stage.settle()
    log.clear()
    ref.tell(Greet("break"))
    stage.run_for(1.0)
    assert log == [
        "p broke on Greet(name='break')",
        "p.0 restarted",
        "p.1 restarted",
        "p restarted",
        "p built",
        "p.0 built",
        "p.1 built",
    ]


def test_children_of_a_stopped_actor_stop_before_it_and_their_mailboxes_are_drained() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, "p", 1, name="p")
    stage.settle()
    log.clear()
    stage.runtime.ref_at(None, "/user/p/c0").tell(Greet("a"))
    stage.runtime.stop(ref)
    stage.settle()
    assert log == ["p.0 got a", "p.0 stopped", "p stopped"]
    assert stage.runtime.actor_count == 0


def test_budget_of_restarts_and_backoff() -> None:
    """Each restart waits twice as long as the one before; then the actor stops (I-32)."""

    class Brittle(Actor):
        def __init__(self, built_at: list[float]) -> None:
            built_at.append(self.context.now())

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            raise ValueError(msg.name)

        def post_stop(self, reason: StopReason, /) -> None:
            reasons.append(reason)

    stage = Stage()
    built_at: list[float] = []
    reasons: list[StopReason] = []
    policy = Restart(retries=3, within_s=60.0, backoff_s=1.0, backoff_max_s=3.0)
    ref = stage.runtime.spawn(Brittle, built_at, supervision=policy)
    for _ in range(4):
        ref.tell(Greet("x"))
    stage.run_for(30.0)
    assert built_at == [0.0, 1.0, 3.0, 6.0]
    assert [reason.cause.name for reason in reasons] == ["RESTARTED"] * 3 + ["FAILED"]
    assert reasons[-1].detail == "3 restarts in 60 s are spent; ValueError: x"
    assert [failure.outcome for failure in stage.failures] == ["restart"] * 3 + ["stop"]
    with pytest.raises(DeadActorError):
        stage.run(ref.ask(Add(1)))


@pytest.mark.parametrize(
    ("policy", "failed_at", "now", "delay_s"),
    [
        (Restart(), [], 0.0, 0.1),
        (Restart(), [0.0], 1.0, 0.2),
        (Restart(), [0.0] * 9, 1.0, 10.0),
        (Restart(), [0.0] * 10, 1.0, None),
        (Restart(), [0.0] * 10, 60.0, 0.1),
        (Restart(retries=0), [], 0.0, None),
        (Restart(backoff_s=0.0), [0.0, 0.0], 0.0, 0.0),
        (Restart(retries=10**6, within_s=1e9, backoff_max_s=7.0), [0.0] * 5000, 1.0, 7.0),
    ],
)
def test_restart_delay(
    policy: Restart, failed_at: list[float], now: float, delay_s: float | None
) -> None:
    known = deque(failed_at)
    assert restart_delay_s(policy, known, now) == delay_s
    if delay_s is not None:
        assert known[-1] == now


def test_messages_wait_during_backoff_and_a_stop_order_drains_them() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, supervision=Restart(backoff_s=5.0))
    ref.tell(Greet("break"))
    ref.tell(Greet("a"))
    stage.run_for(1.0)
    assert log[-1] == "it restarted"
    stage.runtime.stop(ref)
    stage.settle()
    assert log[-3:] == ["it built", "it got a", "it stopped"]
    assert stage.letters == []


def test_stop_order_during_backoff_with_nothing_waiting_builds_nothing() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, supervision=Restart(backoff_s=5.0))
    ref.tell(Greet("break"))
    stage.run_for(1.0)
    stage.runtime.stop(ref)
    stage.settle()
    assert log.count("it built") == 1
    assert stage.runtime.actor_count == 0


def test_resume_keeps_the_instance() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, supervision=Resume())

    async def main() -> tuple[Any, ...]:
        return await asyncio.gather(
            ref.ask(Add(5)), ref.ask(Add(-1)), ref.ask(Add(2)), return_exceptions=True
        )

    assert stage.run(main())[2] == 7
    assert log == ["it built"]


def test_stop_policy_stops_and_what_waits_is_dead() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log, supervision=Stop())
    ref.tell(Greet("break"))
    ref.tell(Greet("a"))
    asking = stage.loop.create_task(ref.ask(Add(1)))
    stage.settle()
    assert log == ["it built", "it failed"]
    assert stage.whys() == ["STOPPED", "STOPPED"]
    assert isinstance(asking.exception(), DeadActorError)


def test_escalated_failure_is_one_of_the_parent() -> None:
    class Parent(Actor):
        def __init__(self, log: list[str]) -> None:
            self.log = log
            self.log.append("parent built")

        def pre_start(self) -> None:
            self.context.spawn(Noisy, self.log, "child", supervision=Escalate(), name="c")

        def post_stop(self, reason: StopReason, /) -> None:
            self.log.append(f"parent {reason.cause.name.lower()}")

    stage = Stage()
    log: list[str] = []
    stage.runtime.spawn(Parent, log, name="p")
    stage.settle()
    child = stage.runtime.ref_at(None, "/user/p/c")
    child.tell(Greet("break"))
    stage.run_for(1.0)
    assert log == [
        "parent built",
        "child built",
        "child failed",
        "parent restarted",
        "parent built",
        "child built",
    ]
    assert [(failure.during, failure.outcome) for failure in stage.failures] == [
        ("Greet", "escalate"),
        ("child", "restart"),
    ]


def test_escalate_without_a_parent_stops() -> None:
    stage = Stage()
    log: list[str] = []
    stage.runtime.spawn(Noisy, log, supervision=Escalate()).tell(Greet("break"))
    stage.settle()
    assert log == ["it built", "it failed"]


class BadStart(Actor):
    def __init__(self, log: list[str], fails: int, where: str) -> None:
        self.log = log
        self.where = where
        log.append("built")
        self.bad = log.count("built") <= fails
        if self.bad and where == "constructor":
            raise OSError("no")

    def pre_start(self) -> Any:
        if self.bad and self.where == "plain":
            raise OSError("no")
        return self._later() if self.where == "async" else None

    async def _later(self) -> None:
        await asyncio.sleep(0.01)
        if self.bad:
            raise OSError("no")

    def post_stop(self, reason: StopReason, /) -> None:
        self.log.append(reason.cause.name)

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount


@pytest.mark.parametrize("where", ["constructor", "plain", "async"])
def test_failed_start_is_a_failure_and_messages_wait(where: str) -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(BadStart, log, 2, where)
    assert stage.run(ref.ask(Add(3))) == 3
    ended = [] if where == "constructor" else ["RESTARTED"]
    assert log == ["built", *ended, "built", *ended, "built"]
    assert [failure.during for failure in stage.failures] == ["start", "start"]


@pytest.mark.parametrize("policy", [Stop(), Resume(), Restart(retries=0)])
def test_actor_that_cannot_start_stops(policy: Any) -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(BadStart, log, 9, "plain", supervision=policy)
    with pytest.raises(DeadActorError):
        stage.run(ref.ask(Add(3)))
    assert log == ["built", "FAILED"]


class BadEnd(Actor):
    def __init__(self, how: str) -> None:
        self.how = how

    def post_stop(self, reason: StopReason, /) -> Any:
        if self.how == "raises":
            raise OSError("no")
        return asyncio.sleep(3600.0) if self.how == "sleeps" else self._late()

    async def _late(self) -> None:
        await asyncio.sleep(0.5)
        raise OSError("no")


@pytest.mark.parametrize(("how", "at_s"), [("raises", 0.0), ("raises late", 0.5), ("sleeps", 5.0)])
def test_post_stop_that_fails_or_hangs_is_reported_and_ends(how: str, at_s: float) -> None:
    """I-27: `stopped` is terminated, and comes within the stop timeout."""
    stage = Stage()
    ref = stage.runtime.spawn(BadEnd, how)
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == at_s
    assert [(f.during, f.outcome) for f in stage.failures] == [("post_stop", "resume")]
    assert stage.runtime.actor_count == 0


def test_handler_that_hangs_is_cancelled_after_the_stop_timeout_and_the_drain_goes_on() -> None:
    stage = Stage(stop_timeout_s=2.0)
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log)
    hanging = stage.loop.create_task(ref.ask(Hang(3600.0), timeout_s=100.0))
    stage.run_for(50.0)
    ref.tell(Greet("a"))
    stage.runtime.stop(ref)
    ref.tell(Greet("late"))
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == 52.0
    assert log == ["it built", "cancelled", "it got a", "it stopped"]
    assert isinstance(hanging.exception(), DeadActorError)
    assert stage.whys() == ["STOPPED", "STOPPED_EARLY"]


def test_each_handler_of_a_drain_has_its_own_stop_timeout() -> None:
    stage = Stage(stop_timeout_s=2.0)
    ref = stage.runtime.spawn(Noisy, [])
    asking = [stage.loop.create_task(ref.ask(Hang(1.5), timeout_s=60.0)) for _ in range(4)]
    stage.run_for(0.1)
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert [ask.result() for ask in asking] == [1, 1, 1, 1]
    assert stage.loop.time() == 6.0


def test_handler_that_ignores_a_cancel_but_ends_is_not_called_stopped_before() -> None:
    """I-27: the end of the code counts, not our wish."""
    stage = Stage(stop_timeout_s=1.0)
    ref = stage.runtime.spawn(Noisy, [])
    ref.tell(Hang(1.6, heeds_cancel=False))
    stage.settle()
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.loop.time() == 1.6


def test_stop_without_drain_leaves_the_mailbox_to_the_dead_letters() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Noisy, log)
    ref.tell(Hang(1.0))
    ref.tell(Greet("a"))
    stage.settle()
    stage.runtime.stop(ref)
    stage.runtime.stop(ref, StopReason(StopCause.DOWNED), drain=False)
    stage.run_for(2.0)
    assert log == ["it built", "it stopped"]
    assert stage.whys() == ["STOPPED"]


def test_actor_may_stop_itself_and_spawns_nothing_afterwards() -> None:
    class Selfish(Actor):
        def __init__(self, log: list[str]) -> None:
            self.log = log

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            self.log.append(msg.name)
            self.context.stop(self.context.self)

        def post_stop(self, reason: StopReason, /) -> None:
            with pytest.raises(RuntimeError, match="is stopping and cannot spawn"):
                self.context.spawn(Selfish, self.log)
            self.log.append(str(reason))

    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Selfish, log)
    ref.tell(Greet("a"))
    ref.tell(Greet("b"))
    stage.settle()
    assert log == ["a", "b", "stopped"]
    assert stage.failures == []


def test_stash_goes_back_into_the_mailbox_at_a_restart() -> None:
    class Waiting(Actor):
        def __init__(self, log: list[str]) -> None:
            self.log = log
            self.is_second = bool(log)
            log.append("built")

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            if msg.name == "break":
                raise ValueError
            if self.is_second:
                self.log.append(msg.name)
            else:
                self.context.stash()

    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Waiting, log)
    for name in ("a", "b", "break", "c"):
        ref.tell(Greet(name))
    stage.run_for(1.0)
    assert log == ["built", "built", "a", "b", "c"]


def test_error_without_a_text_is_a_failure_like_any_other() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class Muted(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            raise MuteError

    stage = Stage()
    ref = stage.runtime.spawn(Muted, supervision=Stop())
    with pytest.raises(ActorFailedError, match=r"MuteError: \(its text cannot be built\)"):
        stage.run(ref.ask(Add(1)))
    assert stage.runtime.actor_count == 0


def test_reason_reads_as_words() -> None:
    assert str(StopReason(StopCause.HANDED_OVER)) == "handed over"
    assert str(StopReason(StopCause.FAILED, "x")) == "failed: x"


ANY_RESTART: Any = Restart
ANY_GROUP: Any = AllForOne


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Restart(retries=-1), "retries=-1 is no count: give 0 or more"),
        (lambda: Restart(retries=True), "retries=True is no whole number"),
        (lambda: ANY_RESTART(retries=1.5), "retries=1.5 is no whole number"),
        (lambda: Restart(within_s=0), "within_s=0 must be greater than 0 and at most 1e[+]09 sec"),
        (lambda: Restart(within_s=math.nan), "within_s=nan must be greater than 0"),
        (lambda: Restart(backoff_s=-1), "backoff_s=-1 must be 0 or more"),
        (lambda: Restart(backoff_s=math.nan), "backoff_s=nan must be 0 or more"),
        (lambda: ANY_RESTART(backoff_s="1"), "backoff_s='1' is no number: give seconds"),
        (lambda: Restart(backoff_max_s=math.inf), "backoff_max_s=inf must be 0 or more"),
        (lambda: ANY_GROUP(Resume()), r"directive=Resume\(\) is none for a group: give Restart"),
        (lambda: ANY_GROUP(AllForOne(Stop())), r"directive=AllForOne\(.* is none for a group"),
        (lambda: ANY_GROUP(Escalate()), r"directive=Escalate\(\) is none for a group"),
        (lambda: ANY_GROUP(Stop), "is none for a group"),
    ],
)
def test_supervision_that_makes_no_sense_is_refused_where_it_is_made(make: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


@pytest.mark.parametrize("supervision", [Restart, "x", AllForOne, 0, False])
def test_what_is_no_supervision_is_refused_at_spawn(supervision: Any) -> None:
    stage = Stage()
    with pytest.raises(TypeError, match=r"/user/a: supervision=.* is none: give Restart\(\)"):
        stage.runtime.spawn(Noisy, [], name="a", supervision=supervision)
    assert stage.runtime.actor_count == 0
