"""The HTTP door of a node: health, state, metrics, leave, down. Off unless `--http` is given.

Decides paths, status codes and who may give orders (loopback, or the bearer of the token when
there is a token file). Does not decide any state: it shows what `ActorSystem` says. Called by
the command line. aiohttp is imported in `start_management` alone, in a thread, while the node
already answers its peers: a node without `--http` never pays for it.

Each answer is JSON except `/metrics`; an error is `{"error": what and why, "do": what to do}`.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import importlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from node.errors import AddressInUseError, SettingsError

if TYPE_CHECKING:
    from aiohttp import web

    from node.system import ActorSystem

logger = logging.getLogger(__name__)

BACKLOG = 64
SHUTDOWN_TIMEOUT_S = 1.0
TOKEN_CHARACTERS_MAX = 4096
BODY_BYTES_MAX = 4096
BODY_TIMEOUT_S = 5.0
DOWN_TIMEOUT_S = 30.0  # as long as a member may take to stop in order, and some more
DOWN_TIMEOUT_MAX_S = 3600.0


class Request(NamedTuple):
    """What a route may know of a request."""

    method: str
    path: str
    remote: str  # the caller's IP address, "" when unknown
    headers: Mapping[str, str]
    body: bytes = b""  # of an order, at most `BODY_BYTES_MAX`


class Answer(NamedTuple):
    """What a route says; `body` is JSON text unless `content_type` says otherwise."""

    status: int
    body: bytes
    content_type: str = "application/json"


def reserve(host: str, port: int) -> socket.socket:
    """A listening socket for `start_management`: callers queue until it serves them.

    Done before the node joins, so that a port in use stops the start. Raises `AddressInUseError`
    or `SettingsError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"http={host}:{port} is in use by another process: "
                "end what listens there, or choose another with --http HOST:PORT"
            ) from error
        raise SettingsError(
            f"http={host}:{port} cannot be bound ({getattr(error, 'strerror', None) or error}): "
            "name an address of this host and a port this user may open"
        ) from error


def read_token(setting: str, path: str) -> str:
    """The token in a file, without the white space around it; headers can carry it.

    Raises `SettingsError`, naming `setting`, when there is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read(TOKEN_CHARACTERS_MAX + 1).strip()
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{setting}={path!r} cannot be read ({what}): name a text file that exists and that "
            "this user may read"
        ) from error
    if not (0 < len(token) <= TOKEN_CHARACTERS_MAX and token.isascii() and token.isprintable()):
        raise SettingsError(
            f"{setting}={path!r} holds no token: write one line of 1 to {TOKEN_CHARACTERS_MAX} "
            "ASCII characters into it"
        )
    return token


class Management:
    """A running HTTP server; `address` is what it listens on."""

    def __init__(self, address: str, runner: web.ServerRunner) -> None:
        self.address = address
        self._runner = runner

    async def close(self) -> None:
        """Stop listening; answers under way get `SHUTDOWN_TIMEOUT_S` to finish."""
        await self._runner.cleanup()


async def start_management(
    system: ActorSystem, listener: socket.socket, *, token_file: str | None = None
) -> Management:
    """Serve `system` on a socket made by `reserve`, which belongs to the server from now on.

    With `token_file` an order needs `Authorization: Bearer <the file's content>`, without it
    only callers on this host may give one.
    """
    for module in ("aiohttp.web", "node.metrics", "prometheus_client"):
        await asyncio.to_thread(importlib.import_module, module)
    from aiohttp import web

    routes = Routes(system, token_file)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await _body_of(request)
        except _BodyError as error:
            answer = error.answer
        else:
            answer = await routes.answer(
                Request(request.method, request.path, request.remote or "", request.headers, body)
            )
        headers = {
            "Content-Type": answer.content_type,
            "Cache-Control": "no-store",
            "Server": "tenure",  # no versions for strangers
        }
        return web.Response(status=answer.status, body=answer.body, headers=headers)

    runner = web.ServerRunner(
        web.Server(handle, access_log=None), shutdown_timeout=SHUTDOWN_TIMEOUT_S
    )
    await runner.setup()
    host, port = listener.getsockname()[:2]
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    address = f"{host}:{port}"
    logger.info("http is served", extra={"address": address})
    return Management(address, runner)


class Routes:
    """What stands behind each path of `ROUTES`; knows nothing of aiohttp."""

    def __init__(self, system: ActorSystem, token_file: str | None) -> None:
        self._system = system
        self._token_file = token_file
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Answer:
        """The route's answer; 404 and 405 for what is not in the table."""
        route = ROUTES.get(request.path)
        if route is None:
            paths = ", ".join(ROUTES)
            return _error(404, f"there is no {request.path} here", f"ask for one of: {paths}")
        method, handler = route
        asked = "GET" if request.method == "HEAD" else request.method
        if asked != method:
            return _error(405, f"{request.path} does not take {request.method}", f"send {method}")
        answer = handler(self, request)
        return answer if isinstance(answer, Answer) else await answer

    def _live(self, request: Request) -> Answer:
        return _json(200, {"live": True})

    def _ready(self, request: Request) -> Answer:
        ready, reason = self._system.ready()
        return _json(200 if ready else 503, {"ready": ready, "reason": reason})

    def _metrics(self, request: Request) -> Answer:
        from node.metrics import CONTENT_TYPE, exposition

        return Answer(200, exposition(self._system), CONTENT_TYPE)

    def _cluster(self, request: Request) -> Answer:
        return _json(200, self._system.cluster.state())

    def _singletons(self, request: Request) -> Answer:
        return _json(200, self._system.cluster.singletons_state())

    def _shards(self, request: Request) -> Answer:
        return _json(200, self._system.cluster.sharding.state())

    def _leases(self, request: Request) -> Answer:
        return _json(200, self._system.leases.state())

    def _leave(self, request: Request) -> Answer:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        logger.info("asked to leave over http", extra={"by": request.remote})
        self._background(self._system.leave())
        return _json(202, {"leaving": True})

    async def _down(self, request: Request) -> Answer:
        """Waits until the member is down: what can go wrong on the way is the caller's to know."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            order = _order(request.body, {"address"})
        except ValueError as error:
            return _error(400, str(error), 'send {"address": "HOST:PORT", "timeout_s": 30}')
        cluster, address = self._system.cluster, order["address"]
        logger.warning(
            "asked to down a member over http", extra={"by": request.remote, "member": address}
        )
        try:
            await cluster.down(address, timeout_s=order["timeout_s"])
        except LookupError as error:
            return _error(404, str(error.args[0]), "name one of those, as /cluster shows it")
        except TimeoutError as error:
            return _error(
                504, str(error), "the order stands for a minute; look at /cluster, and ask again"
            )
        if address == cluster.self_id.address:
            return _json(202, {"address": address, "ending": True})
        return _json(200, {"address": address, "down": True})

    async def _move(self, request: Request) -> Answer:
        """Waits until the instance is there, as `_down` does."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            order = _order(request.body, {"name"}, {"to"})
        except ValueError as error:
            usage = 'send {"name": "TYPE", "to": "HOST:PORT", "timeout_s": 30}; `to` may be missing'
            return _error(400, str(error), usage)
        name, to = order["name"], order.get("to")
        logger.info(
            "asked to move a singleton over http",
            extra={"by": request.remote, "singleton": name, "to": to},
        )
        singleton = self._system.cluster.singleton
        try:
            host = await singleton.move(type_name=name, to=to, timeout_s=order["timeout_s"])
        except LookupError as error:
            return _error(404, str(error.args[0]), "look at /singletons and /cluster")
        except TimeoutError as error:
            return _error(504, str(error), "look at /singletons there; ask again")
        return _json(200, {"name": name, "host": host})

    def _rebalance(self, request: Request) -> Answer:
        """Only asks for it: the moves are seen at `/shards`."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            order = _order(request.body, {"type"})
        except ValueError as error:
            return _error(400, str(error), 'send {"type": "TYPE"}')
        name = order["type"]
        logger.info(
            "asked to rebalance over http", extra={"by": request.remote, "sharded_type": name}
        )
        try:
            explain = self._system.cluster.sharding.rebalance(type_name=name)
        except LookupError as error:
            return _error(404, str(error.args[0]), "look at /shards")
        return _json(202, {"type": name, "asked": True, "explain": explain})

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, request: Request) -> Answer | None:
        """Why the caller may not give orders; None when it may."""
        if self._token_file is not None:
            return self._token_refusal(request.headers.get("Authorization", ""))
        if "Origin" in request.headers:
            return _error(
                403,
                "an order from a web page is refused: any page open on this host could send it",
                "use `python -m node`, or start the node with a token file",
            )
        if is_loopback(request.remote):
            return None
        return _error(
            403,
            f"{request.remote or 'the caller'} is not on this host, and there is no token file",
            "give the order on the node's own host, or start the node with a token file",
        )

    def _token_refusal(self, authorization: str) -> Answer | None:
        assert self._token_file is not None
        try:
            token = read_token("http_token_file", self._token_file)  # each time: it is rotated
        except SettingsError as error:
            logger.warning("no order can be given by token", extra={"error": str(error)})
            token = ""
        given = authorization.removeprefix("Bearer ").strip().encode(errors="surrogateescape")
        if token and hmac.compare_digest(given, token.encode()):
            return None
        return _error(401, "the token is missing or wrong", "send `Authorization: Bearer <token>`")


ROUTES: dict[str, tuple[str, Callable[[Routes, Request], Answer | Awaitable[Answer]]]] = {
    "/health/live": ("GET", Routes._live),
    "/health/ready": ("GET", Routes._ready),
    "/metrics": ("GET", Routes._metrics),
    "/cluster": ("GET", Routes._cluster),
    "/singletons": ("GET", Routes._singletons),
    "/shards": ("GET", Routes._shards),
    "/leases": ("GET", Routes._leases),
    "/cluster/leave": ("POST", Routes._leave),
    "/cluster/down": ("POST", Routes._down),
    "/singletons/move": ("POST", Routes._move),
    "/shards/rebalance": ("POST", Routes._rebalance),
}


class _BodyError(Exception):
    """A body that is not read any further."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


