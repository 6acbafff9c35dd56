"""Messages to a singleton: held, forwarded, and in order.

Guards I-53 to I-58, I-60, F26, BC-010 and S12 (as far as the proxy goes).
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gossip.membership import NodeId
from node.actor import Actor, on
from node.cell import HandOver
from node.environment import LinkMemory
from node.errors import AskTimeoutError, DeadActorError, MessageError
from node.events import DeadLetter, Why
from node.mailbox import Delivery
from node.proxy import DRAIN_TIMEOUT_S, HOPS_MAX, PREFIX, RETRY_S, DrainMark, SingletonProxies
from node.ref import ActorRef
from node.runtime import Runtime
from node.supervision import StopCause, StopReason
from singleton.effects import RouteSingleton
from tests.node.stage import Add, Greet, Stage, Wire

TYPE = "ledger"
A = NodeId("10.0.0.1", 25520, 1)
B = NodeId("10.0.0.2", 25520, 2)
C = NodeId("10.0.0.3", 25520, 3)


class Ledger(Actor):
    """Keeps what it is told, and the sum of what it is asked to add."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.total = 0

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        """Write it down."""
        self.log.append(msg.name)

    @on(Add)
    def add(self, msg: Add) -> int:
        """Answer with the sum."""
        self.log.append(f"+{msg.amount}")
        self.total += msg.amount
        return self.total


