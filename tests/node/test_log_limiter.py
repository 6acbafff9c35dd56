"""Lines per text and period are few, whatever the paths, and what is left out is told."""

from __future__ import annotations

import logging

import pytest

from node.log_limiter import PATHS_MAX, PERIOD_S, TEXTS_MAX
from tests.node.stage import Greet, Stage


def test_many_recipients_of_dead_letters_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    for _ in range(3):
        for i in range(1_100):
            stage.runtime.resolve(f"/user/gone{i}").tell(Greet("x"))
    assert len(caplog.records) == PATHS_MAX
    stage.run_for(PERIOD_S)
    summary = caplog.records[PATHS_MAX]
    assert summary.message == "lines of many paths were left out"
    assert summary.__dict__["about"] == "dead letter: there is no actor at this path"
    assert summary.__dict__["left_out"] == 3 * (1_100 - PATHS_MAX)
    stage.run_for(10 * PERIOD_S)
    assert len(caplog.records) == PATHS_MAX + 1
    stage.runtime.resolve("/user/gone0").tell(Greet("x"))
    assert caplog.records[-1].__dict__["left_out"] == 2


def test_flood_over_many_periods_stays_within_the_budget_and_every_line_is_accounted_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    for i in range(6_000):
        stage.runtime.log("text", f"/user/{i % 100}")
        stage.run_for(0.01)
    stage.run_for(PERIOD_S)
    periods = 6_000 * 0.01 / PERIOD_S
    assert len(caplog.records) <= (periods + 1) * (PATHS_MAX + 1)
    told = [record.__dict__["left_out"] for record in caplog.records]
    written = [record for record in caplog.records if record.message == "text"]
    at_end = sum(left for _, left in stage.runtime._limiter._texts["text"].paths.values())
    unsaid = stage.runtime._limiter._texts["text"].left_out
    assert len(written) + sum(told) + at_end + unsaid == 6_000


def test_texts_are_independent_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    for i in range(TEXTS_MAX + 5):
        stage.runtime.log(f"text {i}", "/user/x", level=logging.ERROR)
    assert len(caplog.records) == TEXTS_MAX
    assert stage.runtime._limiter.dropped_count == 5


def test_shutdown_tells_what_was_left_out_and_leaves_no_timer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    for i in range(PATHS_MAX + 7):
        stage.runtime.log("text", f"/user/{i}")
    stage.run(stage.runtime.shutdown())
    assert caplog.records[-1].__dict__["left_out"] == 7
    stage.run_for(10 * PERIOD_S)
    assert len(caplog.records) == PATHS_MAX + 1
