"""`become` and `unbecome`, alone and together with stash, asks, restarts and timers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node.actor import Actor, Terminated, on
from node.errors import UnhandledMessageError
from node.messages import Ask, message
from node.supervision import Restart
from tests.node.stage import Add, Greet, Stage, Unheard


@message("test.behaviour.door")
class Door(Ask[str]):
    """Open it, close it, lock it, break it."""

    what: str


class Lock(Actor):
    """A door: what it answers depends on what happened before."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @on(Door)
    def door(self, msg: Door) -> str:
        if msg.what == "open":
            self.context.become(self.opened)
        return f"closed: {msg.what}"

    @on(Greet)
    def greet(self, msg: Greet) -> None:
        self.log.append(f"closed: {msg.name}")

    def opened(self, msg: Any) -> Any:
        if isinstance(msg, Door):
            if msg.what == "close":
                self.context.unbecome()
            elif msg.what == "break":
                raise ValueError(msg.what)
            elif msg.what == "wait":
                self.context.become(self.waiting)
                return self.later(msg)
            return f"open: {msg.what}"
        if isinstance(msg, Greet):
            self.log.append(f"open: {msg.name}")
        else:
            self.context.unhandled()
        return None

    async def later(self, msg: Door) -> str:
        await asyncio.sleep(1.0)
        self.log.append("waited")
        return "open: waited"

    async def waiting(self, msg: Any) -> None:
        if isinstance(msg, Greet) and msg.name == "done":
            self.context.unbecome()
            self.context.unstash_all()
        else:
            self.context.stash()


def test_behaviour_takes_every_message_from_the_next_one_on() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Lock, log)

    async def main() -> list[str]:
        steps = ("knock", "open", "knock", "open", "close", "knock")
        return list(await asyncio.gather(*[ref.ask(Door(what)) for what in steps]))

    assert stage.run(main()) == [
        "closed: knock",
        "closed: open",
        "open: knock",
        "open: open",
        "open: close",
        "closed: knock",
    ]


def test_what_a_behaviour_does_not_want_is_unhandled() -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Lock, [], name="l")
    stage.run(ref.ask(Door("open")))
    with pytest.raises(UnhandledMessageError, match="/user/l has no handler for Unheard"):
        stage.run(ref.ask(Unheard()))
    ref.tell("text")
    stage.settle()
    assert [(letter.message, letter.why.name) for letter in stage.letters] == [
        (Unheard(), "UNHANDLED"),
        ("text", "UNHANDLED"),
    ]


def test_restart_begins_with_the_handlers() -> None:
    stage = Stage()
    ref = stage.runtime.spawn(Lock, [], supervision=Restart(backoff_s=0.0))
    stage.run(ref.ask(Door("open")))
    ref.tell(Door("break"))
    assert stage.run(ref.ask(Door("knock"))) == "closed: knock"


def test_stash_waits_for_another_behaviour() -> None:
    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Lock, log)
    stage.run(ref.ask(Door("open")))
    ref.tell(Door("wait"))
    for name in ("a", "b", "done", "c"):
        ref.tell(Greet(name))
    stage.run_for(5.0)
    assert log == ["waited", "closed: a", "closed: b", "closed: c"]


def test_timers_death_watch_and_senders_reach_a_behaviour_as_well() -> None:
    class Watcher(Actor):
        def pre_start(self) -> None:
            self.context.become(self.take)
            self.context.timers.once("t", 1.0, Greet("tick"))

        def take(self, msg: Any) -> None:
            sender = self.context.sender
            seen.append((msg, None if sender is None else sender.path))

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            raise AssertionError

    stage = Stage()
    seen: list[Any] = []
    other = stage.runtime.spawn(Lock, [], name="other")
    watcher = stage.runtime.spawn(Watcher)
    stage.settle()
    cell = stage.runtime.cell_at(watcher.path, 0)
    assert cell is not None
    cell.watch(other)
    watcher.tell(Greet("a"), sender=other)
    stage.runtime.stop(other)
    stage.run_for(2.0)
    assert [type(msg) for msg, _ in seen] == [Greet, Terminated, Greet]
    assert [by for _, by in seen] == ["/user/other", None, None]


def test_what_cannot_be_called_is_no_behaviour() -> None:
    class Wrong(Actor):
        @on(Add)
        def add(self, msg: Add) -> int:
            self.context.become(3)  # type: ignore[arg-type]  # that is the test
            return 1

    stage = Stage()
    ref = stage.runtime.spawn(Wrong)
    ref.tell(Add(1))
    stage.settle()
    assert stage.failures[0].text.startswith("3 cannot be called")


def test_stash_of_a_failing_handler_comes_back_in_order_after_a_restart() -> None:
    class Stashing(Actor):
        def __init__(self, log: list[str]) -> None:
            self.log = log
            self.is_ready = "broken" in log

        @on(Greet)
        def greet(self, msg: Greet) -> None:
            if not self.is_ready:
                if msg.name == "break":
                    self.log.append("broken")
                    raise ValueError
                self.context.stash()
            else:
                self.log.append(msg.name)

    stage = Stage()
    log: list[str] = []
    ref = stage.runtime.spawn(Stashing, log, supervision=Restart(backoff_s=0.0))
    for name in ("a", "b", "break", "c"):
        ref.tell(Greet(name))
    stage.run_for(1.0)
    assert log == ["broken", "a", "b", "c"]
