"""The only shell: feeds the core with events, performs its effects, arms one timer.

Decides nothing a machine decides. It measures one thing itself: that this process did not run
although it was due (a pause), at the first instruction of every callback that reaches it. After a
pause it hands in what waited in the sockets before it lets a timer act: whoever answered in time
must not be accused for it. Built by `node.system`, in production and in the testkit alike.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from downing.events import AskArbiter, ReleaseArbiter, SetContact, WatchArbiter
from gossip.effects import Paused, Publish, Send
from gossip.events import (
    CloseLinks,
    Dial,
    Dialled,
    DialOutcome,
    Exit,
    KeepLinks,
    LinkLost,
    PeerFrame,
    ProcessEnded,
    Remember,
    TakeIdentity,
    UnwatchProcess,
    WatchProcess,
    WatchRefused,
)
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from gossip.messages import JoinRequest
from node import wire
from node.core import NodeCore
from node.environment import Environment, Lane, LinkMemory, Transport
from sharding.effects import CloseShards, DrainRoute, FailAsks, OpenShards, RouteShards
from singleton.effects import (
    DropLease,
    RouteSingleton,
    StartInstance,
    StopInstance,
    WantLease,
    WatchLease,
)

logger = logging.getLogger(__name__)

DIALS_MAX = 256
# After a pause no timer acts for so long; libzmq's threads have slept as well, and need some
# milliseconds to hand over what the kernel holds.
DRAIN_S = 0.05
BUG_EXIT = 70


class DataPlane(Protocol):
    """What the actor runtime does for the daemon."""

    def deliver_frame(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """Envelopes from a fellow member."""

    def skip_frame(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """Only remember what a frame defines for later ones of its connection."""

    def deliver_piece(
        self, sender: NodeId, header: bytes | memoryview, data: memoryview, memory: LinkMemory
    ) -> None:
        """A piece of a large message from a fellow member."""

    def skip_piece(
        self, sender: NodeId, header: bytes | memoryview, data: memoryview, memory: LinkMemory
    ) -> None:
        """Only remember what a piece defines."""

    def data_dropped(self, peer: NodeId, item: object) -> None:
        """Something of ours that was not sent."""

    def begin_turn(self) -> None:
        """`pump` follows within this callback."""

    def pump(self) -> None:
        """Run the actors that have something to do."""


class Host(Protocol):
    """Who performs the effects of singleton managers."""

    def start_instance(self, effect: StartInstance) -> None:
        """Spawn the actor; answered by an event."""

    def stop_instance(self, effect: StopInstance) -> None:
        """Stop it; answered by an event."""

    def route(self, effect: RouteSingleton) -> None:
        """Tell the proxy."""

    def want_lease(self, effect: WantLease) -> None:
        """Acquire it; answered by events, as the next one."""

    def drop_lease(self, effect: DropLease) -> None:
        """Give it up."""

    def watch_lease(self, effect: WatchLease) -> None:
        """Look who holds it."""


class Sharded(Protocol):
    """Who performs the effects of regions."""

    def open_shards(self, effect: OpenShards) -> None:
        """Take messages for them here."""

    def close_shards(self, effect: CloseShards) -> None:
        """Stop their entities; answered by an event."""

    def route(self, effect: RouteShards) -> None:
        """Where messages go."""

    def drain(self, effect: DrainRoute) -> None:
        """Wait for what is on its way; answered by an event."""

    def fail_asks(self, effect: FailAsks) -> None:
        """Let asks that wait for a home fail, or wait again."""


class Arbiter(Protocol):
    """Who asks the lease that decides which side lives; each question is answered by an event."""

    def ask(self, effect: AskArbiter) -> None:
        """Acquire it."""

    def watch(self, effect: WatchArbiter) -> None:
        """Look who holds it, before it is asked."""

    def release(self, effect: ReleaseArbiter) -> None:
        """Give it back."""


class Daemon:
    """Drives one node's core.

    set_contact: told until when whatever is unique here may act.
    publish: given every fact the machines publish. exited: called once, with the first `Exit`.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        transport: Transport,
        core: NodeCore,
        runtime: DataPlane,
        host: Host,
        regions: Sharded,
        arbiter: Arbiter,
        set_contact: Callable[[float], None],
        pause_s: float,
        dial_timeout_s: float,
        publish: Callable[[object], None],
        exited: Callable[[Exit], None],
        renamed: Callable[[NodeId], None],
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._loop = loop
        self._clock = environment.clock
        self._environment = environment
        self._transport = transport
        self._core = core
        self._runtime = runtime
        # Of the Inbox: what the frames of one turn wake runs at its end. No call in between.
        self.turn_begin: Callable[[], None] = runtime.begin_turn
        self.turn_end: Callable[[], None] = runtime.pump
        self._pause_s = pause_s
        self._dial_timeout_s = dial_timeout_s
        self._publish_fact = publish
        self._exited = exited
        self._renamed = renamed
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._armed_for = math.inf
        self._no_tick_before = -math.inf
        self._closed = False
        self._dials: set[asyncio.Task[None]] = set()
        self._logged: set[str] = set()
        self._encoded: tuple[object, bytes] = (None, b"")
        wire.compile_common()
        self._cluster_id = 0
        self._data_head = wire.encode_data_head(0, wire.DATA_VERSION_MAX)
        self._piece_head = wire.encode_data_head(0, wire.DATA_VERSION_MAX, is_piece=True)
        self._seen_members: tuple[Member, ...] = ()
        self._seen_gone: dict[NodeId, Cause] | None = None
        self._members: dict[NodeId, Member] = {}
        self._gone: frozenset[NodeId] = frozenset()
        self._perform_one: dict[type, Callable[..., None]] = {
            Send: self._send,
            Publish: self._publish,
            Dial: self._dial,
            WatchProcess: self._watch,
            UnwatchProcess: lambda effect: environment.processes.unwatch(effect.peer),
            CloseLinks: lambda effect: transport.close_links(effect.peer),
            KeepLinks: lambda effect: transport.keep_links(effect.peers),
            Remember: lambda effect: environment.state.save(effect.addresses),
            TakeIdentity: self._take_identity,
            Exit: lambda effect: self._exited(effect),
            SetContact: lambda effect: set_contact(effect.until),
            AskArbiter: arbiter.ask,
            WatchArbiter: arbiter.watch,
            ReleaseArbiter: arbiter.release,
            StartInstance: host.start_instance,
            StopInstance: host.stop_instance,
            RouteSingleton: host.route,
            WantLease: host.want_lease,
            DropLease: host.drop_lease,
            WatchLease: host.watch_lease,
            OpenShards: regions.open_shards,
            CloseShards: regions.close_shards,
            RouteShards: regions.route,
            DrainRoute: regions.drain,
            FailAsks: regions.fail_asks,
        }

    @property
    def closed(self) -> bool:
        """True once the core is driven no more: the node ends, or a machine failed."""
        return self._closed

    # events in, effects out

    def feed(self, event: object) -> None:
        """Hand a fact to the core and perform what it orders."""
        if self._closed:
            return
        now = self._look_at_the_clock()
        self._perform(self._step(lambda: self._core.handle(event, now)))
        self._rearm()

    def close(self) -> None:
        """Stop driving the core; what comes later is ignored."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._dials:
            task.cancel()

    def _look_at_the_clock(self) -> float:
        """The time; a gap since the core was due goes to the core before anything else."""
        now = self._clock()
        gap_s = now - self._due
        if gap_s > self._pause_s:
            # One gap is told once, though the machines' timers are late until they are ticked.
            self._due = math.inf
            self._no_tick_before = now + DRAIN_S
            self.counters["pauses"] += 1
            logger.warning("this process did not run for a while", extra={"gap_s": round(gap_s, 3)})
            self._perform(self._step(lambda: self._core.handle(Paused(gap_s), now)))
        return now

    def _on_deadline(self) -> None:
        self._timer = None
        if self._closed:
            return
        due = self._due
        now = self._look_at_the_clock()
        # Timers may fire a little early; without max() the core would see "not yet" and we'd spin.
        at = max(now, due) if due < math.inf else now
        if at < self._no_tick_before:
            self._rearm()
            return
        self._perform(self._step(lambda: self._core.tick(at)))
        self._rearm()

    def _rearm(self) -> None:
        if self._core.cluster_id != self._cluster_id:
            self._cluster_id = self._core.cluster_id
            version = wire.DATA_VERSION_MAX
            self._data_head = wire.encode_data_head(self._cluster_id, version)
            self._piece_head = wire.encode_data_head(self._cluster_id, version, is_piece=True)
        due = max(self._core.deadline, self._no_tick_before)
        if due == self._armed_for and self._timer is not None and self._due < math.inf:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        self._armed_for = due
        # What became due in the past only now, by a confirmation say, is no pause of ours.
        self._due = max(due, now)
        if due < math.inf and not self._closed:
            delay_s = max(0.0, due - now)
            self._timer = self._loop.call_later(delay_s, self._on_deadline)

    def _step(self, step: Callable[[], list[object]]) -> list[object]:
        """A step of the machines. One that raises has broken a promise of ours: nothing decides
        on this node any more, so it says what it knows and ends, with the exit code of a bug."""
        try:
            return step()
        except Exception as error:
            self._closed = True
            logger.critical(
                "a bug: a machine failed, this node ends",
                exc_info=True,
                extra={"last_steps": [str(entry)[:500] for entry in list(self._core.record)[-20:]]},
            )
            self._exited(Exit(BUG_EXIT, f"a bug: {type(error).__name__}: {error}"))
            return []

    def _perform(self, effects: list[object]) -> None:
        for effect in effects:
            try:
                self._perform_one[type(effect)](effect)
            except Exception:
                # The machines already count on the others of this list.
                self.counters["effects-failed"] += 1
                logger.exception("a bug: an effect failed", extra={"effect": str(effect)[:500]})

    # effects

    def _send(self, effect: Send) -> None:
        # One message often goes to several members: it is encoded once.
        message, payload = self._encoded
        if effect.message is not message:
            payload = wire.encode(effect.message)
            self._encoded = (effect.message, payload)
        self._transport.send_control(effect.to, payload)

    def _publish(self, effect: Publish) -> None:
        fact = effect.fact
        if isinstance(fact, MembershipView):
            self._view_changed(fact)
        self._publish_fact(fact)

    def _view_changed(self, view: MembershipView) -> None:
        # Most views differ in who is reachable alone; records that did not change are the same.
        if view.gone is self._seen_gone and view.members == self._seen_members:
            return
        self._seen_members, self._seen_gone = view.members, view.gone
        transport = self._transport
        members = {member.id: member for member in view.members if member.status is not Status.DOWN}
        for node, member in members.items():
            if node not in self._members and node != view.self_id:
                transport.learn(node, member.data_port, member.protocol_max, member.public_key)
        for node in self._members.keys() - members.keys():
            transport.forget(node)
        self._members = members
        # Who left in order had ended its actors before: what is still on its way is good.
        self._gone = frozenset(
            node for node, cause in view.gone.items() if cause is not Cause.LEFT
        ) | {
            member.id
            for member in view.members
            if member.status is Status.DOWN and member.cause is not Cause.LEFT
        }

    def _dial(self, effect: Dial) -> None:
        if len(self._dials) >= DIALS_MAX:
            self.counters["dials-dropped"] += 1
            unknown = Dialled(effect.peer, effect.attempt, DialOutcome.UNKNOWN, None)
            self._loop.call_soon(self.feed, unknown)
            return
        task = self._loop.create_task(self._dial_both(effect))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    async def _dial_both(self, effect: Dial) -> None:
        host, timeout_s = effect.peer.host, self._dial_timeout_s
        control = await self._transport.dial(host, effect.peer.port, timeout_s)
        data = None
        if effect.data_port:
            data = await self._transport.dial(host, effect.data_port, timeout_s)
        self.feed(Dialled(effect.peer, effect.attempt, control, data))

    def _watch(self, effect: WatchProcess) -> None:
        peer = effect.peer
        watched = self._environment.processes.watch(
            peer, effect.pid, effect.start_ticks, lambda: self.feed(ProcessEnded(peer))
        )
        if not watched:
            self._loop.call_soon(self.feed, WatchRefused(peer))

    def _take_identity(self, effect: TakeIdentity) -> None:
        self._transport.open(effect.new_id, self)
        self._renamed(effect.new_id)

    # Inbox: what the transport hands in

    def control_head(self) -> bytes:
        """The head of the frame that is about to leave."""
        return wire.encode_head(self._core.head)

    def data_head(self, version: int, is_piece: bool) -> bytes:
        """Every data frame names its cluster."""
        if version == wire.DATA_VERSION_MAX:
            return self._piece_head if is_piece else self._data_head
        return wire.encode_data_head(self._core.cluster_id, version, is_piece=is_piece)

    def control_frame(self, sender: NodeId, frame: bytes) -> None:
        """A control frame: decode, count what is not ours, feed the rest."""
        if self._closed:
            return
        try:
            head, messages, refused = wire.decode(frame)
        except wire.WireError as error:
            self.frame_refused(Lane.CONTROL, error.reason, error.detail)
            return
        for flaw in refused:
            self.frame_refused(Lane.CONTROL, flaw.reason, f"{flaw.detail} from {sender}")
        if any(type(message) is JoinRequest for message in messages):
            messages = [message for message in messages if self._shows_its_key(sender, message)]
        self.feed(PeerFrame(sender, head, tuple(messages)))

    def _shows_its_key(self, sender: NodeId, message: object) -> bool:
        """False for a joiner whose record names another key than its connection has proven."""
        if type(message) is not JoinRequest:
            return True
        proven, recorded = self._transport.key_of(sender), message.member.public_key
        if recorded != proven:
            self.frame_refused(
                Lane.CONTROL,
                "wrong-key",
                f"{sender} asks to join with the key {recorded.hex() or '(none)'} in its record; "
                f"its connection has {proven.hex() or '(none)'}",
            )
        return recorded == proven

    def data_frame(self, sender: NodeId, frame: bytes, memory: LinkMemory) -> None:
        """A data frame: of our cluster, from a process that is not gone."""
        content = memoryview(frame)[wire.DATA_HEAD.size :]
        if (
            frame.startswith(self._data_head) and self._cluster_id and sender not in self._gone
        ) or self._is_for_us(sender, frame, is_piece=False):
            self._runtime.deliver_frame(sender, content, memory)
        else:
            # We may yet become members of one cluster, on this very connection.
            self._runtime.skip_frame(sender, content, memory)

    def data_piece(
        self, sender: NodeId, frame: bytes, data: memoryview, memory: LinkMemory
    ) -> None:
        """A piece of a large message, likewise."""
        if (
            frame.startswith(self._piece_head) and self._cluster_id and sender not in self._gone
        ) or self._is_for_us(sender, frame, is_piece=True):
            self._runtime.deliver_piece(sender, frame[wire.DATA_HEAD.size :], data, memory)
        else:
            self._runtime.skip_piece(sender, frame[wire.DATA_HEAD.size :], data, memory)

    def _is_for_us(self, sender: NodeId, frame: bytes, *, is_piece: bool) -> bool:
        try:
            cluster_id = wire.decode_data_head(frame, is_piece=is_piece)
        except wire.WireError as error:
            self.frame_refused(Lane.DATA, error.reason, error.detail)
            return False
        if cluster_id != self._core.cluster_id or cluster_id == 0:
            self.frame_refused(Lane.DATA, "foreign-cluster", f"cluster {cluster_id:016x}")
            return False
        if sender in self._gone:
            self.frame_refused(Lane.DATA, "frame-from-gone", str(sender))
            return False
        return True

    def link_lost(self, peer: NodeId, lane: Lane) -> None:
        """An established link ended; the control lane's is evidence."""
        self.counters[f"{lane.value}-links-lost"] += 1
        if lane is Lane.CONTROL and peer.uid:
            self.feed(LinkLost(peer))

    def frame_refused(self, lane: Lane, reason: str, detail: str) -> None:
        """Count by reason; one log line per reason and lane."""
        key = f"{lane.value}-refused-{reason}"
        self.counters[key] += 1
        if key not in self._logged and len(self._logged) < 64:
            self._logged.add(key)
            logger.warning(
                "frames are refused; further ones of this kind are only counted",
                extra={"lane": lane.value, "reason": reason, "detail": detail[:200]},
            )

    def data_dropped(self, peer: NodeId, item: object) -> None:
        """Something was not sent: a dead letter."""
        self._runtime.data_dropped(peer, item)
