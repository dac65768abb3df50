"""What a layer function may say beside plain JAX: reductions over a vertex's incoming or outgoing
edges, and random numbers drawn once per element.

Everything here acts on *per-element* values and has meaning only inside `@gnnjit.layer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit.errors import LayerError, shortened
from gnnjit.frontend import formulas
from gnnjit.frontend.formulas import as_by, as_float, real
from gnnjit.system.contexts import Context

Over = Literal["in", "out"]
"""Which edges of a vertex are reduced: those that end at it, or those that leave it."""

_state = threading.local()
_in_layer = Context(False)
"""A helper that is compiled by `jax.jit` and was traced inside a layer is traced anew outside."""
by_relation = Context(False)
"""Whether the layer is traced for a `TypedGraph`, where edges belong to relations."""


@contextlib.contextmanager
def layer_scope() -> Iterator[None]:
    """Marks that a layer function is being traced; reductions outside are errors."""
    with _in_layer(True):
        yield


class Runner(Protocol):
    """Answers the vocabulary with numbers, while a layer function runs as plain Python."""

    def reduce(self, kind: str, x: jax.Array) -> jax.Array: ...

    def degree(self) -> jax.Array: ...

    def index(self) -> jax.Array: ...


@contextlib.contextmanager
def answered_by(runner: Runner) -> Iterator[None]:
    """Within it, reductions are not traced: `runner` gives their results."""
    outer = _runner()
    _state.runner = runner
    try:
        yield
    finally:
        _state.runner = outer


def _runner() -> Runner | None:
    return getattr(_state, "runner", None)


def inside(what: str, reads: str = "the edges of one vertex") -> None:
    """Error unless a layer is being traced; notes the word that the user said."""
    _state.said = what
    if not _in_layer.value:
        raise LayerError(
            f"gnnjit.{what}() was called outside a layer: it reads {reads}, so it "
            "has meaning only in a function decorated with @gnnjit.layer"
        )


def _define(name: str) -> Any:
    prim = _compat.Primitive(name)
    prim.def_impl(lambda x, **_: x)
    prim.def_abstract_eval(lambda x, **_: _compat.shaped_array(x.shape, x.dtype))
    return prim


def linear_jvp(primitive: Any) -> Callable[..., Any]:
    """The jvp rule of a reduction inside a layer: sums are linear, the others have none."""

    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        if params.get("kind", "sum") != "sum":
            raise LayerError(
                f"jax.jvp or jax.grad inside a layer reached gnnjit.{params['said']}(): "
                "differentiate the whole layer from outside instead"
            )
        (x,), (t,) = primals, tangents
        out = primitive.bind(x, **params)
        return out, t if type(t) is _compat.ad.Zero else primitive.bind(t, **params)

    return rule


def _elementwise(name: str) -> Any:
    """A linear primitive of one operand, whose result has its shape."""
    prim = _define(name)
    _compat.batching.primitive_batchers[prim] = lambda args, dims, **params: (
        prim.bind(*args, **params),
        dims[0],
    )
    _compat.ad.primitive_jvps[prim] = linear_jvp(prim)
    _compat.ad.primitive_transposes[prim] = lambda *_, **__: no_inner_transpose()
    _compat.mlir.register_lowering(
        prim, _compat.mlir.lower_fun(lambda x, **_: x, multiple_results=False)
    )
    return prim


reduce_p = _elementwise("gnnjit_reduce")
"""Of an edge value; `over` the incoming edges it gives a value of destinations, over the outgoing
ones a value of sources."""

at_vertex_p = _elementwise("gnnjit_at_vertex")
"""A value of sources, as a value of the same vertices as destinations."""

degree_p = _compat.Primitive("gnnjit_degree")
degree_p.def_impl(lambda **_: jnp.int32(1))
degree_p.def_abstract_eval(lambda **_: _compat.shaped_array((), np.dtype(np.int32)))

_compat.mlir.register_lowering(
    degree_p, _compat.mlir.lower_fun(lambda **_: jnp.int32(1), multiple_results=False)
)

index_p = _compat.Primitive("gnnjit_index")
"""The number of the element that a value belongs to; with `edge`, always that of the edge."""
index_p.def_impl(lambda like, **_: jnp.int32(0))
index_p.def_abstract_eval(lambda like, **_: _compat.shaped_array((), np.dtype(np.int32)))
_compat.batching.primitive_batchers[index_p] = lambda args, dims, **params: (
    index_p.bind(lax.index_in_dim(args[0], 0, dims[0], keepdims=False), **params),
    None,
)
_compat.mlir.register_lowering(
    index_p, _compat.mlir.lower_fun(lambda like, **_: jnp.int32(0), multiple_results=False)
)
_compat.ad.primitive_jvps[index_p] = lambda primals, tangents, **params: (
    index_p.bind(*primals, **params),
    _compat.zero_tangent(jax.ShapeDtypeStruct((), jnp.int32)),
)


count_p = _compat.Primitive("gnnjit_count")
"""How many edges its operand is reduced over, which are those of one relation or of all."""
count_p.def_impl(lambda like: jnp.int32(1))
count_p.def_abstract_eval(lambda like: _compat.shaped_array((), np.dtype(np.int32)))
_compat.batching.primitive_batchers[count_p] = lambda args, dims: (
    count_p.bind(lax.index_in_dim(args[0], 0, dims[0], keepdims=False)),
    None,
)
_compat.ad.primitive_jvps[count_p] = lambda primals, tangents: (
    count_p.bind(*primals),
    _compat.zero_tangent(jax.ShapeDtypeStruct((), jnp.int32)),
)

softmax_p = _define("gnnjit_softmax")
"""Bound where edges belong to relations: a softmax over all of them is combined at the vertex."""
_compat.batching.primitive_batchers[softmax_p] = lambda args, dims: (
    softmax_p.bind(*args),
    dims[0],
)
_compat.ad.primitive_jvps[softmax_p] = lambda primals, _: linear_jvp(softmax_p)(
    primals, primals, kind="softmax", said="softmax"
)


def no_inner_transpose() -> Any:
    """The transpose rule of a reduction inside a layer."""
    raise LayerError(
        "jax.grad inside a layer reached a reduction over edges: differentiate the whole layer "
        "from outside instead, or differentiate only the per-edge part inside"
    )


def numbers_to_reduce(kind: str, x: Any) -> tuple[jax.Array, str]:
    """The array, and the word that the user said. Error where it has no such reduction."""
    x = jnp.asarray(x)
    said = getattr(_state, "said", kind)
    if kind in ("max", "min") and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise LayerError(_no_order(said, x))
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise LayerError(
            f"{said}() got random keys ({x.dtype.name}), which are no numbers: draw from them first"
        )
    return x, said


def _no_order(said: str, x: jax.Array) -> str:
    """Why a reduction that compares its values refuses complex ones."""
    instead = {
        "softmax": "gnnjit.softmax(jnp.real(z)) for weights",
        "logsumexp": "jnp.log(gnnjit.sum(jnp.exp(z)))",
    }.get(said, f"gnnjit.{said}(jnp.abs(z)), or {said} of jnp.real(z) and of jnp.imag(z)")
    return (
        f"{said}() got {x.dtype.name}{list(x.shape)}, expected real numbers: complex ones have no "
        f"order, so there is no largest of them. Write {instead}"
    )


@dataclasses.dataclass(frozen=True)
class Edges:
    """The edges of a vertex, as `formulas` reduces over them. What is reduced over outgoing ones is
    a value of sources, which edges read at their source, until it is brought to the vertex."""

    over: Over = "in"

    def reduce(self, kind: str, x: jax.Array) -> jax.Array:
        x, said = numbers_to_reduce(kind, x)
        if self.over == "in" and (runner := _runner()) is not None:
            return runner.reduce(kind, x)
        return reduce_p.bind(x, kind=kind, said=said, over=self.over)

    def count(self, x: jax.Array | None = None) -> jax.Array:
        """How many edges there are; on a typed graph, of the relations that `x` is a value of."""
        if by_relation.value and x is not None:
            return count_p.bind(x)
        if self.over == "in" and (runner := _runner()) is not None:
            return runner.degree()
        return degree_p.bind(over=self.over)

    def extreme(self, kind: str, x: jax.Array) -> jax.Array:
        """The maximum or minimum; the compiler reduces truth values as integers."""
        if x.dtype == jnp.bool_:
            return self.reduce(kind, x.astype(jnp.int32)) > 0
        return self.reduce(kind, x)

    def at_vertex(self, x: jax.Array) -> jax.Array:
        return x if self.over == "in" else at_vertex_p.bind(x)


def edges_over(said: str, over: Any) -> Edges:
    """Error unless a layer is being traced, or where `over` is no such word."""
    inside(said)
    if over not in ("in", "out"):
        raise LayerError(
            f'gnnjit.{said}: over must be "in" (the incoming edges) or "out" (the outgoing ones), '
            f"got {shortened(repr(over), 100)}"
        )
    if over == "out" and by_relation.value:
        raise LayerError(
            f'gnnjit.{said}: over="out" on a gnnjit.TypedGraph, whose layers reduce the edges that '
            "end at a type: call another layer on graph.reverse(), where these edges end"
        )
    return Edges(over)


def reduced(
    said: str,
    value: Any,
    initial: Any,
    over: Over,
    one: Callable[[Edges, jax.Array], jax.Array],
) -> Any:
    """A pytree of edge values, each reduced by `one`; `initial` where a vertex has no edges."""
    edges = edges_over(said, over)

    def of_leaf(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        out = one(edges, leaf)
        if initial is not None:
            out = jnp.where(edges.count(leaf) > 0, out, jnp.asarray(initial, out.dtype))
        return edges.at_vertex(out)

    return jax.tree.map(of_leaf, value)


def sum(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Sum of `value` over this vertex's incoming edges: the same pytree, a vertex value.

    Half precision is summed in float32. Integers and truth values are summed in the widest integer
    that JAX has, as by `jnp.sum`: the sum of int8 or bool is int32.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.
        over: "out" for this vertex's outgoing edges; there `e.src` is this vertex, and `v` and
            `e.dst` are the vertex that the edge leads to.

    Raises:
        LayerError: outside a layer; or `over` is "out" and sources and destinations are two vertex
            sets.
    """
    return reduced("sum", value, initial, over, lambda e, x: e.reduce("sum", as_by("sum", x)))


