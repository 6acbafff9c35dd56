"""A lease as its users hold it: get it, ask before each act whether it is held, hear of its loss.

Decides nothing: `lease.machine` does, driven by `lease.keeper`. Made by `ActorSystem.lease`, or by
hand where there is no system.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable

from lease.errors import LeaseUnavailableError
from lease.events import LeaseLost
from lease.host_clock import boot_time_s
from lease.keeper import LeaseKeeper
from lease.machine import State
from lease.record import LeaseRecord
from lease.settings import LeaseSettings
from lease.store import LeaseStore

log = logging.getLogger(__name__)


class Lease:
    """The lease `settings.name` in `store`, as one holder.

    Each object is a holder of its own: a second one in the same process, or a process that was
    restarted under the same owner, has to wait like anybody else (I-20). To be used on one event
    loop. The store is not closed with it.

    `clock`: seconds that go on while this machine sleeps (CLOCK_BOOTTIME); `wall_clock`: seconds
    since 1970; `nonce` tells this holder from others of the same owner, random unless given.
    """

    def __init__(
        self,
        store: LeaseStore,
        settings: LeaseSettings,
        *,
        clock: Callable[[], float] = boot_time_s,
        wall_clock: Callable[[], float] = time.time,
        nonce: str | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._nonce = nonce or secrets.token_hex(8)
        self._keeper: LeaseKeeper | None = None
        self._closed = False
        self._handlers: dict[int, Callable[[LeaseLost], object]] = {}
        self._handler_number = 0
        self._followers: list[Callable[[object], None]] = []
        self.may_hold: Callable[[], bool] | None = None
        """Asked before each write that acquires or renews; None: always. To be set before the
        first use."""

    # -- getting and giving up

    async def acquire(self) -> bool:
        """Try once. True: held, and renewed from here on; asked by the holder itself a round trip
        that proves it (L3). False: somebody else holds it, certainly.

        A record of which nobody knows whether its holder lives is watched until that is known, for
        its ttl at most. Raises `LeaseUnavailableError` when nobody can tell who holds it (L1). A
        try that did not end in True, or was cancelled, leaves nothing behind: what a late write
        might still win is given back.
        """
        if self._closed:
            raise LeaseUnavailableError(f"lease {self.settings.name!r} was closed by this process")
        return await self._open().acquire()

    async def release(self) -> None:
        """Give it up; returns once the store has confirmed (L4). Nothing to do when it is not held.

        Stop what acts under it first: it is not held from the first instant on. Raises
        `LeaseUnavailableError` when the store could not be told until the ttl was over.
        """
        if self._keeper is not None:
            await self._keeper.release()

    def watch(self, wanted: bool = True) -> None:
        """Watch who holds it without wanting it yet, so that a later `acquire` knows how old its
        record is, and need not wait for a whole ttl. To be called on the event loop."""
        self._open().watch(wanted)

    async def close(self) -> None:
        """Stop at once, and for good; what is held is left to its ttl, so release it first."""
        self._closed = True
        if self._keeper is not None:
            await self._keeper.close()

    # -- whether it is held

    def check_alive(self) -> bool:
        """May this process act now? Local, two looks at clocks: ask before each act (L7)."""
        return self._keeper is not None and self._keeper.check_alive()

    @property
    def token(self) -> int | None:
        """Greater than that of every holder before; None while it is not held. Hand it to whatever
        is written to, so that it can refuse an older one (`lease.Fence`)."""
        return None if self._keeper is None else self._keeper.token

    @property
    def valid_until(self) -> float:
        """The instant on `clock` from which it is not held unless it is renewed before; minus
        infinity while it is not held."""
        return -math.inf if self._keeper is None else self._keeper.valid_until

    def remaining_s(self) -> float:
        """Seconds until then; 0.0 while it is not held."""
        return 0.0 if self._keeper is None else self._keeper.remaining_s()

    @property
    def is_at_risk(self) -> bool:
        """True while it is held and no renewal was confirmed for so long that less than
        `LeaseSettings.drain_s` is left: finish what was begun, begin nothing new."""
        return self._keeper is not None and self._keeper.is_at_risk

    def on_lost(self, handler: Callable[[LeaseLost], object]) -> Callable[[], None]:
        """Call `handler` on the event loop once for each holding that ends without `release`:
        somebody else has it, its time passed without a renewal, or its record makes no sense
        (L8). Returns what ends the subscription. An error in one handler is logged and keeps none
        of the others from running (L10).
        """
        self._handler_number += 1
        number = self._handler_number
        self._handlers[number] = handler

        def unsubscribe() -> None:
            self._handlers.pop(number, None)

        return unsubscribe

    # -- for what does not wait

    def want(self) -> None:
        """Get it and keep it until `unwant` or a loss; what comes of it is told to who follows.
        To be called on the event loop, as the two below."""
        self._open().want()

    def unwant(self) -> None:
        """Give it up, or stop trying; from here on it is not held."""
        self._open().unwant()

    def follow(self, told: Callable[[object], None]) -> None:
        """Tell each fact of `lease.events`, from `LeaseGranted` on, in order and on the loop."""
        self._followers.append(told)

    # -- for people

    @property
    def holder(self) -> str:
        """What stands in the record while this object holds it."""
        return f"{self.settings.owner}#{self._nonce}"

    @property
    def closed(self) -> bool:
        """True once `close` was called: it is held no more, and can not be acquired again."""
        return self._closed

    @property
    def seen_ago_s(self) -> float | None:
        """Seconds since the store last showed `record`; None: it never did."""
        return None if self._keeper is None else self._keeper.seen_ago_s

    @property
    def store_answers(self) -> bool | None:
        """Whether the store answers this process at all (`StoreAnswers`); None: not asked yet."""
        return None if self._keeper is None else self._keeper.machine.store_answers

    @property
    def state(self) -> State:
        """Where it stands; `HELD` alone does not allow to act."""
        return State.IDLE if self._keeper is None else self._keeper.state

    @property
    def counts(self) -> Counter[str]:
        """What happened so far, by name: renewals, failures, losses and more."""
        return Counter() if self._keeper is None else self._keeper.machine.counts

    @property
    def acquire_s_sum(self) -> float:
        """Seconds from wanted to held, of all `counts["grants"]`."""
        return 0.0 if self._keeper is None else self._keeper.machine.acquire_s_sum

    @property
    def record(self) -> LeaseRecord | None:
        """The record as it was last seen; None: none was seen, or there is none."""
        return None if self._keeper is None else self._keeper.machine.record

    def explain(self) -> str:
        """Why it is or is not held, in words."""
        return "not wanted here" if self._keeper is None else self._keeper.explain()

    def _open(self) -> LeaseKeeper:
        if self._keeper is None:
            self._keeper = LeaseKeeper(
                self.store,
                self.settings,
                nonce=self._nonce,
                loop=asyncio.get_running_loop(),
                clock=self._clock,
                wall_clock=self._wall_clock,
                told=self._told,
                may_hold=self.may_hold,
            )
        return self._keeper

    def _told(self, fact: object) -> None:
        for follow in self._followers:
            follow(fact)
        if not isinstance(fact, LeaseLost):
            return
        for handler in list(self._handlers.values()):
            try:
                handler(fact)
            except Exception as error:
                log.error(
                    "a handler of a lost lease failed",
                    extra={"lease": fact.name, "error": repr(error)},
                    exc_info=error,
                )
