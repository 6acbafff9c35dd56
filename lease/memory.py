"""A store inside one process: for tests, simulated worlds, and systems that share a process.

Decides nothing; see `lease.store`. Members in different processes have different ones, so it
protects nothing between them. No threads, no waiting: it runs on any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace

from lease.errors import WriteConflict
from lease.record import LeaseRecord, store_remaining_s
from lease.store import LeaseStore


class MemoryStore(LeaseStore):
    """Records in a dict. Hand the same object to all who contend; their loops may differ.

    `clock`: seconds on a clock that all of them share; without it a record is old only for those
    who watched it. `wall_clock` is for people. Not to be used from several threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._identity = f"memory:{secrets.token_hex(8)}"
        self._clock = clock
        self._wall_clock = wall_clock
        self._records: dict[str, LeaseRecord] = {}
        self._sequence = 0
        # In order, so that a simulated world is the same with each run; no value is used.
        self._watches: dict[str, dict[asyncio.Future[None], None]] = {}

    @property
    def identity(self) -> str:
        """Another one for each object: nobody else can mean this store."""
        return self._identity

    async def read(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`."""
        return self._records.get(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """See `LeaseStore`."""
        current = self._records.get(record.name)
        if (None if current is None else current.version) != if_version:
            raise WriteConflict(current)
        self._sequence += 1
        acquired = record.token is None
        since = self._wall_clock() if acquired and self._wall_clock is not None else None
        if not acquired and current is not None:
            since = current.acquired_at_wall_s
        stored = replace(
            record,
            token=self._sequence if record.token is None else record.token,
            version=str(self._sequence),
            clock="" if self._clock is None else self._identity,
            written_at=0.0 if self._clock is None else self._clock(),
            acquired_at_wall_s=since,
        )
        self._records[record.name] = stored
        self._tell(record.name)
        return stored

    async def changed(self, name: str, version: str) -> None:
        """See `LeaseStore`; told at once."""
        current = self._records.get(name)
        if current is None or current.version != version:
            return
        watch = asyncio.get_running_loop().create_future()
        self._watches.setdefault(name, {})[watch] = None
        try:
            await watch
        finally:
            watches = self._watches.get(name, {})
            watches.pop(watch, None)
            if not watches:
                self._watches.pop(name, None)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        """By the clock given; None without one."""
        if self._clock is None:
            return None
        return store_remaining_s(record, self._identity, self._clock())

    def delete(self, name: str) -> None:
        """Take the record away, as somebody with access to the store might."""
        if self._records.pop(name, None) is not None:
            self._tell(name)

    def _tell(self, name: str) -> None:
        # Watches are told in their loops' own turn; one whose loop was closed needs no word.
        for watch in self._watches.pop(name, {}):
            with contextlib.suppress(RuntimeError):
                watch.get_loop().call_soon_threadsafe(_finish, watch)


def _finish(watch: asyncio.Future[None]) -> None:
    if not watch.done():
        watch.set_result(None)
