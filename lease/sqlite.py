"""A store in an SQLite file, for the processes of one host.

Decides nothing; see `lease.store`. All work is done on one thread of its own, so the event loop
never waits for the disk. What a user has to know: the file must lie on a disk of this host
(processes on other hosts would share neither its locks nor its clock); a process that is stopped in
the middle of a commit holds the file's lock, and all others wait until it goes on (safe, but nobody
renews meanwhile); restoring an old copy of the file resets the tokens.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.host_clock import boot_time_s, clock_identity
from lease.record import LeaseRecord, store_remaining_s
from lease.store import LeaseStore

T = TypeVar("T")

FORMAT = 1
REQUEST_TIMEOUT_S = 2.0
LOCK_PROBE_S = 1.0
_OPEN_RETRY_S = 0.005
_TOKEN_MAX = 2**63 - 1

# By name, as the kernel's table of mounts tells them. All of FUSE is among them: whether such a
# file system is a network's (sshfs, virtiofs, glusterfs) cannot be told from outside.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "gfs", "gfs2", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "prl_fs", "smb3", "smbfs"),
        *("vboxsf", "virtiofs", "vmhgfs"),
    ]
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tenure_leases (
    name TEXT PRIMARY KEY NOT NULL,
    holder TEXT NOT NULL,
    token INTEGER NOT NULL,
    ttl_s REAL NOT NULL,
    write_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    clock TEXT NOT NULL,
    written_at REAL NOT NULL,
    acquired_at_wall_s REAL
);
CREATE TABLE IF NOT EXISTS tenure_lease_sequence (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    last INTEGER NOT NULL
);
"""
_SELECT = """
SELECT name, holder, token, ttl_s, write_id, version, clock, written_at, acquired_at_wall_s
FROM tenure_leases WHERE name = ?
"""
_REPLACE = "INSERT OR REPLACE INTO tenure_leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteStore(LeaseStore):
    """Leases in the file `path`, which is created when it is missing; its folder must exist.

    Raises ValueError when the folder does not exist or lies on a network file system. A request
    that takes longer than `request_timeout_s` is unknown.
    """

    poll_interval_s: ClassVar[float] = 0.02

    def __init__(
        self, path: str | os.PathLike[str], *, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.path = Path(path).absolute()
        if not self.path.parent.is_dir():
            raise ValueError(
                f"the lease store {self.path} cannot be created: there is no folder "
                f"{self.path.parent}; create it first"
            )
        kind = file_system_of(self.path)
        if kind is not None and kind.partition(".")[0] in NETWORK_FILE_SYSTEMS:
            raise ValueError(
                f"the lease store {self.path} lies on a {kind} file system, where SQLite's locks "
                "do not hold between hosts: use a disk of this host, or a store that is a server"
            )
        self._timeout_s = request_timeout_s
        self._had_lock_at = -math.inf
        self._closed = False
        self._clock_identity = clock_identity()
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tenure-lease-sqlite")
        # Touched by the executor's thread only.
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @property
    def identity(self) -> str:
        """Its URL."""
        return f"sqlite://{self.path}"

    async def read(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`."""
        return await self._run(lambda: self._read(name))

    async def look(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`: a file that somebody has locked can be read. The lock is tried once per
        `LOCK_PROBE_S`, whatever many leases are looked at."""
        return await self._run(lambda: self._look(name))

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """See `LeaseStore`. What gives or takes a lease is on the disk when this returns; a
        renewal may be lost with the power, together with its holder."""
        return await self._run(lambda: self._write(record, if_version))

    async def changed(self, name: str, version: str) -> None:
        """See `LeaseStore`. Each 20 ms it is asked whether anybody has written at all; only then
        the record is read."""
        written = await self._run(self._data_version)
        while (await self._run(lambda: self._version_of(name))) == version:
            before = written
            while written == before:
                await asyncio.sleep(self.poll_interval_s)
                written = await self._run(self._data_version)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        """By the boot clock, when the record was written since this boot, in our time namespace."""
        return store_remaining_s(record, self._clock_identity, boot_time_s())

    async def close(self) -> None:
        """Close the file; what is under way ends first, or at its timeout. Further requests are
        unknown."""
        with contextlib.suppress(LeaseUnavailableError):
            await self._run(self._disconnect)
        self._closed = True
        self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise LeaseUnavailableError(f"the lease store {self.path} was closed by this process")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, work)
        except TimeoutError:
            raise LeaseUnavailableError(
                f"the lease store {self.path} did not answer within {self._timeout_s:g} s: its "
                "disk is slow, or another process holds its lock"
            ) from None

    # -- on the thread

    def _read(self, name: str) -> LeaseRecord | None:
        with self._at_the_file() as connection:
            return _select(connection, name)

    def _look(self, name: str) -> LeaseRecord | None:
        with self._at_the_file() as connection:
            if time.monotonic() - self._had_lock_at > LOCK_PROBE_S:
                connection.execute("BEGIN IMMEDIATE")
                self._had_lock_at = time.monotonic()
                connection.execute("ROLLBACK")
            return _select(connection, name)

    def _version_of(self, name: str) -> str | None:
        record = self._read(name)
        return None if record is None else record.version

    def _data_version(self) -> tuple[object, ...]:
        """Another one after each write of anybody to the file, or of ours."""
        with self._at_the_file() as connection:
            return (self._file, *connection.execute("PRAGMA data_version").fetchone(),
                    connection.total_changes)  # fmt: skip

    def _write(self, record: LeaseRecord, if_version: str | None) -> LeaseRecord:
        lasting = record.token is None or record.free
        with self._at_the_file() as connection:
            # Not inside the transaction: there SQLite refuses it.
            connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            self._had_lock_at = time.monotonic()
            current = _select(connection, record.name)
            if (None if current is None else current.version) != if_version:
                connection.execute("ROLLBACK")
                raise WriteConflict(current)
            stored = self._stamped(record, current, _next_in_sequence(connection))
            connection.execute(_REPLACE, _row(stored))
            connection.execute("COMMIT")
            if self._file != _inode(self.path):
                raise sqlite3.OperationalError("the file was replaced while it was written")
            return stored

    def _stamped(
        self, record: LeaseRecord, current: LeaseRecord | None, sequence: int
    ) -> LeaseRecord:
        acquired = record.token is None
        since = None if current is None else current.acquired_at_wall_s
        return LeaseRecord(
            name=record.name,
            holder=record.holder,
            token=sequence if record.token is None else record.token,
            ttl_s=record.ttl_s,
            write_id=record.write_id,
            version=str(sequence),
            clock=self._clock_identity,
            written_at=boot_time_s(),
            acquired_at_wall_s=time.time() if acquired else since,
        )

    @contextlib.contextmanager
    def _at_the_file(self) -> Iterator[sqlite3.Connection]:
        """The connection to the file that bears the name now. Errors of SQLite close it."""
        try:
            if self._connection is not None and self._file != _inode(self.path):
                # Somebody deleted or replaced it: what is open is not what others open.
                self._disconnect()
            if self._connection is None:
                self._connect()
            assert self._connection is not None
            yield self._connection
        except WriteConflict:
            raise
        except (sqlite3.Error, OSError, OverflowError) as error:
            self._disconnect()
            raise LeaseUnavailableError(f"the lease store {self.path} failed: {error}") from error

    def _connect(self) -> None:
        """Open, create and check; several processes may do so at once."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            connection = sqlite3.connect(
                self.path,
                timeout=self._timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                _prepare(connection)
                self._file = _inode(self.path)
                self._connection = connection
                return
            except sqlite3.OperationalError as error:
                # Turning on the write-ahead log needs the file alone, and SQLite does not wait
                # for that by itself.
                connection.close()
                if "locked" not in str(error) or time.monotonic() > give_up_at:
                    raise
                time.sleep(_OPEN_RETRY_S)
            except BaseException:
                connection.close()
                raise

    def _disconnect(self) -> None:
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def file_system_of(file: Path) -> str | None:
    """Name of the file system that `file` lies or would lie on; None where the kernel does not
    tell."""
    if sys.platform != "linux":
        return None
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    path = Path(os.path.realpath(file))
    best, kind = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split(" ")[4]))
        # Of mounts on one place the last one is what is seen.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _prepare(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.NotSupportedError(f"its journal is {mode!r} and cannot be a write-ahead log")
    found = connection.execute(
        "SELECT count(*) FROM sqlite_master"
        " WHERE name IN ('tenure_leases', 'tenure_lease_sequence')"
    ).fetchone()
    if found != (2,):
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    stored = connection.execute("SELECT format FROM tenure_lease_sequence").fetchone()
    if stored is not None and stored[0] != FORMAT:
        raise sqlite3.NotSupportedError(
            f"its format is {stored[0]}, this version of the program knows {FORMAT}"
        )


