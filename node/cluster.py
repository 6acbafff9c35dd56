"""The cluster as users see it: who is in it, singletons to start, state to show.

Decides what `/cluster` and `/singletons` say, and carries out what singleton managers order
(spawning and stopping instances). Does not decide who hosts what. Made by `node.system`, reached
as `system.cluster`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from downing.events import DownRequested
from downing.strategies import LeaseMajority
from gossip.membership import MembershipView, NodeId, Status
from node.actor import Actor
from node.cell import HandOver
from node.core import NodeCore, ProxyRequested
from node.environment import LinkRecord
from node.errors import SettingsError
from node.events import ActorFailed
from node.logs import wall_time
from node.proxy import PREFIX, SingletonProxies
from node.ref import ActorRef
from node.sharding import Sharding
from node.supervision import StopCause, StopReason, times_failed
from singleton.effects import RouteSingleton, StartInstance, StopInstance
from singleton.effects import StopCause as InstanceStop
from singleton.events import (
    InstanceFailed,
    InstanceStarted,
    InstanceStopped,
    MoveRequested,
    SingletonStateChanged,
    StartRequested,
    StopRequested,
)
from singleton.machine import State
from singleton.settings import SingletonSettings, terms_of

if TYPE_CHECKING:
    from lease import Lease
    from node.leases import Leases
    from node.runtime import Runtime
    from node.settings import Settings
    from node.singleton_leases import SingletonLeases

_STOP_CAUSES = {
    InstanceStop.LEAVING: StopCause.LEAVING,
    InstanceStop.STOPPED: StopCause.STOPPED,
    InstanceStop.STOOD_DOWN: StopCause.HANDED_OVER,
    InstanceStop.LEASE_LOST: StopCause.LEASE_LOST,
}
_FAULTS_SHOWN_MAX = 3
SUSPENDED = "suspended"
ACTING = (State.RUNNING, State.STARTING)
NO_LEASE = (
    "lease-majority: this node has no lease store, so it cannot decide any split: start all "
    "members with the same --lease URL"
)
_TYPE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How instances of a type are made here."""

    actor: type[Actor]
    args: tuple[object, ...]
    role: str | None
    lease: object = None  # what the user gave


