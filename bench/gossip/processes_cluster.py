"""A cluster of real processes of one side, and what its members saw.

Decides how a side's members are started, told to go and ended, and what "settled" means: every
running member sees every running one, all up, and suspects nobody. Does not decide what is
measured. Every instant is CLOCK_BOOTTIME, as the observing member wrote it. Called by
`bench.gossip.processes_experiments` and `tests/processes`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.gossip.peers.facts import BLOCK_S, BULK_TO, FACTS, GO, boottime_s
from bench.processes import Members, NotSeenError, spawn

MEMBER_APP = "bench.gossip.peers.member:setup"
START_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 90.0
POLL_S = 0.01
ENDED_POLL_S = 0.5
GONE = frozenset({"unreachable", "down", "removed"})
"""What an observer writes when it holds a member gone, or reachable by nobody it asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is measured: our members (`command` None), or a peer's.

    `prefix` goes before the names of its metrics, `text` says in a note what it is; `arguments`
    are further flags of our members.
    """

    name: str
    prefix: str = ""
    text: str = ""
    command: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    loop: str = "uvloop"

    @property
    def python(self) -> str:
        """The interpreter of its members."""
        return self.command[0] if self.command is not None else sys.executable

    def member_command(self, port: int, seed: int) -> list[str]:
        """The command of one member."""
        if self.command is not None:
            return [*self.command, str(port), str(seed)]
        own = [sys.executable, "-m", "node", "--port", str(port), "--seed", f"127.0.0.1:{seed}"]
        # A log line per member and fact would be measured too; the peer writes none.
        more = ["--app", MEMBER_APP, "--loop", self.loop, "--log-level", "warning"]
        return [*own, *more, *self.arguments]


class Fact(NamedTuple):
    """One line of the facts file; see `bench.gossip.peers.facts`. `run` tells the processes apart
    that were at the address `who` one after the other."""

    at_s: float
    observer: str
    event: str
    who: str
    run: str
    detail: str


@dataclass(eq=False)
class Seen:
    """What one process holds at present; each set has (address, run)."""

    size: int = 0
    up: set[tuple[str, str]] = field(default_factory=set)
    suspects: set[tuple[str, str]] = field(default_factory=set)
    unreachable: set[tuple[str, str]] = field(default_factory=set)


@dataclass(eq=False)
class Started:
    """A process of the cluster. `address` is the member's, `log` what it printed."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path
    told_to_end: bool = False

    @property
    def running(self) -> bool:
        """True until it ended."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; the instant just before it."""
        self.told_to_end |= number in (signal.SIGKILL, signal.SIGTERM)
        at_s = boottime_s()
        self.process.send_signal(number)
        return at_s


