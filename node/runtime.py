"""The actors of one process: who lives where, who gets a message, and how all of it ends.

Decides: names and paths, what happens to a message for a path, and the order of a shutdown. Does
not decide an actor's life (`node.cell`) nor what crosses nodes (`node.remote`). Used by
`node.system` and the daemon; runs on any event loop given to it, always on that loop's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import math
import os
import random
import re
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from threading import get_ident
from typing import Any, NoReturn, cast, get_args

from gossip.membership import NodeId
from node.actor import Actor, Terminated
from node.ask import LocalAsk
from node.authority import Authority, Gate
from node.cell import Cell, HandOver
from node.codec import ENVELOPE_BYTES_MAX, PATH_MAX, Codec, message_parts
from node.environment import DataLink, LinkMemory
from node.errors import (
    AuthorityLostError,
    DeadActorError,
    LinkFullError,
    MailboxFullError,
    MessageError,
    TenureError,
    UnhandledMessageError,
    WrongProcessError,
    WrongThreadError,
)
from node.events import (
    ActorFailed,
    DeadLetter,
    EventStream,
    LoopBlocked,
    Unreadable,
    Why,
)
from node.log_limiter import LogLimiter
from node.mailbox import Delivery, WhenFull
from node.ref import ActorRef
from node.remote import Remote
from node.supervision import (
    AllForOne,
    Restart,
    StopCause,
    StopReason,
    Supervision,
    failure_text,
)
from node.timer_wheel import TimerWheel

LEVELS_MAX = 32
KILL_S = 1.0  # what a shutdown still waits for actors that it had to kill
PUMP_S = 0.001  # how long actors may run before the loop's other work has its turn
BLOCKED_AFTER_S = 0.1
NOWHERE = NodeId("local", 0, 0)
ENTITIES = "/sharding/"  # what of this runtime's paths are sharded entities

PathHandler = Callable[[NodeId | None, Delivery], None]

_FORKED = (
    "this process was forked after the system had started, so the system's event loop and sockets "
    "are its parent's: start child processes by spawn or forkserver, and a system in each of them"
)
_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_.:@+~%=-]{1,256}")
_ADDRESS = re.compile(r"(?P<host>\[[^\]/]+\]|[^:/\[\]]+):(?P<port>\d{1,5})(?P<path>/.*)")
_DEFAULT_SUPERVISION = Restart()
_SUPERVISIONS = get_args(Supervision)  # a tuple is looked through faster than the union


class Runtime:
    """All actors of a process.

    `loop`, `clock` and `rng` are the world; `self_id` is the node's identity (None: no network),
    and may be set anew when the node takes another uid. `data_link` is the way to a node;
    `refused(reason, detail)` is told of everything from outside that makes no sense.
    `stop_timeout_s` bounds each coroutine of an actor that is to stop. User code that keeps the
    loop for `blocked_after_s` is reported.

    `path_handlers` maps a prefix such as "/singleton/" to a function that takes every message for
    "whoever is there" (uid 0) under it: `handler(node it came from or None, delivery)`.
    `return_handlers` likewise for those that could not be sent: `handler(node, delivery)`.
    `own_messages` are classes of the machinery: users do not hear of their dead letters.
    """

    # Slots, for an instance dict of 30 entries or more is slow: each tell would cost 2 % more.
    __slots__ = (
        "__weakref__",
        "_abandoned",
        "_cells",
        "_constructors",
        "_is_closing",
        "_is_forked",
        "_is_in_dead_letter",
        "_is_pumping",
        "_limiter",
        "_names",
        "_thread",
        "_uids",
        "ask_timers",
        "blocked_after_s",
        "clock",
        "context",
        "counters",
        "entity_at",
        "entity_of",
        "entity_ref",
        "events",
        "gate",
        "is_idle",
        "looked_at",
        "loop",
        "own_messages",
        "path_handlers",
        "remote",
        "return_handlers",
        "rng",
        "self_id",
        "silence",
        "stop_timeout_s",
        "turns",
        "until",
    )

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        rng: random.Random,
        self_id: NodeId | None = None,
        data_link: Callable[[NodeId], DataLink | None] | None = None,
        refused: Callable[[str, str], None] | None = None,
        stop_timeout_s: float = 5.0,
        blocked_after_s: float = BLOCKED_AFTER_S,
        envelope_bytes_max: int = ENVELOPE_BYTES_MAX,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.rng = rng
        self.stop_timeout_s = stop_timeout_s
        self.blocked_after_s = blocked_after_s
        # In a copy of it, each time, user code runs: nobody's own variables leak into an actor.
        self.context = contextvars.copy_context()
        self.events = EventStream()
        self.counters: dict[str, int] = {}
        self.path_handlers: dict[str, PathHandler] = {}
        self.return_handlers: dict[str, PathHandler] = {}
        self.own_messages: set[type] = set()
        # Id and shard of the entity at or above a path; set by `node.regions`.
        self.entity_of: Callable[[str], tuple[str, int] | None] = lambda path: None
        # The entity at a path that is here and takes messages as a cell does: as `entity_of`.
        self.entity_at: Callable[[str], Any] = lambda path: None
        # The ref of a sharded entity, wherever it is; set by `node.sharding`.
        self.entity_ref: Callable[[str], ActorRef[Any] | None] = lambda path: None
        # Who did not answer an ask to a path, and why; set by `node.system`.
        self.silence: Callable[[LocalAsk, str], tuple[str, str] | None] = lambda ask, path: None
        self.self_id = self_id
        self.looked_at = 0.0  # when the clock was last looked at in this turn of the loop
        self.until = 0.0  # then the loop's other work is to have its turn
        self.turns: deque[Callable[[], None]] = deque()  # of the cells that are ready, in order
        self.is_idle = True  # the pump neither runs nor is about to
        self._is_pumping = False
        self._thread = 0  # of the loop, once it is known
        self._is_forked = False
        self._cells: dict[str, Cell] = {}
        self._constructors: dict[type, tuple[int, float, Callable[..., None] | None]] = {}
        self._uids = 0
        self._names = 0
        self._is_closing = False
        self._is_in_dead_letter = False
        self._limiter = LogLimiter(_log, loop, clock)
        # Kept for ever: to let go of a coroutine that ignores its close resumes it once more.
        self._abandoned: list[object] = []
        self.ask_timers = TimerWheel(loop, clock)
        self.gate = Gate(clock, self.ready, self.count)  # of all that is unique in the cluster
        self.remote = Remote(
            self,
            data_link,
            self._count_refused if refused is None else refused,
            Codec(self.ref_at, envelope_bytes_max=envelope_bytes_max),
        )
        _runtimes.add(self)

    # Who and where

    @property
    def here(self) -> NodeId:
        """The node of local refs: `self_id`, or a stand-in without network."""
        return self.self_id or NOWHERE

    @property
    def actor_count(self) -> int:
        """Actors that have not ended."""
        return len(self._cells)

    def ref_at(self, node: NodeId | None, path: str, uid: int = 0) -> ActorRef[Any]:
        """A ref to (node, path); None is this node, uid 0 whoever is there. Asks nobody."""
        if not uid and path.startswith(ENTITIES):
            found = self.entity_ref(path)
            if found is not None:
                return found  # wherever it is now, whichever node says so
        if node is not None and self._is_here(node):
            node = None
        if node is None and uid:
            cell = self.cell_at(path, uid)
            if cell is not None:
                return cell.ref
        return ActorRef(self, node, path, uid)

    def resolve(self, address: str) -> ActorRef[Any]:
        """The ref for `/user/hello` (here) or `host:port/user/hello` (whoever runs there).

        Raises `ValueError` when it is neither.
        """
        if not isinstance(address, str):
            raise ValueError(f"{address!r} is no actor address; write host:port/user/name")
        if address.startswith("/"):
            return self.ref_at(None, address)
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise ValueError(f"{address!r} is no actor address; write host:port/user/name")
        return self.ref_at(NodeId(match["host"].strip("[]"), int(match["port"]), 0), match["path"])

    def cell_at(self, path: str, uid: int) -> Cell | None:
        """The cell at a path of this process, if it is the one meant."""
        cell = self._cells.get(path)
        return cell if cell is not None and uid in (0, cell.ref.uid) else None

    def _is_here(self, node: NodeId) -> bool:
        own = self.here
        return node == own or (node.uid == 0 and node[:2] == own[:2])

    # Making and ending actors

    def spawn(
        self,
        cls: type[Actor],
        *args: object,
        name: str | None = None,
        supervision: Supervision | None = None,
        mailbox_max: int | None = None,
        when_full: WhenFull | None = None,
        stash_max: int | None = None,
    ) -> ActorRef[Any]:
        """Make an actor `cls(*args)` at `/user/<name>` (`$1`, `$2`, … without a name).

        It starts in a later turn of the loop; its failures, also of its constructor, are a matter
        of `supervision` (default: `Restart()`). `mailbox_max` bounds the waiting messages, and
        `when_full` says what becomes of further ones: "drop" (the default: they are dead letters),
        "fail" (`tell` raises) or "wait" (`await ref.send` waits); see `node.mailbox.WhenFull`.
        `stash_max` bounds the stash. Raises `TypeError` when the arguments do not fit the
        constructor or an option has the wrong type, `ValueError` for a name that is taken or no
        name and for bounds that make no sense, `RuntimeError` when the system is ending,
        `WrongThreadError` on another thread.
        """
        cell = self.create_cell(
            cls,
            args,
            name=name,
            parent=None,
            supervision=supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )
        return cell.ref

    def spawn_at(
        self,
        path: str,
        cls: type[Actor],
        args: tuple[object, ...] = (),
        *,
        on_started: Callable[[], None] | None = None,
        on_stopped: Callable[[StopReason], None] | None = None,
        gated: bool = False,
        authority: Authority | None = None,
        hand_over: HandOver | None = None,
        supervision: Supervision | None = None,
        mailbox_max: int | None = None,
        when_full: WhenFull | None = None,
        stash_max: int | None = None,
    ) -> ActorRef[Any]:
        """Make an actor at a whole path such as `/singleton/counter`, outlasting `/user`.

        `on_started` is called once, when the first instance has run its `pre_start`; `on_stopped`
        once, when the actor has ended for good (`post_stop` is done). `gated`: it and all below it
        begin no step while `gate` is closed, `post_stop` excepted; `authority` in its place.
        `hand_over` is between a gated actor and the one before and after it. Raises as `spawn`.
        """
        self._check_room(path)
        cell = self._new_cell(path, cls, args, None, supervision, mailbox_max, when_full, stash_max)
        if authority is not None or gated:
            cell.gate_by(authority or Authority(self.gate), hand_over)
        cell.on_started = on_started
        if on_stopped is not None:
            cell.on_stopped = [on_stopped]
        return cell.ref

    def create_cell(
        self,
        cls: type[Actor],
        args: tuple[object, ...],
        *,
        name: str | None,
        parent: Cell | None,
        supervision: Supervision | None,
        mailbox_max: int | None,
        when_full: WhenFull | None,
        stash_max: int | None,
    ) -> Cell:
        """Make a cell under `parent` (None: under /user); for `spawn` and `Context.spawn`."""
        if name is None:
            self._names += 1
            name = f"${self._names}"
        elif not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no actor name; use 1 to 256 letters, digits and _ . : @ + ~ % = -"
            )
        path = f"{'/user' if parent is None else parent.path}/{name}"
        if path.count("/") > LEVELS_MAX:
            raise ValueError(f"{path} is deeper than {LEVELS_MAX} levels; spawn fewer generations")
        self._check_room(path)
        return self._new_cell(
            path, cls, args, parent, supervision, mailbox_max, when_full, stash_max
        )

    def _check_room(self, path: str) -> None:
        if path in self._cells:
            raise ValueError(
                f"there is an actor at {path} already; choose another name, or wait until it "
                f"ended: `await system.runtime.stopped(ref)`, or watch it in an actor"
            )
        if not path.startswith("/") or len(path) > PATH_MAX:
            raise ValueError(f"{path[:80]!r} is no path: begin with / and stay within {PATH_MAX}")
        if self._is_forked:
            raise WrongProcessError(_FORKED)
        if self._is_closing:
            raise RuntimeError(f"the system is ending; {path} is not started")

    def _new_cell(
        self,
        path: str,
        cls: type[Actor],
        args: tuple[object, ...],
        parent: Cell | None,
        supervision: Supervision | None,
        mailbox_max: int | None,
        when_full: WhenFull | None,
        stash_max: int | None,
    ) -> Cell:
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise TypeError(f"{cls!r} is no Actor class; write spawn(Hello, 'world')")
        known = self._constructors.get(cls)
        if known is None:
            check = getattr(cls.__init__, "__check__", None)
            known = self._constructors[cls] = (*_argument_counts(cls), check)
        least, most, check = known
        if not least <= len(args) <= most:
            try:
                inspect.signature(cls).bind(*args)
            except TypeError as error:
                raise TypeError(f"{cls.__qualname__}{args!r}: {error}") from None
        if check is not None:
            check(*args)
        if supervision is not None:
            if not isinstance(supervision, _SUPERVISIONS):
                raise TypeError(
                    f"{path}: supervision={supervision!r} is none: give Restart(), Stop(), "
                    f"Resume(), Escalate() or AllForOne(…)"
                )
            if parent is None and isinstance(supervision, AllForOne):
                raise ValueError(
                    f"{path} has no siblings: give AllForOne to the children of an actor"
                )
        if mailbox_max is not None or when_full is not None or stash_max is not None:
            _check_bounds(mailbox_max, when_full, stash_max)
        self._uids += 1
        cell = Cell(
            self,
            path,
            self._uids,
            cls,
            args,
            parent=parent,
            supervision=_DEFAULT_SUPERVISION if supervision is None else supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )
        self.ready(cell.begin)
        self._cells[path] = cell
        return cell

    def stop(
        self,
        ref: ActorRef[Any],
        reason: StopReason | None = None,
        *,
        drain: bool = True,
        at_once: bool = False,
    ) -> None:
        """Stop an actor of this process, its children before it; does not wait.

        What lies in its mailbox is still handled; what comes later is a dead letter. Without
        `drain` it stops after the present message; `at_once` also cancels a coroutine that handles
        it. An actor that is gone is ignored. Raises `ValueError` for a ref to another node.
        """
        if get_ident() != self._thread:
            self.check_thread()
        if not ref.is_local:
            raise ValueError(f"{ref.address} is on another node; only its own node can stop it")
        cell = self.cell_at(ref.path, ref.uid)
        if cell is None:
            return
        if at_once:
            cell.stop_at_once(reason or StopReason(StopCause.STOPPED))
        else:
            cell.order_stop(reason or StopReason(StopCause.STOPPED), drain=drain)

    async def stopped(self, ref: ActorRef[Any]) -> None:
        """Wait until a local actor has ended (`post_stop` is done); at once when it is gone."""
        cell = self.cell_at(ref.path, ref.uid) if ref.is_local else None
        if cell is not None:
            await self._ends([cell])

    def cell_gone(self, cell: Cell, reason: StopReason) -> None:
        """An actor has ended: free its path, tell who watches. Called by the cell."""
        del self._cells[cell.path]
        watchers, cell.watchers = cell.watchers, None
        for (watcher, uid), number in (watchers or {}).items():
            if watcher.is_local:
                watching = self.cell_at(watcher.path, watcher.uid)
                if watching is not None:
                    self._tell_end(watching, self.ref_as_known(cell, uid), reason)
            else:
                self.remote.forget_watcher(cell, watcher, uid)
                self.remote.send_terminated(watcher, cell.path, uid, number, reason)

    def ref_as_known(self, cell: Cell, uid: int) -> ActorRef[Any]:
        """The ref by which somebody knows a cell: exact, or whoever is there."""
        return cell.ref if uid else ActorRef(self, None, cell.path, 0)

    # Turns

    def ready(self, turn: Callable[[], None]) -> None:
        """Let a cell have a turn, after those that are to have one already. Called by cells."""
        if self.is_idle:
            self.pump_soon()
        self.turns.append(turn)

    def pump(self) -> None:
        """Let cells have their turns, in order, until none is ready or `PUMP_S` are over.

        What is left goes on in a later turn of the loop, after its sockets and timers. Called by
        the loop; and by whoever has just delivered messages and wants them handled in the same
        turn of the loop. Does nothing when it is called by user code, from within a turn.

        What a turn raises is a bug of ours: counted and logged, and the others have their turns.
        """
        if self._is_pumping:
            return
        self._is_pumping = True
        self.is_idle = False
        turns = self.turns
        self.looked_at = now = self.clock()
        self.until = now + PUMP_S
        round_left = len(turns)
        try:
            while turns:
                turn = turns.popleft()
                try:
                    turn()
                except Exception as error:  # noqa: BLE001 - the other actors must not pay for it
                    self.turn_failed(turn, error)
                round_left -= 1
                looked_at = self.looked_at
                # In virtual time the clock stands still: there one round has to do.
                if looked_at >= self.until or (looked_at == now and round_left <= 0):
                    break
        finally:
            self._is_pumping = False
            if turns:
                self.pump_soon()
            else:
                self.is_idle = True

    def turn_failed(self, turn: Callable[[], None], error: Exception) -> None:
        """A turn raised, which none does unless there is a bug. Called by the pump and by cells."""
        self.looked_at = self.clock()  # the turn may not have come to it, and must not go on so
        self.count("failed turns")
        path = str(getattr(getattr(turn, "__self__", None), "path", ""))
        text = "a bug in tenure: the turn of an actor failed. The others go on; please report it"
        self.log(text, path, level=logging.ERROR, exc_info=error)

    def begin_turn(self) -> None:
        """`pump` is going to be called within this callback: no other turn need be asked for."""
        if not self.turns:
            self.is_idle = False

    def pump_soon(self) -> None:
        """See to it that the pump will run. Called when `is_idle`, before a turn is queued."""
        if get_ident() != self._thread:
            self.check_thread()
        self.loop.call_soon(self.pump, context=self.context.copy())
        self.is_idle = False

    def check_thread(self) -> None:
        """Raises `WrongThreadError` when the loop runs on another thread than this, and
        `WrongProcessError` in a forked child."""
        if self._is_forked:
            raise WrongProcessError(_FORKED)
        if asyncio._get_running_loop() is self.loop:
            self._thread = get_ident()
        elif self.loop.is_running():
            raise WrongThreadError(
                "refs work only on the thread of their system's event loop, and this is another: "
                "write loop.call_soon_threadsafe(ref.tell, message), or "
                "asyncio.run_coroutine_threadsafe(ref.ask(message), loop).result()"
            )

    def forked(self) -> None:
        """This is the child of a fork: its copies of the sockets are the parent's, and its loop
        runs nothing. From here on every use fails, and no actor acts. Called after the fork."""
        self._is_forked = self._is_closing = self.is_idle = True
        self._thread = 0
        self.turns.clear()
        for cell in self._cells.values():
            cell.closed = True
        self.remote = cast(Remote, _ForkedRemote())

    def step(self) -> None:
        """The loop has given us a turn: from here on the time counts. Called by cells."""
        self.looked_at = now = self.clock()
        self.until = now + PUMP_S

    def loop_blocked(self, path: str, handler: str, took_s: float, messages_max: int) -> None:
        """User code of an actor kept the loop for long. Called by its cell."""
        self.count("blocked loops")
        self.events.publish(LoopBlocked(path, handler, took_s, messages_max))
        self.log(
            "an actor kept the event loop for long: await instead, or use a thread",
            path,
            handler=handler,
            took_s=round(took_s, 3),
            messages_max=messages_max,
        )

    # Watching

    def watch(self, cell: Cell, ref: ActorRef[Any]) -> None:
        """Tell `cell` when `ref` ends; at once when it is not there."""
        if not ref.is_local:
            self.remote.watch(cell, ref)
            return
        target = self.cell_at(ref.path, ref.uid)
        if target is None:
            self._tell_end(cell, ref, StopReason(StopCause.GONE, "there is no such actor"))
            return
        if target.watchers is None:
            target.watchers = {}
        target.watchers[(cell.ref, ref.uid)] = 0

    def unwatch(self, cell: Cell, ref: ActorRef[Any]) -> None:
        """Do not tell it."""
        if not ref.is_local:
            self.remote.unwatch(cell, ref)
            return
        target = self.cell_at(ref.path, ref.uid)
        if target is not None and target.watchers is not None:
            target.watchers.pop((cell.ref, ref.uid), None)

    def _tell_end(self, cell: Cell, ref: ActorRef[Any], reason: StopReason) -> None:
        cell.push(Delivery(Terminated(ref, reason), None, None, cell.path))

    # Messages

    def send(self, ref: ActorRef[Any], delivery: Delivery) -> None:
        """Send to whatever a ref names. Raises `MessageError` for what cannot be encoded."""
        if not ref.is_local:
            self.remote.send(ref.node, delivery)
            return
        if self.path_handler(delivery.path, delivery.uid) is not None:
            message_parts(delivery.message)  # it may have to travel: refuse here, on every node
        self.deliver(delivery, None)

    def deliver(self, delivery: Delivery, node: NodeId | None = None) -> None:
        """Give a message to the handler of its path, else to the actor there, else to nobody.

        `node` is where it came from, None for this process.
        """
        handler = self.path_handler(delivery.path, delivery.uid)
        if handler is None:
            self.deliver_here(delivery)
            return
        try:
            handler(node, delivery)
        except Exception:  # noqa: BLE001 - a frame must never end in an exception
            self.count("failed path handlers")
            self.log("path handler failed", delivery.path, exc_info=True)
            self.dead_letter(delivery, delivery.path, Why.NOT_SENT)

    def deliver_here(self, delivery: Delivery) -> None:
        """Give a message to the actor at its path, past any path handler; else a dead letter."""
        cell = self.cell_at(delivery.path, delivery.uid)
        if cell is None:
            self.dead_letter(delivery, delivery.path, Why.NO_ACTOR)
        else:
            cell.put(delivery)

    def forward(self, delivery: Delivery, node: NodeId) -> None:
        """Send a held message to its path on another node, one hop further.

        Sender and asker go with it: the answer comes from there. Never raises; what cannot be
        sent is a dead letter.
        """
        delivery.hops += 1
        try:
            self.remote.send(node, delivery)
        except MessageError as error:
            self._count_refused("cannot be encoded", str(error))
            self.dead_letter(delivery, f"{node.address}{delivery.path}", Why.NOT_SENT)

    def return_handler(self, path: str, uid: int) -> PathHandler | None:
        """Who takes back what could not be sent to this path, if anybody."""
        return None if uid else self.return_handlers.get(path[: path.find("/", 1) + 1])

    def path_handler(self, path: str, uid: int) -> PathHandler | None:
        """Who takes the messages for this path in place of an actor, if anybody."""
        if uid or not self.path_handlers:
            return None
        return self.path_handlers.get(path[: path.find("/", 1) + 1])

    def dead_letter(self, item: object, path: str, why: Why, detail: str = "") -> None:
        """Nobody handles this (a message or a `Delivery`): fail its ask, count, publish, and log
        at times. `detail` is for the asker."""
        if self._is_forked:
            raise WrongProcessError(_FORKED)
        message, sender = item, None
        if isinstance(item, Delivery):
            message, sender = item.message, item.sender
            if item.asker is not None:
                item.asker.fail(_ask_error(message, path, why, detail))
        if type(message) in self.own_messages:
            self.count(f"own messages lost: {why.name.lower()}")
            return
        self.count(f"dead letters: {why.name.lower()}")
        if self._is_in_dead_letter:
            return  # a subscriber's own message died: counted, not told to it again for ever
        self._is_in_dead_letter = True
        try:
            recipient = f"{self.here.address}{path}" if path.startswith("/") else path
            self.events.publish(DeadLetter(message, recipient, sender, why))
        finally:
            self._is_in_dead_letter = False
        tag = message.tag if isinstance(message, Unreadable) else type(message).__name__
        self.log(f"dead letter: {why}", path, type=tag)

    # The data lane

    def deliver_frame(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """Take a data frame that came over a connection of `sender`. Never raises."""
        self.remote.frame(sender, frame, memory)

    def skip_frame(self, sender: NodeId, frame: bytes | memoryview, memory: LinkMemory) -> None:
        """Deliver nothing of a data frame, but remember what it defines for later ones of its
        connection."""
        self.remote.skip(sender, frame, memory)

    def deliver_piece(
        self, sender: NodeId, header: bytes | memoryview, data: memoryview, memory: LinkMemory
    ) -> None:
        """Take a piece of a large message that came over a connection of `sender`. Never raises."""
        self.remote.piece(sender, header, data, memory)

    def skip_piece(
        self, sender: NodeId, header: bytes | memoryview, data: memoryview, memory: LinkMemory
    ) -> None:
        """What `skip_frame` is for a frame."""
        self.remote.piece(sender, header, data, memory, only_names=True)

    def data_dropped(self, peer: NodeId, item: object) -> None:
        """Something that was queued did not leave; its ask fails, its message is dead."""
        self.remote.dropped(peer, item)

    def node_removed(self, node: NodeId, *, left: bool = False) -> None:
        """A node is gone for good: watches of its actors and asks to it end now.

        `left`: it left in order; asks that it passed on are still answered, so they go on.
        """
        self.remote.node_removed(node, left=left)

    def node_reachable(self, node: NodeId) -> None:
        """A node can be reached again: what death watch has to tell it, or to ask it, goes now."""
        self.remote.node_reachable(node)

    # Failures, counters, log

    def actor_failed(self, cell: Cell, error: BaseException, during: str, outcome: str) -> None:
        """User code raised: count, publish, log at times. Called by the cell.

        `KeyboardInterrupt` is raised again where it leaves nothing half done: in the loop itself.
        """
        self.count(f"actor failures: {outcome}")
        name = type(error).__name__
        if isinstance(error, KeyboardInterrupt) and during != "child":
            self.interrupt(error)
        self.events.publish(ActorFailed(cell.path, during, name, failure_text(error), outcome))
        self.log("actor failed", cell.path, exc_info=error, during=during, outcome=outcome)

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Raise it in the loop itself, before anything else is handled. Called by cells."""
        self.loop.call_soon(_raise, error)
        self.until = -math.inf

    def abandon(
        self, coroutine: Coroutine[Any, Any, object], path: str, what: str = "being cancelled"
    ) -> None:
        """Close a coroutine of user code that nobody will resume, for it took no notice of `what`.
        Called by the cell."""
        self.count("abandoned coroutines")
        self.log(
            f"a coroutine of an actor took no notice of {what} and is abandoned: it runs no "
            "further",
            path,
            level=logging.ERROR,
            coroutine=getattr(coroutine, "__qualname__", ""),
        )
        chain = _awaited(coroutine)
        try:
            coroutine.close()
        except KeyboardInterrupt as error:
            self.loop.call_soon(_raise, error)
        except BaseException:  # noqa: BLE001 - user code: it failed, or ignores even this
            self._abandoned.extend(chain)

    def isolate(self, callback: Callable[..., object], *args: object) -> None:
        """Call something that must not hurt us."""
        try:
            callback(*args)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - somebody else's callback
            self.count("failed callbacks")
            _log.exception("callback failed")

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + number

    def log(
        self,
        text: str,
        path: str,
        *,
        level: int = logging.WARNING,
        exc_info: BaseException | bool | None = None,
        **fields: object,
    ) -> None:
        """Write a line about something at `path`, within the bounds of `LogLimiter`."""
        self._limiter.log(level, text, path, exc_info=exc_info, **fields)

    def _count_refused(self, reason: str, detail: str) -> None:
        self.count(f"refused: {reason}")
        self.log(f"refused: {reason}", "", detail=detail)

    # The end

    async def shutdown(self, timeout_s: float = 10.0) -> bool:
        """Stop all actors, those under /user before the others, children before parents.

        What reached a mailbox is still handled, within `timeout_s` for everything; then what is
        left is cancelled and becomes dead letters, and what takes no notice is abandoned. When it
        returns, no actor acts any more; True when all had ended in time, else the log names those
        that had not. A second call does the same.
        """
        self._is_closing = True
        reason = StopReason(StopCause.SHUTDOWN)
        deadline = self.loop.time() + timeout_s
        for is_user in (True, False):
            roots = [
                cell
                for cell in self._cells.values()
                if cell.parent is None and cell.path.startswith("/user/") == is_user
            ]
            for cell in roots:
                cell.order_stop(reason)
            await self._ends(roots, deadline)
        left = list(self._cells.values())
        for cell in left:
            self.log("actor did not stop in time", cell.path)
            cell.kill(reason)
        if left:
            await self._ends(left, self.loop.time() + min(timeout_s, KILL_S))
        self.abandon_all()
        self.remote.close()
        self._limiter.close()
        return not left

    def not_ended(self) -> tuple[str, ...]:
        """The paths of all actors that have not ended, sorted."""
        return tuple(sorted(self._cells))

    def abandon_all(self, reason: StopReason | None = None) -> tuple[str, ...]:
        """End every actor within this call, and start none any more; returns who had not ended.

        The last resort, when no time is left: coroutines under way are closed where they are, each
        `post_stop` is called, but one that is `async` is not begun.
        """
        self._is_closing = True
        left = self.not_ended()
        for cell in list(self._cells.values()):
            if cell.parent is None:
                cell.end_now(reason or StopReason(StopCause.SHUTDOWN))
        return left

    async def _ends(self, cells: Iterable[Cell], deadline: float | None = None) -> bool:
        """Wait until these have ended, at most until `deadline` (loop time)."""
        waiting = {id(cell) for cell in cells}
        if not waiting:
            return True
        ended: asyncio.Future[bool] = self.loop.create_future()

        def finish(*, all_ended: bool) -> None:
            if not ended.done():
                ended.set_result(all_ended)

        def watch(cell: Cell) -> None:
            def gone(_reason: StopReason) -> None:
                waiting.discard(id(cell))
                if not waiting:
                    finish(all_ended=True)

            cell.on_stopped = [*(cell.on_stopped or ()), gone]

        for cell in cells:
            watch(cell)
        timer = None
        if deadline is not None:
            timer = self.loop.call_at(deadline, functools.partial(finish, all_ended=False))
        try:
            return await ended
        finally:
            if timer is not None:
                timer.cancel()


