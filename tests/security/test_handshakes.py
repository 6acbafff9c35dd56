"""Keys on real sockets: who gets in, who does not, and who may say that it is whom."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import pytest
import zmq

from gossip.membership import NodeId
from node.environment import Lane
from node.errors import SettingsError
from node.keys import KeyPair, new_pair
from tests.node.zmq_stage import HEAD, HOST, WAIT_S, hello, on_both_loops
from tests.security.stage import (
    Keyed,
    KeyedStage,
    Proxy,
    free_ports,
    key_directory,
    lanes,
    line_of,
    public_line,
    say,
    trust,
    until,
    until_event,
    until_fault,
)

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
OUTCOME = FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED


def heard_nothing(node: Keyed) -> bool:
    """True when no frame was handed on."""
    return not node.inbox.control and not node.inbox.data


@on_both_loops
async def test_nodes_that_trust_each_other_talk_both_ways(tmp_path: Path) -> None:
    """Right keys: frames arrive, and the key of the connection is known for the node."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        a.transport.send_control(b.id, b"to b")
        await b.inbox.until_control(1)
        b.transport.send_control(a.id, b"to a")
        await a.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"to b")]
        assert a.inbox.control == [(b.id, HEAD + b"to a")]
        assert b.transport.key_of(a.id) == a.transport.public_key != b""
        assert a.transport.key_of(b.id) == b.transport.public_key != b""
        assert not a.inbox.refused
        assert not b.inbox.refused
        assert not a.transport.dial_faults()


@on_both_loops
async def test_a_seed_is_dialled_by_address_with_the_key_that_names_it(tmp_path: Path) -> None:
    """Nobody is known yet: the line of `trusted` gives the key, and the answer finds its way."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        a.transport.send_control(NodeId(HOST, b.transport.control_port, 0), b"who is there?")
        await b.inbox.until_control(1)
        assert b.inbox.control == [(a.id, HEAD + b"who is there?")]


@on_both_loops
async def test_both_lanes_refuse_an_unknown_key_before_any_frame(tmp_path: Path) -> None:
    """A stranger learns that it is refused; its key and address are counted on the other side."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        for lane, port in lanes(b):
            own = new_pair()
            dealer, monitor = stage.dealer(port, own=own, server=b.transport.public_key)
            say(dealer, hello(NodeId(HOST, 7, 7), lane=lane))
            say(dealer, b"[head]never read")
            assert await until_event(monitor, OUTCOME) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
            await b.inbox.until_refused(1, "unknown-key", lane)
            assert own.public.hex() in b.inbox.details[-1]
            assert HOST in b.inbox.details[-1]
        assert set(b.inbox.refused) == {(lane, "unknown-key") for lane, _ in lanes(b)}
        assert heard_nothing(b)


@on_both_loops
async def test_a_refusal_is_logged_once_per_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted each time, logged once with the whole key: it can be copied into `trusted`."""
    caplog.set_level(logging.WARNING)
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        own = new_pair()
        for count in (1, 2, 3):
            stage.dealer(b.transport.control_port, own=own, server=b.transport.public_key)
            await b.inbox.until_refused(count, "unknown-key")
        logged = [record for record in caplog.records if vars(record).get("key")]
        assert [vars(record)["key"] for record in logged] == [own.public.hex()]
        assert vars(logged[0])["host"] == HOST


@on_both_loops
async def test_both_lanes_refuse_a_peer_without_keys(tmp_path: Path) -> None:
    """Plain ZMTP does not get as far as a frame."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        for lane, port in lanes(b):
            dealer, monitor = stage.dealer(port, own=None, server=None)
            say(dealer, hello(NodeId(HOST, 7, 7), lane=lane))
            # Both sides see the mismatch; who ends it first is the faster one.
            event, _ = await until_event(monitor, OUTCOME)
            assert event & FAILED
        assert heard_nothing(b)


