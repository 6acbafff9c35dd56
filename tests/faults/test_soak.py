"""Hours of virtual time with random traffic on a cluster: afterwards nothing is left of it.

`make test` lets 10 minutes go by, `make test-long` six hours. What could leak is counted: objects
of every class, and what the parts keep in their tables.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from node import (
    Actor,
    ActorRef,
    Ask,
    Restart,
    Settings,
    Stop,
    TenureError,
    Terminated,
    message,
    on,
    wire,
)
from node.schema import schema_of
from node.testkit import World
from tests.conftest import HowMany

NODES = "a b c"
WORKERS = ("w1", "w2")
SETTLE_S = 90.0  # longer than every timeout and window in the traffic
MORE_OBJECTS_MAX = 40  # of one class
MORE_FACTS_MAX = 400  # of what the flight records hold: they have other entries each time
MORE_BLOCKS_MAX = 3_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Dead letters and failures are part of the traffic."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@message("tests.faults.work")
class Work(Ask[int]):
    number: int
    pause_s: float = 0.0
    filler: bytes = b""


@message("tests.faults.fail")
class Fail(Ask[int]):
    pass


@message("tests.faults.mourn")
class Mourn:
    ref: ActorRef[Any]


@message("tests.faults.guest")
class Guest:
    stop: bool = False


class Worker(Actor):
    """Works, fails, watches others, has children, timers and pipes."""

    def __init__(self) -> None:
        self.guests: list[ActorRef[Any]] = []

    @on(Work)
    async def work(self, msg: Work) -> int:
        if msg.pause_s:
            await asyncio.sleep(msg.pause_s)
        return msg.number

    @on(Fail)
    def fail(self, msg: Fail) -> int:
        raise ValueError("asked to")

    @on(Mourn)
    def mourn(self, msg: Mourn) -> None:
        self.context.watch(msg.ref)
        self.context.timers.once("forget", 5.0, Guest(stop=True))

    @on(Terminated)
    def ended(self, msg: Terminated) -> None:
        self.context.pipe_to_self(asyncio.sleep(0.5, None))

    @on(Guest)
    def guest(self, msg: Guest) -> None:
        if not msg.stop:
            self.guests.append(self.context.spawn(Worker, supervision=Stop()))
        while self.guests and (msg.stop or len(self.guests) > 3):
            self.context.stop(self.guests.pop())


class Traffic:
    """What the users of a cluster do, by chance and by seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(world.seed)
        self.is_over = False
        self.outcomes: Counter[str] = Counter()

    def worker(self, node: str) -> ActorRef[Any]:
        """Some worker, seen from a node."""
        where = self.rng.choice(NODES.split())
        path = f"/user/{self.rng.choice([*WORKERS, 'nobody'])}"
        return self.world[node].system.resolve(f"{self.world[where].address}{path}")

    async def user(self, node: str) -> None:
        """One user: one thing after the other."""
        rng = self.rng
        while not self.is_over:
            await asyncio.sleep(rng.expovariate(4.0))
            ref = self.worker(node)
            choice = rng.random()
            try:
                if choice < 0.35:
                    await ref.ask(Work(1, rng.choice((0.0, 0.0, 0.1, 3.0))), timeout_s=1.0)
                elif choice < 0.45:
                    await ref.ask(Work(2, 0.0, bytes(rng.choice((10, 40_000)))), timeout_s=1.0)
                elif choice < 0.5:
                    await ref.ask(Fail(), timeout_s=1.0)
                elif choice < 0.7:
                    ref.tell(Work(3))
                elif choice < 0.8:
                    ref.tell(Mourn(self.worker(node)))
                elif choice < 0.9:
                    ref.tell(Guest(stop=rng.random() < 0.5))
                else:
                    await self.short_life(node)
                self.outcomes["done"] += 1
            except TenureError as error:
                self.outcomes[type(error).__name__] += 1

    async def short_life(self, node: str) -> None:
        """An actor that is watched from another node and ends."""
        system = self.world[node].system
        brief = system.spawn(Worker)
        self.worker(node).tell(Mourn(brief))
        brief.tell(Work(4))
        await asyncio.sleep(0.2)
        system.stop(brief)

    def trouble(self) -> None:
        """Now and then a link is cut for a while, or a node pauses."""
        if self.is_over:
            return
        a, b = self.rng.sample(NODES.split(), 2)
        if self.rng.random() < 0.5:
            self.world.cut(a, from_=b)
            self.world.after(self.rng.uniform(0.5, 8.0), self.world.heal_all)
        else:
            self.world.pause(a, s=self.rng.uniform(0.1, 3.0))


def census() -> Counter[str]:
    """Objects by class."""
    gc.collect()
    return Counter(
        f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
    )


def settled(world: World, traffic: Traffic) -> tuple[Counter[str], int]:
    """What is there once the traffic has stopped and all its timeouts are over."""
    traffic.is_over = True
    world.heal_all()
    world.run_for(s=SETTLE_S)
    world.until_all_up()
    for node in world:
        for name in WORKERS:
            node.system.resolve(f"/user/{name}").tell(Guest(stop=True))
    _forget_names(world)
    world.run_for(s=10.0)
    world.dead_letters.clear()
    world.failures.clear()
    return census(), sys.getallocatedblocks()


def _forget_names(world: World) -> None:
    """Close all links: what was interned on a connection, up to a bound, goes with it."""
    ids = [node.system.cluster.self_id for node in world]
    for node in world:
        assert node.transport is not None
        for peer in ids:
            node.transport.close_links(peer)


def _bound(class_name: str) -> int:
    is_fact = class_name == "builtins.tuple" or class_name.startswith("gossip.")
    return MORE_FACTS_MAX if is_fact else MORE_OBJECTS_MAX


def run_traffic(world: World, *, s: float) -> Traffic:
    """So many virtual seconds of six users and some trouble."""
    traffic = Traffic(world)
    for node in NODES.split():
        for _ in range(2):
            task = world[node].loop.create_task(traffic.user(node))
            world[node].loop.call_later(s + SETTLE_S, task.cancel)
    for at_s in range(20, int(s), 40):
        world.after(at_s, traffic.trouble)
    world.run_for(s=s)
    return traffic


def test_random_traffic_leaves_nothing_behind(how_many: HowMany) -> None:
    """The second round, as long as it may be, adds nothing to what the first one left."""
    s = float(how_many(short=600, long=6 * 3600))
    for message_type in wire.TAGS.values():
        schema_of(message_type)  # compiled when one first travels, which may be hours from now
    settings = Settings(stop_timeout_s=1.0)
    with World(5, NODES, settings=settings, into_cut="lost", trace_lines=10) as world:
        world.until_all_up()
        for node in NODES.split():
            for name in WORKERS:
                # In hours it happens that one fails more often than a minute allows by default.
                often = Restart(retries=1_000)
                world.spawn(Worker, name=name, node=node, supervision=often)
        settled(world, run_traffic(world, s=300.0))
        before, blocks_before = settled(world, run_traffic(world, s=300.0))
        traffic = run_traffic(world, s=s)
        after, blocks_after = settled(world, traffic)

        assert traffic.outcomes["done"] > 5 * s
        for error in ("AskTimeoutError", "ActorFailedError", "DeadActorError"):
            assert traffic.outcomes[error] > s / 100, traffic.outcomes
        assert [each.system.runtime.actor_count for each in world] == [len(WORKERS)] * 3
        more = after - before
        assert {name: n for name, n in more.items() if n > _bound(name)} == {}
        assert blocks_after - blocks_before < MORE_BLOCKS_MAX
        for each in world:
            assert len(each.system.counters()) < 150
