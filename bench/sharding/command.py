"""`python -m bench sharding`: what entities cost, and what befalls them.

Decides how much of everything a run does, and where the figures go. Called by `bench.__main__`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import report
from bench.messaging.child import NotMeasuredError
from bench.pages import write_section
from bench.sharding import costs, faults
from bench.sharding.results import METRICS, Results

PARTS = ("speed", "spread", "rolling", "kill9", "lease")
INTRODUCTION = """# Sharding, measured

Real processes on one machine. What entities did, and when, is what they wrote themselves. A section
is replaced when it is measured again; this is its command.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much a run does."""

    pairs: int = 15
    pair_s: float = 0.5
    rolls: int = 3
    rolling_hosts: int = 5
    restarts: int = 5
    share: float = 0.5
    ids: int = 1000
    per_s: float = 2000.0
    rounds: int = 10
    ttl_s: float = 3.0
    lost_s: float = 10.0


QUICK = Extent(
    pairs=1,
    pair_s=0.2,
    rolls=1,
    rolling_hosts=2,
    restarts=1,
    share=0.01,
    ids=100,
    per_s=200.0,
    rounds=1,
    ttl_s=2.0,
    lost_s=2.0,
)
QUICK_ENTITIES = 4000
KILL_IDS, KILL_EVERY_S = 40, 0.025
LEASE_IDS, LEASE_PER_S, NEW_IDS = 100, 400.0, 40
METRICS_OF = {
    "speed": tuple(metric for metric, *_ in costs.RATIOS),
    "spread": (
        "shard_spread",
        "shard_spread_settled_s",
        "entity_bytes",
        "entities_built_per_s",
    ),
    **{
        part: tuple(metric for metric in METRICS if metric.startswith(prefix))
        for part, prefix in (
            ("rolling", "rolling_restart_"),
            ("kill9", "kill9_"),
            ("lease", "lease_loss_"),
        )
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,…", help=", ".join(PARTS))
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="members (3)")
    parser.add_argument("--entities", type=int, metavar="N", help="built for their memory (100000)")
    parser.add_argument("--asks-per-s", type=float, metavar="N", help="of a rolling restart (2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--out", type=Path, metavar="DIR", help="sharding.{json,md} here")
    parser.add_argument("--quick", action="store_true", help="a smoke run, not to be quoted")


def run(arguments: argparse.Namespace) -> int:
    """Run the parts, write and draw; 1 when a count does not add up, 2 for a wrong call."""
    from rich.progress import Progress

    extent = QUICK if arguments.quick else Extent()
    per_s = arguments.asks_per_s or extent.per_s
    entities = arguments.entities or (QUICK_ENTITIES if arguments.quick else 100_000)
    wanted = [part for part in PARTS if part in arguments.parts.split(",")]
    if not wanted or arguments.nodes < 2 or entities <= costs.WARM_ENTITIES:
        print(
            f"--parts names none of {', '.join(PARTS)}, --nodes is less than 2, or --entities not "
            f"more than {costs.WARM_ENTITIES}",
            file=sys.stderr,
        )
        return 2
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results()
    steps = {
        "speed": extent.pairs * len(costs.RATIOS),
        "rolling": extent.rolls * extent.restarts,
        "kill9": extent.rounds,
    }
    with Progress(disable=not sys.stderr.isatty()) as progress:
        for part in wanted:
            bar = progress.add_task(part, total=steps.get(part, 1))
            _expect(results, part, extent)
            run_part = _runs(arguments.nodes, entities, per_s, extent)[part]
            with tempfile.TemporaryDirectory(prefix="tenure-bench-") as directory:
                try:
                    run_part(Path(directory), results, partial(progress.advance, bar))
                except NotMeasuredError as error:
                    results.fail(str(error), *METRICS_OF[part])
            progress.update(bar, completed=steps.get(part, 1))
    rows = results.rows()
    settings = {
        "parts": wanted, "nodes": arguments.nodes, "entities": entities, "asks_per_s": per_s,
        "rolling_hosts": extent.rolling_hosts, "quick": arguments.quick,
    }  # fmt: skip
    content = report.report("sharding", settings, rows)
    report.draw("bench sharding", rows)
    for path in filter(None, (arguments.json, arguments.out and arguments.out / "sharding.json")):
        report.write(path, content)
    if arguments.out is not None:
        quick = " --quick" if arguments.quick else ""
        command = (
            f"python -m bench sharding --parts {','.join(wanted)} --nodes {arguments.nodes} "
            f"--entities {entities} --asks-per-s {per_s:g}{quick} --out DIR"
        )
        cell = f"{arguments.nodes} nodes, {entities:,} entities"
        write_section(
            arguments.out / "sharding.md", INTRODUCTION, cell, command, rows, results.absolute()
        )
    return 1 if any(row.error for row in rows) else 0


def _expect(results: Results, part: str, extent: Extent) -> None:
    each = {"speed": extent.pairs, "rolling": extent.rolls, "kill9": extent.rounds}.get(part, 1)
    for metric in METRICS_OF[part]:
        results.ask(1 if metric == "kill9_overlaps" else each, metric)


Part = Callable[[Path, Results, Callable[[], None]], None]


def _runs(nodes: int, entities: int, per_s: float, extent: Extent) -> dict[str, Part]:
    """What each part does, in a directory of its own."""

    def speed(directory: Path, results: Results, one_more: Callable[[], None]) -> None:
        costs.speed(directory, extent.pairs, extent.pair_s, results, one_more)

    def spread(directory: Path, results: Results, _: Callable[[], None]) -> None:
        costs.spread_and_memory(directory, nodes, entities, results)

    def rolling(directory: Path, results: Results, one_more: Callable[[], None]) -> None:
        for number in range(extent.rolls):
            own = directory / str(number)
            own.mkdir()
            faults.rolling(
                own,
                hosts=extent.rolling_hosts,
                ids=extent.ids,
                per_s=per_s,
                restarts=extent.restarts,
                share=extent.share,
                results=results,
                one_more=one_more,
            )

    def kill9(directory: Path, results: Results, one_more: Callable[[], None]) -> None:
        faults.kill9(
            directory,
            hosts=nodes,
            ids=KILL_IDS,
            per_s=KILL_IDS / KILL_EVERY_S,
            rounds=extent.rounds,
            results=results,
            one_more=one_more,
        )

    def lease(directory: Path, results: Results, _: Callable[[], None]) -> None:
        faults.lease_loss(
            directory,
            hosts=nodes,
            ids=LEASE_IDS,
            per_s=LEASE_PER_S,
            new_ids=NEW_IDS,
            ttl_s=extent.ttl_s,
            lost_s=extent.lost_s,
            results=results,
        )

    return {"speed": speed, "spread": spread, "rolling": rolling, "kill9": kill9, "lease": lease}
