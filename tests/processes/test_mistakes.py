"""What operators and strangers do wrong: a text that helps and an exit code, or a counted drop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import processes
from bench.processes import COUNTER_APP, Member, Members, clean_environment


def ends_with(
    members: Members,
    code: int,
    *texts: str,
    seeds: Sequence[int | str] = (),
    app: str = COUNTER_APP,
    arguments: Sequence[str] = (),
) -> Member:
    """Start a member that must end by itself, with this exit code and these words on stderr."""
    port = members.free_ports(1)[0]
    member = members.start("x", port=port, seeds=seeds, app=app, arguments=arguments)
    assert members.wait_end(member) == code, member.log()
    for text in texts:
        assert text in member.log()
    assert "Traceback" not in member.log()
    return member


def test_a_control_port_in_use(members: Members) -> None:
    """Exit code 5: which port, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        member = members.start("x", port=port)
        assert members.wait_end(member) == 5, member.log()
        assert f"127.0.0.1:{port}: another process listens there" in member.log()
        assert "choose another port" in member.log()
        assert "Traceback" not in member.log()


def test_a_data_port_in_use(members: Members) -> None:
    """The same for the other lane; the control port is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        member = ends_with(members, 5, f":{port}: another process", arguments=["--data-port", port])
    with socket.create_server(("127.0.0.1", member.port)):
        pass


def test_an_http_port_in_use(members: Members) -> None:
    """The same for HTTP, before the member joins."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        member = ends_with(members, 5, f"http={address}", arguments=["--http", address])
        assert member.seen("member_up") == []


def test_a_seed_that_does_not_resolve(members: Members) -> None:
    """Exit code 4: which name, and what to do."""
    ends_with(members, 4, "no-such-host.invalid", "--seed", seeds=["no-such-host.invalid:25520"])


def test_one_seed_that_resolves_is_enough(members: Members) -> None:
    """A name that does not resolve now must not keep a member out of its cluster."""
    ports = members.free_ports(2)
    first = members.start("a", port=ports[0])
    members.wait_all_up([first])
    seeds: list[int | str] = ["no-such-host.invalid:25520", ports[0]]
    second = members.start("b", port=ports[1], seeds=seeds)
    members.wait_all_up([first, second])


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("no_such_app:setup", "there is no module 'no_such_app'"),
        ("tests.processes.apps:no_setup", "has no function 'no_setup'"),
        ("tests.processes.apps:broken", "raised in its setup: ValueError: no database"),
        ("tests.processes.apps:given_up", "raised in its setup: CancelledError, "),
        ("tests.processes.apps:no_exception", "raised in its setup: NoExceptionError: no such"),
    ],
)
def test_an_application_that_fails(members: Members, app: str, text: str) -> None:
    """Exit code 6, naming what failed; the member never joined and its port is free again."""
    member = ends_with(members, 6, text, app=app)
    assert member.seen("member_up") == []
    with socket.create_server(("127.0.0.1", member.port)):
        pass


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.0.2.1", "--insecure"),  # anybody in reach could join
        ("0.0.0.0", "name the one address"),  # I-84: nobody's address
    ],
)
def test_outside_loopback_without_keys(members: Members, host: str, text: str) -> None:
    """Exit code 2 and what to do; a wildcard is refused whatever else is given."""
    ends_with(members, 2, host, text, arguments=["--host", host])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("where", ["slow_import:setup", "apps:slow_setup"])
def test_a_signal_while_the_application_is_not_ready(
    members: Members, number: signal.Signals, where: str
) -> None:
    """A clean end with one line, not a traceback: nothing was joined, so nothing is left."""
    member = in_its_application(members, where)
    members.end(member, number)
    assert members.wait_end(member) == 0, member.log()
    assert f"ended before it looked for the cluster signal={number.name}" in member.log()
    assert "Traceback" not in member.log()
    assert member.seen("member_up") == []


@pytest.mark.parametrize("where", ["stubborn_import:setup", "apps:stubborn_setup"])
def test_a_second_signal_ends_an_application_that_holds_on(members: Members, where: str) -> None:
    """Exit code 128 + n at once, whatever the application catches."""
    member = in_its_application(members, where)
    members.end(member, signal.SIGINT)
    members.wait("the first signal is caught", lambda: (members.directory / "caught").exists())
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 128 + signal.SIGTERM


