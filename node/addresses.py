"""Host names and numbers: which are loopback, which are wildcards, what a name stands for.

Decides nothing about the cluster. Called by `node.zmq_transport` before it binds and by
`node.zmq_links` before it dials; libzmq itself would look names up in its I/O thread and stall
every link of the lane meanwhile.
"""

from __future__ import annotations

import asyncio
import socket


def without_brackets(host: str) -> str:
    """`[::1]` → `::1`; everything else as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def packed_number(host: str) -> bytes | None:
    """The 4 or 16 bytes of a numeric address (brackets allowed), or None for a name."""
    bare = without_brackets(host)
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, bare)
        except (OSError, ValueError):
            continue
    return None


def is_wildcard(host: str) -> bool:
    """True for what means "every interface" and is nobody's address."""
    packed = packed_number(host)
    return without_brackets(host) in ("", "*") or (packed is not None and not any(packed))


def is_loopback(number: str) -> bool:
    """True when a numeric address never leaves this host."""
    packed = packed_number(number)
    if packed is None:
        return False
    return packed[0] == 127 if len(packed) == 4 else packed == b"\0" * 15 + b"\1"


def endpoint(number: str, port: int) -> str:
    """The ZeroMQ endpoint of a numeric address."""
    return f"tcp://[{number}]:{port}" if ":" in number else f"tcp://{number}:{port}"


async def resolve(host: str) -> list[str]:
    """The numeric addresses of `host`, IPv4 before IPv6; a number is itself, `[]` = unknown.

    Names are looked up in a thread of the running loop. Never raises for a name that does not
    resolve.
    """
    if packed_number(host) is not None:
        return [without_brackets(host)]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(without_brackets(host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    numbers = {str(address[0]): family for family, _, _, _, address in found}
    return sorted(numbers, key=lambda number: numbers[number] is not socket.AF_INET)
