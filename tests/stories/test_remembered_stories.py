"""Remembered entities in virtual time: they live wherever their shard goes, without a message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import node.remembered
from node import Actor, ActorSystem, Ask, Entities, message, on
from node.remembered import MemoryEntityStore
from node.supervision import StopReason
from node.testkit import World
from sharding.settings import shard_of

SHARDS = 12
TYPE = "meter"


@message("story.meter.read")
class Read(Ask[int]):
    """Answered with how often this instance was read."""


@message("story.meter.retire")
class Retire(Ask[bool]):
    """It is not needed any more."""


@message("story.meter.break")
class Break(Ask[bool]):
    """It ends by itself, though it is needed."""


class Meter(Actor):
    """Counts; tells the world that it was built."""

    def __init__(self, meter_id: str, born: list[str]) -> None:
        self.count = 0
        born.append(meter_id)

    @on(Read)
    def read(self, _msg: Read) -> int:
        self.count += 1
        return self.count

    @on(Retire)
    def retire(self, _msg: Retire) -> bool:
        self.context.passivate()
        return True

    @on(Break)
    def stop_by_itself(self, _msg: Break) -> bool:
        self.context.stop(self.context.self)
        return True


class Meters(World):
    """Every node hosts the type, with one store for all."""

    actor: type[Actor] = Meter

    def __init__(
        self,
        nodes: str = "a b c",
        store: MemoryEntityStore | None = None,
        *,
        start: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.settings_of_type = start or {}
        self.store = store or MemoryEntityStore()
        self.born: list[str] = []
        self.meters: dict[str, Entities[Any]] = {}
        super().__init__(7, nodes=nodes, setup=self.host, one_host=True, **more)

    def host(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        self.meters[self.here().name] = system.cluster.sharding.start(
            type_name=TYPE,
            actor=self.actor,
            args=(self.born,),
            shard_count=SHARDS,
            remember=self.store,
            **self.settings_of_type,
        )

    def ask(self, node: str, meter_id: str, msg: Ask[Any]) -> Any:
        """Ask a meter from a node."""
        return self.run(self.meters[node][meter_id].ask(msg, timeout_s=30), node=node, within_s=40)

    def ready(self, count: int) -> list[str]:
        """All up, shards spread evenly, and so many meters read once."""
        self.until_all_up()
        self.run_until(self.is_even, within_s=30)
        names = [f"m-{number}" for number in range(count)]
        for name in names:
            assert self.ask("a", name, Read()) == 1
        return names

    def is_even(self) -> bool:
        """No move is left to be made."""
        counts = [
            len(row["here"])
            for node in self.running
            for row in node.system.cluster.sharding.state()
        ]
        return sum(counts) == SHARDS and max(counts) - min(counts) <= 1

    def living(self) -> int:
        """Entities on all running nodes."""
        return sum(
            row["entities_here"]
            for node in self.running
            for row in node.system.cluster.sharding.state()
        )

    def stored(self) -> set[str]:
        """What the store remembers."""
        return {
            entity_id
            for shard in range(SHARDS)
            for entity_id in self.run(self.store.load(TYPE, shard), node=self.running[0].name)
        }


def test_they_are_built_again_after_a_crash_without_a_message() -> None:
    """I-115: what is remembered outlives its node."""
    with Meters() as world:
        names = world.ready(24)
        assert world.stored() == set(names)
        row = world["b"].system.cluster.sharding.state()[0]
        there = row["entities_here"]
        world.born.clear()
        world.crash("b")
        world.run_until(lambda: world.living() == len(names), within_s=10)
        assert len(world.born) == there
        assert world.stored() == set(names)


def test_they_follow_their_shards_when_a_member_leaves_and_one_joins() -> None:
    with Meters(nodes="a b c d", absent="d") as world:
        names = world.ready(24)
        world["a"].call(lambda: world["a"].loop.create_task(world["a"].system.leave()))
        world.run_until(lambda: not world["a"].running, within_s=10)
        world.run_until(lambda: world.living() == len(names), within_s=10)
        world.start("d")
        world.until_all_up()
        world.run_until(lambda: world.is_even() and world.living() == len(names), within_s=20)
        assert world.living() == len(names)
        assert world["d"].system.cluster.sharding.state()[0]["entities_here"] > 0


def test_only_passivation_ends_one() -> None:
    """I-122, I-123: it is out of the store then; one that ends otherwise is built again."""
    with Meters() as world:
        names = world.ready(4)
        assert world.ask("b", "m-1", Retire())
        world.run_until(lambda: world.living() == 3, within_s=5)
        assert world.stored() == {*names} - {"m-1"}
        world.born.clear()
        assert world.ask("b", "m-2", Break())
        world.run_until(lambda: world.born == ["m-2"], within_s=5)
        assert world.stored() == {*names} - {"m-1"}
        assert world.ask("c", "m-1", Read()) == 1
        assert world.stored() == {*names}


@message("story.meter.busy")
class Busy:
    """It takes half a second."""


class SlowMeter(Meter):
    """May be busy, and takes a second to end."""

    @on(Busy)
    async def busy(self, _msg: Busy) -> None:
        await asyncio.sleep(0.5)

    async def post_stop(self, reason: StopReason) -> None:
        await asyncio.sleep(1.0)


class SlowMeters(Meters):
    """Of those."""

    actor = SlowMeter

    def one_at(self, node: str, names: list[str]) -> str:
        """A meter that lives on this node."""
        here = self[node].system.cluster.sharding.state()[0]["here"]
        return next(name for name in names if shard_of(name, SHARDS) in here)

    def move_all_from(self, node: str) -> None:
        """The type is stopped there."""
        self[node].call(self[node].system.cluster.sharding.stop, type_name=TYPE)


def test_one_that_passivates_while_its_shard_moves_is_out_of_the_store() -> None:
    """I-115, I-122: it is told to stop, handles what it has, and passivates in the middle of it."""
    with SlowMeters() as world:
        names = world.ready(12)
        name = world.one_at("b", names)
        world["b"].call(world.meters["b"][name].tell, Busy())
        ask = world.meters["b"][name].ask(Retire(), timeout_s=30)
        asked = world["b"].call(lambda: world["b"].loop.create_task(ask))
        world.move_all_from("b")
        world.run_until(asked.done, within_s=5)
        assert asked.result() is True
        world.run_for(s=10)
        assert world.stored() == {*names} - {name}
        assert world.living() == 11


def test_one_that_has_passivated_before_its_shard_moves_is_out_of_the_store() -> None:
    """I-115, I-122: its last hook is not done yet. What came for it meanwhile makes a new one."""
    with SlowMeters() as world:
        names = world.ready(12)
        name = world.one_at("b", names)
        assert world.ask("b", name, Retire())
        world.run_for(s=0.2)
        world.move_all_from("b")
        world.run_for(s=10)
        assert (world.stored(), world.living()) == ({*names} - {name}, 11)


def test_one_that_passivates_while_its_shard_moves_lives_on_for_what_came_meanwhile() -> None:
    """I-122."""
    with SlowMeters() as world:
        names = world.ready(12)
        name = world.one_at("b", names)
        assert world.ask("b", name, Retire())
        world.run_for(s=0.2)
        ask = world.meters["b"][name].ask(Read(), timeout_s=30)
        asked = world["b"].call(lambda: world["b"].loop.create_task(ask))
        world.run_for(s=0.1)
        world.move_all_from("b")
        world.run_until(asked.done, within_s=10)
        assert asked.result() == 1
        world.run_for(s=5)
        assert (world.stored(), world.living()) == ({*names}, 12)


def test_the_shard_is_not_given_up_before_the_store_has_heard_who_passivated() -> None:
    """I-115: else the next home would build it, and hear of it too late."""
    with SlowMeters() as world:
        names = world.ready(12)
        name = world.one_at("b", names)
        assert world.ask("b", name, Retire())
        world.run_for(s=0.2)
        world.store.is_down = True
        world.move_all_from("b")
        world.run_for(s=5)
        shard = shard_of(name, SHARDS)
        assert world["b"].system.cluster.sharding.state()[0]["here"] == [shard]
        world.store.is_down = False
        world.run_for(s=15)
        assert (world.stored(), world.living()) == ({*names} - {name}, 11)


def test_what_another_node_has_already_is_taken_out_of_the_store_by_that_one_alone() -> None:
    """I-115: whoever loses a shard that two have says nothing about it any more."""
    with SlowMeters() as world:
        names = world.ready(12)
        name = world.one_at("b", names)
        regions = world["b"].system._regions
        assert regions is not None
        assert world.ask("b", name, Retire())
        world.run_for(s=0.2)
        world["b"].call(regions.by_type[TYPE].close_shards, [shard_of(name, SHARDS)], 0.0)
        world.run_for(s=3)
        assert world.stored() == {*names}


def test_it_is_not_idle_however_long_nobody_asks() -> None:
    with Meters() as world:
        world.ready(4)
        world.run_for(s=300)
        assert world.living() == 4
        assert world.ask("c", "m-0", Read()) == 2


def test_a_store_that_is_away_holds_up_new_ones_only() -> None:
    """Nothing is lost: the message waits until the store has heard of its entity."""
    with Meters() as world:
        world.ready(4)
        world.store.is_down = True
        asked = world["b"].call(
            lambda: world["b"].loop.create_task(world.meters["b"]["m-9"].ask(Read(), timeout_s=30))
        )
        assert world.ask("a", "m-0", Read()) == 2
        world.run_for(s=5)
        assert not asked.done()
        assert "m-9" not in world.born
        world.store.is_down = False
        world.run_until(asked.done, within_s=6)
        assert asked.result() == 1
        assert "m-9" in world.stored()


def test_what_waits_for_the_store_is_bounded_and_what_is_refused_leaves_no_trace() -> None:
    """I-118: who gets no message for want of room is neither remembered nor there."""
    with Meters("a", start={"buffer_size": 10}) as world:
        world.ready(1)
        world.store.is_down = True
        for number in range(200):
            world["a"].call(world.meters["a"][f"x-{number}"].tell, Read())
        world.run_for(s=1)
        assert world.living() == 11
        assert len(world.dead_letters) == 190
        world.store.is_down = False
        world.run_for(s=30)
        assert world.stored() == {"m-0", *(f"x-{number}" for number in range(10))}
        assert world.ask("a", "x-100", Read()) == 1


def test_a_shard_opens_once_its_store_answers() -> None:
    """A store that is away while a shard moves: what is for it waits."""
    with Meters() as world:
        names = world.ready(12)
        world.store.is_down = True
        address = world["b"].address
        world.crash("b")
        world.run_until(
            lambda: address not in world["a"].system.cluster.sharding.state()[0]["counts"],
            within_s=5,
        )
        asked = [
            world["a"].call(
                lambda name=name: world["a"].loop.create_task(
                    world.meters["a"][name].ask(Read(), timeout_s=60)
                )
            )
            for name in names
        ]
        world.run_for(s=8)
        assert any(task.done() for task in asked)
        assert not all(task.done() for task in asked)
        world.store.is_down = False
        world.run_until(lambda: all(task.done() for task in asked), within_s=10)
        assert sorted({task.result() for task in asked}) == [1, 2]
        world.run_until(lambda: world.living() == len(names), within_s=10)


def test_many_are_built_a_hundred_at_a_time_and_one_with_a_message_at_once() -> None:
    with Meters(nodes="a") as world:
        world.until_all_up()
        ids = [f"m-{number}" for number in range(6000)]
        region = world.meters["a"]
        by_shard: dict[int, list[str]] = {}
        for entity_id in ids:
            by_shard.setdefault(region[entity_id].shard_id, []).append(entity_id)
        world["a"].call(lambda: world["a"].loop.create_task(world["a"].system.leave()))
        world.run_until(lambda: not world["a"].running, within_s=10)
        for shard, some in by_shard.items():
            world.store._shards[TYPE, shard] = set(some)
        world.born.clear()
        world.start("a")
        world.run_until(lambda: bool(world.born), within_s=20)
        last = by_shard[0][-1]
        assert world.ask("a", max(by_shard[0]), Read()) == 1
        assert last in ids
        assert world.living() < len(ids)
        world.run_until(lambda: world.living() == len(ids), within_s=10)
        assert len(world.born) == len(ids)


def test_a_node_that_ends_builds_nobody_any_more() -> None:
    """Neither the rest of a shard that is being restored, nor whoever a message waits for."""
    with SlowMeters(nodes="a") as world:
        world.ready(1)
        world.leave("a")
        ids = [f"n-{number}" for number in range(6000)]
        for shard in range(SHARDS):
            world.store._shards[TYPE, shard] = {x for x in ids if shard_of(x, SHARDS) == shard}
        world.born.clear()
        world.start("a")
        world.run_until(lambda: bool(world.born), within_s=20)
        system = world["a"].system
        assert world.ask("a", "n-1", Retire())
        world.run_for(s=0.01)
        world["a"].call(world.meters["a"]["n-1"].tell, Read())
        regions = system._regions
        assert regions is not None
        world["a"].call(regions.close)
        assert len(world.dead_letters) == 1
        count = len(world.born)
        assert count < len(ids)
        world.run_for(s=10)
        assert len(world.born) == count
        assert len(world.dead_letters) == 1


class OddStore(MemoryEntityStore):
    """Somebody's own store, which does not keep to the contract's errors."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    async def load(self, type_name: str, shard: int) -> frozenset[str]:
        """Fails as long as there are errors."""
        if self.errors:
            raise self.errors.pop()
        return await super().load(type_name, shard)

    async def update(self, type_name: str, shard: int, **how: Any) -> None:
        """Fails as long as there are errors."""
        if self.errors:
            raise self.errors.pop()
        await super().update(type_name, shard, **how)


