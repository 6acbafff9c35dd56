"""R1 to R7: what is done to a cluster of real processes, and what is taken from its facts.

Decides what each experiment measures and against which target. Starts no cluster and draws
nothing. Called by `bench.gossip.processes`.

"Gone" is what an observer writes first of unreachable, down and removed: the strictest reading of
"dead", for ours and for a peer alike.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.gossip.namespaces import NotPossibleError, packet_loss, traffic
from bench.gossip.peers.facts import boottime_s
from bench.gossip.processes_cluster import GONE, Cluster, Started
from bench.messaging.child import Child, NotMeasuredError
from bench.processes import ROOT, NotSeenError
from bench.report import Row, percentile, row

SEEN_TIMEOUT_S = 60.0
PHASE_S = 1.0  # a fault comes at a random place of a probe interval
SUSPECTED = frozenset({"suspect"})
LEFT = frozenset({"leaving", "exiting", "removed"})
BACK = frozenset({"recovered", "reachable", "up"})
SHORT_S = 2.0  # a stop up to this long must never be taken for a death
LOSSES_PERCENT = (10, 25)
PROBED_FOR_S = 3.0
IMPORTS = "import asyncio, uvloop, node.cli, node.system, node.zmq_environment"
GIVEN_UP = (NotSeenError, NotMeasuredError, NotPossibleError, subprocess.SubprocessError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the parts take that have no end of their own."""

    warm_s: float = 5.0
    idle_s: float = 20.0
    loss_s: float = 60.0
    after_s: float = 2.0
    pauses_s: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0)


QUICK = Lengths(warm_s=1.0, idle_s=2.0, loss_s=3.0, after_s=0.5, pauses_s=(2.0,))


@dataclass
class Samples:
    """What was measured in one cell, by the name of the sample; and in words what was not."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, *values: float) -> None:
        """One more, or several."""
        self.values[name].extend(values)


@dataclass(frozen=True, slots=True)
class Run:
    """What one cluster is used for: so many rounds of an experiment."""

    cluster: Cluster
    rounds: int
    rng: random.Random
    lengths: Lengths
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row. `target` may depend on N. `total`: all samples are added up to one. `tail`: their
    99th percentile is the one (nearest rank: of less than 100 the greatest)."""

    name: str
    unit: str
    text: str = ""
    sample: str = ""  # as `name`, where that names one row only
    target: Callable[[int], float] | None = None
    total: bool = False
    tail: bool = False
    each: int | None = 1  # samples that a round gives; None: as many as there are
    ours_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`rounds` by default, at most `per_cluster` of them with one cluster. With `evidence_cell` it
    is also run without the kernel's proof."""

    measure: Callable[[Run], None]
    metrics: tuple[Metric, ...]
    rounds: int
    per_cluster: int
    members: tuple[int, ...] = (25,)
    evidence_cell: bool = False


def rows_of(
    experiment: Experiment,
    cluster_text: str,
    samples: Samples,
    *,
    members: int,
    rounds: int,
    prefix: str,
) -> list[Row]:
    """The rows of one cell: one side at one size. A peer's (`prefix`) have no target."""
    rows = []
    for metric in experiment.metrics:
        if metric.ours_only and prefix:
            continue
        values = samples.values.get(metric.sample or metric.name, [])
        if metric.each is None and not values and not samples.failures:
            continue  # what it measures did not happen, which others of the rows tell
        expected = max(1, len(values)) if metric.each is None else rounds * metric.each
        if metric.total or metric.tail:
            whole = bool(values) and len(values) == expected
            one = sum(values) if metric.total else percentile(sorted(values), 99)
            expected, values = 1, [one] if whole and one is not None else []
        target = None if prefix or metric.target is None else metric.target(members)
        note = "; ".join(part for part in (f"N={members}", cluster_text, metric.text) if part)
        rows.append(
            row(
                f"{prefix}{metric.name}",
                metric.unit,
                values,
                expected=expected,
                target=target,
                note=note,
                failures=samples.failures if len(values) != expected else (),
            )
        )
    return rows


# what they do


def form(run: Run) -> float:
    """Start the cluster, tell all to go, wait until it is settled; the instant of the word."""
    run.cluster.start()
    told_s = run.cluster.go()
    run.cluster.settle()
    return told_s


