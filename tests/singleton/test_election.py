"""Who may host, who does, who is asked; and settings that cannot work.

Guards I-34, I-35, I-37, I-38.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossip.membership import Member, NodeId, Status
from singleton.election import (
    Hosted,
    elected,
    eligible,
    hosted,
    hosted_type,
    in_reach,
    peers_to_ask,
)
from singleton.settings import SingletonSettings, differing, terms_of
from tests.singleton.worlds import TYPE, A, B, C, member, node, view

WORKER: dict[str, Any] = {"roles": ("worker",), "types": (hosted_type(TYPE, "worker"),)}
WORKERS = [member("a", types=()), member("b", **WORKER), member("c", **WORKER)]
ALIKE = [member(name) for name in "abc"]


def host(
    members: list[Member],
    *,
    unreachable: str = "",
    holders: tuple[NodeId, ...] = (),
    withdrawn: tuple[NodeId, ...] = (),
    me: str = "c",
) -> NodeId | None:
    """Who is elected by the view of `me`."""
    reach = in_reach(view(me, members, unreachable=unreachable))
    candidates = eligible(reach, TYPE, holders=holders, withdrawn=withdrawn)
    found = elected(candidates, holders)
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("expected", "case"),
    [
        (A, {}),  # the oldest
        (B, {"unreachable": "a"}),
        (C, {"unreachable": "a b c"}),  # what others say of us does not bind us
        (B, {"withdrawn": (A,)}),
        (C, {"holders": (C,)}),  # a running host is not displaced
        (B, {"holders": (C, B)}),  # of two hosts the older
        (A, {"holders": (C,), "withdrawn": (C,)}),
        (B, {"holders": (A, B), "unreachable": "a"}),
        (A, {"holders": (C,), "unreachable": "c", "me": "a"}),
    ],
)
def test_elected(expected: NodeId | None, case: dict[str, Any]) -> None:
    assert host(ALIKE, **case) == expected


def test_of_those_with_the_role_the_oldest() -> None:
    """I-35: not "the oldest if it has it"; whoever lacks it does not show the type."""
    assert host(WORKERS) == B
    assert host(WORKERS, unreachable="b c", me="a") is None
    assert host(WORKERS, holders=(C,)) == C


@pytest.mark.parametrize("holder", [A, B, C])
def test_of_those_that_were_started_with_different_roles_one_is_elected(holder: NodeId) -> None:
    """I-43: whatever ours is, or two that name different ones would act side by side."""
    roles = [member("a", **WORKER), member("b"), member("c", **WORKER)]
    for me in "abc":
        assert host(roles, me=me) == A
        assert host(roles, me=me, holders=(holder,)) == holder


def test_age_decides_and_not_the_address() -> None:
    assert host([member("a", 3), member("b", 2), member("c", 2)]) == B


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.UP])
def test_only_members_that_are_up_are_elected(status: Status) -> None:
    assert host([member("a", status=status), member("b")]) == B


def test_a_member_without_an_age_takes_part_in_no_election() -> None:
    assert host([member("a", 0), member("b")]) == B


def test_only_members_that_host_the_type_are_elected_but_a_host_is_one() -> None:
    members = [replace(member("a"), types=("singleton:other",)), member("b")]
    assert host(members) == B
    assert host(members, holders=(A,)) == A


def test_what_a_record_says_of_a_type() -> None:
    for terms in ("", "worker", "worker;1;2;15"):
        for reaches_store in (True, False):
            label = hosted_type(TYPE, terms, reaches_store=reaches_store)
            shown = hosted(member("a", types=(f"singleton:{TYPE}r", label, "shard:x")), TYPE)
            assert shown == Hosted(terms, reaches_store)
    assert hosted(member("a", types=("singleton:ledge", "ledger")), TYPE) is None


@pytest.mark.parametrize(
    ("terms", "holders", "expected"),
    [
        ("x x x", (), "a b c"),
        ("x y x", (), "a c"),
        ("x y y", (B,), "b c"),  # a holder's are valid, whoever is older
        ("x y y", (A, B), "a"),
        ("- y x", (), "b"),
        ("- y x", (A,), "a b"),  # what a holder's record does not show yet is no difference
    ],
)
def test_who_has_other_terms_is_not_eligible(
    terms: str, holders: tuple[NodeId, ...], expected: str
) -> None:
    members = [
        member(name, types=() if each == "-" else (hosted_type(TYPE, each),))
        for name, each in zip("abc", terms.split(), strict=True)
    ]
    found = eligible(in_reach(view("c", members)), TYPE, holders=holders)
    assert [each.name for each in found] == expected.split()


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (terms_of("a"), terms_of("a"), ""),
        (terms_of("a"), terms_of(None), "role (a here, none there)"),
        (
            terms_of(None),
            terms_of(None, store="s", lease="n", ttl_s=15.0),
            "under a lease there, not here",
        ),
        (
            terms_of(None, store="s", lease="n", ttl_s=15.0),
            terms_of("a", store="t", lease="m", ttl_s=0.5),
            "role (none here, a there) and lease store and lease name and "
            "lease ttl (15 here, 0.5 there)",
        ),
        (
            terms_of("a;b", store="s", lease="n", ttl_s=15.0),
            terms_of("a;b", store="s", lease="n", ttl_s=3.0),
            "lease ttl (15 here, 3 there)",
        ),
    ],
)
def test_what_differs_is_named(ours: str, theirs: str, words: str) -> None:
    assert differing(ours, theirs) == words


def test_everybody_whose_instance_may_be_alive_is_asked() -> None:
    members = [
        member("a"),
        member("b", types=()),
        member("c", status=Status.LEAVING),
        member("d", status=Status.EXITING),
        member("e", status=Status.WEAKLY_UP, up_number=0),
        member("f", status=Status.DOWN),
        member("g"),
    ]
    seen = view("a", members, unreachable="b g")
    assert peers_to_ask(seen, TYPE, None, [node("z")]) == {node(name) for name in "bcdgz"}
    assert peers_to_ask(seen, "other", "worker", []) == set()
    # b may not host under this role; the others show that they host under another one.
    assert peers_to_ask(seen, TYPE, "worker", []) == {node(name) for name in "cdg"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hand_over_timeout_s", 0.0),
        ("hand_over_timeout_s", float("nan")),
        ("hand_over_timeout_s", float("inf")),
        ("ask_resend_s", 10.0),
        ("restart_backoff_s", 0.5),
        ("restart_backoff_s", 31.0),
        ("claim_timeout_s", 2.0),
        ("buffer_size", 0),
        ("former_max", -1),
        ("lease_ttl_s", 0.0),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=f"{field}={value}"):
        SingletonSettings(**wrong)


def test_what_becomes_of_a_lost_lease_has_two_answers() -> None:
    with pytest.raises(ValueError, match="on_lease_lost='go on' must be 'stop' or 'drain'"):
        SingletonSettings(on_lease_lost="go on")
