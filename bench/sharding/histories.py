"""What befell entities, read from the files they wrote themselves.

Decides what a life of an entity is, whether two of them overlapped, and how long an entity was
still. Every instant is CLOCK_BOOTTIME as the entity's own process wrote it. Pure: text in, figures
out. Called by `bench.sharding.faults` and `tests/bench`.

A line is `at_s node life entity kind number`; `life` is unique, and `kind` is one of those below.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

START, STEP, STOP = "start", "step", "stop"


@dataclass(eq=False)
class Life:
    """One instance of an entity: from its first line to its last, if it wrote that it was one."""

    name: str
    entity: str
    node: str
    began_s: float
    last_s: float
    stopped: bool = False
    steps: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def ended_s(self, killed: Mapping[str, float]) -> float:
        """When it was over for certain: who was not stopped lives on, unless its node was killed
        (node → when), which ends it after its last line."""
        if self.stopped:
            return self.last_s
        at_s = killed.get(self.node, math.inf)
        return math.inf if math.isinf(at_s) else max(at_s, self.last_s)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two lives of one entity at once."""

    entity: str
    older: str
    younger: str
    for_s: float


def lives_of(lines: Iterable[str]) -> dict[str, list[Life]]:
    """The lives of each entity, in the order in which they began. Lines may come in any order."""
    found: dict[str, Life] = {}
    written = [line.split() for line in lines]
    for at, node, name, entity, kind, number in sorted(written, key=lambda words: float(words[0])):
        at_s = float(at)
        life = found.get(name)
        if life is None:
            life = found[name] = Life(name, entity, node, at_s, at_s)
        life.last_s = at_s
        if kind == STEP:
            life.steps.append(at_s)
            life.numbers.append(int(number))
        elif kind == STOP:
            life.stopped = True
    lives: dict[str, list[Life]] = {}
    for life in found.values():  # in the order of their first lines
        lives.setdefault(life.entity, []).append(life)
    return lives


def overlaps(
    lives: Mapping[str, Sequence[Life]], killed: Mapping[str, float] | None = None
) -> list[Overlap]:
    """Every life that began before an earlier one of the same entity was over."""
    ends = killed or {}
    found = []
    for entity, own in sorted(lives.items()):
        for older, younger in itertools.combinations(own, 2):
            ended_s = older.ended_s(ends)
            if younger.began_s < ended_s:
                until_s = min(ended_s, max(older.last_s, younger.last_s))
                for_s = max(0.0, until_s - younger.began_s)
                found.append(Overlap(entity, older.name, younger.name, for_s))
    return found


def planted(lines: Sequence[str]) -> list[str]:
    """The same lines and one more: an entity that was alive in two places for an instant. For the
    checker to prove that it would see it. Raises ValueError where no entity has taken a step."""
    for line in lines:
        at, _, name, entity, kind, _ = line.split()
        if kind == STEP:
            # Just before a step: the older one was alive, for it went on.
            before_s = float(at) - 1e-6
            return [*lines, f"{before_s:.6f} elsewhere:1 planted-beside-{name} {entity} {START} -"]
    raise ValueError("no entity has taken a step: there is nothing to plant an overlap beside")


def proves_itself(lines: Sequence[str], killed: Mapping[str, float] | None = None) -> bool:
    """Whether the checker sees an overlap that is planted in these lines."""
    before = {(one.older, one.younger) for one in overlaps(lives_of(lines), killed)}
    after = {(one.older, one.younger) for one in overlaps(lives_of(planted(lines)), killed)}
    new = after - before
    return bool(new) and all("planted-beside-" in f"{older}{younger}" for older, younger in new)


def longest_stillness_s(
    own: Sequence[Life], since_s: float = -math.inf, until_s: float = math.inf
) -> float:
    """The longest time between two steps of an entity, wherever it lived; only what lies between
    these instants counts, and they are edges themselves where they are finite."""
    steps = sorted(at for life in own for at in life.steps if since_s <= at <= until_s)
    edges = [at for at in (since_s, until_s) if math.isfinite(at)]
    return max((b - a for a, b in itertools.pairwise(sorted([*edges, *steps]))), default=0.0)


def node_at(own: Sequence[Life], at_s: float) -> str | None:
    """Where an entity lived at an instant: the node of its last life that had begun."""
    begun = [life for life in own if life.began_s <= at_s]
    return begun[-1].node if begun else None


def first_step_s(own: Sequence[Life], node: str, since_s: float) -> float | None:
    """When an entity took its first step after an instant anywhere but on this node."""
    return min(
        (at for life in own if life.node != node for at in life.steps if at >= since_s),
        default=None,
    )


def handled(lives: Mapping[str, Sequence[Life]]) -> Counter[int]:
    """How often each number was handled."""
    return Counter(n for own in lives.values() for life in own for n in life.numbers)
