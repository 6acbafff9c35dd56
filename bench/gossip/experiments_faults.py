"""S5 and S6: packets are lost; several members fail at once, in the ways that make others flap.

S5: every frame may be lost, nobody fails: whoever is declared is a false verdict. S6: ten in a
thousand crash; or hear nothing for 20 s, again and again; or lose four frames of five. Faulty ones
should go and stay away, healthy ones should stay. Called by `simulate`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from functools import partial

from bench.gossip import plot
from bench.gossip.experiments import Experiment, Outcome, Results, Run, Scale
from bench.gossip.judging import Judge
from bench.gossip.network import Network
from bench.report import Row
from gossip.membership import Status

SETTLE_S = 5.0

# S5


def _plan_s5(scale: Scale) -> list[Run]:
    return [
        Run(
            experiment="S5", members=size, seed=seed,
            cell={"loss": loss, "for_s": scale.pick(quick=20.0, usual=600.0, full=600.0)},
        )
        for size in reversed(scale.sizes(quick=(17,), usual=(17, 128), full=(17, 128)))
        for loss in (0.25, 0.10)
        for seed in scale.seeds_of(usual=5 if size < 64 else 1, full=20)
    ]  # fmt: skip


def _simulate_s5(run: Run) -> Outcome:
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S)
    network.lose_everywhere(run.cell["loss"])
    network.run_for(run.cell["for_s"])
    sizes = []
    for index in network.living():
        view = network.machine(index).view
        members = () if view is None else view.reachable()
        sizes.append(sum(member.status is Status.UP for member in members))
    return {
        "episodes": sum(judge.episodes.values()),
        "declarations": len(judge.declarations),
        "size": min(sizes),
        "hours": run.cell["for_s"] / 3600.0,
    }


def _rows_s5(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        for loss in (0.10, 0.25):
            cell = {"members": size, "loss": loss}
            episodes = results.values("episodes", **cell)
            if not episodes:
                continue
            note = f"N={size}, {loss:.0%} loss"
            hours = sum(results.values("hours", **cell))
            false_target = 0 if loss < 0.2 else None
            rows += [
                results.row("s5_false", "", episodes, target=false_target,
                            note=f"{note}; times that a member began to be held unreachable"),
                results.row("s5_size", "", results.values("size", **cell), at_least=True,
                            target=size if size == 17 and loss < 0.2 else None,
                            note=f"{note}; up and reachable at the end, in the worst view"),
            ]  # fmt: skip
            if loss > 0.2:
                # The target is one in an hour and 128 members.
                rate = [sum(episodes) / hours * 128 / size]
                rows.append(
                    results.row("s5_false_per_hour", "/h", rate, target=1,
                                note=f"{note}; per hour and 128 members, {hours:.2f} h simulated")
                )  # fmt: skip
    return rows


def _notes_s5(results: Results) -> list[str]:
    return [
        "A lost frame never arrives. On TCP it comes late instead (200 ms and doubling), so this "
        "is harsher than a network that loses packets."
    ]


def _plot_s5(results: Results) -> str | None:
    groups = {
        f"N={size}, {loss:.0%}": {
            "false verdicts per run": statistics.fmean(
                results.values("episodes", members=size, loss=loss)
            )
        }
        for size in results.sizes()
        for loss in (0.10, 0.25)
        if results.values("episodes", members=size, loss=loss)
    }
    return plot.bars("S5: false verdicts under packet loss", plot.Axis("count"), groups)


S5 = Experiment(_plan_s5, _simulate_s5, _rows_s5, _plot_s5, _notes_s5)

# S6

CRASH, ONE_WAY, LOSS_OUT, LOSS_BOTH = "crash", "one-way", "loss-out", "loss-both"
FAULTS = {
    CRASH: "crash at once, hosts gone",
    ONE_WAY: "hear nothing for 20 s, hear 20 s, and so on",
    LOSS_OUT: "80 % of what they send is lost",
    LOSS_BOTH: "80 % of what they send and get is lost",
}
SLUGS = {CRASH: "crash", ONE_WAY: "oneway", LOSS_OUT: "lossout", LOSS_BOTH: "lossboth"}
LOST = 0.8
CYCLE_S = 20.0


def _plan_s6(scale: Scale) -> list[Run]:
    return [
        Run(
            experiment="S6", members=size, seed=seed,
            cell={
                "fault": fault, "faulty": max(1, size // 100),
                "for_s": scale.pick(quick=20.0, usual=60.0, full=120.0)
                * (2 if fault == ONE_WAY else 1),
            },
        )
        for size in scale.sizes(quick=(24,), usual=(1000,), full=(1000,))
        for seed in scale.seeds_of(usual=1, full=5)
        for fault in (ONE_WAY, LOSS_BOTH, LOSS_OUT, CRASH)
    ]  # fmt: skip


def _simulate_s6(run: Run) -> Outcome:
    rng = random.Random(f"S6 {run.seed}")
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S + rng.random())
    faulty = rng.sample(range(run.members), run.cell["faulty"])
    healthy = [index for index in range(run.members) if index not in faulty]
    began, for_s, fault = network.now, run.cell["for_s"], run.cell["fault"]
    for member in faulty:
        _break(network, member, fault, for_s)
    network.run_for(for_s)
    removed_s, never = [], 0
    for member in faulty:
        times = judge.declared_at(member, healthy, began)
        if len(times) == len(healthy):
            removed_s.append(times[-1] - began)
        else:
            never += 1
    changes = [sorted(judge.changes[observer, member] for observer in healthy) for member in faulty]
    return {
        "removed_s": removed_s,
        "never": never,
        "wrong": judge.false(faulty, at_healthy=True),
        "wrong_anywhere": judge.false(faulty),
        "wrong_subjects": len({one.subject for one in judge.declarations} - set(faulty)),
        "changes_median": [statistics.median(one) for one in changes],
        "changes_max": [one[-1] for one in changes],
    }


def _break(network: Network, member: int, fault: str, for_s: float) -> None:
    if fault == CRASH:
        network.crash(member, sockets_close=False)
    elif fault == LOSS_OUT:
        network.lose(member, egress=LOST)
    elif fault == LOSS_BOTH:
        network.lose(member, egress=LOST, ingress=LOST)
    else:
        at, is_deaf = 0.0, True
        while at < for_s:
            network.after(at, partial(network.deafen, member, is_deaf=is_deaf))
            at, is_deaf = at + CYCLE_S, not is_deaf


def _rows_s6(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        for fault, words in FAULTS.items():
            cell = {"members": size, "fault": fault}
            outcomes = results.of(size, fault=fault)
            if not outcomes:
                continue
            note = f"N={size}; {words}"
            rows += _rows_of_fault(results, SLUGS[fault], note, cell)
    return rows


def _rows_of_fault(results: Results, slug: str, note: str, cell: dict[str, object]) -> list[Row]:
    removed, never = results.values("removed_s", **cell), sum(results.values("never", **cell))
    rows: list[Row] = []
    if removed:
        rows.append(
            results.row(f"s6_{slug}_removed_s", "s", removed, target=20,
                        note=f"{note}; held unreachable by all healthy ones")
        )  # fmt: skip
    most: Sequence[float] = results.values("changes_max", **cell)
    return [
        *rows,
        results.row(f"s6_{slug}_never", "", [never], target=0,
                    note=f"{note}; faulty members that not all held unreachable"),
        results.row(f"s6_{slug}_wrong", "", [sum(results.values("wrong", **cell))], target=0,
                    note=f"{note}; verdicts about healthy members at healthy observers (about "
                    f"{sum(results.values('wrong_subjects', **cell))} members; at any observer "
                    f"{sum(results.values('wrong_anywhere', **cell))})"),
        results.row(f"s6_{slug}_flips", "",
                    [max(0.0, one - 1) for one in results.values("changes_median", **cell)],
                    target=2,
                    note=f"{note}; changes of the verdict after the first, at the median observer "
                    f"(the most at any: {max(0.0, max(most, default=1) - 1):g})"),
    ]  # fmt: skip


def _plot_s6(results: Results) -> str | None:
    groups: dict[str, dict[str, float]] = {}
    for fault, slug in SLUGS.items():
        removed = results.values("removed_s", fault=fault)
        if removed:
            groups[slug] = {
                "median": statistics.median(removed), "last": max(removed)
            }  # fmt: skip
    if not groups:
        return None
    return plot.bars(
        "S6: until all healthy members hold a faulty one unreachable", plot.Axis("s"), groups,
        limit=20,
    )  # fmt: skip


def _notes_s6(results: Results) -> list[str]:
    return [
        "One member in a hundred is faulty, all at the same instant. `wrong` must stay 0: healthy "
        "members that healthy members held unreachable at any time."
    ]


S6 = Experiment(_plan_s6, _simulate_s6, _rows_s6, _plot_s6, _notes_s6)
