"""Snippets 1, 2, 3 (without its lease) and 5 of the API run as they are written."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

import downing
import gossip
import lease
import node
import sharding
import singleton
from node import (
    Actor,
    ActorFailed,
    ActorSystem,
    AskTimeoutError,
    DeadActorError,
    MessageError,
    Settings,
    SettingsError,
    UnhandledMessageError,
)
from node.testkit import World
from tests.api.snippets import (
    Add,
    Counter,
    Greet,
    Greeted,
    Hello,
    JobScheduler,
    Pending,
    Reminded,
    Reminder,
    RemindIn,
    Schedule,
)


class Unstartable(Actor):
    """Its constructor always raises."""

    def __init__(self) -> None:
        raise RuntimeError("no database")


async def test_an_actor_locally() -> None:
    """Snippet 1: no port, no sockets."""
    async with ActorSystem() as system:
        hello = system.spawn(Hello, "world", name="hello")  # Hello("world"), built where it runs
        hello.tell(Greet())
        assert await hello.ask(Greeted()) == "hello world"
        assert hello.path == "/user/hello"


async def test_three_ways_to_start_are_the_same() -> None:
    async with ActorSystem(Settings(name="one")) as one:
        assert one.settings.name == "one"
    two = await ActorSystem.start(name="two")
    assert await two.spawn(Counter).ask(Add(1)) == 1
    await two.leave()
    assert (await two.terminated).exit_code == 0


async def test_ask_typed() -> None:
    """Snippet 2: mypy knows that this is an int."""
    async with ActorSystem() as system:
        counter = system.spawn(Counter, 40)
        n: int = await counter.ask(Add(2))
        assert n == 42


async def test_errors_of_an_ask() -> None:
    async with ActorSystem() as system:
        counter = system.spawn(Counter)
        with pytest.raises(UnhandledMessageError, match="Schedule"):
            await counter.ask(Schedule("42"))
        with pytest.raises(MessageError, match=r"Add\.amount"):
            await counter.ask(Add("two"))  # type: ignore[arg-type]  # the wrong type is the test
        system.stop(counter)
        await system.runtime.stopped(counter)
        with pytest.raises(DeadActorError):
            await counter.ask(Add(1))
        silent = system.resolve("/user/nobody")
        with pytest.raises(DeadActorError):
            await silent.ask(Add(1))
        assert issubclass(AskTimeoutError, TimeoutError)


async def test_a_singleton() -> None:
    """Snippet 3 at level none: from any node, buffered while there is no host."""
    async with ActorSystem(port=0, found=True) as first:
        scheduler = first.cluster.singleton.start(type_name="job-scheduler", actor=JobScheduler)
        assert await scheduler.ask(Schedule("42")) == "queued 42"
        seed = first.cluster.self_id.address
        async with ActorSystem(port=0, seeds=[seed]) as second:
            from_there = second.cluster.singleton.start(
                type_name="job-scheduler", actor=JobScheduler
            )
            assert await from_there.ask(Schedule("43")) == "queued 43"
            await second.cluster.up(2)
            await first.leave()
            assert await from_there.ask(Schedule("44")) == "queued 44"
            rows = second.cluster.singletons_state()
            assert [row["state"] for row in rows] == ["running"]


async def test_a_proxy_reaches_a_singleton_that_its_node_never_hosts() -> None:
    """I-41, I-59: also started before there is a host; the message waits."""
    async with ActorSystem(port=0, found=True) as first:
        seed = first.cluster.self_id.address
        async with ActorSystem(port=0, seeds=[seed]) as second:
            counter = second.cluster.singleton.start_proxy(type_name="counter")
            await second.cluster.up(2)
            waiting = asyncio.ensure_future(counter.ask(Add(2)))
            await asyncio.sleep(0)
            first.cluster.singleton.start(type_name="counter", actor=Counter)
            assert await waiting == 2
            assert await counter.ask(Add(3)) == 5
            (row,) = second.cluster.singletons_state()
            assert (row["state"], row["host"]) == ("standby", seed)


def test_reminder_comes_after_an_hour() -> None:
    """Snippet 5: in virtual time, without a plugin."""
    with World(seed=1) as world:  # one node; World(seed=1, nodes="a b c") for a cluster
        probe = world.probe()
        reminder = world.spawn(Reminder, probe.ref)
        reminder.tell(RemindIn(3600.0))
        world.run_for(s=3599)
        assert probe.messages == []
        world.run_for(s=2)
        assert probe.messages == [Reminded()]
        assert world.run(reminder.ask(Pending())) == 0  # a coroutine, run in virtual time


def test_a_local_system_has_no_cluster() -> None:
    system = ActorSystem()
    with pytest.raises(SettingsError, match="port="):
        _ = system.cluster


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"port": 70_000}, "port=70000"),
        ({"seeds": ["a:1"]}, "without port"),
        ({"port": 0}, "found=True"),
        ({"colour": "red"}, "colour"),
        ({"prot": 1}, "port"),
        ({"name": "evil\nline"}, "printable"),
        ({"port": "25520"}, "port='25520'"),
        ({"port": 0, "seeds": "127.0.0.1:1"}, "seeds="),
        ({"port": 0, "found": True, "preset": "moon"}, "preset='moon'"),
        ({"hand_over_timeout_s": -1.0}, "hand_over_timeout_s=-1.0"),
        ({"ack_timeout_s": 9.0}, "ack_timeout_s=9.0"),
    ],
)
def test_a_wrong_setting_stops_the_construction(kwargs: dict[str, Any], words: str) -> None:
    """I-148, I-149: it names key, value and mend."""
    with pytest.raises(SettingsError) as caught:
        ActorSystem(**kwargs)
    assert words in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "::1"])
async def test_hosts_and_seeds_may_be_names_or_numbers_of_either_family(host: str) -> None:
    """A name is resolved once: two names of one address are one identity."""
    async with ActorSystem(host=host, port=0, found=True) as first:
        me = first.cluster.self_id
        plain = host.strip("[]")
        seed = f"[{plain}]:{me.port}" if ":" in plain else f"{plain}:{me.port}"
        async with ActorSystem(host=host, port=0, seeds=[seed]) as second:
            view = await second.cluster.up(2, timeout_s=5)
            assert not view.unreachable
            assert (await first.cluster.up(2, timeout_s=5)).by_id.keys() == view.by_id.keys()


async def test_a_seed_that_names_ourselves_otherwise_is_ourselves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with ActorSystem(host="127.0.0.1", port=port, seeds=[f"localhost:{port}"]) as system:
        await system.cluster.up(timeout_s=5)


@pytest.mark.parametrize("actor", [int, JobScheduler])
async def test_a_singleton_that_cannot_be_built_is_refused_where_it_is_started(
    actor: type[Any],
) -> None:
    async with ActorSystem(port=0, found=True) as system:
        with pytest.raises(TypeError, match="actor="):
            system.cluster.singleton.start(type_name="x", actor=actor, args=(1, 2, 3))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"type_name": 5},
        {"role": 5},
        {"role": ""},
        {"buffer_size": "a"},
        {"buffer_size": 1.5},
        {"buffer_size": 0},
        {"hand_over_timeout_s": "1"},
        {"hand_over_timeout_s": 0},
        {"restart_on_termination": "no"},
    ],
)
async def test_a_wrong_argument_of_a_singleton_is_named(kwargs: dict[str, Any]) -> None:
    async with ActorSystem(port=0, found=True) as system:
        start: Any = system.cluster.singleton.start
        with pytest.raises(SettingsError, match=next(iter(kwargs))):
            start(**{"type_name": "x", "actor": Counter, **kwargs})


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
async def test_an_ask_needs_a_timeout_in_seconds(timeout_s: float) -> None:
    async with ActorSystem() as system:
        with pytest.raises(ValueError, match="timeout_s"):
            await system.spawn(Counter).ask(Add(1), timeout_s=timeout_s)


def test_every_package_tells_type_checkers_that_it_is_typed() -> None:
    for package in (node, gossip, singleton, downing, lease, sharding):
        assert package.__file__ is not None
        assert Path(package.__file__).with_name("py.typed").exists()


async def test_a_singleton_whose_start_fails_says_so() -> None:
    async with ActorSystem(port=0, found=True) as system:
        await system.cluster.up()
        system.cluster.singleton.start(type_name="x", actor=Unstartable)
        failed = asyncio.Event()
        system.events.subscribe(ActorFailed, lambda event: failed.set())
        await asyncio.wait_for(failed.wait(), 5)
        (row,) = system.cluster.singletons_state()
        assert row["state"] == "starting"
        assert "it failed" in row["explain"]
        assert "no database" in row["explain"]


async def test_a_machine_that_breaks_its_promise_ends_the_node_as_a_bug() -> None:
    system = await ActorSystem.start(port=0, found=True)
    await system.cluster.up()
    system.daemon.feed(object())  # nothing reads this: our own mistake
    ended = await asyncio.wait_for(asyncio.ensure_future(system.terminated), 10)
    assert ended.exit_code == 70


async def test_leave_is_waited_for_by_all_who_call_it() -> None:
    system = await ActorSystem.start(port=0, found=True)
    await asyncio.gather(system.leave(), system.leave())
    ended = await system.terminated
    assert ended.exit_code == 0
