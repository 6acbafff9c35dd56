"""The world itself: processes, faults, clocks, running, and its determinism."""

from __future__ import annotations

import asyncio
import functools

import pytest

from node.errors import AddressInUseError
from node.testkit.stage import SimNode, Stage
from node.testkit.timeline import Trace, WorldError
from tests.node.testkit.bare import Bare, run_script

SCENARIO = """
import random
from tests.node.testkit.bare import Bare

bare = Bare("a b c d e", seed={seed})
world = bare.world
names = {{name for name in "abcde"}}  # a set: its order differs with the hash seed
world.shape(loss=0.05, duplicate=0.05, reorder=True)

def chatter():
    node = world[world.rng.choice(sorted(names))]
    for peer in sorted(bare.ids):
        if node.running and not node.paused and peer != node.name:
            bare.send(node.name, peer, bytes([world.rng.randrange(256)]) * 20)

world.every(0.05, chatter)
world.after(3.0, world.partition, "a b | c d e")
world.after(6.0, world.heal_all)
world.after(7.0, world.crash, "b")
world.after(8.0, world.restart, "b")
world.after(9.0, lambda: world.pause("c", s=4.5))
world.run_for(s=30.0)
print(world.trace_hash(), world.network.frames_delivered)
"""


def _scenario(seed: int, hash_seed: str) -> str:
    return run_script(SCENARIO.format(seed=seed), hash_seed)


def test_one_seed_gives_one_trace_in_any_process() -> None:
    first = _scenario(1, "0")
    assert int(first.split()[1]) > 1000
    assert _scenario(1, "4242") == first
    assert _scenario(2, "0") != first


def test_the_trace_hash_does_not_depend_on_when_it_is_taken() -> None:
    often, once = Trace(keep=5), Trace(keep=500)
    for number in range(3000):
        for trace in (often, once):
            trace.note(number / 3, "a", "step", number)
        if number % 7 == 0:
            often.digest()
    assert often.digest() == once.digest()
    assert len(often.lines(100)) == 5
    assert len(once.lines(100)) == 100
    assert once.lines(1) == ["  999.666667  a    step       2999"]
    once.note(1000.0, "a", "step", 1)
    assert often.digest() != once.digest()


# -- nodes


def test_nodes_have_names_addresses_clocks_and_hosts_of_their_own() -> None:
    world = Bare("x y z").world
    assert [node.name for node in world] == ["x", "y", "z"]
    assert world["y"] is world[1] is world[world["y"]]
    assert [node.address for node in world] == [f"10.0.0.{n}:25520" for n in (1, 2, 3)]
    assert len({node.environment.host.boot_id for node in world}) == 3
    assert len({node.environment.host.net_ns for node in world}) == 1
    readings = [node.environment.clock() for node in world]
    assert readings == [pytest.approx(1000.0 * n + 0.1) for n in (1, 2, 3)]
    with pytest.raises(KeyError, match="it has x y z"):
        world["a"]
    for nodes in (0, "", "a a"):
        with pytest.raises(ValueError, match="each once"):
            Bare(nodes)
    assert [node.name for node in Bare(30).world][-1] == "n30"


def test_nodes_on_one_host_share_its_kernel_and_clock() -> None:
    world = Bare(3, one_host=True).world
    facts = [node.environment.host for node in world]
    assert [node.address for node in world] == [f"127.0.0.1:{25520 + n}" for n in range(3)]
    assert len({(fact.boot_id, fact.net_ns, fact.pid_ns) for fact in facts}) == 1
    assert len({fact.pid for fact in facts}) == 3
    assert len({node.environment.clock() for node in world}) == 1
    with pytest.raises(WorldError, match="all nodes share this one"):
        world.crash("a", silent=True)


def test_a_restart_is_a_new_process_at_the_same_address_with_the_same_memory() -> None:
    bare = Bare(2)
    world, node = bare.world, bare.world["b"]
    facts, uid, loop = node.environment.host, bare.ids["b"].uid, node.loop
    node.environment.state.save(("10.0.0.1:25520",))
    world.restart("b", after_s=1.0)
    assert world.running == [world["a"]]
    world.run_for(s=2.0)
    assert world.running == [world["a"], node]
    assert node.starts == 2
    assert node.environment.host.boot_id == facts.boot_id
    assert node.environment.host.pid != facts.pid
    assert bare.ids["b"].uid != uid
    assert node.loop is not loop
    assert node.environment.state.load() == ("10.0.0.1:25520",)
    world.crash("b", silent=True)
    world.restart("b")
    world.run_for(s=1.0)
    assert node.environment.host.boot_id != facts.boot_id, "a host that was gone has rebooted"


