"""The smoke bench runs, and its object has every metric."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.processes import spawn

METRICS = {
    "start_s",
    "imports3_s",
    "join3_s",
    "join3_http_s",
    "kill9_gap_s",
    "leave_gap_ms",
    "idle_rss_mb",
    "idle_rss_http_mb",
    "simulate_60s_s",
}


def test_a_quick_smoke_bench_adds_up(tmp_path: Path) -> None:
    """Exit code 0, each metric measured as often as asked, figures that can be true."""
    result, log = tmp_path / "smoke.json", tmp_path / "log"
    command = [sys.executable, "-m", "bench", "smoke", "--quick", "--json", str(result)]
    assert spawn(command, log).wait(timeout=240) == 0, log.read_text()
    rows = {row["metric"]: row for row in json.loads(result.read_text())["rows"]}
    assert set(rows) == METRICS
    for metric, row in rows.items():
        assert "error" not in row, row
        assert 0 < row["median"] < 600, metric
    assert rows["join3_s"]["median"] > rows["start_s"]["median"]
