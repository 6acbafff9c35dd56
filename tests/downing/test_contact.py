"""Contact, rule by rule: what a grant is worth, and until when a node may act.

Default settings: a grant is valid for 2.5 s from the instant its ping was sent; a round of pings
each 0.5 s; one without answer after 0.25 s goes through others.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from downing.contact import Contact
from downing.messages import ContactAck, ContactPing, Grant
from downing.settings import DowningSettings
from downing.strategies import parse
from gossip.effects import Send
from gossip.membership import Member, MembershipView, NodeId, Status
from tests.downing.cases import node_of
from tests.downing.driven import leader_of
from tests.downing.pictures import parts_of

CONTACT_S = 2.5
ROUND_S = 0.5


class Asking:
    """The contact of `a`; answers come when a test says so."""

    def __init__(
        self, picture: str = "a b c d e", strategy: str = "keep-majority", **settings: float
    ) -> None:
        self.sent: list[Send] = []
        chosen = parse(strategy)
        assert chosen is not None
        self.settings = DowningSettings(**settings)  # type: ignore[arg-type]
        self.contact = Contact(chosen, self.settings, self.sent.append)
        self.see(picture, agreed=True)
        self.contact.ask(0.0, wanted=True, all_members=False)

    def see(self, picture: str, now: float = 0.0, *, agreed: bool = False) -> None:
        """A view."""
        members = tuple(sorted((m for p in parts_of(picture) for m in p), key=lambda m: m.id))
        self.show(members, now, agreed=agreed)

    def show(self, members: tuple[Member, ...], now: float = 0.0, *, agreed: bool = False) -> None:
        """These members, all reachable."""
        digest = hash(tuple((m.id, m.status) for m in members))
        leader = leader_of(members, {m.id for m in members})
        self.contact.view_changed(
            MembershipView(node_of("a"), 1, members=members, leader=leader, agreed=agreed,
                           members_digest=digest), now)  # fmt: skip

    def round(self, now: float) -> dict[str, ContactPing]:
        """The next round, asked of whom."""
        self.sent.clear()
        self.contact.tick(now)
        return self.asked

    @property
    def asked(self) -> dict[str, ContactPing]:
        """Who was asked directly since the last round began."""
        return {
            send.to.host: send.message
            for send in self.sent
            if isinstance(send.message, ContactPing) and send.via is None
        }

    def answer(self, names: str, now: float, grant: Grant = Grant.GIVEN, seq: int = 0) -> None:
        """They answer the newest ping, or the one of this number."""
        seq = seq or max(ping.seq for ping in self.asked.values())
        for name in names.split():
            ack = ContactAck(seq, grant, self.contact.base_digest)
            assert self.contact.answered(node_of(name), ack, now)

    def until(self, now: float) -> float:
        """Counted anew."""
        self.contact.refresh(now)
        return self.contact.until


def test_a_grant_is_valid_from_the_instant_its_ping_was_sent() -> None:
    """Review F1: however late its answer comes."""
    for answered_at in (0.001, 0.4, 2.4):
        node = Asking()
        node.round(0.0)
        node.answer("b c", answered_at)
        assert node.until(answered_at) == CONTACT_S


def test_an_answer_after_its_time_is_worth_nothing() -> None:
    """D5: it lay in a buffer while this process slept."""
    node = Asking()
    node.round(0.0)
    node.answer("b c d e", 9.0)
    assert node.until(9.0) == -math.inf


def test_the_newest_surviving_set_counts() -> None:
    """c has answered two rounds, b only the first: with both of them a lives until b's ends."""
    node = Asking()
    node.round(0.0)
    node.answer("b c", 0.01)
    node.round(ROUND_S)
    node.answer("c", ROUND_S + 0.01)
    assert node.until(0.6) == CONTACT_S
    node.answer("d", 0.7)
    assert node.until(0.7) == CONTACT_S + ROUND_S


