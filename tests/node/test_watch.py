"""Death watch, within a node and between two (I-138)."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.membership import NodeId
from node.actor import Actor, Terminated, on
from node.codec import Codec, Envelope, Kind
from node.messages import message
from node.ref import ActorRef
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


@pytest.mark.parametrize("remote", [False, True])
def test_unwatch_takes_back_even_what_waits_in_the_mailbox(remote: bool) -> None:
    pair = Pair()
    runtime = pair.far if remote else pair.runtime
    target = runtime.spawn(Collector, [], name="t")
    ref = pair.to_far("/user/t") if remote else target
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


def test_news_of_an_end_that_never_gets_through_is_a_dead_letter() -> None:
    pair = Pair()
    target = pair.far.spawn(Collector, [], name="t")
    watching(pair, pair.to_far("/user/t"))
    pair.cut = True
    pair.far.stop(target)
    pair.run_for(60.0)
    assert [letter.why.name for letter in pair.far_letters] == ["NOT_SENT"]


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
    pair.runtime.deliver_frame(liar, codec.encode(ended))
    watch = Envelope(Kind.WATCH, "/user/t", 0, watcher, 0, "", [], 0)
    pair.far.deliver_frame(liar, codec.encode(watch))
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
