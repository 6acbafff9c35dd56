"""An asyncio event loop whose time is virtual: no threads, no sockets, no waiting.

Decides the order of callbacks within one node: first come, first served, timers by their instant,
as asyncio does. Does not decide when the node runs: its `Timeline` does. One `SimLoop` is one
process; a crash is a loop that is never stepped again, a pause one that is stepped late. Called by
`node.testkit.stage`; production code meets it as the running loop.
Budget: 0.5 us per callback beyond the callback's own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import socket
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from node.testkit.timeline import LivelockError, Timeline, WorldError

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_ErrorContext = dict[str, Any]

CALLBACKS_MAX = 1_000_000
_CLOCK_RESOLUTION_S = 1e-9
_CANCELLED_TIMERS_KEPT = 100


class SimClock:
    """A host's clock: where it stands, and how fast it goes, against the world's time.

    Stands for CLOCK_BOOTTIME: it never goes back. Two nodes on one host share one.
    """

    __slots__ = ("_base", "_rate", "_since")

    def __init__(self, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self._base = offset_s
        self._since = 0.0
        self._rate = rate

    @property
    def rate(self) -> float:
        """Seconds this clock counts in one second of the world."""
        return self._rate

    def reading(self, now: float) -> float:
        """What the clock shows at the world's instant `now`."""
        return self._base + (now - self._since) * self._rate

    def instant(self, reading: float) -> float:
        """The world's instant at which the clock will show `reading`."""
        return self._since + (reading - self._base) / self._rate

    def jump(self, seconds: float) -> None:
        """Put the clock forward. Raises ValueError when `seconds` is negative."""
        if not seconds >= 0:
            raise ValueError(
                f"clock jump of {seconds} s: nodes read CLOCK_BOOTTIME, which never goes back; "
                "to have a clock behind the others give it a smaller offset or a lower rate"
            )
        self._base += seconds

    def set_rate(self, now: float, rate: float) -> None:
        """From `now` on count `rate` seconds per second. Raises ValueError unless positive."""
        if not 0 < rate < math.inf:
            raise ValueError(f"clock rate {rate} must be positive: 1.0 is exact, 1.01 is 1 % fast")
        self._base = self.reading(now)
        self._since = now
        self._rate = rate


