"""Operations that passes write are those that JAX makes of the same expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.evaluate import result_kinds
from gnnjit.ir.program import Builder, Lax, Value, op_key
from gnnjit.ir.space import Space

WIDE, FLAT, KEYS = (2, 3), (6,), jax.random.key(0).dtype


@pytest.mark.parametrize(
    ("op", "fn", "kinds"),
    [
        (build.reshape_op(FLAT), lambda x: lax.reshape(x, FLAT), [(WIDE, np.float32)]),
        (build.reshape_op((3, 2)), lambda x: lax.reshape(x, (3, 2)), [(WIDE, np.int32)]),
        (
            build.broadcast_in_dim_op((2, 3, 4), (0, 1)),
            lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 1)),
            [(WIDE, np.float32)],
        ),
        (
            build.broadcast_in_dim_op(WIDE, ()),
            lambda x: lax.broadcast_in_dim(x, WIDE, ()),
            [((), bool)],
        ),
        (
            build.slice_op((0, 1), (2, 3)),
            lambda x: lax.slice_in_dim(x, 1, 3, axis=1),
            [(WIDE, np.float32)],
        ),
        (
            build.iota_op(np.int32, WIDE, 1),
            lambda: lax.broadcasted_iota(np.int32, WIDE, 1),
            [],
        ),
        (
            build.iota_op(np.float32, WIDE, 0),
            lambda: lax.broadcasted_iota(np.float32, WIDE, 0),
            [],
        ),
        (
            build.dot_op(np.dtype(np.float16)),
            lambda x, w: lax.dot_general(x, w, (((0,), (0,)), ((), ()))),
            [((4,), np.float16), ((4, 2), np.float16)],
        ),
        (
            build.convert_op(np.dtype(np.float32)),
            lambda x: lax.convert_element_type(x, np.float32),
            [(WIDE, np.int32)],
        ),
        (
            build.convert_op(np.dtype(bool)),
            lambda x: lax.convert_element_type(x, bool),
            [(WIDE, np.float32)],
        ),
    ],
)
def test_as_traced(op: Lax, fn: Callable[..., Any], kinds: list[Any]) -> None:
    kinds = [(shape, np.dtype(dtype)) for shape, dtype in kinds]
    (eqn,) = jax.make_jaxpr(fn)(*[jax.ShapeDtypeStruct(*k) for k in kinds]).eqns
    wanted = Lax(eqn.primitive, tuple(sorted(eqn.params.items())))
    assert op_key(op) == op_key(wanted)
    (found,) = result_kinds(op, tuple(kinds))
    out = eqn.outvars[0].aval
    assert found == (out.shape, out.dtype)


@pytest.mark.parametrize(
    ("fn", "dtypes"),
    [
        (lax.mul, [np.float32] * 2),
        (lax.div, [np.float16] * 2),
        (lax.div, [np.float32] * 2),
        (lax.eq, [np.int32] * 2),
        (lax.select_n_p.bind, [bool, np.float32, np.float32]),
        (lax.select_n_p.bind, [bool, KEYS, KEYS]),
        (lax.is_finite, [np.float32]),
    ],
)
def test_elementwise(fn: Callable[..., Any], dtypes: list[Any]) -> None:
    dtypes = [d if d is KEYS else np.dtype(d) for d in dtypes]
    given = [Value(WIDE, d, Space.SRC) for d in dtypes]
    builder = Builder(given)
    out = build.elementwise(builder, fn, given)
    (eqn,) = jax.make_jaxpr(fn)(*[jax.ShapeDtypeStruct(WIDE, d) for d in dtypes]).eqns
    assert op_key(builder.equations[0].op) == op_key(Lax(eqn.primitive, tuple(eqn.params.items())))
    assert (out.shape, out.dtype, out.space) == (WIDE, eqn.outvars[0].aval.dtype, Space.SRC)


def test_results_of_functions_with_rules_of_their_own() -> None:
    """They do not tell their results by themselves; JAX has to trace them."""
    (eqn,) = jax.make_jaxpr(jax.nn.relu)(jnp.ones(3)).eqns
    op = Lax(eqn.primitive, tuple(eqn.params.items()))
    kind = (3,), np.dtype(np.float32)
    assert result_kinds(op, (kind,)) == [kind]


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="mul"):
        result_kinds(
            build.traced_op(lax.mul, (((), np.dtype(np.float32)),) * 2),
            (((2,), np.dtype(np.float32)), ((3,), np.dtype(np.float32))),
        )
