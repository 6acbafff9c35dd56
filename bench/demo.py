"""`make demo`: three real processes, kill -9 of the host, then a graceful leave, told live; then
one fault at each of the three levels, side by side (`bench.demo_levels`).

Decides the order of the acts and how they are shown. Every instant comes from the members' own
histories (CLOCK_BOOTTIME). Exits 0 when both hand-overs happened, 1 with the members' logs when
not, 130 on Ctrl-C; in every case none of its processes is left.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench import demo_levels
from bench.processes import Line, Member, Members, NotSeenError
from node.history import boottime_s

SINGLETON = "counter"
CALM_S = 1.5  # between two acts, so that an eye can follow
COLOURS = {"a": "cyan", "b": "magenta", "c": "yellow"}
CELLS = 64

HOSTS, RUNS, ENDED, NOT_YET = "█", "─", " ", " "


class Stage:
    """Shows what the members write while it happens: a line per fact, and a bar per member."""

    def __init__(self, members: Members, console: Console, live: Live) -> None:
        self.begun_at_s = boottime_s()
        self._members = members
        self._console = console
        self._live = live
        self._shown: dict[str, int] = {}
        self._ends: dict[str, tuple[float, str]] = {}

    def say(self, text: str, style: str = "bold") -> None:
        """A line of the narrator."""
        self._console.print(Text(text, style))

    def wait(self, what: str, fact: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        """Wait for a fact, and show what happens meanwhile."""

        def shown_and_true() -> Any:
            self.show()
            return fact()

        return self._members.wait(what, shown_and_true, timeout_s)

    def calm(self) -> None:
        """Let the audience look."""
        until = boottime_s() + CALM_S
        self.wait("time passes", lambda: boottime_s() > until)

    def ended(self, member: Member, at_s: float, how: str) -> None:
        """Remember the end of a member, for its bar."""
        self._ends[member.name] = (at_s, how)

    def show(self) -> None:
        """Print the facts that are new, in the order of their instants."""
        fresh: list[tuple[Line, Member]] = []
        for member in self._members.members:
            lines = member.history()
            fresh += [(line, member) for line in lines[self._shown.get(member.name, 0) :]]
            self._shown[member.name] = len(lines)
        for line, member in sorted(fresh, key=lambda pair: pair[0].at_s):
            words = self._words(line)
            if words is not None:
                self.fact(line.at_s, member, *words)
        self._live.update(self.bars())

    def fact(self, at_s: float, member: Member, text: str, style: str = "") -> None:
        """One line of the timeline."""
        line = Text(f"{at_s - self.begun_at_s:8.3f} s  ", "dim")
        line.append(f"{member.name}  ", COLOURS[member.name]).append(text, style)
        self._console.print(line)

    def bars(self) -> Text:
        """One bar per member over the whole time: alive, hosting, ended."""
        now_s = boottime_s()
        cell_s = max(now_s - self.begun_at_s, 1.0) / CELLS
        text = Text()
        for member in self._members.members:
            end_at_s, how = self._ends.get(member.name, (now_s, ""))
            spans = _hosting(member, end_at_s)
            text.append(f"  {member.name} ", COLOURS[member.name])
            for cell in range(CELLS):
                at_s = self.begun_at_s + (cell + 1) * cell_s
                text.append(_mark(member, at_s, cell_s, end_at_s, spans), COLOURS[member.name])
            text.append(f" {how}\n", "dim")
        text.append(f"    {HOSTS} hosts the counter   {RUNS} runs", "dim")
        return text

    def _words(self, line: Line) -> tuple[str, str] | None:
        """How a fact reads; None for those the demo does not tell."""
        names = {member.address: member.name for member in self._members.members}
        about = names.get((line.detail.split() or [""])[0], "?")
        if line.singleton == SINGLETON:
            words = {"started": "hosts the counter", "stopped": "has stopped the counter"}
            return (words[line.event], "bold green") if line.event in words else None
        if line.event == "bound":
            return f"listens on {line.node}", ""
        if line.event == "member_up":
            return f"sees {about} up", "dim"
        if line.event == "member_removed":
            return f"sees {about} gone", "dim"
        return None


def play(members: Members, stage: Stage) -> tuple[float, float]:
    """The acts. Returns the gap after SIGKILL and that after the leave, both in seconds."""
    stage.say("Three processes start; each is told only the address of the first.")
    three = members.start_three()
    stage.wait("all see three up", lambda: all(len(one.up_members()) == 3 for one in three))
    first: Member = stage.wait("a host", lambda: members.host_now(SINGLETON))
    stage.calm()

    stage.say(f"kill -9 of the host, {first.name} (process {first.process.pid}).")
    killed_at_s = members.end(first, signal.SIGKILL)
    stage.ended(first, killed_at_s, "killed")
    stage.fact(killed_at_s, first, "is killed", "bold red")
    second: Member = stage.wait("the next host", lambda: members.host_now(SINGLETON, but=[first]))
    kill_gap_s = second.seen("started", singleton=SINGLETON)[-1].at_s - killed_at_s
    stage.say(f"Nobody hosted it for {kill_gap_s:.3f} s.", "bold green")
    stage.calm()

    stage.say(f"The new host, {second.name}, is asked to leave (SIGTERM).")
    asked_at_s = members.end(second, signal.SIGTERM)
    stage.fact(asked_at_s, second, "is asked to leave", "bold yellow")
    stage.wait(f"{second.name} ends", lambda: not second.running)
    stage.ended(second, boottime_s(), f"left, exit code {second.process.returncode}")
    third: Member = stage.wait("the last host", lambda: members.host_now(SINGLETON))
    stopped_at_s = second.seen("stopped", singleton=SINGLETON)[-1].at_s
    leave_gap_s = third.seen("started", singleton=SINGLETON)[-1].at_s - stopped_at_s
    stage.say(f"Nobody hosted it for {leave_gap_s * 1000:.1f} ms.", "bold green")
    stage.calm()

    members.end(third, signal.SIGTERM)
    stage.wait(f"{third.name} ends", lambda: not third.running)
    stage.ended(third, boottime_s(), f"left, exit code {third.process.returncode}")
    if second.process.returncode or third.process.returncode:
        raise NotSeenError(f"a member that left in order did not exit with 0\n{members.logs()}")
    return kill_gap_s, leave_gap_s


def main() -> int:
    """Run the demo; returns the exit code."""
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    with (
        tempfile.TemporaryDirectory(prefix="tenure-demo-") as directory,
        Members(Path(directory)) as members,
    ):
        # Without a terminal there is nothing to redraw: the bars are printed once, at the end.
        with Live(console=console, auto_refresh=console.is_terminal, transient=True) as live:
            stage = Stage(members, console, live)
            try:
                gaps = play(members, stage)
            except NotSeenError as error:
                console.print(Text(str(error), "red"))
                return 1
            except KeyboardInterrupt:
                console.print("stopped; the members are ended")
                return 130
            bars = stage.bars()
        console.print(bars)
        console.print(
            f"\nSIGKILL of the host: [bold]{gaps[0]:.3f} s[/] without the counter. "
            f"Graceful leave: [bold]{gaps[1] * 1000:.1f} ms[/].\n"
        )
        return second_act(console, Path(directory))


def second_act(console: Console, directory: Path) -> int:
    """The three levels side by side; returns the exit code."""
    try:
        found = demo_levels.play(console, directory)
    except NotSeenError as error:
        console.print(Text(str(error), "red"))
        return 1
    except KeyboardInterrupt:
        console.print("stopped; the members are ended")
        return 130
    for name, gap_s, two_s in found:
        two = f"[bold red]two acted for {two_s:.1f} s[/]" if two_s > 0 else "never two"
        console.print(f"{name}: {gap_s:.1f} s without one, {two}", highlight=False)
    return 0


def _hosting(member: Member, end_at_s: float) -> list[tuple[float, float]]:
    """The spans in which `member` hosted the counter."""
    starts = [line.at_s for line in member.seen("started", singleton=SINGLETON)]
    stops = [line.at_s for line in member.seen("stopped", singleton=SINGLETON)]
    stops += [end_at_s] * (len(starts) - len(stops))
    return list(zip(starts, stops, strict=True))


def _mark(
    member: Member,
    at_s: float,
    cell_s: float,
    end_at_s: float,
    spans: list[tuple[float, float]],
) -> str:
    """What a cell ending at `at_s` shows; the shortest hosting still gets a cell."""
    if at_s < member.started_at_s:
        return NOT_YET
    if any(begin <= at_s and at_s - cell_s <= end for begin, end in spans):
        return HOSTS
    return RUNS if at_s <= end_at_s else ENDED


if __name__ == "__main__":
    # An exception, unlike the default, runs what ends the members.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
