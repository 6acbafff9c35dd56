"""Sharded entities, in small worlds: routes, holding, order over moves, passivation, daemons.

Guards I-109, I-112, I-116, I-118 to I-124, I-127, F16, F17 and S13.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node import Actor, ActorRef, ActorSystem, Ask, Settings, message, on
from node.errors import AskTimeoutError, DeadActorError, MessageError, SettingsError
from node.events import Why
from node.regions import escaped, unescaped
from node.sharding import Entities
from node.supervision import Stop, StopReason
from node.testkit import World
from sharding.settings import shard_of

TYPE = "cart"
COUNT = 8


@message("regions.put", entity_id="cart_id")
class Put:
    """Written down."""

    cart_id: str
    number: int = 0


@message("regions.count")
class Count(Ask[int]):
    """Answered with how many messages this very instance has taken."""


@message("regions.who")
class Who(Ask[str]):
    """Answered with what its context says of it."""


@message("regions.where", entity_id="cart_id")
class Where(Ask[str]):
    """Answered with the name of its node."""

    cart_id: str


@message("regions.rest")
class Rest:
    """It passivates itself; with `s` it takes so long in its last hook."""

    s: float = 0.0


@message("regions.hang")
class Hang:
    """It never comes back from this one."""


@message("regions.child")
class Child(Ask[str]):
    """Answered by a child of the entity."""


@message("regions.give")
class Give:
    """Here is a ref of an entity: tell it."""

    to: ActorRef[Put]
    number: int


@message("regions.end")
class End:
    """It stops for good, or fails."""

    fails: bool = False


class Helper(Actor):
    """A child of an entity."""

    @on(Child)
    def child(self, msg: Child) -> str:
        return f"{self.context.entity_id}/{self.context.shard_id}"


class Cart(Actor):
    """Writes down, for the whole world, what it took."""

    def __init__(self, cart_id: str, carts: Carts) -> None:
        carts.built.append(cart_id)
        if cart_id.startswith("broken"):
            raise ValueError("it cannot be built")
        self.cart_id = cart_id
        self.carts = carts
        self.count = 0
        self.rests_s = 0.0

    def pre_start(self) -> None:
        self.node = self.carts.here().name
        self.carts.alive.append((self.cart_id, self.node))

    async def post_stop(self, reason: StopReason) -> None:
        await asyncio.sleep(self.rests_s)
        self.carts.alive.remove((self.cart_id, self.node))

    @on(Put)
    def put(self, msg: Put) -> None:
        self.count += 1
        self.carts.taken.append((msg.cart_id, msg.number))
        alive = [cart_id for cart_id, _ in self.carts.alive]
        self.carts.acting.append(alive.count(self.cart_id))

    @on(Count)
    def counted(self, msg: Count) -> int:
        self.count += 1
        return self.count

    @on(Who)
    def who(self, msg: Who) -> str:
        return f"{self.context.entity_id} of {self.context.shard_id}"

    @on(Where)
    def where(self, msg: Where) -> str:
        return self.node

    @on(Rest)
    def rest(self, msg: Rest) -> None:
        self.rests_s = msg.s
        self.context.passivate()

    @on(Hang)
    async def hang(self, msg: Hang) -> None:
        await asyncio.get_running_loop().create_future()

    @on(Child)
    async def child(self, msg: Child) -> str:
        return await self.context.spawn(Helper).ask(msg)

    @on(End)
    def end(self, msg: End) -> None:
        if msg.fails:
            raise ValueError("it was to fail")
        self.context.stop(self.context.self)


class Carts(World):
    """Nodes on each of which the type is started."""

    def __init__(self, nodes: str = "a b c", *, absent: str = "", **settings: Any) -> None:
        self.on: dict[str, Entities[Any]] = {}
        self.built: list[str] = []
        self.alive: list[tuple[str, str]] = []
        self.taken: list[tuple[str, int]] = []
        self.acting: list[int] = []
        self.start_settings: dict[str, Any] = {"shard_count": COUNT, **settings}
        super().__init__(5, nodes, setup=self.begin, absent=absent, seeds="a")

    def begin(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        self.on[self.here().name] = system.cluster.sharding.start(
            type_name=TYPE, actor=Cart, args=(self,), **self.start_settings
        )

    def tell(self, name: str, cart_id: str, message: object) -> None:
        """From this node."""
        self[name].call(self.on[name][cart_id].tell, message)

    def ask(self, name: str, cart_id: str, message: Ask[Any], **how: Any) -> Any:
        """From this node."""
        return self.run(self.on[name][cart_id].ask(message, **how), node=name)

    def home(self, cart_id: str, asked_at: str = "a") -> str:
        """Where an entity lives."""
        name: str = self.ask(asked_at, cart_id, Where(cart_id), timeout_s=30.0)
        return name

    def state(self, name: str) -> dict[str, Any]:
        """What `/shards` says there."""
        (state,) = self.system(name).cluster.sharding.state()
        return state

    def spread(self) -> Carts:
        """All up, each shard has a home, evenly."""
        self.until_all_up()
        ids = [an_id(shard) for shard in range(self.start_settings["shard_count"])]
        for cart_id in ids:
            self.home(cart_id)
        fewest = len(ids) // len(self.running)
        names = [node.name for node in self.running]
        self.run_until(lambda: all(len(self.state(name)["here"]) >= fewest for name in names))
        self.run_for(s=1.0)
        return self


def an_id(shard: int, count: int = COUNT) -> str:
    """An id that belongs there."""
    return next(f"c{n}" for n in range(10_000) if shard_of(f"c{n}", count) == shard)


def id_at(world: Carts, name: str) -> str:
    """An id whose shard lives on this node."""
    shard: int = world.state(name)["here"][0]
    return an_id(shard)


# ids


ODD = [
    "/",
    "%",
    "%2F",
    "%25",
    "a/b",
    "é",
    "🦊",
    "\x00",
    " ",
    ".",
    "..",
    "a" * 256,
    "#",
    "%%2F",
    "?",
]


@given(st.text(min_size=1, max_size=20))
@example("%2F")
@example("%252F")
@example("/%")
def test_ids_are_escaped_so_that_none_becomes_another(cart_id: str) -> None:
    """I-121."""
    assert unescaped(escaped(cart_id)) == cart_id
    assert "/" not in escaped(cart_id)


def test_an_entity_has_the_id_it_was_asked_for_by_whatever_that_is() -> None:
    """I-121: here and on another node."""
    with Carts("a b") as world:
        world.spread()
        for cart_id in ODD:
            for name in "ab":
                said = world.ask(name, cart_id, Who())
                assert said == f"{cart_id} of {shard_of(cart_id, COUNT)}"
        assert sorted(x for x in world.built if x in ODD) == sorted(ODD)
        assert [name for name, _ in world.alive].count("/") == 1


@pytest.mark.parametrize("cart_id", ["", "a" * 257, 7, None])
def test_what_can_be_no_id_is_refused(cart_id: Any) -> None:
    with Carts("a") as world:
        world.system("a")
        with pytest.raises(ValueError, match="no entity id"):
            world.on["a"][cart_id]


def test_a_message_names_its_entity() -> None:
    with Carts("a b") as world:
        world.spread()
        for name in "ab":
            world[name].call(world.on[name].tell, Put("c1", 7))
        assert world.run(world.on["a"].ask(Where("c1"))) in ("a", "b")
        world.run_for(s=0.1)
        assert world.taken == [("c1", 7)] * 2
        with pytest.raises(MessageError, match="entity_id="):
            world["a"].call(world.on["a"].tell, Rest())


def test_an_actor_that_is_no_entity_has_no_entity_id() -> None:
    with World(seed=1) as world:
        ref = world.spawn(Helper)
        with pytest.raises(Exception, match="no sharded entity"):
            world.run(ref.ask(Child()))


def test_children_of_entities_know_whose_they_are() -> None:
    with Carts("a b") as world:
        world.spread()
        for cart_id in ("a/b", "c1"):
            assert world.ask("a", cart_id, Child()) == f"{cart_id}/{shard_of(cart_id, COUNT)}"


# one at a time


def test_each_entity_runs_once_wherever_it_is_asked_from() -> None:
    with Carts() as world:
        world.spread()
        for cart_id in map(an_id, range(COUNT)):
            homes = {world.home(cart_id, name) for name in "abc"}
            assert len(homes) == 1
        assert len(world.alive) == COUNT
        assert sorted(len(world.state(name)["here"]) for name in "abc") == [2, 3, 3]


def test_refs_of_entities_travel_and_reach_them() -> None:
    """I-123: also after the entity has moved."""
    with Carts() as world:
        world.spread()
        cart_id = id_at(world, "b")
        got: list[Any] = []

        class Keeper(Actor):
            @on(Give)
            def give(self, msg: Give) -> None:
                got.append(msg.to)
                msg.to.tell(Put("x", msg.number))

        world.spawn(Keeper, name="keeper", node="c")
        far = world.system("a").runtime.ref_at(world.system("c").runtime.here, "/user/keeper")
        world["a"].call(far.tell, Give(world.on["a"][cart_id], 1))
        world.run_for(s=0.5)
        assert world.taken == [("x", 1)]
        world.leave("b")
        world.run_for(s=1.0)
        world["c"].call(got[0].tell, Put("x", 2))
        world.run_for(s=1.0)
        assert world.taken == [("x", 1), ("x", 2)]


def test_a_ref_of_an_entity_outlives_the_node_that_sent_it() -> None:
    """I-123: it is of the entity, wherever that is, and not of a way over its sender."""
    with Carts() as world:
        world.spread()
        cart_id = id_at(world, "b")
        got: list[Any] = []

        class Keeper(Actor):
            @on(Give)
            def give(self, msg: Give) -> None:
                got.append(msg.to)

        world.spawn(Keeper, name="keeper", node="c")
        far = world.system("a").runtime.ref_at(world.system("c").runtime.here, "/user/keeper")
        world["a"].call(far.tell, Give(world.on["a"][cart_id], 1))
        world.run_for(s=0.5)
        world.leave("a")
        world.run_until(lambda: not world["a"].running, within_s=10)
        world["c"].call(got[0].tell, Put("x", 2))
        world.run_for(s=1.0)
        assert world.taken == [("x", 2)]
        assert got[0] == world.on["c"][cart_id]


def test_of_two_that_have_a_shard_the_loser_ends_in_the_middle_of_its_work() -> None:
    """F17, S4: at level none both sides of a cut have it; after the heal one stops at once."""
    with Carts("a b c", hand_off_timeout_s=60.0) as world:
        world.spread()
        cart_id = id_at(world, "c")
        world.cut("c")
        world.run_for(s=14.0)
        assert world.ask("a", cart_id, Count(), timeout_s=20.0) == 1
        for name in "ac":
            world.tell(name, cart_id, Hang())
        world.run_for(s=1.0)
        assert [x for x, _ in world.alive].count(cart_id) == 2
        world.heal_all()
        world.run_until(lambda: [x for x, _ in world.alive].count(cart_id) == 1, within_s=5)


# holding


def test_what_is_held_is_bounded_with_one_warning_and_dead_letters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I-118, S12: and what fits arrives in order, once there is a home."""
    with Carts("a b", absent="a", buffer_size=3) as world:
        world.system("b")
        with caplog.at_level(logging.WARNING, logger="node.regions"):
            for number in range(6):
                world.tell("b", "c1", Put("c1", number))
            world.run_for(s=0.0)
        assert sum("buffer of a region" in record.message for record in caplog.records) == 1
        assert [letter.why for letter in world.dead_letters] == [Why.BUFFER_FULL] * 3
        with pytest.raises(DeadActorError, match="buffer is full"):
            world.run(world.on["b"]["c1"].ask(Count()), node="b", within_s=0.01)
        world.start("a")
        world.until_all_up()
        world.run_for(s=5.0)
        assert world.taken == [("c1", 0), ("c1", 1), ("c1", 2)]


