"""The leases of the singletons of one node: what managers order, and the gates of their instances.

Decides until when an instance under a lease may act: while its node has contact *and* the lease is
held; and that a node without contact neither acquires nor renews: what it can not use would keep
others waiting. Does not decide when a lease is wanted (`singleton.machine`) nor what a lease is
(`lease`). Made by `node.system`; every order is answered by `LeaseTold`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from lease.events import LeaseGranted
from lease.machine import State
from node.authority import Authority, Gate, LeasedAuthority
from node.runtime import Runtime
from singleton.effects import DropLease, WantLease, WatchLease
from singleton.events import LeaseTold

if TYPE_CHECKING:
    from lease import Lease


class SingletonLeases:
    """Per type at most one lease."""

    def __init__(self, runtime: Runtime) -> None:
        self.feed: Callable[[object], None] = lambda event: None  # set once there is a daemon
        self.leases: dict[str, Lease] = {}
        self._runtime = runtime
        self._gates: dict[str, Gate] = {}
        self._authorities: dict[str, LeasedAuthority] = {}  # of each type's latest instance
        self.tokens: dict[str, int] = {}
        """Of each type's latest holding here, also when it is over."""

    def add(self, type_name: str, lease: Lease) -> None:
        """The type acts under this lease from now on."""
        self.leases[type_name] = lease
        runtime = self._runtime
        gate = self._gates[type_name] = Gate(runtime.clock, runtime.ready, runtime.count)
        gate.extend(-math.inf)
        gate.longest_s = runtime.gate.longest_s

        def told(fact: object) -> None:
            if isinstance(fact, LeaseGranted):
                self.tokens[type_name] = fact.token
            # First the gate: it must be closed before anybody hears that it is lost.
            self._follow(type_name)
            runtime.loop.call_soon(self.feed, LeaseTold(type_name, fact))

        lease.follow(told)
        lease.may_hold = lambda: runtime.gate.is_open_now

    def authority(self, type_name: str) -> Authority | None:
        """What a new instance of the type acts with; None without a lease."""
        lease = self.leases.get(type_name)
        if lease is None:
            return None
        made = LeasedAuthority(self._gates[type_name], lease, self._runtime.gate)
        self._authorities[type_name] = made
        return made

    def may_act(self, type_name: str) -> bool:
        """True while what is unique of this type may act here: contact, and its lease if it has
        one. For what is no actor; asked before each act."""
        if not self._runtime.gate.is_open_now:
            return False
        lease = self.leases.get(type_name)
        return lease is None or lease.check_alive()

    def unguard(self, type_name: str) -> None:
        """Its latest instance handles what it has, although the lease is lost."""
        if type_name in self._authorities:
            self._authorities[type_name].unguard()

    def set_contact(self, until: float) -> None:
        """Until when whatever is unique on this node may act, as far as its contact goes."""
        was_open = self._runtime.gate.is_open_now
        self._runtime.gate.extend(until)
        for type_name, lease in self.leases.items():
            self._follow(type_name)
            if not was_open and lease.state is State.ACQUIRING:
                lease.want()  # at once: its last try was refused for want of contact

    def want(self, effect: WantLease) -> None:
        """Acquire and keep it."""
        self.leases[effect.type_name].want()

    def drop(self, effect: DropLease) -> None:
        """Give it up."""
        self.leases[effect.type_name].unwant()

    def watch(self, effect: WatchLease) -> None:
        """Look who holds it."""
        self.leases[effect.type_name].watch(effect.wanted)

    def _follow(self, type_name: str) -> None:
        lease = self.leases[type_name]
        self._gates[type_name].extend(min(self._runtime.gate.until, lease.valid_until))
