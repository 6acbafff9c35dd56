"""S3 and S4: members that do not run for a while, as in Lifeguard's interval and threshold tests.

A blocked member is *frozen* (it does nothing: what arrives waits, its timers pass) or *stalled*
(nothing comes in or goes out, but its timers run: harder, for it goes on to judge). A declaration
about a member that was never blocked is false, at whatever observer; healthy observers are counted
apart. S3 compares with plain SWIM on the same network under the same seeds, S4 with Lifeguard's own
timing (alpha 5) on the same machines. Called by `simulate`.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from functools import partial

from bench.gossip import plot
from bench.gossip.experiments import Experiment, Outcome, Results, Run, Scale
from bench.gossip.judging import Judge
from bench.gossip.network import Conditions, Network
from bench.report import Row, row
from gossip.settings import GossipSettings

SETTLE_S = 5.0
TAIL_S = 10.0
PLAIN, OURS = "plain SWIM", "ours"
FROZEN, STALLED = "frozen", "stalled"
ALPHA5 = "Lifeguard, alpha 5"

LAN = GossipSettings()
DETECTORS = {
    PLAIN: replace(LAN, lifeguard=False),
    OURS: LAN,
    ALPHA5: replace(LAN, probe_interval_s=1.0, ack_timeout_s=0.5, suspicion_mult=5.0),
}


def _network(run: Run) -> Network:
    detector = run.cell["detector"]
    return Network(
        run.members,
        settings=DETECTORS[detector],
        seed=run.seed,
        conditions=Conditions(measures_pauses=detector != PLAIN),
    )


def _figures(network: Network, judge: Judge, blocked: list[int]) -> Outcome:
    return {
        "false": judge.false(blocked),
        "false_healthy": judge.false(blocked, at_healthy=True),
        "frames": sum(network.frames_sent),
    }


# S3: blocked again and again


def _plan_s3(scale: Scale) -> list[Run]:
    counts = scale.pick(quick=(4,), usual=(8, 16, 32), full=(1, 4, 8, 12, 16, 20, 24, 28, 32))
    blocked = scale.pick(
        quick=(8.192,), usual=(8.192, 16.384, 32.768),
        full=(0.128, 0.512, 2.048, 8.192, 16.384, 32.768),
    )  # fmt: skip
    pauses = scale.pick(
        quick=(0.004,), usual=(0.004, 1.024), full=(0.001, 0.004, 0.064, 1.024, 16.384)
    )
    for_s = scale.pick(quick=8.0, usual=60.0, full=120.0)
    stalled_s = scale.pick(quick=(8.192,), usual=(16.384, 32.768), full=blocked)
    seeds = scale.seeds_of(usual=10, full=10)
    return [
        Run(
            experiment="S3", members=size, seed=seed,
            cell={
                "C": count, "D": blocked_s, "I": pause_s, "for_s": for_s, "detector": detector,
                "kind": kind,
            },
        )
        for size in scale.sizes(quick=(24,), usual=(128,), full=(128,))
        for seed in seeds
        for count in reversed(counts) if count < size
        for blocked_s in blocked
        for pause_s in pauses
        for detector in (PLAIN, OURS)
        for kind in (FROZEN, STALLED)
        # Stalled members of plain SWIM accuse everybody: minutes of work for one cell.
        if kind == FROZEN or scale.is_full or (
            seed == 1 and count == counts[len(counts) // 2]
            and blocked_s in stalled_s and pause_s == pauses[0]
        )
    ]  # fmt: skip


def _simulate_s3(run: Run) -> Outcome:
    rng = random.Random(f"S3 {run.seed} {run.cell['C']}")
    network = _network(run)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S)
    blocked = rng.sample(range(run.members), run.cell["C"])
    blocked_s, pause_s = run.cell["D"], run.cell["I"]
    rounds = math.ceil(run.cell["for_s"] / (blocked_s + pause_s))
    block = network.block if run.cell["kind"] == FROZEN else network.stall
    for number in range(rounds):
        for member in blocked:
            network.after(number * (blocked_s + pause_s), partial(block, member, blocked_s))
    network.run_for(rounds * (blocked_s + pause_s) + TAIL_S)
    return _figures(network, judge, blocked)


def _totals(results: Results, key: str, detector: str, **cell: object) -> dict[int, int]:
    """By seed, over all cells, or those with these conditions; only seeds that ran in all of them,
    or sums could not be compared."""
    by_seed: dict[int, list[int]] = {}
    for run, outcome in results.outcomes:
        if run.cell["detector"] == detector and cell.items() <= run.cell.items():
            by_seed.setdefault(run.seed, []).append(outcome[key])
    most = max(map(len, by_seed.values()), default=0)
    return {seed: sum(one) for seed, one in sorted(by_seed.items()) if len(one) == most}


def _percents(ours: dict[int, int], plain: dict[int, int]) -> list[float]:
    """Ours of plain SWIM's, by seed."""
    return [100.0 * ours[seed] / plain[seed] for seed in ours if plain.get(seed)]


