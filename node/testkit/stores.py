"""A store of leases in a simulated world, and each node's way to it, which can fail.

Decides what reaches the store and when: outages for all, ways that are cut for one, answers that
are lost after the write was done, writes that are done long after everybody gave them up. Draws
from dice of its own. Remembers when the present record of each lease landed: that, and not what a
machine believes, says until when its holder may act. Called by worlds that give their singletons a
lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from lease import LeaseRecord, LeaseStore, LeaseUnavailableError, MemoryStore, WriteConflict

if TYPE_CHECKING:
    from node.testkit.stage import Stage

WAY_S = (0.0005, 0.005)
CLOCK_RATE_MAX = 1.01
"""Of who waits: so much sooner, at most, a ttl is over for it than by the world's time."""


class SimStore:
    """One store for a world. `down` for all, `cut_off` by the names of nodes; `loses` of all
    answers to writes are lost, `is_late` of all writes are done up to `late_s` later, and nobody
    hears of either. `loses_next`: of the next write from there the answer is lost, and then this is
    called. `last_fault_at`: when it last failed anybody, or a late write landed."""

    def __init__(self, world: Stage, seed: int | str) -> None:
        self.store = MemoryStore()
        self.down = False
        self.cut_off: set[str] = set()
        self.loses = 0.0
        self.is_late = 0.0
        self.late_s = 20.0
        self.lost_answers = 0
        self.late_writes = 0
        self.loses_next: dict[str, Callable[[], object]] = {}
        self.last_fault_at = 0.0
        self._landed: dict[str, tuple[LeaseRecord, float]] = {}
        self._world = world
        self._dice = random.Random(f"store {seed}")

    def door(self, name: str) -> LeaseStore:
        """The way of one node."""
        return _Door(self, name)

    def heal(self) -> None:
        """From here on everything arrives; what was sent before may still."""
        self.down, self.loses, self.is_late = False, 0.0, 0.0
        self.cut_off.clear()
        self.loses_next.clear()

    def covers(self, name: str, token: int | None) -> bool:
        """True while nobody else has the lease, and nobody who waits for it could have it yet."""
        record, landed_at = self._landed[name]
        left_s = landed_at + record.ttl_s / CLOCK_RATE_MAX - self._world.now
        return record.token == token and not record.free and left_s > 0

    async def reach(self, name: str) -> None:
        """One way to the store. Raises `LeaseUnavailableError`, or never returns."""
        await asyncio.sleep(self._dice.uniform(*WAY_S))
        if self.down or name in self.cut_off:
            self.last_fault_at = self._world.now
            if self._dice.random() < 0.5:
                raise LeaseUnavailableError("the store is not reached")
            await asyncio.get_running_loop().create_future()

    async def write(self, way: str, record: LeaseRecord, if_version: str | None) -> LeaseRecord:
        """Do it, or do it later and say nothing."""
        if self._dice.random() < self.is_late:
            self.late_writes += 1
            late_s = self.late_s * self._dice.random()
            self._world.after(late_s, self._write_late, record, if_version)
            await asyncio.get_running_loop().create_future()
        stored = await self.store.write(record, if_version=if_version)
        self._landed[record.name] = (stored, self._world.now)
        then = self.loses_next.pop(way, None)
        if then is not None or self._dice.random() < self.loses:
            self.lost_answers += 1
            self.last_fault_at = self._world.now
            if then is not None:
                then()
            raise LeaseUnavailableError("the answer was lost")
        return stored

    def _write_late(self, record: LeaseRecord, if_version: str | None) -> None:
        # A memory store awaits nothing: one step of the coroutine is all of it.
        with contextlib.suppress(WriteConflict):
            try:
                self.store.write(record, if_version=if_version).send(None)
            except StopIteration as landed:
                self._landed[record.name] = (landed.value, self._world.now)
                self.last_fault_at = self._world.now


class _Door(LeaseStore):
    def __init__(self, store: SimStore, name: str) -> None:
        self._store = store
        self._name = name

    async def read(self, name: str) -> LeaseRecord | None:
        await self._store.reach(self._name)
        return await self._store.store.read(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        await self._store.reach(self._name)
        return await self._store.write(self._name, record, if_version)

    async def changed(self, name: str, version: str) -> None:
        await self._store.reach(self._name)
        await self._store.store.changed(name, version)
