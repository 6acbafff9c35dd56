"""Each strategy as a table of pictures, its words on the command line, its warnings."""

from __future__ import annotations

import math
import re

import pytest

from downing.strategies import (
    STRATEGIES,
    DownAll,
    KeepMajority,
    KeepOldest,
    KeepReferee,
    LeaseMajority,
    ProposalKind,
    StaticQuorum,
    Strategy,
    parse,
    warnings,
)
from downing.view import PartitionView, age_key
from gossip.membership import Member, Status
from tests.downing.cases import node_of
from tests.downing.pictures import names_of, parts_of, verdicts, views_of

CORE = "core"


@pytest.mark.parametrize(
    ("picture", "outcome"),
    [
        ("a b c | d e", "live | die"),
        ("a b | c d e", "die | live"),
        ("a | b c", "die | live"),
        ("a b | c d", "live | die"),  # equal halves: the one with the lowest address
        ("b | a", "die | live"),
        ("a b | c d | e f", "die | die | die"),
        ("a | b c d | e", "die | live | die"),
        ("a? b c | d", "live | die"),  # a joining one does not count, but lives with its side
        ("b c d | a e f?", "all | die"),  # f may be up over there: a tie, and a is the lowest
        ("a b | c? d?", "live | die"),  # even if both are up over there, a is the lowest
        ("a- b | c d", "all | die"),  # a may have left already
        ("a- c d | b e", "all | die"),  # and then it is a tie, with b as the lowest
        ("a- b c | d", "live | die"),
        ("a! b | c d", "die | live"),  # an exiting one has no voice any more
        ("ax b c | d", "live | die"),
        ("a- | b-", "all | die"),  # nobody is sure to stay
    ],
)
def test_keep_majority(picture: str, outcome: str) -> None:
    """I-92: the side with more counted members; of two halves exactly one."""
    assert verdicts(KeepMajority(), picture) == outcome


@pytest.mark.parametrize(
    ("picture", "outcome"),
    [
        ("a b c | d e", "live | die"),
        ("a b | c d e", "die | live"),
        ("a b | c d", "die | die"),
        ("a b c | d e f", "all | all"),  # both have three: too many members for this quorum
        ("a b c? | d e", "die | die"),  # a joining one is no voice
        ("a b c- | d e", "live | die"),  # a leaving one is
        ("a b c! | d e", "die | die"),  # an exiting one is none any more
        ("a b | c", "die | die"),  # below the quorum one failure ends the rest
        ("a b c | d | e", "live | die | die"),
    ],
)
def test_static_quorum(picture: str, outcome: str) -> None:
    """Three of at most five."""
    assert verdicts(StaticQuorum(3), picture) == outcome


@pytest.mark.parametrize(
    ("picture", "alone_goes", "alone_stays"),
    [
        ("a b | c d e", "live | die", "live | die"),
        ("c d e | a b", "die | live", "die | live"),
        ("a | b c d", "die | live", "live | die"),
        ("a | b", "live | die", "live | die"),  # of two the oldest, alone or not
        ("a | b c", "die | live", "live | die"),
        ("a | b | c", "die | die | die", "live | die | die"),
        ("a! b c | d e", "live | die", "live | die"),  # b is the oldest now
        ("a- b | c d e", "all | die", "live | die"),  # there b may be the oldest, and alone
        ("a- c d | b e", "all | die", "all | die"),  # there b may be the oldest
        ("a b- | c d e", "all | die", "live | die"),  # a may be alone
        ("a b? | c d e", "die | all", "live | die"),  # b may be up, so a not alone
        ("a? b | c d e", "die | all", "live | die"),  # a joining one is the youngest
    ],
)
def test_keep_oldest(picture: str, alone_goes: str, alone_stays: str) -> None:
    """I-93: the oldest one's side, unless it is alone (if so told)."""
    assert verdicts(KeepOldest(), picture) == alone_goes
    assert verdicts(KeepOldest(down_if_alone=False), picture) == alone_stays


