"""Every rule of a region: whom it obeys, what it has, where messages go, and how it ends.

Guards I-104, I-107, I-109, I-110, I-112 to I-114, I-116, I-117, I-119, I-120, F16 and F17.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossip.membership import Cause, NodeId, Status
from sharding.effects import CloseShards, DrainRoute, Evacuated, FailAsks, OpenShards
from sharding.events import (
    CoordinatorAt,
    EvacuateRequested,
    RegionNotAdmitted,
    RegionRequested,
    RouteDrained,
    ShardsClosed,
    ShardsWanted,
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
    Site,
    member,
    orders,
    published,
    routes,
    sent,
    view,
)

STOP = EvacuateRequested(TYPE)


def homes(site: Site, at: NodeId, *shards: int, whole: bool = False) -> list[object]:
    """The coordinator says where they are."""
    return site.hear("a", HomesAre(TYPE, site.term, (Homes(at, shards),), whole))


def begin(site: Site, *shards: int) -> list[object]:
    """The coordinator says that they are about to move."""
    return site.hear("a", BeginHandOff(TYPE, site.term, shards))


def wanted(site: Site, *shards: int) -> list[object]:
    """Messages wait here."""
    return site.take(ShardsWanted(TYPE, shards))


def asked_for(effects: list[object]) -> list[tuple[NodeId, tuple[int, ...]]]:
    """Whose homes it asked for."""
    return [(to, want.shards) for to, want in sent(effects, WantHomes)]


def stopped(effects: list[object]) -> list[tuple[NodeId, tuple[int, ...]]]:
    """What it said has stopped."""
    return [(to, message.shards) for to, message in sent(effects, ShardsStopped)]


# terms


def test_a_report_says_all_that_is_here_by_the_term_of_its_allocation() -> None:
    """F17: and whether it is stopping."""
    site = Site()
    site.host(1, 2)
    site.hand_off(2)
    site.term = Term(2, A)
    site.hear("a", AskReport(TYPE, site.term))
    site.host(5)
    later = Term(7, C)
    site.hear("c", AskReport(TYPE, later))
    (report,) = sent(site.out, Report)
    claims = (
        Claims(Term(1, A), (1,)),
        Claims(Term(1, A), (2,), stopping=True),
        Claims(Term(2, A), (5,)),
    )
    assert report == (C, Report(TYPE, later, 8, hosts=True, is_region=True, claims=claims))
    assert site.machine.accepted == later


@pytest.mark.parametrize(
    "message",
    [
        AskReport(TYPE, Term(4, A)),
        HostShards(TYPE, Term(4, A), (1,)),
        HandOff(TYPE, Term(4, A), (0,)),
        BeginHandOff(TYPE, Term(4, A), (0,)),
        HomesAre(TYPE, Term(4, A), (Homes(C, (0,)),)),
        RegionRefused(TYPE, Term(4, A), "why"),
    ],
)
def test_a_smaller_term_is_refused_and_told(message: object) -> None:
    """I-110: whoever was the coordinator before changes nothing, and learns why."""
    site = Site(term=5)
    site.host(0)
    site.hear("a", message)
    assert sent(site.out, TermRefused) == [(A, TermRefused(TYPE, Term(5, A)))]
    assert len(site.out) == 1
    assert site.machine.owned() == {0: False}


def test_of_equal_numbers_the_greater_node_wins() -> None:
    site = Site(term=5)
    site.hear("c", AskReport(TYPE, Term(5, C)))
    site.host(1)
    assert sent(site.out, TermRefused) == [(A, TermRefused(TYPE, Term(5, C)))]
    assert site.machine.owned() == {}


@pytest.mark.parametrize("kind", [HostShards, HandOff, BeginHandOff])
def test_an_order_under_a_term_it_has_not_reported_to_is_refused(kind: Any) -> None:
    """F17: it was given without knowing what is here."""
    site = Site(term=5)
    site.host(0)
    site.hear("a", kind(TYPE, Term(6, A), (0, 1)))
    assert site.out == []
    assert site.machine.owned() == {0: False}
    assert site.machine.counters["sharding: orders before the report refused"] == 1


@pytest.mark.parametrize("kind", [HostShards, HandOff, BeginHandOff])
def test_an_order_of_another_node_than_its_term_is_refused(kind: Any) -> None:
    """I-117."""
    site = Site(term=5)
    site.host(0)
    site.hear("c", kind(TYPE, site.term, (0, 1)))
    assert site.out == []
    assert site.machine.owned() == {0: False}
    assert site.machine.counters["sharding: directives of others refused"] == 1


def test_what_is_no_directive_changes_nothing() -> None:
    site = Site()
    site.hear("a", "nonsense")
    site.hear("a", ShardsStarted(TYPE, site.term, (1,)))
    site.take("nonsense")
    assert site.machine.counters["sharding: not for a region"] == 3


def test_shards_out_of_range_are_left_out() -> None:
    """I-107."""
    site = Site()
    site.host(-1, 8, 3)
    assert sent(site.out, ShardsStarted) == [(A, ShardsStarted(TYPE, site.term, (3,)))]
    begin(site, -1, 8)
    site.hand_off(-1, 8)
    homes(site, C, -1, 8)
    assert orders(site.out, CloseShards) == []
    assert site.machine.owned() == {3: False}
    assert site.machine.homes() == {3: B}


# hosting


def test_an_order_to_host_opens_and_is_confirmed_also_when_it_is_repeated() -> None:
    site = Site()
    started = [(A, ShardsStarted(TYPE, site.term, (1, 2)))]
    site.host(1, 2)
    assert orders(site.out, OpenShards) == [OpenShards(TYPE, (1, 2))]
    assert sent(site.out, ShardsStarted) == started
    assert ((1, 2), B) in routes(site.out)
    site.host(1, 2)
    assert orders(site.out, OpenShards) == []
    assert sent(site.out, ShardsStarted) == started


def test_a_shard_that_stops_is_not_started_again_before_it_has_stopped() -> None:
    """I-112: neither confirmed nor opened; what it says afterwards brings it back."""
    site = Site()
    site.host(1)
    site.hand_off(1)
    site.host(1)
    assert site.out == []
    assert site.machine.owned() == {1: True}
    site.take(ShardsClosed(TYPE, (1,)))
    assert stopped(site.out) == [(A, (1,))]
    site.host(1)
    assert orders(site.out, OpenShards) == [OpenShards(TYPE, (1,))]


def test_a_stop_is_confirmed_only_when_all_entities_have_ended() -> None:
    """I-112, I-113: however often it is told."""
    site = Site(hand_off_timeout_s=3.0)
    site.host(1, 2)
    site.hand_off(1, 2)
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1, 2), 3.0)]
    assert stopped(site.out) == []
    site.hand_off(1, 2)
    assert site.out == []
    site.take(ShardsClosed(TYPE, (2,)))
    assert stopped(site.out) == [(A, (2,))]
    assert site.machine.owned() == {1: True}
    site.hand_off(1, 2)
    assert stopped(site.out) == [(A, (2,))]


def test_what_is_not_here_has_stopped() -> None:
    """I-113."""
    site = Site()
    site.hand_off(4)
    assert stopped(site.out) == [(A, (4,))]


def test_an_orphan_stops_and_says_so_when_it_has() -> None:
    """I-109: under a later term another one has what we have."""
    site = Site()
    site.host(1, 2)
    site.term = Term(2, A)
    site.hear("a", AskReport(TYPE, site.term))
    homes(site, C, 1)
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1,), 0.0)]  # at once
    assert ((1,), C) in routes(site.out)
    homes(site, C, 1)
    assert orders(site.out, CloseShards) == []
    site.take(ShardsClosed(TYPE, (1,)))
    assert stopped(site.out) == [(A, (1,))]
    assert ((1,), None) not in routes(site.out)  # it stays known to be at c


def test_what_is_late_does_not_stop_what_was_given_since() -> None:
    """I-113: a home of before, said under the very term that then gave the shard to us."""
    site = Site()
    site.host(1)
    homes(site, C, 1)
    assert orders(site.out, CloseShards) == []
    assert site.machine.owned() == {1: False}


def test_a_shard_said_to_be_here_that_is_not_is_given_up_aloud() -> None:
    """I-116: the word of its stop was lost, and nobody would ever have it again."""
    site = Site()
    homes(site, B, 1)
    assert stopped(site.out) == [(A, (1,))]
    assert routes(site.out) == []
    assert site.machine.homes() == {}


def test_an_order_that_is_overtaken_by_a_later_one_changes_nothing() -> None:
    """I-113: a link that is dialled anew may be faster than what is left of the former one."""
    site = Site()
    host = HostShards(TYPE, site.term, (1,), number=3)
    stop = HandOff(TYPE, site.term, (1,), number=5)
    site.hear("a", host)
    site.hear("a", stop)
    site.take(ShardsClosed(TYPE, (1,)))
    assert sent(site.out, ShardsStopped) == [(A, ShardsStopped(TYPE, site.term, (1,), number=5))]
    site.hear("a", host)
    assert site.out == []
    assert site.machine.owned() == {}
    site.hear("a", replace(host, number=7))
    assert sent(site.out, ShardsStarted) == [(A, ShardsStarted(TYPE, site.term, (1,), 7))]
    site.hear("a", stop)
    assert site.out == []
    assert site.machine.owned() == {1: False}
    assert site.machine.counters["sharding: late orders"] == 2
    site.term = Term(2, A)
    site.hear("a", AskReport(TYPE, site.term))
    site.hand_off(1)  # numbers are of a term
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1,), 10.0)]


# homes


def test_a_home_is_a_route_and_ends_the_asking() -> None:
    site = Site()
    wanted(site, 1)
    assert asked_for(site.out) == [(A, (1,))]
    assert (A, (1,)) in asked_for(site.pass_s(0.6))
    homes(site, C, 1)
    assert routes(site.out) == [((1,), C)]
    assert asked_for(site.pass_s(10.0)) == []


def test_what_is_wanted_is_asked_again_until_there_is_an_answer() -> None:
    """I-114: ever more rarely, down to once in 2 s."""
    site = Site()
    wanted(site, 1)
    asked = asked_for(site.pass_s(20.0))
    assert set(asked) == {(A, (1,))}
    assert 10 <= len(asked) <= 16


def test_a_whole_map_forgets_what_it_does_not_name() -> None:
    site = Site()
    homes(site, C, 1, 2)
    homes(site, C, 1, whole=True)
    assert ((2,), None) in routes(site.out)
    assert site.machine.homes() == {1: C}


def test_what_was_wanted_without_a_coordinator_is_asked_of_the_first_one() -> None:
    site = Site(term=0)
    wanted(site, 3)
    assert site.out == []
    site.take(CoordinatorAt(TYPE, A))
    assert sent(site.out, WantHomes) == [(A, WantHomes(TYPE, NO_TERM, (3,)))]


def test_it_says_hello_until_it_is_asked_for_its_report() -> None:
    """The coordinator may not know yet that the type is here."""
    site = Site(term=0)
    site.take(CoordinatorAt(TYPE, A))
    assert asked_for(site.out) == [(A, ())]
    assert len(asked_for(site.pass_s(3.0))) >= 4
    site.hear("a", AskReport(TYPE, Term(1, A)))
    assert asked_for(site.pass_s(10.0)) == []


# out of reach


def test_what_is_for_a_home_out_of_reach_is_held() -> None:
    """I-119: its route is taken away, and given back when it is found."""
    site = Site()
    homes(site, C, 1)
    site.take(view(me="b", unreachable="c"))
    assert routes(site.out) == [((1,), None)]
    wanted(site, 1)
    assert routes(site.out) == []
    homes(site, C, 1)
    assert routes(site.out) == [((1,), None)]
    site.take(view(me="b"))
    assert routes(site.out) == [((1,), C)]
    assert asked_for(site.pass_s(10.0)) == []


def test_what_is_for_a_home_that_is_gone_is_asked_for_anew() -> None:
    site = Site()
    homes(site, C, 1)
    site.take(view(me="b", unreachable="c"))
    wanted(site, 1)
    site.take(view("a b", me="b", gone={C: Cause.CRASHED}))
    assert routes(site.out) == [((1,), None)]
    assert (A, (1,)) in asked_for(site.out)


# hand-off


def test_begin_holds_and_is_confirmed_once_all_that_was_sent_has_arrived() -> None:
    """F17: whatever is on its way to the former home is there before its entities stop."""
    site = Site()
    homes(site, C, 1, 2)
    begin(site, 1)
    assert routes(site.out) == [((1,), None)]
    (drain,) = orders(site.out, DrainRoute)
    assert drain.home == C
    assert sent(site.out, HandOffBegun) == []
    begin(site, 1)  # once more: it is still on its way
    assert site.out == []
    site.take(RouteDrained(TYPE, drain.number))
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (1,)))]
    site.take(RouteDrained(TYPE, drain.number))
    assert site.out == []
    begin(site, 1)
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (1,)))]


def test_begin_is_confirmed_at_once_by_its_owner_and_by_who_knows_no_home() -> None:
    site = Site()
    site.host(1)
    begin(site, 1, 2)
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (1, 2)))]
    assert orders(site.out, DrainRoute) == []
    assert site.machine.owned() == {1: False}


def test_begin_of_shards_at_two_homes_waits_for_both() -> None:
    site = Site("a b c d")
    homes(site, C, 1)
    homes(site, A, 2)
    begin(site, 1, 2, 3)
    drains = {drain.home: drain.number for drain in orders(site.out, DrainRoute)}
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (3,)))]
    site.take(RouteDrained(TYPE, drains[C]))
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (1,)))]
    site.take(RouteDrained(TYPE, drains[A]))
    assert sent(site.out, HandOffBegun) == [(A, HandOffBegun(TYPE, site.term, (2,)))]


def test_what_moves_is_held_until_its_new_home_is_said() -> None:
    """I-114."""
    site = Site()
    homes(site, C, 1)
    begin(site, 1)
    wanted(site, 1)
    assert routes(site.out) == []
    homes(site, A, 1)
    assert routes(site.out) == [((1,), A)]
    wanted(site, 1)
    assert routes(site.out) == [((1,), A)]


def test_the_news_of_a_move_that_is_lost_is_asked_for() -> None:
    """I-114: else what is held for the shard would wait for ever."""
    site = Site()
    homes(site, C, 1)
    begin(site, 1)
    wanted(site, 1)
    assert (A, (1,)) in asked_for(site.pass_s(3.0))


def test_a_new_term_ends_a_hand_off_of_an_older_one() -> None:
    """F17, I-111: nobody holds for a move that nobody makes any more."""
    site = Site()
    homes(site, C, 1)
    begin(site, 1)
    (drain,) = orders(site.out, DrainRoute)
    wanted(site, 1)
    site.term = Term(2, A)
    site.hear("a", AskReport(TYPE, site.term))
    assert asked_for(site.out) == [(A, (1,))]
    site.take(RouteDrained(TYPE, drain.number))
    assert site.out == []
    homes(site, C, 1, whole=True)
    assert routes(site.out) == [((1,), C)]


# the end


def test_a_leaver_asks_for_its_shards_to_be_moved() -> None:
    site = Site(leave_timeout_s=5.0)
    site.host(1)
    site.take(STOP)
    assert sent(site.out, WantHomes) == [(A, WantHomes(TYPE, site.term, (), leaving=True))]
    assert orders(site.out, CloseShards) == []
    assert sent(site.pass_s(1.0), WantHomes) != []
    site.hand_off(1)
    site.take(ShardsClosed(TYPE, (1,)))
    assert stopped(site.out) == [(A, (1,))]
    assert orders(site.out, Evacuated) == [Evacuated(TYPE)]
    assert site.machine.is_evacuated
    assert not site.machine.needs_contact


def test_a_leaver_with_nothing_says_so_too() -> None:
    """I-116: it would be given shards, as the one that has fewest."""
    site = Site()
    site.take(STOP)
    assert sent(site.out, WantHomes) == [(A, WantHomes(TYPE, site.term, (), leaving=True))]
    assert orders(site.out, Evacuated) == [Evacuated(TYPE)]
    assert site.pass_s(60.0) == []


def test_a_leaver_takes_nothing_and_says_so() -> None:
    site = Site()
    site.take(STOP)
    site.host(1)
    assert orders(site.out, OpenShards) == []
    assert sent(site.out, ShardsStarted) == []
    refused = ShardsStopped(TYPE, site.term, (1,), refused=True)
    assert sent(site.out, ShardsStopped) == [(A, refused)]


def test_what_was_refused_is_refused_when_it_is_said_again() -> None:
    """I-109: by then it may be another's. A later order is another matter, and so is a new term."""
    site = Site()
    site.take(STOP)
    order = HostShards(TYPE, site.term, (3,), 7)
    site.hear("a", order)
    site.take(RegionRequested(TYPE, site.settings))
    for _ in range(2):
        site.hear("a", order)
        assert orders(site.out, OpenShards) == []
        ((_, again),) = sent(site.out, ShardsStopped)
        assert (again.refused, again.shards, again.number) == (True, (3,), 7)
    site.hear("a", HostShards(TYPE, site.term, (3, 4), 8))
    assert orders(site.out, OpenShards) == [OpenShards(TYPE, (3, 4))]
    site.hear("a", order)
    assert sent(site.out, ShardsStopped) == [], "it has it by now"
    other = Site()
    other.take(STOP)
    other.hear("a", order)
    other.take(RegionRequested(TYPE, other.settings))
    other.hear("a", AskReport(TYPE, Term(2, A)))
    other.hear("a", HostShards(TYPE, Term(2, A), (3,), 7))
    assert orders(other.out, OpenShards) == [OpenShards(TYPE, (3,))]


