"""Whether this machine may have stood still while the clock that leases are counted on stood too.

Decides from the wall clock: a virtual machine that is frozen and thawed finds its own clocks as it
left them, but the wall clock is set right sooner or later, and is ahead then. Does not decide what
follows (`lease.keeper` acts no more until a renewal is confirmed). No local clock sees every
freeze: one whose wall clock was set back by as much meanwhile is not seen, only a fence helps
there. Pure; one per lease and process.
"""

from __future__ import annotations

_WRITES_MAX = 64


class WallWatch:
    """`tolerance_s`: so far the wall clock may run ahead within one holding."""

    def __init__(self, tolerance_s: float) -> None:
        self._tolerance_s = tolerance_s
        self._sent: dict[str, float] = {}  # write id → wall clock minus clock when it was sent
        self._offset = 0.0  # of the write that the holding is counted from

    def sent(self, write_id: str, now: float, wall_now: float) -> None:
        """A write that acquires or renews leaves at this reading of both clocks, in seconds."""
        self._sent[write_id] = wall_now - now
        if len(self._sent) > _WRITES_MAX:
            del self._sent[next(iter(self._sent))]

    def confirmed(self, write_id: str) -> None:
        """The holding is counted from that write now."""
        self._offset = self._sent.get(write_id, self._offset)

    def trusts(self, now: float, wall_now: float) -> bool:
        """False: the wall clock ran ahead since the write that is counted from was sent."""
        ahead_s = wall_now - now - self._offset
        if ahead_s < 0.0:
            # It was set back: from here on it counts from there, or a freeze would fit into that.
            self._offset += ahead_s
        return ahead_s <= self._tolerance_s