def test_too_few_grants_are_none() -> None:
    node = Asking()
    node.round(0.0)
    node.answer("b", 0.01)
    assert node.until(0.01) == -math.inf
    assert [n.host for n in node.contact.missing(0.01)] == ["c", "d", "e"]


@pytest.mark.parametrize("grant", [Grant.UNREACHABLE, Grant.PROMISED, Grant.GONE])
def test_only_a_given_grant_counts(grant: Grant) -> None:
    """D4: whoever holds us for unreachable or down gives us nothing."""
    node = Asking()
    node.round(0.0)
    node.answer("b c d e", 0.01, grant)
    assert node.until(0.01) == -math.inf
    assert node.contact.refusals == {node_of(name): grant for name in "bcde"}
    node.round(ROUND_S)
    node.answer("b c d e", 0.51)
    assert node.contact.refusals == {}
    assert node.until(0.51) == CONTACT_S + ROUND_S


def test_a_refusal_does_not_take_back_a_grant_that_was_given() -> None:
    """Who promises says how long ago that was: nobody may act on less than its word."""
    node = Asking()
    node.round(0.0)
    node.answer("b c", 0.01)
    node.round(ROUND_S)
    node.answer("b c", 0.51, Grant.PROMISED)
    assert node.until(0.51) == CONTACT_S


def test_an_answer_that_nobody_asked_for_is_ignored() -> None:
    node = Asking()
    node.round(0.0)
    for sender, seq in (("b", 99), ("b", 0), ("z", 1)):
        assert not node.contact.answered(node_of(sender), ContactAck(seq, Grant.GIVEN, 0), 0.1)
    assert node.until(0.1) == -math.inf


def test_all_are_asked_joining_ones_too_but_none_that_is_down() -> None:
    """H7: a promotion enlarges the count by members that were asked before."""
    node = Asking("a b c- d! e? fx")
    assert sorted(node.round(0.0)) == ["b", "c", "d", "e"]


def test_a_change_of_the_view_is_asked_about_at_once() -> None:
    """H7: not a round later; but not without end."""
    node = Asking("a b c")
    node.round(0.0)
    node.see("a b c d", 0.2)
    assert node.contact.deadline == 0.2
    assert sorted(node.round(0.2)) == ["b", "c", "d"]
    node.see("a b c d e", 0.201)
    assert 0.2 < node.contact.deadline <= 0.26


def test_five_rounds_fit_into_the_time_of_a_grant() -> None:
    node = Asking()
    at = [node.contact.deadline]
    while at[-1] < CONTACT_S:
        node.round(at[-1])
        node.answer("b c d e", at[-1])
        node.contact.tick(at[-1] + 0.25)
        at.append(node.contact.deadline)
    assert at == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])


def test_who_does_not_answer_is_asked_through_up_to_three_that_do() -> None:
    """H4: a host cut from all but one goes on."""
    node = Asking("a b c d e f")
    node.round(0.0)
    node.answer("b c d e", 0.01)
    node.sent.clear()
    node.contact.tick(0.25)
    vias = [send.via for send in node.sent if send.to == node_of("f")]
    assert len(vias) == len(set(vias)) == 3
    assert all(via is not None and via.host in "bcde" for via in vias)
    assert all(send.to == node_of("f") for send in node.sent)


def test_with_one_helper_all_others_are_asked_through_it() -> None:
    node = Asking()
    node.round(0.0)
    node.answer("b", 0.01)
    node.sent.clear()
    node.contact.tick(0.25)
    assert {(s.to.host, s.via.host) for s in node.sent if s.via} == {
        ("c", "b"), ("d", "b"), ("e", "b")
    }  # fmt: skip
    for name in "cd":
        node.contact.answered(node_of(name), ContactAck(1, Grant.GIVEN, 0), 0.3)
    assert node.until(0.3) == CONTACT_S


def test_nobody_answers_and_nobody_is_asked_through() -> None:
    node = Asking()
    node.round(0.0)
    node.sent.clear()
    node.contact.tick(0.25)
    assert node.sent == []


