"""Messages to sharded entities, and the entities of this node: the shell of `sharding.region`.

Decides, per message: into the mailbox of the entity here (built at its first message), on to the
node where its shard lives, or held until there is such a node; and when an entity is passivated.
Does not decide which node that is: `sharding.region` does, and its orders arrive here. Plain code,
no machine: every message to `/sharding/<type>/<id>` passes `Regions.deliver` (the runtime's path
handler), except what `node.entity_ref` puts where it belongs by the same tables.

An entity is an actor at `/sharding/<type>/<escaped id>`, under its node's contact authority: at
both levels of downing it begins no step while another node may have it. What reaches it while it
stops is held and goes to the next one: here after a passivation, elsewhere after a move. A message
is never dropped because a route is missing; what does not fit into the buffer is a dead letter.

Budget: a message to an entity here costs two look-ups more than one to a plain actor, one to an
entity elsewhere the same; an idle entity costs an object of six slots beside its cell.
`bench.sharding` holds it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from gossip.membership import NodeId
from node.actor import Actor
from node.ask import LocalAsk, RemoteAsk
from node.authority import Authority
from node.cell import Cell, HandOver
from node.errors import DeadActorError
from node.events import Why
from node.mailbox import Delivery
from node.messages import Ask, message
from node.remembering import Remembering
from node.runtime import ENTITIES
from node.schema import answer_schema
from node.settings import is_unicode
from node.supervision import PASSIVATED, StopCause, StopReason, Supervision
from sharding.effects import CloseShards, DrainRoute, FailAsks, OpenShards, RouteShards
from sharding.events import RouteDrained, ShardsClosed, ShardsWanted
from sharding.settings import ShardingSettings, shard_of

if TYPE_CHECKING:
    from node.remembered import EntityStore
    from node.runtime import Runtime

PREFIX = ENTITIES
ID_MAX = 256
HOPS_MAX = 4
RETRY_S = 0.5
DRAIN_TIMEOUT_S = 1.0
SWEEPS = 8  # so often within `idle_s` it is looked who is idle
SWEEP_MIN_S = 0.01
SHARD_MOVES = "its shard moves"
RESTART_S, RESTART_MAX_S = 1.0, 30.0
LOOKS, ROOM_PAUSE_S = 100, 0.05  # at so many it is looked at a time for whom to passivate
RESTORED_TOGETHER, RESTORE_PAUSE_S = 100, 0.05  # of the remembered entities of a shard

_log = logging.getLogger(__name__)


@message("tenure.sharding.drain-mark")
class DrainMark(Ask[bool]):
    """Follows the last message to a home; answered by its region."""


def escaped(entity_id: str) -> str:
    """An entity id as one part of a path; no two ids become one."""
    if "%" in entity_id or "/" in entity_id:
        return entity_id.replace("%", "%25").replace("/", "%2F")
    return entity_id


def unescaped(part: str) -> str:
    """The id that `escaped` made this part of."""
    return part.replace("%2F", "/").replace("%25", "%") if "%" in part else part


class Entity:
    """One entity here: its cell, and when it was last used.

    `closed`, `put` and `put_all` are as a cell's: for `node.remote`, which puts what comes over a
    connection straight in while it is not closed.
    """

    __slots__ = ("cell", "failures", "held", "id", "shard", "used")

    def __init__(self, entity_id: str, shard: HereShard) -> None:
        self.id = entity_id
        self.shard = shard
        self.cell: Cell | None = None  # None: it waits to be built anew
        self.used = 0
        self.failures = 0
        self.held: deque[tuple[NodeId | None, Delivery]] | None = None

    def ended(self, reason: StopReason) -> None:
        """Its actor has terminated. Called by the cell."""
        self.shard.region.entity_ended(self, reason)

    @property
    def closed(self) -> bool:
        """What is for it now is to go to the region, which holds it."""
        cell = self.cell
        return cell is None or cell.closed

    @property
    def is_busy(self) -> bool:
        """It works, or has something to do, and was not told to stop."""
        cell = self.cell
        return cell is not None and not cell.closed and not cell.is_idle

    def put(self, item: object) -> None:
        """Take a message; it must not be closed."""
        cell, region = self.cell, self.shard.region
        assert cell is not None
        self.used = region.tick
        if region.lru is not None:
            region.lru.move_to_end(self)
        cell.put(item)

    def put_all(self, messages: list[object]) -> None:
        """`put` several bare messages that came from another node, in their order."""
        for each in messages:
            self.put(each)


class HereShard:
    """A shard that lives here."""

    __slots__ = ("closing", "entities", "force", "number", "region", "remembered", "restore")

    def __init__(self, region: Region, number: int) -> None:
        self.region = region
        self.number = number
        self.entities: dict[str, Entity] = {}
        self.closing = False
        self.force: asyncio.TimerHandle | None = None
        self.remembered: set[str] = set()
        self.restore: asyncio.TimerHandle | None = None  # more of them are to be built


class Kind:
    """How entities of a type are made: `actor(entity_id, *args)`."""

    __slots__ = ("actor", "args", "store", "supervision")

    def __init__(
        self,
        actor: type[Actor],
        args: tuple[object, ...],
        supervision: Supervision | None = None,
        *,
        store: EntityStore | None = None,
    ) -> None:
        self.store = store  # remembers who lives; None: nobody does
        self.actor = actor
        self.args = args
        self.supervision = supervision


class Regions:
    """All regions of a node, one per type; takes over the paths below `/sharding/`."""

    def __init__(self, runtime: Runtime) -> None:
        self.feed: Callable[[object], None] = lambda event: None  # set once there is a daemon
        self._runtime = runtime
        self.by_type: dict[str, Region] = {}
        runtime.path_handlers[PREFIX] = self.deliver
        runtime.return_handlers[PREFIX] = self.take_back
        runtime.entity_of = self.entity_of
        runtime.entity_at = self.entity_at
        runtime.own_messages.add(DrainMark)

    def add(self, type_name: str, settings: ShardingSettings, kind: Kind | None) -> Region:
        """The region of a type, made at the first call; a later `kind` is adopted."""
        region = self.by_type.get(type_name)
        if region is None:
            region = self.by_type[type_name] = Region(self, self._runtime, type_name, settings)
        region.adopt(settings, kind)
        return region

    def deliver(self, node: NodeId | None, delivery: Delivery) -> None:
        """A message for `/sharding/<type>/<id>`; `node` is where it came from, None for here."""
        type_name, _, rest = delivery.path[len(PREFIX) :].partition("/")
        region = self.by_type.get(type_name)
        if region is None:
            self._runtime.deliver_here(delivery)
        elif not rest:
            self._at_the_region(delivery)
        elif "/" in rest:
            self._runtime.deliver_here(delivery)  # below an entity
        else:
            region.deliver(unescaped(rest), node, delivery)

    def _at_the_region(self, delivery: Delivery) -> None:
        if type(delivery.message) is DrainMark and delivery.asker is not None:
            delivery.asker.answer(True)
        else:
            self._runtime.dead_letter(delivery, delivery.path, Why.NO_ACTOR)

    def take_back(self, node: NodeId | None, delivery: Delivery) -> None:
        """A message that could not be sent to `node`."""
        type_name, _, rest = delivery.path[len(PREFIX) :].partition("/")
        region = self.by_type.get(type_name)
        asker = delivery.asker
        if type(delivery.message) is DrainMark:
            if isinstance(asker, LocalAsk):
                asker.complete(True)  # nothing is on its way there any more
        elif region is None or not rest or "/" in rest:
            self._runtime.dead_letter(delivery, delivery.path[1:], Why.NOT_SENT)
        else:
            region.take_back(unescaped(rest), node, delivery)

    def entity_of(self, path: str) -> tuple[str, int] | None:
        """Id and shard of the entity that an actor's path is of, or is below; None: it is none."""
        if not path.startswith(PREFIX):
            return None
        type_name, _, rest = path[len(PREFIX) :].partition("/")
        region = self.by_type.get(type_name)
        if region is None or not rest:
            return None
        entity_id = unescaped(rest.partition("/")[0])
        try:
            return entity_id, region.shard_of(entity_id)
        except ValueError:
            return None

    def entity_at(self, path: str) -> Entity | None:
        """The entity at this very path, if it is here and not closed."""
        type_name, _, rest = path[len(PREFIX) :].partition("/")
        region = self.by_type.get(type_name)
        if region is None or not path.startswith(PREFIX) or not rest or "/" in rest:
            return None
        return region.entity_at(unescaped(rest))

    # orders of the machines

    def open_shards(self, effect: OpenShards) -> None:
        """Perform `OpenShards`."""
        self.by_type[effect.type_name].open_shards(effect.shards)

    def close_shards(self, effect: CloseShards) -> None:
        """Perform `CloseShards`."""
        self.by_type[effect.type_name].close_shards(effect.shards, effect.force_after_s)

    def route(self, effect: RouteShards) -> None:
        """Perform `RouteShards`."""
        self.by_type[effect.type_name].route(effect.shards, effect.home)

    def drain(self, effect: DrainRoute) -> None:
        """Perform `DrainRoute`."""
        self.by_type[effect.type_name].drain(effect.number, effect.home)

    def fail_asks(self, effect: FailAsks) -> None:
        """Perform `FailAsks`."""
        self.by_type[effect.type_name].fail_asks(effect.why)

    def fail_held(self, why: str, *, besides: Collection[str]) -> None:
        """The node ends, and except for these types no host is expected any more: as
        `SingletonProxies.fail_held`."""
        for type_name, region in self.by_type.items():
            if type_name not in besides:
                region.fail_asks(why)

    @property
    def forwarded_count(self) -> int:
        """Messages from elsewhere that went on to another node, so far."""
        return sum(region.forwarded_count for region in self.by_type.values())

    @property
    def held_count(self) -> int:
        """Messages that wait here for a home, or for an entity."""
        return sum(region.held_count for region in self.by_type.values())

    @property
    def held_types(self) -> set[str]:
        """The types for which messages wait here."""
        return {name for name, region in self.by_type.items() if region.held_count}

    @property
    def has_any(self) -> bool:
        """True once a type was started here."""
        return bool(self.by_type)

    def close(self) -> None:
        """The node ends: whatever is still held becomes dead letters."""
        for region in self.by_type.values():
            region.close()


