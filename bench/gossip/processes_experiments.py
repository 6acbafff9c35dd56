"""R1 to R7: what is done to a cluster of real processes, and what is taken from its facts.

Decides what each experiment measures and against which target. Starts nothing itself and draws
nothing. Called by `bench.gossip.processes`.

"Gone" is what an observer writes first of unreachable, down and removed: the strictest reading of
"dead", for ours and for a peer.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.gossip.namespaces import NotPossibleError, packet_loss, traffic
from bench.gossip.peers.facts import boottime_s
from bench.gossip.peers.member import CHUNK_BYTES, CHUNKS
from bench.gossip.processes_cluster import GONE, Cluster, Started
from bench.messaging.child import Child, NotMeasuredError
from bench.processes import NotSeenError
from bench.report import Row, row

SEEN_TIMEOUT_S = 40.0
PHASE_S = 1.0  # a fault comes at a random place of a probe interval
LEFT = frozenset({"removed", "exiting"})
SUSPECTED = frozenset({"suspect"})
BACK = frozenset({"recovered", "reachable", "up"})
PAUSES_S = (1.0, 2.0, 5.0, 10.0)
SHORT_S = 2.0  # a stop up to this long must never be taken for a death
BLOCK_S = 3.0
LOSSES_PERCENT = (10.0, 25.0)
PROBED_FOR_S = 3.0
GIVEN_UP = (NotSeenError, NotMeasuredError, NotPossibleError, subprocess.SubprocessError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the parts without an end of their own take."""

    warm_s: float = 5.0
    idle_s: float = 20.0
    loss_s: float = 60.0
    after_s: float = 3.0
    pauses_s: tuple[float, ...] = PAUSES_S


QUICK = Lengths(warm_s=1.0, idle_s=2.0, loss_s=3.0, after_s=1.0, pauses_s=(1.5,))


@dataclass
class Samples:
    """What was measured in one cell, by the name of the sample; and what was not, in words."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, *values: float) -> None:
        """One more."""
        self.values[name].extend(values)


@dataclass(frozen=True, slots=True)
class Run:
    """One cluster's part of a cell: so many rounds, with this randomness."""

    cluster: Cluster
    rounds: int
    rng: random.Random
    lengths: Lengths
    samples: Samples


