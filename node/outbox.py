"""What waits for one connection, and the frames it leaves in.

Decides: what is sent together, what is too much, and how large messages and small ones share a
connection. Does not decide what a payload means, when a connection is dialled or when it ended:
that is `node.zmq_links`, and `node.testkit.transport` in a simulated world; both use these queues.

`ControlOutbox` batches messages behind one head. `DataOutbox` does so too, and interleaves the
pieces of large messages with everything else, so that neither waits for the other: pieces and
frames of small messages leave in turn. Messages to one recipient keep their order, so those that
follow a large one to the same recipient wait for its last piece.

Budget: `bench messaging`, rows remote_*; per message one addition, one comparison, two appends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from node.names import Names
from node.streams import OPEN_MAX, Buffer, Piece, only_piece, pieces

# A frame is filled up to here; a single larger payload is a frame of its own.
FRAME_BYTES_TARGET = 64 * 1024
# What a waiting message costs beside its bytes: the message itself is kept until it has left.
ITEM_BYTES = 200


class Frame(NamedTuple):
    """One ZeroMQ message: `parts` are its halves, `items` whatever is lost when it is not sent,
    `cost` what leaving frees of `pending_bytes`."""

    parts: tuple[Buffer, ...]
    items: Sequence[object]
    cost: int


class Outbox(Protocol):
    """What a link asks of its queue. `is_dirty`: it has called `wake` and was not emptied since."""

    is_dirty: bool

    @property
    def pending_bytes(self) -> int:
        """What waits, in bytes."""

    def next_frame(self, *, full_only: bool) -> Frame | None:
        """The next frame (`full_only`: if waiting for more would win nothing); None = no more."""

    def sent(self, frame: Frame) -> None:
        """A frame was handed over."""

    def drain(self) -> Iterator[object]:
        """Empty the queue: every item that will not be sent, in order."""

    def bar(self) -> None:
        """The peer could not be reached: whoever sends is told so until `unbar`."""

    def unbar(self) -> None:
        """The connection is made."""

    def close(self) -> None:
        """The connection has ended: nothing is taken any more."""


class ControlOutbox:
    """The queue of a control link. `head()` is asked for when a frame is made, `wake()` called
    when there is something new to send."""

    __slots__ = ("_head", "_pending_bytes_max", "_queue", "_wake", "is_dirty", "pending_bytes")

    def __init__(
        self, head: Callable[[], bytes], wake: Callable[[], None], *, pending_bytes_max: int
    ) -> None:
        self._head = head
        self._wake = wake
        self.is_dirty = False
        self._pending_bytes_max = pending_bytes_max
        self._queue: deque[bytes] = deque()
        self.pending_bytes = 0

    def push(self, payload: bytes) -> bool:
        """Queue a payload; False when too much waits already."""
        size = len(payload)
        if self.pending_bytes + size > self._pending_bytes_max:
            return False
        self._queue.append(payload)
        self.pending_bytes += size
        if not self.is_dirty or self.pending_bytes >= FRAME_BYTES_TARGET:
            self.is_dirty = True
            self._wake()
        return True

    def next_frame(self, *, full_only: bool) -> Frame | None:
        """See `Outbox`."""
        queue = self._queue
        if full_only and self.pending_bytes < FRAME_BYTES_TARGET:
            return None
        if not queue:
            return None
        head = self._head()
        batch = [queue.popleft()]
        size = len(head) + len(batch[0])
        while queue and size + len(queue[0]) <= FRAME_BYTES_TARGET:
            size += len(queue[0])
            batch.append(queue.popleft())
        return Frame((b"".join([head, *batch]),), batch, size - len(head))

    def sent(self, frame: Frame) -> None:
        """A frame was handed over."""
        self.pending_bytes -= frame.cost

    def drain(self) -> Iterator[object]:
        """Empty the queue: everything that will not be sent."""
        while self._queue:
            yield self._queue.popleft()
        self.pending_bytes = 0

    def bar(self) -> None:
        """Control messages wait for the next attempt: they are few, and ask who is there."""

    def unbar(self) -> None:
        """See `bar`."""

    def close(self) -> None:
        """Nobody waits for a control link."""


class _Stream:
    """A large message that is on its way; those that must not overtake it wait in `followers`."""

    __slots__ = ("cost", "followers", "item", "pieces")

    def __init__(self, made: Iterator[Piece], item: object, cost: int) -> None:
        self.pieces = made
        self.item = item
        self.cost = cost
        self.followers: list[_Waiting] = []


class _Waiter:
    """Somebody who waits for room, at the latest until `due` has left in all."""

    __slots__ = ("due", "woken")

    def __init__(self, woken: asyncio.Future[None], due: int) -> None:
        self.woken = woken
        self.due = due


class _Waiting(NamedTuple):
    key: str
    payload: bytes | _Stream
    item: object


class DataOutbox:
    """The queue of a data link, as `node.remote` sees it (`node.environment.DataLink`).

    `head(version, is_piece)` makes a frame's head, `wake()` is called when there is something new
    to send, or a frame is full.
    `names` is what the peer knows by number on this connection, None where it knows nothing of
    numbers (`version` 1). It dies with its connection: whoever dials anew makes a new one.
    """

    __slots__ = (
        "_active",
        "_frames",
        "_head",
        "_is_barred",
        "_items",
        "_left_cost",
        "_mixed",
        "_number",
        "_payloads",
        "_pending_bytes_max",
        "_room_waiters",
        "_sealed_cost",
        "_size",
        "_takes_piece",
        "_wake",
        "is_dirty",
        "is_ended",
        "is_streaming",
        "names",
        "takes_short",
        "urgent_count",
        "version",
    )

    def __init__(
        self,
        head: Callable[[int, bool], bytes],
        wake: Callable[[], None],
        *,
        version: int,
        pending_bytes_max: int,
    ) -> None:
        self.version = version
        self.names: Names | None = Names() if version >= 2 else None
        self._sealed_cost = 0  # of all that waits, but for the frame that is being filled
        self.is_streaming = False  # a large message waits or is on its way
        self.is_ended = False
        self.is_dirty = False
        self.takes_short = version >= 2
        self.urgent_count = 0
        self._is_barred = False
        self._head = head
        self._wake = wake
        self._pending_bytes_max = pending_bytes_max
        self._payloads: list[bytes] = []  # of the frame that is being filled
        self._items: list[object] = []
        self._size = 0
        # Filled ones: the messages, or the one piece; the items; what leaving frees.
        self._frames: deque[tuple[list[bytes] | Piece, Sequence[object], int]] = deque()
        self._mixed: deque[_Waiting] = deque()  # while streaming: everything, in order
        self._active: dict[str, _Stream] = {}  # recipient → what is on its way there
        self._takes_piece = True
        self._number = 0
        self._left_cost = 0  # of all that has left so far
        self._room_waiters: deque[_Waiter] = deque()

    # In

    @property
    def pending_bytes(self) -> int:
        """What waits: the bytes, and `ITEM_BYTES` for each message."""
        return self._sealed_cost + self._size + ITEM_BYTES * len(self._items)

    @property
    def is_full(self) -> bool:
        """No further message is taken now."""
        return self.pending_bytes >= self._pending_bytes_max or self.is_ended or self._is_barred

    @property
    def is_busy(self) -> bool:
        """It is full for no other reason than that too much waits."""
        return self.is_full and not (self.is_ended or self._is_barred)

    @property
    def takes_answers(self) -> bool:
        """Answers, and what else others wait for, have room where new messages have none."""
        return (
            self.pending_bytes < 2 * self._pending_bytes_max
            and not self.is_ended
            and not self._is_barred
        )

    def _look(self) -> None:
        self.takes_short = not (self.names is None or self.is_streaming or self.is_full)

    def send(self, payload: bytes, item: object, key: str) -> None:
        """Queue a message for the recipient `key`. Ask `is_full` before; the byte limit may be
        exceeded by one message. `item` comes back from `drain` when it is not sent."""
        if self.is_streaming:
            self._sealed_cost += len(payload) + ITEM_BYTES
            self._mixed.append(_Waiting(key, payload, item))
            self.is_dirty = True
            self._wake()
        else:
            self.send_short(payload, item)

    def send_short(self, payload: bytes, item: object) -> None:
        """`send` while it `takes_short`; the byte limit may be exceeded by one frame."""
        size = self._size + len(payload)
        if size > FRAME_BYTES_TARGET and self._size:
            self._seal()
            self._payloads.append(payload)
            self._items.append(item)
            self._size = size = len(payload)
            if self.pending_bytes >= self._pending_bytes_max:
                self.takes_short = False
            self.is_dirty = True
            self._wake()
            return
        self._payloads.append(payload)
        self._items.append(item)
        self._size = size
        if not self.is_dirty:
            self.is_dirty = True
            self._wake()

    def hurry(self) -> None:
        """Send what waits now: somebody is going to wait for it, and has enough of it."""
        if self._size and not self.is_streaming:
            self._seal()
            self.is_dirty = True
            self._wake()

    def send_piece(self, piece: Piece, item: object) -> None:
        """Queue a message of one piece, in its place, while it `takes_short`; its envelope may be
        a short form."""
        if self._size:
            self._seal()
        cost = len(piece.header) + len(piece.data) + ITEM_BYTES
        self._frames.append((piece, (item,), cost))
        self._sealed_cost += cost
        if self._sealed_cost >= self._pending_bytes_max:
            self.takes_short = False
        self.is_dirty = True
        self._wake()

    def send_large(self, envelope: bytes, parts: Sequence[bytes], item: object, key: str) -> None:
        """Queue a message in pieces; `envelope` must make sense without `names`."""
        if len(parts) == 1 and not self.is_streaming:
            piece = only_piece(envelope, parts[0])
            if piece is not None:
                self.send_piece(piece, item)
                return
        cost = len(envelope) + sum(map(len, parts)) + ITEM_BYTES
        self._sealed_cost += cost
        if not self.is_streaming:
            if self._size:
                self._seal()
            self.is_streaming = True
            self.takes_short = False
        self._number += 1
        stream = _Stream(pieces(self._number, envelope, parts), item, cost)
        self._mixed.append(_Waiting(key, stream, item))
        self.is_dirty = True
        self._wake()

    async def room(self) -> None:
        """Wait until less than half of what may wait does, or at least all that does so now has
        left; at once when nothing will be taken any more. Whoever waits longest is first.

        So whoever waits leaves room for those who cannot, and is not passed by them for ever.
        """
        if not self._room_waiters and self._has_room(0):
            return
        loop = asyncio.get_running_loop()
        mine = _Waiter(loop.create_future(), self._left_cost + self.pending_bytes)
        self._room_waiters.append(mine)
        try:
            while True:
                await mine.woken
                if self._has_room(mine.due):
                    return
                mine.woken = loop.create_future()  # somebody was faster; the place is kept
        finally:
            self._room_waiters.remove(mine)
            self._wake_first()

    def _has_room(self, due: int) -> bool:
        """Whether somebody who waits until `due` has left may send one message."""
        if self.is_ended or self._is_barred:
            return True
        if self.pending_bytes * 2 < self._pending_bytes_max:
            return True
        return 0 < due <= self._left_cost and self.pending_bytes < self._pending_bytes_max

    # Out

    def next_frame(self, *, full_only: bool) -> Frame | None:
        """See `Outbox`."""
        if self._frames:
            payloads, items, cost = self._frames.popleft()
        elif self._size and not full_only:
            self._seal()
            payloads, items, cost = self._frames.popleft()
        elif self.is_streaming and not self._size:
            return self._next_mixed()
        else:
            return None
        head = self._head(self.version, type(payloads) is Piece)
        if type(payloads) is Piece:
            return Frame((head + payloads.header, payloads.data), items, cost)
        return Frame((b"".join([head, *payloads]),), items, cost)

    def sent(self, frame: Frame) -> None:
        """A frame was handed over."""
        self._sealed_cost -= frame.cost
        self._left_cost += frame.cost
        if not self.takes_short:
            self._look()
        if self._room_waiters:
            self._wake_first()

    def drain(self) -> Iterator[object]:
        """Empty the queue: every item that will not be sent, in order."""
        frames, self._frames = self._frames, deque()
        for _, items, _ in frames:
            yield from items
        items, self._items = self._items, []
        self._payloads, self._size = [], 0
        yield from items
        active, self._active = self._active, {}
        mixed, self._mixed = self._mixed, deque()
        self.is_streaming = False
        self._sealed_cost = 0
        for stream in active.values():
            yield stream.item
            for follower in stream.followers:
                yield follower.item
        for waiting in mixed:
            yield waiting.item

    def bar(self) -> None:
        """See `Outbox`: nothing is taken."""
        self._is_barred = True
        self.takes_short = False
        self._wake_waiters()

    def unbar(self) -> None:
        """See `Outbox`."""
        self._is_barred = False
        self._look()

    def close(self) -> None:
        """The connection has ended: nothing is taken any more."""
        self.is_ended = True
        self.takes_short = False
        self._wake_waiters()

    def _wake_first(self) -> None:
        """Each that goes on, or gives up, wakes the next one."""
        if self._room_waiters:
            first = self._room_waiters[0]
            if not first.woken.done() and self._has_room(first.due):
                first.woken.set_result(None)

    def _wake_waiters(self) -> None:
        for waiter in self._room_waiters:
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    def _seal(self) -> None:
        cost = self._size + ITEM_BYTES * len(self._items)
        self._frames.append((self._payloads, self._items, cost))
        self._sealed_cost += cost
        self._payloads, self._items, self._size = [], [], 0
        self.urgent_count = 0

    def _next_mixed(self) -> Frame | None:
        """While large messages are on their way: a piece, a frame of small ones, a piece, …"""
        self._takes_piece = not self._takes_piece
        if self._takes_piece and self._active:
            return self._next_piece()
        frame = self._next_small()
        if frame is None and self._active:
            frame = self._next_piece()
        if not self._active and not self._mixed:
            self.is_streaming = False
        return frame

    def _next_piece(self) -> Frame:
        key = next(iter(self._active))
        stream = self._active.pop(key)
        piece = next(stream.pieces)
        parts = (self._head(self.version, True) + piece.header, piece.data)
        if not piece.is_last:
            self._active[key] = stream  # behind the others
            cost = min(len(piece.data), stream.cost)
            stream.cost -= cost
            return Frame(parts, (), cost)
        # Those who waited for it come before all that came later.
        self._mixed.extendleft(reversed(stream.followers))
        if not self._active and not self._mixed:
            self.is_streaming = False
        return Frame(parts, (stream.item,), stream.cost)

    def _next_small(self) -> Frame | None:
        """A frame of the messages that need not wait; large ones met on the way begin."""
        mixed, active = self._mixed, self._active
        payloads: list[bytes] = []
        items: list[Any] = []
        size = 0
        while mixed:
            waiting = mixed[0]
            blocking = active.get(waiting.key)
            payload = waiting.payload
            if blocking is not None:
                blocking.followers.append(mixed.popleft())
            elif isinstance(payload, _Stream):
                if len(active) >= OPEN_MAX or payloads:
                    break  # the frame of what came before it leaves first
                active[waiting.key] = payload
                mixed.popleft()
            else:
                if payloads and size + len(payload) > FRAME_BYTES_TARGET:
                    break
                size += len(payload)
                payloads.append(payload)
                items.append(waiting.item)
                mixed.popleft()
        if not payloads:
            return None
        cost = size + ITEM_BYTES * len(payloads)
        return Frame((b"".join([self._head(self.version, False), *payloads]),), items, cost)
