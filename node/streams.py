"""Large messages in pieces: what one looks like on the wire, and putting it together again.

Decides: when a message travels in pieces, how long a piece is, and how much of unfinished messages
a receiver keeps. Does not decide what the message means (`node.codec`) nor when a piece leaves
(`node.outbox`). Pure; used by those two and by `node.remote`.

A large message is its envelope and the `parts` it refers to, each of them a `bytes` object that
the sender neither copies nor packs. Their concatenation is cut at each border of a part and every
`PIECE_BYTES_MAX` bytes. Each piece is the second half of a ZeroMQ message whose first half is a
frame head and, as msgpack, `[number, lengths, envelope]` for the first one, `[number]` for the
others. `envelope` is None when it is large itself: then it is the first of the `lengths`. A message
of one piece has the number 0.

Budget: `bench messaging`, rows bulk_*; one copy per byte at the receiver, none at the sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

PIECE_BYTES_MAX = 256 * 1024
PARTS_MAX = 256
OPEN_MAX = 4  # unfinished messages of one connection

Buffer = bytes | memoryview


class StreamError(Exception):
    """A piece that fits nowhere; the message it belongs to is given up."""


class Piece(NamedTuple):
    """One piece: `header` goes behind the frame head, `data` is the second half."""

    header: bytes
    data: Buffer
    is_last: bool


class Whole(NamedTuple):
    """A large message that has arrived."""

    envelope: bytes
    parts: tuple[bytes, ...]


def only_piece(envelope: bytes, data: bytes) -> Piece | None:
    """A message whose one part is no larger than a piece; None when it has to be cut. It needs no
    number and no turns: it is a frame like any other."""
    size = len(data)
    if size > PIECE_BYTES_MAX or len(envelope) > PIECE_BYTES_MAX:
        return None
    header: bytes = msgpack.packb((0, (size,), envelope))
    return Piece(header, data, is_last=True)


def pieces(number: int, envelope: bytes, parts: Sequence[bytes]) -> Iterator[Piece]:
    """The pieces of a large message, in order. `number` tells those of one connection apart."""
    small: bytes | None = envelope
    sections: tuple[bytes, ...] = tuple(parts)
    if not parts or len(envelope) > PIECE_BYTES_MAX:
        small, sections = None, (envelope, *parts)
    header: bytes = msgpack.packb([number, [len(section) for section in sections], small])
    later: bytes = msgpack.packb([number])
    for index, section in enumerate(sections):
        size = len(section)
        if size <= PIECE_BYTES_MAX:
            yield Piece(header, section, is_last=index == len(sections) - 1)
            header = later
            continue
        view = memoryview(section)
        for start in range(0, size, PIECE_BYTES_MAX):
            end = min(start + PIECE_BYTES_MAX, size)
            is_last = end == size and index == len(sections) - 1
            yield Piece(header, view[start:end], is_last)
            header = later


class _Unfinished:
    __slots__ = ("done", "envelope", "held", "lengths", "missing", "sections")

    def __init__(self, lengths: list[int], envelope: bytes | None) -> None:
        self.lengths = lengths
        self.envelope = envelope
        self.sections: list[bytes] = []
        self.held: list[Buffer] = []  # of the section under way
        self.missing = lengths[0]  # bytes of it
        self.done = 0


class Streams:
    """The unfinished large messages of one incoming connection.

    `bytes_max` bounds each message; with `OPEN_MAX` it bounds what is kept.
    """

    __slots__ = ("_bytes_max", "_open")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._open: dict[int, _Unfinished] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, header: Buffer, data: Buffer) -> Whole | None:
        """Take one piece; the message when it was the last of it.

        Raises `StreamError` for what fits nowhere; the message it names is forgotten.
        """
        fields = _fields(header)
        size = len(data)
        if len(fields) >= 3 and fields[0] == 0 and fields[1] == [size]:
            envelope = fields[2]
            if type(envelope) is bytes and 0 < size <= PIECE_BYTES_MAX:
                return Whole(envelope, (bytes(data),))
        number, unfinished = self._find(fields)
        if not 0 < size <= min(unfinished.missing, PIECE_BYTES_MAX):
            self._open.pop(number, None)
            raise StreamError(f"a piece of {size} bytes, {unfinished.missing} are missing")
        unfinished.missing -= size
        if unfinished.missing:
            unfinished.held.append(data)
            return None
        sections = unfinished.sections
        if unfinished.held:
            unfinished.held.append(data)
            sections.append(b"".join(unfinished.held))
            unfinished.held = []
        else:
            sections.append(bytes(data))
        if len(sections) < len(unfinished.lengths):
            unfinished.missing = unfinished.lengths[len(sections)]
            return None
        self._open.pop(number, None)
        if unfinished.envelope is None:
            return Whole(sections[0], tuple(sections[1:]))
        return Whole(unfinished.envelope, tuple(sections))

    def _find(self, fields: list[Any]) -> tuple[int, _Unfinished]:
        number: int = fields[0]
        known = self._open.get(number)
        if len(fields) == 1:
            if known is None:
                raise StreamError(f"message {number} was not begun, or is given up")
            return number, known
        if known is not None or len(self._open) >= OPEN_MAX:
            self._open.pop(number, None)
            raise StreamError(f"message {number} begins while {len(self._open)} are unfinished")
        unfinished = _Unfinished(*self._begun(fields))
        self._open[number] = unfinished
        return number, unfinished

    def _begun(self, fields: list[Any]) -> tuple[list[int], bytes | None]:
        lengths, envelope = fields[1:3] if len(fields) >= 3 else (None, None)
        if type(lengths) is not list or not 0 < len(lengths) <= PARTS_MAX + 1:
            raise StreamError("its lengths are no list of sizes")
        if any(type(length) is not int or length <= 0 for length in lengths):
            raise StreamError("a length is no size")
        if sum(lengths) > self._bytes_max:
            raise StreamError(f"{sum(lengths)} bytes, at most {self._bytes_max} are taken")
        if envelope is not None and type(envelope) is not bytes:
            raise StreamError("its envelope is no bytes")
        return lengths, envelope


def _fields(header: Buffer) -> list[Any]:
    try:
        fields = msgpack.unpackb(header, max_array_len=PARTS_MAX + 1)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise StreamError(f"its header is no msgpack: {type(error).__name__}") from None
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise StreamError("its header is no list that begins with a number")
    return fields
