"""A process of a side, seen from the bench: orders in, answers out, ended for certain.

Decides how long an answer is waited for and what is said when none comes. The form of the talk is
that of `session`. Called by `rounds`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bench.processes import ROOT, clean_environment

READY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0
LOG_LINES = 3
READ_BYTES = 65536


class NotMeasuredError(Exception):
    """A row has no figures; the text says whether they were refused, or what failed."""


class Child:
    """A started process; use it as a context manager, or `close` it.

    Whatever it writes beside its answers goes to `log`. The process has a session of its own, so
    what it starts in turn ends with it.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._command = list(command)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._buffer = b""
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """The next object it says. Raises `NotMeasuredError`, for `refused` and `failed` too."""
        until = time.monotonic() + timeout_s
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if not found:
                self._buffer += self._read(until)
                continue
            self._buffer = rest
            if not line.startswith(b"{"):
                continue  # a library that prints
            said: dict[str, Any] = json.loads(line)
            for word in ("refused", "failed"):
                if word in said:
                    raise NotMeasuredError(f"{word}: {said[word]}")
            return said

    def _read(self, until: float) -> bytes:
        assert self._process.stdout is not None
        if not self._selector.select(max(0.0, until - time.monotonic())):
            # Its answer, should it still come, would be taken for that to the next order.
            self._process.kill()
            raise NotMeasuredError(f"failed: no answer in time{self._last_words()}")
        data = os.read(self._process.stdout.fileno(), READ_BYTES)
        if not data:
            code = self._process.wait()
            raise NotMeasuredError(f"failed: ended with exit code {code}{self._last_words()}")
        return data

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until it ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def order(self, row: str, for_s: float) -> None:
        """Tell it to measure a row; `answer` follows."""
        self.tell(row=row, for_s=for_s)

    def tell(self, **order: object) -> None:
        """Give it any order; `answer` follows."""
        assert self._process.stdin is not None
        line = json.dumps(order).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise NotMeasuredError(f"failed: it had ended{self._last_words()}") from error

    def measure(self, row: str, for_s: float) -> Mapping[str, float]:
        """Order a row and wait for its figures. Raises `NotMeasuredError`."""
        self.order(row, for_s)
        return self.answer(for_s + ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End its input; kill it, and what it started, if it is still there after a while."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Its own group: whatever of it outlived the leader.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._selector.close()
        self._process.stdout.close()

    def kill(self) -> None:
        """End it at once: of a process that holds nothing, nothing can be lost."""
        self._process.kill()
        self.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "; its last words: " + " / ".join(lines) if lines else ""
