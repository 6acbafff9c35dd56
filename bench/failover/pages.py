"""The results of the failover bench as pages: a matrix in Markdown, pictures, one HTML page.

Decides how they look, nothing that is measured. Called by `bench.failover.command`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from string import Template

from bench.failover.rounds import Picture
from bench.gossip.results import machine
from bench.report import Row, shown

LEVELS = {
    "none": "none",
    "downing": "downing",
    "lease": "downing + lease",
    "lease+guard": "the same, with the crash guard",
}
COLOURS = ("#2a6fbb", "#d9822b", "#3a9a5c", "#8e5bb5", "#b8433f")
HTML = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Failover, measured</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { border: 1px solid #ccc;
padding: .4rem .7rem; text-align: left } .two { background: #fbe3e1 } .one { background: #e5f4e9 }
img { max-width: 100% } code { background: #f3f3f3; padding: 0 .2rem }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6 }
.two { background: #4a2422 } .one { background: #1f3a29 } td, th { border-color: #444 }
code { background: #2a2d33 } img { background: #fff } }
</style>
<h1>Failover, measured</h1>
<p>Real processes, real faults, on one machine. $machine Each cell: how long nobody acted (median of
the rounds), and for how long two instances acted at once (the worst of all rounds).</p>
$matrix
$pictures
</html>
""")


def cell_of(rows: Sequence[Row], level: str, fault: str) -> dict[str, Row]:
    """The rows of one cell by metric."""
    about = f"{fault} at level {level};"
    return {row.metric: row for row in rows if row.note.startswith(about)}


def matrix(rows: Sequence[Row], levels: Sequence[str], faults: Sequence[str]) -> list[list[str]]:
    """Texts: a heading, then a line per fault."""
    lines = [["fault", *(LEVELS[level] for level in levels)]]
    for fault in faults:
        line = [fault]
        for level in levels:
            cell = cell_of(rows, level, fault)
            gap, overlap = cell.get("unavailable_s"), cell.get("acting_overlap_s")
            if gap is None or overlap is None or gap.median is None or overlap.max is None:
                line.append("–")
                continue
            two = f"**two act for {shown(overlap.max)} s**" if overlap.max > 0 else "never two"
            line.append(f"{shown(gap.median)} s without one; {two}")
        lines.append(line)
    return lines


def markdown(
    rows: Sequence[Row],
    levels: Sequence[str],
    faults: Sequence[str],
    command: str,
    notes: Sequence[str],
) -> str:
    """The page."""
    head, *body = matrix(rows, levels, faults)
    lines = [
        "# Failover, measured",
        "",
        f"    {command}",
        "",
        machine(),
        "",
        "How long nobody acted (median), and whether two instances did at once (worst round).",
        "",
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(line)} |" for line in body),
        "",
        "![one round of each cell](failover.svg)",
        "",
        *(f"{note}\n" for note in notes),
        "| cell | metric | median | least … most | n | target | | predicted |",
        "| --- | --- | ---: | --- | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        about, _, rest = row.note.partition("; ")
        predicted = rest.partition("predicted ")[2]
        figures = [
            "–" if value is None else shown(value) for value in (row.median, row.min, row.max)
        ]
        met = {True: "met", False: "**missed**", None: ""}[row.met]
        target = "" if row.target is None else f"≤ {shown(row.target)}"
        lines.append(
            f"| {about} | `{row.metric}` | {figures[0]} {row.unit} | {figures[1]} … {figures[2]} | "
            f"{row.n} | {target} | {row.error or met} | {predicted} |"
        )
    return "\n".join(lines) + "\n"


def page(rows: Sequence[Row], levels: Sequence[str], faults: Sequence[str], pictures: Path) -> str:
    """The HTML page; it shows the picture beside it."""
    head, *body = matrix(rows, levels, faults)
    table = ["<table><tr>" + "".join(f"<th>{html.escape(text)}</th>" for text in head) + "</tr>"]
    for line in body:
        cells = [f"<th>{html.escape(line[0])}</th>"]
        for text in line[1:]:
            kind = "two" if "**" in text else "one" if "never" in text else ""
            cells.append(f'<td class="{kind}">{html.escape(text.replace("**", ""))}</td>')
        table.append("<tr>" + "".join(cells) + "</tr>")
    return HTML.substitute(
        machine=html.escape(machine()),
        matrix="\n".join([*table, "</table>"]),
        pictures=f'<img src="{html.escape(pictures.name)}" alt="one round of each cell">',
    )


def draw(pictures: dict[tuple[str, str], Picture], file: Path) -> None:
    """One timeline per cell: bars are times in which an instance acted, a row per node."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = max(1, len(pictures))
    figure, axes = plt.subplots(count, 1, figsize=(9, 1.5 * count + 0.4), squeeze=False)
    for axis, ((level, fault), picture) in zip(axes[:, 0], pictures.items(), strict=False):
        nodes = sorted(set(picture.node_of.values()))
        names = list(picture.node_of)
        for name, begin, end in picture.spans:
            row = nodes.index(picture.node_of[name])
            colour = COLOURS[names.index(name) % len(COLOURS)]
            axis.broken_barh([(begin, max(end - begin, 0.05))], (row - 0.35, 0.7), color=colour)
        for mark in picture.marks:
            axis.axvline(mark.at_s, color="#b8433f", linewidth=1)
            axis.annotate(
                mark.what, (mark.at_s, len(nodes) - 0.4), fontsize=7, color="#b8433f",
                xytext=(2, 0), textcoords="offset points",
            )  # fmt: skip
        axis.set_yticks(range(len(nodes)), [f"node {chr(ord('a') + n)}" for n in range(len(nodes))])
        axis.set_ylim(-0.6, len(nodes))
        axis.set_title(f"{fault}, level {LEVELS[level]}", loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[-1, 0].set_xlabel("seconds since the fault; a bar: an instance acts", fontsize=8)
    figure.tight_layout()
    figure.savefig(
        file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    plt.close(figure)
