"""The ids of the entities that live in a shard, kept so that they start again wherever it goes.

Decides what can be remembered (which ids, how many) and which store a URL means. Does not decide
which entities are remembered, nor when they are started again. Here are the contract and the store
for tests; the others are `node.remembered_sqlite` and `node.remembered_etcd`.

A store remembers sets, not history: it does not know which home of a shard wrote last. An update
that ended as unknown may be carried out late, also after one that came later. What that costs is
bounded by what is remembered: an entity is started that nobody needs, or one is started only when
it gets its next message.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from node.errors import EntityStoreFullError, EntityStoreUnavailableError
from node.settings import refused_store

if TYPE_CHECKING:
    from lease.urls import EtcdPlace

ID_CHARACTERS_MAX = 256
"""Of an entity's id, and of the name of a type."""
IDS_MAX = 100_000
"""So many are remembered of one shard."""
SHARD_MAX = 2**31 - 1
SETTING = "remember_entities"
"""The key that errors about a URL name, unless told another one."""

_KNOWN = (
    "memory: (this process only), sqlite:///absolute/file or sqlite:relative/file, "
    "etcd://host:port[,host:port…]/prefix"
)


class EntityStore(ABC):
    """What a backend implements: sets of ids, one for each type and shard.

    Every method may raise `EntityStoreUnavailableError`, within a bounded time; it means "unknown",
    and the same call can be repeated. A method that is cancelled counts as unknown too, and so does
    whatever else one raises: it is logged with its traceback. All are called on the event loop and
    do not block it. Raises ValueError for what no store can keep.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """A URL without a password; equal on two members when they mean the same store."""

    @abstractmethod
    async def load(self, type_name: str, shard: int) -> frozenset[str]:
        """All ids of that shard, as they were at one instant since the call."""

    @abstractmethod
    async def update(
        self, type_name: str, shard: int, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """Add and remove in one atomic step that is durable when this returns.

        Adding what is there and removing what is not are fine. Raises `EntityStoreFullError` when
        the shard would have more than `IDS_MAX` ids; then nothing was done.
        """

    async def losses(self) -> int:
        """How often all that was stored was lost since this object was made, as far as can be told.

        Each time it has grown, those who use the store write again what lives. It is asked every
        few seconds. For a store that never loses anything without failing: 0.
        """
        return 0

    @abstractmethod
    async def close(self) -> None:
        """Give back what the store holds. It is not used afterwards."""


class MemoryEntityStore(EntityStore):
    """Sets inside one process, for tests: hand the same object to all who share it.

    It outlives every `close`. While `is_down` is set every request is unknown, and nothing is done.
    """

    def __init__(self) -> None:
        self._identity = f"memory:{secrets.token_hex(8)}"
        self._shards: dict[tuple[str, int], set[str]] = {}
        self.is_down = False

    @property
    def identity(self) -> str:
        """Another one for each object: nobody else can mean this store."""
        return self._identity

    async def load(self, type_name: str, shard: int) -> frozenset[str]:
        """See `EntityStore`."""
        check_shard(type_name, shard)
        self._check_up()
        return frozenset(self._shards.get((type_name, shard), ()))

    async def update(
        self, type_name: str, shard: int, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """See `EntityStore`."""
        added, removed = checked_update(type_name, shard, add, remove)
        self._check_up()
        ids = self._shards.get((type_name, shard), set())
        if added and len(ids) + len(added - ids) - len(removed & ids) > IDS_MAX:
            raise full(type_name, shard, self.identity)
        ids |= added
        ids -= removed
        if ids:
            self._shards[type_name, shard] = ids
        else:
            self._shards.pop((type_name, shard), None)

    async def close(self) -> None:
        """See `EntityStore`; others may go on with it."""

    def _check_up(self) -> None:
        if self.is_down:
            raise EntityStoreUnavailableError(f"the entity store {self._identity} is down")


def check_shard(type_name: str, shard: int) -> None:
    """Raises ValueError when no store can keep ids of such a shard."""
    if not 1 <= len(type_name) <= ID_CHARACTERS_MAX:
        raise ValueError(
            f"the type name {type_name[:80]!r} has {len(type_name)} characters: give it 1 to "
            f"{ID_CHARACTERS_MAX}"
        )
    if not 0 <= shard <= SHARD_MAX:
        raise ValueError(f"shard {shard} must lie between 0 and {SHARD_MAX}")


def checked_update(
    type_name: str, shard: int, add: Iterable[str], remove: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """What is to be added, and removed. Raises ValueError when no store can do that."""
    check_shard(type_name, shard)
    if isinstance(add, str) or isinstance(remove, str):
        raise ValueError("add and remove take collections of ids, not one: write add=[entity_id]")
    added, removed = frozenset(add), frozenset(remove)
    for entity_id in added | removed:
        if not 1 <= len(entity_id) <= ID_CHARACTERS_MAX:
            raise ValueError(
                f"the entity id {entity_id[:80]!r} has {len(entity_id)} characters: give it 1 to "
                f"{ID_CHARACTERS_MAX}"
            )
    both = added & removed
    if both:
        raise ValueError(f"{min(both)!r} is both added and removed: decide which")
    return added, removed


def full(type_name: str, shard: int, identity: str) -> EntityStoreFullError:
    """The error of an update that would remember too many."""
    return EntityStoreFullError(
        f"shard {shard} of {type_name!r} would have more than {IDS_MAX} remembered entities in "
        f"{identity}: spread them over more shards, or remember fewer"
    )


def raw_of(text: str) -> bytes:
    """As stores keep an id: UTF-8, and lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def text_of(raw: bytes) -> str:
    """What `raw_of` made. Raises ValueError for what it cannot have made."""
    return raw.decode("utf-8", "surrogatepass")


