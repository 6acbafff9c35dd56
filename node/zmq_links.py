"""The sending half of a lane: one DEALER per peer, dialled on first use, that never receives.

Decides: when a link is dialled, what waits and what is dropped meanwhile, and when a link has
ended. Does not decide what a lost link means: `Inbox.link_lost` tells the node. Made by
`node.zmq_transport`.

What waits is in the link's `node.outbox`, which also makes the frames.

Budget: `bench messaging`, rows remote_*; per frame one send, per turn one callback for all links;
nothing per message.

Life of a link: payloads wait in our own queue until the ZMTP handshake is done, so libzmq never
holds anything that could reach another process than the one that was meant. A connection is never
re-established behind our back: one that ends takes its queue with it, and the next send dials anew
with a new introduction. A dial that fails at once while a certain process was meant (its kernel
refuses) drops what waits; any other failure is tried again until `establish_s` is over.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import zmq

from gossip.membership import NodeId
from node.addresses import endpoint, packed_number, resolve, without_brackets
from node.outbox import Frame, Outbox
from node.zmq_auth import ZAP_DOMAIN
from node.zmq_monitor import SocketMonitor

_PACES_MAX = 4096
# So much is handed over at once; then the loop's other work has its turn.
_FLUSH_BYTES_MAX = 4 * 1024 * 1024
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _HANDSHAKE_FAILED
)


Queue = TypeVar("Queue", bound=Outbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTiming:
    """Waits and paces of outgoing links; all in seconds.

    `establish_s`: payloads wait this long for a link. `connect_s`, `handshake_s`: one attempt.
    `redial_min_s` → `redial_max_s`: pause between two dials to one address, doubled by each
    failure. `heartbeat_interval_s`, `heartbeat_timeout_s`: ZMTP heartbeats, on the first
    `heartbeat_links_max` links of a lane; they end the link to a frozen process. `unacked_s`: a
    link whose bytes nobody acknowledged for so long is lost.
    """

    establish_s: float = 2.0
    connect_s: float = 1.0
    handshake_s: float = 2.0
    redial_min_s: float = 0.05
    redial_max_s: float = 1.0
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 3.0
    heartbeat_links_max: int = 4
    unacked_s: float = 10.0


class _Link(Generic[Queue]):
    """The way to one peer. Without a socket it waits for `redial`; `give_up` ends the wait."""

    __slots__ = (
        "blocked",
        "descriptor",
        "dialled_at",
        "dirty",
        "give_up",
        "has_heartbeat",
        "held",
        "hello",
        "is_sparse",
        "key",
        "monitor",
        "outbox",
        "peer",
        "port",
        "redial",
        "resolving",
        "socket",
        "up",
    )

    outbox: Queue

    def __init__(self, peer: NodeId, port: int) -> None:
        self.peer = peer
        self.port = port
        self.held: Frame | None = None  # made, and not taken by the socket
        self.hello: bytes | None = None  # not yet handed to the socket
        self.key = b""  # the far end must prove it; empty without keys
        self.up = False  # the handshake is done
        self.blocked = False  # the socket takes nothing more; its descriptor tells when it does
        self.is_sparse = True  # lately no two messages left together
        self.dirty = False  # in the list of links to flush at the end of this turn
        self.has_heartbeat = False
        self.dialled_at = 0.0
        self.descriptor = -1
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: SocketMonitor | None = None
        self.redial: asyncio.TimerHandle | None = None
        self.resolving: asyncio.Task[None] | None = None
        self.give_up: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Pace:
    """How fast one address may be dialled."""

    failure_count: int = 0
    next_at: float = 0.0


class Links(Generic[Queue]):
    """All outgoing links of one lane.

    `hello(peer)` makes the introduction of a new connection, `make_outbox(peer, wake)` its queue,
    `dropped(peer, item)` hears of each item that will not be sent, `lost(peer)` of each link that
    had been established and ended. `server_keys(peer)`: CURVE keys of which the far end must prove
    one; None without keys. `refused(peer, event, value)` hears of each handshake that failed, as
    the monitor tells it (0, 0: there is no key to expect of the peer).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        timing: LinkTiming,
        *,
        links_max: int,
        options: dict[int, int | bytes],
        server_keys: Callable[[NodeId], tuple[bytes, ...]] | None,
        refused: Callable[[NodeId, int, int], None],
        hello: Callable[[NodeId], bytes],
        make_outbox: Callable[[NodeId, Callable[[], None]], Queue],
        dropped: Callable[[NodeId, object], None],
        lost: Callable[[NodeId], None],
    ) -> None:
        self._context = context
        self._loop = loop
        self._timing = timing
        self._links_max = links_max
        self._options = options
        self._server_keys = server_keys
        self._refused = refused
        self._hello = hello
        self._make_outbox = make_outbox
        self._dropped = dropped
        self._lost = lost
        self._links: dict[NodeId, _Link[Queue]] = {}
        self._dirty: list[_Link[Queue]] = []
        self.in_turn = False  # `flush_turn` is going to be called: no callback is needed
        self._paces: OrderedDict[tuple[str, int], _Pace] = OrderedDict()
        self._dial_count = 0
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self.frames_sent = 0
        self.bytes_sent = 0

    def outbox(self, to: NodeId) -> Queue | None:
        """The queue of the link to `to`, if there is one, established or not."""
        link = self._links.get(to)
        return None if link is None else link.outbox

    def dial(self, to: NodeId, port: int) -> Queue | None:
        """A new link to `to`, whose lane listens at `port`; None when there are too many."""
        if self._closed or len(self._links) >= self._links_max:
            return None
        link: _Link[Queue] = _Link(to, port)
        link.outbox = self._make_outbox(to, lambda: self._woken(link))
        self._links[to] = link
        pace = self._paces.get((to.host, port))
        if pace is not None and pace.failure_count:
            link.outbox.bar()
        link.give_up = self._loop.call_later(self._timing.establish_s, self._give_up, link)
        self._dial_when_allowed(link)
        return link.outbox

    def states(self) -> list[tuple[NodeId, str, int]]:
        """Peer, state and waiting bytes of each link; the states are those of `LinkRecord`."""
        found = []
        for peer, link in self._links.items():
            pace = self._paces.get((peer.host, link.port))
            failing = pace is not None and pace.failure_count > 0
            state = "up" if link.up else "failing" if failing else "dialling"
            found.append((peer, state, link.outbox.pending_bytes))
        return found

    def close(self, peer: NodeId) -> None:
        """Drop the link to `peer` and what waits for it."""
        link = self._links.get(peer)
        if link is not None:
            self._end(link)

    def close_distrusted(self) -> None:
        """Drop the links whose far end is trusted no more, or has another key to prove by now."""
        if self._server_keys is None:
            return
        for link in list(self._links.values()):
            if link.socket is not None and link.key not in self._server_keys(link.peer):
                self._end(link)

    def end(self, linger_ms: int) -> None:
        """Drop all links and whatever is sent from now on; see `close_all`."""
        self._closed = True
        self.close_all(linger_ms)

    def close_all(self, linger_ms: int) -> None:
        """Drop all links; what was handed over already has `linger_ms` to leave this host."""
        for link in list(self._links.values()):
            self._end(link, linger_ms if link.up else 0)

    def address_lives(self, host: str, port: int) -> None:
        """Somebody who listens at this address was heard: dial without waiting any longer."""
        if self._paces.pop((host, port), None) is None:
            return
        for link in list(self._links.values()):
            if link.redial is not None and link.port == port and link.peer.host == host:
                self._dial_when_allowed(link)

    async def idle(self) -> None:
        """Wait until nothing waits here that has a way out, be it handed over or dropped.

        What waits for an address where nobody answers, or for whoever may be at a seed's, is not
        waited for.
        """
        while any(
            link.outbox.pending_bytes and self._has_way_out(link) for link in self._links.values()
        ):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _has_way_out(self, link: _Link[Queue]) -> bool:
        pace = self._paces.get((link.peer.host, link.port))
        return link.up or (link.peer.uid != 0 and (pace is None or pace.failure_count == 0))

    def _wake_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- sending ------------------------------------------------------------------------------

    def flush_turn(self) -> None:
        """Send what waits on all links now."""
        self.in_turn = False
        if self._dirty:
            self._flush_dirty()

    def _woken(self, link: _Link[Queue]) -> None:
        """There is something new in its queue."""
        if not link.up or link.blocked:
            return
        if link.dirty:
            self._flush(link, full_only=True)
            return
        link.dirty = True
        self._dirty.append(link)
        if self.in_turn:
            return
        if link.is_sparse:
            # Whoever asks one thing at a time need not wait for the next turn of the loop. What
            # follows in this turn leaves together at its end.
            self._flush(link)
            link.is_sparse = True
        if len(self._dirty) == 1:
            self._loop.call_soon(self._flush_dirty)

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.dirty = False
        for link in dirty:
            if link.up and not link.blocked:
                self._flush(link)

    def _flush(self, link: _Link[Queue], *, full_only: bool = False) -> None:
        """Hand over frames until the queue is empty or the socket takes no more; when there is
        very much, some of it in the next turn."""
        socket, outbox = link.socket, link.outbox
        assert socket is not None
        left_bytes = _FLUSH_BYTES_MAX
        try:
            if link.hello is not None:
                socket.send(link.hello, zmq.NOBLOCK)
                link.hello = None
            while True:
                frame = link.held
                if frame is None:
                    frame = outbox.next_frame(full_only=full_only)
                    if frame is None:
                        break
                link.held = frame
                link.is_sparse = len(frame.items) <= 1
                parts = frame.parts
                if len(parts) == 1:
                    socket.send(parts[0], zmq.NOBLOCK)
                    self.bytes_sent += len(parts[0])
                else:
                    # The pipe takes a message whole: after its first part it is not full.
                    socket.send(parts[0], zmq.NOBLOCK | zmq.SNDMORE)
                    socket.send(parts[1], zmq.NOBLOCK, copy=False)
                    self.bytes_sent += len(parts[0]) + len(parts[1])
                link.held = None
                outbox.sent(frame)
                self.frames_sent += 1
                left_bytes -= frame.cost
                if left_bytes <= 0:
                    self._flush_later(link)
                    return
        except zmq.Again:
            # The descriptor is read only while blocked: else it would tell of each frame taken.
            link.blocked = True
            self._loop.add_reader(link.descriptor, self._on_writable, link)
            return
        if not full_only:
            outbox.is_dirty = False
        if self._idle_waiters:
            self._wake_idle()

    def _flush_later(self, link: _Link[Queue]) -> None:
        if not link.dirty:
            link.dirty = True
            self._dirty.append(link)
            if len(self._dirty) == 1:
                self._loop.call_soon(self._flush_dirty)

    def _on_writable(self, link: _Link[Queue]) -> None:
        socket = link.socket
        if socket is None or not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            return
        link.blocked = False
        self._loop.remove_reader(link.descriptor)
        self._flush(link)

    # -- dialling -----------------------------------------------------------------------------

    def _pace_of(self, link: _Link[Queue]) -> _Pace:
        key = (link.peer.host, link.port)
        pace = self._paces.setdefault(key, _Pace())
        self._paces.move_to_end(key)
        if len(self._paces) > _PACES_MAX:
            self._paces.popitem(last=False)
        return pace

    def _dial_when_allowed(self, link: _Link[Queue]) -> None:
        self._cancel_dial(link)
        delay_s = self._pace_of(link).next_at - time.monotonic()
        if delay_s > 0:
            link.redial = self._loop.call_later(delay_s, self._dial, link)
        else:
            self._dial(link)

    def _dial(self, link: _Link[Queue]) -> None:
        link.redial = None
        pace = self._pace_of(link)
        link.dialled_at = time.monotonic()
        pace.next_at = link.dialled_at + self._timing.redial_min_s
        if packed_number(link.peer.host) is not None:
            self._connect(link, without_brackets(link.peer.host))
        else:
            link.resolving = self._loop.create_task(self._resolve_and_connect(link))

    async def _resolve_and_connect(self, link: _Link[Queue]) -> None:
        numbers = await resolve(link.peer.host)
        link.resolving = None
        if numbers:
            # A name may stand for several addresses, one after the other is tried.
            self._connect(link, numbers[self._pace_of(link).failure_count % len(numbers)])
        else:
            self._attempt_failed(link, at_once=False)

    def _connect(self, link: _Link[Queue], number: str) -> None:
        self._dial_count += 1
        if self._server_keys is not None:
            keys = self._server_keys(link.peer)
            if not keys:
                self._refused(link.peer, 0, 0)
                self._attempt_failed(link, at_once=False)
                return
            # While a key is being replaced there are two, one after the other is tried.
            link.key = keys[self._pace_of(link).failure_count % len(keys)]
        try:
            socket = link.socket = self._context.socket(zmq.DEALER)
            for option, value in self._options.items():
                socket.setsockopt(option, value)
            socket.setsockopt(zmq.IPV6, int(":" in number))
            socket.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)  # speak to ZMTP 3 only
            if link.key:
                socket.setsockopt(zmq.CURVE_SERVERKEY, link.key)
            self._set_heartbeat(link, socket)
            link.descriptor = int(socket.getsockopt(zmq.FD))
            link.monitor = SocketMonitor(
                self._context,
                socket,
                self._loop,
                name=f"link-{self._dial_count}",
                events=_EVENTS,
                on_event=lambda event, value: self._on_event(link, event, value),
            )
            socket.connect(endpoint(number, link.port))
        except zmq.ZMQError:
            # No descriptors left, or an address libzmq cannot parse.
            self._attempt_failed(link, at_once=False)

    def _set_heartbeat(self, link: _Link[Queue], socket: zmq.Socket[bytes]) -> None:
        timing = self._timing
        beating = sum(other.has_heartbeat for other in self._links.values())
        if beating < timing.heartbeat_links_max:
            link.has_heartbeat = True
            socket.setsockopt(zmq.HEARTBEAT_IVL, int(timing.heartbeat_interval_s * 1000))
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(timing.heartbeat_timeout_s * 1000))

    # -- what the monitor tells ---------------------------------------------------------------

    def _on_event(self, link: _Link[Queue], event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._established(link)
        elif link.up:
            # Only an end can follow: DISCONNECTED, or CLOSED. A peer that takes links only to
            # end them is not dialled in a tight circle.
            self._pace_of(link).next_at = link.dialled_at + self._timing.redial_min_s
            self._end(link)
            self._lost(link.peer)
        else:
            if event & _HANDSHAKE_FAILED:
                self._refused(link.peer, event, value)
            elapsed_s = time.monotonic() - link.dialled_at
            refused = event == zmq.EVENT_CLOSED and elapsed_s < self._timing.connect_s
            self._attempt_failed(link, at_once=refused)

    def _established(self, link: _Link[Queue]) -> None:
        link.up = True
        link.outbox.unbar()
        if link.give_up is not None:
            link.give_up.cancel()
            link.give_up = None
        self.address_lives(link.peer.host, link.port)
        link.hello = self._hello(link.peer)
        assert link.socket is not None
        link.socket.getsockopt(zmq.EVENTS)  # lets the socket learn of its new pipe
        self._flush(link)

    def _attempt_failed(self, link: _Link[Queue], *, at_once: bool) -> None:
        self._shut(link, 0)
        pace = self._pace_of(link)
        timing = self._timing
        pause_s = min(timing.redial_max_s, timing.redial_min_s * 2.0 ** min(pace.failure_count, 16))
        pace.failure_count += 1
        pace.next_at = max(pace.next_at, time.monotonic() + pause_s)
        if at_once and link.peer.uid != 0:
            self._end(link)
        else:
            link.outbox.bar()
            self._dial_when_allowed(link)
            if self._idle_waiters:
                self._wake_idle()

    def _give_up(self, link: _Link[Queue]) -> None:
        link.give_up = None
        if link.socket is not None:
            self._pace_of(link).failure_count += 1
        self._end(link)

    def _end(self, link: _Link[Queue], linger_ms: int = 0) -> None:
        """Forget a link; each payload that waits is reported as dropped."""
        del self._links[link.peer]
        self._shut(link, linger_ms)
        self._cancel_dial(link)
        if link.give_up is not None:
            link.give_up.cancel()
            link.give_up = None
        held, link.held = link.held, None
        link.outbox.close()
        lost = [*(held.items if held is not None else ()), *link.outbox.drain()]
        for item in lost:
            self._dropped(link.peer, item)
        if self._idle_waiters:
            self._wake_idle()

    def _cancel_dial(self, link: _Link[Queue]) -> None:
        if link.redial is not None:
            link.redial.cancel()
            link.redial = None
        if link.resolving is not None:
            link.resolving.cancel()
            link.resolving = None

    def _shut(self, link: _Link[Queue], linger_ms: int) -> None:
        """Close the socket of a link, its monitor first."""
        if link.monitor is not None:
            link.monitor.close()
            link.monitor = None
        if link.socket is not None:
            if link.blocked:
                self._loop.remove_reader(link.descriptor)
            link.socket.close(linger_ms)
            link.socket = None
        link.up = link.blocked = link.has_heartbeat = False
        link.descriptor = -1