def kill(run: Run) -> None:
    """R1: kill -9 of one member, known to all others; then it is started again."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        victim = _victim(run)
        others, mark = cluster.others(victim.address), cluster.mark()
        killed_s = victim.signal(signal.SIGKILL)
        gone_s = cluster.wait_all(mark, GONE, victim.address, others, SEEN_TIMEOUT_S)
        samples.add("r1_first_s", min(gone_s.values()) - killed_s)
        samples.add("r1_all_s", max(gone_s.values()) - killed_s)
        samples.add("r1_observer_s", *(at_s - killed_s for at_s in gone_s.values()))
        _start_again(run, victim.address)
        samples.add("r1_false_deaths", _deaths_of_others(cluster, mark, victim.address))


def pause(run: Run) -> None:
    """R2: SIGSTOP of one member, SIGCONT after each of the lengths in turn."""
    form(run)
    for _ in range(run.rounds):
        for pause_s in run.lengths.pauses_s:
            _pause_once(run, _victim(run), pause_s)


def _pause_once(run: Run, victim: Started, pause_s: float) -> None:
    cluster, samples, address = run.cluster, run.samples, victim.address
    others, mark = cluster.others(address), cluster.mark()
    stopped_s = victim.signal(signal.SIGSTOP)
    try:
        time.sleep(max(0.0, stopped_s + pause_s - boottime_s()))
    finally:
        continued_s = victim.signal(signal.SIGCONT)
    cluster.settle()
    time.sleep(run.lengths.after_s)  # what it did wrong when it woke shows now
    cluster.settle()
    suspected_s = cluster.first_by_observer(mark, SUSPECTED, address, others)
    deaths_s = cluster.first_by_observer(mark, GONE, address, others)
    elsewhere = _deaths_of_others(cluster, mark, address)
    back_s = {
        fact.observer: fact.at_s
        for fact in cluster.after(mark, BACK, who=address)
        if fact.at_s >= continued_s and fact.observer in others
    }
    if pause_s <= SHORT_S:
        samples.add("r2_false_deaths", len(deaths_s) + elsewhere)
        if back_s:
            samples.add("r2_back_s", max(back_s.values()) - continued_s)
    else:
        samples.add(f"deaths_{pause_s:g}", len(deaths_s) / len(others))
        samples.add("elsewhere", elsewhere)
    if pause_s >= SHORT_S:
        samples.add("r2_unseen", not suspected_s)
    if pause_s >= SHORT_S and suspected_s:
        samples.add("r2_suspect_s", min(suspected_s.values()) - stopped_s)
        samples.add("r2_suspect_all_s", max(suspected_s.values()) - stopped_s)


def join(run: Run) -> None:
    """R3: all listen, then all are told to go at once."""
    cluster, samples = run.cluster, run.samples
    told_s = form(run)
    count = len(cluster.members)
    full_s: dict[str, float] = {}
    up: dict[str, set[str]] = defaultdict(set)
    up_s: dict[str, float] = {}
    for fact in cluster.facts:
        if fact.event == "size" and int(fact.detail) == count:
            full_s.setdefault(fact.observer, fact.at_s)
        elif fact.event == "up":
            up[fact.observer].add(fact.who)
            if len(up[fact.observer]) == count:
                up_s.setdefault(fact.observer, fact.at_s)
    samples.add("r3_join_s", max(full_s.values()) - told_s)
    samples.add("r3_up_s", max(up_s.values()) - told_s)
    samples.add("r3_false_deaths", len(cluster.after(0, GONE)))
    samples.add("r3_cpu_s", sum(cpu_s(one.process.pid) for one in cluster.running) / count)


def idle(run: Run) -> None:
    """R4: nothing happens."""
    cluster, samples = run.cluster, run.samples
    form(run)
    bare_mib = bare_pss_mib(cluster.side.python)
    imports_mib = bare_mib
    if cluster.side.command is None:
        imports_mib = bare_pss_mib(cluster.side.python, IMPORTS)
    for _ in range(run.rounds):
        time.sleep(run.lengths.warm_s)
        members, mark = cluster.running, cluster.mark()
        began_s, before = time.monotonic(), [cpu_s(one.process.pid) for one in members]
        traffic_before = traffic()
        time.sleep(run.lengths.idle_s)
        took_s, traffic_after = time.monotonic() - began_s, traffic()
        after = [cpu_s(one.process.pid) for one in members]
        cluster.read()
        used = (b - a for a, b in zip(before, after, strict=True))
        samples.add("r4_cpu_percent", *(100 * one_s / took_s for one_s in used))
        each_s = len(members) * took_s
        byte_count = traffic_after.byte_count - traffic_before.byte_count
        samples.add("r4_bytes_per_s", byte_count / each_s)
        samples.add("r4_packets_per_s", (traffic_after.packets - traffic_before.packets) / each_s)
        pss_mib = [pss(one.process.pid) for one in members]
        samples.add("r4_pss_mib", *pss_mib)
        samples.add("r4_pss_above_mib", *(one_mib - bare_mib for one_mib in pss_mib))
        samples.add("r4_pss_own_mib", *(one_mib - imports_mib for one_mib in pss_mib))
        samples.add("r4_false_suspects", len(cluster.after(mark, SUSPECTED | GONE)))


def leave(run: Run) -> None:
    """R5: SIGTERM and a new start; then kill -9 and a new start before anybody can know."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        victim = _victim(run)
        others, mark = cluster.others(victim.address), cluster.mark()
        told_s = victim.signal(signal.SIGTERM)
        left_s = cluster.wait_all(mark, {"removed"}, victim.address, others, SEEN_TIMEOUT_S)
        # Ours announces its leave when nothing of it acts any more: that is what "left" means.
        known_s = cluster.first_by_observer(mark, LEFT, victim.address, others)
        samples.add("r5_first_s", min(known_s.values()) - told_s)
        samples.add("r5_leave_s", max(known_s.values()) - told_s)
        samples.add("r5_removed_s", max(left_s.values()) - told_s)
        bad = [one for one in cluster.after(mark, GONE) if one.detail != "left"]
        samples.add("r5_false_deaths", len(bad))
        _wait_end(cluster, victim)
        samples.add("r5_back_s", _start_again(run, victim.address))

        victim = _victim(run)
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        samples.add("r5_restart_s", _start_again(run, victim.address))


