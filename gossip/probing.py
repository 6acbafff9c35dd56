"""SWIM: who is probed when, who is suspected, and when a suspect is called unreachable.

Decides the next target (round robin over a shuffled list), the indirect probes, suspicion and its
end, the re-dial of unreachable members, and this node's own reachability records. Does not decide
who is a member or gone for good. Used by `gossip.machine`.
Source: SWIM (DSN 2002); suspicion timeouts: Lifeguard (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossip.events import CloseLinks
from gossip.ground import Ground
from gossip.membership import NUMBER_MAX, NodeId, Status
from gossip.messages import Ack, Gossip, Nack, Ping, PingRequest, Suspicion
from gossip.reachability import Record
from gossip.suspicion import suspicion_min_s, suspicion_timeout_s

OPEN_PINGS_MAX = 4096


@dataclass(slots=True)
class _Probe:
    target: NodeId
    seq: int
    indirect_at: float
    ends_at: float
    acked: bool = False
    helpers: frozenset[NodeId] = frozenset()


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


class Prober:
    """The failure detector of one node."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._order: list[NodeId] = []
        self._probe: _Probe | None = None
        self._pings: dict[int, _Ping] = {}
        self._relays: list[tuple[float, int]] = []
        self._suspects: dict[NodeId, _Suspect] = {}
        self._lost: set[NodeId] = set()  # called unreachable by ourselves, and not heard since
        self._next_at = math.inf
        self._redial_at = math.inf
        self._redialled: NodeId | None = None

    # membership of the probe list

    def add(self, node: NodeId, now: float) -> None:
        """A member appeared: into the rest of this round, at a random place."""
        self._order.insert(self._ground.rng.randint(0, len(self._order)), node)
        if self._next_at == math.inf:
            self._next_at = now + self._ground.settings.probe_interval_s * self._ground.rng.random()

    def remove(self, node: NodeId) -> None:
        """A member is down or removed: no more probes, no suspicion."""
        if node in self._order:
            self._order.remove(node)
        self._suspects.pop(node, None)
        self._lost.discard(node)
        if self._probe is not None and self._probe.target == node:
            self._probe = None

    @property
    def suspects(self) -> frozenset[NodeId]:
        """Members suspected here and not unreachable by any record."""
        return frozenset(self._suspects) - self._ground.unreachable

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        due = min(self._next_at, self._redial_at)
        if self._probe is not None and not self._probe.acked:
            due = min(due, self._probe.indirect_at)
        for suspect in self._suspects.values():
            due = min(due, suspect.deadline)
        if self._relays:
            due = min(due, self._relays[0][0])
        return due

    # time

    def tick(self, now: float) -> None:
        """Everything that is due."""
        probe = self._probe
        if probe is not None and not probe.acked and now >= probe.indirect_at:
            probe.indirect_at = math.inf
            self._probe_indirectly(probe)
        if now >= self._next_at:
            self._end_probe(now)
            self._begin_probe(now)
        for node in sorted(n for n, s in self._suspects.items() if now >= s.deadline):
            incarnation = self._suspects.pop(node).incarnation
            self.mark_unreachable(node, incarnation, now)
        while self._relays and now >= self._relays[0][0]:
            _, seq = self._relays.pop(0)
            ping = self._pings.pop(seq, None)
            if ping is not None and ping.origin is not None:
                self._ground.send(ping.origin, Nack(ping.origin_seq))
        if now >= self._redial_at:
            self._redial(now)

    def _begin_probe(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        self._next_at = now + settings.probe_interval_s
        self._forget_old_pings(now)
        target = self._next_target()
        if target is None:
            if not ground.peers():
                self._next_at = math.inf
            return
        seq = self._ping(target, now)
        self._probe = _Probe(target, seq, now + settings.ack_timeout_s, self._next_at)

    def _next_target(self) -> NodeId | None:
        members, unreachable = self._ground.table.members, self._ground.unreachable
        for _ in range(2):
            while self._order:
                node = self._order.pop()
                member = members.get(node)
                if member is None or member.status >= Status.DOWN or node in unreachable:
                    continue
                return node
            self._order = self._ground.peers()
            self._ground.rng.shuffle(self._order)
        return None

    def _ping(self, target: NodeId, now: float) -> int:
        ground = self._ground
        seq = ground.next_seq()
        self._pings[seq] = _Ping(target, now)
        ground.send(target, Ping(seq, target))
        suspect = self._suspects.get(target)
        if suspect is not None:
            # Buddy: the accused hears the accusation first, in this very frame.
            accusation = Suspicion(target, suspect.incarnation, ground.self_id)
            ground.send(target, Gossip(suspicions=(accusation,), floor=ground.table.floor))
        news = ground.take_rumours()
        if news is not None:
            ground.send(target, news)
        return seq

    def _forget_old_pings(self, now: float) -> None:
        # An ack that comes late still counts; one that never comes is forgotten in the end.
        limit_s = 10 * self._ground.settings.probe_interval_s
        while self._pings:
            seq = next(iter(self._pings))
            if now - self._pings[seq].sent_at < limit_s and len(self._pings) < OPEN_PINGS_MAX:
                return
            del self._pings[seq]

    def _probe_indirectly(self, probe: _Probe) -> None:
        ground = self._ground
        helpers = ground.sample(
            (node for node in ground.reachable_peers() if node != probe.target),
            ground.settings.indirect_probes,
        )
        probe.helpers = frozenset(helpers)
        for helper in helpers:
            ground.send_with_rumours(helper, PingRequest(probe.seq, probe.target))

    def _end_probe(self, now: float) -> None:
        probe, self._probe = self._probe, None
        if probe is None or probe.acked:
            return
        member = self._ground.table.members.get(probe.target)
        if member is not None and member.status < Status.DOWN:
            self.suspect(probe.target, member.incarnation, self._ground.self_id, now)

    def _redial(self, now: float) -> None:
        ground, settings = self._ground, self._ground.settings
        unreachable = [node for node in ground.peers() if node in ground.unreachable]
        if not unreachable:
            self._redial_at = math.inf
            return
        self._redial_at = now + settings.redial_interval_s
        begin = 0
        if self._redialled is not None and len(unreachable) > settings.redials_per_s_max:
            begin = sum(node <= self._redialled for node in unreachable) % len(unreachable)
        count = min(len(unreachable), settings.redials_per_s_max)
        for node in [unreachable[(begin + i) % len(unreachable)] for i in range(count)]:
            self._redialled = node
            self._ping(node, now)
            own = ground.table.records.get((ground.self_id, node))
            if own is not None and own.unreachable:
                ground.send(node, Gossip(records=(own,), floor=ground.table.floor))

    def reachability_changed(self, now: float) -> None:
        """The unreachable set moved: re-dial while it is not empty."""
        if self._ground.unreachable and self._redial_at == math.inf:
            self._redial_at = now + self._ground.settings.redial_interval_s

    def paused(self, gap_s: float, now: float) -> None:
        """We did not run: what was not answered meanwhile is our own fault."""
        self._probe = None
        for suspect in self._suspects.values():
            suspect.since += gap_s
            suspect.deadline += gap_s
        if self._next_at < math.inf:
            self._next_at = now + self._ground.settings.probe_interval_s

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
        if message.target not in ground.table.members or len(self._pings) >= OPEN_PINGS_MAX:
            ground.counters["ping-request-dropped"] += 1
            return
        seq = ground.next_seq()
        self._pings[seq] = _Ping(message.target, now, sender, message.seq)
        self._relays.append((now + ground.settings.ack_timeout_s, seq))
        ground.send(message.target, Ping(seq, message.target))

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
        probe = self._probe if self._probe and self._probe.seq == message.seq else None
        if direct:
            del self._pings[message.seq]
            self.heard(sender, now)
        elif probe is None or sender not in probe.helpers:
            self._ground.counters["ack-for-another"] += 1
            return
        if probe is not None:
            probe.acked = True

    def heard(self, node: NodeId, now: float) -> None:
        """A round trip to the member itself: our suspicion and our record end."""
        self._suspects.pop(node, None)
        self._lost.discard(node)
        own = self._ground.table.records.get((self._ground.self_id, node))
        if own is not None and own.unreachable:
            self._record(node, unreachable=False)

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
        elif accuser in suspect.accusers:
            suspect.voices.add(voice or ground.self_id)
            self._set_deadline(suspect)
            return False
        suspect.accusers.add(accuser)
        suspect.voices.add(voice or ground.self_id)
        self._set_deadline(suspect)
        ground.rumours.add(Suspicion(node, incarnation, accuser))
        if accuser == ground.self_id:
            accusation = Suspicion(node, incarnation, accuser)
            ground.urgent.append(accusation)
            ground.send(node, Gossip(suspicions=(accusation,), floor=ground.table.floor))
        return True

    def _set_deadline(self, suspect: _Suspect) -> None:
        confirmations = min(len(suspect.accusers), len(suspect.voices)) - 1
        due = suspect.since + self._timeout_s(confirmations)
        suspect.deadline = min(suspect.deadline, due)

    def suspect_at_minimum(self, node: NodeId, now: float) -> None:
        """Suspicion on stronger evidence than silence: it lasts its minimum only."""
        member = self._ground.table.members.get(node)
        if member is None:
            return
        self.suspect(node, member.incarnation, self._ground.self_id, now)
        suspect = self._suspects.get(node)
        if suspect is not None:
            suspect.deadline = min(suspect.deadline, now + self._min_s())

    def _min_s(self) -> float:
        settings = self._ground.settings
        return suspicion_min_s(
            settings.suspicion_mult, len(self._ground.table.members), settings.probe_interval_s
        )

    def _timeout_s(self, confirmations: int) -> float:
        settings = self._ground.settings
        low_s = self._min_s()
        # The accused and we ourselves cannot confirm.
        expected = min(settings.suspicion_confirmations, len(self._ground.reachable_peers()) - 1)
        return suspicion_timeout_s(
            low_s, low_s * settings.suspicion_max_mult, confirmations, expected
        )

    def refuted(self, node: NodeId, incarnation: int) -> None:
        """The member showed a higher incarnation: older suspicions are answered."""
        suspect = self._suspects.get(node)
        if suspect is not None and incarnation > suspect.incarnation:
            del self._suspects[node]
        self._ground.rumours.drop_suspicions_of(node)

    def mark_unreachable(self, node: NodeId, incarnation: int, now: float) -> None:
        """Write our record: this member is unreachable for us."""
        member = self._ground.table.members.get(node)
        if member is None or member.status >= Status.DOWN:
            return
        self._suspects.pop(node, None)
        if incarnation < member.incarnation:
            return
        self._lost.add(node)
        own = self._ground.table.records.get((self._ground.self_id, node))
        if own is None or not own.unreachable or own.subject_incarnation < member.incarnation:
            self._record(node, unreachable=True)
            # Nothing gets through on this connection; a new dial notices the heal at once, where
            # the old one would wait for TCP to try again.
            self._ground.out.append(CloseLinks(node))

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
        )
        if forged.version >= NUMBER_MAX:
            # No later word is left, so that all must keep this one; its subject can answer it.
            record = forged
        if ground.table.put_record(record):
            ground.originate(record)

    def _record(self, node: NodeId, *, unreachable: bool) -> None:
        ground = self._ground
        own = ground.table.records.get((ground.self_id, node))
        record = Record(
            ground.self_id,
            node,
            unreachable,
            1 if own is None else min(own.version + 1, NUMBER_MAX),
            ground.table.members[node].incarnation,
        )
        if ground.table.put_record(record):
            ground.originate(record)
