"""The data lane seen from the actor runtime: messages, answers and death watch between nodes.

Decides: what each envelope leads to, which asks wait for which node, and who is told when an actor
or a node ends. Does not decide how frames travel (the transport) nor who is a member (gossip).
Owned by `node.runtime`; fed by the daemon through it. Never raises for what a peer sent.

Death watch outlasts links. Each watch has a number (`corr`) of the watcher's node. The news of an
end carries it, and is kept and sent again (slowly, and at once when the node can be reached again)
until the watcher's node confirms it by an UNWATCH of that number, or is removed. Watches are sent
again too when their node can be reached again, so one that was lost on the way is made good. What
comes twice is recognised by its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from gossip.membership import NodeId
from node.actor import Terminated
from node.ask import Asker, LocalAsk, RemoteAsk
from node.codec import Codec, Envelope, Kind, message_from, message_parts
from node.errors import (
    ActorFailedError,
    DeadActorError,
    MessageError,
    TenureError,
    UnhandledMessageError,
)
from node.events import Unreadable, Why
from node.mailbox import Delivery
from node.messages import wire_name
from node.ref import ActorRef
from node.schema import answer_schema, schema_of
from node.supervision import StopCause, StopReason

if TYPE_CHECKING:
    from node.cell import Cell
    from node.runtime import Runtime

ASKS_MAX = 65_536
WATCHES_MAX = 65_536  # per node, each way
ENDS_MAX = 16_384  # per node: what it is to be told of ends and has not confirmed
ENDS_RETRY_S = 2.0
AT_ONCE = 256  # so many are sent again together, the next ones a little later
NEXT_S = 0.05
TEMP = "/temp"  # where answers go: to no actor, but to the ask with this corr

_FAILED, _UNHANDLED, _DEAD = 1, 2, 3
_Target = tuple[str, int]
_Watch = tuple[ActorRef[Any], int]  # by which ref, and its number


class Remote:
    """Everything this process has open with other nodes."""

    def __init__(
        self,
        runtime: Runtime,
        send_data: Callable[[NodeId, bytes], None] | None,
        refused: Callable[[str, str], None],
        codec: Codec,
    ) -> None:
        self._runtime = runtime
        self._send_data = send_data
        self._refused = refused
        self._codec = codec
        self._is_closed = False
        self._corr = 0
        self._asks: dict[int, LocalAsk] = {}
        # node → what we watch there → (who of us watches, by which ref)
        self._watched: dict[NodeId, dict[_Target, dict[Cell, _Watch]]] = {}
        # node → number of its watch → the news of an end that it has not confirmed
        self._ends: dict[NodeId, dict[int, Envelope]] = {}
        self._ends_retry: asyncio.TimerHandle | None = None
        # node → who there watches which of our cells
        self._watchers: dict[NodeId, dict[tuple[Cell, ActorRef[Any], int], None]] = {}

    # Out

    def send(self, node: NodeId, delivery: Delivery) -> None:
        """Send a message to another node. Raises `MessageError` when it cannot be encoded."""
        tag, body = message_parts(delivery.message)
        asker = delivery.asker
        kind, corr, sender = Kind.ASK, 0, delivery.sender
        if asker is None:
            kind = Kind.TELL
        elif isinstance(asker, RemoteAsk):
            corr, sender = asker.corr, self._answers_to(asker.node)
        else:
            self._corr += 1
            corr, sender = self._corr, self._answers_to(None)
        payload = self._codec.encode(
            Envelope(kind, delivery.path, delivery.uid, sender, corr, tag, body, delivery.hops)
        )
        if isinstance(asker, RemoteAsk):
            asker.hand_on()
        elif asker is not None:
            if len(self._asks) >= ASKS_MAX:
                self._runtime.dead_letter(
                    delivery, f"{node.address}{delivery.path}", Why.TOO_MANY_ASKS
                )
                return
            asker.corr, asker.node = corr, node
            self._asks[corr] = asker
        self._transmit(node, payload)

    def send_reply(self, node: NodeId, corr: int, cls: type, value: object) -> None:
        """Answer an ask of class `cls`. Raises `MessageError` when the value does not fit."""
        schema = answer_schema(cls)
        if schema.takes_any and wire_name(type(value)) is not None:
            schema_of(type(value)).check(value)
            tag, body = message_parts(value)
        else:
            schema.check(value)
            tag, body = "", [schema.pack(value)]
        self._post(node, Kind.REPLY, TEMP, 0, None, corr, tag, body)

    def send_failure(self, node: NodeId, corr: int, error: TenureError) -> None:
        """Fail an ask."""
        if isinstance(error, ActorFailedError):
            body = [_FAILED, error.type_name, _printable(error.text)]
        else:
            code = _UNHANDLED if isinstance(error, UnhandledMessageError) else _DEAD
            body = [code, "", _printable(str(error))]
        self._post(node, Kind.FAIL, TEMP, 0, None, corr, "", body)

    def _answers_to(self, node: NodeId | None) -> ActorRef[Any]:
        return ActorRef(self._runtime, node, TEMP, 0)

    def _post(
        self,
        node: NodeId,
        kind: Kind,
        path: str,
        uid: int,
        sender: ActorRef[Any] | None,
        corr: int = 0,
        tag: str = "",
        body: list[Any] | None = None,
        hops: int = 0,
    ) -> None:
        payload = self._codec.encode(Envelope(kind, path, uid, sender, corr, tag, body or [], hops))
        self._transmit(node, payload)

    def _transmit(self, node: NodeId, payload: bytes) -> None:
        if self._send_data is None or self._is_closed:
            self.dropped(node, payload)
        else:
            self._send_data(node, payload)

    def forget(self, ask: LocalAsk) -> None:
        """The asker waits no longer."""
        self._asks.pop(ask.corr, None)

    # In

    def frame(self, sender: NodeId, frame: bytes | memoryview) -> None:
        """A frame of the data lane on a connection of `sender`. Never raises."""
        for envelope in self._codec.decode(frame, self._refused):
            try:
                self._envelope(sender, envelope)
            except MessageError as error:
                self._refused("bad envelope", str(error))

    def _envelope(self, sender: NodeId, envelope: Envelope) -> None:
        kind = envelope.kind
        if kind is Kind.TELL or kind is Kind.ASK:
            self._message(sender, envelope)
        elif kind is Kind.REPLY or kind is Kind.FAIL:
            self._answer(envelope)
        elif kind is Kind.WATCH:
            self._watch_asked(sender, envelope)
        elif kind is Kind.UNWATCH:
            self._unwatch_asked(sender, envelope)
        else:
            self._actor_ended(sender, envelope)

    def _message(self, node: NodeId, envelope: Envelope) -> None:
        sender = envelope.sender
        asker: Asker | None = None
        try:
            message = message_from(envelope.tag, envelope.body)
            if envelope.kind is Kind.ASK:
                answer_schema(type(message))
        except MessageError as error:
            self._refused("unreadable message", str(error))
            unreadable = Delivery(
                Unreadable(envelope.tag, envelope.body), sender, None, envelope.path
            )
            self._runtime.dead_letter(unreadable, envelope.path, Why.UNREADABLE)
            if envelope.kind is Kind.ASK:
                back_to = node if sender is None else sender.node
                self.send_failure(back_to, envelope.corr, UnhandledMessageError(str(error)))
            return
        if envelope.kind is Kind.ASK:
            asker, sender = self._asker(node, envelope, type(message)), None
        self._runtime.deliver(
            Delivery(message, sender, asker, envelope.path, envelope.uid, envelope.hops), node
        )

    def _asker(self, node: NodeId, envelope: Envelope, cls: type) -> Asker | None:
        """Who waits for the answer. Our own ask comes back when a former host of a singleton
        forwarded it and the singleton is here now, or when it could not be sent."""
        sender = envelope.sender
        if sender is not None and sender.is_local:
            return self._asks.pop(envelope.corr, None)
        return RemoteAsk(self, node if sender is None else sender.node, envelope.corr, cls)

    def _answer(self, envelope: Envelope) -> None:
        ask = self._asks.pop(envelope.corr, None)
        if ask is None:
            self._runtime.count("late answers")
            return
        try:
            if envelope.kind is Kind.FAIL:
                ask.fail(_failure(envelope.body))
            elif envelope.tag:
                ask.answer(message_from(envelope.tag, envelope.body))
            else:
                packed = envelope.body[0] if envelope.body else None
                ask.answer(ask.schema.unpack(packed))
        except MessageError as error:
            ask.fail(ActorFailedError("MessageError", str(error)))
            self._refused("unreadable answer", str(error))

    # What did not leave

    def dropped(self, node: NodeId, payload: bytes) -> None:
        """An envelope of ours was not sent: its ask fails, a watch ends, a message is dead."""
        for envelope in self._codec.decode(payload, self._refused):
            self._dropped_envelope(node, envelope)

    def _dropped_envelope(self, node: NodeId, envelope: Envelope) -> None:
        recipient = f"{node.address}{envelope.path}"
        kind = envelope.kind
        if kind is Kind.WATCH:
            if not envelope.hops:
                self._end_watches(node, (envelope.path, envelope.uid), _unreachable(node))
            return
        if kind is Kind.UNWATCH or kind is Kind.TERMINATED:
            return  # an unconfirmed end is sent again
        message: object = Unreadable(envelope.tag or kind.name.lower(), envelope.body)
        try:
            if envelope.tag:
                message = message_from(envelope.tag, envelope.body)
                if kind in (Kind.TELL, Kind.ASK) and self._give_back(node, envelope, message):
                    return
        except MessageError as error:
            self._refused("unreadable message", str(error))
        sender = None if kind is Kind.ASK else envelope.sender
        self._runtime.dead_letter(
            Delivery(message, sender, None, envelope.path), recipient, Why.NOT_SENT
        )
        if kind is not Kind.ASK:
            return
        unsent = DeadActorError(f"{recipient} cannot be reached: the message could not be sent")
        back_to = envelope.sender
        if back_to is not None and not back_to.is_local:
            self.send_failure(back_to.node, envelope.corr, unsent)
        else:
            ask = self._asks.pop(envelope.corr, None)
            if ask is not None:
                ask.fail(unsent)

    def _give_back(self, node: NodeId, envelope: Envelope, message: object) -> bool:
        """Hand a message that did not leave to whoever wants those of its path back."""
        handler = self._runtime.return_handler(envelope.path, envelope.uid)
        if handler is None or self._is_closed:
            return False
        sender, asker = envelope.sender, None
        if envelope.kind is Kind.ASK:
            asker, sender = self._asker(node, envelope, type(message)), None
        hops = max(0, envelope.hops - 1)
        handler(node, Delivery(message, sender, asker, envelope.path, 0, hops))
        return True

    # Death watch

    def watch(self, cell: Cell, ref: ActorRef[Any]) -> None:
        """Tell `cell` when the actor behind `ref`, on another node, ends."""
        watched = self._watched.setdefault(ref.node, {})
        if len(watched) >= WATCHES_MAX:
            self._runtime.count("refused watches")
            _tell_end(cell, ref, StopReason(StopCause.GONE, "too many watches on this node"))
            return
        self._corr += 1
        watched.setdefault((ref.path, ref.uid), {})[cell] = (ref, self._corr)
        self._post(ref.node, Kind.WATCH, ref.path, ref.uid, cell.ref, self._corr)

    def unwatch(self, cell: Cell, ref: ActorRef[Any]) -> None:
        """Do not tell it."""
        watched = self._watched.get(ref.node, {})
        watching = watched.get((ref.path, ref.uid), {})
        watch = watching.pop(cell, None)
        if watch is None:
            return
        if not watching:
            del watched[(ref.path, ref.uid)]
        if not watched:
            del self._watched[ref.node]
        self._post(ref.node, Kind.UNWATCH, ref.path, ref.uid, cell.ref, watch[1])

    def node_reachable(self, node: NodeId) -> None:
        """Send again what a lost link may have swallowed: unconfirmed ends, and watches."""
        self._send_ends_again(node)
        self._watch_again(
            [
                (key, target, cell)
                for key in (node, node._replace(uid=0))
                for target, watching in self._watched.get(key, {}).items()
                for cell in watching
            ]
        )

    def _watch_again(self, watches: list[tuple[NodeId, _Target, Cell]]) -> None:
        for node, target, cell in watches[:AT_ONCE]:
            watch = self._watched.get(node, {}).get(target, {}).get(cell)
            if watch is not None:
                self._post(node, Kind.WATCH, *target, cell.ref, watch[1], hops=1)
        if len(watches) > AT_ONCE and not self._is_closed:
            self._runtime.loop.call_later(NEXT_S, self._watch_again, watches[AT_ONCE:])

    def _watch_asked(self, node: NodeId, envelope: Envelope) -> None:
        watcher = envelope.sender
        if watcher is None or watcher.node != node:
            self._refused("bad watch", f"from {node} for {watcher}")
            return
        number = envelope.corr
        if number in self._ends.get(node, {}):
            self._transmit(node, self._codec.encode(self._ends[node][number]))
            return
        cell = self._runtime.cell_at(envelope.path, envelope.uid)
        watchers = self._watchers.setdefault(node, {})
        if cell is None or len(watchers) >= WATCHES_MAX:
            if not watchers:
                del self._watchers[node]
            if cell is None:
                reason = StopReason(StopCause.GONE, "there is no such actor")
            else:
                self._runtime.count("refused watches")
                reason = StopReason(StopCause.GONE, "too many watches from this node")
            self.send_terminated(watcher, envelope.path, envelope.uid, number, reason)
            return
        if cell.watchers is None:
            cell.watchers = {}
        cell.watchers[(watcher, envelope.uid)] = number
        watchers[(cell, watcher, envelope.uid)] = None

    def _unwatch_asked(self, node: NodeId, envelope: Envelope) -> None:
        """A watch is taken back, or the news of an end is confirmed."""
        ends = self._ends.get(node)
        if ends is not None and ends.pop(envelope.corr, None) is not None and not ends:
            del self._ends[node]
        cell = self._runtime.cell_at(envelope.path, envelope.uid)
        watcher = envelope.sender
        if cell is None or watcher is None or cell.watchers is None:
            return
        key = (watcher, envelope.uid)
        if cell.watchers.get(key) == envelope.corr:
            del cell.watchers[key]
            self.forget_watcher(cell, watcher, envelope.uid)

    def forget_watcher(self, cell: Cell, watcher: ActorRef[Any], uid: int) -> None:
        """That watcher on another node is told, or does not want to be."""
        watchers = self._watchers.get(watcher.node)
        if watchers is not None:
            watchers.pop((cell, watcher, uid), None)
            if not watchers:
                del self._watchers[watcher.node]

    def send_terminated(
        self, watcher: ActorRef[Any], path: str, uid: int, number: int, reason: StopReason
    ) -> None:
        """Tell a watcher on another node that the actor it knows as (path, uid) ended, until its
        node confirms that; `number` is that of its watch."""
        if self._is_closed:
            return
        node = watcher.node
        body = [path, uid, int(reason.cause), _printable(reason.detail)]
        envelope = Envelope(Kind.TERMINATED, watcher.path, watcher.uid, None, number, "", body, 0)
        ends = self._ends.setdefault(node, {})
        if len(ends) >= ENDS_MAX:
            del ends[next(iter(ends))]
            self._runtime.count("ends not told")
        ends[number] = envelope
        self._transmit(node, self._codec.encode(envelope))
        self._retry_ends_later()

    def _retry_ends_later(self) -> None:
        if self._ends_retry is None:
            self._ends_retry = self._runtime.loop.call_later(ENDS_RETRY_S, self._retry_ends)

    def _retry_ends(self) -> None:
        self._ends_retry = None
        for node in list(self._ends):
            self._send_ends_again(node)
        if self._ends:
            self._retry_ends_later()

    def _send_ends_again(self, node: NodeId) -> None:
        ends = self._ends.get(node, {})
        for number in list(islice(ends, AT_ONCE)):
            envelope = ends[number] = ends.pop(number)  # to the end: the others come next time
            self._transmit(node, self._codec.encode(envelope))

    def _actor_ended(self, node: NodeId, envelope: Envelope) -> None:
        body = envelope.body
        if [type(value) for value in body[:4]] != [str, int, int, str]:
            self._refused("bad envelope", "a termination without path, uid, cause and detail")
            return
        path, uid, code, detail = body[:4]
        cause = next((cause for cause in StopCause if cause == code), StopCause.GONE)
        watcher = self._runtime.cell_at(envelope.path, envelope.uid)
        if watcher is not None:
            ended = StopReason(cause, detail)
            self._end_watches(node, (path, uid), ended, only=watcher, number=envelope.corr)
        told: ActorRef[Any] = ActorRef(self._runtime, None, envelope.path, envelope.uid)
        self._post(node, Kind.UNWATCH, path, uid, told, envelope.corr)

    def _end_watches(
        self,
        node: NodeId,
        target: _Target,
        reason: StopReason,
        *,
        only: Cell | None = None,
        number: int | None = None,
    ) -> None:
        for key in (node, node._replace(uid=0)):  # a ref by address has no node uid
            watched = self._watched.get(key, {})
            watching = watched.get(target, {})
            for cell in list(watching) if only is None else [only]:
                watch = watching.get(cell)
                if watch is not None and number in (None, watch[1]):
                    del watching[cell]
                    _tell_end(cell, watch[0], reason)
            if target in watched and not watching:
                del watched[target]
            if key in self._watched and not watched:
                del self._watched[key]

    # Ends

    def node_removed(self, node: NodeId, *, left: bool = False) -> None:
        """Tell everybody who waits for something of this node, and forget it.

        `left` in order: it has answered, refused or passed on every ask that reached it, so those
        that were passed on are still answered by somebody else.
        """
        both = (node, node._replace(uid=0))
        error = DeadActorError(f"{node.address} is no longer a member")
        for corr in [corr for corr, ask in self._asks.items() if ask.node in both and not left]:
            self._asks.pop(corr).fail(error)
        reason = StopReason(StopCause.GONE, f"{node.address} is no longer a member")
        for key in both:
            for target in list(self._watched.get(key, {})):
                self._end_watches(node, target, reason)
        self._ends.pop(node, None)
        for cell, watcher, uid in self._watchers.pop(node, {}):
            if cell.watchers is not None:
                cell.watchers.pop((watcher, uid), None)

    def close(self) -> None:
        """Send nothing any more, and fail every ask that waits for another node."""
        self._is_closed = True
        self._ends.clear()
        if self._ends_retry is not None:
            self._ends_retry.cancel()
        asks, self._asks = list(self._asks.values()), {}
        for ask in asks:
            ask.fail(DeadActorError("this system has stopped"))


def _tell_end(cell: Cell, ref: ActorRef[Any], reason: StopReason) -> None:
    cell.push(Delivery(Terminated(ref, reason), None, None, cell.path))


def _unreachable(node: NodeId) -> StopReason:
    return StopReason(StopCause.GONE, f"{node.address} cannot be reached")


def _failure(body: list[Any]) -> TenureError:
    if [type(value) for value in body[:3]] != [int, str, str]:
        raise MessageError("a failure without code, type and text")
    code, type_name, text = body[:3]
    if code == _FAILED:
        return ActorFailedError(type_name, text)
    return UnhandledMessageError(text) if code == _UNHANDLED else DeadActorError(text)


def _printable(text: str) -> str:
    """Error texts are foreign: cut, and without the lone surrogates that no wire carries."""
    return text[:2_000].encode("utf-8", "replace").decode("utf-8")
