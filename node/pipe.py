"""Something that an actor awaits without waiting: its outcome comes back as a message.

Decides: how the awaitable of `Context.pipe_to_self` is run, cancelled and abandoned. Does not
decide what its outcome leads to: that is `node.cell`, which makes pipes and ends them with the
instance of the actor.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from node.driving import Abandoned, Failed, cancelled_by_others, drive

if TYPE_CHECKING:
    from node.cell import Cell

CANCELS_MAX = 3  # then one that takes no notice is abandoned


class Pipe:
    """One awaitable on its way, later what lies in the mailbox with its outcome.

    `outcome` is the result, or a `Failed`. `message` is what it was made into, once it is handled.
    """

    __slots__ = (
        "_awaited",
        "_cancels",
        "_cell",
        "_task",
        "_timer",
        "driven",
        "is_done",
        "message",
        "on_error",
        "on_result",
        "outcome",
    )

    def __init__(
        self,
        cell: Cell,
        awaitable: Awaitable[Any],
        on_result: Callable[[Any], object] | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        self._cell = cell
        self._awaited: Coroutine[Any, Any, object]
        if inspect.iscoroutine(awaitable):
            self._awaited = cast(Coroutine[Any, Any, object], awaitable)
        else:
            self._awaited = _result_of(awaitable)
        self.on_result = on_result
        self.on_error = on_error
        self.outcome: object = None
        self.message: object = None
        self.is_done = False
        self.driven: Coroutine[Any, Any, object] | None = None
        self._cancels = 0
        self._timer: asyncio.TimerHandle | None = None
        runtime = cell.runtime
        self._task = runtime.loop.create_task(self._run(), context=runtime.context.copy())

    def begin_step(self) -> None:
        """As `Owner`."""
        self._cell.runtime.step()

    def look(self) -> None:
        """As `Owner`."""
        runtime = self._cell.runtime
        now = runtime.clock()
        took_s = now - runtime.looked_at
        runtime.looked_at = now
        if took_s >= runtime.blocked_after_s:
            handler = f"{getattr(self._awaited, '__qualname__', '')} (pipe_to_self)"
            runtime.loop_blocked(self._cell.path, handler, took_s, 1)

    def end(self) -> None:
        """Cancel it: its outcome is not wanted any more. It gets some time to clean up."""
        if self.is_done:
            return
        if self.driven is None:  # not begun; a task cancelled now never runs
            self._task.cancel()
            self._awaited.close()
            self._ended(is_wanted=False)
        elif self._timer is None:
            self._cancel()

    def abandon(self) -> None:
        """End it within this call: it is not resumed any more."""
        if self.is_done:
            return
        if self.driven is None:
            self.end()
            return
        self.driven = None
        self._cell.runtime.abandon(self._awaited, self._cell.path)
        self._task.cancel()
        self._ended(is_wanted=False)

    def _cancel(self) -> None:
        if self._cancels >= CANCELS_MAX:
            self.abandon()
            return
        self._cancels += 1
        self._task.cancel()
        self._timer = self._cell.runtime.loop.call_later(self._cell.again_s, self._cancel)

    def _ended(self, *, is_wanted: bool) -> None:
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cell.pipe_ended(self, is_wanted=is_wanted)

    async def _run(self) -> None:
        coroutine = self.driven = self._awaited
        self.begin_step()
        try:
            outcome = await drive(self, coroutine)
        except Abandoned:
            return
        if self.driven is not coroutine:
            return
        self.driven = None
        if isinstance(outcome, Failed) and isinstance(outcome.error, asyncio.CancelledError):
            outcome = Failed(cancelled_by_others())
        self.outcome = outcome
        self._ended(is_wanted=not self._cancels)


async def _result_of(awaitable: Awaitable[object]) -> object:
    return await awaitable
