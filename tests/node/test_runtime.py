"""Names and paths, dead letters, path handlers, the event stream, the shutdown."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest
import uvloop

from gossip.membership import NodeId
from node.actor import Actor, on
from node.errors import ActorFailedError, DeadActorError, MailboxFullError, MessageError
from node.events import DeadLetter, EventStream
from node.mailbox import BATCH, Delivery
from node.ref import ActorRef
from node.runtime import Runtime
from node.supervision import StopCause, StopReason
from tests.node.stage import A, Add, B, Collector, Greet, Stage


class Worker(Actor):
    def __init__(self, log: list[str], pause_s: float = 0.0) -> None:
        self.log = log
        self.pause_s = pause_s

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount + 1

    @on(Greet)
    async def greet(self, msg: Greet) -> None:
        await asyncio.sleep(self.pause_s)
        self.log.append(msg.name)

    def post_stop(self, reason: StopReason, /) -> None:
        self.log.append(f"{self.context.path} {reason.cause.name}")


def test_names() -> None:
    stage = Stage()
    runtime = stage.runtime
    assert runtime.spawn(Worker, [], name="a").path == "/user/a"
    assert runtime.spawn(Worker, []).path == "/user/$1"
    with pytest.raises(ValueError, match=r"/user/a already; .* `await system.runtime.stopped"):
        runtime.spawn(Worker, [], name="a")
    for name in ("", "a/b", "$1", "a b", "ä", "x" * 257):
        with pytest.raises(ValueError, match="is no actor name"):
            runtime.spawn(Worker, [], name=name)
    with pytest.raises(ValueError, match="is no path"):
        runtime.spawn_at("singleton/a", Worker, ([],))


def test_arguments_are_checked_where_they_are_given() -> None:
    stage = Stage()
    with pytest.raises(TypeError, match=r"Worker\(\): missing a required argument: 'log'"):
        stage.runtime.spawn(Worker)
    with pytest.raises(TypeError, match="too many positional arguments"):
        stage.runtime.spawn(Worker, [], 1.0, 2)
    with pytest.raises(TypeError, match="is no Actor class"):
        stage.runtime.spawn(int)  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    ("parameters", "fitting"),
    [
        ("", {0}),
        ("a", {1}),
        ("a, b=1", {1, 2}),
        ("a, /, b", {2}),
        ("*rest", {0, 1, 2, 3}),
        ("a, *rest", {1, 2, 3}),
        ("a=0, *, key=1", {0, 1}),
        ("a, *, key", set()),
        ("a, **more", {1}),
    ],
)
def test_any_constructor_is_checked(parameters: str, fitting: set[int]) -> None:
    names: dict[str, Any] = {}
    exec(f"def init(self, {parameters}): pass", names)
    cls = type("Made", (Actor,), {"__init__": names["init"]})
    stage = Stage()
    for count in range(4):
        if count in fitting:
            stage.runtime.spawn(cls, *range(count))
        else:
            with pytest.raises(TypeError, match=r"^Made\("):
                stage.runtime.spawn(cls, *range(count))
    stage.settle()
    assert stage.failures == []


def test_generations_are_bounded() -> None:
    class Parent(Actor):
        def __init__(self, errors: list[str]) -> None:
            self.errors = errors

        def pre_start(self) -> None:
            try:
                self.context.spawn(Parent, self.errors, name="c")
            except ValueError as error:
                self.errors.append(str(error))

    stage = Stage()
    errors: list[str] = []
    stage.runtime.spawn(Parent, errors, name="c")
    stage.settle()
    assert len(errors) == 1
    assert "deeper than 32 levels" in errors[0]
    assert stage.run(stage.runtime.shutdown())
    assert stage.runtime.actor_count == 0


@pytest.mark.parametrize(
    ("address", "node", "path"),
    [
        ("/user/a", None, "/user/a"),
        ("10.0.0.9:25520/user/a", NodeId("10.0.0.9", 25520, 0), "/user/a"),
        ("[::1]:80/user/a", NodeId("::1", 80, 0), "/user/a"),
        ("10.0.0.1:25520/user/a", None, "/user/a"),
    ],
)
def test_addresses_resolve(address: str, node: NodeId | None, path: str) -> None:
    stage = Stage(A)
    ref = stage.runtime.resolve(address)
    assert (ref.node, ref.path, ref.uid) == (node or A, path, 0)
    assert ref.is_local == (node is None)


@pytest.mark.parametrize("address", ["", "user", "host/user", "host:0/user", "host:99999/user"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is no actor address"):
        Stage().runtime.resolve(address)


def test_message_to_nobody_is_a_dead_letter_and_an_ask_fails_at_once() -> None:
    stage = Stage()
    nobody = stage.runtime.resolve("/user/nobody")
    nobody.tell(Greet("x"), sender=stage.runtime.resolve("/user/me"))
    with pytest.raises(DeadActorError, match="/user/nobody: there is no actor at this path"):
        stage.run(nobody.ask(Add(1)))
    assert stage.loop.time() == 0.0
    assert stage.whys() == ["NO_ACTOR", "NO_ACTOR"]
    first = stage.letters[0]
    assert (first.message, first.recipient) == (Greet("x"), "local:0/user/nobody")
    assert first.sender is not None
    assert first.sender.path == "/user/me"
    assert stage.runtime.counters == {"dead letters: no_actor": 2}


def test_message_to_another_node_without_a_network_is_a_dead_letter() -> None:
    stage = Stage()
    far = stage.runtime.ref_at(B, "/user/a")
    far.tell(Greet("x"))
    with pytest.raises(DeadActorError, match="no member is known"):
        stage.run(far.ask(Add(1)))
    assert stage.whys() == ["NOT_SENT", "NOT_SENT"]
    assert stage.letters[0].message == Greet("x")
    assert stage.letters[0].recipient == "10.0.0.2:25520/user/a"


def test_full_mailbox_drops_the_newest() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = stage.runtime.spawn(Collector, seen, mailbox_max=2)

    async def main() -> None:
        for name in "abc":
            ref.tell(Greet(name))
        with pytest.raises(MailboxFullError, match="the mailbox is full"):
            await ref.ask(Add(1))

    stage.run(main())
    assert seen == [Greet("a"), Greet("b")]
    assert stage.whys() == ["MAILBOX_FULL", "MAILBOX_FULL"]


def test_turn_is_bounded_so_that_others_get_theirs() -> None:
    stage = Stage()
    order: list[Any] = []
    for _ in range(2):
        seen: list[Any] = order
        ref = stage.runtime.spawn(Collector, seen)
        for i in range(BATCH * 2):
            ref.tell(i)
    stage.settle()
    first, second = list(range(BATCH)), list(range(BATCH, 2 * BATCH))
    assert order == first + first + second + second


def test_async_handlers_that_never_wait_leave_room_for_others() -> None:
    class Busy(Actor):
        async def receive(self, msg: Any, /) -> None:
            if not others:
                self.context.self.tell(msg)

    stage = Stage()
    others: list[bool] = []
    stage.runtime.spawn(Busy).tell("x")
    stage.loop.call_later(0.0, others.append, True)
    stage.settle()
    assert others == [True]


def test_dead_letters_are_logged_once_per_period_and_counted_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I-79: one line, not one per message."""
    stage = Stage()
    nobody = stage.runtime.resolve("/user/nobody")
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            nobody.tell(Greet("x"))
        stage.run_for(11.0)
        nobody.tell(Greet("x"))
    assert len(stage.letters) == 1001
    assert [record.message for record in caplog.records] == [
        "dead letter: there is no actor at this path"
    ] * 2
    assert caplog.records[1].__dict__["left_out"] == 999
    assert caplog.records[0].__dict__["path"] == "/user/nobody"


