"""Joining, founding and healing of whole nodes in virtual time (I-71, I-74, I-75, I-82, I-83)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.events import PeerFrame
from gossip.membership import Cause, NodeId, Status, Tombstone
from gossip.messages import Gossip, Head, YouAreGone
from node import Settings
from node.testkit import check_one_view
from node.testkit.stage import Where
from tests.stories.subject import Story


class TwoFounders(Story):
    """a and d found by their operators' word."""

    def settings_of(self, where: Where) -> Settings:
        """As ever, but for `found`."""
        return replace(super().settings_of(where), found=self[where].name in "ad")


class OwnNameOnly(Story):
    """The name service of each node knows its own address; those of two others not yet."""

    def settings_of(self, where: Where) -> Settings:
        """As ever, but for the seeds."""
        seeds = (self[where].address, "tenure-1.example:25520", "tenure-2.example:25520")
        return replace(super().settings_of(where), seeds=seeds)


def clusters(world: Story) -> set[int]:
    """The clusters that running nodes are in."""
    return {view.cluster_id for view in world.views().values() if view is not None}


@pytest.mark.parametrize("seed", range(10))
def test_symmetric_seeds_form_exactly_one_cluster(seed: int) -> None:
    with Story(seed, nodes=5, seeds="a b c d e", start_spread_s=0.3) as world:
        world.until_all_up(within_s=10)
        assert len(clusters(world)) == 1


def test_cut_and_heal_the_views_merge() -> None:
    with Story(nodes=5) as world:
        world.ready()
        world.partition("a b | c d e")
        world.run_for(s=40)
        view = world["a"].view
        assert view is not None
        assert len(view.unreachable) == 3
        world.heal_all()
        world.until_all_up(within_s=10)
        assert len(clusters(world)) == 1


def test_a_partition_of_any_length_heals() -> None:
    """I-74: unreachable members are re-dialled for ever."""
    with Story(nodes=3, watch=False) as world:
        world.ready()
        world.cut("a")
        world.run_for(s=900)
        world.heal_all()
        world.until_all_up(within_s=5)


def test_restart_on_the_same_address_after_the_old_one_is_gone() -> None:
    with Story(nodes=3, one_host=True) as world:
        world.ready()
        world.crash("b")
        world.until_all_up(within_s=5)
        world.restart("b")
        world.until_all_up(within_s=5)
        assert len(clusters(world)) == 1


def test_restart_on_the_same_address_before_the_old_one_is_gone() -> None:
    with Story(nodes=3) as world:
        world.ready()
        world.restart("b")
        world.until_all_up(within_s=5)
        assert len(clusters(world)) == 1


def test_a_restarted_seed_alone_behind_a_partition_founds_nothing() -> None:
    """Model D1: the worst of all, two clusters and two hosts for ever."""
    with Story(nodes=3, seeds="a") as world:
        world.ready()
        world.cut("a")
        world.restart("a", after_s=1)
        world.run_for(s=60)
        assert world["a"].view is None
        assert len(clusters(world)) == 1
        world.heal_all()
        world.until_all_up(within_s=10)


def test_all_seeds_restarted_on_one_side_found_nothing_either() -> None:
    """Model H1: every seed is looking, but the remembered members do not answer."""
    with Story(nodes=5, seeds="a b") as world:
        world.ready()
        world.partition("a b | c d e")
        world.restart(["a", "b"])
        world.run_for(s=60)
        assert world["a"].view is None
        assert world["b"].view is None
        world.heal_all()
        world.until_all_up(within_s=20)
        assert len(clusters(world)) == 1


def test_the_first_seed_restarts_into_the_living_cluster() -> None:
    with Story(nodes=4, seeds="a") as world:
        world.ready()
        before = clusters(world)
        world.restart("a", after_s=2)
        world.run_for(s=3)
        world.until_all_up(within_s=10)
        assert clusters(world) == before


def test_a_seed_whose_name_does_not_resolve_is_no_proof_that_nobody_is_there() -> None:
    """I-83: each of them would found a cluster of its own."""
    with OwnNameOnly(nodes=3, watch=False) as world:
        world.run_for(s=30)
        assert clusters(world) == set()
        assert "tenure-1.example:25520" in world.system("a").cluster.state()["explain"]


def test_a_stale_join_after_the_heal_admits_nobody() -> None:
    """The frames of a joiner that died behind a cut arrive after the heal."""
    with Story(nodes="a b c d", seeds="a", absent="d") as world:
        world.until_all_up()
        world.cut("d")
        world.start("d")
        world.run_for(s=3)
        world.crash("d", silent=True)
        world.heal_all()
        world.run_for(s=20)
        check_one_view(world)
        assert {node.name for node in world.running} == {"a", "b", "c"}


def test_a_one_way_joiner_never_enters_the_view() -> None:
    """It is heard, but hears nobody: no round trip, no admission."""
    with Story(nodes="a b c d", seeds="a", absent="d", into_cut="lost") as world:
        world.until_all_up()
        world.cut(["a", "b", "c"], to="d")  # nothing reaches d
        world.start("d")
        world.run_for(s=20)
        view = world["a"].view
        assert view is not None
        assert len(view.members) == 3
        world.heal_all()
        world.until_all_up(within_s=10)


