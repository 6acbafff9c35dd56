"""The receiving half of a lane: one bound ROUTER that never sends.

Decides: whose frames are handed on. A frame's sender is the process that introduced its connection
(`node.hello`); a frame on any other connection is refused with a reason. Does not decide what a
frame means. Made by `node.zmq_transport`.

Budget: `bench messaging`, rows remote_* and bulk_*; per frame two receives, one option read, one
table look-up. What is read in one turn is bounded in frames and in bytes; at its end the actors it
woke run and what they sent leaves, all within one callback.

Reasons given to `Inbox.frame_refused`:

- "no-hello", "bad-hello", "wire-version": the connection was not introduced, or not acceptably;
- "wrong-uid": the connection means a process that ran at our address before us;
- "superseded": its process has introduced a later connection on this lane;
- "second-hello": a connection tried to change its identity;
- "unknown-key" (from `node.zmq_security`), "wrong-key", "revoked-key": with keys, the connection's
  key is not trusted, is not that of the node it says it is, or is trusted no more; it is ended;
- "half-open": one of too many connections that said nothing yet; it is ended;
- "malformed": an empty frame, or a message of several parts;
- "handshake": a connection that spoke ZMTP but not to its end (per connection);
- "foreign": a connection that did not speak ZMTP 3, an HTTP client for example (per connection).

A connection that closes before its handshake is neither: peers dial so to ask the kernel whether
we live. A frame above `frame_bytes_max` is no event either: libzmq ends its connection unread.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import zmq

from gossip.membership import NodeId
from node.addresses import endpoint
from node.environment import Inbox, Lane, LinkMemory
from node.hello import MAGIC, Hello, HelloRefusal, unpack_hello
from node.tcp_connections import TcpConnection, bytes_received, hang_up, identify
from node.zmq_auth import ZAP_DOMAIN
from node.zmq_monitor import SocketMonitor

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | _HANDSHAKE_FAILED
)
_SPARSE_BYTES = 512
_ALONE_MIN = 8  # so many frames came alone, one after the other: the next one will too
_CLOSED_BY_PEER = (errno.EPIPE, errno.ECONNRESET)
_FORGET_AFTER_S = 1.0  # what came on a connection before its end has been read by then

# A client that has come to the end of its handshake has sent at least so much: the greeting and
# READY, or with CURVE the greeting, HELLO and INITIATE.
SILENT_BYTES = 64 + 40
SILENT_BYTES_CURVE = 64 + 202 + 259
SILENT_LOOKED_AT_MAX = 16  # for each connection that is one too many


class _Source(NamedTuple):
    """What libzmq knows of the connection a frame came on: the key it has proven (empty without
    keys), and its TCP connection. `is_known` and no `tcp`: it has ended already."""

    public_key: bytes
    tcp: TcpConnection | None
    is_known: bool = True


class _Connection:
    """An introduced connection; its identity never changes.

    `key`: of one process only connections that mean the same uid supersede each other; a seed is
    dialled as "whoever is there" and, once it is known, as itself, and both links go on.
    """

    __slots__ = ("key", "link_number", "memory", "sender", "source")

    def __init__(
        self,
        sender: NodeId,
        meant_uid: int,
        link_number: int,
        memory: LinkMemory,
        source: _Source,
    ) -> None:
        self.memory = memory
        self.source = source
        self.sender = sender
        self.key = (sender, meant_uid)
        self.link_number = link_number


class Listener:
    """Binds one lane and hands frames to an `Inbox`, with the node that sent them.

    `connections_max` introduced connections are remembered, the ones silent for longest are
    forgotten first (their frames are then "no-hello"); as many refused ones are remembered beside
    them, so a flood of strangers displaces no member. Either is forgotten a while after its TCP
    connection has ended. Of connections whose handshake is not over
    those beyond `half_open_max` are ended, the oldest that said nothing yet first.

    `authorise(sender, key)`: with keys, why a connection with this key cannot be `sender`'s.
    """

    def __init__(
        self,
        lane: Lane,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        *,
        versions: tuple[int, int],
        connections_max: int,
        drain_frames_max: int,
        drain_bytes_max: int,
        message_bytes_max: int,
        turn_begin: Callable[[], None],
        turn_end: Callable[[], None],
        half_open_max: int,
        authorise: Callable[[NodeId, bytes], HelloRefusal | None] | None,
    ) -> None:
        self._lane = lane
        self._context = context
        self._loop = loop
        self._versions = versions
        self._connections_max = connections_max
        self._drain_frames_max = drain_frames_max
        self._drain_bytes_max = drain_bytes_max
        self._message_bytes_max = message_bytes_max
        self._turn_begin = turn_begin
        self._turn_end = turn_end
        self._half_open_max = half_open_max
        self._authorise = authorise
        self._silent_bytes = SILENT_BYTES if authorise is None else SILENT_BYTES_CURVE
        self._port = 0
        self._introduced: OrderedDict[bytes, _Connection] = OrderedDict()
        self._refused: OrderedDict[bytes, HelloRefusal] = OrderedDict()
        self._current: dict[tuple[NodeId, int], bytes] = {}
        self._shaking: dict[int, None] = {}  # descriptors whose handshake has no outcome yet
        self._hung_up: set[int] = set()  # of those, ended by us
        # By descriptor, the connections that are remembered; and those to look at, have they ended.
        # What an ended one had sent may be read when its descriptor is another one's already, so
        # there can be several: they are all looked at when it is closed.
        self._routes: dict[int, list[tuple[bytes, TcpConnection]]] = {}
        self._to_look_at: list[tuple[bytes, TcpConnection | None]] = []
        self._ended_early: set[int] = set()  # of connections that were not introduced (yet)
        self._looking: asyncio.TimerHandle | None = None
        self._handshake_failed = False
        self.frames_received = 0
        self.bytes_received = 0
        self._alone_count = 0
        self._did_not_ask = False
        self._skipping = False
        self._scheduled = False
        self._self_uid = 0
        self._inbox: Inbox | None = None
        self._welcome: Callable[[Hello], None] = _nobody_else
        self._socket: zmq.Socket[bytes] | None = None
        self._descriptor = -1
        self._monitor: SocketMonitor | None = None

    def bind(self, number: str, port: int, options: dict[int, int | bytes]) -> int:
        """Bind to a numeric address; returns the port (the one chosen, when `port` is 0).

        Raises `zmq.ZMQError`; everything is closed then.
        """
        socket = self._socket = self._context.socket(zmq.ROUTER)
        try:
            for option, value in options.items():
                socket.setsockopt(option, value)
            # With a domain libzmq turns away what does not speak ZMTP 3; without one it takes
            # any bytes (an HTTP request) for a peer of ZMTP 1 and keeps the connection.
            socket.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            self._monitor = SocketMonitor(
                self._context,
                socket,
                self._loop,
                name="listener",
                events=_EVENTS,
                on_event=self._on_event,
            )
            socket.bind(endpoint(number, port))
            bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        except zmq.ZMQError:
            self.close()
            raise
        self._port = int(bytes(bound).rstrip(b"\0").rpartition(b":")[2])
        return self._port

    def open(
        self,
        self_uid: int,
        inbox: Inbox,
        welcome: Callable[[Hello], None],
    ) -> None:
        """Begin to hand frames to `inbox`; `welcome` hears of each accepted Hello first."""
        assert self._socket is not None, "bind comes before open"
        self._self_uid = self_uid
        self._inbox = inbox
        self._welcome = welcome
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        # The descriptor is edge-triggered: what arrived before add_reader is never told.
        self._schedule()

    def rename(self, self_uid: int) -> None:
        """This process goes by another uid from now on; who means the former one is refused."""
        self._self_uid = self_uid
        for routing_id, connection in list(self._introduced.items()):
            sender, meant_uid = connection.key
            if meant_uid not in (0, self_uid):
                del self._introduced[routing_id]
                del self._current[connection.key]
                self._remember_refused(routing_id, _wrong_uid(sender, meant_uid, self_uid))

    def drop_distrusted(self) -> None:
        """Whom `authorise` does not let in any more is refused from now on, and hung up on."""
        if self._authorise is None:
            return
        for routing_id, connection in list(self._introduced.items()):
            refusal = self._authorise(connection.sender, connection.source.public_key)
            if refusal is not None:
                del self._introduced[routing_id]
                del self._current[connection.key]
                self._remember_refused(routing_id, refusal)
                self._refuse(refusal.reason, refusal.detail)
                if connection.source.tcp is not None:
                    hang_up(connection.source.tcp)

    def close(self) -> None:
        """Stop listening and drop all connections. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        if self._socket is not None:
            if self._descriptor >= 0:
                self._loop.remove_reader(self._descriptor)
                self._descriptor = -1
            self._socket.close(0)
            self._socket = None
        self._inbox = None

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain_again)

    def _drain_again(self) -> None:
        self._scheduled = False
        self._drain()

    def _drain(self) -> None:
        drained = False
        self._turn_begin()
        try:
            drained = self._receive()
        finally:
            if not drained:  # the budget ran out, or the inbox raised: the edge is spent, go on
                self._schedule()
            self._turn_end()

    def _receive(self) -> bool:
        """Take at most a budget of frames; True when nothing is left."""
        introduced = self._introduced
        is_data = self._lane is Lane.DATA
        left_bytes = self._drain_bytes_max
        taken = 0
        for _ in range(self._drain_frames_max):
            socket = self._socket
            if socket is None:
                return True
            if left_bytes <= 0:
                return False
            try:
                first = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._nothing_left(taken)
                return True
            if self._did_not_ask:
                self._alone_count = 0  # there was another one
                self._did_not_ask = False
            if self._skipping:
                self._skipping = bool(socket.getsockopt(zmq.RCVMORE))
                continue
            connection = introduced.get(first)
            whole = None
            if connection is None:
                # As an object it tells where it comes from, which an introduction is asked for.
                whole = socket.recv(zmq.NOBLOCK, copy=False)
                frame = whole.bytes
            else:
                frame = socket.recv(zmq.NOBLOCK)
            size = len(frame)
            left_bytes -= size
            self.frames_received += 1
            self.bytes_received += size
            if socket.getsockopt(zmq.RCVMORE):
                if connection is None or not is_data:
                    self._skipping = True
                    self._refuse("malformed", "a message of several parts")
                else:
                    left_bytes -= self._take_piece(socket, connection, frame)
                continue
            if connection is None or frame.startswith(MAGIC) or not frame:
                self._take_unusual(first, frame, connection, whole)
                continue
            introduced.move_to_end(first)
            inbox = self._inbox
            assert inbox is not None
            if is_data:
                inbox.data_frame(connection.sender, frame, connection.memory)
            else:
                inbox.control_frame(connection.sender, frame)
            taken += 1
            if self._alone_count >= _ALONE_MIN and size < _SPARSE_BYTES:
                # Probably there is nothing else. To ask takes as long as to answer, and whoever
                # waits for an answer to this one need not wait for that.
                self._did_not_ask = True
                return False
        return False

    def _nothing_left(self, taken: int) -> None:
        """Learn whether frames come one by one, from how many there were."""
        if taken == 1:
            self._alone_count += 1
        elif taken > 1:
            self._alone_count = 0
        self._did_not_ask = False

    def _take_piece(self, socket: zmq.Socket[bytes], connection: _Connection, header: bytes) -> int:
        """The second half of a message of two: a piece of a large one. Returns its size."""
        piece = socket.recv(zmq.NOBLOCK, copy=False)
        if socket.getsockopt(zmq.RCVMORE):
            self._skipping = True
            self._refuse("malformed", "a message of several parts")
            return len(piece)
        if self._inbox is not None:
            self.bytes_received += len(piece)
            self._inbox.data_piece(connection.sender, header, piece.buffer, connection.memory)
        return len(piece)

    def _source_of(self, frame: zmq.Frame | None) -> _Source:
        """What libzmq tells of the connection that a frame came on."""
        if frame is None:
            return _Source(b"", None, is_known=False)
        try:
            key = bytes.fromhex(str(frame.get("User-Id"))) if self._authorise is not None else b""
            return _Source(key, identify(int(frame.get("__fd")), self._port))
        except (zmq.ZMQError, ValueError):
            return _Source(b"", None, is_known=False)

    def _take_unusual(
        self,
        routing_id: bytes,
        frame: bytes,
        known: _Connection | None,
        whole: zmq.Frame | None,
    ) -> None:
        """A frame that is not simply the next one of an introduced connection."""
        if not frame:
            self._refuse("malformed", "an empty frame")
            return
        if known is not None:
            self._refuse("second-hello", f"on the connection of {known.sender}")
            return
        refusal = self._refused.get(routing_id)
        if refusal is None:
            hello = unpack_hello(frame, self._versions, self._lane)
            if isinstance(hello, HelloRefusal):
                refusal = hello
            else:
                source = self._source_of(whole)
                refusal = self._introduce(routing_id, hello, source)
                tcp = source.tcp
                if tcp is not None and tcp.descriptor not in self._ended_early:
                    self._routes.setdefault(tcp.descriptor, []).append((routing_id, tcp))
                elif source.is_known:
                    self._look_later(routing_id, tcp)
                    if tcp is not None:
                        self._ended_early.discard(tcp.descriptor)
        if refusal is not None:
            self._remember_refused(routing_id, refusal)
            self._refuse(refusal.reason, refusal.detail)

    def _introduce(self, routing_id: bytes, hello: Hello, source: _Source) -> HelloRefusal | None:
        """Accept a connection, or tell why not."""
        if len(routing_id) != 5 or routing_id[0] != 0:
            # Ids that libzmq gives are never used twice; one that a peer chose could come back
            # on another connection and inherit this identity.
            return HelloRefusal("bad-hello", f"{hello.sender} chose its own routing id")
        if self._authorise is not None:
            refusal = self._authorise(hello.sender, source.public_key)
            if refusal is not None:
                if source.tcp is not None:
                    hang_up(source.tcp)
                return refusal
        if hello.meant_uid not in (0, self._self_uid):
            return _wrong_uid(hello.sender, hello.meant_uid, self._self_uid)
        superseded = HelloRefusal("superseded", f"{hello.sender} has a later connection")
        former_id = self._current.get((hello.sender, hello.meant_uid))
        if former_id is not None:
            former = self._introduced[former_id]
            # Both may be read in either order; only the later one may speak, or frames of one
            # sender would overtake each other.
            if former.link_number >= hello.link_number:
                return superseded
            del self._introduced[former_id]
            self._remember_refused(former_id, superseded)
        elif len(self._introduced) >= self._connections_max:
            _, forgotten = self._introduced.popitem(last=False)
            del self._current[forgotten.key]
        connection = _Connection(
            hello.sender,
            hello.meant_uid,
            hello.link_number,
            LinkMemory(self._message_bytes_max),
            source,
        )
        self._introduced[routing_id] = connection
        self._current[connection.key] = routing_id
        self._welcome(hello)
        return None

    def _remember_refused(self, routing_id: bytes, refusal: HelloRefusal) -> None:
        if refusal.reason == "no-hello":
            return  # it may still introduce itself
        self._refused[routing_id] = refusal
        self._refused.move_to_end(routing_id)
        if len(self._refused) > self._connections_max:
            self._refused.popitem(last=False)

    def _refuse(self, reason: str, detail: str) -> None:
        if self._inbox is not None:
            self._inbox.frame_refused(self._lane, reason, detail)

    def _on_event(self, event: int, value: int) -> None:
        """Count the connections that libzmq itself turned away."""
        if event == zmq.EVENT_ACCEPTED:
            self._shaking[value] = None
            if len(self._shaking) > self._half_open_max:
                self._end_a_silent_one()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            # It does not say which. Taking the oldest one keeps the sums right, and who is left
            # over is told by its end.
            if self._shaking:
                del self._shaking[next(iter(self._shaking))]
        elif event == zmq.EVENT_DISCONNECTED:
            ended = self._routes.pop(value, None)
            if ended is not None:
                for one in ended:
                    self._look_later(*one)
            else:
                self._ended_early.add(value)
            failed, self._handshake_failed = self._handshake_failed, False
            if value in self._hung_up:
                self._hung_up.discard(value)
            elif value in self._shaking:
                del self._shaking[value]
                if not failed:
                    self._refuse("foreign", "a connection that does not speak ZMTP 3")
            elif failed and self._shaking:
                del self._shaking[next(iter(self._shaking))]
        elif event == zmq.EVENT_ACCEPT_FAILED:
            self._refuse("handshake", f"accept failed: {os.strerror(value)}")
        elif event & _HANDSHAKE_FAILED:
            # libzmq reports the failure and the end of a connection together, in this order.
            self._handshake_failed = True
            # A key that is not trusted was counted when its doorkeeper was asked.
            if value not in _CLOSED_BY_PEER and event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._refuse("handshake", f"failed with {_failure(event, value)}")

    def _look_later(self, routing_id: bytes, tcp: TcpConnection | None) -> None:
        self._to_look_at.append((routing_id, tcp))
        if self._looking is None:
            self._looking = self._loop.call_later(_FORGET_AFTER_S, self._forget_ended)

    def _forget_ended(self) -> None:
        """Forget which connections have ended.

        Frames and events come on different ways, so an end may be told before the introduction,
        and a descriptor be another connection's by then: what counts is what the kernel says.
        """
        self._looking = None
        entries, self._to_look_at = self._to_look_at, []
        for routing_id, tcp in entries:
            if self._scheduled:  # there is more to read, perhaps of its
                self._look_later(routing_id, tcp)
            elif tcp is not None and identify(tcp.descriptor, self._port) == tcp:
                self._routes.setdefault(tcp.descriptor, []).append((routing_id, tcp))
            else:
                connection = self._introduced.pop(routing_id, None)
                if connection is not None:
                    del self._current[connection.key]
                self._refused.pop(routing_id, None)

    def _end_a_silent_one(self) -> None:
        """Too many handshakes at once: make room, where the system tells who said nothing yet."""
        for descriptor in list(self._shaking)[:SILENT_LOOKED_AT_MAX]:
            tcp = identify(descriptor, self._port)
            received = bytes_received(tcp) if tcp is not None else None
            if tcp is None or received is None or received >= self._silent_bytes:
                # Gone, or it has said all there is to say: what comes of it is told soon.
                self._shaking.pop(descriptor)
                self._shaking[descriptor] = None
                continue
            del self._shaking[descriptor]
            self._hung_up.add(descriptor)
            hang_up(tcp)
            self._refuse("half-open", f"{tcp.peer} connected and said nothing; too many do so")
            return


def _wrong_uid(sender: NodeId, meant_uid: int, self_uid: int) -> HelloRefusal:
    return HelloRefusal(
        "wrong-uid", f"{sender} means uid {meant_uid:016x}, this is {self_uid:016x}"
    )


def _failure(event: int, value: int) -> str:
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        # libzmq leaves EAGAIN behind when the time for the handshake is over.
        return "a timeout" if value == errno.EAGAIN else os.strerror(value)
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return "another security mechanism: one of the two nodes has keys, the other has none"
    return f"ZMTP error {value:#x}"


def _nobody_else(_hello: Hello) -> None:
    """Until `open`."""
