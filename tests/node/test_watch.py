"""Death watch, within a node and between two (I-138)."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.membership import NodeId
from node import remote
from node.actor import Actor, Terminated, on
from node.codec import Codec, Envelope, Kind
from node.environment import LinkMemory
from node.messages import message
from node.ref import ActorRef
from node.remote import AT_ONCE, ENDS_RETRY_S
from node.supervision import StopCause, StopReason
from tests.node.stage import A, Add, B, Collector, Greet, Pair, Stage


@message("test.watch.look")
class Look:
    ref: ActorRef[Any]
    watch: bool = True


class Watcher(Actor):
    """Keeps what it is told of the end of others."""

    def __init__(self, seen: list[Terminated]) -> None:
        self.seen = seen

    @on(Look)
    def look(self, msg: Look) -> None:
        if msg.watch:
            self.context.watch(msg.ref)
        else:
            self.context.unwatch(msg.ref)

    @on(Terminated)
    def ended(self, msg: Terminated) -> None:
        self.seen.append(msg)

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount


def watching(stage: Stage, ref: ActorRef[Any]) -> tuple[ActorRef[Any], list[Terminated]]:
    seen: list[Terminated] = []
    watcher = stage.runtime.spawn(Watcher, seen)
    watcher.tell(Look(ref))
    watcher.tell(Look(ref))
    stage.run_for(0.01)
    return watcher, seen


@pytest.mark.parametrize("by_uid", [True, False])
def test_end_of_a_local_actor_is_told_once_with_the_ref_that_was_watched(by_uid: bool) -> None:
    stage = Stage()
    target = stage.runtime.spawn(Collector, [], name="t")
    ref = target if by_uid else stage.runtime.resolve("/user/t")
    _, seen = watching(stage, ref)
    reason = StopReason(StopCause.LEAVING, "bye")
    stage.runtime.stop(target, reason)
    stage.settle()
    assert seen == [Terminated(ref, reason)]


def test_watch_of_what_is_not_there_is_answered_at_once() -> None:
    stage = Stage()
    _, seen = watching(stage, stage.runtime.resolve("/user/nobody"))
    assert len(seen) >= 1
    assert {end.reason for end in seen} == {StopReason(StopCause.GONE, "there is no such actor")}


def test_restart_is_no_end() -> None:
    class Broken(Actor):
        def receive(self, msg: Any, /) -> None:
            raise ValueError

    stage = Stage()
    target = stage.runtime.spawn(Broken)
    _, seen = watching(stage, target)
    target.tell("x")
    stage.run_for(1.0)
    assert seen == []


@pytest.mark.parametrize("is_remote", [False, True])
def test_unwatch_takes_back_even_what_waits_in_the_mailbox(is_remote: bool) -> None:
    pair = Pair()
    runtime = pair.far if is_remote else pair.runtime
    target = runtime.spawn(Collector, [], name="t")
    ref = pair.to_far("/user/t") if is_remote else target
    watcher, seen = watching(pair, ref)
    watcher.tell(Look(ref, watch=False))
    runtime.stop(target)
    pair.run_for(1.0)
    assert seen == []
    assert pair.far.cell_at("/user/t", 0) is None


def test_end_of_a_remote_actor_is_told_across_nodes() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    whoever, exact = pair.to_far("/user/t"), pair.to_far("/user/t", target.uid)
    _, first = watching(pair, whoever)
    _, second = watching(pair, exact)
    assert first == second == []
    pair.far.stop(target, StopReason(StopCause.FAILED, "broke"))
    pair.run_for(0.01)
    assert first == [Terminated(whoever, StopReason(StopCause.FAILED, "broke"))]
    assert second == [Terminated(exact, StopReason(StopCause.FAILED, "broke"))]


def test_watch_of_a_remote_actor_that_is_not_there() -> None:
    pair = Pair()
    _, seen = watching(pair, pair.to_far("/user/nobody"))
    assert seen[0] == Terminated(
        pair.to_far("/user/nobody"), StopReason(StopCause.GONE, "there is no such actor")
    )


def test_removed_node_ends_watches_and_is_forgotten() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    ref = pair.to_far("/user/t", target.uid)
    by_address = pair.runtime.ref_at(B._replace(uid=0), "/user/t")
    _, seen = watching(pair, ref)
    pair.runtime.node_removed(NodeId("10.9.9.9", 1, 1))
    pair.run_for(0.01)
    assert seen == []
    pair.runtime.node_removed(B)
    pair.run_for(0.01)
    assert [(end.ref, end.reason.cause) for end in seen] == [(ref, StopCause.GONE)]
    assert "10.0.0.2:25520 is no longer a member" in str(seen[0].reason)
    pair.far.stop(target)
    pair.run_for(0.01)
    assert len(seen) == 1
    assert by_address != ref


def test_watch_that_cannot_be_sent_ends_at_once() -> None:
    pair = Pair()
    pair.far.spawn(Collector, [], name="t")
    pair.cut = True
    _, seen = watching(pair, pair.to_far("/user/t"))
    assert str(seen[0].reason) == "gone: 10.0.0.2:25520 cannot be reached"


def test_news_of_an_end_is_sent_again_until_it_gets_through() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    _, seen = watching(pair, pair.to_far("/user/t"))
    pair.cut = True
    pair.far.stop(target)
    pair.run_for(3.5)
    assert seen == []
    pair.cut = False
    pair.run_for(1.5)
    assert len(seen) == 1
    assert pair.far_letters == []


@pytest.mark.parametrize("away_s", [5.0, 60.0, 86_400.0])
def test_news_of_an_end_outlasts_any_absence_of_the_watchers_node(away_s: float) -> None:
    """A node that was away and not removed hears of every end, with its cause."""
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    _, seen = watching(pair, pair.to_far("/user/t"))
    pair.cut = True
    pair.far.stop(target, StopReason(StopCause.FAILED, "broke"))
    pair.run_for(away_s)
    assert seen == []
    pair.cut = False
    pair.far.node_reachable(A)
    pair.run_for(0.01)
    assert [end.reason for end in seen] == [StopReason(StopCause.FAILED, "broke")]
    assert pair.far_letters == []
    pair.run_for(60.0)
    before = len(pair.sent)
    pair.run_for(60.0)
    assert len(pair.sent) == before, "confirmed, and sent no more"


def test_news_of_an_end_that_the_link_swallowed_is_sent_again() -> None:
    """A link may take a frame and lose it: only the confirmation counts."""
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    _, seen = watching(pair, pair.to_far("/user/t"))
    pair.lossy = True
    pair.far.stop(target)
    pair.run_for(1.0)
    pair.lossy = False
    assert seen == []
    pair.run_for(ENDS_RETRY_S)
    assert len(seen) == 1


def test_watch_that_the_link_swallowed_is_made_good_when_the_node_can_be_reached() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    pair.lossy = True
    refs = pair.to_far("/user/t"), pair.to_far("/user/t", target.uid)
    seen = [watching(pair, ref)[1] for ref in refs]
    pair.lossy = False
    pair.runtime.node_reachable(B)
    pair.run_for(0.01)
    pair.far.stop(target)
    pair.run_for(0.01)
    assert [len(ends) for ends in seen] == [1, 1]


def test_watch_sent_again_survives_another_cut() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    _, seen = watching(pair, pair.to_far("/user/t"))
    pair.cut = True
    pair.runtime.node_reachable(B)
    pair.run_for(1.0)
    assert seen == []
    pair.cut = False
    pair.far.stop(target)
    pair.run_for(0.01)
    assert len(seen) == 1


def test_thousands_of_watches_and_ends_are_sent_again_in_portions() -> None:
    pair = Pair()
    count = 3 * AT_ONCE
    targets = [pair.far.spawn(Collector, [], name=f"t{i}") for i in range(count)]
    seen: list[Terminated] = []
    watcher = pair.runtime.spawn(Watcher, seen)
    for i in range(count):
        watcher.tell(Look(pair.to_far(f"/user/t{i}")))
    pair.run_for(0.01)
    pair.lossy = True
    for target in targets:
        pair.far.stop(target)
    pair.run_for(1.0)
    pair.lossy = False
    pair.runtime.node_reachable(B)
    pair.far.node_reachable(A)
    pair.run_for(10.0)
    assert len(seen) == count
    assert len({end.ref.path for end in seen}) == count


def test_late_repetition_of_an_end_does_not_end_a_new_watch_of_the_same_path() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    ref = pair.to_far("/user/t")
    watcher, seen = watching(pair, ref)
    before = len(pair.sent)
    pair.far.stop(target)
    pair.run_for(0.1)
    ended = next(payload for sender, _, payload in pair.sent[before:] if sender == B)
    assert len(seen) == 1
    again = pair.far.spawn(Collector, [], name="t")
    watcher.tell(Look(ref))
    pair.run_for(0.1)
    pair.runtime.deliver_frame(B, ended, LinkMemory(1 << 20))
    pair.run_for(0.1)
    assert len(seen) == 1
    pair.far.stop(again)
    pair.run_for(0.1)
    assert len(seen) == 2


def test_news_for_a_removed_node_is_given_up() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    watching(pair, pair.to_far("/user/t"))
    pair.cut = True
    pair.far.stop(target)
    pair.run_for(10.0)
    pair.far.node_removed(A)
    pair.run_for(ENDS_RETRY_S)
    before = len(pair.sent)
    pair.run_for(60.0)
    assert len(pair.sent) == before
    assert pair.far_letters == []


def test_unconfirmed_news_of_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ENDS_MAX", 3)
    pair = Pair()
    seen: list[Terminated] = []
    watcher = pair.runtime.spawn(Watcher, seen)
    targets = [pair.far.spawn(Collector, [], name=f"t{i}") for i in range(5)]
    for i in range(5):
        watcher.tell(Look(pair.to_far(f"/user/t{i}")))
    pair.run_for(0.01)
    pair.cut = True
    for target in targets:
        pair.far.stop(target)
    pair.run_for(1.0)
    assert pair.far.counters["ends not told"] == 2
    pair.cut = False
    pair.run_for(10.0)
    assert [end.ref.path for end in seen] == ["/user/t2", "/user/t3", "/user/t4"]
    pair.runtime.node_reachable(B)
    pair.run_for(1.0)
    assert len(seen) == 5, "those are made good by the watches"


def test_watcher_that_ends_or_whose_node_is_removed_is_forgotten() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    cell = pair.far.cell_at("/user/t", 0)
    assert cell is not None
    watcher, _ = watching(pair, pair.to_far("/user/t"))
    assert len(cell.watchers or ()) == 1
    pair.runtime.stop(watcher)
    pair.run_for(0.01)
    assert not cell.watchers

    watching(pair, pair.to_far("/user/t"))
    assert len(cell.watchers or ()) == 1
    pair.far.node_removed(A)
    assert not cell.watchers
    before = len(pair.sent)
    pair.far.stop(target)
    pair.run_for(0.01)
    assert len(pair.sent) == before


def test_nobody_speaks_for_another_node() -> None:
    """A termination counts only from the node of the watched actor; a watch only for the own
    node's watcher (identity of a frame is its connection)."""
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    watcher, seen = watching(pair, pair.to_far("/user/t", target.uid))
    liar = NodeId("10.0.0.3", 25520, 3)
    codec = Codec(lambda node, path, uid: pair.runtime.ref_at(node, path, uid))
    body = ["/user/t", target.uid, 0, ""]
    ended = Envelope(Kind.TERMINATED, watcher.path, watcher.uid, None, 0, "", body, 0)
    pair.runtime.deliver_frame(liar, codec.encode(ended), LinkMemory(1 << 20))
    watch = Envelope(Kind.WATCH, "/user/t", 0, watcher, 0, "", [], 0)
    pair.far.deliver_frame(liar, codec.encode(watch), LinkMemory(1 << 20))
    pair.run_for(0.01)
    assert seen == []
    assert [reason for reason, _ in pair.refused] == ["bad watch"]


def test_end_is_told_past_a_full_mailbox() -> None:
    stage = Stage()
    target = stage.runtime.spawn(Collector, [])
    seen: list[Terminated] = []
    watcher = stage.runtime.spawn(Watcher, seen, mailbox_max=1)
    watcher.tell(Look(target))
    stage.settle()
    watcher.tell(Greet("fills"))
    stage.runtime.stop(target)
    stage.settle()
    assert len(seen) == 1
