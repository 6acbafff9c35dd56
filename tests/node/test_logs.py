"""Log records in both forms keep event, fields and traceback apart."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from node.logs import configure_logging


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(form: str, level: str = "info") -> str:
    """What three records look like in this form."""
    stream = io.StringIO()
    configure_logging(form, level, stream)
    logger = logging.getLogger("node.daemon")
    logger.debug("too much")
    logger.warning("downing decided", extra={"reachable": 2, "why": "a b", "empty": ""})
    try:
        raise ValueError("odd")
    except ValueError:
        logger.exception("handler failed", extra={"path": "/user/a"})
    return stream.getvalue()


def test_text_is_one_line_per_event() -> None:
    """Values with blanks are quoted, so that a line splits into fields."""
    first, second, *trace = logged("text").splitlines()
    assert first.endswith('WARNING node.daemon: downing decided reachable=2 why="a b" empty=""')
    assert first[:4].isdecimal()
    assert first.split()[0].endswith("Z")
    assert second.endswith("ERROR   node.daemon: handler failed path=/user/a")
    assert trace[-1] == "ValueError: odd"


def test_json_is_one_object_per_line() -> None:
    """The traceback is a field, not further lines."""
    first, second = (json.loads(line) for line in logged("json").splitlines())
    at = first.pop("at")
    assert at.endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "node.daemon",
        "event": "downing decided",
        "reachable": 2,
        "why": "a b",
        "empty": "",
    }
    assert second["path"] == "/user/a"
    assert second["traceback"].endswith("ValueError: odd")


def test_a_field_cannot_pose_as_the_event() -> None:
    """An extra field named like one of ours gets another name."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    logging.getLogger("x").info("real", extra={"event": "posed", "odd": object})
    line = json.loads(stream.getvalue())
    assert (line["event"], line["event_"]) == ("real", "posed")


def test_the_level_is_a_threshold() -> None:
    """Debug records come only when they are asked for."""
    assert "too much" not in logged("text")
    assert "too much" in logged("text", "debug")