def test_absent_nodes_start_when_they_are_told_to() -> None:
    bare = Bare("a b c", absent="b c")
    world = bare.world
    assert world.running == [world["a"]]
    world.start("c")
    world.run_for(s=0.1)
    assert set(bare.ids) == {"a", "c"}
    with pytest.raises(WorldError, match="runs already"):
        world.start("c")
    with pytest.raises(WorldError, match="b does not run"):
        world.crash("b")


def test_a_start_that_fails_on_purpose_is_kept_and_a_bug_in_it_surfaces() -> None:
    async def refused(_node: SimNode) -> None:
        raise AddressInUseError("taken")

    with Stage(1, boot=refused) as world:
        world.run_for(s=1.0)
        assert str(world["a"].error) == "taken"
        assert not world["a"].running

    async def broken(_node: SimNode) -> None:
        raise ZeroDivisionError

    with Stage(1, boot=broken) as world, pytest.raises(ZeroDivisionError):
        world.run_for(s=1.0)


def test_exit_ends_a_process_from_outside() -> None:
    bare = Bare(2)
    bare.send("a", "b", b"x")
    bare.world.run_for(s=0.1)
    bare.world.exit("b")
    bare.world.run_for(s=0.1)
    assert not bare.world["b"].running
    assert [peer for peer, _, _ in bare.inboxes["a"].lost] == [bare.ids["b"]]


# -- the kernel's word


def test_the_kernel_tells_watchers_on_its_host_that_a_process_ended() -> None:
    bare = Bare(3, one_host=True)
    world = bare.world
    told: list[tuple[str, float]] = []
    facts = world["b"].environment.host

    def tell(name: str) -> None:
        told.append((name, world.now))

    for name in "ac":
        watch = world[name].environment.processes
        assert watch.watch(
            bare.ids["b"],
            facts.pid,
            facts.start_ticks,
            functools.partial(tell, name),
        )
    world["c"].environment.processes.unwatch(bare.ids["b"])
    world.pause("b", s=1.0)
    world.run_for(s=2.0)
    assert told == [], "a stopped process is not gone"
    world.crash("b")
    crashed_at = world.now
    world.run_for(s=1.0)
    assert told == [("a", crashed_at + 0.0001)]

    gone = world["a"].environment.processes
    world["a"].call(
        gone.watch,
        bare.ids["b"],
        facts.pid,
        facts.start_ticks,
        functools.partial(tell, "late"),
    )
    world.run_for(s=1.0)
    assert told[1][0] == "late"


def test_a_pid_used_again_is_another_process_and_closing_ends_all_watches() -> None:
    bare = Bare(2, one_host=True)
    world = bare.world
    told: list[str] = []
    facts = world["b"].environment.host
    watch = world["a"].environment.processes
    world["a"].call(
        watch.watch, bare.ids["b"], facts.pid, facts.start_ticks + 1, lambda: told.append("other")
    )
    world["a"].call(
        watch.watch, bare.ids["b"], facts.pid, facts.start_ticks, lambda: told.append("closed")
    )
    world.run_for(s=0.1)
    watch.close()
    world.crash("b")
    world.run_for(s=1.0)
    assert told == []

    world["a"].call(
        watch.watch, bare.ids["b"], facts.pid, facts.start_ticks + 1, lambda: told.append("other")
    )
    world.run_for(s=0.1)
    assert told == ["other"]


# -- running


def test_run_until_stops_at_the_step_that_made_it_true() -> None:
    world = Bare(2).world
    seen: list[int] = []
    world["a"].loop.call_later(5.0, seen.append, 1)
    began = world.now
    world.run_until(lambda: bool(seen), within_s=10.0)
    assert world.now - began == pytest.approx(5.0)


