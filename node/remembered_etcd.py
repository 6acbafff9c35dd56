"""Remembered entities in etcd (version 3), for processes on different hosts.

Decides nothing; see `node.remembered`. It asks through `lease.etcd_client`, as leases do; used on
one event loop.

One key per entity, without a value: `PREFIX/entities/LENGTH:TYPE/SHARD/ID`. Nothing of the type's
name or the id is escaped: the length tells where the name ends, and the id is all that follows.
Keys have no lease of etcd's: they are for the time when no member lives.

A shard is read in pages, all of one revision, so what is read was there at one instant. etcd limits
the operations of a transaction: an update of more than `OPERATIONS_MAX` ids is done in several, one
after the other, and is atomic per part only. What is to be added comes first, so that of an update
that was cut short rather too much is remembered than too little.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from lease.etcd_client import REQUEST_TIMEOUT_S, EtcdClient, RefusedError, encoded
from node.errors import EntityStoreUnavailableError
from node.remembered import (
    IDS_MAX,
    EntityStore,
    check_shard,
    checked_update,
    full,
    raw_of,
    text_of,
)

OPERATIONS_MAX = 128
"""etcd's own limit for a transaction (`--max-txn-ops`). So many of the longest keys are 300 kB, far
below its limit for a request (`--max-request-bytes`, 1.5 MiB)."""
PAGE_KEYS = 1_000
"""Of the longest keys these are 3.2 MB, below what the client reads of one answer."""
PREFIX_BYTES_MAX = 256
LOAD_ATTEMPTS = 3
_OUT_OF_RANGE = 11


class EtcdEntityStore(EntityStore):
    """Sets in the etcd behind `endpoints` (`http://host:port` or `https://host:port`).

    See `lease.etcd_client` for the arguments. An update of more than `OPERATIONS_MAX` ids is
    atomic per part only. `IDS_MAX` is kept to the unit where a shard has one update at a time; of
    several at once each may exceed it by what the others add. Raises ValueError when the arguments
    cannot work.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        prefix: str = "tenure",
        user: str | None = None,
        password: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        if not 1 <= len(raw_of(prefix)) <= PREFIX_BYTES_MAX:
            raise ValueError(f"prefix {prefix[:80]!r} must have 1 to {PREFIX_BYTES_MAX} bytes")
        self._client = EtcdClient(
            endpoints,
            unavailable=self._unavailable,
            closed=self._was_closed,
            user=user,
            password=password,
            ssl_context=ssl_context,
            request_timeout_s=request_timeout_s,
        )
        self._prefix = prefix
        self._room: dict[tuple[str, int], int] = {}  # so many fit in at least, if only we add

    @property
    def identity(self) -> str:
        """Its endpoints, in whatever order they were given, and the prefix."""
        return f"etcd://{self._client.hosts}/{self._prefix}"

    async def load(self, type_name: str, shard: int) -> frozenset[str]:
        """See `EntityStore`. A request for each `PAGE_KEYS` ids."""
        check_shard(type_name, shard)
        for _ in range(LOAD_ATTEMPTS):
            try:
                found = await self._load(self._start(type_name, shard))
            except RefusedError:
                continue  # between two pages etcd has forgotten the revision of the first
            except (KeyError, ValueError) as error:
                raise self._unavailable(
                    f"what it holds of shard {shard} of {type_name!r} are no ids ({error}): "
                    "somebody else wrote there"
                ) from error
            self._room[type_name, shard] = IDS_MAX - len(found)
            return found
        raise self._unavailable(f"it was compacted during each of {LOAD_ATTEMPTS} reads")

    async def update(
        self, type_name: str, shard: int, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> None:
        """See `EntityStore`; atomic per `OPERATIONS_MAX` ids. Durable on a majority of etcd's
        members when this returns."""
        added, removed = checked_update(type_name, shard, add, remove)
        await self._make_room(type_name, shard, added, removed)
        start = self._start(type_name, shard)
        orders: list[dict[str, Any]] = [
            {"request_put": {"key": encoded(start + raw_of(each))}} for each in sorted(added)
        ]
        orders += [
            {"request_delete_range": {"key": encoded(start + raw_of(each))}}
            for each in sorted(removed)
        ]
        for begin in range(0, len(orders), OPERATIONS_MAX):
            part = orders[begin : begin + OPERATIONS_MAX]
            await self._client.call("kv/txn", {"success": part}, refusals=())

    async def close(self) -> None:
        """Close the connections. Further requests are unknown."""
        await self._client.close()

    def _start(self, type_name: str, shard: int) -> bytes:
        """What all keys of the shard begin with, and no others do."""
        return raw_of(f"{self._prefix}/entities/{len(type_name)}:{type_name}/{shard}/")

    async def _load(self, start: bytes) -> frozenset[str]:
        body = {
            "key": encoded(start),
            "range_end": encoded(start[:-1] + b"0"),  # the sign after the slash
            "limit": str(PAGE_KEYS),
            "keys_only": True,
        }
        found: set[str] = set()
        while True:
            answer = await self._client.call("kv/range", body, refusals=(_OUT_OF_RANGE,))
            keys = [base64.b64decode(kv["key"]) for kv in answer.get("kvs") or []]
            found.update(text_of(key[len(start) :]) for key in keys)
            if not keys or not answer.get("more"):
                return frozenset(found)
            body["key"] = encoded(keys[-1] + b"\0")
            # Of the first page only: the header of a later one has the revision of then.
            body.setdefault("revision", str(answer["header"]["revision"]))

    async def _make_room(
        self, type_name: str, shard: int, added: frozenset[str], removed: frozenset[str]
    ) -> None:
        """Only where the shard may be full it is read: a transaction of etcd's cannot count."""
        place = (type_name, shard)
        if len(added) > self._room.get(place, 0):
            present = await self.load(type_name, shard)
            if len((present | added) - removed) > IDS_MAX:
                raise full(type_name, shard, self.identity)
        # Not below nothing: what was added may have been there, or is made up for by the removed.
        self._room[place] = max(0, self._room.get(place, 0) - len(added))

    def _was_closed(self) -> EntityStoreUnavailableError:
        return EntityStoreUnavailableError(f"the entity store {self.identity} was closed here")

    def _unavailable(self, why: str) -> EntityStoreUnavailableError:
        return EntityStoreUnavailableError(f"the entity store {self.identity} failed: {why}")
