"""What seeds of `simulate --subject sharding` found, each as a story of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from gossip.effects import PeerMessage, Send
from gossip.membership import Member, MembershipView, NodeId, Status
from node import Actor, ActorSystem, Ask, message, on
from node.settings import Settings
from node.sharding import Entities
from node.supervision import StopReason
from node.testkit import StepLog, World
from node.testkit.checkers import overlaps
from sharding.coordinator import CoordinatorMachine
from sharding.events import CoordinatorAt, Lead, ShardsWanted
from sharding.messages import (
    AskReport,
    BeginHandOff,
    Claims,
    Homes,
    HomesAre,
    Report,
    ShardsStopped,
    Term,
    WantHomes,
)
from sharding.region import RegionMachine
from sharding.settings import ShardingSettings, shard_of

TYPE = "cart"
SHARDS = 8
IDS = [f"c-{number}" for number in range(16)]


@message("sharding-story.add")
class Add(Ask[str]):
    """Answered with the name of the node that handled it."""

    number: int = 0


class Cart(Actor):
    """Writes down what it was told."""

    def __init__(self, entity_id: str, shop: Shop) -> None:
        self.shop, self.id = shop, entity_id
        self.instance = shop.log.begin(entity_id)

    def pre_start(self) -> None:
        self.instance.step("start")

    @on(Add)
    def add(self, msg: Add) -> str:
        self.instance.step("add")
        self.shop.taken.append((self.id, msg.number))
        return self.shop.here().name

    def post_stop(self, reason: StopReason) -> None:
        self.instance.end()


class Shop(World):
    """Nodes that all host the type, at level downing."""

    def __init__(self, nodes: str = "a b c", **options: Any) -> None:
        self.carts: dict[str, Entities[Any]] = {}
        self.taken: list[tuple[str, int]] = []
        self.options = options.pop("start", {})
        settings = options.pop("settings", Settings(downing="keep-majority"))
        super().__init__(1, nodes, setup=self.furnish, settings=settings, **options)
        self.log = StepLog(self)

    def furnish(self, system: ActorSystem) -> None:
        """Host the type on the node whose step this is."""
        self.carts[self.here().name] = system.cluster.sharding.start(
            type_name=TYPE, actor=Cart, args=(self,), shard_count=SHARDS, **self.options
        )

    def ask(self, by: str, cart: str, number: int = 0, within_s: float = 10.0) -> str:
        found: str = self.run(self.carts[by][cart].ask(Add(number), within_s), node=by)
        return found

    def tell(self, by: str, cart: str, number: int = 0) -> None:
        self[by].call(self.carts[by][cart].tell, Add(number))

    def state(self, by: str) -> dict[str, Any]:
        found: dict[str, Any] = self[by].call(self[by].system.cluster.sharding.state)[0]
        return found

    def owned_twice(self) -> list[int]:
        """Shards that are at two nodes now."""
        nodes = [node for node in self.running if node.opened and not node.paused]
        count = Counter(shard for node in nodes for shard in self.state(node.name)["here"])
        return [shard for shard, owners in count.items() if owners > 1]

    def move_coordinator(self, to: str) -> None:
        singleton = self[to].system.cluster.singleton
        self.run(singleton.move(type_name=f"sharding.{TYPE}", to=self[to].address), node=to)
        self.run_for(s=0.1)

    def ready(self) -> dict[str, str]:
        """All up, every cart asked, all shards evened out; returns cart → where it lives."""
        self.until_all_up()
        self.run_for(s=2.0)
        for cart in IDS:
            self.ask("a", cart)
        self.run_for(s=10.0)
        return {cart: self.ask("a", cart) for cart in IDS}


def test_an_order_that_was_refused_is_not_taken_when_it_comes_again() -> None:
    """I-109, S13. Stopped and started at once, it refuses what it is given; its word comes late,
    the order is repeated meanwhile. It took that one, and by the late word another one got it."""
    with Shop("a b c") as shop:
        shop.until_all_up()
        shop.run_for(s=3.0)
        by_address = {node.address: node.name for node in shop.nodes}
        office = by_address[shop.state("a")["coordinator"]]
        b, _ = (name for name in "abc" if name != office)
        shop.shape(b, to=office, loss=1.0)  # that it leaves is not heard
        shop[b].call(shop[b].system.cluster.sharding.stop, type_name=TYPE)
        shop.run_for(s=0.05)
        shop.shape(b, to=office, loss=0.0, delay_s=(0.7, 0.7))
        for cart in IDS:
            shop.tell(office, cart, 1)
        shop.run_for(s=0.3)
        shop[b].call(shop.furnish, shop[b].system)
        shop.run_for(s=1.0)
        shop.shape(b, to=office, delay_s=(0.001, 0.001))
        for number in range(20):
            for cart in IDS:
                for name in "abc":
                    shop.tell(name, cart, number)
            shop.run_for(s=0.5)
        steps = defaultdict(list)
        for step in shop.log.steps:
            steps[step.subject].append(step)
        assert [overlap for own in steps.values() for overlap in overlaps(own)] == []
        assert shop.owned_twice() == []
        shop.run_for(s=10.0)
        assert len(shop.state(b)["here"]) == SHARDS // 3, "it is given its share again"


def test_a_home_that_cannot_be_sent_to_does_not_keep_the_node_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever joins hears of homes before it knows the way to all of them. What cannot be sent
    waits half a second between two tries; it was tried again at once, for ever."""
    with Shop() as shop:
        homes = shop.ready()
        cart = next(cart for cart in IDS if homes[cart] == "b")
        remote = shop["a"].system.runtime.remote
        with monkeypatch.context() as patch:
            patch.setattr(type(remote), "_link", lambda self, node: None)
            for number in range(1, 4):
                shop.tell("a", cart, number)
            shop.run_for(s=1.2)
        shop.run_for(s=1.0)
        assert shop.taken[-3:] == [(cart, 1), (cart, 2), (cart, 3)]


