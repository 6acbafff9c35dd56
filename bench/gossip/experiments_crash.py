"""S1 and S2: one member after the other crashes; what a member costs when nothing happens.

S1: the whole host is gone, nothing answers any more. S2: its kernel closes the sockets and refuses
dials. In S1 also the load per member, which must not depend on the number of members; `speed`
measures the simulator. Called by `simulate`.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from functools import partial
from itertools import pairwise

from bench.gossip import plot
from bench.gossip.experiments import Experiment, Outcome, Results, Run, Scale
from bench.gossip.judging import Judge
from bench.gossip.network import Conditions, Network
from bench.report import Row

SETTLE_S = 5.0
KNOWN_WITHIN_S = 120.0
LOAD_S = 60.0
SPEED_MEMBERS, SPEED_S = 1000, 60.0

# First "dead" after a silent crash under memberlist's LAN timing: its rules, computed.
MEMBERLIST_FIRST_S = {
    10: 5.6, 25: 7.3, 50: 8.5, 100: 9.7, 128: 10.1, 512: 12.6, 1000: 13.7, 2048: 14.9, 4096: 16.1,
}  # fmt: skip
MEMBERLIST_TARGET = 0.8


def memberlist_first_s(members: int) -> float:
    """Its median for any size, between the computed ones along log N."""
    known = sorted(MEMBERLIST_FIRST_S)
    if members <= known[0]:
        return MEMBERLIST_FIRST_S[known[0]]
    for low, high in pairwise(known):
        if members <= high:
            share = math.log(members / low) / math.log(high / low)
            begin, end = MEMBERLIST_FIRST_S[low], MEMBERLIST_FIRST_S[high]
            return begin + share * (end - begin)
    return MEMBERLIST_FIRST_S[known[-1]]


def crashes_in(members: int) -> int:
    """How many of a network crash, one after the other: few, for the others must stay the rule."""
    return max(1, min(5, members // 25))


# the plans


def _crashes(experiment: str, scale: Scale) -> list[Run]:
    usual = (32, 128, 512) if experiment == "S1" else (32, 128, 512, 1024)
    sizes = scale.sizes(quick=(16,), usual=usual, full=(32, 128, 512, 1024, 2048, 4096))
    return [
        Run(experiment=experiment, members=size, seed=seed, cell={"what": "crash"})
        for size in sizes
        for seed in scale.seeds_of(
            usual=max(2, min(20, 2560 // size)), full=20 if size < 512 else 3
        )
    ]


def _plan_s1(scale: Scale) -> list[Run]:
    sizes = scale.sizes(quick=(16,), usual=(32, 128, 512, 1024), full=(32, 128, 512, 1024, 2048))
    load = [Run(experiment="S1", members=size, seed=1, cell={"what": "load"}) for size in sizes]
    # The long ones first: at the end no core waits for another.
    return [*load[::-1], *_crashes("S1", scale)[::-1]]


def _plan_s2(scale: Scale) -> list[Run]:
    return _crashes("S2", scale)[::-1]


def _plan_speed(scale: Scale) -> list[Run]:
    sizes = scale.sizes(quick=(32,), usual=(SPEED_MEMBERS,), full=(SPEED_MEMBERS,))
    seeds = scale.seeds_of(usual=1, full=1)
    return [Run(experiment="speed", members=size, seed=seed) for size in sizes for seed in seeds]


# the simulations


def _simulate(run: Run) -> Outcome:
    return _load(run) if run.cell["what"] == "load" else _crash(run)


def _crash(run: Run) -> Outcome:
    rng = random.Random(f"{run.experiment} {run.seed}")
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S)
    first_s, all_s, observed_s, never = [], [], [], 0
    victims = rng.sample(range(run.members), crashes_in(run.members))
    for victim in victims:
        network.run_for(rng.uniform(1.0, 2.0))
        began = network.now
        network.crash(victim, sockets_close=run.experiment == "S2")
        others = network.living()
        is_known = network.run_until(
            partial(judge.is_held_by, victim, others),
            within_s=KNOWN_WITHIN_S,
        )
        heard_s = [at - began for at in sorted(judge.holders(victim).values())]
        if is_known:
            first_s.append(heard_s[0])
            all_s.append(heard_s[-1])
            observed_s.extend(heard_s)
        else:
            never += 1
    return {
        "first_s": first_s,
        "all_s": all_s,
        "observer_s": observed_s,
        "never": never,
        "false": judge.false(victims),
    }


def _load(run: Run) -> Outcome:
    network = Network(run.members, seed=run.seed, conditions=Conditions(counts_bytes=True))
    network.warm_up()
    network.run_for(SETTLE_S)
    frames, received, sizes = (
        list(network.frames_sent), list(network.frames_received), list(network.bytes_sent),
    )  # fmt: skip
    network.run_for(LOAD_S)

    def per_s(now: list[int], then: list[int]) -> list[float]:
        return [(after - before) / LOAD_S for after, before in zip(now, then, strict=True)]

    return {
        "sent_per_s": per_s(network.frames_sent, frames),
        "received_per_s": per_s(network.frames_received, received),
        "bytes_per_s": per_s(network.bytes_sent, sizes),
    }


def _simulate_speed(run: Run) -> Outcome:
    began = time.process_time()
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    warm_s = time.process_time() - began
    network.run_for(1.0)
    events, began = network.events, time.process_time()
    network.run_for(SPEED_S)
    spent_s = time.process_time() - began
    return {"spent_s": spent_s, "warm_s": warm_s, "events": network.events - events}


# the rows


def _crash_rows(results: Results, name: str) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes(what="crash"):
        cell = {"members": size, "what": "crash"}
        note, is_large = f"N={size}", size >= 2048
        first, everybody = results.values("first_s", **cell), results.values("all_s", **cell)
        if name == "S1":
            ours = statistics.median(first) if first else math.nan
            model_s = memberlist_first_s(size)
            rows += [
                results.row("s1_first_s", "s", first, note=f"{note}; memberlist {model_s:.1f} s"),
                results.row("s1_all_s", "s", everybody, note=note),
                results.row(
                    "s1_first_vs_memberlist", "×", [ours / model_s] if first else [],
                    target=MEMBERLIST_TARGET, note=f"{note}; of the model of its timing rules",
                ),
            ]  # fmt: skip
        else:
            rows += [
                results.row("s2_first_s", "s", first, note=note),
                results.row("s2_all_s", "s", everybody, target=0.3, note=note),
            ]
            if is_large:
                last = [max(everybody)] if everybody else []
                rows.append(results.row("s2_all_p99_s", "s", last, target=1.0, note=note))
        rows += [
            results.row(f"{name.lower()}_observer_s", "s", results.values("observer_s", **cell),
                        note=f"{note}; each observer"),
            results.row(f"{name.lower()}_never", "", [sum(results.values("never", **cell))],
                        target=0, note=f"{note}; not known by all in {KNOWN_WITHIN_S:g} s"),
            results.row(f"{name.lower()}_false", "", [sum(results.values("false", **cell))],
                        target=0, note=f"{note}; verdicts about members that live"),
        ]  # fmt: skip
    return rows


def _load_rows(results: Results) -> list[Row]:
    rows: list[Row] = []
    medians: dict[str, list[float]] = {"sent_per_s": [], "bytes_per_s": []}
    for size in results.sizes(what="load"):
        cell = {"members": size, "what": "load"}
        for key, unit, metric in (
            ("sent_per_s", "/s", "load_sent_per_s"),
            ("received_per_s", "/s", "load_received_per_s"),
            ("bytes_per_s", "B/s", "load_bytes_per_s"),
        ):
            samples = results.values(key, **cell)
            rows.append(results.row(metric, unit, samples, note=f"N={size}; per member"))
            if key in medians and size <= 1024:
                medians[key].append(statistics.fmean(samples))
    for key, note in (("bytes_per_s", "bytes"), ("sent_per_s", "frames")):
        figures = medians[key]
        if len(figures) > 1:
            spread = [100.0 * (max(figures) / min(figures) - 1.0)]
            rows.append(
                results.row("load_flat_percent", "%", spread, target=5,
                            note=f"{note} of a member: greatest over least N")
            )  # fmt: skip
    return rows


def _rows_s1(results: Results) -> list[Row]:
    return [*_crash_rows(results, "S1"), *_load_rows(results)]


def _rows_s2(results: Results) -> list[Row]:
    return _crash_rows(results, "S2")


def _rows_speed(results: Results) -> list[Row]:
    rows = []
    for size in results.sizes():
        spent = results.values("spent_s", members=size)
        events = results.values("events", members=size)
        warm = statistics.median(results.values("warm_s", members=size))
        steps = statistics.median(count / took for count, took in zip(events, spent, strict=True))
        rows.append(
            results.row(
                f"simulate_{size}x{SPEED_S:g}_s", "s", spent,
                target=SPEED_S if size == SPEED_MEMBERS else None,
                note=f"CPU of one core for {SPEED_S:g} virtual s, nothing happens; {steps:,.0f} "
                f"steps/s; {warm:.1f} s to begin with",
            )
        )  # fmt: skip
    return rows


# pictures and words


def _plot(results: Results, name: str, limit: float | None) -> str | None:
    series: dict[str, list[plot.Point]] = {"first": [], "all": []}
    for size in results.sizes(what="crash"):
        for label, key in (("first", "first_s"), ("all", "all_s")):
            samples = results.values(key, members=size, what="crash")
            if samples:
                series[label].append((size, statistics.median(samples)))
    if not series["first"]:
        return None
    if name == "S1":
        series["memberlist, first"] = [
            (size, memberlist_first_s(int(size))) for size, _ in series["first"]
        ]
    return plot.lines(
        f"{name}: a crash is known (median)", plot.Axis("members", is_log=True), plot.Axis("s"),
        series, limit=limit,
    )  # fmt: skip


def _notes_s1(results: Results) -> list[str]:
    return [
        "A frame counts its encoded size, its head, and 40 bytes of TCP and IP; acknowledgements "
        "of TCP and the heartbeats of kept links come on top. memberlist: the median that its "
        "timing rules give (LAN preset), computed, not measured here."
    ]


def _notes_s2(results: Results) -> list[str]:
    return [
        "A kernel tells the crash to members with a control link to the victim: those that keep "
        "one, and the 32 peers each spoke to last within 30 s. Every member is on a host of its "
        "own, so nothing proves the crash: it is links and refused dials alone."
    ]


S1 = Experiment(_plan_s1, _simulate, _rows_s1, lambda found: _plot(found, "S1", None), _notes_s1)
S2 = Experiment(_plan_s2, _simulate, _rows_s2, lambda found: _plot(found, "S2", 0.3), _notes_s2)
SPEED = Experiment(_plan_speed, _simulate_speed, _rows_speed, lambda found: None, lambda found: [])
