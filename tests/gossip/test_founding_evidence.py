"""What counts as "it is looking too": an answer to our question, never a question of its own.

Found with five real processes started at once: one whose port was not bound yet was "nobody" to
the founder, and took the founder's earlier question for the word that nobody had founded.
"""

from __future__ import annotations

import random

from gossip.events import ClusterFounded, Dialled, DialOutcome, PeerFrame, Started
from gossip.machine import GossipMachine
from gossip.membership import Member, NodeId
from gossip.messages import Head, JoinRequest, LookingToo
from gossip.settings import GossipSettings

LOW = NodeId("127.0.0.1", 20001, 1)
MIDDLE = NodeId("127.0.0.1", 20002, 2)
HIGH = NodeId("127.0.0.1", 20003, 3)


def looking(node: NodeId, *others: NodeId) -> GossipMachine:
    """A process that has just begun to look; it and the others are the seeds."""
    machine = GossipMachine(
        Member(node), cluster_name="t", settings=GossipSettings(), rng=random.Random(1)
    )
    machine.handle(Started((node[:2], *(other[:2] for other in others))), 0.0)
    return machine


def hears(machine: GossipMachine, peer: NodeId, message: object, now: float) -> bool:
    """Hand over a message of a looking process; True when that made us found."""
    return founded(machine.handle(PeerFrame(peer, Head(0), (message,)), now))


def founded(effects: list[object]) -> bool:
    """True when one of the effects tells of a founding."""
    return any(isinstance(getattr(effect, "fact", None), ClusterFounded) for effect in effects)


def question_of(node: NodeId) -> JoinRequest:
    """What a looking process asks."""
    return JoinRequest(Member(node), "t", (), ())


def nobody_at(node: NodeId) -> Dialled:
    """Our own kernel refused the dial."""
    return Dialled(node._replace(uid=0), 0, DialOutcome.REFUSED, None)


def test_a_question_founds_nothing_an_answer_does() -> None:
    """I-82: who asked us may have founded since; who answered us leaves it to the lower one."""
    machine = looking(LOW, HIGH)
    assert not hears(machine, HIGH, question_of(HIGH), 0.01)
    assert hears(machine, HIGH, LookingToo("t", ()), 0.02)


def test_nobody_there_is_an_answer() -> None:
    """Our kernel's word about a port of this host."""
    assert founded(looking(HIGH, LOW).handle(nobody_at(LOW), 0.01))


def test_a_question_ends_the_word_that_nobody_is_there() -> None:
    """I-82: the refusal was true before that process had bound its port, and no longer is."""
    machine = looking(LOW, MIDDLE, HIGH)
    assert not founded(machine.handle(nobody_at(MIDDLE), 0.01))
    assert not hears(machine, MIDDLE, question_of(MIDDLE), 0.02)
    assert not hears(machine, HIGH, LookingToo("t", ()), 0.03), "the middle one has not answered"
    assert hears(machine, MIDDLE, LookingToo("t", ()), 0.04)
