"""Where a system is used that cannot be: on another thread, in a forked child."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from node.actor import Actor, on
from node.errors import WrongProcessError, WrongThreadError
from node.runtime import Runtime
from tests.node.stage import A, Add, B, Collector, Greet, Stage


class Adder(Actor):
    @on(Add)
    def add(self, msg: Add) -> int:
        return msg.amount


async def started() -> tuple[Runtime, Any]:
    runtime = Runtime(loop=asyncio.get_running_loop(), clock=time.monotonic, rng=random.Random(1))
    ref = runtime.spawn(Adder, name="a")
    assert await ref.ask(Add(1)) == 1
    return runtime, ref


async def test_tell_from_another_thread_is_refused_with_the_mend() -> None:
    runtime, ref = await started()

    def elsewhere() -> list[str]:
        texts = []
        uses: tuple[Callable[[], object], ...] = (
            lambda: ref.tell(Add(2)),
            lambda: runtime.spawn(Adder),
            lambda: runtime.stop(ref),
        )
        for use in uses:
            with pytest.raises(WrongThreadError) as refused:
                use()
            texts.append(str(refused.value))
        return texts

    texts = await asyncio.get_running_loop().run_in_executor(None, elsewhere)
    assert all("loop.call_soon_threadsafe(ref.tell, message)" in text for text in texts)
    assert runtime.actor_count == 1
    # Nothing was left half done: it goes on as if nothing had been.
    assert await ref.ask(Add(3)) == 3
    assert await runtime.shutdown()


async def test_ask_on_another_loop_is_refused_with_the_mend() -> None:
    runtime, ref = await started()

    def elsewhere() -> None:
        with pytest.raises(WrongThreadError, match="run_coroutine_threadsafe"):
            asyncio.run(ref.ask(Add(2)))

    await asyncio.get_running_loop().run_in_executor(None, elsewhere)
    assert len(runtime.ask_timers) == 0
    assert await runtime.shutdown()


async def test_what_the_text_advises_works() -> None:
    runtime, ref = await started()
    loop = asyncio.get_running_loop()
    seen: list[Any] = []
    collector = runtime.spawn(Collector, seen)

    def elsewhere() -> int:
        loop.call_soon_threadsafe(collector.tell, Greet("x"))
        return int(asyncio.run_coroutine_threadsafe(ref.ask(Add(2)), loop).result(10.0))

    assert await loop.run_in_executor(None, elsewhere) == 2
    assert seen == [Greet("x")]
    assert await runtime.shutdown()


def test_whoever_sets_up_before_the_loop_runs_may_do_so_on_any_thread() -> None:
    loop = asyncio.new_event_loop()
    runtime = Runtime(loop=loop, clock=loop.time, rng=random.Random(1))
    ref = runtime.spawn(Adder)
    answers: list[int] = []

    def run() -> None:
        answers.append(loop.run_until_complete(ref.ask(Add(4))))
        loop.run_until_complete(runtime.shutdown())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10.0)
    loop.close()
    assert answers == [4]


def forked(child: Callable[[], None]) -> str:
    """What a child that was forked here writes: the name and text of what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child()
            text = "nothing raised"
        except BaseException as error:  # noqa: BLE001 - all of it is told
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def _ask(ref: Any) -> Callable[[], None]:
    def ask() -> None:
        coroutine = ref.ask(Add(1))
        try:
            coroutine.send(None)
        finally:
            coroutine.close()

    return ask


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_is_told_so_and_the_parent_goes_on() -> None:
    stage = Stage(A)
    seen: list[Any] = []
    runtime = stage.runtime
    ref = runtime.spawn(Collector, seen)
    far = runtime.ref_at(B, "/user/a")
    ref.tell(Greet("before"))
    uses: dict[str, Callable[[], None]] = {
        "tell": lambda: ref.tell(Greet("child")),
        "ask": _ask(ref),
        "tell by path": lambda: runtime.resolve("/user/nobody").tell(Greet("x")),
        "tell elsewhere": lambda: far.tell(Greet("x")),
        "ask elsewhere": _ask(far),
        "spawn": lambda: runtime.stop(runtime.spawn(Adder)),
    }
    for name, use in uses.items():
        text = forked(use)
        assert text.startswith(f"{WrongProcessError.__name__}: this process was forked"), name
        assert "spawn or forkserver" in text
    stage.settle()
    assert seen == [Greet("before")]
    ref.tell(Greet("after"))
    stage.settle()
    assert seen == [Greet("before"), Greet("after")]
    assert forked(stage.settle) == "nothing raised"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_actor_that_forks_finds_its_refs_refused_in_the_child() -> None:
    class Forks(Actor):
        @on(Greet)
        def greet(self, msg: Greet) -> None:
            texts.append(forked(lambda: self.context.self.tell(Greet("child"))))

    stage = Stage()
    texts: list[str] = []
    stage.runtime.spawn(Forks).tell(Greet("a"))
    stage.settle()
    assert len(texts) == 1
    assert texts[0].startswith("WrongProcessError")
