"""`long-axes-last`: where edges have a few components of many features, features come last.

before:  a: f32[edge, 64, 3] = x[u] - y[v]        after:  s: f32[src, 3, 64] = transpose(x)
         h: f32[edge, 64, 3] =                            t: f32[dst, 3, 64] = transpose(y)
            dot_general(w, a) over axis 0                 a: f32[edge, 3, 64] = s[u] - t[v]
         z: f32[dst, 64, 3] = sum of h                    h: f32[edge, 3, 64] = a @ w
                                                          r: f32[dst, 3, 64] = sum of h
                                                          z: f32[dst, 64, 3] = transpose(r)

Equivariant networks (e3nn) keep the three components of each vector last. Kernels take the entries
of the last axis side by side, in lanes of which three would do all the work, and multiply rows with
matrices. Every value of the layer is turned around, so that transposes are left where values enter
and leave it, mostly on vertices. Two values whose features go side by side through a product are
multiplied entry by entry, and summed over the components. What an edge joins to one row before it
is reduced, as e3nn does with all its irreps, is reduced part by part and joined on the vertex.

Legal: the same numbers are added and multiplied. Leaves alone layers whose edges compute no such
value; operations that it does not know read and write values as the user wrote them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.elementwise import ELEMENTWISE
from gnnjit.ir.program import (
    Atom,
    AtVertex,
    Builder,
    Equation,
    Lax,
    Literal,
    OfGraph,
    Op,
    Program,
    Reduce,
    Store,
    Value,
)
from gnnjit.ir.space import Space

Axes = tuple[int, ...]

_OF_ENTRIES = ("sum", "max", "min")
"""Reductions of each entry by itself."""

FEW, MANY = 16, 16
"""Components at most, and features at least; there are twice as many features as components."""


@dataclasses.dataclass(frozen=True)
class LongAxesLast:
    name: str = "long-axes-last"

    def __call__(self, program: Program) -> Program:
        made = [v for e in program.equations for v in e.outputs]
        if not any(v.space is Space.EDGE and v.shape and v.shape[-1] > 1 and _is_turned(v)
                   for v in made):  # fmt: skip
            return program
        return _Rewriter(program).run()


def order_of(shape: tuple[int, ...]) -> Axes:
    """The axes in the order in which a value of this shape is computed."""
    axes = tuple(range(len(shape)))
    if len(shape) < 2 or shape[-1] > FEW or max(shape) < max(MANY, 2 * shape[-1]):
        return axes
    long = shape.index(max(shape))
    return (*axes[:long], *axes[long + 1 :], long)


def _is_turned(atom: Atom) -> bool:
    return order_of(atom.shape) != tuple(range(len(atom.shape)))


def _in_order(values: Sequence[int], order: Axes) -> Axes:
    return tuple(values[k] for k in order)


def _wide(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _moved(shape: tuple[int, ...]) -> list[int]:
    """Where the axes of more than one entry go, by their numbers among these."""
    wide = [k for k, n in enumerate(shape) if n != 1]
    return [wide.index(k) for k in order_of(shape) if k in wide]


def _of_entries(jaxpr: Any) -> bool:
    """Whether a function treats all entries of its operands alike."""
    return all(
        _of_entries(e.params["jaxpr"].jaxpr)
        if e.primitive.name in ("jit", "pjit")
        else e.primitive.name in ELEMENTWISE
        for e in jaxpr.eqns
    )


class _Rewriter:
    """A program as it is rewritten: values as the user wrote them in `builder.env`, and in the
    order of `order_of` in `turned`, each made when it is first asked for. `copied` are results of
    equations that are as the user wrote them."""

    def __init__(self, program: Program) -> None:
        self.program, self.builder = program, Builder(program.inputs)
        self.made = {v: e for e in program.equations for v in e.outputs}
        self.turned: dict[Value, Atom] = {}
        self.copied: set[Value] = set()

    def run(self) -> Program:
        for eqn in self.program.equations:
            if not self._rewrite(eqn):
                for atom in eqn.inputs:
                    self._written(atom)
                self.copied.update(self.builder.copy(eqn))
        for out in self.program.outputs:
            self._written(out)
        return self.builder.finish(self.program)

    def _rewrite(self, eqn: Equation) -> bool:
        """Append what gives the equation's results; False if it is to read values as written."""
        op = eqn.op
        if isinstance(op, Reduce) and op.kind in _OF_ENTRIES and self._is_joined(eqn.inputs[0]):
            self.builder.env[eqn.outputs[0]] = self._reduced(eqn.inputs[0], eqn)
            return True
        if eqn.space is Space.SHARED or not any(map(_is_turned, (*eqn.inputs, *eqn.outputs))):
            return False
        if isinstance(op, (Reduce, Store, AtVertex, OfGraph)):
            return len(eqn.inputs) == 1 and self._alike(eqn)
        if not isinstance(op, Lax):
            return False
        if op.name in ELEMENTWISE:
            return self._alike(eqn)
        rule = _RULES.get(op.name)
        return rule is not None and rule(self, eqn, op)

    # ------------------------------------------------------------------------------ values

    def _written(self, atom: Atom) -> Atom:
        """A value with its axes as the user wrote them."""
        if isinstance(atom, Literal):
            return atom
        if atom not in self.builder.env:
            order = order_of(atom.shape)
            back = tuple(map(order.index, range(len(order))))
            self.builder.env[atom] = self._reordered(self.turned[atom], back)
        return self.builder.env[atom]

    def _laid(self, atom: Atom) -> Atom:
        """A value in the order of `order_of`."""
        if isinstance(atom, Literal) or not _is_turned(atom):
            return self._written(atom)
        if atom not in self.turned:
            order = order_of(atom.shape)
            self.turned[atom] = self._reordered(self.builder.env[atom], order)
        return self.turned[atom]

    def _as(self, atom: Atom, order: Axes) -> Atom:
        """A value with its axes in some order; a scalar as it is."""
        if not atom.shape or order == order_of(atom.shape):
            return self._laid(atom)
        return self._reordered(self._written(atom), order)

    def _reordered(self, atom: Atom, order: Axes) -> Atom:
        """Transposed; reshaped where only axes of one entry move."""
        if order == tuple(range(len(order))):
            return atom
        long = [k for k in order if atom.shape[k] != 1]
        if long == sorted(long):
            return build.reshape(self.builder, atom, _in_order(atom.shape, order))
        return build.emit_op(self.builder, build.transpose_op(order), [atom])

    def _emit(self, eqn: Equation, op: Op, inputs: Sequence[Atom], axes: Axes) -> bool:
        """Append what gives the equation's result with its axes in the order `axes`."""
        (out,) = eqn.outputs
        shape, wanted = _in_order(out.shape, axes), order_of(out.shape)
        found: Atom = self.builder.emit(
            op, inputs, [dataclasses.replace(out, shape=shape)], eqn.location
        )[0]
        found = self._reordered(found, tuple(axes.index(k) for k in wanted))
        (self.turned if _is_turned(out) else self.builder.env)[out] = found
        return True

    # ------------------------------------------------------------------------------ reductions

    def _is_joined(self, atom: Atom) -> bool:
        """Whether an edge's value has features and components of others as one axis."""
        eqn = self.made.get(atom)  # type: ignore[arg-type]
        if eqn is None or eqn.space is not Space.EDGE:
            return False
        if eqn.op.name == "concatenate":
            shared = any(a.space is Space.SHARED for a in eqn.inputs)
            return not shared and any(map(self._is_joined, eqn.inputs))
        return eqn.op.name == "reshape" and _is_turned(eqn.inputs[0]) and not _is_turned(atom)

    def _reduced(self, atom: Atom, eqn: Equation) -> Atom:
        """What an equation's reduction makes of a value: joined behind it, where it is joined."""
        (out,) = eqn.outputs
        if not self._is_joined(atom):
            reduced = Value(tuple(atom.shape), out.dtype, out.space)
            return self.builder.emit(eqn.op, [self._written(atom)], [reduced], eqn.location)[0]
        maker = self.made[atom]  # type: ignore[index]
        if maker.op.name == "concatenate":
            parts = [self._reduced(a, eqn) for a in maker.inputs]
            joined = Value(tuple(atom.shape), out.dtype, out.space)
            return self.builder.emit(maker.op, parts, [joined], maker.location)[0]
        (x,) = maker.inputs
        order = order_of(x.shape)
        turned = Value(_in_order(x.shape, order), out.dtype, out.space)
        found = self.builder.emit(eqn.op, [self._laid(x)], [turned], eqn.location)[0]
        back = self._reordered(found, tuple(map(order.index, range(len(order)))))
        return build.reshape(self.builder, back, tuple(atom.shape), maker.location)

    # ------------------------------------------------------------------------------ operations

    def _alike(self, eqn: Equation) -> bool:
        """What treats all entries of its operands alike."""
        (out, *others) = eqn.outputs
        if others or any(len(a.shape) not in (0, len(out.shape)) for a in eqn.inputs):
            return False
        order = order_of(out.shape)
        return self._emit(eqn, eqn.op, [self._as(a, order) for a in eqn.inputs], order)

    def _broadcast(self, eqn: Equation, op: Lax) -> bool:
        (x,), (out,) = eqn.inputs, eqn.outputs
        order = order_of(out.shape)
        places = [order.index(k) for k in op["broadcast_dimensions"]]
        axes = tuple(sorted(range(len(places)), key=places.__getitem__))
        turned = build.broadcast_in_dim_op(_in_order(out.shape, order), tuple(sorted(places)))
        return self._emit(eqn, turned, [self._as(x, axes)], order)

    def _reduce(self, eqn: Equation, op: Lax) -> bool:
        (x,) = eqn.inputs
        order, axes = order_of(x.shape), op["axes"]
        kept = [k for k in order if k not in axes]
        turned = build.with_params(op, axes=tuple(sorted(map(order.index, axes))))
        return self._emit(eqn, turned, [self._laid(x)], tuple(map(sorted(kept).index, kept)))

    def _transpose(self, eqn: Equation, op: Lax) -> bool:
        (x,), (out,) = eqn.inputs, eqn.outputs
        if x.space is not out.space:
            return False
        before, after = order_of(x.shape), order_of(out.shape)
        axes = tuple(before.index(op["permutation"][k]) for k in after)
        found = self._reordered(self._laid(x), axes)
        (self.turned if _is_turned(out) else self.builder.env)[out] = found
        return True

    def _reshape(self, eqn: Equation, op: Lax) -> bool:
        """Where axes of one entry come and go, and no others move."""
        (x, *others), (out,) = eqn.inputs, eqn.outputs
        if others or _wide(x.shape) != _wide(out.shape) or _moved(x.shape) != _moved(out.shape):
            return False
        order = order_of(out.shape)
        turned = build.reshape_op(_in_order(out.shape, order))
        return self._emit(eqn, turned, [self._laid(x)], order)

    def _call(self, eqn: Equation, op: Lax) -> bool:
        """A function of each entry, as `relu`, whose body has a shape: it takes the entries in
        another order."""
        (out, *others) = eqn.outputs
        if others or any(a.shape not in ((), out.shape) for a in eqn.inputs):
            return False
        if not _of_entries(op["call_jaxpr"].jaxpr):
            return False
        given = [build.reshape(self.builder, self._laid(a), a.shape) for a in eqn.inputs]
        found = self.builder.emit(op, given, [dataclasses.replace(out)], eqn.location)[0]
        shape = _in_order(out.shape, order_of(out.shape))
        self.turned[out] = build.reshape(self.builder, found, shape)
        return True

    def _slice(self, eqn: Equation, op: Lax) -> bool:
        (x,) = eqn.inputs
        order, names = order_of(x.shape), ("start_indices", "limit_indices", "strides")
        given = {n: op[n] and _in_order(op[n], order) for n in names}
        return self._emit(eqn, build.with_params(op, **given), [self._laid(x)], order)

    def _concatenate(self, eqn: Equation, op: Lax) -> bool:
        order = order_of(eqn.outputs[0].shape)
        turned = build.with_params(op, dimension=order.index(op["dimension"]))
        return self._emit(eqn, turned, [self._as(a, order) for a in eqn.inputs], order)

    def _product(self, eqn: Equation, op: Lax) -> bool:
        """With its factors in that order of two in which the result needs no transpose, if one.
        Matrices of edges stay as they were made: a product reads them either way."""
        (out,) = eqn.outputs
        if self._multiplies(eqn, op):
            return self._multiply(eqn, op)
        summed, batch = op["dimension_numbers"]
        at, sides = len(batch[0]), []
        for a, axes, steps in zip(eqn.inputs, summed, batch, strict=True):
            made = a in self.copied and a.space is Space.EDGE and a not in self.turned
            given = self._written(a) if made or a.space is Space.SHARED else self._laid(a)
            order = order_of(a.shape) if given.shape != a.shape else tuple(range(len(a.shape)))
            free = [k for k in order if k not in (*axes, *steps)]
            labels = [at + sorted(free).index(k) for k in free]
            at += len(free)
            bound = [tuple(map(order.index, some)) for some in (axes, steps)]
            sides.append((given, bound, labels))
        steps, wanted = list(range(len(batch[0]))), order_of(out.shape)
        if _results(steps, sides) != wanted == _results(steps, sides[::-1]) and _is_even(op):
            sides = sides[::-1]
        numbers = tuple(tuple(side[1][k] for side in sides) for k in range(2))
        turned = build.with_params(op, dimension_numbers=numbers)
        return self._emit(eqn, turned, [side[0] for side in sides], _results(steps, sides))

    def _multiplies(self, eqn: Equation, op: Lax) -> bool:
        """Whether a product of edges goes through the features of both factors side by side, and
        sums few numbers of each."""
        (out,), (x, y) = eqn.outputs, eqn.inputs
        (summed, _), (steps, _) = op["dimension_numbers"]
        few = eqn.space is Space.EDGE and math.prod(x.shape[k] for k in summed) <= FEW
        long = max((x.shape[k] for k in steps), default=0)
        alike = x.dtype == y.dtype == out.dtype and str(out.dtype) in ("float32", "float64")
        some = math.prod(x.shape) * math.prod(y.shape) > 0
        return some and few and alike and long >= MANY and long == max(out.shape)

    def _multiply(self, eqn: Equation, op: Lax) -> bool:
        """As a product of entries, and a sum over some axes."""
        (out,) = eqn.outputs
        summed, batch = op["dimension_numbers"]
        order, at, sides = order_of(out.shape), len(batch[0]), []
        places = [*(-1 - k for k in range(len(summed[0]))), *order]  # the axes of all products
        for a, axes, steps in zip(eqn.inputs, summed, batch, strict=True):
            names = dict(zip(steps, range(len(steps)), strict=True))
            names |= {k: -1 - n for n, k in enumerate(axes)}
            free = [k for k in range(len(a.shape)) if k not in names]
            names |= dict(zip(free, range(at, at + len(free)), strict=True))
            at += len(free)
            sides.append(self._spread(a, names, places))
        (found,) = self.builder.emit(
            build.traced_op(lax.mul, (((), out.dtype),) * 2), sides,
            [Value(tuple(map(max, *(s.shape for s in sides))), out.dtype, eqn.space)], eqn.location,
        )  # fmt: skip
        if summed[0]:
            axes = tuple(range(len(summed[0])))
            found = build.emit_op(self.builder, build.sum_op(axes), [found], eqn.location)
        (self.turned if _is_turned(out) else self.builder.env)[out] = found
        return True

    def _spread(self, atom: Atom, names: dict[int, int], places: list[int]) -> Atom:
        """A value with its axes, called `names`, at their places, and axes of one entry at all
        others."""
        axes = tuple(sorted(names, key=lambda k: places.index(names[k])))
        lengths = {names[k]: atom.shape[k] for k in axes}
        shape = tuple(lengths.get(name, 1) for name in places)
        return build.reshape(self.builder, self._as(atom, axes), shape)


def _is_even(op: Lax) -> bool:
    """Whether a product treats both of its factors alike."""
    precision = op["precision"]
    return not isinstance(precision, tuple) or len(set(precision)) == 1


def _results(steps: list[int], sides: Sequence[tuple[Atom, list[Axes], list[int]]]) -> Axes:
    """The axes of a product, in the order in which it gives them."""
    return (*steps, *(label for side in sides for label in side[2]))


_RULES: dict[str, Callable[[_Rewriter, Equation, Lax], bool]] = {
    "broadcast_in_dim": _Rewriter._broadcast,
    "concatenate": _Rewriter._concatenate,
    "custom_jvp_call": _Rewriter._call,
    "dot_general": _Rewriter._product,
    "reduce_max": _Rewriter._reduce,
    "reduce_min": _Rewriter._reduce,
    "reduce_sum": _Rewriter._reduce,
    "reshape": _Rewriter._reshape,
    "slice": _Rewriter._slice,
    "squeeze": _Rewriter._reshape,
    "transpose": _Rewriter._transpose,
}
