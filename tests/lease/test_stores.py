"""What every store promises, asked of each."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lease import LeaseRecord, LeaseStore, MemoryStore, SqliteStore, WriteConflict, from_url
from lease.host_clock import boot_time_s

NAME = "ledger"


@pytest_asyncio.fixture(params=["memory", "memory-with-clock", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeaseStore]:
    match request.param:
        case "memory":
            made: LeaseStore = MemoryStore(wall_clock=time.time)
        case "memory-with-clock":
            made = MemoryStore(boot_time_s, time.time)
        case _:
            made = SqliteStore(tmp_path / "leases.db")
    yield made
    await made.close()


def wish(number: int, *, token: int | None = None, holder: str = "o#n") -> LeaseRecord:
    return LeaseRecord(name=NAME, holder=holder, token=token, ttl_s=15.0, write_id=f"w{number}")


async def test_what_was_written_is_read(store: LeaseStore) -> None:
    assert await store.read(NAME) is None
    written = await store.write(wish(1), if_version=None)
    assert await store.read(NAME) == written
    assert (written.holder, written.ttl_s, written.write_id) == ("o#n", 15.0, "w1")
    assert written.version
    assert written.token is not None
    assert written.acquired_at_wall_s == pytest.approx(time.time(), abs=60.0)


async def test_a_write_on_another_version_changes_nothing(store: LeaseStore) -> None:
    first = await store.write(wish(1), if_version=None)
    with pytest.raises(WriteConflict) as absent_expected:
        await store.write(wish(2), if_version=None)
    assert absent_expected.value.current == first
    second = await store.write(wish(3, token=first.token), if_version=first.version)
    with pytest.raises(WriteConflict) as older_expected:
        await store.write(wish(4), if_version=first.version)
    assert older_expected.value.current == second
    assert await store.read(NAME) == second


async def test_there_is_nothing_to_replace(store: LeaseStore) -> None:
    with pytest.raises(WriteConflict) as conflict:
        await store.write(wish(1), if_version="1")
    assert conflict.value.current is None


async def test_a_renewal_keeps_token_and_time_of_acquisition(store: LeaseStore) -> None:
    first = await store.write(wish(1), if_version=None)
    second = await store.write(wish(2, token=first.token), if_version=first.version)
    assert second.token == first.token
    assert second.version != first.version
    assert second.acquired_at_wall_s == first.acquired_at_wall_s


async def test_tokens_grow_over_release_and_takeover(store: LeaseStore) -> None:
    """I-18: and over names."""
    tokens = []
    record = await store.write(wish(0), if_version=None)
    for number in range(1, 4):
        tokens.append(record.token)
        free = await store.write(
            wish(number, token=record.token, holder=""), if_version=record.version
        )
        record = await store.write(wish(10 + number), if_version=free.version)
    assert all(isinstance(token, int) for token in tokens)
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)


async def test_no_version_ever_returns(store: LeaseStore) -> None:
    seen = set()
    version = None
    for number in range(10):
        record = await store.write(wish(number, token=1), if_version=version)
        version = record.version
        assert version not in seen
        seen.add(version)


async def test_names_are_apart(store: LeaseStore) -> None:
    await store.write(wish(1), if_version=None)
    assert await store.read("another") is None


async def test_a_change_is_told(store: LeaseStore) -> None:
    first = await store.write(wish(1), if_version=None)
    watch = asyncio.create_task(store.changed(NAME, first.version))
    done, _ = await asyncio.wait([watch], timeout=0.05)
    assert not done
    await store.write(wish(2, token=first.token), if_version=first.version)
    await asyncio.wait_for(watch, 5.0)
    await asyncio.wait_for(store.changed(NAME, first.version), 5.0)


async def test_a_watch_can_be_given_up(store: LeaseStore) -> None:
    first = await store.write(wish(1), if_version=None)
    watch = asyncio.create_task(store.changed(NAME, first.version))
    await asyncio.sleep(0)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    await store.write(wish(2, token=first.token), if_version=first.version)


async def test_the_age_of_a_record_is_told_or_unknown(store: LeaseStore) -> None:
    record = await store.write(wish(1), if_version=None)
    left_s = store.remaining_s(record)
    assert left_s is None or 0.0 < left_s <= 15.0
    assert (left_s is None) == (isinstance(store, MemoryStore) and store._clock is None)


async def test_what_is_damaged_is_kept_and_read(store: LeaseStore) -> None:
    """I-13: a record that makes no sense is a record."""
    hostile = LeaseRecord(
        name=NAME, holder="x" * 10_000, token=1, ttl_s=math.inf, write_id="'; DROP TABLE --"
    )
    await store.write(hostile, if_version=None)
    found = await store.read(NAME)
    assert found is not None
    assert found.write_id == hostile.write_id
    assert not found.free


async def test_many_at_once_have_one_winner(store: LeaseStore) -> None:
    """L12: whoever comes second is told who was first."""
    answers = await asyncio.gather(
        *(store.write(wish(number), if_version=None) for number in range(20)),
        return_exceptions=True,
    )
    won = [answer for answer in answers if isinstance(answer, LeaseRecord)]
    lost = [answer for answer in answers if isinstance(answer, WriteConflict)]
    assert len(won) == 1
    assert len(lost) == 19
    assert {conflict.current for conflict in lost} == {won[0]}


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
