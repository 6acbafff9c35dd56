"""A store in the Lease objects of a Kubernetes namespace (`coordination.k8s.io/v1`).

Decides nothing; see `lease.store`. Built by `lease.urls` or by hand; used on one event loop.

The API server compares versions but tells no time: `renewTime` is what the writer's clock said, and
nobody here believes it. How old a record is, is known to those who watched it. Each write carries
`resourceVersion` *and* `uid`: without the uid a PUT of somebody who was stopped would bring a
deleted object back. Objects are never deleted; released is a holder that is empty.

The token is the `resourceVersion` that the acquiring write was answered with: the revision of the
etcd behind the API server, so it grows over release, expiry and deletion (I-18). Kubernetes calls
it opaque; one that is no number is refused. `leaseTransitions` is kept for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration, CoordinationV1Api

from lease.errors import LeaseUnavailableError, WriteConflict
from lease.record import MAX_TTL_S, LeaseRecord, trusted_ttl_s
from lease.store import LeaseStore

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0
GOODBYE_S = 0.1
WATCH_S = 60
"""A watch is begun anew after so long: one whose server vanished without a word would never end."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_BYTES_MAX = 4_000_000

_NAME = "tenure/lease-name"
_WRITE_ID = "tenure/write-id"
_TOKEN = "tenure/token"
_TTL_S = "tenure/ttl-s"
_ACQUIRED = "acquired"
"""Stands for a token that the write itself makes: the version of the object that has it."""
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_CHARACTERS_MAX = 200
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_OK, _CREATED = 200, 201
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _BUSY = 401, 403, 404, 409, 429


