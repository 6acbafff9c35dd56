"""The real transport: real sockets on loopback, real processes, hostile bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable

import msgpack
import pytest

from gossip.membership import NodeId
from node.environment import DialOutcome, Lane
from node.errors import AddressInUseError, SettingsError
from node.hello import MAGIC
from node.outbox import FRAME_BYTES_TARGET, ITEM_BYTES
from node.zmq_links import STALE_ATTEMPT_S
from node.zmq_transport import ZmqTransport
from tests.conftest import HowMany
from tests.node.zmq_stage import (
    DATA_HEAD,
    HEAD,
    HOST,
    WAIT_S,
    Node,
    RecordingInbox,
    Stage,
    descriptors_fall_to,
    heir,
    hello,
    limits,
    meet,
    on_both_loops,
    open_descriptors,
    process,
    send_data,
    turn_away_one,
)

STRANGER = NodeId(HOST, 1234, 77)
FDS = "/proc/self/fd/"


def free_port() -> int:
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


# -- messages ---------------------------------------------------------------------------------


@on_both_loops
async def test_payloads_of_one_turn_arrive_as_one_frame_from_whom_sent_them() -> None:
    """The head comes once per control frame, and the sender is the connection's (I-67)."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        for payload in (b"first ", b"second"):
            a.transport.send_control(b.id, payload)
            send_data(a.transport, b.id, payload)
        await b.inbox.until(lambda: b.inbox.control and b.inbox.data)
        assert b.inbox.control == [(a.id, HEAD + b"first second")]
        assert b.inbox.data == [(a.id, DATA_HEAD + b"first second")]

        for payload in (b"third ", b"fourth"):
            a.transport.send_control(b.id, payload)
            send_data(a.transport, b.id, payload)
        await b.inbox.until(lambda: len(b.inbox.control) > 1 and len(b.inbox.data) > 1)
        assert b.inbox.control[1:] == [(a.id, HEAD + b"third fourth")]
        assert b.inbox.data[1:] == [(a.id, DATA_HEAD + b"third fourth")]
        assert not b.inbox.refused


@on_both_loops
async def test_who_introduced_itself_can_be_answered_on_both_lanes() -> None:
    """The introduction teaches the data port; nobody has to learn it from a member record."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        a.transport.send_control(NodeId(HOST, b.id.port, 0), b"is somebody there?")
        await b.inbox.until_control(1)
        sender = b.inbox.control[0][0]
        b.transport.send_control(sender, b"yes")
        send_data(b.transport, sender, b"take this")
        await a.inbox.until(lambda: a.inbox.control and a.inbox.data)
        assert a.inbox.control == [(b.id, HEAD + b"yes")]
        assert a.inbox.data == [(b.id, DATA_HEAD + b"take this")]


@on_both_loops
async def test_data_for_a_peer_whose_port_is_unknown_is_reported_at_once() -> None:
    async with Stage() as stage:
        a = await stage.node(1)
        send_data(a.transport, STRANGER, b"lost")
        assert a.inbox.dropped == [(STRANGER, b"lost")]


@on_both_loops
async def test_frames_are_filled_to_a_target_and_larger_payloads_ride_alone() -> None:
    """Order holds across small, large and oversized payloads."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        sizes = [10, FRAME_BYTES_TARGET + 1, 20, 30, 60_000, 60_000, 1_000_000, 5]
        payloads = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
        for payload in payloads:
            send_data(a.transport, b.id, payload)
            a.transport.send_control(b.id, payload[:200_000])
        whole = b"".join(payloads)
        control = b"".join(payload[:200_000] for payload in payloads)
        await b.inbox.until(
            lambda: (
                len(b.inbox.data_bytes()) >= len(whole)
                and len(b.inbox.control_bytes()) >= len(control)
            )
        )
        assert b.inbox.data_bytes() == whole
        assert b.inbox.control_bytes() == control
        assert [len(frame) - len(DATA_HEAD) for _, frame in b.inbox.data] == [
            10,
            FRAME_BYTES_TARGET + 1,
            60_050,
            60_000,
            1_000_000,
            5,
        ]


@on_both_loops
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_million_envelopes_arrive_once_and_in_order(seed: int, how_many: HowMany) -> None:
    """FIFO holds across coalescing, back-pressure and any drain budget (no lost edge)."""
    rng = random.Random(seed)
    count = how_many(short=100_000, long=1_000_000)
    async with Stage() as stage:
        a = await stage.node(1)
        b = await stage.node(
            2,
            limits=limits(
                drain_frames_max=rng.choice([1, 2, 3, 7, 50]),
                drain_bytes_max=rng.choice([1, 1000, 100_000, 10_000_000]),
            ),
        )
        meet(a, b)
        packer = msgpack.Packer()
        number = 0
        while number < count:
            for _ in range(rng.choice([1, 1, 1, 10, 300, 3000])):
                noise = b"x" * rng.choice([0, 0, 5, 40, 200])
                send_data(a.transport, b.id, packer.pack([number, noise]))
                number += 1
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.0005]))
        await a.transport.flush(WAIT_S)
        send_data(a.transport, b.id, packer.pack([-1, b""]))
        await b.inbox.until(
            lambda: b.inbox.data and b.inbox.data[-1][1].endswith(b"\x92\xff\xc4\0")
        )
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(b.inbox.data_bytes())
        assert [envelope[0] for envelope in unpacker] == [*range(number), -1]
        assert not a.inbox.dropped


