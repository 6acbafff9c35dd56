"""A store in an SQLite file, for the processes of one host.

Decides nothing; see `lease.store`. All work is done on one thread of its own, so the event loop
never waits for the disk; what waits while the thread is busy is done in its next visit to the file,
all writes of it in one transaction. All who wait for a change share one poller.

What a user has to know: the file must lie on a disk of this host (processes on other hosts would
share neither its locks nor its clock); a process that is stopped in the middle of a commit holds
the file's lock, and all others wait until it goes on (safe, but nobody renews meanwhile); restoring
an old copy of the file resets the tokens.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.host_clock import boot_time_s, clock_identity
from lease.record import LeaseRecord, store_remaining_s
from lease.sqlite_file import SqliteFile, checked_place, write_ahead
from lease.store import LeaseStore

T = TypeVar("T")
R = TypeVar("R", bound="_Request[Any]")
Written = tuple[object, ...]
"""Another one after each write of anybody to the file."""

FORMAT = 1
REQUEST_TIMEOUT_S = 2.0
LOCK_PROBE_S = 1.0
BATCH_MAX = 100
"""Requests of one visit: for so long others wait for the lock."""
_OPEN_RETRY_S = 0.005
_NAMES_MAX = 500
_TOKEN_MAX = 2**63 - 1


# What SQLite raises at a value that it cannot keep; the transaction goes on after them.
_OF_ONE_RECORD = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
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


@dataclass(eq=False)
class _Request(Generic[T]):
    """What the thread is asked for. Who gives up cancels the answer."""

    answer: concurrent.futures.Future[T] = field(
        default_factory=concurrent.futures.Future, init=False
    )

    def begin(self) -> bool:
        """From here on it cannot be given up; False: it was."""
        # A future that was cancelled must be told so once only.
        return not self.answer.cancelled() and (
            self.answer.running() or self.answer.set_running_or_notify_cancel()
        )

    def end(self, outcome: T | Exception) -> None:
        """Answer it, unless it was given up."""
        if not self.begin():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


@dataclass(eq=False)
class _Read(_Request[LeaseRecord | None]):
    name: str
    only_looks: bool = False


@dataclass(eq=False)
class _Write(_Request[LeaseRecord]):
    record: LeaseRecord
    if_version: str | None

    @property
    def lasting(self) -> bool:
        return self.record.token is None or self.record.free


@dataclass(eq=False)
class _Poll(_Request[tuple[Written, dict[str, str | None]]]):
    """Versions by name: of `names` when anybody wrote after `seen`, otherwise of `fresh`."""

    seen: Written | None
    fresh: frozenset[str]
    names: frozenset[str]


@dataclass(eq=False)
class _Waiter:
    """Who waits in `changed`; told None, or why it cannot be known."""

    name: str
    version: str
    told: asyncio.Future[Exception | None]
    fresh: bool = True

    def tell(self, error: Exception | None) -> None:
        if not self.told.done():
            self.told.set_result(error)


class SqliteStore(LeaseStore):
    """Leases in the file `path`, which is created when it is missing; its folder must exist.

    Raises ValueError for a place where no such file can be (`lease.sqlite_file`). A request
    that takes longer than `request_timeout_s` is unknown. Used on one event loop.
    """

    poll_interval_s: ClassVar[float] = 0.02

    def __init__(
        self, path: str | os.PathLike[str], *, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.path = checked_place(path, "lease store")
        self._timeout_s = request_timeout_s
        self._had_lock_at = -math.inf
        self._closed = False
        self._clock_identity = clock_identity()
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tenure-lease-sqlite")
        self._requests: deque[_Request[Any]] = deque()
        self._waiters: set[_Waiter] = set()
        self._poller: asyncio.Task[None] | None = None
        # Touched by the executor's thread only.
        self._file = SqliteFile(self.path, lambda file: _prepare(file), timeout_s=request_timeout_s)

    @property
    def identity(self) -> str:
        """Its URL."""
        return f"sqlite://{self.path}"

    async def read(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`."""
        return await self._ask(_Read(name))

    async def look(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`: a file that somebody has locked can be read. The lock is tried once per
        `LOCK_PROBE_S`, whatever many leases are looked at."""
        return await self._ask(_Read(name, only_looks=True))

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """See `LeaseStore`. What gives or takes a lease is on the disk when this returns; a
        renewal may be lost with the power, together with its holder."""
        return await self._ask(_Write(record, if_version))

    async def changed(self, name: str, version: str) -> None:
        """See `LeaseStore`. Each 20 ms it is asked whether anybody has written at all; only then
        the records are read, all that are waited for at once."""
        self._check_open()
        name.encode()  # what SQLite cannot be asked for would fail the look of all
        waiter = _Waiter(name, version, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
            self._poller.add_done_callback(self._poller_ended)
        try:
            error = await waiter.told
        finally:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._end_poller()
        if error is not None:
            raise error

    def remaining_s(self, record: LeaseRecord) -> float | None:
        """By the boot clock, when the record was written since this boot, in our time namespace."""
        return store_remaining_s(record, self._clock_identity, boot_time_s())

    async def close(self) -> None:
        """Close the file; what is under way ends first, or at its timeout. Further requests are
        unknown."""
        if self._closed:
            return
        self._closed = True
        self._end_poller()
        for waiter in self._waiters:
            waiter.tell(self._was_closed())
        loop = asyncio.get_running_loop()
        disconnected = loop.run_in_executor(self._executor, self._file.close)
        self._executor.shutdown(wait=False)
        # It is waited for, but never given up: it may come late, and is the last one.
        await asyncio.wait([disconnected], timeout=self._timeout_s)

    def _check_open(self) -> None:
        if self._closed:
            raise self._was_closed()

    def _was_closed(self) -> LeaseUnavailableError:
        return LeaseUnavailableError(f"the lease store {self.path} was closed by this process")

    async def _ask(self, request: _Request[T]) -> T:
        self._check_open()
        self._requests.append(request)
        # A job for each, though one may serve many: those that find nothing left cost little, and
        # nobody has to know whether the thread is about to end.
        self._executor.submit(self._visit)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(request.answer)
        except TimeoutError:
            raise LeaseUnavailableError(
                f"the lease store {self.path} did not answer within {self._timeout_s:g} s: its "
                "disk is slow, or another process holds its lock"
            ) from None

    # -- those who wait for a change

    async def _poll(self) -> None:
        seen: Written | None = None
        while True:
            waiters = list(self._waiters)
            fresh = frozenset(waiter.name for waiter in waiters if waiter.fresh)
            names = frozenset(waiter.name for waiter in waiters)
            answer = await self._ask(_Poll(seen, fresh, names))
            seen, versions = answer
            for waiter in waiters:
                waiter.fresh = False
                if versions.get(waiter.name, waiter.version) != waiter.version:
                    waiter.tell(None)
            await asyncio.sleep(self.poll_interval_s)

    def _end_poller(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.cancel()

    def _poller_ended(self, poller: asyncio.Task[None]) -> None:
        """Whatever ended it, nobody waits for ever."""
        error = None if poller.cancelled() else poller.exception()
        if not isinstance(error, Exception):
            error = LeaseUnavailableError(f"the watch of the lease store {self.path} was cancelled")
        if poller is not self._poller:
            return  # it was ended because nobody waited
        self._poller = None
        for waiter in self._waiters:
            waiter.tell(_for_one_more(error))

    # -- on the thread

    def _visit(self) -> None:
        """Serve what waits. Reads come first, for they need no lock that another may have."""
        batch = self._next_batch()
        reads = [request for request in batch if isinstance(request, _Read)]
        polls = [request for request in batch if isinstance(request, _Poll)]
        writes = [request for request in batch if isinstance(request, _Write)]
        self._serve([request for request in reads if not request.only_looks], self._find)
        self._serve(polls, self._poll_for)
        self._serve([request for request in reads if request.only_looks], self._look)
        self._serve(writes, self._write)

    def _next_batch(self) -> list[_Request[Any]]:
        """A read of what this batch writes is left to the next one, and so is what follows it."""
        batch: list[_Request[Any]] = []
        written: set[str] = set()
        while self._requests and len(batch) < BATCH_MAX:
            request = self._requests[0]
            if isinstance(request, _Read) and request.name in written:
                break
            self._requests.popleft()
            if isinstance(request, _Write):
                written.add(request.record.name)
            batch.append(request)
        return batch

    def _serve(
        self, requests: Sequence[R], work: Callable[[sqlite3.Connection, Sequence[R]], None]
    ) -> None:
        """Do all that were not given up; when the file fails, all are unknown."""
        open_ones = [request for request in requests if not request.answer.cancelled()]
        if not open_ones:
            return
        try:
            with self._at_the_file() as connection:
                work(connection, open_ones)
        except Exception as error:  # noqa: BLE001 - told to those who asked
            for request in open_ones:
                if not request.answer.done():
                    request.end(_for_one_more(error))

    def _find(self, connection: sqlite3.Connection, requests: Sequence[_Read]) -> None:
        for request in requests:
            try:
                request.end(_select(connection, request.name))
            except ValueError as error:
                request.end(error)

    def _look(self, connection: sqlite3.Connection, requests: Sequence[_Read]) -> None:
        if time.monotonic() - self._had_lock_at > LOCK_PROBE_S:
            connection.execute("BEGIN IMMEDIATE")
            self._had_lock_at = time.monotonic()
            connection.execute("ROLLBACK")
        self._find(connection, requests)

    def _poll_for(self, connection: sqlite3.Connection, requests: Sequence[_Poll]) -> None:
        for request in requests:
            # Before the records: what is written in between is seen by the next look.
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            written: Written = (self._file.inode, version, connection.total_changes)
            names = request.fresh if written == request.seen else request.names
            request.end((written, _versions(connection, names)))

    def _write(self, connection: sqlite3.Connection, requests: Sequence[_Write]) -> None:
        """All in one transaction; nobody hears of anything before it is committed."""
        lasting = any(request.lasting for request in requests)
        # Not inside the transaction: there SQLite refuses it.
        connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        self._had_lock_at = time.monotonic()
        outcomes = [
            (request, self._written(connection, request))
            for request in requests
            if request.begin()  # not what was given up while the lock was waited for
        ]
        if any(isinstance(outcome, LeaseRecord) for _, outcome in outcomes):
            connection.execute("COMMIT")
            if self._file.was_replaced:
                raise sqlite3.OperationalError("the file was replaced while it was written")
        else:
            connection.execute("ROLLBACK")
        for request, outcome in outcomes:
            request.end(outcome)

    def _written(self, connection: sqlite3.Connection, request: _Write) -> LeaseRecord | Exception:
        """What is stored, or why not; what is wrong with one record alone fails no other."""
        record = request.record
        try:
            current = _select(connection, record.name)
            if (None if current is None else current.version) != request.if_version:
                return WriteConflict(current)
            stored = self._stamped(record, current, _next_in_sequence(connection))
            connection.execute(_REPLACE, _row(stored))
        except _OF_ONE_RECORD as error:
            if not connection.in_transaction:
                raise
            return self._failed(error)
        except ValueError as error:
            return error
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
            yield self._file.connection()
        except (sqlite3.Error, OSError) as error:
            self._file.close()
            raise self._failed(error) from error
        except BaseException:
            self._file.close()  # a transaction that is left open would keep everybody out
            raise

    def _failed(self, error: Exception) -> LeaseUnavailableError:
        return LeaseUnavailableError(f"the lease store {self.path} failed: {error}")


def _for_one_more(error: Exception) -> Exception:
    """What is raised in several places gathers their tracebacks: one for each."""
    if not isinstance(error, LeaseUnavailableError):
        return error
    copy = LeaseUnavailableError(str(error))
    copy.__cause__ = error.__cause__
    return copy


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _prepare(connection: sqlite3.Connection) -> None:
    # A text that is none is a damaged field, and no reason to fail.
    connection.text_factory = _text
    write_ahead(connection)
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


def _versions(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(names)
    left = list(found)
    while left:
        some, left = left[:_NAMES_MAX], left[_NAMES_MAX:]
        places = ",".join("?" * len(some))
        rows = connection.execute(
            f"SELECT name, version FROM tenure_leases WHERE name IN ({places})", some
        )
        found.update((name, str(version)) for name, version in rows)
    return found


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
