"""A store in etcd (version 3), for processes on different hosts.

Decides nothing; see `lease.store`. It asks through `lease.etcd_client`. Built by `lease.urls` or by
hand; used on one event loop.

Two keys per lease. `PREFIX/leases/NAME` holds the record. `PREFIX/fences/NAME` is written by the
transactions that acquire and release, and by no other: while somebody holds the lease its
`mod_revision` is the holder's token, so that a guarded write can ask for it in its own transaction
(`EtcdStore.fence_compare`). Revisions of etcd grow with each transaction of the whole store and are
never given twice, also when keys are deleted by hand, so tokens do too (I-18).

A record is replaced on its `mod_revision` only, and read linearizably. How old it is, is known to
those who watched it; etcd's own leases are not what it expires by, since a new leader prolongs them
all. A server lease of several ttls is attached all the same: what a whole cluster left behind is
gone when it comes back.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.etcd_client import NOT_FOUND, REQUEST_TIMEOUT_S, EtcdClient, RefusedError, text
from lease.host_clock import boot_time_s
from lease.record import LeaseRecord, trusted_ttl_s
from lease.store import LeaseStore

SERVER_LEASE_TTLS = 3
"""A server lease lasts so many ttls, so that it is granted anew only every other ttl."""


@dataclass(frozen=True, slots=True)
class _ServerLease:
    """A lease of etcd's, and until when it certainly exists, by two clocks of ours."""

    id: str
    boot_until_s: float
    wall_until_s: float

    def outlasts(self, seconds: float) -> bool:
        """True when it exists for so long at least, also if this machine was frozen meanwhile."""
        return (
            boot_time_s() + seconds < self.boot_until_s
            and time.time() + seconds < self.wall_until_s
        )


