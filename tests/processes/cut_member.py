"""A member of the one-way-cut test: its application, and how it runs behind proxies.

The application writes what `/cluster` shows to `<member>.state`. `python -m
tests.processes.cut_member LOOP PORT DATA_PORT SEED_PORT WAYS` is a member whose every dial to a
port in WAYS goes to the proxy there: nothing else of it differs from `python -m node`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from node import ActorSystem, addresses, zmq_links
from node.logs import configure_logging
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


def _go_by(ways: dict[int, str], kind: type[Any]) -> asyncio.AbstractEventLoop:
    """A loop whose bare dials go by these ways; those of ZeroMQ do, too, from now on."""

    def endpoint(number: str, port: int) -> str:
        return addresses.endpoint(ways.get(port, number), port)

    class Loop(kind):  # type: ignore[misc]
        async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
            number, port = address
            await super().sock_connect(sock, (ways.get(port, number), port))

    vars(zmq_links)["endpoint"] = endpoint
    loop: asyncio.AbstractEventLoop = Loop()
    return loop


async def _member(port: int, data_port: int, seed_port: int) -> None:
    seeds = [f"127.0.0.1:{seed_port}"]
    system = ActorSystem(port=port, data_port=data_port, seeds=seeds)
    await system.open(before_join=lambda: setup(system))
    await system.terminated


if __name__ == "__main__":
    configure_logging("text", "info")
    name, own_port, own_data_port, seed, to = sys.argv[1:6]
    by_port = {int(port): number for port, number in json.loads(to).items()}
    with asyncio.Runner(loop_factory=lambda: _go_by(by_port, type(LOOPS[name]()))) as runner:
        runner.run(_member(int(own_port), int(own_data_port), int(seed)))
