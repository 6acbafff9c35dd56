"""Links, cuts, delays and dials of the simulated network, over bare transports."""

from __future__ import annotations

import asyncio
import math

import pytest

from gossip.membership import NodeId
from node.environment import DialOutcome, Lane
from node.errors import AddressInUseError
from node.outbox import ITEM_BYTES
from node.testkit.stage import SimNode, Stage
from node.testkit.transport import CONTROL_LINKS_MAX, SimTransport
from tests.node.testkit.bare import Bare, Recorder, send_data


def _dial(bare: Bare, source: str, host: str, port: int, timeout_s: float = 0.25) -> DialOutcome:
    transport = bare.transport(source)
    return bare.world.run(transport.dial(host, port, timeout_s), node=source)


# -- frames


def test_a_frame_arrives_once_after_a_delay_with_the_sender_of_its_connection() -> None:
    bare = Bare()
    sent_at = bare.world.now
    bare.send("a", "b", b"ping")
    bare.world.run_for(s=1.0)
    inbox = bare.inboxes["b"]
    assert inbox.control == [b"<ping"]
    assert inbox.senders == [bare.ids["a"]]
    assert 0.0006 <= inbox.at[0] - sent_at <= 0.003, "a dial there and back, then the frame"

    sent_at = bare.world.now
    bare.send("a", "b", b"again")
    bare.world.run_for(s=1.0)
    assert 0.0002 <= inbox.at[1] - sent_at <= 0.001, "the link is there now"


def test_what_one_turn_sends_on_a_link_is_one_frame_behind_one_head() -> None:
    bare = Bare(3)
    for lane, head in ((Lane.CONTROL, b"<"), (Lane.DATA, b"[")):
        for peer in "bc":
            bare.send("a", peer, b"0", lane)
        bare.world.run_for(s=0.1)

        def turn(lane: Lane = lane) -> None:
            for number in b"123":
                for peer in "bc":
                    bare.send("a", peer, bytes([number]), lane)

        bare.world["a"].call(turn)
        bare.world.run_for(s=0.1)
        for peer in "bc":
            inbox = bare.inboxes[peer]
            frames = inbox.control if lane is Lane.CONTROL else inbox.data
            assert frames == [head + b"0", head + b"123"]


def test_large_turns_are_split_into_frames_of_at_most_64_kib() -> None:
    bare = Bare()
    bare.send("a", "b", b"0", Lane.DATA)
    bare.world.run_for(s=0.1)
    payloads = [bytes([65 + number]) * 30_000 for number in range(5)] + [b"z" * 100_000]

    def turn() -> None:
        for payload in payloads:
            bare.send("a", "b", payload, Lane.DATA)

    bare.world["a"].call(turn)
    bare.world.run_for(s=0.1)
    frames = bare.inboxes["b"].data[1:]
    assert b"".join(frame[1:] for frame in frames) == b"".join(payloads)
    assert [len(frame) for frame in frames] == [60_001, 60_001, 30_001, 100_001]


def test_a_link_keeps_its_order_whatever_the_delays_are() -> None:
    bare = Bare()
    bare.world.shape(delay_s=(0.0, 0.5))
    for number in range(50):
        bare.send("a", "b", bytes([number]))
        bare.world.run_for(s=0.01)
    bare.world.run_for(s=5.0)
    assert b"".join(frame[1:] for frame in bare.inboxes["b"].control) == bytes(range(50))


def test_frames_overtake_each_other_only_when_asked() -> None:
    bare = Bare()
    bare.send("a", "b", b"\xff")
    bare.world.run_for(s=0.1)
    bare.world.shape("a", to="b", delay_s=(0.0, 0.5), reorder=True)
    for number in range(50):
        bare.send("a", "b", bytes([number]))
        bare.world.run_for(s=0.01)
    bare.world.run_for(s=5.0)
    arrived = [frame[1] for frame in bare.inboxes["b"].control[1:]]
    assert sorted(arrived) == list(range(50))
    assert arrived != list(range(50))


