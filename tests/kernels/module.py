"""Triton IR as plain data: operations with numbered values, as jaxlib's bindings read them."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class Type:
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation; values are numbered.

    blocks: for each region, the values that it is given and its operations. fixed: of a loop, the
        operations of its body that give the same in each step.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[Type, ...]
    attributes: dict[str, Any]
    blocks: tuple[tuple[tuple[int, ...], tuple[Op, ...]], ...]
    fixed: tuple[Op, ...] = ()


@dataclasses.dataclass(frozen=True)
class Module:
    """One kernel: the values that its arguments are, and its operations."""

    name: str
    arguments: tuple[int, ...]
    body: tuple[Op, ...]

    def operations(self) -> Iterator[Op]:
        return _walk(self.body)

    @functools.cached_property
    def widest(self) -> int:
        return max((math.prod(t.shape) for op in self.operations() for t in op.types), default=1)


def _walk(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        yield from _walk(op.fixed)
        for _, body in op.blocks:
            yield from _walk(body)


def rewritten(module: Module, fn: Callable[[Op], Op]) -> Module:
    """Every operation replaced by what `fn` makes of it."""

    def each(ops: Sequence[Op]) -> tuple[Op, ...]:
        return tuple(one(op) for op in ops)

    def one(op: Op) -> Op:
        blocks = tuple((given, each(body)) for given, body in op.blocks)
        return fn(dataclasses.replace(op, blocks=blocks, fixed=each(op.fixed)))

    return dataclasses.replace(module, body=each(module.body))


_TYPES = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


@functools.cache
def _type(text: str) -> Type:
    """The type of a value, or of what a pointer points to."""
    sizes, element = re.fullmatch(r"(?:tensor<((?:\d+x)*))?(?:!tt\.ptr<)?(\w+)>*", text).groups()
    shape = tuple(int(n) for n in (sizes or "").split("x") if n)
    return Type(shape, np.dtype(_TYPES[element]))


@functools.lru_cache(maxsize=256)
def decode(code: bytes | str) -> Module:
    """Triton IR, as bytes or as text."""
    from jaxlib.mlir import ir
    from jaxlib.triton import dialect

    with ir.Context() as context:
        dialect.register_dialect(context)
        module = ir.Module.parse(code)
        (function,) = module.body.operations
        numbers: dict[Any, int] = {}
        ((arguments, body),) = _blocks(function.operation, numbers)
        return Module(function.attributes["sym_name"].value, arguments, _alive(body, set()))


def _blocks(operation: Any, numbers: dict[Any, int]) -> tuple[Any, ...]:
    found = []
    for region in operation.regions:
        (block,) = region.blocks
        given = tuple(numbers.setdefault(a, len(numbers)) for a in block.arguments)
        found.append((given, tuple(_decode(o.operation, numbers) for o in block.operations)))
    return tuple(found)


def _decode(operation: Any, numbers: dict[Any, int]) -> Op:
    inputs = tuple(numbers[x] for x in operation.operands)
    attributes = {}
    for named in operation.attributes:
        name, value = (named.name, named.attr) if hasattr(named, "attr") else (
            named, operation.attributes[named])  # fmt: skip
        attributes[name] = _attribute(value)
    blocks = _blocks(operation, numbers)
    outputs = tuple(numbers.setdefault(x, len(numbers)) for x in operation.results)
    types = tuple(_type(str(x.type)) for x in operation.results)
    return Op(operation.name, inputs, outputs, types, attributes, blocks)


KEPT = ("tt.return", "scf.yield", "tt.reduce.return", "tt.scan.return", "tt.store", "tt.atomic_rmw",
        "tt.atomic_cas")  # fmt: skip


def _alive(ops: Sequence[Op], read: set[int]) -> tuple[Op, ...]:
    """Without what nobody reads, as Triton compiles it: Pallas has each store load what was there
    before. `read` is what later operations read, and is added to."""
    kept = []
    for op in reversed(ops):
        if op.name not in KEPT and not op.blocks and not read.intersection(op.outputs):
            continue
        read.update(op.inputs)
        blocks = tuple((given, _alive(body, read)) for given, body in op.blocks)
        op = dataclasses.replace(op, blocks=blocks)
        kept.append(_hoisted(op) if op.name == "scf.for" else op)
    return tuple(kept[::-1])


def _attribute(value: Any) -> Any:
    text = str(value)
    if hasattr(value, "value"):
        return value.value
    if text.startswith("array<"):
        return [int(n) for n in text[text.index(":") + 1 : -1].split(",")]
    number = re.match(r"-?\d+", text)
    return int(number[0]) if number else text


_SHAPING = ("tt.splat", "tt.make_range", "tt.expand_dims", "tt.broadcast", "tt.addptr")


def _hoisted(op: Op) -> Op:
    """A loop with `fixed` set apart."""
    (given, body), *_ = op.blocks
    moving, fixed, rest = set(given), [], []
    for inner in body:
        pure = inner.name.startswith("arith.") or inner.name in _SHAPING
        if pure and not moving.intersection(inner.inputs):
            fixed.append(inner)
            continue
        moving.update(inner.outputs)
        rest.append(inner)
    return dataclasses.replace(op, blocks=((given, tuple(rest)),), fixed=tuple(fixed))
