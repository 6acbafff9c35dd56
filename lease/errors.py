"""What a lease store answers when it does not answer with a record, told apart by what to do next.

LeaseError
├── WriteConflict          the store decided, and against us: look at `current`
└── LeaseUnavailableError  the store did not decide, or nobody knows: ask again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lease.record import LeaseRecord


class LeaseError(Exception):
    """Root of every error of this package, but for wrong settings (ValueError)."""


class WriteConflict(LeaseError):  # noqa: N818 - an answer of the contract, not a failure
    """The record was not the one that the write was based on; nothing was written.

    `current` is the record as it is, None when there is none.
    """

    def __init__(self, current: LeaseRecord | None) -> None:
        self.current = current
        what = "there is no record" if current is None else f"the record is {current}"
        super().__init__(f"the write was based on another version; now {what}")


class LeaseUnavailableError(LeaseError):
    """Nobody can say who holds the lease: the store is down, too slow, or its answer was lost.

    A write that ends so may have been applied, and may be applied later still.
    """
