"""What the leader decides: who becomes up, who is removed, when it stops waiting.

Decides only; `gossip.machine` performs the steps and spreads them. All that one converged view
allows is decided at once: a hundred joiners need as few rounds as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gossip.ground import Ground
from gossip.membership import NUMBER_MAX, Cause, Member, NodeId, Status


@dataclass(frozen=True, slots=True)
class Step:
    """Move a member's status; `REMOVED` puts a tombstone in its place."""

    member: Member
    status: Status
    up_number: int = 0
    cause: Cause = Cause.NONE


class Patience:
    """How long joiners, and members that cannot be reached, have been waited for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._joined_at: dict[NodeId, float] = {}
        self._unreachable_since: dict[NodeId, float] = {}

    def status_moved(self, member: Member, now: float) -> None:
        """A member appeared, or its status moved."""
        if member.status in (Status.JOINING, Status.WEAKLY_UP):
            self._joined_at.setdefault(member.id, now)
        else:
            self._joined_at.pop(member.id, None)

    def forget(self, node: NodeId) -> None:
        """It was removed."""
        self._joined_at.pop(node, None)

    def reachability_changed(self, node: NodeId, reachable: bool, now: float) -> None:
        """The verdict about it changed."""
        if reachable:
            self._unreachable_since.pop(node, None)
        else:
            self._unreachable_since[node] = now

    def unreachable_since(self, node: NodeId, default: float) -> float:
        """Since when it is unreachable."""
        return self._unreachable_since.get(node, default)

    def ends_at(self, node: NodeId) -> float:
        """When a joiner that waits for convergence is due to become weakly up, or be removed."""
        ground = self._ground
        if node not in self._joined_at:
            return math.inf
        patience_s = ground.settings.weakly_up_after_s
        if node in ground.unreachable:
            return self._unreachable_since.get(node, math.inf) + patience_s
        member = ground.table.members.get(node)
        if member is None or member.status is not Status.JOINING:
            return math.inf
        return self._joined_at[node] + patience_s

    @property
    def joiners(self) -> list[NodeId]:
        """Members that never were up."""
        return [node for node in self._joined_at if node in self._ground.table.members]

    @property
    def deadline(self) -> float:
        """When the first of them is due."""
        return min(map(self.ends_at, self._joined_at), default=math.inf)


def impatient_steps(ground: Ground, patience: Patience, now: float) -> list[Step]:
    """What is due without convergence."""
    steps = []
    members = ground.table.members
    for node in sorted({*patience.joiners, *ground.unreachable}):
        member = members[node]
        is_lost = node in ground.unreachable
        if now >= patience.ends_at(node):
            if is_lost:
                steps.append(Step(member, Status.DOWN, cause=Cause.NEVER_UP))
            else:
                steps.append(Step(member, Status.WEAKLY_UP))
        elif is_lost and member.status in (Status.LEAVING, Status.EXITING):
            # A leave is announced after everything unique has stopped.
            steps.append(Step(member, Status.DOWN, cause=Cause.LEFT))
    return steps


def converged_steps(ground: Ground, has_heard: Callable[[NodeId], bool]) -> list[Step]:
    """What a view that everybody holds allows; `has_heard` tells whom we heard ourselves."""
    steps = []
    members = [ground.table.members[node] for node in ground.table.nodes]
    number = max((member.up_number for member in members), default=0)
    for member in _in_order_of_joining(members):
        if member.id in ground.unreachable and member.status < Status.LEAVING:
            continue
        is_self = member.id == ground.self_id
        match member.status:
            case Status.JOINING | Status.WEAKLY_UP if is_self or has_heard(member.id):
                number = min(number + 1, NUMBER_MAX)
                steps.append(Step(member, Status.UP, up_number=number))
            case Status.LEAVING:
                steps.append(Step(member, Status.EXITING))
            case Status.EXITING | Status.DOWN if not is_self:
                steps.append(Step(member, Status.REMOVED))
    return steps


def _in_order_of_joining(members: Iterable[Member]) -> list[Member]:
    """Who was weakly up already has waited longer, and is the older one."""
    return sorted(members, key=lambda member: (-member.status, member.id))
