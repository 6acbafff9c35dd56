"""Leases of a system: whose store, who owns them, and that nothing is left held behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lease import (
    LeaseLost,
    LeaseRecord,
    LeaseStore,
    LeaseUnavailableError,
    MemoryStore,
    SqliteStore,
)
from node.errors import SettingsError
from node.settings import Settings
from node.system import ActorSystem


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(15.0):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_without_a_store_there_is_no_lease() -> None:
    async with ActorSystem() as system:
        with pytest.raises(SettingsError, match="start the members with --lease URL"):
            system.lease("jobs")
        with pytest.raises(SettingsError, match=r"lease='redis://x': .* there are memory:"):
            system.lease("jobs", store="redis://x")
    with pytest.raises(RuntimeError, match="not open"):
        ActorSystem().lease("jobs")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lease_ttl_s": 4000}, "lease_ttl_s=4000(.0)? must be at most 3600"),
        ({"lease_ttl_s": 0}, "lease_ttl_s"),
        ({"acquire_retry_interval_s": -1}, "acquire_retry_interval_s"),
        (
            {"lease": "etcd://ops:secret@nowhere"},
            r"^lease='etcd://…@nowhere': 'nowhere' is no host:port",
        ),
        ({"lease": "kubernetes://jobs?server=https://x:1"}, "go together"),
    ],
)
def test_what_cannot_work_stops_the_start(settings: dict[str, Any], says: str) -> None:
    """By key, value and mend; never with a password."""
    with pytest.raises(SettingsError, match=says) as refused:
        ActorSystem(**settings)
    assert "secret" not in str(refused.value)


async def test_it_is_held_shown_and_released_in_the_end(tmp_path: Path) -> None:
    """L5: owner and ttl are the system's; after the end the next one has it at once."""
    url = f"sqlite://{tmp_path}/leases.db"
    async with ActorSystem(lease=url, lease_ttl_s=6.0) as system:
        lease = system.lease("jobs")
        lost: list[LeaseLost] = []
        lease.on_lost(lost.append)
        other = system.lease("jobs", ttl_s=3.0, store=url)
        assert other.store is lease.store, "each store is opened once"
        assert await lease.acquire()
        assert lease.settings.ttl_s == 6.0
        assert (other.settings.owner, other.settings.ttl_s) == (lease.settings.owner, 3.0)
        rows = system.leases.state()
        held = next(row for row in rows if row["held_by_us"])
        assert held["name"] == "jobs"
        assert held["store"] == f"sqlite://{tmp_path}/leases.db"
        assert held["holder"] == lease.settings.owner
        assert held["token"] == str(lease.token)
        assert 0 < held["valid_for_s"] <= 5.0
        assert system.counters()["lease: grants"] == 1
    assert not lease.check_alive()
    assert not lost
    store = SqliteStore(tmp_path / "leases.db")
    record = await store.read("jobs")
    assert record is not None
    assert record.free
    await store.close()


async def test_a_store_of_ones_own_is_not_closed(tmp_path: Path) -> None:
    store: LeaseStore = SqliteStore(tmp_path / "mine.db")
    async with ActorSystem() as system:
        assert await system.lease("jobs", store=store).acquire()
    assert await store.read("jobs") is not None
    await store.close()


async def test_two_systems_contend(tmp_path: Path) -> None:
    store = MemoryStore()
    async with ActorSystem() as one, ActorSystem() as two:
        first, second = one.lease("jobs", store=store), two.lease("jobs", store=store)
        assert await first.acquire()
        second.watch()
        await first.release()
        assert await second.acquire()
        assert not first.check_alive()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"protection": "some"}, "protection='some' is none of none, downing, downing.lease"),
        (
            {"protection": "none", "downing": "keep-oldest"},
            "protection='none' and downing='keep-oldest' contradict each other",
        ),
        ({"protection": "downing+lease"}, "needs a store of leases, and lease is not set"),
    ],
)
def test_levels_that_contradict_other_settings_stop_the_start(
    settings: dict[str, Any], says: str
) -> None:
    """By both names."""
    with pytest.raises(SettingsError, match=says):
        Settings(**settings)