@on_both_loops
async def test_a_burst_larger_than_all_buffers_arrives_whole() -> None:
    """Back-pressure: the socket takes no more for a while, then everything, in order."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2, limits=limits(drain_frames_max=1))
        meet(a, b)
        payloads = [b"%06d" % number * 3000 for number in range(1500)]  # 27 MB, three a frame
        for payload in payloads:
            send_data(a.transport, b.id, payload)
        await a.transport.flush(WAIT_S)
        await b.inbox.until_data(500)
        assert b.inbox.data_bytes() == b"".join(payloads)
        assert not a.inbox.dropped


@on_both_loops
async def test_a_seed_and_the_member_it_turned_out_to_be_are_two_links() -> None:
    """Both go on: "whoever is there" and the process itself."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        seed = NodeId(HOST, b.id.port, 0)
        for number in range(3):
            a.transport.send_control(seed, b"seed")
            a.transport.send_control(b.id, b"member")
            await b.inbox.until_control(2 * number + 2)
        assert not b.inbox.refused
        assert {sender for sender, _ in b.inbox.control} == {a.id}


@on_both_loops
async def test_what_the_peer_would_refuse_is_dropped_by_the_sender_and_the_link_lives() -> None:
    """A frame the peer must refuse would cost the link (I-136)."""
    async with Stage() as stage:
        a = await stage.node(1, frame_bytes_max=100_000)
        b = await stage.node(2, frame_bytes_max=100_000)
        meet(a, b)
        send_data(a.transport, b.id, b"before")
        send_data(a.transport, b.id, b"y" * 100_000)
        a.transport.send_control(b.id, b"z" * (256 * 1024 + 1))
        a.transport.send_control(b.id, b"after")
        await b.inbox.until(lambda: len(b.inbox.data) == 2 and b.inbox.control)
        assert a.inbox.dropped == []
        assert a.transport.control_dropped_count == 1
        assert b.inbox.control_bytes() == b"after"
        assert not a.inbox.lost


@on_both_loops
async def test_a_dead_data_lane_to_a_living_member_fails_sends_at_once_and_is_shown() -> None:
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        good_port = b.transport.data_port
        a.transport.learn(b.id, free_port(), 2)
        a.transport.send_control(b.id, b"alive")
        send_data(a.transport, b.id, b"first")
        await b.inbox.until_control(1)
        await a.inbox.until(lambda: a.inbox.dropped)
        for number in range(20):
            send_data(a.transport, b.id, b"%d" % number)
            assert len(a.inbox.dropped) == number + 2, "told within the call"
            await asyncio.sleep(0.005)
        states = {(r.lane, r.state) for r in a.transport.link_records()}
        assert (Lane.CONTROL, "up") in states
        assert (Lane.DATA, "up") not in states
        a.transport.learn(b.id, good_port, 2)
        async with asyncio.timeout(WAIT_S):
            while not b.inbox.data:
                send_data(a.transport, b.id, b"again")
                await asyncio.sleep(0.01)
        assert {(r.lane, r.state) for r in a.transport.link_records()} == {
            (Lane.CONTROL, "up"),
            (Lane.DATA, "up"),
        }


# -- what waits, and for how long --------------------------------------------------------------


@on_both_loops
async def test_what_waits_for_a_silent_peer_is_bounded_and_then_reported() -> None:
    """Everything is bounded; beyond it the newest is dropped, and nothing is lost silently."""
    async with Stage() as stage:
        with socket.create_server((HOST, 0)) as silent:  # its kernel accepts, it says nothing
            port: int = silent.getsockname()[1]
            a = await stage.node(
                1,
                limits=limits(
                    establish_s=0.2,
                    data_pending_bytes_max=3 * (100 + ITEM_BYTES),
                    control_pending_bytes_max=300,
                ),
            )
            peer = NodeId(HOST, port, 5)
            a.transport.learn(peer, port, 2)
            payloads = [bytes([number]) * 100 for number in range(5)]
            for payload in payloads:
                send_data(a.transport, peer, payload)
                a.transport.send_control(peer, payload)
            assert a.inbox.dropped == [(peer, payload) for payload in payloads[3:]]
            assert a.transport.control_dropped_count == 2
            await a.inbox.until(lambda: len(a.inbox.dropped) == 5)
            assert a.inbox.dropped[2:] == [(peer, payload) for payload in payloads[:3]]
            await a.transport.flush(WAIT_S)
            assert a.transport.control_dropped_count == 5
            assert not a.inbox.lost


@on_both_loops
async def test_a_seed_that_is_not_there_yet_is_dialled_until_it_is() -> None:
    async with Stage() as stage:
        a = await stage.node(1)
        port = await turn_away_one(
            lambda port: a.transport.send_control(NodeId(HOST, port, 0), b"hello?")
        )
        seed = await stage.node(2, port=port)
        await seed.inbox.until(lambda: seed.inbox.control)
        assert seed.inbox.control == [(a.id, HEAD + b"hello?")]


