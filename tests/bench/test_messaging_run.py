"""The whole bench with real processes, small; and how it ends when a side does not."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import zmq

from bench import __main__ as main
from bench import report
from bench.messaging import command, environments, results, rounds
from bench.messaging.child import Child, NotMeasuredError
from bench.messaging.environments import NotAvailableError, Peer
from bench.messaging.peer import free_port
from bench.messaging.rounds import Bench, Plan
from bench.messaging.table import CURVE, FLOOR, JUDGED, OFF, ON, OURS, RAW, judge, reported

ROW_S = 0.05
ROWS = frozenset(
    ["ask1", "ask64", "tell_100", "tell_1m", "probe", "cost_tell_100", "local_tell", "local_ask1"]
)


@pytest.fixture(scope="module")
def bench() -> tuple[Bench, list[rounds.Round]]:
    """One round of some rows, all sides that need no peer."""
    run = Bench(Plan(rounds=1, for_s=ROW_S, only=ROWS), say=lambda text: None)
    return run, run.run()


@pytest.mark.parametrize(
    ("side", "row", "keys"),
    [
        (OURS, "ask1", {"n", "per_s", "p50_us", "p99_us"}),
        (OURS, "ask64", {"n", "per_s"}),
        (OURS, "tell_100", {"n", "per_s", "mb_per_s"}),
        (OURS, "tell_1m", {"n", "per_s", "mb_per_s"}),
        (RAW, "ask1", {"n", "per_s", "p50_us", "p99_us"}),
        (RAW, "ask64_tuned", {"n", "per_s", "p50_us", "p99_us"}),
        (RAW, "tell_100", {"n", "per_s", "mb_per_s"}),
        (RAW, "tell_1m", {"n", "per_s", "mb_per_s"}),
        (CURVE, "ask1", {"n", "per_s", "p50_us", "p99_us"}),
        (OURS, "probe", {"n", "unanswered", "p50_us", "p99_us", "p99_ms", "max_us"}),
        (OURS, "probe_bulk", {"n", "per_s", "mb_per_s"}),
        (ON, "tell_100", {"per_s"}),
        (OFF, "tell_100", {"per_s"}),
        (FLOOR, "local_tell", {"n", "per_s"}),
        (OURS, "local_tell", {"n", "per_s", "mb_per_s"}),
        (OURS, "local_ask1", {"n", "per_s", "p50_us", "p99_us"}),
    ],
)
def test_real_processes_give_figures(
    bench: tuple[Bench, list[rounds.Round]], side: str, row: str, keys: set[str]
) -> None:
    """Ours, plain and with keys and with HTTP, the raw limits, the probe and the floor."""
    figures = bench[1][0].figures[side, row]
    assert not isinstance(figures, str), figures
    assert figures.keys() == keys
    assert all(value > 0 for key, value in figures.items() if key not in ("unanswered", "mb_per_s"))


def test_the_object_the_page_and_the_plot(
    bench: tuple[Bench, list[rounds.Round]], tmp_path: Path
) -> None:
    """The common form with every metric by name, a page that shows the plot, a plot that parses."""
    run, taken = bench
    figures = [one.figures for one in taken]
    judged = [judge(metric, figures, ()) for metric in JUDGED]
    others = [judge(metric, figures, ()) for metric in reported(())]
    written: dict[str, Any] = results.content(run.plan, judged, others, taken, run.facts, 0.5)
    assert {"bench", "version", "settings", "machine", "rows", "metrics"} <= written.keys()
    assert written["metrics"].keys() == {one.metric for one in [*judged, *others]}
    assert written["metrics"]["remote_ask_p50_us"] > 0
    assert written["metrics"]["spawn_per_s"] is None
    json.dumps(written)
    page, picture = results.write_page(tmp_path / "results", "the call", written, judged, others)
    text = page.read_text()
    assert f"]({picture.name})" in text
    assert "`remote_tell_vs_raw`" in text
    labels = {node.text for node in ElementTree.parse(picture).iter() if node.text}
    assert {OURS, RAW} <= labels


@pytest.mark.parametrize(
    ("values", "errors", "code"),
    [
        ([1.0], [], command.ALL_MET),
        ([3.0], [], command.MISSED),
        ([], ["refused: 1 of 2"], command.NOT_MEASURED),
        ([3.0], ["refused: 1 of 2"], command.NOT_MEASURED),
    ],
)
def test_the_exit_code_says_what_came_of_it(
    values: list[float], errors: list[str], code: int
) -> None:
    """Something without figures weighs more than a missed target."""
    row = report.row("x", "s", values, expected=1, target=2.0, failures=errors)
    assert command.exit_code([row]) == code


@pytest.mark.parametrize(
    "arguments", [["--peers", "casty,nobody"], ["--rounds", "0"], ["--rounds", "x"], ["--what"]]
)
def test_a_wrong_call_ends_with_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    monkeypatch.setattr("sys.argv", ["bench", "messaging", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_peer_that_cannot_be_installed_says_so_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows have the reason; those of the others have figures."""
    missing = Peer(name="casty", requirement="casty", python_min=(3, 99))
    monkeypatch.setitem(environments.PEERS, "casty", missing)
    plan = Plan(
        rounds=1,
        for_s=ROW_S,
        peers=("casty",),
        environments=tmp_path,
        only=frozenset(["local_tell"]),
    )
    run = Bench(plan, say=lambda text: None)
    [one] = run.run()
    reason = one.figures["casty", "local_tell"]
    assert isinstance(reason, str)
    assert reason.startswith("not available: casty needs Python 3.99")
    assert not isinstance(one.figures[OURS, "local_tell"], str)
    assert run.facts["casty"] == {"state": reason}


