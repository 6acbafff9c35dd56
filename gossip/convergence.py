"""What the others have seen of our view: reports, differences, and the exchange that ends them.

Decides whether the view has converged and who stands in the way, when the leader is told what we
see, and with whom views are exchanged. Does not decide what is merged, nor what the leader does.
Used by `gossip.machine`.

Every control frame carries its sender's two digests, so a difference shows with the next frame of
any kind: views are exchanged when digests have differed for `sync_after_ticks` gossip ticks, by
versions first, whole views last. Equal digests need no exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossip.ground import Ground
from gossip.membership import NodeId, Status
from gossip.messages import Head, ViewSeen, ViewSeenAck

REPORT_GAP_S = 0.001
REPORT_GAP_MAX_S = 0.1
"""The leader hears of a change at once; of further ones per member so seldom that a hundred
members that join together do not flood it."""
WHOLE_VIEW_AFTER = 3  # exchanges by versions that did not help


@dataclass(slots=True)
class _Report:
    """The digests a member last reported, and our own view's counter when it did."""

    counter: int
    equal: bool
    seen_at_counter: int


class Convergence:
    """Reports of all members about our view, and ours to the leader.

    `version` grows whenever an answer of this object may have changed.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.version = 0
        self._reports: dict[NodeId, _Report] = {}
        self._differs: dict[NodeId, float] = {}  # since when its view differs from ours
        self._sync_rounds: dict[NodeId, int] = {}
        self._sync_at = -math.inf
        self._unseen: set[NodeId] = set()  # of those that count and are reachable
        self._seen: tuple[int, set[NodeId]] = (-1, set())  # at this counter: who holds our view
        self._counting: tuple[int, set[NodeId]] = (-1, set())  # in this roster, ourselves left out
        self._undecided: tuple[NodeId, ...] = ()
        self._followed: tuple[object, ...] = ()
        self._differs_at_counter = -1
        self._acked_counter = -1
        self._reported_counter = -1
        self._reported_at = -math.inf
        self._report_at = math.inf

    # what others report

    def reported(
        self, sender: NodeId, head: Head, messages: tuple[object, ...], now: float
    ) -> None:
        """A frame of a fellow member: its head tells which view it has."""
        ground, table = self._ground, self._ground.table
        member = table.members.get(sender)
        if member is None or member.status >= Status.DOWN:
            return
        known = self._reports.get(sender)
        if known is not None and head.counter < known.counter:
            return
        equal = (
            head.members_digest == table.members_digest and head.reach_digest == table.reach_digest
        )
        if known is None:
            self._reports[sender] = _Report(head.counter, equal, table.counter)
            self.version += 1
        else:
            if equal is not known.equal or known.seen_at_counter != table.counter:
                self.version += 1
            known.counter, known.equal, known.seen_at_counter = head.counter, equal, table.counter
        seen = self._have_seen()
        if equal:
            seen.add(sender)
            self._unseen.discard(sender)
            self._differs.pop(sender, None)
            self._sync_rounds.pop(sender, None)
            if any(type(message) is ViewSeen for message in messages):
                ground.send(sender, ViewSeenAck(head.counter))
        else:
            seen.discard(sender)
            if member.counts and sender not in ground.unreachable:
                self._unseen.add(sender)
            self._differs.setdefault(sender, now)

    def has_heard(self, node: NodeId) -> bool:
        """True when it has reported anything since it was last unreachable."""
        return node in self._reports

    def void(self, node: NodeId) -> None:
        """It became unreachable, or is gone: what it reported before is no evidence."""
        if self._reports.pop(node, None) is not None:
            self.version += 1
        self._seen[1].discard(node)
        self._differs.pop(node, None)

    def void_all(self) -> None:
        """We did not run for a while: every report is old."""
        self._reports.clear()
        self._seen = (-1, set())
        self._acked_counter = self._reported_counter = -1
        self._followed = ()
        self.version += 1

    # who stands in the way

    def follow(self) -> None:
        """The table or the unreachable set may have moved: begin to count anew."""
        ground, table = self._ground, self._ground.table
        if self._differs_at_counter != table.counter:
            self._differs_at_counter = table.counter
            self._differs.clear()
        state = (table.counter, table.roster, ground.unreachable)
        if state == self._followed:
            return
        self._followed = state
        members = table.members
        if self._counting[0] != table.roster:
            counting = {node for node, member in members.items() if member.counts}
            self._counting = (table.roster, counting - {ground.self_id})
        self._unseen = self._counting[1] - ground.unreachable - self._have_seen()
        self._undecided = tuple(
            sorted(
                node
                for node in ground.unreachable
                if node != ground.self_id
                and members[node].status in (Status.UP, Status.WEAKLY_UP, Status.JOINING)
            )
        )

    def _have_seen(self) -> set[NodeId]:
        """Whose last report is our present view; nobody's when it has just changed."""
        counter = self._ground.table.counter
        if self._seen[0] != counter:
            self._seen = (counter, set())
        return self._seen[1]

    @property
    def undecided(self) -> tuple[NodeId, ...]:
        """Unreachable members that nobody has decided about, sorted."""
        return self._undecided

    @property
    def silent(self) -> tuple[NodeId, ...]:
        """Members whose report of the present view is missing, sorted."""
        return tuple(sorted(self._unseen))

    @property
    def seen_by(self) -> frozenset[NodeId]:
        """Members whose last report is our present view, as far as it came since they were last
        unreachable."""
        return frozenset(self._have_seen())

    @property
    def is_complete(self) -> bool:
        """Every member that counts has reported our very view, and nobody is undecided."""
        return not self._unseen and not self._undecided

    # what we report to the leader

    def leader_changed(self) -> None:
        """Another one is to be told."""
        self._acked_counter = self._reported_counter = -1
        self.version += 1

    def acked(self, counter: int) -> None:
        """The leader holds the view that we reported under this number of ours."""
        if counter > self._acked_counter:
            self._acked_counter = counter
            self.version += 1

    @property
    def is_acked(self) -> bool:
        """The leader holds our present view."""
        return self._acked_counter >= self._ground.table.counter

    def plan_report(self, now: float) -> None:
        """Tell the leader of a changed view at once, unless we told it a moment ago."""
        ground = self._ground
        if ground.leader in (None, ground.self_id):
            self._report_at = math.inf
        elif self._reported_counter != ground.table.counter:
            gap_s = min(REPORT_GAP_MAX_S, REPORT_GAP_S * len(ground.table.members))
            self._report_at = min(self._report_at, self._reported_at + gap_s)
            if now >= self._report_at:
                self._report(now)

    def _report(self, now: float) -> None:
        ground = self._ground
        self._report_at = math.inf
        if ground.leader in (None, ground.self_id):
            return
        self._reported_at = now
        self._reported_counter = ground.table.counter
        if not self.is_acked:
            self._report_at = now + ground.settings.gossip_interval_s
        ground.send(ground.leader, ViewSeen(ground.table.counter))

    # time

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self._report_at, self._sync_due())

    def _sync_due(self) -> float:
        if not self._differs:
            return math.inf
        return max(self._sync_at, min(self._differs.values()) + self._sync_patience_s)

    @property
    def _sync_patience_s(self) -> float:
        settings = self._ground.settings
        return settings.sync_after_ticks * settings.gossip_interval_s

    def tick(self, now: float) -> None:
        """Report, and exchange views, when it is due."""
        if now >= self._report_at:
            self._report_at = math.inf
            if not self.is_acked:
                self._report(now)
        if now >= self._sync_due():
            self._sync(now)

    def _sync(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        self._sync_at = now + settings.sync_interval_s * ground.rng.uniform(0.8, 1.2)
        ripe = []
        for node, since in list(self._differs.items()):
            member = ground.table.members.get(node)
            if member is None or member.status >= Status.DOWN or node in ground.unreachable:
                del self._differs[node]
            elif now >= since + self._sync_patience_s:
                ripe.append(node)
        if ripe:
            peer = ground.rng.choice(sorted(ripe))
            rounds = self._sync_rounds[peer] = self._sync_rounds.get(peer, 0) + 1
            whole = rounds >= WHOLE_VIEW_AFTER
            ground.send(peer, ground.table.everything() if whole else ground.table.offer())
