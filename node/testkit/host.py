"""A simulated host: its clock, its kernel's process table, and what it says when a process ends.

Decides pids, start times, boot ids and the word of the kernel on the end of a process. Does not
decide when one ends: the world does. Called by `node.testkit.stage` and, through
`SimProcessWatch`, by the node itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gossip.membership import NodeId
from node.environment import HostFacts
from node.testkit.loop import SimClock, SimLoop
from node.testkit.timeline import Timeline

END_KNOWN_AFTER_S = 0.0001
# The first namespaces of a kernel have the same inode on every Linux host: equal numbers on two
# hosts must not look like one host to a node.
FIRST_NET_NS = 4_026_531_840
FIRST_PID_NS = 4_026_531_836
_FIRST_PID = 1000


@dataclass(slots=True)
class _Process:
    start_ticks: int
    ended: dict[tuple[SimLoop, NodeId], Callable[[], None]] = field(default_factory=dict)


class SimHost:
    """One kernel. Nodes on one host share its clocks, boot id, namespaces and process table.

    `wall_offset_s`: by how much its wall clock is wrong.
    """

    def __init__(self, address: str, clock: SimClock, rng: random.Random) -> None:
        self.address = address
        self.clock = clock
        self.wall_offset_s = 0.0
        self.boot_id = ""
        self._rng = rng
        self._processes: dict[int, _Process] = {}
        self._next_pid = _FIRST_PID
        self.boot()

    def boot(self) -> None:
        """A fresh kernel: another boot id, no processes, nobody is told of the old ones."""
        bits = f"{self._rng.getrandbits(128):032x}"
        self.boot_id = f"{bits[:8]}-{bits[8:12]}-{bits[12:16]}-{bits[16:20]}-{bits[20:]}"
        self._processes.clear()
        self._next_pid = _FIRST_PID

    def start_process(self, now: float) -> HostFacts:
        """A new process: the facts a node reads of itself."""
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        process = self._processes[pid] = _Process(int(self.clock.reading(now) * 100))
        return HostFacts(self.boot_id, FIRST_NET_NS, FIRST_PID_NS, pid, process.start_ticks)

    def end_process(self, pid: int, timeline: Timeline) -> None:
        """The process ended: whoever watches it knows a tenth of a millisecond later."""
        process = self._processes.pop(pid, None)
        if process is not None:
            for (loop, _), ended in process.ended.items():
                timeline.at(timeline.now + END_KNOWN_AFTER_S, loop.call_soon, ended)

    def process(self, pid: int, start_ticks: int) -> _Process | None:
        """The running process that began then, None when it is gone (or never was here)."""
        process = self._processes.get(pid)
        return process if process is not None and process.start_ticks == start_ticks else None


class SimProcessWatch:
    """A node's pidfds: see `node.environment.ProcessWatch`.

    Like the real one it knows its own kernel only: asked for a pid of another host it finds nobody,
    which reads as ended. To ask only for processes of the own host is the node's duty.
    """

    def __init__(self, host: SimHost, loop: SimLoop) -> None:
        self._host = host
        self._loop = loop
        self._watched: dict[NodeId, tuple[int, int]] = {}

    def watch(self, peer: NodeId, pid: int, start_ticks: int, ended: Callable[[], None]) -> bool:
        """Call `ended` once the process is gone, or is so already."""
        self._watched[peer] = (pid, start_ticks)
        process = self._host.process(pid, start_ticks)

        def report() -> None:
            # It may have been unwatched since the kernel spoke.
            if self._watched.get(peer) == (pid, start_ticks):
                del self._watched[peer]
                ended()

        if process is None:
            self._loop.call_soon(report)
        else:
            process.ended[self._loop, peer] = report
        return True

    def unwatch(self, peer: NodeId) -> None:
        """Stop watching; unknown peers are ignored."""
        watched = self._watched.pop(peer, None)
        if watched is not None:
            process = self._host.process(*watched)
            if process is not None:
                process.ended.pop((self._loop, peer), None)

    def close(self) -> None:
        """Stop watching all."""
        for peer in list(self._watched):
            self.unwatch(peer)


class SimStateStore:
    """What a node remembers over restarts; kept by the node's seat in the world."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()

    def load(self) -> tuple[str, ...]:
        """`host:port` of each remembered member."""
        return self.addresses

    def save(self, addresses: tuple[str, ...]) -> None:
        """Replace what is remembered."""
        self.addresses = addresses
