"""What an operator orders and sees: `cluster.down`, `/cluster`, `/singletons`, a refused join."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gossip.membership import MembershipView, Status
from node.settings import Settings
from node.system import ActorSystem
from node.testkit import StepLog, Subject, World
from node.testkit.stage import Where

LEVELS = ("keep-majority", "none")


def converged(world: World) -> None:
    """All up, and told of it."""
    world.until_all_up()
    world.run_for(s=3)


def order(world: World, by: str, target: str, *, timeout_s: float = 30.0) -> asyncio.Task[None]:
    """`by` orders `target` down; not waited for."""
    node = world[by]
    cluster = world.system(by).cluster
    address = world[target].address
    work = cluster.down(address, timeout_s=timeout_s)
    return node.call(lambda: node.loop.create_task(work, name="down"))


@pytest.mark.parametrize("downing", LEVELS)
@pytest.mark.parametrize("by", ["a", "b"])
@pytest.mark.parametrize("target", ["c", "a"])
def test_a_reachable_member_is_told_and_ends_with_11(downing: str, by: str, target: str) -> None:
    """By the leader, by another one, at both levels; also of the leader, and of itself."""
    with World(seed=3, nodes="a b c d", settings=Settings(downing=downing)) as world:
        converged(world)
        begun_s = world.now
        ordered = order(world, by, target)
        world.run_until(lambda: not world[target].running and ordered.done())
        assert ordered.exception() is None
        ended = world[target].ended
        assert ended is not None
        assert ended.exit_code == 11
        assert "an operator ordered it" in ended.reason
        if (downing, by) == ("none", target):
            # It ends by itself, and so tells nobody: without a strategy another order must follow.
            other = order(world, "b", target)
            world.run_until(other.done)
        world.until_all_up(within_s=15)
        assert len(world.running) == 3
        assert world.now - begun_s < 15, "nothing had to be waited for"


@pytest.mark.parametrize("by", ["b", "c"])
def test_an_unreachable_member_is_downed_by_promises(by: str) -> None:
    """Before the strategy would have decided; the member itself ends when it learns it."""
    settings = Settings(downing="keep-majority", down_after_s=60.0)
    with World(seed=5, nodes="a b c d", settings=settings) as world:
        converged(world)
        world.partition("a | b c d")
        world.run_until(lambda: all(bool(v and v.unreachable) for v in others(world)))
        ordered = order(world, by, "a")
        world.run_until(ordered.done, within_s=10)
        assert ordered.exception() is None
        world.run_until(lambda: all(v is not None and len(v.members) == 3 for v in others(world)))
        world.heal_all()
        world.run_until(lambda: world["a"].ended is not None, within_s=60)
        ended = world["a"].ended
        assert ended is not None
        assert ended.exit_code == 11


def others(world: World) -> list[MembershipView | None]:
    """The views of all but a."""
    return [world[name].view for name in "bcd"]


def test_at_level_none_an_unreachable_member_is_downed_at_once() -> None:
    """Nobody else would ever settle it."""
    with World(seed=5, nodes="a b c", settings=Settings()) as world:
        converged(world)
        world.partition("c | a b")
        world.run_until(lambda: bool(world["b"].view and world["b"].view.unreachable))
        shown = world.system("b").cluster.state()["downing"]
        assert (shown["strategy"], shown["contact"]) == ("none", None)
        assert "`python -m node down ADDRESS`" in shown["explain"]
        ordered = order(world, "b", "c")
        world.run_until(ordered.done, within_s=5)
        assert ordered.exception() is None
        view = world["b"].view
        assert view is not None
        member = next((m for m in view.members if m.id.address == world["c"].address), None)
        assert member is None or member.status is Status.DOWN


def test_who_is_no_member_cannot_be_downed() -> None:
    """The refusal names those that can."""
    with World(seed=1, nodes="a b", settings=Settings(downing="down-all")) as world:
        converged(world)
        node, cluster = world["a"], world.system("a").cluster
        work = cluster.down("10.9.9.9:1")
        ordered = node.call(lambda: node.loop.create_task(work, name="down"))
        world.run_until(ordered.done)
        with pytest.raises(LookupError, match=rf"those are: .*{world['b'].address}"):
            ordered.result()


def test_an_order_that_cannot_be_carried_out_says_what_it_waits_for() -> None:
    """A minority downs nobody, whoever orders it."""
    settings = Settings(downing="keep-majority", down_after_s=60.0)
    with World(seed=1, nodes="a b c", settings=settings) as world:
        converged(world)
        world.partition("a | b c")
        world.run_until(lambda: len(world["a"].view.unreachable) == 2 if world["a"].view else False)
        ordered = order(world, "a", "b", timeout_s=5.0)
        world.run_until(ordered.done, within_s=10)
        with pytest.raises(TimeoutError, match=r"is not down after 5 s: unreachable: "):
            ordered.result()
        assert world["b"].ended is None


def test_an_instance_without_contact_is_shown_as_suspended() -> None:
    """With the reason in words; contact back, it runs."""
    log: StepLog | None = None

    def setup(system: ActorSystem) -> None:
        system.cluster.singleton.start(type_name="subject", actor=Subject, args=(log,))

    settings = Settings(downing="keep-majority")
    with World(seed=1, nodes="a b c", settings=settings, setup=setup) as world:
        log = StepLog(world)
        converged(world)
        system = world.system("a")
        (row,) = system.cluster.singletons_state()
        contact = system.cluster.state()["downing"]["contact"]
        assert (row["state"], contact["asked"], contact["held"]) == ("running", True, True)
        assert 0 < contact["for_s"] <= 2.5
        world.partition("a | b c")
        world.run_for(s=3)
        (row,) = system.cluster.singletons_state()
        assert row["state"] == "suspended"
        assert row["instance_id"] is not None
        assert "does not act: too few members grant it" in row["explain"]
        ready, why = system.ready()
        assert ready, "plain actors work, and a restart would not help"
        assert "up, but what is unique here does not act: too few" in why
        assert system.counters()["downing: contact-lost"] == 1
        contact = system.cluster.state()["downing"]["contact"]
        assert (contact["held"], contact["for_s"]) == (False, 0.0)
        world.heal_all()
        world.run_for(s=1)
        (row,) = system.cluster.singletons_state()
        assert row["state"] == "running"


def test_who_is_downed_is_not_ready_and_says_why() -> None:
    """From the moment at which it is told until it has ended, while its actors stop."""
    seen: set[tuple[bool, str]] = set()
    with World(seed=3, nodes="a b c", settings=Settings(downing="keep-majority")) as world:
        converged(world)
        system = world.system("c")
        assert system.ready() == (True, "up")
        address = world["a"].address
        order(world, "a", "c")

        def ended() -> bool:
            seen.add(system.ready())
            return not world["c"].running

        world.run_until(ended)
        downed = f"ending: downed: told by {address}: an operator ordered it"
        assert (False, downed) in seen
        assert seen <= {(True, "up"), (False, downed)}


def test_lease_majority_without_a_store_is_a_warning(tmp_path: Path) -> None:
    """It would never decide; with a store there is none."""
    for lease, count in ((None, 1), (f"sqlite://{tmp_path}/leases.db", 0)):
        settings = Settings(downing="lease-majority", lease=lease)
        with World(seed=1, nodes="a b c", settings=settings) as world:
            converged(world)
            warnings = world.system("a").cluster.state()["downing"]["warnings"]
            assert len([text for text in warnings if "no lease store" in text]) == count


class Mixed(World):
    """c is started with other settings."""

    def __init__(self, settings: Settings, other: dict[str, Any]) -> None:
        super().__init__(seed=1, nodes="a b c", settings=settings)
        self.other = other

    def settings_of(self, where: Where) -> Settings:
        """Those of all; of c with its own values."""
        settings = super().settings_of(where)
        return dataclasses.replace(settings, **self.other) if settings.name == "c" else settings


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"downing": "keep-oldest"}, ("downing", "keep-majority", "keep-oldest")),
        ({"downing": "keep-majority:role=core"}, ("downing", "keep-majority:role=core")),
        ({"downing": "none"}, ("downing", "keep-majority", "none")),
        ({"down_after_s": 7.0}, ("down_after_s", "5", "7")),
        ({"contact_s": 2.0}, ("contact_s", "2.5", "2")),
        ({"downing": "lease-majority", "lease": "sqlite:///a"}, ("lease=sqlite:///a", "lease=-")),
    ],
)
def test_other_settings_of_downing_are_refused_at_the_join(
    other: dict[str, Any], words: tuple[str, ...]
) -> None:
    """I-104: two strategies in one cluster would let two sides live; exit code 3, both values."""
    with Mixed(Settings(downing="keep-majority"), other) as world:
        world.run_until(lambda: world["c"].ended is not None, within_s=30)
        ended = world["c"].ended
        assert ended is not None
        assert ended.exit_code == 3
        for word in words:
            assert word in ended.reason
