"""Processes on hosts with clocks and a network, in one thread and in virtual time; and faults.

Decides which process runs when (the earliest due one) and which faults happen (those the test
orders). Does not decide what a process does: its `boot` coroutine does. A run is a function of its
seed: no thread, no wall clock, no hash order. `node.testkit.world` puts actors on this stage;
whoever needs bare processes (tests of the network, membership alone) uses it as it is.
"""

from __future__ import annotations

import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gossip.membership import MembershipView
from node.environment import Environment
from node.errors import TenureError
from node.testkit.host import SimHost, SimProcessWatch, SimStateStore
from node.testkit.loop import SimClock, SimLoop
from node.testkit.network import IntoCut, SimNetwork
from node.testkit.timeline import Timeline, Trace, WorldError
from node.testkit.transport import SimTransport

if TYPE_CHECKING:
    from node.system import ActorSystem, Terminated

_T = TypeVar("_T")

PORT = 25520
WITHIN_S = 3600.0
WALL_CLOCK_START_S = 1_750_000_000.0
_CLOCK_START_S = 1000.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class SimNode:
    """One node of the world: a seat (name, address, host, memory) and the process now on it.

    `loop`, `environment` and `transport` belong to the process of the last start; `running` is
    False before the first start and after a crash or an exit; `is_due` tells that a start is to
    come, `error` why one failed.
    `read_view` tells the view the process published last. `built` is the actor system of that
    process, None on a bare stage; `opened` tells that it can be used, `ended` how it ended itself.
    """

    def __init__(self, name: str, index: int, host: SimHost, port: int) -> None:
        self.name = name
        self.index = index
        self.host = host
        self.port = port
        self.state = SimStateStore()
        self.starts = 0
        self.is_due = False
        self.running = False
        self.error: TenureError | None = None
        self.loop: SimLoop
        self.environment: Environment
        self.transport: SimTransport | None = None
        self.read_view: Callable[[], MembershipView | None] = _no_view
        self.built: ActorSystem | None = None
        self.opened = False
        self.ended: Terminated | None = None

    @property
    def system(self) -> ActorSystem:
        """The actor system of this node. Raises WorldError when none was built (yet)."""
        if self.built is None:
            raise WorldError(
                f"{self.name} has no actor system: let time go by until it has started"
            )
        return self.built

    @property
    def view(self) -> MembershipView | None:
        """The view the process published last; None without a cluster or before it has joined."""
        return self.read_view()

    @property
    def address(self) -> str:
        """`host:port`, as a seed names it."""
        return f"{self.host.address}:{self.port}"

    @property
    def paused(self) -> bool:
        """True while the process is stopped and will go on later."""
        return self.running and self.loop.paused

    def call(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Run a plain function on this node, with its loop as the running one.

        Raises RuntimeError when the node is paused or not running.
        """
        return self.loop.call_now(lambda: function(*args, **kwargs))

    def __repr__(self) -> str:
        state = "paused" if self.paused else "running" if self.running else "not running"
        return f"<SimNode {self.name} {self.address} {state}>"


# A node: its name, its index, or itself. Where several are meant, a text may name them all.
Where = str | int | SimNode
Boot = Callable[[SimNode], Coroutine[Any, Any, object]]


class Stage:
    """Nodes in virtual time: one without a network (`nodes=None`), or some that can reach each
    other (`nodes=5`, `nodes="a b c"`).

    Use it as a context manager, or call `close` at the end. Nothing happens between the `run…`
    calls; an exception in any node surfaces out of the one during which it was raised.

    boot: the first coroutine of each process; it runs once per start.
    one_host: all nodes on 127.0.0.1, port by port, under one kernel, which proves crashes.
    into_cut: what becomes of frames sent into a cut, `"held"` until the heal or `"lost"`.
    start_spread_s: the nodes start at seeded instants within so many seconds.
    absent: names of nodes which do not start by themselves; see `start`.
    trace_lines: how many of the last steps are remembered as text.
    """

    def __init__(
        self,
        seed: int = 11,
        nodes: int | str | None = None,
        *,
        boot: Boot,
        one_host: bool = False,
        into_cut: IntoCut = "held",
        start_spread_s: float = 0.02,
        absent: str = "",
        trace_lines: int = 200,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/world")
        self.trace = Trace(trace_lines)
        self.timeline = Timeline(self.trace)
        self.network = SimNetwork(
            self.timeline, random.Random(f"{seed}/network"), into_cut=into_cut
        )
        self.has_network = nodes is not None
        self.one_host = one_host
        self.closed = False
        self._boot = boot
        self._loops: list[SimLoop] = []
        names = _names(nodes)
        hosts = self._make_hosts(len(names))
        self.nodes = [
            SimNode(name, index, hosts[index], PORT + index if one_host else PORT)
            for index, name in enumerate(names)
        ]
        self._by_name = {node.name: node for node in self.nodes}
        for node in self.nodes:
            self.network.place(node.name, node.host.address)
        waiting = self._group(absent)
        for node in self.nodes:
            spread_s = self.rng.random() * start_spread_s if len(self.nodes) > 1 else 0.0
            if node not in waiting:
                self._start_after(spread_s, node)

    def _make_hosts(self, how_many: int) -> list[SimHost]:
        rng = random.Random(f"{self.seed}/hosts")
        if self.one_host:
            return [SimHost("127.0.0.1", SimClock(_CLOCK_START_S), rng)] * how_many
        # Hosts that booted at different times: a clock compared between nodes shows at once.
        return [
            SimHost(
                f"10.0.{index // 250}.{index % 250 + 1}",
                SimClock(_CLOCK_START_S * (index + 1)),
                rng,
            )
            for index in range(how_many)
        ]

    # -- looking around

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self.timeline.now

    def __getitem__(self, where: Where) -> SimNode:
        """The node of this name or index. Raises KeyError naming those there are."""
        if isinstance(where, SimNode):
            return where
        if isinstance(where, int):
            return self.nodes[where]
        if where not in self._by_name:
            raise KeyError(f"no node {where!r} in this world: it has {' '.join(self._by_name)}")
        return self._by_name[where]

    def __iter__(self) -> Iterator[SimNode]:
        return iter(self.nodes)

    @property
    def running(self) -> list[SimNode]:
        """Nodes whose process exists, paused ones included."""
        return [node for node in self.nodes if node.running]

    def here(self) -> SimNode:
        """The node whose step this is. Raises WorldError outside of any."""
        loop = events._get_running_loop()
        if not isinstance(loop, SimLoop):
            raise WorldError("no node is stepping now: call it from an actor, or use node.call")
        return self[loop.name]

    def views(self) -> dict[str, MembershipView | None]:
        """What each running node published last, by name."""
        return {node.name: node.view for node in self.running}

    def trace_hash(self) -> str:
        """A hash over everything that happened: equal for equal seeds, in any process."""
        return self.trace.digest()

    def _group(self, where: Where | Iterable[Where]) -> list[SimNode]:
        if isinstance(where, str):
            return [self[name] for name in where.split()]
        if isinstance(where, int | SimNode):
            return [self[where]]
        return [self[each] for each in where]

    # -- letting time go by

    def run_for(self, *, s: float) -> None:
        """Let `s` virtual seconds go by."""
        self.timeline.run(self.now + s)

    def run_until(self, predicate: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Let time go by until `predicate()` holds; it is asked after each step of any node.

        Raises WorldError with the last steps when it does not hold within `within_s`.
        """
        if not self.timeline.run(self.now + within_s, predicate):
            what = getattr(predicate, "__name__", "the condition")
            raise WorldError(self.timeline.report(f"{what} did not hold within {within_s} s"))

    def run(
        self,
        coroutine: Coroutine[Any, Any, _T],
        *,
        node: Where = 0,
        within_s: float = WITHIN_S,
    ) -> _T:
        """Run a coroutine on a node's loop until it is done; returns or raises what it does.

        Raises WorldError when it is not done within `within_s` virtual seconds, or the node does
        not run.
        """
        loop = self._started(node).loop
        task = loop.create_task(coroutine)
        if not self.timeline.run(self.now + within_s, task.done):
            name = getattr(coroutine, "__qualname__", "the coroutine")
            what = f"{name} was not done within {within_s} s"
            raise WorldError(self.timeline.report(what))
        return task.result()

    def after(self, s: float, action: Callable[..., object], *args: Any) -> None:
        """Do `action(*args)` once `s` more virtual seconds have gone by: a fault, a look."""
        self.timeline.at(self.now + s, action, *args)

    def every(self, s: float, action: Callable[[], object]) -> None:
        """Do `action()` each `s` virtual seconds, for as long as the world runs."""

        def again() -> None:
            self.timeline.at(self.now + s, again)
            action()

        self.timeline.at(self.now + s, again)

    def _started(self, where: Where) -> SimNode:
        node = self[where]
        if node.is_due:
            self.run_until(lambda: not node.is_due, within_s=WITHIN_S)
        if not node.running:
            why = f": {node.error}" if node.error else ", start it first" if not node.starts else ""
            raise WorldError(self.timeline.report(f"{node.name} does not run{why}"))
        return node

    # -- processes

    def start(self, where: Where | Iterable[Where]) -> None:
        """Start a process on each of these nodes: a new loop, a new pid, a new uid, the same
        address and remembered state. Raises WorldError when one runs there already."""
        for node in self._group(where):
            if node.running:
                raise WorldError(f"{node.name} runs already: crash it first, or use restart")
            node.starts += 1
            node.is_due = False
            node.running = True
            node.error = None
            loop = node.loop = SimLoop(self.timeline, node.host.clock, node.name)
            self._loops.append(loop)
            node.read_view = _no_view
            node.built = None
            node.opened = False
            node.ended = None
            node.transport = None
            if self.has_network:
                node.transport = SimTransport(
                    self.network, loop, node.name, node.host.address, node.port
                )
            node.environment = Environment(
                clock=loop.time,
                rng=random.Random(f"{self.seed}/{node.name}/{node.starts}"),
                transport=node.transport,
                processes=SimProcessWatch(node.host, loop),
                state=node.state,
                host=node.host.start_process(self.now),
                wall_clock=partial(self._wall_clock, node.host),
            )
            self._note(node, "start")
            loop.create_task(self._live(node), name=f"boot {node.name}")

    def _wall_clock(self, host: SimHost) -> float:
        return WALL_CLOCK_START_S + self.now + host.wall_offset_s

    async def _live(self, node: SimNode) -> None:
        try:
            await self._boot(node)
        except TenureError as error:
            node.error = error
            self._note(node, "failed", type(error).__name__)
            # Its own last step goes on; the process ends after it.
            self.timeline.at(self.now, self._end, node)
        except Exception as error:  # noqa: BLE001 - must surface in the test, not in a task
            node.loop.default_exception_handler({"message": "boot failed", "exception": error})

    def exit(self, where: Where | Iterable[Where]) -> None:
        """End the processes in order, from outside: sockets close, nothing runs any more."""
        for node in self._running_group(where):
            self._note(node, "exit")
            self._end(node)

    def crash(self, where: Where | Iterable[Where], *, silent: bool = False) -> None:
        """kill -9: no further step; the kernel closes the sockets and tells who watches.

        silent: the whole host is gone, so nothing is closed and nobody is told; its next start is
        a reboot. Raises WorldError when a node does not run, or for `silent` on one host.
        """
        if silent and self.one_host:
            raise WorldError("crash(silent=True) takes the host away, and all nodes share this one")
        for node in self._running_group(where):
            self._note(node, "gone" if silent else "crash")
            self._end(node, silent=silent)

    def restart(self, where: Where | Iterable[Where], *, after_s: float = 0.0) -> None:
        """A new process at the same address `after_s` from now; one that runs is killed now."""
        for node in self._group(where):
            if node.running:
                self.crash(node)
            self._start_after(after_s, node)

    def _start_after(self, s: float, node: SimNode) -> None:
        node.is_due = True
        self.after(s, self.start, node)

    def pause(self, where: Where | Iterable[Where], *, s: float) -> None:
        """SIGSTOP for `s` seconds: no step, while the kernel accepts connections and frames.

        Afterwards it reads what came meanwhile, then its timers fire, late.
        """
        for node in self._running_group(where):
            self._note(node, "pause", s)
            node.loop.pause(self.now + s)
            if node.transport is not None:
                self.network.process_paused(node.transport, self.now + s)

    def _running_group(self, where: Where | Iterable[Where]) -> list[SimNode]:
        group = self._group(where)
        for node in group:
            if not node.running:
                raise WorldError(self.timeline.report(f"{node.name} does not run"))
        return group

    def _end(self, node: SimNode, *, silent: bool = False) -> None:
        node.running = node.opened = False
        node.loop.kill()
        if node.transport is not None and not node.transport.ended:
            node.transport.end_process(silent=silent)
        if silent:
            node.host.boot()
        else:
            node.host.end_process(node.environment.host.pid, self.timeline)

    # -- the network

    def cut(
        self,
        where: Where | Iterable[Where],
        *,
        from_: Where | Iterable[Where] | None = None,
        to: Where | Iterable[Where] | None = None,
        severed: bool = False,
    ) -> None:
        """Cut these nodes off `from_` others (default: all others), in both directions.

        severed: what is on its way at this instant does not arrive either.

        With `to` instead, one way: what these nodes dial or send to those does not arrive, while
        links in the other direction live on, as behind a firewall.
        """
        for source, target in self._pairs(where, from_, to):
            self._note(source, "cut", target.name)
            self.network.cut(source.name, target.name, severed=severed)

    def heal(
        self,
        where: Where | Iterable[Where],
        *,
        from_: Where | Iterable[Where] | None = None,
        to: Where | Iterable[Where] | None = None,
    ) -> None:
        """Undo `cut`; the arguments mean the same."""
        for source, target in self._pairs(where, from_, to):
            self._note(source, "heal", target.name)
            self.network.heal(source.name, target.name)

    def heal_all(self) -> None:
        """End all cuts; slow and lossy links stay so."""
        self.trace.note(self.now, "", "heal")
        self.network.heal_all()

    def partition(self, sides: str) -> None:
        """`"a b | c d e"`: cut the sides off each other, heal the paths within each."""
        groups = [self._group(side) for side in sides.split("|")]
        side_of = {node: number for number, group in enumerate(groups) for node in group}
        self.trace.note(self.now, "", "partition", sides)
        for source, side in side_of.items():
            for target, other_side in side_of.items():
                act = self.network.heal if side == other_side else self.network.cut
                act(source.name, target.name)

    def shape(
        self,
        where: Where | Iterable[Where] | None = None,
        *,
        to: Where | Iterable[Where] | None = None,
        delay_s: tuple[float, float] | None = None,
        loss: float | None = None,
        duplicate: float | None = None,
        reorder: bool | None = None,
    ) -> None:
        """Make links slow or bad: between these nodes (default: all) and all others, both ways;
        with `to`, one way. What is None stays as it was.

        delay_s: least and greatest delay. loss, duplicate: chance per frame, 0 to 1. reorder: a
        frame may overtake another one of its link, which TCP never does. Data links are like TCP
        all the same: they keep their order, and the first lost frame breaks them for good.
        """
        for source, target in self._pairs(self.nodes if where is None else where, None, to):
            path = self.network.path(source.name, target.name)
            path.delay_s = path.delay_s if delay_s is None else delay_s
            path.loss = path.loss if loss is None else loss
            path.duplicate = path.duplicate if duplicate is None else duplicate
            path.reorder = path.reorder if reorder is None else reorder

    def _pairs(
        self,
        where: Where | Iterable[Where],
        from_: Where | Iterable[Where] | None,
        to: Where | Iterable[Where] | None,
    ) -> list[tuple[SimNode, SimNode]]:
        group = self._group(where)
        if to is not None:
            if from_ is not None:
                raise WorldError("give from_ (both ways) or to (one way), not both")
            others = self._group(to)
            pairs = [(one, other) for one in group for other in others]
        else:
            others = self._group(self.nodes if from_ is None else from_)
            pairs = [pair for one in group for other in others for pair in _both(one, other)]
        distinct = dict.fromkeys(pair for pair in pairs if pair[0] is not pair[1])
        return list(distinct)

    # -- clocks

    def jump_clock(self, where: Where | Iterable[Where], *, s: float) -> None:
        """Put the clock of these nodes' hosts forward; timers in between fire at once, late.

        Raises ValueError when `s` is negative: nodes read a clock that never goes back.
        """
        for node in self._group(where):
            self._note(node, "jump", s)
            node.host.clock.jump(s)
            self._rearm(node.host)

    def jump_wall_clock(self, where: Where | Iterable[Where], *, s: float) -> None:
        """Set the wall clock of these nodes' hosts, forward or (negative) back. No timer moves."""
        for node in self._group(where):
            self._note(node, "wall jump", s)
            node.host.wall_offset_s += s

    def drift_clock(self, where: Where | Iterable[Where], *, rate: float) -> None:
        """From now on the clock of these nodes' hosts counts `rate` seconds per second."""
        for node in self._group(where):
            self._note(node, "drift", rate)
            node.host.clock.set_rate(self.now, rate)
            self._rearm(node.host)

    def _rearm(self, host: SimHost) -> None:
        for node in self.nodes:
            if node.host is host and node.running:
                node.loop.rearm()

    # -- the end

    def close(self) -> None:
        """End the world: every process stops where it stands, without another step."""
        if self.closed:
            return
        self.closed = True
        for loop in self._loops:
            loop.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            told = isinstance(error, WorldError)
            error.add_note(self.timeline.report(f"world of seed {self.seed}", 0 if told else 40))
        self.close()

    def _note(self, node: SimNode, kind: str, *details: float | int | str) -> None:
        self.trace.note(self.now, node.name, kind, *details)


def _no_view() -> MembershipView | None:
    return None


def _names(nodes: int | str | None) -> list[str]:
    if isinstance(nodes, str):
        names = nodes.split()
    else:
        count = 1 if nodes is None else nodes
        letters = count <= len(_LETTERS)
        names = [_LETTERS[i] if letters else f"n{i + 1}" for i in range(count)]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"nodes={nodes!r} must give one name or more, each once: nodes='a b c'")
    return names


def _both(one: SimNode, other: SimNode) -> tuple[tuple[SimNode, SimNode], ...]:
    return ((one, other), (other, one))
