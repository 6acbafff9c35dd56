"""The stores of the leases of a failover bench: how each is started, taken away and looked into.

Decides nothing about rounds. A store that members reach over the network runs on a host of its own
where there are hosts. Called by `bench.failover.command` and `bench.failover.rounds`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol, Self

from bench.etcd import EtcdServer
from bench.gossip.namespaces import Hosts
from bench.ports import free_ports
from node.history import boottime_s

LOOK_S = 0.02
CLIENT_PORT, PEER_PORT = 2379, 2380


class Store(Protocol):
    """What a round needs of it. `host`: on which host of the network it runs; None: on none that
    could be cut off."""

    url: str
    host: int | None

    def expiry_s(self) -> float | None:
        """When the present holder's ttl is over, on the boot clock; None: nobody holds it."""

    def outage(self) -> AbstractContextManager[None]:
        """It takes no write inside of this."""


class SqliteFile:
    """A file of this machine."""

    host: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite://{path}"

    def expiry_s(self) -> float | None:
        """As the record says."""
        with closing(sqlite3.connect(self._path, timeout=10.0)) as connection:
            row = connection.execute(
                "SELECT written_at + ttl_s FROM tenure_leases WHERE holder != ''"
            ).fetchone()
        return None if row is None else float(row[0])

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Locked by another process: `BEGIN EXCLUSIVE`."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=10.0)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            yield
            lock.execute("ROLLBACK")


class EtcdOfOne:
    """A real etcd on loopback, or on the last of `hosts`; a context manager.

    Nothing in its records says when they were written, so it is looked at all the time.
    """

    def __init__(self, folder: Path, hosts: Hosts | None) -> None:
        self._hosts = hosts
        self.host = None if hosts is None else len(hosts.addresses) - 1
        address, (client, peer) = "127.0.0.1", free_ports(2)
        prefix: tuple[str, ...] = ()
        if hosts is not None:
            assert self.host is not None
            address, client, peer = hosts.addresses[self.host], CLIENT_PORT, PEER_PORT
            prefix = hosts.prefix(self.host)
        self.server = EtcdServer(folder, "e0", client, peer, address=address, prefix=prefix)
        self.url = f"etcd://{address}:{client}"
        self._seen: tuple[str, float, dict[str, object]] | None = None  # version, at, record
        self._asked_s = 0.0  # when the look began that was answered last
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.server.start([self.server])
        try:
            with self._inside():
                self.server.wait()
            self._watch.start()
        except BaseException:
            self.server.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        with contextlib.suppress(ProcessLookupError):
            self.server.signal(signal.SIGCONT)
        self.server.kill()
        if self._watch.ident is not None:
            self._watch.join()

    def expiry_s(self) -> float | None:
        """The ttl from when the record was seen first: up to `LOOK_S` and a round trip late."""
        asked_s = boottime_s()
        while self._asked_s < asked_s:  # what was written a moment ago has been seen then
            time.sleep(LOOK_S)
        if self._seen is None:
            return None
        _, at_s, record = self._seen
        ttl_s = record.get("ttl_s")
        held = record.get("holder") and isinstance(ttl_s, int | float)
        return at_s + float(ttl_s) if held and isinstance(ttl_s, int | float) else None

    @contextmanager
    def outage(self) -> Iterator[None]:
        """SIGSTOP, then SIGCONT."""
        self.server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.signal(signal.SIGCONT)

    def _inside(self) -> AbstractContextManager[None]:
        if self._hosts is None or self.host is None:
            return contextlib.nullcontext()
        return self._hosts.inside(self.host)

    def _look(self) -> None:
        with self._inside():
            while not self._ends.wait(LOOK_S):
                with contextlib.suppress(OSError, ValueError):
                    self._read()

    def _read(self) -> None:
        first = base64.b64encode(b"tenure/leases/").decode()
        end = base64.b64encode(b"tenure/leases0").decode()
        query = json.dumps({"key": first, "range_end": end}).encode()
        asked_s = boottime_s()
        request = urllib.request.Request(f"{self.server.url}/v3/kv/range", data=query)
        with urllib.request.urlopen(request, timeout=1.0) as raw:
            found = json.loads(raw.read())
        now_s = boottime_s()
        for each in found.get("kvs", ()):
            version = str(each["mod_revision"])
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, now_s, json.loads(base64.b64decode(each["value"])))
        self._asked_s = asked_s
