"""Who may say what about whom: planted liars (I-63 … I-69, I-72, I-78).

A liar is a member whose connection carries forged frames; its own process goes on working. The
sender of a frame is always the connection's other end.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.authority import flaw_of
from gossip.effects import Send
from gossip.events import ClaimRefused, Exit, LeaveRequested, PeerFrame
from gossip.membership import NUMBER_MAX, Cause, Member, MembershipView, NodeId, Status, Tombstone
from gossip.messages import (
    Ack,
    Dissolve,
    Gossip,
    Head,
    Invite,
    LinkAnswer,
    LinkQuestion,
    Nack,
    Ping,
    PingRequest,
    Suspicion,
    SyncOffer,
    SyncReply,
    ViewSeen,
    ViewSeenAck,
    Welcome,
    YouAreGone,
)
from gossip.reachability import Record
from gossip.settings import GossipSettings
from tests.conftest import HowMany
from tests.gossip.cluster import Cluster, Node
from tests.gossip.test_merge import members, records, tombstones
from tests.gossip.test_precedence import ME, OTHER, PEER, SUBJECT, Subject

STRANGER = NodeId("10.0.0.9", 25520, 9)
GHOST = NodeId("10.0.0.0", 25520, 4711)  # the lowest address of all
MAX = (1 << 64) - 1
JUMP = Cluster().settings.incarnation_jump_max
LIAR = "e"
VICTIM = "c"


def formed(
    names: str = "a b c d e", seed: int = 1, settings: GossipSettings | None = None
) -> Cluster:
    """All up and quiet; a leads."""
    cluster = Cluster(seed, settings)
    for name in names.split():
        cluster.start(name, "a")
    cluster.run_until(cluster.all_up(names), within_s=10)
    cluster.run(3)
    return cluster


def view_of(cluster: Cluster, name: str) -> MembershipView:
    view = cluster.nodes[name].view
    assert view is not None
    return view


def record_of(cluster: Cluster, name: str, *, at: str) -> Member:
    """What `at` holds of `name`."""
    return cluster.nodes[at].machine._ground.table.members[cluster.nodes[name].id]


def own_record(cluster: Cluster, name: str) -> Member:
    return record_of(cluster, name, at=name)


def others(cluster: Cluster, *names: str) -> list[str]:
    return [name for name in cluster.nodes if name not in names]


def tell_all(cluster: Cluster, liar: str, *messages: object, but: str = "") -> None:
    """One frame to each member but the liar."""
    for name in others(cluster, liar, *but):
        cluster.say(liar, name, *messages)


def ends(cluster: Cluster) -> list[Exit]:
    return [node.exit for node in cluster.nodes.values() if node.exit is not None]


def refused(cluster: Cluster, name: str, reason: str) -> int:
    return cluster.nodes[name].machine.counters.get(reason, 0)


# strangers


def stranger_messages(cluster: Cluster) -> list[object]:
    """One of each kind that is no join message, as harmful as can be."""
    b, c = cluster.nodes["b"].id, cluster.nodes["c"].id
    ghost = Member(GHOST, status=Status.UP, up_number=1)
    down = replace(own_record(cluster, "c"), status=Status.DOWN, cause=Cause.CRASHED)
    return [
        Ack(1),
        PingRequest(1, c),
        Nack(1),
        Gossip(members=(ghost,)),
        Gossip(members=(down,)),
        Gossip(tombstones=(Tombstone(c, 1, Cause.LEFT),)),
        Gossip(records=(Record(b, c, True, 1, 0),)),
        Gossip(suspicions=(Suspicion(c, 0, b),)),
        Gossip(floor=7),
        ViewSeen(3),
        ViewSeenAck(3),
        SyncOffer((), (), (), 7),
        SyncReply(Gossip(members=(ghost,)), (b,)),
        Dissolve(99, GHOST, "stop"),
        YouAreGone(cluster.nodes["a"].id.uid, int(Cause.DOWNED)),
        LinkQuestion(c, 1),
        LinkAnswer(c, 1, True),
    ]


def test_a_stranger_changes_nothing_whatever_it_says() -> None:
    """I-65: it knows our cluster id, and nobody here knows it."""
    cluster = formed("a b c")
    machine = cluster.nodes["a"].machine
    before = (machine.head, machine.view)
    for number, message in enumerate(stranger_messages(cluster), 1):
        cluster.log = []
        cluster.say(STRANGER, "a", message)
        assert (machine.head, machine.view) == before, message
        assert refused(cluster, "a", "no-standing") == number
        assert cluster.log == []
    assert not ends(cluster)


def test_the_ping_of_a_stranger_is_answered_and_tells_nothing_else() -> None:
    """It may have been admitted a moment ago: silence would make a suspect of us."""
    cluster = formed("a b c")
    cluster.log = []
    cluster.say(STRANGER, "a", Ping(5, cluster.nodes["a"].id))
    assert cluster.log == [("a", STRANGER, Ack(5))]


ids = st.sampled_from([STRANGER, GHOST, *(NodeId(f"10.0.0.{n}", 25520, n) for n in (1, 2, 3))])
numbers = st.integers(0, MAX)
gossips = st.builds(
    Gossip,
    members=st.lists(members, max_size=3).map(tuple),
    tombstones=st.lists(tombstones, max_size=3).map(tuple),
    records=st.lists(records, max_size=3).map(tuple),
    suspicions=st.lists(st.builds(Suspicion, ids, numbers, ids), max_size=2).map(tuple),
    floor=numbers,
)
any_message = st.one_of(
    gossips,
    st.builds(SyncReply, gossips, st.just(()), st.just(()), st.just(())),
    st.builds(SyncOffer, st.just(()), st.just(()), st.just(()), numbers),
    st.builds(Dissolve, numbers, ids, st.just("stop")),
    st.builds(YouAreGone, numbers, st.integers(0, 9)),
    st.builds(LinkQuestion, ids, numbers),
    st.builds(LinkAnswer, ids, numbers, st.booleans()),
    st.builds(ViewSeen, numbers),
    st.builds(ViewSeenAck, numbers),
    st.builds(Ack, numbers),
    st.builds(Nack, numbers),
    st.builds(PingRequest, numbers, ids),
)
QUIET = formed("a b c")


@given(st.lists(any_message, min_size=1, max_size=4))
def test_no_stranger_ever_changes_a_view(messages: list[object]) -> None:
    """I-65, for any frame: not the view, not the digests, not a suspicion, no end."""
    machine = QUIET.nodes["a"].machine
    before = (machine.head, machine.view)
    QUIET.say(STRANGER, "a", *messages)
    assert (machine.head, machine.view) == before
    assert not ends(QUIET)


def test_a_refusal_is_published_once_per_reason() -> None:
    """I-79."""
    cluster = formed("a b")
    for _ in range(5):
        cluster.say(STRANGER, "a", ViewSeen(1))
    said = [fact for fact in cluster.nodes["a"].facts if isinstance(fact, ClaimRefused)]
    assert said == [ClaimRefused(STRANGER, "no-standing")]
    assert refused(cluster, "a", "no-standing") == 5


def test_a_member_that_nobody_left_has_heard_of_introduces_itself() -> None:
    """c joined by b while a was cut off; then b ended. a and c are all that is left."""
    cluster = formed("a b")
    cluster.cut("a", "b c")
    cluster.run(10)
    cluster.start("c", "b")
    cluster.run(12)
    c = cluster.nodes["c"].id
    assert view_of(cluster, "c").by_id[c].status is Status.WEAKLY_UP
    cluster.crash("b", sockets_close=False)
    cluster.cuts.clear()
    cluster.run_until(lambda: c in view_of(cluster, "a").by_id, within_s=10)
    assert cluster.nodes["c"].exit is None


def test_nobody_is_welcomed_who_has_not_echoed_a_challenge() -> None:
    """A welcome out of turn would hand a looking process any view."""
    cluster = Cluster()
    cluster.cut("a", "b")
    node = cluster.start("b", "a")
    view = Gossip(members=(Member(node.id), Member(STRANGER, status=Status.UP, up_number=1)))
    sender = NodeId("10.0.0.1", 25520, 1)
    cluster.feed("b", PeerFrame(sender, Head(), (Welcome(77, view),)))
    assert cluster.clusters() == set()
    assert refused(cluster, "b", "welcome-ignored") == 1


@pytest.mark.parametrize("sender", ["b", STRANGER])
def test_an_invite_is_answered_to_members_only(sender: str | NodeId) -> None:
    cluster = formed("a b")
    cluster.log = []
    cluster.say(sender, "a", Invite("test"))
    assert bool(cluster.log) is (sender == "b")


# numbers and facts


IMPOSSIBLE = [
    Member(SUBJECT, status=Status.REMOVED),
    Member(SUBJECT, status=Status.UP, up_number=0),
    Member(SUBJECT, status=Status.JOINING, up_number=3),
    Member(SUBJECT, status=Status.DOWN),
    Member(SUBJECT, status=Status.UP, up_number=3, cause=Cause.CRASHED),
    Member(SUBJECT, status=Status.UP, up_number=3, incarnation=MAX),
    Member(SUBJECT, status=Status.UP, up_number=3, record_version=MAX),
    Member(SUBJECT, status=Status.UP, up_number=MAX),
    Member(SUBJECT, status=Status.UP, up_number=3, incarnation=-1),
]


@pytest.mark.parametrize("claim", IMPOSSIBLE)
@pytest.mark.parametrize("sender", [PEER, OTHER, SUBJECT])
def test_what_no_honest_process_writes_is_refused_from_everybody(
    claim: Member, sender: NodeId
) -> None:
    """I-63, I-64: also from the leader, and from the member itself."""
    subject = Subject()
    before = subject.machine.view
    subject.tell(Gossip(members=(claim,)), sender=sender)
    assert subject.machine.view == before
    assert flaw_of(claim) in subject.machine.counters


def believed(subject: Subject) -> Member:
    """What is held of SUBJECT; a view is not published for an incarnation."""
    return subject.machine._ground.table.members[SUBJECT]


def held_by(subject: Subject, **changes: object) -> Member:
    """A record of the subject that differs from the one held by this."""
    return replace(believed(subject), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sender", "incarnation", "taken"),
    [
        (OTHER, JUMP, True),
        (OTHER, JUMP + 1, False),
        (PEER, NUMBER_MAX, False),
        (SUBJECT, JUMP + 1, True),
        (SUBJECT, NUMBER_MAX, True),
    ],
)
def test_a_relay_raises_an_incarnation_only_so_far(
    sender: NodeId, incarnation: int, taken: bool
) -> None:
    """I-64: beyond it only the member itself is believed."""
    subject = Subject()
    subject.tell(Gossip(members=(held_by(subject, incarnation=incarnation),)), sender=sender)
    assert (believed(subject).incarnation == incarnation) is taken
    assert (subject.machine.counters["incarnation-forged"] > 0) is not taken


def test_many_small_steps_are_no_way_around_it() -> None:
    """I-64: the bound counts from what the member itself said, not from what is held."""
    subject = Subject()
    for step in range(1, 5):
        claim = held_by(subject, incarnation=step * JUMP)
        subject.tell(Gossip(members=(claim,)), sender=OTHER)
    assert believed(subject).incarnation == JUMP


def test_a_forged_incarnation_of_the_unknown_is_cut() -> None:
    subject = Subject()
    new = Member(STRANGER, incarnation=NUMBER_MAX)
    subject.tell(Gossip(members=(new,)), sender=OTHER)
    assert subject.machine.view is not None
    assert subject.machine.view.by_id[STRANGER].incarnation == JUMP


def test_whom_a_liar_makes_too_old_to_be_accused_still_answers() -> None:
    """However high a relay lifted it, the member can show a higher incarnation."""
    cluster = formed()
    c = cluster.nodes[VICTIM].id
    lifted = replace(own_record(cluster, VICTIM), incarnation=JUMP)
    tell_all(cluster, LIAR, Gossip(members=(lifted,)), but=VICTIM)
    accusation = Suspicion(c, JUMP, cluster.nodes[LIAR].id)
    for name in "bd":
        cluster.say(LIAR, name, Gossip(suspicions=(accusation,)))
    assert c in view_of(cluster, "b").suspects
    cluster.run(3)
    for name in "abd":
        assert c not in view_of(cluster, name).suspects | view_of(cluster, name).unreachable
        assert record_of(cluster, VICTIM, at=name).incarnation > JUMP


@pytest.mark.parametrize("incarnation", [JUMP + 1, 1 << 60, MAX])
def test_an_accusation_from_the_far_future_is_not_answered(incarnation: int) -> None:
    """I-64: nobody raises our incarnation beyond the budget."""
    subject = Subject()
    accusations = Gossip(
        suspicions=(Suspicion(ME, incarnation, PEER),),
        records=(Record(PEER, ME, True, 1, incarnation),),
    )
    subject.tell(accusations)
    assert subject.machine.view is not None
    assert subject.machine.view.by_id[ME].incarnation == 0
    assert subject.machine.counters["incarnation-forged"] >= 1


def test_an_accusation_that_was_too_high_is_answered_when_it_no_longer_is() -> None:
    """The record stays, and is no longer void once our own word has come near enough."""
    subject = Subject()
    subject.tell(Gossip(records=(Record(PEER, ME, True, 1, JUMP + 1),)))
    held = subject.machine._ground.table.members
    assert held[ME].incarnation == 0
    subject.tell(Gossip(suspicions=(Suspicion(ME, 0, PEER),)))
    assert held[ME].incarnation == JUMP + 2


FACTS: list[dict[str, object]] = [
    {"name": "other"},
    {"roles": ("db",)},
    {"protocol_max": 9},
    {"data_port": 4711},
    {"public_key": b"k" * 32},
    {"boot_id": "elsewhere"},
    {"pid": 4711},
    {"start_ticks": 1},
]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: next(iter(facts)))
@pytest.mark.parametrize("sender", [PEER, OTHER])
def test_nobody_changes_the_facts_of_another(facts: dict[str, object], sender: NodeId) -> None:
    """I-65: whatever version the record claims."""
    subject = Subject()
    before = believed(subject)
    for version in (0, 1, JUMP, NUMBER_MAX):
        claim = held_by(subject, record_version=version, **facts)
        subject.tell(Gossip(members=(claim,)), sender=sender)
    assert replace(believed(subject), record_version=0, incarnation=0) == replace(
        before, record_version=0, incarnation=0
    )
    assert subject.machine.counters["facts-forged"] == 4
    # It is asked itself, at most once a gossip interval.
    asked = [
        send
        for send in subject.sent
        if isinstance(send.message, SyncReply) and send.message.want_members == (SUBJECT,)
    ]
    assert [send.to for send in asked] == [SUBJECT]


def test_its_own_word_corrects_a_lie_that_came_first_and_then_stands() -> None:
    subject = Subject()
    for sender, port, then in ((OTHER, 1, 1), (STRANGER, 2, 2), (STRANGER, 3, 2), (OTHER, 4, 2)):
        subject.tell(Gossip(members=(Member(STRANGER, data_port=port),)), sender=sender)
        assert subject.machine.view is not None
        assert subject.machine.view.by_id[STRANGER].data_port == then
    assert subject.machine.counters["facts-forged"] == 2


@pytest.mark.parametrize("version", [0, 1, 40])
def test_a_forged_type_is_gone_in_a_moment(version: int) -> None:
    """I-65: made to look like a host, the member says anew what it hosts."""
    cluster = formed()
    forged = replace(own_record(cluster, VICTIM), record_version=version, types=("singleton:evil",))
    tell_all(cluster, LIAR, Gossip(members=(forged,)))
    cluster.run(2)
    for name in others(cluster, LIAR):
        assert record_of(cluster, VICTIM, at=name).types == ()
    heads = {cluster.nodes[name].machine.head.members_digest for name in cluster.nodes}
    assert len(heads) == 1


def test_a_forged_record_of_an_observer_is_answered_by_it() -> None:
    """The same of reachability: the observer's next word is the later one."""
    cluster = formed()
    a, c = cluster.nodes["a"].id, cluster.nodes[VICTIM].id
    forged = Record(a, c, True, 40, 0)
    for name in "bd":
        cluster.say(LIAR, name, Gossip(records=(forged,)))
    cluster.run(2)
    for name in "abd":
        assert (a, c) not in cluster.nodes[name].machine.failing_links()
        assert c not in view_of(cluster, name).unreachable
    heads = {cluster.nodes[name].machine.head.reach_digest for name in cluster.nodes}
    assert len(heads) == 1


