"""What users derive from and what an actor may do: `Actor`, `@on`, and its `context`.

Decides: which handler takes a message (the class of `@on`, else a base of the message's class,
else `receive`). Does not decide when a handler runs or what a failure leads to: that is
`node.cell`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from node.authority import ALWAYS, Authority
from node.mailbox import Delivery, TimerTick, WhenFull
from node.ref import ActorRef
from node.supervision import StopReason, Supervision

if TYPE_CHECKING:
    from node.cell import Cell

M = TypeVar("M")
A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")

Handler = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Terminated:
    """The watched actor ended, for `reason`; arrives once per `watch`."""

    ref: ActorRef[Any]
    reason: StopReason


def on(*kinds: type[M]) -> Callable[[Callable[[A, M], R]], Callable[[A, M], R]]:
    """Mark a method as the handler of messages of these classes (and of derived ones).

    A plain `def` is called directly and is the fastest; an `async def` may await, and the actor
    takes no other message until it is done. What it returns answers an ask. Raises `TypeError`
    when it is given anything but classes.
    """
    if not kinds or not all(isinstance(kind, type) for kind in kinds):
        raise TypeError("@on takes the message classes a method handles: write @on(Greet)")

    def mark(handler: Callable[[A, M], R]) -> Callable[[A, M], R]:
        vars(handler)["__handles__"] = kinds
        return handler

    return mark


def checked_by(
    check: Callable[..., None],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a constructor whose arguments can be refused before it runs: `spawn` calls
    `check(*args)`, and raises what it raises."""

    def mark(constructor: Callable[..., None]) -> Callable[..., None]:
        vars(constructor)["__check__"] = check
        return constructor

    return mark


