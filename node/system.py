"""ActorSystem: the one place where a node is built, started and ended.

Decides the order of start (bind, application, join) and of the end (refuse new work, singletons
stop, actors drain, the leave is announced and acknowledged, sockets close). Does not decide
anything about the cluster. Used by applications, the command line and the testkit; installs no
signal handler and never ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from downing.events import (
    ContactChanged,
    DowningDecided,
    DowningDoubted,
    DowningUnsettled,
)
from downing.machine import DowningMachine
from downing.strategies import LeaseMajority
from gossip.events import (
    Address,
    ClaimRefused,
    ClusterFounded,
    ClusterJoined,
    ConvergenceBlocked,
    Exit,
    HeardNobody,
    IslandMet,
    LeaveRequested,
    LinkChanged,
    LookingFor,
    MemberChanged,
    MemberRemoved,
    ReachabilityChanged,
    SeedsResolved,
    Started,
    SurvivorMet,
)
from gossip.machine import GossipMachine
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from node.actor import Actor
from node.arbiter import LeaseArbiter
from node.cluster import NO_LEASE, Cluster, SingletonHost, Singletons, instance_id
from node.codec import HEADS_BYTES_MAX
from node.core import AllReleased, NodeCore
from node.daemon import Daemon
from node.environment import DataLink, Environment, Lane, Transport
from node.errors import NoSeedError, SettingsError
from node.events import EventStream
from node.history import History
from node.leases import Leases
from node.mailbox import WhenFull
from node.proxy import SingletonProxies
from node.ref import ActorRef
from node.regions import Regions
from node.runtime import Runtime
from node.settings import Settings, settings_from, split_seed
from node.sharding import Sharding
from node.silence import Silence
from node.singleton_leases import SingletonLeases
from node.supervision import Supervision
from sharding.events import RegionNotAdmitted, ShardsMoved, ShardsNotProven, TermBegan
from singleton.events import (
    FitnessChanged,
    InstanceChanged,
    LeaveStarted,
    SingletonStateChanged,
    StateTooLarge,
    TermsDiffer,
    UniquenessNotProven,
)
from singleton.machine import STATE_BYTES_MAX

if TYPE_CHECKING:
    from lease import Lease, LeaseStore
    from node.crash_guard import Report

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 1.0
LOOK_UP_AGAIN_S, LOOK_UP_AGAIN_MAX_S = 1.0, 30.0
NOT_STOPPED_EXIT = 70
FAIL_HELD_S = 1.0  # a successor is normally there within milliseconds
# After a hand-over what is on its way to us goes on to the new host, until nothing more comes.
FORWARD_S, FORWARD_ROUNDS_MAX = 0.1, 10
Hook = Callable[[], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Terminated:
    """How a system ended; `exit_code` is the one the command line would end its process with."""

    reason: str
    exit_code: int


class ActorSystem:
    """Actors of this process and, with `port`, its membership in a cluster.

    `ActorSystem(settings)` or `ActorSystem(port=…, seeds=[…])` with the fields of `Settings`;
    without `port` purely local, no sockets. Use it as `async with ActorSystem(…) as system`, or
    `system = await ActorSystem.start(…)` and `await system.leave()`. Raises `SettingsError` at
    construction.

    environment: what the node gets from outside; the testkit hands in a simulated one. report:
    tells a supervisor of the leases here, which gives them back after a crash.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        environment: Environment | None = None,
        report: Report | None = None,
        **kwargs: Any,
    ) -> None:
        self._report = report
        self.settings = settings_from(settings, **kwargs)
        self._environment = environment
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: Runtime | None = None
        self._cluster: Cluster | None = None
        self._core: NodeCore | None = None
        self._daemon: Daemon | None = None
        self._transport: Transport | None = None
        self._proxies: SingletonProxies | None = None
        self._regions: Regions | None = None
        self._history: History | None = None
        self._leases: Leases | None = None
        self._singleton_tokens: dict[str, int] = {}
        self._arbiter: LeaseArbiter | None = None
        self._terminated: asyncio.Future[Terminated] | None = None
        self._released: asyncio.Future[None] | None = None
        self._exit: asyncio.Future[Exit] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._before_close: Hook | None = None
        self._member_at: dict[tuple[str, int], NodeId] = {}  # address → who is there
        self._counts: Counter[str] = Counter()

    # begin

    @classmethod
    async def start(
        cls,
        settings: Settings | None = None,
        *,
        environment: Environment | None = None,
        before_join: Hook | None = None,
        before_close: Hook | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build and open a system; what `async with` does, for places that cannot use it."""
        system = cls(settings, environment=environment, **kwargs)
        await system.open(before_join=before_join, before_close=before_close)
        return system

    async def open(
        self, *, before_join: Hook | None = None, before_close: Hook | None = None
    ) -> None:
        """Bind the sockets, call `before_join`, then look for the cluster; does not wait for it.

        `before_close` is called in the end, when no actor runs any more, before the sockets close:
        what else the process serves goes there, for a closed control listener means that nothing
        of the process acts.

        Raises `AddressInUseError`, `NoSeedError`, `SettingsError`, and what `before_join` raises;
        nothing is left bound then.
        """
        if self._loop is not None:
            raise RuntimeError("this system was opened before; build a new one")
        loop = self._loop = asyncio.get_running_loop()
        self._terminated = loop.create_future()
        self._exit = loop.create_future()
        self._before_close = before_close
        environment = self._environment
        if environment is None:
            environment = self._environment = await self._real_environment(loop)
        self._leases = Leases(self.settings, environment, self._lease_owner, self._report)
        try:
            if environment.transport is None:
                self._runtime = self._make_runtime(loop, environment, None)
            else:
                await self._open_node(loop, environment, environment.transport)
            await _call(before_join)
            if self._daemon is not None:
                seeds, unresolved = await self._resolve_seeds(loop)
                remembered = environment.state.load()
                if self.settings.found and remembered:
                    logger.warning(
                        "founds a cluster although members are remembered: if theirs lives, the "
                        "smaller one will stop. --found is for one start only",
                        extra={"remembered": " ".join(remembered[:8])},
                    )
                wall_s = int(environment.wall_clock())
                self._daemon.feed(
                    Started(seeds, remembered, self.settings.found, wall_s, unresolved)
                )
                if unresolved:
                    self._resolving = loop.create_task(self._resolve_again(loop, unresolved))
        except BaseException:
            await self._close()
            raise

    async def _real_environment(self, loop: asyncio.AbstractEventLoop) -> Environment:
        from node.zmq_environment import real_environment
        from node.zmq_links import LinkTiming
        from node.zmq_transport import TransportLimits

        settings = self.settings
        gossip = settings.gossip()
        host = settings.host
        if settings.port is not None:
            # The number is our identity: names that mean one address must not look like two.
            host = await _number_of(loop, host)
        return real_environment(
            loop=loop,
            host=host,
            port=settings.port,
            data_port=settings.data_port,
            insecure=settings.insecure,
            keys=settings.keys,
            frame_bytes_max=settings.frame_bytes_max,
            limits=TransportLimits(
                data_pending_bytes_max=settings.pending_bytes_max,
                timing=LinkTiming(
                    heartbeat_interval_s=gossip.heartbeat_interval_s,
                    heartbeat_timeout_s=gossip.heartbeat_timeout_s,
                ),
            ),
            state_dir=settings.state_dir,
            cluster_name=settings.cluster_name,
        )

    async def _open_node(
        self, loop: asyncio.AbstractEventLoop, environment: Environment, transport: Transport
    ) -> None:
        settings, rng = self.settings, environment.rng
        assert self._leases is not None
        await transport.bind()
        self._transport = transport
        self_id = NodeId(transport.host, transport.control_port, rng.getrandbits(64) or 1)
        if settings.history is not None:
            self._history = History(settings.history, node=self_id.address, clock=environment.clock)
        gossip = GossipMachine(
            self._own_record(self_id, environment, transport),
            cluster_name=settings.cluster_name,
            settings=settings.gossip(),
            rng=rng,
            agreement=settings.agreement(),
        )
        strategy = settings.strategy()
        downing = DowningMachine(self_id, strategy, settings.downing_settings(), gossip.seen_by)
        core = self._core = NodeCore(gossip, downing, rng)
        runtime = self._runtime = self._make_runtime(loop, environment, self_id)
        if strategy is not None:
            runtime.gate.extend(-math.inf)
            runtime.gate.longest_s = settings.downing_settings().contact_s
        if isinstance(strategy, LeaseMajority) and settings.lease is None:
            logger.warning("the downing strategy does not fit", extra={"why": NO_LEASE})
        arbiter = self._arbiter = LeaseArbiter(
            None if settings.lease is None else self._leases,
            cluster_name=settings.cluster_name,
            self_id=self_id,
            ttl_s=settings.downing_settings().down_after_s,
            loop=loop,
            environment=environment,
        )
        proxies = self._proxies = SingletonProxies(runtime)
        singleton_leases = SingletonLeases(runtime)
        self._singleton_tokens = singleton_leases.tokens
        host = SingletonHost(runtime, proxies, singleton_leases)
        regions = self._regions = Regions(runtime)
        core.may_act = singleton_leases.may_act
        core.token_of = lambda singleton: singleton_leases.tokens.get(singleton, 0)
        self._daemon = Daemon(
            loop=loop,
            environment=environment,
            transport=transport,
            core=core,
            runtime=runtime,
            host=host,
            regions=regions,
            arbiter=arbiter,
            set_contact=singleton_leases.set_contact,
            pause_s=settings.gossip().probe_interval_s,
            dial_timeout_s=settings.gossip().dial_timeout_s,
            publish=self._published,
            exited=self._exited,
            renamed=self._renamed,
        )
        host.feed = singleton_leases.feed = regions.feed = self._daemon.feed
        arbiter.feed = self._daemon.feed
        singletons = Singletons(host, proxies, settings, self._leases, core, environment.clock)
        self._cluster = Cluster(
            core,
            singletons,
            Sharding(runtime, regions, singletons, settings, core, environment.clock),
            host,
            settings,
            environment.clock,
            environment.wall_clock,
            transport.link_records,
            transport.dial_faults,
        )
        runtime.silence = Silence(runtime, core, self._cluster, proxies, regions, environment.clock)
        transport.open(self_id, self._daemon)
        logger.info(
            "bound",
            extra={"address": self_id.address, "data_port": transport.data_port},
        )
        self._write("bound", detail=f"{self_id.address} {transport.data_port}")

    def _own_record(
        self, self_id: NodeId, environment: Environment, transport: Transport
    ) -> Member:
        host = environment.host
        return Member(
            id=self_id,
            name=self.settings.name,
            roles=tuple(sorted(set(self.settings.roles))),
            protocol_min=transport.versions[0],
            protocol_max=transport.versions[1],
            data_port=transport.data_port,
            public_key=transport.public_key,
            boot_id=host.boot_id,
            net_ns=host.net_ns,
            pid_ns=host.pid_ns,
            pid=host.pid,
            start_ticks=host.start_ticks,
        )

    def _make_runtime(
        self, loop: asyncio.AbstractEventLoop, environment: Environment, self_id: NodeId | None
    ) -> Runtime:
        return Runtime(
            loop=loop,
            clock=environment.clock,
            rng=environment.rng,
            self_id=self_id,
            data_link=self._data_link if self_id is not None else None,
            refused=self._data_refused,
            stop_timeout_s=self.settings.stop_timeout_s,
            envelope_bytes_max=self.settings.frame_bytes_max - HEADS_BYTES_MAX,
            blocked_after_s=self.settings.blocked_after_s,
        )

    async def _resolve_seeds(
        self, loop: asyncio.AbstractEventLoop
    ) -> tuple[tuple[Address, ...], tuple[str, ...]]:
        """Every address of every seed, and the seeds that have none yet."""
        found, failed = await _look_up(loop, self.settings.seeds)
        if failed and not found:
            why = ", ".join(f"{seed} ({error})" for seed, error in failed.items())
            raise NoSeedError(f"no seed resolves: {why}. Correct --seed, or the name service")
        for seed, error in failed.items():
            logger.warning(
                "a seed does not resolve yet, it is looked up again",
                extra={"seed": seed, "error": error},
            )
        return found, tuple(failed)

    async def _resolve_again(
        self, loop: asyncio.AbstractEventLoop, unresolved: tuple[str, ...]
    ) -> None:
        """Look names up until all have an address, ever more seldom."""
        pause_s = LOOK_UP_AGAIN_S
        while unresolved and self._daemon is not None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_UP_AGAIN_MAX_S)
            found, failed = await _look_up(loop, unresolved)
            if len(failed) < len(unresolved) and self._daemon is not None:
                unresolved = tuple(failed)
                self._daemon.feed(SeedsResolved(found, unresolved))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    # use

    @property
    def runtime(self) -> Runtime:
        """The actors of this process. Raises RuntimeError before the system is open."""
        if self._runtime is None:
            raise RuntimeError("the system is not open: use `async with ActorSystem(…)`")
        return self._runtime

    @property
    def cluster(self) -> Cluster:
        """Membership and singletons. Raises `SettingsError` for a local system."""
        if self._cluster is None:
            raise SettingsError(
                "there is no cluster: open the system first, and give it port= and seeds="
            )
        return self._cluster

    @property
    def daemon(self) -> Daemon:
        """The shell of this node. Raises `SettingsError` for a local system."""
        if self._daemon is None:
            raise SettingsError("a local system has no daemon: give port= and seeds=")
        return self._daemon

    @property
    def events(self) -> EventStream:
        """Subscribe to dead letters, membership views, changes of members and singletons."""
        return self.runtime.events

    def spawn(
        self,
        cls: type[Actor],
        *args: object,
        name: str | None = None,
        supervision: Supervision | None = None,
        mailbox_max: int | None = None,
        when_full: WhenFull | None = None,
        stash_max: int | None = None,
    ) -> ActorRef[Any]:
        """Make an actor `cls(*args)` at `/user/<name>`; see `Runtime.spawn` for the bounds and for
        what it raises."""
        return self.runtime.spawn(
            cls,
            *args,
            name=name,
            supervision=supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )

    def lease(
        self,
        name: str,
        *,
        ttl_s: float | None = None,
        store: str | LeaseStore | None = None,
    ) -> Lease:
        """The lease `name` in the system's store (`lease=URL`), or in `store`: a URL, or a store.

        This member's address is the owner, `Settings.lease_ttl_s` the ttl unless given. Each call
        makes a holder of its own: keep the object. What is still held when the system has ended
        is released then. Raises `SettingsError` when there is no store, or a value cannot work.
        """
        if self._leases is None:
            raise RuntimeError("the system is not open: use `async with ActorSystem(…)`")
        return self._leases.lease(name, ttl_s=ttl_s, store=store)

    @property
    def leases(self) -> Leases:
        """All leases of this system."""
        if self._leases is None:
            raise RuntimeError("the system is not open: use `async with ActorSystem(…)`")
        return self._leases

    def _lease_owner(self) -> str:
        if self._core is not None:
            return self._core.gossip.self_id.address
        return f"{socket.gethostname()}:{os.getpid()}"

    def stop(self, ref: ActorRef[Any]) -> None:
        """Order an actor of this process to stop; what is in its mailbox is handled first."""
        self.runtime.stop(ref)

    def resolve(self, address: str) -> ActorRef[Any]:
        """The ref for `/user/hello` (here) or `host:port/user/hello`. Raises ValueError."""
        return self.runtime.resolve(address)

    def counters(self) -> Mapping[str, int]:
        """What was counted since the start: dead letters, refused frames, pauses, …"""
        counts = Counter(self._counts)
        counts.update(self.runtime.counters)
        if self._daemon is not None and self._core is not None:
            counts.update(self._daemon.counters)
            counts.update(self._core.counters)
            counts.update(self._core.gossip.counters)
            downing = self._core.downing
            for counted in (downing.counters, downing.ignored):
                for name, count in counted.items():
                    if count or downing.strategy is not None:
                        counts[f"downing: {name}"] += count
            for machine in self._core.singletons.values():
                counts.update(machine.ignored)
            for region in self._core.regions.values():
                counts.update(region.counters)
            for coordinator in self._core.coordinators.values():
                counts.update(coordinator.counters)
        if self._leases is not None:
            counts.update(self._leases.counters())
        if self._transport is not None:
            counts.update(self._transport.counters())
        counts["event handler failures"] += self.runtime.events.failures
        return counts

    def ready(self) -> tuple[bool, str]:
        """Whether this node is a working member, and why not (I-145: leaving is not ready)."""
        if self._ending is not None:
            exit_ = self._exit
            if exit_ is not None and exit_.done() and not exit_.cancelled() and exit_.result().code:
                return False, f"ending: {exit_.result().reason}"
            return False, "leaving"
        if self._core is None:
            return True, "a local system"
        view = self._core.gossip.view
        if view is None:
            return False, self.cluster.state()["explain"]
        me = view.by_id.get(view.self_id)
        if me is None or me.status is not Status.UP:
            return False, f"not up yet: {self.cluster.state()['explain']}"
        contact = self.cluster.state()["downing"]["contact"]
        if contact is not None and contact["asked"] and not contact["held"]:
            return True, f"up, but what is unique here does not act: {contact['explain']}"
        silent = self._leases.silent_stores() if self._leases is not None else ()
        if silent:
            return True, f"up, but a lease store does not answer: {', '.join(silent)}"
        troubles = self.cluster.sharding.troubles()
        if troubles:
            return True, f"up, but {troubles[0]}"
        if view.blocked_by and view.unreachable:
            return True, f"up, but {self.cluster.state()['explain']}"
        if view.suspects and self._environment is not None:
            words = self._core.gossip.explain(self._environment.clock())
            if words != "converged":
                return True, f"up, but {words}"
        return True, "up"

    # end

    @property
    def terminated(self) -> Awaitable[Terminated]:
        """Completes when the system has ended, for whatever reason."""
        if self._terminated is None:
            raise RuntimeError("the system is not open: use `async with ActorSystem(…)`")
        return asyncio.shield(self._terminated)

    async def leave(self) -> None:
        """End in order; returns when everything has stopped. Called again, it waits for the same.

        Singletons stop, actors handle what is in their mailboxes, the leave is announced and
        acknowledged, the sockets close. An actor must not wait for it, since it waits for the
        actor: let it begin by `asyncio.create_task(system.leave())`.
        """
        await asyncio.shield(self._end(None))

    def _end(self, exit_: Exit | None) -> asyncio.Task[None]:
        if self._loop is None:
            raise RuntimeError("the system is not open: use `async with ActorSystem(…)`")
        if self._ending is None:
            self._ending = self._loop.create_task(self._end_in_order(exit_))
        return self._ending

    def _exited(self, exit_: Exit) -> None:
        """Membership has ended: by our own leave, a refusal, or the others' decision."""
        if self._exit is not None and not self._exit.done():
            self._exit.set_result(exit_)
        self._end(exit_)

    async def _end_in_order(self, exit_: Exit | None) -> None:
        """exit_: why we must end; None: because we were asked to, so the others are told."""
        end = exit_ or Exit(0, "left")
        self._write("leaving", detail=end.reason)
        try:
            async with asyncio.timeout(self.settings.shutdown_timeout_s):
                released = self._daemon is None or await self._stop_singletons(self._daemon)
                self._fail_held_soon()
                # Twice: a handler may take its timeout, and post_stop after it.
                await self.runtime.shutdown(2 * self.settings.stop_timeout_s)
                if not released:
                    if self._leases is not None:
                        self._leases.releases_at_close = False
                    # To announce a leave is to say that nothing unique runs here any more.
                    end = Exit(NOT_STOPPED_EXIT, "a singleton did not stop; the leave is not told")
                elif exit_ is None and self._daemon is not None:
                    end = await self._announce_leave(self._daemon)
        except TimeoutError:
            if self._leases is not None:
                self._leases.releases_at_close = False
            logger.error(
                "the ordered shutdown took too long and was cut short",
                extra={
                    "shutdown_timeout_s": self.settings.shutdown_timeout_s,
                    "not_ended": self.runtime.abandon_all(),
                },
            )
        await self._close()
        self._terminated_with(Terminated(end.reason, end.code))

    def _fail_held_soon(self) -> None:
        """Actors that wait for a singleton or an entity nobody hosts any more must not hold up the
        end."""
        if self._proxies is None or self._loop is None or self._core is None:
            return
        view = self._core.gossip.view
        why = "this node leaves, and no host took over"
        if view is None or len(view.members) < 2:
            self._fail_held(why)
        else:
            self._loop.call_later(FAIL_HELD_S, self._fail_held, why)

    def _fail_held(self, why: str) -> None:
        if self._proxies is not None and self._regions is not None:
            self._proxies.fail_held(why)
            self._regions.fail_held(why, besides=self._led_types())

    def _led_types(self) -> set[str]:
        """Sharded types that have a coordinator: what is for them gets a home."""
        regions = self._core.regions if self._core is not None else {}
        return {name for name, region in regions.items() if region.coordinator is not None}

    async def _stop_singletons(self, daemon: Daemon) -> bool:
        """True when all have stopped. A daemon that failed is not asked: all actors stop next."""
        if daemon.closed:
            return True
        assert self._loop is not None
        assert self._core is not None
        assert self._regions is not None
        hosted = self._regions.has_any or any(
            machine.running_attempt for machine in self._core.singletons.values()
        )
        self._released = self._loop.create_future()
        daemon.feed(LeaveStarted())
        try:
            # Shards are moved first, then stopped; then singletons have their time.
            rounds = 4 if self._regions.has_any else 2
            async with asyncio.timeout(rounds * self.settings.stop_timeout_s):
                await self._released
        except TimeoutError:
            logger.error("a singleton did not stop in time", extra=self._singletons_left())
            return False
        if hosted and len(self._core.gossip.view.members if self._core.gossip.view else ()) > 1:
            await self._forward_the_rest()
        return True

    async def _forward_the_rest(self) -> None:
        """What was held here follows; what is for a shard that moves between others waits for that
        as for one of ours."""
        assert self._proxies is not None
        assert self._regions is not None
        rounds_max = max(FORWARD_ROUNDS_MAX, round(self.settings.stop_timeout_s / FORWARD_S))
        for number in range(rounds_max):
            before = self._proxies.forwarded_count, self._regions.forwarded_count
            await asyncio.sleep(FORWARD_S)
            after = self._proxies.forwarded_count, self._regions.forwarded_count
            held = self._regions.held_types
            if after == before and not held:
                return
            if number + 1 >= FORWARD_ROUNDS_MAX and not held & self._led_types():
                return

    def _singletons_left(self) -> dict[str, object]:
        machines = self._core.singletons.values() if self._core is not None else ()
        return {"singletons": [m.type_name for m in machines if m.running_attempt]}

    async def _announce_leave(self, daemon: Daemon) -> Exit:
        assert self._exit is not None
        daemon.feed(LeaveRequested())
        try:
            async with asyncio.timeout(self._leave_phase_s + FLUSH_TIMEOUT_S):
                return await self._exit
        except TimeoutError:
            return Exit(0, "left; the others did not acknowledge it in time")

    @property
    def _leave_phase_s(self) -> float:
        """A leaver whose vote is needed stays until it is decided."""
        vote_s = 0.0 if self.settings.strategy() is None else self.settings.vote_timeout_s
        return self.settings.leave_timeout_s + vote_s

    async def _close(self) -> None:
        """Close everything; the control listener is the last thing of this process to go."""
        if self._resolving is not None:
            self._resolving.cancel()
        if self._proxies is not None:
            self._proxies.close()
        if self._regions is not None:
            self._regions.close()
        if self._runtime is not None and self._ending is None:
            await self._runtime.shutdown(self.settings.stop_timeout_s)
        interrupted: BaseException | None = None
        try:
            await _call(self._before_close)
        except Exception:
            logger.exception("before_close failed")
        except BaseException as error:  # noqa: BLE001 - raised again below
            interrupted = error  # also then no socket stays open
        if self._transport is not None:
            await self._transport.flush(FLUSH_TIMEOUT_S)
        if self._daemon is not None:
            self._daemon.close()
        if self._arbiter is not None:
            await self._arbiter.close()
        if self._cluster is not None:
            await self._cluster.sharding.close()
        if self._leases is not None:
            await self._leases.close()
        if self._environment is not None:
            self._environment.processes.close()
        if self._history is not None:
            self._history.close()
        if self._transport is not None:
            await self._transport.close()
        if interrupted is not None:
            raise interrupted

    def _terminated_with(self, how: Terminated) -> None:
        assert self._terminated is not None
        if not self._terminated.done():
            self._terminated.set_result(how)

    # what the machines publish

    def _data_link(self, node: NodeId) -> DataLink | None:
        """The way to a node; to "whoever is there" at an address: to the member there."""
        assert self._transport is not None
        if node.uid == 0:
            node = self._member_at.get(node[:2], node)
        return self._transport.data_link(node)

    def _data_refused(self, reason: str, detail: str) -> None:
        if self._daemon is not None:
            self._daemon.frame_refused(Lane.DATA, reason, detail)

    def _renamed(self, new_id: NodeId) -> None:
        self.runtime.self_id = new_id

    def _published(self, fact: object) -> None:
        match fact:
            case MembershipView():
                self._member_at = {
                    member.id[:2]: member.id
                    for member in fact.members
                    if member.status < Status.DOWN
                }
                self.cluster.view_changed(fact)
            case AllReleased():
                if self._released is not None and not self._released.done():
                    self._released.set_result(None)
            case InstanceChanged():
                self._write_instance(fact)
            case UniquenessNotProven():
                self._warn_not_proven(fact)
            case TermsDiffer():
                self._warn_of_terms(fact)
            case FitnessChanged():
                level = logging.INFO if fact.is_fit else logging.WARNING
                words = "a singleton may be hosted here again" if fact.is_fit else "unfit to host"
                extra = {"singleton": fact.type_name, "why": fact.explain}
                logger.log(level, words, extra=extra)
                event = "fit" if fact.is_fit else "unfit"
                self._write(event, singleton=fact.type_name, detail=fact.explain)
            case StateTooLarge():
                logger.error(
                    "the state of a singleton is not handed over: it is too large",
                    extra={
                        "singleton": fact.type_name,
                        "bytes": fact.byte_count,
                        "bytes_max": STATE_BYTES_MAX,
                    },
                )
            case SingletonStateChanged():
                logger.info(
                    "singleton",
                    extra={
                        "singleton": fact.type_name,
                        "state": fact.state,
                        "host": fact.host.address if fact.host else None,
                        "explain": fact.explain,
                    },
                )
            case RegionNotAdmitted() | ShardsNotProven() | ShardsMoved() | TermBegan():
                self._sharding_fact(fact)
            case ContactChanged() | DowningDecided() | DowningUnsettled() | DowningDoubted():
                self._downing_fact(fact)
            case _:
                self._membership_fact(fact)
        self.runtime.events.publish(fact)

    def _sharding_fact(
        self, fact: RegionNotAdmitted | ShardsNotProven | ShardsMoved | TermBegan
    ) -> None:
        name = fact.type_name
        match fact:
            case RegionNotAdmitted():
                extra = {"sharded_type": name, "why": fact.explain}
                logger.error("a region is not admitted: its shards stay elsewhere", extra=extra)
                self._write("region_refused", singleton=name, detail=fact.explain)
            case ShardsNotProven():
                silent = " ".join(node.address for node in fact.silent_peers)
                logger.warning(
                    "shards are allocated anew although it is not proven that nobody runs them",
                    extra={
                        "sharded_type": name,
                        "silent_peers": silent,
                        "waited_s": round(fact.waited_s, 3),
                    },
                )
                self._write("shards_not_proven", singleton=name, detail=silent)
            case TermBegan():
                logger.info(
                    "a coordinator begins a term",
                    extra={"sharded_type": name, "term": fact.number, "why": fact.why},
                )
                self._write("term", singleton=name, detail=f"{fact.number} {fact.why}")
            case ShardsMoved():
                numbers = " ".join(map(str, fact.shards))
                self._write("shards", singleton=name, detail=f"{fact.node.address} {numbers}")

    def _downing_fact(
        self, fact: ContactChanged | DowningDecided | DowningUnsettled | DowningDoubted
    ) -> None:
        match fact:
            case ContactChanged():
                name = "authority_gained" if fact.held else "authority_lost"
                level = logging.INFO if fact.held else logging.WARNING
                self._say(name, fact.explain, level=level)
            case DowningDecided():
                nodes = " ".join(node.address for node in fact.downed)
                detail = f"{fact.kind}: {nodes or 'nobody'}: {fact.explain}"
                self._say("downing_decided", detail, level=logging.WARNING)
            case DowningUnsettled():
                logger.error(
                    "members are unreachable and nothing can be decided",
                    extra={"for_s": round(fact.for_s, 1), "explain": fact.explain},
                )
                self._write("downing_unsettled", detail=fact.explain)
            case DowningDoubted():
                for warning in fact.warnings:
                    logger.warning("the downing strategy does not fit", extra={"why": warning})

    def _membership_fact(self, fact: object) -> None:
        match fact:
            case MemberChanged():
                node, status = fact.member.id, fact.member.status.name.lower()
                if fact.member.status is Status.DOWN:
                    self.runtime.node_removed(node, left=fact.member.cause is Cause.LEFT)
                name = "downed" if fact.member.status is Status.DOWN else f"member_{status}"
                lost = fact.member.status is Status.DOWN and fact.member.cause is not Cause.LEFT
                self._say(
                    name,
                    f"{node.address} {node.uid:016x} {fact.member.cause.name.lower()}",
                    level=logging.WARNING if lost else logging.INFO,
                )
            case MemberRemoved():
                self.runtime.node_removed(fact.id, left=fact.cause is Cause.LEFT)
                detail = f"{fact.id.address} {fact.id.uid:016x} {fact.cause.name.lower()}"
                self._say("member_removed", detail)
            case ReachabilityChanged():
                if fact.reachable:
                    self.runtime.node_reachable(fact.id)
                name = "reachable" if fact.reachable else "unreachable"
                level = logging.INFO if fact.reachable else logging.WARNING
                self._say(name, f"{fact.id.address} {fact.id.uid:016x}", level=level)
            case LinkChanged():
                name = "link_works" if fact.works else "link_fails"
                level = logging.INFO if fact.works else logging.WARNING
                self._say(name, f"{fact.peer.address} {fact.peer.uid:016x}", level=level)
            case HeardNobody():
                logger.warning(
                    "no member says anything: most likely this node is cut off",
                    extra={"for_s": round(fact.for_s, 1)},
                )
            case ClusterFounded():
                if self.settings.state_dir is None:
                    logger.warning(
                        "founded a cluster, and will again after a restart: without --state-dir "
                        "a restarted seed does not know that its cluster lives on"
                    )
                self._say("founded", f"{fact.cluster_id:016x}")
            case ClusterJoined():
                self._say("joined", f"{fact.cluster_id:016x} {fact.by.address}")
            case IslandMet():
                self._say(
                    "island_met",
                    f"{fact.address} {fact.other_cluster_id:016x}",
                    level=logging.WARNING,
                )
            case SurvivorMet():
                logger.error(
                    "a part of this cluster has removed us, as we have removed it",
                    extra={
                        "member": fact.address,
                        "cause": fact.cause.name.lower(),
                        "its_size": fact.other_size,
                        "we_stop": fact.we_stop,
                    },
                )
                self._write("survivor_met", detail=f"{fact.address} {fact.other_size}")
            case ConvergenceBlocked():
                logger.warning("convergence is blocked", extra={"explain": fact.explain})
                self._write("blocked", detail=" ".join(node.address for node in fact.members))
            case LookingFor():
                self._say("looking", fact.explain)
            case ClaimRefused():
                # A member of a moment ago is a stranger to who has not heard of it yet.
                usual = fact.reason == "no-standing"
                logger.log(
                    logging.INFO if usual else logging.WARNING,
                    "a claim about the membership is refused; further ones of this kind are only "
                    "counted",
                    extra={"reason": fact.reason, "peer": str(fact.sender)},
                )

    def _say(self, event: str, detail: str, *, level: int = logging.INFO) -> None:
        logger.log(level, event.replace("_", " "), extra={"detail": detail})
        self._write(event, detail=detail)

    def _write(self, event: str, *, detail: str = "", singleton: str | None = None) -> None:
        if self._history is not None:
            self._history.write(event, detail=detail, singleton=singleton)

    def _write_instance(self, fact: InstanceChanged) -> None:
        if self._history is not None:
            token = self._singleton_tokens.get(fact.type_name)
            self._history.write(
                fact.event.value,
                singleton=fact.type_name,
                instance_id=instance_id(self.cluster.self_id, fact.attempt),
                token=None if token is None else str(token),
                detail=fact.detail,
            )

    def _warn_not_proven(self, fact: UniquenessNotProven) -> None:
        silent = ", ".join(node.address for node in fact.silent_peers)
        logger.warning(
            "hosting although uniqueness is not proven: silent peers may host too",
            extra={
                "singleton": fact.type_name,
                "silent_peers": silent,
                "waited_s": round(fact.waited_s, 3),
            },
        )
        self._write("not_proven", detail=f"{fact.type_name} {silent}")

    def _warn_of_terms(self, fact: TermsDiffer) -> None:
        if fact.other is None:
            logger.info("singleton terms agree again", extra={"singleton": fact.type_name})
            return
        logger.warning(
            "not hosted here: all members must start it with the same role, lease and shards",
            extra={
                "singleton": fact.type_name,
                "other": fact.other.address,
                "differs": fact.explain,
            },
        )
        detail = f"{fact.other.address} {fact.explain}"
        self._write("terms_differ", singleton=fact.type_name, detail=detail)


async def _call(hook: Hook | None) -> None:
    if hook is not None:
        result = hook()
        if result is not None:
            await result


async def _resolve(loop: asyncio.AbstractEventLoop, host: str) -> list[str]:
    """All numeric addresses of a host, IPv4 first, each in its one usual form.

    Raises OSError or UnicodeError when there is none.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return [socket.inet_ntop(family, socket.inet_pton(family, host))]
        except OSError:
            continue
    answers = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(answers, key=lambda answer: answer[0] != socket.AF_INET)
    return list(dict.fromkeys(str(answer[4][0]) for answer in ordered))


async def _look_up(
    loop: asyncio.AbstractEventLoop, seeds: Iterable[str]
) -> tuple[tuple[Address, ...], dict[str, str]]:
    """Every address of the seeds, and why others have none."""
    found: list[Address] = []
    failed: dict[str, str] = {}
    for seed in seeds:
        host, port = split_seed(seed)
        try:
            numbers = await _resolve(loop, host)
        except (OSError, UnicodeError) as error:
            failed[seed] = str(error)
            continue
        found.extend((number, port) for number in numbers)
    return tuple(dict.fromkeys(found)), failed


async def _number_of(loop: asyncio.AbstractEventLoop, host: str) -> str:
    """The numeric address we bind and are known by. Raises `SettingsError`."""
    try:
        return (await _resolve(loop, host.removeprefix("[").removesuffix("]")))[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"host={host!r} does not resolve ({error}): name an address of this machine"
        ) from error
