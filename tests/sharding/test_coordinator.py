"""Every rule of the coordinator: terms, rebuild, claims, allocation, moves, rebalance.

Guards S13, I-104, I-105, I-107 to I-114, I-116 to I-118, I-120, I-128, I-129, F16 and F17.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from gossip.effects import PeerMessage
from gossip.membership import Cause, NodeId, Status
from sharding.coordinator import Phase
from sharding.events import (
    Lead,
    RebalanceRequested,
    Resign,
    ShardsMoved,
    ShardsNotProven,
    TermBegan,
)
from sharding.messages import (
    NO_TERM,
    AskReport,
    BeginHandOff,
    Claims,
    HandOff,
    HandOffBegun,
    Homes,
    HomesAre,
    HostShards,
    RebalanceAsk,
    RegionRefused,
    Report,
    ShardsStarted,
    ShardsStopped,
    Term,
    TermRefused,
    WantHomes,
)
from tests.sharding.worlds import (
    TYPE,
    A,
    B,
    C,
    D,
    Office,
    member,
    node,
    published,
    sent,
    view,
)

FORMER = Term(1, C)
EARLIER = Term(1, B)
NO_DOWNING: dict[str, Any] = {"downing": False, "hand_over_timeout_s": 5.0}


def wants(office: Office, name: str, *shards: int, leaving: bool = False) -> list[object]:
    """A region asks under the present term."""
    return office.hear(name, WantHomes(TYPE, office.term, shards, leaving))


def running(office: Office, *names: str) -> None:
    """Shard 0 runs at the first, 1 at the second, …; all have reported."""
    for name in "abc":
        mine = tuple(shard for shard, at in enumerate(names) if at == name)
        office.report(name, *([Claims(FORMER, mine)] if mine else []))
    assert office.phase() is Phase.LEADING


def told_homes(effects: list[object]) -> dict[NodeId, dict[int, NodeId]]:
    """Who was told which homes."""
    return {
        to: {shard: homes.node for homes in message.homes for shard in homes.shards}
        for to, message in sent(effects, HomesAre)
    }


def begins(effects: list[object]) -> dict[NodeId, tuple[int, ...]]:
    """Who was told that which shards are about to move."""
    return {to: message.shards for to, message in sent(effects, BeginHandOff)}


class Permission:
    """`may_act`, which ends after so many answers."""

    def __init__(self, left: float = math.inf) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


# terms


@pytest.mark.parametrize(("floor", "number"), [(0, 1), (6, 7), (41, 42)])
def test_a_term_is_greater_than_its_floor(floor: int, number: int) -> None:
    """F7: the fencing token of its lease, or the term that the region here has accepted."""
    office = Office(floor=floor)
    assert office.term == Term(number, A)
    assert sorted(office.asked()) == [A, B, C]


def test_a_term_never_goes_back() -> None:
    office = Office(floor=6)
    office.take(Resign(TYPE))
    office.take(Lead(TYPE, 0))
    assert office.term == Term(8, A)


def test_a_refusal_bumps_it_above_the_term_that_was_accepted() -> None:
    """I-110: at once, and all are asked anew."""
    office = Office()
    office.report("a")
    office.hear("b", TermRefused(TYPE, Term(9, C)))
    assert office.term == Term(10, A)
    assert sorted(office.asked()) == [A, B, C]
    assert len(published(office.out, TermBegan)) == 1
    office.hear("c", TermRefused(TYPE, Term(9, C)))
    assert office.term == Term(10, A)  # the second one says nothing new


def test_two_who_outbid_each_other_do_not_do_it_without_a_pause() -> None:
    """Level none: both lead for as long as the partition lasts, and longer in each other's eyes."""
    office = Office(retry_s=0.5)
    for number in (9, 19):
        office.hear("b", TermRefused(TYPE, Term(number, C)))
    assert office.term == Term(20, A)
    office.hear("b", TermRefused(TYPE, Term(29, C)))
    assert office.term == Term(20, A)
    assert office.pass_s(0.4) == []
    office.pass_s(0.2)
    assert office.term == Term(30, A)


@pytest.mark.parametrize("kind", [ShardsStarted, HandOffBegun, ShardsStopped])
def test_an_answer_to_an_older_term_changes_nothing(kind: Any) -> None:
    office = Office(floor=6)
    running(office, "b")
    office.hear("b", kind(TYPE, Term(6, A), (0,)))
    assert office.out == []
    assert office.machine.counters["sharding: late answers"] == 1


def test_a_report_to_an_older_term_is_no_report() -> None:
    office = Office(floor=6)
    office.report("a")
    office.report("b")
    office.report("c", term=Term(6, A))
    assert office.phase() is Phase.REBUILDING


def test_what_is_not_for_a_coordinator_changes_nothing() -> None:
    office = Office()
    assert office.take("nonsense") == []
    assert office.hear("b", "nonsense") == []


