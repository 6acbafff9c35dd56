"""The HTTP door: what each path answers, and who may give orders."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from node.errors import AddressInUseError, SettingsError
from node.management import Request, Routes, is_loopback, read_token, reserve, start_management
from node.metrics import exposition, metric_name
from node.system import ActorSystem
from tests.node.standin import LEASES, SHARDS, SINGLETONS, STATE, StandInSystem

ORDER = b'{"address": "127.0.0.1:25521"}'


class Reply(NamedTuple):
    """An answer as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def value(self) -> Any:
        """The JSON in the body."""
        return json.loads(self.body)


class Door(NamedTuple):
    """A served stand-in."""

    system: StandInSystem
    address: str

    async def ask(self, method: str, path: str, sent: bytes = b"", **headers: str) -> Reply:
        """One request on a connection of its own."""
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if sent:
            lines.append(f"Content-Length: {len(sent)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
        data = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await writer.wait_closed()
        head, _, body = data.decode().partition("\r\n\r\n")
        status, *fields = head.split("\r\n")
        pairs = (field.split(": ", 1) for field in fields)
        return Reply(int(status.split()[1]), {name.lower(): value for name, value in pairs}, body)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """HTTP on an ephemeral port."""
    system = StandInSystem()
    management = await start_management(as_system(system), reserve("127.0.0.1", 0))
    yield Door(system, management.address)
    await management.close()


def as_system(system: StandInSystem) -> ActorSystem:
    """The stand-in has what HTTP reads of a system."""
    return cast(ActorSystem, system)


async def test_live_depends_on_nothing(door: Door) -> None:
    """I-147: a node that is not ready is alive."""
    reply = await door.ask("GET", "/health/live")
    assert (reply.status, reply.value) == (200, {"live": True})


async def test_ready_says_why_not(door: Door) -> None:
    """503 with the reason until ready, then 200."""
    reply = await door.ask("GET", "/health/ready")
    assert (reply.status, reply.value["reason"]) == (503, "waiting for 127.0.0.1:25521")
    door.system.is_ready = (True, "")
    reply = await door.ask("GET", "/health/ready")
    assert (reply.status, reply.value["ready"]) == (200, True)


async def test_state_is_what_the_system_says(door: Door) -> None:
    """/cluster, /singletons and /leases, as JSON, uids and tokens as text."""
    reply = await door.ask("GET", "/cluster")
    assert (reply.status, reply.value) == (200, STATE)
    assert reply.headers["content-type"] == "application/json"
    assert (await door.ask("GET", "/singletons")).value == SINGLETONS
    assert (await door.ask("GET", "/leases")).value == LEASES


async def test_shards_are_shown_and_rebalanced_by_order(door: Door) -> None:
    """An order for what is no type is refused in words."""
    assert (await door.ask("GET", "/shards")).value == SHARDS
    reply = await door.ask("POST", "/shards/rebalance", b'{"type": "cart"}')
    assert reply.status == 202
    assert reply.value == {"type": "cart", "asked": True, "explain": "2 at 127.0.0.1:25520"}
    assert door.system.cluster.sharding.orders == ["cart"]
    reply = await door.ask("POST", "/shards/rebalance", b'{"type": "boots"}')
    assert reply.status == 404
    assert "boots" in str(reply.value)
    assert (await door.ask("POST", "/shards/rebalance", b"{}")).status == 400


async def test_metrics_are_prometheus_text(door: Door) -> None:
    """Counters end in _total, what may fall does not."""
    reply = await door.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.splitlines()
    for line in (
        "tenure_dead_letters_total 3.0",
        "tenure_frames_refused_bad_head_total 2.0",
        'tenure_members{status="joining"} 1.0',
        'tenure_members{status="up"} 1.0',
        "tenure_members_unreachable 1.0",
        "tenure_members_suspect 1.0",
        "tenure_members_unresponsive 1.0",
        "tenure_local_health_score 3.0",
        "tenure_converged 0.0",
        "tenure_ready 0.0",
        "tenure_downing_doomed 1.0",
        "tenure_contact_wanted 1.0",
        "tenure_contact_held 1.0",
        "tenure_contact_remaining_s 2.0",
        'tenure_singleton_running{singleton="counter"} 1.0',
        'tenure_shards{type="cart"} 2.0',
        'tenure_entities{type="cart"} 7.0',
        'tenure_shard_messages_held{type="cart"} 1.0',
        'tenure_lease_held{lease="jobs"} 1.0',
        'tenure_lease_remaining_s{lease="jobs"} 12.5',
        'tenure_lease_acquire_s_count{lease="jobs"} 2.0',
        'tenure_lease_acquire_s_sum{lease="jobs"} 0.5',
    ):
        assert line in lines


def test_metrics_leave_the_global_registry_alone() -> None:
    """What the application registers there is neither read nor touched."""
    from prometheus_client import REGISTRY

    before = set(REGISTRY._names_to_collectors)
    first = exposition(as_system(StandInSystem()))
    assert b"tenure_dead_letters_total" in first
    assert exposition(as_system(StandInSystem())).count(b"\n") == first.count(b"\n")
    assert set(REGISTRY._names_to_collectors) == before


@pytest.mark.parametrize(
    ("counter", "metric"),
    [
        ("dead_letters", "tenure_dead_letters"),
        ("frames refused: bad-head", "tenure_frames_refused_bad_head"),
        ("Data.Bytes", "tenure_data_bytes"),
    ],
)
def test_metric_names(counter: str, metric: str) -> None:
    """Any counter has a name Prometheus takes."""
    assert metric_name(counter) == metric


async def test_unknown_paths_and_methods_answer_in_json(door: Door) -> None:
    """404 lists the paths, 405 names the method."""
    reply = await door.ask("GET", "/nowhere")
    assert reply.status == 404
    assert "/cluster" in reply.value["do"]
    reply = await door.ask("POST", "/cluster")
    assert (reply.status, reply.value["do"]) == (405, "send GET")
    assert (await door.ask("GET", "/cluster/leave")).status == 405
    assert (await door.ask("HEAD", "/health/live")).status == 200
    assert door.system.leaves == 0


async def test_leave_from_this_host(door: Door) -> None:
    """A caller on loopback may ask the node to leave; the answer comes at once."""
    reply = await door.ask("POST", "/cluster/leave")
    assert (reply.status, reply.value) == (202, {"leaving": True})
    assert door.system.leaves == 1


async def test_leave_from_a_web_page_is_refused(door: Door) -> None:
    """A page in a browser on this host comes from loopback too; its Origin tells."""
    reply = await door.ask("POST", "/cluster/leave", Origin="http://example.org")
    assert reply.status == 403
    assert door.system.leaves == 0


async def test_leave_from_elsewhere_is_refused_without_a_token_file() -> None:
    """Only callers on this host give orders by default."""
    system = StandInSystem()
    routes = Routes(as_system(system), None)
    for remote in ("10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", ""):
        for path in ("/cluster/leave", "/cluster/down", "/singletons/move"):
            answer = await routes.answer(Request("POST", path, remote, {}, ORDER))
            assert answer.status == 403
    assert system.leaves == 0
    assert system.cluster.orders == []


async def test_leave_with_a_token_file(tmp_path: Path) -> None:
    """With a token file the token decides, wherever the caller is; the file is read each time."""
    token_file = tmp_path / "token"
    system = StandInSystem()
    routes = Routes(as_system(system), str(token_file))

    async def leave(authorization: str | None) -> int:
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = await routes.answer(Request("POST", "/cluster/leave", "10.0.0.7", headers))
        return answer.status

    assert await leave("Bearer ") == 401, "a missing file opens nothing"
    token_file.write_text("")
    assert await leave("Bearer ") == 401, "an empty file opens nothing"
    token_file.write_text("first\n")
    assert await leave(None) == 401
    assert await leave("Bearer second") == 401
    assert await leave("Bearer first") == 202
    token_file.write_text("second\n")
    assert await leave("Bearer first") == 401
    assert await leave("Bearer second") == 202
    assert await leave("Bearer \udcff") == 401, "bytes that are no text"
    await asyncio.sleep(0)
    assert system.leaves == 2


async def test_down_waits_for_the_end_of_a_member(door: Door) -> None:
    """200 once it is down; of the node itself 202, for it ends after it has answered."""
    reply = await door.ask("POST", "/cluster/down", ORDER)
    assert (reply.status, reply.value) == (200, {"address": "127.0.0.1:25521", "down": True})
    own = json.dumps({"address": "127.0.0.1:25520", "timeout_s": 1}).encode()
    reply = await door.ask("POST", "/cluster/down", own)
    assert (reply.status, reply.value) == (202, {"address": "127.0.0.1:25520", "ending": True})
    assert door.system.cluster.orders == [("127.0.0.1:25521", 30.0), ("127.0.0.1:25520", 1.0)]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (LookupError("x:1 is no member that this node knows (those are: y:2)"), 404),
        (TimeoutError("x:1 is not down after 1 s: waiting for the promise of y:2"), 504),
    ],
)
async def test_down_that_does_not_come_about_says_why(
    door: Door, fault: Exception, status: int
) -> None:
    """The words are those of the cluster."""
    door.system.cluster.fault = fault
    reply = await door.ask("POST", "/cluster/down", ORDER)
    assert (reply.status, reply.value["error"]) == (status, str(fault.args[0]))
    assert reply.value["do"]


