"""Some lease machines and one store in simulated time, with everything that can go wrong between.

The oracle is the world: its own instants, the store's true record, and what each machine would
answer to "may I act" at that instant. Nothing here trusts what a machine tells of others.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from lease.effects import ReadStore, WatchRecord, WriteStore
from lease.events import (
    AcquireWanted,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    RecordChanged,
    RecordRead,
    RecordWritten,
    ReleaseWanted,
    StoreFailed,
    WatchWanted,
    WriteRefused,
)
from lease.machine import LeaseMachine, State
from lease.record import LeaseRecord, store_remaining_s
from lease.settings import LeaseSettings
from lease.wall_watch import WallWatch

NAME = "ledger"
TTL_S = 15.0
WANTS = ("want", "want", "want", "unwant", "watch")
WHAT_HAPPENS = (*WANTS, "pause", "store", "calm", "jump", "clock")


@dataclass
class Contender:
    """One process: a machine, its clocks, whether it runs. The wall clock has the true rate."""

    machine: LeaseMachine
    wall_watch: WallWatch
    offset_s: float
    rate: float
    wall_offset_s: float = 1.7e9
    frozen_until: float = 0.0  # with its whole machine: its clock stands too
    proof_asked: bool = False
    paused_until: float = 0.0
    timer_at: float = float("inf")
    holding: int | None = None
    watched: str | None = None
    facts: list[object] = field(default_factory=list)

    def clock(self, now: float) -> float:
        """What its clock shows at the world's instant."""
        return self.offset_s + now * self.rate

    def may_act(self, now: float) -> bool:
        """As `LeaseKeeper.check_alive`; a machine that is frozen does nothing."""
        reading = self.clock(now)
        return (
            now >= self.frozen_until
            and self.machine.held(reading)
            and self.wall_watch.trusts(reading, self.wall_offset_s + now)
        )

    def instant(self, reading: float) -> float:
        """When its clock will show that."""
        return (reading - self.offset_s) / self.rate


class OverlapError(AssertionError):
    """Two may act at one instant, or a token did not grow."""