ODD_ERRORS = [ConnectionResetError("reset"), KeyError("x"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_store_raises_while_writing_it_is_asked_again(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds up what is written, says so, and ends neither the writer nor the closing."""
    with Meters("a b", store=OddStore()) as world:
        world.ready(4)
        assert isinstance(world.store, OddStore)
        world.store.errors = [error] * 3
        asked = world["b"].call(
            lambda: world["b"].loop.create_task(world.meters["b"]["m-9"].ask(Read(), timeout_s=50))
        )
        world.run_for(s=0.6)
        said = [node.system.ready()[1] for node in world.running]
        assert any(f"does not answer: {type(error).__name__}" in words for words in said)
        world.run_until(asked.done, within_s=10)
        assert asked.result() == 1
        assert [node.system.ready() for node in world.running] == [(True, "up")] * 2
        traced = [r for r in caplog.records if r.exc_info and "no error of a store" in r.message]
        assert len(traced) == 1
        world.leave("b")
        world.run_until(lambda: world.living() == 5, within_s=10)


@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_store_raises_while_reading_it_is_asked_again(error: BaseException) -> None:
    with Meters("a b", store=OddStore()) as world:
        world.ready(24)
        assert isinstance(world.store, OddStore)
        world.store.errors = [error] * 3
        world.crash("b")
        world.run_until(lambda: world.living() == 24, within_s=20)


class Losing(MemoryEntityStore):
    """One that loses all it has."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    def lose(self) -> None:
        """Whatever was stored is gone."""
        self._shards.clear()
        self.lost += 1

    async def losses(self) -> int:
        """See `EntityStore`."""
        return self.lost


def test_what_the_store_has_lost_is_written_again_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I-115: nobody has to write for that, and who has retired meanwhile stays so."""
    with Meters("a b", store=Losing()) as world:
        assert isinstance(world.store, Losing)
        names = world.ready(24)
        world.run_for(s=20)
        assert not [r for r in caplog.records if r.levelname == "ERROR"]
        world.store.lose()
        assert world.ask("a", "m-1", Retire())
        world.run_for(s=6)
        assert world.stored() == {*names} - {"m-1"}
        errors = [r for r in caplog.records if r.levelname == "ERROR"]
        assert len(errors) == 2
        assert all("has lost what it had" in r.message for r in errors)
        assert [node.system.ready() for node in world.running] == [(True, "up")] * 2
        world.crash("b")
        world.run_until(lambda: world.living() == 23, within_s=10)


def test_what_the_store_has_lost_is_written_before_its_shard_moves() -> None:
    """Else its next home would find nobody."""
    with Meters("a b", store=Losing()) as world:
        assert isinstance(world.store, Losing)
        names = world.ready(24)
        world.store.lose()
        world["a"].call(world["a"].system.cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=4)
        here = [row["entities_here"] for row in world["b"].system.cluster.sharding.state()]
        assert here == [24]
        world.run_for(s=2)
        assert world.stored() == {*names}


def test_what_cannot_be_written_again_yet_is_shown() -> None:
    with Meters("a", store=Losing()) as world:
        assert isinstance(world.store, Losing)
        names = world.ready(4)
        world.store.is_down = True
        world.store.lose()
        world.run_for(s=6)
        world.store.lose()
        world.run_for(s=6)
        (row,) = world["a"].system.cluster.sharding.state()
        assert "has lost what it had" in row["explain"]
        assert "does not answer" in row["explain"]
        assert "the store of entities" in world["a"].system.ready()[1]
        world.store.is_down = False
        world.run_for(s=6)
        assert world.stored() == {*names}
        assert world["a"].system.ready() == (True, "up")


class Lagging(MemoryEntityStore):
    """Takes its time to write, so that much waits meanwhile."""

    async def update(self, type_name: str, shard: int, **how: Any) -> None:
        """See `EntityStore`."""
        await asyncio.sleep(0.1)
        await super().update(type_name, shard, **how)


def test_of_a_full_shard_only_what_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who leaves makes room, also for one that was refused; that is shown as long as one is."""
    with Meters("a", store=Lagging()) as world:
        world.ready(0)
        ids = [f"z-{n}" for n in range(200) if shard_of(f"z-{n}", SHARDS) == 3]
        old, new, odd = ids[:4], ids[4:10], ids[10]
        monkeypatch.setattr(node.remembered, "IDS_MAX", 5)
        for each in (*old, odd):
            assert world.ask("a", each, Read()) == 1
        asks = [(odd, Retire()), (old[0], Retire()), (old[1], Retire())]
        for each, msg in [*asks, *((one, Read()) for one in new)]:
            ask = world.meters["a"][each].ask(msg, 10.0)
            world["a"].call(lambda ask=ask: world["a"].loop.create_task(ask))
        world.run_for(s=5)
        assert world.stored() == {*old[2:], *new[:3]}
        assert world.living() == 8
        assert "is full" in world["a"].system.ready()[1]
        for count, each in enumerate(new[:3], 4):
            assert world.ask("a", each, Retire())
            world.run_for(s=2)
            assert world.stored() == {*old[2:], *new[count - 3 : count]}
        assert world["a"].system.ready() == (True, "up")


def test_one_that_did_not_fit_is_refused_no_more_once_its_shard_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Meters("a b") as world:
        world.ready(0)
        monkeypatch.setattr(node.remembered, "IDS_MAX", 1)
        for number in range(40):
            assert world.ask("a", f"z-{number}", Read()) == 1
        assert world.living() == 40
        world["a"].call(world["a"].system.cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=10)
        assert world["a"].system.ready() == (True, "up")
        assert len(world.stored()) == SHARDS < world.living() < 40


def test_trouble_that_is_over_is_said_no_more() -> None:
    """Of a shard that was to open and is not to any more, nothing is waited for."""
    with Meters() as world:
        world.ready(12)
        world.store.is_down = True
        world.crash("b")
        world.run_for(s=8)
        system = world["a"].system
        assert "does not answer" in system.ready()[1]
        world["a"].call(system.cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=10)
        assert system.ready() == (True, "up")


class Apart(Meters):
    """The last node has a store of its own."""

    def host(self, system: ActorSystem) -> None:
        name = self.here().name
        self.meters[name] = system.cluster.sharding.start(
            type_name=TYPE,
            actor=Meter,
            args=(self.born,),
            shard_count=SHARDS,
            remember=MemoryEntityStore() if name == "c" else self.store,
        )


def test_a_node_with_another_store_hosts_nothing_and_says_so() -> None:
    """I-104: else what the others remember would run nowhere."""
    with Apart() as world:
        world.until_all_up()
        names = [f"m-{number}" for number in range(24)]
        for name in names:
            assert world.ask("c", name, Read()) >= 1
        world.run_for(s=10)
        assert world.stored() == set(names)
        assert world.living() == len(names)
        (row,) = world["c"].system.cluster.sharding.state()
        assert row["here"] == []
        assert "hosts nothing" in row["explain"]
        assert "start all members alike" in row["explain"]


def test_the_only_host_leaves_at_once() -> None:
    """There is nobody to wait for; what is for its shards waits for a host."""
    with Meters(nodes="a b", absent="b") as world:
        world.until_all_up()
        world.run_until(world.is_even, within_s=10)
        assert world.ask("a", "m-1", Read()) == 1
        began_at = world.now
        world.leave("a")
        assert world.now - began_at < 1.0


def test_a_store_that_is_away_is_said_where_people_look() -> None:
    with Meters(nodes="a") as world:
        world.ready(2)
        world.store.is_down = True
        asked = world["a"].call(
            lambda: world["a"].loop.create_task(world.meters["a"]["m-9"].ask(Read(), timeout_s=30))
        )
        world.run_for(s=2)
        (row,) = world["a"].system.cluster.sharding.state()
        assert "the store of entities does not answer" in row["explain"]
        assert "the store of entities does not answer" in world["a"].system.ready()[1]
        world.store.is_down = False
        world.run_until(asked.done, within_s=6)
        assert world["a"].system.ready() == (True, "up")
