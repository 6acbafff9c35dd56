"""What every store promises (`lease.conformance`), asked of those that need no server; and URLs."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from lease import LeaseStore, MemoryStore, SqliteStore, from_url
from lease.conformance import LeaseStoreContract
from lease.host_clock import boot_time_s
from tests.lease.races import small_or_whole


class _MemoryContract(LeaseStoreContract):
    in_other_processes = False
    store: MemoryStore | None = None

    async def make_store(self) -> LeaseStore:
        self.store = self.store or self.new_store()
        return self.store

    def new_store(self) -> MemoryStore:
        return MemoryStore(wall_clock=time.time)

    async def delete_record(self, name: str) -> None:
        assert self.store is not None
        self.store.delete(name)


class TestMemoryStore(_MemoryContract):
    pass


class TestMemoryStoreWithAClock(_MemoryContract):
    def new_store(self) -> MemoryStore:
        return MemoryStore(boot_time_s, time.time)


@small_or_whole
class TestSqliteStore(LeaseStoreContract):
    async def make_store(self) -> LeaseStore:
        return SqliteStore(self.file)

    @property
    def file(self) -> Path:
        return self.folder / "leases.db"

    async def restart_server(self) -> None:
        """There is none. All that was committed goes into the file itself, as at the last close;
        restarts of all processes are in `test_sqlite`."""
        with sqlite3.connect(self.file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    async def delete_record(self, name: str) -> None:
        with sqlite3.connect(self.file) as connection:
            connection.execute("DELETE FROM tenure_leases WHERE name = ?", (name,))
        connection.close()

    async def damage_record(self, name: str) -> None:
        with sqlite3.connect(self.file) as connection:
            connection.execute(
                "UPDATE tenure_leases SET holder = x'00ff', ttl_s = 'soon', written_at = 'now'"
                " WHERE name = ?",
                (name,),
            )
        connection.close()


# -- URLs


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///{}/x.db", "{}/x.db"),
        ("sqlite:////{}/x.db", "{}/x.db"),
        ("sqlite:{}/x.db", "{}/x.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    store = from_url(url.format(folder.lstrip("/") if "//" in url else folder))
    assert isinstance(store, SqliteStore)
    assert str(store.path) == path.format(folder)
    assert store.identity == f"sqlite://{store.path}"
    assert not store.path.exists()


def test_a_relative_file_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = from_url("sqlite:x.db")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "x.db"


def test_each_memory_store_is_another_one() -> None:
    first, second = from_url("memory:"), from_url("memory:")
    assert isinstance(first, MemoryStore)
    assert first.identity != second.identity


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://localhost", "'redis' is no lease store that is known: there are memory:"),
        ("/var/lib/leases.db", "is no URL of a lease store: there are memory:"),
        ("memory:shared", "hand the store itself on"),
        ("sqlite://leases.db", "write sqlite:///leases.db for the absolute file"),
        ("sqlite:", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///tmp/x.db?timeout=3", "no parameters"),
        ("sqlite:////no/such/folder/x.db", "there is no folder /no/such/folder"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_url(url)
