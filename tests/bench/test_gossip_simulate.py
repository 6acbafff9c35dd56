"""The simulated network drives real machines, its judge finds what is broken, and pages keep what
was not run again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.gossip import plot
from bench.gossip.experiments import Run, Scale, run_all
from bench.gossip.experiments_crash import memberlist_first_s
from bench.gossip.judging import Judge
from bench.gossip.network import Conditions, Network, host_of
from bench.gossip.results import PAGE, write_section
from bench.gossip.simulate import EXPERIMENTS
from bench.report import row
from gossip.effects import Send
from gossip.events import TypesHosted
from gossip.membership import Status
from tests.conftest import HowMany

Trace = list[tuple[float, int, str]]


def _traced(seed: int, members: int = 8) -> Trace:
    """All that machines published while one member crashed and another was blocked."""
    network = Network(members, seed=seed, conditions=Conditions(loss=0.05))
    trace: Trace = []
    network.watchers.append(lambda index, fact, now: trace.append((now, index, repr(fact))))
    network.warm_up()
    network.run_for(2.0)
    network.crash(3, sockets_close=True)
    network.block(5, 4.0)
    network.run_for(8.0)
    return trace


def test_the_same_seed_gives_the_same_trace() -> None:
    """And another seed another one, so that the comparison can fail."""
    assert _traced(7) == _traced(7)
    assert _traced(7) != _traced(8)


def test_a_warm_network_is_one_converged_cluster() -> None:
    """Everybody sees all, up and reachable, and it stays so when nothing happens."""
    network = Network(12, seed=3)
    network.warm_up()
    judge = Judge(network)
    network.run_for(5.0)
    for index in range(12):
        view = network.machine(index).view
        assert view is not None
        assert [member.status for member in view.members] == [Status.UP] * 12
        assert view.converged
    assert judge.declarations == []
    assert len(set(network.frames_sent)) > 1  # so it was them who spoke, not the warm-up


def test_members_that_start_become_one_cluster() -> None:
    """The long way in, without a warm start."""
    network = Network(6, seed=2)
    network.start(0, (0,))
    for index in range(1, 6):
        network.start(index, (0,))

    def is_up() -> bool:
        views = [network.machine(index).view for index in range(6)]
        return all(
            view is not None
            and [member.status for member in view.members] == [Status.UP] * 6
            and view.cluster_id == network.machine(0).cluster_id
            for view in views
        )

    assert network.run_until(is_up, within_s=20.0)


@pytest.mark.parametrize("sockets_close", [True, False])
def test_a_crash_is_found_by_all_others(sockets_close: bool) -> None:
    """With the kernel's word much sooner than without; nobody else is declared."""
    network = Network(16, seed=4)
    network.warm_up()
    judge = Judge(network)
    network.run_for(2.0)
    began = network.now
    network.crash(9, sockets_close=sockets_close)
    others = network.living()
    assert network.run_until(lambda: judge.is_held_by(9, others), within_s=60.0)
    assert judge.false([9]) == 0
    known_s = network.now - began
    assert known_s < 1.0 if sockets_close else known_s > 1.0


def test_the_judge_finds_a_member_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: one machine is fed as the others are, and says nothing. Nobody broke it, so
    whoever declares it is wrong as far as the judge knows, and it says so."""
    network = Network(10, seed=5)
    network.warm_up()
    judge = Judge(network)
    mute = network.machine(6)

    def silently(step: Callable[..., list[object]]) -> Callable[..., list[object]]:
        return lambda *arguments: [one for one in step(*arguments) if type(one) is not Send]

    monkeypatch.setattr(mute, "handle", silently(mute.handle))
    monkeypatch.setattr(mute, "tick", silently(mute.tick))
    assert network.run_until(lambda: judge.is_held_by(6, [0, 1, 2]), within_s=60.0)
    assert judge.false([]) >= 3
    assert judge.false([6], at_healthy=True) == 0
    assert judge.episodes[6] == 1


def test_frames_to_a_blocked_member_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused process misses nothing, and is told of its pause once and first."""
    network = Network(4, seed=6)
    network.warm_up()
    network.run_for(2.0)
    network.freeze(2)
    network.run_for(1.5)
    received = network.frames_received[2]
    seen: list[str] = []
    handle = network.machine(2).handle

    def noted(event: object, now: float) -> list[object]:
        seen.append(type(event).__name__)
        return handle(event, now)

    monkeypatch.setattr(network.machine(2), "handle", noted)
    network.thaw(2)
    assert seen[0] == "Paused"
    assert set(seen[1:]) == {"PeerFrame"}
    network.run_for(2.0)
    assert seen.count("Paused") == 1
    assert received > 0


def test_a_cut_member_is_cut_one_way_only() -> None:
    """A deaf member hears nothing while the others hear it."""
    network = Network(6, seed=8)
    network.warm_up()
    network.run_for(1.0)
    network.deafen(1)
    network.run_for(0.01)
    before, others = network.frames_received[1], network.frames_sent[1]
    network.feed(1, TypesHosted(("ledger",)))
    network.run_for(1.0)
    assert network.frames_received[1] == before
    assert network.frames_sent[1] > others
    view = network.machine(4).view
    assert view is not None
    assert view.by_id[network.ids[1]].types == ("ledger",)


def test_bytes_are_counted_as_encoded() -> None:
    """Only where an experiment asks for them; a frame is at least its headers."""
    network = Network(4, seed=1, conditions=Conditions(counts_bytes=True))
    network.warm_up()
    network.run_for(5.0)
    for frames, size in zip(network.frames_sent, network.bytes_sent, strict=True):
        assert 70 * frames < size < 4096 * frames
    assert network.messages_sent["Ping"] > 0


