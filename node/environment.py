"""What a node gets from outside: clock, randomness, sockets, the kernel's word on processes.

Two worlds implement it: `node.zmq_environment` (real sockets, real kernel) and `node.testkit`
(simulated). The daemon and the runtime know nothing else of the world they run in.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gossip.events import DialOutcome as DialOutcome
from gossip.membership import NodeId
from node.names import Names
from node.streams import Piece, Streams

if TYPE_CHECKING:
    from lease import LeaseStore


class Lane(enum.Enum):
    """The two lanes of a node; bulk on one never delays an answer on the other."""

    CONTROL = "control"
    DATA = "data"


class LinkMemory:
    """What the reader of data frames remembers of one incoming connection: the names it defined,
    and large messages of which pieces are missing. It ends with the connection.

    `cells` and `unpackers` are the shortest way from the number of a target or a tag; where they
    have none, `names` tells what was defined. In `cells` there are sharded entities too.
    """

    __slots__ = ("cells", "names", "streams", "unpackers")

    def __init__(self, message_bytes_max: int) -> None:
        self.names: dict[int, object] = {}
        self.cells: dict[int, Any] = {}
        self.unpackers: dict[int, Callable[[Any], object]] = {}
        self.streams = Streams(message_bytes_max)


class DataLink(Protocol):
    """The way to one peer's data lane; ends with its connection, or when that cannot be made.
    After a failed attempt it is "full" until one succeeds: whoever sends is told at once.

    `version` of the protocol is spoken on it. `names` is what the peer knows by number, None
    when it knows no numbers and takes no message in pieces. While `is_streaming` messages may
    overtake each other, so they must make sense without `names`.
    """

    version: int
    names: Names | None
    is_streaming: bool
    urgent_count: int  # asks and answers in the frame that is being filled; counted by the sender
    takes_short: bool  # not full, not streaming, not ended, and there are names
    is_ended: bool

    @property
    def is_full(self) -> bool:
        """No further message is taken now."""

    @property
    def is_busy(self) -> bool:
        """It is full, and only because too much waits."""

    @property
    def takes_answers(self) -> bool:
        """There is room for what others wait for."""

    def send(self, payload: bytes, item: object, key: str) -> None:
        """Queue one message for the recipient `key`, and do so only when not `is_full`. Not sent
        = `Inbox.data_dropped` with `item`."""

    def send_short(self, payload: bytes, item: object) -> None:
        """`send` while it `takes_short`."""

    def hurry(self) -> None:
        """Send what waits now, instead of at the end of this turn."""

    def send_piece(self, piece: Piece, item: object) -> None:
        """Queue a large message of one piece, while it `takes_short`."""

    def send_large(self, envelope: bytes, parts: Sequence[bytes], item: object, key: str) -> None:
        """The same for a large message (`node.streams`)."""

    async def room(self) -> None:
        """Wait until messages are taken again, or the link has ended."""


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """How an outgoing link is: "up", "dialling", or "failing" when the last attempt failed."""

    peer: NodeId
    lane: Lane
    state: str
    waiting_bytes: int


class Inbox(Protocol):
    """Who receives from a transport; every call runs on the node's event loop."""

    def control_head(self) -> bytes:
        """Bytes put in front of each outgoing control frame, asked for when it is flushed."""

    def data_head(self, version: int, is_piece: bool) -> bytes:
        """Bytes put in front of each outgoing data frame, asked for when it is flushed."""

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        """A whole control frame (head included) on a connection that introduced itself."""

    def data_frame(self, sender: NodeId, frame: bytes, memory: LinkMemory) -> None:
        """A whole data frame: its head, then one or more concatenated msgpack envelopes."""

    def data_piece(
        self, sender: NodeId, frame: bytes, data: memoryview, memory: LinkMemory
    ) -> None:
        """A piece of a large message: its head and header, and the piece."""

    def turn_begin(self) -> None:
        """Frames are going to be handed in, and `turn_end` follows within this callback."""

    def turn_end(self) -> None:
        """Frames were handed in and no more come in this turn: what they woke may run now."""

    def link_lost(self, peer: NodeId, lane: Lane) -> None:
        """An outgoing link that had been established to `peer` ended (EOF or RST)."""

    def frame_refused(self, lane: Lane, reason: str, detail: str) -> None:
        """Something arrived that is not ours: counted by `reason`, logged once per reason."""

    def data_dropped(self, peer: NodeId, item: object) -> None:
        """What was queued with `item` was not sent: its link ended, or was never established."""


class Transport(Protocol):
    """One node's sockets: a bound listener per lane, one-way outgoing links dialled on first use
    and, on the control lane, closed when they are not used any more.

    A link is keyed by the peer's whole `NodeId`: it introduces itself with our id and the uid it
    means (0 = whoever is there), and a process with another uid drops everything on it. Never
    raises for what a peer does.
    """

    host: str
    control_port: int
    data_port: int
    versions: tuple[int, int]  # of the protocol, that it speaks
    public_key: bytes  # of the connections it makes; empty without keys

    async def bind(self) -> None:
        """Bind both lanes; afterwards the ports are known. Raises `AddressInUseError`."""

    def open(self, self_id: NodeId, inbox: Inbox) -> None:
        """Begin to deliver. `bind` must have been called.

        Called again, it only changes who we are: links that introduced the former id are closed.
        """

    def learn(
        self, peer: NodeId, data_port: int, protocol_max: int, public_key: bytes = b""
    ) -> None:
        """What a peer's member record says: its data port, the newest version it speaks, its key.

        With keys, a record whose key is not that of the peer's own connections is refused.
        """

    def forget(self, peer: NodeId) -> None:
        """It is no member any more: another process at its address may have another key."""

    def key_of(self, peer: NodeId) -> bytes:
        """The key that the connections of `peer` have proven; empty without keys, and when none
        came."""

    def dial_faults(self) -> dict[str, str]:
        """`host:port` → why a connection to it is refused, by its side or ours, where only an
        operator can mend it; a dial that succeeds ends the fault."""

    def send_control(self, to: NodeId, payload: bytes) -> None:
        """Queue one msgpack message; flushed with the others of this loop turn behind one head."""

    def keep_links(self, peers: Iterable[NodeId]) -> None:
        """Keep control links to exactly these members open, though nothing is sent on them, with
        heartbeats that end the link to a frozen process; dialled anew whenever they end.

        All other control links are closed when they are idle or too many. No `link_lost` follows,
        nothing is lost with them, and the next send dials anew.
        """

    def data_link(self, to: NodeId) -> DataLink | None:
        """The link to a peer's data lane, dialled if there is none yet; None when its port is not
        known, or there are too many links."""

    def counters(self) -> dict[str, int]:
        """What was sent, received and dropped since the start."""

    def link_records(self) -> list[LinkRecord]:
        """How each outgoing link of both lanes is."""

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


def open_store(url: str) -> LeaseStore:
    """The lease store that `url` names. Raises ValueError, listing what there is."""
    from lease import from_url  # most nodes need none

    return from_url(url)


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
    open_store: Callable[[str], LeaseStore] = open_store  # by its URL