@pytest.mark.parametrize(
    "news",
    [
        Gossip(records=(Record(SUBJECT, PEER, True, MAX, 5),)),
        Gossip(records=(Record(SUBJECT, PEER, True, 1, MAX),)),
        Gossip(suspicions=(Suspicion(SUBJECT, MAX, PEER),)),
        Gossip(suspicions=(Suspicion(SUBJECT, 5, GHOST),)),
        Gossip(tombstones=(Tombstone(SUBJECT, MAX, Cause.LEFT),)),
        Gossip(tombstones=(Tombstone(SUBJECT, 0, Cause.LEFT),)),
        Gossip(tombstones=(Tombstone(SUBJECT, 1, Cause.NONE),)),
        Gossip(floor=MAX),
        Gossip(floor=1),
        Gossip(members=(Member(SUBJECT, status=Status.UP, up_number=MAX),)),
    ],
)
def test_impossible_numbers_are_refused_in_every_kind_of_news(news: Gossip) -> None:
    """I-64: on every merge; also the exchanges of views carry them."""
    for message in (news, SyncReply(news)):
        subject = Subject()
        before = subject.machine.head
        subject.tell(message, sender=OTHER)
        assert subject.machine.head == before
        assert subject.state == "alive"


def test_an_offer_forgets_no_tombstones_with_a_forged_floor() -> None:
    """I-72, I-73."""
    subject = Subject()
    subject.hold("left")
    subject.tell(SyncOffer((), (), (), MAX), sender=OTHER)
    assert subject.state == "left"


