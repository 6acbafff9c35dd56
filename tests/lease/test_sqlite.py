"""The SQLite store where it is more than a dict: processes, the disk, hands in the file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from lease import LeaseRecord, LeaseUnavailableError, SqliteStore, WriteConflict
from lease import sqlite as module
from lease.host_clock import boot_time_s, clock_identity
from lease.record import store_remaining_s, trusted_ttl_s

NAME = "ledger"
ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES, ROUNDS = 8, 20


def wish(write_id: str, *, token: int | None = None, holder: str = "o#n") -> LeaseRecord:
    return LeaseRecord(name=NAME, holder=holder, token=token, ttl_s=15.0, write_id=write_id)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "leases.db")
    yield made
    await made.close()


@contextlib.contextmanager
def by_hand(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """The file, opened by somebody else."""
    connection = sqlite3.connect(store.path)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def delete(store: SqliteStore) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{store.path}{suffix}").unlink(missing_ok=True)


# -- processes


def racer(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lease.racer", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_race_have_one_winner_each_round(tmp_path: Path) -> None:
    """I-18: real processes on a file that does not exist yet; tokens are distinct and grow."""
    file = tmp_path / "leases.db"
    racers = [racer("race", file, number, ROUNDS) for number in range(PROCESSES)]
    try:
        for each in racers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        results: list[dict[str, int]] = []
        for each in racers:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in racers:
            out, _ = each.communicate(timeout=60.0)
            assert each.returncode == 0
            results += [json.loads(line) for line in out.splitlines()]
    finally:
        for each in racers:
            if each.poll() is None:
                each.kill()
            each.communicate()
    rounds = sorted(results, key=lambda result: result["round"])
    assert [result["round"] for result in rounds] == list(range(ROUNDS))
    tokens = [result["token"] for result in rounds]
    assert tokens == sorted(set(tokens))


async def test_a_stopped_holder_acts_no_more_when_it_goes_on(tmp_path: Path) -> None:
    """L12, I-8: SIGSTOP for longer than the ttl. It takes no step before it knows."""
    file = tmp_path / "leases.db"
    steps = tmp_path / "steps"
    holder = racer("hold", file, steps)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        stopped_at = boot_time_s()
        store = SqliteStore(file)
        record = await store.read(NAME)
        assert record is not None
        give_up_at = time.monotonic() + 20.0
        while (left_s := store.remaining_s(record)) is None or left_s > 0.0:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.02)
        taken = await store.write(wish("mine", holder="next#1"), if_version=record.version)
        assert (taken.token or 0) > (record.token or 0)
        await store.close()
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout.readline().startswith("lost: no renewal was confirmed for ")
        holder.communicate(timeout=20.0)
    finally:
        if holder.poll() is None:
            holder.kill()
        holder.communicate()
    instants = [float(line) for line in steps.read_text().splitlines()]
    assert instants
    # The file's last step was begun before the stop; what the kernel was writing may end with it.
    assert max(instants) <= stopped_at + 0.05


# -- hands in the file


async def test_a_deleted_record_resets_no_token(store: SqliteStore) -> None:
    """I-18."""
    first = await store.write(wish("1"), if_version=None)
    with by_hand(store) as connection:
        connection.execute("DELETE FROM tenure_leases")
    second = await store.write(wish("2"), if_version=None)
    with by_hand(store) as connection:
        connection.execute("DELETE FROM tenure_lease_sequence")
    third = await store.write(wish("3"), if_version=second.version)
    assert (first.token or 0) < (second.token or 0) < (third.token or 0)
    ahead = 2**50  # of a clock that was wrong then
    with by_hand(store) as connection:
        connection.execute("DELETE FROM tenure_lease_sequence")
        connection.execute("UPDATE tenure_leases SET token = ?", (ahead,))
    assert ((await store.write(wish("4"), if_version=third.version)).token or 0) > ahead


async def test_a_deleted_file_resets_no_token_and_is_not_written_to(store: SqliteStore) -> None:
    """I-18: the open file that lost its name is nobody's store any more."""
    first = await store.write(wish("1"), if_version=None)
    delete(store)
    assert await store.read(NAME) is None
    with pytest.raises(WriteConflict):
        await store.write(wish("2", token=first.token), if_version=first.version)
    second = await store.write(wish("3"), if_version=None)
    assert (second.token or 0) > (first.token or 0)
    other = SqliteStore(store.path)
    assert await other.read(NAME) == second
    await other.close()


async def test_tokens_survive_a_restart_of_everybody(store: SqliteStore) -> None:
    """I-18."""
    first = await store.write(wish("1"), if_version=None)
    await store.close()
    again = SqliteStore(store.path)
    found = await again.read(NAME)
    assert found == first
    second = await again.write(wish("2"), if_version=first.version)
    assert (second.token or 0) > (first.token or 0)
    await again.close()


@pytest.mark.parametrize(
    "column", ["holder", "token", "ttl_s", "write_id", "version", "clock", "written_at"]
)
@pytest.mark.parametrize("value", ["x", b"\xff\x00", "", -1, float("inf")])
async def test_a_damaged_field_neither_frees_nor_breaks(
    store: SqliteStore, column: str, value: object
) -> None:
    """I-12, I-13: it is read, it is respected for a bounded time, and then it can be taken."""
    await store.write(wish("1"), if_version=None)
    with by_hand(store) as connection:
        connection.execute(f"UPDATE tenure_leases SET {column} = ?", (value,))
    found = await store.read(NAME)
    assert found is not None
    assert found.free == (column == "holder" and value == "")
    assert 0 < trusted_ttl_s(found) <= 3600.0
    left_s = store.remaining_s(found)
    assert left_s is None or left_s <= 3600.0
    taken = await store.write(wish("2"), if_version=found.version)
    assert taken.write_id == "2"
    assert taken.token is not None


