"""Large messages in pieces: cut, put together, and what fits nowhere (I-136)."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.streams import (
    OPEN_MAX,
    PARTS_MAX,
    PIECE_BYTES_MAX,
    StreamError,
    Streams,
    Whole,
    pieces,
)

MIB = 1 << 20


def arrive(streams: Streams, envelope: bytes, parts: list[bytes], number: int = 1) -> Whole | None:
    """Feed all pieces; what the last one gave."""
    whole = None
    for piece in pieces(number, envelope, parts):
        assert whole is None, "whole before its last piece"
        whole = streams.add(piece.header, memoryview(piece.data))
        assert piece.is_last == (whole is not None)
    return whole


@settings(max_examples=50, deadline=None)
@given(
    envelope_size=st.sampled_from([1, 40, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * MIB]),
    sizes=st.lists(
        st.sampled_from([1, 32 * 1024, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, MIB]), max_size=4
    ),
)
def test_what_was_cut_is_whole_again(envelope_size: int, sizes: list[int]) -> None:
    rng = random.Random(envelope_size + sum(sizes))
    envelope = rng.randbytes(envelope_size)
    parts = [rng.randbytes(size) for size in sizes]
    streams = Streams(16 * MIB)
    assert arrive(streams, envelope, parts) == Whole(envelope, tuple(parts))
    assert len(streams) == 0


def test_no_piece_is_larger_than_its_bound_and_none_is_copied_by_the_sender() -> None:
    part = b"x" * (2 * PIECE_BYTES_MAX + 5)
    made = list(pieces(1, b"envelope", [part]))
    assert [len(piece.data) for piece in made] == [PIECE_BYTES_MAX, PIECE_BYTES_MAX, 5]
    assert all(isinstance(piece.data, memoryview) and piece.data.obj is part for piece in made)


def test_messages_may_be_interleaved() -> None:
    streams = Streams(MIB)
    whole: dict[int, Whole] = {}
    under_way = {n: pieces(n, b"e%d" % n, [bytes([n]) * 600_000]) for n in range(OPEN_MAX)}
    while under_way:
        for number, rest in list(under_way.items()):
            piece = next(rest, None)
            if piece is None:
                del under_way[number]
                continue
            found = streams.add(piece.header, memoryview(piece.data))
            if found is not None:
                whole[number] = found
    assert whole == {n: Whole(b"e%d" % n, (bytes([n]) * 600_000,)) for n in range(OPEN_MAX)}


def begin(number: int = 1, lengths: object = (100,), envelope: object = b"e") -> bytes:
    packed: bytes = msgpack.packb([number, lengths, envelope])
    return packed


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b"x"),
        (b"\xc1", b"x"),
        (b"\x91" * 2000, b"x"),
        (msgpack.packb(7), b"x"),
        (msgpack.packb([]), b"x"),
        (msgpack.packb(["1"]), b"x"),
        (msgpack.packb([1]), b"x"),  # the middle of nothing
        (msgpack.packb([1, [5]]), b"x"),
        (begin(lengths=[]), b"x"),
        (begin(lengths=[0]), b"x"),
        (begin(lengths=[-1]), b"x"),
        (begin(lengths=["5"]), b"x"),
        (begin(lengths=[True]), b"x"),
        (begin(lengths=5), b"x"),
        (begin(lengths=[1] * (PARTS_MAX + 2)), b"x"),
        (begin(lengths=[MIB + 1]), b"x"),
        (begin(lengths=[MIB, 1]), b"x"),
        (begin(envelope="text"), b"x"),
        (begin(), b""),
        (begin(), b"x" * 101),
        (begin(lengths=[MIB]), b"x" * (PIECE_BYTES_MAX + 1)),
    ],
)
def test_what_fits_nowhere_is_refused_and_nothing_is_kept(header: bytes, data: bytes) -> None:
    streams = Streams(MIB)
    with pytest.raises(StreamError):
        streams.add(header, memoryview(data))
    assert len(streams) == 0


def test_unfinished_messages_are_bounded() -> None:
    streams = Streams(MIB)
    for number in range(OPEN_MAX):
        assert streams.add(begin(number), memoryview(b"x")) is None
    with pytest.raises(StreamError, match="unfinished"):
        streams.add(begin(OPEN_MAX), memoryview(b"x"))
    assert len(streams) == OPEN_MAX


def test_a_number_that_begins_twice_gives_up_the_first_message() -> None:
    streams = Streams(MIB)
    streams.add(begin(1), memoryview(b"x"))
    with pytest.raises(StreamError):
        streams.add(begin(1), memoryview(b"x"))
    assert len(streams) == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=12))
def test_no_bytes_make_it_raise_anything_else(noise: list[tuple[bytes, bytes]]) -> None:
    streams = Streams(1000)
    for header, data in noise:
        try:
            streams.add(header, memoryview(data))
        except StreamError:
            continue
