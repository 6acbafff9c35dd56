"""The introduction: the first frame on every outgoing connection, as bytes and back.

Decides: how a `Hello` looks on the wire and which frames are refused as one. Does not decide what
a refused or accepted introduction leads to: that is `node.zmq_listener`. Pure; called by
`node.zmq_transport` (writing) and `node.zmq_listener` (reading).
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from gossip.membership import NodeId
from node.environment import Lane

# 0xc1 is the one byte that begins no msgpack value; the heads of frames begin otherwise as well.
MAGIC = b"\xc1tenure"

HELLO_BYTES_MAX = 512
HOST_LENGTH_MAX = 255

_LANE_NUMBERS = {Lane.CONTROL: 0, Lane.DATA: 1}
_UID_MAX = 2**64 - 1
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", "[::]", "*"})


class Hello(NamedTuple):
    """Who dialled, and whom they mean.

    `sender` is the dialling node, `data_port` where its data lane listens, `meant_uid` the process
    it wants to reach (0 = whoever is there). `link_number` grows with each connection a process
    dials, so of two connections of one process the later one is known. `version_min` to
    `version_max` are the versions of the protocol it speaks.
    """

    sender: NodeId
    lane: Lane
    data_port: int
    meant_uid: int
    link_number: int
    version_min: int
    version_max: int


class HelloRefusal(NamedTuple):
    """Why a frame is no acceptable Hello; `reason` is a fixed word, `detail` is for people."""

    reason: str
    detail: str


def pack_hello(hello: Hello) -> bytes:
    """The frame that introduces a connection."""
    packed: bytes = msgpack.packb(
        [
            hello.version_min,
            _LANE_NUMBERS[hello.lane],
            hello.sender.host,
            hello.sender.port,
            hello.sender.uid,
            hello.data_port,
            hello.meant_uid,
            hello.link_number,
            hello.version_max,
        ]
    )
    return MAGIC + packed


def unpack_hello(frame: bytes, versions: tuple[int, int], lane: Lane) -> Hello | HelloRefusal:
    """Read the first frame of a connection that arrived on `lane`. Never raises.

    `versions` are those of this node; a peer is taken when it speaks one of them too. What a later
    version appends is ignored.

    Reasons of a refusal: "no-hello" (something else), "wire-version" (no version in common, told
    before anything else of it is looked at), "bad-hello" (any other fault).
    """
    if not frame.startswith(MAGIC):
        return HelloRefusal("no-hello", f"the connection begins with {frame[:16]!r}")
    if len(frame) > HELLO_BYTES_MAX:
        return HelloRefusal("bad-hello", f"{len(frame)} bytes, at most {HELLO_BYTES_MAX} allowed")
    try:
        fields = msgpack.unpackb(frame[len(MAGIC) :])
    except (ValueError, msgpack.UnpackException):
        return HelloRefusal("bad-hello", "it is not msgpack")
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        return HelloRefusal("bad-hello", "it is not a list that begins with a version")
    lowest = fields[0]
    highest = fields[8] if len(fields) > 8 else lowest  # the first nodes spoke one version only
    if type(highest) is not int or not 0 < lowest <= highest:
        return HelloRefusal("bad-hello", "its versions are no range")
    if lowest > versions[1] or highest < versions[0]:
        return HelloRefusal(
            "wire-version",
            f"the peer speaks versions {lowest} to {highest}, this node {versions[0]} to "
            f"{versions[1]}",
        )
    return _check_fields(fields[:8], lane, lowest, highest)


def _check_fields(
    fields: list[object], lane: Lane, lowest: int, highest: int
) -> Hello | HelloRefusal:
    if len(fields) != 8:
        return HelloRefusal("bad-hello", f"{len(fields)} fields instead of 8")
    _, lane_number, host, port, uid, data_port, meant_uid, link_number = fields
    if lane_number != _LANE_NUMBERS[lane]:
        return HelloRefusal("bad-hello", f"meant for another lane than {lane.value}")
    if type(host) is not str or not _is_host(host):
        return HelloRefusal("bad-hello", f"host {str(host)[:64]!r} is no address of a node")
    if (
        type(port) is not int
        or type(data_port) is not int
        or not (0 < port < 65536 and 0 < data_port < 65536)
    ):
        return HelloRefusal("bad-hello", "a port is not between 1 and 65535")
    if type(uid) is not int or not 0 < uid <= _UID_MAX:
        return HelloRefusal("bad-hello", "the sender's uid is not between 1 and 2^64-1")
    if type(meant_uid) is not int or type(link_number) is not int:
        return HelloRefusal("bad-hello", "the meant uid or the link number is not an integer")
    if not (0 <= meant_uid <= _UID_MAX and 0 <= link_number <= _UID_MAX):
        return HelloRefusal("bad-hello", "the meant uid or the link number is out of range")
    return Hello(NodeId(host, port, uid), lane, data_port, meant_uid, link_number, lowest, highest)


def _is_host(host: str) -> bool:
    """A name or number that could be dialled: printable, short, and no wildcard."""
    return (
        0 < len(host) <= HOST_LENGTH_MAX
        and host.isascii()
        and host.isprintable()
        and " " not in host
        and host not in _WILDCARD_HOSTS
    )
