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
import contextlib
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from gossip.membership import NodeId
from node.actor import Terminated
from node.ask import Asker, LocalAsk, RemoteAsk
from node.codec import (
    DEFINE_SENDER,
    DEFINE_TAG,
    DEFINE_TARGET,
    SHORT_ASK,
    SHORT_REPLY,
    SHORT_TELL,
    Codec,
    Envelope,
    Kind,
    envelope_of,
    is_path,
    message_from,
    message_parts,
    name_to_travel,
    unpackable,
)
from node.environment import DataLink, LinkMemory
from node.errors import (
    ActorFailedError,
    AuthorityLostError,
    DeadActorError,
    LinkFullError,
    MailboxFullError,
    MessageError,
    TenureError,
    UnhandledMessageError,
)
from node.events import Unreadable, Why
from node.mailbox import Delivery
from node.messages import message_class, wire_name
from node.names import NAMES_MAX, Names, Tag
from node.ref import ActorRef
from node.schema import (
    ANSWERS,
    CHECKS,
    LARGE_BYTES_MIN,
    Schema,
    ValueSchema,
    answer_schema,
    schema_of,
)
from node.streams import PIECE_BYTES_MAX, StreamError, only_piece
from node.supervision import StopCause, StopReason

if TYPE_CHECKING:
    from node.cell import Cell
    from node.runtime import Runtime

ASKS_MAX = 65_536
ASKS_TOGETHER, ANSWERS_TOGETHER = 32, 32  # from so many on they need not wait for the turn's end
WATCHES_MAX = 65_536  # per node, each way
SENDS_TOGETHER = 32  # by `send`, before other tasks have their turn
ENDS_MAX = 16_384  # per node: what it is to be told of ends and has not confirmed
ENDS_RETRY_S = 2.0
AT_ONCE = 256  # so many are sent again together, the next ones a little later
NEXT_S = 0.05
TEMP = "/temp"  # where answers go: to no actor, but to the ask with this corr

# What is not known here means dead.
_FAILED, _UNHANDLED, _DEAD, _MAILBOX_FULL, _AUTHORITY_LOST = 1, 2, 3, 4, 5
_TOLD, _ASKED, _ANSWERED = object(), object(), object()  # what kind of thing a queued tuple is
_TAG_LENGTH_MAX = 128
_Target = tuple[str, int]
_Watch = tuple[ActorRef[Any], int]  # by which ref, and its number


class _KnownTarget:
    """A target that a peer has defined."""

    __slots__ = ("path", "uid")

    def __init__(self, path: str, uid: int) -> None:
        self.path = path
        self.uid = uid


class _KnownTag:
    """A type tag that a peer has defined; without `unpack` it is unknown here."""

    __slots__ = ("cls", "name", "unpack")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cls = message_class(name)
        self.unpack: Callable[[Any], object] | None = None
        if self.cls is not None:
            try:
                self.unpack = schema_of(self.cls).unpack
            except MessageError:
                self.cls = None


