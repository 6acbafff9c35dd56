"""A store of leases in a simulated world, and each node's way to it, which can fail.

Decides what reaches the store and when: outages for all, ways that are cut for one, answers that
are lost after the write was done, writes that are done long after everybody gave them up. Draws
from dice of its own. Called by worlds that give their singletons a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from lease import LeaseRecord, LeaseStore, LeaseUnavailableError, MemoryStore, WriteConflict

if TYPE_CHECKING:
    from node.testkit.stage import Stage

WAY_S = (0.0005, 0.005)


class SimStore:
    """One store for a world. `down` for all, `cut_off` by the names of nodes; `loses` of all
    answers to writes are lost, `is_late` of all writes are done up to `late_s` later, and nobody
    hears of either."""

    def __init__(self, world: Stage, seed: int | str) -> None:
        self.store = MemoryStore()
        self.down = False
        self.cut_off: set[str] = set()
        self.loses = 0.0
        self.is_late = 0.0
        self.late_s = 20.0
        self.lost_answers = 0
        self.late_writes = 0
        self._world = world
        self._dice = random.Random(f"store {seed}")

    def door(self, name: str) -> LeaseStore:
        """The way of one node."""
        return _Door(self, name)

    def heal(self) -> None:
        """From here on everything arrives; what was sent before may still."""
        self.down, self.loses, self.is_late = False, 0.0, 0.0
        self.cut_off.clear()

    async def reach(self, name: str) -> None:
        """One way to the store. Raises `LeaseUnavailableError`, or never returns."""
        await asyncio.sleep(self._dice.uniform(*WAY_S))
        if self.down or name in self.cut_off:
            if self._dice.random() < 0.5:
                raise LeaseUnavailableError("the store is not reached")
            await asyncio.get_running_loop().create_future()

    async def write(self, record: LeaseRecord, if_version: str | None) -> LeaseRecord:
        """Do it, or do it later and say nothing."""
        if self._dice.random() < self.is_late:
            self.late_writes += 1
            late_s = self.late_s * self._dice.random()
            self._world.after(late_s, self._write_late, record, if_version)
            await asyncio.get_running_loop().create_future()
        stored = await self.store.write(record, if_version=if_version)
        if self._dice.random() < self.loses:
            self.lost_answers += 1
            raise LeaseUnavailableError("the answer was lost")
        return stored

    def _write_late(self, record: LeaseRecord, if_version: str | None) -> None:
        # A memory store awaits nothing: one step of the coroutine is all of it.
        with contextlib.suppress(StopIteration, WriteConflict):
            self.store.write(record, if_version=if_version).send(None)


class _Door(LeaseStore):
    def __init__(self, store: SimStore, name: str) -> None:
        self._store = store
        self._name = name

    async def read(self, name: str) -> LeaseRecord | None:
        await self._store.reach(self._name)
        return await self._store.store.read(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        await self._store.reach(self._name)
        return await self._store.write(record, if_version)

    async def changed(self, name: str, version: str) -> None:
        await self._store.reach(self._name)
        await self._store.store.changed(name, version)
