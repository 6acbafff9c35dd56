"""Data-lane envelopes to msgpack and back.

Decides: the layout of an envelope, how refs travel, and what is too large or too strange to read.
Does not decide what an envelope leads to: that is `node.remote`, its only caller.

An envelope is a positional array `[kind, path, uid, sender, corr, tag, body, hops]`; what a later
version appends is ignored. A frame is one or more of them, one after the other. A ref travels as
extension 1: `[host, port, node uid, path, actor uid]`.

Budget: one reused packer and unpacker per node; a message of three fields is encoded and decoded
in about 4 µs.
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
from node.schema import schema_of

REF_CODE = 1
PATH_MAX = 1_024
ENVELOPE_BYTES_MAX = 8 * 1024 * 1024 - 4_096  # with its head it fits the transport's largest frame
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
        self._envelope_bytes_max = envelope_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._packer = msgpack.Packer(default=_pack_ref, use_bin_type=True)
        self._unpacker = self._new_unpacker()

    def encode(self, envelope: Envelope) -> bytes:
        """The bytes of an envelope. Raises `MessageError` when it cannot be encoded or is larger
        than `envelope_bytes_max`."""
        try:
            payload: bytes = self._packer.pack(envelope)
        except (TypeError, ValueError, OverflowError) as error:
            raise MessageError(
                f"{envelope.tag or 'answer'}: cannot be encoded ({error})"
            ) from error
        if len(payload) > self._envelope_bytes_max:
            raise MessageError(
                f"{envelope.tag or 'answer'}: {len(payload)} bytes encoded, at most "
                f"{self._envelope_bytes_max} may travel; send it in parts"
            )
        return payload

    def decode(
        self, frame: bytes | memoryview, refused: Callable[[str, str], None]
    ) -> list[Envelope]:
        """The envelopes of a frame, up to the first byte that is not msgpack.

        What is no envelope is left out; `refused(reason, detail)` is told. Never raises.
        """
        found: list[Envelope] = []
        if len(frame) > self._frame_bytes_max:
            refused("frame too large", f"{len(frame)} bytes")
            return found
        unpacker = self._unpacker
        before = end = unpacker.tell()
        try:
            unpacker.feed(frame)
            for raw in unpacker:
                end = unpacker.tell()
                envelope = _envelope(raw)
                if envelope is None:
                    refused("no envelope", f"{type(raw).__name__}")
                else:
                    found.append(envelope)
            is_whole, detail = end - before == len(frame), "truncated"
        except (ValueError, TypeError, MemoryError, RecursionError, msgpack.UnpackException) as e:
            is_whole, detail = False, f"{type(e).__name__}: {e}"
        if not is_whole:
            self._unpacker = self._new_unpacker()
            refused("bad frame", detail)
        return found

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
        if not (host and 0 <= port < 65_536 and _is_path(path) and node_uid >= 0 and uid >= 0):
            return unknown
        return self._make_ref(NodeId(host, port, node_uid), path, uid)


def message_parts(message: object) -> tuple[str, list[Any]]:
    """Wire name and packed fields of a checked message. Raises `MessageError` without a name."""
    cls = type(message)
    name = wire_name(cls)
    if name is None:
        raise MessageError(
            f"{cls.__qualname__} is no registered message and cannot leave the process; make it a "
            f'class decorated with @message("some.name")'
        )
    return name, schema_of(cls).pack(message)


def message_from(tag: str, body: list[Any]) -> object:
    """The message with this wire name. Raises `MessageError`: unknown name, wrong fields."""
    cls = message_class(tag)
    if cls is None:
        raise MessageError(f"no message type {tag!r} is known here; import its module on this node")
    return schema_of(cls).unpack(body)


def _pack_ref(value: object) -> object:
    if isinstance(value, ActorRef):
        node = value.node
        fields = [node.host, node.port, node.uid, value.path, value.uid]
        return msgpack.ExtType(REF_CODE, msgpack.packb(fields))
    raise TypeError(f"{type(value).__name__} is no plain value")


def _is_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= PATH_MAX


def _envelope(raw: object) -> Envelope | None:
    if type(raw) is not list or len(raw) < 8:
        return None
    kind, path, uid, sender, corr, tag, body, hops = raw[:8]
    if type(kind) is not int or type(uid) is not int or type(corr) is not int:
        return None
    if type(path) is not str or type(tag) is not str or type(body) is not list:
        return None
    known = _KINDS.get(kind)
    if known is None or not _is_path(path) or uid < 0 or corr < 0:
        return None
    if type(hops) is not int or not 0 <= hops <= HOPS_MAX:
        return None
    if sender is not None and not isinstance(sender, ActorRef):
        return None
    return Envelope(known, path, uid, sender, corr, tag, body, hops)
