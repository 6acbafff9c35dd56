"""What a ref of an entity promises is the same wherever the entity is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node import Actor, ActorSystem, Ask, Entities, MessageError, message, on
from node.testkit import World

TYPE = "note"
FORCE_S = 1.0


@message("test.entity.sleep")
class Sleep:
    """Handled for longer than anybody waits."""


@message("test.entity.note")
class Note:
    """To be written down."""

    number: int


@message("test.entity.read")
class Read(Ask[list[int]]):
    """What this instance has written down."""


class Unnamed:
    """No `@message`: it cannot leave its process."""


class Notes(Actor):
    """Writes down what it gets."""

    def __init__(self, entity_id: str) -> None:
        self.numbers: list[int] = []

    @on(Sleep)
    async def sleep(self, _msg: Sleep) -> None:
        await asyncio.sleep(3600)

    @on(Note)
    def note(self, msg: Note) -> None:
        self.numbers.append(msg.number)

    @on(Read)
    def read(self, _msg: Read) -> list[int]:
        return self.numbers


class Two(World):
    """Two nodes that host the type."""

    def __init__(self, **more: Any) -> None:
        self.notes: dict[str, Entities[Any]] = {}
        self.more: dict[str, Any] = {"shard_count": 8, "hand_off_timeout_s": FORCE_S, **more}
        super().__init__(5, nodes="a b", setup=self.host, one_host=True)
        self.until_all_up()

    def host(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        self.notes[self.here().name] = system.cluster.sharding.start(
            type_name=TYPE, actor=Notes, **self.more
        )

    def one_on(self, name: str) -> str:
        """An entity that lives there, built."""
        for number in range(50):
            entity_id = f"n{number}"
            ref = self.notes[name][entity_id]
            self.read(name, entity_id)
            if ref.shard_id in self.system(name).cluster.sharding.state()[0]["here"]:
                return entity_id
        raise AssertionError(f"none of 50 entities lives on {name}")

    def tell(self, name: str, entity_id: str, *messages: Any) -> None:
        """From a node, in one step of it."""

        async def tell() -> None:
            for each in messages:
                self.notes[name][entity_id].tell(each)

        self.run(tell(), node=name)

    def vacate(self, name: str) -> None:
        """Host nothing there any more."""
        system = self.system(name)

        async def stop() -> None:
            system.cluster.sharding.stop(type_name=TYPE)

        self.run(stop(), node=name)

    def read(self, name: str, entity_id: str) -> list[int]:
        """Ask it from a node."""
        asked = self.notes[name][entity_id].ask(Read(), timeout_s=30)
        found: list[int] = self.run(asked, node=name, within_s=40)
        return found


@pytest.mark.parametrize("teller", ["a", "b"])
def test_what_an_entity_stopped_by_force_has_not_handled_goes_to_the_next_one(teller: str) -> None:
    """Told from its own node as well as from another one; in order."""
    with Two() as world:
        entity_id = world.one_on("a")
        world.read(teller, entity_id)
        world.tell(teller, entity_id, Sleep(), *map(Note, range(5)))
        world.run_for(s=FORCE_S / 4)
        world.vacate("a")
        world.run_for(s=FORCE_S * 10)
        assert world.read("b", entity_id) == [0, 1, 2, 3, 4]


def test_who_waited_for_the_answer_of_one_stopped_by_force_is_answered_by_the_next() -> None:
    with Two() as world:
        entity_id, system = world.one_on("a"), world.system("a")
        world.tell("a", entity_id, Sleep(), Note(7))

        async def ask_and_stop() -> object:
            asked = asyncio.ensure_future(world.notes["a"][entity_id].ask(Read(), timeout_s=30))
            await asyncio.sleep(0.1)
            system.cluster.sharding.stop(type_name=TYPE)
            return await asked

        assert world.run(ask_and_stop(), node="a", within_s=40) == [7]


@pytest.mark.parametrize("teller", ["a", "b"])
def test_what_cannot_travel_is_refused_wherever_the_entity_is(teller: str) -> None:
    with Two() as world:
        entity_id = world.one_on("a")
        with pytest.raises(MessageError, match="no registered message"):
            world.tell(teller, entity_id, Unnamed())


@pytest.mark.parametrize("teller", ["a", "b"])
def test_who_is_told_something_is_not_idle(teller: str) -> None:
    """Messages from its own node and from another one keep it; their end does not."""
    with Two(idle_s=4.0) as world:
        entity_id = world.one_on("a")
        for number in range(10):
            world.tell(teller, entity_id, Note(number))
            world.run_for(s=1)
        assert world.read("a", entity_id) == list(range(10))
        world.run_for(s=10)
        assert world.read(teller, entity_id) == []


def test_messages_from_another_node_follow_it_there_and_back() -> None:
    """Each of them is handled by whoever is the entity then."""
    with Two() as world:
        entity_id = world.one_on("a")
        world.tell("b", entity_id, *map(Note, range(3)))
        assert world.read("b", entity_id) == [0, 1, 2]
        world.vacate("a")
        world.run_for(s=5)
        for number in range(3):
            world.tell("ab"[number % 2], entity_id, Note(number))
            world.run_for(s=1)
        assert world.read("a", entity_id) == world.read("b", entity_id) == [0, 1, 2]


def test_with_a_limit_the_least_recently_told_one_goes() -> None:
    """Told from another node, without an ask in between."""
    with Two(entities_max=2, shard_count=1) as world:
        world.read("a", "n0")
        is_a = world.system("a").cluster.sharding.state()[0]["here"]
        other = "b" if is_a else "a"
        for entity_id in ("n1", "n2"):
            world.tell(other, entity_id, Note(1))
        world.run_for(s=1)
        world.tell(other, "n1", Note(2))
        world.run_for(s=1)
        world.tell(other, "n3", Note(3))
        world.run_for(s=1)
        assert world.read(other, "n1") == [1, 2]
        assert world.read(other, "n2") == []
