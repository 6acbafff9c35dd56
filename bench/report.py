"""What every bench writes: one JSON object of one form, and a table of it for people.

Decides the form (`{"bench", "version", "settings", "machine", "rows"}`), the statistics of a row
and when a row is an error: a count that does not add up. Judges nothing else: a missed target is
a fact in the row, not a failure. Called by every bench.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric. `target` is the most it should be, or with `at_least` the least (None: there is
    none); `n` counts samples, `expected` those that were asked for: fewer make `error` say so."""

    metric: str
    unit: str
    n: int
    expected: int
    median: float | None
    min: float | None
    p95: float | None
    p99: float | None
    max: float | None
    target: float | None
    met: bool | None
    note: str
    at_least: bool = False
    error: str | None = None


def row(
    metric: str,
    unit: str,
    samples: Sequence[float],
    *,
    expected: int,
    target: float | None = None,
    at_least: bool = False,
    note: str = "",
    failures: Sequence[str] = (),
) -> Row:
    """The statistics of `samples`; `failures` tell why some are missing."""
    ordered = sorted(samples)
    error = None
    if len(ordered) != expected or failures:
        reasons = "; ".join(failures) or "no reason was given"
        error = f"{len(ordered)} of {expected} samples: {reasons}"
    median = statistics.median(ordered) if ordered else None
    return Row(
        metric=metric,
        unit=unit,
        n=len(ordered),
        expected=expected,
        median=_rounded(median),
        min=_rounded(ordered[0] if ordered else None),
        p95=_rounded(percentile(ordered, 95)),
        p99=_rounded(percentile(ordered, 99)),
        max=_rounded(ordered[-1] if ordered else None),
        target=target,
        met=None if target is None or median is None else _is_met(median, target, at_least),
        note=note,
        at_least=at_least,
        error=error,
    )


def _is_met(median: float, target: float, at_least: bool) -> bool:
    return median >= target if at_least else median <= target


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile of sorted samples; None when there are none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def report(bench: str, settings: Mapping[str, object], rows: Sequence[Row]) -> dict[str, object]:
    """The object that is written. `load` is the load average of the last minute."""
    return {
        "bench": bench,
        "version": project_version(),
        "settings": dict(settings),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        },
        "rows": [
            {key: value for key, value in asdict(one).items() if key != "error" or value}
            for one in rows
        ],
    }


def project_version() -> str:
    """The installed version, or `unknown` from a bare checkout."""
    try:
        return version("tenure")
    except PackageNotFoundError:
        return "unknown"


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write the object; a reader never meets half of it."""
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(content, indent=2) + "\n")
    half.replace(path)


def draw(title: str, rows: Sequence[Row], *, with_p95: bool = True) -> None:
    """The rows as a table under `title`; without `with_p95` where a handful of samples has none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console = console if console.is_terminal else Console(width=140)
    table = Table(title=title, title_justify="left", title_style="bold")
    spread = ("min", "p95", "max") if with_p95 else ("min", "max")
    for heading in ("metric", "n", "median", *spread, "target", "", "note"):
        table.add_column(
            heading,
            justify="left" if heading in ("metric", "note") else "right",
            no_wrap=heading == "metric",
        )
    for one in rows:
        verdict = {True: Text("met", "green"), False: Text("missed", "bold red"), None: Text("")}
        figures = (one.median, *(getattr(one, name) for name in spread))
        table.add_row(
            f"{one.metric}",
            f"{one.n}/{one.expected}",
            *("-" if figure is None else f"{shown(figure)} {one.unit}" for figure in figures),
            target_of(one),
            verdict[one.met],
            Text(one.error, "bold red") if one.error else Text(one.note),
        )
    console.print(table)


def target_of(one: Row) -> str:
    """The target as it is read: `≤ 0.5 s`; empty without one."""
    if one.target is None:
        return ""
    return f"{'≥' if one.at_least else '≤'} {shown(one.target)} {one.unit}"


def shown(value: float) -> str:
    """Four digits, and no powers of ten: `1,903,000` as well as `0.2924`."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value))))
        return f"{round(value, 4 - digits):,.0f}"
    return f"{value:.4g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
