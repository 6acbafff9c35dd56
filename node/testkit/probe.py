"""A probe: an actor of the test's own, which keeps what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from node.actor import Actor, on
from node.ref import ActorRef
from node.testkit.stage import Stage
from node.testkit.timeline import WorldError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Watch:
    ref: ActorRef[Any]


class ProbeActor(Actor):
    """Hands every message to its probe."""

    def __init__(self, keep: Callable[[Any], None]) -> None:
        self._keep = keep

    @on(_Watch)
    def _watch(self, order: _Watch) -> None:
        self.context.watch(order.ref)

    def receive(self, message: Any) -> None:
        """Keep it."""
        self._keep(message)


class Probe:
    """Made by `World.probe`. Give `ref` to the actors under test.

    `messages` has everything that came, in order. `expect` and `expect_nothing` go through them
    one by one: what one call accepted, the next one does not see again.
    """

    def __init__(self, stage: Stage, spawn: Callable[..., ActorRef[Any]]) -> None:
        self.messages: list[Any] = []
        self.ref = spawn(ProbeActor, self.messages.append)
        self._stage = stage
        self._seen = 0

    @overload
    def expect(self, wanted: type[T], *, within_s: float = ...) -> T: ...
    @overload
    def expect(self, wanted: T, *, within_s: float = ...) -> T: ...
    def expect(self, wanted: Any, *, within_s: float = 5.0) -> Any:
        """Let time go by until the next message comes, and return it.

        wanted: its class, or a message it must be equal to. Raises WorldError when none comes
        within `within_s` virtual seconds, or when it is another one.
        """
        timeline = self._stage.timeline
        if not timeline.run(timeline.now + within_s, self._has_next):
            raise WorldError(timeline.report(f"no message within {within_s} s, not {wanted!r}"))
        message = self.messages[self._seen]
        fits = isinstance(message, wanted) if isinstance(wanted, type) else message == wanted
        if not fits:
            raise WorldError(timeline.report(f"the next message is {message!r}, not {wanted!r}"))
        self._seen += 1
        return message

    def expect_nothing(self, *, for_s: float) -> None:
        """Let `for_s` virtual seconds go by; raise WorldError when a message comes."""
        self._stage.run_for(s=for_s)
        if self._has_next():
            what = f"{self.messages[self._seen]!r} came within {for_s} s, and nothing should"
            raise WorldError(self._stage.timeline.report(what))

    def watch(self, ref: ActorRef[Any]) -> None:
        """Get a `Terminated` as a message when that actor ends."""
        self.ref.tell(_Watch(ref))

    def _has_next(self) -> bool:
        return len(self.messages) > self._seen
