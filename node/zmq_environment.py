"""The real world: the system's clock, the kernel's word on processes, files, ZeroMQ.

Decides nothing about the cluster; the counterpart in virtual time is `node.testkit`. Built by
`node.system`. Nothing here ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import logging
import os
import random
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gossip.membership import NodeId
from node.environment import Environment, HostFacts, StateStore
from node.errors import SettingsError
from node.zmq_transport import FRAME_BYTES_MAX, TransportLimits, ZmqTransport

log = logging.getLogger(__name__)

_STATE_FORMAT = 1
_STATE_BYTES_MAX = 1024 * 1024
_ADDRESSES_MAX = 10_000
_ADDRESS_LENGTH_MAX = 300

# macOS has no clock that counts sleep as well as Linux's; its monotonic one is the nearest.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# Seconds since boot, sleep included. Each ask reads it, so no function of ours stands between.
boot_time_s: Callable[[], float] = functools.partial(time.clock_gettime, _CLOCK)


def host_facts() -> HostFacts:
    """What the kernel says of this process.

    Where a fact cannot be read (macOS, a hidden /proc) all but the pid are empty, and empty facts
    are never evidence: no other process can be told to run on the same kernel.
    """
    pid = os.getpid()
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # Start times of processes are told in the reader's time namespace: what runs in another
        # one must not be compared, so for us it runs on another kernel.
        time_ns = Path("/proc/self/ns/time")
        if time_ns.exists():
            boot_id = f"{boot_id}/{time_ns.stat().st_ino}"
        net_ns = os.stat("/proc/self/ns/net").st_ino
        pid_ns = os.stat("/proc/self/ns/pid").st_ino
    except (OSError, UnicodeError):
        boot_id = ""
    start_ticks = start_ticks_of(pid)
    if not boot_id or start_ticks is None:
        return HostFacts(boot_id="", net_ns=0, pid_ns=0, pid=pid, start_ticks=0)
    return HostFacts(
        boot_id=boot_id, net_ns=net_ns, pid_ns=pid_ns, pid=pid, start_ticks=start_ticks
    )


def start_ticks_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it cannot be read.

    A process's name, the second field, may hold spaces and parentheses: what counts begins after
    the last one.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 1 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None


class PidfdWatch:
    """`ProcessWatch` by pidfd: the descriptor becomes readable when the process has ended.

    That is so for a zombie as well: a process nobody has reaped does nothing any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptors: dict[NodeId, int] = {}
        self._ended: dict[NodeId, asyncio.Handle] = {}

    def watch(self, peer: NodeId, pid: int, start_ticks: int, ended: Callable[[], None]) -> bool:
        """Call `ended` once, from the loop, when the process is gone or is so already.

        A process that started at another instant than `start_ticks` is another one: ours is gone.
        False, and `ended` is never called, when the kernel has no pidfd, no descriptor is left, or
        the start of a living process cannot be read. A second watch of a peer replaces the first.
        """
        self.unwatch(peer)
        if sys.platform != "linux" or pid <= 0 or start_ticks <= 0:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end_soon(peer, ended)
            return True
        except OSError as error:
            log.debug("cannot watch a process", extra={"pid": pid, "error": str(error)})
            return False
        # Read after the descriptor was opened: from here on the pid cannot become another's.
        found_ticks = start_ticks_of(pid)
        if _is_readable(descriptor) or (found_ticks is not None and found_ticks != start_ticks):
            os.close(descriptor)
            self._end_soon(peer, ended)
            return True
        if found_ticks is None:
            os.close(descriptor)
            return False
        self._descriptors[peer] = descriptor
        self._loop.add_reader(descriptor, self._on_readable, peer, ended)
        return True

    def unwatch(self, peer: NodeId) -> None:
        """Stop watching; unknown peers are ignored."""
        descriptor = self._descriptors.pop(peer, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        handle = self._ended.pop(peer, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Stop watching all."""
        for peer in [*self._descriptors, *self._ended]:
            self.unwatch(peer)

    def _on_readable(self, peer: NodeId, ended: Callable[[], None]) -> None:
        self.unwatch(peer)
        ended()

    def _end_soon(self, peer: NodeId, ended: Callable[[], None]) -> None:
        self._ended[peer] = self._loop.call_soon(self._on_readable, peer, ended)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class MemoryStateStore:
    """`StateStore` that forgets with the process (no `--state-dir`)."""

    def __init__(self) -> None:
        self._addresses: tuple[str, ...] = ()

    def load(self) -> tuple[str, ...]:
        """What was saved last."""
        return self._addresses

    def save(self, addresses: tuple[str, ...]) -> None:
        """Replace what is remembered."""
        self._addresses = addresses


def check_state_dir(directory: str | Path) -> None:
    """Make the directory if there is none, and prove that this user can write in it.

    Raises `SettingsError`: an operator who wants members remembered must not learn from a warning,
    after the next restart, that none were.
    """
    probe = Path(directory) / f".writable.{os.getpid()}.tmp"
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"state_dir={str(directory)!r} cannot be written in ({what}): name a directory that "
            "this user may write to, or leave it out to remember members in memory only"
        ) from error


class FileStateStore:
    """`StateStore` in one small JSON file, replaced as a whole: a crash leaves the old or the new.

    `key` tells apart the nodes that share a directory (cluster name and port); any text is fine.
    """

    def __init__(self, directory: str | Path, key: str) -> None:
        self._path = Path(directory) / f"members-{_file_name(key)}.json"
        self._key = key
        self._saved: tuple[str, ...] | None = None

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self._path

    def load(self) -> tuple[str, ...]:
        """What was saved last; `()` when nothing was, or (logged once) the file is damaged."""
        try:
            with self._path.open("rb") as file:
                packed = file.read(_STATE_BYTES_MAX + 1)
            return _read_state(packed, self._key)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, RecursionError) as error:
            log.warning(
                "the remembered members cannot be read, so none are remembered; "
                "the next save replaces the file",
                extra={"path": str(self._path), "error": str(error)},
            )
            return ()

    def save(self, addresses: tuple[str, ...]) -> None:
        """Replace what is remembered, down to the disk. Never raises: a failure is logged."""
        if addresses == self._saved:
            return
        state = {"format": _STATE_FORMAT, "key": self._key, "members": list(addresses)}
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(json.dumps(state).encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            _sync_directory(self._path.parent)
            self._saved = addresses
        except (OSError, UnicodeError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            log.warning(
                "the members could not be remembered; after a restart this node will not know "
                "whom to ask beside its seeds. Make the state directory writable",
                extra={"path": str(self._path), "error": str(error)},
            )


def _file_name(key: str) -> str:
    """An injective, portable spelling of any text."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in "-.")
        else f"_{ord(character):x}_"
        for character in key
    )


def _read_state(packed: bytes, key: str) -> tuple[str, ...]:
    if len(packed) > _STATE_BYTES_MAX:
        raise ValueError(f"it is larger than {_STATE_BYTES_MAX} bytes")
    state = json.loads(packed)
    if not isinstance(state, dict) or state.get("format") != _STATE_FORMAT:
        raise ValueError(f"it is not of format {_STATE_FORMAT}")
    if state.get("key") != key:
        raise ValueError(f"it belongs to {str(state.get('key'))[:64]!r}")
    members = state.get("members")
    if not isinstance(members, list) or len(members) > _ADDRESSES_MAX:
        raise ValueError("it holds no list of members, or too long a one")
    for member in members:
        if not isinstance(member, str) or not 0 < len(member) <= _ADDRESS_LENGTH_MAX:
            raise ValueError("a member is not a host:port")
    return tuple(members)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable; file systems that cannot sync a directory need no such step."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def real_environment(
    *,
    loop: asyncio.AbstractEventLoop,
    host: str = "127.0.0.1",
    port: int | None = None,
    data_port: int = 0,
    insecure: bool = False,
    keys: str | Path | None = None,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    limits: TransportLimits | None = None,
    state_dir: str | Path | None = None,
    cluster_name: str = "",
) -> Environment:
    """The environment of a node on this machine; nothing is bound or read yet.

    `port` None: a purely local system without sockets. `state_dir` None: members are remembered
    in memory only. `keys`: the directory of a node's keys; only nodes whose keys it trusts can
    connect. Raises `SettingsError` for a wrong host or port, for a state directory that cannot be
    written in, and for keys that cannot be used.
    """
    transport = None
    if port is not None:
        directory = None
        if keys is not None:
            from node.keys import KeyDirectory

            directory = KeyDirectory(keys)
        transport = ZmqTransport(
            host,
            port,
            data_port,
            loop=loop,
            insecure=insecure,
            keys=directory,
            frame_bytes_max=frame_bytes_max,
            limits=limits,
        )
    state: StateStore = MemoryStateStore()
    if state_dir is not None:
        check_state_dir(state_dir)
        state = FileStateStore(state_dir, f"{cluster_name}/{host}/{port}")
    return Environment(
        clock=boot_time_s,
        rng=random.Random(),
        transport=transport,
        processes=PidfdWatch(loop),
        state=state,
        host=host_facts(),
    )
