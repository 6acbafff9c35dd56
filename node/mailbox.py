"""What lies in a mailbox.

A mailbox is a `deque` the cell makes at the first message. A told message lies there as it is;
only what carries more is wrapped: a `Delivery` (sender, asker), a `StopMark`, a `TimerTick`, a
`ChildFailed`, a `SiblingFailed`, a `node.pipe.Pipe`.

Budget: an idle actor has no mailbox, no task, no timer. A told message costs one deque slot, no
object, no log; the runtime is asked for a turn once per idle → busy edge, and a turn handles at
most `BATCH` messages before other actors have theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal

from node.supervision import StopReason

if TYPE_CHECKING:
    from node.ask import Asker
    from node.ref import ActorRef

BATCH = 64

WhenFull = Literal["drop", "fail", "wait"]
"""What becomes of a message to a full mailbox. In each case a told one becomes a dead letter.

drop: that is all, and its ask fails with `MailboxFullError`. fail: besides, `tell` raises that
error when the sender is in the same process. wait: `await ref.send(…)` and asks of the same process
wait for room, in order; asks from other nodes fail.
"""


class Delivery:
    """A message with what belongs to it, on its way to `path`.

    `uid` 0 means whoever is there. `asker` is whoever waits for an answer, or None. `hops` counts
    the nodes that forwarded it. It can be held, answered (`answer`, `fail`), put into a mailbox or
    forwarded to another node unchanged.
    """

    __slots__ = ("asker", "hops", "message", "path", "sender", "uid")

    def __init__(
        self,
        message: object,
        sender: ActorRef[Any] | None,
        asker: Asker | None,
        path: str,
        uid: int = 0,
        hops: int = 0,
    ) -> None:
        self.message = message
        self.sender = sender
        self.asker = asker
        self.path = path
        self.uid = uid
        self.hops = hops

    def __repr__(self) -> str:
        kind = "told" if self.asker is None else "asked"
        return f"Delivery({self.message!r} {kind} to {self.path}#{self.uid}, hops={self.hops})"


class StopMark:
    """The stop order in its place: what lies before it is still handled."""

    __slots__ = ("reason",)

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason


class ChildFailed:
    """A child of the instance `parent` escalated `error`."""

    __slots__ = ("error", "parent")

    def __init__(self, error: BaseException, parent: object) -> None:
        self.error = error
        self.parent = parent


class SiblingFailed:
    """A sibling of `instance` failed, and all of their group restart."""

    __slots__ = ("delay_s", "error", "instance", "reason")

    def __init__(
        self, error: BaseException, delay_s: float, reason: StopReason, instance: object
    ) -> None:
        self.error = error
        self.delay_s = delay_s
        self.reason = reason
        self.instance = instance


class TimerTick:
    """One timer of an actor, and what lies in the mailbox when it is due.

    `waiting`: it lies there already, so a slow actor gets one tick and not many.
    """

    __slots__ = ("due", "handle", "interval_s", "key", "message", "waiting")

    def __init__(
        self, key: Hashable, message: object, due: float, interval_s: float | None
    ) -> None:
        self.key = key
        self.message = message
        self.due = due
        self.interval_s = interval_s
        self.waiting = False
        self.handle: asyncio.TimerHandle | None = None
