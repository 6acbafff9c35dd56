"""Many machines of membership on one simulated network, in virtual time: nothing but the product's
`GossipMachine`, driven as `node.daemon` drives it.

Decides what a frame meets (delay, loss, cuts, a process that does not run), what a kernel answers
to a dial, who notices that a link ended, and in which order things happen; the same seed gives the
same trace. Does not decide what is measured: experiments schedule the faults, watchers are given
every fact that a machine publishes. Called by the experiments of this package.

One heap of plain tuples, lists indexed by member: a million events take about as long as the
machines need for them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Protocol

from gossip.effects import Paused, Publish, Send
from gossip.events import (
    CloseLinks,
    Dial,
    Dialled,
    DialOutcome,
    Exit,
    KeepLinks,
    LinkLost,
    PeerFrame,
    Started,
    TakeIdentity,
)
from gossip.machine import GossipMachine
from gossip.membership import Member, NodeId, Status
from gossip.messages import Gossip, Head, JoinChallenge, Welcome
from gossip.settings import GossipSettings
from node import wire

PORT = 25520
DELAY_S = (0.0002, 0.001)
DIAL_ROUND_TRIPS = 2  # a new link carries its first frame after so many: TCP, then the hello
LINKS_MAX = 32  # control links of a node beside those it keeps; the one used longest ago goes
LINK_IDLE_S = 30.0
HEARTBEAT_TIMEOUT_S = (3.0, 4.0)  # after so long kept links end when nothing comes over them
PACKET_HEADER_BYTES = 40  # of TCP and IP
CLUSTER_ID = 7 << 32 | 7
WALL_S = 1_700_000_000

TICK, FRAME, ANSWER, ACTION = range(4)


class Watcher(Protocol):
    """Is given every fact that a machine publishes, with the index of its member."""

    def __call__(self, index: int, fact: object, now: float) -> None:
        """Take it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How the network is built. delay_s: least and greatest delay of a frame, one way; loss: share
    of the frames that never arrive; measures_pauses: whether a process that did not run does as the
    daemon does: it is told so first, then takes the frames that wait, then does what is due. If
    not, what is due comes first, as where timers fire by themselves."""

    delay_s: tuple[float, float] = DELAY_S
    loss: float = 0.0
    measures_pauses: bool = True
    counts_bytes: bool = False


class Network:
    """Members 0 … n-1 at addresses of their own, each on a host of its own.

    settings: of every machine. seed: of everything that is random. now: virtual seconds.
    """

    def __init__(
        self,
        members: int,
        *,
        settings: GossipSettings | None = None,
        seed: int = 1,
        conditions: Conditions | None = None,
    ) -> None:
        self.settings = settings or GossipSettings()
        self.conditions = conditions or Conditions()
        self.rng = random.Random(seed)
        self.now = 0.0
        self.size = members
        self.watchers: list[Watcher] = []
        self.machines: list[GossipMachine | None] = [None] * members
        self.ids: list[NodeId] = [NodeId(host_of(i), PORT, 0) for i in range(members)]
        self.runs = [False] * members  # the process lives, and has not ended by itself
        self.host_is_up = [True] * members
        self.exits: dict[int, Exit] = {}
        self.events = 0  # steps of machines
        self.frames_sent = [0] * members
        self.frames_received = [0] * members
        self.bytes_sent = [0] * members
        self.messages_sent: Counter[str] = Counter()
        self._heap: list[tuple[float, int, int, int, object]] = []
        self._order = 0
        self._index: dict[NodeId, int] = {node: i for i, node in enumerate(self.ids)}
        self._due = [math.inf] * members  # what the daemon would call its armed timer
        self._looked_at = [0.0] * members  # the last look at the clock
        self._entry = [math.inf] * members  # the earliest live entry of the heap for it
        self._frozen = [False] * members
        self._frozen_at = [0.0] * members
        self._stalled = [False] * members
        self._inboxes: list[list[object]] = [[] for _ in range(members)]
        self._outboxes: list[list[tuple[NodeId, PeerFrame]]] = [[] for _ in range(members)]
        self._kept: list[frozenset[int]] = [frozenset()] * members
        self._links: list[dict[int, float]] = [{} for _ in range(members)]
        self._arrivals: dict[int, float] = {}
        self._last_encoded: tuple[object, int] = (None, 0)
        self._deaf = [False] * members
        self._egress_loss = [0.0] * members
        self._ingress_loss = [0.0] * members
        self._side: list[int] | None = None
        self._has_faults = False
        self._lost = self.conditions.loss

    # members

    def start(self, index: int, seeds: tuple[int, ...]) -> None:
        """A process starts at this address and looks for the cluster at the seeds."""
        member = self._newcomer(index)
        addresses = tuple((host_of(seed), PORT) for seed in seeds)
        self._run_process(index, self._machine(member))
        self._feed(index, Started(addresses, wall_s=WALL_S))

    def warm_up(self) -> None:
        """All processes run and are members since ever: each was welcomed by one other with the
        whole view. Nothing else of a join is simulated; what they say meanwhile is not sent."""
        ups = tuple(
            replace(self._newcomer(index), status=Status.UP, up_number=index + 1)
            for index in range(self.size)
        )
        view = Gossip(members=ups)
        for index, up in enumerate(ups):
            guide = ups[0 if index else -1].id
            machine = self._machine(replace(up, status=Status.JOINING, up_number=0))
            self._run_process(index, machine)
            effects = machine.handle(Started(((guide.host, guide.port),)), self.now)
            for message in (JoinChallenge(1), Welcome(CLUSTER_ID, view)):
                frame = PeerFrame(guide, Head(CLUSTER_ID), (message,))
                effects += machine.handle(frame, self.now)
            for effect in effects:
                if type(effect) is not Send:
                    self._perform(index, machine, [effect])
            self._rearm(index, machine)

    def _newcomer(self, index: int) -> Member:
        uid = self.rng.getrandbits(64) or 1
        return Member(
            id=NodeId(host_of(index), PORT, uid),
            name=f"m{index:04d}",
            data_port=PORT + 1,
            boot_id=f"{index:08x}-0000-4000-8000-{index:012x}",
            net_ns=4026531840,
            pid_ns=4026531836,
            pid=1000 + index,
            start_ticks=100_000 + index,
        )

    def _machine(self, member: Member) -> GossipMachine:
        return GossipMachine(
            member,
            cluster_name="bench",
            settings=self.settings,
            rng=random.Random(self.rng.getrandbits(64)),
        )

    def _run_process(self, index: int, machine: GossipMachine) -> None:
        self._index.pop(self.ids[index], None)
        node = machine.self_id
        self.machines[index], self.ids[index] = machine, node
        self._index[node] = self._index[NodeId(node.host, node.port, 0)] = index
        self.runs[index] = self.host_is_up[index] = True
        self.exits.pop(index, None)
        self._frozen[index] = False
        self._inboxes[index].clear()
        self._links[index].clear()
        self._kept[index] = frozenset()
        self._due[index] = self._entry[index] = math.inf

    def machine(self, index: int) -> GossipMachine:
        """The machine at an address. Raises LookupError when none was ever started there."""
        machine = self.machines[index]
        if machine is None:
            raise LookupError(f"member {index} was never started: start it, or warm_up()")
        return machine

    def feed(self, index: int, event: object) -> None:
        """Hand a fact to a machine; nothing when its process does not run."""
        if self.runs[index]:
            self._feed(index, event)

    # faults

    def crash(self, index: int, *, sockets_close: bool) -> None:
        """The process is gone. With `sockets_close` its kernel tells who had a link to it, and
        refuses dials; without, the whole host is gone and nothing answers any more."""
        self.runs[index] = False
        self.host_is_up[index] = sockets_close
        self._due[index] = self._entry[index] = math.inf
        if not sockets_close:
            self._watch_kept_links(index)
            return
        for other in self.living():
            if self._has_link(other, index) and not self._is_cut(index, other):
                self._later(self._delay_s(), ANSWER, other, LinkLost(self.ids[index]))

    def freeze(self, index: int) -> None:
        """The process does nothing from now on, heartbeats neither; what arrives waits in order."""
        self._frozen[index] = True
        self._frozen_at[index] = self.now
        self._watch_kept_links(index)

    def thaw(self, index: int) -> None:
        """It goes on, in the order that `Conditions.measures_pauses` tells."""
        if not self._frozen[index]:
            return
        self._frozen[index] = False
        inbox, self._inboxes[index] = self._inboxes[index], []
        if not self.runs[index]:
            return
        machine = self.machine(index)
        self._look_at_the_clock(index, machine)
        if not self.conditions.measures_pauses and self._due[index] <= self.now:
            self._tick(index, machine)
        for event in inbox:
            if self.runs[index]:
                self._feed(index, event)
        if self.now - self._frozen_at[index] >= HEARTBEAT_TIMEOUT_S[0]:
            # Its own heartbeats went unanswered as well, as far as it can see.
            for peer in sorted(self._kept[index]):
                self.feed(index, LinkLost(self.ids[peer]))
        self._rearm(index, machine)

    def block(self, index: int, for_s: float) -> None:
        """Freeze now, thaw after `for_s` seconds."""
        self.freeze(index)
        self.after(for_s, lambda: self.thaw(index))

    def stall(self, index: int, for_s: float) -> None:
        """Its messages neither come in nor go out for a while, but its timers run: what Lifeguard's
        own tests call blocked. They wait in order, and nothing tells the process."""
        self._stalled[index] = True
        self.after(for_s, lambda: self._unstall(index))

    def _unstall(self, index: int) -> None:
        self._stalled[index] = False
        outbox, self._outboxes[index] = self._outboxes[index], []
        inbox, self._inboxes[index] = self._inboxes[index], []
        for to, frame in outbox:
            self._send(index, to, frame)
        for event in inbox:
            if self.runs[index]:
                self._feed(index, event)

    def deafen(self, index: int, *, is_deaf: bool = True) -> None:
        """Nothing reaches the member any more, while all that it sends arrives; or undo it."""
        self._deaf[index] = is_deaf
        self._note_faults()
        if is_deaf:
            self._watch_kept_links(index)

    def lose(self, index: int, *, egress: float = 0.0, ingress: float = 0.0) -> None:
        """This share of what the member sends, and of what is sent to it, is lost."""
        self._egress_loss[index], self._ingress_loss[index] = egress, ingress
        self._note_faults()

    def lose_everywhere(self, share: float) -> None:
        """This share of all frames is lost from now on."""
        self._lost = share

    def partition(self, side_of: list[int] | None) -> None:
        """Members of different sides cannot reach each other; None heals."""
        self._side = side_of
        self._note_faults()
        if side_of is not None:
            self._watch_kept_links()

    def _note_faults(self) -> None:
        self._has_faults = (
            self._side is not None
            or any(self._deaf)
            or any(self._egress_loss)
            or any(self._ingress_loss)
        )

    def _watch_kept_links(self, index: int | None = None) -> None:
        """Kept links of this member, or of all, end after a while if they are still silent then."""

        def look() -> None:
            for one in range(self.size):
                for peer in sorted(self._kept[one]):
                    if index in (None, one, peer) and self._is_silent(one, peer):
                        self._later(0.0, ANSWER, one, LinkLost(self.ids[peer]))

        self.after(self.rng.uniform(*HEARTBEAT_TIMEOUT_S), look)

    def _is_silent(self, one: int, peer: int) -> bool:
        if not self.runs[one] or self._frozen[one]:
            return False
        frozen_s = self.now - self._frozen_at[peer] if self._frozen[peer] else 0.0
        return (
            not self.host_is_up[peer]
            or frozen_s >= HEARTBEAT_TIMEOUT_S[0]
            or self._is_cut(one, peer)
            or self._is_cut(peer, one)
        )

    def _is_cut(self, sender: int, to: int) -> bool:
        return self._deaf[to] or (self._side is not None and self._side[sender] != self._side[to])

    def _loss(self, sender: int, to: int) -> float:
        kept = 1.0 - self._lost
        if self._has_faults:
            if self._is_cut(sender, to):
                return 1.0
            kept *= (1.0 - self._egress_loss[sender]) * (1.0 - self._ingress_loss[to])
        return 1.0 - kept

    # time

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Do something later."""
        self._later(delay_s, ACTION, -1, action)

    def run_for(self, for_s: float) -> None:
        """Let virtual time pass."""
        self.run_until_time(self.now + for_s)

    def run_until_time(self, end: float) -> None:
        """Let virtual time pass until `end`."""
        heap, runs, frozen = self._heap, self.runs, self._frozen
        while heap and heap[0][0] <= end:
            at, _, kind, index, payload = heappop(heap)
            self.now = at
            if kind == FRAME:
                assert isinstance(payload, _Frame)
                self._arrive(index, payload)
            elif kind == TICK:
                if at == self._entry[index]:
                    self._entry[index] = math.inf
                    if runs[index] and not frozen[index]:
                        self._tick_due(index)
            elif kind == ANSWER:
                if frozen[index]:
                    self._inboxes[index].append(payload)
                elif runs[index]:
                    self._feed(index, payload)
            else:
                assert callable(payload)
                payload()
        self.now = end

    def run_until(self, fact: Callable[[], bool], *, within_s: float, step_s: float = 0.01) -> bool:
        """Let time pass until a fact holds, looking every `step_s`; False when it never does."""
        end = self.now + within_s
        while not fact():
            if self.now >= end:
                return False
            self.run_until_time(min(self.now + step_s, end))
        return True

    def _later(self, delay_s: float, kind: int, index: int, payload: object) -> None:
        self._order += 1
        heappush(self._heap, (self.now + delay_s, self._order, kind, index, payload))

    def _delay_s(self) -> float:
        low, high = self.conditions.delay_s
        return low + (high - low) * self.rng.random()

    # one step of one machine

    def _tick_due(self, index: int) -> None:
        machine = self.machines[index]
        assert machine is not None
        if self._due[index] <= self.now:
            self._tick(index, machine)
        else:
            self._rearm(index, machine)

    def _tick(self, index: int, machine: GossipMachine) -> None:
        self._look_at_the_clock(index, machine)
        self.events += 1
        self._perform(index, machine, machine.tick(self.now))
        self._rearm(index, machine)

    def _feed(self, index: int, event: object) -> None:
        machine = self.machines[index]
        assert machine is not None
        self._look_at_the_clock(index, machine)
        self.events += 1
        self._perform(index, machine, machine.handle(event, self.now))
        self._rearm(index, machine)

    def _look_at_the_clock(self, index: int, machine: GossipMachine) -> None:
        # One gap is told once: what is due since before the last look is no new one.
        gap_s = self.now - max(self._due[index], self._looked_at[index])
        self._looked_at[index] = self.now
        if gap_s > self.settings.probe_interval_s and self.conditions.measures_pauses:
            self._perform(index, machine, machine.handle(Paused(gap_s), self.now))

    def _rearm(self, index: int, machine: GossipMachine) -> None:
        due = machine.deadline
        self._due[index] = due
        if due < self._entry[index] and self.runs[index]:
            # One that is due already runs at once, yet after what is due before it.
            at = due if due > self.now else self.now
            self._entry[index] = at
            self._order += 1
            heappush(self._heap, (at, self._order, TICK, index, None))

    def _perform(self, index: int, machine: GossipMachine, effects: list[object]) -> None:
        frames: dict[NodeId, list[object]] | None = None
        for effect in effects:
            cls = type(effect)
            if cls is Send:
                assert isinstance(effect, Send)
                if frames is None:
                    frames = {effect.to: [effect.message]}
                elif effect.to in frames:
                    frames[effect.to].append(effect.message)
                else:
                    frames[effect.to] = [effect.message]
            elif cls is Publish:
                assert isinstance(effect, Publish)
                for watcher in self.watchers:
                    watcher(index, effect.fact, self.now)
            else:
                self._order_of(index, effect)
        if frames is not None:
            head, sender = machine.head, self.ids[index]
            for to, messages in frames.items():
                self._send(index, to, PeerFrame(sender, head, tuple(messages)))

    def _order_of(self, index: int, effect: object) -> None:
        match effect:
            case Dial():
                self._dial(index, effect)
            case KeepLinks():
                peers = (self._index.get(node) for node in effect.peers)
                self._kept[index] = frozenset(peer for peer in peers if peer is not None)
            case CloseLinks():
                peer = self._index.get(effect.peer)
                if peer is not None:
                    self._links[index].pop(peer, None)
            case TakeIdentity():
                self._index.pop(self.ids[index], None)
                self.ids[index] = effect.new_id
                self._index[effect.new_id] = index
            case Exit():
                # What it orders besides still leaves: the daemon flushes before it ends.
                self.exits[index] = effect
                self.after(0.0, lambda: self._ended(index, effect))

    def _ended(self, index: int, effect: Exit) -> None:
        if self.runs[index] and self.exits.get(index) is effect:
            self.crash(index, sockets_close=True)

    # what travels

    def _send(self, sender: int, to: NodeId, frame: PeerFrame) -> None:
        if self._stalled[sender]:
            self._outboxes[sender].append((to, frame))
            return
        index = self._index.get(to)
        self.frames_sent[sender] += 1
        if self.conditions.counts_bytes:
            self._count_bytes(sender, frame)
        if index is None:
            return
        links = self._links[sender]
        delay_s = self._delay_s()
        known = links.pop(index, None)
        if known is None or self.now - known > LINK_IDLE_S:
            if len(links) >= LINKS_MAX:
                del links[next(iter(links))]
            if index not in self._kept[sender]:
                delay_s += 2 * DIAL_ROUND_TRIPS * self._delay_s()
        links[index] = self.now
        if (self._lost or self._has_faults) and (self.rng.random() < self._loss(sender, index)):
            return
        # What one member sends another arrives in order.
        pair = sender << 16 | index
        at = self.now + delay_s
        last = self._arrivals.get(pair, 0.0)
        if at < last:
            at = last
        self._arrivals[pair] = at
        if len(self._arrivals) > 200_000:
            self._arrivals = {key: when for key, when in self._arrivals.items() if when > self.now}
        self._order += 1
        heappush(self._heap, (at, self._order, FRAME, index, _Frame(to.uid, frame)))

    def _arrive(self, index: int, arrived: _Frame) -> None:
        if not self.runs[index] or arrived.uid not in (0, self.ids[index].uid):
            return
        self.frames_received[index] += 1
        if self._frozen[index] or self._stalled[index]:
            self._inboxes[index].append(arrived.frame)
        else:
            self._feed(index, arrived.frame)

    def _count_bytes(self, sender: int, frame: PeerFrame) -> None:
        count = PACKET_HEADER_BYTES + wire.HEAD.size
        for message in frame.messages:
            last, size = self._last_encoded
            if message is not last:
                size = len(wire.encode(message))
                self._last_encoded = (message, size)
            count += size
            self.messages_sent[type(message).__name__] += 1
        self.bytes_sent[sender] += count

    def _has_link(self, index: int, to: int) -> bool:
        used_at = self._links[index].get(to, -math.inf)
        return to in self._kept[index] or self.now - used_at <= LINK_IDLE_S

    def _dial(self, index: int, effect: Dial) -> None:
        peer = self._index.get(NodeId(effect.peer.host, effect.peer.port, 0))
        if (
            peer is None
            or not self.host_is_up[peer]
            or self._stalled[index]
            or self._is_cut(index, peer)
            or self._is_cut(peer, index)
            or self.rng.random() < self._loss(index, peer)
            or self.rng.random() < self._loss(peer, index)
        ):
            outcome, after_s = DialOutcome.UNKNOWN, self.settings.dial_timeout_s
        else:
            if not self.runs[peer]:
                outcome = DialOutcome.REFUSED
            elif self._frozen[peer] or self._stalled[peer]:
                outcome = DialOutcome.ACCEPTED
            else:
                outcome = DialOutcome.ANSWERED
            after_s = 2 * self._delay_s()
        data = outcome if effect.data_port else None
        self._later(after_s, ANSWER, index, Dialled(effect.peer, effect.attempt, outcome, data))

    # reading

    def living(self) -> list[int]:
        """Members whose process runs."""
        return [index for index in range(self.size) if self.runs[index]]

    def index_of(self, node: NodeId) -> int | None:
        """Where this very process is or was the last to run; None when nothing of it is left."""
        return self._index.get(node)


class _Frame:
    """A frame on its way; `uid`: of the process it is meant for, 0 = whoever is there."""

    __slots__ = ("frame", "uid")

    def __init__(self, uid: int, frame: PeerFrame) -> None:
        self.uid = uid
        self.frame = frame


def host_of(index: int) -> str:
    """The address of a member: sorts by index."""
    return f"10.{100 + (index >> 8)}.{100 + (index >> 4 & 15)}.{100 + (index & 15)}"
