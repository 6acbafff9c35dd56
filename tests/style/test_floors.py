"""The import check holds the floors: it passes here, and it fails where a floor is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style.sources import ROOT, TOP_LEVEL_PACKAGES


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and of the check's configuration."""
    for package in TOP_LEVEL_PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import check on the packages in `folder`."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_floors_hold(copy: Path) -> None:
    """tests, bench → node → {downing, singleton, sharding} → {gossip, lease}."""
    result = check(copy)
    assert result.returncode == 0, result.stdout
    assert "1 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("gossip/membership.py", "import node.errors"),  # upwards by two floors
        ("gossip/membership.py", "import singleton"),  # upwards by one
        ("singleton/__init__.py", "import sharding"),  # a sibling
        ("lease/__init__.py", "import gossip.membership"),  # a sibling below
        ("node/errors.py", "import tests"),  # the wheel onto its tests
        ("node/errors.py", "import bench"),
    ],
)
def test_a_broken_floor_fails_the_check(copy: Path, module: str, line: str) -> None:
    """A planted import against the plan is named by the check."""
    path = copy / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    result = check(copy)
    assert result.returncode == 1, result.stdout
    package, imported = module.split("/")[0], line.split()[1].split(".")[0]
    assert f"{package} is not allowed to import {imported}" in result.stdout
