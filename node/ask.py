"""Whoever waits for an answer: an ask of this process, or one that came from another node.

Decides: how an answer or an error reaches the asker, and that only the first one counts. Made by
`node.ref` and `node.remote`, used by `node.cell` when a handler returned or raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gossip.membership import NodeId
from node.errors import ActorFailedError, AskTimeoutError, MessageError, TenureError
from node.schema import ValueSchema
from node.timer_wheel import Bucket

if TYPE_CHECKING:
    from node.ref import ActorRef
    from node.remote import Remote


class LocalAsk:
    """A coroutine of this process waits in `ActorRef.ask`.

    The outcome is kept beside the future, which only wakes: a future that holds an exception
    nobody fetches (the asker was cancelled meanwhile) would be reported by asyncio as lost.
    `corr` and `node` are set once the ask went to another node. `asked` and `timeout_s` are for
    the error's text; `bucket` is where it waits in the `TimerWheel`.
    """

    __slots__ = (
        "asked",
        "bucket",
        "corr",
        "error",
        "future",
        "node",
        "schema",
        "timeout_s",
        "value",
    )

    def __init__(
        self,
        future: asyncio.Future[None],
        schema: ValueSchema,
        asked: ActorRef[Any] | None = None,
        timeout_s: float = 0.0,
    ) -> None:
        self.future = future
        self.schema = schema
        self.asked = asked
        self.timeout_s = timeout_s
        self.bucket: Bucket | None = None
        self.value: Any = None
        self.error: TenureError | None = None
        self.corr = 0
        self.node: NodeId | None = None

    def answer(self, value: object) -> None:
        """Wake the asker. An answer of another type than the ask's fails it, and raises
        `MessageError`; only flat types are checked inside a process."""
        if self.schema.is_flat:
            try:
                self.schema.check(value)
            except MessageError as error:
                self.fail(ActorFailedError("MessageError", str(error)))
                raise
        if not self.future.done():
            self.value = value
            self.future.set_result(None)

    def complete(self, value: object) -> None:
        """Wake the asker with an answer of the right type."""
        if not self.future.done():
            self.value = value
            self.future.set_result(None)

    def fail(self, error: TenureError) -> None:
        """Wake the asker with an error."""
        if not self.future.done():
            self.error = error
            self.future.set_result(None)

    def expire(self) -> None:
        """Time is up."""
        whom, why = ("", "") if self.asked is None else self.asked.silence(self)
        text = f"no answer{whom and ' from '}{whom} within {self.timeout_s:g} s"
        self.fail(AskTimeoutError(f"{text}: {why}" if why else text))


class RemoteAsk:
    """An ask that came from `node`; the answer travels back under `corr`."""

    __slots__ = ("_is_done", "_remote", "cls", "corr", "node")

    def __init__(self, remote: Remote, node: NodeId, corr: int, cls: type) -> None:
        self._remote = remote
        self._is_done = False
        self.node = node
        self.corr = corr
        self.cls = cls

    def answer(self, value: object) -> None:
        """Send the answer. One that does not fit the ask's type fails the ask, and raises
        `MessageError`."""
        if self._is_done:
            return
        self._is_done = True
        try:
            self._remote.send_reply(self.node, self.corr, self.cls, value)
        except MessageError as error:
            failed = ActorFailedError("MessageError", str(error))
            self._remote.send_failure(self.node, self.corr, failed)
            raise

    def fail(self, error: TenureError) -> None:
        """Send an error."""
        if not self._is_done:
            self._is_done = True
            self._remote.send_failure(self.node, self.corr, error)

    def hand_on(self) -> None:
        """Another node answers from now on."""
        self._is_done = True


Asker = LocalAsk | RemoteAsk
