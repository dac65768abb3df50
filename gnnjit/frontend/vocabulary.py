"""What a layer function may say beside plain JAX: reductions over a vertex's incoming edges,
and random numbers drawn once per element.

Everything here acts on *per-element* values and has meaning only inside `@gnnjit.layer`.
"""

from __future__ import annotations

import contextlib
import numbers
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit.errors import LayerError, shortened
from gnnjit.frontend import formulas
from gnnjit.frontend.formulas import as_by, as_float, real
from gnnjit.system.contexts import Context

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

    def rule(primals: Any, tangents: Any, *, kind: str, said: str) -> Any:
        if kind != "sum":
            raise LayerError(
                f"jax.jvp or jax.grad inside a layer reached gnnjit.{said}(): differentiate the "
                "whole layer from outside instead"
            )
        (x,), (t,) = primals, tangents
        out = primitive.bind(x, kind=kind, said=said)
        zero = type(t) is _compat.ad.Zero
        return out, t if zero else primitive.bind(t, kind=kind, said=said)

    return rule


reduce_p = _define("gnnjit_reduce")
_compat.batching.primitive_batchers[reduce_p] = lambda args, dims, **params: (
    reduce_p.bind(*args, **params),
    dims[0],
)
_compat.ad.primitive_jvps[reduce_p] = linear_jvp(reduce_p)
_compat.ad.primitive_transposes[reduce_p] = lambda *_, **__: no_inner_transpose()

_compat.mlir.register_lowering(
    reduce_p, _compat.mlir.lower_fun(lambda x, **_: x, multiple_results=False)
)

degree_p = _compat.Primitive("gnnjit_degree")
degree_p.def_impl(lambda: jnp.int32(1))
degree_p.def_abstract_eval(lambda: _compat.shaped_array((), np.dtype(np.int32)))

_compat.mlir.register_lowering(
    degree_p, _compat.mlir.lower_fun(lambda: jnp.int32(1), multiple_results=False)
)

