"""Envelopes and bytes: what is read, what is refused, what bounds it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from node.codec import ITEMS_MAX, PATH_MAX, Codec, Envelope, Kind
from node.errors import MessageError
from tests.node.stage import A, Pair, Stage


def codec(**settings: Any) -> Codec:
    return Codec(Stage(A).runtime.ref_at, **settings)


def read(frame: bytes, **settings: Any) -> tuple[list[Envelope], list[str]]:
    refused: list[str] = []
    found = codec(**settings).decode(frame, lambda reason, _detail: refused.append(reason))
    return found, refused


GOOD = [0, "/user/a", 0, None, 0, "test.greet", ["x"], 0]


def test_appended_fields_are_ignored() -> None:
    found, refused = read(msgpack.packb([*GOOD, "new", 3]))
    assert found == [Envelope(Kind.TELL, "/user/a", 0, None, 0, "test.greet", ["x"], 0)]
    assert refused == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 7),
        (0, -1),
        (0, True),
        (0, "0"),
        (1, "user"),
        (1, ""),
        (1, None),
        (1, "/" * (PATH_MAX + 1)),
        (2, -1),
        (2, "1"),
        (3, "ref"),
        (3, msgpack.ExtType(1, b"x")),
        (3, msgpack.ExtType(9, b"x")),
        (3, msgpack.ExtType(1, msgpack.packb(["h", 1, 2, "no path", 3]))),
        (3, msgpack.ExtType(1, msgpack.packb(["h", 99999, 2, "/p", 3]))),
        (3, msgpack.ExtType(1, msgpack.packb(["h", 1, -2, "/p", 3]))),
        (3, msgpack.ExtType(1, msgpack.packb(["", 1, 2, "/p", 3]))),
        (3, msgpack.ExtType(1, msgpack.packb(["h", 1, 2, "/p"]))),
        (3, msgpack.ExtType(1, msgpack.packb({}))),
        (4, -1),
        (4, 1.0),
        (5, b"x"),
        (6, "x"),
        (6, None),
        (7, 256),
        (7, -1),
        (7, None),
    ],
)
def test_what_is_no_envelope_is_refused_and_its_neighbours_are_read(
    place: int, value: object
) -> None:
    wrong = [*GOOD[:place], value, *GOOD[place + 1 :]]
    found, refused = read(b"".join(map(msgpack.packb, (GOOD, wrong, GOOD))))
    assert len(found) == 2
    assert refused == ["no envelope"]


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 5_000,
        b"\x81\x90\x01",
        b"\x98\x00",
        b"\xa2\xff\xff",
        b"\xd7\xff" + b"\xff" * 8,
    ],
)
def test_bad_bytes_are_refused_and_the_next_frame_is_read(frame: bytes) -> None:
    refused: list[str] = []
    reader = codec()
    for _ in range(3):
        before = reader.decode(
            msgpack.packb(GOOD) + frame, lambda reason, _detail: refused.append(reason)
        )
        after = reader.decode(msgpack.packb(GOOD), lambda reason, _detail: refused.append(reason))
        assert len(before) == len(after) == 1
    assert set(refused) <= {"bad frame", "no envelope"}
    assert len(refused) >= 3


def test_sizes_are_bounded_both_ways() -> None:
    found, refused = read(b"\x00" * 101, frame_bytes_max=100)
    assert (found, refused) == ([], ["frame too large"])
    _, refused = read(b"\xdd" + (ITEMS_MAX + 1).to_bytes(4, "big"))
    assert refused == ["bad frame"]
    envelope = Envelope(Kind.TELL, "/user/a", 0, None, 0, "t", ["x" * 200], 0)
    with pytest.raises(MessageError, match=r"t: 2.. bytes encoded, at most 100 may travel"):
        codec(envelope_bytes_max=100).encode(envelope)


def test_failed_encoding_leaves_the_packer_usable() -> None:
    writer = codec()
    good = Envelope(Kind.TELL, "/user/a", 0, None, 0, "t", ["x"], 0)
    with pytest.raises(MessageError, match="object is no plain value"):
        writer.encode(good._replace(body=["x", object()]))
    assert writer.encode(good) == msgpack.packb([0, "/user/a", 0, None, 0, "t", ["x"], 0])


def test_refs_travel_as_an_extension() -> None:
    pair = Pair()
    far = pair.far.ref_at(None, "/user/a", 7)
    envelope = Envelope(Kind.TELL, "/user/a", 0, far, 0, "t", [], 0)
    payload = Codec(pair.far.ref_at).encode(envelope)
    (read_back,) = Codec(pair.runtime.ref_at).decode(payload, lambda *_: None)
    assert read_back.sender == pair.to_far("/user/a", 7)
    (at_home,) = Codec(pair.far.ref_at).decode(payload, lambda *_: None)
    assert at_home.sender is not None
    assert at_home.sender.is_local
