"""Members of a bench end with it, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.gossip.peers.facts import FACTS, ORPHANS_END_AFTER_S

MEMBER = """
import asyncio
from bench.gossip.peers.facts import Facts

async def main() -> None:
    Facts("a").write("ready")
    await asyncio.sleep(60)

asyncio.run(main())
"""
BENCH = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
sys.stdin.read()
"""
WAIT_S = 20.0


def test_a_member_whose_bench_was_killed_ends(tmp_path: Path) -> None:
    """SIGKILL leaves the bench no time to stop its members."""
    file = tmp_path / "facts"
    with subprocess.Popen(
        [sys.executable, "-c", BENCH, MEMBER],
        env={**os.environ, FACTS: str(file)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stdout is not None
        member = int(bench.stdout.readline())
        try:
            until(lambda: file.exists() and "ready" in file.read_text())
            bench.send_signal(signal.SIGKILL)
            bench.wait()
            began = time.monotonic()
            until(lambda: not runs(member))
            assert time.monotonic() - began < 2 * ORPHANS_END_AFTER_S + 2.0
        finally:
            if runs(member):
                os.kill(member, signal.SIGKILL)


def runs(pid: int) -> bool:
    """True while the process exists and is no zombie of somebody else."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(fact: Callable[[], object]) -> None:
    """Wait for a fact, at most `WAIT_S`."""
    end = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.02)
