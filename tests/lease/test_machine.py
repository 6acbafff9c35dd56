"""The lease machine, a transition at a time: facts in, orders and facts out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lease.effects import ReadStore, WatchRecord, WriteStore
from lease.events import (
    AcquireWanted,
    LeaseAtRisk,
    LeaseAwaited,
    LeaseDenied,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    LeaseUnknown,
    RecordChanged,
    RecordRead,
    RecordWritten,
    StoreAnswers,
    StoreFailed,
    WatchWanted,
)
from lease.machine import ANSWERS_IN_A_ROW, PENDING_MAX, RETRY_MAX_S, LeaseMachine, State
from lease.record import MAX_TTL_S, LeaseRecord
from tests.lease.pieces import DRAIN_S, NAME, RENEWAL_S, TTL_S, VALID_S, Desk, record, settings

# -- idle → acquiring


def test_it_begins_idle_and_asks_for_nothing() -> None:
    desk = Desk()
    assert desk.machine.deadline == math.inf
    assert desk.tick(1e9) == []
    assert desk.order is None


def test_wanted_it_reads_before_it_writes() -> None:
    desk = Desk()
    assert desk.want(1.0) == []
    assert isinstance(desk.order, ReadStore)
    assert desk.machine.state is State.ACQUIRING


def test_what_nobody_has_is_written_where_nothing_is() -> None:
    desk = Desk()
    desk.want(1.0)
    desk.read(None, 1.1)
    assert desk.write().if_version is None
    assert desk.write().record.token is None
    assert desk.write().record.holder == "me#n1"


def test_what_was_released_is_written_on_its_version() -> None:
    desk = Desk()
    desk.want(1.0)
    desk.read(record("4", holder=""), 1.1)
    assert desk.write().if_version == "4"


# -- acquiring → held


def test_it_counts_from_the_sending_of_the_write() -> None:
    """I-8: a late answer is worth less."""
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 1.0)
    assert desk.written("7", 4.0) == [LeaseGranted(NAME, 7, 1.0 + VALID_S)]
    assert desk.machine.held(1.0 + VALID_S - 1e-6)
    assert not desk.machine.held(1.0 + VALID_S)


def test_an_answer_that_comes_too_late_is_worth_nothing() -> None:
    """I-8, I-19: the write landed, its time is over; another one asks for another token."""
    desk = Desk(ttl_s=60.0)
    desk.want(0.0)
    desk.read(None, 0.0)
    late = desk.write()
    desk.tick(5.0)
    desk.tick(6.0)
    assert desk.read(desk.stored("7", late), 51.0) == []
    assert desk.machine.state is State.ACQUIRING
    assert desk.write().record.token is None
    assert desk.write().if_version == "7"


def test_a_lost_answer_is_read_back() -> None:
    """The write is recognised by its own id and counts from when it was sent."""
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 1.0)
    first = desk.write()
    assert desk.failed(1.5) == [LeaseUnknown(NAME, "down")]
    desk.tick(2.5)
    assert desk.read(desk.stored("7", first), 3.0) == [LeaseGranted(NAME, 7, 1.0 + VALID_S)]


def test_retries_keep_the_base_of_a_write_that_may_still_land() -> None:
    """Only one of the two can land, and that one is recognised whichever it is."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4", holder=""), 1.0)
    first = desk.write()
    desk.failed(1.5)
    desk.tick(2.5)
    desk.read(record("4", holder=""), 3.0)
    second = desk.write()
    assert first.if_version == second.if_version == "4"
    assert first.record.write_id != second.record.write_id
    assert desk.refused(desk.stored("7", first), 3.5) == [LeaseGranted(NAME, 7, 1.0 + VALID_S)]


def test_no_answer_in_time_is_unknown() -> None:
    desk = Desk()
    desk.want(0.0)
    (unknown,) = desk.tick(desk.machine.deadline)
    assert isinstance(unknown, LeaseUnknown)
    assert "did not answer" in unknown.why
    desk.tick(desk.machine.deadline)
    assert isinstance(desk.order, ReadStore)
    assert desk.order.attempt == 2


