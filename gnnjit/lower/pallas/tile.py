"""The edge function on tiles: one edge a lane, feature axes padded to powers of two.

A value of the element shape `[F]` is the tile `[lanes, padded(F)]`, or `[1, padded(F)]` if it is
the same for all edges. Padded entries hold anything: rules that mix entries of an element clear
them first. Half precision is computed in float32, and rounded where it is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.ir.dtypes import is_extended
from gnnjit.ir.program import Atom, Equation, Lax, Literal, Program, Value, needed
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import Unsupported
from pallas_kernels import special, triton
from pallas_kernels.traversal import accumulator_dtype, padded

MAX_SCALARS = 8192
"""Scalars of one value, per edge, that a tile may hold."""


@dataclasses.dataclass(frozen=True)
class TileSite:
    """One equation, with its arguments as tiles."""

    eqn: Equation
    args: tuple[Any, ...]

    @property
    def op(self) -> Lax:
        assert isinstance(self.eqn.op, Lax)
        return self.eqn.op

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.op.params)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Element shapes of the arguments."""
        return [tuple(a.shape) for a in self.eqn.inputs]

    @property
    def out(self) -> Value:
        return self.eqn.outputs[0]

    @property
    def dtype(self) -> Any:
        """What the output is computed in."""
        return working_dtype(self.out.dtype)


