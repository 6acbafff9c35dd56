"""Plots of the gossip benches as plain SVG: lines over an axis, or groups of bars.

Decides the looks alone; the same figures give the same bytes, and neither a plotting library nor a
script is needed. Called by the experiments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from bench.report import shown

COLOURS = ("#1f6f5c", "#c8894b", "#4b6fc8", "#9a4bc8", "#7d7d7d", "#c84b62")
FONT = "font: 12px system-ui, sans-serif; fill: #222"
WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 76, 150, 44, 48
TICKS = 5

Point = tuple[float, float]


class Axis(NamedTuple):
    """What an axis says, and whether it is logarithmic."""

    label: str
    is_log: bool = False


class _Scale:
    """Values to pixels."""

    def __init__(self, values: Sequence[float], axis: Axis, begin: float, end: float) -> None:
        self._log, self._begin, self._end = axis.is_log, begin, end
        kept = [value for value in values if value > 0] if axis.is_log else [0.0, *values]
        low, high = min(kept, default=1.0), max(kept, default=1.0)
        if axis.is_log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        if high <= low:
            high = low * 10 if axis.is_log else low + 1
        self._low, self._high = low, high

    def at(self, value: float) -> float:
        if self._log:
            # A logarithmic axis has no 0: it is drawn at the lower end.
            value = max(value, self._low)
            share = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def marks(self) -> list[float]:
        if self._log:
            count = round(math.log10(self._high / self._low))
            return [self._low * 10**power for power in range(count + 1)]
        step = (self._high - self._low) / TICKS
        size = 10 ** math.floor(math.log10(step))
        step = next(size * nice for nice in (1, 2, 5, 10) if size * nice >= step)
        return [index * step for index in range(int(self._high / step) + 1)]


def lines(
    title: str, x: Axis, y: Axis, series: Mapping[str, Sequence[Point]], *,
    limit: float | None = None,
) -> str:  # fmt: skip
    """A line with points for each name; `limit` is drawn across, dashed."""
    points = [point for one in series.values() for point in one]
    across = _Scale([point[0] for point in points], x, LEFT, WIDTH - RIGHT)
    heights = [point[1] for point in points] + ([] if limit is None else [limit])
    up = _Scale(heights, y, HEIGHT - BOTTOM, TOP)
    picture = _picture(title)
    _draw_height(picture, y, up)
    for value in sorted({point[0] for point in points}):
        _text(picture, shown(value), across.at(value), HEIGHT - BOTTOM + 18, "middle")
    _text(picture, x.label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "middle")
    for place, (name, one) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        drawn = [(across.at(point[0]), up.at(point[1])) for point in sorted(one)]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in drawn)
        _add(picture, "polyline", points=path, fill="none", stroke=colour, **{"stroke-width": "2"})
        for left, top in drawn:
            _add(picture, "circle", cx=left, cy=top, r=3, fill=colour)
        _legend(picture, place, name, colour)
    _draw_limit(picture, up, limit)
    return _written(picture)


def bars(
    title: str, y: Axis, groups: Mapping[str, Mapping[str, float]], *, limit: float | None = None
) -> str:
    """For each group a bar per name; the value above it."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    heights = [value for group in groups.values() for value in group.values()]
    up = _Scale(heights + ([] if limit is None else [limit]), y, HEIGHT - BOTTOM, TOP)
    picture = _picture(title)
    _draw_height(picture, y, up)
    group_width = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    bar_width = min(48.0, group_width * 0.8 / max(1, len(names)))
    for column, (label, group) in enumerate(groups.items()):
        middle = LEFT + (column + 0.5) * group_width
        begin = middle - bar_width * len(names) / 2
        _text(picture, label, middle, HEIGHT - BOTTOM + 18, "middle")
        for place, name in enumerate(names):
            if name not in group:
                continue
            top, left = up.at(group[name]), begin + place * bar_width
            _add(
                picture, "rect", x=left, y=top, width=bar_width * 0.9,
                height=HEIGHT - BOTTOM - top, fill=COLOURS[place % len(COLOURS)],
            )  # fmt: skip
            _text(picture, shown(group[name]), left + bar_width * 0.45, top - 4, "middle")
    for place, name in enumerate(names):
        _legend(picture, place, name, COLOURS[place % len(COLOURS)])
    _draw_limit(picture, up, limit)
    return _written(picture)


def _picture(title: str) -> ElementTree.Element:
    picture = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {HEIGHT}",
            "width": str(WIDTH),
            "height": str(HEIGHT),
            "style": FONT,
        },
    )
    _add(picture, "rect", width=WIDTH, height=HEIGHT, fill="#fff")
    _add(picture, "text", title, x=LEFT, y=20, style="font-weight: 600")
    return picture


def _draw_height(picture: ElementTree.Element, axis: Axis, scale: _Scale) -> None:
    for value in scale.marks():
        top = scale.at(value)
        _add(picture, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=top, y2=top, stroke="#ddd")
        _text(picture, shown(value), LEFT - 8, top + 4, "end")
    _add(picture, "text", axis.label, x=LEFT - 62, y=TOP - 10)


def _draw_limit(picture: ElementTree.Element, scale: _Scale, limit: float | None) -> None:
    if limit is None:
        return
    top = scale.at(limit)
    _add(
        picture, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=top, y2=top, stroke="#b00020",
        **{"stroke-dasharray": "6 4"},
    )  # fmt: skip
    _text(picture, f"target {shown(limit)}", WIDTH - RIGHT + 8, top + 4, "start")


def _legend(picture: ElementTree.Element, place: int, name: str, colour: str) -> None:
    top = TOP + 16 * place
    _add(picture, "rect", x=WIDTH - RIGHT + 12, y=top - 9, width=10, height=10, fill=colour)
    _text(picture, name, WIDTH - RIGHT + 28, top, "start")


def _text(picture: ElementTree.Element, text: str, x: float, y: float, anchor: str) -> None:
    _add(picture, "text", text, x=x, y=y, **{"text-anchor": anchor})


def _written(picture: ElementTree.Element) -> str:
    ElementTree.indent(picture)
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def _add(parent: ElementTree.Element, tag: str, text: str = "", **attributes: object) -> None:
    written = {
        name: f"{value:.1f}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
    }
    ElementTree.SubElement(parent, tag, written).text = text or None
