"""`gnnjit.fold`: the edges of a vertex as a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend.lifted import lifted
from gnnjit.frontend.vocabulary import Over, edges_over

__all__ = ["fold"]

fold_p = _compat.Primitive("gnnjit_fold")
"""The state after all edges of a vertex. Its operands are the order of the edges, if `ordered`, the
`states` at the start, then what the `step`, a jaxpr, is given of an edge, and what it closed over.
"""
fold_p.multiple_results = True


@fold_p.def_abstract_eval
def _abstract(*args: Any, states: int, ordered: bool, **_: Any) -> Any:
    return [_compat.shaped_array(x.shape, x.dtype) for x in args[ordered : ordered + states]]


def _refuse(by: str) -> Callable[..., Any]:
    def rule(*_: Any, **__: Any) -> Any:
        raise LayerError(
            f"jax.{by} inside a layer reached gnnjit.fold(): {by} the whole layer from outside "
            "instead"
        )

    return rule


_compat.batching.primitive_batchers[fold_p] = _refuse("vmap")
_compat.ad.primitive_jvps[fold_p] = _refuse("grad")
_compat.mlir.register_lowering(
    fold_p,
    _compat.mlir.lower_fun(
        lambda *args, states, ordered, **_: args[ordered : ordered + states], multiple_results=True
    ),
)


def fold(
    step: Callable[[Any, Any], Any],
    init: Any,
    value: Any,
    *,
    order: Any = None,
    over: Over = "in",
) -> Any:
    """A state that the incoming edges of a vertex change one after the other: a vertex value.

    `step(state, value)` gives the next state, from that after the edges before and the value of
    this edge; it is plain JAX on one edge and may use parameters, `v` and `e`. An LSTM over
    neighbours is a fold (Hamilton et al., "Inductive representation learning on large graphs"
    (2017), section 3.3). Over no edges the result is `init`. It has derivatives of every order.

    Args:
        step: a function of a state and a value; what it returns has the shapes and dtypes of
            `init`.
        init: the state before the first edge: a pytree of vertex values, or shared ones.
        value: a pytree of `[...]`, one value per edge.
        order: one number per edge, `[]`: edges come by these, the smallest first and NaN last. Ties
            come in the order in which the edges were given, as all do without it. It has no
            gradient.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`; `init` is then shared.

    Raises:
        LayerError: as of `gnnjit.sum`; `step` gives another kind of state than it takes, or
            `order` is no such number.
    """
    edges = edges_over("fold", over)
    states, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, init))
    states = [x.astype(x.dtype) if getattr(x, "weak_type", False) else x for x in states]
    values, of_value = jax.tree.flatten(jax.tree.map(jnp.asarray, value))
    if not states:
        raise LayerError("gnnjit.fold: init is a state without arrays, expected at least one")

    def flat(*xs: Any) -> Any:
        state = jax.tree.unflatten(tree, xs[: len(states)])
        return step(state, jax.tree.unflatten(of_value, xs[len(states) :]))

    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*states, *values)]
    traced, shape = jax.make_jaxpr(flat, return_shape=True)(*avals)
    _check(shape, tree, states)
    jaxpr, consts = lifted(traced)
    given = [] if order is None else [_checked_order(order)]
    out = fold_p.bind(
        *given, *states, *values, *consts,
        step=jaxpr, states=len(states), ordered=order is not None, over=over, said="fold",
    )  # fmt: skip
    return jax.tree.unflatten(tree, [edges.at_vertex(x) for x in out])


def _check(shape: Any, tree: Any, states: list[Any]) -> None:
    """Error unless a step gives the kind of state that it takes."""
    found, of_found = jax.tree.flatten(shape)
    kinds = [f"{x.dtype.name}{list(x.shape)}" for x in found]
    wanted = [f"{x.dtype.name}{list(x.shape)}" for x in states]
    if of_found != tree or kinds != wanted:
        raise LayerError(
            f"gnnjit.fold: step gives the state {_shown(of_found, kinds)}, expected that of init, "
            f"{_shown(tree, wanted)}: return what step takes, or start from another init"
        )


def _shown(tree: Any, kinds: list[str]) -> str:
    return str(jax.tree.unflatten(tree, kinds)).replace("'", "")


def _checked_order(order: Any) -> jax.Array:
    order = jnp.asarray(order)
    if order.shape or jnp.issubdtype(order.dtype, jnp.complexfloating):
        raise LayerError(
            "gnnjit.fold: order must be one real number per edge, [], got "
            f"{order.dtype.name}{list(order.shape)}: pick one entry of it, as in order=e.data[0]"
        )
    return order.astype(jnp.int32) if order.dtype == jnp.bool_ else order
