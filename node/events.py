"""What a node tells whoever subscribed: the event stream and the runtime's events.

Decides: who hears what (subscribers of the event's class or of a base of it), and that no
subscriber hurts another. Does not decide when something is an event. Called on the loop's thread.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from node.ref import ActorRef

E = TypeVar("E")

_log = logging.getLogger(__name__)


class Why(enum.StrEnum):
    """Why a message became a dead letter."""

    STOPPED = "the actor is stopped or stopping"
    NO_ACTOR = "there is no actor at this path"
    UNHANDLED = "the actor has no handler for this type"
    MAILBOX_FULL = "the mailbox is full"
    STASH_FULL = "the stash is full"
    BUFFER_FULL = "the buffer is full"
    NOT_SENT = "it could not be sent"
    LINK_FULL = "too much waits for its node"
    TOO_MANY_ASKS = "too many asks are waiting for an answer"
    UNREADABLE = "its type or its fields are not known here"
    STOPPED_EARLY = "its handler was cancelled after the stop timeout"
    AUTHORITY_LOST = "its actor lost its authority while it handled it"
    SHUTDOWN = "the system has stopped"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a message of a peer that could not be rebuilt: its wire name and its fields."""

    tag: str
    body: object


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message nobody handled. `recipient` is the address it was meant for."""

    message: object
    recipient: str
    sender: ActorRef[Any] | None
    why: Why


@dataclass(frozen=True, slots=True)
class ActorFailed:
    """User code of an actor raised `type_name: text`, during a message or a hook.

    `outcome` is what became of the actor: restart, stop, resume or escalate.
    """

    path: str
    during: str
    type_name: str
    text: str
    outcome: str


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The actor at `path` kept the event loop for `took_s` seconds, so nothing else ran.

    `handler` is what it was at: `Worker.greet(Greet)`, or a word for its state. It was one of the
    last `messages_max` messages: of an actor that was fast until then not each one is timed.
    """

    path: str
    handler: str
    took_s: float
    messages_max: int


class _Subscription:
    __slots__ = ("handler", "has_failed")

    def __init__(self, handler: Callable[[Any], object]) -> None:
        self.handler = handler
        self.has_failed = False


class EventStream:
    """Subscribers by event class."""

    def __init__(self) -> None:
        self._subscriptions: dict[type, list[_Subscription]] = {}
        self.failures = 0
        """Times a handler raised."""

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        """Call `handler` with each event that is a `kind`; the result ends that.

        Unsubscribing twice is harmless.
        """
        own = _Subscription(handler)
        # Lists are replaced, never changed: a handler may unsubscribe while `publish` iterates.
        self._subscriptions[kind] = [*self._subscriptions.get(kind, ()), own]

        def unsubscribe() -> None:
            left = [known for known in self._subscriptions.get(kind, ()) if known is not own]
            if left:
                self._subscriptions[kind] = left
            else:
                self._subscriptions.pop(kind, None)

        return unsubscribe

    def publish(self, event: object) -> None:
        """Hand the event to its subscribers, in order of subscription per class; never raises.

        A handler that raises is counted each time and logged the first time.
        """
        if not self._subscriptions:
            return
        for kind in type(event).__mro__:
            for subscription in self._subscriptions.get(kind, ()):
                try:
                    subscription.handler(event)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # noqa: BLE001 - a subscriber's; the others must hear it too
                    self.failures += 1
                    if not subscription.has_failed:
                        subscription.has_failed = True
                        fields = {"event": type(event).__name__}
                        _log.exception("event handler failed; reported once", extra=fields)
