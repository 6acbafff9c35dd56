"""Random partitions of a whole cluster in virtual time, judged from outside.

Decides what a run of the scenario *partition* is: a cluster with one singleton, a schedule of cuts,
pauses, leaves, joins and orders drawn from the seed, a supervisor that restarts who was downed, the
heal, and what must hold then. Judges by the steps that the subject actor itself wrote and by the
views of the processes that run; never by what a machine says of its own state. Called by
`node.testkit.simulate` and by stories.

What must hold, at every level above none: two instances never act at once; under a lease none acts
beyond it; a side that lives by the strategy, and is whole, loses nobody; within bounded time of the
last fault one instance acts, and all processes have one view.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from downing.strategies import DownAll, KeepReferee, StaticQuorum
from downing.view import counted
from gossip.membership import MembershipView, Status
from lease import Lease
from node.actor import Actor, on
from node.errors import TenureError
from node.ref import ActorRef
from node.settings import Settings
from node.system import ActorSystem
from node.testkit.checkers import StepLog, view_differences
from node.testkit.stage import SimNode, Where
from node.testkit.stores import SimStore
from node.testkit.subject import Subject, Toil, Work
from node.testkit.timeline import WorldError
from node.testkit.world import World
from singleton.machine import CANDIDATE

NAMES = "abcdefghijklmnopqrstuvwxyz"
SUBJECT = "subject"
ROLE = "core"
TICK_S = 0.25
RESTARTED = (10, 11, 12)  # exit codes that mean: start me again
ACTS_WITHIN_S = 10.0
"""Of the last fault, and under a lease a ttl more: then one instance acts. Twice as late where a
split is decided twice as late."""
HEALED_WITHIN_S = 30.0
"""And all have one view, those that were started again included."""
DOWN_AFTER_S = 5.0
"""In the presets to which these times belong."""
ALL_UP_WITHIN_S = 60.0
NEAR_S = 0.5
ERROR_CHARS_MAX = 500

KINDS = (
    "clean", "lone host", "staggered", "one-way", "deaf host", "mute host", "chain", "link",
    "double", "heal near", "joins", "leaves", "pause", "pause and split", "leader cut",
    "promotion cut", "order", "order deaf", "crash", "crashes", "lossy", "starts", "move",
)  # fmt: skip
"""What a run is about; each draws its own details."""


@dataclass(slots=True)
class Run:
    """What one seed came to."""

    seed: int
    kind: str
    nodes: int
    violations: list[str] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)
    takeovers_s: list[float] = field(default_factory=list)  # from the first fault
    acts_s: float | None = None  # from the last fault until one instance acted
    well_s: float | None = None  # and until all had one view as well
    is_empty: bool = False  # nobody was left, by verdicts alone


@dataclass(frozen=True, slots=True)
class _Order:
    pass


class Customer(Actor):
    """Sends the singleton work. toils: also of the kind that goes on for a while."""

    def __init__(self, subject: ActorRef[Any], every_s: float, toils: bool) -> None:
        self._subject = subject
        self._toils = toils
        self._every_s = every_s

    def pre_start(self) -> None:
        """Begin."""
        self.context.timers.every("order", self._every_s, _Order())

    @on(_Order)
    def order(self, _order: _Order) -> None:
        """Nobody waits for the answers."""
        self._subject.tell(Work())
        if self._toils:
            # What waits for a lease for a whole ttl must be done in the time an actor has to stop.
            self._subject.tell(Toil(resumes=10, pause_s=0.05))


class Leased(Subject):
    """Writes its token down when it starts."""

    def __init__(self, log: StepLog, subject: str, tick_s: float, tokens: dict[int, int]) -> None:
        super().__init__(log, subject, tick_s)
        self._tokens = tokens

    def pre_start(self) -> None:
        """Under which holding it acts."""
        if (token := self.context.authority.token) is not None:
            self._tokens[self._life.number] = token
        super().pre_start()


class PartitionWorld(World):
    """One seeded run. `run` plays it and returns what it came to.

    nodes: how many; None: 3 to 7 by the seed. settings: of all, with the strategy. leased: the
    singleton runs under a lease, whose store has troubles of its own.
    """

    kinds: tuple[str, ...] = KINDS
    """Of which the seed draws one."""

    def __init__(
        self, seed: int, settings: Settings, nodes: int | None = None, *, leased: bool = False
    ) -> None:
        dice = self.dice = random.Random(f"partition {seed}")
        count = dice.randint(3, 7) if nodes is None else nodes
        kind = dice.choice(self.kinds)
        seeds = dice.randint(1, min(3, count))
        spare = " ".join(NAMES[count : count + 2])
        self.told = Run(seed, kind, count)
        self.log: StepLog
        self._strategy = settings.strategy()
        self.core = list(NAMES[:count])
        self._first_fault_at = 0.0
        self._decided_at: list[float] = []
        self._healed = False
        self._hosts_before: set[int] = set()
        self._of_role: tuple[str, ...] = ()
        self.store = SimStore(self, seed) if leased else None
        self._ttl_s = settings.lease_ttl_s if leased else 0.0
        # A store may be away for 25 s, a write land 20 s late, and pin the lease for a ttl then.
        self._store_s = 25.0 + 20.0 + self._ttl_s if leased else 0.0
        self.tokens: dict[int, int] = {}  # by the number of the instance
        self._leases: dict[ActorSystem, Lease] = {}
        self._slower = max(1.0, settings.downing_settings().down_after_s / DOWN_AFTER_S)
        self._judged = 0  # steps
        self._is_beyond = False
        self._healed_at = self._started_at = 0.0
        self._spared: dict[str, int] = {}  # who has to live, and which process of its node
        if kind == "promotion cut" and settings.downing == "keep-majority":
            settings = dataclasses.replace(settings, downing=f"{settings.downing}:role={ROLE}")
            self._of_role = (self.core[0], self.core[-1])
        super().__init__(
            seed,
            nodes=" ".join(NAMES[: count + 2]),
            settings=dataclasses.replace(settings, hand_over_timeout_s=10.0),
            setup=self._set_up,
            seeds=" ".join(NAMES[:seeds]),
            absent=spare,
            into_cut="lost" if kind == "move" else dice.choice(["held", "lost"]),
        )
        self.log = StepLog(self)
        self.spare = [node.name for node in self.nodes[count:]]

    def settings_of(self, where: Where) -> Settings:
        """As of all; some have the role that counts."""
        settings = super().settings_of(where)
        if self[where].name in self._of_role:
            settings = dataclasses.replace(settings, roles=(ROLE,))
        return settings

    def start(self, where: Where | Iterable[Where]) -> None:
        """As everywhere; when, is remembered."""
        super().start(where)
        self._started_at = self.now

    def _set_up(self, system: ActorSystem) -> None:
        ref = self._start_subject(system)
        toils = system.settings.name == self.core[1]
        system.spawn(Customer, ref, 1.5, toils, name="customer")

    def _start_subject(self, system: ActorSystem) -> ActorRef[Any]:
        args: tuple[object, ...] = (self.log, SUBJECT, TICK_S)
        singleton = system.cluster.singleton
        if self.store is None:
            return singleton.start(type_name=SUBJECT, actor=Subject, args=args)
        if system not in self._leases:
            door = self.store.door(self.here().name)
            self._leases[system] = system.lease(SUBJECT, store=door)
        lease = self._leases[system]
        return singleton.start(
            type_name=SUBJECT, actor=Leased, args=(*args, self.tokens), lease=lease
        )

    # the run

    def run_scenario(self) -> Run:
        """Play it; what was found is in `violations`, never raised."""
        told = self.told
        try:
            self._play()
        except (WorldError, TenureError) as error:
            words = " ".join(str(error).partition("; the last steps:")[0].split())
            told.violations.append(f"{type(error).__name__}: {words[:ERROR_CHARS_MAX]}")
        self._judge_log()
        return told

    def _judge_log(self) -> None:
        """What must hold of the whole run, whatever became of it in the end."""
        told = self.told
        for overlap in self.log.overlaps(SUBJECT):
            told.violations.append(
                f"two acted at once for {overlap.duration_s:.3f} s from {overlap.from_s:.3f} s: "
                f"instances {overlap.instances} on {overlap.nodes}"
            )
            break
        tokens = list(self.tokens.values())
        if any(later < earlier for earlier, later in pairwise(tokens)):
            told.violations.append(f"tokens do not grow: {tokens[-10:]}")

    def _play(self) -> None:
        dice = self.dice
        if self.store is not None:
            self.timeline.watchers.append(functools.partial(self._judge_steps, self.store))
        for node in self.nodes:
            self.drift_clock(node, rate=dice.choice([0.99, 0.995, 1.0, 1.005, 1.01]))
        self.shape(delay_s=dice.choice([(0.0005, 0.005), (0.0002, 0.001), (0.005, 0.05)]))
        self.until_all_up(within_s=ALL_UP_WITHIN_S)
        self.run_until(lambda: bool(self._acting()), within_s=ALL_UP_WITHIN_S)
        self.run_for(s=1.0)
        if dice.random() < 0.4 and self._may_reseat():
            # The lowest address leads; the oldest hosts. Often they are not one.
            self.restart(self.core[0], after_s=dice.random())
            self.until_all_up(within_s=ALL_UP_WITHIN_S)
            self.run_until(lambda: bool(self._acting()), within_s=ALL_UP_WITHIN_S)
        self.run_for(s=1.0 + 3.0 * dice.random())
        self.every(0.5, self._supervise)
        self.timeline.watchers.append(self._watch)
        self._first_fault_at = self.now
        self._hosts_before = {instance.number for instance in self.log.instances}
        if self.store is not None:
            self._trouble(self.store)
        getattr(self, "_do_" + self.told.kind.replace(" ", "_").replace("-", "_"))()
        self._calm()

    def _may_reseat(self) -> bool:
        """Whether a process may be killed before the faults begin."""
        return not self._of_role and not isinstance(self._strategy, (DownAll, KeepReferee))

    def _trouble(self, store: SimStore) -> None:
        """Each run has some of it, at instants of its own."""
        dice = self.dice
        if dice.random() < 0.4:
            store.loses = dice.choice([0.05, 0.3])
        if dice.random() < 0.3:
            store.is_late = dice.choice([0.02, 0.15])
        for _ in range(dice.choice([0, 0, 1, 1, 2])):
            self.after(25.0 * dice.random(), self._cut_store, store, dice.choice([0.5, 4.0, 25.0]))
        if dice.random() < 0.3:
            self.after(5.0 * dice.random(), self._stutter, store)

    def _stutter(self, store: SimStore) -> None:
        """The host's next renewal lands unheard; then its way fails, works for a moment, and fails
        again, so that all it can learn is that the store holds a write of its own."""
        host, dice = self.host, self.dice
        gone_s, back_s, lost_s = dice.uniform(0.2, 6.0), dice.uniform(0.3, 2.0), 25.0

        def lost() -> None:
            self.told.covered.add("unheard renewal")
            store.cut_off.add(host)
            self.after(gone_s, store.cut_off.discard, host)
            self.after(gone_s + back_s, self._cut_off_yet, store, host)
            self.after(gone_s + back_s + lost_s, store.cut_off.discard, host)

        if not self._healed:
            store.loses_next[host] = lost

    def _cut_off_yet(self, store: SimStore, name: str) -> None:
        if not self._healed:
            store.cut_off.add(name)

    def _cut_store(self, store: SimStore, s: float) -> None:
        if self._healed:
            return
        self.told.covered.add("store outage")
        names = [node.name for node in self.running]
        if self.dice.random() < 0.5 or not names:
            store.down = True
        else:
            store.cut_off.add(self.dice.choice(names))
        self.after(s, store.heal)

    def _calm(self) -> None:
        """All heals; then one view, and one instance that acts."""
        self._healed = True
        self.heal_all()
        self.shape(loss=0.0)
        if self.store is not None:
            self.store.heal()
            if self.store.lost_answers:
                self.told.covered.add("lost answers")
            if self.store.late_writes:
                self.told.covered.add("late writes")
        if any(abs(self.now - at) <= NEAR_S for at in self._decided_at):
            self.told.covered.add("heal near a decision")
        self.run_until(lambda: not any(node.paused for node in self.running), within_s=120.0)
        self._healed_at = self.now
        self._judge_the_return()
        self._note_takeovers()

    def _note_takeovers(self) -> None:
        after = [i for i in self.log.instances if i.number not in self._hosts_before]
        acting = {step.instance: step.at_s for step in reversed(self.log.steps)}
        for instance in after:
            if instance.number in acting:
                self.told.covered.add("takeover")
                self.told.takeovers_s.append(acting[instance.number] - self._first_fault_at)

    def _judge_the_return(self) -> None:
        told = self.told
        within_s = ACTS_WITHIN_S * self._slower + self._ttl_s
        has_side = self._has_side()
        one_acts = self._comes(lambda: len(self._acting()) == 1, within_s)
        acts_s = self.now - self._last_fault_at()
        told.acts_s = acts_s if has_side else None
        acting = len(self._acting())
        is_well = self._comes(self._is_well, HEALED_WITHIN_S * self._slower)
        told.well_s = self.now - self._last_fault_at()
        if not is_well:
            self._judge_the_end()
        elif has_side and not one_acts:
            told.violations.append(f"{acting} instances {acts_s:.1f} s after the last fault")

    def _last_fault_at(self) -> float:
        """The heal with the end of all pauses; the start of a process after it; the last that the
        store failed somebody, or that a late write landed."""
        store_at = self.store.last_fault_at if self.store is not None else 0.0
        return max(self._healed_at, self._started_at, store_at)

    def _has_side(self) -> bool:
        """Some that run, and are members for each other, live by the strategy. Where all but a
        minority were downed before, that one has yet to find out that it is alone."""
        views = [view for view in self.views().values() if view is not None]
        running = {view.self_id for view in views}
        return self._strategy is not None and any(
            self._strategy.survives(view.members, running & view.by_id.keys()) for view in views
        )

    def _comes(self, is_so: Callable[[], bool], within_s: float) -> bool:
        """True when it is so soon enough after the last fault, which may be still to come."""
        while True:
            fault_at = self._last_fault_at()
            if self.timeline.run(fault_at + within_s, is_so):
                return True
            self.timeline.run(self.now + 10.0, lambda: not any(node.is_due for node in self.nodes))
            if self._last_fault_at() == fault_at:
                return False

    def _is_well(self) -> bool:
        views = self.views()
        is_due = any(node.is_due for node in self.nodes)
        if is_due or not views or view_differences(views):
            return False
        return len(self._acting()) == 1

    def _judge_the_end(self) -> None:
        told = self.told
        ups = [view for view in self.views().values() if view is not None and _is_up(view)]
        if not ups:
            # Verdicts may lawfully end all, and a seed that left in order founds nothing.
            told.is_empty = True
            return
        differences = view_differences(self.views())
        if differences:
            told.violations.append(f"no one view {told.well_s:.0f} s after the last fault: "
                                   + "; ".join(differences[:3]))  # fmt: skip
        elif len(self._acting()) != self._lawful(ups[0]):
            told.violations.append(
                f"{len(self._acting())} instances {told.well_s:.0f} s after the last fault"
            )

    def _lawful(self, view: MembershipView) -> int:
        """How many act once all is well: one, unless two sides could reach a quorum, or none."""
        strategy = self._strategy
        if isinstance(strategy, StaticQuorum):
            count = len(counted(view.members))
            if not strategy.quorum_size <= count <= strategy.members_max:
                return 0
        return 1

    def _acting(self) -> list[str]:
        """Nodes whose running instance has acted a moment ago."""
        fresh = {
            step.instance
            for step in self.log.steps[-400:]
            if step.kind != "stop" and self.now - step.at_s < 3 * TICK_S
        }
        return [i.node for i in self.log.running(SUBJECT) if i.number in fresh]

    def _supervise(self) -> None:
        """Whoever was downed is started again, as its exit code asks."""
        for node in self.nodes:
            ended = node.ended
            if not node.running and not node.is_due and ended is not None:
                if ended.exit_code in RESTARTED:
                    self.told.covered.add("restart")
                    self.restart(node, after_s=2.0 + 4.0 * self.dice.random())
                elif self._healed and ended.exit_code == 0 and node.name in self.core:
                    self.restart(node, after_s=1.0)

    def _watch(self) -> None:
        """After each step of the world: what happens only now and then is to be covered."""
        self._watch_gates()
        for node in self.nodes:
            if self._is_ending_though_spared(node):
                del self._spared[node.name]
                self.told.violations.append(
                    f"{node.name} ended at {self.now:.1f} s, though its side lives"
                )
            ends = node.running and node.ended is not None and node.ended.exit_code == 10
            if ends and (not self._decided_at or self.now - self._decided_at[-1] > NEAR_S):
                self._decided_at.append(self.now)

    def _watch_gates(self) -> None:
        if "suspension" not in self.told.covered:
            for instance in self.log.running(SUBJECT):
                gate = self[instance.node].system.runtime.gate
                if not self[instance.node].paused and not gate.is_open_now:
                    self.told.covered.add("suspension")

    def _judge_steps(self, store: SimStore) -> None:
        """A step under a lease that somebody who waits may have by now is one too many, whether
        anybody waits in this run or not: for that one's sake there is a lease."""
        for step in self.log.steps[self._judged :]:
            token = self.tokens.get(step.instance)
            is_act = step.kind != "stop" and token is not None
            if is_act and not store.covers(SUBJECT, token) and not self._is_beyond:
                self._is_beyond = True
                self.told.violations.append(
                    f"instance {step.instance} on {step.node} acted beyond its lease at "
                    f"{step.at_s:.3f} s"
                )
        self._judged = len(self.log.steps)

    def _is_ending_though_spared(self, node: SimNode) -> bool:
        ended, start = node.ended, self._spared.get(node.name)
        return start == node.starts and ended is not None and ended.exit_code == 10

    # helpers of the kinds

    def _spare(self, side: Sequence[str]) -> None:
        """One cut, for good, between two parts that are whole: of the one that lives by the
        strategy nobody is to end. Where a member comes or goes meanwhile, that is another matter.
        """
        view = self[self.leader].view
        if view is None or len(view.members) != len(self.core):
            return
        rest = [name for name in self.core if name not in side]
        for part in (list(side), rest):
            present = [member.id for member in view.members if member.name in part]
            if self._strategy is not None and self._strategy.survives(view.members, present):
                self._spared = {name: self[name].starts for name in part}

    @property
    def host(self) -> str:
        """Where the instance runs."""
        running = self.log.running(SUBJECT)
        return running[0].node if running else self.core[0]

    @property
    def leader(self) -> str:
        """The lowest running one."""
        return min(node.name for node in self.running)

    def _others(self, *names: str) -> list[str]:
        return [name for name in self.core if name not in names and self[name].running]

    def _some(self, least: int, most: int, among: Sequence[str]) -> list[str]:
        most = min(most, len(among))
        return self.dice.sample(list(among), self.dice.randint(min(least, most), most))

    def _wait(self, least_s: float = 8.0, most_s: float = 45.0) -> None:
        self.run_for(s=self.dice.uniform(least_s, most_s))

    def _split(self, side: Sequence[str]) -> None:
        rest = [name for name in (*self.core, *self.spare) if name not in side]
        if self.host in side and 2 * len(side) < len(self.core):
            self.told.covered.add("minority host")
        self.cut(list(side), from_=rest)

    def _call(self, name: str, work: Callable[[ActorSystem], object]) -> None:
        node = self[name]
        if node.running and not node.paused and node.built is not None and node.opened:
            node.call(work, node.system)

    def _leave(self, name: str) -> None:
        self.told.covered.add("leave")
        self._call(name, lambda system: _task(self[name], system.leave()))

    def _order_down(self, name: str, by: str) -> None:
        self.told.covered.add("order")
        address = self[name].address
        self._call(by, lambda system: _task(self[by], _quietly(system, address)))

    def _pause(self, name: str, s: float) -> None:
        if self[name].running and not self[name].paused:
            self.told.covered.add("pause")
            self.pause(name, s=s)

    def _draw_pause_s(self) -> float:
        return float(self.dice.choice([0.1, 0.6, 2.0, 4.0, 8.0, 20.0, 60.0]))

    # the kinds

    def _do_clean(self) -> None:
        side = self._some(1, len(self.core) // 2, self.core)
        self._split(side)
        self._spare(side)
        self._wait(5.0)

    def _do_lone_host(self) -> None:
        host = self.host
        self._split([host])
        self._spare([host])
        self._wait(5.0)

    def _do_staggered(self) -> None:
        """The links of a split go one by one."""
        side = self._some(1, (len(self.core) + 1) // 2, self.core)
        rest = [name for name in self.core if name not in side]
        if self.host in side and len(side) < len(rest):
            self.told.covered.add("minority host")
        within_s = self.dice.choice([1.0, 5.0, 12.0, 20.0])
        for one in side:
            for other in rest:
                self.after(within_s * self.dice.random(), self._cut_yet, one, other)
        self._wait(within_s + 5.0, within_s + 30.0)

    def _cut_yet(self, one: str, other: str) -> None:
        if not self._healed:
            self.cut([one], from_=[other])

    def _do_one_way(self) -> None:
        self.told.covered.add("one-way")
        side = self._some(1, len(self.core) - 1, self.core)
        rest = [name for name in self.core if name not in side]
        self.cut(side, to=rest)
        self._spare(side)
        self._wait(5.0)

    def _do_deaf_host(self) -> None:
        self.told.covered.add("one-way")
        host = self.host
        self.cut(self._others(host), to=[host])
        self._spare([host])
        self._wait()

    def _do_mute_host(self) -> None:
        self.told.covered.add("one-way")
        host = self.host
        self.cut([host], to=self._others(host))
        self._spare([host])
        self._wait()

    def _do_chain(self) -> None:
        """The host reaches some only through others."""
        self.told.covered.add("relay")
        host = self.host
        keeps = self._some(1, 2, self._others(host))
        self.cut([host], from_=[name for name in self._others(host) if name not in keeps])
        self._wait()

    def _do_link(self) -> None:
        self.told.covered.add("relay")
        host = self.host
        other = self.leader if self.leader != host else self.dice.choice(self._others(host))
        self.cut([host], from_=[other])
        self._wait()

    def _do_double(self) -> None:
        """Three parts, or one split after another."""
        first = self._some(1, max(1, len(self.core) // 2), self.core)
        self._split(first)
        self._wait(0.0, 15.0)
        left = self._others(*first)
        if len(left) > 1:
            self._split(self._some(1, len(left) - 1, left))
        self._wait(3.0, 30.0)

    def _do_heal_near(self) -> None:
        """It heals just when somebody decides."""
        side = [self.host] if self.dice.random() < 0.6 else self._some(1, 2, self.core)
        self._split(side)
        before_s = self.dice.uniform(6.8, 9.3)
        self.run_for(s=before_s)
        self.told.covered.add("heal near a decision")

    def _do_joins(self) -> None:
        """Two join, one leaves, while it splits."""
        self.told.covered.add("join")
        for name in self.spare:
            self.after(2.0 * self.dice.random(), self._start_yet, name)
        self.run_for(s=2.0 * self.dice.random())
        self._split(self._some(1, len(self.core) // 2, self.core))
        self._wait(2.0, 10.0)
        if self.dice.random() < 0.5 and self._others():
            self._leave(self.dice.choice(self._others()))
        self._wait(3.0, 30.0)

    def _start_yet(self, name: str) -> None:
        if not self[name].running and not self[name].is_due:
            self.start(name)

    def _do_leaves(self) -> None:
        leaver = self.dice.choice(self.core)
        if self.dice.random() < 0.5:
            self._leave(leaver)
            self.run_for(s=self.dice.choice([0.0, 0.001, 0.01, 0.1]))
        self._split(self._some(1, len(self.core) // 2, self.core))
        self.run_for(s=6.0 * self.dice.random())
        self._leave(self.dice.choice(self.core))
        self._wait()

    def _do_pause(self) -> None:
        name = self.host if self.dice.random() < 0.6 else self.dice.choice(self.core)
        pause_s = self._draw_pause_s()
        self._pause(name, pause_s)
        self._wait(5.0, 15.0 + pause_s)

    def _do_pause_and_split(self) -> None:
        name = self.host if self.dice.random() < 0.6 else self.dice.choice(self.core)
        pause_s = self._draw_pause_s()
        self._pause(name, pause_s)
        self.run_for(s=3.0 * self.dice.random())
        self._split(self._some(1, len(self.core) // 2, self.core))
        if self.dice.random() < 0.4:
            self.run_for(s=6.0 * self.dice.random())
            self._pause(self.dice.choice(self.core), self._draw_pause_s())
        self._wait(8.0, 30.0 + pause_s)

    def _do_leader_cut(self) -> None:
        """A cut falls on an action of the leader: one leaves, and the leader alone knows how far.

        Both sides would then count different members.
        """
        leader = self.leader
        leaver = self.dice.choice(self._others(leader))
        self._leave(leaver)
        moved = Status.EXITING if self.dice.random() < 0.8 else Status.LEAVING

        def has_moved() -> bool:
            view = self[leader].view
            found = [] if view is None else [m.status for m in view.members if m.name == leaver]
            return not found or found[0] >= moved

        self.timeline.run(self.now + 2.0, has_moved)
        rest = [name for name in (*self.core, *self.spare) if name != leader]
        side = [leader]
        if self.dice.random() < 0.3:
            side.append(self.dice.choice(self._others(leader)))
        self.cut(side, from_=[name for name in rest if name not in side], severed=True)
        if self.host in side and 2 * len(side) < len(self.core):
            self.told.covered.add("minority host")
        self._wait(12.0, 45.0)

    def _do_promotion_cut(self) -> None:
        """A cut falls on a promotion: the side of the leader counts one more than the other."""
        first, last = self.core[0], self.core[-1]
        self._leave(first)
        self.run_until(lambda: not self[first].running, within_s=30.0)
        self.run_until(lambda: bool(self._acting()), within_s=30.0 + self._store_s)
        self.run_for(s=1.0)
        self.start(first)
        leader = min(node.name for node in self.running if node.name != first)

        def is_promoted() -> bool:
            view = self[leader].view
            found = [] if view is None else [m for m in view.members if m.name == first]
            return any(m.status is Status.UP and m.up_number > 0 for m in found)

        self.timeline.run(self.now + 10.0, is_promoted)
        side = [last] if self.dice.random() < 0.8 else self._some(1, 2, self._others(first, leader))
        rest = [name for name in (*self.core, *self.spare) if name not in side]
        self.cut(side, from_=rest, severed=True)
        self._wait(12.0, 45.0)

    def _do_order(self) -> None:
        """An operator wants a reachable member down."""
        name = self.host if self.dice.random() < 0.7 else self.dice.choice(self.core)
        by = self.dice.choice(self._others(name))
        self._order_down(name, by)
        if self.dice.random() < 0.4:
            self._pause(self.dice.choice(self.core), self._draw_pause_s())
        self._wait()

    def _do_order_deaf(self) -> None:
        """An operator wants a host down that hears nothing."""
        host = self.host
        self.told.covered.add("one-way")
        self.cut(self._others(host), to=[host])
        self.run_for(s=self.dice.uniform(0.0, 1.2))
        self._order_down(host, self.dice.choice(self._others(host)))
        self._wait(5.0, 30.0)

    def _do_crash(self) -> None:
        self.crash(self.host if self.dice.random() < 0.7 else self.dice.choice(self.core),
                   silent=self.dice.random() < 0.6)  # fmt: skip
        self._wait()
        self._take_seats()

    def _do_crashes(self) -> None:
        """Several within some seconds."""
        for name in self._some(1, max(1, (len(self.core) - 1) // 2), self.core):
            self.after(8.0 * self.dice.random(), self._crash_yet, name)
        self._wait(15.0, 45.0)
        self._take_seats()

    def _crash_yet(self, name: str) -> None:
        if self[name].running:
            self.crash(name, silent=self.dice.random() < 0.7)

    def _take_seats(self) -> None:
        for name in self.core:
            if not self[name].running and not self[name].is_due:
                self.start(name)

    def _do_lossy(self) -> None:
        self.shape(loss=self.dice.choice([0.05, 0.1, 0.25]))
        if self.dice.random() < 0.5:
            self._split(self._some(1, len(self.core) // 2, self.core))
        self._wait(10.0, 40.0)

    def _do_starts(self) -> None:
        """The type is stopped everywhere and started everywhere at about one instant: whoever
        starts it does not know yet who else does, so several take themselves for elected."""
        dice = self.dice
        for name in self._others():
            self._call(name, lambda system: system.cluster.singleton.stop(type_name=SUBJECT))
        self.run_until(lambda: not self.log.running(SUBJECT), within_s=30.0 + self._store_s)
        self.run_for(s=dice.uniform(0.0, 3.0))
        within_s = dice.choice([0.0, 0.002, 0.02, 0.2])
        for name in self._others():
            self.after(within_s * dice.random(), self._call, name, self._start_subject)
        if self.timeline.run(self.now + 1.0, self._has_two_candidates):
            self.told.covered.add("two candidates")
        if dice.random() < 0.3:
            self._split(self._some(1, len(self.core) // 2, self.core))
        self._wait(5.0, 30.0)

    def _do_move(self) -> None:
        """An operator moves the instance, and at that moment its host withdraws. A successor is
        named in notices alone, which no gossip repeats: who missed them takes itself for elected.
        """
        dice, host = self.dice, self.host
        self.told.covered.add("move")
        others = self._others(host)
        to = others.pop(-1 if dice.random() < 0.7 else 0)
        self.shape(loss=dice.choice([0.0, 0.0, 0.3]))
        self._call(host, _give_work)  # so that it takes a while to stop, and others ask meanwhile
        self.run_for(s=0.1)
        missing = self._some(0, len(others), others)
        self.cut([host], to=missing)
        address = self[to].address
        self._call(host, lambda system: _task(self[host], _move_quietly(system, address)))
        self.run_for(s=dice.choice([0.001, 0.01, 0.1]))
        self.heal([host], to=missing)
        withdrawal = dice.choice(["leave", "stop", "stop", "crash", "none"])
        if withdrawal == "leave":
            self._leave(host)
        elif withdrawal == "stop":
            self._call(host, lambda system: system.cluster.singleton.stop(type_name=SUBJECT))
        elif withdrawal == "crash":
            self._crash_yet(host)
        if self.timeline.run(self.now + 1.0, self._has_two_candidates):
            self.told.covered.add("two candidates")
        self._wait(5.0, 20.0)
        self._take_seats()

    def _has_two_candidates(self) -> bool:
        """For the coverage only: this is what the managers say."""
        candidates = 0
        for node in self.running:
            if node.opened:
                shown = node.system.cluster.singletons_state()
                candidates += any(one["state"] in CANDIDATE for one in shown)
        return candidates > 1


def _task(node: SimNode, coroutine: object) -> None:
    node.loop.create_task(coroutine)  # type: ignore[arg-type]


def _give_work(system: ActorSystem) -> None:
    system.cluster.singleton.start_proxy(type_name=SUBJECT).tell(Toil(resumes=10, pause_s=0.1))


async def _move_quietly(system: ActorSystem, address: str) -> None:
    try:
        await system.cluster.singleton.move(type_name=SUBJECT, to=address, timeout_s=10.0)
    except (TimeoutError, LookupError):
        return


async def _quietly(system: ActorSystem, address: str) -> None:
    """An order that comes to nothing is no matter of the scenario."""
    try:
        await system.cluster.down(address, timeout_s=40.0)
    except (TimeoutError, LookupError):
        return


def _is_up(view: MembershipView) -> bool:
    me = view.by_id.get(view.self_id)
    return me is not None and me.status is Status.UP


def run_partition(
    seed: int, settings: Settings, nodes: int | None = None, *, leased: bool = False
) -> Run:
    """One run of the scenario."""
    with PartitionWorld(seed, settings, nodes, leased=leased) as world:
        return world.run_scenario()
