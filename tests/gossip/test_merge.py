"""Views merge as a CRDT, and digests are what they claim (I-64, I-68, I-72, I-80)."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gossip import digest
from gossip.membership import Cause, Member, NodeId, Status, Tombstone, merge_members
from gossip.messages import Gossip
from gossip.reachability import Record, merge_records
from gossip.table import MembershipTable

IDS = [NodeId(f"10.0.0.{number}", 25520, 7 * number) for number in range(1, 5)]

members = st.builds(
    Member,
    id=st.sampled_from(IDS),
    name=st.sampled_from(["", "one", "two"]),
    roles=st.sampled_from([(), ("web",), ("db", "web")]),
    status=st.sampled_from([status for status in Status if status is not Status.REMOVED]),
    up_number=st.integers(0, 4),
    incarnation=st.integers(0, 4),
    record_version=st.integers(0, 3),
    types=st.sampled_from([(), ("singleton:a",)]),
    cause=st.sampled_from(list(Cause)),
)
same_member = members.map(lambda member: replace(member, id=IDS[0]))
tombstones = st.builds(
    Tombstone, id=st.sampled_from(IDS), number=st.integers(1, 5), cause=st.sampled_from(list(Cause))
)
records = st.builds(
    Record,
    observer=st.sampled_from(IDS),
    subject=st.sampled_from(IDS),
    unreachable=st.booleans(),
    version=st.integers(1, 4),
    subject_incarnation=st.integers(0, 3),
)


@given(same_member, same_member, same_member)
def test_member_merge_is_a_join(a: Member, b: Member, c: Member) -> None:
    assert merge_members(a, b) == merge_members(b, a)
    assert merge_members(a, merge_members(b, c)) == merge_members(merge_members(a, b), c)
    assert merge_members(a, a) == a
    assert merge_members(a, merge_members(a, b)) == merge_members(a, b)


@given(same_member, same_member)
def test_status_incarnation_and_cause_only_go_forward(a: Member, b: Member) -> None:
    merged = merge_members(a, b)
    assert merged.status == max(a.status, b.status)
    assert merged.incarnation == max(a.incarnation, b.incarnation)
    assert merged.cause == max(a.cause, b.cause)


def test_two_up_numbers_of_one_member_merge_to_the_smaller() -> None:
    one, two = Member(IDS[0], up_number=5), Member(IDS[0], up_number=3)
    assert merge_members(one, two).up_number == 3
    assert merge_members(one, replace(one, up_number=0)).up_number == 5


@given(records, records, records)
def test_record_merge_is_a_join(a: Record, b: Record, c: Record) -> None:
    a, b, c = (replace(r, observer=IDS[0], subject=IDS[1]) for r in (a, b, c))
    assert merge_records(a, b) == merge_records(b, a)
    assert merge_records(a, merge_records(b, c)) == merge_records(merge_records(a, b), c)
    assert merge_records(a, a) == a


def table_of(items: list[Member | Tombstone]) -> MembershipTable:
    table = MembershipTable()
    for item in items:
        if isinstance(item, Member):
            table.put_member(item)
        else:
            table.bury(item)
    return table


def join(table: MembershipTable, news: Gossip) -> None:
    for member in news.members:
        table.put_member(member)
    for tombstone in news.tombstones:
        table.bury(tombstone)
    for record in news.records:
        table.put_record(record)


items = st.lists(st.one_of(members, tombstones), max_size=8)
# What a process writes of itself is one thing per version: anything else is a lie, which merging
# survives (above) and digests need not notice.
honest = st.lists(
    st.one_of(
        members.map(lambda m: replace(m, name=str(m.record_version), roles=(), types=())),
        tombstones,
    ),
    max_size=8,
)


@given(items, st.lists(records, max_size=6), st.randoms(use_true_random=False))
def test_any_order_and_repetition_gives_one_table(
    news: list[Member | Tombstone], facts: list[Record], rng: random.Random
) -> None:
    """Records follow their members, as they do in every message."""
    tables = []
    for _ in range(2):
        shuffled = [*news, *rng.sample(news, len(news) // 2)]
        rng.shuffle(shuffled)
        table = table_of(shuffled)
        for record in rng.sample(facts, len(facts)):
            table.put_record(record)
        tables.append(table)
    one, two = tables
    assert one.members == two.members
    assert one.tombstones == two.tombstones
    assert one.records == two.records
    assert (one.members_digest, one.reach_digest) == (two.members_digest, two.reach_digest)


@given(items, items, st.lists(records, max_size=6))
def test_digests_are_sums_of_what_is_held(
    first: list[Member | Tombstone], second: list[Member | Tombstone], facts: list[Record]
) -> None:
    table = table_of(first)
    for record in facts:
        table.put_record(record)
    join(table, table_of(second).everything())
    total = sum(digest.member_hash(member) for member in table.members.values())
    total += sum(digest.tombstone_hash(stone) for stone in table.tombstones.values())
    assert table.members_digest == total & digest.MASK
    reach = sum(digest.record_hash(record) for record in table.records.values())
    assert table.reach_digest == reach & digest.MASK


@given(honest, honest, st.lists(records, max_size=5), st.lists(records, max_size=5))
def test_one_exchange_by_versions_makes_two_tables_equal(
    first: list[Member | Tombstone],
    second: list[Member | Tombstone],
    some: list[Record],
    others: list[Record],
) -> None:
    """Anti-entropy: offer, reply, what was wanted; equal afterwards but for records whose members
    came with the last step, which the next exchange brings."""
    a, b = table_of(first), table_of(second)
    for table, facts in ((a, some), (b, others)):
        for record in facts:
            table.put_record(record)
    for offering, answering in itertools.islice(itertools.cycle([(a, b), (b, a)]), 3):
        reply = answering.answer(offering.offer())
        join(offering, reply.news)
        wanted = offering.pick(reply.want_members, reply.want_tombstones, reply.want_records)
        join(answering, wanted)
    assert a.members_digest == b.members_digest
    assert {n: replace(m, incarnation=0) for n, m in a.members.items()} == {
        n: replace(m, incarnation=0) for n, m in b.members.items()
    }
    assert a.tombstones == b.tombstones
    assert {key: r.version for key, r in a.records.items()} == {
        key: r.version for key, r in b.records.items()
    }


def test_a_tombstone_is_never_walked_over() -> None:
    """I-72: a recorded or stale frame resurrects nobody."""
    table = table_of([Member(IDS[0], status=Status.UP), Tombstone(IDS[0], 1, Cause.LEFT)])
    assert not table.put_member(Member(IDS[0], status=Status.UP, incarnation=99))
    assert table.members == {}


def test_adding_and_removing_never_returns_to_an_old_digest() -> None:
    """Review F6 (b)."""
    table = table_of([Member(IDS[0], status=Status.UP)])
    before = table.members_digest
    table.put_member(Member(IDS[1]))
    table.bury(Tombstone(IDS[1], 1, Cause.NEVER_UP))
    assert set(table.members) == {IDS[0]}
    assert table.members_digest != before


def test_the_floor_prunes_in_every_order() -> None:
    """I-73: pruning is agreed by a floor, so that digests stay equal."""
    stone = Tombstone(IDS[1], 3, Cause.LEFT)
    one = table_of([Member(IDS[0]), Member(IDS[1]), stone])
    one.raise_floor(3)
    two = table_of([Member(IDS[0]), Member(IDS[1])])
    two.raise_floor(3)
    two.bury(stone)
    assert one.tombstones == two.tombstones == {}
    assert one.members == two.members
    assert one.members_digest == two.members_digest


def test_an_incarnation_is_not_part_of_the_digest() -> None:
    """A refutation unsettles nothing."""
    table = table_of([Member(IDS[0])])
    before = table.members_digest
    assert table.put_member(Member(IDS[0], incarnation=5))
    assert table.members_digest == before


def test_what_does_not_fit_is_counted() -> None:
    """I-78: a flood is bounded."""
    table = MembershipTable(members_max=2, records_max=1)
    for node in IDS:
        table.put_member(Member(node))
    assert len(table.members) == 2
    table.put_record(Record(IDS[0], IDS[1], True, 1, 0))
    table.put_record(Record(IDS[1], IDS[0], True, 1, 0))
    assert len(table.records) == 1
    assert table.dropped == 3
