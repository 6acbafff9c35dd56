"""The plot of a run: a panel for each kind of figure, a bar for each side, as plain SVG.

Decides the looks alone; the same rows give the same bytes. Bars need no plotting library, and a
reader of the page needs no script. Called by `results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from bench.messaging.environments import PEERS
from bench.messaging.table import CURVE, OURS, RAW
from bench.report import Row, shown

PANELS = (
    ("ask_p50_us", "one ask at a time: median, µs (less is better)"),
    ("asks64_per_s", "asks per second, 64 outstanding"),
    ("asks1024_per_s", "asks per second, 1,024 outstanding"),
    ("tell_per_s", "tells of 100 B per second"),
    ("bulk_64k_mb_per_s", "tells of 64 KiB, MB/s"),
    ("bulk_1m_mb_per_s", "tells of 1 MiB, MB/s"),
)
COLUMNS = 2
SIDES = (("remote", OURS), ("curve", CURVE), *((name, name) for name in PEERS), ("raw", RAW))
COLOURS = {OURS: "#1f6f5c", CURVE: "#7db8a6", RAW: "#9a9a9a"}
PEER_COLOUR = "#c8894b"

PANEL_WIDTH = 500
LABELS_WIDTH = 130
BARS_WIDTH = 270
TITLE_HEIGHT = 34
BAR_HEIGHT = 15
BAR_STEP = 22
MARGIN = 16
FONT = "font: 12px system-ui, sans-serif; fill: #222"


class _Bar(NamedTuple):
    label: str
    row: Row


def svg(rows: Sequence[Row]) -> str:
    """The picture; a side without figures has no bar."""
    by_name = {one.metric: one for one in rows if one.median is not None}
    panels = [(title, _bars(by_name, suffix)) for suffix, title in PANELS]
    most = max(len(bars) for _, bars in panels)
    height = TITLE_HEIGHT + most * BAR_STEP + MARGIN
    width = COLUMNS * PANEL_WIDTH + 2 * MARGIN
    whole = height * -(-len(panels) // COLUMNS) + 2 * MARGIN
    picture = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {whole}",
            "width": str(width),
            "height": str(whole),
            "style": FONT,
        },
    )
    _add(picture, "rect", width=width, height=whole, fill="#fff")
    for place, (title, bars) in enumerate(panels):
        x = MARGIN + place % COLUMNS * PANEL_WIDTH
        y = MARGIN + place // COLUMNS * height
        _draw_panel(picture, x, y, title, bars)
    ElementTree.indent(picture)
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def _bars(by_name: Mapping[str, Row], suffix: str) -> list[_Bar]:
    return [
        _Bar(label, by_name[f"{prefix}_{suffix}"])
        for prefix, label in SIDES
        if f"{prefix}_{suffix}" in by_name
    ]


def _draw_panel(
    picture: ElementTree.Element, x: float, y: float, title: str, bars: Sequence[_Bar]
) -> None:
    _add(picture, "text", title, x=x, y=y + 14, style="font-weight: 600")
    longest = max((bar.row.max or 0.0 for bar in bars), default=0.0) or 1.0
    left = x + LABELS_WIDTH
    for place, (label, row) in enumerate(bars):
        top = y + TITLE_HEIGHT + place * BAR_STEP - 8
        middle = top + BAR_HEIGHT / 2
        assert row.median is not None
        assert row.min is not None
        assert row.max is not None
        length, least, most = (
            value / longest * BARS_WIDTH for value in (row.median, row.min, row.max)
        )
        colour = COLOURS.get(label, PEER_COLOUR)
        _add(picture, "text", label, x=left - 8, y=middle + 4, **{"text-anchor": "end"})
        _add(picture, "rect", x=left, y=top, width=length, height=BAR_HEIGHT, fill=colour)
        # The range of the rounds.
        _add(picture, "rect", x=left + least, y=middle - 1, width=most - least, height=2)
        _add(picture, "text", shown(row.median), x=left + most + 8, y=middle + 4)


def _add(parent: ElementTree.Element, tag: str, text: str = "", **attributes: object) -> None:
    written = {
        name: f"{value:.1f}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
    }
    ElementTree.SubElement(parent, tag, written).text = text or None