class Actor:
    """Base of all actors. Handles one message at a time, in the order of arrival per sender.

    The constructor takes what `spawn` is given; calling `super().__init__` is not needed, and
    `self.context` is there already. Handlers are marked with `@on`; `receive` takes the rest.

    Whatever a handler or a hook raises is a failure of the actor, `SystemExit` and cancellation
    included: an actor cannot end the process. Only `KeyboardInterrupt` also ends the loop's run.

    An actor that has ended does not act any more: a coroutine of it that takes longer than the
    stop timeout is cancelled, and one that goes on all the same is abandoned, in the middle of
    whatever it awaits. This does not reach tasks that user code itself made, with `create_task`
    or in an executor: keep them in the instance, and cancel and await them in `post_stop`.

    One of which the cluster runs one, and all below it, begin nothing while their node cannot rule
    out that another acts in its place (`context.authority`): messages wait, starts too, and a
    coroutine gets `AuthorityLost` in place of its next step, which is no failure. Neither does this
    reach what user code makes itself. `post_stop` runs all the same.
    """

    context: Context
    _tenure_handlers: ClassVar[dict[type, Handler]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tenure_handlers = _collect_handlers(cls)

    def receive(self, message: Any, /) -> Any:
        """Override (plain or async) to take what no `@on` handler takes."""

    def pre_start(self) -> Any:
        """Called (plain or async) before the first message of each instance; to raise is a
        failure of the actor."""

    def post_stop(self, reason: StopReason, /) -> Any:
        """Called (plain or async) once for each instance whose constructor returned, after its
        children ended. To raise is reported and changes nothing; an async one is cancelled after
        the stop timeout, and abandoned when it takes no notice."""

    def serialize_for_hand_over(self) -> bytes | None:
        """Called (plain only) after `post_stop` of a singleton's instance that stops in order, with
        its authority held: what the next one is to begin with, if that is known to take over in
        order; None, as here, for nothing. At most `singleton.machine.STATE_BYTES_MAX` bytes.

        It saves the next instance work and is no storage: after a crash, a loss of authority or a
        takeover by another than the one that asked, there is none. To raise is reported, and hands
        nothing over.
        """
        return None

    def restore_from_hand_over(self, state: bytes, /) -> None:
        """Called (plain only) before `pre_start`, with what the former instance gave; not called
        without. To raise is a failure of the actor, whose next instance begins without it."""

    def pre_restart(self, error: Exception, message: object, /) -> Any:
        """Called (plain or async) on the instance that failed, before its children stop and its
        `post_stop` runs. `message` is the one it failed on; None for a failed start, or a child's
        escalated failure."""


def _collect_handlers(cls: type[Actor]) -> dict[type, Handler]:
    names: dict[type, str] = {}
    for base in reversed(cls.__mro__):
        own: dict[type, str] = {}
        for name, value in base.__dict__.items():
            for kind in getattr(value, "__handles__", ()):
                if kind in own:
                    raise TypeError(
                        f"{cls.__qualname__}: {own[kind]} and {name} both handle {kind.__name__}; "
                        f"keep one of them"
                    )
                own[kind] = name
        names.update(own)
    return {kind: getattr(cls, name) for kind, name in names.items()}


def handlers_of(cls: type[Actor]) -> dict[type, Handler]:
    """The dispatch table of an actor class; `find_handler` fills it further."""
    return cls._tenure_handlers


def find_handler(cls: type[Actor], kind: type) -> Handler | None:
    """The handler for messages of class `kind`: of a base of it, or `receive`; None without."""
    handlers = cls._tenure_handlers
    found = next((handlers[base] for base in kind.__mro__ if base in handlers), None)
    if found is None and cls.receive is not Actor.receive:
        found = cls.receive
    if found is not None:
        handlers[kind] = found
    return found


class Timers:
    """Messages an actor sends to itself later. They end with the instance: stop or restart.

    An instance that is to end can start none any more: `once` and `every` raise `RuntimeError`
    from then on, also in `post_stop`.
    """

    __slots__ = ("_cell", "_has_ended", "_ticks")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._has_ended = False
        self._ticks: dict[Hashable, TimerTick] = {}

    def once(self, key: Hashable, delay_s: float, message: object) -> None:
        """Send `message` to this actor in `delay_s` seconds; replaces the timer under `key`.

        Raises `ValueError` for no delay, `TypeError` for a key without a hash such as a list.
        """
        self._start(key, delay_s, None, message)

    def every(self, key: Hashable, interval_s: float, message: object) -> None:
        """Send `message` every `interval_s` seconds, first after one interval.

        Replaces the timer under `key`. While a tick waits in the mailbox no further one is added,
        and intervals missed by a pause are not made up for. Raises as `once`, and for 0.
        """
        if interval_s <= 0.0:
            raise ValueError(f"timer {key!r}: interval_s is {interval_s}; it must be above 0")
        self._start(key, interval_s, interval_s, message)

    def cancel(self, key: Hashable) -> None:
        """Drop a timer, also one that is due and waits in the mailbox; unknown keys are ignored."""
        tick = self._ticks.pop(key, None)
        if tick is not None and tick.handle is not None:
            tick.handle.cancel()

    def is_active(self, key: Hashable) -> bool:
        """True while the timer under `key` has still something to send."""
        return key in self._ticks

    def cancel_all(self) -> None:
        """Drop all timers."""
        for key in list(self._ticks):
            self.cancel(key)

    def end(self) -> None:
        """Drop all timers, and refuse new ones. Called by the cell."""
        self.cancel_all()
        self._has_ended = True

    def take(self, tick: TimerTick) -> bool:
        """The mailbox has come to a tick: True when it is still wanted. Called by the cell."""
        tick.waiting = False
        if self._ticks.get(tick.key) is not tick:
            return False
        if tick.interval_s is None:
            del self._ticks[tick.key]
        return True

    def _start(
        self, key: Hashable, delay_s: float, interval_s: float | None, message: object
    ) -> None:
        try:
            hash(key)  # to look it up in an empty dict would not ask for it
        except TypeError as error:
            raise TypeError(
                f"timer {key!r} cannot be a key ({error}): take a text, a number or a tuple of them"
            ) from None
        if not 0.0 <= delay_s < math.inf:
            raise ValueError(f"timer {key!r}: {delay_s} is no delay; give finite seconds from 0 up")
        if self._has_ended:
            raise RuntimeError(
                f"timer {key!r}: this instance of {self._cell.path} is ending and would not get "
                f"the message; start timers in its constructor, pre_start or a handler"
            )
        self.cancel(key)
        loop = self._cell.runtime.loop
        tick = TimerTick(key, message, loop.time() + delay_s, interval_s)
        tick.handle = loop.call_at(tick.due, self._fire, tick)
        self._ticks[key] = tick

    def _fire(self, tick: TimerTick) -> None:
        loop = self._cell.runtime.loop
        if tick.interval_s is None:
            tick.handle = None
        else:
            tick.due += tick.interval_s
            now = loop.time()
            if tick.due <= now:
                tick.due = now + tick.interval_s
            tick.handle = loop.call_at(tick.due, self._fire, tick)
        if not tick.waiting:
            tick.waiting = True
            self._cell.push(tick)


class Context:
    """What an actor may do and ask, as `self.context`; valid as long as the actor lives."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def self(self) -> ActorRef[Any]:
        """This actor's own ref, to give to others."""
        return self._cell.ref

    @property
    def path(self) -> str:
        """Where it lives, such as `/user/hello`."""
        return self._cell.path

    @property
    def parent(self) -> ActorRef[Any] | None:
        """The actor that spawned it; None at the top."""
        parent = self._cell.parent
        return None if parent is None else parent.ref

    @property
    def children(self) -> tuple[ActorRef[Any], ...]:
        """The actors it spawned that have not ended, oldest first."""
        return tuple(child.ref for child in (self._cell.children or {}).values())

    @property
    def sender(self) -> ActorRef[Any] | None:
        """The `sender=` given with the message being handled; None for an ask."""
        current = self._cell.current
        return current.sender if isinstance(current, Delivery) else None

    @property
    def rng(self) -> random.Random:
        """Randomness that a simulated world repeats; not for secrets."""
        return self._cell.runtime.rng

    @property
    def timers(self) -> Timers:
        """Messages to itself, later."""
        cell = self._cell
        if cell.timers is None:
            cell.timers = Timers(cell)
        return cell.timers

    @property
    def authority(self) -> Authority:
        """Whether it may act: always, unless the cluster runs one of it, or of one above it."""
        return self._cell.authority or ALWAYS

    @property
    def entity_id(self) -> str:
        """The id of the sharded entity that this actor is, or is below. Raises `RuntimeError` in an
        actor that is none."""
        return self._entity[0]

    @property
    def shard_id(self) -> int:
        """The shard that this entity belongs to. Raises as `entity_id`."""
        return self._entity[1]

    @property
    def _entity(self) -> tuple[str, int]:
        found = self._cell.runtime.entity_of(self._cell.path)
        if found is None:
            raise RuntimeError(f"{self._cell.path} is no sharded entity: it has no entity_id")
        return found

    def passivate(self) -> None:
        """Stop this entity once it has handled what waits; its next message builds it anew.

        What comes meanwhile is held for the next one. State that is not stored elsewhere is lost.
        Any other actor stops for good. Raises nothing when it is stopping already.
        """
        self._cell.passivate()

    def now(self) -> float:
        """Seconds on the node's clock (CLOCK_BOOTTIME; virtual in a simulated world)."""
        return self._cell.runtime.clock()

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
        """Make a child; as `Runtime.spawn`. It ends before this actor does."""
        return self._cell.spawn_child(
            cls,
            args,
            name=name,
            supervision=supervision,
            mailbox_max=mailbox_max,
            when_full=when_full,
            stash_max=stash_max,
        )

    def stop(self, ref: ActorRef[Any], *, drain: bool = True) -> None:
        """Stop an actor of this process (also oneself) once it handled what it has already got;
        without `drain` after its present message."""
        self._cell.runtime.stop(ref, drain=drain)

    def watch(self, ref: ActorRef[Any]) -> None:
        """Get one `Terminated` when the actor ends, its node is removed, or it is not there."""
        self._cell.watch(ref)

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """No `Terminated` for it any more, not even one that waits in the mailbox."""
        self._cell.unwatch(ref)

    def reply(self, value: object) -> None:
        """Answer the ask being handled before the handler ends; its return value is then ignored.

        Does nothing when the message was told, or is answered already.
        """
        self._cell.reply(value)

    def become(self, behaviour: Callable[[Any], object]) -> None:
        """Give every message from the next one on to `behaviour` (plain or async) instead of the
        handlers, until `unbecome`, another `become` or a restart.

        It is called with the message; what it returns answers an ask. See `unhandled` for what it
        does not want. Raises `TypeError` for what cannot be called.
        """
        if not callable(behaviour):
            raise TypeError(f"{behaviour!r} cannot be called: become takes a function of a message")
        self._cell.become(behaviour)

    def unbecome(self) -> None:
        """Give messages to the handlers again."""
        self._cell.become(None)

    def pipe_to_self(
        self,
        awaitable: Awaitable[V],
        on_result: Callable[[V], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        """Await something in a task of its own, while the actor goes on; the outcome comes back
        as a message.

        The message is what `on_result` makes of the result (without it the result itself), or
        `on_error` of the exception; None is no message. Both are called when its turn in the
        mailbox has come. An exception without `on_error`, or one that these functions raise, is a
        failure of the actor. The mailbox's bound does not apply.

        It ends with the instance: at a stop or restart it is cancelled, and abandoned when it
        takes no notice; `post_stop` runs afterwards, and its outcome is not told any more. Raises
        `RuntimeError` when this instance is ending, or has 10,000 of them.
        """
        self._cell.pipe(awaitable, on_result, on_error)

    def unhandled(self) -> None:
        """Leave the message being handled to the dead letters; its ask fails with
        `UnhandledMessageError`."""
        self._cell.unhandled()

    def fail(self, error: Exception) -> None:
        """Fail the ask being handled with `ActorFailedError`, and report `error` as a failure of
        this actor, which goes on whatever its supervision says."""
        self._cell.fail_message(error)

    def forward(self, ref: ActorRef[Any], message: object | None = None) -> None:
        """Hand the message being handled (or another in its place) to `ref`, with its sender and
        its asker: whoever gets it answers."""
        self._cell.forward((ref,), message)

    def forward_all(self, refs: Iterable[ActorRef[Any]], message: object | None = None) -> None:
        """As `forward`, to several actors of this process: the first answer or failure counts."""
        self._cell.forward(refs, message)

    def stash(self) -> None:
        """Put the message being handled aside, unanswered, until `unstash_all`.

        Beyond `stash_max` it becomes a dead letter. A restart puts the stash back.
        """
        self._cell.stash_current()

    def unstash_all(self) -> None:
        """Put the stashed messages back, in their order, before all that wait."""
        self._cell.unstash_all()
