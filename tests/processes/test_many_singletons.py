"""Two hundred singletons on one cluster start, move and stop together, with and without leases.

Guards S1, S7 and I-28: each has one host at any time, by the histories.
"""

from __future__ import annotations

import itertools
import json
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.processes import Member, Members
from node.history import boottime_s

COUNT = 200
APP = "tests.processes.apps:two_hundred"


def hosts(member: Member) -> dict[str, str | None]:
    """Who hosts which, as this member sees it."""
    with urllib.request.urlopen(f"http://{member.http}/singletons", timeout=20) as answer:
        return {row["name"]: row["host"] for row in json.loads(answer.read())}


def spans(members: Sequence[Member]) -> dict[str, list[tuple[float, float]]]:
    """When each ran, by what all histories say; in order of their begin."""
    found: dict[str, list[tuple[float, float]]] = {}
    for member in members:
        begun: dict[str, float] = {}
        for line in member.history():
            if line.singleton is None:
                continue
            if line.event == "starting":
                begun[line.singleton] = line.at_s
            elif line.event == "stopped":
                found.setdefault(line.singleton, []).append((begun.pop(line.singleton), line.at_s))
        for name, at_s in begun.items():
            found.setdefault(name, []).append((at_s, float("inf")))
    return {name: sorted(each) for name, each in found.items()}


@pytest.mark.parametrize("leased", [False, True])
def test_two_hundred_start_move_and_stop(members: Members, tmp_path: Path, leased: bool) -> None:
    flags = ("--protection", "downing+lease", "--lease", f"sqlite://{tmp_path}/leases.db")
    three = members.start_three(http=True, app=APP, arguments=flags if leased else ())
    members.wait_all_up(three)

    def all_at(*places: Member) -> bool:
        wanted = {member.address for member in places}
        shown = [hosts(member) for member in members.members if member.process.poll() is None]
        return all(len(each) == COUNT and set(each.values()) <= wanted for each in shown)

    members.wait("all are hosted", lambda: all_at(*three))
    host = next(member for member in three if member.address == hosts(three[0])["job-000"])
    other = next(member for member in three if member is not host)
    for number in range(0, COUNT, 4):
        order = json.dumps({"name": f"job-{number:03d}", "to": other.address}).encode()
        request = urllib.request.Request(f"http://{host.http}/singletons/move", data=order)
        with urllib.request.urlopen(request, timeout=40) as answer:
            assert json.loads(answer.read())["host"] == other.address
    at_s = boottime_s()
    host.process.send_signal(signal.SIGTERM)
    assert members.wait_end(host) == 0
    rest = [member for member in three if member is not host]
    members.wait("all are hosted elsewhere", lambda: all_at(*rest))
    for member in rest:
        member.process.send_signal(signal.SIGTERM)
    for member in rest:
        assert members.wait_end(member) == 0
    found = spans(three)
    assert len(found) == COUNT
    assert sum(map(len, found.values())) >= 2 * COUNT, "all of the host moved, when it left"
    for name, tenures in found.items():
        for (_, end_s), (begin_s, _) in itertools.pairwise(tenures):
            assert end_s <= begin_s, f"{name} ran twice"
        assert max(end_s for _, end_s in tenures) > at_s