def test_an_ask_that_is_held_for_too_long_ends_at_the_asker() -> None:
    with Carts("a b", absent="a") as world:
        world.system("b")
        with pytest.raises(AskTimeoutError):
            world.ask("b", "c1", Count(), timeout_s=0.5)


def numbered(world: Carts, cart_id: str, *names: str, every_s: float = 0.01) -> Callable[[], int]:
    """These nodes send 1, 2, … to an entity for as long as it goes; returns the count so far."""
    count = 0
    runs = True

    def send() -> None:
        nonlocal count
        if runs:
            count += 1
            for name in names:
                if world[name].running:
                    world.tell(name, cart_id, Put(name, count))

    def stop() -> int:
        nonlocal runs
        runs = False
        return count

    world.every(every_s, send)
    return stop


def in_order(world: Carts, name: str) -> list[int]:
    """What came from there."""
    return [number for sender, number in world.taken if sender == name]


def test_order_is_kept_over_a_move_by_a_leave() -> None:
    """F26, I-114: none is lost, none comes twice, per sender in order."""
    with Carts() as world:
        world.spread()
        cart_id = id_at(world, "b")
        stop = numbered(world, cart_id, "a", "c")
        world.run_for(s=0.5)
        world.leave("b")
        world.run_for(s=2.0)
        count = stop()
        world.run_for(s=2.0)
        assert in_order(world, "a") == list(range(1, count + 1))
        assert in_order(world, "c") == list(range(1, count + 1))
        assert set(world.acting) == {1}
        assert world.home(cart_id) in ("a", "c")
        assert world.dead_letters == []


