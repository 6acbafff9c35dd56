"""Pages of results that are written section by section: a cell that runs again replaces its own.

Decides the form of such a page. Called by the benches that have one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.gossip import results as gossip
from bench.report import Row

RESULTS = Path(__file__).parent / "results"
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def write_section(
    page: Path,
    introduction: str,
    cell: str,
    command: str,
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Path:
    """Replace the section `cell` of `page`, or add it; all are sorted. Returns the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else ""
    heads = list(HEADING.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)] * bool(heads)
    sections = {
        head[1]: text[head.start() : end].rstrip() for head, end in zip(heads, ends, strict=True)
    }
    lines = [f"## {cell}\n", f"    {command}\n", f"{gossip.machine()}\n"]
    if "--quick" in command:
        lines.append("**One round: not to be quoted.**\n")
    lines += [*gossip.TABLE_HEAD, *map(gossip.line, rows), ""]
    lines += [f"{note}\n" for note in notes]
    sections[cell] = "\n".join(lines).rstrip()
    ordered = [introduction.rstrip(), *(sections[name] for name in sorted(sections))]
    half = page.with_name(page.name + ".part")
    half.write_text("\n\n".join(ordered) + "\n")
    half.replace(page)
    return page
