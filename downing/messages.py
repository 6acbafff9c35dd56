"""Control messages of downing and contact, as they travel. Tags are given in `node.wire`.

Sent and read by `downing.machine`. Pings, proposals and their answers may come through another
member (`gossip.messages.Relay`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import NodeId


class Grant(enum.IntEnum):
    """What an answer to a contact ping is worth; everything but `GIVEN` is none."""

    GIVEN = 0
    UNREACHABLE = 1  # the asker is unreachable for somebody
    PROMISED = 2  # the answering member has promised never to grant it again
    GONE = 3  # the asker is down, or no member


@dataclass(frozen=True, slots=True)
class ContactPing:
    """Am I still one of you? `base_digest` tells of the last view the sender saw converged."""

    seq: int
    base_digest: int


@dataclass(frozen=True, slots=True)
class ContactAck:
    """Answer to the `ContactPing` of this `seq`."""

    seq: int
    grant: Grant
    base_digest: int


@dataclass(frozen=True, slots=True)
class ProposeDown:
    """From the decider: promise never to grant these processes again."""

    round: int
    subjects: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class PromiseDown:
    """A promise, for ever: each of these got no grant of the sender for `quiet_s` seconds and will
    get none. It answers the `ProposeDown` of this `round`; round 0 reminds a new decider of it."""

    round: int
    promises: tuple[tuple[NodeId, float], ...]


@dataclass(frozen=True, slots=True)
class OrderDown:
    """To the decider: an operator wants this member down."""

    subject: NodeId


@dataclass(frozen=True, slots=True)
class StopOrder:
    """From the decider to a member that it reaches: you are downed, stop in order."""

    by_operator: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """Answer to `StopOrder`: nothing unique runs here any more, nor ever will."""


@dataclass(frozen=True, slots=True)
class SideLost:
    """From the contender of a side to the side: the arbiter decided for another one."""

    reason: str