def test_run_until_fails_with_the_last_steps() -> None:
    bare = Bare(2)
    for number in range(60):
        bare.send("a", "b", bytes([number]))
        bare.world.run_for(s=0.1)

    def never() -> bool:
        return False

    with pytest.raises(WorldError, match=r"never did not hold within 7\.0 s") as caught:
        bare.world.run_until(never, within_s=7.0)
    lines = str(caught.value).splitlines()
    assert len(lines) == 41
    assert any("frame" in line and " a " in line for line in lines)


def test_run_returns_and_raises_what_the_coroutine_does() -> None:
    world = Bare(2).world

    async def sleep_and_tell() -> str:
        await asyncio.sleep(100.0)
        return world.here().name

    assert world.run(sleep_and_tell(), node="b") == "b"

    async def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        world.run(fail())
    with pytest.raises(WorldError, match=r"sleep_and_tell was not done within 5\.0 s"):
        world.run(sleep_and_tell(), within_s=5.0)
    world.close()


def test_a_pause_stops_one_node_and_its_timers_come_late() -> None:
    bare = Bare(2)
    world = bare.world
    bare.send("b", "a", b"0")
    world.run_for(s=0.1)
    fired: list[tuple[str, float]] = []
    began = world.now

    def fire(name: str) -> None:
        fired.append((name, round(world.now - began, 6)))

    for node in world:
        node.loop.call_later(1.0, fire, node.name)
    world.pause("a", s=3.0)
    assert world["a"].paused
    bare.send("b", "a", b"meanwhile")
    world.run_for(s=2.9)
    assert bare.inboxes["a"].control == [b"<0"]
    world.run_for(s=1.0)
    assert fired == [("b", 1.0), ("a", 3.0)]
    assert bare.inboxes["a"].control == [b"<0", b"<meanwhile"]
    assert not world["a"].paused


def test_clocks_jump_and_drift_by_host() -> None:
    world = Bare(2).world
    fired: list[float] = []
    began = world.now
    world["a"].loop.call_later(10.0, lambda: fired.append(world.now - began))
    world["b"].loop.call_later(10.0, lambda: fired.append(world.now - began))
    world.drift_clock("a", rate=2.0)
    world.run_for(s=1.0)
    world.jump_clock("b", s=7.0)
    world.run_for(s=10.0)
    assert fired == [pytest.approx(3.0), pytest.approx(5.0)]
    with pytest.raises(ValueError, match="never goes back"):
        world.jump_clock("a", s=-1.0)

    shared = Bare(2, one_host=True).world
    shared.jump_clock("a", s=50.0)
    assert len({node.environment.clock() for node in shared}) == 1


def test_a_wall_clock_goes_either_way_and_moves_no_timer() -> None:
    world = Bare(2).world
    clocks = [node.environment.wall_clock for node in world]
    before_s = clocks[0]()
    assert clocks[1]() == before_s
    world.jump_wall_clock("a", s=3600.0)
    assert [clock() - before_s for clock in clocks] == [3600.0, 0.0]
    world.jump_wall_clock("a", s=-7200.0)
    assert [clock() - before_s for clock in clocks] == [-3600.0, 0.0]
    world.restart("a")
    fired: list[float] = []
    began = world.now
    world["b"].loop.call_later(5.0, lambda: fired.append(world.now - began))
    world.jump_wall_clock("b", s=3600.0)
    world.run_for(s=10.0)
    assert world["a"].environment.wall_clock() == pytest.approx(before_s - 3590.0)
    assert fired == [pytest.approx(5.0)]


def test_cut_takes_both_ways_or_one_but_not_both() -> None:
    with pytest.raises(WorldError, match="not both"):
        Bare(2).world.cut("a", from_="b", to="b")


def test_closing_a_world_ends_what_waits_without_a_word() -> None:
    bare = Bare(2)
    log: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            log.append("ended")
            await asyncio.sleep(1.0)

    bare.world["a"].loop.create_task(waits())
    bare.world["b"].loop.create_task(waits())
    bare.world.run_for(s=1.0)
    bare.world["b"].loop.create_task(waits())
    bare.world.crash("b")
    bare.world.close()
    bare.world.close()
    assert log == ["ended", "ended"]
