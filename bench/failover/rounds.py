"""One round: a cluster acts, a fault, what came of it, and whole again.

Decides what each fault does, when a round is over, and which figures it leaves. What acted, when
and under which token is what the subject itself wrote (`bench.partition.judging`). Called by
`bench.failover.command`.
"""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from bench.failover.stores import Store
from bench.partition.cluster import Cluster
from bench.partition.judging import Instance
from node.history import boottime_s

FAULTS = (
    "leave", "crash", "partition", "partition-store", "one-way", "pause", "pause-short",
    "pause-mid", "store-outage", "store-cut-host", "blocked",
)  # fmt: skip
ACTED_S = 5.0
"""A partition lasts until the new instance has acted for so long."""
PARTITION_MAX_S = 60.0
OUTCOME_S = 150.0
AFTER_S = 2.0
LEVEL_PAUSE_TTL_S = 15.0
"""A pause is a multiple of the ttl; of this where there is no lease."""
PAUSES = {"pause": 3.0, "pause-short": 0.5, "pause-mid": 1.5}
OUTAGE_TTLS = 1.5
SILENCE_S = 0.5
LEAST_OVERLAP_S = 0.001
"""Two that acted in turns did so for this long at least: 0 is that they did not."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something the bench did, for the picture."""

    at_s: float
    what: str


@dataclass
class Picture:
    """One round as it is drawn: who acted when, what was done to whom; seconds since the fault."""

    node_of: dict[str, str] = field(default_factory=dict)
    spans: list[tuple[str, float, float]] = field(default_factory=list)  # instance, from, to
    marks: list[Mark] = field(default_factory=list)


