"""Links, clocks and processes that fail in part: nobody who lives is taken out, and all heals.

At level none nothing but the kernel's proof ends a member that was up, however long it is cut off,
asleep or wrong about the time. Judged by `Witness`, from outside (I-74, I-75, I-82, I-87).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gossip.events import IslandMet, ProcessEnded, SurvivorMet
from gossip.membership import NodeId
from node import Settings
from node.testkit import check_one_view
from node.testkit.network import IntoCut
from node.testkit.stage import Where
from tests.stories.subject import Story
from tests.stories.witness import Witness

ALL = "abcde"
SETTLE_S = 10.0
FLAP_S = 5.0
HELD_S = 30.0
HOUR_S = 3600.0


class Scene(Story):
    """A story with a witness; `other_settings` names what differs on some nodes."""

    other_settings: dict[str, dict[str, Any]]

    def __init__(self, seed: int = 1, nodes: int | str = 5, **kw: Any) -> None:
        self.other_settings = {}
        super().__init__(seed, nodes, **kw)
        self.witness = Witness(self)

    def settings_of(self, where: Where) -> Settings:
        """As ever, but for `other_settings`."""
        own = self.other_settings.get(self[where].name, {})
        return replace(super().settings_of(where), **own)

    def end_well(self, *, within_s: float = SETTLE_S) -> None:
        """All is healed: one view soon, which stays, and nobody was taken out meanwhile."""
        self.until_all_up(within_s=within_s)
        self.run_for(s=15)
        check_one_view(self)
        self.until_hosted(within_s=5)
        self.witness.check()


def clusters(world: Scene) -> set[int]:
    return {view.cluster_id for view in world.views().values() if view is not None}


def id_of(world: Scene, name: str) -> NodeId:
    view = world[name].view
    assert view is not None
    return view.self_id


def links(world: Scene, at: str) -> set[tuple[str, str]]:
    """(observer, subject) of each failing link that `/cluster` of this node shows."""
    names = {node.address: node.name for node in world}
    rows = world.system(at).cluster.state()["links"]
    return {(names[row["observer"]], names[row["subject"]]) for row in rows}


# links


@pytest.mark.parametrize("into_cut", ["held", "lost"])
@pytest.mark.parametrize("seed", range(2))
def test_what_one_sends_to_another_does_not_arrive_for_a_minute(
    seed: int, into_cut: IntoCut
) -> None:
    """b hears c, and not the other way round: others reach both, so both stay reachable."""
    with Scene(seed, into_cut=into_cut) as world:
        host = world.ready()
        world.cut("b", to="c")
        world.run_for(s=60)
        assert world.witness.unreachable_max_s(of=ALL, at=ALL) < FLAP_S
        assert world.hosts == [host]
        assert {("b", "c"), ("c", "b")} & (links(world, "b") | links(world, "c"))
        world.heal_all()
        world.end_well()
        assert not any(links(world, name) for name in ALL)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("deaf", [True, False])
def test_one_that_hears_nobody_or_is_heard_by_nobody_comes_back(seed: int, deaf: bool) -> None:
    """The asymmetric cut of one member against all: it is unreachable, not removed."""
    with Scene(seed) as world:
        world.ready()
        if deaf:
            world.cut("a b c d", to="e")
        else:
            world.cut("e", to="a b c d")
        world.run_for(s=60)
        world.heal_all()
        world.end_well()
        assert world.witness.unreachable_max_s(of="e", at="abcd") > 30, "it was noticed"
        # A deaf member may accuse the others; they answer in no time.
        assert world.witness.unreachable_max_s(of="abcd", at="abcd") < FLAP_S


@pytest.mark.parametrize("seed", range(2))
def test_reachability_need_not_be_transitive(seed: int) -> None:
    """b and c do not reach each other, everybody else reaches both: shown as failing links."""
    with Scene(seed) as world:
        host = world.ready()
        world.cut("b", from_="c")
        world.run_for(s=30)
        assert ("b", "c") in links(world, "b")
        assert ("c", "b") in links(world, "c")
        world.run_for(s=30)
        assert world.witness.unreachable_max_s(of=ALL, at=ALL) < FLAP_S
        assert world.hosts == [host]
        world.heal_all()
        world.end_well()
        assert not any(links(world, name) for name in ALL)


@pytest.mark.parametrize("seed", range(2))
def test_a_ring_in_which_each_reaches_its_neighbours_only(seed: int) -> None:
    """Half of all pairs are cut; whoever has to talk does it over others."""
    with Scene(seed) as world:
        world.ready()
        for one, other in ("ac", "bd", "ce", "da", "eb"):
            world.cut(one, from_=other)
        world.run_for(s=60)
        world.heal_all()
        world.end_well()


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_flapping_link_takes_nobody_out(seed: int, pair: bool) -> None:
    """Five seconds off and five on, ten times: of one pair, or of one member to all."""
    with Scene(seed) as world:
        world.ready()
        began_s = world.now
        for _ in range(10):
            world.cut("e", from_="b" if pair else None)
            world.run_for(s=FLAP_S)
            world.heal_all()
            world.run_for(s=FLAP_S)
        flapped_s = world.now - began_s
        # Who comes and goes may be held unreachable until it has been there for a while.
        world.end_well(within_s=HELD_S)
        assert world.witness.unreachable_max_s(of="abcd", at="abcd") < FLAP_S
        assert world.witness.unreachable_max_s(of="e", at="abcd") < flapped_s + HELD_S
        if pair:
            assert world.witness.unreachable_max_s(of="e", at="acd") < FLAP_S


@pytest.mark.parametrize("seed", range(2))
def test_every_fourth_packet_is_lost_for_a_minute(seed: int) -> None:
    with Scene(seed) as world:
        world.ready()
        world.shape(loss=0.25)
        world.run_for(s=60)
        world.shape(loss=0.0)
        world.end_well()


# processes


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_third_restarts_at_once(seed: int, silent: bool) -> None:
    """Four of twelve, the leader among them; or their hosts, which tell nobody."""
    with Scene(seed, nodes=12) as world:
        world.ready()
        before = clusters(world)
        names = " ".join(random.Random(seed).sample("bcdefghijkl", 3)) + " a"
        world.crash(names, silent=silent)
        world.restart(names, after_s=0.5)
        world.run_for(s=1)
        world.end_well()
        assert clusters(world) == before


@pytest.mark.parametrize("seed", range(2))
def test_a_third_of_the_processes_of_one_host_restarts_at_once(seed: int) -> None:
    with Scene(seed, nodes=12, one_host=True) as world:
        world.ready()
        before = clusters(world)
        world.restart("a d g j")
        world.run_for(s=1)
        world.end_well(within_s=5)
        assert clusters(world) == before


@pytest.mark.parametrize("name", ["a", "d"])
@pytest.mark.parametrize("seed", range(2))
def test_a_member_sleeps_for_a_minute(seed: int, name: str) -> None:
    """The leader, or another one: it accuses nobody, and is one of them again soon (I-87)."""
    with Scene(seed) as world:
        world.ready()
        world.pause(name, s=60)
        world.run_for(s=59)
        others = ALL.replace(name, "")
        assert world.witness.unreachable_max_s(of=name, at=others) > 40
        world.run_for(s=1)
        woke_at = world.now
        world.until_all_up(within_s=5)
        assert world.now - woke_at < 5
        world.run_for(s=30)
        assert world.witness.unreachable_max_s(of=others, at=ALL) == 0, "it accused somebody"
        world.end_well()


@pytest.mark.parametrize("pause_s", [3.0, 60.0])
def test_one_pause_is_told_once(pause_s: float) -> None:
    """Whatever waited in the sockets meanwhile, and however late the timers are (I-87)."""
    with Scene() as world:
        world.ready()
        world.pause("d", s=pause_s)
        world.run_for(s=pause_s + 5)
        daemon = world.system("d")._daemon
        assert daemon is not None
        assert daemon.counters["pauses"] == 1


@pytest.mark.parametrize("seed", range(2))
def test_half_of_the_members_sleep_at_once(seed: int) -> None:
    with Scene(seed) as world:
        world.ready()
        world.pause("a c", s=60)
        world.run_for(s=62)
        world.end_well()
        assert world.witness.unreachable_max_s(of="bde", at=ALL) < FLAP_S


@pytest.mark.parametrize("sleepers", ["a", "ab", "abc"])
@pytest.mark.parametrize("seed", range(2))
def test_whoever_was_removed_while_it_slept_stops_and_lets_nobody_in(
    seed: int, sleepers: str
) -> None:
    """They lead in their own view, and a joiner has asked them; they must ask the others first.
    However many they are: they were removed, and removed nobody (I-71)."""
    with Scene(seed, "a b c d e f", absent="f", seeds="a e", watch=False) as world:
        world.until_all_up()
        ids = {id_of(world, name) for name in sleepers}
        world.pause(" ".join(sleepers), s=60)
        world.run_for(s=30)
        daemon = world.system("d")._daemon
        assert daemon is not None
        for sleeper in ids:
            world["d"].call(daemon.feed, ProcessEnded(sleeper))  # as an operator would say
        world.run_for(s=29.9)
        world.start("f")
        let_in: list[set[NodeId]] = []

        def look() -> None:
            view = world["f"].view if world["f"].running else None
            if view is not None:
                let_in.append(ids & view.by_id.keys())

        world.timeline.watchers.append(look)
        world.run_for(s=10)
        for name in sleepers:
            ended = world[name].ended
            assert ended is not None
            assert ended.exit_code != 0
        assert {node.name for node in world.running} == set("abcdef") - set(sleepers)
        world.until_all_up(within_s=SETTLE_S)
        assert let_in
        assert not any(let_in), "they let somebody in"


@pytest.mark.parametrize("sides", [("a", "bcd"), ("abc", "de"), ("de", "abc")])
def test_who_was_removed_behind_a_cut_and_removed_nobody_stops(sides: tuple[str, str]) -> None:
    """Whatever the size of its side: only one of the two has decided (I-71)."""
    removed, living = sides
    with Scene(3, " ".join("".join(sides)), watch=False) as world:
        world.ready()
        ids = [id_of(world, name) for name in removed]
        world.partition(" | ".join(" ".join(side) for side in sides))
        world.run_for(s=20)
        daemon = world.system(living[0])._daemon
        assert daemon is not None
        for gone in ids:
            world[living[0]].call(daemon.feed, ProcessEnded(gone))
        world.run_for(s=20)
        world.heal_all()
        world.run_for(s=20)
        assert {node.name for node in world.running} == set(living)
        world.until_all_up(within_s=5)


# clocks


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("name", ["a", "d"])
def test_a_wall_clock_that_is_set_changes_nothing_at_all(name: str, hours: int) -> None:
    """To the last frame: no wall clock takes part in any verdict (I-69)."""

    def run(jump: Callable[[Scene], None]) -> tuple[object, ...]:
        with Scene(3) as world:
            world.ready()
            world.run_for(s=5)
            jump(world)
            frames = world.network.frames_sent
            world.run_for(s=30)
            world.end_well()
            views = [(v.version, v.members) for v in world.views().values() if v is not None]
            return (world.network.frames_sent - frames, world.witness.spans, views)

    def jump(world: Scene) -> None:
        world.jump_wall_clock(name, s=hours * HOUR_S)

    assert run(jump) == run(lambda world: None)


@pytest.mark.parametrize("name", ["a", "d"])
@pytest.mark.parametrize("seed", range(2))
def test_an_hour_is_gone_from_one_nodes_clock(seed: int, name: str) -> None:
    """A host that was suspended, as its clock tells it: taken for a pause, not for silence of all
    the others. (This clock never goes back.)"""
    with Scene(seed) as world:
        host = world.ready()
        world.jump_clock(name, s=HOUR_S)
        world.run_for(s=30)
        assert world.witness.unreachable_max_s(of=ALL, at=ALL) == 0
        assert world.hosts == [host]
        world.end_well()


@pytest.mark.parametrize("hours", [1, -1])
def test_a_restart_with_a_wrong_wall_clock_joins_all_the_same(hours: int) -> None:
    """Set back: it must not lose to its own tombstone (I-69)."""
    with Scene() as world:
        world.ready()
        world.jump_wall_clock("d", s=hours * HOUR_S)
        world.restart("d")
        world.run_for(s=1)
        world.end_well()


# seeds


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_seed_restarts_while_it_is_alone(seed: int, remembers: bool) -> None:
    """Its own and only seed, cut off: with its memory it founds nothing. Without, it founds a
    cluster beside the living one, which is told and ends after the heal."""
    with Scene(seed, nodes=4, seeds="a", watch=False) as world:
        world.ready()
        living = clusters(world)
        met: list[IslandMet] = []
        for name in "bcd":
            world.system(name).events.subscribe(IslandMet, met.append)
        world.cut("a")
        world.run_for(s=15)
        if not remembers:
            world["a"].state.save(())
        world.restart("a")
        world.run_for(s=30)
        assert (world["a"].view is None) is remembers
        world.heal_all()
        if not remembers:
            world.run_until(lambda: not world["a"].running, within_s=15)
            ended = world["a"].ended
            assert ended is not None
            assert ended.exit_code == 12
            assert met
            world.start("a")
        world.until_all_up(within_s=SETTLE_S)
        assert clusters(world) == living
        world.run_for(s=20)
        check_one_view(world)
        assert {end.node for end in world.witness.ends} == (set() if remembers else {"a"})
        assert world.witness.wrong == []


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_only_seed_restarts_where_it_can_reach_the_others(seed: int, remembers: bool) -> None:
    """Nobody else is a seed; those who live ask it who it is, before long."""
    with Scene(seed, nodes=4, seeds="a", watch=False) as world:
        world.ready()
        living = clusters(world)
        if not remembers:
            world["a"].state.save(())
        world.restart("a", after_s=1)
        world.run_for(s=20)
        if not world["a"].running:  # it had founded beside them, and stopped when they met
            assert not remembers
            world.start("a")
        world.until_all_up(within_s=SETTLE_S)
        assert clusters(world) == living
        assert world.witness.wrong == []
        assert {end.node for end in world.witness.ends} <= (set() if remembers else {"a"})


# addresses


@pytest.mark.parametrize("knows_us", [True, False])
@pytest.mark.parametrize("same_name", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_an_address_goes_to_a_node_of_another_cluster(
    seed: int, same_name: bool, knows_us: bool
) -> None:
    """Where d was there is a process of another cluster now, which may have one of us as a seed.
    What it and we say is counted and never merged. Under another name both live; under our name
    the smaller cluster stops, and it is told who met whom."""
    with Scene(seed, "a b c d", seeds="a b c", watch=False) as world:
        world.ready()
        ours = clusters(world)
        met: list[IslandMet] = []
        for name in "abc":
            world.system(name).events.subscribe(IslandMet, met.append)
        world.crash("d", silent=True)
        world.other_settings["d"] = {
            "found": True,
            "seeds": (world["a"].address,) if knows_us else (),
            "cluster_name": "tenure" if same_name else "other",
        }
        world["d"].state.save(())
        world.start("d")
        world.run_for(s=40)
        for name in "abc":
            view = world[name].view
            assert view is not None
            assert {view.cluster_id} == ours
            assert [member.id.host for member in view.reachable()] == [
                world[other].host.address for other in "abc"
            ], "the newcomer is not taken for its predecessor"
        assert world.witness.wrong == []
        if same_name:
            assert {end.node for end in world.witness.ends} == {"d"}
            assert met
            assert not any(fact.we_stop for fact in met)
        else:
            assert world.witness.ends == []
            theirs = world["d"].view
            assert theirs is not None
            assert [member.id for member in theirs.members] == [theirs.self_id]
            assert world.system("d").counters()["control-refused-wrong-uid"] > 0
            counted = world.system("d")._daemon
            assert counted is not None
            assert (counted._core.gossip.counters.get("other-cluster-name", 0) > 0) or not knows_us


# clusters


@pytest.mark.parametrize(
    "sides", [("a", "b"), ("ab", "c"), ("a", "bc"), ("ab", "cd"), ("abc", "de")]
)
def test_of_two_sides_that_removed_each_other_one_lives_and_it_is_told(
    sides: tuple[str, str],
) -> None:
    """I-75: each believed the others to have ended, as a wrong proof would tell. They are never
    merged; the larger side lives, of two of one size that of the oldest member."""
    with Scene(11, " ".join("".join(sides)), watch=False) as world:
        world.ready()
        met: list[SurvivorMet] = []
        for node in world:
            node.system.events.subscribe(SurvivorMet, met.append)
        ids = {node.name: id_of(world, node.name) for node in world}
        world.partition(" | ".join(" ".join(side) for side in sides))
        world.run_for(s=20)
        for side, other in (sides, sides[::-1]):
            for name in side:
                daemon = world.system(name)._daemon
                assert daemon is not None
                for gone in other:
                    world[name].call(daemon.feed, ProcessEnded(ids[gone]))
        world.run_for(s=20)
        for side in sides:
            view = world[side[0]].view
            assert view is not None
            assert len(view.members) == len(side)
        world.heal_all()
        world.run_for(s=30)
        living = {node.name for node in world.running}
        assert living == set(sides[0] if len(sides[0]) >= len(sides[1]) else sides[1])
        assert met
        world.until_all_up(within_s=5)
        for name in set("".join(sides)) - living:
            ended = world[name].ended
            assert ended is not None
            assert ended.exit_code == 12


@pytest.mark.parametrize("mutual", [True, False])
def test_two_clusters_of_different_names_leave_each_other_in_peace(mutual: bool) -> None:
    """One has a seed in the other, or each in each: they ask now and then, and not for ever."""
    with Scene(0, "a b c d", seeds="a b c", absent="d", watch=False) as world:
        if mutual:
            seeds = tuple(node.address for node in world)
            world.other_settings["a"] = {"seeds": seeds, "found": True}
        world.until_all_up()
        world.run_for(s=5)
        quiet = world.network.frames_sent
        world.run_for(s=40)
        quiet = world.network.frames_sent - quiet
        world.other_settings["d"] = {
            "found": True,
            "seeds": (world["a"].address,),
            "cluster_name": "other",
        }
        world.start("d")
        world.run_for(s=5)
        frames = world.network.frames_sent
        world.run_for(s=40)
        assert world.network.frames_sent - frames < quiet + 200
        assert len(clusters(world)) == 2


@pytest.mark.parametrize(("seed", "pair"), [(11, "d e"), (59, "a b"), (1010, "d e"), (1019, "a b")])
def test_two_whose_links_went_one_by_one_give_the_others_up(seed: int, pair: str) -> None:
    """They probe seldom by then and hear each other alone: no word of the one may put off what they
    hold against the others for ever. When all heals, so do they."""
    dice = random.Random(f"staggered {seed}")
    rest = [name for name in ALL if name not in pair]
    with Scene(seed, " ".join(ALL)) as world:
        world.until_all_up()
        world.run_for(s=3)
        for one in pair.split():
            for other in rest:
                world.after(20.0 * dice.random(), lambda one, other: world.cut(one, from_=other),
                            one, other)  # fmt: skip
        world.run_for(s=140)
        lost = {id_of(world, name) for name in rest}
        for name in pair.split():
            view = world[name].view
            assert view is not None
            assert view.unreachable >= lost
        world.heal_all()
        world.end_well(within_s=30)
