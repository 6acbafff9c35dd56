"""What waits for a connection: batches, order, interleaving, bounds, and what was not sent."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from node.outbox import FRAME_BYTES_TARGET, ITEM_BYTES, ControlOutbox, DataOutbox, Frame
from node.streams import PIECE_BYTES_MAX, Streams
from tests.conftest import HowMany

KIB = 1024


class Peer:
    """The other end: reads frames as a node does, and keeps what arrived for whom, in order."""

    def __init__(self) -> None:
        self.streams = Streams(64 << 20)
        self.arrived: dict[str, list[int]] = defaultdict(list)
        self.count = 0

    def read(self, frame: Frame) -> None:
        if len(frame.parts) == 1:
            text = bytes(frame.parts[0])[1:]
            for message in text.split(b"|")[:-1]:
                self._take(message)
            return
        whole = self.streams.add(bytes(frame.parts[0])[1:], memoryview(frame.parts[1]))
        if whole is not None:
            self._take(whole.envelope)

    def _take(self, message: bytes) -> None:
        key, number = message.strip(b".").split(b":")
        self.arrived[key.decode()].append(int(number))
        self.count += 1


def outbox(*, version: int = 2, pending_bytes_max: int = 1 << 30) -> DataOutbox:
    return DataOutbox(
        lambda _version, is_piece: b"P" if is_piece else b"H",
        lambda: None,
        version=version,
        pending_bytes_max=pending_bytes_max,
    )


def frames(box: DataOutbox, *, full_only: bool = False) -> list[Frame]:
    found = []
    while (frame := box.next_frame(full_only=full_only)) is not None:
        box.sent(frame)
        found.append(frame)
    return found


def send(box: DataOutbox, key: str, number: int, size: int = 0) -> None:
    """One message, small or large."""
    if size > PIECE_BYTES_MAX:
        box.send_large(b"%s:%d" % (key.encode(), number), [b"x" * size], (key, number), key)
    else:
        text = b"%s:%d" % (key.encode(), number)
        box.send(text.ljust(size, b".") + b"|", (key, number), key)


def test_small_messages_leave_in_full_frames() -> None:
    box = outbox()
    for number in range(20):
        send(box, "a", number, 10 * KIB)
    full = frames(box, full_only=True)
    assert [len(frame.items) for frame in full] == [6, 6, 6]
    assert all(len(frame.parts[0]) <= FRAME_BYTES_TARGET + 1 for frame in full)
    (rest,) = frames(box)
    assert rest.items == [("a", 18), ("a", 19)]
    assert box.pending_bytes == 0


def test_whoever_sends_is_woken_once_per_frame() -> None:
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    box = DataOutbox(lambda *_: b"H", wake, version=2, pending_bytes_max=1 << 30)
    for number in range(12):
        send(box, "a", number, 10 * KIB)
    assert woken == 2, "the first message, and the first full frame"


@pytest.mark.parametrize("seed", range(20))
def test_every_recipient_gets_its_messages_once_and_in_order(seed: int) -> None:
    """FIFO per pair, however large messages and small ones are mixed, whenever frames leave."""
    rng = random.Random(seed)
    box, peer = outbox(), Peer()
    sent: dict[str, list[int]] = defaultdict(list)
    for number in range(400):
        key = rng.choice("abcdefgh")
        size = rng.choice([10, 10, 10, 100, 30 * KIB, 300 * KIB, 900 * KIB])
        send(box, key, number, size)
        sent[key].append(number)
        for _ in range(rng.choice([0, 0, 1, 2, 6])):
            frame = box.next_frame(full_only=rng.random() < 0.5)
            if frame is not None:
                box.sent(frame)
                peer.read(frame)
    for frame in frames(box):
        peer.read(frame)
    assert peer.arrived == sent
    assert box.pending_bytes == 0
    assert not box.is_streaming
    assert box.takes_short


def test_small_messages_to_others_do_not_wait_for_a_large_one() -> None:
    box, peer = outbox(), Peer()
    send(box, "a", 0, 8 << 20)
    send(box, "a", 1)
    send(box, "b", 2)
    for _ in range(3):
        frame = box.next_frame(full_only=False)
        assert frame is not None
        box.sent(frame)
        peer.read(frame)
    assert peer.arrived == {"b": [2]}
    for frame in frames(box):
        peer.read(frame)
    assert peer.arrived == {"a": [0, 1], "b": [2]}


def test_while_large_messages_are_under_way_numbers_are_not_to_be_used() -> None:
    box = outbox()
    states = [(box.is_streaming, box.takes_short)]
    send(box, "a", 0, 600 * KIB)
    states.append((box.is_streaming, box.takes_short))
    frames(box)
    states.append((box.is_streaming, box.takes_short))
    assert states == [(False, True), (True, False), (False, True)]


def test_a_peer_of_version_1_knows_no_numbers() -> None:
    box = outbox(version=1)
    assert box.names is None
    assert not box.takes_short
    send(box, "a", 0)
    frames(box)
    assert not box.takes_short


@pytest.mark.parametrize("seed", range(20))
def test_what_did_not_leave_comes_back_once_and_in_order(seed: int) -> None:
    """Nothing is lost silently: each item is in a frame that left, or drained."""
    rng = random.Random(seed)
    box = outbox()
    total = 200
    for number in range(total):
        send(box, rng.choice("abc"), number, rng.choice([10, 10, 300 * KIB, 700 * KIB]))
    left: list[object] = []
    for _ in range(rng.randrange(40)):
        frame = box.next_frame(full_only=False)
        assert frame is not None
        box.sent(frame)
        left.extend(frame.items)
    box.close()
    rest = list(box.drain())
    items = [item for item in [*left, *rest] if isinstance(item, tuple)]
    assert sorted(item[1] for item in items) == list(range(total))
    assert box.pending_bytes == 0


def test_it_is_full_by_bytes_and_takes_again_when_they_left() -> None:
    box = outbox(pending_bytes_max=2 * (100 + ITEM_BYTES))
    states = []
    for number in range(2):
        send(box, "a", number, 99)
        states.append(box.is_full)
    frames(box)
    assert [*states, box.is_full] == [False, True, False]


def test_short_forms_are_taken_until_a_frame_has_filled_the_queue() -> None:
    box = outbox(pending_bytes_max=1000)
    for number in range(6):
        assert box.takes_short
        send(box, "a", number, 10 * KIB)
    send(box, "a", 6, 10 * KIB)
    assert not box.takes_short
    frames(box)
    assert box.takes_short


async def test_room_waits_until_half_is_free_or_the_link_has_ended() -> None:
    box = outbox(pending_bytes_max=1000)
    await box.room()
    send(box, "a", 0, 2000)
    waiting = [asyncio.ensure_future(box.room()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    frames(box)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    send(box, "a", 1, 2000)
    late = asyncio.ensure_future(box.room())
    await asyncio.sleep(0)
    box.close()
    await asyncio.wait_for(late, 5)
    assert box.is_full, "an ended link takes nothing"


async def test_whoever_waits_for_room_leaves_some_to_those_who_cannot_wait() -> None:
    """Senders keep below half of the bound, so an ask is not refused because of them."""
    box = outbox(pending_bytes_max=100 * KIB)

    async def sender() -> None:
        for number in range(50):
            await box.room()
            send(box, "a", number, 10 * KIB)

    task = asyncio.ensure_future(sender())
    sent = 0
    while not task.done():
        await asyncio.sleep(0)
        assert not box.is_full
        frame = box.next_frame(full_only=False)
        if frame is not None:
            box.sent(frame)
            sent += len(frame.items)
    assert sent + len(list(box.drain())) == 50


async def test_whoever_waits_is_not_passed_for_ever() -> None:
    """Somebody keeps the queue between half and full: the one who waits has its turn all the
    same, once all that was there before it has left."""
    box = outbox(pending_bytes_max=100 * KIB)
    for number in range(8):
        send(box, "a", number, 10 * KIB)
    order: list[str] = []

    async def wait(name: str) -> None:
        await box.room()
        order.append(name)
        send(box, name, 0, 10)

    waiting = [asyncio.ensure_future(wait(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    for _ in range(60):
        frame = box.next_frame(full_only=False)
        assert frame is not None
        box.sent(frame)
        while box.pending_bytes < 80 * KIB:
            send(box, "rude", 0, 10 * KIB)
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert order == ["first", "second"]


async def test_one_that_gives_up_waiting_does_not_hold_up_the_next() -> None:
    box = outbox(pending_bytes_max=1000)
    send(box, "a", 0, 2000)
    first, second = (asyncio.ensure_future(box.room()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    frames(box)
    await asyncio.wait_for(second, 5)


def test_answers_have_room_where_new_messages_have_none() -> None:
    box = outbox(pending_bytes_max=1000)
    send(box, "a", 0, 1500)
    assert (box.is_full, box.is_busy, box.takes_answers) == (True, True, True)
    send(box, "a", 1, 1500)
    assert not box.takes_answers


def test_while_the_peer_cannot_be_reached_nothing_is_taken() -> None:
    box = outbox()
    box.bar()
    states = [(box.is_full, box.takes_short)]
    box.unbar()
    assert [*states, (box.is_full, box.takes_short)] == [(True, False), (False, True)]


def test_a_control_queue_batches_and_is_bounded() -> None:
    box = ControlOutbox(lambda: b"head", lambda: None, pending_bytes_max=100 * KIB)
    assert all(box.push(b"x" * KIB) for _ in range(100))
    assert not box.push(b"y")
    assert box.next_frame(full_only=True) is not None
    first = box.next_frame(full_only=False)
    assert first is not None
    assert list(box.drain()) == []
    assert bytes(first.parts[0]).startswith(b"headx")


def test_a_million_messages_are_neither_lost_nor_reordered(how_many: HowMany) -> None:
    """Random budgets of reader and writer, all sizes; the counts of `make test-long`."""
    rng = random.Random(7)
    box, peer = outbox(), Peer()
    total = how_many(short=20_000, long=1_000_000)
    sent: dict[str, int] = defaultdict(int)
    wire: list[Frame] = []
    for _ in range(total):
        key = rng.choice("abcdefgh")
        size = 300 * KIB if rng.random() < 0.0005 else 10
        send(box, key, sent[key], size)
        sent[key] += 1
        if rng.random() < 0.01:
            for _ in range(rng.randrange(8)):
                frame = box.next_frame(full_only=rng.random() < 0.5)
                if frame is None:
                    break
                box.sent(frame)
                wire.append(frame)
        if rng.random() < 0.01:
            for frame in wire[: rng.randrange(4)]:
                peer.read(frame)
                wire.remove(frame)
    for frame in [*wire, *frames(box)]:
        peer.read(frame)
    assert peer.count == total
    assert all(peer.arrived[key] == list(range(count)) for key, count in sent.items())
