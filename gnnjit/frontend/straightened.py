"""Loops of few steps, and conditions on values of elements, as code without either.

`jnp.polyval`, which radial functions are often made of, is a loop, and kernels have no code for the
loops of a user.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit import _compat
from gnnjit.ir.program import Atom
from gnnjit.ir.space import Space

MOST = 128
"""Equations that a loop or a condition may become."""


def straightened(eqn: Any, ins: Sequence[Atom]) -> Any:
    """A jaxpr without constants that computes the same; None where the equation stays as it is."""
    fn: Any
    if eqn.primitive is lax.scan_p:
        fn, times = _steps, eqn.params["length"]
    elif eqn.primitive is lax.cond_p and ins[0].space is not Space.SHARED:
        fn, times = _every_branch, 1
    else:
        return None
    if times * _size(eqn) > MOST or _compat.holds_arrays(eqn):
        return None
    return jax.make_jaxpr(functools.partial(fn, dict(eqn.params)))(*[_compat.like(a) for a in ins])


def _size(eqn: Any) -> int:
    """How many equations there are in what an equation holds, and in what those hold."""
    return sum(1 + _size(e) for jaxpr in _compat.subjaxprs(eqn) for e in jaxpr.eqns)


def _steps(params: dict[str, Any], *xs: Any) -> list[Any]:
    """The steps of a loop, one after the other."""
    held, carried = _compat.scan_counts(params)
    consts, carry, rows = xs[:held], xs[held : held + carried], xs[held + carried :]
    run = _compat.as_function(params["jaxpr"])
    numbers = range(params["length"])
    results = []
    for i in reversed(numbers) if params["reverse"] else numbers:
        outs = run(*consts, *carry, *(lax.index_in_dim(x, i, keepdims=False) for x in rows))
        carry = outs[:carried]
        results.append(outs[carried:])
    if params["reverse"]:
        results.reverse()
    return [*carry, *map(jnp.stack, zip(*results, strict=True))]


def _every_branch(params: dict[str, Any], which: Any, *xs: Any) -> list[Any]:
    """All branches, and of each result that of the branch which is asked for; as `jax.vmap` has it
    of conditions on what is mapped."""
    branches = [_compat.as_function(branch)(*xs) for branch in params["branches"]]

    def chosen(*cases: Any) -> Any:
        found = cases[0]
        for i, case in enumerate(cases[1:], 1):
            found = jnp.where(which == i, case, found)
        return found

    return list(map(chosen, *branches))
