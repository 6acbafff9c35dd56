"""The keeper: a real machine, a real store, on a real loop and on simulated ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lease import (
    LeaseKeeper,
    LeaseRecord,
    LeaseSettings,
    LeaseStore,
    LeaseUnavailableError,
    MemoryStore,
)
from lease.events import (
    LeaseAwaited,
    LeaseDenied,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    LeaseUnknown,
    StoreAnswers,
)
from lease.host_clock import boot_time_s
from lease.machine import State
from node.testkit import World

NAME = "ledger"
TTL_S = 15.0
LAST_ACT_S = TTL_S - TTL_S / 6


class WeakStore(LeaseStore):
    """A real store behind a bad way: what it does can be slow, refused, or done and not told."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.inner = MemoryStore(clock)
        self.down = False
        self.answers_lost = False
        self.delay_s = 0.0
        self.requests = 0
        self.error: Exception | None = None

    async def read(self, name: str) -> LeaseRecord | None:
        await self._come()
        return await self.inner.read(name)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        await self._come()
        stored = await self.inner.write(record, if_version=if_version)
        if self.answers_lost:
            raise LeaseUnavailableError("the connection was lost")
        return stored

    async def changed(self, name: str, version: str) -> None:
        if self.error is not None:
            raise self.error
        await self.inner.changed(name, version)

    def remaining_s(self, record: LeaseRecord) -> float | None:
        return self.inner.remaining_s(record)

    async def _come(self) -> None:
        self.requests += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.down:
            raise LeaseUnavailableError("the store is down")
        if self.error is not None:
            raise self.error


