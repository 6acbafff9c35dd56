"""Control messages between the coordinator of one type and its regions, as they travel.

Every directive carries the coordinator's term; a region keeps the greatest it has accepted and
refuses smaller ones. Tags are given in `node.wire`, append-only. Sent and read by
`sharding.coordinator` and `sharding.region`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossip.membership import NOBODY, NodeId


class Term(NamedTuple):
    """One time of office of a coordinator. Of two the greater one is the later."""

    number: int
    node: NodeId

    def __str__(self) -> str:
        return f"{self.number} of {self.node.address}"


NO_TERM = Term(0, NOBODY)


@dataclass(frozen=True, slots=True)
class Claims:
    """Shards that a region has, allocated to it under `term`; `stopping`: their entities end."""

    term: Term
    shards: tuple[int, ...]
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Homes:
    """Shards that live at `node`."""

    node: NodeId
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskReport:
    """A new term begins (or is asked about again): what do you have? Answered by `Report` or
    `TermRefused`, also by a member that knows no such type."""

    type_name: str
    term: Term


@dataclass(frozen=True, slots=True)
class Report:
    """All that the sender has of the type, said under `term`.

    hosts: shards may be allocated to it. is_region: it sends to the type, so it has to be told of
    moves. leaving: it wants its shards moved away.
    """

    type_name: str
    term: Term
    shard_count: int
    hosts: bool
    is_region: bool
    leaving: bool = False
    claims: tuple[Claims, ...] = ()
    agreement: str = ""


@dataclass(frozen=True, slots=True)
class TermRefused:
    """The sender has accepted a greater term."""

    type_name: str
    accepted: Term


@dataclass(frozen=True, slots=True)
class RegionRefused:
    """The receiver cannot take part; `why` says what to mend. may_send: it is told of homes all the
    same, and only hosts nothing."""

    type_name: str
    term: Term
    why: str
    may_send: bool = False


@dataclass(frozen=True, slots=True)
class WantHomes:
    """Where are these shards? Also, with none, what a region says that is not known yet: it is
    asked for its report."""

    type_name: str
    term: Term  # that the sender has reported under, in its present state
    shards: tuple[int, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class HomesAre:
    """Where shards live. whole: those that are not named live nowhere."""

    type_name: str
    term: Term
    homes: tuple[Homes, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class HostShards:
    """These are yours from now on. Answered by `ShardsStarted`. number: grows with each decision of
    a term, and is echoed: of two orders about a shard, or two answers, the later one is known."""

    type_name: str
    term: Term
    shards: tuple[int, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class ShardsStarted:
    """The sender takes messages for them."""

    type_name: str
    term: Term
    shards: tuple[int, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class BeginHandOff:
    """These are about to move: hold what is for them. Answered by `HandOffBegun` once all that the
    receiver had sent to their home has arrived there."""

    type_name: str
    term: Term
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandOffBegun:
    """Nothing of the sender is on its way to these shards."""

    type_name: str
    term: Term
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandOff:
    """Stop the entities of these shards. Answered by `ShardsStopped`, at once for shards that the
    receiver does not have. number: as that of `HostShards`. at_once: another has them too, so
    nothing more is handled."""

    type_name: str
    term: Term
    shards: tuple[int, ...]
    number: int = 0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class ShardsStopped:
    """All entities of these shards have terminated at the sender. refused: it was told to host
    them, and never will."""

    type_name: str
    term: Term
    shards: tuple[int, ...]
    refused: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class RebalanceAsk:
    """Spread the shards evenly now: an operator's order, passed on to the coordinator."""

    type_name: str


TO_COORDINATOR = (
    *(Report, TermRefused, WantHomes, ShardsStarted, HandOffBegun, ShardsStopped),
    RebalanceAsk,
)
TO_REGION = (AskReport, RegionRefused, HomesAre, HostShards, BeginHandOff, HandOff)
MESSAGES = (*TO_COORDINATOR, *TO_REGION)
