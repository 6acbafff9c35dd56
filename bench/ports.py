"""Ports that nothing listens on now."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """So many different ports on loopback. Somebody else may take one before it is used."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
