"""One round: a cluster acts, a fault, what came of it, and whole again.

Decides what each fault does, what must have happened before the round goes on, and which figures
it leaves. Whoever exits is restarted and has to join again. A round that waits in vain is told as a
failure of all figures that it lacks. Called by `bench.partition.command` and `tests/processes`.
"""

from __future__ import annotations

import random
import signal
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.partition.cluster import Cluster, Life
from bench.partition.judging import Instance
from node.history import boottime_s

DOWNED = 10
NO_MEMBER = 12
FAULTS = ("lone-host", "one-way", "host-leader-link", "side", "pause", "crash")
TAKEOVER = ("new_instance_s", "loser_exit_s", "loser_exit_from_detection_s")
"""What is measured of a cut that is healed only after the loser's exit."""

HEAL_SPREAD_S = 0.3
ACT_ON_S = 1.0


@dataclass(frozen=True, slots=True)
class Timings:
    """What the preset says, in seconds."""

    down_after_s: float
    cut_for_s: float
    outcome_timeout_s: float

    @classmethod
    def of(cls, preset: str) -> Timings:
        """`cut_for_s` is how long a cut lasts that nobody need lose by. A member that is cut off
        alone is the last to believe it: at wan after a minute and more."""
        return cls(10.0, 45.0, 240.0) if preset == "wan" else cls(5.0, 20.0, 90.0)


