"""A cluster in virtual time, for tests: of this project, and of yours.

    def test_reminder_comes_after_an_hour() -> None:
        with World(seed=1) as world:
            probe = world.probe()
            reminder = world.spawn(Reminder, probe.ref)
            reminder.tell(RemindIn(3600.0))
            world.run_for(s=3599)
            assert probe.messages == []
            world.run_for(s=2)
            assert probe.messages == [Reminded()]
            assert world.run(reminder.ask(Pending())) == 0

A test is a plain `def`, needs no plugin and no waiting: an hour takes as long as what happens in
it. The actors, their runtime and the cluster are the production ones; only loop, network, clock
and randomness are handed in. The same seed gives the same run, in any process. docs/testing.md
tells the whole story.

What a simulated node lacks is refused in words: threads, sockets, subprocesses. Iterating a set of
tasks or futures (`asyncio.wait` returns some) goes by memory address: sort before acting on it.
"""

from node.testkit.checkers import (
    CheckFailedError,
    StepLog,
    TwoOnlyWhileViewsDiffer,
    acting_max,
    check_one_view,
    overlaps,
)
from node.testkit.probe import Probe
from node.testkit.stage import SimNode, Stage
from node.testkit.subject import Subject
from node.testkit.timeline import LivelockError, WorldError
from node.testkit.world import World

__all__ = [
    "CheckFailedError",
    "LivelockError",
    "Probe",
    "SimNode",
    "Stage",
    "StepLog",
    "Subject",
    "TwoOnlyWhileViewsDiffer",
    "World",
    "WorldError",
    "acting_max",
    "check_one_view",
    "overlaps",
]
