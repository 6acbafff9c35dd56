"""Which node hosts which shard of one type: the coordinator, of which the cluster has one.

Decides: the term under which it speaks, what the regions have told it, which shards are allocated
to whom and moved where, and when it must not allocate. Does not decide where the coordinator is: it
is a singleton, so the protection level and the lease are the singleton's (`Lead` and `Resign` come
from there through `node.core`), nor what a region does with its entities. Called by `node.core`.

A *term* is (number, node); its number is greater than that of every term any region has accepted,
and than the fencing token of its lease. Under a new term all members are asked what they have, the
silent ones again and again: until each has reported, or is gone and can be running nothing any
more, no shard is allocated that nobody claims, while those that are known go on. At level none
silence ends the wait after `hand_over_timeout_s`, with a warning: two may then run one entity.

Before each allocation `may_act` is asked (`check_alive` of the lease, contact with the others). A
coordinator that may not act says nothing at all; when it may again it begins a new term, for it
cannot know what happened meanwhile.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from sharding.allocation import (
    evening_moves,
    least_shard,
    rendezvous,
    rendezvous_moves,
    round_limit,
)
from sharding.events import (
    Lead,
    RebalanceRequested,
    RegionRequested,
    Resign,
    ShardsMoved,
    ShardsNotProven,
    TermBegan,
)
from sharding.messages import (
    NO_TERM,
    AskReport,
    BeginHandOff,
    Claims,
    HandOff,
    HandOffBegun,
    Homes,
    HomesAre,
    HostShards,
    RebalanceAsk,
    RegionRefused,
    Report,
    ShardsStarted,
    ShardsStopped,
    Term,
    TermRefused,
    WantHomes,
)
from sharding.settings import ShardingSettings

DOWNED_CAUSES = (Cause.DOWNED, Cause.ORDERED)
FORMER_MAX = 1024
REFUSALS_AT_ONCE = 2  # in one time of office


class Phase(enum.Enum):
    """What a coordinator is at."""

    IDLE = "idle"  # it is not here
    SUSPENDED = "suspended"  # it is here and may not act
    REBUILDING = "rebuilding"  # not all have reported under its term
    LEADING = "leading"


class Shard(enum.Enum):
    """Where a shard is in its life; one without any state is allocated to nobody."""

    STARTING = "starting"  # its node has been told and has not confirmed
    RUNNING = "running"
    BEGINNING = "hand-off begins"  # the regions are told to hold what is for it
    STOPPING = "stopping"  # its node is told to stop its entities


@dataclass(slots=True)
class _Region:
    """What a member has reported under the present term."""

    hosts: bool
    is_region: bool
    leaving: bool = False
    refused_why: str = ""


@dataclass(slots=True)
class _Held:
    """A shard that somebody has. `losers` claim it too and have to stop first."""

    state: Shard
    node: NodeId
    term: Term
    order: int = 0  # number of the latest order about it
    sent_at: float = -math.inf
    silent: set[NodeId] = field(default_factory=set)  # regions that have not begun to hold
    begun_at: float = 0.0
    losers: set[NodeId] = field(default_factory=set)
    to: NodeId | None = None  # whom it is meant for, once it has stopped


class CoordinatorMachine:
    """The coordinator of one type on one node; idle until `Lead`.

    may_act: asked before each allocation.
    """

    def __init__(
        self,
        type_name: str,
        self_id: NodeId,
        settings: ShardingSettings,
        may_act: Callable[[], bool],
    ) -> None:
        self.type_name = type_name
        self.self_id = self_id
        self.phase = Phase.IDLE
        self.term = NO_TERM
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._may_act = may_act
        self._view: MembershipView | None = None
        self._number = 0  # the greatest that is known of
        self._waiting: dict[NodeId, float] = {}  # who has not reported → since when
        self._regions: dict[NodeId, _Region] = {}
        self._shards: dict[int, _Held] = {}
        self._wanted: dict[int, NodeId | None] = {}  # to be allocated → to whom, if it may
        self._lost: dict[NodeId, float] = {}  # gone without proof, or silent → waited for until
        self._unproven: set[NodeId] = set()
        self._resend_at = math.inf
        self._rebalance_at = math.inf
        self._repeat_at = math.inf
        self._poll_at = math.inf
        self._begins_end_at = math.inf
        self._term_at = math.inf  # a new term begins then
        self._refusals = 0
        self._step = 1
        self._announce: set[int] = set()
        self._out: list[object] = []

    # the machine's door

    def handle(self, event: object, now: float) -> list[object]:
        """Take one fact; facts of other types change nothing."""
        match event:
            case MembershipView():
                self._on_view(event, now)
            case Lead():
                self._lost = {node: until for node, until in self._lost.items() if until > now}
                self._number = max(self._number, event.floor)
                self._refusals = 0
                self._begin_term(now, "it is here now")
            case Resign():
                self._resign()
            case PeerMessage():
                if self._is_able(now):
                    self._on_message(event.sender, event.message, now)
            case RebalanceRequested():
                if self._is_able(now):
                    self._rebalance(now, by_order=True)
            case RegionRequested():
                self._on_request(event, now)
            case _:
                self.counters["sharding: not for a coordinator"] += 1
        return self._finish(now)

    def tick(self, now: float) -> list[object]:
        """Send again what was not answered, end waits, rebalance."""
        if self.phase is not Phase.IDLE and self._is_able(now):
            if now >= self._term_at:
                self._begin_term(now, "a later term is known")
            self._end_waits(now)
            if now >= self._resend_at:
                self._send_again(now)
            if now >= self._rebalance_at:
                self._rebalance_at = now + self._settings.rebalance_interval_s
                self._rebalance(now)
            if now >= self._repeat_at:
                self._repeat_homes(now)
        return self._finish(now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        if self.phase is Phase.IDLE:
            return math.inf
        if self.phase is Phase.SUSPENDED:
            return self._poll_at
        return min(
            self._resend_at,
            self._rebalance_at,
            self._repeat_at,
            self._begins_end_at,
            self._term_at,
            min(self._lost.values(), default=math.inf),
            self._silence_ends_at(),
        )

    def _on_request(self, event: RegionRequested, now: float) -> None:
        """The type was started here again, maybe otherwise; those of a proxy do not count."""
        before = self._settings
        if not event.settings.hosts:
            return
        self._settings = event.settings
        differs = before.agreement != event.settings.agreement
        if differs and self.phase in (Phase.REBUILDING, Phase.LEADING):
            self._begin_term(now, "what all that host must have alike is another here")

    # terms

    def _is_able(self, now: float) -> bool:
        """Whether it may act now; a new term begins when it may again."""
        if self.phase is Phase.IDLE:
            return False
        if self._may_act():
            if self.phase is Phase.SUSPENDED:
                self._begin_term(now, "it may act again")
            return True
        if self.phase is not Phase.SUSPENDED:
            self.phase = Phase.SUSPENDED
            self.counters["sharding: suspended"] += 1
            self._forget()
        self._poll_at = now + self._settings.authority_poll_s
        return False

    def _begin_term(self, now: float, why: str) -> None:
        self._forget()
        if not self._may_act():
            self.phase = Phase.SUSPENDED
            self._poll_at = now + self._settings.authority_poll_s
            return
        self._number += 1
        self.term = Term(self._number, self.self_id)
        self.phase = Phase.REBUILDING
        self.counters["sharding: terms"] += 1
        self._out.append(Publish(TermBegan(self.type_name, self._number, why)))
        for member in self._members():
            self._waiting[member.id] = now
            self._lost.pop(member.id, None)  # its silence begins anew
        self._resend_at = now
        self._send_again(now)
        self._check_complete(now)

    def _resign(self) -> None:
        self._forget()
        self.phase = Phase.IDLE

    def _forget(self) -> None:
        """All that was said under a term; a passive coordinator keeps nothing that could act."""
        self._waiting.clear()
        self._regions.clear()
        self._shards.clear()
        self._wanted.clear()
        self._unproven.clear()
        self._announce.clear()
        self._out = [effect for effect in self._out if isinstance(effect, Publish)]
        self._resend_at = self._rebalance_at = self._poll_at = math.inf
        self._begins_end_at = self._term_at = self._repeat_at = math.inf

    def _members(self) -> list[Member]:
        """Who may have shards: every member that is not down. Whether its record shows the type
        does not matter, for it may be on its way."""
        view = self._view
        if view is None:
            return []
        return [member for member in view.members if member.status < Status.DOWN]

    def _check_complete(self, now: float) -> None:
        if self.phase is not Phase.REBUILDING or self._waiting or self._lost:
            return
        self.phase = Phase.LEADING
        self._rebalance_at = now + self._settings.rebalance_interval_s
        self._say_homes(now)
        if self._settings.eager:
            self._want(range(self._settings.shard_count))
        self._allocate_wanted(now)
        self._move_from_leavers(now)

    def _say_homes(self, now: float) -> None:
        self._repeat_at = now + self._settings.homes_interval_s
        homes = self._homes(self._shards)
        for node in self._listeners():
            self._send(node, HomesAre(self.type_name, self.term, homes, whole=True))

    def _repeat_homes(self, now: float) -> None:
        """What changes is told once, and may have been lost; not while something moves."""
        if all(map(self._is_settled_at_home, self._shards)):
            self._say_homes(now)
        else:
            self._repeat_at = now + self._settings.retry_s

    # membership

    def _on_view(self, view: MembershipView, now: float) -> None:
        before, self._view = self._view, view
        if self.phase in (Phase.IDLE, Phase.SUSPENDED) or not self._is_able(now):
            self._note_gone(before, now)
            return
        present = {member.id for member in self._members()}
        known = {*self._regions, *self._waiting, *(held.node for held in self._shards.values())}
        for node in sorted(known - present):
            self._gone(node, self._is_settled(node), now)
        for node in sorted(node for node in self._lost if self._is_settled(node)):
            self._lose(node, now)
        for node in [node for node in self._lost if node in present - view.unreachable]:
            del self._lost[node]  # it speaks for itself again
        if before is not None:
            back = (before.unreachable - view.unreachable) & present
            if back & (known | self._unproven):
                # What was said to it is lost, and at level none both sides may have allocated.
                self._begin_term(now, "a member is back in reach")
                return
        for node in sorted(present - known):
            if self.phase is Phase.REBUILDING and node not in self._unproven:
                self._waiting.setdefault(node, now)
            self._send(node, AskReport(self.type_name, self.term))
        if not self._settings.downing:
            self._note_silent(view, present, now)
        self._check_complete(now)
        self._allocate_wanted(now)

    def _note_gone(self, before: MembershipView | None, now: float) -> None:
        """Not acting now: whoever goes without proof is waited for all the same, should a term
        begin soon, for nobody knows then what it had."""
        present = {member.id for member in self._members()}
        former = [m.id for m in before.members if m.status < Status.DOWN] if before else []
        for node in former:
            if node not in present and len(self._lost) < FORMER_MAX:
                self._lost.setdefault(node, now + self._settings.hand_over_timeout_s)
        self._lost = {
            node: until
            for node, until in self._lost.items()
            if until > now and not self._is_settled(node)
        }

    def _is_settled(self, node: NodeId) -> bool:
        """True when nothing of it acts any more: as for the takeover of a singleton."""
        view = self._view
        if view is None:
            return False
        member = view.by_id.get(node)
        cause = view.gone.get(node) if member is None else member.cause
        if cause is None:
            return False
        never_had_any = cause is Cause.NEVER_UP  # shards are given to members that are up
        return (
            cause.is_proof or never_had_any or (self._settings.downing and cause in DOWNED_CAUSES)
        )

    def _gone(self, node: NodeId, is_settled: bool, now: float) -> None:
        if is_settled or node == self.self_id:
            self._lose(node, now)
            return
        # Its shards are not allocated anew before nothing of it can be acting.
        self._waiting.pop(node, None)
        if len(self._lost) < FORMER_MAX:
            self._lost.setdefault(node, now + self._settings.hand_over_timeout_s)

    def _note_silent(self, view: MembershipView, present: set[NodeId], now: float) -> None:
        """Level none: nobody decides about the unreachable, so their silence does."""
        wait_s = self._settings.hand_over_timeout_s
        owners = {held.node for held in self._shards.values()}
        for node in sorted((view.unreachable & present & owners) - self._unproven):
            self._lost.setdefault(node, now + wait_s)

    def _silence_ends_at(self) -> float:
        if self._settings.downing or self.phase is not Phase.REBUILDING:
            return math.inf
        since = min(self._waiting.values(), default=math.inf)
        return since + self._settings.hand_over_timeout_s

    def _end_waits(self, now: float) -> None:
        wait_s = self._settings.hand_over_timeout_s
        silent = [node for node, until in self._lost.items() if now >= until]
        if not self._settings.downing:
            silent += [node for node, since in self._waiting.items() if now >= since + wait_s]
        if silent:
            self._unproven.update(silent)
            peers = tuple(sorted({*silent}))
            self._out.append(Publish(ShardsNotProven(self.type_name, peers, wait_s)))
            for node in peers:
                self._lose(node, now)
        if now >= self._begins_end_at:
            self._end_begins(now)
        self._check_complete(now)

    def _end_begins(self, now: float) -> None:
        """Whoever does not say that it holds what is for a moving shard is not waited for: what it
        still sends there is passed on."""
        self._begins_end_at = math.inf
        for shard, held in list(self._shards.items()):
            if held.state is not Shard.BEGINNING:
                continue
            end_at = held.begun_at + self._settings.begin_timeout_s
            if now >= end_at:
                self.counters["sharding: regions did not begin in time"] += len(held.silent)
                held.silent.clear()
                self._stop_there(shard, held, now)
            else:
                self._begins_end_at = min(self._begins_end_at, end_at)

    def _lose(self, node: NodeId, now: float) -> None:
        """Nothing of it acts any more, or nobody waits for it any longer."""
        self._lost.pop(node, None)
        self._waiting.pop(node, None)
        self._regions.pop(node, None)
        for shard, held in list(self._shards.items()):
            held.silent.discard(node)
            held.losers.discard(node)
            if held.node == node:
                self._set_free(shard, held, now)
                continue
            if held.state is Shard.BEGINNING and not held.silent:
                self._stop_there(shard, held, now)
            elif held.state is Shard.RUNNING and not held.losers:
                self._announce.add(shard)
        self._check_complete(now)
        self._allocate_wanted(now)

    # what regions say

    def _on_message(self, sender: NodeId, message: object, now: float) -> None:
        match message:
            case Report():
                self._on_report(sender, message, now)
            case TermRefused():
                if message.accepted >= self.term:
                    self._number = max(self._number, message.accepted.number)
                    self._refusals += 1
                    # Two at level none would outbid each other for as long as both are there.
                    wait_s = 0.0 if self._refusals <= REFUSALS_AT_ONCE else self._settings.retry_s
                    self._term_at = min(self._term_at, now + wait_s)
                    if wait_s == 0.0:
                        self._begin_term(now, f"{sender.address} has heard of a later term")
            case WantHomes():
                self._on_want(sender, message, now)
            case RebalanceAsk():
                self._rebalance(now, by_order=True)
            case ShardsStarted() if message.term == self.term:
                self._on_started(sender, message, now)
            case HandOffBegun() if message.term == self.term:
                self._on_begun(sender, message, now)
            case ShardsStopped() if message.term == self.term:
                self._on_stopped(sender, message, now)
            case _:
                self.counters["sharding: late answers"] += 1

    def _on_report(self, sender: NodeId, report: Report, now: float) -> None:
        if report.term != self.term:
            self.counters["sharding: late answers"] += 1
            return
        count = self._settings.shard_count
        is_refused = report.is_region and report.shard_count != count
        why = ""
        if is_refused:
            why = (
                f"it has {report.shard_count} shards of {self.type_name}, the cluster has {count}: "
                "start all members with the same shard_count"
            )
            self._send(sender, RegionRefused(self.type_name, self.term, why))
        differs = report.hosts and not is_refused and report.agreement != self._settings.agreement
        if differs:
            why = (
                f"it has {report.agreement or 'nothing remembered'}, the cluster has "
                f"{self._settings.agreement or 'nothing remembered'}: start all members alike"
            )
            refused = RegionRefused(self.type_name, self.term, why, may_send=True)
            self._send(sender, refused)
        is_first = sender not in self._regions
        self._regions[sender] = _Region(
            report.hosts and not is_refused and not differs,
            report.is_region and not is_refused,
            report.leaving or differs,  # what it has from another time is moved away
            why if is_refused else "",
        )
        self._waiting.pop(sender, None)
        # A report that comes late or twice must not undo what was decided since.
        if is_first and not is_refused:
            self._merge(sender, report.claims, now)
        if self.phase is Phase.LEADING and self._regions[sender].is_region:
            homes = self._homes(self._shards)
            self._send(sender, HomesAre(self.type_name, self.term, homes, whole=True))
        self._check_complete(now)
        if self.phase is Phase.LEADING:
            self._allocate_wanted(now)
            self._move_from_leavers(now)

    def _merge(self, sender: NodeId, claims: Iterable[Claims], now: float) -> None:
        for claim in claims:
            for shard in claim.shards:
                if not 0 <= shard < self._settings.shard_count:
                    self.counters["sharding: shards out of range"] += 1
                    continue
                self._claim(shard, sender, claim, now)

    def _claim(self, shard: int, sender: NodeId, claim: Claims, now: float) -> None:
        """Of two claims the one under the higher term wins; the other has to stop first."""
        state = Shard.STOPPING if claim.stopping else Shard.RUNNING
        held = self._shards.get(shard)
        if held is None:
            self._shards[shard] = _Held(state, sender, claim.term)
            self._wanted.pop(shard, None)  # it was asked for before its owner had reported
        elif held.node != sender:
            self.counters["sharding: claimed twice"] += 1
            # Whoever was given it under this very term has it, whatever another had before.
            if (claim.term, sender) > (held.term, held.node) and held.term < self.term:
                losers = held.losers | {held.node}
                self._shards[shard] = _Held(state, sender, claim.term, losers=losers)
            else:
                held.losers.add(sender)
        else:
            return
        held = self._shards[shard]
        for loser in sorted(held.losers):
            self._end_there(loser, shard)
        if held.state is Shard.STOPPING:
            held.order = self._step
            self._send(held.node, HandOff(self.type_name, self.term, (shard,), held.order))
        self._arm(now)

    def _end_there(self, loser: NodeId, shard: int) -> None:
        order = HandOff(self.type_name, self.term, (shard,), self._step, at_once=True)
        self._send(loser, order)

    def _on_want(self, sender: NodeId, message: WantHomes, now: float) -> None:
        region = self._regions.get(sender)
        if region is None or message.term != self.term:
            # It has to report under this term before anything it is told is of use.
            self._send(sender, AskReport(self.type_name, self.term))
        elif region.refused_why:
            self._send(sender, RegionRefused(self.type_name, self.term, region.refused_why))
            return
        elif message.leaving and not region.leaving:
            region.leaving = True
            self._move_from_leavers(now)
        count = self._settings.shard_count
        shards = [shard for shard in message.shards if 0 <= shard < count]
        known = [shard for shard in shards if self._is_settled_at_home(shard)]
        if known and region is not None and message.term == self.term:
            homes = self._homes(known)
            self._send(sender, HomesAre(self.type_name, self.term, homes))
        self._want(shards)
        self._allocate_wanted(now)

    def _want(self, shards: Iterable[int], to: NodeId | None = None) -> None:
        for shard in shards:
            if shard not in self._shards and (to is not None or shard not in self._wanted):
                self._wanted[shard] = to

    def _is_settled_at_home(self, shard: int) -> bool:
        held = self._shards.get(shard)
        return held is not None and held.state is Shard.RUNNING and not held.losers

    def _on_started(self, sender: NodeId, message: ShardsStarted, now: float) -> None:
        started = []
        for shard in message.shards:
            held = self._shards.get(shard)
            is_its = held is not None and held.node == sender and held.order == message.number
            if is_its and held is not None and held.state is Shard.STARTING:
                held.state = Shard.RUNNING
                started.append(shard)
                if not held.losers:
                    self._announce.add(shard)
        if started:
            self._out.append(Publish(ShardsMoved(self.type_name, tuple(started), sender)))
        self._move_from_leavers(now)

    def _on_begun(self, sender: NodeId, message: HandOffBegun, now: float) -> None:
        for shard in message.shards:
            held = self._shards.get(shard)
            if held is not None and held.state is Shard.BEGINNING:
                held.silent.discard(sender)
                if not held.silent:
                    self._stop_there(shard, held, now)

    def _on_stopped(self, sender: NodeId, message: ShardsStopped, now: float) -> None:
        self._note_refusal(sender, message)
        for shard in message.shards:
            held = self._shards.get(shard)
            if held is None or (held.node == sender and message.number < held.order):
                continue
            # A late "stopped" must not undo a new start at the same node; a refusal may.
            ends = Shard.STARTING if message.refused else Shard.STOPPING
            if held.node == sender and held.state is ends:
                self._set_free(shard, held, now)
            elif held.node == sender and held.state is Shard.RUNNING:
                # It gave it up by itself, or says so late: it stops, or says so again.
                self._stop_there(shard, held, now)
            elif sender in held.losers:
                held.losers.discard(sender)
                if not held.losers and held.state is Shard.RUNNING:
                    self._announce.add(shard)
        self._allocate_wanted(now)

    def _note_refusal(self, sender: NodeId, message: ShardsStopped) -> None:
        """Whoever refuses what it was given leaves, or left when it said so: it is given nothing
        more before it has reported again."""
        region = self._regions.get(sender)
        if region is None or not message.refused:
            return
        for shard in message.shards:
            held = self._shards.get(shard)
            is_news = held is not None and held.node == sender and held.order == message.number
            if is_news and held is not None and held.state is Shard.STARTING:
                region.leaving = True
                self._send(sender, AskReport(self.type_name, self.term))
                return

    def _set_free(self, shard: int, held: _Held, now: float) -> None:
        """Whoever had it has not any more: it is nobody's, unless others claim it too."""
        if held.losers:
            last = min(held.losers)
            losers = held.losers - {last}
            self._shards[shard] = _Held(Shard.STOPPING, last, held.term, self._step, losers=losers)
            self._arm(now)
        else:
            del self._shards[shard]
            self._want((shard,), held.to)

    # allocation and moves

    def _able(self) -> dict[NodeId, int]:
        """Who may get a shard → how many it has, those that are on their way to it included."""
        view = self._view
        if view is None:
            return {}
        able = {}
        for node, region in self._regions.items():
            member = view.by_id.get(node)
            is_well = member is not None and member.status is Status.UP
            if is_well and region.hosts and not region.leaving and node not in view.unreachable:
                able[node] = 0
        for held in self._shards.values():
            node = held.to or held.node
            if node in able:
                able[node] += 1
        return able

    def _allocate_wanted(self, now: float) -> None:
        """Give shards that nobody has to somebody, as far as that can be done now."""
        if self.phase is not Phase.LEADING or not self._wanted:
            return
        able = self._able()
        for shard, to in sorted(self._wanted.items(), key=lambda item: item[0]):
            node = to if to is not None and to in able else self._chosen(shard, able)
            # Asked before each: it may have ended in the middle of this very step.
            if node is None or not self._is_able(now):
                return
            assert shard not in self._shards, f"shard {shard} is somebody's"
            del self._wanted[shard]
            able[node] += 1
            self._shards[shard] = _Held(Shard.STARTING, node, self.term, self._step, now)
            self._send(node, HostShards(self.type_name, self.term, (shard,), self._step))
            self._arm(now)
            self.counters["sharding: allocated"] += 1

    def _chosen(self, shard: int, able: dict[NodeId, int]) -> NodeId | None:
        if self._settings.allocation == "rendezvous":
            return rendezvous(able.keys(), self.type_name, shard)
        return least_shard(able)

    def _rebalance(self, now: float, *, by_order: bool = False) -> None:
        view = self._view
        if self.phase is not Phase.LEADING or view is None or not self._is_quiet(view):
            if by_order:
                self.counters["sharding: rebalance put off"] += 1
            return
        settings = self._settings
        owned: dict[NodeId, list[int]] = {node: [] for node in self._able()}
        for shard, held in self._shards.items():
            if held.node in owned:
                owned[held.node].append(shard)
        limit = round_limit(
            settings.shard_count,
            relative=settings.rebalance_relative_limit,
            absolute=settings.rebalance_absolute_limit,
        )
        if settings.allocation == "rendezvous":
            moves = rendezvous_moves(owned, self.type_name, limit)
        else:
            moves = evening_moves(owned, limit)
        for shard, to in moves.items():
            self._begin_move(shard, to, now)

    def _is_quiet(self, view: MembershipView) -> bool:
        """Nothing moves yet, and nobody comes, goes or is unreachable."""
        if view.unreachable or self._lost or self._wanted:
            return False
        if any(member.status is not Status.UP for member in self._members()):
            return False
        return all(self._is_settled_at_home(shard) for shard in self._shards)

    def _move_from_leavers(self, now: float) -> None:
        leavers = {node for node, region in self._regions.items() if region.leaving}
        # Also where nobody else may host: then what is for its shards waits until somebody may.
        if not leavers or self.phase is not Phase.LEADING:
            return
        for shard, held in list(self._shards.items()):
            if held.node not in leavers or held.losers:
                continue
            if held.state is Shard.RUNNING:
                self._begin_move(shard, None, now)
            elif held.state is Shard.STARTING:
                self._stop_there(shard, held, now)  # it takes none any more: it will not confirm

    def _begin_move(self, shard: int, to: NodeId | None, now: float) -> None:
        held = self._shards[shard]
        held.state, held.to, held.begun_at, held.sent_at = Shard.BEGINNING, to, now, now
        unreachable = self._view.unreachable if self._view is not None else frozenset()
        held.silent = {node for node in self._listeners() if node not in unreachable}
        for node in sorted(held.silent):
            self._send(node, BeginHandOff(self.type_name, self.term, (shard,)))
        self._arm(now)
        self._begins_end_at = min(self._begins_end_at, now + self._settings.begin_timeout_s)
        self.counters["sharding: moves"] += 1
        if not held.silent:
            self._stop_there(shard, held, now)

    def _stop_there(self, shard: int, held: _Held, now: float) -> None:
        held.state, held.sent_at, held.order = Shard.STOPPING, now, self._step
        self._send(held.node, HandOff(self.type_name, self.term, (shard,), held.order))
        self._arm(now)

    # sending

    def _listeners(self) -> list[NodeId]:
        return [node for node, region in self._regions.items() if region.is_region]

    def _homes(self, shards: Iterable[int]) -> tuple[Homes, ...]:
        at: dict[NodeId, list[int]] = {}
        for shard in shards:
            if self._is_settled_at_home(shard):
                at.setdefault(self._shards[shard].node, []).append(shard)
        return tuple(Homes(node, tuple(sorted(at[node]))) for node in sorted(at))

    def _send(self, to: NodeId, message: object) -> None:
        self._out.append(Send(to, message))

    def _arm(self, now: float) -> None:
        self._resend_at = min(self._resend_at, now + self._settings.retry_s)

    def _send_again(self, now: float) -> None:
        """Whatever has waited for an answer for `retry_s`; there is nothing that is sent once."""
        retry_s = self._settings.retry_s
        for node in self._waiting:
            self._send(node, AskReport(self.type_name, self.term))
        is_open = bool(self._waiting)
        for shard, held in self._shards.items():
            if held.state is not Shard.RUNNING or held.losers:
                is_open = True
            if now < held.sent_at + retry_s:
                continue
            held.sent_at = now
            if held.state is Shard.STARTING:
                self._send(held.node, HostShards(self.type_name, self.term, (shard,), held.order))
            elif held.state is Shard.STOPPING:
                self._send(held.node, HandOff(self.type_name, self.term, (shard,), held.order))
            elif held.state is Shard.BEGINNING:
                for node in sorted(held.silent):
                    self._send(node, BeginHandOff(self.type_name, self.term, (shard,)))
            for node in sorted(held.losers):
                self._end_there(node, shard)
        self._resend_at = now + retry_s if is_open else math.inf

    def _finish(self, now: float) -> list[object]:
        if self._announce:
            homes = self._homes(sorted(self._announce))
            self._announce.clear()
            for node in self._listeners() if homes else ():
                self._send(node, HomesAre(self.type_name, self.term, homes))
        self._step += 1
        effects, self._out = self._out, []
        return _joined(effects)

    # what people see

    def shards(self) -> dict[int, tuple[str, NodeId]]:
        """Every shard that somebody has → its state in a word, and who."""
        return {shard: (held.state.value, held.node) for shard, held in self._shards.items()}

    def explain(self, now: float) -> str:
        """In words: what it is at, and what it waits for."""
        if self.phase is Phase.IDLE:
            return "the coordinator is not here"
        if self.phase is Phase.SUSPENDED:
            return "it may not act now, so nothing is allocated; shards that are allocated go on"
        if self.phase is Phase.REBUILDING:
            silent = sorted({*self._waiting, *self._lost})
            names = ", ".join(node.address for node in silent[:8])
            return (
                f"term {self._number}: {names} have not said what they have, and may be running "
                "shards: nothing new is allocated until they do, or are proven gone"
            )
        moves = sum(held.state is not Shard.RUNNING for held in self._shards.values())
        words = f"term {self._number}: {len(self._shards)} shards are allocated"
        if moves:
            words += f", {moves} of them on the move"
        if self._lost:
            names = ", ".join(node.address for node in sorted(self._lost))
            words += f"; {names} may still run shards"
        if self._wanted:
            words += f"; {len(self._wanted)} wait: no member that may host is up and reachable"
        return words


_JOINABLE = (HostShards, BeginHandOff, HandOff)


def _joined(effects: list[object]) -> list[object]:
    """Directives of one step to one node become one message, in the place of their first."""
    joined: dict[tuple[NodeId, object], int] = {}
    result: list[object] = []
    for effect in effects:
        message = effect.message if isinstance(effect, Send) else None
        if not isinstance(effect, Send) or not isinstance(message, _JOINABLE):
            result.append(effect)
            continue
        key = (effect.to, replace(message, shards=()))
        at = joined.get(key)
        if at is None:
            joined[key] = len(result)
            result.append(effect)
            continue
        first = result[at]
        assert isinstance(first, Send)
        assert isinstance(first.message, _JOINABLE)
        shards = tuple(sorted({*first.message.shards, *message.shards}))
        result[at] = Send(effect.to, replace(first.message, shards=shards))
    return result
