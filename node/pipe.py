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

from node.authority import LOSSES_MAX, Authority, is_loss, lost
from node.driving import Abandoned, Failed, cancelled_by_others, drive
from node.errors import AuthorityLostError

if TYPE_CHECKING:
    from node.cell import Cell

CANCELS_MAX = 3  # then one that takes no notice is abandoned


class Pipe:
    """One awaitable on its way, later what lies in the mailbox with its outcome.

    `outcome` is the result, or a `Failed`. `message` is what it was made into, once it is handled.
    """

    __slots__ = (
        "_authority",
        "_awaited",
        "_cancels",
        "_cell",
        "_losses",
        "_opening",
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
        self._authority: Authority | None = None
        if inspect.iscoroutine(awaitable):
            self._awaited = cast(Coroutine[Any, Any, object], awaitable)
            self._authority = cell.authority
        else:
            self._awaited = _result_of(awaitable)  # no user code: that runs on by itself
        self.on_result = on_result
        self.on_error = on_error
        self.outcome: object = None
        self.message: object = None
        self.is_done = False
        self.driven: Coroutine[Any, Any, object] | None = None
        self._cancels = 0
        self._losses = 0  # how often it was told that the authority is lost
        self._opening: asyncio.Future[None] | None = None  # of the gate, which it waits for
        self._timer: asyncio.TimerHandle | None = None
        runtime = cell.runtime
        self._task = runtime.loop.create_task(self._run(), context=runtime.context.copy())

    def _begin_step(self) -> BaseException | None:
        """See `drive`."""
        runtime = self._cell.runtime
        runtime.step()
        authority = self._authority
        if authority is None or runtime.looked_at < authority.open_until:
            return None
        self._losses += 1
        if self._losses > LOSSES_MAX:
            self.abandon("having lost its authority")
            raise Abandoned
        return lost(self._cell.path)

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

    def abandon(self, what: str = "being cancelled") -> None:
        """End it within this call, for it took no notice of `what`: it is not resumed any more."""
        if self.is_done:
            return
        if self.driven is None:
            self.end()
            return
        self.driven = None
        self._cell.runtime.abandon(self._awaited, self._cell.path, what)
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
        if self._authority is not None:
            await self._may_begin(self._authority)
        coroutine = self.driven = self._awaited
        self._cell.runtime.step()
        try:
            outcome = await drive(self, coroutine, self._begin_step)
        except Abandoned:
            return
        if self.driven is not coroutine:
            return
        self.driven = None
        is_wanted = not self._cancels
        if not isinstance(outcome, Failed):
            pass
        elif isinstance(outcome.error, asyncio.CancelledError) and not self._losses:
            outcome = Failed(cancelled_by_others())
        elif self._losses and is_loss(outcome.error):
            self._cell.runtime.count("authority: losses")
            is_wanted = is_wanted and self.on_error is not None
            text = f"{self._cell.path}: its authority was lost during pipe_to_self"
            outcome = Failed(AuthorityLostError(text))
        self.outcome = outcome
        self._ended(is_wanted=is_wanted)

    async def _may_begin(self, authority: Authority) -> None:
        """Wait until the gate is open."""
        while not authority.is_open:
            self._opening = self._cell.runtime.loop.create_future()
            authority.hold(self._opened)
            try:
                await self._opening
            finally:
                authority.forget(self._opened)

    def _opened(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)


async def _result_of(awaitable: Awaitable[object]) -> object:
    return await awaitable
