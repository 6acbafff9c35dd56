"""Each checker finds a planted fault, and stays silent on a history without it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from gossip.membership import Member, MembershipView, NodeId, Status
from node.testkit.checkers import (
    CheckFailedError,
    Instance,
    Step,
    StepLog,
    TwoOnlyWhileViewsDiffer,
    acting_max,
    check_one_view,
    overlaps,
    view_differences,
    view_key,
)
from node.testkit.timeline import WorldError
from tests.node.testkit.bare import Bare


def _history(text: str) -> list[Step]:
    """`"1a 2b 1a!"`: instance 1 steps on a, 2 on b, 1 runs its clean-up; one step a second."""
    return [
        Step(number, float(number), "s", int(word[0]), word[1], "stop" if "!" in word else "tick")
        for number, word in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ("1a 1a 1a! 2b 2b", []),
        ("1a 1a 2b 2b 1a!", []),  # clean-up after the loss is no act
        ("1a 2b 1a 2b", [(1, 2, 1.0, 2.0)]),
        ("1a 2b 2b 2b 1a", [(1, 2, 1.0, 3.0)]),
        ("1a 2b 1a 3c 2b", [(1, 2, 1.0, 2.0), (2, 3, 3.0, 3.0)]),
        ("1a 2b 3c 1a 2b 3c", [(1, 2, 1.0, 3.0), (1, 3, 2.0, 3.0), (2, 3, 2.0, 4.0)]),
    ],
)
def test_overlaps_are_found_in_a_history(
    history: str, found: list[tuple[int, int, float, float]]
) -> None:
    seen = [(*over.instances, over.from_s, over.to_s) for over in overlaps(_history(history))]
    assert seen == found


def test_instances_of_different_subjects_never_overlap() -> None:
    steps = _history("1a 2b 1a 2b")
    steps = [replace(step, subject=f"s{step.instance}") for step in steps]
    assert overlaps(steps) == []
    assert acting_max(steps) == 1


@pytest.mark.parametrize(
    ("history", "most"),
    [("", 0), ("1a", 1), ("1a 2b", 1), ("1a 2b 1a", 2), ("1a 2b 1a 3c 2b", 2), ("1a 2b 3c 1a", 2)],
)
def test_the_greatest_number_acting_at_once(history: str, most: int) -> None:
    """I-152."""
    assert acting_max(_history(history)) == most


def _view(own: int, members: str = "1 2 3", **changes: Any) -> MembershipView:
    ids = [NodeId("10.0.0.1", 25520, int(uid)) for uid in members.split()]
    view = MembershipView(
        self_id=NodeId("10.0.0.1", 25520, own),
        cluster_id=7,
        members=tuple(
            Member(id=node, status=Status.UP, up_number=number + 1)
            for number, node in enumerate(ids)
        ),
        leader=ids[0],
    )
    return replace(view, **changes)


def _aged(view: MembershipView, *ages: int) -> MembershipView:
    members = zip(view.members, ages, strict=True)
    return replace(view, members=tuple(replace(m, up_number=age) for m, age in members))


def _with_status(view: MembershipView, status: Status) -> MembershipView:
    return replace(view, members=(*view.members[:2], replace(view.members[2], status=status)))


@pytest.mark.parametrize(
    ("third", "words"),
    [
        (_view(3), ""),
        (None, "c has no view"),
        (_view(3, "1 3"), "2 is missing"),
        (_view(3, "1 2 3 4"), "4 does not run any more"),
        (_view(3, cluster_id=8), "different values of cluster"),
        (_view(3, leader=None), "different values of leader"),
        (_view(3, unreachable=frozenset({NodeId("10.0.0.1", 25520, 1)})), "1 is unreachable"),
        (_with_status(_view(3), Status.LEAVING), "3 is leaving"),
        (_aged(_view(3), 0, 1, 2), "1 has no age"),
        (_aged(_view(3), 1, 1, 2), "disagree about the age"),
        (_aged(_view(3), 2, 1, 3), "disagree about the age"),
    ],
)
def test_one_view_names_what_differs(third: MembershipView | None, words: str) -> None:
    flaws = "; ".join(view_differences({"a": _view(1), "b": _view(2), "c": third}))
    assert words in flaws
    assert bool(flaws) == bool(words)


def test_check_one_view_looks_at_the_running_nodes_of_a_world() -> None:
    bare = Bare(3)
    for number, node in enumerate(bare.world):
        node.read_view = functools.partial(_view, number + 1)
    check_one_view(bare.world)
    bare.world.crash("c")
    with pytest.raises(CheckFailedError, match="3 does not run any more"):
        check_one_view(bare.world)


# -- two instances only while the views differ


class _Judge:
    """Feeds the checker a script: time, number of instances, whether the views are one."""

    def __init__(self) -> None:
        self.checker = TwoOnlyWhileViewsDiffer(grace_s=3.0)
        log = StepLog(Bare().world)
        self.instances = [Instance(log, "s", number, "a", 1) for number in range(3)]

    def flaws(self, script: list[tuple[float, int, bool]]) -> list[str]:
        looks = [
            self.checker.look(now, self.instances[:count], agreed) for now, count, agreed in script
        ]
        assert [flaw for flaw in looks if flaw] == self.checker.flaws
        return self.checker.flaws


def test_a_second_instance_while_the_views_differ_is_allowed() -> None:
    script = [(0.0, 1, True), (5.0, 1, False), (15.0, 2, False), (60.0, 2, False), (61.0, 1, True)]
    assert _Judge().flaws(script) == []


def test_the_younger_host_has_three_seconds_after_the_heal() -> None:
    before = [(0.0, 1, True), (5.0, 1, False), (15.0, 2, False), (60.0, 2, True)]
    assert _Judge().flaws([*before, (62.9, 2, True), (63.0, 1, True)]) == []
    flaws = _Judge().flaws([*before, (63.1, 2, True), (64.0, 2, True)])
    assert len(flaws) == 1
    assert "two instances 3.0 s after" in flaws[0]


def test_a_second_instance_that_begins_while_the_views_are_one_is_flagged() -> None:
    (flaw,) = _Judge().flaws([(0.0, 1, True), (5.0, 2, True), (5.1, 1, True)])
    assert "a second instance began" in flaw
    again = [(0.0, 2, True), (1.0, 1, True), (2.0, 2, True), (3.0, 3, True), (9.0, 1, True)]
    assert len(_Judge().flaws(again)) == 1


def test_the_attached_checker_sees_instances_and_views_of_a_world() -> None:
    bare = Bare(2)
    world = bare.world
    views = {"a": _view(1, "1 2"), "b": _view(2, "1 2")}
    for node in world:
        node.read_view = functools.partial(views.__getitem__, node.name)
    log = StepLog(world)
    TwoOnlyWhileViewsDiffer().attach(world, log, "s")
    first = world["a"].call(log.begin, "s")
    world["a"].call(first.step, "start")
    world.run_for(s=1.0)

    world.after(1.0, lambda: views.update(b=_view(2, "2")))
    world.after(2.0, world["b"].loop.call_soon, log.begin, "s")
    world.after(9.0, lambda: views.update(b=_view(2, "1 2")))
    world.every(0.1, lambda: None)
    world.run_for(s=11.9)
    with pytest.raises(CheckFailedError, match=r"two instances 3\.0 s after"):
        world.run_for(s=1.0)

    world.crash("a")
    assert [instance.node for instance in log.running("s")] == ["b"]
    world.run_for(s=1.0)
    world.after(1.0, world["b"].loop.call_soon, log.begin, "s")
    with pytest.raises(CheckFailedError, match="a second instance began"):
        world.run_for(s=2.0)


def test_view_keys_differ_when_reachability_does() -> None:
    unreachable = frozenset({NodeId("10.0.0.1", 25520, 2)})
    assert view_key(_view(1)) == view_key(_view(2))
    assert view_key(_view(1)) != view_key(_view(1, unreachable=unreachable))


# -- the log


def test_the_log_knows_when_and_where_each_step_was() -> None:
    bare = Bare(2)
    world = bare.world
    log = StepLog(world)
    first = world["a"].call(log.begin, "s")
    world["a"].call(first.step, "start")
    world.run_for(s=1.0)
    second = world["b"].call(log.begin, "s")
    world["b"].call(second.step, "start")
    world["a"].call(first.step, "tick")
    assert [(step.instance, step.node, round(step.at_s, 3)) for step in log.steps] == [
        (1, "a", 0.1),
        (2, "b", 1.1),
        (1, "a", 1.1),
    ]
    (overlap,) = log.overlaps()
    assert overlap.nodes == ("a", "b")
    assert overlap.duration_s == 0.0
    assert log.overlaps("other") == []
    assert log.running() == [first, second]
    world["a"].call(first.end)
    assert log.running("s") == [second]
    world.restart("b")
    world.run_for(s=1.0)
    assert log.running() == [], "its process is gone, though it never said so"


def test_the_log_is_written_on_a_node_and_not_after_the_end() -> None:
    bare = Bare(1)
    log = StepLog(bare.world)
    with pytest.raises(WorldError, match="no node is stepping"):
        log.begin("s")
    instance = bare.world["a"].call(log.begin, "s")
    bare.world.close()
    instance.step("late")
    assert log.steps == []
