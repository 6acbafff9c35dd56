"""What is heard of a member from others, and is too grave to be believed at a single word.

Two kinds: that a member became up (and how old it is), and that it leaves or is gone. Decides when
such a claim is believed: at the second voice of another member; a departure also when its subject
refuses a dial or gives no answer, and never on one voice while the subject, once up, answers that
it stays; a promotion also when it stands uncontradicted for long and its subject is alive. Does not
decide whose word needs no second one (the leader's, and the member's own about its leave): that is
`gossip.machine`, which applies what is believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossip.events import Dial, Dialled, DialOutcome
from gossip.ground import Ground
from gossip.membership import Cause, NodeId, Status
from gossip.messages import Ping

VOICES = 2
CLAIMS_MAX = 16  # of one subject: more different ones make no honest members


@dataclass(frozen=True, slots=True)
class Promotion:
    """`subject` is up since the cluster's `up_number`-th promotion."""

    subject: NodeId
    up_number: int


@dataclass(frozen=True, slots=True)
class Departure:
    """`subject` leaves (`LEAVING`, `EXITING`) or is gone; `number` is a tombstone's, else 0."""

    subject: NodeId
    status: Status
    cause: Cause
    number: int = 0


Claim = Promotion | Departure


@dataclass(slots=True)
class _Held:
    since: float
    voices: set[NodeId] = field(default_factory=set)
    ask_at: float = math.inf  # a promotion: when the leader is asked, then its subject
    asked_leader: bool = False
    heard_subject: bool = False


@dataclass(slots=True)
class _Question:
    """A member is asked whether it is still there."""

    seq: int
    attempt: int
    ends_at: float
    acked: bool = False


