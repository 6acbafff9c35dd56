"""Several resolvers on a little network of their own, whose membership lies at will.

Reachability here is whatever a schedule says, true or not: what keeps two from acting at once must
hold whatever the detector believes. Membership moves as the product's does: a record goes one way,
leaders act under agreement, a base is what everybody held at one instant. Nothing else of the
product runs: no gossip, no node.

The judge knows the true time. Once anybody has marked a process down (and it had not said that
nothing runs there), that process has no contact, by its own clock, nor ever gets it again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from downing.events import ContactWanted, DownRequested, MarkDown, NothingRuns
from downing.machine import RELAYABLE, DowningMachine
from downing.settings import DowningSettings
from downing.strategies import parse
from gossip.effects import Paused, PeerMessage, Send
from gossip.events import Exit
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from tests.downing.cases import node_of

SETTINGS = DowningSettings(
    contact_s=1.0,
    ack_timeout_s=0.1,
    gossip_interval_s=0.05,
    down_after_s=1.3,
    doomed_told_s=0.3,
    stop_timeout_s=4.0,
)
GOSSIP_S = 0.1
PAUSED_FROM_S = 0.3
DELAY_S = (0.001, 0.02)
COUNTS = (Status.UP, Status.LEAVING, Status.EXITING)
STEPS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Breach:
    """A process that acted, or could, after it had been marked down."""

    at_s: float
    subject: str
    marked_by: str
    marked_at_s: float
    ahead_s: float  # for so long it could still act

    def __str__(self) -> str:
        return (
            f"{self.subject}, marked down by {self.marked_by} at {self.marked_at_s:.3f} s, could "
            f"act at {self.at_s:.3f} s for {self.ahead_s:.3f} s more"
        )


class Peer:
    """One process: its resolver, its table of members, its clock."""

    def __init__(self, net: Net, name: str, rate: float, strategy: str) -> None:
        self.net = net
        self.id = node_of(name)
        self.rate = rate
        self.offset_s = 1000.0 * (1 + ord(name) - ord("a"))
        self.table: dict[NodeId, Member] = {}
        self.lost: set[NodeId] = set()  # as its records have it
        self.agreed: tuple[object, ...] = ()
        self.paused_until = 0.0
        self.fell_asleep_at = 0.0
        self.inbox: list[object] = []
        self.ended = False
        self.stopped = False
        self.gone = False
        self.order = 0
        self.due = float("inf")
        self.machine = DowningMachine(self.id, parse(strategy), SETTINGS, lambda: frozenset())

    @property
    def clock(self) -> float:
        """Its own reading."""
        return self.offset_s + self.net.now * self.rate

    @property
    def key(self) -> tuple[object, ...]:
        """The members as it holds them."""
        return tuple((m.id, m.status) for m in self._members())

    @property
    def leader(self) -> NodeId | None:
        """The lowest that counts and that it holds reachable."""
        return min(
            (m.id for m in self._members()
             if m.status in (Status.UP, Status.LEAVING) and m.id not in self.lost),
            default=None,
        )  # fmt: skip

    def _members(self) -> list[Member]:
        return sorted(
            (m for m in self.table.values() if m.status is not Status.REMOVED), key=lambda m: m.id
        )

    def view(self) -> MembershipView:
        """What membership would publish."""
        members = tuple(self._members())
        unreachable = frozenset(
            m.id for m in members if m.id in self.lost and m.status < Status.DOWN
        ) - {self.id}
        return MembershipView(
            self.id,
            1,
            members=members,
            unreachable=unreachable,
            records=tuple((self.id, node) for node in sorted(unreachable)),
            leader=self.leader,
            agreed=self.agreed == self.key,
            converged=self.agreed == self.key,
            members_digest=hash(self.key),
        )

    def show(self) -> None:
        """Its membership has changed."""
        self.take(self.view())

    def take(self, event: object) -> None:
        """An event, now or when it wakes."""
        if self.gone:
            return
        if self.net.now < self.paused_until:
            # Its membership is in the same process: it tells of what it holds when it wakes.
            if not isinstance(event, MembershipView):
                self.inbox.append(event)
            return
        self._perform(self.machine.handle(event, self.clock))

    def wake(self) -> None:
        """Its pause is over: first it notices, then it reads what came."""
        if self.gone or self.net.now < self.paused_until:
            return
        gap_s = (self.net.now - self.fell_asleep_at) * self.rate
        inbox, self.inbox = self.inbox, []
        if gap_s > PAUSED_FROM_S:
            self.take(Paused(gap_s))
        self.show()
        for event in inbox:
            self.take(event)
        self.tick()

    def tick(self) -> None:
        """Do what is due."""
        if not self.gone and self.net.now >= self.paused_until:
            self._perform(self.machine.tick(self.clock))

    def _perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.net.send(self, effect)
                case MarkDown():
                    self._mark(effect)
                case Exit() if not self.ended:
                    self.ended = True
                    self.net.at(self.net.rng.choice([0.02, 0.3, 1.5]), self._stop)
        self._arm()

    def _mark(self, order: MarkDown) -> None:
        for node in order.members:
            member = self.table.get(node)
            if member is not None and member.status < Status.DOWN:
                self.table[node] = replace(member, status=Status.DOWN, cause=order.cause)
                self.net.marked(self, node, order.cause)
        self.show()

    def _stop(self) -> None:
        """Nothing runs here any more."""
        self.stopped = True
        self.take(NothingRuns())
        self.net.at(0.5, self._leave_the_stage)

    def _leave_the_stage(self) -> None:
        self.gone = True

    def _arm(self) -> None:
        deadline = self.machine.deadline
        if deadline < float("inf"):
            wait_s = max(0.0, (deadline - self.clock) / self.rate)
            due = self.net.now + wait_s
            if not self.net.now < self.due <= due:
                self.due = due
                self.net.at(wait_s + 1e-7, self.tick)

    def merge(self, other: Peer) -> None:
        """What the other one holds comes here: a status goes one way."""
        before = self.key
        for node, member in other.table.items():
            known = self.table.get(node)
            if known is None or known.status < member.status:
                self.table[node] = member
        if self.key != before:
            self.show()

    def lead(self) -> None:
        """As the leader: under agreement one step for each that waits for one."""
        if self.gone or self.ended or self.net.now < self.paused_until or self.leader != self.id:
            return
        net = self.net
        members = self._members()
        undecided = any(m.id in self.lost and m.status < Status.DOWN for m in members)
        counting = [m.id for m in members if m.status in COUNTS]
        if undecided or any(net.peers[n].key != self.key or net.peers[n].gone for n in counting):
            return
        if self.agreed != self.key:
            for node in counting:
                if node == self.id or net.passes(self.id, node):
                    net.peers[node].agree(self.key)
            return
        ahead = {Status.JOINING: Status.UP, Status.LEAVING: Status.EXITING,
                 Status.EXITING: Status.REMOVED, Status.DOWN: Status.REMOVED}  # fmt: skip
        for member in members:
            if member.status in ahead and (member.status is not Status.LEAVING or
                                           net.peers[member.id].stopped):  # fmt: skip
                self.table[member.id] = replace(member, status=ahead[member.status])
        if self.key != self.agreed:
            self.show()

    def agree(self, key: tuple[object, ...]) -> None:
        """The leader says that all hold these."""
        if self.key == key:
            self.agreed = key
            self.show()


class Net:
    """Some processes, all up and agreed, and a schedule of what happens to them.

    `run` plays it and returns the first breach. `marks` has who was marked down, by whom and when.
    """

    def __init__(
        self,
        names: str,
        schedule: Sequence[tuple[float, str, str, str]],
        *,
        seed: int = 1,
        strategy: str = "keep-majority",
        rates: Sequence[float] = (),
        delay_s: tuple[float, float] = DELAY_S,
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(f"net {seed}")
        self.breaches: list[Breach] = []
        self.marks: dict[NodeId, tuple[str, float]] = {}
        self._delay_s = delay_s
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._count = itertools.count()
        self.peers: dict[NodeId, Peer] = {}
        for index, name in enumerate(names):
            rate = rates[index % len(rates)] if rates else 1.0
            peer = Peer(self, name, rate, strategy)
            self.peers[peer.id] = peer
        table = {
            node: Member(node, status=Status.UP, up_number=index + 1)
            for index, node in enumerate(self.peers)
        }
        for peer in self.peers.values():
            peer.table = dict(table)
            peer.agreed = peer.key
            peer.take(ContactWanted(True))
            peer.show()
        self.at(GOSSIP_S, self._gossip)
        for at_s, kind, one, other in schedule:
            self.at(at_s, getattr(self, f"do_{kind}"), one, other)

    def run(self, s: float) -> Breach | None:
        """Play for so long; the first breach, if any."""
        steps = 0
        while self._queue and self._queue[0][0] <= s and not self.breaches:
            self.now, _, action, args = heapq.heappop(self._queue)
            action(*args)
            self._judge()
            steps += 1
            assert steps < STEPS_MAX, "the resolvers do not come to rest"
        return self.breaches[0] if self.breaches else None

    def at(self, after_s: float, action: Callable[..., object], *args: object) -> None:
        """Do it so much later."""
        heapq.heappush(self._queue, (self.now + after_s, next(self._count), action, args))

    def send(self, sender: Peer, order: Send) -> None:
        """One way, straight or through a helper; a cut loses it."""
        stations = [sender.id, *([order.via] if order.via else []), order.to]
        if order.via and not isinstance(order.message, RELAYABLE):
            return
        self._hop(stations, order.message)

    def _hop(self, stations: list[NodeId], message: object) -> None:
        for at, to in itertools.pairwise(stations):
            if not self.passes(at, to) or to not in self.peers:
                return
        via = stations[1] if len(stations) > 2 else None
        receiver = self.peers[stations[-1]]
        delay_s = sum(self.rng.uniform(*self._delay_s) for _ in stations[1:])
        self.at(delay_s, receiver.take, PeerMessage(stations[0], message, via))

    def passes(self, one: NodeId, other: NodeId) -> bool:
        """Whether a frame would arrive."""
        return (one, other) not in self._cut

    def marked(self, by: Peer, node: NodeId, cause: Cause) -> None:
        """Somebody has marked this process down."""
        if cause in (Cause.DOWNED, Cause.ORDERED):
            self.marks.setdefault(node, (by.id.host, self.now))

    def _judge(self) -> None:
        for node, (by, at_s) in self.marks.items():
            peer = self.peers[node]
            ahead_s = peer.machine.contact_until - peer.clock
            if ahead_s > 0 and not peer.stopped and not peer.gone:
                self.breaches.append(Breach(self.now, node.host, by, at_s, ahead_s))
                return

    def _gossip(self) -> None:
        self.at(GOSSIP_S, self._gossip)
        awake = [p for p in self.peers.values() if not p.gone and self.now >= p.paused_until]
        for peer in awake:
            for other in self.rng.sample(awake, min(2, len(awake))):
                if other is not peer and self.passes(peer.id, other.id):
                    self.at(self.rng.uniform(*DELAY_S), other.merge, peer)
        for peer in awake:
            peer.lead()

    # what a schedule can have; names in texts, "" for none

    def do_cut(self, one: str, other: str) -> None:
        """Both ways between each of the one and each of the other; noticed or not."""
        self._each(one, other, self._cut.add)
        self._each(other, one, self._cut.add)

    def do_mute(self, one: str, other: str) -> None:
        """One way."""
        self._each(one, other, self._cut.add)

    def do_heal(self, one: str, other: str) -> None:
        """All cuts."""
        self._cut.clear()

    def do_lose(self, one: str, other: str) -> None:
        """Each of the one holds each of the other unreachable, rightly or not."""
        self._note(one, other, lose=True)

    def do_find(self, one: str, other: str) -> None:
        """And reachable again."""
        self._note(one, other, lose=False)

    def do_pause(self, one: str, other: str) -> None:
        """For `other` tenths of a second."""
        for peer in self._peers(one):
            peer.fell_asleep_at = self.now
            peer.paused_until = self.now + float(other) / 10
            self.at(float(other) / 10 + 1e-7, peer.wake)

    def do_down(self, one: str, other: str) -> None:
        """An operator at one wants the other down."""
        for peer in self._peers(one):
            for node in other:
                peer.take(DownRequested(node_of(node)))

    def do_leave(self, one: str, other: str) -> None:
        """In order; what runs there has stopped a moment later."""
        for peer in self._peers(one):
            member = peer.table[peer.id]
            if member.status is Status.UP:
                peer.table[peer.id] = replace(member, status=Status.LEAVING)
                peer.show()
                self.at(0.1, setattr, peer, "stopped", True)

    def do_crash(self, one: str, other: str) -> None:
        """Without a word."""
        for peer in self._peers(one):
            peer.gone = True

    def _note(self, one: str, other: str, *, lose: bool) -> None:
        for peer in self._peers(one):
            for name in other:
                if node_of(name) != peer.id:
                    (peer.lost.add if lose else peer.lost.discard)(node_of(name))
            peer.show()

    def _peers(self, names: str) -> list[Peer]:
        return [self.peers[node_of(name)] for name in names if not self.peers[node_of(name)].gone]

    def _each(self, one: str, other: str, act: Callable[[tuple[NodeId, NodeId]], None]) -> None:
        for source in one:
            for target in other:
                if source != target:
                    act((node_of(source), node_of(target)))
