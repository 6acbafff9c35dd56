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
from singleton.effects import OfferType, SingletonReleased, WithdrawType
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
OTHERS = (*SINGLETON_MESSAGES, *DOWNING_MESSAGES, Relay, Relayed)
RELAYABLE = (*DOWNING_RELAYABLE, HandOverAsk, HandOverAnswer)

GOSSIP, DOWNING, SINGLETON, EVERY_SINGLETON = "gossip", "downing", "singleton", "every singleton"
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
    MembershipView: (DOWNING, EVERY_SINGLETON),
    PeerMessage: (SINGLETON,),  # or DOWNING, by the message
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

    gossip: this node's membership. downing: its resolver. rng: shared by the singleton machines.
    """

    def __init__(self, gossip: GossipMachine, downing: DowningMachine, rng: random.Random) -> None:
        self.gossip = gossip
        self.downing = downing
        self.singletons: dict[str, SingletonMachine] = {}
        self.counters: Counter[str] = Counter()
        self.record: deque[tuple[float, object, tuple[object, ...]]] = deque(
            maxlen=FLIGHT_RECORD_MAX
        )
        self._rng = rng
        self._types: dict[str, str] = {}  # singleton → what our member record shows of it
        self._released: set[str] | None = None
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
        return self._work(None, now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        due = min(self.gossip.deadline, self.downing.deadline)
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
                self._released = set()
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
                    self._take(self.singletons[name].handle(event, now))
            else:
                self._to_singleton(event, now)
        if isinstance(event, LeaveStarted):
            self._check_released()  # there may be no singleton at all

    def _note_contact_wanted(self) -> None:
        """Contact is asked for from the moment a manager here is elected until it has stopped."""
        wanted = any(machine.needs_contact for machine in self.singletons.values())
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
                case _:
                    self._out.append(effect)

    def _check_released(self) -> None:
        if self._released is not None and self._released >= set(self.singletons):
            self._released = None
            self._out.append(Publish(AllReleased()))
            self._inbox.append(NothingRuns())
