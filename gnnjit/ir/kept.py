"""`kept(x)`: the value itself, which a traversal writes on the edges when it is differentiated.

A traversal's derivative computes again what it needs of the edges, but what stands in `kept`: that
it reads from memory. A traversal that is not differentiated writes nothing.
"""

from __future__ import annotations

from typing import Any

import jax

from gnnjit import _compat
from gnnjit.ir.large_products import contracted, is_large_product, is_worth_storing
from gnnjit.ir.program import Builder, Equation, Lax, Program, Value, rewrite
from gnnjit.ir.space import Space

kept_p = _compat.Primitive("kept")

KEPT = Lax(kept_p, ())


def kept(x: jax.Array) -> jax.Array:
    """`x`."""
    return kept_p.bind(x)


@jax.custom_jvp
def recalled(x: jax.Array, memory: jax.Array) -> jax.Array:
    """`memory`, to which `x` was written, with the derivative of `x`."""
    return memory


@recalled.defjvp
def _jvp_of_recalled(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals[1], kept(tangents[0])


def kept_values(body: Program) -> list[Value]:
    """The values of edges that stand in `kept`."""
    return [e.outputs[0] for e in body.equations if e.op == KEPT and e.space is Space.EDGE]


def with_products_kept(body: Program) -> Program:
    """`body` with products in `kept` that are worth it."""

    def rule(builder: Builder, eqn: Equation) -> bool:
        if eqn.space is not Space.EDGE or not is_large_product(eqn):
            return False
        size = eqn.outputs[0].size
        if not is_worth_storing(size, size * contracted(eqn)):
            return False
        (out,) = builder.copy(eqn)
        value = Value(out.shape, out.dtype, Space.EDGE, out.name)
        builder.env[out] = builder.emit(KEPT, [out], [value], eqn.location)[0]
        return True

    return rewrite(body, rule)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return kept(x), t if type(t) is _compat.ad.Zero else kept(t)


kept_p.def_impl(lambda x: x)
kept_p.def_abstract_eval(lambda x: _compat.result_aval([x], x.shape, x.dtype))
_compat.ad.primitive_jvps[kept_p] = _jvp
_compat.ad.primitive_transposes[kept_p] = lambda ct, _: [ct]
_compat.batching.primitive_batchers[kept_p] = lambda args, dims: (kept_p.bind(*args), dims[0])
_compat.mlir.register_lowering(kept_p, _compat.lower_fun(lambda x: x, multiple_results=False))