def test_loss_and_duplicates_come_at_their_rate_and_one_way_only() -> None:
    bare = Bare()
    for source, target in ("ab", "ba"):
        bare.send(source, target, b"first")
    bare.world.run_for(s=0.1)
    bare.world.shape("a", to="b", loss=0.3)
    for _ in range(300):
        bare.send("a", "b", b"x")
        bare.send("b", "a", b"x")
        bare.world.run_for(s=0.002)
    assert 150 < len(bare.inboxes["b"].control) < 270
    assert len(bare.inboxes["a"].control) == 301
    assert bare.world.network.frames_lost == 301 - len(bare.inboxes["b"].control)

    bare = Bare()
    bare.world.shape(duplicate=0.5)
    for number in range(100):
        bare.send("a", "b", bytes([number]))
        bare.world.run_for(s=0.002)
    arrived = [frame[1] for frame in bare.inboxes["b"].control]
    assert sorted(set(arrived)) == list(range(100))
    assert 120 < len(arrived) < 180
    assert arrived == sorted(arrived), "a duplicate keeps the order of its link"


def test_what_comes_between_bind_and_open_is_delivered_at_open() -> None:
    async def late(node: SimNode) -> None:
        transport = node.transport
        assert transport is not None
        await transport.bind()
        me = NodeId(node.host.address, node.port, node.index + 1)
        inboxes[node.name] = Recorder(world)
        if node.name == "b":
            await asyncio.sleep(1.0)
        transport.open(me, inboxes[node.name])
        if node.name == "a":
            transport.send_control(NodeId(world["b"].host.address, node.port, 0), b"early")

    inboxes: dict[str, Recorder] = {}
    with Stage(1, "a b", boot=late) as world:
        world.run_for(s=0.5)
        assert inboxes["b"].control == []
        world.run_for(s=1.0)
        assert inboxes["b"].control == [b"<early"]


# -- identity


def test_a_frame_meant_for_another_uid_is_dropped_and_counted_there() -> None:
    bare = Bare()
    b = bare.ids["b"]
    bare.ids["b"] = b._replace(uid=b.uid ^ 1)
    bare.send("a", "b", b"who")
    bare.ids["b"] = b._replace(uid=0)
    bare.send("a", "b", b"anybody")
    bare.world.run_for(s=0.1)
    inbox = bare.inboxes["b"]
    assert inbox.refused == [(Lane.CONTROL, "wrong-uid")]
    assert inbox.control == [b"<anybody"]


def test_frames_of_an_earlier_connection_are_refused_once_a_later_one_spoke() -> None:
    bare = Bare()
    bare.send("a", "b", b"0")
    bare.world.run_for(s=0.1)
    bare.world.shape("a", to="b", delay_s=(1.0, 1.0))
    bare.send("a", "b", b"slow")
    bare.world.run_for(s=0.01)
    bare.transport("a").close_links(bare.ids["b"])
    bare.world.shape("a", to="b", delay_s=(0.001, 0.001))
    bare.send("a", "b", b"quick")
    bare.world.run_for(s=2.0)
    assert bare.inboxes["b"].control == [b"<0", b"<quick"]
    assert bare.inboxes["b"].refused == [(Lane.CONTROL, "superseded")]


def test_a_peer_meant_as_itself_and_as_whoever_is_there_has_two_links_that_both_go_on() -> None:
    bare = Bare()
    known = bare.ids["b"]
    for number in range(3):
        for peer in (known._replace(uid=0), known):
            bare.ids["b"] = peer
            bare.send("a", "b", f"{number}".encode())
            bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].control == [b"<0", b"<0", b"<1", b"<1", b"<2", b"<2"]
    assert bare.inboxes["b"].refused == []


