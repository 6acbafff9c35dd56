"""Other frameworks beside ours: a kill of the process that has an actor.

Decides which adapter of `bench/peers` is run, and in which environment; what it measures is its
own. Called by `bench.failover.command` for `--peers`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench import report
from bench.messaging.environments import CACHE, PEERS, NotAvailableError, interpreter_of
from bench.report import Row

ADAPTERS = {"casty": Path(__file__).parents[1] / "peers" / "casty_kill.py"}
ROUND_S = 100.0


def measure(peer: str, rounds: int) -> Row:
    """Its row. Raises `NotAvailableError` where it cannot be had."""
    python = interpreter_of(PEERS[peer], CACHE)
    failures = []
    gaps: list[float] = []
    try:
        done = subprocess.run(
            [str(python), str(ADAPTERS[peer]), str(rounds)],
            capture_output=True,
            text=True,
            timeout=ROUND_S * rounds,
            check=True,
        )
        gaps = [float(gap) for gap in json.loads(done.stdout)]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        failures.append(f"{peer}: {error}")
    return report.row(
        "unavailable_s",
        "s",
        gaps,
        expected=rounds,
        note=f"crash at level {peer}, a peer; all its defaults; SIGKILL to the next answer",
        failures=failures,
    )


__all__ = ["ADAPTERS", "NotAvailableError", "measure"]
