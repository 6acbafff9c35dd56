"""docs/testing.md: each Python block runs, in order, and is well typed; its text is real output."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.testkit import World, WorldError
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that all blocks together define."""
    module = types.ModuleType("testing_page")
    sys.modules[module.__name__] = module
    for block in BLOCKS:
        lines_before = PAGE[: PAGE.index(block)].count("\n")  # so that a traceback tells the line
        exec(compile("\n" * lines_before + block, "docs/testing.md", "exec"), module.__dict__)
    yield module.__dict__
    del sys.modules[module.__name__]


TESTS = re.findall(r"^def (test_\w+)\(", "\n".join(BLOCKS), re.MULTILINE)


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_of_the_page_pass(page: dict[str, Any], name: str) -> None:
    test: Callable[[], None] = page[name]
    test()


def test_each_block_is_used() -> None:
    """A block without a test, the actor's own apart, would be a mere claim."""
    assert len(TESTS) == 6
    assert all("def test_" in block for block in BLOCKS[1:])


def test_a_failed_expectation_reads_as_shown(page: dict[str, Any]) -> None:
    with World(seed=1) as world:
        bank, customer = world.probe("bank"), world.probe("customer")
        till = world.spawn(page["Till"], bank.ref, customer.ref, name="till")
        world.stop(bank.ref)
        world.run_for(s=1.0)
        till.tell(page["Pay"]("7"))
        with pytest.raises(WorldError) as caught:
            customer.expect(page["Paid"], within_s=4.0)
    shown = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0].splitlines()
    lines = str(caught.value).splitlines()[: len(shown)]
    assert lines[0] == shown[0].replace("within 5 s", "within 4 s")
    for line, pattern in zip(lines[1:], shown[1:], strict=True):
        assert re.fullmatch(re.escape(pattern).replace("…", ".*"), line), line


def test_the_blocks_are_well_typed(tmp_path: Path) -> None:
    """mypy --strict, with the project's configuration."""
    program = tmp_path / "testing_page.py"
    program.write_text("\n".join(BLOCKS))
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict"),
            *("--config-file", ROOT / "pyproject.toml", program),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_what_a_world_does_not_have_is_refused_where_the_page_says_so() -> None:
    """A thread by way of the loop is refused; one that goes past it is not noticed."""

    async def by_the_loop() -> None:
        await asyncio.to_thread(print)

    async def past_the_loop() -> None:
        thread = threading.Thread(target=ran.append, args=(True,))
        thread.start()
        thread.join(10.0)

    ran: list[bool] = []
    with World(seed=1) as world:
        with pytest.raises(NotImplementedError, match="has no threads"):
            world.run(by_the_loop())
        world.run(past_the_loop())
    assert ran == [True]
