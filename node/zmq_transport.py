"""The sockets of a real node: two lanes over ZeroMQ.

Decides: what is bound, what a connection says of itself, how much may wait, what is closed in
which order. Does not decide what a frame means or when a peer is gone: it hands frames, lost links
and drops to an `Inbox`. Implements `node.environment.Transport`; built by `node.zmq_environment`.

Each lane is a ROUTER that only receives (`node.zmq_listener`) and one DEALER per peer that only
sends (`node.zmq_links`), in a ZeroMQ context of its own, so that bulk on the data lane never holds
up the I/O thread of the control lane. Plain sockets on the running loop, no `zmq.asyncio`.

With keys (`node.zmq_security`) only trusted ones connect, over CURVE, and each speaks as itself.
Without keys a process is believed about its identity by whoever it reaches: bind to loopback, or to
a network in which every process is trusted (`insecure`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq

from gossip.membership import NodeId
from node.addresses import is_loopback, is_wildcard, resolve
from node.dial_faults import DialFaults, broken_off, handshake_fault
from node.environment import DataLink, DialOutcome, Inbox, Lane, LinkRecord
from node.errors import AddressInUseError, SettingsError
from node.hello import Hello, pack_hello
from node.outbox import FRAME_BYTES_TARGET, ControlOutbox, DataOutbox
from node.wire import DATA_VERSION_MAX, DATA_VERSION_MIN
from node.zmq_links import Links, LinkTiming
from node.zmq_listener import Listener

if TYPE_CHECKING:
    from node.keys import KeyDirectory
    from node.zmq_security import Security

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = 8 * 1024 * 1024

_SOCKETS_MAX = 16_384  # of one context; a link takes three
_HEAD_BYTES_MAX = 4096
_LINGER_MS = 200
_KEEPALIVE: dict[int, int | bytes] = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """How much may wait, and for how long.

    `control_frame_bytes_max`: a control frame without its head (a larger payload is dropped by
    the sender). `control_pending_bytes_max`, `data_pending_bytes_max`: what waits for one peer.
    `links_max`: outgoing links per lane; `control_links_max`: those of the control lane that are
    established and not kept (above it the least recently used one is closed). `connections_max`:
    incoming ones remembered per lane; `half_open_max`: those whose handshake is not over (above it
    the ones that said nothing yet are ended; all of them end after `timing.handshake_s`).
    `ports_max`: learned data ports, and keys. `frames_high_mark`: frames per link inside libzmq, on
    each side, but `control_frames_unread_max` where the control lane is read: libzmq (4.3.5) aborts
    the process when it stopped reading a connection at its mark, a heartbeat is among what it has
    read, and the peer ends the connection. A blocked event loop must not reach the mark on the lane
    that has heartbeats. `drain_frames_max`, `drain_bytes_max`: what is taken in one turn of the
    loop, per lane.
    """

    control_frame_bytes_max: int = 256 * 1024
    control_pending_bytes_max: int = 4 * 1024 * 1024
    data_pending_bytes_max: int = 64 * 1024 * 1024
    links_max: int = 4096
    control_links_max: int = 64
    connections_max: int = 4096
    half_open_max: int = 512
    ports_max: int = 16_384
    frames_high_mark: int = 32
    control_frames_unread_max: int = 2048
    drain_frames_max: int = 64
    drain_bytes_max: int = 2 * 1024 * 1024
    timing: LinkTiming = field(default_factory=LinkTiming)


class ZmqTransport:
    """`Transport` over ZeroMQ. All methods belong to the thread of `loop`.

    `host` is both bound and advertised: a number, or a name (looked up when binding; peers look it
    up themselves, and the name stays the identity). Wildcards are refused, they are nobody's
    address. A port 0 is chosen by the system. `frame_bytes_max` (a data payload, without the head
    of its frame) must be the same on all nodes: a sender drops what a receiver would refuse.

    `control_dropped_count` counts control payloads that were not sent. `Inbox.data_dropped` may
    be called from within `close_links` and `close`.
    """

    def __init__(
        self,
        host: str,
        control_port: int,
        data_port: int = 0,
        *,
        loop: asyncio.AbstractEventLoop,
        versions: tuple[int, int] = (DATA_VERSION_MIN, DATA_VERSION_MAX),
        insecure: bool = False,
        keys: KeyDirectory | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        limits: TransportLimits | None = None,
    ) -> None:
        """Raises `SettingsError` for a wildcard host, a wrong port or too small a frame."""
        _check_host(host)
        _check_port("port", control_port)
        _check_port("data_port", data_port)
        if 0 < control_port == data_port:
            raise SettingsError(
                f"data_port={data_port} is the control port as well, but each lane needs its own: "
                f"choose another data_port, or 0 for any"
            )
        if frame_bytes_max < FRAME_BYTES_TARGET:
            raise SettingsError(
                f"frame_bytes_max={frame_bytes_max} is less than {FRAME_BYTES_TARGET}, up to which "
                f"messages are sent together: raise it"
            )
        self.host = host
        self.control_port = control_port
        self.data_port = data_port
        self.control_dropped_count = 0
        self.public_key = b"" if keys is None else keys.pair.public
        self._loop = loop
        self.versions = versions
        self._insecure = insecure
        self._security: Security | None = None
        if keys is not None:
            # A node without keys does without the memory of what handles them.
            from node.zmq_security import Security

            nodes_max = (limits or TransportLimits()).ports_max
            self._security = Security(keys, loop, nodes_max=nodes_max)
        self._dial_faults = DialFaults()
        self._frame_bytes_max = frame_bytes_max
        self._limits = limits or TransportLimits()
        self._contexts: dict[Lane, zmq.Context[zmq.Socket[bytes]]] = {}
        self._listeners: dict[Lane, Listener] = {}
        self._control: Links[ControlOutbox] | None = None
        self._data: Links[DataOutbox] | None = None
        self._self_id: NodeId | None = None
        self._inbox: Inbox | None = None
        self._link_number = 0
        # data port and newest version, from member records and from introductions
        self._learned: OrderedDict[NodeId, tuple[int, int]] = OrderedDict()
        self._heard: OrderedDict[NodeId, tuple[int, int]] = OrderedDict()
        self._closed = False

    # -- binding ------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Bind both lanes; afterwards `control_port` and `data_port` are known.

        Raises `AddressInUseError` when a port is taken, `SettingsError` when `host` does not
        resolve, is not an address of this machine, or is not loopback with neither keys nor
        `insecure`, and when the trusted keys hold our own to another address.
        """
        assert not self._contexts, "bind is called once"
        number = await self._bind_number()
        try:
            if self._security is not None:
                await self._security.resolve_names()
            self.control_port = self._bind_lane(Lane.CONTROL, number, self.control_port)
            self.data_port = self._bind_lane(Lane.DATA, number, self.data_port)
            if self._security is not None:
                self._security.check_own_address(self.host, self.control_port)
        except BaseException:
            await self.close()
            raise

    async def _bind_number(self) -> str:
        numbers = await resolve(self.host)
        if not numbers:
            raise SettingsError(
                f"host={self.host!r} does not resolve to an address, so nothing can be bound: "
                f"use an address of this machine, or mend the name service"
            )
        number = numbers[0]
        if is_loopback(number) or self._security is not None:
            return number
        if not self._insecure:
            raise SettingsError(
                f"host={self.host!r} is not loopback and this node has no keys, so anybody on the "
                f"network could speak as a member: give it keys (--keys DIR, see `python -m node "
                f"keygen --help`), bind to 127.0.0.1, or say insecure (--insecure) if every "
                f"process that reaches this network is trusted"
            )
        log.warning(
            "INSECURE: bound outside loopback without keys, every process on this network can "
            "speak as a member",
            extra={"host": self.host},
        )
        return number

    def _bind_lane(self, lane: Lane, number: str, port: int) -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._contexts[lane] = context
        context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        limits = self._limits
        security = self._security
        if security is not None:
            security.guard(lane, context)
        listener = self._listeners[lane] = Listener(
            lane,
            context,
            self._loop,
            versions=self.versions,
            connections_max=limits.connections_max,
            drain_frames_max=limits.drain_frames_max,
            drain_bytes_max=limits.drain_bytes_max,
            message_bytes_max=self._frame_bytes_max,
            turn_begin=self._turn_begin,
            turn_end=self._turn_end,
            half_open_max=limits.half_open_max,
            authorise=None if security is None else security.introduced,
        )
        payload_bytes_max = (
            self._frame_bytes_max if lane is Lane.DATA else limits.control_frame_bytes_max
        )
        options: dict[int, int | bytes] = {
            zmq.LINGER: 0,
            zmq.RCVHWM: (
                limits.control_frames_unread_max
                if lane is Lane.CONTROL
                else limits.frames_high_mark
            ),
            zmq.MAXMSGSIZE: payload_bytes_max + _HEAD_BYTES_MAX,
            zmq.HANDSHAKE_IVL: int(limits.timing.handshake_s * 1000),
            zmq.IPV6: int(":" in number),
            zmq.BACKLOG: 1024,
            **_KEEPALIVE,
            **({} if security is None else security.listener_options()),
        }
        try:
            return listener.bind(number, port, options)
        except zmq.ZMQError as error:
            raise _bind_error(lane, self.host, port, error) from error

    def open(self, self_id: NodeId, inbox: Inbox) -> None:
        """Begin to deliver to `inbox`, and to send as `self_id`. `bind` comes first.

        Called again, it only changes who we are: all outgoing links are closed, what waits there
        is dropped, and whoever means the former uid is refused.
        """
        assert self._contexts, "bind comes before open"
        if self._control is not None and self._data is not None:
            self._self_id = self_id
            for listener in self._listeners.values():
                listener.rename(self_id.uid)
            self._control.close_all(0)
            self._data.close_all(0)
            return
        self._self_id = self_id
        self._inbox = inbox
        limits = self._limits
        control_bytes_max, data_bytes_max = (
            limits.control_pending_bytes_max,
            limits.data_pending_bytes_max,
        )
        self._control = Links(
            **self._link_options(Lane.CONTROL, inbox),
            make_outbox=lambda _peer, wake: ControlOutbox(
                inbox.control_head, wake, pending_bytes_max=control_bytes_max
            ),
            dropped=self._control_dropped,
        )
        self._data = Links(
            **self._link_options(Lane.DATA, inbox),
            make_outbox=lambda peer, wake: DataOutbox(
                inbox.data_head,
                wake,
                version=min(self.versions[1], self._known(peer)[1]),
                pending_bytes_max=data_bytes_max,
            ),
            dropped=inbox.data_dropped,
        )
        for listener in self._listeners.values():
            listener.open(self_id.uid, inbox, self._on_introduced)
        if self._security is not None:
            self._security.open(inbox, self._trust_changed)

    def _link_options(self, lane: Lane, inbox: Inbox) -> dict[str, Any]:
        limits = self._limits
        timing = limits.timing
        security = self._security
        return {
            "context": self._contexts[lane],
            "loop": self._loop,
            "timing": timing,
            "links_max": limits.links_max,
            "open_max": limits.control_links_max if lane is Lane.CONTROL else None,
            "options": {
                zmq.LINGER: 0,
                zmq.IMMEDIATE: 1,
                zmq.SNDHWM: limits.frames_high_mark,
                # Nothing is ever received here: what a peer sends ends the link.
                zmq.RCVHWM: 1,
                zmq.MAXMSGSIZE: 1024,
                zmq.RECONNECT_IVL: -1,
                zmq.CONNECT_TIMEOUT: int(timing.connect_s * 1000),
                zmq.HANDSHAKE_IVL: int(timing.handshake_s * 1000),
                zmq.TCP_MAXRT: int(timing.unacked_s * 1000),
                **_KEEPALIVE,
                **({} if security is None else security.link_options()),
            },
            "server_keys": None if security is None else security.server_keys,
            "refused": self._dial_refused,
            "hello": lambda peer: self._hello(peer, lane),
            "lost": lambda peer: inbox.link_lost(peer, lane),
        }

    def _turn_begin(self) -> None:
        """Frames are going to be handed in: what they cause is sent at the end of this turn."""
        if self._inbox is not None and self._control is not None and self._data is not None:
            self._inbox.turn_begin()
            self._control.in_turn = self._data.in_turn = True

    def _turn_end(self) -> None:
        if self._inbox is not None:
            self._inbox.turn_end()
        if self._control is not None and self._data is not None:
            self._data.flush_turn()
            self._control.flush_turn()

    def _hello(self, peer: NodeId, lane: Lane) -> bytes:
        assert self._self_id is not None
        self._link_number += 1
        self._dial_faults.end(peer.address)
        return pack_hello(
            Hello(self._self_id, lane, self.data_port, peer.uid, self._link_number, *self.versions)
        )

    def _dial_refused(self, peer: NodeId, event: int, value: int) -> None:
        """A dial failed before or in its handshake: tell whoever can mend it why."""
        if event == 0:
            assert self._security is not None
            self._dial_faults.note(peer.address, self._security.why_no_key(peer))
            return
        why = handshake_fault(event, value, peer.address, self.public_key)
        if why is not None:
            self._dial_faults.note(peer.address, why)
        elif value in (errno.EPIPE, errno.ECONNRESET):
            self._dial_faults.suspect(peer.address, broken_off(peer.address, self.public_key))

    def _trust_changed(self) -> None:
        """Whom we do not trust any more speaks no longer with us, nor we with them."""
        for listener in self._listeners.values():
            listener.drop_distrusted()
        for links in (self._control, self._data):
            if links is not None:
                links.close_distrusted()

    def _control_dropped(self, _peer: NodeId, _payload: object) -> None:
        self.control_dropped_count += 1

    def _on_introduced(self, hello: Hello) -> None:
        sender = hello.sender
        self._remember(self._heard, sender, hello.data_port, hello.version_max)
        assert self._control is not None
        assert self._data is not None
        self._control.address_lives(sender.host, sender.port)
        self._data.address_lives(sender.host, hello.data_port)

    # -- sending ------------------------------------------------------------------------------

    def learn(
        self, peer: NodeId, data_port: int, protocol_max: int, public_key: bytes = b""
    ) -> None:
        """What a peer's member record says; believed before what it said itself.

        With keys, a record whose key is not that of the peer's connections is refused as a whole.
        """
        if self._security is None or self._security.learn(peer, public_key):
            self._remember(self._learned, peer, data_port, protocol_max)

    def forget(self, peer: NodeId) -> None:
        """It is no member any more: another process at its address may have another key."""
        self._dial_faults.end(peer.address)
        if self._security is not None:
            self._security.forget(peer)

    def key_of(self, peer: NodeId) -> bytes:
        """The key that the connections of `peer` have proven; empty without keys."""
        return b"" if self._security is None else self._security.key_of(peer)

    def dial_faults(self) -> dict[str, str]:
        """`host:port` → why a connection to it is refused, where only an operator can mend it."""
        return self._dial_faults.all()

    def _remember(
        self, known: OrderedDict[NodeId, tuple[int, int]], peer: NodeId, port: int, version: int
    ) -> None:
        known[peer] = (port, version)
        known.move_to_end(peer)
        if len(known) > self._limits.ports_max:
            known.popitem(last=False)

    def _known(self, peer: NodeId) -> tuple[int, int]:
        """A peer's data port (0: unknown) and the newest version it speaks."""
        return self._learned.get(peer) or self._heard.get(peer) or (0, self.versions[0])

    def send_control(self, to: NodeId, payload: bytes) -> None:
        """Queue one msgpack message; flushed with the others of this loop turn behind one head.

        Not sent (too large, too much waiting, no link within `establish_s`): counted in
        `control_dropped_count`.
        """
        links = self._control
        assert links is not None, "open comes before send"
        outbox = None
        if len(payload) <= self._limits.control_frame_bytes_max:
            outbox = links.outbox(to) or links.dial(to, to.port)
        if outbox is None or not outbox.push(payload):
            self.control_dropped_count += 1

    def keep_links(self, peers: Iterable[NodeId]) -> None:
        """Keep control links to exactly these open, with heartbeats; of the others the idle ones
        are closed, and the least recently used beyond `control_links_max`."""
        links = self._control
        assert links is not None, "open comes before keep_links"
        links.keep({peer: peer.port for peer in peers})

    def data_link(self, to: NodeId) -> DataLink | None:
        """The link to a peer's data lane, dialled if there is none; None when its port is not
        known, or there are too many links."""
        links = self._data
        assert links is not None, "open comes before send"
        outbox = links.outbox(to)
        if outbox is not None:
            return outbox
        port = self._known(to)[0]
        return links.dial(to, port) if port else None

    def counters(self) -> dict[str, int]:
        """Frames and bytes of both lanes since the start, and what became of control links."""
        counts = {"control_dropped": self.control_dropped_count}
        lanes = ((Lane.CONTROL, self._control), (Lane.DATA, self._data))
        for lane, links in lanes:
            if links is not None:
                counts[f"{lane.value}_frames_sent"] = links.frames_sent
                counts[f"{lane.value}_bytes_sent"] = links.bytes_sent
        if self._control is not None:
            counts["control_links_dialled"] = self._control.dialled_count
            counts["control_links_closed_idle"] = self._control.closed_idle_count
        for lane, listener in self._listeners.items():
            counts[f"{lane.value}_frames_received"] = listener.frames_received
            counts[f"{lane.value}_bytes_received"] = listener.bytes_received
        return counts

    def link_records(self) -> list[LinkRecord]:
        """How each outgoing link of both lanes is."""
        lanes = ((Lane.CONTROL, self._control), (Lane.DATA, self._data))
        return [
            LinkRecord(peer, lane, state, waiting_bytes)
            for lane, links in lanes
            if links is not None
            for peer, state, waiting_bytes in links.states()
        ]

    def close_links(self, peer: NodeId) -> None:
        """Forget the outgoing links to `peer`; what is queued there is dropped.

        No `link_lost` follows. The next send dials anew.
        """
        if self._control is not None:
            self._control.close(peer)
        if self._data is not None:
            self._data.close(peer)

    async def dial(self, host: str, port: int, timeout_s: float) -> DialOutcome:
        """A bare TCP dial that is closed at once. Never raises for what it meets.

        REFUSED only when a kernel said so (ECONNREFUSED) for every address of `host`. ACCEPTED
        when a kernel accepted for any: a listener that is just dying does so too, and the one of a
        stopped process. ANSWERED when the process there greeted: its I/O thread runs, whatever its
        event loop does.
        """
        outcomes: list[DialOutcome] = []
        if not 0 < port < 65536:
            return DialOutcome.UNKNOWN
        try:
            async with asyncio.timeout(timeout_s):
                for number in await resolve(host):
                    await self._dial_number(number, port, outcomes)
                    if DialOutcome.ANSWERED in outcomes:
                        return DialOutcome.ANSWERED
        except TimeoutError:
            accepted = DialOutcome.ACCEPTED in outcomes
            return DialOutcome.ACCEPTED if accepted else DialOutcome.UNKNOWN
        if DialOutcome.ACCEPTED in outcomes:
            return DialOutcome.ACCEPTED
        all_refused = bool(outcomes) and set(outcomes) == {DialOutcome.REFUSED}
        return DialOutcome.REFUSED if all_refused else DialOutcome.UNKNOWN

    async def _dial_number(self, number: str, port: int, outcomes: list[DialOutcome]) -> None:
        """Dial one address; what is known of it is in `outcomes` even if time runs out."""
        family = socket.AF_INET6 if ":" in number else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as dialler:
                dialler.setblocking(False)
                await self._connect(dialler, number, port)
                # TCP lets a socket connect to itself when the system picks the dialled port.
                if dialler.getsockname() == dialler.getpeername():
                    outcomes.append(DialOutcome.REFUSED)
                    return
                outcomes.append(DialOutcome.ACCEPTED)
                # Both ends of a ZMTP connection greet without being asked.
                if await self._loop.sock_recv(dialler, 1):
                    outcomes.append(DialOutcome.ANSWERED)
        except ConnectionRefusedError:
            outcomes.append(DialOutcome.REFUSED)
        except OSError:
            if not outcomes or outcomes[-1] is not DialOutcome.ACCEPTED:
                outcomes.append(DialOutcome.UNKNOWN)

    async def _connect(self, dialler: socket.socket, number: str, port: int) -> None:
        """As `loop.sock_connect`, which with uvloop loads the codec of international host names,
        some milliseconds and a megabyte, although this is a number."""
        error = dialler.connect_ex((number, port))
        if error == errno.EINPROGRESS:
            writable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_writer(dialler, _settle, writable)
            try:
                await writable
            finally:
                self._loop.remove_writer(dialler)
            error = dialler.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))

    # -- the end ------------------------------------------------------------------------------

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything queued was handed to ZeroMQ or dropped, at most `timeout_s`."""
        if self._control is None or self._data is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._control.idle()
                await self._data.idle()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close all sockets: the data lane, then the control lane with its listener last.

        What was handed over before has 200 ms per lane to leave; for so long, when a peer does not
        take it, the loop stands still. What still waits is dropped. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        for lane, links in ((Lane.DATA, self._data), (Lane.CONTROL, self._control)):
            if links is not None:
                links.end(_LINGER_MS)
            if lane in self._listeners:
                self._listeners[lane].close()
            if self._security is not None:
                self._security.close(lane)
            if lane in self._contexts:
                self._contexts[lane].term()


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _check_host(host: str) -> None:
    if is_wildcard(host):
        raise SettingsError(
            f"host={host!r} means every interface and is nobody's address, so peers could not "
            f"dial it: name the one address or host name at which peers reach this node"
        )


def _check_port(key: str, port: int) -> None:
    if not 0 <= port < 65536:
        raise SettingsError(f"{key}={port} is no port: use 1 to 65535, or 0 for any free one")


def _bind_error(
    lane: Lane, host: str, port: int, error: zmq.ZMQError
) -> AddressInUseError | SettingsError:
    key = "port" if lane is Lane.CONTROL else "data_port"
    what = f"cannot bind the {lane.value} lane to {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"{what}: another process listens there; stop it, or choose another {key} "
            f"(--{key.replace('_', '-')}; 0 = any free one)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingsError(
            f"{what}: host={host!r} is not an address of this machine; use one that is"
        )
    return SettingsError(f"{what}: {error.strerror}; choose another host or {key}")
