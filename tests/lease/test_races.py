"""Two or three machines on one store in a hostile world: never two that may act, tokens that grow.

Guards I-3, I-4, I-6, I-8, I-10, I-12, I-14, I-17, I-18, I-19 and I-23, by the world's own clock.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lease.machine import LeaseMachine
from lease.record import LeaseRecord
from tests.conftest import HowMany
from tests.lease.world import OverlapError, campaign


@given(st.randoms(use_true_random=False))
def test_random_interleavings(rng: random.Random) -> None:
    """Drawn by hypothesis, so that what breaks is shrunk."""
    campaign(rng)


def test_seeds(how_many: HowMany) -> None:
    """Many worlds; what can happen in them does happen often enough to count."""
    coverage: Counter[str] = Counter()
    seeds = how_many(short=150, long=10_000)
    for seed in range(seeds):
        try:
            world = campaign(random.Random(seed), ttls_s=(5.0, 15.0, 60.0))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        coverage.update(dict.fromkeys(world.coverage, 1))
    for name in (
        *("grants", "conflicts", "lost-answers", "pauses", "jumps", "freezes", "wall-jumps"),
        *("LeaseLost", "LeaseDenied", "LeaseAwaited", "LeaseUnknown", "LeaseReleased"),
        *("LeaseAtRisk", "StoreAnswers"),
    ):
        assert coverage[name] >= seeds // 5, (name, coverage)
    assert coverage["doubts"] >= seeds // 10, coverage


class CountsFromReceipt(LeaseMachine):
    """Planted fault: a late answer is worth as much as an early one."""

    def _credit(self, sent_at: float, now: float) -> None:
        super()._credit(now, now)


class KnowsItselfByNonce(LeaseMachine):
    """Planted fault: any record of ours is taken for the latest write (nonce-per-process)."""

    def _landed(self, record: LeaseRecord | None) -> float | None:
        mine = record is not None and record.holder == self.holder
        return self._written_at if mine else None


class BelievesADurationOfItsOwn(LeaseMachine):
    """Planted fault: another holder's ttl is cut to twice the own one."""

    def _expires_at(self) -> float:
        return min(super()._expires_at(), self._seen_at + 2 * self.settings.ttl_s)


class TrustsTheCutOff(LeaseMachine):
    """Planted fault: holding is a flag that only an answer of the store ends."""

    def _expire(self, now: float) -> None:
        pass

    @property
    def deadline(self) -> float:
        """Without the end of the holding."""
        request = self._request
        return self._next_at if request is None else request.timeout_at

    def held(self, now: float) -> bool:
        """Without a look at the clock."""
        return self.token is not None


@pytest.mark.parametrize(
    "fault",
    [CountsFromReceipt, KnowsItselfByNonce, BelievesADurationOfItsOwn, TrustsTheCutOff],
)
def test_a_planted_fault_is_found(fault: type[LeaseMachine]) -> None:
    """The world has teeth: each fault shows within a thousand seeds."""
    for seed in range(1000):
        try:
            campaign(random.Random(seed), fault, store_clock=False, ttls_s=(5.0, 60.0))
        except OverlapError:
            return
        except AssertionError:
            continue
    pytest.fail(f"{fault.__name__} was not found")


def test_a_freeze_that_no_clock_but_the_wall_shows_is_found() -> None:
    """Planted fault: nobody looks at the wall clock."""
    for seed in range(1000):
        try:
            campaign(random.Random(seed), ttls_s=(5.0, 60.0), watches=math.inf)
        except OverlapError:
            return
    pytest.fail("it was not found")
