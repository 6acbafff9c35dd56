"""Which rumours ride on the next packet.

Decides order (the least sent first), replacement (one rumour per subject) and when a rumour is
worn out. Does not decide to whom. Owned by `gossip.machine`; bounded: one entry per member, record
pair or suspicion, and `rumours_max` in all.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from gossip.membership import Member, NodeId, Tombstone
from gossip.messages import Gossip, Suspicion
from gossip.reachability import Record

Rumour = Member | Tombstone | Record | Suspicion
RumourKey = tuple[str, NodeId, NodeId | None]

PACKET_RUMOURS_MAX = 24
"""So many rumours fit a packet of about 1.4 to 4 KB."""


def sends_max(mult: float, member_count: int) -> int:
    """How often each member sends one rumour: mult x log10(N + 1), rounded up."""
    return max(1, math.ceil(mult * math.log10(member_count + 1)))


@dataclass(slots=True)
class _Entry:
    rumour: Rumour
    sends: int
    age: int


def _key_of(rumour: Rumour) -> RumourKey:
    if isinstance(rumour, Member | Tombstone):
        return ("member", rumour.id, None)
    if isinstance(rumour, Record):
        return ("record", rumour.observer, rumour.subject)
    return ("suspicion", rumour.subject, rumour.accuser)


class RumourQueue:
    """Rumours on their way; a newer one about the same subject replaces the older."""

    def __init__(self, rumours_max: int = 32_768) -> None:
        self._entries: dict[RumourKey, _Entry] = {}
        self._rumours_max = rumours_max
        self._age = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, rumour: Rumour) -> None:
        """Start to spread; replaces what was known of the same subject.

        When there are too many the one that began first makes room: comparing views brings what
        it did not reach.
        """
        self._age += 1
        key = _key_of(rumour)
        if len(self._entries) >= self._rumours_max and key not in self._entries:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = _Entry(rumour, 0, self._age)

    def drop_suspicions_of(self, subject: NodeId) -> None:
        """Stop spreading accusations of a member that answered them."""
        for key in [k for k in self._entries if k[0] == "suspicion" and k[1] == subject]:
            del self._entries[key]

    def take(self, limit: int, floor: int) -> Gossip | None:
        """The least sent, then youngest, rumours for one packet; None when there are none.

        limit: sends after which a rumour is worn out and leaves the queue.
        """
        if not self._entries:
            return None
        picked = heapq.nsmallest(
            PACKET_RUMOURS_MAX,
            self._entries.items(),
            key=lambda item: (item[1].sends, -item[1].age),
        )
        members: list[Member] = []
        tombstones: list[Tombstone] = []
        records: list[Record] = []
        suspicions: list[Suspicion] = []
        for key, entry in picked:
            entry.sends += 1
            if entry.sends >= limit:
                del self._entries[key]
            match entry.rumour:
                case Member():
                    members.append(entry.rumour)
                case Tombstone():
                    tombstones.append(entry.rumour)
                case Record():
                    records.append(entry.rumour)
                case Suspicion():
                    suspicions.append(entry.rumour)
        return Gossip(tuple(members), tuple(tombstones), tuple(records), tuple(suspicions), floor)
