"""Every transition of the manager, every event that changes nothing, and what it says meanwhile.

Guards I-27, I-30 to I-33, I-39, I-41 to I-43, I-45, I-46 and S5.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gossip.effects import Paused, PeerMessage, Publish, Send
from gossip.membership import Cause, Member, NodeId, Status
from lease.events import (
    LeaseAtRisk,
    LeaseAwaited,
    LeaseDenied,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    LeaseUnknown,
    StoreAnswers,
)
from singleton.effects import (
    DropLease,
    OfferType,
    SingletonReleased,
    StartInstance,
    StopCause,
    StopInstance,
    WantLease,
    WatchLease,
    WithdrawType,
)
from singleton.election import hosted_type
from singleton.events import (
    InstanceChanged,
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    LeaseTold,
    LeaveStarted,
    SingletonStateChanged,
    StartRequested,
    StopRequested,
    TermsDiffer,
)
from singleton.machine import (
    DRAIN_LATE_MAX_S,
    TRANSITIONS,
    SingletonMachine,
    State,
    Trigger,
    answer_unhosted,
)
from singleton.messages import AnswerKind, HandOverAnswer, HandOverAsk, NoticeKind
from singleton.settings import SingletonSettings, terms_of
from tests.singleton.worlds import (
    TYPE,
    A,
    B,
    C,
    answer_from,
    answers,
    ask_from,
    asks,
    machine,
    member,
    node,
    notice_from,
    notices,
    routes,
    started,
    stopped,
    unproven,
    view,
)

S, T = State, Trigger
NONE = AnswerKind.NONE
ONE_SHOT = SingletonSettings(restart_on_termination=False)
LEASED = SingletonSettings(leased=True)
GRANTED = LeaseTold(TYPE, LeaseGranted("lease", 7, 100.0))
LOST = LeaseTold(TYPE, LeaseLost("lease", "a has taken it"))
SILENT = LeaseTold(TYPE, StoreAnswers("lease", False, 0.0, "down"))
ANSWERS = LeaseTold(TYPE, StoreAnswers("lease", True, 30.0))
AT_RISK = LeaseTold(TYPE, LeaseAtRisk("lease", 2.5, "down"))
RENEWED = LeaseTold(TYPE, LeaseRenewed("lease", 7, 100.0))
RELEASED = LeaseTold(TYPE, LeaseReleased("lease", confirmed=True))

A_CUT_OFF = view("b", unreachable="a")
ALL_WELL = view("b")


class Recorder(SingletonMachine):
    """Keeps what moved it."""

    def __init__(self, settings: SingletonSettings) -> None:
        super().__init__(TYPE, B, settings, random.Random(1))
        self.fired: list[tuple[State, Trigger, State]] = []

    def _fire(self, trigger: Trigger, now: float) -> None:
        before = self.state
        super()._fire(trigger, now)
        self.fired.append((before, trigger, self.state))


def in_state(state: State, settings: SingletonSettings | None = None) -> Recorder:
    """Node b in this state; a is cut off, unless b stands by or stops for it."""
    settings = settings or (LEASED if state in (S.ACQUIRING, S.RELEASING) else SingletonSettings())
    made = Recorder(settings)
    made.handle(StartRequested(TYPE, settings), 0.0)
    made.handle(ALL_WELL, 0.0)
    if state not in (S.STANDBY, S.LATCHED):
        made.handle(A_CUT_OFF, 0.0)
    if state not in (S.STANDBY, S.LATCHED, S.ASKING):
        made.handle(answer_from("a", NONE), 0.0)
        made.handle(answer_from("c", NONE), 0.0)
        if settings.leased and state is not S.ACQUIRING:
            made.handle(GRANTED, 0.0)
    if state in (S.RUNNING, S.STOPPING, S.RELEASING):
        made.handle(InstanceStarted(TYPE, 1), 0.0)
    if state in (S.STOPPING, S.RELEASING):
        made.handle(ALL_WELL, 0.0)
        made.handle(notice_from("a", NoticeKind.HOLDS), 0.0)
    if state is S.RELEASING:
        made.handle(InstanceStopped(TYPE, 1), 0.0)
    if state is S.LATCHED:
        made.handle(StopRequested(TYPE), 0.0)
    assert at(made) is state
    return made


def at(made: SingletonMachine) -> State:
    """Its state now (a call, for the sake of the type checker's memory)."""
    return made.state


def covered(made: Recorder, now: float = 1.0) -> None:
    for peer in "ac":
        made.handle(answer_from(peer, NONE, to_round=made._round), now)


def ends_and_is_due(made: Recorder) -> None:
    made.handle(InstanceFailed(TYPE, 1, "boom"), 1.0)
    assert at(made) is S.STARTING
    made.tick(made.deadline)


def older_host_appears(made: Recorder) -> None:
    made.handle(ALL_WELL, 1.0)
    made.handle(notice_from("a", NoticeKind.HOLDS), 1.0)


def stops_for_good(made: Recorder) -> None:
    made.handle(LeaveStarted(), 1.0)
    made.handle(InstanceStopped(TYPE, 1), 1.0)


def misses_the_store(made: Recorder) -> None:
    made.handle(SILENT, 1.0)
    made.handle(view("b", unreachable="a"), 1.0)
    made.tick(LEASED.lease_ttl_s)


def feed(*events: object) -> Callable[[Recorder], None]:
    def run(made: Recorder) -> None:
        for event in events:
            made.handle(event, 1.0)

    return run


START = StartRequested(TYPE, SingletonSettings())
STOP = StopRequested(TYPE)
ENDED = InstanceFailed(TYPE, 1, "boom")
ROWS: dict[tuple[State, Trigger], Callable[[Recorder], None]] = {
    (S.STANDBY, T.ELECTED): feed(A_CUT_OFF),
    (S.STANDBY, T.WITHDRAWN): feed(STOP),
    (S.ASKING, T.NOT_ELECTED): feed(ALL_WELL),
    (S.ASKING, T.ROUND_VOID): feed(ask_from("a")),
    (S.ASKING, T.COVERED): covered,
    (S.ASKING, T.WITHDRAWN): feed(LeaveStarted()),
    (S.ASKING, T.COVERED_WITHOUT_LEASE): covered,
    (S.ACQUIRING, T.NOT_ELECTED): feed(ALL_WELL),
    (S.ACQUIRING, T.ROUND_VOID): feed(ask_from("a")),
    (S.ACQUIRING, T.GRANTED): feed(GRANTED),
    (S.ACQUIRING, T.LEASE_LOST): feed(LOST),
    (S.ACQUIRING, T.WITHDRAWN): feed(STOP),
    (S.ASKING, T.UNFIT): misses_the_store,
    (S.ACQUIRING, T.UNFIT): misses_the_store,
    (S.STARTING, T.STARTED): feed(InstanceStarted(TYPE, 1)),
    (S.STARTING, T.LEASE_LOST): feed(LOST),
    (S.RUNNING, T.LEASE_LOST): feed(LOST),
    (S.STOPPING, T.RELEASE_DUE): feed(InstanceStopped(TYPE, 1)),
    (S.RELEASING, T.WITHDRAWN): feed(STOP),
    (S.RELEASING, T.READMITTED): feed(STOP, START),
    (S.RELEASING, T.STOPPED): feed(RELEASED),
    (S.RELEASING, T.STOPPED_FOR_GOOD): feed(LeaveStarted(), RELEASED),
    (S.STARTING, T.ENDED): feed(ENDED),
    (S.STARTING, T.RESTART_DUE): ends_and_is_due,
    (S.STARTING, T.ENDED_FOR_GOOD): feed(ENDED),
    (S.STARTING, T.NOT_ELECTED): older_host_appears,
    (S.STARTING, T.WITHDRAWN): feed(STOP),
    (S.RUNNING, T.ENDED): feed(ENDED),
    (S.RUNNING, T.ENDED_FOR_GOOD): feed(ENDED),
    (S.RUNNING, T.NOT_ELECTED): older_host_appears,
    (S.RUNNING, T.WITHDRAWN): feed(LeaveStarted()),
    (S.STOPPING, T.WITHDRAWN): feed(STOP),
    (S.STOPPING, T.READMITTED): feed(STOP, START),
    (S.STOPPING, T.STOPPED): feed(InstanceStopped(TYPE, 1)),
    (S.STOPPING, T.STOPPED_FOR_GOOD): stops_for_good,
    (S.LATCHED, T.READMITTED): feed(START),
}


def test_the_rows_are_the_table() -> None:
    """A transition without a test, or a test without a transition, is a mistake."""
    assert ROWS.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize(("state", "trigger"), ROWS, ids=lambda each: each.name.lower())
def test_transition(state: State, trigger: Trigger) -> None:
    settings = ONE_SHOT if trigger is T.ENDED_FOR_GOOD else None
    if trigger in (T.COVERED_WITHOUT_LEASE, T.LEASE_LOST, T.RELEASE_DUE, T.UNFIT):
        settings = LEASED
    made = in_state(state, settings)
    made.fired.clear()
    ROWS[state, trigger](made)
    assert (state, trigger, TRANSITIONS[state, trigger][0]) in made.fired


def test_every_state_can_be_reached_and_left_and_every_action_exists() -> None:
    reached = {S.STANDBY}
    while more := {to for (at, _), (to, _) in TRANSITIONS.items() if at in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert {at for (at, _), (to, _) in TRANSITIONS.items() if to is not at} == set(State)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)
    for _, action in TRANSITIONS.values():
        assert callable(getattr(SingletonMachine, action))


STRANGER = node("z")
IGNORED = {
    "a fact of another type": InstanceStarted("other", 1),
    "no fact at all": "what?",
    "a late start": InstanceStarted(TYPE, 99),
    "a late stop": InstanceStopped(TYPE, 99),
    "a late end": InstanceFailed(TYPE, 99),
    "a message of another type": PeerMessage(A, HandOverAsk("other", 1, 1)),
    "no message at all": PeerMessage(A, "what?"),
    "a stranger's question": PeerMessage(STRANGER, HandOverAsk(TYPE, 1, 1)),
    "a stranger's answer": PeerMessage(STRANGER, HandOverAnswer(TYPE, 1, NONE)),
    "a stranger's notice": notice_from("z", NoticeKind.HOLDS),
    "an answer to another round": answer_from("a", NONE, to_round=7),
    "an epoch out of range": notice_from("a", NoticeKind.HOLDS, sent_in=9, epoch=2**62),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", IGNORED.values(), ids=IGNORED.keys())
def test_ignored(state: State, event: object) -> None:
    """I-42, I-43: what is late, foreign or not asked for changes nothing, and is counted."""
    made = in_state(state)
    before = (made.state, made.host, made.attempt, made.deadline, made.explain(0.0))
    counted = made.ignored.total()
    assert made.handle(event, 0.0) == []
    assert (made.state, made.host, made.attempt, made.deadline, made.explain(0.0)) == before
    assert made.ignored.total() == counted + 1


@pytest.mark.parametrize("state", State)
def test_a_trigger_that_is_not_in_the_table_changes_nothing(state: State) -> None:
    for trigger in Trigger:
        if (state, trigger) not in TRANSITIONS:
            made = in_state(state)
            made._fire(trigger, 0.0)
            assert at(made) is state
            assert made.ignored.total() == 1


# the questions


def test_alone_in_a_cluster_that_knows_nobody_else_it_hosts_at_once() -> None:
    made, effects = machine("a", view("a", "a"))
    assert started(effects) == [1]
    assert at(made) is S.STARTING


def test_everybody_is_asked_whatever_their_record_shows() -> None:
    """I-38, I-41: members that do not host, or are unreachable, are asked too; joiners are not."""
    members = [
        member("a"),
        member("b", types=()),
        member("c"),
        member("d", status=Status.LEAVING),
        member("e", status=Status.JOINING, up_number=0),
    ]
    _, effects = machine("a", view("a", members, unreachable="c"))
    assert asks(effects) == {node("b"): 1, node("c"): 1, node("d"): 1}


WORKER: dict[str, Any] = {"roles": ("worker",), "types": (hosted_type(TYPE, "worker"),)}
WORK = SingletonSettings(role="worker", terms="worker")


def worker_since(started_at: float, *others: Member) -> tuple[SingletonMachine, list[object]]:
    """The manager of b, started with role `worker` then, in a view that comes at 20.0."""
    made = Recorder(WORK)
    made.handle(StartRequested(TYPE, WORK), started_at)
    effects = made.handle(view("b", [member("b", **WORKER), *others]), 20.0)
    return made, effects


def test_who_may_not_host_under_the_role_is_asked_only_at_first() -> None:
    """I-35: its record does not show yet what was started there with another role."""
    others = (member("a", types=()), member("c", **WORKER))
    assert asks(worker_since(0.0, *others)[1]) == {C: 1}
    assert asks(worker_since(15.0, *others)[1]) == {A: 1, C: 1}


def test_who_asks_is_asked_in_its_turn_whatever_its_role() -> None:
    """I-38, I-43: an answer is a promise, kept by asking whom it was given."""
    made, _ = worker_since(0.0, member("a", types=()), member("c", **WORKER))
    effects = made.handle(ask_from("a"), 20.0)
    assert answers(effects) == {A: AnswerKind.NONE}
    assert asks(effects) == {A: 2, C: 2}


def test_a_host_refuses_whoever_asks_and_says_that_it_hosts() -> None:
    """I-43: or one that was started with another role would wait for what never comes."""
    made, _ = worker_since(0.0)
    made.handle(InstanceStarted(TYPE, 1), 20.0)
    made.handle(view("b", [member("b", **WORKER), member("a")]), 20.0)
    (answer,) = [
        effect.message
        for effect in made.handle(ask_from("a"), 20.0)
        if isinstance(effect, Send) and isinstance(effect.message, HandOverAnswer)
    ]
    assert (answer.kind, answer.who) == (AnswerKind.REFUSED, B)


def test_a_proxy_refuses_nobody_and_finds_a_host_under_another_role() -> None:
    """I-35: its own role is none that anybody has to have."""
    members = [member("a"), member("b", types=())]
    made = Recorder(SingletonSettings(role="nobody's"))
    made.handle(view("b", members), 0.0)
    assert answers(made.handle(ask_from("a"), 0.0)) == {A: AnswerKind.NONE}
    made.handle(notice_from("a", NoticeKind.HOLDS), 0.0)
    assert made.host == A


def test_without_the_role_it_never_hosts() -> None:
    """Its record does not show the type: `node.core` sees to that."""
    made, effects = machine("a", view("a", [member("a", types=())]), settings=WORK)
    assert asks(effects) == {}
    assert made.explain(0.0) == "no reachable member with role 'worker' hosts this type"


def test_questions_are_repeated_to_those_that_owe_an_answer() -> None:
    """I-39: one lost frame costs half a second, not the whole wait."""
    made, _ = machine("a", view("a"))
    made.handle(answer_from("b", NONE), 0.1)
    assert made.deadline == 0.5
    assert asks(made.tick(0.5)) == {C: 1}
    assert asks(made.tick(0.6)) == {}
    assert asks(made.tick(1.0)) == {C: 1}


def test_an_answer_twice_is_an_answer() -> None:
    made, _ = machine("a", view("a"))
    made.handle(answer_from("b", NONE), 0.0)
    assert started(made.handle(answer_from("b", NONE), 0.0)) == []
    assert started(made.handle(answer_from("c", NONE), 0.0)) == [1]


def test_a_member_that_comes_up_meanwhile_is_asked_too() -> None:
    """I-45: the ask set is computed again before the start."""
    made, _ = machine("a", view("a", "a b"))
    assert asks(made.handle(view("a", "a b c"), 0.0)) == {C: 1}
    assert started(made.handle(answer_from("b", NONE), 0.0)) == []
    assert started(made.handle(answer_from("c", NONE), 0.0)) == [1]


def test_only_silence_runs_into_the_timeout() -> None:
    """S5: busy, refusing and stopping peers are waited for; silent ones are named."""
    for kind in (AnswerKind.BUSY, AnswerKind.REFUSED):
        made, _ = machine("b", view("b", unreachable="a"))
        made.handle(answer_from("c", NONE), 0.0)
        for second in range(1, 40):
            assert started(made.handle(answer_from("a", kind), float(second))) == []
            assert started(made.tick(second + 0.5)) == []
        effects = made.tick(49.0)
        assert started(effects) == [1]
        assert unproven(effects) == [(A,)]


def test_silence_is_named_and_the_deadline_is_exact() -> None:
    """S5, I-36."""
    made, _ = machine("b", view("b", "a b c d", unreachable="a d"))
    made.handle(answer_from("c", NONE), 0.1)
    now = 0.0
    while made.state is S.ASKING:
        assert made.deadline > now, "a machine that is due at once spins"
        now = made.deadline
        effects = made.tick(now)
    assert now == 10.0
    assert unproven(effects) == [(A, node("d"))]
    assert started(effects) == [1]


def test_stopping_renews_the_wait_but_not_for_ever() -> None:
    """A peer may stop for `stop_timeout_s`; from then on it counts as silent."""
    made, _ = machine("b", view("b", unreachable="a"))
    made.handle(answer_from("c", NONE), 0.0)
    for tenth in range(5, 195, 5):
        now = tenth / 10
        assert started(made.tick(now)) == []
        made.handle(answer_from("a", AnswerKind.STOPPING, since_s=now), now)
    assert unproven(made.tick(20.5)) == [(A,)]


def test_a_proven_crash_ends_the_wait_at_once() -> None:
    """I-40."""
    made, _ = machine("b", view("b", unreachable="a"))
    made.handle(answer_from("c", NONE), 0.0)
    effects = made.handle(view("b", "b c", gone={A: Cause.CRASHED}), 2.0)
    assert started(effects) == [1]
    assert unproven(effects) == []
    assert made.host is None, "messages wait until the instance has started"


def test_a_member_down_with_proof_is_not_asked_either() -> None:
    members = [member("a", status=Status.DOWN, cause=Cause.CRASHED), member("b"), member("c")]
    _, effects = machine("b", view("b", members))
    assert asks(effects) == {C: 1}


@pytest.mark.parametrize("cause", [Cause.DOWNED, Cause.ORDERED, Cause.SUPERSEDED, Cause.NONE])
def test_who_went_without_proof_is_asked_until_it_answers(cause: Cause) -> None:
    """I-40, F5."""
    made, _ = machine("b", view("b"))
    effects = made.handle(view("b", "b c", gone={A: cause}), 1.0)
    assert asks(effects) == {A: 1, C: 1}
    made.handle(answer_from("c", NONE), 1.0)
    assert started(made.handle(answer_from("a", NONE), 1.5)) == [1]


def test_who_went_without_proof_is_forgotten_in_time() -> None:
    made, _ = machine("b", view("b", "a b c d"))
    made.handle(view("b", "a b d", gone={C: Cause.DOWNED}), 1.0)
    assert asks(made.handle(view("b", "b d", gone={C: Cause.DOWNED, A: Cause.LEFT}), 31.0)) == {
        node("d"): 1
    }


def test_who_never_was_up_is_not_asked_when_it_goes() -> None:
    made, _ = machine("a", view("a", "a b"))
    effects = made.handle(view("a", "a b", gone={C: Cause.NEVER_UP}), 0.0)
    assert asks(effects) == {}


def test_one_that_went_before_we_looked_is_asked() -> None:
    """A tombstone does not tell what ran there."""
    _, effects = machine("b", view("b", "b", gone={A: Cause.DOWNED}))
    assert asks(effects) == {A: 1}


def test_a_pause_voids_the_round() -> None:
    """What others answered before we slept proves nothing; our own silence is not theirs."""
    made, _ = machine("a", view("a"))
    made.handle(answer_from("b", NONE), 0.1)
    effects = made.handle(Paused(60.0), 60.1)
    assert asks(effects) == {B: 2, C: 2}
    assert unproven(made.tick(60.1)) == []
    assert started(made.handle(answer_from("c", NONE), 60.2)) == []
    made.handle(answer_from("b", NONE, to_round=2), 60.2)
    assert started(made.handle(answer_from("c", NONE, to_round=2), 60.2)) == [1]


def test_silence_is_not_renewed_by_a_void_round() -> None:
    """An older candidate that asks again and again must not keep a silent peer waited for."""
    made, _ = machine("b", view("b", "a b c", unreachable="a"))
    made.handle(ask_from("a"), 9.0)
    made.handle(answer_from("a", NONE, to_round=2), 9.1)
    assert unproven(made.tick(10.0)) == [(C,)]


# the answers


@pytest.mark.parametrize(
    ("state", "from_older", "from_younger"),
    [
        (S.STANDBY, NONE, NONE),
        (S.ASKING, NONE, AnswerKind.BUSY),
        (S.STARTING, AnswerKind.REFUSED, AnswerKind.REFUSED),
        (S.RUNNING, AnswerKind.REFUSED, AnswerKind.REFUSED),
        (S.STOPPING, AnswerKind.STOPPING, AnswerKind.STOPPING),
        (S.ACQUIRING, NONE, AnswerKind.BUSY),
        (S.RELEASING, AnswerKind.STOPPING, AnswerKind.STOPPING),
        (S.LATCHED, NONE, NONE),
    ],
)
def test_answers(state: State, from_older: AnswerKind, from_younger: AnswerKind) -> None:
    """Nobody is displaced by a question, and every state answers (I-41)."""
    assert answers(in_state(state).handle(ask_from("a"), 0.0)) == {A: from_older}
    assert answers(in_state(state).handle(ask_from("c"), 0.0)) == {C: from_younger}


def test_an_older_candidate_is_answered_after_our_round_is_void() -> None:
    """F4: the promise. The same question again voids nothing more."""
    made = in_state(S.ASKING)
    made.handle(answer_from("a", NONE), 0.0)
    effects = made.handle(ask_from("a"), 0.0)
    assert answers(effects) == {A: NONE}
    assert asks(effects) == {A: 2, C: 2}
    again = made.handle(ask_from("a"), 0.0)
    assert answers(again) == {A: NONE}
    assert asks(again) == {}
    assert asks(made.handle(ask_from("a", in_round=2), 0.0)) == {A: 3, C: 3}


def test_a_double_up_number_is_decided_by_the_id() -> None:
    """Two leaders in a split gave one number twice."""
    members = [member("a", 2), member("b", 2), member("c")]
    made = in_state(S.STANDBY)
    made.handle(view("b", members, unreachable="a"), 0.0)
    assert answers(made.handle(ask_from("a", number=2), 0.0)) == {A: NONE}
    assert answers(made.handle(ask_from("c", number=2), 0.0)) == {C: AnswerKind.BUSY}


def test_the_smaller_of_two_numbers_counts() -> None:
    """A member that was numbered twice knows the smaller number first or last."""
    made = in_state(S.ASKING)
    assert answers(made.handle(ask_from("c", number=1), 0.0)) == {C: NONE}


def test_one_that_waits_is_told_the_instant_the_instance_has_terminated() -> None:
    """I-27: not when the stop was ordered."""
    made = in_state(S.STOPPING)
    assert answers(made.handle(ask_from("c", in_round=4), 0.0)) == {C: AnswerKind.STOPPING}
    effects = made.handle(InstanceStopped(TYPE, 1), 3.0)
    (answer,) = [
        e for e in effects if isinstance(e, Send) and isinstance(e.message, HandOverAnswer)
    ]
    assert answer == Send(C, HandOverAnswer(TYPE, 4, NONE, epoch=1))


def test_an_instance_that_fails_while_it_stops_has_stopped() -> None:
    made = in_state(S.STOPPING)
    made.handle(ask_from("c"), 0.0)
    assert answers(made.handle(InstanceFailed(TYPE, 1), 0.0)) == {C: NONE}
    assert at(made) is S.STANDBY


def test_a_question_of_one_that_is_down_is_not_answered() -> None:
    made = in_state(S.STANDBY)
    members = [member("a"), member("b"), member("c", status=Status.DOWN, cause=Cause.DOWNED)]
    made.handle(view("b", members), 0.0)
    assert made.handle(ask_from("c"), 0.0) == []
    made.handle(view("b", "a b", gone={C: Cause.DOWNED}), 0.0)
    assert made.handle(ask_from("c"), 0.0) == []
    assert made.ignored["asked by one that is down"] == 2


def test_an_early_question_is_answered_as_soon_as_the_view_follows() -> None:
    """BC-003: the successor was ahead of our view; nobody waits for a repetition."""
    made, _ = machine("a", view("a", "a b"))
    assert answers(made.handle(ask_from("c"), 0.0)) == {}
    joining = [member("a"), member("b"), member("c", status=Status.JOINING, up_number=0)]
    assert answers(made.handle(view("a", joining), 0.1)) == {}
    assert answers(made.handle(view("a", "a b c"), 0.2)) == {C: AnswerKind.BUSY}
    assert answers(made.handle(view("a", "a b c"), 0.3)) == {}


def test_early_questions_are_bounded_and_do_not_last() -> None:
    made, _ = machine("a", view("a", "a b"))
    for number in range(100):
        made.handle(PeerMessage(NodeId("10.1.0.1", number + 1, 1), HandOverAsk(TYPE, 1, 9)), 0.0)
    made.handle(ask_from("c"), 0.0)
    assert len(made._early) == made._settings.early_asks_max
    made.handle(ask_from("c"), 2.0)
    assert len(made._early) == 1, "the others would have asked again"
    assert answers(made.handle(view("a", "a b c"), 4.0)) == {}


def test_a_message_that_was_overtaken_changes_nothing() -> None:
    made = in_state(S.STANDBY)
    made.handle(notice_from("a", NoticeKind.WITHDRAWN, sent_in=5), 0.0)
    assert at(made) is S.ASKING
    assert made.handle(notice_from("a", NoticeKind.HOLDS, sent_in=4), 0.0) == []
    assert made.handle(ask_from("a", in_round=3), 0.0) == []
    assert made.ignored["overtaken message"] == 2
    made.handle(ask_from("a", in_round=6), 0.0)
    assert at(made) is S.STANDBY, "it asks for itself, so it is back in the election"


def test_a_withdrawn_member_is_back_when_its_record_shows_the_type_again() -> None:
    made = in_state(S.STANDBY)
    made.handle(notice_from("a", NoticeKind.WITHDRAWN, sent_in=5), 0.0)
    without = [member("a", types=()), member("b"), member("c")]
    for seen, state in (
        (ALL_WELL, S.ASKING),
        (view("b", without), S.ASKING),
        (ALL_WELL, S.STANDBY),
    ):
        made.handle(seen, 0.0)
        assert at(made) is state


def test_former_members_are_bounded() -> None:
    settings = SingletonSettings(former_max=2)
    gone = dict.fromkeys((A, C, node("d")), Cause.DOWNED)
    made, effects = machine("b", view("b", "b", gone=gone), settings=settings)
    assert set(asks(effects)) == {A, C}
    assert made.ignored["too many former members"] == 1


def test_without_a_view_nobody_is_answered() -> None:
    made, _ = machine("a")
    assert made.handle(ask_from("b"), 0.0) == []
    assert made.explain(0.0) == "not a member of a cluster yet"


def test_a_node_without_a_manager_answers_members_it_would_ask_itself() -> None:
    """I-41, and the promise without memory."""
    joining = [member("a"), member("b", status=Status.JOINING, up_number=0)]
    assert answers(answer_unhosted(ask_from("b"), view("a", "a b"))) == {B: NONE}
    assert answer_unhosted(ask_from("b"), view("a", joining)) == []
    assert answer_unhosted(ask_from("c"), view("a", "a b")) == []
    assert answer_unhosted(ask_from("b"), None) == []
    assert answer_unhosted(answer_from("b", NONE), view("a", "a b")) == []


def test_before_start_it_only_answers_and_routes() -> None:
    """A node with a proxy and no instance of its own."""
    made = SingletonMachine(TYPE, A, SingletonSettings(), random.Random(1))
    seen = view("a", [member("a", types=()), member("b"), member("c")])
    assert routes(made.handle(seen, 0.0)) == [B]
    assert answers(made.handle(ask_from("c"), 0.0)) == {C: NONE}
    assert routes(made.handle(notice_from("c", NoticeKind.HOLDS), 0.0)) == [C]
    assert routes(made.tick(3.5)) == [B]
    effects = made.handle(LeaveStarted(), 4.0)
    assert SingletonReleased(TYPE) in effects
    assert not [effect for effect in effects if isinstance(effect, Send)]


# instances


def test_the_history_of_an_instance() -> None:
    made = in_state(S.ASKING)
    effects: list[object] = []
    for event in (
        answer_from("a", NONE),
        answer_from("c", NONE),
        InstanceStarted(TYPE, 1),
        StopRequested(TYPE),
        InstanceStopped(TYPE, 1, "stopped"),
    ):
        effects += made.handle(event, 0.0)
    facts = [effect.fact for effect in effects if isinstance(effect, Publish)]
    lines = [(f.event, f.attempt) for f in facts if isinstance(f, InstanceChanged)]
    assert lines == [("starting", 1), ("started", 1), ("stopping", 1), ("stopped", 1)]
    states = [(f.state, f.host, f.attempt) for f in facts if isinstance(f, SingletonStateChanged)]
    assert states == [
        ("starting", None, 0),
        ("running", B, 1),
        ("stopping", C, 0),
        ("latched", C, 0),
    ]


def test_an_instance_that_ends_by_itself_is_restarted_with_a_growing_backoff() -> None:
    """I-31, I-32: at least a second, twice as long each time, and the office is held meanwhile."""
    made = in_state(S.RUNNING)
    now, waits = 0.0, []
    for attempt in range(1, 9):
        effects = made.handle(InstanceFailed(TYPE, attempt, "boom"), now)
        assert routes(effects) in ([None], [])
        assert answers(made.handle(ask_from("c"), now)) == {C: AnswerKind.REFUSED}
        due = made._restart_at
        assert started(made.tick(due - 0.01)) == []
        assert started(made.tick(due)) == [attempt + 1]
        waits.append(due - now)
        now = due
        assert at(made) is S.STARTING
        made.handle(InstanceStarted(TYPE, attempt + 1), now)
    for wait_s, least in zip(waits, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
        assert least <= wait_s <= 1.1 * least


def test_one_that_ran_for_long_begins_with_the_shortest_backoff_again() -> None:
    made = in_state(S.RUNNING)
    for attempt in range(1, 4):
        made.handle(InstanceFailed(TYPE, attempt), 0.0)
        made.tick(made._restart_at)
        made.handle(InstanceStarted(TYPE, attempt + 1), 0.0)
    made.handle(InstanceFailed(TYPE, 4), 40.0)
    assert 41.0 <= made._restart_at <= 41.1


def test_an_unordered_stop_is_an_end_by_itself() -> None:
    made = in_state(S.RUNNING)
    made.handle(InstanceStopped(TYPE, 1, "it stopped itself"), 0.0)
    assert at(made) is S.STARTING
    assert made.explain(0.0).startswith("instance 1 ended by itself (it stopped itself); the next")


def test_during_the_backoff_there_is_nothing_to_stop() -> None:
    """I-30, I-46: it stands down at once, and no instance starts later."""
    made = in_state(S.RUNNING)
    made.handle(InstanceFailed(TYPE, 1), 0.0)
    made.handle(ALL_WELL, 0.0)
    effects = made.handle(notice_from("a", NoticeKind.HOLDS), 0.0)
    assert stopped(effects) == []
    assert at(made) is S.STANDBY
    assert started(made.tick(100.0)) == []


def test_without_restart_the_tenure_ends_and_the_next_one_is_told() -> None:
    """I-31: the office does not stay with a node that holds nothing."""
    made = in_state(S.RUNNING, ONE_SHOT)
    effects = made.handle(InstanceFailed(TYPE, 1, "done"), 0.0)
    assert at(made) is S.LATCHED
    assert WithdrawType(TYPE) in effects
    assert notices(effects, NoticeKind.WITHDRAWN) == [C]
    assert notices(effects, NoticeKind.RELEASED) == [C]
    assert "its instance ended by itself: done" in made.explain(0.0)


def test_an_instance_that_still_starts_is_stopped_too() -> None:
    made = in_state(S.STARTING)
    effects = made.handle(LeaveStarted(), 0.0)
    assert StopInstance(TYPE, 1, StopCause.LEAVING, "this node leaves") in effects
    assert made.handle(InstanceStarted(TYPE, 1), 0.0) == []
    assert SingletonReleased(TYPE) in made.handle(InstanceStopped(TYPE, 1), 0.0)


def test_no_start_while_the_former_instance_stops() -> None:
    """I-46: a fast flap ends in the same instance number only after the stop."""
    made = in_state(S.STOPPING)
    made.handle(view("b", unreachable="a"), 0.0)
    assert at(made) is S.STOPPING
    effects = made.handle(InstanceStopped(TYPE, 1), 0.0)
    assert at(made) is S.ASKING
    assert asks(effects) == {A: made._round, C: made._round}


# the user and the end


def test_stop_is_a_latch_that_no_view_opens() -> None:
    """I-33."""
    made = in_state(S.LATCHED)
    for seen in (A_CUT_OFF, view("b", "b c", gone={A: Cause.CRASHED}), view("b", "b")):
        assert started(made.handle(seen, 1.0)) == []
    made.handle(Paused(5.0), 2.0)
    made.tick(100.0)
    assert at(made) is S.LATCHED
    assert "stopped by the user" in made.explain(100.0)


def test_start_after_stop_asks_like_anybody() -> None:
    """I-60."""
    made = in_state(S.LATCHED)
    made.handle(A_CUT_OFF, 0.0)
    effects = made.handle(START, 1.0)
    assert at(made) is S.ASKING
    assert set(asks(effects)) == {A, C}


def test_nothing_is_started_on_a_node_that_leaves() -> None:
    made = in_state(S.STANDBY)
    assert SingletonReleased(TYPE) in made.handle(LeaveStarted(), 0.0)
    made.handle(START, 0.0)
    assert at(made) is S.LATCHED
    assert made.ignored["start while leaving"] == 1


def test_release_is_told_once() -> None:
    made = in_state(S.LATCHED)
    effects = made.handle(LeaveStarted(), 0.0) + made.handle(LeaveStarted(), 0.0)
    effects += made.handle(view("b", "b"), 0.0)
    assert effects.count(SingletonReleased(TYPE)) == 1


def test_a_leave_asks_for_no_change_of_the_record() -> None:
    """The member record goes with the process; only a stop by the user takes the type out."""
    assert WithdrawType(TYPE) not in in_state(S.RUNNING).handle(LeaveStarted(), 0.0)
    assert WithdrawType(TYPE) in in_state(S.RUNNING).handle(STOP, 0.0)


def test_a_younger_host_stands_down_for_one_that_membership_does_not_trust_yet() -> None:
    """After a heal: it says itself that it hosts, so it is heard. Nobody answers that for ever."""
    made = in_state(S.RUNNING)
    effects = made.handle(notice_from("a", NoticeKind.HOLDS), 1.0)
    assert at(made) is S.STOPPING
    assert of(StopInstance, effects)
    assert notices(effects, NoticeKind.HOLDS) == []
    made = in_state(S.RUNNING)
    made.handle(notice_from("c", NoticeKind.HOLDS), 1.0)
    assert at(made) is S.RUNNING, "for a younger one it does not"


def test_who_may_host_beside_us_is_told_again_and_again_that_we_do() -> None:
    """It may be back by now, and an older host answers: no view has to change for that."""
    made = in_state(S.ASKING)
    made.handle(answer_from("c", NONE), 0.0)
    assert unproven(made.tick(10.0)) == [(A,)]
    made.handle(InstanceStarted(TYPE, 1), 10.0)
    told = []
    for _ in range(3):
        effects = made.tick(made.deadline)
        told.append(A in notices(effects, NoticeKind.HOLDS))
    assert told == [True, True, True]


# the lease


def of(kind: type, effects: list[object]) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_the_lease_is_asked_for_after_the_members_and_before_the_start() -> None:
    """S2: hand-over before acquire, and no instance without the lease."""
    made = in_state(S.ASKING, LEASED)
    made.handle(answer_from("a", NONE), 0.0)
    effects = made.handle(answer_from("c", NONE), 0.0)
    assert of(WantLease, effects) == [WantLease(TYPE)]
    assert of(StartInstance, effects) == []
    for fact, words in (
        (LeaseDenied("lease", "x", 5.0), "it is held by x"),
        (LeaseAwaited("lease", "x", 5.0), "x holds it, perhaps not any more"),
        (LeaseUnknown("lease", "down"), "nobody can tell who holds it: down"),
    ):
        assert of(StartInstance, made.handle(LeaseTold(TYPE, fact), 1.0)) == []
        assert made.explain(1.0) == f"waiting for the lease: {words}"
    assert of(StartInstance, made.handle(GRANTED, 2.0)) == [StartInstance(TYPE, 1)]


def test_who_comes_up_while_the_lease_is_asked_for_is_asked_before_the_start() -> None:
    """I-45: the answers must still cover everybody when it is granted."""
    made = in_state(S.ACQUIRING)
    grown = view("b", "a b c d", unreachable="a")
    assert asks(made.handle(grown, 1.0)) == {node("d"): 1}
    assert of(StartInstance, made.handle(GRANTED, 1.0)) == []
    assert of(StartInstance, made.handle(answer_from("d", NONE), 1.0)) == [StartInstance(TYPE, 1)]


def test_a_candidate_that_is_not_needed_any_more_drops_the_lease() -> None:
    """I-3, I-45: and a win that comes late starts nothing."""
    for event in (ALL_WELL, ask_from("a"), Paused(9.0)):
        made = in_state(S.ACQUIRING)
        assert of(DropLease, made.handle(event, 1.0)) == [DropLease(TYPE)]
        assert of(StartInstance, made.handle(GRANTED, 1.0)) == []
        covered(made)
        assert at(made) in (S.ASKING, S.STANDBY), "it is not asked for before it is given back"
        wanted = made.handle(RELEASED, 1.0)
        assert of(WantLease, wanted) == ([] if event is ALL_WELL else [WantLease(TYPE)])


def test_a_lost_lease_stops_the_instance_and_is_asked_for_when_it_has_stopped() -> None:
    """S8, I-29: after the retry interval, and after everybody was asked again."""
    made = in_state(S.RUNNING, LEASED)
    effects = made.handle(LOST, 1.0)
    (stop,) = of(StopInstance, effects)
    assert isinstance(stop, StopInstance)
    assert (stop.cause, stop.reason) == (StopCause.LEASE_LOST, "its lease was lost: a has taken it")
    assert of(WantLease, made.tick(20.0)) == []
    effects = made.handle(InstanceStopped(TYPE, 1), 3.0)
    assert of(DropLease, effects) == [], "there is nothing to give back"
    assert at(made) is S.ASKING
    covered(made, 3.0)
    assert "asked for again in 3.0 s" in made.explain(3.0)
    assert made.deadline <= 6.0
    assert of(WantLease, made.tick(5.9)) == []
    assert of(WantLease, made.tick(6.0)) == [WantLease(TYPE)]


def test_the_lease_is_released_after_the_instance_and_before_the_answer() -> None:
    """S7, I-28: whoever asks is told when the store has confirmed."""
    made = in_state(S.RUNNING, LEASED)
    made.handle(ALL_WELL, 1.0)
    assert of(DropLease, made.handle(notice_from("a", NoticeKind.HOLDS), 1.0)) == []
    made.handle(ask_from("c"), 1.0)
    effects = made.handle(InstanceStopped(TYPE, 1), 2.0)
    assert of(DropLease, effects) == [DropLease(TYPE)]
    assert answers(effects) == {}
    assert answers(made.handle(RELEASED, 2.1)) == {C: NONE}


def test_a_store_that_does_not_confirm_holds_nobody_up() -> None:
    """The next one has to get the lease anyway."""
    made = in_state(S.RELEASING)
    made.handle(ask_from("c"), 0.0)
    assert made.deadline == LEASED.release_wait_s
    assert answers(made.tick(LEASED.release_wait_s)) == {C: NONE}
    made.handle(view("b", "b c"), 3.0)
    made.handle(answer_from("c", NONE), 3.0)
    assert at(made) is S.ASKING, "one that may still be ours is not asked for"
    assert of(WantLease, made.handle(RELEASED, 20.0)) == [WantLease(TYPE)]


def test_an_instance_that_ended_for_good_gives_its_lease_back() -> None:
    """I-31: never renewed over a dead child."""
    made = in_state(S.RUNNING, replace(ONE_SHOT, leased=True))
    assert of(DropLease, made.handle(ENDED, 1.0)) == [DropLease(TYPE)]
    made.handle(RELEASED, 1.0)
    assert at(made) is S.LATCHED


def test_the_lease_is_kept_while_an_instance_is_restarted() -> None:
    made = in_state(S.RUNNING, LEASED)
    assert of(DropLease, made.handle(ENDED, 1.0)) == []
    effects = made.tick(made.deadline)
    assert of(StartInstance, effects) == [StartInstance(TYPE, 2)]
    assert of(WantLease, effects) == []


def test_who_may_host_watches_the_lease_from_the_start() -> None:
    """So that a takeover comes at its end, not a ttl later."""
    made = Recorder(LEASED)
    assert WatchLease(TYPE, True) in made.handle(StartRequested(TYPE, LEASED), 0.0)
    assert WatchLease(TYPE, False) in made.handle(STOP, 0.0)
    assert of(WatchLease, Recorder(SingletonSettings()).handle(START, 0.0)) == []


# a lease at risk


def events_of(effects: list[object]) -> list[tuple[str, str]]:
    """The lines of the history."""
    return [
        (effect.fact.event.value, effect.fact.detail)
        for effect in effects
        if isinstance(effect, Publish) and isinstance(effect.fact, InstanceChanged)
    ]


def test_at_risk_no_new_message_comes_in_until_it_is_renewed() -> None:
    """The instance goes on with what it has; what comes waits in the proxies."""
    made = in_state(S.RUNNING, LEASED)
    effects = made.handle(AT_RISK, 1.0)
    assert routes(effects) == [None]
    assert events_of(effects) == [("suspended", "its lease is at risk: down")]
    assert made.host == B, "it hosts all the same"
    assert at(made) is S.RUNNING
    assert "takes in no new message: its lease may end (down)" in made.explain(1.0)
    effects = made.handle(RENEWED, 2.0)
    assert routes(effects) == [B]
    assert events_of(effects) == [("resumed", "")]


def test_a_loss_ends_the_risk_with_the_instance() -> None:
    made = in_state(S.RUNNING, LEASED)
    made.handle(AT_RISK, 1.0)
    assert events_of(made.handle(LOST, 2.0)) == [("stopping", "its lease was lost: a has taken it")]
    made.handle(InstanceStopped(TYPE, 1), 2.0)
    covered(made, 3.0)
    made.tick(8.0)
    made.handle(GRANTED, 9.0)
    assert routes(made.handle(InstanceStarted(TYPE, 2), 9.0)) == [B]


def test_an_instance_that_starts_at_risk_takes_nothing_in_yet() -> None:
    made = in_state(S.STARTING, LEASED)
    made.handle(AT_RISK, 1.0)
    assert routes(made.handle(InstanceStarted(TYPE, 1), 1.0)) == []
    assert routes(made.handle(RENEWED, 2.0)) == [B]


@pytest.mark.parametrize(
    ("on_lease_lost", "late_s", "unguarded"),
    [
        ("stop", 0.0, False),
        ("drain", 0.0, True),
        ("drain", DRAIN_LATE_MAX_S, True),
        ("drain", DRAIN_LATE_MAX_S + 0.01, False),
    ],
)
def test_after_a_loss_the_mailbox_is_handled_only_where_that_is_wanted(
    on_lease_lost: str, late_s: float, unguarded: bool
) -> None:
    """Never after a deadline that passed over a process which stood still."""
    made = in_state(S.RUNNING, replace(LEASED, on_lease_lost=on_lease_lost))
    lost = LeaseTold(TYPE, LeaseLost("lease", "no renewal", late_s))
    (stop,) = of(StopInstance, made.handle(lost, 1.0))
    assert isinstance(stop, StopInstance)
    assert stop.unguarded is unguarded


def test_other_stops_are_never_unguarded() -> None:
    made = in_state(S.RUNNING, replace(LEASED, on_lease_lost="drain"))
    (stop,) = of(StopInstance, made.handle(STOP, 1.0))
    assert isinstance(stop, StopInstance)
    assert not stop.unguarded


# a store that answers others


def test_who_does_not_reach_the_store_for_a_ttl_lets_another_one_host() -> None:
    """Unfit: while the records say that the store does answer somebody else who may host."""
    made = in_state(S.ACQUIRING)
    made.handle(SILENT, 1.0)
    assert made.deadline <= LEASED.lease_ttl_s
    assert at(made) is S.ACQUIRING
    effects = made.tick(LEASED.lease_ttl_s)
    assert of(DropLease, effects) == [DropLease(TYPE)]
    assert of(WithdrawType, effects) == [WithdrawType(TYPE)]
    assert notices(effects, NoticeKind.WITHDRAWN) == [C], "who is next hears it at once"
    assert of(WatchLease, effects) == [], "it looks at the store on and on"
    assert at(made) is S.LATCHED, "nothing ran here: nobody waits for a store that is away"
    assert "not hosted here for now: its lease store has not answered" in made.explain(16.0)


def test_what_others_look_at_is_waited_for_first() -> None:
    """Where the store fails everybody, each learns it with its own next look."""
    made = in_state(S.ACQUIRING, replace(LEASED, lease_ttl_s=3.0))
    made.handle(SILENT, 1.0)
    made.tick(8.9)
    assert at(made) is S.ACQUIRING
    made.tick(9.0)  # 1 s + acquire_retry_interval_s + the timeout of a look + 1 s
    assert at(made) is S.LATCHED


@pytest.mark.parametrize("why", ["none well", "unreachable", "answers", "not hosting"])
def test_who_is_no_worse_off_than_the_others_goes_on(why: str) -> None:
    made = in_state(S.ACQUIRING)
    made.handle(SILENT, 1.0)
    silent = hosted_type(TYPE, reaches_store=False)
    match why:
        case "none well":
            members = [member(each, types=(silent,)) for each in "abc"]
            made.handle(view("b", members, unreachable="a"), 2.0)
        case "not hosting":
            members = [member("a"), member("b"), member("c", types=())]
            made.handle(view("b", members, unreachable="a"), 2.0)
        case "unreachable":
            made.handle(view("b", unreachable="a c"), 2.0)
        case "answers":
            made.handle(ANSWERS, 2.0)
    made.tick(100.0)
    assert at(made) is S.ACQUIRING


def test_fit_again_it_may_host_again() -> None:
    made = in_state(S.ACQUIRING)
    misses_the_store(made)
    made.handle(RELEASED, 20.0)
    effects = made.handle(ANSWERS, 30.0)
    assert of(OfferType, effects) == [OfferType(TYPE, hosted_type(TYPE), None)]
    assert at(made) is S.ASKING, "it is the oldest in reach, and asks like anybody"


@pytest.mark.parametrize("event", [STOP, LeaveStarted()])
def test_who_is_stopped_while_it_is_unfit_stays_stopped(event: object) -> None:
    made = in_state(S.ACQUIRING)
    misses_the_store(made)
    made.handle(RELEASED, 20.0)
    made.handle(event, 21.0)
    made.handle(ANSWERS, 30.0)
    assert at(made) is S.LATCHED


def test_the_record_shows_whether_the_store_answers() -> None:
    """It does not before its first answer."""
    made = Recorder(LEASED)
    silent = OfferType(TYPE, hosted_type(TYPE, reaches_store=False), None)
    well = OfferType(TYPE, hosted_type(TYPE), None)
    assert of(OfferType, made.handle(StartRequested(TYPE, LEASED), 0.0)) == [silent]
    assert of(OfferType, made.handle(ANSWERS, 0.1)) == [well]
    assert of(OfferType, made.handle(SILENT, 1.0)) == [silent]
    assert of(OfferType, Recorder(SingletonSettings()).handle(START, 0.0)) == [well]


# terms


def under(terms: str) -> tuple[str, ...]:
    return (hosted_type(TYPE, terms),)


def test_who_has_other_terms_than_the_oldest_does_not_host_and_says_so() -> None:
    """Two stores exclude nobody from each other."""
    ours = terms_of(None, store="sqlite:b", lease="x", ttl_s=15.0)
    theirs = terms_of(None, store="sqlite:a", lease="x", ttl_s=20.0)
    made = Recorder(replace(LEASED, terms=ours))
    made.handle(StartRequested(TYPE, replace(LEASED, terms=ours)), 0.0)
    members = [member("a", types=under(theirs)), member("b", types=under(ours))]
    effects = made.handle(view("b", members), 0.0)
    words = "lease store and lease ttl (15 here, 20 there)"
    assert Publish(TermsDiffer(TYPE, A, words)) in effects
    begin = f"not hosted here, since it is not started as at {A.address}: {words}; "
    assert made.explain(0.0).startswith(begin)
    assert at(made) is S.STANDBY
    effects = made.handle(view("b", members[1:], gone={A: Cause.CRASHED}), 1.0)
    assert Publish(TermsDiffer(TYPE, None, "")) in effects
    assert at(made) is not S.STANDBY, "then it is the oldest, and its terms are valid"


def test_whoever_was_started_wrongly_does_not_take_over_from_those_started_alike() -> None:
    """The host dies: b is older than c, but c was started as the host was."""
    right, wrong = under("x;1;1;15"), under("")
    for me, state in (("b", S.STANDBY), ("c", S.ASKING)):
        settings = replace(LEASED, terms="" if me == "b" else "x;1;1;15")
        made = SingletonMachine(TYPE, node(me), settings, random.Random(1))
        made.handle(StartRequested(TYPE, settings), 0.0)
        members = [
            member("a", types=right), member("b", types=wrong), member("c", types=right),
        ]  # fmt: skip
        made.handle(view(me, members), 0.0)
        made.handle(notice_from("a", NoticeKind.HOLDS), 0.0)
        made.handle(view(me, members[1:], gone={A: Cause.CRASHED}), 1.0)
        assert at(made) is state
        alone = [each for each in members if each.id == node(me)]
        made.handle(view(me, alone, gone={A: Cause.CRASHED, B: Cause.LEFT, C: Cause.LEFT}), 2.0)
        assert at(made) is not S.STANDBY, "where nobody has those terms any more"


def test_the_terms_of_a_running_host_are_valid_also_for_older_members() -> None:
    made = in_state(S.RUNNING)
    older = [member("a", types=under("other")), member("b"), member("c")]
    effects = made.handle(view("b", older), 1.0)
    assert at(made) is S.RUNNING
    assert stopped(effects) == []
    assert made.host == B


# words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (S.STANDBY, "10.0.0.1:25520 is the oldest eligible member in reach"),
        (
            S.ASKING,
            "asked 10.0.0.1:25520, no answer for 3.0 s; asked 10.0.0.3:25520, no answer for 3.0 s; "
            "hosts anyway in 7.0 s, uniqueness not proven",
        ),
        (S.ACQUIRING, "waiting for the lease: it is asked for"),
        (
            S.RELEASING,
            "stopped (10.0.0.1:25520 hosts too and is older); its lease is being released",
        ),
        (S.STARTING, "starting instance 1"),
        (S.RUNNING, "runs here: this is the oldest eligible member in reach"),
        (S.STOPPING, "stopping for 3.0 s: 10.0.0.1:25520 hosts too and is older"),
        (
            S.LATCHED,
            "not hosted here again: stopped by the user; "
            "10.0.0.1:25520 is the oldest eligible member in reach",
        ),
    ],
)
def test_explain(state: State, words: str) -> None:
    assert in_state(state).explain(3.0) == words


def test_explain_names_what_each_peer_said() -> None:
    made, _ = machine("d", view("d", "a b c d e", unreachable="a b c"))
    made.handle(answer_from("a", AnswerKind.STOPPING), 1.0)
    made.handle(answer_from("b", AnswerKind.BUSY, who=B), 1.0)
    made.handle(answer_from("c", AnswerKind.REFUSED, why="its instance runs here"), 1.0)
    made.handle(answer_from("e", NONE), 1.0)
    assert made.explain(3.0) == (
        "10.0.0.1:25520 is stopping its instance for 2.0 s; "
        "10.0.0.2:25520 is older and asks for itself; "
        "10.0.0.3:25520 refuses: its instance runs here"
    )


def test_explain_while_not_up() -> None:
    joining = replace(member("b"), status=Status.JOINING, up_number=0)
    made, _ = machine("b", view("b", [joining]))
    assert made.explain(0.0) == "this node is joining, and no eligible member is reachable"
    made.handle(view("b", []), 0.0)
    assert made.explain(0.0) == "this node is not a member, and no eligible member is reachable"