def test_an_answer_to_a_request_that_was_given_up_changes_nothing() -> None:
    """I-5: told apart by its attempt."""
    desk = Desk()
    desk.want(0.0)
    late = desk.order
    assert late is not None
    desk.tick(5.0)
    desk.tick(6.0)
    assert desk.tell(RecordRead(NAME, late.attempt, None), 6.1) == []
    assert isinstance(desk.order, ReadStore)
    assert desk.machine.counts["late-answers"] == 1


# -- acquiring, and somebody else has it


def test_a_record_that_was_merely_found_is_awaited_not_denied() -> None:
    desk = Desk()
    desk.want(0.0)
    assert desk.read(record("4"), 1.0) == [LeaseAwaited(NAME, "other", TTL_S)]
    assert desk.watched == "4"


def test_a_record_that_changed_under_our_eyes_is_denied() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4"), 1.0)
    desk.tell(RecordChanged(NAME, "4"), 2.0)
    assert desk.read(record("5"), 2.0) == [LeaseDenied(NAME, "other", TTL_S)]
    assert desk.watched == "5"


def test_a_change_proves_life_for_a_ttl_from_the_look_before_it() -> None:
    """Seen at 0 and changed by 20: it may have been written at 0, its holder may be gone."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4", ttl_s=30.0), 0.0)
    desk.tell(RecordChanged(NAME, "4"), 20.0)
    assert desk.read(record("5"), 20.0) == [LeaseAwaited(NAME, "other", TTL_S)]


def test_a_look_proves_nothing_of_the_time_after_it_was_sent() -> None:
    """Sent at 0, received at 4: the change may be of any instant from 0 on."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4", ttl_s=30.0), 4.0)
    desk.tell(RecordChanged(NAME, "4"), 16.0)
    assert desk.read(record("5"), 16.0) == [LeaseAwaited(NAME, "other", TTL_S)]


def test_what_the_clock_of_the_store_says_is_certain() -> None:
    desk = Desk()
    desk.want(0.0)
    assert desk.read(record("4"), 1.0, remaining_s=3.0) == [LeaseDenied(NAME, "other", 3.0)]
    assert desk.machine.deadline == 4.0
    desk.tick(4.0)
    assert desk.write().if_version == "4"


def test_the_store_cannot_prolong_a_record_beyond_its_ttl() -> None:
    """I-12: a far-future stamp is not believed."""
    desk = Desk()
    desk.want(0.0)
    assert desk.read(record("4"), 1.0, remaining_s=1e9) == [LeaseDenied(NAME, "other", TTL_S)]


def test_lost_races_are_retried_and_then_denied() -> None:
    """L2: another contender is quicker each time, and gives it back at once."""
    desk = Desk(acquire_retries=2)
    desk.want(0.0)
    desk.read(None, 0.0)
    assert desk.refused(record("1", holder=""), 0.1) == []
    assert desk.refused(record("2", holder=""), 0.2) == []
    assert desk.write().if_version == "2"
    assert desk.refused(record("3", holder=""), 0.3) == [
        LeaseDenied(NAME, "another contender", 5.0)
    ]


def test_the_winner_of_a_race_is_known_to_live() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 0.0)
    assert desk.refused(record("1"), 0.1) == [LeaseDenied(NAME, "other", TTL_S)]


