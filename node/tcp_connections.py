"""What can be done from outside to a TCP connection that libzmq accepted and holds.

Decides nothing; libzmq itself has no call to end one connection of a bound socket, nor one that
tells how far its handshake is. Called by `node.zmq_listener`.

A descriptor may be closed, and its number another's, before we hear of it. So it is pinned by a
duplicate and looked at first: what is not the very connection that was meant is never touched.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import NamedTuple

# struct tcp_info of Linux: tcpi_bytes_received, 64 bits.
_RECEIVED_AT = 128
_INFO_BYTES = _RECEIVED_AT + 8


class TcpConnection(NamedTuple):
    """An accepted connection: its descriptor, the port it came to, `host:port` it came from."""

    descriptor: int
    local_port: int
    peer: str


def identify(descriptor: int, local_port: int) -> TcpConnection | None:
    """The connection to `local_port` that has this descriptor now; None when it is another's."""
    with _pinned(descriptor) as found:
        if found is None:
            return None
        tcp = _describe(found, descriptor)
        return tcp if tcp is not None and tcp.local_port == local_port else None


def hang_up(tcp: TcpConnection) -> bool:
    """End a connection; to libzmq it is as if the peer had ended it. False when it is gone."""
    with _pinned(tcp.descriptor) as found:
        if found is None or _describe(found, tcp.descriptor) != tcp:
            return False
        with contextlib.suppress(OSError):  # the peer was quicker
            found.shutdown(socket.SHUT_RDWR)
        return True


def bytes_received(tcp: TcpConnection) -> int | None:
    """How many bytes have come on a connection; None when it is gone, and where the system does
    not tell (only Linux does)."""
    if sys.platform != "linux":
        return None
    with _pinned(tcp.descriptor) as found:
        if found is None or _describe(found, tcp.descriptor) != tcp:
            return None
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return None
        if len(info) < _INFO_BYTES:
            return None
        return int.from_bytes(info[_RECEIVED_AT:_INFO_BYTES], sys.byteorder)


@contextlib.contextmanager
def _pinned(descriptor: int) -> Iterator[socket.socket | None]:
    """The socket under a descriptor of its own, closed at the end; None when it is no socket."""
    found = None
    with contextlib.suppress(OSError):
        duplicate = os.dup(descriptor)
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
    if found is None:
        yield None
    else:
        with found:
            yield found


def _describe(found: socket.socket, descriptor: int) -> TcpConnection | None:
    """None for a socket that is no connection: a listener has no peer."""
    try:
        local, peer = found.getsockname(), found.getpeername()
        host, port = peer[:2]
        return TcpConnection(descriptor, local[1], f"{host}:{port}")
    except (OSError, ValueError, IndexError, TypeError):
        return None
