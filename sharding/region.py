"""What one node does about the shards of one type: its region.

Decides: which term it obeys, which shards it has, where messages for the others go, what is held,
and when nothing of the type runs here any more. Does not decide who gets a shard
(`sharding.coordinator`) nor what becomes of one message (`node.regions`, whose routes it sets).
Called by `node.core`.

The rules that keep an entity in one place: a region starts a shard only by an order under the term
it has reported to; it gives a shard up only when all its entities have terminated, never because it
was told that another has it; an order under a smaller term is refused, and its sender told why.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import MembershipView, NodeId, Status
from sharding.effects import (
    CloseShards,
    DrainRoute,
    Evacuated,
    FailAsks,
    OpenShards,
    RouteShards,
)
from sharding.events import (
    CoordinatorAt,
    EvacuateRequested,
    RegionNotAdmitted,
    RegionRequested,
    RouteDrained,
    ShardsClosed,
    ShardsWanted,
)
from sharding.messages import (
    NO_TERM,
    AskReport,
    BeginHandOff,
    Claims,
    HandOff,
    HandOffBegun,
    HomesAre,
    HostShards,
    RegionRefused,
    Report,
    ShardsStarted,
    ShardsStopped,
    Term,
    TermRefused,
    WantHomes,
)
from sharding.settings import ShardingSettings

HELLO_S, HELLO_MAX_S = 0.1, 2.0
DRAINS_MAX = 4096


@dataclass(slots=True)
class _Owned:
    """A shard that this region has."""

    term: Term
    stopping: bool = False


@dataclass(slots=True)
class _Drain:
    """A move that waits until what was sent to the former home has arrived there."""

    term: Term
    shards: tuple[int, ...]
    homes: set[NodeId] = field(default_factory=set)


def unhosted_report(message: AskReport) -> Report:
    """What a member says that knows no such type."""
    return Report(message.type_name, message.term, 0, hosts=False, is_region=False)


class RegionMachine:
    """The region of one type on one node."""

    def __init__(self, type_name: str, self_id: NodeId, settings: ShardingSettings) -> None:
        self.type_name = type_name
        self.self_id = self_id
        self.accepted = NO_TERM
        self.coordinator: NodeId | None = None
        self.refused_why = ""
        self.hosts_not_why = ""
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._owned: dict[int, _Owned] = {}
        self._homes: dict[int, NodeId] = {}
        self._held: set[int] = set()  # about to move: their home is no news before the move is over
        self._wanted: set[int] = set()
        self._orders: dict[int, int] = {}  # shard → number of its latest order under this term
        self._refused: dict[int, int] = {}  # shard → number of the latest that was not taken
        self._drains: dict[int, _Drain] = {}
        self._drain_number = 0
        self._others: frozenset[NodeId] = frozenset()  # members that are up and in reach
        self._unreachable: frozenset[NodeId] = frozenset()
        self._leaving = False
        self._evacuated = False
        self._give_up_at = math.inf
        self._ask_at = math.inf
        self._wait_s = HELLO_S
        self._reported_to = NO_TERM
        self._out: list[object] = []

    # the machine's door

    def handle(self, event: object, now: float) -> list[object]:
        """Take one fact; facts of other types change nothing."""
        match event:
            case MembershipView():
                self._on_view(event, now)
            case RegionRequested():
                self._on_request(event, now)
            case CoordinatorAt():
                self._on_coordinator(event.host, now)
            case ShardsWanted():
                self._on_wanted(event.shards, now)
            case ShardsClosed():
                self._on_closed(event.shards, now)
            case RouteDrained():
                self._on_drained(event.number)
            case EvacuateRequested():
                self._on_evacuate(event, now)
            case PeerMessage():
                self._on_message(event.sender, event.message, now)
            case _:
                self.counters["sharding: not for a region"] += 1
        return self._finish(now)

    def tick(self, now: float) -> list[object]:
        """Ask again; end the wait of a leaver."""
        if now >= self._give_up_at:
            self._give_up_at = math.inf
            self.counters["sharding: stopped without a move"] += len(self._running())
            self._close(self._running())
        if now >= self._ask_at:
            self._ask(now)
        return self._finish(now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        return min(self._ask_at, self._give_up_at)

    @property
    def needs_contact(self) -> bool:
        """True while entities run here, or may soon: they act only with contact."""
        return bool(self._owned) or (self._hosts and not self._leaving)

    @property
    def is_evacuated(self) -> bool:
        """True once nothing of the type runs here nor ever will."""
        return self._evacuated

    @property
    def _hosts(self) -> bool:
        return self._settings.hosts

    def _running(self) -> tuple[int, ...]:
        return tuple(sorted(s for s, owned in self._owned.items() if not owned.stopping))

    # requests of the node

    def _on_request(self, event: RegionRequested, now: float) -> None:
        """Started again: also a proxy that hosts from now on."""
        self._settings = event.settings
        # Stopped, and a proxy from now on: what is still here goes on leaving.
        self._leaving = self._leaving and bool(self._owned) and not self._hosts
        if not self._leaving:
            self._give_up_at = math.inf
        self._evacuated = False
        self._try_anew()
        self._reported_to = NO_TERM
        self._ask_soon(now)

    def _on_evacuate(self, event: EvacuateRequested, now: float) -> None:
        if not self._leaving:
            self._give_up_at = now + self._settings.leave_timeout_s
        self._leaving = True
        if event.at_once or not self._others:
            self._close(self._running())
        if not event.at_once:
            self._ask_soon(now)  # also with nothing here: it must not be given anything

    def _on_wanted(self, shards: tuple[int, ...], now: float) -> None:
        unknown = []
        for shard in shards:
            home = self._homes.get(shard)
            if shard in self._held or home is None or home in self._unreachable:
                unknown.append(shard)
            else:
                self._route((shard,), home)
        asked = tuple(shard for shard in unknown if shard not in self._held)
        self._wanted.update(unknown)
        if asked and self.coordinator is not None and not self.refused_why:
            self._tell(WantHomes(self.type_name, self._reported_to, asked, self._leaving))
        if self._wanted:
            self._ask_at = min(self._ask_at, now + self._settings.retry_s)

    def _on_closed(self, shards: tuple[int, ...], now: float) -> None:
        closed = tuple(shard for shard in shards if self._owned.pop(shard, None) is not None)
        lost = tuple(shard for shard in closed if self._homes.get(shard) == self.self_id)
        for shard in lost:
            del self._homes[shard]
        if lost:
            self._route(lost, None)
        if self.coordinator is not None:
            self._say_stopped(self.coordinator, self.accepted, closed)

    def _say_stopped(self, to: NodeId, term: Term, shards: tuple[int, ...]) -> None:
        numbers: dict[int, list[int]] = {}
        for shard in shards:
            numbers.setdefault(self._orders.get(shard, 0), []).append(shard)
        for number, those in sorted(numbers.items()):
            stopped = ShardsStopped(self.type_name, term, tuple(those), number=number)
            self._out.append(Send(to, stopped))

    # membership

    def _on_view(self, view: MembershipView, now: float) -> None:
        present = {member.id for member in view.members if member.status < Status.DOWN}
        self._others = frozenset(
            member.id
            for member in view.members
            if member.status is Status.UP and member.id not in view.unreachable
        ) - {self.self_id}
        gone = tuple(shard for shard, home in self._homes.items() if home not in present)
        for shard in gone:
            del self._homes[shard]
        if gone:
            self._route(gone, None)
        changed, self._unreachable = self._unreachable ^ view.unreachable, view.unreachable
        for node in sorted(changed):
            at_it = tuple(s for s, home in self._homes.items() if home == node)
            at_it = tuple(s for s in at_it if s not in self._held)
            if at_it:
                self._route(at_it, node)
            if node not in self._unreachable:
                self._wanted.difference_update(at_it)
        if gone and self._wanted:
            self._ask_soon(now)
        if self._leaving and not self._others and self._running():
            self._close(self._running())  # there is nobody to move them to

    def _on_coordinator(self, host: NodeId | None, now: float) -> None:
        if host == self.coordinator:
            return
        self.coordinator = host
        if host is not None:
            self._try_anew()
            self._ask_soon(now)

    def _try_anew(self) -> None:
        """What refused us before may not do so again."""
        if self.refused_why:
            self._out.append(FailAsks(self.type_name, ""))
        self.refused_why = self.hosts_not_why = ""

    # asking

    def _ask_soon(self, now: float) -> None:
        self._wait_s = HELLO_S
        self._ask(now, is_news=True)

    def _ask(self, now: float, *, is_news: bool = False) -> None:
        """Say that we are here, and ask for what is wanted; again until there is nothing to ask."""
        self._ask_at = math.inf
        if self.coordinator is None or self.refused_why:
            return
        is_known = self._reported_to.node == self.coordinator
        is_over = not self._wanted and not (self._leaving and self._owned)
        if is_known and is_over and not is_news:
            return
        # Also what is about to move: the news of its new home may have been lost.
        shards = tuple(sorted(self._wanted))
        self._tell(WantHomes(self.type_name, self._reported_to, shards, self._leaving))
        self._ask_at = now + self._wait_s
        self._wait_s = min(2 * self._wait_s, HELLO_MAX_S)

    # directives

    def _on_message(self, sender: NodeId, message: object, now: float) -> None:
        term = getattr(message, "term", None)
        if not isinstance(term, Term):
            self.counters["sharding: not for a region"] += 1
            return
        if term.node != sender:
            self.counters["sharding: directives of others refused"] += 1
            return
        if term < self.accepted:
            self.counters["sharding: earlier terms refused"] += 1
            self._out.append(Send(sender, TermRefused(self.type_name, self.accepted)))
            return
        if isinstance(message, AskReport):
            self._accept(term, now)
            return
        if term != self.accepted:
            # What we have is not known under this term: an order would be given without it.
            self.counters["sharding: orders before the report refused"] += 1
            return
        match message:
            case RegionRefused():
                self._on_refused(message)
            case HomesAre():
                self._on_homes(message, now)
            case HostShards():
                self._on_host(sender, message)
            case BeginHandOff():
                self._on_begin(sender, message)
            case HandOff():
                self._on_hand_off(sender, message)
            case _:
                self.counters["sharding: not for a region"] += 1

    def _accept(self, term: Term, now: float) -> None:
        """Report under this term; a new one ends what was begun under older ones."""
        if term > self.accepted:
            self.accepted = term
            self._drains.clear()
            self._orders.clear()
            self._refused.clear()
            for shard in self._held:
                self._homes.pop(shard, None)  # it may have moved: the last home is none to send to
            self._wanted |= self._held
            self._held.clear()
        self._reported_to = term
        claims: dict[tuple[Term, bool], list[int]] = {}
        for shard, owned in sorted(self._owned.items()):
            claims.setdefault((owned.term, owned.stopping), []).append(shard)
        report = Report(
            self.type_name,
            term,
            self._settings.shard_count,
            hosts=self._hosts and not self._leaving,
            is_region=True,
            leaving=self._leaving,
            claims=tuple(
                Claims(under, tuple(shards), stopping)
                for (under, stopping), shards in claims.items()
            ),
            agreement=self._settings.agreement,
        )
        self._out.append(Send(term.node, report))
        if self._wanted and not self.refused_why:
            shards = tuple(sorted(self._wanted))
            want = WantHomes(self.type_name, term, shards, self._leaving)
            self._out.append(Send(term.node, want))
            self._ask_at = min(self._ask_at, now + self._settings.retry_s)

    def _on_refused(self, message: RegionRefused) -> None:
        if message.may_send:
            if self.hosts_not_why != message.why:
                self.hosts_not_why = message.why
                self._out.append(Publish(RegionNotAdmitted(self.type_name, message.why)))
            return
        if self.refused_why != message.why:
            self.refused_why = message.why
            self._out.append(Publish(RegionNotAdmitted(self.type_name, message.why)))
            self._out.append(FailAsks(self.type_name, f"not admitted: {message.why}"))

    def _on_homes(self, message: HomesAre, now: float) -> None:
        named: set[int] = set()
        for homes in message.homes:
            shards = tuple(filter(self._is_shard, homes.shards))
            named.update(shards)
            if homes.node == self.self_id:
                absent = tuple(s for s in shards if s not in self._owned)
                # Their stop was not heard of: said again, they are given to somebody.
                self._say_stopped(message.term.node, message.term, absent)
                shards = tuple(s for s in shards if s in self._owned)
            else:
                self._displaced(shards, message.term)
            self._homes.update(dict.fromkeys(shards, homes.node))
            self._held.difference_update(shards)
            if homes.node not in self._unreachable:
                self._wanted.difference_update(shards)
            if shards:
                self._route(shards, homes.node)
        if message.whole:
            nowhere = tuple(s for s in self._homes if s not in named and s not in self._owned)
            for shard in nowhere:
                del self._homes[shard]
            if nowhere:
                self._route(nowhere, None)

    def _displaced(self, shards: tuple[int, ...], term: Term) -> None:
        """Another has what we have: ours is an orphan, and stops."""
        orphans = tuple(s for s in shards if s in self._owned and self._owned[s].term < term)
        if orphans:
            self.counters["sharding: orphans stopped"] += len(orphans)
            running = tuple(s for s in orphans if not self._owned[s].stopping)
            self._close(running, at_once=True)

    def _on_host(self, sender: NodeId, message: HostShards) -> None:
        is_out = not self._hosts or self._leaving
        refused = tuple(
            shard
            for shard in message.shards
            if shard not in self._owned
            and (is_out or message.number <= self._refused.get(shard, -1))
        )
        if refused:
            # For good: the coordinator gives them to another one, who may have them by the time
            # the same order comes again.
            self._refused.update(dict.fromkeys(refused, message.number))
            self.counters["sharding: orders refused while leaving"] += 1
            answer = ShardsStopped(
                self.type_name, message.term, refused, refused=True, number=message.number
            )
            self._out.append(Send(sender, answer))
        if not is_out:
            wanted = tuple(shard for shard in message.shards if shard not in refused)
            self._open(sender, message, wanted)

    def _open(self, sender: NodeId, message: HostShards, shards: tuple[int, ...]) -> None:
        opened, started = [], []
        for shard in self._in_time(shards, message.number):
            owned = self._owned.get(shard)
            if owned is not None and owned.stopping:
                continue  # when it has stopped the coordinator hears of it, and gives it anew
            if owned is None:
                self._owned[shard] = _Owned(message.term)
                opened.append(shard)
            else:
                owned.term = message.term
            started.append(shard)
            self._homes[shard] = self.self_id
            self._held.discard(shard)
            self._wanted.discard(shard)
        if opened:
            self._out.append(OpenShards(self.type_name, tuple(opened)))
            self._route(tuple(opened), self.self_id)
        if started:
            shards = tuple(started)
            confirmed = ShardsStarted(self.type_name, message.term, shards, message.number)
            self._out.append(Send(sender, confirmed))

    def _in_time(self, shards: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Those about which no later order has come: a link that is dialled anew may overtake."""
        known = tuple(filter(self._is_shard, shards))
        in_time = tuple(s for s in known if number >= self._orders.get(s, 0))
        self._orders.update(dict.fromkeys(in_time, number))
        self.counters["sharding: late orders"] += len(known) - len(in_time)
        return in_time

    def _on_begin(self, sender: NodeId, message: BeginHandOff) -> None:
        """Hold what is for these shards; what is on its way to their home has to arrive first."""
        shards = tuple(filter(self._is_shard, message.shards))
        elsewhere = tuple(s for s in shards if s not in self._owned and s not in self._held)
        homes = {self._homes[s] for s in elsewhere if s in self._homes}
        self._held.update(elsewhere)
        if elsewhere:
            self._route(elsewhere, None)
        waiting = {s for drain in self._drains.values() for s in drain.shards}
        begun = tuple(s for s in shards if s not in elsewhere and s not in waiting)
        if not homes or len(self._drains) >= DRAINS_MAX:
            begun = (*begun, *elsewhere)
            homes = set()
        if begun:
            self._out.append(Send(sender, HandOffBegun(self.type_name, message.term, begun)))
        for home in sorted(homes):
            self._drain_number += 1
            at_home = tuple(s for s in elsewhere if self._homes.get(s) == home)
            self._drains[self._drain_number] = _Drain(message.term, at_home)
            self._out.append(DrainRoute(self.type_name, self._drain_number, home))
        nowhere = tuple(s for s in elsewhere if s not in self._homes) if homes else ()
        if nowhere:
            self._out.append(Send(sender, HandOffBegun(self.type_name, message.term, nowhere)))

    def _on_drained(self, number: int) -> None:
        drain = self._drains.pop(number, None)
        if drain is None:
            return
        begun = HandOffBegun(self.type_name, drain.term, drain.shards)
        self._out.append(Send(drain.term.node, begun))

    def _on_hand_off(self, sender: NodeId, message: HandOff) -> None:
        """Stop their entities. Said again it changes nothing."""
        shards = self._in_time(message.shards, message.number)
        absent = tuple(shard for shard in shards if shard not in self._owned)
        self._say_stopped(sender, message.term, absent)
        running = (s for s in shards if s in self._owned and not self._owned[s].stopping)
        self._close(tuple(running), at_once=message.at_once)

    def _close(self, shards: tuple[int, ...], *, at_once: bool = False) -> None:
        if not shards:
            return
        for shard in shards:
            self._owned[shard].stopping = True
        force_after_s = self._settings.hand_off_timeout_s
        if self._leaving:
            force_after_s = min(force_after_s, self._settings.leave_timeout_s)
        if at_once:
            force_after_s = 0.0
        self._out.append(CloseShards(self.type_name, shards, force_after_s))

    # sending

    def _is_shard(self, shard: int) -> bool:
        return 0 <= shard < self._settings.shard_count

    def _tell(self, message: object) -> None:
        assert self.coordinator is not None
        self._out.append(Send(self.coordinator, message))

    def _route(self, shards: tuple[int, ...], home: NodeId | None) -> None:
        """What is for a home out of reach waits: it would be lost on the way, and the home may not
        act on it."""
        if home in self._unreachable:
            home = None
        self._out.append(RouteShards(self.type_name, shards, home))

    def _finish(self, now: float) -> list[object]:
        if self._leaving and not self._owned and not self._evacuated:
            self._evacuated = True
            self._give_up_at = math.inf
            self._out.append(Evacuated(self.type_name))
        effects, self._out = self._out, []
        return effects

    # what people see

    def owned(self) -> dict[int, bool]:
        """The shards that are here → whether they are stopping."""
        return {shard: owned.stopping for shard, owned in sorted(self._owned.items())}

    def homes(self) -> dict[int, NodeId]:
        """Where shards live, as far as this node knows."""
        return dict(sorted(self._homes.items()))

    def explain(self) -> str:
        """In words: what it waits for."""
        if self.refused_why:
            return f"not admitted: {self.refused_why}"
        if self._evacuated:
            return "nothing runs here any more"
        if self._leaving:
            return f"leaving: {len(self._owned)} shards are still here"
        if self.coordinator is None:
            return "no coordinator is known: known shards go on, new ones wait"
        if self._reported_to.node != self.coordinator:
            return f"waits for the coordinator at {self.coordinator.address} to ask what is here"
        if self._wanted:
            return f"asked {self.coordinator.address} where {len(self._wanted)} shards live"
        words = f"{len(self._owned)} shards here, {len(self._homes)} known"
        return f"{words}; hosts nothing: {self.hosts_not_why}" if self.hosts_not_why else words
