"""Exhaustive search over a few real `SingletonMachine`s: every order of everything that may happen.

The channel is unordered and repeats: what was sent once can be delivered at any time and any number
of times, or never. Views are an adversary's: a node is shown any of its variants, `flips_max`
times in all. Questions of more than `rounds_max` rounds of a node are lost. Time stands still, so
no silence ever runs into the hand-over timeout; each scene is therefore to be safe without
exception. The oracle is the order book of the instances, not what a
machine says of itself.

Machines are deterministic, so each (state of a node, event) is computed once and the search itself
runs on small numbers.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import MembershipView, NodeId
from singleton.effects import SingletonReleased, StartInstance, StopInstance
from singleton.events import (
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    LeaveStarted,
    StartRequested,
    UniquenessNotProven,
)
from singleton.machine import RECORDS_SPREAD_S, SingletonMachine, State
from singleton.messages import HandOverAsk
from singleton.settings import SingletonSettings
from tests.singleton.worlds import TYPE, node

Event = tuple[str, int]
"""What can happen at a node: ("deliver", message), ("view", variant), ("started", 0), …"""


LONG_AGO = -2 * RECORDS_SPREAD_S
"""When those that have called `start` did so: everybody's record was seen by all since then."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is searched. `views` are the variants of each node, the first is its first view.

    A node of `hosted_by` runs the instance at the beginning. Those of `leavers` may leave, once.
    With `deaths` an instance may end by itself. `settings` are those of nodes that differ.
    """

    views: dict[str, tuple[MembershipView, ...]]
    rounds_max: int
    flips_max: int
    hosted_by: str = ""
    leavers: str = ""
    deaths: bool = False
    claims_lapse: bool = True  # what was heard of a host may be forgotten at any time
    forward_only: bool = False  # views are shown in their order, some may be left out
    late: str = ""  # these call `start` at any time, the others have called it
    make: type[SingletonMachine] = SingletonMachine
    settings: dict[str, SingletonSettings] = field(default_factory=dict)

    def settings_of(self, name: str) -> SingletonSettings:
        """With which a node calls `start`."""
        return self.settings.get(name, SingletonSettings())


@dataclass(frozen=True, slots=True)
class Found:
    """The result: how many states there were, and the way to the first violation, if any."""

    state_count: int
    started_count: int  # states with a running instance: none would mean an empty search
    violation: tuple[str, ...] = ()


@dataclass(slots=True)
class _Node:
    """One state of one node. `live` is the attempt whose instance exists, by the order book."""

    machine: SingletonMachine
    variant: int
    live: int = 0
    told_started: bool = False
    stopping: bool = False
    started: bool = True
    left: bool = False


@dataclass(slots=True)
class _Search:
    scene: Scene
    names: list[str] = field(default_factory=list)
    messages: dict[tuple[NodeId, NodeId, Hashable], int] = field(default_factory=dict)
    message_list: list[tuple[NodeId, NodeId, object]] = field(default_factory=list)
    states: list[dict[Hashable, int]] = field(default_factory=list)
    nodes: list[list[_Node]] = field(default_factory=list)
    memo: list[dict[tuple[int, Event], tuple[int, int] | None]] = field(default_factory=list)
    to_node: dict[NodeId, int] = field(default_factory=dict)

    # one node

    def first(self, index: int) -> tuple[int, int]:
        """The first state of a node, and the messages it sends on its way there."""
        name = self.names[index]
        settings = self.scene.settings_of(name)
        machine = self.scene.make(TYPE, node(name), settings, random.Random(1))
        state = _Node(machine, 0, started=name not in self.scene.late)
        sent = 0
        if state.started:
            machine.handle(StartRequested(TYPE, settings), LONG_AGO)
        shown = self.scene.views[name][0]
        if name == self.scene.hosted_by:
            alone = MembershipView(shown.self_id, 1, (shown.by_id[shown.self_id],))
            sent |= self.apply(index, state, machine.handle(alone, 0.0))
            state.told_started = True
            sent |= self.apply(index, state, machine.handle(InstanceStarted(TYPE, 1), 0.0))
        sent |= self.apply(index, state, machine.handle(shown, 0.0))
        return self.number(index, state), sent

    def apply(self, index: int, state: _Node, effects: list[object]) -> int:
        """Enter effects into the order book; returns the set of messages sent."""
        sent = 0
        me = node(self.names[index])
        for effect in effects:
            match effect:
                case StartInstance():
                    assert not state.live, "started over a living instance"
                    state.live, state.told_started, state.stopping = effect.attempt, False, False
                case StopInstance():
                    assert state.live == effect.attempt, "stopped what does not live"
                    state.stopping = True
                case Send(message=HandOverAsk(round=late)) if late > self.scene.rounds_max:
                    pass  # the channel swallows the questions of further rounds
                case Send(to=to, message=message) if to in self.to_node:
                    key = (me, to, message)
                    if key not in self.messages:
                        self.messages[key] = len(self.message_list)
                        self.message_list.append(key)
                    sent |= 1 << self.messages[key]
                case SingletonReleased():
                    assert not state.live, "released over a living instance"
                case Publish(fact=UniquenessNotProven()):
                    raise AssertionError("time stands still, so nobody can have been silent")
                case _:
                    pass
        return sent

    def number(self, index: int, state: _Node) -> int:
        """The number of a node's state; equal states have one number."""
        key = (*_frozen(state.machine), state.variant, state.live, state.told_started)
        key = (*key, state.stopping, state.started, state.left)
        known = self.states[index]
        if key not in known:
            known[key] = len(self.nodes[index])
            self.nodes[index].append(state)
        return known[key]

    def step(self, index: int, number: int, event: Event) -> tuple[int, int] | None:
        """The state after `event` and what was sent; None when it may not happen there."""
        memo = self.memo[index]
        if (number, event) not in memo:
            memo[number, event] = self._compute(index, number, event)
        return memo[number, event]

    def _compute(self, index: int, number: int, event: Event) -> tuple[int, int] | None:
        before = self.nodes[index][number]
        fact = self._fact(index, before, event)
        if fact is None:
            return None
        after = copy.copy(before)
        after.machine = _copied(before.machine)
        kind, value = event
        if kind == "view":
            after.variant = value
        elif kind == "started":
            after.told_started = True
        elif kind in ("stopped", "died"):
            after.live = 0
        elif kind == "leave":
            after.left = True
        elif kind == "start":
            after.started = True
        if kind == "forget":
            after.machine._claims.clear()
            effects = after.machine.tick(0.0)
        else:
            effects = after.machine.handle(fact, 0.0)
        sent = self.apply(index, after, effects)
        if after.machine._round > self.scene.rounds_max + 2:
            return None
        return self.number(index, after), sent

    def _fact(self, index: int, state: _Node, event: Event) -> object | None:
        name = self.names[index]
        match event:
            case ("deliver", message):
                sender, _, content = self.message_list[message]
                return PeerMessage(sender, content)
            case ("view", variant):
                back = variant < state.variant and self.scene.forward_only
                return None if variant == state.variant or back else self.scene.views[name][variant]
            case ("started", _) if state.live and not state.told_started:
                return InstanceStarted(TYPE, state.live)
            case ("stopped", _) if state.live and state.stopping:
                return InstanceStopped(TYPE, state.live)
            case ("died", _) if state.live and self.scene.deaths:
                return InstanceFailed(TYPE, state.live)
            case ("forget", _) if state.machine._claims and self.scene.claims_lapse:
                return "forget"
            case ("leave", _) if name in self.scene.leavers and not state.left:
                return LeaveStarted()
            case ("start", _) if not state.started:
                return StartRequested(TYPE, self.scene.settings_of(name))
        return None

    # all nodes

    def events(self, flips: int, sent: int) -> Iterator[tuple[int, Event]]:
        """Everything that may happen next, by node."""
        remaining = sent
        while remaining:
            lowest = remaining & -remaining
            number = lowest.bit_length() - 1
            remaining ^= lowest
            yield self.to_node[self.message_list[number][1]], ("deliver", number)
        for index, name in enumerate(self.names):
            for kind in ("started", "stopped", "died", "forget", "leave", "start"):
                yield index, (kind, 0)
            if flips < self.scene.flips_max:
                for variant in range(len(self.scene.views[name])):
                    yield index, ("view", variant)

    def run(self, states_max: int) -> Found:
        """Breadth first, so that the way to a violation is as short as can be."""
        begin, sent = [], 0
        for index in range(len(self.names)):
            number, first_sent = self.first(index)
            begin.append(number)
            sent |= first_sent
        start = (*begin, 0, sent)
        came_from: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, Event]] | None]
        came_from = {start: None}
        queue = deque([start])
        started_count = 0
        while queue:
            here = queue.popleft()
            *numbers, flips, sent = here
            live = [self.nodes[i][number].live for i, number in enumerate(numbers)]
            started_count += any(live)
            if sum(1 for attempt in live if attempt) > 1:
                return Found(len(came_from), started_count, self._way(came_from, here))
            for index, event in self.events(flips, sent):
                step = self.step(index, numbers[index], event)
                if step is None:
                    continue
                after = list(numbers)
                after[index] = step[0]
                there = (*after, flips + (event[0] == "view"), sent | step[1])
                if there not in came_from:
                    came_from[there] = (here, (index, event))
                    queue.append(there)
            assert len(came_from) <= states_max, "the scene is too large to search"
        return Found(len(came_from), started_count)

    def _way(
        self,
        came_from: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, Event]] | None],
        end: tuple[int, ...],
    ) -> tuple[str, ...]:
        way: list[str] = []
        step = came_from[end]
        while step is not None:
            before, (index, (kind, value)) = step
            what = f"{kind} {value}"
            if kind == "deliver":
                sender, _, message = self.message_list[value]
                what = f"{sender.address} says {message}"
            way.append(f"{self.names[index]}: {what}")
            step = came_from[before]
        return tuple(reversed(way))


