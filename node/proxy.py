"""Messages to a singleton: to the instance here, to the host elsewhere, or held until there is one.

Decides, per message, which of the three; and when messages of this node may go to a new host
without overtaking those that are on their way over the former one. Does not decide who hosts:
`singleton.machine` does, and its `RouteSingleton` arrives here through `set_route`. Plain code, no
machine: every message to `/singleton/<type>` on this node, from here or from another node, passes
`SingletonProxies.deliver` (the runtime's path handler).

A message is never dropped because this node's view says "not me": it is held, or goes on to the
host that this node knows. One that could not be sent (the link to the host is gone or full) is held
too, and tried again each `RETRY_S` and with each new route: a dead host is noticed a little later
than its link. A message makes at most `HOPS_MAX` hops, then it is held where it is for so long, and
goes one hop further: views that differ cannot make it circle, and hold it up no longer than they
differ. What an instance here did not handle before
it had to stop comes back, and is held before all that came later.

Order. Between one sender and the singleton it holds also over a planned move and a lost lease: this
node sends a `DrainMark` after its last message to the former host, which passes it on behind that
message like any other; whoever hosts answers it. Until then new messages of this node wait, at most
`DRAIN_TIMEOUT_S` once there is a host. After a crash there is nobody to pass anything on, and order
is not promised.

Budget: with a host, one comparison and one dictionary look-up more than a plain ref; no object is
made. `bench.messaging` holds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from gossip.membership import NodeId
from node.ask import LocalAsk, RemoteAsk
from node.errors import DeadActorError
from node.events import Why
from node.mailbox import Delivery
from node.messages import Ask, message
from node.ref import ActorRef
from node.schema import answer_schema
from singleton.effects import RouteSingleton

if TYPE_CHECKING:
    from node.runtime import Runtime

PREFIX = "/singleton/"
HOPS_MAX = 3  # from a proxy to whom it takes for the host, and twice further
DRAIN_TIMEOUT_S = 1.0
RETRY_S = 0.5

_log = logging.getLogger(__name__)


@message("tenure.singleton.drain-mark")
class DrainMark(Ask[bool]):
    """Follows the last message over a former host; answered where the instance runs."""


class SingletonProxies:
    """All proxies of a node, one per type; takes over the paths below `/singleton/`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._proxies: dict[str, SingletonProxy] = {}
        runtime.path_handlers[PREFIX] = self.deliver
        runtime.return_handlers[PREFIX] = self.take_back
        runtime.own_messages.add(DrainMark)

    def get(self, type_name: str, *, buffer_size: int | None = None) -> SingletonProxy:
        """The proxy of a type, made at the first call; a later `buffer_size` is adopted."""
        proxy = self._proxies.get(type_name)
        if proxy is None:
            proxy = self._proxies[type_name] = SingletonProxy(self._runtime, type_name)
        if buffer_size is not None:
            proxy.buffer_size = buffer_size
        return proxy

    def find(self, type_name: str) -> SingletonProxy | None:
        """The proxy of a type, if there is one here."""
        return self._proxies.get(type_name)

    def route(self, effect: RouteSingleton) -> None:
        """Perform `RouteSingleton`; ignored for a type that has no proxy here."""
        proxy = self._proxies.get(effect.type_name)
        if proxy is not None:
            proxy.set_route(effect.host, former_in_reach=effect.former_in_reach)

    def deliver(self, node: NodeId | None, delivery: Delivery) -> None:
        """A message for `/singleton/<type>`; `node` is where it came from, None for here."""
        proxy = self._proxies.get(delivery.path[len(PREFIX) :])
        if proxy is None:
            self._runtime.deliver_here(delivery)
        else:
            proxy.deliver(node, delivery)

    @property
    def forwarded_count(self) -> int:
        """Messages from elsewhere that went on to another host, so far."""
        return sum(proxy.forwarded_count for proxy in self._proxies.values())

    def take_back(self, node: NodeId | None, delivery: Delivery) -> None:
        """A message that could not be sent to `node`."""
        proxy = self._proxies.get(delivery.path[len(PREFIX) :])
        if proxy is None:
            self._runtime.dead_letter(delivery, delivery.path[1:], Why.NOT_SENT)
        else:
            proxy.take_back(node, delivery)

    def hand_back(self, type_name: str, deliveries: list[Delivery]) -> None:
        """What an instance here did not handle before it had to stop."""
        proxy = self._proxies.get(type_name)
        for delivery in deliveries if proxy is None else ():
            self._runtime.dead_letter(delivery, delivery.path[1:], Why.STOPPED)
        if proxy is not None:
            proxy.hand_back(deliveries)

    def fail_held(self, why: str) -> None:
        """The node ends, and no host is expected: asks of this node that wait for one fail now,
        and so do later ones, with `DeadActorError` saying `why`.

        Told messages, and asks of other nodes, are still held: should there be a host after all,
        they go there. To be called once the singletons of this node have stopped.
        """
        for proxy in self._proxies.values():
            proxy.fail_held(why)

    def close(self) -> None:
        """The node ends: whatever is still held becomes dead letters."""
        for proxy in self._proxies.values():
            proxy.close()


