"""What every lease store promises, as tests: derive a class, say how a store is made, run pytest.

    class TestMyStore(LeaseStoreContract):
        async def make_store(self) -> LeaseStore:
            return MyStore(self.folder / "leases")

Some tests ask the store alone, the others whole leases with everything that goes wrong between
holder and store: lost, late and missing answers, pauses, clocks that jump or run at other rates.
They run in real time, about a minute for a store, and need pytest and pytest-asyncio. Not imported
by anything that runs in production.

`python -m lease.conformance` is what the tests start as further processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.events import LeaseLost
from lease.host_clock import boot_time_s
from lease.lease import Lease
from lease.record import LeaseRecord
from lease.settings import LeaseSettings
from lease.store import LeaseStore

STEP_S = 0.002
PATIENCE_S = 60.0


class FaultyStore(LeaseStore):
    """A store behind a connection that can fail. Writes may be done though nobody hears of it."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self.down = False  # every request fails at once
        self.silent = False  # no request arrives, and nobody says so
        self.lost_answers = 0  # so many writes more are done, and their answer is lost
        self.late_s = 0.0  # answers come so much later than the store gave them

    @property
    def identity(self) -> str:
        """That of the store behind."""
        return self.store.identity

    async def read(self, name: str) -> LeaseRecord | None:
        """Read, unless something fails."""
        await self._go()
        found = await self.store.read(name)
        await asyncio.sleep(self.late_s)
        return found

    async def look(self, name: str) -> LeaseRecord | None:
        """Look, unless something fails."""
        await self._go()
        found = await self.store.look(name)
        await asyncio.sleep(self.late_s)
        return found

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """Write, unless something fails."""
        await self._go()
        stored = await self.store.write(record, if_version=if_version)
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise LeaseUnavailableError("the connection broke after the request was sent")
        await asyncio.sleep(self.late_s)
        return stored

    async def changed(self, name: str, version: str) -> None:
        """Watch, unless something fails."""
        await self._go()
        await self.store.changed(name, version)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        """What the store behind says."""
        return self.store.remaining_s(record)

    async def _go(self) -> None:
        if self.down:
            raise LeaseUnavailableError("the connection is refused")
        while self.silent:  # noqa: ASYNC110 - a test sets it as it likes
            await asyncio.sleep(0.01)


class Clock:
    """A clock that runs at `rate` of the true one, and jumps when told."""

    def __init__(self, true: Callable[[], float], rate: float = 1.0) -> None:
        self._true = true
        self._begun = true()
        self._rate = rate
        self.ahead_s = 0.0

    def __call__(self) -> float:
        """What it shows now."""
        return self._begun + (self._true() - self._begun) * self._rate + self.ahead_s