class Trio(Stage):
    """Three nodes on one loop, each with its proxies; links keep order, `delay_s` says how slow.

    `cut` links drop and say so; `lossy` ones drop silently. `log` is what instances handled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[NodeId, Runtime] = {}
        self.proxies: dict[NodeId, SingletonProxies] = {}
        self.delay_s: dict[tuple[NodeId, NodeId], float] = {}
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.lossy: set[tuple[NodeId, NodeId]] = set()
        self.frames: list[tuple[NodeId, NodeId]] = []
        self.links: dict[tuple[NodeId, NodeId], Wire] = {}
        self.memories: dict[tuple[NodeId, NodeId], LinkMemory] = {}
        self.log: list[str] = []
        for node in (A, B, C):
            runtime = self.make(node, data_link=lambda to, me=node: self._link(me, to))
            runtime.events.subscribe(DeadLetter, self.letters.append)
            self.nodes[node] = runtime
            self.proxies[node] = SingletonProxies(runtime)
            self.proxies[node].get(TYPE)

    def _link(self, me: NodeId, to: NodeId) -> Wire:
        if (me, to) not in self.links:
            self.links[me, to] = Wire(lambda data, item: self._send(me, to, data, item))
        return self.links[me, to]

    def _send(self, me: NodeId, to: NodeId, data: bytes, item: object) -> None:
        assert to != me, "a node never dials itself"
        self.frames.append((me, to))
        memory = self.memories.setdefault((me, to), LinkMemory(1 << 20))
        delay_s = self.delay_s.get((me, to), 0.001)
        if (me, to) in self.cut:
            self.links.pop((me, to)).end()
            self.loop.call_soon(self.nodes[me].data_dropped, to, item)
        elif (me, to) in self.lossy:
            self.loop.call_later(delay_s, self.nodes[to].skip_frame, me, data, memory)
        else:
            self.loop.call_later(delay_s, self.nodes[to].deliver_frame, me, data, memory)

    def ref(self, node: NodeId) -> ActorRef[Any]:
        """What a user on this node holds."""
        return self.proxies[node].get(TYPE).ref

    def route(self, host: NodeId | None, *nodes: NodeId, in_reach: bool = True) -> None:
        """These nodes learn who hosts; without any, all do."""
        for node in nodes or self.nodes:
            self.proxies[node].route(RouteSingleton(TYPE, host, 1, former_in_reach=in_reach))

    def start(self, node: NodeId) -> ActorRef[Any]:
        """Start the instance there."""
        instance = self.nodes[node].spawn_at(
            PREFIX + TYPE,
            Ledger,
            (self.log,),
            gated=True,
            hand_over=HandOver(lambda deliveries: self.proxies[node].hand_back(TYPE, deliveries)),
        )
        self.settle()
        return instance

    def stop(self, node: NodeId, cause: StopCause = StopCause.STOPPED) -> None:
        """Order the instance there to stop."""
        runtime = self.nodes[node]
        runtime.stop(runtime.ref_at(None, PREFIX + TYPE), StopReason(cause))

    def greet(self, node: NodeId, *names: str) -> None:
        """Tell the singleton from this node."""
        for name in names:
            self.ref(node).tell(Greet(name))


@pytest.fixture
def trio() -> Trio:
    return Trio()


def test_messages_wait_for_the_first_host_and_keep_their_order(trio: Trio) -> None:
    """S12, I-53: also those that were sent to a host that is only elected."""
    trio.route(B, A, C)
    trio.greet(A, "a1", "a2")
    trio.greet(B, "b1")
    trio.run_for(0.1)
    trio.greet(A, "a3")
    trio.run_for(0.1)
    assert trio.log == []
    assert trio.proxies[B].get(TYPE).held_count == 4
    trio.start(B)
    assert trio.log == []
    trio.route(B, B)
    trio.settle()
    assert trio.log == ["b1", "a1", "a2", "a3"]
    assert trio.letters == []


def test_an_ask_is_answered_straight_to_the_asker(trio: Trio) -> None:
    """BC-010, I-57: a forwards to b; the answer does not come back through a."""
    trio.start(B)
    trio.route(B, A, B)
    trio.route(A, C)
    answer = trio.run(trio.ref(C).ask(Add(3)))
    assert answer == 3
    assert trio.frames == [(C, A), (A, B), (B, C)]


def test_a_held_ask_is_answered_when_there_is_a_host(trio: Trio) -> None:
    asks = [trio.loop.create_task(trio.ref(A).ask(Add(amount))) for amount in (1, 2)]
    trio.run_for(1.0)
    trio.start(B)
    trio.route(B, B, A)
    trio.run_for(0.1)
    assert [ask.result() for ask in asks] == [1, 3]


def test_a_late_answer_is_dropped_where_it_was_asked(trio: Trio) -> None:
    trio.route(B, A)
    with pytest.raises(AskTimeoutError):
        trio.run(trio.ref(A).ask(Add(1), timeout_s=0.5))
    trio.start(B)
    trio.route(B, B)
    trio.run_for(0.1)
    assert trio.log == ["+1"]
    assert trio.nodes[A].counters["late answers"] == 1


def test_a_full_buffer_drops_the_newest_and_warns_once_per_episode(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    """I-55, I-58, S12."""
    proxy = trio.proxies[A].get(TYPE, buffer_size=3)

    def warnings() -> int:
        return sum("buffer of a singleton proxy" in record.message for record in caplog.records)

    with caplog.at_level(logging.WARNING, logger="node.proxy"):
        for episode in (1, 2):
            trio.greet(A, *(f"{episode}.{number}" for number in range(6)))
            assert warnings() == episode
            assert (proxy.held_count, proxy.dropped_count) == (3, 3 * episode)
            if episode == 1:
                trio.start(A)
            trio.route(A, A)
            trio.settle()
            trio.route(None, A)
    assert trio.log == ["1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]
    assert [letter.message for letter in trio.letters[:3]] == [
        Greet("1.3"),
        Greet("1.4"),
        Greet("1.5"),
    ]
    assert {letter.recipient for letter in trio.letters} == {"singleton/ledger"}
    assert {letter.why for letter in trio.letters} == {Why.BUFFER_FULL}


def test_an_ask_that_finds_the_buffer_full_fails_at_once(trio: Trio) -> None:
    trio.proxies[A].get(TYPE, buffer_size=1)
    trio.greet(A, "first")
    with pytest.raises(DeadActorError, match="the buffer is full"):
        trio.run(trio.ref(A).ask(Add(1)), within_s=0.001)


def test_views_that_differ_do_not_make_a_message_circle(trio: Trio) -> None:
    """F26: it is held after the last hop, and goes one on each `RETRY_S`, or by a new route."""
    trio.route(B, A)
    trio.route(A, B)
    trio.greet(A, "once")
    trio.run_for(RETRY_S / 2)
    assert trio.frames == [(A, B), (B, A), (A, B)]
    assert len(trio.frames) == HOPS_MAX
    assert trio.proxies[B].get(TYPE).held_count == 1
    trio.run_for(20 * RETRY_S)
    assert len(trio.frames) <= HOPS_MAX + 21
    trio.start(C)
    trio.route(C)
    trio.run_for(0.1)
    assert trio.log == ["once"]


def test_a_message_at_its_last_hop_goes_on_where_the_route_was_right_all_the_time(
    trio: Trio,
) -> None:
    """Two views differed while it made its hops, and they agree on the one that is here."""
    trio.route(B, A)
    trio.start(B)
    trio.proxies[A].deliver(C, Delivery(Greet("tired"), None, None, PREFIX + TYPE, hops=HOPS_MAX))
    trio.route(B, B)
    trio.run_for(RETRY_S + 0.1)
    assert trio.log == ["tired"]


def test_a_message_at_its_last_hop_does_not_block_others(trio: Trio) -> None:
    trio.start(A)
    trio.route(A, A, B)
    tired = Delivery(Greet("tired"), None, None, PREFIX + TYPE, hops=HOPS_MAX)
    trio.proxies[B].deliver(C, tired)
    trio.greet(B, "fresh")
    trio.run_for(0.1)
    assert trio.log == ["fresh"]


def test_what_could_not_be_sent_waits_for_the_next_host(trio: Trio) -> None:
    """S12: the host died, and nobody has said so yet."""
    trio.start(A)
    trio.route(A)
    trio.cut |= {(C, A)}
    trio.greet(C, "c1")
    asked = trio.loop.create_task(trio.ref(C).ask(Add(1)))
    trio.settle()
    trio.greet(C, "c2")
    trio.run_for(2.0)
    assert trio.proxies[C].get(TYPE).held_count == 3
    trio.start(B)
    trio.route(B, B, C, in_reach=False)
    trio.run_for(0.1)
    assert trio.log == ["c1", "+1", "c2"]
    assert asked.result() == 1
    assert trio.letters == []


def test_what_could_not_be_sent_is_tried_again(trio: Trio) -> None:
    """A link that comes back needs no new route; until then one attempt per `RETRY_S`."""
    trio.start(A)
    trio.route(A)
    trio.cut |= {(C, A)}
    trio.greet(C, "c1", "c2")
    trio.run_for(10 * RETRY_S - 0.01)
    assert len(trio.frames) == 2 * 10
    trio.cut.clear()
    trio.greet(C, "c3")
    trio.run_for(RETRY_S)
    assert trio.log == ["c1", "c2", "c3"]


def test_what_could_not_be_forwarded_is_taken_back_too(trio: Trio) -> None:
    """C asks over A, whose link to the host B is gone: A keeps it, and C is answered."""
    trio.start(B)
    trio.route(B, A, B)
    trio.route(A, C)
    trio.cut |= {(A, B)}
    asked = trio.loop.create_task(trio.ref(C).ask(Add(2)))
    trio.run_for(0.1)
    assert trio.proxies[A].get(TYPE).held_count == 1
    trio.cut.clear()
    trio.run_for(RETRY_S)
    assert asked.result() == 2


def test_what_comes_back_after_the_route_changed_goes_the_new_way(trio: Trio) -> None:
    trio.start(B)
    trio.route(A)
    trio.cut |= {(C, A)}
    trio.greet(C, "c1")
    trio.route(B, B, C, in_reach=False)
    trio.run_for(0.1)
    assert trio.log == ["c1"]


def planned_move(trio: Trio, *, slow_s: float) -> None:
    """a hosts and moves to b, and its messages to b are slow; c sends all the time."""
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.delay_s[A, B] = slow_s
    trio.stop(A)
    trio.route(B, A)
    trio.greet(C, "c2", "c3")  # c does not know yet
    trio.run_for(0.01)
    trio.start(B)
    trio.route(B, B, C)
    trio.greet(C, "c4", "c5")
    trio.run_for(2.0)


def test_order_is_kept_over_a_planned_move(trio: Trio) -> None:
    """F26: what went over the former host arrives before what goes straight to the new one."""
    planned_move(trio, slow_s=0.3)
    assert trio.log == ["c1", "c2", "c3", "c4", "c5"]
    assert trio.letters == []


def test_nobody_waits_for_a_drain_that_takes_too_long(trio: Trio) -> None:
    """F26: at most a second, then order is given up."""
    planned_move(trio, slow_s=1.5 * DRAIN_TIMEOUT_S)
    assert trio.log == ["c1", "c4", "c5", "c2", "c3"]


def test_nobody_waits_after_a_crash(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.start(B)
    trio.lossy |= {(C, A)}
    trio.route(B, B, C, in_reach=False)
    trio.greet(C, "c2")
    trio.run_for(0.005)
    assert trio.log == ["c1", "c2"]


def test_nobody_waits_when_nothing_was_sent_to_the_former_host(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.run_for(0.1)
    trio.start(B)
    trio.route(B)
    trio.greet(C, "c1")
    trio.run_for(0.005)
    assert trio.frames == [(C, B)]
    assert trio.log == ["c1"]


def test_a_mark_that_cannot_be_sent_holds_nothing_up(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.cut |= {(C, A)}
    trio.start(B)
    trio.route(B, B, C)
    trio.greet(C, "c2")
    trio.run_for(0.005)
    assert trio.log == ["c1", "c2"]


def test_the_new_host_may_be_the_sender_s_own_node(trio: Trio) -> None:
    """The mark, and an ask on its way, come back to where they began."""
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.stop(A)
    trio.route(C, A)
    asked = trio.loop.create_task(trio.ref(C).ask(Add(7)))
    trio.settle()
    trio.start(C)
    trio.route(C, C)
    trio.greet(C, "c2")
    trio.run_for(0.1)
    assert trio.log == ["c1", "+7", "c2"]
    assert asked.result() == 7


def test_two_moves_in_a_row_keep_the_order_too(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.stop(A)
    trio.route(None)
    trio.greet(C, "c2")
    trio.run_for(0.1)
    trio.start(B)
    trio.route(B)
    trio.greet(C, "c3")
    trio.run_for(0.1)
    trio.stop(B)
    trio.route(None)
    trio.start(A)
    trio.greet(C, "c4")
    trio.route(A)
    trio.greet(C, "c5")
    trio.run_for(0.1)
    assert trio.log == ["c1", "c2", "c3", "c4", "c5"]
    assert trio.letters == []


def test_what_comes_over_another_node_does_not_wait_for_our_drain(trio: Trio) -> None:
    """Only this node's own messages could overtake; holding the others would be a deadlock."""
    trio.start(A)
    trio.route(A)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.start(B)
    trio.delay_s[C, A] = 0.5
    trio.route(B, B, C)
    trio.proxies[C].deliver(A, Delivery(Greet("foreign"), None, None, PREFIX + TYPE, hops=1))
    trio.greet(C, "c2")
    trio.run_for(0.1)
    assert trio.log == ["c1", "foreign"]
    trio.route(B, A)
    trio.run_for(1.0)
    assert trio.log == ["c1", "foreign", "c2"]