# rebuild


def test_nothing_is_allocated_before_all_have_reported() -> None:
    """F17: and what is known goes on meanwhile."""
    office = Office()
    office.report("a", Claims(FORMER, (0,)))
    wants(office, "a", 0, 5)
    assert told_homes(office.out) == {A: {0: A}}
    office.report("b")
    wants(office, "b", 5)
    assert office.given() == {}
    assert "10.0.0.3" in office.machine.explain(office.now)
    office.report("c")
    assert office.given() == {5: B}
    assert told_homes(office.out) == {key: {0: A} for key in (A, B, C)}


def test_the_silent_are_asked_again_and_again() -> None:
    """F17, I-128: at both levels of downing for as long as they are members."""
    office = Office(retry_s=0.5)
    office.report("a")
    office.report("b")
    asked = [to for to, _ in sent(office.pass_s(60.0), AskReport)]
    assert asked.count(C) == len(asked) >= 100
    assert office.phase() is Phase.REBUILDING


def test_what_is_wanted_before_its_owner_has_reported_stays_with_its_owner() -> None:
    """F17, I-108: a asks for shard 3 while the rebuild waits for b, who has it."""
    office = Office()
    office.report("a")
    office.report("c")
    wants(office, "a", 3)
    office.report("b", Claims(FORMER, (3,)))
    assert office.states() == {3: ("running", B)}
    assert office.given() == {}
    wants(office, "c", 4)
    assert office.given() == {4: A}


def test_a_member_that_knows_no_such_type_has_reported_and_gets_nothing() -> None:
    office = Office()
    office.report("a")
    office.report("b", is_region=False, hosts=False, shard_count=0)
    office.report("c", hosts=False)
    wants(office, "c", 0, 1, 2)
    assert office.given() == {0: A, 1: A, 2: A}
    office.started("a", 0)
    assert sorted(told_homes(office.out)) == [A, C]


SETTLED = [Cause.LEFT, Cause.CRASHED, Cause.NEVER_UP]


@pytest.mark.parametrize("cause", SETTLED)
@pytest.mark.parametrize("downing", [True, False])
def test_a_silent_one_that_is_gone_with_proof_is_not_waited_for(
    cause: Cause, downing: bool
) -> None:
    office = Office(downing=downing)
    office.report("a")
    office.report("b")
    office.take(view("a b", gone={C: cause}))
    assert office.phase() is Phase.LEADING


@pytest.mark.parametrize("cause", [Cause.DOWNED, Cause.ORDERED])
@pytest.mark.parametrize("is_listed", [True, False])
def test_downing_settles_only_where_there_is_downing(cause: Cause, is_listed: bool) -> None:
    """F16: at both levels of it its contact has ended; at level none it may run for long."""
    members = [member("a"), member("b")]
    if is_listed:
        members.append(member("c", status=Status.DOWN, cause=cause))
    gone = {} if is_listed else {C: cause}
    for downing, phase in ((True, Phase.LEADING), (False, Phase.REBUILDING)):
        office = Office(downing=downing)
        office.report("a")
        office.report("b")
        office.take(view(members, gone=gone))
        assert office.phase() is phase


def test_one_gone_without_proof_is_waited_for_and_then_named() -> None:
    """S5, F9: a new process at its address proves nothing of it."""
    office = Office(hand_over_timeout_s=5.0)
    running(office, "c")
    wants(office, "a", 7)
    office.take(view("a b", gone={C: Cause.SUPERSEDED}))
    assert office.given() == {}
    out = office.pass_s(4.9)
    assert published(out, ShardsNotProven) == []
    assert [order.shards for _, order in sent(out, HostShards) if 0 in order.shards] == []
    out = office.pass_s(0.2)
    assert published(out, ShardsNotProven) == [ShardsNotProven(TYPE, (C,), 5.0)]
    assert {s for _, order in sent(out, HostShards) for s in order.shards} >= {0}


def test_one_gone_without_proof_is_settled_when_the_proof_comes() -> None:
    office = Office()
    running(office, "c")
    office.take(view("a b", gone={C: Cause.SUPERSEDED}))
    assert office.given() == {}
    office.take(view("a b", gone={C: Cause.CRASHED}))
    assert office.given() == {0: A}
    assert published(office.pass_s(60.0), ShardsNotProven) == []


