"""All machines of a node joined to one: the whole wiring on one screen.

Decides which machine hears which event, in which order. Does not decide anything a machine
decides. Is itself a machine (`handle`, `tick`, `deadline`); driven by `node.daemon`, and by the
testkit through it. Keeps the last `FLIGHT_RECORD_MAX` steps for a failure report.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from downing.events import (
    ArbiterDenied,
    ArbiterExtended,
    ArbiterGranted,
    ArbiterUnknown,
    ContactWanted,
    DownRequested,
    MarkDown,
    NoteDoomed,
    NothingRuns,
)
from downing.machine import MESSAGES as DOWNING_MESSAGES
from downing.machine import RELAYABLE as DOWNING_RELAYABLE
from downing.machine import DowningMachine
from gossip.effects import Paused, PeerMessage, Publish, Send
from gossip.events import (
    Dialled,
    Exit,
    LeaveRequested,
    LinkLost,
    MembersDoomed,
    MembersDowned,
    PeerFrame,
    ProcessEnded,
    SeedsResolved,
    Started,
    TypesHosted,
    WatchRefused,
)
from gossip.machine import GossipMachine
from gossip.membership import MembershipView, NodeId
from gossip.messages import Head, Relay, Relayed
from node import wire
from sharding.coordinator import CoordinatorMachine
from sharding.effects import Evacuated
from sharding.events import (
    CoordinatorAt,
    EvacuateRequested,
    Lead,
    RebalanceRequested,
    RegionRequested,
    Resign,
    RouteDrained,
    ShardsClosed,
    ShardsWanted,
)
from sharding.messages import MESSAGES as SHARDING_MESSAGES
from sharding.messages import TO_COORDINATOR, AskReport, HandOff, RebalanceAsk, ShardsStopped
from sharding.region import RegionMachine, unhosted_report
from singleton.effects import (
    OfferType,
    RouteSingleton,
    SingletonReleased,
    StartInstance,
    StopInstance,
    WithdrawType,
)
from singleton.events import (
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    LeaseTold,
    LeaveStarted,
    MoveRequested,
    StartRequested,
    StopRequested,
)
from singleton.machine import SingletonMachine, answer_unhosted
from singleton.messages import (
    HandOverAnswer,
    HandOverAsk,
    HandOverState,
    HostNotice,
    MoveAsk,
)
from singleton.settings import SingletonSettings

FLIGHT_RECORD_MAX = 256
STEPS_MAX = 10_000

SINGLETON_MESSAGES = (HandOverAsk, HandOverAnswer, HandOverState, HostNotice, MoveAsk)
OTHERS = (*SINGLETON_MESSAGES, *DOWNING_MESSAGES, *SHARDING_MESSAGES, Relay, Relayed)
RELAYABLE = (*DOWNING_RELAYABLE, HandOverAsk, HandOverAnswer)

COORDINATOR_PREFIX = "sharding."
"""The coordinator of a sharded type is the singleton of this name: level and lease protect it."""

GOSSIP, DOWNING, SINGLETON, EVERY_SINGLETON = "gossip", "downing", "singleton", "every singleton"
REGION, COORDINATOR, EVERY_REGION = "region", "coordinator", "every region and coordinator"
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
    MembersDowned: (GOSSIP,),
    MembersDoomed: (GOSSIP,),
    Paused: (GOSSIP, DOWNING, EVERY_SINGLETON),
    MembershipView: (DOWNING, EVERY_SINGLETON, EVERY_REGION),
    PeerMessage: (SINGLETON,),  # or DOWNING, REGION, COORDINATOR, by the message
    ContactWanted: (DOWNING,),
    DownRequested: (DOWNING,),
    NothingRuns: (DOWNING,),
    ArbiterGranted: (DOWNING,),
    ArbiterDenied: (DOWNING,),
    ArbiterUnknown: (DOWNING,),
    ArbiterExtended: (DOWNING,),
    StartRequested: (SINGLETON,),
    StopRequested: (SINGLETON,),
    MoveRequested: (SINGLETON,),
    LeaseTold: (SINGLETON,),
    InstanceStarted: (SINGLETON,),
    InstanceStopped: (SINGLETON,),
    InstanceFailed: (SINGLETON,),
    LeaveStarted: (EVERY_SINGLETON,),  # a coordinator's once the region beside it is empty
    RegionRequested: (REGION,),
    CoordinatorAt: (REGION,),
    ShardsWanted: (REGION,),
    ShardsClosed: (REGION,),
    RouteDrained: (REGION,),
    EvacuateRequested: (REGION,),
    Lead: (COORDINATOR,),
    Resign: (COORDINATOR,),
    RebalanceRequested: (COORDINATOR,),
}


@dataclass(frozen=True, slots=True)
class AllReleased:
    """Fact: after `LeaveStarted` nothing unique runs here any more."""


@dataclass(frozen=True, slots=True)
class ProxyRequested:
    """Event: messages to this type begin here, without hosting it: a manager that only routes."""

    type_name: str
    settings: SingletonSettings


def _type_of(event: object) -> str:
    subject = event.message if isinstance(event, PeerMessage) else event
    name: str = getattr(subject, "type_name")  # noqa: B009 - every event that is routed so has it
    return name


class NodeCore:
    """The composition of one node's machines.

    gossip: this node's membership. downing: its resolver. rng: shared by the singleton machines.
    `may_act(singleton)` says whether a coordinator that is here may act now (contact, and the lease
    if it has one), `token_of(singleton)` the latest fencing token; both are set by the shell.
    """

    def __init__(self, gossip: GossipMachine, downing: DowningMachine, rng: random.Random) -> None:
        self.gossip = gossip
        self.downing = downing
        self.singletons: dict[str, SingletonMachine] = {}
        self.regions: dict[str, RegionMachine] = {}
        self.coordinators: dict[str, CoordinatorMachine] = {}
        self.may_act: Callable[[str], bool] = lambda singleton: True
        self.token_of: Callable[[str], int] = lambda singleton: 0
        self.counters: Counter[str] = Counter()
        self.record: deque[tuple[float, object, tuple[object, ...]]] = deque(
            maxlen=FLIGHT_RECORD_MAX
        )
        self._rng = rng
        self._types: dict[str, str] = {}  # singleton → what our member record shows of it
        self._released: set[str] | None = None
        self._leaves = False
        self._has_exited = False
        self._contact_wanted = False
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
        if now >= self.downing.deadline:
            self._take(self.downing.tick(now))
        for machine in self.singletons.values():
            if now >= machine.deadline:
                self._take(machine.tick(now))
        for region in self.regions.values():
            if now >= region.deadline:
                self._take(region.tick(now))
        for coordinator in self.coordinators.values():
            if now >= coordinator.deadline:
                self._take(coordinator.tick(now))
        return self._work(None, now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        due = min(self.gossip.deadline, self.downing.deadline)
        for machine in self.singletons.values():
            due = min(due, machine.deadline)
        for region in self.regions.values():
            due = min(due, region.deadline)
        for coordinator in self.coordinators.values():
            due = min(due, coordinator.deadline)
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
            if not self._inbox:
                self._note_contact_wanted()
        effects, self._out = self._out, []
        self.record.append((now, event, tuple(effects)))
        return effects

    def _route(self, event: object, now: float) -> None:
        match event:
            case PeerFrame():
                self._split(event, now)
                return
            case LeaveStarted():
                self._released, self._leaves = set(), True
                for name in sorted(self.regions):
                    self._inbox.append(EvacuateRequested(name, at_once=self._has_exited))
            case Evacuated():
                self._let_coordinator_leave(event.type_name, now)
                return
            case RegionRequested() if self._leaves:
                self._add_while_leaving(event, now)
                return
            case RegionRequested():
                self._add_region(event, now)
            case ProxyRequested():
                self._manage(event.type_name, event.settings, now)
                return
            case StartRequested():
                self._manage(event.type_name, event.settings, now)
        for reader in READERS[type(event)]:
            if reader is GOSSIP:
                self._take(self.gossip.handle(event, now))
            elif reader is DOWNING:
                self._take(self.downing.handle(event, now))
            elif reader is EVERY_SINGLETON:
                for name in sorted(self.singletons):
                    if not isinstance(event, LeaveStarted) or self._may_leave(name):
                        self._take(self.singletons[name].handle(event, now))
            elif reader is EVERY_REGION:
                for name in sorted(self.regions):
                    self._take(self.regions[name].handle(event, now))
                for name in sorted(self.coordinators):
                    self._take(self.coordinators[name].handle(event, now))
            elif reader is REGION:
                self._take(self.regions[_type_of(event)].handle(event, now))
            elif reader is COORDINATOR:
                self._to_coordinator(event, now)
            else:
                self._to_singleton(event, now)
        if isinstance(event, LeaveStarted):
            self._check_released()  # there may be no singleton at all

    def _note_contact_wanted(self) -> None:
        """Contact is asked for from the moment a manager here is elected until it has stopped."""
        wanted = any(machine.needs_contact for machine in self.singletons.values()) or any(
            region.needs_contact for region in self.regions.values()
        )
        if wanted is not self._contact_wanted:
            self._contact_wanted = wanted
            self._inbox.append(ContactWanted(wanted))

    def _split(self, frame: PeerFrame, now: float) -> None:
        """Membership reads its messages first, so that the others meet the newest view."""
        others = [m for m in frame.messages if isinstance(m, OTHERS)]
        if others:
            rest = tuple(m for m in frame.messages if not isinstance(m, OTHERS))
            frame = PeerFrame(frame.sender, frame.head, rest)
        self._take(self.gossip.handle(frame, now))
        if not others:
            return
        if not self.gossip.accepts(frame.sender, frame.head):
            self.counters["peer-message-refused"] += len(others)
            return
        for message in others:
            if isinstance(message, Relay):
                self._pass_on(frame.sender, message)
            elif isinstance(message, Relayed):
                self._unwrap(frame.sender, message, now)
            else:
                self._hear(PeerMessage(frame.sender, message), now)

    def _hear(self, event: PeerMessage, now: float) -> None:
        if isinstance(event.message, DOWNING_MESSAGES):
            self._take(self.downing.handle(event, now))
        else:
            self._inbox.append(event)

    def _pass_on(self, sender: NodeId, relay: Relay) -> None:
        """A member does not reach another one: we may. Who it is from is written by us."""
        view = self.gossip.view
        if view is None or relay.target not in view.by_id or relay.target == self.gossip.self_id:
            self.counters["relay-refused"] += 1
            return
        self.counters["relayed"] += 1
        self._out.append(Send(relay.target, Relayed(sender, relay.payload)))

    def _unwrap(self, sender: NodeId, relayed: Relayed, now: float) -> None:
        """A member passes a message of another one on."""
        view = self.gossip.view
        try:
            message = wire.decode_one(relayed.payload)
        except wire.WireError:
            message = None
        known = view is not None and relayed.origin in view.by_id
        if not known or relayed.origin == self.gossip.self_id or not isinstance(message, RELAYABLE):
            self.counters["relay-refused"] += 1
            return
        self._hear(PeerMessage(relayed.origin, message, via=sender), now)

    # sharding: the coordinator of a type is a singleton whose instance is a machine, not an actor

    def _add_region(self, event: RegionRequested, now: float) -> None:
        name, settings = event.type_name, event.settings
        if name in self.coordinators:
            self._take(self.coordinators[name].handle(event, now))
        if name not in self.regions:
            self.regions[name] = RegionMachine(name, self.gossip.self_id, settings)
            if self.gossip.view is not None:
                self._take(self.regions[name].handle(self.gossip.view, now))
        if settings.hosts and name not in self.coordinators:
            singleton = COORDINATOR_PREFIX + name
            coordinator = self.coordinators[name] = CoordinatorMachine(
                name, self.gossip.self_id, settings, lambda: self.may_act(singleton)
            )
            if self.gossip.view is not None:
                self._take(coordinator.handle(self.gossip.view, now))

    def _add_while_leaving(self, event: RegionRequested, now: float) -> None:
        """A type that is known here already goes on leaving; what is new has nothing to move."""
        self.counters["sharding: started while leaving"] += 1
        if event.type_name not in self.regions:
            self._add_region(replace(event, settings=replace(event.settings, hosts=False)), now)
            region = self.regions[event.type_name]
            self._take(region.handle(EvacuateRequested(event.type_name), now))

    def _sharded(self, singleton: str) -> str | None:
        """The sharded type whose coordinator this singleton is; None: it is none."""
        name = singleton.removeprefix(COORDINATOR_PREFIX)
        return name if name != singleton and name in self.regions else None

    def _may_leave(self, singleton: str) -> bool:
        """The coordinator stays until the shards of this node are elsewhere: it moves them."""
        name = self._sharded(singleton)
        return name is None or self.regions[name].is_evacuated

    def _let_coordinator_leave(self, name: str, now: float) -> None:
        manager = self.singletons.get(COORDINATOR_PREFIX + name)
        if manager is not None:
            self._take(manager.handle(LeaveStarted(), now))
        self._check_released()

    def _to_coordinator(self, event: object, now: float) -> None:
        coordinator = self.coordinators.get(_type_of(event))
        region = self.regions.get(_type_of(event))
        is_here = region is None or region.coordinator == self.gossip.self_id
        if isinstance(event, RebalanceRequested) and not is_here:
            assert region is not None
            if region.coordinator is not None:
                self._out.append(Send(region.coordinator, RebalanceAsk(event.type_name)))
        elif coordinator is not None:
            self._take(coordinator.handle(event, now))

    def _to_sharding(self, event: PeerMessage, now: float) -> None:
        message = event.message
        if isinstance(message, TO_COORDINATOR):
            self._to_coordinator(event, now)
            return
        region = self.regions.get(_type_of(event))
        if region is not None:
            self._take(region.handle(event, now))
        elif isinstance(message, AskReport):
            self._send_or_keep(Send(event.sender, unhosted_report(message)))
        elif isinstance(message, HandOff):
            stopped = ShardsStopped(
                message.type_name, message.term, message.shards, number=message.number
            )
            self._send_or_keep(Send(event.sender, stopped))
        else:
            self.counters["sharding: no region"] += 1

    def _send_or_keep(self, effect: Send) -> None:
        """What the coordinator here says to the region here needs no link."""
        if effect.to == self.gossip.self_id:
            self._inbox.append(PeerMessage(effect.to, effect.message))
        else:
            self._out.append(effect)

    def _begin_office(self, name: str, effect: StartInstance) -> None:
        floor = max(self.regions[name].accepted.number, self.token_of(effect.type_name))
        self._inbox.append(Lead(name, floor))
        self._inbox.append(InstanceStarted(effect.type_name, effect.attempt))

    def _to_singleton(self, event: object, now: float) -> None:
        if isinstance(event, PeerMessage) and isinstance(event.message, SHARDING_MESSAGES):
            self._to_sharding(event, now)
            return
        name = _type_of(event)
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
        if self._leaves:
            # Nothing starts here any more, and nobody has to wait for it.
            self._take(machine.handle(LeaveStarted(), now))

    def _host_types(self) -> None:
        self._inbox.append(TypesHosted(tuple(sorted(self._types.values()))))

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
                case NoteDoomed():
                    self._inbox.append(MembersDoomed(effect.members))
                case MarkDown():
                    self._inbox.append(MembersDowned(effect.members, effect.cause))
                case Send() if effect.via is not None:
                    payload = wire.encode(effect.message)
                    self._out.append(Send(effect.via, Relay(effect.to, payload)))
                case OfferType():
                    # Who elects by type alone must not take us for a candidate without the role.
                    if effect.role is None or effect.role in self.gossip.roles:
                        self._types[effect.type_name] = effect.label
                        self._host_types()
                case WithdrawType():
                    self._types.pop(effect.type_name, None)
                    self._host_types()
                case StartInstance() if sharded := self._sharded(effect.type_name):
                    self._begin_office(sharded, effect)
                case StopInstance() if sharded := self._sharded(effect.type_name):
                    self._inbox.append(Resign(sharded))
                    ended = InstanceStopped(effect.type_name, effect.attempt, effect.reason)
                    self._inbox.append(ended)
                case RouteSingleton() if sharded := self._sharded(effect.type_name):
                    self._inbox.append(CoordinatorAt(sharded, effect.host))
                case Send() if isinstance(effect.message, SHARDING_MESSAGES):
                    self._send_or_keep(effect)
                case Evacuated() if self._released is not None:
                    self._inbox.append(effect)
                case Evacuated():
                    pass  # the user stopped the type
                case Exit():
                    self._has_exited = True
                    self._out.append(effect)
                case _:
                    self._out.append(effect)

    def _check_released(self) -> None:
        is_empty = all(region.is_evacuated for region in self.regions.values())
        if self._released is not None and is_empty and self._released >= set(self.singletons):
            self._released = None
            self._out.append(Publish(AllReleased()))
            self._inbox.append(NothingRuns())
