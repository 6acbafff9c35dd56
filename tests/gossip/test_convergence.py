"""Convergence is evidence, never an accident: digests, reports, pauses, leader actions (I-76)."""

from __future__ import annotations

from dataclasses import replace

from gossip.effects import Paused, Publish
from gossip.events import (
    ConvergenceBlocked,
    LeaveRequested,
    MemberChanged,
    PeerFrame,
    ProcessEnded,
    ReachabilityChanged,
)
from gossip.membership import Cause, Member, MembershipView, NodeId, Status, Tombstone
from gossip.messages import Gossip, ViewSeen, ViewSeenAck
from gossip.reachability import Record
from tests.gossip.cluster import Cluster


def formed(names: str, seed: int = 1) -> Cluster:
    cluster = Cluster(seed)
    for name in names.split():
        cluster.start(name, "a")
    cluster.run_until(cluster.all_up(names), within_s=5)
    cluster.run(1)
    return cluster


def view_of(cluster: Cluster, name: str) -> MembershipView:
    view = cluster.nodes[name].view
    assert view is not None
    return view


def test_a_quiet_cluster_converges_everywhere() -> None:
    cluster = formed("a b c d e")
    assert all(view_of(cluster, name).converged for name in "abcde")
    heads = {cluster.nodes[name].machine.head for name in "abcde"}
    assert len({(head.members_digest, head.reach_digest) for head in heads}) == 1


def test_no_false_convergence_on_a_clean_split() -> None:
    """Review F6 (a): reachability is in a digest of its own, so a side never passes for whole."""
    cluster = formed("a b c")
    cluster.cut("a", "b c")
    cluster.run(30)
    for name in "abc":
        view = view_of(cluster, name)
        assert view.unreachable
        assert not view.converged
        assert view.blocked_by
    assert (
        cluster.nodes["a"].machine.head.reach_digest != cluster.nodes["b"].machine.head.reach_digest
    )


def test_no_false_convergence_after_add_and_remove() -> None:
    """Review F6 (b): c reported the old value; the members are the old ones again, and yet its
    report is no evidence, for it has not seen the removal."""
    cluster = formed("a b c")
    a = cluster.nodes["a"]
    before = a.machine.head
    cluster.cut("a", "c")  # c hears nothing more
    b = cluster.nodes["b"]
    ghost = NodeId("10.0.0.9", 25520, 9)
    fallen = Member(ghost, status=Status.DOWN, cause=Cause.NEVER_UP)
    cluster.feed("a", PeerFrame(b.id, b.machine.head, (Gossip(members=(fallen,)),)))
    stone = Tombstone(ghost, 1, Cause.NEVER_UP)
    cluster.feed("a", PeerFrame(b.id, b.machine.head, (Gossip(tombstones=(stone,)),)))
    assert set(view_of(cluster, "a").by_id) == {node.id for node in cluster.nodes.values()}
    assert a.machine.head.members_digest != before.members_digest
    assert not view_of(cluster, "a").converged


def test_a_report_from_before_a_pause_is_no_evidence() -> None:
    """Review F6 (c): the leader slept; it must hear everybody again before it acts."""
    cluster = formed("a b c")
    assert view_of(cluster, "a").converged
    cluster.feed("a", Paused(60.0))
    assert not view_of(cluster, "a").converged
    cluster.run_until(lambda: view_of(cluster, "a").converged, within_s=5)


def test_an_older_report_never_replaces_a_newer_one() -> None:
    cluster = formed("a b")
    a, b = cluster.nodes["a"], cluster.nodes["b"]
    old = replace(b.machine.head, counter=0, members_digest=1)
    cluster.feed("a", PeerFrame(b.id, old, ()))
    assert view_of(cluster, "a").converged
    newer = replace(b.machine.head, counter=b.machine.head.counter + 1, members_digest=1)
    cluster.feed("a", PeerFrame(b.id, newer, ()))
    assert not view_of(cluster, "a").converged
    assert a.view is not None
    assert a.view.blocked_by == (b.id,)


