"""Messages that cannot travel, and asks nobody can answer: told at once, and nothing else suffers.

Two real nodes on one loop; `far` refs lead through their sockets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node import (
    Actor,
    ActorFailed,
    ActorFailedError,
    ActorRef,
    ActorSystem,
    Ask,
    DeadActorError,
    MessageError,
    UnhandledMessageError,
    message,
    on,
)

WAIT_S = 10.0
ASK_S = 60.0
AT_ONCE_S = 5.0  # by its timeout an ask would fail much later


@message("tests.faults.note")
class Note:
    text: str = ""
    number: int = 0
    data: bytes = b""
    anything: Any = None
    at: dt.datetime | None = None


@message("tests.faults.second-note")
class SecondNote:
    text: str


@message("tests.faults.get")
class Get(Ask[Any]):
    what: str


@message("tests.faults.unheard")
class Unheard(Ask[int]):
    pass


@dataclasses.dataclass
class Nameless:
    text: str


class Desk(Actor):
    """Keeps what it gets; answers what cannot travel."""

    def __init__(self, kept: list[object]) -> None:
        self.kept = kept

    @on(Note, SecondNote)
    def keep(self, msg: object) -> None:
        self.kept.append(msg)

    @on(Get)
    def get(self, msg: Get) -> object:
        answers: dict[str, object] = {
            "object": object(),
            "surrogate": "\ud800",
            "too large": b"x" * (9 * 1024 * 1024),
            "nameless": Nameless("x"),
            "fine": {"a": 1},
        }
        return answers[msg.what]


class Nodes:
    """`first` with a desk, `second` with a ref to it."""

    def __init__(self, first: ActorSystem, second: ActorSystem) -> None:
        self.first = first
        self.second = second
        self.kept: list[object] = []
        self.desk = first.spawn(Desk, self.kept, name="desk")
        self.far = self.ref("/user/desk")

    def ref(self, path: str) -> ActorRef[Any]:
        """The second node's ref to something on the first."""
        return self.second.resolve(f"{self.first.cluster.self_id.address}{path}")

    async def until_kept(self, count: int) -> None:
        """Wait until the desk has got so many."""
        async with asyncio.timeout(WAIT_S):
            while len(self.kept) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Nodes]:
    """Two members that see each other."""
    async with ActorSystem(port=0, found=True, stop_timeout_s=0.2) as first:
        seed = first.cluster.self_id.address
        async with ActorSystem(port=0, seeds=[seed]) as second:
            await second.cluster.up(2, timeout_s=WAIT_S)
            await first.cluster.up(2, timeout_s=WAIT_S)
            yield Nodes(first, second)


def in_itself() -> list[Any]:
    """A list that contains itself."""
    made: list[Any] = []
    made.append(made)
    return made


CANNOT_TRAVEL: list[tuple[Any, str]] = [
    (Note(text=5), "Note.text: expected str, got int"),  # type: ignore[arg-type]
    (Note(number=2**64), "an int beyond 64 bits"),
    (Note(anything=object()), "expected a plain value"),
    (Note(anything=[{1, 2}]), "expected a plain value"),
    (Note(anything=in_itself()), "nested deeper than 32 levels"),
    (Note(text="\ud800"), "tests.faults.note: cannot be encoded"),
    (Note(at=dt.datetime(2026, 1, 1)), "without time zone"),
    (Note(data=b"x" * (9 * 1024 * 1024)), "at most .* may travel; send it in parts"),
    (Note(text="x" * (9 * 1024 * 1024)), "at most .* may travel; send it in parts"),
    (Nameless("x"), "no registered message and cannot leave the process"),
    (None, "cannot leave the process"),
]


async def test_what_cannot_travel_is_told_to_its_sender_and_to_nobody_else() -> None:
    """I-134: before, between and after them good ones arrive, in order; also the first one to an
    actor the peer has not been told of."""
    async with two_nodes() as nodes:
        for number, (wrong, text) in enumerate(CANNOT_TRAVEL):
            with pytest.raises(MessageError, match=text):
                nodes.far.tell(wrong)
            with pytest.raises(MessageError, match=text):
                await nodes.far.ask(wrong)
            nodes.far.tell(Note(number=number))
        nodes.far.tell(SecondNote("last"))
        await nodes.until_kept(len(CANNOT_TRAVEL) + 1)
        assert nodes.kept == [
            *(Note(number=number) for number in range(len(CANNOT_TRAVEL))),
            SecondNote("last"),
        ]
        for system in (nodes.first, nodes.second):
            assert not [name for name in system.counters() if name.startswith("dead letters")]
            assert not system.counters()["data-refused-bad frame"]


