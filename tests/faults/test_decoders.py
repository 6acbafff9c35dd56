"""The real decoders of both lanes under damaged input: nothing is raised, and nothing is kept.

`make test` reads 20,000 inputs per lane, `make test-long` 1,000,000 (I-132, I-133).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from gossip import messages as g
from gossip.membership import Cause, Member, NodeId, Status, Tombstone
from node import wire
from node.actor import Actor, on
from node.environment import LinkMemory
from node.messages import Ask, message
from node.names import NAMES_MAX
from node.ref import ActorRef
from node.streams import OPEN_MAX, pieces
from node.supervision import Resume
from singleton import messages as s
from tests.conftest import HowMany
from tests.faults.garbage import damaged, nested
from tests.node.stage import A, Add, B, Greet, Pair

STRANGER = NodeId("10.0.0.9", 25520, 9)
BLOCKS_MAX = 3_000  # memory blocks in use afterwards, beyond those before: interned names, caches


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The log of a hundred thousand dead letters is not the matter here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def blocks_in_use() -> int:
    """Memory blocks after a collection."""
    gc.collect()
    return sys.getallocatedblocks()


def without_growth(work: Callable[[int], None], count: int) -> None:
    """Do the work in a first part, which may warm up, and a second one, which may keep nothing."""
    first = count // 4
    work(first)
    before = blocks_in_use()
    work(count - first)
    assert blocks_in_use() - before < BLOCKS_MAX


# -- the control lane


def control_bodies() -> list[bytes]:
    """Good control messages of every kind that carries anything."""
    member = Member(
        STRANGER, name="n", roles=("web",), status=Status.UP, up_number=3, types=("singleton:x",)
    )
    tombstone = Tombstone(STRANGER, 5, Cause.LEFT)
    sent: list[object] = [
        g.Ping(1, A),
        g.Ack(1),
        g.PingRequest(1, B),
        g.Gossip(members=(member,), tombstones=(tombstone,)),
        g.Gossip(suspicions=(g.Suspicion(A, 0, B),)),
        g.ViewSeen(3),
        g.SyncOffer((), (), (), 0),
        g.JoinRequest(member, "tenure", (("a", "b"),), ("127.0.0.1:9",)),
        g.JoinConfirm(5),
        g.WhoAreYou("tenure", 7, 0, 5),
        g.IAm("tenure", 7, 99, 5),
        g.LinkQuestion(A, 1),
        s.HandOverAsk("x", 1, 2),
    ]
    found = [wire.encode(each) for each in sent]
    return [*found, b"".join(found[:4])]


def test_control_frames(how_many: HowMany) -> None:
    """Of a damaged frame: messages of checked fields, or a counted refusal."""
    rng = random.Random("control frames")
    whole = control_bodies()
    head = wire.encode_head(g.Head(1, 2, 3, 4))
    outcomes: Counter[str] = Counter()

    def work(count: int) -> None:
        for _ in range(count):
            body = damaged(rng, whole)
            frame = head + body if rng.random() < 0.95 else body
            try:
                _, messages, refused = wire.decode(frame)
            except wire.WireError as error:
                outcomes[error.reason] += 1
            else:
                outcomes["understood"] += len(messages)
                outcomes.update(error.reason for error in refused)

    count = how_many(short=20_000, long=1_000_000)
    without_growth(work, count)
    for outcome in ("understood", "malformed", "unknown-tag", "bad-field"):
        assert outcomes[outcome] > count // 200, outcomes


# -- the data lane


@message("test.faults.parcel")
class Parcel(Ask[bytes]):
    data: bytes
    notes: dict[str, list[int]]
    to: ActorRef[Any] | None
    anything: Any


class Depot(Actor):
    """Answers, and watches whoever it is told of."""

    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount

    @on(Parcel)
    async def take(self, msg: Parcel) -> bytes:
        await asyncio.sleep(0)
        return msg.data

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        if msg.name == "fail":
            raise ValueError("told to")


class Watcher(Actor):
    """Watches an actor of the other node."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        self.context.watch(ref)


