"""How a coroutine of user code is awaited, so that it can also be given up.

Decides: when such a coroutine is resumed, and that it never is again once its owner has let go of
it. Does not decide when to let go: that is `node.cell`, for handlers and hooks, and `node.pipe`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from node.errors import AuthorityLost


class Failed:
    """What a coroutine of user code raised; a result could be any object, also an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Abandoned(BaseException):
    """Ends the task of a coroutine that its owner has given up."""


class Owner(Protocol):
    """Whoever has a coroutine driven."""

    driven: Coroutine[Any, Any, object] | None
    """The coroutine; anything else than it, and it is not resumed any more."""

    def look(self) -> object:
        """It has run until its next await, or to its end."""


@types.coroutine
def drive(
    owner: Owner,
    coroutine: Coroutine[Any, Any, object],
    begin_step: Callable[[], BaseException | None],
) -> Generator[Any, Any, object]:
    """Await a coroutine of user code, and return its result or what it raised as `Failed`.

    Here and nowhere else such a coroutine is resumed, so here it can be left for good: raises
    `Abandoned` instead of resuming one that its owner has given up. Before each step but the first
    `begin_step` is called; it returns what is to be raised in the coroutine instead, if anything,
    or raises `Abandoned` itself.
    """
    step: Callable[[Any], Any] = coroutine.send
    value: object = None
    while True:
        try:
            awaited = step(value)
        except StopIteration as done:
            owner.look()
            return done.value
        except BaseException as error:  # noqa: BLE001 - user code; supervision decides
            owner.look()
            return Failed(error)
        owner.look()
        try:
            value = yield awaited
            step = coroutine.send
        except GeneratorExit:  # the loop is gone, and this task with it
            coroutine.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - mostly a cancellation
            step, value = coroutine.throw, thrown
        if owner.driven is not coroutine:
            raise Abandoned
        instead = begin_step()
        if instead is not None:
            step, value = coroutine.throw, _as_cancellation(coroutine, instead)


class _LostInLock(AuthorityLost, asyncio.CancelledError):
    """What a lock takes for a cancellation, and so lets the next one have what was granted."""


_LOCKS = (asyncio.Lock.acquire.__code__, asyncio.Semaphore.acquire.__code__)


def _as_cancellation(coroutine: object, error: BaseException) -> BaseException:
    """asyncio's locks expect nothing but cancellations while they wait: after anything else a lock
    just granted stays so for ever. Elsewhere a cancellation would be too weak: `wait_for` swallows
    those that come together with a result, and the coroutine would go on."""
    while coroutine is not None:
        if getattr(coroutine, "cr_code", None) in _LOCKS:
            return _LostInLock(str(error))
        coroutine = getattr(coroutine, "cr_await", None)
    return error


def cancelled_by_others() -> RuntimeError:
    """What a cancellation is that the owner has not asked for: a failure like any other."""
    return RuntimeError("cancelled while it awaited")
