"""The rows of the partition bench, and its page.

Decides the targets, the notes and the form of the page: a section per cell (a fault, at a preset
and a size), which running that cell again replaces. Called by `bench.partition.command`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import pages, report
from bench.partition.rounds import Samples
from bench.report import Row

RESULTS = Path(__file__).parents[1] / "results"
PAGE = "partition.md"
INTRODUCTION = """\
# Partitions, measured

Real processes on one machine, cut apart, paused and killed. What acted, and when, is what the
subject actor itself wrote. A section is replaced when its cell is run again; this is its command.
"""

SIDE_OF_THREE = (7, 8)
"""So many members have a losing side of three."""

CONTACT_LOSSES_MAX = {"flap, calm": 0.0, "flap, loss": 3.0, "flap, joins": 10.0}

UNITS = {
    "survivor_sides": "",
    "steps_after_pause": "",
    "contact_losses_per_hour": "/h",
    "frames_per_s": "/s",
}
NOTES = {
    "survivor_sides": "sides that live",
    "acting_overlap_s": "steps begun by two instances",
    "overrun_s": "a step begun before that ran on while the new instance acted",
    "new_instance_s": "fault → first step of the new instance",
    "loser_exit_s": "fault → exit of the last loser",
    "loser_exit_from_detection_s": "the last unreachable it saw itself → its exit",
    "steps_after_pause": "steps between SIGCONT and the exit",
    "exit_after_pause_s": "SIGCONT → exit",
    "link_silence_s": "longest time without a step while one link is cut",
    "contact_losses_per_hour": "authority lost on a host that is well",
    "frames_per_s": "control frames sent per node",
}


def target(metric: str, fault: str, preset: str, members: int, one_host: bool) -> float | None:
    """What a figure should be at most; None where nothing is asked of it."""
    down_after_s = 10.0 if preset == "wan" else 5.0
    match metric:
        case "survivor_sides":
            return 1.0
        case "acting_overlap_s" | "steps_after_pause":
            return 0.0
        case "new_instance_s" if fault == "crash":
            return 0.6 if one_host else None
        case "new_instance_s" if preset == "wan":
            return 35.0
        case "new_instance_s" if fault == "side":
            return 15.0 if members in SIDE_OF_THREE else None
        case "new_instance_s":
            return 10.0
        case "contact_losses_per_hour":
            return CONTACT_LOSSES_MAX.get(fault)
        case "loser_exit_from_detection_s":
            return down_after_s + 1.0
    return None


def rows_of(
    samples: Samples, fault: str, preset: str, members: int, where: str, one_host: bool
) -> list[Row]:
    """A row per metric that was asked for; what two instances did is judged by the worst."""
    found = []
    for metric, expected in samples.asked.items():
        limit = target(metric, fault, preset, members, one_host)
        values = samples.values.get(metric, [])
        text = f"{fault}, N={members}, {preset}; {NOTES[metric]}; {where}"
        lacking = len(values) != expected
        one = report.row(
            metric,
            UNITS.get(metric, "s"),
            values,
            expected=expected,
            target=limit,
            note=text,
            failures=samples.failures if lacking or metric == "survivor_sides" else (),
        )
        found.append(_judged_by_all(one, metric))
    return found


def _judged_by_all(one: Row, metric: str) -> Row:
    """One round in which two acted is one too many, whatever the median; no side is a miss too."""
    if metric not in ("survivor_sides", "acting_overlap_s", "steps_after_pause"):
        return one
    values = {name: getattr(one, name) for name in one.__slots__}
    if one.max is not None and one.target is not None:
        exact = metric != "survivor_sides" or one.min == one.target
        values["met"] = one.max <= one.target and exact
    return Row(**values)


def write_section(
    directory: Path, cell: str, command: str, rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    """Replace the section of one cell; the path written."""
    return pages.write_section(directory / PAGE, INTRODUCTION, cell, command, rows, notes)
