"""One actor's life: mailbox, turns, failures, restarts, children, and its end.

Decides: when user code of an actor runs and what becomes of it. Does not decide where an actor
lives (`node.runtime`) or what crosses nodes (`node.remote`). Everything runs on the loop's thread.

A cell has one place that calls plain handlers (`_work`), one that awaits the coroutines of
handlers (`_run`) and one for those of hooks (`_run_hook`); `node.driving` resumes either.

What waits is handled in its order, with few exceptions that come before all of it: an order to stop
without drain, a child's escalated failure, the restart of a group. `Terminated` is none of them: a
watcher gets what the dead actor had told it first.

Whatever user code raises is a failure of its actor, also what is no `Exception`: cancellation,
`SystemExit`. Only `KeyboardInterrupt` goes on to whoever runs the loop, once it was treated as a
failure too (`Runtime.actor_failed`). A coroutine that is to stop and takes no notice of being
cancelled is abandoned: it is never resumed again, so an actor that ended does not act any more.

A gated cell (`authority`) begins no step of user code while it may not act: messages wait where
they are, a coroutine gets `AuthorityLost` in place of its next step, a start waits. Orders to stop
and failures of others need no authority, nor does `post_stop`; who is to stop meanwhile handles
nothing more.

Budget: a told message costs one append, one dict lookup and one call; an idle cell holds no task,
no timer and no mailbox; a coroutine costs one task per busy period. Without a gate the gate costs
one look at a slot per `_pace` messages and per resume; with one, a look at the clock per message
and per step.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import operator
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from node.actor import Actor, Context, Handler, Terminated, Timers, find_handler, handlers_of
from node.ask import LocalAsk
from node.authority import LOSSES_MAX, Authority, is_loss, lost
from node.driving import Abandoned, Failed, cancelled_by_others, drive
from node.errors import (
    ActorFailedError,
    AuthorityLostError,
    MailboxFullError,
    MessageError,
    TenureError,
)
from node.events import Why
from node.mailbox import (
    BATCH,
    ChildFailed,
    Delivery,
    SiblingFailed,
    StopMark,
    TimerTick,
    WhenFull,
)
from node.pipe import Pipe
from node.ref import ActorRef
from node.supervision import (
    PASSIVATED,
    AllForOne,
    Escalate,
    Failures,
    Restart,
    Resume,
    StopCause,
    StopReason,
    Supervision,
    failure_text,
    restart_delay_s,
    times_failed,
)

if TYPE_CHECKING:
    from node.ask import Asker
    from node.runtime import Runtime


_OWN = (StopMark, TimerTick, ChildFailed, SiblingFailed, Pipe)
"""What lies in a mailbox and is no message: it concerns this very actor."""
GOES = frozenset(
    {StopCause.LEASE_LOST, StopCause.HANDED_OVER, StopCause.LEAVING, StopCause.STOPPED}
)
"""Another instance takes its place, here or elsewhere."""
HANDS_OVER = GOES - {StopCause.LEASE_LOST}
"""It did so in order, and nobody else has acted since."""
STASH_MAX = 1_000
PIPES_MAX = 10_000
MAY_BE_DONE = (
    f"{Why.AUTHORITY_LOST}, so it may be done, in whole or in part: ask again only what can be "
    "done twice, or is fenced"
)
CANCELS_MAX = 3  # then a coroutine that takes no notice is abandoned
CANCEL_AGAIN = 0.25  # of the stop timeout
KILLED_S = 0.3  # instead of the stop timeout, once an actor is killed
KILLED_AGAIN_S = 0.1
PACE_MAX = 4
SLOW_S = 0.001  # so long between two looks at the clock, and the next comes after one message
_construct = operator.attrgetter("__init__")


class State(enum.Enum):
    """Where an actor is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # the old instance ends
    BACKOFF = "backoff"  # no instance; a timer builds the next
    STOPPING = "stopping"  # children, then post_stop
    STOPPED = "stopped"


_AT = {State.STOPPING: "stop", State.STOPPED: "stop", State.RESTARTING: "restart"}
_SILENT = {
    State.STARTING: "it is starting",
    State.RESTARTING: "it is restarting",
    State.BACKOFF: "it waits for its restart",
    State.STOPPING: "it is stopping",
}
_RUNNING = State.RUNNING  # as a global it is found five times as fast


@dataclass
class HandOver:
    """Between an instance and the next one, here or elsewhere. `hand_back` takes the messages to
    its path that it was told to stop before; `state` is what the former one gave, and in the end
    what this one gives.

    is_shared: by many actors, each of which whoever is told to is whoever is there then. No state
    goes from one to the next, and what was put straight into a mailbox is handed back as well.
    """

    hand_back: Callable[[list[Delivery]], None]
    state: bytes | None = None
    is_shared: bool = False


class _Gated:
    """What a cell remembers that acts only with authority."""

    __slots__ = (
        "authority",
        "hand_over",
        "held",
        "is_exempt",
        "is_in_coroutine",
        "is_passivated",
        "losses",
    )

    def __init__(self, authority: Authority, hand_over: HandOver | None = None) -> None:
        self.authority = authority
        self.hand_over = hand_over
        self.held: Callable[[], None] | None = None  # what goes on once the gate is open
        self.is_exempt = False  # what runs is `post_stop`
        self.is_in_coroutine = False  # that handles the present message
        self.is_passivated = False  # it said so itself, whatever else ends it
        self.losses = 0  # how often the coroutine was told that its authority is lost


