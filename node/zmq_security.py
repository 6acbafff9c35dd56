"""The keys of one transport at work: CURVE options, doorkeepers, what is logged of refusals.

Decides when `trusted` is read again and when names in it are looked up again. Does not decide who
may speak for whom: that is `node.key_book`. Made by `node.zmq_transport` when there are keys, and
only then imported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

import zmq

from gossip.membership import NodeId
from node.addresses import resolve
from node.environment import Inbox, Lane
from node.errors import SettingsError
from node.hello import HelloRefusal
from node.key_book import REVOKED_KEY, KeyBook
from node.keys import KeyDirectory
from node.zmq_auth import Doorkeeper

log = logging.getLogger(__name__)

REREAD_S = 0.5  # a changed file counts when it was the same twice: after 0.5 to 1 s
RESOLVE_S = 5.0
LOGGED_MAX = 256  # subjects of refusals that are remembered as logged


class Security:
    """Everything a transport does because it has keys. All methods belong to the loop's thread.

    `nodes_max` bounds the nodes whose keys are remembered.
    """

    def __init__(
        self, keys: KeyDirectory, loop: asyncio.AbstractEventLoop, *, nodes_max: int
    ) -> None:
        self._keys = keys
        self._book = KeyBook(keys.trusted, nodes_max=nodes_max)
        self._loop = loop
        self._doorkeepers: dict[Lane, Doorkeeper] = {}
        self._inbox: Inbox | None = None
        self._changed: Callable[[], None] = _nobody
        self._logged: OrderedDict[object, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._resolve_at = 0.0
        self._closed = False

    # -- the life of the transport ------------------------------------------------------------

    async def resolve_names(self) -> bool:
        """Look up the host names in `trusted`; True when whom a key is held to has changed."""
        names = self._book.host_names()
        numbers = dict(zip(names, await asyncio.gather(*map(resolve, names)), strict=True))
        self._resolve_at = time.monotonic() + RESOLVE_S
        return self._book.resolved(numbers)

    def check_own_address(self, host: str, port: int) -> None:
        """Raises `SettingsError` when `trusted` holds our own key to addresses that are not ours:
        every node with the same list would refuse us."""
        refusal = self._book.own_fault(NodeId(host, port, 0), self._keys.pair.public)
        if refusal is not None:
            raise SettingsError(f"{self._keys.trusted_path}: {refusal}")

    def guard(self, lane: Lane, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Answer the handshakes of a lane from now on; before its listener binds."""

        def is_trusted(key: bytes, host: str) -> bool:
            return self._is_trusted(lane, key, host)

        self._doorkeepers[lane] = Doorkeeper(context, self._loop, is_trusted)

    def open(self, inbox: Inbox, changed: Callable[[], None]) -> None:
        """Begin to watch `trusted`; `changed` is called whenever who is trusted has changed."""
        self._inbox = inbox
        self._changed = changed
        self._timer = self._loop.call_later(REREAD_S, self._look)

    def close(self, lane: Lane) -> None:
        """Answer no handshake of this lane any more, and watch nothing. Idempotent; the listener
        of the lane is closed already."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._resolving is not None:
            self._resolving.cancel()
        if lane in self._doorkeepers:
            self._doorkeepers.pop(lane).close()

    def _look(self) -> None:
        self._timer = self._loop.call_later(REREAD_S, self._look)
        reread = self._keys.reread()
        if reread:
            self._book.replace(self._keys.trusted)
            self._logged.clear()
            self._changed()
        due = reread or time.monotonic() >= self._resolve_at
        if due and self._resolving is None and self._book.host_names():
            self._resolving = self._loop.create_task(self._resolve_again())

    async def _resolve_again(self) -> None:
        try:
            changed = await self.resolve_names()
        finally:
            self._resolving = None
        if changed and not self._closed:
            self._changed()

    # -- options ------------------------------------------------------------------------------

    def listener_options(self) -> dict[int, int | bytes]:
        """What makes a bound socket take CURVE connections only."""
        pair = self._keys.pair
        return {
            zmq.CURVE_SERVER: 1,
            zmq.CURVE_PUBLICKEY: pair.public,
            zmq.CURVE_SECRETKEY: pair.secret,
        }

    def link_options(self) -> dict[int, int | bytes]:
        """What a dialling socket proves itself with."""
        pair = self._keys.pair
        return {zmq.CURVE_PUBLICKEY: pair.public, zmq.CURVE_SECRETKEY: pair.secret}

    # -- who is who ---------------------------------------------------------------------------

    def _is_trusted(self, lane: Lane, key: bytes, host: str) -> bool:
        if self._book.trusts(key):
            return True
        if self._inbox is not None:
            self._inbox.frame_refused(
                lane, "unknown-key", f"key {key.hex()} from {host} is not in trusted"
            )
        if self._is_new(key):
            log.warning(
                "a connection is refused: its key is not trusted. If it is one of ours, add the "
                "key to the trusted file",
                extra={"key": key.hex(), "host": host, "path": str(self._keys.trusted_path)},
            )
        return False

    def _is_new(self, subject: object) -> bool:
        """True when nothing was logged of it since `trusted` was read."""
        if subject in self._logged:
            return False
        self._logged[subject] = None
        if len(self._logged) > LOGGED_MAX:
            self._logged.popitem(last=False)
        return True

    def introduced(self, sender: NodeId, key: bytes) -> HelloRefusal | None:
        """Whether a connection with this key may be `sender`'s; see `KeyBook.introduced`.

        A refusal is logged once per key and address.
        """
        refusal = self._book.introduced(sender, key)
        if refusal is not None and self._is_new((key, sender.address)):
            log.warning(
                "a connection is refused: its key was removed from the trusted file"
                if refusal.reason == REVOKED_KEY
                else "a connection is refused: its key is not that of the node it says it is",
                extra={"reason": refusal.reason, "detail": refusal.detail},
            )
        return refusal

    def learn(self, peer: NodeId, key: bytes) -> bool:
        """A member record says that `peer` has this key; False when that is refused."""
        refusal = self._book.recorded(peer, key)
        if refusal is not None and self._inbox is not None:
            self._inbox.frame_refused(Lane.CONTROL, refusal.reason, refusal.detail)
        return refusal is None

    def forget(self, peer: NodeId) -> None:
        """It is a member no more."""
        self._book.forget(peer)

    def key_of(self, peer: NodeId) -> bytes:
        """The key its connections have proven; empty when there was none."""
        return self._book.key_of(peer)

    def server_keys(self, peer: NodeId) -> tuple[bytes, ...]:
        """Keys of which the far end must prove one; `()`: it must not be dialled."""
        return self._book.keys_to_dial(peer)

    def why_no_key(self, peer: NodeId) -> str:
        """In words: why `server_keys` has none."""
        return self._book.why_no_key(peer)


def _nobody() -> None:
    """Until `open`."""
