"""What an actor may do: handlers, asks, context, timers, stash."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import pytest

from node.actor import Actor, on
from node.errors import (
    ActorFailedError,
    AskTimeoutError,
    DeadActorError,
    MessageError,
    UnhandledMessageError,
)
from node.messages import Ask, message
from node.ref import ActorRef
from tests.node.stage import Add, Collector, Greet, Stage, Unheard


@message("test.actor.base")
class Base:
    text: str


@message("test.actor.derived")
class Derived(Base):
    pass


@message("test.actor.wait")
class Wait(Ask[float]):
    seconds: float


@message("test.actor.break")
class Break(Ask[None]):
    text: str


@message("test.actor.who")
class WhoSent(Ask[bool]):
    pass


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.greeted: list[str] = []

    @on(Add)
    def add(self, msg: Add) -> int:
        self.total += msg.amount
        return self.total

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.greeted.append(msg.name)

    @on(Wait)
    async def wait(self, msg: Wait) -> float:
        await asyncio.sleep(msg.seconds)
        return self.context.now()

    @on(Break)
    async def fail(self, msg: Break) -> None:
        await asyncio.sleep(0)
        raise KeyError(msg.text)


def test_ask_is_answered_with_what_the_handler_returns() -> None:
    stage = Stage()
    counter = stage.runtime.spawn(Counter, 40)

    async def main() -> None:
        total = await counter.ask(Add(2))
        assert_type(total, int)
        assert total == 42

    stage.run(main())
    assert stage.letters == []


def test_async_handler_may_await_and_takes_one_message_at_a_time() -> None:
    stage = Stage()
    counter = stage.runtime.spawn(Counter)

    async def main() -> None:
        first, second, third = await asyncio.gather(
            counter.ask(Wait(1.0)), counter.ask(Wait(2.0)), counter.ask(Add(1))
        )
        assert (first, second, third) == (1.0, 3.0, 1)

    stage.run(main())


def test_messages_arrive_in_order_whatever_the_kind_of_handler() -> None:
    class Mixed(Actor):
        seen: list[str]

        def __init__(self, seen: list[str]) -> None:
            self.seen = seen

        @on(Greet)
        def plain(self, msg: Greet) -> None:
            self.seen.append(msg.name)

        @on(Base)
        async def slow(self, msg: Base) -> None:
            await asyncio.sleep(0.01)
            self.seen.append(msg.text)

    stage = Stage()
    seen: list[str] = []
    mixed = stage.runtime.spawn(Mixed, seen)
    for i in range(300):
        mixed.tell(Greet(f"{i}") if i % 3 else Base(f"{i}"))
    stage.run_for(2.0)
    assert seen == [f"{i}" for i in range(300)]


def test_handler_is_found_by_class_then_by_base_then_receive() -> None:
    seen: list[str] = []

    class Sorting(Actor):
        @on(Base)
        def base(self, msg: Base) -> None:
            seen.append(f"base {msg.text}")

        async def receive(self, msg: object, /) -> None:
            seen.append(f"receive {msg}")

    class Finer(Sorting):
        @on(Derived)
        def derived(self, msg: Derived) -> None:
            seen.append(f"derived {msg.text}")

        def base(self, msg: Base) -> None:
            seen.append(f"overridden {msg.text}")

    stage = Stage()
    for cls in (Sorting, Finer):
        ref = stage.runtime.spawn(cls)
        ref.tell(Base("b"))
        ref.tell(Derived("d"))
        ref.tell("text")
    stage.settle()
    assert sorted(seen) == [
        "base b",
        "base d",
        "derived d",
        "overridden b",
        "receive text",
        "receive text",
    ]


def test_two_handlers_of_one_class_for_one_type_are_an_error_at_definition() -> None:
    with pytest.raises(TypeError, match="one and two both handle Greet"):

        class Torn(Actor):
            @on(Greet)
            def one(self, msg: Greet) -> None:
                pass

            @on(Greet)
            def two(self, msg: Greet) -> None:
                pass


def test_on_takes_classes() -> None:
    with pytest.raises(TypeError, match="@on takes the message classes"):
        on()
    with pytest.raises(TypeError, match="@on takes the message classes"):
        on("Greet")  # type: ignore[arg-type]  # that is the test


def test_unhandled_message_is_a_dead_letter_and_its_ask_fails() -> None:
    stage = Stage()
    counter = stage.runtime.spawn(Counter, name="c")
    with pytest.raises(UnhandledMessageError, match=r"/user/c has no handler for Unheard; mark"):
        stage.run(counter.ask(Unheard()))
    counter.tell("text")
    stage.settle()
    assert stage.whys() == ["UNHANDLED", "UNHANDLED"]
    assert stage.letters[1].recipient == "local:0/user/c"
    assert stage.letters[1].message == "text"


def test_ask_times_out_and_a_late_answer_hurts_nobody() -> None:
    stage = Stage()
    counter = stage.runtime.spawn(Counter, name="c")

    async def main() -> float:
        with pytest.raises(AskTimeoutError, match=r"no answer from local:0/user/c within 0.5 s"):
            await counter.ask(Wait(1.0), timeout_s=0.5)
        return stage.loop.time()

    assert 0.5 <= stage.run(main()) <= 0.51
    stage.run_for(5.0)
    assert stage.run(counter.ask(Add(1))) == 1


def test_cancelled_ask_leaves_no_unfetched_exception() -> None:
    stage = Stage()
    counter = stage.runtime.spawn(Counter)
    asking = stage.loop.create_task(counter.ask(Break("x")))
    stage.loop.call_soon(asking.cancel)
    stage.run_for(1.0)
    assert asking.cancelled()
    assert stage.timeline.errors == []


@pytest.mark.parametrize("cls", [Add, Break])
def test_handler_that_raises_fails_the_ask_with_type_and_text(cls: type[Ask[Any]]) -> None:
    class Broken(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            raise KeyError("x")

        @on(Break)
        async def fail(self, msg: Break) -> None:
            raise KeyError("x")

    stage = Stage()
    broken = stage.runtime.spawn(Broken)
    question: Ask[Any] = Add(1) if cls is Add else Break("x")
    with pytest.raises(ActorFailedError) as caught:
        stage.run(broken.ask(question))
    assert (caught.value.type_name, caught.value.text) == ("KeyError", "'x'")
    assert [failure.during for failure in stage.failures] == [cls.__name__]


def test_wrong_field_is_refused_where_it_is_sent() -> None:
    """Our own mistake raises at `tell`; the actor never sees the message."""
    stage = Stage()
    counter = stage.runtime.spawn(Counter)
    with pytest.raises(MessageError, match=r"Add\.amount: expected int, got str"):
        counter.tell(Add("2"))  # type: ignore[arg-type]  # that is the test
    with pytest.raises(MessageError, match=r"Add\.amount"):
        stage.run(counter.ask(Add(2.5)))  # type: ignore[arg-type]  # that is the test
    assert stage.run(counter.ask(Add(1))) == 1


def test_answer_of_another_type_fails_the_ask_and_is_reported() -> None:
    class Wrong(Actor):
        @on(Add)
        def add(self, msg: Add) -> str:
            return "many"

    stage = Stage()
    wrong = stage.runtime.spawn(Wrong)
    with pytest.raises(ActorFailedError, match="answer to Add: expected int, got str"):
        stage.run(wrong.ask(Add(1)))
    assert [(f.during, f.outcome) for f in stage.failures] == [("answer", "resume")]


def test_reply_before_the_end_and_forward() -> None:
    class Front(Actor):
        def __init__(self, behind: ActorRef[Any]) -> None:
            self.behind = behind

        @on(Add)
        def add(self, msg: Add) -> int:
            self.context.forward(self.behind)
            return -1

        @on(Wait)
        async def wait(self, msg: Wait) -> float:
            self.context.reply(0.25)
            await asyncio.sleep(msg.seconds)
            return 9.0

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            self.context.forward(self.behind, Greet("instead"))
            self.context.reply("nobody waits")

    stage = Stage()
    counter = stage.runtime.spawn(Counter, 10)
    front = stage.runtime.spawn(Front, counter)
    assert stage.run(front.ask(Add(5))) == 15
    assert stage.run(front.ask(Wait(30.0))) == 0.25
    assert stage.loop.time() < 1.0
    seen: list[Any] = []
    front2 = stage.runtime.spawn(Front, stage.runtime.spawn(Collector, seen))
    front2.tell(Greet("x"))
    stage.settle()
    assert seen == [Greet("instead")]


def test_context_knows_self_sender_parent_children_and_path() -> None:
    facts: dict[str, Any] = {}

    class Child(Actor):
        def __init__(self) -> None:
            facts["in constructor"] = self.context.path

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            facts["parent"] = self.context.parent
            facts["sender"] = self.context.sender

    class Parent(Actor):
        def pre_start(self) -> None:
            child = self.context.spawn(Child, name="kid")
            self.context.spawn(Child)
            child.tell(Greet("x"), sender=self.context.self)
            facts["children"] = [child.path for child in self.context.children]
            facts["top"] = self.context.parent

        @on(WhoSent)
        def who(self, msg: WhoSent) -> bool:
            return self.context.sender is None

    stage = Stage()
    parent = stage.runtime.spawn(Parent, name="p")
    assert stage.run(parent.ask(WhoSent()))
    assert facts["parent"] == facts["sender"] == parent
    assert facts["children"] == ["/user/p/kid", "/user/p/$1"]
    assert facts["top"] is None
    assert facts["in constructor"] == "/user/p/$1"


def test_refs_are_equal_by_node_path_and_uid() -> None:
    stage = Stage()
    one = stage.runtime.spawn(Counter, name="a")
    assert stage.runtime.ref_at(None, "/user/a", one.uid) is one
    assert one == one
    whoever = stage.runtime.ref_at(None, "/user/a")
    assert whoever != one
    assert whoever == stage.runtime.ref_at(stage.runtime.here, "/user/a")
    assert len({whoever, stage.runtime.ref_at(None, "/user/a"), one}) == 2
    assert one != "a"
    assert stage.run(whoever.ask(Add(1))) == 1
    stage.runtime.stop(one)
    stage.run(stage.runtime.stopped(one))
    again = stage.runtime.spawn(Counter, name="a")
    assert again != one
    with pytest.raises(DeadActorError, match="stopped"):
        stage.run(one.ask(Add(1)))
    assert stage.run(whoever.ask(Add(1))) == 1


class Ticking(Actor):
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        timers = self.context.timers
        if msg.name == "start":
            timers.once("one", 1.0, Greet("once"))
            timers.every("many", 0.5, Greet("tick"))
        elif msg.name == "replace":
            timers.once("one", 3.0, Greet("replaced"))
        elif msg.name == "cancel":
            timers.cancel("many")
            timers.cancel("unknown")
        elif msg.name == "break":
            raise ValueError("broken")
        else:
            self.seen.append((self.context.now(), msg.name, timers.is_active("one")))

    @on(Wait)
    async def wait(self, msg: Wait) -> float:
        await asyncio.sleep(msg.seconds)
        if self.context.timers.is_active("many"):
            self.context.timers.cancel("many")
        return 0.0


def test_timers_once_every_replace_cancel() -> None:
    stage = Stage()
    seen: list[Any] = []
    ref = stage.runtime.spawn(Ticking, seen)
    ref.tell(Greet("start"))
    ref.tell(Greet("replace"))
    stage.run_for(1.4)
    assert seen == [(0.5, "tick", True), (1.0, "tick", True)]
    ref.tell(Greet("cancel"))
    stage.run_for(5.0)
    assert seen[2:] == [(3.0, "replaced", False)]


def test_slow_actor_gets_one_tick_and_not_many() -> None:
    """A mailbox is not flooded by the actor's own timer, and a cancelled tick never comes."""
    stage = Stage()
    seen: list[Any] = []
    ref = stage.runtime.spawn(Ticking, seen)
    ref.tell(Greet("start"))
    stage.run_for(0.1)
    ref.tell(Wait(10.0))
    ref.tell(Greet("after"))
    stage.run_for(12.0)
    assert [name for _, name, _ in seen] == ["after", "once"]


