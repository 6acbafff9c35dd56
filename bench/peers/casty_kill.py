# mypy: disable-error-code="import-not-found, misc, untyped-decorator, no-untyped-def"
"""casty: three nodes with all defaults; the one that has an actor is killed.

Its actors are found by key, and replicated; a key is the nearest thing it has to a singleton. Asked
every 20 ms by a node that lives.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from casty import ActorSystem, Askable, Cluster, Context, actor

JOIN_S, FAILOVER_S, ASK_S, PAUSE_S = 30.0, 60.0, 0.25, 0.02
KEYS_MAX = 500


@dataclass(frozen=True)
class Where(Askable[str]):
    """In which process are you?"""

    unused: int = 0


@actor(initial=0)
async def keyed(ctx: Context[int, Where]) -> None:
    """Answers with its process."""
    async for message in ctx.inbox:
        message.reply_to.tell(str(os.getpid()))


async def node(port: int, seed: str) -> None:
    """A member until it is killed."""
    async with ActorSystem(cluster=Cluster(bind=f"127.0.0.1:{port}", seeds=(seed,))):
        await asyncio.sleep(3600)


async def one_round() -> float:
    """A cluster of three; the gap of one kill."""
    ports = free_ports(3)
    seed = f"127.0.0.1:{ports[0]}"
    others: list[subprocess.Popen[bytes]] = []
    async with asyncio.timeout(JOIN_S + FAILOVER_S):
        system = ActorSystem(cluster=Cluster(bind=seed))
        await system.__aenter__()
        try:
            others = [
                subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here yet
                    [sys.executable, __file__, "node", str(port), seed],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for port in ports[1:]
            ]
            while sum(member.status == "alive" for member in system.members) < 3:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
            for number in range(KEYS_MAX):
                ref = system.ref(keyed, f"key-{number}")
                if await ref.ask(Where()) == str(others[0].pid):
                    break
            else:
                raise RuntimeError("no key belongs to the process that is to be killed")
            await asyncio.sleep(1.0)
            killed_s = time.perf_counter()
            os.kill(others[0].pid, signal.SIGKILL)
            while True:
                try:
                    async with asyncio.timeout(ASK_S):
                        await ref.ask(Where())
                    return time.perf_counter() - killed_s
                except Exception:  # noqa: BLE001 - whatever says that it is not there yet
                    await asyncio.sleep(PAUSE_S)
        finally:
            for other in others:
                other.kill()
                other.wait()


def free_ports(count: int) -> list[int]:
    """So many that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


if __name__ == "__main__":
    if sys.argv[1] == "node":
        asyncio.run(node(int(sys.argv[2]), sys.argv[3]))
    elif sys.argv[1] == "round":
        print(json.dumps(asyncio.run(one_round())), flush=True)
        os._exit(0)
    else:
        gaps = []
        for _ in range(int(sys.argv[1])):
            done = subprocess.run(
                [sys.executable, __file__, "round"], capture_output=True, text=True, check=True
            )
            gaps.append(json.loads(done.stdout))
        print(json.dumps(gaps))