def max(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Elementwise maximum over the incoming edges, a vertex value; ties share the gradient evenly.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0, with a zero gradient, if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    return reduced("max", value, initial, over, lambda e, x: e.extreme("max", x))


def min(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Elementwise minimum over the incoming edges, a vertex value; ties share the gradient evenly.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0, with a zero gradient, if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    return reduced("min", value, initial, over, lambda e, x: e.extreme("min", x))


def mean(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Arithmetic mean over the incoming edges, a vertex value; half precision is summed in float32.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    one = formulas.mean
    return reduced("mean", value, initial, over, lambda e, x: one(e, x).astype(as_float(x).dtype))


def var(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Population variance over the incoming edges: a vertex value, real and never negative.

    It takes two traversals, the mean first, so that nothing cancels. The variance of complex values
    is real: the mean of `|x - mean|^2`.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    return reduced("var", value, initial, over, lambda e, x: formulas.var(e, x).astype(real(x)))


def std(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Population standard deviation over the incoming edges: a vertex value, real.

    A spread that rounding alone may have made counts as 0, with gradient 0: that of equal values,
    however they were computed, and any below 4 units in the last place of the mean.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    return reduced("std", value, initial, over, lambda e, x: formulas.std(e, x).astype(real(x)))


def logsumexp(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """`log(sum(exp(value)))` over the incoming edges, without overflow: a vertex value.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.
        over: as of `sum`.

    Raises:
        LayerError: as of `sum`.
    """
    one = formulas.logsumexp
    return reduced(
        "logsumexp", value, initial, over, lambda e, x: one(e, x).astype(as_float(x).dtype)
    )


def softmax(value: Any, *, over: Over = "in") -> Any:
    """Softmax of an edge value over the incoming edges of its destination: an edge value.

    The edges of a vertex whose scores are all -inf get weights 0.

    Args:
        value: a pytree of `[...]`, one score per edge; each entry is normalised by itself.
        over: "out" for the outgoing edges of the edge's source. Sources and destinations may then
            be two vertex sets.

    Raises:
        LayerError: outside a layer.
    """
    edges = edges_over("softmax", over)
    if by_relation.value:
        return jax.tree.map(lambda x: softmax_p.bind(numbers_to_reduce("max", x)[0]), value)
    return jax.tree.map(lambda x: formulas.softmax(edges, x), value)


def degree(*, over: Over = "in") -> jax.Array:
    """Number of incoming edges of this vertex, `int32[]`, or of outgoing ones; padding is not
    counted. Raises LayerError as `sum` does."""
    edges = edges_over("degree", over)
    return edges.at_vertex(edges.count())


def _mix(h: jax.Array) -> jax.Array:
    """A bijection of 32-bit words with good avalanche (Wellons' `triple32` constants)."""
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return h ^ (h >> np.uint32(14))


def _key_words(key: Any) -> list[jax.Array]:
    """The words of one key: JAX's typed one, or an old one of two or four 32-bit words."""
    dtype, shape = getattr(key, "dtype", None), tuple(getattr(key, "shape", ()))
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (shape == () if typed else dtype == jnp.uint32 and shape in ((2,), (4,))):
        came = type(key).__name__ if dtype is None else f"{dtype.name}{list(shape)}"
        keys = "; a key of each vertex or edge is given in x or edges" if shape else ""
        raise LayerError(
            f"gnnjit.{_state.said}() got {came} as its key, expected one random key: pass "
            f"jax.random.key(seed){keys}"
        )
    data = jax.random.key_data(key) if typed else key
    return [word.astype(jnp.uint32) for word in jnp.ravel(data)]


def random_uniform(key: Any, like: Any) -> jax.Array:
    """Numbers in [0, 1), float32, one for each element of `like`'s space and each of its features.

    They are a hash of key, element and feature. Nothing is stored for the backward pass, and the
    numbers do not depend on the order in which the edges are visited.

    Args:
        key: one JAX random key, of the whole graph or (from `x` or `edges`) of this element.
        like: any per-element value, `[...]`; the result has its shape and space.

    Raises:
        LayerError: outside a layer, or `key` is not one random key.
    """
    inside("random_uniform")
    return _uniform(key, jnp.asarray(like))


_START = np.uint32(0x6A09E667)
"""Added to an element's number: what mixes the bits leaves 0 as it is, and of `jax.random.key(0)`,
whose words are 0, element 0 would always draw 0."""


def _uniform(key: Any, like: jax.Array) -> jax.Array:
    words = _key_words(key)
    runner = _runner()
    element = index_p.bind(like, edge=False) if runner is None else runner.index()
    h = element.astype(jnp.uint32) + _START
    for word in words:
        h = _mix(h ^ word)
    feature = lax.iota(jnp.uint32, int(np.prod(like.shape, dtype=np.int64))).reshape(like.shape)
    h = _mix(h + feature * np.uint32(0x9E3779B9))
    return (h >> np.uint32(8)).astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-24)


def dropout(value: Any, rate: float, key: Any) -> Any:
    """Set each entry to 0 with probability `rate`, and scale the others by `1 / (1 - rate)`.

    It draws once per element of the value's space: for an edge value once per edge, for a vertex
    value once per vertex.

    Args:
        value: a pytree of `[...]`, whose leaves draw independently.
        rate: from 0 to below 1.
        key: a JAX random key, of the whole graph or of this element.

    Raises:
        LayerError: outside a layer, or `rate` or `key` is no such value.
    """
    inside("dropout")
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        came = shortened(repr(rate), 100)
        raise LayerError(f"gnnjit.dropout: rate must be a number in [0, 1), got {came}")
    if rate == 0:
        return value
    leaves, tree = jax.tree.flatten(value)
    kept = []
    for i, leaf in enumerate(leaves):
        x = jnp.asarray(leaf)
        draw = _uniform(key if i == 0 else jax.random.fold_in(key, i), x)
        kept.append(jnp.where(draw >= rate, x / (1 - rate), jnp.zeros_like(x)))
    return jax.tree.unflatten(tree, kept)
