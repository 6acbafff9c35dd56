# mypy: disable-error-code="import-not-found, misc, no-untyped-def"
"""thespian: the TCP base for two processes, the synchronous base for one. Calls block."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from thespian.actors import Actor, ActorSystem

from bench.messaging.driver import Ledger, Side
from bench.messaging.peer import free_port

ANSWER_TIMEOUT_S = 30.0


class Receiver(Actor):
    """Counts what it gets: (number, data), "count" or "totals"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ledger = Ledger()

    def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802 - its name
        """The one handler there is."""
        if message == "count":
            self.send(sender, self.ledger.asked())
        elif message == "totals":
            self.send(sender, self.ledger.totals())
        elif isinstance(message, tuple):
            self.ledger.told(*message)


class ThespianSide:
    """A `Side` from outside the actors; one ask at a time is all there is."""

    def __init__(self, system: Any, address: Any) -> None:
        self._system = system
        self._address = address

    def tell(self, message: tuple[int, bytes]) -> None:
        """Sent by the calling thread."""
        self._system.tell(self._address, message)

    def message(self, number: int, data: bytes) -> tuple[int, bytes]:
        """As the actor takes it."""
        return number, data

    async def ask(self) -> int:
        """Blocks until it is answered."""
        answer: int = self._system.ask(self._address, "count", ANSWER_TIMEOUT_S)
        return answer

    async def totals(self) -> list[int]:
        """Blocks until it is answered."""
        answer: list[int] = self._system.ask(self._address, "totals", ANSWER_TIMEOUT_S)
        return answer


@asynccontextmanager
async def drive(port: int) -> AsyncIterator[Side]:
    """An actor in a process that the system starts; `port` is its administrator's."""
    logging.disable(logging.CRITICAL)
    system = ActorSystem("multiprocTCPBase", capabilities={"Admin Port": free_port()})
    try:
        yield ThespianSide(system, system.createActor(Receiver))
    finally:
        system.shutdown()


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Side, Callable[[int], Awaitable[object]]]]:
    """All in the calling thread."""
    logging.disable(logging.CRITICAL)
    system = ActorSystem("simpleSystemBase")

    async def spawn(_number: int) -> object:
        return system.createActor(Receiver)

    try:
        yield ThespianSide(system, system.createActor(Receiver)), spawn
    finally:
        system.shutdown()
