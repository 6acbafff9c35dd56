"""Every directive at every place where user code fails; groups; the order in which things end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.actor import Actor, Terminated, on
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
    Supervision,
)
from tests.node.stage import Add, Greet, Stage

FAST = Restart(backoff_s=0.0)
POLICIES: dict[str, Supervision] = {
    "restart": FAST,
    "spent": Restart(retries=0),
    "stop": Stop(),
    "resume": Resume(),
    "escalate": Escalate(),
    "all restart": AllForOne(FAST),
    "all stop": AllForOne(Stop()),
}
PLACES = (
    "constructor",
    "pre_start",
    "pre_start later",
    "handler",
    "handler later",
    "timer",
    "pipe",
    "behaviour",
    "child",
    "pre_restart",
    "pre_restart later",
    "post_stop",
    "post_stop later",
)


@message("test.directives.fail")
class Fail(Ask[int]):
    """Fail there."""

    place: str


class Unlucky(Actor):
    """Fails once at its place; later instances do not."""

    def __init__(self, log: list[str], place: str) -> None:
        self.log, self.place = log, place
        log.append("built")
        self.at("constructor")

    def at(self, place: str) -> Any:
        if "failed" in self.log or not self.place.startswith(place):
            return None
        if self.place.endswith("later"):
            return self.later()
        self.log.append("failed")
        raise OSError(place)

    async def later(self) -> None:
        await asyncio.sleep(0.01)
        self.log.append("failed")
        raise OSError("later")

    def pre_start(self) -> Any:
        return self.at("pre_start")

    def pre_restart(self, error: Exception, message: object, /) -> Any:
        self.log.append(f"pre_restart {type(error).__name__}")
        return self.at("pre_restart")

    def post_stop(self, reason: StopReason, /) -> Any:
        self.log.append(reason.cause.name)
        return self.at("post_stop")

    @on(Fail)
    def fail(self, msg: Fail) -> Any:
        if self.place.startswith(("pre_restart", "post_stop")):
            raise ValueError
        if self.place == "timer":
            self.context.timers.once("t", 0.01, Greet("tick"))
        elif self.place == "pipe":
            self.context.pipe_to_self(self.later())
        elif self.place == "behaviour":
            self.context.become(
                lambda msg: msg.amount if isinstance(msg, Add) else self.at("behaviour")
            )
            self.context.self.tell("on")
        elif self.place == "child":
            child = self.context.spawn(Unlucky, self.log, "handler", supervision=Escalate())
            child.tell(Fail(""))
        else:
            failing = self.at("handler")
            return 1 if failing is None else failing
        return 1

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.at("timer")

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount


class Parent(Actor):
    """Has one such child, and another one in its group."""

    def __init__(self, log: list[str], place: str, policy: Supervision) -> None:
        self.log, self.place, self.policy = log, place, policy
        log.append("parent")

    def pre_start(self) -> None:
        self.context.spawn(Unlucky, self.log, self.place, supervision=self.policy, name="c")


def expected(policy: str, place: str) -> tuple[str, bool]:
    """What is reported of the first failure, and whether the actor is there afterwards."""
    is_start = place.startswith(("constructor", "pre_start"))
    if policy == "escalate":
        return "escalate", True  # the parent restarts, and builds it anew
    if policy == "resume":
        return ("stop", False) if is_start else ("resume", True)
    return ("restart", True) if policy in ("restart", "all restart") else ("stop", False)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("policy", POLICIES)
def test_directive_decides_wherever_user_code_fails(policy: str, place: str) -> None:
    stage = Stage()
    log: list[str] = []
    stage.runtime.spawn(Parent, log, place, POLICIES[policy], name="p", supervision=FAST)
    stage.settle()
    ref = stage.runtime.ref_at(None, "/user/p/c")
    if not place.startswith(("constructor", "pre_start")):
        ref.tell(Fail(place))
    stage.run_for(1.0)
    outcome, lives = expected(policy, place)
    own = [f for f in stage.failures if f.path == "/user/p/c"]
    assert own[0].outcome == outcome
    # What a hook raises besides is reported and changes nothing.
    assert {f.outcome for f in own[1:]} <= {"resume"}
    if lives:
        assert stage.run(ref.ask(Add(3))) == 3
    else:
        with pytest.raises(DeadActorError):
            stage.run(ref.ask(Add(3)))
    built, ended = log.count("built"), sum(log.count(c) for c in ("STOPPED", "FAILED", "RESTARTED"))
    running = int(lives) + (1 if place == "constructor" and policy != "resume" else 0)
    if place not in ("constructor", "child"):
        assert built - ended == running
    assert log.count("parent") == (2 if policy == "escalate" else 1)
    assert stage.run(stage.runtime.shutdown())
    assert stage.runtime.not_ended() == ()


class Sibling(Actor):
    """One of a group; notes what happens to it."""

    def __init__(self, log: list[str], label: str) -> None:
        self.log, self.label = log, label
        self.total = 0
        log.append(f"{label} built")

    def pre_restart(self, error: Exception, message: object, /) -> None:
        self.log.append(f"{self.label} {type(error).__name__} {message}")

    def post_stop(self, reason: StopReason, /) -> None:
        self.log.append(f"{self.label} {reason}")

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "break":
            raise ValueError("broken")
        self.log.append(f"{self.label} got {msg.name}")

    @on(Add)
    def add(self, msg: Add) -> int:
        self.total += msg.amount
        return self.total

    @on(Fail)
    async def hang(self, msg: Fail) -> int:
        while True:
            try:
                await asyncio.sleep(3.0 if msg.place == "slow" else 1e6)
            except asyncio.CancelledError:
                self.log.append(f"{self.label} cancelled")
                if msg.place == "stubborn":
                    continue
                raise
            return 7


class Family(Actor):
    """Two children that share their fate, and one that does not."""

    def __init__(self, log: list[str], policy: Supervision) -> None:
        self.log, self.policy = log, policy

    def pre_start(self) -> None:
        for label in "abx":
            policy = FAST if label == "x" else self.policy
            self.context.spawn(Sibling, self.log, label, name=label, supervision=policy)


def family(stage: Stage, policy: Supervision) -> tuple[list[str], dict[str, Any]]:
    log: list[str] = []
    stage.runtime.spawn(Family, log, policy, name="f")
    stage.settle()
    log.clear()
    return log, {label: stage.runtime.ref_at(None, f"/user/f/{label}") for label in "abx"}


def test_group_restarts_together_and_keeps_its_mailboxes() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(FAST))
    assert [stage.run(refs[label].ask(Add(5))) for label in "abx"] == [5, 5, 5]
    refs["b"].tell(Greet("before"))
    refs["a"].tell(Greet("break"))
    refs["b"].tell(Greet("after"))
    stage.run_for(1.0)
    assert [line for line in log if line.startswith("a")] == [
        "a ValueError Greet(name='break')",
        "a restarted: ValueError: broken",
        "a built",
    ]
    assert [line for line in log if line.startswith("b")] == [
        "b got before",
        "b got after",
        "b ValueError None",
        "b restarted: /user/f/a failed: ValueError: broken",
        "b built",
    ]
    assert [stage.run(refs[label].ask(Add(1))) for label in "abx"] == [1, 1, 6]
    assert [failure.path for failure in stage.failures] == ["/user/f/a"]


def test_group_restart_comes_before_what_waits() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(FAST))
    refs["a"].tell(Greet("break"))
    for number in range(200):
        refs["b"].tell(Greet(str(number)))
    stage.run_for(1.0)
    assert log.index("b built") < log.index("b got 100")
    assert [line for line in log if line.startswith("b got")] == [f"b got {n}" for n in range(200)]


def test_group_stops_together() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(Stop()))
    refs["a"].tell(Greet("break"))
    stage.run_for(1.0)
    assert log == [
        "a failed: ValueError: broken",
        "b failed: /user/f/a failed: ValueError: broken",
    ]
    assert stage.run(refs["x"].ask(Add(1))) == 1
    with pytest.raises(DeadActorError):
        stage.run(refs["b"].ask(Add(1)))


def test_budget_of_a_group_is_shared() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(Restart(retries=3, backoff_s=0.0)))
    for label in ("a", "b", "a", "b"):
        refs[label].tell(Greet("break"))
        stage.run_for(0.1)
    assert log.count("a built") == 3
    assert [line for line in log if "spent" in line] == [
        "b failed: 3 restarts in 60 s are spent; ValueError: broken"
    ]
    assert stage.runtime.not_ended() == ("/user/f", "/user/f/x")


def test_group_waits_for_the_backoff_together() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(Restart(backoff_s=2.0)))
    refs["a"].tell(Greet("break"))
    stage.run_for(1.9)
    assert "a built" not in log
    assert "b built" not in log
    stage.run_for(0.2)
    assert "a built" in log
    assert "b built" in log


@pytest.mark.parametrize("how", ["slow", "hangs", "stubborn"])
def test_sibling_in_a_handler_has_the_stop_timeout_for_it(how: str) -> None:
    stage = Stage(stop_timeout_s=5.0)
    log, refs = family(stage, AllForOne(FAST))
    asking = stage.loop.create_task(refs["b"].ask(Fail(how), timeout_s=100.0))
    stage.run_for(0.5)
    refs["a"].tell(Greet("break"))
    stage.run_for(20.0)
    if how == "slow":
        assert asking.result() == 7
        assert log.count("b built") == 1
    elif how == "hangs":
        assert isinstance(asking.exception(), DeadActorError)
        assert log.count("b cancelled") == 1
        assert log.count("b built") == 1
    else:
        assert log.count("b cancelled") >= 3
        assert "b failed: its handler took no notice of being cancelled" in log
        assert stage.runtime.not_ended() == ("/user/f", "/user/f/a", "/user/f/x")
    assert stage.run(refs["a"].ask(Add(1))) == 1


def test_sibling_that_is_to_stop_stops() -> None:
    stage = Stage()
    log, refs = family(stage, AllForOne(FAST))
    asking = stage.loop.create_task(refs["b"].ask(Fail("slow"), timeout_s=100.0))
    stage.settle()
    stage.runtime.stop(refs["b"])
    refs["a"].tell(Greet("break"))
    stage.run_for(20.0)
    assert asking.result() == 7
    assert "b stopped" in log
    assert "b built" not in log


def test_group_is_for_children() -> None:
    stage = Stage()
    with pytest.raises(ValueError, match=r"/user/s has no siblings"):
        stage.runtime.spawn(Sibling, [], "s", name="s", supervision=AllForOne())


class Tree(Actor):
    """Spawns as many children as its plan says, and notes its end."""

    def __init__(self, log: list[str], plan: list[Any], is_slow: bool) -> None:
        self.log, self.plan, self.is_slow = log, plan, is_slow

    def pre_start(self) -> None:
        for index, plan in enumerate(self.plan):
            self.context.spawn(Tree, self.log, plan, not self.is_slow, name=str(index))

    def post_stop(self, reason: StopReason, /) -> Any:
        return self.later() if self.is_slow else self.log.append(self.context.path)

    async def later(self) -> None:
        await asyncio.sleep(0.3)
        self.log.append(self.context.path)

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        raise ValueError


Plans: st.SearchStrategy[list[Any]] = st.recursive(
    st.just([]), lambda plans: st.lists(plans, max_size=3), max_leaves=12
)


@given(plan=Plans, end=st.sampled_from(["stop", "shutdown", "now", "restart", "kill"]))
def test_children_end_before_their_parents_however_they_end(plan: list[Any], end: str) -> None:
    """I-27: stopped means that `post_stop` is done, also those of all children before."""
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Tree, log, plan, end == "stop", name="t", supervision=FAST)
    stage.settle()
    paths = set(stage.runtime.not_ended())
    if end == "stop":
        stage.runtime.stop(ref)
        stage.run(stage.runtime.stopped(ref))
    elif end == "shutdown":
        assert stage.run(stage.runtime.shutdown())
    elif end == "restart":
        ref.tell(Greet("break"))
        stage.run_for(10.0)
    elif end == "kill":
        cell = stage.runtime.cell_at(ref.path, 0)
        assert cell is not None
        cell.kill(StopReason(StopCause.STOPPED))
        stage.run_for(10.0)
    else:
        stage.runtime.abandon_all()
    if end != "now":  # then no async hook is begun
        assert set(log) == paths
        assert len(log) == len(paths)
    for path in log:
        ended = log[: log.index(path)]
        below = {other for other in paths if other.startswith(f"{path}/")}
        if end != "now":
            assert below <= set(ended)
    if end == "restart":
        assert set(stage.runtime.not_ended()) == paths
    else:
        assert stage.runtime.not_ended() == ()


def test_watcher_sees_all_messages_of_the_dead_before_terminated() -> None:
    """So the news of an end does not overtake messages, as other news of the runtime do."""

    class Talker(Actor):
        def __init__(self, whom: Any) -> None:
            self.whom = whom

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            for number in range(500):
                self.whom.tell(number)
            raise ValueError

    class Listener(Actor):
        def receive(self, message: Any, /) -> None:
            seen.append("end" if isinstance(message, Terminated) else message)

    stage = Stage()
    seen: list[Any] = []
    listener = stage.runtime.spawn(Listener)
    talker = stage.runtime.spawn(Talker, listener, supervision=Stop())
    stage.settle()
    cell = stage.runtime.cell_at(listener.path, 0)
    assert cell is not None
    cell.watch(talker)
    talker.tell(Greet("go"))
    stage.settle()
    assert seen == [*range(500), "end"]


def test_kill_and_failures_of_children_come_before_what_waits() -> None:
    class Escalating(Actor):
        def __init__(self) -> None:
            self.child = self.context.spawn(Unlucky, [], "handler", supervision=Escalate())

        @on(Greet)
        async def greet(self, msg: Greet) -> None:
            self.child.tell(Fail(""))
            await asyncio.sleep(1.0)

        @on(Add)
        def add(self, msg: Add) -> int:
            seen.append(msg.amount)
            return 1

    stage = Stage()
    seen: list[int] = []
    ref = stage.runtime.spawn(Escalating, supervision=Stop())
    ref.tell(Greet("go"))
    for number in range(1_000):
        ref.tell(Add(number))
    asking = stage.loop.create_task(ref.ask(Add(-1)))
    stage.run_for(5.0)
    assert seen == []
    assert isinstance(asking.exception(), DeadActorError | ActorFailedError)
