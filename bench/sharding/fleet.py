"""The processes of a run: members that host entities, and one customer that only asks.

Decides how they are started, found, ended and waited for; none is left behind. Whom a fault befalls
is decided in `bench.sharding.faults`. Called by that and by `bench.sharding.costs`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from bench.messaging.child import Child, NotMeasuredError
from bench.sharding.histories import Life, lives_of
from node.history import boottime_s

APP = "bench.sharding.member:setup"
ROLE = "host"
SHARDS = 256
LOOK_S = 0.05
READY_S = 60.0
END_S = 30.0
EVEN_S, STILL_S = 0.5, 3.0
"""So long nothing has moved when it is settled: where the spread is even nothing moves any more,
else it takes more than the interval between two rounds."""


class Process:
    """A started member, asked for things over its pipes."""

    def __init__(self, child: Child, name: str, address: str) -> None:
        self.child = child
        self.name = name
        self.address = address

    def ask(self, row: str, within_s: float = READY_S, **order: object) -> dict[str, Any]:
        """Give an order and wait for its answer. Raises `NotMeasuredError`."""
        self.child.tell(row=row, **order)
        return self.child.answer(within_s)

    def shards(self, type_name: str) -> list[int]:
        """The shards that are here, by its own account."""
        here: list[int] = self.ask("state")[type_name]["here"]
        return here

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; the instant just before it."""
        at_s = boottime_s()
        os.kill(self.child.pid, number)
        return at_s


class Fleet:
    """Members in `directory`, of which the first founds and is the seed of all.

    flags: further ones of each member. customer: the first one hosts nothing; else it hosts too.
    """

    def __init__(
        self, directory: Path, type_name: str, *, flags: Sequence[str] = (), customer: bool = True
    ) -> None:
        self.directory = directory
        self.hosts: list[Process] = []
        self.killed: dict[str, float] = {}
        self._type = type_name
        self._flags = list(flags)
        self._role = ROLE if customer else None
        self._all: list[Process] = []
        self._started = 0
        self.first = self._start("customer" if customer else "h0", hosts=not customer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes that were started here."""
        for process in self._all:
            process.child.kill()

    def start_host(self) -> Process:
        """One more that hosts; back once it has asked to."""
        return self._start(f"h{self._started}", hosts=True)

    def _start(self, name: str, *, hosts: bool) -> Process:
        self._started += 1
        command = [sys.executable, "-m", "node", "--app", APP, "--port", "0", "--loop", "uvloop"]
        command += ["--log-level", "warning", "--name", name, *self._flags]
        command += ["--seed", self.first.address] if self._all else ["--found"]
        if hosts and self._role is not None:
            command += ["--role", self._role]
        child = Child(command, self.directory / f"{name}.log")
        process = Process(child, name, "")
        self._all.append(process)
        process.address = child.answer(READY_S)["ready"]["address"]
        order: dict[str, Any] = {"type_name": self._type, "shard_count": SHARDS, "role": self._role}
        if hosts:
            process.ask("host", steps=str(self.directory / f"steps-{name}"), **order)
            self.hosts.append(process)
        else:
            process.ask("proxy", **order)
        return process

    def all_up(self) -> None:
        """Wait until everybody sees everybody who still runs."""
        running = [process for process in self._all if process.child.running]
        for process in running:
            process.ask("up", count=len(running))

    # ends

    def leave(self, host: Process) -> None:
        """It leaves in order; back when its process is over. Raises `NotMeasuredError` when that
        takes too long, or when it says that something went wrong."""
        host.signal(signal.SIGTERM)
        self.hosts.remove(host)
        self._wait_end(host)
        if (code := host.child.exit_code) != 0:
            raise NotMeasuredError(f"failed: {host.name} left with exit code {code}")

    def kill(self, host: Process) -> float:
        """SIGKILL; the instant just before it."""
        at_s = host.signal(signal.SIGKILL)
        self.hosts.remove(host)
        self._wait_end(host)
        self.killed[host.address] = at_s
        return at_s

    def _wait_end(self, host: Process) -> None:
        self.wait(f"{host.name} ends", lambda: not host.child.running, END_S)

    # facts

    def counts(self) -> dict[str, int]:
        """How many shards each host has, by its own account."""
        return {host.address: len(host.shards(self._type)) for host in self.hosts}

    def coordinator(self) -> str | None:
        """Its address, as the first host knows it."""
        address: str | None = self.hosts[0].ask("state")[self._type]["coordinator"]
        return address

    def settle(self, *, shards: int = SHARDS, timeout_s: float = READY_S) -> dict[str, int]:
        """Wait until all these shards are hosted and none has moved for a while; the counts."""
        since_s, last = boottime_s(), self.counts()
        until_s = since_s + timeout_s
        while True:
            is_even = max(last.values()) - min(last.values()) < 2
            still_s = EVEN_S if is_even else STILL_S
            if sum(last.values()) == shards and boottime_s() - since_s >= still_s:
                return last
            if boottime_s() > until_s:
                raise NotMeasuredError(f"failed: the shards did not settle: {last}")
            time.sleep(LOOK_S)
            if (now := self.counts()) != last:
                since_s, last = boottime_s(), now

    def wait(self, what: str, fact: Callable[[], Any], timeout_s: float = READY_S) -> Any:
        """The first true value. Raises `NotMeasuredError`, naming `what`."""
        until_s = boottime_s() + timeout_s
        while not (value := fact()):
            if boottime_s() > until_s:
                raise NotMeasuredError(f"failed: not seen within {timeout_s:g} s: {what}")
            time.sleep(LOOK_S)
        return value

    def lines(self) -> list[str]:
        """Everything the entities wrote, file after file."""
        return [
            line
            for path in sorted(self.directory.glob("steps-*"))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def lives(self) -> dict[str, list[Life]]:
        """What they tell."""
        return lives_of(self.lines())