def test_the_leader_acknowledges_only_an_equal_view() -> None:
    cluster = formed("a b")
    b = cluster.nodes["b"]
    cluster.log = []
    head = replace(b.machine.head, counter=b.machine.head.counter + 1)
    cluster.feed("a", PeerFrame(b.id, replace(head, members_digest=5), (ViewSeen(head.counter),)))
    assert not any(isinstance(message, ViewSeenAck) for _, _, message in cluster.log)
    cluster.feed("a", PeerFrame(b.id, head, (ViewSeen(head.counter),)))
    assert any(isinstance(message, ViewSeenAck) for _, _, message in cluster.log)


def test_views_that_drifted_apart_are_exchanged() -> None:
    """Rumours lost for good: anti-entropy brings them."""
    cluster = formed("a b c")
    cluster.loss = 1.0
    cluster.crash("c")
    c = cluster.nodes["c"].id
    cluster.feed("a", ProcessEnded(c))
    cluster.run(0.4)  # all of a's rumours are lost; too short for suspicion
    cluster.loss = 0.0
    cluster.run_until(
        lambda: all(set(view_of(cluster, n).by_id).isdisjoint({c}) for n in "ab"), within_s=5
    )


def test_a_member_that_is_cut_off_blocks_joiners_until_they_are_weakly_up() -> None:
    """At level none an unreachable member is undecided; after 7 s joiners get in weakly."""
    cluster = formed("a b c")
    cluster.cut("c", "a b d")
    cluster.run(15)
    cluster.start("d", "a")
    cluster.run(3)
    assert view_of(cluster, "a").by_id[cluster.nodes["d"].id].status is Status.JOINING
    cluster.run(6)
    assert view_of(cluster, "a").by_id[cluster.nodes["d"].id].status is Status.WEAKLY_UP
    assert "10.0.0.3:25520" in cluster.nodes["a"].machine.explain(cluster.now)
    cluster.cuts.clear()
    cluster.run_until(cluster.all_up("a b c d"), within_s=10)


def test_who_blocks_convergence_is_said_soon_and_then_each_minute() -> None:
    """Review F24: nothing stands still without a word."""
    cluster = formed("a b c")
    cluster.cut("c", "a b")
    cluster.run(200)
    said = [fact for fact in cluster.nodes["b"].facts if isinstance(fact, ConvergenceBlocked)]
    assert len(said) in (3, 4)
    assert said[0].members == (cluster.nodes["c"].id,)
    assert "waits for 10.0.0.3:25520, unreachable" in said[0].explain
    cluster.cuts.clear()
    cluster.run(200)
    assert len([f for f in cluster.nodes["b"].facts if isinstance(f, ConvergenceBlocked)]) == len(
        said
    )


def test_an_unreachable_joiner_is_removed() -> None:
    """It hosts nothing unique: at every level, after weakly_up_after_s."""
    cluster = formed("a b")
    cluster.cut("b", "a")
    cluster.run(15)  # b blocks, so that d stays joining
    cluster.start("d", "a")
    cluster.run(1)
    d = cluster.nodes["d"].id
    assert d in view_of(cluster, "a").by_id
    cluster.crash("d", sockets_close=False)
    cluster.run(60)
    assert view_of(cluster, "a").by_id[d].status is Status.DOWN
    assert view_of(cluster, "a").by_id[d].cause is Cause.NEVER_UP


def test_a_leave_goes_through_all_its_steps() -> None:
    cluster = formed("a b c")
    leaver = cluster.nodes["a"].id  # the leader itself
    cluster.feed("a", LeaveRequested())
    cluster.run(2)
    steps = [
        fact.member.status
        for fact in cluster.nodes["b"].facts
        if isinstance(fact, MemberChanged) and fact.member.id == leaver
    ]
    assert steps[-2:] == [Status.LEAVING, Status.EXITING]
    assert view_of(cluster, "b").gone[leaver] is Cause.LEFT
    gone = cluster.nodes["a"].exit
    assert gone is not None
    assert gone.code == 0


def test_a_leaver_nobody_acknowledges_ends_after_its_timeout() -> None:
    cluster = formed("a b c")
    cluster.cut("c", "a b")
    cluster.run(15)  # c is unreachable and undecided: nothing converges
    cluster.feed("b", LeaveRequested())
    cluster.run(6)
    gone = cluster.nodes["b"].exit
    assert gone is not None
    assert gone.code == 0
    assert "did not acknowledge" in gone.reason


