"""Connections that say nothing: they are cut short, and nobody else waits for them."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest

from bench.processes import Member, Members
from node.environment import Lane
from node.tcp_connections import bytes_received, hang_up, identify
from node.zmq_links import LinkTiming
from node.zmq_transport import TransportLimits
from tests.conftest import loop_name
from tests.node.zmq_stage import HOST, on_both_loops
from tests.security.stage import KeyedStage, key_directory, lanes, trust_each_other, until

SILENT_COUNT = 2_000


class Silence:
    """Silent connections to some ports; those that were ended are opened again by `renew`."""

    def __init__(self, ports: list[int], count: int) -> None:
        self._ports = ports
        self._count = count
        self._open: list[socket.socket] = []
        self.opened = 0

    def __enter__(self) -> Silence:
        self.renew()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._open:
            connection.close()

    def renew(self) -> None:
        """Forget those that were ended, and open as many anew."""
        living = [connection for connection in self._open if not _ended(connection)]
        for connection in {*self._open} - {*living}:
            connection.close()
        while len(living) < self._count:
            port = self._ports[self.opened % len(self._ports)]
            connection = socket.create_connection((HOST, port))
            connection.setblocking(False)
            living.append(connection)
            self.opened += 1
        self._open = living

    def living(self) -> int:
        """How many have not been ended."""
        return sum(not _ended(connection) for connection in self._open)


def _at_most_living(silence: Silence, count: int) -> bool:
    return silence.living() <= count


def _ended(connection: socket.socket) -> bool:
    try:
        # The other side greets; it is the end that counts.
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many descriptors as the command line would take for itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
@on_both_loops
async def test_only_so_many_half_open_connections_are_kept(tmp_path: Path, keyed: bool) -> None:
    """The oldest silent ones are ended at once; a peer that speaks gets in between them."""
    at_most = 32
    bounds = TransportLimits(half_open_max=at_most, timing=LinkTiming(handshake_s=30.0))
    async with KeyedStage(tmp_path) as stage:
        (first, second), (port, other) = stage.directories("a", "b")
        a = await stage.node(first if keyed else None, port, 11, limits=bounds)
        b = await stage.node(second if keyed else None, other, 12)
        for lane, lane_port in lanes(a):
            with Silence([lane_port], 5 * at_most) as silence:
                await a.inbox.until_refused(4 * at_most, "half-open", lane)
                await until(partial(_at_most_living, silence, at_most))
                assert silence.living() == at_most
                if lane is Lane.CONTROL:
                    b.transport.send_control(a.id, b"let me in")
                    await a.inbox.until_control(1)
        assert {reason for _, reason in a.inbox.refused} == {"half-open"}


@on_both_loops
async def test_the_deadline_of_the_handshake_ends_the_rest(tmp_path: Path) -> None:
    """Who says nothing, or not enough, is gone after `handshake_s`."""
    async with KeyedStage(tmp_path) as stage:
        (first,), (port,) = stage.directories("a")
        a = await stage.node(
            first, port, 11, limits=TransportLimits(timing=LinkTiming(handshake_s=0.3))
        )
        with Silence([port], 20) as silence:
            greeted = socket.create_connection((HOST, port))
            with greeted:
                greeted.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3")  # the beginning of ZMTP 3
                greeted.setblocking(False)
                await until(lambda: silence.living() == 0 and _ended(greeted))
        await a.inbox.until_refused(1, "handshake")


def _memory_bytes(member: Member) -> int:
    pages = int(Path(f"/proc/{member.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
def test_2000_silent_connections_stop_nobody(tmp_path: Path, keyed: bool) -> None:
    """While 2,000 silent connections are held open on both lanes of a member, renewed whenever it
    ends them, others join and its singleton moves; its memory does not grow with them."""
    with Members(tmp_path, loop=loop_name()) as members:
        ports = members.free_ports(3)
        arguments: list[list[str]] = [[], [], []]
        if keyed:
            directories = [
                key_directory(tmp_path / name, port=port)
                for name, port in zip("abc", ports, strict=True)
            ]
            trust_each_other(directories)
            arguments = [["--keys", str(directory)] for directory in directories]

        def start(index: int) -> Member:
            return members.start(
                "abc"[index], port=ports[index], seeds=ports[:1], arguments=arguments[index]
            )

        a, b = start(0), start(1)
        members.wait_all_up([a, b])
        data_port = int(a.seen("bound")[0].detail.split()[1])
        before_bytes = _memory_bytes(a)
        with Silence([a.port, data_port], SILENT_COUNT) as silence:
            c = start(2)

            def all_up() -> bool:
                silence.renew()
                return len(c.up_members()) == len(a.up_members()) == 3

            members.wait("c joins among the silent ones", all_up)
            grown_bytes = _memory_bytes(a) - before_bytes
            assert silence.opened >= SILENT_COUNT
            assert a.running
            assert not a.seen("unreachable")
            assert not b.seen("unreachable")
        assert grown_bytes < 32 * 1024 * 1024, f"{grown_bytes / 1e6:.1f} MB for {silence.opened}"


def test_only_the_very_connection_that_was_meant_is_ended() -> None:
    """A descriptor that is another's by now is left alone: of another port, a file, or closed."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = listener.accept()
            client.sendall(b"x" * 777)
            tcp = identify(accepted.fileno(), port)
            assert tcp is not None
            assert tcp.peer == f"{HOST}:{client.getsockname()[1]}"
            accepted.recv(777, socket.MSG_WAITALL)
            assert bytes_received(tcp) == 777
            assert identify(accepted.fileno(), port + 1) is None
            assert identify(listener.fileno(), port) is None
            assert not hang_up(tcp._replace(peer=f"{HOST}:1"))
            assert hang_up(tcp)
            assert client.recv(1) == b""
            accepted.close()
    assert not hang_up(tcp)
    assert bytes_received(tcp) is None
    with Path(__file__).open() as file:
        assert identify(file.fileno(), port) is None
