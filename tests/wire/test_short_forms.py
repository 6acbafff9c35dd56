"""Numbers in place of paths and tags: defined once, renewed, and never guessed (I-136)."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from node.actor import Actor, on
from node.codec import DEFINE_SENDER, DEFINE_TAG, DEFINE_TARGET, SHORT_ASK, SHORT_REPLY, SHORT_TELL
from node.environment import LinkMemory
from node.errors import ActorFailedError, MessageError
from node.messages import Ask, message
from node.names import NAMES_MAX
from node.streams import only_piece
from tests.node.stage import A, B, Collector, Greet, Pair


@message("short.blob")
class Blob:
    """Large, if asked to be."""

    data: bytes


def frame(*values: object) -> bytes:
    return b"".join(msgpack.packb(value) for value in values)


def scene() -> tuple[Pair, list[Any], LinkMemory]:
    """Node b has an actor "x", and a connection from node a that said nothing yet."""
    pair = Pair()
    got: list[Any] = []
    pair.far.spawn(Collector, got, name="x")
    pair.settle()
    return pair, got, LinkMemory(1 << 20)


TARGET = [DEFINE_TARGET, 1, "/user/x", 0]
TAG = [DEFINE_TAG, 2, "test.greet"]
TELL = [SHORT_TELL, 1, 2, ["ann"]]


def test_what_was_defined_is_understood_as_long_as_the_connection_lasts() -> None:
    pair, got, memory = scene()
    pair.far.deliver_frame(A, frame(TARGET, TAG, TELL), memory)
    pair.far.deliver_frame(A, frame(TELL, TELL), memory)
    pair.settle()
    assert got == [Greet("ann")] * 3
    pair.far.deliver_frame(A, frame(TELL), LinkMemory(1 << 20))
    pair.settle()
    assert len(got) == 3
    assert pair.refused == [("bad envelope", "a short message whose target or tag is not defined")]


def test_a_number_may_be_defined_anew() -> None:
    pair, got, memory = scene()
    other: list[Any] = []
    pair.far.spawn(Collector, other, name="y")
    pair.settle()
    pair.far.deliver_frame(A, frame(TARGET, TAG, TELL), memory)
    pair.far.deliver_frame(A, frame([DEFINE_TARGET, 1, "/user/y", 0], TELL), memory)
    pair.settle()
    assert (got, other) == ([Greet("ann")], [Greet("ann")])


@pytest.mark.parametrize("piece", [False, True])
def test_what_a_refused_frame_defines_holds_for_the_next_one(*, piece: bool) -> None:
    """The cluster may become ours on the same connection: its names must not be lost."""
    pair, got, memory = scene()
    first = frame(TARGET, TAG, TELL)
    if piece:
        made = only_piece(first, b"x" * 40_000)
        assert made is not None
        pair.far.skip_piece(A, made.header, memoryview(made.data), memory)
    else:
        pair.far.skip_frame(A, first, memory)
    pair.far.deliver_frame(A, frame(TELL), memory)
    pair.settle()
    assert got == [Greet("ann")], "the refused message itself is not delivered"


def test_more_names_than_numbers() -> None:
    """A full table begins anew, in the middle of a stream of messages."""
    pair, got, _ = scene()
    refs = [pair.to_far(f"/user/{number}") for number in range(NAMES_MAX + 500)]
    x = pair.to_far("/user/x")
    for number, ref in enumerate(refs):
        ref.tell(Greet("nobody"))
        x.tell(Greet(str(number)))
    refs[0].tell(Greet("again"), pair.runtime.spawn(Collector, [], name="me"))
    x.tell(Greet("last"))
    pair.run_for(1.0)
    assert [message.name for message in got] == [*map(str, range(NAMES_MAX + 500)), "last"]
    assert pair.refused == []
    assert len(pair.far_letters) == NAMES_MAX + 501
    assert {letter.recipient.rpartition("/")[0] for letter in pair.far_letters} == {
        f"{B.address}/user"
    }


def test_a_cell_that_ended_gives_its_number_to_its_successor() -> None:
    pair, got, _ = scene()
    x = pair.to_far("/user/x")
    x.tell(Greet("one"))
    pair.run_for(0.1)
    pair.far.stop(pair.far.ref_at(None, "/user/x"))
    pair.run_for(0.1)
    x.tell(Greet("two"))
    pair.run_for(0.1)
    assert [letter.message for letter in pair.far_letters] == [Greet("two")]
    pair.far.spawn(Collector, got, name="x")
    pair.run_for(0.1)
    x.tell(Greet("three"))
    pair.run_for(0.1)
    assert got == [Greet("one"), Greet("three")]


@pytest.mark.parametrize(
    "values",
    [
        [[SHORT_TELL, 1, 2, ["ann"]]],  # not defined
        [TARGET, TAG, [SHORT_TELL, 2, 1, ["ann"]]],  # a tag is no target
        [TARGET, TAG, [SHORT_TELL, True, 2, ["ann"]]],
        [TARGET, TAG, [SHORT_TELL, [1], 2, ["ann"]]],
        [TARGET, TAG, [SHORT_TELL, -1, 2, ["ann"]]],
        [TARGET, TAG, [SHORT_TELL, 1, 2, ["ann"], 9]],  # no such sender
        [TARGET, TAG, [SHORT_TELL, 1, 2, ["ann"], "me"]],
        [TARGET, TAG, [SHORT_ASK, 1, 2, ["ann"], -1]],
        [TARGET, TAG, [SHORT_ASK, 1, 2, ["ann"], "7"]],
        [[DEFINE_TARGET, NAMES_MAX, "/user/x", 0]],
        [[DEFINE_TARGET, -1, "/user/x", 0]],
        [[DEFINE_TARGET, 1, "user/x", 0]],
        [[DEFINE_TARGET, 1, "/user/x", -1]],
        [[DEFINE_TARGET, 1, "/user/x"]],
        [[DEFINE_TARGET, 1, "/" + "x" * 2000, 0]],
        [[DEFINE_TAG, 1, "x" * 200]],
        [[DEFINE_TAG, 1, b"test.greet"]],
        [[DEFINE_SENDER, 1, "/user/me"]],
        [[22, 1, 2]],
        [[99, 1, 2]],
    ],
)
def test_nonsense_is_refused_and_the_next_message_is_read(values: list[Any]) -> None:
    pair, got, memory = scene()
    pair.far.deliver_frame(A, frame(*values), memory)
    pair.far.deliver_frame(A, frame(TARGET, TAG, TELL), memory)
    pair.settle()
    assert len(pair.refused) == 1
    assert got == [Greet("ann")]


def test_nobody_defines_an_actor_of_another_node_as_its_sender() -> None:
    """Identity is the connection, never a field in the payload (I-67)."""
    pair, got, memory = scene()
    codec = pair.runtime.remote._codec
    forged = pair.runtime.ref_at(B._replace(uid=3), "/user/boss", 1)
    pair.far.deliver_frame(A, codec.pack([DEFINE_SENDER, 5, forged]), memory)
    pair.far.deliver_frame(A, frame(TARGET, TAG, [*TELL, 5], TELL), memory)
    pair.settle()
    assert got == [Greet("ann")]
    assert [reason for reason, _ in pair.refused] == ["bad envelope"] * 2


def test_an_answer_nobody_waits_for_is_counted() -> None:
    pair, _, memory = scene()
    pair.far.deliver_frame(A, frame([SHORT_REPLY, 7, 1], [SHORT_REPLY, "7", 1]), memory)
    assert pair.far.counters["late answers"] == 2


@pytest.mark.parametrize("size", [32 * 1024 - 1, 32 * 1024, 256 * 1024, 256 * 1024 + 1])
def test_bytes_of_any_size_come_out_as_they_went_in(size: int) -> None:
    """Inline, as one piece, and in pieces."""
    pair, got, memory = scene()
    data = bytes(range(256)) * (size // 256 + 1)
    pair.to_far("/user/x").tell(Blob(data[:size]))
    link = pair.links[A, B]
    for header, parts in link.large:
        if size <= 256 * 1024:
            pair.far.deliver_piece(A, header, memoryview(parts[0]), memory)
    pair.run_for(0.1)
    if size <= 256 * 1024:
        assert got == [Blob(data[:size])]
    else:
        ((_, parts),) = link.large
        assert parts[0] is not data
        assert len(parts[0]) == size


@message("short.list")
class Numbers:
    """Large without a large field."""

    values: list[int]


@message("short.blob.ask")
class GiveBlob(Ask[bytes]):
    """Answered with so many bytes."""

    size: int
    data: bytes = b""


class Giver(Actor):
    """Answers."""

    @on(GiveBlob)
    def give(self, msg: GiveBlob) -> bytes:
        return bytes(msg.size)


@pytest.mark.parametrize("limit", [20_000, 50_000, 300_000])
def test_what_is_too_large_is_refused_in_every_form(limit: int) -> None:
    """The receiver would end the connection: inline, as a part, asked, told, or as an answer."""
    pair = Pair(envelope_bytes_max=limit)
    pair.far.spawn(Giver, name="g")
    pair.settle()
    ref = pair.to_far("/user/g")
    pair.run(ref.ask(GiveBlob(1)))
    for too_large in (Blob(bytes(limit + 1)), Numbers([2**63] * (limit // 8))):
        with pytest.raises(MessageError, match="may travel"):
            ref.tell(too_large)
    with pytest.raises(MessageError, match="may travel"):
        pair.run(ref.ask(GiveBlob(1, bytes(limit + 1))))
    with pytest.raises(ActorFailedError, match="may travel"):
        pair.run(ref.ask(GiveBlob(limit + 1)))
    assert pair.run(ref.ask(GiveBlob(7))) == bytes(7), "and nothing of it is left over"