@pytest.mark.parametrize("when", ["before it leads", "while it is suspended"])
def test_one_that_went_without_proof_before_the_term_is_waited_for_too(when: str) -> None:
    """F17: whoever led then knew what it had; nobody does now."""
    allowed = Permission()
    office = Office(may_act=allowed, lead=False, hand_over_timeout_s=5.0)
    if when != "before it leads":
        office.take(Lead(TYPE, 0))
        running(office, "c")
        allowed.left = 0
        office.pass_s(2.0)
    office.take(view("a b", gone={C: Cause.SUPERSEDED}))
    allowed.left = math.inf
    office.take(Lead(TYPE, 0)) if when == "before it leads" else office.pass_s(0.3)
    office.report("a")
    office.report("b")
    wants(office, "a", 0)
    assert office.given() == {}
    assert "10.0.0.3" in office.machine.explain(office.now)
    out = office.pass_s(5.1)
    assert published(out, ShardsNotProven) == [ShardsNotProven(TYPE, (C,), 5.0)]
    assert [order.shards for _, order in sent(out, HostShards)][:1] == [(0,)]


# level none


def test_at_level_none_silence_ends_the_wait_with_a_warning() -> None:
    """S5, F17."""
    office = Office(**NO_DOWNING)
    office.report("a")
    wants(office, "a", 0)
    out = office.pass_s(4.9)
    assert sent(out, HostShards) == []
    assert published(out, ShardsNotProven) == []
    out = office.pass_s(0.2)
    assert published(out, ShardsNotProven) == [ShardsNotProven(TYPE, (B, C), 5.0)]
    assert [(to, order.shards) for to, order in sent(out, HostShards)][:1] == [(A, (0,))]


def test_at_level_none_an_unreachable_owner_is_waited_for_as_long() -> None:
    office = Office(**NO_DOWNING)
    running(office, "c", "b")
    office.take(view(unreachable="c"))
    assert published(office.pass_s(4.9), ShardsNotProven) == []
    out = office.pass_s(0.2)
    assert published(out, ShardsNotProven) == [ShardsNotProven(TYPE, (C,), 5.0)]
    assert office.states()[0][1] in (A, B)
    assert office.states()[1] == ("running", B)


@pytest.mark.parametrize("again", [False, True])
def test_at_level_none_an_owner_that_comes_back_in_time_keeps_what_it_has(again: bool) -> None:
    """I-108: its silence has ended, whether or not membership says anything more."""
    office = Office(**NO_DOWNING)
    running(office, "c")
    office.take(view(unreachable="c"))
    office.pass_s(3.0)
    office.take(view())
    if again:
        office.take(view())
    office.report("a")
    office.report("b")
    office.report("c", Claims(FORMER, (0,)))
    assert office.phase() is Phase.LEADING
    out = office.pass_s(60.0)
    assert published(out, ShardsNotProven) == []
    assert office.states() == {0: ("running", C)}


def test_at_level_none_one_that_comes_back_while_it_may_not_act_keeps_what_it_has() -> None:
    """Nobody notes its return then: the next term begins with it."""
    allowed = Permission()
    office = Office(may_act=allowed, **NO_DOWNING)
    running(office, "c")
    office.take(view(unreachable="c"))
    allowed.left = 0
    office.pass_s(1.0)
    office.take(view())
    allowed.left = math.inf
    office.pass_s(0.3)
    office.all_report("a b")
    office.report("c", Claims(FORMER, (0,)))
    assert office.phase() is Phase.LEADING
    assert published(office.pass_s(60.0), ShardsNotProven) == []
    assert office.states() == {0: ("running", C)}


def test_at_level_none_one_whose_silence_has_ended_is_not_waited_for_anew() -> None:
    """Else each change of membership would begin the wait once more."""
    office = Office("a b c d", **NO_DOWNING)
    office.report("a")
    office.report("b")
    office.pass_s(3.0)
    office.report("c", Claims(FORMER, (0,)))
    office.take(view("a b c d", unreachable="c"))
    office.pass_s(2.5)  # d is not waited for any more, c is
    assert office.phase() is Phase.REBUILDING
    office.take(view([member(name, incarnation=1) for name in "abcd"], unreachable="c"))
    office.pass_s(3.0)
    assert office.phase() is Phase.LEADING


def test_one_that_is_back_in_reach_begins_a_new_term() -> None:
    """What was said to it is lost, and at level none it may have led in between."""
    for settings in (dict[str, Any](downing=True), NO_DOWNING):
        office = Office(**settings)
        running(office, "c")
        office.take(view(unreachable="c"))
        office.take(view())
        assert office.term == Term(2, A)
        assert sorted(office.asked()) == [A, B, C]


# claims


@pytest.mark.parametrize("first", ["b", "c"])
def test_of_two_claims_the_later_term_wins_and_the_other_stops_first(first: str) -> None:
    """F17, I-108: by the term of the allocation, whoever's report comes first."""
    office = Office(floor=6)
    claims = {"b": Claims(Term(4, C), (0,)), "c": Claims(Term(3, C), (0,))}
    told: list[object] = []
    for name in (first, "c" if first == "b" else "b"):
        told += office.report(name, claims[name])
    told += office.report("a")
    assert office.states() == {0: ("running", B)}
    assert {to for to, _ in sent(told, HandOff)} == {C}
    assert all(homes == {} for homes in told_homes(told).values())
    wants(office, "a", 0)
    assert told_homes(office.out) == {}
    office.stopped("c", 0)
    assert told_homes(office.out) == {key: {0: B} for key in (A, B, C)}


