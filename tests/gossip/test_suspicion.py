"""Suspicion arithmetic against its sources: SWIM's logarithm, Lifeguard's formula IV-B.

The tables are computed by hand from the papers' formulas; the properties hold for all arguments.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.suspicion import suspicion_min_s, suspicion_timeout_s

seconds = st.floats(0.001, 1000.0)
mults = st.floats(0.5, 20.0)
counts = st.integers(0, 100_000)
few = st.integers(0, 50)


@pytest.mark.parametrize(
    ("member_count", "least_s"),
    [
        (0, 4.0),
        (1, 4.0),
        (3, 4.0),
        (10, 4.0),  # up to here the logarithm is held at 1
        (25, 5.592),
        (50, 6.796),
        (100, 8.0),
        (1000, 12.0),
        (4096, 14.449),
        (10_000, 16.0),
    ],
)
def test_the_least_suspicion_grows_with_the_logarithm_of_the_cluster(
    member_count: int, least_s: float
) -> None:
    """Multiplier 4, one probe a second."""
    assert suspicion_min_s(4.0, member_count, 1.0) == pytest.approx(least_s, abs=0.001)


@pytest.mark.parametrize(
    ("confirmations", "expected", "timeout_s"),
    [
        # K = 3, Min = 5 s, Max = 30 s: log 2 / log 4 is a half, log 3 / log 4 is 0.79248.
        (0, 3, 30.0),
        (1, 3, 17.5),
        (2, 3, 10.188),
        (3, 3, 5.0),
        (4, 3, 5.0),  # more than expected change nothing
        (1000, 3, 5.0),
        # K = 1: the first one is enough. K = 2: log 2 / log 3 is 0.63093.
        (0, 1, 30.0),
        (1, 1, 5.0),
        (0, 2, 30.0),
        (1, 2, 14.227),
        (2, 2, 5.0),
        # K = 0, or fewer: nobody is there who could confirm.
        (0, 0, 5.0),
        (2, 0, 5.0),
        (0, -1, 5.0),
    ],
)
def test_the_timeout_falls_as_the_paper_says(
    confirmations: int, expected: int, timeout_s: float
) -> None:
    found = suspicion_timeout_s(5.0, 30.0, confirmations, expected)
    assert found == pytest.approx(timeout_s, abs=0.001)


def test_the_preset_lan_at_ten_members() -> None:
    """What an operator sees: 2 s at the least, 12 s when nobody else agrees."""
    low_s = suspicion_min_s(4.0, 10, 0.5)
    assert low_s == pytest.approx(2.0)
    found = [suspicion_timeout_s(low_s, 6 * low_s, agree, 3) for agree in range(4)]
    assert found == [pytest.approx(value, abs=0.001) for value in (12.0, 7.0, 4.075, 2.0)]


def test_a_least_above_the_greatest_is_an_error() -> None:
    for expected in (0, 3):
        with pytest.raises(ValueError, match=r"low_s=3\.0 must not exceed high_s=2\.0"):
            suspicion_timeout_s(3.0, 2.0, 0, expected)


@given(mults, counts, counts, seconds)
def test_the_least_is_monotone_in_the_size_and_never_under_its_floor(
    mult: float, one: int, other: int, interval_s: float
) -> None:
    small, large = sorted((one, other))
    lower, upper = (suspicion_min_s(mult, count, interval_s) for count in (small, large))
    assert mult * interval_s <= lower <= upper


@given(mults, counts, seconds, st.floats(0.1, 10.0))
def test_the_least_is_in_proportion_to_multiplier_and_interval(
    mult: float, count: int, interval_s: float, factor: float
) -> None:
    once = suspicion_min_s(mult, count, interval_s)
    assert suspicion_min_s(mult * factor, count, interval_s) == pytest.approx(once * factor)
    assert suspicion_min_s(mult, count, interval_s * factor) == pytest.approx(once * factor)


@given(mults, st.integers(10, 300), seconds)
def test_the_square_of_the_members_takes_twice_as_long(
    mult: float, count: int, interval_s: float
) -> None:
    once = suspicion_min_s(mult, count, interval_s)
    assert suspicion_min_s(mult, count**2, interval_s) == pytest.approx(2 * once)


@given(seconds, st.floats(1.0, 10.0), few, few, few)
def test_the_timeout_falls_with_each_confirmation_and_stays_within_its_bounds(
    low_s: float, ratio: float, one: int, other: int, expected: int
) -> None:
    high_s = low_s * ratio
    fewer, more = sorted((one, other))
    later, sooner = (suspicion_timeout_s(low_s, high_s, agree, expected) for agree in (fewer, more))
    assert low_s <= sooner <= later <= high_s


@given(seconds, st.floats(1.0, 10.0), few, st.integers(1, 50), st.integers(1, 50))
def test_the_more_could_confirm_the_less_one_of_them_weighs(
    low_s: float, ratio: float, agree: int, one: int, other: int
) -> None:
    fewer, more = sorted((one, other))
    high_s = low_s * ratio
    sooner = suspicion_timeout_s(low_s, high_s, agree, fewer)
    later = suspicion_timeout_s(low_s, high_s, agree, more)
    assert sooner <= later or sooner == pytest.approx(later)


@given(seconds, st.floats(1.0, 10.0), st.integers(1, 50))
def test_the_ends_are_exact(low_s: float, ratio: float, expected: int) -> None:
    """No confirmation: the greatest. As many as expected: the least."""
    high_s = low_s * ratio
    assert suspicion_timeout_s(low_s, high_s, 0, expected) == high_s
    assert suspicion_timeout_s(low_s, high_s, expected, expected) == pytest.approx(low_s)


@given(seconds, st.floats(1.0, 10.0), st.integers(0, 20), st.integers(1, 20))
def test_it_is_the_formula_of_the_paper(
    low_s: float, ratio: float, agree: int, expected: int
) -> None:
    """Written once more, with another base of the logarithm: it must not matter."""
    high_s = low_s * ratio
    share = math.log10(agree + 1) / math.log10(expected + 1)
    paper_s = max(low_s, high_s - (high_s - low_s) * share)
    assert suspicion_timeout_s(low_s, high_s, agree, expected) == pytest.approx(paper_s)


@given(seconds, few, few)
def test_equal_bounds_leave_nothing_to_fall(low_s: float, agree: int, expected: int) -> None:
    """Plain SWIM: one fixed time."""
    assert suspicion_timeout_s(low_s, low_s, agree, expected) == low_s