class Sim:
    """Keepers of one lease on simulated nodes `a b c`, with one store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = WeakStore()
        self.told: dict[str, list[object]] = {}
        self.wall_ahead_s = dict.fromkeys("abc", 0.0)
        self.acted: list[tuple[float, str]] = []
        self.keepers = {name: self.keeper(name) for name in "abc"}

    def keeper(self, name: str) -> LeaseKeeper:
        loop = self.world[name].loop
        facts = self.told.setdefault(name, [])
        return LeaseKeeper(
            self.store,
            LeaseSettings(name=NAME, owner=name, ttl_s=TTL_S),
            nonce=f"{name}{len(facts)}",
            loop=loop,
            clock=loop.time,
            wall_clock=lambda: loop.time() + 1e9 + self.wall_ahead_s[name],
            told=facts.append,
        )

    def run(self, name: str, coroutine: Any) -> Any:
        return self.world.run(coroutine, node=name, within_s=120.0)

    def acquire(self, name: str) -> Any:
        return self.run(name, self.keepers[name].acquire())

    def release(self, name: str) -> Any:
        return self.run(name, self.keepers[name].release())

    def alive(self, name: str) -> bool:
        return self.world[name].call(self.keepers[name].check_alive)

    def tell(self, name: str, what: Callable[[], None]) -> None:
        self.world[name].call(what)

    def until(self, predicate: Callable[[], bool], within_s: float = 60.0) -> float:
        """Returns how long it took."""
        began_at = self.world.now
        self.world.run_until(predicate, within_s=within_s)
        return self.world.now - began_at


@pytest.fixture
def sim() -> Iterator[Sim]:
    with World(seed=1, nodes="a b c") as world:
        world.run_for(s=1)
        yield Sim(world)


def of_kind(facts: list[object], kind: type) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


# -- acquire and release, as the contract has them


def test_acquired_renewed_and_released(sim: Sim) -> None:
    """L1, L3, L4, L11."""
    assert sim.acquire("a") is True
    assert sim.alive("a")
    sim.world.run_for(s=102)
    assert sim.alive("a")
    assert len(of_kind(sim.told["a"], LeaseRenewed)) == 20  # each third of the ttl
    before = sim.store.requests
    assert sim.acquire("a") is True
    assert sim.store.requests == before + 1
    sim.release("a")
    assert not sim.alive("a")
    sim.release("a")
    assert of_kind(sim.told["a"], LeaseLost) == []
    assert len(of_kind(sim.told["a"], LeaseReleased)) == 2
    after = sim.store.requests
    sim.world.run_for(s=100)
    assert sim.store.requests == after


def test_acquired_while_it_is_being_released(sim: Sim) -> None:
    """I-4: first the one, then the other; both are answered."""
    sim.acquire("a")
    token = sim.keepers["a"].token
    sim.store.delay_s = 0.5

    async def both() -> tuple[None, bool]:
        keeper = sim.keepers["a"]
        released, acquired = await asyncio.gather(keeper.release(), keeper.acquire())
        return released, acquired

    assert sim.run("a", both()) == (None, True)
    assert (sim.keepers["a"].token or 0) > (token or 0)


def test_another_one_is_told_that_it_is_held(sim: Sim) -> None:
    """L1: once that is certain; it is not wanted afterwards."""
    sim.acquire("a")
    began_at = sim.world.now
    assert sim.acquire("b") is False
    assert sim.world.now - began_at <= TTL_S / 3 + 0.1
    assert sim.keepers["b"].state is State.IDLE
    sim.world.run_for(s=60)
    assert sim.keepers["b"].state is State.IDLE


def test_after_a_crash_the_ttl_frees_it(sim: Sim) -> None:
    """L6: a record of which nobody knows is watched for its ttl, then taken."""
    sim.acquire("a")
    token = sim.keepers["a"].token
    sim.world.crash("a")
    began_at = sim.world.now
    assert sim.acquire("b") is True
    assert TTL_S <= sim.world.now - began_at <= TTL_S + 0.1
    assert (sim.keepers["b"].token or 0) > (token or 0)


def test_who_watched_from_the_start_takes_it_at_its_expiry(sim: Sim) -> None:
    sim.acquire("a")
    sim.tell("b", sim.keepers["b"].watch)
    sim.world.run_for(s=21)
    sim.world.crash("a")
    took_s = sim.until(lambda: len(of_kind(sim.told["b"], LeaseAwaited)) == 0, 1.0)
    sim.tell("b", sim.keepers["b"].want)
    took_s += sim.until(lambda: sim.keepers["b"].token is not None)
    assert TTL_S - TTL_S / 3 - 0.5 <= took_s <= TTL_S + 0.1


def test_a_release_wakes_who_waits(sim: Sim) -> None:
    """Not the retry interval."""
    sim.acquire("a")
    sim.tell("b", sim.keepers["b"].want)
    sim.world.run_for(s=1)
    sim.release("a")
    assert sim.until(lambda: sim.alive("b")) <= 0.05


def test_it_is_lost_once_and_to_all_who_listen(sim: Sim) -> None:
    """I-24, L9: by the deadline; only another acquire brings it back, with another token."""
    sim.acquire("a")
    token = sim.keepers["a"].token
    sim.store.down = True
    lost_s = sim.until(lambda: bool(of_kind(sim.told["a"], LeaseLost)))
    assert lost_s == pytest.approx(LAST_ACT_S, abs=0.1)
    assert not sim.alive("a")
    sim.store.down = False
    sim.world.run_for(s=60)
    assert not sim.alive("a")
    assert len(of_kind(sim.told["a"], LeaseLost)) == 1
    assert sim.acquire("a") is True
    assert (sim.keepers["a"].token or 0) > (token or 0)


def test_a_store_that_is_down_is_unknown_and_nothing_is_wanted_after(sim: Sim) -> None:
    """L1: raised; I-3: what a late write wins is given back."""
    sim.store.down = True
    with pytest.raises(LeaseUnavailableError, match="the store is down"):
        sim.acquire("a")
    assert sim.keepers["a"].state is State.IDLE
    sim.store.down, sim.store.answers_lost = False, True
    with pytest.raises(LeaseUnavailableError, match="the connection was lost"):
        sim.acquire("a")
    sim.store.answers_lost = False
    sim.until(lambda: sim.keepers["a"].state is State.IDLE)
    assert sim.acquire("b") is True


def test_wanted_it_is_asked_for_until_the_store_returns(sim: Sim) -> None:
    """Unknown is neither yes nor no: it is told, and asked again."""
    sim.store.down = True
    sim.tell("a", sim.keepers["a"].want)
    sim.world.run_for(s=30)
    assert len(of_kind(sim.told["a"], LeaseUnknown)) >= 20
    sim.store.down = False
    assert sim.until(lambda: sim.alive("a")) <= 1.1


@pytest.mark.parametrize("fault", ["down", "answers_lost", "slow"])
def test_an_outage_that_is_short_enough_costs_nothing(sim: Sim, fault: str) -> None:
    """I-11: shorter than ttl - margin - one renewal interval - 1 s, whenever it begins."""
    sim.acquire("a")
    for number in range(10):
        sim.world.run_for(s=5.0 + 0.5 * number)
        if fault == "slow":
            sim.store.delay_s = 1000.0
        else:
            setattr(sim.store, fault, True)
        sim.world.run_for(s=LAST_ACT_S - TTL_S / 3 - 1.0)
        sim.store.down = sim.store.answers_lost = False
        sim.store.delay_s = 0.0
    sim.world.run_for(s=20)
    assert sim.alive("a")
    assert of_kind(sim.told["a"], LeaseLost) == []


def test_at_most_four_requests_per_ttl(sim: Sim) -> None:
    sim.acquire("a")
    before = sim.store.requests
    sim.world.run_for(s=10 * TTL_S)
    assert sim.store.requests - before <= 40


def test_a_pause_longer_than_the_ttl_ends_it_before_anything_is_done(sim: Sim) -> None:
    """I-8: the first look after the pause says no, though no event told so yet."""
    sim.acquire("a")
    looks: list[tuple[float, bool]] = []
    loop = sim.world["a"].loop

    async def act() -> None:
        while True:
            looks.append((sim.world.now, sim.keepers["a"].check_alive()))
            await asyncio.sleep(0.01)

    acting = sim.world["a"].call(loop.create_task, act())
    sim.tell("b", sim.keepers["b"].want)
    sim.world.run_for(s=3)
    sim.world.pause("a", s=40)
    sim.world.run_for(s=60)
    woke_at = max(at for at, _ in looks if at > 30)
    assert [at for at, alive in looks if alive and at > 30] == []
    assert woke_at > 40
    assert sim.alive("b")
    acting.cancel()


def test_a_release_that_cannot_be_told_is_an_error(sim: Sim) -> None:
    """I-2: surfaced, and not held meanwhile; the ttl frees it."""
    sim.acquire("a")
    sim.store.down = True
    with pytest.raises(LeaseUnavailableError, match="could not be released: the store is down"):
        sim.release("a")
    assert not sim.alive("a")
    sim.store.down = False
    assert sim.acquire("b") is True


def test_a_wall_clock_that_ran_ahead_closes_it_until_it_is_proven(sim: Sim) -> None:
    """A machine that was frozen: its boot clock stood still. One round trip, no loss."""
    sim.acquire("a")
    sim.world.run_for(s=1)
    sim.wall_ahead_s["a"] += 3600.0
    assert not sim.alive("a")
    sim.world.run_for(s=0.1)
    assert sim.alive("a")
    sim.wall_ahead_s["a"] -= 3600.0
    assert sim.alive("a")
    sim.store.down = True
    sim.wall_ahead_s["a"] += 3600.0
    assert not sim.alive("a")
    sim.world.run_for(s=5)
    assert not sim.alive("a")
    assert of_kind(sim.told["a"], LeaseLost) == []


def test_a_freeze_between_question_and_answer_is_seen(sim: Sim) -> None:
    """What counts is the wall clock when the write was sent."""
    sim.store.delay_s = 1.0
    sim.tell("a", sim.keepers["a"].want)
    sim.world.run_for(s=1.5)
    sim.wall_ahead_s["a"] += 60.0
    sim.world.run_for(s=1.0)
    assert sim.keepers["a"].state is State.HELD
    assert not sim.alive("a")
    assert of_kind(sim.told["a"], LeaseGranted) == [], "it is told once it is proven"
    sim.world.run_for(s=1.0)
    assert sim.alive("a")
    assert len(of_kind(sim.told["a"], LeaseGranted)) == 1


def test_what_is_told_may_want_something_at_once(sim: Sim) -> None:
    facts: list[object] = []

    def told(fact: object) -> None:
        facts.append(fact)
        if isinstance(fact, LeaseGranted):
            keeper.unwant()

    loop = sim.world["a"].loop
    keeper = LeaseKeeper(
        sim.store,
        LeaseSettings(name=NAME, owner="a", ttl_s=TTL_S),
        nonce="x",
        loop=loop,
        clock=loop.time,
        wall_clock=loop.time,
        told=told,
    )
    sim.tell("a", keeper.want)
    sim.world.run_for(s=1)
    assert [type(fact) for fact in facts] == [StoreAnswers, LeaseGranted, LeaseReleased]


def test_a_store_that_breaks_its_contract_is_unknown(
    sim: Sim, caplog: pytest.LogCaptureFixture
) -> None:
    sim.store.error = ZeroDivisionError("a bug")
    with pytest.raises(LeaseUnavailableError, match="ZeroDivisionError: a bug"):
        sim.acquire("a")
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_the_same_seed_gives_the_same_facts() -> None:
    runs = []
    for _ in range(2):
        with World(seed=4, nodes="a b c") as world:
            world.run_for(s=1)
            sim = Sim(world)
            for name in "abc":
                sim.tell(name, sim.keepers[name].want)
            for _ in range(5):
                world.run_for(s=3)
                (holder,) = (name for name in "abc" if sim.alive(name))
                sim.tell(holder, sim.keepers[holder].unwant)
                sim.tell(holder, sim.keepers[holder].want)
            runs.append(sim.told)
    assert runs[0] == runs[1]


# -- on the loop of this run


def real_keeper(store: LeaseStore, owner: str, told: list[object], ttl_s: float) -> LeaseKeeper:
    return LeaseKeeper(
        store,
        LeaseSettings(name=NAME, owner=owner, ttl_s=ttl_s),
        nonce=owner,
        loop=asyncio.get_running_loop(),
        clock=boot_time_s,
        wall_clock=time.time,
        told=told.append,
    )


async def test_on_a_real_loop_it_is_renewed_lost_and_taken_over() -> None:
    store, facts = WeakStore(boot_time_s), list[object]()
    first = real_keeper(store, "a", facts, 0.9)
    assert await first.acquire()
    async with asyncio.timeout(10.0):
        while len(of_kind(facts, LeaseRenewed)) < 3:
            await asyncio.sleep(0.01)
        assert first.remaining_s() > 0.0
        second = real_keeper(store.inner, "b", [], 0.9)
        assert await second.acquire() is False
        store.down = True
        second.want()
        while not second.check_alive():
            await asyncio.sleep(0.005)
    assert not first.check_alive()
    assert first.remaining_s() == 0.0
    assert len(of_kind(facts, LeaseLost)) == 1
    await second.release()
    await first.close()
    await second.close()


@pytest.mark.parametrize("requests", [0, 1, 2])
async def test_an_acquire_that_is_cancelled_leaves_nothing_behind(requests: int) -> None:
    """I-3: neither before its read, nor under it, nor when its win is on its way."""
    store = WeakStore()
    store.delay_s = 0.05
    keeper = real_keeper(store, "a", [], 15.0)
    task = asyncio.create_task(keeper.acquire())
    await asyncio.sleep(0)
    async with asyncio.timeout(5.0):
        while store.requests < requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while keeper.state is not State.IDLE:
            await asyncio.sleep(0.001)
    record = await store.inner.read(NAME)
    assert record is None or record.free
    assert (record is not None) == (requests == 2)
    await keeper.close()


async def test_an_acquire_that_is_cancelled_in_the_turn_of_its_win_leaves_nothing_behind() -> None:
    """I-3: nobody was told that it is held, so nobody would release it."""

    def told(fact: object) -> None:
        if isinstance(fact, LeaseGranted):
            task.cancel()

    store = WeakStore()
    keeper = LeaseKeeper(
        store,
        LeaseSettings(name=NAME, owner="a", ttl_s=TTL_S),
        nonce="a",
        loop=asyncio.get_running_loop(),
        clock=boot_time_s,
        wall_clock=time.time,
        told=told,
    )
    task = asyncio.create_task(keeper.acquire())
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5.0):
        while keeper.state is not State.IDLE:
            await asyncio.sleep(0.001)
    record = await store.inner.read(NAME)
    assert record is not None
    assert record.free
    await keeper.close()


async def test_closed_it_asks_nothing_and_answers_who_waits() -> None:
    store = WeakStore()
    store.delay_s = 60.0
    keeper = real_keeper(store, "a", [], 15.0)
    task = asyncio.create_task(keeper.acquire())
    await asyncio.sleep(0.01)
    await keeper.close()
    with pytest.raises(LeaseUnavailableError, match="was closed"):
        await task
    before = store.requests
    keeper.want()
    await asyncio.sleep(0.01)
    assert store.requests == before


async def test_denied_is_certain() -> None:
    """With a clock of the store, at the first look."""
    store, facts = MemoryStore(boot_time_s), list[object]()
    first, second = real_keeper(store, "a", [], 15.0), real_keeper(store, "b", facts, 15.0)
    assert await first.acquire()
    assert await second.acquire() is False
    assert [type(fact) for fact in facts] == [StoreAnswers, LeaseDenied, LeaseReleased]
    await first.release()
    await first.close()
    await second.close()