def test_without_contact_too_many_entities_do_not_keep_the_node_busy() -> None:
    """One that may not act and is passivated gives back what it got, and is built again for it. So
    nobody is, until they may act."""
    with Shop("a b c", start={"entities_max": 1}) as shop:
        homes = shop.ready()
        here = [cart for cart in IDS if homes[cart] == "c"]
        shop.cut("c")
        shop.run_until(lambda: not shop["c"].system.runtime.gate.is_open_now, within_s=10)
        for cart in here[:3]:
            shop.tell("c", cart, 7)
        shop.run_for(s=0.1)
        assert shop.state("c")["held"] == 0
        assert shop.state("c")["entities_here"] >= 3
        shop.heal_all()
        shop.run_for(s=20.0)
        assert sorted(x for x in shop.taken if x[1] == 7) == sorted((x, 7) for x in here[:3])
        assert all(shop.state(node.name)["entities_here"] <= 1 for node in shop.running)


def test_a_shard_that_is_wanted_before_its_owner_has_reported_stays_there() -> None:
    """A move begins, and with it all hold what is for the shard; then the coordinator goes. They
    ask the new one for the home, and only then the owner says that it has the shard. It was
    allocated once more, and entities ran twice."""
    with Shop("a b c d", absent="d") as shop:
        shop.ready()
        owner = max("abc", key=lambda name: (len(shop.state(name)["here"]), name))
        to, other = (name for name in "abc" if name != owner)
        if shop.state("a")["coordinator"] != shop[other].address:
            shop.move_coordinator(other)
        twice: list[int] = []
        shop.every(0.005, lambda: twice.extend(shop.owned_twice()))
        shop.start("d")
        shop.until_all_up()
        shop.pause(owner, s=2.0)
        shop.run_until(lambda: shop.state(other)["moves"] != [], within_s=1.5)
        shop.run_for(s=0.1)
        shop.move_coordinator(to)
        shop.run_for(s=5.0)
        assert twice == []


def test_who_missed_the_end_of_a_move_asks_for_the_new_home() -> None:
    """It holds what is for the shard since the move began, and the news are lost on their way to
    it. It asked for homes without naming the shards that it holds: what was for them never left."""
    with Shop("a b c d", absent="d") as shop:
        shop.ready()
        shop.start("d")
        shop.until_all_up()
        by_address = {node.address: node.name for node in shop.nodes}
        coordinator = by_address[shop.state("a")["coordinator"]]
        shop.run_until(lambda: _stopping(shop.state(coordinator)) != {}, within_s=5.0)
        shard, owner = next(iter(_stopping(shop.state(coordinator)).items()))
        deaf = next(name for name in "cba" if name not in (coordinator, by_address[owner]))
        shop.shape(coordinator, to=deaf, loss=1.0)
        shop.run_until(lambda: shop.state(coordinator)["moves"] == [], within_s=5.0)
        shop.run_for(s=0.1)
        shop.shape(coordinator, to=deaf, loss=0.0)
        carts = [cart for cart in IDS if shard_of(cart, SHARDS) == shard]
        for cart in carts:
            shop.tell(deaf, cart, 7)
        shop.run_for(s=5.0)
        assert [cart for cart, number in shop.taken if number == 7] == carts


