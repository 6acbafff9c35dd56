"""What a Kubernetes API server does with Lease objects, in this process, and whatever goes wrong.

Each behaviour was seen on a real one; `tests/lease/test_kubernetes.py` asks the same of both. For
fast tests, and for answers that a real server gives at its own times only.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import re
import ssl
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

GROUP = "coordination.k8s.io"
NAMESPACE = "tenure-test"
TOKEN = "token-of-the-fake"
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Fault = Callable[[web.Request], web.StreamResponse | None]


class FakeApiServer:
    """Leases of one namespace. `faults` are asked first, each of them once, oldest first: one that
    returns a response answers in the server's place. `lose_answers`: so many requests are carried
    out and the connection is cut instead of an answer."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.revision = 100
        self.faults: list[Fault] = []
        self.lose_answers = 0
        self.tokens = {TOKEN}
        self.requests: list[tuple[str, str]] = []
        self.may_watch = True
        self.oldest_watched = 0
        self.url = ""
        self._changes = asyncio.Condition()
        self._log: list[tuple[int, str, dict[str, Any]]] = []
        self._runner: web.AppRunner | None = None
        self._folder = folder
        self.ca_file = folder / "fake.crt"
        self.token_file = folder / "fake.token"
        self.token_file.write_text(TOKEN)

    @property
    def store_url(self) -> str:
        """For `lease.from_url`."""
        return (
            f"kubernetes://{NAMESPACE}?server={self.url}&token_file={self.token_file}"
            f"&ca_file={self.ca_file}"
        )

    async def start(self) -> FakeApiServer:
        """Listen on an ephemeral port, with a certificate of its own."""
        key = self._folder / "fake.key"
        making = await asyncio.create_subprocess_exec(
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(self.ca_file)),
            stderr=subprocess.DEVNULL,
        )
        assert await making.wait() == 0
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.ca_file, key)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{port}"
        return self

    async def stop(self) -> None:
        """Close."""
        if self._runner is not None:
            await self._runner.cleanup()

    # -- what is served

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self.faults:
            answer = self.faults.pop(0)(request)
            if answer is not None:
                return answer
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response(
                {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
                },
                status=401,
            )  # fmt: skip
        found = re.fullmatch(
            rf"/apis/{re.escape(GROUP)}/v1/namespaces/([^/]+)/leases(?:/([^/]+))?", request.path
        )
        if found is None:
            words = "the server could not find the requested resource"
            return _status(404, "NotFound", words, "")
        namespace, name = found.groups()
        if request.query.get("watch", "").lower() in ("true", "1") and name is None:
            return await self._watch(request)
        body = None
        if request.can_read_body:
            try:
                body = await request.json()
            except ValueError:
                return _status(400, "BadRequest", "the object provided is unrecognized", "")
        answer = await self._answer(request.method, namespace, name, body)
        if self.lose_answers and request.method in ("POST", "PUT"):
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _answer(
        self, method: str, namespace: str, name: str | None, body: Any
    ) -> web.StreamResponse:
        match method, name:
            case "GET", str():
                found = self.objects.get(name)
                return _missing(name) if found is None else web.json_response(found)
            case "GET", None:
                listed = {"kind": "LeaseList", "items": [*self.objects.values()]}
                return web.json_response(
                    {**listed, "metadata": {"resourceVersion": str(self.revision)}}
                )
            case "POST", None:
                return await self._create(namespace, body)
            case "PUT", str():
                return await self._replace(namespace, name, body)
            case "DELETE", str():
                return await self._delete(name)
        return _status(405, "MethodNotAllowed", "the server does not allow this method", "")

    async def _create(self, namespace: str, body: Any) -> web.StreamResponse:
        name = body.get("metadata", {}).get("name", "")
        if namespace != NAMESPACE:
            return _status(404, "NotFound", f'namespaces "{namespace}" not found', namespace)
        if (refused := _invalid(body)) is not None:
            return refused
        if "resourceVersion" in body["metadata"]:
            words = "resourceVersion should not be set on objects to be created"
            return _status(500, "", words, name)
        if name in self.objects:
            words = f'leases.{GROUP} "{name}" already exists'
            return _status(409, "AlreadyExists", words, name)
        return await self._store(name, body, None)

    async def _replace(self, namespace: str, name: str, body: Any) -> web.StreamResponse:
        if (refused := _invalid(body)) is not None:
            return refused
        metadata = body["metadata"]
        if metadata.get("name") != name:
            words = "the name of the object does not match the name on the URL"
            return _status(400, "BadRequest", words, name)
        current = self.objects.get(name)
        changed = (
            f'Operation cannot be fulfilled on leases.{GROUP} "{name}": the object has been '
            "modified; please apply your changes to the latest version and try again"
        )
        if current is None:
            if metadata.get("uid"):
                words = f"Precondition failed: UID in precondition: {metadata['uid']}"
                return _status(409, "Conflict", words, name)
            return await self._store(name, body, None)
        if not metadata.get("resourceVersion"):
            words = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            return _status(422, "Invalid", words, name)
        if metadata.get("uid", current["metadata"]["uid"]) != current["metadata"]["uid"]:
            return _status(409, "Conflict", "Precondition failed: UID in precondition", name)
        if metadata["resourceVersion"] != current["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", changed, name)
        return await self._store(name, body, current)

    async def _store(
        self, name: str, body: Any, current: dict[str, Any] | None
    ) -> web.StreamResponse:
        body = copy.deepcopy(body)
        old = {} if current is None else current["metadata"]
        kept = {
            "namespace": NAMESPACE,
            "uid": old.get("uid", str(uuid.uuid4())),
            "creationTimestamp": old.get(
                "creationTimestamp",
                datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            ),
        }
        body["metadata"] = {**body["metadata"], **kept}
        if current is not None:
            body["metadata"]["resourceVersion"] = old["resourceVersion"]
            if body == current:
                return web.json_response(current)
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        self.objects[name] = body
        await self._tell("ADDED" if current is None else "MODIFIED", body)
        return web.json_response(body, status=201 if current is None else 200)

    async def _delete(self, name: str) -> web.StreamResponse:
        if name not in self.objects:
            return _missing(name)
        await self.delete(name)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def delete(self, name: str) -> None:
        """As somebody with kubectl would."""
        gone = self.objects.pop(name)
        self.revision += 1
        gone["metadata"]["resourceVersion"] = str(self.revision)
        await self._tell("DELETED", gone)

    async def _tell(self, kind: str, found: dict[str, Any]) -> None:
        self._log.append((self.revision, kind, copy.deepcopy(found)))
        async with self._changes:
            self._changes.notify_all()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if not self.may_watch:
            return _status(403, "Forbidden", "leases is forbidden: cannot watch", "")
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        since = int(request.query.get("resourceVersion", "0"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self.oldest_watched:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(_line("ERROR", gone))
            return response
        seconds = float(request.query.get("timeoutSeconds", "60"))
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for revision, kind, found in self._log:
                        if revision > since and found["metadata"]["name"] == name:
                            since = revision
                            await response.write(_line(kind, found))
                    async with self._changes:
                        await self._changes.wait()
        except TimeoutError:
            pass
        return response


def _line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _missing(name: str) -> web.Response:
    return _status(404, "NotFound", f'leases.{GROUP} "{name}" not found', name)


def _status(code: int, reason: str, message: str, name: str) -> web.Response:
    details = {"name": name, "group": GROUP, "kind": "leases"} if name else {}
    return web.json_response(
        {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        },
        status=code,
    )  # fmt: skip


def _invalid(body: Any) -> web.Response | None:
    """What decoding and validation refuse."""
    metadata, spec = body.get("metadata", {}), body.get("spec", {})
    name = metadata.get("name", "")
    for field in ("renewTime", "acquireTime"):
        if field in spec and not MICRO_TIME.fullmatch(str(spec[field])):
            return _status(400, "BadRequest", f"cannot parse {spec[field]!r} as a MicroTime", "")
    seconds = spec.get("leaseDurationSeconds", 1)
    if not isinstance(seconds, int):
        return _status(400, "BadRequest", "leaseDurationSeconds: cannot unmarshal number", "")
    if not NAME.fullmatch(name) or len(name) > 253:
        return _status(422, "Invalid", f'Lease.{GROUP} "{name}" is invalid: metadata.name', name)
    if seconds <= 0:
        words = (
            f'Lease.{GROUP} "{name}" is invalid: spec.leaseDurationSeconds: must be greater than 0'
        )
        return _status(422, "Invalid", words, name)
    return None
