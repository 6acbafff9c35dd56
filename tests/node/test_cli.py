"""The command line: flags, mistakes and their texts, applications, commands to a member."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from node import cli, client
from node.errors import SettingsError
from node.management import reserve, start_management
from node.settings import setting_types
from node.system import ActorSystem
from tests.node.standin import MEMBERS, SINGLETONS, StandInSystem
from tests.style.sources import ROOT

SEED = ["--seed", "127.0.0.1:25520"]


def test_help_names_every_setting_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A new setting has a flag and a text at once, or this fails."""
    assert set(cli.HELP) == set(setting_types())
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("--seed", "--ack-timeout-s", "status", "members", "leave", "down", "70 a bug"):
        assert word in text


def test_help_stays_light() -> None:
    """`python -m node --help` loads nothing that only some members or commands need."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "node", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "node.cli" in loaded
    heavy = ("aiohttp", "kubernetes_asyncio", "prometheus_client", "rich", "uvloop", "tomllib")
    assert not loaded & {*heavy, "difflib", "node.testkit"}


def test_a_member_without_a_lease_loads_no_store() -> None:
    """Nor what drives a lease: it would take more memory and a longer start for nothing."""
    words = "import sys, node.system, node.zmq_environment; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = set(result.stdout.split())
    assert "node.system" in loaded
    heavy = {"sqlite3", "lease.sqlite", "lease.keeper", "lease.lease", "node.remembered", "aiohttp"}
    assert not loaded & heavy


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--prot", "3"], "--prot is no flag: did you mean --port?"),
        (["--xyzzy=3"], "--xyzzy=3 is no flag: `python -m node --help` lists all"),
        (["stats"], "'stats' is no command: did you mean status?"),
        (["--port", "abc", *SEED], "--port='abc' is not a whole number"),
        (["--port", "99999", *SEED], "port=99999 must lie between 0 (chosen) and 65535"),
        (["--config", "none.toml", *SEED], "config='none.toml' cannot be read"),
        (["--loop", "quick", *SEED], "loop='quick' is none of auto, uvloop, asyncio"),
        (["--log", "xml", *SEED], "log='xml' is none of text, json"),
        (["--http", "8550", *SEED], "http='8550' is no HOST:PORT: write for example"),
        (["--app", "jobs", *SEED], "app='jobs' is no MODULE:FUNCTION"),
        (["status"], "which member? Give --http HOST:PORT"),
        (["leave", "--http", "localhost"], "--http='localhost' is no HOST:PORT"),
        (["down", "a", "--http", "127.0.0.1:1"], "ADDRESS='a' is no HOST:PORT"),
        (["--downing", "keep-majorty", *SEED], "downing='keep-majorty': 'keep-majorty' is no down"),
        (["--downing", "static-quorum", *SEED], "static-quorum needs quorum_size: write static-qu"),
        (["--downing", "keep-majority:rôle", *SEED], "no parameter: did you mean 'role'?"),
        (["--contact-s", "5", *SEED], "down_after_s=5 must be at least 5.9, that is contact_s (5)"),
        (
            ["--contact-s", "1", *SEED],
            "contact_s=1 must be at least 5 x ack_timeout_s (0.25), 1.25",
        ),
        (["--lease", "mysql://x", *SEED], "lease='mysql://x': 'mysql' is no lease store that is"),
        (["--lease", "memory:", *SEED], "lease='memory:' is another store in each process, so ev"),
        (["--down-after-s", "0", *SEED], "down_after_s=0.0 must be greater than 0 and at most"),
        (["--down-all-when-unstable-s", "x", *SEED], "--down-all-when-unstable-s='x' is not a num"),
        (["--seed", "a..b:25520"], "seed='a..b:25520' is no HOST:PORT"),
        (["--seed", "[::1:5"], "seed='[::1:5' is no HOST:PORT"),
        (["--stop-timeout-s", "inf", *SEED], "stop_timeout_s=inf must be greater than 0 and at"),
        (["--stop-timeout-s", "nan", *SEED], "stop_timeout_s=nan must be greater than 0 and at"),
        (["--probe-interval-s", "0", "--ack-timeout-s", "0", *SEED], "probe_interval_s=0.0 must"),
        (["--http", "127.0.0.1:0", "--http-token-file", "/no/such", *SEED], "'/no/such' cannot be"),
        (["--http-token-file", "/no/such", "--port", "0", *SEED], "'/no/such' cannot be read"),
        (["--guard-fd", "987654", *SEED], "--guard-fd=987654 is no pipe to a supervisor: leave it"),
        (["--guard-fd", "-1", *SEED], "--guard-fd=-1 is no pipe to a supervisor"),
        (["--guard-fd", f"{2**70}", *SEED], "is no pipe to a supervisor: leave it out"),
        (
            ["--port", "24600", "--http", "127.0.0.1:24600", *SEED],
            "port=24600 and http='127.0.0.1:24600' are the same port: give each its own",
        ),
        (
            ["--port", "24600", "--data-port", "24600", *SEED],
            "port=24600 and data_port=24600 are the same port: give each its own",
        ),
        (
            ["--data-port", "24601", "--http", "0.0.0.0:24601", *SEED],
            "data_port=24601 and http='0.0.0.0:24601' are the same port: give each its own",
        ),
        (
            ["--processes", "2", "--port", "22800", "--http", "127.0.0.1:22801"],
            "--processes 2: port 22801 would be --port of member 1 and --http of member 0: give",
        ),
        (
            ["--processes", "3", "--port", "24602", "--data-port", "24600"],
            "--processes 3: port 24602 would be --port of member 0 and --data-port of member 2",
        ),
        (
            ["--processes", "2", "--port", "0", "--data-port", "65535", *SEED],
            "--processes 2 from --data-port 65535 on goes beyond 65535: begin lower",
        ),
        (
            ["--processes", "2", "--http", "127.0.0.1:65535"],
            "--processes 2 from --http 127.0.0.1:65535 on goes beyond 65535: begin lower",
        ),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    root_logger: None,
) -> None:
    """What, why, what to do; no traceback for a user's mistake."""
    monkeypatch.delenv("TENURE_TEST_LOOP", raising=False)
    assert cli.main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tenure: ")
    assert text in lines[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--port"], "argument --port: expected one argument: `python -m node --help` lists"),
        (["leave", "--timeout-s", "x"], "argument --timeout-s: 'x' is no number of seconds great"),
        (["status", "--timeout-s", "nan"], "'nan' is no number of seconds greater than 0 and at"),
        (["members", "--timeout-s", "0"], "'0' is no number of seconds"),
        (
            ["down", "--http", "x"],
            "the following arguments are required: ADDRESS: `python -m node d",
        ),
        (["status", "--timeout-s", "1e10"], "'1e10' is no number of seconds"),
        (["status", "--htpp", "x"], "--htpp x: `python -m node status --help` lists what there"),
    ],
)
def test_wrong_arguments_have_our_form(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """argparse's own errors too: one line, what and what to do, exit code 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tenure: ")
    assert text in line


def test_loops_by_name() -> None:
    """auto is uvloop where it is installed; asyncio is the stock loop."""
    for name, module in (("auto", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio.unix")):
        loop = cli.loop_factory(name)()
        assert type(loop).__module__.startswith(module)
        loop.close()


def test_without_uvloop_auto_falls_back_and_uvloop_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked for by name it must not be replaced quietly."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = cli.loop_factory("auto")()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
    with pytest.raises(SettingsError, match="install uvloop, or take --loop asyncio"):
        cli.loop_factory("uvloop")


@pytest.fixture
def root_logger() -> object:
    """The root logger is put back after a command line configured it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield None
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def app_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; modules made in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "content", "text"),
    [
        ("no_such_app:setup", None, "there is no module 'no_such_app' in "),
        ("no_such.app:setup", None, "there is no module 'no_such' in "),
        ("app_a:setup", "import no_such_thing", "cannot be imported: ModuleNotFoundError: No mod"),
        ("app_b:setup", "x = 1\n1 / 0\n", "ZeroDivisionError: division by zero, "),
        ("app_c:setup", "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("app_d:setup", "def sett_up(s): ...", "has no function 'setup': did you mean app_d:sett_"),
        ("app_e:setup", "", "define `def setup(system)` there"),
        ("app_f:setup", "setup = 3", "app_f has no function 'setup'"),
        ("app_g:setup", "\ndef setup(:", "app_g.py:2: mend it there"),
        ("app_h:stop", "from node import Stop\ndef go(s): ...", "define `def setup(system)` there"),
        ("app_i:messag", "from node import message", "define `def setup(system)` there"),
        ("app_j:setup", "class E(BaseException): ...\nraise E('x')", "cannot be imported: E: x, "),
        ("app_k:setup", "raise KeyboardInterrupt", "cannot be imported: KeyboardInterrupt, "),
        ("app_l:setup", "import json\njson.loads('{')", "app_l.py:2: mend it there"),
    ],
)
def test_an_application_that_cannot_be_loaded(
    app_folder: Path, spec: str, content: str | None, text: str
) -> None:
    """The text names the line of the application, not of ours."""
    name = spec.partition(":")[0]
    if content is not None:
        (app_folder / f"{name}.py").write_text(content)
    with pytest.raises(cli.ApplicationError) as error:
        cli.load_application(spec)
    assert text in str(error.value)
    if "ZeroDivision" in text:
        assert f"{name}.py:2: mend it there" in str(error.value)


