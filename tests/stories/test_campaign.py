"""Random joins, crashes, leaves and cuts, many seeds; then calm, and one view is demanded.

Checked at every step: two instances only while the views differ. Checked in the end: one view, one
host. `make test` runs 100 seeds, `make test-long` 2,000.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from node.testkit import WorldError, check_one_view
from node.testkit.network import UNACKED_S
from tests.conftest import HowMany
from tests.stories.subject import Entry, Story

NAMES = "abcde"
PARTS = 4
FAULTS = (
    "crash", "silent crash", "restart", "leave", "pause", "cut", "one-way cut", "start", "lossy",
    "drift",
)  # fmt: skip


class Campaign(Story):
    """One seeded run; `did` counts what happened in it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"campaign {seed}")
        self.did: Counter[str] = Counter()
        self.told = 0
        self.calm_since: float | None = None
        self.together = self.dice.random() < 0.5
        super().__init__(
            seed,
            nodes=" ".join(NAMES),
            seeds="a b c",
            one_host=self.together,
            into_cut=self.dice.choice(["held", "lost"]),
            start_spread_s=self.dice.choice([0.0, 0.3, 2.0]),
        )

    def tell_something(self) -> None:
        """One more entry, told on some node that runs."""
        if self.calm_since is not None:
            return
        ready = [node for node in self.running if not node.paused and node.view is not None]
        if ready:
            node = self.dice.choice(ready)
            self.told += 1
            node.call(self.refs[node.name].tell, Entry(self.told))

    def faults(self) -> None:
        """Six faults, a moment apart, while messages are told."""
        self.every(0.2, self.tell_something)
        for _ in range(6):
            self.run_for(s=self.dice.choice([0.01, 0.3, 1.0, 4.0, 12.0]))
            self.fault(self.dice.choice(FAULTS), self.dice.choice(NAMES))

    def fault(self, kind: str, name: str) -> None:
        """Do one thing to one node, if it can be done."""
        node = self[name]
        if kind == "start":
            gone = [other for other in self.nodes if not other.running and not other.is_due]
            if gone:
                self.did[kind] += 1
                self.start(self.dice.choice(gone))
            return
        if not node.running or node.paused or node.built is None:
            return
        others_run = len(self.running) > 2
        match kind:
            case "crash" if others_run:
                self.crash(name)
            case "silent crash" if others_run and not self.together:
                self.crash(name, silent=True)
            case "restart":
                self.restart(name)
            case "leave" if others_run:
                system = node.system
                node.call(lambda: node.loop.create_task(system.leave()))
            case "pause":
                self.pause(name, s=self.dice.choice([0.3, 1.0, 5.0]))
            case "cut":
                self.cut(name)
                self.after(self.dice.choice([0.5, 3.0, 20.0]), self.heal, name)
            case "one-way cut":
                others = [other.name for other in self.nodes if other.name != name]
                if self.dice.random() < 0.5:
                    self.cut(name, to=others)
                else:
                    self.cut(others, to=name)
                self.after(self.dice.choice([0.5, 3.0, 20.0]), self.heal, name)
            case "lossy":
                self.shape(name, loss=0.2, duplicate=0.1, reorder=self.dice.random() < 0.5)
            case "drift":
                self.drift_clock(name, rate=self.dice.choice([0.99, 1.01]))
            case _:
                return
        self.did[kind] += 1

    def calm(self) -> None:
        """Faults end, every seat is taken again, and time passes."""
        self.run_for(s=25)
        self.heal_all()
        self.shape(loss=0.0, duplicate=0.0, reorder=False)
        for name in NAMES:
            if not self[name].running and not self[name].is_due:
                self.start(name)
        self.until_all_up(within_s=60)
        self.until_hosted(within_s=30)
        self.run_for(s=UNACKED_S + 1)  # connections that lost something have ended by then
        self.calm_since = self.now
        self.run_for(s=1)
        check_one_view(self)
        assert len(self.hosts) == 1
        self.check_messages()

    def check_messages(self) -> None:
        """At most once, whatever happened; and now that all is calm, every ask is answered."""
        if not self.did["lossy"]:  # TCP never repeats a frame; a lossy path here may
            often = {number: n for number, n in Counter(self.taken).items() if n > 1}
            assert not often, f"handled more than once: {often}"
        for node in self.running:
            assert not node.system.counters()["effects-failed"]
            ref = self.refs[node.name]
            answers = [self.run(ref.ask(Entry(-1)), node=node.name) for _ in range(3)]
            assert answers == list(range(answers[0], answers[0] + 3))


def run_seed(seed: int) -> Counter[str]:
    """One run; raises with the seed in the text when a checker finds something."""
    with Campaign(seed) as world:
        world.faults()
        world.calm()
        return world.did


@pytest.mark.parametrize("part", range(PARTS))
def test_campaign(part: int, how_many: HowMany) -> None:
    """A part of the seeds, so that all cores can work."""
    did: Counter[str] = Counter()
    for seed in range(part, how_many(short=100, long=2_000), PARTS):
        try:
            did.update(run_seed(seed).keys())
        except (WorldError, AssertionError) as error:
            pytest.fail(f"seed {seed}: {error}")
    # Each kind of fault must really have happened, or the runs show less than they say.
    assert set(did) == set(FAULTS), did
