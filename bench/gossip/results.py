"""What is left of the gossip benches: one page with a section per experiment, and its plots.

Decides the form of the page and that running one experiment replaces its section alone; the list
at the top is gathered from the sections. Decides no figure and no target. Called by `simulate` and
`processes`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import report
from bench.report import Row, shown, target_of

RESULTS = Path(__file__).parents[1] / "results"
PAGE = "gossip.md"
SIMULATED, REAL = "S", "R"
TITLES = {
    "S1": "a silent crash",
    "S2": "a crash that the kernels tell",
    "S3": "members that stall again and again",
    "S4": "members that stall once",
    "S5": "packet loss",
    "S6": "several faulty members at once",
    "S7": "many join one seed",
    "S8": "a third restarts at once",
    "S9": "a partition heals",
    "S10": "one rumour spreads",
    "R1": "kill -9",
    "R2": "a process is stopped and goes on",
    "R3": "all join at once",
    "R4": "nothing happens",
    "R5": "a member leaves, and comes back",
    "R6": "packet loss",
    "R7": "a blocked event loop, a bulk stream",
    "speed": "the simulator itself",
}
INTRODUCTION = """\
# Membership, measured

S: the product's own machines on a simulated network, in virtual time; the same seed gives the same
figures anywhere. R: real processes on one machine; absolute figures move with it. A section is
replaced when its experiment is run again; this is its command.
"""
SUMMARY = "## Against the targets"
HEADING = re.compile(r"^## (\w+): ", re.MULTILINE)
TABLE_HEAD = (
    "| metric | median | range | n | target | | |",
    "| --- | ---: | ---: | ---: | ---: | --- | --- |",
)


def write_section(
    directory: Path,
    experiment: str,
    command: str,
    rows: Sequence[Row],
    plot: str | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Replace the section of one experiment (a key of `TITLES`); returns the paths written.

    plot: the text of an SVG, kept beside the page as `gossip-S3.svg`. notes: sentences below the
    table. Two benches that write at once wait for each other.
    """
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / PAGE
    written = [page]
    with _alone(directory):
        picture = None
        if plot is not None:
            picture = directory / f"gossip-{experiment}.svg"
            _replace(picture, plot)
            written.append(picture)
        sections = _sections(page.read_text() if page.exists() else "")
        sections[experiment] = _section(experiment, command, rows, picture, notes)
        _replace(page, _page(sections))
    return written


def _section(
    experiment: str, command: str, rows: Sequence[Row], picture: Path | None, notes: Sequence[str]
) -> str:
    title = TITLES[experiment]
    lines = [f"## {experiment}: {title}\n", f"    {command}\n", f"{machine()}\n"]
    if picture is not None:
        lines.append(f"![{experiment}: {title}]({picture.name})\n")
    lines += [*TABLE_HEAD, *map(line, rows), ""]
    lines += [f"{note}\n" for note in notes]
    return "\n".join(lines).rstrip() + "\n"


def line(row: Row) -> str:
    """A row of a table that begins with `TABLE_HEAD`."""
    verdict = {True: "met", False: "**missed**", None: ""}[row.met]
    note = f"**{row.error}**" if row.error else row.note
    cells = (
        f"`{row.metric}`",
        "-" if row.median is None else f"{shown(row.median)} {row.unit}",
        "-" if row.min is None or row.max is None else f"{shown(row.min)} … {shown(row.max)}",
        f"{row.n}" if row.n == row.expected else f"{row.n} of {row.expected}",
        target_of(row),
        verdict,
        note.replace("|", "\\|").replace("\n", " "),
    )
    return "| " + " | ".join(cells) + " |"


def machine() -> str:
    """What figures were made on, and when: a sentence."""
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, load {load:.1f}; tenure {report.project_version()} on Python "
        f"{platform.python_version()}. Made {time.strftime('%Y-%m-%d')}."
    )


def _sections(text: str) -> dict[str, str]:
    """The sections of a page by experiment; anything else of it is written anew."""
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)] * bool(found)
    return {
        match[1]: text[match.start() : end]
        for match, end in zip(found, ends, strict=True)
        if match[1] in TITLES
    }


def _page(sections: dict[str, str]) -> str:
    ordered = [sections[experiment].rstrip() for experiment in TITLES if experiment in sections]
    judged = [line for section in ordered for line in section.splitlines() if _has_target(line)]
    parts = [INTRODUCTION.rstrip()]
    if judged:
        parts.append("\n".join([f"{SUMMARY}\n", *TABLE_HEAD, *judged]))
    return "\n\n".join([*parts, *ordered]) + "\n"


def _has_target(line: str) -> bool:
    return line.startswith("| `") and re.search(r"\| [≤≥] ", line) is not None


def _replace(path: Path, text: str) -> None:
    """A reader never meets half of it."""
    half = path.with_name(path.name + ".part")
    half.write_text(text)
    half.replace(path)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else rewrites the page meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
