"""What becomes of an actor that raised, and why an actor stopped.

Decides: the answers to a failure, for one actor or a group, and the budget and backoff of
restarts. Does not perform them: that is `node.cell`. Given by the user at `spawn`, as
`supervision=`.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass

SECONDS_MAX = 1e9


class StopCause(enum.IntEnum):
    """Why an instance ended."""

    STOPPED = 0  # somebody ordered it
    FAILED = 1  # it raised, and its supervision says stop or its restarts are spent
    RESTARTED = 2  # this instance is replaced by a new one of the same actor
    SHUTDOWN = 3  # the system ends
    LEAVING = 4  # the node leaves the cluster
    HANDED_OVER = 5  # another node becomes host
    DOWNED = 6  # the node was marked down
    GONE = 7  # its node was removed, or there was no such actor
    LEASE_LOST = 8  # somebody else may hold its lease


PASSIVATED = "passivated"
"""The detail of an entity's end that is none: its next message builds it anew."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why an instance ended, and in words what is behind it (may be empty)."""

    cause: StopCause
    detail: str = ""

    def __str__(self) -> str:
        name = self.cause.name.lower().replace("_", " ")
        return f"{name}: {self.detail}" if self.detail else name


@dataclass(frozen=True, slots=True)
class Restart:
    """Build a new instance from class and arguments; mailbox and ref stay.

    At most `retries` restarts within `within_s`, then the actor stops. The n-th of them waits
    `backoff_s * 2**(n-1)`, at most `backoff_max_s`; messages wait meanwhile.

    Raises `TypeError` or `ValueError` unless `retries` is a whole number from 0 up, `within_s` are
    seconds above 0, and the others seconds from 0 up; seconds are 1e9 at most.
    """

    retries: int = 10
    within_s: float = 60.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or isinstance(self.retries, bool):
            raise TypeError(f"Restart: retries={self.retries!r} is no whole number: give 0 or more")
        if self.retries < 0:
            raise ValueError(f"Restart: retries={self.retries} is no count: give 0 or more")
        for key in ("within_s", "backoff_s", "backoff_max_s"):
            seconds = getattr(self, key)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool):
                raise TypeError(f"Restart: {key}={seconds!r} is no number: give seconds")
            least = math.ulp(0.0) if key == "within_s" else 0.0
            if not least <= seconds <= SECONDS_MAX:
                bound = "greater than 0" if least else "0 or more"
                raise ValueError(
                    f"Restart: {key}={seconds} must be {bound} and at most {SECONDS_MAX:g} seconds"
                )


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the actor."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with the next message and the same instance; an actor that cannot start stops."""


@dataclass(frozen=True, slots=True)
class Escalate:
    """Stop the actor, then treat the failure as one of its parent; without a parent: only stop."""


@dataclass(frozen=True, slots=True)
class AllForOne:
    """The children of an actor that are spawned with it share their fate: when one fails, all of
    them restart, or all stop.

    Each finishes its present message (a coroutine has the stop timeout for it), then its
    `pre_restart` gets the error that the other one raised, and no message. They restart after the
    same delay, each by itself; a failure counts towards the budget of all. Children with another
    supervision are left alone. Not for actors without a parent. Raises `TypeError` for another
    directive.
    """

    directive: Restart | Stop = Restart()

    def __post_init__(self) -> None:
        if not isinstance(self.directive, Restart | Stop):
            raise TypeError(
                f"AllForOne: directive={self.directive!r} is none for a group: give Restart(…) "
                f"or Stop()"
            )


Supervision = Restart | Stop | Resume | Escalate | AllForOne


class Failures:
    """Those of one actor: the instants that count against its budget, how many there were since it
    last ran, and the last one in words."""

    __slots__ = ("at", "count", "last")

    def __init__(self) -> None:
        self.at: deque[float] = deque()
        self.count = 0
        self.last = ""

    def add(self, text: str) -> None:
        """It has failed once more."""
        self.count += 1
        self.last = text


def times_failed(count: int, last: str) -> str:
    """How often something failed, for people."""
    return f"it failed {'once' if count == 1 else f'{count} times'}, last: {last}"


def failure_text(error: BaseException) -> str:
    """The text of an error of user code, whose `__str__` may itself fail; at most 2,000 letters."""
    try:
        return str(error)[:2_000]
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - the failure to report is the first one
        return "(its text cannot be built)"


def restart_delay_s(policy: Restart, failed_at: deque[float], now: float) -> float | None:
    """Seconds to wait before the next restart, None when the budget is spent.

    `failed_at` holds the instants of earlier failures; this one is added, old ones are dropped.
    """
    while failed_at and failed_at[0] <= now - policy.within_s:
        failed_at.popleft()
    if len(failed_at) >= policy.retries:
        return None
    failed_at.append(now)
    # The exponent is cut: a huge budget must not make a float of 2**1000000.
    return min(policy.backoff_s * 2.0 ** min(len(failed_at) - 1, 64), policy.backoff_max_s)
