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
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lease import LeaseRecord, LeaseUnavailableError, SqliteStore, WriteConflict, sqlite_file
from lease import sqlite as module
from lease.host_clock import boot_time_s, clock_identity
from lease.record import store_remaining_s, trusted_ttl_s

NAME = "ledger"
ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES, ROUNDS = 8, 20


def wish(
    write_id: str,
    *,
    token: int | None = None,
    holder: str = "o#n",
    name: str = NAME,
    ttl_s: float = 15.0,
) -> LeaseRecord:
    return LeaseRecord(name=name, holder=holder, token=token, ttl_s=ttl_s, write_id=write_id)


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
    store = SqliteStore(tmp_path / "x.db")
    (tmp_path / "x.db").write_bytes(b"no database" * 1000)
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
    monkeypatch.setattr(sqlite_file, "file_system_of", lambda file: kind)
    with pytest.raises(ValueError, match=rf"lies on a {kind} file system"):
        SqliteStore(tmp_path / "leases.db")


def test_what_can_be_no_file_of_a_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is left as it is, and what to do is said."""
    with pytest.raises(ValueError, match=r"it is a folder; name a file in it, such as /"):
        SqliteStore(tmp_path)
    with pytest.raises(ValueError, match="it is no file; name one"):
        SqliteStore("/dev/null")
    with pytest.raises(ValueError, match=r"cannot be used: .*too long"):
        SqliteStore(tmp_path / ("x" * 300))
    odd = tmp_path / "50% ?#.db"
    odd.write_bytes(b"no database")
    with pytest.raises(ValueError, match="it is no database of SQLite's; name another file"):
        SqliteStore(odd)
    assert odd.read_bytes() == b"no database"
    locked_out = [tmp_path]
    monkeypatch.setattr(
        os, "access", lambda path, how: how == os.F_OK or Path(path) not in locked_out
    )
    with pytest.raises(ValueError, match=f"this process may not write {tmp_path}; give its user"):
        SqliteStore(tmp_path / "leases.db")
    locked_out[:] = [odd]
    with pytest.raises(ValueError, match=r"this process may not write .*50% .*; give its user"):
        SqliteStore(odd)


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_a_file_that_is_locked_empty_or_not_there_may_be_a_good_one(
    journal: str, tmp_path: Path
) -> None:
    await SqliteStore(tmp_path / "missing.db").close()
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "empty.db").touch()
    await SqliteStore(tmp_path / "empty.db").close()
    file = tmp_path / "locked.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as lock:
        lock.execute(f"PRAGMA journal_mode = {journal}")
        lock.execute("CREATE TABLE somebodys (x)")
        lock.execute("BEGIN EXCLUSIVE")
        store = SqliteStore(file)
        lock.execute("ROLLBACK")
    assert await store.read(NAME) is None
    await store.close()


def test_to_check_a_file_gives_up_no_lock_of_this_process(tmp_path: Path) -> None:
    """Else another process would take itself for the last one and remove the log."""
    file = tmp_path / "leases.db"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE somebodys (x)")
        SqliteStore(file)
        other = f"import sqlite3; c = sqlite3.connect({str(file)!r}); " + (
            "c.execute('SELECT * FROM somebodys').fetchall(); c.close()"
        )
        subprocess.run([sys.executable, "-c", other], check=True, timeout=60)
        assert Path(f"{file}-wal").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a table of mounts")
def test_the_file_system_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert sqlite_file.file_system_of(Path("/proc/self/status")) == "proc"
    assert sqlite_file.file_system_of(tmp_path) not in (None, "proc")


def test_an_instant_of_another_boot_or_namespace_is_not_compared() -> None:
    """The record names its clock; any other than ours means nothing."""
    ours = clock_identity()
    stamped = LeaseRecord(
        name=NAME, holder="o#n", token=1, ttl_s=15.0, write_id="w", version="1", clock=ours
    )
    assert store_remaining_s(stamped, ours, 5.0) == (10.0 if ours else None)
    assert store_remaining_s(stamped, ours + "x", 5.0) is None


# -- one visit for many


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not true():
            await asyncio.sleep(0.001)


@contextlib.contextmanager
def thread_busy(store: SqliteStore) -> Iterator[None]:
    """What is asked meanwhile waits, and is served in one visit afterwards."""
    go = threading.Event()
    store._executor.submit(go.wait)
    try:
        yield
    finally:
        go.set()


async def at_once(
    store: SqliteStore, *requests: Coroutine[Any, Any, object], given_up: int | None = None
) -> list[object]:
    """Answers of requests that waited together; one of them was cancelled before its turn."""
    with thread_busy(store):
        tasks = [asyncio.create_task(request) for request in requests]
        await until(lambda: len(store._requests) == len(tasks))
        if given_up is not None:
            tasks[given_up].cancel()
            await asyncio.wait([tasks[given_up]])
    return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each statement of stores that open their file from now on."""
    said: list[str] = []
    prepare = module._prepare

    def listen(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.set_trace_callback(said.append)

    monkeypatch.setattr(module, "_prepare", listen)
    return said


def renewal(of: LeaseRecord, write_id: str) -> LeaseRecord:
    return wish(write_id, token=of.token, name=of.name)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (wish("w", name="b"), WriteConflict),
        (wish("w", name="c", token=2**63), LeaseUnavailableError),
        (wish("w", name="c", ttl_s=float("nan")), LeaseUnavailableError),
        (wish("w", name="\ud800"), UnicodeEncodeError),
        (wish("w", name="c", holder="\ud800"), UnicodeEncodeError),
    ],
)
async def test_what_is_wrong_with_one_write_fails_no_other(
    store: SqliteStore, spoken: list[str], wrong: LeaseRecord, answer: type[Exception]
) -> None:
    """Each has its own check inside the one transaction, and is answered by itself."""
    a = await store.write(wish("1", name="a"), if_version=None)
    b = await store.write(wish("1", name="b"), if_version=None)
    spoken.clear()
    first, second, third, fourth = await at_once(
        store,
        store.write(renewal(a, "2"), if_version=a.version),
        store.write(wrong, if_version=None),
        store.write(renewal(b, "2"), if_version=b.version),
        store.write(wish("1", name="d"), if_version=None),
    )
    assert type(second) is answer
    stored = [one for one in (first, third, fourth) if isinstance(one, LeaseRecord)]
    assert len({one.version for one in stored}) == len(stored) == 3
    assert [await store.read(one.name) for one in stored] == stored
    assert await store.read("c") is None
    assert spoken.count("BEGIN IMMEDIATE") == spoken.count("COMMIT") == 1


