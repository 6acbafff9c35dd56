"""The lease that decides which side of a split lives, as the downing machine's shell.

Decides nothing: it carries the question to the lease store and the answer back. Without a store
(no `--lease`) the answer is always "unknown", with the mend in words. Made by `node.system`, called
by `node.daemon`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from downing.events import ArbiterUnknown, AskArbiter, ReleaseArbiter
from node.environment import Environment


class LeaseArbiter:
    """Asks the lease at `url`, None for none. `feed` takes the answers."""

    def __init__(
        self, url: str | None, loop: asyncio.AbstractEventLoop, environment: Environment
    ) -> None:
        self.feed: Callable[[object], None] = lambda event: None  # set once there is a daemon
        self._url = url
        self._loop = loop
        self._environment = environment

    def ask(self, effect: AskArbiter) -> None:
        """Acquire it for this side; answered by an event."""
        why = "there is no lease store: start all members with --lease URL"
        self._loop.call_soon(self.feed, ArbiterUnknown(effect.attempt, why))

    def release(self, effect: ReleaseArbiter) -> None:
        """Give it back."""

    async def close(self) -> None:
        """Release it and close the store."""
