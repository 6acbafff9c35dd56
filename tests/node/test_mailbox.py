"""Bounded mailboxes: what is dropped, what fails, who waits, and that nothing is lost unseen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.actor import Actor, on
from node.ask import RemoteAsk
from node.errors import (
    ActorFailedError,
    DeadActorError,
    MailboxFullError,
    MessageError,
    SendTimeoutError,
)
from node.mailbox import Delivery, WhenFull
from node.messages import Ask, message
from node.ref import ActorRef
from node.supervision import Stop
from tests.node.stage import A, Add, B, Collector, Greet, Pair, Stage


@message("test.mailbox.item")
class Item(Ask[str]):
    """The `number`-th message of a sender."""

    sender: str
    number: int


class Slow(Actor):
    """Takes 10 ms for each, and notes how many wait at most."""

    def __init__(self, seen: list[Any], pause_s: float = 0.01) -> None:
        self.seen = seen
        self.pause_s = pause_s
        self.waiting_max = 0

    @on(Item)
    async def item(self, msg: Item) -> str:
        mailbox = self.context._cell.mailbox
        assert mailbox is not None
        self.waiting_max = max(self.waiting_max, len(mailbox))
        await asyncio.sleep(self.pause_s)
        self.seen.append(msg)
        return f"{msg.sender}{msg.number}"


def slow(stage: Stage, when_full: WhenFull | None, seen: list[Any], bound: int = 2) -> Any:
    ref = stage.runtime.spawn(Slow, seen, mailbox_max=bound, when_full=when_full, name="slow")
    stage.settle()
    ref.tell(Item("first", 0))  # under way, so that the mailbox is empty again
    stage.settle()
    return ref


def items(count: int, sender: str = "a") -> list[Item]:
    return [Item(sender, number) for number in range(count)]


def test_drop_makes_the_newest_a_dead_letter_and_fails_its_ask_at_once() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "drop", seen)
    for item in items(4):
        ref.tell(item)
    assert [letter.message for letter in stage.letters] == items(4)[2:]
    assert stage.whys() == ["MAILBOX_FULL"] * 2
    with pytest.raises(MailboxFullError, match="/user/slow: the mailbox is full"):
        stage.run(ref.ask(Item("b", 0)))
    assert stage.loop.time() == 0.0
    stage.run(ref.send(Item("c", 0)))
    assert stage.whys() == ["MAILBOX_FULL"] * 4
    stage.run_for(1.0)
    assert seen == [Item("first", 0), *items(2)]


def test_fail_raises_at_the_sender_in_this_process() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "fail", seen)
    for item in items(2):
        ref.tell(item)
    with pytest.raises(MailboxFullError, match=r"2 messages wait; send less, or spawn it with"):
        ref.tell(Item("b", 1))
    with pytest.raises(MailboxFullError):
        ref.tell(Item("b", 2), sender=ref)
    with pytest.raises(MailboxFullError):
        stage.run(ref.send(Item("b", 3)))
    with pytest.raises(MailboxFullError):
        stage.run(ref.ask(Item("b", 4)))
    assert [letter.message for letter in stage.letters] == items(5, "b")[1:]
    stage.run_for(1.0)
    assert seen == [Item("first", 0), *items(2)]
    ref.tell(Item("c", 0))
    stage.run_for(1.0)
    assert seen[-1] == Item("c", 0)


def test_fail_towards_another_node_fails_the_ask_and_drops_the_tell() -> None:
    pair = Pair()
    seen: list[Any] = []
    local = pair.far.spawn(Slow, seen, mailbox_max=1, when_full="fail", name="slow")
    pair.settle()
    far = pair.to_far(local.path)

    async def main() -> None:
        for item in items(3):
            far.tell(item)
        with pytest.raises(MailboxFullError, match="the mailbox is full"):
            await far.ask(Item("b", 0), timeout_s=1.0)

    pair.run(main())
    assert pair.loop.time() < 0.01
    assert [letter.why.name for letter in pair.far_letters] == ["MAILBOX_FULL"] * 3
    pair.run_for(1.0)
    assert seen == items(1)


def test_wait_lets_senders_wait_in_order_and_tells_only_what_fits() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "wait", seen)
    done: list[tuple[int, float]] = []

    async def send(item: Item) -> None:
        await ref.send(item)
        done.append((item.number, round(stage.loop.time(), 3)))

    for item in items(6):
        stage.loop.create_task(send(item))
    stage.settle()
    ref.tell(Item("told", 0))
    assert stage.whys() == ["MAILBOX_FULL"]
    stage.run_for(1.0)
    assert seen == [Item("first", 0), *items(6)]
    assert done == [(0, 0.0), (1, 0.0), (2, 0.01), (3, 0.02), (4, 0.03), (5, 0.04)]
    assert ref._cell.actor.waiting_max <= 2


def test_wait_lets_asks_wait_within_their_timeout() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "wait", seen, bound=1)

    async def main() -> list[Any]:
        asks = [ref.ask(item, timeout_s=0.035 if item.number < 9 else 1.0) for item in items(10)]
        return await asyncio.gather(*asks, return_exceptions=True)

    answers = stage.run(main())
    assert answers[:2] == ["a0", "a1"]
    assert [type(answer).__name__ for answer in answers[3:9]] == ["AskTimeoutError"] * 6
    assert answers[9] == "a9"
    stage.run_for(1.0)
    # Those whose asker had given up before there was room were not handled.
    assert len(seen) <= 6
    assert stage.letters == []


def test_send_that_finds_no_room_in_time_says_so_and_sends_nothing() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "wait", seen, bound=1)
    ref.tell(Item("a", 0))
    with pytest.raises(SendTimeoutError, match=r"no room for .*/user/slow within 0.005 s; it was"):
        stage.run(ref.send(Item("a", 1), timeout_s=0.005))
    stage.run_for(1.0)
    assert seen == [Item("first", 0), Item("a", 0)]
    assert stage.letters == []


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_timeouts_of_send_are_checked(timeout_s: float) -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Collector, [])
    with pytest.raises(ValueError, match="must be greater than 0"):
        stage.run(ref.send(Greet("a"), timeout_s=timeout_s))


def test_cancelled_sender_leaves_its_place_to_the_next() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = slow(stage, "wait", seen, bound=1)
    tasks = [stage.loop.create_task(ref.send(item)) for item in items(4)]
    stage.settle()
    tasks[1].cancel()
    tasks[2].cancel()
    stage.run_for(1.0)
    assert seen == [Item("first", 0), Item("a", 0), Item("a", 3)]
    assert tasks[3].done()


@pytest.mark.parametrize("end", ["stop", "fail", "now"])
def test_end_of_the_actor_ends_the_waiting_and_what_waited_is_dead(end: str) -> None:
    class Breaks(Slow):
        @on(Greet)
        def greet(self, msg: Greet) -> None:
            raise ValueError

    stage = Stage()
    seen: list[Any] = []
    ref: ActorRef[Any] = stage.runtime.spawn(
        Breaks, seen, mailbox_max=1, when_full="wait", supervision=Stop(), name="slow"
    )
    ref.tell(Item("first", 0) if end != "fail" else Greet("break"))
    if end != "fail":
        stage.settle()
        ref.tell(Item("second", 0))
    sends = [stage.loop.create_task(ref.send(item)) for item in items(2)]
    asks = [stage.loop.create_task(ref.ask(item)) for item in items(2, "ask")]
    if end == "stop":
        stage.settle()
        stage.runtime.stop(ref)
    elif end == "now":
        stage.settle()
        stage.runtime.abandon_all()
    stage.settle()
    assert all(task.done() and task.exception() is None for task in sends)
    assert all(isinstance(task.exception(), DeadActorError) for task in asks)
    stage.run_for(1.0)
    assert seen == ([Item("first", 0), Item("second", 0)] if end == "stop" else [])
    waited = [letter.message for letter in stage.letters]
    assert [item for item in waited if getattr(item, "sender", "") in ("a", "ask")] == [
        *items(2),
        *items(2, "ask"),
    ]


def test_restart_keeps_those_that_wait() -> None:
    class Breaks(Slow):
        @on(Greet)
        def greet(self, msg: Greet) -> None:
            raise ValueError

    stage = Stage()
    seen: list[Any] = []
    ref: ActorRef[Any] = stage.runtime.spawn(Breaks, seen, mailbox_max=1, when_full="wait")
    ref.tell(Greet("break"))
    sends = [stage.loop.create_task(ref.send(item)) for item in items(5)]
    stage.run_for(1.0)
    assert seen == items(5)
    assert all(task.done() for task in sends)


def test_actor_cannot_wait_for_room_in_its_own_mailbox() -> None:
    class Selfish(Actor):
        @on(Greet)
        async def greet(self, msg: Greet) -> None:
            me = self.context.self
            me.tell(Add(1))
            try:
                await me.send(Add(2))
            except MailboxFullError as error:
                seen.append(str(error))

        @on(Add)
        def add(self, msg: Add) -> int:
            return 1

    stage = Stage()
    seen: list[str] = []
    stage.runtime.spawn(Selfish, mailbox_max=1, when_full="wait", name="s").tell(Greet("a"))
    stage.settle()
    assert len(seen) == 1
    assert "only this handler's end makes room" in seen[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mailbox_max": 0}, "mailbox_max=0 leaves no room"),
        ({"mailbox_max": 1, "when_full": "explode"}, "none of drop, fail, wait"),
        ({"when_full": "wait"}, "without mailbox_max"),
        ({"stash_max": -1}, "stash_max=-1 is no count"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Stage().runtime.spawn(Collector, [], **options)


def test_sender_without_a_bound_still_leaves_the_actor_its_turns() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = stage.runtime.spawn(Collector, seen)
    most: list[int] = []

    async def flood() -> None:
        for number in range(10_000):
            await ref.send(number)
            most.append(number - len(seen))

    stage.run(flood())
    stage.settle()
    assert seen == list(range(10_000))
    assert max(most) < 200


def test_send_checks_its_message_as_tell_does() -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Collector, [])
    with pytest.raises(MessageError):
        stage.run(ref.send(Add("one")))  # type: ignore[arg-type]  # that is the test
    stage.run(stage.runtime.resolve("/user/nobody").send(Greet("x")))
    assert stage.whys() == ["NO_ACTOR"]


def test_send_to_another_node_arrives() -> None:
    pair = Pair()
    seen: list[Any] = []
    local = pair.far.spawn(Collector, seen)
    pair.run(pair.to_far(local.path).send(Greet("a"), timeout_s=1.0))
    pair.run_for(0.1)
    assert seen == [Greet("a")]


@given(
    bound=st.integers(1, 4),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    pauses=st.lists(st.sampled_from([0.0, 0.005, 0.03]), min_size=5, max_size=5),
    timeout_s=st.none() | st.sampled_from([0.02, 0.5]),
)
def test_every_message_is_handled_once_in_order_or_its_sender_is_told(
    bound: int, counts: list[int], pauses: list[float], timeout_s: float | None
) -> None:
    """What `send` returned from is handled; what raised is not; the bound always holds."""
    stage = Stage()
    seen: list[Any] = []
    ref: Any = stage.runtime.spawn(Slow, seen, mailbox_max=bound, when_full="wait")
    sent: list[Item] = []

    async def sender(name: str, count: int, pause_s: float) -> None:
        for number in range(count):
            item = Item(name, number)
            try:
                await ref.send(item, timeout_s=timeout_s)
            except SendTimeoutError:
                continue
            sent.append(item)
            await asyncio.sleep(pause_s)

    for index, count in enumerate(counts):
        stage.loop.create_task(sender(str(index), count, pauses[index]))
    stage.run_for(60.0)
    assert sorted(seen, key=repr) == sorted(sent, key=repr)
    for index in range(len(counts)):
        mine = [item.number for item in seen if item.sender == str(index)]
        assert mine == sorted(mine)
    assert ref._cell.actor.waiting_max <= bound
    assert stage.letters == []


def test_put_returns_errors_and_never_raises_them() -> None:
    """What came over the wire is put by a listener, which an exception would end."""
    stage = Stage(A)
    ref = slow(stage, "fail", [], bound=1)
    cell = ref._cell
    assert cell.put(Item("a", 0)) is None
    assert isinstance(cell.put(Item("a", 1)), MailboxFullError)
    asker = RemoteAsk(stage.runtime.remote, B, 7, Item)
    stage.runtime.deliver(Delivery(Item("a", 2), None, asker, ref.path, ref.uid), B)
    assert stage.whys() == ["MAILBOX_FULL", "NOT_SENT", "MAILBOX_FULL"]


def test_ask_to_an_actor_that_failed_says_why_it_is_gone() -> None:
    class Brittle(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            raise ValueError("the disk is full")

    stage = Stage()
    ref = stage.runtime.spawn(Brittle, supervision=Stop(), name="b")
    with pytest.raises(ActorFailedError):
        stage.run(ref.ask(Add(1)))
    with pytest.raises(DeadActorError, match=r"/user/b: .*\(failed: ValueError: the disk is full"):
        stage.run(ref.ask(Add(1)))
    assert stage.loop.time() == 0.0


@pytest.mark.parametrize("bound", [True, 1.5, "2"])
@pytest.mark.parametrize("key", ["mailbox_max", "stash_max"])
def test_bounds_are_whole_numbers(key: str, bound: Any) -> None:
    stage = Stage()
    with pytest.raises(TypeError, match=f"{key}={bound!r} is no whole number: give a count"):
        stage.runtime.spawn(Collector, [], **{key: bound})
    assert stage.runtime.actor_count == 0