Measure = Callable[[Run], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A row. `target` may depend on N; a `total` adds all samples up to one."""

    sample: str
    unit: str
    text: str = ""
    target: Callable[[int], float | None] = lambda members: None
    total: bool = False
    per_round: int = 1  # samples that a round gives; 0: any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """How it is measured: `rounds` by default, at most `rounds_per_cluster` with one cluster."""

    measure: Measure
    metrics: tuple[Metric, ...]
    rounds: int
    rounds_per_cluster: int
    with_peer: bool = True
    evidence_cell: bool = False
    members: tuple[int, ...] = (25,)


def rows_of(
    name: str, experiment: Experiment, members: int, rounds: int, side_prefix: str, side_text: str,
    samples: Samples, *, judged: bool,
) -> list[Row]:
    """The rows of one cell: one side at one size. Only ours are `judged` against targets."""
    rows = []
    for metric in experiment.metrics:
        values = samples.values.get(metric.sample, [])
        expected = rounds * metric.per_round or len(values)
        if metric.total:
            expected, values = 1, [sum(values)] if len(values) == expected else []
        note = "; ".join(part for part in (f"N={members}", side_text, metric.text) if part)
        rows.append(
            row(
                f"{side_prefix}{metric.sample}",
                metric.unit,
                values,
                expected=expected,
                target=metric.target(members) if judged else None,
                note=note,
                failures=samples.failures if len(values) != expected else (),
            )
        )
    return rows


def form(run: Run) -> float:
    """Start the cluster, tell all to go, wait until it is settled; the instant of the word."""
    run.cluster.start()
    told_s = run.cluster.go()
    run.cluster.settle()
    return told_s


def _victim(run: Run) -> Started:
    """Any member but the seed, at a random phase of the probes."""
    cluster = run.cluster
    victim = run.rng.choice([one for one in cluster.running if one.address != cluster.seed])
    time.sleep(run.rng.uniform(0, PHASE_S))
    return victim


def _restart(run: Run, address: str) -> float:
    """A new process at the address, until all see it; the time from its being ready to that."""
    cluster = run.cluster
    mark, begun_s = cluster.mark(), boottime_s()
    cluster.start_one(address)
    cluster.wait_ready([address], begun_s)
    ready_s = max(fact.at_s for fact in cluster.after(mark, {"ready"}))
    up_s = cluster.wait_all(mark, {"up"}, address, cluster.others(address), SEEN_TIMEOUT_S)
    cluster.settle()
    return max(up_s.values()) - ready_s


def _deaths_of_others(cluster: Cluster, mark: int, *but: str) -> int:
    return sum(fact.who not in but for fact in cluster.after(mark, GONE))


def kill(run: Run) -> None:
    """R1: kill -9 of one member, known to all others; then it is started again."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        victim = _victim(run)
        others = cluster.others(victim.address)
        mark = cluster.mark()
        killed_s = victim.signal(signal.SIGKILL)
        gone_s = cluster.wait_all(mark, GONE, victim.address, others, SEEN_TIMEOUT_S)
        spans_s = sorted(at_s - killed_s for at_s in gone_s.values())
        samples.add("r1_first_s", spans_s[0])
        samples.add("r1_all_s", spans_s[-1])
        samples.add("r1_false_deaths", _deaths_of_others(cluster, mark, victim.address))
        _restart(run, victim.address)


def pause(run: Run) -> None:
    """R2: SIGSTOP of one member, SIGCONT after each of the lengths."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        for pause_s in run.lengths.pauses_s:
            _pause_once(run, _victim(run), pause_s)
            cluster.settle()
    del samples


def _pause_once(run: Run, victim: Started, pause_s: float) -> None:
    cluster, samples, address = run.cluster, run.samples, victim.address
    others, mark = cluster.others(address), cluster.mark()
    stopped_s = victim.signal(signal.SIGSTOP)
    try:
        time.sleep(max(0.0, stopped_s + pause_s - boottime_s()))
    finally:
        continued_s = victim.signal(signal.SIGCONT)
    accused = {
        fact.observer
        for fact in cluster_after(cluster, mark, SUSPECTED | GONE, address)
        if fact.observer in others
    }

    def all_back() -> dict[str, float] | None:
        found: dict[str, float] = {}
        for fact in cluster.after(mark, BACK, who=address):
            if fact.at_s >= continued_s and fact.observer in accused:
                found[fact.observer] = fact.at_s
        return found if found.keys() == accused else None

    back_s: dict[str, float] = {}
    if accused:
        what = f"{address} is back at all {len(accused)} that accused it"
        back_s = cluster.wait(what, lambda: all_back(), SEEN_TIMEOUT_S) or {}
    time.sleep(run.lengths.after_s)
    cluster.read()
    suspected_s = cluster.first_by_observer(mark, SUSPECTED, address, others)
    deaths = len(cluster.first_by_observer(mark, GONE, address, others))
    elsewhere = _deaths_of_others(cluster, mark, address)
    kind = "" if pause_s <= SHORT_S else "_long"
    samples.add(f"r2_false_deaths{kind}", deaths + elsewhere if not kind else deaths)
    if kind:
        samples.add("r2_false_deaths_elsewhere", elsewhere)
    if suspected_s and pause_s >= SHORT_S:
        samples.add("r2_suspect_s", min(suspected_s.values()) - stopped_s)
        samples.add("r2_suspect_all_s", max(suspected_s.values()) - stopped_s)
    if back_s:
        samples.add("r2_back_s", max(back_s.values()) - continued_s)


def cluster_after(cluster: Cluster, mark: int, events: frozenset[str], who: str) -> list:
    """Read, then `after`."""
    cluster.read()
    return cluster.after(mark, events, who=who)
