"""On whom this node keeps an eye, and whom it holds unreachable because it comes and goes.

Decides who is watched: the next few reachable members on the ring of all uids, so that everybody is
watched by as many others. Decides when a member that is there but mostly does not answer, or that
was lost and came back a moment ago, is *held*: called unreachable until it has answered nearly
every ping for `HOLD_S`. Does not ping, nor write records: that is `gossip.probing`, its owner.

Source: the observers on rings and the share of failed probes are Rapid's (ATC 2018); the penalty
for coming back is that of route flap damping (RFC 2439), without its decay.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Container

from gossip.membership import NodeId

WINDOW = 16  # probes of a watched member that are remembered
MISSES_MIN = 12  # of them unanswered: it hardly answers, though it is there
LOSS_MAX = 0.3  # where so many probes of others are lost, one member's losses say nothing
HEARD_WITHIN_S = 8.0
FLAP_WINDOW_S = 120.0  # who comes back and is lost again within this time is held
HOLD_S = 24.0
HELD_PINGS = 24  # one per second
HELD_ACKS_MIN = 22
FLAPS_MAX = 4096

RingKey = tuple[int, NodeId]


class Watch:
    """Ring, probe histories, returns and holds of one node."""

    def __init__(self, self_id: NodeId, count: int) -> None:
        self.subjects: tuple[NodeId, ...] = ()
        self._self_key: RingKey = (self_id.uid, self_id)
        self._count = count
        self._ring: list[RingKey] = []
        self._turn = 0
        self._histories: dict[NodeId, deque[bool]] = {}
        self._heard_at: dict[NodeId, float] = {}
        self._returned_at: dict[NodeId, float] = {}
        self._held: dict[NodeId, deque[bool]] = {}

    # who is watched

    def add(self, node: NodeId) -> None:
        """A member appeared."""
        insort(self._ring, (node.uid, node))

    def remove(self, node: NodeId) -> None:
        """A member is down or removed."""
        key = (node.uid, node)
        if key in self._ring:
            self._ring.remove(key)
        self._returned_at.pop(node, None)
        self._held.pop(node, None)
        self._forget_history(node)

    def follow(self, unreachable: Container[NodeId]) -> bool:
        """Choose anew, the unreachable left out; True when the choice changed."""
        ring, found = self._ring, []
        start = bisect_right(ring, self._self_key)
        for step in range(len(ring)):
            node = ring[(start + step) % len(ring)][1]
            if node not in unreachable:
                found.append(node)
                if len(found) == self._count:
                    break
        chosen = tuple(found)
        if chosen == self.subjects:
            return False
        for node in set(self.subjects) - set(chosen):
            self._forget_history(node)
        self.subjects = chosen
        return True

    def next_subject(self) -> NodeId | None:
        """Whom to probe: one that did not answer last time, else the next in turn."""
        for node in self.subjects:
            history = self._histories.get(node)
            if history and not history[-1]:
                return node
        if not self.subjects:
            return None
        self._turn += 1
        return self.subjects[self._turn % len(self.subjects)]

    # how they answer

    def heard(self, node: NodeId, now: float) -> None:
        """Anything came over a connection of this member."""
        if node in self._histories:
            self._heard_at[node] = now

    def probed(self, node: NodeId, directly: bool, now: float, loss: float) -> bool:
        """A probe of a watched member ended; True when it hardly answers and yet is there.

        loss: what is lost of probes of others (`LocalHealth.loss`).
        """
        if node not in self.subjects:
            return False
        history = self._histories.setdefault(node, deque(maxlen=WINDOW))
        history.append(directly)
        return (
            len(history) == WINDOW
            and history.count(False) >= MISSES_MIN
            and loss <= LOSS_MAX
            and (any(history) or self._heard_at.get(node, -math.inf) > now - HEARD_WITHIN_S)
        )

    def _forget_history(self, node: NodeId) -> None:
        self._histories.pop(node, None)
        self._heard_at.pop(node, None)

    # who comes and goes

    def returned(self, node: NodeId, now: float) -> None:
        """A member that was unreachable is so no more."""
        if len(self._returned_at) >= FLAPS_MAX:
            del self._returned_at[next(iter(self._returned_at))]
        self._returned_at[node] = now

    def is_flapping(self, node: NodeId, now: float) -> bool:
        """True when it came back only a moment ago: lost again, it is to be held."""
        return now - self._returned_at.get(node, -math.inf) < FLAP_WINDOW_S

    def hold(self, node: NodeId) -> None:
        """It is held from now on."""
        self._held.setdefault(node, deque(maxlen=HELD_PINGS))

    def is_held(self, node: NodeId) -> bool:
        """True while our record of it must not end at its first answer."""
        return node in self._held

    @property
    def held(self) -> list[NodeId]:
        """All that are held, sorted."""
        return sorted(self._held)

    def pinged_held(self, node: NodeId, acked: bool) -> None:
        """How the last ping of a held member, one per second, went."""
        if node in self._held:
            self._held[node].append(acked)

    def may_return(self, node: NodeId) -> bool:
        """True when it has answered nearly everything for long enough."""
        pings = self._held.get(node)
        return pings is None or (len(pings) == HELD_PINGS and sum(pings) >= HELD_ACKS_MIN)

    def release(self, node: NodeId) -> None:
        """It is held no more."""
        self._held.pop(node, None)