class Region:
    """The entities of one type here, and the way to all others.

    For `node.entity_ref`, which reads them at each message: `here` has for each shard its entities
    when it lives here, `homes` the node where it lives when messages may go there now.
    """

    def __init__(
        self, regions: Regions, runtime: Runtime, type_name: str, settings: ShardingSettings
    ) -> None:
        self.type_name = type_name
        self.kind: Kind | None = None
        self.held_count = 0
        self.forwarded_count = 0
        self.entity_count = 0
        self.tick = 0
        self.lru: OrderedDict[Entity, None] | None = None
        self._regions = regions
        self._runtime = runtime
        self.settings = settings
        self.count = settings.shard_count
        self.prefix = f"{PREFIX}{type_name}/"
        self.here: list[HereShard | None] = [None] * self.count
        self.homes: list[NodeId | None] = [None] * self.count
        self._known: list[NodeId | None] = [None] * self.count  # also while messages are held
        self._closing: dict[int, HereShard] = {}
        self._held: dict[int, deque[tuple[NodeId | None, Delivery]]] = {}
        self._asked: set[int] = set()  # the machine was told that they are wanted
        self._to_tell: tuple[list[int], list[int]] = ([], [])  # wanted, closed
        self._teller: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._room: asyncio.TimerHandle | None = None  # more of them are to be passivated
        self._restarts: set[asyncio.TimerHandle] = set()
        self._restarted_at: dict[Entity, float] = {}
        self._ended_why: dict[Entity, str] = {}  # of those that wait to be built anew
        self._given_back: dict[Entity, tuple[Delivery, bool]] = {}  # the first, and not for once
        self._remembering: Remembering | None = None
        self._fails_why = ""
        self._is_warned = False
        self._is_closed = False
        # Gated, if anything is: an entity acts under the contact of its node.
        self._authority = Authority(runtime.gate)
        self._hand_over = HandOver(self.hand_back, is_shared=True)

    def adopt(self, settings: ShardingSettings, kind: Kind | None) -> None:
        """What may be other after a second start."""
        self.settings = settings
        if kind is not None:
            self.kind = kind
            self._adopt_store(kind.store)
        if settings.entities_max is not None and self.lru is None:
            here = (shard for shard in self.here if shard is not None)
            self.lru = OrderedDict.fromkeys(e for shard in here for e in shard.entities.values())
        self._make_room()
        if settings.idle_s is not None and self._sweeper is None:
            self._sweep_later()

    def _adopt_store(self, store: EntityStore | None) -> None:
        remembering = self._remembering
        if store is not (None if remembering is None else remembering.store):
            if remembering is not None:
                remembering.close()
            self._remembering = None
            if store is not None:
                self._remembering = Remembering(self._runtime, store, self.type_name)

    def shard_of(self, entity_id: str) -> int:
        """To which shard an id belongs. Raises ValueError for an id that can be none."""
        if not isinstance(entity_id, str) or not 0 < len(entity_id) <= ID_MAX:
            raise ValueError(
                f"{str(entity_id)[:80]!r} is no entity id: give a text of 1 to {ID_MAX} characters"
            )
        if not entity_id.isascii() and not is_unicode(entity_id):
            raise ValueError(f"{entity_id!r} is no entity id: it is no text that can travel")
        if self.settings.daemons:
            is_number = entity_id.isascii() and entity_id.isdecimal()
            if not is_number or str(int(entity_id)) != entity_id or int(entity_id) >= self.count:
                raise ValueError(
                    f"{entity_id!r} is none of the {self.count} daemons of {self.type_name}"
                )
            return int(entity_id)
        return shard_of(entity_id, self.count)

    def troubles(self) -> tuple[str, ...]:
        """In words, what holds up new entities here, or shards."""
        return () if self._remembering is None else self._remembering.troubles

    # messages

    def deliver(self, entity_id: str, node: NodeId | None, delivery: Delivery) -> None:
        """Take one message; `node` is where it came from, None for here."""
        try:
            number = self.shard_of(entity_id)
        except ValueError:
            self._runtime.dead_letter(delivery, delivery.path[1:], Why.NO_ACTOR)
            return
        shard = self.here[number]
        if shard is not None:
            self._to_entity(shard, entity_id, node, delivery)
            return
        home = self.homes[number]
        if home is None:
            self._hold(number, node, delivery)
        elif delivery.hops >= HOPS_MAX:
            # Maps differ, and news are on their way: not to go round in circles until they come.
            self._hold(number, node, delivery, asks=False)
            self._retry_later()
        else:
            if node is not None:
                self.forwarded_count += 1
            self._runtime.forward(delivery, home)

    def entity_at(self, entity_id: str) -> Entity | None:
        """The entity, if it is here and not closed."""
        try:
            shard = self.here[self.shard_of(entity_id)]
        except ValueError:
            return None
        entity = None if shard is None else shard.entities.get(entity_id)
        return None if entity is None or entity.closed else entity

    def take_back(self, entity_id: str, node: NodeId | None, delivery: Delivery) -> None:
        """Hold a message that could not be sent to `node`, or try the home of now."""
        origin = node if delivery.hops else None
        number = self.shard_of(entity_id)
        if self.homes[number] == node or self._held.get(number):
            self._hold(number, origin, delivery, asks=False)  # its way is missing, not its home
            self._retry_later()
        else:
            self.deliver(entity_id, origin, delivery)

    def hand_back(self, deliveries: list[Delivery]) -> None:
        """What an entity here did not handle before it had to stop."""
        entity_id = unescaped(deliveries[0].path[len(self.prefix) :])
        number = self.shard_of(entity_id)
        back = deque[tuple[NodeId | None, Delivery]]()
        for delivery in deliveries:
            asker = delivery.asker
            if self._has_room(delivery):
                back.append((asker.node if isinstance(asker, RemoteAsk) else None, delivery))
        shard = self.here[number]
        entity = None if shard is None else shard.entities.get(entity_id)
        if entity is None:
            self._hold_first(number, back)
        else:
            back.extend(entity.held or ())
            entity.held = back
            first, before = deliveries[0], self._given_back.get(entity)
            self._given_back[entity] = (first, before is not None and before[0] is first)

    def _to_entity(
        self, shard: HereShard, entity_id: str, node: NodeId | None, delivery: Delivery
    ) -> None:
        entity = shard.entities.get(entity_id)
        if entity is None:
            if self._is_new(shard, entity_id):
                if self._has_room(delivery):  # else nobody is to be remembered for it
                    self._make(shard, entity_id).held = deque([(node, delivery)])
                return
            entity = self._make(shard, entity_id)
        if entity.closed:
            self._hold_for(entity, node, delivery)
        else:
            entity.put(delivery)

    def _is_new(self, shard: HereShard, entity_id: str) -> bool:
        """It is built only when the store knows of it, which it does not."""
        return self._remembering is not None and entity_id not in shard.remembered

    def _hold_for(self, entity: Entity, node: NodeId | None, delivery: Delivery) -> None:
        """It stops, or waits for its restart: the next one handles this."""
        if self._has_room(delivery):
            if entity.held is None:
                entity.held = deque()
            entity.held.append((node, delivery))

    def _hold(
        self, number: int, node: NodeId | None, delivery: Delivery, *, asks: bool = True
    ) -> None:
        if self._has_failed(number, node, delivery) or not self._has_room(delivery):
            return
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = deque()
            self.homes[number] = None  # what comes later waits behind it
            if asks:
                self._ask_for(number)
        held.append((node, delivery))

    def _hold_first(self, number: int, earlier: deque[tuple[NodeId | None, Delivery]]) -> None:
        """Hold these, which have their room, before all that came later."""
        later = self._held.get(number)
        self._held[number] = earlier
        if later is not None:
            earlier.extend(later)
        else:
            self.homes[number] = None
            self._ask_for(number)

    def fail_asks(self, why: str) -> None:
        """Asks of this node that wait for a home fail now, and so do later ones, with
        `DeadActorError` saying `why`; empty: they wait again."""
        self._fails_why = why
        for number, held in self._held.items():
            kept = deque(each for each in held if not self._has_failed(number, *each))
            self.held_count -= len(held) - len(kept)
            self._held[number] = kept

    def _has_failed(self, number: int, node: NodeId | None, delivery: Delivery) -> bool:
        asker = delivery.asker
        if not self._fails_why or node is not None or asker is None:
            return False
        if self._known[number] is not None:
            return False  # it has a home, and waits for the way there
        asker.fail(DeadActorError(f"{delivery.path[1:]}: {self._fails_why}"))
        return True

    def _ask_for(self, number: int) -> None:
        """Once; the machine asks the coordinator again and again."""
        if number not in self._asked:
            self._asked.add(number)
            self._tell(wanted=number)

    def _has_room(self, delivery: Delivery) -> bool:
        if self.held_count < self.settings.buffer_size and not self._is_closed:
            self.held_count += 1
            return True
        why = Why.SHUTDOWN if self._is_closed else Why.BUFFER_FULL
        self._runtime.dead_letter(delivery, delivery.path[1:], why)
        if not self._is_warned and not self._is_closed:
            self._is_warned = True
            _log.warning(
                "the buffer of a region is full: new messages become dead letters until the shards "
                "they are for have a home",
                extra={"type": self.type_name, "buffer_size": self.settings.buffer_size},
            )
        return False

    def _flush(self, number: int) -> None:
        """Try everything held for a shard once more, in order; what cannot go is held again."""
        shard, home = self.here[number], self._known[number]
        if shard is None and home is None:
            return
        self.homes[number] = home if shard is None else None
        held = self._held.pop(number, None)
        for node, delivery in held or ():
            self.held_count -= 1
            if number in self._held:
                self._hold(number, node, delivery)
                continue
            delivery.hops = min(delivery.hops, HOPS_MAX - 1)  # this route is news: one more
            self.deliver(unescaped(delivery.path[len(self.prefix) :]), node, delivery)
        if not self.held_count:
            self._is_warned = False

    def _retry_later(self) -> None:
        if self._retry is None and not self._is_closed:
            self._retry = self._runtime.loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        for number in list(self._held):
            self._flush(number)

    # orders

    def route(self, shards: Iterable[int], home: NodeId | None) -> None:
        """Where messages go from now on."""
        is_here = home == self._runtime.here
        for number in shards:
            self._known[number] = self.homes[number] = None if is_here else home
            if home is not None:
                self._asked.discard(number)
                self._flush(number)
            elif number in self._held:
                self._ask_for(number)

    def open_shards(self, shards: Iterable[int]) -> None:
        """Take messages for them here."""
        for number in shards:
            self.homes[number] = self._known[number] = None
            if self._remembering is None:
                self._open(number, frozenset())
            else:
                self._remembering.load(number, functools.partial(self._open, number))

    def _open(self, number: int, remembered: frozenset[str]) -> None:
        shard = self.here[number] = HereShard(self, number)
        shard.remembered.update(remembered)
        self._asked.discard(number)
        if self.settings.daemons:
            self._make(shard, str(number))
        self._flush(number)
        if remembered:
            self._restore(shard, sorted(remembered))

    def _restore(self, shard: HereShard, ids: list[str]) -> None:
        """Build remembered entities, some at a time; one that gets a message does not wait."""
        shard.restore = None
        for entity_id in ids[:RESTORED_TOGETHER]:
            if entity_id in shard.remembered and entity_id not in shard.entities:
                self._make(shard, entity_id)
        rest = ids[RESTORED_TOGETHER:]
        if rest:
            loop = self._runtime.loop
            shard.restore = loop.call_later(RESTORE_PAUSE_S, self._restore, shard, rest)

    def close_shards(self, shards: Iterable[int], force_after_s: float) -> None:
        """Stop their entities; what they have is handled first, unless that is to be at once."""
        at_once = force_after_s <= 0.0
        what = "another node has its shard" if at_once else SHARD_MOVES
        reason = StopReason(StopCause.HANDED_OVER, what)
        for number in shards:
            shard, self.here[number] = self.here[number], None
            if shard is None:
                if self._remembering is not None:
                    self._remembering.forget(number)
                self._tell(closed=number)
                continue
            shard.closing = True
            if shard.restore is not None:
                shard.restore.cancel()
            if at_once:
                shard.remembered.clear()  # it is for the other node now to say who lives
            self._closing[number] = shard
            for entity in list(shard.entities.values()):
                if entity.cell is None:
                    self._forget(entity)
                else:
                    self._runtime.stop(entity.cell.ref, reason, at_once=at_once)
            if shard.entities and at_once:
                continue  # their coroutines are cancelled, and abandoned if they take no notice
            if shard.entities:
                loop = self._runtime.loop
                shard.force = loop.call_later(force_after_s, self._force, shard, reason)
            else:
                self._closed(shard)

    def _force(self, shard: HereShard, reason: StopReason) -> None:
        shard.force = None
        for entity in list(shard.entities.values()):
            if entity.cell is not None:
                self._runtime.log("an entity does not stop and is cancelled", entity.cell.path)
                entity.cell.kill(reason)

    def _closed(self, shard: HereShard) -> None:
        if shard.force is not None:
            shard.force.cancel()
        self._closing.pop(shard.number, None)
        number = shard.number
        if self._remembering is None:
            self._tell(closed=number)
        else:
            self._remembering.settled(number, lambda: self._tell(closed=number))

    def drain(self, number: int, home: NodeId) -> None:
        """Send a mark behind all that went to `home`, and tell when it has arrived."""
        loop = self._runtime.loop
        ask = LocalAsk(loop.create_future(), answer_schema(DrainMark))
        timer = loop.call_later(DRAIN_TIMEOUT_S, ask.complete, True)

        def drained(_: object) -> None:
            timer.cancel()
            self._runtime.remote.forget(ask)
            self._regions.feed(RouteDrained(self.type_name, number))

        ask.future.add_done_callback(drained)
        self._runtime.forward(Delivery(DrainMark(), None, ask, self.prefix[:-1]), home)

    def _tell(self, *, wanted: int | None = None, closed: int | None = None) -> None:
        """Tell the machine in a later turn, all of this one together."""
        if wanted is not None:
            self._to_tell[0].append(wanted)
        if closed is not None:
            self._to_tell[1].append(closed)
        if self._teller is None:
            self._teller = self._runtime.loop.call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._teller = None
        (wanted, closed), self._to_tell = self._to_tell, ([], [])
        if wanted:
            self._regions.feed(ShardsWanted(self.type_name, tuple(sorted({*wanted}))))
        if closed:
            self._regions.feed(ShardsClosed(self.type_name, tuple(sorted({*closed}))))

    # entities

    def _make(self, shard: HereShard, entity_id: str) -> Entity:
        entity = shard.entities[entity_id] = Entity(entity_id, shard)
        self.entity_count += 1
        if self.lru is not None:
            self.lru[entity] = None
        if self._is_new(shard, entity_id):
            self._remember(entity)
        else:
            self._build(entity)
        self._make_room()
        return entity

    def _make_room(self) -> None:
        """Passivate the least recently used of too many: now as far as they have nothing to do,
        else later. One that stops with something left to do would be built again for that."""
        limit, lru = self.settings.entities_max, self.lru
        if limit is None or lru is None or len(lru) <= limit:
            return
        for _ in range(min(LOOKS, len(lru)) if self._authority.is_open else 0):
            entity = next(iter(lru))
            if entity.is_busy:
                lru.move_to_end(entity)
                continue
            self.passivate(entity)
            if len(lru) <= limit:
                return
        if self._room is None and not self._is_closed:
            self._room = self._runtime.loop.call_later(ROOM_PAUSE_S, self._make_room_again)

    def _make_room_again(self) -> None:
        self._room = None
        self._make_room()

    def _remember(self, entity: Entity) -> None:
        """It is built once the store knows of it; its messages wait."""
        assert self._remembering is not None
        shard = entity.shard

        def remembered() -> None:
            shard.remembered.add(entity.id)
            if shard.entities.get(entity.id) is entity:
                self._again(entity)

        self._remembering.write(shard.number, entity.id, lives=True, then=remembered)

    def _build(self, entity: Entity) -> Cell | None:
        kind, runtime = self.kind, self._runtime
        assert kind is not None
        entity.used = self.tick
        try:
            ref = runtime.spawn_at(
                self.prefix + escaped(entity.id),
                kind.actor,
                (entity.id, *kind.args),
                authority=self._authority,
                hand_over=self._hand_over,
                supervision=kind.supervision,
                on_stopped=entity.ended,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is: its messages are dead letters
            runtime.log("an entity cannot be made", self.prefix + entity.id, exc_info=error)
            self._restart_later(entity)
            return None
        entity.cell = runtime.cell_at(ref.path, ref.uid)
        return entity.cell

    def passivate(self, entity: Entity) -> None:
        """Stop it once it has handled what it has; its next message builds it anew."""
        if self.lru is not None:
            self.lru.pop(entity, None)
        if entity.cell is not None and not entity.cell.closed:
            self._runtime.stop(entity.cell.ref, StopReason(StopCause.STOPPED, PASSIVATED))

    def entity_ended(self, entity: Entity, reason: StopReason) -> None:
        """It has terminated: for good, or until its next message."""
        shard, cell = entity.shard, entity.cell
        entity.cell = None
        is_passivated = reason.detail == PASSIVATED or (cell is not None and cell.is_passivated)
        if is_passivated:
            self._runtime.count("sharding: passivations")
        if shard.closing:
            if entity.held and self._finishes_here(entity):
                return
            if is_passivated and not entity.held:
                self._remember_no_more(entity)  # before the shard is given up: see `_closed`
            self._forget(entity)
            if not shard.entities:
                self._closed(shard)
        elif entity.held:
            self._go_on(entity, entity.held[0][1], reason)
        elif self._is_closed or not self._is_kept(entity, is_passivated):
            self._forget(entity)
            self._remember_no_more(entity)
        else:
            self._ended_why[entity] = str(reason)
            self._restart_later(entity)

    def _finishes_here(self, entity: Entity) -> bool:
        """What had come before the hand-off began is handled here, as what is in mailboxes is:
        elsewhere it would race with what others hold. Once: what is given back goes on."""
        shard = entity.shard
        if shard.force is None:
            return False  # it is to end at once
        self._again(entity, is_last=True)
        if entity.cell is None:
            return False
        self._runtime.stop(entity.cell.ref, StopReason(StopCause.HANDED_OVER, SHARD_MOVES))
        return True

    def _go_on(self, entity: Entity, first: Delivery, reason: StopReason) -> None:
        """Something waits for the next one: at once, unless that would end as two before it."""
        given_back, is_again = self._given_back.get(entity, (None, False))
        if given_back is not first:
            self._given_back.pop(entity, None)
        elif is_again:
            path = self.prefix + entity.id
            self._runtime.log("an entity handles nothing of what it gets; the next one waits", path)
            self._ended_why[entity] = str(reason)
            self._restart_later(entity)
            return
        self._again(entity)

    def _is_kept(self, entity: Entity, is_passivated: bool) -> bool:
        """It runs whether or not there are messages for it."""
        assert self.kind is not None
        is_remembered = entity.id in entity.shard.remembered
        return self.settings.daemons or (is_remembered and not is_passivated)

    def _remember_no_more(self, entity: Entity) -> None:
        shard = entity.shard
        if self._remembering is not None and entity.id in shard.remembered and not self._is_closed:
            shard.remembered.discard(entity.id)
            number, entity_id = shard.number, entity.id
            self._remembering.write(number, entity_id, lives=False, then=lambda: None)

    def _forget(self, entity: Entity) -> None:
        del entity.shard.entities[entity.id]
        self._restarted_at.pop(entity, None)
        self._ended_why.pop(entity, None)
        self._given_back.pop(entity, None)
        self.entity_count -= 1
        if self.lru is not None:
            self.lru.pop(entity, None)
        held, entity.held = entity.held, None
        if held:
            self._hold_first(entity.shard.number, held)

    def _again(self, entity: Entity, *, is_last: bool = False) -> None:
        """Build it anew, and give it what was held."""
        if (entity.shard.closing and not is_last) or entity.cell is not None:
            return
        cell = self._build(entity)
        if cell is None:
            return
        held, entity.held = entity.held, None
        for _, delivery in held or ():
            self.held_count -= 1
            cell.put(delivery)
        if self.lru is not None:
            self.lru[entity] = None
            self._make_room()

    def _restart_later(self, entity: Entity) -> None:
        loop = self._runtime.loop
        if loop.time() - self._restarted_at.get(entity, math.inf) >= RESTART_MAX_S:
            entity.failures = 0  # it ran well
        backoff_s = min(RESTART_S * 2.0 ** min(entity.failures, 10), RESTART_MAX_S)
        entity.failures += 1

        def again() -> None:
            self._restarts.discard(timer)
            if not entity.shard.closing:
                self._restarted_at[entity] = loop.time()
            self._again(entity)

        timer = loop.call_later(backoff_s, again)
        self._restarts.add(timer)

    # passivation

    def _sweep_later(self) -> None:
        idle_s = self.settings.idle_s
        if idle_s is None or self._is_closed:
            self._sweeper = None
            return
        delay_s = max(SWEEP_MIN_S, idle_s / SWEEPS)
        self._sweeper = self._runtime.loop.call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self.tick += 1
        oldest = self.tick - SWEEPS
        if self._remembering is None and not self.settings.daemons:
            for shard in self.here:
                for entity in list(shard.entities.values()) if shard is not None else ():
                    if entity.used < oldest:
                        self._passivate_idle(entity)
        self._sweep_later()

    def _passivate_idle(self, entity: Entity) -> None:
        if entity.is_busy:
            entity.used = self.tick  # until now, though no message came
        else:
            self.passivate(entity)

    # the end

    def close(self) -> None:
        """Hold nothing any more: what is held becomes dead letters."""
        self._is_closed = True
        if self._remembering is not None:
            self._remembering.close()
        for timer in (self._retry, self._sweeper, self._room, self._teller, *self._restarts):
            if timer is not None:
                timer.cancel()
        held = [*self._held.values()]
        for shard in (*self.here, *self._closing.values()):
            if shard is not None:
                for timer in (shard.force, shard.restore):
                    if timer is not None:
                        timer.cancel()
                for entity in shard.entities.values():
                    if entity.held:
                        held.append(entity.held)
                        entity.held = None  # else there would be a next one for it
        self._held.clear()
        for deliveries in held:
            for _, delivery in deliveries:
                self._runtime.dead_letter(delivery, delivery.path[1:], Why.SHUTDOWN)
        self.held_count = 0

    # words

    def why_held(self, entity_id: str) -> str:
        """In words, why an ask of this node has no answer of this entity; empty: no home of its
        shard is known, which the machine explains."""
        number = self.shard_of(entity_id)
        shard, home = self.here[number], self._known[number]
        if shard is None:
            if number in self._closing:
                return "held here, its shard is about to leave this node"
            if home is None:
                return ""
            return f"held here, it lives at {home.address}, which cannot be reached now"
        entity = shard.entities.get(entity_id)
        if entity is None:
            return "held here, it is about to be built"
        if entity.cell is not None:
            return entity.cell.silence
        ended = self._ended_why.get(entity)
        why = "; ".join(self.troubles()) if ended is None else f"its last end: {ended}"
        return f"held here, it is to be built{why and f', {why}'}"
