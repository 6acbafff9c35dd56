"""Name, owner and times of a lease. Read by `lease.machine` and `lease.keeper`."""

from __future__ import annotations

from dataclasses import dataclass

from lease.record import MAX_TTL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """One lease as one process wants it. There is no lease without name, owner and ttl (I-1).

    Raises ValueError, naming the field, when a value cannot work.
    """

    name: str  # what is held; the same for all who contend
    owner: str  # who holds, for people; a nonce per process is added to it
    ttl_s: float  # so long after its last renewal a holder that is gone is respected
    renewal_s: float = 0.0  # between two renewals; 0: a third of ttl_s
    margin_s: float = 0.0  # acting ends so long before the ttl; 0: a sixth of ttl_s
    drain_s: float = 0.0  # so long before that it is at risk; 0: margin_s, where there is room
    acquire_retry_interval_s: float = 5.0  # a store that tells of no change is asked so often
    acquire_retries: int = 3  # races lost in a row before the answer is "somebody else"

    def __post_init__(self) -> None:
        for field in ("name", "owner"):
            _check_text(field, getattr(self, field))
        _check_seconds("ttl_s", self.ttl_s)
        if self.ttl_s < MIN_TTL_S:
            raise ValueError(
                f"ttl_s={self.ttl_s} must be at least {MIN_TTL_S:g}: no store answers in time"
            )
        if self.ttl_s > MAX_TTL_S:
            raise ValueError(
                f"ttl_s={self.ttl_s} must be at most {MAX_TTL_S:.0f}: others respect no record "
                "longer than that"
            )
        for field, parts in (("renewal_s", 3), ("margin_s", 6)):
            if getattr(self, field) == 0:
                object.__setattr__(self, field, self.ttl_s / parts)
            _check_seconds(field, getattr(self, field))
        _check_seconds("acquire_retry_interval_s", self.acquire_retry_interval_s)
        if self.margin_s >= self.ttl_s:
            raise ValueError(
                f"margin_s={self.margin_s} must be less than ttl_s={self.ttl_s}: acting would end "
                "before it begins"
            )
        if self.margin_s < self.ttl_s * CLOCK_RATE_ERROR * 2:
            raise ValueError(
                f"margin_s={self.margin_s} must be at least {CLOCK_RATE_ERROR * 2:.0%} of ttl_s="
                f"{self.ttl_s}: two clocks may each be {CLOCK_RATE_ERROR:.0%} off"
            )
        if self.renewal_s * 2 > self.ttl_s - self.margin_s:
            raise ValueError(
                f"renewal_s={self.renewal_s} must be at most half of ttl_s - margin_s="
                f"{self.ttl_s - self.margin_s:g}: one renewal that fails must not end the lease"
            )
        spare_s = self.ttl_s - self.margin_s - self.renewal_s
        if self.drain_s == 0:
            object.__setattr__(self, "drain_s", min(self.margin_s, spare_s / 2))
        _check_seconds("drain_s", self.drain_s)
        if self.drain_s >= spare_s:
            raise ValueError(
                f"drain_s={self.drain_s} must be less than ttl_s - margin_s - renewal_s="
                f"{spare_s:g}: it would be at risk before its renewal is due"
            )
        if isinstance(self.acquire_retries, bool) or not isinstance(self.acquire_retries, int):
            raise ValueError(f"acquire_retries={self.acquire_retries!r} must be a whole number")
        if not 0 <= self.acquire_retries <= 1000:
            raise ValueError(f"acquire_retries={self.acquire_retries} must be from 0 to 1000")

    @property
    def valid_s(self) -> float:
        """Seconds from the sending of a write for which the writer may act."""
        return self.ttl_s - self.margin_s


MIN_TTL_S = 0.1
CLOCK_RATE_ERROR = 0.01
"""Clocks of two hosts run at rates that differ from the true one by no more than this."""


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{field}={value!r} must be a printable text that is not empty")
    if len(value) > 256:
        raise ValueError(f"{field} has {len(value)} characters, at most 256 are allowed")


def _check_seconds(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field}={value!r} must be a number of seconds")
    if not 0 < value < 1e9:
        raise ValueError(f"{field}={value} must be greater than 0 and less than 1e9")
