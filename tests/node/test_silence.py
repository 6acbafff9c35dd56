"""What an unanswered ask of a singleton or an entity says: where it waited, and for what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node import Actor, ActorRef, ActorSystem, Ask, Restart, Settings, message, on
from node.errors import AskTimeoutError
from node.testkit import World
from sharding.settings import shard_of

TIMEOUT_S = 3.0
COUNT = 8


@message("silence.hello")
class Hello(Ask[str]):
    """Answered with a word."""


@message("silence.hang")
class Hang(Ask[str]):
    """Never answered."""


class Till(Actor):
    """A singleton."""

    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("no till here")

    @on(Hello)
    def hello(self, msg: Hello) -> str:
        return "hello"

    @on(Hang)
    async def hang(self, msg: Hang) -> str:
        await asyncio.get_running_loop().create_future()
        return ""


class Account(Till):
    """An entity; those named broken cannot be built."""

    def __init__(self, account_id: str) -> None:
        super().__init__(fails=account_id.startswith("broken"))


def refused(world: World, name: str, ref: ActorRef[Any], ask: Ask[Any] | None = None) -> str:
    """What the asker is told in the end."""
    with pytest.raises(AskTimeoutError) as caught:
        world.run(ref.ask(ask or Hello(), timeout_s=TIMEOUT_S), node=name, within_s=60.0)
    return str(caught.value)


def own_address(world: World, name: str) -> str:
    return world.system(name).cluster.self_id.address


def singleton(world: World, name: str, *, fails: bool = False) -> ActorRef[Any]:
    start = world.system(name).cluster.singleton.start
    found: list[ActorRef[Any]] = []
    world[name].call(lambda: found.append(start(type_name="one", actor=Till, args=(fails,))))
    return found[0]


def proxy(world: World, name: str, role: str | None = None) -> ActorRef[Any]:
    start = world.system(name).cluster.singleton.start_proxy
    found: list[ActorRef[Any]] = []
    world[name].call(lambda: found.append(start(type_name="one", role=role)))
    return found[0]


def accounts(world: World, name: str, **how: Any) -> Any:
    sharding = world.system(name).cluster.sharding
    start = sharding.start if how.pop("hosts", True) else sharding.start_proxy
    found: list[Any] = []
    world[name].call(
        lambda: found.append(start(type_name="acc", shard_count=COUNT, **how)),
    )
    return found[0]


def test_a_singleton_that_nobody_hosts_is_held_here_and_says_for_want_of_whom() -> None:
    with World(5, "a b", seeds="a") as world:
        world.until_all_up()
        told = refused(world, "a", proxy(world, "a", role="zz"))
        assert told == (
            "no answer from singleton one within 3 s: held here, no reachable member with role "
            "'zz' hosts this type"
        )


def test_a_singleton_on_another_node_is_named_with_that_node() -> None:
    with World(5, "a b", seeds="a") as world:
        world.until_all_up()
        singleton(world, "b")
        ref = proxy(world, "a")
        assert world.run(ref.ask(Hello(), timeout_s=30.0), node="a") == "hello"
        told = refused(world, "a", ref, Hang())
        there = own_address(world, "b")
        assert told == (
            f"no answer from singleton one within 3 s: sent to {there}, from where no answer came"
        )


def test_a_singleton_here_that_cannot_start_says_its_last_failure() -> None:
    with World(5, "a", seeds="a") as world:
        world.until_all_up()
        told = refused(world, "a", singleton(world, "a", fails=True))
        assert told.startswith("no answer from singleton one within 3 s: held here, ")
        assert "it failed 5 times, last: ValueError: no till here" in told
        assert own_address(world, "a") not in told


def test_a_singleton_here_that_is_busy_is_said_to_run_here() -> None:
    with World(5, "a", seeds="a") as world:
        world.until_all_up()
        told = refused(world, "a", singleton(world, "a"), Hang())
        assert told == (
            "no answer from singleton one within 3 s: it runs here, and has not answered"
        )


def test_a_singleton_whose_host_is_cut_off_is_held_for_want_of_a_way() -> None:
    with World(5, "a b c", seeds="a") as world:
        world.until_all_up()
        singleton(world, "b")
        ref = proxy(world, "a")
        assert world.run(ref.ask(Hello(), timeout_s=30.0), node="a") == "hello"
        there = own_address(world, "b")
        world.crash("b")
        told = refused(world, "a", ref)
        assert told.startswith("no answer from singleton one within 3 s: ")
        assert there in told
        assert own_address(world, "a") not in told


def test_an_entity_without_a_coordinator_is_held_here_and_says_why_there_is_none() -> None:
    with World(5, "a b", seeds="a") as world:
        world.until_all_up()
        told = refused(world, "a", accounts(world, "a", hosts=False, role="zz")["e/1"])
        assert told == (
            "no answer from entity acc/e%2F1 within 3 s: held here, no coordinator is known: known "
            "shards go on, new ones wait: no reachable member with role 'zz' hosts this type"
        )


def test_an_entity_that_cannot_be_built_says_its_last_failure() -> None:
    with World(5, "a", seeds="a") as world:
        world.until_all_up()
        told = refused(world, "a", accounts(world, "a", actor=Account)["broken"])
        assert told == (
            "no answer from entity acc/broken within 3 s: held here, it waits for its restart; it "
            "failed 5 times, last: ValueError: no till here"
        )


def test_a_daemon_that_ends_again_and_again_says_its_last_end() -> None:
    class Broken(Account):
        def __init__(self, number: str) -> None:
            super().__init__(f"broken{number}")

    with World(5, "a", seeds="a") as world:
        world.until_all_up()
        found: list[Any] = []
        start = world.system("a").cluster.sharding.start_daemons
        world["a"].call(
            lambda: found.append(
                start(type_name="acc", actor=Broken, count=2, supervision=Restart(retries=0))
            )
        )
        world.run_for(s=10.0)
        told = refused(world, "a", found[0]["1"])
        assert told.startswith("no answer from entity acc/1 within 3 s: held here, it is to be")
        assert told.endswith("ValueError: no till here")


def test_an_entity_elsewhere_is_named_with_its_node_and_one_here_is_said_to_run_here() -> None:
    with World(5, "a b", seeds="a") as world:
        world.until_all_up()
        refs = accounts(world, "b", actor=Account)
        away = accounts(world, "a", hosts=False)["e1"]
        assert world.run(away.ask(Hello(), timeout_s=30.0), node="a") == "hello"
        there = own_address(world, "b")
        assert refused(world, "a", away, Hang()) == (
            f"no answer from entity acc/e1 within 3 s: sent to {there}, from where no answer came"
        )
        assert refused(world, "b", refs["e2"], Hang()) == (
            "no answer from entity acc/e2 within 3 s: it runs here, and has not answered"
        )


def test_what_acts_not_for_want_of_contact_says_so() -> None:
    settings = Settings(port=0, seeds=("a",), downing="keep-majority")
    with World(5, "a b c", settings=settings, seeds="a") as world:
        world.until_all_up()
        refs = {name: accounts(world, name, actor=Account) for name in "abc"}
        ids = [f"e{n}" for n in range(100)]
        by_shard = {shard_of(an_id, COUNT): an_id for an_id in ids}
        for an_id in by_shard.values():
            world.run(refs["a"][an_id].ask(Hello(), timeout_s=30.0), node="a")
        here = world.system("a").cluster.sharding.state()[0]["here"]
        world.crash("b")
        world.crash("c")
        world.run_for(s=2.5)
        told = refused(world, "a", refs["a"][by_shard[here[0]]])
        assert "held here, and nothing acts here: " in told


def test_an_error_in_the_words_still_ends_the_ask() -> None:
    with World(5, "a", seeds="a") as world:
        world.until_all_up()
        ref = proxy(world, "a")

        def broken(*_: object) -> None:
            raise RuntimeError("no words")

        assert world.system("a")._runtime is not None
        runtime = world.system("a")._runtime
        assert runtime is not None
        runtime.silence = broken
        assert "no answer from " in refused(world, "a", ref)


async def test_an_actor_of_this_process_is_named_by_its_address() -> None:
    async with ActorSystem() as system:
        ref = system.spawn(Till, name="till")
        with pytest.raises(AskTimeoutError, match=r"^no answer from \S+/user/till within 0.05 s$"):
            await ref.ask(Hang(), timeout_s=0.05)
