"""A singleton at level none, in virtual time (S1, S4, S5, S12; I-26, I-36, I-37, I-48, I-53)."""

from __future__ import annotations

import asyncio

import pytest

from gossip.membership import Cause
from node.testkit import acting_max
from singleton.events import UniquenessNotProven
from tests.stories.subject import Entry, Grind, Story

HAND_OVER_TIMEOUT_S = 10.0


def test_five_join_and_one_of_them_hosts() -> None:
    with Story() as world:
        host = world.ready()
        world.run_for(s=5)
        assert world.hosts == [host]
        assert world.now < 10
        assert acting_max(world.log.steps) == 1


def test_a_killed_host_on_our_own_machine_is_replaced_at_once() -> None:
    """The kernel proves the crash."""
    with Story(one_host=True) as world:
        host = world.ready()
        killed_at = world.now
        world.crash(host)
        world.until_hosted(within_s=1, but=host)
        assert world.now - killed_at < 0.1
        assert world.log.overlaps() == []


def test_a_killed_host_elsewhere_is_waited_for_and_then_replaced_with_a_warning() -> None:
    """S5, I-37: nobody proves it, so hosting begins only after the hand-over timeout."""
    with Story() as world:
        host = world.ready()
        warnings: list[UniquenessNotProven] = []
        for node in world.running:
            node.system.events.subscribe(UniquenessNotProven, warnings.append)
        victim = world[host].address
        killed_at = world.now
        world.crash(host)
        world.until_hosted(within_s=60, but=host)
        assert world.now - killed_at >= HAND_OVER_TIMEOUT_S
        assert world.now - killed_at < HAND_OVER_TIMEOUT_S + 2
        assert [[peer.address for peer in w.silent_peers] for w in warnings] == [[victim]]
        # It is shown for as long as nothing more is known of it.
        (row,) = world[world.hosts[0]].system.cluster.singletons_state()
        assert row["unproven"] == [victim]
        assert f"may run at {victim} too" in row["explain"]


def test_the_host_sleeps_for_three_seconds() -> None:
    """Too short for anybody to take over; it goes on hosting."""
    with Story() as world:
        host = world.ready()
        world.pause(host, s=3)
        world.run_for(s=20)
        assert world.hosts == [host]
        assert len(world.log.instances) == 1
        world.until_all_up(within_s=20)


def test_a_cut_ends_in_two_hosts_and_the_younger_stands_down_after_the_heal() -> None:
    """S4: shown, not hidden; and within 3 s of the heal."""
    with Story() as world:
        host = world.ready()
        others = world.younger(host)
        world.cut(host)
        world.run_until(lambda: len(world.hosts) == 2, within_s=60)
        world.run_for(s=5)
        world.heal_all()
        healed_at = world.now
        world.until_hosted(within_s=5)
        assert world.now - healed_at <= 3.0
        assert world.hosts == [host]
        assert others
        world.until_all_up(within_s=10)


def test_work_under_way_does_not_make_two_act_for_longer() -> None:
    """S4: who learns that an older one hosts ends what it is at, and gives back what waits."""
    with Story() as world:
        host = world.ready()
        world.cut(host)
        world.run_until(lambda: len(world.hosts) == 2, within_s=60)
        younger = next(name for name in world.hosts if name != host)
        for number in range(3):
            world[younger].call(world.refs[younger].tell, Grind(300 + number))
        world[younger].call(world.refs[younger].tell, Entry(77))
        world.run_for(s=2)
        world.heal_all()
        healed_at = world.now
        world.until_hosted(within_s=5)
        assert world.now - healed_at <= 3.0
        assert world.hosts == [host]
        world.run_until(lambda: 77 in world.taken, within_s=100)


def test_two_hosts_that_only_others_connect_go_on_until_they_can_talk() -> None:
    """What level none does not promise: all hold both for reachable, for some can reach each; yet
    the two cannot talk, so nobody stands down. Within 3 s after they can, the younger does."""
    with Story() as world:
        host = world.ready()
        world.cut(host)
        world.run_until(lambda: len(world.hosts) == 2, within_s=60)
        (other,) = (name for name in world.hosts if name != host)
        for node in world:
            if node.name not in (host, other):
                world.heal(host, to=node.name)
                world.heal(node.name, to=host)
        world.run_until(
            lambda: not any(view.unreachable for view in world.views().values() if view),
            within_s=60,
        )
        world.run_for(s=10)
        assert sorted(world.hosts) == sorted([host, other])
        world.heal_all()
        world.until_hosted(within_s=3)
        assert world.hosts == [host]


