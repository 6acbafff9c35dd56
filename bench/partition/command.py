"""`python -m bench partition`: real members cut apart, paused, killed; flags, cells, rows.

Decides which cells run and on what network, that only one cluster runs at a time, and where the
figures go. As root each member is in a network namespace of its own, with crash_evidence=never: as
between hosts, nothing proves a crash, and a round in which something did is a failure. Without root
they reach each other by proxies that hold back what passes. Called by `bench.__main__`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from bench import report
from bench.gossip.namespaces import Hosts, NotPossibleError, can_make_networks
from bench.partition import results
from bench.partition.cluster import Cluster, LoopbackNetwork, NamespaceNetwork
from bench.partition.proxies import OneWayProxies, ProxyNetwork
from bench.partition.rounds import FAULTS, Rounds, Samples, Timings
from bench.partition.virtual import frames_per_s
from bench.processes import Members, NotSeenError
from bench.report import Row
from node.history import boottime_s

SWEPT = ("lone-host", "one-way", "side")
CLUSTERS_MAX = 4
"""So many clusters one cell may use up: after that its rounds are given up."""
FRAMES_S = 10.0
FRAMES_REAL_MAX = 50
"""More that all act are too many for a few cores."""
STALL_EVERY_S = 15.0
STALL_S = 1.0
JOIN_EVERY_S = 15.0
JOINERS = 5
LEAVE_TIMEOUT_S = 60.0
LITTLE_LOSS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument(
        "--experiment",
        choices=("faults", "flap", "frames"),
        default="faults",
        help="faults: rounds of faults (default); flap: a healthy host for --minutes; frames: what "
        "contact costs when every member hosts",
    )
    parser.add_argument("--downing", default="keep-majority", metavar="STRATEGY")
    parser.add_argument("--nodes", type=_sizes, default=(5,), metavar="N,…", help="members (5)")
    parser.add_argument("--rounds", type=_count, metavar="K", help="rounds of each fault (20)")
    parser.add_argument("--preset", choices=("lan", "wan"), default="lan")
    parser.add_argument(
        "--faults", type=_faults, default=FAULTS, metavar="NAME,…", help=", ".join(FAULTS)
    )
    parser.add_argument(
        "--heal-sweep",
        action="store_true",
        help="as many rounds again of each cut, healed within 0.3 s of when a decision is expected",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="flap: for so long (30)")
    parser.add_argument("--loss", type=float, default=0.0, metavar="PERCENT", help="flap: packets")
    parser.add_argument("--stall", action="store_true", help="flap: another member stalls for 1 s")
    parser.add_argument(
        "--joins",
        action="store_true",
        help="flap: five join at once, and leave, all the time",
    )
    parser.add_argument(
        "--delay-ms", type=float, default=0.0, metavar="MS", help="flap: each way, by proxies"
    )
    parser.add_argument("--seed", type=int, default=1, help="of instants and sides (1)")
    parser.add_argument("--quick", action="store_true", help="one round, not to be quoted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="write the page here (bench/results)"
    )


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if min(sizes) < 3:
        raise argparse.ArgumentTypeError(f"{min(sizes)} members are too few: give 3 or more")
    return sizes


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} rounds measure nothing: give 1 or more")
    return number


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or 'nothing'} is not known: name some of {', '.join(FAULTS)}"
        )
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the cells, write and draw; 1 when a count does not add up."""
    rounds = 1 if arguments.quick else arguments.rounds or 20
    directory = arguments.results or (None if arguments.quick else results.RESULTS)
    settings: dict[str, object] = {
        "experiment": arguments.experiment,
        "downing": arguments.downing,
        "preset": arguments.preset,
        "nodes": list(arguments.nodes),
        "rounds": rounds,
        "seed": arguments.seed,
        "quick": arguments.quick,
        "network": "namespaces" if can_make_networks() else "proxies",
    }
    rows: list[Row] = []
    for cell, found, notes in _cells(arguments, rounds):
        report.draw(f"bench partition: {cell}", found)
        for note in notes:
            print(note)
        rows += found
        if arguments.json is not None:
            # A long run that is stopped leaves what it has.
            report.write(arguments.json, report.report("partition", settings, rows))
        if directory is not None:
            results.write_section(directory, cell, _command(arguments, rounds), found, notes)
    if arguments.json is not None:
        print(f"written to {arguments.json}")
    return 1 if any(row.error for row in rows) else 0


Cell = tuple[str, list[Row], list[str]]


def _cells(arguments: argparse.Namespace, rounds: int) -> Iterator[Cell]:
    about = f"{arguments.downing}, {arguments.preset}"
    for members in arguments.nodes:
        if arguments.experiment == "flap":
            loss = f", {arguments.loss:g} % loss" if arguments.loss else ""
            stall = ", another member stalls" if arguments.stall else ""
            joins = ", a join storm" if arguments.joins else ""
            delay = f", {arguments.delay_ms:g} ms of delay" if arguments.delay_ms else ""
            title = f"flap{loss}{delay}{stall}{joins}, N={members}, {about}"
            yield title, *_flap(arguments, members)
            continue
        if arguments.experiment == "frames":
            yield f"frames, N={members}, {about}", *_frames(arguments, members)
            continue
        for fault in arguments.faults:
            decided_s: list[float] = []
            yield (
                f"{fault}, N={members}, {about}",
                *_rounds(arguments, fault, members, rounds, decided_s, sweep=False),
            )
            if arguments.heal_sweep and fault in SWEPT and decided_s:
                yield (
                    f"{fault} healed at the decision, N={members}, {about}",
                    *_rounds(arguments, fault, members, rounds, decided_s, sweep=True),
                )


