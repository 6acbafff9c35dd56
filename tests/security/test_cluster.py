"""Whole members with keys: they form a cluster, and strangers stay outside and are told why."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.processes import Member, Members
from gossip.membership import Member as Record
from gossip.membership import NodeId
from gossip.messages import Head, JoinRequest
from node import ActorSystem, wire
from node.errors import SettingsError
from node.keys import KeyDirectory, new_pair
from node.settings import Settings
from node.zmq_environment import real_environment
from tests.node.zmq_stage import HOST, RecordingInbox, on_both_loops
from tests.processes.apps import MOVE_COUNT
from tests.processes.conftest import members as members  # the fixture
from tests.processes.test_flood import numbers
from tests.security.stage import (
    KeyedStage,
    free_ports,
    key_directory,
    public_line,
    trust,
    trust_each_other,
    until,
)

APPS = "tests.processes.apps"


class Keys:
    """Key directories and ports for members that are to be started."""

    def __init__(self, members: Members, names: str) -> None:
        self._members = members
        self.ports = members.free_ports(len(names))
        self.directories = [
            key_directory(members.directory / f"keys-{name}", port=port, name=name)
            for name, port in zip(names, self.ports, strict=True)
        ]
        self._names = names

    def line(self, index: int) -> str:
        """What a member gives to the others."""
        return public_line(self.directories[index])

    def key(self, index: int) -> str:
        """Its public key."""
        return self.line(index).split()[0]

    def trust(self, index: int, others: Sequence[int]) -> None:
        """One trusts itself and these."""
        trust(self.directories[index], [self.line(other) for other in (index, *others)])

    def start(self, index: int, **options: Any) -> Member:
        """Start a member with its keys; the first one is the seed."""
        return self._members.start(
            self._names[index],
            port=self.ports[index],
            seeds=self.ports[:1],
            arguments=["--keys", str(self.directories[index])],
            **options,
        )


def explain_of(member: Member) -> str:
    """What `/cluster` says of the wait."""
    assert member.http is not None
    with closing(http.client.HTTPConnection(member.http, timeout=10)) as connection:
        try:
            connection.request("GET", "/cluster")
            return str(json.loads(connection.getresponse().read())["explain"])
        except ConnectionRefusedError:
            return ""  # it is just starting


def test_a_foreign_key_is_refused_and_both_sides_say_why(members: Members) -> None:
    """Two nodes with keys form a cluster; a third with a foreign key is refused, says by whom,
    and is let in, without a restart of anybody, once its line is added."""
    keys = Keys(members, "abc")
    keys.trust(0, [1])
    keys.trust(1, [0])
    keys.trust(2, [0, 1])  # it knows the cluster; the cluster does not know it
    a, b = keys.start(0), keys.start(1)
    members.wait_all_up([a, b])
    c = keys.start(2, http=True)
    refusal = f"refused: key not trusted by {a.address}: add {keys.key(2)}"
    members.wait("c says why", lambda: refusal in c.log())
    members.wait("a says whom", lambda: keys.key(2) in a.log())
    assert "unknown-key" in a.log()
    members.wait("/cluster says why", lambda: refusal in explain_of(c))
    assert not c.up_members()
    assert c.address not in a.up_members() | b.up_members()
    for index in (0, 1):
        keys.trust(index, [1 - index, 2])
    members.wait_all_up([a, b, c])
    members.wait("nothing is refused any more", lambda: refusal not in explain_of(c))


def test_a_member_without_keys_is_told_that_it_needs_them(members: Members) -> None:
    """It does not wait in silence for a cluster that it cannot enter."""
    keys = Keys(members, "a")
    a = keys.start(0)
    members.wait_all_up([a])
    bare = members.start("bare", port=members.free_ports(1)[0], seeds=[a.port], http=True)
    members.wait("it says why", lambda: f"refused: {a.address} " in bare.log())
    members.wait("/cluster says why", lambda: "this node has none" in explain_of(bare))
    assert not bare.up_members()
    assert a.up_members() == {a.address}


def test_a_seed_without_a_line_is_not_dialled(members: Members) -> None:
    """Without a key to expect of the seed its address is not trusted: the log has the mend."""
    keys = Keys(members, "ab")
    keys.trust(0, [1])
    a = keys.start(0)
    trust(keys.directories[1], [keys.line(1), keys.key(0)])
    b = keys.start(1)
    members.wait("b says what it lacks", lambda: f"`KEY {a.address}`" in b.log())
    keys.trust(1, [0])
    members.wait_all_up([a, b])


def test_a_singleton_moves_between_keyed_members_under_load(members: Members) -> None:
    """Both lanes under CURVE: every number told to a singleton that moves is handled once, in
    order (I-53 with keys)."""
    keys = Keys(members, "ab")
    trust_each_other(keys.directories)
    host = keys.start(0, app=f"{APPS}:sink_singleton")
    members.wait_all_up([host])
    sender = keys.start(1, app=f"{APPS}:singleton_flood")
    first, second = (members.directory / f"{name}.handled" for name in "ab")
    members.wait("a flood", lambda: len(numbers(first)) > MOVE_COUNT // 10)
    members.end(host, signal.SIGTERM)
    assert members.wait_end(host) == 0, host.log()
    dead = [members.directory / f"{name}.dead" for name in "ab"]

    def all_seen() -> bool:
        return sum(len(numbers(path)) for path in (first, second, *dead)) >= MOVE_COUNT

    members.wait("every number somewhere", all_seen)
    assert numbers(first) + numbers(second) == list(range(1, MOVE_COUNT + 1))
    assert numbers(second), "the flood ended before the move"
    assert [numbers(path) for path in dead] == [[], []]
    assert sender.running


def unreachable(observer: Member, subject: Member) -> bool:
    """True when one has held the other unreachable."""
    return any(line.detail.startswith(subject.address) for line in observer.seen("unreachable"))


def test_a_revoked_member_is_cut_off(members: Members) -> None:
    """Its line is removed on the others while all run: to them it is unreachable, and it is told
    that its key is not trusted; the others go on."""
    keys = Keys(members, "abc")
    trust_each_other(keys.directories)
    three = [keys.start(index) for index in range(3)]
    members.wait_all_up(three)
    a, b, c = three
    keys.trust(0, [1])
    keys.trust(1, [0])
    for member in (a, b):
        members.wait(f"{member.name} is cut off from c", partial(unreachable, member, c))
    members.wait("c is told", lambda: "key not trusted by" in c.log())
    assert not unreachable(a, b)
    assert not unreachable(b, a)


def refused_count_is(system: ActorSystem, count: int) -> bool:
    """So many joins were dropped because of their keys."""
    return system.counters()["control-refused-wrong-key"] == count


class Joiner(RecordingInbox):
    """Speaks the control lane as a process that is in no cluster."""

    def control_head(self) -> bytes:
        return wire.encode_head(Head())


@on_both_loops
async def test_a_joiner_shows_the_key_it_has_proven(tmp_path: Path) -> None:
    """A join with another key in the record than on the connection is dropped before membership
    sees it; with its own key the same request is answered."""
    async with KeyedStage(tmp_path) as stage:
        (first, second), (port, other) = stage.directories("a", "b")
        system = await ActorSystem.start(
            port=port, found=True, seeds=[f"{HOST}:{port}"], keys=str(first)
        )
        try:
            inbox = Joiner()
            b = await stage.node(second, other, 12, inbox=inbox)
            agreement = system.settings.agreement()

            def ask(key: bytes) -> None:
                record = Record(b.id, data_port=b.transport.data_port, public_key=key)
                request = JoinRequest(record, system.settings.cluster_name, agreement, ())
                b.transport.send_control(NodeId(HOST, port, 0), wire.encode(request))

            for count, key in enumerate((new_pair().public, b""), 1):
                ask(key)
                await until(partial(refused_count_is, system, count))
            assert not inbox.control
            ask(b.transport.public_key)
            await inbox.until_control(1)
            view = system.cluster.view
            assert view is not None
            assert [member.public_key for member in view.members] == [KeyDirectory(first).pair[0]]
        finally:
            await system.leave()


@on_both_loops
async def test_members_know_each_others_keys(tmp_path: Path) -> None:
    """The key of each member is in its record, on all of them."""
    ports = free_ports(2)
    directories = [
        key_directory(tmp_path / name, port=port) for name, port in zip("ab", ports, strict=True)
    ]
    trust_each_other(directories)
    seeds = [f"{HOST}:{ports[0]}"]
    systems = [
        await ActorSystem.start(port=port, seeds=seeds, keys=str(directory))
        for port, directory in zip(ports, directories, strict=True)
    ]
    try:
        for system in systems:
            view = await system.cluster.up(members=2)
            keys = {member.id.port: member.public_key.hex() for member in view.members}
            assert keys == {
                port: public_line(directory).split()[0]
                for port, directory in zip(ports, directories, strict=True)
            }
    finally:
        for system in reversed(systems):
            await system.leave()


def _outside_address() -> str | None:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host = str(probe.getsockname()[0])
        return None if host.startswith("127.") else host


@on_both_loops
async def test_with_keys_any_host_may_be_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Outside loopback a node needs keys; with them there is no warning, and no `insecure`."""
    host = _outside_address()
    if host is None:
        pytest.skip("this machine has no address but loopback")
    loop = asyncio.get_running_loop()
    bare = real_environment(loop=loop, host=host, port=0).transport
    assert bare is not None
    with pytest.raises(SettingsError, match=r"--keys DIR"):
        await bare.bind()
    await bare.close()
    keyed = real_environment(
        loop=loop, host=host, port=0, keys=key_directory(tmp_path / "keys")
    ).transport
    assert keyed is not None
    await keyed.bind()
    await keyed.close()
    assert not [record for record in caplog.records if "INSECURE" in record.message]


@on_both_loops
async def test_wrong_keys_leave_nothing_bound(tmp_path: Path) -> None:
    """A system with a damaged key directory does not start, and its port is free afterwards."""
    directory = key_directory(tmp_path / "keys")
    (directory / "secret").chmod(0o644)
    (port,) = free_ports(1)
    system = ActorSystem(Settings(port=port, found=True, keys=str(directory)))
    with pytest.raises(SettingsError, match="chmod 600"):
        await system.open()
    (directory / "secret").chmod(0o600)
    again = await ActorSystem.start(port=port, found=True, keys=str(directory))
    await again.leave()
