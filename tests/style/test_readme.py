"""The README says what is so: settings, exit codes, paths, targets, links, programs."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from node import cli
from node.management import ROUTES
from node.settings import DEFAULT_PORT, Settings
from node.settings_loader import flag_name
from tests.style.sources import ROOT

README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def shown_default(field: dataclasses.Field[object]) -> str:
    """How the table writes a default of `Settings`; the command line has a port of its own."""
    if field.name == "port":
        return str(DEFAULT_PORT)
    if field.name in ("probe_interval_s", "ack_timeout_s", "down_after_s", "contact_s"):
        return "by preset"
    if field.default is None or field.default is False:
        return "off"
    if field.default in ("", ()):
        return "none"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def test_the_settings_table_is_complete_and_right() -> None:
    """I-148: every setting with its flag and its true default, and no other."""
    rows = re.findall(r"^\| `(--[a-z-]+)` \| ([^|]+) \| [^|]+ \|$", README, re.MULTILINE)
    assert rows == [
        (flag_name(field.name), shown_default(field)) for field in dataclasses.fields(Settings)
    ]


def test_exit_codes_are_all_there() -> None:
    """Those of design §9."""
    table = README.partition("## Exit codes")[2].partition("\n## ")[0]
    for code in (
        cli.LEFT_IN_ORDER,
        cli.WRONG_USAGE,
        cli.REFUSED_AT_JOIN,
        cli.NO_SEED,
        cli.ADDRESS_IN_USE,
        cli.APPLICATION_FAILED,
        cli.BUG,
    ):
        assert f"\n| {code} |" in table


def test_paths_are_those_served() -> None:
    """The HTTP table against the table of routes."""
    served = {f"{method} {path}" for path, (method, _) in ROUTES.items()}
    assert set(re.findall(r"^\| `((?:GET|POST) /[a-z/]+)` \|", README, re.MULTILINE)) == served


def test_make_targets_exist() -> None:
    """Each `make x` that any document names."""
    makefile = (ROOT / "Makefile").read_text()
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)$", document.read_text())
        for target in target
        if target
    }
    assert {"demo", "check", "test"} <= named
    for target in named:
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links of all documents, headings of this one included."""
    text = document.read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (document.parent / target).exists(), target


def test_decisions_fit_a_screen() -> None:
    """Context, choice, price; about 30 lines."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04d}" for n in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text()
        assert len(text.splitlines()) <= 40, page
        for heading in ("## Context", "## Choice", "## Price"):
            assert heading in text, page


def test_the_program_prints_what_is_shown(tmp_path: Path) -> None:
    """The first Python block is a whole program, the text after it its output."""
    program = tmp_path / "program.py"
    program.write_text(blocks("python")[0])
    result = subprocess.run(
        [sys.executable, program],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    shown = README.partition(blocks("python")[0])[2].partition("```text\n")[2]
    assert result.stdout == shown.partition("```")[0]


def test_the_programs_are_well_typed(tmp_path: Path) -> None:
    """Every Python block passes mypy --strict, with the project's configuration."""
    for number, block in enumerate(blocks("python")):
        (tmp_path / f"readme_{number}.py").write_text(block)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml"),
            *sorted(tmp_path.glob("readme_*.py")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_the_flag_that_sends_the_token_is_named_where_the_token_is_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A reader of `--http-token-file` learns how `leave` gives the token."""
    explained = README.partition("`--http-token-file FILE`")[2].partition("\n\n")[0]
    assert "`--token-file FILE`" in explained
    with pytest.raises(SystemExit):
        cli.main(["leave", "--help"])
    assert "--token-file FILE" in capsys.readouterr().out