def test_a_mark_is_answered_and_never_seen_by_the_actor(trio: Trio) -> None:
    trio.start(B)
    trio.route(B)
    assert trio.run(trio.ref(A).ask(DrainMark())) is True
    trio.ref(A).tell(DrainMark())
    trio.run_for(0.1)
    assert trio.log == []
    assert trio.letters == []


def test_an_instance_that_ended_by_itself_loses_nothing_that_comes_later(trio: Trio) -> None:
    """Between its end and its manager's word the messages wait."""
    trio.start(A)
    trio.route(A)
    trio.stop(A)
    trio.greet(B, "b1")
    trio.greet(A, "a1")
    trio.run_for(0.1)
    trio.route(None, A)
    trio.greet(A, "a2")
    trio.start(A)
    trio.route(A, A)
    trio.settle()
    assert trio.log == ["a1", "b1", "a2"]
    assert trio.letters == []


def test_what_reached_the_mailbox_is_handled_before_the_stop(trio: Trio) -> None:
    """BC-005, I-27."""
    trio.start(A)
    trio.route(A, A)
    trio.greet(A, *map(str, range(100)))
    trio.stop(A)
    trio.settle()
    assert trio.log == [str(number) for number in range(100)]


def test_a_type_without_a_proxy_here(trio: Trio) -> None:
    """I-41: a peer may believe that this node hosts; the message is a dead letter."""
    trio.nodes[A].ref_at(B, PREFIX + "unknown").tell(Greet("hello"))
    trio.proxies[B].route(RouteSingleton("unknown", A, 1))
    trio.run_for(0.1)
    assert [letter.recipient for letter in trio.letters] == ["10.0.0.2:25520/singleton/unknown"]
    trio.cut |= {(A, B)}
    trio.nodes[A].ref_at(B, PREFIX + "unknown").tell(Greet("hello"))
    trio.run_for(0.1)
    assert trio.letters[1].why is Why.NOT_SENT


