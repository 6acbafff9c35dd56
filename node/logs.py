"""How log records look: text for people, one JSON object per line for machines.

Decides form and destination (stderr) only. Called once by the command line; an embedded system
leaves logging to its application.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send all log records to `stream` (stderr) as `text` or `json`, from `level` upwards.

    Replaces the handlers of the root logger.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def wall_time(seconds_since_epoch: float) -> str:
    """ISO 8601 UTC with milliseconds, for people only: no decision ever reads it."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds_since_epoch))
    return f"{whole}.{int(seconds_since_epoch % 1 * 1000):03d}Z"


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller put into `extra`, in that order."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: event key=value …`, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, one line, unless there is a traceback."""
        fields = "".join(f" {key}={_shown(value)}" for key, value in extra_fields(record).items())
        line = (
            f"{wall_time(record.created)} {record.levelname:<7} {record.name}: "
            f"{record.getMessage()}{fields}"
        )
        return "\n".join([line, *_trace(self, record)])


class JsonFormatter(logging.Formatter):
    """`{"at", "level", "logger", "event", …extra fields…, "traceback"}`, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Values JSON does not know are written as their text."""
        line: dict[str, object] = {
            "at": wall_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in extra_fields(record).items():
            line[key if key not in line else f"{key}_"] = value
        trace = _trace(self, record)
        if trace:
            line["traceback"] = "\n".join(trace)
        return json.dumps(line, default=str)


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text) if text == "" or any(c.isspace() or c in '"=' for c in text) else text


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return parts