def test_messages_wait_while_there_is_no_host_and_keep_their_order() -> None:
    """S12, I-53, I-56: the hold lasts as long as the wait for the silent host."""
    with Story() as world:
        host = world.ready()
        other = world.younger(host)[1]
        world.crash(host)
        world.run_for(s=3)
        assert world.hosts == []
        ref = world.refs[other]

        async def send() -> list[int]:
            return await asyncio.gather(*(ref.ask(Entry(n), timeout_s=30) for n in range(200)))

        assert world.run(send(), node=other) == list(range(1, 201))


def test_several_oldest_leave_at_once() -> None:
    """BC-001, review F25: the next instance starts only after the old one has stopped."""
    with Story(nodes=5) as world:
        host = world.ready()
        leavers = [host, *world.younger(host)[:2]]
        for name in leavers:
            world[name].call(
                lambda name=name: world[name].loop.create_task(world[name].system.leave())
            )
        world.run_until(lambda: all(not world[name].running for name in leavers), within_s=30)
        survivor = world.until_hosted(within_s=5)
        assert survivor not in leavers
        assert world.log.overlaps() == []
        world.until_all_up(within_s=10)


def test_a_graceful_leave_moves_it_in_milliseconds() -> None:
    with Story() as world:
        host = world.ready()
        ended = world.leave(host)
        assert ended.exit_code == 0
        successor = world.until_hosted(within_s=1)
        stops = [step.at_s for step in world.log.steps if step.kind == "stop"]
        starts = [step.at_s for step in world.log.steps if step.kind == "start"]
        assert 0 < starts[-1] - stops[0] < 0.05
        assert successor == world.younger(successor)[0] or successor != host
        assert world.log.overlaps() == []


def test_asks_on_their_way_over_a_planned_move_are_answered_in_order() -> None:
    """One sender, one order, over the former host and the new one."""
    with Story() as world:
        host = world.ready()
        other = world.younger(host)[2]
        ref = world.refs[other]

        async def send() -> list[int]:
            tasks = []
            for number in range(60):
                tasks.append(asyncio.ensure_future(ref.ask(Entry(number))))
                await asyncio.sleep(0.002)
            return await asyncio.gather(*tasks)

        world.after(0.05, lambda: world[host].call(_leave_later, world, host))
        answers = world.run(send(), node=other)
        # Two instances counted, each from one upwards and without a gap.
        moved = next(i for i in range(1, 60) if answers[i] <= answers[i - 1])
        assert answers == [*range(1, moved + 1), *range(1, 60 - moved + 1)]
        assert world.log.overlaps() == []


def _leave_later(world: Story, name: str) -> None:
    world[name].loop.create_task(world[name].system.leave())


def test_a_restart_of_the_host_before_anybody_noticed() -> None:
    """Its address comes back under a new uid while the old record is still up."""
    with Story(one_host=True) as world:
        host = world.ready()
        world.restart(host)
        world.until_hosted(within_s=2)
        world.until_all_up(within_s=10)
        assert world.log.overlaps() == []


def test_a_silent_restart_elsewhere_supersedes_without_proof() -> None:
    """The old process may still run (another machine has the address now): whoever takes over
    waits for its answer until the timeout, and says so."""
    with Story() as world:
        host = world.ready()
        old = world[host].view
        assert old is not None
        world.crash(host, silent=True)
        began_at = world.now
        world.restart(host)
        world.until_all_up(within_s=10)
        world.until_hosted(within_s=30)
        assert world.now - began_at >= HAND_OVER_TIMEOUT_S
        view = world[host].view
        assert view is not None
        assert view.gone[old.self_id] is Cause.SUPERSEDED


@pytest.mark.parametrize("seed", range(5))
def test_killing_every_host_in_turn(seed: int) -> None:
    with Story(seed, nodes=5, one_host=True) as world:
        world.ready()
        for _ in range(4):
            world.crash(world.until_hosted(within_s=15))
            world.run_for(s=1)
        world.until_hosted(within_s=15)
        assert world.log.overlaps() == []


@pytest.mark.parametrize("seed", range(4))
def test_two_hosts_are_one_soon_after_a_heal_also_when_it_is_not_trusted_yet(seed: int) -> None:
    """S4: a member that comes and goes is held back for up to 20 s (docs/gossip.md); that it hosts
    it says itself, and is heard."""
    with Story(seed, 3, watch=False) as world:
        host = world.ready()
        world.run_for(s=3.0)
        for _ in range(4):
            world.cut(host)
            world.run_for(s=18.0)
            assert len(world.hosts) == 2, "level none: both halves host"
            world.heal_all()
            world.run_until(lambda: len(world.hosts) == 1, within_s=3.0)
            world.run_for(s=25.0)