@on_both_loops
async def test_a_node_without_keys_says_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and logged, that the others want keys; the other way round as well."""
    caplog.set_level(logging.WARNING)
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        bare = await stage.node(None, 0, 13)
        await until_fault(bare, b.id)
        # Whoever sees the mismatch first ends the connection, so the words are not always the same.
        why = bare.transport.dial_faults()[b.id.address]
        assert why.startswith(f"refused: {b.id.address} ")
        assert "want" in why
        assert "this node has none" in why
        await b.trusts(line_of(new_pair(), bare.transport.control_port))
        await until_fault(b, bare.id)
        assert "has no keys" in b.transport.dial_faults()[bare.id.address]
        assert heard_nothing(b)
        assert heard_nothing(bare)
        assert why in [vars(record).get("why") for record in caplog.records]


@on_both_loops
async def test_the_refused_node_says_by_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with foreign keys that knows the cluster's says "key not trusted by HOST:PORT"."""
    caplog.set_level(logging.WARNING)
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        foreign = key_directory(tmp_path / "foreign")
        trust(foreign, [public_line(foreign), b.line])
        c = await stage.node(foreign, 0, 13)
        await until_fault(c, b.id)
        (why,) = c.transport.dial_faults().values()
        assert why.startswith(f"refused: key not trusted by {b.id.address}")
        assert c.transport.public_key.hex() in why
        await b.inbox.until_refused(1, "unknown-key")
        assert heard_nothing(b)
        assert why in [vars(record).get("why") for record in caplog.records]


@on_both_loops
async def test_the_far_end_must_prove_the_key_of_its_address(tmp_path: Path) -> None:
    """Another process at a trusted address gets nothing: it cannot show that address' key."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        (port,) = free_ports(1)
        fake = await stage.node(key_directory(tmp_path / "fake", port=port), port, 13)
        # `a` takes the address of the impostor for one of b's, whose key it knows.
        await a.trusts(f"{b.transport.public_key.hex()} {HOST}:{port}")
        meant = NodeId(HOST, port, 0)
        await until_fault(a, meant)
        assert (
            "its key is not the one that the trusted file"
            in a.transport.dial_faults()[f"{HOST}:{port}"]
        )
        assert heard_nothing(fake)


@on_both_loops
async def test_without_a_key_to_expect_nobody_is_dialled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An address that no line of `trusted` names is not dialled, and the log says the mend."""
    caplog.set_level(logging.WARNING)
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        await a.trusts(b.transport.public_key.hex())
        unknown = NodeId(HOST, b.transport.control_port, 0)
        await until_fault(a, unknown)
        (why,) = a.transport.dial_faults().values()
        assert why == (
            f"no line of trusted names {b.id.address}: write that address behind its key, "
            f"`KEY {b.id.address}`"
        )
        assert why in [vars(record).get("why") for record in caplog.records]


async def say_hello(
    stage: KeyedStage, node: Keyed, own: KeyPair, sender: NodeId, lane: Lane, number: int = 1
) -> zmq.Socket[bytes]:
    """A client with a trusted key says that it is `sender`, and sends one frame; its monitor."""
    port = dict(lanes(node))[lane]
    dealer, monitor = stage.dealer(port, own=own, server=node.transport.public_key)
    event, _ = await until_event(monitor, OUTCOME)
    assert event == zmq.EVENT_HANDSHAKE_SUCCEEDED
    say(dealer, hello(sender, lane=lane, link_number=number))
    say(dealer, HEAD + b"forged")
    return monitor


@pytest.mark.parametrize("lane", [Lane.CONTROL, Lane.DATA])
@on_both_loops
async def test_a_trusted_key_does_not_speak_for_another_node(tmp_path: Path, lane: Lane) -> None:
    """A forged sender with a valid foreign key is refused, by each of the ways to know better."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        insider, restarted = new_pair(), NodeId(HOST, a.id.port, 99)
        await b.trusts(line_of(insider), a.line)
        # By the line that names a's address.
        await say_hello(stage, b, insider, a.id, lane)
        await b.inbox.until_refused(1, "wrong-key", lane)
        await say_hello(stage, b, insider, restarted, lane)
        await b.inbox.until_refused(2, "wrong-key", lane)
        # By a's own connection, when its address is not named any more.
        a.transport.send_control(b.id, b"here is a")
        await b.inbox.until_control(1)
        await b.trusts(line_of(insider), a.transport.public_key.hex())
        await say_hello(stage, b, insider, a.id, lane)
        await b.inbox.until_refused(3, "wrong-key", lane)
        assert [sender for sender, _ in b.inbox.control] == [a.id]
        assert not b.inbox.data


@on_both_loops
async def test_a_key_that_is_held_to_an_address_speaks_for_no_other(tmp_path: Path) -> None:
    """`KEY HOST:PORT` gives a key one place, also beside places that nobody else claims."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        held = new_pair()
        here, elsewhere = free_ports(2)
        await b.trusts(line_of(held, here))
        await say_hello(stage, b, held, NodeId(HOST, elsewhere, 5), Lane.CONTROL)
        await b.inbox.until_refused(1, "wrong-key")
        assert f"{HOST}:{here}" in b.inbox.details[-1]
        assert heard_nothing(b)
        await say_hello(stage, b, held, NodeId(HOST, here, 5), Lane.CONTROL)
        await b.inbox.until_control(1)


