# mypy: disable-error-code="import-not-found, misc, no-untyped-def"
"""ray: an actor is a process of its own; one machine, no dashboard."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.messaging.driver import Ledger, Side

OBJECT_STORE_BYTES = 400_000_000

# Read by ray when it is imported.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402


class Receiver:
    """Counts what it gets."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    def told(self, number: int, data: bytes) -> None:
        """One of many."""
        self.ledger.told(number, data)

    def asked(self) -> int:
        """Answered in order with the tells."""
        return self.ledger.asked()

    def totals(self) -> list[int]:
        """For the check after each row."""
        return self.ledger.totals()


class RaySide:
    """A `Side` over an actor's handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._told = handle.told.remote

    def tell(self, message: tuple[int, bytes]) -> None:
        """A call whose result nobody asks for."""
        self._told(*message)

    def message(self, number: int, data: bytes) -> tuple[int, bytes]:
        """The arguments of the call."""
        return number, data

    async def ask(self) -> int:
        """Of the receiver."""
        answer: int = await self._handle.asked.remote()
        return answer

    async def totals(self) -> list[int]:
        """Of the receiver."""
        answer: list[int] = await self._handle.totals.remote()
        return answer


@asynccontextmanager
async def drive(port: int) -> AsyncIterator[Side]:
    """A head of one machine; its services end with it. `port` is not used: ray chooses."""
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    try:
        side = RaySide(ray.remote(num_cpus=0)(Receiver).remote())
        await side.ask()
        yield side
    finally:
        ray.shutdown()
