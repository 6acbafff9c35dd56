"""The history file: what happened on a node, one JSON line per fact, readable after a SIGKILL.

Decides the form of a line and that each is one `write` of the kernel (O_APPEND): a line that was
written survives the end of the process, and lines of several writers never mix. Does not decide
what is worth a line: `node.system` does. Read by the demo, the bench and the process tests.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable

from node.errors import SettingsError

logger = logging.getLogger(__name__)

LINE_BYTES_MAX = 4096  # longer details are cut: a history is facts, not payloads


def boottime_s() -> float:
    """Seconds since the host booted, suspends included; the same clock in all its processes.

    CLOCK_BOOTTIME, on macOS CLOCK_MONOTONIC (which counts a suspend there).
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class History:
    """Appends lines to `path`. `node` is the writer's address, put into each line.

    The constructor raises `SettingsError` when the file cannot be opened; `write` never raises:
    what could not be written is counted in `lost_count` and logged once.
    """

    def __init__(
        self, path: str, *, node: str = "", clock: Callable[[], float] = boottime_s
    ) -> None:
        self.node = node
        self.lost_count = 0
        self._path = path
        self._clock = clock
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise SettingsError(
                f"history={path!r} cannot be opened for appending ({error.strerror}): "
                "name a file in a directory that exists and that this user may write to"
            ) from error

    def write(
        self,
        event: str,
        *,
        singleton: str | None = None,
        instance_id: str | None = None,
        token: str | None = None,
        detail: str = "",
    ) -> None:
        """Append one fact, stamped with the clock now. Ids and tokens are text: JSON has no
        64-bit integers. After `close` it is counted as lost."""
        line = {
            "at_s": round(self._clock(), 6),
            "node": self.node,
            "event": event,
            "singleton": singleton,
            "instance_id": instance_id,
            "token": token,
            "detail": detail,
        }
        data = _encode(line)
        if len(data) > LINE_BYTES_MAX:
            line["detail"] = detail[: LINE_BYTES_MAX // 8] + " [cut]"
            data = _encode(line)
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._lost(error.strerror or str(error))
        else:
            if written != len(data):
                self._lost(f"only {written} of {len(data)} bytes were taken, is the disk full?")

    def close(self) -> None:
        """Close the file; harmless when closed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lost(self, reason: str) -> None:
        self.lost_count += 1
        if self.lost_count == 1:
            logger.warning("a history line was lost", extra={"path": self._path, "reason": reason})


def _encode(line: dict[str, object]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
