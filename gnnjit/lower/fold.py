"""A state of each row that its edges change, one after the other, and its derivatives.

`fold_steps` has the loops, which JAX cannot transpose. Here are rules for derivatives of any order
and in both directions, each of which is again a fold, or a gradient of one:

- The tangent of a fold is part of a fold whose state is a state and its tangent (`_dual`).
- Its transpose is the gradient, which goes back through the steps.
- The tangent of the gradient of a fold, in some direction, is part of the gradient of the dual fold
  in that direction; and it is its own transpose, up to what is not differentiated: second
  derivatives are symmetric.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from gnnjit.frontend.capture import capture
from gnnjit.graph import Graph
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Fold, Value
from gnnjit.lower.fold_steps import Sorted, backward, forward, sorted_edges
from gnnjit.lower.transposable import Arrays, transposable
from gnnjit.system.contexts import cached


def fold(
    graph: Graph, op: Fold, order: Any, start: Sequence[Any], operands: Sequence[Any]
) -> list[Any]:
    """The states after all edges, `[rows, *shape]` each, from those at the start.

    order: a number for each edge, or None for the order in which edges were given.
    operands: of the body, after its state.
    """
    if not graph.num_edges or not start:
        return list(start)
    start, operands = jax.tree.map(jnp.asarray, (list(start), list(operands)))
    return _run(op, False, sorted_edges(graph, op, order), start, operands)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _run(
    op: Fold, keep: bool, at: Sorted, start: list[Any], operands: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The states after all edges, and with `keep` those that the gradient needs, which have no
    derivative of their own."""
    return forward(op, at, start, operands, keep)


def _run_jvp(op: Fold, keep: bool, primals: Any, tangents: Any) -> Any:
    at, start, operands = primals
    _, of_start, of_operands = tangents
    moving = _moving(of_operands)
    if not moving and not _moving(of_start):
        ends, kept = _run(op, keep, at, start, operands)
        return (ends, kept), jax.tree.map(_no_tangent, (ends, kept))
    ends, kept = _run(op, True, at, start, operands)
    moved = [_instantiated(of_start[i], start[i]) for i in _floats(start)]
    moved += [_instantiated(of_operands[i], operands[i]) for i in moving]
    tangent = _Tangent(op, moving)
    found = transposable(tangent, [*at, *start, *operands, *kept], moved)
    of_ends = list(map(_no_tangent, ends))
    for i, x in zip(_floats(start), found, strict=True):
        of_ends[i] = x
    kept = kept if keep else []
    return (ends, kept), (of_ends, list(map(_no_tangent, kept)))