def test_opening_again_under_another_uid_introduces_it_on_new_links() -> None:
    bare = Bare()
    bare.send("a", "b", b"0")
    bare.world.run_for(s=0.1)
    renamed = bare.ids["a"]._replace(uid=99)
    bare.world["a"].call(bare.transport("a").open, renamed, bare.inboxes["a"])
    bare.send("a", "b", b"1")
    bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].senders == [bare.ids["a"], renamed]


def test_the_data_port_of_whoever_spoke_is_known() -> None:
    bare = Bare()
    a, b = bare.ids["a"], bare.ids["b"]
    transport = bare.transport("b")
    transport._learned.clear()
    taken: list[bool] = []
    bare.world["b"].call(lambda: taken.append(send_data(transport, a, b"unknown")))
    assert taken == [False]
    bare.send("a", "b", b"hello")
    bare.world.run_for(s=0.1)
    bare.world["b"].call(send_data, transport, a, b"known")
    bare.world.run_for(s=0.1)
    assert bare.inboxes["a"].data == [b"[known"]
    assert bare.inboxes["a"].senders == [b]


# -- ends of links


def test_a_crash_ends_the_links_of_the_others_within_two_milliseconds() -> None:
    bare = Bare(3)
    for source in "ac":
        bare.send(source, "b", b"x")
        bare.send(source, "b", b"x", Lane.DATA)
    bare.world.run_for(s=0.1)
    crashed_at = bare.world.now
    bare.world.crash("b")
    bare.world.run_for(s=1.0)
    for source in "ac":
        lost = bare.inboxes[source].lost
        assert len(lost) == 2
        assert {(peer, lane) for peer, lane, _ in lost} == {(bare.ids["b"], lane) for lane in Lane}
        assert all(0.0005 <= at - crashed_at <= 0.002 for _, _, at in lost)


def test_closing_tells_the_peers_as_a_crash_does_and_what_was_sent_arrives() -> None:
    bare = Bare()
    bare.send("a", "b", b"x")
    bare.send("b", "a", b"x")
    bare.world.run_for(s=0.1)
    bare.send("a", "b", b"farewell")

    async def leave(transport: SimTransport) -> None:
        await transport.flush(1.0)
        await transport.close()
        transport.send_control(bare.ids["b"], b"after")

    bare.world.run(leave(bare.transport("a")), node="a")
    bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].control == [b"<x", b"<farewell"]
    assert [(peer, lane) for peer, lane, _ in bare.inboxes["b"].lost] == [
        (bare.ids["a"], Lane.CONTROL)
    ]
    assert bare.inboxes["a"].lost == []
    assert bare.transport("a").control_dropped_count == 1


def test_a_silent_crash_tells_nobody_until_the_host_is_back_and_resets() -> None:
    bare = Bare()
    bare.send("a", "b", b"x")
    bare.world.run_for(s=0.1)
    bare.world.crash("b", silent=True)
    bare.send("a", "b", b"void")
    bare.world.run_for(s=9.0)
    assert bare.inboxes["a"].lost == []
    former = bare.ids["b"]
    bare.world.restart("b")
    bare.world.run_for(s=1.0)
    assert bare.ids["b"] != former
    bare.ids["b"] = former
    bare.send("a", "b", b"stale link")
    bare.world.run_for(s=1.0)
    assert [peer for peer, _, _ in bare.inboxes["a"].lost] == [former]
    assert bare.inboxes["b"].control == []


def test_a_crash_behind_a_cut_is_noticed_at_the_first_frame_after_the_heal() -> None:
    bare = Bare()
    bare.send("a", "b", b"x", Lane.DATA)
    bare.world.run_for(s=0.1)
    bare.world.cut("a", from_="b")
    bare.world.crash("b")
    bare.world.run_for(s=30.0)
    assert bare.inboxes["a"].lost == []
    bare.world.heal("a", from_="b")
    bare.world.run_for(s=1.0)
    assert bare.inboxes["a"].lost == []
    bare.send("a", "b", b"y", Lane.DATA)
    bare.world.run_for(s=1.0)
    assert [lane for _, lane, _ in bare.inboxes["a"].lost] == [Lane.DATA]