def test_an_acknowledgement_of_a_future_view_is_refused() -> None:
    subject = Subject()
    subject.tell(ViewSeenAck(MAX))
    assert subject.machine.counters["number-impossible"] == 1
    assert subject.machine.view is not None
    assert not subject.machine.view.converged


# promotion


def test_a_phantom_never_leads_and_never_becomes_up() -> None:
    """I-67: a record of a process that is not there, with the lowest address and age."""
    cluster = formed()
    ghost = Member(GHOST, status=Status.UP, up_number=1)
    leader = view_of(cluster, "b").leader
    for _ in range(100):
        tell_all(cluster, LIAR, Gossip(members=(ghost,)))
        cluster.run(0.1)
        for name in others(cluster, LIAR):
            view = view_of(cluster, name)
            assert view.leader == leader
            oldest = view.oldest()
            assert oldest is not None
            assert oldest.id != GHOST
    cluster.run(60)
    for name in others(cluster, LIAR):
        assert GHOST not in view_of(cluster, name).by_id
        assert view_of(cluster, name).converged


def test_nobody_but_the_leader_changes_an_age() -> None:
    """A member made the oldest would be given every singleton."""
    cluster = formed()
    forged = replace(own_record(cluster, VICTIM), up_number=1)
    ages = {name: own_record(cluster, name).up_number for name in cluster.nodes}
    for _ in range(150):
        tell_all(cluster, LIAR, Gossip(members=(forged,)))
        cluster.run(0.1)
    for name in others(cluster, LIAR):
        assert {n: record_of(cluster, n, at=name).up_number for n in ages} == ages