def test_order_is_kept_while_shards_move_to_a_node_that_joins() -> None:
    """F26: by rebalance."""
    with Carts(absent="c") as world:
        world.until_all_up()
        for cart_id in map(an_id, range(COUNT)):
            world.home(cart_id)
        world.run_for(s=3.0)
        stops = [numbered(world, an_id(s), "a", "b", every_s=0.02) for s in range(COUNT)]
        world.taken.clear()
        world.start("c")
        world.until_all_up()
        world.run_until(lambda: len(world.state("c")["here"]) == 2, within_s=30)
        world.run_for(s=1.0)
        count = stops[0]()
        for stop in stops:
            stop()
        world.run_for(s=2.0)
        for name in "ab":
            numbers = in_order(world, name)
            assert sorted(numbers) == sorted([*range(1, count + 1)] * COUNT)
        assert set(world.acting) == {1}
        assert world.dead_letters == []


def test_asks_held_over_a_move_are_answered_once() -> None:
    with Carts() as world:
        world.spread()
        cart_id = id_at(world, "b")
        world.tell("b", cart_id, Rest(1.0))
        system = world.system("b")
        leaving = world["b"].call(lambda: world["b"].loop.create_task(system.leave(), name="leave"))
        world.run_for(s=0.1)
        asks = [
            world[name].call(
                lambda n=name: world[n].loop.create_task(world.on[n][cart_id].ask(Count(), 20.0))
            )
            for name in "acac"
        ]
        world.run_for(s=10.0)
        assert sorted(ask.result() for ask in asks) == [1, 2, 3, 4]
        assert leaving.done()


# the end of an entity


def test_what_comes_while_an_entity_stops_is_handled_by_the_next_one() -> None:
    """I-122: in order, also what is told from elsewhere."""
    with Carts("a b") as world:
        world.spread()
        cart_id = id_at(world, "b")
        assert world.ask("b", cart_id, Count()) > 0
        world.tell("b", cart_id, Rest(1.0))
        world.run_for(s=0.1)
        for number in range(3):
            for name in "ab":
                world.tell(name, cart_id, Put(name, number))
        world.run_for(s=0.5)
        assert world.taken == []
        world.run_for(s=1.0)
        assert in_order(world, "a") == in_order(world, "b") == [0, 1, 2]
        assert world.built.count(cart_id) == 2
        assert world.ask("a", cart_id, Count()) == 7
        assert world.dead_letters == []


