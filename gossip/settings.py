"""Timings and bounds of membership. Read by `gossip.machine`; built by `node.settings`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

PRESETS: dict[str, dict[str, float]] = {
    # one machine: nothing but the kernel lies between two members
    "local": {
        "probe_interval_s": 0.2,
        "ack_timeout_s": 0.1,
        "gossip_interval_s": 0.1,
        "dial_timeout_s": 0.1,
        "heartbeat_interval_s": 0.3,
        "heartbeat_timeout_s": 1.0,
    },
    # one data centre: the values below
    "lan": {},
    # round trips of up to half a second
    "wan": {
        "probe_interval_s": 2.0,
        "ack_timeout_s": 1.0,
        "gossip_interval_s": 0.5,
        "hurry_s": 0.1,
        "dial_timeout_s": 1.0,
        "answer_valid_s": 10.0,
        "authority_after_s": 6.0,
        "sync_interval_s": 3.0,
        "heartbeat_interval_s": 3.0,
        "heartbeat_timeout_s": 10.0,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipSettings:
    """Every instant is seconds. The values given here are the preset `lan`.

    Raises ValueError, naming the field, when a value cannot work.
    """

    probe_interval_s: float = 0.5  # one member is pinged per interval
    ack_timeout_s: float = 0.25  # then others are asked to ping it; at least a round trip
    indirect_probes: int = 3
    suspicion_mult: float = 4.0  # least suspicion = mult x log10 N x probe_interval_s
    suspicion_max_mult: float = 6.0  # greatest = this x the least, falls with confirmations
    suspicion_confirmations: int = 3
    health_max: int = 8  # local health stretches probes to at most 1 + so many intervals
    accusations_max: int = 8  # open ones of a node that is not well itself
    watched: int = 4  # members on whom each one keeps an eye, and a link
    gossip_interval_s: float = 0.2
    hurry_s: float = 0.02  # after a verdict the next gossip ticks come so soon, then twice as late
    gossip_fanout: int = 3
    packet_bytes_max: int = 4096  # of rumours; a link is a byte stream, no datagram
    rumour_mult: float = 4.0  # each rumour is sent mult x log10(N + 1) times by each member
    status_fanout: int = 8  # a change of status goes to so many members at once
    notice_fanout_max: int = 128  # a leader, or who admits, tells so many members itself
    notice_gap_s: float = 0.05  # newcomers that come so close together are told of together
    sync_after_ticks: int = 2  # views that differ for so many gossip ticks are exchanged
    sync_interval_s: float = 1.0  # at most one exchange started per this time
    join_retry_s: float = 0.1
    join_retry_max_s: float = 2.0
    answer_valid_s: float = 5.0  # an answer "I am looking too" is evidence for so long
    heard_cluster_hold_s: float = 10.0  # who heard of a cluster does not found for so long
    island_probe_s: float = 2.0  # seeds outside our view are asked who they are
    weakly_up_after_s: float = 7.0
    redial_interval_s: float = 1.0
    redials_per_s_max: int = 20
    leave_timeout_s: float = 5.0
    vote_timeout_s: float = 15.0  # who leaves stays so long for a decision that is pending
    tombstone_ttl_s: float = 86_400.0
    tombstones_max: int = 4096
    members_max: int = 8192
    records_max: int = 65_536
    pending_joins_max: int = 1024
    remembered_max: int = 256
    rumours_max: int = 32_768
    introductions_max: int = 1024  # ids that one member brought up and nobody else confirmed
    incarnation_jump_max: int = 1 << 20  # relays may run so far ahead of a member's own word
    authority_after_s: float = 2.0  # who leads because lower ones are unreachable waits so long
    dial_timeout_s: float = 0.25
    link_confirmations: int = 2
    refusal_gap_s: float = 0.05  # a dying listener still accepts for a few ms
    heartbeat_interval_s: float = 1.0  # ZMTP heartbeats of kept links; read by the transport
    heartbeat_timeout_s: float = 3.0
    crash_evidence: Literal["same-host", "never"] = "same-host"
    downing: bool = False  # a strategy decides about the unreachable: nobody is merely superseded
    lifeguard: bool = True  # False: plain SWIM, for comparison only

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) in (int, float) and not (0 < value < 1e9):
                raise ValueError(f"{name}={value} must be greater than 0: give a positive number")
        if self.ack_timeout_s >= self.probe_interval_s:
            raise ValueError(
                f"ack_timeout_s={self.ack_timeout_s} must be less than "
                f"probe_interval_s={self.probe_interval_s}: lower the one or raise the other"
            )
        if self.join_retry_s > self.join_retry_max_s:
            raise ValueError(
                f"join_retry_s={self.join_retry_s} must not exceed "
                f"join_retry_max_s={self.join_retry_max_s}"
            )
        if self.crash_evidence not in ("same-host", "never"):
            raise ValueError(
                f"crash_evidence={self.crash_evidence!r} must be 'same-host' or 'never'"
            )


def preset(name: str) -> GossipSettings:
    """The settings of a preset: `local`, `lan` or `wan`. Raises ValueError for another name."""
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} is unknown: choose one of {', '.join(PRESETS)}")
    return replace(GossipSettings(), **PRESETS[name])  # type: ignore[arg-type]
