"""The doorkeeper asked as libzmq asks it: what it lets in, and that no request is left lying."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq

from node.zmq_auth import ZAP_DOMAIN, ZAP_ENDPOINT, Doorkeeper
from tests.node.zmq_stage import HOST, WAIT_S, on_both_loops
from tests.security.stage import POLL_S

KEY = b"\1" * 32
DOMAIN = ZAP_DOMAIN.encode()


class Asker:
    """A context with a doorkeeper that trusts one key, and a socket that asks it."""

    def __init__(self, socket: zmq.Socket[bytes], asked: list[tuple[bytes, str]]) -> None:
        self._socket = socket
        self.asked = asked

    def ask(self, *request: bytes) -> None:
        """One request, at once."""
        self._socket.send_multipart([b"", *request], zmq.NOBLOCK)

    async def answer(self) -> list[bytes]:
        """The next answer."""
        async with asyncio.timeout(WAIT_S):
            while not self._socket.poll(0):
                await asyncio.sleep(POLL_S)
        return self._socket.recv_multipart()[1:]


@asynccontextmanager
async def asker() -> AsyncIterator[Asker]:
    """One, closed at the end."""
    asked: list[tuple[bytes, str]] = []

    def is_trusted(key: bytes, host: str) -> bool:
        asked.append((key, host))
        return key == KEY

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doorkeeper = Doorkeeper(context, asyncio.get_running_loop(), is_trusted)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(ZAP_ENDPOINT)
    try:
        yield Asker(socket, asked)
    finally:
        socket.close()
        doorkeeper.close()
        doorkeeper.close()
        context.term()


@on_both_loops
async def test_only_a_trusted_key_is_let_in() -> None:
    """200 with the key in hex for a trusted one, 400 for any other; both echo the request's id."""
    async with asker() as client:
        client.ask(b"1.0", b"7", DOMAIN, HOST.encode(), b"", b"CURVE", KEY)
        assert await client.answer() == [b"1.0", b"7", b"200", b"", KEY.hex().encode(), b""]
        client.ask(b"1.0", b"8", DOMAIN, HOST.encode(), b"", b"CURVE", b"\2" * 32)
        assert (await client.answer())[:3] == [b"1.0", b"8", b"400"]
        assert client.asked == [(KEY, HOST), (b"\2" * 32, HOST)]


@pytest.mark.parametrize(
    "request_parts",
    [
        [b"1.0"],
        [b"1.0", b"1", DOMAIN, HOST.encode(), b"", b"NULL"],
        [b"1.0", b"1", DOMAIN, HOST.encode(), b"", b"NULL", KEY],
        [b"1.0", b"1", DOMAIN, HOST.encode(), b"", b"PLAIN", b"user", b"password"],
        [b"2.0", b"1", DOMAIN, HOST.encode(), b"", b"CURVE", KEY],
        [b"1.0", b"1", DOMAIN, HOST.encode(), b"", b"CURVE", KEY[:31]],
        [b"1.0", b"1", DOMAIN, HOST.encode(), b"", b"CURVE", KEY, b""],
    ],
)
@on_both_loops
async def test_anything_else_is_turned_away(request_parts: list[bytes]) -> None:
    """Other mechanisms, other versions, half a key: 400, and nobody's key is looked at."""
    async with asker() as client:
        client.ask(*request_parts)
        assert (await client.answer())[2] == b"400"
        assert client.asked == []


@on_both_loops
async def test_every_request_is_answered_however_many_wait() -> None:
    """The descriptor tells of requests once; those beyond what one turn answers are not lost."""
    async with asker() as client:
        numbers = [b"%d" % number for number in range(500)]
        for number in numbers:
            client.ask(b"1.0", number, DOMAIN, HOST.encode(), b"", b"CURVE", KEY)
        assert [(await client.answer())[1] for _ in numbers] == numbers