def _rows_s3(results: Results) -> list[Row]:
    rows: list[Row] = []
    for metric, key, kind, at in (
        ("s3_fp", "false", FROZEN, "at any observer"),
        ("s3_fp_healthy", "false_healthy", FROZEN, "at healthy observers"),
        ("s3_stalled_fp", "false", STALLED, "at any observer"),
        ("s3_stalled_fp_healthy", "false_healthy", STALLED, "at healthy observers"),
    ):
        plain, ours = (_totals(results, key, detector, kind=kind) for detector in (PLAIN, OURS))
        shares = _percents(ours, plain)
        note = f"false declarations {at}, of plain SWIM under the same seeds; members {kind}"
        rows += [
            results.row(f"{metric}_vs_swim", "%", shares, target=1.0, note=note)
            if shares
            else row(f"{metric}_vs_swim", "%", (), expected=0, note=f"{note}: it had none"),
            results.row(f"{metric}_ours", "", list(ours.values()), note=f"{at}; per seed"),
            results.row(f"{metric}_swim", "", list(plain.values()), note=f"{at}; per seed"),
        ]
    ours = _totals(results, "frames", OURS, kind=FROZEN)
    plain = _totals(results, "frames", PLAIN, kind=FROZEN)
    frames = _percents(ours, plain)
    rows.append(results.row("s3_frames_vs_swim", "%", frames, note="frames sent, of plain SWIM"))
    return rows


def _plot_s3(results: Results) -> str | None:
    groups: dict[str, dict[str, float]] = {}
    cells = sorted({(run.cell["kind"], run.cell["C"]) for run, _ in results.outcomes})
    for kind, count in cells:
        groups[f"{kind}, C={count}"] = {
            detector: sum(results.values("false", C=count, detector=detector, kind=kind))
            / len({run.seed for run, _ in results.outcomes if run.cell["kind"] == kind})
            for detector in (PLAIN, OURS)
        }
    return plot.bars(
        "S3: false declarations per seed, by members blocked", plot.Axis("count", is_log=True),
        groups,
    )  # fmt: skip


def _notes_s3(results: Results) -> list[str]:
    return [
        "C members are blocked for D seconds, run for I, and so on; all other figures of the "
        "preset are the same for plain SWIM: no local health, fixed suspicion, no buddy, no link "
        "evidence, no pause detection (what is due when a member goes on comes before the frames "
        "that waited). Frozen members do nothing at all; stalled ones go on to probe and to judge "
        "while nothing comes in or goes out, and what they said meanwhile goes out in the end."
    ]


S3 = Experiment(_plan_s3, _simulate_s3, _rows_s3, _plot_s3, _notes_s3)


# S4: blocked once


