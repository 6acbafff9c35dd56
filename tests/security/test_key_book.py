"""Who may speak for whom, as a table: the decision behind every secured connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossip.membership import NodeId
from node.key_book import KeyBook
from node.keys import TrustedKey

A, B, C = (bytes([letter]) * 32 for letter in b"abc")
NODE = NodeId("10.0.0.1", 25520, 1)
RESTARTED = NodeId("10.0.0.1", 25520, 2)
ELSEWHERE = NodeId("10.0.0.2", 25520, 3)
SEED = NodeId("10.0.0.1", 25520, 0)


def book(*lines: TrustedKey, nodes_max: int = 100) -> KeyBook:
    """A book with these lines of `trusted`."""
    return KeyBook(lines, nodes_max=nodes_max)


def at(key: bytes, host: str = "10.0.0.1", port: int = 25520) -> TrustedKey:
    """A line that holds a key to an address."""
    return TrustedKey(key, host, port)


def anywhere(key: bytes) -> TrustedKey:
    """A line without an address."""
    return TrustedKey(key)


def recorded(node: NodeId, key: bytes) -> Callable[[KeyBook], object]:
    """A member record has been learned."""
    return lambda known: known.recorded(node, key)


def introduced(node: NodeId, key: bytes) -> Callable[[KeyBook], object]:
    """A connection has introduced itself before."""
    return lambda known: known.introduced(node, key)


def forgotten(node: NodeId, key: bytes) -> Callable[[KeyBook], object]:
    """It was a member, and is none any more."""

    def both(known: KeyBook) -> None:
        known.recorded(node, key)
        known.forget(node)

    return both


@pytest.mark.parametrize(
    ("lines", "before", "sender", "key", "verdict"),
    [
        # trusted at all?
        ([anywhere(A)], [], NODE, A, None),
        ([anywhere(A)], [], NODE, B, "revoked-key"),
        ([anywhere(A)], [], NODE, b"", "revoked-key"),
        # the process itself is bound
        ([anywhere(A), anywhere(B)], [introduced(NODE, A)], NODE, A, None),
        ([anywhere(A), anywhere(B)], [introduced(NODE, A)], NODE, B, "wrong-key"),
        ([anywhere(A), anywhere(B)], [recorded(NODE, A)], NODE, A, None),
        ([anywhere(A), anywhere(B)], [recorded(NODE, A)], NODE, B, "wrong-key"),
        ([anywhere(A), anywhere(B)], [forgotten(NODE, A)], NODE, B, None),
        ([at(A), at(B)], [introduced(NODE, A)], NODE, B, "wrong-key"),
        # its address is named
        ([at(A), anywhere(B)], [], NODE, A, None),
        ([at(A), anywhere(B)], [], NODE, B, "wrong-key"),
        ([at(A), at(B)], [], NODE, B, None),
        ([at(A, port=1), anywhere(B)], [], NODE, B, None),
        # the key is held to addresses
        ([at(A)], [], ELSEWHERE, A, "wrong-key"),
        ([at(A), at(A, "10.0.0.2")], [], ELSEWHERE, A, None),
        ([at(A), anywhere(A)], [], ELSEWHERE, A, "wrong-key"),
        # a member is known at the address, and nobody names it
        ([anywhere(A), anywhere(B)], [recorded(NODE, A)], RESTARTED, A, None),
        ([anywhere(A), anywhere(B)], [recorded(NODE, A)], RESTARTED, B, "wrong-key"),
        ([anywhere(A), anywhere(B)], [recorded(NODE, A)], ELSEWHERE, B, None),
        ([anywhere(A), anywhere(B)], [forgotten(NODE, A)], RESTARTED, B, None),
        ([anywhere(A), anywhere(B)], [introduced(NODE, A)], RESTARTED, B, None),
        # the operator's word on an address goes before a record of another process there
        ([anywhere(A), at(B)], [recorded(NODE, A)], RESTARTED, B, None),
    ],
)
def test_may_this_connection_be_that_node(
    lines: list[TrustedKey],
    before: list[Callable[[KeyBook], object]],
    sender: NodeId,
    key: bytes,
    verdict: str | None,
) -> None:
    """A key speaks for the nodes it fits, and for no other."""
    known = book(*lines)
    for step in before:
        step(known)
    refusal = known.introduced(sender, key)
    assert (refusal.reason if refusal else None) == verdict
    if refusal is None:
        assert known.key_of(sender) == key
    else:
        assert known.key_of(sender) != key or not key


@pytest.mark.parametrize(
    ("lines", "before", "peer", "keys"),
    [
        ([anywhere(A)], [], NODE, ()),
        ([anywhere(A)], [], SEED, ()),
        ([at(A)], [], SEED, (A,)),
        ([at(A)], [], NODE, (A,)),
        ([at(A), at(B), at(A)], [], SEED, (A, B)),
        ([anywhere(A)], [recorded(NODE, A)], NODE, (A,)),
        ([anywhere(A)], [recorded(NODE, A)], SEED, (A,)),
        ([anywhere(A)], [introduced(NODE, A)], NODE, (A,)),
        ([anywhere(A)], [introduced(NODE, A)], SEED, (A,)),
        ([anywhere(A)], [introduced(NODE, A)], ELSEWHERE, ()),
        # of this very process the key is known: no other will do
        ([at(A), at(B)], [introduced(NODE, B)], NODE, (B,)),
        ([at(A), at(B)], [introduced(NODE, B)], SEED, (A, B)),
        # not trusted (any more): not dialled, whoever says that it is a member
        ([anywhere(B)], [recorded(NODE, A)], NODE, ()),
        ([anywhere(B)], [recorded(NODE, A)], SEED, ()),
        ([at(B)], [recorded(NODE, A)], NODE, ()),
        ([at(B), anywhere(A)], [recorded(NODE, A)], NODE, ()),
        ([at(A, "10.0.0.9")], [recorded(NODE, A)], NODE, ()),
        ([at(A, "10.0.0.9")], [recorded(NODE, A)], SEED, ()),
    ],
)
def test_which_key_must_the_far_end_prove(
    lines: list[TrustedKey],
    before: list[Callable[[KeyBook], object]],
    peer: NodeId,
    keys: tuple[bytes, ...],
) -> None:
    """Without a key to expect nobody is dialled."""
    known = book(*lines)
    for step in before:
        step(known)
    assert known.keys_to_dial(peer) == keys
    if not keys:
        assert "trusted" in known.why_no_key(peer)


def test_a_record_is_hearsay_and_a_connection_is_proof() -> None:
    """A record that gives a process another key than its connections is refused; the key of a
    process never changes."""
    known = book(anywhere(A), anywhere(B))
    assert known.introduced(NODE, A) is None
    refusal = known.recorded(NODE, B)
    assert refusal is not None
    assert refusal.reason == "wrong-key"
    assert known.keys_to_dial(NODE) == (A,)
    assert known.recorded(NODE, A) is None
    assert known.recorded(ELSEWHERE, B) is None
    assert known.recorded(ELSEWHERE, A) is not None
    assert known.recorded(RESTARTED, b"") is not None
    assert known.recorded(RESTARTED, B[:31]) is not None


def test_a_revoked_key_speaks_and_is_dialled_no_more() -> None:
    """What was bound to it stays so: the same key comes back with its line, another does not."""
    known = book(anywhere(A), anywhere(B))
    assert known.introduced(NODE, A) is None
    known.replace([anywhere(B)])
    refusal = known.introduced(NODE, A)
    assert refusal is not None
    assert refusal.reason == "revoked-key"
    assert known.keys_to_dial(NODE) == ()
    assert known.introduced(NODE, B) is not None
    known.replace([anywhere(A), anywhere(B)])
    assert known.introduced(NODE, A) is None
    assert known.keys_to_dial(NODE) == (A,)


def test_names_stand_for_their_numbers() -> None:
    """A line with a host name holds its key to what the name stands for, and to nothing before."""
    known = book(at(A, "node-1.example"), anywhere(B), at(C, "node-1.example"))
    assert known.host_names() == ["node-1.example"]
    assert known.introduced(NODE, A) is not None
    assert known.keys_to_dial(SEED) == ()
    assert known.resolved({"node-1.example": ["10.0.0.1", "10.0.0.9"]})
    assert known.introduced(NODE, A) is None
    assert known.introduced(RESTARTED, B) is not None
    assert known.keys_to_dial(SEED) == (A, C)
    assert not known.resolved({"node-1.example": ["10.0.0.1", "10.0.0.9"]})
    assert not known.resolved({"node-1.example": []})  # the name service is out
    assert known.keys_to_dial(SEED) == (A, C)
    assert known.resolved({"node-1.example": ["10.0.0.2"]})
    assert known.introduced(ELSEWHERE, A) is None
    assert known.keys_to_dial(SEED) == ()


@pytest.mark.parametrize(
    ("written", "host"),
    [("0:0:0::1", "::1"), ("::1", "[::1]"), ("10.0.0.1", "10.0.0.1")],
)
def test_numbers_are_compared_as_numbers(written: str, host: str) -> None:
    """However they are spelled."""
    known = book(at(A, written), anywhere(B))
    assert known.introduced(NodeId(host, 25520, 1), A) is None
    assert known.introduced(NodeId(host, 25520, 2), B) is not None


def test_what_is_remembered_has_a_bound() -> None:
    """Nodes that anybody with a trusted key can invent displace each other only, never records."""
    known = book(anywhere(A), anywhere(B), nodes_max=10)
    assert known.recorded(NODE, B) is None
    for uid in range(1, 1000):
        assert known.introduced(NodeId("10.9.9.9", 9, uid), A) is None
    assert known.introduced(NODE, A) is not None
    assert len(known._proven) == 10


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([at(A)], None),
        ([anywhere(A)], None),
        ([at(B, port=1)], None),
        ([at(A, port=1), at(A)], None),
        ([at(A, "name.example")], None),
        ([at(A, "name.example"), at(A, port=1)], None),
        ([at(B, "name.example")], None),
        ([at(B)], "which is this node, whose key is"),
        ([at(A, port=1)], "10.0.0.1:1, but the node is bound to 10.0.0.1:25520"),
    ],
)
def test_our_own_line(lines: list[TrustedKey], words: str | None) -> None:
    """A list by which others would refuse us is found out at our own start."""
    known = book(*lines)
    known.resolved({"name.example": ["127.0.1.1"]})
    fault = known.own_fault(SEED, A)
    assert fault is None if words is None else words in (fault or "")
