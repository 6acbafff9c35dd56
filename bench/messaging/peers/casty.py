# mypy: disable-error-code="import-not-found, misc, untyped-decorator, no-untyped-def"
"""casty: two nodes on loopback, the receiver pinned to its node and without a replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from casty import ActorSystem, Askable, Cluster, Context, Limits, actor

from bench.messaging.driver import Ledger, Side
from bench.messaging.peer import free_port

# Frames and windows wide enough for a message of 1 MiB; the default refuses none of ours either,
# but is slower with it.
LIMITS = Limits(frame=2**20, message=8 * 2**20, window=4 * 2**20)
JOIN_TIMEOUT_S = 20.0
LOOK_S = 0.02


@dataclass(frozen=True)
class Blob:
    """A numbered message with a payload."""

    number: int
    data: bytes


@dataclass(frozen=True)
class Count(Askable[int]):
    """How many messages arrived before this one?"""

    unused: int = 0


@dataclass(frozen=True)
class Totals(Askable[str]):
    """What have you seen?"""

    unused: int = 0


@actor(initial=0, pinned=True, replicas=1)
async def receiver(ctx: Context[int, Blob | Count | Totals]) -> None:
    """Counts what it gets."""
    await _count(ctx)


@actor(initial=0, replicas=1, write="one")
async def entity(ctx: Context[int, Blob | Count | Totals]) -> None:
    """The same, found by its key alone."""
    await _count(ctx)


async def _count(ctx: Any) -> None:
    ledger = Ledger()
    async for message in ctx.inbox:
        match message:
            case Blob():
                ledger.told(message.number, message.data)
            case Count():
                message.reply_to.tell(ledger.asked())
            case Totals():
                message.reply_to.tell(json.dumps(ledger.totals()))


class CastySide:
    """A `Side` over a ref."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref
        self.tell = ref.tell
        self.message = Blob

    async def ask(self) -> int:
        """Of the receiver."""
        answer: int = await self._ref.ask(Count())
        return answer

    async def totals(self) -> list[int]:
        """Of the receiver."""
        answer: list[int] = json.loads(await self._ref.ask(Totals()))
        return answer


@asynccontextmanager
async def receive(port: int) -> AsyncIterator[None]:
    """The first node of the cluster."""
    async with ActorSystem(cluster=Cluster(bind=f"127.0.0.1:{port}", limits=LIMITS)):
        yield


@asynccontextmanager
async def drive(port: int) -> AsyncIterator[Side]:
    """The second node, once both see each other and the receiver answers."""
    cluster = Cluster(bind=f"127.0.0.1:{free_port()}", seeds=(f"127.0.0.1:{port}",), limits=LIMITS)
    async with ActorSystem(cluster=cluster) as system:
        side = CastySide(system.ref(receiver, "x", at=f"127.0.0.1:{port}"))
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while True:
                if len(system.members) == 2 and await _answers(side):
                    break
                await asyncio.sleep(LOOK_S)
        yield side


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Side, Callable[[int], Awaitable[object]]]]:
    """A system without a cluster."""
    async with ActorSystem(idle_after=timedelta(minutes=10)) as system:
        side = CastySide(system.ref(entity, "x"))
        await side.ask()

        async def spawn(number: int) -> object:
            return await system.ref(entity, f"spawned-{number}").ask(Count())

        yield side, spawn


async def _answers(side: CastySide) -> bool:
    try:
        await side.ask()
    except Exception:  # noqa: BLE001 - the first asks may come before the key has its place
        return False
    return True
