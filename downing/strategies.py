"""Which side of a split lives: the rules, as pure functions of what one member sees.

Decides: from one `PartitionView` what is to be downed, and whether a set of members could live
without the others. Does not decide when, nor who may act on it, nor asks a lease: that is the
resolver's. Called by the resolver, by contact and by promises; `parse` by the settings.

A role narrows who is counted, never who is downed: a side goes down as a whole. Each strategy has
two questions. `decide` looks at one view and is careful: an answer that would turn over if a
leaving member had left already, or a joining one were up, downs everything. `survives` counts one
agreed electorate, and any two sets that survive in it share a member.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from downing.view import COUNTED, MAYBE_UP, STAYING, PartitionView, age_key, counted, with_status
from gossip.membership import Member, NodeId, Status


class ProposalKind(enum.StrEnum):
    """What can be done about a split, in the words of logs and of the HTTP interface."""

    NONE = "none"
    DOWN_UNREACHABLE = "down-unreachable"
    DOWN_REACHABLE = "down-reachable"
    DOWN_ALL = "down-all"
    DOWN_INDIRECTLY_CONNECTED = "down-indirectly-connected"
    REVERSE_DOWN_INDIRECTLY_CONNECTED = "reverse-down-indirectly-connected"
    ACQUIRE_AND_DOWN_UNREACHABLE = "acquire-lease-and-down-unreachable"
    ACQUIRE_AND_DOWN_INDIRECTLY_CONNECTED = "acquire-lease-and-down-indirectly-connected"
    DOWN_SELF_QUARANTINED = "down-self-quarantined"

    @property
    def asks_lease(self) -> bool:
        """True when it holds only if the lease is granted."""
        return self in _WHEN_GRANTED


_WHEN_GRANTED = {
    ProposalKind.ACQUIRE_AND_DOWN_UNREACHABLE: ProposalKind.DOWN_UNREACHABLE,
    ProposalKind.ACQUIRE_AND_DOWN_INDIRECTLY_CONNECTED: ProposalKind.DOWN_INDIRECTLY_CONNECTED,
}
_INDIRECT = frozenset(
    {
        ProposalKind.DOWN_INDIRECTLY_CONNECTED,
        ProposalKind.ACQUIRE_AND_DOWN_INDIRECTLY_CONNECTED,
    }
)

_OUTCOMES = {
    ProposalKind.DOWN_UNREACHABLE: ", so this side lives",
    ProposalKind.DOWN_REACHABLE: ", so this side goes down",
    ProposalKind.DOWN_ALL: ", so everything goes down",
}

Delay = Literal["none", "minority"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a strategy wants done.

    `kind` is its answer; `decision` what it comes to (when the lease is granted, if it asks one).
    They differ otherwise only where single failing links remain after they were set aside: then
    everything is downed. `downed`: by address, self last; empty when all of them are gone
    already. `delay`: a minority asks the lease later. `why`: one line for people, with counts.
    """

    kind: ProposalKind
    decision: ProposalKind
    downed: tuple[NodeId, ...]
    why: str
    delay: Delay = "none"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a rule says of one view, before it is known whom that hits. Fields as in `Proposal`."""

    kind: ProposalKind
    why: str
    delay: Delay = "none"


class Strategy(ABC):
    """A rule that says which side of a split lives. Two of equal `str` are the same rule."""

    name: ClassVar[str]

    @abstractmethod
    def _rule(self, view: PartitionView) -> _Answer:
        """The answer to this view, before its consequences."""

    @abstractmethod
    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """True when `present` may live while everybody else of `electorate` is gone.

        Only the counted members of the electorate are looked at (up or leaving, with the role);
        without any of them nobody survives. More members never make it false, and two surviving
        sets of one electorate share a member.
        """

    def decide(self, view: PartitionView) -> Proposal:
        """What to down, seen from `view.self_id`: nobody as long as nobody is unreachable."""
        if not view.unreachable:
            why = f"{self.name}: all {_members(len(view.members), '')} reachable"
            return Proposal(ProposalKind.NONE, ProposalKind.NONE, (), why)
        answer = self._rule(view)
        decision = _WHEN_GRANTED.get(answer.kind, answer.kind)
        why = answer.why
        if answer.kind not in _INDIRECT:
            doomed = _hit(view, decision)
        elif view.unreachable <= view.indirectly_connected:
            doomed = view.indirectly_connected
        else:
            split = view.without_indirect()
            of_split = self._rule(split)
            if of_split.kind in _INDIRECT:
                decision = ProposalKind.DOWN_ALL
                doomed = view.downable
                why += "; without them there are still such links, so everything is downed"
            else:
                kind = _WHEN_GRANTED.get(of_split.kind, of_split.kind)
                doomed = view.indirectly_connected | _hit(split, kind)
                why += f"; apart from them, {of_split.why.removeprefix(self.name + ': ')}"
        return Proposal(answer.kind, decision, _in_order(view, doomed), why, answer.delay)

    def reverse(self, view: PartitionView, proposal: Proposal) -> Proposal:
        """What remains to do when the lease was denied to `proposal`: this side goes instead.

        `view` is the one that `proposal` was made from.
        """
        if proposal.kind in _INDIRECT:
            kind = ProposalKind.REVERSE_DOWN_INDIRECTLY_CONNECTED
            doomed = view.indirectly_connected | _hit(view, ProposalKind.DOWN_REACHABLE)
        else:
            kind = ProposalKind.DOWN_REACHABLE
            doomed = _hit(view, kind)
        why = f"{self.name}: the lease was denied, another side holds it"
        return Proposal(kind, kind, _in_order(view, doomed), why)


@dataclass(frozen=True)
class KeepMajority(Strategy):
    """The side with more counted members lives; of equal halves the one with the lowest address.

    Three parts without a majority all go down; of two members the crash of the lower one ends
    both.
    """

    name: ClassVar[str] = "keep-majority"
    role: str = ""

    def __post_init__(self) -> None:
        _check_role(self.role)

    def __str__(self) -> str:
        return canonical(self)

    def _rule(self, view: PartitionView) -> _Answer:
        return _indirect(self, view) or _majority_rule(self, self.role, view)

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """More than half of the counted, or half of them with the lowest address."""
        return _is_majority(counted(electorate, self.role), present)


@dataclass(frozen=True)
class StaticQuorum(Strategy):
    """A side with at least `quorum_size` counted members lives.

    With more than 2 x quorum_size - 1 of them two sides could, so any split downs everything.
    Below the quorum (at start, too) one unreachable member ends the rest.
    """

    name: ClassVar[str] = "static-quorum"
    quorum_size: int
    role: str = ""

    def __post_init__(self) -> None:
        _check_role(self.role)
        if self.quorum_size < 1:
            raise ValueError(
                f"static-quorum: quorum_size={self.quorum_size} can not be met by fewer than no "
                f"members: give the number of members that may live, at least 1"
            )

    def __str__(self) -> str:
        return canonical(self)

    @property
    def members_max(self) -> int:
        """With more counted members than this, two sides could reach the quorum."""
        return 2 * self.quorum_size - 1

    def _rule(self, view: PartitionView) -> _Answer:
        count = len(counted(view.members, self.role))
        if count > self.members_max:
            return _answer(
                self,
                ProposalKind.DOWN_ALL,
                f"{_members(count, self.role)} are more than the {self.members_max} that a quorum "
                f"of {self.quorum_size} can tell apart, and two sides could live",
            )
        if (indirect := _indirect(self, view)) is not None:
            return indirect
        here = len(view.here(COUNTED, self.role))
        kind = _live_or_leave(here >= self.quorum_size)
        return _answer(self, kind, f"{_reachable(view, self.role)}, {self.quorum_size} needed")

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """At least `quorum_size` of the counted, if no more than `members_max` count."""
        voters = counted(electorate, self.role)
        return len(voters) <= self.members_max and len(_among(voters, present)) >= self.quorum_size


@dataclass(frozen=True)
class KeepOldest(Strategy):
    """The side with the oldest counted member lives.

    With `down_if_alone` an oldest one that is alone against two or more goes down instead;
    without it a crash of the oldest ends the cluster. In a pair the oldest always lives.
    """

    name: ClassVar[str] = "keep-oldest"
    down_if_alone: bool = True
    role: str = ""

    def __post_init__(self) -> None:
        _check_role(self.role)

    def __str__(self) -> str:
        return canonical(self)

    def _rule(self, view: PartitionView) -> _Answer:
        if (answer := _indirect(self, view) or _nobody_counted(self, self.role, view)) is not None:
            return answer
        lives = self._lives(view, COUNTED, COUNTED)
        oldest = min(counted(view.members, self.role), key=age_key)
        is_here = oldest.id not in view.unreachable
        where = "reachable" if is_here else "unreachable"
        if lives is not is_here:
            where += " and alone"
        words = f"the oldest, {oldest.id.address}, is {where}; {_reachable(view, self.role)}"
        if not lives:
            return _answer(self, ProposalKind.DOWN_REACHABLE, words)
        # Elsewhere a leaving member may have left, so another one be the oldest; a joining one may
        # be up, so the oldest not be alone.
        sides = STAYING | MAYBE_UP if self.down_if_alone else STAYING
        if not self._lives(view, STAYING, sides):
            return _unsure(self, words)
        return _answer(self, ProposalKind.DOWN_UNREACHABLE, words)

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """With the oldest (not alone, if so told), or all but an oldest that would be alone."""
        voters = counted(electorate, self.role)
        if not voters:
            return False
        oldest = min(voters, key=age_key)
        here = _among(voters, present)
        return self._rules(oldest.id in present, len(here), len(voters) - len(here))

    def _lives(
        self, view: PartitionView, old: Collection[Status], sides: Collection[Status]
    ) -> bool:
        oldest = min(with_status(view.members, old, self.role), key=age_key, default=None)
        if oldest is None:
            return False
        here, there = view.here(sides, self.role), view.there(sides, self.role)
        return self._rules(oldest.id not in view.unreachable, len(here), len(there))

    def _rules(self, oldest_is_here: bool, here: int, there: int) -> bool:
        if oldest_is_here:
            return not (self.down_if_alone and here == 1 and there >= 2)
        return self.down_if_alone and there == 1 and here >= 2


@dataclass(frozen=True)
class KeepReferee(Strategy):
    """The side with the counted member at `referee` (`host:port`) lives, however small it is.

    A crash of the referee ends the cluster. As long as no counted member has this address the
    rule is keep-majority's.
    """

    name: ClassVar[str] = "keep-referee"
    referee: str
    role: str = ""

    def __post_init__(self) -> None:
        _check_role(self.role)
        host, _, port = self.referee.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535 or "," in host:
            raise ValueError(
                f"keep-referee: referee={self.referee!r} is no address of a member: write it as "
                f"host:port, as the members are listed, for example referee=10.0.0.1:25520"
            )

    def __str__(self) -> str:
        return canonical(self)

    def _rule(self, view: PartitionView) -> _Answer:
        if (indirect := _indirect(self, view)) is not None:
            return indirect
        referee = self._referee(counted(view.members, self.role))
        if referee is None:
            return self._without_referee(view)
        words = f"the referee {self.referee} is "
        if referee.id in view.unreachable:
            words += f"unreachable; {_reachable(view, self.role)}"
            return _answer(self, ProposalKind.DOWN_REACHABLE, words)
        words += f"reachable; {_reachable(view, self.role)}"
        # Elsewhere it may have left already, and then the majority rules there.
        if referee.status not in STAYING and not _majority_for_sure(view, self.role):
            return _unsure(self, words)
        return _answer(self, ProposalKind.DOWN_UNREACHABLE, words)

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """With the referee; while it is not counted, as keep-majority does."""
        voters = counted(electorate, self.role)
        referee = self._referee(voters)
        return _is_majority(voters, present) if referee is None else referee.id in present

    def _without_referee(self, view: PartitionView) -> _Answer:
        answer = _majority_rule(self, self.role, view)
        maybe = self._referee(view.there(MAYBE_UP, self.role))
        if answer.kind is ProposalKind.DOWN_UNREACHABLE and maybe is not None:
            return _unsure(self, f"{_reachable(view, self.role)}, the referee joins elsewhere")
        words = answer.why.removeprefix(f"{self.name}: ")
        return dataclasses.replace(answer, why=f"{self.name}: no {self.referee} counted, {words}")

    def _referee(self, members: Iterable[Member]) -> Member | None:
        # Two processes of one address: the younger one has it now.
        at_address = (member for member in members if member.id.address == self.referee)
        return max(at_address, key=age_key, default=None)


@dataclass(frozen=True)
class LeaseMajority(Strategy):
    """The side that gets the lease lives; a minority asks for it `minority_delay_s` later.

    The lease is given back `release_after_s` after the last downed member is gone. Nothing but
    the lease tells who lives, so `survives` is true for the whole electorate only.
    """

    name: ClassVar[str] = "lease-majority"
    role: str = ""
    minority_delay_s: float = 2.0
    release_after_s: float = 40.0

    def __post_init__(self) -> None:
        _check_role(self.role)
        for name in ("minority_delay_s", "release_after_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(
                    f"lease-majority: {name}={value} is no span of time: give seconds, 0 or more"
                )

    def __str__(self) -> str:
        return canonical(self)

    def _rule(self, view: PartitionView) -> _Answer:
        if (indirect := _indirect(self, view)) is not None:
            return dataclasses.replace(
                indirect, kind=ProposalKind.ACQUIRE_AND_DOWN_INDIRECTLY_CONNECTED
            )
        voters = counted(view.members, self.role)
        hurries = not voters or _is_majority(voters, _ids(view.here(COUNTED, self.role)))
        part = "" if not voters else ", the majority" if hurries else ", a minority"
        words = f"{_reachable(view, self.role)}{part}; the lease decides"
        kind = ProposalKind.ACQUIRE_AND_DOWN_UNREACHABLE
        return _answer(self, kind, words, "none" if hurries else "minority")

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """All of the counted: for less, only the lease can tell."""
        return _is_whole(counted(electorate, self.role), present)


@dataclass(frozen=True)
class DownAll(Strategy):
    """Whatever is unreachable, everything goes down: for clusters that are restarted as a whole."""

    name: ClassVar[str] = "down-all"

    def __str__(self) -> str:
        return canonical(self)

    def _rule(self, view: PartitionView) -> _Answer:
        return _answer(self, ProposalKind.DOWN_ALL, _reachable(view, ""))

    def survives(self, electorate: Iterable[Member], present: Collection[NodeId]) -> bool:
        """All of the counted: with less, everything goes down."""
        return _is_whole(counted(electorate), present)


def down_everything(view: PartitionView, why: str) -> Proposal:
    """Down all that can be, self last: no strategy's answer, but what is left without one."""
    kind = ProposalKind.DOWN_ALL
    return Proposal(kind, kind, _in_order(view, view.downable), why)


STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (KeepMajority, StaticQuorum, KeepOldest, KeepReferee, LeaseMajority, DownAll)
}


def parse(text: str) -> Strategy | None:
    """The strategy that `text` names, None for `none`: `static-quorum:quorum_size=3,role=core`.

    `str` of the result is the canonical form, defaults left out, on which all members must agree.
    Raises ValueError, saying what is wrong and what is allowed.
    """
    name, _, rest = text.strip().partition(":")
    if name == "none" and not rest:
        return None
    if name not in STRATEGIES:
        known = ["none", *STRATEGIES]
        near = _nearest(name.replace("_", "-"), known)
        mend = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"{name!r} is no downing strategy: {mend}It is one of {', '.join(known)}")
    kind = STRATEGIES[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in fields:
            raise ValueError(f"{name}: {_unknown_parameter(key, list(fields))}")
        if not equals or not value:
            raise ValueError(f"{name}: {key!r} has no value: write {key}={_FORMS[key]}")
        if key in values:
            raise ValueError(f"{name}: {key} is given twice: leave one of them out")
        try:
            values[key] = _READERS.get(key, str)(value)
        except (ValueError, KeyError):
            raise ValueError(
                f"{name}: {key}={value!r} can not be read: write {key}={_FORMS[key]}"
            ) from None
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.name not in values:
            raise ValueError(
                f"{name} needs {field.name}: write {name}:{field.name}={_FORMS[field.name]}"
            )
    return kind(**values)


def canonical(strategy: Strategy) -> str:
    """The text that `parse` reads back as this strategy, without what is default."""
    fields = dataclasses.fields(strategy)  # type: ignore[arg-type]
    values = [(field, getattr(strategy, field.name)) for field in fields]
    given = [f"{field.name}={_text(value)}" for field, value in values if value != field.default]
    return f"{strategy.name}:{','.join(given)}" if given else strategy.name


def warnings(strategy: Strategy | None, members: Iterable[Member]) -> list[str]:
    """What an operator should know about this strategy in a cluster of these members.

    One line each, with the mend; empty when there is nothing, or nobody is up yet.
    """
    members = tuple(members)
    voters = counted(members, getattr(strategy, "role", ""))
    if not counted(members) or strategy is None or isinstance(strategy, DownAll):
        return []
    if not voters:
        return [f"{strategy}: no member that is up has the role, so any split downs everything"]
    match strategy:
        case StaticQuorum():
            return _warn_of_quorum(strategy, len(voters))
        case KeepMajority():
            return _warn_of_halves(strategy, voters)
        case KeepReferee() if all(voter.id.address != strategy.referee for voter in voters):
            return [
                f"{strategy}: no counted member has the address {strategy.referee}, so the "
                f"majority decides: start it, or correct the address",
                *_warn_of_halves(strategy, voters),
            ]
    return []


def _warn_of_quorum(strategy: StaticQuorum, count: int) -> list[str]:
    if count > strategy.members_max:
        return [
            f"{strategy}: {_members(count, strategy.role)} are more than {strategy.members_max}, "
            f"so any split downs everything: set quorum_size={count // 2 + 1} on all members, or "
            f"have fewer"
        ]
    if count < strategy.quorum_size:
        return [
            f"{strategy}: {_members(count, strategy.role)}, fewer than the quorum, so nothing "
            f"unique acts and one unreachable member downs the rest: start "
            f"{strategy.quorum_size - count} more"
        ]
    return []


def _warn_of_halves(strategy: Strategy, voters: Sequence[Member]) -> list[str]:
    if len(voters) % 2:
        return []
    return [
        f"{strategy}: of {len(voters)} counted members two halves can not outvote each other, so "
        f"the half without {voters[0].id.address} always goes down: have an odd number"
        + (", three or more, or use a lease" if len(voters) == 2 else "")
    ]


def _indirect(strategy: Strategy, view: PartitionView) -> _Answer | None:
    if not view.indirectly_connected:
        return None
    names = ", ".join(node.address for node in sorted(view.indirectly_connected))
    return _answer(
        strategy,
        ProposalKind.DOWN_INDIRECTLY_CONNECTED,
        f"links fail between members that are still heard, {len(view.indirectly_connected)} of "
        f"{len(view.members)}: {names}",
    )


def _nobody_counted(strategy: Strategy, role: str, view: PartitionView) -> _Answer | None:
    if counted(view.members, role):
        return None
    return _answer(strategy, ProposalKind.DOWN_ALL, _members(0, role))


def _majority_rule(strategy: Strategy, role: str, view: PartitionView) -> _Answer:
    if (answer := _nobody_counted(strategy, role, view)) is not None:
        return answer
    voters = counted(view.members, role)
    here = view.here(COUNTED, role)
    words = _reachable(view, role)
    if 2 * len(here) == len(voters):
        lowest = voters[0].id
        where = "unreachable" if lowest in view.unreachable else "reachable"
        words += f", a tie; the lowest address, {lowest.address}, is {where}"
    if not _is_majority(voters, _ids(here)):
        return _answer(strategy, ProposalKind.DOWN_REACHABLE, words)
    if not _majority_for_sure(view, role):
        return _unsure(strategy, words)
    return _answer(strategy, ProposalKind.DOWN_UNREACHABLE, words)


def _majority_for_sure(view: PartitionView, role: str) -> bool:
    """This side wins even if its leavers have left and all that join over there are up."""
    here = len(view.here(STAYING, role))
    there = len(view.there(COUNTED | MAYBE_UP, role))
    if here != there:
        return here > there
    staying = with_status(view.members, STAYING, role)
    return bool(staying) and staying[0].id not in view.unreachable


def _is_majority(voters: Sequence[Member], present: Collection[NodeId]) -> bool:
    """More than half of `voters` (sorted by address); of a half, the one with the lowest."""
    twice = 2 * len(_among(voters, present))
    if twice != len(voters):
        return twice > len(voters)
    return bool(voters) and voters[0].id in present


def _is_whole(voters: Sequence[Member], present: Collection[NodeId]) -> bool:
    return bool(voters) and len(_among(voters, present)) == len(voters)


def _among(voters: Iterable[Member], present: Collection[NodeId]) -> list[Member]:
    return [voter for voter in voters if voter.id in present]


def _ids(members: Iterable[Member]) -> frozenset[NodeId]:
    return frozenset(member.id for member in members)


def _hit(view: PartitionView, kind: ProposalKind) -> frozenset[NodeId]:
    if kind is ProposalKind.DOWN_UNREACHABLE:
        return view.downable & view.unreachable
    if kind is ProposalKind.DOWN_REACHABLE:
        return view.downable - view.unreachable
    return view.downable


def _in_order(view: PartitionView, doomed: frozenset[NodeId]) -> tuple[NodeId, ...]:
    """By address, self last: whoever downs itself first does not get to the others."""
    return tuple(sorted(doomed & view.downable, key=lambda node: (node == view.self_id, node)))


def _live_or_leave(lives: bool) -> ProposalKind:
    return ProposalKind.DOWN_UNREACHABLE if lives else ProposalKind.DOWN_REACHABLE


def _answer(strategy: Strategy, kind: ProposalKind, words: str, delay: Delay = "none") -> _Answer:
    return _Answer(kind, f"{strategy.name}: {words}{_OUTCOMES.get(kind, '')}", delay)


def _unsure(strategy: Strategy, words: str) -> _Answer:
    return _answer(
        strategy,
        ProposalKind.DOWN_ALL,
        f"{words}, but others may count those that leave or join otherwise, and two sides live",
    )


def _reachable(view: PartitionView, role: str) -> str:
    here = len(view.here(COUNTED, role))
    return f"{here} of {_members(len(counted(view.members, role)), role)} reachable"


def _members(count: int, role: str) -> str:
    noun = "member" if count == 1 else "members"
    return f"{count} {noun} with role {role}" if role else f"{count} {noun}"


def _check_role(role: str) -> None:
    if any(mark in role for mark in ",=") or role != role.strip():
        raise ValueError(
            f"role={role!r} can not be written in a list of parameters: use a role without comma, "
            f"equals sign and surrounding blanks"
        )


def _unknown_parameter(key: str, known: list[str]) -> str:
    if not known:
        return f"it has no parameters, so {key!r} is none: leave it out"
    near = _nearest(key.replace("-", "_"), known)
    mend = f"did you mean {near!r}? " if near else ""
    allowed = ", ".join(f"{name}={_FORMS[name]}" for name in known)
    return f"{key!r} is no parameter: {mend}Allowed are {allowed}"


def _nearest(word: str, known: list[str]) -> str | None:
    import difflib  # only a mistake pays for it

    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.5)), None)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number(value) if isinstance(value, (int, float)) else str(value)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


_READERS: dict[str, Callable[[str], object]] = {
    "quorum_size": int,
    "down_if_alone": {"true": True, "false": False}.__getitem__,
    "minority_delay_s": float,
    "release_after_s": float,
}
_FORMS = {
    "role": "NAME",
    "quorum_size": "MEMBERS (a whole number)",
    "down_if_alone": "true or false",
    "referee": "HOST:PORT",
    "minority_delay_s": "SECONDS",
    "release_after_s": "SECONDS",
}