def _next_in_sequence(connection: sqlite3.Connection) -> int:
    """Greater than every version and token this file ever gave out, for any name.

    A new file starts at the wall clock in milliseconds: so it goes on above the one before it,
    unless that was written to more than a thousand times a second.
    """
    row = connection.execute("SELECT last FROM tenure_lease_sequence").fetchone()
    last = row[0] if row is not None else None
    if not isinstance(last, int):
        last = time.time_ns() // 1_000_000
        used = connection.execute(
            "SELECT max(max(token, version)) FROM tenure_leases"
            " WHERE typeof(token) = 'integer' AND typeof(version) = 'integer'"
        ).fetchone()[0]
        last = max(last, used or 0)
    if not 0 <= last < _TOKEN_MAX:
        raise sqlite3.DataError(f"its sequence stands at {last}, no greater token can be given")
    connection.execute(
        "INSERT OR REPLACE INTO tenure_lease_sequence VALUES (1, ?, ?)", (FORMAT, last + 1)
    )
    return last + 1


def _select(connection: sqlite3.Connection, name: str) -> LeaseRecord | None:
    row = connection.execute(_SELECT, (name,)).fetchone()
    if row is None:
        return None
    _, holder, token, ttl_s, write_id, version, clock, written_at, since = row
    # SQLite keeps what it is given, whatever the column says: others may have given anything.
    return LeaseRecord(
        name=name,
        holder=holder if isinstance(holder, str) else f"damaged {holder!r}",
        token=token if isinstance(token, int) else 0,
        ttl_s=ttl_s if isinstance(ttl_s, float) else float("nan"),
        write_id=str(write_id),
        version=str(version),
        clock=clock if isinstance(clock, str) else "",
        written_at=written_at if isinstance(written_at, float) else float("nan"),
        acquired_at_wall_s=since if isinstance(since, float) else None,
    )


def _row(record: LeaseRecord) -> tuple[object, ...]:
    return (
        record.name,
        record.holder,
        record.token,
        record.ttl_s,
        record.write_id,
        int(record.version),
        record.clock,
        record.written_at,
        record.acquired_at_wall_s,
    )
