"""SIGTERM in a flood of messages: what reached a mailbox is handled, the rest is a dead letter."""

from __future__ import annotations

import signal
from pathlib import Path

from bench.processes import Members
from tests.processes.apps import FLOOD_BACKLOG, MOVE_COUNT


def numbers(path: Path) -> list[int]:
    """What a journal of `tests.processes.apps` has noted so far."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_what_reached_the_mailbox_is_handled(members: Members) -> None:
    """I-143: told = handled + dead letters, in order, and no hole in what was handled."""
    member = members.start("a", port=members.free_ports(1)[0], app="tests.processes.apps:flood")
    handled, told, dead = (members.directory / f"a.{kind}" for kind in ("handled", "told", "dead"))
    members.wait("a flood", lambda: len(numbers(handled)) > FLOOD_BACKLOG)
    told_before = numbers(told)[-1]
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 0, member.log()
    handled_numbers = numbers(handled)
    assert len(handled_numbers) >= told_before
    assert handled_numbers == list(range(1, len(handled_numbers) + 1))
    assert handled_numbers + numbers(dead) == numbers(told)


def test_a_leave_moves_a_flooded_singleton_without_loss(members: Members) -> None:
    """I-53, S12: each number told to a singleton that moves is handled once, in order."""
    ports = members.free_ports(2)
    host = members.start("a", port=ports[0], app="tests.processes.apps:sink_singleton")
    members.wait_all_up([host])
    sender = members.start(
        "b", port=ports[1], seeds=[ports[0]], app="tests.processes.apps:singleton_flood"
    )
    first, second = (members.directory / f"{name}.handled" for name in "ab")
    members.wait("a flood", lambda: len(numbers(first)) > MOVE_COUNT // 10)
    members.end(host, signal.SIGTERM)
    assert members.wait_end(host) == 0, host.log()
    dead = [members.directory / f"{name}.dead" for name in "ab"]

    def all_seen() -> bool:
        return sum(len(numbers(path)) for path in (first, second, *dead)) >= MOVE_COUNT

    members.wait("every number somewhere", all_seen)
    assert numbers(first) + numbers(second) == list(range(1, MOVE_COUNT + 1))
    assert numbers(second), "the flood ended before the move"
    assert [numbers(path) for path in dead] == [[], []]
    assert sender.running