def loss(run: Run) -> None:
    """R6: every packet is lost with a probability, at the receiver."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        for percent in LOSSES_PERCENT:
            mark = cluster.mark()
            with packet_loss(percent):
                time.sleep(run.lengths.loss_s)
                cluster.read()
            samples.add(f"deaths_{percent}", len(cluster.after(mark, GONE)))
            samples.add(f"suspects_{percent}", len(cluster.after(mark, SUSPECTED)))
            cluster.settle()


def block(run: Run) -> None:
    """R7: an actor blocks one member's event loop; then one member gets bulk."""
    cluster, samples = run.cluster, run.samples
    form(run)
    for _ in range(run.rounds):
        victim = _victim(run)
        others, mark = cluster.others(victim.address), cluster.mark()
        blocked_s = victim.signal(signal.SIGUSR1)
        time.sleep(cluster.block_s + run.lengths.after_s)
        cluster.settle()
        suspected_s = cluster.first_by_observer(mark, SUSPECTED, victim.address, others)
        samples.add("r7_false_deaths", len(cluster.after(mark, GONE)))
        samples.add("r7_observers_percent", 100 * len(suspected_s) / len(others))
        if suspected_s:
            samples.add("r7_suspect_s", min(suspected_s.values()) - blocked_s)
        if cluster.side.command is None:
            samples.add("r7_blocked_shown", len(cluster.after(mark, {"blocked"})) > 0)
            _bulk(run)


def _bulk(run: Run) -> None:
    """Pings on the control lane, from a member more, of the member that gets the bulk."""
    cluster, samples = run.cluster, run.samples
    target = cluster.bulk_target
    sender = run.rng.choice([one for one in cluster.running if one.address != target])
    mark = cluster.mark()
    command = [sys.executable, "-m", "bench.messaging.probe", target]
    with Child(command, cluster.directory / "probe.log") as probe:
        probe.answer()
        probe.order("probe", PROBED_FOR_S)
        sender.signal(signal.SIGUSR2)
        figures = probe.answer(SEEN_TIMEOUT_S)
        ended = cluster.wait(
            "the bulk is over", lambda: cluster.after(mark, {"bulk-ends"}), SEEN_TIMEOUT_S
        )
    [began] = cluster.after(mark, {"bulk-begins"})
    samples.add("r7_probe_p99_ms", figures["p99_us"] / 1000)
    samples.add("r7_bulk_mib_per_s", int(ended[0].detail) / 2**20 / (ended[0].at_s - began.at_s))
    samples.add("r7_bulk_false_deaths", _deaths_of_others(cluster, mark))
    cluster.settle()


