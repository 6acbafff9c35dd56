"""What a supervisor gives back of a process that ended, and the flags it gives its members."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from lease import Lease, LeaseSettings, SqliteStore
from node.cli import without_own_flags
from node.crash_guard import Guard, Report, Reported, parse
from node.errors import SettingsError
from node.processes import flags_of
from node.settings import Settings

TTL_S = 0.6


def lease_of(store: SqliteStore, owner: str = "dead") -> Lease:
    return Lease(store, LeaseSettings(name="x", owner=owner, ttl_s=TTL_S))


async def until_looked(guard: Guard, times: int) -> None:
    async with asyncio.timeout(10.0):
        while guard.looks < times:
            await asyncio.sleep(0.005)


async def test_the_record_of_the_dead_is_freed_and_the_next_one_has_a_greater_token(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "leases.db")
    dead = Lease(store, LeaseSettings(name="x", owner="dead", ttl_s=60.0))
    assert await dead.acquire()
    token, told = dead.token, Reported(f"sqlite://{tmp_path}/leases.db", "x", dead.holder, 60.0)
    await dead.close()
    guard = Guard()
    giving_back = asyncio.ensure_future(guard.give_back(told))
    async with asyncio.timeout(5.0):
        heir = Lease(store, LeaseSettings(name="x", owner="heir", ttl_s=60.0))
        while not await heir.acquire():
            await asyncio.sleep(0.01)
    assert heir.token is not None
    assert token is not None
    assert heir.token > token
    await until_looked(guard, guard.looks + 1)
    assert await heir.acquire(), "it looks again, and leaves others alone"
    giving_back.cancel()
    await heir.release()
    await guard.close()
    await store.close()


async def test_a_write_of_the_dead_that_lands_late_is_freed_as_well(tmp_path: Path) -> None:
    """F20: it was on its way when the process ended."""
    store = SqliteStore(tmp_path / "leases.db")
    dead = lease_of(store)
    told = Reported(f"sqlite://{tmp_path}/leases.db", "x", dead.holder, TTL_S)
    guard = Guard()
    giving_back = asyncio.ensure_future(guard.give_back(told))
    await until_looked(guard, 1)
    assert await dead.acquire()
    await dead.close()
    await giving_back
    record = await store.read("x")
    assert record is not None
    assert record.free
    await guard.close()
    await store.close()


async def test_records_of_others_are_never_touched(tmp_path: Path) -> None:
    """Also of the same owner: a member that was started again is another holder."""
    store = SqliteStore(tmp_path / "leases.db")
    dead, again = lease_of(store), lease_of(store)
    assert await again.acquire()
    before = await store.read("x")
    guard = Guard()
    await guard.give_back(Reported(f"sqlite://{tmp_path}/leases.db", "x", dead.holder, 0.1))
    after = await store.read("x")
    assert before is not None
    assert after is not None
    assert after.holder == before.holder == again.holder
    assert again.check_alive()
    await again.release()
    await guard.close()
    await store.close()


async def test_a_store_that_does_not_answer_is_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    await guard.give_back(Reported(f"sqlite://{tmp_path}/no/such/leases.db", "x", "dead#1", 0.1))
    assert "could not be given back" in caplog.text
    await guard.close()


def test_what_a_member_tells_is_read_line_by_line(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    store = SqliteStore(tmp_path / "leases.db")
    lease = lease_of(store)
    Report(writes).add("sqlite:x", lease)
    os.close(writes)
    line = os.read(reads, 1000)
    assert parse(line) == Reported("sqlite:x", "x", lease.holder, TTL_S)
    os.close(reads)
    told = dataclasses.asdict(Reported("u", "n", "h", 1.0))
    for wrong in (b"", b"{}", b"[]", b"\xff", json.dumps(told | {"more": 1}).encode()):
        assert parse(wrong) is None


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_member_says_once_that_its_supervisor_is_gone(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """And not before; what it tells later goes nowhere, and fails nothing."""
    reads, writes = os.pipe()

    async def live() -> None:
        report = Report(writes)
        report.watch(asyncio.get_running_loop())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not caplog.records
        os.close(reads)
        async with asyncio.timeout(5.0):
            while not caplog.records:
                await asyncio.sleep(0.005)
        for _ in range(20):
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(live())
    os.close(writes)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "the supervisor of this member is gone: the crash guard is off" in record.message


def test_what_is_no_pipe_to_write_to_is_no_guard(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    with (tmp_path / "file").open("wb") as file:
        for wrong in (reads, file.fileno()):
            with pytest.raises(SettingsError, match=f"--guard-fd={wrong} is no pipe"):
                Report(wrong)
    os.close(reads)
    os.close(writes)


def test_members_differ_by_ports_name_and_files() -> None:
    settings = Settings(
        port=100, data_port=200, http="127.0.0.1:300", name="m", history="/h", state_dir="/s",
        seeds=("127.0.0.1:100",),
    )  # fmt: skip
    assert flags_of(2, 5, settings, has_seeds=True) == [
        *("--port", "102", "--data-port", "202", "--http", "127.0.0.1:302", "--name", "m-2"),
        *("--history", "/h.2", "--state-dir", "/s/2"),
    ]
    alone = flags_of(0, 1, dataclasses.replace(settings, data_port=0), has_seeds=True)
    assert alone == ["--port", "100", "--http", "127.0.0.1:300"]


def test_without_seeds_they_ask_the_first_of_them() -> None:
    settings = Settings(port=100, host="::1", seeds=("x:1",), keys=None, insecure=True)
    flags = flags_of(4, 5, settings, has_seeds=False)
    assert flags == ["--port", "104"] + [
        word for port in (100, 101, 102) for word in ("--seed", f"[::1]:{port}")
    ]


def test_the_flags_of_the_supervisor_are_its_own() -> None:
    given = ["--port", "1", "--processes", "3", "--no-restart", "--name", "x", "--processes=4"]
    assert without_own_flags(given) == ["--port", "1", "--name", "x"]
