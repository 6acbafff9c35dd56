"""How well this node itself seems to be: Lifeguard's local health, and how lossy its network is.

Decides by how much probes are stretched, and whether this node may accuse many. Holds no clock.
Owned by `gossip.probing`.
Source: Lifeguard (2018), section IV-A (LHA-Probe), with the count of missed nacks.
"""

from __future__ import annotations

LOSS_WEIGHT = 0.1
LOSS_USUAL = 0.1
LOSS_PATIENCE = 6.0
STARTS_AT = 3


class LocalHealth:
    """`score` 0 is well; it saturates at `score_max`. Each point stretches probes by one interval.

    A process that has just started does not know yet how well it is, and is busy joining, on a
    host that may be busy starting others: it begins at `STARTS_AT`.

    `loss` is the share, of late, of answered probes of random members whose answer came late or
    over others only: near 0 in a healthy network, whatever a single member does, and whoever is
    gone.
    """

    def __init__(self, score_max: int) -> None:
        self.score = min(STARTS_AT, score_max)
        self.loss = 0.0
        self._score_max = score_max

    @property
    def factor(self) -> int:
        """How many times their normal length probe interval and ack timeout have."""
        return self.score + 1

    def better(self) -> None:
        """A probe succeeded."""
        self.score = max(0, self.score - 1)

    def worse(self, by: int = 1) -> None:
        """A probe failed without the nacks that were due, or we had to refute an accusation."""
        self.score = min(self._score_max, self.score + by)

    def answered(self, in_time: bool) -> None:
        """The end of a probe that was answered, of a member chosen by turns."""
        self.loss += LOSS_WEIGHT * ((not in_time) - self.loss)

    @property
    def patience(self) -> float:
        """How many times longer than usual a suspicion lasts: where messages are lost or late,
        answers to accusations are as well."""
        return 1.0 + LOSS_PATIENCE * max(0.0, self.loss - LOSS_USUAL)