class KubernetesStore(LeaseStore):
    """Leases in `namespace`.

    Inside a cluster nothing else is needed: server, token and authority are those of the pod's
    service account. Outside give all three of `server` (https://host:port), `token_file` and
    `ca_file`, or none (I-15). The token is read again whenever its file changes, and when the
    server refuses it. `requests` counts those that were sent, but for watches. Raises ValueError
    when the arguments cannot work.
    """

    poll_interval_s: ClassVar[float] = 1.0

    def __init__(
        self,
        namespace: str,
        *,
        server: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"{namespace!r} is no name of a Kubernetes namespace")
        given = [part is not None for part in (server, token_file, ca_file)]
        if any(given) and not all(given):
            raise ValueError(
                "server, token_file and ca_file go together: a token must not be sent to a server "
                "that it was not made for; give all three, or none inside a cluster"
            )
        if server is None:
            server = _server_of_the_pod()
        elif not re.fullmatch(r"https://[^/?#]+", server):
            raise ValueError(f"server={server!r} must be https://host:port, without a path")
        self.namespace = namespace
        self.server = server
        self._token_file = Path(token_file or SERVICE_ACCOUNT / "token")
        self._ca_file = Path(ca_file or SERVICE_ACCOUNT / "ca.crt")
        for file, what in ((self._token_file, "token_file"), (self._ca_file, "ca_file")):
            if not file.is_file():
                raise ValueError(f"{what}={str(file)!r} is no file that can be read")
        self._timeout_s = request_timeout_s
        self.requests = 0
        self._closed = False
        self._client: ApiClient | None = None
        self._token_read: tuple[float, int] | None = None  # change time and inode of its file
        self._objects: dict[str, dict[str, Any]] = {}  # as last seen, for what a PUT has to keep
        self._may_watch = True

    @property
    def identity(self) -> str:
        """Server and namespace. Members in one cluster name the server alike."""
        return f"kubernetes://{self.namespace}?server={self.server}"

    @staticmethod
    def object_name(name: str) -> str:
        """The Lease object of a lease: its own name where Kubernetes allows it, else one with a
        hash."""
        if len(name) <= _NAME_CHARACTERS_MAX and _OBJECT_NAME.fullmatch(name):
            return name
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-") or "lease"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{plain}-{digest}"

    async def read(self, name: str) -> LeaseRecord | None:
        """See `LeaseStore`."""
        status, answer = await self._request("get", name)
        if status == _NOT_FOUND:
            self._objects.pop(name, None)
            return None
        if status != _OK:
            raise self._refused("get", status, answer)
        return self._seen(name, answer)

    async def write(self, record: LeaseRecord, *, if_version: str | None) -> LeaseRecord:
        """See `LeaseStore`. The ttl is rounded up to whole seconds for others than us."""
        name = record.name
        if if_version is None:
            status, answer = await self._request("create", name, _body(record, None))
            if status in (_OK, _CREATED):
                return self._stored(record, answer)
            if status != _CONFLICT:
                raise self._refused("create", status, answer)
            raise WriteConflict(await self.read(name))
        base = self._objects.get(name)
        if base is None or _version(base) != if_version:
            current = await self.read(name)
            base = self._objects.get(name)
            if base is None or _version(base) != if_version:
                raise WriteConflict(current)
        status, answer = await self._request("update", name, _body(record, base))
        if status in (_OK, _CREATED):
            return self._stored(record, answer)
        if status not in (_CONFLICT, _NOT_FOUND):
            raise self._refused("update", status, answer)
        raise WriteConflict(await self.read(name))

    async def changed(self, name: str, version: str) -> None:
        """See `LeaseStore`; told by a watch, or found by polling where the role allows none."""
        revision = version.rpartition("/")[2]
        if self._may_watch and revision.isdecimal() and await self._watch(name, revision):
            return
        await super().changed(name, version)

    async def close(self) -> None:
        """See `LeaseStore`."""
        self._closed = True
        if self._client is not None:
            await self._drop_client()
            # A connection whose request was cancelled says goodbye by TLS yet, and nothing tells
            # when it is done; a loop that ends at once would find it open.
            await asyncio.sleep(GOODBYE_S)

    # -- records

    def _seen(self, name: str, found: dict[str, Any]) -> LeaseRecord:
        self._objects[name] = found
        return _record(name, found)

    def _stored(self, record: LeaseRecord, answer: dict[str, Any]) -> LeaseRecord:
        stored = self._seen(record.name, answer)
        if not stored.token:
            revision = answer.get("metadata", {}).get("resourceVersion")
            raise self._unavailable(
                f"its version {revision!r} is no number, so it makes no token that grows"
            )
        return stored

    # -- requests

    async def _request(
        self, verb: str, name: str, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body. What is refused for its token, or because the server has too much to
        do, was not applied, and is asked once more."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._timeout_s
        for attempt in (1, 2):
            left_s = give_up_at - loop.time()
            status, answer, retry_after_s = await self._send(verb, name, body, left_s)
            if attempt == 2:
                break
            if status == _UNAUTHORIZED:
                self._token_read = None
            elif status == _BUSY and loop.time() + retry_after_s < give_up_at:
                await asyncio.sleep(retry_after_s)
            else:
                break
        return status, answer

    async def _send(
        self, verb: str, name: str, body: dict[str, Any] | None, timeout_s: float
    ) -> tuple[int, dict[str, Any], float]:
        lease_name = self.object_name(name)
        # Without preloading, its methods return the response itself, whatever their types say.
        api: Any = CoordinationV1Api(await self._open_client())
        options = {
            "_preload_content": False,
            "_request_timeout": aiohttp.ClientTimeout(total=max(0.01, timeout_s)),
        }
        self.requests += 1
        try:
            match verb:
                case "get":
                    response = await api.read_namespaced_lease(
                        lease_name, self.namespace, **options
                    )
                case "create":
                    response = await api.create_namespaced_lease(self.namespace, body, **options)
                case _:
                    response = await api.replace_namespaced_lease(
                        lease_name, self.namespace, body, **options
                    )
            async with response:
                raw = await response.content.read(ANSWER_BYTES_MAX)
        except TimeoutError:
            raise self._unavailable(f"{verb}: no answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            await self._drop_client()  # authorities are rotated: they are read again
            raise self._unavailable(f"{verb}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise self._unavailable(f"{verb}: {words}") from error
        return response.status, _json(raw), _seconds(response.headers.get("Retry-After"))

    async def _watch(self, name: str, revision: str) -> bool:
        """True when something may have changed; False when a watch cannot tell."""
        api: Any = CoordinationV1Api(await self._open_client())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S + self._timeout_s):
                try:
                    response = await api.list_namespaced_lease(
                        self.namespace,
                        field_selector=f"metadata.name={self.object_name(name)}",
                        resource_version=revision,
                        timeout_seconds=WATCH_S,
                        watch=True,
                        _preload_content=False,
                        _request_timeout=aiohttp.ClientTimeout(
                            total=None, sock_connect=self._timeout_s
                        ),
                    )
                    async with response:
                        return await self._follow(response)
                except (aiohttp.ClientError, OSError) as error:
                    raise self._unavailable(f"watch: {type(error).__name__}: {error}") from error
        return True

    async def _follow(self, response: aiohttp.ClientResponse) -> bool:
        if response.status == _FORBIDDEN:
            self._may_watch = False
            log.warning(
                "leases are polled, since the role allows no watch",
                extra={"namespace": self.namespace, "interval_s": self.poll_interval_s},
            )
            return False
        if response.status != _OK:
            return False
        said = b""
        async for chunk in response.content.iter_any():
            said += chunk
            line, newline, _ = said.partition(b"\n")
            if newline or len(said) > ANSWER_BYTES_MAX:
                # An ERROR is a version that is too old to watch from.
                return _json(line).get("type") != "ERROR"
        return True

    def _refused(self, verb: str, status: int, answer: Mapping[str, Any]) -> LeaseUnavailableError:
        words = f"{verb}: HTTP {status} {str(answer.get('message', ''))[:300]}".rstrip()
        if status == _FORBIDDEN:
            words += (
                f"; the service account needs a Role with get, create, update and watch on leases "
                f"of coordination.k8s.io in the namespace {self.namespace}"
            )
        elif status == _UNAUTHORIZED:
            words += f"; the token in {self._token_file} is refused: renew it"
        elif status == _NOT_FOUND:
            words += f"; create the namespace {self.namespace}, or name another one"
        return self._unavailable(words)

    def _unavailable(self, why: str) -> LeaseUnavailableError:
        return LeaseUnavailableError(
            f"the lease store kubernetes://{self.namespace} at {self.server} failed: {why}"
        )

    # -- the client

    async def _open_client(self) -> ApiClient:
        if self._closed:
            raise LeaseUnavailableError(f"the lease store {self.identity} was closed here")
        if self._client is None:
            configuration = Configuration(host=self.server)
            configuration.ssl_ca_cert = str(self._ca_file)
            try:
                self._client = ApiClient(configuration)
            except OSError as error:
                raise self._unavailable(f"{self._ca_file} cannot be used: {error}") from error
            self._client.user_agent = "tenure"
            self._token_read = None
        self._read_token(self._client)
        return self._client

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _read_token(self, client: ApiClient) -> None:
        """Before each request: the token, when its file is another one than last time."""
        try:
            found = self._token_file.stat()
            read = (found.st_mtime, found.st_ino)
            if read != self._token_read:
                token = self._token_file.read_text("utf-8").strip()
                client.set_default_header("Authorization", f"Bearer {token}")
                self._token_read = read
        except (OSError, UnicodeError) as error:
            raise self._unavailable(f"{self._token_file} cannot be read: {error}") from error


def _server_of_the_pod() -> str:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    port = os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ValueError(
            "this is no pod of a Kubernetes cluster (KUBERNETES_SERVICE_HOST is not set): give "
            "server, token_file and ca_file"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _body(record: LeaseRecord, base: dict[str, Any] | None) -> dict[str, Any]:
    """The object to write. What others put there (labels, owners, annotations) stays."""
    name = record.name
    base_metadata = {} if base is None else base.get("metadata", {})
    base_spec = {} if base is None else base.get("spec") or {}
    kept = {
        key: value
        for key, value in base_metadata.items()
        if key not in ("managedFields", "creationTimestamp", "selfLink", "generation")
    }
    token = _ACQUIRED if record.token is None else str(record.token)
    annotations = {
        **(kept.get("annotations") or {}),
        _NAME: name,
        _WRITE_ID: record.write_id,
        _TOKEN: token,
        _TTL_S: repr(record.ttl_s),
    }
    now = _micro_time()
    acquires = record.token is None and not record.free
    transitions = base_spec.get("leaseTransitions")
    transitions = transitions if isinstance(transitions, int) and transitions >= 0 else 0
    spec = {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, min(math.ceil(trusted_ttl_s(record)), int(MAX_TTL_S))),
        "renewTime": now,
        "acquireTime": now if acquires else base_spec.get("acquireTime", now),
        # The first one to hold it is no transition.
        "leaseTransitions": transitions + 1 if acquires and base is not None else transitions,
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            **kept,
            "name": KubernetesStore.object_name(name),
            "annotations": annotations,
        },
        "spec": spec,
    }


def _record(name: str, found: Mapping[str, Any]) -> LeaseRecord:
    """What an object says. Others may have written anything: no damage makes it free (I-13)."""
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    annotations = metadata.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    spec = found.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    holder = spec.get("holderIdentity") or ""
    if annotations.get(_NAME, name) != name:
        holder = f"damaged: the object is that of the lease {annotations[_NAME]!r}"
    elif not isinstance(holder, str):
        holder = f"damaged {holder!r}"
    return LeaseRecord(
        name=name,
        holder=holder,
        token=_token(annotations.get(_TOKEN), metadata.get("resourceVersion")),
        ttl_s=_ttl_s(annotations.get(_TTL_S), spec.get("leaseDurationSeconds")),
        write_id=str(annotations.get(_WRITE_ID, "")),
        version=_version(found),
        acquired_at_wall_s=_instant(spec.get("acquireTime")),
    )


def _version(found: Mapping[str, Any]) -> str:
    """Two objects of one name that came after each other have the same version at no time."""
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return f"{metadata.get('uid', '')}/{metadata.get('resourceVersion', '')}"


def _token(noted: object, revision: object) -> int:
    """0, which is no token, where neither makes sense."""
    text = revision if noted in (None, _ACQUIRED) else noted
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    return 0


def _ttl_s(exact: object, whole_s: object) -> float:
    """The exact one only as long as it agrees with the field that others know."""
    if isinstance(whole_s, bool) or not isinstance(whole_s, int) or whole_s <= 0:
        return math.nan
    if isinstance(exact, str):
        with contextlib.suppress(ValueError):
            ttl_s = float(exact)
            if 0 < ttl_s <= MAX_TTL_S and math.ceil(ttl_s) == whole_s:
                return ttl_s
    return float(whole_s)


def _micro_time() -> str:
    """Exactly six digits of a second, or the server refuses it (I-22)."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _instant(text: object) -> float | None:
    if isinstance(text, str):
        with contextlib.suppress(ValueError):
            return datetime.datetime.fromisoformat(text).timestamp()
    return None


def _json(raw: bytes) -> dict[str, Any]:
    """Bodies may be plain text, cut off, or nothing."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    return {"message": raw[:200].decode("utf-8", "replace")}


def _seconds(text: str | None) -> float:
    with contextlib.suppress(ValueError):
        return min(max(0.0, float(text or 1.0)), 60.0)
    return 1.0
