"""User code that survives cancellation does not act beside its successor, nor for ever (I-27)."""

from __future__ import annotations

import signal
from pathlib import Path

from bench.processes import Members
from node.history import boottime_s

APP = "tests.processes.apps:undying"


def test_a_handler_that_ignores_cancellation_is_ended_before_the_next_host_starts(
    members: Members, tmp_path: Path
) -> None:
    ports = members.free_ports(2)
    arguments = ["--stop-timeout-s", "0.5"]
    first = members.start("a", port=ports[0], app=APP, arguments=arguments)
    steps = tmp_path / "a.steps"
    members.wait("first steps", lambda: steps.exists() and steps.stat().st_size > 10)
    second = members.start("b", port=ports[1], seeds=[ports[0]], app=APP, arguments=arguments)
    members.wait_all_up([first, second])
    members.end(first, signal.SIGTERM)
    members.wait("the next host", lambda: second.seen("started", singleton="undying"))
    written = steps.stat().st_size
    begun_at_s = boottime_s()
    # The process ends although a task of its own ignores cancellation too.
    assert members.wait_end(first) == 0, first.log()
    assert steps.stat().st_size == written, "it acted beside its successor"
    assert boottime_s() - begun_at_s < 10
    assert "ignore cancellation" in first.log()
    assert "abandoned" in first.log()