def test_a_promotion_is_believed_from_the_leader_or_from_two() -> None:
    new = Member(STRANGER, status=Status.UP, up_number=9)
    for senders, then in (
        ([PEER], Status.UP),
        ([OTHER], Status.JOINING),
        ([OTHER, OTHER], Status.JOINING),
        ([STRANGER], None),
        ([OTHER, STRANGER], Status.UP),
        ([OTHER, SUBJECT], Status.UP),
    ):
        subject = Subject()
        for sender in senders:
            subject.tell(Gossip(members=(new,)), sender=sender)
        view = subject.machine.view
        assert view is not None
        status = view.by_id[STRANGER].status if STRANGER in view.by_id else None
        assert status is then, senders


def test_a_promotion_that_only_one_knows_of_is_believed_in_the_end() -> None:
    """The leader told one member and ended; as the youngest, and when it is alive."""
    for alive, number, then in ((True, 9, "up"), (False, 9, "joining"), (True, 1, "joining")):
        subject = Subject()
        subject.tell(Gossip(members=(Member(STRANGER),)), sender=OTHER)
        promoted = Member(STRANGER, status=Status.UP, up_number=number)
        subject.tell(Gossip(members=(promoted,)), sender=OTHER)
        if alive:
            subject.tell(Nack(1), sender=STRANGER)
        subject.wait(7.1)
        assert subject.machine.view is not None
        status = subject.machine.view.by_id[STRANGER].status
        assert status.name.lower() == then, (alive, number)


