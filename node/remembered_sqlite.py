"""Remembered entities in an SQLite file, for the processes of one host.

Decides nothing; see `node.remembered`. All work is done on one thread of its own, so the event loop
never waits for the disk. The file must lie on a disk of this host, and may be that of leases: the
tables are others. A process that is stopped in the middle of a commit holds the file's lock, and
all others wait, until their timeout, until it goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lease.sqlite_file import SqliteFile, checked_place, inode_of, write_ahead
from node.errors import EntityStoreUnavailableError
from node.remembered import (
    IDS_MAX,
    EntityStore,
    check_shard,
    checked_update,
    full,
    raw_of,
    text_of,
)

T = TypeVar("T")

FORMAT = 1
REQUEST_TIMEOUT_S = 5.0
"""A whole shard is read or written in one request: 100,000 ids took half a second."""
_OPEN_RETRY_S = 0.005

# Ids are bytes: SQLite's TEXT takes no lone surrogates, and its tools end a text at the first NUL.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tenure_entities (
    type BLOB NOT NULL,
    shard INTEGER NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (type, shard, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenure_entities_counts (
    type BLOB NOT NULL,
    shard INTEGER NOT NULL,
    ids INTEGER NOT NULL,
    PRIMARY KEY (type, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenure_entities_format (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL
);
"""
_SELECT = "SELECT id FROM tenure_entities WHERE type = ? AND shard = ?"
# To count a large shard takes longer than to add to it: the number is kept beside it.
_CHANGE_COUNT = """
INSERT INTO tenure_entities_counts VALUES (?, ?, ?)
ON CONFLICT (type, shard) DO UPDATE SET ids = ids + excluded.ids
"""
_COUNTED = "SELECT ids FROM tenure_entities_counts WHERE type = ? AND shard = ?"
_COUNT_AGAIN = """
UPDATE tenure_entities_counts SET ids = (
    SELECT count(*) FROM tenure_entities AS each
    WHERE each.type = tenure_entities_counts.type AND each.shard = tenure_entities_counts.shard
) WHERE type = ? AND shard = ?
"""
_INSERT = "INSERT OR IGNORE INTO tenure_entities VALUES (?, ?, ?)"
_DELETE = "DELETE FROM tenure_entities WHERE type = ? AND shard = ? AND id = ?"


