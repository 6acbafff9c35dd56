"""Frames that were recorded and are sent once more, and what of a record is its owner's alone.

I-68, I-77, I-80, I-81: a late or repeated frame changes nothing, in whatever order it comes.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from gossip.events import Exit, LeaveRequested, MemberChanged, MemberRemoved, PeerFrame
from gossip.membership import MembershipView, NodeId, Status
from gossip.messages import Gossip, Head, Suspicion
from tests.gossip.cluster import Cluster
from tests.gossip.test_precedence import ME, OTHER, PEER, Subject


class Recorded(Cluster):
    """A cluster that keeps every frame it ever sent."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.frames: list[tuple[str, PeerFrame]] = []

    def _send(
        self, name: str, sender: NodeId, head: Head, to: NodeId, messages: tuple[object, ...]
    ) -> None:
        target = chr(ord("a") + int(to.host.rsplit(".", 1)[1]) - 1)
        self.frames.append((target, PeerFrame(sender, head, messages)))
        super()._send(name, sender, head, to, messages)


def eventful(seed: int) -> Recorded:
    """Joins, a suspicion that is answered, a crash, a restart and a leave; then calm."""
    cluster = Recorded(seed)
    for name in "abcde":
        cluster.start(name, "a")
    cluster.run_until(cluster.all_up("a b c d e"), within_s=10)
    cluster.pause("c", 3.0)
    cluster.run(6)
    cluster.crash("d")
    cluster.run(1)
    cluster.start("d", "a")
    cluster.run_until(cluster.all_up("a b c d e"), within_s=20)
    cluster.feed("e", LeaveRequested())
    cluster.run_until(cluster.all_up("a b c d"), within_s=20)
    cluster.run(5)
    return cluster


def pictures(cluster: Cluster) -> dict[str, object]:
    """What each living member holds, but for who is suspected at this moment."""
    found: dict[str, object] = {}
    for name, node in cluster.nodes.items():
        view = node.view
        if node.alive and node.exit is None and view is not None:
            members = [(m.id, m.status, m.up_number, m.types) for m in view.members]
            found[name] = (view.cluster_id, members, view.gone, view.unreachable, view.leader)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_whole_history_sent_once_more_changes_nothing(seed: int) -> None:
    """I-77: every frame there ever was, to its receiver, in any order: from the living and from
    those that are gone. Nobody is revived, taken out, made older or made to stop."""
    cluster = eventful(seed)
    before = pictures(cluster)
    facts = {name: len(node.facts) for name, node in cluster.nodes.items()}
    frames = cluster.frames[:]
    assert len(frames) > 300
    if seed % 2:
        random.Random(seed).shuffle(frames)
    for number, (target, frame) in enumerate(frames):
        cluster.feed(target, frame)
        if number % 50 == 0:
            cluster.run(0.05)
    cluster.run(20)
    assert pictures(cluster) == before
    for name, node in cluster.nodes.items():
        assert not isinstance(node.exit, Exit) or name == "e"
        if node.alive and name != "e":
            moved = [
                fact
                for fact in node.facts[facts[name] :]
                if isinstance(fact, MemberChanged | MemberRemoved)
            ]
            assert moved == []


def test_of_two_words_about_one_status_the_further_one_stands_in_either_order() -> None:
    """I-68: weakly up and up at once, from two who may say so, give one record everywhere."""
    member = replace(Subject().machine._ground.table.members[OTHER], id=OTHER)
    words = [
        replace(member, status=Status.WEAKLY_UP, up_number=0, incarnation=9),
        replace(member, status=Status.UP, up_number=4, incarnation=9),
    ]
    seen = []
    for order in itertools.permutations(words):
        subject = Subject()
        for word in order:
            subject.tell(Gossip(members=(word,)))
        held = subject.machine._ground.table.members[OTHER]
        assert (held.status, held.incarnation) == (Status.UP, 9)
        seen.append((held, subject.machine.head.members_digest))
    assert seen[0] == seen[1]


def test_a_promotion_leaves_our_own_incarnation_alone() -> None:
    """I-80: the leader's record of us is older than our last answer; ours is kept."""
    subject = Subject()
    subject.tell(Gossip(suspicions=(Suspicion(ME, 0, OTHER),)))
    subject.tell(Gossip(suspicions=(Suspicion(ME, 1, OTHER),)))
    mine = subject.machine._ground.me
    assert mine.incarnation == 2
    promoted = replace(mine, status=Status.UP, up_number=5, incarnation=0)
    subject.tell(Gossip(members=(promoted,)), sender=PEER)
    assert subject.machine._ground.me == replace(mine, status=Status.UP, up_number=5)


def test_whoever_comes_late_is_shown_the_members_as_they_are() -> None:
    """I-81: the first view of a newcomer has every status as it is, and nobody who is gone among
    the members."""
    cluster = eventful(5)
    gone = set(_view(cluster, "a").gone)
    assert len(gone) == 2
    cluster.start("f", "a")
    cluster.run_until(lambda: cluster.nodes["f"].view is not None, within_s=5)
    first = next(f for f in cluster.nodes["f"].facts if isinstance(f, MembershipView))
    assert not gone & first.by_id.keys()
    assert {first.by_id[cluster.nodes[name].id].status for name in "abcd"} == {Status.UP}
    assert first.by_id[cluster.nodes["f"].id].status is Status.JOINING
    assert sorted(first.by_id) == sorted(cluster.nodes[name].id for name in "abcdf")


def _view(cluster: Cluster, name: str) -> MembershipView:
    view = cluster.nodes[name].view
    assert view is not None
    return view
