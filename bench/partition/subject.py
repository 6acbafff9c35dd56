"""The application of a member in the benches of faults: `--app bench.partition.subject:setup`.

Decides what counts as a step and how it is written down: the *subject actor itself* writes each
step it begins, one line and one `write` of the kernel, so that a file of all members is in order
and a SIGKILL loses nothing. It has the kinds of user code that a real singleton has: a plain
handler, a coroutine that resumes every 10 ms, a timer, a child with a timer. On every member a
customer sends it work all the time, and writes down what it sent. Judges nothing:
`bench.partition.judging` reads the files.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time

from bench.gossip.peers.facts import ORPHANS_END_AFTER_S, boottime_s
from node import Actor, ActorRef, ActorSystem, message, on
from node.authority import Authority
from node.supervision import StopReason

STEPS, COUNTERS, EACH_HOSTS = "BENCH_STEPS", "BENCH_COUNTERS", "BENCH_EACH_HOSTS"
SHARDED = "BENCH_SHARDED"
SENT, WORK_EVERY, BLOCK = "BENCH_SENT", "BENCH_WORK_EVERY_S", "BENCH_BLOCK_S"
"""Names of the environment variables: the file of the steps, the file to which SIGUSR1 appends the
node's counters, and, when set, that each member hosts a singleton of its own; when set, that the
subject is a sharded entity, the only one, instead of a singleton; the file of what was
sent (none: it is not written), seconds between two orders of one customer, and for how long a plain
handler blocks its event loop after SIGUSR2."""

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
    """One plain step. `number` is another one for each that is sent anywhere."""

    number: int


@message("bench.partition.block")
class Block:
    """A plain handler that blocks its event loop."""


@message("bench.partition.toil")
class Toil:
    """A coroutine that resumes for `TOIL_S`."""


@message("bench.partition.tick")
class Tick:
    """A step by timer."""


class Steps:
    """Writes lines `at_s node instance kind held token work`; the node is an address, the instance
    unique, `held` 1 while it has authority, `work` the number of an order; `-` for none."""

    def __init__(self, node: str, authority: Authority) -> None:
        self._authority = authority
        self._about = f"{node} {node}/{os.getpid()}/{time.monotonic_ns()}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(os.environ[STEPS], flags, 0o644)

    def write(self, kind: str, work: int | str = "-") -> None:
        """One line, stamped now."""
        held, token = int(self._authority.held), self._authority.token
        about = f"{kind} {held} {'-' if token is None else token} {work}"
        os.write(self._file, f"{boottime_s():.6f} {self._about} {about}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Subject(Actor):
    """What must be unique."""

    def __init__(self, node: str) -> None:
        self._node = node

    def pre_start(self) -> None:
        """Begin to act."""
        self._steps = Steps(self._node, self.context.authority)
        self._steps.write("start")
        self.context.timers.every("tick", TICK_S, Tick())
        self.context.timers.every("toil", TOIL_EVERY_S, Toil())
        self.context.spawn(Child, self._steps)

    @on(Work)
    def work(self, order: Work) -> None:
        """Act once; the end of it is written too, by which an overrun shows."""
        self._steps.write("work", order.number)
        self._steps.write(DONE)

    @on(Block)
    def block(self, _order: Block) -> None:
        """One step that takes long, and cannot be interrupted."""
        self._steps.write("block")
        time.sleep(float(os.environ.get(BLOCK, "1")))
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


class EntitySubject(Subject):
    """The same as a sharded entity, which is given its id."""

    def __init__(self, _entity_id: str, node: str) -> None:
        super().__init__(node)


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
        self._number = secrets.randbits(32) << 24
        self._sent = -1
        if path := os.environ.get(SENT):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._sent = os.open(path, flags, 0o644)

    def pre_start(self) -> None:
        """Begin."""
        every_s = float(os.environ.get(WORK_EVERY, WORK_EVERY_S))
        self.context.timers.every("tick", every_s, Tick())

    @on(Tick)
    def tick(self, _tick: Tick) -> None:
        """An order, written down before it is sent."""
        self._number += 1
        if self._sent >= 0:
            os.write(self._sent, f"{boottime_s():.6f} {self._number}\n".encode())
        self._subject.tell(Work(self._number))


def setup(system: ActorSystem) -> None:
    """Offer to host the subject, send it work, and end when the bench is gone."""
    node = system.cluster.self_id.address
    name = f"{SUBJECT}-{node.replace(':', '-')}" if os.environ.get(EACH_HOSTS) else SUBJECT
    subject: ActorRef[Work | Block]
    if os.environ.get(SHARDED):
        entities = system.cluster.sharding.start(
            type_name=name, actor=EntitySubject, args=(node,), shard_count=1
        )
        subject = entities[SUBJECT]
    else:
        subject = system.cluster.singleton.start(type_name=name, actor=Subject, args=(node,))
    system.spawn(Customer, subject, name="customer")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _write_counters, system, node)
    loop.add_signal_handler(signal.SIGUSR2, subject.tell, Block())
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
