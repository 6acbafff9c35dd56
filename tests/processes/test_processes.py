"""`python -m node --processes N`: members watched over, and the leases of one that crashed.

Guards S11 and F20. Members are found by the children of their supervisor, and end with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.processes import ROOT, clean_environment
from node.history import boottime_s
from tests.conftest import loop_name

APP = "tests.processes.apps:"
WAIT_S = 40.0
TTL_S = 30.0
"""Longer than a test waits for anything: what comes before was given back."""


def block_of_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(50):
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            base: int = first.getsockname()[1]
            try:
                for number in range(1, count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", base + number))
            except (OSError, OverflowError):
                continue
            return base
    raise AssertionError("no ports in a row are free")


class Supervised:
    """A supervisor with its members, on ports in a row; `http` and `histories` by member."""

    def __init__(self, directory: Path, count: int, *flags: str, app: str = "counting") -> None:
        self.count = count
        self.directory = directory
        self.port, self.http = block_of_ports(count), block_of_ports(count)
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "node", "--processes", str(count)),
                    *("--port", str(self.port), "--http", f"127.0.0.1:{self.http}"),
                    *("--history", str(directory / "history"), "--loop", loop_name()),
                    *("--app", f"{APP}{app}", *flags),
                ],
                cwd=ROOT,
                env=clean_environment() | {"DIRECTORY": str(directory)},
                stdout=log,
                stderr=log,
            )

    def wait(self, what: str, fact: Callable[[], Any], within_s: float = WAIT_S) -> Any:
        """The first true value of `fact()`; what cannot be asked yet is not true."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            try:
                if value := fact():
                    return value
            except (OSError, ValueError, IndexError):
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"not seen: {what}\n{self.log.read_text()}")

    def ask(self, member: int, path: str) -> Any:
        url = f"http://127.0.0.1:{self.http + member}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())

    def until_up(self) -> int:
        """All up, and the counter hosted; the number of its host."""

        def hosted() -> Any:
            for member in range(self.count):
                state = self.ask(member, "/cluster")
                ups = [row for row in state["members"] if row["status"] == "up"]
                if len(ups) != self.count or not state["converged"]:
                    return None
                if state["downing"]["agreed_members"] not in (None, self.count):
                    return None
            return self.ask(0, "/singletons")[0]["host"]

        host: str = self.wait("all are up", hosted)
        return int(host.rpartition(":")[2]) - self.port

    def pid(self, member: int) -> int:
        """Of the process that runs as this member now."""
        mine = f"\0--port\0{self.port + member}\0"
        me = self.process.pid
        children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
        return next(
            int(child) for child in children if mine in Path(f"/proc/{child}/cmdline").read_text()
        )

    def events(self, since_s: float, *names: str) -> list[tuple[float, int]]:
        """When the singleton did so, and where; of all members."""
        found = []
        for member in range(self.count):
            for line in Path(f"{self.directory}/history.{member}").read_text().splitlines():
                entry = json.loads(line)
                if entry["at_s"] >= since_s and entry["event"] in names and entry["singleton"]:
                    found.append((entry["at_s"], member))
        return sorted(found)

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT_S)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(count: int, *flags: str, app: str = "counting") -> Supervised:
        started.append(Supervised(tmp_path, count, *flags, app=app))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            try:
                each.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


def leased(directory: Path) -> list[str]:
    return [
        *("--protection", "downing+lease", "--lease", f"sqlite://{directory}/leases.db"),
        *("--lease-ttl-s", str(TTL_S)),
    ]


def test_a_crashed_host_does_not_cost_the_ttl(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    """Its lease is given back when nobody of its process group is left; it comes back itself."""
    three = supervised(3, *leased(tmp_path))
    host = three.until_up()
    (before,) = [row["token"] for row in three.ask(host, "/leases")]
    killed_s = boottime_s()
    os.kill(three.pid(host), signal.SIGKILL)
    started_s, successor = three.wait(
        "another one hosts", lambda: three.events(killed_s, "started")[0], 10.0
    )
    assert successor != host
    assert started_s - killed_s < 5.0, "not the ttl"
    (after,) = [row["token"] for row in three.ask(successor, "/leases")]
    assert int(after) > int(before)
    assert three.until_up() == successor, "who crashed is started again, and joins"
    assert three.end() == 0
    assert "gave the lease of a process that ended back" in three.log.read_text()


def test_processes_that_a_member_has_started_end_before_its_lease_is_given_back(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    """F20: they may act for it still."""
    three = supervised(3, *leased(tmp_path), app="with_helper")
    host = three.until_up()
    helper = int(
        three.wait("a helper", lambda: (tmp_path / f"helper.{three.pid(host)}").read_text())
    )
    killed_s = boottime_s()
    os.kill(three.pid(host), signal.SIGKILL)
    three.wait("another one hosts", lambda: three.events(killed_s, "started"), 10.0)
    with pytest.raises(ProcessLookupError):
        os.kill(helper, 0)
    assert three.end() == 0


def test_told_to_end_all_leave_in_order(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    three = supervised(3, *leased(tmp_path))
    three.until_up()
    pids = [three.pid(member) for member in range(3)]
    assert three.end() == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_who_was_downed_by_an_operator_stays_down(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    three = supervised(3, "--downing", "keep-majority")
    three.until_up()
    order = json.dumps({"address": f"127.0.0.1:{three.port + 2}"}).encode()
    url = f"http://127.0.0.1:{three.http}/cluster/down"
    with urllib.request.urlopen(urllib.request.Request(url, data=order), timeout=40) as answer:
        assert json.loads(answer.read())["down"] is True
    three.wait(
        "its end is told", lambda: "exit_code=11 starts_again=False" in three.log.read_text()
    )
    with pytest.raises(StopIteration):
        three.pid(2)
    assert three.end() == 11, "the greatest of all"


def runs(pid: int) -> bool:
    """Also false for one that has ended and that nobody has waited for."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_members_whose_supervisor_was_killed_serve_on_and_say_so(
    supervised: Callable[..., Supervised],
) -> None:
    two = supervised(2)
    two.until_up()
    pids = [two.pid(member) for member in range(2)]
    try:
        two.process.kill()
        two.process.wait(timeout=WAIT_S)
        until = time.monotonic() + WAIT_S
        words = "the supervisor of this member is gone: the crash guard is off"
        while two.log.read_text().count(words) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert [two.ask(member, "/health/ready")["ready"] for member in range(2)] == [True, True]
        assert two.log.read_text().count(words) == 2, two.log.read_text()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + WAIT_S
    while any(map(runs, pids)):
        assert time.monotonic() < until, "members that were told to leave do not end"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--processes", "0"], "must be from 1 to"),
        (["--processes", "many"], "invalid int value"),
        (["--processes", "2", "--port", "0"], "could not find each other"),
        (["--processes", "9", "--port", "65530"], "goes beyond 65535"),
        (["--processes", "2", "--lease", "sqlite:"], "names no file"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(flags: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node", *flags],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