def test_heartbeats_end_kept_links_over_a_cut_to_a_stopped_process_or_to_a_dead_host() -> None:
    bare = Bare(5)
    for target in "bcde":
        for lane in Lane:
            bare.send("a", target, b"x", lane)
    bare.keep("a", "bcd")
    bare.world.run_for(s=1.0)
    bare.world.cut("a", to="b")
    bare.world.pause("c", s=20.0)
    bare.world.crash("d", silent=True)
    bare.world.cut("a", to="e")
    bare.world.run_for(s=2.9)
    assert bare.inboxes["a"].lost == []
    bare.world.run_for(s=1.2)
    assert {(peer, lane) for peer, lane, _ in bare.inboxes["a"].lost} == {
        (bare.ids[name], Lane.CONTROL) for name in "bcd"
    }


def test_other_control_links_end_when_a_frame_is_not_acknowledged() -> None:
    """Not over a cut on which nothing is sent, nor to a stopped process, whose kernel lives."""
    bare = Bare(5)
    for target in "bcde":
        bare.send("a", target, b"x")
    bare.world.run_for(s=1.0)
    bare.world.cut("a", to="b e")
    bare.world.crash("c", silent=True)
    bare.world.pause("d", s=20.0)
    for target in "bcd":
        bare.send("a", target, b"y")
    bare.world.run_for(s=9.9)
    assert bare.inboxes["a"].lost == []
    bare.world.run_for(s=0.2)
    assert {peer for peer, _, _ in bare.inboxes["a"].lost} == {bare.ids["b"], bare.ids["c"]}


# -- links that are kept, and those that nobody uses


def test_a_kept_link_is_dialled_without_a_word_and_again_when_it_ends() -> None:
    bare = Bare(3)
    bare.keep("a", "bc")
    bare.world.run_for(s=1.0)
    assert bare.control_links("a") == {"b": "up", "c": "up"}
    bare.world.crash("b")
    bare.world.run_for(s=1.0)
    assert [peer for peer, _, _ in bare.inboxes["a"].lost] == [bare.ids["b"]]
    bare.keep("a", "c")
    bare.world.run_for(s=60.0)
    assert bare.control_links("a") == {"c": "up"}
    assert bare.inboxes["c"].control == []


def test_an_idle_link_is_closed_in_silence_and_dialled_by_the_next_frame() -> None:
    bare = Bare(3)
    bare.keep("a", "c")
    for target in "bc":
        bare.send("a", target, b"x")
        bare.send("a", target, b"x", Lane.DATA)
    bare.world.run_for(s=29.0)
    assert bare.control_links("a") == {"b": "up", "c": "up"}
    bare.world.run_for(s=2.0)
    assert bare.control_links("a") == {"c": "up"}
    assert len(bare.transport("a").link_records()) == 3
    assert bare.transport("a").counters()["control_links_closed_idle"] == 1
    bare.send("a", "b", b"y")
    bare.world.run_for(s=1.0)
    assert len(bare.inboxes["b"].control) == 2
    assert bare.inboxes["a"].lost == []
    assert bare.inboxes["b"].refused == []


def test_the_least_recently_used_link_gives_way_and_nothing_is_lost() -> None:
    count = CONTROL_LINKS_MAX + 8
    bare = Bare(count)
    names = [node.name for node in bare.world.nodes]
    first = names[0]
    bare.keep(first, [names[1]])
    for _ in range(2):
        for name in names[1:]:
            bare.send(first, name, b"x")
            bare.world.run_for(s=0.1)
    links = bare.control_links(first)
    assert set(links) == {names[1], *names[-CONTROL_LINKS_MAX:]}
    assert {len(bare.inboxes[name].control) for name in names[1:]} == {2}
    assert bare.inboxes[first].lost == []


