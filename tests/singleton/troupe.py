"""A few managers in virtual time, with views set by hand: what the schedules are played on.

Messages take `delay_s` on each link and are lost on a cut one; instances take `start_s` and
`stop_s`. `tenures` is the order book: who ran an instance from when to when.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import Cause, Member, MembershipView, NodeId
from singleton.effects import RouteSingleton, SingletonReleased, StartInstance, StopInstance
from singleton.events import InstanceFailed, InstanceStarted, InstanceStopped, UniquenessNotProven
from singleton.machine import SingletonMachine
from singleton.settings import SingletonSettings
from tests.singleton.worlds import TYPE, machine, member, node, view


@dataclass(slots=True)
class Tenure:
    """One instance: from its start order until it has terminated.

    `unproven` are the peers that were silent when its node took the office; an instance that is
    restarted continues that office.
    """

    name: str
    began_at: float
    started_at: float = math.nan
    ended_at: float = math.inf
    unproven: tuple[NodeId, ...] = ()


class Troupe:
    """Nodes by letters. All are shown all others as up until `show` says otherwise."""

    def __init__(
        self,
        names: str,
        *,
        delay_s: float = 0.005,
        start_s: float = 0.001,
        stop_s: float = 0.5,
        settings: SingletonSettings | None = None,
        members: Iterable[Member] = (),
    ) -> None:
        self.now = 0.0
        self.delay_s, self.start_s, self.stop_s = delay_s, start_s, stop_s
        self.tenures: list[Tenure] = []
        self.warnings: list[tuple[str, tuple[NodeId, ...]]] = []
        self.released: dict[str, float] = {}
        self.hosts: dict[str, NodeId | None] = {}
        self.nodes: dict[str, SingletonMachine] = {}
        self.views: dict[str, MembershipView] = {}
        self._names = {node(name): name for name in names.split()}
        self._members = {each.id: each for each in members}
        self._cut: set[tuple[str, str]] = set()
        self._dead: set[str] = set()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        for name in names.split():
            self.nodes[name], effects = machine(name, settings=settings)
            self._perform(name, effects)

    # what the test does

    def show(
        self,
        to: str,
        members: str | None = None,
        *,
        unreachable: str = "",
        gone: dict[str, Cause] | None = None,
        changed: Iterable[Member] = (),
    ) -> None:
        """Show the nodes `to` these members; `changed` replaces records."""
        letters = (members or " ".join(self._names.values())).split()
        records = {node(each): self._members.get(node(each), member(each)) for each in letters}
        records.update((each.id, each) for each in changed)
        tombs = {node(name): cause for name, cause in (gone or {}).items()}
        for name in to.split():
            self.views[name] = view(name, records.values(), unreachable=unreachable, gone=tombs)
            self.tell(name, self.views[name])

    def tell(self, name: str, event: object) -> None:
        """Hand a fact to a node."""
        if name not in self._dead:
            self._perform(name, self.nodes[name].handle(event, self.now))

    def cut(self, one: str, other: str) -> None:
        """No message passes between these two groups, either way."""
        for a, b in itertools.product(one.split(), other.split()):
            self._cut |= {(a, b), (b, a)}

    def heal(self) -> None:
        """All links are whole."""
        self._cut.clear()

    def end_instance(self, name: str) -> None:
        """The instance of a node ends by itself, if it runs."""
        for tenure in self.tenures:
            if tenure.name == name and tenure.started_at <= self.now < tenure.ended_at:
                tenure.ended_at = self.now
                self.tell(name, InstanceFailed(TYPE, self.nodes[name].attempt, "boom"))

    def crash(self, name: str) -> None:
        """The process is gone, its instance with it."""
        self._dead.add(name)
        for tenure in self.tenures:
            if tenure.name == name:
                tenure.ended_at = min(tenure.ended_at, self.now)

    def at(self, delay_s: float, act: Callable[..., Any], *args: Any, **named: Any) -> None:
        """Do something later."""
        due = (self.now + delay_s, next(self._order), lambda: act(*args, **named))
        heapq.heappush(self._due, due)

    def run_for(self, s: float) -> None:
        """Let everything happen that is due within `s` seconds."""
        until = self.now + s
        while True:
            timers = {name: each.deadline for name, each in self.nodes.items()}
            alive = [(due, name) for name, due in timers.items() if name not in self._dead]
            next_timer, name = min(alive, default=(math.inf, ""))
            next_event = self._due[0][0] if self._due else math.inf
            if min(next_timer, next_event) > until:
                break
            self.now = max(self.now, min(next_timer, next_event))
            if next_event <= next_timer:
                heapq.heappop(self._due)[2]()
            else:
                self._perform(name, self.nodes[name].tick(self.now))
                assert self.nodes[name].deadline > self.now or self._due, "it would spin"
        self.now = until

    # what the test asks

    @property
    def running(self) -> str:
        """Letters of those whose instance exists now."""
        alive = {each.name for each in self.tenures if each.ended_at > self.now}
        return " ".join(sorted(alive))

    @property
    def overlap_s(self) -> float:
        """For how long two instances existed, at the least."""
        total = 0.0
        for one, other in itertools.combinations(self.tenures, 2):
            ends = min(one.ended_at, other.ended_at, self.now)
            total += max(0.0, ends - max(one.began_at, other.began_at))
        return total

    # inside

    def _perform(self, name: str, effects: list[object]) -> None:
        silent: tuple[NodeId, ...] = ()
        for effect in effects:
            match effect:
                case Send(to=to, message=message) if to in self._names:
                    self._send(name, self._names[to], message)
                case StartInstance(attempt=attempt):
                    if self.nodes[name]._failures:
                        earlier = [each for each in self.tenures if each.name == name]
                        silent = earlier[-1].unproven
                    self.tenures.append(Tenure(name, self.now, unproven=silent))
                    self.at(self.start_s, self._started, name, self.tenures[-1], attempt)
                case StopInstance(attempt=attempt):
                    (tenure,) = [
                        each
                        for each in self.tenures
                        if each.name == name and each.ended_at == math.inf
                    ]
                    self.at(self.stop_s, self._stopped, name, tenure, attempt)
                case RouteSingleton(host=host):
                    self.hosts[name] = host
                case SingletonReleased():
                    self.released[name] = self.now
                case Publish(fact=UniquenessNotProven(silent_peers=peers)):
                    self.warnings.append((name, peers))
                    silent = peers
                case _:
                    pass

    def _send(self, name: str, to: str, message: object) -> None:
        if (name, to) not in self._cut:
            self.at(self.delay_s, self._arrive, name, to, message)

    def _arrive(self, name: str, to: str, message: object) -> None:
        if (name, to) not in self._cut:
            self.tell(to, PeerMessage(node(name), message))

    def _started(self, name: str, tenure: Tenure, attempt: int) -> None:
        tenure.started_at = self.now
        self.tell(name, InstanceStarted(TYPE, attempt))

    def _stopped(self, name: str, tenure: Tenure, attempt: int) -> None:
        if name not in self._dead and tenure.ended_at == math.inf:
            tenure.ended_at = self.now
            self.tell(name, InstanceStopped(TYPE, attempt))


def altered(name: str, **fields: Any) -> Member:
    """The record of a member, with these fields."""
    return replace(member(name), **fields)
