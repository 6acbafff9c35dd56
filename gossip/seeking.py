"""How a process without a cluster finds one, or founds one.

Decides: whom to ask, when every seed and every remembered member has answered that it is looking
too (silence founds nothing), who of them founds (the lowest address), and what a refusal means.
Does not decide whether a process is admitted: that is `gossip.admission`, on the member's side.
Used by `gossip.machine` until the process is a member; its messages are listed in
`gossip.messages.JOIN_MESSAGES`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gossip.events import (
    Address,
    ClusterFounded,
    ClusterJoined,
    Dial,
    Dialled,
    DialOutcome,
    Exit,
    LookingFor,
    MemberChanged,
    SeedsResolved,
    Started,
    TakeIdentity,
)
from gossip.ground import Ground
from gossip.membership import NodeId, Status
from gossip.messages import (
    IAm,
    Invite,
    JoinChallenge,
    JoinConfirm,
    JoinRefused,
    JoinRequest,
    LookingToo,
    RefusalKind,
    Welcome,
    WhoAreYou,
)

REFUSED_EXIT = 3
CONFIRM_WAIT_S = 1.0


@dataclass(slots=True)
class _Target:
    """An address that must answer before we may found."""

    address: Address
    answered_at: float = -math.inf  # it answered our question: it looks, and knows that we do
    asked_at: float = -math.inf  # it asked us: it looks, but may not know of us yet
    nobody_at: float = -math.inf

    @property
    def asked_us(self) -> bool:
        """So it names us, and leaves the founding to us if ours is lower."""
        return self.asked_at > -math.inf

    def answered(self, now: float, valid_s: float) -> bool:
        # A question of its own is no answer: who sent it may have founded since, on the word of
        # our kernel that nobody was here yet.
        nobody_at = self.nobody_at if self.nobody_at >= self.asked_at else -math.inf
        return now - max(self.answered_at, nobody_at) <= valid_s

    def looks(self, now: float, valid_s: float) -> bool:
        looking_at = max(self.answered_at, self.asked_at)
        return now - looking_at <= valid_s and looking_at >= self.nobody_at


def parse_address(text: str) -> Address | None:
    """`host:port` (also `[::1]:25520`) as a pair, or None when it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return (host.strip("[]"), int(port))


