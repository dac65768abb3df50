"""Arrays that a function closed over, and those that functions it calls did, become its inputs."""

from __future__ import annotations

from typing import Any

from gnnjit import _compat
from gnnjit.frontend.walker import CALLS

CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
"""Where functions with derivatives of their own have their jaxpr."""

_HELD = dict.fromkeys(CALLS, ("jaxpr", "call_jaxpr")) | {k: (v,) for k, v in CUSTOM.items()}
"""Where a primitive that calls a function has its jaxpr, one of these."""


def lifted(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr without constants, whose last inputs are these arrays: its own constants, and then
    those of calls within it, at whatever depth.

    before:  lambda x: jit(lambda x: x * [1, 2])(x)
    after:   lambda x, c: jit(lambda c, x: x * c)(c, x), with c = [1, 2]

    JAX leaves an array with the `jax.jit` that it was closed over in. What a loop or a condition
    holds stays there: it runs as JAX has it.
    """
    jaxpr, consts = _compat.open_jaxpr(closed)
    found: dict[int, tuple[Any, Any]] = {}  # by identity: the variable of an array, and the array
    eqns = [_with_inputs(eqn, found) for eqn in jaxpr.eqns]
    variables = [*jaxpr.constvars, *(v for v, _ in found.values())]
    arrays = [*consts, *(x for _, x in found.values())]
    if not arrays:
        return jaxpr, []
    return jaxpr.replace(constvars=[], invars=[*jaxpr.invars, *variables], eqns=eqns), arrays


def _with_inputs(eqn: Any, found: dict[int, tuple[Any, Any]]) -> Any:
    """An equation that is given what its function closed over."""
    key = next((k for k in _HELD.get(eqn.primitive.name, ()) if k in eqn.params), None)
    if key is None:
        return eqn
    inner, arrays = lifted(eqn.params[key])
    if not arrays:
        return eqn
    own, closed_over = inner.invars[: -len(arrays)], inner.invars[-len(arrays) :]
    variables = [
        found.setdefault(id(x), (_compat.variable(v.aval), x))[0]
        for v, x in zip(closed_over, arrays, strict=True)
    ]
    closed = _compat.ClosedJaxpr(inner.replace(invars=[*closed_over, *own]), ())
    return _compat.with_inputs(eqn, key, closed, variables)