def test_two_liars_of_a_promotion_about_ourselves_are_not_ourselves() -> None:
    """What we were made to believe is no second voice for the liar."""
    subject = Subject()
    forged = Member(ME, status=Status.UP, up_number=1)
    for _ in range(100):
        subject.tell(Gossip(members=(forged,)), sender=OTHER)
        subject.wait(0.1)
    assert subject.machine.view is not None
    assert subject.machine.view.by_id[ME].status is Status.JOINING


# departure


def departures(cluster: Cluster) -> list[Gossip]:
    """Each way to say that the victim is not with us any more."""
    record, node = own_record(cluster, VICTIM), cluster.nodes[VICTIM].id
    liar = cluster.nodes[LIAR].id
    down = [
        replace(record, status=Status.DOWN, cause=cause)
        for cause in Cause
        if cause is not Cause.NONE
    ]
    moved = [
        replace(record, status=Status.LEAVING), replace(record, status=Status.EXITING), *down
    ]  # fmt: skip
    stones = [Tombstone(node, 1, cause) for cause in Cause if cause is not Cause.NONE]
    accused = Record(liar, node, True, 1, record.incarnation)
    return [
        *(Gossip(members=(claim,)) for claim in moved),
        *(Gossip(tombstones=(stone,)) for stone in stones),
        Gossip(members=(down[-1],), records=(accused,)),
        Gossip(tombstones=(stones[-1],), records=(accused,)),
    ]


