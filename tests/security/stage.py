"""What the security tests share: key directories, keyed transports, raw CURVE peers, a proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import zmq

from bench.processes import Members
from gossip.membership import NodeId
from node.environment import Lane
from node.keys import (
    PUBLIC_FILE,
    TRUSTED_FILE,
    KeyDirectory,
    KeyPair,
    TrustedKey,
    generate,
    new_pair,
    parse_trusted,
)
from node.zmq_transport import TransportLimits, ZmqTransport
from tests.node.zmq_stage import HOST, WAIT_S, RecordingInbox

POLL_S = 0.01


def key_directory(directory: Path, *, port: int = 0, name: str = "") -> Path:
    """A new key directory; with `port` its key is held to 127.0.0.1:port."""
    generate(directory, address=f"{HOST}:{port}" if port else "", name=name)
    return directory


def public_line(directory: Path) -> str:
    """What a node gives to the others."""
    return (directory / PUBLIC_FILE).read_text().strip()


def trust(directory: Path, lines: Sequence[str]) -> None:
    """Make these the trusted keys, as `mv` does: in one step."""
    part = directory / "trusted.part"
    part.write_text("".join(f"{line}\n" for line in lines))
    part.chmod(0o644)
    part.rename(directory / TRUSTED_FILE)


def trust_each_other(directories: Sequence[Path]) -> None:
    """All of them trust all of them."""
    lines = [public_line(directory) for directory in directories]
    for directory in directories:
        trust(directory, lines)


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 nobody listens on."""
    return Members(Path()).free_ports(count)


def line_of(pair: KeyPair, port: int = 0) -> str:
    """The line of a pair that has no directory."""
    return f"{pair.public.hex()} {HOST}:{port}" if port else pair.public.hex()


def trusted_key(key: bytes, port: int = 0, host: str = HOST) -> TrustedKey:
    """A line of `trusted` as it is read."""
    return TrustedKey(key, host, port) if port else TrustedKey(key)


class Keyed(NamedTuple):
    """An open transport with keys, and what it was told."""

    id: NodeId
    transport: ZmqTransport
    inbox: RecordingInbox
    keys: KeyDirectory | None

    async def trusts(self, *lines: str) -> None:
        """Change `trusted` to its own line and these, and wait until that counts."""
        keys = self.keys
        assert keys is not None
        directory = keys.trusted_path.parent
        lines = (public_line(directory), *lines)
        trust(directory, lines)
        wanted = parse_trusted("\n".join(lines))
        await until(lambda: keys.trusted == wanted)

    @property
    def line(self) -> str:
        """What it gives to the others."""
        assert self.keys is not None
        return public_line(self.keys.trusted_path.parent)


class KeyedStage:
    """Opens transports with keys and raw CURVE clients, and closes them all at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._transports: list[ZmqTransport] = []
        self._dealers: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def __aenter__(self) -> KeyedStage:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for dealer, monitor in self._dealers:
            dealer.disable_monitor()
            monitor.close(0)
            dealer.close(0)
        self._context.destroy(0)
        for transport in self._transports:
            await transport.close()

    def directories(self, *names: str) -> tuple[list[Path], list[int]]:
        """A key directory and a free port for each name; all of them trust all of them."""
        ports = free_ports(len(names))
        made = [
            key_directory(self._directory / name, port=port, name=name)
            for name, port in zip(names, ports, strict=True)
        ]
        trust_each_other(made)
        return made, ports

    async def node(
        self,
        directory: Path | None,
        port: int,
        uid: int,
        *,
        limits: TransportLimits | None = None,
        inbox: RecordingInbox | None = None,
    ) -> Keyed:
        """A bound and opened transport; without keys when there is no directory."""
        keys = None if directory is None else KeyDirectory(directory)
        transport = ZmqTransport(
            HOST,
            port,
            loop=asyncio.get_running_loop(),
            keys=keys,
            limits=limits,
        )
        self._transports.append(transport)
        await transport.bind()
        inbox = inbox or RecordingInbox()
        self_id = NodeId(HOST, transport.control_port, uid)
        transport.open(self_id, inbox)
        return Keyed(self_id, transport, inbox, keys)

    async def pair(self) -> tuple[Keyed, Keyed]:
        """Two nodes that trust each other."""
        (first, second), (port, other) = self.directories("a", "b")
        return await self.node(first, port, 11), await self.node(second, other, 12)

    def dealer(
        self, port: int, *, own: KeyPair | None, server: bytes | None
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A bare client of a port with these keys, and its monitor."""
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        if own is not None and server is not None:
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
            dealer.setsockopt(zmq.CURVE_SERVERKEY, server)
        monitor = dealer.get_monitor_socket()
        self._dealers.append((dealer, monitor))
        dealer.connect(f"tcp://{HOST}:{port}")
        return dealer, monitor


def say(dealer: zmq.Socket[bytes], frame: bytes) -> None:
    """Send, if the connection has not ended yet."""
    with contextlib.suppress(zmq.Again):
        dealer.send(frame, zmq.NOBLOCK)


async def until(fact: Callable[[], object]) -> None:
    """Wait for a fact that nobody tells of."""
    async with asyncio.timeout(WAIT_S):
        while not fact():
            await asyncio.sleep(POLL_S)


async def until_fault(node: Keyed, peer: NodeId) -> None:
    """Send to `peer` until the node knows what an operator has to mend."""

    def faulty() -> bool:
        node.transport.send_control(peer, b"x")
        return peer.address in node.transport.dial_faults()

    await until(faulty)


async def until_event(monitor: zmq.Socket[bytes], mask: int) -> tuple[int, int]:
    """The first event of a kind that a monitor tells of: the event and its value."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                packed = monitor.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                await asyncio.sleep(POLL_S)
                continue
            event, value = int.from_bytes(packed[:2], "little"), packed[2:6]
            if event & mask:
                return event, int.from_bytes(value, "little")


class Proxy:
    """A TCP relay between a client and a server that keeps what the client sent, per connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.port = 0
        self.recorded: list[bytearray] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._relay, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record = bytearray()
        self.recorded.append(record)
        far_reader, far_writer = await asyncio.open_connection(HOST, self._port)
        self._writers += [writer, far_writer]
        tasks = [
            asyncio.create_task(_copy(reader, far_writer, record)),
            asyncio.create_task(_copy(far_reader, writer, bytearray())),
        ]
        self._tasks.update(tasks)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            record += data
            writer.write(data)
            await writer.drain()
    writer.close()  # the end of one side is the end of both


def stranger() -> KeyPair:
    """A key pair nobody trusts."""
    return new_pair()


def lanes(node: Keyed) -> Iterator[tuple[Lane, int]]:
    """Both lanes of a node with their ports."""
    yield Lane.CONTROL, node.transport.control_port
    yield Lane.DATA, node.transport.data_port
