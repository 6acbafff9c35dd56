"""The decided cases: one view each, and what must come of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.downing.cases import (
    Case,
    decide_case,
    load,
    run_case,
    situation_of,
    strategy_of,
    view_of,
)

GIVEN = load("sbr-cases.json")
CASES = [*GIVEN, *load("keep-referee-cases.json")]
GONE = ("exiting", "down")
SCENARIOS = json.loads((Path(__file__).parent / "sbr-cases.json").read_text())["scenarios"]

each_case = pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])


@each_case
def test_a_case_is_decided_as_written(case: Case) -> None:
    """Decision and downed members are exactly those of the case."""
    expected = {name: case["expect"][name] for name in ("decision", "downed")}
    assert run_case(case) == expected


@each_case
def test_the_strategy_alone_and_the_fallbacks_come_to_the_same(case: Case) -> None:
    """Without the resolver: the strategy's answer, then lease, stability and quarantine."""
    expected = {name: case["expect"][name] for name in ("decision", "downed")}
    assert decide_case(case) == expected


@each_case
def test_a_strategy_proposes_as_written(case: Case) -> None:
    """Before lease and fallbacks: the kind, the delay, self as the last one downed."""
    view, situation = view_of(case), situation_of(case)
    if situation.quarantined_by or situation.is_unstable or not view.unreachable:
        return
    if not (situation.is_leader and situation.is_stable):
        return
    proposal = strategy_of(case).decide(view)
    assert proposal.kind == case["expect"]["proposal"], proposal.why
    assert proposal.delay == case["expect"].get("acquire_delay", "none"), proposal.why
    assert view.self_id not in proposal.downed[:-1]


@each_case
def test_indirectly_connected_members_are_those_of_the_case(case: Case) -> None:
    """Derived from the records and from who has seen the state."""
    derived = {node.host for node in view_of(case).indirectly_connected}
    assert derived == set(case["indirectly_connected"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[each["id"] for each in SCENARIOS])
def test_the_sides_of_an_event_leave_the_survivors_that_are_written(
    scenario: dict[str, Any],
) -> None:
    """Each side's decision reaches that side only: who is left over all of them."""
    survivors: set[str] = set()
    cases = {case["id"]: case for case in GIVEN}
    for case in (cases[number] for number in scenario["cases"]):
        side = next(side for side in scenario["sides"] if case["self"] in side)
        gone = {entry["name"] for entry in case["members"] if entry["status"] in GONE}
        survivors |= {*side} - gone - {*run_case(case)["downed"]}
    assert sorted(survivors) == scenario["survivors"]


@pytest.mark.parametrize("answer", ["denied", "error", "not-called"])
def test_a_lease_that_is_held_already_is_not_asked_for(answer: str) -> None:
    """Held means granted, whatever an acquire would have answered."""
    for case in (case for case in GIVEN if case["strategy"] == "lease-majority"):
        held = {**case, "lease": {"acquire": answer, "already_held": True}}
        granted = {**case, "lease": {"acquire": "granted", "already_held": False}}
        assert run_case(held) == run_case(granted)


@each_case
def test_who_does_not_lead_or_is_not_stable_decides_nothing(case: Case) -> None:
    """Only instability and quarantine act without leadership and stability."""
    situation = situation_of(case)
    if situation.is_unstable or situation.quarantined_by:
        return
    for missing in ("self_is_leader", "stable_after_elapsed"):
        assert run_case({**case, missing: False}) == {"decision": "none", "downed": []}


@each_case
def test_an_unstable_view_downs_everything_leader_or_not(case: Case) -> None:
    """Whatever the strategy; who is exiting or down already is not downed again."""
    if "quarantined_by" in case:
        return
    result = run_case({**case, "unstable": True, "self_is_leader": False})
    living = [entry["name"] for entry in case["members"] if entry["status"] not in GONE]
    assert result == {"decision": "down-all", "downed": living}


def test_the_word_of_who_is_no_member_is_not_heeded() -> None:
    """Quarantined by a stranger: nothing happens."""
    case = next(case for case in GIVEN if "quarantined_by" in case)
    assert run_case({**case, "quarantined_by": "z"}) == {"decision": "none", "downed": []}


def test_the_referees_cases_are_six() -> None:
    """The same schema as the given ones."""
    own = load("keep-referee-cases.json")
    assert [case["id"] for case in own] == [f"KR-0{number}" for number in range(1, 7)]
    assert {key for case in own for key in case} <= {key for case in GIVEN for key in case}
