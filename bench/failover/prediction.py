"""What a failover should take by the settings, before it is measured. The arithmetic of
docs/failover.md; seconds without a single step, as least and most.

Decides nothing else. Called by `bench.failover.command`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """The settings that matter, with the defaults of the preset `lan`.

    detection_s: until every other member holds a silent one unreachable; what is left of the new
    instance's instants in bench/results/partition.md (N=3) without `down_after_s`.
    """

    detection_s: tuple[float, float] = (2.0, 3.5)
    down_after_s: float = 5.0
    contact_s: float = 2.5
    hand_over_timeout_s: float = 10.0
    ttl_s: float = 15.0
    acquire_retry_interval_s: float = 5.0
    steps_s: float = 0.15
    """Between two steps of the subject, and to start one."""


def unavailable_s(level: str, fault: str, w: Windows) -> tuple[float, float] | None:
    """None where the arithmetic gives no figure."""
    leased = level.startswith("lease")
    left_s = (w.ttl_s * 2 / 3, w.ttl_s)
    match fault:
        case "leave":
            return 0.0, w.steps_s + 0.1
        case "crash" if level == "lease":
            return left_s[0], left_s[1] + w.steps_s + 0.3
        case "crash":
            return 0.0, w.steps_s + 0.45
        case "partition" | "one-way" if level == "none":
            return 0.0, 2 * w.steps_s  # the old one acts on
        case "partition-store" if leased:
            # It acts for a grant after the cut, and what is left counts from its last renewal.
            least_s = w.detection_s[0] + w.down_after_s - w.contact_s
            most_s = w.detection_s[1] + w.down_after_s + w.steps_s + 0.5
            return (
                max(least_s, left_s[0] - w.contact_s),
                max(most_s, left_s[1] - w.contact_s + w.steps_s + 0.5),
            )
        case "partition" | "one-way":
            # It falls silent a grant after the cut; the next one begins when it is decided.
            least_s = w.detection_s[0] + w.down_after_s - w.contact_s
            most_s = w.detection_s[1] + w.down_after_s + w.steps_s + 0.5
            if leased:
                # It renews as long as it has contact: what is left of the ttl counts from then.
                return max(least_s, left_s[0]), max(most_s, left_s[1] + w.steps_s + 0.5)
            return least_s, most_s
        case "store-cut-host" if leased:
            # From its deadline until it is unfit: the ttl from its last renewal.
            return w.ttl_s / 6, w.ttl_s / 6 + w.steps_s + 1.5
        case "store-outage" if leased:
            # From its deadline until the store is back, and one retry.
            outage_s = 1.5 * w.ttl_s
            return (
                outage_s - w.ttl_s,
                outage_s - w.ttl_s / 2 + w.acquire_retry_interval_s + 0.5,
            )
    return None