def test_a_loser_is_told_again_until_it_has_stopped() -> None:
    office = Office(retry_s=0.5)
    office.report("a")
    office.report("b", Claims(Term(4, C), (0,)))
    office.report("c", Claims(Term(3, C), (0,)))
    told = [to for to, _ in sent(office.pass_s(2.1), HandOff)]
    assert told == [C] * 4
    office.stopped("c", 0)
    assert sent(office.pass_s(5.0), HandOff) == []


def test_a_loser_that_is_gone_need_not_confirm() -> None:
    office = Office(floor=6)
    office.report("a")
    office.report("b", Claims(Term(4, C), (0,)))
    office.report("c", Claims(Term(3, C), (0,)))
    office.take(view("a b", gone={C: Cause.CRASHED}))
    assert told_homes(office.out) == {key: {0: B} for key in (A, B)}


@pytest.mark.parametrize("how", ["stops", "is gone"])
def test_a_winner_that_ends_before_its_loser_leaves_the_shard_with_it(how: str) -> None:
    """I-108, I-120: it is nobody's only once both have stopped."""
    office = Office("a b c d", floor=6)
    office.report("a")
    office.report("d")
    office.report("b", Claims(Term(4, C), (0,), stopping=True))
    office.report("c", Claims(Term(3, C), (0,)))
    if how == "stops":
        office.stopped("b", 0)
    else:
        office.take(view("a c d", gone={B: Cause.CRASHED}))
    assert office.given() == {}
    assert office.states() == {0: ("stopping", C)}
    assert {to for to, _ in sent(office.pass_s(1.0), HandOff)} == {C}
    office.stopped("c", 0)
    assert office.given() == {0: A}


def test_a_claim_that_stops_is_confirmed_before_the_shard_is_given_away() -> None:
    """F17: its hand-off was an older term's; it goes on to its end."""
    office = Office()
    office.report("a")
    office.report("b", Claims(FORMER, (0,), stopping=True))
    assert office.told_to_stop() == {0: [B]}
    office.report("c")
    wants(office, "a", 0)
    assert office.given() == {}
    assert told_homes(office.out) == {}
    office.stopped("b", 0)
    assert office.given() == {0: A}


def test_a_claim_never_overrides_one_that_was_given_the_shard_since() -> None:
    """I-108: whoever comes late with what it had stops."""
    office = Office("a b")
    office.all_report("a b")
    wants(office, "a", 0)
    office.started("a", 0)
    office.take(view())
    assert office.asked() == [C]
    office.report("c", Claims(office.term, (0,)))
    assert office.states() == {0: ("running", A)}
    assert office.told_to_stop() == {0: [C]}
    office = Office("a b")
    office.all_report("a b")
    wants(office, "a", 0)
    office.take(view())
    office.report("c", Claims(Term(9, C), (0,)))
    assert office.states() == {0: ("starting", A)}
    assert office.told_to_stop() == {0: [C]}
    office.started("a", 0)
    assert told_homes(office.out) == {}
    office.stopped("c", 0)
    assert told_homes(office.out) == {key: {0: A} for key in (A, B, C)}


def test_a_second_report_does_not_undo_what_was_decided_since() -> None:
    """I-113: its claims are of before."""
    office = Office()
    running(office, "b")
    wants(office, "b", leaving=True)
    for name in "abc":
        office.begun(name, 0)
    office.stopped("b", 0)
    assert office.states() == {0: ("starting", A)}
    office.report("b", Claims(FORMER, (0,)), leaving=True)
    assert office.states() == {0: ("starting", A)}
    assert office.told_to_stop() == {}


def test_a_report_again_says_that_it_hosts_from_now_on() -> None:
    """A proxy that was started as a host; a leaver that was started again."""
    office = Office("a b")
    office.report("a", hosts=False)
    office.report("b", hosts=False, leaving=True)
    wants(office, "a", 0)
    assert office.given() == {}
    office.hear("b", WantHomes(TYPE, NO_TERM))
    assert office.asked() == [B]
    office.report("b")
    assert office.given() == {0: B}


def test_shards_out_of_range_are_nobodys() -> None:
    """I-107."""
    office = Office()
    office.report("a")
    office.report("b", Claims(FORMER, (-1, 8, 1 << 40, 3)))
    office.report("c")
    assert office.states() == {3: ("running", B)}
    assert office.machine.counters["sharding: shards out of range"] == 3
    wants(office, "a", -1, 8, 1 << 40)
    assert office.out == []
    office.started("a", 8)
    office.stopped("a", -1)
    office.begun("a", 8)
    assert office.states() == {3: ("running", B)}


