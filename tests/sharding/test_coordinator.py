"""Every rule of the coordinator: terms, rebuild, claims, allocation, moves, rebalance.

Guards S13, I-104, I-105, I-107 to I-113, I-117, I-118, I-120, I-125, I-128, I-129, F16 and F17.
"""

from __future__ import annotations

from sharding.messages import (
    NO_TERM,
    Claims,
    Term,
    WantHomes,
)
from tests.sharding.worlds import (
    TYPE,
    A,
    B,
    C,
    Office,
)

FORMER = Term(1, C)
EARLIER = Term(1, B)


def wants(office: Office, name: str, *shards: int, leaving: bool = False) -> list[object]:
    """A region asks under the present term."""
    return office.hear(name, WantHomes(TYPE, office.term, shards, leaving))


# rebuild


def test_what_is_wanted_before_its_owner_has_reported_stays_with_its_owner() -> None:
    """F17, I-108: a asks for shard 3 while the rebuild waits for b, who has it."""
    office = Office()
    office.report("a")
    office.report("c")
    wants(office, "a", 3)
    office.report("b", Claims(FORMER, (3,)))
    assert office.states() == {3: ("running", B)}
    assert office.given() == {}
    wants(office, "c", 4)
    assert office.given() == {4: A}
