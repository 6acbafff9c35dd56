"""Real etcd servers on loopback, one or three, for tests and benches; ended by pid.

The program comes from the distribution's package `etcd-server`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bench.ports import free_ports

READY_S = 30.0


class EtcdServer:
    """One member of an etcd cluster; `prefix` goes before its command where it runs on another
    host, whose `address` it listens on."""

    def __init__(
        self,
        folder: Path,
        name: str,
        client_port: int,
        peer_port: int,
        *,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.client_port = client_port
        self.url = f"http://{address}:{client_port}"
        self.peer_url = f"http://{address}:{peer_port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._prefix = prefix
        self._folder = folder / name
        self._log = folder / f"{name}.log"

    def start(self, cluster: Sequence[EtcdServer], options: Sequence[str] = ()) -> None:
        """Start it, without waiting. What it has stored before is there again."""
        peers = ",".join(f"{each.name}={each.peer_url}" for each in cluster)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._prefix,
                    program(),
                    *("--name", self.name),
                    *("--data-dir", str(self._folder)),
                    *("--listen-client-urls", self.url),
                    *("--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self.peer_url),
                    *("--initial-advertise-peer-urls", self.peer_url),
                    *("--initial-cluster", peers),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, also when it is stopped."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def healthy(self) -> bool:
        """It answers, and has a leader."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1.0) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def wait(self) -> None:
        """Until it answers."""
        give_up_at = time.monotonic() + READY_S
        while not self.healthy:
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > give_up_at:
                raise RuntimeError(f"etcd {self.name} does not answer: {self.end_of_log()}")
            time.sleep(0.05)

    def end_of_log(self) -> str:
        """For the message of a failure."""
        return self._log.read_text("utf-8", "replace")[-2000:]


class EtcdCluster:
    """`size` members in `folder`. Used as a context, or with `start` and `stop`."""

    def __init__(self, folder: Path, size: int = 1, options: Sequence[str] = ()) -> None:
        ports = free_ports(2 * size)
        self.servers = [
            EtcdServer(folder, f"e{index}", ports[2 * index], ports[2 * index + 1])
            for index in range(size)
        ]
        self._options = options

    def start(self) -> EtcdCluster:
        """Start all; returns when all answer."""
        for server in self.servers:
            server.start(self.servers, self._options)
        for server in self.servers:
            server.wait()
        return self

    def restart(self) -> None:
        """Kill all and start them again, with what they have stored."""
        for server in self.servers:
            server.kill()
        self.start()

    def start_one(self, server: EtcdServer) -> None:
        """Start one that was killed, without waiting."""
        server.start(self.servers, self._options)

    def leader(self) -> EtcdServer:
        """The one that leads now."""
        for server in self.servers:
            request = urllib.request.Request(
                f"{server.url}/v3/maintenance/status", data=b"{}", method="POST"
            )
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2.0) as raw:
                status = json.loads(raw.read())
                if status["leader"] == status["header"]["member_id"]:
                    return server
        raise RuntimeError("no member of the etcd cluster leads")

    def stop(self) -> None:
        """End all, by pid."""
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                if server.process is not None:
                    os.kill(server.process.pid, signal.SIGCONT)
            server.kill()

    @property
    def store_url(self) -> str:
        """For `lease.from_url`."""
        return "etcd://" + ",".join(f"127.0.0.1:{each.client_port}" for each in self.servers)

    def __enter__(self) -> EtcdCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def program() -> str:
    """Path of etcd. Raises RuntimeError, with the mend, when there is none."""
    found = shutil.which("etcd")
    if found is None:
        raise RuntimeError("there is no etcd: apt-get install etcd-server, or `make test-etcd`")
    return found
