"""The event stream of one ZeroMQ socket, read on the event loop.

Decides nothing; hands events to its owner (`node.zmq_links`, `node.zmq_listener`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import zmq

_EVENT = struct.Struct("=Hi")
_EVENTS_PER_TURN_MAX = 256


class SocketMonitor:
    """Calls `on_event(event, value)` for each event of `socket` in the mask `events`.

    Must be made before the socket binds or connects, and closed before the socket is closed:
    libzmq's I/O thread blocks for ever when it reports to a monitor whose reader went away.
    `name` must be unique among the living monitors of `context`.
    """

    __slots__ = ("_descriptor", "_loop", "_on_event", "_reader", "_scheduled", "_watched")

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        loop: asyncio.AbstractEventLoop,
        *,
        name: str,
        events: int,
        on_event: Callable[[int, int], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._watched: zmq.Socket[bytes] | None = socket
        self._scheduled = False
        address = f"inproc://{name}"
        self._reader = context.socket(zmq.PAIR)
        try:
            # No mark at which the I/O thread would have to wait for us.
            self._reader.setsockopt(zmq.RCVHWM, 0)
            self._reader.setsockopt(zmq.LINGER, 0)
            socket.monitor(address, events)
            self._reader.connect(address)
        except zmq.ZMQError:
            socket.monitor(None, 0)
            self._reader.close()
            raise
        self._descriptor = int(self._reader.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, self._read)
        # The descriptor is edge-triggered: an event before add_reader would never be told.
        self._schedule()

    def close(self) -> None:
        """Stop; no event is handed out any more. Idempotent."""
        if self._watched is None:
            return
        self._loop.remove_reader(self._descriptor)
        self._watched.monitor(None, 0)
        self._watched = None
        self._reader.close()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._scheduled = False
        self._read()

    def _read(self) -> None:
        drained = False
        try:
            drained = self._read_events()
        finally:
            if not drained:  # the budget ran out, or an owner raised: the edge is spent, go on
                self._schedule()

    def _read_events(self) -> bool:
        for _ in range(_EVENTS_PER_TURN_MAX):
            if self._watched is None:
                return True
            try:
                packed = self._reader.recv(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._reader.recv(zmq.NOBLOCK)  # the endpoint
            event, value = _EVENT.unpack(packed)
            self._on_event(event, value)
        return False
