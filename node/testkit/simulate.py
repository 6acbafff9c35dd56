"""`python -m node simulate`: many random runs of a cluster in virtual time, and what they found.

Decides how seeds are spread over processes, what is reported, and the exit code: 0 when nothing was
found (or a planted fault was), 1 otherwise. Does not decide what a run is: that is
`node.testkit.partition`, for entities `node.testkit.sharded`.
Called by the command line.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from downing.strategies import LeaseMajority
from node.errors import SettingsError
from node.settings import LEASED_LEVEL, LEVELS, Settings
from node.testkit import sharded
from node.testkit.partition import Run, run_partition
from node.testkit.sabotage import OF_SHARDING, SABOTAGES, UNDER_A_LEASE, sabotage
from node.testkit.sharded import run_sharded

FOUND = 1
NODES_MIN, NODES_MAX = 3, 24  # two more join in the course of a run
COVERED = (
    "takeover", "suspension", "heal near a decision", "minority host", "restart", "one-way",
    "relay", "pause", "leave", "join", "order", "two candidates", "move",
)  # fmt: skip
SUBJECTS = ("singleton", "sharding")
COVERED_LEASED = ("store outage", "lost answers", "late writes", "unheard renewal")
COVERED_SHARE_MIN = 0.02
VIOLATIONS_SHOWN_MAX = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument(
        "--scenario", choices=("partition",), default="partition", help="what happens (partition)"
    )
    parser.add_argument(
        "--subject",
        choices=SUBJECTS,
        help="what is to be in one place: a singleton, or each entity of a sharded type "
        "(singleton, or what a planted fault is in)",
    )
    parser.add_argument(
        "--nodes", type=_nodes, metavar="N", help="members, 3 to 24 (3 to 7, by the seed)"
    )
    parser.add_argument(
        "--downing",
        default="keep-majority",
        metavar="STRATEGY",
        help="as of a member (keep-majority)",
    )
    parser.add_argument(
        "--protection",
        choices=LEVELS,
        help="downing, or downing+lease with a store that has troubles of its own (downing, or "
        "what a planted fault needs); none, with sharding only, where two may act and are counted",
    )
    parser.add_argument("--preset", default="lan", help="timings, as of a member (lan)")
    parser.add_argument("--seeds", type=_count, default=100, metavar="K", help="so many runs (100)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument(
        "--sabotage",
        choices=tuple(SABOTAGES),
        metavar="NAME",
        help="take a rule out, which must be found: "
        + "; ".join(f"{name}: {text}" for name, (text, _) in SABOTAGES.items()),
    )
    parser.add_argument("--jobs", type=_count, metavar="J", help="processes (one for each core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 0 < value <= 10_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return value


def _nodes(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not NODES_MIN <= value <= NODES_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give {NODES_MIN} to {NODES_MAX} members; of fewer no side is a majority"
        )
    return value


def main(argv: Sequence[str]) -> int:
    """Run it; returns the exit code. argparse exits with 2 by itself."""
    parser = argparse.ArgumentParser(
        prog="python -m node simulate",
        description="Random faults in virtual time: two acting at once, a step beyond a lease, an "
        "end of who should live, nobody acting soon enough, or no one view in the end, is a "
        "violation. The same seed gives the same run.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.protection is None:
        needs_lease = arguments.sabotage in UNDER_A_LEASE
        arguments.protection = LEASED_LEVEL if needs_lease else LEVELS[1]
    if arguments.subject is None:
        arguments.subject = SUBJECTS[arguments.sabotage in OF_SHARDING]
    try:
        settings = _settings(arguments)
    except SettingsError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return 2
    begun = time.monotonic()
    runs = run_all(
        settings,
        range(arguments.first, arguments.first + arguments.seeds),
        nodes=arguments.nodes,
        planted=arguments.sabotage,
        leased=arguments.protection == LEASED_LEVEL,
        jobs=arguments.jobs or os.cpu_count() or 1,
        subject=arguments.subject,
    )
    result = summary(runs, arguments, time.monotonic() - begun)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    _show(runs, result)
    found = result["violations"] > 0
    return 0 if found is (arguments.sabotage is not None) else FOUND


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.protection == LEVELS[0]:
        if arguments.subject != SUBJECTS[1]:
            raise SettingsError(
                "protection='none' is simulated with --subject sharding only: of a singleton at "
                "this level two may act as long as a split lasts"
            )
        arguments.downing = "none"
        return Settings(downing="none", preset=arguments.preset)
    settings = Settings(downing=arguments.downing, preset=arguments.preset)
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    """Raises `SettingsError` for what these runs cannot show."""
    strategy = settings.strategy()
    if strategy is None or isinstance(strategy, LeaseMajority):
        raise SettingsError(
            f"downing={settings.downing!r} is not simulated, for there is no store of leases and "
            f"level none decides nothing: take keep-majority, keep-oldest, keep-referee, "
            f"static-quorum or down-all"
        )
    if getattr(strategy, "role", ""):
        raise SettingsError(
            f"downing={settings.downing!r}: simulated members have no roles of your choice, so "
            f"leave the role out"
        )


def run_all(
    settings: Settings,
    seeds: Iterable[int],
    *,
    nodes: int | None,
    planted: str | None,
    jobs: int,
    leased: bool = False,
    subject: str = SUBJECTS[0],
) -> list[Run]:
    """All runs, by seed; with a planted fault it ends soon after the first run that found it."""
    play = run_sharded if subject == SUBJECTS[1] else run_partition
    work = functools.partial(
        _run_one, play=play, settings=settings, nodes=nodes, planted=planted, leased=leased
    )
    runs: list[Run] = []
    if jobs <= 1:
        for seed in seeds:
            runs.append(work(seed))
            if planted is not None and runs[-1].violations:
                break
        return runs
    # Forked children would share locks that a thread may hold just now.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for run in pool.imap(work, seeds, chunksize=1 if planted else 8):
            runs.append(run)
            if planted is not None and run.violations:
                pool.terminate()
                break
    return sorted(runs, key=lambda run: run.seed)


def _run_one(
    seed: int,
    *,
    play: Callable[..., Run],
    settings: Settings,
    nodes: int | None,
    planted: str | None,
    leased: bool,
) -> Run:
    logging.disable(logging.CRITICAL)  # what the simulated nodes say is no news here
    try:
        if planted is None:
            return play(seed, settings, nodes, leased=leased)
        with sabotage(planted):
            return play(seed, settings, nodes, leased=leased)
    finally:
        logging.disable(logging.NOTSET)


def summary(runs: Sequence[Run], arguments: argparse.Namespace, took_s: float) -> dict[str, Any]:
    """What was run and found, as one object for a person, a plot and a check alike."""
    bad = [run for run in runs if run.violations]
    covered = Counter(what for run in runs for what in run.covered)
    takeovers = [at_s for run in runs for at_s in run.takeovers_s[:1]]
    result: dict[str, Any] = {
        "scenario": arguments.scenario,
        "subject": arguments.subject,
        "settings": {
            "nodes": arguments.nodes or "3 to 7",
            "downing": arguments.downing,
            "protection": arguments.protection,
            "preset": arguments.preset,
            "first_seed": arguments.first,
            "sabotage": arguments.sabotage,
        },
        "runs": len(runs),
        "violations": len(bad),
        "first_bad_seed": min((run.seed for run in bad), default=None),
        "found": [
            {"seed": run.seed, "kind": run.kind, "nodes": run.nodes, "what": run.violations}
            for run in bad[:VIOLATIONS_SHOWN_MAX]
        ],
        "empty": sum(run.is_empty for run in runs),
        "acts_max_s": max((run.acts_s for run in runs if run.acts_s is not None), default=None),
        "well_max_s": max((run.well_s for run in runs if run.well_s is not None), default=None),
        "takeover_median_s": statistics.median(takeovers) if takeovers else None,
        "kinds": dict(sorted(Counter(run.kind for run in runs).items())),
        "took_s": round(took_s, 1),
    }
    for what in _to_cover(arguments):
        result[f"coverage_{what.replace(' ', '_').replace('-', '_')}"] = (
            covered[what] / len(runs) if runs else 0.0
        )
    return result


def _to_cover(arguments: argparse.Namespace) -> Sequence[str]:
    level = arguments.protection
    of_subject = sharded.covered(level) if arguments.subject == SUBJECTS[1] else COVERED
    return (*of_subject, *COVERED_LEASED) if level == LEASED_LEVEL else of_subject


def _show(runs: Sequence[Run], result: dict[str, Any]) -> None:
    settings = result["settings"]
    planted = f", sabotage {settings['sabotage']}" if settings["sabotage"] else ""
    print(
        f"{result['scenario']}, {result['subject']}: {result['runs']} runs of "
        f"{settings['nodes']} members, {settings['downing']}, preset "
        f"{settings['preset']}{planted}: {result['violations']} with "
        f"a violation, {result['empty']} ended empty, in {result['took_s']:.0f} s"
    )
    for found in result["found"]:
        print(f"  seed {found['seed']} ({found['kind']}, {found['nodes']} members): "
              f"{'; '.join(found['what'])}")  # fmt: skip
    shares = [
        f"{key.removeprefix('coverage_').replace('_', ' ')} {value:.0%}"
        for key, value in result.items()
        if key.startswith("coverage_")
    ]
    print(f"  covered: {', '.join(shares)}")
    if settings["sabotage"] is None and len(runs) >= 1 / COVERED_SHARE_MIN:
        for key, value in result.items():
            if key.startswith("coverage_") and value < COVERED_SHARE_MIN:
                print(f"  hardly covered: {key.removeprefix('coverage_')}")
    if settings["sabotage"] is not None:
        seed = result["first_bad_seed"]
        print("  the planted fault was NOT found" if seed is None else f"  found by seed {seed}")