class Contender:
    """A lease, its connection, its clocks, and what was lost."""

    def __init__(self, store: LeaseStore, settings: LeaseSettings, rate: float = 1.0) -> None:
        self.connection = FaultyStore(store)
        self.clock = Clock(boot_time_s, rate)
        self.wall_clock = Clock(time.time)
        self.lost: list[LeaseLost] = []
        self.lease = Lease(self.connection, settings, clock=self.clock, wall_clock=self.wall_clock)
        self.lease.on_lost(self.lost.append)

    async def hold(self) -> int:
        """Acquire it, as soon as it is free; returns the token."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(LeaseUnavailableError):
                    if await self.lease.acquire():
                        break
                await asyncio.sleep(0.01)
        assert self.lease.check_alive()
        assert self.lease.token is not None
        return self.lease.token


@pytest.mark.asyncio
class LeaseStoreContract:
    """See the module. One method to give; three more switch on the tests that need them.

    `folder` is empty when a test begins, and the same for all processes of one test.
    """

    folder: Path
    ttl_s: ClassVar[float] = 1.5
    """Of the leases in these tests; larger where a request of the store takes long."""
    in_other_processes: ClassVar[bool] = True
    """False when a store that another process makes is another store."""
    racers: ClassVar[int] = 20
    race_rounds: ClassVar[int] = 200

    async def make_store(self) -> LeaseStore:
        """Another store object for the same records. Also called in processes that tests start:
        take what it needs from `folder`, or from the environment."""
        raise NotImplementedError("a lease store's contract needs make_store")

    async def restart_server(self) -> None:
        """End what keeps the records and start it again; returns when it answers."""
        pytest.skip("restart_server is not given")

    async def delete_record(self, name: str) -> None:
        """Take the record away, as somebody with access to the store might."""
        pytest.skip("delete_record is not given")

    async def damage_record(self, name: str) -> None:
        """Overwrite the record with what makes no sense."""
        pytest.skip("damage_record is not given")

    # -- means

    @pytest_asyncio.fixture(autouse=True)
    async def _prepared(self, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path
        self.name = f"contract-{secrets.token_hex(6)}"
        self._stores: list[LeaseStore] = []
        self._contenders: list[Contender] = []
        self._processes: list[asyncio.subprocess.Process] = []
        yield
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        for contender in self._contenders:
            contender.connection.silent = contender.connection.down = False
            await contender.lease.close()
        for store in self._stores:
            await store.close()

    async def _store(self) -> LeaseStore:
        store = await self.make_store()
        self._stores.append(store)
        return store

    async def _contender(
        self, owner: str, *, ttl_s: float | None = None, rate: float = 1.0
    ) -> Contender:
        settings = LeaseSettings(
            name=self.name, owner=owner, ttl_s=ttl_s or self.ttl_s, acquire_retry_interval_s=0.5
        )
        contender = Contender(await self._store(), settings, rate)
        self._contenders.append(contender)
        return contender

    def _wish(self, number: int, **fields: object) -> LeaseRecord:
        plain: dict[str, object] = {
            "name": self.name,
            "holder": "o#n",
            "token": None,
            "ttl_s": 15.0,
            "write_id": f"w{number}",
        }
        return LeaseRecord(**{**plain, **fields})  # type: ignore[arg-type]

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(STEP_S)

    # -- the store alone

    async def test_what_was_written_is_read(self) -> None:
        """By others too, and nothing is there before."""
        store, other = await self._store(), await self._store()
        assert await store.read(self.name) is None
        written = await store.write(self._wish(1), if_version=None)
        found = await other.read(self.name)
        assert found is not None
        assert (found.holder, found.ttl_s, found.write_id) == ("o#n", 15.0, "w1")
        assert (found.token, found.version) == (written.token, written.version)
        assert found.version
        assert isinstance(found.token, int)
        assert found.token > 0
        if found.acquired_at_wall_s is not None:
            assert abs(found.acquired_at_wall_s - time.time()) < 60.0

    async def test_a_look_shows_what_a_read_shows_and_changes_nothing(self) -> None:
        """What a standby knows of the record is what whoever wants it reads."""
        store, other = await self._store(), await self._store()
        assert await store.look(self.name) is None
        written = await store.write(self._wish(1), if_version=None)
        looked = await other.look(self.name)
        assert looked is not None
        assert (looked.holder, looked.token, looked.version) == (
            "o#n",
            written.token,
            written.version,
        )
        again = self._wish(2, token=written.token)
        assert (await store.write(again, if_version=written.version)).version != written.version

    async def test_a_write_on_another_version_changes_nothing(self) -> None:
        """And is told the present one."""
        store = await self._store()
        first = await store.write(self._wish(1), if_version=None)
        with pytest.raises(WriteConflict) as absent_expected:
            await store.write(self._wish(2), if_version=None)
        assert _same(absent_expected.value.current, first)
        second = await store.write(self._wish(3, token=first.token), if_version=first.version)
        with pytest.raises(WriteConflict) as older_expected:
            await store.write(self._wish(4), if_version=first.version)
        assert _same(older_expected.value.current, second)
        assert _same(await store.read(self.name), second)

    async def test_there_is_nothing_to_replace(self) -> None:
        """A write on a version must not create: it would bring a deleted record back."""
        store = await self._store()
        other = await store.write(self._wish(1, name=f"{self.name}-other"), if_version=None)
        with pytest.raises(WriteConflict) as conflict:
            await store.write(self._wish(1), if_version=other.version)
        assert conflict.value.current is None
        assert await store.read(self.name) is None

    async def test_a_renewal_keeps_token_and_time_of_acquisition(self) -> None:
        """It is the same holding."""
        store = await self._store()
        first = await store.write(self._wish(1), if_version=None)
        second = await store.write(self._wish(2, token=first.token), if_version=first.version)
        assert second.token == first.token
        assert second.version != first.version
        assert second.acquired_at_wall_s == first.acquired_at_wall_s

    async def test_tokens_grow_over_release_and_takeover(self) -> None:
        """I-18."""
        store = await self._store()
        tokens = []
        record = await store.write(self._wish(0), if_version=None)
        for number in range(1, 4):
            tokens.append(record.token)
            free = await store.write(
                self._wish(number, token=record.token, holder=""), if_version=record.version
            )
            record = await store.write(self._wish(10 + number), if_version=free.version)
            tokens.append(record.token)
            record = await store.write(self._wish(20 + number), if_version=record.version)
        tokens.append(record.token)
        numbers = [token for token in tokens if token is not None]
        assert len(numbers) == len(tokens)
        assert numbers == sorted(set(numbers))

    async def test_no_version_ever_returns(self) -> None:
        """Also not when the same is written again."""
        store = await self._store()
        seen: set[str] = set()
        version = None
        for number in range(10):
            record = await store.write(self._wish(number // 2, token=1), if_version=version)
            version = record.version
            assert version not in seen
            seen.add(version)

    async def test_names_are_apart_whatever_they_are(self) -> None:
        """I-13: a name is only compared."""
        store = await self._store()
        names = [
            self.name,
            f"{self.name}/downing",
            f"{self.name}-downing",
            self.name.upper(),
            f"{self.name} ä☃",
            f"{self.name}'; --",
            f"{self.name}..x",
            f"{self.name}%",
            "x" * 250 + self.name[-6:],
        ]
        for index, name in enumerate(names):
            assert await store.read(name) is None, name
            await store.write(self._wish(index, name=name, holder=f"h{index}"), if_version=None)
        for index, name in enumerate(names):
            found = await store.read(name)
            assert found is not None, name
            assert (found.name, found.holder) == (name, f"h{index}")

    async def test_a_change_is_told(self) -> None:
        """Also one that is over already."""
        store = await self._store()
        first = await store.write(self._wish(1), if_version=None)
        watch = asyncio.create_task(store.changed(self.name, first.version))
        done, _ = await asyncio.wait([watch], timeout=0.2)
        assert not done
        await store.write(self._wish(2, token=first.token), if_version=first.version)
        await asyncio.wait_for(watch, PATIENCE_S)
        await asyncio.wait_for(store.changed(self.name, first.version), PATIENCE_S)

    async def test_a_watch_can_be_given_up(self) -> None:
        """And the store goes on."""
        store = await self._store()
        first = await store.write(self._wish(1), if_version=None)
        for pause_s in (0.0, 0.1):
            watch = asyncio.create_task(store.changed(self.name, first.version))
            await asyncio.sleep(pause_s)
            watch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watch
        await store.write(self._wish(2, token=first.token), if_version=first.version)

    async def test_the_age_of_a_record_is_told_or_unknown(self) -> None:
        """Never more than its ttl, which nobody may prolong."""
        store = await self._store()
        record = await store.write(self._wish(1), if_version=None)
        left_s = store.remaining_s(record)
        assert left_s is None or 0.0 < left_s <= 15.0

    async def test_what_is_hostile_is_kept_and_read(self) -> None:
        """I-12, I-13: a record that makes no sense is a record, and is not free."""
        store = await self._store()
        for index, ttl_s in enumerate((math.inf, math.nan, 0.0, -1.0, 1e12)):
            hostile = self._wish(
                0, name=f"{self.name}-{index}", holder="x" * 1000, ttl_s=ttl_s,
                write_id="'; DROP TABLE --\u2028",
            )  # fmt: skip
            try:
                await store.write(hostile, if_version=None)
            except LeaseUnavailableError:
                continue  # a store may refuse it: then it does not come from there
            found = await store.read(hostile.name)
            assert found is not None
            assert found.write_id == hostile.write_id
            assert not found.free

    async def test_many_at_once_have_one_winner(self) -> None:
        """L12: whoever comes second is told who was first."""
        store = await self._store()
        answers = await asyncio.gather(
            *(store.write(self._wish(number), if_version=None) for number in range(20)),
            return_exceptions=True,
        )
        won = [answer for answer in answers if isinstance(answer, LeaseRecord)]
        lost = [answer for answer in answers if isinstance(answer, WriteConflict)]
        assert len(won) == 1
        assert len(lost) == 19
        assert all(_same(conflict.current, won[0]) for conflict in lost)

    # -- whole leases

    async def test_two_at_once_have_one_holder(self) -> None:
        """L12."""
        a, b = await self._contender("a"), await self._contender("b")
        answers = await asyncio.gather(a.lease.acquire(), b.lease.acquire(), return_exceptions=True)
        assert answers.count(True) == 1, answers
        assert [a.lease.check_alive(), b.lease.check_alive()].count(True) == 1

    async def test_held_it_is_renewed_and_proven(self) -> None:
        """L3, L11: no second loop, the same token."""
        a = await self._contender("a")
        token = await a.hold()
        for _ in range(4):
            await asyncio.sleep(self.ttl_s / 2)
            assert a.lease.check_alive()
            assert await a.lease.acquire()
        assert a.lease.token == token
        assert not a.lost

    async def test_both_sides_of_a_partition_try_to_renew(self) -> None:
        """L12: the one that is cut off has stopped when the other one begins."""
        for cut in ("down", "silent"):
            a, b = await self._contender("a"), await self._contender("b")
            first = await a.hold()
            setattr(a.connection, cut, True)
            second = await b.hold()
            assert not a.lease.check_alive()
            assert second > first
            setattr(a.connection, cut, False)
            await self._until(lambda a=a: bool(a.lost))  # type: ignore[misc]
            with contextlib.suppress(LeaseUnavailableError):
                assert not await a.lease.acquire()
            assert b.lease.check_alive()
            assert (len(a.lost), len(b.lost)) == (1, 0)
            await b.lease.release()

    async def test_after_a_crash_the_ttl_frees_it(self) -> None:
        """L6, L12: not before the crashed one would have stopped, and then at once."""
        a, b = await self._contender("a"), await self._contender("b")
        first = await a.hold()
        b.lease.watch()
        await asyncio.sleep(self.ttl_s / 2)
        until = a.lease.valid_until
        await a.lease.close()
        assert await b.hold() > first
        assert boot_time_s() >= until

    async def test_released_it_is_free_at_once(self) -> None:
        """L4, L8: and no loss is told."""
        a, b = await self._contender("a"), await self._contender("b")
        first = await a.hold()
        waiting = asyncio.create_task(b.hold())
        await asyncio.sleep(0.1)
        await a.lease.release()
        assert not a.lease.check_alive()
        assert a.lease.token is None
        assert await waiting > first
        assert not a.lost
        await a.lease.release()
        assert b.lease.check_alive()

    async def test_a_lost_answer_of_an_acquire_leaves_nothing_behind(self) -> None:
        """I-3: the write was done; nobody heard of it."""
        a, b = await self._contender("a"), await self._contender("b")
        a.connection.lost_answers = 1
        with pytest.raises(LeaseUnavailableError):
            await a.lease.acquire()
        assert not a.lease.check_alive()
        assert await b.hold()
        assert not a.lease.check_alive()

    async def test_a_lost_answer_of_a_renewal_costs_nothing(self) -> None:
        """I-10: one's own late write is no other holder."""
        a = await self._contender("a")
        token = await a.hold()
        for _ in range(3):
            a.connection.lost_answers = 1
            await self._until(lambda: a.connection.lost_answers == 0)
            assert a.lease.check_alive()
        await asyncio.sleep(self.ttl_s)
        assert a.lease.check_alive()
        assert a.lease.token == token
        assert not a.lost

    async def test_a_lost_answer_of_a_release_is_read_back(self) -> None:
        """L4: it returns, and somebody else can have it."""
        a, b = await self._contender("a"), await self._contender("b")
        await a.hold()
        a.connection.lost_answers = 1
        await asyncio.wait_for(a.lease.release(), PATIENCE_S)
        await b.hold()

    async def test_an_answer_later_than_the_ttl_is_worth_nothing(self) -> None:
        """A write counts from when it was sent."""
        a = await self._contender("a")
        a.connection.late_s = self.ttl_s * 1.2
        with pytest.raises(LeaseUnavailableError):
            await a.lease.acquire()
        assert not a.lease.check_alive()
        a.connection.late_s = 0.0
        await a.hold()

    async def test_a_short_outage_costs_nothing(self) -> None:
        """I-11: renewals that fail are repeated."""
        a = await self._contender("a")
        token = await a.hold()
        for cut in ("down", "silent"):
            setattr(a.connection, cut, True)
            await asyncio.sleep(self.ttl_s / 4)
            assert a.lease.check_alive()
            setattr(a.connection, cut, False)
            await asyncio.sleep(self.ttl_s)
            assert a.lease.check_alive()
        assert a.lease.token == token
        assert not a.lost

    async def test_a_long_outage_ends_it_once(self) -> None:
        """L8, L9: and what was lost comes back only when it is asked for."""
        a = await self._contender("a")
        first = await a.hold()
        a.connection.down = True
        await self._until(lambda: bool(a.lost))
        assert not a.lease.check_alive()
        with pytest.raises(LeaseUnavailableError):
            await a.lease.acquire()
        a.connection.down = False
        await asyncio.sleep(self.ttl_s / 2)
        assert not a.lease.check_alive()
        assert await a.hold() > first
        assert len(a.lost) == 1

    async def test_wall_clocks_may_jump(self) -> None:
        """I-23: nobody believes them; one that ran ahead has it proven first, since this machine
        may have been frozen."""
        a, b = await self._contender("a"), await self._contender("b")
        token = await a.hold()
        for jump_s in (3600.0, -3600.0):
            for each in (a, b):
                each.wall_clock.ahead_s += jump_s
            assert a.lease.check_alive() is (jump_s < 0)
            with contextlib.suppress(LeaseUnavailableError):
                assert not await b.lease.acquire()
            await self._until(a.lease.check_alive)
        assert a.lease.token == token
        assert not a.lost

    async def test_the_holders_boot_clock_jumps(self) -> None:
        """It slept for an hour, by its own clock: it has lost it, and others wait for the ttl."""
        a, b = await self._contender("a"), await self._contender("b")
        first = await a.hold()
        until = a.lease.valid_until
        a.clock.ahead_s = 3600.0
        assert not a.lease.check_alive()
        assert await b.hold() > first
        assert boot_time_s() >= until - self.ttl_s / 2
        await self._until(lambda: len(a.lost) == 1)
        assert not a.lease.check_alive()

    async def test_clocks_may_run_one_percent_off(self) -> None:
        """I-23: the margin is for that."""
        for rates in ((0.99, 1.01), (1.01, 0.99)):
            a = await self._contender("a", rate=rates[0])
            b = await self._contender("b", rate=rates[1])
            first = await a.hold()
            b.lease.watch()
            await asyncio.sleep(self.ttl_s / 2)
            a.connection.silent = True
            assert await b.hold() > first
            assert not a.lease.check_alive()
            await b.lease.release()

    async def test_a_challenger_with_a_smaller_ttl_steals_nothing(self) -> None:
        """I-14: the ttl of the record counts."""
        a = await self._contender("a", ttl_s=self.ttl_s * 2)
        b = await self._contender("b", ttl_s=self.ttl_s / 3)
        first = await a.hold()
        b.lease.watch()
        await asyncio.sleep(self.ttl_s)
        a.connection.down = True
        assert a.lease.check_alive()
        assert await b.hold() > first
        assert not a.lease.check_alive()

    async def test_who_held_it_before_does_not_touch_the_successor(self) -> None:
        """I-17."""
        a, b = await self._contender("a"), await self._contender("b")
        await a.hold()
        a.connection.silent = True
        token = await b.hold()
        a.connection.silent = False
        await a.lease.release()
        await asyncio.sleep(self.ttl_s)
        assert b.lease.check_alive()
        assert b.lease.token == token
        found = await (await self._store()).read(self.name) if self.in_other_processes else None
        assert found is None or found.holder == b.lease.holder

    async def test_the_same_owner_restarted_is_another_holder(self) -> None:
        """I-20: the process before it may still run."""
        a, again = await self._contender("same"), await self._contender("same")
        first = await a.hold()
        again.lease.watch()
        await asyncio.sleep(self.ttl_s)
        with contextlib.suppress(LeaseUnavailableError):
            assert not await again.lease.acquire()
        assert a.lease.check_alive()
        await a.lease.close()
        assert await again.hold() > first

    async def test_tokens_grow_over_everything(self) -> None:
        """I-18, I-19: release, expiry, another store object."""
        tokens = []
        for ending in ("release", "crash", "release", "crash", "release"):
            one = await self._contender("one")
            tokens.append(await one.hold())
            if ending == "release":
                await one.lease.release()
            else:
                await one.lease.close()
        assert tokens == sorted(set(tokens))

    async def test_a_restart_of_the_store_is_survived(self) -> None:
        """Records and tokens outlive it."""
        a = await self._contender("a")
        first = await a.hold()
        await a.lease.release()
        await self.restart_server()
        second = await a.hold()
        assert second > first
        await self.restart_server()
        b = await self._contender("b")
        await asyncio.wait([asyncio.create_task(b.hold())], timeout=self.ttl_s / 2)
        assert [a.lease.check_alive(), b.lease.check_alive()].count(True) <= 1

    async def test_a_record_deleted_by_hand_ends_the_holding(self) -> None:
        """I-18: and the next token is greater all the same."""
        a, b = await self._contender("a"), await self._contender("b")
        first = await a.hold()
        await self.delete_record(self.name)
        await self._until(lambda: len(a.lost) == 1)
        assert not a.lease.check_alive()
        assert await b.hold() > first
        await asyncio.sleep(self.ttl_s / 2)
        assert not a.lease.check_alive()
        assert b.lease.check_alive()

    async def test_a_damaged_record_is_not_free(self) -> None:
        """I-13: garbage counts as a holder."""
        store = await self._store()
        await store.write(self._wish(1), if_version=None)
        await self.damage_record(self.name)
        with contextlib.suppress(LeaseUnavailableError):
            found = await store.read(self.name)
            assert found is not None
            assert not found.free
        a = await self._contender("a")
        with contextlib.suppress(LeaseUnavailableError, TimeoutError):
            async with asyncio.timeout(self.ttl_s):
                assert not await a.lease.acquire()
        assert not a.lease.check_alive()

    # -- other processes

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        if not self.in_other_processes:
            pytest.skip("a store in another process is another store")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lease.conformance", type(self).__module__,
            type(self).__qualname__, str(self.folder), self.name, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._processes.append(process)
        return process

    async def test_a_stopped_process_does_nothing_when_it_goes_on(self) -> None:
        """L12: real SIGSTOP for longer than the ttl, and SIGCONT."""
        holder = await self._start("hold")
        assert await _line(holder) == "held"
        b = await self._contender("b")
        b.lease.watch()
        await asyncio.sleep(self.ttl_s / 2)
        holder.send_signal(signal.SIGSTOP)
        token = await b.hold()
        taken_at = boot_time_s()
        holder.send_signal(signal.SIGCONT)
        said = await _line(holder)
        assert said.startswith("lost"), said
        steps = [float(line) for line in (self.folder / "steps").read_text().split()]
        assert steps
        assert max(steps) < taken_at
        assert b.lease.token == token

    async def test_processes_that_race_have_one_winner_each_round(self) -> None:
        """I-18: tokens distinct and increasing, round for round."""
        rounds = self.race_rounds
        racers = [await self._start("race", str(n), str(rounds)) for n in range(self.racers)]
        for racer in racers:
            assert await _line(racer) == "ready"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
        won: dict[int, int] = {}
        outputs = await asyncio.gather(*(racer.communicate() for racer in racers))
        assert [racer.returncode for racer in racers] == [0] * self.racers
        for out, _ in outputs:
            for line in out.decode().splitlines():
                one = json.loads(line)
                assert one["round"] not in won, "two had the same round"
                won[one["round"]] = one["token"]
        assert sorted(won) == list(range(rounds))
        tokens = [won[number] for number in range(rounds)]
        assert tokens == sorted(set(tokens))