# shard count


def test_another_shard_count_is_refused_by_the_coordinators_own() -> None:
    """I-104, I-105: whoever came first."""
    office = Office()
    office.report("b", Claims(FORMER, (3,)), shard_count=16)
    ((to, refused),) = sent(office.out, RegionRefused)
    assert to == B
    assert "16" in refused.why
    assert "8" in refused.why
    office.report("a")
    office.report("c")
    assert office.states() == {}
    wants(office, "a", 0, 1, 2)
    assert set(office.given().values()) == {A, C}
    office.started("a", 0)
    assert sorted(told_homes(office.out)) == [A, C]


def test_a_refused_region_gets_no_home_and_nothing_is_started_for_it() -> None:
    """I-104: by its count the number means other entities."""
    office = Office()
    office.report("b", shard_count=16)
    office.report("a")
    office.report("c", Claims(FORMER, (3,)))
    wants(office, "b", 3, 4)
    assert told_homes(office.out) == {}
    assert office.given() == {}
    assert [to for to, _ in sent(office.out, RegionRefused)] == [B]


# acting


def test_may_act_is_asked_before_each_allocation() -> None:
    """S13, L7: it ends in the middle of a batch, and nothing of the batch is said."""
    allowed = Permission()
    office = Office(may_act=allowed)
    office.all_report()
    allowed.left = 3  # the message, and two shards
    wants(office, "a", 0, 1, 2, 3)
    assert office.machine.counters["sharding: allocated"] == 2
    assert office.out == []
    assert office.phase() is Phase.SUSPENDED
    assert office.states() == {}


def test_one_that_may_not_act_says_nothing_and_hears_nothing() -> None:
    """S13, I-128, I-129: no timer of its own goes on, and what regions say is asked for anew."""
    allowed = Permission()
    office = Office(may_act=allowed, authority_poll_s=0.2, eager=True)
    running(office, "b", "c")
    allowed.left = 0
    for effects in (
        wants(office, "a", 5),
        office.started("a", 2),
        office.stopped("b", 0),
        office.take(RebalanceRequested(TYPE)),
        office.take(view("a b", gone={C: Cause.CRASHED})),
        office.take(view("a b", unreachable="b")),
        office.pass_s(30.0),
    ):
        assert effects == []
    assert office.phase() is Phase.SUSPENDED
    assert "may not act" in office.machine.explain(office.now)


def test_a_view_is_no_permission_either() -> None:
    """The first thing it hears after it may not act any more is a change of membership."""
    allowed = Permission()
    office = Office(may_act=allowed)
    running(office, "b", "c")
    wants(office, "c", leaving=True)
    office.begun("a", 1)
    office.begun("c", 1)
    allowed.left = 0
    assert office.take(view("a c d", gone={B: Cause.CRASHED})) == []
    assert office.phase() is Phase.SUSPENDED


def test_when_it_may_again_it_begins_a_new_term() -> None:
    """S13: outstanding allocations are void, regions are asked."""
    allowed = Permission()
    office = Office(may_act=allowed)
    office.all_report()
    wants(office, "a", 0)
    assert office.given() == {0: A}
    allowed.left = 0
    office.pass_s(1.0)
    allowed.left = math.inf
    out = office.pass_s(0.3)
    assert office.term == Term(2, A)
    assert {to for to, _ in sent(out, AskReport)} == {A, B, C}
    office.hear("a", ShardsStarted(TYPE, Term(1, A), (0,)))
    assert office.states() == {}


def test_one_that_leads_before_it_may_act_begins_when_it_may() -> None:
    allowed = Permission(0)
    office = Office(may_act=allowed)
    assert office.out == []
    allowed.left = math.inf
    assert {to for to, _ in sent(office.pass_s(0.3), AskReport)} == {A, B, C}


def test_one_that_resigns_forgets_all_and_all_its_timers() -> None:
    """I-129: a passive coordinator must not move anything."""
    office = Office(eager=True)
    running(office, "b", "c", "a")
    wants(office, "b", leaving=True)
    office.take(view(unreachable="c"))
    assert office.machine.deadline < math.inf
    assert office.take(Resign(TYPE)) == []
    assert office.machine.deadline == math.inf
    assert office.machine.tick(1e6) == []
    assert office.states() == {}
    assert wants(office, "a", 0) == []
    assert office.machine.explain(office.now) == "the coordinator is not here"


# allocation


def test_shards_go_to_whoever_has_fewest() -> None:
    office = Office()
    running(office, "a", "a", "b")
    wants(office, "a", 3, 4, 5)
    assert Counter(node for _, node in office.states().values()) == {A: 2, B: 2, C: 2}


def test_directives_of_one_step_to_one_node_are_one_message() -> None:
    office = Office()
    office.all_report()
    wants(office, "a", *range(6))
    assert len(sent(office.out, HostShards)) == 3