async def test_an_actor_that_sends_what_cannot_travel_fails_and_nobody_else() -> None:
    class Sender(Actor):
        def __init__(self, to: ActorRef[Any]) -> None:
            self.context.timers.once("t", 0.0, "send")
            self.to = to

        def receive(self, message: Any, /) -> None:
            self.to.tell(Note(text="\ud800"))

    async with two_nodes() as nodes:
        failed: list[ActorFailed] = []
        nodes.second.events.subscribe(ActorFailed, failed.append)
        sender = nodes.second.spawn(Sender, nodes.far)
        async with asyncio.timeout(WAIT_S):
            while not failed:
                await asyncio.sleep(0.001)
        nodes.second.stop(sender)
        assert failed[0].type_name == "MessageError"
        assert await nodes.far.ask(Get("fine")) == {"a": 1}


@pytest.mark.parametrize("what", ["object", "surrogate", "too large", "nameless"])
async def test_an_answer_that_cannot_travel_fails_its_ask_at_once(what: str) -> None:
    async with two_nodes() as nodes:
        failed: list[ActorFailed] = []
        nodes.first.events.subscribe(ActorFailed, failed.append)
        began_at = time.monotonic()
        with pytest.raises(ActorFailedError, match="MessageError"):
            await nodes.far.ask(Get(what), timeout_s=ASK_S)
        assert time.monotonic() - began_at < AT_ONCE_S
        assert [(failure.path, failure.type_name) for failure in failed] == [
            ("/user/desk", "MessageError")
        ]
        assert await nodes.far.ask(Get("fine")) == {"a": 1}


async def test_an_ask_to_a_dead_actor_fails_at_once_and_says_why() -> None:
    """Not by its timeout: stopped, never there, no handler, its node left, no node at all."""
    async with two_nodes() as nodes:
        exact = nodes.second.runtime.ref_at(nodes.desk.node, nodes.desk.path, nodes.desk.uid)
        free = "127.0.0.1:1"
        cases: list[tuple[ActorRef[Any], type[Exception], str]] = [
            (nodes.ref("/user/nobody"), DeadActorError, "/user/nobody: there is no actor"),
            (nodes.second.resolve("/user/nobody"), DeadActorError, "/user/nobody: there is no"),
            (
                nodes.second.resolve(f"{free}/user/x"),
                DeadActorError,
                f"no member is known at {free}",
            ),
        ]
        began_at = time.monotonic()
        with pytest.raises(UnhandledMessageError, match="/user/desk has no handler for Unheard"):
            await nodes.far.ask(Unheard(), timeout_s=ASK_S)
        for ref, error, text in cases:
            with pytest.raises(error, match=text):
                await ref.ask(Get("fine"), timeout_s=ASK_S)
        nodes.first.stop(nodes.desk)
        await nodes.first.runtime.stopped(nodes.desk)
        for ref in (exact, nodes.far):
            with pytest.raises(DeadActorError, match="/user/desk: there is no actor"):
                await ref.ask(Get("fine"), timeout_s=ASK_S)
        assert time.monotonic() - began_at < AT_ONCE_S


async def test_an_ask_that_waits_for_a_node_that_leaves_fails_at_once() -> None:
    class Slow(Actor):
        async def receive(self, message: Any, /) -> None:
            await asyncio.sleep(60)

    async with two_nodes() as nodes:
        nodes.first.spawn(Slow, name="slow")
        waiting = asyncio.ensure_future(nodes.ref("/user/slow").ask(Get("x"), timeout_s=ASK_S))
        assert await nodes.far.ask(Get("fine")) == {"a": 1}
        ending = asyncio.ensure_future(nodes.first.leave())
        with pytest.raises((DeadActorError, ActorFailedError)):
            await asyncio.wait_for(waiting, 30.0)
        await ending
        began_at = time.monotonic()
        with pytest.raises(DeadActorError):
            await nodes.far.ask(Get("fine"), timeout_s=ASK_S)
        assert time.monotonic() - began_at < AT_ONCE_S