class SingletonProxy:
    """The way to one singleton from this node. `ref` is what users hold.

    `buffer_size` bounds what is held; beyond it the newest message is a dead letter, with one
    warning until the buffer has been emptied. `held_count` and `dropped_count` tell of both.
    """

    __slots__ = (
        "_drain",
        "_drain_timer",
        "_fails",
        "_held",
        "_host",
        "_is_here",
        "_is_warned",
        "_path",
        "_rest",
        "_retry",
        "_runtime",
        "_was_used",
        "buffer_size",
        "dropped_count",
        "forwarded_count",
        "ref",
        "type_name",
    )

    def __init__(self, runtime: Runtime, type_name: str, buffer_size: int = 1000) -> None:
        self.type_name = type_name
        self.buffer_size = buffer_size
        self.dropped_count = 0
        self.forwarded_count = 0
        self._runtime = runtime
        self._path = PREFIX + type_name
        self.ref: ActorRef[Any] = ActorRef(runtime, None, self._path, 0)
        self._host: NodeId | None = None
        self._is_here = False
        self._was_used = False  # something of this node went to the present host
        self._held: deque[tuple[NodeId | None, Delivery]] = deque()
        self._is_warned = False
        self._fails = ""  # why an ask of this node without a host fails instead of being held
        self._drain: LocalAsk | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None  # set: the host cannot be reached now
        self._rest: asyncio.TimerHandle | None = None  # set: some have made all their hops

    @property
    def host(self) -> NodeId | None:
        """Where messages go now; None: they are held."""
        return self._host

    @property
    def held_count(self) -> int:
        """Messages that wait here."""
        return len(self._held)

    @property
    def why_held(self) -> str:
        """In words, what messages of this node wait for although there is a host elsewhere; empty
        where nothing is held, or for want of a host, which the manager explains."""
        host = self._host
        if host is None:
            return ""
        if self._drain is not None:
            return f"{host.address} hosts it, and what went to the former host is not handled yet"
        if self._is_here:
            return ""
        return f"{host.address} hosts it, and cannot be reached now"

    def deliver(self, node: NodeId | None, delivery: Delivery) -> None:
        """Take one message; `node` is where it came from, None for here. Never raises."""
        host = self._host
        if host is None or (self._drain is not None and node is None):
            self._hold(node, delivery)
        elif self._is_here:
            self._deliver_here(node, delivery)
        elif self._retry is not None:
            self._hold(node, delivery)
        elif delivery.hops >= HOPS_MAX:
            if self._rest is None:
                self._rest = self._runtime.loop.call_later(RETRY_S, self._rested)
            self._hold(node, delivery)
        else:
            if node is None:
                self._was_used = True
            else:
                self.forwarded_count += 1
            self._runtime.forward(delivery, host)

    def take_back(self, node: NodeId | None, delivery: Delivery) -> None:
        """Hold a message that could not be sent to `node`, or try the host of now."""
        if type(delivery.message) is DrainMark:
            if delivery.asker is not None:
                delivery.asker.fail(DeadActorError(f"{self._path}: the former host is gone"))
            return
        origin = node if delivery.hops else None
        if node == self._host:
            self._retry_later()
            self._hold(origin, delivery)
        else:
            self.deliver(origin, delivery)

    def hand_back(self, deliveries: list[Delivery]) -> None:
        """Hold what an instance here did not handle, before all that came later."""
        later, self._held = self._held, deque()
        for delivery in deliveries:
            asker = delivery.asker
            self._hold(asker.node if isinstance(asker, RemoteAsk) else None, delivery)
        for node, delivery in later:
            self._hold(node, delivery)
        self._runtime.count("singleton: handed back", len(deliveries))
        self._flush()

    def set_route(self, host: NodeId | None, *, former_in_reach: bool) -> None:
        """Messages go to `host` from now on, those held first and in their order."""
        former = self._host
        if host == former:
            return
        self._host = host
        self._end_retry()
        was_here, self._is_here = self._is_here, host == self._runtime.here
        was_used, self._was_used = self._was_used, False
        # What went to an instance of this process is handled before it stops, so before any other
        # begins. While one mark is on its way nothing was sent that a second could follow.
        if was_used and former_in_reach and former and not was_here and self._drain is None:
            self._begin_drain(former)
        elif self._drain is not None and host is not None:
            self._time_drain(self._drain)  # what the mark follows can leave only now
        self._flush()

    def fail_held(self, why: str) -> None:
        """Fail the asks of this node that wait for a host, now and from now on."""
        self._fails = why
        held, self._held = self._held, deque()
        for node, delivery in held:
            self._hold(node, delivery)

    def close(self) -> None:
        """Hold nothing any more: what is held becomes dead letters."""
        self._end_drain()
        self._end_retry()
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        held, self._held = self._held, deque()
        for _, delivery in held:
            self._runtime.dead_letter(delivery, self._recipient, Why.SHUTDOWN)

    # inside

    @property
    def _recipient(self) -> str:
        return self._path[1:]  # the singleton, wherever it is: not an address of this node

    def _deliver_here(self, node: NodeId | None, delivery: Delivery) -> None:
        if type(delivery.message) is DrainMark:
            if delivery.asker is not None:
                delivery.asker.answer(True)
            return
        cell = self._runtime.cell_at(self._path, 0)
        if cell is None or cell.closed:  # it ended by itself; the manager is about to hear of it
            self._hold(node, delivery)
        else:
            cell.put(delivery)

    def _hold(self, node: NodeId | None, delivery: Delivery) -> None:
        asker = delivery.asker
        is_hostless = self._host is None or self._is_here
        if self._fails and is_hostless and node is None and asker is not None:
            asker.fail(DeadActorError(f"{self._recipient}: {self._fails}"))
            return
        if len(self._held) < self.buffer_size:
            self._held.append((node, delivery))
            return
        self.dropped_count += 1
        self._runtime.dead_letter(delivery, self._recipient, Why.BUFFER_FULL)
        if not self._is_warned:
            self._is_warned = True
            _log.warning(
                "the buffer of a singleton proxy is full: new messages become dead letters until "
                "there is a host",
                extra={"singleton": self.type_name, "buffer_size": self.buffer_size},
            )

    def _flush(self) -> None:
        """Try everything held once more, in order; what cannot go yet is held again."""
        if self._host is None or not self._held:
            return
        held, self._held = self._held, deque()
        for node, delivery in held:
            if delivery.hops >= HOPS_MAX:
                delivery.hops = HOPS_MAX - 1  # this route is news, or time has passed: one more
            self.deliver(node, delivery)
        if not self._held:
            self._is_warned = False

    def _begin_drain(self, former: NodeId) -> None:
        loop = self._runtime.loop
        drain = LocalAsk(loop.create_future(), answer_schema(DrainMark))
        self._drain = drain
        if self._host is not None:
            self._time_drain(drain)
        drain.future.add_done_callback(lambda _: self._drained(drain))
        self._runtime.forward(Delivery(DrainMark(), None, drain, self._path), former)

    def _time_drain(self, drain: LocalAsk) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        loop = self._runtime.loop
        self._drain_timer = loop.call_later(DRAIN_TIMEOUT_S, self._drained, drain)

    def _drained(self, drain: LocalAsk) -> None:
        """The mark has arrived, or cannot, or took too long: new messages wait no longer."""
        if drain is self._drain:
            self._end_drain()
            self._flush()

    def _end_drain(self) -> None:
        if self._drain is not None:
            if self._drain_timer is not None:
                self._drain_timer.cancel()
            self._runtime.remote.forget(self._drain)
            self._drain = self._drain_timer = None

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._runtime.loop.call_later(RETRY_S, self._try_again)

    def _rested(self) -> None:
        self._rest = None
        self._flush()

    def _try_again(self) -> None:
        self._end_retry()
        self._flush()

    def _end_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
