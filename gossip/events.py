"""Facts that membership is told, facts it publishes, and the orders only it gives.

Every event is past tense and comes from the shell; every order that starts work names the event
that answers it. Routed by `node.core`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import Cause, Member, NodeId, Status
from gossip.messages import Head

Address = tuple[str, int]


class DialOutcome(enum.Enum):
    """What a bare TCP dial met."""

    ANSWERED = "answered"  # and greeted by the process there: it runs, if only its I/O thread
    ACCEPTED = "accepted"  # by its kernel
    REFUSED = "refused"
    UNKNOWN = "unknown"  # timed out, no route, anything else: says nothing about the process


# events


@dataclass(frozen=True, slots=True)
class Started:
    """The sockets are bound; look for the cluster.

    `seeds` are resolved addresses, `remembered` the last counted members; `found` is the
    operator's word that a new cluster shall be founded without asking. `wall_s`, seconds since
    1970, only orders cluster ids: of two clusters of one size the one founded later stops.
    `unresolved` are seed names that have no address yet (`SeedsResolved` follows): who is behind
    them has not been asked, so nothing is founded without them.
    """

    seeds: tuple[Address, ...]
    remembered: tuple[str, ...] = ()
    found: bool = False
    wall_s: int = 0
    unresolved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeedsResolved:
    """Seed names were looked up again: `seeds` are new addresses, `unresolved` have none yet."""

    seeds: tuple[Address, ...]
    unresolved: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerFrame:
    """A control frame: its messages in order, then what its head reports."""

    sender: NodeId
    head: Head
    messages: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class LinkLost:
    """An established control link to `peer` ended by EOF or RST."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Dialled:
    """Answer to `Dial`; `data` is None when no data port was dialled."""

    peer: NodeId
    attempt: int
    control: DialOutcome
    data: DialOutcome | None


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The kernel we share with `peer` says that its process is gone: proof of a crash."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class WatchRefused:
    """The kernel cannot watch this process for us; refused ports are the fallback."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Everything unique of ours has stopped: announce the leave."""


@dataclass(frozen=True, slots=True)
class MembersDowned:
    """It was decided that these members are down: by a strategy, or by an operator.

    `cause` is `LEFT` when they have said that nothing unique runs there any more, which is proof;
    else `DOWNED`.
    """

    members: tuple[NodeId, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class MembersDoomed:
    """This member has promised that these will be down: whoever says that they are is believed."""

    members: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class TypesHosted:
    """The singleton and sharding types started on this node."""

    types: tuple[str, ...]


# orders


@dataclass(frozen=True, slots=True)
class Dial:
    """Dial the bare ports of a peer; answered by `Dialled(peer, attempt, …)`."""

    peer: NodeId
    attempt: int
    data_port: int = 0


@dataclass(frozen=True, slots=True)
class WatchProcess:
    """Watch a process of our own kernel; answered by `ProcessEnded` or `WatchRefused`."""

    peer: NodeId
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class UnwatchProcess:
    """Stop watching; nothing answers."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class CloseLinks:
    """The process is gone for good: close our links to it."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class KeepLinks:
    """Keep control links to these members open, with heartbeats that tell a frozen process.

    A few, another set at each member, so that everybody is watched by some. Every other control
    link may be closed when it is idle, or when there are too many. Replaces the set before it.
    """

    peers: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep these addresses as the last counted members."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TakeIdentity:
    """Our uid is spent (a tombstone bears it); introduce ourselves as `new_id` from now on."""

    new_id: NodeId


@dataclass(frozen=True, slots=True)
class Exit:
    """This process must end in order, with this exit code and reason."""

    code: int
    reason: str


# facts, inside Publish; besides these the MembershipView itself


@dataclass(frozen=True, slots=True)
class ClusterFounded:
    """We founded a cluster."""

    cluster_id: int


@dataclass(frozen=True, slots=True)
class ClusterJoined:
    """A member admitted us."""

    cluster_id: int
    by: NodeId


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """A member appeared (`before` None) or its status moved."""

    member: Member
    before: Status | None


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """A member was removed; its uid never comes back."""

    id: NodeId
    cause: Cause


@dataclass(frozen=True, slots=True)
class ReachabilityChanged:
    """The verdict about a member changed: unreachable by some observer, or by none any more."""

    id: NodeId
    reachable: bool


@dataclass(frozen=True, slots=True)
class ConvergenceBlocked:
    """These members are unreachable and undecided, so nobody becomes up and nobody leaves; said
    after a while and then once a minute."""

    members: tuple[NodeId, ...]
    explain: str


@dataclass(frozen=True, slots=True)
class IslandMet:
    """Another cluster bears our name; they are never merged, the smaller one stops."""

    address: str
    other_cluster_id: int
    other_size: int
    we_stop: bool


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """Probes of a member come through over others only (`works` False), or directly again."""

    peer: NodeId
    works: bool


@dataclass(frozen=True, slots=True)
class HeardNobody:
    """No member has said anything for a while: most likely we are cut off; said once each time."""

    for_s: float


@dataclass(frozen=True, slots=True)
class SurvivorMet:
    """A member that we removed lives, in a part of our cluster that removed us. They are never
    merged, the smaller part stops; said once a minute."""

    address: str
    cause: Cause
    other_size: int
    we_stop: bool


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """A peer claimed what it may not, or what nobody can; told once per reason, then only counted
    (`GossipMachine.counters`)."""

    sender: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class LookingFor:
    """We found no cluster yet; in words, whom we wait for."""

    explain: str