@pytest.mark.parametrize("away_s", [1.0, 2.5])
def test_short_cuts_and_pauses_end_no_link(away_s: float) -> None:
    bare = Bare(3)
    for target in "bc":
        bare.send("a", target, b"x")
    bare.world.run_for(s=0.1)
    bare.world.cut("a", from_="b")
    bare.world.pause("c", s=away_s)
    bare.world.run_for(s=away_s)
    bare.world.heal_all()
    bare.world.run_for(s=10.0)
    assert bare.inboxes["a"].lost == []


# -- cuts


def test_frames_into_a_cut_are_held_and_come_in_order_after_the_heal() -> None:
    bare = Bare()
    for source, target in ("ab", "ba"):
        bare.send(source, target, b"0")
    bare.world.run_for(s=0.1)
    bare.world.cut("a", from_="b")
    for number in b"123":
        bare.send("a", "b", bytes([number]))
        bare.send("b", "a", bytes([number]))
        bare.world.run_for(s=0.5)
    assert bare.inboxes["b"].control == [b"<0"]
    bare.world.heal("a", from_="b")
    bare.send("a", "b", b"4")
    bare.world.run_for(s=0.1)
    for name in "ab":
        assert bare.inboxes[name].control[:4] == [b"<0", b"<1", b"<2", b"<3"]
    assert bare.inboxes["b"].control[4:] == [b"<4"]


def test_frames_into_a_cut_are_lost_where_the_world_says_so() -> None:
    bare = Bare(into_cut="lost")
    bare.send("a", "b", b"0")
    bare.world.run_for(s=0.1)
    bare.world.cut("a")
    bare.send("a", "b", b"1")
    bare.world.run_for(s=0.5)
    bare.world.heal("a")
    bare.send("a", "b", b"2")
    bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].control == [b"<0", b"<2"]
    assert bare.world.network.frames_lost == 1


def test_a_one_way_cut_lets_the_other_direction_live() -> None:
    bare = Bare(3)
    bare.world.cut("a", to="b")
    for source, target in ("ab", "ba", "ac", "cb"):
        bare.send(source, target, source.encode())
    bare.world.run_for(s=0.5)
    assert bare.inboxes["a"].control == [b"<b"]
    assert bare.inboxes["b"].control == [b"<c"]
    assert bare.inboxes["c"].control == [b"<a"]
    bare.world.heal("a", to="b")
    bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].control == [b"<c", b"<a"], "the dial goes on after the heal"


def test_held_frames_of_a_crashed_process_still_come_those_of_a_vanished_host_do_not() -> None:
    bare = Bare(3)
    for source in "ab":
        bare.send(source, "c", b"0")
    bare.world.run_for(s=0.1)
    bare.world.cut("c")
    for source in "ab":
        bare.send(source, "c", b"last words")
    bare.world.run_for(s=0.1)
    bare.world.crash("a")
    bare.world.crash("b", silent=True)
    bare.world.run_for(s=1.0)
    bare.world.heal_all()
    bare.world.run_for(s=1.0)
    assert bare.inboxes["c"].control == [b"<0", b"<0", b"<last words"]
    assert bare.inboxes["c"].senders[2] == bare.ids["a"]


def test_partition_cuts_between_the_sides_and_heals_within() -> None:
    bare = Bare(4)

    def reached() -> str:
        for inbox in bare.inboxes.values():
            inbox.control.clear()
        for source in "abcd":
            for target in "abcd":
                if source != target:
                    bare.send(source, target, source.encode())
        bare.world.run_for(s=0.5)
        inboxes = bare.inboxes.items()
        return " ".join(
            name + "".join(sorted(f.decode()[1] for f in box.control)) for name, box in inboxes
        )

    everything = "abcd bacd cabd dabc"
    assert " ".join(sorted(reached().split())) == everything
    bare.world.partition("a b | c d")
    assert " ".join(sorted(reached().split())) == "ab ba cd dc"
    bare.world.partition("a | b c | d")
    bare.world.run_for(s=0.5)
    assert " ".join(sorted(reached().split())) == "a bc cb d"


