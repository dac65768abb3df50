"""Who may import whom, read from the source of every module (gnnjit/design/0003)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gnnjit"
MODULES = sorted(PACKAGE.rglob("*.py"))

BASE = {
    "allocator", "errors", "config", "contexts", "tuning", "budget", "portable", "shapes",
    "distributed", "host", "output", "_compat",
}  # fmt: skip
COMPILER = {"graph", "ir", "frontend", "passes", "cost", "lower", "grid"}
LIBRARY = {"layer", "nn", "data", "interop", "neighborhood", "sample"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "contexts": set(),
    "portable": set(),
    "tuning": set(),
    "allocator": set(),
    "budget": set(),
    "host": set(),
    "output": set(),
    "shapes": set(),
    "_compat": set(),
    "distributed": set(),
    "graph": set(),
    "neighborhood": {"graph"},
    "sample": {"graph", "neighborhood"},
    "ir": set(),
    "frontend": {"ir", "graph"},
    "passes": {"ir"},
    "cost": {"ir"},
    "lower": {"ir", "cost", "graph", "pallas_kernels", "passes", "frontend"},
    "grid": {"graph", "ir", "cost", "lower", "frontend", "passes"},
    "layer": COMPILER,
    "nn": {"layer", "graph", "neighborhood"},
    "data": {"graph"},
    "interop": {"layer", "graph", "data"},
    "train": COMPILER | LIBRARY,
    "cli": COMPILER | LIBRARY | {"train"},
    "pallas_kernels": set(),
    "__init__": {"layer", "graph", "frontend"},
}
"""Beside the base (except for `pallas_kernels`, and within the base itself)."""

UNITS = {
    "explain": "layer",
    "explain_plans": "layer",
    "check": "layer",
    "stage": "layer",
    "layer_call": "layer",
    "links": "layer",
    "rebalancing": "layer",
    "shard": "layer",
    "shard_report": "layer",
    "stream": "layer",
    "planner": "layer",
    "plans": "layer",
    "plan_times": "layer",
    "clock": "layer",
    "judge": "layer",
    "run_program": "layer",
    "training": "train",
    "stored_dataset": "train",
    "store_dataset": "train",
    "prepare": "train",
    "places": "distributed",
    "peers": "distributed",
    "explain_command": "cli",
    "launch": "cli",
    "launch_command": "cli",
    "calibrate": "layer",
    "calibration_grid": "cli",
    "calibration_layers": "cli",
    "calibrate_command": "cli",
}
"""Modules that are parts of another one of the table."""

JAXPR_NAMES = {
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "JaxprLiteral",
    "closed_call",
    "eval_jaxpr",
    "jaxpr_as_fun",
    "make_jaxpr",
    "new_jaxpr_eqn",
    "open_jaxpr",
    "subjaxprs",
}
MAY_TOUCH_JAXPRS = {
    "_compat.py": JAXPR_NAMES,
    # The parameters that a JAX function gives its primitive are read off its jaxpr.
    "ir/build.py": {"make_jaxpr"},
    "ir/show.py": {"make_jaxpr"},
    # What is inside an equation is traced once more, for values that vary over a mesh.
    "ir/varying.py": {"JaxprLiteral", "make_jaxpr", "open_jaxpr"},
    # The aggregates of a gradient are found by walking it.
    "explain.py": {"make_jaxpr", "open_jaxpr", "subjaxprs"},
}

INNER_JAX = ("jax.core", "jax.extend", "jax.interpreters", "jax._src")
MAY_IMPORT_INNER_JAX = {
    "_compat.py": INNER_JAX,
    # One name each, the same on all supported releases.
    "graph/validate.py": ("jax.core",),
    "ir/show.py": ("jax.extend",),
}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def unit(path: Path) -> str:
    """The row of the table that a module belongs to."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return UNITS.get(first, first)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def imported_unit(name: str) -> str | None:
    """The row of the table that `name` lies in; None outside gnnjit."""
    parts = name.split(".")
    if parts[0] != "gnnjit":
        return None
    if len(parts) == 1:
        return "layer"  # the public vocabulary
    known = (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()
    return UNITS.get(parts[1], parts[1]) if known else "layer"


def name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_follow_the_table(path: Path) -> None:
    own = unit(path)
    assert own in ALLOWED, f"{own} is not in the table: add it to DESIGN section 10 and here"
    allowed = ALLOWED[own] | {own} | (set() if own == "pallas_kernels" else BASE)
    wrong = [
        f"{relative(path)}:{line}: {own} may not import {name} (may: {', '.join(sorted(allowed))})"
        for line, name in imports(path)
        if imported_unit(name) not in allowed | {None}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_cycles() -> None:
    done: set[str] = set()
    while ready := [u for u in ALLOWED if u not in done and ALLOWED[u] <= done | {u}]:
        done |= set(ready)
    assert done == set(ALLOWED)


@pytest.mark.parametrize("path", [p for p in MODULES if unit(p) == "pallas_kernels"], ids=relative)
def test_pallas_kernels_import_jax_alone(path: Path) -> None:
    for line, name in imports(path):
        root = name.split(".")[0]
        fine = root in {"jax", "numpy"} or root in sys.stdlib_module_names
        inside = name.startswith("pallas_kernels")
        assert fine or inside, f"{relative(path)}:{line}: imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if unit(p) != "frontend"], ids=relative)
def test_only_the_frontend_touches_jaxprs(path: Path) -> None:
    allowed = MAY_TOUCH_JAXPRS.get(relative(path), set())
    for node in ast.walk(ast.parse(path.read_text())):
        name = name_of(node)
        assert name not in JAXPR_NAMES - allowed, (
            f"{relative(path)}:{getattr(node, 'lineno', '?')}: {name} belongs into frontend/"
        )


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_what_differs_between_releases_is_in_compat(path: Path) -> None:
    allowed = MAY_IMPORT_INNER_JAX.get(relative(path), ())
    for line, name in imports(path):
        for inner in set(INNER_JAX) - set(allowed):
            assert not f"{name}.".startswith(f"{inner}."), (
                f"{relative(path)}:{line}: {name} belongs into _compat.py"
            )


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_hold_one_thing(path: Path) -> None:
    """Past 400 lines, look whether a module holds two things; past 500, it surely does."""
    lines = len(path.read_text().splitlines())
    assert lines <= 500, f"{relative(path)} has {lines} lines: split it"


@pytest.mark.parametrize("folder", sorted({p.parent for p in MODULES}), ids=relative)
def test_every_folder_is_a_package(folder: Path) -> None:
    assert (folder / "__init__.py").is_file(), "without it, the wheel leaves the folder out"
