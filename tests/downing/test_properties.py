"""What holds of every strategy, over random clusters and splits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from downing.strategies import (
    DownAll,
    KeepMajority,
    KeepOldest,
    KeepReferee,
    LeaseMajority,
    ProposalKind,
    StaticQuorum,
    Strategy,
    parse,
)
from downing.view import PartitionView, counted
from gossip.membership import Member, NodeId, Status
from tests.downing.cases import node_of
from tests.downing.pictures import view_of_part, views_of_parts

NAMES = "abcdefg"
ROLES = st.sampled_from(["", "core"])
AHEAD = {
    Status.JOINING: Status.UP,
    Status.WEAKLY_UP: Status.UP,
    Status.LEAVING: Status.EXITING,
}


def strategies(roles: st.SearchStrategy[str] = ROLES) -> st.SearchStrategy[Strategy]:
    """Any strategy, with parameters that matter in a cluster of seven."""
    referees = st.sampled_from([node_of(name).address for name in "abcz"])
    return st.one_of(
        st.builds(KeepMajority, roles),
        st.builds(StaticQuorum, st.integers(1, 5), roles),
        st.builds(KeepOldest, st.booleans(), roles),
        st.builds(KeepReferee, referees, roles),
        st.builds(LeaseMajority, roles, st.sampled_from([0.0, 2.0]), st.sampled_from([1.5, 40.0])),
        st.just(DownAll()),
    )


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Member, ...]:
    """One to seven members of any status; ages may be equal or missing."""
    living = st.sampled_from([Status.UP] * 6 + [Status.LEAVING] * 2 + list(Status)[:6])
    members = []
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        status = draw(living)
        joins = status in (Status.JOINING, Status.WEAKLY_UP)
        members.append(
            Member(
                node_of(name),
                roles=draw(st.sampled_from([(), ("core",), ("core", "edge")])),
                status=status,
                up_number=0 if joins else draw(st.integers(1, 7)),
            )
        )
    return tuple(members)


@st.composite
def splits(draw: st.DrawFn) -> list[list[Member]]:
    """A cluster in two or three parts, none of them empty."""
    members = draw(clusters())
    parts: list[list[Member]] = [[], [], []]
    for member in members:
        parts[draw(st.integers(0, 2))].append(member)
    return [part for part in parts if part]


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    """Any records whatever, of anybody about anybody."""
    members = draw(clusters())
    nodes = st.sampled_from([member.id for member in members])
    self_id = draw(nodes)
    records = tuple(draw(st.lists(st.tuples(nodes, nodes), max_size=8)))
    unreachable = frozenset(subject for _, subject in records) - {self_id}
    return PartitionView(members, unreachable, records, draw(st.frozensets(nodes)), self_id)


def ids(members: Iterable[Member]) -> frozenset[NodeId]:
    """Their ids."""
    return frozenset(member.id for member in members)


def subsets(members: tuple[Member, ...]) -> Iterable[frozenset[NodeId]]:
    """Every set of them."""
    for size in range(len(members) + 1):
        for chosen in itertools.combinations(members, size):
            yield ids(chosen)


@given(strategies(), clusters())
def test_two_surviving_sets_share_a_counted_member(
    strategy: Strategy, electorate: tuple[Member, ...]
) -> None:
    """A set and all the rest of the counted never survive both."""
    voters = ids(counted(electorate, getattr(strategy, "role", "")))
    for present in subsets(electorate):
        if strategy.survives(electorate, present):
            assert present & voters
            assert not strategy.survives(electorate, ids(electorate) - (present & voters))


@given(strategies(), clusters())
def test_more_members_never_make_a_set_die(
    strategy: Strategy, electorate: tuple[Member, ...]
) -> None:
    """So the best set is all that there is; who is not counted changes nothing."""
    voters = ids(counted(electorate, getattr(strategy, "role", "")))
    for present in subsets(electorate):
        lives = strategy.survives(electorate, present)
        assert lives == strategy.survives(electorate, present & voters)
        assert lives == strategy.survives(electorate[::-1], {*present, node_of("stranger")})
        if lives:
            for member in electorate:
                assert strategy.survives(electorate, present | {member.id})


@given(strategies(), clusters())
def test_only_the_whole_survives_where_a_lease_or_nothing_decides(
    strategy: Strategy, electorate: tuple[Member, ...]
) -> None:
    """The whole survives under all strategies but a quorum that is missed or outgrown."""
    voters = ids(counted(electorate, getattr(strategy, "role", "")))
    fits = not isinstance(strategy, StaticQuorum) or (
        strategy.quorum_size <= len(voters) <= strategy.members_max
    )
    assert strategy.survives(electorate, ids(electorate)) == (bool(voters) and fits)
    if isinstance(strategy, LeaseMajority | DownAll):
        for voter in voters:
            assert not strategy.survives(electorate, ids(electorate) - {voter})


@given(strategies(), splits())
def test_of_a_clean_split_at_most_one_part_lives(
    strategy: Strategy, parts: list[list[Member]]
) -> None:
    """And with a lease at most as many as are granted it."""
    kinds = [strategy.decide(view).kind for view in views_of_parts(parts) if view.unreachable]
    if isinstance(strategy, LeaseMajority):
        assert set(kinds) <= {ProposalKind.ACQUIRE_AND_DOWN_UNREACHABLE}
    else:
        assert kinds.count(ProposalKind.DOWN_UNREACHABLE) <= 1


@given(strategies(roles=st.just("")), splits(), st.data())
def test_of_a_split_seen_late_by_one_part_at_most_one_lives(
    strategy: Strategy, parts: list[list[Member]], data: st.DataObject
) -> None:
    """The leader's part may know of members that left or came up in the very last moment."""
    before = tuple(member for part in parts for member in part)
    voters = [member for member in before if member.status in (Status.UP, Status.LEAVING)]
    if isinstance(strategy, LeaseMajority) or not voters:
        return
    leader = min(voters, key=lambda member: member.id)
    moved = data.draw(st.frozensets(st.sampled_from(sorted(ids(before)))))
    after = {member.id: moved_on(member) if member.id in moved else member for member in before}
    lives = 0
    for part in parts:
        knows = leader in part
        own = [after[member.id] if knows else member for member in part]
        view = view_of_part(own, tuple(after.values()) if knows else before)
        lives += bool(view.unreachable) and (
            strategy.decide(view).kind is ProposalKind.DOWN_UNREACHABLE
        )
    assert lives <= 1


