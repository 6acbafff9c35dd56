"""Random faults against sharded entities in virtual time, judged from outside.

Decides what a run with the subject *sharding* is: a cluster that hosts one sharded type, customers
that tell and ask its entities, a schedule of faults and orders drawn from the seed, and what must
hold then. The faults, the heal and the supervisor are those of `node.testkit.partition`. Called by
`node.testkit.simulate` and by stories.

What must hold. At the levels of downing no step of one entity is begun in two places; at level none
overlaps are shown. When all has healed every entity answers each node, all nodes show one map, no
shard is on the move, and what runs runs where the map says. In a run without faults (leaves, joins,
rebalances, moves of the coordinator only) every message is handled once, in the order of its
sender, and every ask is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gossip.membership import NodeId
from node.actor import Actor, on
from node.errors import TenureError
from node.messages import Ask, message
from node.settings import Settings
from node.sharding import Entities
from node.supervision import StopReason
from node.system import ActorSystem
from node.testkit.checkers import Step, StepLog, overlaps, view_differences
from node.testkit.partition import (
    HEALED_WITHIN_S,
    PartitionWorld,
    Run,
    _is_up,
    _task,
)
from node.testkit.stage import SimNode
from sharding.events import ShardsMoved, TermBegan
from sharding.settings import shard_of

TYPE = "cart"
COORDINATOR = f"sharding.{TYPE}"
IDS = tuple(f"c-{number}" for number in range(20))
LOOK_S = 0.25
SETTLED_WITHIN_S = 45.0  # the map is said again each 30 s
ANSWERED_WITHIN_S = 20.0
ASK_S = 4.0
RETURNS_MAX = 3

GRACEFUL = ("rolling restart", "shuffle", "coordinator moves", "retire")
"""Kinds without any fault."""

KINDS = (
    *GRACEFUL,
    "clean", "lone host", "staggered", "one-way", "deaf host", "mute host", "link", "double",
    "heal near", "joins", "leaves", "pause", "pause and split", "order", "crash", "crashes",
    "lossy", "coordinator pause", "pauses", "move and crash", "move and cut", "rebalance and crash",
    "lossy shuffle", "lossy retire",
)  # fmt: skip

COVERED = (
    "moved by leave", "moved by rebalance", "moved by crash", "coordinator takeover",
    "coordinator move", "term refused", "suspension", "coordinator suspended", "passivation",
    "heal near a decision", "restart", "one-way", "pause", "leave", "join",
)  # fmt: skip
COVERED_AT_NONE = ("claimed twice", "overlap")
NOT_AT_NONE = ("suspension", "coordinator suspended", "heal near a decision", "restart")
_COUNTED = {
    "sharding: earlier terms refused": "term refused",
    "sharding: claimed twice": "claimed twice",
    "sharding: suspended": "coordinator suspended",
}


@message("tenure.testkit.put")
class Put:
    """The `number`-th message of this buyer to this entity."""

    buyer: str
    number: int


@message("tenure.testkit.buy")
class Buy(Ask[int]):
    """As `Put`, answered with its number."""

    buyer: str
    number: int


@message("tenure.testkit.stroll")
class Stroll:
    """Work of a coroutine that resumes so often."""

    resumes: int = 10


@dataclass(frozen=True, slots=True)
class _Tick:
    pass


class Book:
    """What was sent, handled and answered, outside of every node."""

    def __init__(self, log: StepLog, covered: set[str]) -> None:
        self.log = log
        self.covered = covered
        self.sent: dict[tuple[str, str], int] = defaultdict(int)
        self.taken: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.asks: dict[str, list[str]] = defaultdict(list)  # buyer → what became of each
        self.closed = False
        self.graceful = False

    def next(self, buyer: str, entity: str) -> int:
        """The number of the next message."""
        number = self.sent[buyer, entity]
        self.sent[buyer, entity] += 1
        return number


class Cart(Actor):
    """An entity that writes its own steps down. tick_s: it acts so often by itself, 0: never."""

    def __init__(self, entity_id: str, book: Book, tick_s: float) -> None:
        self._id = entity_id
        self._book = book
        self._life = book.log.begin(entity_id)
        self._tick_s = tick_s

    def pre_start(self) -> None:
        """Begin to act."""
        self._life.step("start")
        if self._tick_s:
            self.context.timers.every("tick", self._tick_s, _Tick())

    @on(_Tick)
    def tick(self, _tick: _Tick) -> None:
        """Act by timer."""
        self._life.step("tick")

    @on(Put)
    def put(self, put: Put) -> None:
        """Act once."""
        self._life.step("put")
        self._book.taken[put.buyer, self._id].append(put.number)

    @on(Buy)
    def buy(self, buy: Buy) -> int:
        """Act once, and say so."""
        self._life.step("buy")
        self._book.taken[buy.buyer, self._id].append(buy.number)
        return buy.number

    @on(Stroll)
    async def stroll(self, stroll: Stroll) -> None:
        """Act again and again."""
        for _ in range(stroll.resumes):
            self._life.step("resume")
            await asyncio.sleep(0.02)

    def post_stop(self, reason: StopReason) -> None:
        """The clean-up is no act."""
        if reason.detail == "passivated":
            self._book.covered.add("passivation")
        self._life.end()


class Buyer(Actor):
    """Tells some entity something each `every_s`, or (asks) asks one and waits for its answer."""

    def __init__(
        self, entities: Entities[Any], book: Book, name: str, every_s: float, asks: bool
    ) -> None:
        self._entities = entities
        self._book = book
        self._name = name
        self._every_s = every_s
        self._asks = asks
        self._dice = random.Random(f"buyer {name}")

    def pre_start(self) -> None:
        """Begin."""
        self.context.timers.every("buy", self._every_s, _Tick())

    @on(_Tick)
    async def buy(self, _tick: _Tick) -> None:
        """Once more."""
        if self._book.closed:
            return
        entity = self._dice.choice(IDS)
        ref = self._entities[entity]
        number = self._book.next(self._name, entity)
        if not self._asks:
            ref.tell(Put(self._name, number))
            if self._dice.random() < 0.05:
                ref.tell(Stroll())
            return
        asks = self._book.asks[self._name]
        at = len(asks)
        asks.append("open")
        try:
            answer = await ref.ask(Buy(self._name, number), 30.0 if self._book.graceful else 3.0)
            asks[at] = "answered" if answer == number else f"{number} answered with {answer}"
        except (TimeoutError, TenureError) as error:
            asks[at] = f"{entity}: {type(error).__name__}"


class ShardedWorld(PartitionWorld):
    """One seeded run. `run_scenario` plays it and returns what it came to.

    The arguments are those of `PartitionWorld`; with `downing="none"` it is level none.
    """

    kinds: tuple[str, ...] = KINDS

    def __init__(
        self, seed: int, settings: Settings, nodes: int | None = None, *, leased: bool = False
    ) -> None:
        super().__init__(seed, settings, nodes, leased=leased)
        dice = self.dice
        self.shard_count = dice.choice([8, 11, 16])
        self.idle_s = dice.choice([None, 0.5, 2.0])
        self.allocation = dice.choice(["least-shard", "rendezvous"])
        self.tick_s = dice.choice([0.0, 0.1, 0.1]) if self.idle_s else 0.1
        self.every_s = dice.choice([0.02, 0.1])
        self.book = Book(self.log, self.told.covered)
        self.book.graceful = self.is_graceful
        self._homes: dict[int, tuple[NodeId, SimNode, int]] = {}
        self._coordinator: tuple[str, int] | None = None
        self._leavers: set[tuple[str, int]] = set()
        self._looked_at = -1.0
        self._was_well = False
        self._seen_at = self._acting_at = -1.0
        self._where: list[str] = []

    @property
    def is_graceful(self) -> bool:
        """True for a run without any fault; the troubles of a store are some."""
        return self.told.kind in GRACEFUL and self.store is None

    @property
    def is_at_none(self) -> bool:
        """True when nothing is decided about the unreachable."""
        return self._strategy is None

    # building

    def _set_up(self, system: ActorSystem) -> None:
        node = self.here()
        entities = self._host(system)
        system.events.subscribe(ShardsMoved, self._on_moved)
        system.events.subscribe(TermBegan, lambda term: self._on_term(node, term))
        for asks in (False, True):
            name = f"{node.name}{node.starts}-{'asks' if asks else 'tells'}-{self.seed}"
            system.spawn(Buyer, entities, self.book, name, self.every_s, asks, name=name)

    def _host(self, system: ActorSystem) -> Entities[Any]:
        lease = None
        if self.store is not None:
            if system not in self._leases:
                door = self.store.door(self.here().name)
                self._leases[system] = system.lease(COORDINATOR, store=door)
            lease = self._leases[system]
        return system.cluster.sharding.start(
            type_name=TYPE,
            actor=Cart,
            args=(self.book, self.tick_s),
            shard_count=self.shard_count,
            allocation=self.allocation,
            idle_s=self.idle_s,
            lease=lease,
        )

    # what is to be covered

    def _on_moved(self, moved: ShardsMoved) -> None:
        """Why a shard went from one node to another one."""
        (to,) = [node for node in self.nodes if node.address == moved.node.address]
        for shard in moved.shards:
            before = self._homes.get(shard)
            self._homes[shard] = (moved.node, to, to.starts)
            if before is None or before[0] == moved.node:
                continue
            _, node, starts = before
            if (node.name, starts) in self._leavers:
                how = "leave"
            elif node.running and node.starts == starts:
                how = "rebalance"
            else:
                how = "crash"
            self.told.covered.add(f"moved by {how}")

    def _on_term(self, node: SimNode, term: TermBegan) -> None:
        here = (node.name, node.starts)
        if self._coordinator not in (None, here):
            self.told.covered.add("coordinator takeover")
            if self._first_fault_at:
                self.told.takeovers_s.append(self.now - self._first_fault_at)
        self._coordinator = here

    def _watch_gates(self) -> None:
        """Looked at now and then: there are many entities."""
        if self.now < self._looked_at + LOOK_S:
            return
        self._looked_at = self.now
        for node in self.nodes:
            if not node.running or node.paused or not node.opened:
                continue
            if not node.system.runtime.gate.is_open_now:
                self.told.covered.add("suspension")
            counters = node.system.counters()
            for name, what in _COUNTED.items():
                if counters.get(name):
                    self.told.covered.add(what)

    # judging

    def _may_reseat(self) -> bool:
        return not self.is_graceful and super()._may_reseat()

    def _acting(self) -> list[str]:
        """Nodes where entities run, once each shard has a home that all know."""
        if self.now >= self._acting_at + LOOK_S:
            self._acting_at = self.now
            self._where = [] if self._amiss() else sorted({i.node for i in self.log.running()})
        return self._where

    def _is_well(self) -> bool:
        if self.now >= self._seen_at + LOOK_S:
            self._seen_at = self.now
            views = self.views()
            is_due = any(node.is_due for node in self.nodes)
            self._was_well = not is_due and bool(views) and not view_differences(views)
        return self._was_well

    def _judge_the_return(self) -> None:
        """One view; then every entity answers everybody, and all is at rest in one place."""
        told = self.told
        for turn in range(1, RETURNS_MAX + 1):
            count, before = len(told.violations), self._processes()
            self._judge_once()
            if self._processes() == before or turn == RETURNS_MAX:
                break
            # A verdict that fell before the heal ended one: it is started again, and all is new.
            told.is_empty = False
            del told.violations[count:]
        if self.is_graceful:
            self._judge_messages()

    def _processes(self) -> list[tuple[int, bool]]:
        return [(node.starts, node.running) for node in self.nodes]

    def _judge_once(self) -> None:
        told = self.told
        is_well = self._comes(self._is_well, HEALED_WITHIN_S * self._slower + self._store_s)
        told.well_s = self.now - self._last_fault_at()
        self._seen_at = -1.0
        if not is_well:
            self._judge_the_end()
            return
        self._until_settled("after the heal")
        self._ask_everything()
        if self.is_graceful:
            self.book.closed = True
            self.run_for(s=5.0)
        self._until_settled("after all was asked")

    def _judge_the_end(self) -> None:
        views = [view for view in self.views().values() if view is not None]
        if not any(map(_is_up, views)):
            self.told.is_empty = True
            return
        if differences := view_differences(self.views()):
            words = "; ".join(differences[:3])
            self.told.violations.append(
                f"no one view {self.told.well_s:.0f} s after the last fault: {words}"
            )

    def _states(self) -> dict[str, dict[str, Any]]:
        """What `/shards` shows on each running node."""
        shown = {}
        for node in self.running:
            if node.opened:
                shown[node.name] = node.call(node.system.cluster.sharding.state)[0]
        return shown

    def _amiss(self) -> list[str]:
        """What keeps all shards from being at rest where one map says, in words."""
        states = self._states()
        if not states:
            return ["nobody runs"]
        by_address = {node.address: node.name for node in self.nodes}
        words = []
        first = next(iter(states.values()))
        for name, state in states.items():
            if state["homes"] != first["homes"]:
                words.append(f"{name} shows the map {state['homes']}, not {first['homes']}")
            if state["moves"] or state["stopping_here"]:
                words.append(f"{name}: moves {state['moves']}, stopping {state['stopping_here']}")
            if state["held"]:
                words.append(f"{name} holds {state['held']} messages: {state['explain']}")
            at_home = state["homes"].get(self[name].address, [])
            if sorted(at_home) != sorted(state["here"]):
                words.append(f"{name} has {state['here']}, and the map says {at_home}")
        if len({state["coordinator"] for state in states.values()}) > 1:
            words.append("the nodes name several coordinators")
        homes = {
            shard: by_address.get(address, address)
            for address, shards in first["homes"].items()
            for shard in shards
        }
        running: dict[str, str] = {}
        for instance in self.log.running():
            home = homes.get(shard_of(instance.subject, self.shard_count))
            if instance.subject in running or home != instance.node:
                words.append(f"{instance} runs, and the map says {home}")
            running[instance.subject] = instance.node
        return words

    def _until_settled(self, when: str) -> None:
        at = self.now + SETTLED_WITHIN_S + self._store_s
        words = self._amiss()
        while words and self.now < at:
            self.run_for(s=LOOK_S)
            words = self._amiss()
        if words:
            self.told.violations.append(f"not at rest {when}: " + "; ".join(words[:3]))

    def _ask_everything(self) -> None:
        silent: list[str] = []

        async def ask(node: SimNode, entity: str) -> None:
            ref = node.system.cluster.sharding.get(TYPE)[entity]
            buyer = f"{node.name}{node.starts}-last"
            until = self.now + ANSWERED_WITHIN_S
            while True:
                try:
                    await ref.ask(Buy(buyer, self.book.next(buyer, entity)), ASK_S)
                    return
                except (TimeoutError, TenureError) as error:
                    # A link that lost a frame before the heal may take yet another one with it.
                    if self.is_graceful or self.now >= until:
                        silent.append(f"{entity} from {node.name}: {type(error).__name__}")
                        return
                    await asyncio.sleep(0.5)

        tasks = [
            node.call(node.loop.create_task, ask(node, entity))
            for node in self.running
            for entity in IDS
        ]
        done = self.timeline.run(
            self.now + ANSWERED_WITHIN_S + 2 * ASK_S, lambda: all(task.done() for task in tasks)
        )
        if silent or not done:
            words = "; ".join(silent[:4]) or "their asks do not even end"
            self.told.violations.append(f"{len(silent)} asks without an answer at the end: {words}")

    def _judge_messages(self) -> None:
        """Of whoever still runs all were handled; of others the first so many."""
        told = self.told
        stay = {f"{node.name}{node.starts}" for node in self.running}
        for (buyer, entity), sent in self.book.sent.items():
            taken = self.book.taken[buyer, entity]
            complete = buyer.partition("-")[0] in stay
            if taken != list(range(len(taken))) or (complete and len(taken) != sent):
                odd = next((at for at, number in enumerate(taken) if number != at), len(taken))
                told.violations.append(
                    f"{buyer} sent {sent} messages to {entity}, and {len(taken)} were handled; "
                    f"from number {odd}: {taken[odd : odd + 5]}"
                )
                break
        for buyer, outcomes in self.book.asks.items():
            bad = [outcome for outcome in outcomes if outcome != "answered"]
            if bad and buyer.partition("-")[0] in stay:
                told.violations.append(f"{len(bad)} asks of {buyer} were not answered: {bad[:3]}")
                break

    def _note_takeovers(self) -> None:
        """Done by `_on_term`."""

    def _judge_log(self) -> None:
        told = self.told
        by_subject: dict[str, list[Step]] = defaultdict(list)
        for step in self.log.steps:
            by_subject[step.subject].append(step)
        found = [overlap for steps in by_subject.values() for overlap in overlaps(steps)]
        if found:
            told.covered.add("overlap")
        if found and not self.is_at_none:
            overlap = min(found, key=lambda overlap: overlap.from_s)
            told.violations.append(
                f"two {overlap.subject} acted at once for {overlap.duration_s:.3f} s from "
                f"{overlap.from_s:.3f} s: instances {overlap.instances} on {overlap.nodes}"
            )

    # helpers of the kinds

    def _leave(self, name: str) -> None:
        self._leavers.add((name, self[name].starts))
        super()._leave(name)

    @property
    def host(self) -> str:
        """Where the coordinator is."""
        by_address = {node.address: node.name for node in self.nodes}
        for node in self.running:
            if node.opened and not node.paused:
                address = node.call(node.system.cluster.sharding.state)[0]["coordinator"]
                if address is not None:
                    return by_address[address]
        return self.core[0]

    def _trouble_of_orders(self, within_s: float, most: int = 3) -> None:
        """Orders of users, at instants of their own."""
        for _ in range(self.dice.randint(0, most)):
            order = self.dice.choice([self._rebalance, self._rebalance, self._move_coordinator])
            self.after(within_s * self.dice.random(), order)

    def _rebalance(self) -> None:
        name = self.dice.choice(self.core)
        self._call(name, lambda system: system.cluster.sharding.rebalance(type_name=TYPE))

    def _move_coordinator(self) -> None:
        self.told.covered.add("coordinator move")
        name = self.dice.choice(self.core)
        self._call(name, lambda system: _task(self[name], _move(system)))

    def _wait_for_end(self, name: str) -> None:
        self.run_until(lambda: not self[name].running, within_s=60.0)

    def _leave_and_return(self, name: str) -> None:
        self._leave(name)
        self._wait_for_end(name)
        self.run_for(s=3.0 * self.dice.random())
        self._start_yet(name)

    # kinds without a fault

    def _do_rolling_restart(self) -> None:
        self._trouble_of_orders(30.0)
        for name in self.core:
            self._leave_and_return(name)
            self.run_for(s=self.dice.choice([0.5, 3.0]))

    def _do_shuffle(self) -> None:
        self._trouble_of_orders(20.0)
        for _ in range(self.dice.randint(2, 5)):
            what = self.dice.choice(["leave", "join", "rebalance", "move"])
            if what == "leave":
                self._leave_and_return(self.dice.choice(self.core))
            elif what == "join" and (absent := [n for n in self.spare if not self[n].running]):
                self.told.covered.add("join")
                self._start_yet(absent[0])
            elif what == "rebalance":
                self._rebalance()
            else:
                self._move_coordinator()
            self.run_for(s=4.0 * self.dice.random())

    def _do_coordinator_moves(self) -> None:
        self.told.covered.add("join")
        self._start_yet(self.spare[0])
        for _ in range(self.dice.randint(3, 8)):
            self._move_coordinator()
            if self.dice.random() < 0.5:
                self._rebalance()
            self.run_for(s=2.0 * self.dice.random())

    def _do_retire(self) -> None:
        """Nodes stop to host the type, and begin again."""
        self._trouble_of_orders(10.0)
        for name in self._some(1, len(self.core) - 1, self.core):
            self._call(name, lambda system: system.cluster.sharding.stop(type_name=TYPE))
            self.run_for(s=self.dice.choice([0.0, 0.1, 2.0, 8.0]))
        self.run_for(s=5.0 * self.dice.random())
        for name in self.core:
            self._call(name, self._host)
            self.run_for(s=self.dice.random())

    # kinds with faults of their own

    def _do_coordinator_pause(self) -> None:
        pause_s = self._draw_pause_s()
        if self.dice.random() < 0.5:
            self._rebalance()
        self._pause(self.host, pause_s)
        self._trouble_of_orders(5.0)
        self._wait(5.0, 15.0 + pause_s)

    def _do_pauses(self) -> None:
        """Several nodes, one after another or at once."""
        for name in self._some(1, len(self.core), self.core):
            pause_s = self.dice.choice([0.1, 0.6, 2.0, 4.0, 8.0])
            self.after(10.0 * self.dice.random(), self._pause, name, pause_s)
        self._trouble_of_orders(12.0)
        self._wait(12.0, 30.0)

    def _do_move_and_crash(self) -> None:
        """The coordinator moves, and somebody dies meanwhile."""
        self._move_coordinator()
        self.run_for(s=self.dice.choice([0.0, 0.001, 0.005, 0.05, 0.5]))
        name = self.host if self.dice.random() < 0.5 else self.dice.choice(self.core)
        self.crash(name, silent=self.dice.random() < 0.5)
        self._wait()
        self._take_seats()

    def _do_move_and_cut(self) -> None:
        self._move_coordinator()
        self.run_for(s=self.dice.choice([0.0, 0.001, 0.005, 0.05, 0.5]))
        self._split(self._some(1, len(self.core) // 2, self.core))
        self._trouble_of_orders(10.0)
        self._wait(3.0, 30.0)

    def _do_rebalance_and_crash(self) -> None:
        """One joins, shards move to it, and somebody dies meanwhile."""
        self.told.covered.add("join")
        self._start_yet(self.spare[0])
        self.run_for(s=5.0 * self.dice.random())
        self._rebalance()
        self.run_for(s=self.dice.choice([0.0, 0.001, 0.005, 0.05]))
        name = self.dice.choice([*self.core, self.spare[0]])
        if self[name].running:
            self.crash(name, silent=self.dice.random() < 0.5)
        self._wait()
        self._take_seats()

    def _do_lossy_shuffle(self) -> None:
        self.shape(loss=self.dice.choice([0.02, 0.1]))
        self._trouble_of_orders(20.0, most=6)
        if self.dice.random() < 0.5:
            self._leave(self.dice.choice(self.core))
        self._wait(10.0, 30.0)

    def _do_lossy_retire(self) -> None:
        """What is said about a stop and a start comes twice as late as it may, or never."""
        self.shape(loss=self.dice.choice([0.05, 0.2]), delay_s=(0.0005, 0.5))
        self._do_retire()
        self._wait(3.0, 10.0)


async def _move(system: ActorSystem) -> None:
    """An order that comes to nothing is no matter of the run."""
    with contextlib.suppress(TimeoutError, LookupError, TenureError):
        await system.cluster.singleton.move(type_name=COORDINATOR)


def run_sharded(
    seed: int, settings: Settings, nodes: int | None = None, *, leased: bool = False
) -> Run:
    """One run of it."""
    with ShardedWorld(seed, settings, nodes, leased=leased) as world:
        return world.run_scenario()


def covered(level: str) -> Sequence[str]:
    """What some of many runs have to come across at a level of protection."""
    if level != "none":
        return COVERED
    return [*(what for what in COVERED if what not in NOT_AT_NONE), *COVERED_AT_NONE]