@pytest.mark.parametrize(
    ("picture", "outcome"),
    [
        ("c | a b d e", "live | die"),
        ("a b d e | c", "die | live"),
        ("a b | d e", "live | die"),  # no referee: keep-majority
        ("a b d | c?", "all | die"),  # there c may be up, and rule alone
        ("a b d c? | e", "live | die"),
        ("c- d | a b e", "all | die"),  # there c may have left, and the majority rule
        ("c- a b | d e", "live | die"),  # this is the majority anyway
        ("c! d | a b e", "die | live"),
        ("cx d | a b e", "die | live"),
        ("a | c | b", "die | live | die"),
    ],
)
def test_keep_referee(picture: str, outcome: str) -> None:
    """I-95: the side of c; the majority, never a default, when c is not counted."""
    assert verdicts(KeepReferee("c:25520"), picture) == outcome


@pytest.mark.parametrize(
    ("picture", "delays"),
    [
        ("a b c | d e", ["none", "minority"]),
        ("a b | c d", ["none", "minority"]),
        ("b c | a d e", ["minority", "none"]),
        ("a? b | c d?", ["none", "minority"]),
        ("a b | c d | e", ["minority", "minority", "minority"]),
        ("a? | b?", ["none", "none"]),  # nobody is counted: nobody is a minority
    ],
)
def test_lease_majority(picture: str, delays: list[str]) -> None:
    """Every side asks the lease; a minority does so later."""
    proposals = [LeaseMajority().decide(view) for view in views_of(picture)]
    assert {proposal.kind for proposal in proposals} == {ProposalKind.ACQUIRE_AND_DOWN_UNREACHABLE}
    assert [proposal.delay for proposal in proposals] == delays


def test_a_denied_lease_is_the_reverse() -> None:
    """Granted: the other side goes. Denied: this one, self last."""
    (view, _) = views_of("a b? c! | d e")
    granted = LeaseMajority().decide(view)
    assert granted.kind.asks_lease
    assert (granted.decision, names_of(granted.downed)) == ("down-unreachable", "d e")
    denied = LeaseMajority().reverse(view, granted)
    assert (denied.decision, names_of(denied.downed)) == ("down-reachable", "b a")


@pytest.mark.parametrize("picture", ["a b c | d e", "a | b c", "a | b | c"])
def test_down_all(picture: str) -> None:
    """Whoever asks."""
    assert set(verdicts(DownAll(), picture).split(" | ")) == {"all"}


@pytest.mark.parametrize(
    ("strategy", "picture", "outcome"),
    [
        (KeepMajority(CORE), "a* b c d | e* f*", "die | live"),
        (KeepMajority(CORE), "a b* | c* d e", "live | die"),  # the lowest of the counted
        (KeepMajority(CORE), "a b c | d", "all | all"),  # nobody has the role
        (KeepMajority(CORE), "a c*- d* | b*", "all | die"),
        (StaticQuorum(2, CORE), "a* b* | c d e f g", "live | die"),
        (KeepOldest(role=CORE), "a b | c* d*", "die | live"),
        (KeepOldest(role=CORE), "b* a | c* d*", "die | live"),  # alone in its role
        (KeepOldest(role=CORE), "a | b", "all | all"),
        (KeepReferee("c:25520", CORE), "c | a* b*", "die | live"),  # c is not counted
        (KeepReferee("c:25520", CORE), "c* d | a* b*", "live | die"),
    ],
)
def test_a_role_narrows_who_is_counted(strategy: Strategy, picture: str, outcome: str) -> None:
    """`*` has the role; the whole side goes down all the same."""
    assert verdicts(strategy, picture) == outcome
    for view in views_of(picture):
        proposal = strategy.decide(view)
        here, there = view.downable - view.unreachable, view.downable & view.unreachable
        assert frozenset(proposal.downed) in (here, there, view.downable)


def test_only_who_can_be_downed_is_downed_and_self_is_the_last() -> None:
    """Joining ones go with their side; exiting and down ones are left alone."""
    (view, _) = views_of("b c? d~ e! ax | f g h i")
    proposal = KeepMajority().decide(view)
    assert (proposal.kind, names_of(proposal.downed)) == ("down-reachable", "c d b")


