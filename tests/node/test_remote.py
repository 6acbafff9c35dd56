"""Two runtimes back to back: tell, ask, forward, errors, and whatever a peer may send."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossip.membership import NodeId
from node.actor import Actor, on
from node.environment import LinkMemory
from node.errors import (
    ActorFailedError,
    AskTimeoutError,
    DeadActorError,
    LinkFullError,
    MailboxFullError,
    MessageError,
    UnhandledMessageError,
)
from node.mailbox import Delivery, WhenFull
from node.messages import Ask, message
from node.ref import ActorRef
from tests.node.stage import A, Add, B, Collector, Greet, Pair, Unheard, Wire


@message("test.remote.receipt")
class Receipt:
    amount: int
    issuer: ActorRef[Any] | None = None


@message("test.remote.buy")
class Buy(Ask[Receipt]):
    amount: int


@message("test.remote.buy_many")
class BuyMany(Ask[list[Receipt]]):
    amounts: list[int]


@message("test.remote.whatever")
class Whatever(Ask[Any]):
    kind: str


@message("test.remote.introduce")
class Introduce:
    to: ActorRef[Any]


class Shop(Actor):
    @on(Buy)
    async def buy(self, msg: Buy) -> Receipt:
        if msg.amount < 0:
            raise ValueError("below zero \ud800" + "x" * 5000)
        await asyncio.sleep(0.5 if msg.amount == 7 else 0.0)
        return Receipt(msg.amount, self.context.self)

    @on(BuyMany)
    def buy_many(self, msg: BuyMany) -> list[Receipt]:
        return [Receipt(amount) for amount in msg.amounts]

    @on(Whatever)
    def whatever(self, msg: Whatever) -> Any:
        answers: dict[str, Any] = {"message": Receipt(1), "plain": {"a": [1]}, "set": {1, 2}}
        return answers[msg.kind]

    @on(Add)
    def add(self, msg: Add) -> str:
        return "no int"

    @on(Introduce)
    def introduce(self, msg: Introduce) -> None:
        msg.to.tell(Greet(f"from {self.context.path}"), sender=self.context.self)


def shop() -> tuple[Pair, ActorRef[Any]]:
    pair = Pair()
    pair.far.spawn(Shop, name="shop")
    return pair, pair.to_far("/user/shop")


def test_ask_across_nodes_with_messages_lists_and_plain_values() -> None:
    pair, ref = shop()

    async def main() -> None:
        receipt = await ref.ask(Buy(3))
        assert receipt.amount == 3
        assert receipt.issuer is not None
        assert (receipt.issuer.node, receipt.issuer.path) == (B, "/user/shop")
        assert await receipt.issuer.ask(Buy(4)) == Receipt(4, receipt.issuer)
        assert await ref.ask(BuyMany([1, 2])) == [Receipt(1), Receipt(2)]
        assert await ref.ask(Whatever("message")) == Receipt(1)
        assert await ref.ask(Whatever("plain")) == {"a": [1]}

    pair.run(main())
    assert pair.refused == []


def test_refs_in_messages_lead_home() -> None:
    """A ref to one of ours comes back as the very ref of the actor."""
    pair, ref = shop()
    seen: list[Any] = []

    class Guest(Collector):
        def receive(self, message: Any, /) -> None:
            seen.append((message, self.context.sender))

    guest = pair.runtime.spawn(Guest, seen)
    ref.tell(Introduce(guest))
    pair.run_for(0.01)
    (greet, sender), *_ = seen
    assert greet == Greet("from /user/shop")
    assert sender == pair.to_far("/user/shop", sender.uid)
    assert not sender.is_local


def test_errors_of_a_remote_ask() -> None:
    pair, ref = shop()
    with pytest.raises(ActorFailedError) as failed:
        pair.run(ref.ask(Buy(-1)))
    assert failed.value.type_name == "ValueError"
    assert failed.value.text.startswith("below zero ?xxx")
    with pytest.raises(UnhandledMessageError, match="/user/shop has no handler for Unheard"):
        pair.run(ref.ask(Unheard()))
    with pytest.raises(DeadActorError, match="there is no actor at this path"):
        pair.run(pair.to_far("/user/nobody").ask(Buy(1)))
    with pytest.raises(ActorFailedError, match="answer to Add: expected int, got str"):
        pair.run(ref.ask(Add(1)))
    with pytest.raises(ActorFailedError, match="answer to Whatever: expected a plain value"):
        pair.run(ref.ask(Whatever("set")))
    with pytest.raises(AskTimeoutError):
        pair.run(ref.ask(Buy(7), timeout_s=0.1))
    pair.run_for(1.0)
    assert pair.runtime.counters["late answers"] == 1


@pytest.mark.parametrize("how", ["removed", "removed by address", "dropped", "closed"])
def test_ask_fails_at_once_when_the_node_is_gone(how: str) -> None:
    pair, ref = shop()
    if how == "removed by address":
        ref = pair.runtime.ref_at(B._replace(uid=0), "/user/shop")
        pair.runtime.remote._data_link = lambda _to: Wire(lambda _payload, _item: None)
    pair.cut = how == "dropped"
    asking = pair.loop.create_task(ref.ask(Buy(7)))
    pair.run_for(0.1)
    if how.startswith("removed"):
        pair.runtime.node_removed(B)
    elif how == "closed":
        pair.run(pair.runtime.shutdown())
    pair.settle()
    assert isinstance(asking.exception(), DeadActorError)
    if how == "dropped":
        assert pair.whys() == ["NOT_SENT"]
        assert pair.letters[0].message == Buy(7)


def test_own_mistakes_raise_where_the_message_is_sent() -> None:
    pair, ref = shop()

    class Unnamed:
        pass

    for wrong, text in [
        (Unnamed(), "Unnamed is no registered message and cannot leave the process"),
        ("text", "str is no registered message"),
        (Greet("\ud800"), "test.greet: cannot be encoded"),
        (Greet("x" * 20_000_000), "at most 8384512 may travel; send it in parts"),
        (Buy("3"), r"Buy\.amount: expected int, got str"),  # type: ignore[arg-type]  # the test
    ]:
        with pytest.raises(MessageError, match=text):
            ref.tell(wrong)
    with pytest.raises(MessageError, match=r"Buy\.amount"):
        pair.run(ref.ask(Buy("3")))  # type: ignore[arg-type]  # that is the test
    assert pair.sent == []
    assert pair.run(ref.ask(Buy(1))).amount == 1


def test_message_type_unknown_on_the_other_side() -> None:
    """Counted, a dead letter there, and the ask learns it; the link lives on (I-132)."""
    pair, ref = shop()
    known = msgpack.packb([1, "/user/shop", 0, None, 77, "nobody.knows", [1], 0], use_bin_type=True)
    pair.far.deliver_frame(A, known, LinkMemory(1 << 20))
    pair.far.deliver_frame(
        A, msgpack.packb([0, "/user/shop", 0, None, 0, "test.add", ["x"], 0]), LinkMemory(1 << 20)
    )
    pair.run_for(0.01)
    assert [reason for reason, _ in pair.refused] == ["unreadable message"] * 2
    assert "no message type 'nobody.knows' is known here" in pair.refused[0][1]
    assert "Add.amount: expected int, got str" in pair.refused[1][1]
    assert [letter.why.name for letter in pair.far_letters] == ["UNREADABLE"] * 2
    assert len(pair.sent) == 1
    assert pair.runtime.counters["late answers"] == 1
    assert pair.run(ref.ask(Buy(1))).amount == 1


def test_held_ask_is_forwarded_to_another_node_and_answered_from_there() -> None:
    """An ask of B that reached A's proxy is answered by whoever hosts; and one of A's own."""
    pair, _ = shop()
    held: list[tuple[NodeId | None, Delivery]] = []
    pair.runtime.path_handlers["/singleton/"] = lambda node, what: held.append((node, what))
    pair.far.spawn_at("/singleton/shop", Shop)
    pair.run_for(0.01)
    own = pair.loop.create_task(pair.runtime.resolve("/singleton/shop").ask(Buy(1)))
    foreign = pair.loop.create_task(pair.far.ref_at(A, "/singleton/shop").ask(Buy(2)))
    pair.run_for(0.01)
    pair.far.ref_at(A, "/singleton/shop").tell(Introduce(pair.far.resolve("/user/x")))
    pair.run_for(0.01)
    assert [(node, what.message) for node, what in held][:2] == [(None, Buy(1)), (B, Buy(2))]
    for _, what in held:
        pair.runtime.forward(what, B)
        assert what.hops == 1
    pair.run_for(0.01)
    assert own.result().amount == 1
    assert foreign.result().amount == 2
    assert [letter.recipient for letter in pair.far_letters] == ["10.0.0.2:25520/user/x"]


def test_forwarded_ask_that_is_dropped_fails_at_its_asker() -> None:
    pair, _ = shop()
    gone = NodeId("10.0.0.3", 25520, 3)
    pair.runtime.path_handlers["/singleton/"] = lambda _node, what: pair.runtime.forward(what, gone)
    foreign = pair.loop.create_task(pair.far.ref_at(A, "/singleton/shop").ask(Buy(2)))
    own = pair.loop.create_task(pair.runtime.resolve("/singleton/shop").ask(Buy(1)))
    pair.run_for(0.01)
    for asking in (foreign, own):
        assert isinstance(asking.exception(), DeadActorError)
        assert "10.0.0.3:25520/singleton/shop cannot be reached" in str(asking.exception())


def test_forward_of_what_cannot_be_encoded_is_a_dead_letter() -> None:
    """I-134: nobody who could be told is there when a buffer is flushed."""
    pair, _ = shop()
    pair.runtime.forward(Delivery(Greet("\ud800"), None, None, "/singleton/x"), B)
    assert pair.whys() == ["NOT_SENT"]


def test_two_envelopes_in_one_frame() -> None:
    pair, _ = shop()
    seen: list[Any] = []
    pair.far.spawn(Collector, seen, name="c")
    for name in "ab":
        pair.to_far("/user/c").tell(Greet(name))
    frame = b"".join(payload for _, _, payload in pair.sent)
    pair.far.deliver_frame(A, memoryview(b"head" + frame)[4:], LinkMemory(1 << 20))
    pair.settle()
    assert seen == [Greet("a"), Greet("b")]


def test_own_node_is_reached_without_the_wire() -> None:
    pair, _ = shop()
    seen: list[Any] = []
    ref = pair.runtime.spawn(Collector, seen, name="c")
    for node in (A, A._replace(uid=0)):
        pair.runtime.ref_at(node, "/user/c", ref.uid if node is A else 0).tell(["any", "object"])
    pair.settle()
    assert seen == [["any", "object"]] * 2
    assert pair.sent == []


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8)
    | st.sampled_from(["/user/shop", "/user/c", "/temp", "test.greet", "test.add"])
    | st.binary(max_size=8)
    | st.builds(lambda code, data: msgpack.ExtType(code, data), st.integers(0, 3), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)  # fmt: skip
ENVELOPES = st.tuples(
    st.integers(-1, 8) | FIELDS,
    st.sampled_from(["/user/shop", "/user/c", "/temp"]) | FIELDS,
    st.integers(0, 3) | FIELDS,
    st.none() | FIELDS,
    st.integers(0, 3) | FIELDS,
    st.sampled_from(["test.greet", "test.add", "test.remote.buy", ""]) | FIELDS,
    st.lists(FIELDS, max_size=4) | FIELDS,
    st.integers(0, 3) | FIELDS,
).map(list)


@settings(max_examples=150, deadline=None)
@given(st.lists(ENVELOPES | st.binary(max_size=40), max_size=4))
def test_no_frame_raises_or_stops_the_node(parts: list[Any]) -> None:
    """I-132, I-133: whatever a peer sends, also between good envelopes."""
    pair, ref = shop()
    frame = b"".join(p if isinstance(p, bytes) else msgpack.packb(p) for p in parts)
    pair.far.deliver_frame(A, frame, LinkMemory(1 << 20))
    pair.runtime.data_dropped(B, frame)
    pair.run_for(0.1)
    assert pair.run(ref.ask(Buy(1))).amount == 1


def test_thousands_of_random_frames() -> None:
    pair, ref = shop()
    rng = random.Random(7)
    for _ in range(5_000):
        pair.far.deliver_frame(A, rng.randbytes(rng.randrange(1, 60)), LinkMemory(1 << 20))
    assert len(pair.refused) >= 5_000
    assert pair.run(ref.ask(Buy(1))).amount == 1


@pytest.mark.parametrize("when_full", ["drop", "fail", "wait"])
def test_an_ask_of_a_full_mailbox_on_another_node_says_so(when_full: WhenFull) -> None:
    """Busy is not dead."""

    class Slow(Actor):
        async def receive(self, message: object, /) -> int:
            await asyncio.sleep(1.0)
            return 7

    pair = Pair()
    pair.far.spawn(Slow, name="slow", mailbox_max=1, when_full=when_full)
    pair.settle()
    ref = pair.to_far("/user/slow")

    async def ask() -> list[object]:
        return await asyncio.gather(*(ref.ask(Add(1)) for _ in range(5)), return_exceptions=True)

    answers = pair.run(ask())
    assert answers.count(7) == 1
    assert [type(answer) for answer in answers if answer != 7] == [MailboxFullError] * 4


def test_a_full_link_is_no_dead_actor() -> None:
    pair = Pair()
    pair.settle()
    link = pair.link(A, B)
    link.is_full = link.is_busy = True
    link.takes_short = False
    asking = pair.loop.create_task(pair.to_far("/user/x").ask(Add(1)))
    pair.to_far("/user/x").tell(Greet("ann"))
    pair.settle()
    assert isinstance(asking.exception(), LinkFullError)
    assert pair.whys() == ["LINK_FULL", "LINK_FULL"]
