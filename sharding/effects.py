"""Orders of the machines of sharding; `Send` and `Publish` come from `gossip.effects`.

Performed by `node.regions`, except `Evacuated`, which is for `node.core`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import NodeId


@dataclass(frozen=True, slots=True)
class OpenShards:
    """Take messages for these shards: their entities are built at their first one."""

    type_name: str
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseShards:
    """Stop the entities of these shards, who handle what they have; those that have not ended after
    `force_after_s` are cancelled, with 0.0 at once: another node has them too. Answered by
    `ShardsClosed`."""

    type_name: str
    shards: tuple[int, ...]
    force_after_s: float


@dataclass(frozen=True, slots=True)
class RouteShards:
    """Where messages for these shards go; None: they are held here, and `ShardsWanted` tells of
    them."""

    type_name: str
    shards: tuple[int, ...]
    home: NodeId | None


@dataclass(frozen=True, slots=True)
class DrainRoute:
    """Tell by `RouteDrained` when all that this node has sent to `home` so far has arrived."""

    type_name: str
    number: int
    home: NodeId


@dataclass(frozen=True, slots=True)
class FailAsks:
    """Asks of this node that wait for a home fail, now and from now on, and tell `why`; empty: they
    wait again. What was told waits all the same."""

    type_name: str
    why: str


@dataclass(frozen=True, slots=True)
class Evacuated:
    """After `EvacuateRequested`: no entity of the type runs here, nor ever will. Given once."""

    type_name: str
