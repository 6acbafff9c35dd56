"""Shopping carts by id, spread over the cluster: one actor per cart, on one node at a time.

Start it on several members with `--app examples.carts:setup`. A cart is built at its first message,
on the node where its shard lives, and passivated after two minutes without one. It moves when
nodes come and go; what is in it is memory, so it is empty then: a real cart reads its content when
it starts (`pre_start`), from a place that all nodes reach.
"""

from __future__ import annotations

from node import Actor, ActorSystem, Ask, message, on

SHARD_COUNT = 60
"""For ever, and the same on all members: an id belongs to a shard by its hash."""


@message("carts.add-item", entity_id="cart_id")  # the field that says whom it is for
class AddItem(Ask[int]):
    """Answered with how many items are in the cart."""

    cart_id: str
    item: str


class Cart(Actor):
    """One cart. Its id is given to it, and is in `self.context.entity_id` as well."""

    def __init__(self, cart_id: str) -> None:
        self.cart_id = cart_id
        self.items: list[str] = []

    @on(AddItem)
    def add(self, msg: AddItem) -> int:
        """One cart handles one message after the other; carts do not wait for each other."""
        self.items.append(msg.item)
        return len(self.items)


def setup(system: ActorSystem) -> None:
    """Called once on each member, before it joins: it offers to host carts.

    What `start` returns is good on every member: `await carts.ask(AddItem("c-42", "book"))`, or
    `await carts["c-42"].ask(…)`, reaches the cart wherever it is, and waits while it moves.
    """
    system.cluster.sharding.start(type_name="cart", actor=Cart, shard_count=SHARD_COUNT)