def test_it_is_taken_when_it_was_watched_unchanged_for_its_ttl() -> None:
    """I-23: from when we received it, on our own clock."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4"), 1.0)
    for due in (6.0, 11.0):
        assert desk.machine.deadline == due
        desk.tick(due)
        desk.read(record("4"), due)
    assert desk.machine.deadline == 1.0 + TTL_S
    desk.tick(1.0 + TTL_S)
    assert isinstance(desk.order, WriteStore)
    assert desk.write().if_version == "4"


def test_the_ttl_that_counts_is_that_of_the_record() -> None:
    """I-14: a challenger with a smaller ttl does not steal from a holder with a larger one."""
    desk = Desk(ttl_s=3.0)
    desk.want(0.0)
    assert desk.read(record("4", ttl_s=120.0), 1.0) == [LeaseAwaited(NAME, "other", 120.0)]


@pytest.mark.parametrize("ttl_s", [math.nan, math.inf, 0.0, -1.0, 68 * 365 * 86400.0])
def test_a_duration_that_is_none_counts_as_the_longest(ttl_s: float) -> None:
    """I-12, I-13: garbage neither frees it nor pins it for ever."""
    desk = Desk()
    desk.want(0.0)
    assert desk.read(record("4", ttl_s=ttl_s), 0.0) == [LeaseAwaited(NAME, "other", MAX_TTL_S)]


def test_the_same_owner_in_another_process_is_another_holder() -> None:
    """I-20."""
    desk = Desk()
    desk.want(0.0)
    assert desk.read(record("4", holder="me#n0"), 0.0) == [LeaseAwaited(NAME, "me", TTL_S)]


def test_a_watch_that_returns_too_early_makes_no_hot_loop() -> None:
    desk = Desk()
    desk.want(0.0)
    reads, now = 0, 0.0
    while now < 1.0 and reads < 1000:
        desk.read(record("4"), now)
        reads += 1
        desk.order = None
        desk.tell(RecordChanged(NAME, "4"), now)
        if desk.order is None:
            now = desk.machine.deadline
            desk.tick(now)
    assert 2 <= reads <= 51


def test_a_look_that_is_under_way_is_not_watched_beside() -> None:
    """The version that changed would be told as changed again and again."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4"), 0.0)
    desk.tell(RecordChanged(NAME, "4"), 1.0)
    assert [type(order) for order in desk.out] == [ReadStore]
    desk.read(record("4"), 1.1)
    assert desk.out[-1] == WatchRecord(NAME, "4")


def test_a_change_of_what_is_not_watched_any_more_is_nothing() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(record("5"), 0.0)
    desk.tell(RecordChanged(NAME, "4"), 1.0)
    assert desk.out == []


# -- held


def test_it_is_renewed_after_a_third_of_the_ttl() -> None:
    """I-10: the next one is due after the one before has ended."""
    desk = Desk().hold()
    assert desk.machine.deadline == RENEWAL_S
    desk.tick(RENEWAL_S)
    assert desk.write().record.token == 7
    assert desk.write().if_version == "7"
    assert desk.written("8", 6.0) == [LeaseRenewed(NAME, 7, RENEWAL_S + VALID_S)]
    assert desk.machine.deadline == 2 * RENEWAL_S


def test_failed_renewals_are_repeated_until_the_deadline() -> None:
    """I-11: one error, or twenty, is no loss."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    tries, now, facts = 0, RENEWAL_S, list[object]()
    while desk.machine.state is State.HELD:
        if desk.is_asking:
            tries += 1
            facts += desk.failed(now)
        now = desk.machine.deadline
        facts += desk.tick(now)
    assert facts == [
        LeaseAtRisk(NAME, DRAIN_S, "down"),
        LeaseLost(NAME, "no renewal was confirmed for 12.5 s: down"),
    ]
    assert now == VALID_S
    assert tries > 10


def test_an_attempt_takes_at_most_a_quarter_of_what_is_left() -> None:
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    assert desk.write().timeout_s == (VALID_S - RENEWAL_S) / 4


def test_a_renewal_after_a_lost_one_is_its_read_back() -> None:
    """The one that landed is credited from its own sending, and renewed when that says so."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    lost = desk.write()
    desk.tick(desk.machine.deadline)
    again_at = desk.machine.deadline
    desk.tick(again_at)
    assert desk.write().if_version == lost.if_version
    facts = desk.refused(desk.stored("8", lost), again_at)
    assert facts == [LeaseRenewed(NAME, 7, RENEWAL_S + VALID_S)]


