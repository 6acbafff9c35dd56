"""Host names and numbers: how they are written, which are loopback, what a name stands for.

Decides nothing about the cluster. Called by whatever reads an address from a user, by
`node.zmq_transport` before it binds and by `node.zmq_links` before it dials; libzmq itself would
look names up in its I/O thread and stall every link of the lane meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import socket

from node.errors import SettingsError

_LABEL = re.compile(rb"[A-Za-z0-9_-]{1,63}")
_HOST_NAME_MAX = 253
_PORT = re.compile(r"[0-9]{1,5}")


def parse_address(
    setting: str, text: str, *, port: int | None = None, example: int = 8550
) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, or, when there is a default `port`, the host alone.

    `example` is the port of the example in the error. Raises `SettingsError`, naming `setting`,
    for anything else; no name is looked up.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        wrong = not bracket or ":" not in host
    else:
        host, colon, after = text.partition(":")
        rest, wrong = colon + after, False
    if rest == "" and port is not None:
        number = port
    else:
        wrong = wrong or rest[:1] != ":" or not _PORT.fullmatch(rest[1:])
        number = 65_536 if wrong else int(rest[1:])
    if wrong or number > 65_535 or not is_host(host):
        raise SettingsError(
            f"{setting}={text[:100]!r} is no HOST:PORT: write for example 127.0.0.1:{example}, "
            f"[::1]:{example} or node-1.example:{example}"
        )
    return host, number


def is_host(text: str) -> bool:
    """True for a number of either family, and for what can be a name: labels of 1 to 63."""
    number, percent, zone = text.partition("%")
    if ":" in number:
        return packed_number(number) is not None and bool(zone) is bool(percent)
    try:
        name = text.encode("ascii" if text.isascii() else "idna")
    except UnicodeError:
        return False
    labels = name.removesuffix(b".").split(b".")
    return len(name) <= _HOST_NAME_MAX and all(_LABEL.fullmatch(label) for label in labels)


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


def share_ports(first: str, second: str) -> bool:
    """True when a port of the one host is surely one of the other too; no name is looked up."""
    if is_wildcard(first) or is_wildcard(second):
        return True
    hosts = {"127.0.0.1" if host == "localhost" else host for host in (first, second)}
    return len({packed_number(host) or host for host in hosts}) == 1


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
