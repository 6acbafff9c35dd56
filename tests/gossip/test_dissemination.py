"""Which rumours ride on a packet: the youngest first, each class with its share, none for ever."""

from __future__ import annotations

from gossip.dissemination import Rumour, RumourQueue, packets, rumour_bytes, sends_max
from gossip.membership import Cause, Member, NodeId, Status, Tombstone
from gossip.messages import Gossip, Suspicion
from gossip.reachability import Record

BYTES_MAX = 1400


def node(number: int) -> NodeId:
    return NodeId(f"10.0.{number >> 8}.{number & 255}", 25520, number + 1)


def joins(count: int) -> list[Member]:
    return [Member(node(number), name=f"member-{number}") for number in range(count)]


def size_of(news: Gossip) -> int:
    items: list[Rumour] = [*news.members, *news.tombstones, *news.records, *news.suspicions]
    return sum(map(rumour_bytes, items))


def test_each_rumour_is_sent_so_often_and_then_leaves() -> None:
    queue, limit = RumourQueue(), sends_max(4.0, 100)
    queue.add(joins(1)[0])
    sent = 0
    while (news := queue.take(limit, 0, BYTES_MAX)) is not None:
        sent += len(news.members)
    assert sent == limit == 9
    assert len(queue) == 0


def test_the_least_sent_come_first_of_those_the_youngest() -> None:
    queue = RumourQueue()
    old, middle, young = joins(3)
    for member in (old, middle):
        queue.add(member)
    queue.take(9, 0, BYTES_MAX)
    queue.add(young)
    news = queue.take(9, 0, rumour_bytes(young))
    assert news is not None
    assert young in news.members
    assert old not in news.members


def test_a_newer_word_replaces_the_older_one_of_the_same_subject() -> None:
    queue = RumourQueue()
    member = joins(1)[0]
    queue.add(member)
    queue.add(Tombstone(member.id, 1, Cause.LEFT))
    news = queue.take(9, 0, BYTES_MAX)
    assert news is not None
    assert (news.members, len(news.tombstones), len(queue)) == ((), 1, 1)


def test_a_thousand_joins_leave_half_of_each_packet_to_verdicts_and_the_other_way_round() -> None:
    queue = RumourQueue()
    for member in joins(1000):
        queue.add(member)
    for number in range(1000):
        queue.add(Suspicion(node(number), 0, node(5000 + number)))
    for _ in range(20):
        news = queue.take(9, 0, BYTES_MAX)
        assert news is not None
        assert size_of(news) <= BYTES_MAX
        assert sum(map(rumour_bytes, news.members)) >= BYTES_MAX // 2 - 120
        assert sum(map(rumour_bytes, news.suspicions)) >= BYTES_MAX // 2 - 120


def test_one_class_alone_fills_the_packet() -> None:
    queue = RumourQueue()
    for number in range(100):
        queue.add(Record(node(number), node(200), True, 1, 0))
    news = queue.take(9, 0, BYTES_MAX)
    assert news is not None
    assert BYTES_MAX - 70 <= size_of(news) <= BYTES_MAX


def test_who_answered_is_not_accused_any_more() -> None:
    queue = RumourQueue()
    for accuser in range(3):
        queue.add(Suspicion(node(9), 0, node(accuser)))
    queue.add(Suspicion(node(8), 0, node(0)))
    queue.drop_suspicions_of(node(9))
    news = queue.take(9, 0, BYTES_MAX)
    assert news is not None
    assert [suspicion.subject for suspicion in news.suspicions] == [node(8)]


def test_a_full_queue_gives_up_what_was_sent_most() -> None:
    queue = RumourQueue(rumours_max=2)
    first, second, third = joins(3)
    queue.add(first)
    queue.take(9, 0, BYTES_MAX)
    queue.add(second)
    queue.add(third)
    news = queue.take(9, 0, BYTES_MAX)
    assert news is not None
    assert set(news.members) == {second, third}


def test_urgent_news_are_cut_into_packets_in_their_order() -> None:
    members = joins(50)
    found = packets(members, 7, BYTES_MAX)
    assert [m for news in found for m in news.members] == members
    assert len(found) > 1
    assert all(size_of(news) <= BYTES_MAX and news.floor == 7 for news in found)
    leaver = Member(node(1), status=Status.LEAVING)
    assert packets([leaver], 0, 1)[0].members == (leaver,), "one that is too large goes alone"