@on_both_loops
async def test_a_process_whose_kernel_refuses_is_not_waited_for() -> None:
    """A certain process was meant and nobody listens: what waits is reported at once."""
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(establish_s=300))
        peer = NodeId(HOST, free_port(), 5)
        a.transport.learn(peer, free_port(), 2)
        for payload in (b"1", b"2"):
            send_data(a.transport, peer, payload)
        await a.inbox.until(lambda: len(a.inbox.dropped) == 2)
        assert a.inbox.dropped == [(peer, b"1"), (peer, b"2")]
        assert not a.inbox.lost


@on_both_loops
async def test_only_a_path_that_failed_of_late_refuses_at_once() -> None:
    """What failed long ago may have healed: the first message waits for the attempt."""
    failing_s = 0.3
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(failing_s=failing_s, redial_max_s=0.05))
        peer = NodeId(HOST, free_port(), 5)
        a.transport.learn(peer, free_port(), 2)
        send_data(a.transport, peer, b"1")
        await a.inbox.until(lambda: a.inbox.dropped)
        failed_at = time.monotonic()
        link = a.transport.data_link(peer)
        assert link is not None
        assert link.is_full
        a.transport.close_links(peer)
        while time.monotonic() < failed_at + failing_s + 0.1:  # the pause before a dial counts too
            await asyncio.sleep(0.01)
        link = a.transport.data_link(peer)
        assert link is not None
        assert not link.is_full


@on_both_loops
async def test_failing_dials_come_ever_more_slowly() -> None:
    """No dial storm, however much is sent: the fifth dial comes 50 + 100 + 200 + 400 ms later."""
    loop = asyncio.get_running_loop()
    with socket.create_server((HOST, 0), backlog=128) as slammer:
        slammer.setblocking(False)

        async def slam(count: int) -> None:
            for _ in range(count):
                connection, _ = await loop.sock_accept(slammer)
                connection.close()

        async with Stage() as stage, asyncio.timeout(WAIT_S):
            a = await stage.node(1)
            peer = NodeId(HOST, slammer.getsockname()[1], 0)
            started_at = time.monotonic()
            slamming = asyncio.create_task(slam(5))
            while not slamming.done():
                a.transport.send_control(peer, b"let me in")
                await asyncio.sleep(0.005)
            assert time.monotonic() - started_at > 0.7


@on_both_loops
async def test_a_peer_that_introduces_itself_is_dialled_without_waiting() -> None:
    """After a failure the next dial is far away here; being heard from brings it near."""
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(establish_s=300, redial_min_s=300, redial_max_s=300))
        port = await turn_away_one(
            lambda port: a.transport.send_control(NodeId(HOST, port, 0), b"who are you?")
        )
        b = await stage.node(2, port=port)
        b.transport.send_control(a.id, b"I am new")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"who are you?")]


@on_both_loops
async def test_an_attempt_that_hangs_is_begun_anew_when_its_peer_is_heard() -> None:
    """Its first packets went into a cut that is over now: what the kernel would repeat, and when,
    is not waited for."""
    loop = asyncio.get_running_loop()
    async with Stage() as stage, asyncio.timeout(WAIT_S):
        a = await stage.node(1, limits=limits(establish_s=300, handshake_s=300))
        with socket.create_server((HOST, 0)) as silent:
            silent.setblocking(False)
            port: int = silent.getsockname()[1]
            a.transport.send_control(NodeId(HOST, port, 0), b"who are you?")
            hanging, _ = await loop.sock_accept(silent)
        with hanging:
            dialled_at = time.monotonic()
            b = await stage.node(2, port=port)
            while time.monotonic() < dialled_at + STALE_ATTEMPT_S:
                await asyncio.sleep(0.01)
            b.transport.send_control(a.id, b"I am back")
            await b.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"who are you?")]


@on_both_loops
async def test_links_are_bounded() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(links_max=2))
        b = await stage.node(2)
        peers = [b.id, NodeId(HOST, b.id.port, 0), NodeId(HOST, b.id.port, 99)]
        for peer in peers:
            a.transport.send_control(peer, b"x")
        assert a.transport.control_dropped_count == 1
        a.transport.close_links(peers[1])
        assert a.transport.control_dropped_count == 2
        a.transport.send_control(peers[2], b"y")
        assert a.transport.control_dropped_count == 2


# -- links that end ----------------------------------------------------------------------------


@on_both_loops
async def test_kill_9_of_the_peer_is_told_once_per_lane(
    record_property: Callable[[str, object], None],
) -> None:
    """A killed process closes its sockets, and the link says so (link evidence)."""
    async with Stage() as stage:
        a = await stage.node(1)
        with process() as child:
            peer = child.id(5)
            a.transport.learn(peer, child.data_port, 2)
            a.transport.send_control(peer, b"ping")
            send_data(a.transport, peer, b"work")
            await a.transport.flush(WAIT_S)
            killed_at = time.perf_counter()
            child.kill()
            await a.inbox.until(lambda: a.inbox.lost)
            record_property("link_lost_ms", (time.perf_counter() - killed_at) * 1000)
            await a.inbox.until(lambda: len(a.inbox.lost) == 2)
            assert sorted(a.inbox.lost, key=str) == [(peer, Lane.CONTROL), (peer, Lane.DATA)]
            child.reap()
            # Both ports are refused from now on, nothing more is said of the lost link.
            send_data(a.transport, peer, b"too late")
            await a.inbox.until(lambda: a.inbox.dropped)
            assert a.inbox.dropped == [(peer, b"too late")]
            assert await a.transport.dial(HOST, child.control_port, 5.0) is DialOutcome.REFUSED
            assert len(a.inbox.lost) == 2


