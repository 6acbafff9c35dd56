"""The skeleton's figures: start, join, failover after SIGKILL, hand-over, memory, simulated time.

Decides what each metric measures. All instants are CLOCK_BOOTTIME, those of members as they wrote
them into their histories; nothing is read by polling. Called by `python -m bench smoke`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import ROOT, Member, Members, NotSeenError, clean_environment
from bench.report import Row, row
from node.history import boottime_s

SINGLETON = "counter"
IDLE_S = 5.0

# What a member without --http imports, and nothing else: the floor under join3_s.
IMPORTS = """
import asyncio, uvloop, node.cli, node.system, node.zmq_environment
from node.history import boottime_s
print(boottime_s())
"""

SIMULATE = """
import time
from gossip.membership import Status
from node.testkit import World
with World(seed=11, nodes=5) as world:
    world.run_until(lambda: [
        sum(member.status is Status.UP for member in view.members)
        for view in world.views().values() if view is not None
    ] == [5] * 5)
    begun_at = time.perf_counter()
    world.run_for(s=60)
    print(time.perf_counter() - begun_at)
"""


@dataclass
class Sampler:
    """Runs one measurement several times, each in a directory of its own."""

    runs: int
    loop: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def measure(self, metrics: Sequence[str], once: Callable[[Members], Sequence[float]]) -> None:
        """`once` gives a value per metric; a run in which a fact is missing is a failure."""
        for metric in metrics:
            self.samples.setdefault(metric, [])
            self.failures.setdefault(metric, [])
        for _ in range(self.runs):
            with (
                tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory,
                Members(Path(directory), loop=self.loop) as members,
            ):
                try:
                    values = once(members)
                except (NotSeenError, subprocess.SubprocessError, ValueError) as error:
                    print(error, file=sys.stderr)
                    for metric in metrics:
                        self.failures[metric].append(str(error).splitlines()[0])
                    continue
            for metric, value in zip(metrics, values, strict=True):
                self.samples[metric].append(value)

    def row(self, metric: str, unit: str, target: float | None, note: str, per_run: int = 1) -> Row:
        """The row of a metric that was measured."""
        return row(
            metric,
            unit,
            self.samples[metric],
            expected=self.runs * per_run,
            target=target,
            note=note,
            failures=self.failures[metric],
        )


def run(*, quick: bool, loop: str = "uvloop") -> tuple[dict[str, object], list[Row]]:
    """All metrics; `quick` measures each once or twice."""
    sampler = Sampler(2 if quick else 9, loop)
    sampler.measure(["start_s"], _start)
    sampler.measure(["imports3_s"], _imports)
    sampler.measure(["join3_s", "kill9_gap_s", "leave_gap_ms"], _failover)
    sampler.measure(["join3_http_s"], _join_http)
    few = Sampler(1 if quick else 3, loop)
    few.measure(["idle_rss_mb"], lambda members: [_idle_rss_mb(members, http=False)])
    few.measure(["idle_rss_http_mb"], lambda members: [_idle_rss_mb(members, http=True)])
    few.measure(["simulate_60s_s"], _simulate)
    rows = [
        sampler.row("start_s", "s", 0.25, "process start to both lanes bound"),
        sampler.row("imports3_s", "s", None, "three processes that only import, last one done"),
        sampler.row("join3_s", "s", 0.6, "first process start to the last that sees three up"),
        sampler.row("join3_http_s", "s", 1.0, "the same, with --http"),
        sampler.row(
            "kill9_gap_s", "s", 0.5, "SIGKILL of the host to started elsewhere, level none"
        ),
        sampler.row("leave_gap_ms", "ms", 50, "old stopped to new started"),
        few.row("idle_rss_mb", "MB", 36, "5 s after up, the largest of three"),
        few.row("idle_rss_http_mb", "MB", 52, "the same, with --http"),
        few.row("simulate_60s_s", "s", 0.6, "5 nodes, 60 virtual seconds idle, one core"),
    ]
    return {"quick": quick, "loop": loop, "protection": "none", "preset": "lan"}, rows


def _start(members: Members) -> list[float]:
    member = members.start("a", port=members.free_ports(1)[0], app=None)
    members.wait("both lanes bound", lambda: member.seen("bound"))
    return [member.seen("bound")[0].at_s - member.started_at_s]


def _imports(members: Members) -> list[float]:
    begun_at_s = boottime_s()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IMPORTS],
            cwd=ROOT,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        done = [float(process.communicate(timeout=60)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [max(done) - begun_at_s]


def _join3(members: Members, *, http: bool) -> tuple[list[Member], float]:
    three = members.start_three(http=http)
    members.wait_all_up(three)
    last = max(member.saw_up_at_s(3) for member in three)
    return three, last - three[0].started_at_s


def _join_http(members: Members) -> list[float]:
    return [_join3(members, http=True)[1]]


def _failover(members: Members) -> list[float]:
    """One cluster: join, kill the host, let the next host leave."""
    _, join_s = _join3(members, http=False)
    first = members.host_of(SINGLETON)
    killed_at_s = members.end(first, signal.SIGKILL)
    second = members.host_of(SINGLETON, but=[first])
    kill_gap_s = second.seen("started", singleton=SINGLETON)[-1].at_s - killed_at_s
    members.end(second, signal.SIGTERM)
    third = members.host_of(SINGLETON, but=[first, second])
    members.wait_end(second)
    stopped_at_s = second.seen("stopped", singleton=SINGLETON)[-1].at_s
    started_at_s = third.seen("started", singleton=SINGLETON)[-1].at_s
    if started_at_s < stopped_at_s:
        raise ValueError("two instances ran: started before the old one had stopped")
    return [join_s, kill_gap_s, (started_at_s - stopped_at_s) * 1000]


def _idle_rss_mb(members: Members, *, http: bool) -> float:
    three, _ = _join3(members, http=http)
    time.sleep(IDLE_S)
    return max(_rss_mb(member.process.pid) for member in three)


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no VmRSS: it ended")


def _simulate(members: Members) -> list[float]:
    core = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{SIMULATE}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if result.returncode:
        raise ValueError(f"the simulation failed: {(result.stderr.splitlines() or ['?'])[-1]}")
    return [float(result.stdout)]
