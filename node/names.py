"""The sender's half of interning: which paths and type tags the peer knows by number.

Decides: the numbers, and when a table is full. Does not decide how a definition looks on the
wire: that is `node.codec`, the only user. One table per outgoing connection; it dies with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

NAMES_MAX = 4096  # numbers of one connection, on both sides
_ROOM = 4  # one message defines at most so many


class Tag(NamedTuple):
    """A message class on one connection: its number, and how its fields are packed."""

    number: int
    pack: Callable[[Any], list[Any]]


class Names:
    """Numbers given on one connection. `fresh` are the definitions that the peer has still to get:
    they go in front of the next message, whichever it is."""

    __slots__ = ("_count", "fresh", "senders", "tags", "targets")

    def __init__(self) -> None:
        self.senders: dict[tuple[str, int], int] = {}
        self.targets: dict[tuple[str, int], int] = {}
        self.tags: dict[type, Tag] = {}
        self.fresh: list[bytes] = []
        self._count = 0

    @property
    def is_full(self) -> bool:
        """There may be no numbers left for one more message: time for a new table, in which all
        numbers are defined anew. Not in the middle of a message, whose own must outlive it."""
        return self._count > NAMES_MAX - _ROOM

    def take_number(self) -> int:
        """A number for something new."""
        number = self._count
        self._count += 1
        return number
