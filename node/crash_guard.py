"""The crash guard: the leases of a process that has certainly ended are given back for it.

A crash costs what is left of a lease's ttl because nobody else knows that the holder acts no more.
Whoever waited for the process does: it was reaped, and nobody of its process group is left. Decides
which records may be freed (those whose holder is that very process, unchanged since they were
read: compare-and-swap on the version) and for how long it is looked again (a ttl: a write that the
dead had sent may land late). Does not decide that a process has ended: `node.processes` does, which
calls `give_back`. In the member `Report` says which leases there are, before any is asked for.

What the process had already sent to others is not undone by this: fence it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from node.errors import SettingsError

if TYPE_CHECKING:
    from lease import Lease, LeaseRecord, LeaseStore

logger = logging.getLogger(__name__)

LOOK_S = 0.5
LINE_BYTES_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Reported:
    """A lease that a member may come to hold; `holder` is what stands in its record then."""

    url: str
    name: str
    holder: str
    ttl_s: float


class Report:
    """The member's end of the pipe to its supervisor, by descriptor, which no child inherits.

    The constructor raises `SettingsError` for a descriptor that is no such end.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
            is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode) and mode != os.O_RDONLY
        except (OSError, ValueError, OverflowError):
            is_pipe = False
        if not is_pipe:
            raise SettingsError(
                f"--guard-fd={descriptor} is no pipe to a supervisor: leave it out; --processes "
                "gives it to the members"
            )
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say so, once, when the supervisor is gone. This member serves all the same."""

        def gone() -> None:
            loop.remove_reader(self._descriptor)
            logger.error(
                "the supervisor of this member is gone: the crash guard is off, so after a crash "
                "its leases are left to their ttl, and nobody starts it again"
            )

        # Nothing is ever to read at this end: it wakes only when the other one is closed.
        loop.add_reader(self._descriptor, gone)

    def add(self, url: str, lease: Lease) -> None:
        """Tell of a lease in the store that `url` names. To be called before it is asked for."""
        settings = lease.settings
        told = Reported(url, settings.name, lease.holder, settings.ttl_s)
        line = json.dumps(asdict(told)).encode() + b"\n"
        with contextlib.suppress(OSError):  # the supervisor is gone: nobody guards any more
            os.write(self._descriptor, line)


def parse(line: bytes) -> Reported | None:
    """What a line of `Report` says; None for one that is none."""
    try:
        return Reported(**json.loads(line))
    except (ValueError, TypeError):
        return None


class Guard:
    """Gives leases back. Keeps the stores that it opened until `close`. `looks`: how often a record
    was looked at, in vain or not."""

    def __init__(self) -> None:
        self.looks = 0
        self._stores: dict[str, LeaseStore] = {}
        self._tries = 0

    async def give_back(self, lease: Reported) -> None:
        """Free its record if it is still that of the dead process; look again for a ttl."""
        loop = asyncio.get_running_loop()
        until = loop.time() + lease.ttl_s
        while True:
            try:
                await self._free(lease)
            except Exception as error:  # noqa: BLE001 - of any store; its ttl frees it as well
                logger.warning(
                    "the lease of a process that ended could not be given back",
                    extra={"lease": lease.name, "error": f"{type(error).__name__}: {error}"},
                )
            self.looks += 1
            if loop.time() >= until:
                return
            await asyncio.sleep(min(LOOK_S, max(0.0, until - loop.time())))

    async def _free(self, lease: Reported) -> None:
        from lease import WriteConflict

        store = self._store(lease.url)
        record = await store.read(lease.name)
        if record is None or record.holder != lease.holder:
            return
        self._tries += 1
        try:
            await store.write(_freed(record, self._tries), if_version=record.version)
        except WriteConflict:
            return  # the next look tells whose it is
        logger.info(
            "gave the lease of a process that ended back",
            extra={"lease": lease.name, "holder": lease.holder, "token": record.token},
        )

    def _store(self, url: str) -> LeaseStore:
        from lease import from_url

        if url not in self._stores:
            self._stores[url] = from_url(url)
        return self._stores[url]

    async def close(self) -> None:
        """Close the stores."""
        for store in self._stores.values():
            await store.close()
        self._stores.clear()


def _freed(record: LeaseRecord, number: int) -> LeaseRecord:
    from lease import LeaseRecord

    return LeaseRecord(
        name=record.name,
        holder="",
        token=record.token,
        ttl_s=record.ttl_s,
        write_id=f"guard.{os.getpid()}.{number}",
    )
