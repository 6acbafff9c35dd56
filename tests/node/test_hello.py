"""The introduction of a connection, as bytes and back (I-67, I-84, I-132, I-133, I-140)."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.membership import NodeId
from node.environment import Lane
from node.hello import MAGIC, Hello, HelloRefusal, pack_hello, unpack_hello

UIDS = st.integers(1, 2**64 - 1)
PORTS = st.integers(1, 65535)
GOOD = [1, 0, "10.0.0.5", 25520, 7, 25521, 9, 3]


def frame_of(fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return MAGIC + packed


@given(
    host=st.sampled_from(["127.0.0.1", "::1", "[::1]", "node-1.svc.cluster.local"]),
    port=PORTS,
    uid=UIDS,
    lane=st.sampled_from(Lane),
    data_port=PORTS,
    meant_uid=st.integers(0, 2**64 - 1),
    link_number=st.integers(0, 2**64 - 1),
)
def test_what_was_packed_is_read(
    host: str, port: int, uid: int, lane: Lane, data_port: int, meant_uid: int, link_number: int
) -> None:
    hello = Hello(NodeId(host, port, uid), lane, data_port, meant_uid, link_number, 1, 2)
    assert unpack_hello(pack_hello(hello), (1, 2), lane) == hello


@given(st.binary(max_size=600))
def test_no_bytes_make_it_raise(noise: bytes) -> None:
    for frame in (noise, MAGIC + noise):
        assert isinstance(unpack_hello(frame, (1, 2), Lane.CONTROL), Hello | HelloRefusal)


def changed(index: int, value: object) -> list[object]:
    fields: list[object] = list(GOOD)
    fields[index] = value
    return fields


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (changed(0, 3), "wire-version"),
        ([*changed(0, 3), 4], "wire-version"),
        ([3, "a later version may look", "quite different"], "wire-version"),
        (changed(0, "1"), "bad-hello"),
        (changed(0, True), "bad-hello"),
        ([], "bad-hello"),
        ({"version": 1}, "bad-hello"),
        (GOOD[:7], "bad-hello"),
        ([*GOOD, 0], "bad-hello"),  # versions 1 to 0
        ([*GOOD, "2"], "bad-hello"),
        (changed(0, 0), "bad-hello"),
        (changed(1, 1), "bad-hello"),  # meant for the data lane
        (changed(2, ""), "bad-hello"),
        (changed(2, b"10.0.0.5"), "bad-hello"),
        (changed(2, "0.0.0.0"), "bad-hello"),
        (changed(2, "::"), "bad-hello"),
        (changed(2, "a host"), "bad-hello"),
        (changed(2, "a\nb"), "bad-hello"),
        (changed(2, "x" * 256), "bad-hello"),
        (changed(3, "25520"), "bad-hello"),
        (changed(3, 0), "bad-hello"),
        (changed(3, 65536), "bad-hello"),
        (changed(4, 0), "bad-hello"),
        (changed(4, -1), "bad-hello"),
        (changed(4, None), "bad-hello"),
        (changed(5, 0), "bad-hello"),
        (changed(6, -1), "bad-hello"),
        (changed(6, 1.0), "bad-hello"),
        (changed(7, -1), "bad-hello"),
        (changed(7, "3"), "bad-hello"),
    ],
)
def test_a_wrong_introduction_is_refused_with_its_reason(fields: object, reason: str) -> None:
    refusal = unpack_hello(frame_of(fields), (1, 2), Lane.CONTROL)
    assert isinstance(refusal, HelloRefusal)
    assert refusal.reason == reason
    assert len(refusal.detail) < 200


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "no-hello"),
        (b"\xc1", "no-hello"),
        (b"GET / HTTP/1.1\r\n", "no-hello"),
        (MAGIC, "bad-hello"),
        (MAGIC + b"\x98", "bad-hello"),
        (frame_of(GOOD) + b"\0", "bad-hello"),
        (MAGIC + b"\x91" * 400, "bad-hello"),
        (MAGIC + b"\0" * 600, "bad-hello"),
    ],
)
def test_what_is_no_introduction_is_refused(frame: bytes, reason: str) -> None:
    refusal = unpack_hello(frame, (1, 2), Lane.CONTROL)
    assert isinstance(refusal, HelloRefusal)
    assert refusal.reason == reason


@pytest.mark.parametrize(
    ("theirs", "ours"), [((1, 1), (1, 2)), ((1, 2), (1, 1)), ((2, 3), (1, 2)), ((1, 3), (2, 2))]
)
def test_neighbouring_versions_take_each_other(
    theirs: tuple[int, int], ours: tuple[int, int]
) -> None:
    hello = Hello(NodeId("10.0.0.5", 25520, 7), Lane.DATA, 25521, 9, 3, *theirs)
    assert unpack_hello(pack_hello(hello), ours, Lane.DATA) == hello


def test_what_a_later_version_appends_is_ignored() -> None:
    read = unpack_hello(frame_of([*GOOD, 3, {"what": "ever"}]), (1, 2), Lane.CONTROL)
    assert isinstance(read, Hello)
    assert (read.version_min, read.version_max) == (1, 3)


def test_all_versions_are_named() -> None:
    refusal = unpack_hello(frame_of([*changed(0, 7), 9]), (1, 2), Lane.CONTROL)
    assert isinstance(refusal, HelloRefusal)
    assert refusal.detail == "the peer speaks versions 7 to 9, this node 1 to 2"


def test_golden_introduction() -> None:
    """What the neighbouring versions read; change it only with the protocol."""
    hello = Hello(NodeId("10.0.0.5", 25520, 7), Lane.CONTROL, 25521, 9, 3, 1, 2)
    golden = "c1 74656e757265 99 01 00 a8 31302e302e302e35 cd63b0 07 cd63b1 09 03 02"
    assert pack_hello(hello) == bytes.fromhex(golden)