@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("victim_hears_it", [False, True])
def test_one_member_takes_no_living_one_out(number: int, victim_hears_it: bool) -> None:
    """I-66: whatever it says, to whomever, again and again, for ten seconds."""
    cluster = formed()
    news = departures(cluster)[number]
    node = cluster.nodes[VICTIM].id
    for _ in range(40):
        tell_all(cluster, LIAR, news, but="" if victim_hears_it else VICTIM)
        if victim_hears_it:
            cluster.say(LIAR, VICTIM, YouAreGone(node.uid, int(Cause.DOWNED)))
        cluster.run(0.25)
        for name in others(cluster, LIAR):
            assert record_of(cluster, VICTIM, at=name).status is Status.UP
    assert not ends(cluster)
    cluster.run(5)
    for name in others(cluster, LIAR):
        assert node not in view_of(cluster, name).unreachable
        assert view_of(cluster, name).converged


def test_who_calls_the_leader_unreachable_has_no_authority_yet() -> None:
    """The next in line writes records about the leader, and then speaks as the leader."""
    cluster = formed()
    a, b, c = (cluster.nodes[name] for name in "abc")
    for turn in range(40):
        incarnation = own_record(cluster, "a").incarnation
        accused = Record(b.id, a.id, True, turn + 1, incarnation)
        gone = replace(own_record(cluster, "c"), status=Status.DOWN, cause=Cause.DOWNED)
        for name in "cde":
            cluster.say("b", name, Gossip(records=(accused,)))
            cluster.say("b", name, Gossip(members=(gone,)))
        cluster.run(0.25)
        for name in "acde":
            assert record_of(cluster, "c", at=name).status is Status.UP
    assert c.exit is None


def test_a_doubt_of_ours_is_not_put_into_our_mouth() -> None:
    """What agrees with a departure are our own probes, not an accusation under our name."""
    cluster = formed()
    a, c = cluster.nodes["a"].id, cluster.nodes[VICTIM].id
    doubt = Suspicion(c, 0, a)
    own = Record(a, c, True, NUMBER_MAX, 0)
    gone = Tombstone(c, 1, Cause.CRASHED)
    cluster.say(LIAR, "a", Gossip(suspicions=(doubt,), records=(own,)))
    cluster.say(LIAR, "a", Gossip(tombstones=(gone,)))
    cluster.run(5)
    for name in others(cluster, LIAR):
        assert record_of(cluster, VICTIM, at=name).status is Status.UP
        assert c not in view_of(cluster, name).unreachable


def test_whom_nobody_reaches_is_taken_out_on_one_word() -> None:
    """The rule must not keep the dead: silence for a probe interval agrees."""
    cluster = formed()
    node = cluster.nodes[VICTIM].id
    news = Gossip(members=(replace(own_record(cluster, VICTIM), status=Status.DOWN,
                                   cause=Cause.DOWNED),))  # fmt: skip
    cluster.cut(VICTIM, "a b d e")
    tell_all(cluster, LIAR, news, but=VICTIM)
    took_s = cluster.run_until(lambda: node not in view_of(cluster, "d").by_id, within_s=5)
    assert took_s < cluster.settings.probe_interval_s + 1.0


def test_two_members_that_agree_are_believed() -> None:
    """What does not hold: two liars together take anybody out."""
    cluster = formed()
    node = cluster.nodes[VICTIM].id
    news = Gossip(members=(replace(own_record(cluster, VICTIM), status=Status.DOWN,
                                   cause=Cause.DOWNED),))  # fmt: skip
    for liar in "be":
        tell_all(cluster, liar, news, but=VICTIM)
    cluster.run_until(lambda: node not in view_of(cluster, "d").by_id, within_s=5)
    cluster.run_until(lambda: cluster.nodes[VICTIM].exit is not None, within_s=5)


@pytest.mark.parametrize(
    ("tellers", "ends_it"),
    [([PEER], True), ([OTHER], False), ([OTHER, OTHER], False), ([OTHER, SUBJECT], True)],
)
@pytest.mark.parametrize("how", ["record", "tombstone", "word"])
def test_we_stop_on_the_word_of_the_leader_or_of_two(
    tellers: list[NodeId], ends_it: bool, how: str
) -> None:
    """I-71 goes on to hold; a single frame of anybody does not end us."""
    subject = Subject()
    message = {
        "record": Gossip(members=(Member(ME, status=Status.DOWN, cause=Cause.DOWNED),)),
        "tombstone": Gossip(tombstones=(Tombstone(ME, 1, Cause.DOWNED),)),
        "word": YouAreGone(ME.uid, int(Cause.DOWNED)),
    }[how]
    for teller in tellers:
        subject.tell(message, sender=teller)
    assert (subject.machine.deadline == float("inf")) is ends_it
    if not ends_it:
        # The others are asked: who agrees answers a ping with the same word.
        assert any(isinstance(send.message, Ping) for send in subject.sent)