def test_a_write_of_ours_of_unknown_age_is_worth_nothing() -> None:
    """Ours by its holder alone: the deadline stays, and a renewal on it follows."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    unknown = record("8", holder="me#n1", token=7)
    assert desk.refused(unknown, 6.0) == []
    assert desk.machine.valid_until == VALID_S
    desk.tick(desk.machine.deadline)
    assert desk.write().if_version == "8"


@pytest.mark.parametrize(
    ("current", "why"),
    [
        (record("9"), "other has taken it"),
        (record("9", holder="", token=7), "somebody else released it"),
        (record("9", holder=""), "somebody else has taken it, and released it since"),
        (None, "its record was deleted"),
        (record("9", holder="me#n1", token=9), "its record has token 9, ours is 7"),
    ],
)
def test_proof_that_it_is_not_ours_ends_it_at_once(current: LeaseRecord | None, why: str) -> None:
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    assert desk.refused(current, 5.5) == [LeaseLost(NAME, why)]
    assert not desk.machine.held(5.5)
    assert desk.machine.state is State.IDLE


def test_a_process_that_slept_has_lost_it_before_it_looks_at_anything() -> None:
    """I-8: whatever is told first after the pause, the deadline comes before it."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    assert desk.written("8", 40.0) == [
        LeaseLost(
            NAME,
            "no renewal was confirmed for 40.0 s: this process stood still",
            late_s=40.0 - VALID_S,
        )
    ]
    assert desk.machine.deadline == math.inf


# -- at risk


def until_risk(desk: Desk) -> list[object]:
    """Fail each renewal until it is at risk; returns what was told."""
    facts = list[object]()
    now = desk.machine.deadline
    while not desk.machine.is_at_risk:
        facts += desk.tick(now)
        if desk.is_asking:
            facts += desk.failed(now)
        now = desk.machine.deadline
    return facts


def test_without_a_renewal_it_is_at_risk_before_it_ends() -> None:
    desk = Desk().hold()
    assert until_risk(desk) == [LeaseAtRisk(NAME, DRAIN_S, "down")]
    assert desk.machine.held(VALID_S - DRAIN_S), "under authority all the same"
    assert desk.machine.counts["at risk"] == 1


def test_a_renewal_ends_the_risk() -> None:
    desk = Desk().hold()
    until_risk(desk)
    now = desk.machine.deadline
    assert desk.tick(now) == []
    assert desk.written("8", now) == [LeaseRenewed(NAME, 7, now + VALID_S)]
    assert not desk.machine.is_at_risk
    assert desk.machine.deadline == now + RENEWAL_S


def test_a_renewal_that_is_worth_too_little_leaves_it_at_risk() -> None:
    """It counts from when it was sent, and that is long ago."""
    desk = Desk(ttl_s=60.0).hold()
    desk.tick(20.0)
    late = desk.write()
    desk.tick(desk.machine.deadline)
    while not desk.machine.is_at_risk:
        desk.tick(desk.machine.deadline)
    assert desk.machine.held(41.0)
    facts = desk.refused(desk.stored("8", late), 41.0)
    assert facts == [LeaseRenewed(NAME, 7, 70.0)]
    desk.tick(60.0)
    assert desk.machine.is_at_risk, "and it is told again when it comes to that"
    assert desk.machine.counts["at risk"] == 2


def test_a_grant_that_is_old_is_at_risk_from_the_start() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 0.0)
    late = desk.write()
    desk.tick(5.0)
    desk.tick(6.0)
    facts = desk.read(desk.stored("7", late), 10.5)
    assert facts == [
        LeaseGranted(NAME, 7, VALID_S),
        LeaseAtRisk(NAME, 2.0, "no renewal was confirmed in time"),
    ]


def test_what_is_lost_or_given_up_is_at_risk_no_more() -> None:
    for is_lost in (True, False):
        desk = Desk().hold()
        until_risk(desk)
        while not desk.is_asking:
            desk.tick(desk.machine.deadline)
        if is_lost:
            desk.refused(None, 11.0)
        else:
            desk.unwant(11.0)
        assert not desk.machine.is_at_risk


# -- whether the store answers


def test_it_answers_from_its_first_answer_on() -> None:
    desk = Desk()
    desk.want(1.0)
    assert desk.health == []
    desk.read(None, 1.5)
    assert desk.health == [StoreAnswers(NAME, True, 1.0)]
    desk.written("7", 2.0)
    assert desk.health[1:] == [], "it is told when it changes"


