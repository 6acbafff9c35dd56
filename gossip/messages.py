"""Control messages of membership, as they travel. Tags are given in `node.wire`, append-only.

A frame's head carries the sender's cluster id and its two digests beside every message.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import NOBODY, Member, NodeId, Tombstone
from gossip.reachability import Record


@dataclass(frozen=True, slots=True)
class Head:
    """What every control frame tells of its sender's view.

    `counter` grows with each change of the digests, so that a late frame never replaces a newer
    report.
    """

    cluster_id: int = 0
    members_digest: int = 0
    reach_digest: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Answered by `Ack(seq)`; `target` guards against a reused address."""

    seq: int
    target: NodeId


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer to `Ping` (or, through a helper, to `PingRequest`)."""

    seq: int


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Please ping `target` for me and relay its ack."""

    seq: int
    target: NodeId


@dataclass(frozen=True, slots=True)
class Nack:
    """The helper is alive, but had no ack from the target within its own timeout."""

    seq: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`accuser` had no sign of life of `subject` at this incarnation."""

    subject: NodeId
    incarnation: int
    accuser: NodeId


@dataclass(frozen=True, slots=True)
class Gossip:
    """News: member records, tombstones, reachability records, suspicions."""

    members: tuple[Member, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    records: tuple[Record, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    floor: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """News straight from whoever decided it, sent to all whom it concerns: not to be told on."""

    news: Gossip


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """To the leader: my digests are those of this frame's head (`counter` repeats it)."""

    counter: int


@dataclass(frozen=True, slots=True)
class ViewSeenAck:
    """From the leader: they equal mine; no need to report them again."""

    counter: int


@dataclass(frozen=True, slots=True)
class Agreed:
    """From the leader, where a strategy decides about the unreachable: every member that counts
    holds the members of this digest."""

    members_digest: int


@dataclass(frozen=True, slots=True)
class SyncOffer:
    """What I hold: (id, item hash) of members, the same of tombstones, versions of records."""

    members: tuple[tuple[NodeId, int], ...]
    tombstones: tuple[tuple[NodeId, int], ...]
    records: tuple[tuple[NodeId, NodeId, int], ...]
    floor: int


@dataclass(frozen=True, slots=True)
class SyncReply:
    """What you lack or hold older, and what I want of yours."""

    news: Gossip
    want_members: tuple[NodeId, ...] = ()
    want_tombstones: tuple[NodeId, ...] = ()
    want_records: tuple[tuple[NodeId, NodeId], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """From a looking process to a seed or a remembered member.

    `agreement` are (key, value) pairs that all members must share; `remembered` the addresses it
    remembers as its last cluster.
    """

    member: Member
    cluster_name: str
    agreement: tuple[tuple[str, str], ...]
    remembered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookingToo:
    """Answer of a looking process to another: I am in no cluster either."""

    cluster_name: str
    remembered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinChallenge:
    """A member's first answer: say this back, so that I know you hear me."""

    nonce: int


@dataclass(frozen=True, slots=True)
class JoinConfirm:
    """The echo of a challenge; it admits."""

    nonce: int


class RefusalKind(enum.IntEnum):
    """What a refused process can do: `TOMBSTONE` take a new uid, `LATER` ask again, else stop."""

    CLUSTER_NAME = 0
    PROTOCOL = 1
    AGREEMENT = 2
    ADDRESS_IN_USE = 3
    TOMBSTONE = 4
    LATER = 5


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """A refusal is an answer: `reason` has both values in words."""

    kind: RefusalKind
    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are a member (joining); this is the whole view of the cluster."""

    cluster_id: int
    view: Gossip


@dataclass(frozen=True, slots=True)
class WhoAreYou:
    """From a member to a seed address outside its view; `cluster_size` = members that count and
    are in its reach."""

    cluster_name: str
    cluster_id: int
    cluster_size: int
    nonce: int


class Standing(enum.IntEnum):
    """What the answering process holds the asking one to be."""

    MEMBER = 0
    GONE = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class IAm:
    """Answer to `WhoAreYou` with its nonce; `cluster_id` 0 means still looking.

    `oldest_number` and `oldest` tell of the oldest member in its reach, `you_are` how it holds who
    asked.
    """

    cluster_name: str
    cluster_id: int
    cluster_size: int
    nonce: int
    oldest_number: int = 0
    oldest: NodeId = NOBODY
    you_are: Standing = Standing.UNKNOWN


@dataclass(frozen=True, slots=True)
class Invite:
    """To a looking process: there is a cluster, ask me."""

    cluster_name: str


@dataclass(frozen=True, slots=True)
class Dissolve:
    """To fellow members: a larger cluster of our name exists, with this member; ours stops."""

    other_cluster_id: int
    other_member: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class YouAreGone:
    """To a process that the cluster holds as down or removed: stop, and start anew."""

    uid: int
    cause: int


@dataclass(frozen=True, slots=True)
class LinkQuestion:
    """My link to `subject` ended and its port refuses me: does it refuse you too?"""

    subject: NodeId
    attempt: int


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """Whether a dial of mine to `subject` was refused too."""

    subject: NodeId
    attempt: int
    refused: bool


@dataclass(frozen=True, slots=True)
class Relay:
    """Please pass this on to `target`, whom I do not reach: an encoded control message."""

    target: NodeId
    payload: bytes


@dataclass(frozen=True, slots=True)
class Relayed:
    """A message of `origin`, who does not reach you; whoever passes it on names the peer of the
    connection it came by."""

    origin: NodeId
    payload: bytes


JOIN_MESSAGES = frozenset(
    {
        JoinRequest, LookingToo, JoinChallenge, JoinConfirm, JoinRefused, Welcome, WhoAreYou, IAm,
        Invite,
    }
)  # fmt: skip
"""Messages that cross from one cluster id to another; every other one is dropped there."""
