"""What one JAX primitive costs per scalar, and what its derivative needs.

A table by name. An operation that is not in it is an error, never free: whoever asks then decides
without the model and says so.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from gnnjit import _compat
from gnnjit.errors import GnnjitError
from gnnjit.ir.dtypes import is_inexact


class UnknownOperation(GnnjitError):
    """The cost model has no figure for an operation."""


@dataclasses.dataclass(frozen=True)
class OpCost:
    """What an operation costs, per scalar of its result (of its operand, for `sum`).

    rule: how it is differentiated: `view` (moves or repeats scalars), `linear`, `mul`, `div`,
        `select`, `sum` (within an element), `dot`, `smooth` (times a derivative made of operand and
        result), `none`.
    arithmetic, transcendental: instructions, and evaluations of exp, log and their like.
    in_kernels: whether CPU kernels have code for it; XLA does it in chunks of edges otherwise.
    """

    rule: str
    arithmetic: float = 0.0
    transcendental: float = 0.0
    in_kernels: bool = True


_XLA_ALONE = (
    "bessel_i0e bessel_i1e lgamma digamma polygamma zeta erf_inv igamma igammac igamma_grad_a "
    "random_gamma_grad regularized_incomplete_beta nextafter real imag clz reduce_xor "
    "reduce_precision argmax argmin sort cumsum cumprod cummax cummin "
    "random_bits random_wrap random_unwrap threefry2x32"
)
"""What CPU kernels have no code for."""


def _table() -> dict[str, OpCost]:
    rows: dict[OpCost, str] = {
        OpCost("view"): "broadcast_in_dim reshape squeeze expand_dims transpose copy copy_p slice "
        "rev concatenate pad gather split dynamic_slice reduce_precision convert_element_type "
        "kept optimization_barrier stack tile unstack",
        OpCost("none"): "stop_gradient iota",
        OpCost("linear", 1): "add sub add_any neg at_most",
        OpCost("mul", 1): "mul",
        OpCost("div", 4): "div",
        OpCost("select", 1): "select_n",
        OpCost("sum", 1): "reduce_sum cumsum",
        OpCost("dot"): "dot_general",
        OpCost("smooth", 1): "max min abs sign square floor ceil round clamp rem nextafter "
        "reduce_max reduce_min cummax cummin real imag",
        OpCost("smooth", 2): "integer_pow one_minus_square reduce_prod cumprod",
        OpCost("smooth", 6): "sqrt rsqrt",
        OpCost("smooth", 16): "polynomial",
        OpCost("smooth", 0, 1): "exp exp2 expm1 log log1p log2 tanh logistic erf erfc sin cos tan "
        "sinh cosh asin acos atan asinh acosh atanh cbrt",
        OpCost("smooth", 0, 2): "pow atan2 erf_inv lgamma digamma bessel_i0e bessel_i1e",
        OpCost("smooth", 0, 20): "igamma igammac igamma_grad_a random_gamma_grad polygamma zeta "
        "regularized_incomplete_beta",
        OpCost("none", 1): "eq ne lt le gt ge and or not xor is_finite shift_left "
        "shift_right_logical shift_right_arithmetic bitcast_convert_type population_count "
        "argmax argmin reduce_and reduce_or reduce_xor sort random_bits random_wrap "
        "random_unwrap threefry2x32 clz mulhi",
    }
    table = {name: cost for cost, names in rows.items() for name in names.split()}
    return table | {n: dataclasses.replace(table[n], in_kernels=False) for n in _XLA_ALONE.split()}


TABLE = _table()
_CALLS = ("custom_jvp_call", "custom_vjp_call", "cond", "while", "scan", "jit", "pjit")


def cost(op: Any, dtype: Any) -> OpCost:
    """The cost of an operation. Raises UnknownOperation for one that the table does not have."""
    name = op.name
    known = TABLE.get(name)
    if known is None:
        known = _inside(op)
    if not is_inexact(dtype):
        return _without_derivative(known)
    return known


@functools.cache
def _without_derivative(known: OpCost) -> OpCost:
    return dataclasses.replace(known, rule="none")


def _inside(op: Any) -> OpCost:
    """A call (a custom derivative, a condition): all that is inside it, once."""
    names = list(_compat.primitive_names(op)) if op.name in _CALLS else []
    names = [n for n in names if n not in _CALLS]
    missing = sorted({n for n in names if n not in TABLE} or ({op.name} if not names else ()))
    if missing:
        raise UnknownOperation(
            f"the cost model has no figure for {', '.join(missing)}: add it to "
            "gnnjit/cost/operations.py"
        )
    arithmetic = sum(TABLE[n].arithmetic for n in names)
    functions = sum(TABLE[n].transcendental for n in names)
    return OpCost("smooth", arithmetic, functions, all(TABLE[n].in_kernels for n in names))
