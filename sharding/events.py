"""Facts that the machines of sharding are told, and facts they publish.

Besides these they take a `gossip.membership.MembershipView` and a `gossip.effects.PeerMessage` with
a message of `sharding.messages`. Routed by `node.core`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import NodeId
from sharding.settings import ShardingSettings


@dataclass(frozen=True, slots=True)
class RegionRequested:
    """The user called `start` or `start_proxy` on this node."""

    type_name: str
    settings: ShardingSettings


@dataclass(frozen=True, slots=True)
class CoordinatorAt:
    """Where the coordinator of the type is; None: nowhere that is known."""

    type_name: str
    host: NodeId | None


@dataclass(frozen=True, slots=True)
class Lead:
    """The coordinator is here from now on. `floor`: its term has a greater number than this (the
    fencing token of its lease, the term that the region here has accepted)."""

    type_name: str
    floor: int


@dataclass(frozen=True, slots=True)
class Resign:
    """The coordinator is not here any more."""

    type_name: str


@dataclass(frozen=True, slots=True)
class ShardsWanted:
    """Messages wait here for shards whose home is not known."""

    type_name: str
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardsClosed:
    """Answer to `CloseShards`: all entities of these shards have terminated here."""

    type_name: str
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RouteDrained:
    """Answer to `DrainRoute`: all that was sent to that home has arrived, or never will."""

    type_name: str
    number: int


@dataclass(frozen=True, slots=True)
class EvacuateRequested:
    """This node ends in order, or the user stopped the type here: its shards go elsewhere.

    at_once: it ends for another reason, and nobody takes a word of it any more.
    """

    type_name: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class RebalanceRequested:
    """An operator wants the shards spread evenly now."""

    type_name: str


@dataclass(frozen=True, slots=True)
class RegionNotAdmitted:
    """Published, an error: the coordinator does not take this region; `explain` says why."""

    type_name: str
    explain: str


@dataclass(frozen=True, slots=True)
class ShardsNotProven:
    """Published, a warning: shards are allocated anew although `silent_peers` did not answer for
    `waited_s`. Each of them may run their entities."""

    type_name: str
    silent_peers: tuple[NodeId, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class ShardsMoved:
    """Published by the coordinator: shards live at `node` now."""

    type_name: str
    shards: tuple[int, ...]
    node: NodeId


@dataclass(frozen=True, slots=True)
class TermBegan:
    """Published by the coordinator: it rebuilds its map under a new term."""

    type_name: str
    number: int
    why: str