@on_both_loops
async def test_a_restart_on_the_same_port_gets_nothing_that_was_meant_for_the_old_process() -> None:
    """What waited for a process dies with it: here some megabytes behind a stopped one (I-70)."""
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(heartbeat_timeout_s=600.0))
        with process() as child:
            peer = child.id(5)
            a.transport.learn(peer, child.data_port, 2)
            send_data(a.transport, peer, b"first")
            await a.transport.flush(WAIT_S)
            child.stop()
            payload = b"for the old one only" * 1000
            for _ in range(2000):
                send_data(a.transport, peer, payload)
                await asyncio.sleep(0)
            child.kill()
            child.reap()
        await a.inbox.until(lambda: a.inbox.lost)
        assert a.inbox.dropped
        assert set(a.inbox.dropped) == {(peer, payload)}
        b = await stage.node(6, port=child.control_port, data_port=child.data_port)
        assert a.inbox.lost == [(peer, Lane.DATA)]
        send_data(a.transport, peer, b"still the old one is meant")
        await b.inbox.until(lambda: b.inbox.refused)
        a.transport.learn(b.id, child.data_port, 2)
        send_data(a.transport, b.id, b"now the new one is")
        await b.inbox.until_data(1)
        assert b.inbox.data == [(a.id, DATA_HEAD + b"now the new one is")]
        assert set(b.inbox.refused) == {(Lane.DATA, "wrong-uid")}


@on_both_loops
async def test_every_frame_for_another_uid_is_dropped_and_counted() -> None:
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        old = NodeId(HOST, b.id.port, 99)
        for number in range(3):
            a.transport.send_control(old, b"for uid 99")
            await b.inbox.until_refused(number + 2, "wrong-uid")
        a.transport.send_control(b.id, b"for uid 2")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"for uid 2")]
        assert b.inbox.refused == {(Lane.CONTROL, "wrong-uid"): 4}  # the introduction and three
        assert f"{99:016x}" in b.inbox.details[0]


@on_both_loops
async def test_close_links_drops_what_waits_says_nothing_and_the_next_send_dials_anew() -> None:
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        send_data(a.transport, b.id, b"one")
        await b.inbox.until_data(1)
        send_data(a.transport, b.id, b"two")  # leaves at once, and is followed
        send_data(a.transport, b.id, b"three")
        send_data(a.transport, b.id, b"four")
        a.transport.close_links(b.id)
        assert a.inbox.dropped == [(b.id, b"three"), (b.id, b"four")]
        send_data(a.transport, b.id, b"anew")
        await b.inbox.until(lambda: (a.id, DATA_HEAD + b"anew") in b.inbox.data)
        arrived = [frame for _, frame in b.inbox.data]
        # The one that had left may have been on its way, or not.
        assert [frame for frame in arrived if frame != DATA_HEAD + b"two"] == [
            DATA_HEAD + b"one",
            DATA_HEAD + b"anew",
        ]
        assert not a.inbox.lost
        assert not b.inbox.refused


# -- who speaks --------------------------------------------------------------------------------


@on_both_loops
async def test_frames_on_a_connection_without_introduction_are_refused() -> None:
    async with Stage() as stage:
        b = await stage.node(2)
        raw = stage.raw(b)
        raw.send(b"who am I?")
        raw.send(b"")
        raw.send_multipart([b"a", b"b", b"c"])
        raw.send(hello(STRANGER))
        raw.send(b"now you know")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(STRANGER, b"now you know")]
        assert b.inbox.refused == {
            (Lane.CONTROL, "no-hello"): 1,
            (Lane.CONTROL, "malformed"): 2,
        }


@on_both_loops
async def test_the_identity_of_a_connection_never_changes() -> None:
    """A second introduction is refused, the first one stands (I-131)."""
    async with Stage() as stage:
        b = await stage.node(2)
        raw = stage.raw(b)
        raw.send(hello(STRANGER))
        raw.send(hello(NodeId(HOST, 1, 88), link_number=2))
        raw.send(b"still me")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(STRANGER, b"still me")]
        assert b.inbox.refused == {(Lane.CONTROL, "second-hello"): 1}


@on_both_loops
async def test_only_the_whole_magic_makes_an_introduction() -> None:
    """A frame of an introduced connection may begin with any single byte."""
    async with Stage() as stage:
        b = await stage.node(2)
        raw = stage.raw(b)
        raw.send(hello(STRANGER))
        frames = [bytes([first]) + b"x" for first in range(256)] + [MAGIC[:-1]]
        for frame in frames:
            raw.send(frame)
        await b.inbox.until_control(len(frames))
        assert [frame for _, frame in b.inbox.control] == frames
        assert not b.inbox.refused


@on_both_loops
async def test_a_later_connection_replaces_the_earlier_one_in_whichever_order_they_are_read() -> (
    None
):
    """A clean reconnect works, and frames of one sender never overtake each other (I-131)."""
    async with Stage() as stage:
        b = await stage.node(2)
        second, first, third = stage.raw(b), stage.raw(b), stage.raw(b)
        second.send(hello(STRANGER, link_number=2))
        second.send(b"from the second")
        await b.inbox.until_control(1)
        first.send(hello(STRANGER, link_number=1))
        first.send(b"from the first, read late")
        await b.inbox.until_refused(2, "superseded")
        third.send(hello(STRANGER, link_number=3))
        third.send(b"from the third")
        await b.inbox.until_control(2)
        second.send(b"from the second, replaced")
        await b.inbox.until_refused(3, "superseded")
        assert [frame for _, frame in b.inbox.control] == [b"from the second", b"from the third"]


