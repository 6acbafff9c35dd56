"""The wheel on which all asks of a process wait: never early, hardly late, and idle when empty."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.actor import Actor, on
from node.errors import AskTimeoutError
from node.timer_wheel import Bucket, TimerWheel, grain_s
from tests.conftest import HowMany
from tests.node.stage import Add, Stage


class Waiting:
    """An entry that notes when it ended."""

    def __init__(self, stage: Stage, timeout_s: float) -> None:
        self.bucket: Bucket | None = None
        self.stage = stage
        self.timeout_s = timeout_s
        self.began_at = stage.loop.time()
        self.ended_at: float | None = None

    def expire(self) -> None:
        assert self.ended_at is None
        self.ended_at = self.stage.loop.time()


class Deaf(Actor):
    """Never answers."""

    @on(Add)
    async def add(self, msg: Add) -> int:
        await asyncio.sleep(1e6)
        return 0


def wheel_of(stage: Stage) -> TimerWheel:
    return TimerWheel(stage.loop, stage.loop.time)


Steps = st.lists(
    st.tuples(
        st.floats(0.001, 100.0) | st.sampled_from([0.5, 5.0]),  # its timeout
        st.floats(0.0, 3.0),  # what goes by until the next one
        st.none() | st.floats(0.0, 120.0),  # when it is answered
    ),
    max_size=30,
)


@given(Steps)
def test_none_ends_early_nor_more_than_a_hundredth_late_nor_after_its_answer(
    steps: list[tuple[float, float, float | None]],
) -> None:
    stage = Stage()
    wheel = wheel_of(stage)
    entries: list[tuple[Waiting, float | None]] = []
    for timeout_s, pause_s, answered_after_s in steps:
        entry = Waiting(stage, timeout_s)
        wheel.add(entry, timeout_s)
        entries.append((entry, answered_after_s))
        if answered_after_s is not None:
            stage.loop.call_later(answered_after_s, wheel.remove, entry)
        stage.run_for(pause_s)
    stage.run_for(200.0)
    for entry, answered_after_s in entries:
        late_s = max(0.010, entry.timeout_s / 100.0)
        if answered_after_s is not None and answered_after_s < entry.timeout_s:
            assert entry.ended_at is None
        elif answered_after_s is None or answered_after_s > entry.timeout_s + late_s:
            assert entry.ended_at is not None
            assert 0.0 <= entry.ended_at - entry.began_at - entry.timeout_s <= late_s
        assert entry.bucket is None
    assert len(wheel) == 0
    assert not wheel.is_armed


def test_grains_are_powers_of_two_and_a_hundredth_at_most() -> None:
    for timeout_s in (1e-6, 0.01, 0.5, 0.86, 1.0, 5.0, 10.0, 3_600.0, 1e9 - 1):
        grain = grain_s(timeout_s)
        assert grain <= max(0.009, timeout_s / 100.0)
        assert grain >= max(2.0**-7, timeout_s / 256.0)


def test_thousands_share_a_few_timers_and_an_empty_wheel_arms_none() -> None:
    stage = Stage()
    wheel = wheel_of(stage)
    entries = [Waiting(stage, 5.0) for _ in range(10_000)]
    before = len(stage.loop._timers)
    for entry in entries:
        wheel.add(entry, entry.timeout_s)
    assert len(stage.loop._timers) == before + 1
    for entry in entries:
        wheel.remove(entry)
        wheel.remove(entry)
    stage.run_for(6.0)
    assert not wheel.is_armed
    assert all(entry.ended_at is None for entry in entries)


def test_an_earlier_one_is_armed_in_place_of_a_later_one() -> None:
    stage = Stage()
    wheel = wheel_of(stage)
    late, early = Waiting(stage, 1_000.0), Waiting(stage, 0.1)
    wheel.add(late, 1_000.0)
    wheel.add(early, 0.1)
    stage.run_for(0.11)
    assert [entry.ended_at is not None for entry in (early, late)] == [True, False]
    stage.run_for(2_000.0)
    assert [entry.ended_at is not None for entry in (early, late)] == [True, True]
    assert not wheel.is_armed


def test_one_that_ends_may_take_the_next_one_along_and_add_another() -> None:
    stage = Stage()
    wheel = wheel_of(stage)
    second, third = Waiting(stage, 1.0), Waiting(stage, 1.0)

    class First(Waiting):
        def expire(self) -> None:
            super().expire()
            wheel.remove(second)
            wheel.add(third, 1.0)

    wheel.add(First(stage, 1.0), 1.0)
    wheel.add(second, 1.0)
    stage.run_for(5.0)
    assert second.ended_at is None
    assert third.ended_at is not None
    assert third.ended_at >= 2.0


def test_asks_of_all_kinds_leave_nothing_behind(how_many: HowMany) -> None:
    """Answered, timed out or cancelled: no entry, no timer."""
    stage = Stage()
    silent = stage.runtime.resolve("/user/silent")
    stage.runtime.spawn(Deaf, name="silent")
    rng = random.Random(7)

    async def one() -> None:
        with pytest.raises(AskTimeoutError):
            await silent.ask(Add(1), timeout_s=rng.uniform(0.01, 10.0))

    for _ in range(how_many(short=300, long=30_000)):
        task = stage.loop.create_task(one())
        if rng.random() < 0.3:
            stage.loop.call_later(rng.uniform(0.0, 5.0), task.cancel)
        stage.run_for(rng.uniform(0.0, 0.2))
    stage.run_for(30.0)
    assert len(stage.runtime.ask_timers) == 0
    assert not stage.runtime.ask_timers.is_armed


async def test_on_a_real_loop_none_ends_early() -> None:
    """uvloop's own timers may: they are rounded to milliseconds."""
    ended: list[float] = []

    class Real:
        def __init__(self, timeout_s: float) -> None:
            self.bucket: Bucket | None = None
            self.due = time.clock_gettime(time.CLOCK_MONOTONIC) + timeout_s

        def expire(self) -> None:
            ended.append(time.clock_gettime(time.CLOCK_MONOTONIC) - self.due)

    def clock() -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    wheel = TimerWheel(asyncio.get_running_loop(), clock)
    rng = random.Random(3)
    for _ in range(300):
        timeout_s = rng.uniform(0.001, 0.2)
        wheel.add(Real(timeout_s), timeout_s)
    async with asyncio.timeout(10.0):
        while len(ended) < 300:
            await asyncio.sleep(0.01)
    assert min(ended) >= 0.0
