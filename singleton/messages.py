"""Control messages between the managers of one singleton type, as they travel.

Every message carries the `round` of its sender: a counter of the sender's manager that only grows
within one process, so that a late message is told from a fresh one without a clock. Tags are given
in `node.wire`, append-only. Sent and read by `singleton.machine`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gossip.membership import NodeId


class AnswerKind(enum.IntEnum):
    """What a manager says to a hand-over question; everything but `NONE` keeps the asker waiting.

    `NONE` is a promise: no instance runs or is stopping here, and none will be started here before
    the asker was asked in its turn.
    """

    NONE = 0
    STOPPING = 1  # an instance is stopping; `NONE` follows unasked once it has terminated
    BUSY = 2  # an older candidate asks for itself; `who` names it
    REFUSED = 3  # no; `why` says so, and `who` names the host when that is the reason


class NoticeKind(enum.IntEnum):
    """What a manager says of itself without being asked."""

    HOLDS = 0  # the sender holds the office: its instance runs or is being started
    RELEASED = 1  # the sender held it and does so no more; its instance has terminated
    WITHDRAWN = 2  # the sender will not host again: elect another (its instance may still stop)
    MOVES = 3  # the sender hands the office to `who`, who asks like anybody before it starts


@dataclass(frozen=True, slots=True)
class HandOverAsk:
    """Does an instance run or stop at you? Repeated until `NONE` is the answer.

    `up_number` is the asker's age as it knows it itself.
    """

    type_name: str
    round: int
    up_number: int


@dataclass(frozen=True, slots=True)
class HandOverAnswer:
    """Answer to the `HandOverAsk` of this `round` (the asker's).

    `epoch` is the greatest epoch of any host the sender knows of, `since_s` for how long its
    instance has been stopping.
    """

    type_name: str
    round: int
    kind: AnswerKind
    epoch: int = 0
    who: NodeId | None = None
    why: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostNotice:
    """Who holds the office, told by the host itself. `round` is the sender's own."""

    type_name: str
    kind: NoticeKind
    round: int
    epoch: int
    who: NodeId | None = None


@dataclass(frozen=True, slots=True)
class HandOverState:
    """What the instance that has just stopped here gives to the next one; comes before the `NONE`
    that the receiver waits for. `epoch` is the sender's as a host."""

    type_name: str
    epoch: int
    state: bytes


@dataclass(frozen=True, slots=True)
class MoveAsk:
    """Hand the office to `to`: an operator's order, passed on to the host. Not answered."""

    type_name: str
    to: NodeId