def _victim(run: Run) -> Started:
    """Any member but the seed, after a random part of a probe interval."""
    cluster = run.cluster
    victim = run.rng.choice([one for one in cluster.running if one.address != cluster.seed])
    time.sleep(run.rng.uniform(0, PHASE_S))
    return victim


def _start_again(run: Run, address: str) -> float:
    """A new process at the address, until all is settled; seconds from its being ready until all
    others hold it up."""
    cluster = run.cluster
    mark, begun_s = cluster.mark(), boottime_s()
    cluster.start_one(address)
    cluster.wait_ready([address], begun_s)
    up_s = cluster.wait_all(mark, {"up"}, address, cluster.others(address), SEEN_TIMEOUT_S)
    cluster.settle()
    ready_s = max(fact.at_s for fact in cluster.after(mark, {"ready"}))
    return max(up_s.values()) - ready_s


def _wait_end(cluster: Cluster, member: Started) -> None:
    cluster.wait(f"{member.address} ends", lambda: not member.running, SEEN_TIMEOUT_S)


def _deaths_of_others(cluster: Cluster, mark: int, *but: str) -> int:
    """How often any member was held gone by anybody, these and strangers not counted."""
    cluster.read()
    facts = cluster.after(mark, GONE)
    return sum(one.who in cluster.members and one.who not in but for one in facts)


# what the kernel says of a process


def cpu_s(pid: int) -> float:
    """CPU time of all its threads, by the scheduler's own clock. Raises OSError."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((one / "schedstat").read_text().split()[0]) for one in tasks.iterdir()) / 1e9


def pss(pid: int) -> float:
    """Its proportional share of memory, in MiB. Raises OSError or `NotPossibleError`."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise NotPossibleError("this kernel tells no PSS")


