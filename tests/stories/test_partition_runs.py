"""Random splits, pauses, crashes, joins, moves and orders, many seeds, judged from outside.

`make test` runs 100 seeds, `make test-long` 5,000, and 10,000 under a lease; `python -m node
simulate` runs the same ones.
"""

from __future__ import annotations

import pytest

from node.settings import Settings
from node.testkit import simulate
from node.testkit.sabotage import SABOTAGES
from tests.conftest import HowMany

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_split_lets_two_act_and_all_is_one_in_the_end(part: int, how_many: HowMany) -> None:
    """A part of the seeds, so that all cores can work."""
    seeds = range(part, how_many(short=100, long=5_000), PARTS)
    settings = Settings(downing="keep-majority")
    runs = simulate.run_all(settings, seeds, nodes=None, planted=None, jobs=1)
    bad = [f"seed {run.seed} ({run.kind}): {run.violations}" for run in runs if run.violations]
    assert bad == []
    assert len(runs) == len(seeds)


@pytest.mark.parametrize("strategy", ["keep-oldest", "static-quorum:quorum_size=3", "down-all"])
def test_the_other_strategies_are_as_safe(strategy: str, how_many: HowMany) -> None:
    """Of five members each."""
    seeds = range(how_many(short=5, long=500))
    runs = simulate.run_all(Settings(downing=strategy), seeds, nodes=5, planted=None, jobs=1)
    assert [(run.seed, run.violations) for run in runs if run.violations] == []


@pytest.mark.parametrize("part", range(PARTS))
def test_under_a_lease_whose_store_has_troubles_two_never_act(part: int, how_many: HowMany) -> None:
    """S2, S7, S10: outages, ways cut for one, lost answers, writes that land much later. Tokens
    grow, and one acts in the end."""
    seeds = range(part, how_many(short=40, long=10_000), PARTS)
    settings = Settings(downing="keep-majority")
    runs = simulate.run_all(settings, seeds, nodes=5, planted=None, jobs=1, leased=True)
    assert [(run.seed, run.violations) for run in runs if run.violations] == []


FOUND_BY = {
    "no-contact": 9,
    "no-joint": 234,
    "no-quiet": 43,
    "found-by-seeds-only": 2,
    "no-gate": 9,
    "gate-per-message": 186,
    "candidate-answers": 101,
    "digest-without-reachability": 20,
    "nonce-per-process": 15,
    "early-release": 1,
    "rebuild-without-report": 12,
    "term-from-up-number": 25,
}
"""The first seed that finds it. Another kind of run moves them all: then simulate tells the new."""


@pytest.mark.parametrize("fault", SABOTAGES)
def test_each_planted_fault_is_found(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command as it stands in docs/downing.md; what needs a lease or entities gets them."""
    seed = FOUND_BY[fault]
    assert simulate.main([f"--sabotage={fault}", f"--first={seed}", "--seeds=1", "--jobs=1"]) == 0
    assert f"found by seed {seed}" in capsys.readouterr().out
    assert seed < 1000


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--downing", "lease-majority"], "no store of leases"),
        (["--downing", "none"], "decides nothing"),
        (["--downing", "keep-majority:role=core"], "leave the role out"),
        (["--nodes", "2"], "no side is a majority"),
        (["--seeds", "0"], "no whole number above 0"),
    ],
)
def test_what_can_not_be_shown_is_refused(
    flags: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and why."""
    try:
        code = simulate.main(flags)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert word in capsys.readouterr().err