async def test_only_conflicts_write_nothing(store: SqliteStore, spoken: list[str]) -> None:
    first = await store.write(wish("1"), if_version=None)
    spoken.clear()
    answers = await at_once(store, *(store.write(wish(n), if_version=None) for n in "23"))
    assert [type(one) for one in answers] == [WriteConflict, WriteConflict]
    assert "COMMIT" not in spoken
    assert await store.read(NAME) == first


async def test_requests_of_one_name_keep_their_order(store: SqliteStore) -> None:
    """What comes after a write sees it, in the same visit or the next."""
    before, first, between, conflict, other, after = await at_once(
        store,
        store.read(NAME),
        store.write(wish("1"), if_version=None),
        store.look(NAME),
        store.write(wish("2"), if_version=None),
        store.write(wish("1", name="other"), if_version=None),
        store.read("other"),
    )
    assert before is None
    assert isinstance(first, LeaseRecord)
    assert between == first
    assert isinstance(conflict, WriteConflict)
    assert conflict.current == first
    assert isinstance(other, LeaseRecord)
    assert after == other


async def test_two_writes_of_one_name_in_one_transaction(
    store: SqliteStore, spoken: list[str]
) -> None:
    """I-18: the second one is told of the first, and of nothing that was not committed."""
    first, second = await at_once(store, *(store.write(wish(n), if_version=None) for n in "12"))
    assert isinstance(second, WriteConflict)
    assert second.current == first == await store.read(NAME)
    assert spoken.count("COMMIT") == 1