def data_frames() -> list[bytes]:
    """What a real node sends: told, asked, answered, failed, watched, ended; both versions."""
    found = []
    for version in (1, 2):
        pair = Pair(version)
        depot = pair.runtime.spawn(Depot, name="depot", supervision=Resume())
        pair.settle()
        far = pair.far.ref_at(A, depot.path, 0)
        watcher = pair.far.spawn(Watcher, far, name="watcher")

        async def talk(far: ActorRef[Any] = far, watcher: ActorRef[Any] = watcher) -> None:
            far.tell(Greet("you"), sender=watcher)
            far.tell(Greet("fail"))
            assert await far.ask(Add(1)) == 1
            assert await far.ask(Parcel(b"x", {"a": [1, 2]}, watcher, {"b": None})) == b"x"

        pair.run(talk())
        pair.far.stop(watcher)
        pair.runtime.stop(depot)
        pair.run_for(5.0)
        found += [frame for sender, _, frame in pair.sent]
    definitions = [[19, 1, "/user/depot", 0], [20, 2, "test.add"], [20, 3, "test.faults.parcel"]]
    calls = [[16, 1, 2, [1]], [17, 1, 2, [1], 5], [17, 1, 3, [b"", {}, None, None], 6], [18, 1, 1]]
    return [*found, b"".join(map(msgpack.packb, [*definitions, *calls]))]


def test_data_frames(how_many: HowMany) -> None:
    """Whatever a member sends: no exception, bounded memory, and nothing left when it is gone."""
    rng = random.Random("data frames")
    whole = data_frames()

    def work(count: int) -> None:
        for start in range(0, count, 5_000):
            _stormy_member(rng, whole, min(5_000, count - start))

    without_growth(work, how_many(short=20_000, long=1_000_000))


def _stormy_member(rng: random.Random, whole: list[bytes], count: int) -> None:
    """A member that sends `count` damaged frames, and then is removed."""
    pair = Pair()
    runtime = pair.runtime
    depot = runtime.spawn(Depot, name="depot", supervision=Resume())
    pair.settle()
    memory = LinkMemory(1 << 20)
    for number in range(count):
        runtime.deliver_frame(B, damaged(rng, whole), memory)
        if number % 50 == 0:
            pair.run_for(0.01)
            pair.sent.clear()
            pair.refused.clear()
            pair.letters.clear()
            assert len(memory.names) <= NAMES_MAX
    pair.run_for(10.0)
    assert runtime.actor_count == 1
    assert len(runtime.counters) < 40
    assert pair.run(depot.ask(Add(7))) == 7
    assert pair.failures
    pair.failures.clear()
    runtime.node_removed(B)


def test_pieces_of_large_messages(how_many: HowMany) -> None:
    """A damaged piece ends its own message; what is unfinished stays bounded."""
    rng = random.Random("pieces")
    whole = data_frames()
    large = [
        list(pieces(number, rng.choice(whole), [rng.randbytes(40_000), b"y" * 300_000]))
        for number in range(8)
    ]
    pair = Pair()
    depot = pair.runtime.spawn(Depot, name="depot", supervision=Resume())
    pair.settle()
    memory = LinkMemory(1 << 20)

    def work(count: int) -> None:
        for number in range(count):
            piece = rng.choice(rng.choice(large))
            header, data = piece.header, memoryview(piece.data)
            if rng.random() < 0.5:
                header = damaged(rng, [header])
            if rng.random() < 0.1:
                data = data[: rng.randrange(len(data))]
            pair.runtime.deliver_piece(B, header, data, memory)
            assert len(memory.streams) <= OPEN_MAX
            if number % 50 == 0:
                pair.run_for(0.01)
                pair.sent.clear()
                pair.refused.clear()
                pair.letters.clear()

    without_growth(work, how_many(short=5_000, long=250_000))
    assert pair.run(depot.ask(Add(7))) == 7


@pytest.mark.parametrize("depth", [33, 500, 511, 512, 5_000, 100_000])
def test_deep_nesting_is_refused_and_costs_little(depth: int) -> None:
    """Also when each level claims a million items: their memory is never touched."""
    head = wire.encode_head(g.Head(1, 2, 3, 4))
    million = b"\xdd\x00\x10\x00\x00" * depth
    slim = b"\x91" * depth + b"\xc0"
    _, messages, _ = wire.decode(head + million)
    _, none, refused = wire.decode(head + slim)
    assert (messages, none, len(refused)) == ([], [], 1)
    pair = Pair()
    memory = LinkMemory(1 << 20)
    for body in (million, slim):
        pair.runtime.deliver_frame(B, body, memory)
    assert len(pair.refused) == 2


def test_a_field_nested_too_deep_is_refused_where_the_frame_is_not() -> None:
    """I-133: 40 levels are good msgpack, and more than a message may have."""
    pair = Pair()
    pair.runtime.spawn(Depot, name="depot")
    pair.settle()
    body: list[Any] = [b"", {}, None, nested(40)]
    envelope = [0, "/user/depot", 0, None, 0, "test.faults.parcel", body, 0]
    pair.runtime.deliver_frame(B, msgpack.packb(envelope), LinkMemory(1 << 20))
    assert pair.refused == [("unreadable message", "Parcel.anything: nested deeper than 32 levels")]
    assert pair.whys() == ["UNREADABLE"]