def test_a_leave_reaches_members_that_the_leaver_did_not_tell() -> None:
    """I-66: they hear it from relays, and ask the leaver itself."""
    names = "a b c d e f g h i j k l m n"
    cluster = formed(names, settings=GossipSettings(notice_fanout_max=4))  # as in a large one
    leaver = cluster.nodes["g"].id
    told: set[str] = set()

    def observe(name: str, node: Node, effects: list[object]) -> None:
        if name == "g":
            told.update(
                effect.to.host
                for effect in effects
                if isinstance(effect, Send) and isinstance(effect.message, Gossip)
            )

    cluster.observer = observe
    cluster.feed("g", LeaveRequested())
    assert len(told) == cluster.settings.status_fanout
    rest = [name for name in cluster.nodes if name != "g"]
    took_s = cluster.run_until(
        lambda: all(leaver not in view_of(cluster, name).by_id for name in rest), within_s=5
    )
    assert took_s < 1.5
    assert all(view_of(cluster, name).gone[leaver] is Cause.LEFT for name in rest)


def test_a_removed_one_is_not_revived() -> None:
    """I-72: by no record of any version, after no forged floor."""
    cluster = formed()
    gone, record = cluster.nodes["d"].id, own_record(cluster, "d")
    cluster.feed("d", LeaveRequested())
    cluster.run(3)
    assert gone in view_of(cluster, "a").gone
    for _ in range(20):
        again = replace(record, incarnation=JUMP, record_version=JUMP)
        tell_all(cluster, LIAR, Gossip(members=(again,), floor=MAX), SyncOffer((), (), (), MAX))
        cluster.run(0.1)
        for name in "abc":
            assert gone not in view_of(cluster, name).by_id
            assert view_of(cluster, name).gone[gone] is Cause.LEFT


def test_one_member_does_not_dissolve_the_cluster() -> None:
    cluster = formed()
    for _ in range(20):
        tell_all(cluster, LIAR, Dissolve(99, GHOST, "a larger one exists"))
        cluster.run(0.2)
    assert not ends(cluster)


# credit


