"""Facts a singleton manager is told, and facts it publishes.

Besides these it takes a `gossip.membership.MembershipView`, `gossip.effects.PeerMessage` with a
message of `singleton.messages`, and `gossip.effects.Paused`. Routed by `node.core`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import NodeId
from singleton.settings import SingletonSettings


@dataclass(frozen=True, slots=True)
class StartRequested:
    """The user called `start` on this node: it may host. Also ends an earlier `StopRequested`."""

    type_name: str
    settings: SingletonSettings


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The user called `stop` on this node: it will not host again unless `start` is called."""

    type_name: str


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """An operator wants the instance at `to`; the host is told, wherever it is."""

    type_name: str
    to: NodeId


@dataclass(frozen=True, slots=True)
class LeaveStarted:
    """This process is about to end in order: stop, answer, host nothing again. For every type."""


@dataclass(frozen=True, slots=True)
class LeaseTold:
    """A fact of `lease.events`, from `LeaseGranted` on, about the lease of this type."""

    type_name: str
    fact: object


@dataclass(frozen=True, slots=True)
class InstanceStarted:
    """Answer to `StartInstance`: the actor takes messages."""

    type_name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class InstanceStopped:
    """Answer to `StopInstance`: the actor has terminated. `state` is for the next one."""

    type_name: str
    attempt: int
    reason: str = ""
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class InstanceFailed:
    """The actor ended without being told to, or could not start; it has terminated."""

    type_name: str
    attempt: int
    reason: str = ""


class InstanceEvent(enum.StrEnum):
    """What happened to an instance; the words of the history file."""

    STARTING = "starting"
    STARTED = "started"
    SUSPENDED = "suspended"  # takes in no new message; handles what it has
    RESUMED = "resumed"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class InstanceChanged:
    """Published: one line of the history."""

    type_name: str
    event: InstanceEvent
    attempt: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SingletonStateChanged:
    """Published: the manager's state or the host it knows of changed.

    `attempt` is the instance that runs here, 0 when none does.
    """

    type_name: str
    state: str
    host: NodeId | None
    attempt: int
    explain: str


@dataclass(frozen=True, slots=True)
class FitnessChanged:
    """Published: this node does not host the type for a time, for want of its lease store; or it
    may again."""

    type_name: str
    is_fit: bool
    explain: str


@dataclass(frozen=True, slots=True)
class StateTooLarge:
    """Published, a warning: the next instance begins without the state of this one, which has
    `byte_count` bytes."""

    type_name: str
    byte_count: int


@dataclass(frozen=True, slots=True)
class TermsDiffer:
    """Published, a warning: this node is not eligible, since its terms are not those of `other`.

    `explain` names what differs. With `other` None they agree again.
    """

    type_name: str
    other: NodeId | None
    explain: str


@dataclass(frozen=True, slots=True)
class UniquenessNotProven:
    """Published, a warning: hosting begins although these peers did not answer for `waited_s`.

    Each of them may be running an instance.
    """

    type_name: str
    silent_peers: tuple[NodeId, ...]
    waited_s: float
