"""What goes from one host to another gets lost, the other way passes: shown, nobody goes, it heals.

With root each member is on a host of its own (a network namespace) and packets are lost. Without,
they only reach each other through proxies that hold one way back, which is the milder cut; the name
of the test says which it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from bench.gossip.namespaces import Hosts, can_make_networks
from bench.gossip.processes_cluster import Started
from bench.partition.proxies import OneWayProxies
from bench.processes import Members, spawn
from tests.conftest import loop_name

NAMES = ("a", "b", "c")
A, B = 0, 1
PORT = 25520
TIMEOUT_S = 60.0


class Network(Protocol):
    """What can lose what goes one way."""

    def cut(self, source: int, target: int) -> None:
        """From now on."""

    def heal(self, source: int, target: int) -> None:
        """Until now."""


class Three:
    """The members and their network."""

    def __init__(self, directory: Path, members: Members, network: Network) -> None:
        self.network = network
        self.started: list[Started] = []
        self._directory = directory
        self._wait = members.wait

    def start(self, command: list[str]) -> None:
        """The next member."""
        name = NAMES[len(self.started)]
        log = self._directory / f"{name}.log"
        process = spawn(command, log, MEMBER=name, DIRECTORY=str(self._directory))
        self.started.append(Started(name, process, log))

    def states(self) -> list[dict[str, Any]]:
        """What each shows as `/cluster`."""
        files = [self._directory / f"{name}.state" for name in NAMES]
        return [json.loads(file.read_text()) for file in files if file.exists()]

    def wait(self, what: str, fact: Any) -> None:
        """Raises `NotSeenError` with what they show."""

        def seen() -> bool:
            ended = [one.log.read_text() for one in self.started if not one.running]
            assert not ended, ended
            return bool(fact())

        try:
            self._wait(what, seen, TIMEOUT_S)
        except AssertionError as error:
            error.add_note(json.dumps(self.states(), indent=1))
            raise

    def are_whole(self) -> bool:
        """All see three up, reachable and unsuspected, over links of which none fails."""
        states = self.states()
        return len(states) == len(NAMES) and all(
            len(state["members"]) == len(NAMES)
            and all(
                one["status"] == "up" and one["reachable"] and not one["suspect"]
                for one in state["members"]
            )
            and not state["links"]
            for state in states
        )

    def close(self) -> None:
        """Kill and reap."""
        for one in self.started:
            one.process.kill()
        for one in self.started:
            one.process.wait()


def _on_hosts(directory: Path) -> Iterator[Three]:
    with Hosts(len(NAMES)) as hosts, Members(directory) as members:
        three = Three(directory, members, hosts)
        try:
            for number, address in enumerate(hosts.addresses):
                own = ["-m", "node", "--host", address, "--port", str(PORT), "--insecure"]
                more = ["--seed", f"{hosts.addresses[0]}:{PORT}", "--loop", loop_name()]
                app = ["--app", "tests.processes.cut_member:setup"]
                three.start([*hosts.prefix(number), sys.executable, *own, *more, *app])
            yield three
        finally:
            three.close()


def _behind_proxies(directory: Path) -> Iterator[Three]:
    with Members(directory) as members:
        free = members.free_ports(2 * len(NAMES))
        ports = [free[2 * number : 2 * number + 2] for number in range(len(NAMES))]
        with OneWayProxies(ports) as proxies:
            three = Three(directory, members, proxies)
            try:
                for number, own in enumerate(ports):
                    ways = {
                        port: proxies.way(number, other)
                        for other, theirs in enumerate(ports)
                        for port in theirs
                        if other != number
                    }
                    member = [sys.executable, "-m", "tests.processes.cut_member", loop_name()]
                    three.start([*member, *map(str, own), str(ports[A][0]), json.dumps(ways)])
                yield three
            finally:
                three.close()


KINDS = {"namespaces": _on_hosts, "proxies": _behind_proxies}


@pytest.fixture(params=[*(["namespaces"] if can_make_networks() else []), "proxies"])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Three]:
    """Three members, in each network that can be made here."""
    yield from KINDS[request.param](tmp_path)


def test_a_one_way_cut_is_shown_removes_nobody_and_heals(three: Three) -> None:
    """I-86: what A sends to B is lost; C reaches both. A member shows the link between them as
    failing, all three stay members that are up, and once it passes again nothing fails."""
    three.wait("three are up", three.are_whole)
    three.network.cut(A, B)

    def shown() -> list[Any]:
        return [link for state in three.states() for link in state["links"]]

    three.wait("the failing link is shown", shown)
    states = three.states()
    a_and_b = {states[A]["self"]["address"], states[B]["self"]["address"]}
    for link in (link for state in states for link in state["links"]):
        assert {link["observer"], link["subject"]} == a_and_b
    for state in states:
        assert [one["status"] for one in state["members"]] == ["up"] * len(NAMES)
    three.network.heal(A, B)
    three.wait("all is whole again", three.are_whole)
    assert all(one.running for one in three.started)
