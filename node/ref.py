"""References to actors, wherever they run.

Decides: what `tell` and `ask` promise, and when two refs are equal. Does not decide how a message
reaches another node: that is `node.remote`. Refs are made by the runtime and travel in messages.

Use a ref only on the thread of its system's event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gossip.membership import NodeId
from node.ask import LocalAsk
from node.errors import SendTimeoutError
from node.mailbox import BATCH, Delivery
from node.messages import Ask
from node.schema import ANSWERS, CHECKS, Extension

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from node.cell import Cell
    from node.environment import DataLink
    from node.names import Names
    from node.runtime import Runtime

M_contra = TypeVar("M_contra", contravariant=True)
T = TypeVar("T")

TIMEOUT_MAX_S = 1e9


class ActorRef(Extension, Generic[M_contra]):
    """Address of an actor: node, `path`, and `uid` of the actor (0: whoever is at the path).

    Refs are equal when these three are. A message to an actor of this process is passed as the
    object it is; to another node it is copied over the wire.
    """

    __slots__ = ("_cell", "_node", "_runtime", "link", "names", "path", "target", "uid")

    # For `node.remote`: by which number an actor of another node is known on which connection.
    link: DataLink | None
    names: Names | None
    target: int

    def __init__(
        self, runtime: Runtime, node: NodeId | None, path: str, uid: int, cell: Cell | None = None
    ) -> None:
        self._runtime = runtime
        self._node = node  # None: here
        self._cell = cell
        self.link = self.names = None
        self.path = path
        self.uid = uid

    @property
    def node(self) -> NodeId:
        """The process run where the actor lives."""
        return self._runtime.here if self._node is None else self._node

    @property
    def is_local(self) -> bool:
        """True when the actor belongs to this process."""
        return self._node is None

    @property
    def address(self) -> str:
        """`host:port/path`, for people."""
        return f"{self.node.address}{self.path}"

    def tell(self, message: M_contra, sender: ActorRef[Any] | None = None) -> None:
        """Send, and do not wait. Arrives at most once; in order per sender and recipient.

        What cannot be delivered becomes a `DeadLetter` event. Raises `MessageError` when a field
        of the message has the wrong type, or when a message that is no `@message` is sent to
        another node or to a singleton; `MailboxFullError` when the actor is one of this process,
        its mailbox is full, and it was spawned with `when_full="fail"`; `WrongThreadError` or
        `WrongProcessError` where it notices such a use; never for what a peer or the recipient
        does.
        """
        cell = self._cell
        if cell is not None:
            CHECKS[type(message)](message)
            error = cell.put(
                message if sender is None else Delivery(message, sender, None, self.path, self.uid)
            )
            if error is not None:
                raise error
        elif self._node is None:
            CHECKS[type(message)](message)
            self._runtime.send(self, Delivery(message, sender, None, self.path, self.uid))
        else:
            self._runtime.remote.tell(self, message, sender)

    async def send(
        self,
        message: M_contra,
        sender: ActorRef[Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send as `tell`, and wait until there is room: for whoever sends faster than is handled.

        To another node: room on the link to it. In this process: room in the mailbox of an actor
        that was spawned with `when_full="wait"`; who waits longest is served first. Otherwise as
        `tell`, but it lets the actor work from time to time. That it returns does not mean that
        the message arrived.

        Raises `SendTimeoutError` when there was no room within `timeout_s` (None: no limit); the
        message is not sent then. Raises `MailboxFullError` when an actor would wait for room in
        its own mailbox, which it alone can make; else as `tell`.
        """
        if timeout_s is not None and not 0.0 < timeout_s < TIMEOUT_MAX_S:
            raise ValueError(f"timeout_s={timeout_s} must be greater than 0: give seconds, or None")
        cell = self._cell
        if cell is None:
            if self._node is not None:
                await self._within(self._runtime.remote.room(self._node), timeout_s)
            self.tell(message, sender)
            if self._runtime.remote.sent_enough():
                await asyncio.sleep(0)  # the loop has other work too
            return
        CHECKS[type(message)](message)
        item = message if sender is None else Delivery(message, sender, None, self.path, self.uid)
        taken = cell.offer(item)
        if taken is not None:
            try:
                await self._within(taken, timeout_s)
            except SendTimeoutError:
                if not taken.done() or taken.cancelled():
                    raise  # else it was taken in the very moment
        elif cell.waiting_count > BATCH:
            await asyncio.sleep(0)

    async def _within(self, room: Awaitable[None], timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await room
        except TimeoutError as error:
            raise SendTimeoutError(
                f"no room for a message to {self.address} within {timeout_s:g} s; it was not sent: "
                f"send less, or wait longer"
            ) from error

    async def ask(self, message: Ask[T], timeout_s: float = 5.0) -> T:
        """Send, and wait for the answer: what the actor's handler returns.

        Raises `AskTimeoutError` after `timeout_s`; `ActorFailedError` when the handler raised or
        answered with another type; `UnhandledMessageError` when no handler takes the message;
        `DeadActorError`, at once, when the actor is known to be gone; `MailboxFullError`, at once,
        when its mailbox is full (with `when_full="wait"` the ask waits); `MessageError`,
        `WrongThreadError` and `WrongProcessError` as `tell`; `ValueError` when `timeout_s` is no
        number of seconds greater than 0 and less than 1e9. All timeouts share one timer: one may
        end 1 % late, or 10 ms if that is more, and never early.
        """
        try:
            is_bounded = 0.0 < timeout_s < TIMEOUT_MAX_S
        except TypeError:
            is_bounded = False
        if not is_bounded:
            raise ValueError(
                f"timeout_s={timeout_s!r} must be greater than 0 and less than {TIMEOUT_MAX_S:g} "
                f"seconds: every ask has a limit"
            )
        kind = type(message)
        runtime = self._runtime
        if _get_running_loop() is not runtime.loop:
            runtime.check_thread()
        pending = LocalAsk(runtime.loop.create_future(), ANSWERS[kind], self, timeout_s)
        timers = runtime.ask_timers
        timers.add(pending, timeout_s)
        try:
            cell = self._cell
            if cell is not None:
                CHECKS[kind](message)
                cell.put(Delivery(message, None, pending, self.path, self.uid))
            elif self._node is None:
                CHECKS[kind](message)
                runtime.send(self, Delivery(message, None, pending, self.path, self.uid))
            else:
                runtime.remote.ask(self, message, pending)
            await pending.future
        finally:
            if pending.bucket is not None:  # as `timers.remove`
                pending.bucket.pop(pending, None)
            if pending.corr:
                runtime.remote.forget(pending)
        if pending.error is not None:
            raise pending.error
        answer: T = pending.value
        return answer

    def silence(self, ask: LocalAsk) -> tuple[str, str]:
        """Who did not answer this ask, and why as far as this node knows: words for people."""
        found: list[tuple[str, str] | None] = []
        runtime = self._runtime
        runtime.isolate(lambda: found.append(runtime.silence(ask, self.path)))
        return (found[0] if found else None) or (self.address, "")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ActorRef):
            return NotImplemented
        return self.path == other.path and self.uid == other.uid and self.node == other.node

    def __hash__(self) -> int:
        return hash((self.path, self.uid))

    def __repr__(self) -> str:
        return f"ActorRef({self.address}#{self.uid})"
