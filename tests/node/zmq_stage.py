"""What the tests of the real sockets share: a recorder, transports, raw peers, child processes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest
import zmq

from gossip.membership import NodeId
from node.environment import Inbox, Lane, LinkMemory
from node.hello import Hello, pack_hello
from node.streams import Whole
from node.zmq_links import LinkTiming
from node.zmq_transport import FRAME_BYTES_MAX, TransportLimits, ZmqTransport
from tests.conftest import LOOPS

HOST = "127.0.0.1"
HEAD = b"[head]"
DATA_HEAD = b"<head>"
WAIT_S = 20.0


def on_both_loops(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine test on uvloop and on stock asyncio, whatever loop the run has."""

    @functools.wraps(scenario)
    def test(loop_kind: str, **fixtures: object) -> None:
        async def main() -> None:
            await scenario(**fixtures)

        with asyncio.Runner(loop_factory=LOOPS[loop_kind]) as runner:
            runner.run(main())

    signature = inspect.signature(scenario)
    kind = inspect.Parameter("loop_kind", inspect.Parameter.KEYWORD_ONLY)
    vars(test)["__signature__"] = signature.replace(
        parameters=[*signature.parameters.values(), kind]
    )
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", sorted(LOOPS))(test)
    return marked


def send_data(transport: ZmqTransport, to: NodeId, payload: bytes) -> None:
    """Queue a payload that is its own item; one that is not taken is reported as dropped."""
    link = transport.data_link(to)
    if link is None or link.is_full:
        assert transport._inbox is not None
        transport._inbox.data_dropped(to, payload)
    else:
        link.send(payload, payload, "/somebody")


class RecordingInbox:
    """An `Inbox` that only writes down what it is told."""

    def __init__(self) -> None:
        self.control: list[tuple[NodeId, bytes]] = []
        self.data: list[tuple[NodeId, bytes]] = []
        self.lost: list[tuple[NodeId, Lane]] = []
        self.refused: Counter[tuple[Lane, str]] = Counter()
        self.details: list[str] = []
        self.dropped: list[tuple[NodeId, object]] = []
        self.large: list[tuple[NodeId, Whole]] = []
        self.turns = 0
        self._changed = asyncio.Event()

    def control_head(self) -> bytes:
        return HEAD

    def data_head(self, version: int, is_piece: bool) -> bytes:
        return DATA_HEAD

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        self.control.append((sender, frame))
        self._changed.set()

    def data_frame(self, sender: NodeId, frame: bytes, memory: LinkMemory) -> None:
        self.data.append((sender, frame))
        self._changed.set()

    def data_piece(
        self, sender: NodeId, frame: bytes, data: memoryview, memory: LinkMemory
    ) -> None:
        whole = memory.streams.add(frame[len(DATA_HEAD) :], data)
        if whole is not None:
            self.large.append((sender, whole))
            self._changed.set()

    def turn_begin(self) -> None:
        """Nothing waits for it here."""

    def turn_end(self) -> None:
        self.turns += 1

    def link_lost(self, peer: NodeId, lane: Lane) -> None:
        self.lost.append((peer, lane))
        self._changed.set()

    def frame_refused(self, lane: Lane, reason: str, detail: str) -> None:
        self.refused[lane, reason] += 1
        self.details.append(detail)
        self._changed.set()

    def data_dropped(self, peer: NodeId, item: object) -> None:
        self.dropped.append((peer, item))
        self._changed.set()

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait until `fact()` holds; it is looked at after each record."""
        async with asyncio.timeout(WAIT_S):
            while not fact():
                self._changed.clear()
                await self._changed.wait()

    def control_bytes(self) -> bytes:
        """All control payloads that arrived, joined."""
        assert all(frame.startswith(HEAD) for _, frame in self.control)
        return b"".join(frame[len(HEAD) :] for _, frame in self.control)

    def data_bytes(self) -> bytes:
        """All data payloads that arrived, joined."""
        assert all(frame.startswith(DATA_HEAD) for _, frame in self.data)
        return b"".join(frame[len(DATA_HEAD) :] for _, frame in self.data)

    async def until_control(self, count: int) -> None:
        """Wait for the so many-th control frame."""
        await self.until(lambda: len(self.control) >= count)

    async def until_data(self, count: int) -> None:
        """Wait for the so many-th data frame."""
        await self.until(lambda: len(self.data) >= count)

    async def until_refused(self, count: int, reason: str, lane: Lane = Lane.CONTROL) -> None:
        """Wait for the so many-th refusal of a kind."""
        await self.until(lambda: self.refused[lane, reason] >= count)


class Node:
    """A transport that is open, with its recorder."""

    def __init__(self, transport: ZmqTransport, uid: int, inbox: RecordingInbox) -> None:
        self.transport = transport
        self.inbox = inbox
        self.id = NodeId(transport.host, transport.control_port, uid)


class Stage:
    """Opens transports and raw sockets, and closes them all at the end."""

    def __init__(self) -> None:
        self._transports: list[ZmqTransport] = []
        self._raws: list[zmq.Socket[bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(0)
        for transport in self._transports:
            await transport.close()

    async def node(
        self,
        uid: int,
        *,
        host: str = HOST,
        port: int = 0,
        data_port: int = 0,
        versions: tuple[int, int] = (1, 2),
        frame_bytes_max: int = FRAME_BYTES_MAX,
        limits: TransportLimits | None = None,
        inbox: Inbox | None = None,
    ) -> Node:
        """A bound and opened transport."""
        transport = ZmqTransport(
            host,
            port,
            data_port,
            loop=asyncio.get_running_loop(),
            versions=versions,
            frame_bytes_max=frame_bytes_max,
            limits=limits,
        )
        self._transports.append(transport)
        await transport.bind()
        recorder = RecordingInbox()
        node = Node(transport, uid, recorder)
        transport.open(node.id, inbox or recorder)
        return node

    def raw(
        self, node: Node, lane: Lane = Lane.CONTROL, *, routing_id: bytes = b""
    ) -> zmq.Socket[bytes]:
        """A bare DEALER connected to a lane of `node`."""
        dealer = self._context.socket(zmq.DEALER)
        self._raws.append(dealer)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDHWM, 0)
        if routing_id:
            dealer.setsockopt(zmq.ROUTING_ID, routing_id)
        transport = node.transport
        port = transport.control_port if lane is Lane.CONTROL else transport.data_port
        dealer.connect(f"tcp://{HOST}:{port}")
        return dealer


def meet(a: Node, b: Node) -> None:
    """Both know the other's data port, as from member records."""
    a.transport.learn(b.id, b.transport.data_port, 2)
    b.transport.learn(a.id, a.transport.data_port, 2)


