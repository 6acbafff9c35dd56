"""The second act of `make demo`: one fault, and what becomes of it at each of the three levels.

Decides the fault (the host is cut off from the others where networks can be made, else it is
stopped) and how the three clusters are shown side by side. Who acted when is what the subject
itself wrote. Timings are shortened so that it can be watched; `python -m bench failover` has the
defaults. Called by `bench.demo`.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.failover.rounds import spans_of
from bench.gossip.namespaces import Hosts, can_make_networks
from bench.partition.cluster import (
    Cluster,
    Life,
    LoopbackNetwork,
    NamespaceNetwork,
    Network,
)
from bench.partition.judging import Instance
from bench.processes import Members
from node.history import boottime_s

NODES = 3
FAULT_S, AFTER_S = 11.0, 5.0
CELLS = 60
SHORT = (
    *("--preset", "local", "--hand-over-timeout-s", "2"),
    *("--lease-ttl-s", "3", "--acquire-retry-interval-s", "1"),
)
DECIDES = ("--contact-s", "1", "--down-after-s", "2")
COLOURS = ("cyan", "magenta", "yellow", "green")
NOBODY, ACTS, TWO = "·", "█", "▓"


@dataclass
class Level:
    """One level: its cluster, and the instance that acted when the fault came."""

    name: str
    cluster: Cluster
    old: Instance | None = None
    fault_s: float = 0.0

    def spans(self) -> list[tuple[Instance, list[tuple[float, float]]]]:
        """When each instance acted since shortly before the fault."""
        found = []
        for one in self.cluster.steps.instances.values():
            spans = spans_of(one.steps_from(self.fault_s - 1.0))
            if spans:
                found.append((one, spans))
        return found

    def bar(self, now_s: float) -> Text:
        """Who acts when, from a second before the fault on."""
        text = Text()
        spans = self.spans()
        for cell in range(CELLS):
            at_s = self.fault_s - 1.0 + (cell + 0.5) * (FAULT_S + AFTER_S + 1.0) / CELLS
            acting = [
                place
                for place, (_, each) in enumerate(spans)
                if any(begin - 0.15 <= at_s <= end + 0.15 for begin, end in each)
            ]
            if at_s > now_s:
                text.append(" ")
            elif len(acting) > 1:
                text.append(TWO, "bold red")
            elif acting:
                text.append(ACTS, COLOURS[acting[0] % len(COLOURS)])
            else:
                text.append(NOBODY, "dim")
        return text

    def gap_s(self) -> float:
        """The longest time in which nobody began a step."""
        steps = sorted(
            at_s
            for one in self.cluster.steps.instances.values()
            for at_s in one.steps_from(self.fault_s - 1.0)
        )
        return max((b - a for a, b in itertools.pairwise(steps)), default=FAULT_S)

    def two_s(self) -> float:
        """For how long two instances acted at once."""
        return sum(
            max(0.0, min(end, other_end) - max(begin, other_begin))
            for (_, ours), (_, theirs) in itertools.combinations(self.spans(), 2)
            for begin, end in ours
            for other_begin, other_end in theirs
        )


class _Part:
    """Some hosts of a network as a network of their own."""

    def __init__(self, network: NamespaceNetwork, first: int) -> None:
        self._network, self._first = network, first
        self.addresses = network.addresses[first : first + NODES]

    def command(self, host: int) -> Sequence[str]:
        """On its host."""
        return self._network.command(self._first + host)

    def cut(self, source: int, target: int) -> None:
        """Lose what goes from one to the other."""
        self._network.cut(self._first + source, self._first + target)

    def heal(self, source: int, target: int) -> None:
        """End a cut."""
        self._network.heal(self._first + source, self._first + target)


def play(console: Console, directory: Path) -> list[tuple[str, float, float]]:
    """Show it; per level its name, how long nobody acted, and how long two did. Raises
    `NotSeenError` when a cluster does not come about."""
    with ExitStack() as stack:
        levels = _start(stack, directory)
        cuts = can_make_networks()
        fault = "cut off from the others" if cuts else "stopped (SIGSTOP)"
        console.print(
            Text(f"Three clusters, one per level. The host of each is {fault} at once.", "bold")
        )
        for level in levels:
            level.cluster.settle()
        _calm(levels, 1.0)
        mends = [_befall(level, cuts=cuts) for level in levels]
        with Live(console=console, auto_refresh=False, transient=True) as live:
            _watch(levels, FAULT_S, live, console)
            for mend in mends:
                mend()
            _watch(levels, AFTER_S, live, console)
        console.print(_table(levels))
        return [(level.name, level.gap_s(), level.two_s()) for level in levels]


def _start(stack: ExitStack, directory: Path) -> list[Level]:
    flags = {
        "none": ("--protection", "none"),
        "downing": ("--protection", "downing", *DECIDES),
        "downing + lease": (
            *("--protection", "downing+lease", *DECIDES),
            *("--lease", f"sqlite://{directory}/leases.db"),
        ),
    }
    whole = None
    if can_make_networks():
        whole = NamespaceNetwork(stack.enter_context(Hosts(NODES * len(flags))))
    levels = []
    for place, (name, own) in enumerate(flags.items()):
        network: Network
        if whole is not None:
            network = _Part(whole, place * NODES)
        else:
            with Members(directory) as members:
                network = LoopbackNetwork(members.free_ports(NODES))
        home = directory / str(place)
        home.mkdir()
        cluster = stack.enter_context(Cluster(home, network, [*SHORT, *own]))
        for host in cluster.hosts:
            cluster.start_one(host)
        levels.append(Level(name, cluster))
    return levels


def _befall(level: Level, *, cuts: bool) -> Callable[[], None]:
    """Let the fault happen; what ends it."""
    cluster = level.cluster
    level.old = cluster.acting() or cluster.settle()
    life = cluster.life_of(level.old)
    if not cuts:
        level.fault_s = cluster.signal(life, signal.SIGSTOP)
        return lambda: _go_on(cluster, life)
    others = [host for host in cluster.hosts if host != life.host]
    level.fault_s = cluster.cut_apart([life.host], others)

    def heal() -> None:
        for other in others:
            cluster.network.heal(life.host, other)
            cluster.network.heal(other, life.host)

    return heal


def _go_on(cluster: Cluster, life: Life) -> None:
    if life.running:
        cluster.signal(life, signal.SIGCONT)


def _calm(levels: Sequence[Level], seconds: float) -> None:
    until_s = boottime_s() + seconds
    while boottime_s() < until_s:
        for level in levels:
            level.cluster.look()
        time.sleep(0.05)


def _watch(levels: Sequence[Level], seconds: float, live: Live, console: Console) -> None:
    until_s = boottime_s() + seconds
    while boottime_s() < until_s:
        _calm(levels, 0.2)
        if console.is_terminal:
            live.update(_table(levels), refresh=True)


def _table(levels: Sequence[Level]) -> Table:
    table = Table(box=None, padding=(0, 1))
    for title in (
        "level",
        f"from 1 s before the fault; healed {FAULT_S:g} s later",
        "nobody",
        "two",
    ):
        table.add_column(title)
    now_s = boottime_s()
    for level in levels:
        two_s = level.two_s()
        two = Text(f"{two_s:.1f} s", "bold red") if two_s > 0 else Text("never", "green")
        table.add_row(level.name, level.bar(now_s), f"{level.gap_s():.1f} s", two)
    table.caption = (
        f"{ACTS} an instance acts, a colour each   {TWO} two act at once   {NOBODY} nobody"
    )
    return table
