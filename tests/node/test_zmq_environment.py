"""The real world a node runs in: clock, kernel facts, the end of processes, remembered members."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gossip.membership import NodeId
from node import zmq_environment
from node.environment import StateStore
from node.errors import SettingsError
from node.zmq_environment import (
    FileStateStore,
    MemoryStateStore,
    PidfdWatch,
    boot_time_s,
    check_state_dir,
    host_facts,
    real_environment,
    start_ticks_of,
)
from node.zmq_transport import ZmqTransport
from tests.node.zmq_stage import WAIT_S, on_both_loops, open_descriptors

PEER = NodeId("127.0.0.1", 25520, 7)


# -- clock and facts ---------------------------------------------------------------------------


def test_the_clock_counts_seconds_since_boot() -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert uptime_s == pytest.approx(boot_time_s(), abs=1.0)


def test_the_clock_never_goes_back() -> None:
    instants = [boot_time_s() for _ in range(1000)]
    assert instants == sorted(instants)


def test_the_facts_are_those_of_this_process() -> None:
    facts = host_facts()
    assert facts.pid == os.getpid()
    assert facts.start_ticks == start_ticks_of(os.getpid())
    started_s = facts.start_ticks / os.sysconf("SC_CLK_TCK")
    assert 0 < started_s < boot_time_s()
    boot_id, _, time_ns = facts.boot_id.partition("/")
    assert boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(time_ns) == os.stat("/proc/self/ns/time").st_ino
    assert facts.net_ns == Path("/proc/self/ns/net").stat().st_ino
    assert facts.pid_ns == Path("/proc/self/ns/pid").stat().st_ino
    assert facts == host_facts()


def test_where_a_fact_is_hidden_none_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a set of facts must never match another process's."""
    monkeypatch.setattr(zmq_environment, "start_ticks_of", lambda _: None)
    facts = host_facts()
    assert (facts.boot_id, facts.net_ns, facts.pid_ns, facts.start_ticks) == ("", 0, 0, 0)
    assert facts.pid == os.getpid()