def _stopping(state: dict[str, Any]) -> dict[int, str]:
    return {move["shard"]: move["node"] for move in state["moves"] if move["state"] == "stopping"}


def test_the_home_before_a_move_is_none_once_its_coordinator_is_gone() -> None:
    """A coordinator that leaves resigns once its own shards have stopped, and nobody has heard
    where they are now. What was sent to it for them, for it was the last home that one knew, was
    lost with it, or was overtaken."""
    a, b, c = (NodeId(host, 25520, 1) for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    region = RegionMachine(TYPE, b, ShardingSettings(shard_count=SHARDS))
    first, second = Term(1, a), Term(2, c)
    region.handle(CoordinatorAt(TYPE, a), 0.0)
    region.handle(PeerMessage(a, AskReport(TYPE, first)), 0.0)
    region.handle(PeerMessage(a, HomesAre(TYPE, first, (Homes(a, (5,)),))), 0.0)
    region.handle(PeerMessage(a, BeginHandOff(TYPE, first, (5,))), 0.0)
    region.handle(CoordinatorAt(TYPE, c), 1.0)
    region.handle(PeerMessage(c, AskReport(TYPE, second)), 1.0)
    assert region.handle(ShardsWanted(TYPE, (5,)), 1.0) == [
        Send(c, WantHomes(TYPE, second, (5,))),
    ]


def test_who_hosts_the_type_again_gets_shards_again() -> None:
    """It stopped the type, so its shards went; then it starts it again, under the same term. The
    coordinator went on taking it for a leaver."""
    with Shop() as shop:
        shop.ready()
        sharding = shop["b"].system.cluster.sharding
        shop["b"].call(sharding.stop, type_name=TYPE)
        shop.run_for(s=5.0)
        assert shop.state("b")["here"] == []
        shop["b"].call(shop.furnish, shop["b"].system)
        shop.run_for(s=10.0)
        assert len(shop.state("b")["here"]) >= 2


def test_a_shard_with_two_owners_is_not_given_away_before_both_have_stopped() -> None:
    """After a split at level none two have it. The one that was to keep it is stopping already;
    once it had stopped the shard was given to a third one, while the other still ran."""
    a, b, c = (NodeId(host, 25520, 1) for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    coordinator = CoordinatorMachine(TYPE, a, ShardingSettings(shard_count=1), lambda: True)
    members = tuple(Member(node, status=Status.UP, up_number=1) for node in (a, b, c))
    coordinator.handle(MembershipView(a, 1, members), 0.0)
    coordinator.handle(Lead(TYPE, 5), 0.0)
    term = coordinator.term
    claims = {
        a: (),
        b: (Claims(Term(5, b), (0,), stopping=True),),
        c: (Claims(Term(4, a), (0,)),),
    }
    for node, claim in claims.items():
        report = Report(TYPE, term, 1, hosts=True, is_region=True, claims=claim)
        coordinator.handle(PeerMessage(node, report), 0.0)
    after = coordinator.handle(PeerMessage(b, ShardsStopped(TYPE, term, (0,), number=99)), 0.1)
    assert not any("HostShards" in str(effect) for effect in after)
    after = coordinator.handle(PeerMessage(c, ShardsStopped(TYPE, term, (0,), number=99)), 0.2)
    assert sum("HostShards" in str(effect) for effect in after) == 1


def test_who_missed_news_of_a_home_shows_the_one_map_in_the_end() -> None:
    """It sent to the former home, which passed that on, for as long as the term lasted."""
    with Shop("a b c d", absent="d") as shop:
        shop.ready()
        by_address = {node.address: node.name for node in shop.nodes}
        coordinator = by_address[shop.state("a")["coordinator"]]
        deaf = next(name for name in "cba" if name != coordinator)
        shop.start("d")
        shop.until_all_up()
        shop.shape(coordinator, to=deaf, loss=1.0)
        shop.run_until(lambda: shop.state("d")["here"] != [], within_s=8.0)
        shop.run_for(s=0.1)
        shop.shape(coordinator, to=deaf, loss=0.0)
        assert shop.state(deaf)["homes"] != shop.state("d")["homes"]
        shop.run_for(s=40.0)
        assert shop.state(deaf)["homes"] == shop.state("d")["homes"]
