"""The manager of one singleton type on one node: when it hosts, when it stops, what it answers.

Decides who of the members may run the instance and proves, before starting one, that no other
runs. Does not decide who is a member (`gossip`), how an actor is started or stopped (the shell
answers `StartInstance` and `StopInstance` with facts), nor how messages reach the host
(`node.proxy` follows `RouteSingleton`). Called by `node.core`; one machine per type on every node
that hosts the type or holds a proxy of it. Before `StartRequested` it only answers and routes.

**Holding.** A member *holds the office* from `StartInstance` until its instance has terminated and
is not to be restarted. It tells so (`HOLDS`) to every reachable member when it begins, to those
that come into reach later, and each `announce_interval_s` while its view shows an older eligible
member, or one that may host too. What others heard of that is a *claim*; it is forgotten after
`claim_timeout_s`, or when the claimant says otherwise, which costs time only: whoever then believes
itself elected asks first.

**Who hosts.** The oldest claimant that is reachable or said so itself a moment ago, else the oldest
reachable eligible member (`singleton.election`). Three rules follow and need no further case. A
running host is not displaced by an older member that starts the type late or comes back without an
instance: it has no claim. Of two hosts the younger stands down, unasked, as soon as it hears of the
older; the older answers the younger's notice with its own. A host that is no longer up in its own
view stands down. What a peer asks or demands never stops an instance.

**With a strategy** that decides about the unreachable (`SingletonSettings.downing`) their being
unreachable moves nobody: they stay in the election and in the ask set until they are down, and who
was downed does not act any more.

**Taking over.** Elected: ask everybody whose instance may be alive (`election.peers_to_ask`), start
once each has answered `NONE` in the present round. Only silence runs into `hand_over_timeout_s`;
then the instance is started with `UniquenessNotProven`. An answer is a promise. A candidate gives
it to an *older* asker only after dropping the answers it has collected itself, and asks again under
a new round; to a younger one it answers `BUSY`. A promiser asks whoever it promised before it
starts, since it answers only members that it would ask; questions of processes which its view does
not show as up yet are remembered until it does. So of two members that both have every answer, the
one that answered last must have asked the other after that, and the other no longer answers `NONE`.

**With a lease** (`SingletonSettings.leased`) a candidate that everybody has answered acquires it
before it starts, and starts only if the answers still cover everybody then. A candidate that yields
to an older one, or is not elected any more, drops it at once. When it is lost, the instance stops;
only after it has terminated the lease is asked for again. In order the instance stops first, then
the lease is released, then those that asked are told. While it is *at risk* no new message is taken
in: what the instance has it handles, under its lease, and what comes waits in the proxies.

A candidate whose store does not answer *it* for a ttl, while it does answer another eligible member
(the records tell), is *unfit*: it withdraws until the store answers again, and the next one hosts.

**Terms.** Members that host one type must agree about its role and its lease
(`SingletonSettings.terms`, in their records). Those of the holder are valid, after it those of the
last one while anybody has them, else those of the oldest; who has others is not eligible, and says
so. Since any member may have been started with another role, nobody is left out of an election for
want of ours, nor refused an answer; and who shows the type is asked, whatever its role.

**Moving** by order: the host names its successor to everybody, and all take that for a claim of the
successor: it is elected, asks like anybody, and the host stands down for it. Should it not come to
hold the office, the claim is forgotten, and the oldest eligible member hosts.

**Leaving** or stopped by the user: out of the election at once, told to the next two eligible
members so that they collect the other answers meanwhile; `NONE` goes to those that asked the
instant the instance has terminated. A manager that withdrew answers until the process ends. An
instance that ends by itself is restarted here after a backoff, the office being held meanwhile;
with `restart_on_termination=False` the node withdraws instead and the next eligible member hosts.
"""

from __future__ import annotations

import enum
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gossip.effects import Paused, PeerMessage, Publish, Send
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from lease.events import (
    LeaseAtRisk,
    LeaseAwaited,
    LeaseDenied,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseRenewed,
    LeaseUnknown,
    StoreAnswers,
)
from lease.machine import LOOK_TIMEOUT_MAX_S
from singleton.effects import (
    DropLease,
    OfferType,
    RouteSingleton,
    SingletonReleased,
    StartInstance,
    StopCause,
    StopInstance,
    WantLease,
    WatchLease,
    WithdrawType,
)
from singleton.election import (
    ASKABLE,
    elected,
    eligible,
    has_role,
    hosted,
    hosted_type,
    in_reach,
    peers_to_ask,
    referee,
)
from singleton.events import (
    FitnessChanged,
    InstanceChanged,
    InstanceEvent,
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    LeaseTold,
    LeaveStarted,
    MoveRequested,
    SingletonStateChanged,
    StartRequested,
    StateTooLarge,
    StopRequested,
    TermsDiffer,
    UniquenessNotProven,
)
from singleton.messages import (
    AnswerKind,
    HandOverAnswer,
    HandOverAsk,
    HandOverState,
    HostNotice,
    MoveAsk,
    NoticeKind,
)
from singleton.settings import SingletonSettings, differing

HELPERS = 3
DRAIN_LATE_MAX_S = 0.25
"""A loss that is noticed later than this befell a process that stood still: it drains nothing."""
STATE_BYTES_MAX = 64 * 1024
"""What an instance may hand over: it travels between control messages."""
RECORDS_SPREAD_S = 10.0
"""So long after the start here others' records may not show here what was started there before."""
HEARSAY_S = 1.0
"""What a member's record shows of its store may be so old, beside the time until it looks again."""
EPOCH_MAX = 2**62
"""A greater epoch than this is a peer's fault: one more must still fit the wire."""


DOWNED_CAUSES = (Cause.DOWNED, Cause.ORDERED)


class State(enum.StrEnum):
    """Where a manager stands."""

    STANDBY = "standby"  # another member hosts, or nobody may
    ASKING = "asking"  # elected, asks whether an instance is left elsewhere
    ACQUIRING = "acquiring"  # everybody has answered; the lease is asked for
    STARTING = "starting"  # holds the office; the instance starts, or waits to be restarted
    RUNNING = "running"
    STOPPING = "stopping"  # the instance has not terminated yet
    RELEASING = "releasing"  # it has; the lease is given back
    LATCHED = "latched"  # will not host again


class Trigger(enum.Enum):
    """What moves a manager; derived from events, views and time."""

    ELECTED = enum.auto()
    NOT_ELECTED = enum.auto()
    ROUND_VOID = enum.auto()  # the answers collected so far prove nothing any more
    COVERED = enum.auto()  # everybody asked has answered or was silent for too long
    COVERED_WITHOUT_LEASE = enum.auto()  # the same, and a lease is needed yet
    GRANTED = enum.auto()  # the lease is ours, and everybody has still answered
    LEASE_LOST = enum.auto()
    UNFIT = enum.auto()  # others reach the store, this node does not
    RELEASE_DUE = enum.auto()  # the instance has terminated, the lease is still ours
    STARTED = enum.auto()
    ENDED = enum.auto()  # the instance ended by itself
    ENDED_FOR_GOOD = enum.auto()  # the same, with restart_on_termination=False
    RESTART_DUE = enum.auto()
    WITHDRAWN = enum.auto()  # the node leaves, or the user stopped the type here
    READMITTED = enum.auto()  # the user started it again
    STOPPED = enum.auto()
    STOPPED_FOR_GOOD = enum.auto()  # stopped, and withdrawn