class Cell:
    """Holds one actor through all its instances. Made by `node.runtime`, which calls `start`."""

    __slots__ = (
        "_after_children",
        "_after_hook",
        "_asker",
        "_backoff",
        "_behaviour",
        "_cancels",
        "_failures",
        "_gated",
        "_handlers",
        "_is_forced",
        "_is_killed",
        "_is_to_restart",
        "_pace",
        "_pipes",
        "_scheduled",
        "_stash",
        "_stash_max",
        "_step_at",
        "_stop_check",
        "_stop_reason",
        "_supervision",
        "_task",
        "_waiting",
        "_when_full",
        "actor",
        "args",
        "children",
        "closed",
        "cls",
        "current",
        "driven",
        "mailbox",
        "mailbox_max",
        "on_started",
        "on_stopped",
        "parent",
        "path",
        "ref",
        "runtime",
        "state",
        "timers",
        "watchers",
        "watching",
    )

    def __init__(
        self,
        runtime: Runtime,
        path: str,
        uid: int,
        cls: type[Actor],
        args: tuple[object, ...],
        *,
        parent: Cell | None,
        supervision: Supervision,
        mailbox_max: int | None,
        when_full: WhenFull | None,
        stash_max: int | None,
    ) -> None:
        self.runtime = runtime
        self.path = path
        self.cls = cls
        self.args = args
        self.parent = parent
        self.ref: ActorRef[Any] = ActorRef(runtime, None, path, uid, self)
        self.state = State.STARTING
        self.closed = False  # what is sent from now on is a dead letter
        self.actor: Actor | None = None
        self.current: object = None  # the mailbox item being handled
        self.mailbox: deque[object] | None = None
        self.mailbox_max = sys.maxsize if mailbox_max is None else mailbox_max
        self.children: dict[str, Cell] | None = None
        self.timers: Timers | None = None
        self.watching: dict[ActorRef[Any], None] | None = None
        self.watchers: dict[tuple[ActorRef[Any], int], int] | None = None  # → number of the watch
        self.on_started: Callable[[], None] | None = None
        self.on_stopped: list[Callable[[StopReason], None]] | None = None
        self._handlers = handlers_of(cls)
        self._behaviour: Callable[[Any], object] | None = None  # in place of the handlers
        self._supervision = supervision
        self._when_full: WhenFull = when_full or "drop"
        self._waiting: deque[tuple[object, asyncio.Future[None]]] | None = None  # for room
        self._stash: list[object] | None = None
        self._stash_max = STASH_MAX if stash_max is None else stash_max
        self._failures: Failures | None = None  # with them it was to restart
        self._asker: Asker | None = None  # of the message being handled, while unanswered
        self._pace = 1  # messages handled between two looks at the clock
        self._scheduled = True  # somebody will look into the mailbox: put() need not ask for it
        self._task: asyncio.Task[None] | None = None
        self._step_at = math.inf  # when the coroutine in the task began
        self.driven: Coroutine[Any, Any, object] | None = None  # of user code, in the task
        self._after_hook: Callable[[BaseException | None], None] | None = None
        self._cancels = 0  # how often the coroutine was cancelled
        self._is_killed = False  # no time is left to wait for coroutines
        self._is_forced = False  # none is begun any more
        self._is_to_restart = False  # a sibling failed, and shares its fate
        gated = None if parent is None else parent._gated
        self._gated: _Gated | None = None if gated is None else _Gated(gated.authority)
        self._pipes: dict[Pipe, None] | None = None  # on their way, or in the mailbox
        self._stop_reason: StopReason | None = None
        self._stop_check: asyncio.TimerHandle | None = None
        self._after_children: Callable[[], None] | None = None
        self._backoff: asyncio.Handle | None = None

    def gate_by(self, authority: Authority, hand_over: HandOver | None) -> None:
        """Act only with this authority. Called before it has begun."""
        self._gated = _Gated(authority, hand_over)

    @property
    def authority(self) -> Authority | None:
        """Without it no step begins; None: it needs none."""
        return None if self._gated is None else self._gated.authority

    # Messages in

    def put(self, item: object) -> TenureError | None:
        """Take a message (bare, or a `Delivery`) into the mailbox, or make it a dead letter.

        Returns what a sender of this process is to be told by an exception, if anything. Raises
        nothing but `WrongThreadError` and `WrongProcessError`.
        """
        if self.closed:
            self._refuse(item, Why.STOPPED)
            return None
        mailbox = self.mailbox
        if mailbox is None:
            mailbox = self.mailbox = deque()
        elif len(mailbox) >= self.mailbox_max:
            return self._full(item)
        if not self._scheduled:
            runtime = self.runtime
            if runtime.is_idle:
                runtime.pump_soon()
            runtime.turns.append(self.turn)
            self._scheduled = True
        mailbox.append(item)
        return None

    def put_all(self, messages: list[object]) -> None:
        """`put` several bare messages that came from another node, in their order."""
        waiting = len(self.mailbox) if self.mailbox is not None else 0
        if self.closed or waiting + len(messages) > self.mailbox_max:
            for message in messages:
                self.put(message)
            return
        self.put(messages[0])
        assert self.mailbox is not None  # and somebody will look into it
        self.mailbox.extend(messages[1:])

    def _full(self, item: object) -> TenureError | None:
        if self._when_full == "wait" and isinstance(item, Delivery):
            asker = item.asker
            if isinstance(asker, LocalAsk):
                self._queue(item, asker.future)
                return None
        self._refuse(item, Why.MAILBOX_FULL)
        if self._when_full != "fail":
            return None
        return MailboxFullError(
            f"{self.path}: {Why.MAILBOX_FULL}: {self.mailbox_max} messages wait; send less, or "
            f"spawn it with a greater mailbox_max"
        )

    def offer(self, item: object) -> asyncio.Future[None] | None:
        """As `put`, but where the mailbox is one to wait for, the future of when it was taken.

        Raises `MailboxFullError` where `put` returns it, and for the actor's own message.
        """
        mailbox = self.mailbox
        is_full = mailbox is not None and len(mailbox) >= self.mailbox_max
        if is_full and self._when_full == "wait" and not self.closed:
            if self._task is not None and self._task is asyncio.current_task():
                raise MailboxFullError(
                    f"{self.path}: {Why.MAILBOX_FULL}, and only this handler's end makes room: tell"
                )
            taken = self.runtime.loop.create_future()
            self._queue(item, taken)
            return taken
        error = self.put(item)
        if error is not None:
            raise error
        return None

    @property
    def silence(self) -> str:
        """In words, why an ask that waits here has no answer yet."""
        words = _SILENT.get(State.STOPPING if self.closed else self.state)
        if words is None:
            return "it runs here, and has not answered"
        failures = self._failures
        if failures is not None and failures.count:
            words += f"; {times_failed(failures.count, failures.last)}"
        return f"held here, {words}"

    @property
    def waiting_count(self) -> int:
        """Messages in the mailbox."""
        return 0 if self.mailbox is None else len(self.mailbox)

    @property
    def is_idle(self) -> bool:
        """It has nothing to do: nothing waits or is put aside, and nothing is under way."""
        return not (self._scheduled or self._stash or self._pipes)

    def _queue(self, item: object, taken: asyncio.Future[None]) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((item, taken))

    def _let_in(self) -> None:
        """Take from those that wait for room as many as there is room for."""
        waiting, mailbox = self._waiting, self.mailbox
        while waiting and mailbox is not None and len(mailbox) < self.mailbox_max:
            item, taken = waiting.popleft()
            if not taken.done():  # else whoever sent it has given up
                self._wake()
                mailbox.append(item)
                if not isinstance(item, Delivery) or item.asker is None:
                    taken.set_result(None)
        if not waiting:
            self._waiting = None

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        for item, taken in waiting or ():
            if not taken.done():
                self._refuse(item, Why.STOPPED)
            if not taken.done():
                taken.set_result(None)

    def push(self, item: object) -> None:
        """Take what the runtime itself sends (a tick, `Terminated`): no bound, no dead letter."""
        if self.state is State.STOPPING or self.state is State.STOPPED:
            return
        if self.mailbox is None:
            self.mailbox = deque()
        self.mailbox.append(item)
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled:
            self.runtime.ready(self.turn)
            self._scheduled = True

    def _hurry(self) -> None:
        """As `_wake`, for what does not wait for the gate."""
        if self._gated is not None and self._gated.held is not None:
            self.runtime.ready(self._resume)
        self._wake()

    def _refuse(self, item: object, why: Why) -> None:
        if isinstance(item, _OWN):
            return
        if isinstance(item, Delivery) and isinstance(item.message, Terminated):
            return
        detail = str(self._stop_reason or "") if why is Why.STOPPED else ""
        self.runtime.dead_letter(item, self.path, why, detail)

    # Turns

    def begin(self) -> None:
        """The first turn of a new cell: start it. Called by the runtime's pump."""
        self.start()
        self.look()
        self._pace = 1  # nothing is known of its handlers yet

    def turn(self) -> None:
        """Handle what waits, up to a batch. Called by the runtime's pump."""
        try:
            coroutine = self._work()
        except BaseException:
            self._go_on()
            raise  # to the pump
        runtime = self.runtime
        if runtime.looked_at < runtime.until:  # else it has just looked, and its time is up
            # As `look`, which would cost an ask 2 %.
            now = runtime.clock()
            took_s = now - runtime.looked_at
            runtime.looked_at = now
            if took_s > SLOW_S:
                self._slow(took_s)
            elif self._pace != PACE_MAX:
                self._pace *= 2
        if coroutine is not None:
            self.driven = coroutine
            self._begin(self._run(coroutine))
        elif self.state is _RUNNING:
            self.current = None
        if self._waiting is not None:
            self._let_in()

    def _go_on(self) -> None:
        # Something came out of what is not the actor's own: Ctrl-C, such as of a subscriber of
        # events, or a bug of ours. What waits must not wait for ever.
        if self.state is State.RUNNING:
            self.runtime.ready(self.turn)

    def look(self) -> bool:
        """Look at the clock; True when the loop's other work is to have its turn.

        A slow actor handles one message until the next look, so that others wait for one of its
        handlers at most.
        """
        runtime = self.runtime
        now = runtime.clock()
        took_s = now - runtime.looked_at
        runtime.looked_at = now
        if took_s > SLOW_S:
            self._slow(took_s)
        elif self._pace != PACE_MAX:
            self._pace *= 2
        return now >= runtime.until

    def _slow(self, took_s: float) -> None:
        if took_s >= self.runtime.blocked_after_s:
            self.runtime.loop_blocked(self.path, self.handling(), took_s, self._pace)
        self._pace = 1

    def handling(self) -> str:
        """What it is at: `Worker.greet(Greet)`, or its start, stop or restart."""
        if self.current is None:
            return _AT.get(self.state, "start")
        kind = type(self._message())
        handler: object = self._behaviour or find_handler(self.cls, kind)
        return f"{getattr(handler, '__qualname__', self.cls.__qualname__)}({kind.__name__})"

    def _begin(self, driver: Coroutine[Any, Any, None]) -> None:
        self._step_at = math.inf
        self._cancels = 0
        runtime = self.runtime
        self._task = runtime.loop.create_task(driver, context=runtime.context.copy())
        if self._has_to_end:
            self._check_stop()

    def _work(self) -> Coroutine[Any, Any, object] | None:
        """Handle up to `BATCH` messages, fewer when the time of this turn of the loop is up; return
        the first coroutine met, which `_run` drives."""
        mailbox, gated = self.mailbox, self._gated
        actor = self.actor
        left = BATCH
        while True:
            if gated is not None and not self._may_begin(gated):
                return None
            pace = self._pace
            for _ in range(pace if pace < left else left):
                if not mailbox:
                    self._scheduled = False
                    return None
                item = message = mailbox.popleft()
                handler = self._handlers.get(type(item))
                if handler is None:
                    if type(item) is Delivery and type(item.message) is not Terminated:
                        message = item.message
                        handler = self._handlers.get(type(message))
                        if handler is not None:
                            self._asker = item.asker
                    if handler is None:
                        message, handler = self._open(item)
                        if handler is None:
                            if self.state is not State.RUNNING:
                                return None
                            continue
                self.current = item
                try:
                    result = handler(actor, message)
                except BaseException as error:  # noqa: BLE001 - user code; supervision decides
                    self._fail(error, message)
                    if self.state is not State.RUNNING:
                        return None
                    continue
                if result is not None and type(result) is CoroutineType:
                    return result
                if self._asker is not None:
                    self.answer(result)
            left -= pace
            if self.look() or left <= 0:
                break
        self.runtime.ready(self.turn)
        return None

    def _open(self, item: object) -> tuple[object, Handler | None]:
        """What is in a mailbox item and who handles it; None: nothing (more) to handle."""
        message = item
        if isinstance(item, Delivery):
            message = item.message
            if isinstance(message, Terminated):
                if self.watching is None or message.ref not in self.watching:
                    return None, None
                del self.watching[message.ref]
            self._asker = item.asker
        elif isinstance(item, TimerTick):
            if self.timers is None or not self.timers.take(item):
                return None, None
            message = item.message
        elif isinstance(item, StopMark):
            self.current = None
            self._begin_stop(item.reason)
            return None, None
        elif isinstance(item, ChildFailed):
            if item.parent is self.actor:
                self._fail(item.error, None, "child")
            return None, None
        elif isinstance(item, SiblingFailed):
            if item.instance is self.actor:
                self._restart(item.error, None, item.delay_s, item.reason)
            return None, None
        elif isinstance(item, Pipe):
            message = self._open_pipe(item)
            if message is None:
                return None, None
        if self._behaviour is not None:
            return message, self._behave
        kind = type(message)
        handler = self._handlers.get(kind) or find_handler(self.cls, kind)
        if handler is None:
            self._unhandled(item, message)
        return message, handler

    def _open_pipe(self, pipe: Pipe) -> object:
        """The message that the outcome is made into; None: there is none."""
        if self._pipes is None or pipe not in self._pipes:
            return None
        del self._pipes[pipe]
        outcome = pipe.outcome
        try:
            if not isinstance(outcome, Failed):
                pipe.message = outcome if pipe.on_result is None else pipe.on_result(outcome)
            elif pipe.on_error is not None and isinstance(outcome.error, Exception):
                pipe.message = pipe.on_error(outcome.error)
            else:
                raise outcome.error
        except BaseException as error:  # noqa: BLE001 - user code; supervision decides
            self._fail(error, None, "pipe_to_self")
        return pipe.message

    def become(self, behaviour: Callable[[Any], object] | None) -> None:
        """Give all messages to `behaviour`; None: to the handlers again."""
        self._behaviour = behaviour
        self._handlers = handlers_of(self.cls) if behaviour is None else {}

    def _behave(self, _actor: object, message: object) -> object:
        assert self._behaviour is not None
        return self._behaviour(message)

    def unhandled(self) -> None:
        """Treat the message being handled as one that nobody handles."""
        self._unhandled(self.current, self._message())

    def _unhandled(self, item: object, message: object) -> None:
        self._asker = None
        self.runtime.dead_letter(
            item if isinstance(item, Delivery) else message, self.path, Why.UNHANDLED
        )

    async def _run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Drive the coroutines of handlers, one after the other, until the mailbox is empty."""
        mine = self._task
        runtime, gated = self.runtime, self._gated
        begin_step = runtime.step if gated is None else self._begin_gated_step
        runtime.step()
        count = 0
        try:
            if gated is not None and not gated.authority.is_open:
                self._not_begun(coroutine)
                return
            while True:
                self._step_at = runtime.looked_at
                self._cancels = 0
                if gated is not None:
                    gated.is_in_coroutine = True
                result = await drive(self, coroutine, begin_step)
                if self.driven is not coroutine:
                    break
                if self._cancels:
                    self._forget_cancel()
                if type(result) is Failed:
                    self._handler_failed(result.error)
                elif self._asker is not None:
                    if gated is None:
                        self.answer(result)
                    else:
                        self.reply(result)
                if self.state is not State.RUNNING:
                    break
                count += 1
                if count % BATCH == 0 or runtime.looked_at >= runtime.until:
                    self._step_at, self._cancels, self.driven = math.inf, 0, None
                    with contextlib.suppress(asyncio.CancelledError):  # no handler is under way
                        await asyncio.sleep(0)
                    if self._task is not mine:
                        break
                    runtime.step()
                following = self._work()
                if self._waiting is not None:
                    self._let_in()
                if following is None:
                    if self.state is State.RUNNING:
                        self.current = None
                    break
                self.driven = coroutine = following
        except Abandoned:
            return
        except KeyboardInterrupt as error:
            self._go_on()
            self.runtime.interrupt(error)  # out of a task it would also be logged, later
        except Exception as error:  # noqa: BLE001 - as in the pump
            self._go_on()
            self.runtime.turn_failed(self.turn, error)
        finally:
            if self._task is mine:
                self._task = self.driven = None

    def _message(self) -> object:
        current = self.current
        return current.message if isinstance(current, Delivery | TimerTick | Pipe) else current

    def _forget_cancel(self) -> None:
        # Else `asyncio.timeout` of a later handler would take that cancellation for its own.
        while self._task is not None and self._task.uncancel() > 0:
            pass

    def _handler_failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and not self._is_loss(error):
            if self._cancels:
                self._stopped_early()
                return
            error = cancelled_by_others()
        self._fail(error, self._message())

    def _stopped_early(self, why: Why = Why.STOPPED_EARLY) -> None:
        asker, self._asker = self._asker, None
        item = self.current
        if not isinstance(item, Delivery):
            item = self._message()
        elif asker is None:  # it is answered already, or somebody else answers it
            item = Delivery(item.message, item.sender, None, item.path, item.uid, item.hops)
        self.runtime.dead_letter(item, self.path, why)

    def answer(self, value: object) -> None:
        """Answer the ask being handled, if there is one."""
        asker, self._asker = self._asker, None
        if asker is None:
            return
        try:
            asker.answer(value)
        except MessageError as error:
            self.runtime.actor_failed(self, error, "answer", "resume")

    def fail_message(self, error: Exception) -> None:
        """Fail the ask being handled, and report the error; the actor goes on."""
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.fail(ActorFailedError(type(error).__name__, failure_text(error)))
        self.runtime.actor_failed(self, error, type(self._message()).__name__, "resume")

    def forward(self, refs: Iterable[ActorRef[Any]], message: object | None) -> None:
        """Send the message being handled on; the asker goes with it."""
        current = self.current
        sender = current.sender if isinstance(current, Delivery) else None
        hops = current.hops if isinstance(current, Delivery) else 0
        asker, self._asker = self._asker, None
        content = self._message() if message is None else message
        for ref in refs:
            self.runtime.send(ref, Delivery(content, sender, asker, ref.path, ref.uid, hops))

    def stash_current(self) -> None:
        """Put the message being handled aside."""
        item = self.current if isinstance(self.current, Delivery) else self._message()
        self._asker = None
        if self._stash is None:
            self._stash = []
        if len(self._stash) >= self._stash_max:
            self._refuse(item, Why.STASH_FULL)
        else:
            self._stash.append(item)

    def unstash_all(self) -> None:
        """Put the stash back in front of the mailbox."""
        if self._stash:
            if self.mailbox is None:
                self.mailbox = deque()
            self.mailbox.extendleft(reversed(self._stash))
            self._wake()
        self._stash = None

    # Without authority

    def _may_begin(self, gated: _Gated) -> bool:
        """A gated cell is about to handle a message: True when it may.

        Else what needs no authority is done, and the rest waits; or nothing of it is handled any
        more, when the actor is to stop.
        """
        gated.is_in_coroutine, gated.losses = False, 0
        self._pace = 1  # so the gate is asked before the next one too
        while not gated.authority.is_open and self.mailbox:
            first = self.mailbox[0]
            if self._stop_reason is not None:
                self.current = None
                self._begin_stop(self._stop_reason)
                return False
            if not isinstance(first, ChildFailed | SiblingFailed):
                self._hold(gated, self.turn)
                return False
            self.mailbox.popleft()
            self._open(first)
            if self.state is not State.RUNNING:
                return False
        return True

    def _hold(self, gated: _Gated, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a turn once the gate is open, or the actor is to stop or has to restart.
        It asks the gate again. Until then `_scheduled` stays True: nothing else gives it a turn."""
        gated.held = go_on
        gated.authority.hold(self._resume)

    def _resume(self) -> None:
        assert self._gated is not None
        go_on, self._gated.held = self._gated.held, None
        if go_on is not None:
            go_on()

    def _begin_gated_step(self) -> BaseException | None:
        """As `Runtime.step`, for the coroutines of a gated cell; see `drive`."""
        runtime, gated = self.runtime, self._gated
        assert gated is not None
        runtime.step()
        if gated.is_exempt or runtime.looked_at < gated.authority.open_until:
            return None
        gated.losses += 1
        if gated.losses > LOSSES_MAX:
            self._abandon("having lost its authority", Why.AUTHORITY_LOST)
            raise Abandoned
        return lost(self.path)

    @property
    def _may_act(self) -> bool:
        """It needs no authority (at present), or has it."""
        gated = self._gated
        return gated is None or gated.is_exempt or gated.authority.is_open

    def _not_begun(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """The gate has closed between the call of a handler and the first step of its coroutine.

        Where the call has run nothing, its message is as good as new.
        """
        coroutine.close()
        message, item, mailbox = self._message(), self.current, self.mailbox
        handler: object = self._behaviour or find_handler(self.cls, type(message))
        if getattr(handler, "__code__", None) is not getattr(coroutine, "cr_code", coroutine):
            self._stopped_early(Why.AUTHORITY_LOST)
        else:
            assert mailbox is not None
            # What is taken out of a tick, a pipe or the word of an end is not taken out again.
            is_whole = isinstance(item, Delivery) and not isinstance(message, Terminated)
            at = 0
            while at < len(mailbox) and isinstance(mailbox[at], ChildFailed | SiblingFailed):
                at += 1
            mailbox.insert(at, item if is_whole else message)
            self._asker = None
        self.current = None
        self.runtime.ready(self.turn)

    def reply(self, value: object) -> None:
        """As `answer`; but a coroutine's answer does not count when the authority was lost."""
        gated = self._gated
        if gated is None or not gated.is_in_coroutine or gated.authority.is_open:
            self.answer(value)
            return
        asker, self._asker = self._asker, None
        if asker is not None:
            self.runtime.count("authority: answers dropped")
            asker.fail(AuthorityLostError(f"{self.path}: {MAY_BE_DONE}"))

    def _is_loss(self, error: BaseException) -> bool:
        """It ended for want of authority, which is no failure."""
        gated = self._gated
        if gated is None or not is_loss(error):
            return False
        return gated.losses > 0 or not gated.authority.held

    def _lose(self, during: str) -> None:
        """A step has ended for want of authority."""
        self.runtime.count("authority: losses")
        if self.state is not State.RUNNING:
            self._start_lost()
        elif not during:
            self._stopped_early(Why.AUTHORITY_LOST)

    def _start_lost(self) -> None:
        """The instance is not whole: it ends, and the next one is built once the gate is open."""
        if self._stop_reason is not None:
            self._begin_stop(self._stop_reason)
            return
        self.state = State.RESTARTING
        why = "its authority was lost while it started"
        self._rebuild(StopReason(StopCause.RESTARTED, why), 0.0)

    # Failure and restart

    def _fail(self, error: BaseException, message: object, during: str = "") -> None:
        if self._is_loss(error):
            self._lose(during)
            return
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.fail(ActorFailedError(type(error).__name__, failure_text(error)))
        started = self.state is State.RUNNING
        during = during or (type(message).__name__ if started else "start")
        policy = self._supervision
        group: list[Cell] = []
        if isinstance(policy, AllForOne):
            # One that is to stop anyway does not drag the others along.
            group = self._group() if self._stop_reason is None else []
            policy = policy.directive
        if isinstance(policy, Resume) and started:
            self.runtime.actor_failed(self, error, during, "resume")
            return
        text = f"{type(error).__name__}: {failure_text(error)}"
        if isinstance(policy, Restart) and (started or self._stop_reason is None):
            failures = self._failed()
            failures.add(text)
            delay_s = restart_delay_s(policy, failures.at, self.runtime.clock())
            if delay_s is not None:
                self.runtime.actor_failed(self, error, during, "restart")
                self._restart(error, message, delay_s, StopReason(StopCause.RESTARTED, text))
                for sibling in group:
                    sibling._sibling_failed(self.path, error, delay_s)
                return
            text = f"{policy.retries} restarts in {policy.within_s:g} s are spent; {text}"
        escalates = isinstance(policy, Escalate)
        self.runtime.actor_failed(self, error, during, "escalate" if escalates else "stop")
        self._begin_stop(self._stop_reason or StopReason(StopCause.FAILED, text))
        for sibling in group:
            sibling.order_stop(_with_sibling(StopCause.FAILED, self.path, error), drain=False)
        if escalates and self.parent is not None:
            self.parent._child_escalated(error)

    def _failed(self) -> Failures:
        if self._failures is None:
            self._failures = Failures()
        return self._failures

    def _group(self) -> list[Cell]:
        """The siblings that share its fate."""
        siblings = () if self.parent is None else (self.parent.children or {}).values()
        return [
            cell
            for cell in siblings
            if cell is not self and isinstance(cell._supervision, AllForOne)
        ]

    def _sibling_failed(self, path: str, error: BaseException, delay_s: float) -> None:
        """Restart, after the present message; the failure counts as one of its own."""
        self._failed().at.append(self.runtime.clock())
        if self.state is not State.RUNNING or self.closed:
            return  # what is about to start is new already, and what is about to stop stops
        if self.mailbox is None:
            self.mailbox = deque()
        reason = _with_sibling(StopCause.RESTARTED, path, error)
        self.mailbox.appendleft(SiblingFailed(error, delay_s, reason, self.actor))
        self._is_to_restart = True
        if self._task is not None:
            self._check_stop()
        self._hurry()

    def _child_escalated(self, error: BaseException) -> None:
        if self.state is State.RUNNING:
            if self.mailbox is None:
                self.mailbox = deque()
            self.mailbox.appendleft(ChildFailed(error, self.actor))
            self._hurry()

    def _restart(
        self, error: BaseException, message: object, delay_s: float, reason: StopReason
    ) -> None:
        self.state = State.RESTARTING
        self._is_to_restart = False
        actor = self.actor

        def rebuild(failure: BaseException | None) -> None:
            self._report_hook(failure, "pre_restart")
            self._rebuild(reason, delay_s)

        if actor is None or not self._may_act:
            rebuild(None)
        else:
            self._hook(lambda: actor.pre_restart(_as_exception(error), message), rebuild)

    def _rebuild(self, reason: StopReason, delay_s: float) -> None:
        """End the instance and what depends on it, then start the next."""
        actor = self.actor

        def post_stop() -> None:
            if actor is None:
                start_later(None)
            else:
                self._hook(lambda: actor.post_stop(reason), start_later, is_exempt=True)

        def start_later(failure: BaseException | None) -> None:
            self._report_hook(failure, "post_stop")
            self.actor = None
            self.unstash_all()
            self.state = State.BACKOFF
            loop = self.runtime.loop
            if delay_s <= 0.0 or self._stop_reason is not None:
                self._backoff = loop.call_soon(self.start)
            else:
                self._backoff = loop.call_later(delay_s, self.start)

        self._end_timers()
        self._end_dependents(reason, post_stop)

    # Start

    def start(self) -> None:
        """Build an instance and run its `pre_start`; then messages are handled."""
        if self.state is State.STOPPED:
            return
        self._backoff = self.current = self.timers = None
        self._is_to_restart = False
        self.become(None)
        gated = self._gated
        may_act = gated is None or gated.authority.is_open
        if self._stop_reason is not None and not (may_act and self._has_messages()):
            self._begin_stop(self._stop_reason)
            return
        if gated is not None:
            gated.losses = 0
            if not may_act:
                self._hold(gated, self.start)
                return
        self.state = State.STARTING
        try:
            # As `cls(*args)`, with the context in place before the constructor runs.
            actor = self.cls.__new__(self.cls, *self.args)
            actor.context = Context(self)
            _construct(actor)(*self.args)
        except BaseException as error:  # noqa: BLE001 - user code; supervision decides
            self._fail(error, None)
            return
        self.actor = actor
        if gated is not None and not gated.authority.is_open:
            self._start_lost()
            return
        if gated is not None and gated.hand_over is not None and gated.hand_over.state is not None:
            state, gated.hand_over.state = gated.hand_over.state, None
            try:
                actor.restore_from_hand_over(state)
            except BaseException as error:  # noqa: BLE001 - user code; supervision decides
                self._fail(error, None)
                return
        self._hook(actor.pre_start, self._started)

    def _has_messages(self) -> bool:
        mailbox = self.mailbox
        return mailbox is not None and bool(mailbox) and not isinstance(mailbox[0], StopMark)

    def _started(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error, None)
            return
        self.state = State.RUNNING
        if self._failures is not None:
            self._failures.count = 0
        if self.on_started is not None:
            callback, self.on_started = self.on_started, None
            self.runtime.isolate(callback)
        if self.mailbox:
            self.runtime.ready(self.turn)
        else:
            self._scheduled = False

    # Hooks

    def _hook(
        self,
        call: Callable[[], object],
        then: Callable[[BaseException | None], None],
        *,
        is_exempt: bool = False,
    ) -> None:
        if self._gated is not None:
            self._gated.is_exempt = is_exempt
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - user code; `then` decides
            then(error)
            return
        if result is None or type(result) is not CoroutineType:
            then(None)
        elif self._is_forced:
            result.close()
            then(TimeoutError("not begun: no time was left"))
        else:
            self.driven = result
            self._after_hook = then
            self._begin(self._run_hook(result))

    async def _run_hook(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self.runtime.step()
        self._step_at = self.runtime.looked_at
        if not self._may_act:
            coroutine.close()
            self._hook_done(lost(self.path))
            return
        try:
            gated = self._gated
            begin_step = self.runtime.step if gated is None else self._begin_gated_step
            result = await drive(self, coroutine, begin_step)
        except Abandoned:
            return
        if self.driven is not coroutine:
            return
        failure = result.error if type(result) is Failed else None
        if isinstance(failure, asyncio.CancelledError) and not self._is_loss(failure):
            if self._cancels:
                failure = TimeoutError(f"cancelled after {self.runtime.stop_timeout_s:g} s")
            else:
                failure = cancelled_by_others()
        self._hook_done(failure)

    def _hook_done(self, failure: BaseException | None) -> None:
        then, self._after_hook = self._after_hook, None
        self._task = self.driven = None
        assert then is not None
        then(failure)

    def _report_hook(self, error: BaseException | None, name: str) -> None:
        if error is not None and not self._is_loss(error):
            self.runtime.actor_failed(self, error, name, "resume")

    # Children

    def spawn_child(
        self,
        cls: type[Actor],
        args: tuple[object, ...],
        *,
        name: str | None,
        supervision: Supervision | None,
        mailbox_max: int | None,
        when_full: WhenFull | None,
        stash_max: int | None,
    ) -> ActorRef[Any]:
        """Make a child; raises `RuntimeError` when this actor is ending."""
        if self.state is not State.RUNNING and self.state is not State.STARTING:
            raise RuntimeError(
                f"{self.path} is {self.state.value} and cannot spawn {cls.__name__}; spawn from "
                f"its constructor, pre_start or a handler"
            )
        child = self.runtime.create_cell(
            cls,
            args,
            name=name,
            parent=self,
            supervision=supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )
        if self.children is None:
            self.children = {}
        self.children[child.path] = child
        return child.ref

    def _end_dependents(self, reason: StopReason, then: Callable[[], None]) -> None:
        """End children and pipes, all at the same time, then go on."""
        for pipe in list(self._pipes or ()):
            pipe.end()
            if pipe.is_done and self._pipes is not None:
                self._pipes.pop(pipe, None)
        self._after_children = then
        for child in list((self.children or {}).values()):
            child.order_stop(reason)
        self._dependent_gone()

    def _dependent_gone(self) -> None:
        if not self.children and not self._pipes and self._after_children is not None:
            then, self._after_children = self._after_children, None
            then()

    def _child_gone(self, child: Cell) -> None:
        if self.children is not None:
            self.children.pop(child.path, None)
            if not self.children:
                self.children = None
                self._dependent_gone()

    # What it awaits without waiting

    def pipe(
        self,
        awaitable: Awaitable[Any],
        on_result: Callable[[Any], object] | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        """Run it in a task of its own; see `Context.pipe_to_self`."""
        if self._pipes is None:
            self._pipes = {}
        is_ending = self.state is not State.RUNNING and self.state is not State.STARTING
        if is_ending or len(self._pipes) >= PIPES_MAX:
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise RuntimeError(
                f"{self.path} is {self.state.value} and cannot begin anything; pipe from its "
                f"constructor, pre_start or a handler"
                if is_ending
                else f"{self.path} has {PIPES_MAX} pipes under way: wait for some of them"
            )
        self._pipes[Pipe(self, awaitable, on_result, on_error)] = None

    def pipe_ended(self, pipe: Pipe, *, is_wanted: bool) -> None:
        """A pipe has its outcome, or was ended. Called by it."""
        if self._pipes is None or pipe not in self._pipes:
            return
        if is_wanted and self._after_children is None and self.state is not State.STOPPED:
            self.push(pipe)
        else:
            del self._pipes[pipe]
            self._dependent_gone()

    # Watching

    def watch(self, ref: ActorRef[Any]) -> None:
        """Be told when `ref` ends."""
        if self.watching is None:
            self.watching = {}
        if ref not in self.watching:
            self.watching[ref] = None
            self.runtime.watch(self, ref)

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Do not be told."""
        if self.watching is not None and ref in self.watching:
            del self.watching[ref]
            self.runtime.unwatch(self, ref)

    # End

    def order_stop(self, reason: StopReason, *, drain: bool = True) -> None:
        """Stop once what is in the mailbox was handled; without `drain` after the present message.

        Later messages are dead letters. A second order changes nothing, unless it takes the drain
        away. A failed actor that waits for its restart gets it at once, to drain.
        """
        if self.state is State.STOPPING or self.state is State.STOPPED:
            return
        if self._stop_reason is not None and drain:
            return
        self._stop_reason = self._stop_reason or reason
        self.closed = True
        self._refuse_waiting()
        if self.mailbox is None:
            self.mailbox = deque()
        if drain:
            self.mailbox.append(StopMark(self._stop_reason))
        else:
            self.mailbox.appendleft(StopMark(self._stop_reason))
        if self._backoff is not None:
            self._backoff.cancel()
            self._backoff = self.runtime.loop.call_soon(self.start)
        if self._task is not None:
            self._check_stop()
            if not self._may_act:
                self._cut_short()  # all it can still do is to end
        self._hurry()

    def passivate(self) -> None:
        """Stop with drain, as the actor itself wants it; see `is_passivated`."""
        is_ending = self.state is State.STOPPING or self.state is State.STOPPED
        if self._gated is not None and not is_ending:
            self._gated.is_passivated = True
        self.order_stop(StopReason(StopCause.STOPPED, PASSIVATED))

    @property
    def is_passivated(self) -> bool:
        """The actor has passivated itself, maybe after it was told to stop for another reason."""
        return self._gated is not None and self._gated.is_passivated

    def kill(self, reason: StopReason) -> None:
        """Stop without drain; the coroutine under way is cancelled now, later ones soon."""
        self.order_stop(reason, drain=False)
        self._is_killed = True
        self._cut_short()

    def stop_at_once(self, reason: StopReason) -> None:
        """Stop without drain, and cancel the coroutine under way: another instance acts already."""
        self.order_stop(reason, drain=False)
        self._cut_short()

    def _cut_short(self) -> None:
        self._cancel_task()
        if self._stop_check is not None:
            self._stop_check.cancel()
            self._stop_check = self.runtime.loop.call_later(self.again_s, self._stop_due)

    def end_now(self, reason: StopReason) -> None:
        """End, and all children before, within this call: coroutines are abandoned, none begins."""
        if self.state is State.STOPPED:
            return
        self._is_forced = self.closed = True
        self._stop_reason = self._stop_reason or reason
        for child in list((self.children or {}).values()):
            child.end_now(reason)
        for pipe in list(self._pipes or ()):
            pipe.abandon()
        if self.driven is not None:
            self._abandon()
        if self.state not in (State.STOPPING, State.STOPPED):
            if self._backoff is not None:
                self._backoff.cancel()
            self._begin_stop(self._stop_reason)

    def _begin_stop(self, reason: StopReason) -> None:
        self.state = State.STOPPING
        self.closed = True
        self._stop_reason = reason
        if self._gated is not None:
            self._gated.held = None
            self._gated.authority.forget(self._resume)
        self._refuse_waiting()
        self._end_timers()
        left = [*(self._stash or ()), *(self.mailbox or ())]
        if self.mailbox is not None:
            self.mailbox.clear()
        self._stash = self.mailbox = None
        for item in self._handed_back(left, reason):
            self._refuse(item, Why.STOPPED)
        for ref in list(self.watching or ()):
            self.unwatch(ref)
        self._end_dependents(reason, self._finish_stop)

    def _handed_back(self, left: list[object], reason: StopReason) -> list[object]:
        """Give back what another instance may handle in its place; returns the rest: messages to
        this very one, and all when it has not only been told to go."""
        hand_over = None if self._gated is None else self._gated.hand_over
        if hand_over is None or reason.cause not in GOES:
            return left
        back, rest = list[Delivery](), list[object]()
        for item in left:
            if isinstance(item, Delivery):
                is_its_own = isinstance(item.message, Terminated) or item.path != self.path
                if is_its_own or (item.uid and not hand_over.is_shared):
                    rest.append(item)
                else:
                    item.uid = 0
                    back.append(item)
            elif not hand_over.is_shared or isinstance(item, _OWN):
                rest.append(item)
            else:
                back.append(Delivery(item, None, None, self.path))
        if back:
            hand_over.hand_back(back)
        return rest

    def _finish_stop(self) -> None:
        actor, reason = self.actor, self._stop_reason
        assert reason is not None
        if actor is None:
            self._terminated(None)
            return

        def stopped(error: BaseException | None) -> None:
            if error is None and reason.cause in HANDS_OVER:
                self._take_state(actor)
            self._terminated(error)

        self._hook(lambda: actor.post_stop(reason), stopped, is_exempt=True)

    def _take_state(self, actor: Actor) -> None:
        gated = self._gated
        if gated is None or gated.hand_over is None or not gated.authority.held:
            return
        if gated.hand_over.is_shared:
            return
        try:
            state = actor.serialize_for_hand_over()
            if state is not None and not isinstance(state, bytes):
                raise TypeError(f"it returned {type(state).__name__}, not bytes")
            gated.hand_over.state = state
        except BaseException as error:  # noqa: BLE001 - user code; the next one begins without
            self._report_hook(error, "serialize_for_hand_over")

    def _terminated(self, error: BaseException | None) -> None:
        self._report_hook(error, "post_stop")
        self.state = State.STOPPED
        if self._stop_check is not None:
            self._stop_check.cancel()
        self._stop_check = self.current = self.actor = self.watching = None
        reason = self._stop_reason
        assert reason is not None
        self.runtime.cell_gone(self, reason)
        if self.parent is not None:
            self.parent._child_gone(self)
        callbacks, self.on_stopped = self.on_stopped, None
        for callback in callbacks or ():
            self.runtime.isolate(callback, reason)

    def _end_timers(self) -> None:
        # They stay in place, so that the hooks which are still to run cannot start others.
        if self.timers is None:
            self.timers = Timers(self)
        self.timers.end()

    def _check_stop(self) -> None:
        """From now on no coroutine of this actor may take longer than the stop timeout.

        One that takes no notice is cancelled `CANCELS_MAX` times and then abandoned: "stopped"
        means terminated, and never only ordered.
        """
        if self._stop_check is None:
            self._stop_check = self.runtime.loop.call_later(self._limit_s, self._stop_due)

    @property
    def _has_to_end(self) -> bool:
        """Coroutines of this instance must come to an end."""
        return self.closed or self._is_to_restart or self.state is State.RESTARTING

    @property
    def _limit_s(self) -> float:
        """What a coroutine may take before it is cancelled."""
        limit_s = self.runtime.stop_timeout_s
        return min(limit_s, KILLED_S) if self._is_killed else limit_s

    @property
    def again_s(self) -> float:
        """How much it may take each time after it was cancelled."""
        again_s = self.runtime.stop_timeout_s * CANCEL_AGAIN
        return min(again_s, KILLED_AGAIN_S) if self._is_killed else again_s

    def _stop_due(self) -> None:
        self._stop_check = None
        if self._task is None or not self._has_to_end:
            return
        loop, limit_s = self.runtime.loop, self._limit_s
        left_s = self._step_at + limit_s - self.runtime.clock()
        if left_s <= 0.0 or self._cancels:
            if self._cancels >= CANCELS_MAX:
                self._abandon()
                return
            self._cancel_task()
            left_s = self.again_s
        self._stop_check = loop.call_later(min(left_s, limit_s), self._stop_due)

    def _cancel_task(self) -> None:
        if self._task is None:
            return
        if self._step_at == math.inf:
            # A task cancelled before its first step would never run, and the cell never end.
            self.runtime.loop.call_soon(self._cancel_task)
            return
        self._cancels += 1
        self._task.cancel()

    def _abandon(self, what: str = "being cancelled", why: Why = Why.STOPPED_EARLY) -> None:
        """Give up the coroutine under way: it gets the chance to clean up, and no other."""
        task, coroutine, then = self._task, self.driven, self._after_hook
        assert task is not None
        assert coroutine is not None
        self._task = self.driven = None
        self.runtime.abandon(coroutine, self.path, what)
        task.cancel()
        if then is not None:
            self._hook_done(TimeoutError(f"abandoned: it took no notice of {what}"))
            return
        self._stopped_early(why)
        reason = StopReason(StopCause.FAILED, f"its handler took no notice of {what}")
        self._begin_stop(self._stop_reason or reason)


def _with_sibling(cause: StopCause, path: str, error: BaseException) -> StopReason:
    return StopReason(cause, f"{path} failed: {type(error).__name__}: {failure_text(error)}")


def _as_exception(error: BaseException) -> Exception:
    """For `pre_restart`, whose authors expect an `Exception`."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {failure_text(error)}")
    wrapped.__cause__ = error
    return wrapped
