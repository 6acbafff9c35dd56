"""The peers: what is installed for each, where, and with which interpreter.

Decides the version ranges and that a peer lives in a virtual environment of its own, made when it
is first asked for and kept. Does not run anything of a peer. Called by `rounds`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path("~/.cache/tenure-bench")
INSTALL_TIMEOUT_S = 300.0
ASK_TIMEOUT_S = 20.0
UVLOOP = "uvloop>=0.21,<0.24"

Version = tuple[int, int]


class NotAvailableError(Exception):
    """A side cannot be measured here; the text says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A peer and how it can be run.

    `parts` are the modes its module offers; without "receive" the driver starts the other process
    itself. `rows` limits what it can do with two processes (empty: all). A peer that is not quiet
    while idle runs `alone`, after the others of a round.
    """

    name: str
    requirement: str
    python_min: Version = (3, 11)
    parts: tuple[str, ...] = ("receive", "drive", "local")
    rows: tuple[str, ...] = ()
    alone: bool = False

    @property
    def installed(self) -> tuple[str, ...]:
        """What is installed in its environment."""
        return (self.requirement, UVLOOP)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="casty", requirement="casty>=0.30.2,<0.31", python_min=(3, 12)),
        Peer(name="xoscar", requirement="xoscar>=0.12.2,<0.13"),
        Peer(name="ray", requirement="ray>=2.50,<3", parts=("drive",), alone=True),
        Peer(
            name="thespian",
            requirement="thespian>=4.0.1,<5",
            parts=("drive", "local"),
            rows=("ask1", "tell_100", "tell_1k", "tell_64k", "tell_1m"),
            alone=True,
        ),
        Peer(name="pykka", requirement="pykka>=4.4,<5", parts=("local",)),
    )
}


def interpreter_of(peer: Peer, directory: Path) -> Path:
    """The interpreter of the peer's environment under `directory`, which is made if need be.

    Raises `NotAvailableError` when no interpreter here is new enough, or it cannot be installed.
    """
    home = directory.expanduser() / peer.name
    python = home / "bin" / "python"
    stamp = home / "installed.json"
    home.parent.mkdir(parents=True, exist_ok=True)
    with _alone(home.with_name(f"{peer.name}.lock")):
        if stamp.exists() and json.loads(stamp.read_text()) == list(peer.installed):
            return python
        base = find_python(peer.python_min)
        if base is None:
            wanted = ".".join(map(str, peer.python_min))
            raise NotAvailableError(
                f"{peer.name} needs Python {wanted} or later, and none is found: install one, as "
                f"python{wanted} on the PATH or with pyenv"
            )
        _run(peer, [str(base), "-m", "venv", "--clear", str(home)])
        _run(peer, [str(python), "-m", "pip", "install", "--quiet", *peer.installed])
        stamp.write_text(json.dumps(list(peer.installed)))
    return python


def find_python(least: Version) -> Path | None:
    """An interpreter of at least this version: our own, the PATH's, or pyenv's; the oldest."""
    if sys.version_info[:2] >= least:
        return Path(sys.executable)
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 6)]
    on_path = [Path(found) for name in names if (found := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    versions = [path for name in names for path in sorted(pyenv.glob(f"*/bin/{name}"))]
    for candidate in (*on_path, *versions):
        # A shim of pyenv lies on the PATH also where it refuses to run.
        if _version(candidate) >= least:
            return candidate
    return None


def _version(python: Path) -> Version:
    try:
        answer = subprocess.run(
            [str(python), "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
        )
        major, minor = answer.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return (0, 0)
    return (int(major), int(minor))


def _run(peer: Peer, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailableError(f"{peer.name} was not installed: {error}") from error
    if done.returncode:
        last = ([line for line in done.stderr.splitlines() if line.strip()] or ["no word"])[-1]
        raise NotAvailableError(
            f"{peer.name} was not installed: {last.strip()}. Needed is {', '.join(peer.installed)}"
        )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two benches at once make an environment once."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
