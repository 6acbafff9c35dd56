"""Real members as operating-system processes, watched through their history files.

Decides how members are started (ephemeral ports, a directory per run, nothing inherited from the
caller's TENURE_ variables), waited for (a fact in a history, never a sleep) and ended: each
process that was started here is gone when `Members` closes, and no other one is touched.
Called by the demo, the benches and `tests/processes`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from node.history import boottime_s

ROOT = Path(__file__).resolve().parent.parent
COUNTER_APP = "examples.counter:setup"

POLL_S = 0.005
END_TIMEOUT_S = 15.0

# Below the kernel's range for outgoing connections: none of those can sit on a port chosen here.
PORTS = range(20_000, 32_000)


class Line(NamedTuple):
    """One fact of a history file; see `node.history`."""

    at_s: float
    node: str
    event: str
    singleton: str | None
    instance_id: str | None
    token: str | None
    detail: str


class NotSeenError(AssertionError):
    """A fact that was waited for did not come; the text has the end of every log."""


@dataclass(eq=False)
class Member:
    """A started member. `started_at_s` is CLOCK_BOOTTIME just before the process was made."""

    name: str
    port: int
    http: str | None
    history_path: Path
    log_path: Path
    started_at_s: float
    process: subprocess.Popen[bytes]
    _lines: list[Line] = field(default_factory=list)
    _read_bytes: int = 0

    @property
    def address(self) -> str:
        """`host:port` of its control lane."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """True until the process ended."""
        return self.process.poll() is None

    def history(self) -> list[Line]:
        """All facts so far; reads only what is new."""
        if self.history_path.exists():
            with self.history_path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self._lines.extend(Line(**json.loads(line)) for line in whole.splitlines())
        return self._lines

    def seen(self, event: str, *, singleton: str | None = None) -> list[Line]:
        """The facts called `event`, of one singleton if it is named."""
        return [
            line
            for line in self.history()
            if line.event == event and singleton in (None, line.singleton)
        ]

    def up_members(self) -> set[str]:
        """Addresses that were up in this member's view at some time."""
        return {line.detail.split()[0] for line in self.seen("member_up")}

    def saw_up_at_s(self, count: int) -> float:
        """When this member saw its `count`-th member up. `wait` for it first."""
        first: dict[str, float] = {}
        for line in self.seen("member_up"):
            first.setdefault(line.detail.split()[0], line.at_s)
        return sorted(first.values())[count - 1]

    def log(self) -> str:
        """What it wrote to stdout and stderr."""
        return self.log_path.read_text(errors="replace")


class Members:
    """Starts members in `directory` and ends them all on the way out, however that is left.

    `loop` is the event loop the members run on (`uvloop` or `asyncio`).
    """

    def __init__(self, directory: Path, *, loop: str = "uvloop") -> None:
        self.directory = directory
        self.members: list[Member] = []
        self._loop = loop
        self._ports_given: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        *,
        port: int,
        seeds: Sequence[int | str] = (),
        app: str | None = COUNTER_APP,
        http: bool = False,
        arguments: Sequence[str] = (),
    ) -> Member:
        """Start `python -m node` on loopback; `seeds` are ports there or whole addresses (none:
        its own, it founds)."""
        history, log = self.directory / f"{name}.history", self.directory / f"{name}.log"
        address = f"127.0.0.1:{self.free_ports(1)[0]}" if http else None
        command = [sys.executable, "-m", "node", "--port", str(port), "--name", name]
        for seed in seeds or (port,):
            command += ["--seed", seed if isinstance(seed, str) else f"127.0.0.1:{seed}"]
        command += ["--history", str(history), "--loop", self._loop]
        if app is not None:
            command += ["--app", app]
        if address is not None:
            command += ["--http", address]
        started_at_s = boottime_s()
        process = spawn([*command, *arguments], log, MEMBER=name, DIRECTORY=str(self.directory))
        member = Member(name, port, address, history, log, started_at_s, process)
        self.members.append(member)
        return member

    def start_three(
        self,
        *,
        http: bool = False,
        app: str | None = COUNTER_APP,
        arguments: Sequence[str] = (),
    ) -> list[Member]:
        """Three members at once, the first one the seed of all."""
        ports = self.free_ports(3)
        return [
            self.start(name, port=port, seeds=ports[:1], http=http, app=app, arguments=arguments)
            for name, port in zip("abc", ports, strict=True)
        ]

    def free_ports(self, count: int) -> list[int]:
        """Ports on 127.0.0.1 that nobody listens on and that were not given out here before."""
        # The system's randomness: two runs at once choose different ports.
        candidates = random.SystemRandom().sample(PORTS, 40 * count)
        free = [port for port in candidates if port not in self._ports_given and _is_free(port)]
        self._ports_given.update(free[:count])
        return free[:count]

    def wait(self, what: str, fact: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """The first true value of `fact()`. Raises `NotSeenError`, naming `what`, after
        `timeout_s`."""
        until = boottime_s() + timeout_s
        while not (value := fact()):
            if boottime_s() > until:
                raise NotSeenError(f"not seen within {timeout_s} s: {what}\n{self.logs()}")
            time.sleep(POLL_S)
        return value

    def wait_all_up(self, members: Sequence[Member]) -> None:
        """Until each of `members` saw all of them up."""
        wanted = {member.address for member in members}
        for member in members:
            sees_all = partial(_sees_up, member, wanted)
            self.wait(f"{member.name} sees {sorted(wanted)} up", sees_all)

    def host_of(self, singleton: str, *, but: Sequence[Member] = ()) -> Member:
        """The member that runs the newest instance, once one does; those in `but` do not count."""
        host: Member = self.wait(f"{singleton} started", lambda: self.host_now(singleton, but=but))
        return host

    def host_now(self, singleton: str, *, but: Sequence[Member] = ()) -> Member | None:
        """The running member with the newest instance that has not stopped, None without one."""
        newest: Member | None = None
        newest_at_s = 0.0
        for member in self.members:
            if member in but or not member.running:
                continue
            starts = member.seen("started", singleton=singleton)
            stops = member.seen("stopped", singleton=singleton)
            if len(starts) > len(stops) and starts[-1].at_s > newest_at_s:
                newest, newest_at_s = member, starts[-1].at_s
        return newest

    def end(self, member: Member, number: signal.Signals) -> float:
        """Send a signal; CLOCK_BOOTTIME just before it."""
        at_s = boottime_s()
        member.process.send_signal(number)
        return at_s

    def wait_end(self, member: Member) -> int:
        """The exit code. Raises `NotSeenError` when it does not end in `END_TIMEOUT_S`."""
        self.wait(f"{member.name} ends", lambda: not member.running, END_TIMEOUT_S)
        return member.process.wait()

    def logs(self) -> str:
        """The end of each log, for a failure's text."""
        return "\n".join(
            f"--- {member.name} ({member.address}, exit code {member.process.poll()})\n"
            + "\n".join(member.log().splitlines()[-20:])
            for member in self.members
        )

    def close(self) -> None:
        """Kill what still runs of the processes started here, and reap it."""
        for member in self.members:
            if member.running:
                member.process.kill()
        for member in self.members:
            member.process.wait()


def spawn(command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """A process in the repository's root, in a session of its own: Ctrl-C reaches only us.

    `environment` is for the application (`--app`) it may run.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**clean_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def clean_environment() -> dict[str, str]:
    """Ours without TENURE_ variables: a member's settings are those on its command line."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}


def _sees_up(member: Member, wanted: set[str]) -> bool:
    return wanted <= member.up_members()


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
