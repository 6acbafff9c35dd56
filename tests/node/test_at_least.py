"""`authority.prove` and `authority.at_least`: nothing is begun that cannot end in time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from lease import Lease, LeaseSettings, MemoryStore
from node import (
    Actor,
    ActorFailedError,
    ActorRef,
    ActorSystem,
    Ask,
    AuthorityTooShortError,
    message,
    on,
)
from node.authority import ALWAYS, Authority, Gate, LeasedAuthority
from node.settings import Settings
from node.testkit import World

CONTACT_S = 2.5


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def gated() -> tuple[Clock, Gate, Authority]:
    clock = Clock()
    gate = Gate(clock, lambda resume: None, lambda name: None)
    gate.longest_s = CONTACT_S
    gate.extend(clock.now + 1.0)
    return clock, gate, Authority(gate)


async def soon(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not fact():
            await asyncio.sleep(0)


async def test_without_a_gate_it_is_proven_and_never_too_short() -> None:
    await ALWAYS.prove()
    async with ALWAYS.at_least(1e6) as authority:
        assert authority.held


async def test_a_proof_is_one_that_began_after_the_question() -> None:
    clock, gate, authority = gated()
    proof = asyncio.create_task(authority.prove())
    await asyncio.sleep(0)
    gate.extend(clock.now + CONTACT_S - 0.001)  # of a ping sent just before
    await asyncio.sleep(0)
    assert not proof.done()
    gate.extend(clock.now + CONTACT_S)
    await soon(proof.done)
    await proof


async def test_what_is_left_is_enough_without_a_proof() -> None:
    _, _, authority = gated()
    async with authority.at_least(0.9):
        pass


async def test_too_little_is_proven_anew_first() -> None:
    clock, gate, authority = gated()
    begun = []

    async def work() -> None:
        async with authority.at_least(2.0):
            begun.append(clock.now)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert not begun
    clock.now += 0.1
    gate.extend(clock.now + CONTACT_S)
    await task
    assert begun == [100.1]


async def test_more_than_there_ever_is_is_refused_at_once() -> None:
    _, _, authority = gated()
    with pytest.raises(AuthorityTooShortError, match=r"3 s were asked for.*2\.5 s at most"):
        async with authority.at_least(3.0):
            pytest.fail("it was begun")


async def test_a_proof_that_came_late_begins_nothing() -> None:
    clock, gate, authority = gated()
    task = asyncio.create_task(authority.at_least(2.4).__aenter__())
    await asyncio.sleep(0)
    gate.extend(clock.now + CONTACT_S)
    clock.now += 0.5
    with pytest.raises(AuthorityTooShortError, match="the proof took too long"):
        await task


async def test_one_that_waits_and_is_cancelled_leaves_nothing_behind() -> None:
    _, gate, authority = gated()
    task = asyncio.create_task(authority.prove())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate._waiting == []


async def test_a_lease_is_proven_by_its_store() -> None:
    """L3: and what nobody can prove is not begun."""
    store = MemoryStore()
    lease = Lease(store, LeaseSettings(name="x", owner="me", ttl_s=15.0))
    assert await lease.acquire()
    gate = Gate(lease._clock, lambda resume: None, lambda name: None)
    gate.extend(lease.valid_until)
    authority = LeasedAuthority(
        gate, lease, Gate(lease._clock, lambda resume: None, lambda name: None)
    )
    assert authority.longest_s == pytest.approx(12.5)
    before = lease.valid_until
    await authority.prove()
    assert lease.valid_until > before
    store.delete("x")
    with pytest.raises(AuthorityTooShortError, match="can not be proven now"):
        await authority.prove()
    assert math.isinf(authority.valid_until)
    await lease.close()


@message("at-least.charge")
class Charge(Ask[float]):
    seconds: float


class Till(Actor):
    @on(Charge)
    async def charge(self, msg: Charge) -> float:
        async with self.context.authority.at_least(msg.seconds) as authority:
            return authority.remaining_s()


def test_in_a_cluster() -> None:
    """With a strategy: a bill that fits is paid, one that cannot fit is an error of the ask."""
    refs: dict[str, ActorRef[Charge]] = {}

    def setup(system: ActorSystem) -> None:
        address = system.cluster.self_id.address
        refs[address] = system.cluster.singleton.start(type_name="till", actor=Till)

    with World(seed=3, nodes=3, setup=setup, settings=Settings(downing="keep-majority")) as world:
        world.until_all_up()
        ref = refs[world[0].address]
        assert 2.3 <= world.run(ref.ask(Charge(2.3))) <= CONTACT_S
        with pytest.raises(ActorFailedError, match=r"2\.5 s at most"):
            world.run(ref.ask(Charge(30.0)))
