"""A node one protocol version older or newer is a member like any other (I-140)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from node import Actor, ActorSystem, Ask, Settings, message, on
from node.environment import LinkMemory
from node.wire import DATA_HEAD, DATA_VERSION_MAX
from node.zmq_environment import real_environment
from node.zmq_transport import ZmqTransport

OLD, NOW, NEXT = (1, 1), (1, DATA_VERSION_MAX), (DATA_VERSION_MAX, DATA_VERSION_MAX + 1)


@message("versions.echo")
class Echo(Ask[bytes]):
    """Answered with what it carries."""

    data: bytes


class Mirror(Actor):
    """Answers."""

    @on(Echo)
    def echo(self, msg: Echo) -> bytes:
        return msg.data


class Spy:
    """Counts the versions of the data frames that reach a node, before they are read."""

    def __init__(self, system: ActorSystem) -> None:
        self.versions: set[int] = set()
        self._read = system.daemon.data_frame
        listener = system._transport._listeners  # type: ignore[union-attr]
        self._inbox = system.daemon
        for each in listener.values():
            each._inbox = self

    def __getattr__(self, name: str) -> object:
        return getattr(self._inbox, name)

    def data_frame(self, sender: object, frame: bytes, memory: LinkMemory) -> None:
        self.versions.add(DATA_HEAD.unpack_from(frame)[1])
        self._read(sender, frame, memory)  # type: ignore[arg-type]


@asynccontextmanager
async def node(versions: tuple[int, int], seed: str | None = None) -> AsyncIterator[ActorSystem]:
    """A real node that speaks these versions."""
    environment = real_environment(loop=asyncio.get_running_loop(), host="127.0.0.1", port=0)
    assert isinstance(environment.transport, ZmqTransport)
    environment.transport.versions = versions
    settings = Settings(port=0, seeds=() if seed is None else (seed,), found=seed is None)
    async with ActorSystem(settings, environment=environment) as system:
        system.spawn(Mirror, name="mirror")
        yield system


@pytest.mark.parametrize(
    ("one", "other", "spoken"),
    [(NOW, NOW, 2), (OLD, NOW, 1), (NOW, OLD, 1), (NEXT, NOW, 2), (NOW, NEXT, 2)],
)
async def test_neighbouring_versions_understand_each_other(
    one: tuple[int, int], other: tuple[int, int], spoken: int
) -> None:
    async with node(one) as first:
        await first.cluster.up(1)
        async with node(other, first.cluster.self_id.address) as second:
            await asyncio.gather(first.cluster.up(2), second.cluster.up(2))
            spies = [Spy(first), Spy(second)]
            for near, far in ((first, second), (second, first)):
                mirror = near.resolve(f"{far.cluster.self_id.address}/user/mirror")
                for data in (b"small", b"large" * 100_000, b"again"):
                    assert await mirror.ask(Echo(data)) == data
            assert [spy.versions for spy in spies] == [{spoken}, {spoken}]
            assert not any("refused" in key for key in first.counters())
            assert not any("refused" in key for key in second.counters())
