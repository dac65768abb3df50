"""Whether a program is linear in some of its inputs, and if not, where."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.ir.evaluate import bind
from gnnjit.ir.program import Atom, Equation, Lax, Pool, Program, Reduce, op_key


def nonlinear(program: Program, roots: set[int]) -> Equation | None:
    """The first equation that is not linear in what depends on the inputs numbered `roots`."""
    dependent: set[Atom] = {v for i, v in enumerate(program.inputs) if i in roots}
    for eqn in program.equations:
        at = tuple(i for i, a in enumerate(eqn.inputs) if a in dependent)
        if not at:
            continue
        if not is_linear(eqn, at):
            return eqn
        dependent.update(eqn.outputs)
    return None


def is_linear(eqn: Equation, at: tuple[int, ...]) -> bool:
    """Whether an equation is linear in the operands numbered `at`, together; affine, too."""
    match eqn.op:
        case Reduce(kind):
            return kind == "sum" or (kind == "exp_sum" and at == (1,))
        case Pool(kind):
            return kind == "sum"
        case Lax():
            return _transposes(_Question(eqn, at))
    return True


class _Question:
    """A cache key: equal for equal operations on operands of the same kinds, with the same ones of
    them (`at`) asked about."""

    def __init__(self, eqn: Equation, at: tuple[int, ...]):
        self.eqn, self.at = eqn, at
        kinds = tuple((tuple(a.shape), a.dtype) for a in eqn.inputs)
        self.key: Hashable = (op_key(eqn.op), kinds, at)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


@functools.lru_cache(maxsize=1024)
def _transposes(question: _Question) -> bool:
    """Whether JAX can transpose the operation, as it can just the linear ones. Integers among its
    results (the counter of a loop) have no cotangent."""
    op, at, inputs = question.eqn.op, question.at, question.eqn.inputs
    assert isinstance(op, Lax)
    floats = [jnp.issubdtype(o.dtype, jnp.inexact) for o in question.eqn.outputs]
    if not any(floats):
        return False

    def backward(fixed: dict[int, Any], cotangents: list[Any]) -> Any:
        def f(*some: Any) -> list[Any]:
            every = {**fixed, **dict(zip(at, some, strict=True))}
            outs = bind(op, [every[i] for i in range(len(inputs))])
            return list(itertools.compress(outs, floats))

        return jax.linear_transpose(f, *(inputs[i].aval for i in at))(cotangents)

    fixed = {i: a.aval for i, a in enumerate(inputs) if i not in at}
    with _compat.without_mesh():
        try:
            cotangents = [o.aval for o in itertools.compress(question.eqn.outputs, floats)]
            jax.eval_shape(backward, fixed, cotangents)
        except (NotImplementedError, AssertionError, TypeError, ValueError):
            return False
    return True
