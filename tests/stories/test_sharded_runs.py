"""Random faults against sharded entities, many seeds, judged from outside.

`make test` runs 24 seeds, `make test-long` 5,000 at each level of downing; `python -m node simulate
--subject sharding` runs the same ones. Planted faults: `test_partition_runs.py`.
"""

from __future__ import annotations

import pytest

from node.settings import Settings
from node.testkit import simulate
from node.testkit.sharded import GRACEFUL, ShardedWorld
from tests.conftest import HowMany

PARTS = 4
DOWNING = Settings(downing="keep-majority")


@pytest.mark.parametrize("part", range(PARTS))
def test_no_entity_acts_in_two_places_and_all_answer_in_the_end(
    part: int, how_many: HowMany
) -> None:
    """A part of the seeds, so that all cores can work."""
    seeds = range(part, how_many(short=24, long=5_000), PARTS)
    runs = simulate.run_all(DOWNING, seeds, nodes=None, planted=None, jobs=1, subject="sharding")
    bad = [f"seed {run.seed} ({run.kind}): {run.violations}" for run in runs if run.violations]
    assert bad == []
    assert len(runs) == len(seeds)


class Graceful(ShardedWorld):
    """Leaves, joins, rebalances, moves of the coordinator, and no fault."""

    kinds = GRACEFUL


def test_without_a_fault_each_message_is_handled_once_and_in_order(how_many: HowMany) -> None:
    bad = []
    for seed in range(how_many(short=8, long=1_000)):
        with Graceful(seed, DOWNING) as world:
            run = world.run_scenario()
        bad += [f"seed {seed} ({run.kind}): {words}" for words in run.violations]
    assert bad == []


@pytest.mark.parametrize("part", range(PARTS))
def test_nor_where_the_coordinator_has_a_lease_whose_store_has_troubles(
    part: int, how_many: HowMany
) -> None:
    seeds = range(part, how_many(short=8, long=5_000), PARTS)
    runs = simulate.run_all(
        DOWNING, seeds, nodes=None, planted=None, jobs=1, leased=True, subject="sharding"
    )
    assert [(run.seed, run.kind, run.violations) for run in runs if run.violations] == []


def test_at_level_none_all_is_one_again_in_the_end(how_many: HowMany) -> None:
    """Two may act as long as a split lasts: shown, not hidden."""
    seeds = range(how_many(short=8, long=1_000))
    runs = simulate.run_all(
        Settings(downing="none"), seeds, nodes=None, planted=None, jobs=1, subject="sharding"
    )
    assert [(run.seed, run.kind, run.violations) for run in runs if run.violations] == []
    assert any("overlap" in run.covered for run in runs)


def test_a_run_is_a_function_of_its_seed() -> None:
    """Another process, whose hashes differ, is asked elsewhere: sets of nodes are sorted."""
    hashes = []
    for _ in range(2):
        with ShardedWorld(8, DOWNING) as world:
            world.run_scenario()
            hashes.append(world.trace_hash())
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--protection", "none"], 2),
        (["--protection", "none", "--subject", "sharding", "--seeds", "2", "--jobs", "1"], 0),
        (["--sabotage", "no-gate", "--subject", "sharding", "--seeds", "40", "--jobs", "1"], 0),
    ],
)
def test_the_command_knows_the_subject(flags: list[str], code: int) -> None:
    """Level none is for sharding alone; other faults than its own are found with it as well."""
    assert simulate.main(flags) == code