def test_addresses_sort_by_index() -> None:
    """So that the lowest address, who founds and leads, is member 0."""
    hosts = [host_of(index) for index in range(4096)]
    assert hosts == sorted(set(hosts))


def test_the_model_of_memberlist_meets_its_points() -> None:
    """Between two of them along the logarithm."""
    assert memberlist_first_s(128) == pytest.approx(10.1)
    assert 7.3 < memberlist_first_s(32) < 8.5


# the command


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_every_experiment_plans_more_when_asked(name: str) -> None:
    """Quick is the least, and the flags override sizes and seeds."""
    plan = EXPERIMENTS[name].plan
    quick, usual, full = plan(Scale(is_quick=True)), plan(Scale()), plan(Scale(is_full=True))
    assert 0 < len(quick) <= len(usual)
    assert 0 < len(quick) <= len(full)
    mine = plan(Scale(members=(20,), seeds=3))
    assert {run.members for run in mine} == {20}
    assert {run.seed for run in mine} <= {1, 2, 3}


def test_a_run_that_fails_is_told() -> None:
    """With one process or several, the others go on."""
    runs = [Run(experiment="S1", members=size, seed=1) for size in (1, 2, 3)]
    for jobs in (1, 2):
        found = {run.members: outcome for run, outcome in run_all(runs, fails_at_two, jobs)}
        for size in (1, 3):
            outcome = found[size]
            assert not isinstance(outcome, str)
            assert outcome["members"] == size
            assert outcome["cpu_s"] >= 0.0
        assert "no pair" in str(found[2])


def test_further_seeds_are_left_out_when_time_is_up() -> None:
    """Those that must run do, in any case; and first."""
    runs = [Run(experiment="S1", members=1, seed=seed) for seed in (5, 4, 3, 2, 1)]
    for jobs in (1, 2):
        found = run_all(runs, fails_at_two, jobs, extra_until=-1.0)
        assert sorted(run.seed for run, _ in found) == [1, 2]
        assert len(list(run_all(runs, fails_at_two, jobs))) == 5


def fails_at_two(run: Run) -> dict[str, int]:
    """Found by name in the processes of the runs."""
    if run.members == 2:
        raise ValueError("no pair")
    return {"members": run.members}


def test_quick_runs_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    how_many: HowMany,
) -> None:  # fmt: skip
    """The command writes an object, a page and plots, and counts add up."""
    names = ["S2", "S9", "S10", *sorted(EXPERIMENTS)][: how_many(short=3, long=99)]
    target = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv",
        ["bench", "gossip", "simulate", "--experiment", ",".join(dict.fromkeys(names)), "--quick",
         "--jobs", "1", "--json", str(target), "--results", str(tmp_path)],
    )  # fmt: skip
    assert command.main() == 0
    written = json.loads(target.read_text())
    assert written["bench"] == "gossip simulate"
    metrics = {one["metric"] for one in written["rows"]}
    assert {"s2_all_s", "s9_one_view_s", "s10_ticks"} <= metrics
    assert written["settings"]["S2"]["seeds"] == [1]
    assert not any("error" in one for one in written["rows"])
    page = (tmp_path / PAGE).read_text()
    assert page.index("## S2: ") < page.index("## S9: ") < page.index("## S10: ")
    assert (tmp_path / "gossip-S2.svg").read_text().startswith("<svg")
    assert "s2_all_s" in capsys.readouterr().out


def test_a_section_is_replaced_alone(tmp_path: Path) -> None:
    """What another experiment, simulated or real, wrote stays; the list at the top follows."""
    slow = row("s1_first_s", "s", [9.0], expected=1, target=5.0)
    fast = row("s1_first_s", "s", [2.0], expected=1, target=5.0)
    real = row("r1_all_s", "s", [0.2], expected=1, target=0.25, note="N=10 | kernel")
    write_section(tmp_path, "R1", "bench R1", [real], notes=["a note"])
    write_section(tmp_path, "S1", "bench S1", [slow], plot="<svg/>\n")
    first = (tmp_path / PAGE).read_text()
    assert "**missed**" in first
    write_section(tmp_path, "S1", "bench S1 --seeds 2", [fast])
    page = (tmp_path / PAGE).read_text()
    assert "**missed**" not in page
    assert page.count("## S1: ") == page.count("## R1: ") == 1
    assert page.index("## S1: ") < page.index("## R1: ")
    assert page.count("`r1_all_s`") == 2  # in the list of targets, and in its section
    assert "a note" in page
    assert "bench S1 --seeds 2" in page
    assert write_section(tmp_path, "S1", "bench S1 --seeds 2", [fast]) == [tmp_path / PAGE]
    assert (tmp_path / PAGE).read_text() == page


def test_plots_are_the_same_bytes_and_stand_zeros() -> None:
    """Also where an axis is logarithmic."""
    y = plot.Axis("count", is_log=True)
    groups = {"C=8": {"plain": 120.0, "ours": 0.0}, "C=16": {"plain": 4000.0}}
    assert plot.bars("S3", y, groups, limit=1.0) == plot.bars("S3", y, groups, limit=1.0)
    drawn = plot.lines("S1", plot.Axis("N", is_log=True), plot.Axis("s"), {"all": [(32, 0.0)]})
    assert drawn.count("<circle") == 1
