"""One resolver, its clock, and the others as far as they answer; views are drawn as pictures.

The part of the picture that has `me` is reachable and answers at once, unless a test says otherwise
(`silent`, `grants`, `quiet_s`, `late`); what the resolver orders is carried out in the next view.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from downing.events import ContactWanted, DownRequested, MarkDown, SetContact
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
from downing.strategies import parse
from gossip.effects import PeerMessage, Publish, Send
from gossip.events import Exit
from gossip.membership import Member, MembershipView, NodeId, Status
from tests.downing.cases import node_of
from tests.downing.pictures import parts_of

T = TypeVar("T")
START = 100.0
MOMENT_S = 0.001
TICKS_MAX = 2_000


class Driven:
    """The resolver of `me`. All agreed on the first view: it is the base.

    `silent`: names that are reachable, as the view has it, and answer nothing. `grants`: what a
    name answers to a ping. `quiet_s`: how long it says that it gave no grant. `stopping`: names
    that answer a stop order. `late`: names whose answers are kept in `kept` instead.
    """

    def __init__(
        self,
        picture: str,
        me: str = "a",
        strategy: str = "keep-majority",
        *,
        agreed: bool = True,
        wanted: bool = False,
        **settings: float,
    ) -> None:
        self.me = node_of(me)
        self.now = START
        self.settings = DowningSettings(**settings)  # type: ignore[arg-type]
        self.machine = DowningMachine(
            self.me, parse(strategy), self.settings, lambda: self.answering | {self.me}
        )
        self.effects: list[tuple[float, object]] = []
        self.silent: set[str] = set()
        self.grants: dict[str, Grant] = {}
        self.quiet_s: dict[str, float] = {}
        self.stopping: set[str] = set()
        self.late: set[str] = set()
        self.kept: list[PeerMessage] = []
        self.answering: frozenset[NodeId] = frozenset()
        self.view: MembershipView
        self._downed: set[NodeId] = set()
        self._leader: str | None = None
        if wanted:
            self.handle(ContactWanted(True))
        self.see(picture, agreed=agreed)

    # what happens to it

    def see(
        self,
        picture: str,
        *,
        agreed: bool = False,
        leader: str | None = None,
        digest: int | None = None,
        suspects: str = "",
        records: str = "",
    ) -> None:
        """A view, a moment later; other parts than ours are unreachable.

        `records`: "ab cd" is a of b, c of d.
        """
        self.now += MOMENT_S
        parts = parts_of(picture)
        members = tuple(
            replace(m, status=Status.DOWN) if m.id in self._downed else m
            for m in sorted((m for part in parts for m in part), key=lambda m: m.id)
        )
        ours = next(part for part in parts if any(m.id == self.me for m in part))
        reachable = {m.id for m in ours}
        self.answering = frozenset(reachable - {self.me})
        unreachable = frozenset(
            m.id for m in members if m.id not in reachable and m.status < Status.DOWN
        )
        pairs = tuple((node_of(w[0]), node_of(w[1])) for w in records.split())
        self.view = MembershipView(
            self.me,
            1,
            members=members,
            unreachable=unreachable | {subject for _, subject in pairs},
            suspects=frozenset(node_of(name) for name in suspects.split()),
            records=tuple(sorted((self.me, n) for n in unreachable)) + pairs,
            leader=node_of(leader) if leader else leader_of(members, reachable),
            converged=agreed,
            agreed=agreed,
            members_digest=hash(tuple((m.id, m.status) for m in members)) & 0xFFFF
            if digest is None
            else digest,
        )
        self._picture, self._leader = picture, leader
        self.handle(self.view)

    def hear(self, sender: str, message: object, via: str | None = None) -> None:
        """A message of another member."""
        self.handle(PeerMessage(node_of(sender), message, node_of(via) if via else None))

    def handle(self, event: object) -> None:
        """Any event."""
        self._perform(self.machine.handle(event, self.now))

    def order(self, name: str) -> None:
        """An operator of this node wants that member down."""
        self.handle(DownRequested(node_of(name)))

    def go(self, s: float) -> None:
        """Let time go by; it is ticked exactly when it is due."""
        until = self.now + s
        ticks = 0
        while self.machine.deadline <= until:
            self.now = max(self.now, self.machine.deadline)
            self._perform(self.machine.tick(self.now))
            ticks += 1
            assert ticks < TICKS_MAX, "the resolver does not come to rest"
        self.now = until

    def deliver(self) -> None:
        """What `late` ones answered arrives now."""
        kept, self.kept = self.kept, []
        for event in kept:
            self.handle(event)

    # what it did

    def of(self, kind: type[T]) -> list[T]:
        """Its orders and published facts of one kind, in order."""
        found = (e.fact if isinstance(e, Publish) else e for _, e in self.effects)
        return [each for each in found if isinstance(each, kind)]

    def sent(self, kind: type[T], to: str | None = None) -> list[T]:
        """Its messages of one kind."""
        return [send.message for send in self.sends(kind, to)]  # type: ignore[misc]

    def sends(self, kind: type, to: str | None = None) -> list[Send]:
        """The same with their envelopes."""
        return [
            effect
            for _, effect in self.effects
            if isinstance(effect, Send)
            and isinstance(effect.message, kind)
            and (to is None or effect.to == node_of(to))
        ]

    @property
    def marked(self) -> str:
        """Whom it marked down, in order: "d e"."""
        return " ".join(node.host for each in self.of(MarkDown) for node in each.members)

    @property
    def ended(self) -> Exit | None:
        """Its first order to end."""
        return next(iter(self.of(Exit)), None)

    @property
    def has_ended(self) -> bool:
        """Whether there is one."""
        return self.ended is not None

    @property
    def contact_s(self) -> float:
        """For how long it still has contact, as it told the gate."""
        told = self.of(SetContact)
        return told[-1].until - self.now if told else -1.0

    def when(self, kind: type) -> list[float]:
        """At which instants, from the start, it gave effects (or messages, facts) of this kind."""
        return [
            at - START
            for at, e in self.effects
            if isinstance(e, kind)
            or (isinstance(e, Publish) and isinstance(e.fact, kind))
            or (isinstance(e, Send) and isinstance(e.message, kind))
        ]

    def forget(self) -> None:
        """Look only at what comes from now on."""
        self.effects.clear()

    def _perform(self, effects: list[object]) -> None:
        self.effects += [(self.now, effect) for effect in effects]
        answers = []
        for effect in effects:
            match effect:
                case Send(to=to, message=message, via=via):
                    helps = via is None or via.host not in self.silent
                    if to in self.answering and to not in self._downed and helps:
                        answers.append(self._answer(to, message, via))
                case MarkDown():
                    self._downed |= set(effect.members)
                    self.see(self._picture, leader=self._leader)
        # Membership has carried out what was ordered before any answer comes.
        for answer in answers:
            if answer is not None:
                self.handle(answer)

    def _answer(self, node: NodeId, message: object, via: NodeId | None) -> PeerMessage | None:
        name = node.host
        if name in self.silent:
            return None
        match message:
            case ContactPing():
                grant = self.grants.get(name, Grant.GIVEN)
                answer: object = ContactAck(message.seq, grant, message.base_digest)
            case ProposeDown():
                quiet_s = self.quiet_s.get(name, 10.0)
                about = tuple((n, quiet_s) for n in message.subjects if n != node)
                answer = PromiseDown(message.round, about)
            case StopOrder() if name in self.stopping:
                answer = Stopped()
            case _:
                return None
        event = PeerMessage(node, answer, via)
        if name not in self.late:
            return event
        self.kept.append(event)
        return None


def leader_of(members: tuple[Member, ...], reachable: set[NodeId]) -> NodeId | None:
    """The lowest reachable one that is up or leaving."""
    return min(
        (m.id for m in members if m.id in reachable and m.status in (Status.UP, Status.LEAVING)),
        default=None,
    )