_run.defjvp(_run_jvp, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _gradient(
    op: Fold,
    wanted: tuple[int, ...],
    at: Sorted,
    start: list[Any],
    operands: list[Any],
    kept: list[Any],
    cts: list[Any],
) -> tuple[list[Any], list[Any]]:
    """The cotangents of the floating-point states at the start, and of the wanted operands, from
    `cts`, those of the states at the end. `kept`: what `_run` keeps for these arguments."""
    return backward(op, wanted, at, operands, kept, cts)


def _gradient_jvp(op: Fold, wanted: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    at, start, operands, kept, cts = primals
    _, of_start, of_operands, _, of_cts = tangents
    outs = _gradient(op, wanted, at, start, operands, kept, cts)
    moving = _moving(of_operands)
    moved = [_instantiated(of_start[i], start[i]) for i in _floats(start)]
    moved += [_instantiated(of_operands[i], operands[i]) for i in moving]
    moved += [_instantiated(t, x) for t, x in zip(of_cts, cts, strict=True)]
    bent = _Bent(op, wanted, moving)
    found = transposable(bent, [*at, *start, *operands, *cts], moved)
    states = len(cts)
    return outs, (found[:states], found[states:])


_gradient.defjvp(_gradient_jvp, symbolic_zeros=True)


@dataclasses.dataclass(frozen=True)
class _Tangent:
    """The tangents of the floating-point states at the end, from those of the states at the start
    and of the operands `moving`. Residuals: the edges, states, operands, and what was kept."""

    op: Fold
    moving: tuple[int, ...]

    def __call__(self, residuals: Arrays, linear: Arrays) -> list[Any]:
        at, start, operands, _ = _taken_apart(self.op, residuals)
        return _tangents(self.op, self.moving, at, start, operands, linear)

    def results(self, residuals: Arrays, linear: Arrays) -> Arrays:
        return linear[: len(_floats(self.op.body.outputs))]

    def transposed(self, residuals: Arrays, cts: Arrays) -> list[Any]:
        at, start, operands, kept = _taken_apart(self.op, residuals)
        found = _gradient(self.op, self.moving, at, start, operands, kept, list(cts))
        return [*found[0], *found[1]]


@dataclasses.dataclass(frozen=True)
class _Bent:
    """How a gradient bends: the tangents of what `_gradient` gives, from those of the states at the
    start, of the operands `moving`, and of the cotangents. Residuals: the edges, states, operands
    and cotangents."""

    op: Fold
    wanted: tuple[int, ...]
    moving: tuple[int, ...]

    def __call__(self, residuals: Arrays, linear: Arrays) -> list[Any]:
        at, start, operands, cts = _taken_apart(self.op, residuals)
        count = len(cts)
        direction, of_cts = linear[:-count], linear[-count:]
        given = self.moving, direction
        starts, sums = _along(self.op, given, self.wanted, at, start, operands, cts, of_cts)
        return [*starts, *sums]

    def results(self, residuals: Arrays, linear: Arrays) -> Arrays:
        first = len(Sorted._fields) + self.op.carried
        states = linear[: len(_floats(self.op.body.outputs))]
        return [*states, *(residuals[first + i] for i in self.wanted)]

    def transposed(self, residuals: Arrays, cts: Arrays) -> list[Any]:
        """`cts` are those of what `_gradient` gives: a direction."""
        at, start, operands, weights = _taken_apart(self.op, residuals)
        none = [jnp.zeros_like(x) for x in weights]
        given = self.wanted, cts
        starts, sums = _along(self.op, given, self.moving, at, start, operands, weights, none)
        of_cts = _tangents(self.op, self.wanted, at, start, operands, cts)
        return [*starts, *sums, *of_cts]


def _along(
    op: Fold,
    given: tuple[tuple[int, ...], Arrays],
    wanted: tuple[int, ...],
    at: Sorted,
    start: list[Any],
    operands: list[Any],
    cts: list[Any],
    of_cts: Arrays,
) -> tuple[list[Any], list[Any]]:
    """The derivative of a gradient along a direction: `given` has the operands that move, and the
    tangents of states and operands. `of_cts` are the tangents of `cts`."""
    moving, direction = given
    dual = _dual(op, moving)
    starts, both = dual.arguments(start, operands, direction)
    _, kept = _run(dual.op, True, at, starts, both)
    found, sums = _gradient(dual.op, wanted, at, starts, both, kept, [*of_cts, *cts])
    return found[: len(cts)], sums


def _tangents(
    op: Fold, moving: tuple[int, ...], at: Sorted, start: list[Any], operands: list[Any],
    direction: Arrays,
) -> list[Any]:  # fmt: skip
    dual = _dual(op, moving)
    ends, _ = _run(dual.op, False, at, *dual.arguments(start, operands, direction))
    return ends[len(start) :]


@dataclasses.dataclass(frozen=True, eq=False)
class _Dual:
    """A fold of states and the tangents of those that are floating-point. Its operands are those of
    the fold, the tangents of some, and constants."""

    op: Fold
    constants: tuple[Any, ...]

    def arguments(
        self, start: Arrays, operands: Arrays, direction: Arrays
    ) -> tuple[list[Any], list[Any]]:
        count = len(_floats(start))
        of_start, of_operands = direction[:count], direction[count:]
        return [*start, *of_start], [*operands, *of_operands, *self.constants]


@cached(maxsize=256)
def _dual(op: Fold, moving: tuple[int, ...]) -> _Dual:
    states, operands = op.body.inputs[: op.carried], op.body.inputs[op.carried :]
    floats = _floats(states)
    groups = [states, [states[i] for i in floats], operands, [operands[i] for i in moving]]
    inputs = [_fresh(v) for group in groups for v in group]

    def step(*xs: Any) -> list[Any]:
        rest = iter(xs)
        state, of_state, read, of_read = ([next(rest) for _ in group] for group in groups)

        def after(some: list[Any], others: list[Any]) -> list[Any]:
            every, elements = list(state), list(read)
            for i, x in zip(floats, some, strict=True):
                every[i] = x
            for i, x in zip(moving, others, strict=True):
                elements[i] = x
            return list(evaluate_element(op.body, [*every, *elements]))

        at = [state[i] for i in floats], [read[i] for i in moving]
        found, moved = jax.jvp(after, at, (of_state, of_read))
        return [*found, *(moved[i] for i in floats)]

    made = capture(step, inputs)
    return _Dual(dataclasses.replace(op, body=made.program), made.constants)


def _fresh(v: Value) -> Value:
    return Value(tuple(v.shape), v.dtype, v.space, v.name)


def _floats(values: Sequence[Any]) -> list[int]:
    """Those that are floating-point, by number."""
    return [i for i, x in enumerate(values) if is_inexact(x.dtype)]


def _taken_apart(op: Fold, residuals: Arrays) -> tuple[Sorted, list[Any], list[Any], list[Any]]:
    rest = list(map(jnp.asarray, residuals))  # constants may be NumPy's
    edges = len(Sorted._fields)
    states, every = edges + op.carried, edges + len(op.body.inputs)
    return Sorted(*rest[:edges]), rest[edges:states], rest[states:every], rest[every:]


def _moving(tangents: Sequence[Any]) -> tuple[int, ...]:
    """The arrays that have a tangent, by number."""
    return tuple(
        i
        for i, t in enumerate(tangents)
        if not isinstance(t, SymbolicZero) and t.dtype != jax.dtypes.float0
    )


def _instantiated(tangent: Any, x: Any) -> Any:
    return jnp.zeros_like(x) if isinstance(tangent, SymbolicZero) else tangent


def _no_tangent(x: Any) -> Any:
    return jnp.zeros_like(x) if is_inexact(x.dtype) else np.zeros(x.shape, jax.dtypes.float0)