# -- links that cannot be established


def test_data_for_a_process_that_is_gone_comes_back_at_once() -> None:
    bare = Bare()
    bare.world.crash("b")
    bare.send("a", "b", b"one", Lane.DATA)
    bare.send("a", "b", b"two", Lane.DATA)
    bare.send("a", "b", b"lost")
    bare.world.run_for(s=0.01)
    assert bare.inboxes["a"].dropped == [(bare.ids["b"], b"one"), (bare.ids["b"], b"two")]
    assert bare.inboxes["a"].lost == []
    assert bare.transport("a").control_dropped_count == 1


def test_data_into_a_cut_or_to_a_dead_host_comes_back_after_two_seconds() -> None:
    bare = Bare(3)
    bare.world.cut("a", from_="b")
    bare.world.crash("c", silent=True)
    for target in "bc":
        bare.send("a", target, target.encode(), Lane.DATA)
    bare.world.run_for(s=1.9)
    assert bare.inboxes["a"].dropped == []
    bare.world.run_for(s=0.2)
    assert [payload for _, payload in bare.inboxes["a"].dropped] == [b"b", b"c"]


def test_whoever_is_meant_to_come_is_dialled_again_until_it_listens() -> None:
    bare = Bare()
    bare.world.crash("b")
    bare.ids["b"] = bare.ids["b"]._replace(uid=0)
    bare.send("a", "b", b"anybody")
    bare.world.restart("b", after_s=0.5)
    bare.world.run_for(s=2.0)
    assert bare.inboxes["b"].control == [b"<anybody"]


def test_a_stopped_process_shakes_hands_when_it_wakes() -> None:
    bare = Bare()
    bare.world.pause("b", s=1.0)
    bare.send("a", "b", b"x", Lane.DATA)
    bare.world.run_for(s=0.9)
    assert bare.inboxes["b"].data == []
    bare.world.run_for(s=0.2)
    assert bare.inboxes["b"].data == [b"[x"]
    bare.transport("a").close_links(bare.ids["b"])
    bare.world.pause("b", s=5.0)
    bare.send("a", "b", b"y", Lane.DATA)
    bare.world.run_for(s=2.1)
    assert bare.inboxes["a"].dropped == [(bare.ids["b"], b"y")]


def test_a_full_buffer_is_a_drop_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the network holds is bounded, and so is what waits behind it."""
    monkeypatch.setattr("node.testkit.transport.FLYING_BYTES_MAX", 1000)
    monkeypatch.setattr("node.testkit.transport.DATA_PENDING_BYTES_MAX", 2 * (300 + ITEM_BYTES))
    monkeypatch.setattr("node.testkit.transport.CONTROL_PENDING_BYTES_MAX", 1000)
    bare = Bare()
    for lane in Lane:
        bare.send("a", "b", b"0", lane)
    bare.world.run_for(s=0.1)
    bare.world.cut("a", from_="b")
    for _ in range(8):
        bare.send("a", "b", b"x" * 300, Lane.DATA)
        bare.send("a", "b", b"x" * 300, Lane.CONTROL)
        bare.world.run_for(s=0.01)
    assert bare.transport("a").control_dropped_count == 4
    bare.world.heal_all()
    bare.world.run_for(s=0.1)
    assert len(bare.inboxes["b"].data) == 1 + 4 + 1, "two waited, and left in one frame"
    bare.send("a", "b", b"x" * 300, Lane.DATA)
    bare.world.run_for(s=0.1)
    assert len(bare.inboxes["b"].data) == 7, "what was read makes room"


def test_a_large_message_arrives_whole_between_small_ones() -> None:
    bare = Bare()
    parts = (b"p" * 700_000, b"q" * 40_000)

    def turn() -> None:
        link = bare.transport("a").data_link(bare.ids["b"])
        assert link is not None
        link.send(b"before", b"before", "/x")
        link.send_large(b"envelope", parts, b"large", "/x")
        link.send(b"other", b"other", "/y")
        link.send(b"after", b"after", "/x")

    bare.world["a"].call(turn)
    bare.world.run_for(s=0.1)
    assert bare.inboxes["b"].large == [(b"envelope", parts)]
    assert bare.inboxes["b"].data == [b"[before", b"[other", b"[after"]


def test_flush_waits_for_links_and_gives_up_in_time() -> None:
    bare = Bare(3)
    bare.world.cut("a", from_="b")
    waited: list[float] = []

    async def send_and_flush(target: str, timeout_s: float) -> None:
        bare.transport("a").send_control(bare.ids[target], b"x")
        began = bare.world.now
        await bare.transport("a").flush(timeout_s)
        waited.append(bare.world.now - began)

    bare.world.run(send_and_flush("c", 10.0), node="a")
    assert 0 < waited[0] < 0.01
    bare.world.run(send_and_flush("b", 1.0), node="a")
    assert waited[1] == pytest.approx(1.0)
    bare.world.run(send_and_flush("b", 10.0), node="a")
    assert waited[2] == pytest.approx(1.0, abs=0.01), "dropped two seconds after the first send"


# -- dials


def test_dial_tells_listening_refused_and_unknown_apart() -> None:
    bare = Bare(4)
    host_b, data_port = bare.ids["b"].host, bare.transport("b").data_port
    assert _dial(bare, "a", host_b, 25520) is DialOutcome.ANSWERED
    assert _dial(bare, "a", host_b, data_port) is DialOutcome.ANSWERED
    assert _dial(bare, "a", host_b, 1) is DialOutcome.REFUSED
    bare.world.pause("b", s=1.0)
    assert _dial(bare, "a", host_b, 25520) is DialOutcome.ACCEPTED, "its kernel is not stopped"
    bare.world.crash("b")
    assert _dial(bare, "a", host_b, 25520) is DialOutcome.REFUSED
    assert _dial(bare, "a", host_b, data_port) is DialOutcome.REFUSED
    bare.world.cut("a", to="c")
    began = bare.world.now
    assert _dial(bare, "a", bare.ids["c"].host, 25520, 0.3) is DialOutcome.UNKNOWN
    assert bare.world.now - began == pytest.approx(0.3)
    assert _dial(bare, "c", bare.ids["a"].host, 25520) is DialOutcome.ANSWERED, "one way"
    bare.world.crash("d", silent=True)
    assert _dial(bare, "a", bare.ids["d"].host, 25520) is DialOutcome.UNKNOWN
    assert _dial(bare, "a", "10.9.9.9", 25520) is DialOutcome.UNKNOWN


def test_a_dial_slower_than_its_timeout_is_unknown() -> None:
    bare = Bare()
    bare.world.shape(delay_s=(0.2, 0.2))
    assert _dial(bare, "a", bare.ids["b"].host, 25520, 0.3) is DialOutcome.UNKNOWN
    assert _dial(bare, "a", bare.ids["b"].host, 25520, 0.5) is DialOutcome.ANSWERED
    bare.world.run_for(s=1.0)


def test_a_port_is_bound_once_and_free_again_after_a_crash() -> None:
    bare = Bare()
    world, b = bare.world, bare.world["b"]
    second = SimTransport(world.network, b.loop, "b", b.host.address, b.port)
    with pytest.raises(AddressInUseError, match=r"10\.0\.0\.2:25520 is taken"):
        world.run(second.bind(), node="a")
    world.crash("b")
    world.run(second.bind(), node="a")
    assert second.data_port != bare.transport("b").data_port
    assert second.resumes_at == math.inf
