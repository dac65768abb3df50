"""Who may import whom, read from the source of every module. A room is a folder of `gnnjit/`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gnnjit"
KERNELS = PACKAGE.parent / "pallas_kernels"
MODULES = sorted([*PACKAGE.rglob("*.py"), *KERNELS.rglob("*.py")])

FLAT = {"__init__", "_compat", "config", "errors", "shapes"}
"""The only modules that lie in no room. All but the first may be imported everywhere in gnnjit."""

MAY_IMPORT: dict[str, set[str]] = {
    "system": set(),
    "ir": {"system"},
    "graph": set(),
    "distributed": set(),
    "pallas_kernels": set(),
    "partition": {"graph"},
    "store": {"distributed", "graph", "system"},
    "passes": {"ir"},
    "cost": {"ir", "system"},
    "frontend": {"graph", "ir", "system"},
    "geometry": {"graph"},
    "interop": {"graph"},
    "sample": {"graph", "partition", "store", "system"},
    "sharding": {"cost", "distributed", "graph", "partition", "system"},
    "neighborhood": {"graph", "partition", "sample", "sharding", "store"},
    "lower": {
        "cost", "frontend", "graph", "ir", "pallas_kernels", "passes", "sharding", "system",
    },
    "planner": {"cost", "graph", "ir", "lower", "passes", "sharding", "system"},
    "compiler": {
        "cost", "frontend", "graph", "ir", "lower", "passes", "planner", "sharding", "system",
    },
    "streaming": {
        "compiler", "cost", "distributed", "frontend", "graph", "ir", "lower", "partition",
        "store", "system",
    },
    "readout": {"frontend"},
    "__init__": {"compiler", "frontend", "graph", "readout", "sharding", "streaming", "system"},
    "nn": {"__init__", "graph", "neighborhood", "sharding"},
    "data": {"graph", "interop", "partition", "store", "system"},
    "calibration": {
        "__init__", "compiler", "cost", "lower", "passes", "planner", "system",
    },
    "training": {
        "compiler", "cost", "data", "distributed", "graph", "neighborhood", "nn", "partition",
        "sample", "sharding", "store", "streaming", "system",
    },
    "cli": {
        "calibration", "compiler", "cost", "data", "distributed", "ir", "nn", "passes", "sharding",
        "system", "training",
    },
}  # fmt: skip
"""Rooms, from the lowest floor up: each imports rooms above it in this table alone."""

STREAMING: dict[str, set[str]] = {
    "grid": set(),
    "program": set(),
    "memory": {"grid", "program"},
    "runtime": {"grid", "memory", "program"},
}
"""The floors of `streaming/`, from the lowest up. Its flat modules stand on all of them."""

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
    # A typed layer is one program to JAX, and so are its derivatives.
    "compiler/joined.py": {"JaxprLiteral", "make_jaxpr", "open_jaxpr"},
    # What is one pass over vertices shows only where derivatives are known.
    "lower/find_row_sums.py": {"JaxprLiteral"},
    "lower/row_sums.py": {"JaxprLiteral", "open_jaxpr"},
    # The aggregates of a gradient are found by walking it.
    "compiler/explain.py": {"make_jaxpr", "open_jaxpr"},
    "compiler/explain_traversals.py": {"subjaxprs"},
    # What is printed is read off the jaxpr of a gradient, or is the jaxpr.
    "compiler/debug.py": {"make_jaxpr"},
}

INNER_JAX = ("jax.core", "jax.extend", "jax.interpreters", "jax._src")
MAY_IMPORT_INNER_JAX = {
    "_compat.py": INNER_JAX,
    # One name each, the same on all supported releases.
    "graph/validate.py": ("jax.core",),
    "ir/show.py": ("jax.extend",),
}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE if PACKAGE in path.parents else PACKAGE.parent).as_posix()


def room(path: Path) -> str:
    """The row of the table that a module belongs to; its own name if it lies flat."""
    return relative(path).split("/")[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def imported_room(name: str) -> str | None:
    """The room or flat module that `name` lies in; None outside the project."""
    top, *rest = name.split(".")
    if top == KERNELS.name:
        return top
    if top != "gnnjit":
        return None
    return rest[0] if rest and rest[0] in {*MAY_IMPORT, *FLAT} else "__init__"


def name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.alias):
        return node.name
    return node.id if isinstance(node, ast.Name) else None


def test_the_table_has_a_row_for_each_room() -> None:
    rooms = {room(path) for path in MODULES}
    assert rooms - FLAT == set(MAY_IMPORT) - {"__init__"}
    assert {path.stem for path in PACKAGE.glob("*.py")} == FLAT


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) not in FLAT], ids=relative)
def test_imports_follow_the_table(path: Path) -> None:
    own = room(path)
    allowed = (
        MAY_IMPORT[own] | {own} | (set() if path.is_relative_to(KERNELS) else FLAT - {"__init__"})
    )
    wrong = [
        f"{relative(path)}:{line}: {own} may not import {name} (may: {', '.join(sorted(allowed))})"
        for line, name in imports(path)
        if imported_room(name) not in allowed | {None}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in FLAT], ids=relative)
def test_flat_modules_import_no_room(path: Path) -> None:
    allowed = MAY_IMPORT["__init__"] if path.stem == "__init__" else FLAT - {"__init__"}
    assert {imported_room(name) for _, name in imports(path)} <= allowed | {None}


def test_the_table_holds_nothing_else() -> None:
    """Each arrow of the table is an import of today."""
    used = {(room(path), imported_room(name)) for path in MODULES for _, name in imports(path)}
    idle = {(a, b) for a, some in MAY_IMPORT.items() for b in some} - used
    assert not idle


def test_rooms_import_lower_floors() -> None:
    """So there is no circle."""
    rooms = list(MAY_IMPORT)
    upwards = [(a, b) for i, a in enumerate(rooms) for b in MAY_IMPORT[a] if b not in rooms[:i]]
    assert not upwards


@pytest.mark.parametrize("path", sorted((PACKAGE / "streaming").glob("*/*.py")), ids=relative)
def test_floors_of_streaming(path: Path) -> None:
    allowed = STREAMING[path.parent.name] | {path.parent.name}
    inside = [
        (line, name.split(".")[2])
        for line, name in imports(path)
        if name.startswith("gnnjit.streaming.")
    ]
    wrong = [f"{relative(path)}:{line}: {floor}" for line, floor in inside if floor not in allowed]
    assert not wrong, f"may import {', '.join(sorted(allowed))}: {', '.join(wrong)}"


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.py")), ids=relative)
def test_pallas_kernels_import_jax_alone(path: Path) -> None:
    for line, name in imports(path):
        root = name.split(".")[0]
        fine = root in {"jax", "numpy", KERNELS.name} or root in sys.stdlib_module_names
        assert fine, f"{relative(path)}:{line}: imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) != "frontend"], ids=relative)
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
