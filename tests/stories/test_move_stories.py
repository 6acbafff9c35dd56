"""A singleton moved by order, at each level, in virtual time (S7, S12, I-28, I-53)."""

from __future__ import annotations

import asyncio

import pytest

from node import ActorSystem
from node.settings import Settings
from node.testkit.stores import SimStore
from tests.stories.subject import SUBJECT, Entry, Ledger, Story

LEVELS = ("none", "downing", "downing+lease")


class Moving(Story):
    """Five nodes at a level; node e hosts nothing where `without`."""

    def __init__(self, level: str = "none", *, without: str = "") -> None:
        self.store = SimStore(self, 1)
        self.level = level
        self.without = without
        settings = Settings(downing="none" if level == "none" else "keep-majority")
        super().__init__(11, watch=False, settings=settings)

    def host_ledger(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is."""
        name, singleton = self.here().name, system.cluster.singleton
        if name == self.without:
            self.refs[name] = singleton.start_proxy(type_name=SUBJECT)
            return
        lease = None
        if self.level == "downing+lease":
            lease = system.lease("ledger", store=self.store.door(name))
        self.refs[name] = singleton.start(
            type_name=SUBJECT, actor=Ledger, args=(self.log, self.taken), lease=lease
        )

    def move(self, by: str, to: str | None = None, *, within_s: float = 30.0) -> str:
        """Order it from one node, and let it be done; returns where it is."""
        address = None if to is None else self[to].address
        singleton = self[by].system.cluster.singleton
        order = singleton.move(type_name=SUBJECT, to=address, timeout_s=within_s)
        there = self.run(order, node=by, within_s=within_s + 5.0)
        return next(node.name for node in self.running if node.address == there)


@pytest.mark.parametrize("level", LEVELS)
def test_it_goes_where_it_is_sent_from_anywhere_and_stays_there(level: str) -> None:
    with Moving(level) as world:
        host = world.ready()
        world.run_for(s=2.0)
        first, *_, youngest = world.younger(host)
        for by, to in ((host, youngest), (first, host), (youngest, first), (first, youngest)):
            begun = world.now
            assert world.move(by, to) == to
            world.run_until(lambda to=to: world.hosts == [to], within_s=1.0)  # type: ignore[misc]
            assert world.now - begun < 0.2, "nobody waits for anything but messages"
            world.run_for(s=6.0)
            assert world.hosts == [to]
        assert len(world.log.instances) == 5
        assert world.log.overlaps() == []


def test_without_a_name_it_goes_to_the_oldest_other_one() -> None:
    with Moving() as world:
        host = world.ready()
        first = world.younger(host)[0]
        assert world.move(first) == first
        assert world.move(first) == host
        assert world.move(host, host) == host, "it is there already"
        assert len(world.log.instances) == 3


def test_who_may_not_host_is_refused_in_words() -> None:
    with Moving(without="e") as world:
        host = world.ready()
        world.run_for(s=1.0)
        able = ", ".join(world[name].address for name in world.younger(host) if name != "e")
        with pytest.raises(LookupError, match=f"is not moved; to .*: it can move to {able}"):
            world.move(host, "e")
        singleton = world[host].system.cluster.singleton
        with pytest.raises(LookupError, match="knows no singleton 'other'"):
            world.run(singleton.move(type_name="other"), node=host)
        to = world.younger(host)[1]
        assert world.move("e", to) == to, "who has only a proxy can give the order too"


@pytest.mark.parametrize("level", LEVELS)
def test_no_message_is_lost_or_overtaken_by_moves(level: str) -> None:
    """S12: the same sender, in order, over ten moves."""
    with Moving(level) as world:
        host = world.ready()
        world.run_for(s=2.0)
        names = [host, *world.younger(host)]
        sender = names[3]
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < 2000:
                world.refs[sender].tell(Entry(sent))
                sent += 1
                await asyncio.sleep(0.002)

        loop = world[sender].loop
        sending = world[sender].call(loop.create_task, send())
        for turn in range(10):
            world.move(sender, names[(turn + 1) % 5])
            world.run_for(s=0.2)
        world.run_until(sending.done, within_s=60.0)
        world.run_for(s=3.0)
        assert world.taken == list(range(2000))
        assert world.log.overlaps() == []
        assert world.dead_letters == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_successor_that_dies_on_the_way_leaves_one_all_the_same(level: str) -> None:
    with Moving(level) as world:
        host = world.ready()
        world.run_for(s=2.0)
        to = world.younger(host)[-1]
        world.crash(to, silent=True)
        with pytest.raises(TimeoutError, match=f"is not at {world[to].address} after 1 s"):
            world.move(host, to, within_s=1.0)
        assert world.until_hosted(but=to, within_s=60.0)
        world.run_for(s=20.0)
        assert len(world.hosts) == 1
        assert world.log.overlaps() == []


def test_a_long_stop_is_waited_for() -> None:
    """Longer than what was promised to the successor lasts: the host says it again at its end."""
    with Moving() as world:
        host = world.ready()
        world.run_for(s=2.0)
        to = world.younger(host)[-1]

        async def work() -> None:
            await asyncio.sleep(4.5)

        (instance,) = world.log.running(SUBJECT)
        cell = world[host].system.runtime.cell_at(f"/singleton/{SUBJECT}", 0)
        assert cell is not None
        actor = cell.actor
        assert isinstance(actor, Ledger)
        world[host].call(setattr, actor, "post_stop", lambda reason: _then(work(), actor))
        assert world.move(host, to) == to
        assert instance is not world.log.running(SUBJECT)[0]
        assert world.log.overlaps() == []


async def _then(work: object, actor: Ledger) -> None:
    assert asyncio.iscoroutine(work)
    await work
    actor.instance.end()
