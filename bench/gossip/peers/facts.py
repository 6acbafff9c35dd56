"""What a member of a bench writes down, and how it is told to go.

Decides the form of a fact (one line, stamped at once; those of one turn of the loop are one write,
so that the lines of many processes never mix in their one file, and a hundred members that write
two hundred lines each do not measure the disk) and that all members are told at once: they wait for
the end of a FIFO that the bench holds open. Standard library only, for it runs in a peer's
interpreter too. Read by `bench.gossip.processes_cluster`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

FACTS, GO, BLOCK_S, BULK_TO = "BENCH_FACTS", "BENCH_GO", "BENCH_BLOCK_S", "BENCH_BULK_TO"
"""Names of the environment variables: the file, the FIFO, for how long SIGUSR1 blocks the loop, and
to which member SIGUSR2 sends bulk (ours only)."""

ORPHANS_END_AFTER_S = 2.0


def boottime_s() -> float:
    """CLOCK_BOOTTIME, on macOS CLOCK_MONOTONIC; the same in all processes of a host."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Facts:
    """Appends lines `at_s observer event who detail` to the file that $BENCH_FACTS names."""

    def __init__(self, observer: str) -> None:
        self._observer = observer
        self._file = os.open(os.environ[FACTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[str] = []
        self._bench = os.getppid()
        self._end_with_the_bench()

    def _end_with_the_bench(self) -> None:
        # A bench that is killed cannot stop its members, and they would keep the machine busy.
        if os.getppid() != self._bench:
            os._exit(1)
        self._loop.call_later(ORPHANS_END_AFTER_S, self._end_with_the_bench)

    def write(self, event: str, who: str = "-", detail: object = "-") -> None:
        """One fact, stamped now. No word may have a space in it; `who` is `host:port#run`."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(f"{boottime_s():.6f} {self._observer} {event} {who} {detail}\n")

    def _flush(self) -> None:
        lines, self._waiting = self._waiting, []
        os.write(self._file, "".join(lines).encode())

    def write_all(self, event: str, whos: Sequence[str]) -> None:
        """The same fact about several members."""
        for who in whos:
            self.write(event, who)


async def told_to_go() -> None:
    """Wait until nobody holds the FIFO of $BENCH_GO open for writing any more."""
    loop = asyncio.get_running_loop()
    fifo = os.open(os.environ[GO], os.O_RDONLY | os.O_NONBLOCK)
    ended = loop.create_future()

    def look() -> None:
        try:
            is_over = os.read(fifo, 1) == b""
        except BlockingIOError:
            return
        if is_over and not ended.done():
            ended.set_result(None)

    look()  # whoever comes later finds no writer, and no poll would say so
    if not ended.done():
        loop.add_reader(fifo, look)
        try:
            await ended
        finally:
            loop.remove_reader(fifo)
    os.close(fifo)