def _rounds(
    arguments: argparse.Namespace,
    fault: str,
    members: int,
    rounds: int,
    decided_s: list[float],
    *,
    sweep: bool,
) -> tuple[list[Row], list[str]]:
    """All rounds of a cell; a cluster that is of no more use is followed by a new one."""
    samples = Samples()
    rng = random.Random(f"{arguments.seed}/{fault}/{members}/{sweep}")
    one_host = fault == "crash"
    done = clusters = 0
    name = f"{fault} healed" if sweep else fault
    where = "a network namespace each, crash_evidence=never"
    if not can_make_networks():
        where = "behind proxies, crash_evidence=never"
    if one_host:
        where = "one host, crashes proven"
    while done < rounds and clusters < CLUSTERS_MAX:
        clusters += 1
        try:
            with _cluster(arguments, members, one_host=one_host) as cluster:
                cluster.start()
                timings = Timings.of(arguments.preset)
                one = Rounds(cluster, fault, timings, rng, samples, decided_s)
                while done < rounds:
                    done += 1
                    one.run(sweep=sweep)
                    print(f"{name}, N={members}: {done} of {rounds}", file=sys.stderr, flush=True)
        except NotSeenError as error:
            print(error, file=sys.stderr)
            samples.failures.append(str(error).splitlines()[0])
        except NotPossibleError as error:
            samples.failures.append(str(error))
            break
    # Rounds that were never begun are missing too.
    for _ in range(rounds - done):
        samples.ask("survivor_sides", "acting_overlap_s", "overrun_s")
    if not samples.asked:
        samples.ask("survivor_sides")
    notes = [f"Outcomes: {', '.join(f'{n} x {what}' for what, n in samples.outcomes.items())}."]
    found = results.rows_of(samples, name, arguments.preset, members, where, one_host)
    return found, notes


def _flap(arguments: argparse.Namespace, members: int) -> tuple[list[Row], list[str]]:
    """A host that is well, for so many minutes: how often it lost contact, and who went down."""
    samples = Samples()
    samples.ask("contact_losses_per_hour")
    minutes = 0.2 if arguments.quick else arguments.minutes
    notes = [f"{minutes:g} minutes."]
    spare = JOINERS if arguments.joins else 0
    try:
        with _cluster(arguments, members, one_host=False, spare=spare) as cluster:
            cluster.start()
            cluster.restarts = False
            host = cluster.life_of(cluster.settle())
            other = next(life for life in reversed(cluster.running) if life is not host)
            if arguments.loss:
                _lose_packets(cluster, arguments.loss)
            begun_s = boottime_s()
            until_s = begun_s + 60.0 * minutes
            joined = 0
            while boottime_s() < until_s:
                for host_number in range(members, members + spare):
                    cluster.start_one(host_number)
                    joined += 1
                cluster.wait_until(
                    min(until_s, boottime_s() + (JOIN_EVERY_S if spare else STALL_EVERY_S))
                )
                for life in [life for life in cluster.running if life.host >= members]:
                    cluster.signal(life, signal.SIGTERM)
                if spare:
                    _wait_until_left(cluster, members)
                if arguments.stall and other.running:
                    cluster.signal(other, signal.SIGSTOP)
                    cluster.wait_until(boottime_s() + STALL_S)
                    cluster.signal(other, signal.SIGCONT)
            lost = sum(len(life.lines("authority_lost", begun_s)) for life in cluster.lives)
            samples.add("contact_losses_per_hour", lost / (minutes / 60.0))
            ended = [life.member.name for life in cluster.lives if not (life.running or life.told)]
            if ended:
                samples.failures.append(f"{', '.join(ended)} exited without a cause")
            steps = cluster.steps
            gaps = [
                later - earlier
                for one in steps.instances.values()
                for earlier, later in pairwise(one.steps)
                if earlier >= begun_s
            ]
            notes.append(
                f"{lost} losses, {len(ended)} exits, {len(steps.instances)} instance(s), longest "
                f"time without a step {max(gaps, default=0.0):.2f} s."
            )
            if joined:
                notes.append(f"{joined} joined and left.")
    except (NotSeenError, NotPossibleError) as error:
        samples.failures.append(str(error).splitlines()[0])
    trouble = "joins" if arguments.joins else "loss" if arguments.loss > LITTLE_LOSS else "calm"
    about = f"flap, {trouble}"
    rows = results.rows_of(samples, about, arguments.preset, members, notes[0], one_host=False)
    return rows, notes


def _wait_until_left(cluster: Cluster, members: int) -> None:
    cluster.wait(
        "all newcomers leave",
        lambda: all(life.host < members for life in cluster.running),
        LEAVE_TIMEOUT_S,
    )