def test_one_request_without_an_answer_and_it_does_not() -> None:
    """`heard_at` is when that was asked which it answered last."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    desk.tick(desk.machine.deadline)
    told = desk.health[-1]
    assert (told.answers, told.heard_at) == (False, 0.0)
    assert "did not answer within" in told.why


def test_one_that_never_answered_is_counted_from_the_first_question() -> None:
    desk = Desk()
    desk.want(3.0)
    desk.failed(3.5)
    assert desk.health == [StoreAnswers(NAME, False, 3.0, "down")]


def test_three_answers_in_a_row_and_it_answers_again() -> None:
    """Watched, it is asked each second meanwhile, not each `acquire_retry_interval_s`."""
    desk = Desk()
    desk.tell(WatchWanted(NAME), 0.0)
    desk.failed(0.0)
    now = 0.0
    for found in ("1", "2", None, "3", "4", "5"):
        now += RETRY_MAX_S
        desk.tick(now)
        assert desk.health[1:] == []
        if found is None:
            desk.failed(now)
        else:
            desk.read(record("4"), now)
    assert ANSWERS_IN_A_ROW == 3
    assert desk.health[1:] == [StoreAnswers(NAME, True, now)]
    desk.tick(now + RETRY_MAX_S)
    assert desk.machine.deadline == now + 5.0


def test_who_must_not_ask_says_nothing_of_the_store() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 0.0)
    refused = StoreFailed(NAME, desk.write().attempt, "no contact", asked=False)
    assert desk.tell(refused, 0.0) == [LeaseUnknown(NAME, "no contact")]
    assert desk.health == [StoreAnswers(NAME, True, 0.0)]
    assert desk.machine.counts["failures"] == 0


def test_a_loss_is_told_once() -> None:
    """I-24."""
    desk = Desk().hold()
    assert len(desk.tick(VALID_S)) == 1
    assert desk.tick(VALID_S + 1) == []
    assert desk.unwant(VALID_S + 2) == [LeaseReleased(NAME, confirmed=True)]


def test_what_was_lost_is_not_asked_for_by_itself() -> None:
    """I-29."""
    desk = Desk().hold()
    desk.tick(VALID_S)
    desk.tick(1e6)
    assert desk.machine.state is State.IDLE


def test_after_a_loss_it_is_another_holding_with_another_token() -> None:
    """I-19: though the renewal landed, and the record is still ours."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    landed = desk.stored("8")
    desk.tick(VALID_S)
    desk.want(13.0)
    assert desk.read(landed, 14.0) == []
    assert desk.write().record.token is None
    assert desk.written("9", 14.5) == [LeaseGranted(NAME, 9, 14.0 + VALID_S)]


def test_a_renewal_under_way_at_the_loss_does_not_bring_it_back() -> None:
    """I-19: wanted again at once; the late answer is of the former holding."""
    desk = Desk(renewal_s=6.0).hold()
    desk.tick(6.0)
    for _ in range(40):  # up to a request that is under way when the deadline comes
        if desk.machine.deadline >= VALID_S:
            break
        desk.tick(desk.machine.deadline)
    last = desk.write()
    assert isinstance(desk.tick(VALID_S)[0], LeaseLost)
    desk.want(VALID_S)
    facts = desk.tell(RecordWritten(NAME, last.attempt, desk.stored("8", last)), VALID_S + 0.01)
    assert facts == []
    assert not desk.machine.held(VALID_S + 0.01)


def test_asked_again_by_its_holder_it_makes_a_round_trip() -> None:
    """I-21, L3: no second renewal beside the first, and the answer is no memory."""
    desk = Desk().hold()
    assert desk.want(1.0) == []
    assert desk.write().record.token == 7
    assert desk.written("8", 1.1) == [LeaseGranted(NAME, 7, 1.0 + VALID_S)]
    assert desk.machine.deadline == 1.0 + RENEWAL_S


def test_a_renewal_that_was_under_way_proves_nothing_of_a_later_question() -> None:
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    desk.want(5.1)
    assert desk.written("8", 5.2) == [LeaseRenewed(NAME, 7, RENEWAL_S + VALID_S)]
    assert desk.written("9", 5.3) == [LeaseGranted(NAME, 7, 5.2 + VALID_S)]


