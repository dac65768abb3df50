"""The lowering of a traversal to the Mosaic GPU backend of Pallas.

The values of one edge are scalars and vectors; `RULES` has every primitive that works on both.
What is missing there either has no lowering in Mosaic GPU (pow, log1p, expm1, floor, dot_general,
the inverse and hyperbolic functions), or only one for scalars (erf, rem, atan2), measured by
lowering with JAX 0.10.2 and 0.12. Half precision is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.ir.program import Equation, Lax, Literal, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import LoweringRequest
from gnnjit.lower.pallas import limits
from gnnjit.lower.pallas.launch import plan_of
from gnnjit.lower.pallas.tile import working_dtype
from pallas_kernels import mosaic
from pallas_kernels.mosaic import full
from pallas_kernels.traversal import TileOperand, TileOutput, TileProgram

Rule = Callable[[Equation, Sequence[Any]], Any]
"""The output of an equation from its arguments, which have the shape of the output if the rule
is in `ELEMENTWISE`."""

DTYPES = (jnp.float32, jnp.bfloat16)
CAPABILITY = 9.0
"""Hopper. Mosaic GPU names Ampere too, on which no project test has run."""


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    body = request.body
    out = mosaic.missing() + _device() + _reductions(request.reductions, request.rows)
    out += limits.too_many(request)
    for v in (*body.values(), *(a for a in body.outputs if isinstance(a, Literal))):
        out += _value(v)
    for v in (*body.inputs, *body.outputs):  # masks are for use between them
        out += _dtype(v.dtype)
    for eqn in body.equations:
        out += _equation(eqn)
    return list(dict.fromkeys(out))


def _device() -> list[str]:
    """Reasons of the GPU of this host; the code may be for another host's."""
    if jax.default_backend() != "gpu":
        return []
    found = float(getattr(jax.local_devices()[0], "compute_capability", CAPABILITY))
    if found >= CAPABILITY:
        return []
    return [f"the GPU's compute capability is {found}, Mosaic GPU kernels are for {CAPABILITY} up"]


def _reductions(reductions: Sequence[Reduce | None], by: Space) -> list[str]:
    out = []
    for r in reductions:
        if r is None:
            continue
        if r.into is Space.SHARED:
            out.append("no Mosaic GPU kernel code for reductions over all edges")
        elif r.into is not by:
            out.append(f"a reduction into {r.into.value} in a traversal by {by.value}")
        if r.kind not in mosaic.KINDS:
            out.append(f"no Mosaic GPU kernel code for {r.kind}")
    return out


def _value(v: Any) -> list[str]:
    out = [] if v.dtype == jnp.bool_ else _dtype(v.dtype)
    shape = tuple(v.shape)
    if len(shape) > 1:
        out.append(f"Mosaic GPU kernels take scalars and vectors on the edges, not {list(shape)}")
    elif shape and shape[0] not in mosaic.WIDTHS:
        widths = ", ".join(map(str, mosaic.WIDTHS))
        out.append(f"Mosaic GPU kernels take vectors of {widths}, not of {shape[0]}")
    return out


def _dtype(dtype: Any) -> list[str]:
    if dtype in DTYPES:
        return []
    return [f"no Mosaic GPU kernel code for values of type {dtype}"]


def _equation(eqn: Equation) -> list[str]:
    name = eqn.op.name
    if not isinstance(eqn.op, Lax) or name not in RULES:
        return [f"no Mosaic GPU kernel code for the primitive {name}"]
    if name in _NEEDS and not _NEEDS[name](eqn):
        shapes = ", ".join(str(list(a.shape)) for a in eqn.inputs)
        return [f"no Mosaic GPU kernel code for this form of {name} (of {shapes})"]
    return []


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    """On a CPU, the kernels are interpreted: outside the rule of a primitive, if
    `mosaic.can_interpret()`."""
    structure = request.structure
    return mosaic.run(
        traversal_of(request.body, request.reductions, request.rows),
        plan_of(structure),
        structure.neighbor,
        structure.edge,
        operands,
        structure.num_rows,
        interpret=request.platform == "cpu",
        mask=request.graph.mask,
    )


def traversal_of(body: Program, reductions: Sequence[Reduce | None], by: Space) -> TileProgram:
    places = {by: "row", by.flipped: "neighbor", Space.EDGE: "edge", Space.SHARED: "shared"}
    return TileProgram(
        lambda values: enumerate(evaluate(body, values)),
        tuple(TileOperand(places[v.space], tuple(v.shape), v.dtype) for v in body.inputs),
        tuple(
            TileOutput(r and r.kind, tuple(o.shape), o.dtype)
            for o, r in zip(body.outputs, reductions, strict=True)
        ),
    )