def in_its_application(members: Members, app: str) -> Member:
    """A member that is being held by its application, which says so by a file."""
    member = members.start("x", port=members.free_ports(1)[0], app=f"tests.processes.{app}")
    members.wait("the application holds it", lambda: (members.directory / "entered").exists())
    return member


@pytest.mark.parametrize("seed", ["a..b:25520", f"{'x' * 70}:25520", "[::1:5", "a:b"])
def test_a_malformed_seed(members: Members, seed: str) -> None:
    """Exit code 2 before anything is bound."""
    member = ends_with(members, 2, f"seed={seed!r} is no HOST:PORT", seeds=[seed])
    assert "bound" not in member.log()


def test_files_that_cannot_be_used(members: Members, tmp_path: Path) -> None:
    """Exit code 2 with key, value and mend: the operator learns it now, not when it is needed."""
    (tmp_path / "file").write_text("")
    state_dir, none = str(tmp_path / "file" / "x"), str(tmp_path / "none")
    ends_with(members, 2, f"state_dir={state_dir!r} cannot", arguments=["--state-dir", state_dir])
    address = f"127.0.0.1:{members.free_ports(1)[0]}"
    arguments = ["--http", address, "--http-token-file", none]
    ends_with(members, 2, f"http_token_file={none!r} cannot be read", arguments=arguments)


def test_a_damaged_state_file_only_warns(members: Members, tmp_path: Path) -> None:
    """What was remembered is a help, not a condition."""
    port = members.free_ports(1)[0]
    state_dir = tmp_path / "state"
    arguments = ["--state-dir", str(state_dir)]
    first = members.start("a", port=port, arguments=arguments)
    members.wait_all_up([first])
    (file,) = members.wait("it remembers", lambda: list(state_dir.glob("members-*.json")))
    members.end(first, signal.SIGTERM)
    assert members.wait_end(first) == 0
    file.write_text("{")
    second = members.start("b", port=port, arguments=arguments)
    members.wait_all_up([second])
    assert "the remembered members cannot be read" in second.log()


def test_variables_of_a_kubernetes_service(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Service called `tenure` in the namespace: one line at info, and the member starts."""
    service = {"TENURE_SERVICE_HOST": "10.0.0.7", "TENURE_PORT": "tcp://10.0.0.7:25520"}
    monkeypatch.setattr(processes, "clean_environment", lambda: {**clean_environment(), **service})
    member = members.start("a", port=members.free_ports(1)[0])
    members.wait_all_up([member])
    assert member.log().count("variables that Kubernetes sets for a Service") == 1
    assert 'variables="TENURE_PORT TENURE_SERVICE_HOST"' in member.log()


def test_a_wrong_setting(members: Members) -> None:
    """Exit code 2 with key, value and mend."""
    ends_with(members, 2, "hand_over_timeout_s=-1", arguments=["--hand-over-timeout-s", "-1"])


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--cluster-name", "two"], ["two", "tenure"]),
        (["--hand-over-timeout-s", "3"], ["hand_over_timeout_s", "3", "10"]),
        (["--crash-evidence", "never"], ["crash_evidence", "never", "same-host"]),
        (["--frame-bytes-max", "100000"], ["frame_bytes_max", "100000", "8388608"]),
    ],
)
def test_a_member_that_does_not_fit_is_refused(
    members: Members, arguments: Sequence[str], texts: Sequence[str]
) -> None:
    """Exit code 3 with both values; the cluster goes on."""
    member = members.start("a", port=members.free_ports(1)[0])
    members.wait_all_up([member])
    ends_with(members, 3, *texts, seeds=[member.port], arguments=arguments)
    assert member.up_members() == {member.address}
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 0


def test_an_http_client_on_the_lanes_is_harmless(members: Members) -> None:
    """Both lanes drop a stranger's bytes and go on; the next member joins as ever."""
    control, data, other = members.free_ports(3)
    member = members.start("a", port=control, arguments=["--data-port", str(data)])
    members.wait_all_up([member])
    strangers = [talk_http(port) for port in (control, data) for _ in range(20)]
    second = members.start("b", port=other, seeds=[control])
    members.wait_all_up([member, second])
    for stranger in strangers:
        stranger.close()
    assert member.running
    # One line per reason at most, however many strangers come.
    assert len(member.log().splitlines()) < 40
    members.end(member, signal.SIGTERM)
    assert members.wait_end(member) == 0


def talk_http(port: int) -> socket.socket:
    """A connection on which a browser or a probe has spoken, and waits for an answer."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.sendall(b"GET /cluster HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 500)
    return connection
