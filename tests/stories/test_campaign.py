"""Random faults of all kinds, many seeds; then all heals, and one view is demanded.

Checked at every step: two instances only while the views differ. Checked in the end: one view
within 30 s of the healing, one host, hardly a frame, and that no member that ran on was ever taken
out by anybody, whatever cut, pause or loss it went through: at level none nothing but a proof does.
`make test` runs 100 seeds, `make test-long` 2,000.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from gossip.membership import MembershipView, Status
from node.errors import TenureError
from node.testkit import WorldError, check_one_view
from node.testkit.network import UNACKED_S
from tests.conftest import HowMany
from tests.stories.subject import Entry, Story
from tests.stories.witness import Witness

NAMES = "abcde"
PARTS = 8
HEALED_WITHIN_S = 30.0
HOUR_S = 3600.0
LOSSY_GRACE_S = 8.0
CALM_FRAMES_PER_S_MAX = 40  # per member
FAULTS = (
    "crash", "silent crash", "restart", "mass restart", "start", "leave", "pause",
    "cut", "one-way cut", "pair cut", "one-way pair cut", "flapping link", "flapping member",
    "lossy", "drift", "clock jump", "wall clock jump",
)  # fmt: skip


class Campaign(Story):
    """One seeded run; `did` counts what happened in it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"campaign {seed}")
        self.did: Counter[str] = Counter()
        self.told = 0
        self.calm_since: float | None = None
        self.healed = False
        self.together = self.dice.random() < 0.5
        super().__init__(
            seed,
            nodes=" ".join(NAMES),
            seeds="a b c",
            one_host=self.together,
            into_cut=self.dice.choice(["held", "lost"]),
            start_spread_s=self.dice.choice([0.0, 0.3, 2.0]),
        )
        self.witness = Witness(self)

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
        """Eight faults, a moment apart, while messages are told."""
        self.every(0.2, self.tell_something)
        for _ in range(8):
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
        if "cut" in kind or "flapping" in kind:
            self.part(kind, name)
        elif "clock" in kind or kind == "drift":
            self.confuse(kind, name)
        elif not self.end(kind, name):
            return
        self.did[kind] += 1

    def end(self, kind: str, name: str) -> bool:
        """A fault of the process itself; False when it cannot be done now."""
        node, others_run = self[name], len(self.running) > 2
        match kind:
            case "crash" if others_run:
                self.crash(name)
            case "silent crash" if others_run and not self.together:
                self.crash(name, silent=True)
            case "restart":
                self.restart(name)
            case "mass restart":
                others = [other.name for other in self.running if other.name != name]
                names = [name, *self.dice.sample(others, len(others) // 2)]
                if not any(is_up(self[other].view) for other in others if other not in names):
                    self.witness.all_up_restart()
                self.restart(names)
            case "leave" if others_run:
                self.witness.leaves(name)
                node.call(lambda system=node.system: node.loop.create_task(system.leave()))
            case "pause":
                self.pause(name, s=self.dice.choice([0.3, 1.0, 5.0, 15.0]))
            case "lossy":
                loss = self.dice.choice([0.1, 0.25])
                # The younger host asks once a second, and each way one of four is lost.
                self.checker.grace_s = LOSSY_GRACE_S
                self.shape(name, loss=loss, duplicate=0.1, reorder=self.dice.random() < 0.5)
            case _:
                return False
        return True

    def confuse(self, kind: str, name: str) -> None:
        """A fault of the host's clocks."""
        match kind:
            case "drift":
                self.drift_clock(name, rate=self.dice.choice([0.99, 1.01]))
            case "clock jump":
                self.jump_clock(name, s=HOUR_S)
            case _:
                self.jump_wall_clock(name, s=self.dice.choice([-HOUR_S, HOUR_S]))

    def part(self, kind: str, name: str) -> None:
        """A fault of the links between a node and all others, or one other: for a while."""
        others = [other.name for other in self.nodes if other.name != name]
        if "pair" in kind or "link" in kind:
            others = [self.dice.choice(others)]
        turned = self.dice.random() < 0.5

        def apply(act: Callable[..., None]) -> None:
            if "one-way" not in kind:
                act(name, from_=others)
            elif turned:
                act(others, to=name)
            else:
                act(name, to=others)

        times, off_s = 1, self.dice.choice([0.5, 3.0, 20.0])
        if "flapping" in kind:
            times, off_s = 5, self.dice.choice([0.3, 2.0, 5.0])

        def cut() -> None:
            if not self.healed:
                apply(self.cut)

        for turn in range(times):
            self.after(2 * turn * off_s, cut)
            self.after((2 * turn + 1) * off_s, apply, self.heal)

    def calm(self) -> None:
        """Faults end, every seat is taken again, and time passes."""
        self.run_for(s=self.dice.choice([0.5, 8.0, 25.0]))
        self.healed = True
        self.heal_all()
        self.shape(loss=0.0, duplicate=0.0, reorder=False)
        self.take_seats()
        self.every(1.0, self.take_seats)
        self.run_until(lambda: not any(node.paused for node in self.running))
        self.until_all_up(within_s=HEALED_WITHIN_S)
        self.until_hosted(within_s=30)
        self.run_for(s=UNACKED_S + 1)  # connections that lost something have ended by then
        self.calm_since = self.now
        frames = self.network.frames_sent
        self.run_for(s=1)
        assert self.network.frames_sent - frames < CALM_FRAMES_PER_S_MAX * len(self.running)
        check_one_view(self)
        assert len(self.hosts) == 1
        self.witness.check()
        self.check_messages()

    def take_seats(self) -> None:
        """Start whatever does not run, as a supervisor would."""
        for node in self.nodes:
            if not node.running and not node.is_due:
                self.start(node)

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


def is_up(view: MembershipView | None) -> bool:
    """True when the process that published it is up."""
    me = None if view is None else view.by_id.get(view.self_id)
    return me is not None and me.status is Status.UP


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
    seeds = range(part, how_many(short=100, long=2_000), PARTS)
    for seed in seeds:
        try:
            did.update(run_seed(seed).keys())
        except (WorldError, AssertionError, TenureError) as error:
            pytest.fail(f"seed {seed}: {error}")
    # Each kind of fault must really have happened, or the runs show less than they say; a few
    # seeds cannot have them all, for some kinds are seldom possible.
    absent = set(FAULTS) - set(did)
    assert len(absent) <= (0 if len(seeds) >= 100 else 4), absent


@pytest.mark.parametrize("seed", [204, 776, 1660, 1691])
def test_seeds_that_once_found_something(seed: int) -> None:
    """A leader that slept and was not sure of itself when all else had converged; all up members
    restarted at once; the first message on a path that had failed long before."""
    run_seed(seed)
