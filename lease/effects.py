"""Orders of a lease machine; performed by `lease.keeper`."""

from __future__ import annotations

from dataclasses import dataclass

from lease.record import LeaseRecord


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Read the record; answered by `RecordRead` or `StoreFailed`.

    Whatever request is still under way was given up and is to be cancelled.
    """

    name: str
    attempt: int
    timeout_s: float  # the machine waits no longer for the answer
    only_looks: bool = False  # nobody wants it here: `LeaseStore.look`


@dataclass(frozen=True, slots=True)
class WriteStore:
    """Write the record where `if_version` is the present one; answered by `RecordWritten`,
    `WriteRefused` or `StoreFailed`. Never sent again by whoever performs it. For the request still
    under way see `ReadStore`."""

    name: str
    attempt: int
    record: LeaseRecord
    if_version: str | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """Tell `RecordChanged` when the record has another version; None: watch no more.

    Replaces the watch before it.
    """

    name: str
    version: str | None
