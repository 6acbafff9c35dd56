"""The order of things in a simulated world: one instant, one agenda, one thread.

Decides what happens next: the earliest entry of the agenda, entries of one instant in the order in
which they were made, so a run is a function of its seed. Does not decide what an entry does: loops
put their next due instant here, the network its arrivals, a test its faults. Called by
`node.testkit.stage`. Budget: under 1 us per entry, nothing allocated but the entry.
"""

from __future__ import annotations

import heapq
import math
import sys
import zlib
from asyncio import events
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from typing import Any, Never

import msgpack

INSTANT_ENTRIES_MAX = 1_000_000


class WorldError(AssertionError):
    """Something in the simulated world did not go as the test demanded; ends with the trace."""


class LivelockError(WorldError):
    """The nodes keep working without virtual time going by: a loop that never waits."""


class Trace:
    """What happened, as a running hash over everything and as text for the last lines.

    Same seed, same hash: in any process, under any PYTHONHASHSEED. Details are plain numbers and
    strings, never objects, so that nothing of this process' memory can enter the hash.
    """

    __slots__ = ("_hash", "_hashed", "_keep", "_notes", "_pack")

    def __init__(self, keep: int = 200) -> None:
        self._keep = keep
        self._notes: list[tuple[float | int | str, ...]] = []
        self._hashed = 0
        self._hash = blake2b(digest_size=16)
        self._pack: Callable[[object], bytes] = msgpack.Packer().pack

    def note(self, now: float, node: str, kind: str, *details: float | int | str) -> None:
        """Add one line: virtual time, node (`""`: the world itself), kind, details."""
        notes = self._notes
        notes.append((now, node, kind, *details))
        if len(notes) >= self._keep + 1024:
            self._absorb()

    def frame(self, now: float, node: str, kind: str, peer: str, lane: str, frame: bytes) -> None:
        """Add a line for a frame: its length and crc32 stand for its content."""
        notes = self._notes
        notes.append((now, node, kind, peer, lane, len(frame), zlib.crc32(frame)))
        if len(notes) >= self._keep + 1024:
            self._absorb()

    def digest(self) -> str:
        """The hash of everything up to here, in hex."""
        self._absorb()
        return self._hash.hexdigest()

    def lines(self, last: int = 40) -> list[str]:
        """The last lines as text, oldest first; at most `keep` of them are remembered."""
        return [
            f"{now:12.6f}  {node or '-':<4} {kind:<10} {' '.join(map(str, details))}"
            for now, node, kind, *details in self._notes[-last:]
        ]

    def _absorb(self) -> None:
        fresh = self._notes[self._hashed :]
        if fresh:
            # Packed, not formatted: a third of the price, and each float enters with all its bits.
            self._hash.update(b"".join(map(self._pack, fresh)))
        del self._notes[: -self._keep]
        self._hashed = len(self._notes)


class Timeline:
    """Virtual time and the agenda of what is due when.

    `now`: virtual seconds since the world began, the same for all nodes (their own clocks differ).
    `errors`: what surfaced in loops, raised by `run` after the entry. `watchers`: called after each
    entry, to judge from outside.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.now = 0.0
        self.trace = trace if trace is not None else Trace()
        self.errors: list[BaseException] = []
        self.watchers: list[Callable[[], object]] = []
        self._agenda: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Do `action(*args)` at virtual instant `when` (an instant gone by means now)."""
        now = self.now
        entry = (when if when > now else now, next(self._order), action, args)
        heapq.heappush(self._agenda, entry)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Let everything due up to `until` happen; `done` is asked after each entry.

        `done` is asked before the first one too. Returns True as soon as it says so; otherwise
        `now` is `until` afterwards (when that is finite) and False comes back. Raises the first
        error that surfaced in a loop, what a watcher raises, LivelockError after
        INSTANT_ENTRIES_MAX entries at one instant, and RuntimeError inside a running event loop.
        """
        if events._get_running_loop() is not None:
            raise RuntimeError(
                "a world cannot run inside a running event loop, it has loops of its own: "
                "write the test as a plain def and use world.run(coroutine)"
            )
        hooks = sys.get_asyncgen_hooks()
        try:
            return self._run(until, done)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def _run(self, until: float, done: Callable[[], bool] | None) -> bool:
        agenda, pop, errors, watchers = self._agenda, heapq.heappop, self.errors, self.watchers
        if errors:
            self._raise()
        if done is not None and done():
            return True
        entries = 0
        while agenda and agenda[0][0] <= until:
            when, _, action, args = pop(agenda)
            if when > self.now:
                self.now = when
                entries = 0
            entries += 1
            if entries > INSTANT_ENTRIES_MAX:
                raise LivelockError(self.report(f"{INSTANT_ENTRIES_MAX} entries at one instant"))
            action(*args)
            if errors:
                self._raise()
            for watcher in watchers:
                watcher()
            if done is not None and done():
                return True
        if self.now < until < math.inf:
            self.now = until
        return False

    def report(self, what: str, last: int = 40) -> str:
        """`what`, the virtual time and the last trace lines: the text of a failure."""
        where = f"{what} (at {self.now:.6f} virtual s)"
        return "\n".join([f"{where}; the last steps:", *self.trace.lines(last)]) if last else where

    def _raise(self) -> Never:
        error = self.errors.pop(0)
        error.add_note(self.report("surfaced in the simulated world"))
        self.errors.clear()
        raise error
