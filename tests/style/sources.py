"""The project's Python files, parsed; what the style tests share."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

WHEEL_PACKAGES = ("downing", "gossip", "lease", "node", "sharding", "singleton")
TOP_LEVEL_PACKAGES = (*WHEEL_PACKAGES, "bench", "tests")
FOLDERS = (*TOP_LEVEL_PACKAGES, "examples")

# Everything that decides; of `lease` and `node` the modules that do.
PURE = (
    "downing",
    "gossip",
    *(
        f"lease/{name}.py"
        for name in ("effects", "errors", "events", "machine", "record", "settings")
    ),
    "sharding",
    "singleton",
    "node/core.py",
)


@cache
def files(*folders: str) -> tuple[Path, ...]:
    """Python files of these folders (or single files), relative to the root, sorted."""
    found: list[Path] = []
    for folder in folders or FOLDERS:
        path = ROOT / folder
        found += [path] if path.suffix == ".py" else path.rglob("*.py")
    return tuple(sorted(path.relative_to(ROOT) for path in found if path.exists()))


@cache
def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse((ROOT / path).read_text(), str(path))


def imported(module: ast.AST) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of each import below `module`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, node.lineno


def imported_at_start(module: ast.Module) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of what importing the file imports: not inside functions, not under
    `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imported(node)
        waiting.extend(ast.iter_child_nodes(node))


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
