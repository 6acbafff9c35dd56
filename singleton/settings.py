"""Timings and bounds of a singleton. Read by `singleton.machine` and `node.proxy`."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

_COUNTS = frozenset({"former_max", "early_asks_max", "buffer_size"})
_NO_NUMBERS = frozenset(
    {"role", "restart_on_termination", "downing", "leased", "terms", "on_lease_lost"}
)
ON_LEASE_LOST = ("stop", "drain")


@dataclass(frozen=True, slots=True, kw_only=True)
class SingletonSettings:
    """How one type is hosted; all members that start the type must agree on `role`.

    Raises ValueError, naming the field, when a value cannot work.
    """

    role: str | None = None  # only members with this role host; None: all
    downing: bool = False  # a strategy decides about the unreachable; else their silence does
    leased: bool = False  # an instance starts only under the lease of its type
    terms: str = ""  # what all members that host the type must agree about, see `terms_of`
    on_lease_lost: str = "stop"  # "drain": what is in the mailbox is handled all the same
    lease_ttl_s: float = 15.0  # who did not reach the store for so long, while others do, is unfit
    acquire_retry_interval_s: float = 5.0  # a lost lease is not asked for again before
    release_wait_s: float = 2.0  # so long others wait for the release; its ttl ends it as well
    hand_over_timeout_s: float = 10.0  # silence longer than this is no longer waited for
    ask_resend_s: float = 0.5  # unanswered questions are repeated
    stop_timeout_s: float = 10.0  # a peer's "stopping" renews the wait for at most so long
    restart_on_termination: bool = True  # False: an instance that ends by itself ends the tenure
    restart_backoff_s: float = 1.0  # wait after an instance ended by itself; doubles each time
    restart_backoff_max_s: float = 30.0  # up to this; one that ran for so long counts as healthy
    announce_interval_s: float = 1.0  # a host that is not the oldest eligible repeats its notice
    claim_timeout_s: float = 3.5  # without a repetition the notice of another host is forgotten
    withdrawn_kept_s: float = 15.0  # then the member record alone tells whether a member may host
    former_kept_s: float = 30.0  # members gone without proof of their end are asked for so long
    former_max: int = 1024
    early_asks_max: int = 64  # questions of processes that our view does not show as up yet
    buffer_size: int = 1000  # messages a proxy holds while there is no host

    def __post_init__(self) -> None:
        if self.role is not None and not (isinstance(self.role, str) and self.role):
            raise ValueError(f"role={self.role!r} must be a text that is not empty, or None")
        if self.on_lease_lost not in ON_LEASE_LOST:
            known = " or ".join(map(repr, ON_LEASE_LOST))
            raise ValueError(f"on_lease_lost={self.on_lease_lost!r} must be {known}")
        for name in ("restart_on_termination", "downing", "leased"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"{name}={value!r} must be True or False")
        for name in self.__slots__:
            if name in _NO_NUMBERS:
                continue
            value = getattr(self, name)
            whole = name in _COUNTS
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                what = "a whole number" if whole else "a number of seconds"
                raise ValueError(f"{name}={value!r} must be {what}")
            if not 0 < value < 1e9:
                raise ValueError(f"{name}={value} must be greater than 0 and less than 1e9")
        if self.ask_resend_s >= self.hand_over_timeout_s:
            raise ValueError(
                f"ask_resend_s={self.ask_resend_s} must be less than hand_over_timeout_s="
                f"{self.hand_over_timeout_s}: a single lost question would pass for silence"
            )
        if self.restart_backoff_s < 1.0:
            raise ValueError(
                f"restart_backoff_s={self.restart_backoff_s} must be at least 1: a restart gives "
                "the actor a new supervision budget, so a shorter wait makes a hot loop"
            )
        if self.restart_backoff_s > self.restart_backoff_max_s:
            raise ValueError(
                f"restart_backoff_s={self.restart_backoff_s} must not exceed "
                f"restart_backoff_max_s={self.restart_backoff_max_s}"
            )
        if self.announce_interval_s * 2 >= self.claim_timeout_s:
            raise ValueError(
                f"claim_timeout_s={self.claim_timeout_s} must be more than twice "
                f"announce_interval_s={self.announce_interval_s}: one lost notice must not move "
                "the host"
            )


def terms_of(
    role: str | None, *, store: str = "", lease: str = "", ttl_s: float | None = None
) -> str:
    """What members that host one type must agree about, as short as a record needs it.

    role: under which it is hosted. `store` (`LeaseStore.identity`), `lease` (its name) and its ttl
    in seconds; without a ttl there is no lease. "" when there is nothing to agree about.
    """
    if ttl_s is None:
        return role or ""
    return ";".join((role or "", _short(store), _short(lease), f"{ttl_s:g}"))


def differing(ours: str, theirs: str) -> str:
    """In words, what differs between two of `terms_of`; "" when nothing does."""
    if ours == theirs:
        return ""
    parts = ours.rsplit(";", 3), theirs.rsplit(";", 3)
    if len(parts[0]) != len(parts[1]):
        return "under a lease here, not there" if ";" in ours else "under a lease there, not here"
    names = ("role", "lease store", "lease name", "lease ttl")
    found = []
    for name, mine, other in zip(names, *parts, strict=False):
        if mine == other:
            continue
        tells = name in ("role", "lease ttl")
        found.append(f"{name} ({mine or 'none'} here, {other or 'none'} there)" if tells else name)
    return " and ".join(found)


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
