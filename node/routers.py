"""One ref for several actors of the same class: who of them gets a message.

Decides: which routee a message goes to, and that one which has ended gets none any more. Does not
decide how routees live: they are ordinary children of the `Router`, which is an ordinary actor:

    workers = system.spawn(Router, Pool(Worker, ("db",), count=4), RoundRobin(), name="workers")

Budget: one more turn and one forward per message.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from node.actor import Actor, Terminated, checked_by, on
from node.mailbox import WhenFull
from node.ref import ActorRef
from node.supervision import Supervision

ROUTEES_MAX = 10_000
POINTS = 100  # of each routee on the ring: shares differ by about a tenth

Key = str | bytes | int


@dataclass(frozen=True, slots=True)
class Pool:
    """The routees: `count` actors `actor(*args)`, each spawned with these options.

    Raises `ValueError` when `count` is not from 1 to 10,000, `TypeError` when `actor` is no class
    of actors, `args` no tuple or `count` no whole number.
    """

    actor: type[Actor]
    args: tuple[object, ...] = ()
    count: int = 1
    supervision: Supervision | None = None
    mailbox_max: int | None = None
    when_full: WhenFull | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.actor, type) and issubclass(self.actor, Actor)):
            raise TypeError(f"Pool: actor={self.actor!r} is no Actor class: write Pool(Worker)")
        if not isinstance(self.args, tuple):
            raise TypeError(f"Pool: args={self.args!r} is no tuple: write Pool(Worker, ('db',))")
        if not isinstance(self.count, int) or isinstance(self.count, bool):
            raise TypeError(f"Pool: count={self.count!r} is no whole number of routees")
        if not 1 <= self.count <= ROUTEES_MAX:
            raise ValueError(f"count={self.count} routees: give a number from 1 to {ROUTEES_MAX}")


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Each message to the next routee."""


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """Each message to any routee, drawn from the node's randomness."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Each message to all routees; of an ask the first answer, or failure, counts."""


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Messages of one key to one routee, as long as it lives; when it ends only its keys move.

    `key` takes the message and returns text, bytes or a whole number. Where it raises or returns
    something else, the message is lost, its ask fails, and the failure is reported; the router and
    its routees go on. Raises `TypeError` for a `key` that cannot be called.
    """

    key: Callable[[Any], Key]

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise TypeError(
                f"ConsistentHash: key={self.key!r} cannot be called: give a function of a message, "
                f"such as lambda msg: msg.user"
            )


Routing = RoundRobin | RandomChoice | Broadcast | ConsistentHash


def _check(pool: object, routing: object) -> None:
    if not isinstance(pool, Pool):
        raise TypeError(f"Router: pool={pool!r} is no Pool: write Pool(Worker, (), count=4)")
    if not isinstance(routing, Routing):
        raise TypeError(
            f"Router: routing={routing!r} is none: give RoundRobin(), RandomChoice(), Broadcast() "
            f"or ConsistentHash(key)"
        )


class Router(Actor):
    """Hands each message on to routees, with its sender and its asker: whoever gets it answers.

    An ask is answered by the routee. One that ends (its restarts are spent, or it stopped itself)
    leaves; when the last one has left, the router stops, and what is sent to it is a dead letter.
    A restart of the router builds all routees anew. `spawn` raises `TypeError` for what is no
    `Pool`, or no routing.
    """

    @checked_by(_check)
    def __init__(self, pool: Pool, routing: Routing) -> None:
        _check(pool, routing)  # a derived class may give what spawn has not seen
        self._pool = pool
        self._routing = routing
        self._next = 0
        self._routees: list[ActorRef[Any]] = []
        self._ring = Ring(())

    def pre_start(self) -> None:
        """Make the routees."""
        pool = self._pool
        for index in range(pool.count):
            routee = self.context.spawn(
                pool.actor,
                *pool.args,
                name=str(index),
                supervision=pool.supervision,
                mailbox_max=pool.mailbox_max,
                when_full=pool.when_full,
            )
            self.context.watch(routee)
            self._routees.append(routee)
        if isinstance(self._routing, ConsistentHash):
            self._ring = Ring(self._routees)

    @on(Terminated)
    def ended(self, msg: Terminated) -> None:
        """A routee has ended."""
        self._routees.remove(msg.ref)
        if isinstance(self._routing, ConsistentHash):
            self._ring = Ring(self._routees)
        if not self._routees:
            self.context.stop(self.context.self, drain=False)

    def receive(self, message: Any, /) -> None:
        """Hand it on."""
        routing, routees = self._routing, self._routees
        if isinstance(routing, RoundRobin):
            self._next = (self._next + 1) % len(routees)
            self.context.forward(routees[self._next - 1])
        elif isinstance(routing, RandomChoice):
            self.context.forward(self.context.rng.choice(routees))
        elif isinstance(routing, Broadcast):
            self.context.forward_all(routees)
        else:
            try:
                routee = self._ring.find(routing.key(message))
            except Exception as error:  # noqa: BLE001 - user code; the routees must not pay for it
                self.context.fail(error)
            else:
                self.context.forward(routee)


class Ring:
    """Routees at points of a circle; a key belongs to the next point after its own."""

    __slots__ = ("_owners", "_points")

    def __init__(self, routees: Iterable[ActorRef[Any]]) -> None:
        # By name and not by number, so that those which stay keep their points.
        circle = sorted(
            (_hash(f"{routee.path.rpartition('/')[2]}#{point}".encode()), routee.path, routee)
            for routee in routees
            for point in range(POINTS)
        )
        self._points = [point for point, _, _ in circle]
        self._owners = [routee for _, _, routee in circle]

    def find(self, key: Key) -> ActorRef[Any]:
        """Whose key this is. Raises `TypeError` for what is no key."""
        if isinstance(key, str):
            at = _hash(key.encode("utf-8", "surrogatepass"))
        elif isinstance(key, bytes):
            at = _hash(key)
        elif isinstance(key, int):
            at = _hash(b"%d" % key)
        else:
            raise TypeError(f"{type(key).__name__} is no key: return a str, bytes or int")
        return self._owners[bisect.bisect(self._points, at) % len(self._owners)]


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
