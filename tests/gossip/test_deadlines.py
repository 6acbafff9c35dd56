"""A machine that was ticked does not ask to be ticked again at once: nothing that is due but must
wait for something else makes a node spin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gossip.events import LeaveRequested
from tests.gossip.cluster import Cluster, Node

AT_ONE_INSTANT_MAX = 50


class Patient(Cluster):
    """A cluster in which no machine may act more than so often at one instant."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        super().__init__(seed, replace(Cluster().settings, **settings))
        self._acted: Counter[tuple[str, float]] = Counter()
        self.observer = self._look

    def _look(self, name: str, node: Node, effects: list[object]) -> None:
        key = (name, self.now)
        self._acted[key] += 1
        waits_s = node.machine.deadline - self.now
        assert self._acted[key] < AT_ONE_INSTANT_MAX, f"{name} spins: {waits_s} s to its deadline"

    def form(self, names: str) -> None:
        """All of these up; a leads."""
        for name in names.split():
            self.start(name, "a")
        self.run_until(self.all_up(names), within_s=10)
        self.run(3)


def test_a_pruning_that_is_due_waits_for_convergence_without_spinning() -> None:
    """The tombstone of c is old enough, while d, cut off, blocks the leader."""
    cluster = Patient(tombstone_ttl_s=30.0)
    cluster.form("a b c d")
    cluster.feed("c", LeaveRequested())
    cluster.run(5)
    gone = cluster.nodes["c"].id
    cluster.cut("d", "a b")
    cluster.run(60)
    view = cluster.nodes["a"].view
    assert view is not None
    assert gone in view.gone
    assert not view.converged
    cluster.cuts.clear()
    cluster.run(30)
    view = cluster.nodes["a"].view
    assert view is not None
    assert gone not in view.gone


@pytest.mark.parametrize("seed", range(3))
def test_a_joiner_that_is_left_alone_decides_nothing_and_does_not_spin(seed: int) -> None:
    """c was never up when all that were up went out of its reach; it may remove nobody, d neither,
    who joined a moment before."""
    cluster = Patient(seed)
    cluster.form("a b")
    cluster.cut("a", "b")
    cluster.run(10)
    cluster.start("d", "b")
    cluster.start("c", "b")
    cluster.run(1)
    cluster.cut("c", "a b d")
    cluster.run(60)
    view = cluster.nodes["c"].view
    assert view is not None
    assert cluster.nodes["c"].id in view.by_id
    cluster.cuts.clear()
    cluster.run(20)


@pytest.mark.parametrize("names", ["a b", "a b c d e"])
def test_cut_off_from_all_others_nobody_spins(names: str) -> None:
    cluster = Patient()
    cluster.form(names)
    cluster.start("f", "a")
    cluster.run(0.05)
    for name in names.split():
        for other in [*names.split(), "f"]:
            if name != other:
                cluster.cut(name, other)
    cluster.run(60)
    cluster.cuts.clear()
    cluster.run(60)
