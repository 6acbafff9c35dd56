"""The wheel holds the six packages and nothing else, installs, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.style.sources import ROOT, WHEEL_PACKAGES


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once with the build backend of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str | Path, cwd: Path) -> str:
    """Run to a good end, away from our own paths; what it printed."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "PYTHONPATH" and not key.startswith("TENURE_")
    }
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_holds_the_six_packages_only(wheel: Path) -> None:
    """No tests, no benches, no examples, and the licence with it."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(WHEEL_PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {name for name in names if name.endswith(".py")}
    sources = {
        str(path.relative_to(ROOT))
        for package in WHEEL_PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules == sources


def test_it_installs_and_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment with nothing of the checkout runs the command line.

    Only the project's own wheel is installed; the dependencies are lent by this environment, so
    that no registry is asked. `test_it_installs_with_its_dependencies` resolves them as well.
    """
    python = fresh_environment(tmp_path)
    install(python, wheel, "--no-deps", "--no-index", cwd=tmp_path)
    site_packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
    ).strip()
    Path(site_packages, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert_runs(python, tmp_path)


@pytest.mark.long
def test_it_installs_with_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    """The same with every dependency resolved and installed by pip."""
    python = fresh_environment(tmp_path)
    install(python, wheel, cwd=tmp_path)
    assert_runs(python, tmp_path)


def fresh_environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    return folder / "venv" / "bin" / "python"


def install(python: Path, wheel: Path, *options: str, cwd: Path) -> None:
    """Install the wheel into the environment of `python`."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, *options, wheel, cwd=cwd)


def assert_runs(python: Path, cwd: Path) -> None:
    """The command line answers, by module and by script, from the installed files."""
    where = run(python, "-c", "import node; print(node.__file__)", cwd=cwd)
    assert where.startswith(str(cwd / "venv"))
    assert "--seed" in run(python, "-m", "node", "--help", cwd=cwd)
    assert "--seed" in run(python.with_name("tenure"), "--help", cwd=cwd)
