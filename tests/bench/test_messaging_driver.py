"""The driver's figures count only when the receiver saw what was sent, all of it and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bench.messaging import driver
from bench.messaging.driver import NUMBERS, Driver, Ledger, RefusedError, Totals

FOR_S = 0.01


class InMemory:
    """A side without any transport: messages lie in a list until the next ask.

    `spoil` may change what is delivered; `seen_asks` is what each ask counts for.
    """

    def __init__(self, spoil: Callable[[list[Any]], list[Any]], seen_asks: int = 1) -> None:
        self.ledger = Ledger()
        self._spoil = spoil
        self._seen_asks = seen_asks
        self._queue: list[tuple[int, bytes]] = []

    def message(self, number: int, data: bytes) -> tuple[int, bytes]:
        return number, data

    def tell(self, message: tuple[int, bytes]) -> None:
        self._queue.append(message)

    async def ask(self) -> int:
        await asyncio.sleep(0)
        queue, self._queue = self._queue, []
        for number, data in self._spoil(queue):
            self.ledger.told(number, data)
        for _ in range(self._seen_asks):
            self.ledger.asked()
        return self.ledger.tells

    async def totals(self) -> list[int]:
        return self.ledger.totals()


class Waiting(InMemory):
    """Its tell is a coroutine function."""

    async def tell(self, message: tuple[int, bytes]) -> None:  # type: ignore[override]
        super().tell(message)


class Once:
    """Spoils the first window that comes by, and no other."""

    def __init__(self, spoil: Callable[[list[Any]], list[Any]]) -> None:
        self._spoil = spoil
        self._is_done = False

    def __call__(self, messages: list[Any]) -> list[Any]:
        if self._is_done or not messages:
            return messages
        self._is_done = True
        return self._spoil(messages)


FAULTS: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "lost": (lambda got: got[:5] + got[6:], "messages of"),
    "doubled": (lambda got: [got[0], *got], "messages of"),
    "swapped": (lambda got: [got[1], got[0], *got[2:]], "out of their order"),
    "one lost, one doubled": (lambda got: [*got[:5], *got[6:], got[-1]], "out of their order"),
    "cut": (lambda got: [(got[0][0], got[0][1][:-1]), *got[1:]], "payload bytes of"),
}


@pytest.mark.parametrize("kind", [InMemory, Waiting])
async def test_a_true_side_has_figures(kind: type[InMemory]) -> None:
    """What was sent is what `n` says, row after row, also past the last of the numbers."""
    side = kind(lambda messages: messages)
    drive = Driver(side)
    for row in ("ask1", "ask64", "tell_100", "tell_1m", "tell_1k", "local_tell"):
        before = Totals(*side.ledger.totals())
        figures = await drive.run(row, FOR_S)
        after = Totals(*side.ledger.totals())
        assert figures["per_s"] > 0
        if row.startswith("ask"):
            assert figures["n"] <= after.asks - before.asks
        else:
            assert figures["n"] == after.tells - before.tells
    assert side.ledger.tells > NUMBERS
    assert side.ledger.misplaced == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_false_count_or_order_is_refused(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fault among thousands of messages takes the row's figures; the next row has its own."""
    monkeypatch.setattr(driver, "LATE_TIMEOUT_S", 0.05)
    spoil, words = FAULTS[fault]
    drive = Driver(InMemory(Once(spoil)))
    with pytest.raises(RefusedError, match=words):
        await drive.run("tell_100", FOR_S)
    drive = Driver(side := InMemory(Once(spoil)))
    with pytest.raises(RefusedError):
        await drive.run("tell_100", FOR_S)
    assert side.ledger.tells
    assert (await drive.run("ask1", FOR_S))["n"]


async def test_asks_that_are_not_counted_are_refused() -> None:
    """An answer that no receiver gave is no answer."""
    drive = Driver(InMemory(lambda messages: messages, seen_asks=2))
    with pytest.raises(RefusedError, match="asks of"):
        await drive.run("ask64", FOR_S)


async def test_messages_that_come_late_are_waited_for() -> None:
    """An ask that overtakes tells ends no row before they are there."""
    held: list[Any] = []

    def last_one_late(messages: list[Any]) -> list[Any]:
        ready = [*held, *messages[:-1]]
        held[:] = messages[-1:]
        return ready

    side = InMemory(last_one_late)
    figures = await Driver(side).run("tell_64k", FOR_S)
    assert figures["n"] == side.ledger.tells


@pytest.mark.parametrize(
    ("sent", "seen", "words"),
    [
        (Totals(5, 2, 10, 0), Totals(5, 2, 10, 0), None),
        (Totals(5, 2, 10, 0), Totals(4, 2, 10, 0), "4 messages of 5"),
        (Totals(5, 2, 10, 0), Totals(5, 1, 10, 0), "1 asks of 2"),
        (Totals(5, 2, 10, 0), Totals(5, 2, 9, 0), "9 payload bytes of 10"),
        (Totals(5, 2, 10, 0), Totals(5, 2, 10, 3), "3 messages out of their order"),
    ],
)
def test_what_differs_is_said(sent: Totals, seen: Totals, words: str | None) -> None:
    """Each count by itself can make a row void."""
    if words is None:
        driver.verify(sent=sent, seen=seen)
        return
    with pytest.raises(RefusedError, match=words):
        driver.verify(sent=sent, seen=seen)


def test_latency_is_by_nearest_rank() -> None:
    """In microseconds; the order of the samples does not matter."""
    spans_s = [number / 1e6 for number in range(100, 0, -1)]
    figures = driver.latency(spans_s)
    assert figures["p50_us"] == pytest.approx(50)
    assert figures["p99_us"] == pytest.approx(100)