class SingletonHost:
    """Spawns and stops instances for the managers; every order is answered by an event."""

    def __init__(
        self, runtime: Runtime, proxies: SingletonProxies, leases: SingletonLeases
    ) -> None:
        self.feed: Callable[[object], None] = lambda event: None  # set once there is a daemon
        self.leases = leases
        self.want_lease, self.drop_lease = leases.want, leases.drop
        self.watch_lease = leases.watch
        self.kinds: dict[str, _Kind] = {}
        self._runtime = runtime
        self._proxies = proxies
        self.events = runtime.events
        runtime.events.subscribe(ActorFailed, self._failed)
        self.failures: dict[str, tuple[int, str]] = {}  # of the present instance, until it starts
        self._ordered: set[tuple[str, int]] = set()
        self._refs: dict[tuple[str, int], ActorRef[Any]] = {}

    def start_instance(self, effect: StartInstance) -> None:
        """Spawn the actor at its path; an actor that cannot be made is told as failed."""
        name, attempt = effect.type_name, effect.attempt
        kind = self.kinds[name]
        key = (name, attempt)
        hand_over = HandOver(
            lambda deliveries: self._proxies.hand_back(name, deliveries), effect.state
        )
        try:
            self._refs[key] = self._runtime.spawn_at(
                PREFIX + name,
                kind.actor,
                kind.args,
                gated=True,
                authority=self.leases.authority(name),
                hand_over=hand_over,
                on_started=lambda: self._started(name, attempt),
                on_stopped=lambda reason: self._ended(key, reason, hand_over.state),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the manager must hear of it
            event = InstanceFailed(name, attempt, f"{type(error).__name__}: {error}")
            self._runtime.loop.call_soon(self.feed, event)

    def stop_instance(self, effect: StopInstance) -> None:
        """Order the stop; the answer comes once `post_stop` is over."""
        key = (effect.type_name, effect.attempt)
        ref = self._refs.get(key)
        if ref is None or self._runtime.cell_at(ref.path, ref.uid) is None:
            event = InstanceStopped(*key, effect.reason)
            self._runtime.loop.call_soon(self.feed, event)
            return
        self._ordered.add(key)
        if effect.unguarded:
            self.leases.unguard(effect.type_name)
        reason = StopReason(_STOP_CAUSES[effect.cause], effect.reason)
        self._runtime.stop(ref, reason, at_once=effect.at_once)

    def route(self, effect: RouteSingleton) -> None:
        """Tell the proxy where messages go."""
        self._proxies.route(effect)

    def _started(self, name: str, attempt: int) -> None:
        self.failures.pop(name, None)
        self.feed(InstanceStarted(name, attempt))

    def _failed(self, event: ActorFailed) -> None:
        """Its own restarts are the actor's business; that there are some is everybody's."""
        if event.path.startswith(PREFIX) and event.path.count("/") == 2:
            name = event.path.removeprefix(PREFIX)
            count, _ = self.failures.get(name, (0, ""))
            self.failures[name] = (count + 1, f"{event.type_name}: {event.text}")

    def _ended(self, key: tuple[str, int], reason: StopReason, state: bytes | None) -> None:
        self._refs.pop(key, None)
        if key in self._ordered:
            self._ordered.discard(key)
            self.feed(InstanceStopped(*key, str(reason), state))
        else:
            self.feed(InstanceFailed(*key, str(reason)))


class Singletons:
    """`system.cluster.singleton`: actors of which the cluster runs one."""

    def __init__(
        self,
        host: SingletonHost,
        proxies: SingletonProxies,
        settings: Settings,
        leases: Leases,
        core: NodeCore,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._clock = clock
        self._leases = leases
        self._host = host
        self._proxies = proxies
        self._settings = settings

    def start(
        self,
        *,
        type_name: str,
        actor: type[Actor],
        args: tuple[object, ...] = (),
        role: str | None = None,
        hand_over_timeout_s: float | None = None,
        buffer_size: int | None = None,
        restart_on_termination: bool = True,
        lease: str | bool | Lease | None = None,
        acquire_retry_interval_s: float | None = None,
        on_lease_lost: Literal["stop", "drain"] = "stop",
    ) -> ActorRef[Any]:
        """Let this node host `actor(*args)` when it is elected; returns the ref of the singleton.

        The ref works on every node, from now on: messages are held while there is no host (at most
        `buffer_size`, then dead letters). At level *none* it is unique as long as every eligible
        member answers the hand-over or its end is proven: in a partition both halves host after
        `hand_over_timeout_s`. With `role` only members that have it host. An instance that ends by
        itself is started again after a backoff, or, without `restart_on_termination`, not here.

        lease: an instance starts only under a lease and acts only while it is held, so that of two
        that believe to be host one wins: True for the system's store (`Settings.lease`), the URL
        of another store, or a `Lease`, which is the manager's from then on; False for none, None
        for what `Settings.protection` says. Members with another store, name, ttl or role are not
        eligible, and say so. From `LeaseSettings.drain_s` before its end on, unless it is renewed,
        no new message is taken in. A lost lease is asked for again after
        `acquire_retry_interval_s`.

        on_lease_lost: "stop": nothing is handled any more, and what the instance has goes back to
        the proxies, for the next one. "drain": what it has it handles all the same, with
        `authority.held` False, *while another one may act already*; not after a loss that was
        noticed late, nor without contact.

        Started again with the same arguments it returns the same ref. Raises `SettingsError` for a
        name that is none, or that is started with another actor; `TypeError` when `args` do not
        fit the actor's constructor.
        """
        check_name(type_name)
        _check_actor(actor, args)
        given = self._settings.leases_singletons if lease is None else lease
        kind = _Kind(actor, tuple(args), role, given or None)
        known = self._host.kinds.get(type_name)
        if known is not None and known != kind:
            differs = " and ".join(
                each.name
                for each in fields(kind)
                if getattr(known, each.name) != getattr(kind, each.name)
            )
            raise SettingsError(
                f"type_name={type_name!r} is started already, with another {differs} "
                f"({known.actor.__qualname__}): give the other singleton another name"
            )
        settings = self._settings.singleton(role)
        chosen: dict[str, Any] = {
            "hand_over_timeout_s": hand_over_timeout_s,
            "buffer_size": buffer_size,
            "acquire_retry_interval_s": acquire_retry_interval_s,
        }
        try:
            settings = replace(
                settings,
                terms=terms_of(role),
                on_lease_lost=on_lease_lost,
                restart_on_termination=restart_on_termination,
                leased=kind.lease is not None,
                **{name: value for name, value in chosen.items() if value is not None},
            )
        except ValueError as error:
            raise SettingsError(f"singleton {type_name!r}: {error}") from error
        if kind.lease is not None:
            settings = self._under_lease(type_name, kind, settings, role)
        self._host.kinds[type_name] = kind
        proxy = self._proxies.get(type_name, buffer_size=settings.buffer_size)
        self._host.feed(StartRequested(type_name, settings))
        return proxy.ref

    def _under_lease(
        self, type_name: str, kind: _Kind, settings: SingletonSettings, who: str | None
    ) -> SingletonSettings:
        """With its lease, made at the first start, and what all members must agree about; `who` may
        host."""
        lease = self._host.leases.leases.get(type_name)
        if lease is None:
            lease = self._lease_of(type_name, kind.lease)
            self._host.leases.add(type_name, lease)
        store, named = lease.store.identity, lease.settings
        terms = terms_of(who, store=store, lease=named.name, ttl_s=named.ttl_s)
        return replace(settings, terms=terms, lease_ttl_s=named.ttl_s)

    def _lease_of(self, type_name: str, given: object) -> Lease:
        from lease import Lease  # most nodes need none

        if isinstance(given, Lease):
            self._leases.adopt(given)
            return given
        if given is not True and not isinstance(given, str):
            raise SettingsError(
                f"singleton {type_name!r}: lease={given!r} must be True, the URL of a store, or a "
                "Lease"
            )
        # No type has a slash in its name: this is no other lease of the cluster.
        name = f"{self._settings.cluster_name}/singleton/{type_name}"
        return self._leases.lease(name, store=None if given is True else given)

    def coordinator(
        self,
        type_name: str,
        *,
        role: str | None,
        lease: str | bool | Lease | None,
        shard_count: int,
        agreement: str = "",
    ) -> Callable[[], None]:
        """What lets this node host the coordinator of a sharded type: a singleton whose instance is
        a machine of `node.core`. For `node.sharding`; raises `SettingsError`, and has done nothing
        then."""
        given = self._settings.leases_singletons if lease is None else lease
        kind = _Kind(Actor, (), role, given or None)
        who = f"{role or 'all'} with {shard_count} shards"
        if agreement:
            who = f"{who}, {zlib.crc32(agreement.encode()):08x}"  # short: it is in every record
        settings = replace(
            self._settings.singleton(role), terms=terms_of(who), leased=kind.lease is not None
        )
        if kind.lease is not None:
            settings = self._under_lease(type_name, kind, settings, who)

        def start() -> None:
            self._host.kinds[type_name] = kind
            self._host.feed(StartRequested(type_name, settings))

        return start

    def follow(self, type_name: str, role: str | None) -> None:
        """Know where a singleton is, without hosting it nor sending to it."""
        self._host.feed(ProxyRequested(type_name, self._settings.singleton(role)))

    def start_proxy(self, *, type_name: str, role: str | None = None) -> ActorRef[Any]:
        """The ref of a singleton that this node does not host. Raises `SettingsError`."""
        check_name(type_name)
        settings = self._settings.singleton(role)
        proxy = self._proxies.get(type_name, buffer_size=settings.buffer_size)
        self._host.feed(ProxyRequested(type_name, settings))
        return proxy.ref

    async def move(self, *, type_name: str, to: str | None = None, timeout_s: float = 30.0) -> str:
        """Move the instance to the member at `host:port`, None: to the oldest that does not have
        it; returns where it hosts now. Can be called on each node that knows the type.

        It stops where it is, having handled what it has, and messages wait meanwhile. It does not
        come back by itself. Raises `LookupError`, saying who could, when there is no such member
        that may host it, and `TimeoutError`, saying in words what it waits for.
        """
        machine = self._core.singletons.get(type_name)
        if machine is None:
            raise LookupError(f"this node knows no singleton {type_name!r}: ask one that hosts it")
        able = {node.address: node for node in machine.movable()}
        host = machine.host
        if host is not None and to == host.address:
            return to
        if host is None or not able or (to is not None and to not in able):
            who = f"to {to}: " if to is not None and host is not None else ""
            why = f"it can move to {', '.join(able) or 'no other member'}"
            if host is None:
                why = f"nobody hosts it now: {machine.explain(self._clock())}"
            raise LookupError(f"{type_name} is not moved; {who}{why}")
        target = able[to] if to is not None else next(iter(able.values()))
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def shown(fact: SingletonStateChanged) -> None:
            if fact.type_name == type_name and fact.host == target and not moved.done():
                moved.set_result(None)

        unsubscribe = self._host.events.subscribe(SingletonStateChanged, shown)
        self._host.feed(MoveRequested(type_name, target))
        try:
            async with asyncio.timeout(timeout_s):
                await moved
        except TimeoutError:
            explain = machine.explain(self._clock())
            raise TimeoutError(
                f"{type_name} is not at {target.address} after {timeout_s:g} s: {explain}"
            ) from None
        finally:
            unsubscribe()
        return target.address

    def stop(self, *, type_name: str) -> None:
        """Do not host this type here again, until `start` is called; a running instance stops and
        another node hosts. Unknown names are ignored."""
        if self._host.kinds.pop(type_name, None) is not None:
            self._host.feed(StopRequested(type_name))


def check_name(type_name: str) -> None:
    """Raise `SettingsError` for what is no name of a type."""
    if not isinstance(type_name, str) or not _TYPE_NAME.fullmatch(type_name):
        raise SettingsError(f"type_name={type_name!r} must have 1 to 128 letters, digits and _ . -")


def _check_actor(actor: type[Actor], args: tuple[object, ...]) -> None:
    """Here, where the caller can mend it: an instance is built much later, maybe elsewhere."""
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise TypeError(f"actor={actor!r} is no Actor class: write actor=Counter, args=(…)")
    if not isinstance(args, tuple | list):
        raise TypeError(f"args={args!r} must be a tuple: write args=(…,)")
    try:
        inspect.signature(actor).bind(*args)
    except TypeError as error:
        raise TypeError(f"actor={actor.__qualname__}, args={tuple(args)!r}: {error}") from None


class Cluster:
    """`system.cluster`: membership to read and to wait for."""

    def __init__(
        self,
        core: NodeCore,
        singletons: Singletons,
        sharding: Sharding,
        host: SingletonHost,
        settings: Settings,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        link_records: Callable[[], list[LinkRecord]],
        dial_faults: Callable[[], dict[str, str]],
    ) -> None:
        self._link_records = link_records
        self._dial_faults = dial_faults
        self.singleton = singletons
        self.sharding = sharding
        self._host = host
        self._core = core
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._waiters: list[tuple[Callable[[MembershipView], bool], asyncio.Future[None]]] = []

    @property
    def self_id(self) -> NodeId:
        """This node's identity."""
        return self._core.gossip.self_id

    @property
    def view(self) -> MembershipView | None:
        """The membership as this node sees it; None before it is in a cluster."""
        return self._core.gossip.view

    async def up(self, members: int = 1, *, timeout_s: float = 30.0) -> MembershipView:
        """Wait until this node is up and sees at least so many members up.

        Raises `TimeoutError`, saying in words what is missing.
        """

        def enough(view: MembershipView) -> bool:
            ups = sum(member.status is Status.UP for member in view.members)
            me = view.by_id.get(view.self_id)
            return me is not None and me.status is Status.UP and ups >= members

        try:
            await self._wait(enough, timeout_s)
        except TimeoutError:
            explain = self._explain(self._clock())
            raise TimeoutError(f"not up within {timeout_s:g} s: {explain}") from None
        view = self.view
        assert view is not None
        return view

    async def down(self, address: str, *, timeout_s: float = 30.0) -> None:
        """Order the member at `host:port` down, and wait until it is.

        One that is reachable is told, and gets the time to stop in order. Ordering down this node
        itself returns at once: it ends. Raises `LookupError` when no such member is known, and
        `TimeoutError`, saying in words what it waits for, when it is not down in time.
        """
        view = self.view
        member = next((m for m in view.members if m.id.address == address), None) if view else None
        if member is None:
            known = ", ".join(m.id.address for m in view.members) if view else "none"
            raise LookupError(f"{address} is no member that this node knows (those are: {known})")
        node = member.id
        self._host.feed(DownRequested(node))
        if node == self.self_id:
            return
        try:
            await self._wait(lambda view: _is_down(view, node), timeout_s)
        except TimeoutError:
            explain = self._core.downing.explain(self._clock())
            raise TimeoutError(f"{address} is not down after {timeout_s:g} s: {explain}") from None

    async def _wait(self, wanted: Callable[[MembershipView], bool], timeout_s: float) -> None:
        if self.view is not None and wanted(self.view):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((wanted, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        finally:
            self._waiters = [item for item in self._waiters if item[1] is not waiter]

    def view_changed(self, view: MembershipView) -> None:
        """Wake whoever waits for this view. Called by `node.system`."""
        for enough, waiter in self._waiters:
            if not waiter.done() and enough(view):
                waiter.set_result(None)

    def _explain(self, now: float) -> str:
        """What membership waits for, and who will not talk to us until somebody mends it."""
        faults = [*self._dial_faults().values()][-_FAULTS_SHOWN_MAX:]
        return "; ".join([self._core.gossip.explain(now), *faults])

    def state(self) -> dict[str, Any]:
        """What `/cluster` shows: uids are text, for JSON has no 64-bit integers."""
        gossip, view, now = self._core.gossip, self.view, self._clock()
        base: dict[str, Any] = {
            "cluster": self._settings.cluster_name,
            "cluster_id": None,
            "self": {"address": self.self_id.address, "uid": f"{self.self_id.uid:016x}"},
            "leader": None,
            "oldest": None,
            "converged": False,
            "blocked_by": [],
            "explain": self._explain(now),
            "local_health": gossip.local_health,
            "links": [],
            "lanes": [
                {
                    "peer": record.peer.address,
                    "lane": record.lane.value,
                    "state": record.state,
                    "waiting_bytes": record.waiting_bytes,
                }
                for record in sorted(self._link_records(), key=_by_peer)
            ],
            "downing": self._downing_state(now),
            "members": [],
        }
        if view is None:
            return base
        oldest = view.oldest()
        return base | {
            "cluster_id": f"{view.cluster_id:016x}",
            "leader": view.leader.address if view.leader else None,
            "oldest": oldest.id.address if oldest else None,
            "converged": view.converged,
            "blocked_by": [node.address for node in gossip.blocked_by],
            "links": [
                {"observer": observer.address, "subject": subject.address, "reachable": False}
                for observer, subject in gossip.failing_links()
            ],
            "members": [
                {
                    "address": member.id.address,
                    "uid": f"{member.id.uid:016x}",
                    "name": member.name,
                    "status": member.status.name.lower(),
                    "reachable": member.id not in view.unreachable,
                    "suspect": member.id in view.suspects,
                    "unresponsive": member.id in view.unresponsive,
                    "roles": list(member.roles),
                    "up_number": member.up_number,
                    "types": list(member.types),
                }
                for member in view.members
            ],
        }

    def _downing_state(self, now: float) -> dict[str, Any]:
        state = self._core.downing.state(now)
        if isinstance(self._core.downing.strategy, LeaseMajority) and self._settings.lease is None:
            state["warnings"] = [*state["warnings"], NO_LEASE]
        return state

    def singletons_state(self) -> list[dict[str, Any]]:
        """What `/singletons` shows; `instance_id` and `started_at` only where it runs.

        An instance that runs without authority is `suspended`: it handles nothing until contact is
        back. `unproven` are members that may be running an instance too: they did not answer.
        """
        now, rows = self._clock(), []
        for name in sorted(self._core.singletons):
            machine = self._core.singletons[name]
            attempt = machine.running_attempt
            started_at = None
            state, explain = self.explain_singleton(name)
            if attempt:
                started_at = wall_time(self._wall_clock() - (now - machine.started_at))
            rows.append(
                {
                    "name": name,
                    "state": state,
                    "host": machine.host.address if machine.host else None,
                    "instance_id": instance_id(self.self_id, attempt) if attempt else None,
                    "started_at": started_at,
                    "unproven": [node.address for node in machine.unproven],
                    "explain": explain,
                }
            )
        return rows

    def explain_singleton(self, name: str) -> tuple[str, str]:
        """The state of a singleton as this node knows it, and why, in words."""
        machine, now = self._core.singletons.get(name), self._clock()
        if machine is None:
            return State.STANDBY.value, "it was started here a moment ago"
        state, explain = machine.state.value, machine.explain(now)
        why_not = ""
        if machine.state in ACTING:
            why_not = self.why_not_acting
            lease = self._host.leases.leases.get(name)
            if not why_not and lease is not None and not lease.check_alive():
                why_not = f"its lease: {lease.explain()}"
        if why_not:
            runs = "runs here" if machine.state is State.RUNNING else "starts here"
            state, explain = SUSPENDED, f"{runs}, and does not act: {why_not}"
        return state, explain + self._failures_of(name)

    @property
    def why_not_acting(self) -> str:
        """In words, why nothing that is unique acts on this node now; empty: it may."""
        downing, now = self._core.downing, self._clock()
        if now < downing.contact_until:
            return ""
        return str(downing.state(now)["contact"]["explain"])

    def _failures_of(self, name: str) -> str:
        if name not in self._host.failures:
            return ""
        count, text = self._host.failures[name]
        return f"; {times_failed(count, text)}"


def instance_id(node: NodeId, attempt: int) -> str:
    """Names one instance, unique over all processes: the node's uid and the attempt there."""
    return f"{node.uid:016x}.{attempt}"


def _is_down(view: MembershipView, node: NodeId) -> bool:
    member = view.by_id.get(node)
    return member is None or member.status >= Status.DOWN


def _by_peer(record: LinkRecord) -> tuple[NodeId, str]:
    return record.peer, record.lane.value
