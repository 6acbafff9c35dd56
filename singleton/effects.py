"""Orders of a singleton manager; `Send` and `Publish` come from `gossip.effects`.

Performed by `node.daemon`, except `RouteSingleton`, which is for the proxy of the type.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import NodeId


@dataclass(frozen=True, slots=True)
class StartInstance:
    """Spawn the actor; answered by `InstanceStarted`, or `InstanceFailed` when it cannot start.

    `state` is what the former instance handed over, if it did.
    """

    type_name: str
    attempt: int
    state: bytes | None = None


class StopCause(enum.Enum):
    """Why an instance is ordered to stop."""

    LEAVING = enum.auto()  # this process ends in order
    STOPPED = enum.auto()  # the user stopped the type on this node
    STOOD_DOWN = enum.auto()  # another member hosts, or this one may not any more
    LEASE_LOST = enum.auto()  # somebody else may hold the lease


@dataclass(frozen=True, slots=True)
class StopInstance:
    """Stop the actor of this attempt, also one that is still starting.

    Answered by `InstanceStopped` when it has terminated (`post_stop` is over), never earlier.
    `reason` is `cause` in words. With `unguarded` what is in its mailbox is handled although the
    lease is lost; else it goes back to the proxies. `at_once`: another instance acts already, so
    nothing more is handled and a coroutine under way is cancelled.
    """

    type_name: str
    attempt: int
    cause: StopCause
    reason: str
    unguarded: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class WantLease:
    """Acquire the type's lease and keep it; each answer is a `LeaseTold`. Asked again after a
    loss only."""

    type_name: str


@dataclass(frozen=True, slots=True)
class DropLease:
    """Give the lease up, or stop asking for it; answered by `LeaseTold` with `LeaseReleased`.

    Nothing runs under it any more.
    """

    type_name: str


@dataclass(frozen=True, slots=True)
class WatchLease:
    """Keep an eye on who holds it, since it may be wanted here: then it is known how old it is."""

    type_name: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class RouteSingleton:
    """Where messages go from now on; None = nowhere yet, hold them.

    `epoch` is the host's as far as it is known, 0 for one that is only elected. With
    `former_in_reach` the former host can still pass on what it was sent: order can be kept.
    """

    type_name: str
    host: NodeId | None
    epoch: int
    former_in_reach: bool = False


@dataclass(frozen=True, slots=True)
class SingletonReleased:
    """After `LeaveStarted`: nothing runs here any more nor ever will. Given once."""

    type_name: str


@dataclass(frozen=True, slots=True)
class OfferType:
    """Show in this node's member record that it hosts the type, as `label`, in the place of what
    it showed of it before; only where the node has `role`."""

    type_name: str
    label: str
    role: str | None


@dataclass(frozen=True, slots=True)
class WithdrawType:
    """Take the type out of this node's member record: it is not hosted here any more."""

    type_name: str