def _plan_s4(scale: Scale) -> list[Run]:
    blocked = scale.pick(
        quick=(8.192,), usual=(2.048, 8.192, 16.384, 32.768),
        full=(0.512, 2.048, 8.192, 16.384, 32.768, 65.536),
    )  # fmt: skip
    return [
        Run(
            experiment="S4", members=size, seed=seed,
            cell={
                "D": blocked_s, "C": min(4, size // 4),
                "quiet_s": scale.pick(quick=5.0, usual=30.0, full=120.0), "detector": detector,
            },
        )
        for size in scale.sizes(quick=(24,), usual=(128,), full=(128,))
        for seed in scale.seeds_of(usual=10, full=50)
        for blocked_s in sorted(blocked, reverse=True)
        for detector in (OURS, ALPHA5)
    ]  # fmt: skip


def _simulate_s4(run: Run) -> Outcome:
    rng = random.Random(f"S4 {run.seed}")
    network = _network(run)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S + rng.random())
    blocked = rng.sample(range(run.members), run.cell["C"])
    healthy = [index for index in range(run.members) if index not in blocked]
    began = network.now
    for member in blocked:
        network.block(member, run.cell["D"])
    network.run_for(run.cell["D"])
    found = [judge.declared_at(member, healthy, began) for member in blocked]
    network.run_for(run.cell["quiet_s"])
    return {
        "first_s": [times[0] - began for times in found if times],
        "all_s": [times[-1] - began for times in found if len(times) == len(healthy)],
        "blocked": len(blocked),
        **_figures(network, judge, blocked),
    }


def _rows_s4(results: Results) -> list[Row]:
    rows: list[Row] = []
    spans = sorted({run.cell["D"] for run, _ in results.outcomes})
    for blocked_s in spans:
        medians: dict[str, float] = {}
        for detector, name in ((OURS, "s4"), (ALPHA5, "s4_alpha5")):
            cell = {"D": blocked_s, "detector": detector}
            asked, first = sum(results.values("blocked", **cell)), results.values("first_s", **cell)
            note = f"D={blocked_s:g} s; {detector}; {len(first)} of {asked} were found out"
            if not first:
                rows.append(results.row(f"{name}_found", "", [0], note=note))
                continue
            worst = sorted(first)[max(0, math.ceil(0.999 * len(first)) - 1)]
            rows.append(
                results.row(f"{name}_first_s", "s", first, note=f"{note}; p99.9 {worst:.2f} s")
            )
            everybody = results.values("all_s", **cell)
            if everybody:
                rows.append(results.row(f"{name}_all_s", "s", everybody, note=note))
            if len(first) == asked:
                medians[detector] = statistics.median(first)
        if len(medians) == 2:
            rows.append(
                results.row(
                    "s4_latency_vs_alpha5", "×", [medians[OURS] / medians[ALPHA5]], target=0.7,
                    note=f"D={blocked_s:g} s; medians of the first that declares it",
                )
            )  # fmt: skip
    for detector, metric in ((OURS, "s4_fp"), (ALPHA5, "s4_fp_alpha5")):
        false = sum(results.values("false", detector=detector))
        target = sum(results.values("false", detector=ALPHA5)) if detector == OURS else None
        rows.append(
            results.row(metric, "", [false], target=target, note=f"{detector}; false, all runs")
        )
    return rows


def _plot_s4(results: Results) -> str | None:
    series: dict[str, list[plot.Point]] = {}
    for detector in (OURS, ALPHA5):
        for blocked_s in sorted({run.cell["D"] for run, _ in results.outcomes}):
            first = results.values("first_s", D=blocked_s, detector=detector)
            if first:
                series.setdefault(detector, []).append((blocked_s, statistics.median(first)))
    if not series:
        return None
    return plot.lines(
        "S4: first declaration of a member blocked for D (median)",
        plot.Axis("D, s", is_log=True), plot.Axis("s"), series,
    )  # fmt: skip


def _notes_s4(results: Results) -> list[str]:
    return [
        "A latency counts when the member was still blocked; D shorter than the detection is no "
        "failure, and being found out then is not wanted either. alpha 5: the same machines with "
        "probe_interval_s=1, ack_timeout_s=0.5, suspicion_mult=5."
    ]


S4 = Experiment(_plan_s4, _simulate_s4, _rows_s4, _plot_s4, _notes_s4)
