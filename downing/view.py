"""What one member sees of a split: all that a strategy may look at.

Decides: who counts, who can be downed, who is cut off and who is only *indirectly connected*
(accused by some, heard by others). Does not decide which side lives: `downing.strategies` does.
Built by the resolver from the membership view; read by the strategies.

Addresses are ordered as `NodeId` is: by host, port, uid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from gossip.membership import Member, NodeId, Status

COUNTED = frozenset({Status.UP, Status.LEAVING})
"""Who has a voice. One who is exiting or down has none any more, a joining one none yet."""
STAYING = frozenset({Status.UP})
"""The counted without those that may have left already, as another member sees it."""
MAYBE_UP = frozenset({Status.JOINING, Status.WEAKLY_UP})
"""Those that may be up already, as another member sees it."""
DOWNABLE = COUNTED | MAYBE_UP


def counted(members: Iterable[Member], role: str = "") -> tuple[Member, ...]:
    """The members up or leaving, by address; with `role` only those that have it."""
    return with_status(members, COUNTED, role)


def with_status(
    members: Iterable[Member], statuses: Collection[Status], role: str = ""
) -> tuple[Member, ...]:
    """The members of one of `statuses`, by address; with `role` only those that have it."""
    chosen = [
        member
        for member in members
        if member.status in statuses and (not role or role in member.roles)
    ]
    return tuple(sorted(chosen, key=lambda member: member.id))


def age_key(member: Member) -> tuple[bool, int, NodeId]:
    """Sorts oldest first: by `up_number`, then by address; one without a number is youngest."""
    return (member.up_number <= 0, member.up_number, member.id)


@dataclass(frozen=True)
class PartitionView:
    """The cluster as `self_id` sees it at one instant.

    `members`: all it knows of, in any order. `unreachable`: whom anybody in this view holds
    unreachable, never itself. `records`: the observations behind it as (observer, subject).
    `seen_by`: the members known to have seen this very state.
    """

    members: tuple[Member, ...]
    unreachable: frozenset[NodeId]
    records: tuple[tuple[NodeId, NodeId], ...]
    seen_by: frozenset[NodeId]
    self_id: NodeId

    @cached_property
    def downable(self) -> frozenset[NodeId]:
        """Who can be marked down: everybody who is not exiting, down or removed."""
        return frozenset(member.id for member in self.members if member.status in DOWNABLE)

    @cached_property
    def indirectly_connected(self) -> frozenset[NodeId]:
        """Who is part of a link that fails while both its ends are still heard.

        Whoever accuses and is accused; and both ends of an accusation whose subject has seen the
        present state, so must have been reached by some other way.
        """
        return self._in_a_ring | self._accused_and_heard

    def here(self, statuses: Collection[Status] = COUNTED, role: str = "") -> tuple[Member, ...]:
        """The reachable members of one of `statuses` (and with `role`), by address."""
        members = with_status(self.members, statuses, role)
        return tuple(member for member in members if member.id not in self.unreachable)

    def there(self, statuses: Collection[Status] = COUNTED, role: str = "") -> tuple[Member, ...]:
        """The unreachable members of one of `statuses` (and with `role`), by address."""
        members = with_status(self.members, statuses, role)
        return tuple(member for member in members if member.id in self.unreachable)

    def without_indirect(self) -> PartitionView:
        """The view that remains when the failing single links are taken for what they are.

        Without the records among accusers that are accused, among those that the present state
        reached although they are accused, and without any that touches who can not be downed.
        """
        records = tuple(record for record in self.records if self._is_of_a_split(*record))
        unreachable = frozenset(subject for _, subject in records) - {self.self_id}
        return replace(self, records=records, unreachable=unreachable)

    def without_last_words(self, heard: Collection[NodeId]) -> PartitionView:
        """The view without what members noted before they were lost themselves.

        Of two that crash one after the other the second has often accused the first: it would be
        taken for one that is accused and accuses, whose links fail while it is heard. Left out is
        what somebody unreachable and unheard says of a member that others accuse as well, unless
        it is part of a circle of accusations, which no crash leaves behind.
        """
        silent = self.unreachable - frozenset(heard) - self.seen_by
        if not silent:
            return self
        accused = {subject for observer, subject in self.records if observer not in silent}
        return replace(
            self,
            records=tuple(
                (observer, subject)
                for observer, subject in self.records
                if observer not in silent
                or subject not in accused
                or subject not in self.downable
                or self._leads_back(subject, observer)
            ),
        )

    def _leads_back(self, start: NodeId, goal: NodeId) -> bool:
        """True when accusations lead from one member to the other."""
        seen, ahead = {start}, [start]
        while ahead:
            node = ahead.pop()
            for observer, subject in self.records:
                if observer == node and subject not in seen:
                    seen.add(subject)
                    ahead.append(subject)
        return goal in seen

    @cached_property
    def _in_a_ring(self) -> frozenset[NodeId]:
        observers = frozenset(observer for observer, _ in self.records)
        return observers & frozenset(subject for _, subject in self.records)

    @cached_property
    def _accused_and_heard(self) -> frozenset[NodeId]:
        heard = (record for record in self.records if record[1] in self.seen_by)
        return frozenset(end for record in heard for end in record)

    def _is_of_a_split(self, observer: NodeId, subject: NodeId) -> bool:
        ends = {observer, subject}
        return (
            ends <= self.downable
            and not ends <= self._in_a_ring
            and not ends <= self._accused_and_heard
        )
