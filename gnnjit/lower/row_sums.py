"""A jaxpr run on a CPU so that sums of products on vertices are one pass over the vertices.

    out = x @ w + b + scale * y            one kernel, which writes `out` alone
    a = x @ w1, b = x @ w2                 one kernel, which reads `x` once

XLA runs each product by itself: it writes what is only added to something else, and reads `x` for
each matrix anew. A typed layer has a product for each relation, and the gradient of what several
relations read is a sum over them.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.lower import cpu
from gnnjit.lower.lowering import RowResult
from gnnjit.lower.vertex_matmul import rows_p

LEAST = 1 << 22
"""Multiplications below which a kernel of its own is not worth its compilation."""

NARROW = 16
"""Columns below which XLA's product is as good: a vector has more lanes."""

_ADD = ("add", "add_any")


@dataclasses.dataclass
class _Sum:
    """What a value `[N, columns]` is the sum of, by the variables of a jaxpr."""

    products: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    addends: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    biases: list[Any] = dataclasses.field(default_factory=list)
    equations: list[int] = dataclasses.field(default_factory=list)

    def copy(self) -> _Sum:
        return _Sum(*(list(getattr(self, f.name)) for f in dataclasses.fields(self)))

    def become(self, other: _Sum) -> None:
        for f in dataclasses.fields(self):
            setattr(self, f.name, getattr(other, f.name))

    def operands(self) -> list[Any]:
        pairs = (v for pair in (*self.products, *self.addends) for v in pair)
        return [v for v in (*pairs, *self.biases) if v is not None]

    def result(self, columns: int, number: dict[Any, int]) -> RowResult:
        return RowResult(
            columns,
            tuple((number[x], number[w], w.aval.shape[0]) for x, w in self.products),
            tuple((number[y], None if s is None else number[s]) for y, s in self.addends),
            tuple(number[b] for b in self.biases),
        )

    @property
    def pays(self) -> bool:
        """One product and one addend XLA fuses with what comes next."""
        return bool(self.products) and len(self.products) + len(self.addends) > 2

    @property
    def work(self) -> int:
        return sum(x.aval.shape[0] * math.prod(w.aval.shape) for x, w in self.products)


def evaluate(closed: Any, args: Sequence[Any], least: int = LEAST) -> list[Any]:
    """The results of a jaxpr without constants. `least`: multiplications of a pass."""
    return _Evaluation(_compat.open_jaxpr(closed)[0], least).run(args)


