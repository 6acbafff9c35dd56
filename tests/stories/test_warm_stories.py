"""What an instance hands over to the next one, and when it must not, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from node import Actor, ActorRef, ActorSystem, Ask, message, on
from node.settings import Settings
from node.supervision import StopReason
from node.testkit import World
from node.testkit.stores import SimStore
from singleton.machine import STATE_BYTES_MAX

NAME = "warm"
LEVELS = ("none", "downing", "downing+lease")


@message("warm-story.count")
class Count(Ask[int]):
    """Answered with how often it was told, by all instances that knew of each other."""


class Warm(Actor):
    """Counts; notes what it began with and in which order its hooks ran."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.count = 0
        self.log("built")

    def log(self, what: str) -> None:
        self.room.log.append(f"{self.room.here().name} {what}")

    def restore_from_hand_over(self, state: bytes, /) -> None:
        self.log(f"restored {state[:8].decode()}")
        if self.room.fault == "restore":
            raise ValueError("no")
        self.count = int(state)

    def pre_start(self) -> None:
        self.log("started")

    def post_stop(self, reason: StopReason) -> None:
        self.log("stopped")

    def serialize_for_hand_over(self) -> bytes | None:
        self.log("gave")
        match self.room.fault:
            case "raise":
                raise ValueError("no")
            case "text":
                return str(self.count)  # type: ignore[return-value]
            case "large":
                return b"x" * (STATE_BYTES_MAX + 1)
            case "largest":
                return f"{self.count:>{STATE_BYTES_MAX}}".encode()
        return str(self.count).encode()

    @on(Count)
    def counted(self, msg: Count) -> int:
        self.count += 1
        return self.count


class Room(World):
    """Three nodes at a level."""

    def __init__(self, level: str = "none", fault: str = "") -> None:
        self.level, self.fault = level, fault
        self.log: list[str] = []
        self.store = SimStore(self, 1)
        self.refs: dict[str, ActorRef[Any]] = {}
        settings = Settings(downing="none" if level == "none" else "keep-majority", lease_ttl_s=6.0)
        super().__init__(1, "a b c", setup=self.furnish, settings=settings, one_host=True)

    def furnish(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        name = self.here().name
        lease = None
        if self.level == "downing+lease":
            lease = system.lease(NAME, store=self.store.door(name))
        self.refs[name] = system.cluster.singleton.start(
            type_name=NAME, actor=Warm, args=(self,), lease=lease
        )

    def count(self, name: str) -> int:
        found: int = self.run(self.refs[name].ask(Count(), timeout_s=60.0), node=name)
        return found

    def ready(self) -> str:
        """All up, counted three times; the host."""
        self.until_all_up()
        self.run_for(s=2.0)
        assert [self.count("b") for _ in range(3)] == [1, 2, 3]
        return self.log[0][0]

    def move(self, by: str, to: str) -> None:
        singleton = self[by].system.cluster.singleton
        self.run(singleton.move(type_name=NAME, to=self[to].address), node=by)
        self.run_for(s=0.5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["move", "leave"])
def test_a_planned_move_keeps_what_the_instance_knew(level: str, how: str) -> None:
    with Room(level) as room:
        host = room.ready()
        other = "c" if host != "c" else "b"
        if how == "move":
            room.move(host, other)
        else:
            room.leave(host)
            room.run_for(s=1.0)
        assert room.count(other) == 4
        theirs = [entry[2:] for entry in room.log if entry[0] == host]
        assert theirs[-2:] == ["stopped", "gave"]
        successor = room.log[-1][0]
        ours = [entry[2:] for entry in room.log if entry[0] == successor]
        assert ours == ["built", "restored 3", "started"]


def test_a_crash_hands_nothing_over() -> None:
    with Room() as room:
        host = room.ready()
        room.crash(host)
        room.run_for(s=1.0)
        assert room.count("b" if host != "b" else "c") == 1


def test_a_lost_lease_hands_nothing_over() -> None:
    """Somebody else may have acted since."""
    with Room("downing+lease") as room:
        host = room.ready()
        room.store.down = True
        room.run_for(s=10.0)
        assert room.log[-1] == f"{host} stopped", "it is not even asked"
        room.store.down = False
        assert room.count("b") == 1


def test_what_was_handed_over_is_used_once() -> None:
    """An instance that fails later, or one that takes over after a crash, begins anew."""
    with Room() as room:
        host = room.ready()
        other, third = [name for name in "abc" if name != host]
        room.move(host, other)
        assert room.count(third) == 4
        room.crash(other)
        room.run_for(s=1.0)
        assert room.count(third) == 1


@pytest.mark.parametrize("fault", ["raise", "text", "large"])
def test_what_cannot_be_handed_over_is_reported_and_the_next_one_begins_anew(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Room(fault=fault) as room:
        host = room.ready()
        other = "c" if host != "c" else "b"
        room.move(host, other)
        assert room.count(other) == 1
        if fault == "large":
            assert "is not handed over: it is too large" in caplog.text
        else:
            (failed,) = room.failures
            assert failed.during == "serialize_for_hand_over"


def test_the_largest_that_is_allowed_travels() -> None:
    with Room(fault="largest") as room:
        host = room.ready()
        other = "c" if host != "c" else "b"
        room.move(host, other)
        assert room.count(other) == 4


def test_an_instance_that_cannot_restore_is_built_again_without() -> None:
    with Room(fault="restore") as room:
        host = room.ready()
        other = "c" if host != "c" else "b"
        room.move(host, other)
        assert room.count(other) == 1
        ours = [entry[2:] for entry in room.log if entry[0] == other]
        assert ours == ["built", "restored 3", "stopped", "built", "started"]
