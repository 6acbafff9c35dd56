"""What an entity costs beside a plain actor: time of an ask, memory, and how even the shards are.

Decides what is measured side by side: batches on the one and on the other alternate, the ratio is
made within each pair, and the median of the pairs counts. Called by `bench.sharding.command`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.messaging.child import NotMeasuredError
from bench.sharding.fleet import SHARDS, Fleet
from bench.sharding.results import Results
from node.history import boottime_s

FILL_S = 600.0
WARM_ENTITIES = 3000
OUTSTANDING = 256

RATIOS = (
    # metric, where, load, what is divided
    ("sharded_ask_p50_vs_remote", "away", "ask1", "p50_us"),
    ("sharded_asks64_vs_remote", "away", "ask64", "per_s"),
    ("local_entity_ask_vs_local", "here", "ask64", "per_s"),
    ("local_entity_ask1_vs_local", "here", "ask1", "per_s"),
)


def speed(
    directory: Path, pairs: int, for_s: float, results: Results, one_more: Callable[[], None]
) -> None:
    """Asks to an entity over those to a plain actor of the same node, there and here."""
    with Fleet(directory, "cart", customer=False) as fleet:
        driver, other = fleet.first, fleet.start_host()
        fleet.all_up()
        driver.ask("drive", id_prefix="c", here=driver.address, away=other.address)
        for metric, where, load, key in RATIOS:
            for number in range(pairs):
                sides = [f"plain {where}", f"entity {where}"]
                figures = {
                    side: driver.ask("measure", side=side, load=load, for_s=for_s)
                    for side in (sides if number % 2 == 0 else reversed(sides))
                }
                plain, entity = (figures[side] for side in sides)
                results.add(metric, entity[key] / plain[key])
                results.add(f"{metric}, plain actor, {key}", plain[key])
                results.add(f"{metric}, entity, {key}", entity[key])
                one_more()


def spread_and_memory(directory: Path, nodes: int, entities: int, results: Results) -> None:
    """All shards live on all nodes but one, then that joins; and then entities are built."""
    with Fleet(directory, "idle", customer=False) as fleet:
        for _ in range(nodes - 2):
            fleet.start_host()
        fleet.all_up()
        first = fleet.first
        _filled(first.ask("fill", FILL_S, first=0, count=WARM_ENTITIES, outstanding=OUTSTANDING))
        fleet.settle()
        late = fleet.start_host()
        joined_s = boottime_s()
        fleet.all_up()
        fleet.wait("the last one has a shard", lambda: late.shards("idle"))
        counts = fleet.settle()
        results.add("shard_spread_settled_s", boottime_s() - joined_s)
        results.add("shard_spread", max(counts.values()) / min(counts.values()))
        # Of those that moved only an ask makes a new one.
        _filled(first.ask("fill", FILL_S, first=0, count=WARM_ENTITIES, outstanding=OUTSTANDING))
        if (here := _entities(fleet)) != WARM_ENTITIES:
            raise NotMeasuredError(f"failed: {here} entities instead of {WARM_ENTITIES}")
        before = _resident(fleet)
        more = entities - WARM_ENTITIES
        filled = first.ask("fill", FILL_S, first=WARM_ENTITIES, count=more, outstanding=OUTSTANDING)
        _filled(filled)
        if (here := _entities(fleet)) != entities:
            raise NotMeasuredError(f"failed: {here} entities instead of {entities}")
        results.add("entity_bytes", (_resident(fleet) - before) / more)
        results.add("entities_built_per_s", filled["per_s"])


def _filled(answer: dict[str, float]) -> None:
    if not answer["answered"]:
        raise NotMeasuredError("failed: no entity answered")


def _entities(fleet: Fleet) -> int:
    return sum(host.ask("state")["idle"]["entities_here"] for host in fleet.hosts)


def _resident(fleet: Fleet) -> float:
    return float(sum(host.ask("memory")["bytes"] for host in fleet.hosts))


assert SHARDS <= WARM_ENTITIES / 4  # so that every shard has some of them