def _same(found: LeaseRecord | None, written: LeaseRecord) -> bool:
    return found is not None and (
        (found.holder, found.token, found.version, found.write_id)
        == (written.holder, written.token, written.version, written.write_id)
    )


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    return line.decode().strip()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _race(lease: Lease, folder: Path, rounds: int) -> None:
    """The round is told by a file that only the holder touches."""
    counter = folder / "round"
    _say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while True:
        won = False
        with contextlib.suppress(LeaseUnavailableError):
            won = await lease.acquire()
        if not won:
            await asyncio.sleep(0.005)
            continue
        assert lease.check_alive()
        done = int(counter.read_text()) if counter.exists() else 0
        if done < rounds:
            counter.write_text(str(done + 1))
            _say(json.dumps({"round": done, "token": lease.token}))
        await lease.release()
        if done >= rounds:
            return
        await asyncio.sleep(0.005)


async def _hold(lease: Lease, folder: Path) -> None:
    """Step as long as it is held; say when it is lost."""
    lost: list[LeaseLost] = []
    lease.on_lost(lost.append)
    assert await lease.acquire()
    _say("held")
    with (folder / "steps").open("w") as steps:
        while not lost:
            if lease.check_alive():
                steps.write(f"{boot_time_s()}\n")
                steps.flush()
            await asyncio.sleep(STEP_S)
    _say(f"lost: {lost[0].why}")


async def _main(words: list[str]) -> None:
    module, contract_name, folder, name, what, *rest = words
    contract: LeaseStoreContract = getattr(importlib.import_module(module), contract_name)()
    contract.folder = Path(folder)
    store = await contract.make_store()
    ttl_s = 15.0 if what == "race" else contract.ttl_s
    settings = LeaseSettings(name=name, owner=what, ttl_s=ttl_s, acquire_retry_interval_s=0.5)
    lease = Lease(store, settings)
    task: Awaitable[None] = (
        _race(lease, Path(folder), int(rest[1])) if what == "race" else _hold(lease, Path(folder))
    )
    await task
    await lease.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
