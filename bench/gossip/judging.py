"""What the members of a simulated network say of each other, kept for the experiments.

Decides what a declaration of failure is: an observer publishes that a member is unreachable, down
or removed, having held it reachable before. The oracle is the experiment, which knows whom it
broke: a judge never asks a machine whether it is right. Called by `bench.gossip.network`, read by
the experiments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from bench.gossip.network import Network
from gossip.events import MemberChanged, MemberRemoved, ReachabilityChanged
from gossip.membership import NodeId, Status


@dataclass(frozen=True, slots=True)
class Declaration:
    """`observer` began to hold `subject` unreachable or gone at this instant."""

    at: float
    observer: int
    subject: int


class Judge:
    """Watches a network from now on. Members are indices; `changes` counts by (observer, subject)
    how often a verdict moved, in either direction."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.declarations: list[Declaration] = []
        self.changes: Counter[tuple[int, int]] = Counter()
        self.episodes: Counter[int] = Counter()  # times a subject began to be held by somebody
        self._held: defaultdict[int, dict[int, float]] = defaultdict(dict)
        network.watchers.append(self)

    def __call__(self, index: int, fact: object, now: float) -> None:
        """Take in what a machine published."""
        kind = type(fact)
        if kind is ReachabilityChanged:
            assert isinstance(fact, ReachabilityChanged)
            self._moved(index, fact.id, not fact.reachable, now)
        elif kind is MemberRemoved:
            assert isinstance(fact, MemberRemoved)
            self._moved(index, fact.id, True, now)
        elif kind is MemberChanged:
            assert isinstance(fact, MemberChanged)
            if fact.member.status is Status.DOWN:
                self._moved(index, fact.member.id, True, now)

    def _moved(self, observer: int, node: NodeId, is_held: bool, now: float) -> None:
        subject = self._network.index_of(node)
        if subject is None:
            return
        held = self._held[subject]
        if is_held == (observer in held):
            return
        self.changes[observer, subject] += 1
        if not is_held:
            del held[observer]
            return
        if not held:
            self.episodes[subject] += 1
        held[observer] = now
        self.declarations.append(Declaration(now, observer, subject))

    def holders(self, subject: int) -> dict[int, float]:
        """Who holds this member unreachable or gone now, and since when."""
        return self._held[subject]

    def is_held_by(self, subject: int, observers: Collection[int]) -> bool:
        """True when all of these hold it unreachable or gone."""
        held = self._held[subject]
        return len(held) >= len(observers) and all(observer in held for observer in observers)

    def declared_at(self, subject: int, observers: Collection[int], since: float) -> list[float]:
        """When each of these first declared the subject, from `since` on; sorted."""
        first: dict[int, float] = {}
        wanted = set(observers)
        for one in self.declarations:
            if one.subject == subject and one.at >= since and one.observer in wanted:
                first.setdefault(one.observer, one.at)
        return sorted(first.values())

    def false(self, faulty: Collection[int], *, at_healthy: bool = False) -> int:
        """Declarations about members that were not broken; `at_healthy`: only by such members."""
        broken = frozenset(faulty)
        return sum(
            one.subject not in broken and not (at_healthy and one.observer in broken)
            for one in self.declarations
        )
