"""A fork after the start: every use in the child fails with a text that says what to do instead,
and the parent, whose sockets the child has inherited, notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import loop_name
from tests.style.sources import ROOT

SCRIPT = """
import asyncio, json, os, sys, warnings
from node import ActorSystem, TenureError
from tests.api.snippets import Add, Counter
from tests.conftest import LOOPS

warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: this process has threads


async def main():
    async with ActorSystem(port=0, found=True) as first:
        seed = first.cluster.self_id.address
        async with ActorSystem(port=0, seeds=[seed]) as second:
            await second.cluster.up(2, timeout_s=10)
            here = first.spawn(Counter, name="counter")
            far = second.resolve(f"{seed}/user/counter")
            assert await far.ask(Add(1)) == 1
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    os.write(writer, json.dumps(in_child(first, here, far)).encode())
                finally:
                    os._exit(0)
            os.close(writer)
            told = await asyncio.to_thread(os.read, reader, 65536)
            os.waitpid(pid, 0)
            for number in range(2, 100):
                assert await far.ask(Add(1)) == number
    print(json.dumps([json.loads(told), (await first.terminated).exit_code]))


def in_child(system, here, far):
    uses = {
        "tell": lambda: here.tell(Add(1)),
        "tell far": lambda: far.tell(Add(1)),
        "ask": lambda: step(here.ask(Add(1))),
        "ask far": lambda: step(far.ask(Add(1))),
        "send far": lambda: step(far.send(Add(1))),
        "spawn": lambda: system.spawn(Counter),
    }
    found = {}
    for name, use in uses.items():
        try:
            use()
            found[name] = "nothing was raised"
        except TenureError as error:
            found[name] = f"{type(error).__name__}: {error}"
        except BaseException as error:
            found[name] = f"unexpected {type(error).__name__}: {error}"
    return found


def step(coroutine):
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


with asyncio.Runner(loop_factory=LOOPS[sys.argv[1]]) as runner:
    runner.run(main())
"""


def test_a_forked_child_cannot_use_the_system_and_the_parent_goes_on() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, loop_name()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    told, exit_code = json.loads(result.stdout.splitlines()[-1])
    assert exit_code == 0
    assert len(told) == 6
    for use, text in told.items():
        assert text.startswith("WrongProcessError: "), (use, text)
        assert "forked" in text
        assert "spawn or forkserver" in text
    assert "Traceback" not in result.stderr