@on_both_loops
async def test_another_wire_version_is_refused_by_name() -> None:
    """Neither side misreads the other (I-140)."""
    async with Stage() as stage:
        a, b = await stage.node(1, versions=(3, 4)), await stage.node(2)
        a.transport.send_control(b.id, b"in words of version 4")
        await b.inbox.until_refused(2, "wire-version")
        assert not b.inbox.control
        assert set(b.inbox.refused) == {(Lane.CONTROL, "wire-version")}
        assert "versions 3 to 4" in b.inbox.details[0]


@on_both_loops
async def test_remembered_connections_are_bounded_and_the_silent_ones_go_first() -> None:
    async with Stage() as stage:
        b = await stage.node(2, limits=limits(connections_max=3))
        raws = [stage.raw(b) for _ in range(4)]
        for number, raw in enumerate(raws[:3]):
            raw.send(hello(NodeId(HOST, 1 + number, 7)))
            raw.send(b"one")
            await b.inbox.until_control(number + 1)
        raws[0].send(b"active")
        await b.inbox.until_control(4)
        raws[3].send(hello(NodeId(HOST, 4, 7)))
        raws[3].send(b"new")
        await b.inbox.until_control(5)
        raws[1].send(b"forgotten")
        await b.inbox.until(lambda: b.inbox.refused)
        raws[0].send(b"remembered")
        await b.inbox.until_control(6)
        assert [frame for _, frame in b.inbox.control[3:]] == [b"active", b"new", b"remembered"]
        assert b.inbox.refused == {(Lane.CONTROL, "no-hello"): 1}


@on_both_loops
async def test_a_flood_of_refused_introductions_displaces_no_member() -> None:
    async with Stage() as stage:
        b = await stage.node(2, limits=limits(connections_max=8))
        member = stage.raw(b)
        member.send(hello(STRANGER))
        member.send(b"I am in")
        await b.inbox.until_control(1)
        for number in range(50):
            raw = stage.raw(b)
            raw.send(hello(NodeId(HOST, 1 + number, 7), meant_uid=99))
            raw.send(MAGIC)
        await b.inbox.until(lambda: b.inbox.refused.total() == 100)
        member.send(b"still")
        await b.inbox.until_control(2)
        assert b.inbox.control[1] == (STRANGER, b"still")


@on_both_loops
async def test_a_node_that_takes_a_new_uid_introduces_itself_anew_and_refuses_the_old_name() -> (
    None
):
    """Nobody walks on under an old uid (I-70)."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        a.transport.send_control(b.id, b"as uid 1")
        b.transport.send_control(a.id, b"to uid 1")
        await b.inbox.until_control(1)
        await a.inbox.until_control(1)
        renamed = NodeId(HOST, a.id.port, 9)
        a.transport.open(renamed, a.inbox)
        b.transport.send_control(a.id, b"still to uid 1")
        await a.inbox.until_refused(1, "wrong-uid")
        a.transport.send_control(b.id, b"as uid 9")
        await b.inbox.until_control(2)
        b.transport.send_control(renamed, b"to uid 9")
        await a.inbox.until_control(2)
        assert b.inbox.control == [(a.id, HEAD + b"as uid 1"), (renamed, HEAD + b"as uid 9")]
        assert a.inbox.control == [(b.id, HEAD + b"to uid 1"), (b.id, HEAD + b"to uid 9")]
        assert not a.inbox.lost


@on_both_loops
async def test_a_connection_that_names_itself_to_zeromq_is_refused() -> None:
    """A name that a peer chose could come back on another connection and inherit its identity."""
    async with Stage() as stage:
        b = await stage.node(2)
        raw = stage.raw(b, routing_id=b"mine")
        raw.send(hello(STRANGER))
        raw.send(b"hello?")
        await b.inbox.until_refused(2, "bad-hello")
        assert not b.inbox.control


# -- hostile bytes -----------------------------------------------------------------------------


async def assert_alive(stage: Stage, node: Node) -> None:
    """A fresh peer reaches both lanes of `node`."""
    visitor = await stage.node(4242)
    meet(visitor, node)
    visitor.transport.send_control(node.id, b"alive?")
    send_data(visitor.transport, node.id, b"alive?")
    inbox = node.inbox
    await inbox.until(
        lambda: (
            (visitor.id, HEAD + b"alive?") in inbox.control
            and (visitor.id, DATA_HEAD + b"alive?") in inbox.data
        )
    )


def talk(port: int, request: bytes) -> bytes:
    """Send bytes over bare TCP and read until the other end closes or resets."""
    answer = b""
    with socket.create_connection((HOST, port), timeout=WAIT_S) as connection:
        try:
            connection.sendall(request)
            while chunk := connection.recv(4096):
                answer += chunk
        except ConnectionError:
            pass
    return answer


@on_both_loops
async def test_an_http_client_is_turned_away_and_counted() -> None:
    async with Stage() as stage:
        b = await stage.node(2)
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for port in (b.transport.control_port, b.transport.data_port):
            await asyncio.to_thread(talk, port, request)
            await asyncio.to_thread(talk, port, request + b"x" * 10_000)
        await b.inbox.until(lambda: b.inbox.refused.total() == 4)
        assert b.inbox.refused == {(Lane.CONTROL, "foreign"): 2, (Lane.DATA, "foreign"): 2}
        assert not b.inbox.control
        await assert_alive(stage, b)


@on_both_loops
async def test_a_connection_that_says_nothing_is_closed_and_counted() -> None:
    async with Stage() as stage:
        b = await stage.node(2, limits=limits(handshake_s=0.2))
        for begun in (b"", b"\xff", b"\xff" + b"\0" * 8 + b"\x7f\x03NULL"):
            await asyncio.to_thread(talk, b.transport.control_port, begun)
        await b.inbox.until(lambda: b.inbox.refused.total() == 3)
        assert b.inbox.refused == {(Lane.CONTROL, "handshake"): 3}


@on_both_loops
async def test_a_bare_dial_is_no_refused_connection() -> None:
    """Peers dial so to learn whether this process lives; that must not look like an attack."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        for _ in range(5):
            assert await a.transport.dial(HOST, b.id.port, 5.0) is DialOutcome.ANSWERED
        await asyncio.to_thread(talk, b.id.port, b"GET / HTTP/1.1\r\n\r\n")
        await b.inbox.until(lambda: b.inbox.refused)
        assert b.inbox.refused == {(Lane.CONTROL, "foreign"): 1}


