"""A typed layer's call as one program to JAX, so that its relations share passes over vertices.

Each relation is planned and differentiated by itself, as a layer of its own. What they have in
common shows only in the whole: products of the same vertices, and gradients that are added up. So
the whole is one primitive, whose derivative and transpose are two and one of its kind, and which
becomes code where nothing will be differentiated any more (`lower.row_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit._compat import ad, batching
from gnnjit.compiler.primitive import layer_p, written_out
from gnnjit.cost.machine import platform_here
from gnnjit.lower import cpu, row_sums
from gnnjit.lower.primitives import lowers_to, runs_alone

joined_p = _compat.Primitive("typed_layer")
joined_p.multiple_results = True


def joined(run: Callable[[], Any], operands: Sequence[Any], work: int) -> Any:
    """`run()`, a tree of arrays; as one program where it is compiled for one CPU, and is large.

    operands: arrays that it reads. Outside `jax.jit` they have values, and each relation runs by
        itself, as what was compiled for it is found again.
    work: multiplications with matrices, roughly.
    """
    known = all(_compat.value_of(x) is not None for x in operands)
    if known or platform_here() != "cpu" or not jax.sharding.get_abstract_mesh().empty:
        return run()
    if work < row_sums.LEAST:
        return run()
    traced, shapes = jax.make_jaxpr(run, return_shape=True)()
    closed, consts = _compat.without_constants(traced)
    bind = _evaluated if traced.effects else _bound
    return jax.tree.unflatten(jax.tree.structure(shapes), bind(closed, consts))


def _bound(closed: Any, args: Sequence[Any]) -> list[Any]:
    return joined_p.bind(*args, jaxpr=closed)


def _evaluated(
    closed: Any, args: Sequence[Any], run: Callable[..., Any] = _compat.bound
) -> list[Any]:
    """The results of a jaxpr without constants; `run(eqn, args)` gives those of an equation."""
    jaxpr = _compat.open_jaxpr(closed)[0]
    env: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, _compat.JaxprLiteral) else env[v]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, run(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _traced(fn: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A function of such arrays as a jaxpr, whose first inputs are the constants."""
    return _compat.without_constants(jax.make_jaxpr(fn)(*map(_compat.like, avals)))


@joined_p.def_abstract_eval
def _shapes(*args: Any, jaxpr: Any) -> list[Any]:
    return [_compat.result_aval(args, a.shape, a.dtype) for a in jaxpr.out_avals]


def _jvp(
    args: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any
) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not ad.Zero for t in tangents]
    first, second, live = _compat.derivative_parts(jaxpr, nonzero)
    found = _bound(first, args)
    outs, needed = found[: len(live)], found[len(live) :]
    moved = [t for t, wanted in zip(tangents, nonzero, strict=True) if wanted]
    rest = iter(_bound(second, [*needed, *moved]))
    return outs, [
        next(rest) if known else _compat.zero_tangent(jax.typeof(x))
        for x, known in zip(outs, live, strict=True)
    ]


def _transpose(cts: Sequence[Any], *args: Any, jaxpr: Any) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in args]
    wanted = [k for k, ct in enumerate(cts) if type(ct) is not ad.Zero]
    known = [x for x, moves in zip(args, linear, strict=True) if not moves]
    moving = [x.aval for x, moves in zip(args, linear, strict=True) if moves]
    if not wanted:
        return [ad.Zero(x.aval) if moves else None for x, moves in zip(args, linear, strict=True)]

    def backward(*some: Any) -> list[Any]:
        def forward(*unknown: Any) -> list[Any]:
            fixed, rest = iter(some), iter(unknown)
            outs = _evaluated(jaxpr, [next(rest if moves else fixed) for moves in linear])
            return [outs[k] for k in wanted]

        return jax.linear_transpose(forward, *moving)(list(some[len(known) :]))

    given = [*known, *(cts[k] for k in wanted)]
    closed, consts = _traced(backward, [jax.typeof(x) for x in given])
    found = iter(_bound(closed, [*consts, *given]))
    return [next(found) if moves else None for moves in linear]


def _batch(args: Sequence[Any], dims: Sequence[Any], *, jaxpr: Any) -> tuple[list[Any], list[int]]:
    """Each relation by itself: with a batch, products are no longer of two matrices."""
    axes = tuple(dims)
    outs = jax.vmap(lambda *xs: _evaluated(jaxpr, xs), in_axes=axes)(*args)
    return outs, [0] * len(outs)


def _drop(read: tuple[int, ...], params: dict[str, Any]) -> _compat.Kept:
    jaxpr, inputs = _compat.pruned(params["jaxpr"], read)
    return inputs, read, {"jaxpr": jaxpr}


def _lower(*args: Any, jaxpr: Any, platform: str) -> list[Any]:
    if platform != "cpu" or cpu.why_no_row_sums(jnp.dtype(jnp.float32)):
        return _evaluated(jaxpr, args)
    closed, consts = _traced(
        lambda *xs: _evaluated(jaxpr, xs, _planned), [jax.typeof(x) for x in args]
    )
    return row_sums.evaluate(closed, [*consts, *args])


def _planned(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """The results of an equation; of a layer, those of its plan without a derivative.

    From JAX 0.12, the derivative of a function that asks to be inlined is not inlined.
    """
    if eqn.primitive is layer_p:
        return written_out(eqn.params)(*args)
    if eqn.primitive.name in ("jit", "pjit") and eqn.params["inline"]:
        closed, consts = _compat.without_constants(eqn.params["jaxpr"])
        return _evaluated(closed, [*consts, *args], _planned)
    return _compat.bound(eqn, args)


ad.primitive_jvps[joined_p] = _jvp
ad.primitive_transposes[joined_p] = _transpose
batching.primitive_batchers[joined_p] = _batch
_compat.drop_unused(joined_p, _drop)
runs_alone(joined_p)
lowers_to(joined_p, _lower)
