"""Small means to write tests of sharding in: nodes, views, and what a machine sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from sharding.coordinator import CoordinatorMachine, Phase
from sharding.effects import RouteShards
from sharding.events import CoordinatorAt, Lead
from sharding.messages import (
    AskReport,
    Claims,
    HandOff,
    HandOffBegun,
    HostShards,
    Report,
    ShardsStarted,
    ShardsStopped,
    Term,
)
from sharding.region import RegionMachine
from sharding.settings import ShardingSettings

TYPE = "cart"
T = TypeVar("T")


def node(name: str) -> NodeId:
    """`a` is 10.0.0.1, `b` 10.0.0.2, …"""
    number = ord(name) - ord("a") + 1
    return NodeId(f"10.0.0.{number}", 25520, number)


A, B, C, D = (node(name) for name in "abcd")


def member(name: str, **fields: Any) -> Member:
    """A member that is up."""
    plain = Member(id=node(name), name=name, status=Status.UP, up_number=ord(name) - ord("a") + 1)
    return replace(plain, **fields)


def view(
    members: str | Iterable[Member] = "a b c",
    *,
    me: str = "a",
    unreachable: str = "",
    gone: dict[NodeId, Cause] | None = None,
) -> MembershipView:
    """What `me` sees; `members` by letters, or written out."""
    if isinstance(members, str):
        members = [member(name) for name in members.split()]
    return MembershipView(
        self_id=node(me),
        cluster_id=1,
        members=tuple(sorted(members, key=lambda each: each.id)),
        unreachable=frozenset(node(name) for name in unreachable.split()),
        gone=gone or {},
    )


def sent(effects: Iterable[object], kind: type[T]) -> list[tuple[NodeId, T]]:
    """Messages of a kind, and to whom."""
    return [
        (effect.to, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def published(effects: Iterable[object], kind: type[T]) -> list[T]:
    """Facts of a kind."""
    return [
        effect.fact
        for effect in effects
        if isinstance(effect, Publish) and isinstance(effect.fact, kind)
    ]


def orders(effects: Iterable[object], kind: type[T]) -> list[T]:
    """Effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def routes(effects: Iterable[object]) -> list[tuple[tuple[int, ...], NodeId | None]]:
    """Where messages go from now on, in order."""
    return [(order.shards, order.home) for order in orders(effects, RouteShards)]


