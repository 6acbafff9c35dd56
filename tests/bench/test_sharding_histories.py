"""The checker of the sharding bench: lives, overlaps, stillness; that it sees what is planted."""

from __future__ import annotations

import pytest

from bench.sharding.histories import (
    first_step_s,
    handled,
    lives_of,
    longest_stillness_s,
    node_at,
    overlaps,
    planted,
    proves_itself,
)

MOVED = [
    "1.0 n1 n1/a w0 start -",
    "1.1 n1 n1/a w0 step 0",
    "1.5 n1 n1/a w0 step 1",
    "1.6 n1 n1/a w0 stop -",
    "1.7 n2 n2/b w0 start -",
    "2.5 n2 n2/b w0 step 2",
    "1.0 n1 n1/c w1 start -",
    "1.2 n1 n1/c w1 step 3",
]
KILLED = [
    "1.0 n1 n1/a w0 start -",
    "1.1 n1 n1/a w0 step 0",
    "2.2 n2 n2/b w0 start -",
    "2.3 n2 n2/b w0 step 1",
]


def test_a_move_is_no_overlap_whatever_the_order_of_the_lines() -> None:
    for lines in (MOVED, MOVED[::-1]):
        assert overlaps(lives_of(lines)) == []


def test_a_life_that_begins_before_the_other_was_over_is_an_overlap() -> None:
    lines = [line.replace("1.7 n2", "1.55 n2") for line in MOVED]
    [found] = overlaps(lives_of(lines))
    assert (found.entity, found.older, found.younger) == ("w0", "n1/a", "n2/b")
    assert found.for_s == pytest.approx(0.05)


def test_who_was_not_stopped_lives_until_its_node_is_killed() -> None:
    assert len(overlaps(lives_of(KILLED))) == 1
    assert overlaps(lives_of(KILLED), {"n1": 2.0}) == []
    assert len(overlaps(lives_of(KILLED), {"n1": 2.25})) == 1
    assert len(overlaps(lives_of(KILLED), {"n2": 2.0})) == 1


def test_the_checker_sees_a_planted_overlap() -> None:
    assert proves_itself(MOVED)
    assert proves_itself(KILLED, {"n1": 2.0})
    assert len(planted(MOVED)) == len(MOVED) + 1
    with pytest.raises(ValueError, match="no entity has taken a step"):
        planted(["1.0 n1 n1/a w0 start -"])


def test_stillness_is_measured_over_lives_and_within_edges() -> None:
    own = lives_of(MOVED)["w0"]
    assert longest_stillness_s(own) == pytest.approx(1.0)
    assert longest_stillness_s(own, 1.0, 1.5) == pytest.approx(0.4)
    assert longest_stillness_s(own, 1.0, 9.0) == pytest.approx(6.5)


def test_where_an_entity_was_and_when_it_came_back() -> None:
    own = lives_of(MOVED)["w0"]
    assert [node_at(own, at_s) for at_s in (0.5, 1.3, 1.7)] == [None, "n1", "n2"]
    assert first_step_s(own, "n1", 1.6) == 2.5
    assert first_step_s(own, "n2", 1.6) is None
    assert handled(lives_of(MOVED)) == {0: 1, 1: 1, 2: 1, 3: 1}
