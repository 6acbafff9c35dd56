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
MISSES_MIN = 10  # of them unanswered: it hardly answers, though it is there
SAVED_MIN = 3  # so many probes in a row saved by helpers only: the link fails, not the member
SAVED_MAX = 256
LOSS_MAX = 0.2  # where so many probes of others are lost, one member's losses say nothing
FLAP_WINDOW_S = 120.0  # who comes back and is lost again within this time is held
SETTLING_S = 5.0  # just after a heal verdicts may still cross each other
HOLD_S = 24.0
HELD_PINGS = 24  # one per second
HELD_ACKS_MIN = 22
FLAPS_MAX = 4096

RingKey = tuple[int, NodeId]


class Watch:
    """Ring, probe histories, returns and holds of one node."""

    def __init__(self, count: int) -> None:
        self.subjects: tuple[NodeId, ...] = ()
        self._count = count
        self._ring: list[RingKey] = []
        self._turn = 0
        self._histories: dict[NodeId, deque[bool]] = {}  # of probes: True where one was missed
        self._saved: dict[NodeId, int] = {}  # probes in a row that only helpers could save
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
        self._saved.pop(node, None)
        self._forget_history(node)

    def follow(self, self_id: NodeId, unreachable: Container[NodeId]) -> bool:
        """Choose anew, the unreachable left out; True when the choice changed."""
        ring, found = self._ring, []
        start = bisect_right(ring, (self_id.uid, self_id))
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
        """Whom to probe: one whose link to us may fail, or that did not answer last time, else the
        next in turn."""
        for node, count in self._saved.items():
            if count < SAVED_MIN:
                return node
        for node in self.subjects:
            history = self._histories.get(node)
            if history and history[-1]:
                return node
        if not self.subjects:
            return None
        self._turn += 1
        return self.subjects[self._turn % len(self.subjects)]

    # how they answer

    def linked(self, node: NodeId, directly: bool) -> bool | None:
        """A probe of any member was answered: over our own link, or only over others'. Returns
        whether the link works when that has changed, else None."""
        before = self._saved.get(node, 0)
        if directly:
            self._saved.pop(node, None)
            return True if before >= SAVED_MIN else None
        if node in self._saved or len(self._saved) < SAVED_MAX:
            self._saved[node] = before + 1
        return False if before + 1 == SAVED_MIN else None

    @property
    def failing_links(self) -> list[NodeId]:
        """Members that others reach and we do not; sorted."""
        return sorted(node for node, count in self._saved.items() if count >= SAVED_MIN)

    def probed(self, node: NodeId, missed: bool, loss: float) -> bool:
        """A probe of a watched member ended; True when it hardly answers and yet is there.

        missed: neither we nor most of the helpers had an ack; where only our own link fails they
        had. loss: what is lost of probes of others (`LocalHealth.loss`).
        """
        if node not in self.subjects:
            return False
        history = self._histories.setdefault(node, deque(maxlen=WINDOW))
        history.append(missed)
        # One that answers now may have been cut off until a moment ago; one that never answers
        # is silent, and its suspicion ends by itself.
        return (
            missed
            and len(history) == WINDOW
            and MISSES_MIN <= history.count(True) < WINDOW
            and loss <= LOSS_MAX
        )

    def _forget_history(self, node: NodeId) -> None:
        self._histories.pop(node, None)

    # who comes and goes

    def returned(self, node: NodeId, now: float) -> None:
        """A member that was unreachable is so no more."""
        if len(self._returned_at) >= FLAPS_MAX:
            del self._returned_at[next(iter(self._returned_at))]
        self._returned_at[node] = now

    def is_flapping(self, node: NodeId, now: float) -> bool:
        """True when it came back not long ago: lost again, it is to be held."""
        return SETTLING_S <= now - self._returned_at.get(node, -math.inf) < FLAP_WINDOW_S

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