S, T = State, Trigger
TRANSITIONS: dict[tuple[State, Trigger], tuple[State, str]] = {
    (S.STANDBY, T.ELECTED): (S.ASKING, "_begin_asking"),
    (S.STANDBY, T.WITHDRAWN): (S.LATCHED, "_withdraw"),
    (S.ASKING, T.NOT_ELECTED): (S.STANDBY, "_drop_round"),
    (S.ASKING, T.ROUND_VOID): (S.ASKING, "_begin_round"),
    (S.ASKING, T.COVERED): (S.STARTING, "_take_office"),
    (S.ASKING, T.COVERED_WITHOUT_LEASE): (S.ACQUIRING, "_want_lease"),
    (S.ASKING, T.WITHDRAWN): (S.LATCHED, "_withdraw"),
    (S.ASKING, T.UNFIT): (S.LATCHED, "_become_unfit"),
    (S.ACQUIRING, T.NOT_ELECTED): (S.STANDBY, "_drop_candidacy"),
    (S.ACQUIRING, T.ROUND_VOID): (S.ASKING, "_ask_again"),
    (S.ACQUIRING, T.GRANTED): (S.STARTING, "_take_office"),
    (S.ACQUIRING, T.LEASE_LOST): (S.ASKING, "_ask_again"),
    (S.ACQUIRING, T.WITHDRAWN): (S.RELEASING, "_withdraw_and_drop"),
    (S.ACQUIRING, T.UNFIT): (S.LATCHED, "_become_unfit_and_drop"),
    (S.STARTING, T.STARTED): (S.RUNNING, "_note_start"),
    (S.STARTING, T.ENDED): (S.STARTING, "_restart_later"),
    (S.STARTING, T.RESTART_DUE): (S.STARTING, "_start_instance"),
    (S.STARTING, T.ENDED_FOR_GOOD): (S.STOPPING, "_end_tenure"),
    (S.STARTING, T.LEASE_LOST): (S.STOPPING, "_lose_lease"),
    (S.STARTING, T.NOT_ELECTED): (S.STOPPING, "_stand_down"),
    (S.STARTING, T.WITHDRAWN): (S.STOPPING, "_withdraw_and_stop"),
    (S.RUNNING, T.ENDED): (S.STARTING, "_restart_later"),
    (S.RUNNING, T.ENDED_FOR_GOOD): (S.STOPPING, "_end_tenure"),
    (S.RUNNING, T.LEASE_LOST): (S.STOPPING, "_lose_lease"),
    (S.RUNNING, T.NOT_ELECTED): (S.STOPPING, "_stand_down"),
    (S.RUNNING, T.WITHDRAWN): (S.STOPPING, "_withdraw_and_stop"),
    (S.STOPPING, T.WITHDRAWN): (S.STOPPING, "_withdraw"),
    (S.STOPPING, T.READMITTED): (S.STOPPING, "_readmit"),
    (S.STOPPING, T.STOPPED): (S.STANDBY, "_release"),
    (S.STOPPING, T.STOPPED_FOR_GOOD): (S.LATCHED, "_release"),
    (S.STOPPING, T.RELEASE_DUE): (S.RELEASING, "_drop_lease"),
    (S.RELEASING, T.WITHDRAWN): (S.RELEASING, "_withdraw"),
    (S.RELEASING, T.READMITTED): (S.RELEASING, "_readmit"),
    (S.RELEASING, T.STOPPED): (S.STANDBY, "_release"),
    (S.RELEASING, T.STOPPED_FOR_GOOD): (S.LATCHED, "_release"),
    (S.LATCHED, T.READMITTED): (S.STANDBY, "_readmit"),
}
"""(state, trigger): (next state, action). What is not here changes nothing and is counted."""

HOLDING = frozenset({State.STARTING, State.RUNNING})
CANDIDATE = frozenset({State.ASKING, State.ACQUIRING})
ENDING = frozenset({State.STOPPING, State.RELEASING})


@dataclass(slots=True)
class _Asked:
    """What one peer of the ask set said in the present round; silence counts from `heard_at`."""

    heard_at: float
    kind: AnswerKind | None = None
    who: NodeId | None = None
    why: str = ""
    stopping_since: float | None = None


@dataclass(frozen=True, slots=True)
class _Claim:
    epoch: int
    until: float
    is_promised: bool = False  # by the host before it, not by itself


