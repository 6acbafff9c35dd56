"""`python -m node --processes N`: N members of one machine, watched over by their parent.

Decides how the members differ (ports, name, files), which of them is started again and when, and
that one has ended for good: it was reaped, and nobody is left of its process group. Then the crash
guard (`node.crash_guard`) gives its leases back. Decides nothing about the cluster: each member is
a process of its own, and finds the others like any. Called by `node.cli`.

A member that left in order, was downed by an operator or was started wrongly is not started again;
one that crashed or was downed by a strategy is, after `BACKOFF_S`, doubled each time up to
`BACKOFF_MAX_S`. The supervisor ends when no member is left, with the greatest exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.crash_guard import Guard, Reported, parse
from node.settings import Settings

logger = logging.getLogger(__name__)

BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
WELL_AFTER_S = 60.0
"""A member that ran for so long begins with the first backoff again."""
EMPTY_TIMEOUT_S = 5.0
"""So long a killed process group may take to be gone; then nothing is given back for it."""
PR_SET_CHILD_SUBREAPER = 36
START_AGAIN = frozenset({10, 12, 70})
PROCESSES_MAX = 1000
SEEDS_MAX = 3


@dataclass
class Member:
    """One member: its flags, and the process that runs now. `leases`: what it told of."""

    number: int
    flags: list[str]
    process: asyncio.subprocess.Process | None = None
    leases: list[Reported] = field(default_factory=list)
    started_at: float = 0.0
    failures: int = 0


def flags_of(number: int, count: int, settings: Settings, *, has_seeds: bool) -> list[str]:
    """The flags by which member `number` of `count` differs from what was given; without seeds all
    ask the first `SEEDS_MAX` of them, so that one that is started again finds the others."""
    flags = []
    if settings.port:
        flags += ["--port", str(settings.port + number)]
    if settings.data_port:
        flags += ["--data-port", str(settings.data_port + number)]
    if settings.http is not None:
        host, _, port = settings.http.rpartition(":")
        flags += ["--http", f"{host}:{int(port) + number if int(port) else 0}"]
    if settings.name and count > 1:
        flags += ["--name", f"{settings.name}-{number}"]
    if settings.history is not None and count > 1:
        flags += ["--history", f"{settings.history}.{number}"]
    if settings.state_dir is not None and count > 1:
        flags += ["--state-dir", os.path.join(settings.state_dir, str(number))]
    if not has_seeds and settings.port:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        for seed in range(min(SEEDS_MAX, count)):
            flags += ["--seed", f"{host}:{settings.port + seed}"]
    return flags


class Supervisor:
    """`given`: the flags of all members, without those of the supervisor itself."""

    def __init__(
        self,
        given: Sequence[str],
        settings: Settings,
        count: int,
        *,
        has_seeds: bool = True,
        restarts: bool = True,
    ) -> None:
        self._given = list(given)
        self._restarts = restarts
        self._members = []
        for number in range(count):
            flags = flags_of(number, count, settings, has_seeds=has_seeds)
            self._members.append(Member(number, flags))
            if settings.state_dir is not None and count > 1:
                os.makedirs(os.path.join(settings.state_dir, str(number)), exist_ok=True)
        self._guard = Guard()
        self._signals = 0
        self._ends = asyncio.Event()

    async def run(self) -> int:
        """Until no member is left; their greatest exit code."""
        _become_subreaper()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        giving_back: list[asyncio.Task[None]] = []
        try:
            codes = await asyncio.gather(
                *(self._keep(member, giving_back) for member in self._members)
            )
            if giving_back:
                # Whoever is started anew by somebody else must not wait for us.
                await asyncio.wait(giving_back, timeout=2.0)
            return max(codes)
        finally:
            for task in giving_back:
                task.cancel()
            for member in self._members:
                _kill_group(member)
            await self._guard.close()

    def _on_signal(self, number: signal.Signals) -> None:
        """Passed on: the first lets the members leave in order, the second ends them at once."""
        self._signals += 1
        self._ends.set()
        for member in self._members:
            if member.process is not None and member.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    member.process.send_signal(number)

    async def _keep(self, member: Member, giving_back: list[asyncio.Task[None]]) -> int:
        """Run it, and again where that is due; its last exit code."""
        loop = asyncio.get_running_loop()
        while True:
            code = await self._live(member, giving_back)
            again = self._restarts and (code < 0 or code in START_AGAIN)
            logger.log(
                logging.INFO if code == 0 else logging.WARNING,
                "a member ended",
                extra={"member": member.number, "exit_code": code, "starts_again": again},
            )
            if not again or self._ends.is_set():
                return 128 - code if code < 0 else code
            ran_s = loop.time() - member.started_at
            member.failures = 0 if ran_s >= WELL_AFTER_S else member.failures + 1
            backoff_s = min(BACKOFF_S * 2 ** min(member.failures, 16) / 2, BACKOFF_MAX_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s):
                    await self._ends.wait()
            if self._ends.is_set():
                return 0

    async def _live(self, member: Member, giving_back: list[asyncio.Task[None]]) -> int:
        """One process of it, from start to end; what it held is given back then."""
        reads, writes = os.pipe()
        member.leases = []
        try:
            member.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "node", *self._given, *member.flags),
                *("--guard-fd", str(writes)),
                pass_fds=(writes,),
                start_new_session=True,
            )
        finally:
            os.close(writes)
        member.started_at = asyncio.get_running_loop().time()
        listening = asyncio.get_running_loop().create_task(_listen(reads, member.leases))
        try:
            code = await member.process.wait()
        finally:
            # What it told of before its end is in the pipe; whoever inherited it may be alive.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.shield(listening)
            listening.cancel()
        if code == 0:
            return code  # it has given back what it held by itself
        if await _group_ends(member.process.pid):
            for lease in member.leases:
                task = asyncio.get_running_loop().create_task(self._guard.give_back(lease))
                giving_back.append(task)
                task.add_done_callback(giving_back.remove)
        elif member.leases:
            logger.error(
                "processes of a member that ended live on, so its leases are left to their ttl",
                extra={"member": member.number, "group": member.process.pid},
            )
        return code


async def _listen(descriptor: int, leases: list[Reported]) -> None:
    """Take in what a member tells, until it is at its end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # to close the pipe would tell the member that nobody guards it
                logger.error("a member told of a lease in a line that is too long")
                continue
            if not line:
                return
            found = parse(line)
            if found is not None:
                leases.append(found)
    finally:
        transport.close()


async def _group_ends(group: int) -> bool:
    """Kill whoever is left of a process group; True once nobody is."""
    loop = asyncio.get_running_loop()
    until = loop.time() + EMPTY_TIMEOUT_S
    wait_s = 0.001
    while loop.time() < until:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # of another user, or, on macOS, only zombies of others
        _reap(group)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, 0.1)
    return False


def _reap(group: int) -> None:
    """Orphans of a member that became ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _kill_group(member: Member) -> None:
    if member.process is not None and member.process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(member.process.pid, signal.SIGKILL)


def _become_subreaper() -> None:
    """Orphans of members come to us, so that their end is seen (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