def test_an_idle_entity_is_passivated_and_never_too_early() -> None:
    """I-122."""
    with Carts("a", idle_s=8.0) as world:
        world.spread()
        assert world.ask("a", "c1", Count()) > 0
        world.run_for(s=7.9)
        assert ("c1", "a") in world.alive
        for _ in range(4):
            world.run_for(s=7.0)
            world.tell("a", "c1", Put("c1"))
        assert ("c1", "a") in world.alive
        world.run_for(s=9.5)
        assert world.alive == []
        assert world.state("a")["entities_here"] == 0
        assert world.ask("a", "c1", Count()) == 1


def test_of_too_many_the_least_recently_used_go() -> None:
    """I-122: as many stay as may, whatever comes while others stop."""
    with Carts("a", shard_count=1, entities_max=3) as world:
        world.until_all_up()
        for number in range(10):
            world.ask("a", f"e{number}", Count())
            world.ask("a", "e0", Count())
        world.run_for(s=1.0)
        assert sorted(name for name, _ in world.alive) == ["e0", "e8", "e9"]
        world.tell("a", "e8", Rest(0.5))
        for number in range(20):
            world.tell("a", f"e{number % 7}", Put("x", number))
        world.run_for(s=2.0)
        assert len(world.alive) == 3
        assert len(world.taken) == 20


@message("regions.busy")
class Busy(Ask[int]):
    """It takes so long: in its handler, or beside it, or put aside until there is another."""

    how: str
    s: float = 0.0


@message("regions.done")
class Done:
    """What it did beside its handler is done."""


class Worker(Actor):
    """Is at work in one way or another."""

    def __init__(self, _id: str, log: list[str]) -> None:
        self.id = _id
        self.log = log
        log.append(f"{_id} begins")

    def post_stop(self, reason: StopReason) -> None:
        self.log.append(f"{self.id} ends")

    @on(Busy)
    async def busy(self, msg: Busy) -> int:
        if msg.how == "handles":
            await asyncio.sleep(msg.s)
            self.log.append(f"{self.id} is done")
        elif msg.how == "pipes":
            self.context.pipe_to_self(asyncio.sleep(msg.s, Done()))
        elif msg.how == "stashes":
            self.context.stash()
        return 1

    @on(Done)
    def done(self, _msg: Done) -> None:
        self.context.unstash_all()
        self.log.append(f"{self.id} is done")


def workers(world: World, log: list[str], **settings: Any) -> Entities[Any]:
    """They, on a."""
    world.until_all_up()
    start = world.system("a").cluster.sharding.start
    refs: Entities[Any] = world["a"].call(
        start, type_name="worker", actor=Worker, args=(log,), shard_count=1, **settings
    )
    world.run_for(s=3.0)
    return refs


@pytest.mark.parametrize("how", ["handles", "pipes", "stashes"])
def test_of_too_many_those_that_have_something_to_do_stay(how: str) -> None:
    """I-122: and go once they have nothing to do; others are not built in vain meanwhile."""
    log: list[str] = []
    with World(5, "a") as world:
        refs = workers(world, log, entities_max=2)
        for number in range(4):
            world["a"].call(refs[f"w{number}"].tell, Busy(how, 5.0))
        world.run_for(s=4.0)
        assert sorted(log) == [f"w{number} begins" for number in range(4)]
        world["a"].call(refs["idle"].tell, Busy("not"))
        world.run_for(s=0.5)
        assert log[-2:] == ["idle begins", "idle ends"]
        if how == "stashes":
            for number in range(4):
                world["a"].call(refs[f"w{number}"].tell, Done())
        world.run_for(s=3.0)
        count = sum(each.endswith("begins") for each in log)
        assert count - sum(each.endswith("ends") for each in log) == (4 if how == "stashes" else 2)


@pytest.mark.parametrize("how", ["handles", "pipes"])
def test_one_that_works_is_not_idle_however_long_it_takes(how: str) -> None:
    """I-122: it is passivated once that is done."""
    log: list[str] = []
    with World(5, "a") as world:
        refs = workers(world, log, idle_s=4.0)
        world["a"].call(refs["w"].tell, Busy(how, 15.0))
        world.run_for(s=14.9)
        assert log == ["w begins"]
        world.run_for(s=5.0)
        assert log == ["w begins", "w is done", "w ends"]


def test_one_that_puts_aside_what_it_got_is_not_idle() -> None:
    """I-122: it would be built again for that."""
    log: list[str] = []
    with World(5, "a") as world:
        refs = workers(world, log, idle_s=4.0)
        world["a"].call(refs["w"].tell, Busy("stashes"))
        world.run_for(s=60.0)
        assert log == ["w begins"]


def test_a_limit_may_come_with_a_second_start() -> None:
    with Carts("a", shard_count=1) as world:
        world.until_all_up()
        for number in range(5):
            world.ask("a", f"e{number}", Count())
        world.start_settings["entities_max"] = 3
        world["a"].call(world.begin, world.system("a"))
        world.run_for(s=0.1)
        assert len(world.alive) == 3
        for number in range(5):
            world.tell("a", f"e{number}", Put("x", number))
        world.run_for(s=1.0)
        assert len(world.taken) == 5
        assert len(world.alive) == 3
        world.tell("a", "e9", Put("x", 9))
        world.run_for(s=1.0)
        assert len(world.alive) == 3


