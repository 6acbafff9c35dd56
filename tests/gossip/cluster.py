"""Machines of membership on a simulated network without loops: the cheapest cluster there is.

Used by the tests of this folder; whole nodes are simulated by `node.testkit`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from functools import partial

from gossip.effects import Publish, Send
from gossip.events import Dial, Dialled, DialOutcome, Exit, LinkLost, PeerFrame, Remember, Started
from gossip.machine import GossipMachine
from gossip.membership import Member, MembershipView, NodeId, Status
from gossip.messages import Head
from gossip.settings import GossipSettings

DELAY_S = (0.0005, 0.002)


class Node:
    """One machine with its clock; `views` are all it published."""

    def __init__(self, machine: GossipMachine) -> None:
        self.machine = machine
        self.alive = True
        self.paused_until = 0.0
        self.exit: Exit | None = None
        self.facts: list[object] = []
        self.remembered: tuple[str, ...] = ()

    @property
    def id(self) -> NodeId:
        return self.machine.self_id

    @property
    def view(self) -> MembershipView | None:
        return self.machine.view

    def statuses(self) -> dict[str, Status]:
        """Address → status, as this node sees it."""
        if self.view is None:
            return {}
        return {member.id.address: member.status for member in self.view.members}


class Cluster:
    """Nodes `a b c …` at 10.0.0.1 …; FIFO links; `cut` pairs lose everything, one way."""

    def __init__(self, seed: int = 1, settings: GossipSettings | None = None) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.settings = settings or GossipSettings()
        self.nodes: dict[str, Node] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.sent = 0
        self.log: list[tuple[str, NodeId, object]] | None = None
        self.observer: Callable[[str, Node, list[object]], None] | None = None
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._fifo: dict[tuple[str, str], float] = {}

    def start(
        self,
        name: str,
        seeds: str,
        *,
        remembered: tuple[str, ...] = (),
        found: bool = False,
        cluster_name: str = "test",
        agreement: tuple[tuple[str, str], ...] = (),
        same_kernel: bool = False,
        settings: GossipSettings | None = None,
    ) -> Node:
        """Start a process named by its address letter, with seeds such as "a b c"."""
        node_id = NodeId(_host(name), 25520, self.rng.getrandbits(64))
        member = Member(
            id=node_id,
            name=name,
            data_port=25521,
            boot_id="one" if same_kernel else name,
            net_ns=1,
            pid_ns=1,
            pid=ord(name[0]),
        )
        machine = GossipMachine(
            member,
            cluster_name=cluster_name,
            settings=settings or self.settings,
            rng=random.Random(self.rng.getrandbits(32)),
            agreement=agreement,
        )
        node = Node(machine)
        old = self.nodes.get(name)
        if old is not None:
            old.alive = False
        self.nodes[name] = node
        addresses = tuple((_host(seed), 25520) for seed in seeds.split())
        self.feed(name, Started(addresses, remembered, found, int(1_700_000_000 + self.now)))
        return node

    def feed(self, name: str, event: object) -> None:
        """Hand an event to a machine and perform what it orders."""
        node = self.nodes[name]
        if not node.alive or node.exit is not None:
            return
        self._perform(name, node, node.machine.handle(event, self.now))

    def say(self, sender: NodeId | str, to: str, *messages: object) -> None:
        """Put words into a connection of the sender: its process is not asked."""
        node_id = self.nodes[sender].id if isinstance(sender, str) else sender
        # No digests: as a report it says nothing.
        head = Head(cluster_id=self.nodes[to].machine.head.cluster_id)
        self.feed(to, PeerFrame(node_id, head, messages))

    def crash(self, name: str, *, sockets_close: bool = True) -> None:
        """The process is gone; with `sockets_close` its kernel tells the others."""
        self.nodes[name].alive = False
        if sockets_close:
            victim = self.nodes[name].id
            for other in self.nodes:
                if other != name and (other, name) not in self.cuts:
                    self.at(0.001, partial(self.feed, other, LinkLost(victim)))

    def pause(self, name: str, pause_s: float) -> None:
        """The process does not run for a while; what arrives waits."""
        self.nodes[name].paused_until = self.now + pause_s

    def cut(self, one: str, other: str) -> None:
        """Cut every pair between two groups of letters, both ways."""
        for left in one.split():
            for right in other.split():
                self.cuts |= {(left, right), (right, left)}

    def at(self, delay_s: float, action: Callable[[], object]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def run(self, for_s: float) -> None:
        """Let virtual time pass."""
        end = self.now + for_s
        while True:
            due, who = self._next_due()
            if min(due, self._queue[0][0] if self._queue else math.inf) > end:
                break
            if self._queue and self._queue[0][0] <= due:
                at, _, action = heapq.heappop(self._queue)
                self.now = max(self.now, at)
                action()
            elif who is not None:
                self.now = max(self.now, due)
                node = self.nodes[who]
                self._perform(who, node, node.machine.tick(self.now))
            else:
                break
        self.now = end

    def run_until(self, fact: Callable[[], bool], within_s: float) -> float:
        """Let time pass until a fact holds; returns how long it took."""
        begin = self.now
        while not fact():
            assert self.now - begin < within_s, f"not within {within_s} s: {self.describe()}"
            self.run(0.01)
        return self.now - begin

    def all_up(self, names: str) -> Callable[[], bool]:
        """A fact: each of these sees exactly these, all up, all reachable."""
        wanted = {f"{_host(name)}:25520": Status.UP for name in names.split()}

        def fact() -> bool:
            return all(
                self.nodes[name].statuses() == wanted
                and not (self.nodes[name].view or _NO_VIEW).unreachable
                for name in names.split()
            )

        return fact

    def clusters(self) -> set[int]:
        """The ids of the clusters that living processes are in."""
        return {
            node.machine.head.cluster_id
            for node in self.nodes.values()
            if node.alive and node.exit is None and node.machine.head.cluster_id
        }

    def describe(self) -> str:
        """All views, for a failing test."""
        return "; ".join(
            f"{name}: {node.exit or node.statuses() or node.machine.explain(self.now)}"
            for name, node in self.nodes.items()
        )

    def _next_due(self) -> tuple[float, str | None]:
        best, who = float("inf"), None
        for name, node in self.nodes.items():
            if node.alive and node.exit is None:
                due = max(node.machine.deadline, node.paused_until)
                if due < best:
                    best, who = due, name
        return best, who

    def _perform(self, name: str, node: Node, effects: list[object]) -> None:
        if self.observer is not None:
            self.observer(name, node, effects)
        frames: dict[NodeId, list[object]] = {}
        for effect in effects:
            match effect:
                case Send():
                    if self.log is not None:
                        self.log.append((name, effect.to, effect.message))
                    frames.setdefault(effect.to, []).append(effect.message)
                case Publish():
                    node.facts.append(effect.fact)
                case Dial():
                    self.at(0.001, partial(self._dial, name, effect))
                case Remember():
                    node.remembered = effect.addresses
                case Exit():
                    node.exit = effect
        for to, messages in frames.items():
            self._send(name, node.id, node.machine.head, to, tuple(messages))

    def _send(
        self, name: str, sender: NodeId, head: Head, to: NodeId, messages: tuple[object, ...]
    ) -> None:
        self.sent += 1
        target = _letter(to.host)
        if (name, target) in self.cuts or self.rng.random() < self.loss:
            return
        at = max(self.now + self.rng.uniform(*DELAY_S), self._fifo.get((name, target), 0.0))
        self._fifo[(name, target)] = at

        def deliver() -> None:
            node = self.nodes.get(target)
            if node is None or to.uid not in (0, node.id.uid):
                return
            if node.paused_until > self.now:
                self.at(node.paused_until - self.now, deliver)
                return
            self.feed(target, PeerFrame(sender, head, messages))

        self.at(at - self.now, deliver)

    def _dial(self, name: str, effect: Dial) -> None:
        target = _letter(effect.peer.host)
        node = self.nodes.get(target)
        if (name, target) in self.cuts:
            outcome = DialOutcome.UNKNOWN
        elif node is not None and node.alive and node.exit is None:
            outcome = DialOutcome.ACCEPTED
        else:
            outcome = DialOutcome.REFUSED
        data = outcome if effect.data_port else None
        self.feed(name, Dialled(effect.peer, effect.attempt, outcome, data))


_NO_VIEW = MembershipView(NodeId("", 0, 0), 0, ())


def _host(name: str) -> str:
    return f"10.0.0.{ord(name[0]) - ord('a') + 1}"


def _letter(host: str) -> str:
    return chr(ord("a") + int(host.rsplit(".", 1)[1]) - 1)
