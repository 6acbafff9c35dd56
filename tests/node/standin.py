"""What `node.management` and `node.client` read of a system, with fixed answers."""

from __future__ import annotations

from typing import Any, ClassVar

from gossip.membership import NodeId

MEMBERS: list[dict[str, Any]] = [
    {
        "address": "127.0.0.1:25520",
        "uid": "17283946550123456789",
        "name": "a",
        "status": "up",
        "reachable": True,
        "suspect": True,
        "unresponsive": True,
        "roles": ["web", "jobs"],
        "up_number": 1,
    },
    {
        "address": "127.0.0.1:25521",
        "uid": "2",
        "name": "",
        "status": "joining",
        "reachable": False,
        "suspect": False,
        "unresponsive": False,
        "roles": [],
        "up_number": 0,
    },
]

STATE: dict[str, Any] = {
    "cluster": "tenure",
    "cluster_id": "99",
    "self": {"address": "127.0.0.1:25520", "uid": "17283946550123456789"},
    "leader": "127.0.0.1:25520",
    "oldest": "127.0.0.1:25520",
    "converged": False,
    "blocked_by": ["127.0.0.1:25521"],
    "explain": "127.0.0.1:25521 blocks convergence",
    "local_health": 3,
    "links": [{"observer": "127.0.0.1:25520", "subject": "127.0.0.1:25521", "reachable": False}],
    "downing": {
        "strategy": "keep-majority",
        "verdict": "waits",
        "stable_for_s": 1.75,
        "decides_in_s": 3.25,
        "explain": "unreachable: 127.0.0.1:25521",
        "doomed": ["127.0.0.1:25521"],
        "warnings": ["keep-majority: have an odd number"],
        "contact": {"asked": True, "held": True, "for_s": 2.0, "explain": "held for another 2.0 s"},
    },
    "members": MEMBERS,
}

SINGLETONS: list[dict[str, Any]] = [
    {
        "name": "counter",
        "state": "running",
        "host": "127.0.0.1:25520",
        "instance_id": "5",
        "started_at": "2025-01-01T00:00:00.000Z",
        "explain": "runs here",
        "unproven": [],
    }
]


LEASES: list[dict[str, Any]] = [
    {
        "name": "jobs",
        "store": "sqlite:///var/lib/jobs/leases.db",
        "holder": "127.0.0.1:25520",
        "since": "2025-01-01T00:00:00.000Z",
        "held_by_us": True,
        "token": "1796040502179",
        "valid_for_s": 12.5,
        "seen_ago_s": 0.5,
        "explain": "held here for another 12.5 s unless renewed",
    }
]


class StandInLease:
    """What metrics read of a lease."""

    counts: ClassVar[dict[str, int]] = {"grants": 2}
    acquire_s_sum = 0.5

    def check_alive(self) -> bool:
        """It is held."""
        return True

    def remaining_s(self) -> float:
        """For so long."""
        return 12.5


class StandInLeases:
    """`system.leases`."""

    def by_name(self) -> dict[str, list[StandInLease]]:
        """One of each."""
        return {"jobs": [StandInLease()]}

    def state(self) -> list[dict[str, Any]]:
        """The fixed rows."""
        return LEASES


SHARDS: list[dict[str, Any]] = [
    {
        "type": "cart",
        "shard_count": 3,
        "coordinator": "127.0.0.1:25520",
        "term": "4 of 127.0.0.1:25520",
        "homes": {"127.0.0.1:25520": [0, 2]},
        "counts": {"127.0.0.1:25520": 2},
        "here": [0, 2],
        "stopping_here": [],
        "entities_here": 7,
        "held": 1,
        "moves": [{"shard": 1, "state": "starting", "node": "127.0.0.1:25521"}],
        "explain": "2 shards here, 2 known",
    }
]


class StandInSharding:
    """`system.cluster.sharding`. `rebalance` notes its orders."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def state(self) -> list[dict[str, Any]]:
        """The answer of /shards."""
        return SHARDS

    def rebalance(self, *, type_name: str) -> str:
        """Note the order."""
        if type_name != "cart":
            raise LookupError(f"this node knows no sharded type {type_name!r}")
        self.orders.append(type_name)
        return "2 at 127.0.0.1:25520"


class StandInCluster:
    """`system.cluster`. `down` notes its orders, and raises `fault` if there is one."""

    self_id = NodeId("127.0.0.1", 25520, 17283946550123456789)

    def __init__(self) -> None:
        self.orders: list[tuple[str, float]] = []
        self.moves: list[tuple[str, str | None, float]] = []
        self.fault: Exception | None = None
        self.sharding = StandInSharding()

    @property
    def singleton(self) -> StandInCluster:
        """Takes orders to move."""
        return self

    async def move(self, *, type_name: str, to: str | None, timeout_s: float) -> str:
        """Note the order."""
        if self.fault is not None:
            raise self.fault
        self.moves.append((type_name, to, timeout_s))
        return to or "127.0.0.1:25520"

    async def down(self, address: str, *, timeout_s: float) -> None:
        """Note the order."""
        self.orders.append((address, timeout_s))
        if self.fault is not None:
            raise self.fault

    def state(self) -> dict[str, Any]:
        """The answer of /cluster."""
        return STATE

    def singletons_state(self) -> list[dict[str, Any]]:
        """The answer of /singletons."""
        return SINGLETONS


class StandInSystem:
    """`ActorSystem`, as far as HTTP goes."""

    def __init__(self) -> None:
        self.leases = StandInLeases()
        self.cluster = StandInCluster()
        self.is_ready = (False, "waiting for 127.0.0.1:25521")
        self.leaves = 0

    def ready(self) -> tuple[bool, str]:
        """The answer of /health/ready."""
        return self.is_ready

    def counters(self) -> dict[str, float]:
        """Two counters, one with a name that Prometheus would refuse."""
        return {"dead_letters": 3, "frames refused: bad-head": 2}

    async def leave(self) -> None:
        """Count the orders."""
        self.leaves += 1
