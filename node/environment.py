"""What a node gets from outside: clock, randomness, sockets, the kernel's word on processes.

Two worlds implement it: `node.zmq_environment` (real sockets, real kernel) and `node.testkit`
(simulated). The daemon and the runtime know nothing else of the world they run in.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gossip.events import DialOutcome as DialOutcome
from gossip.membership import NodeId


class Lane(enum.Enum):
    """The two lanes of a node; bulk on one never delays an answer on the other."""

    CONTROL = "control"
    DATA = "data"


class Inbox(Protocol):
    """Who receives from a transport; every call runs on the node's event loop."""

    def control_head(self) -> bytes:
        """Bytes put in front of each outgoing control frame, asked for when it is flushed."""

    def data_head(self) -> bytes:
        """Bytes put in front of each outgoing data frame, asked for when it is flushed."""

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        """A whole control frame (head included) on a connection that introduced itself."""

    def data_frame(self, sender: NodeId, frame: bytes) -> None:
        """A whole data frame: its head, then one or more concatenated msgpack envelopes."""

    def link_lost(self, peer: NodeId, lane: Lane) -> None:
        """An outgoing link that had been established to `peer` ended (EOF or RST)."""

    def frame_refused(self, lane: Lane, reason: str, detail: str) -> None:
        """Something arrived that is not ours: counted by `reason`, logged once per reason."""

    def data_dropped(self, peer: NodeId, payload: bytes) -> None:
        """An envelope given to `send_data` was not sent (link lost, buffer full, peer unknown)."""


class Transport(Protocol):
    """One node's sockets: a bound listener per lane, one-way outgoing links dialled on first use.

    A link is keyed by the peer's whole `NodeId`: it introduces itself with our id and the uid it
    means (0 = whoever is there), and a process with another uid drops everything on it. Never
    raises for what a peer does.
    """

    host: str
    control_port: int
    data_port: int

    async def bind(self) -> None:
        """Bind both lanes; afterwards the ports are known. Raises `AddressInUseError`."""

    def open(self, self_id: NodeId, inbox: Inbox) -> None:
        """Begin to deliver. `bind` must have been called.

        Called again, it only changes who we are: links that introduced the former id are closed.
        """

    def learn(self, peer: NodeId, data_port: int) -> None:
        """The data port of a peer, from its member record."""

    def send_control(self, to: NodeId, payload: bytes) -> None:
        """Queue one msgpack message; flushed with the others of this loop turn behind one head."""

    def send_data(self, to: NodeId, payload: bytes) -> None:
        """Queue one msgpack envelope; not sent = `Inbox.data_dropped`."""

    def close_links(self, peer: NodeId) -> None:
        """Forget the outgoing links to `peer`; what is queued there is dropped."""

    async def dial(self, host: str, port: int, timeout_s: float) -> DialOutcome:
        """A bare TCP dial that is closed at once."""

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything queued was handed over, at most `timeout_s`."""

    async def close(self) -> None:
        """Close all sockets; the control listener is the very last."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the kernel says of this process; written into the member record."""

    boot_id: str
    net_ns: int
    pid_ns: int
    pid: int
    start_ticks: int


class ProcessWatch(Protocol):
    """The kernel's word that a process on this host ended (a pidfd on Linux)."""

    def watch(self, peer: NodeId, pid: int, start_ticks: int, ended: Callable[[], None]) -> bool:
        """Call `ended` once the process is gone, or is so already. False: cannot watch."""

    def unwatch(self, peer: NodeId) -> None:
        """Stop watching; unknown peers are ignored."""

    def close(self) -> None:
        """Stop watching all."""


class StateStore(Protocol):
    """Remembers, over restarts, the addresses of the last counted members (`--state-dir`)."""

    def load(self) -> tuple[str, ...]:
        """`host:port` of each remembered member, `()` when there is nothing (or it is damaged)."""

    def save(self, addresses: tuple[str, ...]) -> None:
        """Replace what is remembered. Never raises: a failure is logged."""


@dataclass(slots=True)
class Environment:
    """Everything a node may touch. `clock` is CLOCK_BOOTTIME seconds (simulated: virtual)."""

    clock: Callable[[], float]
    rng: random.Random
    transport: Transport | None  # None: a purely local system without sockets
    processes: ProcessWatch
    state: StateStore
    host: HostFacts
    wall_clock: Callable[[], float] = time.time  # seconds since 1970, only ever shown to people
