"""A singleton under a lease, with real members and a real store: crash, outage, pause, leave.

Guards S7, S8, S10, S11 and L5. When it ran is what the members' histories say.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.processes import Member, Members
from node.history import boottime_s

TTL_S = 3.0
RETRY_S = 0.5
SINGLETON = "counter"


def start(members: Members, tmp_path: Path, *flags: str) -> list[Member]:
    """Three members, one store."""
    arguments = (
        *(
            "--protection",
            "downing+lease",
            "--lease",
            f"sqlite://{tmp_path}/leases.db",
            "--lease-ttl-s",
            str(TTL_S),
        ),
        *("--acquire-retry-interval-s", str(RETRY_S), "--hand-over-timeout-s", "2"),
        *flags,
    )
    three = members.start_three(http=True, arguments=arguments)
    members.wait_all_up(three)
    # Who knows no view that all agreed on can not decide: a fault before that ends all.
    members.wait(
        "all know an agreed view",
        lambda: all(ask(one, "/cluster")["downing"]["agreed_members"] == 3 for one in three),
    )
    return three


def events(members: Sequence[Member], since_s: float) -> list[tuple[float, str, str]]:
    found = [
        (line.at_s, member.name, line.event)
        for member in members
        for line in member.history()
        if line.singleton == SINGLETON and line.at_s >= since_s
    ]
    return sorted(found)


def ask(member: Member, path: str) -> Any:
    with urllib.request.urlopen(f"http://{member.http}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def words(member: Member) -> str:
    """Why it runs there, or why not."""
    return " ".join(row["explain"] for row in ask(member, "/singletons"))


def test_a_killed_host_is_respected_for_its_ttl(members: Members, tmp_path: Path) -> None:
    """S11: proven dead at once, and replaced when the lease is over."""
    three = start(members, tmp_path)
    host = members.host_of(SINGLETON)
    (lease,) = ask(host, "/leases")
    assert (lease["held_by_us"], lease["name"]) == (True, "tenure/singleton/counter")
    at_s = members.end(host, signal.SIGKILL)
    other = members.host_of(SINGLETON, but=[host])
    started_at, _, _ = next(each for each in events(three, at_s) if each[2] == "started")
    assert TTL_S / 2 < started_at - at_s < TTL_S + 2.0
    (later,) = [row for row in ask(other, "/leases") if row["held_by_us"]]
    assert int(later["token"]) > int(lease["token"])
    told = {line.token for line in other.seen("started", singleton=SINGLETON)}
    assert told == {later["token"]}
    shown = subprocess.run(
        [sys.executable, "-m", "node", "status", "--http", str(other.http)],
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip
    assert "leases" in shown
    assert later["token"] in shown


def test_a_leave_releases_it(members: Members, tmp_path: Path) -> None:
    """S7, L5: long before the ttl."""
    three = start(members, tmp_path)
    host = members.host_of(SINGLETON)
    at_s = boottime_s()
    host.process.send_signal(signal.SIGTERM)
    members.host_of(SINGLETON, but=[host])
    assert members.wait_end(host) == 0
    stopped = next(each for each in events(three, at_s) if each[2] == "stopped")
    started = next(each for each in events(three, at_s) if each[2] == "started")
    assert stopped[0] <= started[0]
    assert started[0] - at_s < TTL_S / 2


def test_a_store_outage_stops_it_everywhere_until_the_store_is_back(
    members: Members, tmp_path: Path
) -> None:
    """S10: before its deadline, and back by itself."""
    three = start(members, tmp_path)
    members.host_of(SINGLETON)
    with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        down_s = boottime_s()
        members.wait(
            "it stops",
            lambda: [each for each in events(three, down_s) if each[2] == "stopped"],
        )
        members.wait(
            "all wait for the store",
            lambda: any("nobody can tell" in words(one) for one in three),
        )
        assert not [each for each in events(three, down_s) if each[2] == "started"]
        lock.execute("ROLLBACK")
        back_s = boottime_s()
    members.wait("it starts again", lambda: [e for e in events(three, back_s) if e[2] == "started"])
    assert all(member.running for member in three)


def test_a_host_that_was_stopped_for_longer_than_its_ttl_is_replaced_and_stops(
    members: Members, tmp_path: Path
) -> None:
    """With a strategy or without one the lease has moved on."""
    three = start(members, tmp_path)
    host = members.host_of(SINGLETON)
    at_s = boottime_s()
    host.process.send_signal(signal.SIGSTOP)
    other = members.host_of(SINGLETON, but=[host])
    assert other is not host
    woken_s = boottime_s()
    host.process.send_signal(signal.SIGCONT)
    members.wait(
        "the old one stops",
        lambda: [e for e in events([host], woken_s) if e[2] == "stopped"],
    )
    assert next(e for e in events(three, at_s) if e[2] == "started")[1] == other.name
