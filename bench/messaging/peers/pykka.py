# mypy: disable-error-code="import-not-found, misc, no-untyped-def"
"""pykka: a thread for each actor, in one process only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pykka

from bench.messaging.driver import Ledger, Side

ANSWER_TIMEOUT_S = 30.0


class Receiver(pykka.ThreadingActor):
    """Counts what it gets: (number, data), "count" or "totals"."""

    use_daemon_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()

    def on_receive(self, message: Any) -> Any:
        """The one handler there is."""
        if message == "count":
            return self.ledger.asked()
        if message == "totals":
            return self.ledger.totals()
        return self.ledger.told(*message)


class PykkaSide:
    """A `Side` over an actor's ref. Its futures block, so an asker lets the others send first."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref
        self.tell = ref.tell

    def message(self, number: int, data: bytes) -> tuple[int, bytes]:
        """As the actor takes it."""
        return number, data

    async def ask(self) -> int:
        """Blocks until it is answered."""
        future = self._ref.ask("count", block=False)
        await asyncio.sleep(0)
        answer: int = future.get(timeout=ANSWER_TIMEOUT_S)
        return answer

    async def totals(self) -> list[int]:
        """Blocks until it is answered."""
        answer: list[int] = self._ref.ask("totals", timeout=ANSWER_TIMEOUT_S)
        return answer


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Side, Callable[[int], Awaitable[object]]]]:
    """Actors and their threads."""

    async def spawn(_number: int) -> object:
        return Receiver.start()

    try:
        yield PykkaSide(Receiver.start()), spawn
    finally:
        pykka.ActorRegistry.stop_all(block=False)