def _refusal(what: str, instead: str) -> Any:
    def refuse(self: SimLoop, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{what} does not exist in a simulated world: {instead}")

    return refuse


_NO_IO = "it has no descriptors; reach peers through actors, or give the actor a stand-in"
_NO_THREADS = "it has no threads; call the function itself, or give the actor a stand-in"
_NO_DRIVING = "the world steps its loops; use world.run(coroutine) or world.run_for(s=…)"


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process. Made by a `World`; use it like any asyncio loop.

    asyncio's tasks, futures, timeouts, locks and queues work on it unchanged. What needs a thread,
    a descriptor or a signal raises NotImplementedError and says what to do instead. An exception
    in a callback is raised out of the world's `run…` unless a handler was set.
    """

    def __init__(self, timeline: Timeline, clock: SimClock, name: str) -> None:
        self.name = name
        self.clock = clock
        self.io_context = Context()
        self.callbacks = 0
        self.resume_at = -math.inf
        self._timeline = timeline
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_order = count()
        self._cancelled_timers = 0
        self._stepping = False
        self._now = -math.inf
        self._due_at = math.inf
        self._muted = False
        self._closed = False
        self._debug = False
        self._remains: list[object] = []
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, _ErrorContext], object] | None
        self._exception_handler = None
        self._generator_finalizer = self._close_generator

    def __repr__(self) -> str:
        return f"<SimLoop {self.name} at {self.time():.6f}>"

    # -- what the world does with it

    def pause(self, until: float) -> None:
        """Do not step before the world's instant `until`; a longer pause already on holds."""
        self.resume_at = max(self.resume_at, until)
        self._schedule(self.resume_at)

    @property
    def paused(self) -> bool:
        """True while the process is stopped (or gone)."""
        return self.resume_at > self._timeline.now

    def kill(self) -> None:
        """Never step again. Coroutines stay where they stand: no `finally` runs, as in SIGKILL."""
        # Kept to the end of the world: the garbage collector would close coroutines, which runs
        # their `finally` blocks, in the middle of the simulation.
        self._remains.append((asyncio.all_tasks(self), [*self._ready], [*self._timers]))
        self.resume_at = math.inf
        self._due_at = math.inf
        self._muted = True
        self._timers.clear()
        self._ready.clear()
        self._ready = deque(maxlen=0)

    def discard(self) -> None:
        """After the last step: end what is left so that the garbage collector finds it quiet.

        Coroutines get GeneratorExit here, which runs their `finally` blocks outside of the
        simulation; what they raise is ignored.
        """
        self.kill()
        events._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                coroutine = task.get_coro()
                if coroutine is not None:
                    with contextlib.suppress(Exception, asyncio.CancelledError):
                        coroutine.close()
        finally:
            events._set_running_loop(None)
        self._remains.clear()
        self._closed = True

    def call_now(self, function: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
        """Run a plain function as a step of this process, and return what it returns.

        Raises RuntimeError when the process is stopped or gone.
        """
        if self.paused:
            raise RuntimeError(f"{self.name} is paused or crashed: it runs nothing now")
        previous = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return function(*args)
        finally:
            events._set_running_loop(previous)

    def interrupt(self, callback: Callable[..., object], *args: object) -> None:
        """What the kernel hands in: run `callback` on this process at once, or when it wakes.

        For the timeline's own entries only, never from within a step of any loop.
        """
        self._ready.append(asyncio.Handle(callback, args, self, self.io_context))
        if self.resume_at > self._timeline.now:
            self._schedule(self.resume_at)
        else:
            self._step()
            self._schedule(self._next_due())

    def rearm(self) -> None:
        """Compute the next due instant anew; the clock was changed."""
        self._schedule(self._next_due())

    def _schedule(self, when: float) -> None:
        # An entry that is already on the agenda cannot be taken off; it finds itself overtaken.
        if when != self._due_at:
            self._due_at = when
            if when < math.inf:
                self._timeline.at(when, self._due, when)

    def _next_due(self) -> float:
        if self._ready:
            return max(self._timeline.now, self.resume_at)
        if not self._timers:
            return math.inf
        due = self.clock.instant(self._timers[0][0])
        return max(due, self._timeline.now, self.resume_at)

    def _wake(self) -> None:
        self._schedule(max(self._timeline.now, self.resume_at))

    def _due(self, when: float) -> None:
        if when != self._due_at:
            return
        self._due_at = math.inf
        if self.resume_at > self._timeline.now:
            self._schedule(self.resume_at)
            return
        self._step()
        self._schedule(self._next_due())

    def _step(self) -> None:
        """Run turn after turn until nothing is ready at this instant."""
        ready, timers = self._ready, self._timers
        now = max(self.clock.reading(self._timeline.now), self._now)
        if timers and now < timers[0][0] < now + _CLOCK_RESOLUTION_S:
            # The way to the world's instant and back rounds; a timer never sees itself early.
            now = timers[0][0]
        self._now = now
        self._stepping = True
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._generator_finalizer)
        left = CALLBACKS_MAX
        try:
            while True:
                while timers and timers[0][0] <= now:
                    timer = heapq.heappop(timers)[2]
                    if timer._cancelled:
                        self._cancelled_timers -= 1
                    else:
                        ready.append(timer)
                turn = len(ready)
                if not turn:
                    break
                left -= turn
                if left < 0:
                    what = f"{CALLBACKS_MAX} callbacks at one instant on {self.name}"
                    raise LivelockError(self._timeline.report(what))
                while turn and ready:
                    turn -= 1
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._run()
        finally:
            events._set_running_loop(None)
            self._stepping = False
            callbacks = CALLBACKS_MAX - left
            self.callbacks += callbacks
            self._timeline.trace.note(self._timeline.now, self.name, "step", callbacks)

    # -- scheduling

    def time(self) -> float:
        """Seconds on this host's clock; stands still while a callback runs."""
        if self._stepping:
            return self._now
        return max(self.clock.reading(self._timeline.now), self._now)

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Run `callback` in the next turn, after what is ready already."""
        if self._closed:
            self._refuse_closed()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._stepping:
            self._wake()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """The same as `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` after `delay` seconds of this host's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` when this host's clock shows `when`; equal instants in call order."""
        if self._closed:
            self._refuse_closed()
        if when != when:
            raise ValueError("a timer at nan would never be in order: compute its instant anew")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_order), timer))
        if not self._stepping:
            self._wake()
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        """Called by TimerHandle.cancel; timers that never fire must not pile up."""
        self._cancelled_timers += 1
        timers = self._timers
        if self._cancelled_timers > _CANCELLED_TIMERS_KEPT + len(timers) // 2:
            # In place: a step in progress holds this very list.
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self._cancelled_timers = 0

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[_T]:
        """A task of this loop; its first step comes with the next turn."""
        if self._closed:
            self._refuse_closed()
        return asyncio.Task(coro, loop=self, name=name, context=context, **options)

    def get_task_factory(self) -> None:
        """None: tasks are asyncio's own."""

    # -- errors

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, _ErrorContext], object] | None
    ) -> None:
        """Take errors of callbacks instead of failing the world; None restores that."""
        self._exception_handler = handler

    def get_exception_handler(
        self,
    ) -> Callable[[asyncio.AbstractEventLoop, _ErrorContext], object] | None:
        """The handler set, or None."""
        return self._exception_handler

    def default_exception_handler(self, context: _ErrorContext) -> None:
        """Keep the error for the world, which raises it out of its `run…`."""
        error = context.get("exception")
        message = f"{context.get('message', 'error')} on node {self.name}"
        if isinstance(error, BaseException):
            error.add_note(message)
        else:
            error = WorldError(message)
        self._timeline.errors.append(error)

    def call_exception_handler(self, context: _ErrorContext) -> None:
        """Hand an error of a callback to the handler; a process that is gone has none to tell."""
        if self._muted:
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises must fail the world
            self.default_exception_handler({"message": "exception handler", "exception": error})

    # -- state

    def is_running(self) -> bool:
        """True while a callback of this loop runs."""
        return self._stepping

    def is_closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def close(self) -> None:
        """Refuse everything from now on. Raises RuntimeError while a callback runs."""
        if self._stepping:
            raise RuntimeError("cannot close a running event loop: close it between two steps")
        self.kill()
        self._closed = True

    def get_debug(self) -> bool:
        """asyncio's debug mode; off at the start."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """asyncio's debug mode: handles remember where they were made."""
        self._debug = enabled

    def _refuse_closed(self) -> NoReturn:
        raise RuntimeError(f"event loop of {self.name} is closed: its world has ended")

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: the world ends generators with their loop."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._muted:
            self.create_task(generator.aclose(), name="aclose")

    # -- names

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the name is asyncio's
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """IPv4 literals stand for themselves; there is no name service."""
        text = host.decode() if isinstance(host, bytes) else host
        try:
            socket.inet_aton(text or "")
        except OSError:
            raise socket.gaierror(
                socket.EAI_NONAME, f"{text!r} does not resolve in a simulated world: use 10.0.0.N"
            ) from None
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (text, port))]

    # -- what a simulated process does not have

    run_forever = _refusal("run_forever", _NO_DRIVING)
    run_until_complete = _refusal("run_until_complete", _NO_DRIVING)
    stop = _refusal("stop", _NO_DRIVING)
    set_task_factory = _refusal("set_task_factory", "its tasks are asyncio's own")
    run_in_executor = _refusal("run_in_executor", _NO_THREADS)
    set_default_executor = _refusal("set_default_executor", _NO_THREADS)
    getnameinfo = _refusal("getnameinfo", _NO_IO)
    add_reader = _refusal("add_reader", _NO_IO)
    remove_reader = _refusal("remove_reader", _NO_IO)
    add_writer = _refusal("add_writer", _NO_IO)
    remove_writer = _refusal("remove_writer", _NO_IO)
    add_signal_handler = _refusal("add_signal_handler", "use world.crash or world.pause")
    remove_signal_handler = _refusal("remove_signal_handler", "use world.crash or world.pause")
    create_connection = _refusal("create_connection", _NO_IO)
    create_server = _refusal("create_server", _NO_IO)
    create_datagram_endpoint = _refusal("create_datagram_endpoint", _NO_IO)
    create_unix_connection = _refusal("create_unix_connection", _NO_IO)
    create_unix_server = _refusal("create_unix_server", _NO_IO)
    connect_accepted_socket = _refusal("connect_accepted_socket", _NO_IO)
    connect_read_pipe = _refusal("connect_read_pipe", _NO_IO)
    connect_write_pipe = _refusal("connect_write_pipe", _NO_IO)
    start_tls = _refusal("start_tls", _NO_IO)
    sendfile = _refusal("sendfile", _NO_IO)
    subprocess_exec = _refusal("subprocess_exec", "it has no processes but its nodes")
    subprocess_shell = _refusal("subprocess_shell", "it has no processes but its nodes")
    sock_accept = _refusal("sock_accept", _NO_IO)
    sock_connect = _refusal("sock_connect", _NO_IO)
    sock_recv = _refusal("sock_recv", _NO_IO)
    sock_recv_into = _refusal("sock_recv_into", _NO_IO)
    sock_recvfrom = _refusal("sock_recvfrom", _NO_IO)
    sock_recvfrom_into = _refusal("sock_recvfrom_into", _NO_IO)
    sock_sendall = _refusal("sock_sendall", _NO_IO)
    sock_sendfile = _refusal("sock_sendfile", _NO_IO)
    sock_sendto = _refusal("sock_sendto", _NO_IO)