@contextmanager
def child(code: str = "import sys; sys.stdin.read()") -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits; killed and reaped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_name_with_parentheses_and_spaces_hides_nothing() -> None:
    name = "a) R (1 2 3"
    code = (
        f"import sys; open('/proc/self/comm', 'w').write({name!r})\n"
        "print(flush=True); sys.stdin.read()"
    )
    with child(code) as process:
        before = start_ticks_of(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() == name
        assert before is not None
        assert start_ticks_of(process.pid) == before


def test_no_process_has_no_start() -> None:
    with child() as process:
        pid = process.pid
    assert start_ticks_of(pid) is None


# -- the end of processes ----------------------------------------------------------------------


class Ends:
    """Counts calls and lets a test wait for one."""

    def __init__(self) -> None:
        self.count = 0
        self._called = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._called.set()

    async def wait(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._called.wait()


def ticks(process: subprocess.Popen[bytes]) -> int:
    """When a living child started."""
    found = start_ticks_of(process.pid)
    assert found is not None
    return found


def state_of(process: subprocess.Popen[bytes]) -> bytes:
    """The kernel's letter: Z is a zombie."""
    return Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


@on_both_loops
async def test_a_killed_process_is_told_once_even_as_a_zombie() -> None:
    """A zombie nobody reaps does nothing any more: that is proof enough."""
    watch, ended = PidfdWatch(asyncio.get_running_loop()), Ends()
    before = open_descriptors()
    with child() as process:
        assert watch.watch(PEER, process.pid, ticks(process), ended)
        await asyncio.sleep(0)
        assert ended.count == 0
        process.kill()
        await ended.wait()
        assert state_of(process) == b"Z"
        again = Ends()
        assert watch.watch(PEER, process.pid, ticks(process), again)
        assert again.count == 0  # never from within the call
        await again.wait()
    assert (ended.count, again.count) == (1, 1)
    assert open_descriptors() == before


@on_both_loops
async def test_a_process_that_is_gone_or_another_by_now_has_ended() -> None:
    """The start time is compared after the pidfd was opened: a reused pid is no alibi."""
    watch = PidfdWatch(asyncio.get_running_loop())
    before = open_descriptors()
    with child() as gone:
        gone_ticks = ticks(gone)
    with child() as other:
        for pid, start_ticks in ((gone.pid, gone_ticks), (other.pid, ticks(other) - 1)):
            ended = Ends()
            assert watch.watch(PEER, pid, start_ticks, ended)
            assert ended.count == 0
            await ended.wait()
            assert ended.count == 1
    assert open_descriptors() == before


@on_both_loops
async def test_an_unwatched_process_is_told_no_more() -> None:
    loop = asyncio.get_running_loop()
    watch, ended, told = PidfdWatch(loop), Ends(), Ends()
    before = open_descriptors()
    with child() as process:
        start_ticks = ticks(process)
        watch.watch(PEER, process.pid, start_ticks, ended)
        watch.unwatch(PEER)
        watch.watch(PEER, process.pid, start_ticks - 1, ended)
        watch.unwatch(PEER)
        watch.unwatch(PEER)
        watch.watch(PEER, process.pid, start_ticks, ended)
        watch.watch(PEER, process.pid, start_ticks, told)  # replaces the one before
        process.kill()
        await told.wait()
        await asyncio.sleep(0)
        watch.watch(PEER, os.getpid(), host_facts().start_ticks, ended)
        watch.watch(PEER._replace(uid=8), process.pid, start_ticks, ended)
        watch.close()
        await asyncio.sleep(0)
    assert (ended.count, told.count) == (0, 1)
    assert open_descriptors() == before


def no_pidfd(_pid: int) -> int:
    raise OSError(38, "Function not implemented")


def no_start(_pid: int) -> None:
    return None


@on_both_loops
@pytest.mark.parametrize(
    ("module", "name", "replacement"),
    [(os, "pidfd_open", no_pidfd), (zmq_environment, "start_ticks_of", no_start)],
)
async def test_what_the_kernel_does_not_tell_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, replacement: Callable[[int], None]
) -> None:
    """An old kernel, or a /proc that hides the processes of others: never taken for an end."""
    watch, ended = PidfdWatch(asyncio.get_running_loop()), Ends()
    before = open_descriptors()
    with child() as process:
        start_ticks = ticks(process)
        monkeypatch.setattr(module, name, replacement)
        assert not watch.watch(PEER, process.pid, start_ticks, ended)
        monkeypatch.undo()
        await asyncio.sleep(0)
    assert ended.count == 0
    assert open_descriptors() == before


@on_both_loops
async def test_empty_facts_cannot_be_watched() -> None:
    watch, ended = PidfdWatch(asyncio.get_running_loop()), Ends()
    assert not watch.watch(PEER, 0, 5, ended)
    assert not watch.watch(PEER, os.getpid(), 0, ended)


# -- remembered members ------------------------------------------------------------------------

ADDRESSES = ("10.0.0.5:25520", "[::1]:25521", "node-1.svc:25520")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_was_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    store: StateStore = (
        MemoryStateStore() if kind == "memory" else FileStateStore(tmp_path / "new", "c/25520")
    )
    assert store.load() == ()
    store.save(ADDRESSES)
    assert store.load() == ADDRESSES
    store.save(ADDRESSES[:1])
    assert store.load() == ADDRESSES[:1]
    store.save(())
    assert store.load() == ()


def test_a_file_outlives_the_process_and_leaves_no_litter(tmp_path: Path) -> None:
    FileStateStore(tmp_path, "c/25520").save(ADDRESSES)
    assert FileStateStore(tmp_path, "c/25520").load() == ADDRESSES
    assert len(list(tmp_path.iterdir())) == 1


def test_every_key_has_a_file_of_its_own(tmp_path: Path) -> None:
    """No spelling of one cluster's name meets another's file, none leaves the directory (I-121)."""
    keys = ["a/1", "a_1", "a_2f_1", "../a", "A/1", "ä", "a b", "a\0b", "x" * 60]
    stores = [FileStateStore(tmp_path, key) for key in keys]
    assert len({store.path for store in stores}) == len(keys)
    assert {store.path.parent for store in stores} == {tmp_path}
    for number, store in enumerate(stores):
        store.save((f"h:{number}",))
    assert [store.load() for store in stores] == [(f"h:{n}",) for n in range(len(keys))]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"format": 2, "key": "c", "members": []}',
        b'{"format": 1, "key": "another", "members": []}',
        b'{"format": 1, "key": "c"}',
        b'{"format": 1, "key": "c", "members": "h:1"}',
        b'{"format": 1, "key": "c", "members": [1]}',
        b'{"format": 1, "key": "c", "members": [""]}',
        b'{"format": 1, "key": "c", "members": ["' + b"x" * 301 + b'"]}',
        b'{"format": 1, "key": "c", "members": [' + b'"h:1",' * 10_001 + b'"h:1"]}',
        b"[" * 100_000,
        b" " * (1024 * 1024 + 1),
    ],
)
def test_a_damaged_file_remembers_nobody_and_says_so(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStateStore(tmp_path, "c")
    store.path.write_bytes(damaged)
    assert store.load() == ()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert vars(caplog.records[0])["path"] == str(store.path)
    store.save(ADDRESSES)
    assert store.load() == ADDRESSES


def test_random_bytes_never_make_a_load_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(3)
    store = FileStateStore(tmp_path, "c")
    store.save(ADDRESSES)
    good = store.path.read_bytes()
    for _ in range(100):
        cut = rng.randrange(len(good))
        store.path.write_bytes(good[:cut] + rng.randbytes(rng.randint(0, 5)) + good[cut + 1 :])
        assert isinstance(store.load(), tuple)


def test_a_failed_save_is_told_and_the_old_file_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStateStore(tmp_path, "c")
    store.save(ADDRESSES)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store.save(("other:1",))
    assert "could not be remembered" in caplog.text
    assert list(tmp_path.iterdir()) == [store.path]
    assert store.load() == ADDRESSES
    monkeypatch.undo()
    store.save(("other:1",))
    assert store.load() == ("other:1",)


def test_a_directory_that_is_a_file_is_told_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    store = FileStateStore(tmp_path / "taken", "c")
    store.save(ADDRESSES)
    assert store.load() == ()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_directory_that_cannot_be_written_in_stops_the_start(tmp_path: Path, below: str) -> None:
    """A warning at the first save would be read after the restart that needed the members."""
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(SettingsError, match=r"state_dir=.* cannot be written in .*: name a direc"):
        check_state_dir(taken / below)
    check_state_dir(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []


# -- the whole ---------------------------------------------------------------------------------


@on_both_loops
async def test_the_real_environment_is_made_of_the_real_parts(tmp_path: Path) -> None:
    environment = real_environment(
        loop=asyncio.get_running_loop(), port=0, state_dir=tmp_path, cluster_name="c"
    )
    assert isinstance(environment.transport, ZmqTransport)
    assert isinstance(environment.processes, PidfdWatch)
    assert isinstance(environment.state, FileStateStore)
    assert environment.host == host_facts()
    assert abs(environment.clock() - boot_time_s()) < 1.0
    await environment.transport.bind()
    assert environment.transport.control_port > 0
    await environment.transport.close()


@on_both_loops
async def test_without_a_port_there_are_no_sockets() -> None:
    before = open_descriptors()
    environment = real_environment(loop=asyncio.get_running_loop())
    assert environment.transport is None
    assert isinstance(environment.state, MemoryStateStore)
    assert open_descriptors() == before
    with pytest.raises(SettingsError, match="host="):
        real_environment(loop=asyncio.get_running_loop(), host="*", port=0)


@on_both_loops
async def test_two_environments_draw_different_numbers() -> None:
    """Two nodes with one uid would be one member."""
    loop = asyncio.get_running_loop()
    draws = {real_environment(loop=loop).rng.getrandbits(64) for _ in range(20)}
    assert len(draws) == 20


def test_importing_the_real_world_is_quick_and_light() -> None:
    """Nothing that a node core does not need is loaded with it."""
    code = (
        "import sys, node.zmq_environment\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"aiohttp", "prometheus_client", "kubernetes_asyncio", "rich"} & set(loaded)
