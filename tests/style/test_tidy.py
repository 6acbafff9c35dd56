"""Style as far as a machine can check it: sizes, names of what must not be used, docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.style.sources import (
    PURE,
    ROOT,
    TOP_LEVEL_PACKAGES,
    WHEEL_PACKAGES,
    files,
    imported,
    imported_at_start,
    tree,
)

LINE_CHARACTERS_MAX = 100
FUNCTION_LINES_MAX = 80

# A machine gets `now` with each call and its randomness by constructor: these would go round that.
BANNED_IN_PURE = frozenset(
    [
        "aiohttp",
        "asyncio",
        "concurrent",
        "ctypes",
        "datetime",
        "http",
        "kubernetes_asyncio",
        "logging",
        "msgpack",
        "multiprocessing",
        "os",
        "prometheus_client",
        "rich",
        "secrets",
        "select",
        "selectors",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
        "zmq",
    ]
)
HEAVY = frozenset({"aiohttp", "kubernetes_asyncio", "prometheus_client", "rich"})
HEAVY_MODULES = {
    "lease.etcd": Path("lease/etcd.py"),
    "lease.etcd_client": Path("lease/etcd_client.py"),
    "lease.kubernetes": Path("lease/kubernetes.py"),
    "node.remembered_etcd": Path("node/remembered_etcd.py"),
}
"""Made of such a package, and imported by nobody else who does not use them."""
BANNED_CALLS = ("hash", "Random", "random.Random")
MAY_PRINT = (
    Path("node/cli.py"),
    Path("node/client.py"),
    Path("lease/cli.py"),
    Path("node/testkit/simulate.py"),
)


def test_lines_fit_a_screen() -> None:
    """Lines have at most 100 characters, in every Python file."""
    too_long = [
        f"{path}:{number}"
        for path in files()
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if len(line) > LINE_CHARACTERS_MAX
    ]
    assert_none(too_long)


def test_functions_fit_a_screen() -> None:
    """Functions have at most 80 lines; no file or class has a limit."""
    too_long = [
        f"{path}:{node.lineno} {node.name}"
        for path in files()
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert_none(too_long)


def test_machines_import_nothing_of_the_world() -> None:
    """Style rule 1: no loop, socket, clock, log or process inside what decides."""
    breaches = [
        f"{path}:{line} imports {name}"
        for path in files(*PURE)
        for name, line in imported(tree(path))
        if name.split(".")[0] in BANNED_IN_PURE
    ]
    assert_none(breaches)


def test_machines_use_only_the_type_of_random() -> None:
    """Style rules 1 and 5: one `random.Random`, handed in; no `hash`, which differs per process."""
    breaches = [
        f"{path}:{line} {what}" for path in files(*PURE) for what, line in _unseeded(tree(path))
    ]
    assert_none(breaches)


def test_nobody_prints_but_the_command_line() -> None:
    """Everything else logs, so that form and destination stay the operator's choice."""
    breaches = [
        f"{path}:{node.lineno}"
        for path in files(*WHEEL_PACKAGES)
        if path not in MAY_PRINT
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert_none(breaches)


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    """A node that does not serve HTTP must not pay for what does."""
    breaches = [
        f"{path}:{line} imports {name}"
        for path in files(*WHEEL_PACKAGES)
        for name, line in imported_at_start(tree(path))
        if path not in HEAVY_MODULES.values()
        and (
            name.split(".")[0] in HEAVY
            or any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY_MODULES)
        )
    ]
    assert_none(breaches)


def test_tests_wait_for_facts() -> None:
    """No test sleeps and hopes; inside a `while` a sleep is the pause between two looks."""
    breaches = [
        f"{path}:{line}" for path in files("tests") for line in sorted(_hopeful_sleeps(tree(path)))
    ]
    assert_none(breaches)


def test_what_is_public_says_what_it_promises() -> None:
    """Each module, public class and public function of the six packages has a docstring."""
    missing = [
        f"{path}:{line} {name}"
        for path in files(*WHEEL_PACKAGES)
        for name, line in _undocumented(tree(path))
    ]
    assert_none(missing)


def test_top_level_packages_are_exactly_the_planned_ones() -> None:
    """Eight packages; what else lies in the root is no package."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found == set(TOP_LEVEL_PACKAGES)


def test_no_loose_ends() -> None:
    """Nothing is left for later inside the code: it is done, or it is an issue."""
    words = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
    found = [
        f"{path}:{number}"
        for path in files()
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert_none(found)


def assert_none(found: list[str]) -> None:
    """Fail with the whole list, one finding per line."""
    assert not found, "\n".join(["", *found])


def _sleeps(module: ast.AST) -> set[int]:
    return {
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep"
    }


def _hopeful_sleeps(module: ast.Module) -> set[int]:
    polls = [_sleeps(node) for node in ast.walk(module) if isinstance(node, ast.While)]
    return _sleeps(module).difference(*polls)


def _unseeded(module: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            for alias in node.names:
                if alias.name != "Random":
                    yield f"random.{alias.name}", node.lineno
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        ):
            yield f"random.{node.attr}", node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS:
            yield f"calls {ast.unparse(node.func)}", node.lineno


def _undocumented(module: ast.Module) -> Iterator[tuple[str, int]]:
    if not (ast.get_docstring(module) or "").strip(". "):
        yield "the module", 1
    for node in _public_definitions(module):
        if ast.get_docstring(node) is None:
            yield node.name, node.lineno


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public_definitions(owner: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public classes and functions of a module, and their public methods; an overload or an
    override speaks through the one it completes."""
    for node in owner.body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        if any(
            ast.unparse(decorator) in ("overload", "override") for decorator in node.decorator_list
        ):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _public_definitions(node)
