"""How one equation is computed: per element, or for a whole space at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit.ir import varying
from gnnjit.ir.elementwise import ELEMENTWISE
from gnnjit.ir.kept import recalled
from gnnjit.ir.program import Atom, Lax, Literal, Program, Value, op_key
from gnnjit.ir.space import Space


def bind(op: Lax, args: Sequence[Any]) -> list[Any]:
    """Apply the primitive to per-element arguments."""
    prim, over = op.primitive, _compat.varying_axes(args)
    if over:
        return varying.bind(prim, args, dict(op.params), over)
    out = prim.bind(*args, **prim.get_bind_params(dict(op.params)))
    return list(out) if prim.multiple_results else [out]


Kind = tuple[tuple[int, ...], Any]
"""Shape and dtype."""


def result_kinds(op: Lax, kinds: tuple[Kind, ...]) -> list[Kind]:
    """What the primitive makes of arguments of these kinds.

    Raises:
        TypeError, ValueError: it does not accept them.
    """
    return _result_kinds(_Applied(op), kinds)


class _Applied:
    """An operation, perhaps with literals, as a cache key. It holds the operation: what `op_key`
    gives may refer to its ids."""

    def __init__(self, op: Lax, literals: Sequence[Literal] = ()):
        self.op, self.literals = op, literals
        self.key = (op_key(op), *(a.key for a in literals))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Applied) and self.key == other.key


@functools.lru_cache(maxsize=4096)
def _result_kinds(applied: _Applied, kinds: tuple[Kind, ...]) -> list[Kind]:
    op = applied.op
    outs = _compat.abstract_outputs(op.primitive, kinds, dict(op.params))
    if outs is None:
        structs = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
        with _compat.without_mesh():
            outs = jax.eval_shape(lambda *xs: bind(op, xs), *structs)
    return [(tuple(o.shape), o.dtype) for o in outs]


def folded(op: Lax, literals: Sequence[Literal]) -> np.ndarray:
    """What the primitive, which gives one result, makes of literals."""
    return _folded(_Applied(op, literals))


@functools.lru_cache(maxsize=1024)
def _folded(applied: _Applied) -> np.ndarray:
    if (exact := _converted(applied.op, applied.literals)) is not None:
        return exact
    with _compat.without_mesh(), jax.ensure_compile_time_eval():
        return np.asarray(bind(applied.op, list(map(literal_array, applied.literals)))[0])


def _converted(op: Lax, literals: Sequence[Literal]) -> np.ndarray | None:
    """A whole number or a truth value as another type, if that changes nothing. Most of what is
    folded, and XLA would compile a program for each first one, which takes 20 ms."""
    if op.name != "convert_element_type" or literals[0].dtype.kind not in "biu":
        return None
    before = np.asarray(literals[0].value, literals[0].dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        after = before.astype(op["new_dtype"])
        return after if after.astype(before.dtype) == before else None


def bind_in_space(op: Lax, args: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """Apply the primitive to all elements of a space; `batched` says which args have one each."""
    if not any(batched):
        return bind(op, args)
    if op.name in ELEMENTWISE and (same := _same_shapes(args, batched)) is not None:
        return bind(op, same)  # what `vmap` says, without its trace
    axes = [0 if b else None for b in batched]
    return jax.vmap(lambda *xs: bind(op, xs), in_axes=axes)(*args)


def _same_shapes(args: Sequence[Any], batched: Sequence[bool]) -> list[Any] | None:
    """The arguments of an elementwise primitive over a whole space, if each is of one shape."""
    whole = next(jnp.shape(x) for x, b in zip(args, batched, strict=True) if b)
    expected = [whole if b else whole[1:] for b in batched]
    if expected != [jnp.shape(x) for x in args]:
        return None
    into = tuple(range(1, len(whole)))
    return [
        x if b else lax.broadcast_in_dim(x, whole, into) for x, b in zip(args, batched, strict=True)
    ]


def literal_array(lit: Literal) -> jax.Array:
    return jnp.asarray(lit.value, dtype=lit.dtype)


def evaluate_element(
    body: Program, args: Sequence[Any], memory: Mapping[Value, Any] | None = None
) -> list[Any]:
    """Run a program of `Lax` equations on the values of one element (a plain JAX function).

    memory: what was written of values that stand in `kept`: read, not computed.
    """
    env: dict[Value, Any] = dict(zip(body.inputs, args, strict=True))

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in body.equations:
        assert isinstance(eqn.op, Lax), eqn.op
        ins = [read(a) for a in eqn.inputs]
        written = memory.get(eqn.outputs[0]) if memory else None
        outs = bind(eqn.op, ins) if written is None else [recalled(ins[0], written)]
        env.update(zip(eqn.outputs, outs, strict=True))
    return [read(o) for o in body.outputs]


def finite_or_zero(top: Any) -> Any:
    """What the scores of a row are shifted by: their maximum `top`, where that is finite."""
    return jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))


def times(weight: Any, value: Any) -> Any:
    """`weight * value`, a term of an `exp_sum`: the weight fills the first axes of `value`."""
    weight = weight.astype(value.dtype)
    return lax.broadcast_in_dim(weight, value.shape, tuple(range(weight.ndim))) * value


def is_shared(atom: Atom) -> bool:
    return atom.space is Space.SHARED
