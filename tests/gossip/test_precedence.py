"""SWIM's precedence, row by row: what a message at incarnation i does to what we hold at j.

Our words: alive = a member record; suspect = a suspicion; dead = a reachability record; left = a
tombstone. Source of the rows: SWIM (2002), the reference table of memberlist.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gossip.effects import Send
from gossip.events import Dial, PeerFrame, Started
from gossip.machine import GossipMachine
from gossip.membership import Cause, Member, NodeId, Status, Tombstone
from gossip.messages import Gossip, JoinChallenge, Nack, Suspicion, Welcome
from gossip.reachability import Record
from gossip.settings import GossipSettings

ME = NodeId("10.0.0.1", 25520, 1)
PEER = NodeId("10.0.0.2", 25520, 2)
SUBJECT = NodeId("10.0.0.3", 25520, 3)
OTHER = NodeId("10.0.0.4", 25520, 4)
J = 5  # the incarnation we hold


class Subject:
    """A machine in a cluster of four, still joining, that is told things by the leader."""

    def __init__(self, settings: GossipSettings | None = None, seed: int = 1) -> None:
        self.machine = GossipMachine(
            Member(ME),
            cluster_name="t",
            settings=settings or GossipSettings(),
            rng=random.Random(seed),
        )
        self.now = 0.0
        self.dials: list[Dial] = []
        self.machine.handle(Started(((PEER.host, PEER.port),)), 0.0)
        self.sent: list[Send] = []
        ups = [
            Member(node, status=Status.UP, up_number=number, incarnation=J)
            for number, node in enumerate((PEER, SUBJECT, OTHER), 2)
        ]
        self.tell(JoinChallenge(7))
        self.tell(Welcome(9, Gossip(members=(Member(ME), *ups))))
        self.sent.clear()

    def tell(self, *messages: object, sender: NodeId = PEER) -> None:
        head = replace(self.machine.head, cluster_id=9, counter=0, members_digest=0)
        effects = self.machine.handle(PeerFrame(sender, head, messages), self.now)
        self.sent += [effect for effect in effects if isinstance(effect, Send)]

    def listen(self, for_s: float) -> None:
        """Time in which another member says something now and then."""
        for _ in range(round(for_s / 0.2)):
            self.wait(0.2)
            self.tell(Nack(0))

    def wait(self, for_s: float) -> None:
        """Time in which nobody says anything."""
        end = self.now + for_s
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            effects = self.machine.tick(self.now)
            self.sent += [effect for effect in effects if isinstance(effect, Send)]
        self.now = end

    @property
    def state(self) -> str:
        view = self.machine.view
        assert view is not None
        if SUBJECT in view.gone:
            return "left"
        if SUBJECT not in view.by_id:
            return "unknown"
        if SUBJECT in view.unreachable:
            return "dead"
        return "suspect" if SUBJECT in view.suspects else "alive"

    def hold(self, state: str) -> None:
        match state:
            case "suspect":
                self.tell(Gossip(suspicions=(Suspicion(SUBJECT, J, OTHER),)))
            case "dead":
                self.tell(Gossip(records=(Record(OTHER, SUBJECT, True, 1, J),)))
            case "left":
                self.tell(Gossip(tombstones=(Tombstone(SUBJECT, 1, Cause.LEFT),)))
        assert self.state == state


def message(kind: str, incarnation: int) -> Gossip:
    match kind:
        case "alive":
            member = Member(SUBJECT, status=Status.UP, up_number=3, incarnation=incarnation)
            return Gossip(members=(member,))
        case "suspect":
            return Gossip(suspicions=(Suspicion(SUBJECT, incarnation, PEER),))
        case "dead":
            return Gossip(records=(Record(PEER, SUBJECT, True, 1, incarnation),))
        case _:
            return Gossip(tombstones=(Tombstone(SUBJECT, 2, Cause.LEFT),))


@pytest.mark.parametrize(
    ("kind", "incarnation", "held", "then"),
    [
        ("alive", J, "alive", "alive"),
        ("alive", J, "suspect", "suspect"),  # not newer: answers nothing
        ("alive", J - 1, "suspect", "suspect"),
        ("alive", J + 1, "suspect", "alive"),  # the refutation
        ("alive", J, "dead", "dead"),
        ("alive", J + 1, "dead", "alive"),  # a record is void under a higher incarnation
        ("alive", J + 1, "left", "left"),  # never again under this uid
        ("suspect", J - 1, "alive", "alive"),
        ("suspect", J, "alive", "suspect"),
        ("suspect", J + 1, "alive", "suspect"),
        ("suspect", J, "suspect", "suspect"),
        ("suspect", J, "dead", "dead"),
        ("suspect", J, "left", "left"),
        ("dead", J - 1, "alive", "alive"),
        ("dead", J, "alive", "dead"),
        ("dead", J, "suspect", "dead"),
        ("dead", J - 1, "suspect", "suspect"),
        ("dead", J, "left", "left"),
        ("left", 0, "alive", "left"),
        ("left", 0, "suspect", "left"),
        ("left", 0, "dead", "left"),
        ("left", 0, "left", "left"),
    ],
)
def test_precedence(kind: str, incarnation: int, held: str, then: str) -> None:
    subject = Subject()
    subject.hold(held)
    subject.tell(message(kind, incarnation))
    assert subject.state == then


@pytest.mark.parametrize("kind", ["suspect", "dead"])
def test_an_accusation_of_the_unknown_adds_nobody(kind: str) -> None:
    subject = Subject()
    stranger = NodeId("10.0.0.9", 25520, 9)
    news = {
        "suspect": Gossip(suspicions=(Suspicion(stranger, 1, PEER),)),
        "dead": Gossip(records=(Record(PEER, stranger, True, 1, 1),)),
    }[kind]
    subject.tell(news)
    assert subject.machine.view is not None
    assert stranger not in subject.machine.view.by_id


def test_left_of_the_unknown_is_kept_and_told_on() -> None:
    """A late alive of it finds the tombstone."""
    subject = Subject()
    stranger = NodeId("10.0.0.9", 25520, 9)
    subject.tell(Gossip(tombstones=(Tombstone(stranger, 1, Cause.LEFT),)))
    subject.wait(1.0)
    told = [
        stone.id
        for send in subject.sent
        if isinstance(send.message, Gossip)
        for stone in send.message.tombstones
    ]
    assert stranger in told
    subject.tell(Gossip(members=(Member(stranger, status=Status.UP, up_number=9),)))
    assert subject.machine.view is not None
    assert stranger not in subject.machine.view.by_id


@pytest.mark.parametrize(
    ("news", "refutes"),
    [
        (Gossip(suspicions=(Suspicion(ME, 0, PEER),)), True),
        (Gossip(records=(Record(PEER, ME, True, 1, 0),)), True),
        (Gossip(records=(Record(PEER, ME, False, 1, 0),)), False),
        (Gossip(suspicions=(Suspicion(ME, 1 << 40, PEER),)), False),  # nobody can hold it: a lie
    ],
)
def test_about_ourselves(news: Gossip, refutes: bool) -> None:
    subject = Subject()
    subject.tell(news)
    own = [
        member.incarnation
        for send in subject.sent
        if isinstance(send.message, Gossip)
        for member in send.message.members
        if member.id == ME
    ]
    assert (1 in own) is refutes


def test_a_refuted_suspicion_is_not_counted_again() -> None:
    subject = Subject()
    subject.tell(Gossip(suspicions=(Suspicion(ME, 0, PEER),)))
    subject.sent.clear()
    subject.tell(Gossip(suspicions=(Suspicion(ME, 0, OTHER),)))
    shown = {
        member.incarnation
        for send in subject.sent
        if isinstance(send.message, Gossip)
        for member in send.message.members
        if member.id == ME
    }
    assert shown == {1}, "who missed the answer is told it again, and no higher one"


def test_a_suspicion_nobody_answers_becomes_a_record() -> None:
    subject = Subject()
    subject.hold("suspect")
    subject.listen(14.0)  # the greatest suspicion of four members in preset lan is 12 s
    assert subject.state == "dead"


def test_who_hears_nobody_at_all_doubts_itself_for_twice_as_long() -> None:
    subject = Subject()
    subject.hold("suspect")
    subject.wait(14.0)
    assert subject.state == "suspect"
    subject.wait(14.0)  # and who did not accuse it itself asks it first
    assert subject.state == "dead"


def test_who_heard_nobody_waits_for_answers_when_it_hears_somebody() -> None:
    """Its pings were on their way all the time; they are answered in a moment."""
    subject = Subject()
    subject.hold("suspect")
    subject.wait(20.0)
    subject.tell(Nack(0))
    subject.wait(0.5)
    assert subject.state == "suspect"
    subject.listen(14.0)
    assert subject.state == "dead"


def test_confirmations_shorten_a_suspicion() -> None:
    alone, confirmed = Subject(), Subject()
    for subject in (alone, confirmed):
        subject.hold("suspect")
    for accuser in (OTHER, PEER):
        confirmed.tell(Gossip(suspicions=(Suspicion(SUBJECT, J, accuser),)), sender=accuser)
    for subject in (alone, confirmed):
        subject.listen(3.8)  # nobody accused by ourselves: we wait for those who did, and ask
    assert (alone.state, confirmed.state) == ("suspect", "dead")


def test_a_huge_incarnation_is_refused() -> None:
    """I-64: one forged record pins nobody for ever."""
    subject = Subject()
    subject.tell(message("alive", 1 << 60))
    assert subject.machine.view is not None
    assert subject.machine.view.by_id[SUBJECT].incarnation == J
    assert subject.machine.counters["incarnation-forged"] == 1


def test_nobody_else_makes_us_leave() -> None:
    """I-66: not even the leader."""
    subject = Subject()
    subject.tell(Gossip(members=(Member(ME, status=Status.UP, up_number=9),)))
    subject.tell(Gossip(members=(Member(ME, status=Status.LEAVING, up_number=9),)))
    assert subject.machine.view is not None
    assert subject.machine.view.by_id[ME].status is Status.UP
    assert subject.machine.counters["leave-forged"] == 1
