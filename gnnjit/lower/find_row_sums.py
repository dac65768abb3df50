"""Finds, in a jaxpr, the sums over products of rows with matrices that one kernel computes.

    out = x @ w + b + y / d                   a sum
    s = sum over (u -> v) of x[u]; s @ w      a product whose rows are never written, and also
    sum over (u -> v) of (x @ w)[u]           this one, where there are no more sums than sources
    t = x.T @ s                               the gradient of `w`, in the same pass

Products of one array with several matrices are one kernel too: the array is read once.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.config import cores
from gnnjit.graph import Graph
from gnnjit.ir.program import Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.vertex_matmul import rows_p, tall_p
from gnnjit.system.cpu_features import vector_bytes

NARROW = 16
"""Columns below which XLA's product is as good: a vector has more lanes."""

LARGE = 1 << 16
"""Entries of a matrix above which XLA's product is faster: the kernel reads it every few rows."""

SHORT = 64
"""Numbers in a row up to which even one product is faster by itself than XLA's."""

GATHERED = {64: 1024, 32: 256}
"""Bytes of a row that is a sum over edges at most, by those of a vector: half of all registers."""

THREADS = 16
"""Threads for which sums over edges are taken row by row: with more, those that have done their
rows might wait for one whose row has very many edges, which no other kernel leaves whole."""

_ADD = ("add", "add_any")


@dataclasses.dataclass(frozen=True)
class Edges:
    """Sums of a table's rows over edges, by variables, as in `row_results.Neighbours`."""

    table: Any
    indptr: Any
    neighbor: Any
    factor: Any = None
    divisor: Any = None


@dataclasses.dataclass(frozen=True)
class Product:
    """Rows, a variable or `Edges`, and a matrix, as in `row_results.RowProduct`."""

    x: Any
    w: Any
    turned: bool

    @property
    def inner(self) -> int:
        return self.w.aval.shape[1 if self.turned else 0]

    @property
    def columns(self) -> int:
        return self.w.aval.shape[0 if self.turned else 1]


def product_of(eqn: Any) -> Product:
    """That of an equation of `rows_p`."""
    x, w = eqn.invars
    return Product(x, w, eqn.params["turned"])


@dataclasses.dataclass
class RowSum:
    """What a variable `[N, columns]` is the sum of, by variables.

    products: of rows and matrices.
    addends: rows each, and what they are divided by, or None.
    talls: the number of an equation, its left factor, and its right one, as in products.
    inside: equations that need not run.
    """

    products: list[Product] = dataclasses.field(default_factory=list)
    addends: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    biases: list[Any] = dataclasses.field(default_factory=list)
    talls: list[tuple[int, Any, Any]] = dataclasses.field(default_factory=list)
    inside: list[int] = dataclasses.field(default_factory=list)

    def copy(self) -> RowSum:
        return RowSum(*(list(getattr(self, f.name)) for f in dataclasses.fields(self)))

    def pays(self, returned: bool) -> bool:
        """One product and one addend XLA fuses with what comes next, unless that is `returned`."""
        parts = len(self.products) + len(self.addends)
        return bool(self.products) and (parts > 2 or (returned and parts + len(self.biases) > 1))

    def work(self, rows: int) -> int:
        return rows * sum(math.prod(p.w.aval.shape) for p in self.products)

    def operands(self) -> list[Any]:
        """All variables that the kernel reads."""
        return [v for v in self._operands() if v is not None]

    def _operands(self) -> Iterator[Any]:
        for rows in (*(p.x for p in self.products), *(x for _, _, x in self.talls)):
            if isinstance(rows, Edges):
                yield from (getattr(rows, f.name) for f in dataclasses.fields(rows))
            else:
                yield rows
        yield from (p.w for p in self.products)
        yield from (v for pair in self.addends for v in pair)
        yield from (*self.biases, *(left for _, left, _ in self.talls))


