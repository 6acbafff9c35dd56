"""Small means to write singleton tests in: nodes, views, and what a machine sent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gossip.effects import PeerMessage, Publish, Send
from gossip.membership import Cause, Member, MembershipView, NodeId, Status
from singleton.effects import RouteSingleton, StartInstance, StopInstance
from singleton.election import hosted_type
from singleton.events import StartRequested, UniquenessNotProven
from singleton.machine import SingletonMachine
from singleton.messages import AnswerKind, HandOverAnswer, HandOverAsk, HostNotice, NoticeKind
from singleton.settings import SingletonSettings

TYPE = "ledger"
HOSTED = hosted_type(TYPE)


def node(name: str) -> NodeId:
    """`a` is 10.0.0.1, `b` 10.0.0.2, …; an upper-case letter is a later process there."""
    host = ord(name.lower()) - ord("a") + 1
    return NodeId(f"10.0.0.{host}", 25520, host if name.islower() else host + 100)


A, B, C, D = (node(name) for name in "abcd")


def member(name: str, number: int | None = None, **fields: Any) -> Member:
    """A member that is up and hosts the type; its age is its place in the alphabet."""
    of_letter = ord(name.lower()) - ord("a") + 1 + (0 if name.islower() else 10)
    plain = Member(
        id=node(name),
        name=name,
        status=Status.UP,
        up_number=of_letter if number is None else number,
        types=(HOSTED,),
    )
    return replace(plain, **fields)


def view(
    me: str,
    members: str | Iterable[Member] = "a b c",
    *,
    unreachable: str = "",
    gone: dict[NodeId, Cause] | None = None,
) -> MembershipView:
    """What `me` sees; `members` by letters, or written out."""
    if isinstance(members, str):
        members = [member(name) for name in members.split()]
    return MembershipView(
        self_id=node(me),
        cluster_id=1,
        members=tuple(sorted(members, key=lambda each: each.id)),
        unreachable=frozenset(node(name) for name in unreachable.split()),
        gone=gone or {},
    )


def machine(
    me: str,
    seen: MembershipView | None = None,
    *,
    settings: SingletonSettings | None = None,
    now: float = 0.0,
) -> tuple[SingletonMachine, list[object]]:
    """A manager that was started, and what it ordered once it saw the view."""
    settings = settings or SingletonSettings()
    made = SingletonMachine(TYPE, node(me), settings, random.Random(7))
    effects = made.handle(StartRequested(TYPE, settings), now)
    if seen is not None:
        effects = made.handle(seen, now)
    return made, effects


def asks(effects: Iterable[object]) -> dict[NodeId, int]:
    """Who was asked, under which round."""
    return {
        effect.to: effect.message.round
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, HandOverAsk)
    }


def answers(effects: Iterable[object]) -> dict[NodeId, AnswerKind]:
    """Who was answered what."""
    return {
        effect.to: effect.message.kind
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, HandOverAnswer)
    }


def notices(effects: Iterable[object], kind: NoticeKind) -> list[NodeId]:
    """Who was told `kind`."""
    return [
        effect.to
        for effect in effects
        if isinstance(effect, Send)
        and isinstance(effect.message, HostNotice)
        and effect.message.kind is kind
    ]


def started(effects: Iterable[object]) -> list[int]:
    """Attempts of the instances that were ordered."""
    return [effect.attempt for effect in effects if isinstance(effect, StartInstance)]


def stopped(effects: Iterable[object]) -> list[int]:
    """Attempts of the instances that were ordered to stop."""
    return [effect.attempt for effect in effects if isinstance(effect, StopInstance)]


def routes(effects: Iterable[object]) -> list[NodeId | None]:
    """The hosts that the proxy was told, in order."""
    return [effect.host for effect in effects if isinstance(effect, RouteSingleton)]


def unproven(effects: Iterable[object]) -> list[tuple[NodeId, ...]]:
    """The silent peers of each warning."""
    return [
        effect.fact.silent_peers
        for effect in effects
        if isinstance(effect, Publish) and isinstance(effect.fact, UniquenessNotProven)
    ]


def ask_from(name: str, *, in_round: int = 1, number: int | None = None) -> PeerMessage:
    """A hand-over question of a peer."""
    age = member(name).up_number if number is None else number
    return PeerMessage(node(name), HandOverAsk(TYPE, in_round, age))


def answer_from(name: str, kind: AnswerKind, *, to_round: int = 1, **fields: Any) -> PeerMessage:
    """A peer's answer to our question of `to_round`."""
    plain = HandOverAnswer(TYPE, to_round, kind)
    return PeerMessage(node(name), replace(plain, **fields))


def notice_from(name: str, kind: NoticeKind, *, sent_in: int = 1, epoch: int = 1) -> PeerMessage:
    """A peer's notice."""
    return PeerMessage(node(name), HostNotice(TYPE, kind, sent_in, epoch))
