"""A bench's object has one form; counts that do not add up are errors, missed targets are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import report, smoke


def test_a_row_has_the_statistics() -> None:
    """Median, extremes and nearest-rank percentiles of what was measured."""
    samples = [float(number) for number in range(100, 0, -1)]
    row = report.row("gap_s", "s", samples, expected=100, target=50.5, note="why")
    assert (row.n, row.min, row.median, row.p95, row.p99, row.max) == (100, 1, 50.5, 95, 99, 100)
    assert (row.target, row.met, row.note, row.error) == (50.5, True, "why", None)


@pytest.mark.parametrize(("target", "met"), [(None, None), (1.9, False), (2.0, True), (3, True)])
def test_met_compares_the_median(target: float | None, met: bool | None) -> None:
    """Null where there is no target."""
    assert report.row("x", "s", [1.0, 2.0, 9.0], expected=3, target=target).met is met


def test_missing_samples_are_an_error() -> None:
    """The row says how many are missing and why; what is there is still shown."""
    row = report.row("x", "s", [1.0], expected=3, failures=["not seen", "not seen"])
    assert row.error == "1 of 3 samples: not seen; not seen"
    assert row.median == 1.0
    empty = report.row("x", "s", [], expected=1, target=1.0)
    assert (empty.median, empty.met, empty.p99) == (None, None, None)
    assert empty.error is not None


def test_the_object_has_the_form_of_the_design(tmp_path: Path) -> None:
    """Design §11; `error` only where there is one."""
    good = report.row("x", "s", [1.0], expected=1, target=2.0)
    bad = report.row("y", "s", [], expected=1)
    path = tmp_path / "result.json"
    report.write(path, report.report("smoke", {"quick": True}, [good, bad]))
    written = json.loads(path.read_text())
    assert set(written) == {"bench", "version", "settings", "machine", "rows"}
    assert set(written["machine"]) == {"cores", "python", "load"}
    needed = {"metric", "unit", "n", "median", "min", "p95", "p99", "max", "target", "met", "note"}
    assert needed <= set(written["rows"][0])
    assert "error" not in written["rows"][0]
    assert written["rows"][1]["error"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(("samples", "code"), [([9.0], 0), ([], 1)])
def test_exit_code_judges_counts_not_targets(
    samples: list[float],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0 also when a target is missed, 1 when a sample is; the object is written either way."""
    row = report.row("x", "s", samples, expected=1, target=1.0)
    monkeypatch.setattr(smoke, "run", lambda quick: ({"quick": quick}, [row]))
    path = tmp_path / "result.json"
    monkeypatch.setattr("sys.argv", ["bench", "smoke", "--quick", "--json", str(path)])
    assert command.main() == code
    assert json.loads(path.read_text())["settings"] == {"quick": True}
    assert "x" in capsys.readouterr().out
