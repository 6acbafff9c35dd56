"""`python -m lease`, as an operator types it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Shell:
    """Runs commands on one store; ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite://{folder / 'leases.db'}"
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def words(self, *words: str) -> list[str]:
        command, *rest = words
        return [sys.executable, "-m", "lease", command, self.url, *rest]

    def run(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.words(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def show(self, name: str = "demo") -> dict[str, object]:
        code, out, _ = self.run("show", name, "--json")
        assert code == 0
        found: dict[str, object] = json.loads(out)
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path)
    yield one
    for process in one.started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_held_until_interrupted_and_shown(shell: Shell) -> None:
    code, _, err = shell.run("show", "demo")
    assert (code, "there is no lease store" in err) == (2, True), "and none is made by looking"
    holder = shell.start("acquire", "demo", "--owner", "ops", "--ttl-s", "5")
    assert line(holder).startswith("held, token ")
    found = shell.show()
    assert (found["held"], found["owner"], found["ttl_s"]) == (True, "ops", 5.0)
    left_s = found["expires_in_s"]
    assert isinstance(left_s, float)
    assert 0 < left_s <= 5.0
    words = shell.run("show", "demo")[1]
    for part in ("held by ops", str(found["token"]), "unless it is renewed", "since"):
        assert part in words
    code, _, err = shell.run("acquire", "demo")
    assert (code, err.strip()) == (1, "tenure: demo is held by ops")
    holder.send_signal(signal.SIGTERM)
    assert holder.wait(timeout=30) == 0
    assert shell.show()["held"] is False


def test_a_command_runs_while_it_is_held(shell: Shell) -> None:
    see = f"{sys.executable} -m lease show {shell.url} demo --json"
    code, out, _ = shell.run(
        "acquire", "demo", "--", "sh", "-c", f"echo $TENURE_LEASE_TOKEN; {see}; exit 7"
    )
    assert code == 7
    token, shown = out.splitlines()
    assert json.loads(shown)["token"] == token
    assert json.loads(shown)["held"] is True
    assert shell.show()["held"] is False
    code, _, err = shell.run("acquire", "demo", "--", "no-such-program")
    assert code == 127
    assert "cannot be started" in err
    assert shell.show()["held"] is False


def test_a_command_is_killed_when_the_lease_is_lost(shell: Shell, tmp_path: Path) -> None:
    """With all that it started; and the loss is the exit code."""
    beats = tmp_path / "beats"
    loop = f"while true; do date >> {beats}; sleep 0.02; done"
    holder = shell.start("acquire", "demo", "--ttl-s", "1.2", "--", "sh", "-c", f"{loop} & wait")
    give_up_at = time.monotonic() + 30
    while not beats.exists() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    found = shell.show()
    code, out, _ = shell.run("release", "demo", "--token", str(found["token"]))
    if code == 1:  # it was renewed at this very moment
        code, out, _ = shell.run("release", "demo", "--token", str(found["token"]))
    assert (code, out.strip()) == (0, f"demo is free; {found['owner']} had it")
    assert holder.wait(timeout=30) == 1
    assert holder.stderr is not None
    assert "demo was lost: somebody else released it" in holder.stderr.read()
    size = beats.stat().st_size
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        time.sleep(0.02)
        assert beats.stat().st_size == size


def test_only_the_lease_that_is_named_is_released(shell: Shell) -> None:
    assert shell.run("acquire", "other", "--", "true")[0] == 0
    assert shell.run("release", "demo", "--token", "5")[:2] == (0, "demo is free already\n")
    holder = shell.start("acquire", "demo")
    line(holder)
    code, _, err = shell.run("release", "demo", "--token", "5")
    assert code == 1
    assert "not 5: nothing was done" in err
    assert shell.show()["held"] is True


def test_who_waits_gets_it(shell: Shell) -> None:
    holder = shell.start("acquire", "demo")
    line(holder)
    waiting = shell.start("acquire", "demo", "--owner", "next", "--wait-s", "60")
    holder.send_signal(signal.SIGINT)
    assert line(waiting).startswith("held, token ")
    assert shell.show()["owner"] == "next"


def test_changes_are_watched(shell: Shell) -> None:
    assert shell.run("acquire", "other", "--", "true")[0] == 0
    watch = shell.start("watch", "demo")
    assert line(watch).endswith("there is no record")
    holder = shell.start("acquire", "demo", "--owner", "ops", "--ttl-s", "1.2")
    line(holder)
    assert "held by ops, token " in line(watch)
    assert "renewed by ops, token " in line(watch)
    holder.send_signal(signal.SIGTERM)
    said = line(watch)
    while "renewed" in said:
        said = line(watch)
    assert "free, last token " in said
    watch.send_signal(signal.SIGINT)
    assert watch.wait(timeout=30) == 130


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["acquire", "demo", "--ttl-s", "0"], "ttl_s=0.0 must be greater than 0"),
        (["acquire", ""], "name='' must be a printable text"),
        (["release", "demo"], "--token"),
        (["show", "demo", "--", "ls"], "only `acquire` takes a command"),
        (["acquire", "demo", "--owner", ""], "owner='' must be a printable text"),
        (["acquire", "demo", "--wait-s", "nan"], "'nan' is no number of seconds"),
        (["acquire", "demo", "--wait-s", "-3"], "'-3' is no number of seconds"),
        (["acquire", "demo", "--ttl-s", "0.01"], "ttl_s=0.01 must be at least 0.1"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code2(shell: Shell, words: list[str], says: str) -> None:
    code, out, err = shell.run(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_store_that_does_not_answer_is_exit_code69(tmp_path: Path) -> None:
    file = tmp_path / "leases.db"
    with contextlib.closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("CREATE TABLE tenure_lease_sequence (format INTEGER)")
        hand.execute("INSERT INTO tenure_lease_sequence VALUES (2)")
    done = subprocess.run(
        [sys.executable, "-m", "lease", "show", f"sqlite://{file}", "demo"],
        capture_output=True, text=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 69
    assert done.stderr.startswith("tenure: nobody can tell: the lease store ")


BEATS = "trap '' TERM; while true; do date +%s.%N >> {file}; sleep 0.02; done"


def beats(file: Path) -> list[float]:
    return [float(text) for text in file.read_text().split()] if file.exists() else []


def wait_for(fact: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < give_up_at, f"not seen: {what}"
        time.sleep(0.02)


def test_a_command_that_ignores_the_signal_is_still_killed_when_the_lease_is_lost(
    shell: Shell, tmp_path: Path
) -> None:
    """A signal that was passed on must not be the last thing that is heard."""
    file = tmp_path / "beats"
    command = ("sh", "-c", BEATS.format(file=file))
    holder = shell.start("acquire", "demo", "--ttl-s", "1.2", "--", *command)
    wait_for(lambda: beats(file), "it runs")
    holder.send_signal(signal.SIGTERM)
    holder.send_signal(signal.SIGTERM)
    seen = len(beats(file))
    wait_for(lambda: len(beats(file)) > seen + 5, "it goes on")
    with sqlite3.connect(tmp_path / "leases.db", isolation_level=None) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        assert holder.wait(timeout=30) == 1
        lock.execute("ROLLBACK")
    lock.close()
    seen = len(beats(file))
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        time.sleep(0.02)
    assert len(beats(file)) == seen


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_command_does_not_outlive_who_holds_its_lease(
    number: signal.Signals, shell: Shell, tmp_path: Path
) -> None:
    """Killed by the kernel with us; a hang-up is passed on."""
    file = tmp_path / "beats"
    loop = BEATS.format(file=file).replace("trap '' TERM; ", "")
    holder = shell.start("acquire", "demo", "--ttl-s", "5", "--", "sh", "-c", loop)
    wait_for(lambda: beats(file), "it runs")
    holder.send_signal(number)
    holder.wait(timeout=30)
    wait_for(lambda: time.time() - beats(file)[-1] > 0.3, "it has ended")
    assert shell.show()["held"] is (number == signal.SIGKILL), "a hang-up releases it"


def test_what_a_command_leaves_behind_ends_with_it(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "beats"
    loop = BEATS.format(file=file)
    code, _, _ = shell.run("acquire", "demo", "--", "sh", "-c", f"({loop}) & sleep 0.3; exit 3")
    assert code == 3
    wait_for(lambda: time.time() - beats(file)[-1] > 0.3, "it has ended")


def test_its_end_is_the_exit_code_also_when_the_store_can_not_be_told(
    shell: Shell, tmp_path: Path
) -> None:
    program = tmp_path / "lock.py"
    program.write_text(
        "import os, sqlite3, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); os.close(1); os.close(2)\n"
        f"    held = sqlite3.connect('{tmp_path}/leases.db', isolation_level=None)\n"
        "    held.execute('BEGIN EXCLUSIVE')\n"
        f"    open('{tmp_path}/pid', 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        f"while not os.path.exists('{tmp_path}/pid'): time.sleep(0.01)\n"
    )
    code, _, err = shell.run("acquire", "demo", "--ttl-s", "9", "--", sys.executable, str(program))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert code == 0
    assert "could not be released: others wait for its ttl of 9 s" in err


def test_told_to_stop_while_it_waits_it_runs_nothing(shell: Shell, tmp_path: Path) -> None:
    holder = shell.start("acquire", "demo")
    line(holder)
    ran = tmp_path / "ran"
    waiting = shell.start("acquire", "demo", "--wait-s", "60", "--", "touch", str(ran))
    wait_for(lambda: _sleeps(waiting.pid), "it waits")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=30) == 130
    assert shell.show()["held"] is True
    assert not ran.exists()


def _sleeps(pid: int) -> bool:
    """It has caught SIGTERM: bit 14 of the mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(x for x in status.splitlines() if x.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> 14 & 1)
