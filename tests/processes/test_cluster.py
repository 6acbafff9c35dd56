"""Real members: they form one cluster, host a singleton, survive kill -9, leave in order."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bench.processes import Member, Members
from tests.conftest import HowMany, loop_name

COUNTER = "counter"


def instances(members: Sequence[Member], ends: dict[str, float]) -> list[tuple[float, float]]:
    """When each instance ran, by the histories; `ends` says when a killed member ended."""
    spans = []
    for member in members:
        starts = [line.at_s for line in member.seen("started", singleton=COUNTER)]
        stops = [line.at_s for line in member.seen("stopped", singleton=COUNTER)]
        if len(stops) < len(starts):
            stops.append(ends[member.name])
        spans += list(zip(starts, stops, strict=True))
    return sorted(spans)


def test_kill_9_moves_the_singleton_and_a_leave_moves_it_faster(members: Members) -> None:
    """The demo's scenario. I-152: at no instant two instances, over the whole run."""
    three = members.start_three()
    members.wait_all_up(three)
    first = members.host_of(COUNTER)
    ends = {first.name: members.end(first, signal.SIGKILL)}
    second = members.host_of(COUNTER, but=[first])
    members.end(second, signal.SIGTERM)
    assert members.wait_end(second) == 0
    third = members.host_of(COUNTER, but=[first, second])
    members.end(third, signal.SIGTERM)
    assert members.wait_end(third) == 0
    assert {first, second, third} == set(three)

    spans = instances(three, ends)
    assert len(spans) == 3
    for (_, stopped_at_s), (started_at_s, _) in pairwise(spans):
        assert stopped_at_s <= started_at_s
    kill_gap_s = spans[1][0] - spans[0][1]
    leave_gap_s = spans[2][0] - spans[1][1]
    # A proven crash, and no waiting for the hand-over timeout (10 s).
    assert kill_gap_s < 5.0
    assert leave_gap_s < 1.0


def test_the_oldest_member_hosts(members: Members) -> None:
    """S1: the host is chosen from membership alone, by age."""
    first = members.start("a", port=members.free_ports(1)[0])
    members.wait_all_up([first])
    second = members.start("b", port=members.free_ports(1)[0], seeds=[first.port])
    members.wait("b sees two up", lambda: len(second.up_members()) == 2)
    assert members.host_of(COUNTER) is first
    assert second.seen("started", singleton=COUNTER) == []


def test_symmetric_starts_form_one_cluster_each(tmp_path: Path, how_many: HowMany) -> None:
    """I-82: five processes with one seed list, started at once, are one cluster, every time."""
    for attempt in range(how_many(short=3, long=20)):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with Members(directory, loop=loop_name()) as members:
            ports = members.free_ports(5)
            five = [
                members.start(name, port=port, seeds=ports)
                for name, port in zip("abcde", ports, strict=True)
            ]
            members.wait_all_up(five)
            assert all(member.running for member in five)
            for member in five:
                assert member.up_members() == {other.address for other in five}
            host = members.host_of(COUNTER)
            assert [m for m in five if m.seen("started", singleton=COUNTER)] == [host]


def test_a_member_alone_ends_in_order(members: Members) -> None:
    """SIGTERM and SIGINT are exit code 0, also without anybody to hand over to."""
    for number in (signal.SIGTERM, signal.SIGINT):
        member = members.start(number.name, port=members.free_ports(1)[0])
        members.wait_all_up([member])
        members.end(member, number)
        assert members.wait_end(member) == 0
        assert len(member.seen("stopped", singleton=COUNTER)) == 1


def test_sigterm_while_still_looking_for_the_cluster(members: Members) -> None:
    """A member that waits for its seeds ends in order as well."""
    mute, port = members.free_ports(2)
    member = members.start("a", port=port, seeds=[mute])
    members.wait("a listens", lambda: member.seen("bound"))
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 0
    assert member.seen("member_up") == []


def test_a_second_signal_ends_at_once(members: Members) -> None:
    """The operator's last word: the process ends although an actor has not stopped."""
    member = members.start("a", port=members.free_ports(1)[0], app="tests.processes.apps:stubborn")
    members.wait_all_up([member])
    members.end(member, signal.SIGTERM)
    stopping = members.directory / "a.stopping"
    members.wait("the actor begins to stop", stopping.exists)
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 128 + signal.SIGTERM


def test_a_member_without_http_loads_nothing_heavy(members: Members) -> None:
    """aiohttp, prometheus_client, kubernetes_asyncio and rich cost those who use them."""
    member = members.start(
        "a", port=members.free_ports(1)[0], app="tests.processes.apps:report_modules"
    )
    members.wait_all_up([member])
    report = members.directory / "a.modules"
    members.wait("its modules", report.exists)
    loaded = {name.split(".")[0] for name in json.loads(report.read_text())}
    assert "zmq" in loaded
    assert not loaded & {"aiohttp", "prometheus_client", "kubernetes_asyncio", "rich"}
    assert "node.testkit" not in json.loads(report.read_text())
