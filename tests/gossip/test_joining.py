"""Joining and founding, as stories of bare machines (I-71, I-74, I-75, I-82, I-83)."""

from __future__ import annotations

import random
from functools import partial

import pytest

from gossip.events import (
    ClusterFounded,
    Dialled,
    DialOutcome,
    Exit,
    IslandMet,
    LeaveRequested,
    PeerFrame,
    Started,
    TakeIdentity,
)
from gossip.machine import GossipMachine
from gossip.membership import Cause, Member, NodeId, Status, Tombstone
from gossip.messages import (
    Gossip,
    Head,
    JoinChallenge,
    JoinRefused,
    JoinRequest,
    LookingToo,
    RefusalKind,
    Welcome,
    WhoAreYou,
)
from gossip.settings import GossipSettings
from tests.gossip.cluster import Cluster


def founders(cluster: Cluster) -> list[str]:
    return [
        name
        for name, node in cluster.nodes.items()
        if any(isinstance(fact, ClusterFounded) for fact in node.facts)
    ]


def formed(cluster: Cluster, names: str, seeds: str) -> Cluster:
    for name in names.split():
        cluster.start(name, seeds)
    cluster.run_until(cluster.all_up(names), within_s=5)
    return cluster


def test_one_seed_naming_itself_founds_at_once() -> None:
    cluster = Cluster()
    cluster.start("a", "a")
    assert cluster.nodes["a"].statuses() == {"10.0.0.1:25520": Status.UP}


def test_the_others_join_it_and_are_numbered_by_age() -> None:
    cluster = formed(Cluster(), "a b c", "a")
    view = cluster.nodes["c"].view
    assert view is not None
    assert sorted(member.up_number for member in view.members) == [1, 2, 3]
    assert founders(cluster) == ["a"]


@pytest.mark.parametrize("seed", range(30))
def test_a_symmetric_seed_list_forms_exactly_one_cluster(seed: int) -> None:
    """I-82: started within 0.3 s in any order."""
    cluster = Cluster(seed)
    for name in "abcde":
        cluster.at(cluster.rng.uniform(0, 0.3), partial(cluster.start, name, "a b c d e"))
    cluster.run(0.31)
    cluster.run_until(cluster.all_up("a b c d e"), within_s=8)
    assert len(cluster.clusters()) == 1
    assert len(founders(cluster)) == 1


def test_silence_founds_nothing() -> None:
    cluster = Cluster()
    cluster.cut("a", "b")
    cluster.start("a", "a b")
    cluster.run(60)
    assert cluster.clusters() == set()
    assert "10.0.0.2:25520" in cluster.nodes["a"].machine.explain(cluster.now)


def test_a_process_that_is_no_seed_founds_nothing() -> None:
    """Its own kernel says that nobody is at the seed's address: the seed starts a moment later."""
    cluster = Cluster()
    seed = NodeId("10.0.0.1", 25520, 0)
    cluster.start("d", "a")
    cluster.feed("d", Dialled(seed, 0, DialOutcome.REFUSED, None))
    cluster.run(3)
    assert cluster.clusters() == set()
    cluster.start("a", "a")
    cluster.run_until(cluster.all_up("a d"), within_s=3)


def test_two_that_name_each_other_but_not_themselves_form_one_cluster() -> None:
    cluster = Cluster()
    cluster.start("a", "b")
    cluster.start("b", "a")
    cluster.run_until(cluster.all_up("a b"), within_s=3)
    assert len(cluster.clusters()) == 1


def test_the_operator_may_found_in_silence() -> None:
    cluster = Cluster()
    cluster.start("a", "a b", found=True)
    assert len(cluster.clusters()) == 1


