"""A member of the one-way-cut test: its application, and how it runs where names go by proxies.

The application writes what `/cluster` shows to `<member>.state`. `python -m
tests.processes.cut_member LOOP NAME PORT DATA_PORT SEED NAMES` is a member that is known by a
name, on an event loop that looks names up in NAMES: each process has its own way to each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from node import ActorSystem
from node.logs import configure_logging
from node.zmq_environment import real_environment
from tests.conftest import LOOPS

STATE_EVERY_S = 0.05
_tasks: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly only


def setup(system: ActorSystem) -> None:
    """Write the state from now on, whole at each moment."""
    _tasks.append(asyncio.create_task(_write_states(system)))


async def _write_states(system: ActorSystem) -> None:
    path = Path(os.environ["DIRECTORY"]) / f"{os.environ['MEMBER']}.state"
    part = path.with_suffix(".part")
    while True:
        part.write_text(json.dumps(system.cluster.state()))
        part.rename(path)
        await asyncio.sleep(STATE_EVERY_S)


def _loop_with(kind: type[Any], names: dict[str, str]) -> asyncio.AbstractEventLoop:
    """A loop of this kind that knows these names; all others are numbers."""

    class Loop(kind):  # type: ignore[misc]
        async def getaddrinfo(self, host: str, port: object, **more: object) -> list[Any]:
            number = names.get(host, host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port or 0))]

    loop: asyncio.AbstractEventLoop = Loop()
    return loop


async def _member(name: str, port: int, data_port: int, seed: str) -> None:
    environment = real_environment(
        loop=asyncio.get_running_loop(), host=name, port=port, data_port=data_port
    )
    system = ActorSystem(
        port=port,
        seeds=[seed] if seed != "-" else [],
        found=seed == "-",
        environment=environment,
    )
    await system.open(before_join=lambda: setup(system))
    await system.terminated


if __name__ == "__main__":
    configure_logging("text", os.environ.get("LEVEL","info"))
    loop_name, name, port, data_port, seed, names = sys.argv[1:7]
    kind = type(LOOPS[loop_name]())
    with asyncio.Runner(loop_factory=lambda: _loop_with(kind, json.loads(names))) as runner:
        runner.run(_member(name, int(port), int(data_port), seed))
