"""docs/leases.md and the examples beside it: the blocks run, and do what the page says."""

from __future__ import annotations

import io
import re
import sqlite3
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from examples.fenced_sqlite import SCHEMA, pay
from lease import Lease, LeaseSettings, LeaseStore, SqliteStore, StaleTokenError
from lease.conformance import LeaseStoreContract
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "leases.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SHELL = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run_block(number: int, names: dict[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """The names that a block defines, and what it prints."""
    block = BLOCKS[number]
    names = {"__name__": "leases_page", **(names or {})}
    before = PAGE[: PAGE.index(block)].count("\n")
    with redirect_stdout(io.StringIO()) as out:
        exec(compile("\n" * before + block, "docs/leases.md", "exec"), names)
    return names, out.getvalue()


def test_the_first_block_is_a_whole_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[0]], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = done.stdout.splitlines()
    assert [line.split(" under ")[0] for line in pages] == ["page 0", "page 1", "page 2"]


def test_the_other_blocks_do_what_they_say() -> None:
    assert len(BLOCKS) == 5
    # In a process of its own: message names are unique in one.
    done = subprocess.run(
        [sys.executable, "-c", f"{BLOCKS[1]}\nprint(setup.__name__)"], cwd=ROOT, text=True,
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "setup\n"
    assert "token 7 of 'printer' is refused" in run_block(2)[1]


_NAMES, _ = run_block(3)
_CONTRACT: Any = run_block(4, _NAMES)[0]["TestListStore"]


class TestTheStoreOfThePage(_CONTRACT):  # type: ignore[misc]
    """It keeps the contract, as the page says."""

    poll_interval_s = 0.05

    async def make_store(self) -> LeaseStore:
        store: LeaseStore = await super().make_store()
        type(store).poll_interval_s = 0.05
        return store


assert issubclass(TestTheStoreOfThePage, LeaseStoreContract)


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    (block,) = SHELL
    lines = block.replace("python -m", f"{sys.executable} -m").splitlines()
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "one at a time"
    assert second.startswith("report: free, last token ")
    assert '"held": false' in third


async def test_a_fenced_payment(tmp_path: Path) -> None:
    """The token of a real lease, and one that was replaced."""
    store = SqliteStore(tmp_path / "leases.db")
    tokens = []
    for owner in ("first", "second"):
        lease = Lease(store, LeaseSettings(name="payments", owner=owner, ttl_s=15.0))
        assert await lease.acquire()
        assert lease.token is not None
        tokens.append(lease.token)
        await lease.release()
        await lease.close()
    await store.close()
    connection = sqlite3.connect(tmp_path / "bank.db", isolation_level=None)
    connection.executescript(SCHEMA)
    pay(connection, tokens[0], "p1", 100)
    pay(connection, tokens[1], "p2", 200)
    pay(connection, tokens[1], "p2", 200)
    with pytest.raises(StaleTokenError):
        pay(connection, tokens[0], "p3", 300)
    assert connection.execute("SELECT id FROM payments ORDER BY id").fetchall() == [
        ("p1",),
        ("p2",),
    ]
    connection.close()