def test_a_restarted_seed_alone_behind_a_partition_founds_nothing() -> None:
    """Model D1: it is the seed of itself, but remembers the others."""
    cluster = formed(Cluster(), "a b c", "a")
    remembered = cluster.nodes["a"].remembered
    assert len(remembered) == 3
    cluster.cut("a", "b c")
    cluster.crash("a", sockets_close=False)
    cluster.run(1)
    cluster.start("a", "a", remembered=remembered)
    cluster.run(60)
    assert not cluster.nodes["a"].statuses()
    cluster.cuts.clear()
    cluster.run_until(cluster.all_up("a b c"), within_s=10)
    assert len(cluster.clusters()) == 1


def test_all_seeds_restarted_on_one_side_found_nothing_either() -> None:
    """Model H1: every seed answers "looking", the remembered members do not."""
    cluster = formed(Cluster(), "a b c d e", "a b")
    remembered = cluster.nodes["a"].remembered
    cluster.cut("a b", "c d e")
    for name in "ab":
        cluster.crash(name, sockets_close=False)
        cluster.start(name, "a b", remembered=remembered if name == "a" else ())
    cluster.run(60)
    # b remembers nothing itself: it learns from a's answer whom else to wait for.
    assert not cluster.nodes["a"].statuses()
    assert not cluster.nodes["b"].statuses()
    cluster.cuts.clear()
    cluster.run_until(cluster.all_up("a b c d e"), within_s=20)
    assert len(cluster.clusters()) == 1


def test_the_first_seed_restarts_into_the_living_cluster() -> None:
    """Even with nothing remembered and no other seed: members invite it (model H2)."""
    cluster = formed(Cluster(), "a b c", "a b")
    cluster.crash("a")
    cluster.run(0.2)
    cluster.start("a", "a b")
    cluster.run_until(cluster.all_up("a b c"), within_s=5)
    assert founders(cluster) == []  # the founding was told by the former a
    assert len(cluster.clusters()) == 1


def test_a_looking_seed_that_nobody_lists_is_invited() -> None:
    """Model H2: the living member is no seed; it asks the seeds outside its view."""
    cluster = formed(Cluster(), "a b c", "a b")
    for name in "ab":
        cluster.feed(name, LeaveRequested())
    cluster.run(3)
    assert cluster.nodes["a"].exit == Exit(0, "left: removed from the cluster")
    cluster.start("a", "a b")  # b is gone and never answers
    cluster.run_until(cluster.all_up("a c"), within_s=8)


def test_a_process_that_heard_of_a_cluster_does_not_found() -> None:
    """Model H2: for 10 s, even when everybody it asks is looking too."""
    cluster = Cluster()
    cluster.start("a", "a b")
    b, c = NodeId("10.0.0.2", 25520, 2), NodeId("10.0.0.3", 25520, 3)
    cluster.feed("a", PeerFrame(c, Head(9), (WhoAreYou("test", 9, 1, 1),)))
    cluster.feed("a", PeerFrame(b, Head(), (LookingToo("test", ()),)))
    cluster.run(9)
    cluster.feed("a", PeerFrame(b, Head(), (LookingToo("test", ()),)))
    assert cluster.clusters() == set()
    cluster.run(2)
    assert len(cluster.clusters()) == 1


def test_join_at_the_address_of_a_living_member_is_refused() -> None:
    """I-131: the established identity is never displaced."""
    cluster = formed(Cluster(), "a b c", "a")
    twin = NodeId("10.0.0.2", 25520, 4711)
    cluster.log = []
    # The twin shares the address, so it is fed by hand: frames to it would reach the old one.
    cluster.feed("a", PeerFrame(twin, Head(), (JoinRequest(Member(twin), "test", (), ()),)))
    cluster.run(1)
    answers = [message for _, to, message in cluster.log if to == twin]
    refusals = [answer for answer in answers if isinstance(answer, JoinRefused)]
    assert len(refusals) == 1
    assert "in use by a living member" in refusals[0].reason
    assert not any(isinstance(answer, JoinChallenge) for answer in answers)
    assert cluster.nodes["a"].statuses()["10.0.0.2:25520"] is Status.UP


