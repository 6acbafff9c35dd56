"""Routers: who gets a message, that asks are answered, and that the dead leave the ring."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.actor import Actor, Terminated, on
from node.errors import ActorFailedError, DeadActorError
from node.messages import Ask, message
from node.routers import (
    Broadcast,
    ConsistentHash,
    Pool,
    RandomChoice,
    Ring,
    RoundRobin,
    Router,
    Routing,
)
from node.supervision import Restart, Stop
from tests.node.stage import A, Add, Greet, Pair, Stage


@message("test.routers.who")
class Who(Ask[str]):
    """Answered with the name of whoever got it."""

    key: str = ""


class Worker(Actor):
    """Says who it is; stops, breaks or keeps silent when it is told to."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.name = self.context.path.rpartition("/")[2]
        self.log = [] if log is None else log

    @on(Who)
    def who(self, msg: Who) -> str:
        self.log.append(self.name)
        return self.name

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "stop":
            self.context.stop(self.context.self)
        elif msg.name == "break":
            raise ValueError
        self.log.append(f"{self.name} {msg.name}")


ROUTINGS: list[Routing] = [
    RoundRobin(),
    RandomChoice(),
    Broadcast(),
    ConsistentHash(lambda msg: getattr(msg, "key", "")),
]


def router(stage: Stage, routing: Routing, count: int = 3, **options: Any) -> Any:
    log: list[str] = []
    pool = Pool(Worker, (log,), count=count, **options)
    ref = stage.runtime.spawn(Router, pool, routing, name="r")
    stage.settle()
    return ref, log


def asked(stage: Stage, ref: Any, *messages: Ask[Any]) -> list[Any]:
    async def main() -> list[Any]:
        return [await ref.ask(msg) for msg in messages]

    return stage.run(main())


def test_round_robin_goes_round() -> None:
    stage = Stage()
    ref, _ = router(stage, RoundRobin())
    assert asked(stage, ref, *[Who()] * 7) == ["0", "1", "2", "0", "1", "2", "0"]


def test_random_choice_is_fair_and_the_same_for_the_same_seed() -> None:
    def run() -> list[str]:
        stage = Stage()
        ref, _ = router(stage, RandomChoice(), 4)
        return asked(stage, ref, *[Who()] * 400)

    first = run()
    assert first == run()
    assert all(60 <= count <= 140 for count in Counter(first).values())
    assert len(Counter(first)) == 4


def test_broadcast_reaches_all_and_the_first_answer_counts() -> None:
    stage = Stage()
    ref, log = router(stage, Broadcast())
    assert asked(stage, ref, Who()) == ["0"]
    ref.tell(Greet("hi"))
    stage.settle()
    assert log == ["0", "1", "2", "0 hi", "1 hi", "2 hi"]


def test_consistent_hash_keeps_a_key_where_it_is() -> None:
    stage = Stage()
    ref, _ = router(stage, ConsistentHash(lambda msg: msg.key), 5)
    keys = [Who(str(number)) for number in range(200)]
    first = asked(stage, ref, *keys)
    assert asked(stage, ref, *keys) == first
    assert len(set(first)) == 5


def test_when_a_routee_ends_only_its_keys_move() -> None:
    stage = Stage()
    ref, _ = router(stage, ConsistentHash(lambda msg: msg.key), 5)
    keys = [Who(str(number)) for number in range(300)]
    before = asked(stage, ref, *keys)
    stage.runtime.ref_at(None, "/user/r/2").tell(Greet("stop"))
    stage.settle()
    after = asked(stage, ref, *keys)
    assert "2" not in after
    moved = [b for b, a in zip(before, after, strict=True) if a != b]
    assert set(moved) == {"2"}
    assert len(set(after)) == 4


@given(st.sets(st.text(max_size=8) | st.binary(max_size=8) | st.integers(), min_size=1))
def test_every_key_has_one_owner_whatever_it_is(keys: set[Any]) -> None:
    stage = Stage()
    refs = [stage.runtime.ref_at(A, f"/user/r/{number}") for number in range(7)]
    ring, reversed_ring = Ring(refs), Ring(refs[::-1])
    for key in keys:
        assert ring.find(key) == reversed_ring.find(key)


def test_shares_of_a_ring_are_about_equal() -> None:
    stage = Stage()
    ring = Ring([stage.runtime.ref_at(A, f"/user/r/{number}") for number in range(4)])
    shares = Counter(ring.find(number).path for number in range(20_000))
    assert all(3_500 <= share <= 6_500 for share in shares.values())


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: type(routing).__name__)
def test_dead_routees_leave_and_after_the_last_the_router_ends(routing: Routing) -> None:
    class Watcher(Actor):
        def pre_start(self) -> None:
            self.context.watch(ref)

        @on(Terminated)
        def ended(self, msg: Terminated) -> None:
            ends.append(msg.ref.path)

    stage = Stage()
    ref, _ = router(stage, routing, 3, supervision=Stop())
    ends: list[str] = []
    stage.runtime.spawn(Watcher)
    stage.settle()
    for number in range(2):
        stage.runtime.ref_at(None, f"/user/r/{number}").tell(Greet("break"))
        stage.settle()
    assert asked(stage, ref, *[Who()] * 5) == ["2"] * 5
    stage.runtime.ref_at(None, "/user/r/2").tell(Greet("stop"))
    stage.settle()
    assert ends == ["/user/r"]
    with pytest.raises(DeadActorError):
        asked(stage, ref, Who())
    assert stage.loop.time() == 0.0


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: type(routing).__name__)
def test_restarted_routee_stays(routing: Routing) -> None:
    stage = Stage()
    ref, _ = router(stage, routing, 1, supervision=Restart(backoff_s=0.0))
    ref.tell(Greet("break"))
    assert asked(stage, ref, Who()) == ["0"]


