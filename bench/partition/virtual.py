"""What contact costs where real processes are too many for one machine: counted in virtual time.

Decides nothing of its own: the same code as in the members, on the testkit's network. For 3, 10 and
30 members it counts what real processes do, within a tenth. Called by `bench.partition.command`.
"""

from __future__ import annotations

from node import Actor, ActorSystem, Settings
from node.testkit import World

JOIN_WITHIN_S = 120.0
SETTLING_S = 8.0
COUNTED_S = 5.0


class Idle(Actor):
    """What must be unique, and does nothing."""


def frames_per_s(members: int, downing: str, preset: str) -> float:
    """Control frames that each of them sends per second while each hosts a singleton of its own."""

    def setup(system: ActorSystem) -> None:
        name = system.cluster.self_id.address.replace(":", "-")
        system.cluster.singleton.start(type_name=f"idle-{name}", actor=Idle)

    settings = Settings(downing=downing, preset=preset)
    with World(1, nodes=members, setup=setup, settings=settings) as world:
        world.until_all_up(within_s=JOIN_WITHIN_S)
        world.run_for(s=SETTLING_S)
        before = world.network.frames_sent
        world.run_for(s=COUNTED_S)
        return (world.network.frames_sent - before) / COUNTED_S / members
