"""Who gets a shard: even, few moves, the same on every node.

Guards I-125 and the limits of a round.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.membership import NodeId
from sharding.allocation import (
    evening_moves,
    least_shard,
    rendezvous,
    rendezvous_moves,
    round_limit,
)
from tests.sharding.worlds import A, B, C, D

NODES = [NodeId(f"10.0.0.{number}", 25520, number) for number in range(1, 11)]
SPREADS = st.lists(st.integers(0, 30), min_size=1, max_size=8)


def spread(counts: list[int]) -> dict[NodeId, list[int]]:
    """Shards 0, 1, … dealt out so."""
    shards = iter(range(sum(counts)))
    return {
        node: [next(shards) for _ in range(count)]
        for node, count in zip(NODES, counts, strict=False)
    }


def moved(owned: dict[NodeId, list[int]], moves: dict[int, NodeId]) -> dict[NodeId, list[int]]:
    """The spread after a round."""
    return {
        node: [s for s in shards if s not in moves] + [s for s, to in moves.items() if to == node]
        for node, shards in owned.items()
    }


@pytest.mark.parametrize(
    ("counts", "expected"),
    [({}, None), ({B: 3}, B), ({A: 3, B: 2}, B), ({B: 2, A: 2}, A), ({C: 0, D: 0}, C)],
)
def test_least_shard(counts: dict[NodeId, int], expected: NodeId | None) -> None:
    assert least_shard(counts) == expected


@pytest.mark.parametrize(
    ("count", "relative", "absolute", "limit"),
    [(256, 0.1, 64, 25), (256, 0.1, 10, 10), (8, 0.1, 64, 1), (1, 1.0, 1, 1), (16384, 1.0, 64, 64)],
)
def test_round_limit(count: int, relative: float, absolute: int, limit: int) -> None:
    assert round_limit(count, relative=relative, absolute=absolute) == limit


@pytest.mark.parametrize(
    ("counts", "limit", "moves"),
    [
        ([], 9, {}),
        ([5], 9, {}),
        ([2, 1], 9, {}),
        ([2, 0], 9, {1: B}),
        ([4, 0], 9, {3: B, 2: B}),
        ([4, 0], 1, {3: B}),
        ([4, 0, 0], 9, {3: B, 2: C}),
        ([3, 3, 0], 9, {5: C, 2: C}),
    ],
)
def test_evening_moves(counts: list[int], limit: int, moves: dict[int, NodeId]) -> None:
    assert evening_moves(spread(counts), limit) == moves


@given(SPREADS, st.integers(1, 12))
def test_rounds_end_within_one_and_move_as_few_as_can_be(counts: list[int], limit: int) -> None:
    """However uneven it was: no shard moves twice, none from who has few, none more than need."""
    owned = spread(counts)
    total, size = sum(counts), len(counts)
    surplus = sorted(counts, reverse=True)
    ideal = [total // size + (index < total % size) for index in range(size)]
    needed = sum(max(0, has - should) for has, should in zip(surplus, ideal, strict=True))
    touched: list[int] = []
    for _ in range(needed + 1):
        moves = evening_moves(owned, limit)
        assert len(moves) <= limit
        if not moves:
            break
        touched += moves
        owned = moved(owned, moves)
    sizes = [len(shards) for shards in owned.values()]
    assert max(sizes) - min(sizes) <= 1
    assert len(touched) == needed
    assert len({*touched}) == needed


@given(SPREADS, st.integers(1, 12))
def test_the_order_in_which_nodes_are_known_does_not_matter(counts: list[int], limit: int) -> None:
    owned = spread(counts)
    shuffled = dict(sorted(owned.items(), key=lambda item: item[0].host[::-1], reverse=True))
    shuffled = {node: shards[::-1] for node, shards in shuffled.items()}
    assert evening_moves(owned, limit) == evening_moves(shuffled, limit)
    assert rendezvous_moves(owned, "cart", limit) == rendezvous_moves(shuffled, "cart", limit)
    counted = {node: len(shards) for node, shards in owned.items()}
    assert least_shard(counted) == least_shard(dict(reversed(counted.items())))
    assert rendezvous(list(owned), "cart", 3) == rendezvous(list(owned)[::-1], "cart", 3)


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_by_rendezvous_a_node_that_joins_takes_its_share_and_nothing_else_moves(size: int) -> None:
    """I-125: about 1/n of the shards."""
    before = {shard: rendezvous(NODES[:size], "cart", shard) for shard in range(1024)}
    after = {shard: rendezvous(NODES[: size + 1], "cart", shard) for shard in range(1024)}
    gained = {shard for shard in before if before[shard] != after[shard]}
    assert {after[shard] for shard in gained} == {NODES[size]}
    share = 1024 / (size + 1)
    assert 0.75 * share < len(gained) < 1.25 * share


def test_by_rendezvous_one_that_comes_back_at_its_address_gets_what_it_had() -> None:
    again = NodeId(B.host, B.port, 999)
    for shard in range(64):
        first, second = (
            rendezvous([A, B, C], "cart", shard),
            rendezvous([A, again, C], "cart", shard),
        )
        assert second == (again if first == B else first)


def test_by_rendezvous_types_are_spread_differently() -> None:
    assert any(
        rendezvous(NODES, "cart", shard) != rendezvous(NODES, "user", shard) for shard in range(64)
    )
    assert rendezvous([], "cart", 1) is None


def test_by_rendezvous_where_a_shard_belongs_is_the_same_in_every_process_and_release() -> None:
    """A hash that changes would move all shards at an upgrade."""
    homes = [rendezvous([A, B, C], "cart", shard) for shard in range(8)]
    assert homes == [A, C, A, B, B, A, A, A]


@given(SPREADS, st.integers(1, 300))
def test_rounds_by_rendezvous_end_where_the_hash_says(counts: list[int], limit: int) -> None:
    owned = spread(counts)
    for _ in range(sum(counts) + 1):
        moves = rendezvous_moves(owned, "cart", limit)
        assert len(moves) <= limit
        if not moves:
            break
        owned = moved(owned, moves)
    for node, shards in owned.items():
        assert {rendezvous(owned.keys(), "cart", shard) for shard in shards} <= {node}