def test_a_question_that_the_store_does_not_answer_is_unknown_and_costs_nothing() -> None:
    desk = Desk().hold()
    desk.want(1.0)
    assert desk.failed(1.1) == [LeaseUnknown(NAME, "down")]
    assert desk.machine.held(1.1)


# -- releasing


def test_released_it_is_not_held_before_the_store_knows() -> None:
    """I-2, I-17: conditional on the version we hold, and the record stays."""
    desk = Desk().hold()
    assert desk.unwant(1.0) == []
    assert not desk.machine.held(1.0)
    assert desk.write().record.free
    assert desk.write().record.token == 7
    assert desk.write().if_version == "7"
    assert desk.written("8", 1.1) == [LeaseReleased(NAME, confirmed=True)]
    assert desk.machine.deadline == math.inf


def test_released_by_who_does_not_hold_it_touches_nothing() -> None:
    """I-17: the successor has it already."""
    desk = Desk().hold()
    desk.unwant(1.0)
    assert desk.refused(record("9"), 1.1) == [LeaseReleased(NAME, confirmed=True)]
    assert Desk().unwant(0.0) == [LeaseReleased(NAME, confirmed=True)]


def test_a_renewal_under_way_is_waited_for() -> None:
    """I-10: it landed; the release goes on its version."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    desk.unwant(5.1)
    assert not desk.write().record.free
    desk.written("8", 5.2)
    assert desk.write().record.free
    assert desk.write().if_version == "8"


def test_an_acquire_under_way_is_undone_when_it_wins() -> None:
    """I-3: a late win is given back, and never held."""
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 0.0)
    assert desk.unwant(0.1) == []
    assert desk.machine.state is State.RELEASING
    assert desk.written("7", 0.2) == []
    assert desk.write().record.free
    assert desk.write().if_version == "7"
    assert desk.written("8", 0.3) == [LeaseReleased(NAME, confirmed=True)]


def test_an_acquire_without_answer_is_overtaken_on_its_own_base() -> None:
    """I-3, I-4: the free record takes the version that the late write is based on."""
    desk = Desk()
    desk.want(0.0)
    desk.read(record("4", holder=""), 0.0)
    late = desk.write()
    desk.failed(0.1)
    desk.unwant(0.2)
    assert desk.write().record.free
    assert desk.write().if_version == late.if_version == "4"
    desk.refused(desk.stored("7", late), 0.3)
    assert desk.write().record.free
    assert desk.write().if_version == "7"


def test_nothing_is_asked_anew_before_the_undoing_is_over() -> None:
    """I-4, I-6."""
    desk = Desk().hold()
    desk.unwant(1.0)
    assert desk.want(1.1) == []
    assert desk.write().record.free
    desk.failed(1.2)
    desk.tick(desk.machine.deadline)
    assert desk.write().record.free
    assert desk.written("8", 3.0) == [LeaseReleased(NAME, confirmed=True)]
    assert desk.machine.state is State.ACQUIRING
    assert isinstance(desk.order, ReadStore)


def test_what_was_lost_wanted_again_and_given_up_is_given_back() -> None:
    """The record in our name is still there: nobody else would release it."""
    desk = Desk().hold()
    assert isinstance(desk.tick(20.0)[0], LeaseLost)
    desk.want(20.0)
    assert desk.unwant(20.1) == []
    desk.read(desk.machine.record, 20.2)
    assert desk.write().record.free
    assert desk.write().if_version == "7"


def test_a_store_that_can_not_be_told_is_told_so() -> None:
    """I-2: repeated until the record is worth nothing, then owned up to."""
    desk = Desk().hold()
    desk.unwant(1.0)
    released: list[object] = []
    now = 1.0
    while not released:
        desk.failed(now) if desk.machine._request is not None else None
        now = desk.machine.deadline
        released = desk.tick(now)
    assert released == [LeaseReleased(NAME, confirmed=False, why="down")]
    assert TTL_S <= now <= TTL_S + 2.0


def test_a_try_that_wrote_nothing_is_over_at_once() -> None:
    """I-7: whoever retires it need not wait."""
    desk = Desk()
    desk.want(0.0)
    assert desk.unwant(0.1) == [LeaseReleased(NAME, confirmed=True)]
    assert desk.machine.state is State.IDLE
    assert desk.read(None, 0.2) == []
    assert desk.machine.deadline == math.inf


# -- watching


def test_who_watched_takes_over_at_the_expiry_of_what_it_saw() -> None:
    desk = Desk()
    desk.tell(WatchWanted(NAME), 0.0)
    desk.read(record("4"), 0.0)
    assert desk.watched == "4"
    desk.want(14.0)
    desk.read(record("4"), 14.1)
    assert desk.machine.deadline == TTL_S
    desk.tick(TTL_S)
    assert desk.write().if_version == "4"


def test_who_watches_is_told_nothing_and_writes_nothing() -> None:
    desk = Desk()
    desk.tell(WatchWanted(NAME), 0.0)
    assert desk.read(record("4", holder=""), 0.0) == []
    assert isinstance(desk.order, ReadStore)
    assert desk.machine.deadline == 5.0
    desk.tick(5.0)
    assert desk.failed(5.1) == []
    desk.tell(WatchWanted(NAME, wanted=False), 5.2)
    assert desk.machine.deadline == math.inf


# -- bounds, and what is ours


def test_unanswered_writes_are_bounded() -> None:
    desk = Desk(ttl_s=3600.0)
    desk.want(0.0)
    now = 0.0
    for _ in range(4 * PENDING_MAX):
        if isinstance(desk.order, ReadStore):
            desk.read(None, now)
        desk.failed(now)
        now = desk.machine.deadline
        desk.tick(now)
    assert len(desk.machine._pending) <= PENDING_MAX


def test_a_refusal_on_the_version_that_is_shown_is_unknown() -> None:
    desk = Desk()
    desk.want(0.0)
    desk.read(None, 0.0)
    (unknown,) = desk.refused(None, 0.1)
    assert isinstance(unknown, LeaseUnknown)
    assert desk.machine.deadline == 1.1


def test_a_store_that_refuses_and_shows_the_same_version_makes_no_hot_loop() -> None:
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    assert desk.refused(desk.machine.record, 5.1) == []
    assert desk.machine.deadline > 5.5
    assert desk.machine.held(5.1)


def test_a_fact_of_nobody_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="takes no str"):
        LeaseMachine(settings(), "n").handle("nonsense", 0.0)


def test_it_explains_itself() -> None:
    desk = Desk()
    assert desk.machine.explain(0.0) == "not wanted here"
    desk.want(0.0)
    assert desk.machine.explain(0.0) == "asking the store"
    desk.read(record("4"), 1.0)
    assert desk.machine.explain(9.0) == "waiting for the lease held by other for another 7.0 s"
    desk.tick(6.0)
    desk.failed(6.5)
    assert desk.machine.explain(7.0) == "unknown: down"
    held = Desk().hold()
    assert held.machine.explain(2.5) == "held here for another 10.0 s unless renewed"
    held.unwant(3.0)
    assert "being released" in held.machine.explain(3.0)


def test_every_write_has_an_id_of_its_own() -> None:
    desk = Desk().hold()
    seen = {desk.write().record.write_id}
    for number in range(3):
        desk.tell(AcquireWanted(NAME), float(number))
        assert desk.write().record.write_id not in seen
        seen.add(desk.write().record.write_id)
        desk.written(str(10 + number), float(number))


def test_a_write_id_alone_does_not_make_a_record_ours() -> None:
    """Hostile: our id under another holder's name."""
    desk = Desk().hold()
    desk.tick(RENEWAL_S)
    forged = replace(desk.stored("8"), holder="other#1")
    assert desk.refused(forged, 5.1) == [LeaseLost(NAME, "other has taken it")]
    asking = Desk()
    asking.want(0.0)
    asking.read(None, 0.0)
    forged = replace(asking.stored("8"), holder="other#1")
    assert asking.refused(forged, 0.1) == [LeaseDenied(NAME, "other", TTL_S)]
