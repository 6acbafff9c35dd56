"""SimLoop behaves as asyncio's own loop, in virtual time."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from node.testkit.loop import SimClock, SimLoop
from node.testkit.timeline import LivelockError, Timeline, WorldError


class One:
    """One loop on a timeline of its own."""

    def __init__(self, clock: SimClock | None = None) -> None:
        self.timeline = Timeline()
        self.loop = SimLoop(self.timeline, clock or SimClock(), "a")

    def run(self, coroutine: Coroutine[Any, Any, Any], until: float = 1000.0) -> Any:
        task = self.loop.create_task(coroutine)
        assert self.timeline.run(until, task.done), "the coroutine must end"
        return task.result()

    def run_and_collect(self) -> None:
        self.timeline.run(1.0)
        gc.collect()
        self.timeline.run(2.0)


def test_sleeps_end_in_the_order_of_their_instants_and_take_virtual_time_only() -> None:
    one = One()
    log: list[tuple[str, float]] = []

    async def sleeper(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        log.append((name, one.loop.time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 3600.0), sleeper("soon", 0.5), sleeper("mid", 2.0))

    one.run(main(), until=4000.0)
    assert log == [("soon", 0.5), ("mid", 2.0), ("late", 3600.0)]


def _turns(order: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A program whose order of callbacks depends on the turns of the loop."""

    async def chatter(name: str) -> None:
        for number in range(3):
            order.append(f"{name}{number}")
            await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(order.append, "soon")
        loop.call_later(0, order.append, "later")
        first = asyncio.create_task(chatter("a"))
        loop.call_soon(lambda: loop.call_soon(order.append, "nested"))
        second = asyncio.create_task(chatter("b"))
        second.add_done_callback(lambda _: order.append("done"))
        await first
        order.append("first")
        await second
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
        order.append("end")

    return main


def test_callbacks_come_in_the_same_turns_as_on_asyncios_own_loop() -> None:
    theirs: list[str] = []
    asyncio.run(_turns(theirs)())
    ours: list[str] = []
    One().run(_turns(ours)())
    assert ours == theirs
    assert len(ours) == 12


def test_timers_of_one_instant_fire_in_call_order_and_cancelled_ones_never() -> None:
    one = One()
    log: list[int] = []
    timers = [one.loop.call_at(5.0, log.append, number) for number in range(20)]
    for number in (0, 7, 19):
        timers[number].cancel()
    one.timeline.run(4.999)
    assert log == []
    one.timeline.run(5.0)
    assert log == [number for number in range(20) if number not in (0, 7, 19)]
    assert timers[1].when() == 5.0


def test_a_timer_never_sees_a_clock_that_is_before_its_instant() -> None:
    one = One(SimClock(offset_s=1000.1, rate=1.0 / 3.0))
    early: list[float] = []

    def check(when: float) -> None:
        if one.loop.time() < when:
            early.append(when)

    for number in range(500):
        when = 1000.1 + number * 0.1 / 7
        one.loop.call_at(when, check, when)
    one.timeline.run(100.0)
    assert early == []


def test_timeouts_cancel_and_nested_timeouts_keep_apart() -> None:
    one = One()

    async def main() -> list[str]:
        log = []
        try:
            async with asyncio.timeout(10.0):
                try:
                    async with asyncio.timeout(1.0):
                        await asyncio.sleep(5.0)
                except TimeoutError:
                    log.append(f"inner {one.loop.time()}")
                await asyncio.Event().wait()
        except TimeoutError:
            log.append(f"outer {one.loop.time()}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(2.0), 1.5)
        log.append(f"wait_for {one.loop.time()}")
        return log

    assert one.run(main()) == ["inner 1.0", "outer 10.0", "wait_for 11.5"]


def test_cancelled_tasks_run_their_finally_and_gather_reports_the_first_error() -> None:
    one = One()
    log: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            log.append(f"cancelled at {one.loop.time()}")
            raise
        finally:
            await asyncio.sleep(1.0)
            log.append(f"cleaned at {one.loop.time()}")

    async def failing() -> None:
        await asyncio.sleep(2.0)
        raise ValueError("no")

    async def main() -> None:
        task = asyncio.create_task(worker())
        await asyncio.sleep(3.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="no"):
            await asyncio.gather(failing(), asyncio.sleep(1.0))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1.0))

    one.run(main())
    assert log == ["cancelled at 3.0", "cleaned at 4.0"]


def test_queue_lock_event_condition_and_semaphore_work() -> None:
    one = One()

    async def main() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        lock, event, gate = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(1)
        changed = asyncio.Condition(lock)
        log: list[object] = []

        async def consume() -> None:
            log.extend([await queue.get() for _ in range(3)])
            async with changed:
                changed.notify_all()
            event.set()

        task = asyncio.create_task(consume())
        for number in range(3):
            async with gate:
                await queue.put(number)
        async with changed:
            await changed.wait()
        await event.wait()
        await task
        return log

    assert one.run(main()) == [0, 1, 2]


