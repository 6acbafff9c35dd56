"""After a pause what waited in the sockets is read before any timer of the machines acts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

import pytest

from gossip.effects import Paused
from gossip.events import PeerFrame
from node import ActorSystem
from node.daemon import DRAIN_S
from node.testkit import World
from tests.conftest import HowMany, loop_name

SLEPT = "this process did not run for a while"

SLEEPER = """
import asyncio, json, sys
from gossip.effects import Paused
from node import ActorSystem
from tests.conftest import LOOPS

async def main(seed):
    async with ActorSystem(port=0, seeds=(seed,)) as system:
        record = system._core.record
        while not system.ready()[0]:
            await asyncio.sleep(0.01)
        print("up", flush=True)
        while not any(isinstance(event, Paused) for _, event, _ in record):
            await asyncio.sleep(0.01)
        steps, ticks = [], 0
        while ticks < 3:  # a second pause would be told by then
            await asyncio.sleep(0.01)
            steps = [(at, type(event).__name__) for at, event, _ in record]
            names = [name for _, name in steps]
            steps = steps[names.index("Paused"):]
            ticks = sum(name == "NoneType" for _, name in steps)
        print(json.dumps(steps), flush=True)

with asyncio.Runner(loop_factory=LOOPS[sys.argv[2]]) as runner:
    runner.run(main(sys.argv[1]))
"""


def check(steps: list[tuple[float, str]]) -> None:
    """The order that is promised; `steps` begins with the pause."""
    woken_at, first = steps[0]
    names = [name for _, name in steps]
    assert first == "Paused"
    assert names.count("Paused") == 1
    tick = names.index("NoneType")  # a tick is a step without an event
    assert PeerFrame.__name__ in names[:tick], "nothing was read before the timers acted"
    assert steps[tick][0] >= woken_at + DRAIN_S - 0.001


@pytest.mark.parametrize("pause_s", [1.0, 5.0, 60.0])
def test_in_a_simulated_world(pause_s: float, caplog: pytest.LogCaptureFixture) -> None:
    with World(seed=5, nodes=4) as world, caplog.at_level(logging.WARNING):
        world.until_all_up()
        world.run_for(s=10.0)  # who has just started probes more slowly
        caplog.clear()
        world.pause("c", s=pause_s)
        world.run_for(s=pause_s + 2.0)
        core, daemon = world.system("c")._core, world.system("c")._daemon
        assert core is not None
        assert daemon is not None
        record = list(core.record)
        started = next(i for i, (_, event, _) in enumerate(record) if isinstance(event, Paused))
        check([(at, type(event).__name__) for at, event, _ in record[started:]])
        assert [entry.message for entry in caplog.records].count(SLEPT) == 1
        assert daemon.counters["pauses"] == 1


async def test_in_a_stopped_process(how_many: HowMany) -> None:
    """SIGSTOP: the kernel takes frames for it, and libzmq's threads sleep as well."""
    seconds = how_many(short=2, long=5)
    async with ActorSystem(port=0, found=True) as seed, asyncio.timeout(30.0 + seconds):
        me = seed.cluster.self_id
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", SLEEPER, me.address, loop_name()),
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        try:
            assert (await child.stdout.readline()).strip() == b"up"
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            os.kill(child.pid, signal.SIGCONT)
            line = await child.stdout.readline()
            check([(at, name) for at, name in json.loads(line)])
            await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
