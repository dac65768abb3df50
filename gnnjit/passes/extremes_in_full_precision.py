"""`extremes-in-full-precision`: products that decide a maximum are computed in full float32.

before:  m: f32[edge, 8] = h @ W                 after:  m: f32[edge, 8] = h @ W, precision=HIGHEST
         y: f32[dst, 8] = max over (u -> v) of m

The gradient of a maximum goes to the edges that attain it, and the edges' values are computed again
to find them. GPUs round float32 operands of products to tf32, but not in every lowering: a value of
one would miss the maximum of another by far more than rounding.

Legal: nothing but rounding changes, whatever precision the user asked for. Refuses products of
other types than float32, those outside the edges, and what only sums read.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import lax

from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Reduce, rewrite
from gnnjit.ir.space import Space

FULL = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class ExtremesInFullPrecision:
    name: str = "extremes-in-full-precision"

    def __call__(self, program: Program) -> Program:
        deciding = _deciding(program)

        def rule(builder: Builder, eqn: Equation) -> bool:
            if eqn not in deciding:
                return False
            assert isinstance(eqn.op, Lax)
            op = in_full_precision(eqn.op)
            builder.emit(op, [builder[a] for a in eqn.inputs], eqn.outputs, eqn.location)
            return True

        return rewrite(program, rule) if deciding else program


def in_full_precision(op: Lax) -> Lax:
    """The same product."""
    params = tuple((k, FULL if k == "precision" else p) for k, p in op.params)
    return dataclasses.replace(op, params=params)


def _deciding(program: Program) -> set[Equation]:
    """The products that a maximum or minimum is computed from."""
    read: set[Atom] = set()
    found: set[Equation] = set()
    for eqn in reversed(program.equations):
        extreme = isinstance(eqn.op, Reduce) and eqn.op.kind in ("max", "min")
        if not extreme and (eqn.space is not Space.EDGE or read.isdisjoint(eqn.outputs)):
            continue
        read.update(eqn.inputs)
        if _may_be_rounded(eqn):
            found.add(eqn)
    return found


def _may_be_rounded(eqn: Equation) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return False
    single = all(a.dtype == jnp.float32 for a in (*eqn.inputs, *eqn.outputs))
    return single and eqn.op["precision"] != FULL
