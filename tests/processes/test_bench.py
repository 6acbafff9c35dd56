"""The benches run, and their objects have every metric."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.processes import spawn
from bench.sharding.results import METRICS as METRICS_OF_SHARDING

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


LEASE_METRICS = {
    "acquire_ms",
    "renew_ms",
    "takeover_after_expiry_s",
    "takeover_after_release_ms",
    "handled_after_pause",
    "outages_survived",
    "requests_per_ttl",
}


def test_a_quick_bench_of_a_lease_adds_up(tmp_path: Path) -> None:
    """Each figure that the guide quotes; nothing is handled after a pause."""
    result, log = tmp_path / "lease.json", tmp_path / "log"
    store = f"sqlite://{tmp_path}/leases.db"
    command = [sys.executable, "-m", "bench", "lease", "--store", store, "--quick"]
    command += ["--ttl-s", "2.2"]
    assert spawn([*command, "--json", str(result)], log).wait(timeout=240) == 0, log.read_text()
    rows = {row["metric"]: row for row in json.loads(result.read_text())["rows"]}
    assert set(rows) == LEASE_METRICS
    assert not [row for row in rows.values() if "error" in row]
    assert rows["handled_after_pause"]["max"] == 0
    assert rows["takeover_after_expiry_s"]["min"] > -0.1


def test_a_quick_bench_of_failover_adds_up(tmp_path: Path) -> None:
    """One fault at the two ends of protection: pages, picture, and nothing lost from the counts."""
    out, log = tmp_path / "out", tmp_path / "log"
    words = ["--quick", "--levels", "none,lease", "--faults", "crash", "--out", str(out)]
    command = [sys.executable, "-m", "bench", "failover", *words]
    assert spawn(command, log).wait(timeout=240) == 0, log.read_text()
    rows = json.loads((out / "failover.json").read_text())["rows"]
    cells = {(row["level"], row["fault"], row["metric"]): row for row in rows}
    assert not [row for row in rows if "error" in row]
    assert cells["lease", "crash", "acting_overlap_s"]["max"] == 0
    assert cells["none", "crash", "unavailable_s"]["median"] < 5
    # Whoever crashed is respected for what is left of its ttl of 3 s.
    assert cells["lease", "crash", "unavailable_s"]["median"] > 1
    assert {row["store"] for row in rows} == {None, "sqlite"}
    for level in ("none", "lease"):
        count = {
            metric: cells[level, "crash", metric]["median"]
            for metric in ("sent", "handled_once", "handled_twice", "lost")
        }
        assert count["sent"] == count["handled_once"] + count["handled_twice"] + count["lost"] > 0
    assert "downing + lease" in (out / "failover.md").read_text()
    assert "<svg" in (out / "failover.svg").read_text()
    assert "failover.svg" in (out / "failover.html").read_text()


SHARDING_ZERO = {
    "rolling_restart_lost",
    "rolling_restart_handled_twice",
    "rolling_restart_overlaps",
    "kill9_overlaps",
    "lease_loss_failed_asks",
    "lease_loss_new_served_early",
    "lease_loss_new_unserved",
}


def test_a_quick_bench_of_sharding_adds_up(tmp_path: Path) -> None:
    """Every figure, and what must never be: an ask lost without a crash, an entity alive twice."""
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "bench", "sharding", "--quick", "--out", str(out)]
    assert spawn(command, log).wait(timeout=240) == 0, log.read_text()
    rows = {row["metric"]: row for row in json.loads((out / "sharding.json").read_text())["rows"]}
    assert not [row for row in rows.values() if "error" in row]
    assert rows.keys() == METRICS_OF_SHARDING.keys()
    assert {metric for metric, row in rows.items() if row["max"] == 0} == SHARDING_ZERO
    assert rows["shard_spread"]["max"] <= 1.1
    assert "not to be quoted" in (out / "sharding.md").read_text()
