"""What a lost link proves, and what it does not.

A killed process closes its sockets; its kernel then refuses its ports. Lost and refused, and
confirmed by min(2, other reachable members): unreachable at once. Lost and refused otherwise:
suspicion at its minimum. That a process *ended* is proven only by the kernel that ran it: its
pidfd (`ProcessEnded`), or, where the kernel cannot watch it for us, the same boot id and network
namespace, a link ended by EOF or RST, and both ports refused twice at least `refusal_gap_s` apart.
Does not decide what follows from a proof: that is `gossip.machine`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossip.events import Dial, Dialled, DialOutcome, WatchProcess
from gossip.ground import Ground
from gossip.membership import Member, NodeId, Status
from gossip.messages import LinkAnswer, LinkQuestion
from gossip.probing import Prober

CASE_S = 2.0
REDIAL_GAP_S = 0.01
CASES_MAX = 4096
TAKEN = (DialOutcome.ACCEPTED, DialOutcome.ANSWERED)


@dataclass(slots=True)
class _Case:
    """One lost link under examination."""

    attempt: int
    lost_at: float
    dial_at: float = math.inf
    refused_first_at: float = math.inf
    both_refused_at: list[float] = field(default_factory=list)
    asked: set[NodeId] = field(default_factory=set)
    confirmed: set[NodeId] = field(default_factory=set)


class LinkEvidence:
    """Examines lost links; reports proofs through `proven`."""

    def __init__(self, ground: Ground, prober: Prober) -> None:
        self._ground = ground
        self._prober = prober
        self._cases: dict[NodeId, _Case] = {}
        self._questions: dict[tuple[NodeId, int], tuple[NodeId, int]] = {}
        self._unwatched: set[NodeId] = set()

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        if not self._cases:
            return math.inf
        return min(
            (min(case.dial_at, case.lost_at + CASE_S) for case in self._cases.values()),
            default=math.inf,
        )

    # watching processes of our own kernel

    def member_appeared(self, member: Member) -> None:
        """Watch the process when it runs on our kernel, where its pid means something to us."""
        ground = self._ground
        me = ground.me
        if ground.settings.crash_evidence == "never" or not member.boot_id:
            return
        if member.boot_id == me.boot_id and member.pid_ns == me.pid_ns and member.pid > 0:
            ground.out.append(WatchProcess(member.id, member.pid, member.start_ticks))
        else:
            self._unwatched.add(member.id)

    def watch_refused(self, node: NodeId) -> None:
        """No pidfd here: refused ports are the fallback."""
        self._unwatched.add(node)

    def forget(self, node: NodeId) -> None:
        """The member is down or removed."""
        self._cases.pop(node, None)
        self._unwatched.discard(node)

    # lost links

    def is_examining(self, node: NodeId) -> bool:
        """True while a link of ours to this member has ended and cannot be dialled again."""
        return node in self._cases

    def link_lost(self, node: NodeId, now: float) -> None:
        """An established link ended: dial it again, at once."""
        member = self._ground.table.members.get(node)
        if member is None or member.status >= Status.DOWN or node in self._cases:
            return
        if not self._ground.settings.lifeguard:
            return
        if len(self._cases) >= CASES_MAX:
            self._ground.counters["link-cases-dropped"] += 1
            return
        case = _Case(self._ground.next_seq(), now)
        self._cases[node] = case
        self._dial(node, case)

    def _dial(self, node: NodeId, case: _Case) -> None:
        case.dial_at = math.inf
        data_port = self._ground.table.members[node].data_port
        self._ground.out.append(Dial(node, case.attempt, data_port))

    def dialled(self, event: Dialled, now: float) -> bool:
        """An answer of the kernel; True when it proves that the process ended."""
        question = self._questions.pop((event.peer, event.attempt), None)
        if question is not None:
            asker, attempt = question
            refused = event.control is DialOutcome.REFUSED
            self._ground.send(asker, LinkAnswer(event.peer, attempt, refused))
            return False
        case = self._cases.get(event.peer)
        if case is None or case.attempt != event.attempt:
            return False
        gap_s = self._ground.settings.refusal_gap_s
        if event.control is not DialOutcome.REFUSED:
            if event.control in TAKEN and now - case.lost_at < gap_s:
                case.dial_at = now + REDIAL_GAP_S
            else:
                del self._cases[event.peer]
                self._prober.probe_soon(event.peer, now)
            return False
        if case.refused_first_at == math.inf:
            case.refused_first_at = now
            self._prober.suspect_at_minimum(event.peer, now)
            self._ask_others(event.peer, case)
        if event.data is DialOutcome.REFUSED:
            case.both_refused_at.append(now)
        self._judge(event.peer, case, now)
        if self._is_proof(event.peer, case):
            return True
        if event.peer in self._cases:
            case.dial_at = now + gap_s
        return False

    def _is_proof(self, node: NodeId, case: _Case) -> bool:
        ground = self._ground
        if ground.settings.crash_evidence == "never" or node not in self._unwatched:
            return False
        me, member = ground.me, ground.table.members[node]
        same_host = member.boot_id != "" and (member.boot_id, member.net_ns) == (
            me.boot_id,
            me.net_ns,
        )
        refused = case.both_refused_at
        return (
            same_host
            and len(refused) >= 2
            and refused[-1] - refused[0] >= ground.settings.refusal_gap_s
        )

    def _ask_others(self, node: NodeId, case: _Case) -> None:
        ground = self._ground
        others = [peer for peer in ground.reachable_peers() if peer != node]
        case.asked = set(ground.sample(others, ground.settings.link_confirmations))
        for peer in sorted(case.asked):
            ground.send(peer, LinkQuestion(node, case.attempt))

    def questioned(self, sender: NodeId, message: LinkQuestion) -> None:
        """Another member lost its link: dial the subject for it."""
        ground = self._ground
        member = ground.table.members.get(message.subject)
        if member is None or member.status >= Status.DOWN:
            ground.send(sender, LinkAnswer(message.subject, message.attempt, refused=True))
            return
        if len(self._questions) >= CASES_MAX:
            ground.counters["link-questions-dropped"] += 1
            return
        attempt = ground.next_seq()
        self._questions[(message.subject, attempt)] = (sender, message.attempt)
        ground.out.append(Dial(message.subject, attempt))

    def answered(self, sender: NodeId, message: LinkAnswer, now: float) -> None:
        """A member we asked dialled the subject too."""
        case = self._cases.get(message.subject)
        if case is None or case.attempt != message.attempt or sender not in case.asked:
            self._ground.counters["link-answer-unasked"] += 1
            return
        if message.refused:
            case.confirmed.add(sender)
            self._judge(message.subject, case, now)

    def _judge(self, node: NodeId, case: _Case, now: float) -> None:
        if case.refused_first_at < math.inf and case.confirmed >= case.asked:
            member = self._ground.table.members[node]
            self._prober.mark_unreachable(node, member.incarnation, now)
            if node not in self._unwatched:
                self._cases.pop(node, None)

    def tick(self, now: float) -> None:
        """Dial again what is due; close old cases."""
        for node, case in sorted(self._cases.items()):
            if now >= case.lost_at + CASE_S:
                del self._cases[node]
            elif now >= case.dial_at:
                self._dial(node, case)
