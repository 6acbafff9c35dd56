"""Bytes that no well-meaning peer sends: good frames, damaged in ways that get past the first look.

Random bytes rarely get far, so most of what is made here is valid msgpack: a good value in which
one place was replaced by another value, moved, or taken out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack

_ODD: list[Any] = [
    None, True, -1, 0, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), "", "x" * 300, "\x00", "/",
    b"", b"x" * 40, [], [[]], {}, {1: 2}, {"a": []}, "/user/nobody", "test.add", 16, 17, 18, 19,
    msgpack.ExtType(1, b""), msgpack.ExtType(2, b"\0\0\0\1"), msgpack.ExtType(16, b"\xff" * 16),
    msgpack.ExtType(20, b"1E999999999"), msgpack.ExtType(99, b"?"), msgpack.Timestamp(1, 2),
]  # fmt: skip


def damaged(rng: random.Random, whole: Sequence[bytes]) -> bytes:
    """One frame, or the body of one: noise, a good one with bytes changed, or another value."""
    choice = rng.random()
    if choice < 0.1:
        return rng.randbytes(rng.randint(0, 200))
    frame = rng.choice(whole)
    if choice < 0.5:
        return _changed_bytes(rng, frame)
    values = list(msgpack.Unpacker(_Reader(frame), strict_map_key=False, raw=False))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(values))
        values[place] = changed_value(rng, values[place])
    return b"".join(msgpack.packb(value, unicode_errors="surrogatepass") for value in values)


class _Reader:
    """What `msgpack.Unpacker` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _count: int) -> bytes:
        """All at once."""
        data, self._data = self._data, b""
        return data


def _changed_bytes(rng: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randint(0, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    if changed and rng.random() < 0.3:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def changed_value(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The value with one place in it changed."""
    if isinstance(value, list) and value and depth < 8 and rng.random() < 0.85:
        made = list(value)
        place = rng.randrange(len(made))
        choice = rng.random()
        if choice < 0.75:
            made[place] = changed_value(rng, made[place], depth + 1)
        elif choice < 0.85:
            del made[place]
        elif choice < 0.95:
            made.insert(place, rng.choice(_ODD))
        else:
            made[place] = nested(rng.choice((3, 31, 33, 200)))
        return made
    if type(value) is int and rng.random() < 0.5:
        return value ^ (1 << rng.randrange(8)) if value < 2**60 else value >> 1
    return rng.choice(_ODD)


def nested(depth: int) -> list[Any]:
    """A list in a list in a list …"""
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made