def test_a_level_stands_for_a_strategy_and_for_leases() -> None:
    assert Settings().strategy() is None
    assert Settings(protection="none").strategy() is None
    assert str(Settings(protection="downing").strategy()) == "keep-majority"
    assert str(Settings(protection="downing", downing="keep-oldest").strategy()) == "keep-oldest"
    assert not Settings(protection="downing").leases_singletons
    leased = Settings(protection="downing+lease", lease="sqlite:x.db")
    assert leased.leases_singletons
    assert str(leased.strategy()) == "keep-majority"
    assert leased.agreement() != Settings(protection="downing", lease="sqlite:x.db").agreement()


async def test_closed_it_is_over_for_good_and_forgotten(tmp_path: Path) -> None:
    """It keeps nobody waiting, and is no row any more; what it counted stays."""
    async with ActorSystem(lease=f"sqlite://{tmp_path}/leases.db") as system:
        for _ in range(20):
            lease = system.lease("jobs")
            assert await lease.acquire()
            await lease.release()
            await lease.close()
        held = system.lease("jobs")
        assert await held.acquire()
        await held.close()
        assert not held.check_alive()
        assert (held.token, held.remaining_s(), held.explain()) == (None, 0.0, "closed")
        await held.release()
        with pytest.raises(LeaseUnavailableError, match="closed"):
            await held.acquire()
        unused = system.lease("unused")
        await unused.close()
        with pytest.raises(LeaseUnavailableError, match="closed"):
            await unused.acquire()
        assert system.leases.state() == []
        assert system.leases.by_name() == {}
        assert system.counters()["lease: grants"] == 21


async def test_two_holders_of_one_name_are_one_line_of_metrics(tmp_path: Path) -> None:
    async with ActorSystem(lease=f"sqlite://{tmp_path}/leases.db") as system:
        first, second = system.lease("jobs"), system.lease("jobs")
        assert await first.acquire()
        second.watch()
        assert list(system.leases.by_name()) == ["jobs"]
        assert len(system.leases.state()) == 2


def test_members_with_other_stores_do_not_join() -> None:
    """With a store of its own each of them would hold every lease."""
    stores = [None, "sqlite:a.db", "sqlite:b.db", "etcd://h:1", "etcd://u:p@h:1"]
    said = [dict(Settings(lease=store).agreement())["lease"] for store in stores]
    assert len(set(said)) == 4
    assert said[3] == said[4]
    assert "p@" not in str(said)


class Moody(MemoryStore):
    """A store that answers only while it is told to."""

    identity = "moody"
    answers = True

    async def read(self, name: str) -> LeaseRecord | None:
        if not self.answers:
            raise LeaseUnavailableError("it is gone")
        return await super().read(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        if not self.answers:
            raise LeaseUnavailableError("it is gone")
        return await super().write(record, if_version=if_version)


async def test_a_store_that_falls_silent_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many leases ask it, and no lines while all is well."""
    store = Moody()
    caplog.set_level(logging.INFO, logger="node.leases")

    def lines() -> list[tuple[str, str]]:
        return [(line.levelname, line.message) for line in caplog.records]

    async with ActorSystem() as system:
        leases = [system.lease(f"jobs-{n}", ttl_s=3.0, store=store) for n in range(3)]
        for lease in leases:
            assert await lease.acquire()
        assert lines() == []
        store.answers = False
        await until(lambda: all(lease.store_answers is False for lease in leases))
        silent = ("WARNING", "a lease store does not answer")
        assert lines() == [silent]
        (record,) = caplog.records
        assert record.__dict__["store"] == "moody"
        assert record.__dict__["error"] == "it is gone"
        store.answers = True
        for lease in leases:
            lease.want()
        await until(lambda: all(lease.store_answers for lease in leases))
        assert lines() == [silent, ("INFO", "a lease store answers again")]


async def test_a_store_that_never_answered_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Moody()
    store.answers = False
    async with ActorSystem() as system:
        with pytest.raises(LeaseUnavailableError):
            await system.lease("jobs", store=store).acquire()
        assert [line.message for line in caplog.records] == ["a lease store does not answer"]
