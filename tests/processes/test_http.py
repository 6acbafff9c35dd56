"""The HTTP of real members, and the commands that talk to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from bench.processes import ROOT, Member, Members, clean_environment
from node.client import Connection, RefusedError


def ask(member: Member, method: str, path: str) -> object:
    """The JSON a member answers."""
    assert member.http is not None
    host, port = member.http.split(":")
    return Connection(host, int(port), 10.0).ask(method, path)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a client command."""
    return subprocess.run(
        [sys.executable, "-m", "node", *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def serving(members: Members, member: Member) -> Member:
    """The member, once it serves HTTP and is ready."""

    def ready() -> bool:
        result = command("members", "--http", str(member.http))
        return result.returncode == 0 and result.stdout.count(" up ") == len(members.members)

    members.wait(f"{member.name} serves", ready)
    return member


def test_every_member_shows_the_same_cluster(members: Members) -> None:
    """One cluster id, three members, one host; uids are text in the form of design §9."""
    three = members.start_three(http=True)
    members.wait_all_up(three)
    host = members.host_of("counter")
    states = []
    for member in three:
        serving(members, member)
        state = ask(member, "GET", "/cluster")
        assert isinstance(state, dict)
        states.append(state)
        assert state["self"]["address"] == member.address
        assert isinstance(state["self"]["uid"], str)
        assert {row["address"]: row["name"] for row in state["members"]} == {
            other.address: other.name for other in three
        }
        assert all(row["reachable"] for row in state["members"])
        assert ask(member, "GET", "/health/live") == {"live": True}
        wait_ready(members, member)
        (row,) = singletons(members, member, host)
        assert (row["name"], row["host"]) == ("counter", host.address)
        assert (row["instance_id"] is not None) is (member is host)
    assert len({state["cluster_id"] for state in states}) == 1
    assert len({state["leader"] for state in states}) == 1


def wait_ready(members: Members, member: Member) -> None:
    """Until /health/ready answers 200."""

    def ready() -> bool:
        try:
            answer = ask(member, "GET", "/health/ready")
        except RefusedError:
            return False
        return answer == {"ready": True, "reason": "up"}

    members.wait(f"{member.name} is ready", ready)


def singletons(members: Members, member: Member, host: Member) -> list[dict[str, object]]:
    """/singletons, once the member knows the host."""

    def known() -> object:
        rows = ask(member, "GET", "/singletons")
        assert isinstance(rows, list)
        return rows if [row["host"] for row in rows] == [host.address] else None

    rows = members.wait(f"{member.name} knows the host", known)
    assert isinstance(rows, list)
    return rows


def test_status_and_leave_from_the_command_line(members: Members) -> None:
    """`status` shows all, `leave` ends one member in order, the others go on."""
    three = members.start_three(http=True)
    members.wait_all_up(three)
    leaver = serving(members, three[2])
    shown = command("status", "--http", str(leaver.http))
    assert shown.returncode == 0, shown.stderr
    for member in three:
        assert member.address in shown.stdout
    assert "counter" in shown.stdout
    status = json.loads(command("status", "--json", "--http", str(leaver.http)).stdout)
    assert len(status["members"]) == 3
    left = command("leave", "--http", str(leaver.http))
    assert left.returncode == 0, left.stderr
    assert members.wait_end(leaver) == 0
    gone = command("status", "--timeout-s", "0.1", "--http", str(leaver.http))
    assert gone.returncode == 69
    for member in three[:2]:
        wait_gone(members, member, leaver)


def test_move_from_the_command_line(members: Members) -> None:
    """Asked of a member that does not host it; where it cannot go is said, and what could be."""
    three = members.start_three(http=True)
    members.wait_all_up(three)
    host = members.host_of("counter")
    first, second = [member for member in three if member is not host]
    asked = serving(members, first)
    moved = command("move", "counter", second.address, "--http", str(asked.http))
    assert (moved.returncode, moved.stdout) == (0, f"counter is at {second.address}\n")
    assert members.host_now("counter", but=[host, first]) is second
    unknown = command("move", "counter", "127.0.0.1:1", "--http", str(asked.http))
    assert unknown.returncode == 1
    assert f"it can move to {host.address}, {first.address}" in unknown.stderr
    again = command("move", "counter", "--http", str(asked.http))
    assert again.stdout == f"counter is at {host.address}\n"
    nothing = command("move", "nothing", "--http", str(asked.http))
    assert nothing.returncode == 1
    assert "knows no singleton 'nothing'" in nothing.stderr


def test_shards_from_the_command_line(members: Members) -> None:
    """The map of all three, an order to rebalance, and what is no type."""
    three = members.start_three(http=True, app="examples.carts:setup")
    members.wait_all_up(three)
    asked = serving(members, three[1])
    members.wait("a coordinator", lambda: "nobody" not in status(asked))
    shown = command("shards", "--http", str(asked.http))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"cart  60 shards  {three[0].address}\n")
    (row,) = json.loads(command("shards", "--json", "--http", str(asked.http)).stdout)
    assert (row["type"], row["shard_count"]) == ("cart", 60)
    ordered = command("rebalance", "cart", "--http", str(asked.http))
    assert ordered.returncode == 0, ordered.stderr
    assert ordered.stdout.startswith("cart is rebalanced, a round at a time")
    nothing = command("rebalance", "boots", "--http", str(asked.http))
    assert nothing.returncode == 1
    assert "knows no sharded type 'boots'" in nothing.stderr


def status(member: Member) -> str:
    """What `status` prints."""
    return command("status", "--http", str(member.http)).stdout


def test_down_from_the_command_line(members: Members) -> None:
    """The member that is downed stops in order and ends with 11; the command waits for it."""
    ports = members.free_ports(3)
    three = [
        members.start(
            name,
            port=port,
            seeds=ports[:1],
            http=True,
            arguments=("--downing", "keep-majority"),
        )
        for name, port in zip("abc", ports, strict=True)
    ]
    members.wait_all_up(three)
    asked = serving(members, three[0])
    unknown = command("down", "127.0.0.1:1", "--http", str(asked.http))
    assert unknown.returncode == 1
    assert "127.0.0.1:1 is no member that this node knows" in unknown.stderr
    ordered = command("down", three[2].address, "--http", str(asked.http))
    assert ordered.returncode == 0, ordered.stderr
    assert ordered.stdout == f"{three[2].address} is down\n"
    assert members.wait_end(three[2]) == 11
    wait_gone(members, three[1], three[2])
    shown = command("status", "--http", str(asked.http))
    assert "downing keep-majority: nothing is unreachable" in shown.stdout
    itself = command("down", asked.address, "--http", str(asked.http))
    assert itself.stdout == f"{asked.address} ends\n"
    assert members.wait_end(asked) == 11


def wait_gone(members: Members, member: Member, leaver: Member) -> None:
    """Until `member` no longer counts `leaver`, and nobody else is missing."""

    def gone() -> bool:
        return bool(member.seen("member_removed"))

    members.wait(f"{member.name} sees {leaver.name} gone", gone)
    (line,) = member.seen("member_removed")
    assert leaver.address in line.detail


def test_http_ends_with_its_member(members: Members) -> None:
    """A member that serves HTTP exits with 0 on SIGTERM like any other."""
    member = members.start("a", port=members.free_ports(1)[0], http=True)
    members.wait_all_up([member])
    serving(members, member)
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 0
    assert "Traceback" not in member.log()