def test_a_message_that_cannot_travel_is_refused_wherever_the_host_is(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)

    class Untravelled:
        """No @message."""

    for node in (A, B):
        with pytest.raises(MessageError):
            trio.ref(node).tell(Untravelled())


def test_the_proxy_of_a_type_is_one(trio: Trio) -> None:
    """I-59."""
    proxies = trio.proxies[A]
    assert proxies.get(TYPE) is proxies.get(TYPE)
    assert proxies.get(TYPE, buffer_size=7).buffer_size == 7
    assert proxies.get("other") is not proxies.get(TYPE)


def test_at_the_end_what_is_held_becomes_dead_letters(trio: Trio) -> None:
    trio.greet(A, "a1")
    asked = trio.loop.create_task(trio.ref(A).ask(Add(1)))
    trio.settle()
    trio.proxies[A].close()
    trio.settle()
    assert [letter.why for letter in trio.letters] == [Why.SHUTDOWN, Why.SHUTDOWN]
    assert isinstance(asked.exception(), DeadActorError)
    assert trio.proxies[A].get(TYPE).held_count == 0


def test_asks_without_a_host_fail_at_once_when_the_node_leaves(trio: Trio) -> None:
    """Nobody waits out the time of an ask that nobody will answer; told messages stay held."""
    trio.greet(A, "held")
    held = trio.loop.create_task(trio.ref(A).ask(Add(1), timeout_s=60.0))
    foreign = trio.loop.create_task(trio.nodes[B].ref_at(A, PREFIX + TYPE).ask(Add(2)))
    trio.run_for(0.01)
    trio.proxies[A].fail_held("this node leaves")
    later = trio.loop.create_task(trio.ref(A).ask(Add(3), timeout_s=60.0))
    trio.settle()
    for asking in (held, later):
        assert isinstance(asking.exception(), DeadActorError)
        assert str(asking.exception()) == f"singleton/{TYPE}: this node leaves"
    assert not foreign.done()
    trio.start(C)
    trio.route(C)
    answered = trio.loop.create_task(trio.ref(A).ask(Add(4)))
    trio.run_for(0.1)
    assert trio.log == ["held", "+2", "+4"]
    assert (foreign.result(), answered.result()) == (2, 6)


