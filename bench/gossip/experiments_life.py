"""S7, S8, S9 and S10: many join, many restart, a partition heals, one rumour spreads.

What counts is when the views of all members are what they should be; the experiment knows who runs.
Called by `simulate`.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from functools import partial

from bench.gossip import plot
from bench.gossip.experiments import Experiment, Outcome, Results, Run, Scale
from bench.gossip.judging import Judge
from bench.gossip.network import Network
from bench.report import Row
from gossip.events import TypesHosted
from gossip.membership import MembershipView, Status
from gossip.settings import GossipSettings

SETTLE_S = 5.0
SEEDS = (0, 1, 2)


def is_right(network: Network, index: int, ids: frozenset[object]) -> bool:
    """True when the view of this member is exactly these, all up, all reachable."""
    view = network.machine(index).view
    return (
        view is not None
        and not view.unreachable
        and len(view.members) == len(ids)
        and all(member.status is Status.UP and member.id in ids for member in view.members)
    )


def _is_all_right(network: Network) -> bool:
    living = network.living()
    ids = frozenset(network.ids[index] for index in living)
    return all(is_right(network, index, ids) for index in living)


# S7: bootstrap

JOIN_AT_S = 10.0
FULL_WITHIN_S = 120.0


def _plan_s7(scale: Scale) -> list[Run]:
    sizes = scale.sizes(quick=(16,), usual=(128, 256, 512), full=(256, 1000, 2000, 4096))
    return [
        Run(experiment="S7", members=size, seed=seed)
        for size in reversed(sizes)
        for seed in scale.seeds_of(usual=3 if size < 512 else 1, full=3)
    ]


def _simulate_s7(run: Run) -> Outcome:
    network = Network(run.members, seed=run.seed)
    watch = _Sizes(run.members)
    network.watchers.append(watch)
    judge = Judge(network)
    network.start(0, (0,))
    network.run_until_time(JOIN_AT_S)
    for index in range(1, run.members):
        network.start(index, (0,))
    is_full = network.run_until(
        lambda: len(watch.full_at) == run.members, within_s=FULL_WITHIN_S, step_s=0.05
    )
    is_up = is_full and network.run_until(
        lambda: _is_all_right(network), within_s=FULL_WITHIN_S, step_s=0.05
    )
    return {
        "full_s": [max(watch.full_at.values()) - JOIN_AT_S] if is_full else [],
        "up_s": [network.now - JOIN_AT_S] if is_up else [],
        "sizes": len(watch.sizes),
        "false": len(judge.declarations),
        "missing": 0 if is_full else run.members - len(watch.full_at),
    }


class _Sizes:
    """Which sizes of the cluster anybody saw, and who saw all members when."""

    def __init__(self, members: int) -> None:
        self.sizes: set[int] = set()
        self.full_at: dict[int, float] = {}
        self._members = members

    def __call__(self, index: int, fact: object, now: float) -> None:
        if type(fact) is MembershipView:
            assert isinstance(fact, MembershipView)
            size = len(fact.members)
            self.sizes.add(size)
            if size == self._members:
                self.full_at.setdefault(index, now)


def _rows_s7(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        note, cell = f"N={size}", {"members": size}
        rows += [
            results.row("s7_full_s", "s", results.values("full_s", **cell), target=15,
                        note=f"{note}; all see all",
                        why_none=f"not within {FULL_WITHIN_S:g} s"),
            results.row("s7_up_s", "s", results.values("up_s", **cell),
                        note=f"{note}; and all are up",
                        why_none=f"not within {FULL_WITHIN_S:g} s"),
            results.row("s7_sizes", "", results.values("sizes", **cell),
                        note=f"{note}; different sizes of the cluster that anybody saw"),
            results.row("s7_false", "", results.values("false", **cell), target=0,
                        note=f"{note}; verdicts against anybody"),
        ]  # fmt: skip
    return rows


def _plot_s7(results: Results) -> str | None:
    series: dict[str, list[plot.Point]] = {}
    for size in results.sizes():
        for label, key in (("all see all", "full_s"), ("all are up", "up_s")):
            samples = results.values(key, members=size)
            if samples:
                series.setdefault(label, []).append((size, statistics.median(samples)))
    if not series:
        return None
    return plot.lines(
        "S7: all join one seed at once (median)", plot.Axis("members", is_log=True),
        plot.Axis("s"), series, limit=15,
    )  # fmt: skip


S7 = Experiment(_plan_s7, _simulate_s7, _rows_s7, _plot_s7, lambda found: [])

# S8: mass restart

RESTARTED = 0.3
RESTART_WITHIN_S = 10.0
DOWN_S = (0.2, 1.0)
SETTLED_AFTER_S = 60.0


def _plan_s8(scale: Scale) -> list[Run]:
    return [
        Run(experiment="S8", members=size, seed=seed)
        for size in scale.sizes(quick=(16,), usual=(200,), full=(1000,))
        for seed in scale.seeds_of(usual=3, full=3)
    ]


def _simulate_s8(run: Run) -> Outcome:
    rng = random.Random(f"S8 {run.seed}")
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S)
    restarted = rng.sample(range(run.members), max(1, round(RESTARTED * run.members)))
    for member in restarted:
        at = rng.uniform(0.0, RESTART_WITHIN_S)
        network.after(at, partial(network.crash, member, sockets_close=True))
        network.after(
            at + rng.uniform(*DOWN_S),
            partial(network.start, member, SEEDS),
        )
    network.run_for(RESTART_WITHIN_S + DOWN_S[1])
    began = network.now
    is_right_at_all = network.run_until(
        lambda: _is_all_right(network), within_s=SETTLED_AFTER_S, step_s=0.05
    )
    right_s = network.now - began
    network.run_until_time(began + SETTLED_AFTER_S)
    living = network.living()
    ids = frozenset(network.ids[index] for index in living)
    return {
        "wrong": run.members - sum(is_right(network, index, ids) for index in living),
        "right_s": [right_s] if is_right_at_all else [],
        "ended": len(network.exits),
        "false": judge.false(restarted),
    }


def _rows_s8(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        note, cell = f"N={size}", {"members": size}
        rows.append(
            results.row("s8_wrong", "", results.values("wrong", **cell), target=0,
                        note=f"{note}; views that are wrong {SETTLED_AFTER_S:g} s later")
        )  # fmt: skip
        right = results.values("right_s", **cell)
        if right:
            rows.append(results.row("s8_right_s", "s", right, note=f"{note}; all views are right"))
        rows.append(
            results.row("s8_false", "", results.values("false", **cell), target=0,
                        note=f"{note}; verdicts about members that were not restarted")
        )  # fmt: skip
    return rows


def _notes_s8(results: Results) -> list[str]:
    return [
        "Three in ten are killed within 10 s, each comes back at its address as a new process "
        "0.2 to 1 s later; the seeds are members 0, 1 and 2, which may be among them."
    ]


def _plot_s8(results: Results) -> str | None:
    return _bars(results, "S8: three in ten restart, until all views are right (median)", "right_s",
                 "until all are right", limit=SETTLED_AFTER_S)  # fmt: skip


def _bars(
    results: Results, title: str, key: str, name: str, *, limit: float, unit: str = "s",
    **cell: object,
) -> str | None:  # fmt: skip
    """The median of one figure for each size; None when there is none."""
    groups = {
        f"N={size}": {name: statistics.median(values)}
        for size in results.sizes()
        if (values := results.values(key, members=size, **cell))
    }
    return plot.bars(title, plot.Axis(unit), groups, limit=limit) if groups else None


S8 = Experiment(_plan_s8, _simulate_s8, _rows_s8, _plot_s8, _notes_s8)

# S9: a partition heals

HEAL_WITHIN_S = 120.0


def _plan_s9(scale: Scale) -> list[Run]:
    return [
        Run(
            experiment="S9", members=size, seed=seed,
            cell={"cut_s": scale.pick(quick=20.0, usual=120.0, full=600.0)},
        )
        for size in scale.sizes(quick=(16,), usual=(64, 200), full=(200, 1000))
        for seed in scale.seeds_of(usual=2, full=3)
    ]  # fmt: skip


def _simulate_s9(run: Run) -> Outcome:
    rng = random.Random(f"S9 {run.seed}")
    network = Network(run.members, seed=run.seed)
    network.warm_up()
    judge = Judge(network)
    network.run_for(SETTLE_S)
    side = [0] * run.members
    for member in rng.sample(range(run.members), run.members // 2):
        side[member] = 1
    network.partition(side)
    network.run_for(run.cell["cut_s"])
    within = sum(side[one.observer] == side[one.subject] for one in judge.declarations)
    split = sum(len(judge.holders(member)) for member in range(run.members))
    network.partition(None)
    began = network.now
    is_one = network.run_until(lambda: _is_all_right(network), within_s=HEAL_WITHIN_S, step_s=0.05)
    return {
        "healed_s": [network.now - began] if is_one else [],
        "within": within,
        "split_percent": 100.0
        * split
        / (2 * (run.members // 2) * (run.members - run.members // 2)),
        "ended": len(network.exits),
    }


def _rows_s9(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        spans = {run.cell["cut_s"] for run, _ in results.outcomes if run.members == size}
        note, cell = f"N={size}, cut for {max(spans):g} s", {"members": size}
        rows += [
            results.row("s9_one_view_s", "s", results.values("healed_s", **cell), target=30,
                        note=f"{note}; after the heal all see all, up and reachable",
                        why_none=f"not within {HEAL_WITHIN_S:g} s"),
            results.row("s9_split_percent", "%", results.values("split_percent", **cell),
                        note=f"{note}; of the pairs across the cut held unreachable before it"),
            results.row("s9_false", "", results.values("within", **cell), target=0,
                        note=f"{note}; verdicts about members of the own side"),
            results.row("s9_ended", "", results.values("ended", **cell), target=0,
                        note=f"{note}; processes that ended"),
        ]  # fmt: skip
    return rows


def _plot_s9(results: Results) -> str | None:
    return _bars(results, "S9: a partition heals, until one view (median)", "healed_s",
                 "until one view", limit=30)  # fmt: skip


S9 = Experiment(_plan_s9, _simulate_s9, _rows_s9, _plot_s9, lambda found: [])

# S10: one rumour

SPREAD_WITHIN_S = 30.0
WORN_OUT_AFTER_S = 15.0
NEW_TYPES = ("ledger",)
RUMOUR_ONLY = replace(GossipSettings(), sync_after_ticks=10**6)


def _plan_s10(scale: Scale) -> list[Run]:
    return [
        Run(experiment="S10", members=size, seed=seed, cell={"exchange": exchange})
        for size in reversed(
            scale.sizes(quick=(24,), usual=(128, 1000), full=(128, 1000, 2000, 4096))
        )
        for exchange in (True, False)
        for seed in scale.seeds_of(usual=10 if size < 512 else 1, full=3)
    ]


def _simulate_s10(run: Run) -> Outcome:
    rng = random.Random(f"S10 {run.seed}")
    settings = GossipSettings() if run.cell["exchange"] else RUMOUR_ONLY
    network = Network(run.members, settings=settings, seed=run.seed)
    network.warm_up()
    network.run_for(SETTLE_S + rng.random())
    origin = rng.randrange(run.members)
    lacking = set(range(run.members))

    def is_known() -> bool:
        """Everybody knows it now; who knows it does not forget it."""
        for index in list(lacking):
            view = network.machine(index).view
            if view is not None and view.members[origin].types == NEW_TYPES:
                lacking.discard(index)
        return not lacking

    began = network.now
    network.feed(origin, TypesHosted(NEW_TYPES))
    within_s = SPREAD_WITHIN_S if run.cell["exchange"] else WORN_OUT_AFTER_S
    is_at_all = network.run_until(is_known, within_s=within_s)
    ticks = (network.now - began) / settings.gossip_interval_s
    return {"ticks": [ticks] if is_at_all else [], "missed": len(lacking)}


def _rows_s10(results: Results) -> list[Row]:
    rows: list[Row] = []
    for size in results.sizes():
        both = results.values("ticks", members=size, exchange=True)
        alone = results.of(size, exchange=False)
        if both:
            rows.append(
                results.row("s10_ticks", "ticks", both, target=12,
                            note=f"N={size}; gossip ticks until all hold one changed record")
            )  # fmt: skip
        if alone:
            missed = sum(outcome["missed"] for outcome in alone)
            share = missed / (size * len(alone))
            rows.append(
                results.row("s10_missed_share", "", [share], target=1e-4,
                            note=f"N={size}; whom the rumour alone missed, {missed} of "
                            f"{size * len(alone)}, views not exchanged")
            )  # fmt: skip
    return rows


def _plot_s10(results: Results) -> str | None:
    return _bars(results, "S10: one rumour, until all know it (median)", "ticks", "until all know",
                 limit=12, unit="gossip ticks", exchange=True)  # fmt: skip


S10 = Experiment(_plan_s10, _simulate_s10, _rows_s10, _plot_s10, lambda found: [])