@on_both_loops
async def test_a_thousand_foreign_connections_leave_nothing_behind() -> None:
    async with Stage() as stage:
        b = await stage.node(2)
        before = open_descriptors()

        def flood() -> None:
            for number in range(1000):
                with socket.create_connection((HOST, b.id.port)) as connection:
                    connection.sendall(b"POST / HTTP/1.1\r\n" + bytes([number % 256]) * 300)

        await asyncio.to_thread(flood)
        await b.inbox.until(lambda: b.inbox.refused[Lane.CONTROL, "foreign"] > 900)
        await assert_alive(stage, b)
        await descriptors_fall_to(before + 50)  # those of the visitor


@on_both_loops
async def test_twenty_thousand_random_frames_per_lane_break_nothing_and_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No crash, no log flood, every frame accounted for (I-79, I-132)."""
    caplog.set_level(logging.DEBUG)
    rng = random.Random(11)
    async with Stage() as stage:
        b = await stage.node(2)
        for lane in Lane:
            stranger, member = stage.raw(b, lane), stage.raw(b, lane)
            member.send(hello(STRANGER, lane=lane))
            for number in range(10_000):
                noise = rng.randbytes(rng.choice([0, 1, 5, 30, 200]))
                choice = rng.random()
                if choice < 0.1:
                    noise = MAGIC + noise
                if choice > 0.98:
                    stranger.send_multipart([noise] * rng.randint(2, 40))
                else:
                    stranger.send(noise)
                member.send(noise)
                if number % 100 == 0:
                    await asyncio.sleep(0)
        inbox = b.inbox
        await inbox.until(
            lambda: inbox.refused.total() + len(inbox.control) + len(inbox.data) >= 40_000
        )
        assert {reason for _, reason in inbox.refused} == {
            "no-hello",
            "bad-hello",
            "malformed",
            "second-hello",
        }
        assert {sender for sender, _ in inbox.control + inbox.data} == {STRANGER}
        await assert_alive(stage, b)
    assert not [record for record in caplog.records if record.name.startswith("node")]


@on_both_loops
async def test_random_bytes_over_bare_tcp_break_nothing() -> None:
    rng = random.Random(12)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 49
    async with Stage() as stage:
        b = await stage.node(2, limits=limits(handshake_s=0.2))

        def garble() -> None:
            for number in range(300):
                port = (b.transport.control_port, b.transport.data_port)[number % 2]
                begun = rng.choice([b"", greeting[: rng.randint(1, 64)], greeting])
                ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
                begun += rng.choice([b"", ready])
                with socket.create_connection((HOST, port)) as connection:
                    connection.sendall(begun + rng.randbytes(rng.randint(0, 400)))

        await asyncio.to_thread(garble)
        await assert_alive(stage, b)


@on_both_loops
async def test_a_giant_frame_ends_its_connection_only() -> None:
    async with Stage() as stage:
        b = await stage.node(2, frame_bytes_max=100_000)
        giant = stage.raw(b, Lane.DATA)
        giant.send(hello(STRANGER, lane=Lane.DATA))
        giant.send(b"x" * 105_000)
        giant.send(b"never heard on this connection")
        await assert_alive(stage, b)
        assert {sender.uid for sender, _ in b.inbox.data} == {4242}


@on_both_loops
async def test_a_giant_message_of_many_parts_does_not_hold_up_the_loop() -> None:
    """Its parts are taken within the budget of a turn, none is mistaken for a frame."""
    async with Stage() as stage:
        b = await stage.node(2)
        raw = stage.raw(b)
        raw.send(hello(STRANGER))
        raw.send_multipart([b"part"] * 5000)
        raw.send(b"after")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(STRANGER, b"after")]
        assert b.inbox.refused == {(Lane.CONTROL, "malformed"): 1}


class RaisingInbox(RecordingInbox):
    """Fails on its first frame."""

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        super().control_frame(sender, frame)
        if len(self.control) == 1:
            raise RuntimeError("the node has a bug")


@on_both_loops
async def test_an_inbox_that_raises_does_not_make_the_lane_deaf() -> None:
    """The descriptor is edge-triggered: an exception must not swallow the edge."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(context.get("exception"))
    )
    async with Stage() as stage:
        inbox = RaisingInbox()
        b = await stage.node(2, inbox=inbox)
        raw = stage.raw(b)
        for frame in (hello(STRANGER), b"one", b"two", b"three"):
            raw.send(frame)
        await inbox.until(lambda: len(inbox.control) == 3)
        assert [str(error) for error in errors] == ["the node has a bug"]


