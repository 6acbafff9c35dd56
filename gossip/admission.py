"""How members let a process in, and what they do about other clusters of the same name.

Decides: whether a join request is admitted or refused (with both values in the reason), the round
trip before admission (a process that cannot hear us never enters the view), what becomes of a
member whose address a newcomer claims, and which of two clusters stops. Does not decide when the
newcomer is promoted, nor what members may claim (`gossip.authority`). Used by `gossip.machine`
while this process is a member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gossip.dissemination import Rumour
from gossip.events import Address, Exit, IslandMet, SurvivorMet
from gossip.ground import Ground
from gossip.membership import Cause, Member, NodeId, Status
from gossip.messages import (
    Dissolve,
    IAm,
    Invite,
    JoinChallenge,
    JoinConfirm,
    JoinRefused,
    JoinRequest,
    Ping,
    RefusalKind,
    Standing,
    Welcome,
    WhoAreYou,
    YouAreGone,
)

GONE_EXIT = 12
GUEST_S = 2.0
REMOVED_ASKED_S = 600.0
SURVIVOR_REPEAT_S = 60.0


@dataclass(slots=True)
class _Pending:
    """A request that waits for the echo of its nonce, or for the old tenant of its address."""

    member: Member
    nonce: int
    at: float
    tenant: NodeId | None = None  # asked whether it lives; None: free
    tenant_seq: int = 0


class Admission:
    """The member's side of joining."""

    def __init__(self, ground: Ground, agreement: tuple[tuple[str, str], ...]) -> None:
        self._ground = ground
        self._agreement = dict(agreement)
        self._pending: dict[NodeId, _Pending] = {}
        self._asked: dict[Address, int] = {}  # nonce of the last WhoAreYou per address
        self._mutual_strangers: dict[NodeId, float] = {}  # it does not know us either: since when
        self._asked_back: dict[Address, float] = {}  # who asked us: when we last asked it
        self._strangers: dict[NodeId, float] = {}  # of our cluster id: since when, or last invited
        self._newcomers: dict[NodeId, None] = {}  # admitted here, and not told to the others yet
        self._guests: dict[NodeId, float] = {}  # welcomed a moment ago: until when they are told
        self._notice_at = math.inf
        self._removed: dict[NodeId, float] = {}  # of late: until when their addresses are asked
        self._removed_at = math.inf
        self._survivor_noted_at = -math.inf
        self._asked_again: dict[NodeId, float] = {}  # members we introduced ourselves to anew
        self._island_at = math.inf
        self.deadline = math.inf

    # requests

    def requested(self, sender: NodeId, request: JoinRequest, now: float) -> None:
        """Refuse, or challenge, or (a lost welcome) welcome again."""
        ground = self._ground
        member = request.member
        if not ground.is_sure:
            ground.counters["joins-dropped"] += 1
            self._ask_its_tenant(sender, member, now)
            return  # we may have been removed while we did not run
        if member.id != sender:
            ground.counters["join-forged"] += 1
            return
        refusal = self._refusal(request)
        if refusal is not None:
            ground.send(sender, refusal)
            return
        known = ground.table.members.get(sender)
        if known is not None:
            self._welcome(sender)
            return
        pending = self._pending.get(sender)
        if pending is None:
            if len(self._pending) >= ground.settings.pending_joins_max:
                ground.counters["joins-dropped"] += 1
                return
            pending = _Pending(member, ground.rng.getrandbits(62), now)
            self._pending[sender] = pending
            self._ask_tenant(pending)
        pending.at = now
        self._rearm()
        if pending.tenant is None:
            ground.send(sender, JoinChallenge(pending.nonce))

    def _ask_its_tenant(self, sender: NodeId, member: Member, now: float) -> None:
        """It has the address of a member of ours, who does not answer then: where all others were
        replaced while we did not run, nobody else tells us."""
        tenant = self._ground.member_at((member.id.host, member.id.port))
        is_bounded = len(self._pending) < self._ground.settings.pending_joins_max
        if tenant is None or member.id != sender or tenant.id == sender or not is_bounded:
            return
        if sender not in self._pending:
            pending = _Pending(member, self._ground.rng.getrandbits(62), now)
            self._pending[sender] = pending
            self._ask_tenant(pending)
            self._rearm()

    def _refusal(self, request: JoinRequest) -> JoinRefused | None:
        ground, member = self._ground, request.member
        me = ground.me
        if request.cluster_name != ground.cluster_name:
            return JoinRefused(
                RefusalKind.CLUSTER_NAME,
                f"your cluster name is {request.cluster_name!r}, that of the members here is "
                f"{ground.cluster_name!r}: correct --cluster-name or --seed",
            )
        if member.protocol_max < me.protocol_min or member.protocol_min > me.protocol_max:
            return JoinRefused(
                RefusalKind.PROTOCOL,
                f"your protocol, {member.protocol_min}..{member.protocol_max}, does not overlap "
                f"ours, {me.protocol_min}..{me.protocol_max}: upgrade the older side",
            )
        theirs = dict(request.agreement)
        keys = sorted({*theirs, *self._agreement})
        differing = [key for key in keys if theirs.get(key) != self._agreement.get(key)]
        if differing:
            yours = ", ".join(f"{key}={theirs.get(key)}" for key in differing)
            ours = ", ".join(f"{key}={self._agreement.get(key)}" for key in differing)
            return JoinRefused(
                RefusalKind.AGREEMENT,
                f"you have {yours}, the members here have {ours}: all must agree on it",
            )
        known = ground.table.members.get(member.id)
        if member.id in ground.table.tombstones or (known and known.status is Status.DOWN):
            return JoinRefused(
                RefusalKind.TOMBSTONE, "this uid was removed: come back under a new one"
            )
        if me.status not in (Status.JOINING, Status.WEAKLY_UP, Status.UP):
            return JoinRefused(RefusalKind.LATER, "this member is leaving: ask another one")
        if len(ground.table.members) >= ground.settings.members_max:
            return JoinRefused(
                RefusalKind.LATER, f"the cluster is full ({ground.settings.members_max} members)"
            )
        return None

    def confirmed(self, sender: NodeId, message: JoinConfirm, now: float) -> Member | None:
        """The echo came: admit. Returns the new member, for the caller to merge and spread."""
        pending = self._pending.get(sender)
        if (
            pending is None
            or pending.nonce != message.nonce
            or pending.tenant is not None
            or not self._ground.is_sure
        ):
            self._ground.counters["join-confirm-unasked"] += 1
            return None
        del self._pending[sender]
        self._rearm()
        return replace(
            pending.member, status=Status.JOINING, up_number=0, incarnation=0, cause=Cause.NONE
        )

    def admitted(self, sender: NodeId, now: float) -> None:
        """The newcomer is in the view: tell it the whole of it, and in a moment the others, and
        those who came just before."""
        self._welcome(sender)
        self._newcomers[sender] = None
        self._guests[sender] = now + GUEST_S
        self._notice_at = min(self._notice_at, now + self._ground.settings.notice_gap_s)
        self._rearm()

    def _tell_of_newcomers(self, now: float) -> None:
        table = self._ground.table
        self._notice_at = math.inf
        newcomers, self._newcomers = self._newcomers, {}
        self._guests = {node: until for node, until in self._guests.items() if now < until}
        rumours: list[Rumour] = [table.members[n] for n in newcomers if n in table.members]
        self._ground.notify(rumours, self._guests)

    def _welcome(self, sender: NodeId) -> None:
        ground = self._ground
        ground.send(sender, Welcome(ground.cluster_id, ground.table.everything()))

    # the old tenant of an address

    def _ask_tenant(self, pending: _Pending) -> None:
        ground = self._ground
        tenant = ground.member_at((pending.member.id.host, pending.member.id.port))
        if tenant is None or tenant.id == pending.member.id:
            return
        pending.tenant = tenant.id
        pending.tenant_seq = ground.next_seq()
        ground.send(tenant.id, Ping(pending.tenant_seq, tenant.id))

    def acked(self, sender: NodeId, seq: int) -> bool:
        """True when this ack answers for an old tenant: it lives, the newcomer is refused."""
        if not self._pending:
            return False
        for node, pending in list(self._pending.items()):
            if pending.tenant == sender and pending.tenant_seq == seq:
                del self._pending[node]
                self._rearm()
                self._ground.send(
                    node,
                    JoinRefused(
                        RefusalKind.ADDRESS_IN_USE,
                        f"address {node.address} is in use by a living member (uid "
                        f"{sender.uid:016x}, ours to keep; yours is {node.uid:016x}): stop that "
                        f"process or choose another --port",
                    ),
                )
                return True
        return False

    def tick(self, now: float) -> list[NodeId]:
        """Tell of newcomers; forget requests that were not confirmed; returns tenants that were
        silent too long."""
        if now >= self._notice_at:
            self._tell_of_newcomers(now)
        if now >= self._removed_at:
            self._ask_removed(now)
        silent: list[NodeId] = []
        timeout_s = self._ground.settings.ack_timeout_s
        for node, pending in list(self._pending.items()):
            if pending.tenant is not None:
                if now < pending.at + timeout_s:
                    continue
                if pending.tenant not in silent:
                    silent.append(pending.tenant)
                if self._ground.settings.downing or not self._ground.is_sure:
                    # It may act yet: the newcomer asks again until it is decided.
                    del self._pending[node]
                    self._ground.send(node, _wait_for(pending.tenant))
                    continue
                pending.tenant = None
                pending.at = now
                self._ground.send(node, JoinChallenge(pending.nonce))
            elif now >= pending.at + self._ground.settings.answer_valid_s:
                del self._pending[node]
        self._rearm()
        return silent

    def free_tenant(self, tenant: NodeId) -> None:
        """The old tenant is known to be gone: its address is free at once."""
        for node, pending in self._pending.items():
            if pending.tenant == tenant:
                pending.tenant = None
                self._ground.send(node, JoinChallenge(pending.nonce))

    # processes of our cluster that one of us has not heard of

    def met_stranger(self, stranger: NodeId, now: float) -> None:
        """It has our cluster id and is not in our view.

        Mostly it was admitted a moment ago, and the news are on their way. When they do not come
        (all that knew both of us are gone) it is invited to introduce itself as if it joined.
        """
        ground = self._ground
        since = self._strangers.get(stranger)
        if since is None:
            if len(self._strangers) >= ground.settings.pending_joins_max:
                self._strangers.clear()
            self._strangers[stranger] = now
        elif now - since >= ground.settings.island_probe_s:
            self._strangers[stranger] = now
            ground.send(stranger, Invite(ground.cluster_name))

    def invited(self, sender: NodeId, message: Invite, now: float) -> None:
        """A fellow member does not know us: introduce ourselves."""
        ground = self._ground
        known = ground.table.members.get(sender)
        if (
            known is None
            or known.status >= Status.DOWN
            or message.cluster_name != ground.cluster_name
        ):
            ground.counters["invite-ignored"] += 1
            return
        if len(self._asked_again) >= ground.settings.pending_joins_max:
            self._asked_again.clear()
        self._asked_again[sender] = now
        agreement = tuple(sorted(self._agreement.items()))
        ground.send(sender, JoinRequest(ground.me, ground.cluster_name, agreement, ()))

    def challenged(self, sender: NodeId, message: JoinChallenge, now: float) -> None:
        """The echo that lets us in, for a member that we asked."""
        asked_at = self._asked_again.pop(sender, -math.inf)
        if now - asked_at > self._ground.settings.answer_valid_s:
            self._ground.counters["join-message-to-member"] += 1
            return
        self._ground.send(sender, JoinConfirm(message.nonce))

    # other clusters of our name

    def start_island_probe(self, now: float) -> None:
        """From now on ask addresses outside the view who they are."""
        self._island_at = now + self._ground.settings.island_probe_s * self._ground.rng.random()
        self._rearm()

    def island_tick(self, addresses: tuple[Address, ...], now: float) -> None:
        """Ask at seeds, remembered and lost members that we do not reach: another process may be at
        their address by now."""
        if now < self._island_at:
            return
        ground = self._ground
        self._island_at = now + ground.settings.island_probe_s
        self._rearm()
        within = {(node.host, node.port) for node in (ground.self_id, *ground.reachable_peers())}
        lost = [node for node in ground.peers() if node in ground.unreachable]
        asked = ground.sample(lost, 1)  # all members do so
        for address in dict.fromkeys([*addresses, *((node.host, node.port) for node in asked)]):
            if address not in within:
                self.ask_who(NodeId(*address, 0))

    def removed(self, node: NodeId, now: float) -> None:
        """A member was removed that did not leave. It may live, and with it a part of the cluster
        that removed us: for a while its address is asked, at a low rate."""
        if len(self._removed) >= self._ground.settings.remembered_max:
            del self._removed[next(iter(self._removed))]
        self._removed[node] = now + REMOVED_ASKED_S
        self._removed_at = min(self._removed_at, now + self._ground.settings.redial_interval_s)
        self._rearm()

    def _ask_removed(self, now: float) -> None:
        ground = self._ground
        self._removed = {node: until for node, until in self._removed.items() if now < until}
        self._removed_at = math.inf
        if not self._removed:
            return
        self._removed_at = now + ground.settings.redial_interval_s
        within = {(node.host, node.port) for node in ground.reachable_peers()}
        for node in ground.sample(list(self._removed), ground.settings.redials_per_s_max):
            if (node.host, node.port) not in within:
                self.ask_who(NodeId(node.host, node.port, 0))

    def _asked_lately(self, address: Address, now: float) -> bool:
        at = self._asked_back.get(address, -math.inf)
        if now - at < self._ground.settings.island_probe_s:
            return True
        if len(self._asked_back) >= self._ground.settings.pending_joins_max:
            self._asked_back.clear()
        self._asked_back[address] = now
        return False

    def ask_who(self, peer: NodeId) -> None:
        """Ask a process which cluster it is in."""
        ground = self._ground
        nonce = ground.rng.getrandbits(62)
        address = (peer.host, peer.port)
        if address not in self._asked and len(self._asked) >= ground.settings.pending_joins_max:
            self._asked.clear()
        self._asked[address] = nonce
        size, _ = ground.side_of_ours()
        ground.send(peer, WhoAreYou(ground.cluster_name, ground.cluster_id, size, nonce))

    def asked_who(self, sender: NodeId, message: WhoAreYou, now: float) -> None:
        """Answer; and ask back, for only an answer to our own question is fresh enough to stop.

        Not one of another name: nothing follows from its answer.
        """
        ground = self._ground
        if not ground.is_sure:
            return
        size, oldest = ground.side_of_ours()
        you_are = Standing.UNKNOWN
        if sender in ground.table.gone:
            you_are = Standing.GONE
        elif sender in ground.table.members:
            you_are = Standing.MEMBER
        answer = IAm(ground.cluster_name, ground.cluster_id, size, message.nonce, *oldest, you_are)
        ground.send(sender, answer)
        is_other = message.cluster_id != ground.cluster_id or sender not in ground.table.members
        if (
            is_other
            and message.cluster_name == ground.cluster_name
            and not self._asked_lately((sender.host, sender.port), now)
        ):
            self.ask_who(sender)

    def told_who(self, sender: NodeId, message: IAm, now: float) -> bool:
        """Invite a looking process; of two clusters under one name, or two parts of one that
        removed each other or never heard of each other, the smaller stops (of equal ones that which
        was founded later, or whose oldest member is younger). True when it is ours."""
        ground = self._ground
        if self._asked.pop((sender.host, sender.port), None) != message.nonce:
            ground.counters["island-answer-unasked"] += 1
            return False
        if message.cluster_name != ground.cluster_name:
            ground.counters["other-cluster-name"] += 1
            return False
        if message.cluster_id == 0:
            ground.send(sender, Invite(ground.cluster_name))
            return False
        size, _ = ground.side_of_ours()
        if message.cluster_id != ground.cluster_id:
            we_stop = (size, -ground.cluster_id) < (message.cluster_size, -message.cluster_id)
            ground.publish(
                IslandMet(sender.address, message.cluster_id, message.cluster_size, we_stop)
            )
            what = f"two clusters are named {ground.cluster_name!r}"
        elif sender in ground.table.members:
            return False
        elif message.you_are is Standing.MEMBER:
            if sender in ground.table.gone:
                # It does not know yet that it was removed: nothing else follows from what it says.
                ground.send(sender, YouAreGone(sender.uid, int(ground.table.gone[sender])))
            return False
        elif sender in ground.table.gone:
            we_stop = self._is_smaller(message)
            self._note_survivor(sender, message.cluster_size, we_stop, now)
            what = "two parts of this cluster have removed each other"
        else:
            if not self._is_stranger_for_long(sender, now):
                return False
            we_stop = self._is_smaller(message)
            what = "two parts of this cluster do not know of each other"
        if we_stop:
            reason = (
                f"{what}: {sender.address} is in one of {message.cluster_size}, ours has {size}; "
                f"the smaller one stops"
            )
            for peer in ground.peers():
                ground.send(peer, Dissolve(message.cluster_id, sender, reason))
            ground.out.append(Exit(GONE_EXIT, reason))
        return we_stop

    def _is_smaller(self, message: IAm) -> bool:
        size, oldest = self._ground.side_of_ours()
        if size != message.cluster_size:
            return size < message.cluster_size
        return oldest > (message.oldest_number, message.oldest)

    def _is_stranger_for_long(self, sender: NodeId, now: float) -> bool:
        """True when no news of it have come since we first met it."""
        since = self._mutual_strangers.setdefault(sender, now)
        if len(self._mutual_strangers) > self._ground.settings.pending_joins_max:
            self._mutual_strangers.clear()
        return now - since >= self._ground.settings.island_probe_s

    def _note_survivor(self, sender: NodeId, size: int, we_stop: bool, now: float) -> None:
        if we_stop or now >= self._survivor_noted_at + SURVIVOR_REPEAT_S:
            self._survivor_noted_at = now
            cause = self._ground.table.gone[sender]
            self._ground.publish(SurvivorMet(sender.address, cause, size, we_stop))

    def _rearm(self) -> None:
        timeout_s = self._ground.settings.ack_timeout_s
        self.deadline = min(
            (
                pending.at
                + (
                    timeout_s
                    if pending.tenant is not None
                    else self._ground.settings.answer_valid_s
                )
                for pending in self._pending.values()
            ),
            default=math.inf,
        )
        self.deadline = min(self.deadline, self._island_at, self._notice_at, self._removed_at)


def _wait_for(tenant: NodeId) -> JoinRefused:
    return JoinRefused(
        RefusalKind.LATER,
        f"address {tenant.address} belongs to a member that does not answer (uid "
        f"{tenant.uid:016x}): it is free once that one is down, by the strategy or by "
        f"`python -m node down {tenant.address}`",
    )