def test_tasks_have_names_contexts_and_know_themselves() -> None:
    one = One()
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def tell() -> tuple[str, str]:
        task = asyncio.current_task()
        assert task is not None
        assert asyncio.get_running_loop() is one.loop
        assert one.loop.is_running()
        return task.get_name(), who.get()

    async def main() -> list[tuple[str, str]]:
        other = contextvars.copy_context()
        other.run(who.set, "other")
        who.set("main")
        tasks = [
            asyncio.create_task(tell(), name="mine"),
            asyncio.create_task(tell(), name="theirs", context=other),
        ]
        one.loop.call_soon(who.set, "lost")
        return list(await asyncio.gather(*tasks))

    assert one.run(main()) == [("mine", "main"), ("theirs", "other")]
    assert who.get() == "nobody"
    assert not one.loop.is_running()


def test_an_error_in_a_callback_surfaces_with_the_last_steps() -> None:
    one = One()

    def fail() -> None:
        raise ZeroDivisionError("seven")

    one.loop.call_later(3.0, fail)
    with pytest.raises(ZeroDivisionError, match="seven") as caught:
        one.timeline.run(10.0)
    notes = "\n".join(caught.value.__notes__)
    assert "at 3.000000 virtual s" in notes
    assert "on node a" in notes


def test_an_error_nobody_fetched_surfaces_and_a_handler_takes_it_instead() -> None:
    one = One()

    async def fail() -> None:
        raise ZeroDivisionError

    one.loop.create_task(fail())
    with pytest.raises(ZeroDivisionError):
        one.run_and_collect()

    seen: list[dict[str, Any]] = []
    one.loop.set_exception_handler(lambda _loop, context: seen.append(context))
    one.loop.call_soon(lambda: 1 / 0)
    one.timeline.run(3.0)
    assert isinstance(seen[0]["exception"], ZeroDivisionError)
    assert one.loop.get_exception_handler() is not None

    def broken(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
        raise KeyError("handler")

    one.loop.set_exception_handler(broken)
    one.loop.call_soon(lambda: 1 / 0)
    with pytest.raises(KeyError, match="handler"):
        one.timeline.run(4.0)


def test_a_task_that_is_lost_while_it_waits_fails_the_world() -> None:
    one = One()

    async def wait_for_nobody() -> None:
        await one.loop.create_future()

    one.loop.create_task(wait_for_nobody())
    with pytest.raises(WorldError, match="destroyed but it is pending"):
        one.run_and_collect()


def test_a_loop_that_never_waits_is_a_livelock_and_not_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.testkit.loop.CALLBACKS_MAX", 1000)
    one = One()

    def spin() -> None:
        one.loop.call_soon(spin)

    one.loop.call_soon(spin)
    with pytest.raises(LivelockError, match="1000 callbacks at one instant"):
        one.timeline.run(1.0)


def test_entries_that_call_each_other_at_one_instant_are_a_livelock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.testkit.timeline.INSTANT_ENTRIES_MAX", 1000)
    timeline = Timeline()

    def again() -> None:
        timeline.at(timeline.now, again)

    timeline.at(1.0, again)
    with pytest.raises(LivelockError, match="1000 entries"):
        timeline.run(2.0)


def test_a_pause_makes_a_timeout_fire_late_and_then_what_came_meanwhile_was_read_first() -> None:
    one = One()
    log: list[str] = []

    async def main() -> None:
        try:
            async with asyncio.timeout(1.0):
                await asyncio.sleep(60.0)
        except TimeoutError:
            log.append(f"timeout at {one.loop.time()}")

    task = one.loop.create_task(main())
    one.timeline.run(0.5)
    one.loop.pause(4.5)
    one.timeline.at(2.0, one.loop.interrupt, log.append, "frame")
    one.timeline.run(4.0)
    assert log == []
    assert one.loop.paused
    assert one.timeline.run(10.0, task.done)
    assert log == ["frame", "timeout at 4.5"]


def test_a_killed_loop_takes_no_further_step_and_runs_no_finally() -> None:
    one = One()
    log: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(2.0)
            log.append("woke")
        finally:
            log.append("finally")

    one.loop.create_task(main())
    one.timeline.run(1.0)
    one.loop.kill()
    one.loop.call_soon(log.append, "soon")
    one.loop.call_later(0.5, log.append, "later")
    one.timeline.at(1.5, one.loop.interrupt, log.append, "interrupt")
    one.timeline.run(5.0)
    gc.collect()
    assert log == []
    with pytest.raises(RuntimeError, match="paused or crashed"):
        one.loop.call_now(log.append, "now")
    one.loop.discard()
    assert log == ["finally"], "the world ends coroutines only when it is over"


def test_a_step_that_kills_its_own_loop_is_the_last() -> None:
    one = One()
    log: list[str] = []
    one.loop.call_soon(one.loop.kill)
    one.loop.call_soon(log.append, "after")
    one.timeline.run(1.0)
    assert log == []


def test_clocks_have_an_offset_and_a_rate_and_only_go_forward() -> None:
    clock = SimClock(offset_s=500.0, rate=2.0)
    one = One(clock)
    fired: list[float] = []
    one.loop.call_later(10.0, lambda: fired.append(one.timeline.now))
    one.timeline.run(4.9)
    assert fired == []
    assert one.loop.time() == pytest.approx(509.8)
    one.timeline.run(6.0)
    assert fired == [pytest.approx(5.0)]
    clock.set_rate(6.0, 0.5)
    assert one.loop.time() == pytest.approx(512.0)
    one.loop.call_later(1.0, lambda: fired.append(one.timeline.now))
    one.timeline.run(10.0)
    assert fired[1] == pytest.approx(8.0)
    one.loop.call_later(100.0, lambda: fired.append(one.timeline.now))
    clock.jump(99.0)
    one.loop.rearm()
    one.timeline.run(13.0)
    assert fired[2] == pytest.approx(12.0)
    with pytest.raises(ValueError, match="never goes back"):
        clock.jump(-1.0)
    with pytest.raises(ValueError, match="must be positive"):
        clock.set_rate(13.0, 0.0)


def test_many_cancelled_timers_do_not_pile_up() -> None:
    one = One()

    async def main() -> None:
        for _ in range(5000):
            async with asyncio.timeout(1000.0):
                await asyncio.sleep(0)

    one.run(main())
    assert len(one.loop._timers) < 500


def test_what_a_simulated_process_does_not_have_is_refused_in_words() -> None:
    one = One()
    loop = one.loop
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: loop.run_in_executor(None, print), "no threads"),
        (lambda: loop.add_reader(0, print), "no descriptors"),
        (lambda: loop.create_server(asyncio.Protocol), "no descriptors"),
        (lambda: loop.add_signal_handler(15, print), "world.crash"),
        (loop.run_forever, "world.run"),
        (lambda: loop.subprocess_exec(asyncio.SubprocessProtocol, "ls"), "its nodes"),
    ]
    for call, words in refused:
        with pytest.raises(NotImplementedError, match=words):
            call()
    with pytest.raises(ValueError, match="nan"):
        loop.call_at(float("nan"), print)

    async def thread() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(NotImplementedError, match="no threads"):
        one.run(thread())