def test_subscriber_of_dead_letters_whose_own_message_dies_is_not_called_for_ever() -> None:
    stage = Stage()
    nobody = stage.runtime.resolve("/user/nobody")
    calls: list[DeadLetter] = []

    def report(letter: DeadLetter) -> None:
        calls.append(letter)
        nobody.tell(letter)

    stage.runtime.events.subscribe(DeadLetter, report)
    nobody.tell(Greet("x"))
    assert len(calls) == 1
    assert stage.runtime.counters["dead letters: no_actor"] == 2


def test_event_stream_isolates_its_subscribers(caplog: pytest.LogCaptureFixture) -> None:
    stream = EventStream()
    heard: list[str] = []

    def broken(event: object) -> None:
        raise ValueError("broken")

    stream.publish("nobody listens")
    stream.subscribe(str, broken)
    end = stream.subscribe(str, lambda event: heard.append(f"str {event}"))
    stream.subscribe(object, lambda event: heard.append(f"object {event}"))
    stream.publish("a")
    stream.publish(1)
    end()
    end()
    stream.publish("b")
    assert heard == ["str a", "object a", "object 1", "object b"]
    assert stream.failures == 2
    assert caplog.text.count("event handler failed") == 1


def test_spawn_at_reports_start_and_end() -> None:
    stage = Stage()
    log: list[str] = []
    facts: list[Any] = []
    ref = stage.runtime.spawn_at(
        "/singleton/w",
        Worker,
        (log,),
        on_started=lambda: facts.append("started"),
        on_stopped=facts.append,
    )
    assert facts == []
    stage.settle()
    assert facts == ["started"]
    reason = StopReason(StopCause.HANDED_OVER, "to b")
    stage.runtime.stop(ref, reason)
    stage.settle()
    assert facts == ["started", reason]
    assert log == ["/singleton/w HANDED_OVER"]