def test_a_split_of_one_gone_member_downs_nobody() -> None:
    """Who is unreachable and down already is not downed again."""
    (view, _) = views_of("a b | cx")
    assert KeepMajority().decide(view).downed == ()


@pytest.mark.parametrize(
    "text", ["static-quorum:quorum_size=9", "keep-majority:role=x", "down-all"]
)
def test_nobody_goes_while_nobody_is_unreachable(text: str) -> None:
    """I-90: a cluster that starts, below its quorum or without the role, is left alone."""
    strategy = parse(text)
    assert strategy is not None
    (view,) = views_of("a b c?")
    assert strategy.decide(view).decision is ProposalKind.NONE
    assert strategy.decide(view).downed == ()


def a_view(records: str, *, seen: str, names: str = "a b c d e") -> PartitionView:
    """`records`: "b>c c>b"; self is a."""
    members = tuple(member for part in parts_of(names) for member in part)
    pairs = tuple((node_of(word[0]), node_of(word[2])) for word in records.split())
    unreachable = frozenset(subject for _, subject in pairs) - {node_of("a")}
    return PartitionView(
        members, unreachable, pairs, frozenset(node_of(name) for name in seen), node_of("a")
    )


@pytest.mark.parametrize(
    ("records", "seen", "indirect", "decision", "downed"),
    [
        ("b>c c>b", "abcde", "b c", "down-indirectly-connected", "b c"),
        ("b>c", "abcde", "b c", "down-indirectly-connected", "b c"),  # c heard it all the same
        ("b>c", "abde", "", "down-unreachable", "c"),
        ("b>c c>b a>d a>e", "abc", "b c", "down-indirectly-connected", "b c d e"),
        ("c>d d>c b>a b>e", "", "c d", "down-indirectly-connected", "c d e"),  # who says it of us
        ("b>c c>b a>c a>d", "ab", "b c", "down-indirectly-connected", "b c d"),
        # A link fails over there, and who failed is not heard here: it can not be set aside.
        ("d>e a>d a>e", "abc", "d", "down-all", "b c d e a"),
        ("d>e a>d a>e c>b b>c", "abc", "b c d", "down-all", "b c d e a"),
    ],
)
def test_members_that_hear_each_other_only_through_others_go(
    records: str, seen: str, indirect: str, decision: str, downed: str
) -> None:
    """A failing link takes both its ends; a split beside it is decided apart."""
    view = a_view(records, seen=seen)
    proposal = KeepMajority().decide(view)
    assert names_of(tuple(sorted(view.indirectly_connected))) == indirect
    assert (proposal.decision, names_of(proposal.downed)) == (decision, downed)


def test_the_lease_is_asked_once_for_links_and_split_together() -> None:
    """Denied: the indirectly connected and all that is reachable."""
    view = a_view("b>c c>b a>d a>e", seen="abc")
    proposal = LeaseMajority().decide(view)
    assert proposal.kind is ProposalKind.ACQUIRE_AND_DOWN_INDIRECTLY_CONNECTED
    assert proposal.decision is ProposalKind.DOWN_INDIRECTLY_CONNECTED
    assert names_of(proposal.downed) == "b c d e"
    denied = LeaseMajority().reverse(view, proposal)
    assert denied.kind is ProposalKind.REVERSE_DOWN_INDIRECTLY_CONNECTED
    assert names_of(denied.downed) == "b c a"


