"""docs/actors.md: its blocks run, are well typed, and do what the text around them says."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node import AskTimeoutError, UnhandledMessageError, logs
from node.testkit import World
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "actors.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that all blocks together define."""
    module = types.ModuleType("actors_page")
    sys.modules[module.__name__] = module
    for block in BLOCKS:
        lines_before = PAGE[: PAGE.index(block)].count("\n")
        exec(compile("\n" * lines_before + block, "docs/actors.md", "exec"), module.__dict__)
    yield module.__dict__
    del sys.modules[module.__name__]


def test_a_closed_shop_takes_no_orders(page: dict[str, Any]) -> None:
    with World(seed=1) as world:
        shop = world.spawn(page["Shop"], 10)
        assert world.run(shop.ask(page["Order"]("tea", 3))) == 7
        shop.tell(page["Close"]())
        with pytest.raises(UnhandledMessageError):
            world.run(shop.ask(page["Order"]("tea", 3)))


def test_a_full_mailbox_says_so(page: dict[str, Any]) -> None:
    assert "the mailbox is full: 2 messages wait" in asyncio.run(page["bounded"]())


def test_a_price_comes_later(page: dict[str, Any]) -> None:
    with World(seed=1) as world:
        probe = world.probe()
        prices = world.spawn(page["Prices"], probe.ref)
        assert world.run(prices.ask(page["Order"]("tea", 1))) == 0
        world.run_for(s=1.0)
        assert probe.messages == [page["Price"]("tea", 2.5)]


def test_a_biller_asks_before_each_item(page: dict[str, Any]) -> None:
    with World(seed=1) as world:
        probe = world.probe()
        world.spawn(page["Biller"], probe.ref).tell(page["Bill"](["tea", "milk"]))
        world.run_for(s=1.0)
        assert probe.messages == [page["Order"]("tea", 1), page["Order"]("milk", 1)]


@pytest.mark.parametrize("name", ["shops", "shops_by_item"])
def test_routers_answer(page: dict[str, Any], name: str) -> None:
    with World(seed=1) as world:
        system = world.system()
        ref = world[0].call(page[name], system)
        answers = [world.run(ref.ask(page["Order"]("tea", 1))) for _ in range(4)]
        assert answers == ([9, 9, 9, 9] if name == "shops" else [9, 8, 7, 6])


def test_an_address_names_the_actor_of_another_process(page: dict[str, Any]) -> None:
    with World(seed=1) as world:
        ref = world[0].call(page["till"], world.system())
        assert (ref.node[:2], ref.path) == (("127.0.0.1", 25521), "/user/till")
        assert not ref.is_local


@pytest.mark.parametrize("page_name", ["README.md", "docs/actors.md"])
def test_the_call_for_the_log_is_one(page_name: str) -> None:
    """What both pages advise can be called so, with a form and a level that exist."""
    text = (ROOT / page_name).read_text()
    form, level = re.findall(r"`node\.logs\.configure_logging\(\"(\w+)\", \"(\w+)\"\)`", text)[0]
    assert list(inspect.signature(logs.configure_logging).bind(form, level).arguments) == [
        "form",
        "level",
    ]
    assert form in ("text", "json")
    assert level in logs.LEVELS


def test_all_that_is_named_exists(page: dict[str, Any]) -> None:
    """Names of errors, directives and events in the text are importable from `node`."""
    import node

    words = set(re.findall(r"`([A-Z][A-Za-z]+)(?:\(|`)", PAGE)) - {"Shop"}
    assert words >= {"AllForOne", "LoopBlocked", "SendTimeoutError", "RandomChoice"}
    assert words <= set(node.__all__)
    assert AskTimeoutError.__name__ in words


def test_the_blocks_are_well_typed(tmp_path: Path) -> None:
    """mypy --strict, with the project's configuration."""
    program = tmp_path / "actors_page.py"
    program.write_text("\n".join(BLOCKS))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"]
    result = subprocess.run(
        [*command, str(program)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout
