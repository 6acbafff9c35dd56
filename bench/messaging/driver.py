"""The one load that every side is put under, and what its receiver must have seen.

Decides how a row is driven: for how long, with how much outstanding, and when its figures are
refused. Knows no side: ours and every peer implement `Side`. Standard library only, since it runs
in each peer's own interpreter. Called by `session`.

Asks: so many independent askers, each with one ask outstanding. Tells: in windows, each closed by
an ask that is not waited for until `WINDOWS_OPEN` of them are under way. Messages are made before
the clock runs. A row goes on for a time, not for a count, so that a slow side costs no more of it
than a fast one; all that was begun is finished before the clock stops.

The messages of all rows are numbered on, around `NUMBERS`: more than can be under way at once, so
that a message lost, doubled or out of its place never has the number that is expected.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

NUMBERS = 8192
WINDOWS_OPEN = 2
WARM_ASKS = 200
LATE_TIMEOUT_S = 10.0
LATE_LOOK_S = 0.01


class RefusedError(Exception):
    """What the receiver counted is not what was sent: the row's figures mean nothing."""


class Totals(NamedTuple):
    """What a receiver has seen since it began."""

    tells: int
    asks: int
    payload_bytes: int
    misplaced: int


class Ledger:
    """Kept by the receiver of every side: how many, how many bytes, and whether in order."""

    __slots__ = ("asks", "expected", "misplaced", "payload_bytes", "tells")

    def __init__(self) -> None:
        self.tells = self.asks = self.payload_bytes = self.misplaced = 0
        self.expected = 0

    def told(self, number: int, data: bytes | memoryview) -> None:
        """A message arrived."""
        if number != self.expected:
            self.misplaced += 1
        self.expected = (number + 1) % NUMBERS
        self.tells += 1
        self.payload_bytes += len(data)

    def asked(self) -> int:
        """An ask arrived; the answer is the count of messages before it."""
        self.asks += 1
        return self.tells

    def totals(self) -> list[int]:
        """`Totals` as a list, which every side can carry."""
        return [self.tells, self.asks, self.payload_bytes, self.misplaced]


class Side(Protocol):
    """An implementation under test, seen from the sender; `tell` may be a plain function or a
    coroutine function."""

    @property
    def tell(self) -> Callable[[Any], Any]:
        """Takes what `message` made."""

    def message(self, number: int, data: bytes) -> Any:
        """A message that `tell` takes."""

    async def ask(self) -> int:
        """`Ledger.asked` of the receiver."""

    async def totals(self) -> list[int]:
        """`Ledger.totals` of the receiver; counts nothing itself."""


@dataclass(frozen=True, slots=True)
class AskRow:
    """So many independent askers."""

    outstanding: int


@dataclass(frozen=True, slots=True)
class TellRow:
    """Messages with a payload of `size_bytes`, `window` of them between two asks."""

    size_bytes: int
    window: int


ROWS: dict[str, AskRow | TellRow] = {
    "ask1": AskRow(1),
    "ask64": AskRow(64),
    "ask1024": AskRow(1024),
    "tell_100": TellRow(100, 2048),
    "tell_1k": TellRow(1024, 1024),
    "tell_64k": TellRow(64 * 1024, 32),
    "tell_1m": TellRow(1024 * 1024, 4),
    "local_ask1": AskRow(1),
    "local_ask64": AskRow(64),
    "local_tell": TellRow(0, 1024),
}

Figures = dict[str, float]


