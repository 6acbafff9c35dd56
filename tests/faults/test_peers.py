"""A peer that stops reading, and one that is restarted, while messages stream to it.

The peer is a real process; what it handled is in its own journal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from bench.processes import Member, Members
from node import ActorRef, ActorSystem, AskTimeoutError, DeadActorError, DeadLetter
from tests.faults.apps import Number, WhoIsThere

APP = "tests.faults.apps:sink"
FILLER = b"f" * 30_000
WAIT_S = 20.0
# The limit of a link, what sockets and kernels hold beside it, and room for everything else.
GROWTH_BYTES_MAX = 64 * 1024 * 1024 * 3


def handled_by(directory: Path, name: str) -> list[int]:
    """The numbers a peer has noted, in order."""
    path = directory / f"{name}.handled"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def until(what: str, fact: Callable[[], object]) -> None:
    """Let the loop run until `fact()` holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not fact():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not seen within {WAIT_S} s: {what}") from None


class Sender:
    """This process: tells consecutive numbers, and keeps those that came back as dead letters."""

    def __init__(self, system: ActorSystem) -> None:
        self.system = system
        self.told = 0
        self.dead: list[int] = []
        system.events.subscribe(DeadLetter, self._note)

    def _note(self, letter: DeadLetter) -> None:
        if isinstance(letter.message, Number):
            self.dead.append(letter.message.number)

    def tell(self, ref: ActorRef[Number], how_many: int, filler: bytes = FILLER) -> None:
        """Tell the next numbers."""
        for _ in range(how_many):
            self.told += 1
            ref.tell(Number(self.told, filler))


async def join(members: Members, system: ActorSystem, name: str, port: int) -> Member:
    """A peer that both sides know as up."""
    seed = system.cluster.self_id.port
    member = members.start(name, port=port, seeds=[seed], app=APP)
    both = {f"127.0.0.1:{port}", system.cluster.self_id.address}
    await until(f"{name} is up", lambda: member.up_members() == both)
    await system.cluster.up(2, timeout_s=WAIT_S)
    return member


async def test_a_peer_that_stops_reading_and_goes_on(members: Members) -> None:
    """I-135: memory is bounded; then there are dead letters, at once; then it goes on, in order.

    Its connection lives on meanwhile, so nothing else is lost: told = handled + dead letters.
    """
    async with ActorSystem(port=0, found=True) as system:
        peer = await join(members, system, "b", members.free_ports(1)[0])
        sender = Sender(system)
        sink = system.resolve(f"{peer.address}/user/sink")
        sender.tell(sink, 10)
        await until("the stream began", lambda: len(handled_by(members.directory, "b")) == 10)

        os.kill(peer.process.pid, signal.SIGSTOP)
        before = resident_bytes()
        for _ in range(200):
            sender.tell(sink, 50)
            await asyncio.sleep(0)
        assert resident_bytes() - before < GROWTH_BYTES_MAX
        dead_meanwhile = len(sender.dead)
        assert dead_meanwhile > 5_000
        os.kill(peer.process.pid, signal.SIGCONT)

        def all_seen() -> bool:
            return len(handled_by(members.directory, "b")) + len(sender.dead) == sender.told

        await until("all that waited was handled", all_seen)
        sender.tell(sink, 100)
        await until("all that came later was handled", all_seen)
        handled = handled_by(members.directory, "b")
        assert len(sender.dead) == dead_meanwhile
        assert handled == sorted(set(range(1, sender.told + 1)) - set(sender.dead))
        assert system.counters()["dead letters: link_full"] == dead_meanwhile
        assert handled[-100:] == list(range(sender.told - 99, sender.told + 1))


