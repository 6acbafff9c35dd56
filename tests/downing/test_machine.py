"""The resolver of one node, rule by rule: when it wins, loses, waits, stops others and ends itself.

Pictures as in `tests.downing.pictures`; the part with `a` (or `me`) is the side of the resolver.
Default settings: a view is decided on after 5 s, a grant is valid for 2.5 s.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from downing.events import (
    ArbiterDenied,
    ArbiterExtended,
    ArbiterGranted,
    ArbiterUnknown,
    AskArbiter,
    ContactChanged,
    ContactWanted,
    DowningDecided,
    DowningDoubted,
    DowningUnsettled,
    MarkDown,
    NoteDoomed,
    NothingRuns,
    ReleaseArbiter,
    WatchArbiter,
)
from downing.messages import (
    ContactAck,
    ContactPing,
    Grant,
    OrderDown,
    PromiseDown,
    ProposeDown,
    SideLost,
    StopOrder,
    Stopped,
)
from gossip.effects import Paused
from gossip.events import Exit
from gossip.membership import Cause
from tests.conftest import HowMany
from tests.downing.cases import node_of
from tests.downing.driven import Driven

LEASE = "lease-majority"


# when a side wins


def test_a_view_is_decided_on_when_it_was_stable_for_long_enough() -> None:
    """I-88: not a moment before; and it names whom and why."""
    side = Driven("a b c d e")
    side.see("a b c | d e")
    side.go(4.99)
    assert side.marked == ""
    side.go(0.02)
    assert side.marked == "d e"
    assert side.of(MarkDown)[0].cause is Cause.DOWNED
    (decided,) = side.of(DowningDecided)
    assert decided.kind == "down-unreachable"
    assert "3 of 5 members reachable" in decided.explain


def test_each_change_begins_the_wait_anew() -> None:
    """I-88: members that cross the threshold one by one are decided on together."""
    side = Driven("a b c d e")
    side.see("a b c d | e")
    side.go(4.0)
    side.see("a b c | d e")
    side.go(4.9)
    assert side.marked == ""
    side.go(0.2)
    assert side.marked == "d e"
    assert len(side.of(MarkDown)) == 1


def test_the_same_split_is_decided_again_after_a_heal() -> None:
    """I-91: nothing is remembered of a split that healed."""
    side = Driven("a b c d e")
    for _ in range(3):
        side.see("a b c | d e")
        side.go(4.5)
        side.see("a b c d e")
        side.go(1.0)
    assert side.marked == ""
    side.see("a b c | d e")
    side.go(5.01)
    assert side.marked == "d e"


def test_nobody_wins_while_one_is_neither_unreachable_nor_heard() -> None:
    """Review F2: reachable only means not yet accused."""
    side = Driven("a b c d e")
    side.silent = {"d"}
    side.see("a b c d | e")
    side.go(15.0)
    assert side.marked == ""
    assert not side.has_ended
    assert "no answer of d" in side.machine.explain(side.now)
    side.silent = set()
    side.go(0.6)
    assert side.marked == "e"


def test_an_answer_to_a_ping_from_before_the_change_makes_nobody_known() -> None:
    """It proves nothing of now."""
    side = Driven("a b c d e", wanted=True)
    side.late = {"d"}
    side.go(0.6)
    side.late, side.silent = set(), {"d"}
    side.see("a b c d | e")
    assert side.kept
    side.deliver()
    side.go(8.0)
    assert side.marked == ""
    assert "no answer of d" in side.machine.explain(side.now)


def test_only_the_leader_of_a_side_decides() -> None:
    """The others promise, and wait."""
    side = Driven("a b c d e", me="b")
    side.see("a b c | d e")
    side.go(10.0)
    assert side.marked == ""
    assert side.sent(ProposeDown) == []
    assert side.of(DowningDecided) == []
    assert "a:25520 decides" in side.machine.explain(side.now)


def test_who_knows_of_no_view_that_all_agreed_on_never_wins() -> None:
    """It has just come up and knows of no electorate: it ends, and does not stand in the way of
    those that know one. What others saw agreed it takes over."""
    side = Driven("a b c d e", agreed=False)
    side.see("a b c | d e", digest=5)
    side.go(4.9)
    assert not side.has_ended
    side.go(0.2)
    assert side.marked == ""
    assert side.ended is not None
    assert side.ended.code == 10
    told = Driven("a b c d e", agreed=False)
    told.see("a b c | d e", digest=5)
    told.go(3.0)
    told.hear("b", ContactPing(1, 5))
    told.go(6.0)
    assert told.marked == "d e"


# the joint count


def test_d6_a_view_that_shrank_is_counted_with_those_it_lost() -> None:
    """D6: 2 of the 4 that are left, the lowest among them, are 2 of the 5 that all agreed on."""
    side = Driven("a b c d e", me="b")
    side.see("b d | c e ax", leader="b")
    side.go(5.1)
    assert side.marked == ""
    assert side.ended is not None
    assert side.ended.code == 10
    assert "too few of the 5 members" in side.ended.reason


def test_d7_an_action_of_the_leader_alone_shrinks_nobody() -> None:
    """D7, lc3: a moved c to exiting and nobody heard of it; 1 of 2 by its view, 1 of 3 in truth."""
    side = Driven("a b c-")
    side.see("a | b c!")
    side.go(5.1)
    assert side.marked == ""
    assert side.ended is not None
    assert "too few of the 3 members" in side.ended.reason


def test_d7_the_other_side_counts_the_leaver_and_wins() -> None:
    """b and c, which is leaving: 2 of 3, in the view and in the base."""
    side = Driven("a b c-", me="b")
    side.see("b c- | a")
    side.go(5.1)
    assert side.marked == ""  # c may have left already, as a sees it: then 1 of 2 without a
    assert side.ended is not None


def test_d8_new_processes_at_the_old_addresses_are_no_majority_of_the_old_ones() -> None:
    """D8: a, woken, has admitted one new peer, and the old ones are gone."""
    side = Driven("a b c", wanted=True)
    side.go(1.0)
    assert side.contact_s > 0
    side.silent = {"b", "c"}
    side.see("a d?")
    side.go(5.0)
    assert side.contact_s <= 0
    side.see("a d")
    side.go(5.0)
    assert side.contact_s <= 0, "a and d are 2 of 2, but 1 of the 3 that all agreed on"


def test_l1_a_base_that_another_one_saw_is_adopted() -> None:
    """L1: agreement that one has heard of holds for all who hold those members."""
    side = Driven("a b c", wanted=True)
    side.see("a b c d e", digest=77)
    side.see("a b | c d e", digest=77)
    side.hear("b", ContactPing(1, 76))  # of other members: no word about ours
    assert "3 members" not in side.machine.explain(side.now)
    adopted = Driven("a b c")
    adopted.see("a b c d e", digest=77)
    adopted.hear("b", ContactPing(1, 77))
    adopted.see("a b | c d e")
    adopted.go(5.1)
    assert adopted.ended is not None
    assert "2 of 5" in adopted.ended.reason


# when a side loses


def test_who_loses_ends_by_its_own_timer() -> None:
    """Exit 10, with the strategy, the counts and the view in the reason."""
    side = Driven("a b c d e", me="b")
    side.see("a b | c d e")
    side.go(4.99)
    assert not side.has_ended
    side.go(0.02)
    assert side.ended is not None
    assert side.ended.code == 10
    for words in ("keep-majority", "2 of 5", "c:25520, d:25520, e:25520"):
        assert words in side.ended.reason


def test_the_unknown_count_as_lost_for_who_asks_whether_it_loses() -> None:
    """Review F2: 3 of 5 by the records, but c answers nothing: 2 of 5 may be all there is."""
    side = Driven("a b c d e")
    side.silent = {"c"}
    side.see("a b c | d e")
    side.go(5.1)
    assert side.ended is not None
    assert side.ended.code == 10
    assert "no answer of c" in side.ended.reason


def test_who_may_lose_waits_anew_when_the_unknown_one_answers() -> None:
    side = Driven("a b c d e")
    side.silent = {"c"}
    side.see("a b c | d e")
    side.go(4.5)
    side.silent = set()
    side.go(1.0)
    assert not side.has_ended
    side.go(5.0)
    assert not side.has_ended
    assert side.marked == "d e"


def test_a_heal_restarts_the_losing() -> None:
    """Also one that nobody but the view has noticed."""
    side = Driven("a b c d e")
    side.see("a b | c d e")
    side.go(4.8)
    side.see("a b c d e")
    side.go(0.1)
    side.see("a b | c d e")
    side.go(4.9)
    assert not side.has_ended
    side.go(0.2)
    assert side.ended is not None


def test_h9_a_joining_one_goes_with_its_side() -> None:
    """H9: it would wait for ever."""
    side = Driven("a b c d?", me="d")
    side.see("d? | a b c")
    side.go(5.1)
    assert side.ended is not None
    assert side.ended.code == 10


# own pauses


def test_a_short_pause_of_our_own_extends_the_wait() -> None:
    """I-87, review F22: what we did not hear while we slept says nothing of others."""
    side = Driven("a b c d e")
    side.see("a b c | d e")
    side.go(3.0)
    side.now += 1.5
    side.handle(Paused(1.5))
    side.go(1.9)
    assert side.marked == ""
    side.go(0.2)
    assert side.marked == "d e"


def test_a_long_pause_restarts_it_for_winners_and_losers() -> None:
    """Review F22."""
    for picture in ("a b c | d e", "a b | c d e"):
        side = Driven("a b c d e")
        side.see(picture)
        side.go(4.0)
        side.now += 6.0
        side.handle(Paused(6.0))
        side.go(4.9)
        assert side.marked == ""
        assert not side.has_ended
        side.go(0.2)
        assert side.marked == "d e" or side.ended is not None


def test_short_pauses_again_and_again_do_not_keep_it_from_deciding() -> None:
    """Review F22: a handler that blocks 0.6 s every 4 s delays, it does not prevent."""
    side = Driven("a b c d e")
    side.see("a b c | d e")
    for _ in range(3):
        side.go(3.4)
        side.now += 0.6
        side.handle(Paused(0.6))
    assert side.marked == "d e"


def test_own_pauses_do_not_count_as_unsettled() -> None:
    side = Driven("a b c d e")
    side.silent = {"d"}
    side.see("a b c d | e")
    for _ in range(4):
        side.go(1.0)
        side.now += 4.5
        side.handle(Paused(4.5))
    side.go(15.0)
    assert side.of(DowningUnsettled) == []
    side.go(2.0)
    assert len(side.of(DowningUnsettled)) == 1


# promise rounds, as the decider


def test_it_waits_until_the_last_grants_are_over() -> None:
    """`quiet_s`: c granted e half a second ago, so two more seconds (and the clocks' margin)."""
    side = Driven("a b c d e")
    side.quiet_s = {"c": 0.5}
    side.see("a b c | d e")
    side.go(5.0 + 2.5 * 1.02 - 0.5 - 0.01)
    assert side.marked == ""
    side.go(0.02)
    assert side.marked == "d e"


def test_it_waits_for_the_promise_of_all_that_it_reaches() -> None:
    """Also of one whose vote is not needed, and it says for whom."""
    side = Driven("a b c d e")
    side.see("a b c d | e")
    side.go(4.9)
    side.silent = {"d"}
    side.go(3.0)
    assert side.marked == ""
    assert "waiting for the promise of d" in side.machine.explain(side.now)
    side.silent = set()
    side.go(0.3)
    assert side.marked == "e"


def test_a_heal_after_a_promise_saves_nobody() -> None:
    """A promise is for ever: who was promised about is told to stop, and gets no grant."""
    side = Driven("a b c d e")
    side.quiet_s = {"c": 0.5}
    side.see("a b c | d e")
    side.go(5.1)
    assert {node.host for node in side.machine.doomed} == {"d", "e"}
    assert side.of(NoteDoomed)[-1].members == {node_of("d"), node_of("e")}
    side.see("a b c d e")
    side.hear("d", ContactPing(5, 0))
    assert side.sent(ContactAck, "d")[0].grant is Grant.PROMISED
    assert side.sent(StopOrder, "d")
    assert side.marked == ""
    side.stopping = {"d", "e"}
    side.go(0.3)
    assert sorted(side.marked.split()) == ["d", "e"]
    assert {each.cause for each in side.of(MarkDown)} == {Cause.LEFT}


def test_one_more_that_falls_silent_while_a_round_runs_does_not_stop_it() -> None:
    """Who was promised about goes when the promises are old enough; the other has its own wait."""
    side = Driven("a b c d e")
    side.quiet_s = {"c": 0.0}
    side.see("a b c d | e")
    side.go(5.5)
    side.see("a b c | d e")
    side.go(2.1)
    assert side.marked == "e"
    side.quiet_s = {}
    side.go(4.8)
    assert side.marked == "e"
    side.go(0.3)
    assert side.marked == "e d"


# promise rounds, as a promiser


def proposed(me: str = "b", by: str = "a", about: str = "e") -> Driven:
    """A member of the winning side that has been asked to promise."""
    side = Driven("a b c d e", me=me)
    side.see("a b c d | e")
    side.go(5.1)
    side.hear(by, ProposeDown(7, tuple(node_of(name) for name in about.split())))
    return side


def test_a_promiser_tells_how_long_it_was_silent_and_refuses_ever_after() -> None:
    side = Driven("a b c d e", me="b")
    side.hear("e", ContactPing(1, 0))
    side.go(1.0)
    side.see("a b c d | e")
    side.hear("a", ProposeDown(7, (node_of("e"),)))
    (promise,) = side.sent(PromiseDown, "a")
    assert promise.round == 7
    assert promise.promises[0][0] == node_of("e")
    assert promise.promises[0][1] == pytest.approx(1.0, abs=0.01)
    side.see("a b c d e")
    for seq in range(2, 5):
        side.go(30.0)
        side.hear("e", ContactPing(seq, 0))
    assert [ack.grant for ack in side.sent(ContactAck, "e")] == [Grant.GIVEN] + [Grant.PROMISED] * 3


def test_a_ping_is_granted_by_what_the_view_says_of_the_asker() -> None:
    """D4: only who counts us as a member gives us contact."""
    side = Driven("a b c d e", me="b")
    side.see("a b c d | e")
    for name in ("c", "e", "z"):
        side.hear(name, ContactPing(1, 0))
    grants = [side.sent(ContactAck, name)[0].grant for name in ("c", "e", "z")]
    assert grants == [Grant.GIVEN, Grant.UNREACHABLE, Grant.GONE]


@pytest.mark.parametrize("by", ["c", "d"])
def test_nobody_promises_to_one_that_does_not_lead(by: str) -> None:
    side = proposed(by=by)
    assert side.sent(PromiseDown) == []
    assert side.machine.ignored["proposal of one that does not lead"] == 1


def test_the_next_one_leads_when_those_before_it_are_the_subjects() -> None:
    side = proposed(me="c", by="b", about="a e")
    assert len(side.sent(PromiseDown, "b")) == 1


def test_one_that_was_promised_about_decides_nothing() -> None:
    """A doomed decider: its proposals, orders and verdicts are no more heeded."""
    side = proposed(me="c", by="b", about="a e")
    side.see("a b c d | e")
    side.hear("a", ProposeDown(1, (node_of("d"),)))
    assert side.sent(PromiseDown, "a") == []
    side.hear("a", StopOrder(False, "why"))
    assert not side.has_ended


def test_the_next_decider_completes_what_one_before_began() -> None:
    """a died after it had our promise about e: no new wait for e."""
    side = proposed()
    side.forget()
    side.see("b c d | a e")
    side.go(0.1)
    assert node_of("e") in side.sent(ProposeDown, "c")[0].subjects
    assert side.marked == "e"
    side.go(5.0)
    assert side.marked == "e a"


def test_a_promise_that_is_not_carried_out_is_told_to_the_leader() -> None:
    side = proposed(me="c")
    side.forget()
    side.go(3.5)
    told = side.sent(PromiseDown, "a")
    assert len(told) >= 3
    assert all(each.round == 0 for each in told)


def test_a_reminder_of_one_alone_dooms_nobody_that_is_in_good_standing() -> None:
    """One liar, or one that is wrong, downs nobody; two do."""
    side = Driven("a b c d e")
    reminder = PromiseDown(0, ((node_of("e"), 3.0),))
    side.hear("b", reminder)
    side.go(1.0)
    assert side.machine.doomed == frozenset()
    side.hear("b", reminder)
    assert side.machine.doomed == frozenset()
    side.quiet_s = {"d": 0.1}
    side.hear("c", reminder)
    assert side.machine.doomed == {node_of("e")}
    assert side.sent(StopOrder, "e")
    side.go(3.0)
    assert side.marked == "e"


@pytest.mark.parametrize("doubt", ["unreachable", "suspect"])
def test_one_reminder_is_enough_where_there_is_doubt(doubt: str) -> None:
    side = Driven("a b c d e")
    side.quiet_s = {"d": 0.1}
    if doubt == "unreachable":
        side.see("a b c d | e")
    else:
        side.see("a b c d e", suspects="e")
    side.hear("b", PromiseDown(0, ((node_of("e"), 3.0),)))
    assert side.machine.doomed == {node_of("e")}


def test_what_one_says_that_is_down_or_no_member_is_ignored() -> None:
    side = Driven("a b c d e")
    side.hear("z", PromiseDown(0, ((node_of("e"), 3.0),)))
    side.hear("z", OrderDown(node_of("e")))
    side.hear("z", ProposeDown(1, (node_of("e"),)))
    side.hear("z", StopOrder(True, "x"))
    side.hear("z", SideLost("x"))
    side.hear("z", Stopped())
    side.hear("z", ContactAck(1, Grant.PROMISED, 0))
    assert not side.has_ended
    assert side.machine.doomed == frozenset()
    assert sum(side.machine.ignored.values()) == 7


# being told


def test_who_is_told_to_stop_by_its_leader_ends_and_says_when_nothing_runs() -> None:
    side = Driven("a b c d e", me="e")
    side.hear("a", StopOrder(True, "an operator ordered it"))
    assert side.ended is not None
    assert side.ended.code == 11
    assert side.sent(Stopped) == []
    side.handle(NothingRuns())
    assert side.sent(Stopped, "a")
    side.hear("a", StopOrder(True, "again"))
    assert len(side.sent(Stopped, "a")) == 2
    assert len({exit_.reason for _, exit_ in side.effects if exit_ is side.ended}) == 1


def test_a_stop_order_of_one_that_does_not_lead_is_not_enough() -> None:
    """It may lead its side by now; then two others have promised and say so."""
    side = Driven("a b c d e", me="e", wanted=True)
    side.grants = {"c": Grant.PROMISED}
    side.hear("b", StopOrder(False, "your side lost"))
    side.go(1.0)
    assert not side.has_ended
    side.grants = {"c": Grant.PROMISED, "d": Grant.PROMISED}
    side.hear("b", StopOrder(False, "your side lost"))
    side.go(1.0)
    assert side.ended is not None
    assert side.ended.code == 10


def test_two_refusals_alone_end_nobody_that_can_live_without_them() -> None:
    side = Driven("a b c d e", me="e", wanted=True)
    side.grants = {"c": Grant.PROMISED, "d": Grant.PROMISED}
    side.go(10.0)
    assert not side.has_ended
    side.grants |= {"b": Grant.PROMISED}
    side.go(1.0)
    assert side.ended is not None
    assert side.ended.code == 10


# orders of an operator


def test_at_level_none_an_unreachable_member_goes_by_order_alone() -> None:
    side = Driven("a b c", strategy="none")
    side.see("a b | c")
    side.go(60.0)
    assert side.marked == ""
    assert not side.has_ended
    side.order("c")
    assert side.marked == "c"
    assert side.of(MarkDown)[0].cause is Cause.ORDERED


def test_at_level_none_a_reachable_member_is_told_and_waited_for() -> None:
    side = Driven("a b c", strategy="none")
    side.order("c")
    side.go(3.0)
    assert side.marked == ""
    assert all(order.by_operator for order in side.sent(StopOrder, "c"))
    side.stopping = {"c"}
    side.go(0.3)
    assert side.marked == "c"
    assert side.of(MarkDown)[0].cause is Cause.LEFT


def test_at_level_none_one_that_does_not_stop_is_downed_after_its_time() -> None:
    side = Driven("a b c", strategy="none")
    side.order("c")
    side.go(19.9)
    assert side.marked == ""
    side.go(0.2)
    assert side.marked == "c"
    assert side.of(MarkDown)[0].cause is Cause.ORDERED


def test_with_a_strategy_an_order_takes_promises_and_their_quiet_time() -> None:
    """H6: the host that hears nothing has had grants until now."""
    side = Driven("a b c d e")
    side.quiet_s = {"b": 0.1, "c": 0.1, "d": 0.1}
    side.order("e")
    side.go(2.4)
    assert side.marked == ""
    side.go(0.1)
    assert side.marked == "e"
    assert side.of(MarkDown)[0].cause is Cause.ORDERED


def test_with_a_strategy_one_that_stops_is_not_waited_for() -> None:
    side = Driven("a b c d e")
    side.quiet_s = dict.fromkeys("bcd", 0.1)
    side.stopping = {"e"}
    side.order("e")
    side.go(0.1)
    assert side.marked == "e"
    assert side.of(MarkDown)[0].cause is Cause.LEFT


def test_who_does_not_lead_passes_the_order_on_until_it_is_done() -> None:
    side = Driven("a b c d e", me="b")
    side.order("e")
    side.go(1.0)
    assert len(side.sent(OrderDown, "a")) >= 4
    side.forget()
    side.see("b c d e | a")
    side.go(0.6)
    assert side.sent(OrderDown) == []
    assert side.sent(ProposeDown), "it leads now, and carries it out itself"


def test_an_order_that_cannot_be_carried_out_is_dropped_after_a_minute() -> None:
    side = Driven("a b c d e")
    side.silent = {"b"}
    side.order("e")
    side.go(59.0)
    assert "e:25520" in side.machine.explain(side.now)
    assert side.marked == ""
    side.go(2.0)
    side.forget()
    side.silent = {"b"}
    side.go(5.0)
    assert side.marked == ""


def test_the_leader_itself_ends_by_order() -> None:
    """Its own operator's, or one that comes from another member."""
    own = Driven("a b c")
    own.order("a")
    sent = Driven("a b c")
    sent.hear("b", OrderDown(node_of("a")))
    for side in (own, sent):
        assert side.ended is not None
        assert side.ended.code == 11


# contact, as far as the machine tells it


def test_contact_is_told_when_it_comes_and_goes() -> None:
    side = Driven("a b c d e", wanted=True)
    side.go(1.0)
    assert [fact.held for fact in side.of(ContactChanged)] == [True]
    side.silent = set("bcde")
    side.go(3.0)
    assert [fact.held for fact in side.of(ContactChanged)] == [True, False]
    assert side.machine.state(side.now)["contact"]["held"] is False
    assert "no word of b:25520" in side.of(ContactChanged)[-1].explain


def test_a_leaver_has_no_voice_of_its_own() -> None:
    """By its own view it may be gone already: it needs a majority of others."""
    leaver = Driven("a b c-", me="c", wanted=True)
    leaver.silent = {"a"}
    leaver.go(3.0)
    assert leaver.contact_s <= 0
    leaver.silent = set()
    leaver.go(1.0)
    assert leaver.contact_s > 0


def test_at_level_none_everybody_acts() -> None:
    side = Driven("a b c", strategy="none", wanted=True)
    side.see("a | b c")
    side.go(60.0)
    assert side.machine.contact_until == float("inf")
    assert side.sent(ContactPing) == []
    assert not side.has_ended


def test_h8_below_its_quorum_nobody_goes_down_but_nothing_acts() -> None:
    """H8, I-90: a cluster that boots is not killed."""
    side = Driven("a b", strategy="static-quorum:quorum_size=3", wanted=True)
    side.go(60.0)
    assert not side.has_ended
    assert side.contact_s <= 0
    assert "static-quorum" in side.of(DowningDoubted)[0].warnings[0]


def test_h8_without_a_referee_the_majority_counts() -> None:
    """H8: the referee has left for good."""
    side = Driven("b c d", me="b", strategy="keep-referee:referee=a:25520", wanted=True)
    side.go(1.0)
    assert side.contact_s > 0
    side.see("b c | d")
    side.go(5.1)
    assert side.marked == "d"


# the alarm


def test_a_view_that_never_settles_is_told_once() -> None:
    """I-89: an alarm; nobody is downed for it."""
    side = Driven("a b c d e")
    for step in range(40):
        side.see("a b c d | e" if step % 2 else "a b c | d e")
        side.go(1.0)
    assert len(side.of(DowningUnsettled)) == 1
    assert side.when(DowningUnsettled)[0] == pytest.approx(20.0, abs=0.1)
    assert not side.has_ended
    assert side.marked == ""


def test_an_unsettled_view_downs_everything_where_that_was_asked_for() -> None:
    side = Driven("a b c d e", down_all_when_unstable_s=7.0)
    for step in range(12):
        side.see("a b c d | e" if step % 2 else "a b c | d e")
        side.go(0.99)
    assert not side.has_ended
    side.go(1.0)
    assert side.ended is not None
    assert side.ended.code == 10
    assert "did not settle" in side.ended.reason
    assert side.of(DowningDecided)[-1].kind == "down-all"


def test_a_link_that_comes_and_goes_is_a_view_that_never_settles() -> None:
    """A heal that does not last begins nothing anew; one that does, does."""
    side = Driven("a b")
    for _ in range(9):
        side.see("a | b")
        side.go(1.0)
        side.see("a b")
        side.go(1.0)
    assert not side.of(DowningUnsettled)
    side.see("a | b")
    side.go(2.5)
    assert len(side.of(DowningUnsettled)) == 1
    side.see("a b")
    side.go(6.0)
    side.see("a | b")
    side.go(4.0)
    assert len(side.of(DowningUnsettled)) == 1


def test_h9_each_member_marked_down_begins_the_unsettled_time_anew() -> None:
    """H9: three crashes 5 s apart are decided one by one; that is progress."""
    side = Driven("a b c d e", down_all_when_unstable_s=3.0)
    side.see("a b c d | e")
    side.go(5.1)
    assert side.marked == "e"
    side.see("a b c d | e")
    side.go(1.0)
    side.see("a b c | d e")
    side.go(5.1)
    assert side.marked == "e d"
    assert not side.has_ended


# the arbiter


def leased(picture: str = "a b | c d e", me: str = "a") -> Driven:
    """A side under lease-majority whose leader has asked."""
    side = Driven("a b c d e", me=me, strategy=LEASE, wanted=True)
    side.see(picture)
    side.go(5.01)
    return side


def test_i96_one_contender_a_side_and_the_minority_asks_later() -> None:
    """I-96."""
    assert leased("a b c | d e").of(AskArbiter)
    assert leased("a b c | d e", me="b").of(AskArbiter) == []
    minority = leased()
    assert minority.of(AskArbiter) == []
    minority.go(2.0)
    assert len(minority.of(AskArbiter)) == 1


def test_granted_a_minority_lives_and_acts_while_the_lease_is_held() -> None:
    side = leased()
    side.go(2.0)
    side.handle(ArbiterGranted(side.of(AskArbiter)[-1].attempt, side.now + 4.0))
    side.go(0.1)
    assert side.marked == "c d e"
    assert not side.has_ended
    assert 3.5 < side.contact_s <= 4.0
    side.go(1.0)
    assert side.contact_s < 3.0, "the lease alone says that it may act: b is 1 of 4 others"


def test_denied_the_whole_side_ends_and_is_told() -> None:
    """I-96: the followers adopt the verdict of their contender."""
    side = leased()
    side.go(2.0)
    side.handle(ArbiterDenied(side.of(AskArbiter)[-1].attempt, "c:25520"))
    assert side.ended is not None
    assert side.ended.code == 10
    assert "c:25520" in side.ended.reason
    assert side.sent(SideLost, "b")
    assert side.sent(SideLost, "c") == []
    follower = leased(me="b")
    follower.hear("a", SideLost("the lease was denied"))
    assert follower.ended is not None
    assert follower.ended.code == 10


def test_unknown_nobody_acts_nobody_ends_and_it_is_asked_again() -> None:
    """Review F19."""
    side = leased("a b c | d e")
    for round_ in range(1, 40):
        (ask,) = side.of(AskArbiter)[round_ - 1 :]
        side.handle(ArbiterUnknown(ask.attempt, "timed out"))
        side.go(1.01)
    assert not side.has_ended
    assert side.marked == ""
    assert side.contact_s <= 0
    assert "does not answer (timed out)" in side.machine.explain(side.now)


def test_f19_unknown_does_not_escalate() -> None:
    """Review F19: escalation does not count while the arbiter does not answer."""
    side = Driven("a b c d e", strategy=LEASE, down_all_when_unstable_s=3.0)
    side.see("a b c | d e")
    side.go(5.01)
    for _ in range(20):
        side.handle(ArbiterUnknown(side.of(AskArbiter)[-1].attempt, "timed out"))
        side.go(1.01)
    assert not side.has_ended


def test_a_contender_that_leads_no_more_rests() -> None:
    """It asks no more, and has nothing to do until the next change."""
    side = leased("b c d | a e", me="b")
    side.handle(ArbiterUnknown(side.of(AskArbiter)[-1].attempt, "timed out"))
    side.see("a b c d | e")
    side.go(10.0)
    assert len(side.of(AskArbiter)) == 1


def test_an_answer_that_comes_late_is_for_nothing() -> None:
    side = leased("a b c | d e")
    attempt = side.of(AskArbiter)[-1].attempt
    side.see("a b c d e")
    side.go(0.1)
    assert side.of(ReleaseArbiter)
    side.handle(ArbiterGranted(attempt, side.now + 10.0))
    side.see("a b c | d e")
    side.go(4.9)
    assert side.marked == ""
    assert side.machine.ignored["late answer of the arbiter"] == 1


def test_i97_the_lease_is_given_back_a_while_after_all_is_well() -> None:
    """I-97."""
    side = leased("a b c | d e")
    side.handle(ArbiterGranted(side.of(AskArbiter)[-1].attempt, side.now + 1e6))
    side.go(0.1)
    assert side.marked == "d e"
    side.see("a b c", agreed=True)
    side.go(39.0)
    assert side.of(ReleaseArbiter) == []
    side.go(2.0)
    assert len(side.of(ReleaseArbiter)) == 1
    assert side.contact_s > 0


def test_i97_a_hold_that_is_lost_is_no_authority() -> None:
    """I-97: it is validated while it is used."""
    side = leased("a b c | d e")
    side.quiet_s = {"b": 0.0}
    side.handle(ArbiterGranted(side.of(AskArbiter)[-1].attempt, side.now + 10.0))
    side.go(0.5)
    assert side.contact_s > 5
    side.handle(ArbiterExtended(side.now - 1.0))
    assert side.contact_s <= 0
    side.go(5.0)
    assert side.marked == ""


def test_it_is_watched_while_somebody_is_unreachable() -> None:
    side = Driven("a b c d e", strategy=LEASE)
    side.see("a b c d | e")
    side.see("a b c | d e")
    side.see("a b c d e")
    assert [order.wanted for order in side.of(WatchArbiter)] == [True, False]


# the door

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("see"), st.sampled_from([
            "a b c d e", "a b c d | e", "a b c | d e", "a b | c d e", "a | b c d e",
            "a b c d- | e", "a b c! d | e", "a b c d e f?", "a b c", "a c d e | b",
        ])),
        st.tuples(st.just("go"), st.sampled_from([0.01, 0.3, 1.0, 3.0, 6.0])),
        st.tuples(st.just("pause"), st.sampled_from([0.5, 3.0, 7.0])),
        st.tuples(st.just("silent"), st.sampled_from(["", "b", "c", "b c", "b c d e"])),
        st.tuples(st.just("refuse"), st.sampled_from(["", "b", "b c"])),
        st.tuples(st.just("order"), st.sampled_from("abe")),
        st.tuples(st.just("remind"), st.sampled_from("be")),
        st.tuples(st.just("propose"), st.sampled_from("be")),
        st.tuples(st.just("stop"), st.sampled_from("abz")),
        st.tuples(st.just("want"), st.booleans()),
        st.tuples(st.just("arbiter"), st.sampled_from(["granted", "denied", "unknown", "over"])),
    ),
    max_size=14,
)  # fmt: skip


