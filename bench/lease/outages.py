"""Making a store unreachable for a while, as the network or another process would.

Decides how: an SQLite file is locked by a transaction, a server is put behind a proxy that can hold
everything back. Called by `bench.lease.command`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

READ_BYTES = 65536


class NotPossibleError(Exception):
    """There is no way to do it to this store from here."""


class Outage(Protocol):
    """`url` is what a process is given; between `begin` and `end` it does not answer."""

    url: str

    def begin(self) -> None:
        """From now on nothing is answered."""

    def end(self) -> None:
        """And again it is."""

    def close(self) -> None:
        """Give everything back."""


class LockedFile:
    """`BEGIN EXCLUSIVE`, as of another process that stopped within a transaction."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def begin(self) -> None:
        """Lock it."""
        self._connection = sqlite3.connect(self._path, timeout=10.0, isolation_level=None)
        self._connection.execute("BEGIN EXCLUSIVE")

    def end(self) -> None:
        """Give it free."""
        if self._connection is not None:
            self._connection.execute("ROLLBACK")
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Give it free."""
        self.end()


class Proxies:
    """One in front of each server; while it holds back, connections stay open and nothing moves."""

    def __init__(self, url: str, places: list[tuple[str, int]], rewrite: Rewrite) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._open = True
        self._opened = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        ports = [self._do(self._listen(host, port)) for host, port in places]
        self.url = rewrite(url, ports)

    def begin(self) -> None:
        """Hold everything back."""
        self._open = False

    def end(self) -> None:
        """Let it pass."""
        self._do(self._let_pass())

    def close(self) -> None:
        """End all connections."""
        self._do(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _let_pass(self) -> None:
        self._open = True
        async with self._opened:
            self._opened.notify_all()

    async def _end_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next turn

    async def _listen(self, host: str, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                there, here = await asyncio.open_connection(host, port)
            except OSError:
                writer.close()
                return
            finally:
                self._tasks.discard(task)
            for source, target in ((reader, here), (there, writer)):
                pump = asyncio.create_task(self._pump(source, target))
                self._tasks.add(pump)
                pump.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(READ_BYTES):
                while not self._open:
                    async with self._opened:
                        await self._opened.wait()
                target.write(data)
                await target.drain()
            target.close()
        except OSError:
            target.close()
        except asyncio.CancelledError:
            target.transport.abort()
            raise


Rewrite = Callable[[str, list[int]], str]


def outage_of(url: str) -> Outage:
    """The way to do it to this store. Raises NotPossibleError, saying why not."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from lease import SqliteStore, from_url

        store = from_url(url)
        assert isinstance(store, SqliteStore)
        return LockedFile(url, store.path)
    if scheme == "etcd":
        hosts = url.removeprefix("etcd://").partition("?")[0].rpartition("@")[2].split(",")
        places = [_place(f"//{host}") for host in hosts]

        def rewrite(url: str, ports: list[int]) -> str:
            for host, port in zip(hosts, ports, strict=True):
                url = url.replace(host, f"127.0.0.1:{port}", 1)
            return url

        return Proxies(url, places, rewrite)
    if scheme == "kubernetes" and "server=" in url:
        server = url.partition("server=")[2].partition("&")[0]
        host, port = _place(server)
        if host not in ("127.0.0.1", "localhost"):
            raise NotPossibleError(f"the certificate of {host} is none of a proxy's")
        return Proxies(
            url,
            [(host, port)],
            lambda url, ports: url.replace(server, f"https://{host}:{ports[0]}"),
        )
    raise NotPossibleError(f"there is no way to cut {scheme} off from here")


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise NotPossibleError(f"{url} names no host and port")
    return parts.hostname, parts.port