async def test_move_waits_until_it_is_there(door: Door) -> None:
    body = json.dumps({"name": "jobs", "to": "127.0.0.1:25521", "timeout_s": 3}).encode()
    reply = await door.ask("POST", "/singletons/move", body)
    assert (reply.status, reply.value) == (200, {"name": "jobs", "host": "127.0.0.1:25521"})
    reply = await door.ask("POST", "/singletons/move", b'{"name": "jobs"}')
    assert (reply.status, reply.value) == (200, {"name": "jobs", "host": "127.0.0.1:25520"})
    assert door.system.cluster.moves == [("jobs", "127.0.0.1:25521", 3.0), ("jobs", None, 30.0)]
    for fault, status in ((LookupError("no such"), 404), (TimeoutError("not yet"), 504)):
        door.system.cluster.fault = fault
        reply = await door.ask("POST", "/singletons/move", body)
        assert (reply.status, reply.value["error"]) == (status, str(fault.args[0]))
    for wrong in (
        b"{}",
        b'{"name": 5}',
        b'{"name": "x", "to": 5}',
        b'{"name": "x", "address": "y"}',
    ):
        assert (await door.ask("POST", "/singletons/move", wrong)).status == 400


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "no JSON"),
        (b"\xff", 400, "no JSON"),
        (b"[" * 4000, 400, "no JSON"),
        (b'"127.0.0.1:25521"', 400, "no text under `address`"),
        (b"{}", 400, "no text under `address`"),
        (b'{"address": 5}', 400, "no text under `address`"),
        (b'{"address": "a:1", "timeout": 5}', 400, "'timeout', which is no field"),
        (b'{"address": "a:1", "timeout_s": 0}', 400, "timeout_s is no number of seconds"),
        (b'{"address": "a:1", "timeout_s": true}', 400, "timeout_s is no number of seconds"),
        (b'{"address": "a:1", "timeout_s": NaN}', 400, "timeout_s is no number of seconds"),
        (b'{"address": "a:1", "timeout_s": "5"}', 400, "timeout_s is no number of seconds"),
        (b" " * 4097, 413, "longer than 4096 bytes"),
    ],
)
async def test_a_wrong_order_is_refused(door: Door, body: bytes, status: int, text: str) -> None:
    """What is wrong, and how an order looks; nobody is downed."""
    reply = await door.ask("POST", "/cluster/down", body)
    assert reply.status == status
    assert text in reply.value["error"]
    assert door.system.cluster.orders == []


