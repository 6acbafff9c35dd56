"""Members for a test: started in its directory, gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import Members
from tests.conftest import loop_name


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Real members on the event loop of this run."""
    with Members(tmp_path, loop=loop_name()) as started:
        yield started