index_p = _compat.Primitive("gnnjit_index")
index_p.def_impl(lambda like: jnp.int32(0))
index_p.def_abstract_eval(lambda like: _compat.shaped_array((), np.dtype(np.int32)))
_compat.batching.primitive_batchers[index_p] = lambda args, dims: (
    index_p.bind(lax.index_in_dim(args[0], 0, dims[0], keepdims=False)),
    None,
)
_compat.mlir.register_lowering(
    index_p, _compat.mlir.lower_fun(lambda like: jnp.int32(0), multiple_results=False)
)
_compat.ad.primitive_jvps[index_p] = lambda primals, tangents: (
    index_p.bind(*primals),
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
    if kind != "sum" and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise LayerError(_no_order(said, x))
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise LayerError(
            f"{said}() got random keys ({x.dtype.name}), which are no numbers: draw from them first"
        )
    return x, said


def _reduce(kind: str, x: Any) -> jax.Array:
    x, said = numbers_to_reduce(kind, x)
    if (runner := _runner()) is not None:
        return runner.reduce(kind, x)
    return reduce_p.bind(x, kind=kind, said=said)


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


def _sum(x: Any) -> jax.Array:
    """In the dtype of `jnp.sum`: of integers and truth values, the widest that there is."""
    return _reduce("sum", as_by("sum", x))


def _extreme(kind: str, x: Any) -> jax.Array:
    """The maximum or minimum; the compiler reduces truth values as integers."""
    x = jnp.asarray(x)
    if x.dtype == jnp.bool_:
        return _reduce(kind, x.astype(jnp.int32)) > 0
    return _reduce(kind, x)


def _map(f: Callable[[Any], Any], value: Any) -> Any:
    return jax.tree.map(f, value)


def _where_edges(x: jax.Array, initial: Any, reduced: Any) -> jax.Array:
    """`x`, which is what `reduced` was reduced to, or `initial` where there was nothing."""
    if initial is None:
        return x
    return jnp.where(EDGES.count(reduced) > 0, x, jnp.asarray(initial, x.dtype))


def sum(value: Any, *, initial: Any = None) -> Any:
    """Sum of `value` over this vertex's incoming edges: the same pytree, a vertex value.

    Half precision is summed in float32. Integers and truth values are summed in the widest integer
    that JAX has, as by `jnp.sum`: the sum of int8 or bool is int32.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("sum")
    return _map(lambda x: _where_edges(_sum(x), initial, x), value)


def max(value: Any, *, initial: Any = None) -> Any:
    """Elementwise maximum over the incoming edges, a vertex value; ties share the gradient evenly.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0, with a zero gradient, if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("max")
    return _map(lambda x: _where_edges(_extreme("max", x), initial, x), value)


def min(value: Any, *, initial: Any = None) -> Any:
    """Elementwise minimum over the incoming edges, a vertex value; ties share the gradient evenly.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0, with a zero gradient, if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("min")
    return _map(lambda x: _where_edges(_extreme("min", x), initial, x), value)


class _Edges:
    """The incoming edges of a vertex, as `formulas` reduces over them."""

    def reduce(self, kind: str, x: jax.Array) -> jax.Array:
        return _reduce(kind, x)

    def count(self, x: jax.Array) -> jax.Array:
        return count_p.bind(jnp.asarray(x)) if by_relation.value else _degree()


EDGES = _Edges()


def _mean(x: Any) -> jax.Array:
    return formulas.mean(EDGES, x).astype(as_float(x).dtype)


def mean(value: Any, *, initial: Any = None) -> Any:
    """Arithmetic mean over the incoming edges, a vertex value; half precision is summed in float32.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("mean")
    return _map(lambda x: _where_edges(_mean(x), initial, x), value)


def var(value: Any, *, initial: Any = None) -> Any:
    """Population variance over the incoming edges: a vertex value, real and never negative.

    It takes two traversals, the mean first, so that nothing cancels. The variance of complex values
    is real: the mean of `|x - mean|^2`.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("var")
    return _map(lambda x: _where_edges(formulas.var(EDGES, x).astype(real(x)), initial, x), value)


def std(value: Any, *, initial: Any = None) -> Any:
    """Population standard deviation over the incoming edges: a vertex value, real.

    A spread that rounding alone may have made counts as 0, with gradient 0: that of equal values,
    however they were computed, and any below 4 units in the last place of the mean.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("std")
    return _map(lambda x: _where_edges(formulas.std(EDGES, x).astype(real(x)), initial, x), value)


def _logsumexp(x: Any) -> jax.Array:
    return formulas.logsumexp(EDGES, x).astype(as_float(x).dtype)


def logsumexp(value: Any, *, initial: Any = None) -> Any:
    """`log(sum(exp(value)))` over the incoming edges, without overflow: a vertex value.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 0 if left out.

    Raises:
        LayerError: outside a layer.
    """
    inside("logsumexp")
    return _map(lambda x: _where_edges(_logsumexp(x), initial, x), value)


def softmax(value: Any) -> Any:
    """Softmax of an edge value over the incoming edges of its destination: an edge value.

    The edges of a vertex whose scores are all -inf get weights 0.

    Args:
        value: a pytree of `[...]`, one score per edge; each entry is normalised by itself.

    Raises:
        LayerError: outside a layer.
    """
    inside("softmax")
    if by_relation.value:
        return _map(lambda x: softmax_p.bind(numbers_to_reduce("max", x)[0]), value)
    return _map(lambda x: formulas.softmax(EDGES, x), value)


def degree() -> jax.Array:
    """Number of incoming edges of this vertex, `int32[]`; padding is not counted. Raises LayerError
    outside a layer."""
    inside("degree")
    return _degree()


def _degree() -> jax.Array:
    runner = _runner()
    return degree_p.bind() if runner is None else runner.degree()


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
    element = index_p.bind(like) if runner is None else runner.index()
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