def test_a_restart_before_the_old_one_is_noticed_supersedes_it() -> None:
    """Not a proof: the cause says so, and whoever waits for its answer goes on waiting."""
    cluster = formed(Cluster(), "a b c", "a")
    old = cluster.nodes["b"].id
    cluster.crash("b", sockets_close=False)
    cluster.start("b", "a")
    cluster.run_until(cluster.all_up("a b c"), within_s=5)
    view = cluster.nodes["a"].view
    assert view is not None
    assert view.gone[old] is Cause.SUPERSEDED
    assert not view.gone[old].is_proof


def test_a_one_way_joiner_never_enters_the_view() -> None:
    cluster = formed(Cluster(), "a b", "a")
    cluster.cuts |= {("a", "c"), ("b", "c")}  # c is heard, but hears nobody
    cluster.start("c", "a")
    cluster.run(30)
    assert set(cluster.nodes["a"].statuses()) == {"10.0.0.1:25520", "10.0.0.2:25520"}


def test_a_stale_join_after_the_heal_admits_nobody() -> None:
    """A request of a process that is gone since: its echo never comes."""
    cluster = formed(Cluster(), "a b", "a")
    ghost = NodeId("10.0.0.3", 25520, 99)
    cluster.feed("a", PeerFrame(ghost, Head(), (JoinRequest(Member(ghost), "test", (), ()),)))
    cluster.run(30)
    assert "10.0.0.3:25520" not in cluster.nodes["a"].statuses()


def test_a_member_ignores_every_other_welcome() -> None:
    cluster = formed(Cluster(), "a b", "a")
    b = cluster.nodes["b"]
    before = b.machine.head.cluster_id
    stranger = NodeId("10.0.0.9", 25520, 9)
    welcome = Welcome(77, Gossip(members=(Member(b.id), Member(stranger, status=Status.UP))))
    cluster.feed("b", PeerFrame(stranger, Head(cluster_id=77), (welcome,)))
    assert b.machine.head.cluster_id == before
    assert "10.0.0.9:25520" not in b.statuses()


@pytest.mark.parametrize(
    ("cluster_name", "agreement", "words"),
    [
        ("other", (), ("'other'", "'test'")),
        ("test", (("protection", "downing"),), ("protection=downing", "protection=None")),
    ],
)
def test_a_refusal_is_an_answer_with_both_values(
    cluster_name: str, agreement: tuple[tuple[str, str], ...], words: tuple[str, ...]
) -> None:
    """I-104 in general: refused loudly, never half admitted."""
    cluster = formed(Cluster(), "a", "a")
    node = cluster.start("b", "a", cluster_name=cluster_name, agreement=agreement)
    cluster.run(1)
    assert node.exit is not None
    assert node.exit.code == 3
    for word in words:
        assert word in node.exit.reason
    assert set(cluster.nodes["a"].statuses()) == {"10.0.0.1:25520"}


def test_a_spent_uid_comes_back_as_a_new_one() -> None:
    cluster = formed(Cluster(), "a b", "a")
    old = cluster.nodes["a"].machine
    node = cluster.start("c", "a")
    first = node.id
    # It was removed while its welcome was lost.
    cluster.feed(
        "a",
        PeerFrame(
            cluster.nodes["b"].id,
            old.head,
            (Gossip(tombstones=(Tombstone(first, 1, Cause.NEVER_UP),)),),
        ),
    )
    cluster.run_until(cluster.all_up("a b c"), within_s=5)
    assert cluster.nodes["c"].id != first


def test_take_identity_is_told_to_the_shell() -> None:
    me = NodeId("10.0.0.3", 25520, 3)
    machine = GossipMachine(
        Member(me, name="c"), cluster_name="t", settings=GossipSettings(), rng=random.Random(3)
    )
    machine.handle(Started((("10.0.0.1", 25520),)), 0.0)
    refused = JoinRefused(RefusalKind.TOMBSTONE, "spent")
    effects = machine.handle(PeerFrame(NodeId("10.0.0.1", 25520, 1), Head(5), (refused,)), 1.0)
    taken = [effect for effect in effects if isinstance(effect, TakeIdentity)]
    assert len(taken) == 1
    assert machine.self_id == taken[0].new_id != me