class Seeker:
    """The looking half of a process; idle (`deadline` inf) once it is a member."""

    def __init__(self, ground: Ground, agreement: tuple[tuple[str, str], ...]) -> None:
        self._ground = ground
        self._agreement = agreement
        self._targets: dict[Address, _Target] = {}
        self._guides: dict[Address, float] = {}  # members met that are no targets: until when
        self._remembered: tuple[str, ...] = ()
        self._seeds: tuple[Address, ...] = ()
        self._unresolved: tuple[str, ...] = ()
        self._wall_s = 0
        self._hold_until = -math.inf
        self._confirmed: tuple[NodeId, float] | None = None
        self._retry_s = ground.settings.join_retry_s
        self._explained = ""
        self.looking = False
        self.deadline = math.inf

    @property
    def outside_addresses(self) -> tuple[Address, ...]:
        """Seeds and remembered members: whom a member asks when they are outside its view."""
        return tuple(self._targets)

    # start

    def start(self, event: Started, now: float) -> None:
        """Begin to look; founds at once when told so, or when there is nobody else to ask."""
        seeds, remembered, found = event.seeds, event.remembered, event.found
        self._wall_s = event.wall_s
        own = self._own_address()
        self.looking = True
        self._seeds = seeds
        self._unresolved = event.unresolved
        for address in seeds:
            self._add_target(address)
        for text in remembered[: self._ground.settings.remembered_max]:
            parsed = parse_address(text)
            if parsed is not None and self._add_target(parsed):
                self._remembered = (*self._remembered, text)
        if found or (own in seeds and not self._targets and not self._unresolved):
            self._found(now)
            return
        self._ask(now)

    def resolved(self, event: SeedsResolved, now: float) -> None:
        """More seeds have an address; they are asked, by a member as well."""
        self._seeds = tuple(dict.fromkeys((*self._seeds, *event.seeds)))
        self._unresolved = event.unresolved
        for address in event.seeds:
            self._add_target(address)
        if self.looking:
            if self._own_address() in self._seeds and not self._targets and not self._unresolved:
                self._found(now)
            else:
                self._ask(now)

    def _own_address(self) -> Address:
        return (self._ground.self_id.host, self._ground.self_id.port)

    def _add_target(self, address: Address) -> bool:
        if address == self._own_address():
            return False
        if len(self._targets) >= 4 * self._ground.settings.remembered_max:
            self._ground.counters["targets-dropped"] += 1
            return False
        self._targets.setdefault(address, _Target(address))
        return True

    # asking

    def _request(self) -> JoinRequest:
        ground = self._ground
        return JoinRequest(ground.me, ground.cluster_name, self._agreement, self._remembered)

    def _ask(self, now: float) -> None:
        ground = self._ground
        self._guides = {a: until for a, until in self._guides.items() if until > now}
        addresses = sorted({*self._targets, *self._guides})
        for address in addresses:
            peer = NodeId(*address, 0)
            ground.send(peer, self._request())
            if address[0] == ground.self_id.host and address in self._targets:
                # Only our own host's kernel can say that nobody is there.
                ground.out.append(Dial(peer, attempt=0))
        self.deadline = now + self._retry_s * ground.rng.uniform(0.8, 1.2)
        self._retry_s = min(self._retry_s * 1.5, ground.settings.join_retry_max_s)

    def tick(self, now: float) -> None:
        """Ask again when it is due."""
        if self.looking and now >= self.deadline:
            self._try_found(now)
            if self.looking:
                self._explain(now)
                self._ask(now)

    def void(self, now: float) -> None:
        """A pause of our own: every answer is old."""
        for target in self._targets.values():
            target.answered_at = target.nobody_at = -math.inf
        if self.looking:
            self.deadline = now

    # answers

    def dialled(self, event: Dialled, now: float) -> None:
        """Our own kernel refused the dial: nobody is there."""
        target = self._targets.get((event.peer.host, event.peer.port))
        if target is not None and self.looking and event.control is DialOutcome.REFUSED:
            target.nobody_at = now
            self._try_found(now)

    def peer_message(self, sender: NodeId, message: object, now: float) -> None:
        """A message to a looking process; what belongs to members is counted and dropped."""
        match message:
            case JoinRequest():
                target = self._met_looking(sender, message.cluster_name, message.remembered)
                if target is not None:
                    target.asked_at = now
                self._ground.send(sender, LookingToo(self._ground.cluster_name, self._remembered))
            case LookingToo():
                target = self._met_looking(sender, message.cluster_name, message.remembered)
                if target is not None:
                    target.answered_at = now
            case JoinChallenge():
                self._challenged(sender, message, now)
            case Welcome():
                self._welcomed(sender, message, now)
            case JoinRefused():
                self._refused(sender, message, now)
            case WhoAreYou() if message.cluster_name == self._ground.cluster_name:
                self._heard_cluster(now)
                self._ground.send(sender, IAm(self._ground.cluster_name, 0, 0, message.nonce))
            case Invite() if message.cluster_name == self._ground.cluster_name:
                self._heard_cluster(now)
                address = (sender.host, sender.port)
                if len(self._guides) < self._ground.settings.remembered_max:
                    self._guides[address] = now + self._ground.settings.heard_cluster_hold_s
                self._ground.send(NodeId(*address, 0), self._request())
            case _:
                self._ground.counters["not-a-member-yet"] += 1
        if self.looking:
            self._try_found(now)

    def _met_looking(
        self, sender: NodeId, name: str, remembered: tuple[str, ...]
    ) -> _Target | None:
        if name != self._ground.cluster_name:
            self._ground.counters["other-cluster-name"] += 1
            return None
        for text in remembered[: self._ground.settings.remembered_max]:
            parsed = parse_address(text)
            if parsed is not None:
                self._add_target(parsed)
        return self._targets.get((sender.host, sender.port))

    def _heard_cluster(self, now: float) -> None:
        self._hold_until = now + self._ground.settings.heard_cluster_hold_s

    def _challenged(self, sender: NodeId, message: JoinChallenge, now: float) -> None:
        self._heard_cluster(now)
        if self._confirmed is not None:
            member, at = self._confirmed
            # One admission at a time: confirming to two clusters would leave a ghost in one.
            if member != sender and now - at < CONFIRM_WAIT_S:
                return
        self._confirmed = (sender, now)
        self._ground.send(sender, JoinConfirm(message.nonce))

    def _welcomed(self, sender: NodeId, message: Welcome, now: float) -> None:
        ground = self._ground
        ours = any(member.id == ground.self_id for member in message.view.members)
        asked = {*self._targets, *self._guides}
        # Nobody is admitted before it has echoed a challenge.
        admitted = ours and self._confirmed is not None
        if not admitted or message.cluster_id == 0 or (sender.host, sender.port) not in asked:
            ground.counters["welcome-ignored"] += 1
            return
        self._joined(message.cluster_id)
        ground.publish(ClusterJoined(message.cluster_id, sender))

    def _refused(self, sender: NodeId, message: JoinRefused, now: float) -> None:
        self._heard_cluster(now)
        ground = self._ground
        if message.kind is RefusalKind.LATER:
            return
        if message.kind is RefusalKind.TOMBSTONE:
            new_id = NodeId(
                ground.self_id.host, ground.self_id.port, ground.rng.getrandbits(64) or 1
            )
            ground.take_identity(new_id)
            ground.out.append(TakeIdentity(new_id))
            self._confirmed = None
            self.deadline = now
            return
        ground.out.append(Exit(REFUSED_EXIT, f"join refused by {sender.address}: {message.reason}"))

    # founding

    def _try_found(self, now: float) -> None:
        if not self.looking or now < self._hold_until or not self._targets or self._unresolved:
            return
        valid_s = self._ground.settings.answer_valid_s
        targets = self._targets.values()
        if not all(target.answered(now, valid_s) for target in targets):
            return
        looking = [target for target in targets if target.looks(now, valid_s)]
        if not self._may_found(looking):
            return
        addresses = [self._own_address(), *(target.address for target in looking)]
        if min(addresses) == self._own_address():
            self._found(now)

    def _may_found(self, looking: list[_Target]) -> bool:
        """Two may found at once unless each of them knows that the other waits for it: either we
        are a seed, or all that look as well have asked us."""
        if self._own_address() in self._seeds:
            return True
        return bool(looking) and all(target.asked_us for target in looking)

    def _found(self, now: float) -> None:
        ground = self._ground
        # Random, but greater the later it was founded: that decides between two of one size.
        cluster_id = ((self._wall_s & 0xFFFFFFFF) << 32) | ground.rng.getrandbits(32) or 1
        looking = [
            target.address
            for target in self._targets.values()
            if target.looks(now, ground.settings.answer_valid_s)
        ]
        self._joined(cluster_id)
        before = ground.me
        founder = replace(before, status=Status.UP, up_number=1)
        ground.table.put_member(founder)
        ground.publish(ClusterFounded(cluster_id))
        ground.publish(MemberChanged(founder, before.status))
        for address in sorted(looking):
            ground.send(NodeId(*address, 0), Invite(ground.cluster_name))

    def _joined(self, cluster_id: int) -> None:
        self.looking = False
        self.deadline = math.inf
        self._ground.cluster_id = cluster_id

    # words

    def waiting_for(self, now: float) -> str:
        """In words: why there is no cluster yet."""
        valid_s = self._ground.settings.answer_valid_s
        silent = [
            f"{host}:{port}"
            for (host, port), target in sorted(self._targets.items())
            if not target.answered(now, valid_s)
        ]
        if silent:
            return (
                f"no answer yet from {', '.join(silent)}; a cluster is founded only when every "
                f"seed and every remembered member says that it is looking too, or its host that "
                f"nobody is there (or start one member with --found)"
            )
        if self._unresolved:
            return (
                f"{', '.join(self._unresolved)} has no address yet, so nobody there was asked; the "
                f"name is looked up again (or correct --seed)"
            )
        if now < self._hold_until:
            return f"heard of a cluster; not founding for {self._hold_until - now:.1f} s more"
        if self._own_address() not in self._seeds:
            absent = ", ".join(
                f"{host}:{port}"
                for (host, port), target in sorted(self._targets.items())
                if not target.looks(now, valid_s)
            )
            return (
                f"no cluster yet: nobody is at {absent}; start the seed, or correct --seed"
                if absent
                else "no cluster yet, and it is not ours to found one: we are no seed"
            )
        return "waiting for the lowest address to found the cluster"

    def _explain(self, now: float) -> None:
        words = self.waiting_for(now).split(";")[0]
        if words != self._explained:
            self._explained = words
            self._ground.publish(LookingFor(self.waiting_for(now)))
