"""Downing in whole clusters in virtual time: who lives through a split, and that never two act.

Each story ends with the same question: did two instances of the subject ever act at once, by what
the instances themselves wrote? Schedules D1–D9, L1–L6 and H1–H9 are those of the protocol's model.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from downing.events import ContactChanged, DowningDecided, DowningUnsettled
from gossip.membership import Status
from node import ActorSystem
from node.settings import Settings
from node.testkit.sabotage import sabotage
from node.testkit.stage import Where
from node.testkit.timeline import WorldError
from node.testkit.world import World
from tests.conftest import HowMany
from tests.stories.subject import Story

FIVE = "a b c d e"
CONTACT_S = 2.5
LONE_HOST_S = 10.0  # until another one acts
RESTART_S = 3.0


class Downing(Story):
    """A world with a strategy. `roles`: names of those with the role `core`."""

    def __init__(
        self,
        nodes: int | str = FIVE,
        strategy: str = "keep-majority",
        seed: int = 1,
        *,
        roles: str = "",
        settings: Settings | None = None,
        **kw: Any,
    ) -> None:
        self.told: list[tuple[float, str, object]] = []
        self._core = roles.split()
        settings = settings or Settings()
        settings = dataclasses.replace(settings, downing=strategy, hand_over_timeout_s=10.0)
        super().__init__(seed, nodes, watch=False, settings=settings, **kw)

    def settings_of(self, where: Where) -> Settings:
        """As of all; some have the role."""
        settings = super().settings_of(where)
        if self[where].name in self._core:
            settings = dataclasses.replace(settings, roles=("core",))
        return settings

    def host_ledger(self, system: ActorSystem) -> None:
        """And listen."""
        super().host_ledger(system)
        name = self.here().name

        def note(fact: object) -> None:
            self.told.append((self.now, name, fact))

        for kind in (ContactChanged, DowningDecided, DowningUnsettled):
            system.events.subscribe(kind, note)

    def ready(self) -> str:
        """All up, one hosts and acts, and all have agreed; returns the host."""
        host = super().ready()
        self.run_for(s=3.0)
        return host

    def apart(self) -> str:
        """As `ready`, and the leader has been restarted, so that it is not the host."""
        self.ready()
        self.restart("a")
        self.until_all_up()
        host = self.until_hosted()
        assert host != "a"
        self.run_for(s=3.0)
        return host

    @property
    def living(self) -> str:
        """Names of those that run and do not end: "c d e"."""
        return " ".join(node.name for node in self.nodes if node.running and node.ended is None)

    def facts(self, kind: type, *, held: bool | None = None) -> list[tuple[float, str]]:
        """When and where; of contacts those gained or lost."""
        return [
            (at, name)
            for at, name, fact in self.told
            if isinstance(fact, kind) and (held is None or getattr(fact, "held", None) is held)
        ]

    def codes(self, names: str) -> set[int | None]:
        """How these ended, None for who has not."""
        return {node.ended.exit_code if node.ended else None for node in self._group(names)}

    def until_taken_over(self, *, within_s: float = 40.0) -> float:
        """Until a new instance acts; returns how long that took."""
        began_at, before = self.now, len(self.log.instances)

        def taken_over() -> bool:
            return len(self.log.instances) > before

        self.run_until(taken_over, within_s=within_s)
        return self.now - began_at

    def last_step(self, host: str) -> float:
        """When the instance there last acted."""
        return max(s.at_s for s in self.log.steps if s.node == host and s.kind != "stop")

    def rejoin(self, names: str) -> None:
        """Their supervisors start them again."""
        for node in self._group(names):
            self.until_gone(node.name)
            self.restart(node, after_s=RESTART_S)

    def until_gone(self, names: str, *, within_s: float = 60.0) -> None:
        """Until these processes have ended."""
        nodes = self._group(names)
        self.run_until(lambda: not any(node.running for node in nodes), within_s=within_s)

    def well(self, *, within_s: float = 60.0) -> None:
        """One view, one host, it acts; and never two did."""
        self.until_all_up(within_s=within_s)
        self.until_hosted(within_s=within_s)
        seen = len(self.log.steps)
        self.run_until(lambda: len(self.log.steps) > seen, within_s=20)
        assert self.log.overlaps() == []


# the pictures

PICTURES = [
    ("keep-majority", "a b | c d e", "c d e"),
    ("keep-majority", "a | b c d e", "b c d e"),
    ("keep-majority", "a b | c d", "a b"),  # I-92: the half with the lowest address
    ("keep-majority", "a b | c d | e", ""),
    ("keep-majority", "a | b | c d e", "c d e"),
    ("keep-majority", "a | b", "a"),
    ("keep-majority:role=core", "a* b | c d* e*", "c d e"),
    ("keep-majority:role=core", "a* b* | c d e", "a b"),
    ("static-quorum:quorum_size=3", "a b | c d e", "c d e"),
    ("static-quorum:quorum_size=4", "a b | c d e", ""),
    ("keep-oldest", "a b | c d e", "a b"),
    ("keep-oldest", "a | b c d e", "b c d e"),  # I-93
    ("keep-oldest:down_if_alone=false", "a | b c d e", "a"),
    ("keep-referee:referee=10.0.0.3:25520", "a b d e | c", "c"),
    ("keep-referee:referee=10.0.0.9:25520", "a b | c d e", "c d e"),  # I-95, H8: none there
    ("down-all", "a b | c d e", ""),
]


@pytest.mark.parametrize(("strategy", "picture", "survivors"), PICTURES)
def test_a_split_leaves_the_side_that_the_strategy_says(
    strategy: str, picture: str, survivors: str
) -> None:
    """I-88, I-90, I-92, I-93, I-95, I-98, I-99: one side lives and hosts, all others end with
    exit code 10 and a reason that names the strategy; after the heal they join again."""
    names = picture.replace("|", " ").replace("*", "").split()
    roles = " ".join(word[0] for word in picture.split() if "*" in word)
    with Downing(" ".join(sorted(names)), strategy, roles=roles) as world:
        world.ready()
        assert world.told == [] or {type(fact) for *_, fact in world.told} == {ContactChanged}
        world.partition(picture.replace("*", ""))
        world.run_for(s=45)
        assert world.living == survivors
        losers = " ".join(name for name in sorted(names) if name not in survivors.split())
        assert world.codes(losers) == {10}
        assert all(strategy.split(":")[0] in str(world[n].ended) for n in losers.split())
        assert world.log.overlaps() == []
        if survivors:
            (host,) = world.hosts
            assert host in survivors
            assert world.now - world.last_step(host) < 1
        world.heal_all()
        world.rejoin(losers)
        world.run_for(s=RESTART_S)
        world.well()


def test_a_quorum_that_two_sides_could_reach_lets_nothing_act_and_downs_all() -> None:
    """More members than the quorum can tell apart: a wrong setting, told by a warning."""
    with Downing(strategy="static-quorum:quorum_size=2") as world:
        world.until_all_up()
        world.run_for(s=10)
        assert world.log.steps == []
        assert world.living == FIVE
        world.partition("a b | c d e")
        world.run_for(s=45)
        assert world.living == ""
        assert world.codes(FIVE) == {10}
        assert world.log.steps == []


def test_i90_a_cluster_below_its_quorum_waits_and_acts_once_it_is_reached() -> None:
    """I-90: nothing is unreachable, so nobody is downed while it boots."""
    with Downing(strategy="static-quorum:quorum_size=3", absent="c d e") as world:
        world.until_all_up()
        world.run_for(s=30)
        assert world.log.steps == []
        assert world.living == "a b"
        world.start("c")
        world.well()


def test_lease_majority_without_an_answer_nobody_acts_and_nobody_ends() -> None:
    """I-96, review F19; after the heal it goes on as if nothing had been."""
    with Downing(strategy="lease-majority") as world:
        host = world.ready()
        world.partition("a b | c d e")
        world.run_for(s=CONTACT_S + 5.0)
        silent_since = world.now
        world.run_for(s=60)
        assert world.living == FIVE
        assert world.last_step(host) < silent_since
        assert world.log.overlaps() == []
        world.heal_all()
        world.well()
        assert world.living == FIVE
        assert len(world.log.instances) == 1


# the host cut off


@pytest.mark.parametrize("nodes", [3, 5, 7])
def test_a_host_cut_off_alone_falls_silent_before_it_is_replaced(nodes: int) -> None:
    """D3, review F1: its last step comes at most `contact_s` after the cut; another one acts
    within 10 s."""
    for seed in range(2):
        with Downing(nodes, seed=seed) as world:
            host = world.ready()
            cut_at = world.now
            world.cut(host)
            assert world.until_taken_over() <= LONE_HOST_S
            assert world.last_step(host) <= cut_at + CONTACT_S
            world.until_gone(host)
            assert world.codes(host) == {10}
            world.heal_all()
            world.rejoin(host)
            world.run_for(s=RESTART_S)
            world.well()


def test_a_host_in_a_losing_side_of_two_is_replaced_within_15_s() -> None:
    for seed in range(3):
        with Downing(seed=seed) as world:
            host = world.ready()
            world.partition(f"{host} {world.younger(host)[-1]} | "
                            + " ".join(world.younger(host)[:-1]))  # fmt: skip
            assert world.until_taken_over() <= 15.0
            assert world.log.overlaps() == []


def test_i85_only_the_link_between_host_and_leader_is_cut_and_nothing_happens() -> None:
    """I-85, H4: others reach both; contact and promises go through them."""
    with Downing() as world:
        host = world.apart()
        contacts = len(world.facts(ContactChanged))
        steps = len(world.log.instances)
        world.cut(host, from_="a")
        world.run_for(s=60)
        assert world.living == FIVE
        assert len(world.facts(ContactChanged)) == contacts
        assert len(world.log.instances) == steps
        assert world.now - world.last_step(host) < 1
        world.heal_all()
        world.well()


@pytest.mark.parametrize("nodes", [4, 7])
def test_h4_a_host_cut_from_all_but_one_goes_on(nodes: int) -> None:
    """H4a: through the one that it reaches."""
    with Downing(nodes) as world:
        host = world.ready()
        contacts = len(world.facts(ContactChanged))
        keeps = world.younger(host)[1]
        world.cut(host, from_=[name for name in world.younger(host) if name != keeps])
        world.run_for(s=60)
        assert len(world.facts(ContactChanged)) == contacts
        assert len(world.log.instances) == 1
        assert world.now - world.last_step(host) < 1
        world.heal_all()
        world.well()


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_h4_a_decider_that_reaches_most_through_others_alone_decides(seed: int) -> None:
    """H4b: the host crashes while the lowest address reaches one other member only. Held to hardly
    answer (seeds 1 and 7), that one may go; it takes nobody along."""
    with Downing("a b c d e f", seed=seed) as world:
        host = world.ready()
        leader = min(name for name in world.younger(host))
        others = [name for name in world.younger(host) if name != leader]
        world.cut(leader, from_=others[1:])
        world.run_for(s=10)
        world.crash(host, silent=True)
        assert world.until_taken_over() <= 15.0
        assert len(world.living.split()) == 5
        world.heal_all()
        world.well()


@pytest.mark.parametrize("way", ["deaf", "mute"])
def test_d4_a_host_that_hears_or_is_heard_by_nobody(way: str) -> None:
    """D4: it is replaced, and does not wake up at the heal before it has heard so."""
    for seed in range(2):
        with Downing(seed=seed) as world:
            host = world.ready()
            others = world.younger(host)
            world.cut(*([others] if way == "deaf" else [[host]]),
                      to=[host] if way == "deaf" else others)  # fmt: skip
            world.run_for(s=25)
            world.heal_all()
            world.run_for(s=15)
            assert world.log.overlaps() == []
            if world[host].ended is not None:
                world.rejoin(host)
                world.run_for(s=RESTART_S)
            world.well()


def test_h5_a_deaf_member_does_not_stop_the_others() -> None:
    """H5: its records are void, for whom it accuses refutes them."""
    for seed in range(2):
        with Downing(seed=seed) as world:
            host = world.ready()
            deaf = world.younger(host)[-1]
            others = [name for name in FIVE.split() if name != deaf]
            lost = len(world.facts(ContactChanged, held=False))
            world.cut(others, to=[deaf])
            world.run_for(s=45)
            assert set(others) <= set(world.living.split())
            assert len(world.facts(ContactChanged, held=False)) - lost <= 1
            assert world.now - world.last_step(host) < 1
            assert world.log.overlaps() == []


# pauses


@pytest.mark.parametrize("s", [3.0, 8.0, 15.0])
def test_d5_a_stopped_host_begins_nothing_after_it_wakes(s: float) -> None:
    """D5, I-86, I-87, review F10: no step before it has contact again, or has ended."""
    with Downing() as world:
        host = world.ready()
        world.pause(host, s=s)
        world.run_for(s=s - 0.001)
        slept = len(world.log.instances)
        wakes_at = world.now
        world.run_for(s=30)
        steps = [x for x in world.log.steps if x.node == host and x.kind != "stop"]
        if slept > 1:
            assert [x for x in steps if x.at_s > wakes_at] == []
            assert world.codes(host) == {10}
            assert len(world.living.split()) == 4
        else:
            assert world.living == FIVE
        assert world.log.overlaps() == []


def test_d5_the_short_pauses_of_a_host_cost_nothing() -> None:
    with Downing() as world:
        host = world.ready()
        for _ in range(10):
            world.pause(host, s=1.0)
            world.run_for(s=4.0)
        assert world.living == FIVE
        assert len(world.log.instances) == 1


def test_i86_who_slept_while_all_the_others_did_their_work_downs_nobody() -> None:
    """I-86: a resumed node that finds everybody silent is no majority of one."""
    with Downing() as world:
        world.ready()
        world.pause("e", s=40)
        world.run_for(s=35)
        assert world.living.startswith("a b c d")
        world.run_for(s=20)
        assert world.codes("e") == {10}
        assert world.living == "a b c d"
        assert world.log.overlaps() == []


# the schedules of the model


@pytest.mark.parametrize("into_cut", ["held", "lost"])
def test_d1_a_restarted_seed_founds_no_island(into_cut: str) -> None:
    """D1, D2, H1: it asks those it remembers, hears nothing, and waits; stale joins that arrive at
    the heal merge nothing."""
    with Downing("a b c", into_cut=into_cut) as world:
        host = world.ready()
        world.cut(host)
        world.until_gone(host)
        world.restart(host, after_s=RESTART_S)
        world.run_for(s=60)
        view = world[host].view
        assert view is None or view.members == ()
        assert host not in world.hosts
        world.heal_all()
        world.well()


@pytest.mark.parametrize("seed", range(6))
def test_d6_a_view_that_shrinks_in_two_steps_is_no_majority(seed: int) -> None:
    """D6: a pauses, and the cut comes while b waits to down it."""
    dice = random.Random(f"d6 {seed}")
    with Downing(seed=seed) as world:
        world.ready()
        world.pause("a", s=dice.uniform(2.0, 20.0))
        world.run_for(s=dice.uniform(0.5, 3.0))
        world.partition("a c e | b d")
        world.run_for(s=45)
        assert world.log.overlaps() == []
        assert not set("bd") & set(world.living), "two of five live"


@pytest.mark.parametrize("seed", range(8))
def test_d7_an_action_of_the_leader_that_nobody_heard_of(seed: int) -> None:
    """D7: the leader moves a leaver on, and is cut off, or sleeps, in that moment."""
    with Downing("a b c", seed=seed) as world:
        world.ready()
        leaver = world[["b", "c"][seed % 2]]
        leaver.call(lambda: leaver.loop.create_task(leaver.system.leave()))

        def moved() -> bool:
            view = world["a"].view
            found = [] if view is None else [m for m in view.members if m.name == leaver.name]
            return not found or found[0].status >= Status.EXITING

        world.timeline.run(world.now + 2.0, moved)
        if seed % 4 < 2:
            world.cut("a", severed=True)
        else:
            world.pause("a", s=10.0)
            world.cut("a")
        world.run_for(s=60)
        assert world.log.overlaps() == []


@pytest.mark.parametrize("seed", range(3))
def test_d7_a_cut_that_falls_on_a_promotion(seed: int) -> None:
    """D7: a and e count; a is back and has just come up, as e has not heard. Each of them would be
    a majority of those that it counts."""
    with Downing("a b c d e", "keep-majority:role=core", seed, roles="a e") as world:
        world.ready()
        world.leave("a")
        world.until_hosted()
        world.run_for(s=2)
        world.start("a")

        def promoted() -> bool:
            view = world["b"].view
            return view is not None and any(
                m.name == "a" and m.status is Status.UP and m.up_number > 0 for m in view.members
            )

        world.run_until(promoted)
        world.cut("e", severed=True)
        world.run_for(s=60)
        assert world.log.overlaps() == []


def test_d8_a_woken_node_and_the_new_processes_of_its_peers_are_no_majority() -> None:
    """D8: a and c end while b sleeps, and come back; b wakes with their joins in its buffers."""
    with Downing("a b c") as world:
        world.ready()
        world.pause("b", s=60.0)
        world.cut("a", from_="c")
        world.run_until(lambda: not world["a"].running and not world["c"].running, within_s=50)
        world.heal_all()
        world.restart("a c", after_s=RESTART_S)
        world.run_for(s=70)
        assert world.log.overlaps() == []
        if world["b"].ended is not None:
            world.rejoin("b")
            world.run_for(s=RESTART_S)
        world.well()


def test_d9_seeds_that_can_not_hear_each_other_found_no_two_clusters() -> None:
    """D9: all have ended; a and b hear c alone."""
    with Downing("a b c") as world:
        world.ready()
        world.partition("a | b | c")
        world.run_until(lambda: not world.running, within_s=60)
        world.partition("a c | b")
        world.heal("b", from_="c")
        world.restart("a b c", after_s=RESTART_S)
        world.run_for(s=60)
        clusters = {node.view.cluster_id for node in world.running if node.view is not None}
        assert len(clusters) <= 1
        world.heal_all()
        world.well()


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3, 1.0])
def test_l1_a_cut_right_after_a_promotion(delay_s: float) -> None:
    """L1: not all have seen that all agreed; the side of three lives all the same."""
    with Downing(absent="d e") as world:
        world.until_all_up()
        world.run_for(s=5)
        world.start("d e")

        def promoted() -> bool:
            view = world["a"].view
            ups = [] if view is None else [m for m in view.members if m.status is Status.UP]
            return len(ups) == 5

        world.run_until(promoted)
        world.run_for(s=delay_s)
        world.partition("a b c | d e")
        world.run_for(s=45)
        assert world.living.startswith("a b c")
        assert world.log.overlaps() == []


def test_l2_a_joiner_that_hears_nothing_stops_nobody_and_joins_after_the_heal() -> None:
    """L2, L3."""
    with Downing(absent="e") as world:
        world.until_all_up()
        host = world.until_hosted()
        world.run_for(s=3)
        world.cut("a b c d", to="e")
        lost = len(world.facts(ContactChanged, held=False))
        world.start("e")
        world.run_for(s=45)
        assert len(world.facts(ContactChanged, held=False)) == lost
        assert world.now - world.last_step(host) < 1
        world.heal_all()
        if world["e"].ended is not None:
            world.rejoin("e")
            world.run_for(s=RESTART_S)
        world.well()


def test_l5_the_leader_and_another_one_leave() -> None:
    """L5: whoever stays does not count those that left as lost voters."""
    with Downing("a b c") as world:
        world.ready()
        for name in ("b", "a"):
            node = world[name]
            node.call(lambda node=node: node.loop.create_task(node.system.leave()))
        world.run_until(lambda: world.living == "c", within_s=60)
        world.run_for(s=30)
        assert world.codes("a b") == {0}
        world.well()


@pytest.mark.parametrize("nodes", [3, 4, 5, 7])
def test_l6_a_single_crash_ends_no_cluster(how_many: HowMany, nodes: int) -> None:
    """L6, H3: whoever it is, silent or not."""
    for index in range(min(nodes, how_many(short=3, long=nodes))):
        with Downing(nodes, seed=index) as world:
            world.ready()
            victim = world.nodes[index].name
            world.crash(victim, silent=index % 2 == 0)
            world.run_for(s=30)
            assert len(world.living.split()) == nodes - 1
            world.well()


def test_h1_all_seeds_on_the_losing_side_found_no_second_cluster() -> None:
    """H1: every seed answers "looking", and still there are those that they remember."""
    with Downing("a b c d e f g") as world:
        world.ready()
        world.cut("a b c", to="d e f g")
        world.run_until(lambda: not any(world[n].running for n in "abc"), within_s=90)
        world.partition("a b c | d e f g")
        world.restart("a b c", after_s=RESTART_S)
        world.run_for(s=60)
        clusters = {node.view.cluster_id for node in world.running if node.view is not None}
        assert len(clusters) == 1
        world.heal_all()
        world.well()


def test_h2_a_restarted_seed_is_found_by_members_that_are_no_seeds() -> None:
    """H2: all seeds have gone, the last member that lives is none of them."""
    with Downing("a b c d e", seeds="a b") as world:
        world.ready()
        world.crash("a b")
        world.run_for(s=30)
        assert world.living == "c d e"
        world.restart("a")
        world.run_for(s=1)
        world.restart("b")
        world.well()


def test_h6_a_crash_under_heavy_loss_downs_no_cluster() -> None:
    """H6: rounds complete at 25 % loss."""
    for seed in range(2):
        with Downing(seed=seed) as world:
            host = world.ready()
            world.shape(loss=0.25)
            world.run_for(s=2)
            world.crash(host, silent=True)
            world.run_for(s=40)
            assert len(world.living.split()) >= 3
            world.shape(loss=0.0)
            for node in world.nodes:
                if not node.running and node.name != host:
                    world.restart(node)
            world.well()


def test_h8_the_referee_leaves_for_good_and_the_rest_goes_on() -> None:
    with Downing(strategy="keep-referee:referee=10.0.0.1:25520") as world:
        world.ready()
        world.leave("a")
        world.well()
        acting = len(world.log.steps)
        world.run_for(s=20)
        assert len(world.log.steps) > acting + 50


def test_h9_three_crashes_some_seconds_apart_are_decided_one_by_one() -> None:
    """H9: with everything downed when it does not settle for so long, too."""
    settings = Settings(down_all_when_unstable_s=12.0)
    with Downing(7, settings=settings) as world:
        world.ready()
        for name in "gfe":
            world.crash(name, silent=True)
            world.run_for(s=5.0)
        world.run_for(s=30)
        assert world.living == "a b c d"
        world.well()


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_h10_one_leaves_while_it_is_undecided(name: str) -> None:
    """H10, review F25: a leaver does not take its vote away."""
    with Downing() as world:
        world.ready()
        world.partition("a b c | d e")
        world.run_for(s=2.0)
        node = world[name]
        node.call(lambda: node.loop.create_task(node.system.leave()))
        world.run_for(s=50)
        assert world.living == " ".join(n for n in "abc" if n != name)
        assert world.log.overlaps() == []


# several at once


def test_several_that_crash_at_once_are_one_decision() -> None:
    """Silently, and by the word of the kernel."""
    with Downing(7) as world:
        world.ready()
        world.crash("e f g", silent=True)
        world.run_for(s=20)
        assert world.living == "a b c d"
        assert len({at for at, _ in world.facts(DowningDecided)}) == 1
        world.well()
    with Downing(7, one_host=True) as world:
        host = world.ready()
        began_at = world.now
        world.crash([host, *world.younger(host)[:2]])
        world.until_taken_over(within_s=2)
        assert world.now - began_at <= 0.6
        world.well()


def test_thirty_members_ten_killed_at_once() -> None:
    """One decision, and the rest live."""
    with Downing(30) as world:
        world.until_all_up()
        world.until_hosted()
        world.run_for(s=3)
        world.crash(world.nodes[20:], silent=True)
        world.well(within_s=30)
        assert len(world.living.split()) == 20
        assert len(world.facts(DowningDecided)) == 1


def staggered(world: Downing, minority: str, seed: int) -> None:
    """Cut these off all others, link by link within 20 s."""
    dice = random.Random(f"staggered {seed}")
    rest = [name for name in FIVE.split() if name not in minority.split()]
    for one in minority.split():
        for other in rest:
            world.after(20.0 * dice.random(), lambda one, other: world.cut(one, from_=other),
                        one, other)  # fmt: skip


@pytest.mark.parametrize("minority", ["a b", "d e"])
def test_i88_two_of_five_whose_links_go_one_by_one_never_win(
    how_many: HowMany, minority: str
) -> None:
    """I-88, review F2: detection spread over 20 s; measured elsewhere, such a minority won in 8 of
    15 rounds. Here it decides against none of the three, and nothing acts there once its last
    grants are over."""
    for seed in range(how_many(short=3, long=200)):
        with Downing(seed=seed) as world:
            world.ready()
            staggered(world, minority, seed)
            world.run_for(s=20.0 + CONTACT_S)
            over_at = world.now
            world.run_for(s=50)
            side = minority.split()
            assert world.log.overlaps() == []
            assert not [s for s in world.log.steps if s.node in side and s.at_s > over_at
                        and s.kind != "stop"], f"seed {seed}"  # fmt: skip
            rest = {name for name in FIVE.split() if name not in side}
            names = {world[name].address: name for name in FIVE.split()}
            for _, name, fact in world.told:
                # While three hear it, one of them may decide about the other, with the three.
                if isinstance(fact, DowningDecided) and name in side:
                    downed = {names[node.address] for node in fact.downed}
                    assert name in downed or not downed & rest, f"seed {seed}: {name} {fact}"
            assert rest <= set(world.living.split()), f"seed {seed}"


def test_two_whose_links_went_one_by_one_end_at_last() -> None:
    """They hear each other alone, and rarely: that must not pass for news of the others."""
    with Downing(seed=52) as world:
        world.ready()
        staggered(world, "a b", 52)
        world.run_for(s=20.0 + 120.0)
        assert world.living == "c d e"


@pytest.mark.parametrize("seed", range(8))
def test_d3_a_heal_right_at_the_decision(seed: int) -> None:
    """Review F3: the loser does not resume while the winner has promised."""
    with Downing(seed=seed) as world:
        host = world.ready()
        world.cut(host)
        world.run_for(s=7.2 + 0.2 * seed)
        world.heal_all()
        world.run_for(s=30)
        assert world.log.overlaps() == []
        assert len(world.living.split()) >= 4
        if world[host].ended is not None:
            assert world.codes(host) == {10}
            world.rejoin(host)
            world.run_for(s=RESTART_S)
        world.well()


def test_i91_the_same_split_at_the_same_addresses_is_decided_again() -> None:
    """I-91."""
    with Downing() as world:
        world.ready()
        for _ in range(3):
            world.partition("a b c | d e")
            world.run_for(s=30)
            assert world.living == "a b c"
            world.heal_all()
            world.rejoin("d e")
            world.run_for(s=RESTART_S)
            world.well()
            world.run_for(s=3)


def test_i94_the_oldest_is_who_joined_first_not_the_lowest_address() -> None:
    """I-94: a is the youngest now."""
    with Downing(strategy="keep-oldest:down_if_alone=false") as world:
        world.ready()
        world.leave("a")
        world.start("a")
        world.until_all_up()
        oldest = world.until_hosted()
        world.run_for(s=5)
        assert oldest != "a"
        world.cut(oldest)
        world.run_for(s=40)
        assert world.living == oldest
        assert world.log.overlaps() == []


def test_i103_a_member_that_was_downed_is_no_recovery() -> None:
    """I-103: it does not come back by itself, only as a new process."""
    with Downing() as world:
        world.ready()
        old = world["e"].view
        assert old is not None
        world.cut("e")
        world.run_for(s=30)
        world.heal_all()
        world.rejoin("e")
        world.run_for(s=RESTART_S)
        world.well()
        for node in world.nodes:
            assert node.view is not None
            assert old.self_id not in node.view.by_id


# health


@pytest.mark.parametrize("nodes", [3, 5, 7])
@pytest.mark.parametrize("trouble", ["none", "stalls", "loss"])
def test_a_healthy_host_does_not_flap(how_many: HowMany, nodes: int, trouble: str) -> None:
    """No contact lost, nobody downed: quiet, with a stall of 1 s of another member each 10 s, and
    at 1 % loss."""
    with Downing(nodes) as world:
        host = world.ready()
        other = world.younger(host)[0]
        if trouble == "stalls":
            world.every(10.0, lambda: world.pause(other, s=1.0))
        if trouble == "loss":
            world.shape(loss=0.01)
        world.run_for(s=60.0 * how_many(short=1, long=30))
        assert world.facts(ContactChanged, held=True)
        assert world.facts(ContactChanged, held=False) == []
        assert world.facts(DowningDecided) == []
        assert len(world.living.split()) == nodes
        assert len(world.log.instances) == 1


def test_h7_a_join_storm_does_not_suspend_a_host() -> None:
    """H7: a new member is asked as soon as it is seen."""
    for seed in range(2):
        with Downing("a b c d e f g", seed=seed, absent="d e f g") as world:
            world.until_all_up()
            world.until_hosted()
            world.run_for(s=3)
            for _ in range(2):
                for name in "defg":
                    world.after(0.5 * random.Random(name).random(), world.start, name)
                world.run_for(s=10)
                world.until_all_up()
                for name in "defg":
                    world.leave(name)
            assert world.facts(ContactChanged, held=False) == []
            assert world.living == "a b c"


# operators


def test_an_operator_downs_a_reachable_host() -> None:
    """It stops in order, then another one acts."""
    with Downing() as world:
        host = world.ready()
        by = world.younger(host)[1]
        world.run(world[by].system.cluster.down(world[host].address), node=by, within_s=30)
        world.run_until(lambda: not world[host].running, within_s=30)
        assert world.codes(host) == {11}
        world.rejoin(host)
        world.run_for(s=RESTART_S)
        world.well()


@pytest.mark.parametrize("downing", ["none", "keep-majority"])
def test_who_slept_while_an_operator_downed_it_exits_as_ordered(downing: str) -> None:
    """Not as somebody that its supervisor shall start again."""
    with Downing(strategy=downing) as world:
        host = world.ready()
        by = world.younger(host)[1]
        world.pause(host, s=25)
        world.run_for(s=0.5)
        world.run(world[by].system.cluster.down(world[host].address), node=by, within_s=20)
        world.run_until(lambda: not world[host].running, within_s=30)
        assert world.codes(host) == {11}


def test_an_operator_downs_a_host_that_hears_nothing() -> None:
    """H6: it had grants until a moment ago, so the last of them is waited for."""
    with Downing() as world:
        host = world.apart()
        by = world.younger(host)[1]
        world.cut(world.younger(host), to=[host])
        world.run_for(s=0.3)
        began_at = world.now
        node = world[by]
        node.call(lambda: node.loop.create_task(node.system.cluster.down(world[host].address)))
        world.until_taken_over(within_s=10)
        assert world.now - began_at >= 1.5
        assert world.log.overlaps() == []


PLANTED = [
    ("no-contact", lambda: test_a_host_cut_off_alone_falls_silent_before_it_is_replaced(5)),
    ("no-gate", lambda: test_d5_a_stopped_host_begins_nothing_after_it_wakes(15.0)),
    ("no-joint", lambda: [test_d7_a_cut_that_falls_on_a_promotion(n) for n in range(8)]),
    ("no-quiet", test_an_operator_downs_a_host_that_hears_nothing),
    ("found-by-seeds-only", test_h1_all_seeds_on_the_losing_side_found_no_second_cluster),
]


@pytest.mark.parametrize(("fault", "story"), PLANTED, ids=[name for name, _ in PLANTED])
def test_a_planted_fault_is_found(fault: str, story: Callable[[], object]) -> None:
    """Each of the rules carries a story."""
    with sabotage(fault), pytest.raises((AssertionError, WorldError)):
        story()


def test_who_wakes_when_all_others_were_replaced_soon_knows() -> None:
    """Nobody it knows is left to tell it that it was removed, and after a pause it doubts itself
    first; but who asks to join from a member's address shows that this one is gone."""
    with World(3, "a b c d e", settings=Settings(downing="keep-majority"), seeds="a") as world:
        world.until_all_up()
        world.pause("a", s=60)
        world.run_for(s=1)
        for name in "bcde":
            world.crash(name, silent=True)
        world.run_for(s=5)
        for name in "bcde":
            world.start(name)
        world.run_until(lambda: not world["a"].paused, within_s=60)
        woken_at = world.now
        world.run_until(lambda: not world["a"].running, within_s=60)
        assert world.now - woken_at < 12
