"""SWIM: who is probed when, who is suspected, and when a suspect is called unreachable.

Decides the next target (round robin over a shuffled list, and one of the watched), the indirect
probes, suspicion and its end, the re-dial of unreachable members, and this node's own reachability
records. Does not decide who is a member or gone for good. Used by `gossip.machine`.
Source: SWIM (DSN 2002); local health, nacks, suspicion timeouts, buddy: Lifeguard (2018).

Before its suspicion ends a suspect is dialled and pinged a few times more: a process whose I/O
thread greets lives, whatever its event loop does. It is *unresponsive* then, and its suspicion
lasts as long as one may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossip.events import Dial, Dialled, DialOutcome, HeardNobody, KeepLinks, LinkChanged
from gossip.ground import Ground
from gossip.health import LocalHealth
from gossip.membership import NUMBER_MAX, NodeId, Status
from gossip.messages import Ack, Gossip, Nack, Ping, PingRequest, Suspicion
from gossip.reachability import Record
from gossip.suspicion import suspicion_min_s, suspicion_timeout_s
from gossip.watching import Watch

OPEN_PINGS_MAX = 4096
WITNESSES_MAX = 3
"""More records about one unreachable member say nothing new; half a cluster lost at once would
otherwise make a quarter of its square of them."""
NACK_SHARE = 0.8
"""A helper says so early that its nack arrives before the probe ends."""
ASK_AFTER_PAUSE = 3
CHOOSE_AFTER_S = 1.0
LATE_SHARE = 0.5
SILENT_INTERVALS = 4
ISOLATED_FROM_MIN = 3  # one or two others may well have gone together
ISOLATED_MULT = 2  # whoever hears nobody accuses at last after so many of the longest suspicions
PINGS_KEPT_S = 60.0
REDIALS_PER_SUBJECT_S = 50  # of all members together; alone each would dial once per second
BYSTANDER_WAIT_S = (0.1, 0.4)
LAST_QUESTIONS = 4
"""So often a suspect is dialled and pinged before its suspicion ends."""


@dataclass(slots=True)
class _Probe:
    target: NodeId
    indirect_at: float
    is_watch: bool
    acked: bool = False
    acked_directly: bool = False
    helpers: frozenset[NodeId] = frozenset()
    acked_by: set[NodeId] = field(default_factory=set)
    nacked_by: set[NodeId] = field(default_factory=set)

    @property
    def is_missed(self) -> bool:
        """Neither we nor most of the helpers had an ack."""
        return not self.acked_directly and 2 * len(self.acked_by) <= len(self.helpers)


@dataclass(slots=True)
class _Ping:
    """A ping on its way: for ourselves, or (`origin`) for a member that asked us."""

    target: NodeId
    sent_at: float
    origin: NodeId | None = None
    origin_seq: int = 0


@dataclass(slots=True)
class _Suspect:
    incarnation: int
    since: float
    deadline: float
    accusers: set[NodeId] = field(default_factory=set)
    voices: set[NodeId] = field(default_factory=set)  # whose connections brought the accusations
    attempts: set[int] = field(default_factory=set)  # of the dials before it ends
    asked_at: float = math.inf  # when it is dialled next
    asked_from: float = math.inf  # when it was first, before this end
    is_alive: bool = False  # its process answered a dial


class Prober:
    """The failure detector of one node."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._is_plain = not ground.settings.lifeguard
        self._health = LocalHealth(ground.settings.health_max)
        self._watch = Watch(ground.settings.watched)
        self._order: list[NodeId] = []
        self._probes: dict[int, _Probe] = {}
        self._pings: dict[int, _Ping] = {}
        self._relays: list[tuple[float, int]] = []
        self._suspects: dict[NodeId, _Suspect] = {}
        self._suspects_due = math.inf  # may be early
        self._lost: set[NodeId] = set()  # called unreachable by ourselves, and not heard since
        self._reminded_at: dict[NodeId, float] = {}
        self._acked_since_redial: set[NodeId] = set()
        self._redials: dict[NodeId, int] = {}  # of lost members, since they last answered
        self._next_at = math.inf
        self._was_late = False
        self._heard_any_at = -math.inf
        self._said_isolated = False
        self._choose_at = math.inf
        self._redial_at = math.inf
        self._redialled: NodeId | None = None
        self.version = 0  # of `suspects` and `unresponsive`

    # membership of the probe list

    def add(self, node: NodeId, now: float) -> None:
        """A member appeared: into the rest of this round, at a random place."""
        self._order.insert(self._ground.rng.randint(0, len(self._order)), node)
        self._watch.add(node)
        if self._next_at == math.inf:
            interval_s = self._factor * self._ground.settings.probe_interval_s
            self._next_at = now + interval_s * self._ground.rng.random()

    def remove(self, node: NodeId) -> None:
        """A member is down or removed: no more probes, no suspicion."""
        if node in self._order:
            self._order.remove(node)
        self._watch.remove(node)
        self._end_suspicion(node)
        self._lost.discard(node)
        self._reminded_at.pop(node, None)
        self._redials.pop(node, None)
        self._acked_since_redial.discard(node)
        for seq in [seq for seq, probe in self._probes.items() if probe.target == node]:
            del self._probes[seq]

    @property
    def suspects(self) -> frozenset[NodeId]:
        """Members suspected here and not unreachable by any record."""
        return frozenset(self._suspects) - self._ground.unreachable

    @property
    def unresponsive(self) -> frozenset[NodeId]:
        """Suspects whose process still greets: their event loop does not get round to us."""
        return frozenset(n for n, s in self._suspects.items() if s.is_alive)

    @property
    def health_score(self) -> int:
        """0: this node seems well; each point stretches its probes by one interval."""
        return self._health.score

    @property
    def _factor(self) -> int:
        return 1 if self._is_plain else self._health.factor

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due; may be early."""
        due = min(self._next_at, self._redial_at, self._suspects_due, self._choose_at)
        for probe in self._probes.values():
            if not probe.acked and probe.indirect_at < due:
                due = probe.indirect_at
        if self._relays and self._relays[0][0] < due:
            due = self._relays[0][0]
        return due

    # time

    def tick(self, now: float) -> None:
        """Everything that is due."""
        if not self._is_plain:
            self._note_lag(now)
        for seq, probe in self._probes.items():
            if not probe.acked and now >= probe.indirect_at:
                probe.indirect_at = math.inf
                self._probe_indirectly(seq, probe)
        if now >= self._next_at:
            self._end_probes(now)
            self._begin_probes(now)
        if now >= self._suspects_due:
            self._end_suspicions(now)
        while self._relays and now >= self._relays[0][0]:
            _, seq = self._relays.pop(0)
            ping = self._pings.pop(seq, None)
            if ping is not None and ping.origin is not None and not self._is_plain:
                self._ground.send(ping.origin, Nack(ping.origin_seq))
        if now >= self._redial_at:
            self._redial(now)
        if now >= self._choose_at:
            self._choose_watched()

    def _note_lag(self, now: float) -> None:
        """A probe step that is late by half an ack timeout is our own delay: what answers it may
        wait in our sockets, so it gets the time that we lost."""
        settings = self._ground.settings
        late_s = max(
            (now - p.indirect_at for p in self._probes.values() if not p.acked), default=0.0
        )
        late_s = max(late_s, now - self._next_at if self._probes else 0.0)
        if late_s < LATE_SHARE * settings.ack_timeout_s or self._was_late:
            return
        self._was_late = True  # once per round, else who is always late would never probe
        self._ground.counters["late"] += 1
        self._health.worse()
        extra_s = min(late_s, settings.ack_timeout_s)
        for probe in self._probes.values():
            if now >= probe.indirect_at:
                probe.indirect_at = now + extra_s
        self._next_at = max(self._next_at, now) + extra_s

    def _begin_probes(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        factor = self._factor
        self._next_at = now + factor * settings.probe_interval_s
        self._was_late = False
        self._forget_old_pings(now)
        target = self._next_target()
        if target is None:
            if not ground.peers():
                self._next_at = math.inf
            return
        indirect_at = now + factor * settings.ack_timeout_s
        self._probes[self._ping(target, now)] = _Probe(target, indirect_at, is_watch=False)
        watched = None if self._is_plain else self._watch.next_subject()
        if watched not in (None, target):
            self._probes[self._ping(watched, now)] = _Probe(watched, indirect_at, is_watch=True)

    def _next_target(self) -> NodeId | None:
        members, unreachable = self._ground.table.members, self._ground.unreachable
        for _ in range(2):
            while self._order:
                node = self._order.pop()
                member = members.get(node)
                if member is None or member.status >= Status.DOWN or node in unreachable:
                    continue
                return node
            self._order = self._ground.peers()[:]
            self._ground.rng.shuffle(self._order)
        return None

    def _ping(self, target: NodeId, now: float) -> int:
        ground = self._ground
        seq = ground.next_seq()
        self._pings[seq] = _Ping(target, now)
        ground.send(target, Ping(seq, target))
        suspect = self._suspects.get(target)
        if suspect is not None and not self._is_plain:
            # Buddy: the accused hears the accusation first, in this very frame.
            accusation = Suspicion(target, suspect.incarnation, ground.self_id)
            ground.send(target, Gossip(suspicions=(accusation,), floor=ground.table.floor))
        news = ground.take_rumours()
        if news is not None:
            ground.send(target, news)
        return seq

    def _forget_old_pings(self, now: float) -> None:
        # An ack that comes late still counts; one that never comes is forgotten in the end.
        limit_s = max(PINGS_KEPT_S, 20 * self._ground.settings.probe_interval_s)
        while self._pings:
            seq = next(iter(self._pings))
            if now - self._pings[seq].sent_at < limit_s and len(self._pings) < OPEN_PINGS_MAX:
                return
            del self._pings[seq]

    def _probe_indirectly(self, seq: int, probe: _Probe) -> None:
        ground = self._ground
        helpers = ground.sample(
            (
                node
                for node in ground.reachable_peers()
                if node != probe.target and (self._is_plain or node not in self._suspects)
            ),
            ground.settings.indirect_probes,
        )
        probe.helpers = frozenset(helpers)
        for helper in helpers:
            ground.send_with_rumours(helper, PingRequest(seq, probe.target))

    def _end_probes(self, now: float) -> None:
        probes, self._probes = self._probes, {}
        for probe in probes.values():
            if not self._is_plain:
                self._learn_from(probe, now)
            member = self._ground.table.members.get(probe.target)
            if probe.acked or member is None or member.status >= Status.DOWN:
                continue
            if not self._is_plain and self._accuses_too_many():
                self._ground.counters["accusations-withheld"] += 1
                continue
            self.suspect(probe.target, member.incarnation, self._ground.self_id, now)

    def _learn_from(self, probe: _Probe, now: float) -> None:
        """What the end of a probe says of ourselves, and of a member that comes and goes."""
        if probe.acked:
            self._health.better()
            changed = self._watch.linked(probe.target, probe.acked_directly)
            if changed is not None:
                self._ground.publish(LinkChanged(probe.target, changed))
        else:
            missed = len(probe.helpers) - len(probe.nacked_by)
            self._health.worse(missed if probe.helpers else 1)
        if not probe.is_watch:
            if probe.acked:
                self._health.answered(in_time=not probe.helpers)
            return
        # That the event loop of a process which greets does not get round to us is no loss.
        is_missed = probe.is_missed and probe.target not in self.unresponsive
        if self._watch.probed(probe.target, is_missed, self._health.loss) and self._is_well:
            self._ground.counters["held-for-losses"] += 1
            self._hold(probe.target, now)

    @property
    def _is_well(self) -> bool:
        """To a node that is not, others seem to come and go."""
        return self._health.score <= 1

    def _accuses_too_many(self) -> bool:
        """Who is not well itself, and has many accusations open, is to be doubted."""
        own = self._ground.self_id
        return self._health.score > 0 and (
            sum(own in suspect.accusers for suspect in self._suspects.values())
            >= self._ground.settings.accusations_max
        )

    def _redial(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        lost = [node for node in ground.peers() if node in ground.unreachable]
        if not lost:
            self._redial_at = math.inf
            return
        self._redial_at = now + settings.redial_interval_s
        count = min(len(lost), settings.redials_per_s_max)
        begin = 0
        if self._redialled is not None and count < len(lost):
            begin = sum(node <= self._redialled for node in lost) % len(lost)
        chosen = [lost[(begin + i) % len(lost)] for i in range(count)]
        self._redialled = chosen[-1]
        # A host that comes back must not meet a thousand dials a second.
        share = REDIALS_PER_SUBJECT_S / max(REDIALS_PER_SUBJECT_S, len(ground.peers()))
        if share < 1.0:
            chosen = [node for node in chosen if ground.rng.random() < share]
        for node in dict.fromkeys([*self._watch.held, *chosen]):
            if self._watch.is_held(node):
                self._watch.pinged_held(node, node in self._acked_since_redial)
                self._acked_since_redial.discard(node)
                if self._watch.may_return(node):
                    self._release(node)
            self._redials[node] = self._redials.get(node, 0) + 1
            self._ping(node, now)
            # An answer of its own that did not reach us ends even what others hold against it.
            for record in ground.table.standing(node)[:1]:
                ground.send(node, Gossip(records=(record,), floor=ground.table.floor))

    def reachability_changed(self, changed: frozenset[NodeId], now: float) -> None:
        """The unreachable set moved: re-dial while it is not empty, watch others instead."""
        ground = self._ground
        for node in changed:
            self.version += 1
            if node in ground.unreachable:
                suspect = self._suspects.pop(node, None)
                if suspect is not None and ground.self_id in suspect.accusers:
                    self._lost.add(node)
                for seq in [s for s, probe in self._probes.items() if probe.target == node]:
                    del self._probes[seq]
            else:
                self._redials.pop(node, None)
                self._watch.returned(node, now)
        if ground.unreachable and self._redial_at == math.inf:
            self._redial_at = now + ground.settings.redial_interval_s

    def roster_changed(self, now: float) -> None:
        """The members or the unreachable set moved: others may have to be watched, once all is
        quiet; links are not dialled for every one of a hundred that join."""
        if not self._ground.reachable_peers():
            self._ground.is_sure = True  # nobody is left who could tell us
        if not self._is_plain:
            self._choose_at = min(self._choose_at, now + CHOOSE_AFTER_S)

    def _choose_watched(self) -> None:
        self._choose_at = math.inf
        ground = self._ground
        if self._watch.follow(ground.self_id, ground.unreachable):
            ground.out.append(KeepLinks(self._watch.subjects))

    def paused(self, gap_s: float, now: float) -> None:
        """We did not run: what was not answered meanwhile is our own fault.

        Until a member has answered we cannot know whether we still are one: we neither answer for
        others nor lead.
        """
        if self._is_plain:
            return
        ground = self._ground
        self._probes.clear()
        self._relays.clear()
        self._health.worse()
        for suspect in self._suspects.values():
            suspect.since += gap_s
            suspect.asked_at += gap_s
            suspect.asked_from += gap_s
            suspect.deadline += gap_s
        self._suspects_due += gap_s
        if self._next_at < math.inf:
            self._next_at = now + ground.settings.probe_interval_s
        asked = ground.sample(ground.reachable_peers(), ASK_AFTER_PAUSE)
        self._pings.clear()  # what answers them says nothing of now
        ground.is_sure = not asked
        for node in asked:
            self._ping(node, now)

    def probe_soon(self, node: NodeId, now: float) -> None:
        """Ping a member at once, out of turn."""
        self._ping(node, now)

    # messages

    def pinged(self, sender: NodeId, message: Ping) -> None:
        """Answer; a ping that means another process is none of ours."""
        ground = self._ground
        if message.target.uid not in (0, ground.self_id.uid):
            ground.counters["ping-for-another"] += 1
            return
        if sender in ground.table.members:
            ground.send_with_rumours(sender, Ack(message.seq))
        else:
            ground.send(sender, Ack(message.seq))  # what we know is for members

    def ping_requested(self, sender: NodeId, message: PingRequest, now: float) -> None:
        """Ping the target for the sender; relay its ack, or say in time that there was none."""
        ground = self._ground
        if message.target == ground.self_id:
            ground.send(sender, Ack(message.seq))
            return
        if (
            message.target not in ground.table.members
            or len(self._pings) >= OPEN_PINGS_MAX
            or not ground.is_sure
        ):
            ground.counters["ping-request-dropped"] += 1
            return
        seq = ground.next_seq()
        self._pings[seq] = _Ping(message.target, now, sender, message.seq)
        self._relays.append((now + NACK_SHARE * ground.settings.ack_timeout_s, seq))
        ground.send(message.target, Ping(seq, message.target))

    def nacked(self, sender: NodeId, message: Nack, now: float) -> None:
        """A helper lives and had no ack: the failure is not ours."""
        probe = self._probes.get(message.seq)
        if probe is None or sender not in probe.helpers:
            self._ground.counters["nack-unasked"] += 1
        else:
            probe.nacked_by.add(sender)

    def acked(self, sender: NodeId, message: Ack, now: float) -> None:
        """A sign of life: direct from the target, or relayed by a helper that we asked.

        The credit goes to nobody but the peer of the connection: only its own ack ends a
        suspicion, and only a helper of this very probe can spare the target one.
        """
        ping = self._pings.get(message.seq)
        if ping is None:
            self._ground.counters["ack-unasked"] += 1
            return
        direct = ping.target == sender
        if ping.origin is not None:
            if direct:
                del self._pings[message.seq]
                self._ground.send(ping.origin, Ack(ping.origin_seq))
                self.heard(sender, now)
            return
        probe = self._probes.get(message.seq)
        if direct:
            del self._pings[message.seq]
            self.heard(sender, now)
        elif probe is None or sender not in probe.helpers:
            self._ground.counters["ack-for-another"] += 1
            return
        if probe is not None:
            probe.acked = True
            if direct:
                probe.acked_directly = True
            else:
                probe.acked_by.add(sender)

    def heard(self, node: NodeId, now: float) -> None:
        """A round trip to the member itself: our suspicion and our record end."""
        self._ground.is_sure = True
        self._end_suspicion(node)
        self._lost.discard(node)
        self._redials.pop(node, None)
        if self._watch.is_held(node):
            self._acked_since_redial.add(node)
            return
        own = self._ground.table.records.get((self._ground.self_id, node))
        if own is not None and own.unreachable:
            self._record(node, unreachable=False)

    @property
    def failing_links(self) -> list[NodeId]:
        """Members that we reach through others only; sorted."""
        return self._watch.failing_links

    # verdicts

    def doubts(self, node: NodeId) -> bool:
        """True when our own probes of this member failed, whatever others say."""
        suspect = self._suspects.get(node)
        return node in self._lost or (
            suspect is not None and self._ground.self_id in suspect.accusers
        )

    def suspect(
        self, node: NodeId, incarnation: int, accuser: NodeId, now: float,
        *, voice: NodeId | None = None,
    ) -> bool:  # fmt: skip
        """Begin or confirm a suspicion; True when it is news worth spreading.

        voice: whose connection brought it (None: our own). A confirmation needs another accuser
        *and* another voice, else one liar could confirm itself under any number of names.
        """
        ground = self._ground
        member = ground.table.members.get(node)
        if member is None or member.status >= Status.DOWN or incarnation < member.incarnation:
            return False
        if node in ground.unreachable:
            return False
        suspect = self._suspects.get(node)
        if suspect is not None and incarnation > suspect.incarnation:
            suspect = None
        if suspect is None:
            suspect = self._suspects[node] = _Suspect(incarnation, now, math.inf)
            self.version += 1
        is_known = accuser in suspect.accusers
        is_enough = len(suspect.accusers) > ground.settings.suspicion_confirmations
        suspect.voices.add(voice or ground.self_id)
        # Whoever accuses asks the accused before the end, however many accuse it already.
        if not is_known and (not is_enough or accuser == ground.self_id):
            suspect.accusers.add(accuser)
        self._set_deadline(suspect)
        if is_known or (is_enough and accuser != ground.self_id):
            return False
        suspect.accusers.add(accuser)
        accusation = Suspicion(node, incarnation, accuser)
        ground.rumours.add(accusation)
        if accuser == ground.self_id and not self._is_plain:
            ground.urgent.append(accusation)
            ground.send(node, Gossip(suspicions=(accusation,), floor=ground.table.floor))
        return True

    def _set_deadline(self, suspect: _Suspect) -> None:
        confirmations = min(len(suspect.accusers), len(suspect.voices)) - 1
        if suspect.is_alive:
            confirmations = 0  # that it does not answer is no news any more
        self._end_by(suspect, suspect.since + self._timeout_s(confirmations))

    def _end_by(self, suspect: _Suspect, due: float) -> None:
        """It ends at this time at the latest; before that whoever accuses it asks it itself."""
        is_accuser = self._ground.self_id in suspect.accusers
        if due < suspect.deadline and (is_accuser or suspect.asked_at == math.inf):
            suspect.deadline = due
        if is_accuser and not self._is_plain:
            last_questions_s = LAST_QUESTIONS * self._ground.settings.dial_timeout_s
            suspect.asked_at = min(suspect.asked_at, suspect.deadline - last_questions_s)
        self._suspects_due = min(self._suspects_due, suspect.asked_at, suspect.deadline)

    def _end_suspicions(self, now: float) -> None:
        ground, suspects = self._ground, self._suspects
        timeout_s = ground.settings.dial_timeout_s
        is_isolated = self.is_isolated(now)
        put_off_s = self._isolated_max_s() - LAST_QUESTIONS * timeout_s
        for node in sorted(n for n, s in suspects.items() if now >= min(s.asked_at, s.deadline)):
            suspect = suspects[node]
            if is_isolated and now < suspect.since + put_off_s:
                if not self._said_isolated:
                    self._said_isolated = True
                    ground.publish(HeardNobody(self.silent_s(now)))
                # What is wrong is most likely wrong with us.
                suspect.deadline = now + ground.settings.probe_interval_s
                suspect.asked_at = suspect.asked_from = math.inf
                continue
            is_accuser = ground.self_id in suspect.accusers
            if now < suspect.deadline:
                suspect.asked_at = now + timeout_s
                suspect.asked_from = min(suspect.asked_from, now)
                attempt = ground.next_seq()
                suspect.attempts.add(attempt)
                ground.out.append(Dial(node, attempt))
                self._ping(node, now)
            elif self._is_plain or now >= suspect.asked_from + (LAST_QUESTIONS - 1) * timeout_s:
                self._end_suspicion(node)
                self.mark_unreachable(node, suspect.incarnation, now)
            else:
                # Nobody is given up unasked, also by who accuses at the last moment. A bystander
                # waits: if a whole cluster asked and spoke at once there would be a record of each.
                begin = suspect.asked_from
                if begin == math.inf:
                    wait_s = 0.0 if is_accuser else ground.rng.uniform(*BYSTANDER_WAIT_S)
                    begin = suspect.asked_at = now + wait_s
                suspect.deadline = begin + LAST_QUESTIONS * timeout_s
        self._suspects_due = min(
            (min(s.asked_at, s.deadline) for s in suspects.values()), default=math.inf
        )

    def take_over(self, node: NodeId, now: float) -> None:
        """Its only accuser is gone. What the dead noted accuses nobody; but when it has not
        answered us either, we accuse it ourselves."""
        member = self._ground.table.members.get(node)
        if member is not None and (node in self._lost or self._redials.get(node, 0) >= 2):
            self.mark_unreachable(node, member.incarnation, now)

    def silent_s(self, now: float) -> float:
        """For how long nobody has said anything."""
        return now - self._heard_any_at

    def is_isolated(self, now: float) -> bool:
        """True when nobody at all has said anything for a while, of several who would."""
        ground = self._ground
        silence_s = SILENT_INTERVALS * ground.settings.probe_interval_s
        return (
            not self._is_plain
            and now - self._heard_any_at >= silence_s
            and len(ground.reachable_peers()) >= ISOLATED_FROM_MIN
        )

    def _isolated_max_s(self) -> float:
        return ISOLATED_MULT * self._ground.settings.suspicion_max_mult * self._min_s()

    def frame_came(self, now: float) -> None:
        """A member said something. When nobody had for a while, what we hold of others is as old
        as that, and their answers are on their way."""
        silent_s = self.silent_s(now)
        # Who probes seldom hears seldom: between two words of the only one left it was not cut
        # off, or its suspicions of all others would be put off for ever.
        usual_s = SILENT_INTERVALS * self._factor * self._ground.settings.probe_interval_s
        was_isolated = bool(self._suspects) and silent_s >= usual_s and self.is_isolated(now)
        self._heard_any_at = now
        self._said_isolated = False
        if not was_isolated or silent_s == math.inf:
            return
        self._ground.counters["isolated"] += 1
        self._probes.clear()
        low_s = self._min_s()
        for suspect in self._suspects.values():
            suspect.since += silent_s
            suspect.deadline = suspect.asked_at = suspect.asked_from = math.inf
            self._end_by(suspect, max(now, suspect.since) + low_s)

    def dialled(self, event: Dialled, now: float) -> bool:
        """The last question to a suspect is answered; True when it was ours."""
        suspect = self._suspects.get(event.peer)
        if suspect is None or event.attempt not in suspect.attempts:
            return False
        if event.control is DialOutcome.ANSWERED and not suspect.is_alive:
            suspect.is_alive = True
            if suspect.since + self._timeout_s(confirmations=0) > suspect.deadline:
                # It is asked again in the end.
                suspect.deadline = suspect.asked_at = suspect.asked_from = math.inf
                self._set_deadline(suspect)
            self.version += 1
            self._ground.counters["unresponsive"] += 1
        return True

    def _end_suspicion(self, node: NodeId) -> None:
        if self._suspects.pop(node, None) is not None:
            self.version += 1

    def suspect_at_minimum(self, node: NodeId, now: float) -> None:
        """Suspicion on stronger evidence than silence: it lasts its minimum only."""
        member = self._ground.table.members.get(node)
        if member is None:
            return
        self.suspect(node, member.incarnation, self._ground.self_id, now)
        suspect = self._suspects.get(node)
        if suspect is not None:
            self._end_by(suspect, now + self._min_s())

    def _min_s(self) -> float:
        settings = self._ground.settings
        low_s = suspicion_min_s(
            settings.suspicion_mult, len(self._ground.table.members), settings.probe_interval_s
        )
        return low_s if self._is_plain else low_s * self._health.patience

    def _timeout_s(self, confirmations: int) -> float:
        settings = self._ground.settings
        low_s = self._min_s()
        if self._is_plain:
            return low_s
        # The accused and we ourselves cannot confirm.
        expected = min(settings.suspicion_confirmations, len(self._ground.reachable_peers()) - 1)
        return suspicion_timeout_s(
            low_s, low_s * settings.suspicion_max_mult, confirmations, expected
        )

    def refuted(self, node: NodeId, incarnation: int) -> None:
        """The member showed a higher incarnation: older suspicions are answered."""
        suspect = self._suspects.get(node)
        if suspect is not None and incarnation > suspect.incarnation:
            self._end_suspicion(node)
        self._ground.rumours.drop_suspicions_of(node)

    def refuted_ourselves(self) -> None:
        """We had to answer an accusation: we are not as well as we believe."""
        if not self._is_plain:
            self._health.worse()

    def remind(self, sender: NodeId, node: NodeId, incarnation: int, now: float) -> None:
        """A member told us that another one is alive as of an incarnation at which we hold an
        accusation: send that to both, once per gossip interval."""
        ground = self._ground
        suspect = self._suspects.get(node)
        if suspect is None or self._is_plain or incarnation > suspect.incarnation:
            return
        interval_s = ground.settings.gossip_interval_s
        if now - self._reminded_at.get(node, -math.inf) < interval_s:
            return
        self._reminded_at[node] = now
        accusation = Suspicion(node, suspect.incarnation, min(suspect.accusers))
        news = Gossip(suspicions=(accusation,), floor=ground.table.floor)
        for to in dict.fromkeys((sender, node)):
            ground.send(to, news)

    def mark_unreachable(self, node: NodeId, incarnation: int, now: float) -> None:
        """Write our record: this member is unreachable for us."""
        ground = self._ground
        member = ground.table.members.get(node)
        if member is None or member.status >= Status.DOWN:
            return
        self._end_suspicion(node)
        if incarnation < member.incarnation:
            return
        self._lost.add(node)
        if self._watch.is_flapping(node, now) and self._is_well and not self._is_plain:
            ground.counters["held-for-flapping"] += 1
            self._hold(node, now)
            return
        own = ground.table.records.get((ground.self_id, node))
        if own is not None and own.unreachable and own.subject_incarnation >= member.incarnation:
            return
        if len(ground.table.accusers(node)) < WITNESSES_MAX:
            self._record(node, unreachable=True)

    def _hold(self, node: NodeId, now: float) -> None:
        """From now on it is unreachable for us until it has answered for long."""
        self._end_suspicion(node)
        self._watch.hold(node)
        own = self._ground.table.records.get((self._ground.self_id, node))
        if own is None or not (own.unreachable and own.held):
            self._record(node, unreachable=True, held=True)

    def _release(self, node: NodeId) -> None:
        self._watch.release(node)
        own = self._ground.table.records.get((self._ground.self_id, node))
        if own is not None and own.unreachable:
            self._record(node, unreachable=False)

    def reassert(self, forged: Record) -> None:
        """Others hold a record of ours that we never wrote: replace it by what is true."""
        ground = self._ground
        own = ground.table.records.get(forged.key)
        subject = ground.table.members.get(forged.subject)
        if subject is None or forged.observer != ground.self_id:
            return
        record = Record(
            ground.self_id,
            forged.subject,
            own is not None and own.unreachable,
            forged.version + 1,
            subject.incarnation,
            own is not None and own.held,
        )
        if forged.version >= NUMBER_MAX:
            # No later word is left, so that all must keep this one; its subject can answer it.
            record = forged
        if ground.table.put_record(record):
            ground.originate(record)

    def _record(self, node: NodeId, *, unreachable: bool, held: bool = False) -> None:
        ground = self._ground
        own = ground.table.records.get((ground.self_id, node))
        record = Record(
            ground.self_id,
            node,
            unreachable,
            1 if own is None else min(own.version + 1, NUMBER_MAX),
            ground.table.members[node].incarnation,
            held,
        )
        if ground.table.put_record(record):
            ground.originate(record)