class World:
    """`store_clock`: the store can tell ages itself. After `heal` the world is fair.

    `freezes`: whole machines are frozen, their clocks with them, and only their wall clocks are
    right afterwards; else these are set an hour forward and back. Never both: what is set back by
    as much as it was frozen looks as if nothing had happened, and no local clock can tell.
    `watches` is the tolerance of their wall watches, in parts of the margin.
    """

    def __init__(
        self,
        rng: random.Random,
        machine: type[LeaseMachine] = LeaseMachine,
        contenders: int = 3,
        store_clock: bool = False,
        ttls_s: tuple[float, ...] = (TTL_S,),
        *,
        freezes: bool = False,
        watches: float = 0.5,
    ) -> None:
        self.rng = rng
        self.freezes = freezes
        self.now = 0.0
        self.store_clock = store_clock
        self.store_up = True
        self.faults = True
        self.record: LeaseRecord | None = None
        self.sequence = 0
        self.token = 0
        self.coverage: Counter[str] = Counter()
        self._agenda: list[tuple[float, int, int, Any]] = []
        self._order = itertools.count()
        self.contenders: list[Contender] = []
        for index in range(contenders):
            settings = LeaseSettings(name=NAME, owner=f"o{index}", ttl_s=rng.choice(ttls_s))
            self.contenders.append(
                Contender(
                    machine(settings, nonce=f"n{index}"),
                    WallWatch(settings.margin_s * watches),
                    offset_s=rng.uniform(0.0, 1e6),
                    rate=rng.uniform(0.99, 1.01),
                )
            )

    # -- driving

    def tell(self, index: int, event: object) -> None:
        """Feed a contender; what is told to a paused process waits until it wakes."""
        who = self.contenders[index]
        if who.paused_until > self.now:
            self._at(who.paused_until, index, event)
            return
        effects = who.machine.handle(event, who.clock(self.now))
        self._perform(index, effects)

    def run_for(self, seconds: float) -> None:
        """Let time pass; after every step check that at most one may act."""
        end = self.now + seconds
        while True:
            due = self._agenda[0][0] if self._agenda else float("inf")
            timers = [max(each.timer_at, each.paused_until) for each in self.contenders]
            first = min(timers)
            if min(due, first) > end:
                break
            if first < due:
                self.now = max(self.now, first)
                index = timers.index(first)
                who = self.contenders[index]
                reading = max(who.clock(self.now), who.machine.deadline)
                self._perform(index, who.machine.tick(reading))
            else:
                at, _, index, event = heapq.heappop(self._agenda)
                self.now = max(self.now, at)
                if index < 0:
                    self._reach_store(*event)
                else:
                    self.tell(index, event)
            self.check()
        self.now = end
        self.check()

    def holders(self) -> list[int]:
        """Who may act now, by its own clocks."""
        return [index for index, who in enumerate(self.contenders) if who.may_act(self.now)]

    def check(self) -> None:
        """At most one; who doubts its own machine asks for a proof."""
        holders = self.holders()
        if len(holders) > 1:
            raise OverlapError(f"{holders} may all act at {self.now:.3f}")
        for index, who in enumerate(self.contenders):
            doubts = index not in holders and self.now >= who.frozen_until
            if doubts and not who.proof_asked and who.machine.held(who.clock(self.now)):
                who.proof_asked = True
                self.coverage["doubts"] += 1
                self._at(self.now, index, AcquireWanted(NAME))

    # -- chance

    def chaos(self, steps: int) -> None:
        """Wants, pauses, outages at random."""
        rng = self.rng
        for _ in range(steps):
            index = rng.randrange(len(self.contenders))
            match rng.choice(WHAT_HAPPENS):
                case "want":
                    self.tell(index, AcquireWanted(NAME))
                case "unwant":
                    self.tell(index, ReleaseWanted(NAME))
                case "watch":
                    self.tell(index, WatchWanted(NAME, rng.random() < 0.7))
                case "pause":
                    self.coverage["pauses"] += 1
                    who = self.contenders[index]
                    who.paused_until = self.now + rng.choice((0.5, 6.0, 14.0, 40.0))
                case "jump":
                    # Only of one who holds it: others would take what they watched for a moment.
                    who = self.contenders[index]
                    if who.machine.state is State.HELD:
                        self.coverage["jumps"] += 1
                        who.offset_s += 3600.0
                        who.timer_at = who.instant(who.machine.deadline)
                case "clock" if self.freezes:
                    self.coverage["freezes"] += 1
                    self._freeze(self.contenders[index], rng.choice((0.3, 0.3, 6.0, 40.0)))
                case "clock":
                    self.coverage["wall-jumps"] += 1
                    self.contenders[index].wall_offset_s += rng.choice((-3600.0, -5.0, 5.0, 3600.0))
                case "store":
                    self.store_up = not self.store_up
                case "calm":
                    self.store_up = True
            self.run_for(rng.choice((0.0, 0.01, 0.3, 2.0, 5.0, 13.0)))

    def heal(self) -> None:
        """From here on requests are answered at once."""
        self.faults, self.store_up = False, True

    def _freeze(self, who: Contender, seconds: float) -> None:
        if self.now < who.frozen_until:
            return
        who.frozen_until = self.now + seconds
        who.paused_until = max(who.paused_until, who.frozen_until)
        who.offset_s -= seconds * who.rate
        who.timer_at = who.instant(who.machine.deadline)

    # -- between machines and store

    def _perform(self, index: int, effects: list[object]) -> None:
        who = self.contenders[index]
        for effect in effects:
            if isinstance(effect, LeaseGranted | LeaseRenewed):
                who.wall_watch.confirmed(who.machine.confirmed_write_id)
                who.proof_asked = False
            match effect:
                case ReadStore():
                    self._send(index, effect)
                case WriteStore():
                    wall_now = who.wall_offset_s + self.now
                    who.wall_watch.sent(effect.record.write_id, who.clock(self.now), wall_now)
                    self._send(index, effect)
                case WatchRecord():
                    who.watched = effect.version
                    self._notice(index)
                case LeaseGranted():
                    self._granted(who, effect)
                    who.facts.append(effect)
                case LeaseLost() | LeaseReleased():
                    self.coverage[type(effect).__name__] += 1
                    who.holding = None
                    who.facts.append(effect)
                case _:
                    self.coverage[type(effect).__name__] += 1
                    who.facts.append(effect)
        who.timer_at = who.instant(who.machine.deadline)

    def _granted(self, who: Contender, fact: LeaseGranted) -> None:
        # Like the keeper: what the wall clock makes doubtful is told once it is proven.
        if who.holding == fact.token or not who.may_act(self.now):
            return
        if fact.token <= self.token:
            raise OverlapError(f"token {fact.token} was granted after {self.token}")
        self.token = who.holding = fact.token
        self.coverage["grants"] += 1

    def _send(self, index: int, order: ReadStore | WriteStore) -> None:
        way_s = 0.001
        if self.faults:
            if self.rng.random() < 0.1 or not self.store_up:
                if self.rng.random() < 0.5:
                    self._at(self.now + 0.01, index, StoreFailed(NAME, order.attempt, "refused"))
                return  # otherwise nobody says anything
            way_s = self.rng.choice((0.001, 0.001, 0.1, 1.0, 8.0, 20.0))
        self._at(self.now + way_s, -1, (index, order))

    def _reach_store(self, index: int, order: ReadStore | WriteStore) -> None:
        answer: object
        if isinstance(order, ReadStore):
            answer = RecordRead(NAME, order.attempt, self.record, self._remaining_s())
        elif (None if self.record is None else self.record.version) != order.if_version:
            current = self.record
            answer = WriteRefused(NAME, order.attempt, current, self._remaining_s())
            self.coverage["conflicts"] += 1
        else:
            self.sequence += 1
            token = order.record.token
            self.record = replace(
                order.record,
                token=self.sequence if token is None else token,
                version=str(self.sequence),
                clock="store",
                written_at=self.now,
            )
            answer = RecordWritten(NAME, order.attempt, self.record)
            for each in range(len(self.contenders)):
                self._notice(each)
        back_s = 0.001
        if self.faults:
            if self.rng.random() < 0.15:
                self.coverage["lost-answers"] += 1
                return
            back_s = self.rng.choice((0.001, 0.001, 0.1, 1.0, 6.0))
        self._at(self.now + back_s, index, answer)

    def _remaining_s(self) -> float | None:
        if not self.store_clock or self.record is None:
            return None
        return store_remaining_s(self.record, "store", self.now)

    def _notice(self, index: int) -> None:
        watched = self.contenders[index].watched
        if watched is None or self.record is None or self.record.version == watched:
            return
        self.contenders[index].watched = None
        if not self.faults or self.rng.random() < 0.7:
            self._at(self.now + 0.001, index, RecordChanged(NAME, watched))

    def _at(self, when: float, index: int, event: Any) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), index, event))


def campaign(
    rng: random.Random,
    machine: type[LeaseMachine] = LeaseMachine,
    *,
    store_clock: bool | None = None,
    ttls_s: tuple[float, ...] = (TTL_S,),
    watches: float = 0.5,
) -> World:
    """Chaos, then calm in which one must hold it, then nobody."""
    clock = rng.random() < 0.5 if store_clock is None else store_clock
    contenders, freezes = rng.choice((2, 3)), rng.random() < 0.5
    world = World(rng, machine, contenders, clock, ttls_s, freezes=freezes, watches=watches)
    world.chaos(40)
    world.heal()
    world.run_for(max(ttls_s) * 4)
    for index in range(len(world.contenders)):
        world.tell(index, AcquireWanted(NAME))
    world.run_for(max(ttls_s) * 3)
    assert len(world.holders()) == 1, f"nobody holds it in a fair world at {world.now}"
    for index in range(len(world.contenders)):
        world.tell(index, ReleaseWanted(NAME))
    world.run_for(max(ttls_s) * 3)
    states = [who.machine.state for who in world.contenders]
    assert set(states) == {State.IDLE}, states
    assert world.record is not None
    assert world.record.free, f"held over nothing: {world.record}"
    return world
