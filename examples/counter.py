"""A counter that runs once in the whole cluster.

Start it on several members with `--app examples.counter:setup`: one of them hosts the counter.
When that process ends another one hosts it; the total starts again at `start`, because memory
dies with its process (level "none", no journal).
"""

from __future__ import annotations

from node import Actor, ActorSystem, Ask, message, on


@message("counter.add")  # the name on the wire: stable, whatever the class is called later
class Add(Ask[int]):
    """Add `amount`; answered with the new total."""

    amount: int


class Counter(Actor):
    """Keeps one number. Handlers run one after the other, so it needs no lock."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    @on(Add)
    def add(self, msg: Add) -> int:
        """A plain `def` is the fastest handler; what it returns answers the ask."""
        self.total += msg.amount
        return self.total


def setup(system: ActorSystem) -> None:
    """Called once on each member, before it joins.

    Each one offers to host the counter. What `start` returns is good on every member:
    `await counter.ask(Add(2))` reaches the counter wherever it runs, and waits while it moves.
    How unique it is, `--protection none|downing|downing+lease` says when the members are started.
    """
    system.cluster.singleton.start(type_name="counter", actor=Counter)
