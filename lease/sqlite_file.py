"""The SQLite file of a store: opened when it is needed, checked each time that it is still the one.

Decides where such a file may lie (a disk of this host: on a network file system neither locks nor
clocks are shared) and when it is opened anew. Does not decide what is in it: each store prepares
its own tables. Used by `lease.sqlite` and `node.remembered_sqlite`, on their one thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

_OPEN_RETRY_S = 0.005

# By name, as the kernel's table of mounts tells them. All of FUSE is among them: whether such a
# file system is a network's (sshfs, virtiofs, glusterfs) cannot be told from outside.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "gfs", "gfs2", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "panfs", "prl_fs", "smb3", "smbfs"),
        *("vboxsf", "virtiofs", "vmhgfs"),
    ]
)


def checked_place(path: str | os.PathLike[str], what: str) -> Path:
    """The whole path of a file to be. `what` names the store in errors.

    Raises ValueError when its folder does not exist or lies on a network file system, when it
    cannot be written, and for what is there and is no database of SQLite's. One that is locked, or
    not there yet, may be a good one.
    """
    place = Path(path).absolute()
    try:
        return _checked(place, what)
    except OSError as error:  # of a folder that may not be looked into, or a name that is too long
        raise ValueError(f"the {what} {place} cannot be used: {error}") from error


def _checked(place: Path, what: str) -> Path:
    if not place.parent.is_dir():
        raise ValueError(
            f"the {what} {place} cannot be created: there is no folder {place.parent}; create it "
            "first"
        )
    kind = file_system_of(place)
    if kind is not None and kind.partition(".")[0] in NETWORK_FILE_SYSTEMS:
        raise ValueError(
            f"the {what} {place} lies on a {kind} file system, where SQLite's locks do not hold "
            "between hosts: use a disk of this host, or a store that is a server"
        )
    why = _why_unfit(place)
    if why is not None:
        raise ValueError(f"the {what} {place} cannot be used: {why}")
    return place


def _why_unfit(place: Path) -> str | None:
    # Beside the file SQLite creates others.
    for each, access in ((place.parent, os.W_OK | os.X_OK), (place, os.R_OK | os.W_OK)):
        if os.access(each, os.F_OK) and not os.access(each, access):
            return f"this process may not write {each}; give its user the right to, or another file"
    if place.is_dir():
        return f"it is a folder; name a file in it, such as {place / 'tenure.db'}"
    if place.exists() and not place.is_file():
        return "it is no file; name one, or one that is to be created"
    if place.exists() and not _may_be_database(place):
        return "it is no database of SQLite's; name another file, or move that one away"
    return None


def _may_be_database(file: Path) -> bool:
    # Not by reading it: to close a file gives up all locks that the process has on it, also
    # those of SQLite, which others that are open rely on.
    name = urllib.parse.quote(os.fsencode(file))
    try:
        with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro", timeout=0, uri=True)) as it:
            it.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB
    return True


class SqliteFile:
    """A connection to the file that bears the name `path` now.

    `prepare` is called with each new connection: it makes and checks the tables. Not for two
    threads. `inode` is that of the file that is open, None while none is.
    """

    def __init__(
        self, path: Path, prepare: Callable[[sqlite3.Connection], None], *, timeout_s: float
    ) -> None:
        self.path = path
        self.inode: tuple[int, int] | None = None
        self._prepare = prepare
        self._timeout_s = timeout_s
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """True while there is a connection."""
        return self._connection is not None

    def connection(self) -> sqlite3.Connection:
        """The connection, made when there is none. Raises `sqlite3.Error` or OSError."""
        if self._connection is not None and self.was_replaced:
            # Somebody deleted or replaced it: what is open is not what others open.
            self.close()
        if self._connection is None:
            self._connection = self._connect()
            self.inode = inode_of(self.path)
            if self.inode is None:
                self.close()
                raise sqlite3.OperationalError("the file was deleted while it was opened")
        return self._connection

    @property
    def was_replaced(self) -> bool:
        """True when another file bears the name now, or none."""
        return self.inode != inode_of(self.path)

    def close(self) -> None:
        """Close what is open; never raises."""
        connection, self._connection, self.inode = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
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
                self._prepare(connection)
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
            else:
                return connection


def write_ahead(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log. Raises `sqlite3.Error` where it cannot be."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.NotSupportedError(f"its journal is {mode!r} and cannot be a write-ahead log")


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


def inode_of(path: Path) -> tuple[int, int] | None:
    """Which file bears the name now; None when none does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
