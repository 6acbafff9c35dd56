"""One process' sockets in a simulated world: what `node.zmq_transport` is in the real one.

Decides what waits, what is flushed together, what is dropped and when a dial is repeated, by the
same rules and figures as the real transport. Does not decide what arrives: the `SimNetwork` does.
Built by `node.testkit.stage`, used by the daemon and the runtime.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress

from gossip.membership import NodeId
from node.environment import DataLink, DialOutcome, Inbox, Lane, LinkMemory, LinkRecord
from node.outbox import ControlOutbox, DataOutbox
from node.testkit.loop import SimLoop
from node.testkit.network import SimNetwork
from node.wire import DATA_VERSION_MAX, DATA_VERSION_MIN

CONTROL_PAYLOAD_BYTES_MAX = 255 * 1024
CONTROL_PENDING_BYTES_MAX = 4 * 1024 * 1024
DATA_MESSAGE_BYTES_MAX = 8 * 1024 * 1024
DATA_PENDING_BYTES_MAX = 64 * 1024 * 1024
LINKS_MAX = 4096
FLYING_BYTES_MAX = 4 * 1024 * 1024  # what sockets and kernels hold of one link
ESTABLISH_S = 2.0
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0
FAILING_S = 5.0
CONTROL_LINKS_MAX = 64  # established ones, and not kept
LINK_IDLE_S = 30.0
KEEP_DELAY_S = 0.5


class PieceFrame(bytes):
    """A frame in two halves, as one; the second half begins at `half`."""

    half: int


class Link:
    """One dialled one-way connection; `target` is the very process that accepted it."""

    __slots__ = (
        "accepted",
        "dirty",
        "ended",
        "flying",
        "has_heartbeat",
        "introduced_as",
        "is_broken",
        "lane",
        "lane_name",
        "last_arrival",
        "memory",
        "number",
        "outbox",
        "owner",
        "path",
        "peer",
        "port",
        "sent_at",
        "target",
        "unacked_since",
    )

    outbox: ControlOutbox | DataOutbox

    def __init__(self, owner: SimTransport, peer: NodeId, lane: Lane, port: int) -> None:
        self.owner = owner
        self.peer = peer
        self.lane = lane
        self.lane_name = lane.value
        self.port = port
        self.path = owner.network.path_to(owner.place, peer.host, port)
        self.introduced_as = peer  # its own, once it is established
        self.number = 0
        self.is_broken = False
        self.accepted = False  # by the process at its end, as the latest one of its owner
        self.target: SimTransport | None = None
        self.memory = LinkMemory(DATA_MESSAGE_BYTES_MAX)  # of whoever reads it
        self.flying = 0  # bytes given to the network and not yet read
        self.last_arrival = 0.0
        self.has_heartbeat = False
        self.sent_at = 0.0  # by its owner's clock
        self.unacked_since = math.inf  # the first frame that the network did not pass
        self.dirty = False
        self.ended = False


class _Pace:
    """How fast one address may be dialled."""

    __slots__ = ("failures", "next_at")

    def __init__(self) -> None:
        self.failures = 0
        self.next_at = 0.0


class SimTransport:
    """One process' sockets; see `node.environment.Transport`.

    `control_dropped_count` counts control payloads that were not sent. `Inbox.data_dropped` may be
    called from within `close_links` and `close`.
    """

    def __init__(
        self,
        network: SimNetwork,
        loop: SimLoop,
        name: str,
        host: str,
        control_port: int,
        data_port: int = 0,
    ) -> None:
        self.network = network
        self.place = network.place(name, host)
        self.host = host
        self.control_port = control_port
        self.data_port = data_port
        self.public_key = b""
        self.incoming: dict[Link, None] = {}
        self.ended = False
        self.control_dropped_count = 0
        self.versions = (DATA_VERSION_MIN, DATA_VERSION_MAX)
        self._loop = loop
        self._self_id: NodeId | None = None
        self._inbox: Inbox | None = None
        self._before_open: list[tuple[Link, bytes]] = []
        self._links: dict[Lane, dict[NodeId, Link]] = {Lane.CONTROL: {}, Lane.DATA: {}}
        self._control_links = self._links[Lane.CONTROL]
        self._data_links = self._links[Lane.DATA]
        self._introduced: dict[tuple[NodeId, int, str], Link] = {}
        self._learned: dict[NodeId, tuple[int, int]] = {}  # data port, newest version
        self._heard: dict[NodeId, tuple[int, int]] = {}
        self._paces: dict[tuple[str, int], _Pace] = {}
        self._link_number = 0
        self._dirty: list[Link] = []
        self._kept: tuple[NodeId, ...] = ()
        self._keep_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._dialled_count = 0
        self._closed_idle_count = 0
        self._idle_waiters: list[asyncio.Future[None]] = []

    # -- what the node calls

    async def bind(self) -> None:
        """Bind both lanes. Raises AddressInUseError."""
        self.control_port = self.network.bind(self, self.control_port)
        self.data_port = self.network.bind(self, self.data_port)

    def open(self, self_id: NodeId, inbox: Inbox) -> None:
        """Begin to deliver, first what came since `bind`; or change who we are."""
        if self._self_id is not None and self._self_id != self_id:
            for links in self._links.values():
                for link in list(links.values()):
                    self._end(link)
        self._self_id = self_id
        self._inbox = inbox
        early, self._before_open = self._before_open, []
        for link, frame in early:
            self._call_soon(self.receive, link, frame)

    def learn(
        self, peer: NodeId, data_port: int, protocol_max: int, public_key: bytes = b""
    ) -> None:
        """What a peer's member record says; believed before what it said itself."""
        self._learned[peer] = (data_port, protocol_max)

    def forget(self, peer: NodeId) -> None:
        """Nothing was bound to it: there are no keys."""

    def key_of(self, peer: NodeId) -> bytes:
        """None: there are no keys."""
        return b""

    def dial_faults(self) -> dict[str, str]:
        """None: nobody refuses a connection for a reason of its own."""
        return {}

    def send_control(self, to: NodeId, payload: bytes) -> None:
        """Queue a control message; dropped and counted when it cannot be sent."""
        link = self._control_links.get(to)
        if (
            len(payload) > CONTROL_PAYLOAD_BYTES_MAX
            or self.ended
            or (link is None and len(self._control_links) >= LINKS_MAX)
            or (link is not None and link.flying > CONTROL_PENDING_BYTES_MAX)
        ):
            self.control_dropped_count += 1
            return
        outbox = (link or self._dial_new(to, Lane.CONTROL, to.port)).outbox
        if isinstance(outbox, ControlOutbox) and not outbox.push(payload):
            self.control_dropped_count += 1

    def keep_links(self, peers: Iterable[NodeId]) -> None:
        """Keep control links to exactly these; see `node.environment.Transport`.

        A link that becomes kept needs no second connection here: it has heartbeats from then on.
        """
        self._kept = tuple(peers)
        for peer, link in self._control_links.items():
            link.has_heartbeat = link.has_heartbeat and peer in self._kept
        self._keep_soon(KEEP_DELAY_S)

    def _keep_soon(self, delay_s: float) -> None:
        if self._kept and not self.ended:
            if self._keep_timer is not None:
                if self._keep_timer.when() <= self._loop.time() + delay_s:
                    return
                self._keep_timer.cancel()
            self._keep_timer = self._loop.call_later(delay_s, self._look_after_kept)

    def _look_after_kept(self) -> None:
        self._keep_timer = None
        if self.ended:
            return
        for peer in self._kept:
            link = self._control_links.get(peer)
            if link is None:
                self._dial_new(peer, Lane.CONTROL, peer.port)
            elif link.target is not None and not link.has_heartbeat:
                if link.path.is_cut or link.target.resumes_at > self.network.timeline.now:
                    self._keep_soon(REDIAL_MAX_S)  # nobody would shake hands
                else:
                    link.has_heartbeat = True

    def data_link(self, to: NodeId) -> DataLink | None:
        """The link to a peer's data lane; see `node.environment.Transport`."""
        link = self._data_links.get(to)
        if link is None:
            port = self._known(to)[0]
            if self.ended or not port or len(self._data_links) >= LINKS_MAX:
                return None
            link = self._dial_new(to, Lane.DATA, port)
        assert isinstance(link.outbox, DataOutbox)
        return link.outbox

    def _known(self, peer: NodeId) -> tuple[int, int]:
        return self._learned.get(peer) or self._heard.get(peer) or (0, self.versions[0])

    def counters(self) -> dict[str, int]:
        """What was dropped, and what became of control links; the `SimNetwork` counts the rest."""
        return {
            "control_dropped": self.control_dropped_count,
            "control_links_dialled": self._dialled_count,
            "control_links_closed_idle": self._closed_idle_count,
        }

    def link_records(self) -> list[LinkRecord]:
        """How each outgoing link of both lanes is."""
        return [
            LinkRecord(peer, lane, self._state_of(link), link.outbox.pending_bytes)
            for lane, links in self._links.items()
            for peer, link in links.items()
        ]

    def _state_of(self, link: Link) -> str:
        if link.target is not None:
            return "up"
        return "failing" if self._pace_of(link).failures else "dialling"

    def close_links(self, peer: NodeId) -> None:
        """Forget the outgoing links to `peer`; no `link_lost` follows, the next send dials anew."""
        self._kept = tuple(kept for kept in self._kept if kept != peer)
        for links in self._links.values():
            if peer in links:
                self._end(links[peer])

    async def dial(self, host: str, port: int, timeout_s: float) -> DialOutcome:
        """Whether a process listens there, as far as its kernel says so in time."""
        outcome: asyncio.Future[DialOutcome] = self._loop.create_future()

        def settle(answer: DialOutcome) -> None:
            if not outcome.done():
                outcome.set_result(answer)

        self.network.probe(self, host, port, settle)
        timer = self._loop.call_later(timeout_s, settle, DialOutcome.UNKNOWN)
        try:
            return await outcome
        finally:
            timer.cancel()

    async def flush(self, timeout_s: float) -> None:
        """Wait until nothing queued waits for a link, at most `timeout_s`."""
        self._flush_dirty()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._is_waiting():
                    waiter = self._loop.create_future()
                    self._idle_waiters.append(waiter)
                    await waiter

    async def close(self) -> None:
        """Close all sockets; what was handed over still arrives, peers see their links end."""
        if not self.ended:
            for links in self._links.values():
                for link in list(links.values()):
                    self._end(link)
            self.end_process()

    # -- what the world and the network call

    @property
    def resumes_at(self) -> float:
        """The instant from which on the process runs; inf when it never will."""
        return self._loop.resume_at

    def end_process(self, *, silent: bool = False) -> None:
        """The process is gone: nothing is sent, delivered or reported any more."""
        self.ended = True
        for links in self._links.values():
            for link in list(links.values()):
                self._forget(link)
        self._before_open.clear()
        self.network.end_process(self, silent=silent)

    def interrupt(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the node's loop as the kernel does: at once, if it is not stopped."""
        self._loop.interrupt(callback, *args)

    def receive(self, link: Link, frame: bytes) -> None:
        """Read one frame from the socket of an incoming link; runs on the node's loop."""
        if self.ended:
            return
        inbox, self_id = self._inbox, self._self_id
        if inbox is None or self_id is None:
            self._before_open.append((link, frame))
            return
        network = self.network
        network.frames_delivered += 1
        link.flying -= len(frame)
        if link.flying + len(frame) > FLYING_BYTES_MAX:
            link.owner.interrupt(link.owner.arrived, link)
        network.note(link, "frame", frame)
        sender = link.introduced_as
        if not link.accepted and not self._introduce(link, self_id, inbox):
            return
        if link.lane is Lane.CONTROL:
            inbox.control_frame(sender, frame)
        else:
            inbox.turn_begin()
            if isinstance(frame, PieceFrame):
                header, data = bytes(frame[: frame.half]), memoryview(frame)[frame.half :]
                inbox.data_piece(sender, header, data, link.memory)
            else:
                inbox.data_frame(sender, frame, link.memory)
            inbox.turn_end()

    def _introduce(self, link: Link, self_id: NodeId, inbox: Inbox) -> bool:
        """Accept the first frame of a link, or refuse every frame on it."""
        sender, meant = link.introduced_as, link.peer.uid
        if meant not in (0, self_id.uid):
            detail = f"{sender} means uid {meant:016x}, this is {self_id.uid:016x}"
            inbox.frame_refused(link.lane, "wrong-uid", detail)
            return False
        former = self._introduced.get((sender, meant, link.lane_name))
        if former is not None:
            if former.number > link.number:
                inbox.frame_refused(link.lane, "superseded", f"{sender} has a later connection")
                return False
            former.accepted = False
        link.accepted = True
        self._introduced[sender, meant, link.lane_name] = link
        data_port = link.owner.data_port
        self._heard[sender] = (data_port, link.owner.versions[1])
        # Who listens there lives: no need to wait any longer before dialling it.
        self._paces.pop((sender.host, sender.port), None)
        self._paces.pop((sender.host, data_port), None)
        for links in self._links.values():
            waiting = links.get(sender)
            if waiting and waiting.target is None and waiting not in waiting.path.dialling:
                self.network.knock(waiting)
        return True

    def established(self, link: Link, target: SimTransport) -> None:
        """A dialled link was accepted; runs on the node's loop."""
        if link.ended or link.target is not None:
            return
        if target.ended:
            self.refused(link)
            return
        assert self._self_id is not None
        self._link_number += 1
        link.number = self._link_number
        link.introduced_as = self._self_id
        link.target = target
        target.incoming[link] = None
        link.path.links[link] = None
        self._pace_of(link).failures = 0
        link.outbox.unbar()
        link.sent_at = self._loop.time()  # the introduction
        self._flush(link)
        if link.lane is Lane.CONTROL:
            link.has_heartbeat = link.peer in self._kept
            self._make_room()
            if self._idle_timer is None:
                self._look_for_idle()

    def refused(self, link: Link) -> None:
        """The kernel there has no such listener. A certain process is gone then; whoever is meant
        to be there may still come."""
        if link.ended or link.target is not None:
            return
        pace = self._pace_of(link)
        pause_s = min(REDIAL_MAX_S, REDIAL_MIN_S * 2.0 ** min(pace.failures, 16))
        pace.failures += 1
        pace.next_at = self._loop.time() + pause_s
        if link.peer.uid != 0:
            self._end(link)
        else:
            link.outbox.bar()
            self._dial_when_allowed(link)

    def lose(self, link: Link) -> None:
        """An established link has ended; runs on the node's loop."""
        if not link.ended and self._inbox is not None:
            self._end(link)
            self._inbox.link_lost(link.peer, link.lane)

    # -- links that nobody uses

    def _is_quiet(self, link: Link) -> bool:
        return (
            link.target is not None
            and link.outbox.pending_bytes == 0
            and link.peer not in self._kept
        )

    def _close_quietly(self, link: Link) -> None:
        self._closed_idle_count += 1
        self._end(link)

    def _make_room(self) -> None:
        """Close the least recently used links when too many are open."""
        if len(self._control_links) <= CONTROL_LINKS_MAX:
            return
        spare = [
            link
            for link in self._control_links.values()
            if link.target is not None and link.peer not in self._kept
        ]
        spare.sort(key=lambda link: link.sent_at)
        excess = len(spare) - CONTROL_LINKS_MAX
        for link in spare:
            if excess > 0 and self._is_quiet(link):
                self._close_quietly(link)
                excess -= 1

    def _look_for_idle(self) -> None:
        self._idle_timer = None
        now = self._loop.time()
        next_at = math.inf
        for link in list(self._control_links.values()):
            if link.target is None or link.peer in self._kept:
                continue
            due_at = link.sent_at + LINK_IDLE_S
            if due_at <= now and self._is_quiet(link):
                self._close_quietly(link)
            else:
                next_at = min(next_at, max(due_at, now + 1.0))
        if next_at < math.inf and not self.ended:
            self._idle_timer = self._loop.call_at(next_at, self._look_for_idle)

    # -- inside

    def _call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(callback, *args, context=self._loop.io_context)

    def _dial_new(self, to: NodeId, lane: Lane, port: int) -> Link:
        assert self._self_id is not None, "open comes before send"
        self._dialled_count += lane is Lane.CONTROL
        link = Link(self, to, lane, port)
        link.outbox = self._make_outbox(link)
        self._links[lane][to] = link
        pace = self._pace_of(link)
        if pace.failures and self._loop.time() < pace.next_at + FAILING_S:
            link.outbox.bar()
        self._loop.call_later(ESTABLISH_S, self._give_up, link)
        self._dial_when_allowed(link)
        return link

    def _pace_of(self, link: Link) -> _Pace:
        return self._paces.setdefault((link.peer.host, link.port), _Pace())

    def _dial_when_allowed(self, link: Link) -> None:
        wait_s = self._pace_of(link).next_at - self._loop.time()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._dial, link)
        else:
            self._dial(link)

    def _dial(self, link: Link) -> None:
        if not link.ended and link.target is None:
            self._pace_of(link).next_at = self._loop.time() + REDIAL_MIN_S
            self.network.knock(link)

    def _give_up(self, link: Link) -> None:
        if not link.ended and link.target is None:
            pace = self._pace_of(link)
            pace.failures += 1
            pace.next_at = max(pace.next_at, self._loop.time())
            self._end(link)

    def _woken(self, link: Link) -> None:
        """There is something new in its queue."""
        if link.target is None or link.ended:
            return
        if link.dirty:
            self._flush(link, full_only=True)
        else:
            link.dirty = True
            self._dirty.append(link)
            if len(self._dirty) == 1:
                self._call_soon(self._flush_dirty)

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.dirty = False
            if not link.ended:
                self._flush(link)

    def _flush(self, link: Link, *, full_only: bool = False) -> None:
        """Hand what is queued to the network, in the same frames as the real ones; a data link
        that the reader does not empty takes no more than it would from a socket."""
        outbox = link.outbox
        while link.flying <= FLYING_BYTES_MAX:
            frame = outbox.next_frame(full_only=full_only)
            if frame is None:
                outbox.is_dirty = outbox.is_dirty and full_only
                break
            link.sent_at = self._loop.time()
            if len(frame.parts) == 1:
                self.network.transmit(link, bytes(frame.parts[0]))
            else:
                piece = PieceFrame(b"".join(frame.parts))
                piece.half = len(frame.parts[0])
                self.network.transmit(link, piece)
            outbox.sent(frame)
        if self._idle_waiters:
            self._wake_idle()

    def arrived(self, link: Link) -> None:
        """The reader of a link has taken a frame out of its socket; runs on the owner's loop."""
        if not link.ended and link.target is not None and link.outbox.is_dirty:
            self._flush(link)

    def _make_outbox(self, link: Link) -> ControlOutbox | DataOutbox:
        inbox = self._inbox
        assert inbox is not None

        def wake() -> None:
            self._woken(link)

        if link.lane is Lane.CONTROL:
            return ControlOutbox(
                inbox.control_head, wake, pending_bytes_max=CONTROL_PENDING_BYTES_MAX
            )
        version = min(self.versions[1], self._known(link.peer)[1])
        return DataOutbox(
            inbox.data_head, wake, version=version, pending_bytes_max=DATA_PENDING_BYTES_MAX
        )

    def _forget(self, link: Link) -> list[object]:
        """Take the link out everywhere; returns what was queued."""
        link.ended = True
        link.path.dialling.pop(link, None)
        link.path.links.pop(link, None)
        if link.target is not None:
            link.target.incoming.pop(link, None)
        links = self._links[link.lane]
        if links.get(link.peer) is link:
            del links[link.peer]
        link.outbox.close()
        if link.lane is Lane.CONTROL and link.peer in self._kept:
            self._keep_soon(REDIAL_MIN_S)
        return list(link.outbox.drain())

    def _end(self, link: Link) -> None:
        queue = self._forget(link)
        if link.lane is Lane.CONTROL:
            self.control_dropped_count += len(queue)
        else:
            for item in queue:
                self._drop(link.peer, item)
        if self._idle_waiters:
            self._wake_idle()

    def _drop(self, peer: NodeId, item: object) -> None:
        if self._inbox is not None:
            self._inbox.data_dropped(peer, item)

    def _is_waiting(self) -> bool:
        return any(
            link.outbox.pending_bytes for links in self._links.values() for link in links.values()
        )

    def _wake_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
