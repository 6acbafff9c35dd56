"""How often a process of actors looks for reference cycles.

Decides two numbers for a process that belongs to its actors: the command line calls it, a service
that embeds an `ActorSystem` may. The library never does by itself: they hold for the whole process.
"""

from __future__ import annotations

import gc

YOUNG_MAX = 10_000
YOUNG_ROUNDS = 20
OLD_ROUNDS = 20


def tune_gc() -> None:
    """Take what start-up made out of the search, and begin one every 10,000 new containers.

    CPython searches every 700, which costs a node that reads hundreds of messages from each frame
    up to a quarter of its time; the cells of a hundred thousand actors are searched again and
    again. Call it once, when the application is loaded. Cycles are still found, only later.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, OLD_ROUNDS)
