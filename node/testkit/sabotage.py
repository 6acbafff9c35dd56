"""Planted faults: what the checkers must find, or they find nothing.

Decides, for each name, which rule of the product is taken out. Each is a context manager around a
run in this process; nothing of it is reachable in a node that runs. Called by
`node.testkit.simulate` and by tests.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from downing.contact import Contact
from downing.machine import DowningMachine
from downing.settings import DowningSettings
from gossip.membership import Member, NodeId
from gossip.table import MembershipTable
from lease.machine import LeaseMachine
from lease.record import LeaseRecord
from node.authority import Authority, Gate, LeasedAuthority
from node.cell import Cell
from node.testkit.host import SimStateStore
from sharding.coordinator import CoordinatorMachine
from singleton.effects import StopCause
from singleton.machine import CANDIDATE, SingletonMachine
from singleton.messages import AnswerKind, HandOverAsk


@contextlib.contextmanager
def sabotage(name: str) -> Iterator[None]:
    """Run with one planted fault; raises KeyError for a name that is not in `SABOTAGES`."""
    patches = SABOTAGES[name][1]()
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in patches]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


Patches = list[tuple[type, str, Any]]


def _no_contact() -> Patches:
    def refresh(self: Contact, now: float) -> None:
        self.until = math.inf

    return [(Contact, "refresh", refresh), (Contact, "_count_newest", lambda self: None)]


def _no_joint() -> Patches:
    def survives(self: Contact, present: Collection[NodeId]) -> bool:
        return self._view is not None and self._strategy.survives(self._view.members, present)

    return [
        (Contact, "survives", survives),
        (DowningMachine, "_survives_in_base", lambda self, present: True),
    ]


def _no_quiet() -> Patches:
    return [(DowningSettings, "quiet_needed_s", property(lambda self: 0.0))]


def _found_by_seeds_only() -> Patches:
    return [(SimStateStore, "load", lambda self: ())]


def _no_gate() -> Patches:
    return [
        (Gate, "is_open", lambda self, now: True),
        (Gate, "is_open_now", property(lambda self: True)),
        (Authority, "held", property(lambda self: True)),
        *_without_lease(),
    ]


def _without_lease() -> Patches:
    return [
        (LeasedAuthority, "held", property(lambda self: True)),
        (LeasedAuthority, "is_open", property(lambda self: True)),
        (LeasedAuthority, "valid_until", property(lambda self: math.inf)),
        (LeasedAuthority, "open_until", property(lambda self: math.inf)),
    ]


def _gate_per_message() -> Patches:
    def begin_step(self: Cell) -> None:
        self.runtime.step()

    return [(Cell, "_begin_gated_step", begin_step)]


def _candidate_answers() -> Patches:
    # Views are mended by gossip, and with the question the older one's record comes along: so two
    # candidates meet only where one of them missed a notice, as in the kind *move*.
    answer = SingletonMachine._answer_ask

    def and_go_on(self: SingletonMachine, asker: Member, ask: HandOverAsk, now: float) -> None:
        if self.state not in CANDIDATE:
            answer(self, asker, ask, now)
            return
        self._answer(asker.id, ask.round, AnswerKind.NONE)

    return [(SingletonMachine, "_answer_ask", and_go_on)]


def _digest_without_reachability() -> Patches:
    # Contact and promises do not rest on it, so two never act. But who is heard in one direction
    # only then counts as one that has seen the accusation, and its accusers end along with it.
    def moved(self: MembershipTable, delta: int) -> None:
        self.counter += 1
        self.version += 1

    return [(MembershipTable, "_reach_moved", moved)]


def _nonce_per_process() -> Patches:
    # A renewal that landed unheard counts from the attempt that came after it. As long as there is
    # contact nobody else asks for the lease, so it is a step beyond the lease that is found.
    def landed(self: LeaseMachine, record: LeaseRecord | None) -> float | None:
        mine = record is not None and record.holder == self.holder
        return self._written_at if mine else None

    return [(LeaseMachine, "_landed", landed)]


def _early_release() -> Patches:
    stop = SingletonMachine._stop_instance

    def and_release(
        self: SingletonMachine, now: float, cause: StopCause, reason: str, **more: bool
    ) -> None:
        stop(self, now, cause, reason, **more)
        self._drop_lease(now)

    return [
        (SingletonMachine, "_stop_instance", and_release),
        *_without_lease(),  # where the lease is gone its gate would close as well
    ]


def _term_from_up_number() -> Patches:
    begin = CoordinatorMachine._begin_term

    def at_its_age(self: CoordinatorMachine, now: float, why: str) -> None:
        me = None if self._view is None else self._view.by_id.get(self.self_id)
        self._number = (0 if me is None else me.up_number) - 1
        begin(self, now, why)

    return [(CoordinatorMachine, "_begin_term", at_its_age)]


def _rebuild_without_report() -> Patches:
    check = CoordinatorMachine._check_complete

    def at_once(self: CoordinatorMachine, now: float) -> None:
        self._waiting.clear()
        check(self, now)

    return [(CoordinatorMachine, "_check_complete", at_once)]


SABOTAGES: dict[str, tuple[str, Callable[[], Patches]]] = {
    "no-contact": ("whatever is unique acts without contact", _no_contact),
    "no-joint": ("only the present view is counted, not the last converged one", _no_joint),
    "no-quiet": ("nobody waits until the last grants are over", _no_quiet),
    "found-by-seeds-only": ("a restarted process asks its seeds alone", _found_by_seeds_only),
    "no-gate": ("user code is never held", _no_gate),
    "gate-per-message": ("a coroutine that was begun is never held", _gate_per_message),
    "candidate-answers": (
        "a candidate answers whoever asks, and goes on with what it was answered",
        _candidate_answers,
    ),
    "digest-without-reachability": (
        "members whose views differ in who is reachable take them for equal",
        _digest_without_reachability,
    ),
    "nonce-per-process": (
        "with downing+lease: any record of ours is taken for our latest write",
        _nonce_per_process,
    ),
    "early-release": (
        "with downing+lease: the lease is released when a stop is ordered",
        _early_release,
    ),
    "term-from-up-number": (
        "with sharding: the number of a term is the age of its member, not one more than any",
        _term_from_up_number,
    ),
    "rebuild-without-report": (
        "with sharding: shards are allocated although some have not said what they have",
        _rebuild_without_report,
    ),
}
"""Name → what it takes out, and how."""

UNDER_A_LEASE = frozenset({"nonce-per-process", "early-release"})
"""What does harm only where there is a lease."""

OF_SHARDING = frozenset({"term-from-up-number", "rebuild-without-report"})
"""What is a matter of sharded entities."""
