"""How long a suspicion lasts. Pure arithmetic, called by `gossip.probing`."""

from __future__ import annotations

import math


def suspicion_min_s(mult: float, member_count: int, probe_interval_s: float) -> float:
    """The least time before a suspect is called unreachable.

    Source: SWIM (2002) section 4.2 with memberlist's log10 rule; never under mult x interval.
    """
    return mult * max(1.0, math.log10(max(1, member_count))) * probe_interval_s


def suspicion_timeout_s(low_s: float, high_s: float, confirmations: int, expected: int) -> float:
    """Seconds until a suspect is called unreachable; falls from high_s to low_s as others agree.

    confirmations: members that agree, >= 0; expected: count that brings it to low_s; 0 = there is
    nobody who could confirm, so low_s at once. Raises ValueError when low_s > high_s.
    Source: Lifeguard (2018), section IV-B.
    """
    if low_s > high_s:
        raise ValueError(f"low_s={low_s} must not exceed high_s={high_s}")
    if expected <= 0:
        return low_s
    fallen = math.log(confirmations + 1) / math.log(expected + 1)
    return max(low_s, high_s - (high_s - low_s) * fallen)
