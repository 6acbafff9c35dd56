"""What the other process of these tests runs (`--app tests.faults.apps:sink`)."""

from __future__ import annotations

from typing import Any

from node import Actor, ActorRef, ActorSystem, Ask, message, on
from tests.processes.apps import Journal


@message("tests.faults.number")
class Number:
    """One of many; `filler` gives it its weight."""

    number: int
    filler: bytes = b""


@message("tests.faults.who-is-there")
class WhoIsThere(Ask[ActorRef[Any]]):
    """Answered with the very actor, its node's uid and its own included."""


class Sink(Actor):
    """Writes down each number it gets."""

    def __init__(self) -> None:
        self._handled = Journal("handled")

    @on(Number)
    def take(self, msg: Number) -> None:
        """Note it."""
        self._handled.write(msg.number)

    @on(WhoIsThere)
    def tell_who(self, msg: WhoIsThere) -> ActorRef[Any]:
        """This one."""
        return self.context.self


def sink(system: ActorSystem) -> None:
    """A sink under `/user/sink`."""
    system.spawn(Sink, name="sink")
