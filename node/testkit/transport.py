"""One process' sockets in a simulated world: what `node.zmq_transport` is in the real one.

Decides what waits, what is flushed together, what is dropped and when a dial is repeated, by the
same rules and figures as the real transport. Does not decide what arrives: the `SimNetwork` does.
Built by `node.testkit.stage`, used by the daemon and the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gossip.membership import NodeId
from node.environment import DialOutcome, Inbox, Lane
from node.testkit.loop import SimLoop
from node.testkit.network import SimNetwork

FRAME_BYTES_TARGET = 64 * 1024
CONTROL_PAYLOAD_BYTES_MAX = 255 * 1024
CONTROL_PENDING_BYTES_MAX = 4 * 1024 * 1024
DATA_PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
DATA_PENDING_BYTES_MAX = 64 * 1024 * 1024
LINKS_MAX = 4096
ESTABLISH_S = 2.0
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0


class Link:
    """One dialled one-way connection; `target` is the very process that accepted it."""

    __slots__ = (
        "accepted",
        "dirty",
        "ended",
        "flying",
        "introduced_as",
        "lane",
        "lane_name",
        "last_arrival",
        "number",
        "owner",
        "path",
        "peer",
        "port",
        "queue",
        "size",
        "target",
    )

    def __init__(self, owner: SimTransport, peer: NodeId, lane: Lane, port: int) -> None:
        self.owner = owner
        self.peer = peer
        self.lane = lane
        self.lane_name = lane.value
        self.port = port
        self.path = owner.network.path_to(owner.place, peer.host, port)
        self.introduced_as = peer  # its own, once it is established
        self.number = 0
        self.accepted = False  # by the process at its end, as the latest one of its owner
        self.target: SimTransport | None = None
        self.queue: list[bytes] = []
        self.size = 0  # bytes in the queue
        self.flying = 0  # bytes given to the network and not yet read
        self.last_arrival = 0.0
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
    called from within `send_data`, `close_links` and `close`.
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
        self.incoming: dict[Link, None] = {}
        self.ended = False
        self.control_dropped_count = 0
        self._loop = loop
        self._self_id: NodeId | None = None
        self._inbox: Inbox | None = None
        self._before_open: list[tuple[Link, bytes]] = []
        self._links: dict[Lane, dict[NodeId, Link]] = {Lane.CONTROL: {}, Lane.DATA: {}}
        self._control_links = self._links[Lane.CONTROL]
        self._data_links = self._links[Lane.DATA]
        self._introduced: dict[tuple[NodeId, int, str], Link] = {}
        self._learned_ports: dict[NodeId, int] = {}
        self._heard_ports: dict[NodeId, int] = {}
        self._paces: dict[tuple[str, int], _Pace] = {}
        self._link_number = 0
        self._dirty: list[Link] = []
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

    def learn(self, peer: NodeId, data_port: int) -> None:
        """The data port of a peer; believed before what it said itself."""
        self._learned_ports[peer] = data_port

    def send_control(self, to: NodeId, payload: bytes) -> None:
        """Queue a control message; dropped and counted when it cannot be sent."""
        link = self._control_links.get(to)
        size = len(payload)
        if (
            size > CONTROL_PAYLOAD_BYTES_MAX
            or self.ended
            or (link is None and len(self._control_links) >= LINKS_MAX)
            or (link is not None and link.size + link.flying + size > CONTROL_PENDING_BYTES_MAX)
        ):
            self.control_dropped_count += 1
        else:
            self._queue(link or self._dial_new(to, Lane.CONTROL, to.port), payload)

    def send_data(self, to: NodeId, payload: bytes) -> None:
        """Queue an envelope; what cannot be sent comes back through `Inbox.data_dropped`."""
        link = self._data_links.get(to)
        size = len(payload)
        port = 0
        if link is None:
            port = self._learned_ports.get(to) or self._heard_ports.get(to) or 0
        if (
            size > DATA_PAYLOAD_BYTES_MAX
            or self.ended
            or (link is None and (not port or len(self._data_links) >= LINKS_MAX))
            or (link is not None and link.size + link.flying + size > DATA_PENDING_BYTES_MAX)
        ):
            self._drop(to, payload)
        else:
            self._queue(link or self._dial_new(to, Lane.DATA, port), payload)

    def close_links(self, peer: NodeId) -> None:
        """Forget the outgoing links to `peer`; no `link_lost` follows, the next send dials anew."""
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
        network.note(link, "frame", frame)
        sender = link.introduced_as
        if not link.accepted and not self._introduce(link, self_id, inbox):
            return
        if link.lane is Lane.CONTROL:
            inbox.control_frame(sender, frame)
        else:
            inbox.data_frame(sender, frame)

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
        self._heard_ports[sender] = data_port
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
        self._flush(link)

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
            self._dial_when_allowed(link)

    def lose(self, link: Link) -> None:
        """An established link has ended; runs on the node's loop."""
        if not link.ended and self._inbox is not None:
            self._end(link)
            self._inbox.link_lost(link.peer, link.lane)

    # -- inside

    def _call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(callback, *args, context=self._loop.io_context)

    def _dial_new(self, to: NodeId, lane: Lane, port: int) -> Link:
        assert self._self_id is not None, "open comes before send"
        link = self._links[lane][to] = Link(self, to, lane, port)
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
            self._pace_of(link).failures += 1
            self._end(link)

    def _queue(self, link: Link, payload: bytes) -> None:
        link.queue.append(payload)
        link.size += len(payload)
        if link.target is None:
            return
        if link.size >= FRAME_BYTES_TARGET:
            self._flush(link)
        elif not link.dirty:
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

    def _flush(self, link: Link) -> None:
        """Hand everything queued to the network, in frames as large as the real ones."""
        inbox = self._inbox
        assert inbox is not None
        queue, link.queue = link.queue, []
        link.size = 0
        head_of = inbox.control_head if link.lane is Lane.CONTROL else inbox.data_head
        first = 0
        while first < len(queue):
            head = head_of()
            size = len(head) + len(queue[first])
            end = first + 1
            while end < len(queue) and size + len(queue[end]) <= FRAME_BYTES_TARGET:
                size += len(queue[end])
                end += 1
            self.network.transmit(link, head + b"".join(queue[first:end]))
            first = end
        if self._idle_waiters:
            self._wake_idle()

    def _forget(self, link: Link) -> list[bytes]:
        """Take the link out everywhere; returns what was queued."""
        link.ended = True
        link.path.dialling.pop(link, None)
        link.path.links.pop(link, None)
        if link.target is not None:
            link.target.incoming.pop(link, None)
        links = self._links[link.lane]
        if links.get(link.peer) is link:
            del links[link.peer]
        queue, link.queue = link.queue, []
        return queue

    def _end(self, link: Link) -> None:
        queue = self._forget(link)
        if link.lane is Lane.CONTROL:
            self.control_dropped_count += len(queue)
        else:
            for payload in queue:
                self._drop(link.peer, payload)
        if self._idle_waiters:
            self._wake_idle()

    def _drop(self, peer: NodeId, payload: bytes) -> None:
        if self._inbox is not None:
            self._inbox.data_dropped(peer, payload)

    def _is_waiting(self) -> bool:
        return any(link.queue for links in self._links.values() for link in links.values())

    def _wake_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
