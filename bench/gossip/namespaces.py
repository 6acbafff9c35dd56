"""Networks of a bench's or a test's own: Linux network namespaces, packet loss, one-way cuts.

Decides how they are made and that each is gone afterwards; nothing outside of them is touched.
They need root. Called by `bench.gossip.processes` and `tests/processes`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
COMMAND_TIMEOUT_S = 10.0
NOBODYS_MAC = "02:00:00:ff:ff:ff"


class NotPossibleError(Exception):
    """This machine cannot do it; the text says what is missing."""


class Traffic(NamedTuple):
    """What went over `lo` since it is there, IP and Ethernet headers and TCP's acks included."""

    byte_count: int
    packets: int


def can_make_networks() -> bool:
    """True for root on Linux, where this process may make namespaces, and `ip` is installed."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip") is not None


@contextmanager
def own_network() -> Iterator[bool]:
    """Puts this thread, and the processes it starts, in a network namespace that has only `lo`.

    False, and nothing has changed, where that is not allowed.
    """
    try:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            yield False
            return
        try:
            _bring_up("lo")
            yield True
        finally:
            if libc.setns(before, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot go back to the network we came from")
    finally:
        os.close(before)


def _bring_up(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", interface.encode(), 0)
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, request)
        flags = struct.unpack("16sH14x", answer)[1]
        request = struct.pack("16sH14x", interface.encode(), flags | IFF_UP)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def traffic() -> Traffic:
    """The counters of this network's `lo`. Raises `NotPossibleError` where there are none."""
    try:
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    except OSError as error:
        raise NotPossibleError(f"bytes are counted on Linux: {error}") from error
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            received = numbers.split()
            return Traffic(int(received[0]), int(received[1]))
    raise NotPossibleError("this network has no lo")


@contextmanager
def packet_loss(percent: float) -> Iterator[None]:
    """Drops this share of all packets on `lo`, at the receiver. Only inside `own_network`.

    Raises `NotPossibleError` where neither iptables nor nft can do it.
    """
    make, end = _loss_commands(percent)
    for command in make:
        _run(command)
    try:
        yield
    finally:
        _run(end)


def _loss_commands(percent: float) -> tuple[list[Sequence[str]], Sequence[str]]:
    if shutil.which("iptables"):
        match = ("-i", "lo", "-m", "statistic", "--mode", "random")
        rule = (*match, "--probability", f"{percent / 100:.4f}", "-j", "DROP")
        return [("iptables", "-A", "INPUT", *rule)], ("iptables", "-D", "INPUT", *rule)
    if shutil.which("nft"):
        table, chain = ("inet", "bench_loss"), ("inet", "bench_loss", "input")
        hook = "{ type filter hook input priority 0; }"
        drop = ("iif", "lo", "numgen", "random", "mod", "10000", "<", f"{percent * 100:.0f}")
        return [
            ("nft", "add", "table", *table),
            ("nft", "add", "chain", *chain, hook),
            ("nft", "add", "rule", *chain, *drop, "drop"),
        ], ("nft", "delete", "table", *table)
    raise NotPossibleError("packets are lost by iptables or nft, and neither is installed")


class Hosts:
    """Hosts as network namespaces on one bridge, each with an address of its own (`addresses`).

    A context manager: all are gone on the way out. `prefix` runs a command on a host. Raises
    `NotPossibleError` where they cannot be made.
    """

    def __init__(self, count: int) -> None:
        tag = f"tn{os.getpid()}"
        self._switch = f"{tag}s"
        self._names = [f"{tag}h{number}" for number in range(count)]
        self.addresses = [f"10.231.7.{10 + number}" for number in range(count)]

    def __enter__(self) -> Self:
        try:
            _run(("ip", "netns", "add", self._switch))
            self._on(self._switch, "link", "add", "br0", "type", "bridge")
            self._on(self._switch, "link", "set", "br0", "up")
            for number, (name, address) in enumerate(zip(self._names, self.addresses, strict=True)):
                port = f"p{number}"
                _run(("ip", "netns", "add", name))
                self._on(name, "link", "set", "lo", "up")
                peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
                self._on(self._switch, "link", "add", port, *peer)
                self._on(self._switch, "link", "set", port, "master", "br0", "up")
                self._on(name, "addr", "add", f"{address}/24", "dev", "eth0")
                self._on(name, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def prefix(self, host: int) -> tuple[str, ...]:
        """What goes before a command that shall run on a host."""
        return ("ip", "netns", "exec", self._names[host])

    @contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """This thread is on that host meanwhile."""
        libc = ctypes.CDLL(None, use_errno=True)
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(f"/run/netns/{self._names[host]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(there, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the network of a host")
            try:
                yield
            finally:
                if libc.setns(before, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "cannot go back to the network we came from")
        finally:
            os.close(there)
            os.close(before)

    def cut(self, source: int, target: int) -> None:
        """Lose every packet from `source` to `target` without a word; the other way still passes.

        The source believes that the target has a hardware address which nobody has.
        """
        neighbour = (self.addresses[target], "lladdr", NOBODYS_MAC, "dev", "eth0")
        self._on(self._names[source], "neigh", "replace", *neighbour, "nud", "permanent")

    def heal(self, source: int, target: int) -> None:
        """End a cut."""
        self._on(self._names[source], "neigh", "del", self.addresses[target], "dev", "eth0")

    def close(self) -> None:
        """Remove what was made; harmless when it is gone."""
        for name in (*self._names, self._switch):
            if Path("/run/netns", name).exists():
                _run(("ip", "netns", "del", name))

    def _on(self, host: str, *command: str) -> None:
        _run(("ip", "-n", host, *command))


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotPossibleError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise NotPossibleError(f"{' '.join(command)}: {done.stderr.strip()}")