@on_both_loops
async def test_a_process_that_was_bound_to_a_key_keeps_it(tmp_path: Path) -> None:
    """The first connection of a process binds it: a second key for it is refused, and ended."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        first, second, node = new_pair(), new_pair(), NodeId(HOST, 9, 5)
        await b.trusts(line_of(first), line_of(second))
        await say_hello(stage, b, first, node, Lane.CONTROL)
        await b.inbox.until_control(1)
        monitor = await say_hello(stage, b, second, node, Lane.CONTROL, number=2)
        await b.inbox.until_refused(1, "wrong-key")
        await until_event(monitor, zmq.EVENT_DISCONNECTED)
        await say_hello(stage, b, first, node, Lane.DATA, number=3)
        await say_hello(stage, b, second, node, Lane.DATA, number=4)
        await b.inbox.until_refused(1, "wrong-key", Lane.DATA)
        assert b.transport.key_of(node) == first.public
        assert len(b.inbox.control) == 1


@on_both_loops
async def test_a_revoked_key_is_out_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line removed while the node runs: its connections end, both ways, and no new one comes."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        a.transport.send_control(b.id, b"1")
        b.transport.send_control(a.id, b"2")
        await b.inbox.until_control(1)
        await a.inbox.until_control(1)
        await b.trusts()
        await b.inbox.until_refused(1, "revoked-key")
        logged = {record.message for record in caplog.records if "is refused" in record.message}
        assert logged == {"a connection is refused: its key was removed from the trusted file"}
        # a's link was hung up on; b's own to a is gone without a word.
        await a.inbox.until(lambda: (b.id, Lane.CONTROL) in a.inbox.lost)
        a.transport.send_control(b.id, b"3")
        await b.inbox.until_refused(1, "unknown-key")
        await until(a.transport.dial_faults)
        assert "key not trusted by" in a.transport.dial_faults()[b.id.address]
        b.transport.send_control(a.id, b"4")
        await until(b.transport.dial_faults)
        assert "is not in trusted" in b.transport.dial_faults()[a.id.address]
        assert len(b.inbox.control) == len(a.inbox.control) == 1
        # The line is back: so is a, without a restart of either.
        await b.trusts(a.line)

        def again() -> bool:
            a.transport.send_control(b.id, b"5")
            return len(b.inbox.control) > 1

        await until(again)
        assert not a.transport.dial_faults()


@on_both_loops
async def test_a_bad_line_revokes_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged list on the way is logged once, and the former list stays."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        a.transport.send_control(b.id, b"1")
        await b.inbox.until_control(1)
        assert b.keys is not None
        trust(b.keys.trusted_path.parent, [b.line, "no key at all"])
        await until(lambda: any("cannot be read again" in r.message for r in caplog.records))
        a.transport.send_control(b.id, b"2")
        await b.inbox.until_control(2)
        assert not b.inbox.refused
        assert sum("cannot be read again" in r.message for r in caplog.records) == 1


@on_both_loops
async def test_a_key_can_be_replaced_without_a_gap(tmp_path: Path) -> None:
    """Two lines for one address: the far end is reached with whichever key it has by now."""
    async with KeyedStage(tmp_path) as stage:
        (first, second), (port, other) = stage.directories("a", "b")
        renewed = key_directory(tmp_path / "b2", port=other)
        lines = [public_line(first), public_line(second), public_line(renewed)]
        for directory in (first, renewed):
            trust(directory, lines)
        a = await stage.node(first, port, 11)
        b = await stage.node(renewed, other, 12)

        def arrived() -> bool:
            a.transport.send_control(NodeId(HOST, other, 0), b"x")
            return bool(b.inbox.control)

        await until(arrived)
        assert a.transport.public_key == b.transport.key_of(a.id)


@on_both_loops
async def test_a_recorded_handshake_played_again_delivers_nothing(tmp_path: Path) -> None:
    """Every byte of a session, sent again by somebody on the way: no frame comes of it."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        client, node = new_pair(), NodeId(HOST, 9, 5)
        await b.trusts(line_of(client))
        async with Proxy(b.transport.control_port) as proxy:
            dealer, _ = stage.dealer(proxy.port, own=client, server=b.transport.public_key)
            say(dealer, hello(node))
            for number in range(5):
                say(dealer, HEAD + b"pay %d" % number)
            await b.inbox.until_control(5)
            assert len(proxy.recorded) == 1
            assert b"pay" not in proxy.recorded[0]
            recorded = bytes(proxy.recorded[0])
        for _ in range(3):
            reader, writer = await asyncio.open_connection(HOST, b.transport.control_port)
            writer.write(recorded)
            await writer.drain()
            # The server ends it: its answer to the replayed HELLO has a new key, which the
            # recorded INITIATE cannot know.
            while await reader.read(65_536):
                pass
            writer.close()
        await b.inbox.until_refused(3, "handshake")
        assert len(b.inbox.control) == 5


