"""A probe: an actor of the test's own, which keeps what it gets and answers when it is told to.

Decides what `expect` accepts and how a failed expectation reads. Does not decide when time goes by:
that is the stage's. Made by `World.probe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from node.actor import Actor, on
from node.messages import Ask
from node.ref import ActorRef
from node.testkit.timeline import WorldError

if TYPE_CHECKING:
    from node.testkit.world import World

T = TypeVar("T")

SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class _Watch:
    ref: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class _Got:
    """A message, when it came, and who may be replied to: a sender, or whoever asked."""

    message: Any
    at_s: float
    sender: ActorRef[Any] | None
    answer: asyncio.Future[object] | None


class Answerer(Actor):
    """Holds one ask until the test replies, so that its probe can take the next message."""

    def __init__(self, answer: asyncio.Future[object]) -> None:
        self._answer = answer

    async def receive(self, _message: Any) -> object:
        """Answer what the test replies."""
        answer = await self._answer
        self.context.stop(self.context.self)
        return answer


class ProbeActor(Actor):
    """Hands every message to its probe."""

    def __init__(self, keep: Callable[[Any, ActorRef[Any] | None, Any], None]) -> None:
        self._keep = keep

    @on(_Watch)
    def _watch(self, order: _Watch) -> None:
        self.context.watch(order.ref)

    def receive(self, message: Any) -> None:
        """Keep it; an ask stays open until the test replies."""
        answer = None
        if isinstance(message, Ask):
            answer = asyncio.get_running_loop().create_future()
            self.context.forward(self.context.spawn(Answerer, answer))
        self._keep(message, self.context.sender, answer)


class Probe:
    """Made by `World.probe`. Give `ref` to the actors under test.

    `messages` has everything that came, in order. `expect` and `expect_none` go through them one
    by one: what one call accepted, the next one does not see again.
    """

    def __init__(self, world: World, spawn: Callable[..., ActorRef[Any]]) -> None:
        self.messages: list[Any] = []
        self._world = world
        self._got: list[_Got] = []
        self._accepted = 0
        self.ref = spawn(ProbeActor, self._keep)

    def _keep(
        self, message: Any, sender: ActorRef[Any] | None, answer: asyncio.Future[object] | None
    ) -> None:
        self._got.append(_Got(message, self._world.now, sender, answer))
        self.messages.append(message)

    @overload
    def expect(self, wanted: type[T], *, within_s: float = ...) -> T: ...
    @overload
    def expect(self, wanted: T, *, within_s: float = ...) -> T: ...
    def expect(self, wanted: Any, *, within_s: float = 5.0) -> Any:
        """Let time go by until the next message comes, and return it.

        wanted: its class, or a message it must be equal to. Raises WorldError when none comes
        within `within_s` virtual seconds, or when it is another one; the text tells which, when,
        and what else went wrong in the world.
        """
        timeline = self._world.timeline
        if not timeline.run(timeline.now + within_s, self._has_next):
            self._fail(f"expected {_shown(wanted)} within {within_s:g} s, and nothing came")
        got = self._got[self._accepted]
        message = got.message
        fits = isinstance(message, wanted) if isinstance(wanted, type) else message == wanted
        if not fits:
            self._fail(f"expected {_shown(wanted)}, and {message!r} came, at {got.at_s:.6f} s")
        self._accepted += 1
        return message

    def expect_none(self, *, within_s: float) -> None:
        """Let `within_s` virtual seconds go by; raise WorldError when a message comes, or one had
        come that was not expected yet."""
        timeline = self._world.timeline
        if timeline.run(timeline.now + within_s, self._has_next):
            got = self._got[self._accepted]
            self._fail(
                f"expected no message within {within_s:g} s, and {got.message!r} came, at "
                f"{got.at_s:.6f} s"
            )

    def reply(self, value: object) -> None:
        """Answer the message that `expect` returned last: an ask gets `value` as its answer, the
        sender of a told message gets it told.

        Raises WorldError when nothing was expected yet, when that message is answered already, or
        when it has neither asker nor sender.
        """
        if not self._accepted:
            self._fail("has no message to reply to: call expect() first")
        got = self._got[self._accepted - 1]
        if got.answer is not None:
            if got.answer.done():
                self._fail(f"has replied to {got.message!r} already")
            got.answer.set_result(value)
        elif got.sender is not None:
            got.sender.tell(value, self.ref)
        else:
            self._fail(
                f"cannot reply to {got.message!r}: it was told without sender=, and is no Ask"
            )

    def watch(self, ref: ActorRef[Any]) -> None:
        """Get a `Terminated` as a message when that actor ends."""
        self.ref.tell(_Watch(ref))

    def _has_next(self) -> bool:
        return len(self._got) > self._accepted

    def _fail(self, what: str) -> NoReturn:
        """Raise WorldError: what and when, what came before, and what else went wrong."""
        world = self._world
        before = [f"{got.at_s:.6f} s: {got.message!r}" for got in self._got[: self._accepted]]
        lines = [
            f"{self.ref.path} {what} (at {world.now:.6f} virtual s)",
            *_listed("it had accepted", before),
            *_listed(
                "dead letters",
                [f"{e.message!r} to {e.recipient}: {e.why}" for e in world.dead_letters],
            ),
            *_listed(
                "actors failed",
                [
                    f"{e.path}, {e.during}: {e.type_name}: {e.text} ({e.outcome})"
                    for e in world.failures
                ],
            ),
            "the last steps:",
            *world.trace.lines(20),
        ]
        raise WorldError("\n".join(lines))


def _listed(title: str, events: list[str]) -> list[str]:
    if not events:
        return []
    which = f"the last {SHOWN_MAX} of {len(events)}" if len(events) > SHOWN_MAX else ""
    return [f"  {title}: {which}".rstrip(), *(f"    {text}" for text in events[-SHOWN_MAX:])]


def _shown(wanted: object) -> str:
    return f"a {wanted.__name__}" if isinstance(wanted, type) else repr(wanted)
