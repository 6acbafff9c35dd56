"""A peer that takes nothing for a while: bounded, dead letters, and then on in order (I-136)."""

from __future__ import annotations

import asyncio

import pytest

from node import Actor, ActorRef, Ask, DeadLetter, message, on
from node.testkit import World

BODY = b"x" * 1000
FLYING, PENDING = 64 * 1024, 256 * 1024


@message("pressure.item")
class Item:
    """One of a long row."""

    number: int
    body: bytes


@message("pressure.count")
class Count(Ask[int]):
    """Answered with how many came."""


class Taker(Actor):
    """Writes down what comes."""

    def __init__(self, taken: list[int]) -> None:
        self.taken = taken

    @on(Item)
    def item(self, msg: Item) -> None:
        self.taken.append(msg.number)

    @on(Count)
    def count(self, msg: Count) -> int:
        return len(self.taken)


class Scene:
    """Node a tells an actor of node b; both ends of the link are made small."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.taken: list[int] = []
        self.letters: list[int] = []
        world.until_all_up()
        taker = world.spawn(Taker, self.taken, name="taker", node="b")
        self.ref: ActorRef[object] = world.system("a").resolve(f"{taker.address}")
        world.system("a").events.subscribe(DeadLetter, self._letter)
        assert world.run(self.ref.ask(Count()), node="a") == 0

    def _letter(self, letter: DeadLetter) -> None:
        assert isinstance(letter.message, Item)
        self.letters.append(letter.message.number)

    def tell(self, numbers: range, body: bytes = BODY) -> None:
        """As one step of node a."""

        def step() -> None:
            for number in numbers:
                self.ref.tell(Item(number, body))

        self.world["a"].call(step)

    @property
    def waiting_bytes(self) -> int:
        """What waits on node a for node b's data lane."""
        lanes = self.world.system("a").cluster.state()["lanes"]
        return sum(lane["waiting_bytes"] for lane in lanes if lane["lane"] == "data")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("node.testkit.transport.FLYING_BYTES_MAX", FLYING)
    monkeypatch.setattr("node.testkit.transport.DATA_PENDING_BYTES_MAX", PENDING)
    return Scene(World(seed=3, nodes="a b"))


def test_a_peer_that_stops_reading_costs_bounded_memory_then_dead_letters(scene: Scene) -> None:
    world = scene.world
    with world:
        world.pause("b", s=1.0)
        scene.tell(range(2000))
        world.run_for(s=0.5)
        assert scene.waiting_bytes <= PENDING + 70_000
        assert scene.letters, "what does not fit is a dead letter"
        assert scene.letters == list(range(scene.letters[0], 2000)), "the newest ones are"
        world.run_for(s=1.0)
        assert scene.taken == list(range(scene.letters[0])), "all others arrive, in order"
        assert scene.waiting_bytes == 0
        scene.tell(range(2000, 2010))
        world.run_for(s=0.5)
        assert scene.taken[-10:] == list(range(2000, 2010)), "and it goes on"
        assert len(scene.taken) + len(scene.letters) == 2010


def test_whoever_waits_for_room_loses_nothing(scene: Scene) -> None:
    world = scene.world
    with world:
        world.pause("b", s=1.0)

        async def send() -> None:
            for number in range(2000):
                await scene.ref.send(Item(number, BODY))

        world.run(send(), node="a", within_s=10.0)
        world.run_for(s=0.5)
        assert scene.taken == list(range(2000))
        assert scene.letters == []


def test_large_and_small_messages_to_one_actor_keep_their_order_over_a_pause(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.testkit.transport.DATA_PENDING_BYTES_MAX", 64 << 20)
    world = scene.world
    with world:
        world.pause("b", s=0.5)

        async def send() -> None:
            for number in range(60):
                await scene.ref.send(Item(number, b"x" * (700_000 if number % 3 == 0 else 10)))

        world.run(send(), node="a", within_s=10.0)
        world.run_for(s=3.0)
        assert scene.taken == list(range(60))
        assert scene.letters == []


@pytest.mark.parametrize("seed", range(5))
def test_a_new_incarnation_gets_nothing_meant_for_the_old_one(seed: int) -> None:
    """At most once, and never to somebody else (I-84): numbers arrive at one process only."""
    scene = Scene(World(seed=seed, nodes="a b"))
    world = scene.world
    with world:
        for round_ in range(10):
            scene.tell(range(100 * round_, 100 * round_ + 50))
            if round_ == 3:
                world.crash("b")
                world.restart("b", after_s=0.2)
            world.run_for(s=0.05)
        before = len(scene.taken)
        world.until_all_up()
        newer: list[int] = []
        world.spawn(Taker, newer, name="taker", node="b")
        world.run_for(s=1.0)
        assert newer == [], "nothing was kept for it"
        assert scene.taken[:before] == sorted(set(scene.taken[:before]))
        assert set(scene.taken) | set(scene.letters) <= set(range(1000))
        scene.tell(range(5000, 5010))
        world.run_for(s=0.5)
        assert newer == list(range(5000, 5010)), "the ref by address reaches who is there now"


def test_what_was_told_before_a_leave_in_order_arrives() -> None:
    """The leave is known before the last frame is read: that one is good all the same."""
    scene = Scene(World(seed=8, nodes="a b c"))
    world = scene.world
    with world:
        scene.tell(range(1000), b"x" * 10_000)
        world.leave("a")
        world.run_for(s=2.0)
        assert scene.taken == list(range(1000))
        assert world["b"].system.counters()["data-refused-frame-from-gone"] == 0


def test_a_sender_that_never_has_to_wait_lets_the_loop_go_round() -> None:
    scene = Scene(World(seed=9, nodes="a b"))
    rounds = 0

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def send() -> None:
        task = asyncio.ensure_future(others())
        for number in range(3200):
            await scene.ref.send(Item(number, b"x"))
        task.cancel()

    with scene.world as world:
        world.run(send(), node="a")
        assert rounds >= 100
        world.run_for(s=1.0)
        assert scene.taken == list(range(3200))
