"""What stores in etcd share: requests to its JSON gateway, over HTTP, at one endpoint or another.

Decides which endpoint is asked, when another one is, and what is an answer; not what is asked for,
nor which error "unknown" is: that is given. It needs neither gRPC nor protobuf. Used by
`lease.etcd` and `node.remembered_etcd`, on one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import aiohttp

REQUEST_TIMEOUT_S = 2.0
WATCH_S = 60.0
"""A watch is begun anew after so long: one whose server vanished without a word would never end."""
ANSWER_BYTES_MAX = 4_000_000
NOT_FOUND = 5
_UNAUTHENTICATED, _PERMISSION_DENIED = 16, 7


class RefusedError(Exception):
    """etcd answered that it will not. `code` is that of gRPC."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class _EndpointError(Exception):
    """This endpoint did not answer, or cannot; another one may."""


class EtcdClient:
    """Requests to the etcd behind `endpoints` (`http://host:port` or `https://host:port`).

    `unavailable` makes the error of a request that nobody answered, from why; `closed` makes that
    of one after `close`. `user` and `password` go together. `ssl_context` is for https; None takes
    the system's authorities. `request_timeout_s` bounds one request over all endpoints; `requests`
    counts them, but for watches. Raises ValueError when the arguments cannot work.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        unavailable: Callable[[str], Exception],
        closed: Callable[[], Exception],
        user: str | None = None,
        password: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        if not endpoints:
            raise ValueError("an etcd store needs an endpoint: give at least one http://host:port")
        if (user is None) is not (password is None):
            raise ValueError("user and password of etcd go together: give both or neither (I-15)")
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self.user = user
        self.password = password
        self.auth_token: str | None = None
        self.requests = 0
        self._unavailable = unavailable
        self._closed_error = closed
        self._ssl_context = ssl_context
        self._timeout_s = request_timeout_s
        self._current = 0
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def hosts(self) -> str:
        """The endpoints, in whatever order they were given."""
        return ",".join(sorted(endpoint.partition("://")[2] for endpoint in self.endpoints))

    async def call(
        self, path: str, body: Mapping[str, Any], *, refusals: Collection[int] = (NOT_FOUND,)
    ) -> dict[str, Any]:
        """Ask one endpoint after the other. A write may be asked twice, so it must be one that
        does no harm then. Raises `RefusedError` for these `refusals`, and what `unavailable` makes
        for all others."""
        failures = []
        for _ in self.endpoints:
            endpoint = self.endpoints[self._current]
            try:
                return await self._ask(endpoint, path, body, refusals)
            except _EndpointError as error:
                failures.append(f"{endpoint}: {error}")
                self._move_on(endpoint)
            except asyncio.CancelledError:
                # Whoever asked has waited long enough for this one.
                self._move_on(endpoint)
                raise
        raise self._unavailable("; ".join(failures))

    async def watch(self, key: str, start_revision: int) -> None:
        """Return when `key` was written at that revision or later; perhaps earlier."""
        request = {"create_request": {"key": text(key), "start_revision": str(start_revision)}}
        endpoint = self.endpoints[self._current]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s)
        headers = await self._headers(endpoint)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S):
                try:
                    async with self._open_session().post(
                        f"{endpoint}/v3/watch",
                        json=request,
                        timeout=timeout,
                        headers=headers,
                        ssl=self._ssl_context or True,
                    ) as response:
                        await _until_told(response)
                except (aiohttp.ClientError, OSError) as error:
                    self._move_on(endpoint)
                    raise self._unavailable(f"its watch failed: {_words(error)}") from error

    async def close(self) -> None:
        """Close the connections; requests raise from now on."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise self._closed_error()
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    async def _ask(
        self, endpoint: str, path: str, body: Mapping[str, Any], refusals: Collection[int]
    ) -> dict[str, Any]:
        for attempt in (1, 2):
            headers = await self._headers(endpoint)
            try:
                return await self._post(endpoint, path, body, headers)
            except RefusedError as refusal:
                if refusal.code in refusals:
                    raise
                if refusal.code != _UNAUTHENTICATED or attempt == 2 or self.user is None:
                    raise self._unavailable(_mend(refusal)) from refusal
                self.auth_token = None  # it has expired, or etcd was restarted
        raise AssertionError("two attempts end by an answer or an error")

    async def _headers(self, endpoint: str) -> dict[str, str]:
        if self.user is None:
            return {}
        if self.auth_token is None:
            login = {"name": self.user, "password": self.password}
            try:
                answer = await self._post(endpoint, "auth/authenticate", login, {})
            except RefusedError as refusal:
                raise self._unavailable(f"user {self.user!r} is refused: {refusal}") from refusal
            self.auth_token = str(answer.get("token", ""))
        return {"Authorization": self.auth_token}

    async def _post(
        self, endpoint: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        timeout_s = self._timeout_s / len(self.endpoints)
        self.requests += 1
        try:
            async with self._open_session().post(
                f"{endpoint}/v3/{path}",
                json=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                ssl=self._ssl_context or True,
            ) as response:
                status = response.status
                raw = await _whole(response)
        except TimeoutError:
            raise _EndpointError(f"no answer within {timeout_s:.2g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _EndpointError(_words(error)) from error
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise _EndpointError(f"HTTP {status} with {raw[:80]!r}, which is no answer of etcd's")
        if status == 200:
            return answer
        code, message = answer.get("code"), str(answer.get("message") or answer.get("error"))
        if status >= 500 or status == 429 or not isinstance(code, int):
            raise _EndpointError(f"HTTP {status}: {message[:200]}")
        raise RefusedError(code, message[:200])

    def _move_on(self, endpoint: str) -> None:
        """Ask the next endpoint first, from now on."""
        if self.endpoints[self._current] == endpoint:
            self._current = (self._current + 1) % len(self.endpoints)


def text(words: str) -> str:
    """As the gateway wants bytes."""
    return encoded(words.encode("utf-8", "surrogatepass"))


def encoded(raw: bytes) -> str:
    """As the gateway wants bytes."""
    return base64.b64encode(raw).decode("ascii")


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body to its end: one `read` gives only what has come by then."""
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > ANSWER_BYTES_MAX:
            raise _EndpointError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(raw)


async def _until_told(response: aiohttp.ClientResponse) -> None:
    """Until the watch tells of an event, is refused, or the server ends it."""
    said = b""
    async for chunk in response.content.iter_any():
        said += chunk
        if any(word in said for word in (b'"events"', b'"canceled"', b'"error"')):
            return
        if len(said) > ANSWER_BYTES_MAX:
            return


def _mend(refusal: RefusedError) -> str:
    if refusal.code == _PERMISSION_DENIED:
        return f"{refusal}: give the user read and write permission on its prefix"
    if "user name is empty" in str(refusal):
        return f"{refusal}: it wants a user; name one, as in etcd://user:password@host:port"
    return str(refusal)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