def test_two_clusters_meet_and_do_not_merge() -> None:
    """I-75: detected and reported; the smaller one stops, wholly."""
    cluster = Cluster()
    cluster.cut("a b c", "d e")
    for name in "abc":
        cluster.start(name, "a d", found=name == "a")
    cluster.start("d", "d a", found=True)
    cluster.start("e", "d a")
    cluster.run_until(cluster.all_up("a b c"), within_s=5)
    cluster.run_until(cluster.all_up("d e"), within_s=5)
    assert len(cluster.clusters()) == 2
    cluster.cuts.clear()
    cluster.run(8)
    for name in "de":
        gone = cluster.nodes[name].exit
        assert gone is not None
        assert gone.code == 12
        # Also who was only told to stop knows where to ask after a restart.
        assert set(cluster.nodes[name].remembered) & {f"10.0.0.{n}:25520" for n in (1, 2, 3)}
    assert all(cluster.nodes[name].exit is None for name in "abc")
    assert len(cluster.nodes["a"].statuses()) == 3
    met = [f for n in "ad" for f in cluster.nodes[n].facts if isinstance(f, IslandMet)]
    assert {fact.we_stop for fact in met} == {True, False}


def test_of_two_clusters_of_one_size_the_one_founded_later_stops() -> None:
    """A restarted seed that founds beside its living cluster must not end it."""
    for seed in range(10):
        cluster = Cluster(seed)
        cluster.cut("a", "b")
        cluster.start("b", "b a", found=True)
        cluster.run(2)
        cluster.start("a", "a", found=True)  # the seed, later, remembering nothing
        cluster.run(1)
        cluster.cuts.clear()
        cluster.run(8)
        assert cluster.nodes["b"].exit is None
        gone = cluster.nodes["a"].exit
        assert gone is not None
        assert gone.code == 12
        # What it remembers now leads it into the other cluster.
        assert "10.0.0.2:25520" in cluster.nodes["a"].remembered
        cluster.start("a", "a", remembered=cluster.nodes["a"].remembered)
        cluster.run_until(cluster.all_up("a b"), within_s=5)


def test_a_cluster_stopped_in_order_comes_back_as_one() -> None:
    """The last leaver remembers those that left before it, in whatever order they start again."""
    cluster = formed(Cluster(), "a b c", "a")
    for name in "bca":
        cluster.feed(name, LeaveRequested())
        cluster.run(2)
    remembered = {name: cluster.nodes[name].remembered for name in "abc"}
    assert all(len(addresses) == 3 for addresses in remembered.values())
    for name in "bca":
        cluster.start(name, "a", remembered=remembered[name])
        cluster.run(0.5)
    cluster.run_until(cluster.all_up("a b c"), within_s=10)
    assert len(cluster.clusters()) == 1


def test_a_downed_process_that_lives_is_told() -> None:
    """I-71: it learns it from whoever hears it, and stops."""
    cluster = formed(Cluster(), "a b c", "a")
    victim = cluster.nodes["c"].id
    member = Member(victim, status=Status.DOWN, cause=Cause.DOWNED)
    cluster.cut("c", "a b")
    cluster.feed(
        "a",
        PeerFrame(
            cluster.nodes["b"].id,
            cluster.nodes["b"].machine.head,
            (Gossip(members=(member,)),),
        ),
    )
    cluster.run_until(lambda: "10.0.0.3:25520" not in cluster.nodes["b"].statuses(), within_s=5)
    cluster.cuts.clear()
    cluster.run(3)
    gone = cluster.nodes["c"].exit
    assert gone is not None
    assert gone.code == 10