def bare_pss_mib(python: str, code: str = "pass") -> float:
    """The same of an interpreter that ran only this code."""
    command = [python, "-c", f"{code}\nprint(flush=True); input()"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            return pss(process.pid)
        finally:
            process.kill()


# what they measure


def _at_most(value: float) -> Callable[[int], float]:
    return lambda members: value


COUNT, S = "", "s"

EXPERIMENTS = {
    "R1": Experiment(
        measure=kill,
        rounds=10,
        per_cluster=5,
        evidence_cell=True,
        metrics=(
            Metric(name="r1_first_s", unit=S, text="the first survivor holds it gone"),
            Metric(name="r1_all_s", unit=S, text="all survivors", target=_at_most(0.25)),
            Metric(
                name="r1_all_p99_s",
                sample="r1_all_s",
                unit=S,
                text="all survivors, 99th percentile of the rounds",
                tail=True,
                target=_at_most(0.5),
            ),
            Metric(name="r1_observer_s", unit=S, text="each survivor", each=None),
            Metric(
                name="r1_false_deaths",
                unit=COUNT,
                text="verdicts about others, all rounds",
                total=True,
                target=_at_most(0),
            ),
        ),
    ),
    "R2": Experiment(
        measure=pause,
        rounds=4,
        per_cluster=2,
        metrics=(
            Metric(
                name="r2_false_deaths",
                unit=COUNT,
                text="stopped for 1 and 2 s: verdicts about it or anybody, all rounds",
                total=True,
                each=None,
                target=_at_most(0),
            ),
            Metric(
                name="r2_suspect_s",
                unit=S,
                text="stopped for 2 s or more: the first other suspects it",
                each=None,
                target=_at_most(0.8),
            ),
            Metric(
                name="r2_unseen",
                unit=COUNT,
                text="stopped for 2 s or more, and nobody suspected it; all rounds",
                total=True,
                each=None,
                target=_at_most(0),
            ),
            Metric(name="r2_suspect_all_s", unit=S, text="the last that does", each=None),
            Metric(
                name="r2_back_s",
                unit=S,
                text="stopped for 1 and 2 s: nobody suspects it any more",
                each=None,
                target=_at_most(0.2),
            ),
            *(
                Metric(
                    name="r2_gone_share",
                    sample=f"deaths_{pause_s}",
                    unit=COUNT,
                    text=f"stopped for {pause_s} s: share of the others that held it gone",
                    each=None,
                )
                for pause_s in (5, 10)
            ),
            Metric(
                name="r2_false_deaths",
                sample="elsewhere",
                unit=COUNT,
                text="stopped for 5 and 10 s: verdicts about others, all rounds",
                total=True,
                each=None,
                target=_at_most(0),
            ),
        ),
    ),
    "R3": Experiment(
        measure=join,
        rounds=5,
        per_cluster=1,
        metrics=(
            Metric(
                name="r3_join_s",
                unit=S,
                text="all listen, to the full view at all",
                target=lambda members: 0.5 if members <= 50 else 1.0,
            ),
            Metric(name="r3_up_s", unit=S, text="to all up at all", target=_at_most(2.0)),
            Metric(
                name="r3_false_deaths",
                unit=COUNT,
                text="all rounds",
                total=True,
                target=_at_most(0),
            ),
            Metric(
                name="r3_cpu_s", unit=S, text="CPU per member, the interpreter's start included"
            ),
        ),
    ),
    "R4": Experiment(
        measure=idle,
        rounds=1,
        per_cluster=1,
        metrics=(
            Metric(
                name="r4_cpu_percent",
                unit="%",
                text="of one core, each member",
                each=None,
                target=_at_most(0.5),
            ),
            Metric(
                name="r4_bytes_per_s",
                unit="B/s",
                text="on lo per member, all headers",
                target=_at_most(5 * 1024),
            ),
            Metric(name="r4_packets_per_s", unit="/s", text="TCP's acks included"),
            Metric(name="r4_pss_mib", unit="MiB", text="each member", each=None),
            Metric(
                name="r4_pss_above_mib",
                unit="MiB",
                text="above an interpreter that does nothing",
                each=None,
                target=_at_most(3),
            ),
            Metric(
                name="r4_pss_own_mib",
                unit="MiB",
                text="above one with the same imports that does nothing",
                each=None,
                ours_only=True,
            ),
            Metric(name="r4_false_suspects", unit=COUNT, text="suspected or held gone", total=True),
        ),
    ),
    "R5": Experiment(
        measure=leave,
        rounds=6,
        per_cluster=3,
        metrics=(
            Metric(
                name="r5_first_s", unit=S, text="SIGTERM, to the first other that knows it left"
            ),
            Metric(name="r5_leave_s", unit=S, text="all others know it left", target=_at_most(0.1)),
            Metric(name="r5_removed_s", unit=S, text="and all have removed it"),
            Metric(name="r5_false_deaths", unit=COUNT, text="held gone but not left", total=True),
            Metric(name="r5_back_s", unit=S, text="started again: ready, to up at all others"),
            Metric(
                name="r5_restart_s",
                unit=S,
                text="kill -9 and started at once: the new process ready, to up at all others",
            ),
        ),
    ),
    "R6": Experiment(
        measure=loss,
        rounds=1,
        per_cluster=1,
        metrics=tuple(
            metric
            for percent in LOSSES_PERCENT
            for metric in (
                Metric(
                    name="r6_false_deaths",
                    sample=f"deaths_{percent}",
                    unit=COUNT,
                    text=f"{percent} % loss",
                    total=True,
                    target=_at_most(0),
                ),
                Metric(
                    name="r6_false_suspects",
                    sample=f"suspects_{percent}",
                    unit=COUNT,
                    text=f"{percent} % loss",
                    total=True,
                ),
            )
        ),
    ),
    "R7": Experiment(
        measure=block,
        rounds=3,
        per_cluster=3,
        members=(10,),
        metrics=(
            Metric(
                name="r7_false_deaths",
                unit=COUNT,
                text="event loop blocked for 3 s: verdicts about it or anybody, all rounds",
                total=True,
                target=_at_most(0),
            ),
            Metric(
                name="r7_suspect_s",
                unit=S,
                text="the first other shows it unresponsive (suspect)",
                each=None,
            ),
            Metric(
                name="r7_observers_percent", unit="%", text="of the others show it unresponsive"
            ),
            Metric(
                name="r7_blocked_shown",
                unit=COUNT,
                text="rounds in which the member itself named the actor that blocked",
                total=True,
                ours_only=True,
            ),
            Metric(
                name="r7_probe_p99_ms",
                unit="ms",
                text="pings of a member that gets bulk from another, control lane",
                target=_at_most(50),
                ours_only=True,
            ),
            Metric(name="r7_bulk_mib_per_s", unit="MiB/s", text="meanwhile", ours_only=True),
            Metric(
                name="r7_bulk_false_deaths",
                unit=COUNT,
                text="under bulk, all rounds",
                total=True,
                target=_at_most(0),
                ours_only=True,
            ),
        ),
    ),
}
