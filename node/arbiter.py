"""The lease that decides which side of a split lives, as the downing machine's shell.

Decides nothing: it carries the question to the lease store and the answers back. Without a store
(no `--lease`) the answer is always "unknown", with the mend in words. Made by `node.system`, called
by `node.daemon`.

The lease lasts as long as a view must be stable before it is decided on: whoever held it and
crashed holds it no more when the others ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from downing.events import (
    ArbiterDenied,
    ArbiterExtended,
    ArbiterGranted,
    ArbiterUnknown,
    AskArbiter,
    ReleaseArbiter,
    WatchArbiter,
)
from gossip.membership import NodeId
from node.environment import Environment

if TYPE_CHECKING:
    from lease import LeaseKeeper
    from node.leases import Leases

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0


class LeaseArbiter:
    """Asks the lease in the system's store, if it has one. `feed` takes the answers.

    ttl_s: of the lease. The store is opened when something first becomes unreachable.
    """

    def __init__(
        self,
        leases: Leases | None,
        *,
        cluster_name: str,
        self_id: NodeId,
        ttl_s: float,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
    ) -> None:
        self.feed: Callable[[object], None] = lambda event: None  # set once there is a daemon
        self._leases = leases
        self._cluster_name = cluster_name
        self._self_id = self_id
        self._ttl_s = ttl_s
        self._loop = loop
        self._environment = environment
        self._attempt = 0  # the question that is open, 0 for none
        self._keeper: LeaseKeeper | None = None
        self._is_silent = False  # the store, and the log says so

    def watch(self, effect: WatchArbiter) -> None:
        """Look who holds it, before it is asked."""
        keeper = self._open()
        if keeper is not None:
            keeper.watch(effect.wanted)

    def ask(self, effect: AskArbiter) -> None:
        """Acquire it for this side; answered by an event."""
        self._attempt = effect.attempt
        keeper = self._open()
        if keeper is None:
            why = "there is no lease store: start all members with --lease URL"
            self._loop.call_soon(self._answer, ArbiterUnknown(effect.attempt, why))
        else:
            keeper.want()

    def release(self, effect: ReleaseArbiter) -> None:
        """Give it back."""
        self._attempt = 0
        if self._keeper is not None:
            self._keeper.unwant()

    async def close(self) -> None:
        """Release it."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with contextlib.suppress(Exception):  # its ttl ends it as well
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await keeper.release()
            await keeper.close()

    def _open(self) -> LeaseKeeper | None:
        if self._keeper is None and self._leases is not None:
            from lease import LeaseKeeper, LeaseSettings  # only a split needs it

            environment = self._environment
            self._keeper = LeaseKeeper(
                self._leases.store(),
                LeaseSettings(
                    name=f"{self._cluster_name}/downing",
                    owner=self._self_id.address,
                    ttl_s=self._ttl_s,
                ),
                nonce=f"{self._self_id.uid:016x}",
                loop=self._loop,
                clock=environment.clock,
                wall_clock=environment.wall_clock,
                told=self._told,
            )
        return self._keeper

    def _answer(self, answer: ArbiterGranted | ArbiterDenied | ArbiterUnknown) -> None:
        if self._attempt == answer.attempt:
            self._attempt = 0
            self.feed(answer)

    def _told(self, fact: object) -> None:
        from lease import events as told

        attempt = self._attempt
        match fact:
            case told.LeaseGranted() if attempt:
                self._answer(ArbiterGranted(attempt, fact.valid_until))
            case told.StoreAnswers():
                self._say(answers=fact.answers, why=fact.why)
            case told.LeaseRenewed():
                self.feed(ArbiterExtended(fact.valid_until))
            case told.LeaseDenied() if attempt:
                assert self._keeper is not None
                self._keeper.unwant()
                self._answer(ArbiterDenied(attempt, f"held by {fact.holder}"))
            case told.LeaseUnknown() if attempt:
                self._answer(ArbiterUnknown(attempt, fact.why))
            case told.LeaseAwaited() if attempt:
                why = f"{fact.holder} holds it, perhaps not any more"
                self._answer(ArbiterUnknown(attempt, why))
            case told.LeaseLost():
                logger.warning("the lease of downing was lost", extra={"why": fact.why})
                self.feed(ArbiterExtended(-math.inf))

    def _say(self, *, answers: bool, why: str) -> None:
        if answers == self._is_silent:
            self._is_silent = not answers
            if answers:
                logger.info("the lease store that decides splits answers again")
            else:
                extra = {"error": why}
                logger.warning("the lease store that decides splits does not answer", extra=extra)
