"""What a layer function sees of a `TypedGraph`: `e.dst_type`, `e.relations` and `e.map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.errors import LayerError, shortened

union_p = _compat.Primitive("gnnjit_union")
"""One value over the edges of several relations, from one value of each."""
union_p.def_impl(lambda *xs: xs[0])
union_p.def_abstract_eval(lambda *xs: _compat.shaped_array(xs[0].shape, xs[0].dtype))


def _batch(args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, int]:
    (count,) = {x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(x, (count, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return union_p.bind(*moved), 0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    filled = [_compat.ad.instantiate_zeros(t) for t in tangents]
    return union_p.bind(*primals), union_p.bind(*filled)


_compat.batching.primitive_batchers[union_p] = _batch
_compat.ad.primitive_jvps[union_p] = _jvp
_compat.mlir.register_lowering(
    union_p, _compat.mlir.lower_fun(lambda *xs: xs[0], multiple_results=False)
)


class _Reader:
    """Attributes that the call brought; reading any other is an error that says what to do."""

    def __init__(self, kind: str, fields: dict[str, Any], missing: dict[str, str]):
        self.__dict__.update(fields)
        self.__dict__["_kind"] = kind
        self.__dict__["_missing"] = missing

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.__dict__["_missing"]:
            raise LayerError(self.__dict__["_missing"][name])
        found = ", ".join(k for k in self.__dict__ if not k.startswith("_"))
        kind = self.__dict__["_kind"]
        raise LayerError(f"{kind} has {found}; it has no {shortened(name, 60)!r}")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise LayerError(
            f"{self.__dict__['_kind']} cannot be written to: return what should be kept"
        )

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise LayerError(
            f"{self.__dict__['_kind']} was used as an array; its arrays are r.src, r.dst and r.data"
        )

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __neg__ = __jax_array__ = _fail
    __array__ = _fail


@dataclasses.dataclass(frozen=True)
class Ends:
    """One relation of a trace: its key, and per-element features (None where there are none)."""

    key: tuple[str, str, str]
    src: Any
    dst: Any
    data: Any


def relation(ends: Ends, where: str) -> Any:
    """`r`, as a layer function sees a relation."""
    first, name, last = ends.key
    shown = f"({first!r}, {name!r}, {last!r})"
    fields = {"name": name, "src_type": first, "dst_type": last, "key": ends.key}
    missing = {}
    absent = {
        "src": f"the layer reads r.src of {shown}, but x[{first!r}] is None: pass features",
        "dst": f"the layer reads r.dst of {shown}, but x[{last!r}] is None: pass features",
        "data": f"the layer reads r.data of {shown}, but it was called without data of its "
        f"edges: pass edges={{{shown}: ...}}",
    }
    for field, message in absent.items():
        if (value := getattr(ends, field)) is None:
            missing[field] = f"{where}: {message}"
        else:
            fields[field] = value
    return _Reader(f"the relation {shown}", fields, missing)


def typed_edge(
    dst_type: str, dst: Any, ends: Sequence[Ends], stand_in: Callable[[], Ends], where: str
) -> Any:
    """`e`, as a layer function sees it: all incoming edges of a vertex of type `dst_type`.

    stand_in: a relation without edges, for `map` where no relation ends at the type.
    """
    relations = tuple(relation(r, where) for r in ends)

    def map(f: Callable[[Any], Any]) -> Any:
        readers = relations or (relation(stand_in(), where),)
        return united(f, readers, where)

    fields = {"dst_type": dst_type, "relations": relations, "map": map}
    which = (
        "{}: e.{} was read in a layer that is called on a gnnjit.TypedGraph, whose edges belong to "
        "relations, expected one of them: write r.{} for each r of e.relations, or "
        "e.map(lambda r: r.{}) for all incoming edges"
    )
    missing = {name: which.format(where, name, name, name) for name in ("src", "data")}
    missing["globals"] = f"{where}: a layer on a gnnjit.TypedGraph has no e.globals yet"
    if dst is None:
        missing["dst"] = f"{where}: the layer reads e.dst, but x[{dst_type!r}] is None"
    else:
        fields["dst"] = dst
    return _Reader("e (the incoming edges, of all relations)", fields, missing)


def united(f: Callable[[Any], Any], relations: Sequence[Any], where: str) -> Any:
    """One value over the edges of all `relations`, from `f` of each."""
    values = [f(r) for r in relations]
    found = [jax.tree.flatten(value) for value in values]
    for r, (leaves, tree) in zip(relations, found, strict=True):
        if tree != found[0][1]:
            raise LayerError(
                f"{where}: e.map: the function gives {shortened(str(tree), 200)} for {r.name!r} "
                f"and {shortened(str(found[0][1]), 200)} for {relations[0].name!r}, expected the "
                "same structure for every relation"
            )
        for leaf in leaves:
            if isinstance(leaf, _Reader):
                leaf._fail()
    columns = zip(*(leaves for leaves, _ in found), strict=True)
    return jax.tree.unflatten(found[0][1], [_one(xs, relations, where) for xs in columns])


def _one(xs: Sequence[Any], relations: Sequence[Any], where: str) -> Any:
    arrays = [jnp.asarray(x) for x in xs]
    dtype = jnp.result_type(*arrays)
    for r, x in zip(relations, arrays, strict=True):
        if x.shape != arrays[0].shape:
            raise LayerError(
                f"{where}: e.map: the function gives shape {list(x.shape)} for {r.name!r} and "
                f"{list(arrays[0].shape)} for {relations[0].name!r}, expected the same for every "
                "relation: multiply by a matrix of each relation first, as in r.src @ w[r.name]"
            )
    return union_p.bind(*(x.astype(dtype) for x in arrays))
