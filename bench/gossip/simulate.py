"""`python -m bench gossip simulate`: experiments with the machines of membership in virtual time.

Decides the flags, what is printed and where results go; what an experiment does is in
`experiments_*`. The same seeds give the same figures on any machine, but those of `speed`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.gossip import experiments_blocking as blocking
from bench.gossip import experiments_crash as crash
from bench.gossip import experiments_faults as faults
from bench.gossip import experiments_life as life
from bench.gossip.experiments import Experiment, Results, Scale, run_all
from bench.gossip.results import RESULTS, write_section
from bench.report import Row

EXPERIMENTS: dict[str, Experiment] = {
    "S1": crash.S1,
    "S2": crash.S2,
    "S3": blocking.S3,
    "S4": blocking.S4,
    "S5": faults.S5,
    "S6": faults.S6,
    "S7": life.S7,
    "S8": life.S8,
    "S9": life.S9,
    "S10": life.S10,
    "speed": crash.SPEED,
}


EXTRA_SEEDS_S = 420.0  # by default further seeds begin for so long, so that all ends in 10 minutes


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
        "--members", type=_sizes, metavar="N,…", help="so many members (each has its own sizes)"
    )
    parser.add_argument("--seeds", type=_count, metavar="K", help="so many seeds for each cell")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the whole grid: takes hours")
    size.add_argument("--quick", action="store_true", help="a smoke run, not to be quoted")
    parser.add_argument(
        "--jobs", type=_count, metavar="J", help="processes at once (one for each core)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
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
    if min(sizes) < 4:
        raise argparse.ArgumentTypeError(f"{min(sizes)} members are too few: give 4 or more")
    return sizes


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few: give 1 or more")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Run the experiments that were named, write and draw; 1 when a count does not add up."""
    scale = Scale(
        members=arguments.members,
        seeds=arguments.seeds,
        is_full=arguments.full,
        is_quick=arguments.quick,
    )
    jobs = arguments.jobs or os.cpu_count() or 1
    directory = arguments.results or (None if arguments.quick else RESULTS)
    rows: list[Row] = []
    settings: dict[str, object] = {"scale": _scale_name(scale), "jobs": jobs}
    for name in arguments.experiment:
        experiment = EXPERIMENTS[name]
        results = _simulate(name, experiment, scale, jobs)
        found = experiment.rows(results)
        cells = _cells(results)
        settings[name] = cells
        report.draw(f"gossip simulate {name}: {cells['words']}", found)
        for failure in results.failures:
            print(failure, file=sys.stderr)
        rows += found
        if directory is not None:
            notes = [f"Run: {cells['words']}.", *experiment.notes(results)]
            for path in write_section(
                directory, name, _command(name, arguments), found, experiment.plot(results), notes
            ):
                print(f"written to {path}")
    if arguments.json is not None:
        report.write(arguments.json, report.report("gossip simulate", settings, rows))
        print(f"written to {arguments.json}")
    return 1 if any(row.error for row in rows) else 0


def _simulate(name: str, experiment: Experiment, scale: Scale, jobs: int) -> Results:
    """All runs of one experiment, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    runs = experiment.plan(scale)
    is_bounded = not (scale.is_full or scale.seeds)
    extra_until = time.monotonic() + EXTRA_SEEDS_S if is_bounded else math.inf
    results = Results(planned=len(runs))
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task(name, total=len(runs))
        for one, outcome in run_all(runs, experiment.simulate, jobs, extra_until=extra_until):
            if isinstance(outcome, str):
                results.failures.append(outcome)
            else:
                results.outcomes.append((one, outcome))
            progress.advance(task)
    return results


def _cells(results: Results) -> dict[str, object]:
    """What was really run: sizes, seeds, and the values of each condition."""
    runs = [run for run, _ in results.outcomes]
    conditions: dict[str, list[object]] = {}
    for run in runs:
        for key, value in run.cell.items():
            values = conditions.setdefault(key, [])
            if value not in values:
                values.append(value)
    members = sorted({run.members for run in runs})
    seeds = sorted({run.seed for run in runs})
    words = [f"{len(runs)} of {results.planned} runs", f"N = {_listed(members)}"]
    words += [f"{key} = {_listed(_ordered(values))}" for key, values in conditions.items()]
    words.append(f"seeds {seeds[0]} to {seeds[-1]}" if seeds else "no seed")
    return {
        "runs": len(runs),
        "planned": results.planned,
        "cpu_s": round(sum(results.values("cpu_s")), 1),
        "members": members,
        "seeds": seeds,
        "cells": conditions,
        "words": "; ".join(words),
    }


def _ordered(values: Sequence[object]) -> list[object]:
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _listed(values: Sequence[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _scale_name(scale: Scale) -> str:
    return "quick" if scale.is_quick else "full" if scale.is_full else "default"


def _command(name: str, arguments: argparse.Namespace) -> str:
    words = [f"python -m bench gossip simulate --experiment {name}"]
    if arguments.members:
        words.append(f"--members {','.join(map(str, arguments.members))}")
    if arguments.seeds:
        words.append(f"--seeds {arguments.seeds}")
    words += [f"--{flag}" for flag in ("full", "quick") if getattr(arguments, flag)]
    return " ".join(words)