def test_callback_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    stage = Stage()
    ref = stage.runtime.spawn_at("/system/w", Worker, ([],), on_started=broken, on_stopped=broken)
    assert stage.run(ref.ask(Add(1))) == 2
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.runtime.counters["failed callbacks"] == 2
    assert "callback failed" in caplog.text


def test_path_handler_takes_whoever_is_there_and_may_answer_hold_or_hand_on() -> None:
    stage = Stage()
    taken: list[tuple[NodeId | None, Delivery]] = []
    stage.runtime.path_handlers["/singleton/"] = lambda node, delivery: taken.append(
        (node, delivery)
    )
    whoever = stage.runtime.resolve("/singleton/w")
    asking = stage.loop.create_task(whoever.ask(Add(4)))
    told: ActorRef[Any] = whoever
    told.tell(Greet("x"), sender=whoever)
    stage.settle()
    (_, greet), (node, add) = taken
    assert node is None
    assert (greet.message, greet.sender, greet.asker) == (Greet("x"), whoever, None)
    assert not asking.done()

    instance = stage.runtime.spawn_at("/singleton/w", Worker, ([],))
    assert stage.run(instance.ask(Add(1))) == 2
    assert len(taken) == 2
    stage.runtime.deliver_here(add)
    stage.settle()
    assert asking.result() == 5

    held = stage.loop.create_task(whoever.ask(Add(4)))
    stage.settle()
    asker = taken[-1][1].asker
    assert asker is not None
    asker.fail(ActorFailedError("X", "y"))
    asker.answer(3)
    stage.settle()
    assert str(held.exception()) == "X: y"


def test_message_for_a_path_handler_must_be_able_to_travel() -> None:
    """The same message is refused on every node, wherever the host is."""
    stage = Stage()
    stage.runtime.path_handlers["/singleton/"] = lambda _node, _delivery: None
    with pytest.raises(MessageError, match=r'str is no registered message.*@message\("some.name"'):
        stage.runtime.resolve("/singleton/w").tell("text")


def test_path_handler_that_raises_makes_a_dead_letter() -> None:
    def broken(node: NodeId | None, delivery: Delivery) -> None:
        raise ValueError("broken")

    stage = Stage()
    stage.runtime.path_handlers["/singleton/"] = broken
    with pytest.raises(DeadActorError):
        stage.run(stage.runtime.resolve("/singleton/w").ask(Add(1)))
    assert stage.whys() == ["NOT_SENT"]


def test_stop_of_somebody_elses_actor_is_refused() -> None:
    stage = Stage(A)
    with pytest.raises(ValueError, match="is on another node"):
        stage.runtime.stop(stage.runtime.ref_at(B, "/user/a"))
    stage.runtime.stop(stage.runtime.ref_at(None, "/user/nobody"))
    stage.run(stage.runtime.stopped(stage.runtime.ref_at(None, "/user/nobody")))


