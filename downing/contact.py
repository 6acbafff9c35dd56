"""Contact: until when whatever is unique on this node may act.

Decides: whom to ask, how often, through whom when no answer comes, what an answer is worth, and the
instant up to which the members that granted would survive with us. Does not decide who is down, nor
what becomes of what has to stop. Part of `downing.machine`.

Suspicion is too slow for the side that is cut off: nobody confirms it there. So authority rests on
answers, not on the absence of accusations: a *grant* is valid `contact_s` from the instant *our
ping was sent*, whenever it arrives. A takeover needs promises of a surviving set that has given no
grant for longer than that, and two surviving sets share a member: so the one side has fallen silent
before the other begins.

The count is a *joint* one: who grants must survive among the members of the present view and among
those of the *base*, the last view that was seen converged; without it two sides could count
different electorates. Members that went since stay in the base, and nobody can ask them any more.
The last grant of one that went is worth what it was, no longer than any other: it had not promised
when it gave it. So a host does not pause while a smaller view is being agreed on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from downing.messages import ContactAck, ContactPing, Grant
from downing.settings import DowningSettings
from downing.strategies import Strategy
from downing.view import counted
from gossip.effects import Send
from gossip.membership import Member, MembershipView, NodeId, Status

HURRY_GAP_S = 0.05
"""Between two rounds that changes of the view call for."""
ROUNDS_MAX = 64


class Contact:
    """Pings and grants of one node.

    send: takes the effects, in order. `until` is the result; `base` the members of the last
    converged view; `given` when each process got its last grant from us.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: DowningSettings,
        send: Callable[[Send], None],
    ) -> None:
        self.until = -math.inf
        self.arbiter_until = -math.inf
        self.base: tuple[Member, ...] | None = None
        self.base_digest = 0
        self.given: dict[NodeId, float] = {}
        self.refusals: dict[NodeId, Grant] = {}
        self._strategy = strategy
        self._settings = settings
        self._send = send
        self._view: MembershipView | None = None
        self._targets: list[NodeId] = []
        self._is_active = False
        self._asks_all = False
        self._offset = 0
        self._seq = 0
        self._sent_at: dict[int, float] = {}
        self._asked: tuple[NodeId, ...] = ()  # in the newest round
        self._granted: dict[NodeId, float] = {}
        self._acked: dict[NodeId, float] = {}
        self._is_full = False  # the grants of the newest round are enough
        self._next_at = math.inf
        self._relay_at = math.inf

    # when

    @property
    def deadline(self) -> float:
        """The next instant `tick` is due."""
        return min(self._next_at, self._relay_at)

    def ask(self, now: float, *, wanted: bool, all_members: bool) -> None:
        """Ask on, or no more. all_members: not only enough for contact, because somebody is
        unreachable and all have to be known."""
        was_active, self._is_active = self._is_active, wanted or all_members
        hurries = all_members and not self._asks_all
        self._asks_all = all_members
        if not self._is_active:
            self._next_at = self._relay_at = math.inf
        elif not was_active or hurries:
            self.hurry(now)

    def hurry(self, now: float) -> None:
        """The view changed: ask at once."""
        if self._is_active:
            last = self._sent_at.get(self._seq, -math.inf)
            self._next_at = min(self._next_at, max(now, last + HURRY_GAP_S))

    def view_changed(self, view: MembershipView, now: float) -> None:
        """Another view; one that all have agreed on is the new base."""
        before = self._view
        self._view = view
        if view.agreed:
            self.take_base()
        if before is not None and before.members == view.members:
            return
        self._targets = [
            member.id
            for member in view.members
            if member.status < Status.DOWN and member.id != view.self_id
        ]
        known = view.by_id
        tables: tuple[dict[NodeId, Any], ...] = (self._acked, self.refusals)
        for table in tables:
            for node in [node for node in table if node not in known]:
                del table[node]
        for node in [n for n in self.given if n not in known]:
            if now - self.given[node] > self._settings.quiet_needed_s:
                del self.given[node]
        self.hurry(now)

    def take_base(self) -> None:
        """The present view was seen converged, by us or by who told us."""
        assert self._view is not None
        if self.base_digest != self._view.members_digest or self.base is None:
            self.base_digest = self._view.members_digest
            self.base = counted(self._view.members)

    def tick(self, now: float) -> None:
        """Begin the next round; repeat what is unanswered through others."""
        if now >= self._relay_at:
            self._relay_at = math.inf
            self._ask_through_others()
            self.refresh(now)
        if now >= self._next_at:
            self._begin_round(now)
            self.refresh(now)

    def _begin_round(self, now: float) -> None:
        self._next_at = now + self._settings.ping_interval_s
        self._relay_at = min(now + self._settings.ack_timeout_s, self._next_at)
        self._seq += 1
        self._sent_at[self._seq] = now
        oldest = next(iter(self._sent_at))
        while len(self._sent_at) > ROUNDS_MAX or (
            oldest != self._seq and now - self._sent_at[oldest] > self._settings.contact_s
        ):
            del self._sent_at[oldest]
            oldest = next(iter(self._sent_at))
        self._is_full = False
        self._asked = tuple(self._chosen())
        for node in [n for n, at in self._granted.items() if self._is_over(at, now)]:
            del self._granted[node]
        ping = ContactPing(self._seq, self.base_digest)
        for node in self._asked:
            self._send(Send(node, ping))

    def _is_over(self, granted_at: float, now: float) -> bool:
        return granted_at + self._settings.contact_s <= now

    def _chosen(self) -> list[NodeId]:
        """All; of very many as many as are enough and some more, others each time."""
        targets, settings = self._targets, self._settings
        if len(targets) <= settings.pinged_max or self._asks_all or not targets:
            return targets
        self._offset = (self._offset + 1) % len(targets)
        ring = targets[self._offset :] + targets[: self._offset]
        enough = self._least(ring)
        return ring if enough is None else ring[: enough + settings.pinged_spare]

    def _ask_through_others(self) -> None:
        sent_at = self._sent_at.get(self._seq)
        if sent_at is None:
            return
        answered = [node for node in self._asked if self._acked.get(node, -math.inf) >= sent_at]
        silent = [node for node in self._asked if self._acked.get(node, -math.inf) < sent_at]
        if not answered:
            return
        ping = ContactPing(self._seq, self.base_digest)
        relays = 0
        for index, node in enumerate(silent):
            for nth in range(min(self._settings.helpers, len(answered))):
                if relays >= self._settings.relays_max:
                    return
                helper = answered[(self._seq + index + nth) % len(answered)]
                self._send(Send(node, ping, via=helper))
                relays += 1

    # what others say

    def asked(
        self, sender: NodeId, ping: ContactPing, via: NodeId | None, grant: Grant, now: float
    ) -> None:
        """Another node asks for contact; `grant` is what it gets."""
        if grant is Grant.GIVEN:
            self.given[sender] = now
        self._hear_base(ping.base_digest)
        self._send(Send(sender, ContactAck(ping.seq, grant, self.base_digest), via=via))

    def answered(self, sender: NodeId, ack: ContactAck, now: float) -> bool:
        """An answer came; True when it was one to a ping of ours."""
        sent_at = self._sent_at.get(ack.seq)
        if sent_at is None or self._view is None or sender not in self._view.by_id:
            return False
        self._hear_base(ack.base_digest)
        self._acked[sender] = max(sent_at, self._acked.get(sender, -math.inf))
        if ack.grant is Grant.GIVEN:
            self.refusals.pop(sender, None)
            self._granted[sender] = max(sent_at, self._granted.get(sender, -math.inf))
            self._count_newest()
        else:
            self.refusals[sender] = ack.grant
        return True

    def _hear_base(self, digest: int) -> None:
        """Convergence that one has seen holds for all: a follower hears of it in no other way."""
        view = self._view
        if view is not None and digest != self.base_digest and digest == view.members_digest:
            self.take_base()

    def known_since(self, since: float) -> set[NodeId]:
        """Members that have answered a ping sent at or after this instant."""
        return {node for node, sent_at in self._acked.items() if sent_at >= since}

    # the count

    def survives(self, present: Collection[NodeId]) -> bool:
        """True when these would live without all others, in the present view and in the base."""
        if self._view is None or self.base is None:
            return False
        return self._strategy.survives(self.base, present) and self._strategy.survives(
            self._view.members, present
        )

    def _voters(self, others: Iterable[NodeId]) -> set[NodeId]:
        """Those, and ourselves unless we leave."""
        assert self._view is not None
        voters = set(others)
        me = self._view.by_id.get(self._view.self_id)
        if me is not None and me.status < Status.LEAVING:
            voters.add(me.id)
        return voters

    def _least(self, ring: list[NodeId]) -> int | None:
        """How many of these, from the first on, are enough; None: all are too few."""
        if not self.survives(self._voters(ring)):
            return None
        low, high = 0, len(ring)
        while low < high:
            middle = (low + high) // 2
            if self.survives(self._voters(ring[:middle])):
                high = middle
            else:
                low = middle + 1
        return low

    def _count_newest(self) -> None:
        """The usual case, cheaply: the grants of the newest round alone are enough."""
        sent_at = self._sent_at.get(self._seq)
        if self._is_full or sent_at is None:
            return
        voters = self._voters(node for node, at in self._granted.items() if at >= sent_at)
        if self.survives(voters):
            self._is_full = True
            self.until = max(self.arbiter_until, sent_at + self._settings.contact_s)

    def refresh(self, now: float) -> None:
        """Count anew from all grants that are valid yet."""
        self.until = max(self.arbiter_until, self._granted_until(now))

    def _granted_until(self, now: float) -> float:
        if self._view is None:
            return -math.inf
        valid_s = self._settings.contact_s
        grants = [(at, n) for n, at in self._granted.items() if not self._is_over(at, now)]
        grants.sort(reverse=True)
        enough = self._least([node for _, node in grants])
        if enough is None:
            return -math.inf
        return math.inf if enough == 0 else grants[enough - 1][0] + valid_s

    def missing(self, now: float) -> Iterator[NodeId]:
        """Counted members without a valid grant, for an explanation."""
        if self._view is None:
            return
        for member in counted(self._view.members):
            granted_at = self._granted.get(member.id, -math.inf)
            if member.id != self._view.self_id and self._is_over(granted_at, now):
                yield member.id