class _Evaluation:
    """One run of a jaxpr, equation by equation in its order, but for what is done together."""

    def __init__(self, jaxpr: Any, least: int):
        self.jaxpr, self.least = jaxpr, least
        self.maker = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
        read = (v for eqn in jaxpr.eqns for v in eqn.invars)
        self.readers = collections.Counter(
            v for v in (*read, *jaxpr.outvars) if not isinstance(v, _compat.JaxprLiteral)
        )
        self.inside: set[int] = set()
        self.sums = self._find_sums()
        self.groups = self._find_groups()

    # -- what is done together --------------------------------------------------------------

    def _find_sums(self) -> dict[int, _Sum]:
        """The sums, by the number of the equation that gives them; `inside` are their parts."""
        found = {}
        for number in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[number]
            if number in self.inside or eqn.primitive.name not in _ADD or not _is_rows(eqn):
                continue
            total = _Sum()
            if all(self._take(total, v, eqn.outvars[0].aval.shape) for v in eqn.invars):
                if total.pays and total.work >= self.least:
                    found[number] = total
                    self.inside.update(total.equations)
        return found

    def _take(self, total: _Sum, v: Any, shape: tuple[int, ...]) -> bool:
        """Add what a variable is the sum of; False where that is no array of these rows."""
        if isinstance(v, _compat.JaxprLiteral) or v.aval.shape != shape:
            return False
        if (bias := self._spread(v, 1)) is not None:
            total.biases.append(bias)
            return True
        number = self.maker.get(v)
        inner = total.copy()
        if number is not None and self.readers[v] == 1:
            inner.equations.append(number)
            if self._take_made(inner, self.jaxpr.eqns[number], shape):
                total.become(inner)
                return True
        total.addends.append((v, None))
        return True

    def _take_made(self, total: _Sum, eqn: Any, shape: tuple[int, ...]) -> bool:
        """The same for a variable that this equation gives, and one other reads."""
        if eqn.primitive.name in _ADD:
            return all(self._take(total, a, shape) for a in eqn.invars)
        if eqn.primitive.name == "reshape" and eqn.invars[0].aval.shape[:1] == shape[:1]:
            return self._take(total, eqn.invars[0], eqn.invars[0].aval.shape)
        if _is_product(eqn):
            total.products.append(tuple(eqn.invars))
        elif (divided := self._divided(eqn, shape)) is not None:
            total.addends.append(divided)
        else:
            return False
        return True

    def _divided(self, eqn: Any, shape: tuple[int, ...]) -> tuple[Any, Any] | None:
        """`y [N, F]` and `d [N]` or `[N, 1]` of `y / d`."""
        if eqn.primitive.name != "div":
            return None
        y, d = eqn.invars
        if isinstance(y, _compat.JaxprLiteral) or isinstance(d, _compat.JaxprLiteral):
            return None
        divisor = d if math.prod(d.aval.shape) == shape[0] else self._spread(d, 0)
        return None if divisor is None or y.aval.shape != shape else (y, divisor)

    def _spread(self, v: Any, axis: int) -> Any:
        """The vector along `axis` that a variable `[N, F]` repeats, or None."""
        shape, at = v.aval.shape, axis
        if len(shape) != 2 or v not in self.maker:
            return None
        while (number := self.maker.get(v)) is not None:
            eqn = self.jaxpr.eqns[number]
            if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
                return None
            axes, v = eqn.params["broadcast_dimensions"], eqn.invars[0]
            if isinstance(v, _compat.JaxprLiteral) or at not in axes:
                return None
            at = axes.index(at)
            if math.prod(v.aval.shape) != shape[axis] or v.aval.shape[at] != shape[axis]:
                return None
            if len(v.aval.shape) == 1:
                return v
        return None

    def _find_groups(self) -> dict[int, list[int]]:
        """Products of one array with several matrices, that depend on no such product: by the
        number of each equation, those of its group."""
        alike: dict[Any, list[int]] = {}
        made: set[Any] = set()  # what depends on one of them
        for number, eqn in enumerate(self.jaxpr.eqns):
            depends = any(not isinstance(v, _compat.JaxprLiteral) and v in made for v in eqn.invars)
            wanted = number not in self.inside and _is_product(eqn)
            if wanted and eqn.invars[1] not in made:
                alike.setdefault(eqn.invars[0], []).append(number)
            if wanted or depends:
                made.update(eqn.outvars)
        groups = [some for some in alike.values() if len(some) > 1]
        return {i: some for some in groups if self._work(some) >= self.least for i in some}

    def _work(self, numbers: Sequence[int]) -> int:
        pairs = [tuple(self.jaxpr.eqns[i].invars) for i in numbers]
        return _Sum(products=pairs).work

    # -- running ----------------------------------------------------------------------------

    def run(self, args: Sequence[Any]) -> list[Any]:
        self.env: dict[Any, Any] = dict(zip(self.jaxpr.invars, args, strict=True))
        self.done: set[int] = set()
        for number in range(len(self.jaxpr.eqns)):
            self._run(number)
        return [self._read(v) for v in self.jaxpr.outvars]

    def _read(self, v: Any) -> Any:
        if isinstance(v, _compat.JaxprLiteral):
            return v.val
        if v not in self.env:
            self._run(self.maker[v])
        return self.env[v]

    def _run(self, number: int) -> None:
        if number in self.done or number in self.inside:
            return
        eqn = self.jaxpr.eqns[number]
        self.done.add(number)
        if number in self.sums:
            self._together({number: self.sums[number]})
        elif number in self.groups:
            group = self.groups[number]
            self.done.update(group)
            self._together(
                {i: _Sum(products=[tuple(self.jaxpr.eqns[i].invars)]) for i in group}
            )
        else:
            outs = _compat.bound(eqn, [self._read(v) for v in eqn.invars])
            self.env.update(zip(eqn.outvars, outs, strict=True))

    def _together(self, sums: dict[int, _Sum]) -> None:
        order = dict.fromkeys(v for one in sums.values() for v in one.operands())
        number = {v: k for k, v in enumerate(order)}
        outs = [self.jaxpr.eqns[i].outvars[0] for i in sums]
        results = [
            one.result(v.aval.shape[1], number) for v, one in zip(outs, sums.values(), strict=True)
        ]
        arrays = [self._read(v) for v in order]
        rows = {v for one in sums.values() for v, _ in one.addends}
        arrays = [
            x.reshape(len(x), -1) if v in rows else x for v, x in zip(order, arrays, strict=True)
        ]
        found = cpu.row_sums(arrays, results)
        self.env.update(zip(outs, found, strict=True))


def _is_rows(eqn: Any) -> bool:
    """Whether an equation gives an array `[N, columns]` that a kernel may compute."""
    aval = eqn.outvars[0].aval
    wide = len(aval.shape) == 2 and aval.shape[0] > 0 and aval.shape[1] >= NARROW
    return wide and aval.dtype in (jnp.float32, jnp.float64)


def _is_product(eqn: Any) -> bool:
    """Whether it is `x @ w` on one device."""
    if eqn.primitive is not rows_p or not _is_rows(eqn) or eqn.params["place"] is not None:
        return False
    variables = not any(isinstance(v, _compat.JaxprLiteral) for v in eqn.invars)
    return variables and all(v.aval.dtype == eqn.outvars[0].aval.dtype for v in eqn.invars)
