"""The replicated state: members, tombstones, reachability records, and their two digests.

Decides how news merges (a CRDT: any order, any repetition, one result). Does not decide what to
tell whom, nor when a status moves. Owned by `gossip.machine.GossipMachine`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import replace

from gossip import digest
from gossip.membership import NUMBER_MAX, Cause, Member, NodeId, Status, Tombstone, merge_members
from gossip.messages import Gossip, SyncOffer, SyncReply
from gossip.reachability import HOLDERS_MIN, Record, merge_records


class MembershipTable:
    """Members, tombstones and records of one node, merged from everywhere.

    `members_max`, `records_max` and `tombstones_max` bound it; what does not fit is counted in
    `dropped`.

    `version` grows with every change, `counter` with those of the digests, `roster` when a member
    comes, goes or moves its status: whoever derives something from the table looks at these first.
    """

    def __init__(
        self,
        members_max: int = 8192,
        records_max: int = 65_536,
        tombstones_max: int = 8192,
        incarnation_jump_max: int = 1 << 20,
    ) -> None:
        self.members: dict[NodeId, Member] = {}
        self.tombstones: dict[NodeId, Tombstone] = {}
        self.records: dict[tuple[NodeId, NodeId], Record] = {}
        self.floor = 0
        self.members_digest = 0
        self.reach_digest = 0
        self.counter = 0
        self.version = 0
        self.roster = 0
        self.dropped = 0
        self.nodes: list[NodeId] = []  # of all members, sorted
        self.unreachable: frozenset[NodeId] = frozenset()  # that some record which is not void says
        self.gone: dict[NodeId, Cause] = {}
        self._members_max = members_max
        self._records_max = records_max
        self._tombstones_max = tombstones_max
        self._incarnation_jump_max = incarnation_jump_max
        self.orphans: set[NodeId] = set()  # lost their last accuser, but have not answered
        self._said_incarnations: dict[NodeId, int] = {}
        self._hashes: dict[NodeId, int] = {}
        self._records_of: dict[NodeId, dict[NodeId, Record]] = {}  # subject → observer → record
        self._records_by: dict[NodeId, set[NodeId]] = {}  # observer → subjects

    # merging

    def put_member(self, member: Member, *, first_hand: bool = False) -> bool:
        """Merge a record; True when something of ours changed (an incarnation counts too).

        first_hand: the member itself says so. What it writes itself then stands, unless ours has a
        greater version.
        """
        if member.id in self.tombstones or member.status is Status.REMOVED:
            return False
        ours = self.members.get(member.id)
        if ours is None:
            if len(self.members) >= self._members_max:
                self.dropped += 1
                return False
            merged = member
        else:
            merged = merge_members(ours, member)
            if first_hand and member.record_version >= ours.record_version:
                merged = replace(
                    member,
                    status=merged.status,
                    up_number=merged.up_number,
                    incarnation=merged.incarnation,
                    cause=merged.cause,
                )
            if merged == ours:
                return False
        self.members[member.id] = merged
        self.version += 1
        before, after = self._hashes.get(member.id, 0), digest.member_hash(merged)
        if before != after:
            self._hashes[member.id] = after
            self._members_moved(after - before)
        if ours is None:
            insort(self.nodes, member.id)
            self.roster += 1
        elif ours.status is not merged.status:
            self.roster += 1
            if merged.status is Status.DOWN:
                for subject in self._records_by.get(member.id, ()):
                    self._observer_gone(subject)
        if ours is not None and ours.incarnation != merged.incarnation:
            self._look_at(member.id)
        return True

    def bury(self, tombstone: Tombstone) -> bool:
        """Merge a removal; True when it was news. Below the floor it only takes the member out."""
        known = self.tombstones.get(tombstone.id)
        if known is not None:
            merged = Tombstone(
                known.id, max(known.number, tombstone.number), max(known.cause, tombstone.cause)
            )
            if merged == known:
                return False
            self._members_moved(digest.tombstone_hash(merged) - digest.tombstone_hash(known))
            self.tombstones[tombstone.id] = merged
            self.gone = {**self.gone, merged.id: merged.cause}
            return True
        had = self._take_out(tombstone.id)
        if tombstone.number <= self.floor:
            return had
        if len(self.tombstones) >= self._tombstones_max:
            self.dropped += 1
            return had
        self.tombstones[tombstone.id] = tombstone
        self.gone = {**self.gone, tombstone.id: tombstone.cause}
        self._members_moved(digest.tombstone_hash(tombstone))
        return True

    def put_record(self, record: Record) -> bool:
        """Merge a reachability record; True when it was news.

        Records whose observer or subject is not a member are not kept: they have no meaning yet
        (news of the member brings them again by exchange) or no more.
        """
        if record.observer not in self.members or record.subject not in self.members:
            return False
        ours = self.records.get(record.key)
        if ours is None and len(self.records) >= self._records_max:
            self.dropped += 1
            return False
        merged = record if ours is None else merge_records(ours, record)
        if merged == ours:
            return False
        before = digest.record_hash(ours) if ours is not None else 0
        self.records[record.key] = merged
        self._records_of.setdefault(record.subject, {})[record.observer] = merged
        self._records_by.setdefault(record.observer, set()).add(record.subject)
        self._reach_moved(digest.record_hash(merged) - before)
        self._look_at(record.subject)
        return True

    def raise_floor(self, floor: int) -> bool:
        """Forget tombstones up to this number, as everybody does; True when it was news."""
        if floor <= self.floor:
            return False
        self._members_moved(digest.floor_hash(floor) - digest.floor_hash(self.floor))
        self.floor = floor
        for node in [node for node, stone in self.tombstones.items() if stone.number <= floor]:
            self._members_moved(-digest.tombstone_hash(self.tombstones.pop(node)))
        self.gone = {node: stone.cause for node, stone in self.tombstones.items()}
        return True

    def _take_out(self, node: NodeId) -> bool:
        if self.members.pop(node, None) is None:
            return False
        del self.nodes[bisect_left(self.nodes, node)]
        self.roster += 1
        self._members_moved(-self._hashes.pop(node))
        self._said_incarnations.pop(node, None)
        for observer in list(self._records_of.get(node, ())):
            self._drop_record(observer, node)
        for subject in list(self._records_by.get(node, ())):
            self._drop_record(node, subject)
            self._observer_gone(subject)
        self.unreachable -= {node}
        self.orphans.discard(node)
        return True

    def _drop_record(self, observer: NodeId, subject: NodeId) -> None:
        self._reach_moved(-digest.record_hash(self.records.pop((observer, subject))))
        of, by = self._records_of[subject], self._records_by[observer]
        del of[observer]
        by.discard(subject)
        if not of:
            del self._records_of[subject]
        if not by:
            del self._records_by[observer]

    def _observer_gone(self, subject: NodeId) -> None:
        was_unreachable = subject in self.unreachable
        self._look_at(subject)
        if was_unreachable and subject not in self.unreachable:
            self.orphans.add(subject)

    def _look_at(self, subject: NodeId) -> None:
        """Records about the subject, or what makes them void, have changed."""
        is_unreachable = bool(self.standing(subject))
        if is_unreachable is not (subject in self.unreachable):
            self.unreachable ^= {subject}

    def standing(self, subject: NodeId) -> list[Record]:
        """The records that call this member unreachable, those that are void left out."""
        heeded = [
            record
            for record in self._records_of.get(subject, {}).values()
            if record.unreachable and self._is_heeded(record)
        ]
        is_held = sum(record.held for record in heeded) >= HOLDERS_MIN
        return [r for r in heeded if (is_held and r.held) or not self.is_void(r)]

    def _is_heeded(self, record: Record) -> bool:
        return self.members[record.observer].status is not Status.DOWN

    def _members_moved(self, delta: int) -> None:
        self.members_digest = (self.members_digest + delta) & digest.MASK
        self.counter += 1
        self.version += 1

    def _reach_moved(self, delta: int) -> None:
        self.reach_digest = (self.reach_digest + delta) & digest.MASK
        self.counter += 1
        self.version += 1

    # reading

    def next_removal(self) -> int:
        """The number of the next removal decided here."""
        highest = max((stone.number for stone in self.tombstones.values()), default=0)
        return min(1 + max(self.floor, highest), NUMBER_MAX)

    def said_incarnation(self, node: NodeId, incarnation: int) -> None:
        """The member itself showed this incarnation."""
        if node in self.members and incarnation > self._said_incarnations.get(node, 0):
            self._said_incarnations[node] = incarnation
            self._look_at(node)
            self.version += 1

    def incarnation_limit(self, node: NodeId) -> int:
        """The greatest incarnation at which an accusation of the member can still be answered."""
        return self._said_incarnations.get(node, 0) + self._incarnation_jump_max

    def is_void(self, record: Record) -> bool:
        """True when the record by itself says nothing: its observer is down, or its subject
        answered it, or could not answer it (nobody honest wrote it so)."""
        subject, incarnation = self.members[record.subject], record.subject_incarnation
        return (
            not self._is_heeded(record)
            or subject.incarnation > incarnation
            or incarnation > self.incarnation_limit(record.subject)
        )

    def accusers(self, subject: NodeId) -> list[NodeId]:
        """Whose records call this member unreachable, those that are void left out; sorted."""
        return sorted(record.observer for record in self.standing(subject))

    # exchange by versions

    def everything(self) -> Gossip:
        """The whole table as news: for a welcome, and the last resort of an exchange."""
        return Gossip(
            members=tuple(self.members[node] for node in self.nodes),
            tombstones=tuple(self.tombstones[node] for node in sorted(self.tombstones)),
            records=tuple(self.records[key] for key in sorted(self.records)),
            floor=self.floor,
        )

    def offer(self) -> SyncOffer:
        """What we hold, by hash and version."""
        return SyncOffer(
            members=tuple((node, self._hashes[node]) for node in self.nodes),
            tombstones=tuple(
                (node, digest.tombstone_hash(self.tombstones[node]))
                for node in sorted(self.tombstones)
            ),
            records=tuple((*key, self.records[key].version) for key in sorted(self.records)),
            floor=self.floor,
        )

    def answer(self, offer: SyncOffer) -> SyncReply:
        """What the other lacks of ours, and what we want of theirs.

        A hash has no order, so of an item that differs each side gives its own and wants the
        other's; merging finds the result.
        """
        members, stones = dict(offer.members), dict(offer.tombstones)
        versions = {(observer, subject): version for observer, subject, version in offer.records}
        differ = [node for node in self.nodes if self._hashes[node] != members.get(node)]
        stone_hashes = {
            node: digest.tombstone_hash(stone) for node, stone in self.tombstones.items()
        }
        stones_differ = [
            node for node in sorted(self.tombstones) if stone_hashes[node] != stones.get(node)
        ]
        return SyncReply(
            news=Gossip(
                members=tuple(self.members[node] for node in differ),
                tombstones=tuple(self.tombstones[node] for node in stones_differ),
                records=tuple(
                    self.records[key]
                    for key in sorted(self.records)
                    if self.records[key].version > versions.get(key, -1)
                ),
                floor=self.floor,
            ),
            want_members=tuple(
                node
                for node, value in offer.members
                if node not in self.tombstones and self._hashes.get(node) != value
            ),
            want_tombstones=tuple(
                node for node, value in offer.tombstones if stone_hashes.get(node) != value
            ),
            want_records=tuple(
                key for key, version in versions.items() if self._version_of(key) < version
            ),
        )

    def pick(
        self,
        members: Iterable[NodeId],
        tombstones: Iterable[NodeId],
        records: Iterable[tuple[NodeId, NodeId]],
    ) -> Gossip:
        """Those of the wanted items that we hold."""
        return Gossip(
            members=tuple(self.members[node] for node in members if node in self.members),
            tombstones=tuple(
                self.tombstones[node] for node in tombstones if node in self.tombstones
            ),
            records=tuple(self.records[key] for key in records if key in self.records),
            floor=self.floor,
        )

    def _version_of(self, key: tuple[NodeId, NodeId]) -> int:
        record = self.records.get(key)
        return -1 if record is None else record.version