def _lose_packets(cluster: Cluster, percent: float) -> None:
    """At each receiver, with iptables inside its namespace; gone with the namespace."""
    match = ("-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.4f}")
    for life in cluster.running:
        place = ("nsenter", f"--net=/proc/{life.process.pid}/ns/net")
        command = [*place, "iptables", "-A", "INPUT", "-i", "eth0", *match, "-j", "DROP"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        if done.returncode:
            raise NotPossibleError(f"packets are lost by iptables: {done.stderr.strip()}")


def _frames(arguments: argparse.Namespace, members: int) -> tuple[list[Row], list[str]]:
    """Control frames that each member sends per second while each hosts a singleton."""
    samples = Samples()
    if members > FRAMES_REAL_MAX:
        samples.ask("frames_per_s")
        samples.add("frames_per_s", frames_per_s(members, arguments.downing, arguments.preset))
        note = "each member hosts a singleton of its own; in virtual time"
        return results.rows_of(
            samples, "frames", arguments.preset, members, note, one_host=True
        ), []
    one_host = not can_make_networks()
    for _ in range(members):
        samples.ask("frames_per_s")
    try:
        with _cluster(arguments, members, one_host=one_host, each_hosts=True) as cluster:
            cluster.start()
            cluster.wait("all act", lambda: _acting_count(cluster) == members, 60.0 + members)
            cluster.wait_until(boottime_s() + 3.0)
            before = _frames_sent(cluster, 1)
            cluster.wait_until(boottime_s() + (2.0 if arguments.quick else FRAMES_S))
            after = _frames_sent(cluster, 2)
            for node, (at_s, frames) in after.items():
                begun_s, had = before[node]
                samples.add("frames_per_s", (frames - had) / (at_s - begun_s))
    except (NotSeenError, NotPossibleError) as error:
        samples.failures.append(str(error).splitlines()[0])
    note = "each member hosts a singleton of its own"
    return results.rows_of(samples, "frames", arguments.preset, members, note, one_host), []


def _acting_count(cluster: Cluster) -> int:
    return len(cluster.steps.acting(boottime_s() - 0.5))


def _frames_sent(cluster: Cluster, times: int) -> dict[str, tuple[float, int]]:
    """Each member's count, by address, once it was asked `times` times."""
    for life in cluster.running:
        cluster.signal(life, signal.SIGUSR1)
    path = cluster.directory / "counters"

    def lines() -> list[str] | None:
        found = path.read_text().splitlines() if path.exists() else []
        return found if len(found) == times * len(cluster.hosts) else None

    told = [json.loads(one) for one in cluster.wait("all tell what they counted", lines, 10.0)]
    newest = sorted(told, key=lambda one: float(one["at_s"]))
    return {
        one["node"]: (one["at_s"], one["counters"].get("control_frames_sent", 0)) for one in newest
    }


@contextmanager
def _cluster(
    arguments: argparse.Namespace,
    members: int,
    *,
    one_host: bool,
    each_hosts: bool = False,
    spare: int = 0,
) -> Iterator[Cluster]:
    """A cluster that is not started yet, and its network; both are gone afterwards. one_host: the
    kernel proves a crash there."""
    flags = ["--downing", arguments.downing, "--preset", arguments.preset]
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        directory = Path(name)
        count = members + spare
        if one_host:
            network = LoopbackNetwork(Members(directory).free_ports(count))
            with Cluster(directory, network, flags, each_hosts=each_hosts) as cluster:
                yield cluster
            return
        if arguments.delay_ms or not can_make_networks():
            free = Members(directory).free_ports(2 * count)
            ports = [free[2 * number : 2 * number + 2] for number in range(count)]
            with OneWayProxies(ports, arguments.delay_ms / 1000.0) as proxies:
                ways = ProxyNetwork(ports, proxies)
                with Cluster(directory, ways, flags, each_hosts=each_hosts, spare=spare) as cluster:
                    yield cluster
            return
        with Hosts(count) as hosts:
            spaces = NamespaceNetwork(hosts)
            with Cluster(directory, spaces, flags, each_hosts=each_hosts, spare=spare) as cluster:
                yield cluster


def _command(arguments: argparse.Namespace, rounds: int) -> str:
    words = [f"python -m bench partition --downing {arguments.downing}"]
    words.append(f"--nodes {','.join(map(str, arguments.nodes))} --preset {arguments.preset}")
    match arguments.experiment:
        case "faults":
            words.append(f"--rounds {rounds} --faults {','.join(arguments.faults)}")
            words += ["--heal-sweep"] * arguments.heal_sweep
        case "flap":
            words.append(f"--experiment flap --minutes {arguments.minutes:g}")
            words += [f"--loss {arguments.loss:g}"] * bool(arguments.loss)
            words += [f"--delay-ms {arguments.delay_ms:g}"] * bool(arguments.delay_ms)
            words += ["--stall"] * arguments.stall + ["--joins"] * arguments.joins
        case other:
            words.append(f"--experiment {other}")
    return " ".join(words + ["--quick"] * arguments.quick)
