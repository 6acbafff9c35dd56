"""References to actors, wherever they run.

Decides: what `tell` and `ask` promise, and when two refs are equal. Does not decide how a message
reaches another node: that is `node.remote`. Refs are made by the runtime and travel in messages.

Use a ref only on the thread of its system's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gossip.membership import NodeId
from node.ask import LocalAsk
from node.mailbox import Delivery
from node.messages import Ask
from node.schema import CHECKS, Extension, answer_schema

if TYPE_CHECKING:
    from node.cell import Cell
    from node.runtime import Runtime

M_contra = TypeVar("M_contra", contravariant=True)
T = TypeVar("T")

TIMEOUT_MAX_S = 1e9


class ActorRef(Extension, Generic[M_contra]):
    """Address of an actor: node, `path`, and `uid` of the actor (0: whoever is at the path).

    Refs are equal when these three are. A message to an actor of this process is passed as the
    object it is; to another node it is copied over the wire.
    """

    __slots__ = ("_cell", "_node", "_runtime", "path", "uid")

    def __init__(
        self, runtime: Runtime, node: NodeId | None, path: str, uid: int, cell: Cell | None = None
    ) -> None:
        self._runtime = runtime
        self._node = node  # None: here
        self._cell = cell
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
        another node or to a singleton; never for what a peer or the recipient does.
        """
        CHECKS[type(message)](message)
        cell = self._cell
        if cell is None:
            self._runtime.send(self, Delivery(message, sender, None, self.path, self.uid))
        elif sender is None:
            cell.put(message)
        else:
            cell.put(Delivery(message, sender, None, self.path, self.uid))

    async def ask(self, message: Ask[T], timeout_s: float = 5.0) -> T:
        """Send, and wait for the answer: what the actor's handler returns.

        Raises `AskTimeoutError` after `timeout_s`; `ActorFailedError` when the handler raised or
        answered with another type; `UnhandledMessageError` when no handler takes the message;
        `DeadActorError`, at once, when the actor is known to be gone; `MessageError` as `tell`;
        `ValueError` when `timeout_s` is no number of seconds greater than 0.
        """
        if not 0.0 < timeout_s < TIMEOUT_MAX_S:
            raise ValueError(f"timeout_s={timeout_s} must be greater than 0: give seconds")
        CHECKS[type(message)](message)
        runtime = self._runtime
        loop = runtime.loop
        pending = LocalAsk(loop.create_future(), answer_schema(type(message)))
        timer = loop.call_later(timeout_s, pending.expire, self, timeout_s)
        try:
            delivery = Delivery(message, None, pending, self.path, self.uid)
            cell = self._cell
            if cell is None:
                runtime.send(self, delivery)
            else:
                cell.put(delivery)
            await pending.future
        finally:
            timer.cancel()
            if pending.corr:
                runtime.remote.forget(pending)
        if pending.error is not None:
            raise pending.error
        return cast(T, pending.value)

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