def test_routees_are_children_and_end_before_the_router() -> None:
    stage = Stage()
    ref, _ = router(stage, RoundRobin())
    assert stage.runtime.not_ended() == ("/user/r", "/user/r/0", "/user/r/1", "/user/r/2")
    stage.runtime.stop(ref)
    stage.run(stage.runtime.stopped(ref))
    assert stage.runtime.not_ended() == ()


@pytest.mark.parametrize("key", [lambda msg: 1 / 0, lambda msg: 1.5, lambda msg: None])
def test_key_that_raises_or_is_none_loses_the_message_and_nothing_else(key: Any) -> None:
    stage = Stage()
    ref, log = router(stage, ConsistentHash(lambda msg: key(msg) if msg.key == "bad" else msg.key))
    with pytest.raises(ActorFailedError):
        asked(stage, ref, Who("bad"))
    assert [failure.outcome for failure in stage.failures] == ["resume"]
    assert len(asked(stage, ref, Who("good"))) == 1
    assert len(log) == 1


def test_sender_goes_with_the_message() -> None:
    class Echo(Actor):
        @on(Greet)
        def greet(self, msg: Greet) -> None:
            assert self.context.sender is not None
            senders.append(self.context.sender.path)

    stage = Stage()
    senders: list[str] = []
    ref = stage.runtime.spawn(Router, Pool(Echo, count=2), RoundRobin())
    ref.tell(Greet("a"), sender=stage.runtime.resolve("/user/me"))
    stage.settle()
    assert senders == ["/user/me"]


def test_asks_of_other_nodes_are_answered_by_routees() -> None:
    pair = Pair()
    local = pair.far.spawn(Router, Pool(Worker, count=3), RoundRobin())

    async def main() -> list[str]:
        far = pair.to_far(local.path)
        return list(await asyncio.gather(*[far.ask(Who()) for _ in range(4)]))

    assert pair.run(main()) == ["0", "1", "2", "0"]


def test_bounds_of_a_pool() -> None:
    for count in (0, -1, 10_001):
        with pytest.raises(ValueError, match="give a number from 1 to 10000"):
            Pool(Worker, count=count)
    stage = Stage()
    with pytest.raises(TypeError):
        stage.runtime.spawn(Router, Pool(Worker))


def test_asks_in_great_number_are_all_answered() -> None:
    stage = Stage()
    ref, _ = router(stage, RoundRobin(), 4)

    async def main() -> list[str]:
        return list(await asyncio.gather(*[ref.ask(Who()) for _ in range(2_000)]))

    assert Counter(stage.run(main())) == {str(number): 500 for number in range(4)}
    ref.tell(Add(1))
    stage.settle()
    assert stage.whys() == ["UNHANDLED"]


@pytest.mark.parametrize(
    ("pool", "routing", "text"),
    [
        (Pool(Worker), RoundRobin, r"routing=<class .*RoundRobin'> is none: give RoundRobin\(\)"),
        (Worker, RoundRobin(), r"pool=<class .*Worker'> is no Pool: write Pool\(Worker"),
        (Pool(Worker), lambda msg: msg, "routing=<function .* is none"),
    ],
)
def test_arguments_of_a_router_are_checked_by_spawn(pool: Any, routing: Any, text: str) -> None:
    stage = Stage()
    with pytest.raises(TypeError, match=text):
        stage.runtime.spawn(Router, pool, routing)
    assert stage.runtime.actor_count == 0


def test_derived_router_has_a_constructor_of_its_own() -> None:
    class Twins(Router):
        def __init__(self, actor: type[Actor], routing: Any) -> None:
            super().__init__(Pool(actor, count=2), routing)

    stage = Stage()
    ref = stage.runtime.spawn(Twins, Worker, RoundRobin())
    assert stage.run(ref.ask(Who())) == "0"
    broken = stage.runtime.spawn(Twins, Worker, RoundRobin, supervision=Stop())
    with pytest.raises(DeadActorError, match=r"Router: routing=.* is none"):
        stage.run(broken.ask(Who()))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Pool("x"), "actor='x' is no Actor class"),  # type: ignore[arg-type]
        (lambda: Pool(Worker, "db"), "args='db' is no tuple"),  # type: ignore[arg-type]
        (lambda: Pool(Worker, count=True), "count=True is no whole number"),
        (lambda: ConsistentHash("user"), "key='user' cannot be called"),  # type: ignore[arg-type]
    ],
)
def test_what_a_router_is_given_is_checked_where_it_is_made(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()
