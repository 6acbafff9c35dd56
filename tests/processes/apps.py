"""Applications that the members of the process tests run (`--app tests.processes.apps:…`).

They write files into $DIRECTORY, named after the member: what a test asserts was written by the
actors themselves, not by the machinery that is tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from node import Actor, ActorRef, ActorSystem, message, on
from node.events import DeadLetter

FLOOD_BACKLOG = 500
MOVE_COUNT = 3_000


def file(kind: str) -> Path:
    """`<member>.<kind>` in the test's directory."""
    return Path(os.environ["DIRECTORY"]) / f"{os.environ['MEMBER']}.{kind}"


class Journal:
    """Appends one number per line, one write each: whole after a SIGKILL."""

    def __init__(self, kind: str) -> None:
        self._file = file(kind).open("ab", buffering=0)

    def write(self, number: int) -> None:
        """Append `number`."""
        self._file.write(b"%d\n" % number)


@message("tests.number")
class Number:
    """One message of a flood."""

    number: int


class SlowSink(Actor):
    """Handles a number in about a millisecond, so that its mailbox is never empty."""

    def __init__(self) -> None:
        self._handled = Journal("handled")

    @on(Number)
    async def take(self, msg: Number) -> None:
        """Note the number after the pause: a handler cut short notes nothing."""
        await asyncio.sleep(0.001)
        self._handled.write(msg.number)


class QuickSink(Actor):
    """Notes each number."""

    def __init__(self) -> None:
        self._handled = Journal("handled")

    @on(Number)
    def take(self, msg: Number) -> None:
        """Note the number."""
        self._handled.write(msg.number)


class Stubborn(Actor):
    """Takes longer to stop than anybody wants to wait."""

    async def post_stop(self, reason: object, /) -> None:
        """Say that the end began, then take long."""
        file("stopping").touch()
        await asyncio.sleep(60)


def note_dead_letters(system: ActorSystem) -> None:
    """Write down the number of each message that became a dead letter here."""
    dead = Journal("dead")

    def note(event: DeadLetter) -> None:
        if isinstance(event.message, Number):
            dead.write(event.message.number)

    system.events.subscribe(DeadLetter, note)


async def flood(system: ActorSystem) -> None:
    """A local actor flooded by a task that never stops by itself."""
    note_dead_letters(system)
    sink = system.spawn(SlowSink, name="sink")
    keep(asyncio.create_task(_tell_for_ever(sink)))


async def _tell_for_ever(sink: ActorRef[Number]) -> None:
    told = Journal("told")
    number = 0
    while True:
        for _ in range(FLOOD_BACKLOG):
            number += 1
            told.write(number)
            sink.tell(Number(number))
        await asyncio.sleep(FLOOD_BACKLOG / 1000)


def sink_singleton(system: ActorSystem) -> None:
    """A singleton that notes what it handles."""
    note_dead_letters(system)
    system.cluster.singleton.start(type_name="sink", actor=QuickSink)


async def singleton_flood(system: ActorSystem) -> None:
    """The same, and this member tells it MOVE_COUNT numbers, also while it moves."""
    note_dead_letters(system)
    sink = system.cluster.singleton.start(type_name="sink", actor=QuickSink)
    keep(asyncio.create_task(_tell_some(sink)))


async def _tell_some(sink: ActorRef[Number]) -> None:
    for number in range(1, MOVE_COUNT + 1):
        sink.tell(Number(number))
        if number % 10 == 0:
            await asyncio.sleep(0.005)
    file("told-all").touch()


async def report_modules(system: ActorSystem) -> None:
    """Once this member is up: the names of all modules it has loaded."""
    keep(asyncio.create_task(_report_modules(system)))


async def _report_modules(system: ActorSystem) -> None:
    await system.cluster.up()
    file("modules.part").write_text(json.dumps(sorted(sys.modules)))
    file("modules.part").rename(file("modules"))


def stubborn(system: ActorSystem) -> None:
    """An actor that does not stop in time."""
    system.spawn(Stubborn, name="stubborn")


def broken(system: ActorSystem) -> None:
    """A setup that raises."""
    raise ValueError("no database")


async def given_up(system: ActorSystem) -> None:
    """A setup whose own task was cancelled, as clients do when they give up."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


class NoExceptionError(BaseException):
    """What no `except Exception` sees."""


def no_exception(system: ActorSystem) -> None:
    """A setup that raises it."""
    raise NoExceptionError("no such thing")


def hold(entered: str = "entered") -> None:
    """Say that the application is at work, and do not give the loop back."""
    (Path(os.environ["DIRECTORY"]) / entered).touch()
    threading.Event().wait(60)


def hold_on() -> None:
    """The same, and swallow what ends it."""
    try:
        hold()
    except BaseException:
        hold("caught")
        raise


def slow_setup(system: ActorSystem) -> None:
    """A plain setup that takes long."""
    hold()


async def stubborn_setup(system: ActorSystem) -> None:
    """An async setup that takes no notice of being cancelled."""
    (Path(os.environ["DIRECTORY"]) / "entered").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        hold("caught")
        raise


_tasks: set[asyncio.Task[None]] = set()


def keep(task: asyncio.Task[None]) -> None:
    """The loop holds tasks weakly; this holds them."""
    _tasks.add(task)


@message("tests.go-on")
class GoOn:
    """Begin a step that never ends and ignores cancellation."""


class Undying(Actor):
    """A singleton whose handler survives every cancellation, and notes its steps."""

    def pre_start(self) -> None:
        """Begin at once."""
        self.context.self.tell(GoOn())

    @on(GoOn)
    async def go_on(self, msg: GoOn) -> None:
        """Step for ever."""
        journal, number = Journal("steps"), 0
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
            number += 1
            journal.write(number)


def undying(system: ActorSystem) -> None:
    """An undying singleton, and beside it an undying task that is no actor's."""

    async def run() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)

    system.cluster.singleton.start(type_name="undying", actor=Undying)
    KEPT.append(asyncio.get_running_loop().create_task(run()))


KEPT: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly only


class Counting(Actor):
    """Hosts, and does nothing."""


def counting(system: ActorSystem) -> None:
    """A singleton on every member."""
    system.cluster.singleton.start(type_name="counter", actor=Counting)


def with_helper(system: ActorSystem) -> None:
    """The same, and a process beside it, which outlives a killed member."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    path = Path(os.environ["DIRECTORY"]) / f"helper.{os.getpid()}"
    path.write_text(str(helper.pid))
    counting(system)


def two_hundred(system: ActorSystem) -> None:
    """Two hundred singletons on every member."""
    for number in range(200):
        system.cluster.singleton.start(type_name=f"job-{number:03d}", actor=Counting)
