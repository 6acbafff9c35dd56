"""Nodes without actors: a transport and a recorder on it, to test the world itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from gossip.membership import NodeId
from node.environment import Lane, LinkMemory, Transport
from node.streams import Whole
from node.testkit.network import IntoCut
from node.testkit.stage import SimNode, Stage
from node.testkit.transport import SimTransport


class Recorder:
    """An inbox that writes down what it is told, and when by the world's clock."""

    def __init__(self, world: Stage) -> None:
        self.world = world
        self.control: list[bytes] = []
        self.data: list[bytes] = []
        self.at: list[float] = []
        self.senders: list[NodeId] = []
        self.lost: list[tuple[NodeId, Lane, float]] = []
        self.refused: list[tuple[Lane, str]] = []
        self.dropped: list[tuple[NodeId, object]] = []
        self.large: list[Whole] = []

    def control_head(self) -> bytes:
        return b"<"

    def data_head(self, version: int, is_piece: bool) -> bytes:
        return b"["

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        self.control.append(frame)
        self.senders.append(sender)
        self.at.append(self.world.now)

    def data_frame(self, sender: NodeId, frame: bytes, memory: LinkMemory) -> None:
        self.data.append(frame)
        self.senders.append(sender)
        self.at.append(self.world.now)

    def link_lost(self, peer: NodeId, lane: Lane) -> None:
        self.lost.append((peer, lane, self.world.now))

    def frame_refused(self, lane: Lane, reason: str, detail: str) -> None:
        self.refused.append((lane, reason))

    def data_piece(
        self, sender: NodeId, frame: bytes, data: memoryview, memory: LinkMemory
    ) -> None:
        whole = memory.streams.add(frame[1:], data)
        if whole is not None:
            self.large.append(whole)

    def turn_begin(self) -> None:
        """Nothing waits for it here."""

    def turn_end(self) -> None:
        """Nothing waits for it here."""

    def data_dropped(self, peer: NodeId, item: object) -> None:
        self.dropped.append((peer, item))


def send_data(transport: Transport, to: NodeId, payload: bytes) -> bool:
    """Queue a payload that is its own item; False when it was not taken."""
    link = transport.data_link(to)
    if link is None or link.is_full:
        return False
    link.send(payload, payload, "/somebody")
    return True


class Bare:
    """A world of nodes that only have sockets. All of them know all data ports."""

    def __init__(
        self,
        nodes: int | str = 2,
        *,
        seed: int = 7,
        one_host: bool = False,
        into_cut: IntoCut = "held",
        absent: str = "",
    ) -> None:
        self.inboxes: dict[str, Recorder] = {}
        self.ids: dict[str, NodeId] = {}
        self.world = Stage(
            seed, nodes, boot=self._boot, one_host=one_host, into_cut=into_cut, absent=absent
        )
        self.world.run_for(s=0.1)

    async def _boot(self, node: SimNode) -> None:
        transport = self.transport(node.name)
        await transport.bind()
        uid = node.environment.rng.getrandbits(64)
        self.ids[node.name] = NodeId(node.host.address, node.port, uid)
        self.inboxes[node.name] = Recorder(self.world)
        transport.open(self.ids[node.name], self.inboxes[node.name])
        for name, peer in self.ids.items():
            transport.learn(peer, self.transport(name).data_port, 2)
            self.transport(name).learn(self.ids[node.name], transport.data_port, 2)

    def transport(self, name: str) -> SimTransport:
        transport = self.world[name].transport
        assert transport is not None
        return transport

    def send(self, source: str, target: str, payload: bytes, lane: Lane = Lane.CONTROL) -> None:
        """Send as a step of `source`."""
        transport = self.transport(source)
        if lane is Lane.CONTROL:
            self.world[source].call(transport.send_control, self.ids[target], payload)
        else:
            self.world[source].call(send_data, transport, self.ids[target], payload)

    def keep(self, source: str, targets: Iterable[str]) -> None:
        """Keep exactly these links, as a step of `source`."""
        peers = [self.ids[name] for name in targets]
        self.world[source].call(self.transport(source).keep_links, peers)

    def control_links(self, source: str) -> dict[str, str]:
        """Target → state of each control link of `source`."""
        names = {peer: name for name, peer in self.ids.items()}
        return {
            names[record.peer]: record.state
            for record in self.transport(source).link_records()
            if record.lane is Lane.CONTROL
        }


def run_script(script: str, hash_seed: str) -> str:
    """What a script prints in a process of its own, under this PYTHONHASHSEED."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
