"""All machines of a node joined to one: the whole wiring on one screen.

Decides which machine hears which event, in which order. Does not decide anything a machine
decides. Is itself a machine (`handle`, `tick`, `deadline`); driven by `node.daemon`, and by the
testkit through it. Keeps the last `FLIGHT_RECORD_MAX` steps for a failure report.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from gossip.effects import Paused, PeerMessage, Publish
from gossip.events import (
    Dialled,
    LeaveRequested,
    LinkLost,
    PeerFrame,
    ProcessEnded,
    SeedsResolved,
    Started,
    TypesHosted,
    WatchRefused,
)
from gossip.machine import GossipMachine
from gossip.membership import MembershipView
from gossip.messages import Head
from singleton.effects import SingletonReleased, WithdrawType
from singleton.election import hosted_type
from singleton.events import (
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    LeaveStarted,
    StartRequested,
    StopRequested,
)
from singleton.machine import SingletonMachine, answer_unhosted
from singleton.messages import HandOverAnswer, HandOverAsk, HostNotice
from singleton.settings import SingletonSettings

FLIGHT_RECORD_MAX = 256
STEPS_MAX = 10_000

SINGLETON_MESSAGES = (HandOverAsk, HandOverAnswer, HostNotice)

GOSSIP, SINGLETON, EVERY_SINGLETON = "gossip", "singleton", "every singleton"
READERS: dict[type, tuple[str, ...]] = {
    Started: (GOSSIP,),
    SeedsResolved: (GOSSIP,),
    PeerFrame: (GOSSIP,),
    LinkLost: (GOSSIP,),
    Dialled: (GOSSIP,),
    ProcessEnded: (GOSSIP,),
    WatchRefused: (GOSSIP,),
    LeaveRequested: (GOSSIP,),
    TypesHosted: (GOSSIP,),
    Paused: (GOSSIP, EVERY_SINGLETON),
    MembershipView: (EVERY_SINGLETON,),
    PeerMessage: (SINGLETON,),
    StartRequested: (SINGLETON,),
    StopRequested: (SINGLETON,),
    InstanceStarted: (SINGLETON,),
    InstanceStopped: (SINGLETON,),
    InstanceFailed: (SINGLETON,),
    LeaveStarted: (EVERY_SINGLETON,),
}


@dataclass(frozen=True, slots=True)
class AllReleased:
    """Fact: after `LeaveStarted` nothing unique runs here any more."""


@dataclass(frozen=True, slots=True)
class ProxyRequested:
    """Event: messages to this type begin here, without hosting it: a manager that only routes."""

    type_name: str
    settings: SingletonSettings


class NodeCore:
    """The composition of one node's machines.

    gossip: this node's membership. rng: shared by the singleton machines.
    """

    def __init__(self, gossip: GossipMachine, rng: random.Random) -> None:
        self.gossip = gossip
        self.singletons: dict[str, SingletonMachine] = {}
        self.counters: Counter[str] = Counter()
        self.record: deque[tuple[float, object, tuple[object, ...]]] = deque(
            maxlen=FLIGHT_RECORD_MAX
        )
        self._rng = rng
        self._types: set[str] = set()
        self._released: set[str] | None = None
        self._inbox: deque[object] = deque()
        self._out: list[object] = []

    # the machine's door

    def handle(self, event: object, now: float) -> list[object]:
        """Take in a fact; returns the effects of all machines it reached, in order."""
        self._inbox.append(event)
        return self._work(event, now)

    def tick(self, now: float) -> list[object]:
        """Tick whichever machine is due."""
        if now >= self.gossip.deadline:
            self._take(self.gossip.tick(now))
        for machine in self.singletons.values():
            if now >= machine.deadline:
                self._take(machine.tick(now))
        return self._work(None, now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        due = self.gossip.deadline
        for machine in self.singletons.values():
            due = min(due, machine.deadline)
        return due

    @property
    def head(self) -> Head:
        """What our control frames tell of our view."""
        return self.gossip.head

    @property
    def cluster_id(self) -> int:
        """The cluster of this node, 0 while it has none."""
        return self.gossip.cluster_id

    # inside

    def _work(self, event: object, now: float) -> list[object]:
        steps = 0
        while self._inbox:
            steps += 1
            assert steps < STEPS_MAX, f"machines do not come to rest after {event!r}"
            self._route(self._inbox.popleft(), now)
        effects, self._out = self._out, []
        self.record.append((now, event, tuple(effects)))
        return effects

    def _route(self, event: object, now: float) -> None:
        match event:
            case PeerFrame():
                self._split(event, now)
                return
            case LeaveStarted():
                self._released = set()
            case ProxyRequested():
                self._manage(event.type_name, event.settings, now)
                return
            case StartRequested():
                self._manage(event.type_name, event.settings, now)
                # Who elects by type alone must not take us for a candidate without the role.
                if event.settings.role is None or event.settings.role in self.gossip.roles:
                    self._types.add(hosted_type(event.type_name))
                    self._host_types()
        for reader in READERS[type(event)]:
            if reader is GOSSIP:
                self._take(self.gossip.handle(event, now))
            elif reader is EVERY_SINGLETON:
                for name in sorted(self.singletons):
                    self._take(self.singletons[name].handle(event, now))
            else:
                self._to_singleton(event, now)
        if isinstance(event, LeaveStarted):
            self._check_released()  # there may be no singleton at all

    def _split(self, frame: PeerFrame, now: float) -> None:
        """Membership reads its messages first, so that the others meet the newest view."""
        others = [m for m in frame.messages if isinstance(m, SINGLETON_MESSAGES)]
        if others:
            rest = tuple(m for m in frame.messages if not isinstance(m, SINGLETON_MESSAGES))
            frame = PeerFrame(frame.sender, frame.head, rest)
        self._take(self.gossip.handle(frame, now))
        if not others:
            return
        if not self.gossip.accepts(frame.sender, frame.head):
            self.counters["singleton-message-refused"] += len(others)
            return
        for message in others:
            self._inbox.append(PeerMessage(frame.sender, message))

    def _to_singleton(self, event: object, now: float) -> None:
        subject = event.message if isinstance(event, PeerMessage) else event
        name: str = getattr(subject, "type_name")  # noqa: B009 - every event here has it
        machine = self.singletons.get(name)
        if machine is not None:
            self._take(machine.handle(event, now))
        elif isinstance(event, PeerMessage):
            self._out.extend(answer_unhosted(event, self.gossip.view))
        else:
            self.counters["singleton-unknown"] += 1

    def _manage(self, name: str, settings: SingletonSettings, now: float) -> None:
        """A manager for a type, made once."""
        if name in self.singletons:
            return
        machine = SingletonMachine(name, self.gossip.self_id, settings, self._rng)
        self.singletons[name] = machine
        if self.gossip.view is not None:
            self._take(machine.handle(self.gossip.view, now))

    def _host_types(self) -> None:
        self._inbox.append(TypesHosted(tuple(sorted(self._types))))

    def _take(self, effects: Iterable[object]) -> None:
        for effect in effects:
            match effect:
                case Publish(fact=MembershipView() as view):
                    self._inbox.append(view)
                    self._out.append(effect)
                case SingletonReleased():
                    if self._released is not None:
                        self._released.add(effect.type_name)
                        self._check_released()
                case WithdrawType():
                    self._types.discard(hosted_type(effect.type_name))
                    self._host_types()
                case _:
                    self._out.append(effect)

    def _check_released(self) -> None:
        if self._released is not None and self._released >= set(self.singletons):
            self._released = None
            self._out.append(Publish(AllReleased()))
