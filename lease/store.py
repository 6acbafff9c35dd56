"""The contract of a lease store: a record per name, replaced only by who knows the present one.

A store decides nothing about who may hold; `lease.machine` does. Called by `lease.keeper`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from lease.record import LeaseRecord


class LeaseStore(ABC):
    """What a backend implements; reads and writes of one name must be linearizable.

    Every method may raise `LeaseUnavailableError`; it means "unknown", never "no". A method that
    is cancelled counts as unknown too. All are called on the event loop and must not block it.
    """

    poll_interval_s: ClassVar[float] = 1.0

    @property
    def identity(self) -> str:
        """What must be equal on two members for them to mean the same store."""
        return type(self).__qualname__

    @abstractmethod
    async def read(self, name: str) -> LeaseRecord | None:
        """The record as it is now, never an older one; None when there is none.

        Damaged fields are no reason to raise nor to answer None: the machine knows what to
        believe of a record, and a damaged one is not free (I-13).
        """

    async def look(self, name: str) -> LeaseRecord | None:
        """As `read`, for those who only watch; that it answers is told to others as "this member
        could have the lease". A store that can be read while it takes no write must not answer
        this one then: it overrides it. This one reads."""
        return await self.read(name)

    @abstractmethod
    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """Replace the record of that version, None: create it where there is none.

        Returns what is stored. A record with `token=None` is given a token greater than every
        token that this store ever gave for this name, whatever happened since to record, store
        or clock (I-18); any other is stored as it is, so it keeps its token while it is renewed.
        No version ever returns. Raises `WriteConflict` with the present record when it is
        another one; then nothing was written.
        """

    async def changed(self, name: str, version: str) -> None:
        """Return when the record has another version, as soon as it is known.

        May return too early. This one reads each `poll_interval_s`; a store that can be told of
        changes overrides it.
        """
        while True:
            record = await self.read(name)
            if record is None or record.version != version:
                return
            await asyncio.sleep(self.poll_interval_s)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        """Seconds until a record just read expires by the clock of the store; negative: it has.

        None, as here, when the store has no clock that all its users share: then a record is old
        only for those who watched it unchanged.
        """
        return None

    async def close(self) -> None:
        """Give back what the store holds. It is not used afterwards."""
        return