def test_a_leaver_without_others_stops_at_once() -> None:
    site = Site("b")
    site.host(1)
    site.take(STOP)
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1,), 5.0)]


def test_a_leaver_whose_last_companion_goes_stops_then() -> None:
    site = Site("a b")
    site.host(1)
    site.take(STOP)
    assert orders(site.out, CloseShards) == []
    site.take(view([member("a", status=Status.LEAVING), member("b")], me="b"))
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1,), 5.0)]


def test_a_leaver_gives_up_when_nobody_moves_its_shards() -> None:
    site = Site(leave_timeout_s=2.0)
    site.host(1)
    site.take(STOP)
    assert orders(site.pass_s(1.9), CloseShards) == []
    assert orders(site.pass_s(0.2), CloseShards) == [CloseShards(TYPE, (1,), 2.0)]
    assert site.machine.counters["sharding: stopped without a move"] == 1
    assert orders(site.pass_s(60.0), CloseShards) == []


def test_a_node_that_ends_stops_all_at_once_and_asks_nobody() -> None:
    site = Site()
    site.host(1)
    site.take(EvacuateRequested(TYPE, at_once=True))
    assert orders(site.out, CloseShards) == [CloseShards(TYPE, (1,), 5.0)]
    assert sent(site.out, WantHomes) == []