def play(steps: list[tuple[str, object]], me: str, strategy: str) -> Driven:
    """These events, one after another."""
    side = Driven("a b c d e", me=me, strategy=strategy)
    for kind, what in steps:
        match kind, what:
            case "see", str():
                side.see(what)
            case "go", float():
                side.go(what)
            case "pause", float():
                side.now += what
                side.handle(Paused(what))
            case "silent", str():
                side.silent = set(what.split())
            case "refuse", str():
                side.grants = dict.fromkeys(what.split(), Grant.PROMISED)
            case "order", str():
                side.order(what)
            case "remind", str():
                for name in "bcd":
                    side.hear(name, PromiseDown(0, ((node_of(what), 1.0),)))
            case "propose", str():
                side.hear("a", ProposeDown(3, (node_of(what),)))
            case "stop", str():
                side.hear(what, StopOrder(False, "why"))
            case "want", bool():
                side.handle(ContactWanted(what))
            case "arbiter", str() if side.of(AskArbiter):
                attempt = side.of(AskArbiter)[-1].attempt
                side.handle({
                    "granted": ArbiterGranted(attempt, side.now + 8.0),
                    "denied": ArbiterDenied(attempt, "x"),
                    "unknown": ArbiterUnknown(attempt, "no answer"),
                    "over": ArbiterExtended(side.now - 1.0),
                }[what])  # fmt: skip
        # A deadline that stays in the past would spin for ever: `go` would have told.
        side.go(0.0)
        assert side.machine.deadline > side.now
        side.machine.state(side.now)
    return side


def test_whatever_happens_it_comes_to_rest_and_ends_only_once(how_many: HowMany) -> None:
    """A tick at the deadline always makes progress, and equal events give equal effects."""

    @hypothesis_settings(max_examples=how_many(short=60, long=3000))
    @given(STEPS, st.sampled_from("ac"), st.sampled_from(["keep-majority", LEASE, "none"]))
    def check(steps: list[tuple[str, object]], me: str, strategy: str) -> None:
        first, again = play(steps, me, strategy), play(steps, me, strategy)
        assert first.effects == again.effects
        assert len({each.reason for each in first.of(Exit)}) <= 1
        if strategy == "none":
            assert first.sent(ContactPing) == []

    check()


def test_a_tick_before_anything_is_known_does_nothing() -> None:
    side = Driven("a b c")
    side.forget()
    assert side.machine.tick(side.now) == []
