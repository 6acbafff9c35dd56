"""Splits drawn as text: `"a b | c? d-"` is two parts, each of which sees the other unreachable.

Behind a name: `?` joining, `~` weakly up, `-` leaving, `!` exiting, `x` down, `*` has the role
`core`. Ages follow the alphabet, `a` is the oldest, and so do the addresses.
"""

from __future__ import annotations

from downing.strategies import ProposalKind, Strategy
from downing.view import PartitionView
from gossip.membership import Member, NodeId, Status
from tests.downing.cases import node_of

MARKS = {
    "?": Status.JOINING,
    "~": Status.WEAKLY_UP,
    "-": Status.LEAVING,
    "!": Status.EXITING,
    "x": Status.DOWN,
}
VERDICTS = {
    ProposalKind.DOWN_UNREACHABLE: "live",
    ProposalKind.DOWN_REACHABLE: "die",
    ProposalKind.DOWN_ALL: "all",
    ProposalKind.ACQUIRE_AND_DOWN_UNREACHABLE: "ask",
}


def parts_of(picture: str) -> list[list[Member]]:
    """The members of each part, as drawn."""
    return [[_member(word) for word in part.split()] for part in picture.split("|")]


def views_of(picture: str) -> list[PartitionView]:
    """What the leader of each part sees of a clean split."""
    return views_of_parts(parts_of(picture))


def views_of_parts(parts: list[list[Member]]) -> list[PartitionView]:
    """What each part sees that reaches none of the others, and all of its own."""
    members = tuple(member for part in parts for member in part)
    return [view_of_part(part, members) for part in parts]


def view_of_part(part: list[Member], members: tuple[Member, ...]) -> PartitionView:
    """`members` as the leader of `part` sees them: unreachable, but for its own."""
    own = frozenset(member.id for member in part)
    unreachable = frozenset(member.id for member in members) - own
    leader = leader_of(part)
    records = tuple((leader, node) for node in sorted(unreachable))
    return PartitionView(members, unreachable, records, own, leader)


def leader_of(part: list[Member]) -> NodeId:
    """The lowest address that is up or leaving, else the furthest on its way up."""
    order = [
        (Status.UP, Status.LEAVING),
        (Status.WEAKLY_UP,),
        (Status.JOINING,),
        (Status.EXITING,),
        (Status.DOWN,),
        (Status.REMOVED,),
    ]
    for statuses in order:
        nodes = [member.id for member in part if member.status in statuses]
        if nodes:
            return min(nodes)
    raise ValueError("a part without members has no leader")


def verdicts(strategy: Strategy, picture: str) -> str:
    """What each part decides, in the order of the picture: `"live | die"`."""
    kinds = [strategy.decide(view).kind for view in views_of(picture)]
    return " | ".join(VERDICTS.get(kind, str(kind)) for kind in kinds)


def names_of(nodes: tuple[NodeId, ...]) -> str:
    """The members called by name, in the order given: `"a b"`."""
    return " ".join(node.host for node in nodes)


def _member(word: str) -> Member:
    name, marks = word[0], word[1:]
    status = next((MARKS[mark] for mark in marks if mark in MARKS), Status.UP)
    has_number = status not in (Status.JOINING, Status.WEAKLY_UP)
    return Member(
        node_of(name),
        name=name,
        roles=("core",) if "*" in marks else (),
        status=status,
        up_number=ord(name) - ord("a") + 1 if has_number else 0,
    )