class SingletonMachine:
    """One per type and node; `handle` and `tick` return effects in order, `deadline` is a field.

    Peers' faults are counted in `ignored` by reason, never raised. `rng` jitters restarts.
    """

    def __init__(
        self, type_name: str, self_id: NodeId, settings: SingletonSettings, rng: random.Random
    ) -> None:
        self.type_name = type_name
        self.deadline = math.inf
        self.ignored: Counter[str] = Counter()
        self.state = State.STANDBY
        self.host: NodeId | None = None  # where messages go; None: nowhere yet
        self.attempt = 0  # the number of the latest instance started here
        self.started_at = math.inf  # when the running instance reported itself started
        self.self_id = self_id
        self._settings = settings
        self._rng = rng
        self._hosts = False
        self._latch = ""  # why it will not host again
        self._leaving = False
        self._release_told = False
        self._live = False  # an instance was started and has not terminated
        # What our last instance gave for the next one, and the epoch it hosted in.
        self._given: tuple[int, bytes] | None = None
        self._handed: tuple[int, bytes] | None = None  # to us: the epoch of its host, the state
        self._failures = 0
        self._end_reason = ""
        self._restart_at = math.inf
        self._stopping_since = math.inf
        self._stop_reason = ""
        self._view: MembershipView | None = None
        self._reach: tuple[Member, ...] = ()
        self._doubted: frozenset[NodeId] = frozenset()  # suspect or unreachable
        self._answers_via: tuple[NodeId, NodeId | None] | None = None
        self._told: frozenset[NodeId] = frozenset()  # reachable members, whatever their status
        self._peers: set[NodeId] = set()
        self._strangers: set[NodeId] = set()  # asked us, though they have not our role
        self._asks_all_until = -math.inf
        self._former: dict[NodeId, float] = {}  # gone without proof: asked until then
        self._gone_seen: set[NodeId] = set()
        self._claims: dict[NodeId, _Claim] = {}
        self._moving_to: NodeId | None = None  # by order, until our instance has stopped
        self._spoke: set[NodeId] = set()  # told its claim while our view held it unreachable
        self._withdrawn: dict[NodeId, float] = {}  # said that they will not host: until then
        self._heard_round: dict[NodeId, int] = {}
        self._early: dict[NodeId, tuple[HandOverAsk, float]] = {}
        self._waiting: dict[NodeId, int] = {}  # asked while stopping: told when it has stopped
        self._round = 0
        self._asked: dict[NodeId, _Asked] = {}
        self._yielded: dict[NodeId, int] = {}
        self._unproven: set[NodeId] = set()
        self._resend_at = math.inf
        self._epoch = 0
        self._announce_at = math.inf
        self._lease_wanted = False  # from `WantLease` until it is lost or released
        self._lease_granted = False
        self._lease_dropped = False  # its release is ordered, and not confirmed
        self._release_by = math.inf  # a store that does not answer holds nobody up for longer
        self._lease_said = ""
        self._lease_not_before = -math.inf  # it was lost: wait until then
        self._lease_watched = False
        self._lease_late_s = 0.0  # for so long it was over when its loss was noticed
        self._risk = ""  # why the lease may end; "": it is not at risk
        self._store_heard_at = math.inf  # while it does not answer: when it did last
        self._store_failed_at = math.inf  # and since when that is known
        self._store_reached = False
        self._store_said = ""
        self._unfit = False  # the latch is for want of the store, and opens by itself
        self._offered: str | None = None  # what our record shows of the type
        self._routed: NodeId | None = None
        self._suspended = False
        self._differs: tuple[NodeId | None, str] = (None, "")
        self._last_terms: str | None = None  # of the last holder that we knew
        self._out: list[object] = []
        self._shown: tuple[State, NodeId | None] | None = None

    @property
    def unproven(self) -> tuple[NodeId, ...]:
        """Members that may be running an instance beside ours: they did not answer, and nothing
        has been heard of them since. Empty where no office is held."""
        return tuple(sorted(self._unproven)) if self.state in HOLDING else ()

    @property
    def running_attempt(self) -> int:
        """The number of the instance that runs here, 0 when none does."""
        return self.attempt if self.state is State.RUNNING else 0

    @property
    def needs_contact(self) -> bool:
        """True while an instance runs here, or may soon."""
        return self.state not in (State.STANDBY, State.LATCHED)

    def handle(self, event: object, now: float) -> list[object]:
        """Take one fact (see `singleton.events`); facts of other types change nothing."""
        reader = _READERS.get(type(event))
        if reader is None or getattr(event, "type_name", self.type_name) != self.type_name:
            self.ignored["not for this manager"] += 1
            return []
        getattr(self, reader)(event, now)
        return self._finish(now)

    def tick(self, now: float) -> list[object]:
        """Do what is due at `now`; harmless when called early."""
        for claimant in [peer for peer, until in self._claims_end() if until <= now]:
            del self._claims[claimant]
        for peer in [peer for peer, until in self._withdrawn.items() if until <= now]:
            del self._withdrawn[peer]
        if self.state in CANDIDATE and now >= self._resend_at:
            self._resend_at = now + self._settings.ask_resend_s
            for peer in sorted(self._asked):
                if self._asked[peer].kind is not AnswerKind.NONE:
                    self._send_ask(peer)
                if self._asked[peer].kind is None:
                    self._ask_through_others(peer)
        if self.state in HOLDING and now >= self._announce_at:
            self._announce_at = now + self._settings.announce_interval_s
            # Who may host beside us is told too: out of reach as it is, it may be back by now.
            self._notify(NoticeKind.HOLDS, self._told | self._unproven)
        return self._finish(now)

    # views

    def _take_view(self, view: MembershipView, now: float) -> None:
        self._note_former(view, now)
        before = self._view.by_id if self._view is not None else {}
        self._view = view
        self.self_id = view.self_id
        self._reach = in_reach(view, undecided=self._settings.downing)
        told = frozenset(
            member.id
            for member in view.members
            if member.status < Status.DOWN
            and member.id not in view.unreachable
            and member.id != view.self_id
        )
        if self.state in HOLDING:
            self._notify(NoticeKind.HOLDS, told - self._told)
        self._told = told
        self._spoke -= told
        # Back in reach it is told who hosts, and answers if it does too; proven gone it is gone.
        self._unproven = {peer for peer in self._unproven - told if not self._is_gone(view, peer)}
        for peer in (self._doubted - _doubted(view)) & self._asked.keys():
            self._asked[peer].heard_at = now  # its silence begins now that it can be heard
        self._doubted = _doubted(view) if self._settings.downing else frozenset()
        known = view.by_id
        self._strangers = {p for p in self._strangers if p in known and _may_ask(known[p])}
        self._find_peers(now)
        for table in (self._claims, self._heard_round, self._yielded, self._waiting):
            for peer in [peer for peer in table if peer not in known]:
                del table[peer]
        self._withdrawn = {
            peer: until
            for peer, until in self._withdrawn.items()
            if peer in known and not self._is_back(before.get(peer), known[peer])
        }
        for sender, (ask, at) in list(self._early.items()):
            if now - at > 2 * self._settings.ask_resend_s or sender in view.gone:
                del self._early[sender]
            elif sender in known and _may_ask(known[sender]):
                del self._early[sender]
                self._on_ask(sender, ask, now)

    def _is_back(self, before: Member | None, after: Member) -> bool:
        """True when the record of a withdrawn member shows the type again after it had not."""
        return (
            before is not None
            and hosted(before, self.type_name) is None
            and hosted(after, self.type_name) is not None
        )

    def _note_former(self, view: MembershipView, now: float) -> None:
        """Keep asking, for a time, those that went without proof that their process ended."""
        before = self._view.by_id if self._view is not None else {}
        gone = dict(view.gone)
        gone.update(
            (member.id, member.cause) for member in view.members if member.status >= Status.DOWN
        )
        self._gone_seen.intersection_update(gone)
        self._former = {
            peer: until
            for peer, until in self._former.items()
            if peer in gone
            and not self._settles(gone[peer])
            and (now < until or peer in self._asked)
        }
        for peer in sorted(gone.keys() - self._gone_seen):
            self._gone_seen.add(peer)
            member = view.by_id.get(peer) or before.get(peer)
            could_host = member is None or (
                member.up_number > 0
                and (
                    has_role(member, self._settings.role)
                    or hosted(member, self.type_name) is not None
                    or peer in self._strangers
                )
            )
            if self._settles(gone[peer]) or gone[peer] is Cause.NEVER_UP or not could_host:
                continue
            if len(self._former) >= self._settings.former_max:
                self.ignored["too many former members"] += 1
                continue
            self._former[peer] = now + self._settings.former_kept_s

    def _settles(self, cause: Cause) -> bool:
        """True when who went for this cause does not act any more. Who was downed by a strategy
        had no contact left: its members promised it."""
        return cause.is_proof or (self._settings.downing and cause in DOWNED_CAUSES)

    def _is_gone(self, view: MembershipView, peer: NodeId) -> bool:
        member = view.by_id.get(peer)
        cause = view.gone.get(peer) if member is None else member.cause
        return cause is not None and self._settles(cause)

    def _find_peers(self, now: float) -> None:
        """Whom to ask: everybody, as long as records may not show yet who hosts under another role;
        and whoever was promised something."""
        if self._view is not None:
            role = None if now < self._asks_all_until else self._settings.role
            self._peers = peers_to_ask(self._view, self.type_name, role, self._strangers)

    # requests of the node

    def _on_start(self, event: StartRequested, now: float) -> None:
        if self._leaving:
            self.ignored["start while leaving"] += 1
            return
        self._hosts = True
        self._settings = event.settings
        if self._view is not None:
            self._reach = in_reach(self._view, undecided=self._settings.downing)
        self._asks_all_until = now + RECORDS_SPREAD_S
        self._find_peers(now)
        if self._latch and not self._unfit:
            self._fire(Trigger.READMITTED, now)

    def _on_stop_request(self, event: StopRequested, now: float) -> None:
        self._latch_by("stopped by the user", now)

    def _on_leave(self, event: LeaveStarted, now: float) -> None:
        self._leaving = True
        self._latch_by("this node leaves", now)

    def _on_move(self, event: MoveRequested, now: float) -> None:
        if self.state in HOLDING:
            self._move_to(event.to, now)
        elif self.host is not None and self.host != self.self_id:
            self._out.append(Send(self.host, MoveAsk(self.type_name, event.to)))
        else:
            self.ignored["move without a host"] += 1

    def _on_move_ask(self, sender: NodeId, ask: MoveAsk, now: float) -> None:
        if self.state in HOLDING:
            self._move_to(ask.to, now)
        else:
            self.ignored["move without a host"] += 1

    def _move_to(self, to: NodeId, now: float) -> None:
        if to == self.self_id:
            return
        if to not in self.movable():
            self.ignored["move to one that may not host"] += 1
            return
        self._moving_to = to
        self._claim(to, self._epoch, now, is_promised=True)
        self._notify(NoticeKind.MOVES, self._told, who=to)

    def movable(self) -> list[NodeId]:
        """Who else may host now, the oldest first."""
        withdrawn = {*self._withdrawn, self.self_id} if self._latch else {*self._withdrawn}
        candidates = eligible(
            self._reach,
            self.type_name,
            holders=set(self._claims),
            withdrawn=withdrawn,
            last_terms=self._last_terms,
        )
        doubted = self._view.unreachable if self._view is not None else frozenset()
        return [m.id for m in candidates if m.id != self.host and m.id not in doubted]

    def _latch_by(self, why: str, now: float) -> None:
        if self._unfit:  # it has withdrawn already; now it is for good
            self._unfit, self._latch = False, why
        elif not self._latch:
            self._latch = why
            self._fire(Trigger.WITHDRAWN, now)

    def _on_pause(self, event: Paused, now: float) -> None:
        """Answers from before the pause are old, and silence during it was ours."""
        self._claims = {
            peer: replace(claim, until=claim.until + event.gap_s)
            for peer, claim in self._claims.items()
        }
        if self.state in HOLDING:
            # Under a lease it may be over without our knowing it yet: whoever has it by now must
            # not stand down for us.
            if not self._settings.leased:
                self._notify(NoticeKind.HOLDS, self._told)
        elif self.state in CANDIDATE:
            for asked in self._asked.values():
                asked.heard_at = now
            self._fire(Trigger.ROUND_VOID, now)

    # the lease

    def _on_lease(self, event: LeaseTold, now: float) -> None:
        match event.fact:
            case LeaseGranted():
                self._lease_granted, self._lease_said = self._lease_wanted, ""
                self._risk = ""
            case LeaseRenewed():
                self._risk = ""
            case LeaseAtRisk():
                self._risk = event.fact.why
            case StoreAnswers():
                self._on_store(event.fact, now)
            case LeaseDenied():
                self._lease_said = f"it is held by {event.fact.holder}"
            case LeaseAwaited():
                self._lease_said = f"{event.fact.holder} holds it, perhaps not any more"
            case LeaseUnknown():
                self._lease_said = f"nobody can tell who holds it: {event.fact.why}"
            case LeaseLost():
                self._lease_wanted = self._lease_granted = False
                self._lease_said, self._lease_late_s = event.fact.why, event.fact.late_s
                self._risk = ""
                self._lease_not_before = now + self._settings.acquire_retry_interval_s
                if self.state in HOLDING or self.state is State.ACQUIRING:
                    self._fire(Trigger.LEASE_LOST, now)
            case LeaseReleased() if self._lease_dropped:
                self._lease_dropped = False

    def _on_store(self, fact: StoreAnswers, now: float) -> None:
        self._store_reached = fact.answers
        self._store_heard_at = math.inf if fact.answers else fact.heard_at
        self._store_failed_at = math.inf if fact.answers else now
        self._store_said = fact.why
        if fact.answers and self._unfit:
            self._unfit = False
            self._out.append(Publish(FitnessChanged(self.type_name, True, "its store answers")))
            self._fire(Trigger.READMITTED, now)

    def _unfit_at(self) -> float:
        """When it has been without the store for a ttl, while another one that may host is not.

        Where the store fails everybody, the others' records do not show it before they have looked
        at it again in vain.
        """
        settings = self._settings
        if not settings.leased or self._view is None or self._store_heard_at == math.inf:
            return math.inf
        looked_s = settings.acquire_retry_interval_s + LOOK_TIMEOUT_MAX_S + HEARSAY_S
        silent_at = self._store_heard_at + settings.lease_ttl_s
        unfit_at = max(silent_at, self._store_failed_at + looked_s)
        others = eligible(
            self._reach,
            self.type_name,
            withdrawn={*self._withdrawn},
            last_terms=self._last_terms,
        )
        for member in others:
            shown = hosted(member, self.type_name)
            well = shown is not None and shown.reaches_store
            if well and member.id in self._told and member.id not in self._doubted:
                return unfit_at
        return math.inf

    # instances

    def _on_instance_started(self, event: InstanceStarted, now: float) -> None:
        if event.attempt != self.attempt or not self._live:
            self.ignored["late instance event"] += 1
        else:
            self._fire(Trigger.STARTED, now)

    def _on_instance_ended(self, event: InstanceStopped | InstanceFailed, now: float) -> None:
        if event.attempt != self.attempt or not self._live:
            self.ignored["late instance event"] += 1
            return
        self._live = False
        self._end_reason = event.reason
        if isinstance(event, InstanceStopped) and self.state is State.STOPPING:
            self._keep_state(event.state)
        self._history(InstanceEvent.STOPPED, event.reason)
        if self.state in HOLDING:
            restart = self._settings.restart_on_termination
            self._fire(Trigger.ENDED if restart else Trigger.ENDED_FOR_GOOD, now)

    # messages of peers

    def _on_peer(self, event: PeerMessage, now: float) -> None:
        reader = _MESSAGE_READERS.get(type(event.message))
        if reader is None or getattr(event.message, "type_name", None) != self.type_name:
            self.ignored["not for this manager"] += 1
        elif self._view is None:
            self.ignored["no view yet"] += 1
        else:
            self._answers_via = (event.sender, event.via)
            getattr(self, reader)(event.sender, event.message, now)
            self._answers_via = None

    def _on_ask(self, sender: NodeId, ask: HandOverAsk, now: float) -> None:
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if sender in self._view.gone or (member and member.status >= Status.DOWN):
            self.ignored["asked by one that is down"] += 1
        elif member is None or not _may_ask(member):
            self._remember_early(sender, ask, now)
        elif self._is_fresh(sender, ask.round):
            self._withdrawn.pop(sender, None)
            self._answer_ask(member, ask, now)

    def _remember_early(self, sender: NodeId, ask: HandOverAsk, now: float) -> None:
        horizon = now - 2 * self._settings.ask_resend_s  # by then it has asked again
        self._early = {peer: kept for peer, kept in self._early.items() if kept[1] >= horizon}
        if sender in self._early or len(self._early) < self._settings.early_asks_max:
            self._early[sender] = (ask, now)
        self.ignored["asked by one that is not up"] += 1

    def _answer_ask(self, asker: Member, ask: HandOverAsk, now: float) -> None:
        if self.state in HOLDING:
            why = "its instance runs here" if self._live else "its instance is restarted here"
            self._answer(asker.id, ask.round, AnswerKind.REFUSED, who=self.self_id, why=why)
        elif self.state in ENDING:
            self._waiting[asker.id] = ask.round
            since_s = now - self._stopping_since
            self._answer(asker.id, ask.round, AnswerKind.STOPPING, since_s=since_s)
        elif self.state in CANDIDATE and not self._is_older(asker, ask):
            self._answer(asker.id, ask.round, AnswerKind.BUSY, who=self.self_id)
        else:
            if self.state in CANDIDATE and self._yielded.get(asker.id) != ask.round:
                self._yielded[asker.id] = ask.round
                self._fire(Trigger.ROUND_VOID, now)
            if asker.id not in self._peers:
                self._strangers.add(asker.id)
                self._peers.add(asker.id)
            self._hand_over(asker.id)
            self._answer(asker.id, ask.round, AnswerKind.NONE)

    def _is_older(self, asker: Member, ask: HandOverAsk) -> bool:
        number = min(ask.up_number, asker.up_number) if ask.up_number > 0 else asker.up_number
        return (number, asker.id) < (self._up_number(), self.self_id)

    def _on_answer(self, sender: NodeId, answer: HandOverAnswer, now: float) -> None:
        if self.state not in CANDIDATE or answer.round != self._round:
            self.ignored["answer of another round"] += 1
            return
        asked = self._asked.get(sender)
        if asked is None:
            self.ignored["answer of one not asked"] += 1
            return
        if not self._learn_epoch(answer.epoch):
            return
        asked.kind, asked.who, asked.why = answer.kind, answer.who, answer.why
        asked.heard_at = now
        if answer.kind is AnswerKind.STOPPING:
            if asked.stopping_since is None:
                asked.stopping_since = now
            asked.heard_at = min(now, asked.stopping_since + self._settings.stop_timeout_s)
        if answer.kind is AnswerKind.REFUSED and answer.who == sender:
            self._claim(sender, answer.epoch, now)
        elif answer.kind in (AnswerKind.NONE, AnswerKind.STOPPING):
            self._claims.pop(sender, None)
        if answer.kind is AnswerKind.NONE and sender in self._former:
            # Gone in our view, so we never answer it; without us it can start nothing unwarned.
            del self._former[sender]

    def _on_notice(self, sender: NodeId, notice: HostNotice, now: float) -> None:
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if member is None or member.status not in ASKABLE:
            self.ignored["notice of one that is not up"] += 1
            return
        if not self._is_fresh(sender, notice.round) or not self._learn_epoch(notice.epoch):
            return
        asked = self._asked.get(sender)
        if notice.kind is NoticeKind.HOLDS:
            self._claim(sender, notice.epoch, now)
            if self.state in HOLDING and sender in self._view.unreachable:
                self._spoke.add(sender)
            if asked is not None:
                asked.kind, asked.who, asked.heard_at = AnswerKind.REFUSED, sender, now
            if self.state in HOLDING and self._elected() == self.self_id:
                self._notify(NoticeKind.HOLDS, (sender,))
            return
        self._claims.pop(sender, None)
        if notice.kind is NoticeKind.MOVES and notice.who in self._view.by_id:
            self._claim(notice.who, notice.epoch, now, is_promised=True)
        if notice.kind is NoticeKind.WITHDRAWN:
            self._withdrawn[sender] = now + self._settings.withdrawn_kept_s
        if asked is not None and asked.kind is not AnswerKind.NONE:
            self._send_ask(sender)

    def _is_fresh(self, sender: NodeId, round_: int) -> bool:
        if round_ < self._heard_round.get(sender, 0):
            self.ignored["overtaken message"] += 1
            return False
        self._heard_round[sender] = round_
        return True

    def _learn_epoch(self, epoch: int) -> bool:
        if not 0 <= epoch < EPOCH_MAX:
            self.ignored["epoch out of range"] += 1
            return False
        self._epoch = max(self._epoch, epoch)
        return True

    def _claim(self, peer: NodeId, epoch: int, now: float, *, is_promised: bool = False) -> None:
        if peer == self.self_id and self.state in HOLDING:
            return
        self._withdrawn.pop(peer, None)
        until = now + self._settings.claim_timeout_s
        self._claims[peer] = _Claim(epoch, until, is_promised)

    # what follows from what is known

    def _finish(self, now: float) -> list[object]:
        while (trigger := self._due_trigger(now)) is not None:
            self._fire(trigger, now)
        self._watch_elders(now)
        self._note_terms()
        self._watch_lease()
        self._offer()
        self._compare_terms()
        if self._leaving and self.state is State.LATCHED and not self._release_told:
            self._release_told = True
            self._out.append(SingletonReleased(self.type_name))
        self._show(now)
        self.deadline = self._next_deadline(now)
        effects, self._out = self._out, []
        return effects

    def _due_trigger(self, now: float) -> Trigger | None:
        """The one thing that must happen next because of what is known, if any."""
        if self.state in ENDING:
            if self._live:
                return None
            if self.state is State.STOPPING and self._lease_wanted:
                return Trigger.RELEASE_DUE
            if self._lease_dropped and now < self._release_by:
                return None
            return Trigger.STOPPED_FOR_GOOD if self._latch else Trigger.STOPPED
        if self.state is State.LATCHED:
            return None
        is_elected = self._hosts and self._elected() == self.self_id
        if self.state is State.STANDBY:
            return Trigger.ELECTED if is_elected else None
        if not is_elected:
            return Trigger.NOT_ELECTED
        if self.state in CANDIDATE:
            return Trigger.UNFIT if now >= self._unfit_at() else self._due_of_candidate(now)
        if self.state is State.STARTING and not self._live and now >= self._restart_at:
            return Trigger.RESTART_DUE
        return None

    def _due_of_candidate(self, now: float) -> Trigger | None:
        self._update_asked(now)
        covered = all(
            asked.kind is AnswerKind.NONE or now >= self._silent_at(peer, asked)
            for peer, asked in self._asked.items()
        )
        if not covered:
            return None
        if self.state is State.ACQUIRING:
            return Trigger.GRANTED if self._lease_granted else None
        if not self._settings.leased:
            return Trigger.COVERED
        # One that was given up is given back first (I-4).
        may_want = now >= self._lease_not_before and not self._lease_dropped
        return Trigger.COVERED_WITHOUT_LEASE if may_want else None

    def _fire(self, trigger: Trigger, now: float) -> None:
        step = TRANSITIONS.get((self.state, trigger))
        if step is None:
            self.ignored[f"{trigger.name.lower()} while {self.state}"] += 1
            return
        self.state = step[0]
        action: Callable[[float], None] = getattr(self, step[1])
        action(now)

    def _elected(self) -> NodeId | None:
        holders = set(self._claims)
        if self.state in HOLDING and self._moving_to is None:
            holders.add(self.self_id)
        withdrawn = {*self._withdrawn, self.self_id} if self._latch else {*self._withdrawn}
        candidates = eligible(
            self._reach_and_claimants(),
            self.type_name,
            holders=holders,
            withdrawn=withdrawn,
            last_terms=self._last_terms,
        )
        member = elected(candidates, holders)
        return None if member is None else member.id

    def _reach_and_claimants(self) -> tuple[Member, ...]:
        """Who told us a moment ago that it hosts is in reach, whatever membership holds of it yet:
        of two hosts the younger must not wait until one that came back is trusted again."""
        if self._view is None or not self._claims:
            return self._reach
        near = {member.id for member in self._reach}
        more = [
            member
            for member in self._view.members
            if member.id in self._claims
            and member.id in self._spoke
            and member.id not in near
            and member.status is Status.UP
            and member.up_number > 0
        ]
        return tuple(sorted((*self._reach, *more), key=lambda member: member.age_key))

    def _watch_elders(self, now: float) -> None:
        """Repeat our notice while older members may believe themselves elected, or may host."""
        if self.state not in HOLDING:
            self._announce_at = math.inf
            return
        candidates = eligible(self._reach, self.type_name, holders={self.self_id})
        is_eldest = not candidates or candidates[0].id == self.self_id
        if is_eldest and not self._unproven:
            self._announce_at = math.inf
        elif self._announce_at == math.inf:
            self._announce_at = now + self._settings.announce_interval_s
            self._notify(NoticeKind.HOLDS, self._told)

    def _watch_lease(self) -> None:
        wanted = self._settings.leased and self._hosts and (not self._latch or self._unfit)
        if wanted is not self._lease_watched:
            self._lease_watched = wanted
            self._out.append(WatchLease(self.type_name, wanted))

    def _offer(self) -> None:
        """Show in our record that this node hosts, and on which terms. A leave changes nothing: the
        record goes with the process."""
        settings = self._settings
        label = None
        if self._hosts and not self._latch:
            reached = self._store_reached or not settings.leased
            label = hosted_type(self.type_name, settings.terms, reaches_store=reached)
        if label == self._offered or self._leaving:
            return
        self._offered = label
        if label is None:
            self._out.append(WithdrawType(self.type_name))
        else:
            self._out.append(OfferType(self.type_name, label, settings.role))

    def _note_terms(self) -> None:
        """Of whoever holds the office now."""
        if self.state in HOLDING:
            self._last_terms = self._settings.terms
            return
        for member in self._reach_and_claimants():
            claim, shown = self._claims.get(member.id), hosted(member, self.type_name)
            if claim is not None and not claim.is_promised and shown is not None:
                self._last_terms = shown.terms
                return

    def _compare_terms(self) -> None:
        differs: tuple[NodeId | None, str] = (None, "")
        if self._hosts and not self._latch and self.state not in HOLDING:
            oldest = referee(
                (member for member in self._reach if member.id not in self._withdrawn),
                self.type_name,
                holders=set(self._claims),
                last_terms=self._last_terms,
            )
            shown = None if oldest is None else hosted(oldest, self.type_name)
            if oldest is not None and shown is not None and oldest.id != self.self_id:
                words = differing(self._settings.terms, shown.terms)
                differs = (oldest.id, words) if words else differs
        if differs != self._differs:
            self._differs = differs
            self._out.append(Publish(TermsDiffer(self.type_name, *differs)))

    def _show(self, now: float) -> None:
        host = self._host_to_show()
        # While the lease is at risk messages wait here: what is taken in may not be handled.
        routed = None if self._risk and host == self.self_id else host
        if routed != self._routed:
            former, self._routed = self._routed, routed
            claim = self._claims.get(host) if host is not None else None
            epoch = self._epoch if host == self.self_id else claim.epoch if claim else 0
            self._out.append(RouteSingleton(self.type_name, routed, epoch, former in self._told))
        self.host = host
        suspended = bool(self._risk) and self.state is State.RUNNING
        if suspended is not self._suspended:
            self._suspended = suspended
            if suspended:
                self._history(InstanceEvent.SUSPENDED, f"its lease is at risk: {self._risk}")
            elif self.state is State.RUNNING:
                self._history(InstanceEvent.RESUMED, "")
        if (self.state, host) != self._shown:
            self._shown = (self.state, host)
            fact = SingletonStateChanged(
                self.type_name, str(self.state), host, self.running_attempt, self.explain(now)
            )
            self._out.append(Publish(fact))

    def _host_to_show(self) -> NodeId | None:
        """Who hosts: never ourselves before the instance takes messages."""
        if self.state is State.RUNNING:
            return self.self_id
        host = self._elected()
        if host is None or host == self.self_id or host in self._doubted_hosts():
            return None
        claim = self._claims.get(host)
        return None if claim is not None and claim.is_promised else host

    def _doubted_hosts(self) -> frozenset[NodeId]:
        """Those that messages would be lost on: they are held until it is decided."""
        if self._view is None or not self._settings.downing:
            return frozenset()
        return self._view.unreachable

    def _claims_end(self) -> list[tuple[NodeId, float]]:
        """When each claim is forgotten. That of an unreachable member stands where a strategy
        decides: it cannot repeat it, and may be acting."""
        kept = self._doubted_hosts()
        return [(peer, claim.until) for peer, claim in self._claims.items() if peer not in kept]

    def _next_deadline(self, now: float) -> float:
        due = [self._announce_at]
        due.extend(until for _, until in self._claims_end())
        due.extend(self._withdrawn.values())
        if self.state is State.STARTING and not self._live:
            due.append(self._restart_at)
        if self.state is State.RELEASING:
            due.append(self._release_by)
        if self.state in CANDIDATE:
            due.append(self._resend_at)
            anyway_at = self._hosts_anyway_at()
            if self.state is State.ASKING and self._settings.leased:
                anyway_at = max(anyway_at, self._lease_not_before)
            due.append(self._unfit_at())
            if anyway_at > now:  # else it waits for the lease, not for time
                due.append(anyway_at)
        return min(due)

    # actions of the table

    def _begin_asking(self, now: float) -> None:
        self._asked.clear()
        self._yielded.clear()
        self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        """Ask everybody anew; who was silent so far has been silent since it was first asked."""
        self._handed = None  # whoever we yield to may host before us
        self._round += 1
        self._resend_at = now + self._settings.ask_resend_s
        for asked in self._asked.values():
            if asked.kind is not None:
                asked.kind, asked.who, asked.why, asked.heard_at = None, None, "", now
        asked_before = sorted(self._asked)
        self._update_asked(now)
        for peer in asked_before:
            if peer in self._asked:
                self._send_ask(peer)

    def _drop_round(self, now: float) -> None:
        self._handed = None
        self._asked.clear()

    def _want_lease(self, now: float) -> None:
        self._lease_wanted, self._lease_granted, self._lease_said = True, False, ""
        self._out.append(WantLease(self.type_name))

    def _drop_lease(self, now: float) -> None:
        """Whatever is granted from here on is nothing to us."""
        if self._lease_wanted:
            self._lease_wanted = self._lease_granted = False
            self._lease_dropped = True
            self._release_by = now + self._settings.release_wait_s
            self._out.append(DropLease(self.type_name))

    def _drop_candidacy(self, now: float) -> None:
        self._drop_lease(now)
        self._drop_round(now)

    def _ask_again(self, now: float) -> None:
        self._drop_lease(now)
        self._begin_round(now)

    def _withdraw_and_drop(self, now: float) -> None:
        self._withdraw(now)
        self._stopping_since, self._stop_reason = now, self._latch
        self._drop_lease(now)

    def _become_unfit(self, now: float) -> None:
        self._unfit = True
        self._latch = (
            f"its lease store has not answered this node for {now - self._store_heard_at:.1f} s "
            f"({self._store_said}), and it does answer others"
        )
        self._out.append(Publish(FitnessChanged(self.type_name, False, self._latch)))
        self._withdraw(now)

    def _become_unfit_and_drop(self, now: float) -> None:
        self._become_unfit(now)  # nothing ran here, so nobody has to wait for the store
        self._drop_lease(now)

    def _lose_lease(self, now: float) -> None:
        in_time = self._lease_late_s <= DRAIN_LATE_MAX_S
        unguarded = self._settings.on_lease_lost == "drain" and in_time
        why = f"its lease was lost: {self._lease_said}"
        self._stop_instance(now, StopCause.LEASE_LOST, why, unguarded=unguarded)

    def _take_office(self, now: float) -> None:
        silent = {
            peer: now - asked.heard_at
            for peer, asked in self._asked.items()
            if asked.kind is not AnswerKind.NONE
        }
        if silent and not self._settings.leased:  # the lease proves it
            fact = UniquenessNotProven(self.type_name, tuple(sorted(silent)), min(silent.values()))
            self._out.append(Publish(fact))
        self._unproven = set() if self._settings.leased else set(silent)
        self._asked.clear()
        self._failures = 0
        handed, self._handed = self._handed, None
        state = None
        if handed is not None and handed[0] == self._epoch and not silent:
            state = handed[1]  # nobody has hosted since
        self._given = None
        self._epoch += 1
        self._claims.pop(self.self_id, None)  # promised to us; from here on we hold it
        self._start_instance(now, state)
        self._notify(NoticeKind.HOLDS, self._told)

    def _start_instance(self, now: float, state: bytes | None = None) -> None:
        self.attempt += 1
        self._live = True
        self._restart_at = math.inf
        self._history(InstanceEvent.STARTING, "")
        self._out.append(StartInstance(self.type_name, self.attempt, state))

    def _note_start(self, now: float) -> None:
        self.started_at = now
        self._history(InstanceEvent.STARTED, "")

    def _restart_later(self, now: float) -> None:
        settings = self._settings
        if now - self.started_at >= settings.restart_backoff_max_s:
            self._failures = 0
        backoff_s = settings.restart_backoff_s * 2 ** min(self._failures, 32)
        self._failures += 1
        self.started_at = math.inf
        jitter = 1.0 + 0.1 * self._rng.random()
        self._restart_at = now + min(backoff_s, settings.restart_backoff_max_s) * jitter

    def _stand_down(self, now: float) -> None:
        host = self._elected()
        reason, at_once = "this node may not host any more", False
        if self._moving_to is not None:
            reason = f"moved to {self._moving_to.address} by order"
        elif host is not None and host in self._claims:
            reason, at_once = f"{host.address} hosts too and is older", True
        self._stop_instance(now, StopCause.STOOD_DOWN, reason, at_once=at_once)

    def _withdraw_and_stop(self, now: float) -> None:
        self._withdraw(now)
        cause = StopCause.LEAVING if self._leaving else StopCause.STOPPED
        self._stop_instance(now, cause, self._latch)

    def _stop_instance(
        self,
        now: float,
        cause: StopCause,
        reason: str,
        *,
        unguarded: bool = False,
        at_once: bool = False,
    ) -> None:
        self._stopping_since = now
        self._stop_reason = reason
        if self._live:
            self._history(InstanceEvent.STOPPING, reason)
            order = StopInstance(
                self.type_name, self.attempt, cause, reason, unguarded=unguarded, at_once=at_once
            )
            self._out.append(order)

    def _withdraw(self, now: float) -> None:
        self._drop_round(now)
        self._round += 1
        if self._hosts:
            self._notify(NoticeKind.WITHDRAWN, self._next_eligible())

    def _readmit(self, now: float) -> None:
        self._latch = ""

    def _release(self, now: float) -> None:
        """The instance has terminated: first of all those are told that wait for it."""
        for peer in sorted(self._waiting):
            self._hand_over(peer)
            self._answer(peer, self._waiting[peer], AnswerKind.NONE)
        self._waiting.clear()
        self.started_at = math.inf
        self._round += 1
        if self._latch:
            self._notify(NoticeKind.WITHDRAWN, self._next_eligible())
        moving_to, self._moving_to = self._moving_to, None
        if moving_to is None or self._latch:
            self._notify(NoticeKind.RELEASED, self._told)
        else:
            self._claim(moving_to, self._epoch, now, is_promised=True)
            self._notify(NoticeKind.MOVES, self._told, who=moving_to)

    def _keep_state(self, state: bytes | None) -> None:
        self._given = None
        if state is not None and len(state) > STATE_BYTES_MAX:
            self._out.append(Publish(StateTooLarge(self.type_name, len(state))))
        elif state is not None:
            self._given = (self._epoch, state)

    def _hand_over(self, peer: NodeId) -> None:
        """Before it is told that nothing runs here any more; not once another one has hosted."""
        if self._given is not None and self._given[0] == self._epoch:
            self._out.append(Send(peer, HandOverState(self.type_name, *self._given)))
        else:
            self._given = None

    def _on_state(self, sender: NodeId, handed: HandOverState, now: float) -> None:
        if self.state not in CANDIDATE or sender not in self._asked:
            self.ignored["state of one not asked"] += 1
        elif len(handed.state) > STATE_BYTES_MAX or not 0 <= handed.epoch < EPOCH_MAX:
            self.ignored["state that is none"] += 1
        else:
            self._handed = (handed.epoch, handed.state)

    def _end_tenure(self, now: float) -> None:
        self._latch = f"its instance ended by itself: {self._end_reason or 'no reason given'}"
        self._stopping_since, self._stop_reason = now, self._latch

    # helpers

    def _update_asked(self, now: float) -> None:
        """Bring the ask set up to date; whoever is new in it is asked in the present round."""
        # One that is being asked stays: only its answer or its silence ends that wait.
        former = {
            peer for peer, until in self._former.items() if now < until or peer in self._asked
        }
        peers = self._peers | former
        for peer in [peer for peer in self._asked if peer not in peers]:
            del self._asked[peer]
        for peer in sorted(peers - self._asked.keys()):
            self._asked[peer] = _Asked(heard_at=now)
            self._send_ask(peer)

    def _silent_at(self, peer: NodeId, asked: _Asked) -> float:
        """When its silence is long enough. Where a strategy decides, that of a member which is
        suspect or unreachable never is: the decision comes."""
        if peer in self._doubted:
            return math.inf
        return asked.heard_at + self._settings.hand_over_timeout_s

    def _hosts_anyway_at(self) -> float:
        """When the last peer that owes its `NONE` has been silent for too long."""
        return max(
            (
                self._silent_at(peer, asked)
                for peer, asked in self._asked.items()
                if asked.kind is not AnswerKind.NONE
            ),
            default=math.inf,
        )

    def _next_eligible(self) -> list[NodeId]:
        withdrawn = {*self._withdrawn, self.self_id}
        candidates = eligible(
            self._reach,
            self.type_name,
            withdrawn=withdrawn,
            last_terms=self._last_terms,
        )
        return [member.id for member in candidates[:2]]

    def _up_number(self) -> int:
        member = self._view.by_id.get(self.self_id) if self._view is not None else None
        return member.up_number if member is not None else 0

    def _send_ask(self, peer: NodeId, via: NodeId | None = None) -> None:
        ask = HandOverAsk(self.type_name, self._round, self._up_number())
        self._out.append(Send(peer, ask, via=via))

    def _ask_through_others(self, peer: NodeId) -> None:
        """It may be that the link to it alone fails."""
        helpers = sorted(self._told - {peer})
        for helper in self._rng.sample(helpers, min(HELPERS, len(helpers))):
            self._send_ask(peer, via=helper)

    def _answer(
        self,
        to: NodeId,
        round_: int,
        kind: AnswerKind,
        *,
        who: NodeId | None = None,
        why: str = "",
        since_s: float = 0.0,
    ) -> None:
        answer = HandOverAnswer(
            self.type_name, round_, kind, epoch=self._epoch, who=who, why=why, since_s=since_s
        )
        via = None
        if self._answers_via is not None and self._answers_via[0] == to:
            via = self._answers_via[1]
        self._out.append(Send(to, answer, via=via))

    def _notify(
        self, kind: NoticeKind, peers: Iterable[NodeId], *, who: NodeId | None = None
    ) -> None:
        notice = HostNotice(self.type_name, kind, self._round, self._epoch, who)
        self._out.extend(Send(peer, notice) for peer in sorted(peers))

    def _history(self, event: InstanceEvent, detail: str) -> None:
        self._out.append(Publish(InstanceChanged(self.type_name, event, self.attempt, detail)))

    # words

    def explain(self, now: float) -> str:
        """Why the instance runs here, or why it does not yet, for an operator."""
        if self.state is State.RUNNING:
            return self._explain_running()
        if self.state is State.STARTING:
            if self._live:
                return f"starting instance {self.attempt}"
            wait_s = max(0.0, self._restart_at - now)
            reason = self._end_reason or "no reason given"
            return (
                f"instance {self.attempt} ended by itself ({reason}); "
                f"the next one starts in {wait_s:.1f} s"
            )
        if self.state is State.STOPPING:
            return f"stopping for {now - self._stopping_since:.1f} s: {self._stop_reason}"
        if self.state is State.RELEASING:
            return f"stopped ({self._stop_reason}); its lease is being released"
        if self.state is State.ACQUIRING:
            return f"waiting for the lease: {self._lease_said or 'it is asked for'}"
        if self.state is State.ASKING:
            return self._explain_asking(now)
        again = "for now" if self._unfit else "again"
        here = f"not hosted here {again}: {self._latch}; " if self._latch else ""
        other, differs = self._differs
        if other is not None:
            here = f"not hosted here, since it is not started as at {other.address}: {differs}; "
        return here + self._explain_standby()

    def _explain_running(self) -> str:
        candidates = eligible(self._reach, self.type_name, holders={self.self_id})
        older = candidates[0] if candidates else None
        if self._risk:
            return f"runs here, and takes in no new message: its lease may end ({self._risk})"
        if self._unproven:
            silent = ", ".join(peer.address for peer in sorted(self._unproven))
            return f"runs here, and may run at {silent} too: no answer came from there"
        if older is None or older.id == self.self_id:
            return "runs here: this is the oldest eligible member in reach"
        return (
            f"runs here: {older.id.address} is older but does not host, and a running instance "
            "is not moved for it"
        )

    def _explain_asking(self, now: float) -> str:
        parts = [
            _explain_asked(peer, asked, now)
            for peer, asked in sorted(self._asked.items())
            if asked.kind is not AnswerKind.NONE
        ]
        if not parts and self._settings.leased and now < self._lease_not_before:
            wait_s = self._lease_not_before - now
            return f"the lease was lost ({self._lease_said}); asked for again in {wait_s:.1f} s"
        if not parts:
            return "asking whether an instance runs elsewhere"
        wait_s = max(0.0, self._hosts_anyway_at() - now)
        silent = all(asked.kind in (None, AnswerKind.NONE) for asked in self._asked.values())
        # Not at once: the first question has hardly left.
        if silent and wait_s < self._settings.hand_over_timeout_s - self._settings.ask_resend_s:
            if self._settings.leased:
                parts.append(f"asks for the lease without it in {wait_s:.1f} s")
            else:
                parts.append(f"hosts anyway in {wait_s:.1f} s, uniqueness not proven")
        return "; ".join(parts)

    def _explain_standby(self) -> str:
        if self._view is None:
            return "not a member of a cluster yet"
        host = self._elected()
        if host is not None:
            where = "in reach"
            if host in self._view.unreachable:
                where = "that is not settled, and unreachable"
            claim = self._claims.get(host)
            if claim is None:
                return f"{host.address} is the oldest eligible member {where}"
            return f"{host.address} {'takes over by order' if claim.is_promised else 'hosts'}"
        me = self._view.by_id.get(self.self_id)
        if me is None or me.status is not Status.UP:
            status = "not a member" if me is None else me.status.name.lower()
            return f"this node is {status}, and no eligible member is reachable"
        role = f" with role {self._settings.role!r}" if self._settings.role else ""
        return f"no reachable member{role} hosts this type"