def test_started_again_it_is_asked_for_its_report_and_takes_part() -> None:
    """The coordinator holds it for a leaver, and the report says that it is none any more."""
    site = Site()
    site.take(STOP)
    site.take(RegionRequested(TYPE, site.settings))
    assert sent(site.out, WantHomes) == [(A, WantHomes(TYPE, NO_TERM))]
    site.hear("a", AskReport(TYPE, site.term))
    ((_, report),) = sent(site.out, Report)
    assert (report.hosts, report.leaving) == (True, False)
    site.host(1)
    assert sent(site.out, ShardsStarted) != []
    assert not site.machine.is_evacuated


def test_started_as_a_proxy_it_still_gives_away_what_it_has() -> None:
    site = Site()
    site.host(1)
    site.take(STOP)
    site.take(RegionRequested(TYPE, replace(site.settings, hosts=False)))
    site.hear("a", AskReport(TYPE, site.term))
    ((_, report),) = sent(site.out, Report)
    assert (report.hosts, report.leaving) == (False, True)


def test_a_proxy_hosts_nothing() -> None:
    site = Site(hosts=False)
    site.host(1)
    assert orders(site.out, OpenShards) == []
    assert not site.machine.needs_contact


# refused


def test_a_refused_region_says_so_once_and_asks_for_nothing() -> None:
    """I-104: a home by its own count would be another shard's."""
    site = Site()
    wanted(site, 1)
    refused = RegionRefused(TYPE, site.term, "it has 8 shards, the cluster has 16")
    site.hear("a", refused)
    assert [fact.explain for fact in published(site.out, RegionNotAdmitted)] == [refused.why]
    assert [refused.why in order.why for order in orders(site.out, FailAsks)] == [True]
    site.hear("a", refused)
    assert site.out == []
    assert "16" in site.machine.explain()
    assert asked_for(wanted(site, 2)) == []
    site.hear("a", AskReport(TYPE, Term(2, A)))
    assert asked_for(site.out) == []
    assert sent(site.pass_s(60.0), WantHomes) == []


def test_a_region_refused_is_taken_by_a_coordinator_that_has_its_count() -> None:
    site = Site()
    site.hear("a", RegionRefused(TYPE, site.term, "why"))
    wanted(site, 1)
    site.take(CoordinatorAt(TYPE, C))
    assert asked_for(site.out) == [(C, (1,))]
    assert orders(site.out, FailAsks) == [FailAsks(TYPE, "")]
