"""The record that a store keeps for a lease, and how far a record of somebody else is believed.

Decides what is stored and nothing more. Written by `lease.machine`, kept by the stores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_TTL_S = 3600.0
"""The longest ttl there is, for the one who holds and for the one who waits alike (I-12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a lease. Immutable; what others wrote may be damaged or hostile.

    Whoever writes gives the first five fields, the store the others.
    """

    name: str
    holder: str  # `holder_id`; empty: free
    token: int | None  # None in a write: the store gives the next one
    ttl_s: float
    write_id: str  # another one for each write, so that a writer knows its own
    version: str = ""  # differs after each write; the store's, compared for equality only
    clock: str = ""  # which clock `written_at` is of; empty: it is of none that can be compared
    written_at: float = 0.0
    acquired_at_wall_s: float | None = None  # seconds since 1970, for people only

    @property
    def free(self) -> bool:
        """True when it was released."""
        return not self.holder

    @property
    def owner(self) -> str:
        """The holder without its nonce."""
        return self.holder.rpartition("#")[0] or self.holder


def holder_id(owner: str, nonce: str) -> str:
    """What stands in a record: the owner's name, and what tells its process from all others.

    A restarted process of the same owner is another holder (I-20).
    """
    return f"{owner}#{nonce}"


def trusted_ttl_s(record: LeaseRecord) -> float:
    """Seconds for which an unchanged record must be respected.

    What is no number, not positive or greater than `MAX_TTL_S` counts as `MAX_TTL_S`: damage must
    neither free a lease (I-13) nor pin it for ever (I-12).
    """
    ttl_s: object = record.ttl_s
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float):
        return MAX_TTL_S
    return float(ttl_s) if 0 < ttl_s <= MAX_TTL_S else MAX_TTL_S


def store_remaining_s(record: LeaseRecord, clock: str, now: float) -> float | None:
    """Seconds until the record expires by the store's own clock, at most 0 when it has.

    None when that clock cannot tell: the record was stamped by another one, or with an instant
    that has not come yet.
    """
    if not clock or record.clock != clock:
        return None
    written_at: object = record.written_at
    if isinstance(written_at, bool) or not isinstance(written_at, int | float):
        return None
    age_s = now - written_at
    if not 0 <= age_s < math.inf:
        return None
    return trusted_ttl_s(record) - age_s