async def _body_of(request: web.BaseRequest) -> bytes:
    """What came with an order; other requests have none."""
    if request.method != "POST":
        return b""
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while len(body) <= BODY_BYTES_MAX:
                piece = await request.content.read(BODY_BYTES_MAX + 1 - len(body))
                if not piece:
                    return body
                body += piece
    except TimeoutError:
        what = f"the body did not come within {BODY_TIMEOUT_S:g} s"
        raise _BodyError(_error(408, what, "send it at once")) from None
    what = f"the body is longer than {BODY_BYTES_MAX} bytes"
    raise _BodyError(_error(413, what, "send the fields of the order alone"))


def _order(body: bytes, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The texts of an order, and the seconds to wait. Raises ValueError in words."""
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    texts = order if isinstance(order, dict) else {}
    for name in (*needed, *(name for name in optional if texts.get(name) is not None)):
        if not isinstance(texts.get(name), str):
            raise ValueError(f"the body has no text under `{name}`")
    unknown = sorted(order.keys() - {*needed, *optional, "timeout_s"})
    if unknown:
        raise ValueError(f"the body has {unknown[0][:80]!r}, which is no field of this order")
    timeout_s = order.get("timeout_s", DOWN_TIMEOUT_S)
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= DOWN_TIMEOUT_MAX_S:
        raise ValueError(
            f"timeout_s is no number of seconds greater than 0 and at most {DOWN_TIMEOUT_MAX_S:g}"
        )
    return {**order, "timeout_s": float(timeout_s)}


def is_loopback(address: str) -> bool:
    """True for 127.0.0.0/8, ::1, and the former as an IPv6 address."""
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")


def _json(status: int, value: object) -> Answer:
    return Answer(status, json.dumps(value, separators=(",", ":")).encode() + b"\n")


def _error(status: int, what: str, do: str) -> Answer:
    return _json(status, {"error": what, "do": do})
