"""A cluster whose hosts can be cut apart, and a supervisor that restarts who exits.

Decides how members are started (each in a network namespace of its own, where no crash is to be
proven; or all on loopback, where the kernel proves it), when the cluster is whole (every running
member holds every running one up and reachable) and who is restarted. Does not decide what is done
to it: see `bench.partition.rounds`. Called by that and by `tests/processes`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol, Self

from bench.gossip.namespaces import Hosts
from bench.partition.judging import Instance, StepsFile
from bench.partition.subject import COUNTERS, EACH_HOSTS, STEPS
from bench.processes import Line, Member, NotSeenError, spawn
from gossip.membership import Cause
from node.history import boottime_s

APP = "bench.partition.subject:setup"
PORT = 25520
SEEDS_MAX = 5
PROVEN = Cause.CRASHED.name.lower()
NO_PROOF = ("--crash-evidence", "never")
POLL_S = 0.01
SETTLE_TIMEOUT_S = 60.0
ACTING_S = 0.5
"""Who began no step for so long does not act."""
WHOLE_S = 1.0
"""That all have agreed on a view goes round with the contact pings, and no history shows it. A cut
that comes before is another experiment: who knows of no agreed view may not decide."""


class Network(Protocol):
    """Hosts with addresses, between which what goes one way can be lost."""

    @property
    def addresses(self) -> Sequence[str]:
        """One per host, `host:port`."""

    def command(self, host: int) -> Sequence[str]:
        """What begins the command of a member on this host: flags of its address included."""

    def cut(self, source: int, target: int) -> None:
        """Lose what goes from one to the other, from now on."""

    def heal(self, source: int, target: int) -> None:
        """Until now."""


class NamespaceNetwork:
    """One network namespace per host."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.addresses = [f"{number}:{PORT}" for number in hosts.addresses]

    def command(self, host: int) -> Sequence[str]:
        """On its host; anybody may join there, for nobody else is on that bridge."""
        # A network namespace alone makes no other host: one kernel runs all of them in one pid
        # namespace, and its pidfd proves an end across any cut, which no real network does.
        own = [sys.executable, "-m", "node", "--host", self._hosts.addresses[host]]
        return [*self._hosts.prefix(host), *own, "--port", str(PORT), "--insecure", *NO_PROOF]

    def cut(self, source: int, target: int) -> None:
        """Lose what goes from one to the other."""
        self._hosts.cut(source, target)

    def heal(self, source: int, target: int) -> None:
        """End a cut."""
        self._hosts.heal(source, target)


