"""A member that reaches the others by proxies alone.

`python -m bench.partition.proxied_member WAYS [flags of python -m node]`: every dial to a port in
WAYS (JSON) goes to the proxy there; nothing else of it differs from `python -m node`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

from node import addresses, cli, zmq_links


def _go_by(ways: dict[int, str]) -> None:
    """Bare dials and those of ZeroMQ go by these ways from now on."""

    def endpoint(number: str, port: int) -> str:
        return addresses.endpoint(ways.get(port, number), port)

    usual = cli.loop_factory

    def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
        one = usual(name)()
        kind: type[Any] = type(one)
        one.close()

        class Loop(kind):  # type: ignore[misc]
            async def sock_connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
                number, port = address
                await super().sock_connect(sock, (ways.get(port, number), port))

        return Loop

    vars(zmq_links)["endpoint"] = endpoint
    vars(cli)["loop_factory"] = loop_factory


if __name__ == "__main__":
    _go_by({int(port): number for port, number in json.loads(sys.argv[1]).items()})
    sys.exit(cli.main(sys.argv[2:]))
