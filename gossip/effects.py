"""Orders and facts that every machine of the house shares.

They live here because whoever sends needs `NodeId`; the packages above import them from here.
Performed (orders) or routed on (facts inside `Publish`) by `node.core` and `node.daemon`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership import NodeId


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """Event: a control message arrived on a connection whose other end is `sender`.

    via: a member that passed it on, because `sender` does not reach us directly; what it names as
    the sender is then its word. An answer goes back the same way.
    """

    sender: NodeId
    message: object
    via: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """Event: this process did not run for `gap_s` seconds although it was due."""

    gap_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Order: send a control message. Lost silently if it cannot be sent; nothing answers it.

    via: a member that is asked to pass it on; None: straight to `to`.
    """

    to: NodeId
    message: object
    via: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """Order: tell sister machines and outside subscribers a fact."""

    fact: object
