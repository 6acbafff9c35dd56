"""The limits of the parts below: plain pyzmq sockets between two processes on loopback.

Decides what "raw" means for each row, with the same names as the rows of `driver`. Nothing here
knows who sent a message or puts two into one frame; there is no codec and no order to keep.
`python -m bench.messaging.raw ROW SECONDS` starts its receiver, measures and prints one object.

ask1, ask64: a DEALER and an echoing ROUTER of 100 bytes, both read through their descriptors
under uvloop, with `recv_multipart`; the same `_tuned`, part by part. tell_100: DEALER to ROUTER,
one frame a message, blocking calls. The larger rows: PUSH to PULL, copied on both sides. A
receiver that counts otherwise than the sender makes the row void.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

import uvloop
import zmq

from bench.messaging.driver import (
    ROWS,
    WARM_ASKS,
    AskRow,
    Figures,
    RefusedError,
    TellRow,
    latency,
    shown,
)
from bench.messaging.session import say
from bench.processes import ROOT

ECHO_BYTES = 100
HIGH_WATER_MARK = 1000
WAITING_BYTES_MAX = 64 * 1024 * 1024
END_TIMEOUT_S = 30.0
TUNED = {"ask1_tuned": ROWS["ask1"], "ask64_tuned": ROWS["ask64"]}
RAW_ROWS = {
    name: ROWS[name] for name in ("ask1", "ask64", "tell_100", "tell_1k", "tell_64k", "tell_1m")
} | TUNED

Socket = zmq.Socket[bytes]


class Echoes:
    """A socket read through its descriptor, which is edge triggered: always to EAGAIN.

    `tuned` takes and gives messages part by part, knowing how many there are: twice as fast with
    many under way, and not what a user of pyzmq writes first.
    """

    def __init__(
        self,
        socket: Socket,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes]], None],
        *,
        tuned: bool,
    ) -> None:
        self._receive = _by_part(socket) if tuned else socket.recv_multipart
        self._received = received
        loop.add_reader(int(socket.getsockopt(zmq.FD)), self.drain)
        loop.call_soon(self.drain)

    def drain(self) -> None:
        """Take all there is. What is sent meanwhile eats no edge: the last look is a receive."""
        receive, received = self._receive, self._received
        try:
            while True:
                received(receive(zmq.NOBLOCK))
        except zmq.Again:
            return


def _by_part(socket: Socket) -> Callable[[int], list[bytes]]:
    receive = socket.recv
    if socket.socket_type == zmq.DEALER:
        return lambda flags: [receive(flags)]
    return lambda flags: [receive(flags), receive(flags)]


async def serve_echo(*, tuned: bool) -> None:
    """Echo until killed."""
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def echo(parts: list[bytes]) -> None:
        socket.send_multipart(parts, zmq.NOBLOCK)

    def echo_by_part(parts: list[bytes]) -> None:
        socket.send(parts[0], zmq.NOBLOCK | zmq.SNDMORE)
        socket.send(parts[1], zmq.NOBLOCK)

    received = echo_by_part if tuned else echo
    Echoes(socket, asyncio.get_running_loop(), received, tuned=tuned)
    say(port=port)
    await asyncio.Event().wait()


async def ask(port: int, outstanding: int, for_s: float, *, tuned: bool) -> Figures:
    """Round trips with so many under way; each answer sends the next request at once."""
    loop = asyncio.get_running_loop()
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    message = b"x" * ECHO_BYTES
    begun: deque[float] = deque()
    spans_s: list[float] = []
    done: asyncio.Future[None] = loop.create_future()
    end_at = 0.0

    def send() -> None:
        begun.append(perf_counter())
        socket.send(message, zmq.NOBLOCK)

    def answered(answer: list[bytes]) -> None:
        now = perf_counter()
        spans_s.append(now - begun.popleft())
        if answer != [message]:
            done.set_exception(RefusedError("an echo is not what was sent"))
        elif now < end_at or (not end_at and len(spans_s) < WARM_ASKS):
            send()
        elif not begun:
            done.set_result(None)

    Echoes(socket, loop, answered, tuned=tuned)
    send()
    await done
    spans_s.clear()
    done = loop.create_future()
    begun_at = perf_counter()
    end_at = begun_at + for_s
    for _ in range(outstanding):
        send()
    await done
    elapsed_s = perf_counter() - begun_at
    count = len(spans_s)
    return {"n": count, "per_s": count / elapsed_s, **latency(spans_s)}


def _one_way(kind: int, size_bytes: int) -> Socket:
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(kind)
    # As many as ZeroMQ holds by default, unless those would be gigabytes.
    mark = max(1, min(HIGH_WATER_MARK, WAITING_BYTES_MAX // size_bytes))
    socket.setsockopt(zmq.SNDHWM, mark)
    socket.setsockopt(zmq.RCVHWM, mark)
    return socket


def serve_tell(row: TellRow) -> None:
    """Count until the empty message comes; prints count and seconds since the first."""
    is_router = row.size_bytes == ECHO_BYTES
    socket = _one_way(zmq.ROUTER if is_router else zmq.PULL, row.size_bytes)
    say(port=socket.bind_to_random_port("tcp://127.0.0.1"))
    count = size_bytes = 0
    begun_at = 0.0
    while True:
        data = socket.recv_multipart()[1] if is_router else socket.recv()
        if not begun_at:
            begun_at = perf_counter()
        if not data:
            break
        count += 1
        size_bytes += len(data)
    say(count=count, size_bytes=size_bytes, elapsed_s=perf_counter() - begun_at)


def tell(port: int, row: TellRow, for_s: float) -> int:
    """Send for so long, then the empty message; the count."""
    kind = zmq.DEALER if row.size_bytes == ECHO_BYTES else zmq.PUSH
    socket = _one_way(kind, row.size_bytes)
    socket.connect(f"tcp://127.0.0.1:{port}")
    data = b"x" * row.size_bytes
    send = socket.send
    count = 0
    end_at = perf_counter() + for_s
    while perf_counter() < end_at:
        for _ in range(row.window):
            send(data)
        count += row.window
    send(b"")
    return count


def measure(name: str, for_s: float) -> Figures:
    """A row, with a receiver of its own. Raises `RefusedError` when it counted otherwise."""
    row = RAW_ROWS[name]
    receiver = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, name, "--receive"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    try:
        port = json.loads(receiver.stdout.readline())["port"]
        if isinstance(row, AskRow):
            return _run(ask(port, row.outstanding, for_s, tuned=name in TUNED))
        sent = tell(port, row, for_s)
        seen = json.loads(receiver.communicate(timeout=END_TIMEOUT_S)[0])
    finally:
        receiver.kill()
        receiver.wait()
    if (seen["count"], seen["size_bytes"]) != (sent, sent * row.size_bytes):
        raise RefusedError(f"the receiver counted {seen['count']} messages of {sent}")
    per_s = sent / seen["elapsed_s"]
    return {"n": sent, "per_s": per_s, "mb_per_s": per_s * row.size_bytes / 1e6}


def _run(work: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    """Measure a row, or be its receiver."""
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=RAW_ROWS)
    parser.add_argument("for_s", type=float, nargs="?", default=1.0)
    parser.add_argument("--receive", action="store_true")
    arguments = parser.parse_args()
    row = RAW_ROWS[arguments.row]
    if not arguments.receive:
        try:
            say(**shown(measure(arguments.row, arguments.for_s)))
        except RefusedError as refusal:
            say(refused=str(refusal))
    elif isinstance(row, TellRow):
        serve_tell(row)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_echo(tuned=arguments.row in TUNED))


if __name__ == "__main__":
    main()