def test_asks_for_the_instance_here_that_has_ended_fail_when_the_node_leaves(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.stop(A)
    trio.settle()
    asking = trio.loop.create_task(trio.ref(A).ask(Add(1), timeout_s=60.0))
    trio.settle()
    assert not asking.done()
    trio.proxies[A].fail_held("this node leaves")
    trio.settle()
    assert isinstance(asking.exception(), DeadActorError)


def test_drain_mark_that_is_lost_is_no_dead_letter_of_the_user(trio: Trio) -> None:
    for path in (PREFIX + TYPE, PREFIX + "unknown", "/user/nobody"):
        trio.nodes[A].dead_letter(Delivery(DrainMark(), None, None, path), path, Why.SHUTDOWN)
    assert trio.letters == []
    assert trio.nodes[A].counters == {"own messages lost: shutdown": 3}


# Handed back


def lose(trio: Trio, node: NodeId, cause: StopCause = StopCause.LEASE_LOST) -> None:
    """The instance there may not act any more, and is told to stop."""
    trio.nodes[node].gate.extend(0.0)
    trio.stop(node, cause)
    trio.settle()


def test_what_an_instance_has_not_handled_goes_to_the_next_one_in_its_order(trio: Trio) -> None:
    """S9: before what came later; and asks are answered from there."""
    trio.start(A)
    trio.route(A)
    trio.nodes[A].gate.extend(0.0)
    trio.greet(A, "a1")
    asks = [trio.loop.create_task(trio.ref(node).ask(Add(1))) for node in (B, A)]
    trio.run_for(0.1)
    trio.greet(C, "c1")
    trio.run_for(0.1)
    trio.route(None)
    trio.greet(A, "a2")
    trio.greet(C, "c2")
    trio.stop(A, StopCause.LEASE_LOST)
    trio.settle()
    assert trio.log == []
    assert trio.proxies[A].get(TYPE).held_count == 5
    assert trio.nodes[A].counters["singleton: handed back"] == 4
    trio.start(C)
    trio.route(C)
    trio.run_for(0.1)
    assert sorted(trio.log) == ["+1", "+1", "a1", "a2", "c1", "c2"]
    assert trio.log.index("a1") < trio.log.index("a2")
    assert trio.log.index("c1") < trio.log.index("c2"), "though c2 is held where the instance is"
    assert sorted(ask.result() for ask in asks) == [1, 2]
    assert trio.letters == []


def test_where_the_next_host_is_known_they_leave_at_once(trio: Trio) -> None:
    trio.start(A)
    trio.route(A)
    trio.nodes[A].gate.extend(0.0)
    trio.greet(A, "a1", "a2")
    trio.settle()
    trio.start(B)
    trio.route(B)
    lose(trio, A)
    trio.run_for(0.1)
    assert trio.log == ["a1", "a2"]


def test_with_a_full_buffer_the_newest_are_dropped(trio: Trio) -> None:
    proxy = trio.proxies[A].get(TYPE, buffer_size=3)
    trio.start(A)
    trio.route(A)
    trio.nodes[A].gate.extend(0.0)
    trio.greet(A, "1", "2")
    trio.settle()
    trio.route(None)
    trio.greet(A, "3", "4")
    lose(trio, A)
    assert proxy.held_count == 3
    assert [letter.message for letter in trio.letters] == [Greet("4")]


@pytest.mark.parametrize(
    ("cause", "letters"),
    [
        (StopCause.LEASE_LOST, 0),
        (StopCause.HANDED_OVER, 0),
        (StopCause.LEAVING, 0),
        (StopCause.STOPPED, 0),
        (StopCause.FAILED, 1),
    ],
)
def test_only_what_has_a_successor_hands_back(trio: Trio, cause: StopCause, letters: int) -> None:
    trio.start(A)
    trio.route(A)
    trio.nodes[A].gate.extend(0.0)
    trio.greet(A, "1")
    trio.settle()
    lose(trio, A, cause)
    assert len(trio.letters) == letters
    assert trio.proxies[A].get(TYPE).held_count == 1 - letters


def test_what_is_meant_for_this_very_instance_is_not_handed_on(trio: Trio) -> None:
    instance = trio.start(A)
    trio.route(A)
    trio.nodes[A].gate.extend(0.0)
    instance.tell(Greet("you"))
    trio.greet(A, "anybody")
    trio.settle()
    lose(trio, A)
    assert [letter.message for letter in trio.letters] == [Greet("you")]
    assert trio.proxies[A].get(TYPE).held_count == 1


def test_without_a_proxy_they_are_dead_letters(trio: Trio) -> None:
    trio.proxies[A].hand_back("unknown", [Delivery(Greet("1"), None, None, PREFIX + "unknown")])
    assert [(letter.message, letter.why) for letter in trio.letters] == [(Greet("1"), Why.STOPPED)]
