"""Each primitive that has a rule on tiles is lowered for a GPU; what it computes is tested
elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest
from jax import lax

import gnnjit
from gnnjit.frontend.capture import capture, inline_custom_calls
from gnnjit.ir.at_most import at_most
from gnnjit.ir.program import Lax, Value
from gnnjit.ir.space import Space
from gnnjit.lower.pallas import kernel, tile
from lower.requests import request

E = 24
F32, I32, U32, BOOL = (np.dtype(t) for t in ("float32", "int32", "uint32", "bool"))


def bind(name: str, **params: Any) -> Callable[..., Any]:
    """The primitive itself; the public function of the name may decompose."""
    return lambda *args: getattr(lax, f"{name}_p").bind(*args, **params)


UNARY = """acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erf_inv erfc exp exp2 expm1 floor
    is_finite log log1p log2 logistic one_minus_square rsqrt sin sinh sqrt tan tanh"""
BINARY = "add div eq ge gt le lt max min mul ne rem sub"
BITS = "and or xor shift_left shift_right_arithmetic shift_right_logical"

ONE = ((4,), F32)
FUNCTIONS: dict[str, list[tuple[Any, ...]]] = {
    # name: (function, (shape, dtype) of each argument...), ...
    **{name: [(getattr(lax, name, None), ONE)] for name in UNARY.split()},
    **{
        name: [(getattr(lax, name), ((4,), t), ((4,), t)) for t in (F32, I32)]
        for name in BINARY.split()
    },
    **{
        name: [
            (getattr(lax, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(
                name, name)), ((4,), t), ((4,), t))
            for t in ((I32, BOOL) if name in ("and", "or", "xor") else (I32, U32))
        ]
        for name in BITS.split()
    },
    "abs": [(lax.abs, ONE), (lax.abs, ((4,), I32))],
    "neg": [(lax.neg, ONE), (lax.neg, ((4,), I32))],
    "sign": [(lax.sign, ONE), (lax.sign, ((4,), I32))],
    "square": [(lax.square, ONE), (lax.square, ((4,), I32))],
    "not": [(lax.bitwise_not, ((4,), I32)), (lax.bitwise_not, ((4,), BOOL))],
    "clz": [(lax.clz, ((4,), I32))],
    "population_count": [(lax.population_count, ((4,), I32))],
    "pow": [(lax.pow, ONE, ONE), (lax.pow, ONE, ((4,), I32))],
    "atan2": [(lax.atan2, ONE, ONE)],
    "nextafter": [(lax.nextafter, ONE, ONE)],
    "integer_pow": [
        *((lambda x, n=n: lax.integer_pow(x, n), ONE) for n in (-2, 3)),
        (lambda x: lax.integer_pow(x, 3), ((4,), I32)),
    ],
    "add_any": [(lambda x: jax.vjp(lambda a: (a, a), x)[1]((x, lax.sin(x))), ONE)],
    "at_most": [(at_most, ONE, ONE)],
    "clamp": [(lambda x: lax.clamp(np.float32(0), x, np.float32(1)), ONE)],
    "select_n": [
        (lax.select, ((4,), BOOL), ONE, ONE),
        (lax.select, ((4,), BOOL), ((4,), I32), ((4,), I32)),
    ],
    "round": [
        (lambda x, m=m: lax.round(x, m), ONE) for m in lax.RoundingMethod
    ],
    "polynomial": [
        (hasattr(lax, "polynomial") and (lambda x: lax.polynomial(x, (1.0, -2.0, 0.5))), ONE)
    ],
    "convert_element_type": [
        *((lambda x, t=t: lax.convert_element_type(x, t), ((4,), s))
          for s, t in ((F32, I32), (I32, F32), (BOOL, F32), (F32, np.dtype("float16")))),
    ],
    "bitcast_convert_type": [
        (lambda x: lax.bitcast_convert_type(x, U32), ONE),
        (lambda x: lax.bitcast_convert_type(x, F32), ((4,), I32)),
    ],
    "copy": [(bind("copy"), ONE)],
    "copy_p": [(bind("copy"), ONE)],
    "optimization_barrier": [(lax.optimization_barrier, ONE)],
    "stop_gradient": [(lax.stop_gradient, ONE)],
    "broadcast_in_dim": [
        (lambda x: lax.broadcast_in_dim(x, (3, 4), (1,)), ONE),
        (lambda x: lax.broadcast_in_dim(x, (3,), ()), ((), F32)),
    ],
    "reshape": [(lambda x: lax.reshape(x, (2, 2)), ONE)],
    "squeeze": [(lambda x: lax.squeeze(x, (0,)), ((1, 4), F32))],
    "expand_dims": [(lambda x: lax.expand_dims(x, (1,)), ONE)],
    "transpose": [(lambda x: lax.transpose(x, (1, 0)), ((4, 3), F32))],
    "iota": [(lambda x: x + lax.iota(x.dtype, 4), ONE)],
    **{
        f"reduce_{name}": [
            (lambda x, axis=axis, fn=fn: fn(x, axis), ((4, 3), t))
            for t in (F32, I32) for axis in (0, 1, None)
        ]
        for name, fn in (("sum", jnp.sum), ("max", jnp.max), ("min", jnp.min))
    },
    "reduce_and": [(lambda x: jnp.all(x, 0), ((3, 2), BOOL))],
    "reduce_or": [(lambda x: jnp.any(x, 1), ((3, 2), BOOL))],
    "cumsum": [(lambda x: lax.cumsum(x, 0), ((3, 2), F32)), (lax.cumsum, ((4,), I32))],
    "concatenate": [(lambda x, y: lax.concatenate([x, y], 0), ONE, ONE)],
    "slice": [(lambda x: lax.slice(x, (2,), (4,)), ONE)],
    "split": [(lambda x: lax.split(x, (2, 2), 0), ONE)],
    "stack": [(lambda x, y: jnp.stack([x, y], axis=1), ONE, ONE)],
    "dot_general": [
        (jnp.dot, ONE, ONE),
        (jnp.dot, ONE, ((4, 3), F32)),
        (jnp.dot, ((4,), I32), ((4,), I32)),
        (lambda x, y: jnp.einsum("hf,hf->h", x, y), ((2, 4), F32), ((2, 4), F32)),
    ],
}  # fmt: skip
CASES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name, cases in FUNCTIONS.items()
    for number in range(len(cases))
]
GRAPH = gnnjit.Graph.from_edges(np.arange(E) % 5, np.arange(E) % 7, num_nodes=9)


def test_every_rule_has_a_function() -> None:
    assert set(FUNCTIONS) == set(tile.RULES)


def program(name: str, fn: Any, *arguments: tuple[tuple[int, ...], np.dtype]) -> Any:
    """The body of `fn` on values of the edges."""
    values = [Value(shape, dtype, Space.EDGE) for shape, dtype in arguments]
    body = inline_custom_calls(capture(fn, values).program)
    made = {e.op.name for e in body.equations if isinstance(e.op, Lax)}
    if name not in made:
        pytest.skip(f"JAX {jax.__version__} writes it with {', '.join(sorted(made)) or 'nothing'}")
    return body


def lowered(body: Any, reductions: Any) -> Any:
    operands = [jax.ShapeDtypeStruct((E, *v.shape), v.dtype) for v in body.inputs]

    def run(graph: Any, *operands: Any) -> Any:
        return kernel.run(request(body, reductions, graph=graph), operands)

    return pallas.lower_for_cuda(pallas.trace_for_cuda(run, GRAPH, *operands))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_rule_lowers(name: str, number: int) -> None:
    fn, *arguments = FUNCTIONS[name][number]
    if not fn:
        pytest.skip(f"JAX {jax.__version__} has no lax.{name}")
    body = program(name, fn, *arguments)
    reductions = (None,) * len(body.outputs)
    assert kernel.why_not(request(body, reductions)) == []
    assert pallas.custom_calls(lowered(body, reductions)) == ["__gpu$xla.gpu.triton"]
