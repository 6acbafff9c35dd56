"""Settings of CPython and of the C library for a process that belongs to its actors.

Decides four numbers. The command line calls it, a service that embeds an `ActorSystem` may. The
library never does so by itself: they hold for the whole process.
"""

from __future__ import annotations

import gc
import sys

YOUNG_MAX = 10_000
YOUNG_ROUNDS = 20
OLD_ROUNDS = 20
KEPT_BYTES_MAX = 64 * 1024 * 1024
MAPPED_BYTES_MIN = 16 * 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def tune_process() -> None:
    """Look for reference cycles less often, and keep freed memory for the next message.

    CPython looks for cycles every 700 new containers, which costs a node that reads hundreds of
    messages from each frame up to a quarter of its time, and more with each of its actors. From
    here on it does so every 10,000, and not among what start-up made. Cycles are still found.

    The C library gives back each freed block of 128 KiB or more, and takes it anew, page by page,
    for the next large message: a third of the time of 1 MiB messages. From here on it keeps up to
    64 MiB of what was freed. (glibc only; elsewhere nothing is changed.)

    Call it once, when the application is loaded.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, OLD_ROUNDS)
    if sys.platform == "linux":
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # musl has none
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
            mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