@pytest.mark.parametrize("step", range(16))
def test_a_joiner_cut_off_in_the_middle_of_its_admission_comes_in_later(step: int) -> None:
    """Whatever the instant: request, challenge, echo or welcome lost. Where it had been admitted,
    it was removed meanwhile, and comes back under a new uid."""
    with Story(nodes="a b c d", seeds="a", absent="d", into_cut="lost") as world:
        world.until_all_up()
        world.start("d")
        first = world["d"]
        world.run_for(s=0.0003 * step)
        world.cut("d")
        world.run_for(s=40)
        world.heal_all()
        world.until_all_up(within_s=30)
        assert first.running


def test_two_clusters_meet_and_do_not_merge() -> None:
    """I-75: both report it, the smaller one stops as a whole."""

    with TwoFounders(nodes="a b c d e", seeds="a d", watch=False) as world:
        world.partition("a b c | d e")
        world.run_for(s=10)
        assert len(clusters(world)) == 2
        world.heal_all()
        world.run_for(s=15)
        assert {node.name for node in world.running} == {"a", "b", "c"}
        assert len(clusters(world)) == 1
        for name in "de":
            ended = world[name].ended
            assert ended is not None
            assert ended.exit_code == 12


def id_of(world: Story, name: str) -> NodeId:
    """Who runs on this node."""
    view = world[name].view
    assert view is not None
    return view.self_id


def say(world: Story, sender: NodeId, to: str, *messages: object) -> None:
    """Put a frame into a connection of `sender` to this node."""
    node, view = world[to], world[to].view
    assert view is not None
    daemon = node.system._daemon
    assert daemon is not None
    node.call(daemon.feed, PeerFrame(sender, Head(cluster_id=view.cluster_id), messages))


@pytest.mark.parametrize("standing", [False, True])
def test_forged_frames_neither_evict_the_host_nor_move_what_it_hosts(standing: bool) -> None:
    """I-65, I-66: of a stranger or of a member that does not lead, again and again, to all and to
    the host itself."""
    with Story(nodes=5) as world:
        host = world.ready()
        victim, view = id_of(world, host), world[host].view
        assert view is not None
        liar = NodeId("10.9.0.9", 25520, 9)
        if standing:
            liar = max(member.id for member in view.members if member.id != victim)
            assert liar != view.leader
        down = replace(view.by_id[victim], status=Status.DOWN, cause=Cause.CRASHED)
        news = Gossip(members=(down,), tombstones=(Tombstone(victim, 1, Cause.LEFT),))
        for _ in range(40):
            for node in world.running:
                if id_of(world, node.name) != liar:
                    say(world, liar, node.name, news, YouAreGone(victim.uid, int(Cause.DOWNED)))
            world.run_for(s=0.25)
            assert world.hosts == [host]
        world.run_for(s=10)
        world.until_all_up(within_s=5)
        check_one_view(world)


def test_a_member_that_nobody_left_has_heard_of_stays_in() -> None:
    """d joined by b while a was cut off; then b ended. a and d are left, and a never heard of d."""
    with Story(nodes="a b d", seeds="a b", absent="d", watch=False) as world:
        world.until_all_up()
        world.cut("a")
        world.run_for(s=10)
        world.start("d")
        world.run_for(s=15)
        joiner = id_of(world, "d")
        world.crash("b", silent=True)
        world.heal_all()

        def heard_of() -> bool:
            view = world["a"].view
            return view is not None and joiner in view.by_id

        world.run_until(heard_of, within_s=20)
        assert world["d"].running


@pytest.mark.parametrize("seed", range(2))
def test_two_joiners_that_nobody_left_introduced_meet(seed: int) -> None:
    """c was admitted by a, d by b, a moment before a and b were killed: nobody left knows both.
    Each became up alone, so that they are two parts of one cluster: one stops and joins anew."""
    with Story(seed, "a b c d", seeds="a b c", absent="c d", one_host=True, watch=False) as world:
        world.until_all_up()
        before = clusters(world)
        world.cut("a", from_="b d")
        world.cut("b", from_="c")
        world.cut("c", from_="d")
        world.start("c d")
        world.run_until(lambda: all(world[name].view is not None for name in "cd"), within_s=5)
        world.crash("a b")
        world.heal_all()
        world.run_for(s=15)
        (ended,) = (world[name] for name in "cd" if not world[name].running)
        assert ended.ended is not None
        assert ended.ended.exit_code == 12
        world.start(ended)
        world.until_all_up(within_s=10)
        assert clusters(world) == before


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_sleeper_that_all_whom_it_knows_left_behind_is_the_cluster(
    seed: int, silent: bool
) -> None:
    """Whom should it ask whether it still is a member? It lets in those that restarted."""
    with Story(seed, nodes=4) as world:
        world.ready()
        before = clusters(world)
        world.pause("d", s=15)
        world.run_for(s=5)
        world.crash("a b c", silent=silent)
        world.restart("a b c", after_s=0.5)
        world.run_for(s=10)
        # It hears nobody for 24 s before it gives up the first, and asks each once more.
        world.until_all_up(within_s=32)
        assert clusters(world) == before
