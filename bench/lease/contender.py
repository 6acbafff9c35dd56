"""A process that contends for a lease, as the bench tells it on standard input.

`python -m bench.lease.contender URL NAME OWNER TTL_S FILE`. Words on standard input: `want`,
`release`, `watch`, `end`. Each fact is a JSON line on standard output, with CLOCK_BOOTTIME.
While it holds the lease it handles messages of a queue, one each millisecond, each asked of the
lease before; what it handled is in FILE, one CLOCK_BOOTTIME per message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from pathlib import Path

from lease import LeaseKeeper, LeaseSettings, from_url
from lease.events import LeaseGranted, LeaseLost, LeaseReleased, LeaseRenewed
from lease.host_clock import boot_time_s

MESSAGE_EVERY_S = 0.001


def say(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"at_s": boot_time_s(), "event": event, **fields}) + "\n")
    sys.stdout.flush()


async def main(url: str, name: str, owner: str, ttl_s: float, file: Path) -> None:
    store = from_url(url)

    def told(fact: object) -> None:
        match fact:
            case LeaseGranted():
                say("granted", token=fact.token, valid_until=fact.valid_until)
            case LeaseRenewed():
                say("renewed", token=fact.token, valid_until=fact.valid_until)
            case LeaseLost():
                say("lost", why=fact.why)
            case LeaseReleased():
                say("released", confirmed=fact.confirmed)

    keeper = LeaseKeeper(
        store,
        LeaseSettings(name=name, owner=owner, ttl_s=ttl_s),
        nonce=secrets.token_hex(8),
        loop=asyncio.get_running_loop(),
        clock=boot_time_s,
        wall_clock=time.time,
        told=told,
    )
    handling = asyncio.create_task(handle(keeper, file))
    say("ready")
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), sys.stdin
    )
    while True:
        match (await words.readline()).decode().strip():
            case "want":
                keeper.want()
            case "release":
                keeper.unwant()
            case "watch":
                keeper.watch()
            case _:
                break
    handling.cancel()
    await keeper.close()
    await store.close()


async def handle(keeper: LeaseKeeper, file: Path) -> None:
    with file.open("w") as handled:
        while True:
            if keeper.check_alive():
                handled.write(f"{boot_time_s()}\n")
                handled.flush()
            await asyncio.sleep(MESSAGE_EVERY_S)


if __name__ == "__main__":
    _, url, name, owner, ttl_s, file = sys.argv
    asyncio.run(main(url, name, owner, float(ttl_s), Path(file)))