def test_one_that_stops_or_fails_is_built_anew_by_its_next_message() -> None:
    with Carts("a", supervision=Stop()) as world:
        world.spread()
        for fails in (False, True):
            world.tell("a", "c1", End(fails))
            world.tell("a", "c1", Put("c1", 1))
            world.run_for(s=1.0)
            assert world.ask("a", "c1", Count()) >= 1
        assert world.state("a")["entities_here"] == len(world.alive)


def test_an_entity_whose_constructor_raises_is_tried_again_and_bounds_hold() -> None:
    with Carts("a", supervision=Stop()) as world:
        world.spread()
        here = world.state("a")["entities_here"]
        for number in range(20):
            world.tell("a", f"broken{number}", Put("x"))
        world.run_for(s=120.0)
        assert world.ask("a", "c1", Count()) >= 1
        assert world.state("a")["entities_here"] <= here + 1
        assert world.state("a")["held"] == 0


def test_one_that_hangs_is_stopped_by_force_and_what_waits_is_handled_elsewhere() -> None:
    """I-120: after `hand_off_timeout_s`, and in order."""
    with Carts("a b", hand_off_timeout_s=2.0) as world:
        world.spread()
        cart_id = id_at(world, "b")
        world.tell("b", cart_id, Hang())
        world.run_for(s=0.1)
        for number in range(3):
            for name in "ab":
                world.tell(name, cart_id, Put(name, number))
        world.run_for(s=0.1)
        world["b"].call(world.system("b").cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=0.5)
        for name in "ab":
            world.tell(name, cart_id, Put(name, 3))
        world.run_for(s=1.0)
        assert world.taken == []
        world.run_until(lambda: world.state("a")["here"] == list(range(COUNT)), within_s=10)
        world.run_for(s=1.0)
        # What came from a comes from b once more: behind what a itself has held meanwhile.
        assert sorted(in_order(world, "a")) == in_order(world, "b") == [0, 1, 2, 3]
        assert world.home(cart_id) == "a"


class Refuses(Actor):
    """Ends without having handled what it got, in one way or another, unless it is willing."""

    def __init__(
        self, cart_id: str, built: list[str], taken: list[int], willing: list[int]
    ) -> None:
        self.how = cart_id
        built.append(cart_id)
        self.taken = taken
        self.willing = willing

    def pre_start(self) -> None:
        if self.how == "ends" and not self.willing:
            self.context.stop(self.context.self, drain=False)

    @on(Put)
    def put(self, msg: Put) -> None:
        if self.how == "stashes" and not self.willing:
            self.context.stash()
            self.context.passivate()
            return
        self.taken.append(msg.number)
        if self.how == "one each":
            self.context.stop(self.context.self, drain=False)


def refusing(world: World, built: list[str], taken: list[int], willing: list[int]) -> Entities[Any]:
    """The type, of one shard, on a."""
    world.until_all_up()
    refs: Entities[Any] = world["a"].call(
        world.system("a").cluster.sharding.start,
        type_name="refuses",
        actor=Refuses,
        args=(built, taken, willing),
        shard_count=1,
    )
    world.run_for(s=3.0)
    return refs


@pytest.mark.parametrize("how", ["ends", "stashes"])
def test_one_that_ends_without_having_handled_anything_is_built_again_ever_more_rarely(
    how: str,
) -> None:
    """I-118, I-122: what waits for it is bounded, and handled in order by the first that does."""
    built, taken, willing = list[str](), list[int](), list[int]()
    with World(5, "a") as world:
        refs = refusing(world, built, taken, willing)
        for number in range(3):
            world["a"].call(refs[how].tell, Put(how, number))
        world.run_for(s=0.5)
        assert len(built) <= 2
        world["a"].call(refs[how].tell, Put(how, 3))
        world.run_for(s=30.0)
        assert 5 <= len(built) <= 7
        willing.append(1)
        world.run_for(s=31.0)
        assert taken == [0, 1, 2, 3]


def test_an_ask_that_waits_for_one_that_handles_nothing_says_how_it_ended() -> None:
    """It is not about a store, and not about a home."""
    with World(5, "a") as world:
        refs = refusing(world, [], [], [])
        with pytest.raises(AskTimeoutError, match="its last end: stopped"):
            world.run(refs["ends"].ask(Count(), 2.5), node="a")


def test_one_that_ends_after_each_message_is_built_again_at_once() -> None:
    """I-122: the backoff is for who gets nothing done."""
    built, taken = list[str](), list[int]()
    with World(5, "a") as world:
        refs = refusing(world, built, taken, [])
        for number in range(50):
            world["a"].call(refs["one each"].tell, Put("one each", number))
        world.run_for(s=0.5)
        assert taken == list(range(50))
        assert len(built) == 50


@message("regions.state")
class Kept(Ask[int]):
    """Answered with what was handed over."""


class Keeps(Actor):
    """Would hand its state over, as a singleton does."""

    def __init__(self, cart_id: str) -> None:
        self.cart_id = cart_id
        self.restored = b""

    def serialize_for_hand_over(self) -> bytes | None:
        return self.cart_id.encode()

    def restore_from_hand_over(self, state: bytes) -> None:
        self.restored = state

    @on(Who)
    def who(self, msg: Who) -> str:
        return self.restored.decode()

    @on(Rest)
    def rest(self, msg: Rest) -> None:
        self.context.passivate()


