"""Link evidence and proof of a crash (review F8, I-86, I-87)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.effects import Paused
from gossip.events import (
    Dial,
    Dialled,
    DialOutcome,
    LinkLost,
    PeerFrame,
    ProcessEnded,
    UnwatchProcess,
    WatchProcess,
    WatchRefused,
)
from gossip.membership import Cause, MembershipView, Status
from gossip.messages import LinkAnswer
from tests.gossip.cluster import Cluster, Node


def formed(names: str, *, same_kernel: bool = False) -> Cluster:
    cluster = Cluster()
    for name in names.split():
        cluster.start(name, "a", same_kernel=same_kernel)
    cluster.run_until(cluster.all_up(names), within_s=5)
    cluster.run(1)
    return cluster


def view_of(cluster: Cluster, name: str) -> MembershipView:
    view = cluster.nodes[name].view
    assert view is not None
    return view


@pytest.mark.parametrize("names", ["a b", "a b c", "a b c d e"])
def test_lost_and_refused_and_confirmed_is_unreachable_at_once(names: str) -> None:
    """With as many confirmations as there are others, at most two."""
    cluster = formed(names)
    victim = names[-1]
    node = cluster.nodes[victim].id
    cluster.crash(victim)
    took_s = cluster.run_until(lambda: node in view_of(cluster, "a").unreachable, within_s=5)
    assert took_s < 0.1
    # Unreachable, not gone: on another host only its return or its restart settles it.
    assert view_of(cluster, "a").by_id[node].status is Status.UP


def test_refused_to_us_alone_only_shortens_the_suspicion() -> None:
    """A filter between us and it resets links: the others still reach it."""
    cluster = formed("a b c")
    c = cluster.nodes["c"].id
    effects = cluster.nodes["a"].machine.handle(LinkLost(c), cluster.now)
    dial = next(effect for effect in effects if isinstance(effect, Dial))
    cluster.feed("a", Dialled(c, dial.attempt, DialOutcome.REFUSED, DialOutcome.REFUSED))
    assert c in view_of(cluster, "a").suspects
    cluster.run(5)
    assert c not in view_of(cluster, "a").unreachable
    assert c not in view_of(cluster, "a").suspects


def test_a_lost_link_that_can_be_dialled_again_is_nothing() -> None:
    cluster = formed("a b c")
    c = cluster.nodes["c"].id
    cluster.feed("a", LinkLost(c))
    cluster.run(5)
    assert c not in view_of(cluster, "a").unreachable
    assert c not in view_of(cluster, "a").suspects


def test_a_dial_that_gets_no_answer_is_no_evidence() -> None:
    """Behind a cut nothing is refused; only suspicion, in its own time."""
    cluster = formed("a b c")
    c = cluster.nodes["c"].id
    cluster.cut("c", "a b")
    cluster.feed("a", LinkLost(c))
    cluster.run(0.3)
    assert c not in view_of(cluster, "a").unreachable


def test_an_answer_nobody_asked_for_changes_nothing() -> None:
    cluster = formed("a b c")
    c = cluster.nodes["c"].id
    b = cluster.nodes["b"]
    cluster.feed("a", PeerFrame(b.id, b.machine.head, (LinkAnswer(c, 7, True),)))
    assert cluster.nodes["a"].machine.counters["link-answer-unasked"] == 1
    assert c not in view_of(cluster, "a").unreachable


def watch_orders(cluster: Cluster) -> list[WatchProcess]:
    """Filled from now on with every order to watch a process."""
    orders: list[WatchProcess] = []

    def observe(name: str, node: Node, effects: list[object]) -> None:
        orders.extend(effect for effect in effects if isinstance(effect, WatchProcess))

    cluster.observer = observe
    return orders


def test_the_kernels_word_is_proof_and_moves_the_member_at_once() -> None:
    cluster = formed("a b c", same_kernel=True)
    b = cluster.nodes["b"].id
    cluster.crash("b", sockets_close=False)
    cluster.feed("a", ProcessEnded(b))
    cluster.run(0.1)
    for name in "ac":
        assert b not in view_of(cluster, name).by_id
        assert view_of(cluster, name).gone[b] is Cause.CRASHED
        assert view_of(cluster, name).gone[b].is_proof


def test_a_proven_one_is_watched_no_longer() -> None:
    watched = formed("a b", same_kernel=True)
    effects = watched.nodes["a"].machine.handle(ProcessEnded(watched.nodes["b"].id), watched.now)
    assert any(isinstance(effect, UnwatchProcess) for effect in effects)


@pytest.mark.parametrize("same_kernel", [True, False])
def test_a_process_of_our_kernel_is_watched_when_it_joins(same_kernel: bool) -> None:
    cluster = Cluster()
    orders = watch_orders(cluster)
    cluster.start("a", "a", same_kernel=same_kernel)
    cluster.start("b", "a", same_kernel=same_kernel)
    cluster.run_until(cluster.all_up("a b"), within_s=5)
    assert bool(orders) is same_kernel


@pytest.mark.parametrize(
    ("refusals", "gap_s", "proven"),
    [(1, 0.0, False), (2, 0.06, True), (2, 0.01, False)],
)
def test_without_a_pidfd_both_ports_must_refuse_twice_apart(
    refusals: int, gap_s: float, proven: bool
) -> None:
    """Review F8 (c): same boot id, same network namespace."""
    cluster = formed("a b c", same_kernel=True)
    a, b = cluster.nodes["a"], cluster.nodes["b"].id
    cluster.crash("b", sockets_close=False)
    now = cluster.now
    a.machine.handle(WatchRefused(b), now)
    effects = a.machine.handle(LinkLost(b), now)
    dial = next(effect for effect in effects if isinstance(effect, Dial))
    for number in range(refusals):
        a.machine.handle(
            Dialled(b, dial.attempt, DialOutcome.REFUSED, DialOutcome.REFUSED),
            now + number * gap_s,
        )
    view = a.view
    assert view is not None
    assert (b not in view.by_id or view.by_id[b].status is Status.DOWN) is proven


def test_one_port_that_still_accepts_is_no_proof() -> None:
    cluster = formed("a b c", same_kernel=True)
    a, b = cluster.nodes["a"], cluster.nodes["b"].id
    a.machine.handle(WatchRefused(b), cluster.now)
    effects = a.machine.handle(LinkLost(b), cluster.now)
    dial = next(effect for effect in effects if isinstance(effect, Dial))
    for number in range(4):
        a.machine.handle(
            Dialled(b, dial.attempt, DialOutcome.REFUSED, DialOutcome.ACCEPTED),
            cluster.now + 0.06 * number,
        )
    assert view_of(cluster, "a").by_id[b].status is Status.UP


def test_a_refusal_from_elsewhere_is_never_proof() -> None:
    """Where a filter can send RST, trusting it overlapped in 25 of 25 modelled runs."""
    cluster = formed("a b c")
    a, b = cluster.nodes["a"], cluster.nodes["b"].id
    effects = a.machine.handle(LinkLost(b), cluster.now)
    dial = next(effect for effect in effects if isinstance(effect, Dial))
    for number in range(10):
        a.machine.handle(
            Dialled(b, dial.attempt, DialOutcome.REFUSED, DialOutcome.REFUSED),
            cluster.now + 0.06 * number,
        )
    assert view_of(cluster, "a").by_id[b].status is Status.UP


def test_our_own_pause_accuses_nobody() -> None:
    """I-87: what was not answered meanwhile is our own fault."""
    cluster = formed("a b c")
    cluster.pause("a", 5)
    cluster.run(4.9)
    cluster.feed("a", Paused(5.0))
    cluster.run(3)
    assert view_of(cluster, "a").unreachable == frozenset()
    cluster.run_until(cluster.all_up("a b c"), within_s=10)


def test_crash_evidence_never_watches_nothing() -> None:
    settings = replace(Cluster().settings, crash_evidence="never")
    cluster = Cluster(settings=settings)
    orders = watch_orders(cluster)
    cluster.start("a", "a", same_kernel=True)
    cluster.start("b", "a", same_kernel=True)
    cluster.run_until(cluster.all_up("a b"), within_s=5)
    assert orders == []
