"""Control links of the real transport: which are kept open, and which are closed in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gossip.membership import NodeId
from node.environment import Lane
from node.zmq_listener import Listener
from tests.node.zmq_stage import (
    HEAD,
    HOST,
    WAIT_S,
    Node,
    Stage,
    descriptors_fall_to,
    hello,
    limits,
    on_both_loops,
    open_descriptors,
    process,
)


def states(node: Node, lane: Lane = Lane.CONTROL) -> dict[NodeId, str]:
    """Peer → state of each outgoing link."""
    return {r.peer: r.state for r in node.transport.link_records() if r.lane is lane}


async def until(fact: Callable[[], object]) -> None:
    """Wait until `fact()` holds."""
    async with asyncio.timeout(WAIT_S):
        while not fact():
            await asyncio.sleep(0.005)


# -- kept links --------------------------------------------------------------------------------


@on_both_loops
async def test_a_frozen_process_is_told_on_kept_links_and_on_no_other() -> None:
    """A stopped process keeps its sockets; only a heartbeat finds out (link evidence)."""
    quick = limits(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.3, keep_delay_s=0.0)
    async with Stage() as stage:
        a, other = await stage.node(1, limits=quick), await stage.node(2, limits=quick)
        with process() as child:
            peer = child.id(5)
            a.transport.send_control(peer, b"without heartbeats at first")
            other.transport.send_control(peer, b"never with heartbeats")
            await a.transport.flush(WAIT_S)
            await other.transport.flush(WAIT_S)
            a.transport.keep_links([peer])
            links = a.transport._control
            assert links is not None
            await until(lambda: links.has_heartbeat(peer))
            assert not a.inbox.lost
            child.stop()
            await a.inbox.until(lambda: a.inbox.lost)
            assert a.inbox.lost == [(peer, Lane.CONTROL)]
            assert not other.inbox.lost
            assert states(other) == {peer: "up"}


@on_both_loops
async def test_a_kept_link_is_dialled_without_a_word_until_somebody_is_there() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(keep_delay_s=0.0))
        with process() as child:
            peer = child.id(5)
            a.transport.keep_links([peer])
            await until(lambda: states(a) == {peer: "up"})
            child.kill()
            await a.inbox.until(lambda: a.inbox.lost)
            dialled = a.transport.counters()["control_links_dialled"]
            await until(lambda: a.transport.counters()["control_links_dialled"] >= dialled + 2)
            child.reap()
        b = await stage.node(5, port=peer.port)
        await until(lambda: states(a) == {peer: "up"})
        a.transport.send_control(b.id, b"here you are")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"here you are")]
        assert a.inbox.lost == [(peer, Lane.CONTROL)]
        a.transport.close_links(peer)
        await asyncio.sleep(0.2)  # longer than a first pause between two dials
        assert states(a) == {}


@on_both_loops
async def test_nothing_is_lost_when_a_link_becomes_kept_or_is_kept_no_more() -> None:
    """Its connection is replaced while frames are sent: each arrives once, and in order."""
    quick = limits(keep_delay_s=0.0, unkept_idle_s=0.05)
    async with Stage() as stage:
        a, b = await stage.node(1, limits=quick), await stage.node(2)
        links = a.transport._control
        assert links is not None
        sent: list[bytes] = []

        async def send_until(fact: Callable[[], bool]) -> None:
            async with asyncio.timeout(WAIT_S):
                while not fact():
                    sent.append(b"%06d" % len(sent))
                    a.transport.send_control(b.id, sent[-1])
                    await asyncio.sleep(0.0005)

        for _ in range(3):
            await send_until(lambda: states(a) == {b.id: "up"})
            assert not links.has_heartbeat(b.id)
            a.transport.keep_links([b.id])
            await send_until(lambda: links.has_heartbeat(b.id))
            a.transport.keep_links([])
            await until(lambda: not states(a))
        await b.inbox.until(lambda: b.inbox.control_bytes().endswith(sent[-1]))
        assert b.inbox.control_bytes() == b"".join(sent)
        # A connection that is not made while the present one is busy is dialled again later.
        assert a.transport.counters()["control_links_dialled"] >= 6
        assert a.transport.counters()["control_links_closed_idle"] == 3
        assert a.transport.control_dropped_count == 0
        assert not a.inbox.lost
        assert not b.inbox.refused


@on_both_loops
async def test_links_that_are_kept_do_not_beat_before_the_set_is_at_rest() -> None:
    """While a cluster forms the set changes all the time: one dial for the last of them."""
    async with Stage() as stage:
        a, b, c = await stage.node(1), await stage.node(2), await stage.node(3)
        for number in range(20):
            a.transport.keep_links([NodeId(HOST, b.id.port, 100 + number)])
        a.transport.keep_links([c.id])
        await until(lambda: states(a) == {c.id: "up"})
        assert a.transport.counters()["control_links_dialled"] == 1


# -- links that nobody uses ----------------------------------------------------------------------


@on_both_loops
async def test_an_idle_link_is_closed_in_silence_and_dialled_by_the_next_send() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(idle_s=0.3, unkept_idle_s=0.05, keep_delay_s=0.0))
        b, c = await stage.node(2), await stage.node(3)
        a.transport.keep_links([c.id])
        a.transport.send_control(b.id, b"one")
        await until(lambda: states(a) == {b.id: "up", c.id: "up"})
        await until(lambda: states(a) == {c.id: "up"})
        assert a.transport.counters()["control_links_closed_idle"] == 1
        a.transport.send_control(b.id, b"two")
        await b.inbox.until_control(2)
        assert b.inbox.control_bytes() == b"onetwo"
        assert not a.inbox.lost
        assert not b.inbox.refused


@on_both_loops
async def test_the_least_recently_used_link_gives_way_and_nothing_is_lost() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(control_links_max=3, keep_delay_s=0.0))
        peers = [await stage.node(number) for number in range(2, 9)]
        kept = peers[0].id
        a.transport.keep_links([kept])
        await until(lambda: states(a) == {kept: "up"})
        for turn in range(1, 4):
            for peer in peers:
                a.transport.send_control(peer.id, b"x")
                await peer.inbox.until_control(turn)
        assert set(states(a)) == {kept, *(peer.id for peer in peers[-3:])}
        for peer in peers:  # all at once
            a.transport.send_control(peer.id, b"y")
        for peer in peers:
            await peer.inbox.until_control(4)
        await until(lambda: len(states(a)) <= 4)
        assert kept in states(a)
        assert not a.inbox.lost
        assert not any(peer.inbox.refused for peer in peers)
        assert a.transport.control_dropped_count == 0


@on_both_loops
async def test_a_link_on_which_something_waits_is_not_closed() -> None:
    """A stopped process does not read: what waits for it stays, however many others are open."""
    limits_ = limits(control_links_max=1, idle_s=0.1, unkept_idle_s=0.05)
    async with Stage() as stage:
        a, b = await stage.node(1, limits=limits_), await stage.node(2)
        with process() as child:
            peer = child.id(5)
            a.transport.send_control(peer, b"x")
            await a.transport.flush(WAIT_S)
            child.stop()
            payload = bytes(60_000)
            while a.transport.control_dropped_count == 0:  # until nothing more may wait
                a.transport.send_control(peer, payload)
                await asyncio.sleep(0.001)
            dropped_count = a.transport.control_dropped_count
            for turn in range(1, 4):
                a.transport.send_control(b.id, b"x")
                await b.inbox.until_control(turn)
                await until(lambda: states(a) == {peer: "up"})
            assert a.transport.control_dropped_count == dropped_count


@on_both_loops
async def test_a_thousand_connections_that_ended_are_forgotten() -> None:
    async with Stage() as stage:
        a = await stage.node(1, limits=limits(redial_min_s=0.0))
        b = await stage.node(2)
        listener: Listener = b.transport._listeners[Lane.CONTROL]
        before = open_descriptors()
        for number in range(1, 1001):
            peer = NodeId(HOST, b.id.port, b.id.uid if number % 4 else 99)
            a.transport.send_control(peer, b"x")
            await a.transport.flush(WAIT_S)
            a.transport.close_links(peer)
        tables = (listener._introduced, listener._refused, listener._current, listener._routes)
        await until(lambda: not any(tables))
        await descriptors_fall_to(before)
        a.transport.send_control(b.id, b"last")
        await b.inbox.until(lambda: b.inbox.control[-1:] == [(a.id, HEAD + b"last")])


@on_both_loops
async def test_three_hundred_that_dial_at_once_are_all_let_in() -> None:
    """A cluster that starts at once: nobody is taken for one who has nothing to say."""
    count = 300
    async with Stage() as stage:
        node = await stage.node(2)
        for uid in range(100, 100 + count):
            dealer = stage.raw(node)
            dealer.send(hello(NodeId(HOST, 9, uid)))
            dealer.send(b"%d" % uid)
        await node.inbox.until_control(count)
        assert {frame for _, frame in node.inbox.control} == {
            b"%d" % uid for uid in range(100, 100 + count)
        }
        assert not node.inbox.refused