@dataclass(eq=False)
class Samples:
    """What the rounds of a cell measured, by metric, and why some of it is missing."""

    values: dict[str, list[float]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def ask(self, *metrics: str) -> None:
        """One sample of each is to come."""
        self.asked.update(metrics)

    def add(self, metric: str, value: float) -> None:
        """It came."""
        self.values.setdefault(metric, []).append(value)


class Rounds:
    """Rounds of one fault on one cluster, one after the other."""

    def __init__(
        self,
        cluster: Cluster,
        fault: str,
        timings: Timings,
        rng: random.Random,
        samples: Samples,
        decided_s: list[float],
    ) -> None:
        """decided_s: how long after the fault the rounds before saw the new instance act; a swept
        heal aims at that. Grows."""
        self._cluster = cluster
        self._fault = fault
        self._timings = timings
        self._rng = rng
        self._samples = samples
        self._decided_s = decided_s
        self._count = 0

    def run(self, *, sweep: bool) -> None:
        """One round. With `sweep` the heal comes within 0.3 s of when a decision is expected.

        Raises `NotSeenError` when something did not happen; the cluster is then of no more use.
        """
        cluster, samples = self._cluster, self._samples
        self._count += 1
        # Always the same figures are asked of a fault, so that a round given up is seen to be so.
        samples.ask("survivor_sides", "acting_overlap_s", "overrun_s")
        old = cluster.settle()
        # The moment of a fault must not keep step with the probes.
        cluster.wait_until(boottime_s() + 1.0 + self._rng.random())
        old = cluster.acting() or old
        before = list(cluster.running)
        begun_s = boottime_s()
        sides = None
        match self._fault:
            case "lone-host" | "side":
                sides = self._split(old, sweep=sweep)
            case "one-way":
                self._one_way(old, sweep=sweep)
            case "host-leader-link":
                self._one_link(old)
            case "pause":
                self._pause(old)
            case "crash":
                self._crash(old)
            case _:
                raise ValueError(f"{self._fault!r} is no fault: name some of {', '.join(FAULTS)}")
        cluster.settle(self._timings.outcome_timeout_s)
        cluster.wait_until(boottime_s() + ACT_ON_S)
        samples.add("acting_overlap_s", cluster.steps.overlap_s(begun_s))
        samples.add("overrun_s", cluster.steps.overrun_s(begun_s))
        if self._fault != "crash" and (proven := cluster.proven_crashes(begun_s)):
            samples.failures.append(f"a crash was proven between hosts: {proven[0].detail}")
        living = [life for life in before if life.running]
        # Whole again: whoever lived through it is of one side, if any did.
        samples.add("survivor_sides", sides if sides is not None else float(bool(living)))
        self._note_ends(before)

    # faults

    def _split(self, old: Instance, *, sweep: bool) -> float | None:
        """Both ways between the host's side and the rest; the number of sides that live, where it
        is read before the heal."""
        cluster = self._cluster
        losers = self._losing_side(old)
        others = [host for host in cluster.hosts if host not in losers]
        lives = [life for life in cluster.running if life.host in losers]
        winners = [life for life in cluster.running if life.host in others]
        if not sweep:
            self._samples.ask(*TAKEOVER)
        at_s = cluster.cut_apart(losers, others)
        if sweep:
            self._heal_around_decision(at_s, losers, others)
            return None
        self._await_takeover(old, at_s)
        self._await_exit(lives, at_s)
        sides = sum(any(life.running for life in side) for side in (lives, winners))
        self._heal(losers, others)
        return float(sides)

    def _losing_side(self, old: Instance) -> list[int]:
        cluster = self._cluster
        host = cluster.life_of(old).host
        if self._fault == "lone-host":
            return [host]
        rest = [one for one in cluster.hosts if one != host]
        return [host, *self._rng.sample(rest, (len(cluster.hosts) - 1) // 2 - 1)]

    def _one_way(self, old: Instance, *, sweep: bool) -> None:
        """All that the host says is lost, or, each other time, all that is said to it. Which side
        loses is the product's choice; that one lives is not."""
        cluster = self._cluster
        life = cluster.life_of(old)
        others = [host for host in cluster.hosts if host != life.host]
        ways = [(life.host, other) for other in others]
        if self._count % 2 == 0:
            ways = [(other, host) for host, other in ways]
        if not sweep:
            self._samples.ask(*TAKEOVER)
        at_s = boottime_s()
        for way in ways:
            cluster.network.cut(*way)
        if sweep:
            cluster.wait_until(at_s + self._heal_after_s())
        else:
            self._await_takeover(old, at_s)
            self._await_exit([life], at_s)
        for way in ways:
            cluster.network.heal(*way)
        if sweep:
            self._see_it_out(at_s)

    def _one_link(self, old: Instance) -> None:
        """Only between the host and the leader, both ways: the host goes on, by relay."""
        cluster = self._cluster
        host = cluster.life_of(old).host
        leader = cluster.leader()
        if leader == host:
            leader = min(one for one in cluster.hosts if one != host)
        self._samples.ask("link_silence_s")
        at_s = cluster.cut_apart([host], [leader])
        cluster.wait_until(at_s + self._timings.cut_for_s)
        ended = [life.member.name for life in cluster.lives if (life.ended_at_s or 0.0) >= at_s]
        if ended:
            self._samples.failures.append(f"{', '.join(ended)} exited when one link was cut")
        steps = [at_s, *old.steps_from(at_s), boottime_s()]
        silence_s = max(b - a for a, b in pairwise(steps))
        self._samples.add("link_silence_s", silence_s)
        self._heal([host], [leader])

    def _pause(self, old: Instance) -> None:
        """SIGSTOP of the host for three times `down_after_s`, SIGCONT."""
        cluster = self._cluster
        life = cluster.life_of(old)
        self._samples.ask("new_instance_s", "steps_after_pause", "exit_after_pause_s")
        at_s = cluster.signal(life, signal.SIGSTOP)
        try:
            self._await_takeover(old, at_s)
            cluster.wait_until(at_s + 3 * self._timings.down_after_s)
        finally:
            woken_s = cluster.signal(life, signal.SIGCONT)
        cluster.wait(
            f"{life.member.name} exits", lambda: not life.running, self._timings.outcome_timeout_s
        )
        assert life.ended_at_s is not None
        cluster.steps.read()
        self._samples.add("steps_after_pause", float(len(old.steps_from(woken_s))))
        self._samples.add("exit_after_pause_s", life.ended_at_s - woken_s)

    def _crash(self, old: Instance) -> None:
        """SIGKILL of the host."""
        cluster = self._cluster
        life = cluster.life_of(old)
        self._samples.ask("new_instance_s")
        # The dead are restarted late: at once, a join at their address would tell of their end.
        cluster.restarts = False
        at_s = cluster.signal(life, signal.SIGKILL)
        self._await_takeover(old, at_s)
        cluster.restarts = True
        cluster.start_one(life.host)

    # what comes of it

    def _await_takeover(self, old: Instance, at_s: float) -> None:
        cluster = self._cluster
        first_s = cluster.wait(
            "another instance acts",
            lambda: cluster.steps.first_of_another(old, at_s),
            self._timings.outcome_timeout_s,
        )
        self._samples.add("new_instance_s", first_s - at_s)
        self._decided_s.append(first_s - at_s)

    def _await_exit(self, lives: Sequence[Life], at_s: float) -> None:
        """Until all of them exited; how long it took the last one, and each from what it saw."""
        names = ", ".join(life.member.name for life in lives)
        ended = self._cluster.wait(
            f"{names} exit",
            lambda: (
                not any(life.running for life in lives)
                and [life.ended_at_s - at_s for life in lives if life.ended_at_s is not None]
            ),
            self._timings.outcome_timeout_s,
        )
        self._samples.add("loser_exit_s", max(ended))
        from_detection = [
            life.ended_at_s - seen[-1].at_s
            for life in lives
            if life.ended_at_s is not None and (seen := life.lines("unreachable", at_s))
        ]
        if from_detection:
            self._samples.add("loser_exit_from_detection_s", max(from_detection))

    def _heal_after_s(self) -> float:
        expected_s = statistics.median(self._decided_s)
        return expected_s + self._rng.uniform(-HEAL_SPREAD_S, HEAL_SPREAD_S)

    def _heal_around_decision(self, at_s: float, one: Sequence[int], other: Sequence[int]) -> None:
        self._cluster.wait_until(at_s + self._heal_after_s())
        self._heal(one, other)
        self._see_it_out(at_s)

    def _see_it_out(self, at_s: float) -> None:
        """Whatever was decided or promised about the fault has been carried out by then."""
        expected_s = statistics.median(self._decided_s)
        self._cluster.wait_until(at_s + expected_s + self._timings.down_after_s)

    def _heal(self, one: Sequence[int], other: Sequence[int]) -> None:
        for a in one:
            for b in other:
                self._cluster.network.heal(a, b)
                self._cluster.network.heal(b, a)

    def _note_ends(self, before: Sequence[Life]) -> None:
        ended = [life for life in before if not life.running]
        self._samples.outcomes[f"{len(ended)} exited"] += 1
        for life in ended:
            code = life.process.returncode
            if not life.told and code not in (DOWNED, NO_MEMBER):
                self._samples.failures.append(f"{life.member.name} exited with {code}")
            self._samples.outcomes[f"exit code {code}"] += 1
