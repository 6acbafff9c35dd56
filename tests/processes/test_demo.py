"""`make demo` ends well and leaves nothing, however it is ended."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from bench.gossip.namespaces import can_make_networks
from bench.processes import ROOT, Members, spawn


def left_over(directory: Path) -> list[str]:
    """Command lines of processes that were started with a file in `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        if str(directory) in line and "bench.demo" not in line:
            found.append(line)
    return found


def test_the_demo_shows_both_gaps_and_leaves_no_process(tmp_path: Path) -> None:
    """Exit code 0, both figures, plain text without a terminal, files cleaned up."""
    log = tmp_path / "demo.log"
    files = tmp_path / "files"
    files.mkdir()
    demo = spawn([sys.executable, "-m", "bench.demo"], log, TMPDIR=str(files))
    assert demo.wait(timeout=120) == 0, log.read_text()
    text = log.read_text()
    killed = re.search(r"SIGKILL of the host: ([\d.]+) s without", text)
    left = re.search(r"Graceful leave: ([\d.]+) ms", text)
    assert killed is not None
    assert left is not None
    assert 0 <= float(left[1]) / 1000 < float(killed[1]) + 1
    assert "\x1b" not in text
    for level in ("downing", "downing + lease"):
        shown = re.search(
            rf"^{re.escape(level)}: ([\d.]+) s without one, never two$", text, re.MULTILINE
        )
        assert shown is not None, text
        assert 1.0 < float(shown[1]) < 10.0
    none = re.search(
        r"^none: ([\d.]+) s without one, two acted for ([\d.]+) s$", text, re.MULTILINE
    )
    if can_make_networks():
        assert none is not None, "what the first level does not promise is shown, not hidden"
    assert left_over(files) == []
    assert list(files.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_its_members(tmp_path: Path) -> None:
    """Exit code 130 and no process, wherever in the play it comes."""
    log = tmp_path / "demo.log"
    files = tmp_path / "files"
    files.mkdir()
    demo = spawn([sys.executable, "-m", "bench.demo"], log, TMPDIR=str(files))
    watcher = Members(tmp_path)
    watcher.wait("a host", lambda: "hosts the counter" in log.read_text())
    assert len(left_over(files)) == 3
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=15) == 130, log.read_text()
    assert left_over(files) == []
    assert list(files.iterdir()) == []


def test_make_demo_is_this_demo() -> None:
    """What is tested here is what `make demo` runs."""
    assert "$(BIN)/python -m bench.demo\n" in (ROOT / "Makefile").read_text()


def test_the_demo_of_sharding_loses_nothing_on_graceful_moves(tmp_path: Path) -> None:
    """Exit code 0 says so: a join, a leave, and after kill -9 all carts answer again."""
    log = tmp_path / "demo.log"
    files = tmp_path / "files"
    files.mkdir()
    demo = spawn([sys.executable, "-m", "bench.demo_sharding"], log, TMPDIR=str(files))
    assert demo.wait(timeout=120) == 0, log.read_text()
    text = log.read_text()
    assert len(re.findall(r"^\d+ asks, none failed; the longest took \d+ ms\.$", text, re.M)) >= 2
    assert "\x1b" not in text
    assert left_over(files) == []
    assert list(files.iterdir()) == []