def test_shutdown_drains_what_reached_a_mailbox_and_ends_users_before_the_system() -> None:
    """I-150, and: SIGTERM loses no message that reached a mailbox."""
    stage = Stage()
    log: list[str] = []
    system = stage.runtime.spawn_at("/system/s", Worker, (log,))
    slow = stage.runtime.spawn(Worker, log, 0.5, name="slow")
    quick = stage.runtime.spawn(Worker, log, name="quick")
    for name in "abc":
        slow.tell(Greet(name))
    quick.tell(Greet("q"))
    ending = stage.loop.create_task(stage.runtime.shutdown())
    stage.settle()
    system.tell(Greet("s"))
    quick.tell(Greet("late"))
    with pytest.raises(RuntimeError, match="the system is ending"):
        stage.runtime.spawn(Worker, log)
    stage.run_for(3.0)
    assert ending.result()
    assert log[:4] == ["q", "/user/quick SHUTDOWN", "s", "a"]
    assert log[4:] == ["b", "c", "/user/slow SHUTDOWN", "/system/s SHUTDOWN"]
    assert [letter.message for letter in stage.letters] == [Greet("late")]
    assert stage.run(stage.runtime.shutdown())


def test_shutdown_ends_in_time_whatever_hangs() -> None:
    stage = Stage(stop_timeout_s=60.0)
    log: list[str] = []
    stuck = stage.runtime.spawn(Worker, log, 3600.0, name="stuck")
    asking = stage.loop.create_task(stuck.ask(Add(1), timeout_s=100.0))
    stuck.tell(Greet("a"))
    stuck.tell(Greet("b"))
    stage.settle()
    assert not stage.run(stage.runtime.shutdown(timeout_s=2.0))
    assert stage.loop.time() == 2.0
    assert log == ["/user/stuck SHUTDOWN"]
    assert [(letter.why.name, letter.message) for letter in stage.letters] == [
        ("STOPPED_EARLY", Greet("a")),
        ("STOPPED", Greet("b")),
        ("STOPPED", Add(1)),
    ]
    assert isinstance(asking.exception(), DeadActorError)
    assert stage.runtime.actor_count == 0


def test_shutdown_cancels_a_task_that_has_not_begun() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Worker, log, 3600.0, name="w")
    stage.settle()
    ref.tell(Greet("a"))
    stage.run(stage.runtime.shutdown(timeout_s=0.0))
    stage.run_for(1.0)
    assert log == ["/user/w SHUTDOWN"]


def test_kill_between_two_messages_of_a_batch_ends_the_actor() -> None:
    class Busy(Actor):
        def __init__(self, seen: list[int]) -> None:
            self.seen = seen

        async def receive(self, msg: Any, /) -> None:
            self.seen.append(msg)

    stage = Stage()
    seen: list[int] = []
    ref = stage.runtime.spawn(Busy, seen)

    cell = stage.runtime.cell_at(ref.path, ref.uid)
    assert cell is not None
    for i in range(10 * BATCH):
        ref.tell(i)

    def kill_after_a_batch() -> None:
        if len(seen) < BATCH:
            stage.loop.call_soon(kill_after_a_batch)
        else:
            cell.kill(StopReason(StopCause.SHUTDOWN))

    kill_after_a_batch()
    stage.run(stage.runtime.stopped(ref))
    assert len(seen) + len(stage.letters) == 10 * BATCH
    assert len(stage.letters) >= 8 * BATCH


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_runs_on_real_loops(run: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop=loop, clock=loop.time, rng=random.Random(1))
        log: list[str] = []
        worker = runtime.spawn(Worker, log, 0.001)
        worker.tell(Greet("a"))
        answers = await asyncio.gather(*[worker.ask(Add(i)) for i in range(200)])
        assert answers == [i + 1 for i in range(200)]
        assert await runtime.shutdown()
        assert log == ["a", "/user/$1 SHUTDOWN"]

    run(main())
