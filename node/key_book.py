"""Which key belongs to which node: the decision behind every secured connection.

Decides whether the key of an incoming connection fits the node it says it is, and which key the
far end of an outgoing connection has to prove. Pure: reads no files, looks up no names. Called by
`node.zmq_transport`.

A node is believed to be who it says only with a key that is trusted, and
- equals the one that this very process (host, port, uid) is bound to: by its member record, or
  else by the first connection on which it introduced itself;
- is one of those that `trusted` holds to its address, where any is;
- is held to this address, where `trusted` holds the key to addresses at all;
- equals that of the member known at this address, where `trusted` says nothing of the address.

A record is hearsay, a connection is proof: where they differ the connection's key stays.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gossip.events import Address
from gossip.membership import NodeId
from node.addresses import packed_number, without_brackets
from node.hello import HelloRefusal
from node.keys import TrustedKey

KEY_BYTES = 32
WRONG_KEY = "wrong-key"
REVOKED_KEY = "revoked-key"


class KeyBook:
    """Trusted keys, and the nodes they are bound to; all keys are 32 bytes.

    `nodes_max` bounds the nodes that are remembered, of either kind; those not heard of for
    longest are forgotten first, and are then bound anew by their next connection.
    """

    def __init__(self, trusted: Iterable[TrustedKey], *, nodes_max: int) -> None:
        self._nodes_max = nodes_max
        self._lines: tuple[TrustedKey, ...] = ()
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._addresses_of: dict[bytes, set[Address]] = {}  # a trusted key → where it is held to
        self._held: frozenset[bytes] = frozenset()  # keys that are held to addresses
        self._keys_at: dict[Address, list[bytes]] = {}
        self._recorded: OrderedDict[NodeId, bytes] = OrderedDict()
        self._proven: OrderedDict[NodeId, bytes] = OrderedDict()
        self.replace(trusted)

    # what is trusted

    def replace(self, trusted: Iterable[TrustedKey]) -> None:
        """Trust these keys, and no others, from now on."""
        self._lines = tuple(trusted)
        self._index()

    def host_names(self) -> list[str]:
        """The names in `trusted` that stand for numbers, sorted: `resolved` is to be told them."""
        return sorted(
            {line.host for line in self._lines if line.host and packed_number(line.host) is None}
        )

    def resolved(self, numbers: Mapping[str, Sequence[str]]) -> bool:
        """Numeric addresses of host names; True when that changes whom a key is held to.

        One that stands for none keeps those it had: a name service that fails revokes nothing.
        """
        before = dict(self._numbers)
        self._numbers.update({name: tuple(found) for name, found in numbers.items() if found})
        if self._numbers == before:
            return False
        self._index()
        return True

    def _index(self) -> None:
        self._addresses_of = {line.key: set() for line in self._lines}
        self._held = frozenset(line.key for line in self._lines if line.host)
        keys_at: defaultdict[Address, list[bytes]] = defaultdict(list)
        for line in self._lines:
            if not line.host:
                continue
            number = packed_number(line.host) is not None
            for host in (line.host,) if number else self._numbers.get(line.host, ()):
                address = _canonical(host, line.port)
                self._addresses_of[line.key].add(address)
                if line.key not in keys_at[address]:
                    keys_at[address].append(line.key)
        self._keys_at = dict(keys_at)

    def trusts(self, key: bytes) -> bool:
        """True while a line of `trusted` names this key."""
        return key in self._addresses_of

    def addresses_of(self, key: bytes) -> frozenset[Address] | None:
        """Where `trusted` holds a key to, as far as names are resolved; None: anywhere."""
        return frozenset(self._addresses_of[key]) if key in self._held else None

    # incoming

    def introduced(self, sender: NodeId, key: bytes) -> HelloRefusal | None:
        """A connection with this key says that it is `sender`: why not, or None and it is bound.

        Reasons: "revoked-key" when the key is trusted no more, "wrong-key" for all others.
        """
        refusal = self._fault(sender, key)
        if refusal is None:
            _remember(self._proven, sender, key, self._nodes_max)
        return refusal

    def _fault(self, sender: NodeId, key: bytes) -> HelloRefusal | None:
        if not self.trusts(key):
            return HelloRefusal(REVOKED_KEY, f"key {key.hex()} of {sender} is not trusted any more")
        for bound in (self._proven.get(sender), self._recorded.get(sender)):
            if bound is not None and bound != key:
                return _wrong(sender, key, f"it is known by {bound.hex()}")
        address = _canonical(sender.host, sender.port)
        expected = self._keys_at.get(address)
        if expected is not None:
            if key not in expected:
                return _wrong(sender, key, f"trusted names {expected[0].hex()} for its address")
            return None
        if key in self._held:
            return _wrong(sender, key, f"trusted holds this key to {self._where(key)}")
        for member, recorded in self._recorded.items():
            if (
                recorded != key
                and member.port == sender.port
                and _canonical(member.host, member.port) == address
            ):
                return _wrong(
                    sender,
                    key,
                    f"the member {member} at its address has {recorded.hex()}; a line in trusted "
                    "that names this address for the new key would settle it",
                )
        return None

    def own_fault(self, self_id: NodeId, key: bytes) -> str | None:
        """In words: why others with this `trusted` would refuse our own key at our own address.

        Only numbers are looked at: a name may stand for another one here than it does elsewhere.
        """
        own = _canonical(self_id.host, self_id.port)
        numeric = [line for line in self._lines if packed_number(line.host) is not None]
        keys_here = [line.key for line in numeric if _canonical(line.host, line.port) == own]
        if key in keys_here:
            return None
        if keys_here:
            return (
                f"it names {keys_here[0].hex()} for {self_id.address}, which is this node, whose "
                f"key is {key.hex()}: mend that line, or start with the other keys"
            )
        own_lines = [line for line in self._lines if line.key == key and line.host]
        if own_lines and all(line in numeric for line in own_lines):
            return (
                f"it holds this node's own key to {self._where(key)}, but the node is bound to "
                f"{self_id.address}: mend that line, here and on the other nodes, or the address"
            )
        return None

    def _where(self, key: bytes) -> str:
        named = [
            f"{line.host}:{line.port}" for line in self._lines if line.key == key and line.host
        ]
        return ", ".join(named)

    def key_of(self, node: NodeId) -> bytes:
        """The key that connections of this process proved; empty when there was none."""
        return self._proven.get(node, b"")

    # records

    def recorded(self, node: NodeId, key: bytes) -> HelloRefusal | None:
        """A member record says that `node` has this key: why that is not believed, or None."""
        if len(key) != KEY_BYTES:
            return HelloRefusal(WRONG_KEY, f"the member record of {node} has no key")
        known = self._proven.get(node) or self._recorded.get(node)
        if known is not None and known != key:
            return HelloRefusal(
                WRONG_KEY,
                f"a member record gives {node} the key {key.hex()}, but it has {known.hex()}",
            )
        _remember(self._recorded, node, key, self._nodes_max)
        return None

    def forget(self, node: NodeId) -> None:
        """It is a member no more: its address is free for a process with another key."""
        self._recorded.pop(node, None)

    # outgoing

    def keys_to_dial(self, peer: NodeId) -> tuple[bytes, ...]:
        """Keys of which the far end has to prove one, the likeliest first; `()`: do not dial."""
        if peer.uid:
            bound = self._proven.get(peer) or self._recorded.get(peer)
            if bound is not None:
                return (bound,) if self._may_be_at(bound, peer) else ()
        address = _canonical(peer.host, peer.port)
        expected = self._keys_at.get(address)
        if expected is not None:
            return tuple(expected)
        for nodes in (self._recorded, self._proven):
            for node in reversed(nodes):
                is_there = node.port == peer.port and _canonical(*node[:2]) == address
                if is_there and self._may_be_at(nodes[node], peer):
                    return (nodes[node],)
        return ()

    def _may_be_at(self, key: bytes, node: NodeId) -> bool:
        """True when `trusted` has the key, and nothing against it at this address."""
        expected = self._keys_at.get(_canonical(node.host, node.port))
        if expected is not None:
            return key in expected
        return self.trusts(key) and key not in self._held

    def why_no_key(self, peer: NodeId) -> str:
        """In words, with the mend: why `keys_to_dial` has none for `peer`."""
        bound = self._proven.get(peer) or self._recorded.get(peer)
        if peer.uid and bound is not None:
            if self.trusts(bound):
                return (
                    f"trusted does not hold its key {bound.hex()} to {peer.address}: mend the line "
                    "of the key, or that of the address"
                )
            return f"its key {bound.hex()} is not in trusted: add it there if it belongs to us"
        return (
            f"no line of trusted names {peer.address}: write that address behind its key, "
            f"`KEY {peer.address}`"
        )


def _wrong(sender: NodeId, key: bytes, why: str) -> HelloRefusal:
    return HelloRefusal(WRONG_KEY, f"a connection with key {key.hex()} says it is {sender}: {why}")


def _canonical(host: str, port: int) -> Address:
    """Numbers in their one usual form, names in lower case."""
    bare = without_brackets(host)
    packed = packed_number(bare)
    return (packed.hex() if packed is not None else bare.lower(), port)


def _remember(nodes: OrderedDict[NodeId, bytes], node: NodeId, key: bytes, nodes_max: int) -> None:
    nodes[node] = key
    nodes.move_to_end(node)
    if len(nodes) > nodes_max:
        nodes.popitem(last=False)
