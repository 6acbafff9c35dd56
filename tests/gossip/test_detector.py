"""The failure detector of one machine: what it asks before it judges, and what it tells whom."""

from __future__ import annotations

from gossip.effects import Paused, Publish, Send
from gossip.events import Dial, Dialled, DialOutcome
from gossip.membership import Member, NodeId, Status
from gossip.messages import Gossip, Nack, Notice, Ping, PingRequest, Suspicion
from gossip.reachability import Record
from gossip.settings import GossipSettings
from tests.gossip.cluster import Cluster
from tests.gossip.test_precedence import OTHER, PEER, SUBJECT, J, Subject

NEWCOMER = NodeId("10.0.0.9", 25520, 9)


class Asked(Subject):
    """A subject whose dials are answered as `outcome` says."""

    outcome = DialOutcome.UNKNOWN
    answers_late = False  # each answer comes after the next question

    def wait(self, for_s: float) -> None:
        end = self.now + for_s
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            effects = self.machine.tick(self.now)
            self.sent += [effect for effect in effects if isinstance(effect, Send)]
            self.dials += [effect for effect in effects if isinstance(effect, Dial)]
            while len(self.dials) > self.answers_late:
                dial = self.dials.pop(0)
                answer = Dialled(dial.peer, dial.attempt, self.outcome, None)
                self.machine.handle(answer, self.now)
        self.now = end


def accuse(subject: Subject) -> None:
    """Two others accuse it, and we as soon as our own probe has failed."""
    subject.hold("suspect")
    subject.tell(Gossip(suspicions=(Suspicion(SUBJECT, J, PEER),)))


def test_a_process_that_greets_is_unresponsive_and_has_six_times_as_long() -> None:
    dead, busy = Asked(), Asked()
    busy.outcome = DialOutcome.ANSWERED
    for subject in (dead, busy):
        accuse(subject)
        subject.listen(8.0)
    assert (dead.state, busy.state) == ("dead", "suspect")
    assert busy.machine.view is not None
    assert busy.machine.view.unresponsive == {SUBJECT}
    busy.listen(20.0)
    assert busy.state == "dead"


def test_nobody_is_given_up_unasked_also_by_who_accuses_when_enough_have() -> None:
    """Two accuse it, which is enough, before our own probe of it fails: it greets, so it lives."""
    for seed in range(100):
        busy = Asked(GossipSettings(suspicion_confirmations=1, health_max=1), seed=seed)
        busy.outcome, busy.answers_late = DialOutcome.ANSWERED, True
        for accuser in (PEER, OTHER):
            busy.tell(Gossip(suspicions=(Suspicion(SUBJECT, J, accuser),)), sender=accuser)
        busy.listen(6.0)
        assert (seed, busy.state) == (seed, "suspect")
        assert busy.machine.view is not None
        assert busy.machine.view.unresponsive == {SUBJECT}


def test_a_greeting_counts_also_when_it_answers_an_earlier_dial() -> None:
    """On a busy host each answer comes after the next question."""
    busy = Asked()
    busy.outcome, busy.answers_late = DialOutcome.ANSWERED, True
    accuse(busy)
    busy.listen(8.0)
    assert busy.state == "suspect"


def test_a_kernel_that_only_accepts_spares_nobody() -> None:
    """A stopped process has one too."""
    stopped = Asked()
    stopped.outcome = DialOutcome.ACCEPTED
    accuse(stopped)
    stopped.listen(8.0)
    assert stopped.state == "dead"


def test_plain_swim_neither_asks_nor_waits() -> None:
    plain = Asked(GossipSettings(lifeguard=False))
    plain.outcome = DialOutcome.ANSWERED
    plain.hold("suspect")
    plain.wait(2.1)
    assert plain.state == "dead"