def test_a_home_is_announced_once_it_has_been_confirmed() -> None:
    office = Office()
    office.all_report()
    wants(office, "b", 0)
    assert told_homes(office.out) == {}
    office.started("b", 0)  # another one than its node
    assert office.out == []
    office.started("a", 0)
    assert told_homes(office.out) == {key: {0: A} for key in (A, B, C)}
    assert published(office.out, ShardsMoved) == [ShardsMoved(TYPE, (0,), A)]
    office.started("a", 0)
    assert office.out == []


def test_an_order_is_given_again_until_it_is_confirmed() -> None:
    office = Office(retry_s=0.5)
    office.all_report()
    wants(office, "b", 0)
    assert len(sent(office.pass_s(2.1), HostShards)) == 4
    office.started("a", 0)
    assert sent(office.pass_s(5.0), HostShards) == []


@pytest.mark.parametrize(
    "of_b", [{"status": Status.JOINING}, {"status": Status.WEAKLY_UP}, {"status": Status.LEAVING}]
)
def test_only_members_that_are_up_get_shards(of_b: dict[str, Any]) -> None:
    office = Office("a b")
    office.take(view([member("a"), member("b", **of_b)]))
    office.all_report("a b")
    wants(office, "b", *range(4))
    assert set(office.given().values()) == {A}


def test_nobody_out_of_reach_gets_a_shard() -> None:
    office = Office("a b")
    office.all_report("a b")
    office.take(view("a b", unreachable="b"))
    wants(office, "b", *range(4))
    assert set(office.given().values()) == {A}


def test_what_nobody_can_have_waits_for_somebody() -> None:
    office = Office("a b")
    office.report("a", hosts=False)
    office.report("b", hosts=False)
    wants(office, "a", 0)
    assert office.given() == {}
    assert "1 wait" in office.machine.explain(office.now)
    office.take(view())
    office.report("c")
    assert office.given() == {0: C}


def test_eager_types_have_all_their_shards_allocated() -> None:
    """I-124."""
    office = Office(eager=True)
    office.all_report()
    assert sorted(office.given()) == list(range(8))
    assert sorted(Counter(office.given().values()).values()) == [2, 3, 3]


def test_what_was_asked_under_another_term_is_answered_by_a_question() -> None:
    office = Office()
    running(office, "b")
    office.hear("c", WantHomes(TYPE, Term(77, C), (0,)))
    assert office.asked() == [C]
    assert told_homes(office.out) == {}


def test_the_shards_of_one_that_crashed_are_given_to_others() -> None:
    office = Office()
    running(office, "c", "c")
    office.take(view("a b", gone={C: Cause.CRASHED}))
    assert office.given() == {0: A, 1: B}


# moves


def test_a_move_holds_stops_and_then_starts() -> None:
    office = Office()
    running(office, "b")
    wants(office, "b", leaving=True)
    assert begins(office.out) == dict.fromkeys((A, B, C), (0,))
    office.begun("a", 0)
    office.begun("a", 0)
    office.begun("b", 0)
    assert office.told_to_stop() == {}
    office.begun("c", 0)
    assert office.told_to_stop() == {0: [B]}
    wants(office, "a", 0)
    assert told_homes(office.out) == {}
    office.stopped("c", 0)  # it is not the one that has it
    assert office.given() == {}
    office.stopped("b", 0)
    assert office.given() == {0: A}
    office.stopped("b", 0)
    assert office.out == []
    office.started("a", 0)
    assert told_homes(office.out) == {key: {0: A} for key in (A, B, C)}


def test_each_step_of_a_move_is_said_again() -> None:
    """F17: nothing is sent only once."""
    office = Office(retry_s=0.5, begin_timeout_s=60.0)
    running(office, "b")
    wants(office, "b", leaving=True)
    office.begun("a", 0)
    out = office.pass_s(2.1)
    assert Counter(to for to, _ in sent(out, BeginHandOff)) == {B: 4, C: 4}
    office.begun("b", 0)
    office.begun("c", 0)
    assert [to for to, _ in sent(office.pass_s(2.1), HandOff)] == [B] * 3


def test_whoever_does_not_hold_in_time_is_not_waited_for() -> None:
    office = Office(begin_timeout_s=2.0)
    running(office, "b")
    wants(office, "b", leaving=True)
    office.begun("a", 0)
    office.begun("b", 0)
    assert sent(office.pass_s(1.9), HandOff) == []
    assert [to for to, _ in sent(office.pass_s(0.2), HandOff)] == [B]
    assert office.machine.counters["sharding: regions did not begin in time"] == 1


def test_a_region_that_does_not_stop_is_waited_for_without_end() -> None:
    """I-120: a second copy is never the answer."""
    office = Office()
    running(office, "b")
    wants(office, "b", leaving=True)
    for name in "abc":
        office.begun(name, 0)
    assert sent(office.pass_s(600.0), HostShards) == []
    assert office.states() == {0: ("stopping", B)}