class Cluster:
    """`count` members of a side in `directory`; all are ended on the way out, by pid."""

    def __init__(self, side: Side, directory: Path, count: int, *, block_s: float = 3.0) -> None:
        self.side = side
        self.directory = directory
        self.members: dict[str, Started] = {}
        self.ports = sorted(Members(directory).free_ports(count))
        self.facts: list[Fact] = []
        self.seen: dict[str, Seen] = {}
        self._facts_path = directory / "facts"
        self._facts_path.touch()
        self._read_bytes = 0
        self._processes: list[Started] = []
        fifo = directory / "go"
        os.mkfifo(fifo)
        # Also open for reading, by which the opening does not wait for a reader.
        self._held: int | None = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
        self.block_s = block_s
        self._environment = {
            FACTS: str(self._facts_path),
            GO: str(fifo),
            BLOCK_S: f"{block_s:g}",
            BULK_TO: self.bulk_target,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # processes

    @property
    def seed(self) -> str:
        """The address that all are given; the lowest of them."""
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def bulk_target(self) -> str:
        """The member that gets the bulk which SIGUSR2 makes another one of ours send."""
        return f"127.0.0.1:{self.ports[-1]}"

    @property
    def running(self) -> list[Started]:
        """The members that have not ended."""
        return [member for member in self.members.values() if member.running]

    def start(self) -> None:
        """Start all members and wait until each listens and waits for the word."""
        for port in self.ports:
            self.start_one(f"127.0.0.1:{port}")
        self.wait_ready(self.members)

    def start_one(self, address: str) -> Started:
        """Start the process of an address, a new one if there was one before."""
        port = int(address.rpartition(":")[2])
        log = self.directory / f"{port}.log"
        command = self.side.member_command(port, self.ports[0])
        self.seen.pop(address, None)
        process = spawn(command, log, **self._environment)
        member = self.members[address] = Started(address, process, log)
        self._processes.append(member)
        return member

    def wait_ready(self, addresses: Iterable[str], after_s: float = 0.0) -> None:
        """Until these wrote, after `after_s`, that they listen."""
        wanted = set(addresses)

        def ready() -> bool:
            found = {
                fact.observer
                for fact in self.facts
                if fact.event == "ready" and fact.at_s > after_s
            }
            return wanted <= found

        self.wait(f"{len(wanted)} members listen", ready, START_TIMEOUT_S)

    def go(self) -> float:
        """Tell all that are ready; the instant just before. Who starts later goes at once."""
        assert self._held is not None
        at_s = boottime_s()
        os.close(self._held)
        self._held = None
        return at_s

    def close(self) -> None:
        """Kill what still runs of the processes started here, and reap it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        for member in self._processes:
            if member.running:
                member.process.kill()
        for member in self._processes:
            member.process.wait()

    # facts

    def read(self) -> None:
        """Take in what was written since the last time."""
        with self._facts_path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode().splitlines():
            at_s, observer, event, process, detail = line.split(" ")
            who, _, run = process.partition("#")
            fact = Fact(float(at_s), observer, event, who, run, detail)
            self.facts.append(fact)
            self._note(fact)

    def _note(self, fact: Fact) -> None:
        seen = self.seen.setdefault(fact.observer, Seen())
        who = (fact.who, fact.run)
        match fact.event:
            case "ready":
                self.seen[fact.observer] = Seen()
            case "size":
                seen.size = int(fact.detail)
            case "up":
                seen.up.add(who)
            case "suspect":
                seen.suspects.add(who)
            case "recovered":
                seen.suspects.discard(who)
            case "unreachable":
                seen.unreachable.add(who)
                seen.suspects.discard(who)
            case "reachable":
                seen.unreachable.discard(who)
            case "down" | "removed":
                for group in (seen.up, seen.suspects, seen.unreachable):
                    group.discard(who)

    def mark(self) -> int:
        """A place in `facts`; what is read later comes after it."""
        self.read()
        return len(self.facts)

    def after(self, mark: int, events: Iterable[str], *, who: str | None = None) -> list[Fact]:
        """The facts after a mark, of these events, about one member if it is named."""
        wanted = frozenset(events)
        return [
            fact for fact in self.facts[mark:] if fact.event in wanted and who in (None, fact.who)
        ]

    def first_by_observer(
        self, mark: int, events: Iterable[str], who: str, observers: Sequence[str]
    ) -> dict[str, float]:
        """When each of `observers` first wrote one of these events about `who`, after a mark."""
        first: dict[str, float] = {}
        for fact in self.after(mark, events, who=who):
            if fact.observer in observers:
                first.setdefault(fact.observer, fact.at_s)
        return first

    # waiting

    def wait(self, what: str, fact: Callable[[], Any], timeout_s: float) -> Any:
        """The first true value of `fact()`, asked after each reading. Raises `NotSeenError`."""
        begun_s = looked_s = time.monotonic()
        while True:
            self.read()
            if value := fact():
                return value
            now_s = time.monotonic()
            if now_s - looked_s > ENDED_POLL_S:
                looked_s = now_s
                ended = [one.address for one in self._processes if _ended_by_itself(one)]
                if ended:
                    raise NotSeenError(f"{', '.join(ended)} ended by itself\n{self.logs()}")
            if now_s - begun_s > timeout_s:
                raise NotSeenError(f"not seen within {timeout_s:g} s: {what}\n{self.logs()}")
            time.sleep(POLL_S)

    def wait_all(
        self,
        mark: int,
        events: Iterable[str],
        who: str,
        observers: Sequence[str],
        timeout_s: float,
    ) -> dict[str, float]:
        """`first_by_observer`, once it holds all of them. Raises `NotSeenError`."""
        wanted = frozenset(events)

        def seen_by_all() -> dict[str, float] | None:
            first = self.first_by_observer(mark, wanted, who, observers)
            return first if len(first) == len(observers) else None

        what = f"{'/'.join(sorted(wanted))} of {who} at all {len(observers)} others"
        found: dict[str, float] = self.wait(what, seen_by_all, timeout_s)
        return found

    def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until all running members see each other, up and suspected by nobody."""
        self.wait("the cluster settles", self._is_settled, timeout_s)

    def _is_settled(self) -> bool:
        # Who ended by itself counts too, so that `wait` gives up.
        running = {one.address for one in self.members.values() if not one.told_to_end}
        return all(
            (seen := self.seen.get(address)) is not None
            and seen.size == len(running)
            and {who for who, _ in seen.up} == running
            and not seen.suspects
            and not seen.unreachable
            for address in running
        )

    def others(self, *but: str) -> list[str]:
        """The addresses of the running members except these."""
        return [member.address for member in self.running if member.address not in but]

    def logs(self) -> str:
        """Who ended, and the last lines of what was printed, for a failure's text."""
        lines = []
        for member in self._processes:
            text = member.log.read_text(errors="replace").splitlines()[-5:]
            if text or not member.running:
                lines.append(f"--- {member.address} (exit code {member.process.poll()})")
                lines += text
        return "\n".join(lines[-60:])


def _ended_by_itself(member: Started) -> bool:
    return not member.told_to_end and not member.running