def test_address_literals_resolve_and_names_do_not() -> None:
    one = One()

    async def resolve(host: str) -> str:
        return str((await one.loop.getaddrinfo(host, 80))[0][4][0])

    assert one.run(resolve("10.0.0.3")) == "10.0.0.3"
    with pytest.raises(OSError, match="does not resolve"):
        one.run(resolve("example.org"))


def test_a_closed_loop_refuses_everything() -> None:
    one = One()
    one.loop.close()
    assert one.loop.is_closed()
    for call in (one.loop.call_soon, lambda f: one.loop.call_later(1.0, f)):
        with pytest.raises(RuntimeError, match="closed"):
            call(print)


def test_a_closing_callback_and_debug_mode() -> None:
    one = One()
    one.loop.call_soon(one.loop.close)
    with pytest.raises(RuntimeError, match="cannot close a running"):
        one.timeline.run(1.0)
    assert one.loop.get_debug() is False
    one.loop.set_debug(True)
    assert one.loop.get_debug() is True

    async def nothing() -> None:
        await one.loop.shutdown_asyncgens()
        await one.loop.shutdown_default_executor()

    one.run(nothing())


def test_a_generator_left_half_way_is_closed_on_its_own_loop() -> None:
    one = One()
    log: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1.0)
            log.append(f"closed at {one.loop.time()}")

    async def main() -> None:
        async for _ in numbers():
            break
        gc.collect()
        await asyncio.sleep(2.0)

    one.run(main())
    assert log == ["closed at 1.0"]


def test_a_world_refuses_to_run_inside_a_running_loop() -> None:
    async def main() -> None:
        Timeline().run(1.0)

    with pytest.raises(RuntimeError, match="plain def"):
        asyncio.run(main())


def test_the_running_loop_is_gone_after_a_step_that_raised() -> None:
    one = One()

    def stop() -> None:
        raise KeyboardInterrupt

    one.loop.call_soon(stop)
    with pytest.raises(KeyboardInterrupt):
        one.timeline.run(1.0)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_awaiting_what_is_done_already_takes_no_turn() -> None:
    one = One()

    async def main() -> int:
        future: asyncio.Future[int] = one.loop.create_future()
        future.set_result(3)
        awaitable: Awaitable[int] = future
        return await awaitable

    assert one.run(main()) == 3
