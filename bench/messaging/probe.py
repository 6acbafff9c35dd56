"""Round trips on the control lane: a third member that pings a peer which is busy with bulk.

Decides what is measured: the time from handing a `Ping` to our transport until the `Ack` comes
out of it, two hundred times a second, from a real member over the real lane. A thin coat around
the transport sees the answers pass; nothing else of the member is touched.
`python -m bench.messaging.probe HOST:PORT` serves the row `probe`; called by `rounds`.
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter
from typing import Any, cast

import uvloop

from bench.messaging.driver import Figures, latency
from bench.messaging.session import serve
from gossip.membership import NodeId
from gossip.messages import Ack, Ping
from node import ActorSystem, wire
from node.environment import Inbox, Transport
from node.zmq_environment import real_environment

INTERVAL_S = 0.005
LATE_S = 2.0
# Far above the numbers that membership gives its own pings.
FIRST_SEQUENCE = 1 << 40


class TappedInbox:
    """The node's inbox, with an eye on the acks."""

    def __init__(self, inbox: Inbox, waiting: dict[int, float], spans_s: list[float]) -> None:
        self._inbox = inbox
        self._waiting = waiting
        self._spans_s = spans_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        """Note which pings are answered, then go the usual way."""
        now = perf_counter()
        for answer in wire.decode(frame)[1]:
            if isinstance(answer, Ack) and answer.seq in self._waiting:
                self._spans_s.append(now - self._waiting.pop(answer.seq))
        self._inbox.control_frame(sender, frame)


class TappedTransport:
    """A transport that also sends pings of ours."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sequence = FIRST_SEQUENCE
        self.waiting: dict[int, float] = {}
        self.spans_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def open(self, self_id: NodeId, inbox: Inbox) -> None:
        """As the transport, with the tap in between."""
        tapped = TappedInbox(inbox, self.waiting, self.spans_s)
        self._transport.open(self_id, cast(Inbox, tapped))

    def ping(self, target: NodeId) -> None:
        """One more round trip begins."""
        self._sequence += 1
        self.waiting[self._sequence] = perf_counter()
        self._transport.send_control(target, wire.encode(Ping(self._sequence, target)))


async def probe(transport: TappedTransport, target: NodeId, for_s: float) -> Figures:
    """A ping without an answer after `LATE_S` counts as one that took so long."""
    transport.spans_s.clear()
    transport.waiting.clear()
    sent = 0
    end_at = perf_counter() + for_s
    while perf_counter() < end_at:
        transport.ping(target)
        sent += 1
        await asyncio.sleep(INTERVAL_S)
    late_at = perf_counter() + LATE_S
    while transport.waiting and perf_counter() < late_at:  # noqa: ASYNC110 - seldom, and rough
        await asyncio.sleep(INTERVAL_S)
    unanswered = len(transport.waiting)
    spans_s = [*transport.spans_s, *([LATE_S] * unanswered)]
    return {
        "n": sent,
        "unanswered": unanswered,
        "max_us": max(spans_s) * 1e6,
        **latency(spans_s),
    }


async def member(seed: str) -> None:
    """Join by way of the peer that is to be probed, and serve."""
    loop = asyncio.get_running_loop()
    environment = real_environment(loop=loop, port=0)
    assert environment.transport is not None
    transport = TappedTransport(environment.transport)
    environment.transport = cast(Transport, transport)
    async with ActorSystem(port=0, seeds=[seed], environment=environment) as system:
        view = await system.cluster.up(2)
        [target] = [one.id for one in view.members if one.id.address == seed]

        async def perform(_row: str, for_s: float) -> Figures:
            return await probe(transport, target, for_s)

        await serve(perform)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(member(sys.argv[1]))
