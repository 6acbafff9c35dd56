"""Control frames: golden bytes, and that nothing a peer sends raises (I-132, I-133, I-140)."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import messages as g
from gossip.membership import Member, NodeId, Status
from node import wire
from node.errors import MessageError
from node.hello import MAGIC
from node.schema import schema_of

HEAD = g.Head(0x0102030405060708, 0x1112131415161718, 0x2122232425262728, 42)
HEAD_BYTES = bytes.fromhex(
    "54430100010203040506070811121314151617182122232425262728000000000000002a"
)
NODE = NodeId("10.0.0.1", 25520, 7)

GOLDEN: dict[object, str] = {
    g.Ping(7, NODE): "9201920793a831302e302e302e31cd63b007",
    g.Ack(7): "92029107",
    g.PingRequest(7, NODE): "9203920793a831302e302e302e31cd63b007",
    g.ViewSeen(9): "92069109",
    g.JoinChallenge(1): "920c9101",
}


def test_the_head_never_changes() -> None:
    assert wire.encode_head(HEAD) == HEAD_BYTES
    assert wire.decode(HEAD_BYTES) == (HEAD, [], [])


@pytest.mark.parametrize("message", list(GOLDEN))
def test_golden_bytes(message: object) -> None:
    """A change of these breaks running clusters: append fields with a default, never move any."""
    packed = wire.encode(message)
    assert packed.hex() == GOLDEN[message]
    assert wire.decode(HEAD_BYTES + packed) == (HEAD, [message], [])


def test_no_head_can_be_taken_for_an_introduction() -> None:
    """Whatever the cluster id: one in 256 begins with the first byte of a Hello."""
    for cluster_id in (MAGIC[0] << 56, 1, (1 << 64) - 1):
        for head in (
            wire.encode_data_head(cluster_id, 2),
            wire.encode_head(g.Head(cluster_id=cluster_id)),
        ):
            assert head[:1] != MAGIC[:1]
        assert wire.decode_data_head(wire.encode_data_head(cluster_id, 2) + b"x") == cluster_id


@pytest.mark.parametrize("frame", [b"", b"TD\x01", b"TC" + bytes(10), b"TD\x03" + bytes(9)])
def test_a_data_frame_without_our_head_is_refused(frame: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_data_head(frame)


def test_tags_are_unique_and_known() -> None:
    assert len(set(wire.TAGS.values())) == len(wire.TAGS)
    for cls in wire.TAGS.values():
        assert schema_of(cls).cls is cls


def test_a_member_record_survives_the_wire() -> None:
    member = Member(
        NODE, name="n", roles=("web",), status=Status.UP, up_number=3, public_key=b"\x00\xff",
        types=("singleton:a",), boot_id="b", net_ns=1 << 40, pid_ns=2, pid=3, start_ticks=1 << 50,
    )  # fmt: skip
    news = g.Gossip(members=(member,))
    _, messages, refused = wire.decode(HEAD_BYTES + wire.encode(news))
    assert messages == [news]
    assert refused == []


def test_several_messages_ride_in_one_frame() -> None:
    frame = HEAD_BYTES + wire.encode(g.Ack(1)) + wire.encode(g.Ping(2, NODE))
    assert wire.decode(frame)[1] == [g.Ack(1), g.Ping(2, NODE)]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ([99, []], "unknown-tag"),
        ([2, ["seven"]], "bad-field"),
        ([2, []], "bad-field"),
        ([1, [7, ["10.0.0.1", "25520", 7]]], "bad-field"),  # I-133: a port as text
        ([5, [[[["h", 1, 1], "", [], 99]]]], "bad-field"),  # I-63: no such status
        ("text", "malformed"),
        ([2], "malformed"),
        ({"tag": 2}, "malformed"),
    ],
)
def test_a_bad_message_is_refused_and_its_neighbours_are_read(item: object, reason: str) -> None:
    frame = HEAD_BYTES + wire.encode(g.Ack(1)) + msgpack.packb(item) + wire.encode(g.Ack(2))
    _, messages, refused = wire.decode(frame)
    assert messages == [g.Ack(1), g.Ack(2)]
    assert [flaw.reason for flaw in refused] == [reason]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 20, "malformed"),
        (b"TC\x02" + HEAD_BYTES[3:], "wire-version"),
    ],
)
def test_a_frame_without_our_head_is_refused_whole(frame: bytes, reason: str) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.decode(frame)
    assert caught.value.reason == reason


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(noise: bytes) -> None:
    for frame in (noise, HEAD_BYTES + noise):
        try:
            wire.decode(frame)
        except wire.WireError:
            continue


def test_random_damage_never_raises_anything_else() -> None:
    rng = random.Random(5)
    whole = HEAD_BYTES + wire.encode(g.Gossip(members=(Member(NODE, name="n"),)))
    for _ in range(5_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        del damaged[rng.randrange(len(damaged)) :]
        try:
            wire.decode(bytes(damaged))
        except wire.WireError:
            continue


@pytest.mark.parametrize(
    "item",
    [
        [5, [[], [], [], [], float("nan")]],  # I-64: no number of ours is a float
        [5, [[], [], [], [], float("inf")]],
        [6, [-1.5]],
        [5, [[], [], [], [], 1 << 63, []]],  # too large for the field, or for a list beyond it
        [5, [[[["h", 1, 1], "", [], "2"]]]],
        [9, [[], "all"]],
    ],
)
def test_numbers_that_are_none_reach_no_member(item: object) -> None:
    """What is read has the annotated types; whether it is plausible membership decides."""
    _, messages, refused = wire.decode(HEAD_BYTES + msgpack.packb(item))
    for message in messages:
        assert isinstance(message, g.Gossip)
        assert type(message.floor) is int
    assert len(messages) + len(refused) == 1


def test_the_greatest_numbers_survive_the_wire_and_are_for_membership_to_refuse() -> None:
    greatest = (1 << 64) - 1
    member = Member(NODE, incarnation=greatest, record_version=greatest, up_number=greatest)
    news = g.Gossip(members=(member,), floor=greatest)
    assert wire.decode(HEAD_BYTES + wire.encode(news))[1] == [news]


def test_our_own_mistake_is_told_to_us() -> None:
    with pytest.raises(MessageError, match="no tag"):
        wire.encode(object())


def test_deep_nesting_is_refused() -> None:
    bomb = b"\x91" * 100_000 + b"\xc0"
    _, messages, refused = wire.decode(HEAD_BYTES + bomb)
    assert messages == []
    assert [flaw.reason for flaw in refused] == ["malformed"]