def _doubted(view: MembershipView) -> frozenset[NodeId]:
    return view.unreachable | view.suspects


def _explain_asked(peer: NodeId, asked: _Asked, now: float) -> str:
    silent_s = max(0.0, now - asked.heard_at)
    match asked.kind:
        case AnswerKind.STOPPING:
            since_s = now - (now if asked.stopping_since is None else asked.stopping_since)
            return f"{peer.address} is stopping its instance for {since_s:.1f} s"
        case AnswerKind.BUSY:
            return f"{peer.address} is older and asks for itself"
        case AnswerKind.REFUSED:
            return f"{peer.address} refuses: {asked.why or 'it hosts'}"
        case _:
            return f"asked {peer.address}, no answer for {silent_s:.1f} s"


def answer_unhosted(event: PeerMessage, view: MembershipView | None) -> list[object]:
    """What a node answers that has no manager of this type: nothing runs here.

    The promise holds without memory, because only members are answered that a manager started
    later will ask. Others get no answer (they ask again), and neither do other messages.
    """
    ask = event.message
    member = view.by_id.get(event.sender) if view is not None else None
    if not isinstance(ask, HandOverAsk) or member is None or not _may_ask(member):
        return []
    answer = HandOverAnswer(ask.type_name, ask.round, AnswerKind.NONE)
    return [Send(member.id, answer, via=event.via)]


def _may_ask(member: Member) -> bool:
    """True when a manager here would ask this member in its turn."""
    return member.status in ASKABLE and member.up_number > 0


_READERS: dict[type, str] = {
    MembershipView: "_take_view",
    PeerMessage: "_on_peer",
    StartRequested: "_on_start",
    StopRequested: "_on_stop_request",
    MoveRequested: "_on_move",
    LeaveStarted: "_on_leave",
    Paused: "_on_pause",
    InstanceStarted: "_on_instance_started",
    InstanceStopped: "_on_instance_ended",
    InstanceFailed: "_on_instance_ended",
    LeaseTold: "_on_lease",
}

_MESSAGE_READERS: dict[type, str] = {
    HandOverAsk: "_on_ask",
    HandOverAnswer: "_on_answer",
    HostNotice: "_on_notice",
    HandOverState: "_on_state",
    MoveAsk: "_on_move_ask",
}
