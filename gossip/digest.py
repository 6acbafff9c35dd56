"""Digests of a view that are updated in O(1): the sum, modulo 2**64, of a hash of each item.

Equal views have equal digests in every process and Python version; two different views have equal
ones with a chance of about 2**-64. Called by `gossip.table` only.
"""

from __future__ import annotations

from hashlib import blake2b

from gossip.membership import Member, NodeId, Tombstone
from gossip.reachability import Record

MASK = (1 << 64) - 1


def _hash(*parts: object) -> int:
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _of_id(node: NodeId) -> str:
    return f"{node.host}\x1e{node.port}\x1e{node.uid}"


def member_hash(member: Member) -> int:
    """Hash of what must be agreed about a member. Its incarnation is not part of it: a refutation
    changes who is believed, not who is a member."""
    return _hash(
        "m", _of_id(member.id), int(member.status), member.up_number, member.record_version,
        int(member.cause),
    )  # fmt: skip


def tombstone_hash(tombstone: Tombstone) -> int:
    """Hash of a removal: it adds to the digest, so no view ever returns to an old value."""
    return _hash("t", _of_id(tombstone.id), tombstone.number, int(tombstone.cause))


def record_hash(record: Record) -> int:
    """Hash of a reachability record."""
    return _hash(
        "r", _of_id(record.observer), _of_id(record.subject), int(record.unreachable),
        record.version, record.subject_incarnation, int(record.held),
    )  # fmt: skip


def floor_hash(floor: int) -> int:
    """Hash of the pruning floor; 0 (nothing pruned) adds nothing."""
    return _hash("f", floor) if floor else 0