def hello(
    sender: NodeId,
    *,
    lane: Lane = Lane.CONTROL,
    data_port: int = 9,
    meant_uid: int = 0,
    link_number: int = 1,
) -> bytes:
    """An introduction as bytes."""
    return pack_hello(Hello(sender, lane, data_port, meant_uid, link_number, 1, 2))


def limits(
    *,
    establish_s: float = 2.0,
    handshake_s: float = 2.0,
    redial_min_s: float = 0.05,
    redial_max_s: float = 0.5,
    failing_s: float = 5.0,
    heartbeat_interval_s: float = 1.0,
    heartbeat_timeout_s: float = 3.0,
    data_pending_bytes_max: int = 64 * 1024 * 1024,
    control_pending_bytes_max: int = 4 * 1024 * 1024,
    idle_s: float = 30.0,
    unkept_idle_s: float = 1.0,
    keep_delay_s: float = 0.5,
    links_max: int = 4096,
    control_links_max: int = 64,
    connections_max: int = 4096,
    drain_frames_max: int = 64,
    drain_bytes_max: int = 1024 * 1024,
) -> TransportLimits:
    """The defaults with some of them changed."""
    return TransportLimits(
        control_pending_bytes_max=control_pending_bytes_max,
        data_pending_bytes_max=data_pending_bytes_max,
        links_max=links_max,
        control_links_max=control_links_max,
        connections_max=connections_max,
        drain_frames_max=drain_frames_max,
        drain_bytes_max=drain_bytes_max,
        timing=LinkTiming(
            establish_s=establish_s,
            handshake_s=handshake_s,
            redial_min_s=redial_min_s,
            redial_max_s=redial_max_s,
            failing_s=failing_s,
            heartbeat_interval_s=heartbeat_interval_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            idle_s=idle_s,
            unkept_idle_s=unkept_idle_s,
            keep_delay_s=keep_delay_s,
        ),
    )


def open_descriptors() -> int:
    """How many file descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


async def descriptors_fall_to(count: int) -> None:
    """Wait until this process has at most `count` descriptors; libzmq closes in its threads."""
    async with asyncio.timeout(WAIT_S):
        while open_descriptors() > count:
            await asyncio.to_thread(os.sched_yield)


async def turn_away_one(dial: Callable[[int], None]) -> int:
    """Call `dial(port)`, end the connection that comes, and stop listening; returns the port."""
    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        port: int = listener.getsockname()[1]
        dial(port)
        async with asyncio.timeout(WAIT_S):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection.close()
    return port


LISTING = """
import os, sys
for fd in os.listdir("/proc/self/fd"):
    try: print(os.readlink("/proc/self/fd/" + fd))
    except OSError: pass
sys.stdout.flush(); os.close(1); sys.stdin.read()
"""


@contextmanager
def heir() -> Iterator[set[str]]:
    """What a child inherits that closes no descriptor by itself; it lives until the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", LISTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
        text=True,
    )
    with child:
        assert child.stdout is not None
        yield set(child.stdout.read().split())
        assert child.poll() is None


ROUTERS = """
import sys, zmq
context = zmq.Context()
sockets = []
for port in map(int, sys.argv[1:]):
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.RCVHWM, 4)
    router.bind(f"tcp://127.0.0.1:{port}")
    sockets.append(router)
print(*(s.getsockopt(zmq.LAST_ENDPOINT).decode().rpartition(":")[2] for s in sockets), flush=True)
poller = zmq.Poller()
for router in sockets:
    poller.register(router, zmq.POLLIN)
while True:
    for router, _ in poller.poll():
        router.recv_multipart()
"""


class Process:
    """A child process with two bound ROUTERs that swallow what comes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ROUTERS, "0", "0"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.control_port, self.data_port = map(int, self._process.stdout.readline().split())

    def id(self, uid: int) -> NodeId:
        """The node it pretends to be."""
        return NodeId(HOST, self.control_port, uid)

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL; returns at once."""
        self._process.kill()

    def reap(self) -> None:
        """Wait for its end."""
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def process() -> Iterator[Process]:
    """A child that is gone at the end."""
    child = Process()
    try:
        yield child
    finally:
        child.kill()
        child.reap()