class SqliteEntityStore(EntityStore):
    """Sets in the file `path`, which is created when it is missing; its folder must exist.

    Raises ValueError for a place where no such file can be (`lease.sqlite_file`). A request
    that takes longer than `request_timeout_s` is unknown.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.path = checked_place(path, "entity store")
        self._timeout_s = request_timeout_s
        self._closed = False
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tenure-entities-sqlite")
        # Touched by the executor's thread only.
        self._file = SqliteFile(self.path, self._prepare, timeout_s=request_timeout_s)
        self._stored_in: tuple[int, int] | None = None  # the file that was open last
        self._losses = 0

    @property
    def identity(self) -> str:
        """Its URL."""
        return f"sqlite://{self.path}"

    async def load(self, type_name: str, shard: int) -> frozenset[str]:
        """See `EntityStore`. A file that somebody has locked can be read."""
        check_shard(type_name, shard)
        return await self._run(lambda: self._load(raw_of(type_name), shard))

    async def update(
        self, type_name: str, shard: int, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """See `EntityStore`. One transaction, on the disk when this returns."""
        added, removed = checked_update(type_name, shard, add, remove)
        await self._run(lambda: self._update(type_name, shard, added, removed))

    async def losses(self) -> int:
        """See `EntityStore`: how often another file bore the name, or none, or it was emptied."""
        return await self._run(self._look)

    async def close(self) -> None:
        """Close the file; what is under way ends first, or at its timeout. Further requests are
        unknown."""
        if self._closed:
            return
        with contextlib.suppress(EntityStoreUnavailableError):
            await self._run(self._file.close)
        self._closed = True
        self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise EntityStoreUnavailableError(
                f"the entity store {self.path} was closed by this process"
            )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._executor, work)
        except TimeoutError:
            raise EntityStoreUnavailableError(
                f"the entity store {self.path} did not answer within {self._timeout_s:g} s: its "
                "disk is slow, or another process holds its lock"
            ) from None

    # -- on the thread

    def _load(self, type_raw: bytes, shard: int) -> frozenset[str]:
        with self._at_the_file() as connection:
            return frozenset(_id(row[0]) for row in connection.execute(_SELECT, (type_raw, shard)))

    def _update(
        self, type_name: str, shard: int, added: frozenset[str], removed: frozenset[str]
    ) -> None:
        place = (raw_of(type_name), shard)
        with self._at_the_file() as connection, _transaction(connection):
            before = connection.total_changes
            connection.executemany(_INSERT, ((*place, raw_of(each)) for each in added))
            came = connection.total_changes - before
            connection.executemany(_DELETE, ((*place, raw_of(each)) for each in removed))
            went = connection.total_changes - before - came
            if came != went:
                connection.execute(_CHANGE_COUNT, (*place, came - went))
            if came and not _fits(connection, place):
                raise full(type_name, shard, self.identity)
            connection.execute("COMMIT")
            if self._file.was_replaced:
                raise sqlite3.OperationalError("the file was replaced while it was written")

    @contextlib.contextmanager
    def _at_the_file(self) -> Iterator[sqlite3.Connection]:
        """The connection to the file that bears the name now. Errors of SQLite close it."""
        try:
            connection = self._file.connection()
            self._was_lost(self._file.inode)
            self._stored_in = self._file.inode
            yield connection
        except (sqlite3.Error, OSError) as error:
            self._file.close()
            raise EntityStoreUnavailableError(
                f"the entity store {self.path} failed: {error}"
            ) from error

    def _look(self) -> int:
        try:
            self._was_lost(inode_of(self.path))
        except OSError as error:
            raise EntityStoreUnavailableError(
                f"the entity store {self.path} failed: {error}"
            ) from error
        return self._losses

    def _was_lost(self, now: tuple[int, int] | None) -> None:
        """Count it once when the file is not the one that was open last."""
        if self._stored_in is not None and now != self._stored_in:
            self._stored_in = None
            self._losses += 1

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _prepare(connection):
            self._was_lost(None)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is not committed inside is undone."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _prepare(connection: sqlite3.Connection) -> bool:
    """Make and check the tables. True when there were none."""
    write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")  # what is confirmed survives the power
    found = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name IN"
        " ('tenure_entities', 'tenure_entities_counts', 'tenure_entities_format')"
    ).fetchone()
    if found != (3,):
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA}"
            f" INSERT OR IGNORE INTO tenure_entities_format VALUES (1, {FORMAT}); COMMIT;"
        )
    stored = connection.execute("SELECT format FROM tenure_entities_format").fetchone()
    if stored is not None and stored[0] != FORMAT:
        raise sqlite3.NotSupportedError(
            f"its format is {stored[0]}, this version of the program knows {FORMAT}"
        )
    return bool(found != (3,))


def _fits(connection: sqlite3.Connection, place: tuple[bytes, int]) -> bool:
    """The shard has no more ids than it may. Where they seem too many they are counted: somebody
    else may have deleted some."""
    row = connection.execute(_COUNTED, place).fetchone()
    if row is not None and row[0] > IDS_MAX:
        connection.execute(_COUNT_AGAIN, place)
        row = connection.execute(_COUNTED, place).fetchone()
    return row is None or row[0] <= IDS_MAX


def _id(stored: object) -> str:
    """SQLite keeps what it is given, whatever the column says: others may have given anything."""
    try:
        if isinstance(stored, bytes):
            return text_of(stored)
    except UnicodeDecodeError:
        pass
    raise sqlite3.DataError(f"it holds {stored!r:.80}, which is no id: somebody else wrote it")
