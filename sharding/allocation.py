"""Who gets a shard, and which shards move to spread them evenly. Pure functions.

`least-shard` gives each shard to whoever has fewest, and evens out in small rounds. `rendezvous`
gives it to the node with the highest hash of (node, shard): a node that joins takes about its share
and nothing else moves (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998). Called by `sharding.coordinator` only, and always with nodes that may host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from gossip.membership import NodeId


def least_shard(counts: Mapping[NodeId, int]) -> NodeId | None:
    """Who has fewest shards; None when there is nobody."""
    return min(counts, key=lambda node: (counts[node], node), default=None)


def rendezvous(nodes: Collection[NodeId], type_name: str, shard: int) -> NodeId | None:
    """Who has the highest hash for this shard; None when there is nobody.

    The hash is of the address: a node that comes back under it gets the same shards.
    """
    return max(nodes, key=lambda node: (_weight(node, type_name, shard), node), default=None)


def _weight(node: NodeId, type_name: str, shard: int) -> bytes:
    text = f"{node.address}/{type_name}/{shard}"
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def round_limit(shard_count: int, *, relative: float, absolute: int) -> int:
    """How many shards one round moves at most: a share of all, and never more than `absolute`."""
    return max(1, min(int(relative * shard_count), absolute))


def evening_moves(shards: Mapping[NodeId, Collection[int]], limit: int) -> dict[int, NodeId]:
    """The next round towards an even spread: shard → whom it should leave for, `limit` at most.

    shards: all that each node has which may host. Whoever has most gives to whoever has fewest, as
    long as that one has two less: then nobody has more than one above another.
    """
    left = {node: sorted(owned) for node, owned in shards.items()}
    moves: dict[int, NodeId] = {}
    while len(left) > 1 and len(moves) < limit:
        fullest = max(left, key=lambda node: (len(left[node]), node))
        emptiest = min(left, key=lambda node: (len(left[node]), node))
        if len(left[fullest]) - len(left[emptiest]) < 2:
            break
        # The fullest never got one in this round: it has been above the others all the time.
        shard = left[fullest].pop()
        left[emptiest].insert(0, shard)
        moves[shard] = emptiest
    return moves


def rendezvous_moves(
    shards: Mapping[NodeId, Collection[int]], type_name: str, limit: int
) -> dict[int, NodeId]:
    """The next round towards where the hash says: shard → whom it should leave for."""
    moves: dict[int, NodeId] = {}
    for node, owned in sorted(shards.items()):
        for shard in sorted(owned):
            best = rendezvous(shards.keys(), type_name, shard)
            if best is not None and best != node and len(moves) < limit:
                moves[shard] = best
    return moves
