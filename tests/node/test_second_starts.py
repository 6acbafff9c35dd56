"""A type that is started again, otherwise, or while its node leaves.

Guards I-104, I-116, I-127 and S16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from node import Actor, ActorSystem
from node.errors import SettingsError
from node.remembered import MemoryEntityStore
from node.testkit import World
from sharding.settings import shard_of
from tests.node.test_regions import COUNT, TYPE, Cart, Carts, Rest, an_id, id_at, start
from tests.stories.test_remembered_stories import SHARDS, Apart, Meter, Meters, Read
from tests.stories.test_remembered_stories import TYPE as METER


def stop(world: World, name: str, type_name: str) -> None:
    """Stop the type there, and let its shards move."""
    world[name].call(world.system(name).cluster.sharding.stop, type_name=type_name)
    world.run_for(s=10.0)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"role": "carts"}, "role"),
        ({"lease": "sqlite:///absent.db"}, "lease"),
        ({"remember": MemoryEntityStore()}, "remember"),
        ({"shard_count": 9, "role": "carts"}, "shard_count and role"),
    ],
)
def test_what_all_that_host_it_must_have_alike_does_not_change_while_it_runs(
    given: dict[str, Any], word: str
) -> None:
    """I-104: the node would be refused by its own coordinator."""
    with Carts("a") as world:
        world.spread()
        with pytest.raises(SettingsError, match=f"another {word}: "):
            start(world, "a", **given)
        assert world.home("c1") == "a"


def meter(world: Meters, name: str, store: MemoryEntityStore | None) -> None:
    """Start meters there."""
    start_: Callable[..., object] = world.system(name).cluster.sharding.start
    world[name].call(
        lambda: start_(
            type_name=METER, actor=Meter, args=(world.born,), shard_count=SHARDS, remember=store
        )
    )


@pytest.mark.parametrize("remembers", [True, False])
def test_once_it_was_stopped_it_may_be_started_with_another_store(remembers: bool) -> None:
    """Its coordinator is the one that was there before, and goes by what holds now."""
    with Meters("a") as world:
        world.ready(2)
        stop(world, "a", METER)
        store = MemoryEntityStore() if remembers else None
        meter(world, "a", store)
        world.run_for(s=10)
        assert world.ask("a", "m-7", Read()) == 1
        assert world.stored() == {"m-0", "m-1"}
        if store is not None:
            shard = shard_of("m-7", SHARDS)
            assert world.run(store.load(METER, shard), node="a") == {"m-7"}


def test_the_store_of_the_latest_start_is_written() -> None:
    """I-104: one that began with the wrong one is mended by a stop and a start."""
    with Apart() as world:
        world.until_all_up()
        world.run_for(s=10)
        stop(world, "c", METER)
        meter(world, "c", world.store)
        world.run_for(s=1)
        first = {f"m-{number}" for number in range(24)}
        for name in sorted(first):
            world.ask("a", name, Read())
        world.run_for(s=30)
        more = {f"n-{number}" for number in range(24)}
        for name in sorted(more):
            world.ask("a", name, Read())
        assert world.system("c").cluster.sharding.state()[0]["here"] != []
        assert world.stored() == first | more


def test_one_that_still_stops_is_not_started_with_another_store() -> None:
    """What is here is written where it was read."""
    with Meters("a") as world:
        world.ready(12)
        world.store.is_down = True
        world["a"].call(world.meters["a"]["new"].tell, Read())
        world["a"].call(world.system("a").cluster.sharding.stop, type_name=METER)
        world.run_for(s=0.1)
        with pytest.raises(SettingsError, match="still stops"):
            meter(world, "a", MemoryEntityStore())
        world.store.is_down = False
        world.run_for(s=30)
        meter(world, "a", MemoryEntityStore())


def test_another_allocation_counts_from_the_next_start_on() -> None:
    """By hash: whoever starts first, each shard comes to the same node."""
    with Carts("a b") as world:
        world.spread()
        homes = []
        for names in ("ab", "ba"):
            for name in names:
                stop(world, name, TYPE)
            for name in names:
                start(world, name, allocation="rendezvous")
            for shard in range(COUNT):
                world.home(an_id(shard))
            world.run_for(s=30.0)
            homes.append([world.home(an_id(shard)) for shard in range(COUNT)])
        assert homes[0] == homes[1]
        assert homes[0].count("a") != COUNT // 2, "least-shard would make it even"


def test_stopped_and_started_at_once_it_stops_no_entity_later() -> None:
    """I-116: the wait for somebody to move its shards is over."""
    with Carts() as world:
        world.spread()
        world["b"].call(world.system("b").cluster.sharding.stop, type_name=TYPE)
        start(world, "b")
        world.run_for(s=4.9)
        for shard in world.state("b")["here"]:
            world.home(an_id(shard))
        alive = {each for each in world.alive if each[1] == "b"}
        assert alive
        world.run_for(s=2.0)
        assert world.system("b").counters()["sharding: stopped without a move"] == 0
        assert alive <= set(world.alive)


class Idle(Actor):
    """A singleton."""


def again(system: ActorSystem, world: Carts) -> object:
    """The type that runs."""
    return system.cluster.sharding.start(
        type_name=TYPE, actor=Cart, args=(world,), shard_count=COUNT
    )


STARTS: dict[str, Callable[[ActorSystem, Carts], object]] = {
    "again": again,
    "type": lambda system, world: system.cluster.sharding.start(
        type_name="o", actor=Cart, args=(world,), shard_count=4
    ),
    "proxy": lambda system, _: system.cluster.sharding.start_proxy(type_name="o", shard_count=4),
    "singleton": lambda system, _: system.cluster.singleton.start(type_name="s", actor=Idle),
    "singleton's proxy": lambda system, _: system.cluster.singleton.start_proxy(type_name="s"),
}


@pytest.mark.parametrize("which", STARTS)
def test_a_start_while_the_node_leaves_does_not_hold_it_up(which: str) -> None:
    """S16: nothing starts on a leaver any more."""
    with Carts("a b") as world:
        world.spread()
        world.tell("b", id_at(world, "b"), Rest(1.0))
        world.run_for(s=0.1)
        system, began_at = world.system("b"), world.now
        world["b"].call(lambda: world["b"].loop.create_task(system.leave()))
        world.run_for(s=0.2)
        world["b"].call(lambda: STARTS[which](system, world))
        world.run_until(lambda: not world["b"].running, within_s=60)
        assert world.now - began_at < 6.0