async def test_one_that_must_last_makes_all_of_them_last(
    store: SqliteStore, spoken: list[str]
) -> None:
    """I-18: and renewals alone still pay nothing."""
    held = [await store.write(wish("1", name=name), if_version=None) for name in "abcd"]
    for renewed, acquired, expected in (held[:2], (), "NORMAL"), (held[2:], ("e",), "FULL"):
        spoken.clear()
        answers = await at_once(
            store,
            *(store.write(renewal(one, "2"), if_version=one.version) for one in renewed),
            *(store.write(wish("1", name=name), if_version=None) for name in acquired),
        )
        assert all(isinstance(one, LeaseRecord) for one in answers)
        levels = [text.split()[-1] for text in spoken if text.startswith("PRAGMA synchronous")]
        assert levels == [expected]


async def test_a_visit_is_bounded(
    store: SqliteStore, spoken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_MAX", 3)
    writes = [store.write(wish("1", name=f"n{number}"), if_version=None) for number in range(7)]
    answers = await at_once(store, *writes)
    assert all(isinstance(one, LeaseRecord) for one in answers)
    assert spoken.count("COMMIT") == 3


async def test_a_commit_that_fails_is_unknown_to_all_of_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to who had a conflict, for it may have been with what was not committed."""
    failing = True
    prepare = module._prepare

    def refuse(action: int, what: str | None, *_: object) -> int:
        deny = failing and (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT")
        return sqlite3.SQLITE_DENY if deny else sqlite3.SQLITE_OK

    def listen(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.set_authorizer(refuse)

    monkeypatch.setattr(module, "_prepare", listen)
    requests = [(NAME, "1"), (NAME, "2"), ("other", "1")]
    answers = await at_once(
        store, *(store.write(wish(n, name=name), if_version=None) for name, n in requests)
    )
    assert [type(one) for one in answers] == [LeaseUnavailableError] * 3
    assert len({id(one) for one in answers}) == 3
    failing = False
    assert await store.read(NAME) is None
    assert await store.read("other") is None
    with by_hand(store) as connection:
        connection.execute("BEGIN IMMEDIATE")  # nobody holds the lock any more


async def test_what_is_given_up_before_its_turn_is_not_done(store: SqliteStore) -> None:
    first, second, third = await at_once(
        store,
        *(store.write(wish("1", name=name), if_version=None) for name in "abc"),
        given_up=1,
    )
    assert isinstance(first, LeaseRecord)
    assert isinstance(second, asyncio.CancelledError)
    assert isinstance(third, LeaseRecord)
    assert await store.read("b") is None


async def test_what_is_given_up_while_the_lock_is_waited_for_is_not_done(
    store: SqliteStore, spoken: list[str]
) -> None:
    """It and the others of its visit are not begun before the lock is there."""
    await store.read(NAME)
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        with thread_busy(store):
            tasks = [
                asyncio.create_task(store.write(wish("1", name=name), if_version=None))
                for name in "ab"
            ]
            await until(lambda: len(store._requests) == len(tasks))
        await until(lambda: "BEGIN IMMEDIATE" in spoken)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        lock.execute("ROLLBACK")
    assert await tasks[1] == await store.read("b")
    assert await store.read("a") is None


async def test_a_text_that_is_none_is_read_all_the_same(store: SqliteStore) -> None:
    """I-13: and those who are asked for together with it are not concerned."""
    first = await store.write(wish("1"), if_version=None)
    other = await store.write(wish("1", name="other"), if_version=None)
    watch = asyncio.create_task(store.changed(NAME, first.version))
    with by_hand(store) as connection:
        connection.execute(
            "UPDATE tenure_leases SET holder = CAST(x'ff61' AS TEXT),"
            " version = CAST(x'ff62' AS TEXT) WHERE name = ?", (NAME,)
        )  # fmt: skip
    await watch
    damaged, intact = await at_once(store, store.read(NAME), store.read("other"))
    assert isinstance(damaged, LeaseRecord)
    assert not damaged.free
    assert intact == other
    await store.write(wish("2"), if_version=damaged.version)


# -- one poller for all who wait


def is_poll(text: str) -> bool:
    return text == "PRAGMA data_version"


def is_read(text: str) -> bool:
    return "tenure_leases WHERE name" in text


async def watch_all(
    store: SqliteStore, count: int
) -> tuple[list[LeaseRecord], list[asyncio.Task[None]]]:
    """So many leases and as many who wait for them, all known to the poller."""
    records = [
        await store.write(wish("1", name=f"n{number}"), if_version=None) for number in range(count)
    ]
    watches = [
        asyncio.create_task(store.changed(record.name, record.version)) for record in records
    ]
    await until(lambda: len(store._waiters) == count and not any(w.fresh for w in store._waiters))
    return records, watches


async def told(watches: list[asyncio.Task[None]]) -> list[object]:
    """What each of them was told in the end."""
    async with asyncio.timeout(20.0):
        return await asyncio.gather(*watches, return_exceptions=True)


async def given_up(watches: list[asyncio.Task[None]]) -> None:
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)


async def test_many_who_wait_share_one_poller(store: SqliteStore, spoken: list[str]) -> None:
    """One look a turn, and the records are read only after somebody wrote."""
    records, watches = await watch_all(store, 700)  # more than SQLite is asked for in one go
    spoken.clear()
    await until(lambda: sum(map(is_poll, spoken)) >= 5)
    assert not any(map(is_read, spoken))
    other = SqliteStore(store.path)
    for target in (store, other):
        spoken.clear()
        record, watch = records.pop(), watches.pop()
        await target.write(renewal(record, "2"), if_version=record.version)
        await watch
        await until(lambda: sum(map(is_poll, spoken)) >= 3)
        assert not any(one.done() for one in watches)
        # The check of the write, and one look at all the names in two parts.
        assert sum(map(is_read, spoken)) == 1 + 2
    await given_up(watches)
    await other.close()


async def test_who_comes_later_is_told_of_what_is_over(store: SqliteStore) -> None:
    """The poller that runs already has nothing new to see, and reads for the new one."""
    records, watches = await watch_all(store, 3)
    late = records[0]
    await asyncio.wait_for(store.changed(late.name, "another"), 20.0)
    await asyncio.wait_for(store.changed("missing", "1"), 20.0)
    assert not any(watch.done() for watch in watches)
    await given_up(watches)


async def test_a_poller_ends_with_the_last_who_waits(store: SqliteStore) -> None:
    """And another one begins with the next."""
    for _ in range(2):
        before = asyncio.all_tasks()
        _, watches = await watch_all(store, 3)
        poller = store._poller
        assert poller is not None
        assert asyncio.all_tasks() == before | {*watches, poller}
        await given_up(watches[:2])
        assert store._poller is poller
        await given_up(watches[2:])
        await until(lambda: store._poller is None)
        await asyncio.wait([poller])
        assert not store._waiters
        delete(store)


async def test_a_failing_store_is_told_to_all_who_wait(store: SqliteStore) -> None:
    _, watches = await watch_all(store, 5)
    delete(store)
    store.path.write_bytes(b"no database" * 1000)
    answers = await told(watches)
    assert [type(one) for one in answers] == [LeaseUnavailableError] * 5
    assert all("not a database" in str(one) for one in answers)
    assert store._poller is None
    assert not store._waiters
    store.path.unlink()
    await store.changed("missing", "1")


async def test_a_poller_that_is_cancelled_leaves_nobody_waiting(store: SqliteStore) -> None:
    _, watches = await watch_all(store, 2)
    assert store._poller is not None
    store._poller.cancel()
    answers = await told(watches)
    assert [type(one) for one in answers] == [LeaseUnavailableError] * 2


async def test_a_store_that_is_closed_leaves_nobody_waiting(store: SqliteStore) -> None:
    _, watches = await watch_all(store, 5)
    poller = store._poller
    assert poller is not None
    await store.close()
    answers = await told(watches)
    assert [type(one) for one in answers] == [LeaseUnavailableError] * 5
    assert all("was closed" in str(one) for one in answers)
    await asyncio.wait([poller])
    assert not store._file.is_open
    assert not store._waiters
    with pytest.raises(LeaseUnavailableError, match="was closed"):
        await store.changed(NAME, "1")


async def test_what_waits_for_the_thread_ends_before_the_store(store: SqliteStore) -> None:
    with thread_busy(store):
        writing = asyncio.create_task(store.write(wish("1"), if_version=None))
        await until(lambda: len(store._requests) == 1)
        closing = asyncio.create_task(store.close())
        await until(lambda: store._closed)
    await closing
    assert (await writing).write_id == "1"
    assert not store._file.is_open


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
