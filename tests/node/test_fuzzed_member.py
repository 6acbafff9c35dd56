"""20,000 frames of noise to each lane of a whole member: it lives on, and says so briefly.

Half of them come over connections that introduced themselves, so that they reach the decoders, the
membership and the runtime (I-79, I-132).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import msgpack
import pytest
import zmq

from gossip import messages as g
from gossip.membership import Cause, Member, NodeId, Status, Tombstone
from node import ActorSystem
from node import wire as w
from node.daemon import Daemon
from node.environment import Lane
from node.hello import Hello, pack_hello
from tests.api.snippets import Add, Counter

FRAMES = 20_000
STRANGER = NodeId("127.0.0.1", 1, 4711)


def noise(rng: random.Random, whole: list[bytes]) -> bytes:
    """Random bytes, or a good frame that was damaged."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.randint(1, 300))
    frame = bytearray(rng.choice(whole))
    for _ in range(rng.randint(0, 5)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    if rng.random() < 0.2:
        del frame[rng.randrange(1, len(frame)) :]
    return bytes(frame)


def control_frames(system: ActorSystem) -> list[bytes]:
    """Good frames of our cluster, as a stranger would send them."""
    view = system.cluster.view
    assert view is not None
    head = w.encode_head(g.Head(view.cluster_id, 1, 2, 3))
    me = view.self_id
    ghost = Member(STRANGER, status=Status.UP, up_number=9, types=("singleton:x",))
    messages: list[object] = [
        g.Ping(1, me),
        g.PingRequest(1, STRANGER),
        g.Gossip(members=(ghost,)),
        g.Gossip(tombstones=(Tombstone(STRANGER, 5, Cause.LEFT),)),
        g.Gossip(suspicions=(g.Suspicion(me, 0, STRANGER),)),
        g.ViewSeen(3),
        g.SyncOffer((), (), (), 0),
        g.JoinRequest(Member(STRANGER), "tenure", system.settings.agreement(), ("127.0.0.1:9",)),
        g.JoinConfirm(5),
        g.WhoAreYou("tenure", 7, 0, 5),
        g.IAm("tenure", 7, 99, 5),
        g.LinkQuestion(me, 1),
    ]
    return [head + w.encode(message) for message in messages]


def data_frames(system: ActorSystem) -> list[bytes]:
    """Good envelopes of every kind, to actors that are there and that are not."""
    view = system.cluster.view
    assert view is not None
    head = w.encode_data_head(view.cluster_id, 2)
    envelopes = [
        [kind, path, 0, None, 7, "counter.add", [1], 0]
        for kind in range(8)
        for path in ("/user/counter", "/user/nobody", "/singleton/x", "/temp")
    ]
    envelopes += [
        [19, 1, "/user/counter", 0],
        [19, 2, "/user/nobody", 7],
        [20, 3, "counter.add"],
        [20, 4, "nobody.knows"],
        [21, 5, None],
        [16, 1, 3, [1]],
        [16, 2, 4, [1]],
        [16, 1, 3, [1], 5],
        [17, 1, 3, [1], 7],
        [18, 7, 1],
        [99, 1, 2, 3],
    ]
    return [head + msgpack.packb(envelope) for envelope in envelopes]


def dealer(context: zmq.Context[zmq.Socket[bytes]], port: int) -> zmq.Socket[bytes]:
    """A socket that dials a lane of the member."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.sndhwm = FRAMES + 10
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


async def until(fact: Callable[[], bool]) -> None:
    """Wait for a fact, at most 60 s."""
    async with asyncio.timeout(60):
        while not fact():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("lane", list(Lane))
async def test_noise_on_a_lane(
    lane: Lane, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    rng = random.Random(f"noise {lane.value}")
    async with ActorSystem(port=0, found=True) as system:
        await system.cluster.up(timeout_s=5)
        counter = system.spawn(Counter, name="counter")
        me = system.cluster.self_id
        is_control = lane is Lane.CONTROL
        view = system.cluster.view
        assert view is not None
        port = me.port if is_control else view.by_id[me].data_port
        whole = control_frames(system) if is_control else data_frames(system)
        read = 0
        reader = "control_frame" if is_control else "data_frame"
        original = getattr(Daemon, reader)

        def counted(*arguments: object) -> None:
            nonlocal read
            read += 1
            original(*arguments)

        # What came over the known connection is read here, one call a frame.
        monkeypatch.setattr(Daemon, reader, counted)
        with zmq.Context() as context:
            known, unknown = dealer(context, port), dealer(context, port)
            known.send(pack_hello(Hello(STRANGER, lane, 2, 0, 1, 1, 2)))
            for number in range(FRAMES):
                (known if number % 2 else unknown).send(noise(rng, whole))
                if number % 500 == 0:
                    await asyncio.sleep(0)
            await until(lambda: read >= FRAMES // 2)
            known.close()
            unknown.close()
        assert isinstance(await counter.ask(Add(0)), int)
        ready, _ = system.ready()
        assert ready
        counts = system.counters()
        assert counts[f"{lane.value}-refused-no-hello"] > FRAMES // 4
        assert counts[f"{lane.value}-refused-malformed"] > FRAMES // 20
        assert not counts["effects-failed"]
    assert (await system.terminated).exit_code == 0
    assert len(caplog.records) < 100, [record.getMessage() for record in caplog.records][:20]
