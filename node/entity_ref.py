"""The ref of a sharded entity: it aims anew at each message.

Decides, per message, whether it goes straight into the mailbox of the entity here, over the link to
the node where its shard lives, or to the region, which holds it or builds the entity. Does not
decide where a shard lives (`sharding.region`) nor hold anything (`node.regions`).

Budget: two list look-ups and one in a dict more than a plain ref. `bench.sharding` holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from node.codec import name_to_travel
from node.messages import Ask
from node.ref import ActorRef
from node.regions import escaped

if TYPE_CHECKING:
    from node.regions import Region
    from node.runtime import Runtime

M_contra = TypeVar("M_contra", contravariant=True)
T = TypeVar("T")


class EntityRef(ActorRef[M_contra]):
    """Whoever is the entity `entity_id` now, wherever it is. It may be kept for ever, and sent to
    others."""

    __slots__ = ("_away", "_own", "_region", "entity_id", "shard_id")

    def __init__(self, runtime: Runtime, region: Region, entity_id: str) -> None:
        self.shard_id = region.shard_of(entity_id)
        super().__init__(runtime, None, region.prefix + escaped(entity_id), 0)
        self.entity_id = entity_id
        self._region = region
        self._own: ActorRef[Any] | None = None  # to the region here
        self._away: ActorRef[Any] | None = None  # to the entity on the node where it was last

    def _aim(self) -> ActorRef[Any]:
        region = self._region
        shard = region.here[self.shard_id]
        if shard is not None:
            entity = shard.entities.get(self.entity_id)
            if entity is not None:
                cell = entity.cell
                if cell is not None and not cell.closed:
                    entity.used = region.tick
                    if region.lru is not None:
                        region.lru.move_to_end(entity)
                    return cell.ref
        else:
            home = region.homes[self.shard_id]
            if home is not None:
                away = self._away
                if away is None or (away._node is not home and away._node != home):
                    away = self._away = ActorRef(self._runtime, home, self.path, 0)
                return away
        own = self._own
        if own is None:
            own = self._own = ActorRef(self._runtime, None, self.path, 0)
        return own

    def tell(self, message: M_contra, sender: ActorRef[Any] | None = None) -> None:
        """As `ActorRef.tell`, and the message must be a `@message`. Held while the shard moves or
        has no home yet."""
        if type(message) not in _TRAVEL:
            _check_travels(type(message))
        self._aim().tell(message, sender)

    async def send(
        self,
        message: M_contra,
        sender: ActorRef[Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """As `ActorRef.send`; of messages as `tell`."""
        if type(message) not in _TRAVEL:
            _check_travels(type(message))
        await self._aim().send(message, sender, timeout_s)

    async def ask(self, message: Ask[T], timeout_s: float = 5.0) -> T:
        """As `ActorRef.ask`; of messages as `tell`. Held while the shard moves or has no home
        yet."""
        if type(message) not in _TRAVEL:
            _check_travels(type(message))
        return await self._aim().ask(message, timeout_s)


_TRAVEL: set[type] = set()


def _check_travels(cls: type) -> None:
    """Refuse what could not follow an entity to another node, wherever it is now."""
    name_to_travel(cls)
    _TRAVEL.add(cls)