def test_one_out_of_reach_need_not_hold() -> None:
    office = Office()
    running(office, "b")
    office.take(view(unreachable="c"))
    wants(office, "b", leaving=True)
    assert sorted(begins(office.out)) == [A, B]


def test_one_that_is_gone_need_not_hold() -> None:
    office = Office()
    running(office, "b")
    wants(office, "b", leaving=True)
    office.begun("a", 0)
    office.begun("b", 0)
    office.take(view("a b", gone={C: Cause.CRASHED}))
    assert office.told_to_stop() == {0: [B]}


def test_an_owner_that_crashes_in_the_middle_of_a_move_ends_it() -> None:
    office = Office()
    running(office, "b")
    wants(office, "b", leaving=True)
    office.take(view("a c", gone={B: Cause.CRASHED}))
    assert office.given() == {0: A}


def test_the_shards_of_a_leaver_move_to_others() -> None:
    """I-144: also those it reports under a new term, and those on their way to it."""
    office = Office()
    office.report("a")
    office.report("c")
    office.report("b", Claims(FORMER, (0, 1)), leaving=True)
    assert begins(office.out) == dict.fromkeys((A, B, C), (0, 1))
    for name in "abc":
        office.begun(name, 0, 1)
    office.stopped("b", 0, 1)
    assert office.given() == {0: A, 1: C}
    wants(office, "c", leaving=True)
    assert office.told_to_stop() == {1: [C]}
    office.stopped("c", 1)
    assert office.given() == {1: A}


def test_a_refused_shard_is_given_to_another() -> None:
    """The order met a region that had just begun to leave."""
    office = Office("a b")
    office.all_report("a b")
    wants(office, "b", 0, 1)
    assert office.given() == {0: A, 1: B}
    number = office.numbers[B, 1]
    office.hear("b", ShardsStopped(TYPE, office.term, (1,), refused=True, number=number))
    assert office.given() == {1: A}
    wants(office, "b", 2)
    assert office.given() == {2: A}


def test_whoever_refused_is_asked_again_and_may_host_when_it_says_so() -> None:
    """It may have begun again meanwhile. A refusal that comes once more changes nothing."""
    office = Office("a b")
    office.all_report("a b")
    wants(office, "b", 0, 1)
    number = office.numbers[B, 1]
    refused = ShardsStopped(TYPE, office.term, (1,), refused=True, number=number)
    office.hear("b", refused)
    assert [to for to, _ in sent(office.out, AskReport)] == [B]
    office.report("b")
    office.hear("b", refused)
    assert sent(office.out, AskReport) == []
    wants(office, "b", 2)
    assert office.given() == {2: B}


def test_a_leaver_with_nobody_to_take_its_shards_need_not_wait() -> None:
    """They stop, and what is for them waits until somebody hosts the type again."""
    office = Office("a b")
    office.report("a", hosts=False)
    office.report("b", Claims(FORMER, (0,)), leaving=True, hosts=False)
    assert begins(office.out) == {A: (0,), B: (0,)}
    office.begun("a", 0)
    office.begun("b", 0)
    office.hear("b", ShardsStopped(TYPE, office.term, (0,), number=office.numbers[B, 0]))
    assert office.states() == {}
    office.take(view("a b c"))
    office.report("c")
    assert office.given() == {0: C}


def test_who_remembers_elsewhere_hosts_nothing_and_may_send() -> None:
    """I-104: entities that one store remembers would not be known to the other. What it has from
    another time is moved away."""
    office = Office("a b", agreement="one store")
    office.report("a", agreement="one store")
    office.report("b", Claims(FORMER, (0,)), agreement="another store")
    (refused,) = [m for to, m in sent(office.out, RegionRefused) if to == B]
    assert refused.may_send
    assert "another store" in refused.why
    assert "one store" in refused.why
    assert begins(office.out) == {A: (0,), B: (0,)}
    wants(office, "b", 1)
    assert office.given() == {1: A}


def test_an_answer_to_an_earlier_order_is_none_to_a_later_one() -> None:
    """I-113: it stopped, was given the shard again, and is to stop once more."""
    office = Office("b")
    office.report("b", Claims(FORMER, (0,), stopping=True))
    stopped = ShardsStopped(TYPE, office.term, (0,), number=office.numbers[B, 0])
    office.hear("b", stopped)
    assert office.given() == {0: B}
    started = ShardsStarted(TYPE, office.term, (0,), office.numbers[B, 0])
    office.hear("b", stopped)
    assert office.states() == {0: ("starting", B)}
    office.hear("b", started)
    office.hear("b", stopped)
    assert office.states() == {0: ("running", B)}
    office.take(view("a b"))
    office.report("a")
    wants(office, "b", leaving=True)
    office.begun("a", 0)
    office.begun("b", 0)
    office.hear("b", stopped)
    office.hear("b", started)
    assert office.states() == {0: ("stopping", B)}
    office.stopped("b", 0)
    assert office.given() == {0: A}


