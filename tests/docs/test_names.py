"""The API reference: it names whatever is public, and what it names has a docstring."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "docs"))

from generate.names import SECTIONS, qualified

from gnnjit.errors import GnnjitError

NAMES = sorted({pair for section in SECTIONS for pair in qualified(section)})
PACKAGES = sorted({module for module, _ in NAMES})


def find(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


DOCUMENTED = {id(find(*pair)) for pair in NAMES}


def subclasses(of: type) -> Iterator[type]:
    for found in of.__subclasses__():
        yield found
        yield from subclasses(found)


@pytest.mark.parametrize("module", PACKAGES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    public = getattr(importlib.import_module(module), "__all__", ())
    missing = [n for n in public if id(find(module, n)) not in DOCUMENTED]
    assert not missing, f"docs/generate/names.py lacks {missing} of {module}"


def test_every_error_is_in_the_reference() -> None:
    public = [e for e in subclasses(GnnjitError) if e.__name__.endswith("Error")]
    missing = [e.__name__ for e in public if id(e) not in DOCUMENTED]
    assert not missing, f"docs/generate/names.py lacks {missing}"


def test_no_name_has_two_pages() -> None:
    once = {id(find(*pair)) for pair in NAMES}
    assert len(once) == len(NAMES) == sum(len(qualified(s)) for s in SECTIONS)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_docstring(module: str, name: str) -> None:
    found = find(module, name)
    if isinstance(found, dict):  # its docstring is that of the assignment
        return
    doc = inspect.getdoc(found) or ""
    assert not doc.startswith(f"{name}("), "the docstring that dataclasses make"
    assert len(doc) > 20
    assert not doc.startswith("Of "), "a docstring begins with its subject"


@pytest.mark.parametrize(
    ("module", "name"), [pair for pair in NAMES if inspect.isclass(find(*pair))]
)
def test_methods_have_docstrings(module: str, name: str) -> None:
    found = find(module, name)
    own = {k: v for k, v in vars(found).items() if not k.startswith("_")}
    for key, value in own.items():
        method = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(method):
            assert inspect.getdoc(getattr(found, key)), f"{name}.{key} has no docstring"
