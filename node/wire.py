"""Frames of both lanes begin with a fixed head; control messages follow as `[tag, fields]`.

Decides the tags (append-only: a tag is never given to another message) and what a frame may be:
an unknown tag, a field of the wrong type or a broken frame is reported, never raised. Does not
decide what a message means. Called by `node.daemon`; budget: control plane, hundreds a second.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from downing import messages as d
from gossip import messages as g
from node.errors import MessageError
from node.schema import Schema, schema_of
from sharding import messages as h
from singleton import messages as s

WIRE_VERSION = 1  # of control frames
DATA_VERSION_MIN, DATA_VERSION_MAX = 1, 2
HEAD = struct.Struct("!2sBxQQQQ")
MAGIC = b"TC"
DATA_HEAD = struct.Struct("!2sBBQ")
ENVELOPES, PIECE = 0, 1  # what follows the head of a data frame
DATA_MAGIC = b"TD"
FRAME_BYTES_MAX = 4 * 1024 * 1024
MESSAGES_PER_FRAME_MAX = 4096

TAGS: dict[int, type] = {
    1: g.Ping,
    2: g.Ack,
    3: g.PingRequest,
    4: g.Nack,
    5: g.Gossip,
    6: g.ViewSeen,
    7: g.ViewSeenAck,
    8: g.SyncOffer,
    9: g.SyncReply,
    10: g.JoinRequest,
    11: g.LookingToo,
    12: g.JoinChallenge,
    13: g.JoinConfirm,
    14: g.JoinRefused,
    15: g.Welcome,
    16: g.WhoAreYou,
    17: g.IAm,
    18: g.Invite,
    19: g.Dissolve,
    20: g.YouAreGone,
    21: g.LinkQuestion,
    22: g.LinkAnswer,
    23: g.Notice,
    24: g.Relay,
    25: g.Relayed,
    26: g.Agreed,
    32: s.HandOverAsk,
    33: s.HandOverAnswer,
    34: s.HostNotice,
    35: s.MoveAsk,
    36: s.HandOverState,
    48: d.ContactPing,
    49: d.ContactAck,
    50: d.ProposeDown,
    51: d.PromiseDown,
    52: d.OrderDown,
    53: d.StopOrder,
    54: d.Stopped,
    55: d.SideLost,
    64: h.AskReport,
    65: h.Report,
    66: h.TermRefused,
    67: h.RegionRefused,
    68: h.WantHomes,
    69: h.HomesAre,
    70: h.HostShards,
    71: h.ShardsStarted,
    72: h.BeginHandOff,
    73: h.HandOffBegun,
    74: h.HandOff,
    75: h.ShardsStopped,
    76: h.RebalanceAsk,
}

_TAG_OF = {cls: tag for tag, cls in TAGS.items()}

# What every member sends or reads when it joins.
_COMMON = (1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 15)


class WireError(Exception):
    """A frame that is not ours; `reason` is a short key for counting."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def compile_common() -> None:
    """Compile what reads and writes the common messages, 15 ms of CPU, before they come: when many
    members of one machine join at once, all of them would do so at that moment."""
    for tag in _COMMON:
        schema_of(TAGS[tag])


def encode_head(head: g.Head) -> bytes:
    """The head of each control frame."""
    return HEAD.pack(
        MAGIC,
        WIRE_VERSION,
        head.cluster_id,
        head.members_digest,
        head.reach_digest,
        head.counter,
    )


def encode_data_head(cluster_id: int, version: int, *, is_piece: bool = False) -> bytes:
    """The head of each data frame: it names its cluster.

    Both heads begin with a letter, so no frame can be taken for an introduction (`node.hello`).
    """
    return DATA_HEAD.pack(DATA_MAGIC, version, PIECE if is_piece else ENVELOPES, cluster_id)


def decode_data_head(frame: bytes, *, is_piece: bool = False) -> int:
    """The cluster id of a data frame; what it carries begins at `DATA_HEAD.size`.

    Raises `WireError` when it is no data frame of ours.
    """
    if len(frame) < DATA_HEAD.size:
        raise WireError("malformed", f"a data frame of {len(frame)} bytes")
    magic, version, content, cluster_id = DATA_HEAD.unpack_from(frame)
    if magic != DATA_MAGIC:
        raise WireError("malformed", f"a data frame that begins with {magic!r}")
    if not DATA_VERSION_MIN <= version <= DATA_VERSION_MAX:
        raise WireError(
            "wire-version",
            f"data version {version}, this node reads {DATA_VERSION_MIN} to {DATA_VERSION_MAX}",
        )
    if content != (PIECE if is_piece else ENVELOPES) and version > 1:
        raise WireError("malformed", f"a data frame with content {content}")
    return int(cluster_id)


def encode(message: object) -> bytes:
    """One message. Raises `MessageError` when it is none of ours: our own mistake."""
    cls = type(message)
    tag = _TAG_OF.get(cls)
    if tag is None:
        raise MessageError(f"{cls.__name__} has no tag in node.wire.TAGS: give it the next one")
    schema: Schema[Any] = schema_of(cls)
    packed: bytes = msgpack.packb((tag, schema.pack(message)), use_bin_type=True)
    return packed


def decode_one(payload: bytes) -> object:
    """The message that `encode` made. Raises `WireError` for anything else."""
    found: list[object] = []
    refused: list[WireError] = []
    try:
        item = msgpack.unpackb(payload, use_list=True, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises several unrelated classes
        raise WireError("malformed", f"{type(error).__name__}: {error}") from error
    _decode_item(item, found, refused)
    if refused:
        raise refused[0]
    return found[0]


def decode(frame: bytes) -> tuple[g.Head, list[object], list[WireError]]:
    """Head, the messages that are understood, and what was not. Raises `WireError` when there is
    no head to read."""
    if len(frame) < HEAD.size or len(frame) > FRAME_BYTES_MAX:
        raise WireError("malformed", f"a control frame of {len(frame)} bytes")
    magic, version, *numbers = HEAD.unpack_from(frame)
    if magic != MAGIC:
        raise WireError("malformed", f"a frame that begins with {magic!r}")
    if version != WIRE_VERSION:
        raise WireError("wire-version", f"wire version {version}, ours is {WIRE_VERSION}")
    found: list[object] = []
    refused: list[WireError] = []
    unpacker = msgpack.Unpacker(
        use_list=True, raw=False, strict_map_key=True, max_buffer_size=FRAME_BYTES_MAX
    )
    unpacker.feed(memoryview(frame)[HEAD.size :])
    end = 0
    try:
        for item in unpacker:
            end = unpacker.tell()  # here: after the last one it counts what is incomplete
            if len(found) + len(refused) >= MESSAGES_PER_FRAME_MAX:
                refused.append(WireError("malformed", "too many messages in one frame"))
                break
            _decode_item(item, found, refused)
        if end != len(frame) - HEAD.size:
            refused.append(WireError("malformed", "a truncated message"))
    except Exception as error:  # noqa: BLE001 - msgpack raises several unrelated classes
        refused.append(WireError("malformed", f"{type(error).__name__}: {error}"))
    return g.Head(*numbers), found, refused


def _decode_item(item: object, found: list[object], refused: list[WireError]) -> None:
    if not isinstance(item, list) or len(item) != 2 or type(item[0]) is not int:
        refused.append(WireError("malformed", "not [tag, fields]"))
        return
    cls = TAGS.get(item[0])
    if cls is None:
        refused.append(WireError("unknown-tag", f"tag {item[0]}"))
        return
    try:
        found.append(schema_of(cls).unpack(item[1]))
    except MessageError as error:
        refused.append(WireError("bad-field", str(error)))
