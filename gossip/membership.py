"""Who a member is, and how two records of one member become one.

Decides: the identity of a process, the member record and its merge (a product of lattices: each
field only moves one way, so merging is commutative, associative and idempotent), and the frozen
view that the layers above read. Does not decide when a status moves: that is
`gossip.machine.GossipMachine`. Called by every package of the house.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

NUMBER_MAX = 1 << 62
"""No counter of the protocol comes near: a number above it is a lie, whoever says it. One bound
for all, so that two members never differ for ever about what they took."""


class NodeId(NamedTuple):
    """One process run at an address. `uid`: 64 random bits per start; 0 = whoever is there."""

    host: str
    port: int
    uid: int

    @property
    def address(self) -> str:
        """`host:port` (`[::1]:25520`), what an operator types."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.address}#{self.uid:016x}"


NOBODY = NodeId("", 0, 0)


class Status(enum.IntEnum):
    """Life of a member, only ever forward; `DOWN` may come from any of the earlier ones."""

    JOINING = 0
    WEAKLY_UP = 1
    UP = 2
    LEAVING = 3
    EXITING = 4
    DOWN = 5
    REMOVED = 6


class Cause(enum.IntEnum):
    """Why a member is down or removed; of two causes the greater one is kept. `DOWNED` is by a
    strategy, `ORDERED` by an operator.

    Only `LEFT` (it stopped its singletons before it announced) and `CRASHED` (its own kernel said
    that the process ended) prove that nothing of it acts any more.
    """

    NONE = 0
    NEVER_UP = 1
    SUPERSEDED = 2
    DOWNED = 3
    ORDERED = 4
    LEFT = 5
    CRASHED = 6

    @property
    def is_proof(self) -> bool:
        """True when nothing of the member can be acting any more."""
        return self in (Cause.LEFT, Cause.CRASHED)


@dataclass(frozen=True, slots=True)
class Member:
    """What the cluster knows of one process.

    The process itself writes name, roles, types, ports, key, protocol range and the facts about
    its kernel (boot id, namespaces, pid, start time) under a growing `record_version`, and its
    `incarnation`. `status`, `up_number` (age, given on the way to up; 0 = none yet) and `cause`
    are written by leaders; `leaving` by the process itself.

    `public_key` is the CURVE key (32 bytes; empty without keys) that its connections prove; of
    one `id` it never changes, so a record that brings another one is a lie.
    """

    id: NodeId
    name: str = ""
    roles: tuple[str, ...] = ()
    status: Status = Status.JOINING
    up_number: int = 0
    incarnation: int = 0
    record_version: int = 0
    protocol_min: int = 1
    protocol_max: int = 1
    data_port: int = 0
    public_key: bytes = b""
    types: tuple[str, ...] = ()
    boot_id: str = ""
    net_ns: int = 0
    pid_ns: int = 0
    pid: int = 0
    start_ticks: int = 0
    cause: Cause = Cause.NONE

    @property
    def age_key(self) -> tuple[int, NodeId]:
        """Sorts oldest first; a double up_number (two leaders in a split) is decided by the id."""
        return (self.up_number, self.id)

    @property
    def counts(self) -> bool:
        """True when the member takes part in convergence: it was up and is not gone."""
        return self.status in (Status.UP, Status.LEAVING, Status.EXITING)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A removed process: never a member again under this uid.

    `number` grows with each removal; those at or below the view's pruning floor are forgotten by
    everybody together.
    """

    id: NodeId
    number: int
    cause: Cause


@dataclass(frozen=True)
class MembershipView:
    """A frozen picture of the cluster, published at each change to the layers above.

    `members` is sorted by address. `unreachable` follows from the records of all observers that
    are not down; `suspects` are suspected by this node and not unreachable, and the processes of
    the `unresponsive` among them still greet. `gone` maps removed processes to the cause, as far
    as they are still remembered. `converged` is what this node
    knows: exact on the leader, on others true when the leader acknowledged the present view.
    `records` are the (observer, subject) pairs that make members unreachable, sorted;
    `members_digest` tells one roster from another (`gossip.digest`). `agreed` is stricter than
    `converged`: the leader has said that every member that counts holds these members. `held` are
    unreachable because they come and go, or hardly answer, though they are heard now and then.
    """

    self_id: NodeId
    cluster_id: int
    members: tuple[Member, ...]
    unreachable: frozenset[NodeId] = frozenset()
    suspects: frozenset[NodeId] = frozenset()
    unresponsive: frozenset[NodeId] = frozenset()
    gone: dict[NodeId, Cause] = field(default_factory=dict)
    leader: NodeId | None = None
    converged: bool = False
    blocked_by: tuple[NodeId, ...] = ()
    version: int = 0
    records: tuple[tuple[NodeId, NodeId], ...] = ()
    members_digest: int = 0
    agreed: bool = False
    held: frozenset[NodeId] = frozenset()

    @cached_property
    def by_id(self) -> dict[NodeId, Member]:
        """Members by their id."""
        return {member.id: member for member in self.members}

    def oldest(
        self, *, role: str | None = None, type_name: str | None = None, reachable_only: bool = False
    ) -> Member | None:
        """The oldest member that is up, or None. `type_name` keeps those that host this type."""
        return min(
            (
                member
                for member in self.members
                if member.status is Status.UP
                and member.up_number > 0
                and (role is None or role in member.roles)
                and (type_name is None or type_name in member.types)
                and not (reachable_only and member.id in self.unreachable)
            ),
            key=lambda member: member.age_key,
            default=None,
        )

    def reachable(self) -> Iterable[Member]:
        """Members nobody holds unreachable, by address."""
        return (member for member in self.members if member.id not in self.unreachable)


def merge_members(ours: Member, theirs: Member) -> Member:
    """One record out of two of the same process; commutative, associative, idempotent.

    The record with the greater `record_version` (a tie: the greater content, which only a liar
    makes) gives what the process writes itself; everything else is the further of the two:
    status, incarnation and cause by their order, up_number the smaller one that is given.
    """
    if ours == theirs:
        return ours
    own = max(ours, theirs, key=_own_order)
    numbers = [number for number in (ours.up_number, theirs.up_number) if number > 0]
    return Member(
        id=own.id,
        name=own.name,
        roles=own.roles,
        status=max(ours.status, theirs.status),
        up_number=min(numbers, default=0),
        incarnation=max(ours.incarnation, theirs.incarnation),
        record_version=own.record_version,
        protocol_min=own.protocol_min,
        protocol_max=own.protocol_max,
        data_port=own.data_port,
        public_key=own.public_key,
        types=own.types,
        boot_id=own.boot_id,
        net_ns=own.net_ns,
        pid_ns=own.pid_ns,
        pid=own.pid,
        start_ticks=own.start_ticks,
        cause=max(ours.cause, theirs.cause),
    )


def _own_order(member: Member) -> tuple[object, ...]:
    return (
        member.record_version,
        member.name,
        member.roles,
        member.protocol_min,
        member.protocol_max,
        member.data_port,
        member.public_key,
        member.types,
        member.boot_id,
        member.net_ns,
        member.pid_ns,
        member.pid,
        member.start_ticks,
    )
