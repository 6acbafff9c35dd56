"""A history line is one write: whole, in order, and there after a SIGKILL."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.history import LINE_BYTES_MAX, History, boottime_s


def lines(path: Path) -> list[dict[str, object]]:
    """The file's lines, decoded."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_all_fields(tmp_path: Path) -> None:
    """The form of design §9; what was not given is null."""
    path = tmp_path / "history"
    history = History(str(path), node="127.0.0.1:25520", clock=lambda: 12.3456789)
    history.write("started", singleton="counter", instance_id="7", detail="taken over")
    history.write("bound")
    history.close()
    assert lines(path) == [
        {
            "at_s": 12.345679,
            "node": "127.0.0.1:25520",
            "event": "started",
            "singleton": "counter",
            "instance_id": "7",
            "token": None,
            "detail": "taken over",
        },
        {
            "at_s": 12.345679,
            "node": "127.0.0.1:25520",
            "event": "bound",
            "singleton": None,
            "instance_id": None,
            "token": None,
            "detail": "",
        },
    ]


def test_lines_are_stamped_with_the_clock_all_processes_share(tmp_path: Path) -> None:
    """CLOCK_BOOTTIME: instants of two histories on one host can be subtracted."""
    path = tmp_path / "history"
    before_s = boottime_s()
    History(str(path)).write("bound")
    at_s = lines(path)[0]["at_s"]
    assert isinstance(at_s, float)
    assert before_s - 1e-6 <= at_s <= boottime_s() + 1e-6


def test_it_appends(tmp_path: Path) -> None:
    """A restarted process goes on in the same file."""
    path = tmp_path / "history"
    for event in ("first", "second"):
        history = History(str(path))
        history.write(event)
        history.close()
    assert [line["event"] for line in lines(path)] == ["first", "second"]


def test_a_long_or_odd_detail_stays_one_bounded_line(tmp_path: Path) -> None:
    """Line breaks are escaped, length is cut and says so."""
    path = tmp_path / "history"
    history = History(str(path))
    history.write("downed", detail="one\ntwo ü \x00")
    history.write("downed", detail="\x00" * 10 * LINE_BYTES_MAX)
    data = path.read_bytes().splitlines()
    assert len(data) == 2
    assert json.loads(data[0])["detail"] == "one\ntwo ü \x00"
    assert json.loads(data[1])["detail"].endswith("[cut]")
    assert len(data[1]) < LINE_BYTES_MAX


def test_lines_survive_sigkill(tmp_path: Path) -> None:
    """What was written before the kill is read whole after it, by another process."""
    path = tmp_path / "history"
    program = (
        "import sys; from node.history import History; h = History(sys.argv[1])\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; h.write('event', detail=str(n))\n"
        "    if n == 1000: print('enough', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "enough\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    details = [line["detail"] for line in lines(path)]
    assert len(details) >= 1000
    assert details == [str(number + 1) for number in range(len(details))]


def test_a_file_that_cannot_be_opened_names_setting_and_mend(tmp_path: Path) -> None:
    """A wrong setting stops the start: key, value, what to do."""
    missing = str(tmp_path / "nowhere" / "history")
    with pytest.raises(SettingsError, match=r"history='.*nowhere/history'.*directory that exists"):
        History(missing)


def test_a_lost_line_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk neither stops the node nor floods its log."""
    history = History("/dev/full")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            history.write("bound")
    assert history.lost_count == 3
    assert [record.getMessage() for record in caplog.records] == ["a history line was lost"]


def test_writing_after_close_is_counted(tmp_path: Path) -> None:
    """Closing twice is harmless, a late fact is no exception."""
    history = History(str(tmp_path / "history"))
    history.close()
    history.close()
    history.write("late")
    assert history.lost_count == 1