def test_only_the_target_and_asked_helpers_give_credit_for_an_ack() -> None:
    """I-67: a member answers every ping that is meant for a dead one, before it is asked."""
    cluster = formed()
    dead, liar = cluster.nodes["d"], cluster.nodes[LIAR]

    def observe(name: str, node: Node, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.to == dead.id:
                ping = effect.message
                if isinstance(ping, Ping) and name != LIAR:
                    cluster.at(0.0001, partial(cluster.say, LIAR, name, Ack(ping.seq)))

    cluster.observer = observe
    cluster.crash("d", sockets_close=False)
    assert liar.exit is None
    cluster.run_until(
        lambda: all(dead.id in view_of(cluster, name).unreachable for name in "abc"), within_s=10
    )
    assert refused(cluster, "a", "ack-for-another") > 0


def test_one_voice_confirms_no_suspicion_under_many_names() -> None:
    """I-65: a confirmation is another accuser over another connection."""
    subject = Subject()
    for accuser in (OTHER, PEER):
        subject.tell(Gossip(suspicions=(Suspicion(SUBJECT, 5, accuser),)), sender=OTHER)
    subject.wait(2.6)
    assert subject.state == "suspect"


# floods


@pytest.mark.parametrize("what", ["members", "tombstones"])
def test_a_flood_of_unknown_ids_ends_at_its_bound(what: str) -> None:
    """I-78: one member, any number of names; another still brings up new ones."""
    subject = Subject()
    bound = subject.machine._ground.settings.introductions_max
    table = subject.machine._ground.table
    flood = [NodeId("10.9.0.1", 1, number) for number in range(1, bound + 501)]
    for start in range(0, len(flood), 100):
        part = flood[start : start + 100]
        news = (
            Gossip(members=tuple(Member(node) for node in part))
            if what == "members"
            else Gossip(tombstones=tuple(Tombstone(node, 1, Cause.LEFT) for node in part))
        )
        subject.tell(news, sender=OTHER)
    held = table.members if what == "members" else table.tombstones
    assert len([node for node in held if node.host == "10.9.0.1"]) == bound
    assert subject.machine.counters["introductions-too-many"] == 500
    subject.tell(Gossip(members=(Member(STRANGER),)), sender=SUBJECT)
    assert STRANGER in table.members
    # Who is confirmed by another one is no longer on the liar's account.
    if what == "members":
        subject.tell(Gossip(members=tuple(Member(node) for node in flood[:50])), sender=SUBJECT)
        subject.tell(Gossip(members=tuple(Member(node) for node in flood[-50:])), sender=OTHER)
        assert len([node for node in held if node.host == "10.9.0.1"]) == bound + 50


def test_tombstones_and_rumours_are_bounded_whoever_brings_them() -> None:
    """I-78."""
    settings = replace(
        Cluster().settings, tombstones_max=10, rumours_max=30, introductions_max=5000
    )
    subject = Subject(settings)
    stones = [Tombstone(NodeId("10.9.0.1", 1, n), 1, Cause.LEFT) for n in range(1, 101)]
    subject.tell(Gossip(tombstones=tuple(stones)), sender=OTHER)
    ground = subject.machine._ground
    assert len(ground.table.tombstones) == 20
    ups = [Member(NodeId("10.9.0.2", 1, number)) for number in range(1, 101)]
    subject.tell(Gossip(members=tuple(ups)), sender=OTHER)
    assert len(ground.rumours) <= 30
    assert subject.machine.counters["table-dropped"] == 80


# a liar at random


def lie(rng: random.Random, cluster: Cluster) -> object:
    """Something that a member may not say, mostly about the victim."""
    nodes = [node.id for node in cluster.nodes.values()]
    victim = cluster.nodes[VICTIM].id
    record = own_record(cluster, VICTIM)
    number = rng.choice([0, 1, 2, 7, JUMP, JUMP + 1, 1 << 40, NUMBER_MAX, MAX])
    match rng.randrange(9):
        case 0:
            news = rng.choice(departures(cluster))
        case 1:
            news = Gossip(members=(replace(record, incarnation=number),))
        case 2:
            news = Gossip(
                members=(replace(record, record_version=number, types=("singleton:evil",)),)
            )
        case 3:
            news = Gossip(members=(replace(record, data_port=number % 65536),))
        case 4:
            news = Gossip(members=(replace(record, up_number=1 + number),))
        case 5:
            observer = rng.choice(nodes)
            news = Gossip(records=(Record(observer, victim, True, number, record.incarnation),))
        case 6:
            accuser = rng.choice(nodes)
            news = Gossip(suspicions=(Suspicion(victim, record.incarnation, accuser),))
        case 7:
            news = Gossip(floor=number, members=(Member(GHOST, status=Status.UP, up_number=1),))
        case _:
            return rng.choice(
                [
                    Dissolve(number, GHOST, "stop"),
                    YouAreGone(victim.uid, int(rng.choice(list(Cause)))),
                    SyncOffer((), (), (), number),
                    ViewSeenAck(number),
                    LinkAnswer(victim, number, True),
                ]
            )
    return news if rng.random() < 0.8 else SyncReply(news)


def torment(seed: int) -> None:
    """Ten seconds of lies by one member that does not lead; then quiet."""
    rng = random.Random(f"torment {seed}")
    cluster = formed(seed=seed)
    honest = others(cluster, LIAR)
    ages = {name: own_record(cluster, name).up_number for name in honest}
    for _ in range(60):
        for _ in range(rng.randint(1, 4)):
            cluster.say(LIAR, rng.choice(honest), lie(rng, cluster))
        cluster.run(rng.choice([0.001, 0.02, 0.3]))
        for name in honest:
            assert record_of(cluster, VICTIM, at=name).status is Status.UP, (seed, name)
            assert view_of(cluster, name).leader != GHOST, (seed, name)
    assert not ends(cluster), seed
    cluster.run(90)  # what it invented is removed in its time
    for name in honest:
        view = view_of(cluster, name)
        assert {n: record_of(cluster, n, at=name).up_number for n in honest} == ages, seed
        assert record_of(cluster, VICTIM, at=name).types == (), seed
        assert record_of(cluster, VICTIM, at=name).data_port == 25521, seed
        assert not view.unreachable, seed
        assert view.converged, (seed, cluster.nodes[name].machine.explain(cluster.now))


def test_a_liar_at_random_takes_nobody_out(how_many: HowMany) -> None:
    """I-65: an honest, reachable, living member stays up in every honest view, with its age; and
    when the lies end all views agree on what is true."""
    for seed in range(how_many(short=12, long=1_000)):
        torment(seed)