def test_timers_end_with_a_restart_and_with_the_actor() -> None:
    for order in ("break", "stop"):
        stage = Stage()
        seen: list[Any] = []
        ref = stage.runtime.spawn(Ticking, seen)
        ref.tell(Greet("start"))
        stage.run_for(0.6)
        if order == "break":
            ref.tell(Greet("break"))
        else:
            stage.runtime.stop(ref)
        stage.run_for(10.0)
        assert seen == [(0.5, "tick", True)]


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf")])
def test_timer_delays_are_checked(delay_s: float) -> None:
    class Early(Actor):
        def pre_start(self) -> None:
            with pytest.raises(ValueError, match="is no delay"):
                self.context.timers.once("x", delay_s, "x")
            with pytest.raises(ValueError, match="must be above 0"):
                self.context.timers.every("x", 0.0, "x")

    stage = Stage()
    stage.runtime.spawn(Early)
    stage.settle()
    assert stage.failures == []


def test_timer_key_without_a_hash_is_refused_and_nothing_is_started() -> None:
    class Lists(Actor):
        def pre_start(self) -> None:
            timers, key = self.context.timers, ["order", 1]
            with pytest.raises(TypeError, match=r"timer \['order', 1\] cannot be a key"):
                timers.once(key, 0.1, Greet("x"))  # type: ignore[arg-type]  # that is the test
            with pytest.raises(TypeError, match="cannot be a key"):
                timers.every(key, 0.1, Greet("x"))  # type: ignore[arg-type]  # that is the test

        def receive(self, message: Any, /) -> None:
            seen.append(message)

    stage = Stage()
    seen: list[Any] = []
    stage.runtime.spawn(Lists)
    stage.run_for(1.0)
    assert seen == stage.failures == []
    assert "failed turns" not in stage.runtime.counters


