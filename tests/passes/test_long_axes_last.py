"""`long-axes-last` turns around what edges compute of many features with few components."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir.layers import trace, value

import gnnjit
from gnnjit.ir.program import Lax
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.lower import cpu
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.long_axes_last import LongAxesLast, order_of

from .golden import fires, refuses, same


def step(program):
    return DropDead()(LongAxesLast()(program))


@pytest.mark.parametrize(
    ("shape", "order"),
    [((16, 3), (1, 0)), ((16, 1), (1, 0)), ((2, 16, 3), (0, 2, 1)), ((20, 16, 8), (1, 2, 0)),
     ((32, 16), (1, 0)), ((3, 16), (0, 1)), ((15, 3), (0, 1)), ((16, 9), (0, 1)),
     ((64, 17), (0, 1)), ((16,), (0,)), ((), ())],
    ids=str,
)  # fmt: skip
def test_the_longest_axis_is_last(shape, order):
    assert order_of(shape) == order


def test_a_layer_is_turned_around_as_a_whole():
    fires(step, """\
        layer f(x: f32[src, 16, 3], d: f32[edge, 16], w: f32[16, 16])
          b: f32[edge, 16, 1] = broadcast_in_dim(d, broadcast_dimensions=(0,))
          m: f32[edge, 16, 3] = x[u] * b
          h: f32[edge, 16, 3] = dot_general(w, m, dimension_numbers=(((0,), (0,)), ((), ())))
          q: f32[edge, 16, 3] = h * h
          n: f32[edge, 16] = reduce_sum(q, axes=(1,))
          y: f32[dst, 16, 3] = sum over (u -> v) of h
          z: f32[dst, 16] = sum over (u -> v) of n
          return y, z
        """, """\
        layer f(x: f32[src, 16, 3], d: f32[edge, 16], w: f32[16, 16])
          b: f32[edge, 1, 16] = broadcast_in_dim(d, broadcast_dimensions=(1,))
          t: f32[src, 3, 16] = transpose(x, permutation=(1, 0))
          m: f32[edge, 3, 16] = t[u] * b
          h: f32[edge, 3, 16] = m @ w
          q: f32[edge, 3, 16] = h * h
          n: f32[edge, 16] = reduce_sum(q, axes=(0,))
          s: f32[dst, 3, 16] = sum over (u -> v) of h
          z: f32[dst, 16] = sum over (u -> v) of n
          y: f32[dst, 16, 3] = transpose(s, permutation=(1, 0))
          return y, z
        """)  # fmt: skip


def test_products_of_features_side_by_side_multiply_and_sum():
    fires(step, """\
        layer f(x: f32[src, 16, 3], y: f32[dst, 16, 3], d: f32[edge, 16])
          m: f32[edge, 16, 3] = dot_general(d, x[u], dimension_numbers=(((), ()), ((0,), (0,))))
          n: f32[edge, 16] = dot_general(m, y[v], dimension_numbers=(((1,), (1,)), ((0,), (0,))))
          z: f32[dst, 16, 3] = sum over (u -> v) of m
          q: f32[dst, 16] = sum over (u -> v) of n
          return z, q
        """, """\
        layer f(x: f32[src, 16, 3], y: f32[dst, 16, 3], d: f32[edge, 16])
          a: f32[edge, 1, 16] = reshape(d)
          t: f32[src, 3, 16] = transpose(x, permutation=(1, 0))
          m: f32[edge, 3, 16] = a * t[u]
          r: f32[dst, 3, 16] = transpose(y, permutation=(1, 0))
          p: f32[edge, 3, 16] = m * r[v]
          n: f32[edge, 16] = reduce_sum(p, axes=(0,))
          s: f32[dst, 3, 16] = sum over (u -> v) of m
          q: f32[dst, 16] = sum over (u -> v) of n
          z: f32[dst, 16, 3] = transpose(s, permutation=(1, 0))
          return z, q
        """)  # fmt: skip


def test_features_and_components_of_one_axis_are_joined_behind_the_sum():
    fires(step, """\
        layer f(x: f32[src, 16, 3], d: f32[edge, 16])
          b: f32[edge, 16, 1] = broadcast_in_dim(d, broadcast_dimensions=(0,))
          m: f32[edge, 16, 3] = x[u] * b
          a: f32[edge, 48] = reshape(m)
          j: f32[edge, 64] = concatenate(d, a, dimension=0)
          y: f32[dst, 64] = sum over (u -> v) of j
          return y
        """, """\
        layer f(x: f32[src, 16, 3], d: f32[edge, 16])
          b: f32[edge, 1, 16] = broadcast_in_dim(d, broadcast_dimensions=(1,))
          t: f32[src, 3, 16] = transpose(x, permutation=(1, 0))
          m: f32[edge, 3, 16] = t[u] * b
          s: f32[dst, 16] = sum over (u -> v) of d
          r: f32[dst, 3, 16] = sum over (u -> v) of m
          q: f32[dst, 16, 3] = transpose(r, permutation=(1, 0))
          p: f32[dst, 48] = reshape(q)
          y: f32[dst, 64] = concatenate(s, p, dimension=0)
          return y
        """)  # fmt: skip


def test_what_it_does_not_know_reads_values_as_written():
    fires(step, """\
        layer f(x: f32[src, 16, 3], y: f32[dst, 16, 3])
          m: f32[edge, 16, 3] = x[u] * y[v]
          c: f32[edge, 16, 3] = cumsum(m, axis=0, reverse=False)
          h: f32[edge, 16, 3] = c * m
          z: f32[dst, 16, 3] = sum over (u -> v) of h
          return z
        """, """\
        layer f(x: f32[src, 16, 3], y: f32[dst, 16, 3])
          t: f32[src, 3, 16] = transpose(x, permutation=(1, 0))
          r: f32[dst, 3, 16] = transpose(y, permutation=(1, 0))
          m: f32[edge, 3, 16] = t[u] * r[v]
          n: f32[edge, 16, 3] = transpose(m, permutation=(1, 0))
          c: f32[edge, 16, 3] = cumsum(n, axis=0, reverse=False)
          d: f32[edge, 3, 16] = transpose(c, permutation=(1, 0))
          h: f32[edge, 3, 16] = d * m
          s: f32[dst, 3, 16] = sum over (u -> v) of h
          z: f32[dst, 16, 3] = transpose(s, permutation=(1, 0))
          return z
        """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        # edges compute nothing
        """\
        layer f(x: f32[src, 16, 3])
          a: f32[src, 16, 3] = x * x
          y: f32[dst, 16, 3] = sum over (u -> v) of a[u]
          return y
        """,
        # features are last
        """\
        layer f(x: f32[src, 3, 16], y: f32[dst, 3, 16])
          a: f32[edge, 3, 16] = x[u] * y[v]
          z: f32[dst, 3, 16] = sum over (u -> v) of a
          return z
        """,
        # few features
        """\
        layer f(x: f32[src, 4, 3], y: f32[dst, 4, 3])
          a: f32[edge, 4, 3] = x[u] * y[v]
          z: f32[dst, 4, 3] = sum over (u -> v) of a
          return z
        """,
        # one component
        """\
        layer f(x: f32[src, 16, 1], y: f32[dst, 16, 1])
          a: f32[edge, 16, 1] = x[u] * y[v]
          z: f32[dst, 16, 1] = sum over (u -> v) of a
          return z
        """,
    ],
    ids=["vertices", "last", "few", "one"],
)
def test_refuses(text):
    refuses(step, text)


F = 16
INPUTS = [value("x", Space.SRC, F, 3), value("y", Space.DST, F, 3), value("d", Space.EDGE, F),
          value("w", Space.SHARED, F, F), value("m", Space.SHARED, 3, 3),
          value("t", Space.SHARED, 3, F, F), value("c", Space.SHARED, F, 3)]  # fmt: skip

UNARY: dict[str, Any] = {
    "tanh": lambda a, p: jnp.tanh(a),
    "relu": lambda a, p: jax.nn.relu(a),
    "gelu": lambda a, p: jax.nn.gelu(a),
    "own": lambda a, p: a @ (a[0] @ p["m"] @ a.T)[:9].reshape(3, 3),
    "own, wide": lambda a, p: (a[:, 0] @ (p["w"] @ a).reshape(F, 3)) * a,
    "unit": lambda a, p: a * jnp.mean(a[:, None], axis=-1),
    "left": lambda a, p: jnp.einsum("fk,fg->gk", a, p["w"]),
    "turned": lambda a, p: jnp.einsum("gf,fk->gk", p["w"], a),
    "components": lambda a, p: a @ p["m"],
    "roll": lambda a, p: jnp.concatenate([a[:, 1:], a[:, :1]], axis=1),
    "halves": lambda a, p: jnp.concatenate([a[F // 2 :], a[: F // 2]]),
    "flat": lambda a, p: jnp.sin(a.reshape(-1)).reshape(F, 3),
    "transposed": lambda a, p: jnp.cos(a.T).T,
    "cumsum": lambda a, p: jnp.cumsum(a, axis=0),
    "softmax": lambda a, p: jax.nn.softmax(a, axis=1),
    "sum": lambda a, p: gnnjit.sum(a),
    "max": lambda a, p: gnnjit.max(a),
    "mean": lambda a, p: gnnjit.mean(a),
    "weights": lambda a, p: gnnjit.softmax(a),
    "shared": lambda a, p: a * p["c"],
    "length": lambda a, p: a * jnp.sum(a * a, axis=1, keepdims=True),
    "largest": lambda a, p: a - jnp.max(a, axis=0),
    "first": lambda a, p: a * a[:, :1],
    "scalar": lambda a, p: a * jnp.sum(a),
    "tensor": lambda a, p: a * jnp.einsum("fk,kfg->g", a, p["t"])[:, None],
    "outer": lambda a, p: jnp.outer(jnp.sum(a, axis=1), a[0]),
    "pairs": lambda a, p: jnp.einsum("fk,gk->fg", a, a) @ a,
    "one more": lambda a, p: a * jnp.concatenate([a[:1], a, 2 * a[3:5, ::2] @ a[:2]])[2 : F + 2],
    "squeezed": lambda a, p: a * jnp.squeeze(a[:, None, :], 1)[:, ::-1],
}
BINARY: dict[str, Any] = {
    "add": jnp.add,
    "mul": jnp.multiply,
    "where": lambda a, b: jnp.where(a > b, a, b),  # continuous: sums are in another order
    "dots": lambda a, b: a * jnp.einsum("fk,fk->f", a, b)[:, None],
    "matrix": lambda a, b: a @ jnp.einsum("fk,fl->kl", a, b),
    "steps": lambda a, b: jnp.einsum("fk,fl->fkl", a, b).sum(1),
    "nothing": lambda a, b: a + b * jnp.einsum("fk,fk->f", a[:, :0], b[:, :0])[:, None],
    "each": lambda a, b: jnp.einsum("f,fk->fk", a[:, 0], b),
    "stacked": lambda a, b: jnp.concatenate([a, b])[1 : F + 1],
}


EXPRESSIONS = st.recursive(
    st.sampled_from("xyd"),
    lambda inner: (
        st.tuples(st.sampled_from([*UNARY]), inner)
        | st.tuples(st.sampled_from([*BINARY]), inner, inner)
    ),
    max_leaves=6,
)
"""Names of operations on `[16, 3]` values, and what they read."""


def evaluate(expression: Any, v: Any, p: Any) -> Any:
    if isinstance(expression, str):
        return v["d"][:, None] * v["y"] if expression == "d" else v[expression]
    name, *inner = expression
    one, *two = (evaluate(e, v, p) for e in inner)
    if name in ("sum", "max", "mean", "weights"):
        one = one + v["x"] * v["y"]  # a value of the edge
    return jnp.tanh(BINARY[name](one, *two) if two else UNARY[name](one, p))


@settings(max_examples=30)
@given(EXPRESSIONS)
def test_any_layer_keeps_its_meaning(expression: Any) -> None:
    def f(x: Any, y: Any, d: Any, w: Any, m: Any, t: Any, c: Any) -> Any:
        v, p = {"x": x, "y": y, "d": d}, {"w": w / F, "m": m, "t": t / F, "c": c}
        out = evaluate(expression, v, p) * x
        return out + y, gnnjit.sum(out), gnnjit.max(jnp.concatenate([d, out.reshape(-1)]))

    old = trace(f, INPUTS, edge_values=True)
    new = step(old)
    verify(new)
    assert any(e.op.name == "transpose" for e in new.equations if isinstance(e.op, Lax))
    same(old, new, rtol=1e-4)


def test_factors_of_unlike_precision_stay_in_their_order() -> None:
    def f(x: Any, y: Any, w: Any) -> Any:
        return gnnjit.sum(jnp.einsum("fk,fg->gk", x * y, w, precision=("highest", "default")))

    def factors(program: Any) -> Any:
        (eqn,) = (e for e in program.equations if e.op.name == "dot_general")
        return {a.space: p for a, p in zip(eqn.inputs, eqn.op["precision"], strict=True)}

    inputs = [*INPUTS[:2], value("w", Space.SHARED, F, F)]
    old = trace(f, inputs, edge_values=True)
    new = step(old)
    assert factors(new) == factors(old)
    assert len(set(factors(old).values())) == 2
    same(old, new)


def test_a_square_with_an_axis_of_one_entry() -> None:
    """Of two equal axes the first counts as the longest, and of one entry the last."""

    def f(x: Any, y: Any) -> Any:
        square = x[:, :1] * y[:, 0]
        return gnnjit.sum(square[..., None] + 0), gnnjit.sum(jnp.squeeze(jnp.tanh(x * y)[None], 0))

    inputs = [value("x", Space.SRC, 32, 3), value("y", Space.DST, 32, 3)]
    old = trace(f, inputs, edge_values=True)
    same(old, step(old))


def test_a_network_on_edges_has_a_kernel() -> None:
    """Kernels have no code for products whose sums are over an axis before the last."""
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(*rng.integers(0, 9, (2, 40)), num_nodes=9)

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        h = jnp.einsum("fk,fg->gk", e.src - v, w)
        return gnnjit.sum(h * jax.nn.sigmoid(jnp.sum(h * h, 1, keepdims=True)))

    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((9, 32, 3), (32, 32)))
    if not cpu.why_no_row_sums(np.dtype(np.float32)):
        assert {k.kernel for k in layer.explain(graph, x, w).kernels} == {"cpu"}
    gnnjit.check(layer, graph, x, w)