class Driver:
    """Drives one side, row after row, and compares after each what was sent with what arrived."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._asked = self._told = self._payload_bytes = 0
        self._base = Totals(0, 0, 0, 0)

    async def run(self, name: str, for_s: float) -> Figures:
        """The figures of a row: `n` and `per_s`, and what fits its kind.

        Raises `RefusedError` when the receiver's counts differ; the next row begins afresh.
        """
        row = ROWS[name]
        await self._begin()
        if isinstance(row, AskRow):
            figures = await self._ask_row(row, for_s)
        else:
            figures = await self._tell_row(row, for_s)
        await self._verify()
        return figures

    async def _begin(self) -> None:
        self._base = Totals(*await self._side.totals())
        self._asked = self._told = self._payload_bytes = 0
        for _ in range(WARM_ASKS):
            await self._ask()

    async def _ask(self) -> int:
        self._asked += 1
        return await self._side.ask()

    async def _ask_row(self, row: AskRow, for_s: float) -> Figures:
        if row.outstanding == 1:
            return await self._ask_one_by_one(for_s)
        ask = self._side.ask
        counts = [0] * row.outstanding

        async def asker(place: int) -> None:
            count = 0
            while perf_counter() < end_at:
                await ask()
                count += 1
            counts[place] = count

        begun_at = perf_counter()
        end_at = begun_at + for_s
        await asyncio.gather(*[asker(place) for place in range(row.outstanding)])
        elapsed_s = perf_counter() - begun_at
        self._asked += sum(counts)
        return {"n": sum(counts), "per_s": sum(counts) / elapsed_s}

    async def _ask_one_by_one(self, for_s: float) -> Figures:
        ask = self._side.ask
        spans_s: list[float] = []
        begun_at = at = perf_counter()
        end_at = begun_at + for_s
        while at < end_at:
            await ask()
            now = perf_counter()
            spans_s.append(now - at)
            at = now
        self._asked += len(spans_s)
        return {
            "n": len(spans_s),
            "per_s": len(spans_s) / (at - begun_at),
            **latency(spans_s),
        }

    async def _tell_row(self, row: TellRow, for_s: float) -> Figures:
        windows = self._windows(row)
        tell = self._side.tell
        awaited = inspect.iscoroutinefunction(tell)
        closing: deque[asyncio.Future[int]] = deque()
        place = 0
        begun_at = perf_counter()
        end_at = begun_at + for_s
        while perf_counter() < end_at:
            if awaited:
                for message in windows[place]:
                    await tell(message)
            else:
                for message in windows[place]:
                    tell(message)
            place = (place + 1) % len(windows)
            self._told += row.window
            closing.append(asyncio.ensure_future(self._ask()))
            if len(closing) > WINDOWS_OPEN:
                await closing.popleft()
            else:
                await asyncio.sleep(0)
        for answer in closing:
            await answer
        elapsed_s = await self._all_arrived(begun_at)
        self._payload_bytes = self._told * row.size_bytes
        return {
            "n": self._told,
            "per_s": self._told / elapsed_s,
            "mb_per_s": self._payload_bytes / elapsed_s / 1e6,
        }

    def _windows(self, row: TellRow) -> list[list[Any]]:
        """Windows of messages, numbered on from the last one that was sent."""
        data = b"x" * row.size_bytes
        first = self._base.tells
        messages = [
            self._side.message((first + number) % NUMBERS, data) for number in range(NUMBERS)
        ]
        return [messages[at : at + row.window] for at in range(0, NUMBERS, row.window)]

    async def _all_arrived(self, begun_at: float) -> float:
        """Seconds until the receiver had all: at once when asks stay behind tells, as they should.

        After `LATE_TIMEOUT_S` the row is over whatever is missing; `_verify` says how much.
        """
        late_at = perf_counter() + LATE_TIMEOUT_S
        while True:
            seen = await self._ask()
            now = perf_counter()
            if seen >= self._base.tells + self._told or now > late_at:
                return now - begun_at
            await asyncio.sleep(LATE_LOOK_S)

    async def _verify(self) -> None:
        totals = Totals(*await self._side.totals())
        verify(
            sent=Totals(self._told, self._asked, self._payload_bytes, 0),
            seen=Totals(*(now - then for now, then in zip(totals, self._base, strict=True))),
        )


def verify(*, sent: Totals, seen: Totals) -> None:
    """Raises `RefusedError`, saying what differs, unless the receiver saw what was sent."""
    wrong = [
        f"{after} {name} of {before}"
        for name, before, after in zip(
            ("messages", "asks", "payload bytes"), sent[:3], seen[:3], strict=True
        )
        if before != after
    ]
    if seen.misplaced:
        wrong.append(f"{seen.misplaced} messages out of their order")
    if wrong:
        raise RefusedError(f"the receiver counted {', '.join(wrong)}")


def latency(spans_s: list[float]) -> Figures:
    """The median and the 99th percentile (nearest rank) in microseconds."""
    ordered = sorted(spans_s)
    last = len(ordered) - 1
    return {
        "p50_us": ordered[last // 2] * 1e6,
        "p99_us": ordered[min(last, len(ordered) * 99 // 100)] * 1e6,
    }


def shown(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures as they are written: four digits after the point."""
    return {name: round(value, 4) for name, value in figures.items()}
