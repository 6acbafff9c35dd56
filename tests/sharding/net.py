"""One coordinator after another and several regions, on a little network that lies at will.

It loses, repeats and delays messages by a seed; membership is what the schedule says, and each
process hears of it when it does. Who leads is the schedule's word too: two may at once, as it may
happen when a singleton moves. Nothing else of the product runs: no gossip, no entities.

The judge sees all processes at once: a shard that takes messages, or whose entities have not all
ended, is open, and no shard may be open in two processes that live.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from gossip.effects import PeerMessage, Send
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from sharding.coordinator import CoordinatorMachine, Phase
from sharding.effects import CloseShards, DrainRoute, OpenShards, RouteShards
from sharding.events import (
    CoordinatorAt,
    EvacuateRequested,
    Lead,
    RebalanceRequested,
    RegionRequested,
    Resign,
    RouteDrained,
    ShardsClosed,
    ShardsWanted,
)
from sharding.messages import TO_COORDINATOR
from sharding.region import RegionMachine
from sharding.settings import ShardingSettings
from tests.sharding.worlds import TYPE, member, node

STEPS_MAX = 200_000
DELAY_S = (0.001, 0.05)
LATE_S = (0.1, 1.5)  # a message that comes late, where messages may overtake
HOPS_MAX = 2  # fewer than a message may make
CLOSE_S = (0.0, 0.6)


class Process:
    """One node: its region, its coordinator, and what its shell was told to do."""

    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name
        self.id = node(name)
        self.lives = True
        self.may_act = True
        self.region = RegionMachine(TYPE, self.id, net.settings)
        self.coordinator = CoordinatorMachine(TYPE, self.id, net.settings, lambda: self.may_act)
        self.open: set[int] = set()  # entities may run: also while they are told to stop
        self.closing: set[int] = set()
        self.routes: dict[int, NodeId | None] = {}
        self.asked: set[int] = set()  # the region was told that they are wanted
        self.due = math.inf

    def take(self, event: object) -> None:
        """A fact, for whichever machine it is for."""
        if not self.lives:
            return
        for_coordinator = isinstance(event, Lead | Resign | RebalanceRequested)
        if isinstance(event, PeerMessage):
            for_coordinator = isinstance(event.message, TO_COORDINATOR)
        if isinstance(event, MembershipView) or not for_coordinator:
            self._perform(self.region.handle(event, self.net.now))
        if isinstance(event, MembershipView) or for_coordinator:
            self._perform(self.coordinator.handle(event, self.net.now))

    def tick(self) -> None:
        """Do what is due."""
        if self.lives:
            self._perform(self.region.tick(self.net.now))
            self._perform(self.coordinator.tick(self.net.now))

    def want(self, shards: Sequence[int]) -> None:
        """Messages wait here for these, unless there is a way for them."""
        held = tuple(s for s in shards if self.way(s) is None and s not in self.asked)
        if held and self.lives:
            self.asked.update(held)
            self.take(ShardsWanted(TYPE, held))

    def way(self, shard: int) -> NodeId | None:
        """Where messages for it go."""
        return self.id if shard in self.open - self.closing else self.routes.get(shard)

    def _perform(self, effects: list[object]) -> None:
        net = self.net
        for effect in effects:
            match effect:
                case Send():
                    net.send(self, effect)
                case OpenShards():
                    self.open.update(effect.shards)
                    self.asked.difference_update(effect.shards)
                    self.routes.update(dict.fromkeys(effect.shards))
                case CloseShards():
                    assert self.open.issuperset(effect.shards)
                    self.closing.update(effect.shards)
                    for shard in effect.shards:
                        net.at(net.rng.uniform(*CLOSE_S), self._closed, shard)
                case RouteShards():
                    home = None if effect.home == self.id else effect.home
                    self.routes.update(dict.fromkeys(effect.shards, home))
                    if effect.home is None:
                        self.want(effect.shards)
                    else:
                        self.asked.difference_update(effect.shards)
                case DrainRoute():
                    drained = RouteDrained(TYPE, effect.number)
                    net.at(net.rng.uniform(*DELAY_S), self.take, drained)
        deadline = min(self.region.deadline, self.coordinator.deadline)
        if deadline < math.inf and not net.now < self.due <= deadline:
            self.due = max(deadline, net.now)
            net.at(self.due - net.now + 1e-9, self.tick)

    def _closed(self, shard: int) -> None:
        if self.lives:
            self.open.discard(shard)
            self.closing.discard(shard)
            self.take(ShardsClosed(TYPE, (shard,)))


class Net:
    """Processes of one type, all up; `a` leads. `breach` says in words what was open twice."""

    def __init__(
        self,
        names: str,
        schedule: Sequence[tuple[float, str, str]],
        *,
        seed: int,
        overtaking: bool = False,
        loss: float = 0.1,
        shard_count: int = 6,
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(f"net {seed}")
        self.settings = ShardingSettings(
            shard_count=shard_count,
            downing=True,
            rebalance_relative_limit=0.5,
            rebalance_interval_s=0.7,
        )
        self.wanted = tuple(range(shard_count))
        self.breach: str | None = None
        self._loss = loss
        self._overtaking = overtaking
        self._latest: dict[tuple[NodeId, NodeId], float] = {}
        self._cut: set[NodeId] = set()
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._count = itertools.count()
        self._members: dict[NodeId, Member] = {node(name): member(name) for name in names}
        self._gone: dict[NodeId, Cause] = {}
        self._unreachable: set[NodeId] = set()
        self.processes = {name: Process(self, name) for name in names}
        self._show()
        for process in self.processes.values():
            self.at(0.0, process.take, RegionRequested(TYPE, self.settings))
            self.at(0.1, process.want, self.wanted)
        self.do_lead("a")
        for at_s, kind, name in schedule:
            self.at(at_s, getattr(self, f"do_{kind}"), name)

    def run(self, until_s: float) -> None:
        """Play up to then, or up to the first breach."""
        steps = 0
        while self._queue and self._queue[0][0] <= until_s and self.breach is None:
            self.now, _, action, args = heapq.heappop(self._queue)
            action(*args)
            self._judge()
            steps += 1
            assert steps < STEPS_MAX, "the machines do not come to rest"
        self.now = until_s

    def calm(self) -> None:
        """From here on nothing is lost, all reach all, and one leads who may act."""
        self._loss = 0.0
        self._cut.clear()
        self._unreachable.clear()
        self._show()
        for process in self.living:
            process.may_act = True
        if not any(p.coordinator.phase is not Phase.IDLE for p in self.living):
            self.do_lead(self.living[0].name)
        leaders = [p for p in self.living if p.coordinator.phase is not Phase.IDLE]
        for process in leaders[1:]:
            process.take(Resign(TYPE))
        for process in self.living:
            process.take(CoordinatorAt(TYPE, leaders[0].id))
            process.want(self.wanted)

    @property
    def living(self) -> list[Process]:
        """Processes that have not ended."""
        return [process for process in self.processes.values() if process.lives]

    def flaws(self) -> list[str]:
        """What is amiss at the end, in words."""
        flaws = []
        for shard in self.wanted:
            open_at = [p.name for p in self.living if shard in p.open]
            if len(open_at) != 1:
                flaws.append(f"shard {shard} is open at {open_at}")
                continue
            flaws += [
                f"{p.name} sends what is for {shard} to {p.way(shard)}, it is at {open_at[0]}"
                for p in self.living
                if self._arrives_at(p, shard) != open_at[0]
            ]
        return flaws

    def _arrives_at(self, sender: Process, shard: int) -> str | None:
        """Where a message gets to: one whose news of a move was lost has it passed on."""
        at = sender
        for _ in range(HOPS_MAX + 1):
            way = at.way(shard)
            if way == at.id:
                return at.name
            onward = [process for process in self.living if process.id == way]
            if not onward:
                break
            at = onward[0]
        return None

    def at(self, after_s: float, action: Callable[..., object], *args: object) -> None:
        """Do it so much later."""
        heapq.heappush(self._queue, (self.now + after_s, next(self._count), action, args))

    def send(self, sender: Process, order: Send) -> None:
        """Lost, once, or twice. What is for the node itself needs no network."""
        receiver = next((p for p in self.processes.values() if p.id == order.to), None)
        event = PeerMessage(sender.id, order.message)
        if receiver is None:
            return
        if receiver is sender:
            self.at(0.0, receiver.take, event)
            return
        if {sender.id, receiver.id} & self._cut or self.rng.random() < self._loss:
            return
        for _ in range(2 if self.rng.random() < self._loss else 1):
            delay_s = self.rng.uniform(*DELAY_S)
            if self._overtaking and self.rng.random() < self._loss:
                delay_s = self.rng.uniform(*LATE_S)
            due = self.now + delay_s
            if not self._overtaking:
                link = (sender.id, receiver.id)
                due = self._latest[link] = max(due, self._latest.get(link, 0.0))
            self.at(due - self.now, receiver.take, event)

    def _judge(self) -> None:
        for shard in self.wanted:
            open_at = [p.name for p in self.living if shard in p.open]
            if len(open_at) > 1:
                self.breach = f"{self.now:.3f} s: shard {shard} is open at {open_at}"

    def _show(self) -> None:
        """Membership has changed: each hears of it a little later."""
        for process in self.processes.values():
            shown = MembershipView(
                process.id,
                1,
                members=tuple(sorted(self._members.values(), key=lambda each: each.id)),
                unreachable=frozenset(self._unreachable - {process.id}),
                gone=dict(self._gone),
            )
            self.at(self.rng.uniform(*DELAY_S), process.take, shown)

    # what a schedule can have

    def do_lead(self, name: str) -> None:
        """The coordinator is here; a former one hears later that it is not the one any more."""
        process = self.processes[name]
        if not process.lives or process.coordinator.phase is not Phase.IDLE:
            return
        for other in self.living:
            if other is not process:
                self.at(self.rng.choice([0.0, 0.02, 0.8]), other.take, Resign(TYPE))
        process.take(Lead(TYPE, process.region.accepted.number))
        for each in self.living:
            self.at(self.rng.uniform(*DELAY_S), each.take, CoordinatorAt(TYPE, process.id))

    def do_suspend(self, name: str) -> None:
        """It may not act for a second and a half."""
        self.processes[name].may_act = False
        self.at(1.5, setattr, self.processes[name], "may_act", True)

    def do_lose(self, name: str) -> None:
        """Cut off, and noticed; it comes back after two seconds."""
        if self.processes[name].lives:
            self._cut.add(node(name))
            self._unreachable.add(node(name))
            self._show()
            self.at(2.0, self._find, name)

    def _find(self, name: str) -> None:
        self._cut.discard(node(name))
        self._unreachable.discard(node(name))
        self._show()

    def do_blink(self, name: str) -> None:
        """Cut off for a moment, and nobody notices."""
        self._cut.add(node(name))
        self.at(0.4, self._cut.discard, node(name))

    def do_crash(self, name: str) -> None:
        """Its own kernel says so, a little later; the last one stays."""
        if len(self.living) > 1 and self.processes[name].lives:
            self.processes[name].lives = False
            self.at(self.rng.uniform(0.1, 0.5), self._remove, name)

    def _remove(self, name: str) -> None:
        self._unreachable.discard(node(name))
        self._members.pop(node(name), None)
        self._gone[node(name)] = Cause.CRASHED
        self._show()

    def do_stop(self, name: str) -> None:
        """The user stops the type there, and starts it again at once or later; maybe twice."""
        take, after_s = self.processes[name].take, 0.0
        for _ in range(self.rng.choice([1, 1, 2])):
            self.at(after_s, take, EvacuateRequested(TYPE))
            after_s += self.rng.choice([0.0, 0.01, 0.1, 0.5, 3.0])
            self.at(after_s, take, RegionRequested(TYPE, self.settings))
            after_s += self.rng.choice([0.0, 0.01, 0.2, 1.0])

    def do_leave(self, name: str) -> None:
        """Its status moves on, and comes back up (as no real one does) before the end."""
        if node(name) in self._members:
            self._members[node(name)] = replace(self._members[node(name)], status=Status.LEAVING)
            self._show()
            self.at(2.5, self._up_again, name)

    def _up_again(self, name: str) -> None:
        if node(name) in self._members:
            self._members[node(name)] = replace(self._members[node(name)], status=Status.UP)
            self._show()

    def do_rebalance(self, name: str) -> None:
        """An operator asks there."""
        self.processes[name].take(RebalanceRequested(TYPE))