def test_a_failed_installation_tells_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left that a later run could take for a finished environment."""
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho first >&2\necho no venv in this Python >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(environments, "find_python", lambda least: broken)
    peer = environments.PEERS["casty"]
    with pytest.raises(NotAvailableError, match="casty was not installed: no venv in this Python"):
        environments.interpreter_of(peer, tmp_path)
    assert not (tmp_path / "casty" / "installed.json").exists()


@pytest.mark.parametrize("name", environments.PEERS)
def test_the_module_of_a_peer_offers_its_parts(name: str) -> None:
    """Read, not imported: what it imports is only in the peer's own environment."""
    path = Path(environments.__file__).parent / "peers" / f"{name}.py"
    found = {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert set(environments.PEERS[name].parts) == found & {"receive", "drive", "local"}


def child(tmp_path: Path, program: str) -> Child:
    """A process that runs a few lines of Python."""
    return Child([sys.executable, "-c", program], tmp_path / "log")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no luck')", "exit code 1; its last words: no luck"),
        ('print(\'{"refused": "1 of 2"}\')', "refused: 1 of 2"),
        ('print(\'{"failed": "OSError: x"}\')', "failed: OSError: x"),
        ("input()", "no answer in time"),
    ],
)
def test_a_side_that_does_not_answer(tmp_path: Path, program: str, words: str) -> None:
    """The reason is what it said last; noise on its output is no answer."""
    with child(tmp_path, f"print('a banner', flush=True)\n{program}") as side:
        with pytest.raises(NotMeasuredError, match=words):
            side.answer(timeout_s=30.0 if "input" not in program else 0.5)
        if "input" in program:
            # Killed: a late answer cannot be taken for that to a later order.
            with pytest.raises(NotMeasuredError, match=r"exit code|had ended"):
                side.measure("ask1", 0.0)


def test_the_mechanism_is_read_off_the_wire() -> None:
    """So that rows with CURVE are rows with CURVE, whatever our own side believes."""
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as plain,
        context.socket(zmq.ROUTER) as curve,
    ):
        curve.curve_server = True
        curve.curve_secretkey = zmq.curve_keypair()[1]
        ports = [each.bind_to_random_port("tcp://127.0.0.1") for each in (plain, curve)]
        assert [rounds.mechanism_at(port) for port in ports] == ["NULL", "CURVE"]
    assert rounds.mechanism_at(free_port()).startswith("nothing")


def test_metrics_that_nobody_serves_have_no_known_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cost of nothing would be a lie."""
    monkeypatch.setattr(rounds, "HTTP_TIMEOUT_S", 0.1)
    with (
        pytest.raises(NotMeasuredError, match="did not serve"),
        rounds.scraping([f"127.0.0.1:{free_port()}"]),
    ):
        pass