async def test_a_spent_sequence_gives_no_smaller_token(store: SqliteStore) -> None:
    """I-18: rather none at all."""
    first = await store.write(wish("1"), if_version=None)
    with by_hand(store) as connection:
        connection.execute("UPDATE tenure_lease_sequence SET last = ?", (2**63 - 1,))
    with pytest.raises(LeaseUnavailableError, match="no greater token"):
        await store.write(wish("2"), if_version=first.version)
    assert await store.read(NAME) == first


async def test_after_its_end_a_store_answers_unknown(store: SqliteStore) -> None:
    await store.close()
    with pytest.raises(LeaseUnavailableError, match="was closed"):
        await store.read(NAME)


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 1000)
    store = SqliteStore(tmp_path / "x.db")
    with pytest.raises(LeaseUnavailableError, match="not a database"):
        await store.read(NAME)
    await store.close()


async def test_a_format_of_tomorrow_is_refused(store: SqliteStore) -> None:
    await store.write(wish("1"), if_version=None)
    with by_hand(store) as connection:
        connection.execute("UPDATE tenure_lease_sequence SET format = 2")
    other = SqliteStore(store.path)
    with pytest.raises(LeaseUnavailableError, match="its format is 2"):
        await other.read(NAME)
    await other.close()


async def test_a_user_may_have_tables_of_his_own_there(store: SqliteStore) -> None:
    """So that what is guarded can be written in one transaction with a look at the token."""
    with by_hand(store) as connection:
        connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, token INTEGER)")
    await store.write(wish("1"), if_version=None)
    assert await store.read(NAME) is not None


# -- the disk and the lock


async def test_a_file_that_another_process_locks_is_unknown_and_returns(tmp_path: Path) -> None:
    """The event loop goes on meanwhile; what was given up changes nothing later."""
    store = SqliteStore(tmp_path / "leases.db", request_timeout_s=0.3)
    first = await store.write(wish("1"), if_version=None)
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count_turns())
    with pytest.raises(LeaseUnavailableError, match=r"leases\.db"):
        await store.write(wish("2", token=first.token), if_version=first.version)
    counting.cancel()
    assert turns >= 5
    connection.execute("ROLLBACK")
    connection.close()
    found = await store.read(NAME)
    assert found is not None
    await store.write(wish("3", token=first.token), if_version=found.version)
    await store.close()


def listen_to(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, told: Callable[[str], object]
) -> None:
    """Tell each statement of connections that are opened from now on, before it runs."""
    prepare = module._prepare

    def listen(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.set_trace_callback(told)

    monkeypatch.setattr(module, "_prepare", listen)


async def test_a_file_deleted_under_a_write_is_unknown(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, but to what nobody else will ever open."""
    listen_to(store, monkeypatch, lambda text: delete(store) if text == "COMMIT" else None)
    with pytest.raises(LeaseUnavailableError, match="replaced while it was written"):
        await store.write(wish("1"), if_version=None)
    assert await store.read(NAME) is None


async def test_a_file_that_others_are_making_is_waited_for(tmp_path: Path) -> None:
    """Many processes begin at once, and one of them makes it."""
    file = tmp_path / "leases.db"
    maker = sqlite3.connect(file, isolation_level=None)
    maker.execute("CREATE TABLE anything (x)")
    maker.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(file)
    reading = asyncio.create_task(store.read(NAME))
    done, _ = await asyncio.wait([reading], timeout=0.1)
    assert not done
    maker.execute("COMMIT")
    maker.close()
    assert await reading is None
    await store.close()


async def test_acquired_and_released_is_on_the_disk(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-18: a token that was given out is not given out again after a power cut; renewals pay
    nothing for that."""
    spoken: list[str] = []
    listen_to(store, monkeypatch, spoken.append)

    def synchronous() -> list[str]:
        found = [text.split()[-1] for text in spoken if text.startswith("PRAGMA synchronous")]
        spoken.clear()
        return found

    first = await store.write(wish("1"), if_version=None)
    assert synchronous() == ["FULL"]
    second = await store.write(wish("2", token=first.token), if_version=first.version)
    assert synchronous() == ["NORMAL"]
    await store.write(wish("3", token=first.token, holder=""), if_version=second.version)
    assert synchronous() == ["FULL"]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs"])
def test_network_file_systems_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "file_system_of", lambda file: kind)
    with pytest.raises(ValueError, match=rf"lies on a {kind} file system"):
        SqliteStore(tmp_path / "leases.db")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a table of mounts")
def test_the_file_system_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert module.file_system_of(Path("/proc/self/status")) == "proc"
    assert module.file_system_of(tmp_path) not in (None, "proc")


def test_an_instant_of_another_boot_or_namespace_is_not_compared() -> None:
    """The record names its clock; any other than ours means nothing."""
    ours = clock_identity()
    stamped = LeaseRecord(
        name=NAME, holder="o#n", token=1, ttl_s=15.0, write_id="w", version="1", clock=ours
    )
    assert store_remaining_s(stamped, ours, 5.0) == (10.0 if ours else None)
    assert store_remaining_s(stamped, ours + "x", 5.0) is None


async def test_a_file_that_somebody_has_locked_can_be_read_but_not_looked_at(
    tmp_path: Path,
) -> None:
    """Who watches says that it could have the lease: not while the file takes no write."""
    store = SqliteStore(tmp_path / "leases.db", request_timeout_s=0.3)
    assert await store.look("x") is None
    await asyncio.sleep(module.LOCK_PROBE_S)
    with contextlib.closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        assert await store.read("x") is None
        with pytest.raises(LeaseUnavailableError):
            await store.look("x")
        lock.execute("ROLLBACK")
    assert await store.look("x") is None
    await store.close()
