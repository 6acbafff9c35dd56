"""The commands that the README tells a reader to type, typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.processes import ROOT, Members, clean_environment
from tests.processes.test_processes import block_of_ports
from tests.style.test_readme import blocks

PORTS = ("25520", "25521", "25522", "8550", "8551", "8552")


def test_every_command_is_covered() -> None:
    """Two blocks are demos (tests/processes/test_demo.py), the others are run below."""
    first, second, sharding, third = blocks("sh")
    assert first == "make demo\n"
    assert sharding == "make demo-sharding\n"
    assert third.startswith("python -m node --processes 3 ")
    assert len(re.findall(r"python -m node --port", second)) == 3


def test_three_members_by_hand(members: Members, tmp_path: Path) -> None:
    """The block as it is pasted, on free ports: members join, are shown, one leaves, the rest end.

    Nothing waits here: every line must work right after the one before.
    """
    _, block, *_ = blocks("sh")
    for shown, free in zip(PORTS, members.free_ports(len(PORTS)), strict=True):
        block = block.replace(shown, str(free))
    block = block.replace("--state-dir state", f"--state-dir {tmp_path}")
    venv, *lines = block.splitlines()
    assert venv == ". .venv/bin/activate"
    http = [re.findall(r"--http (\S+)", line)[0] for line in lines[:3]]
    # What `activate` does, for the environment that runs this test.
    script = [f'PATH="{Path(sys.executable).parent}:$PATH"', "set -m", *lines, "wait"]
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=ROOT,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        end_jobs(http)
    assert process.returncode == 0, errors
    assert "tenure: " not in errors
    assert '"ready":true' in output
    assert '"members":[{' in output
    assert "the member hands over, leaves and ends" in output
    assert output.count(" up reachable ") >= 2


def test_members_under_a_supervisor(tmp_path: Path) -> None:
    """On free ports; all are up, one command looks inside, one signal ends them in order."""
    *_, block = blocks("sh")
    port, http = block_of_ports(3), block_of_ports(3)
    command = block.replace("25520", str(port)).replace("8550", str(http)).split()
    assert command[0] == "python"
    process = subprocess.Popen(
        [sys.executable, *command[1:], "--state-dir", str(tmp_path)],
        cwd=ROOT,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 40
        shown = ""
        while shown.count(" up ") < 3 and time.monotonic() < until:
            asked = [sys.executable, "-m", "node", "members", "--http", f"127.0.0.1:{http + 2}"]
            shown = subprocess.run(
                asked,
                cwd=ROOT,
                env=clean_environment(),
                capture_output=True,
                text=True,
                check=False,
            ).stdout
        assert shown.count(" up ") == 3
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors


def end_jobs(http: list[str]) -> None:
    """End those of our members that the script left, known by their HTTP address."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it ended meanwhile
        if "-m" in words and any(address in words for address in http):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
