"""Products with a small NumPy array that is a multiple of the identity are scalings.

Clebsch-Gordan coefficients are small NumPy arrays. Those of a scalar and a vector are a multiple of
the identity: they only say how both are normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Lax, Literal, Location, Value

MOST = 4096
"""Scalars of an array whose values are looked at."""

_RULES: dict[str, Callable[..., np.ndarray]] = {
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "sqrt": np.sqrt,
}
_SHAPES = ("reshape", "squeeze", "expand_dims")


class Known:
    """What is known of a program's values.

    Arrays of JAX are parameters more often than constants, and would be other ones in the next
    call: their values are not looked at.
    """

    def __init__(self, inputs: Iterable[tuple[Value, Any]]) -> None:
        self.arrays: dict[Atom, np.ndarray] = {
            value: np.asarray(array)
            for value, array in inputs
            if _compat.is_numpy(array) and np.size(array) <= MOST
        }

    def learn(self, op: Any, ins: Sequence[Atom], out: Value) -> None:
        """What an operation of known values makes."""
        found = [self._of(a) for a in ins]
        floats = np.issubdtype(out.dtype, np.floating)
        if not floats or not ins or any(x is None for x in found) or out.size > MOST:
            return
        if op.name in _RULES:
            with np.errstate(all="ignore"):
                made = _RULES[op.name](*found)
        elif op.name == "convert_element_type":
            with np.errstate(all="ignore"):
                made = found[0].astype(out.dtype)
        elif op.name in _SHAPES and len(ins) == 1:
            made = np.reshape(found[0], out.shape)
        else:
            return
        if np.shape(made) == out.shape:
            self.arrays[out] = np.asarray(made, out.dtype)

    def _of(self, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.value, atom.dtype)
        return self.arrays.get(atom)

    def scaled(
        self, builder: Builder, op: Any, ins: Sequence[Atom], out: Value, where: Location | None
    ) -> Atom | None:
        """The result of a product with a multiple of the identity, or with a single number; None
        where it is none."""
        if not isinstance(op, Lax) or op.name != "dot_general" or not self.arrays:
            return None
        summed, batch = op["dimension_numbers"]
        for side in (0, 1):
            matrix, x = self.arrays.get(ins[side]), ins[1 - side]
            if matrix is None or any(batch) or {ins[side].dtype, x.dtype} != {out.dtype}:
                continue
            number = _multiple(matrix, summed[side])
            if number is None:
                continue
            axes = [k for k in summed[1 - side] if x.shape[k] != 1]
            kept = [k for k in range(len(x.shape)) if k not in axes]
            order = (*axes, *kept) if side == 0 else (*kept, *axes)
            if order != tuple(range(len(order))):
                x = build.emit_op(builder, build.transpose_op(order), [x], where, out.space)
            if x.shape != out.shape or x.space is not out.space:
                x = build.emit_op(builder, build.reshape_op(out.shape), [x], where, out.space)
            if number == 1:
                return x
            scale = Literal(number, out.dtype)
            return build.elementwise(builder, lax.mul, [x, scale], where)
        return None


def _multiple(matrix: np.ndarray, summed: Sequence[int]) -> Any:
    """The number that the identity is multiplied with, where the array is that between the one axis
    that is summed and one other; None where it is not."""
    wide = [k for k, n in enumerate(matrix.shape) if n != 1]
    if not np.issubdtype(matrix.dtype, np.floating):
        return None
    if not wide:
        return matrix.reshape(())[()]
    if len(wide) != 2 or sum(k in summed for k in wide) != 1:
        return None
    n, m = (matrix.shape[k] for k in wide)
    square = matrix.reshape(n, m)
    number = square[0, 0]
    same = n == m and np.isfinite(number) and (square == number * np.eye(n)).all()
    return number if same and number else None
