"""What all tests share: the event loop they run on, the large counts, hypothesis' settings.

`TENURE_TEST_LOOP=asyncio` runs every coroutine test on the stock loop, otherwise on uvloop.
`--long` adds the tests marked `long` and raises the counts that are asked of `how_many`; `--etcd`
and `--kubernetes` add those that need such a server.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Protocol

import pytest
import uvloop
from hypothesis import settings

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


SERVERS = ("etcd", "kubernetes")


class HowMany(Protocol):
    """Picks the count of the present run."""

    def __call__(self, *, short: int, long: int) -> int:
        """`short` in `make test`, `long` in `make test-long`."""


def loop_name() -> str:
    """The loop of this run; a wrong name is an error, never quietly the other loop."""
    name = os.environ.get("TENURE_TEST_LOOP", "uvloop")
    if name not in LOOPS:
        raise pytest.UsageError(f"TENURE_TEST_LOOP={name!r} is none of {sorted(LOOPS)}")
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`, and one for each server that not every machine has."""
    parser.addoption("--long", action="store_true", help="run the large counts an issue names")
    for server in SERVERS:
        parser.addoption(f"--{server}", action="store_true", help=f"run what needs a real {server}")


def pytest_configure(config: pytest.Config) -> None:
    """Same examples at every run of `make test`; fresh ones, and more, with `--long`."""
    settings.register_profile("short", deadline=None, derandomize=True, max_examples=100)
    settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
    settings.load_profile("long" if config.getoption("--long") else "short")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a script: the processes of tests would ignore it as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, or with a server, where this run does not ask for it."""
    absent = [name for name in ("long", *SERVERS) if not config.getoption(f"--{name}")]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in absent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop per run, named by the environment."""
    name = loop_name()
    return {name: LOOPS[name]}


@pytest.fixture(scope="session")
def how_many(request: pytest.FixtureRequest) -> HowMany:
    """Counts that differ between a short and a long run."""
    long_run = bool(request.config.getoption("--long"))

    def pick(*, short: int, long: int) -> int:
        return long if long_run else short

    return pick