class Remote:
    """Everything this process has open with other nodes.

    `data_link(node)` is the way to a node, None when there is none; without it nothing leaves.
    """

    def __init__(
        self,
        runtime: Runtime,
        data_link: Callable[[NodeId], DataLink | None] | None,
        refused: Callable[[str, str], None],
        codec: Codec,
    ) -> None:
        self._runtime = runtime
        self._data_link = _nowhere if data_link is None else data_link
        self._refused = refused
        self._codec = codec
        # What is larger takes the general form, which says so when it is too large to travel.
        self._short_bytes_max = min(PIECE_BYTES_MAX, codec.envelope_bytes_max)
        self._links: dict[NodeId, DataLink] = {}
        self._sent_count = 0
        self._corr = 0
        self._asks: dict[int, LocalAsk] = {}
        # node → what we watch there → (who of us watches, by which ref)
        self._watched: dict[NodeId, dict[_Target, dict[Cell, _Watch]]] = {}
        # node → number of its watch → the news of an end that it has not confirmed
        self._ends: dict[NodeId, dict[int, Envelope]] = {}
        self._ends_retry: asyncio.TimerHandle | None = None
        # node → who there watches which of our cells
        self._watchers: dict[NodeId, dict[tuple[Cell, ActorRef[Any], int], None]] = {}
        self._is_closed = False

    # Out

    def tell(self, ref: ActorRef[Any], message: object, sender: ActorRef[Any] | None) -> None:
        """Tell an actor of another node. Raises `MessageError` when it cannot be encoded."""
        link = ref.link
        if link is None or not link.takes_short:
            link = self._short_way(ref)
            if link is None:
                CHECKS[type(message)](message)
                self.send(ref.node, Delivery(message, sender, None, ref.path, ref.uid))
                return
        names, codec = link.names, self._codec
        assert names is not None
        tag = names.tags.get(type(message))
        if ref.names is not names or tag is None:
            names, tag = self._define(link, ref, type(message))
        body = tag.pack(message)
        try:
            if sender is None:
                payload = codec.pack((SHORT_TELL, ref.target, tag.number, body))
            else:
                by = self._sender_number(names, sender)
                payload = codec.pack((SHORT_TELL, ref.target, tag.number, body, by))
        except (TypeError, ValueError, OverflowError) as error:
            codec.take_parts()
            raise unpackable(name_to_travel(type(message)), error) from error
        if codec.taken or len(payload) > self._short_bytes_max:
            codec.check_size(name_to_travel(type(message)), payload)
            parts = codec.take_parts()
            if (
                len(parts) == 1
                and len(payload) < LARGE_BYTES_MIN
                and len(parts[0]) <= PIECE_BYTES_MAX
            ):
                # It leaves in its place, so it may define numbers and use them.
                if names.fresh:
                    payload = _with_definitions(names, payload)
                piece = only_piece(payload, parts[0])
                assert piece is not None
                link.send_piece(piece, (_TOLD, ref, message, sender))
                return
            name = name_to_travel(type(message))
            whole = codec.encode(Envelope(Kind.TELL, ref.path, ref.uid, sender, 0, name, body, 0))
            item = (_TOLD, ref, message, sender)
            link.send_large(whole, codec.take_parts(), item, ref.path)
            return
        if names.fresh:
            payload = _with_definitions(names, payload)
        link.send_short(payload, (_TOLD, ref, message, sender))

    def ask(self, ref: ActorRef[Any], message: object, ask: LocalAsk) -> None:
        """Ask an actor of another node. Raises `MessageError` when it cannot be encoded."""
        link, asks = ref.link, self._asks
        if link is None or not link.takes_short or len(asks) >= ASKS_MAX:
            link = self._short_way(ref)
            if link is None or len(asks) >= ASKS_MAX:
                CHECKS[type(message)](message)
                self.send(ref.node, Delivery(message, None, ask, ref.path, ref.uid))
                return
        names, codec = link.names, self._codec
        assert names is not None
        tag = names.tags.get(type(message))
        if ref.names is not names or tag is None:
            names, tag = self._define(link, ref, type(message))
        self._corr = corr = self._corr + 1
        try:
            payload = codec.pack((SHORT_ASK, ref.target, tag.number, tag.pack(message), corr))
        except (TypeError, ValueError, OverflowError) as error:
            codec.take_parts()
            raise unpackable(name_to_travel(type(message)), error) from error
        if codec.taken or len(payload) > self._short_bytes_max:
            codec.take_parts()
            self.send(ref.node, Delivery(message, None, ask, ref.path, ref.uid))
            return
        if names.fresh:
            payload = _with_definitions(names, payload)
        ask.corr, ask.node = corr, ref.node
        asks[corr] = ask
        link.send_short(payload, (_ASKED, ref, message, ask))
        link.urgent_count = count = link.urgent_count + 1
        # In quarters, so that both ends work at the same time.
        if count >= ASKS_TOGETHER and count * 4 >= len(asks):
            link.hurry()

    def _short_way(self, ref: ActorRef[Any]) -> DataLink | None:
        """The link that takes short forms for this ref, remembered in it; None: none does now."""
        link = ref.link = self._link(ref.node)
        return link if link is not None and link.takes_short else None

    def _link(self, node: NodeId) -> DataLink | None:
        """The way to a node, remembered until it ends."""
        link = self._links.get(node)
        if link is None or link.is_ended:
            link = self._data_link(node)
            if link is None:
                self._links.pop(node, None)
            else:
                self._links[node] = link
        return link

    def send(self, node: NodeId, delivery: Delivery) -> None:
        """Send a message to another node. Raises `MessageError` when it cannot be encoded."""
        link = self._link(node)
        asker = delivery.asker
        if isinstance(asker, LocalAsk):
            if link is not None and not link.is_full and len(self._asks) >= ASKS_MAX:
                self._runtime.dead_letter(
                    delivery, f"{node.address}{delivery.path}", Why.TOO_MANY_ASKS
                )
                return
            self._corr += 1
        kind, corr, sender = Kind.ASK, self._corr, delivery.sender
        if asker is None:
            kind, corr = Kind.TELL, 0
        elif isinstance(asker, RemoteAsk):
            corr, sender = asker.corr, self._answers_to(asker.node)
        else:
            sender = self._answers_to(None)
        tag, body = message_parts(delivery.message, large=_takes_large(link))
        envelope = Envelope(
            kind, delivery.path, delivery.uid, sender, corr, tag, body, delivery.hops
        )
        payload = self._codec.encode(envelope)
        if link is None or link.is_full:
            self._codec.take_parts()
            self._unsent(node, delivery, link)
            return
        if isinstance(asker, RemoteAsk):
            asker.hand_on()
            # It is ours again if it does not leave.
            delivery.asker = RemoteAsk(self, asker.node, asker.corr, asker.cls)
        elif asker is not None:
            asker.corr, asker.node = corr, node
            self._asks[corr] = asker
        self._transmit(link, payload, delivery, delivery.path)

    def sent_enough(self) -> bool:
        """Whether a sender that never waits should let the loop go round once."""
        self._sent_count += 1
        return self._sent_count % SENDS_TOGETHER == 0

    async def room(self, node: NodeId) -> None:
        """Wait until messages to a node are taken again; at once when there is no way to it."""
        link = self._link(node)
        if link is not None:
            await link.room()

    def _define(self, link: DataLink, ref: ActorRef[Any], cls: type) -> tuple[Names, Tag]:
        """The numbers of a ref and a class on a link; one of them at least may be new."""
        name = name_to_travel(cls)
        schema: Schema[Any] = schema_of(cls)
        names = link.names
        if names is None or names.is_full:
            names = link.names = Names()
        if ref.names is not names:
            target = names.targets.get((ref.path, ref.uid))
            if target is None:
                target = names.targets[(ref.path, ref.uid)] = names.take_number()
                names.fresh.append(self._codec.pack((DEFINE_TARGET, target, ref.path, ref.uid)))
            ref.names, ref.target = names, target
        tag = names.tags.get(cls)
        if tag is None:
            tag = names.tags[cls] = Tag(names.take_number(), schema.check_and_pack)
            names.fresh.append(self._codec.pack((DEFINE_TAG, tag.number, name)))
        return names, tag

    def _sender_number(self, names: Names, sender: ActorRef[Any]) -> int | ActorRef[Any]:
        """The number of an actor of this process; others travel as they are."""
        if not sender.is_local:
            return sender
        key = (sender.path, sender.uid)
        number = names.senders.get(key)
        if number is None:
            if names.is_full:
                return sender  # the table is renewed by the next message
            number = names.senders[key] = names.take_number()
            names.fresh.append(self._codec.pack((DEFINE_SENDER, number, sender)))
        return number

    def send_reply(self, node: NodeId, corr: int, cls: type, value: object) -> None:
        """Answer an ask of class `cls`. Raises `MessageError` when the value does not fit."""
        schema = ANSWERS[cls]
        link = self._links.get(node) or self._link(node)
        if type(value) is schema.as_is and link is not None and link.takes_short:
            try:
                payload = self._codec.pack((SHORT_REPLY, corr, value))
            except (TypeError, ValueError, OverflowError) as error:
                raise unpackable("answer", error) from error
            if len(payload) < LARGE_BYTES_MIN and len(payload) <= self._short_bytes_max:
                link.send_short(payload, (_ANSWERED, value))
                link.urgent_count = count = link.urgent_count + 1
                if count >= ANSWERS_TOGETHER:
                    link.hurry()
                return
        tag = ""
        if schema.takes_any and wire_name(type(value)) is not None:
            schema_of(type(value)).check(value)
            tag, body = message_parts(value, large=_takes_large(link))
        else:
            schema.check(value)
            if link is not None and self._send_short_reply(link, corr, schema, value):
                return
            body = [schema.pack_with_large(value) if _takes_large(link) else schema.pack(value)]
        envelope = Envelope(Kind.REPLY, TEMP, 0, None, corr, tag, body, 0)
        self._post(node, envelope, (_ANSWERED, value))

    def _send_short_reply(
        self, link: DataLink, corr: int, schema: ValueSchema, value: object
    ) -> bool:
        """The usual case of an answer; False when it needs the general form."""
        if not link.takes_short:
            return False
        codec = self._codec
        try:
            payload = codec.pack((SHORT_REPLY, corr, schema.pack_with_large(value)))
        except (TypeError, ValueError, OverflowError) as error:
            codec.take_parts()
            raise unpackable("answer", error) from error
        if codec.taken or len(payload) > self._short_bytes_max:
            codec.take_parts()
            return False
        link.send_short(payload, (_ANSWERED, value))
        return True

    def send_failure(self, node: NodeId, corr: int, error: TenureError) -> None:
        """Fail an ask."""
        if isinstance(error, ActorFailedError):
            body = [_FAILED, error.type_name, _printable(error.text)]
        else:
            code = _UNHANDLED if isinstance(error, UnhandledMessageError) else _DEAD
            if isinstance(error, MailboxFullError):
                code = _MAILBOX_FULL
            elif isinstance(error, AuthorityLostError):
                code = _AUTHORITY_LOST
            body = [code, "", _printable(str(error))]
        self._post(node, Envelope(Kind.FAIL, TEMP, 0, None, corr, "", body, 0))

    def _answers_to(self, node: NodeId | None) -> ActorRef[Any]:
        return ActorRef(self._runtime, node, TEMP, 0)

    def _post(self, node: NodeId, envelope: Envelope, item: object = None) -> None:
        """Send an envelope that others wait for; `item` is what is lost when it does not leave."""
        payload = self._codec.encode(envelope)
        link = self._link(node)
        if link is None or not link.takes_answers:
            self._codec.take_parts()
            self.dropped(node, item or envelope)
        else:
            self._transmit(link, payload, item or envelope, envelope.path)

    def _transmit(self, link: DataLink, payload: bytes, item: object, path: str) -> None:
        """Queue what was encoded in general form. Answers are no part of any order."""
        parts = self._codec.take_parts() if self._codec.taken else ()
        if link.names is not None and (parts or len(payload) > PIECE_BYTES_MAX):
            self._corr += 1  # any number of its own: nothing waits for such an answer
            key = f"{TEMP}/{self._corr}" if path == TEMP else path
            link.send_large(payload, parts, item, key)
        else:
            link.send(payload, item, path)

    def forget(self, ask: LocalAsk) -> None:
        """The asker waits no longer."""
        self._asks.pop(ask.corr, None)

    # In

    def frame(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """The envelopes of a data frame on a connection of `sender`. Never raises."""
        cells, unpackers, asks = memory.cells, memory.unpackers, self._asks
        last: Cell | None = None  # messages to one actor go into its mailbox together
        batch: list[object] = []
        for raw in self._codec.values(frame, self._refused):
            length = len(raw) if type(raw) is list else 0
            # The usual case first: a message is told to an actor that is there.
            if length == 4 and raw[0] == SHORT_TELL:
                try:
                    cell, unpack = cells[raw[1]], unpackers[raw[2]]
                    message = unpack(raw[3])
                except (KeyError, TypeError, MessageError):
                    pass  # not defined, not known, or not readable: that is told below
                else:
                    if cell is last:
                        batch.append(message)
                        continue
                    if not cell.closed:
                        if last is not None:
                            last.put_all(batch)
                        last, batch = cell, [message]
                        continue
            if last is not None:
                last.put_all(batch)
                last, batch = None, []
            if length == 3 and raw[0] == SHORT_REPLY:
                corr, packed = raw[1], raw[2]
                ask = asks.pop(corr, None) if type(corr) is int else None
                if ask is None:
                    self._runtime.count("late answers")
                    continue
                ask.corr = 0
                if type(packed) is ask.schema.as_is:
                    ask.complete(packed)
                else:
                    self._complete(ask, packed)
                continue
            if length == 5 and raw[0] == SHORT_ASK and self._short_ask(sender, raw, memory):
                continue
            try:
                self._take(sender, raw, memory)
            except MessageError as error:
                self._refused("bad envelope", str(error))
        if last is not None:
            last.put_all(batch)

    def _short_ask(self, node: NodeId, raw: list[Any], memory: LinkMemory) -> bool:
        """The usual case of an ask: its actor is there, and everything is known and readable."""
        try:
            cell, unpack, target = (
                memory.cells[raw[1]],
                memory.unpackers[raw[2]],
                memory.names[raw[1]],
            )
            message = unpack(raw[3])
        except (KeyError, TypeError, MessageError):
            return False
        corr = raw[4]
        if cell.closed or type(corr) is not int or corr < 0 or type(target) is not _KnownTarget:
            return False
        asker = RemoteAsk(self, node, corr, type(message))
        cell.put(Delivery(message, None, asker, target.path, target.uid))
        return True

    def skip(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """Take only the definitions of a frame. Never raises."""
        self._skip(sender, self._codec.values(frame, _unheard), memory)

    def _skip(self, sender: NodeId, values: list[Any], memory: LinkMemory) -> None:
        for raw in values:
            kind = raw[0] if type(raw) is list and len(raw) >= 3 else None
            if type(kind) is int and kind in (DEFINE_TARGET, DEFINE_TAG, DEFINE_SENDER):
                with contextlib.suppress(MessageError):
                    self._defined(sender, kind, raw[1:], memory)

    def piece(
        self,
        sender: NodeId,
        header: bytes | memoryview,
        data: memoryview,
        memory: LinkMemory,
        *,
        only_names: bool = False,
    ) -> None:
        """A piece of a large message on a connection of `sender`; of one that is refused only the
        definitions are taken. Never raises."""
        try:
            whole = memory.streams.add(header, data)
        except StreamError as error:
            self._refused("bad piece", str(error))
            return
        if whole is None:
            return
        refused = _unheard if only_names else self._refused
        values = self._codec.values_of_large(whole.envelope, whole.parts, refused)
        if only_names:
            self._skip(sender, values, memory)
            return
        for raw in values:
            try:
                self._take(sender, raw, memory)
            except MessageError as error:
                self._refused("bad envelope", str(error))

    def _take(self, node: NodeId, raw: object, memory: LinkMemory) -> None:
        """One value of a frame, whatever it is. Raises `MessageError` for what is none of ours."""
        kind = raw[0] if type(raw) is list and len(raw) >= 3 else None
        if type(kind) is not int or kind < SHORT_TELL:
            envelope = envelope_of(raw)
            if envelope is None:
                self._refused("no envelope", type(raw).__name__)
            else:
                self._envelope(node, envelope)
            return
        assert type(raw) is list
        if kind in (DEFINE_TARGET, DEFINE_TAG, DEFINE_SENDER):
            self._defined(node, kind, raw[1:], memory)
        elif kind in (SHORT_TELL, SHORT_ASK):
            self._short_message(node, kind, raw, memory)
        else:
            self._refused("no envelope", f"kind {kind}")

    def _defined(self, node: NodeId, kind: int, fields: list[object], memory: LinkMemory) -> None:
        known = memory.names
        number, value = fields[:2]
        if type(number) is not int or not 0 <= number < NAMES_MAX:
            raise MessageError("a definition without a number in range")
        for table in (known, memory.cells, memory.unpackers):
            table.pop(number, None)
        if kind == DEFINE_TARGET:
            uid = fields[2] if len(fields) > 2 else None
            if type(value) is not str or not is_path(value) or type(uid) is not int or uid < 0:
                raise MessageError("a definition of a target without path and uid")
            known[number] = _KnownTarget(value, uid)
        elif kind == DEFINE_TAG:
            if type(value) is not str or len(value) > _TAG_LENGTH_MAX:
                raise MessageError("a definition of a tag without a name")
            tag = known[number] = _KnownTag(value)
            if tag.unpack is not None:
                memory.unpackers[number] = tag.unpack
        else:
            if not isinstance(value, ActorRef) or value.node != node:
                raise MessageError("a definition of a sender on another node")
            known[number] = value

    def _short_message(
        self, node: NodeId, kind: int, raw: list[object], memory: LinkMemory
    ) -> None:
        known = memory.names
        if len(raw) < 4 + (kind == SHORT_ASK) or type(raw[1]) is not int or type(raw[2]) is not int:
            raise MessageError("a short message without target, tag and body")
        target, tag, body = known.get(raw[1]), known.get(raw[2]), raw[3]
        if type(target) is not _KnownTarget or type(tag) is not _KnownTag:
            raise MessageError("a short message whose target or tag is not defined")
        asker: Asker | None = None
        sender: ActorRef[Any] | None = None
        if kind == SHORT_ASK:
            corr = raw[4]
            if type(corr) is not int or corr < 0:
                raise MessageError("a short ask without a number")
            asker = RemoteAsk(self, node, corr, tag.cls or object)
        elif len(raw) > 4:
            by = known.get(raw[4]) if type(raw[4]) is int else raw[4]
            if not isinstance(by, ActorRef):
                raise MessageError("a short message whose sender is not defined")
            sender = by
        try:
            if tag.unpack is None:
                message = message_from(tag.name, body if type(body) is list else [])
            else:
                message = tag.unpack(body)
            if kind == SHORT_ASK:
                answer_schema(type(message))
        except MessageError as error:
            self._unreadable(node, target, tag.name, body, asker, error)
            return
        delivery = Delivery(message, sender, asker, target.path, target.uid)
        cell = memory.cells.get(raw[1])
        if cell is not None and not cell.closed:
            cell.put(delivery)
            return
        memory.cells.pop(raw[1], None)
        if self._runtime.path_handler(target.path, target.uid) is None:
            cell = self._runtime.cell_at(target.path, target.uid)
        else:
            cell = self._runtime.entity_at(target.path)
        if cell is not None:
            memory.cells[raw[1]] = cell
        self._runtime.deliver(delivery, node)

    def _complete(self, ask: LocalAsk, packed: object) -> None:
        """An answer that has to be unpacked."""
        try:
            ask.complete(ask.schema.unpack(packed))
        except MessageError as error:
            ask.fail(ActorFailedError("MessageError", str(error)))
            self._refused("unreadable answer", str(error))

    def _unreadable(
        self,
        node: NodeId,
        target: _KnownTarget,
        tag: str,
        body: object,
        asker: Asker | None,
        error: MessageError,
    ) -> None:
        self._refused("unreadable message", str(error))
        content = Unreadable(tag, body if type(body) is list else [body])
        self._runtime.dead_letter(
            Delivery(content, None, None, target.path), target.path, Why.UNREADABLE
        )
        if asker is not None:
            asker.fail(UnhandledMessageError(str(error)))

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

    def dropped(self, node: NodeId, item: object) -> None:
        """Something of ours was not sent: its ask fails, a watch ends, a message is dead."""
        if isinstance(item, Delivery):
            self._unsent(node, item)
        elif isinstance(item, Envelope):
            self._unsent_envelope(node, item)
        elif isinstance(item, tuple) and item[0] is _TOLD:
            _, ref, message, sender = item
            self._unsent(node, Delivery(message, sender, None, ref.path, ref.uid))
        elif isinstance(item, tuple) and item[0] is _ASKED:
            _, ref, message, ask = item
            self._unsent(node, Delivery(message, None, ask, ref.path, ref.uid))
        elif isinstance(item, tuple) and item[0] is _ANSWERED:
            self._runtime.dead_letter(
                Delivery(item[1], None, None, TEMP), f"{node.address}{TEMP}", Why.NOT_SENT
            )

    def _unsent(self, node: NodeId, delivery: Delivery, link: DataLink | None = None) -> None:
        """A message was not sent; `link` is the way it would have taken, if it did not set out."""
        asker = delivery.asker
        if isinstance(asker, LocalAsk):
            if asker.corr and self._asks.pop(asker.corr, None) is None:
                asker = None  # nobody waits any longer
            else:
                asker.corr = 0
        handler = self._runtime.return_handler(delivery.path, delivery.uid)
        if handler is not None and not self._is_closed:
            hops = max(0, delivery.hops - 1)
            back = Delivery(delivery.message, delivery.sender, asker, delivery.path, 0, hops)
            handler(node, back)
            return
        recipient = f"{node.address}{delivery.path}"
        is_busy = link is not None and link.is_busy
        self._runtime.dead_letter(
            Delivery(delivery.message, delivery.sender, None, delivery.path),
            recipient,
            Why.LINK_FULL if is_busy else Why.NOT_SENT,
        )
        if asker is None:
            return
        if is_busy:
            asker.fail(
                LinkFullError(
                    f"{recipient}: too much waits for {node.address}, so this was not sent: send "
                    f"less, or use await ref.send(…), which waits for room"
                )
            )
        elif self._data_link(node) is None and not self._is_closed:
            asker.fail(DeadActorError(f"{recipient}: no member is known at {node.address}"))
        else:
            asker.fail(
                DeadActorError(f"{recipient} cannot be reached: the message could not be sent")
            )

    def _unsent_envelope(self, node: NodeId, envelope: Envelope) -> None:
        kind = envelope.kind
        if kind is Kind.WATCH and not envelope.hops:
            self._end_watches(node, (envelope.path, envelope.uid), _unreachable(node))
        elif kind is Kind.FAIL:
            lost = Unreadable("fail", envelope.body)
            self._runtime.dead_letter(
                Delivery(lost, None, None, TEMP), f"{node.address}{TEMP}", Why.NOT_SENT
            )
        # A watch that was sent again is so once more, as is an unconfirmed end.

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
        self._post(ref.node, _envelope(Kind.WATCH, ref.path, ref.uid, cell.ref, self._corr))

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
        self._post(ref.node, _envelope(Kind.UNWATCH, ref.path, ref.uid, cell.ref, watch[1]))

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
                self._post(node, _envelope(Kind.WATCH, *target, cell.ref, watch[1], hops=1))
        if len(watches) > AT_ONCE and not self._is_closed:
            self._runtime.loop.call_later(NEXT_S, self._watch_again, watches[AT_ONCE:])

    def _watch_asked(self, node: NodeId, envelope: Envelope) -> None:
        watcher = envelope.sender
        if watcher is None or watcher.node != node:
            self._refused("bad watch", f"from {node} for {watcher}")
            return
        number = envelope.corr
        if number in self._ends.get(node, {}):
            self._post(node, self._ends[node][number])
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
        self._post(node, envelope)
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
            self._post(node, envelope)

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
        self._post(node, _envelope(Kind.UNWATCH, path, uid, told, envelope.corr))

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
        for key in both:
            self._links.pop(key, None)
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
        self._data_link = _nowhere
        self._links.clear()
        self._ends.clear()
        if self._ends_retry is not None:
            self._ends_retry.cancel()
        asks, self._asks = list(self._asks.values()), {}
        for ask in asks:
            ask.fail(DeadActorError("this system has stopped"))


def _nowhere(_node: NodeId) -> None:
    """Without a network, and after the end."""


def _unheard(_reason: str, _detail: str) -> None:
    """A frame that is refused already."""


def _takes_large(link: DataLink | None) -> bool:
    return link is not None and link.names is not None


def _with_definitions(names: Names, payload: bytes) -> bytes:
    fresh, names.fresh = names.fresh, []
    return b"".join([*fresh, payload])


def _envelope(
    kind: Kind, path: str, uid: int, sender: ActorRef[Any], corr: int, hops: int = 0
) -> Envelope:
    return Envelope(kind, path, uid, sender, corr, "", [], hops)


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
    if code == _MAILBOX_FULL:
        return MailboxFullError(text)
    if code == _AUTHORITY_LOST:
        return AuthorityLostError(text)
    return UnhandledMessageError(text) if code == _UNHANDLED else DeadActorError(text)


def _printable(text: str) -> str:
    """Error texts are foreign: cut, and without the lone surrogates that no wire carries."""
    return text[:2_000].encode("utf-8", "replace").decode("utf-8")