def test_what_goes_through_others_is_bounded() -> None:
    members = tuple(Member(NodeId(f"n{i:03}", 1, 1), status=Status.UP, up_number=i + 2)
                    for i in range(100))  # fmt: skip
    node = Asking("a", relays_max=10, pinged_max=1000)
    node.show((Member(node_of("a"), status=Status.UP, up_number=1), *members))
    node.round(0.0)
    for member in members[:3]:
        node.contact.answered(member.id, ContactAck(1, Grant.GIVEN, 0), 0.01)
    node.sent.clear()
    node.contact.tick(0.25)
    assert len(node.sent) == 10


def test_of_very_many_enough_are_asked_and_others_each_time() -> None:
    """51 of 101 and three more, in turn; all of them while somebody is unreachable."""
    members = (
        Member(node_of("a"), status=Status.UP, up_number=1),
        *(Member(NodeId(f"n{i:03}", 1, 1), status=Status.UP, up_number=i + 2) for i in range(100)),
    )
    node = Asking("a")
    node.show(members, agreed=True)
    seen: set[str] = set()
    for number in range(101):
        asked = node.round(ROUND_S * number)
        assert len(asked) == 53
        seen |= set(asked)
        node.contact.tick(ROUND_S * number + 0.25)
    assert len(seen) == 100
    node.contact.ask(60.0, wanted=True, all_members=True)
    assert len(node.round(60.0)) == 100


def test_a_leaver_counts_without_itself() -> None:
    node = Asking("a- b c")
    node.round(0.0)
    node.answer("b", 0.01)
    assert node.until(0.01) == -math.inf
    node.answer("c", 0.01)
    assert node.until(0.01) == CONTACT_S


def test_alone_it_needs_nobody() -> None:
    assert Asking("a").until(0.0) == math.inf


def test_members_that_went_stay_in_the_base_and_have_no_voice() -> None:
    """D6, D8: until all have agreed on the view without them."""
    node = Asking()
    node.see("a b c dx ex", 1.0)
    node.contact.tick(1.0)
    node.round(1.5)
    node.answer("b", 1.51)
    assert node.until(1.51) == -math.inf
    node.see("a b c", 2.0, agreed=True)
    assert node.until(2.0) == 1.5 + CONTACT_S


def test_a_grant_of_one_that_went_lasts_as_long_as_any() -> None:
    """It stays in the base, and had promised nothing: five of eight that leave at once do not stop
    who stays, while the smaller view is being agreed on."""
    node = Asking("a b c d e f g h")
    node.round(0.0)
    node.answer("b c d e f g h", 0.01)
    node.see("a b c", 0.4)
    node.round(0.5)
    node.answer("b c", 0.51)
    assert node.until(0.52) == CONTACT_S
    assert node.until(CONTACT_S) == -math.inf
    node.see("a b c", CONTACT_S, agreed=True)
    assert node.until(CONTACT_S) == 0.5 + CONTACT_S


def test_the_grants_of_those_that_went_do_not_carry_the_view() -> None:
    """Those that stay have to grant as well: they may have agreed without us by now."""
    node = Asking("a b c d e f g h")
    node.round(0.0)
    node.answer("d e f g h", 0.01)
    assert node.until(0.02) == CONTACT_S
    node.see("a b c", 0.4)
    assert node.until(0.41) == -math.inf


def test_l1_a_base_of_others_is_adopted_from_a_ping_and_from_an_answer() -> None:
    """L1: what one has seen agreed holds for all who hold these members."""
    for by_ping in (True, False):
        node = Asking("a b c")
        node.see("a b c d e", 0.1)
        digest = node.contact._view.members_digest  # type: ignore[union-attr]
        node.round(0.2)
        if by_ping:
            node.contact.asked(node_of("b"), ContactPing(1, digest), None, Grant.GIVEN, 0.2)
        else:
            node.contact.answered(node_of("b"), ContactAck(1, Grant.GIVEN, digest), 0.2)
        assert node.contact.base is not None
        assert len(node.contact.base) == 5
        other = Asking("a b c")
        other.see("a b c d e", 0.1)
        other.contact.asked(node_of("b"), ContactPing(1, digest + 1), None, Grant.GIVEN, 0.2)
        assert other.contact.base is not None
        assert len(other.contact.base) == 3


