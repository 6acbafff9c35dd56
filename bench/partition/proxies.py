"""Proxies between processes, one for each ordered pair of them, that can hold one way back.

Decides what passes between two hosts, and when. A proxy takes and acknowledges the bytes that it
holds back, so that both kernels see a healthy connection: a milder cut than lost packets. Needs the
loopback addresses 127.0.1.*, as Linux has. Called by `bench.partition.command` where namespaces
cannot be made, and by `tests/processes`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Self

from bench.partition.cluster import NO_PROOF

READ_BYTES = 65536


class OneWayProxies:
    """Between `count` hosts, of which each listens on all of its ports at 127.0.0.1.

    `way(source, target)` is the number at which `source` reaches `target`. What passes is late by
    `delay_s`, or by up to twice as much while more comes. Use it as a context manager.
    """

    def __init__(self, ports: list[list[int]], delay_s: float = 0.0) -> None:
        self._ports = ports
        self._delay_s = delay_s
        self._closed: set[tuple[int, int]] = set()
        self._opened = asyncio.Condition()
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._listen())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def way(self, source: int, target: int) -> str:
        """The address for these two."""
        return f"127.0.1.{1 + source * len(self._ports) + target}"

    def cut(self, source: int, target: int) -> None:
        """Hold back every byte that travels from `source` to `target`, on whosever connection."""
        self._closed.add((source, target))

    def heal(self, source: int, target: int) -> None:
        """Let go what was held back, and all that follows."""
        self._call(self._open(source, target))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        count = len(self._ports)
        self._servers = [
            await asyncio.start_server(
                self._between(source, target, port), self.way(source, target), port
            )
            for source in range(count)
            for target in range(count)
            if source != target
            for port in self._ports[target]
        ]

    async def _open(self, source: int, target: int) -> None:
        async with self._opened:
            self._closed.discard((source, target))
            self._opened.notify_all()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next turn

    def _between(self, source: int, target: int, port: int) -> Any:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(
                self._pump(reader, there[1], (source, target)),
                self._pump(there[0], writer, (target, source)),
            )

        return connected

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[int, int]
    ) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                async with self._opened:
                    await self._opened.wait_for(lambda: way not in self._closed)
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise


class ProxyNetwork:
    """The network of a `bench.partition.cluster.Cluster`: all on one machine, each reaching the
    others by proxies, so that the kernel must prove nothing."""

    def __init__(self, ports: list[list[int]], proxies: OneWayProxies) -> None:
        self._ports = ports
        self._proxies = proxies
        self.addresses = [f"127.0.0.1:{control}" for control, _ in ports]

    def command(self, host: int) -> Sequence[str]:
        """A member that dials proxies."""
        ways = {
            port: self._proxies.way(host, other)
            for other, theirs in enumerate(self._ports)
            for port in theirs
            if other != host
        }
        control, data = self._ports[host]
        member = [sys.executable, "-m", "bench.partition.proxied_member", json.dumps(ways)]
        ports = ["--port", str(control), "--data-port", str(data)]
        return [*member, *ports, *NO_PROOF]

    def cut(self, source: int, target: int) -> None:
        """Hold back what goes from one to the other."""
        self._proxies.cut(source, target)

    def heal(self, source: int, target: int) -> None:
        """Let it go."""
        self._proxies.heal(source, target)