class EtcdStore(LeaseStore):
    """Leases in the etcd behind `endpoints` (`http://host:port` or `https://host:port`).

    Another endpoint is asked when one does not answer. `user` and `password` go together.
    `ssl_context` is for https; None takes the system's authorities. `request_timeout_s` bounds one
    request over all endpoints; `requests` counts them, but for watches. Raises ValueError when the
    arguments cannot work.
    """

    poll_interval_s: ClassVar[float] = 1.0

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
        self._server_leases: dict[str, _ServerLease] = {}
        self._since: dict[str, tuple[int | None, float | None]] = {}  # name → token, acquired at

    @property
    def identity(self) -> str:
        """Its endpoints, in whatever order they were given, and the prefix."""
        return f"etcd://{self._client.hosts}/{self._prefix}"

    @property
    def requests(self) -> int:
        """How many requests it made, but for watches."""
        return self._client.requests

    def record_key(self, name: str) -> str:
        """The key of the record."""
        return f"{self._prefix}/leases/{name}"

    def fence_key(self, name: str) -> str:
        """The key whose `mod_revision` is the token while the lease is held."""
        return f"{self._prefix}/fences/{name}"

    def fence_compare(self, name: str, token: int) -> dict[str, str]:
        """What a transaction of the JSON gateway has to compare, for its writes to happen only
        while `token` is that of the holder: put it into `compare`."""
        return _compare(self.fence_key(name), "MOD", token)

    async def read(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`."""
        answer = await self._client.call("kv/range", {"key": text(self.record_key(name))})
        return self._found(name, answer)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """See `LeaseStore`. One transaction, on what a majority of etcd's members has stored."""
        for attempt in (1, 2):
            try:
                return await self._write(record, if_version)
            except RefusedError as refusal:
                if refusal.code != NOT_FOUND or attempt == 2:
                    raise self._unavailable(str(refusal)) from refusal
                # The server lease was revoked by hand: without it nothing was written.
                self._server_leases.pop(record.name, None)
        raise AssertionError("two attempts end by an answer or an error")

    async def changed(self, name: str, version: str) -> None:
        """See `LeaseStore`; told by a watch of etcd's."""
        if not version.isdecimal():
            return
        await self._client.watch(self.record_key(name), int(version) + 1)

    async def close(self) -> None:
        """See `LeaseStore`."""
        await self._client.close()

    # -- writing

    async def _write(self, record: LeaseRecord, if_version: str | None) -> LeaseRecord:
        key = self.record_key(record.name)
        if if_version is None:
            compare = _compare(key, "CREATE", 0)
        elif if_version.isdecimal():
            compare = _compare(key, "MOD", int(if_version))
        else:  # no version of this store's
            raise WriteConflict(await self.read(record.name))
        acquires = record.token is None
        since = time.time() if acquires else self._known_since(record)
        put = {"key": text(key), "value": text(_value(record, since))}
        if record.holder:
            put["lease"] = await self._server_lease(record)
        puts = [{"request_put": put}]
        if acquires or record.free:
            fence = {"key": text(self.fence_key(record.name)), "value": text(record.holder)}
            puts.append({"request_put": fence})
        answer = await self._client.call(
            "kv/txn",
            {
                "compare": [compare],
                "success": puts,
                "failure": [{"request_range": {"key": text(key)}}],
            },
        )
        if not answer.get("succeeded", False):
            raise WriteConflict(self._found(record.name, _response(answer, "response_range")))
        revision = int(answer["header"]["revision"])
        token = revision if record.token is None else record.token
        self._since[record.name] = (token, since)
        return replace(record, token=token, version=str(revision), acquired_at_wall_s=since)

    def _known_since(self, record: LeaseRecord) -> float | None:
        token, since = self._since.get(record.name, (None, None))
        return since if token == record.token else None

    async def _server_lease(self, record: LeaseRecord) -> str:
        """The id of a lease of etcd's that does not end before this record does."""
        ttl_s = trusted_ttl_s(record)
        known = self._server_leases.get(record.name)
        if known is not None and known.outlasts(ttl_s * 1.05 + 0.5):
            return known.id
        asked_boot_s, asked_wall_s = boot_time_s(), time.time()
        wanted_s = math.ceil(ttl_s * SERVER_LEASE_TTLS) + 1
        answer = await self._client.call("lease/grant", {"TTL": str(wanted_s)})
        granted_s = int(answer.get("TTL", 0))
        if granted_s <= ttl_s:
            raise self._unavailable(f"it grants {granted_s} s where {wanted_s} s were asked for")
        self._server_leases[record.name] = lease = _ServerLease(
            str(answer["ID"]), asked_boot_s + granted_s, asked_wall_s + granted_s
        )
        return lease.id

    # -- reading

    def _found(self, name: str, answer: Mapping[str, Any]) -> LeaseRecord | None:
        kvs = answer.get("kvs") or []
        if not kvs:
            return None
        record = _record(name, kvs[0])
        self._since[name] = (record.token, record.acquired_at_wall_s)
        return record

    # -- errors

    def _was_closed(self) -> LeaseUnavailableError:
        return LeaseUnavailableError(f"the lease store {self.identity} was closed here")

    def _unavailable(self, why: str) -> LeaseUnavailableError:
        return LeaseUnavailableError(f"the lease store {self.identity} failed: {why}")


def _compare(key: str, target: str, revision: int) -> dict[str, str]:
    field = "create_revision" if target == "CREATE" else "mod_revision"
    return {"key": text(key), "target": target, "result": "EQUAL", field: str(revision)}


def _value(record: LeaseRecord, since: float | None) -> str:
    """The token stands in renewals only: an acquiring write learns it from its own revision."""
    return json.dumps(
        {
            "holder": record.holder,
            "ttl_s": record.ttl_s,
            "write_id": record.write_id,
            "token": record.token,
            "acquired_at": since,
        }
    )


def _record(name: str, kv: Mapping[str, Any]) -> LeaseRecord:
    """What a key holds. Others may have written anything: no damage makes it free (I-13)."""
    revision = int(kv["mod_revision"])
    raw = ""
    try:
        raw = base64.b64decode(kv.get("value", "")).decode("utf-8")
        value = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {}
    holder, ttl_s, token = value.get("holder"), value.get("ttl_s"), value.get("token")
    since = value.get("acquired_at")
    if token is None and isinstance(holder, str):
        token = revision
    return LeaseRecord(
        name=name,
        holder=holder if isinstance(holder, str) else f"damaged {raw[:80]!r}",
        token=token if isinstance(token, int) and not isinstance(token, bool) else 0,
        ttl_s=_number(ttl_s, math.nan),
        write_id=str(value.get("write_id")),
        version=str(revision),
        acquired_at_wall_s=None if since is None else _number(since, 0.0),
    )


def _number(value: object, instead: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return instead


def _response(answer: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    responses = answer.get("responses") or [{}]
    found: Mapping[str, Any] = responses[0].get(kind) or {}
    return found