Rule = Callable[[TileSite], Sequence[Any]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def working_dtype(dtype: Any) -> Any:
    return np.dtype(accumulator_dtype(dtype))


def evaluate(body: Program, tiles: Sequence[Any], wanted: Sequence[Atom]) -> dict[Any, Any]:
    """The tiles of the atoms `wanted`, and of what they are computed from."""
    *_, last = steps(body, tiles, wanted)
    return last


def steps(body: Program, tiles: Sequence[Any], wanted: Sequence[Atom]) -> Iterator[dict[Any, Any]]:
    """`evaluate`, equation by equation: the tiles so far."""
    env: dict[Any, Any] = {}
    for value, tile in zip(body.inputs, tiles, strict=True):
        env[value] = tile.astype(working_dtype(value.dtype))
    yield env
    for eqn in needed(body.equations, wanted):
        assert isinstance(eqn.op, Lax), eqn.op
        site = TileSite(eqn, tuple(read(env, a) for a in eqn.inputs))
        env.update(zip(eqn.outputs, RULES[eqn.op.name](site), strict=True))
        yield env


def read(env: dict[Any, Any], atom: Any) -> Any:
    """The tile of an atom."""
    if isinstance(atom, Literal):
        return jnp.full((1,), np.asarray(atom.value), working_dtype(atom.dtype))
    return env[atom]


def reasons(body: Program, wanted: Sequence[Atom]) -> list[str]:
    """Why `wanted` cannot be evaluated on tiles, as far as single equations tell."""
    equations = needed(body.equations, wanted)
    ops = [e.op for e in equations]
    names = {op.name for op in ops if not isinstance(op, Lax) or op.name not in RULES}
    out = [f"no GPU kernel code for the primitive {name}" for name in sorted(names)]
    for v in (*body.inputs, *(o for e in equations for o in e.outputs)):
        number = not is_extended(v.dtype) and (
            np.dtype(v.dtype).kind in "fiub" or accumulator_dtype(v.dtype) is not v.dtype
        )
        if not number:
            out.append(f"no GPU kernel code for values of type {v.dtype}")
        if v.size == 0:
            out.append("a value without scalars")
        if v.space is not Space.SHARED and math.prod(padded(v.shape)) > MAX_SCALARS:
            out.append(f"a value of {v.size} scalars an edge fits no tile")
    return list(dict.fromkeys(out))


def as_shape(tile: Any, shape: tuple[int, ...], wanted: tuple[int, ...], lanes: int) -> Any:
    """A tile of the element shape `shape` (scalar, or `wanted` itself) as one of `wanted`."""
    target = (lanes, *padded(wanted))
    if not shape and wanted:
        tile = triton.reshape(tile, (tile.shape[0], *(1,) * len(wanted)))
    return tile if tile.shape == target else jnp.broadcast_to(tile, target)


def aligned(site: TileSite) -> list[Any]:
    """The arguments of an elementwise operation, all of one shape."""
    lanes = max(a.shape[0] for a in site.args)
    wanted = tuple(site.out.shape)
    return [as_shape(a, s, wanted, lanes) for a, s in zip(site.args, site.shapes, strict=True)]


def clear(tile: Any, shape: Sequence[int], otherwise: Any = 0) -> Any:
    """`tile` with a constant in the padding."""
    keep = None
    for axis, (size, full) in enumerate(zip(shape, padded(shape), strict=True), 1):
        if size != full:
            inside = lax.broadcasted_iota(jnp.int32, tile.shape, axis) < size
            keep = inside if keep is None else keep & inside
    return tile if keep is None else jnp.where(keep, tile, jnp.full_like(tile, otherwise))


# ------------------------------------------------------------------------------- elementwise


def _same(site: TileSite) -> Sequence[Any]:
    """The primitive itself, on tiles."""
    args = aligned(site)
    op = site.op.primitive
    return [op.bind(*args, **op.get_bind_params(site.params))]


for _name in (
    "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clz cos cosh div eq erf_inv exp "
    "exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt mul ne neg "
    "nextafter not or population_count pow rem rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square sub tan tanh xor"
).split():
    RULES[_name] = _same


@rule("add_any")
def _add(site: TileSite) -> Sequence[Any]:
    a, b = aligned(site)
    return [a + b]


@rule("max")
def _max(site: TileSite) -> Sequence[Any]:
    return [_extreme(site, triton.maximum)]


@rule("min")
def _min(site: TileSite) -> Sequence[Any]:
    return [_extreme(site, triton.minimum)]


def _extreme(site: TileSite, of: Any) -> Any:
    a, b = aligned(site)
    first, second = map(_is_number, site.eqn.inputs)
    return of(b, a, number=True) if first else of(a, b, number=second)


def _is_number(atom: Atom) -> bool:
    """Whether it is known not to be NaN."""
    return isinstance(atom, Literal) and bool(atom.value == atom.value)


@rule("at_most")
def _at_most(site: TileSite) -> Sequence[Any]:
    x, top = aligned(site)
    return [jnp.where(x > top, top, x)]


@rule("clamp")
def _clamp(site: TileSite) -> Sequence[Any]:
    low, x, high = aligned(site)
    least, _, most = map(_is_number, site.eqn.inputs)
    return [triton.minimum(triton.maximum(x, low, number=least), high, number=most)]


@rule("copy", "copy_p", "optimization_barrier", "stop_gradient")
def _copy(site: TileSite) -> Sequence[Any]:
    return list(site.args)


@rule("convert_element_type")
def _convert(site: TileSite) -> Sequence[Any]:
    (x,) = site.args
    return [x if x.dtype == site.dtype else x.astype(site.dtype)]


@rule("bitcast_convert_type")
def _bitcast(site: TileSite) -> Sequence[Any]:
    (x,), (given,), made = site.args, site.eqn.inputs, site.out.dtype
    if (x.dtype, site.dtype) != (given.dtype, made) or x.dtype.itemsize != made.itemsize:
        raise Unsupported(f"the bits of {given.dtype} as {made} have no GPU kernel code")
    return [lax.bitcast_convert_type(x, site.dtype)]


@rule("log2")
def _log2(site: TileSite) -> Sequence[Any]:
    (x,) = aligned(site)
    return [jnp.log(x) * np.asarray(1 / math.log(2), x.dtype)]


@rule("one_minus_square")
def _one_minus_square(site: TileSite) -> Sequence[Any]:
    (x,) = aligned(site)
    one = jnp.ones_like(x)
    return [(one - x) * (one + x)]


@rule("round")
def _round(site: TileSite) -> Sequence[Any]:
    (x,) = aligned(site)
    if site.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return [_round_to_even(x)]
    whole = jnp.floor(jnp.abs(x))
    up = jnp.abs(x) - whole >= 0.5
    return [jnp.sign(x) * jnp.where(up, whole + 1, whole)]


def _round_to_even(x: Any) -> Any:
    """Exact without a rounding instruction: the two nearest whole numbers, and the even of them."""
    low = jnp.floor(x)
    rest = x - low
    odd = low - 2 * jnp.floor(low * 0.5) > 0.5
    up = (rest > 0.5) | ((rest == 0.5) & odd)
    return jnp.where(up, low + 1, low)


@rule("polynomial")
def _polynomial(site: TileSite) -> Sequence[Any]:
    """Horner's rule; the coefficients come after the argument, lowest power first."""
    x, *coefficients = aligned(site)
    total = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return [total]


@rule("erf")
def _erf(site: TileSite) -> Sequence[Any]:
    (x,) = aligned(site)
    _single(site)
    return [special.erf(x)]


@rule("erfc")
def _erfc(site: TileSite) -> Sequence[Any]:
    (x,) = aligned(site)
    _single(site)
    return [special.erfc(x)]


def _single(site: TileSite) -> None:
    if site.dtype != np.float32:
        raise Unsupported(f"{site.op.name} of {site.out.dtype} has no GPU kernel code")


def check(body: Program, wanted: Sequence[Atom], lanes: int = 16) -> None:
    """Raise Unsupported where a rule refuses its equation."""
    tiles = [
        jax.ShapeDtypeStruct(
            (1 if v.space is Space.SHARED else lanes, *padded(v.shape)), working_dtype(v.dtype)
        )
        for v in body.inputs
    ]
    jax.eval_shape(lambda *xs: list(evaluate(body, xs, wanted).values()), *tiles)
