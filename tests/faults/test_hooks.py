"""An exception in every hook of a user: it is reported, it stays there, and the node works on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from node import (
    Actor,
    ActorFailed,
    ActorFailedError,
    ActorSystem,
    Ask,
    ConsistentHash,
    DeadLetter,
    Pool,
    Restart,
    Router,
    StopReason,
    TenureError,
    message,
    on,
)

WAIT_S = 10.0


class UnprintableError(Exception):
    """Not even its text can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoExceptionError(BaseException):
    """What no `except Exception` sees."""


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("broken"),
    UnprintableError,
    NoExceptionError,
    SystemExit,
    GeneratorExit,
    StopIteration,
    asyncio.CancelledError,
    RecursionError,
    MemoryError,
]


@message("tests.faults.poke")
class Poke(Ask[str]):
    how: str

    def __repr__(self) -> str:
        raise RuntimeError("no picture of a message")


@message("tests.faults.fussy")
class Fussy(Ask[str]):
    number: int

    def __post_init__(self) -> None:
        if self.number in REFUSED:
            raise ValueError("not this one")


REFUSED: set[int] = set()


class Witness(Actor):
    """Answers as long as the node works."""

    @on(Poke)
    def poke(self, msg: Poke) -> str:
        return "here"

    @on(Fussy)
    def fussy(self, msg: Fussy) -> str:
        return str(msg.number)


class Fragile(Actor):
    """Raises in the hook it is told to."""

    def __init__(self, hook: str, error: Callable[[], BaseException]) -> None:
        self.hook = hook
        self.error = error
        self._at("constructor")

    def _at(self, hook: str) -> None:
        if self.hook == hook:
            raise self.error()

    def pre_start(self) -> None:
        self._at("pre_start")

    @on(Poke)
    async def poke(self, msg: Poke) -> str:
        if self.hook == "become":
            self.context.become(self._behave)
            self.context.self.tell(msg)
        elif self.hook == "await":
            await asyncio.sleep(0)
            self._at("await")
        elif self.hook.startswith("pipe"):
            self._pipe()
        elif self.hook == "timer":
            self.context.timers.once("t", 0.0, "tick")
        elif self.hook == "pre_restart":
            raise ValueError("so that it restarts")
        elif self.hook.startswith("post_stop"):
            self.context.stop(self.context.self)
        self._at("async handler")
        return "alive"

    def _pipe(self) -> None:
        hook = self.hook

        async def outcome() -> int:
            await asyncio.sleep(0)
            self._at("pipe")
            if hook == "pipe on_error":
                raise ValueError("so that on_error is called")
            return 1

        def on_result(_: int) -> None:
            self._at("pipe on_result")

        def on_error(_: Exception) -> None:
            self._at("pipe on_error")

        self.context.pipe_to_self(
            outcome(), on_result, on_error if hook == "pipe on_error" else None
        )

    def _behave(self, _: Any) -> None:
        self._at("become")

    @on(int)
    def number(self, _: int) -> None:
        self._at("handler")

    def receive(self, message: Any, /) -> None:
        self._at("receive")
        self._at("timer")

    async def post_stop(self, reason: StopReason, /) -> None:
        self._at("post_stop")
        await asyncio.sleep(0)
        self._at("post_stop later")

    def pre_restart(self, error: Exception, message: object, /) -> None:
        self._at("pre_restart")


HOOKS = [
    "constructor", "pre_start", "handler", "async handler", "await", "receive", "become", "timer",
    "pipe", "pipe on_result", "pipe on_error", "pre_restart", "post_stop", "post_stop later",
]  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
async def test_whatever_a_hook_raises_stays_in_its_actor(hook: str) -> None:
    loop = asyncio.get_running_loop()
    stray: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: stray.append(context))
    async with ActorSystem() as system:
        witness = system.spawn(Witness)
        failed: list[ActorFailed] = []
        seen = asyncio.Event()

        def note(failure: ActorFailed) -> None:
            failed.append(failure)
            seen.set()

        system.events.subscribe(ActorFailed, note)
        quickly = Restart(retries=2, backoff_s=0.001)
        for number, error in enumerate(ERRORS):
            fragile = system.spawn(Fragile, hook, error, name=f"f{number}", supervision=quickly)
            fragile.tell(7)
            fragile.tell("any")
            fragile.tell(Poke("now"))
            async with asyncio.timeout(WAIT_S):
                while not any(failure.path == fragile.path for failure in failed):
                    seen.clear()
                    await seen.wait()
            assert await witness.ask(Poke("after")) == "here"
    assert (await system.terminated).exit_code == 0
    assert {failure.path for failure in failed} == {f"/user/f{n}" for n in range(len(ERRORS))}
    assert stray == []


