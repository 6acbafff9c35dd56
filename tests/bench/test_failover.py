"""The judging of the failover bench: spans, windows, matrix, targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.failover import beside
from bench.failover.command import LEVELS, rows_of, target_of
from bench.failover.pages import matrix
from bench.failover.prediction import Windows, unavailable_s
from bench.failover.rounds import FAULTS, Samples, metrics_of, spans_of
from bench.messaging.environments import PEERS
from bench.partition.judging import StepsFile


@pytest.mark.parametrize(
    ("steps", "spans"),
    [
        ([], []),
        ([1.0], [(1.0, 1.0)]),
        ([1.0, 1.4, 1.9], [(1.0, 1.9)]),
        ([1.0, 1.4, 2.0, 2.1], [(1.0, 1.4), (2.0, 2.1)]),
    ],
)
def test_a_silence_ends_a_span(steps: list[float], spans: list[tuple[float, float]]) -> None:
    assert spans_of(steps) == spans


def test_steps_are_read_with_token_authority_and_order(tmp_path: Path) -> None:
    """Two instances: the older one acts on without authority after the younger has begun."""
    file = tmp_path / "steps"
    file.write_text(
        "1.0 n1 a start 1 5 -\n1.1 n1 a work 1 5 71\n1.2 n1 a done 1 5 -\n"
        "2.0 n2 b start 1 9 -\n2.1 n1 a work 0 - 72\n2.2 n2 b work 1 9 72\n2.3 n1 a stop 0 - -\n"
    )
    steps = StepsFile(file)
    steps.read()
    assert steps.overlap_s(0.0) == pytest.approx(0.1)
    assert steps.authoritative_overlap_s(0.0) == 0.0
    assert [(one.instance, one.number, one.token) for one in steps.handled] == [
        ("a", 71, 5),
        ("a", 72, 5),
        ("b", 72, 9),
    ]


def test_the_arithmetic_of_the_levels() -> None:
    """Defaults: what docs/failover.md says."""
    w = Windows()
    assert unavailable_s("lease", "crash", w) == pytest.approx((10.0, 15.45))
    assert unavailable_s("lease+guard", "crash", w) == unavailable_s("downing", "crash", w)
    assert unavailable_s("downing", "partition", w) == pytest.approx((4.5, 9.15))
    assert unavailable_s("lease", "partition", w) == pytest.approx((10.0, 15.65))
    assert unavailable_s("lease", "partition-store", w) == pytest.approx((7.5, 13.15))
    assert unavailable_s("lease", "store-cut-host", w) == pytest.approx((2.5, 4.15))
    assert unavailable_s("none", "pause", w) is None


def test_each_cell_has_its_targets_and_a_line_in_the_matrix() -> None:
    for level in LEVELS:
        for fault in FAULTS:
            for metric in metrics_of(fault, leased="lease" in level):
                target_of(metric, level, fault)
    assert target_of("acting_overlap_s", "none", "partition") is None, "shown, not hidden"
    assert target_of("acting_overlap_s", "lease", "partition") == 0.0


def test_two_that_act_at_once_are_said_in_bold_and_judged_by_the_worst_round() -> None:
    samples = Samples()
    for metric, values in (("unavailable_s", [1.0, 2.0]), ("acting_overlap_s", [0.0, 3.0])):
        samples.asked[metric] = 2
        samples.values[metric] = values
    rows = rows_of(samples, "downing", "crash", 15.0)
    assert {row.metric: row.met for row in rows} == {
        "unavailable_s": False,
        "acting_overlap_s": False,
    }
    assert matrix(rows, ["none", "downing"], ["crash"])[1] == [
        "crash",
        "–",
        "1.5 s without one; **two act for 3 s**",
    ]


def test_a_count_that_does_not_add_up_is_an_error() -> None:
    samples = Samples()
    samples.asked["sent"] = 2
    samples.values["sent"] = [5.0]
    samples.failures.append("not seen within 150 s")
    (row,) = rows_of(samples, "none", "crash", 15.0)
    assert row.error == "1 of 2 samples: not seen within 150 s"


def test_each_peer_has_an_adapter_and_an_environment() -> None:
    for name, script in beside.ADAPTERS.items():
        assert script.exists()
        assert name in PEERS


def test_a_peer_that_fails_is_an_error_and_not_a_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    monkeypatch.setitem(beside.ADAPTERS, "casty", script)
    monkeypatch.setattr(beside, "interpreter_of", lambda peer, cache: Path(sys.executable))
    script.write_text("import sys; print([1.0, 2.0, 6.0][: int(sys.argv[1])])")
    row = beside.measure("casty", 3)
    assert (row.median, row.n, row.error) == (2.0, 3, None)
    script.write_text("raise SystemExit(1)")
    row = beside.measure("casty", 3)
    assert row.error is not None
    assert row.median is None