@pytest.mark.parametrize(
    ("strategy", "picture", "why"),
    [
        (KeepMajority(), "a b | c d e", "keep-majority: 2 of 5 members reachable, so this side"),
        (KeepMajority(CORE), "a | b* c", "0 of 1 member with role core reachable, so this side"),
        (KeepMajority(), "b | a", "a tie; the lowest address, a:25520, is unreachable"),
        (StaticQuorum(3), "a b | c", "2 of 3 members reachable, 3 needed, so this side goes down"),
        (KeepOldest(), "a | b c", "the oldest, a:25520, is reachable and alone; 1 of 3 members"),
        (KeepOldest(), "b c | a", "the oldest, a:25520, is unreachable and alone; 2 of 3"),
        (KeepReferee("a:25520"), "b c | a", "the referee a:25520 is unreachable; 2 of 3 members"),
        (KeepReferee("z:25520"), "b c | a", "no z:25520 counted, 2 of 3 members reachable"),
        (LeaseMajority(), "b | a c", "1 of 3 members reachable, a minority; the lease decides"),
    ],
)
def test_a_decision_says_why_with_its_counts(strategy: Strategy, picture: str, why: str) -> None:
    """One line for people: strategy, counts, outcome."""
    proposal = strategy.decide(views_of(picture)[0])
    assert why in proposal.why
    assert proposal.why.startswith(f"{strategy.name}: ")


def test_two_processes_of_the_referees_address_count_as_the_younger() -> None:
    """The older process of one address is gone, whatever its record says."""
    old, new = node_of("c"), node_of("c")._replace(uid=2)
    members = [
        Member(old, status=Status.UP, up_number=1),
        Member(new, status=Status.UP, up_number=9),
        Member(node_of("a"), status=Status.UP, up_number=2),
    ]
    referee = KeepReferee("c:25520")
    assert referee.survives(members, {new})
    assert not referee.survives(members, {old, node_of("a")})


def test_a_member_without_a_number_is_the_youngest() -> None:
    """I-94: age is the join order; equal numbers are decided by the address."""
    members = [
        Member(node_of("a"), status=Status.UP),
        Member(node_of("b"), status=Status.UP, up_number=7),
        Member(node_of("c"), status=Status.UP, up_number=7),
    ]
    assert [member.id.host for member in sorted(members, key=age_key)] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("text", "strategy", "form"),
    [
        ("keep-majority", KeepMajority(), "keep-majority"),
        ("keep-majority:role=core", KeepMajority("core"), "keep-majority:role=core"),
        ("keep-majority:", KeepMajority(), "keep-majority"),
        (
            "static-quorum: role=core , quorum_size=3",
            StaticQuorum(3, "core"),
            "static-quorum:quorum_size=3,role=core",
        ),
        ("keep-oldest:down_if_alone=true", KeepOldest(), "keep-oldest"),
        (
            "keep-oldest:down_if_alone=false",
            KeepOldest(down_if_alone=False),
            "keep-oldest:down_if_alone=false",
        ),
        (
            "keep-referee:referee=10.0.0.1:25520",
            KeepReferee("10.0.0.1:25520"),
            "keep-referee:referee=10.0.0.1:25520",
        ),
        (
            "keep-referee:role=core,referee=[fd00::1]:25520",
            KeepReferee("[fd00::1]:25520", "core"),
            "keep-referee:referee=[fd00::1]:25520,role=core",
        ),
        ("lease-majority:minority_delay_s=2.0", LeaseMajority(), "lease-majority"),
        (
            "lease-majority:release_after_s=60,minority_delay_s=0.5",
            LeaseMajority(minority_delay_s=0.5, release_after_s=60.0),
            "lease-majority:minority_delay_s=0.5,release_after_s=60",
        ),
        ("down-all", DownAll(), "down-all"),
    ],
)
def test_a_strategy_is_read_and_written(text: str, strategy: Strategy, form: str) -> None:
    """Two members agree when the canonical forms are the same."""
    assert parse(text) == strategy
    assert str(strategy) == form
    assert parse(form) == strategy


