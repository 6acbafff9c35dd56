"""The sending half of a lane: one DEALER per peer, dialled on first use, that never receives.

Decides: when a link is dialled, what waits and what is dropped meanwhile, when a link has ended,
and when one that nobody uses is closed. Does not decide what a lost link means (`Inbox.link_lost`
tells the node), nor which links are kept open: it is told. Made by `node.zmq_transport`.

What waits is in the link's `node.outbox`, which also makes the frames.

Budget: `bench messaging`, rows remote_*; per frame one send, per turn one callback for all links;
nothing per message.

Life of a link: payloads wait in our own queue until the ZMTP handshake is done, so libzmq never
holds anything that could reach another process than the one that was meant. A connection is never
re-established behind our back: one that ends takes its queue with it, and the next send dials anew
with a new introduction. A dial that fails at once while a certain process was meant (its kernel
refuses) drops what waits; any other failure is tried again until `establish_s` is over.

A *kept* link is dialled although nothing waits for it, again and again, and has ZMTP heartbeats.
libzmq reads that option when it connects, so a link that becomes kept is replaced by a second
connection: made first, then used. Any other link ends quietly, without a word to the node, when it
was idle for long or when too many are open, the least recently used first; never while something
waits on it. Links of the data lane stay.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import zmq

from gossip.membership import NodeId
from node.addresses import endpoint, packed_number, resolve, without_brackets
from node.outbox import Frame, Outbox
from node.zmq_auth import ZAP_DOMAIN
from node.zmq_monitor import SocketMonitor

_PACES_MAX = 4096
STALE_ATTEMPT_S = 0.25
"""A dial that takes so long is begun anew when its address was heard."""
_QUIET_LINGER_MS = 200  # what is handed over leaves, also on a link that is closed quietly
_REPLACED_AFTER_S = 0.02  # what was sent on the old connection has arrived
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
    failure; for `failing_s` after one, messages to a new link are refused at once.
    `heartbeat_interval_s`, `heartbeat_timeout_s`: ZMTP heartbeats, on kept links; they
    end the link to a frozen process. `unacked_s`: a link whose bytes nobody acknowledged for so
    long is lost. `idle_s`: a control link that is not kept and was not sent on for so long is
    closed; one that was kept before, already after `unkept_idle_s`. `keep_delay_s`: a changed set
    of kept links is acted on after so long, for while a cluster forms it changes all the time.
    """

    establish_s: float = 2.0
    connect_s: float = 1.0
    handshake_s: float = 2.0
    redial_min_s: float = 0.05
    redial_max_s: float = 0.5
    failing_s: float = 5.0
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 3.0
    unacked_s: float = 10.0
    idle_s: float = 30.0
    unkept_idle_s: float = 1.0
    keep_delay_s: float = 0.5


class _Wire:
    """A socket that dials one peer, and what reports about it."""

    __slots__ = ("descriptor", "has_heartbeat", "monitor", "socket")

    def __init__(self, socket: zmq.Socket[bytes], *, has_heartbeat: bool) -> None:
        self.socket = socket
        self.has_heartbeat = has_heartbeat
        self.monitor: SocketMonitor | None = None
        self.descriptor = -1

    def close(self, linger_ms: int) -> None:
        """Close it, its monitor first."""
        if self.monitor is not None:
            self.monitor.close()
        self.socket.close(linger_ms)