def test_a_leaver_that_vanishes_is_removed_without_proof_being_needed() -> None:
    """It announced only after everything unique had stopped."""
    cluster = formed("a b c")
    cluster.feed("c", LeaveRequested())
    cluster.crash("c", sockets_close=False)
    c = cluster.nodes["c"].id
    cluster.run_until(lambda: view_of(cluster, "a").gone.get(c) is Cause.LEFT, within_s=30)


def test_one_deaf_members_records_are_answered_by_their_subjects() -> None:
    """Model H5: a record is void once its subject shows a higher incarnation."""
    cluster = formed("a b c d e")
    deaf = cluster.nodes["e"].id
    for name in "abcd":
        cluster.cuts.add((name, "e"))
    accused = cluster.nodes["a"].id
    record = Record(deaf, accused, True, 1, 0)
    cluster.feed(
        "b", PeerFrame(deaf, cluster.nodes["e"].machine.head, (Gossip(records=(record,)),))
    )
    assert accused in view_of(cluster, "b").unreachable
    cluster.run(1)
    for name in "abcd":
        assert accused not in view_of(cluster, name).unreachable


def test_records_of_a_member_that_is_down_do_not_count() -> None:
    """BC-069: a note of the dead accuses nobody."""
    cluster = formed("a b c")
    c, b = cluster.nodes["c"].id, cluster.nodes["b"].id
    cluster.cut("b", "a c")
    cluster.feed(
        "a",
        PeerFrame(
            c, cluster.nodes["c"].machine.head, (Gossip(records=(Record(c, b, True, 1, 0),)),)
        ),
    )
    assert b in view_of(cluster, "a").unreachable
    cluster.crash("c")
    cluster.feed("a", ProcessEnded(c))
    assert b not in view_of(cluster, "a").unreachable


def test_a_lost_member_stays_lost_when_its_only_accuser_leaves() -> None:
    """That nobody accuses it any more is no sign of life."""
    cluster = formed("a b c d")
    b = cluster.nodes["b"].id
    cluster.cut("b", "a c d")
    cluster.run(15)
    accusers = {observer for observer, _ in cluster.nodes["a"].machine.failing_links()}
    assert accusers
    seen: list[bool] = []
    cluster.observer = lambda name, node, effects: seen.extend(
        fact.reachable
        for fact in (e.fact for e in effects if isinstance(e, Publish))
        if isinstance(fact, ReachabilityChanged) and fact.id == b and name != "b"
    )
    for observer in sorted(accusers):
        name = next(n for n, node in cluster.nodes.items() if node.id == observer)
        if name != "d":
            cluster.feed(name, LeaveRequested())
            cluster.run(8)
    assert b in view_of(cluster, "d").unreachable
    assert True not in seen


def test_remembered_addresses_follow_the_members() -> None:
    cluster = formed("a b c")

    def hosts_of(name: str) -> list[str]:
        return [address.split(":")[0] for address in cluster.nodes[name].remembered]

    assert hosts_of("c") == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    cluster.feed("b", LeaveRequested())
    cluster.run(60)
    # Not at once: when all are stopped in order, the last one must not forget the others.
    assert hosts_of("c") == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert len(hosts_of("b")) == 3  # a leaver keeps whom it left
    cluster.run(600)
    assert hosts_of("c") == ["10.0.0.1", "10.0.0.3"]


def test_old_tombstones_are_pruned_by_everybody_together() -> None:
    """I-73."""
    cluster = Cluster(settings=replace(Cluster().settings, tombstone_ttl_s=30.0))
    for name in "abc":
        cluster.start(name, "a")
    cluster.run_until(cluster.all_up("a b c"), within_s=5)
    cluster.feed("c", LeaveRequested())
    cluster.run(5)
    assert all(len(view_of(cluster, name).gone) == 1 for name in "ab")
    cluster.run(60)
    assert all(view_of(cluster, name).gone == {} for name in "ab")
    assert all(view_of(cluster, name).converged for name in "ab")