class LoopbackNetwork:
    """All on 127.0.0.1: one host, whose kernel proves a crash. Nothing can be cut."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]

    def command(self, host: int) -> Sequence[str]:
        """Here."""
        return [sys.executable, "-m", "node", "--port", str(self._ports[host])]

    def cut(self, source: int, target: int) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("on loopback nothing can be cut: use network namespaces")

    def heal(self, source: int, target: int) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("on loopback nothing can be cut: use network namespaces")


@dataclass(eq=False)
class Life:
    """One process of a host. `ended_at_s` is None while it runs; `told` once a fault killed it."""

    host: int
    member: Member
    ended_at_s: float | None = None
    told: bool = False
    is_guarded: bool = False
    up: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    _read: int = 0

    @property
    def running(self) -> bool:
        """Until its end was noticed."""
        return self.ended_at_s is None

    @property
    def process(self) -> Popen[bytes]:
        """The process that was started here."""
        return self.member.process

    @property
    def pid(self) -> int:
        """Of the member itself, where that is the only child of a supervisor. Raises
        `NotSeenError` when it has ended."""
        if not self.is_guarded:
            return self.process.pid
        parent = self.process.pid
        try:
            (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except (OSError, ValueError):
            raise NotSeenError(f"{self.member.name} has no process under its supervisor") from None
        return int(child)

    def lines(self, event: str, since_s: float) -> list[Line]:
        """The facts of its history called so, written at this instant or later."""
        return [line for line in self.member.seen(event) if line.at_s >= since_s]

    def look(self) -> None:
        """Follow what it wrote: whom it holds up (address → uid), and unreachable (uids)."""
        lines = self.member.history()
        for line in lines[self._read :]:
            words = line.detail.split()
            match line.event:
                case "member_up":
                    self.up[words[0]] = words[1]
                case "downed" | "member_removed":
                    if self.up.get(words[0]) == words[1]:
                        del self.up[words[0]]
                    self.unreachable.discard(words[1])
                case "unreachable":
                    self.unreachable.add(words[1])
                case "reachable":
                    self.unreachable.discard(words[1])
        self._read = len(lines)


class Cluster:
    """`count` members on a network, in `directory`; all are ended on the way out, by pid.

    arguments: further flags of each member. each_hosts: each member hosts a singleton of its own.
    spare: so many of the network's hosts are left alone until `start_one` names them. environment:
    further variables of each member. guarded: each runs under a supervisor of its own, which gives
    its lease back when it crashes.
    """

    def __init__(
        self,
        directory: Path,
        network: Network,
        arguments: Sequence[str],
        *,
        each_hosts: bool = False,
        spare: int = 0,
        loop: str = "uvloop",
        environment: Mapping[str, str] | None = None,
        guarded: bool = False,
    ) -> None:
        self.guarded = guarded
        self.directory = directory
        self.network = network
        self.hosts = range(len(network.addresses) - spare)
        self.lives: list[Life] = []
        self.steps = StepsFile(directory / "steps")
        self.restarts = True
        self._arguments = [*arguments, "--loop", loop, "--log-level", "warning"]
        self._environment = {
            STEPS: str(directory / "steps"),
            COUNTERS: str(directory / "counters"),
            **({EACH_HOSTS: "1"} if each_hosts else {}),
            **(environment or {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # processes

    @property
    def running(self) -> list[Life]:
        """The lives that go on, by host."""
        return sorted((life for life in self.lives if life.running), key=lambda life: life.host)

    def start(self) -> None:
        """Start a member on every host and wait until the cluster is whole and acts."""
        for host in self.hosts:
            self.start_one(host)
        # A hundred interpreters on two cores take their time.
        self.settle(SETTLE_TIMEOUT_S + len(self.hosts))

    def start_one(self, host: int) -> Life:
        """Start a process on a host; the one before it has ended."""
        number = sum(life.host == host for life in self.lives)
        name = f"h{host}r{number}"
        history, log = self.directory / f"{name}.history", self.directory / f"{name}.log"
        state = self.directory / f"h{host}.state"
        state.mkdir(exist_ok=True)
        command = [*self.network.command(host), "--name", f"h{host}", "--app", APP]
        for seed in self.network.addresses[: min(SEEDS_MAX, len(self.hosts))]:
            command += ["--seed", seed]
        command += ["--history", str(history), "--state-dir", str(state), *self._arguments]
        if self.guarded:
            command += ["--processes", "1", "--no-restart"]
        at_s = boottime_s()
        process = spawn(command, log, **self._environment)
        member = Member(name, PORT, None, history, log, at_s, process)
        life = Life(host, member, is_guarded=self.guarded)
        self.lives.append(life)
        return life

    def signal(self, life: Life, number: signal.Signals) -> float:
        """Send a signal; the instant just before it."""
        life.told |= number in (signal.SIGKILL, signal.SIGTERM)
        # An operator tells the supervisor; everything else befalls the member.
        pid = life.process.pid if number is signal.SIGTERM else life.pid
        at_s = boottime_s()
        os.kill(pid, number)
        return at_s

    def supervise(self) -> None:
        """Note who ended, and start it again unless `restarts` is False."""
        for life in self.running:
            if life.process.poll() is not None:
                life.ended_at_s = boottime_s()
                life.look()
                if self.restarts:
                    self.start_one(life.host)

    def close(self) -> None:
        """Kill what still runs of the processes started here, and reap it."""
        for life in self.lives:
            if life.process.poll() is None:
                if life.is_guarded:
                    with contextlib.suppress(NotSeenError, ProcessLookupError):
                        os.kill(life.pid, signal.SIGKILL)
                life.process.kill()
        for life in self.lives:
            life.process.wait()

    # what is so

    def look(self) -> None:
        """Take in what happened: ends, histories, steps."""
        self.supervise()
        for life in self.running:
            life.look()
        self.steps.read()

    def is_whole(self) -> bool:
        """Every running member holds exactly these members up, and none of them unreachable."""
        lives = self.running
        held = [life.up for life in lives]
        addresses = {self.network.addresses[life.host] for life in lives}
        return (
            len(lives) == len(self.hosts)
            and held[0].keys() == addresses
            and all(one == held[0] for one in held)
            and not any(set(life.unreachable) & set(life.up.values()) for life in lives)
        )

    def acting(self, for_s: float = ACTING_S) -> Instance | None:
        """The instance that acted in the last `for_s`, the newest if there are two."""
        return next(iter(self.steps.acting(boottime_s() - for_s)), None)

    def life_of(self, instance: Instance) -> Life:
        """The running process on the host of an instance."""
        host = list(self.network.addresses).index(instance.node)
        return next(life for life in self.running if life.host == host)

    def leader(self) -> int:
        """The host of the lowest address: the leader while all are reachable."""
        ways = [(*map(int, one.replace(":", ".").split(".")),) for one in self.network.addresses]
        return ways.index(min(ways))

    # waiting

    def wait(self, what: str, fact: Callable[[], Any], timeout_s: float) -> Any:
        """The first true value of `fact()`, asked after each look. Raises `NotSeenError`."""
        until_s = boottime_s() + timeout_s
        while True:
            self.look()
            if value := fact():
                return value
            if boottime_s() > until_s:
                raise NotSeenError(f"not seen within {timeout_s:g} s: {what}\n{self.logs()}")
            time.sleep(POLL_S)

    def wait_until(self, at_s: float) -> None:
        """Look on until this instant."""
        while (left_s := at_s - boottime_s()) > 0:
            self.look()
            time.sleep(min(POLL_S, max(left_s, 0)))

    def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> Instance:
        """Wait until the cluster has been whole for `WHOLE_S` and one instance acts; that one."""
        whole_since_s = math.inf

        def settled() -> Instance | None:
            nonlocal whole_since_s
            now_s = boottime_s()
            whole_since_s = min(whole_since_s, now_s) if self.is_whole() else math.inf
            return self.acting() if now_s - whole_since_s >= WHOLE_S else None

        found: Instance = self.wait(
            f"the cluster is whole for {WHOLE_S:g} s and its singleton acts", settled, timeout_s
        )
        return found

    def cut_apart(self, one: Iterable[int], other: Iterable[int]) -> float:
        """Lose everything between two sides, both ways; the instant just before the first cut."""
        at_s = boottime_s()
        for a in one:
            for b in other:
                self.network.cut(a, b)
                self.network.cut(b, a)
        return at_s

    def proven_crashes(self, since_s: float) -> list[Line]:
        """The facts of all histories by which somebody was held down for a crash that was proven;
        between hosts there are none."""
        return [
            line
            for life in self.lives
            for line in life.lines("downed", since_s)
            if line.detail.split()[2] == PROVEN
        ]

    def logs(self) -> str:
        """Who ended, and the last lines of what was printed, for a failure's text."""
        lines = []
        for life in self.lives:
            end = life.process.poll()
            if life.running or end not in (0, None):
                up = " ".join(sorted(life.up))
                lines.append(f"--- {life.member.name} (exit code {end}) up: {up}")
                lines += life.member.log().splitlines()[-6:]
        return "\n".join(lines[-90:])
