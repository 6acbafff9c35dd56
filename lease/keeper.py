"""Drives one lease machine against one store: performs its orders, arms its timer, tells its facts.

Decides nothing about the lease. The loop, the clocks and the store are given, so that the same
code runs in a simulated world. Built by whoever wants a lease; used on its loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from lease.effects import ReadStore, WatchRecord, WriteStore
from lease.errors import LeaseUnavailableError, WriteConflict
from lease.events import (
    AcquireWanted,
    LeaseDenied,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    LeaseUnknown,
    RecordChanged,
    RecordRead,
    RecordWritten,
    ReleaseWanted,
    StoreFailed,
    WatchWanted,
    WriteRefused,
)
from lease.machine import LeaseMachine, State
from lease.record import LeaseRecord
from lease.settings import LeaseSettings
from lease.store import LeaseStore
from lease.wall_watch import WallWatch

log = logging.getLogger(__name__)

WATCH_RETRY_S = 1.0
MAY_NOT_HOLD = "this node may not hold it now: it has no contact with enough members"


class LeaseKeeper:
    """One lease of one process.

    Two ways to use it. `want`, `unwant` and `watch` say what is wanted and return at once; every
    fact of `lease.events` from `LeaseGranted` on goes to `told`, in order, on the loop. `acquire`
    and `release` do the same and wait. Before each guarded step ask `check_alive`.

    `clock` is CLOCK_BOOTTIME seconds, `wall_clock` seconds since 1970; `nonce` tells this process
    from all others (a restarted one has another) and must not be used twice for one lease.
    `may_hold` is asked before each write that acquires or renews: while it says False none is sent,
    and the machine takes that for a store that does not answer.
    """

    def __init__(
        self,
        store: LeaseStore,
        settings: LeaseSettings,
        *,
        nonce: str,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        told: Callable[[object], None] | None = None,
        may_hold: Callable[[], bool] | None = None,
    ) -> None:
        self.machine = LeaseMachine(settings, nonce)
        self._may_hold = may_hold
        self._store = store
        self._settings = settings
        self._loop = loop
        self._clock = clock
        self._wall_clock = wall_clock
        self._told = told
        self._closed = False
        self._feeding = False
        self._inbox: list[object] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._request: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ended: dict[asyncio.Task[None], None] = {}  # cancelled, in order, and not over yet
        self._wall = WallWatch(settings.margin_s / 2)
        self._proof_asked = False
        self._acquirers: list[asyncio.Future[bool]] = []
        self._granted_to: asyncio.Future[bool] | None = None  # the only one that got it
        self._releasers: list[asyncio.Future[None]] = []

    # -- what is wanted

    def want(self) -> None:
        """Get it and keep it. While it is held: prove it by a round trip (see `AcquireWanted`)."""
        self._feed(AcquireWanted(self._settings.name))

    def unwant(self) -> None:
        """Give it up, or stop trying (see `ReleaseWanted`); from here on it is not held."""
        self._feed(ReleaseWanted(self._settings.name))

    def watch(self, wanted: bool = True) -> None:
        """Watch the record before it is wanted, so that an old one is known to be old."""
        self._feed(WatchWanted(self._settings.name, wanted))

    async def acquire(self) -> bool:
        """Try once. True: held; by the holder itself: held, proven by a round trip.

        False: another holder definitely has it. A record of which nobody knows whether its holder
        lives is watched until that is known, at most for its ttl. Raises `LeaseUnavailableError`
        when the store does not answer. Where the answer is not True, and when this is cancelled,
        the lease is not wanted any more: what a late write might still win is given back.
        """
        if self._closed:
            raise LeaseUnavailableError(f"lease {self._settings.name!r} was closed by this process")
        answer: asyncio.Future[bool] = self._loop.create_future()
        self._acquirers.append(answer)
        held_before = self.machine.state is State.HELD
        self.want()
        try:
            return await answer
        except asyncio.CancelledError:
            alone = self._granted_to is answer
            if answer in self._acquirers:
                self._acquirers.remove(answer)
                alone = not self._acquirers
            if alone and not held_before:
                self.unwant()
            raise

    async def release(self) -> None:
        """Give it up; returns once the store confirmed. Nothing to do when it is not held.

        Not held from the first instant on. Raises `LeaseUnavailableError` when the store could
        not be told until its record had expired by itself; bound the wait if that is too long.
        """
        if self._closed:
            return  # what was held then is left to its ttl
        answer: asyncio.Future[None] = self._loop.create_future()
        self._releasers.append(answer)
        self.unwant()
        await answer

    async def close(self) -> None:
        """Stop at once. Release it first: what is held is left to its ttl. The store stays open."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._ended, *(task for task in (self._request, self._watch) if task is not None)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=WATCH_RETRY_S)
        self._fail_waiters()

    # -- whether it is held

    @property
    def token(self) -> int | None:
        """Greater than that of each holder before; None while it is not held."""
        return None if self._closed else self.machine.token

    @property
    def valid_until(self) -> float:
        """On `clock`; minus infinity while it is not held."""
        return -math.inf if self._closed else self.machine.valid_until

    @property
    def state(self) -> State:
        """Where the machine stands; `HELD` alone does not allow to act."""
        return self.machine.state

    @property
    def is_at_risk(self) -> bool:
        """See `Lease.is_at_risk`."""
        return not self._closed and self.machine.is_at_risk and self.check_alive()

    def remaining_s(self) -> float:
        """Seconds for which this process may act if nothing renews it; 0 when it may not."""
        return max(0.0, self.valid_until - self._clock()) if self.check_alive() else 0.0

    def check_alive(self) -> bool:
        """May this process act now? Local, two clock reads.

        False also when the wall clock ran ahead of `clock` since the write that it was counted
        from: this machine may have been frozen while others ran. A renewal is asked for then, and
        its answer opens it again.
        """
        now = self._clock()
        if self._closed or not self.machine.held(now):
            return False
        if self._wall.trusts(now, self._wall_clock()):
            return True
        if not self._proof_asked and not self._closed:
            self._proof_asked = True
            self._loop.call_soon_threadsafe(self._prove)
        return False

    def _prove(self) -> None:
        if self.machine.state is State.HELD:
            self.want()

    def explain(self) -> str:
        """Why it is or is not held, in words."""
        return "closed" if self._closed else self.machine.explain(self._clock())

    @property
    def seen_ago_s(self) -> float | None:
        """Seconds since the record was last shown; None: it never was."""
        at = self.machine.seen_at
        return None if at == -math.inf else max(0.0, self._clock() - at)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    # -- the machine's shell

    def _feed(self, event: object) -> None:
        if self._closed:
            return
        self._inbox.append(event)
        if self._feeding:
            return  # a fact told to the user made it want something: after the facts before it
        self._feeding = True
        try:
            while self._inbox:
                self._perform(self.machine.handle(self._inbox.pop(0), self._clock()))
        finally:
            self._feeding = False
        self._arm()

    def _tick(self) -> None:
        # Timers of a loop may fire early, by its rounding: the machine would see "not yet".
        due, self._armed_for, self._timer = self._armed_for, math.inf, None
        self._feeding = True
        try:
            self._perform(self.machine.tick(max(self._clock(), due)))
        finally:
            self._feeding = False
        if self._inbox:
            self._feed(self._inbox.pop(0))
        self._arm()

    def _arm(self) -> None:
        deadline = self.machine.deadline
        if self._closed or deadline == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = deadline
        if deadline < math.inf:
            self._timer = self._loop.call_later(max(0.0, deadline - self._clock()), self._tick)

    def _perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case ReadStore():
                    self._begin_request(self._read(effect))
                case WriteStore():
                    write_id = effect.record.write_id
                    self._wall.sent(write_id, self._clock(), self._wall_clock())
                    self._begin_request(self._write(effect))
                case WatchRecord():
                    self._replace_watch(effect.version)
                case _:
                    self._tell(effect)

    def _begin_request(self, request: Coroutine[Any, Any, None]) -> None:
        self._end(self._request)
        self._request = self._loop.create_task(request)

    async def _read(self, order: ReadStore) -> None:
        answer: object
        try:
            find = self._store.look if order.only_looks else self._store.read
            record = await find(order.name)
            remaining_s = self._remaining_s(record)
            answer = RecordRead(order.name, order.attempt, record, remaining_s)
        except LeaseUnavailableError as error:
            answer = StoreFailed(order.name, order.attempt, str(error))
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            answer = StoreFailed(order.name, order.attempt, _broken(error))
        self._answer(answer)

    async def _write(self, order: WriteStore) -> None:
        answer: object
        try:
            if not order.record.free and self._may_hold is not None and not self._may_hold():
                answer = StoreFailed(order.name, order.attempt, MAY_NOT_HOLD, asked=False)
            else:
                record = await self._store.write(order.record, if_version=order.if_version)
                answer = RecordWritten(order.name, order.attempt, record)
        except WriteConflict as conflict:
            current = conflict.current
            remaining_s = self._remaining_s(current)
            answer = WriteRefused(order.name, order.attempt, current, remaining_s)
        except LeaseUnavailableError as error:
            answer = StoreFailed(order.name, order.attempt, str(error))
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            answer = StoreFailed(order.name, order.attempt, _broken(error))
        self._answer(answer)

    def _answer(self, answer: object) -> None:
        # A request that was given up may end all the same: it must not cancel its successor.
        if self._request is asyncio.current_task():
            self._request = None
        self._feed(answer)

    def _remaining_s(self, record: LeaseRecord | None) -> float | None:
        return None if record is None else self._store.remaining_s(record)

    def _replace_watch(self, version: str | None) -> None:
        self._end(self._watch)
        self._watch = None
        if version is not None:
            self._watch = self._loop.create_task(self._watch_record(version))

    async def _watch_record(self, version: str) -> None:
        try:
            await self._store.changed(self._settings.name, version)
        except LeaseUnavailableError:
            await asyncio.sleep(WATCH_RETRY_S)
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            _broken(error)
            await asyncio.sleep(WATCH_RETRY_S)
        if self._watch is asyncio.current_task():
            self._watch = None
        self._feed(RecordChanged(self._settings.name, version))

    def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            self._ended[task] = None
            task.add_done_callback(lambda ended: self._ended.pop(ended, None))

    # -- facts

    def _tell(self, fact: object) -> None:
        if isinstance(fact, LeaseGranted | LeaseRenewed):
            self._wall.confirmed(self.machine.confirmed_write_id)
            self._proof_asked = False
        if isinstance(fact, LeaseGranted) and not self.check_alive():
            return  # this machine stood still since that was written: it is told once it is proven
        self._answer_acquirers(fact)
        if isinstance(fact, LeaseReleased):
            self._answer_releasers(fact)
        if self._told is not None:
            self._told(fact)

    def _answer_acquirers(self, fact: object) -> None:
        error: Exception | None = None
        match fact:
            case LeaseGranted():
                pass
            case LeaseDenied():
                pass
            case LeaseUnknown(why=why) | LeaseLost(why=why):
                error = LeaseUnavailableError(f"lease {self._settings.name!r}: {why}")
            case LeaseReleased():
                error = LeaseUnavailableError(
                    f"lease {self._settings.name!r} was given up while it was being acquired"
                )
            case _:
                return
        waiting, self._acquirers = self._acquirers, []
        if isinstance(fact, LeaseReleased) and self.machine.state is State.ACQUIRING:
            self._acquirers = waiting  # they came after the release, and it was in their way
            return
        open_ones = [answer for answer in waiting if not answer.done()]
        self._granted_to = open_ones[0] if len(open_ones) == 1 else None
        for answer in open_ones:
            if error is None:
                answer.set_result(isinstance(fact, LeaseGranted))
            else:
                answer.set_exception(error)
        if open_ones and self.machine.state is State.ACQUIRING:
            self.unwant()

    def _answer_releasers(self, fact: LeaseReleased) -> None:
        waiting, self._releasers = self._releasers, []
        for answer in waiting:
            if answer.done():
                continue
            if fact.confirmed:
                answer.set_result(None)
            else:
                answer.set_exception(
                    LeaseUnavailableError(
                        f"lease {self._settings.name!r} could not be released: {fact.why}. Its "
                        "record has expired by itself; look after the store"
                    )
                )

    def _fail_waiters(self) -> None:
        error = LeaseUnavailableError(f"the keeper of lease {self._settings.name!r} was closed")
        waiting: list[asyncio.Future[Any]] = [*self._acquirers, *self._releasers]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)
        self._acquirers, self._releasers = [], []


def _broken(error: Exception) -> str:
    """Log what a store must not raise; the text for the machine."""
    log.error(
        "a lease store raised what its contract does not name",
        extra={"error": type(error).__name__, "detail": str(error)},
        exc_info=error,
    )
    return f"the lease store failed: {type(error).__name__}: {error}"
