"""Rules for primitives that move, reduce or contract scalars within one element.

All of them are static index maps. Those that only move run the primitive's meaning in NumPy on
the *numbers* of the scalars, then take the scalars with those numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gnnjit.lower.cpu.elementwise_rules import RULES, CodeSite, arithmetic, extremum
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.simd import Codegen, Vec, is_float
from gnnjit.lower.lowering import Unsupported

MAX_CONTRACTION = 8192
"""Multiplications per element that may be unrolled; more belongs in a matrix product."""


def _numbers(site: CodeSite, operand: int = 0) -> np.ndarray:
    shape = site.shapes[operand]
    return np.arange(math.prod(shape)).reshape(shape)


def _moving(name: str) -> Callable[[Callable[[CodeSite, np.ndarray], np.ndarray]], None]:
    def register(places: Callable[[CodeSite, np.ndarray], np.ndarray]) -> None:
        RULES[name] = lambda site: [site.code.take(site.inputs[:1], places(site, _numbers(site)))]

    return register


@_moving("broadcast_in_dim")
def _broadcast_in_dim(site: CodeSite, n: np.ndarray) -> np.ndarray:
    shape = [1] * len(site.out_shapes[0])
    for axis, size in zip(site.params["broadcast_dimensions"], n.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(n.reshape(shape), site.out_shapes[0])


@_moving("transpose")
def _transpose(site: CodeSite, n: np.ndarray) -> np.ndarray:
    return n.transpose(site.params["permutation"])


@_moving("slice")
def _slice(site: CodeSite, n: np.ndarray) -> np.ndarray:
    p = site.params
    strides = p["strides"] or [1] * n.ndim
    cuts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return n[tuple(slice(*cut) for cut in cuts)]


@_moving("tile")
def _tile(site: CodeSite, n: np.ndarray) -> np.ndarray:
    return np.tile(n, site.params["reps"])


@_moving("rev")
def _rev(site: CodeSite, n: np.ndarray) -> np.ndarray:
    return np.flip(n, site.params["dimensions"])


for _name in ("reshape", "squeeze", "expand_dims"):

    def _same(site: CodeSite) -> list[Vec]:
        if site.params.get("dimensions") is not None and site.name == "reshape":
            raise Unsupported("reshape with dimensions")
        return site.inputs[:1]

    RULES[_name] = _same


def _pad(site: CodeSite) -> list[Vec]:
    config = site.params["padding_config"]
    if any(inner or low < 0 or high < 0 for low, high, inner in config):
        raise Unsupported("pad with interior or negative padding")
    n = _numbers(site)
    widths = [(low, high) for low, high, _ in config]
    return [site.code.take(site.inputs, np.pad(n, widths, constant_values=n.size))]


def _concatenate(site: CodeSite) -> list[Vec]:
    starts = np.cumsum([0] + [v.size for v in site.inputs])
    parts = [_numbers(site, k) + starts[k] for k in range(len(site.inputs))]
    return [site.code.take(site.inputs, np.concatenate(parts, site.params["dimension"]))]


def _stack(site: CodeSite) -> list[Vec]:
    starts = np.cumsum([0] + [v.size for v in site.inputs])
    parts = [_numbers(site, k) + starts[k] for k in range(len(site.inputs))]
    return [site.code.take(site.inputs, np.stack(parts, site.params["axis"]))]


def _unstack(site: CodeSite) -> list[Vec]:
    rows = np.moveaxis(_numbers(site), site.params["axis"], 0)
    return [site.code.take(site.inputs, row) for row in rows]


def _split(site: CodeSite) -> list[Vec]:
    cuts = np.cumsum(site.params["sizes"])[:-1]
    parts = np.split(_numbers(site), cuts, axis=site.params["axis"])
    return [site.code.take(site.inputs, p) for p in parts]


def _iota(site: CodeSite) -> list[Vec]:
    code, shape, dtype = site.code, site.out_shapes[0], site.out_dtypes[0]
    size = shape[site.params["dimension"]]
    values = [code.literal(dtype, k) for k in range(size)]
    return [code.take(values, np.indices(shape)[site.params["dimension"]])]


RULES |= {
    "pad": _pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "iota": _iota,
}


# -- reductions within one element ----------------------------------------------------------


def identity(kind: str, dtype: np.dtype) -> float | int:
    """What a reduction over nothing starts with."""
    if kind in ("sum", "or", "prod"):
        return 1 if kind == "prod" else 0
    if kind == "and":
        return -1
    sign = -1 if kind == "max" else 1
    if is_float(dtype):
        return sign * math.inf
    if dtype == np.bool_:
        return int(sign > 0)
    info = np.iinfo(dtype)
    return int(info.max if sign > 0 else info.min)


def combiner(code: Codegen, kind: str, dtype: np.dtype) -> Callable[[Vec, Vec], Vec]:
    """The binary operation of a reduction, on values."""
    if kind in ("sum", "prod"):
        fn = arithmetic(code, "add" if kind == "sum" else "mul", dtype)
    elif kind in ("and", "or"):
        fn = getattr(code.b, f"{kind}_")
    else:
        fn = extremum(code, kind, dtype)
    return lambda a, b: code.map(("reduce", kind), dtype, fn, a, b)


def _reduction(kind: str) -> None:
    def rule(site: CodeSite) -> list[Vec]:
        (x,), axes = site.inputs, tuple(site.params["axes"])
        shape = site.shapes[0]
        kept = [a for a in range(len(shape)) if a not in axes]
        size = math.prod(shape[a] for a in kept)
        if x.size == 0:
            return [site.code.literal(x.dtype, identity(kind, x.dtype), size)]
        groups = _numbers(site).transpose([*kept, *axes]).reshape(size, -1)
        return [site.code.fold(combiner(site.code, kind, x.dtype), x, groups)]

    RULES[f"reduce_{kind}"] = rule


for _name in ("sum", "max", "min", "prod", "and", "or"):
    _reduction(_name)


def _dot_general(site: CodeSite) -> list[Vec]:
    """Sum over k of lhs[left[:, k]] * rhs[right[:, k]]."""
    code, dtype = site.code, site.out_dtypes[0]
    lhs, rhs = (convert(code, v, dtype) for v in site.inputs)
    left, right = _contraction(site)
    out, inner = left.shape
    if out * inner > MAX_CONTRACTION:
        raise Unsupported(f"a matmul on the edges: dot_general with {out * inner} multiplications")
    if out == 0 or inner == 0:
        return [code.literal(dtype, 0, out)]
    plus = combiner(code, "sum", dtype)
    times = arithmetic(code, "mul", dtype)

    def product(index_left: np.ndarray, index_right: np.ndarray) -> Vec:
        a, b = code.take([lhs], index_left), code.take([rhs], index_right)
        return code.map("mul", dtype, times, a, b)

    if out < code.lanes:  # few long dot products: multiply whole chunks, then fold
        return [code.fold(plus, product(left, right), np.arange(left.size).reshape(left.shape))]
    total = product(left[:, 0], right[:, 0])
    for k in range(1, inner):
        total = plus(total, product(left[:, k], right[:, k]))
    return [total]


def _contraction(site: CodeSite) -> tuple[np.ndarray, np.ndarray]:
    """Scalar numbers of both operands, `[outputs, contracted]`."""
    (sum_left, sum_right), (batch_left, batch_right) = site.params["dimension_numbers"]
    left, right = _numbers(site, 0), _numbers(site, 1)
    free_left = [a for a in range(left.ndim) if a not in (*sum_left, *batch_left)]
    free_right = [a for a in range(right.ndim) if a not in (*sum_right, *batch_right)]
    inner = math.prod(left.shape[a] for a in sum_left)
    batch = math.prod(left.shape[a] for a in batch_left)
    left = left.transpose([*batch_left, *free_left, *sum_left]).reshape(batch, -1, 1, inner)
    right = right.transpose([*batch_right, *free_right, *sum_right]).reshape(batch, 1, -1, inner)
    left, right = np.broadcast_arrays(left, right)
    return left.reshape(-1, inner), right.reshape(-1, inner)


RULES["dot_general"] = _dot_general