def moved_on(member: Member) -> Member:
    """The next status that a leader gives it, as the youngest."""
    status = AHEAD.get(member.status, member.status)
    number = member.up_number or 8
    return Member(member.id, roles=member.roles, status=status, up_number=number)


@given(strategies(), splits())
def test_who_decides_to_live_would_survive(strategy: Strategy, parts: list[list[Member]]) -> None:
    """The careful answer to a view never claims more than the plain count."""
    for view in views_of_parts(parts):
        if not view.unreachable:
            continue
        kind = strategy.decide(view).kind
        survives = strategy.survives(view.members, ids(view.members) - view.unreachable)
        if kind is ProposalKind.DOWN_UNREACHABLE:
            assert survives
        elif kind is ProposalKind.DOWN_REACHABLE:
            assert not survives


@given(strategies(), splits())
def test_a_side_goes_down_as_a_whole_whatever_the_role(
    strategy: Strategy, parts: list[list[Member]]
) -> None:
    """Role narrows who is counted, never who is downed."""
    for view in views_of_parts(parts):
        proposal = strategy.decide(view)
        here, there = view.downable - view.unreachable, view.downable & view.unreachable
        if not view.unreachable:
            assert proposal.downed == ()
            continue
        assert frozenset(proposal.downed) in (here, there, here | there)
        if proposal.kind.asks_lease:
            assert frozenset(strategy.reverse(view, proposal).downed) == here


@given(strategies(), views(), st.randoms(use_true_random=False))
def test_a_decision_does_not_depend_on_any_order(
    strategy: Strategy, view: PartitionView, rng: random.Random
) -> None:
    """Members and records in another order, and the same again: equal to the last word."""
    members, records = list(view.members), list(view.records)
    rng.shuffle(members)
    rng.shuffle(records)
    other = PartitionView(
        tuple(members), view.unreachable, tuple(records), view.seen_by, view.self_id
    )
    assert strategy.decide(other) == strategy.decide(view)


@given(strategies(), views())
def test_a_decision_downs_only_who_can_be_and_self_last(
    strategy: Strategy, view: PartitionView
) -> None:
    """Whatever the records say; and so does the answer to a denied lease."""
    proposal = strategy.decide(view)
    for each in (proposal, strategy.reverse(view, proposal)):
        assert set(each.downed) <= view.downable
        assert len(set(each.downed)) == len(each.downed)
        others = [node for node in each.downed if node != view.self_id]
        assert others == sorted(others)
        assert view.self_id not in each.downed[:-1]
        assert not each.decision.asks_lease
        assert each.why.startswith(f"{strategy.name}: ")


@given(strategies())
def test_the_canonical_form_reads_back(strategy: Strategy) -> None:
    """Two members compare it when one joins."""
    assert parse(str(strategy)) == strategy
