"""The application of our members in a bench of processes: `--app bench.gossip.peers.member:setup`.

Writes what this member's own view shows, at the moment it is published; holds the join until the
bench says go. SIGUSR1 lets an actor block the event loop, SIGUSR2 sends a stream of bulk to the
member that $BENCH_BULK_TO names. Run by `bench.gossip.processes_cluster`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

from bench.gossip.peers.facts import BLOCK_S, BULK_TO, Facts, told_to_go
from gossip.events import MemberChanged, MemberRemoved, ReachabilityChanged
from gossip.membership import MembershipView, NodeId, Status
from node import Actor, ActorSystem, Ask, message, on
from node.events import LoopBlocked

CHUNK_BYTES = 1 << 20
CHUNKS_MIN = 64
CHUNKS_OPEN = 8
BULK_S = 3.0

_STATUS_EVENTS = {
    Status.UP: "up",
    Status.LEAVING: "leaving",
    Status.EXITING: "exiting",
    Status.DOWN: "down",
}


@message("bench.block")
class Block:
    """Keep the event loop for so long."""

    for_s: float


@message("bench.chunk")
class Chunk(Ask[int]):
    """A piece of bulk; the answer is its size."""

    data: bytes


class Sink(Actor):
    """Takes bulk, and blocks when it is told to."""

    @on(Block)
    def block(self, msg: Block) -> None:
        """What no actor should do."""
        time.sleep(msg.for_s)

    @on(Chunk)
    def take(self, msg: Chunk) -> int:
        """Count it."""
        return len(msg.data)


class Observer:
    """Turns what the system publishes into facts."""

    def __init__(self, system: ActorSystem, facts: Facts) -> None:
        self._facts = facts
        self._suspects: frozenset[NodeId] = frozenset()
        self._size = self._cluster_id = 0
        events = system.events
        events.subscribe(MemberChanged, self._changed)
        events.subscribe(MemberRemoved, self._removed)
        events.subscribe(ReachabilityChanged, self._reachability)
        events.subscribe(MembershipView, self._view)
        events.subscribe(LoopBlocked, lambda event: facts.write("blocked", "-", event.took_s))

    def _changed(self, fact: MemberChanged) -> None:
        who = str(fact.member.id)
        if fact.before is None:
            self._facts.write("known", who)
        event = _STATUS_EVENTS.get(fact.member.status)
        if event is not None:
            self._facts.write(event, who, fact.member.cause.name.lower())

    def _removed(self, fact: MemberRemoved) -> None:
        self._facts.write("removed", str(fact.id), fact.cause.name.lower())

    def _reachability(self, fact: ReachabilityChanged) -> None:
        self._facts.write("reachable" if fact.reachable else "unreachable", str(fact.id))

    def _view(self, view: MembershipView) -> None:
        if view.suspects != self._suspects:
            was, self._suspects = self._suspects, view.suspects
            for node in view.suspects - was:
                self._facts.write("suspect", str(node))
            for node in was - view.suspects:
                member = view.by_id.get(node)
                if node not in view.unreachable and member and member.status < Status.DOWN:
                    self._facts.write("recovered", str(node))
        if view.cluster_id != self._cluster_id:
            self._cluster_id = view.cluster_id
            self._facts.write("cluster", "-", f"{view.cluster_id:016x}")
        if len(view.members) != self._size:
            self._size = len(view.members)
            self._facts.write("size", "-", self._size)


async def setup(system: ActorSystem) -> None:
    """Observe, answer to the signals, and wait until the bench says go."""
    facts = Facts(system.cluster.self_id.address)
    Observer(system, facts)
    sink = system.spawn(Sink, name="sink")
    loop = asyncio.get_running_loop()
    for_s = float(os.environ.get(BLOCK_S, "3"))
    loop.add_signal_handler(signal.SIGUSR1, lambda: sink.tell(Block(for_s)))
    tasks: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly only
    loop.add_signal_handler(
        signal.SIGUSR2, lambda: tasks.append(loop.create_task(_stream(system, facts)))
    )
    facts.write("ready")
    await told_to_go()
    facts.write("go")


async def _stream(system: ActorSystem, facts: Facts) -> None:
    """Bulk to one peer for `BULK_S`, at least 64 MiB, a few chunks under way at a time."""
    sink = system.resolve(f"{os.environ[BULK_TO]}/user/sink")
    chunk = Chunk(os.urandom(CHUNK_BYTES))
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BULK_S
    begun = 0

    async def send() -> None:
        nonlocal begun
        while begun < CHUNKS_MIN or loop.time() < until_s:
            begun += 1
            await sink.ask(chunk, timeout_s=60.0)

    facts.write("bulk-begins")
    await asyncio.gather(*(send() for _ in range(CHUNKS_OPEN)))
    facts.write("bulk-ends", "-", begun * CHUNK_BYTES)
