"""Judges from outside: who acted when, and whether the nodes agree.

Decides what counts as two instances acting at once and as one view. Reads only what the subject
actors themselves wrote (their steps, in the world's time) and the views the nodes published, never
what a manager says of its own state. Called by tests, stories and `simulate`.

An instance *acts* when user code of it or of its children begins a step. It acts from its first to
its last step; what lies between two steps of one instance belongs to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gossip.membership import MembershipView, NodeId, Status
from node.testkit.stage import Stage
from node.testkit.timeline import WorldError

# Clean-up after the last act: it runs when nothing is held any more.
NOT_ACTING = frozenset({"stop"})


class CheckFailedError(WorldError):
    """A checker found what must never be."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one instance. `number` orders all steps of a world; `at_s` is its time."""

    number: int
    at_s: float
    subject: str
    instance: int
    node: str
    kind: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two instances of one subject acted in turns from `from_s` to `to_s`."""

    subject: str
    instances: tuple[int, int]
    nodes: tuple[str, str]
    from_s: float
    to_s: float

    @property
    def duration_s(self) -> float:
        """How long; 0.0 when it happened within one instant."""
        return self.to_s - self.from_s


class Instance:
    """The life of one actor instance, written by the instance itself."""

    __slots__ = ("_log", "ended", "node", "number", "start", "subject")

    def __init__(self, log: StepLog, subject: str, number: int, node: str, start: int) -> None:
        self._log = log
        self.subject = subject
        self.number = number
        self.node = node
        self.start = start  # which process of its node
        self.ended = False

    def step(self, kind: str) -> None:
        """User code of the instance begins a step now."""
        self._log.add(self, kind)

    def end(self) -> None:
        """The last thing it does."""
        self._log.add(self, "stop")
        self.ended = True

    def __repr__(self) -> str:
        return f"{self.subject} #{self.number} on {self.node}"


class StepLog:
    """All steps of all instances of a world, outside of every node."""

    def __init__(self, world: Stage) -> None:
        self.world = world
        self.steps: list[Step] = []
        self.instances: list[Instance] = []
        self._open: dict[int, Instance] = {}

    def begin(self, subject: str) -> Instance:
        """A new instance of `subject` on the node whose step this is."""
        node = self.world.here()
        instance = Instance(self, subject, len(self.instances) + 1, node.name, node.starts)
        self.instances.append(instance)
        self._open[instance.number] = instance
        return instance

    def add(self, instance: Instance, kind: str) -> None:
        """Write a step down; a world that is closed has no more of them."""
        world = self.world
        if world.closed:
            return
        number = len(self.steps)
        self.steps.append(
            Step(number, world.now, instance.subject, instance.number, instance.node, kind)
        )
        world.trace.note(world.now, instance.node, "act", instance.subject, instance.number, kind)
        if kind == "stop":
            self._open.pop(instance.number, None)

    def running(self, subject: str | None = None) -> list[Instance]:
        """Instances that began and did not end, in a process that still exists."""
        found = []
        for instance in list(self._open.values()):
            node = self.world[instance.node]
            if not node.running or node.starts != instance.start:
                del self._open[instance.number]
            elif subject in (None, instance.subject):
                found.append(instance)
        return found

    def overlaps(self, subject: str | None = None) -> list[Overlap]:
        """Where two instances acted at once; see `overlaps`."""
        return overlaps(step for step in self.steps if subject in (None, step.subject))


def overlaps(steps: Iterable[Step]) -> list[Overlap]:
    """Pairs of instances of one subject that acted at once, by the instant it began.

    Two instances did when the first step of the later one comes before the last step of the
    earlier one. Steps of a kind in NOT_ACTING do not count.
    """
    found = []
    for (subject, one), (other_subject, other) in combinations(spans := _spans(steps), 2):
        (first, last), (other_first, other_last) = spans[subject, one], spans[other_subject, other]
        if subject == other_subject and other_first.number < last.number:
            found.append(
                Overlap(
                    subject=subject,
                    instances=(one, other),
                    nodes=(first.node, other_first.node),
                    from_s=other_first.at_s,
                    to_s=min(last.at_s, other_last.at_s),
                )
            )
    return sorted(found, key=lambda overlap: (overlap.from_s, overlap.instances))


def acting_max(steps: Iterable[Step]) -> int:
    """The greatest number of instances of one subject that acted at once; 0 without any step."""
    spans = _spans(steps)
    return max(
        (
            sum(
                other == subject and began.number <= first.number <= over.number
                for (other, _), (began, over) in spans.items()
            )
            for (subject, _), (first, _) in spans.items()
        ),
        default=0,
    )


def _spans(steps: Iterable[Step]) -> dict[tuple[str, int], tuple[Step, Step]]:
    """First and last acting step of each instance, in the order of the first ones."""
    spans: dict[tuple[str, int], tuple[Step, Step]] = {}
    for step in sorted(steps, key=lambda step: step.number):
        if step.kind not in NOT_ACTING:
            key = (step.subject, step.instance)
            spans[key] = (spans[key][0] if key in spans else step, step)
    return spans


def view_key(view: MembershipView) -> tuple[object, ...]:
    """What two views must share to be the same: members, their status and age, who is unreachable.

    Kinds of `Status` that lead out of the cluster count as different ones.
    """
    members = tuple((member.id, member.status, member.up_number) for member in view.members)
    return (view.cluster_id, members, view.unreachable)


def view_differences(views: Mapping[str, MembershipView | None]) -> list[str]:
    """What keeps the views of all running nodes from being one, in words; empty when they are.

    One view: the same cluster, the same leader, exactly the running nodes as members, all up and of
    one age at all nodes, nobody unreachable.
    """
    known = {name: view for name, view in views.items() if view is not None}
    words = [f"{name} has no view" for name in views if name not in known]
    running = {view.self_id for view in known.values()}
    for name, view in known.items():
        words += [f"{name}: {flaw}" for flaw in _flaws(view, running)]
    for what, values in (
        ("cluster", {view.cluster_id for view in known.values()}),
        ("leader", {view.leader for view in known.values()}),
    ):
        if len(values) > 1:
            words.append(f"the nodes see {len(values)} different values of {what}")
    if not words and len({view_key(view) for view in known.values()}) > 1:
        words.append("the nodes disagree about the age of a member")
    return words


def _flaws(view: MembershipView, running: set[NodeId]) -> list[str]:
    members = {member.id for member in view.members}
    words = [f"{node} is missing" for node in sorted(running - members)]
    words += [f"{node} does not run any more" for node in sorted(members - running)]
    words += [
        f"{member.id} is {member.status.name.lower()}"
        for member in view.members
        if member.status is not Status.UP and member.id in running
    ]
    words += [f"{node} is unreachable" for node in sorted(view.unreachable)]
    # Two leaders in a split may give one age twice: then the id decides.
    words += [f"{member.id} has no age" for member in view.members if member.up_number == 0]
    return words


def check_one_view(world: Stage) -> None:
    """Raise CheckFailedError unless all running nodes have one view; call it after the faults."""
    words = view_differences(world.views())
    if words:
        raise CheckFailedError(world.timeline.report("no one view:\n  " + "\n  ".join(words)))


class TwoOnlyWhileViewsDiffer:
    """At level none: two instances are allowed only while the nodes' views differ, or while their
    hosts cannot talk to each other.

    Looked at after every step of the world once it is attached. Flagged: a second instance that
    begins while all running nodes have one view, and two that go on `grace_s` after the views
    became one (the younger host has 3 s to stand down). Views may be one although two hosts are
    cut off from each other: each is reachable through a third node. The world knows the cuts.
    """

    def __init__(self, *, grace_s: float = 3.0) -> None:
        self.grace_s = grace_s
        self.flaws: list[str] = []
        self._count = 0
        self._agreed_since = math.inf
        self._flagged = False

    def attach(self, world: Stage, log: StepLog, subject: str) -> None:
        """Look from now on; a flaw raises CheckFailedError out of the world's `run…`."""
        seen: list[MembershipView | None] = []
        agreed = False

        def look() -> None:
            nonlocal seen, agreed
            views = [node.view for node in world.running]
            if len(views) != len(seen) or any(map(operator.is_not, views, seen)):
                seen = views
                agreed = len({view_key(view) for view in views if view is not None}) <= 1
            running = log.running(subject)
            talk = len(running) < 2 or not any(
                world.network.path(one.node, other.node).is_cut
                for one in running
                for other in running
                if one.node != other.node
            )
            flaw = self.look(world.now, running, agreed and talk)
            if flaw:
                raise CheckFailedError(world.timeline.report(flaw))

        world.timeline.watchers.append(look)

    def look(self, now: float, running: Sequence[Instance], agreed: bool) -> str:
        """Judge one instant; to be called at each change. Returns the flaw found, or `""`."""
        agreed_before = self._agreed_since < math.inf
        if not agreed:
            self._agreed_since = math.inf
        elif not agreed_before:
            self._agreed_since = now
        began = self._count < 2 <= len(running)
        self._count = len(running)
        if len(running) < 2:
            self._flagged = False
        if len(running) < 2 or not agreed or self._flagged:
            return ""
        if began and agreed_before:
            return self._flag(f"a second instance began while all views were one: {[*running]}")
        if now - self._agreed_since > self.grace_s:
            return self._flag(f"two instances {self.grace_s} s after all views were one: {running}")
        return ""

    def _flag(self, flaw: str) -> str:
        self._flagged = True  # told once per episode
        self.flaws.append(flaw)
        return flaw