@pytest.mark.parametrize("timeout_s", [None, "5", float("inf"), float("nan"), 0.0])
def test_timeouts_of_ask_are_checked(timeout_s: Any) -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Stashing, [])
    text = r"timeout_s=.* must be greater than 0 and less than 1e\+09 seconds"
    with pytest.raises(ValueError, match=text):
        stage.run(ref.ask(Add(1), timeout_s=timeout_s))
    assert len(stage.runtime.ask_timers) == 0


class Stashing(Actor):
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen
        self.is_open = False

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "open":
            self.is_open = True
            self.context.unstash_all()
        elif not self.is_open:
            self.context.stash()
        else:
            self.seen.append(msg.name)

    @on(Add)
    def add(self, msg: Add) -> int:
        if not self.is_open:
            self.context.stash()
        return msg.amount


def test_stashed_messages_come_back_in_order_and_before_the_rest() -> None:
    stage = Stage()
    seen: list[str] = []
    ref = stage.runtime.spawn(Stashing, seen)
    asking = stage.loop.create_task(ref.ask(Add(7)))
    for name in ("a", "b", "open", "c"):
        ref.tell(Greet(name))
    stage.settle()
    assert seen == ["a", "b", "c"]
    assert asking.result() == 7


def test_stash_is_bounded() -> None:
    stage = Stage()
    seen: list[str] = []
    ref = stage.runtime.spawn(Stashing, seen, stash_max=2)
    for name in ("a", "b", "c"):
        ref.tell(Greet(name))
    stage.settle()
    assert stage.whys() == ["STASH_FULL"]
    assert stage.letters[0].message == Greet("c")
    ref.tell(Greet("open"))
    stage.settle()
    assert seen == ["a", "b"]
