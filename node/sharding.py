"""Sharding as users see it: types to start, entities to talk to, the map to show.

Decides what a valid start is, and what `/shards` says. Does not decide where a shard lives
(`sharding.coordinator`) nor what becomes of a message (`node.regions`). Made by `node.cluster`,
reached as `system.cluster.sharding`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from node.actor import Actor
from node.core import COORDINATOR_PREFIX, NodeCore
from node.entity_ref import EntityRef
from node.errors import MessageError, SettingsError
from node.messages import Ask, entity_field
from node.regions import Kind, Region, Regions, escaped
from node.supervision import Escalate, Restart, Resume, Stop, Supervision
from sharding.coordinator import Phase
from sharding.events import EvacuateRequested, RebalanceRequested, RegionRequested
from sharding.settings import ShardingSettings

if TYPE_CHECKING:
    from lease import Lease
    from node.cluster import Singletons
    from node.remembered import EntityStore
    from node.runtime import Runtime
    from node.settings import Settings

M = TypeVar("M")
T = TypeVar("T")


class Entities(Generic[M]):
    """All entities of one type: `entities["c-42"]` is the ref of one, wherever it is."""

    def __init__(self, runtime: Runtime, region: Region) -> None:
        self._runtime = runtime
        self._region = region

    @property
    def type_name(self) -> str:
        """What it was started as."""
        return self._region.type_name

    def __getitem__(self, entity_id: str) -> EntityRef[M]:
        """The ref of an entity; nothing is built or asked. Raises ValueError for an id that can be
        none (1 to 256 characters)."""
        return EntityRef(self._runtime, self._region, entity_id)

    def tell(self, message: M) -> None:
        """Tell the entity that the message itself names: its class was made by
        `@message(…, entity_id="cart_id")`. Raises `MessageError` for another one."""
        self[_entity_id(message)].tell(message)

    async def ask(self, message: Ask[T], timeout_s: float = 5.0) -> T:
        """As `tell`, and wait for the answer; see `ActorRef.ask`."""
        return await self[_entity_id(message)].ask(message, timeout_s)

    def __repr__(self) -> str:
        return f"<Entities {self.type_name}>"


def _entity_id(message: object) -> str:
    name = entity_field(type(message))
    if name is None:
        raise MessageError(
            f"{type(message).__name__} does not say whom it is for: write @message('…', "
            "entity_id='the field'), or entities[an_id].tell(…)"
        )
    entity_id: str = getattr(message, name)
    return entity_id


class Sharding:
    """`system.cluster.sharding`: actors of which the cluster runs one per id."""

    def __init__(
        self,
        runtime: Runtime,
        regions: Regions,
        singletons: Singletons,
        settings: Settings,
        core: NodeCore,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._regions = regions
        self._singletons = singletons
        self._settings = settings
        self._core = core
        self._clock = clock
        runtime.entity_ref = self._ref_at
        self._started: dict[str, dict[str, object]] = {}
        self._stores: dict[str, EntityStore] = {}

    def start(
        self,
        *,
        type_name: str,
        actor: type[Actor],
        args: tuple[object, ...] = (),
        shard_count: int = 256,
        role: str | None = None,
        lease: str | bool | Lease | None = None,
        allocation: str = "least-shard",
        idle_s: float | None = 120.0,
        entities_max: int | None = None,
        buffer_size: int = 10_000,
        hand_off_timeout_s: float = 10.0,
        supervision: Supervision | None = None,
        remember: str | EntityStore | None = None,
    ) -> Entities[Any]:
        """Let this node host entities `actor(entity_id, *args)`; returns the way to all of them.

        An entity is built at its first message, on the node where its shard lives, and passivated
        (stopped, state and all) after `idle_s` without one; with `entities_max` also the least
        recently used ones beyond so many on this node. `self.context.entity_id` and `.shard_id`
        tell it who it is. All members must start the type with the same `shard_count` and `role`;
        with `role` only members that have it host.

        An entity acts while its node has contact, so at levels *downing* and above no step of it is
        begun in two places; at level *none* both sides of a partition run it. Which node hosts
        which shard is decided by a coordinator, a singleton named `sharding.<type_name>`: `lease`
        is its lease (see `Singletons.start`). Without a coordinator the shards that are known go
        on, and messages for others are held (`buffer_size`, then dead letters).

        A shard moves without loss: messages are held, its entities handle what they have and stop,
        and what was held follows in order. By force after `hand_off_timeout_s`: what an entity had
        not handled then is not lost either, but comes behind what other nodes have held; the same
        when a leaver finds no coordinator within `Settings.stop_timeout_s`.

        remember: a store, or its URL (`sqlite:///file`, `etcd://host:port/prefix`), that keeps
        which entities live: they are built again wherever their shard goes, without a message, and
        only `self.context.passivate()` ends them and takes them out of the store. So `idle_s` is
        ignored then, and `entities_max` refused.

        allocation: "least-shard", or "rendezvous" (by hash: a node that joins takes only its share,
        and one that comes back has the shards it had). Raises `SettingsError` for values that
        cannot work, `TypeError` when the actor's constructor does not take these arguments.
        """
        _check_actor(actor, args, supervision)
        if remember is not None and entities_max is not None:
            raise SettingsError(
                f"sharded type {type_name!r}: entities_max={entities_max} and remember= exclude "
                "each other, because remembered entities always run: give one of the two"
            )
        store = self._store_of(type_name, remember)
        settings = self._checked(
            type_name,
            shard_count=shard_count,
            role=role,
            hosts=role is None or role in self._settings.roles,
            agreement="" if store is None else f"entities remembered in {store.identity}",
            eager=remember is not None,
            allocation=allocation,
            idle_s=idle_s if remember is None else None,
            entities_max=entities_max,
            buffer_size=buffer_size,
            hand_off_timeout_s=hand_off_timeout_s,
        )
        kind = Kind(actor, tuple(args), supervision, store=store)
        return self._begin(type_name, settings, kind, lease)

    def start_daemons(
        self,
        *,
        type_name: str,
        actor: type[Actor],
        count: int,
        args: tuple[object, ...] = (),
        role: str | None = None,
        lease: str | bool | Lease | None = None,
        supervision: Supervision | None = None,
    ) -> Entities[Any]:
        """`count` entities with the ids "0", "1", … that always run somewhere, spread evenly.

        Daemon i is shard i. One that ends is built again after a backoff. For workers that pull
        their work, each a fixed part of it. Raises as `start`.
        """
        _check_actor(actor, args, supervision)
        settings = self._checked(
            type_name,
            shard_count=count,
            role=role,
            hosts=role is None or role in self._settings.roles,
            eager=True,
            daemons=True,
            idle_s=None,
        )
        kind = Kind(actor, tuple(args), supervision)
        return self._begin(type_name, settings, kind, lease)

    def start_proxy(
        self,
        *,
        type_name: str,
        shard_count: int = 256,
        role: str | None = None,
        daemons: bool = False,
    ) -> Entities[Any]:
        """The way to the entities of a type that this node does not host. Raises `SettingsError`.

        daemons: of those that `start_daemons` starts; `shard_count` is their number. On a node that
        hosts the type as well it is the same as `start` returned.
        """
        if type_name in self._started:
            return self.get(type_name)
        settings = self._checked(
            type_name, shard_count=shard_count, role=role, hosts=False, daemons=daemons
        )
        self._check_count(type_name, settings)
        region = self._regions.add(type_name, settings, None)
        # In this order: what is known of the coordinator is for the region.
        self._regions.feed(RegionRequested(type_name, settings))
        self._singletons.follow(COORDINATOR_PREFIX + type_name, role)
        return Entities(self._runtime, region)

    def get(self, type_name: str) -> Entities[Any]:
        """The entities of a type that was started here. Raises `LookupError`."""
        region = self._regions.by_type.get(type_name)
        if region is None:
            raise LookupError(
                f"this node knows no sharded type {type_name!r}: start it, or a proxy"
            )
        return Entities(self._runtime, region)

    def stop(self, *, type_name: str) -> None:
        """Host no entities of this type here any more: its shards move to other nodes. What is sent
        from here still arrives. Unknown names are ignored."""
        if self._started.pop(type_name, None) is not None:
            self._singletons.stop(type_name=COORDINATOR_PREFIX + type_name)
            self._regions.feed(EvacuateRequested(type_name))

    def rebalance(self, *, type_name: str) -> str:
        """Ask the coordinator to spread the shards evenly now, one round of it; it does so by
        itself each second while nobody joins, leaves or is unreachable. Returns in words where the
        shards are now. Raises `LookupError`."""
        if type_name not in self._core.regions:
            raise LookupError(f"this node knows no sharded type {type_name!r}")
        refused = self._core.regions[type_name].refused_why
        if refused:
            raise LookupError(f"{type_name!r} is not admitted here: {refused}")
        self._regions.feed(RebalanceRequested(type_name))
        state = self._state_of(type_name)
        counts = ", ".join(f"{count} at {address}" for address, count in state["counts"].items())
        return f"{counts or 'no shard is known here'}; {state['explain']}"

    # inside

    def _ref_at(self, path: str) -> EntityRef[Any] | None:
        """The ref of the entity at a path: good on each node that knows the type, whoever sent
        it."""
        found = self._regions.entity_of(path)
        region = self._regions.by_type.get(path.split("/", 3)[2]) if found is not None else None
        if found is None or region is None or path != region.prefix + escaped(found[0]):
            return None
        return EntityRef(self._runtime, region, found[0])

    def _checked(self, type_name: str, **values: Any) -> ShardingSettings:
        from node.cluster import check_name  # it imports us

        check_name(type_name)
        node = self._settings
        try:
            return ShardingSettings(
                downing=node.strategy() is not None,
                hand_over_timeout_s=node.hand_over_timeout_s,
                leave_timeout_s=node.stop_timeout_s,
                **values,
            )
        except ValueError as error:
            name = _count_name(values.get("daemons", False), values.get("eager", False))
            words = str(error).replace("shard_count", name)
            raise SettingsError(f"sharded type {type_name!r}: {words}") from error

    def _store_of(self, type_name: str, remember: object) -> EntityStore | None:
        if remember is None:
            return None
        from node.remembered import EntityStore, entity_store_of  # most nodes need none

        if isinstance(remember, EntityStore):
            return remember
        if not isinstance(remember, str):
            raise SettingsError(
                f"sharded type {type_name!r}: remember={remember!r} must be the URL of a store, "
                "for example sqlite:///var/lib/shop/entities.db, or an EntityStore"
            )
        store = self._stores.get(remember)
        if store is None:
            store = self._stores[remember] = entity_store_of(remember, key="remember")
        return store

    async def close(self) -> None:
        """Close the stores that were made here from URLs. Called by `node.system`."""
        for store in self._stores.values():
            await store.close()

    def _begin(
        self,
        type_name: str,
        settings: ShardingSettings,
        kind: Kind,
        lease: str | bool | Lease | None,
    ) -> Entities[Any]:
        what: dict[str, object] = {
            "actor": kind.actor,
            "args": kind.args,
            _count_name(settings.daemons, settings.eager): settings.shard_count,
            "role": settings.role,
            "lease": lease,
            "remember": settings.agreement,
        }
        known = self._started.get(type_name, what)
        differs = " and ".join(key for key in what if known.get(key) != what[key])
        if differs:
            raise SettingsError(
                f"type_name={type_name!r} is started already, with another {differs}: give the "
                "other type another name, or stop this one first"
            )
        self._check_count(type_name, settings)
        self._check_store(type_name, kind)
        start_coordinator = self._singletons.coordinator(
            COORDINATOR_PREFIX + type_name,
            role=settings.role,
            lease=lease,
            shard_count=settings.shard_count,
            agreement=settings.agreement,
        )
        # Nothing is refused from here on.
        self._started[type_name] = what
        region = self._regions.add(type_name, settings, kind)
        self._regions.feed(RegionRequested(type_name, settings))
        start_coordinator()
        return Entities(self._runtime, region)

    def _check_count(self, type_name: str, settings: ShardingSettings) -> None:
        known = self._regions.by_type.get(type_name)
        name = _count_name(settings.daemons, settings.eager)
        if known is not None and known.count != settings.shard_count:
            raise SettingsError(
                f"sharded type {type_name!r}: {name}={settings.shard_count}, and "
                f"it was started here with {known.count} before, maybe as a proxy: give both the "
                "same"
            )

    def _check_store(self, type_name: str, kind: Kind) -> None:
        """While shards are still stopping their entities are written where they were read."""
        region = self._regions.by_type.get(type_name)
        if region is None or region.kind is None or region.kind.store is kind.store:
            return
        if self._core.regions[type_name].owned():
            raise SettingsError(
                f"sharded type {type_name!r}: it was stopped here and still stops, with another "
                "remember: start it again once `/shards` shows nothing here"
            )

    def troubles(self) -> tuple[str, ...]:
        """What holds up new entities or shards on this node, in words."""
        return tuple(
            words for region in self._regions.by_type.values() for words in region.troubles()
        )

    # what people see

    def state(self) -> list[dict[str, Any]]:
        """What `/shards` shows: per type the shards of each node as far as this one knows, what is
        here, what moves, and in words what it waits for."""
        return [self._state_of(name) for name in sorted(self._core.regions)]

    def _state_of(self, name: str) -> dict[str, Any]:
        machine, region = self._core.regions[name], self._regions.by_type[name]
        coordinator = self._core.coordinators.get(name)
        homes: dict[str, list[int]] = {}
        for shard, node in machine.homes().items():
            homes.setdefault(node.address, []).append(shard)
        leads = coordinator is not None and coordinator.phase is not Phase.IDLE
        moves = []
        if leads and coordinator is not None:
            moves = [
                {"shard": shard, "state": state, "node": node.address}
                for shard, (state, node) in sorted(coordinator.shards().items())
                if state != "running"
            ]
        explain = [machine.explain(), *region.troubles()]
        if leads and coordinator is not None:
            explain.append(f"coordinator: {coordinator.explain(self._clock())}")
        return {
            "type": name,
            "shard_count": region.count,
            "coordinator": machine.coordinator.address if machine.coordinator else None,
            "term": str(machine.accepted) if machine.accepted.number else None,
            "homes": {address: homes[address] for address in sorted(homes)},
            "counts": {address: len(homes[address]) for address in sorted(homes)},
            "here": list(machine.owned()),
            "stopping_here": [s for s, stopping in machine.owned().items() if stopping],
            "entities_here": region.entity_count,
            "held": region.held_count,
            "moves": moves,
            "explain": "; ".join(explain),
        }


def _count_name(daemons: bool, eager: bool) -> str:
    """What `start_daemons` calls the number of shards, and what all others call it."""
    return "count" if daemons and eager else "shard_count"


def _check_actor(
    actor: type[Actor], args: tuple[object, ...], supervision: Supervision | None
) -> None:
    """Here, where the caller can mend it: an entity is built much later, maybe elsewhere."""
    if supervision is not None and not isinstance(supervision, Restart | Stop | Resume | Escalate):
        raise TypeError(
            f"supervision={supervision!r} is none for an entity: give Restart(), Stop(), Resume() "
            "or Escalate()"
        )
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise TypeError(f"actor={actor!r} is no Actor class: write actor=Cart")
    if not isinstance(args, tuple | list):
        raise TypeError(f"args={args!r} must be a tuple: write args=(…,)")
    try:
        inspect.signature(actor).bind("an-id", *args)
    except TypeError as error:
        raise TypeError(
            f"actor={actor.__qualname__} is built as {actor.__qualname__}(entity_id, *args) with "
            f"args={tuple(args)!r}: {error}"
        ) from None