def evaluate(body: Program, values: Sequence[Any]) -> list[Any]:
    """The outputs for one edge, from its inputs, `[*shape]` each."""
    env: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return jnp.full((), np.asarray(atom.value), working_dtype(atom.dtype))
        return env[atom]

    for value, x in zip(body.inputs, values, strict=True):
        env[value] = x.astype(working_dtype(value.dtype))
    for eqn in body.equations:
        (out,) = eqn.outputs
        args = [read(a) for a in eqn.inputs]
        if eqn.op.name in ELEMENTWISE:
            args = [full(x, tuple(out.shape)) for x in args]
        env[out] = RULES[eqn.op.name](eqn, args)
    return [read(o) for o in body.outputs]


# ------------------------------------------------------------------------------ primitives


def _same(eqn: Equation, args: Sequence[Any]) -> Any:
    """The primitive itself."""
    assert isinstance(eqn.op, Lax)
    op = eqn.op.primitive
    return op.bind(*args, **op.get_bind_params(dict(eqn.op.params)))


def _compare(eqn: Equation, args: Sequence[Any]) -> Any:
    """Half precision is compared as rounded: the gradient of max looks for what was written."""
    dtypes = [a.dtype for a in eqn.inputs]
    return _same(eqn, [x.astype(d).astype(x.dtype) for x, d in zip(args, dtypes, strict=True)])


def _simple(fn: Callable[..., Any]) -> Rule:
    return lambda eqn, args: fn(*args)


def _convert(eqn: Equation, args: Sequence[Any]) -> Any:
    (x,), dtype = args, working_dtype(eqn.outputs[0].dtype)
    if x.dtype == dtype:
        return x
    if dtype == jnp.bool_:
        return x != jnp.zeros_like(x)
    return lax.select(x, jnp.ones_like(x, dtype), jnp.zeros_like(x, dtype))


def _integer_pow(eqn: Equation, args: Sequence[Any]) -> Any:
    assert isinstance(eqn.op, Lax)
    (x,), power = args, eqn.op["y"]
    if power == 0:
        return jnp.ones_like(x)
    whole = x if abs(power) == 1 else lax.integer_pow(x, abs(power))
    return whole if power > 0 else jnp.ones_like(x) / whole


def _whole(fn: Callable[..., Any]) -> Rule:
    """A vector to a scalar; a scalar, over no axes, to itself."""
    return lambda eqn, args: fn(args[0]) if args[0].ndim else args[0]


ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "abs add and cos div exp exp2 log log2 logistic max min mul neg or round rsqrt "
            "select_n sign sin square sub tanh xor"
        ).split(),
        _same,
    ),
    **dict.fromkeys("eq ge gt le lt ne".split(), _compare),
    **dict.fromkeys(
        ("copy", "copy_p", "optimization_barrier", "stop_gradient"), _simple(lambda x: x)
    ),
    "add_any": _simple(lax.add),
    "at_most": _simple(lax.min),
    "clamp": _simple(lambda low, x, high: lax.min(lax.max(x, low), high)),
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "is_finite": _simple(lambda x: lax.abs(x) < jnp.full_like(x, np.inf)),
    "not": _simple(lambda x: lax.bitwise_xor(x, jnp.ones_like(x))),
    "one_minus_square": _simple(lambda x: (jnp.ones_like(x) - x) * (jnp.ones_like(x) + x)),
    # 0.10.2 lowers rsqrt alone.
    "sqrt": _simple(lambda x: jnp.ones_like(x) / lax.rsqrt(x)),
}

RULES: dict[str, Rule] = {
    **ELEMENTWISE,
    "broadcast_in_dim": lambda eqn, args: full(args[0], tuple(eqn.outputs[0].shape)),
    "reduce_sum": _whole(jnp.sum),
    "reduce_max": _whole(jnp.max),
    "reduce_min": _whole(jnp.min),
}
"""Every primitive that Mosaic GPU kernels have code for."""


_NEEDS: dict[str, Callable[[Equation], bool]] = {
    "broadcast_in_dim": lambda e: not e.inputs[0].shape or e.inputs[0].shape == e.outputs[0].shape,
    "select_n": lambda e: e.inputs[0].dtype == jnp.bool_,
}
