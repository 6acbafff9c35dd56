"""Facts that a lease machine is told, and facts it tells.

Told by its user: `AcquireWanted`, `ReleaseWanted`, `WatchWanted`; by whoever performs
`lease.effects`: the answers of the store. `attempt` names the request that an answer belongs to.
Everything from `LeaseGranted` on comes out of the machine, for whoever wanted the lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from lease.record import LeaseRecord


@dataclass(frozen=True, slots=True)
class AcquireWanted:
    """Get the lease and keep it; stands until `ReleaseWanted`, a loss or the end.

    Answered after each try: `LeaseGranted`, `LeaseDenied`, `LeaseAwaited` or `LeaseUnknown`. While
    it is held already: a round trip to the store that proves it, answered in the same way (L3).
    """

    name: str


@dataclass(frozen=True, slots=True)
class ReleaseWanted:
    """The lease is not wanted any more, whether it is held, asked for, or neither.

    Answered by `LeaseReleased`. Nothing may act under the lease any more when this is told.
    """

    name: str


@dataclass(frozen=True, slots=True)
class WatchWanted:
    """Keep an eye on the record though nobody here wants it yet, so that a later `AcquireWanted`
    knows how old it is. With `wanted=False` this ends."""

    name: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class RecordRead:
    """Answer to `ReadStore`. `remaining_s` is what `LeaseStore.remaining_s` says of the record."""

    name: str
    attempt: int
    record: LeaseRecord | None
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """Answer to `WriteStore`: it is done; `record` is what the store keeps now."""

    name: str
    attempt: int
    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """Answer to `WriteStore`: the record was another one already (`WriteConflict`)."""

    name: str
    attempt: int
    current: LeaseRecord | None
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Answer to either: none is known. A write may have been applied, or may be later.

    With `asked=False` nothing was sent: this process must not ask now, and the store is not to
    blame.
    """

    name: str
    attempt: int
    why: str
    asked: bool = True


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """Answer to `WatchRecord`: the record has (or may have) another version than this."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """It is ours, on the clock of `now` until `valid_until` unless it is renewed.

    `token` is greater than that of everybody who held it before.
    """

    name: str
    token: int
    valid_until: float


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """It was ours and is so until `valid_until` now."""

    name: str
    token: int
    valid_until: float


@dataclass(frozen=True, slots=True)
class LeaseAtRisk:
    """It is ours, and no renewal was confirmed for so long that it ends in `left_s` (at most
    `drain_s`) unless one is: finish what was begun, begin nothing new.

    Once until a renewal or a loss; the next `LeaseRenewed` or `LeaseGranted` ends it.
    """

    name: str
    left_s: float
    why: str


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """Whether the store answers this process at all; told when that changes.

    It does with its first answer; it does not with the first request that gets none; it does
    again after `ANSWERS_IN_A_ROW` of them (`lease.machine`). `heard_at`: when the request was sent
    that was answered last, on the clock of `now`; where there was none, when the first was sent.
    """

    name: str
    answers: bool
    heard_at: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeaseDenied:
    """Another holder definitely has it. It is asked for again when that may have ended.

    `expires_in_s`: after so long, unless it is renewed, it can be taken.
    """

    name: str
    holder: str
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class LeaseAwaited:
    """There is a record of another holder, and whether that one still renews it is not known yet.

    It is watched: a change makes this a `LeaseDenied`, none until `expires_in_s` frees it.
    """

    name: str
    holder: str
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class LeaseUnknown:
    """The store did not answer; who holds the lease is unknown, we may. It is asked again.

    Given while the lease is not held, or as the answer to an `AcquireWanted` of its holder (who
    holds it still).
    """

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """It was held and is not any more, against our will; once per loss. It is not asked for again
    before the next `AcquireWanted` (I-29).

    `late_s`: for so long it was over when this was noticed; greater than 0 only where its time
    had passed, which a process that stood still notices late.
    """

    name: str
    why: str
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """Answer to `ReleaseWanted`: we do not hold it, nor will a late write of ours make it so.

    With `confirmed=False` the store could not be told; its record ends by its ttl.
    """

    name: str
    confirmed: bool
    why: str = ""