def test_an_answer_goes_back_the_way_the_question_came() -> None:
    node = Asking()
    node.contact.asked(node_of("e"), ContactPing(7, 0), node_of("b"), Grant.GIVEN, 1.0)
    send = node.sent[-1]
    assert (send.to, send.via) == (node_of("e"), node_of("b"))
    assert send.message == ContactAck(7, Grant.GIVEN, node.contact.base_digest)


def test_when_it_last_granted_is_remembered_also_of_one_that_just_went() -> None:
    """The quiet time is told from it; a refusal is no grant."""
    node = Asking("a b c")
    node.contact.asked(node_of("b"), ContactPing(1, 0), None, Grant.GIVEN, 1.0)
    node.contact.asked(node_of("b"), ContactPing(2, 0), None, Grant.UNREACHABLE, 2.0)
    assert node.contact.given == {node_of("b"): 1.0}
    node.see("a c", 2.5)
    assert node.contact.given == {node_of("b"): 1.0}
    node.see("a c d", 9.0)
    assert node.contact.given == {}


def test_the_arbiters_word_is_contact_as_long_as_it_holds() -> None:
    node = Asking(strategy="lease-majority")
    node.contact.arbiter_until = 7.0
    assert node.until(1.0) == 7.0
    node.round(6.0)
    node.answer("b c d e", 6.01)
    assert node.until(6.01) == 6.0 + CONTACT_S


def test_with_a_lease_anything_less_than_all_needs_the_lease() -> None:
    node = Asking(strategy="lease-majority")
    node.round(0.0)
    node.answer("b c d", 0.01)
    assert node.until(0.01) == -math.inf
    node.answer("e", 0.02)
    assert node.until(0.02) == CONTACT_S


def test_unwanted_it_asks_nobody_and_wanted_again_at_once() -> None:
    node = Asking()
    node.round(0.0)
    node.contact.ask(0.1, wanted=False, all_members=False)
    assert node.contact.deadline == math.inf
    node.contact.ask(5.0, wanted=True, all_members=False)
    assert node.contact.deadline == 5.0


def test_who_has_answered_since_is_known_also_if_it_refused() -> None:
    """It is with us, whatever it grants."""
    node = Asking()
    node.round(0.0)
    node.answer("b", 0.1)
    node.answer("c", 0.1, Grant.UNREACHABLE)
    assert node.contact.known_since(0.0) == {node_of("b"), node_of("c")}
    assert node.contact.known_since(0.05) == set()
    node.round(ROUND_S)
    node.answer("d", 0.6, seq=1)
    assert node.contact.known_since(0.3) == set()


def test_without_a_base_there_is_no_contact() -> None:
    settings = DowningSettings()
    sent: list[Send] = []
    chosen = parse("keep-majority")
    assert chosen is not None
    contact = Contact(chosen, settings, sent.append)
    me = Member(node_of("a"), status=Status.UP, up_number=1)
    other = replace(me, id=node_of("b"), up_number=2)
    members = (me, other, replace(me, id=node_of("c"), up_number=3))
    contact.view_changed(
        MembershipView(me.id, 1, members=members, leader=me.id, members_digest=5), 0.0
    )
    contact.ask(0.0, wanted=True, all_members=False)
    contact.tick(0.0)
    contact.answered(other.id, ContactAck(1, Grant.GIVEN, 0), 0.01)
    contact.refresh(0.01)
    assert contact.until == -math.inf
    contact.answered(other.id, ContactAck(1, Grant.GIVEN, 5), 0.02)
    contact.refresh(0.02)
    assert contact.until == CONTACT_S
