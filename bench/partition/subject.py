"""The application of a member in the partition bench: `--app bench.partition.subject:setup`.

Decides what counts as a step and how it is written down: the *subject actor itself* writes each
step it begins, one line and one `write` of the kernel, so that a file of all members is in order
and a SIGKILL loses nothing. It has the kinds of user code that a real singleton has: a plain
handler, a coroutine that resumes every 10 ms, a timer, a child with a timer. On every member a
customer sends it work all the time. Judges nothing: `bench.partition.judging` reads the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

from bench.gossip.peers.facts import ORPHANS_END_AFTER_S, boottime_s
from node import Actor, ActorRef, ActorSystem, message, on
from node.supervision import StopReason

STEPS, COUNTERS, EACH_HOSTS = "BENCH_STEPS", "BENCH_COUNTERS", "BENCH_EACH_HOSTS"
"""Names of the environment variables: the file of the steps, the file to which SIGUSR1 appends the
node's counters, and, when set, that each member hosts a singleton of its own."""

SUBJECT = "subject"
TICK_S = 0.05
WORK_EVERY_S = 0.2
TOIL_EVERY_S = 6.0
TOIL_S = 3.0
RESUME_S = 0.01

STOP, DONE = "stop", "done"
"""Kinds of lines that are no steps: the clean-up, and the end of a step that was begun before."""


@message("bench.partition.work")
class Work:
    """One plain step."""


@message("bench.partition.toil")
class Toil:
    """A coroutine that resumes for `TOIL_S`."""


@message("bench.partition.tick")
class Tick:
    """A step by timer."""


class Steps:
    """Writes lines `at_s node instance kind`; the node is an address, the instance unique."""

    def __init__(self, node: str) -> None:
        self._about = f"{node} {node}/{os.getpid()}/{time.monotonic_ns()}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(os.environ[STEPS], flags, 0o644)

    def write(self, kind: str) -> None:
        """One line, stamped now."""
        os.write(self._file, f"{boottime_s():.6f} {self._about} {kind}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Subject(Actor):
    """What must be unique."""

    def __init__(self, node: str) -> None:
        self._steps = Steps(node)

    def pre_start(self) -> None:
        """Begin to act."""
        self._steps.write("start")
        self.context.timers.every("tick", TICK_S, Tick())
        self.context.timers.every("toil", TOIL_EVERY_S, Toil())
        self.context.spawn(Child, self._steps)

    @on(Work)
    def work(self, _order: Work) -> None:
        """Act once; the end of it is written too, by which an overrun shows."""
        self._steps.write("work")
        self._steps.write(DONE)

    @on(Toil)
    async def toil(self, _order: Toil) -> None:
        """Act at each resume."""
        for _ in range(round(TOIL_S / RESUME_S)):
            self._steps.write("resume")
            await asyncio.sleep(RESUME_S)

    @on(Tick)
    def tick(self, _tick: Tick) -> None:
        """Act by timer."""
        self._steps.write("tick")

    def post_stop(self, _reason: StopReason) -> None:
        """The clean-up is no step."""
        self._steps.write(STOP)
        self._steps.close()


class Child(Actor):
    """Acts by a timer of its own, also while its parent toils."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def pre_start(self) -> None:
        """Begin to act."""
        self.context.timers.every("tick", TICK_S, Tick())

    @on(Tick)
    def tick(self, _tick: Tick) -> None:
        """Act by timer."""
        self._steps.write("child")


class Customer(Actor):
    """Sends work to the subject, wherever it is."""

    def __init__(self, subject: ActorRef[Work]) -> None:
        self._subject = subject

    def pre_start(self) -> None:
        """Begin."""
        self.context.timers.every("tick", WORK_EVERY_S, Tick())

    @on(Tick)
    def tick(self, _tick: Tick) -> None:
        """An order."""
        self._subject.tell(Work())


def setup(system: ActorSystem) -> None:
    """Offer to host the subject, send it work, and end when the bench is gone."""
    node = system.cluster.self_id.address
    name = f"{SUBJECT}-{node.replace(':', '-')}" if os.environ.get(EACH_HOSTS) else SUBJECT
    subject = system.cluster.singleton.start(type_name=name, actor=Subject, args=(node,))
    system.spawn(Customer, subject, name="customer")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _write_counters, system, node)
    _end_with_the_bench(loop, os.getppid())


def _write_counters(system: ActorSystem, node: str) -> None:
    """Append what the node counted, one line."""
    line = {"at_s": boottime_s(), "node": node, "counters": dict(system.counters())}
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    file = os.open(os.environ[COUNTERS], flags, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _end_with_the_bench(loop: asyncio.AbstractEventLoop, bench: int) -> None:
    # A bench that is killed cannot stop its members, and they would keep the machine busy.
    if os.getppid() != bench:
        os._exit(1)
    loop.call_later(ORPHANS_END_AFTER_S, _end_with_the_bench, loop, bench)
