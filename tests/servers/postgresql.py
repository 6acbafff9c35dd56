"""A real PostgreSQL server on a socket of its own, for tests; ended by pid.

The programs come from the distribution's package `postgresql`. The server refuses to run as root,
so it runs as the user of the package then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

USER = "postgres"


class Postgresql:
    """One server with an empty database, in a folder of its own. Use it as a context."""

    def __init__(self) -> None:
        self._programs = _programs()
        # Not below pytest's folders: the other user does not get there.
        self._folder = tempfile.TemporaryDirectory(prefix="tenure-postgresql-")
        self._socket = Path(self._folder.name)
        self._data = self._socket / "data"

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            shutil.chown(self._socket, USER)
        self._run("initdb", "--auth=trust", "--no-sync", "-D", str(self._data))
        options = f"-c listen_addresses= -c unix_socket_directories={self._socket} -c fsync=off"
        log = str(self._data / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", log, "-o", options, "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")
        self._folder.cleanup()

    def ask(self, sql: str, **variables: object) -> list[str]:
        """What psql prints for this text, line by line, without headings."""
        words = [f"--set={name}={value}" for name, value in variables.items()]
        done = self._run(
            "psql", "-h", str(self._socket), "-d", "postgres", "-X", "-q", "-A", "-t",
            "--set=ON_ERROR_STOP=1", *words, text=sql,
        )  # fmt: skip
        return done.splitlines()

    def _run(self, program: str, *words: str, text: str = "") -> str:
        as_user = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*as_user, str(self._programs / program), *words], input=text, capture_output=True,
            text=True, timeout=60, cwd="/",
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr[-1000:]}")
        return done.stdout


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise RuntimeError("there is no PostgreSQL: apt-get install postgresql, or make test-etcd")
    return found[-1].parent
