"""`python -m bench gossip processes`: R1 to R7 with real members, and a peer beside them.

Decides the flags, which sides run at which sizes, that their clusters alternate, and where the
figures go; what an experiment does is in `bench.gossip.processes_experiments`. As root everything
runs in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.gossip import plot
from bench.gossip.namespaces import own_network
from bench.gossip.processes_cluster import Cluster, Side
from bench.gossip.processes_experiments import (
    EXPERIMENTS,
    GIVEN_UP,
    QUICK,
    Experiment,
    Lengths,
    Run,
    Samples,
    rows_of,
)
from bench.gossip.results import RESULTS, write_section
from bench.messaging.environments import CACHE, NotAvailableError, Peer, interpreter_of
from bench.processes import ROOT
from bench.report import Row

OURS = Side(name="tenure", text="pidfd")
NEVER = Side(
    name="tenure, links only",
    text="links",
    arguments=("--crash-evidence", "never"),
)
PEERS = {"kinship": ("local", "lan")}
"""The presets of each peer that are measured."""
LEGEND = (
    "Ours: preset lan; pidfd: the kernel that all share proves a crash; links: "
    "crash_evidence=never, so only lost and refused links tell. Gone: what an observer holds first "
    "of unreachable, down and removed."
)
PLOTTED = {
    "R1": ("r1_all_s", "s", "kill -9, known to all survivors (median)"),
    "R2": ("r2_suspect_s", "s", "a stop, until the first other suspects it (median)"),
    "R3": ("r3_join_s", "s", "all go at once, until all see all (median)"),
    "R4": ("r4_bytes_per_s", "B/s", "idle, on lo per member, all headers"),
    "R5": ("r5_leave_s", "s", "a leave, until all others know it (median)"),
    "R6": ("suspects_25", "", "25 % loss: wrong suspicions"),
    "R7": ("r7_probe_p99_ms", "ms", "pings beside bulk on the control lane, 99th percentile"),
}
"""Experiment → its chief sample, the unit, and the title of its plot."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument(
        "--experiment",
        type=_names,
        required=True,
        metavar="NAME,…",
        help=f"which: {', '.join(EXPERIMENTS)}, or all",
    )
    parser.add_argument(
        "--members", type=_sizes, metavar="N,…", help="processes of a cluster (25; R7: 10)"
    )
    parser.add_argument("--rounds", type=_count, metavar="K", help="rounds of each cell")
    parser.add_argument(
        "--peer",
        choices=tuple(PEERS),
        help="measure it too, in turns, in an environment of its own",
    )
    parser.add_argument("--seed", type=int, default=1, help="of victims and their instants (1)")
    parser.add_argument("--quick", action="store_true", help="a smoke run, not to be quoted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument(
        "--envs", type=Path, default=CACHE, metavar="DIR", help=f"the peers' environments ({CACHE})"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="write page and plots here (bench/results; with --quick nowhere)",
    )


def _names(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(EXPERIMENTS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or 'nothing'} is not known: name some of "
            f"{', '.join(EXPERIMENTS)}, or all"
        )
    return names


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


@dataclass(frozen=True, slots=True)
class _Cell:
    """One side at one size."""

    side: Side
    members: int
    samples: Samples


def run(arguments: argparse.Namespace) -> int:
    """Run the experiments that were named, write and draw; 1 when a count does not add up."""
    try:
        # Before the network is one of our own, which has no way to a package index.
        peers = _peer_sides(arguments.peer, arguments.envs)
    except NotAvailableError as error:
        print(f"gossip processes: {error}", file=sys.stderr)
        return 1
    directory = arguments.results or (None if arguments.quick else RESULTS)
    rows: list[Row] = []
    with own_network() as is_own:
        settings: dict[str, object] = {
            "preset": "lan",
            "protection": "none",
            "own_network": is_own,
            "peer": arguments.peer,
            "seed": arguments.seed,
            "quick": arguments.quick,
        }
        where = "a network namespace of its own" if is_own else "the loopback that all share"
        for name in arguments.experiment:
            experiment = EXPERIMENTS[name]
            sizes = arguments.members or experiment.members
            rounds = arguments.rounds or (1 if arguments.quick else experiment.rounds)
            settings[name] = {"members": sizes, "rounds": rounds}
            cells = _measure(name, experiment, sizes, rounds, peers, arguments)
            found = [
                one
                for cell in cells
                for one in rows_of(
                    experiment,
                    cell.side.text,
                    cell.samples,
                    members=cell.members,
                    rounds=rounds,
                    prefix=cell.side.prefix,
                )
            ]
            report.draw(f"gossip processes {name}: {rounds} rounds, {where}", found)
            rows += found
            if directory is not None:
                notes = [f"{rounds} rounds per cell, in {where}. {LEGEND}"]
                picture = _picture(name, cells)
                command = _command(name, arguments)
                for path in write_section(directory, name, command, found, picture, notes):
                    print(f"written to {path}")
    if arguments.json is not None:
        report.write(arguments.json, report.report("gossip processes", settings, rows))
        print(f"written to {arguments.json}")
    return 1 if any(row.error for row in rows) else 0


