"""Singletons under a lease, in virtual time: what moves them, and that two never act.

Guards S2, S5, S7, S8, S10 and S11. What acted is what the subject itself wrote.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from node import ActorSystem
from node.settings import Settings
from node.testkit.stores import SimStore
from singleton.events import UniquenessNotProven
from tests.stories.subject import SUBJECT, Entry, Ledger, Story

TTL_S = 6.0
MARGIN_S = TTL_S / 6
RETRY_S = 2.0
CONTACT_S, DECIDED_S = 2.5, 9.5


class Leased(Story):
    """Every node hosts the ledger, under one lease."""

    def __init__(
        self, nodes: int | str = 3, strategy: str = "none", seed: int = 1, **kw: Any
    ) -> None:
        self.store = SimStore(self, seed)
        self.warned: list[UniquenessNotProven] = []
        self.tokens: list[int] = []
        settings = Settings(
            downing=strategy,
            lease_ttl_s=TTL_S,
            acquire_retry_interval_s=RETRY_S,
            hand_over_timeout_s=5.0,
        )
        super().__init__(seed, nodes, watch=False, settings=settings, **kw)

    def host_ledger(self, system: ActorSystem) -> None:
        """Start the type on the node whose step this is, and listen."""
        name = self.here().name
        lease = system.lease("ledger", store=self.store.door(name))
        self.refs[name] = system.cluster.singleton.start(
            type_name=SUBJECT, actor=TokenLedger, args=(self.log, self.taken, self.tokens),
            lease=lease,
        )  # fmt: skip
        system.events.subscribe(UniquenessNotProven, self.warned.append)

    @property
    def acting(self) -> list[str]:
        """Where steps were begun within the last second."""
        return sorted({step.node for step in self.log.steps if step.at_s > self.now - 1.0})


class TokenLedger(Ledger):
    """Notes its fencing token when it starts."""

    def __init__(self, log: Any, taken: list[int], tokens: list[int]) -> None:
        super().__init__(log, taken)
        self.tokens = tokens

    def pre_start(self) -> None:
        token = self.context.authority.token
        assert token is not None
        self.tokens.append(token)
        super().pre_start()


def grows(tokens: list[int]) -> bool:
    return tokens == sorted(set(tokens))


def test_hosted_and_handed_over_in_order() -> None:
    """S7: the lease is released when the instance has terminated, and the next one has it."""
    with Leased() as world:
        host = world.ready()
        begun = world.now
        world.leave(host)
        other = world.until_hosted(but=host)
        assert world.now - begun < 1.0, "nobody waits for the ttl"
        assert other != host
        world.run_for(s=3 * TTL_S)
        assert len(world.log.instances) == 2
        assert world.log.overlaps() == []
        assert grows(world.tokens)


def test_both_halves_of_a_partition_believe_to_be_host_and_one_acts() -> None:
    """S2: at level none; both sides reach the store."""
    with Leased(4) as world:
        host = world.ready()
        sides = ["a b", "c d"]
        theirs = sides[1] if host in sides[0] else sides[0]
        world.partition(" | ".join(sides))
        world.run_for(s=30.0)
        assert world.acting == [host]
        words = {
            row["explain"]
            for name in theirs.split()
            for row in world[name].system.cluster.singletons_state()
        }
        assert any("waiting for the lease: it is held by" in each for each in words), words
        assert not world.warned, "the lease proves what silence does not"
        world.heal_all()
        world.run_for(s=20.0)
        assert world.acting == [host]
        assert len(world.log.instances) == 1


@pytest.mark.parametrize("strategy", ["none", "keep-majority"])
def test_after_a_silent_crash_what_is_left_of_the_ttl_is_waited_for(strategy: str) -> None:
    """S11: and not less; with a strategy the decision comes first."""
    with Leased(3, strategy) as world:
        host = world.ready()
        world.run_for(s=4.0)
        world.crash(host, silent=True)
        crashed_at = world.now
        world.until_hosted(but=host, within_s=60.0)
        assert world.now - crashed_at > TTL_S / 2
        world.run_for(s=2.0)
        assert world.log.overlaps() == []
        assert grows(world.tokens)


def test_a_proven_crash_waits_for_the_ttl_too() -> None:
    """The kernel says that the process ended; the lease knows nothing of it."""
    with Leased() as world:
        host = world.ready()
        world.run_for(s=4.0)
        world.crash(host)
        crashed_at = world.now
        world.until_hosted(but=host)
        assert TTL_S * 2 / 3 - 0.1 <= world.now - crashed_at <= TTL_S + 0.3


def test_a_store_outage_stops_it_everywhere_and_it_returns_by_itself() -> None:
    """S8, S10: before its deadline; and not before the store is back."""
    with Leased() as world:
        host = world.ready()
        world.run_for(s=3.0)
        world.store.down = True
        down_at = world.now
        world.run_for(s=4 * TTL_S)
        last = max(step.at_s for step in world.log.steps if step.kind != "stop")
        assert last <= down_at + TTL_S - MARGIN_S
        assert world.hosts == []
        is_ready, why = world[host].system.ready()
        assert is_ready
        assert "a lease store does not answer" in why
        world.store.down = False
        back_at = world.now
        assert world.until_hosted() == host
        assert world.now - back_at <= RETRY_S + 0.5
        world.run_for(s=TTL_S)
        assert world[host].system.ready() == (True, "up")
        assert world.log.overlaps() == []
        assert grows(world.tokens)


def test_a_short_outage_costs_nothing() -> None:
    with Leased() as world:
        world.ready()
        world.run_for(s=3.0)
        world.store.down = True
        world.run_for(s=TTL_S / 3)
        world.store.down = False
        world.run_for(s=3 * TTL_S)
        assert len(world.log.instances) == 1


@pytest.mark.parametrize("strategy", ["none", "keep-majority"])
def test_a_host_that_slept_longer_than_its_ttl_begins_nothing(strategy: str) -> None:
    """It wakes into a world in which another one acts."""
    with Leased(3, strategy) as world:
        host = world.ready()
        world.run_for(s=3.0)
        (before,) = world.log.instances
        asleep_at = world.now
        world.pause(host, s=8 * TTL_S)
        world.run_for(s=10 * TTL_S)
        after = [s for s in world.log.steps if s.instance == before.number and s.at_s > asleep_at]
        assert {step.kind for step in after} <= {"stop"}
        assert len(world.log.instances) > 1
        assert world.log.overlaps() == []
        assert grows(world.tokens)


def test_the_lease_taken_away_by_an_operator_moves_or_restarts_it() -> None:
    """L8: somebody writes a free record; the instance stops at its next renewal."""
    with Leased() as world:
        world.ready()
        world.run_for(s=1.0)

        async def take() -> None:
            record = await world.store.store.read("ledger")
            assert record is not None
            free = dataclasses.replace(record, holder="", write_id="operator")
            await world.store.store.write(free, if_version=record.version)

        world.run(take())
        world.run_for(s=TTL_S)
        assert len(world.log.instances) == 2
        assert world.log.overlaps() == []
        assert grows(world.tokens)


def test_messages_wait_while_the_lease_is_waited_for() -> None:
    """S12: and are answered by the next instance."""
    with Leased() as world:
        host = world.ready()
        world.run_for(s=2.0)
        world.crash(host, silent=True)
        other = next(node.name for node in world.running)
        assert world.run(world.refs[other].ask(Entry(1), timeout_s=60.0), node=other) == 1


def test_a_world_is_the_same_each_time() -> None:
    def trace() -> str:
        with Leased(seed=5) as world:
            host = world.ready()
            world.crash(host)
            world.until_hosted(but=host)
            return world.trace_hash()

    assert trace() == trace()


def test_a_host_that_is_cut_off_does_not_keep_the_lease_by_renewing_it() -> None:
    """It reaches the store, and may not act for want of contact: the others get the lease when its
    ttl is over, counted from when contact ended, not when its process does."""
    with Leased(5, "keep-majority") as world:
        host = world.ready()
        world.run_for(s=3.0)
        world.cut(host)
        cut_at = world.now
        world.run_until(
            lambda: any(i.node != host for i in world.log.running(SUBJECT)), within_s=30.0
        )
        assert world.now - cut_at <= max(CONTACT_S + TTL_S, DECIDED_S) + 0.5
        assert world[host].running, "its own verdict comes later"
        world.run_for(s=60.0)
        assert world.log.overlaps() == []
        assert grows(world.tokens)