class Hearsay:
    """Claims that wait for a second voice, or for their subject."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._held: dict[NodeId, dict[Claim, _Held]] = {}
        self._questions: dict[NodeId, _Question] = {}
        self._quiet_until: dict[NodeId, float] = {}
        self.deadline = math.inf  # when `tick` is due; may be early

    # claims

    def promoted(self, sender: NodeId, claim: Promotion, now: float) -> bool:
        """A member says so; True when that makes it believed. Otherwise, when no second voice
        comes, the leader is asked, who should know, and when that does not help the subject."""
        held = self._hold(claim, now)
        if held is None:
            return False
        if not held.voices:
            held.ask_at = now + self._ground.settings.gossip_interval_s
            self.deadline = min(self.deadline, held.ask_at)
        return self._second_voice(claim, held, sender)

    def departed(self, sender: NodeId, claim: Departure, now: float) -> bool:
        """A member says so; True when that makes it believed, otherwise its subject is asked."""
        held = self._hold(claim, now)
        if held is None:
            return False
        if self._second_voice(claim, held, sender):
            return True
        if claim.subject not in self._questions and (
            now >= self._quiet_until.get(claim.subject, -math.inf)
        ):
            self._ask(claim.subject, now)
        return False

    def _hold(self, claim: Claim, now: float) -> _Held | None:
        ground = self._ground
        claims = self._held.get(claim.subject, {})
        held = claims.get(claim)
        if held is None:
            subjects_max = ground.settings.members_max
            if len(claims) >= CLAIMS_MAX or len(self._held) >= subjects_max:
                ground.counters["hearsay-dropped"] += 1
                return None
            held = claims[claim] = _Held(now)
            self._held[claim.subject] = claims
            self.deadline = min(self.deadline, now + ground.settings.weakly_up_after_s)
            ground.counters["hearsay-held"] += 1
        return held

    def _second_voice(self, claim: Claim, held: _Held, sender: NodeId) -> bool:
        held.voices.add(sender)
        if len(held.voices) < VOICES:
            return False
        self._drop(claim)
        return True

    def _drop(self, claim: Claim) -> None:
        claims = self._held[claim.subject]
        del claims[claim]
        if not claims:
            del self._held[claim.subject]

    def _ask(self, subject: NodeId, now: float) -> None:
        ground = self._ground
        question = _Question(
            ground.next_seq(), ground.next_seq(), now + ground.settings.probe_interval_s
        )
        self._questions[subject] = question
        self.deadline = min(self.deadline, question.ends_at)
        ground.send(subject, Ping(question.seq, subject))
        ground.ask_records((subject,), of=subject)
        ground.out.append(Dial(subject, question.attempt))

    # answers

    def heard(self, node: NodeId) -> None:
        """A frame of this member came over its own connection."""
        if node in self._held:
            for held in self._held[node].values():
                held.heard_subject = True

    def acked(self, sender: NodeId, seq: int) -> bool:
        """True when this ack answers a question of ours: it is there."""
        question = self._questions.get(sender)
        if question is None or question.seq != seq:
            return False
        question.acked = True
        return True

    def stays(self, node: NodeId, now: float) -> None:
        """The member says itself that it is neither leaving nor gone."""
        if self._questions.pop(node, None) is not None:
            self._deny(node, now)

    def _deny(self, node: NodeId, now: float) -> None:
        # The voices are kept: a second one may come later.
        self._ground.counters["departures-denied"] += 1
        if len(self._quiet_until) >= self._ground.settings.members_max:
            self._quiet_until.clear()
        self._quiet_until[node] = now + self._ground.settings.redial_interval_s

    def dialled(self, event: Dialled) -> list[Claim] | None:
        """The claims that a refused dial confirms; None when the dial was not ours."""
        question = self._questions.get(event.peer)
        if question is None or question.attempt != event.attempt:
            return None
        if event.control is not DialOutcome.REFUSED:
            return []
        del self._questions[event.peer]
        return self._take_departures(event.peer)

    def leaves(self, node: NodeId) -> list[Claim]:
        """It is known to leave or to be gone: what else was heard of that is no news any more."""
        self._questions.pop(node, None)
        return self._take_departures(node)

    def forget(self, node: NodeId) -> None:
        """The member was removed."""
        self._questions.pop(node, None)
        self._quiet_until.pop(node, None)
        self._held.pop(node, None)

    def _take_departures(self, node: NodeId) -> list[Claim]:
        found: list[Claim] = [
            claim for claim in self._held.get(node, ()) if isinstance(claim, Departure)
        ]
        for claim in found:
            self._drop(claim)
        return found

    # time

    def paused(self, now: float) -> None:
        """We did not run: what was not answered meanwhile is our own fault."""
        for subject in list(self._questions):
            self._ask(subject, now)

    def tick(self, now: float) -> list[Claim]:
        """What is due; returns the claims that are believed now."""
        believed: list[Claim] = []
        if now < self.deadline:
            return believed
        for subject in sorted(n for n, q in self._questions.items() if now >= q.ends_at):
            if self._questions.pop(subject).acked:
                self._deny(subject, now)
            else:
                believed += self._take_departures(subject)
        held_s = self._ground.settings.weakly_up_after_s
        leader = self._ground.leader
        of_leader: list[NodeId] = []
        for claim, held in [pair for claims in self._held.values() for pair in claims.items()]:
            if now >= held.ask_at:
                held.ask_at = math.inf
                if not held.asked_leader and leader not in (
                    None, self._ground.self_id, claim.subject,
                ):  # fmt: skip
                    held.asked_leader = True
                    held.ask_at = now + self._ground.settings.gossip_interval_s
                    of_leader.append(claim.subject)
                elif claim.subject != self._ground.self_id:
                    self._ground.ask_records((claim.subject,), of=claim.subject)
            if now >= held.since + held_s:
                self._drop(claim)
                if self._stands(claim, held):
                    believed.append(claim)
        if of_leader and leader is not None:
            self._ground.ask_records(of_leader, of=leader)
        self._rearm(held_s)
        return believed

    def _rearm(self, held_s: float) -> None:
        self.deadline = min(
            min((question.ends_at for question in self._questions.values()), default=math.inf),
            min(
                (
                    min(held.ask_at, held.since + held_s)
                    for claims in self._held.values()
                    for held in claims.values()
                ),
                default=math.inf,
            ),
        )

    def _stands(self, claim: Claim, held: _Held) -> bool:
        """Who decided it may be gone, or lead no more, and have told one member only; in the end
        one voice is enough where little is lost.

        So a living member becomes up, as the youngest, and one that never was up is removed: it
        hosts nothing unique, and comes back under another uid. Nobody that is up is taken out so.
        """
        ground = self._ground
        members = ground.table.members
        subject = members.get(claim.subject)
        if subject is None or claim.subject == ground.self_id:
            return False
        if isinstance(claim, Departure):
            return claim.cause is Cause.NEVER_UP and subject.up_number == 0
        highest = max(member.up_number for member in members.values())
        return bool(
            subject.up_number == 0
            and held.voices - {claim.subject}
            and held.heard_subject
            and claim.subject not in ground.unreachable
            and highest < claim.up_number <= highest + ground.settings.members_max
        )