def entity_store_of(url: str, *, key: str = SETTING) -> EntityStore:
    """The store that `url` names; nothing is opened yet.

    `memory:` is another, empty store with each call. `sqlite:` and `etcd:` are those of leases
    (`lease.urls`), and may be the very same file or prefix; the prefix of etcd may also stand
    behind the endpoints, `etcd://host:port/prefix`. Raises `SettingsError` when there is no such
    store, or it cannot work; it names `key`.
    """
    try:
        return _store_of(url)
    except ValueError as error:
        raise refused_store(url, error, key) from error


def _store_of(url: str) -> EntityStore:
    scheme, colon, rest = url.partition(":")
    if not colon or (scheme == "etcd" and not rest.startswith("//")):
        raise ValueError(f"it is no URL of an entity store: there are {_KNOWN}")
    match scheme:
        case "memory":
            if rest:
                raise ValueError("memory: has no name; hand the store itself on to share it")
            return MemoryEntityStore()
        case "sqlite":
            from lease.urls import sqlite_path
            from node.remembered_sqlite import SqliteEntityStore

            return SqliteEntityStore(sqlite_path(url))
        case "etcd":
            from node.remembered_etcd import EtcdEntityStore  # most nodes need no HTTP client

            place = _etcd_place(url)
            return EtcdEntityStore(
                place.endpoints,
                prefix=place.prefix,
                user=place.user,
                password=place.password,
                ssl_context=place.ssl_context,
            )
    raise ValueError(f"{scheme!r} is no entity store that is known: there are {_KNOWN}")


def _etcd_place(url: str) -> EtcdPlace:
    """As `lease.urls` reads it, but for a prefix that stands as the path."""
    from lease.urls import etcd_place

    place, question, query = url.partition("?")
    # Before the last @ a slash may be a part of a password that was not encoded: it is refused.
    credentials, at, hosts = place.removeprefix("etcd://").rpartition("@")
    hosts, _, path = hosts.partition("/")
    path = path.strip("/")
    found = etcd_place(f"etcd://{credentials}{at}{hosts}{question}{query}")
    if not path:
        return found
    if any(part.startswith("prefix=") for part in query.split("&")):
        raise ValueError("the prefix is given twice, as path and as parameter: keep one")
    return replace(found, prefix=unquote(path))