async def test_an_ask_is_told_what_its_handler_raised() -> None:
    async with ActorSystem() as system:
        for number, error in enumerate(ERRORS):
            fragile = system.spawn(Fragile, "await", error, name=f"f{number}")
            with pytest.raises(ActorFailedError):
                await fragile.ask(Poke("now"), timeout_s=WAIT_S)


async def test_a_router_goes_on_when_the_users_key_function_raises() -> None:
    def key(_: object) -> str:
        raise errors[-1]()

    errors = [error for error in ERRORS if issubclass(type(error()), Exception)]
    async with ActorSystem() as system:
        failed: list[ActorFailed] = []
        system.events.subscribe(ActorFailed, failed.append)
        router = system.spawn(Router, Pool(Witness, count=2), ConsistentHash(key))
        count = len(errors)
        while errors:
            with pytest.raises(ActorFailedError):
                await router.ask(Poke("now"), timeout_s=WAIT_S)
            errors.pop()
        assert {failure.path for failure in failed} == {router.path}
        assert len(failed) == count


async def test_a_subscriber_that_raises_does_not_keep_the_event_from_others() -> None:
    def broken(_: DeadLetter) -> None:
        raise NoExceptionError

    async with ActorSystem() as system:
        heard: list[DeadLetter] = []
        system.events.subscribe(DeadLetter, broken)
        system.events.subscribe(DeadLetter, heard.append)
        system.resolve("/user/nobody").tell(Poke("now"))
        system.resolve("/user/nobody").tell(Poke("now"))
        assert len(heard) == 2
        assert system.counters()["event handler failures"] == 2


@pytest.mark.parametrize("error", [ValueError("broken"), NoExceptionError("broken")])
async def test_a_setup_that_raises_leaves_nothing_open(error: BaseException) -> None:
    def setup() -> None:
        raise error

    with pytest.raises(type(error), match="broken"):
        await ActorSystem.start(port=0, found=True, before_join=setup)


async def test_a_hook_at_the_end_that_raises_does_not_keep_the_node_from_ending() -> None:
    def before_close() -> None:
        raise ValueError("broken")

    port = 0
    for _ in range(2):  # the second time on the same port: it was closed
        system = await ActorSystem.start(port=port, found=True, before_close=before_close)
        port = system.cluster.self_id.port
        assert await system.spawn(Witness).ask(Poke("now")) == "here"
        await system.leave()
        assert (await system.terminated).exit_code == 0


async def test_a_message_that_refuses_itself_at_the_other_node_fails_its_ask_at_once() -> None:
    """The constructor of a message is user code as well; its sender had no objection."""
    async with ActorSystem(port=0, found=True) as first:
        seed = first.cluster.self_id.address
        async with ActorSystem(port=0, seeds=[seed]) as second:
            await second.cluster.up(2, timeout_s=WAIT_S)
            first.spawn(Witness, name="witness")
            far = second.resolve(f"{seed}/user/witness")
            assert await far.ask(Fussy(7)) == "7"
            message = Fussy(8)
            REFUSED.add(8)
            heard: list[DeadLetter] = []
            first.events.subscribe(DeadLetter, heard.append)
            with pytest.raises(TenureError, match="refused by its own constructor") as caught:
                await far.ask(message, timeout_s=WAIT_S)
            assert not isinstance(caught.value, TimeoutError)
            assert [letter.why.name for letter in heard] == ["UNREADABLE"]
            assert await far.ask(Fussy(9)) == "9"
