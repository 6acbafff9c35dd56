"""Runs one decided case (`sbr-cases.json`) through the product's own strategies.

`run_case` is the door; a case's `conventions` define its fields. The translation of a case is in
small functions, so that a test of the resolver can feed it the same situations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downing.strategies import (
    DownAll,
    KeepMajority,
    KeepOldest,
    KeepReferee,
    LeaseMajority,
    Proposal,
    ProposalKind,
    StaticQuorum,
    Strategy,
    down_everything,
)
from downing.view import PartitionView
from gossip.membership import Member, NodeId, Status

PORT = 25520

Case = dict[str, Any]


@dataclass(frozen=True)
class Situation:
    """What the resolver knows besides the view.

    `lease`: the answer an acquire would get (granted, denied, error, not-called); `lease_held`:
    it is ours already, so nobody is asked.
    """

    is_leader: bool = True
    is_stable: bool = True
    is_unstable: bool = False
    quarantined_by: NodeId | None = None
    lease: str = "not-called"
    lease_held: bool = False


def run_case(case: Case) -> dict[str, Any]:
    """What the product decides: `{"decision": str, "downed": [names, sorted]}`."""
    return decide_case(case)


def decide_case(case: Case) -> dict[str, Any]:
    """The same by the strategies and the fallbacks of the conventions, without the resolver."""
    decision, downed = settle(strategy_of(case), view_of(case), situation_of(case))
    return {"decision": str(decision), "downed": sorted(node.host for node in downed)}


def settle(
    strategy: Strategy, view: PartitionView, situation: Situation
) -> tuple[ProposalKind, tuple[NodeId, ...]]:
    """The effective decision and whom it downs, in this order: quarantine, instability, rule."""
    if situation.quarantined_by in {member.id for member in view.members}:
        downed = (view.self_id,) if view.self_id in view.downable else ()
        return ProposalKind.DOWN_SELF_QUARANTINED, downed
    if situation.is_unstable:
        proposal = down_everything(view, "the view did not settle")
        return proposal.decision, proposal.downed
    if not (situation.is_leader and situation.is_stable and view.unreachable):
        return ProposalKind.NONE, ()
    proposal = after_lease(strategy, view, strategy.decide(view), situation)
    return proposal.decision, proposal.downed


def after_lease(
    strategy: Strategy, view: PartitionView, proposal: Proposal, situation: Situation
) -> Proposal:
    """Granted: as proposed. Denied: the reverse. Unknown: nothing is decided."""
    if not proposal.kind.asks_lease or situation.lease_held or situation.lease == "granted":
        return proposal
    if situation.lease == "denied":
        return strategy.reverse(view, proposal)
    why = f"{strategy.name}: the lease did not answer"
    return Proposal(ProposalKind.NONE, ProposalKind.NONE, (), why)


def node_of(name: str) -> NodeId:
    """The member called `name`; the order of names is the order of addresses."""
    return NodeId(name, PORT, 1)


def member_of(entry: dict[str, Any]) -> Member:
    """One member of a case."""
    return Member(
        node_of(entry["name"]),
        name=entry["name"],
        roles=tuple(entry["roles"]),
        status=Status[entry["status"].upper().replace("-", "_")],
        up_number=entry["up_number"] or 0,
    )


def view_of(case: Case) -> PartitionView:
    """What the deciding member of a case sees."""
    return PartitionView(
        members=tuple(member_of(entry) for entry in case["members"]),
        unreachable=frozenset(node_of(name) for name in case["unreachable"]),
        records=tuple((node_of(by), node_of(of)) for by, of in case["reachability"]),
        seen_by=frozenset(node_of(name) for name in case["seen_by"]),
        self_id=node_of(case["self"]),
    )


def situation_of(case: Case) -> Situation:
    """What a case says of leadership, time and lease; what it omits is favourable."""
    lease = case.get("lease", {})
    by = case.get("quarantined_by")
    return Situation(
        is_leader=case.get("self_is_leader", True),
        is_stable=case.get("stable_after_elapsed", True),
        is_unstable=case.get("unstable", False),
        quarantined_by=None if by is None else node_of(by),
        lease=lease.get("acquire", "not-called"),
        lease_held=lease.get("already_held", False),
    )


def strategy_of(case: Case) -> Strategy:
    """The strategy of a case with its settings; those it leaves out have their defaults."""
    settings = dict(case["settings"])
    role = settings.get("role", "")
    match case["strategy"]:
        case "keep-majority":
            return KeepMajority(role)
        case "static-quorum":
            return StaticQuorum(settings["quorum_size"], role)
        case "keep-oldest":
            return KeepOldest(settings.get("down_if_alone", True), role)
        case "keep-referee":
            return KeepReferee(node_of(settings["referee"]).address, role)
        case "lease-majority":
            return LeaseMajority(
                role,
                settings.get("acquire_lease_delay_for_minority_s", 2.0),
                settings.get("release_after_s", 40.0),
            )
        case "down-all":
            return DownAll()
    raise ValueError(f"case {case['id']}: no strategy {case['strategy']!r}")


def load(name: str) -> list[Case]:
    """The cases of one file beside this one."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return list(json.loads(text)["cases"])
