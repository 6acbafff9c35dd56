"""One process and one lease: when to ask the store, when it is ours, when it is ours no more.

Decides from what the store answered, and when, until which instant this process may act. Does not
talk to a store (`lease.keeper` performs `lease.effects`) and does not stop what acts: the gate of
the user reads `valid_until`. One machine per lease and process, called by `lease.keeper`.

**Holding.** A write that the store confirmed is worth `ttl_s - margin_s` seconds from the instant
at which it was *sent*, so a late answer is worth less, and one that comes too late nothing. The
others respect the record for `ttl_s` from an instant after that. Renewals that fail are repeated
until `valid_until`; only that instant, or a record that is not ours any more, ends the holding. A
lost lease is not asked for again by itself: what acted has to stop first. From `drain_s` before
`valid_until` on it is *at risk* until a renewal is confirmed.

**Answers that are missing.** One request is under way at a time; one that is not answered in time
is given up, and its write may land at any later instant. So each write carries an id of its own. As
long as the record still has the version that such writes were based on, all further writes are
based on that version too: at most one of them can land. A record with another version ends the
doubt: if it is one of our writes, that write alone counts, from when *it* was sent; the others can
not land any more.

**Waiting.** A record of somebody else is taken over when it was seen unchanged for its ttl on our
own clock, from the instant at which we first *received* it, or when the clock of the store says so.
No instant that another host wrote is ever compared with ours. `LeaseDenied` is only said of a
holder that certainly lives or lived less than a ttl ago: the record changed under our eyes, or the
store's clock says so. A record that was merely found is `LeaseAwaited`.

**Giving up.** Released is what the store confirmed as free, or what somebody else has. A write
that may still land is overtaken by a write of a free record on the same version. While the store
can not be told, nothing is asked for anew (I-4, I-6); a ttl after our last write the record is
worth nothing to anybody, and that ends the attempt.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass

from lease.effects import ReadStore, WatchRecord, WriteStore
from lease.events import (
    AcquireWanted,
    LeaseAtRisk,
    LeaseAwaited,
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
    StoreAnswers,
    StoreFailed,
    WatchWanted,
    WriteRefused,
)
from lease.record import LeaseRecord, holder_id, trusted_ttl_s
from lease.settings import LeaseSettings

REQUEST_TIMEOUT_MAX_S = 5.0
LOOK_TIMEOUT_MAX_S = 2.0
"""Of who only watches: nothing waits for that answer but what is said of the store."""
RETRY_MAX_S = 1.0
"""An unanswered store is asked again after so long at most."""
RETRY_MIN_S = 0.02
"""Between two requests after a failure, and between two looks that a watch asks for."""
ANSWERS_IN_A_ROW = 3
"""So many before a store that failed counts as answering again."""
PENDING_MAX = 64
"""Unanswered writes that are remembered; more can only be found as "ours, of unknown age"."""


LOSSES = ("deadline", "deleted", "released", "taken", "token")
COUNTED_FROM_0 = (
    *("grants", "renewals", "failures", "timeouts", "conflicts", "at risk", "losses"),
    *(f"lost: {kind}" for kind in LOSSES),
)
"""There from the start, so that an alarm sees the first one."""


class State(enum.StrEnum):
    """Where the machine stands."""

    IDLE = "idle"  # not wanted here
    ACQUIRING = "acquiring"  # wanted, and not ours
    HELD = "held"
    RELEASING = "releasing"  # given up here; a record or a write of ours may be left at the store


class _Aim(enum.Enum):
    LOOK = enum.auto()
    ACQUIRE = enum.auto()
    RENEW = enum.auto()
    RELEASE = enum.auto()


@dataclass(frozen=True, slots=True)
class _Request:
    attempt: int
    aim: _Aim
    sent_at: float
    timeout_at: float
    if_version: str | None = None


class LeaseMachine:
    """See the module. `nonce` tells this process from all others that use the owner's name; two
    machines with the same owner and nonce must not share a lease."""

    def __init__(self, settings: LeaseSettings, nonce: str) -> None:
        self.settings = settings
        self.holder = holder_id(settings.owner, nonce)
        self.state = State.IDLE
        self.token: int | None = None  # of the present holding
        self.valid_until = -math.inf  # acting ends here
        self.confirmed_write_id = ""  # of the write that `valid_until` was counted from
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED_FROM_0, 0))
        self.acquire_s_sum = 0.0  # of all `counts["grants"]`: wanted → held
        self.is_at_risk = False  # held, and hardly any more
        self.store_answers: bool | None = None  # see `StoreAnswers`; None: it was not asked yet
        self._nonce = nonce
        self._observing = False
        self._wanted_again = False  # while releasing
        self._wanted_at = -math.inf  # since when it is being acquired
        self._asked_at = math.inf  # of the `AcquireWanted` of a holder that is not answered yet
        self._request: _Request | None = None
        self._attempts = 0
        self._next_at = math.inf  # the next request, when none is under way
        self._give_up_at = math.inf  # of a release
        self._failure = ""
        self._heard_at = math.inf  # when the request was sent that the store answered last
        self._answers_in_a_row = 0

        self._looked = False
        self._record: LeaseRecord | None = None  # as last seen; all writes are based on it
        self._look_first = True  # it must be read once more before a write is based on it
        self._seen_at = -math.inf  # when its version was received first
        self._shown_at = -math.inf  # when the latest request that showed this version was sent
        self._changed_after = -math.inf  # it was written after this instant, for certain
        self._remaining: tuple[float, float] | None = None  # (now, seconds) by the store's clock
        # Write id → sent at, of those that would make it ours, based on the present version.
        self._pending: dict[str, float] = {}
        self._loose = False  # a write of ours may still land on the present version
        self._written_at = -math.inf  # when the last write that would make it ours was sent
        self._races_lost = 0
        self._watched: str | None = None
        self._out: list[object] = []

    # -- read by others

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due; `math.inf` when it is idle."""
        due = self._next_at if self._request is None else self._request.timeout_at
        if self.state is not State.HELD:
            return due
        ends_at = self.valid_until if self.is_at_risk else self._at_risk_at
        return min(due, ends_at)

    @property
    def _at_risk_at(self) -> float:
        return self.valid_until - self.settings.drain_s

    @property
    def record(self) -> LeaseRecord | None:
        """The record as it was last seen, for people; None: none was seen, or there is none."""
        return self._record

    @property
    def seen_at(self) -> float:
        """When the request was sent that showed the record last; minus infinity: none did."""
        return self._shown_at

    def held(self, now: float) -> bool:
        """True while this process may act under the lease."""
        return self.state is State.HELD and now < self.valid_until

    def explain(self, now: float) -> str:
        """Why it is or is not held, in words."""
        if self.state is State.HELD:
            return f"held here for another {max(0.0, self.valid_until - now):.1f} s unless renewed"
        if self.state is State.RELEASING:
            return f"being released; {self._failure or 'the store has not confirmed it yet'}"
        if self.state is State.IDLE and self._failure:
            return f"not wanted here; it is watched in vain: {self._failure}"
        if self.state is State.IDLE:
            return "not wanted here"
        if self._failure:
            return f"unknown: {self._failure}"
        if self._record is not None and self._foreign(self._record):
            left_s = max(0.0, self._expires_at() - now)
            return f"waiting for the lease held by {self._record.owner} for another {left_s:.1f} s"
        return "asking the store"

    # -- the door

    def handle(self, event: object, now: float) -> list[object]:
        """Take one fact; the effects and facts that follow, in order."""
        self._expire(now)
        match event:
            case AcquireWanted():
                self._want(now)
            case ReleaseWanted():
                self._unwant(now)
            case WatchWanted():
                self._observe(event.wanted, now)
            case RecordChanged():
                self._look_again(event, now)
            case RecordRead() | RecordWritten() | WriteRefused() | StoreFailed():
                self._answered(event, now)
            case _:
                raise AssertionError(f"a lease machine takes no {type(event).__name__}")
        return self._proceed(now)

    def tick(self, now: float) -> list[object]:
        """Do what is due."""
        self._expire(now)
        request = self._request
        if request is not None and now >= request.timeout_at:
            self._request = None
            self.counts["timeouts"] += 1
            waited_s = request.timeout_at - request.sent_at
            self._unanswered(f"it did not answer within {waited_s:.2g} s")
            self._fail(f"the lease store did not answer within {waited_s:.2g} s", now)
        return self._proceed(now)

    # -- what the user wants

    def _want(self, now: float) -> None:
        if self.state is State.RELEASING:
            self._wanted_again = True
            return
        if self.state is State.IDLE:
            self.state = State.ACQUIRING
            self._races_lost = 0
            self._wanted_at = now
        if self.state is State.HELD:
            self._asked_at = now
        self._look_first = True
        self._next_at = now

    def _unwant(self, now: float) -> None:
        if self.state is State.RELEASING:
            self._wanted_again = False
            return
        # Before anything is sent: from here on nothing of this process acts (I-2).
        self._drop_holding()
        tried = self.state is State.ACQUIRING and (self._loose or self._ours())
        if self.state is State.HELD or tried:
            self._begin_release(now)
            return
        if self.state is State.ACQUIRING:
            self._become_idle(now)
        self._out.append(LeaseReleased(self.settings.name, confirmed=True))

    def _begin_release(self, now: float) -> None:
        self.state = State.RELEASING
        self._failure = ""
        self._next_at = now
        self._give_up_at = max(
            now + self._request_timeout_s(now), self._written_at + self.settings.ttl_s
        )

    def _observe(self, wanted: bool, now: float) -> None:
        self._observing = wanted
        if self.state is State.IDLE:
            self._next_at = now if wanted else math.inf

    def _look_again(self, event: RecordChanged, now: float) -> None:
        if event.version != self._watched:
            return
        self._watched = None
        if self._request is None and self._waiting():
            self._look_first = True
            # A watch may return too early, and must not make a loop without a pause.
            self._next_at = min(self._next_at, max(now, self._shown_at + RETRY_MIN_S))

    # -- what the store says

    def _answered(
        self, event: RecordRead | RecordWritten | WriteRefused | StoreFailed, now: float
    ) -> None:
        request = self._request
        if request is None or event.attempt != request.attempt:
            self.counts["late-answers"] += 1
            return
        self._request = None
        if not isinstance(event, StoreFailed):
            self._heard(request)
        match event:
            case StoreFailed(asked=False):
                self._fail(event.why, now)
            case StoreFailed():
                self.counts["failures"] += 1
                self._unanswered(event.why)
                self._fail(event.why, now)
            case RecordRead():
                self._failure = ""
                self._look_first = False
                landed = self._see(event.record, request, event.remaining_s, now)
                self._judge(landed, now)
            case WriteRefused():
                current = event.current
                if (None if current is None else current.version) == request.if_version:
                    self._fail("the lease store refused a write on the version that it shows", now)
                    return
                self._failure = ""
                self.counts["conflicts"] += 1
                self._look_first = False
                landed = self._see(current, request, event.remaining_s, now)
                if request.aim is _Aim.ACQUIRE and landed is None:
                    self._races_lost += 1
                self._judge(landed, now)
            case RecordWritten():
                self._failure = ""
                self._look_first = False
                self._judge(self._see(event.record, request, None, now), now)

    def _heard(self, request: _Request) -> None:
        self._heard_at = request.sent_at
        self._answers_in_a_row += 1
        again = self._answers_in_a_row >= ANSWERS_IN_A_ROW
        if self.store_answers is None or (not self.store_answers and again):
            self.store_answers = True
            self._out.append(StoreAnswers(self.settings.name, True, self._heard_at))

    def _unanswered(self, why: str) -> None:
        self._answers_in_a_row = 0
        if self.store_answers is not False:
            self.store_answers = False
            self._out.append(StoreAnswers(self.settings.name, False, self._heard_at, why))

    def _see(
        self,
        record: LeaseRecord | None,
        request: _Request,
        remaining_s: float | None,
        now: float,
    ) -> float | None:
        """Take the record for the present one. Returns when it was sent if it is a write of ours
        that makes it ours, None for any other and for one whose instant does not count any more."""
        landed = None
        version = None if record is None else record.version
        if not self._looked or version != self._base_version():
            landed = self._landed(record)
            # All that was based on the former version can not land any more.
            self._pending.clear()
            self._loose = False
            self._changed_after = self._shown_at if self._looked else -math.inf
            self._seen_at = now
            self._shown_at = -math.inf
            self._looked = True
            self._record = record
        self._shown_at = max(self._shown_at, request.sent_at)
        self._remaining = None if remaining_s is None else (now, remaining_s)
        return landed

    def _landed(self, record: LeaseRecord | None) -> float | None:
        if record is None or record.holder != self.holder:
            return None
        return self._pending.get(record.write_id)

    def _judge(self, landed: float | None, now: float) -> None:
        """Draw the conclusions from the record; `landed`: it is our own write, sent then."""
        match self.state:
            case State.HELD:
                self._judge_held(landed, now)
            case State.ACQUIRING:
                self._judge_acquiring(landed, now)
            case State.RELEASING:
                self._next_at = now
            case State.IDLE:
                self._next_at = now + self._look_every_s() if self._observing else math.inf

    def _judge_held(self, landed: float | None, now: float) -> None:
        record = self._record
        if record is None:
            self._lose("deleted", "its record was deleted", now)
        elif record.free and record.token == self.token:
            self._lose("released", "somebody else released it", now)
        elif record.free:
            self._lose("taken", "somebody else has taken it, and released it since", now)
        elif self._foreign(record):
            self._lose("taken", f"{record.owner} has taken it", now)
        elif record.token != self.token:
            why = f"its record has token {record.token}, ours is {self.token}"
            self._lose("token", why, now)
        elif landed is None:
            self._next_at = now + self._retry_s(now)
        else:
            self._credit(landed, now)

    def _judge_acquiring(self, landed: float | None, now: float) -> None:
        record = self._record
        name = self.settings.name
        in_time = landed is not None and landed + self.settings.valid_s > now
        if landed is not None and in_time and record is not None and record.token is not None:
            self.state = State.HELD
            self.token = record.token
            self.counts["grants"] += 1
            self.acquire_s_sum += now - self._wanted_at
            self._asked_at = -math.inf  # it was asked for: the answer is `LeaseGranted`
            self._credit(landed, now)
            return
        retry_at = now + self.settings.acquire_retry_interval_s
        if record is not None and self._foreign(record) and now < self._expires_at():
            expires_at = self._expires_at()
            certain = now < self._alive_until()
            kind = LeaseDenied if certain else LeaseAwaited
            self._out.append(kind(name, record.owner, expires_at - now))
            self._races_lost = 0
            self._next_at = min(expires_at, retry_at)
        elif self._races_lost > self.settings.acquire_retries:
            self._races_lost = 0
            self._look_first = True
            owner = "another contender" if record is None or record.free else record.owner
            self._out.append(LeaseDenied(name, owner, retry_at - now))
            self._next_at = retry_at
        else:
            self._next_at = now

    def _fail(self, why: str, now: float) -> None:
        self._failure = why
        self._look_first = True
        self._next_at = now + self._retry_s(now)
        asked = self.state is State.HELD and self._asked_at < math.inf
        if self.state is State.ACQUIRING or asked:
            self._asked_at = math.inf
            self._out.append(LeaseUnknown(self.settings.name, why))

    # -- holding

    def _credit(self, sent_at: float, now: float) -> None:
        """A write of ours is the present record: count from when it was sent."""
        assert self.token is not None
        assert self._record is not None
        valid_until = sent_at + self.settings.valid_s
        if valid_until > self.valid_until:
            self.valid_until = valid_until
            self.confirmed_write_id = self._record.write_id
            self.is_at_risk = False
        self._next_at = max(now, sent_at + self.settings.renewal_s)
        if sent_at >= self._asked_at:
            self._asked_at = math.inf
            self._out.append(LeaseGranted(self.settings.name, self.token, self.valid_until))
        else:
            self.counts["renewals"] += 1
            self._out.append(LeaseRenewed(self.settings.name, self.token, self.valid_until))
            if self._asked_at < math.inf:
                self._next_at = now

    def _note_risk(self, now: float) -> None:
        if self.state is not State.HELD or self.is_at_risk or now < self._at_risk_at:
            return
        self.is_at_risk = True
        self.counts["at risk"] += 1
        left_s = max(0.0, self.valid_until - now)
        why = self._failure or "no renewal was confirmed in time"
        self._out.append(LeaseAtRisk(self.settings.name, left_s, why))

    def _expire(self, now: float) -> None:
        if self.state is State.HELD and now >= self.valid_until:
            silent_s = now - (self.valid_until - self.settings.valid_s)
            why = (
                f"no renewal was confirmed for {silent_s:.1f} s: "
                f"{self._failure or 'this process stood still'}"
            )
            self._lose("deadline", why, now)

    def _lose(self, kind: str, why: str, now: float) -> None:
        late_s = max(0.0, now - self.valid_until)
        self.counts["losses"] += 1
        self.counts[f"lost: {kind}"] += 1
        self._drop_holding()
        self._become_idle(now)
        self._out.append(LeaseLost(self.settings.name, why, late_s))

    def _drop_holding(self) -> None:
        self.token = None
        self.valid_until = -math.inf
        self.is_at_risk = False
        self._asked_at = math.inf
        # What lands from now on was asked for by a holding that has ended, under its token.
        self._pending.clear()

    def _become_idle(self, now: float) -> None:
        self.state = State.IDLE
        self._failure = ""
        self._next_at = now + self._look_every_s() if self._observing else math.inf

    # -- requests

    def _proceed(self, now: float) -> list[object]:
        if self._request is None and now >= self._next_at:
            self._act(now)
        self._note_risk(now)
        self._renew_watch()
        out, self._out = self._out, []
        return out

    def _act(self, now: float) -> None:
        match self.state:
            case State.HELD:
                self._write(_Aim.RENEW, self.token, now)
            case State.ACQUIRING if self._look_first or not self._takeable(now):
                self._read(now)
            case State.ACQUIRING:
                self._write(_Aim.ACQUIRE, None, now)
            case State.RELEASING:
                self._release(now)
            case State.IDLE if self._observing:
                self._read(now)
            case State.IDLE:
                self._next_at = math.inf

    def _release(self, now: float) -> None:
        record = self._record
        if not self._ours() and not self._loose:
            self._end_release(now, confirmed=True)
        elif now >= self._give_up_at:
            self._end_release(now, confirmed=False)
        else:
            self._write(_Aim.RELEASE, None if record is None else record.token, now)

    def _end_release(self, now: float, *, confirmed: bool) -> None:
        why = "" if confirmed else self._failure
        self._become_idle(now)
        self._out.append(LeaseReleased(self.settings.name, confirmed=confirmed, why=why))
        if self._wanted_again:
            self._wanted_again = False
            self._want(now)
            self._act(now)

    def _read(self, now: float) -> None:
        timeout_s = self._begin_request(_Aim.LOOK, now)
        only_looks = self.state is State.IDLE
        self._out.append(ReadStore(self.settings.name, self._attempts, timeout_s, only_looks))

    def _write(self, aim: _Aim, token: int | None, now: float) -> None:
        assert self._looked, "a write is based on a record that was seen"
        timeout_s = self._begin_request(aim, now)
        record = LeaseRecord(
            name=self.settings.name,
            holder="" if aim is _Aim.RELEASE else self.holder,
            token=token,
            ttl_s=self.settings.ttl_s,
            write_id=f"{self._nonce}.{self._attempts}",
        )
        self._loose = True
        if aim is not _Aim.RELEASE:
            self._written_at = now
            self._pending[record.write_id] = now
            if len(self._pending) > PENDING_MAX:
                del self._pending[next(iter(self._pending))]
        base = self._base_version()
        self._out.append(WriteStore(self.settings.name, self._attempts, record, base, timeout_s))

    def _begin_request(self, aim: _Aim, now: float) -> float:
        timeout_s = self._request_timeout_s(now)
        self._attempts += 1
        base = self._base_version()
        if self._heard_at == math.inf:
            self._heard_at = now
        self._request = _Request(self._attempts, aim, now, now + timeout_s, base)
        return timeout_s

    def _request_timeout_s(self, now: float) -> float:
        """A quarter of what is left, so that several tries fit in before a loss."""
        if self.state is State.HELD:
            left_s = self.valid_until - now
            return min(max(left_s / 4, RETRY_MIN_S), REQUEST_TIMEOUT_MAX_S)
        if self.state is State.IDLE:
            return min(self.settings.valid_s / 2, LOOK_TIMEOUT_MAX_S)
        return min(self.settings.valid_s / 2, REQUEST_TIMEOUT_MAX_S)

    def _retry_s(self, now: float) -> float:
        if self.state is State.HELD:
            return min(max((self.valid_until - now) / 8, RETRY_MIN_S), RETRY_MAX_S)
        return min(RETRY_MAX_S, self.settings.acquire_retry_interval_s)

    def _look_every_s(self) -> float:
        """Without wanting it; sooner where it has to be known whether the store answers again."""
        interval_s = self.settings.acquire_retry_interval_s
        return min(RETRY_MAX_S, interval_s) if self.store_answers is False else interval_s

    # -- the record

    def _base_version(self) -> str | None:
        return None if self._record is None else self._record.version

    def _ours(self) -> bool:
        return self._record is not None and self._record.holder == self.holder

    def _foreign(self, record: LeaseRecord) -> bool:
        return not record.free and record.holder != self.holder

    def _takeable(self, now: float) -> bool:
        record = self._record
        return record is None or not self._foreign(record) or now >= self._expires_at()

    def _expires_at(self) -> float:
        """When the present record, if nothing renews it, need not be respected any more."""
        assert self._record is not None
        ttl_s = trusted_ttl_s(self._record)
        if self._remaining is not None:
            told_at, remaining_s = self._remaining
            return told_at + min(remaining_s, ttl_s)
        return self._seen_at + ttl_s

    def _alive_until(self) -> float:
        """Its holder certainly had it at some instant less than a ttl before this one."""
        assert self._record is not None
        if self._remaining is not None:
            return self._expires_at()
        return self._changed_after + trusted_ttl_s(self._record)

    def _waiting(self) -> bool:
        record = self._record
        if record is None or not self._foreign(record):
            return False
        if self.state is State.ACQUIRING:
            return True
        # Where the store tells how old a record is, nobody has to have watched it.
        return self.state is State.IDLE and self._observing and self._remaining is None

    def _renew_watch(self) -> None:
        wanted = self._base_version() if self._waiting() else None
        # A look under way may show another version in a moment; the watch before it still counts.
        if wanted is not None and self._request is not None:
            return
        if wanted != self._watched:
            self._watched = wanted
            self._out.append(WatchRecord(self.settings.name, wanted))
