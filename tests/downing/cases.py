"""Runs one decided case (`sbr-cases.json`) through the product's own strategies and resolver.

`run_case` is the door; a case's `conventions` define its fields. `decide_case` says what follows
from the strategies and the conventions alone, so that the two can be compared.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from downing.events import (
    ArbiterDenied,
    ArbiterGranted,
    ArbiterUnknown,
    AskArbiter,
    DowningDecided,
    MarkDown,
)
from downing.machine import DowningMachine
from downing.messages import (
    ContactAck,
    ContactPing,
    Grant,
    PromiseDown,
    ProposeDown,
    StopOrder,
    Stopped,
)
from downing.settings import DowningSettings
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
from gossip.effects import PeerMessage, Publish, Send
from gossip.events import Exit, PeerFrame, Started
from gossip.machine import GossipMachine
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from gossip.messages import Gossip, Head, JoinChallenge, Welcome, YouAreGone
from gossip.settings import GossipSettings

PORT = 25520
UNSTABLE_S = 3.0

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
    """What the product decides: `{"decision": str, "downed": [names, sorted]}`.

    The resolver of the deciding member is driven through the case's time: the others answer its
    pings, promise and stop as far as it hears them.
    """
    decision, downed = Drive(case).run()
    return {"decision": decision, "downed": sorted(node.host for node in downed)}


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


class Drive:
    """One resolver and everybody that it hears, in a case's time."""

    def __init__(self, case: Case) -> None:
        self.view, self.situation = view_of(case), situation_of(case)
        self.timing: dict[str, Any] = case.get("timing", {})
        self.now = 100.0
        self.decided: DowningDecided | None = None
        self.marked: set[NodeId] = set()
        self.ended: Exit | None = None
        self._lease_held_until = self.now + 1e6
        unstable_s = UNSTABLE_S if self.situation.is_unstable else None
        self.machine = DowningMachine(
            self.view.self_id,
            strategy_of(case),
            DowningSettings(down_all_when_unstable_s=unstable_s),
            lambda: self.view.seen_by | {self.view.self_id},
        )

    def run(self) -> tuple[str, tuple[NodeId, ...]]:
        """The effective decision, and whom it downs."""
        situation, down_after_s = self.situation, self.machine.settings.down_after_s
        if situation.quarantined_by in {member.id for member in self.view.members}:
            assert situation.quarantined_by is not None
            return self._told_down(situation.quarantined_by)
        self._show(frozenset(), converged=True)
        if situation.is_unstable:
            # Each change comes before the view was stable for long enough.
            steps = 2 * int(down_after_s + UNSTABLE_S) + 3
            others = self._others_reachable
            lost = self.view.unreachable & self.view.downable or frozenset(others[:1])
            odd = lost | frozenset(others[-1:])
            if odd == lost:
                odd = lost - frozenset(sorted(lost)[:1])
            for step in range(steps):
                self._show(self.view.unreachable | lost if step % 2 else odd)
                self._go_on(0.5)
        else:
            self._show(self.view.unreachable)
            self._go_on(down_after_s * (1.2 if situation.is_stable else self._share_of_stable))
            if self.timing.get("healed"):
                self._show(frozenset())
            if situation.is_stable:
                self._go_on(down_after_s)
        return self._result()

    @property
    def _others_reachable(self) -> list[NodeId]:
        away = self.view.unreachable | {self.view.self_id}
        return sorted(m.id for m in self.view.members if m.id not in away)

    @property
    def _share_of_stable(self) -> float:
        """How much of the wait had passed, where it was not over yet."""
        whole_s = float(self.timing.get("stable_after_s", 2.0))
        since_s = float(self.timing.get("since_latest_change_s", 1.0))
        return min(0.9, since_s / whole_s) if whole_s else 0.9

    def _result(self) -> tuple[str, tuple[NodeId, ...]]:
        me = self.view.self_id
        if not (self.situation.is_leader or self.situation.is_unstable):
            # It does not decide for its side; that it may go by its own timer is another matter.
            assert not self.marked
            return "none", ()
        if self.decided is None:
            assert not self.marked
            assert self.ended is None
            return "none", ()
        downed = self.decided.downed
        if me in downed:
            # Each of a losing side goes by its own timer, and this one has gone.
            assert self.ended is not None
            assert self.ended.code == 10
        else:
            assert self.marked == set(downed), "what was decided was not carried out"
        return self.decided.kind, downed

    def _told_down(self, by: NodeId) -> tuple[str, tuple[NodeId, ...]]:
        """Membership hears the verdict: from a member alone it is believed."""
        gossip = membership_of(self.view)
        head = Head(gossip.cluster_id, *(0,) * 3)
        told = YouAreGone(self.view.self_id.uid, int(Cause.DOWNED))
        for sender in [by, *sorted(m.id for m in self.view.members if m.id != by)]:
            for effect in gossip.handle(PeerFrame(sender, head, (told,)), self.now):
                if isinstance(effect, Exit) and effect.code == 10:
                    return str(ProposalKind.DOWN_SELF_QUARANTINED), (self.view.self_id,)
        return "none", ()

    def _show(self, unreachable: frozenset[NodeId], *, converged: bool = False) -> None:
        view, situation = self.view, self.situation
        others = [m.id for m in view.members if m.id != view.self_id]
        members = tuple(sorted(view.members, key=lambda member: member.id))
        down = {node for node in unreachable if node in self.marked}
        self._handle(
            MembershipView(
                view.self_id,
                1,
                members=tuple(
                    replace(m, status=Status.DOWN) if m.id in self.marked else m for m in members
                ),
                unreachable=unreachable - down,
                records=tuple(r for r in view.records if r[1] in unreachable),
                leader=view.self_id if situation.is_leader else next(iter(others), None),
                converged=converged,
                agreed=converged,
                members_digest=1,
            )
        )

    def _handle(self, event: object) -> None:
        self._perform(self.machine.handle(event, self.now))

    def _go_on(self, for_s: float) -> None:
        until = self.now + for_s
        for _ in range(100_000):
            if self.machine.deadline > until:
                break
            self.now = max(self.now, self.machine.deadline)
            self._perform(self.machine.tick(self.now))
        else:
            raise AssertionError("the resolver does not come to rest")
        self.now = until

    def _perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Publish(fact=DowningDecided() as fact):
                    self.decided = self.decided or fact
                case MarkDown():
                    self.marked.update(effect.members)
                    self._show(self.view.unreachable)
                case Exit():
                    self.ended = self.ended or effect
                case AskArbiter():
                    self._answer_lease(effect)
                case Send(to=to, message=message, via=None) if self._hears(to):
                    self._answer(to, message)

    def _hears(self, node: NodeId) -> bool:
        """Whoever is reachable, or has seen our very state."""
        view = self.view
        is_member = any(m.id == node and m.status < Status.DOWN for m in view.members)
        return is_member and (node not in view.unreachable or node in view.seen_by)

    def _answer(self, node: NodeId, message: object) -> None:
        match message:
            case ContactPing():
                answer: object = ContactAck(message.seq, Grant.GIVEN, message.base_digest)
            case ProposeDown():
                about = [subject for subject in message.subjects if subject != node]
                answer = PromiseDown(message.round, tuple((subject, 10.0) for subject in about))
            case StopOrder():
                answer = Stopped()
            case _:
                return
        self._handle(PeerMessage(node, answer))

    def _answer_lease(self, order: AskArbiter) -> None:
        situation = self.situation
        if situation.lease_held or situation.lease == "granted":
            self._handle(ArbiterGranted(order.attempt, self._lease_held_until))
        elif situation.lease == "denied":
            self._handle(ArbiterDenied(order.attempt, "another side"))
        else:
            self._handle(ArbiterUnknown(order.attempt, "no answer"))


def membership_of(view: PartitionView) -> GossipMachine:
    """The membership of the deciding member, welcomed by the others of its view."""
    me = next(m for m in view.members if m.id == view.self_id)
    gossip = GossipMachine(
        replace(me, status=Status.JOINING, up_number=0),
        cluster_name="cases",
        settings=GossipSettings(downing=True),
        rng=random.Random(1),
    )
    seed = next(m.id for m in view.members if m.id != view.self_id)
    news = Gossip(members=tuple(sorted(view.members, key=lambda member: member.id)))
    gossip.handle(Started(((seed.host, seed.port),)), 0.0)
    head = Head()
    gossip.handle(PeerFrame(seed, head, (JoinChallenge(1),)), 0.0)
    gossip.handle(PeerFrame(seed, head, (Welcome(1, news),)), 0.0)
    assert gossip.cluster_id == 1
    return gossip


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