def test_the_state_of_one_entity_never_comes_to_another() -> None:
    """All entities of a node share what a singleton has for itself."""
    with World(5, "a") as world:
        world.until_all_up()
        carts = world["a"].call(
            world.system("a").cluster.sharding.start, type_name="keeps", actor=Keeps, shard_count=2
        )
        assert world.run(carts["one"].ask(Who()), node="a") == ""
        world["a"].call(carts["one"].tell, Rest())
        world.run_for(s=0.1)
        assert world.run(carts["two"].ask(Who()), node="a") == ""
        assert world.run(carts["one"].ask(Who()), node="a") == ""


# daemons


class Daemon(Actor):
    """Runs by itself."""

    def __init__(self, number: str, log: list[tuple[float, str]], fails: bool = False) -> None:
        self.number = number
        self.log = log
        self.fails = fails

    def pre_start(self) -> None:
        self.log.append((self.context.now(), f"{self.number}/{self.context.shard_id}"))
        if self.fails:
            self.context.stop(self.context.self)

    @on(Who)
    def who(self, msg: Who) -> str:
        return self.number

    @on(End)
    def end(self, msg: End) -> None:
        self.context.stop(self.context.self)


class Daemons(World):
    """Nodes on each of which the daemons are started."""

    def __init__(self, nodes: str, *, fails: bool = False) -> None:
        self.log: list[tuple[float, str]] = []
        self.fails = fails
        self.on: dict[str, Entities[Any]] = {}
        super().__init__(5, nodes, setup=self.begin)

    def begin(self, system: ActorSystem) -> None:
        self.on[self.here().name] = system.cluster.sharding.start_daemons(
            type_name="d", actor=Daemon, count=5, args=(self.log, self.fails)
        )

    def state_of(self, name: str) -> list[int]:
        """The daemons there."""
        (state,) = self.system(name).cluster.sharding.state()
        here: list[int] = state["here"]
        return here


def test_daemons_run_without_a_message_each_in_the_shard_of_its_number() -> None:
    """I-124: spread evenly."""
    with Daemons("a b") as world:
        world.until_all_up()
        world.run_for(s=20.0)
        running = [x for name in "ab" for x in world.state_of(name)]
        assert sorted(running) == [0, 1, 2, 3, 4]
        assert {name for _, name in world.log} == {f"{n}/{n}" for n in range(5)}
        assert world.run(world.on["b"]["3"].ask(Who()), node="b") == "3"


