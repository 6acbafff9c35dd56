"""Three real members that are cut apart: one side lives, the loser is out, restarts, joins again.

With root each member is on a host of its own (a network namespace). Without, they only reach each
other through proxies that hold back what passes, and let all of it go when the cut heals, which is
the milder cut with the later mail; the name of the test says which it was. What acted is what the
subject actor itself wrote.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.gossip.namespaces import Hosts, can_make_networks
from bench.partition.cluster import NO_PROOF, Cluster, LoopbackNetwork, NamespaceNetwork
from bench.partition.proxies import OneWayProxies, ProxyNetwork
from bench.partition.rounds import DOWNED
from bench.processes import Members
from tests.conftest import loop_name

COUNT = 3
TIMEOUT_S = 30.0
DOWN_AFTER_S = 3.0
QUICK = (
    *("--downing", "keep-majority", "--preset", "local"),
    *("--down-after-s", f"{DOWN_AFTER_S:g}", "--contact-s", "1.5"),
)
TAKEOVER_AT_ONCE_S = 1.5
"""Far below `DOWN_AFTER_S`: nobody waited for a view to become stable."""


def _on_hosts(directory: Path) -> Iterator[Cluster]:
    with Hosts(COUNT) as hosts:
        network = NamespaceNetwork(hosts)
        with Cluster(directory, network, QUICK, loop=loop_name()) as cluster:
            yield cluster


def _behind_proxies(directory: Path) -> Iterator[Cluster]:
    with Members(directory) as members:
        free = members.free_ports(2 * COUNT)
    ports = [free[2 * number : 2 * number + 2] for number in range(COUNT)]
    with OneWayProxies(ports) as proxies:
        network = ProxyNetwork(ports, proxies)
        with Cluster(directory, network, QUICK, loop=loop_name()) as cluster:
            yield cluster


KINDS = {"namespaces": _on_hosts, "proxies": _behind_proxies}


@pytest.fixture(params=[*(["namespaces"] if can_make_networks() else []), "proxies"])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Three members, in each network that can be made here."""
    yield from KINDS[request.param](tmp_path)


def test_the_host_that_is_cut_off_falls_silent_goes_and_joins_again(three: Cluster) -> None:
    """I-89, I-99: cut off alone, the host begins no step once another instance does, downs itself
    with exit code 10 and a reason; the two others live. Restarted, it joins after the heal."""
    three.start()
    three.restarts = False
    old = three.settle()
    loser = three.life_of(old)
    others = [life for life in three.running if life is not loser]
    rest = [life.host for life in others]
    at_s = three.cut_apart([loser.host], rest)
    first_s = three.wait(
        "another instance acts", lambda: three.steps.first_of_another(old, at_s), TIMEOUT_S
    )
    assert first_s - at_s > DOWN_AFTER_S, "it was not decided by time"
    three.wait("the loser exits", lambda: not loser.running, TIMEOUT_S)
    assert loser.process.returncode == DOWNED, loser.member.log()
    assert "keep-majority" in loser.lines("downing_decided", at_s)[-1].detail
    assert three.steps.overlap_s(at_s) == 0.0
    assert old.steps[-1] < first_s
    assert all(life.running for life in others)

    again = three.start_one(loser.host)
    for other in rest:
        three.network.heal(loser.host, other)
        three.network.heal(other, loser.host)
    acting = three.settle(TIMEOUT_S)
    assert three.running == sorted([again, *others], key=lambda life: life.host)
    assert three.life_of(acting) in others
    assert three.steps.overlap_s(at_s) == 0.0


def test_a_host_that_slept_begins_no_step_before_it_exits(tmp_path: Path) -> None:
    """I-86: stopped until another instance acts and continued, the host begins no step at all: it
    finds that its contact is over first, and exits when it is told that it is down."""
    with Members(tmp_path) as members:
        network = LoopbackNetwork(members.free_ports(COUNT))
    flags = [*QUICK, *NO_PROOF]
    with Cluster(tmp_path, network, flags, loop=loop_name()) as cluster:
        cluster.start()
        cluster.restarts = False
        old = cluster.settle()
        sleeper = cluster.life_of(old)
        at_s = cluster.signal(sleeper, signal.SIGSTOP)
        try:
            cluster.wait(
                "another instance acts",
                lambda: cluster.steps.first_of_another(old, at_s),
                TIMEOUT_S,
            )
        finally:
            woken_s = cluster.signal(sleeper, signal.SIGCONT)
        cluster.wait("the sleeper exits", lambda: not sleeper.running, TIMEOUT_S)
        assert sleeper.process.returncode == DOWNED, sleeper.member.log()
        assert old.steps_from(woken_s) == []
        assert cluster.steps.overlap_s(at_s) == 0.0


