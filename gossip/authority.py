"""Who may say what about whom: every claim of a peer passes here before it is merged.

Decides whether a sender has standing, which numbers are plausible, which facts of a member never
change, and what of a claim is only hearsay. The sender is always the connection's other end, never
a field of the payload. Does not decide whether hearsay is believed: that is `gossip.hearsay`. Used
by `gossip.machine`.

Two kinds of writers: a process writes its own record (facts, types, incarnation, leaving) and its
own reachability records; leaders write promotion and removal. Everybody else relays. Against a
relay that lies about the former the writer speaks up (a later version, a higher incarnation), so
nothing may be taken that it could not answer: an incarnation counts only up to
`incarnation_jump_max` above what the member said over its own connection. Every other number has
one bound for all (`NUMBER_MAX`): what one member took and another refused would keep their views
apart for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter

from gossip.events import ClaimRefused
from gossip.ground import Ground
from gossip.membership import NUMBER_MAX, Cause, Member, NodeId, Status, Tombstone
from gossip.messages import Suspicion
from gossip.reachability import Record

_MOVING = {"status", "up_number", "incarnation", "record_version", "types", "cause"}

facts_of: Callable[[Member], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(Member) if field.name not in _MOVING)
)
"""What never changes of one process: all but its status, its types and the counters."""


def flaw_of(member: Member) -> str | None:
    """Why no honest process can have written this record, as a reason to count; None if one can."""
    numbers = (member.incarnation, member.record_version, member.up_number)
    if not all(0 <= number <= NUMBER_MAX for number in numbers):
        return "number-impossible"
    if member.status is Status.REMOVED:
        return "status-impossible"  # a removal is a tombstone
    if (member.cause is Cause.NONE) is (member.status is Status.DOWN):
        return "status-impossible"
    if member.status is Status.UP and member.up_number == 0:
        return "status-impossible"
    if member.status in (Status.JOINING, Status.WEAKLY_UP) and member.up_number > 0:
        return "status-impossible"
    return None


REASONS = (
    "no-standing", "facts-forged", "types-forged", "own-record-forged", "incarnation-forged",
    "number-impossible", "floor-forged", "status-impossible", "leave-forged", "accuser-unknown",
    "introductions-too-many", "verdict-of-one", "departures-denied", "ack-for-another",
)  # fmt: skip


class Authority:
    """What each peer may claim, by what has been heard so far."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        ground.counters.update(dict.fromkeys(REASONS, 0))  # an alarm must see the first one
        self._vouched: set[NodeId] = set()  # members that stated their facts themselves
        self._introducers: dict[NodeId, NodeId] = {}  # of ids that nobody else has confirmed yet
        self._introductions: Counter[NodeId] = Counter()
        self._asked_at: dict[NodeId, float] = {}
        self._published: set[str] = set()

    def refuse(self, reason: str, sender: NodeId) -> None:
        """Count a claim that is not taken; the first of each reason is published."""
        self._ground.counters[reason] += 1
        if reason not in self._published:
            self._published.add(reason)
            self._ground.publish(ClaimRefused(sender, reason))

    # standing

    def has_standing(self, sender: NodeId) -> bool:
        """True when the sender is a member here that is not gone: only then its news are read."""
        member = self._ground.table.members.get(sender)
        return member is not None and member.status < Status.DOWN

    def confirm(self, node: NodeId, sender: NodeId) -> None:
        """Somebody else than its introducer knows this id, or it spoke to us itself."""
        introducer = self._introducers.get(node)
        if introducer is not None and introducer != sender:
            del self._introducers[node]
            self._introductions[introducer] -= 1
            if self._introductions[introducer] <= 0:
                del self._introductions[introducer]

    def _may_introduce(self, sender: NodeId, node: NodeId) -> bool:
        """A member may bring up so many ids that nobody else has confirmed: a flood ends here."""
        if node in self._introducers:
            return True
        if self._introductions[sender] >= self._ground.settings.introductions_max:
            self.refuse("introductions-too-many", sender)
            return False
        self._introducers[node] = sender
        self._introductions[sender] += 1
        return True

    def forget(self, node: NodeId) -> None:
        """The member was removed."""
        self._vouched.discard(node)
        self._asked_at.pop(node, None)

    # plausible numbers

    def is_plausible_incarnation(self, node: NodeId, incarnation: int) -> bool:
        """True when the member itself can still answer an accusation at this incarnation."""
        if node == self._ground.self_id:
            return self.can_answer(incarnation)
        return 0 <= incarnation <= self._ground.table.incarnation_limit(node)

    def can_answer(self, incarnation: int) -> bool:
        """True when honest members may hold us at this incarnation: then we show a higher one."""
        ours = self._ground.me.incarnation
        return 0 <= incarnation <= ours + self._ground.settings.incarnation_jump_max

    # claims

    def vet_member(self, sender: NodeId, claim: Member, now: float) -> Member | None:
        """The claim about another member as far as the sender may make it, but for its status.

        None: nothing of it is taken. A relay is not believed about what only the member itself
        writes when that contradicts what we hold; the rest of its record is read on, for it may be
        the only one left to tell us of a status.
        """
        ours = self._ground.table.members.get(claim.id)
        flaw = flaw_of(claim)
        if flaw is not None:
            self.refuse(flaw, sender)
            return None
        if sender == claim.id:
            return self._vet_own(claim, ours, sender)
        if ours is None:
            if not self._may_introduce(sender, claim.id):
                return None
        else:
            self.confirm(claim.id, sender)
        if not self.is_plausible_incarnation(claim.id, claim.incarnation):
            self.refuse("incarnation-forged", sender)
            limit = self._ground.table.incarnation_limit(claim.id)
            claim = replace(claim, incarnation=limit if ours is None else ours.incarnation)
        if ours is None:
            return claim
        if facts_of(claim) != facts_of(ours):
            self.refuse("facts-forged", sender)
            self._ask_itself(claim.id, now)
            claim = self._with_own_part_of(ours, claim)
        elif claim.record_version == ours.record_version and claim.types != ours.types:
            self.refuse("types-forged", sender)  # by it, or by whoever told us before
            self._ask_itself(claim.id, now)
            claim = self._with_own_part_of(ours, claim)
        return claim

    def _vet_own(self, claim: Member, ours: Member | None, sender: NodeId) -> Member | None:
        """A process about itself: it may say all but that it is older, or proven gone."""
        if ours is None:
            return None
        if sender in self._vouched and facts_of(claim) != facts_of(ours):
            self.refuse("facts-forged", sender)
            return None
        self._vouched.add(sender)
        self._ground.table.said_incarnation(sender, claim.incarnation)
        if claim.record_version < ours.record_version:
            # Late, or ours is a lie that it has not heard of yet; its facts are good either way.
            claim = replace(claim, record_version=ours.record_version, types=ours.types)
        return claim

    def vouch(self, member: Member) -> None:
        """It introduced itself to us: what it says of its facts now stands."""
        self._vouched.add(member.id)

    @staticmethod
    def _with_own_part_of(ours: Member, claim: Member) -> Member:
        return replace(
            ours,
            status=claim.status,
            up_number=claim.up_number,
            incarnation=claim.incarnation,
            cause=claim.cause,
        )

    def _ask_itself(self, node: NodeId, now: float) -> None:
        """Two tell different things of it: have its own word, at most once a gossip interval."""
        interval_s = self._ground.settings.gossip_interval_s
        if now - self._asked_at.get(node, -interval_s) >= interval_s:
            self._asked_at[node] = now
            self._ground.ask_records((node,), of=node)

    def vet_record(self, sender: NodeId, record: Record) -> bool:
        """True when an honest observer can have written this reachability record.

        One at an incarnation that its subject could not answer is kept, and void.
        """
        if record.observer == record.subject:
            self.refuse("status-impossible", sender)
            return False
        if 0 < record.version <= NUMBER_MAX and 0 <= record.subject_incarnation <= NUMBER_MAX:
            return True
        self.refuse("number-impossible", sender)
        return False

    def vet_suspicion(self, sender: NodeId, suspicion: Suspicion) -> bool:
        """True when the accuser is a member, and the accused could answer."""
        if suspicion.accuser not in self._ground.table.members:
            self.refuse("accuser-unknown", sender)
            return False
        if not self.is_plausible_incarnation(suspicion.subject, suspicion.incarnation):
            self.refuse("incarnation-forged", sender)
            return False
        return True

    def vet_tombstone(self, sender: NodeId, stone: Tombstone) -> bool:
        """True when this removal has a plausible number, and the sender may bring up the id."""
        table = self._ground.table
        if stone.cause is Cause.NONE:
            self.refuse("status-impossible", sender)
            return False
        if not 0 < stone.number <= NUMBER_MAX:
            self.refuse("number-impossible", sender)
            return False
        if stone.id in table.members or stone.id in table.tombstones:
            self.confirm(stone.id, sender)
            return True
        return stone.number <= table.floor or self._may_introduce(sender, stone.id)

    def vet_floor(self, sender: NodeId, floor: int) -> bool:
        """True when a pruning floor can be right: the leader prunes what all of us hold."""
        if 0 <= floor < min(self._ground.table.next_removal(), NUMBER_MAX):
            return True
        self.refuse("floor-forged", sender)
        return False
