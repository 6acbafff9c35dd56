"""What was measured, by metric, and how it is judged. Called by the parts of the sharding bench."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field, replace

from bench import report
from bench.report import Row, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`by_worst`: every sample has to meet the target, not the median alone."""

    unit: str = ""
    target: float | None = None
    at_least: bool = False
    by_worst: bool = False
    note: str = ""


METRICS = {
    "sharded_ask_p50_vs_remote": Metric(
        target=1.25, note="one outstanding; entity on another node over plain actor there"
    ),
    "sharded_asks64_vs_remote": Metric(
        target=0.8, at_least=True, note="asks/s, 64 outstanding; entity over plain actor there"
    ),
    "local_entity_ask_vs_local": Metric(
        target=0.7, at_least=True, note="asks/s, 64 outstanding; entity over plain actor here"
    ),
    "local_entity_ask1_vs_local": Metric(
        target=0.7, at_least=True, note="the same, one outstanding"
    ),
    "shard_spread": Metric(
        target=1.1, note="most over fewest shards of a node; least-shard, one joined last"
    ),
    "shard_spread_settled_s": Metric(
        unit="s",
        note="the last one starts the type → nothing moves any more; 0.5 s of looking included",
    ),
    "entity_bytes": Metric(
        unit="B", target=4096, note="resident, all nodes; idle entities with one field"
    ),
    "entities_built_per_s": Metric(
        unit="/s", note="by a first ask each, 256 outstanding, from one node to all"
    ),
    "rolling_restart_lost": Metric(target=0, by_worst=True, note="asks without an answer"),
    "rolling_restart_handled_twice": Metric(target=0, by_worst=True, note="asks"),
    "rolling_restart_pause_s": Metric(
        unit="s",
        target=1,
        by_worst=True,
        note="longest time between two steps of one entity, the time between two asks included",
    ),
    "rolling_restart_slowest_ask_s": Metric(unit="s", by_worst=True),
    "rolling_restart_overlaps": Metric(
        target=0, by_worst=True, note="entities alive in two places; the checker saw a planted one"
    ),
    "rolling_restart_hosts": Metric(note="fewest hosts that were up at any instant"),
    "rolling_restart_asks_per_s": Metric(unit="/s", note="achieved"),
    "kill9_entity_gap_s": Metric(
        unit="s", target=1, by_worst=True, note="SIGKILL → the last of its entities takes a step"
    ),
    "kill9_others_pause_s": Metric(
        unit="s", target=0.1, by_worst=True, note="longest time between two steps of any other"
    ),
    "kill9_undisturbed_pause_s": Metric(
        unit="s", note="the same without a kill, just before: what the machine does"
    ),
    "kill9_overlaps": Metric(target=0, by_worst=True, note="entities alive in two places"),
    "lease_loss_failed_asks": Metric(
        target=0, by_worst=True, note="to entities of shards that had a home"
    ),
    "lease_loss_pause_s": Metric(
        unit="s", by_worst=True, note="longest time between two steps of one of them"
    ),
    "lease_loss_new_served_early": Metric(
        target=0, by_worst=True, note="asks to new shards answered while the lease was lost"
    ),
    "lease_loss_new_unserved": Metric(
        target=0, by_worst=True, note="asks to new shards never answered"
    ),
    "lease_loss_new_after_s": Metric(unit="s", note="store back → the last of those is answered"),
}


@dataclass(eq=False)
class Results:
    """Samples by metric, notes, and why something is missing."""

    values: dict[str, list[float]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    notes: dict[str, list[str]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def ask(self, count: int, *metrics: str) -> None:
        """So many samples of each are to come."""
        for metric in metrics:
            self.asked[metric] += count

    def add(self, metric: str, value: float) -> None:
        """One sample."""
        self.values.setdefault(metric, []).append(value)

    def note(self, metric: str, text: str) -> None:
        """Something to be read beside it."""
        self.notes.setdefault(metric, []).append(text)

    def fail(self, why: str, *metrics: str) -> None:
        """Why samples of these are missing, or wrong."""
        for metric in metrics:
            self.failures.setdefault(metric, []).append(why)

    def rows(self) -> list[Row]:
        """A row per metric that was asked for."""
        found = []
        for metric, expected in self.asked.items():
            known = METRICS[metric]
            one = report.row(
                metric,
                known.unit,
                self.values.get(metric, []),
                expected=expected,
                target=known.target,
                at_least=known.at_least,
                note="; ".join(filter(None, (known.note, *self.notes.get(metric, ())))),
                failures=self.failures.get(metric, ()),
            )
            if known.by_worst and known.target is not None and one.max is not None:
                one = replace(one, met=one.max <= known.target)
            found.append(one)
        return found

    def absolute(self) -> list[str]:
        """The figures that were divided by each other, for reading: they move with the machine."""
        return [
            f"{name}: median {shown(statistics.median(values))}."
            for name, values in sorted(self.values.items())
            if name not in METRICS and values
        ]
