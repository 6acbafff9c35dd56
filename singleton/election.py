"""Who may host a singleton, who does, and who has to be asked first.

One rule for managers and proxies: *the oldest member that holds the office, else the oldest
eligible one*. So a running host is not displaced by an older member that starts the type later,
and of two hosts that learn of each other the younger is the one that its own view no longer
elects. Pure functions over a view; called by `singleton.machine` only, whose routes the proxies
read.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gossip.membership import Member, MembershipView, NodeId, Status

ASKABLE = frozenset({Status.UP, Status.LEAVING, Status.EXITING})
"""Members that can be running an instance as far as their status tells."""


_PREFIX = "singleton:"
_SILENT, _UNDER = "!", "@"  # no type name has either in it


@dataclass(frozen=True, slots=True)
class Hosted:
    """What a member's record says of a type that it hosts.

    `terms` is what all that host it must agree about (`SingletonSettings.terms`); of a member
    whose terms are others' nobody can tell whether its instance excludes theirs. With
    `reaches_store` False its lease store does not answer it.
    """

    terms: str = ""
    reaches_store: bool = True


def hosted_type(type_name: str, terms: str = "", *, reaches_store: bool = True) -> str:
    """What a member that hosts `type_name` has among the types of its record."""
    silent = "" if reaches_store else _SILENT
    return f"{_PREFIX}{type_name}{silent}{_UNDER if terms else ''}{terms}"


def hosted(member: Member, type_name: str) -> Hosted | None:
    """What the member's record says of the type; None: it does not host it."""
    return _hosted(member.types).get(type_name)


@functools.lru_cache(maxsize=1024)
def _hosted(types: tuple[str, ...]) -> Mapping[str, Hosted]:
    found = {}
    for label in types:
        if label.startswith(_PREFIX):
            name, _, terms = label.removeprefix(_PREFIX).partition(_UNDER)
            reaches_store = not name.endswith(_SILENT)
            found[name.removesuffix(_SILENT)] = Hosted(terms, reaches_store)
    return found


def has_role(member: Member, role: str | None) -> bool:
    """True when the member may host under `role`; None asks for none."""
    return role is None or role in member.roles


def in_reach(view: MembershipView, *, undecided: bool = False) -> tuple[Member, ...]:
    """Members that are up, have an age and are reachable (we are, to ourselves), oldest first.

    undecided: the unreachable ones too. Where a strategy decides about them their being
    unreachable alone moves nobody.
    """
    return tuple(
        sorted(
            (
                member
                for member in view.members
                if member.status is Status.UP
                and member.up_number > 0
                and (undecided or member.id == view.self_id or member.id not in view.unreachable)
            ),
            key=lambda member: member.age_key,
        )
    )


def eligible(
    members: Iterable[Member],
    type_name: str,
    *,
    holders: Collection[NodeId] = (),
    withdrawn: Collection[NodeId] = (),
    last_terms: str | None = None,
) -> list[Member]:
    """Those of `members` (see `in_reach`) that may be elected, in their order.

    Who shows the type has the role under which it was started there: no other role is asked for,
    or two that name different ones would not see each other. A holder hosts the type whether or not
    its record shows it already. `withdrawn` members said that they will not host again. Whose terms
    are not those of `referee` may not host beside it. `last_terms` are those of the last holder, if
    any is known.
    """
    found = [
        member
        for member in members
        if member.id not in withdrawn
        and (member.id in holders or hosted(member, type_name) is not None)
    ]
    oldest = referee(found, type_name, holders=holders, last_terms=last_terms)
    if oldest is None:
        return found
    valid = hosted(oldest, type_name)
    return [member for member in found if hosted(member, type_name) in _agreeing(valid)]


def _agreeing(valid: Hosted | None) -> tuple[Hosted | None, ...]:
    """All that say the same of the terms; None: what a holder's record does not show yet."""
    terms = "" if valid is None else valid.terms
    return (None, Hosted(terms, reaches_store=True), Hosted(terms, reaches_store=False))


def referee(
    members: Iterable[Member],
    type_name: str,
    *,
    holders: Collection[NodeId] = (),
    last_terms: str | None = None,
) -> Member | None:
    """Whose terms are valid: the oldest holder's that shows some; else those of the last holder,
    as long as anybody has them; else the oldest member's. So whoever was started wrongly does not
    take over from those that were started alike."""
    shown = [(member, found) for member in members if (found := hosted(member, type_name))]
    for member, _ in shown:
        if member.id in holders:
            return member
    for member, found in shown:
        if found.terms == last_terms:
            return member
    return shown[0][0] if shown else None


def elected(candidates: list[Member], holders: Collection[NodeId]) -> Member | None:
    """The host by the one rule above; `candidates` as `eligible` gives them."""
    for member in candidates:
        if member.id in holders:
            return member
    return candidates[0] if candidates else None


def peers_to_ask(
    view: MembershipView, type_name: str, role: str | None, former: Iterable[NodeId]
) -> set[NodeId]:
    """Everybody whose instance may be alive, unreachable ones included: who may host under `role`
    (None: all), and who shows the type, whatever role it was started with there.

    Of those that may host a record need not show the type: two members that start it at the same
    time do not see each other's records yet. `former` are members that went down or away without
    proof of their end.
    """
    peers = {
        member.id
        for member in view.members
        if member.status in ASKABLE
        and member.up_number > 0
        and (has_role(member, role) or hosted(member, type_name) is not None)
    }
    peers.update(former)
    peers.discard(view.self_id)
    return peers