@dataclass(eq=False)
class Samples:
    """What the rounds of a cell measured, by metric, and why some of it is missing."""

    values: dict[str, list[float]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    proofs: Counter[str] = field(default_factory=Counter)
    picture: Picture | None = None

    def add(self, metric: str, value: float) -> None:
        """One sample."""
        self.values.setdefault(metric, []).append(value)


class Rounds:
    """Rounds of one fault on one cluster.

    store: of the leases, None without one. sent: the file of what customers sent. sharded: the
    subject is an entity; the lease is its coordinator's, so it goes on without.
    """

    def __init__(
        self,
        cluster: Cluster,
        fault: str,
        ttl_s: float,
        store: Store | None,
        sent: Path,
        rng: random.Random,
        samples: Samples,
        *,
        sharded: bool = False,
    ) -> None:
        self._sharded = sharded
        self._cluster = cluster
        self._fault = fault
        self._ttl_s = ttl_s
        self._store = store
        self._sent = sent
        self._rng = rng
        self._samples = samples
        self._marks: list[Mark] = []
        self._faults: dict[str, Callable[[Instance], None]] = {
            "leave": self._leave,
            "crash": self._crash,
            "partition": self._partition,
            "partition-store": self._partition,
            "one-way": self._one_way,
            "pause": self._pause,
            "pause-short": self._pause,
            "pause-mid": self._pause,
            "store-outage": self._store_outage,
            "store-cut-host": self._store_cut_host,
            "blocked": self._blocked,
        }

    def run(self) -> None:
        """One round. Raises `NotSeenError` when something did not happen."""
        cluster, samples = self._cluster, self._samples
        waits = self._store is not None and not cluster.guarded and not self._sharded
        for metric in metrics_of(self._fault, leased=waits, sharded=self._sharded):
            samples.asked[metric] += 1
        old = cluster.settle()
        # The moment of a fault must not keep step with probes or renewals.
        cluster.wait_until(boottime_s() + 1.0 + self._rng.random() * min(5.0, self._ttl_s))
        old = cluster.acting() or old
        self._marks = []
        self._begun_s = boottime_s()
        self._faults[self._fault](old)
        cluster.settle(OUTCOME_S)
        cluster.wait_until(boottime_s() + AFTER_S)
        over_s = boottime_s()
        samples.add("unavailable_s", self._longest_silence_s(over_s))
        steps = cluster.steps
        for metric, in_turns_s, instants in (
            ("acting_overlap_s", steps.overlap_s(self._begun_s), "steps"),
            (
                "authoritative_overlap_s",
                steps.authoritative_overlap_s(self._begun_s),
                "authoritative",
            ),
        ):
            both_s = self._both_s(instants) if in_turns_s > 0 else 0.0
            samples.add(metric, max(both_s, LEAST_OVERLAP_S) if in_turns_s > 0 else 0.0)
        samples.add("overrun_s", cluster.steps.overrun_s(self._begun_s))
        self._count_messages(over_s)
        proven = len(cluster.proven_crashes(self._begun_s))
        samples.proofs["crash proven by the kernel" if proven else "no crash proven"] += 1
        if samples.picture is None:
            samples.picture = self._draw(over_s)

    # faults

    def _leave(self, old: Instance) -> None:
        """SIGTERM of the host: it leaves in order, and is started again."""
        life = self._cluster.life_of(old)
        self._mark(f"{life.member.name[:2]} SIGTERM")
        at_s = self._cluster.signal(life, signal.SIGTERM)
        self._await_another(old, at_s)

    def _crash(self, old: Instance) -> None:
        """SIGKILL of the host; it is started again when another one acts."""
        cluster = self._cluster
        life = cluster.life_of(old)
        cluster.restarts = False
        self._mark(f"{life.member.name[:2]} SIGKILL")
        at_s = cluster.signal(life, signal.SIGKILL)
        expires_at_s = None if self._store is None else self._store.expiry_s()
        first_s = self._await_another(old, at_s)
        if expires_at_s is not None and not cluster.guarded and not self._sharded:
            self._samples.add("after_expiry_s", first_s - expires_at_s)
        cluster.wait("its process is gone", lambda: not life.running, OUTCOME_S)
        cluster.restarts = True
        cluster.start_one(life.host)

    def _partition(self, old: Instance) -> None:
        """The host cut from all others, and from the store where that is the fault, both ways."""
        cluster = self._cluster
        host = cluster.life_of(old).host
        others = [one for one in cluster.hosts if one != host]
        if self._fault == "partition-store":
            assert self._store is not None
            assert self._store.host is not None
            others.append(self._store.host)
        self._mark(f"h{host} cut off")
        at_s = cluster.cut_apart([host], others)
        self._until_acted(old, at_s)
        for other in others:
            cluster.network.heal(host, other)
            cluster.network.heal(other, host)
        self._mark("healed")
        self._until_one_acts()

    def _one_way(self, old: Instance) -> None:
        """All that the host says is lost."""
        cluster = self._cluster
        host = cluster.life_of(old).host
        others = [one for one in cluster.hosts if one != host]
        self._mark(f"h{host} is not heard")
        at_s = boottime_s()
        for other in others:
            cluster.network.cut(host, other)
        self._until_acted(old, at_s)
        for other in others:
            cluster.network.heal(host, other)
        self._mark("healed")
        self._until_one_acts()

    def _pause(self, old: Instance) -> None:
        """SIGSTOP of the host for a multiple of the ttl, SIGCONT."""
        cluster = self._cluster
        life = cluster.life_of(old)
        ttl_s = self._ttl_s if self._store is not None else LEVEL_PAUSE_TTL_S
        self._mark(f"{life.member.name[:2]} SIGSTOP")
        at_s = cluster.signal(life, signal.SIGSTOP)
        try:
            cluster.wait_until(at_s + PAUSES[self._fault] * ttl_s)
        finally:
            woken_s = cluster.signal(life, signal.SIGCONT)
            self._mark("SIGCONT")
        self._until_one_acts()
        replaced = cluster.steps.first_of_another(old, at_s) is not None
        steps = old.steps_from(woken_s) if replaced else []
        self._samples.add("steps_after_pause", float(len(steps)))

    def _store_outage(self, old: Instance) -> None:
        """The store takes no write for one and a half ttls."""
        assert self._store is not None
        cluster = self._cluster
        with self._store.outage():
            self._mark("store away")
            at_s = boottime_s()
            cluster.wait_until(at_s + OUTAGE_TTLS * self._ttl_s)
            stopped = not cluster.steps.acting(boottime_s() - 0.5)
        back_s = boottime_s()
        self._mark("store back")
        if self._sharded:
            return  # how long it was silent is asked of every round
        if not stopped:
            self._samples.failures.append("something acted without its store")
        first_s: float = cluster.wait(
            "it acts again",
            lambda: min(
                (one.steps_from(back_s)[0] for one in cluster.steps.acting(back_s)), default=None
            ),
            OUTCOME_S,
        )
        self._samples.add("return_s", first_s - back_s)

    def _store_cut_host(self, old: Instance) -> None:
        """The store cut for the host alone, both ways, until another one has acted for a while."""
        assert self._store is not None
        assert self._store.host is not None
        cluster, store = self._cluster, self._store.host
        host = cluster.life_of(old).host
        self._mark(f"h{host} without store")
        at_s = cluster.cut_apart([host], [store])
        self._until_acted(old, at_s)
        first_s = cluster.steps.first_of_another(old, at_s)
        if first_s is not None:
            self._samples.add("return_s", first_s - at_s)
        cluster.network.heal(host, store)
        cluster.network.heal(store, host)
        self._mark("healed")
        self._until_one_acts()

    def _blocked(self, old: Instance) -> None:
        """A plain handler of the host blocks its event loop for longer than anybody waits."""
        cluster = self._cluster
        self._mark("handler blocks")
        cluster.signal(cluster.life_of(old), signal.SIGUSR2)
        cluster.wait_until(boottime_s() + PAUSES["pause-mid"] * self._ttl_s + 1.0)
        self._until_one_acts()

    # what comes of it

    def _mark(self, what: str) -> None:
        self._marks.append(Mark(boottime_s() - self._begun_s, what))

    def _await_another(self, old: Instance, at_s: float) -> float:
        found: float = self._cluster.wait(
            "another instance acts",
            lambda: self._cluster.steps.first_of_another(old, at_s),
            OUTCOME_S,
        )
        return found

    def _until_acted(self, old: Instance, at_s: float) -> None:
        """Until another one has acted for a while, or nobody does for too long."""
        cluster = self._cluster
        while boottime_s() < at_s + PARTITION_MAX_S:
            first_s = cluster.steps.first_of_another(old, at_s)
            if first_s is not None:
                cluster.wait_until(first_s + ACTED_S)
                return
            cluster.wait_until(boottime_s() + 0.05)

    def _until_one_acts(self) -> None:
        """Until there is one instance again, watched for a while."""
        cluster = self._cluster

        def one() -> bool:
            now_s = boottime_s()
            return len(cluster.steps.acting(now_s - 1.0)) == 1

        cluster.wait("one instance acts", one, OUTCOME_S)

    def _longest_silence_s(self, over_s: float) -> float:
        """The longest time in which nobody began a step."""
        steps = sorted(
            at_s
            for one in self._cluster.steps.instances.values()
            for at_s in one.steps_from(self._begun_s - 1.0)
            if at_s <= over_s
        )
        edges = [self._begun_s, *(at_s for at_s in steps if at_s > self._begun_s), over_s]
        return max(later - earlier for earlier, later in itertools.pairwise(edges))

    def _count_messages(self, over_s: float) -> None:
        """What was sent in the round and had time to arrive; each of it is counted once."""
        sent = set()
        for line in self._sent.read_text().splitlines():
            at_s, number = line.split(" ")
            if self._begun_s <= float(at_s) <= over_s - AFTER_S / 2:
                sent.add(int(number))
        handled: Counter[int] = Counter()
        fenced_off, highest = 0, -1
        for one in self._cluster.steps.handled:
            if one.token is not None:
                fenced_off += one.token < highest and one.at_s >= self._begun_s
                highest = max(highest, one.token)
            if one.number in sent:
                handled[one.number] += 1
        once = sum(count == 1 for count in handled.values())
        twice = sum(count > 1 for count in handled.values())
        lost = len(sent) - once - twice
        unknown = [n for n in handled if n not in sent]
        if unknown or lost < 0:
            self._samples.failures.append(f"the counts do not add up: {len(unknown)} unknown")
        for metric, value in (
            ("sent", len(sent)), ("handled_once", once), ("handled_twice", twice), ("lost", lost),
            ("fenced_off", fenced_off),
        ):  # fmt: skip
            self._samples.add(metric, float(value))

    def _both_s(self, instants: str) -> float:
        """For how long two acted, pauses of either left out."""
        spans = [
            spans_of([at_s for at_s in getattr(one, instants) if at_s >= self._begun_s])
            for one in self._cluster.steps.instances.values()
        ]
        return sum(
            max(0.0, min(end, other_end) - max(begin, other_begin))
            for one, other in combinations(spans, 2)
            for begin, end in one
            for other_begin, other_end in other
        )

    def _draw(self, over_s: float) -> Picture:
        picture = Picture(marks=list(self._marks))
        for one in self._cluster.steps.instances.values():
            steps = [at_s for at_s in one.steps_from(self._begun_s - 3.0) if at_s <= over_s]
            if not steps:
                continue
            picture.node_of[one.name] = one.node
            picture.spans += [
                (one.name, begin - self._begun_s, end - self._begun_s)
                for begin, end in spans_of(steps)
            ]
        return picture


def spans_of(steps: list[float]) -> list[tuple[float, float]]:
    """From when to when an instance acted: a longer silence ends a span."""
    spans: list[tuple[float, float]] = []
    for at_s in steps:
        if spans and at_s - spans[-1][1] <= SILENCE_S:
            spans[-1] = (spans[-1][0], at_s)
        else:
            spans.append((at_s, at_s))
    return spans


def metrics_of(fault: str, *, leased: bool, sharded: bool = False) -> list[str]:
    """What a round of this fault measures; `leased`: a crash costs what is left of a ttl."""
    metrics = [
        "unavailable_s", "acting_overlap_s", "authoritative_overlap_s", "overrun_s", "sent",
        "handled_once", "handled_twice", "lost", "fenced_off",
    ]  # fmt: skip
    if fault == "crash" and leased:
        metrics.append("after_expiry_s")
    if fault in PAUSES:
        metrics.append("steps_after_pause")
    if fault in ("store-outage", "store-cut-host") and not sharded:
        metrics.append("return_s")
    return metrics
