# mypy: disable-error-code="import-not-found, import-untyped"
"""A member of kinship as a process: `python -m bench.gossip.peers.kinship PRESET PORT SEED`.

Runs in the peer's own interpreter and writes the same facts as our members do. A member's name is
its port, so that facts name addresses. SIGTERM leaves in order, SIGUSR1 blocks the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import kinship
import uvloop

from bench.gossip.peers.facts import BLOCK_S, Facts, told_to_go

LEAVE_TIMEOUT_S = 5.0

_EVENTS: dict[type, str] = {
    kinship.MemberJoined: "up",
    kinship.MemberSuspect: "suspect",
    kinship.MemberRecovered: "recovered",
    kinship.MemberDead: "down",
    kinship.MemberLeft: "removed",
}


def _process(member: Any) -> str:
    return f"127.0.0.1:{member.name.removeprefix('m')}#{member.epoch}"


async def member(preset: str, port: str, seed: str) -> None:
    """One member, until it is told to leave."""
    facts = Facts(f"127.0.0.1:{port}")
    loop = asyncio.get_running_loop()
    leave = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, leave.set)
    for_s = float(os.environ.get(BLOCK_S, "3"))
    loop.add_signal_handler(signal.SIGUSR1, time.sleep, for_s)
    # Nothing is encrypted on either side; preset lan asks for that to be said.
    more = {} if preset == "local" else {"insecure_plaintext": True}
    config = getattr(kinship.Config, preset)(
        name=f"m{port}", bind=f"127.0.0.1:{port}", seeds=[f"127.0.0.1:{seed}"], **more
    )
    cluster = kinship.Cluster(config)
    facts.write("ready")
    await told_to_go()
    facts.write("go")
    await cluster.start()
    events = cluster.events()

    async def observe() -> None:
        facts.write_all("up", [_process(one) for one in cluster.members()])
        facts.write("size", "-", len(cluster.members()))
        async for event in events:
            kind = _EVENTS.get(type(event))
            if kind is not None:
                facts.write(kind, _process(event.member), "left" if kind == "removed" else "-")
                facts.write("size", "-", len(cluster.members()))

    observing = loop.create_task(observe())
    await leave.wait()
    await cluster.leave(timeout=LEAVE_TIMEOUT_S)
    await cluster.close()
    observing.cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(member(*sys.argv[1:4]))
