"""The talk between the bench and a process of a side: one JSON object per line, on two pipes.

Decides the form: the process says `{"ready": …}`, is given `{"row": NAME, "for_s": S}` on its
standard input and answers with figures, `{"refused": why}` or `{"failed": why}`; the end of its
input ends it. Standard library only. Called by the processes of `ours`, `peer` and `probe`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.messaging.driver import Driver, Figures, RefusedError, Side, shown

Perform = Callable[[str, float], Awaitable[Figures]]


def say(**content: Any) -> None:
    """Write one object to the bench."""
    print(json.dumps(content), flush=True)


def facts() -> dict[str, object]:
    """What a process says of itself when it is ready."""
    loop = type(asyncio.get_running_loop()).__module__.split(".")[0]
    return {"pid": os.getpid(), "python": platform.python_version(), "loop": loop}


def resident_bytes() -> int:
    """Of this process, as its kernel counts. Raises OSError where there is no /proc."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmRSS: the memory of an actor is measured on Linux")


async def serve(perform: Perform, **more: object) -> None:
    """Say that we are ready, then perform row after row until the input ends."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    say(ready=facts() | more)
    while line := await lines.readline():
        order = json.loads(line)
        try:
            say(**shown(await perform(order["row"], order["for_s"])))
        except RefusedError as refusal:
            say(refused=str(refusal))
        except Exception as error:  # noqa: BLE001 - whatever a side raises is said, not hidden
            say(failed=f"{type(error).__name__}: {error}")


async def serve_side(side: Side, **more: object) -> None:
    """Perform the rows of the driver on a side."""
    await serve(Driver(side).run, **more)


async def input_ends() -> None:
    """Wait until nobody wants us any more."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        pass