class Finder:
    """What is found in a jaxpr, by numbers of its equations.

    sums: by the equation that gives each.
    groups: all products of one array, by each of them.
    owner: the sum that a tall product is computed with, by the product.
    inside: equations that nothing needs any more.
    """

    def __init__(self, jaxpr: Any, least: int):
        self.jaxpr, self.least = jaxpr, least
        self.maker = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
        self.readers: dict[Any, list[int]] = collections.defaultdict(list)
        for number, eqn in enumerate(jaxpr.eqns):
            for v in _variables(eqn.invars):
                self.readers[v].append(number)
        for v in _variables(jaxpr.outvars):
            self.readers[v].append(len(jaxpr.eqns))
        self.inside: set[int] = set()
        self.owner: dict[int, int] = {}
        self.sums = self._find_sums()
        self.groups = self._find_groups()

    # -- sums -------------------------------------------------------------------------------

    def _find_sums(self) -> dict[int, RowSum]:
        found = {}
        for number in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[number]
            if number in self.inside or eqn.primitive.name not in _ADD or not _is_rows(eqn):
                continue
            total, aval = RowSum(), eqn.outvars[0].aval
            if not all(self._take(total, v, aval.shape) for v in eqn.invars):
                continue
            self._multiply_last(total, aval.shape[0])
            returned = len(self.jaxpr.eqns) in self.readers[eqn.outvars[0]]
            if not total.pays(returned) or total.work(aval.shape[0]) < self.least:
                continue
            self._share(total, number)
            found[number] = total
            self.inside.update(total.inside)
            self.owner.update({k: number for k, _, _ in total.talls})
        return found

    def _take(self, total: RowSum, v: Any, shape: tuple[int, ...]) -> bool:
        """Add what a variable is the sum of; False where that is no array of these rows."""
        if isinstance(v, _compat.JaxprLiteral) or v.aval.shape != shape:
            return False
        if (bias := self._spread(v, 1)) is not None:
            total.biases.append(bias)
            return True
        number, inner = self.maker.get(v), total.copy()
        if number is not None and len(self.readers[v]) == 1:
            inner.inside.append(number)
            if self._take_made(inner, self.jaxpr.eqns[number], shape):
                for f in dataclasses.fields(total):
                    setattr(total, f.name, getattr(inner, f.name))
                return True
        total.addends.append((v, None))
        return True

    def _take_made(self, total: RowSum, eqn: Any, shape: tuple[int, ...]) -> bool:
        """The same for a variable that this equation gives, and one other reads."""
        if eqn.primitive.name in _ADD:
            return all(self._take(total, a, shape) for a in eqn.invars)
        if eqn.primitive.name == "reshape" and eqn.invars[0].aval.shape[:1] == shape[:1]:
            return self._take(total, eqn.invars[0], eqn.invars[0].aval.shape)
        if _is_product(eqn):
            total.products.append(product_of(eqn))
        elif (divided := self._divided(eqn, shape)) is not None:
            total.addends.append(divided)
        else:
            return False
        return True

    def _divided(self, eqn: Any, shape: tuple[int, ...]) -> tuple[Any, Any] | None:
        """`y [N, F]` and `d [N]` or `[N, 1]` of `y / d`."""
        if eqn.primitive.name != "div" or len(list(_variables(eqn.invars))) < 2:
            return None
        y, d = eqn.invars
        if y.aval.shape != shape:
            return None
        divisor = d if math.prod(d.aval.shape) == shape[0] else self._spread(d, 0)
        return None if divisor is None else (y, divisor)

    def _spread(self, v: Any, axis: int) -> Any:
        """The vector along `axis` that a variable `[N, F]` repeats, or None."""
        shape, at = v.aval.shape, axis
        while len(shape) == 2 and (number := self.maker.get(v)) is not None:
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

    # -- rows that are sums over edges ------------------------------------------------------

    def _multiply_last(self, total: RowSum, rows: int) -> None:
        """Sums over edges of products become products of sums: fewer numbers are gathered, and of
        one table for all relations."""
        for pair in list(total.addends):
            y, divisor = pair
            found = self._edges_of(y) if len(self.readers[y]) == 1 else None
            number = None if found is None else self.maker.get(found[0].table)
            if found is None or number is None or len(self.readers[found[0].table]) > 1:
                continue
            edges, aggregate = found
            eqn = self.jaxpr.eqns[number]
            if not _is_product(eqn):
                continue
            product = product_of(eqn)
            x = product.x
            if not _fits(x.aval) or product.inner > product.columns or rows > x.aval.shape[0]:
                continue
            total.addends.remove(pair)
            summed = dataclasses.replace(edges, table=x, divisor=divisor)
            total.products.append(dataclasses.replace(product, x=summed))
            total.inside += [aggregate, number]

    def _share(self, total: RowSum, root: int) -> None:
        """Rows that only products with them read are summed where they are multiplied; tall
        products with the rows of a sum are taken in the same pass."""
        needed = self._needs(total.operands())
        for at, product in enumerate(total.products):
            x = product.x
            if isinstance(x, Edges):
                continue
            readers = self.readers[x]
            own = [i for i in readers if i in total.inside and _is_product(self.jaxpr.eqns[i])]
            talls = [i for i in readers if self._is_tall(i, x) and i not in needed]
            lefts = [self.jaxpr.eqns[i].invars[0] for i in talls]
            if len(own) > 1 or not self._needs(lefts).isdisjoint({root, *talls}):
                continue
            found, source = self._edges_of(x), x
            wide = x.aval.shape[1] >= NARROW and len(own) + len(talls) == len(readers)
            if found is not None and wide:
                source, aggregate = self._factored(total, found[0]), found[1]
                total.products[at] = dataclasses.replace(product, x=source)
                total.inside.append(aggregate)
            total.talls += [(i, left, source) for i, left in zip(talls, lefts, strict=True)]

    def _needs(self, variables: Sequence[Any]) -> set[int]:
        """The equations that variables depend on."""
        found: set[int] = set()
        left = [self.maker[v] for v in variables if v in self.maker]
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                read = _variables(self.jaxpr.eqns[number].invars)
                left += [self.maker[v] for v in read if v in self.maker]
        return found

    def _factored(self, total: RowSum, edges: Edges) -> Edges:
        """Edges divide what they read, where that is all that needs a table divided by row."""
        number = self.maker.get(edges.table)
        if number is None or len(self.readers[edges.table]) > 1:
            return edges
        divided = self._divided(self.jaxpr.eqns[number], edges.table.aval.shape)
        if divided is None:
            return edges
        total.inside.append(number)
        return dataclasses.replace(edges, table=divided[0], factor=divided[1])

    def _edges_of(self, x: Any) -> tuple[Edges, int] | None:
        """The edges whose sums are the rows `x`, if they are nothing else; and the equation."""
        number = self.maker.get(x)
        if number is None or self.jaxpr.eqns[number].primitive is not aggregate_p:
            return None
        eqn = self.jaxpr.eqns[number]
        body, (op, *more) = eqn.params["body"], eqn.params["reductions"]
        treedef, leaves = eqn.params["graph_def"]
        graph = jax.tree.unflatten(treedef, eqn.invars[:leaves])
        if more or op is None or body.outputs != body.inputs or not isinstance(graph, Graph):
            return None
        (value,), table = body.inputs, eqn.invars[leaves]
        plain = value.space.is_vertex and op == Reduce("sum", value.space.flipped)
        structure = graph.structure("dst" if op.into is Space.DST else "src")
        arrays = table, structure.indptr, structure.neighbor
        if not plain or len(list(_variables(arrays))) < 3 or cores() > THREADS:
            return None
        return (Edges(*arrays), number) if _fits(table.aval) else None

    # -- tall products ----------------------------------------------------------------------

    def _is_tall(self, number: int, x: Any) -> bool:
        if number == len(self.jaxpr.eqns):
            return False
        eqn = self.jaxpr.eqns[number]
        if eqn.primitive is not tall_p or eqn.params["place"] is not None:
            return False
        shape = eqn.outvars[0].aval.shape
        return eqn.invars[1] is x and shape[0] >= NARROW and math.prod(shape) <= LARGE

    # -- products of one array --------------------------------------------------------------

    def _find_groups(self) -> dict[int, list[int]]:
        """Products of one array, of which no matrix depends on one."""
        alike: dict[Any, list[int]] = {}
        made: set[Any] = set()  # what depends on one of them
        for number, eqn in enumerate(self.jaxpr.eqns):
            wanted = number not in self.inside and _is_product(eqn)
            if wanted and eqn.invars[1] not in made:
                alike.setdefault(eqn.invars[0], []).append(number)
            if wanted or any(v in made for v in _variables(eqn.invars)):
                made.update(eqn.outvars)
        several = {
            x: some for x, some in alike.items() if len(some) > 1 or x.aval.shape[1] <= SHORT
        }
        return {
            i: some for x, some in several.items() if self._work(x, some) >= self.least
            for i in some
        }  # fmt: skip

    def _work(self, x: Any, numbers: Sequence[int]) -> int:
        sizes = (math.prod(self.jaxpr.eqns[i].invars[1].aval.shape) for i in numbers)
        return x.aval.shape[0] * sum(sizes)


def _variables(atoms: Sequence[Any]) -> Iterator[Any]:
    return (v for v in atoms if not isinstance(v, _compat.JaxprLiteral))


def _fits(aval: Any) -> bool:
    """Whether a row of `[N, F]` fits registers."""
    most = GATHERED.get(vector_bytes(), 0)
    return len(aval.shape) == 2 and aval.shape[1] * aval.dtype.itemsize <= most


def _is_rows(eqn: Any) -> bool:
    """Whether an equation gives an array `[N, columns]` that a kernel may compute."""
    aval = eqn.outvars[0].aval
    wide = len(aval.shape) == 2 and aval.shape[0] > 0 and aval.shape[1] >= NARROW
    return wide and aval.dtype in (jnp.float32, jnp.float64)


def _is_product(eqn: Any) -> bool:
    """Whether it is `x @ w` on one device."""
    if eqn.primitive is not rows_p or not _is_rows(eqn) or eqn.params["place"] is not None:
        return False
    x_and_w = list(_variables(eqn.invars))
    return len(x_and_w) == 2 and math.prod(x_and_w[1].aval.shape) <= LARGE
