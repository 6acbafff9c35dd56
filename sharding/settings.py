"""Timings, bounds and choices of one sharded type. Read by the machines and by `node.regions`."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

SHARDS_MAX = 16_384
_COUNTS = ("shard_count", "rebalance_absolute_limit", "buffer_size")
_OPTIONAL = ("idle_s", "entities_max")
_FLAGS = ("downing", "hosts", "eager", "daemons")
_OTHERS = (*_FLAGS, "role", "allocation", "agreement")
ALLOCATIONS = ("least-shard", "rendezvous")


def shard_of(entity_id: str, shard_count: int) -> int:
    """To which shard an entity belongs, on every node and for ever: CRC-32 of its id in UTF-8."""
    return zlib.crc32(entity_id.encode("utf-8", "surrogatepass")) % shard_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSettings:
    """How one type is sharded; all members must agree on `shard_count` and `role`.

    Raises ValueError, naming the field, when a value cannot work.
    """

    shard_count: int = 256  # some ten per node, of the most nodes there will ever be
    role: str | None = None  # only members with this role host shards; None: all
    hosts: bool = True  # False: this node only sends to the type
    downing: bool = False  # a strategy decides about the unreachable; else their silence does
    eager: bool = False  # every shard is started, whether or not there is a message for it
    daemons: bool = False  # entity i is shard i, and always runs
    allocation: str = "least-shard"
    agreement: str = ""  # what all that host must have alike besides, in words
    hand_over_timeout_s: float = 10.0  # level none: silence longer than this is not waited for
    hand_off_timeout_s: float = 10.0  # then entities that do not stop are cancelled by force
    begin_timeout_s: float = 2.0  # so long a move waits for regions that do not answer
    retry_s: float = 0.5  # what was not answered is sent again
    authority_poll_s: float = 0.2  # a coordinator that may not act looks so often
    rebalance_interval_s: float = 1.0
    rebalance_relative_limit: float = 0.1  # of all shards, moved in one round at most
    rebalance_absolute_limit: int = 64  # and never more than so many
    homes_interval_s: float = 30.0  # the whole map is said again: news may be lost on their way
    leave_timeout_s: float = 5.0  # a leaver whose shards were not moved by then stops them
    buffer_size: int = 10_000  # messages that a region holds for shards without a home
    idle_s: float | None = 120.0  # entities without a message for so long are passivated
    entities_max: int | None = None  # of one node; beyond it the least recently used are passivated

    def __post_init__(self) -> None:
        if self.role is not None and not (isinstance(self.role, str) and self.role):
            raise ValueError(f"role={self.role!r} must be a text that is not empty, or None")
        if self.allocation not in ALLOCATIONS:
            known = " or ".join(map(repr, ALLOCATIONS))
            raise ValueError(f"allocation={self.allocation!r} must be {known}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in self.__slots__:
            value = getattr(self, name)
            if name in _OTHERS or (value is None and name in _OPTIONAL):
                continue
            whole = name in _COUNTS or name == "entities_max"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                what = "a whole number" if whole else "a number"
                raise ValueError(f"{name}={value!r} must be {what}")
            if not 0 < value < 1e9:
                raise ValueError(f"{name}={value} must be greater than 0 and less than 1e9")
        if self.shard_count > SHARDS_MAX:
            raise ValueError(
                f"shard_count={self.shard_count} must be at most {SHARDS_MAX}: some ten per node "
                "are enough to spread them evenly"
            )
        if self.rebalance_relative_limit > 1.0:
            raise ValueError(
                f"rebalance_relative_limit={self.rebalance_relative_limit} is a share of all "
                "shards: give 1.0 or less"
            )