@pytest.mark.long
async def test_a_peer_that_stops_for_so_long_that_it_is_given_up(members: Members) -> None:
    """What was on its way may be lost with the connection; nothing comes twice or out of order,
    and once it goes on it gets all that is sent from then on."""
    async with ActorSystem(port=0, found=True) as system:
        peer = await join(members, system, "b", members.free_ports(1)[0])
        sender = Sender(system)
        sink = system.resolve(f"{peer.address}/user/sink")
        os.kill(peer.process.pid, signal.SIGSTOP)

        def is_reachable() -> bool:
            view = system.cluster.view
            return view is not None and not view.unreachable

        stopped_at = time.monotonic()
        while time.monotonic() - stopped_at < 30.0:
            sender.tell(sink, 10)
            await asyncio.sleep(0.02)
        assert not is_reachable()
        assert sender.dead
        os.kill(peer.process.pid, signal.SIGCONT)
        await until("it is reachable", is_reachable)
        at_address = sink.ask(WhoIsThere(), timeout_s=WAIT_S)
        assert (await at_address).node.port == peer.port
        first = sender.told + 1
        sender.tell(sink, 1_000, b"x" * 500)
        await until(
            "all that came later", lambda: handled_by(members.directory, "b")[-1:] == [first + 999]
        )
        handled = handled_by(members.directory, "b")
        assert handled[-1_000:] == list(range(first, first + 1_000))
        assert handled == sorted(set(handled))
        assert not set(handled) & set(sender.dead)


async def test_send_waits_for_a_peer_that_stops_reading(members: Members) -> None:
    """With `await ref.send` nothing is lost either: the sender is as slow as the peer."""
    async with ActorSystem(port=0, found=True) as system:
        peer = await join(members, system, "b", members.free_ports(1)[0])
        sender = Sender(system)
        sink = system.resolve(f"{peer.address}/user/sink")
        os.kill(peer.process.pid, signal.SIGSTOP)

        async def send_all() -> None:
            for _ in range(5_000):
                sender.told += 1
                await sink.send(Number(sender.told, FILLER))

        sending = asyncio.create_task(send_all())

        def is_half_full() -> bool:
            lanes = system.cluster.state()["lanes"]
            waiting = [lane["waiting_bytes"] for lane in lanes if lane["lane"] == "data"]
            return bool(sum(waiting) * 2 >= system.settings.pending_bytes_max)

        await until("as many wait as may", is_half_full)
        assert 100 < sender.told < 5_000
        assert not sending.done()
        os.kill(peer.process.pid, signal.SIGCONT)
        await asyncio.wait_for(sending, WAIT_S)
        await until("all", lambda: len(handled_by(members.directory, "b")) == 5_000)
        assert handled_by(members.directory, "b") == list(range(1, 5_001))
        assert sender.dead == []


async def test_a_peer_restarted_under_load(members: Members) -> None:
    """I-70: what was meant for the former process never reaches the new one at its address."""
    async with ActorSystem(port=0, found=True) as system:
        port = members.free_ports(1)[0]
        first = await join(members, system, "b1", port)
        sender = Sender(system)
        at_address = system.resolve(f"{first.address}/user/sink")
        former = await at_address.ask(WhoIsThere())
        stop = False

        async def stream() -> None:
            while not stop:
                sender.tell(former, 100, b"x" * 500)
                await asyncio.sleep(0.001)

        streaming = asyncio.create_task(stream())
        await until("a stream", lambda: len(handled_by(members.directory, "b1")) > 1_000)
        members.end(first, signal.SIGKILL)
        second = members.start("b2", port=port, seeds=[system.cluster.self_id.port], app=APP)
        await until("the new process is up", lambda: second.up_members())
        await system.cluster.up(2, timeout_s=WAIT_S)

        async def new_one() -> ActorRef[Number]:
            for _ in count():
                try:
                    return await at_address.ask(WhoIsThere(), timeout_s=1.0)
                except (AskTimeoutError, DeadActorError):
                    await asyncio.sleep(0.01)
            raise AssertionError

        present = await asyncio.wait_for(new_one(), WAIT_S)
        assert (present.node.uid, present.uid) != (former.node.uid, former.uid)
        assert present.address == former.address
        for_former = len(sender.dead)
        await until("dead letters at once", lambda: len(sender.dead) > for_former + 1_000)
        stop = True
        await streaming
        last_for_former = sender.told
        sender.tell(present, 1_000, b"x" * 500)
        await until("its own", lambda: len(handled_by(members.directory, "b2")) == 1_000)
        assert handled_by(members.directory, "b2") == list(
            range(last_for_former + 1, last_for_former + 1_001)
        )
        told_first = handled_by(members.directory, "b1")
        assert told_first == sorted(set(told_first))
        assert not set(told_first) & set(sender.dead)
