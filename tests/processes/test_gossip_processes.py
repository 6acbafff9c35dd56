"""Ten real members: a kill, a stop, a join of all at once. Facts, not times.

What a member saw is what its own view published, at the moment it did.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gossip.processes_cluster import GONE, Cluster, Side
from bench.processes import spawn
from tests.conftest import loop_name

COUNT = 10
TIMEOUT_S = 30.0


@pytest.fixture
def ten(tmp_path: Path) -> Iterator[Cluster]:
    """Ten members that listen and wait for the word."""
    with Cluster(Side(name="tenure", loop=loop_name()), tmp_path, COUNT) as cluster:
        cluster.start()
        yield cluster


def test_all_who_go_at_once_become_one_cluster(ten: Cluster) -> None:
    """I-82: every member sees all ten up, under one cluster id, and nobody gone on the way."""
    ten.go()
    ten.settle(TIMEOUT_S)
    for address, seen in ten.seen.items():
        assert {who for who, _ in seen.up} == set(ten.members), address
    clusters = {(fact.observer, fact.detail) for fact in ten.after(0, {"cluster"})}
    assert {observer for observer, _ in clusters} == set(ten.members)
    assert len({cluster_id for _, cluster_id in clusters}) == 1
    assert ten.after(0, GONE) == []


def test_kill_9_is_known_to_all_and_blamed_on_nobody_else(ten: Cluster) -> None:
    """All nine survivors hold the killed member gone; no other is ever held gone by anybody."""
    ten.go()
    ten.settle(TIMEOUT_S)
    victim = ten.members[max(ten.members)]
    survivors, mark = ten.others(victim.address), ten.mark()
    victim.signal(signal.SIGKILL)
    gone = ten.wait_all(mark, GONE, victim.address, survivors, TIMEOUT_S)
    assert gone.keys() == set(survivors)
    ten.wait_all(mark, {"removed"}, victim.address, survivors, TIMEOUT_S)
    ten.settle(TIMEOUT_S)
    assert {fact.who for fact in ten.after(0, GONE)} == {victim.address}


def test_a_stopped_member_is_suspected_and_comes_back(ten: Cluster) -> None:
    """Stopped until all suspect it, then continued: never held gone, and it accuses nobody."""
    ten.go()
    ten.settle(TIMEOUT_S)
    victim = ten.members[max(ten.members)]
    mark = ten.mark()
    victim.signal(signal.SIGSTOP)
    try:
        ten.wait(
            f"{victim.address} is suspected",
            lambda: ten.after(mark, {"suspect"}, who=victim.address),
            TIMEOUT_S,
        )
    finally:
        victim.signal(signal.SIGCONT)
    ten.settle(TIMEOUT_S)
    back = {fact.observer for fact in ten.after(mark, {"recovered"}, who=victim.address)}
    assert back == {fact.observer for fact in ten.after(mark, {"suspect"}, who=victim.address)}
    assert ten.after(0, GONE) == []


def test_the_bench_of_processes_adds_up(tmp_path: Path) -> None:
    """A smoke run of R1 with three members: exit code 0, each row measured as often as asked."""
    result, log = tmp_path / "r1.json", tmp_path / "log"
    command = [sys.executable, "-m", "bench", "gossip", "processes", "--experiment", "R1"]
    more = ["--members", "3", "--quick", "--json", str(result)]
    assert spawn([*command, *more], log).wait(timeout=120) == 0, log.read_text()
    rows = json.loads(result.read_text())["rows"]
    names = {
        "r1_first_s",
        "r1_all_s",
        "r1_all_p99_s",
        "r1_observer_s",
        "r1_false_deaths",
    }
    assert {row["metric"] for row in rows} == names
    for row in rows:
        assert "error" not in row, row
        assert row["note"].startswith("N=3; "), row
