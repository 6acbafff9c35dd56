"""Which rumours ride on the next packet.

Decides order (the least sent first, of those the youngest), replacement (one rumour per subject),
the share of each class in a packet, and when a rumour is worn out. Does not decide to whom, nor
when. Owned by `gossip.machine`; bounded: one entry per member, record pair or suspicion, and
`rumours_max` in all.

Two classes: *verdicts* (suspicions, reachability records, who leaves or is gone) and *growth* (all
other member records). Each may fill half of a packet whatever the other one has, and what the other
leaves free: a thousand joins do not hold up one crash, nor the other way round.
Source: SWIM (DSN 2002) section 4.1; the reserved shares are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gossip.membership import Member, NodeId, Status, Tombstone
from gossip.messages import Gossip, Suspicion
from gossip.reachability import Record

Rumour = Member | Tombstone | Record | Suspicion
RumourKey = tuple[str, NodeId, NodeId | None]

ID_BYTES = 28
"""About what one NodeId takes on the wire."""


def sends_max(mult: float, member_count: int) -> int:
    """How often each member sends one rumour: mult x log10(N + 1), rounded up."""
    return max(1, math.ceil(mult * math.log10(member_count + 1)))


def rumour_bytes(rumour: Rumour) -> int:
    """About what it takes on the wire: exact enough for a budget."""
    if isinstance(rumour, Member):
        texts = (rumour.id.host, rumour.name, rumour.boot_id, *rumour.roles, *rumour.types)
        return 70 + len(rumour.public_key) + sum(map(len, texts)) + len(texts)
    if isinstance(rumour, Tombstone):
        return ID_BYTES + 6
    return 2 * ID_BYTES + 8


def is_verdict(rumour: Rumour) -> bool:
    """True when it tells of a failure, a removal or a leave, or of the end of one."""
    if isinstance(rumour, Member):
        return rumour.status >= Status.LEAVING
    return True


def packets(rumours: Iterable[Rumour], floor: int, bytes_max: int) -> list[Gossip]:
    """All of them, in as few packets of at most `bytes_max` as their order allows."""
    found: list[Gossip] = []
    part: list[Rumour] = []
    size = 0
    for rumour in rumours:
        size += rumour_bytes(rumour)
        if part and size > bytes_max:
            found.append(_packet(part, floor))
            part, size = [], rumour_bytes(rumour)
        part.append(rumour)
    if part:
        found.append(_packet(part, floor))
    return found


def _packet(rumours: list[Rumour], floor: int) -> Gossip:
    members: list[Member] = []
    tombstones: list[Tombstone] = []
    records: list[Record] = []
    suspicions: list[Suspicion] = []
    for rumour in rumours:
        match rumour:
            case Member():
                members.append(rumour)
            case Tombstone():
                tombstones.append(rumour)
            case Record():
                records.append(rumour)
            case Suspicion():
                suspicions.append(rumour)
    return Gossip(tuple(members), tuple(tombstones), tuple(records), tuple(suspicions), floor)


def _key_of(rumour: Rumour) -> RumourKey:
    if isinstance(rumour, Member | Tombstone):
        return ("member", rumour.id, None)
    if isinstance(rumour, Record):
        return ("record", rumour.observer, rumour.subject)
    return ("suspicion", rumour.subject, rumour.accuser)


class _Class:
    """Rumours of one class, by how often they were sent; of those sent as often the youngest is
    the last."""

    def __init__(self) -> None:
        self.levels: list[dict[RumourKey, Rumour]] = []

    def put(self, key: RumourKey, rumour: Rumour, level: int) -> None:
        while len(self.levels) <= level:
            self.levels.append({})
        self.levels[level][key] = rumour

    def pick(self, bytes_max: int) -> tuple[list[tuple[int, RumourKey, Rumour]], int]:
        """What comes next and fits, and how many bytes it takes; at least one if there is one."""
        picked: list[tuple[int, RumourKey, Rumour]] = []
        size = 0
        for level, entries in enumerate(self.levels):
            for key in reversed(entries):
                size += rumour_bytes(entries[key])
                if picked and size > bytes_max:
                    return picked, size - rumour_bytes(entries[key])
                picked.append((level, key, entries[key]))
        return picked, size


class RumourQueue:
    """Rumours on their way; a newer one about the same subject replaces the older."""

    def __init__(self, rumours_max: int = 32_768) -> None:
        self._verdicts = _Class()
        self._growth = _Class()
        self._where: dict[RumourKey, tuple[_Class, int]] = {}
        self._accusations: dict[NodeId, set[RumourKey]] = {}
        self._rumours_max = rumours_max

    def __len__(self) -> int:
        return len(self._where)

    def add(self, rumour: Rumour) -> None:
        """Start to spread; replaces what was known of the same subject.

        When there are too many the one sent most often makes room: comparing views brings what it
        did not reach.
        """
        key = _key_of(rumour)
        if key in self._where:
            self._drop(key)
        elif len(self._where) >= self._rumours_max:
            self._drop(self._most_sent())
        self._put(key, rumour, self._verdicts if is_verdict(rumour) else self._growth, 0)
        if key[0] == "suspicion":
            self._accusations.setdefault(key[1], set()).add(key)

    def drop_suspicions_of(self, subject: NodeId) -> None:
        """Stop spreading accusations of a member that answered them."""
        for key in list(self._accusations.get(subject, ())):
            self._drop(key)

    def take(self, limit: int, floor: int, bytes_max: int) -> Gossip | None:
        """The rumours for one packet of at most `bytes_max`; None when there are none.

        limit: sends after which a rumour is worn out and leaves the queue.
        """
        if not self._where:
            return None
        half = bytes_max // 2
        verdicts, used = self._verdicts.pick(half)
        growth, used_by_growth = self._growth.pick(bytes_max - min(used, half))
        if used_by_growth < half:
            verdicts, _ = self._verdicts.pick(bytes_max - used_by_growth)
        rumours: list[Rumour] = []
        for of_class, picked in ((self._verdicts, verdicts), (self._growth, growth)):
            # The oldest first, so that the youngest is the last one of its new level too.
            for level, key, rumour in reversed(picked):
                rumours.append(rumour)
                del of_class.levels[level][key]
                if level + 1 < limit:
                    self._put(key, rumour, of_class, level + 1)
                else:
                    self._forget(key)
        return _packet(rumours, floor)

    def _put(self, key: RumourKey, rumour: Rumour, of_class: _Class, level: int) -> None:
        of_class.put(key, rumour, level)
        self._where[key] = (of_class, level)

    def _drop(self, key: RumourKey) -> None:
        of_class, level = self._where[key]
        del of_class.levels[level][key]
        self._forget(key)

    def _forget(self, key: RumourKey) -> None:
        del self._where[key]
        if key[0] == "suspicion":
            keys = self._accusations[key[1]]
            keys.discard(key)
            if not keys:
                del self._accusations[key[1]]

    def _most_sent(self) -> RumourKey:
        levels = max(len(self._verdicts.levels), len(self._growth.levels))
        for level in range(levels - 1, -1, -1):
            for of_class in (self._growth, self._verdicts):
                if level < len(of_class.levels) and of_class.levels[level]:
                    return next(iter(of_class.levels[level]))
        raise AssertionError("a full queue has rumours")