def test_a_crash_that_the_kernel_proves_is_taken_over_at_once(tmp_path: Path) -> None:
    """`kill -9` of the host, all on one kernel: another instance acts long before `down_after_s`,
    and nobody else exits."""
    with Members(tmp_path) as members:
        network = LoopbackNetwork(members.free_ports(COUNT))
    with Cluster(tmp_path, network, QUICK, loop=loop_name()) as cluster:
        cluster.start()
        cluster.restarts = False
        old = cluster.settle()
        victim = cluster.life_of(old)
        at_s = cluster.signal(victim, signal.SIGKILL)
        first_s = cluster.wait(
            "another instance acts", lambda: cluster.steps.first_of_another(old, at_s), TIMEOUT_S
        )
        assert first_s - at_s < TAKEOVER_AT_ONCE_S
        assert cluster.steps.overlap_s(at_s) == 0.0
        assert cluster.proven_crashes(at_s)
        cluster.start_one(victim.host)
        cluster.settle(TIMEOUT_S)
        assert [life.host for life in cluster.lives if not life.running] == [victim.host]


def test_while_the_lease_store_is_down_nobody_acts_and_nobody_ends(tmp_path: Path) -> None:
    """Review F19: `kill -9` of the host under lease-majority while the store takes no write. The
    others neither act nor end; one acts as soon as the store is back."""
    store = tmp_path / "leases.db"
    with Members(tmp_path) as members:
        network = LoopbackNetwork(members.free_ports(COUNT))
    by_lease = ("--downing", "lease-majority", "--lease", f"sqlite:///{store}")
    flags = [*by_lease, *QUICK[2:], *NO_PROOF]
    with Cluster(tmp_path, network, flags, loop=loop_name()) as cluster:
        cluster.start()
        cluster.restarts = False
        old = cluster.settle()
        host = cluster.life_of(old)
        others = [life for life in cluster.running if life is not host]
        with closing(sqlite3.connect(store, isolation_level=None)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            at_s = cluster.signal(host, signal.SIGKILL)
            cluster.wait(
                "both see it",
                lambda: all(one.lines("unreachable", at_s) for one in others),
                TIMEOUT_S,
            )
            cluster.wait_until(
                others[0].lines("unreachable", at_s)[0].at_s + 2 * DOWN_AFTER_S + 2.0
            )
            assert cluster.steps.first_of_another(old, at_s) is None
            assert all(life.running for life in others)
            lock.execute("ROLLBACK")
        cluster.wait(
            "another instance acts", lambda: cluster.steps.first_of_another(old, at_s), TIMEOUT_S
        )
        assert all(life.running for life in others)
        assert cluster.steps.overlap_s(at_s) == 0.0


@pytest.mark.skipif(not can_make_networks(), reason="only root can make network namespaces")
def test_between_namespaces_no_crash_is_proven(tmp_path: Path) -> None:
    """`kill -9` of the host in a namespace of its own: nobody holds the crash proven and the others
    wait for `down_after_s`. One kernel runs them all: were its word taken here, what the bench
    measures between hosts would be shortened by a proof that no network carries."""
    with Hosts(COUNT) as hosts:
        network = NamespaceNetwork(hosts)
        with Cluster(tmp_path, network, QUICK, loop=loop_name()) as cluster:
            cluster.start()
            cluster.restarts = False
            old = cluster.settle()
            at_s = cluster.signal(cluster.life_of(old), signal.SIGKILL)
            first_s = cluster.wait(
                "another instance acts",
                lambda: cluster.steps.first_of_another(old, at_s),
                TIMEOUT_S,
            )
            assert first_s - at_s > DOWN_AFTER_S
            assert cluster.proven_crashes(at_s) == []
