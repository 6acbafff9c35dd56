"""Frames that are wrong in one known way, through real sockets: each is counted under its reason,
none is an exception, and the same connection goes on with the next good frame.

The sender has introduced itself, as a peer with a bug would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgpack
import pytest
import zmq

from gossip import messages as g
from gossip.membership import NodeId
from node import ActorSystem, DeadLetter
from node import wire as w
from node.environment import Lane
from node.hello import Hello, pack_hello
from tests.api.snippets import Add, Counter

STRANGER = NodeId("127.0.0.1", 1, 4711)
WAIT_S = 10.0
VERSION = 2


@contextmanager
def sockets() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context whose sockets are closed at the end, however that comes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


class Peer:
    """Somebody who has dialled one lane of a node and told who he is."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], lane: Lane, port: int, who: NodeId
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._socket.send(pack_hello(Hello(who, lane, 2, 0, 1, 1, VERSION)))

    def send(self, *parts: bytes) -> None:
        """Send one ZeroMQ message."""
        self._socket.send_multipart(parts)


async def until(what: str, fact: Callable[[], object]) -> None:
    """Let the loop run until `fact()` holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not fact():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"not seen within {WAIT_S} s: {what}") from None


def control_head(cluster_id: int) -> bytes:
    """The head of a good control frame."""
    return w.encode_head(g.Head(cluster_id, 1, 2, 3))


PING = w.encode(g.Ping(7, NodeId("127.0.0.1", 2, 5)))

CONTROL: dict[str, tuple[Callable[[int], bytes], str]] = {
    "an empty frame": (lambda _: b"", "malformed"),
    "half a head": (lambda c: control_head(c)[:20], "malformed"),
    "another magic": (lambda c: b"XX" + control_head(c)[2:], "malformed"),
    "another version": (
        lambda c: control_head(c)[:2] + b"\x63" + control_head(c)[3:],
        "wire-version",
    ),
    "half a message": (lambda c: control_head(c) + PING[:-1], "malformed"),
    "no msgpack": (lambda c: control_head(c) + b"\xc1", "malformed"),
    "an unknown tag": (lambda c: control_head(c) + msgpack.packb([250, []]), "unknown-tag"),
    "no tag": (lambda c: control_head(c) + msgpack.packb([]), "malformed"),
    "a number": (lambda c: control_head(c) + b"\x05", "malformed"),
    "a field of the wrong type": (
        lambda c: control_head(c) + msgpack.packb([2, ["x"]]),
        "bad-field",
    ),
    "too few fields": (lambda c: control_head(c) + msgpack.packb([1, []]), "bad-field"),
    "nested 2,000 deep": (lambda c: control_head(c) + b"\x91" * 2_000 + b"\xc0", "malformed"),
    "a map that is no map": (lambda c: control_head(c) + b"\xdf\xff\xff\xff\xff", "malformed"),
}


def data(cluster_id: int, *values: object) -> bytes:
    """A data frame."""
    return w.encode_data_head(cluster_id, VERSION) + b"".join(map(msgpack.packb, values))


def told(body: object, tag: object = "counter.add", path: object = "/user/counter") -> list[object]:
    """An envelope of the general form."""
    return [0, path, 0, None, 0, tag, body, 0]


DATA: dict[str, tuple[Callable[[int], bytes], str]] = {
    "half a head": (lambda c: data(c)[:5], "malformed"),
    "another cluster": (lambda c: data(c ^ 1, told([1])), "foreign-cluster"),
    "half an envelope": (lambda c: data(c, told([1]))[:-3], "bad frame"),
    "no msgpack": (lambda c: data(c) + b"\xc1", "bad frame"),
    "no list": (lambda c: data(c, 5), "no envelope"),
    "an unknown kind": (lambda c: data(c, [99, *told([1])[1:]]), "no envelope"),
    "no path": (lambda c: data(c, told([1], path="counter")), "no envelope"),
    "a path as a number": (lambda c: data(c, told([1], path=7)), "no envelope"),
    "an unknown tag": (lambda c: data(c, told([1], tag="no.such")), "unreadable message"),
    "a field of the wrong type": (lambda c: data(c, told(["x"])), "unreadable message"),
    "too few fields": (lambda c: data(c, told([])), "unreadable message"),
    "a number nobody defined": (lambda c: data(c, [16, 900, 901, [1]]), "bad envelope"),
    "a number as text": (lambda c: data(c, [16, "1", 2, [1]]), "bad envelope"),
    "nested 2,000 deep": (lambda c: data(c) + b"\x91" * 2_000 + b"\xc0", "bad frame"),
    "a list of 4 milliards": (lambda c: data(c) + b"\xdd\xff\xff\xff\xff", "bad frame"),
}  # fmt: skip


async def sent_wrong(lane: Lane, make: Callable[[int], bytes], reason: str) -> None:
    """Send a wrong frame and a good one; the first is counted, the second understood."""
    async with ActorSystem(port=0, found=True) as system:
        await system.cluster.up(timeout_s=WAIT_S)
        counter = system.spawn(Counter, name="counter")
        me, view = system.cluster.self_id, system.cluster.view
        assert view is not None
        port = me.port if lane is Lane.CONTROL else view.by_id[me].data_port
        with sockets() as context:
            peer = Peer(context, lane, port, STRANGER)
            peer.send(make(view.cluster_id))
            name = f"{lane.value}-refused-{reason}"
            await until(name, lambda: system.counters()[name])
            assert system.counters()[name] == 1
            if lane is Lane.DATA:
                peer.send(data(view.cluster_id, told([5])))
                async with asyncio.timeout(WAIT_S):
                    while await counter.ask(Add(0)) != 5:
                        await asyncio.sleep(0.001)
            else:
                peer.send(control_head(view.cluster_id) + msgpack.packb([251, []]))
                again = "control-refused-unknown-tag"
                before = int(reason == "unknown-tag")
                await until("the next frame", lambda: system.counters()[again] == before + 1)
        counts = system.counters()
        assert not counts["effects-failed"]
        assert await counter.ask(Add(0)) in (0, 5)
    assert (await system.terminated).exit_code == 0


@pytest.mark.parametrize("fault", CONTROL)
async def test_control_lane(fault: str) -> None:
    await sent_wrong(Lane.CONTROL, *CONTROL[fault])


@pytest.mark.parametrize("fault", DATA)
async def test_data_lane(fault: str) -> None:
    await sent_wrong(Lane.DATA, *DATA[fault])


async def test_what_a_message_of_an_unknown_type_leaves_is_a_dead_letter() -> None:
    async with ActorSystem(port=0, found=True) as system:
        await system.cluster.up(timeout_s=WAIT_S)
        heard: list[DeadLetter] = []
        system.events.subscribe(DeadLetter, heard.append)
        view = system.cluster.view
        assert view is not None
        with sockets() as context:
            peer = Peer(context, Lane.DATA, view.by_id[view.self_id].data_port, STRANGER)
            peer.send(data(view.cluster_id, told([1], tag="no.such")))
            await until("a dead letter", lambda: heard)
        assert heard[0].why.name == "UNREADABLE"
        assert heard[0].recipient == f"{view.self_id.address}/user/counter"


@pytest.mark.parametrize("lane", list(Lane))
async def test_a_frame_that_is_too_large_ends_its_connection_and_no_other(lane: Lane) -> None:
    """It is not even read; a peer that dials again is heard."""
    async with ActorSystem(port=0, found=True) as system:
        await system.cluster.up(timeout_s=WAIT_S)
        counter = system.spawn(Counter, name="counter")
        view = system.cluster.view
        assert view is not None
        me = view.self_id
        port = me.port if lane is Lane.CONTROL else view.by_id[me].data_port
        reason = "no envelope" if lane is Lane.DATA else "unknown-tag"
        understood = f"{lane.value}-refused-{reason}"
        head = data(view.cluster_id) if lane is Lane.DATA else control_head(view.cluster_id)
        good = head + msgpack.packb([250, []])
        with sockets() as context:
            peer = Peer(context, lane, port, STRANGER)
            other = Peer(context, lane, port, STRANGER._replace(uid=5))
            peer.send(head + bytes(64 * 1024 * 1024))
            other.send(good)
            await until("the other's", lambda: system.counters()[understood] == 1)
            again = Peer(context, lane, port, STRANGER._replace(uid=6))
            again.send(good)
            await until("a new one's", lambda: system.counters()[understood] == 2)
            other.send(good)
            await until("the other's again", lambda: system.counters()[understood] == 3)
        assert await counter.ask(Add(1)) == 1
        assert not system.counters()["effects-failed"]
