"""Ratios are made within a round, the median of the rounds is judged, what is missing is said."""

from __future__ import annotations

import pytest

from bench.messaging.environments import PEERS
from bench.messaging.table import (
    CURVE,
    JUDGED,
    OFF,
    ON,
    OURS,
    RAW,
    Figure,
    Metric,
    Round,
    judge,
    reported,
)

# What users of the results look up; the name stays whatever the table looks like.
NAMES = [
    "local_tell_per_s",
    "local_tell_vs_floor",
    "local_ask_per_s",
    "local_ask_p50_us",
    "local_asks64_per_s",
    "spawn_per_s",
    "idle_actor_bytes",
    "remote_ask_p50_us",
    "remote_ask_p50_vs_raw",
    "remote_asks64_vs_raw",
    "remote_asks64_vs_casty",
    "remote_asks1024_vs_casty",
    "remote_tell_vs_raw",
    "remote_tell_vs_casty",
    "bulk_1k_vs_raw",
    "bulk_64k_vs_raw",
    "bulk_1m_vs_raw",
    "curve_ask_p50_vs_plain",
    "probe_p99_ms_under_bulk",
    "metrics_cost_local",
    "metrics_cost_remote",
]


def metric(name: str) -> Metric:
    """The metric of this name."""
    [found] = [one for one in JUDGED if one.name == name]
    return found


def test_all_metrics_are_there_once() -> None:
    """No name is given twice, over both tables."""
    names = [one.name for one in JUDGED] + [one.name for one in reported(list(PEERS))]
    assert len(names) == len(set(names))
    assert set(NAMES) <= set(names)


def test_a_ratio_is_the_median_of_ratios() -> None:
    """Each round by itself: a slow moment of the machine slows both sides of its round."""
    rounds: list[Round] = [
        {(OURS, "tell_100"): {"per_s": ours}, (RAW, "tell_100"): {"per_s": raw}}
        for ours, raw in ((300.0, 100.0), (20.0, 10.0), (90.0, 90.0))
    ]
    row = judge(metric("remote_tell_vs_raw"), rounds, [])
    assert (row.min, row.median, row.max) == (1.0, 2.0, 3.0)
    assert (row.n, row.expected, row.target, row.met, row.at_least) == (3, 3, 1.5, True, True)


@pytest.mark.parametrize(
    ("on", "off", "percent"), [(95.0, 100.0, 5.0), (100.0, 100.0, 0.0), (104.0, 100.0, 0.0)]
)
def test_a_cost_is_a_loss_in_percent(on: float, off: float, percent: float) -> None:
    """Never below zero: faster with metrics is noise."""
    one: Round = {(ON, "tell_100"): {"per_s": on}, (OFF, "tell_100"): {"per_s": off}}
    assert metric("metrics_cost_remote").of(one) == pytest.approx(percent)


@pytest.mark.parametrize(("p50_us", "met"), [(149.0, True), (150.0, True), (151.0, False)])
def test_less_is_better_where_time_is_measured(p50_us: float, met: bool) -> None:
    """The bound itself is still good."""
    one: Round = {(CURVE, "ask1"): {"p50_us": p50_us}, (OURS, "ask1"): {"p50_us": 100.0}}
    assert judge(metric("curve_ask_p50_vs_plain"), [one], []).met is met


def test_a_peer_that_nobody_asked_for_is_no_error() -> None:
    """The row stays, empty, and says how to get it."""
    row = judge(metric("remote_tell_vs_casty"), [{}], [])
    assert (row.n, row.expected, row.median, row.met, row.error) == (0, 0, None, None, None)
    assert "--peers casty" in row.note


def test_a_refused_round_is_an_error_of_the_row() -> None:
    """The good rounds are shown, and the reason with them."""
    good: Round = {(OURS, "ask1"): {"p50_us": 90.0}, (RAW, "ask1"): {"p50_us": 100.0}}
    bad: Round = {(OURS, "ask1"): "refused: 3 of 4", (RAW, "ask1"): {"p50_us": 100.0}}
    row = judge(metric("remote_ask_p50_vs_raw"), [good, bad, {}], [])
    assert row.median == pytest.approx(0.9)
    assert row.error is not None
    assert row.error.startswith("1 of 3 samples")
    assert "refused: 3 of 4" in row.error
    assert "not measured" in row.error


def test_a_figure_of_a_peer_needs_the_peer() -> None:
    """Also when it is only divided by."""
    over = Figure("xoscar", "tell_64k", "mb_per_s")
    mixed = Metric(name="x", unit="×", value=Figure(OURS, "tell_64k", "mb_per_s"), over=over)
    assert mixed.peers == {"xoscar"}
    assert metric("local_tell_per_s").peers == set()
