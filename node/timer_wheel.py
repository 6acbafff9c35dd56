"""The timeouts of all asks of a process, on one timer of the loop.

Decides: when an ask that nobody answered ends. Not before its timeout, and at most 10 ms or 1 % of
it later, whichever is more, as far as the loop itself is in time. Does not decide what an asker is
then told: that is `node.ask`. Used by `node.ref`, one wheel per `node.runtime`.

Those that end at about the same time share a bucket; only the first bucket is armed at the loop.
To add and to remove costs two dict operations. A wheel whose buckets are empty arms nothing more:
the timer that was armed last finds nothing, and is the last.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
from collections.abc import Callable
from typing import Protocol

GRAIN_MIN_S = 2.0**-7  # 7.8 ms; all grains are powers of two, so that instants are exact
PARTS_MIN = 110  # of a timeout; a grain is no larger than one of them
REARM_MIN_S = 0.001  # uvloop's timers may come half a millisecond early


class Entry(Protocol):
    """What waits in a wheel."""

    bucket: Bucket | None
    """Where it waits; set by the wheel."""

    def expire(self) -> None:
        """Its time is up. Called once, on the loop; must not raise."""


Bucket = dict[Entry, None]


class TimerWheel:
    """Entries by the instant at which they end, on `clock` (seconds)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._context = contextvars.Context()  # no asker's own, which would be kept alive
        self._buckets: dict[float, Bucket] = {}
        self._instants: list[float] = []  # the keys of the buckets, as a heap
        self._armed_for = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0  # the last one, and its grain: most are the same
        self._grain_s = GRAIN_MIN_S
        self._bucket: Bucket = {}  # the last one, good for this timeout until that instant
        self._same_until = -math.inf

    @property
    def is_armed(self) -> bool:
        """True while it holds a timer of the loop."""
        return self._timer is not None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, entry: Entry, timeout_s: float) -> None:
        """Call `entry.expire()` once `timeout_s` seconds have gone by, unless it is removed."""
        now = self._clock()
        if timeout_s == self._timeout_s and now < self._same_until:
            bucket = self._bucket
        else:
            bucket = self._find_bucket(now, timeout_s)
        bucket[entry] = None
        entry.bucket = bucket

    def _find_bucket(self, now: float, timeout_s: float) -> Bucket:
        """The bucket for such a timeout; until `_same_until` it is that for all others like it."""
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            self._grain_s = grain_s(timeout_s)
        grain = self._grain_s
        due = ((now + timeout_s) // grain + 1.0) * grain
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = {}
            heapq.heappush(self._instants, due)
            if due < self._armed_for:
                self._arm(due)
        self._bucket = bucket
        self._same_until = due - timeout_s - grain * 1e-6
        return bucket

    def remove(self, entry: Entry) -> None:
        """Forget an entry; one that is not there any more is ignored."""
        if entry.bucket is not None:
            entry.bucket.pop(entry, None)
            entry.bucket = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = due
        delay_s = max(due - self._clock(), REARM_MIN_S)
        self._timer = self._loop.call_later(delay_s, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer, self._armed_for = None, math.inf
        now = self._clock()
        instants, buckets = self._instants, self._buckets
        while instants and (instants[0] <= now or not buckets[instants[0]]):
            bucket = buckets.pop(heapq.heappop(instants))
            if bucket is self._bucket:
                self._same_until = -math.inf
            for entry in tuple(bucket):
                if entry in bucket:  # the one before may have removed it
                    del bucket[entry]
                    entry.bucket = None
                    entry.expire()
        if instants and instants[0] < self._armed_for:
            self._arm(instants[0])


def grain_s(timeout_s: float) -> float:
    """How far apart the buckets are for such timeouts: how much too late one may end."""
    if timeout_s <= GRAIN_MIN_S * PARTS_MIN:
        return GRAIN_MIN_S
    exponent = math.frexp(timeout_s / PARTS_MIN)[1]
    return math.ldexp(0.5, exponent)
