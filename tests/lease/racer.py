"""A process of its own with a lease in an SQLite file; run by `test_sqlite`.

`race FILE NUMBER ROUNDS`: acquires until all rounds are won by somebody, and prints what it won;
the round is told by a counter that only the holder touches. `hold FILE STEPS`: acquires, and notes
each step that it takes under the lease until it lost it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from pathlib import Path

from lease import LeaseKeeper, LeaseSettings, SqliteStore
from lease.events import LeaseLost
from lease.host_clock import boot_time_s
from lease.machine import State

TTL_S = 1.2


def keeper(store: SqliteStore, owner: str, told: list[object], ttl_s: float) -> LeaseKeeper:
    return LeaseKeeper(
        store,
        LeaseSettings(name="ledger", owner=owner, ttl_s=ttl_s),
        nonce=secrets.token_hex(8),
        loop=asyncio.get_running_loop(),
        clock=boot_time_s,
        wall_clock=time.time,
        told=told.append,
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def race(file: Path, number: int, rounds: int) -> None:
    store = SqliteStore(file)
    mine = keeper(store, f"p{number}", [], 15.0)
    counter = file.with_suffix(".round")
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while True:
        mine.want()
        while mine.state is not State.HELD:
            await asyncio.sleep(0.001)
        assert mine.check_alive()
        done = int(counter.read_text()) if counter.exists() else 0
        if done < rounds:
            counter.write_text(str(done + 1))
            say(json.dumps({"round": done, "token": mine.token}))
        await mine.release()
        if done >= rounds:
            break
        await asyncio.sleep(0.01)
    await mine.close()
    await store.close()


async def hold(file: Path, steps: Path) -> None:
    store = SqliteStore(file)
    told: list[object] = []
    mine = keeper(store, "holder", told, TTL_S)
    assert await mine.acquire()
    with steps.open("w") as notes:
        said = False
        while not any(isinstance(fact, LeaseLost) for fact in told):
            if mine.check_alive():
                notes.write(f"{boot_time_s()}\n")
                notes.flush()
            if not said:
                say("held")
                said = True
            await asyncio.sleep(0.002)
    (lost,) = (fact for fact in told if isinstance(fact, LeaseLost))
    say(f"lost: {lost.why}")
    await mine.close()
    await store.close()


if __name__ == "__main__":
    if sys.argv[1] == "race":
        asyncio.run(race(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    else:
        asyncio.run(hold(Path(sys.argv[2]), Path(sys.argv[3])))
