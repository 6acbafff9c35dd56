"""The clock that all processes of a host share, and how two of them know that they share it.

Decides nothing. Read by `lease.sqlite`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

# macOS has no clock that counts sleep as well as Linux's; its monotonic one is the nearest.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

boot_time_s: Callable[[], float] = functools.partial(time.clock_gettime, _CLOCK)


def clock_identity() -> str:
    """Boot and time namespace: equal texts mean that `boot_time_s` tells the same instants.

    Empty where that cannot be known (macOS, a hidden /proc); an empty one equals none.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        time_ns = Path("/proc/self/ns/time")
        inode = time_ns.stat().st_ino if time_ns.exists() else 0
    except (OSError, UnicodeError):
        return ""
    return f"{boot_id}/{inode}" if boot_id else ""
