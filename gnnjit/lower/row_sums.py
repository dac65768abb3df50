"""A jaxpr run on a CPU so that sums of products on vertices are one pass over the vertices.

XLA runs each product by itself: it writes what is only added to something else, and reads an array
for each matrix anew. A typed layer has a product for each relation, and the gradient of what
several relations read is a sum over them. `find_row_sums` says what is done together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit import _compat
from gnnjit.lower import cpu
from gnnjit.lower.choose import preferred
from gnnjit.lower.find_row_sums import Edges, Finder, RowSum, product_of
from gnnjit.lower.row_results import Neighbours, RowProduct, RowResult, Source, TallResult
from gnnjit.lower.vertex_matmul import LEAST


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr without constants."""
    least = LEAST
    if preferred() not in (None, "cpu") or cpu.why_no_row_sums(np.dtype(np.float32)):
        least = 1 << 62
    return _Evaluation(_compat.open_jaxpr(closed)[0], least).run(args)


class _Evaluation:
    """One run of a jaxpr, equation by equation in its order, but for what is done together."""

    def __init__(self, jaxpr: Any, least: int):
        self.jaxpr, self.found = jaxpr, Finder(jaxpr, least)

    def run(self, args: Sequence[Any]) -> list[Any]:
        self.env: dict[Any, Any] = dict(zip(self.jaxpr.invars, args, strict=True))
        self.done = {*self.found.inside, *self.found.owner}
        for number in range(len(self.jaxpr.eqns)):
            self._run(number)
        return [self._read(v) for v in self.jaxpr.outvars]

    def _read(self, v: Any) -> Any:
        if isinstance(v, _compat.JaxprLiteral):
            return v.val
        if v not in self.env:
            number = self.found.maker[v]
            self._run(self.found.owner.get(number, number))
        return self.env[v]

    def _run(self, number: int) -> None:
        if number in self.done:
            return
        found, eqn = self.found, self.jaxpr.eqns[number]
        self.done.add(number)
        if number in found.sums:
            self._together({number: found.sums[number]})
        elif number in found.groups:
            group = found.groups[number]
            self.done.update(group)
            self._together({i: RowSum([product_of(self.jaxpr.eqns[i])]) for i in group})
        else:
            outs = _compat.bound(eqn, [self._read(v) for v in eqn.invars])
            self.env.update(zip(eqn.outvars, outs, strict=True))

    def _together(self, sums: dict[int, RowSum]) -> None:
        order = dict.fromkeys(v for one in sums.values() for v in one.operands())
        rows = {v for one in sums.values() for v, _ in one.addends}
        arrays = [self._read(v) for v in order]
        inverse = {f for one in sums.values() for f in _factors(one)}
        flat = []
        for v, x in zip(order, arrays, strict=True):
            x = x.reshape(len(x), -1) if v in rows else x
            flat.append(1 / x if v in inverse else x)
        outs = [self.jaxpr.eqns[i].outvars[0] for i in sums]
        outs += [self.jaxpr.eqns[i].outvars[0] for one in sums.values() for i, _, _ in one.talls]
        plan = _Plan({v: k for k, v in enumerate(order)})
        pairs = zip(outs, sums.values(), strict=False)
        results = [plan.result(one, v.aval.shape[1]) for v, one in pairs]
        talls = [plan.tall(*pair) for one in sums.values() for pair in one.talls]
        found = cpu.row_sums(flat, outs[0].aval.shape[0], results, talls)
        for v, made in zip(outs, found, strict=True):
            self.env[v] = made if made.shape == v.aval.shape else made.T


def _factors(total: RowSum) -> list[Any]:
    """What edges divide by. They multiply by its inverse, which is a number where the divisor is
    between 1e-38 and 1e38, as degrees are."""
    edges = (p.x for p in total.products if isinstance(p.x, Edges))
    return [x.factor for x in edges if x.factor is not None]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Sums of variables as sums of operands. number: that of each variable."""

    number: dict[Any, int]

    def result(self, total: RowSum, columns: int) -> RowResult:
        return RowResult(
            columns,
            tuple(
                RowProduct(self.source(p.x), self.number[p.w], p.inner, p.turned)
                for p in total.products
            ),
            tuple((self.number[y], self.of(d)) for y, d in total.addends),
            tuple(self.number[b] for b in total.biases),
        )

    def tall(self, _: int, left: Any, right: Any) -> TallResult:
        """Transposed where the right factor is the narrower one: it fills no vector."""
        table = right.table if isinstance(right, Edges) else right
        sizes = left.aval.shape[1], table.aval.shape[1]
        if table is right and sizes[1] < sizes[0]:
            return TallResult(self.number[right], self.number[left], sizes[::-1])
        return TallResult(self.number[left], self.source(right), sizes)

    def source(self, rows: Any) -> Source:
        if not isinstance(rows, Edges):
            return self.number[rows]
        index = rows.indptr.aval.dtype.name, rows.neighbor.aval.dtype.name
        structure = self.number[rows.indptr], self.number[rows.neighbor]
        return Neighbours(
            self.number[rows.table], *structure, index, self.of(rows.factor), self.of(rows.divisor)
        )

    def of(self, v: Any) -> int | None:
        return None if v is None else self.number[v]
