"""Data-lane envelopes to msgpack and back.

Decides: the layout of an envelope, how refs travel, and what is too large or too strange to read.
Does not decide what an envelope leads to: that is `node.remote`, its only caller.

A frame is one or more envelopes, one after the other. The general form, all that version 1 of the
protocol knows, stands for itself: `[kind, path, uid, sender, corr, tag, body, hops]`, with the
path and the type tag as text; what a later version appends is ignored. A ref travels as extension
1: `[host, port, node uid, path, actor uid]`.

Version 2 adds short forms, whose targets, tags and senders are numbers that the sender defined
before on the same connection (`node.names`):

- `[16, target, tag, body]` or `[16, target, tag, body, sender]`: a message is told;
- `[17, target, tag, body, corr]`: an ask; the answer goes back to the node it came from;
- `[18, corr, value]`: an answer that is a plain value;
- `[19, number, path, uid]`, `[20, number, tag]`, `[21, number, ref]`: definitions of a target, a
  tag and a sender; a number may be defined anew.

A large message (`node.streams`) has the general form; extension 2 stands in it for its n-th part.

Budget: `bench messaging`, rows remote_*; one reused packer and unpacker per node; a told message of
100 B costs its sender 0.9 µs in all, and its reader 0.8 µs with the handler.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from gossip.membership import NodeId
from node.errors import MessageError
from node.messages import message_class, wire_name
from node.ref import ActorRef
from node.schema import Large, schema_of

REF_CODE = 1
PART_CODE = 2
PATH_MAX = 1_024
HEADS_BYTES_MAX = 4_096  # what a frame may hold beside an envelope
ENVELOPE_BYTES_MAX = 8 * 1024 * 1024 - HEADS_BYTES_MAX
ITEMS_MAX = 1_048_576  # per list or map: a list header alone makes the reader allocate its length
HOPS_MAX = 255


class Kind(enum.IntEnum):
    """What an envelope is."""

    TELL = 0
    ASK = 1
    REPLY = 2
    FAIL = 3
    WATCH = 4
    UNWATCH = 5
    TERMINATED = 6


SHORT_TELL, SHORT_ASK, SHORT_REPLY = 16, 17, 18
DEFINE_TARGET, DEFINE_TAG, DEFINE_SENDER = 19, 20, 21


class Envelope(NamedTuple):
    """One message of the data lane. `corr` ties an answer to its ask; `sender` of an ask is where
    the answer goes (None: back over the connection)."""

    kind: Kind
    path: str
    uid: int
    sender: ActorRef[Any] | None
    corr: int
    tag: str
    body: list[Any]
    hops: int


# Frames from this size on hold many envelopes, or few large ones.
_MANY_BYTES = 2048
_END = b"\xd4\x7f\x00"
_END_VALUE = msgpack.ExtType(0x7F, b"\0")

_KINDS = {int(kind): kind for kind in Kind}
_RefMaker = Callable[[NodeId, str, int], ActorRef[Any]]


class Codec:
    """Reads and writes envelopes of one node. `make_ref` turns a read address into a ref."""

    def __init__(
        self,
        make_ref: _RefMaker,
        *,
        envelope_bytes_max: int = ENVELOPE_BYTES_MAX,
        frame_bytes_max: int = 4 * ENVELOPE_BYTES_MAX,
    ) -> None:
        self._make_ref = make_ref
        self.envelope_bytes_max = envelope_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._packer = msgpack.Packer(default=self._pack_special, use_bin_type=True)
        self.pack: Callable[[object], bytes] = self._packer.pack
        self.taken: list[bytes] = []  # large values that `pack` left out
        self._parts: tuple[bytes, ...] = ()  # of the large message being read
        self._unpacker = self._new_unpacker()

    def take_parts(self) -> list[bytes]:
        """The large values that `pack` left out since the last call, in the order of their
        numbers; without it `pack` goes on counting."""
        taken, self.taken = self.taken, []
        return taken

    def encode(self, envelope: Envelope) -> bytes:
        """The bytes of an envelope in the general form. Raises `MessageError` when it cannot be
        encoded or is larger than `envelope_bytes_max`, its parts included."""
        try:
            payload = self.pack(envelope)
        except (TypeError, ValueError, OverflowError) as error:
            self.taken = []
            raise unpackable(envelope.tag or "answer", error) from error
        self.check_size(envelope.tag or "answer", payload)
        return payload

    def check_size(self, tag: str, payload: bytes) -> None:
        """Raises `MessageError` when what was packed is too large to travel."""
        size = len(payload)
        if self.taken:
            size += sum(map(len, self.taken))
        if size > self.envelope_bytes_max:
            self.taken = []
            raise MessageError(
                f"{tag}: {size} bytes encoded, at most {self.envelope_bytes_max} may travel; send "
                f"it in parts"
            )

    def decode(
        self, frame: bytes | memoryview, refused: Callable[[str, str], None]
    ) -> list[Envelope]:
        """The envelopes of general form in a frame, up to the first byte that is not msgpack.

        What is none is left out; `refused(reason, detail)` is told. Never raises.
        """
        found: list[Envelope] = []
        for raw in self.values(frame, refused):
            envelope = envelope_of(raw)
            if envelope is None:
                refused("no envelope", f"{type(raw).__name__}")
            else:
                found.append(envelope)
        return found

    def values(self, frame: bytes | memoryview, refused: Callable[[str, str], None]) -> list[Any]:
        """The msgpack values of a frame up to the first fault, which `refused` is told of."""
        size = len(frame)
        if size > self._frame_bytes_max:
            refused("frame too large", f"{size} bytes")
            return []
        if size >= _MANY_BYTES:
            found = self._many_values(frame)
            if found is not None:
                return found
        found = []
        unpacker = self._unpacker
        before = end = unpacker.tell()
        try:
            unpacker.feed(frame)
            for raw in unpacker:
                found.append(raw)
                end = unpacker.tell()  # here: after the last one it counts what is incomplete
            is_whole, detail = end - before == size, "truncated"
        except (ValueError, TypeError, MemoryError, RecursionError, msgpack.UnpackException) as e:
            is_whole, detail = False, f"{type(e).__name__}: {e}"
        if not is_whole:
            self._unpacker = self._new_unpacker()
            refused("bad frame", detail)
        return found

    def _many_values(self, frame: bytes | memoryview) -> list[Any] | None:
        """The values of a large frame in one step; None when something is wrong with it.

        The unpacker is thrown away, for it cannot be asked whether it stopped within a value. What
        is put behind the frame tells: it comes out last unless a value before it is incomplete.
        """
        unpacker = self._new_unpacker()
        try:
            unpacker.feed(frame)
            unpacker.feed(_END)
            found = list(unpacker)
        except (ValueError, TypeError, MemoryError, RecursionError, msgpack.UnpackException):
            return None
        return found if found and found.pop() == _END_VALUE else None

    def values_of_large(
        self, envelope: bytes, parts: tuple[bytes, ...], refused: Callable[[str, str], None]
    ) -> list[Any]:
        """The same for the envelope of a large message and its parts."""
        self._parts = parts
        try:
            return self.values(envelope, refused)
        finally:
            self._parts = ()

    def _new_unpacker(self) -> Any:
        return msgpack.Unpacker(
            raw=False,
            strict_map_key=False,
            ext_hook=self._read_extension,
            max_buffer_size=self._frame_bytes_max,
            max_array_len=ITEMS_MAX,
            max_map_len=ITEMS_MAX,
            read_size=min(65_536, self._frame_bytes_max),
        )

    def _read_extension(self, code: int, data: bytes) -> object:
        """A ref; anything else stays an `ExtType`, which no field accepts."""
        unknown = msgpack.ExtType(code, data)
        if code == PART_CODE:
            index = int.from_bytes(data[:4], "big")
            return self._parts[index] if index < len(self._parts) else unknown
        if code != REF_CODE or len(data) > 2 * PATH_MAX:
            return unknown
        try:
            fields = msgpack.unpackb(data, raw=False)
        except (ValueError, TypeError, msgpack.UnpackException):
            return unknown
        if type(fields) is not list or [type(field) for field in fields] != [
            str,
            int,
            int,
            str,
            int,
        ]:
            return unknown
        host, port, node_uid, path, uid = fields
        if not (host and 0 <= port < 65_536 and is_path(path) and node_uid >= 0 and uid >= 0):
            return unknown
        return self._make_ref(NodeId(host, port, node_uid), path, uid)

    def _pack_special(self, value: object) -> object:
        if isinstance(value, ActorRef):
            node = value.node
            fields = [node.host, node.port, node.uid, value.path, value.uid]
            return msgpack.ExtType(REF_CODE, msgpack.packb(fields))
        if isinstance(value, Large):
            self.taken.append(value.data)
            return msgpack.ExtType(PART_CODE, (len(self.taken) - 1).to_bytes(4, "big"))
        raise TypeError(f"{type(value).__name__} is no plain value")


def unpackable(tag: str, error: Exception) -> MessageError:
    """What a sender is told of a message that msgpack refuses."""
    return MessageError(f"{tag}: cannot be encoded ({error})")


def message_parts(message: object, *, large: bool = False) -> tuple[str, list[Any]]:
    """Wire name and packed fields of a checked message; `large` takes large bytes out of them.
    Raises `MessageError` without a name."""
    cls = type(message)
    name = name_to_travel(cls)
    schema = schema_of(cls)
    return name, schema.pack_with_large(message) if large else schema.pack(message)


def name_to_travel(cls: type) -> str:
    """The wire name of a class. Raises `MessageError` when it has none."""
    name = wire_name(cls)
    if name is None:
        raise MessageError(
            f"{cls.__qualname__} is no registered message and cannot leave the process; make it a "
            f'class decorated with @message("some.name")'
        )
    return name


def message_from(tag: str, body: list[Any]) -> object:
    """The message with this wire name. Raises `MessageError`: unknown name, wrong fields."""
    cls = message_class(tag)
    if cls is None:
        raise MessageError(f"no message type {tag!r} is known here; import its module on this node")
    return schema_of(cls).unpack(body)


def is_path(path: str) -> bool:
    """What an actor's path may look like."""
    return path.startswith("/") and len(path) <= PATH_MAX


def envelope_of(raw: object) -> Envelope | None:
    """The envelope in general form that a value of a frame is; None when it is none."""
    if type(raw) is not list or len(raw) < 8:
        return None
    kind, path, uid, sender, corr, tag, body, hops = raw[:8]
    if type(kind) is not int or type(uid) is not int or type(corr) is not int:
        return None
    if type(path) is not str or type(tag) is not str or type(body) is not list:
        return None
    known = _KINDS.get(kind)
    if known is None or not is_path(path) or uid < 0 or corr < 0:
        return None
    if type(hops) is not int or not 0 <= hops <= HOPS_MAX:
        return None
    if sender is not None and not isinstance(sender, ActorRef):
        return None
    return Envelope(known, path, uid, sender, corr, tag, body, hops)
