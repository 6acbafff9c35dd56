"""A process of a peer, in the peer's own interpreter: its receiver, its driver, or both in one.

Decides how the module of a peer is run: under uvloop, and served over `session`. Knows nothing of
any peer. Standard library and uvloop only. `python -m bench.messaging.peer NAME PART [PORT]`,
called by `rounds`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import os
import socket
from time import perf_counter
from types import ModuleType

import uvloop

from bench.messaging.driver import Driver, Figures
from bench.messaging.session import facts, input_ends, resident_bytes, say, serve, serve_side

SPAWN_FOR_COUNT = 2000


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def receive(peer: ModuleType, port: int) -> None:
    """Host the receiver until the input ends."""
    async with peer.receive(port):
        say(ready=facts())
        await input_ends()


async def drive(peer: ModuleType, port: int) -> None:
    """Drive the receiver, row by row, until the input ends."""
    async with peer.drive(port) as side:
        await serve_side(side)


async def local(peer: ModuleType) -> None:
    """Both in one process; its row `spawn` makes actors until each was spawned."""
    async with peer.local() as (side, spawn):
        driver = Driver(side)

        async def perform(row: str, for_s: float) -> Figures:
            if row != "spawn":
                return await driver.run(row, for_s)
            gc.collect()
            before_bytes = resident_bytes()
            begun_at = perf_counter()
            kept = [await spawn(number) for number in range(SPAWN_FOR_COUNT)]
            elapsed_s = perf_counter() - begun_at
            gc.collect()
            each_bytes = (resident_bytes() - before_bytes) / len(kept)
            return {"n": len(kept), "per_s": len(kept) / elapsed_s, "bytes": each_bytes}

        await serve(perform)


def main() -> None:
    """Run a part of a peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("part", choices=["receive", "drive", "local"])
    parser.add_argument("port", type=int, nargs="?", default=0)
    arguments = parser.parse_args()
    peer = importlib.import_module(f"bench.messaging.peers.{arguments.name}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        match arguments.part:
            case "receive":
                runner.run(receive(peer, arguments.port))
            case "drive":
                runner.run(drive(peer, arguments.port))
            case "local":
                runner.run(local(peer))
    # Threads of a peer that never end must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