def test_a_proxy_of_daemons_knows_their_shards_by_number() -> None:
    """I-124: and not by a hash, which would send each by way of another node."""
    with Daemons("a b") as world:
        world.until_all_up()
        world.run_for(s=5.0)
        proxies = world["b"].call(
            world.system("b").cluster.sharding.start_proxy,
            type_name="others",
            shard_count=5,
            daemons=True,
        )
        assert [proxies[str(number)].shard_id for number in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("daemon_id", ["5", "-1", "x", "", "03", "٣", "1.0"])
def test_there_are_no_daemons_but_those(daemon_id: str) -> None:
    """I-124: and no second one under another spelling of its number."""
    with Daemons("a") as world:
        world.system("a")
        with pytest.raises(ValueError, match=r"none of the 5 daemons|no entity id"):
            world.on["a"][daemon_id]


def test_a_daemon_that_ends_is_built_again_ever_more_rarely() -> None:
    with Daemons("a", fails=True) as world:
        world.until_all_up()
        world.run_for(s=100.0)
        at = [round(at_s) for at_s, name in world.log if name == "0/0"]
        gaps = [after - before for before, after in itertools.pairwise(at)]
        assert gaps[:6] == [1, 2, 4, 8, 16, 30]


def test_a_daemon_that_ran_for_long_is_built_again_soon() -> None:
    """A backoff is for what fails again and again."""
    with Daemons("a") as world:
        world.until_all_up()
        world.run_for(s=1.0)
        for _ in range(6):
            world["a"].call(world.on["a"]["0"].tell, End())
            world.run_for(s=60.0)
        at = [at_s for at_s, name in world.log if name == "0/0"]
        assert len(at) == 7
        assert all(after - before < 63.0 for before, after in itertools.pairwise(at))


def test_daemons_are_never_idle() -> None:
    """I-122."""
    with Daemons("a") as world:
        world.until_all_up()
        world.run_for(s=600.0)
        assert len(world.log) == 5


@pytest.mark.parametrize("count", [0, -1, 1.5, 20_000, 6])
def test_a_wrong_count_of_daemons_is_named_as_it_was_given(count: Any) -> None:
    """`start_daemons` has no `shard_count`. Six are wrong because five run already."""
    with Daemons("a") as world:
        world.until_all_up()
        sharding = world.system("a").cluster.sharding
        with pytest.raises(SettingsError, match=rf"[^_]count={count}|another .*args and count:"):
            world["a"].call(
                sharding.start_daemons, type_name="d", actor=Daemon, args=(world,), count=count
            )


# starting and stopping


def start(world: Carts, name: str, **settings: Any) -> Entities[Any]:
    """Start it on a node once more."""
    given = {"shard_count": COUNT, "type_name": TYPE, "actor": Cart, "args": (world,), **settings}
    entities: Entities[Any] = world[name].call(world.system(name).cluster.sharding.start, **given)
    return entities


def proxy(world: World, name: str, **settings: Any) -> Entities[Any]:
    """Start a proxy on a node."""
    given = {"shard_count": COUNT, "type_name": TYPE, **settings}
    sharding = world.system(name).cluster.sharding
    entities: Entities[Any] = world[name].call(sharding.start_proxy, **given)
    return entities


def test_started_twice_it_is_the_same() -> None:
    with Carts("a") as world:
        world.spread()
        start(world, "a")
        assert world.ask("a", "c1", Count()) >= 1
        for other in ({"actor": Keeps}, {"shard_count": 9}, {"args": (world, 1)}):
            with pytest.raises((SettingsError, TypeError)):
                start(world, "a", **other)
        assert world.ask("a", "c1", Count()) >= 1


def test_a_start_that_is_refused_leaves_nothing_behind() -> None:
    """I-127: the one that is right works afterwards."""
    with World(5, "a") as world:
        world.until_all_up()
        carts = Carts.__new__(Carts)
        carts.built, carts.alive, carts.here = [], [], world.here  # type: ignore[method-assign]
        sharding = world.system("a").cluster.sharding
        proxy(world, "a")
        with pytest.raises(SettingsError, match="shard_count"):
            world["a"].call(
                sharding.start, type_name=TYPE, actor=Cart, args=(carts,), shard_count=9
            )
        with pytest.raises(SettingsError, match="shard_count"):
            proxy(world, "a", shard_count=9)
        entities = world["a"].call(
            sharding.start, type_name=TYPE, actor=Cart, args=(carts,), shard_count=COUNT
        )
        assert world.run(entities["c1"].ask(Count()), node="a") == 1


def test_a_start_whose_lease_is_none_leaves_nothing_behind() -> None:
    with Carts("a") as world:
        world.spread()
        with pytest.raises(SettingsError):
            start(world, "a", type_name="leased", lease="nonsense://x")
        entities = start(world, "a", type_name="leased")
        assert world.run(entities["c1"].ask(Count()), node="a") == 1


class Halves(Carts):
    """The type is started on a alone; b is a proxy."""

    def begin(self, system: ActorSystem) -> None:
        if self.here().name == "a":
            super().begin(system)
        else:
            self.on["b"] = system.cluster.sharding.start_proxy(type_name=TYPE, shard_count=COUNT)


def test_a_proxy_that_is_started_hosts_from_then_on() -> None:
    """I-127: proxy and region of one node are one."""
    with Halves("a b") as world:
        world.until_all_up()
        for cart_id in map(an_id, range(COUNT)):
            assert world.home(cart_id, "b") == "a"
        start(world, "b")
        world.run_until(lambda: len(world.state("b")["here"]) == COUNT // 2, within_s=30)
        assert proxy(world, "b")["c1"] is not None
        world.run_for(s=2.0)
        assert {world.home(cart_id, "b") for cart_id in map(an_id, range(COUNT))} == {"a", "b"}


def test_a_proxy_of_other_shards_is_refused_and_told_why() -> None:
    """I-104."""
    with Carts("a b", absent="b") as world:
        world.until_all_up()
        world.start_settings["shard_count"] = 16
        world.start("b")
        world.until_all_up()
        world.tell("b", "c1", Put("c1", 1))
        world.run_for(s=5.0)
        assert world.taken == []
        assert world.state("b")["here"] == []
        assert "16 shards" in world.state("b")["explain"]
        assert world.state("b")["held"] == 1


def test_asks_of_a_node_that_is_refused_fail_at_once_and_what_was_told_waits() -> None:
    """I-104: also an ask that waits already; whoever has its count may take all of it later."""
    with Carts("a b", absent="b") as world:
        world.until_all_up()
        world.start_settings["shard_count"] = 16
        world.start("b")
        world.run_until(lambda: "b" in world.on)
        world.tell("b", "c1", Put("c1", 1))
        for within_s in (10.0, 0.01):
            with pytest.raises(DeadActorError, match=r"not admitted.* 16 shards"):
                world.run(world.on["b"]["c1"].ask(Count(), 60.0), node="b", within_s=within_s)
        assert world.state("b")["held"] == 1
        world.crash("a")
        world.run_until(lambda: world.taken == [("c1", 1)], within_s=60.0)
        assert world.ask("b", "c1", Count()) == 2


@pytest.mark.parametrize("hand_off_timeout_s", [10.0, 0.5])
def test_order_is_kept_over_a_move_while_an_entity_is_passivated(hand_off_timeout_s: float) -> None:
    """I-120: what waits at its former home for the next one is handled there, in time."""
    with Carts("a b", hand_off_timeout_s=hand_off_timeout_s) as world:
        world.spread()
        cart_id = id_at(world, "b")
        world.tell("b", cart_id, Rest(1.0))
        world.run_for(s=0.1)
        world.tell("a", cart_id, Put("a", 0))
        world.run_for(s=0.1)
        world["b"].call(world.system("b").cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=0.3)
        world.tell("a", cart_id, Put("a", 1))
        world.run_for(s=5.0)
        taken = in_order(world, "a")
        assert sorted(taken) == [0, 1]
        assert taken == [0, 1] or hand_off_timeout_s < 1.0
        assert world.home(cart_id) == "a"


def test_a_leaver_waits_for_the_homes_of_what_it_has_still_to_send() -> None:
    """I-112: the shard moves between two others, and takes its time."""
    with Carts("a b c") as world:
        world.spread()
        cart_id = id_at(world, "c")
        world.tell("c", cart_id, Rest(2.5))
        world.run_for(s=0.1)
        world["c"].call(world.system("c").cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=0.2)
        world.tell("b", cart_id, Put("b", 1))
        asked = world.on["b"][cart_id].ask(Count(), 60.0)
        task = world["b"].call(lambda: world["b"].loop.create_task(asked))
        world.leave("b")
        assert task.result() == 2
        assert in_order(world, "b") == [1]
        assert not [each for each in world.dead_letters if isinstance(each.message, Put)]


def test_a_node_that_ends_waits_for_no_entity_that_nobody_hosts() -> None:
    """S16: an actor that asks one would hold up the end until its timeout."""
    with Carts("a", role="carts") as world:
        world.until_all_up()
        asked = world.on["a"]["c1"].ask(Count(), 60.0)
        task = world["a"].call(lambda: world["a"].loop.create_task(asked))
        world.tell("a", "c1", Put("c1", 1))
        world.run_for(s=1.0)
        assert not task.done()
        world.leave("a")
        world.run_until(task.done, within_s=2.0)
        assert "no host took over" in str(task.exception())


def test_a_type_that_is_stopped_moves_away_and_takes_part_again_when_started() -> None:
    """I-116: messages from where it was stopped still arrive."""
    with Carts() as world:
        world.spread()
        sharding = world.system("b").cluster.sharding
        cart_id = id_at(world, "b")
        stop = numbered(world, cart_id, "a", "b")
        world.run_for(s=0.2)
        world["b"].call(sharding.stop, type_name=TYPE)
        world["b"].call(sharding.stop, type_name=TYPE)
        world["b"].call(sharding.stop, type_name="unknown")
        world.run_until(lambda: world.state("b")["here"] == [], within_s=5)
        world.run_for(s=5.0)
        count = stop()
        world.run_for(s=2.0)
        assert in_order(world, "a") == in_order(world, "b") == list(range(1, count + 1))
        assert all(name != "b" for _, name in world.alive)
        start(world, "b")
        world.run_until(lambda: len(world.state("b")["here"]) >= 2, within_s=30)
        world.run_for(s=2.0)
        assert {world.home(cart_id) for cart_id in map(an_id, range(COUNT))} == {"a", "b", "c"}
        assert set(world.acting) == {1}
        assert world.dead_letters == []


def test_all_stop_and_one_starts_again() -> None:
    """Meanwhile what is sent is held."""
    with Carts("a b") as world:
        world.spread()
        for name in "ab":
            world[name].call(world.system(name).cluster.sharding.stop, type_name=TYPE)
        world.run_for(s=20.0)
        assert world.alive == []
        world.tell("a", "c1", Put("c1", 1))
        world.run_for(s=1.0)
        assert world.taken == []
        start(world, "b")
        world.run_for(s=10.0)
        assert world.taken == [("c1", 1)]


# faults


@pytest.mark.parametrize("protection", ["none", "downing"])
def test_the_entities_of_one_that_crashes_are_built_elsewhere(protection: str) -> None:
    """And so is its coordinator."""
    with Carts() as world:
        world.settings = Settings(protection=protection)
        world.spread()
        cart_id = id_at(world, "a")
        world.crash("a")
        world.run_for(s=60.0)
        assert world.home(cart_id, "b") in ("b", "c")
        world.tell("b", cart_id, Put("c1", 1))
        world.run_for(s=1.0)
        assert world.taken == [("c1", 1)]


def test_what_is_sent_to_a_home_that_is_cut_off_waits_for_it() -> None:
    """I-119: a short cut loses nothing."""
    with Carts() as world:
        world.spread()
        cart_id = id_at(world, "c")
        world.cut("b", from_="c")
        world.run_for(s=0.1)
        for number in range(5):
            world.tell("b", cart_id, Put("b", number))
            world.run_for(s=0.2)
        world.heal_all()
        world.run_for(s=10.0)
        assert in_order(world, "b") == [0, 1, 2, 3, 4]


def test_what_is_held_when_a_node_ends_is_a_dead_letter() -> None:
    with Carts("a b", absent="a") as world:
        world.system("b")
        world.tell("b", "c1", Put("c1", 1))
        world.run_for(s=0.1)
        world.leave("b")
        assert [letter.why for letter in world.dead_letters] == [Why.SHUTDOWN]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"remember": True}, SettingsError, "must be the URL of a store"),
        ({"remember": 5}, SettingsError, "must be the URL of a store"),
        ({"supervision": 5}, TypeError, "give Restart"),
        (
            {"remember": "sqlite::memory:", "entities_max": 5},
            SettingsError,
            "entities_max=5 and remember= exclude each other",
        ),
    ],
)
def test_what_can_only_fail_later_is_refused_at_the_start(
    wrong: dict[str, Any], error: type[Exception], says: str
) -> None:
    with World(5, "a") as world:
        world.until_all_up()
        start = world.system("a").cluster.sharding.start
        with pytest.raises(error, match=says):
            world["a"].call(start, type_name="late", actor=Keeps, shard_count=2, **wrong)
        assert world["a"].call(start, type_name="late", actor=Keeps, shard_count=2) is not None


def test_an_id_that_cannot_travel_is_none() -> None:
    """I-121: a lone surrogate is no text."""
    with Carts("a") as world:
        world.until_all_up()
        with pytest.raises(ValueError, match="no entity id"):
            world.on["a"]["\ud800"]