class _ForkedRemote:
    """Stands for the other nodes in a forked child, which must not touch its parent's sockets."""

    def __getattr__(self, name: str) -> NoReturn:
        raise WrongProcessError(_FORKED)


def _after_fork() -> None:
    for runtime in _runtimes:
        runtime.forked()


# A fork is a matter of the whole process, and what is registered for it stays for ever.
_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _awaited(coroutine: object) -> list[object]:
    """A coroutine, what it awaits, what that awaits, and so on."""
    chain: list[object] = []
    following: object = coroutine
    while following is not None:
        chain.append(following)
        inner = getattr(following, "cr_await", None)
        following = inner if inner is not None else getattr(following, "gi_yieldfrom", None)
    return chain


def _raise(error: BaseException) -> None:
    raise error


def _argument_counts(cls: type[Actor]) -> tuple[int, float]:
    """How many arguments the constructor takes, at least and at most; all by position."""
    least, most = 0, 0.0
    for parameter in inspect.signature(cls).parameters.values():
        is_required = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = math.inf
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if is_required:
                return 1, 0.0  # nobody can give it
        elif parameter.kind is not parameter.VAR_KEYWORD:
            least += is_required
            most += 1
    return least, most


def _check_bounds(
    mailbox_max: int | None, when_full: WhenFull | None, stash_max: int | None
) -> None:
    for key, bound in (("mailbox_max", mailbox_max), ("stash_max", stash_max)):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
            raise TypeError(f"{key}={bound!r} is no whole number: give a count, or None")
    if mailbox_max is not None and mailbox_max < 1:
        raise ValueError(f"mailbox_max={mailbox_max} leaves no room: give 1 or more, or None")
    if stash_max is not None and stash_max < 0:
        raise ValueError(f"stash_max={stash_max} is no count: give 0 or more, or None")
    if when_full is None:
        return
    if when_full not in get_args(WhenFull):
        raise ValueError(f"when_full={when_full!r} is none of drop, fail, wait: take one")
    if mailbox_max is None:
        raise ValueError(f"when_full={when_full!r} without mailbox_max: give the bound too")


def _ask_error(message: object, path: str, why: Why, detail: str) -> TenureError:
    if why is Why.UNHANDLED:
        return UnhandledMessageError(
            f"{path} has no handler for {type(message).__name__}; mark one with "
            f"@on({type(message).__name__}) or override receive"
        )
    text = f"{path}: {why} ({detail})" if detail else f"{path}: {why}"
    if why is Why.TOO_MANY_ASKS:
        return LinkFullError(text)
    if why is Why.AUTHORITY_LOST:
        return AuthorityLostError(f"{text}; what it had begun may have happened")
    return MailboxFullError(text) if why is Why.MAILBOX_FULL else DeadActorError(text)
