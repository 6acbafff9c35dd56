"""`python -m bench messaging`: its flags, its exit codes, what it prints.

Exits 0 when all targets are met, 1 when one is missed, 2 for a wrong call, 3 when something that
was asked for has no figure: refused, failed or not available; the row says which.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.messaging import results
from bench.messaging.environments import CACHE, PEERS
from bench.messaging.rounds import Bench, Plan
from bench.messaging.table import JUDGED, judge, reported

ALL_MET, MISSED, NOT_MEASURED = 0, 1, 3

ROUNDS, QUICK_ROUNDS = 5, 2
ROW_S, QUICK_ROW_S = 1.0, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags beside `--json` and `--quick`."""
    parser.add_argument(
        "--peers",
        type=peers_of,
        default=(),
        metavar="NAME,…",
        help=f"measure these too, each in an environment of its own: {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--rounds", type=_count, metavar="N", help=f"interleaved rounds ({ROUNDS}; {QUICK_ROUNDS})"
    )
    parser.add_argument(
        "--envs", type=Path, default=CACHE, metavar="DIR", help=f"the peers' environments ({CACHE})"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="write the page and the plot here (bench/results; with --quick nowhere)",
    )


def peers_of(text: str) -> tuple[str, ...]:
    """The peers named in a list with commas. Raises `argparse.ArgumentTypeError`."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is not known: name some of {', '.join(PEERS)}"
        )
    return names


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} rounds measure nothing: give 1 or more")
    return number


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for."""
    return Plan(
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        for_s=QUICK_ROW_S if arguments.quick else ROW_S,
        peers=arguments.peers,
        environments=arguments.envs,
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, draw, write; the exit code."""
    plan = plan_of(arguments)
    bench = Bench(plan, say=lambda text: print(text, file=sys.stderr, flush=True))
    load_before = round(os.getloadavg()[0], 2)
    rounds = bench.run()
    figures = [one.figures for one in rounds]
    judged = [judge(metric, figures, plan.peers) for metric in JUDGED]
    others = [judge(metric, figures, plan.peers) for metric in reported(plan.peers)]
    report.draw("bench messaging: against the targets", judged, with_p95=False)
    report.draw("bench messaging: as measured", others, with_p95=False)
    written = results.content(plan, judged, others, rounds, bench.facts, load_before)
    if arguments.json is not None:
        report.write(arguments.json, written)
        print(f"written to {arguments.json}")
    directory = arguments.results
    if directory is None and not arguments.quick:
        directory = Path(__file__).parents[1] / "results"
    if directory is not None:
        command = "python -m bench messaging" + (
            f" --peers {','.join(plan.peers)}" if plan.peers else ""
        )
        for path in results.write_page(directory, command, written, judged, others):
            print(f"written to {path}")
    return exit_code([*judged, *others])


def exit_code(rows: Sequence[report.Row]) -> int:
    """`NOT_MEASURED` before `MISSED` before `ALL_MET`."""
    if any(one.error for one in rows):
        return NOT_MEASURED
    return MISSED if any(one.met is False for one in rows) else ALL_MET