def test_who_brings_a_stale_word_of_a_suspect_is_told_the_accusation() -> None:
    """And so is the suspect, which can answer it."""
    subject = Subject()
    subject.hold("suspect")
    subject.sent.clear()
    subject.tell(Gossip(members=(Member(SUBJECT, status=Status.UP, up_number=3, incarnation=J),)))
    told = {
        send.to
        for send in subject.sent
        if isinstance(send.message, Gossip)
        and any(one.subject == SUBJECT for one in send.message.suspicions)
    }
    assert told == {PEER, SUBJECT}


def test_who_accuses_one_that_has_answered_is_told_the_answer() -> None:
    subject = Subject()
    subject.sent.clear()
    subject.tell(Gossip(suspicions=(Suspicion(SUBJECT, J - 1, OTHER),)))
    shown = [
        member.incarnation
        for send in subject.sent
        if send.to == PEER and isinstance(send.message, Gossip)
        for member in send.message.members
    ]
    assert shown == [J]
    assert subject.state == "alive"


def test_two_hold_what_one_alone_does_not() -> None:
    """A held record is not voided by its subject's word, once two hold it."""
    subject = Subject()
    subject.tell(Gossip(records=(Record(OTHER, SUBJECT, True, 1, J - 1, held=True),)))
    assert subject.state == "alive"
    subject.tell(Gossip(records=(Record(PEER, SUBJECT, True, 1, J - 1, held=True),)))
    assert subject.state == "dead"
    subject.tell(Gossip(records=(Record(PEER, SUBJECT, False, 2, J),)))
    assert subject.state == "alive"


def test_a_notice_is_believed_and_not_told_on() -> None:
    for message, told_on in (
        (Notice(Gossip(members=(Member(NEWCOMER),))), False),
        (Gossip(members=(Member(NEWCOMER),)), True),
    ):
        subject = Subject()
        subject.tell(message)
        assert subject.machine.view is not None
        assert NEWCOMER in subject.machine.view.by_id
        subject.sent.clear()
        subject.listen(1.0)
        relayed = any(
            member.id == NEWCOMER
            for send in subject.sent
            if isinstance(send.message, Gossip)
            for member in send.message.members
        )
        assert relayed is told_on


def test_a_helper_says_in_time_that_it_had_no_answer() -> None:
    """Before the probe of whoever asked it ends, so that its own health does not suffer."""
    subject = Subject()
    subject.tell(PingRequest(77, SUBJECT))
    subject.sent.clear()
    subject.wait(0.21)
    assert [send for send in subject.sent if send.message == Nack(77)] == [Send(PEER, Nack(77))]


def test_a_sick_node_accuses_only_a_few() -> None:
    """One deaf member of twenty: nobody is called unreachable for its sake, at nobody else's."""
    names = " ".join("abcdefghijklmnopqrst")
    cluster = Cluster(3)
    for name in names.split():
        cluster.start(name, "a")
    cluster.run_until(cluster.all_up(names), within_s=10)
    cluster.run(5)
    cluster.cuts |= {(name, "t") for name in names.split() if name != "t"}
    accused: set[NodeId] = set()
    lost: set[NodeId] = set()

    def observe(name: str, node: object, effects: list[object]) -> None:
        for effect in effects:
            if name == "t" and isinstance(effect, Send) and isinstance(effect.message, Gossip):
                accused.update(s.subject for s in effect.message.suspicions)
            if name != "t" and isinstance(effect, Publish):
                lost.update(getattr(effect.fact, "unreachable", ()))

    cluster.observer = observe
    cluster.run(20)
    assert 1 <= len(accused) <= 10
    assert lost <= {cluster.nodes["t"].id}


def test_after_a_pause_it_asks_before_it_answers_for_others() -> None:
    """I-71: it may have been removed meanwhile."""
    subject = Subject()
    effects = subject.machine.handle(Paused(30.0), subject.now)
    asked = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Ping)]
    assert len(asked) == 3
    subject.sent.clear()
    subject.tell(PingRequest(78, SUBJECT))
    assert not [send for send in subject.sent if isinstance(send.message, Ping)]