def search(scene: Scene, *, states_max: int = 2_000_000) -> Found:
    """Visit every reachable state of the scene."""
    names = sorted(scene.views)
    made = _Search(scene, names)
    made.to_node = {node(name): index for index, name in enumerate(names)}
    for _ in names:
        made.states.append({})
        made.nodes.append([])
        made.memo.append({})
    return made.run(states_max)


_IGNORED = {
    "ignored", "deadline", "host", "type_name", "self_id", "started_at",
    "_settings", "_rng", "_view", "_reach", "_told", "_peers", "_out", "_shown",
}  # fmt: skip
"""Attributes that follow from the view variant or are only for display."""


def _frozen(machine: SingletonMachine) -> tuple[Hashable, ...]:
    parts: list[Hashable] = []
    for name, value in vars(machine).items():
        if name in _IGNORED:
            continue
        if name == "_asked":
            parts.append(tuple(sorted((k, v.kind or 0, v.kind is None) for k, v in value.items())))
        elif isinstance(value, dict):
            parts.append(tuple(sorted((k, repr(v)) for k, v in value.items())))
        elif isinstance(value, set):
            parts.append(frozenset(value))
        else:
            parts.append(value)
    return tuple(parts)


def _copied(machine: SingletonMachine) -> SingletonMachine:
    made = copy.copy(machine)
    for name, value in vars(machine).items():
        if name == "_asked":
            setattr(made, name, {peer: copy.copy(asked) for peer, asked in value.items()})
        elif isinstance(value, dict | set | list):
            setattr(made, name, copy.copy(value))
    return made


def holds(machine: SingletonMachine) -> bool:
    """True when the machine says that it holds the office."""
    return machine.state in (State.STARTING, State.RUNNING)
