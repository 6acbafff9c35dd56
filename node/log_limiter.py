"""How often the runtime may warn: few lines per text and period, the rest is counted and told.

Decides: which lines are written and how many were left out. Does not decide what is worth a line,
nor the level. Used by `node.runtime`, whose lines name a path: whoever chooses paths, or causes
failures at many of them, must not be able to flood a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

PERIOD_S = 10.0
PATHS_MAX = 20  # lines per text and period
TEXTS_MAX = 200


class _Text:
    __slots__ = ("left_out", "paths", "summary")

    def __init__(self) -> None:
        self.paths: dict[str, tuple[float, int]] = {}  # → when written, how many left out since
        self.left_out = 0  # of other paths, since the last summary
        self.summary: asyncio.TimerHandle | None = None


class LogLimiter:
    """Writes to `logger` at most one line per text and path, and at most `PATHS_MAX` per text, in
    each `PERIOD_S`; what is left out beyond is told in one line at the end of the period.

    A line tells in `left_out` how many of its text and path were left out before it. The texts
    are those of the code: of more than `TEXTS_MAX` the further ones are only counted, in
    `dropped_count`.
    """

    def __init__(
        self, logger: logging.Logger, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        self.dropped_count = 0
        self._logger = logger
        self._loop = loop
        self._clock = clock
        self._texts: dict[str, _Text] = {}

    def log(
        self,
        level: int,
        text: str,
        path: str,
        *,
        exc_info: BaseException | bool | None = None,
        **fields: object,
    ) -> None:
        """Write the line, or count it."""
        entry = self._texts.get(text)
        if entry is None:
            if len(self._texts) >= TEXTS_MAX:
                self.dropped_count += 1
                return
            entry = self._texts[text] = _Text()
        now = self._clock()
        paths = entry.paths
        at, left_out = paths.get(path, (now - PERIOD_S, 0))
        if now - at < PERIOD_S:
            paths[path] = (at, left_out + 1)
            return
        if path not in paths and len(paths) >= PATHS_MAX and not self._forget_oldest(entry, now):
            entry.left_out += 1
            if entry.summary is None:
                entry.summary = self._loop.call_later(PERIOD_S, self._summarise, text)
            return
        paths.pop(path, None)  # the newest comes last
        paths[path] = (now, 0)
        extra = {"path": path, "left_out": left_out, **fields}
        self._logger.log(level, text, exc_info=exc_info, extra=extra)

    def close(self) -> None:
        """Tell now what was to be told at the end of the period."""
        for text, entry in self._texts.items():
            if entry.summary is not None:
                entry.summary.cancel()
                self._summarise(text)

    def _forget_oldest(self, entry: _Text, now: float) -> bool:
        path, (at, left_out) = next(iter(entry.paths.items()))
        if now - at < PERIOD_S:
            return False
        del entry.paths[path]
        entry.left_out += left_out
        return True

    def _summarise(self, text: str) -> None:
        entry = self._texts[text]
        entry.summary = None
        left_out, entry.left_out = entry.left_out, 0
        extra = {"left_out": left_out, "about": text, "period_s": PERIOD_S}
        self._logger.warning("lines of many paths were left out", extra=extra)