async def test_setup_may_be_plain_or_async(app_folder: Path) -> None:
    """Both are called with the system, once, and an async one is awaited."""
    (app_folder / "app_ok.py").write_text(
        "calls = []\n"
        "def plain(system): calls.append(system)\n"
        "async def later(system): calls.append(system)\n"
    )
    system = cast(ActorSystem, StandInSystem())
    for name in ("plain", "later"):
        setup = cli.load_application(f"app_ok:{name}")
        await cli.set_up(setup, f"app_ok:{name}", system, cli.Signals())
    assert sys.modules["app_ok"].calls == [system, system]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("raise ValueError('no database')", "ValueError: no database, {file}:2: mend it there"),
        ("raise SystemExit(3)", "SystemExit: 3, {file}:2: mend it there"),
        ("raise asyncio.CancelledError", "CancelledError, {file}:2: mend it there"),
        ("class E(BaseException): ...\n    raise E('x')", "E: x, {file}:3: mend it there"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt, {file}:2: mend it there"),
        ("settings_from(prot=1)", "did you mean port?, {file}:2: mend it there"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_setup_that_raises_names_its_line(
    app_folder: Path, content: str, text: str, kind: str
) -> None:
    """Whatever it raises, also what no `except Exception` sees: the application's file and line,
    not the one of ours at which it was refused."""
    name = f"app_bad_{crc32(f'{content}{kind}'.encode())}"
    file = app_folder / f"{name}.py"
    imports = "import asyncio\nfrom node.settings import settings_from\n"
    file.write_text(f"{kind} setup(system):\n    {content}\n{imports}")
    setup = cli.load_application(f"{name}:setup")
    system = cast(ActorSystem, StandInSystem())
    with pytest.raises(cli.ApplicationError) as error:
        await cli.set_up(setup, f"{name}:setup", system, cli.Signals())
    assert "raised in its setup: " in str(error.value)
    assert text.format(file=file) in str(error.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("def setup(): ...", "takes 0 positional arguments but 1 was given, {file}:1: mend it"),
        (
            "def setup(system):\n    yield",
            "a yield in its setup, so nothing of it was run, {file}:1",
        ),
        ("async def setup(system):\n    yield", "so nothing of it was run, {file}:1: mend it"),
    ],
)
async def test_a_setup_of_another_form_names_where_it_is_defined(
    app_folder: Path, content: str, text: str
) -> None:
    """It was never entered, so there is no line that failed."""
    name = f"app_form_{len(content)}"
    file = app_folder / f"{name}.py"
    file.write_text(content + "\n")
    setup = cli.load_application(f"{name}:setup")
    with pytest.raises(cli.ApplicationError) as error:
        await cli.set_up(setup, name, cast(ActorSystem, StandInSystem()), cli.Signals())
    assert text.format(file=file) in str(error.value)


async def test_only_a_signal_makes_a_cancellation_an_orderly_end(app_folder: Path) -> None:
    """After one the setup's cancellation is ours, before it is the application's failure."""

    async def setup(system: ActorSystem) -> None:
        raise asyncio.CancelledError

    system, signals = cast(ActorSystem, StandInSystem()), cli.Signals()
    with pytest.raises(cli.ApplicationError):
        await cli.set_up(setup, "x:setup", system, signals)
    signals.first = signal.SIGTERM
    with pytest.raises((asyncio.CancelledError, cli.InterruptedBySignalError)):
        await cli.set_up(setup, "x:setup", system, signals)


def run_through(signals: cli.Signals, plain: Callable[[], None]) -> None:
    """Run code of an application as the command line does."""
    with signals.interrupting():
        plain()


def test_a_signal_cuts_plain_code_short_and_handlers_are_put_back() -> None:
    """A process that calls `main` has its own handlers afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    reached: list[str] = []

    def plain() -> None:
        signal.raise_signal(signal.SIGTERM)
        reached.append("the line after it")

    with cli.Signals() as signals, pytest.raises(cli.InterruptedBySignalError):
        run_through(signals, plain)
    assert (signals.first, reached) == (signal.SIGTERM, [])
    assert [signal.getsignal(number) for number in numbers] == before


def test_code_that_swallows_the_interruption_is_ended_after_it() -> None:
    """An application may catch everything; what comes next is not begun."""
    begun: list[int] = []

    def swallow() -> None:
        with contextlib.suppress(cli.InterruptedBySignalError):
            signal.raise_signal(signal.SIGINT)

    with cli.Signals() as signals:
        with pytest.raises(cli.InterruptedBySignalError):
            run_through(signals, swallow)
        with pytest.raises(cli.InterruptedBySignalError):
            run_through(signals, lambda: begun.append(1))
    assert begun == []


class Served:
    """A stand-in member behind HTTP, and the command line talking to it."""

    def __init__(self, system: StandInSystem, address: str) -> None:
        self.system = system
        self.address = address

    async def run(self, *arguments: str) -> int:
        """Run a client command in a thread, as another process would."""
        command, *rest = arguments
        return await asyncio.to_thread(cli.main, [command, "--http", self.address, *rest])


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A stand-in without a token file."""
    system = StandInSystem()
    management = await start_management(cast(ActorSystem, system), reserve("127.0.0.1", 0))
    yield Served(system, management.address)
    await management.close()


async def test_status_draws_members_and_singletons(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is in, who is not reachable, who leads, who hosts, what blocks."""
    assert await served.run("status") == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    first = next(row for row in rows if "127.0.0.1:25520" in row and "up" in row)
    assert "leader," in first
    second = next(row for row in rows if "127.0.0.1:25521" in row and "joining" in row)
    assert "no" in second
    assert "unresponsive" in first
    assert "127.0.0.1:25520 does not reach 127.0.0.1:25521" in text
    assert any("counter" in row and "running" in row for row in rows)
    assert "127.0.0.1:25521 blocks convergence" in text
    for line in (
        "downing keep-majority, waits, decides in 3.2 s: unreachable: 127.0.0.1:25521",
        "contact held for another 2.0 s",
        "warning: keep-majority: have an odd number",
    ):
        assert line in text.splitlines()


async def test_status_of_a_member_of_an_older_version(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of downing, and so does the command."""
    state = served.system.cluster.state() | {"downing": None}
    monkeypatch.setattr(served.system.cluster, "state", lambda: state)
    assert await served.run("status") == 0
    assert "downing" not in capsys.readouterr().out


async def test_status_of_a_member_that_still_looks(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without members there is the reason in words."""
    state = served.system.cluster.state() | {"members": [], "explain": "waiting for b:25520"}
    monkeypatch.setattr(served.system.cluster, "state", lambda: state)
    assert await served.run("status") == 0
    assert "waiting for b:25520" in capsys.readouterr().out


async def test_status_and_members_as_json(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a script reads is what the member said."""
    assert await served.run("status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["members"], status["singletons"]) == (MEMBERS, SINGLETONS)
    assert await served.run("members", "--json") == 0
    assert json.loads(capsys.readouterr().out) == MEMBERS


async def test_members_are_one_line_each(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields in a fixed order, `-` for what is empty: good for `awk`."""
    assert await served.run("members") == 0
    assert capsys.readouterr().out.splitlines() == [
        "127.0.0.1:25520 up reachable a web,jobs 17283946550123456789",
        "127.0.0.1:25521 joining unreachable - - 2",
    ]


async def test_leave_orders_it(served: Served) -> None:
    """Exit code 0 once the member took the order."""
    assert await served.run("leave") == 0
    assert served.system.leaves == 1


async def test_down_waits_and_says_how_it_ended(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 once it is down, 1 with the node's words when it is not."""
    assert await served.run("down", "127.0.0.1:25521") == 0
    assert capsys.readouterr().out == "127.0.0.1:25521 is down\n"
    assert await served.run("down", "127.0.0.1:25520", "--timeout-s", "2") == 0
    assert capsys.readouterr().out == "127.0.0.1:25520 ends\n"
    served.system.cluster.fault = TimeoutError("waiting for the promise of x:1")
    assert await served.run("down", "127.0.0.1:25521") == 1
    assert "says no: waiting for the promise of x:1: the order stands" in capsys.readouterr().err
    waited = [timeout_s for _, timeout_s in served.system.cluster.orders]
    assert waited == [30.0, 2.0, 30.0]


async def test_a_member_that_says_no_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing token, then the right one."""
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    system = StandInSystem()
    management = await start_management(
        cast(ActorSystem, system), reserve("127.0.0.1", 0), token_file=str(token_file)
    )
    served = Served(system, management.address)
    assert await served.run("leave") == 1
    assert "says no: the token is missing or wrong" in capsys.readouterr().err
    assert await served.run("leave", "--token-file", str(tmp_path / "none")) == 2
    assert await served.run("leave", "--token-file", str(token_file)) == 0
    assert system.leaves == 1
    await management.close()


def test_nobody_there_is_exit_code_69(capsys: pytest.CaptureFixture[str]) -> None:
    """What to look at is in the text."""
    with reserve("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    arguments = ["status", "--timeout-s", "0.1", "--http", f"127.0.0.1:{port}"]
    assert cli.main(arguments) == client.NOT_REACHABLE == 69
    assert f"was it started with --http 127.0.0.1:{port}?" in capsys.readouterr().err


async def test_a_member_that_is_about_to_serve_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Right after `python -m node … &` there is nobody yet, and a second later there is."""
    with reserve("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    served = Served(StandInSystem(), f"127.0.0.1:{port}")
    refused = client.Connection("127.0.0.1", port, 0.01)
    with pytest.raises(client.NotReachableError):
        await asyncio.to_thread(refused.ask, "GET", "/cluster")
    asked = asyncio.create_task(served.run("members"))
    await asyncio.sleep(2 * client.RETRY_S)
    assert not asked.done()
    listener = reserve("127.0.0.1", port)
    management = await start_management(cast(ActorSystem, served.system), listener)
    assert await asked == 0
    await management.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f", "something else (what it says is not HTTP)"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "something else (HTTP 200 without JSON)"),
        (b"HTTP/1.0 404 No\r\n\r\n{}", "something else (HTTP 404 without a reason)"),
        (b'HTTP/1.0 200 OK\r\n\r\n["hello"]', "something else (its /cluster has no members)"),
        (b"", "is it running"),
    ],
)
@pytest.mark.parametrize("command", ["status", "members"])
async def test_somebody_else_there_is_exit_code_69(
    answer: bytes, text: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that does not speak HTTP is no member, nor is a web server of others."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await asyncio.to_thread(cli.main, [command, "--http", f"127.0.0.1:{port}"]) == 69
    server.close()
    await server.wait_closed()
    said = capsys.readouterr().err
    assert said.startswith("tenure: no member answers at 127.0.0.1:")
    assert text in said


def test_the_environment_names_the_member(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TENURE_HTTP spares the flag."""
    monkeypatch.setenv("TENURE_HTTP", "nowhere")
    assert cli.main(["status"]) == 2
    assert "'nowhere' is no HOST:PORT" in capsys.readouterr().err