async def test_a_body_without_an_end_is_read_to_its_bound_only(door: Door) -> None:
    """It is answered while the sender is still sending."""
    host, port = door.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /cluster/down HTTP/1.1\r\nHost: {door.address}\r\nContent-Length: 1000000000\r\n"
    writer.write(f"{head}\r\n".encode() + b"x" * 5000)
    line = await asyncio.wait_for(reader.readline(), 10)
    assert line.split()[1] == b"413"
    writer.close()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read (No such file or directory): name a text file"),
        (b"", "holds no token: write one line of 1 to 4096 ASCII"),
        (b" \n", "holds no token"),
        (b"one\ntwo\n", "holds no token"),
        ("schlüssel".encode(), "holds no token"),
        (b"\xff", "cannot be read"),
        (b"x" * 4097, "holds no token"),
    ],
)
def test_a_token_that_opens_nothing_is_named(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    """At the start it stops the start (tests/processes), later it only opens nothing."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        read_token("http_token_file", str(file))
    assert f"http_token_file={str(file)!r} {text}" in str(error.value)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.127.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
    ],
)
def test_what_loopback_is(address: str, expected: bool) -> None:
    """Addresses of this host, in all their spellings."""
    assert is_loopback(address) is expected


async def test_nonsense_on_the_port_is_survived(door: Door) -> None:
    """Bytes that are no HTTP cost their connection only."""
    host, port = door.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" * 100 + b"\r\n\r\n")
    await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert (await door.ask("GET", "/health/live")).status == 200


def test_a_port_in_use_is_named() -> None:
    """What, why, what to do, before the node joins anything."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=rf"http=127\.0\.0\.1:{port}.*choose another"):
            reserve("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_named() -> None:
    """The same for a host nobody knows, and for what can be no host."""
    for host in ("no-such-host.invalid", "a..b"):
        with pytest.raises(SettingsError, match=r"cannot be bound.*name an address"):
            reserve(host, 8550)
