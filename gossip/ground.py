"""What the parts of the membership machine share: the table, the rumours, the list of effects.

Decides nothing. Owned by `gossip.machine.GossipMachine`, handed to seeker, admission, prober and
evidence at construction.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gossip.dissemination import Rumour, RumourQueue, is_verdict, packets, sends_max
from gossip.effects import Publish, Send
from gossip.events import Address
from gossip.membership import NOBODY, Member, NodeId, Status
from gossip.messages import Gossip, Notice, Suspicion, SyncReply
from gossip.reachability import Record
from gossip.settings import GossipSettings
from gossip.table import MembershipTable

NOTICE_BYTES_MAX = 65_536


class Ground:
    """Common ground of the parts of one machine."""

    def __init__(
        self, member: Member, cluster_name: str, settings: GossipSettings, rng: random.Random
    ) -> None:
        self.self_id = member.id
        self.cluster_name = cluster_name
        self.cluster_id = 0
        self.settings = settings
        self.rng = rng
        self.table = _table_of(settings)
        self.table.put_member(member)
        self.rumours = RumourQueue(settings.rumours_max)
        self.out: list[object] = []
        self.counters: Counter[str] = Counter()
        self.unreachable: frozenset[NodeId] = frozenset()
        self.leader: NodeId | None = None
        self.is_sure = True  # False after a pause, until a member has answered: are we still one?
        self.urgent: list[Rumour] = []
        self.notices: list[Rumour] | None = None  # collected, while the leader takes its steps
        self.tells_on = True  # False while a `Notice` is read
        self.verdict_heard = False  # one that was news, since the last gossip tick was planned
        self._seq = 0
        self._peers: tuple[int, list[NodeId]] = (-1, [])
        self._side: tuple[object, tuple[int, tuple[int, NodeId]]] | None = None
        self._reachable: tuple[list[NodeId], frozenset[NodeId], list[NodeId]] | None = None

    def take_identity(self, new_id: NodeId) -> None:
        """Become another process in the eyes of the cluster; only before there is one."""
        me = replace(self.me, id=new_id)
        self.self_id = new_id
        self.table = _table_of(self.settings)
        self.table.put_member(me)
        self._peers = (-1, [])

    # effects

    def send(self, to: NodeId, message: object) -> None:
        """Send a control message."""
        self.out.append(Send(to, message))

    def publish(self, fact: object) -> None:
        """Tell sister machines and subscribers a fact."""
        self.out.append(Publish(fact))

    def send_with_rumours(self, to: NodeId, message: object) -> None:
        """Send a message and let rumours ride along."""
        self.send(to, message)
        news = self.take_rumours()
        if news is not None:
            self.send(to, news)

    def ask_records(self, nodes: Iterable[NodeId], *, of: NodeId) -> None:
        """Ask `of` for the records it holds of members; it answers over its own connection."""
        self.send(of, SyncReply(Gossip(floor=self.table.floor), want_members=tuple(nodes)))

    def take_rumours(self) -> Gossip | None:
        """Rumours for one packet, if there are any."""
        if not len(self.rumours):
            return None
        limit = sends_max(self.settings.rumour_mult, len(self.table.members))
        return self.rumours.take(limit, self.table.floor, self.settings.packet_bytes_max)

    def originate(self, rumour: Rumour) -> None:
        """News that begins here: spread it, and tell up to `status_fanout` members at once."""
        if self.notices is not None:
            self.notices.append(rumour)
            return
        self.rumours.add(rumour)
        self.urgent.append(rumour)

    def relay(self, rumour: Rumour) -> None:
        """News that another member told us: spread it; losses and leaves hurry."""
        if not self.tells_on:
            return
        self.rumours.add(rumour)
        if isinstance(rumour, Record):
            self.verdict_heard |= rumour.unreachable
        elif not isinstance(rumour, Suspicion):
            self.verdict_heard |= is_verdict(rumour)

    def notify(self, rumours: list[Rumour], extra: Iterable[NodeId] = ()) -> None:
        """Tell everybody at once, which needs no relays: N frames, not N log N. In a large cluster
        only `extra` is told so, and rumours do the rest.

        What does not arrive shows in the digests.
        """
        peers = self.reachable_peers()
        if len(peers) > self.settings.notice_fanout_max:
            for rumour in rumours:
                self.originate(rumour)
            peers = [node for node in extra if node in self.table.members]
        for news in packets(rumours, self.table.floor, NOTICE_BYTES_MAX):
            notice = Notice(news)
            for peer in peers:
                self.send(peer, notice)

    def flush_urgent(self) -> None:
        """Send what began here to up to `status_fanout` reachable members, in packets."""
        urgent, self.urgent = self.urgent, []
        peers = self.sample(self.reachable_peers(), self.settings.status_fanout)
        for news in packets(urgent, self.table.floor, self.settings.packet_bytes_max):
            for peer in peers:
                self.send(peer, news)

    # reading

    @property
    def me(self) -> Member:
        """Our own record."""
        return self.table.members[self.self_id]

    def next_seq(self) -> int:
        """A number for a request; never used twice by this process."""
        self._seq += 1
        return self._seq

    def peers(self) -> list[NodeId]:
        """Every other member that is not down, sorted; not to be changed by the caller."""
        table = self.table
        if self._peers[0] != table.roster:
            members = table.members
            found = [n for n in table.nodes if members[n].status < Status.DOWN]
            if self.me.status < Status.DOWN:
                found.remove(self.self_id)
            self._peers = (table.roster, found)
        return self._peers[1]

    def reachable_peers(self) -> list[NodeId]:
        """Every other member that is neither down nor unreachable, sorted; not to be changed."""
        peers = self.peers()
        if not self.unreachable:
            return peers
        cached = self._reachable
        if cached is None or cached[0] is not peers or cached[1] is not self.unreachable:
            found = [node for node in peers if node not in self.unreachable]
            cached = self._reachable = (peers, self.unreachable, found)
        return cached[2]

    def member_at(self, address: Address) -> Member | None:
        """The member at an address that is not down, or None."""
        for node, member in self.table.members.items():
            if (node.host, node.port) == address and member.status < Status.DOWN:
                return member
        return None

    def up_count(self) -> int:
        """How many members count, reachable or not."""
        return sum(member.counts for member in self.table.members.values())

    def side_of_ours(self) -> tuple[int, tuple[int, NodeId]]:
        """How many members that count we reach, ourselves among them, and the age key of the
        oldest."""
        table = self.table
        state = (table.roster, self.unreachable)
        if self._side is None or self._side[0] != state:
            ages = [
                member.age_key
                for node, member in table.members.items()
                if member.counts and node not in self.unreachable
            ]
            self._side = (state, (len(ages), min(ages, default=(0, NOBODY))))
        return self._side[1]

    def sample(self, nodes: Iterable[NodeId], count: int) -> list[NodeId]:
        """Up to `count` of them, by chance."""
        pool = nodes if isinstance(nodes, list) else list(nodes)
        return pool[:] if len(pool) <= count else self.rng.sample(pool, count)


def _table_of(settings: GossipSettings) -> MembershipTable:
    # The leader prunes down to `tombstones_max`; until all have followed there are more.
    return MembershipTable(
        settings.members_max,
        settings.records_max,
        2 * settings.tombstones_max,
        settings.incarnation_jump_max,
    )
