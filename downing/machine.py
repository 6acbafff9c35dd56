"""The resolver of one node: when a split is decided, which side lives, and who may act meanwhile.

Decides: when a view is stable and *known*, whether our side wins or loses, whom to down and that
all of the side have promised it first, when this node itself has to go, what becomes of an
operator's order, and (in `downing.contact`) until when whatever is unique here may act. Does not
decide who is reachable (`gossip`), which side a strategy prefers (`downing.strategies`), nor who
hosts what. Called by `node.core`; pure: no clock, no socket, no randomness.

**Winning.** Something is unreachable. The leader of this side waits until the view has been stable
for `down_after_s`, and until it is *known*: every counted member is unreachable or has answered a
ping sent after the last change. The strategy must win in the present view and the answering members
must survive in the base as well (the joint count). Then it proposes; once every counted member that
it reaches has promised never to grant the others again, and the last grants are over, they are
marked down, which nobody can undo.

**Losing.** Each node of a losing side goes by its own timer. For this question the unknown count
as lost: after `down_after_s` during which this side would have lost all the time, the node ends.

**An arbiter** (lease-majority): one contender per side, its leader, asks the lease. Granted, the
side lives; denied, all of it end; unknown, nobody acts, nobody ends, and it is asked again.

**Orders.** A member that an operator wants down, or that is doomed but reachable, is told to stop
in order, and is marked down when it has said that nothing unique runs there any more, or when
promises have made it silent. Without a strategy (level none) there are orders alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from downing.contact import Contact
from downing.events import (
    ArbiterDenied,
    ArbiterExtended,
    ArbiterGranted,
    ArbiterUnknown,
    AskArbiter,
    ContactChanged,
    ContactWanted,
    DowningDecided,
    DowningDoubted,
    DowningUnsettled,
    DownRequested,
    MarkDown,
    NoteDoomed,
    NothingRuns,
    ReleaseArbiter,
    SetContact,
    WatchArbiter,
)
from downing.messages import (
    ContactAck,
    ContactPing,
    Grant,
    OrderDown,
    PromiseDown,
    ProposeDown,
    SideLost,
    StopOrder,
    Stopped,
)
from downing.promises import Promises, Round
from downing.settings import DowningSettings
from downing.strategies import (
    DownAll,
    LeaseMajority,
    Proposal,
    Strategy,
    down_everything,
    warnings,
)
from downing.view import COUNTED, PartitionView
from gossip.effects import Paused, PeerMessage, Publish, Send
from gossip.events import Exit
from gossip.membership import Cause, Member, MembershipView, NodeId, Status

DOWNED_EXIT = 10
BY_OPERATOR_EXIT = 11
UNSETTLED_AFTER = 4  # times down_after_s
REMINDERS_MIN = 2
COUNTED_FROM_0 = ("contact-gained", "contact-lost", "rounds", "unsettled")
"""There from the start, so that an alarm sees the first one."""
RELAYABLE = (ContactPing, ContactAck, ProposeDown, PromiseDown)
MESSAGES = (
    ContactPing, ContactAck, ProposeDown, PromiseDown, OrderDown, StopOrder, Stopped, SideLost,
)  # fmt: skip


class DowningMachine:
    """One per node. `handle` and `tick` return effects in order, `deadline` is the next tick.

    strategy: None at level none, where only orders are carried out. seen_by: the members known to
    hold our very view, as of now. Peers' faults are counted in `ignored`, never raised.
    """

    def __init__(
        self,
        self_id: NodeId,
        strategy: Strategy | None,
        settings: DowningSettings,
        seen_by: Callable[[], frozenset[NodeId]],
    ) -> None:
        self.self_id = self_id
        self.strategy = strategy
        self.settings = settings
        self.ignored: Counter[str] = Counter()
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED_FROM_0, 0))
        self._seen_by = seen_by
        self._out: list[object] = []
        # Level none acts without contact, and decides nothing: any strategy will do.
        self._contact = Contact(strategy or DownAll(), settings, self._out.append)
        self._promises = Promises(settings)
        self._round: Round | None = None
        self._round_number = 0
        self._view: MembershipView | None = None
        self._lost: frozenset[NodeId] = frozenset()  # unreachable, and not down yet
        self._key: object = None
        self._changed_at = math.inf  # when the reachability that is decided about last changed
        self._first_change_at = math.inf  # since when it has not settled
        self._whole_since = -math.inf  # when the last of the unreachable came back
        self._lose_since = math.inf
        self._proposal: Proposal | None = None
        self._unsettled_told = False
        self._wanted = False
        self._told_until = math.inf if strategy is None else -math.inf
        self._held = strategy is None
        self._reminded: dict[NodeId, set[NodeId]] = {}  # doomed, as others have told us: by whom
        self._remind_at = math.inf
        self._noted: frozenset[NodeId] = frozenset()  # of our promises, as membership knows them
        self._doubtful_until = -math.inf  # one that does not lead says that we are downed
        self._ordered: dict[NodeId, float] = {}  # by an operator: since when
        self._wanted_down: dict[NodeId, float] = {}  # our operator's orders, for the decider
        self._order_at = math.inf
        self._stop_told_at: dict[NodeId, float] = {}  # first, for each that is to stop
        self._stop_at = math.inf
        self._stopped: set[NodeId] = set()
        self._mark_by = math.inf  # some subjects are silent: wait for the others until then
        self._told_to_stop_by: NodeId | None = None
        self._all_stopped = False
        self._arbiter_attempt = 0
        self._arbiter_at = math.inf  # when it is asked (again)
        self._arbiter_asked = False  # an answer is to come
        self._arbiter_wanted = False  # it was asked, and has not been given back
        self._arbiter_held = False
        self._arbiter_said = ""
        self._release_at = math.inf
        self._warned: tuple[str, ...] = ()
        self._doubted: tuple[Member, ...] | None = None  # the base that this is about
        self._ending = ""
        self._due = math.inf
        self._handlers: dict[type, Callable[..., None]] = {
            MembershipView: self._take_view,
            PeerMessage: self._on_message,
            Paused: self._on_pause,
            ContactWanted: self._on_wanted,
            DownRequested: self._on_request,
            NothingRuns: self._on_nothing_runs,
            ArbiterGranted: self._on_granted,
            ArbiterDenied: self._on_denied,
            ArbiterUnknown: self._on_unknown,
            ArbiterExtended: self._on_extended,
        }
        self._readers: dict[type, Callable[..., None]] = {
            ContactPing: self._on_ping,
            ContactAck: self._on_ack,
            ProposeDown: self._on_proposal,
            PromiseDown: self._on_promise,
            OrderDown: self._on_order,
            StopOrder: self._on_stop_order,
            Stopped: self._on_stopped,
            SideLost: self._on_side_lost,
        }

    # the machine's door

    def handle(self, event: object, now: float) -> list[object]:
        """Take in a fact; returns effects in order."""
        self._handlers[type(event)](event, now)
        return self._finish(now)

    def tick(self, now: float) -> list[object]:
        """Do what is due at `now`; harmless when called early."""
        self._contact.tick(now)
        return self._finish(now)

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        return self._due

    # reading

    @property
    def contact_until(self) -> float:
        """Whatever is unique here may act before this instant; `math.inf` at level none."""
        return math.inf if self.strategy is None else self._contact.until

    @property
    def doomed(self) -> frozenset[NodeId]:
        """Processes that will be down: promised about, ordered, or told by others."""
        return frozenset(self._promises.made) | self._confirmed_doom()

    # events

    def _take_view(self, view: MembershipView, now: float) -> None:
        before = self._view
        self._view = view
        self.self_id = view.self_id
        self._contact.view_changed(view, now)
        if (
            before is not None
            and before.unreachable == view.unreachable
            and before.members == view.members
        ):
            return
        members = view.by_id
        down = {node for node, member in members.items() if member.status >= Status.DOWN}
        self._promises.forget(down | view.gone.keys())
        for table in (self._reminded, self._ordered, self._wanted_down, self._stop_told_at):
            for node in [n for n in table if n not in members or members[n].status >= Status.DOWN]:
                table.pop(node)
        self._stopped.intersection_update(members)
        if self.strategy is not None:
            self._follow_reachability(view, before, now)

    def _follow_reachability(
        self, view: MembershipView, before: MembershipView | None, now: float
    ) -> None:
        """Each change of who is unreachable, up or down begins the wait anew."""
        before_lost = self._lost
        self._lost = frozenset(
            node for node in view.unreachable if view.by_id[node].status < Status.DOWN
        )
        if isinstance(self.strategy, LeaseMajority) and bool(self._lost) is not bool(before_lost):
            self._out.append(WatchArbiter(bool(self._lost)))
        voters = frozenset(member.id for member in view.members if member.status in COUNTED)
        key = (self._lost, voters)
        if key == self._key:
            return
        self._key = key
        self._changed_at = now
        self._lose_since = math.inf
        downed = before is not None and any(
            member.status is Status.DOWN
            and before.by_id.get(member.id, member).status is not Status.DOWN
            for member in view.members
        )
        self._proposal = None
        if not self._lost:
            if before_lost:
                self._whole_since = -math.inf if downed else now
        elif downed or (not before_lost and now >= self._whole_since + self.settings.down_after_s):
            # Marking one down is progress: what remains gets its own time. A heal that does not
            # last is none: a link that comes and goes leaves the view as unsettled as before.
            self._first_change_at, self._unsettled_told = now, False
        self._contact.hurry(now)

    def _doubt(self) -> None:
        """Whether the strategy suits the members that all agree on."""
        base = self._contact.base
        if base is self._doubted:
            return
        self._doubted = base
        doubts = tuple(warnings(self.strategy, base or ()))
        if doubts != self._warned:
            self._warned = doubts
            self._out.append(Publish(DowningDoubted(doubts)))

    def _on_pause(self, event: Paused, now: float) -> None:
        """What we did not do while we did not run says nothing about others."""
        restart = event.gap_s >= self.settings.down_after_s
        self._changed_at = now if restart else self._changed_at + event.gap_s
        self._first_change_at += event.gap_s
        self._whole_since += event.gap_s
        if self._lose_since < math.inf:
            self._lose_since = now if restart else self._lose_since + event.gap_s
        self._contact.hurry(now)

    def _on_wanted(self, event: ContactWanted, now: float) -> None:
        self._wanted = event.wanted

    def _on_nothing_runs(self, event: NothingRuns, now: float) -> None:
        self._all_stopped = True
        if self._told_to_stop_by is not None:
            self._out.append(Send(self._told_to_stop_by, Stopped()))

    # messages

    def _on_message(self, event: PeerMessage, now: float) -> None:
        if self._view is None:
            self.ignored["no view yet"] += 1
            return
        self._readers[type(event.message)](event.sender, event.message, event.via, now)

    def _on_ping(self, sender: NodeId, ping: ContactPing, via: NodeId | None, now: float) -> None:
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if member is None or member.status >= Status.DOWN:
            grant = Grant.GONE
        elif sender in self._promises.made:
            grant = Grant.PROMISED
        elif sender in self._view.unreachable:
            grant = Grant.UNREACHABLE
        else:
            grant = Grant.GIVEN
        self._contact.asked(sender, ping, via, grant, now)

    def _on_ack(self, sender: NodeId, ack: ContactAck, via: NodeId | None, now: float) -> None:
        if not self._contact.answered(sender, ack, now):
            self.ignored["ack unasked"] += 1
        elif ack.grant is Grant.PROMISED:
            self._refused_for_good(now)

    def _refused_for_good(self, now: float) -> None:
        """Members have promised never to grant us again. We end once that is enough for ever, or
        once two of them say so and another one has told us to stop."""
        assert self._view is not None
        promised = {n for n, g in self._contact.refusals.items() if g is Grant.PROMISED}
        rest = {member.id for member in self._view.members} - promised
        others = len(self._view.members) - 1
        told = now < self._doubtful_until and len(promised) >= min(REMINDERS_MIN, others)
        # Who lives by a lease may yet get it.
        by_lease = isinstance(self.strategy, LeaseMajority)
        for_ever = not by_lease and self._contact.base and not self._contact.survives(rest)
        if told or for_ever:
            self._end(DOWNED_EXIT, f"downed: {_addresses(promised)} promised it while they did "
                      f"not reach this node")  # fmt: skip

    def _on_proposal(
        self, sender: NodeId, proposal: ProposeDown, via: NodeId | None, now: float
    ) -> None:
        assert self._view is not None
        subjects = [node for node in proposal.subjects if node != self.self_id]
        if len(proposal.subjects) > self.settings.subjects_max or not self._may_decide(
            sender, proposal.subjects
        ):
            self.ignored["proposal of one that does not lead"] += 1
            return
        self._promise(subjects, now)
        told = self._promises.as_told(proposal.round, subjects, self._contact.given, now)
        self._out.append(Send(sender, told, via=via))

    def _promise(self, subjects: Collection[NodeId], now: float) -> None:
        self._promises.promise(subjects, self._contact.given, now)
        if self._promises.made and self._remind_at == math.inf:
            self._remind_at = now + self.settings.doomed_told_s

    def _may_decide(self, sender: NodeId, subjects: Collection[NodeId]) -> bool:
        """The leader of its side: nobody lower is left who could lead. One that we promised about
        decides nothing any more."""
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if member is None or member.status not in COUNTED or sender in self._promises.made:
            return False
        if sender == self._view.leader:
            return True
        out = {*subjects, *self._view.unreachable, *self._view.suspects, *self._promises.made}
        return not any(
            other.id < sender and other.status in COUNTED and other.id not in out
            for other in self._view.members
        )

    def _on_promise(
        self, sender: NodeId, promise: PromiseDown, via: NodeId | None, now: float
    ) -> None:
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if member is None or member.status >= Status.DOWN:
            self.ignored["promise of one that is down"] += 1
            return
        if promise.round == 0:
            for subject, _ in promise.promises:
                known = self._view.by_id.get(subject)
                if known is not None and known.status < Status.DOWN:
                    self._reminded.setdefault(subject, set()).add(sender)
        elif self._round is None or promise.round != self._round.number:
            self.ignored["promise of another round"] += 1
        elif not self._round.promised(sender, promise.promises, now):
            self.ignored["promise of one not asked"] += 1

    def _confirmed_doom(self) -> frozenset[NodeId]:
        """What others say that they promised, as far as one alone does not decide it."""
        if self._view is None:
            return frozenset()
        doubted = self._view.unreachable | self._view.suspects
        return frozenset(
            node
            for node, by in self._reminded.items()
            if len(by) >= REMINDERS_MIN or node in doubted or node in self._promises.made
        )

    # orders of an operator

    def _on_request(self, event: DownRequested, now: float) -> None:
        if event.subject == self.self_id:
            self._end(BY_OPERATOR_EXIT, "downed: an operator ordered it")
        elif self._leads:
            self._ordered.setdefault(event.subject, now)
        else:
            self._wanted_down[event.subject] = now
            self._order_at = now

    def _on_order(self, sender: NodeId, order: OrderDown, via: NodeId | None, now: float) -> None:
        assert self._view is not None
        member = self._view.by_id.get(sender)
        if member is None or member.status >= Status.DOWN or not self._leads:
            self.ignored["order to one that does not lead"] += 1
        elif order.subject == self.self_id:
            self._end(BY_OPERATOR_EXIT, f"downed: an operator ordered it at {sender.address}")
        elif order.subject in self._view.by_id:
            self._ordered.setdefault(order.subject, now)

    def _on_stop_order(
        self, sender: NodeId, order: StopOrder, via: NodeId | None, now: float
    ) -> None:
        if not self._may_decide(sender, ()):
            # It may decide because all of its side have promised about us: they will say so.
            self.ignored["stop order of one that does not lead"] += 1
            if self.strategy is not None:
                self._doubtful_until = now + self.settings.contact_s
                self._contact.hurry(now)
            return
        self._told_to_stop_by = sender
        if self._all_stopped:
            self._out.append(Send(sender, Stopped()))
        code = BY_OPERATOR_EXIT if order.by_operator else DOWNED_EXIT
        self._end(code, f"downed: told by {sender.address}: {order.reason[:500]}")

    def _on_stopped(self, sender: NodeId, _: Stopped, via: NodeId | None, now: float) -> None:
        if sender in self._stop_told_at:
            self._stopped.add(sender)
        else:
            self.ignored["stopped unasked"] += 1

    # the arbiter

    def _on_side_lost(self, sender: NodeId, lost: SideLost, via: NodeId | None, now: float) -> None:
        if isinstance(self.strategy, LeaseMajority) and self._may_decide(sender, ()):
            self._end(DOWNED_EXIT, f"downed: told by {sender.address}: {lost.reason[:500]}")
        else:
            self.ignored["verdict of one that does not lead"] += 1

    def _on_granted(self, event: ArbiterGranted, now: float) -> None:
        if event.attempt != self._arbiter_attempt:
            self.ignored["late answer of the arbiter"] += 1
            return
        self._arbiter_asked = False
        if self._proposal is None:
            # The view has changed meanwhile: nothing was decided with it.
            self._out.append(ReleaseArbiter())
            return
        self._decided(self._proposal)
        if self.self_id in self._proposal.downed:
            self._end(DOWNED_EXIT, f"downed: {self._proposal.why}")
        self._arbiter_held = True
        self._arbiter_said = "granted"
        self._contact.arbiter_until = event.until
        self._contact.refresh(now)

    def _on_extended(self, event: ArbiterExtended, now: float) -> None:
        self._contact.arbiter_until = event.until
        self._arbiter_held = event.until > now
        self._contact.refresh(now)

    def _on_denied(self, event: ArbiterDenied, now: float) -> None:
        if event.attempt != self._arbiter_attempt:
            self.ignored["late answer of the arbiter"] += 1
            return
        self._arbiter_asked = False
        self._arbiter_said = "denied"
        if self._proposal is None or self._view is None or self.strategy is None:
            return
        partition = self._partition(self._lost)
        verdict = self.strategy.reverse(partition, self._proposal)
        words = f"{verdict.why} ({event.holder})"
        for member in self._view.members:
            if member.id in verdict.downed and member.id not in (self._lost | {self.self_id}):
                self._out.append(Send(member.id, SideLost(words)))
        self._decided(verdict)
        self._end(DOWNED_EXIT, f"downed: {words}")

    def _on_unknown(self, event: ArbiterUnknown, now: float) -> None:
        if event.attempt != self._arbiter_attempt:
            self.ignored["late answer of the arbiter"] += 1
            return
        self._arbiter_asked = False
        self._arbiter_said = f"does not answer ({event.why})"
        self._arbiter_at = now + self.settings.arbiter_retry_s

    # what follows from what is known

    def _finish(self, now: float) -> list[object]:
        if self._view is not None:
            if not self._ending:
                if self.strategy is not None:
                    self._decide(now)
                self._carry_out(now)
                self._remind(now)
                self._pass_on_orders(now)
            if self.strategy is not None:
                self._doubt()
                all_members = (
                    bool(self._pending) or self._round is not None or now < self._doubtful_until
                )
                self._contact.ask(now, wanted=self._wanted, all_members=all_members)
                self._contact.tick(now)
                self._tell_contact(now)
        noted = frozenset(self._promises.made)
        if noted != self._noted:
            self._noted = noted
            self._out.append(NoteDoomed(noted))
        self._due = self._next_due(now)
        effects = self._out[:]
        self._out.clear()
        return effects

    def _next_due(self, now: float) -> float:
        if self._view is None:
            return math.inf
        due = self._contact.deadline
        if self._wanted and self._held and self.strategy is not None:
            due = min(due, self._contact.until)
        if self._ending:
            return due
        due = min(
            due, self._remind_at, self._order_at, self._stop_at, self._release_at, self._mark_by
        )
        if self._pending:
            due = min(due, self._lose_since + self.settings.down_after_s, self._next_look(now))
        if self._round is not None:
            due = min(due, self._round.due(now), self._promises.due(now))
        return due

    def _tell_contact(self, now: float) -> None:
        until = self._contact.until
        if until != self._told_until:
            self._told_until = until
            self._out.append(SetContact(until))
        held = until > now
        if held is self._held:
            return
        self._held = held
        if self._wanted:
            self.counters["contact-gained" if held else "contact-lost"] += 1
            self._out.append(Publish(ContactChanged(held, self._explain_contact(now))))

    @property
    def _pending(self) -> frozenset[NodeId]:
        """Unreachable members, also those that are down already and only have to be removed."""
        view = self._view
        if view is None or self.strategy is None:
            return frozenset()
        return view.unreachable - {self.self_id}

    @property
    def _decider(self) -> NodeId | None:
        """Who decides for this side: its leader, or the next one where that is doomed."""
        view = self._view
        if view is None:
            return None
        doomed = self.doomed
        if view.leader not in doomed:
            return view.leader
        return min(
            (
                member.id
                for member in view.members
                if member.status in COUNTED
                and member.id not in view.unreachable
                and member.id not in doomed
            ),
            default=None,
        )

    @property
    def _leads(self) -> bool:
        return self._decider == self.self_id

    @property
    def _me(self) -> Member | None:
        return self._view.by_id.get(self.self_id) if self._view is not None else None

    def _known(self) -> set[NodeId]:
        """Ourselves, and who has answered since the last change and is not down."""
        assert self._view is not None
        members = self._view.by_id
        known = self._contact.known_since(self._changed_at)
        alive = {n for n in known if n in members and members[n].status < Status.DOWN}
        return alive | {self.self_id}

    def _unknown(self, known: Collection[NodeId]) -> frozenset[NodeId]:
        """Counted members that are neither unreachable nor known to be with us."""
        assert self._view is not None
        return frozenset(
            member.id
            for member in self._view.members
            if member.status in COUNTED and member.id not in self._lost and member.id not in known
        )

    def _partition(self, lost: frozenset[NodeId]) -> PartitionView:
        view = self._view
        assert view is not None
        more = tuple((self.self_id, node) for node in sorted(lost - view.unreachable))
        return PartitionView(
            members=view.members,
            unreachable=lost | (view.unreachable - {self.self_id}),
            records=view.records + more,
            # Of one that hardly answers the fault is its own, not that of the links to those who
            # say so: as little heard as one that is silent, or it would take them along.
            seen_by=self._seen_by() - (lost - view.unreachable) - view.held,
            self_id=self.self_id,
        )

    def _ask_strategy(self, lost: frozenset[NodeId]) -> Proposal:
        """What the strategy says; what members noted before they were lost themselves never takes
        along more than that."""
        assert self.strategy is not None
        partition = self._partition(lost)
        proposal = self.strategy.decide(partition)
        without = partition.without_last_words(self._known())
        if without is partition:
            return proposal
        milder = self.strategy.decide(without)
        takes_less = set(milder.downed) < set(proposal.downed)
        return milder if takes_less and self.self_id not in milder.downed else proposal

    def _decide(self, now: float) -> None:
        """Do we win, do we lose, or do we have to wait?"""
        if not self._lost:
            self._lose_since = math.inf
            self._leave_arbiter(now)
        if not self._pending:
            return
        assert self.strategy is not None
        known = self._known()
        unknown = self._unknown(known)
        proposal = self._ask_strategy(self._lost)
        careful = proposal
        if unknown:
            careful = self._ask_strategy(self._lost | unknown)
        by_lease = proposal.kind.asks_lease
        has_base = self._contact.base is not None
        # Who became up at the moment of the cut knows no view that all had: it cannot decide, and
        # must not stand in the way of those who can.
        me = self._me
        joint = by_lease or (
            self._survives_in_base(known) if has_base else me is None or not me.counts
        )
        loses = (self.self_id in careful.downed and not by_lease) or not joint
        if loses and self._lost:
            self._lose_since = min(self._lose_since, now)
            if now >= self._lose_since + self.settings.down_after_s:
                self._lose(careful, joint, unknown)
                return
        else:
            self._lose_since = math.inf
        self._note_unsettled(now)
        if self._ending:
            return
        stable = now >= self._changed_at + self.settings.down_after_s
        wins = stable and not unknown and joint and has_base and self._lose_since == math.inf
        if not wins:
            self._proposal = None
        elif self._proposal is None or self._proposal.downed != proposal.downed:
            self._proposal = proposal
            if self._leads and not by_lease:
                self._decided(proposal)
        if by_lease and self._proposal is not None and self._leads:
            self._ask_arbiter(now)

    def _survives_in_base(self, present: Collection[NodeId]) -> bool:
        assert self.strategy is not None
        assert self._contact.base is not None
        return self.strategy.survives(self._contact.base, present)

    def _decided(self, proposal: Proposal) -> None:
        fact = DowningDecided(str(proposal.decision), proposal.downed, proposal.why)
        self._out.append(Publish(fact))

    def _lose(self, verdict: Proposal, joint: bool, unknown: frozenset[NodeId]) -> None:
        words = verdict.why
        if self.self_id not in verdict.downed and not joint:
            base = self._contact.base
            words = (
                f"{self.strategy}: those that answer are too few of the {len(base)} members of the "
                f"last view that all agreed on"
                if base
                else f"{self.strategy}: this node has been a member for too short a time to know a "
                "view that all agreed on"
            )
        if unknown:
            words += f"; no answer of {_addresses(unknown)}"
        self._decided(verdict)
        self._end(DOWNED_EXIT, f"downed: {words}; unreachable: {_addresses(self._lost)}")

    @property
    def _awaits_arbiter(self) -> bool:
        return self._proposal is not None and self._proposal.kind.asks_lease

    @property
    def _unsettled_since(self) -> float:
        return self._first_change_at if self._lost else math.inf

    def _note_unsettled(self, now: float) -> None:
        for_s = now - self._unsettled_since
        # A side that waits for the arbiter has settled; what is unknown downs nobody.
        limit_s = None if self._awaits_arbiter else self.settings.down_all_when_unstable_s
        if limit_s is not None and for_s > self.settings.down_after_s + limit_s:
            words = (
                f"the view did not settle for {for_s:.1f} s (down_all_when_unstable_s={limit_s:g})"
            )
            self._decided(down_everything(self._partition(self._lost), words))
            self._end(DOWNED_EXIT, f"downed: {words}; unreachable: {_addresses(self._lost)}")
        elif for_s > UNSETTLED_AFTER * self.settings.down_after_s and not self._unsettled_told:
            self._unsettled_told = True
            self.counters["unsettled"] += 1
            self._out.append(Publish(DowningUnsettled(for_s, self.explain(now))))

    def _next_look(self, now: float) -> float:
        """When the passing of time alone changes a verdict."""
        due = self._changed_at + self.settings.down_after_s
        if due <= now:
            # One that is past waits for an event: an answer, or that we lead again.
            due = self._arbiter_at if self._arbiter_at > now else math.inf
        unstable_s = self.settings.down_all_when_unstable_s
        if unstable_s is not None and not self._awaits_arbiter:
            # Just after: the limit has to be exceeded.
            limit_s = self.settings.down_after_s + unstable_s + 0.001
            due = min(due, self._unsettled_since + limit_s)
        if not self._unsettled_told:
            unsettled_s = UNSETTLED_AFTER * self.settings.down_after_s + 0.001
            due = min(due, self._unsettled_since + unsettled_s)
        return due

    def _end(self, code: int, reason: str) -> None:
        if not self._ending:
            self._ending = reason
            self._out.append(Exit(code, reason))

    # the arbiter's side

    def _ask_arbiter(self, now: float) -> None:
        assert self._proposal is not None
        assert isinstance(self.strategy, LeaseMajority)
        if self._arbiter_held or self._arbiter_asked:
            return
        self._release_at = math.inf
        if self._arbiter_at == math.inf:
            delay_s = self.strategy.minority_delay_s if self._proposal.delay == "minority" else 0.0
            self._arbiter_at = max(now, self._changed_at + self.settings.down_after_s + delay_s)
        if now >= self._arbiter_at:
            self._arbiter_at = math.inf
            self._arbiter_attempt += 1
            self._arbiter_asked = self._arbiter_wanted = True
            self._out.append(AskArbiter(self._arbiter_attempt))

    def _leave_arbiter(self, now: float) -> None:
        """Nothing is unreachable any more: a lease that we hold is given back after a while."""
        self._arbiter_at = math.inf
        if not self._arbiter_held:
            if self._arbiter_wanted:
                self._arbiter_wanted = self._arbiter_asked = False
                self._arbiter_attempt += 1  # what is answered yet comes too late
                self._out.append(ReleaseArbiter())
            return
        assert isinstance(self.strategy, LeaseMajority)
        if self._release_at == math.inf:
            self._release_at = now + self.strategy.release_after_s
        if now >= self._release_at:
            self._release_at = math.inf
            self._arbiter_held = self._arbiter_wanted = False
            self._contact.arbiter_until = -math.inf
            self._contact.refresh(now)
            self._out.append(ReleaseArbiter())

    # carrying out

    def _subjects(self) -> frozenset[NodeId]:
        """Who is to be downed by us, the decider."""
        assert self._view is not None
        found = {*self._promises.made, *self._confirmed_doom(), *self._ordered}
        proposal = self._proposal
        if proposal is not None and (not proposal.kind.asks_lease or self._arbiter_held):
            found.update(proposal.downed)
        members = self._view.by_id
        return frozenset(
            n for n in found
            if n in members and members[n].status < Status.DOWN and n != self.self_id
        )  # fmt: skip

    def _carry_out(self, now: float) -> None:
        assert self._view is not None
        self._ordered = {
            node: since
            for node, since in self._ordered.items()
            if now < since + self.settings.order_kept_s
        }
        subjects = self._subjects() if self._leads else frozenset()
        if not subjects:
            self._round = None
            self._stop_at = self._mark_by = math.inf
            return
        if self.strategy is None:
            silent = self._silent_by_order(subjects, now)
        else:
            silent = self._silent_by_promises(subjects, now)
        done = silent | (subjects & self._stopped)
        # All of them together: a side that is half downed counts otherwise.
        if done and self._mark_by == math.inf:
            self._mark_by = now + self.settings.down_after_s
        if done == subjects or now >= self._mark_by:
            self._mark_by = math.inf
            ordered = done.intersection(self._ordered) - self._stopped
            for nodes, cause in ((done & self._stopped, Cause.LEFT),
                                 (ordered, Cause.ORDERED),
                                 (done - self._stopped - ordered, Cause.DOWNED)):  # fmt: skip
                if nodes:
                    self._out.append(MarkDown(tuple(sorted(nodes)), cause))
        self._tell_to_stop(subjects - done, now)

    def _silent_by_order(self, subjects: frozenset[NodeId], now: float) -> frozenset[NodeId]:
        """At level none an order is enough; one that can be reached gets the time to stop."""
        assert self._view is not None
        patience_s = self.settings.stop_timeout_s
        return frozenset(
            node
            for node in subjects
            if node in self._view.unreachable or now >= self._ordered.get(node, now) + patience_s
        )

    def _silent_by_promises(self, subjects: frozenset[NodeId], now: float) -> frozenset[NodeId]:
        """Those that all of the side have promised about, for long enough."""
        self._promise(sorted(subjects), now)
        if self._round is None or self._round.subjects != subjects:
            self._round_number += 1
            self._round = Round(self._round_number, subjects, self.settings, self._out.append)
            self.counters["rounds"] += 1
        known = self._known()
        side = self._side(known)
        self._round.ask(side, sorted(node for node in side if node in known), now)
        return frozenset(self._round.may_mark(self._promises.made, self._wins, now))

    def _side(self, known: Collection[NodeId]) -> list[NodeId]:
        """Everybody else who counts and is with us, also one that only a record calls away."""
        assert self._view is not None
        return [
            member.id
            for member in self._view.members
            # One that is exiting counts no more here, but it does in the base.
            if Status.UP <= member.status < Status.DOWN
            and member.id != self.self_id
            and (member.id not in self._lost or member.id in known)
        ]

    def _wins(self, promisers: Collection[NodeId]) -> bool:
        """True when those that promised, and we, are a side that lives."""
        if isinstance(self.strategy, LeaseMajority):
            # Without the arbiter's word only one that stops by itself is downed.
            return self._arbiter_held
        return self._contact.survives({*promisers, self.self_id})

    def _tell_to_stop(self, subjects: Collection[NodeId], now: float) -> None:
        """Those that we reach are told, again and again, until they have stopped."""
        assert self._view is not None
        reachable = [
            node
            for node in sorted(subjects)
            if node not in self._view.unreachable or node in self._known()
        ]
        if not reachable:
            self._stop_at = math.inf
            return
        fresh = [node for node in reachable if node not in self._stop_told_at]
        for node in fresh if now < self._stop_at else reachable:
            self._stop_told_at.setdefault(node, now)
            by_operator = node in self._ordered
            reason = "an operator ordered it" if by_operator else self._why_down(node)
            self._out.append(Send(node, StopOrder(by_operator, reason)))
        if fresh or now >= self._stop_at:
            self._stop_at = now + self.settings.ack_timeout_s

    def _why_down(self, node: NodeId) -> str:
        if self._proposal is not None and node in self._proposal.downed:
            return self._proposal.why
        return "the members promised it while it was unreachable"

    def _remind(self, now: float) -> None:
        """Whoever leads now must carry out what was promised to one before."""
        if not self._promises.made:
            self._remind_at = math.inf
            return
        if now < self._remind_at:
            return
        self._remind_at = now + self.settings.doomed_told_s
        leader = self._decider
        if leader is not None and leader != self.self_id:
            given = self._contact.given
            told = self._promises.as_told(0, sorted(self._promises.made), given, now)
            self._out.append(Send(leader, told))

    def _pass_on_orders(self, now: float) -> None:
        """To the leader, whoever that is by now."""
        kept_s = self.settings.order_kept_s
        for node in [n for n, since in self._wanted_down.items() if now >= since + kept_s]:
            del self._wanted_down[node]
        if not self._wanted_down:
            self._order_at = math.inf
            return
        if now < self._order_at:
            return
        self._order_at = now + self.settings.ack_timeout_s
        assert self._view is not None
        for node in sorted(self._wanted_down):
            if self._leads:
                self._ordered.setdefault(node, now)
            elif self._decider is not None:
                self._out.append(Send(self._decider, OrderDown(node)))

    # words

    def state(self, now: float) -> dict[str, Any]:
        """What `/cluster` shows under `downing`."""
        if self.strategy is None:
            return {
                "strategy": "none",
                "verdict": None,
                "stable_for_s": None,
                "decides_in_s": None,
                "explain": self.explain(now),
                "doomed": sorted(node.address for node in self._ordered),
                "warnings": [],
                "agreed_members": None,
                "contact": None,
            }
        stable_for_s = max(0.0, now - self._changed_at) if self._lost else None
        decides_in_s = None
        if stable_for_s is not None and self._proposal is None:
            decides_in_s = round(max(0.0, self.settings.down_after_s - stable_for_s), 3)
        until = self._contact.until
        return {
            "strategy": str(self.strategy),
            "verdict": self._verdict(),
            "stable_for_s": None if stable_for_s is None else round(stable_for_s, 3),
            "decides_in_s": decides_in_s,
            "explain": self.explain(now),
            "doomed": sorted(node.address for node in self.doomed),
            "warnings": list(self._warned),
            "agreed_members": None if self._contact.base is None else len(self._contact.base),
            "contact": {
                "asked": self._wanted,
                "held": until > now,
                "for_s": None if until == math.inf else round(max(0.0, until - now), 3),
                "explain": self._explain_contact(now),
            },
        }

    def _verdict(self) -> str | None:
        if self._ending:
            return "this node ends"
        if self._proposal is not None:
            return str(self._proposal.kind)
        if self._lose_since < math.inf:
            return "loses"
        return "waits" if self._lost else None

    def explain(self, now: float) -> str:
        """What is decided, or what a decision waits for, for an operator."""
        if self._ending:
            return f"this node ends: {self._ending}"
        if self._view is None:
            return "not a member of a cluster yet"
        parts = [self._explain_split(now)] if self._lost else []
        if self._round is not None:
            parts.append(self._explain_round())
        elif self._ordered or self._wanted_down:
            nodes = self._ordered.keys() | self._wanted_down.keys()
            parts.append(f"an operator ordered {_addresses(nodes)} down")
        if parts:
            return "; ".join(parts)
        if self.strategy is None:
            return (
                "level none: an unreachable member is settled by its return, its restart, the "
                "proof that its process ended, or `python -m node down ADDRESS`"
            )
        return "nothing is unreachable"

    def _explain_split(self, now: float) -> str:
        words = f"unreachable: {_addresses(self._lost)}"
        stable_s = max(0.0, now - self._changed_at)
        left_s = self.settings.down_after_s - stable_s
        unknown = self._unknown(self._known())
        if self._lose_since < math.inf:
            ends_s = max(0.0, self._lose_since + self.settings.down_after_s - now)
            words += f"; this side loses, this node ends in {ends_s:.1f} s unless it heals"
        elif self._proposal is not None:
            words += f"; {self._proposal.why}"
            if self._proposal.kind.asks_lease and not self._arbiter_held:
                words += f"; the lease {self._arbiter_said or 'is asked'}"
            elif not self._leads and self._decider is not None:
                words += f"; {self._decider.address} decides for this side"
        elif left_s > 0:
            expected = self._ask_strategy(self._lost).why
            words += f"; decided in {left_s:.1f} s if nothing changes ({expected})"
        if unknown:
            words += f"; no answer of {_addresses(unknown)} since it changed"
        if self._contact.base is None:
            words += "; no converged view was seen yet"
        return words

    def _explain_round(self) -> str:
        assert self._round is not None
        silent = self._round.silent
        words = f"downing {_addresses(self._round.subjects)}"
        if silent:
            return f"{words}: waiting for the promise of {_addresses(silent)}"
        if not self._wins(self._side(self._known())):
            return f"{words}: this side would not survive by {self.strategy}"
        return f"{words}: waiting until their last grants are over"

    def _explain_contact(self, now: float) -> str:
        until = self._contact.until
        if until == math.inf:
            return "this node is enough by itself"
        if until > now:
            return f"held for another {until - now:.1f} s"
        if self._contact.base is None:
            return "no converged view was seen yet"
        missing = list(self._contact.missing(now))
        refused = [
            f"{node.address} ({grant.name.lower()})"
            for node, grant in sorted(self._contact.refusals.items())
            if node in missing
        ]
        if not missing:
            return f"all members grant it, and they are too few for {self.strategy}"
        words = f"too few members grant it: no word of {_addresses(missing)}"
        return f"{words}; refused by {', '.join(refused)}" if refused else words


def _addresses(nodes: Collection[NodeId]) -> str:
    shown = sorted(nodes)[:10]
    more = f" and {len(nodes) - len(shown)} more" if len(nodes) > len(shown) else ""
    return ", ".join(node.address for node in shown) + more if shown else "nobody"
