"""Promises and rounds: who has to promise, when it is old enough, what is told of it.

Default settings: whoever was quiet for 2.55 s (2.5 s and two clocks' margin) needs no waiting.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from downing.messages import ProposeDown
from downing.promises import Promises, Round
from downing.settings import DowningSettings
from gossip.effects import Send
from gossip.membership import NodeId
from tests.downing.cases import node_of

SETTINGS = DowningSettings()
QUIET_S = SETTINGS.quiet_needed_s
A, B, C, D, E = (node_of(name) for name in "abcde")


def always(promisers: Collection[NodeId]) -> bool:
    """As if any set would survive."""
    return True


class Asked:
    """A round of `a` about `e`, or others."""

    def __init__(self, *subjects: NodeId) -> None:
        self.sent: list[Send] = []
        self.round = Round(3, frozenset(subjects or (E,)), SETTINGS, self.sent.append)

    def ask(self, *members: NodeId, now: float = 0.0, helpers: tuple[NodeId, ...] = ()) -> None:
        """Those of the side, and those that answer."""
        self.round.ask(members, list(helpers), now)

    def promise(self, sender: NodeId, quiet_s: float, now: float, *about: NodeId) -> bool:
        """It promises."""
        return self.round.promised(sender, [(node, quiet_s) for node in about or (E,)], now)

    def marked(self, now: float, own_at: float = 0.0) -> list[NodeId]:
        """Whom it may mark, when anybody would survive."""
        return self.round.may_mark(dict.fromkeys(self.round.subjects, own_at), always, now)


# a round


def test_all_that_are_asked_have_to_promise() -> None:
    asked = Asked()
    asked.ask(B, C, D)
    assert [send.to for send in asked.sent] == [B, C, D]
    assert asked.sent[0].message == ProposeDown(3, (E,))
    for node in (B, C):
        asked.promise(node, 10.0, 0.1)
        assert asked.marked(0.1) == []
        assert node not in asked.round.silent
    assert asked.round.silent == [D]
    asked.promise(D, 10.0, 0.1)
    assert asked.marked(0.1) == [E]


def test_what_is_missing_to_the_quiet_time_is_waited_for() -> None:
    """From the instant the promise came, by our clock: never too early."""
    asked = Asked()
    asked.ask(B)
    asked.promise(B, 1.0, 5.0)
    asked.ask(B, now=5.0)
    ready_at = 5.0 + QUIET_S - 1.0
    assert asked.round.due(5.0) == pytest.approx(ready_at)
    assert asked.marked(ready_at - 0.001) == []
    assert asked.marked(ready_at + 0.001) == [E]


def test_our_own_last_grant_is_waited_for_too() -> None:
    asked = Asked()
    asked.ask(B)
    asked.promise(B, 10.0, 0.0)
    assert asked.marked(1.0, own_at=1.5) == []
    assert asked.marked(1.5, own_at=1.5) == [E]


def test_a_second_promise_does_not_shorten_the_wait_nor_lengthen_it() -> None:
    """It is for ever; the first one tells when it began."""
    asked = Asked()
    asked.ask(B)
    asked.promise(B, 0.5, 0.0)
    asked.promise(B, 10.0, 0.1)
    asked.promise(B, 0.0, 0.2)
    assert asked.marked(QUIET_S - 0.51) == []
    assert asked.marked(QUIET_S - 0.49) == [E]


def test_who_promised_have_to_survive() -> None:
    asked = Asked()
    asked.ask(B, C)
    asked.promise(B, 10.0, 0.0)
    asked.promise(C, 10.0, 0.0)
    seen: list[set[NodeId]] = []

    def survives(promisers: Collection[NodeId]) -> bool:
        seen.append(set(promisers))
        return False

    assert asked.round.may_mark({E: 0.0}, survives, 1.0) == []
    assert seen == [{B, C}]


def test_a_subject_that_is_reachable_promises_about_the_others_alone() -> None:
    """Two are downed that are both heard: neither has to promise about itself."""
    asked = Asked(D, E)
    asked.ask(B, D, E)
    asked.promise(B, 10.0, 0.0, D, E)
    asked.promise(D, 10.0, 0.0, E)
    assert asked.marked(0.0) == [E]
    asked.promise(E, 10.0, 0.0, D)
    assert asked.marked(0.0) == [D, E]
    assert asked.round.silent == []


@pytest.mark.parametrize("quiet_s", [-1.0, -math.inf, math.nan])
def test_a_quiet_time_that_is_none_is_no_promise(quiet_s: float) -> None:
    asked = Asked()
    asked.ask(B)
    asked.promise(B, quiet_s, 0.0)
    assert asked.round.silent == [B]
    assert asked.marked(100.0) == []


def test_promises_about_others_and_of_others_change_nothing() -> None:
    asked = Asked()
    asked.ask(B)
    assert asked.promise(B, 10.0, 0.0, D)
    assert asked.marked(0.0) == []
    assert not asked.promise(C, 10.0, 0.0)
    assert asked.marked(0.0) == []


def test_whoever_joins_the_side_has_to_promise_and_who_goes_need_not() -> None:
    asked = Asked()
    asked.ask(B, C)
    asked.promise(B, 10.0, 0.0)
    asked.ask(B, D, now=0.1)
    assert asked.round.silent == [D]
    asked.ask(B, now=0.2)
    assert asked.marked(0.2) == [E]


def test_silent_ones_are_asked_again_then_through_others() -> None:
    """H4: a decider that reaches some only through others."""
    asked = Asked()
    asked.ask(B, C, D, helpers=(B, C))
    asked.promise(B, 10.0, 0.0)
    asked.sent.clear()
    asked.ask(B, C, D, now=0.1, helpers=(B, C))
    assert asked.sent == []
    asked.ask(B, C, D, now=0.25, helpers=(B, C))
    assert {(send.to, send.via) for send in asked.sent} == {
        (C, None), (C, B), (D, None), (D, B), (D, C)
    }  # fmt: skip
    assert asked.round.due(0.25) == 0.5
    asked.promise(C, 10.0, 0.3)
    asked.promise(D, 10.0, 0.3)
    asked.ask(B, C, D, now=0.5, helpers=(B, C))
    assert asked.round.due(0.5) == math.inf


def test_a_pair_s_survivor_needs_nobody() -> None:
    """Alone on its side, with the lowest address: its own quiet time is all."""
    asked = Asked(B)
    asked.ask()
    assert asked.marked(1.0, own_at=2.0) == []
    assert asked.marked(2.0, own_at=2.0) == [B]


# promises of our own


def test_a_promise_is_old_enough_when_the_last_grant_is_over() -> None:
    promises = Promises(SETTINGS)
    promises.promise([D, E], {E: 9.0}, now=10.0)
    assert promises.made == {D: 10.0, E: 9.0 + QUIET_S}
    assert promises.due(10.0) == 9.0 + QUIET_S
    assert promises.due(20.0) == math.inf


def test_a_promise_is_made_once() -> None:
    promises = Promises(SETTINGS)
    promises.promise([E], {}, now=1.0)
    promises.promise([E], {E: 0.9}, now=5.0)
    assert promises.made == {E: 1.0}


def test_it_is_told_how_long_no_grant_was_given_up_to_a_bound() -> None:
    promises = Promises(SETTINGS)
    promises.promise([D, E], {E: 9.0}, now=10.0)
    told = promises.as_told(4, [C, D, E], {E: 9.0}, now=10.5)
    assert told.round == 4
    assert dict(told.promises) == {D: 2 * QUIET_S, E: 1.5}


def test_what_was_not_promised_is_not_told() -> None:
    assert Promises(SETTINGS).as_told(4, [D, E], {}, now=1.0).promises == ()


def test_promises_are_kept_until_the_process_is_down() -> None:
    promises = Promises(SETTINGS)
    promises.promise([D, E], {}, now=1.0)
    promises.forget({D})
    assert set(promises.made) == {E}


def test_promises_are_bounded() -> None:
    promises = Promises(DowningSettings(subjects_max=2))
    promises.promise([C, D, E], {}, now=1.0)
    assert len(promises.made) == 2
