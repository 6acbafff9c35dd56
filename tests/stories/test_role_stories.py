"""Members that start one type with different roles: by mistake, or in a rolling change.

What a member names as role decides neither whether another one may host nor whether it is asked.
Guards S3, S13, I-35 and I-43.
"""

from __future__ import annotations

import dataclasses

import pytest

from node import ActorRef, ActorSystem
from node.settings import Settings
from node.testkit import StepLog, World, acting_max
from node.testkit.stage import Where
from tests.stories.subject import SUBJECT, Entry, Ledger

LEVELS = ["none", "keep-majority"]


class Mixed(World):
    """`roles`: which node has which role. Each starts the type with the role in `asks`, if it is
    there; those of `proxies` only send, under that role."""

    def __init__(
        self,
        nodes: str,
        downing: str = "keep-majority",
        *,
        roles: dict[str, str] | None = None,
        asks: dict[str, str] | None = None,
        proxies: dict[str, str] | None = None,
        absent: str = "",
    ) -> None:
        self.roles, self.asks, self.proxies = roles or {}, asks or {}, proxies or {}
        self.refs: dict[str, ActorRef[Entry]] = {}
        self.taken: list[int] = []
        super().__init__(
            7, nodes, setup=self.begin, settings=Settings(downing=downing), one_host=True,
            absent=absent,
        )  # fmt: skip
        self.log = StepLog(self)

    def settings_of(self, where: Where) -> Settings:
        role = self.roles.get(self[where].name)
        return dataclasses.replace(super().settings_of(where), roles=(role,) if role else ())

    def begin(self, system: ActorSystem) -> None:
        """Start the type, or a proxy, on the node whose step this is."""
        name, singleton = self.here().name, system.cluster.singleton
        if name in self.proxies:
            ref = singleton.start_proxy(type_name=SUBJECT, role=self.proxies[name])
        else:
            ref = singleton.start(
                type_name=SUBJECT,
                actor=Ledger,
                args=(self.log, self.taken),
                role=self.asks.get(name),
            )
        self.refs[name] = ref

    @property
    def hosts(self) -> list[str]:
        """Nodes with a living instance."""
        return [instance.node for instance in self.log.running(SUBJECT)]

    def until_hosted(self, *, but: str = "", within_s: float = 20.0) -> str:
        """Until one hosts that is none of these."""
        self.run_until(
            lambda: any(host not in but.split() for host in self.hosts), within_s=within_s
        )
        return next(host for host in self.hosts if host not in but.split())

    def explain(self, name: str) -> str:
        """Why it runs there, or not."""
        (row,) = self[name].system.cluster.singletons_state()
        words: str = row["explain"]
        return words


@pytest.mark.parametrize("downing", LEVELS)
@pytest.mark.parametrize("odd", ["d", "a"])
def test_one_that_was_started_with_a_role_does_not_host_beside_the_others(
    downing: str, odd: str
) -> None:
    """It has the role, and the host has not; also where it is the oldest member, but late."""
    with Mixed("a b c d", downing, roles={odd: "x"}, asks={odd: "x"}, absent=odd) as world:
        world.run_until(lambda: len(world.hosts) == 1, within_s=20)
        world.start(odd)
        world.until_all_up()
        world.run_for(s=30)
        assert acting_max(world.log.steps) == 1
        assert odd not in world.hosts
        assert "role" in world.explain(odd)
        for name in world.refs:
            assert world.run(world.refs[name].ask(Entry()), node=name) > 0
        for name in sorted({*"abcd"} - {odd}):
            world.leave(name)
        assert world.until_hosted() == odd, "it may where nobody else is left"
        assert acting_max(world.log.steps) == 1


@pytest.mark.parametrize("downing", LEVELS)
def test_a_rolling_change_of_the_role_never_has_two(downing: str) -> None:
    """Members with it come, one by one, and those without it go; asks are answered all the time."""
    new = dict.fromkeys("xyz", "role")
    with Mixed("a b c x y z", downing, roles=new, asks=new, absent="x y z") as world:
        world.run_until(lambda: len(world.hosts) == 1, within_s=20)
        for old, young in zip("abc", "xyz", strict=True):
            world.start(young)
            world.until_all_up()
            world.run_for(s=5)
            world.leave(old)
            world.run_for(s=5)
            assert world.run(world.refs[young].ask(Entry()), node=young) > 0
        assert set(world.hosts) <= {*"xyz"}
        assert acting_max(world.log.steps) == 1


@pytest.mark.parametrize("downing", LEVELS)
@pytest.mark.parametrize("ends", ["crash", "leave"])
@pytest.mark.parametrize("by", ["proxy", "start"])
def test_whoever_names_a_role_that_nobody_has_holds_up_nobody(
    downing: str, ends: str, by: str
) -> None:
    """Nothing can be hosted under it; and its proxy finds the host all the same."""
    wrong = {"d": "nobody's"}
    asks, proxies = ({}, wrong) if by == "proxy" else (wrong, {})
    with Mixed("a b c d", downing, asks=asks, proxies=proxies) as world:
        world.until_all_up()
        host = world.until_hosted()
        assert world.run(world.refs["d"].ask(Entry()), node="d") > 0
        if ends == "crash":
            world.crash(host)
        else:
            world.leave(host)
        next_host = world.until_hosted(but=host, within_s=1.0)
        assert next_host != "d"
        assert world.run(world.refs["d"].ask(Entry()), node="d") > 0
        assert acting_max(world.log.steps) == 1


@pytest.mark.parametrize("seed", range(6))
def test_two_that_start_it_at_once_with_different_roles_ask_each_other(seed: int) -> None:
    """Neither record is known yet to the other."""
    roles = {"a": "x", "b": "y"}
    with Mixed("a b c", roles=roles, asks=roles, proxies={"c": ""}) as world:
        world.run_for(s=0.001 * seed)
        world.until_all_up()
        world.until_hosted()
        world.run_for(s=30)
        assert acting_max(world.log.steps) == 1