@on_both_loops
async def test_a_man_in_the_middle_with_a_key_of_his_own_is_refused(tmp_path: Path) -> None:
    """Who relays between two nodes is neither of them: the dialler finds the wrong key, and the
    dialled node a stranger's."""
    async with KeyedStage(tmp_path) as stage:
        a, b = await stage.pair()
        (port,) = free_ports(1)
        middle = key_directory(tmp_path / "middle", port=port)
        trust(middle, [public_line(middle), a.line, b.line])
        await a.trusts(f"{b.transport.public_key.hex()} {HOST}:{port}")
        m = await stage.node(middle, port, b.id.uid)
        victim = NodeId(HOST, port, b.id.uid)
        await until_fault(a, victim)
        m.transport.send_control(b.id, b"x")
        await b.inbox.until_refused(1, "unknown-key")
        assert heard_nothing(m)
        assert heard_nothing(b)
        assert (
            "its key is not the one that the trusted file"
            in a.transport.dial_faults()[victim.address]
        )


@on_both_loops
async def test_a_start_with_a_list_that_holds_our_key_elsewhere_is_refused(
    tmp_path: Path,
) -> None:
    """Everybody with the same list would refuse this node: it says so before it joins anything."""
    async with KeyedStage(tmp_path) as stage:
        here, elsewhere = free_ports(2)
        directory = key_directory(tmp_path / "a", port=elsewhere)
        with pytest.raises(SettingsError, match=f"{HOST}:{elsewhere}, but the node is bound to"):
            await stage.node(directory, here, 11)
        trust(directory, [line_of(new_pair(), here), public_line(directory).split()[0]])
        with pytest.raises(SettingsError, match="which is this node, whose key is"):
            await stage.node(directory, here, 11)


@on_both_loops
async def test_a_close_waits_for_no_handshake(tmp_path: Path) -> None:
    """Handshakes that nobody answered any more do not hold up the end of a node."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        for _ in range(20):
            stage.dealer(b.transport.control_port, own=new_pair(), server=b.transport.public_key)
            stage.dealer(b.transport.data_port, own=new_pair(), server=b.transport.public_key)
        # Let the I/O threads get as far as the question, while this thread, whose loop would
        # answer it, looks away.
        with contextlib.closing(socket.create_connection((HOST, b.transport.control_port))) as late:
            late.recv(1)
        async with asyncio.timeout(WAIT_S):
            await b.transport.close()


@on_both_loops
async def test_handshakes_wait_while_the_loop_stands_still(tmp_path: Path) -> None:
    """A node that is busy for a moment answers all of them afterwards: the doorkeeper's socket
    tells of its requests only once."""
    async with KeyedStage(tmp_path) as stage:
        _, b = await stage.pair()
        clients = [new_pair() for _ in range(100)]
        await b.trusts(*map(line_of, clients))
        dealers = [
            stage.dealer(b.transport.control_port, own=own, server=b.transport.public_key)
            for own in clients
        ]
        for number, (dealer, _) in enumerate(dealers, 1):
            say(dealer, hello(NodeId(HOST, 9, number)))
            say(dealer, HEAD + b"x")
        await b.inbox.until_control(len(clients))
        assert {sender.uid for sender, _ in b.inbox.control} == set(range(1, 101))
        assert not b.inbox.refused
