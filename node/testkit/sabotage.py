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
from gossip.membership import NodeId
from node.authority import Authority, Gate, LeasedAuthority
from node.testkit.host import SimStateStore
from singleton.effects import StopCause
from singleton.machine import SingletonMachine


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
        (LeasedAuthority, "held", property(lambda self: True)),
        (LeasedAuthority, "valid_until", property(lambda self: math.inf)),
    ]


def _early_release() -> Patches:
    stop = SingletonMachine._stop_instance

    def and_release(self: SingletonMachine, now: float, cause: StopCause, reason: str) -> None:
        stop(self, now, cause, reason)
        self._drop_lease(now)

    return [
        (SingletonMachine, "_stop_instance", and_release),
        # Where the lease is gone its gate would close as well.
        (LeasedAuthority, "held", property(lambda self: True)),
        (LeasedAuthority, "valid_until", property(lambda self: math.inf)),
    ]


SABOTAGES: dict[str, tuple[str, Callable[[], Patches]]] = {
    "no-contact": ("whatever is unique acts without contact", _no_contact),
    "no-joint": ("only the present view is counted, not the last converged one", _no_joint),
    "no-quiet": ("nobody waits until the last grants are over", _no_quiet),
    "found-by-seeds-only": ("a restarted process asks its seeds alone", _found_by_seeds_only),
    "no-gate": ("user code is never held", _no_gate),
    "early-release": (
        "with downing+lease: the lease is released when a stop is ordered",
        _early_release,
    ),
}
"""Name → what it takes out, and how."""