def test_one_that_says_it_has_stopped_what_it_should_run_is_asked_once_more() -> None:
    """I-113, I-116: a word that comes late must not make two, nor a true one leave none."""
    office = Office()
    running(office, "b")
    office.stopped("b", 0)
    assert office.given() == {}
    assert office.told_to_stop() == {0: [B]}
    office.stopped("b", 0)
    assert office.given() == {0: A}


# rebalance


def test_it_evens_out_a_round_at_a_time() -> None:
    office = Office(rebalance_interval_s=1.0, rebalance_relative_limit=0.25)
    running(office, *"aaaaaaaa")
    assert sent(office.pass_s(0.9), BeginHandOff) == []
    out = office.pass_s(0.2)
    ((_, moved), *_) = sent(out, BeginHandOff)
    assert len(moved.shards) == 2
    assert sent(office.pass_s(1.5), BeginHandOff)  # the same again, and no others
    assert [s for s, (state, _) in office.states().items() if state != "running"] == [*moved.shards]
    for name in "abc":
        office.begun(name, *moved.shards)
    office.stopped("a", *moved.shards)
    assert sorted(office.given().values()) == [B, C]


def test_nothing_moves_when_the_spread_is_even() -> None:
    office = Office()
    running(office, *"aaabbbcc")
    assert sent(office.pass_s(60.0), BeginHandOff) == []


@pytest.mark.parametrize(
    "seen",
    [
        view(unreachable="c"),
        view([*map(member, "abc"), member("d", status=Status.JOINING)]),
        view([member("a"), member("b"), member("c", status=Status.LEAVING)]),
    ],
)
def test_nothing_is_evened_out_while_somebody_comes_goes_or_is_out_of_reach(seen: Any) -> None:
    office = Office()
    running(office, *"aaaaaaaa")
    office.take(seen)
    assert sent(office.pass_s(30.0), BeginHandOff) == []
    office.take(RebalanceRequested(TYPE))
    assert office.out == []
    assert office.machine.counters["sharding: rebalance put off"] == 1


@pytest.mark.parametrize("event", [RebalanceRequested(TYPE), PeerMessage(B, RebalanceAsk(TYPE))])
def test_an_operator_has_it_done_at_once(event: object) -> None:
    office = Office(rebalance_interval_s=100.0)
    running(office, *"aaaaaaaa")
    office.take(event)
    assert begins(office.out) != {}


def test_by_rendezvous_a_shard_is_where_its_hash_says() -> None:
    """I-125: it moves there as soon as its node is up, and then rests."""
    office = Office("a b", allocation="rendezvous", rebalance_relative_limit=1.0, eager=True)
    office.all_report("a b")
    for shard, (_, at) in office.states().items():
        office.started("ab"[at == B], shard)
    before = {shard: at for shard, (_, at) in office.states().items()}
    office.take(view())
    office.report("c")
    moved = {s for _, order in sent(office.pass_s(2.5), BeginHandOff) for s in order.shards}
    for name in "abc":
        office.begun(name, *moved)
    for name in "ab":
        office.stopped(name, *(s for s in moved if before[s] == node(name)))
    after = {shard: at for shard, (_, at) in office.states().items()}
    assert {s for s in before if before[s] != after[s]} == moved
    assert {after[s] for s in moved} <= {C}
    assert 0 < len(moved) < 8


# bounds


def test_what_is_remembered_is_bounded_by_shards_and_members() -> None:
    """I-118: whoever asks, and however often."""
    office = Office()
    office.report("a", hosts=False)
    office.report("b", hosts=False)
    office.report("c", hosts=False)
    for _ in range(50):
        wants(office, "b", *range(-100, 100))
    assert "8 wait" in office.machine.explain(office.now)
    assert office.hear("d", WantHomes(TYPE, office.term, tuple(range(100)))) != []
    assert office.asked() == [D]


def test_a_coordinator_without_a_view_waits_for_one() -> None:
    office = Office("a", lead=False)
    office.take(Lead(TYPE, 0))
    assert office.asked() == [A]
    report = Report(TYPE, office.term, 8, hosts=True, is_region=True)
    office.hear("a", report)
    assert office.phase() is Phase.LEADING
    assert sent(office.out, HomesAre)[0] == (A, HomesAre(TYPE, office.term, (), whole=True))
    wants(office, "a", 0)
    office.started("a", 0)
    assert told_homes(office.out) == {A: {0: A}}
    assert sent(office.out, HomesAre)[0][1].homes == (Homes(A, (0,)),)
