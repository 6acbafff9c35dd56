"""The hand-over rule by exhaustive search, and the search itself by planted faults.

Guards I-26, I-27, I-38, I-39, I-42, I-45, I-48 and BC-001: never two instances at once unless a
`UniquenessNotProven` said so, whatever the order, the repetition and the loss of messages and
whatever the views.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.membership import Member, MembershipView, NodeId, Status
from singleton import machine as machine_module
from singleton.election import has_role, hosted_type, peers_to_ask
from singleton.machine import SingletonMachine, State, Trigger
from singleton.messages import AnswerKind, HandOverAnswer, HandOverAsk
from singleton.settings import SingletonSettings
from tests.singleton.search import Scene, search
from tests.singleton.worlds import TYPE, member, view

A, B, C = member("a"), member("b"), member("c")
A_NOT, B_NOT = replace(A, types=()), replace(B, types=())  # its record does not show the type
B_JOINING = replace(B, status=Status.JOINING, up_number=0)
A_LEAVING = replace(A, status=Status.LEAVING)

Views = dict[str, tuple[MembershipView, ...]]

TWO: Views = {
    "a": (view("a", [A, B]), view("a", [A_NOT, B]), view("a", [A, B_NOT])),
    "b": (view("b", [A, B]), view("b", [A, B], unreachable="a"), view("b", [A_NOT, B])),
}
NEWCOMER: Views = {
    "a": (view("a", [A]), view("a", [A, B_JOINING]), view("a", [A, B])),
    "b": (view("b", [A_NOT, B]), view("b", [A, B])),
}
THREE: Views = {
    "a": (view("a", [A, B, C]), view("a", [A_NOT, B, C])),
    "b": (view("b", [A, B, C]), view("b", [A, B, C], unreachable="a")),
    "c": (view("c", [A, B, C]), view("c", [A, B, C], unreachable="a b")),
}
LEAVING: Views = {
    "a": (view("a", [A, B, C]),),
    "b": (view("b", [A, B, C]), view("b", [A_LEAVING, B, C])),
    "c": (view("c", [A, B, C]), view("c", [A_LEAVING, B, C])),
}

X = SingletonSettings(role="x", terms="x")
AX = replace(A, roles=("x",), types=(hosted_type(TYPE, "x"),))
AX_NOT = replace(AX, types=())
ROLES: Views = {
    "a": (view("a", [AX, B]), view("a", [AX, B_NOT]), view("a", [AX_NOT, B])),
    "b": (view("b", [AX, B]), view("b", [AX_NOT, B]), view("b", [AX, B_NOT])),
}
KNOWN: Views = {
    "a": (view("a", [AX, B]),),
    "b": (view("b", [AX, B]), view("b", [AX, B], unreachable="a")),
}

SCENES = {
    "2 nodes, 3 rounds": Scene(TWO, rounds_max=3, flips_max=3),
    "2 nodes, 3 rounds, both call start late": Scene(TWO, 3, 2, late="ab"),
    "2 nodes, 3 rounds, the younger hosts": Scene(TWO, 3, 3, hosted_by="b"),
    "2 nodes, 3 rounds, instances die": Scene(TWO, 3, 1, deaths=True),
    "2 nodes, 3 rounds, both may leave": Scene(TWO, 3, 1, hosted_by="a", leavers="ab"),
    "2 nodes, 3 rounds, one joins": Scene(NEWCOMER, 3, 4, late="ab", forward_only=True),
    "3 nodes, 1 round": Scene(THREE, rounds_max=1, flips_max=1),
    "3 nodes, the host leaves": Scene(LEAVING, 1, 1, hosted_by="a", leavers="a"),
    "3 nodes, the host and its successor leave": Scene(
        LEAVING, 1, 0, hosted_by="a", leavers="ab", claims_lapse=False
    ),
    "2 nodes, roles differ, both call start late": Scene(ROLES, 3, 2, late="ab", settings={"a": X}),
    "2 nodes, roles differ, the older is late": Scene(ROLES, 3, 2, late="a", settings={"a": X}),
    "2 nodes, roles differ, the younger is late": Scene(ROLES, 3, 2, late="b", settings={"a": X}),
    "2 nodes, roles differ, the younger hosts": Scene(
        KNOWN, 3, 3, hosted_by="b", deaths=True, leavers="ab", settings={"a": X}
    ),
}
LARGE_SCENES = {
    "2 nodes, 3 rounds, any view five times": Scene(TWO, rounds_max=3, flips_max=5),
    "2 nodes, 3 rounds, both may leave": Scene(TWO, 3, 2, hosted_by="a", leavers="ab"),
    "3 nodes, 1 round": Scene(THREE, rounds_max=1, flips_max=2),
    "3 nodes, the host leaves": Scene(LEAVING, 2, 2, hosted_by="a", leavers="a"),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_never_two_instances(scene: Scene) -> None:
    """I-26, BC-001: in no reachable state do two instances exist."""
    found = search(scene)
    assert found.violation == ()
    assert found.state_count > 1000, "the scene reaches next to nothing"
    assert found.started_count > 100, "instances hardly ever start"


@pytest.mark.long
@pytest.mark.parametrize("scene", LARGE_SCENES.values(), ids=LARGE_SCENES.keys())
def test_never_two_instances_in_larger_scenes(scene: Scene) -> None:
    """The same, with more changes of view."""
    assert search(scene, states_max=20_000_000).violation == ()


class CandidateAnswers(SingletonMachine):
    """F4: a candidate tells the truth about the past instead of giving a promise."""

    def _answer_ask(self, asker: Member, ask: HandOverAsk, now: float) -> None:
        if self.state is State.ASKING:
            self._answer(asker.id, ask.round, AnswerKind.NONE)
        else:
            super()._answer_ask(asker, ask, now)


class PromisesWithoutVoiding(SingletonMachine):
    """A candidate answers an older one, but keeps the answers it has."""

    def _fire(self, trigger: Trigger, now: float) -> None:
        if trigger is not Trigger.ROUND_VOID:
            super()._fire(trigger, now)


class AnyRoundWillDo(SingletonMachine):
    """An answer to an earlier round is taken for one to this."""

    def _on_answer(self, sender: NodeId, answer: HandOverAnswer, now: float) -> None:
        super()._on_answer(sender, replace(answer, round=self._round), now)


class ConfirmsWhileStopping(SingletonMachine):
    """I-27: "stopped" said when the stop was only ordered."""

    def _answer_ask(self, asker: Member, ask: HandOverAsk, now: float) -> None:
        if self.state is State.STOPPING:
            self._answer(asker.id, ask.round, AnswerKind.NONE)
        else:
            super()._answer_ask(asker, ask, now)


class HostSaysNone(SingletonMachine):
    """A host that starts its instance does not count it yet."""

    def _answer_ask(self, asker: Member, ask: HandOverAsk, now: float) -> None:
        if self.state is State.STARTING:
            self._answer(asker.id, ask.round, AnswerKind.NONE)
        else:
            super()._answer_ask(asker, ask, now)


class ForgetsWhomItPromised(SingletonMachine):
    """Members that our view does not show as up are answered, though we would not ask them."""

    def _remember_early(self, sender: NodeId, ask: HandOverAsk, now: float) -> None:
        self._answer(sender, ask.round, AnswerKind.NONE)


class AsksOnlyTheReachable(SingletonMachine):
    """I-40: whoever is unreachable is not asked."""

    def _update_asked(self, now: float) -> None:
        assert self._view is not None
        self._peers -= self._view.unreachable
        super()._update_asked(now)


class AsksByRoleAlone(SingletonMachine):
    """I-43: who has not our role is not asked, whatever it shows, asks or was promised."""

    def _find_peers(self, now: float) -> None:
        if self._view is not None:
            may_host = {m.id for m in self._view.members if has_role(m, self._settings.role)}
            self._peers = peers_to_ask(self._view, self.type_name, None, ()) & may_host


FAULTS = {
    "candidate answers": (CandidateAnswers, "2 nodes, 3 rounds"),
    "candidate answers, 3 nodes": (CandidateAnswers, "3 nodes, 1 round"),
    "promises without voiding": (PromisesWithoutVoiding, "2 nodes, 3 rounds"),
    "any round will do": (AnyRoundWillDo, "2 nodes, 3 rounds"),
    "confirms while stopping": (
        ConfirmsWhileStopping,
        "3 nodes, the host and its successor leave",
    ),
    "host says none": (HostSaysNone, "2 nodes, 3 rounds"),
    "forgets whom it promised": (ForgetsWhomItPromised, "2 nodes, 3 rounds, one joins"),
    "asks only the reachable": (AsksOnlyTheReachable, "2 nodes, 3 rounds"),
    "asks by role alone": (AsksByRoleAlone, "2 nodes, roles differ, both call start late"),
}


@pytest.mark.parametrize(("fault", "scene"), FAULTS.values(), ids=FAULTS.keys())
def test_the_search_finds_a_planted_fault(fault: type[SingletonMachine], scene: str) -> None:
    """A search that finds nothing proves nothing unless it finds what is there."""
    found = search(replace(SCENES[scene], make=fault))
    assert 2 <= len(found.violation) <= 14, found.violation


def test_the_search_finds_that_records_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking only members whose record shows the type lets two late starters miss each other."""

    def only_hosting(
        seen: MembershipView, type_name: str, role: str | None, former: tuple[object, ...]
    ) -> set[object]:
        hosted = hosted_type(TYPE)
        shown = {each.id for each in seen.members if hosted in each.types}
        return {peer for peer in peers_to_ask(seen, type_name, role, ()) if peer in shown}

    monkeypatch.setattr(machine_module, "peers_to_ask", only_hosting)
    assert search(SCENES["2 nodes, 3 rounds"]).violation