# -- binding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "*", "", "0:0:0:0:0:0:0:0"])
def test_a_wildcard_is_nobodys_address(host: str) -> None:
    """I-84."""
    loop = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(SettingsError, match=r"host=.* means every interface .* name the one"):
            ZmqTransport(host, 0, loop=loop)
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("port", "data_port", "frame_bytes_max", "text"),
    [
        (-1, 0, 1 << 20, "port=-1"),
        (65536, 0, 1 << 20, "port=65536"),
        (25520, 70000, 1 << 20, "data_port=70000"),
        (25520, 25520, 1 << 20, "data_port=25520 is the control port"),
        (0, 0, 1000, "frame_bytes_max=1000"),
    ],
)
def test_wrong_numbers_are_refused(
    port: int, data_port: int, frame_bytes_max: int, text: str
) -> None:
    loop = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(SettingsError, match=text):
            ZmqTransport(HOST, port, data_port, loop=loop, frame_bytes_max=frame_bytes_max)
    finally:
        loop.close()


@on_both_loops
async def test_outside_loopback_needs_keys_or_a_clear_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A documentation address is not ours, so nothing is ever bound here (I-148)."""
    loop = asyncio.get_running_loop()
    with pytest.raises(SettingsError, match=r"not loopback .*--insecure"):
        await ZmqTransport("192.0.2.1", 0, loop=loop).bind()
    assert not caplog.records
    with pytest.raises(SettingsError, match="not an address of this machine"):
        await ZmqTransport("192.0.2.1", 0, loop=loop, insecure=True).bind()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "INSECURE" in caplog.text


@on_both_loops
async def test_a_host_that_does_not_resolve_is_named() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(SettingsError, match=r"host='no\.\.such' does not resolve"):
        await ZmqTransport("no..such", 0, loop=loop).bind()


@on_both_loops
async def test_a_port_in_use_is_named_with_its_mend_and_nothing_stays_open() -> None:
    async with Stage() as stage:
        a = await stage.node(1)
        loop = asyncio.get_running_loop()
        before = open_descriptors()
        taken = a.transport.control_port
        with pytest.raises(AddressInUseError, match=rf"control lane to {HOST}:{taken}.*choose"):
            await ZmqTransport(HOST, taken, loop=loop).bind()
        free = free_port()
        taken = a.transport.data_port
        with pytest.raises(AddressInUseError, match=rf"data lane to {HOST}:{taken}.*data_port"):
            await ZmqTransport(HOST, free, taken, loop=loop).bind()
        assert open_descriptors() == before
        assert (await stage.node(2, port=free)).id.port == free


@on_both_loops
@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1", "[::1]"])
async def test_names_and_both_families_work(host: str) -> None:
    async with Stage() as stage:
        a, b = await stage.node(1, host=host), await stage.node(2, host=host)
        meet(a, b)
        assert a.id.host == host
        a.transport.send_control(b.id, b"x")
        send_data(a.transport, b.id, b"y")
        await b.inbox.until(lambda: b.inbox.control and b.inbox.data)
        assert b.inbox.control == [(a.id, HEAD + b"x")]
        assert await a.transport.dial(host, b.id.port, 5.0) is DialOutcome.ANSWERED


@on_both_loops
async def test_a_peer_whose_name_does_not_resolve_is_an_undeliverable_one() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(establish_s=0.1))
        peer = NodeId("no..such", 25520, 5)
        a.transport.learn(peer, 25521, 2)
        send_data(a.transport, peer, b"x")
        await a.inbox.until(lambda: a.inbox.dropped)
        assert a.inbox.dropped == [(peer, b"x")]


# -- dialling ----------------------------------------------------------------------------------


@on_both_loops
async def test_only_a_kernels_refusal_is_a_refusal() -> None:
    async with Stage() as stage:
        a = await stage.node(1)
        dial = a.transport.dial
        assert await dial(HOST, free_port(), 5.0) is DialOutcome.REFUSED
        assert await dial("localhost", free_port(), 5.0) is DialOutcome.REFUSED
        assert await dial(HOST, a.id.port, 5.0) is DialOutcome.ANSWERED
        assert await dial("no..such", 1, 5.0) is DialOutcome.UNKNOWN
        assert await dial(HOST, 70_000, 5.0) is DialOutcome.UNKNOWN
        with socket.socket() as full:
            full.bind((HOST, 0))
            full.listen(0)
            port = full.getsockname()[1]
            outcomes = [await dial_and_keep(port) for _ in range(3)]
            assert await dial(HOST, port, 0.1) is DialOutcome.UNKNOWN
            for kept in outcomes:
                kept.close()
        with socket.socket() as mute:
            mute.bind((HOST, 0))
            mute.listen(1)
            # A kernel accepts for a stopped process as well; only a running one greets.
            assert await dial(HOST, mute.getsockname()[1], 0.1) is DialOutcome.ACCEPTED


async def dial_and_keep(port: int) -> socket.socket:
    """A connection that stays in the backlog."""
    kept = socket.socket()
    kept.setblocking(False)
    kept.connect_ex((HOST, port))
    return kept


# -- the end -----------------------------------------------------------------------------------


@on_both_loops
async def test_what_was_flushed_arrives_although_the_node_closes_at_once() -> None:
    """A leave is the last thing a node says."""
    async with Stage() as stage:
        b = await stage.node(1000)
        for number in range(20):
            a = await stage.node(1 + number)
            meet(a, b)
            a.transport.send_control(b.id, b"I leave")
            for _ in range(10):
                send_data(a.transport, b.id, b"and take nothing" * 4000)
            await a.transport.flush(WAIT_S)
            await a.transport.close()
        await b.inbox.until(lambda: len(b.inbox.control) == 20 and len(b.inbox.data) == 200)
        assert not b.inbox.refused


@on_both_loops
async def test_flush_gives_up_in_time_and_close_reports_what_was_left() -> None:
    async with Stage() as stage:
        with socket.create_server((HOST, 0)) as silent:
            port: int = silent.getsockname()[1]
            a = await stage.node(1)
            peer = NodeId(HOST, port, 5)
            a.transport.learn(peer, port, 2)
            send_data(a.transport, peer, b"x")
            started_at = time.monotonic()
            await a.transport.flush(0.1)
            assert 0.05 < time.monotonic() - started_at < WAIT_S / 2
            assert not a.inbox.dropped
            await a.transport.close()
            assert a.inbox.dropped == [(peer, b"x")]
            send_data(a.transport, peer, b"y")
            assert a.inbox.dropped[1:] == [(peer, b"y")]
            await a.transport.close()


@on_both_loops
async def test_flush_does_not_wait_for_a_seed_that_nobody_serves() -> None:
    """A leaver whose seed is gone ends at once."""
    async with Stage() as stage:
        a = await stage.node(1)
        with socket.create_server((HOST, 0)) as free:
            port: int = free.getsockname()[1]
        a.transport.send_control(NodeId(HOST, port, 0), b"x")
        started_at = time.monotonic()
        await a.transport.flush(WAIT_S)
        assert time.monotonic() - started_at < WAIT_S / 2


def open_sockets() -> set[str]:
    """The sockets of this process, as the kernel names them."""
    links = {os.readlink(path) for fd in os.listdir(FDS) if os.path.exists(path := FDS + fd)}
    return {link for link in links if link.startswith("socket:")}


def accepts(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as dialler:
        return dialler.connect_ex((HOST, port)) == 0


@on_both_loops
async def test_the_control_listener_is_the_last_to_close() -> None:
    """A refused control port must mean that nothing of the process listens any more."""

    loop = asyncio.get_running_loop()

    def data_outlived_control(ports: tuple[int, int], watching: asyncio.Event) -> bool:
        while accepts(ports[0]):
            loop.call_soon_threadsafe(watching.set)
        return accepts(ports[1])

    for _ in range(5):
        async with Stage() as stage:
            a = await stage.node(1)
            ports = (a.transport.control_port, a.transport.data_port)
            watching = asyncio.Event()
            outlived = asyncio.create_task(
                asyncio.to_thread(data_outlived_control, ports, watching)
            )
            await watching.wait()
            await a.transport.close()
            assert not await outlived


@on_both_loops
async def test_no_socket_reaches_a_child_process() -> None:
    """All sockets are close-on-exec: a child that outlives us must not keep our ports open."""
    async with Stage() as stage:
        a, b = await stage.node(1), await stage.node(2)
        meet(a, b)
        a.transport.send_control(b.id, b"x")
        send_data(b.transport, a.id, b"x")
        await b.inbox.until_control(1)
        await a.inbox.until_data(1)
        sockets = open_sockets()
        assert len(sockets) >= 8  # four listeners, two links with both ends
        with heir() as inherited:
            assert not sockets & inherited
            await b.transport.close()
            assert await a.transport.dial(HOST, b.id.port, 5.0) is DialOutcome.REFUSED


@on_both_loops
async def test_two_hundred_links_leave_no_descriptor_behind() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(redial_min_s=0.0))
        b = await stage.node(2)
        meet(a, b)
        before = open_descriptors()
        for number in range(200):
            send_data(a.transport, b.id, b"x")
            if number % 2 == 0:
                await b.inbox.until_data(number // 2 + 1)
            a.transport.close_links(b.id)
        peers = [NodeId(HOST, b.id.port, uid) for uid in range(100, 120)]
        for peer in peers:
            a.transport.send_control(peer, b"x")
        await a.transport.flush(WAIT_S)
        for peer in peers:
            a.transport.close_links(peer)
        await descriptors_fall_to(before)


@on_both_loops
async def test_closed_transports_leave_no_descriptor_behind() -> None:
    before = open_descriptors()
    for _ in range(10):
        async with Stage() as stage:
            a, b = await stage.node(1), await stage.node(2)
            meet(a, b)
            a.transport.send_control(b.id, b"x")
            send_data(b.transport, a.id, b"x")
            await a.inbox.until_data(1)
    assert open_descriptors() == before
