"""Who is watched, who is held, and how a node doubts itself: the parts of the failure detector."""

from __future__ import annotations

import random

import pytest

from gossip.health import STARTS_AT, LocalHealth
from gossip.membership import NodeId
from gossip.watching import (
    FLAP_WINDOW_S,
    HELD_ACKS_MIN,
    HELD_PINGS,
    MISSES_MIN,
    SAVED_MIN,
    SETTLING_S,
    WINDOW,
    Watch,
)

RNG = random.Random(7)
NODES = [NodeId(f"10.0.0.{n}", 25520, RNG.getrandbits(64)) for n in range(1, 13)]
X = NODES[0]


def watching(self_id: NodeId, *, unreachable: frozenset[NodeId] = frozenset()) -> Watch:
    watch = Watch(4)
    for node in NODES:
        if node != self_id:
            watch.add(node)
    watch.follow(self_id, unreachable)
    return watch


def test_everybody_is_watched_by_four_others() -> None:
    watchers = dict.fromkeys(NODES, 0)
    for node in NODES:
        subjects = watching(node).subjects
        assert len(set(subjects)) == 4
        assert node not in subjects
        for subject in subjects:
            watchers[subject] += 1
    assert set(watchers.values()) == {4}


def test_the_unreachable_are_left_out_and_others_take_their_place() -> None:
    before = watching(X).subjects
    after = watching(X, unreachable=frozenset(before[:2])).subjects
    assert len(after) == 4
    assert not set(after) & set(before[:2])


def test_who_did_not_answer_is_probed_again_before_the_others() -> None:
    watch = watching(X)
    subject = watch.subjects[2]
    watch.probed(subject, True, 0.0)
    assert watch.next_subject() == subject
    watch.probed(subject, False, 0.0)
    assert {watch.next_subject() for _ in range(4)} == set(watch.subjects)


@pytest.mark.parametrize(
    ("misses", "last_missed", "loss", "held"),
    [
        (MISSES_MIN, True, 0.0, True),
        (MISSES_MIN - 1, True, 0.0, False),
        (MISSES_MIN, False, 0.0, False),  # it answers now: a cut that has healed
        (WINDOW, True, 0.0, False),  # silent: its suspicion ends by itself
        (MISSES_MIN, True, 0.5, False),  # everybody's probes are lost: it says nothing of one
    ],
)
def test_one_that_hardly_answers_is_held(
    misses: int, last_missed: bool, loss: float, held: bool
) -> None:
    watch = watching(X)
    subject = watch.subjects[0]
    outcomes = [True] * misses + [False] * (WINDOW - misses)
    if last_missed:
        outcomes.reverse()
    results = [watch.probed(subject, missed, loss) for missed in outcomes]
    assert results[-1] is held
    assert not any(results[:-1])


def test_a_link_that_only_helpers_save_is_a_failing_link() -> None:
    watch = watching(X)
    peer = NODES[5]
    changes = [watch.linked(peer, False) for _ in range(SAVED_MIN + 1)]
    assert changes == [None] * (SAVED_MIN - 1) + [False, None]
    assert watch.failing_links == [peer]
    assert watch.linked(peer, True) is True
    assert watch.failing_links == []


def test_who_came_back_and_is_lost_again_flaps_but_not_while_a_heal_settles() -> None:
    watch = watching(X)
    watch.returned(NODES[3], 100.0)
    assert not watch.is_flapping(NODES[3], 100.0 + SETTLING_S / 2)
    assert watch.is_flapping(NODES[3], 100.0 + SETTLING_S)
    assert not watch.is_flapping(NODES[3], 100.0 + FLAP_WINDOW_S)
    assert not watch.is_flapping(NODES[4], 110.0)


def test_the_held_one_returns_after_it_has_answered_nearly_everything() -> None:
    watch = watching(X)
    watch.hold(NODES[3])
    for number in range(HELD_PINGS - 1):
        watch.pinged_held(NODES[3], number >= HELD_PINGS - HELD_ACKS_MIN)
        assert not watch.may_return(NODES[3])
    watch.pinged_held(NODES[3], True)
    assert watch.may_return(NODES[3])
    watch.release(NODES[3])
    assert watch.held == []


def test_local_health_saturates_and_recovers_one_by_one() -> None:
    health = LocalHealth(8)
    assert health.factor == STARTS_AT + 1
    health.worse(20)
    assert health.factor == 9
    for _ in range(20):
        health.better()
    assert health.factor == 1


def test_patience_grows_with_answers_that_come_late_and_not_with_the_dead() -> None:
    """A probe that nobody answers says nothing of the network."""
    health = LocalHealth(8)
    assert health.patience == 1.0
    for number in range(60):
        health.answered(in_time=number % 3 > 0)
    assert 1.5 < health.patience < 4.0
    for _ in range(60):
        health.answered(in_time=True)
    assert health.patience == 1.0