class Office:
    """A coordinator at node a, and regions that answer as the test says.

    `now` moves by `pass_s`; what it sent in the latest step is in `out`.
    """

    def __init__(
        self,
        members: str = "a b c",
        *,
        may_act: Callable[[], bool] = lambda: True,
        lead: bool = True,
        floor: int = 0,
        **settings: Any,
    ) -> None:
        plain: dict[str, Any] = {"shard_count": 8, "downing": True}
        self.settings = ShardingSettings(**{**plain, **settings})
        self.machine = CoordinatorMachine(TYPE, A, self.settings, may_act)
        self.now = 0.0
        self.out: list[object] = []
        self.numbers: dict[tuple[NodeId, int], int] = {}  # of the latest order to each about each
        self.take(view(members))
        if lead:
            self.take(Lead(TYPE, floor))

    @property
    def term(self) -> Term:
        """The present one."""
        return self.machine.term

    def take(self, event: object) -> list[object]:
        """One fact."""
        self.out = self.machine.handle(event, self.now)
        self._note(self.out)
        return self.out

    def _note(self, effects: list[object]) -> None:
        numbered: list[tuple[NodeId, HostShards | HandOff]] = [*sent(effects, HostShards)]
        numbered += sent(effects, HandOff)
        for to, order in numbered:
            self.numbers.update({(to, shard): order.number for shard in order.shards})

    def _answer(
        self, name: str, kind: type[ShardsStarted] | type[ShardsStopped], shards: tuple[int, ...]
    ) -> list[object]:
        numbers = {shard: self.numbers.get((node(name), shard), 0) for shard in shards}
        out: list[object] = []
        for number in sorted({*numbers.values()}):
            those = tuple(shard for shard in shards if numbers[shard] == number)
            out += self.hear(name, kind(TYPE, self.term, those, number=number))
        self.out = out
        return out

    def hear(self, name: str, message: object) -> list[object]:
        """A message of a region."""
        return self.take(PeerMessage(node(name), message))

    def pass_s(self, s: float) -> list[object]:
        """Time goes by, each deadline is met; returns all that was sent."""
        until, out = self.now + s, list[object]()
        while self.machine.deadline <= until:
            self.now = max(self.now, self.machine.deadline)
            before = self.machine.deadline
            out += self.machine.tick(self.now)
            assert self.machine.deadline > before, "a deadline that is met must move"
        self.now, self.out = until, out
        self._note(out)
        return out

    def report(self, name: str, *claims: Claims, **fields: Any) -> list[object]:
        """A region says what it has."""
        plain = Report(TYPE, self.term, 8, hosts=True, is_region=True, claims=claims)
        return self.hear(name, replace(plain, **fields))

    def all_report(self, names: str = "a b c") -> list[object]:
        """All, that they have nothing; the effects of the last one."""
        for name in names.split():
            self.report(name)
        return self.out

    def started(self, name: str, *shards: int) -> list[object]:
        """A region confirms."""
        return self._answer(name, ShardsStarted, shards)

    def begun(self, name: str, *shards: int) -> list[object]:
        """A region holds."""
        return self.hear(name, HandOffBegun(TYPE, self.term, shards))

    def stopped(self, name: str, *shards: int) -> list[object]:
        """A region has ended entities."""
        return self._answer(name, ShardsStopped, shards)

    def given(self) -> dict[int, NodeId]:
        """What the latest step allocated."""
        return {shard: to for to, order in sent(self.out, HostShards) for shard in order.shards}

    def told_to_stop(self) -> dict[int, list[NodeId]]:
        """Who was told by the latest step to stop which shard."""
        told: dict[int, list[NodeId]] = {}
        for to, order in sent(self.out, HandOff):
            for shard in order.shards:
                told.setdefault(shard, []).append(to)
        return told

    def asked(self) -> list[NodeId]:
        """Who was asked for a report by the latest step."""
        return [to for to, _ in sent(self.out, AskReport)]

    def phase(self) -> Phase:
        """What it is at (a call, for the sake of the type checker's memory)."""
        return self.machine.phase

    def states(self) -> dict[int, tuple[str, NodeId]]:
        """Every shard that somebody has."""
        return self.machine.shards()


class Site:
    """A region at node b; a coordinator at node a that says what the test wants."""

    def __init__(self, members: str = "a b c", *, term: int = 1, **settings: Any) -> None:
        plain: dict[str, Any] = {"shard_count": 8, "downing": True}
        self.settings = ShardingSettings(**{**plain, **settings})
        self.machine = RegionMachine(TYPE, B, self.settings)
        self.now = 0.0
        self.out: list[object] = []
        self.take(view(members, me="b"))
        self.term = Term(term, A)
        if term:
            self.take(CoordinatorAt(TYPE, A))
            self.hear("a", AskReport(TYPE, self.term))

    def take(self, event: object) -> list[object]:
        """One fact."""
        self.out = self.machine.handle(event, self.now)
        return self.out

    def hear(self, name: str, message: object) -> list[object]:
        """A message of a coordinator."""
        return self.take(PeerMessage(node(name), message))

    def host(self, *shards: int) -> list[object]:
        """The coordinator gives shards."""
        return self.hear("a", HostShards(TYPE, self.term, shards))

    def hand_off(self, *shards: int) -> list[object]:
        """The coordinator takes shards."""
        return self.hear("a", HandOff(TYPE, self.term, shards))

    def pass_s(self, s: float) -> list[object]:
        """Time goes by, each deadline is met; returns all that was sent."""
        until, out = self.now + s, list[object]()
        while self.machine.deadline <= until:
            self.now = max(self.now, self.machine.deadline)
            before = self.machine.deadline
            out += self.machine.tick(self.now)
            assert self.machine.deadline > before, "a deadline that is met must move"
        self.now, self.out = until, out
        return out
