"""Facts that downing is told, orders it gives, and facts it publishes.

Besides these it takes a `gossip.membership.MembershipView`, `gossip.effects.PeerMessage` with a
message of `downing.messages`, and `gossip.effects.Paused`; it orders `Send`, `Publish` and
`gossip.events.Exit`. Routed by `node.core`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import Cause, NodeId

# events


@dataclass(frozen=True, slots=True)
class ContactWanted:
    """Something unique runs here, or is about to: contact is needed (or not any more)."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class DownRequested:
    """An operator wants this member down, us included."""

    subject: NodeId


@dataclass(frozen=True, slots=True)
class NothingRuns:
    """Everything unique of this process has stopped for good."""


@dataclass(frozen=True, slots=True)
class ArbiterGranted:
    """Answer to `AskArbiter`: our side lives; our hold on it is valid until `until`."""

    attempt: int
    until: float


@dataclass(frozen=True, slots=True)
class ArbiterDenied:
    """Answer to `AskArbiter`: another side holds it."""

    attempt: int
    holder: str


@dataclass(frozen=True, slots=True)
class ArbiterUnknown:
    """Answer to `AskArbiter`: nobody knows; the arbiter cannot be asked."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class ArbiterExtended:
    """A hold on the arbiter was renewed, or is over (`until` in the past)."""

    until: float


# orders


@dataclass(frozen=True, slots=True)
class SetContact:
    """Whatever is unique here may act before this instant, and not from then on."""

    until: float


@dataclass(frozen=True, slots=True)
class MarkDown:
    """Move these members to down."""

    members: tuple[NodeId, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class NoteDoomed:
    """We have promised that these will be down."""

    members: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class AskArbiter:
    """Acquire the lease that decides which side lives; answered by `ArbiterGranted`, `…Denied` or
    `…Unknown` with this `attempt`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WatchArbiter:
    """It may be asked soon (or no more): whoever holds it now is to be known by then."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class ReleaseArbiter:
    """The lease is needed no more."""


# facts, inside Publish


@dataclass(frozen=True, slots=True)
class ContactChanged:
    """Contact was gained or lost: what is unique here goes on, or is suspended."""

    held: bool
    explain: str


@dataclass(frozen=True, slots=True)
class DowningDecided:
    """A side was decided: these go down. `kind` is the strategy's word for it."""

    kind: str
    downed: tuple[NodeId, ...]
    explain: str


@dataclass(frozen=True, slots=True)
class DowningUnsettled:
    """Members are unreachable and nothing can be decided for `for_s` seconds; once each time."""

    for_s: float
    explain: str


@dataclass(frozen=True, slots=True)
class DowningDoubted:
    """The strategy does not fit this cluster; said when the words change."""

    warnings: tuple[str, ...]