class _Link(Generic[Queue]):
    """The way to one peer. Without a wire it waits for `redial`; `give_up` ends the wait.

    `next_wire` is dialled to replace the present one; `replace` ends the wait for that.
    """

    __slots__ = (
        "blocked",
        "dialled_at",
        "dirty",
        "give_up",
        "held",
        "hello",
        "is_sparse",
        "key",
        "next_wire",
        "number",
        "on_hold",
        "outbox",
        "peer",
        "port",
        "redial",
        "replace",
        "resolving",
        "sent_at",
        "socket",
        "up",
        "wire",
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
        self.on_hold = False  # blocked too, until the next wire takes over
        self.is_sparse = True  # lately no two messages left together
        self.dirty = False  # in the list of links to flush at the end of this turn
        self.dialled_at = 0.0
        self.sent_at = 0.0
        self.number = ""  # the numeric address that was dialled
        self.wire: _Wire | None = None
        self.socket: zmq.Socket[bytes] | None = None  # that of `wire`
        self.next_wire: _Wire | None = None
        self.replace: asyncio.TimerHandle | None = None
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

    At most `links_max` links, of which at most `open_max` (None: any number) established and not
    kept; None also means that idle ones stay.

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
        open_max: int | None,
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
        self._open_max = open_max
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
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._kept: dict[NodeId, int] = {}  # peer → port
        self._keep_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._up_count = 0
        self.dialled_count = 0  # connections begun
        self.closed_idle_count = 0  # established ones that nobody used
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
        if pace is not None and self._is_failing(pace):
            link.outbox.bar()
        link.give_up = self._loop.call_later(self._timing.establish_s, self._give_up, link)
        self._dial_when_allowed(link)
        return link.outbox

    def keep(self, peers: Mapping[NodeId, int]) -> None:
        """From now on keep exactly these links open, with heartbeats: peer → port of its lane."""
        if peers == self._kept:
            return
        self._kept = dict(peers)
        self._keep_soon(self._timing.keep_delay_s)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.call_later(self._timing.unkept_idle_s, self._look_for_idle)

    def has_heartbeat(self, peer: NodeId) -> bool:
        """True when the link to `peer` is established and tells a frozen process."""
        link = self._links.get(peer)
        return link is not None and link.up and link.wire is not None and link.wire.has_heartbeat

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
        """Drop the link to `peer` and what waits for it; it is not kept any more."""
        self._kept.pop(peer, None)
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
        for timer in (self._keep_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self.close_all(linger_ms)

    def close_all(self, linger_ms: int) -> None:
        """Drop all links; what was handed over already has `linger_ms` to leave this host."""
        for link in list(self._links.values()):
            self._end(link, linger_ms if link.up else 0)

    def address_lives(self, host: str, port: int) -> None:
        """Somebody who listens at this address was heard: dial without waiting any longer.

        An attempt that was begun before may have lost its first packet to a cut that is over; the
        kernel would repeat it a second later.
        """
        if self._paces.pop((host, port), None) is None:
            return
        stale_at = time.monotonic() - STALE_ATTEMPT_S
        for link in list(self._links.values()):
            if link.port != port or link.peer.host != host:
                continue
            if link.redial is not None:
                self._dial_when_allowed(link)
            elif not link.up and link.socket is not None and link.dialled_at < stale_at:
                self._shut(link, 0)
                self._dial(link)

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
        link.sent_at = time.monotonic()
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
            assert link.wire is not None
            self._loop.add_reader(link.wire.descriptor, self._on_writable, link)
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
        assert link.wire is not None
        link.blocked = False
        self._loop.remove_reader(link.wire.descriptor)
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
        link.number = number
        if self._server_keys is not None:
            keys = self._server_keys(link.peer)
            if not keys:
                self._refused(link.peer, 0, 0)
                self._attempt_failed(link, at_once=False)
                return
            # While a key is being replaced there are two, one after the other is tried.
            link.key = keys[self._pace_of(link).failure_count % len(keys)]
        link.wire = self._open_wire(link)
        if link.wire is None:
            self._attempt_failed(link, at_once=False)
        else:
            link.socket = link.wire.socket

    def _open_wire(self, link: _Link[Queue]) -> _Wire | None:
        """Dial; None when no descriptors are left, or libzmq cannot parse the address."""
        self.dialled_count += 1
        has_heartbeat = link.peer in self._kept
        wire = None
        try:
            socket = self._context.socket(zmq.DEALER)
            wire = _Wire(socket, has_heartbeat=has_heartbeat)
            for option, value in self._options.items():
                socket.setsockopt(option, value)
            socket.setsockopt(zmq.IPV6, int(":" in link.number))
            socket.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)  # speak to ZMTP 3 only
            if link.key:
                socket.setsockopt(zmq.CURVE_SERVERKEY, link.key)
            if has_heartbeat:
                timing = self._timing
                socket.setsockopt(zmq.HEARTBEAT_IVL, int(timing.heartbeat_interval_s * 1000))
                socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(timing.heartbeat_timeout_s * 1000))
            wire.descriptor = int(socket.getsockopt(zmq.FD))
            wire.monitor = SocketMonitor(
                self._context,
                socket,
                self._loop,
                name=f"link-{self.dialled_count}",
                events=_EVENTS,
                on_event=partial(self._on_event, link, wire),
            )
            socket.connect(endpoint(link.number, link.port))
        except zmq.ZMQError:
            if wire is not None:
                wire.close(0)
            return None
        return wire

    # -- what the monitor tells ---------------------------------------------------------------

    def _on_event(self, link: _Link[Queue], wire: _Wire, event: int, value: int) -> None:
        if wire is link.next_wire:
            self._on_next_wire(link, wire, event)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
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

    def _is_failing(self, pace: _Pace) -> bool:
        """It has failed of late. What failed long ago may have healed: the next message waits for
        the attempt instead of being lost on it."""
        failed_at = pace.next_at
        return bool(pace.failure_count) and time.monotonic() < failed_at + self._timing.failing_s

    def _established(self, link: _Link[Queue]) -> None:
        link.up = True
        self._up_count += 1
        link.outbox.unbar()
        if link.give_up is not None:
            link.give_up.cancel()
            link.give_up = None
        self.address_lives(link.peer.host, link.port)
        link.hello = self._hello(link.peer)
        assert link.socket is not None
        link.socket.getsockopt(zmq.EVENTS)  # lets the socket learn of its new pipe
        self._flush(link)
        if self._open_max is not None:
            self._make_room()
            if self._idle_timer is None:
                self._look_for_idle()
        if link.peer in self._kept and link.wire is not None and not link.wire.has_heartbeat:
            self._keep_soon(self._timing.keep_delay_s)

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
            pace = self._pace_of(link)
            pace.failure_count += 1
            pace.next_at = max(pace.next_at, time.monotonic())
        self._end(link)

    def _end(self, link: _Link[Queue], linger_ms: int = 0) -> None:
        """Forget a link; each payload that waits is reported as dropped."""
        del self._links[link.peer]
        self._shut(link, linger_ms)
        self._cancel_dial(link)
        if link.give_up is not None:
            link.give_up.cancel()
            link.give_up = None
        if link.peer in self._kept:
            self._keep_soon(self._timing.redial_min_s)
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
        """Close the sockets of a link."""
        self._drop_next_wire(link)
        wire, link.wire, link.socket = link.wire, None, None
        if wire is not None:
            if link.blocked:
                self._loop.remove_reader(wire.descriptor)
            wire.close(linger_ms)
        self._up_count -= link.up
        link.up = link.blocked = False

    # -- links that are kept ------------------------------------------------------------------

    def _keep_soon(self, delay_s: float) -> None:
        """Look after the kept links in a while, or earlier if that was planned before."""
        if self._closed or not self._kept:
            return
        if self._keep_timer is not None:
            if self._keep_timer.when() <= self._loop.time() + delay_s:
                return
            self._keep_timer.cancel()
        self._keep_timer = self._loop.call_later(delay_s, self._look_after_kept)

    def _look_after_kept(self) -> None:
        self._keep_timer = None
        for peer, port in list(self._kept.items()):
            link = self._links.get(peer)
            if link is None:
                if self.dial(peer, port) is None:
                    self._keep_soon(self._timing.redial_max_s)
            elif link.up and link.wire is not None and not link.wire.has_heartbeat:
                self._renew(link)

    def _renew(self, link: _Link[Queue]) -> None:
        """Dial a second connection, with heartbeats, to go on with."""
        if link.next_wire is not None:
            return
        if not link.blocked:
            link.next_wire = self._open_wire(link)
        if link.next_wire is None:
            self._keep_soon(self._timing.redial_max_s)
        else:
            connect_s = self._timing.connect_s + self._timing.handshake_s
            link.replace = self._loop.call_later(connect_s, self._renewal_failed, link)

    def _on_next_wire(self, link: _Link[Queue], wire: _Wire, event: int) -> None:
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED or link.blocked:
            self._renewal_failed(link)
            return
        # The peer refuses what arrives on the old connection after the introduction of the new
        # one: so nothing is sent for a moment, and what was sent before has gone ahead.
        link.blocked = link.on_hold = True
        wait_s = link.sent_at + _REPLACED_AFTER_S - time.monotonic()
        if link.replace is not None:
            link.replace.cancel()
        link.replace = self._loop.call_later(max(0.0, wait_s), self._replace, link, wire)

    def _renewal_failed(self, link: _Link[Queue]) -> None:
        was_on_hold = link.on_hold
        self._drop_next_wire(link)
        self._keep_soon(self._timing.redial_max_s)
        if was_on_hold:
            self._flush(link)

    def _replace(self, link: _Link[Queue], wire: _Wire) -> None:
        link.replace = None
        old, link.wire, link.next_wire = link.wire, wire, None
        assert old is not None
        old.close(_QUIET_LINGER_MS)
        link.socket = wire.socket
        link.blocked = link.on_hold = False
        link.hello = self._hello(link.peer)
        wire.socket.getsockopt(zmq.EVENTS)
        self._flush(link)

    def _drop_next_wire(self, link: _Link[Queue]) -> None:
        if link.replace is not None:
            link.replace.cancel()
            link.replace = None
        if link.on_hold:
            link.blocked = link.on_hold = False
        if link.next_wire is not None:
            link.next_wire.close(0)
            link.next_wire = None

    # -- links that nobody uses ---------------------------------------------------------------

    def _is_quiet(self, link: _Link[Queue]) -> bool:
        """It may be closed, and nothing is lost by that."""
        return (
            link.up
            and not link.blocked
            and link.hello is None
            and link.held is None
            and link.outbox.pending_bytes == 0
            and link.peer not in self._kept
        )

    def _close_quietly(self, link: _Link[Queue]) -> None:
        self.closed_idle_count += 1
        self._end(link, _QUIET_LINGER_MS)

    def _make_room(self) -> None:
        """Close the least recently used links beyond `open_max`."""
        assert self._open_max is not None
        excess = self._up_count - self._open_max - len(self._kept)
        if excess <= 0:
            return
        quiet = [link for link in self._links.values() if self._is_quiet(link)]
        quiet.sort(key=lambda link: link.sent_at)
        for link in quiet[:excess]:
            self._close_quietly(link)

    def _look_for_idle(self) -> None:
        """Close the idle links; come again when the next one may be idle."""
        timing, now = self._timing, time.monotonic()
        self._idle_timer = None
        next_at = math.inf
        for link in list(self._links.values()):
            if not link.up or link.peer in self._kept:
                continue
            assert link.wire is not None
            idle_s = timing.unkept_idle_s if link.wire.has_heartbeat else timing.idle_s
            due_at = link.sent_at + idle_s
            if due_at <= now and self._is_quiet(link):
                self._close_quietly(link)
            else:
                next_at = min(next_at, max(due_at, now + timing.unkept_idle_s))
        if next_at < math.inf:
            self._idle_timer = self._loop.call_later(next_at - now, self._look_for_idle)
