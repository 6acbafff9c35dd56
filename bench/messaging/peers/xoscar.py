# mypy: disable-error-code="import-not-found, misc, no-untyped-def"
"""xoscar: an actor pool without sub-processes in each of two processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import xoscar

from bench.messaging.driver import Ledger, Side
from bench.messaging.peer import free_port


class Receiver(xoscar.Actor):
    """Counts what it gets."""

    def __init__(self) -> None:
        super().__init__()
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


class XoscarSide:
    """A `Side` over an actor's ref; a tell is a coroutine here."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref
        told = ref.told.tell

        async def tell(message: tuple[int, bytes]) -> None:
            await told(*message)

        self.tell = tell

    def message(self, number: int, data: bytes) -> tuple[int, bytes]:
        """The arguments of the call."""
        return number, data

    async def ask(self) -> int:
        """Of the receiver."""
        answer: int = await self._ref.asked()
        return answer

    async def totals(self) -> list[int]:
        """Of the receiver."""
        answer: list[int] = await self._ref.totals()
        return answer


@asynccontextmanager
async def receive(port: int) -> AsyncIterator[None]:
    """A pool with the receiver in it."""
    pool = await xoscar.create_actor_pool(f"127.0.0.1:{port}", n_process=0)
    async with pool:
        await xoscar.create_actor(Receiver, address=pool.external_address, uid="receiver")
        yield


@asynccontextmanager
async def drive(port: int) -> AsyncIterator[Side]:
    """A client of the pool."""
    yield XoscarSide(await xoscar.actor_ref(f"127.0.0.1:{port}", "receiver"))


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Side, Callable[[int], Awaitable[object]]]]:
    """A pool and its client in one process."""
    pool = await xoscar.create_actor_pool(f"127.0.0.1:{free_port()}", n_process=0)
    async with pool:
        address = pool.external_address
        ref = await xoscar.create_actor(Receiver, address=address, uid="receiver")

        async def spawn(number: int) -> object:
            created: object = await xoscar.create_actor(
                Receiver, address=address, uid=f"spawned-{number}"
            )
            return created

        yield XoscarSide(ref), spawn
