"""Runtimes in virtual time, wired back to back: what the tests of the actor runtime stand on."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gossip.membership import NodeId
from node.actor import Actor
from node.environment import LinkMemory
from node.events import ActorFailed, DeadLetter
from node.messages import Ask, message
from node.names import Names
from node.ref import ActorRef
from node.runtime import Runtime
from node.streams import Piece
from node.testkit.loop import SimClock, SimLoop
from node.testkit.timeline import Timeline

T = TypeVar("T")

A = NodeId("10.0.0.1", 25520, 11)
B = NodeId("10.0.0.2", 25520, 2**64 - 1)


class Stage:
    """One runtime on its own virtual loop; `letters` and `failures` are what it published."""

    def __init__(self, node: NodeId | None = None, **settings: Any) -> None:
        self.timeline = Timeline()
        self.loop = SimLoop(self.timeline, SimClock(), "test")
        self.refused: list[tuple[str, str]] = []
        self.runtime = self.make(node, **settings)
        self.letters: list[DeadLetter] = []
        self.failures: list[ActorFailed] = []
        self.runtime.events.subscribe(DeadLetter, self.letters.append)
        self.runtime.events.subscribe(ActorFailed, self.failures.append)

    def make(self, node: NodeId | None, **settings: Any) -> Runtime:
        """A runtime on this loop."""
        return Runtime(
            loop=self.loop,
            clock=self.loop.time,
            rng=random.Random(1),
            self_id=node,
            refused=lambda reason, detail: self.refused.append((reason, detail)),
            **settings,
        )

    def run(self, coroutine: Coroutine[Any, Any, T], within_s: float = 600.0) -> T:
        """Run it to its end in virtual time."""
        task = self.loop.create_task(coroutine)
        until = self.timeline.now + within_s
        assert self.timeline.run(until, task.done), f"not done after {within_s} virtual s"
        return task.result()

    def run_for(self, s: float) -> None:
        """Let virtual time go by."""
        self.timeline.run(self.timeline.now + s)

    def settle(self) -> None:
        """Let everything happen that is due now."""
        self.run_for(0.0)

    def whys(self) -> list[str]:
        """Why messages became dead letters, in order."""
        return [letter.why.name for letter in self.letters]


class Wire:
    """A `DataLink` of a test: every message is a frame of its own, handed to `transmit`."""

    def __init__(self, transmit: Callable[[bytes, object], None], version: int = 2) -> None:
        self.version = version
        self.names = Names() if version >= 2 else None
        self.is_streaming = self.is_full = self.is_busy = self.is_ended = False
        self.takes_answers = True
        self.takes_short = version >= 2
        self.urgent_count = 0
        self.large: list[tuple[bytes, Sequence[bytes]]] = []
        self._transmit = transmit

    def send(self, payload: bytes, item: object, key: str) -> None:
        self._transmit(payload, item)

    def send_short(self, payload: bytes, item: object) -> None:
        self._transmit(payload, item)

    def hurry(self) -> None:
        """Everything leaves at once."""

    def send_piece(self, piece: Piece, item: object) -> None:
        self.large.append((piece.header, [bytes(piece.data)]))

    def send_large(self, envelope: bytes, parts: Sequence[bytes], item: object, key: str) -> None:
        self.large.append((envelope, parts))

    async def room(self) -> None:
        """There always is."""

    def end(self) -> None:
        """Its connection is lost, and its names with it."""
        self.is_ended, self.takes_short = True, False


class Pair(Stage):
    """Two nodes on one loop. A frame takes 1 ms; `cut` drops it and says so to the sender,
    `lossy` drops it silently."""

    def __init__(self, version: int = 2, **settings: Any) -> None:
        self.cut = self.lossy = False
        self.sent: list[tuple[NodeId, NodeId, bytes]] = []
        self.links: dict[tuple[NodeId, NodeId], Wire] = {}
        self.memories: dict[tuple[NodeId, NodeId], LinkMemory] = {}
        self._version = version
        super().__init__(A, data_link=lambda to: self.link(A, to), **settings)
        self.far = self.make(B, data_link=lambda to: self.link(B, to), **settings)
        self.far_letters: list[DeadLetter] = []
        self.far.events.subscribe(DeadLetter, self.far_letters.append)

    def link(self, sender: NodeId, to: NodeId) -> Wire:
        """The way from one to the other."""
        if (sender, to) not in self.links:
            self.links[sender, to] = Wire(
                lambda payload, item: self._send(sender, to, payload, item), self._version
            )
        return self.links[sender, to]

    def _send(self, sender: NodeId, to: NodeId, payload: bytes, item: object) -> None:
        self.sent.append((sender, to, payload))
        runtimes = {A: self.runtime, B: self.far}
        memory = self.memories.setdefault((sender, to), LinkMemory(1 << 20))
        if self.cut or to not in runtimes:
            self.links.pop((sender, to)).end()
            self.loop.call_soon(runtimes[sender].data_dropped, to, item)
        elif not self.lossy:
            self.loop.call_later(0.001, runtimes[to].deliver_frame, sender, payload, memory)
        else:
            self.loop.call_later(0.001, runtimes[to].skip_frame, sender, payload, memory)

    def to_far(self, path: str, uid: int = 0) -> ActorRef[Any]:
        """Node A's ref to something on node B."""
        return self.runtime.ref_at(B, path, uid)


@message("test.add")
class Add(Ask[int]):
    """Answered with the sum so far."""

    amount: int


@message("test.greet")
class Greet:
    """Told."""

    name: str


@message("test.unknown")
class Unheard(Ask[str]):
    """Nobody handles it."""


class Collector(Actor):
    """Keeps every message in a list that the test holds."""

    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def receive(self, message: Any, /) -> None:
        """Keep it."""
        self.into.append(message)