def test_no_strategy_is_a_choice_too() -> None:
    """`none`: nobody is downed by a strategy."""
    assert parse("none") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep_majority", "did you mean 'keep-majority'?"),
        ("majority", "is no downing strategy: did you mean 'keep-majority'?"),
        ("zzz", "'zzz' is no downing strategy: It is one of none, keep-majority,"),
        ("", "is no downing strategy"),
        ("none:role=core", "is no downing strategy"),
        ("keep-majority:rôle", "'rôle' is no parameter: did you mean 'role'? Allowed are role="),
        ("keep-majority:quorum_size=3", "'quorum_size' is no parameter"),
        ("keep-majority:role", "'role' has no value: write role=NAME"),
        ("keep-majority:role=", "'role' has no value: write role=NAME"),
        ("keep-majority:role=a,role=b", "role is given twice"),
        ("keep-majority:role=a=b", "role='a=b' can not be written"),
        ("keep-majority:role=a,", "'' is no parameter"),
        ("down-all:role=core", "down-all: it has no parameters"),
        ("static-quorum", "static-quorum needs quorum_size: write static-quorum:quorum_size="),
        ("static-quorum:quorum-size=3", "did you mean 'quorum_size'?"),
        ("static-quorum:quorum_size=many", "quorum_size='many' can not be read"),
        ("static-quorum:quorum_size=0", "at least 1"),
        ("keep-oldest:down_if_alone=maybe", "write down_if_alone=true or false"),
        ("keep-referee", "keep-referee needs referee: write keep-referee:referee=HOST:PORT"),
        ("keep-referee:referee=10.0.0.1", "write it as host:port"),
        ("keep-referee:referee=host:99999", "write it as host:port"),
        ("lease-majority:minority_delay_s=-1", "minority_delay_s=-1.0 is no span of time"),
        ("lease-majority:release_after_s=nan", "release_after_s=nan is no span of time"),
        ("lease-majority:release_after_s=soon", "release_after_s='soon' can not be read"),
    ],
)
def test_a_mistake_is_named_with_its_mend(text: str, message: str) -> None:
    """What is wrong, and what is allowed."""
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


def test_settings_that_can_not_work_are_refused_in_code_too() -> None:
    """The constructors refuse what `parse` does."""
    for build in (
        lambda: StaticQuorum(0),
        lambda: KeepMajority("a,b"),
        lambda: KeepReferee("nowhere"),
        lambda: LeaseMajority(minority_delay_s=math.inf),
    ):
        with pytest.raises(ValueError):
            build()


@pytest.mark.parametrize(
    ("text", "picture", "said"),
    [
        ("keep-majority", "a b c", []),
        ("keep-majority", "a b c d?", []),
        ("keep-majority", "a b c d", ["the half without a:25520 always goes down"]),
        ("keep-majority", "a b", ["three or more, or use a lease"]),
        ("keep-majority:role=core", "a* b* c", ["of 2 counted members"]),
        ("keep-majority:role=core", "a b c", ["no member that is up has the role"]),
        ("static-quorum:quorum_size=2", "a b c", []),
        ("static-quorum:quorum_size=2", "a b c d e", ["any split downs everything", "size=3 on"]),
        ("static-quorum:quorum_size=3", "a b", ["fewer than the quorum", "start 1 more"]),
        ("keep-referee:referee=a:25520", "a b", []),
        ("keep-referee:referee=a:25520", "a! b c d", ["no counted member has the address a:25520"]),
        ("keep-referee:referee=z:1", "a b", ["no counted member has", "always goes down"]),
        ("keep-oldest", "a b", []),
        ("lease-majority", "a b", []),
        ("down-all", "a b", []),
        ("none", "a b", []),
        ("static-quorum:quorum_size=3", "a?", []),  # nobody is up yet
    ],
)
def test_an_operator_is_warned(text: str, picture: str, said: list[str]) -> None:
    """Quorum too small or not reached, even halves, no referee, no role."""
    (members,) = parts_of(picture)
    lines = warnings(parse(text), members)
    assert all(any(words in line for line in lines) for words in said)
    assert bool(lines) == bool(said)


def test_every_strategy_has_its_table_here() -> None:
    """A new strategy needs one."""
    assert set(STRATEGIES) == {
        "keep-majority",
        "static-quorum",
        "keep-oldest",
        "keep-referee",
        "lease-majority",
        "down-all",
    }