def _measure(
    name: str,
    experiment: Experiment,
    sizes: Sequence[int],
    rounds: int,
    peers: Sequence[Side],
    arguments: argparse.Namespace,
) -> list[_Cell]:
    """All cells of an experiment; at each size the sides take turns, a cluster each."""
    sides = [OURS, *([NEVER] if experiment.evidence_cell else []), *peers]
    cells = [_Cell(side, members, Samples()) for members in sizes for side in sides]
    rng = random.Random(arguments.seed)
    lengths = QUICK if arguments.quick else Lengths()
    turns = [
        (cell, count)
        for members in sizes
        for count in _blocks(rounds, experiment.per_cluster)
        for cell in cells
        if cell.members == members
    ]
    with _progress(name, len(turns)) as step:
        for cell, count in turns:
            step(f"{name}: {cell.side.name}, N={cell.members}")
            _take_turn(experiment, cell, count, rng, lengths)
    return cells


def _take_turn(
    experiment: Experiment, cell: _Cell, count: int, rng: random.Random, lengths: Lengths
) -> None:
    """One cluster, so many rounds; what goes wrong is told by the rows that lack a sample."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
        cluster = Cluster(cell.side, Path(directory), cell.members)
        with cluster:
            try:
                experiment.measure(Run(cluster, count, rng, lengths, cell.samples))
            except GIVEN_UP as error:
                print(error, file=sys.stderr)
                cell.samples.failures.append(str(error).splitlines()[0])


def _blocks(rounds: int, most: int) -> list[int]:
    """`rounds` in parts of at most `most`."""
    return [min(most, rounds - begun) for begun in range(0, rounds, most)]


def _peer_sides(peer: str | None, environments: Path) -> list[Side]:
    """A side per preset of the peer. Raises `NotAvailableError`."""
    if peer is None:
        return []
    python = interpreter_of(Peer(name=peer, requirement=_requirement(peer)), environments)
    return [
        Side(
            name=f"{peer} {preset}",
            prefix=f"{peer}_{preset}_",
            text=f"preset {preset}",
            command=(str(python), "-m", f"bench.gossip.peers.{peer}", preset),
        )
        for preset in PEERS[peer]
    ]


def _requirement(peer: str) -> str:
    """Which versions: as the extra `bench` says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra: list[str] = project["optional-dependencies"]["bench"]
    return next(line for line in extra if line.startswith(peer))


@contextmanager
def _progress(name: str, total: int) -> Iterator[Any]:
    """A bar on a terminal, a line per step elsewhere; gives what begins a step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    begun = 0
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task(name, total=total)

        def step(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, completed=begun)
            begun += 1
            if not console.is_terminal:
                console.print(f"{text} ({begun} of {total})", highlight=False)

        yield step


def _picture(name: str, cells: Sequence[_Cell]) -> str | None:
    """Bars of the experiment's chief metric: a group per size, a bar per side."""
    if name not in PLOTTED:
        return None
    sample, unit, title = PLOTTED[name]
    metric = next(one for one in EXPERIMENTS[name].metrics if sample in (one.sample, one.name))
    groups: dict[str, dict[str, float]] = {}
    for cell in cells:
        median = report.row(sample, unit, cell.samples.values.get(sample, []), expected=0).median
        if median is not None:
            groups.setdefault(f"N={cell.members}", {})[cell.side.name] = median
    limit = metric.target(cells[0].members) if metric.target is not None else None
    return plot.bars(title, plot.Axis(unit), groups, limit=limit) if groups else None


def _command(name: str, arguments: argparse.Namespace) -> str:
    words = [f"python -m bench gossip processes --experiment {name}"]
    if arguments.members:
        words.append(f"--members {','.join(map(str, arguments.members))}")
    given = {flag: getattr(arguments, flag) for flag in ("rounds", "peer")}
    words += [f"--{flag} {value}" for flag, value in given.items() if value]
    return " ".join(words)
