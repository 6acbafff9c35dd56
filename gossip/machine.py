"""Who is in the cluster and who is reachable: the membership of one node, as a pure machine.

Decides, with the parts it owns: joining and founding (`seeking`, `admission`), failure detection
(`probing`, `watching`, `evidence`), how news spreads (`dissemination`), whose word is merged
(`authority`, `hearsay`), when a view has converged (`convergence`), and what the leader then does
with statuses (`leading`). Does not decide which side of a split lives (downing), nor who hosts
what. Called by `node.core` with events of `gossip.events`; answers with effects. Holds no clock,
no socket, no randomness but the generator it is given.

Convergence (evidence that everybody holds our very view): each member that counts and is reachable
has reported both our digests, in a frame received after our own view took that value, from that
uid, since it was last unreachable, and not before a pause of ours; and no unreachable member is
undecided. Only then the leader moves statuses.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from gossip.admission import GONE_EXIT, Admission
from gossip.authority import Authority, facts_of, flaw_of
from gossip.convergence import Convergence
from gossip.dissemination import Rumour, RumourQueue
from gossip.effects import Paused, Send
from gossip.events import (
    CloseLinks,
    ConvergenceBlocked,
    Dialled,
    Exit,
    LeaveRequested,
    LinkLost,
    MemberChanged,
    MemberRemoved,
    MembersDoomed,
    MembersDowned,
    PeerFrame,
    ProcessEnded,
    ReachabilityChanged,
    Remember,
    SeedsResolved,
    Started,
    TypesHosted,
    UnwatchProcess,
    WatchRefused,
)
from gossip.evidence import LinkEvidence
from gossip.ground import Ground
from gossip.hearsay import VOICES, Claim, Departure, Hearsay, Promotion
from gossip.leading import Patience, Step, converged_steps, impatient_steps
from gossip.membership import (
    NUMBER_MAX,
    Cause,
    Member,
    MembershipView,
    NodeId,
    Status,
    Tombstone,
)
from gossip.messages import (
    JOIN_MESSAGES,
    Ack,
    Agreed,
    Dissolve,
    Gossip,
    Head,
    IAm,
    Invite,
    JoinChallenge,
    JoinConfirm,
    JoinRequest,
    LinkAnswer,
    LinkQuestion,
    Nack,
    Notice,
    Ping,
    PingRequest,
    Suspicion,
    SyncOffer,
    SyncReply,
    ViewSeen,
    ViewSeenAck,
    WhoAreYou,
    YouAreGone,
)
from gossip.probing import Prober
from gossip.reachability import Record
from gossip.seeking import Seeker
from gossip.settings import GossipSettings

CLOSE_DELAY_S = 1.0
BLOCKED_REPEAT_S = 60.0
REMEMBER_LEFT_S = 600.0
SETTLE_STEPS_MAX = 64
LEADS = (Status.UP, Status.LEAVING)
VERDICT_VALID_S = 10.0
VERDICT_ASKS = 3
EXIT_BY_CAUSE = {
    Cause.LEFT: (0, "left"),
    Cause.DOWNED: (10, "downed"),
    Cause.ORDERED: (11, "downed by an operator's order"),
}


class GossipMachine:
    """Membership of one node. `handle(event, now)` and `tick(now)` return effects, in order.

    member: our own record (status joining, up_number 0). agreement: (key, value) pairs on which
    all members must agree to be admitted. rng: the only randomness.
    """

    def __init__(
        self,
        member: Member,
        *,
        cluster_name: str,
        settings: GossipSettings,
        rng: random.Random,
        agreement: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._ground = ground = Ground(member, cluster_name, settings, rng)
        self._seeker = Seeker(ground, agreement)
        self._admission = Admission(ground, agreement)
        self._prober = Prober(ground)
        self._evidence = LinkEvidence(ground, self._prober)
        self._authority = Authority(ground)
        self._hearsay = Hearsay(ground)
        self._verdicts: dict[NodeId, float] = {}  # who says that we are gone, since when
        self._verdict_asked_at = -math.inf
        self._dissolvers: set[NodeId] = set()
        self._convergence = Convergence(ground)
        self._patience = Patience(ground)
        self._told_gone: dict[NodeId, float] = {}
        self._told_again: dict[NodeId, float] = {}
        self._closing: dict[NodeId, float] = {}
        self._buried_at: dict[NodeId, float] = {}
        self._gossip_at = math.inf
        self._gossip_gap_s = settings.gossip_interval_s
        self._gossiped_at = -math.inf
        self._head = Head(counter=-1)
        self._settled: tuple[object, ...] = ()  # what was settled last, and until when it holds
        self._settle_by = math.inf
        self._roster = -1
        self._leave_by = math.inf
        self._vote_by = math.inf  # we leave, and stay for a decision until then
        self._blocked_at = math.inf  # when it is due to be said who blocks convergence
        self._leader: NodeId | None = None
        self._view: MembershipView | None = None
        self._view_key: object = None
        self._view_version = 0
        self._remembered: tuple[str, ...] = ()
        self._remembered_roster = -1
        self._left_at: dict[str, float] = {}  # addresses that left in order, and are remembered yet
        self._ended = False
        self._doomed: frozenset[NodeId] = frozenset()  # as a strategy's side has promised
        self._agreed_digest = 0  # of the members that all held when the leader last said so
        self._handlers: dict[type, Callable[..., None]] = {
            PeerFrame: self._peer_frame,
            LinkLost: lambda event, now: self._evidence.link_lost(event.peer, now),
            Dialled: self._dialled,
            ProcessEnded: self._process_ended,
            WatchRefused: lambda event, now: self._evidence.watch_refused(event.peer),
            Paused: self._paused,
            Started: self._started,
            SeedsResolved: self._seeds_resolved,
            LeaveRequested: self._leave_requested,
            MembersDowned: self._members_downed,
            MembersDoomed: self._members_doomed,
            TypesHosted: self._types_hosted,
        }
        self._messages = self._message_handlers()

    def _message_handlers(self) -> dict[type, Callable[..., None]]:
        return {
            Ping: lambda sender, message, now: self._prober.pinged(sender, message),
            Ack: self._acked,
            PingRequest: self._prober.ping_requested,
            Nack: self._prober.nacked,
            Gossip: self._apply,
            Notice: self._noticed,
            ViewSeen: lambda sender, message, now: None,
            ViewSeenAck: self._view_seen_acked,
            Agreed: self._told_agreed,
            SyncOffer: self._sync_offered,
            SyncReply: self._sync_replied,
            JoinRequest: self._admission.requested,
            JoinConfirm: self._join_confirmed,
            JoinChallenge: self._admission.challenged,
            Invite: self._admission.invited,
            WhoAreYou: self._admission.asked_who,
            IAm: self._told_who,
            Dissolve: self._dissolved,
            YouAreGone: self._told_we_are_gone,
            LinkQuestion: lambda sender, message, now: self._evidence.questioned(sender, message),
            LinkAnswer: self._evidence.answered,
        }

    # the machine's door

    def handle(self, event: object, now: float) -> list[object]:
        """Take in a fact; returns effects in order."""
        if not self._ended:
            self._handlers[type(event)](event, now)
            self._settle(now)
        return self._take_out()

    def tick(self, now: float) -> list[object]:
        """Do what is due."""
        if not self._ended:
            self._seeker.tick(now)
            if self._ground.cluster_id:
                self._member_tick(now)
            self._settle(now)
        return self._take_out()

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due; `math.inf` when idle or ended."""
        if self._ended:
            return math.inf
        if not self._ground.cluster_id:
            return self._seeker.deadline
        due = min(
            self._prober.deadline,
            self._evidence.deadline,
            self._admission.deadline,
            self._hearsay.deadline,
            self._convergence.deadline,
            self._gossip_at,
            self._leave_by,
            self._vote_by if self._leave_by == math.inf else math.inf,
            self._blocked_at,
            self._settle_by,
        )
        return min(due, *self._closing.values()) if self._closing else due

    def _take_out(self) -> list[object]:
        ground = self._ground
        effects, ground.out = ground.out, []
        if len(effects) == 1 and type(effects[0]) is Send:
            return effects  # by far the most usual
        if any(type(effect) is Exit for effect in effects):
            self._ended = True
        return effects

    # reading, for core and explanations

    @property
    def self_id(self) -> NodeId:
        """Our own id (it changes only when a tombstone bears it while we look for a cluster)."""
        return self._ground.self_id

    @property
    def roles(self) -> tuple[str, ...]:
        """Our own roles."""
        return self._ground.me.roles

    @property
    def cluster_id(self) -> int:
        """The cluster we belong to, 0 while there is none."""
        return self._ground.cluster_id

    @property
    def head(self) -> Head:
        """What each of our control frames tells of our view."""
        table, cluster_id = self._ground.table, self._ground.cluster_id
        head = self._head
        if head.counter != table.counter or head.cluster_id != cluster_id:
            head = self._head = Head(
                cluster_id, table.members_digest, table.reach_digest, table.counter
            )
        return head

    @property
    def view(self) -> MembershipView | None:
        """The last published view; None before there is a cluster."""
        return self._view

    @property
    def counters(self) -> dict[str, int]:
        """What was dropped or ignored, by reason."""
        return {**self._ground.counters, "table-dropped": self._ground.table.dropped}

    @property
    def local_health(self) -> int:
        """0: this node seems well; each point stretches its probes by one interval."""
        return self._prober.health_score

    def failing_links(self) -> list[tuple[NodeId, NodeId]]:
        """(observer, subject) of each link that fails, sorted: of every record that calls a member
        unreachable, and of our own links to members that only others reach."""
        own = self._ground.self_id
        failing = {(own, node) for node in self._prober.failing_links}
        return sorted(failing.union(self._standing_records()))

    def seen_by(self) -> frozenset[NodeId]:
        """Members known to hold our very view, ourselves among them."""
        return self._convergence.seen_by | {self._ground.self_id}

    def _standing_records(self) -> tuple[tuple[NodeId, NodeId], ...]:
        table = self._ground.table
        return tuple(
            sorted(
                (observer, subject)
                for subject in table.unreachable
                for observer in table.accusers(subject)
            )
        )

    def explain(self, now: float) -> str:
        """In words: why there is no cluster yet, or who blocks convergence."""
        if self._seeker.looking:
            return self._seeker.waiting_for(now)
        view = self._view
        if self._prober.is_isolated(now):
            return (
                f"no member has said anything for {self._prober.silent_s(now):.0f} s: most likely "
                f"this node is cut off"
            )
        if view is None or view.converged:
            return "converged"
        blocked_by = self.blocked_by
        if not blocked_by:
            return "waiting for the leader to acknowledge this view"
        undecided = [node.address for node in blocked_by if node in view.unreachable]
        if undecided:
            by = "or the proof that the process ended"
            if self._ground.settings.downing:
                by = "the proof that the process ended, or by the downing strategy"
            return (
                f"convergence waits for {', '.join(undecided)}, unreachable and not known to be "
                f"gone: settled by a return, a restart, {by}"
            )
        silent = ", ".join(node.address for node in blocked_by)
        return f"convergence waits for the report of {silent}"

    def accepts(self, sender: NodeId, head: Head) -> bool:
        """True when messages of this frame that are not membership's may be handed on: those of
        members.

        Also those of a process that we hold as gone: its answer "nothing runs here any more" is
        the very thing that a hand-over waits for.
        """
        ground = self._ground
        if not ground.cluster_id or head.cluster_id != ground.cluster_id:
            return False
        return sender in ground.table.members or sender in ground.table.gone

    # events

    def _started(self, event: Started, now: float) -> None:
        self._seeker.start(event, now)
        if self._ground.cluster_id:
            self._became_member(now)

    def _seeds_resolved(self, event: SeedsResolved, now: float) -> None:
        was_looking = self._seeker.looking
        self._seeker.resolved(event, now)
        if was_looking and self._ground.cluster_id:
            self._became_member(now)

    def _became_member(self, now: float) -> None:
        self._admission.start_island_probe(now)

    def _peer_frame(self, event: PeerFrame, now: float) -> None:
        sender, head, ground = event.sender, event.head, self._ground
        if sender == ground.self_id:
            self._count("frame-from-ourselves")
            return
        for message in event.messages:
            if type(message) in JOIN_MESSAGES:
                self._join_message(sender, message, now)
            elif self._is_fellow(sender, head, now):
                self._authority.confirm(sender, sender)
                self._hearsay.heard(sender)
                self._prober.frame_came(now)
                self._messages[type(message)](sender, message, now)
            elif self._is_stranger(sender, head):
                self._stranger_said(sender, message, now)
            elif isinstance(message, YouAreGone) and self._accuses_back(sender, head):
                self._told_we_are_gone(sender, message, now)
        if ground.cluster_id and head.cluster_id == ground.cluster_id:
            self._convergence.reported(sender, head, event.messages, now)

    def _join_message(self, sender: NodeId, message: object, now: float) -> None:
        if self._ground.cluster_id:
            handler = self._messages.get(type(message))
            if handler is None:
                self._count("join-message-to-member")
            else:
                handler(sender, message, now)
            return
        self._seeker.peer_message(sender, message, now)
        if not self._seeker.looking:
            view = getattr(message, "view", None)
            if view is not None:
                self._welcomed(sender, view, now)
                told = next(m for m in view.members if m.id == self._ground.self_id)
                if told.record_version != self._ground.me.record_version:
                    # What we changed of our record since we asked is news to them.
                    self._ground.originate(self._ground.me)
            self._became_member(now)

    def _is_fellow(self, sender: NodeId, head: Head, now: float) -> bool:
        """Frames of another cluster, or of a process we hold as gone, are not merged."""
        ground = self._ground
        if not ground.cluster_id or head.cluster_id != ground.cluster_id:
            self._count("foreign-cluster")
            return False
        if self._authority.has_standing(sender):
            return True
        member = ground.table.members.get(sender)
        gone = ground.table.gone.get(sender)
        if gone is None and member is None:
            return False  # a stranger
        if now - self._told_gone.get(sender, -math.inf) >= ground.settings.gossip_interval_s:
            if len(self._told_gone) >= ground.settings.pending_joins_max:
                self._told_gone.clear()
            self._told_gone[sender] = now
            cause = gone if gone is not None else (member.cause if member else Cause.DOWNED)
            ground.send(sender, YouAreGone(sender.uid, int(cause)))
        self._count("frame-from-gone")
        return False

    def _is_stranger(self, sender: NodeId, head: Head) -> bool:
        """It names our cluster, but we never heard of it."""
        ground = self._ground
        return (
            ground.cluster_id != 0
            and head.cluster_id == ground.cluster_id
            and sender not in ground.table.members
            and sender not in ground.table.gone
        )

    def _stranger_said(self, sender: NodeId, message: object, now: float) -> None:
        """Nothing of it is merged. A ping is answered: the others may know it already."""
        self._admission.met_stranger(sender, now)
        if isinstance(message, Ping):
            self._prober.pinged(sender, message)
            return
        self._authority.refuse("no-standing", sender)
        if isinstance(message, YouAreGone) and not self._ground.reachable_peers():
            # Whom we know is gone, and it knows our uid: all have changed while we were away.
            self._told_we_are_gone(sender, message, now)

    def _accuses_back(self, sender: NodeId, head: Head) -> bool:
        """Each of two holds the other as gone, and we know nobody else any more: one has to stop.

        One that never was up loses nothing; of two that were, the younger one stops.
        """
        ground, me = self._ground, self._ground.me
        if head.cluster_id != ground.cluster_id or ground.reachable_peers():
            return False
        known = ground.table.members.get(sender)
        theirs = known.up_number if known is not None else 0
        return me.up_number == 0 or (theirs > 0 and (theirs, sender) < me.age_key)

    def _dialled(self, event: Dialled, now: float) -> None:
        believed = self._hearsay.dialled(event)
        if believed is not None:
            self._believe(believed, now)
        elif self._prober.dialled(event, now):
            return
        elif event.attempt == 0:
            self._seeker.dialled(event, now)
            if self._ground.cluster_id:
                self._became_member(now)
        elif self._evidence.dialled(event, now):
            self._process_ended(ProcessEnded(event.peer), now)

    def _process_ended(self, event: ProcessEnded, now: float) -> None:
        """Proof by the kernel: down at once, at every level, whoever saw it.

        Who had announced its leave had stopped everything before: it left.
        """
        ground = self._ground
        self._admission.free_tenant(event.peer)
        stone = ground.table.tombstones.get(event.peer)
        if stone is not None:
            if stone.cause is not Cause.LEFT and ground.table.bury(
                replace(stone, cause=Cause.CRASHED)
            ):
                ground.originate(ground.table.tombstones[event.peer])
            return
        member = ground.table.members.get(event.peer)
        if member is not None and not (member.status is Status.DOWN and member.cause is Cause.LEFT):
            leaves = member.status in (Status.LEAVING, Status.EXITING)
            cause = Cause.LEFT if leaves else Cause.CRASHED
            self._move(member, Status.DOWN, now, cause=cause)

    def _members_downed(self, event: MembersDowned, now: float) -> None:
        """A decision that was made above: it moves the members at once, and all are told."""
        with self._noticing():
            for node in sorted(event.members):
                member = self._ground.table.members.get(node)
                if member is not None and member.status < Status.DOWN:
                    self._move(member, Status.DOWN, now, cause=event.cause)

    def _members_doomed(self, event: MembersDoomed, now: float) -> None:
        self._doomed = event.members

    def _paused(self, event: Paused, now: float) -> None:
        self._convergence.void_all()
        self._seeker.void(now)
        self._prober.paused(event.gap_s, now)
        self._hearsay.paused(now)

    def _leave_requested(self, event: LeaveRequested, now: float) -> None:
        if not self._ground.cluster_id:
            self._ground.out.append(Exit(0, "stopped before a cluster was found"))
        elif not self._must_stay_to_vote(now):
            self._announce_leave(now)

    def _must_stay_to_vote(self, now: float) -> bool:
        """While a member is unreachable and undecided its side may need our vote: the leave is
        announced once that is settled, or its time is up."""
        if not self._ground.settings.downing or not self._convergence.undecided:
            return False  # nothing to decide, or nobody who does
        if self._vote_by == math.inf:
            self._vote_by = now + self._ground.settings.vote_timeout_s
        return now < self._vote_by

    def _announce_leave(self, now: float) -> None:
        ground = self._ground
        if not ground.reachable_peers():
            ground.out.append(Exit(0, "left; no other reachable member"))
            return
        self._leave_by = now + ground.settings.leave_timeout_s
        self._move(ground.me, Status.LEAVING, now)
        peers = ground.reachable_peers()
        if len(peers) <= ground.settings.notice_fanout_max:
            # They tell it on as well: we may be gone before it has reached all.
            news = Gossip(members=(ground.me,), floor=ground.table.floor)
            for peer in peers:
                ground.send(peer, news)

    def _types_hosted(self, event: TypesHosted, now: float) -> None:
        me = self._ground.me
        types = tuple(sorted(event.types))
        if types != me.types:
            self._take_member(
                replace(me, types=types, record_version=min(me.record_version + 1, NUMBER_MAX)),
                now,
                origin=True,
                first_hand=True,
            )

    # messages

    def _acked(self, sender: NodeId, message: Ack, now: float) -> None:
        if self._admission.acked(sender, message.seq) or self._hearsay.acked(sender, message.seq):
            return
        self._prober.acked(sender, message, now)

    def _join_confirmed(self, sender: NodeId, message: JoinConfirm, now: float) -> None:
        member = self._admission.confirmed(sender, message, now)
        if member is not None:
            self._take_member(member, now, tell_on=False)
            self._authority.vouch(member)
            self._admission.admitted(sender, now)

    def _told_who(self, sender: NodeId, message: IAm, now: float) -> None:
        if self._admission.told_who(sender, message, now):
            self._remember_rival(sender)

    def _remember_rival(self, member: NodeId) -> None:
        """Our cluster stops for a larger one: after a restart, ask there."""
        others = [address for address in self._remembered if address != member.address]
        kept = others[: self._ground.settings.remembered_max - 1]
        self._ground.out.append(Remember(tuple(sorted({*kept, member.address}))))

    def _dissolved(self, sender: NodeId, message: Dissolve, now: float) -> None:
        """A fellow says that the cluster stops: on the word of two, of the leader, or of the other
        cluster itself, which we ask."""
        ground = self._ground
        is_of_ours = message.other_member in ground.table.members
        if message.other_cluster_id == ground.cluster_id and is_of_ours:
            return
        self._dissolvers.add(sender)
        if len(self._dissolvers) < VOICES and not self._has_authority(sender, now):
            self._admission.ask_who(message.other_member)
            return
        self._remember_rival(message.other_member)
        self._ground.out.append(Exit(GONE_EXIT, message.reason))

    def _told_we_are_gone(self, sender: NodeId, message: YouAreGone, now: float) -> None:
        if message.uid == self._ground.self_id.uid:
            how = f"told by {sender.address}: it was decided while this node was not reached"
            self._verdict(sender, message.cause, how, now)

    def _verdict(self, sender: NodeId, cause: int, how: str, now: float) -> None:
        """A peer holds us as down or removed. We stop, unless it may be the only one to say so.

        Believed: the leader; two members; whoever says it when no other member is reachable, or
        when we leave anyway. Otherwise others are asked: who agrees answers any ping with it.
        """
        ground = self._ground
        self._verdicts = {
            node: at for node, at in self._verdicts.items() if now - at < VERDICT_VALID_S
        }
        self._verdicts.setdefault(sender, now)
        others = [node for node in ground.reachable_peers() if node not in self._verdicts]
        if (
            self._leave_by < math.inf
            or len(self._verdicts) >= VOICES
            or not others
            or self._has_authority(sender, now)
        ):
            self._we_are_gone(cause, how)
            return
        self._count("verdict-of-one")
        if now - self._verdict_asked_at >= ground.settings.gossip_interval_s:
            self._verdict_asked_at = now
            for node in ground.sample(others, VERDICT_ASKS):
                self._prober.probe_soon(node, now)

    def _we_are_gone(self, cause: int, how: str) -> None:
        known = Cause(cause) if cause in Cause.__members__.values() else Cause.NONE
        code, word = EXIT_BY_CAUSE.get(known, (GONE_EXIT, f"no longer a member ({known.name})"))
        if self._leave_by < math.inf:
            code, word = 0, "left"
        self._ground.out.append(Exit(code, f"{word}: {how}"))

    # merging news

    def _welcomed(self, sender: NodeId, view: Gossip, now: float) -> None:
        """The view of the cluster that admits us: whoever lets us in decides what we begin with.

        None of it is told on: it is no news to anybody but us.
        """
        ground = self._ground
        if 0 <= view.floor <= NUMBER_MAX:
            ground.table.raise_floor(view.floor)
        for member in view.members:
            if flaw_of(member) is not None:
                self._authority.refuse("status-impossible", sender)
            elif member.id == ground.self_id:
                if member.status < Status.LEAVING:
                    ours = replace(ground.me, status=member.status, up_number=member.up_number)
                    self._take_member(ours, now)
            else:
                limit = ground.table.incarnation_limit(member.id)
                if member.incarnation > limit:
                    member = replace(member, incarnation=limit)
                self._take_member(member, now)
        for stone in view.tombstones:
            if stone.id != ground.self_id and 0 < stone.number <= NUMBER_MAX:
                self._take_tombstone(stone, now)
        for record in view.records:
            self._take_record(sender, record, now)
        ground.rumours = RumourQueue(ground.settings.rumours_max)
        ground.verdict_heard = False

    def _noticed(self, sender: NodeId, message: Notice, now: float) -> None:
        self._ground.tells_on = False
        self._apply(sender, message.news, now)
        self._ground.tells_on = True

    def _apply(self, sender: NodeId, news: Gossip, now: float) -> None:
        """Merge what a member tells, each item as far as it may tell it."""
        ground, authority = self._ground, self._authority
        if news.floor > ground.table.floor and authority.vet_floor(sender, news.floor):
            ground.table.raise_floor(news.floor)
        for member in news.members:
            if member.id == ground.self_id:
                self._told_of_ourselves(sender, member, now)
            elif member == ground.table.members.get(member.id) and member.id != sender:
                authority.confirm(member.id, sender)
                self._prober.remind(sender, member.id, member.incarnation, now)
            else:
                self._told_of_member(sender, member, now)
        for stone in news.tombstones:
            self._told_of_removal(sender, stone, now)
        for record in news.records:
            self._take_record(sender, record, now)
        for suspicion in news.suspicions:
            if suspicion.subject == ground.self_id:
                self._refute(sender, suspicion.incarnation, now)
            elif self._is_answered(suspicion):
                accused = ground.table.members[suspicion.subject]
                self._tell_again(sender, accused.id, accused, now)
            elif suspicion.accuser == ground.self_id:
                continue  # ours comes back, or never was: we know ourselves whom we suspect
            elif authority.vet_suspicion(sender, suspicion):
                self._prober.suspect(
                    suspicion.subject, suspicion.incarnation, suspicion.accuser, now, voice=sender
                )

    def _is_answered(self, suspicion: Suspicion) -> bool:
        """True when the accused has shown a higher incarnation since."""
        member = self._ground.table.members.get(suspicion.subject)
        return member is not None and member.incarnation > suspicion.incarnation

    def _tell_again(self, sender: NodeId, key: NodeId, member: Member, now: float) -> None:
        """The sender holds what is over: tell it, at most once per gossip interval and key."""
        ground = self._ground
        interval_s = ground.settings.gossip_interval_s
        if now - self._told_again.get(key, -math.inf) >= interval_s:
            if len(self._told_again) >= ground.settings.pending_joins_max:
                self._told_again.clear()
            self._told_again[key] = now
            ground.send(sender, Gossip(members=(member,), floor=ground.table.floor))

    def _take_record(self, sender: NodeId, record: Record, now: float) -> None:
        ground = self._ground
        if not self._authority.vet_record(sender, record):
            return
        if record.observer == ground.self_id:
            self._told_of_own_record(sender, record)
            return
        if ground.table.put_record(record):
            ground.relay(record)
        if record.subject == ground.self_id and record.unreachable:
            self._refute(sender, record.subject_incarnation, now)

    def _told_of_own_record(self, sender: NodeId, record: Record) -> None:
        """One that we wrote comes back; one that we did not write is replaced by a later one."""
        own = self._ground.table.records.get(record.key)
        if record.subject not in self._ground.table.members or record == own:
            return
        if own is None or record.version >= own.version:
            self._authority.refuse("own-record-forged", sender)
            self._prober.reassert(record)

    def _refute(self, sender: NodeId, incarnation: int, now: float) -> None:
        """Somebody holds us suspect or unreachable at this incarnation: show a higher one."""
        me = self._ground.me
        if incarnation < me.incarnation:
            self._tell_again(sender, sender, me, now)  # it missed our answer
            return
        if not self._authority.can_answer(incarnation):
            # Only we raise it, and no relay makes any honest member believe in so high a one.
            self._authority.refuse("incarnation-forged", sender)
            return
        self._prober.refuted_ourselves()
        # What was too high to be answered before may not be so any more.
        while incarnation >= me.incarnation:
            me = replace(me, incarnation=incarnation + 1)
            self._ground.table.put_member(me)
            incarnation = max(filter(self._authority.can_answer, self._accused_at()), default=-1)
        self._ground.originate(me)

    def _accused_at(self) -> list[int]:
        """The incarnations at which records call us unreachable."""
        return [
            record.subject_incarnation
            for record in self._ground.table.records.values()
            if record.subject == self._ground.self_id and record.unreachable
        ]

    def _told_of_ourselves(self, sender: NodeId, claim: Member, now: float) -> None:
        """Of a record about ourselves only promotion, the leave's progress and down are theirs."""
        me = self._ground.me
        if flaw_of(claim) is not None:
            self._authority.refuse("status-impossible", sender)
            return
        self._answer_forgery(sender, claim)
        if claim.status is Status.DOWN:
            self._verdict(sender, int(claim.cause), "the members decided it", now)
            return
        promoted = claim.up_number > 0 and (
            me.up_number == 0 or claim.up_number < me.up_number
        ) and self._may_promote(sender, claim, now)  # fmt: skip
        status = me.status
        if claim.status is Status.WEAKLY_UP or (promoted and status < Status.UP):
            status = max(status, min(claim.status, Status.UP))
        if claim.status in (Status.LEAVING, Status.EXITING):
            if me.status >= Status.LEAVING:
                status = max(status, claim.status)
            else:
                self._authority.refuse("leave-forged", sender)
        up_number = claim.up_number if promoted else me.up_number
        self._take_member(replace(me, status=status, up_number=up_number), now)

    def _answer_forgery(self, sender: NodeId, claim: Member) -> None:
        """Others hold of us what we never said: say it anew, so that ours is the later word."""
        ground, me = self._ground, self._ground.me
        if claim.record_version > me.record_version or (
            claim.record_version == me.record_version and claim.types != me.types
        ):
            self._authority.refuse("own-record-forged", sender)
            version = min(claim.record_version + 1, NUMBER_MAX)
            later = replace(me, record_version=version)
            ground.table.put_member(later, first_hand=True)
            ground.originate(later)
        elif facts_of(claim) != facts_of(me):
            self._authority.refuse("own-record-forged", sender)
            ground.send(sender, Gossip(members=(me,), floor=ground.table.floor))

    def _told_of_member(self, sender: NodeId, told: Member, now: float) -> None:
        """A record of another member: its status only as far as the sender may move it."""
        table = self._ground.table
        claim = self._authority.vet_member(sender, told, now)
        if claim is None:
            return
        self._prober.remind(sender, claim.id, claim.incarnation, now)
        ours = table.members.get(claim.id)
        status, up_number, cause = (
            (Status.JOINING, 0, Cause.NONE)
            if ours is None
            else (ours.status, ours.up_number, ours.cause)
        )
        if claim.status >= Status.LEAVING:
            if self._may_depart(sender, claim, ours, now):
                status, cause = max(status, claim.status), max(cause, claim.cause)
        elif claim.status is Status.WEAKLY_UP:
            status = max(status, claim.status)
        if claim.up_number > 0 and (up_number == 0 or claim.up_number < up_number):
            # The age of who leaves decides nothing any more.
            ends = status >= Status.LEAVING
            if ends or self._may_promote(sender, claim, now):
                status, up_number = max(status, Status.UP), claim.up_number
        own_word = sender == claim.id
        if (claim.status, claim.up_number, claim.cause) != (status, up_number, cause):
            claim = replace(claim, status=status, up_number=up_number, cause=cause)
        self._take_member(claim, now, first_hand=own_word)
        if own_word and told.status < Status.LEAVING:
            self._hearsay.stays(claim.id, now)

    def _may_promote(self, sender: NodeId, claim: Member, now: float) -> bool:
        return self._has_authority(sender, now) or self._hearsay.promoted(
            sender, Promotion(claim.id, claim.up_number), now
        )

    def _may_depart(
        self, sender: NodeId, claim: Member, ours: Member | None, now: float
    ) -> bool:  # fmt: skip
        """True when this sender's word is enough for a member to be leaving, or gone."""
        if sender == claim.id:
            return claim.status is not Status.DOWN
        if ours is None:
            # Nobody is taken out; and one that leaves could be taken for the leader.
            return claim.status is Status.DOWN or self._has_authority(sender, now)
        if ours.status >= Status.LEAVING:
            return True
        return self._is_departure_believed(
            sender, Departure(claim.id, claim.status, claim.cause), now
        )

    def _is_departure_believed(self, sender: NodeId, claim: Departure, now: float) -> bool:
        """Our own senses agree, the leader says it, or (see `hearsay`) others do."""
        node = claim.subject
        return (
            node in self._doomed
            or self._prober.doubts(node)
            or self._evidence.is_examining(node)
            or self._has_authority(sender, now)
            or self._hearsay.departed(sender, claim, now)
        )

    def _told_of_removal(self, sender: NodeId, stone: Tombstone, now: float) -> None:
        ground, node = self._ground, stone.id
        if node == ground.self_id:
            self._verdict(sender, int(stone.cause), "removed from the cluster", now)
            return
        if not self._authority.vet_tombstone(sender, stone):
            return
        ours = ground.table.members.get(node)
        if (
            ours is None
            or ours.status >= Status.LEAVING
            or self._is_departure_believed(
                sender, Departure(node, Status.REMOVED, stone.cause, stone.number), now
            )
        ):
            self._take_tombstone(stone, now)

    def _believe(self, claims: list[Claim], now: float) -> None:
        """Hearsay that is hearsay no more."""
        for claim in claims:
            ours = self._ground.table.members.get(claim.subject)
            if ours is None:
                continue
            match claim:
                case Promotion():
                    up_number = min(claim.up_number, ours.up_number or claim.up_number)
                    status = max(ours.status, Status.UP)
                    self._take_member(replace(ours, status=status, up_number=up_number), now)
                case Departure(status=Status.REMOVED):
                    self._take_tombstone(Tombstone(ours.id, claim.number, claim.cause), now)
                case Departure():
                    status, cause = max(ours.status, claim.status), max(ours.cause, claim.cause)
                    self._take_member(replace(ours, status=status, cause=cause), now)

    def _has_authority(self, sender: NodeId, now: float) -> bool:
        """True when the sender may promote and remove: it is the leader here.

        One that leads only because others call every lower member unreachable has to wait: a liar
        could call them so, and they need a moment to answer.
        """
        if sender != self._leader:
            return False
        members = self._ground.table.members
        settled_at = now - self._ground.settings.authority_after_s
        return not any(
            node < sender
            and node in members
            and members[node].status in LEADS
            and self._patience.unreachable_since(node, now) > settled_at
            and not self._prober.doubts(node)
            for node in self._ground.unreachable
        )

    def _take_member(
        self, member: Member, now: float, *, origin: bool = False, first_hand: bool = False,
        tell_on: bool = True,
    ) -> None:  # fmt: skip
        """Merge a record that may be merged, tell it on, and follow its status."""
        ground = self._ground
        before = ground.table.members.get(member.id)
        if not ground.table.put_member(member, first_hand=first_hand):
            return
        merged = ground.table.members[member.id]
        if tell_on:
            self._spread(merged, origin)
        if before is not None and merged.incarnation > before.incarnation:
            self._prober.refuted(member.id, merged.incarnation)
            ground.verdict_heard |= tell_on  # the end of one hurries as well
        if before is None or before.status is not merged.status:
            ground.publish(MemberChanged(merged, before.status if before else None))
            self._status_moved(merged, before, now)

    def _status_moved(self, member: Member, before: Member | None, now: float) -> None:
        ground, node = self._ground, member.id
        if node == ground.self_id:
            return
        if member.status >= Status.LEAVING:
            self._believe(self._hearsay.leaves(node), now)
        if before is None:
            self._prober.add(node, now)
            self._evidence.member_appeared(member)
        self._patience.status_moved(member, now)
        if member.status is Status.DOWN:
            self._admission.free_tenant(node)
            self._prober.remove(node)
            self._evidence.forget(node)
            self._convergence.void(node)
            if member.cause.is_proof:
                ground.out.append(UnwatchProcess(node))
                self._close_links(node, now)

    def _take_tombstone(self, tombstone: Tombstone, now: float, *, origin: bool = False) -> None:
        ground, node = self._ground, tombstone.id
        was_member = ground.table.members.get(node)
        if not ground.table.bury(tombstone):
            return
        self._spread(ground.table.tombstones.get(node, tombstone), origin)
        self._buried_at[node] = now
        if was_member is None:
            return
        self._authority.forget(node)
        self._hearsay.forget(node)
        self._prober.remove(node)
        self._evidence.forget(node)
        self._convergence.void(node)
        self._patience.forget(node)
        self._close_links(node, now)
        if tombstone.cause.is_proof:
            ground.out.append(UnwatchProcess(node))
        if tombstone.cause is not Cause.LEFT:
            self._admission.removed(node, now)
        if tombstone.cause is Cause.LEFT and len(self._left_at) < ground.settings.remembered_max:
            self._left_at[node.address] = now
        ground.publish(MemberRemoved(node, tombstone.cause))

    def _close_links(self, node: NodeId, now: float) -> None:
        # What tells it that it is gone may still be queued.
        self._closing.setdefault(node, now + CLOSE_DELAY_S)

    def _spread(self, rumour: Rumour, origin: bool) -> None:
        if origin:
            self._ground.originate(rumour)
        else:
            self._ground.relay(rumour)

    def _move(
        self, member: Member, status: Status, now: float, *, up_number: int = 0,
        cause: Cause = Cause.NONE,
    ) -> None:  # fmt: skip
        """Move a status here and now, and tell the others."""
        moved = replace(
            member,
            status=max(member.status, status),
            up_number=member.up_number or up_number,
            cause=max(member.cause, cause),
        )
        self._take_member(moved, now, origin=True)

    # comparing views

    def _view_seen_acked(self, sender: NodeId, message: ViewSeenAck, now: float) -> None:
        if sender != self._leader:
            return
        if message.counter > self._ground.table.counter:
            self._authority.refuse("number-impossible", sender)
            return
        self._convergence.acked(message.counter)

    def _told_agreed(self, sender: NodeId, message: Agreed, now: float) -> None:
        if sender != self._leader:
            self._count("agreed-by-one-that-does-not-lead")
        elif message.members_digest == self._ground.table.members_digest:
            self._agreed_digest = message.members_digest

    def _note_agreed(self) -> None:
        """We lead, and everybody has reported our very view: tell it to all who count."""
        ground = self._ground
        digest = ground.table.members_digest
        if not ground.settings.downing or self._agreed_digest == digest or not self._may_lead():
            return
        if self._convergence.is_complete and ground.is_sure:
            self._agreed_digest = digest
            for peer in ground.reachable_peers():
                ground.send(peer, Agreed(digest))

    def _sync_offered(self, sender: NodeId, message: SyncOffer, now: float) -> None:
        table = self._ground.table
        if message.floor > table.floor and self._authority.vet_floor(sender, message.floor):
            table.raise_floor(message.floor)
        self._ground.send(sender, table.answer(message))

    def _sync_replied(self, sender: NodeId, message: SyncReply, now: float) -> None:
        self._apply(sender, message.news, now)
        wanted = self._ground.table.pick(
            message.want_members, message.want_tombstones, message.want_records
        )
        if wanted.members or wanted.tombstones or wanted.records:
            self._ground.send(sender, wanted)

    # time

    def _member_tick(self, now: float) -> None:
        ground = self._ground
        self._prober.tick(now)
        self._evidence.tick(now)
        self._believe(self._hearsay.tick(now), now)
        for tenant in self._admission.tick(now):
            self._superseded(tenant, now)
        self._admission.island_tick(self._seeker.outside_addresses, now)
        if now >= self._gossip_at:
            self._gossip_tick(now)
        self._convergence.tick(now)
        for node in sorted(n for n, at in self._closing.items() if now >= at):
            del self._closing[node]
            ground.out.append(CloseLinks(node))
        if now >= self._blocked_at:
            self._blocked_at = now + BLOCKED_REPEAT_S
            ground.publish(ConvergenceBlocked(self._convergence.undecided, self.explain(now)))
        if now >= self._leave_by:
            if self._must_stay_to_vote(now):
                self._leave_by = min(now + ground.settings.leave_timeout_s, self._vote_by)
            else:
                why = "left; the others did not acknowledge it in time"
                ground.out.append(Exit(0, why))

    def _superseded(self, tenant: NodeId, now: float) -> None:
        """A newcomer has the address of a member that does not answer: it cannot come back.

        Not a proof that it ended: who waits for its answer goes on waiting, and where a strategy
        decides, so does the newcomer.
        """
        member = self._ground.table.members.get(tenant)
        if member is not None and member.status < Status.DOWN:
            self._prober.mark_unreachable(tenant, member.incarnation, now)
            if self._ground.settings.downing or not self._ground.is_sure:
                return
            self._move(member, Status.DOWN, now, cause=Cause.SUPERSEDED)

    def _gossip_tick(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        self._gossip_at = math.inf
        self._gossiped_at = now
        self._gossip_gap_s = min(2 * self._gossip_gap_s, settings.gossip_interval_s)
        for peer in ground.sample(ground.reachable_peers(), settings.gossip_fanout):
            news = ground.take_rumours()
            if news is None:
                break
            ground.send(peer, news)

    def _plan_gossip(self, now: float) -> None:
        """While there are rumours there is a tick; after a verdict it comes soon, so that all know
        within a few of the shortest gaps, and the next ones come later and later."""
        ground = self._ground
        if ground.verdict_heard:
            ground.verdict_heard = False
            self._gossip_gap_s = ground.settings.hurry_s
        if len(ground.rumours):
            due = max(now, self._gossiped_at + self._gossip_gap_s)
            self._gossip_at = min(self._gossip_at, due)

    # settling after each event

    def _settle(self, now: float) -> None:
        ground = self._ground
        if not ground.cluster_id:
            ground.urgent.clear()
            return
        state = self._state()
        if state != self._settled or now >= self._settle_by:
            for _ in range(SETTLE_STEPS_MAX):
                self._look_again(now)
                if not self._lead(now):
                    break
            else:
                raise AssertionError("leader actions do not come to rest")
            self._note_agreed()
            self._publish_view()
            self._note_blocked(now)
            self._remember(now)
            self._settled = self._state()
            self._settle_by = self._next_settling()
        waits = self._vote_by < math.inf and self._leave_by == math.inf
        if waits and not self._must_stay_to_vote(now):
            self._vote_by = math.inf
            self._announce_leave(now)
        if ground.urgent:
            ground.flush_urgent()
        self._convergence.plan_report(now)
        self._plan_gossip(now)

    def _next_settling(self) -> float:
        """When there is something to settle although nothing has changed."""
        due = math.inf
        if self._ground.me.status < Status.LEAVING:
            due = min(self._left_at.values(), default=math.inf) + REMEMBER_LEFT_S
        if self._may_lead():
            due = min(due, self._patience.deadline)
            if self._convergence.is_complete:
                oldest = next(iter(self._buried_at.values()), math.inf)
                due = min(due, oldest + self._ground.settings.tombstone_ttl_s)
        return due

    def _state(self) -> tuple[object, ...]:
        """Everything that settling depends on but time: while it stands there is nothing to do."""
        ground = self._ground
        return (
            ground.table.version, self._prober.version, self._convergence.version, ground.is_sure,
            self._agreed_digest,
        )  # fmt: skip

    def _look_again(self, now: float) -> None:
        """Follow the table: what is unreachable, who leads, which reports still count."""
        ground, table = self._ground, self._ground.table
        if table.orphans:
            # Who called them unreachable is gone; that is no sign of life of theirs.
            orphans, table.orphans = table.orphans, set()
            for node in sorted(orphans - {ground.self_id}):
                self._prober.take_over(node, now)
        unreachable = table.unreachable
        if ground.self_id in unreachable:
            unreachable -= {ground.self_id}
        moved = unreachable != ground.unreachable
        if moved:
            changed = unreachable ^ ground.unreachable
            for node in sorted(changed):
                self._patience.reachability_changed(node, node not in unreachable, now)
                if node in unreachable:
                    self._convergence.void(node)
                    # Nothing gets through on a connection that is lost; a new dial notices the
                    # heal at once, where the old one would wait for TCP to try again.
                    ground.out.append(CloseLinks(node))
                if node in table.members:
                    ground.publish(ReachabilityChanged(node, node not in unreachable))
            ground.unreachable = unreachable
            self._prober.reachability_changed(changed, now)
        if moved or self._roster != table.roster:
            self._roster = table.roster
            self._prober.roster_changed(now)
        leader = self._find_leader()
        if leader != self._leader:
            self._leader = ground.leader = leader
            self._convergence.leader_changed()
        self._convergence.follow()
        if self._leave_by < math.inf and not ground.reachable_peers():
            ground.out.append(Exit(0, "left; no other reachable member"))

    def _find_leader(self) -> NodeId | None:
        ground = self._ground
        members, unreachable = ground.table.members, ground.unreachable
        second: NodeId | None = None
        for node in ground.table.nodes:
            status = members[node].status
            if status is Status.DOWN or node in unreachable:
                continue
            if status in LEADS:
                return node
            second = second or node
        return second

    def _may_lead(self) -> bool:
        """False for one that never was up, while all that were are only out of its reach."""
        ground = self._ground
        return self._leader == ground.self_id and (ground.me.counts or ground.up_count() == 0)

    def _lead(self, now: float) -> bool:
        """The leader's steps that are due; True when they changed the view."""
        ground = self._ground
        if not self._may_lead():
            return False
        steps = impatient_steps(ground, self._patience, now)
        if not steps and self._convergence.is_complete and ground.is_sure:
            steps = converged_steps(ground, self._convergence.has_heard)
            if not steps:
                return self._prune(now)
        if steps:
            with self._noticing():
                for step in steps:
                    self._perform(step, now)
        return bool(steps)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """What is decided within is told to all at once, by us."""
        ground = self._ground
        notices = ground.notices = []
        try:
            yield
        finally:
            ground.notices = None
        ground.notify(notices)

    def _perform(self, step: Step, now: float) -> None:
        if step.status is Status.REMOVED:
            self._remove(step.member, now)
        else:
            self._move(step.member, step.status, now, up_number=step.up_number, cause=step.cause)

    def _remove(self, member: Member, now: float) -> None:
        cause = Cause.LEFT if member.status is Status.EXITING else member.cause
        tombstone = Tombstone(member.id, self._ground.table.next_removal(), cause)
        self._take_tombstone(tombstone, now, origin=True)
        # The removed one is no peer any more, so the rumour would not reach it.
        self._ground.send(
            member.id, Gossip(tombstones=(tombstone,), floor=self._ground.table.floor)
        )

    def _prune(self, now: float) -> bool:
        """Raise the floor over tombstones that are old, or too many; all follow it."""
        ground, table = self._ground, self._ground.table
        stones = sorted(table.tombstones.values(), key=lambda stone: stone.number)
        excess = len(stones) - ground.settings.tombstones_max
        floor = 0
        for index, stone in enumerate(stones):
            age_s = now - self._buried_at.get(stone.id, now)
            if index >= excess and age_s < ground.settings.tombstone_ttl_s:
                break
            floor = stone.number
            self._buried_at.pop(stone.id, None)
        return table.raise_floor(floor)

    # publishing

    def _publish_view(self) -> None:
        ground, table = self._ground, self._ground.table
        convergence = self._convergence
        if self._leader == ground.self_id:
            converged = convergence.is_complete
        else:
            converged = not convergence.undecided and convergence.is_acked
        suspects = self._prober.suspects
        unresponsive = self._prober.unresponsive & suspects
        key = (
            table.version, ground.unreachable, suspects, unresponsive, self._leader, converged,
            convergence.undecided, self._agreed_digest == table.members_digest,
        )  # fmt: skip
        if key == self._view_key:
            return
        self._view_key = key
        self._view_version += 1
        self._view = MembershipView(
            self_id=ground.self_id,
            cluster_id=ground.cluster_id,
            members=tuple(table.members[node] for node in table.nodes),
            unreachable=ground.unreachable,
            suspects=suspects,
            unresponsive=unresponsive,
            gone=table.gone,
            leader=self._leader,
            converged=converged,
            blocked_by=self.blocked_by,
            version=self._view_version,
            records=self._standing_records(),
            members_digest=table.members_digest,
            agreed=self._agreed_digest == table.members_digest,
            held=frozenset(
                node for node in ground.unreachable if any(r.held for r in table.standing(node))
            ),
        )
        ground.publish(self._view)

    @property
    def blocked_by(self) -> tuple[NodeId, ...]:
        """Members for which the view has not converged, as of now; sorted."""
        convergence = self._convergence
        if self._leader != self._ground.self_id:
            return convergence.undecided
        return tuple(sorted({*convergence.undecided, *convergence.silent}))

    def _note_blocked(self, now: float) -> None:
        """An unreachable member that nobody decides about is named, soon and then again."""
        if not self._convergence.undecided:
            self._blocked_at = math.inf
        elif self._blocked_at == math.inf:
            self._blocked_at = now + self._ground.settings.weakly_up_after_s

    def _remember(self, now: float) -> None:
        """Keep the addresses of the counted members; of those that left in order for a while.

        When a whole cluster is stopped in order, its last member must not forget the others: it
        would found a second cluster beside theirs when all come back.
        """
        ground = self._ground
        is_due = now >= min(self._left_at.values(), default=math.inf) + REMEMBER_LEFT_S
        if ground.me.status >= Status.LEAVING or (
            self._remembered_roster == ground.table.roster and not is_due
        ):
            return
        self._remembered_roster = ground.table.roster
        counted = {node.address for node, m in ground.table.members.items() if m.counts}
        for address, at in list(self._left_at.items()):
            if address in counted or now >= at + REMEMBER_LEFT_S:
                del self._left_at[address]
        addresses = tuple(sorted(counted | self._left_at.keys()))[: ground.settings.remembered_max]
        if addresses != self._remembered:
            self._remembered = addresses
            ground.out.append(Remember(addresses))

    def _count(self, reason: str) -> None:
        self._ground.counters[reason] += 1
