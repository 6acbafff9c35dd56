"""A whole cluster in one thread and in virtual time: actors on a `Stage`.

Decides how a simulated node is built (the production `ActorSystem` over a simulated environment)
and what a test asks of it. Faults, clocks and time are the `Stage`'s. Called by tests of users, by
stories and by `simulate`.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable
from typing import Any

from gossip.membership import MembershipView
from node.actor import Actor
from node.environment import Environment
from node.events import ActorFailed, DeadLetter
from node.mailbox import WhenFull
from node.ref import ActorRef
from node.settings import Settings
from node.supervision import Supervision
from node.system import ActorSystem, Terminated
from node.testkit.checkers import view_differences
from node.testkit.network import IntoCut
from node.testkit.probe import Probe
from node.testkit.stage import WITHIN_S, SimNode, Stage, Where
from node.testkit.timeline import WorldError

SEEDS_MAX = 3
BUG = 70  # the exit code of a node whose machine failed
OPEN_WITHIN_S = 60.0
Setup = Callable[[ActorSystem], object]


def build_system(settings: Settings, environment: Environment) -> ActorSystem:
    """The production system in a simulated environment; the one place where the two meet."""
    return ActorSystem(settings, environment=environment)


class World(Stage):
    """Actors in virtual time. `World(seed=1)` is one node without a cluster, for testing actors;
    `World(seed=1, nodes=5)` or `nodes="a b c"` is a cluster.

        with World(seed=1) as world:
            probe = world.probe()
            world.spawn(Reminder, probe.ref).tell(RemindIn(3600.0))
            world.run_for(s=3599)
            assert probe.messages == []

    Nothing happens between the `run…` calls; an error in a node surfaces out of the one during
    which it was raised (errors of actors are a matter of their supervision, as ever).

    `dead_letters` and `failures` have every `DeadLetter` and `ActorFailed` of all nodes, in order.

    settings: of all nodes; each gets its own name, host, port and the seeds.
    seeds: names of the seed nodes; default the first three that are not absent.
    setup: called with each system once its sockets are bound, before it joins; plain or async.
    The other arguments are those of `Stage`.
    """

    def __init__(
        self,
        seed: int = 11,
        nodes: int | str | None = None,
        *,
        settings: Settings | None = None,
        seeds: str | None = None,
        setup: Setup | None = None,
        one_host: bool = False,
        into_cut: IntoCut = "held",
        start_spread_s: float = 0.02,
        absent: str = "",
        trace_lines: int = 200,
    ) -> None:
        super().__init__(
            seed,
            nodes,
            boot=self._live_on,
            one_host=one_host,
            into_cut=into_cut,
            start_spread_s=start_spread_s,
            absent=absent,
            trace_lines=trace_lines,
        )
        self.settings = settings or Settings()
        self.setup = setup
        self.dead_letters: list[DeadLetter] = []
        self.failures: list[ActorFailed] = []
        present = [node for node in self.nodes if node.is_due]
        self.seeds = present[:SEEDS_MAX] if seeds is None else [self[n] for n in seeds.split()]

    # -- nodes

    def settings_of(self, where: Where) -> Settings:
        """What a node is started with. Override it to start nodes with different ones."""
        node = self[where]
        if not self.has_network:
            return self.settings
        return dataclasses.replace(
            self.settings,
            name=node.name,
            host=node.host.address,
            port=node.port,
            seeds=tuple(seed.address for seed in self.seeds),
            insecure=True,
        )

    def system(self, where: Where = 0) -> ActorSystem:
        """The system on a node, once it has started (time goes by until it has).

        Raises WorldError when it does not run, or its start failed.
        """
        node = self._started(where)
        self.timeline.run(self.now + OPEN_WITHIN_S, lambda: node.opened or not node.running)
        if not node.opened:
            why = node.error or "its setup is not done"
            raise WorldError(self.timeline.report(f"{node.name} did not start: {why}"))
        return node.system

    async def _live_on(self, node: SimNode) -> None:
        system = build_system(self.settings_of(node), node.environment)
        node.built = system

        async def before_join() -> None:
            system.events.subscribe(DeadLetter, self.dead_letters.append)
            system.events.subscribe(ActorFailed, self.failures.append)
            if self.has_network:
                cluster = system.cluster
                node.read_view = lambda: cluster.view
            if self.setup is not None:
                result = self.setup(system)
                if inspect.isawaitable(result):
                    await result

        await system.open(before_join=before_join)
        node.opened = True
        node.ended = await system.terminated
        if node.ended.exit_code == BUG:
            raise WorldError(self.timeline.report(f"{node.name}: {node.ended.reason}"))
        self.timeline.at(self.now, self.exit, node)

    # -- actors

    def spawn(
        self,
        cls: type[Actor],
        *args: object,
        name: str | None = None,
        supervision: Supervision | None = None,
        mailbox_max: int | None = None,
        when_full: WhenFull | None = None,
        stash_max: int | None = None,
        node: Where = 0,
    ) -> ActorRef[Any]:
        """Make an actor `cls(*args)` on a node; the other arguments are those of
        `ActorSystem.spawn`, and so is what it raises."""
        return self[node].call(
            self.system(node).runtime.spawn,
            cls,
            *args,
            name=name,
            supervision=supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )

    def stop(self, ref: ActorRef[Any], *, node: Where = 0) -> None:
        """Order an actor of a node to stop, as `ActorSystem.stop` does."""
        self[node].call(self.system(node).stop, ref)

    def probe(self, name: str | None = None, *, node: Where = 0) -> Probe:
        """An actor that keeps what it gets, under `/user/name`; see `Probe`."""
        return Probe(self, lambda cls, *args: self.spawn(cls, *args, name=name, node=node))

    # -- the cluster

    def until_all_up(self, *, within_s: float = 30.0) -> World:
        """Let time go by until all nodes that run or are due to start see exactly each other, up
        and reachable.

        Raises WorldError, with what is amiss, when they do not `within_s`.
        """
        seen: list[MembershipView | None] = []

        def all_up() -> bool:
            nonlocal seen
            views = [node.view for node in self.running]
            if len(views) == len(seen) and all(map(operator.is_, views, seen)):
                return False
            seen = views
            is_due = any(node.is_due for node in self.nodes)
            return not is_due and not view_differences(self.views())

        if not self.timeline.run(self.now + within_s, all_up):
            flaws = "\n  ".join(view_differences(self.views()))
            what = f"not all up within {within_s} s:\n  {flaws}"
            raise WorldError(self.timeline.report(what))
        return self

    def leave(self, where: Where, *, within_s: float = WITHIN_S) -> Terminated:
        """Let a node leave in order; returns how it ended."""
        node = self[where]
        system = self.system(node)
        node.call(lambda: node.loop.create_task(system.leave(), name="leave"))
        self.run_until(lambda: node.ended is not None and not node.running, within_s=within_s)
        assert node.ended is not None
        return node.ended
