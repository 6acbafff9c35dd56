"""Timings and bounds of downing and contact. Read by `downing`; built by `node.settings`."""

from __future__ import annotations

from dataclasses import dataclass

PRESETS: dict[str, dict[str, float]] = {
    "local": {},
    "lan": {},
    "wan": {"down_after_s": 10.0, "contact_s": 6.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DowningSettings:
    """Seconds, except where a name says otherwise. The values given here are the preset `lan`.

    Raises ValueError, naming the fields, when values cannot work together.
    """

    down_after_s: float = 5.0  # a view must have been stable for so long before it is decided on
    contact_s: float = 2.5  # a grant is valid for so long from the instant its ping was sent
    down_all_when_unstable_s: float | None = None  # None: a view that never settles is only told
    ack_timeout_s: float = 0.25  # as membership's; then a question is repeated through others
    gossip_interval_s: float = 0.2  # as membership's
    pings_per_contact: int = 5
    pinged_max: int = 30  # above so many others, enough of them for contact and some more
    pinged_spare: int = 3
    helpers: int = 3
    relays_max: int = 64  # questions repeated through others per round
    clock_margin: float = 0.02  # two clocks differ by less
    doomed_told_s: float = 1.0  # a promise that is not carried out is told to the leader so often
    order_kept_s: float = 60.0  # an operator's order that could not be carried out is dropped then
    stop_timeout_s: float = 20.0  # a reachable member that is downed has so long to stop
    arbiter_retry_s: float = 1.0  # an unknown answer of the arbiter: it is asked again
    subjects_max: int = 8192

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise ValueError(f"{name}={value} must be greater than 0: give a positive number")
        if 5 * self.ack_timeout_s > self.contact_s:
            raise ValueError(
                f"contact_s={self.contact_s:g} must be at least 5 x ack_timeout_s "
                f"({self.ack_timeout_s:g}), {5 * self.ack_timeout_s:g}: a few lost pings would "
                f"suspend what runs here; raise contact_s or lower ack_timeout_s"
            )
        least_s = self.contact_s + 2 * self.ack_timeout_s + 2 * self.gossip_interval_s
        if least_s > self.down_after_s:
            raise ValueError(
                f"down_after_s={self.down_after_s:g} must be at least {least_s:g}, that is "
                f"contact_s ({self.contact_s:g}) + 2 x ack_timeout_s ({self.ack_timeout_s:g}) + 2 "
                f"gossip ticks ({self.gossip_interval_s:g}): a takeover must find the other side "
                f"silent already; raise down_after_s or lower contact_s"
            )

    @property
    def ping_interval_s(self) -> float:
        """Between two rounds of contact pings."""
        return self.contact_s / self.pings_per_contact

    @property
    def quiet_needed_s(self) -> float:
        """After so long without a grant of ours the last one is over, by anybody's clock."""
        return self.contact_s * (1.0 + self.clock_margin)
