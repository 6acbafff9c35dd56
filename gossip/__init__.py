"""Who is in the cluster and who is reachable: SWIM membership as a pure machine."""

from gossip.machine import GossipMachine
from gossip.membership import Cause, Member, MembershipView, NodeId, Status, Tombstone
from gossip.settings import GossipSettings

__all__ = [
    "Cause",
    "GossipMachine",
    "GossipSettings",
    "Member",
    "MembershipView",
    "NodeId",
    "Status",
    "Tombstone",
]
