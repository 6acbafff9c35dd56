"""docs/invariants.md names tests that exist, and every number that a test names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.style.sources import ROOT, files, tree

PAGE = (ROOT / "docs" / "invariants.md").read_text()
MEMBERSHIP, DOWNING = range(63, 85), range(85, 104)


def rows() -> dict[int, str]:
    """Number → the rest of its row."""
    found = re.findall(r"^\| I-(\d+) \| (.+)\|$", PAGE, re.MULTILINE)
    assert len({number for number, _ in found}) == len(found), "a number has two rows"
    return {int(number): rest for number, rest in found}


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_test_that_is_named_exists() -> None:
    missing = []
    for number, rest in rows().items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", rest)
        if not named and "cannot happen" not in rest:
            missing.append(f"I-{number} has neither a test nor a reason")
        for path, name in named:
            # The contract of lease stores is a part of the product.
            file = Path(path) if path == "lease/conformance.py" else Path("tests") / path
            if not (ROOT / file).exists() or name not in functions(file):
                missing.append(f"I-{number}: there is no {file}::{name}")
    assert not missing, "\n".join(missing)


def test_each_number_has_its_row() -> None:
    """Those of membership and downing all; of the others each that a test names."""
    mentioned = {
        int(number)
        for path in files("tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for number in re.findall(r"\bI-(\d+)\b", ast.get_docstring(node) or "")
    }
    absent = sorted({*mentioned, *MEMBERSHIP, *DOWNING} - rows().keys())
    assert not absent, f"docs/invariants.md lacks {absent}"
