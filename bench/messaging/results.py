"""What is left of a run: the object that is written, the page with its table, and the plot.

Decides their form. Decides no figure and no target. Called by `command`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import report
from bench.messaging import plot
from bench.messaging.environments import PEERS
from bench.messaging.rounds import Plan
from bench.messaging.rounds import Round as RoundTaken
from bench.report import Row, shown, target_of

PACKAGES = ("pyzmq", "msgpack", "uvloop")
PAGE = "messaging.md"
PLOT = "messaging.svg"
INTRODUCTION = """\
# Messages, measured

One driver, one kind of event loop (uvloop) and one run for all sides, two processes on loopback.
Within a round each row is taken on one side after the other; ratios are made within a round, and
the median of the rounds counts. Every receiver counts what it gets and checks the order; a row
whose counts differ has no figure. Absolute figures move with the machine, ratios much less.

    {command}

{machine}. Made {date}.
"""


def settings_of(plan: Plan, load_before: float) -> dict[str, object]:
    """The settings of a run, as they are written; `load_before` tells whether we were alone."""
    return {
        "load_before": load_before,
        "rounds": plan.rounds,
        "row_s": plan.for_s,
        "peers": list(plan.peers),
        "loop": "uvloop",
        "rows": sorted(plan.only) or "all",
    }


def content(
    plan: Plan,
    judged: Sequence[Row],
    reported: Sequence[Row],
    rounds: Sequence[RoundTaken],
    facts: Mapping[str, Any],
    load_before: float,
) -> dict[str, object]:
    """The common form of all benches, and beside it `metrics` (name → median, null without one),
    `sides` (what runs there), `rounds` (every figure, or the reason that there is none)."""
    return report.report("messaging", settings_of(plan, load_before), [*judged, *reported]) | {
        "metrics": {one.metric: one.median for one in [*judged, *reported]},
        "packages": packages(),
        "sides": dict(facts),
        "rounds": [
            {f"{side}/{row}": figures for (side, row), figures in one.figures.items()}
            for one in rounds
        ],
    }


def packages() -> dict[str, str]:
    """The versions of what our side is made of."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def write_page(
    directory: Path,
    command: str,
    written: Mapping[str, Any],
    judged: Sequence[Row],
    reported: Sequence[Row],
) -> list[Path]:
    """The page and the plot; the paths written."""
    directory.mkdir(parents=True, exist_ok=True)
    picture, page = directory / PLOT, directory / PAGE
    picture.write_text(plot.svg([*judged, *reported]))
    date = time.strftime("%Y-%m-%d")
    lines = [
        INTRODUCTION.format(command=command, machine=_machine(written), date=date),
        f"![the sides as bars, with the range of the rounds]({PLOT})\n",
    ]
    lines += ["## Against the targets\n", *_table(judged), ""]
    lines += ["## As measured\n", *_table(reported), ""]
    page.write_text("\n".join(lines))
    return [page, picture]


def _machine(written: Mapping[str, Any]) -> str:
    machine, sides = written["machine"], written["sides"]
    peers = [
        f"{name} {_package(sides[name], name)} on Python {sides[name].get('python', '?')}"
        for name in PEERS
        if name in sides
    ]
    ours = ", ".join(f"{name} {number}" for name, number in written["packages"].items())
    return (
        f"{machine['cores']} cores, load {written['settings']['load_before']} before; "
        f"tenure {written['version']} on Python {machine['python']} with {ours}"
        + "".join(f"; {peer}" for peer in peers)
    )


def _package(side: Mapping[str, Any], name: str) -> str:
    found = (line.split("==") for line in side.get("packages", ()) if "==" in line)
    return next((number for package, number in found if package.lower() == name), "not installed")


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| metric | median | range | n | target | | |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for one in rows:
        verdict = {True: "met", False: "**missed**", None: ""}[one.met]
        if one.error:
            verdict = "**incomplete**"
        span = "" if one.n == 0 else f"{_number(one.min)} … {_number(one.max)}"
        median = f"{_number(one.median)} {one.unit}"
        cells = (f"`{one.metric}`", median, span, one.n, target_of(one), verdict)
        lines.append(f"| {' | '.join(map(str, cells))} | {one.error or one.note} |")
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else shown(value)
