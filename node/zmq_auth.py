"""The doorkeeper of one ZeroMQ context: says which client keys may connect (ZAP, RFC 27).

Decides nothing but the form of the answer: whether a key is trusted is asked of `is_trusted`.
Made by `node.zmq_transport`, one per lane, before the lane binds.

libzmq asks between the proof of the client's secret key and the first frame, and holds the
connection until it is answered. It is answered on the event loop, not in a thread: a node whose
loop stands still could not handle a frame either, and its peers dial again (`handshake_s`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "tenure"

_VERSION = b"1.0"
_MECHANISM = b"CURVE"
_KEY_BYTES = 32
_REQUESTS_PER_TURN_MAX = 64


class Doorkeeper:
    """Answers the handshakes of all CURVE listeners of a context.

    `is_trusted(key, host)`: the client's public key (32 bytes, and it has proven to have the
    secret one) and the number it connects from. A key that is not trusted is answered 400: libzmq
    ends the connection before it reads a frame, and the client learns why. The key of a trusted
    one travels with each of its frames as "User-Id", in hex.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        is_trusted: Callable[[bytes, str], bool],
    ) -> None:
        self._loop = loop
        self._is_trusted = is_trusted
        self._scheduled = False
        self._socket: zmq.Socket[bytes] | None = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, self._answer)
        # The descriptor is edge-triggered: a request before add_reader would never be told.
        self._schedule()

    def close(self) -> None:
        """Answer no more; a handshake that waits fails. Idempotent. Listeners close first."""
        if self._socket is not None:
            self._loop.remove_reader(self._descriptor)
            self._socket.close(0)
            self._socket = None

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._answer_again)

    def _answer_again(self) -> None:
        self._scheduled = False
        self._answer()

    def _answer(self) -> None:
        for _ in range(_REQUESTS_PER_TURN_MAX):
            if self._socket is None:
                return
            try:
                request = self._socket.recv_multipart(zmq.NOBLOCK)
                self._socket.send_multipart(self._reply(request), zmq.NOBLOCK)
            except zmq.Again:
                return
        self._schedule()

    def _reply(self, request: list[bytes]) -> list[bytes]:
        """The answer to one request; libzmq drops one whose asker has gone meanwhile."""
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != 7 or request[0] != _VERSION or request[5] != _MECHANISM:
            return [_VERSION, request_id, b"400", b"only CURVE is spoken here", b"", b""]
        host, key = request[3].decode("ascii", "replace"), request[6]
        if len(key) != _KEY_BYTES or not self._is_trusted(key, host):
            return [_VERSION, request_id, b"400", b"key not trusted", b"", b""]
        return [_VERSION, request_id, b"200", b"", key.hex().encode(), b""]
