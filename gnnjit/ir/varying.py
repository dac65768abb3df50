"""An equation whose values vary over the axes of a mesh, inside `jax.shard_map`.

The functions inside an equation, of a loop or a custom derivative, were traced for one element and
know of no mesh, and JAX does not mix them with values that vary. Here they are traced once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")

Over = frozenset[Any]
"""Names of axes of a mesh."""


def bind(primitive: Any, args: Sequence[Any], params: dict[str, Any], over: Over) -> list[Any]:
    """The results of a primitive on values of which some vary over `over`."""
    args = _alike(args, over)
    match primitive.name:
        case name if name in _CALLS:
            return _run(params.get("jaxpr", params.get("call_jaxpr")), args, over)
        case "custom_jvp_call":
            return _custom_jvp(primitive, args, params, over)
        case "custom_vjp_call":
            return _custom_vjp(primitive, args, params, over)
    if primitive.name in ("scan", "while", "cond"):
        params = {k: _retraced(p, over) for k, p in params.items()}
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def _alike(args: Sequence[Any], over: Over) -> list[Any]:
    """All of `args` varying over `over`, constants too."""
    return [_compat.cast_varying(x, over) for x in args]


def _run(closed: Any, args: Sequence[Any], over: Over) -> list[Any]:
    """What a jaxpr without a mesh makes of values that vary."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, _compat.JaxprLiteral) else env[v]

    for eqn in jaxpr.eqns:
        outs = bind(eqn.primitive, [read(v) for v in eqn.invars], dict(eqn.params), over)
        env.update(zip(eqn.outvars, outs, strict=True))
    return _alike([read(v) for v in jaxpr.outvars], over)


def _retraced(param: Any, over: Over) -> Any:
    """A parameter of a primitive, with the jaxprs in it for values that vary."""
    if type(param) is tuple:
        return tuple(_retraced(p, over) for p in param)
    if not _compat.is_jaxpr(param):
        return param
    avals = [_compat.varying_like(v.aval, over) for v in _compat.open_jaxpr(param)[0].invars]
    return jax.make_jaxpr(lambda *xs: _run(param, xs, over))(*avals)


def _traced(fn: Callable[..., Any], args: Any) -> Any:
    """The jaxpr of a function of such arrays, as if they did not vary."""
    with _compat.without_mesh():
        return jax.make_jaxpr(fn, return_shape=True)(*jax.tree.map(_compat.like, args))


def _bound(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    return lambda *xs: primitive.bind(*xs, **primitive.get_bind_params(dict(params)))


def _custom_jvp(primitive: Any, args: Any, params: dict[str, Any], over: Over) -> list[Any]:
    """The same function with the same derivative, for values that vary."""
    plain = _bound(primitive, params)

    @jax.custom_jvp
    def call(*xs: Any) -> Any:
        return _run(params["call_jaxpr"], xs, over)

    @call.defjvp
    def rule(xs: Any, ts: Any) -> Any:
        differentiated = [i for i, t in enumerate(ts) if t.dtype == xs[i].dtype]

        def derived(xs: Any, some: Any) -> Any:
            def f(*moved: Any) -> Any:
                full = list(xs)
                for i, x in zip(differentiated, moved, strict=True):
                    full[i] = x
                return plain(*full)

            return jax.jvp(f, [xs[i] for i in differentiated], list(some))

        some = [ts[i] for i in differentiated]
        closed, _ = _traced(derived, (list(xs), some))
        outs = _run(closed, [*xs, *some], over)
        return outs[: len(outs) // 2], outs[len(outs) // 2 :]

    return list(call(*args))


def _custom_vjp(primitive: Any, args: Any, params: dict[str, Any], over: Over) -> list[Any]:
    """The same function with the same derivative, for values that vary."""
    plain = _bound(primitive, params)
    tree: list[Any] = []

    @jax.custom_vjp
    def call(*xs: Any) -> Any:
        return _run(params["call_jaxpr"], xs, over)

    def forward(*xs: Any) -> Any:
        closed, (outs, kept) = _traced(lambda *xs: jax.vjp(plain, *xs), xs)
        found = _run(closed, xs, over)
        tree[:] = [kept]
        n = len(jax.tree.leaves(outs))
        return found[:n], found[n:]

    def backward(kept: Any, cts: Any) -> Any:
        def f(kept: Any, cts: Any) -> Any:
            return jax.tree.unflatten(jax.tree.structure(tree[0]), kept)(cts)

        closed, _ = _traced(f, (kept, cts))
        return tuple(_run(closed, [*kept, *cts], over))

    call.defvjp(forward, backward)
    return list(call(*args))
