"""`sink-vertex-work` moves work from many vertices to few edges, and nothing moves it back."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from planned import planned
from reads import with_edges_as_read
from strategies import expressions

import gnnjit
from gnnjit.ir.program import Lax
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.passes import pipeline
from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce
from gnnjit.passes.pipeline import Choices
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.sink_vertex_work import SinkVertexWork
from gnnjit.passes.split_concat_matmul import SplitConcatMatmul

from .golden import fires, refuses, same
from .test_pipeline import written

SRC, DST = frozenset({Space.SRC}), frozenset({Space.DST})
BOTH = SRC | DST

ON_SOURCES = """\
    layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
      a: f32[src, 3] = x @ w
      b: f32[src, 3] = tanh(a)
      c: f32[dst, 3] = y @ w
      d: f32[edge, 3] = b[u] * c[v]
      f: f32[dst, 3] = sum over (u -> v) of d
      return f
    """
ON_EDGES = """\
    layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
      a: f32[edge, 3] = x[u] @ w
      b: f32[edge, 3] = tanh(a)
      c: f32[dst, 3] = y @ w
      d: f32[edge, 3] = b * c[v]
      f: f32[dst, 3] = sum over (u -> v) of d
      return f
    """


def test_fires_on_what_only_edges_read():
    fires(SinkVertexWork(SRC), ON_SOURCES, ON_EDGES)


def test_fires_on_what_a_reduction_reads():
    fires(SinkVertexWork(SRC), """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[dst, 3] = max over (u -> v) of a[u]
          return b
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[edge, 3] = x[u] @ w
          b: f32[dst, 3] = max over (u -> v) of a
          return b
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("spaces", "line", "result"),
    [
        (frozenset(), "b: f32[src, 3] = tanh(a)", "d"),
        (DST, "b: f32[src, 3] = tanh(a)", "d"),
        (BOTH, "b: f32[src, 3] = tanh(a)", "d, a, b"),
    ],
    ids=["nothing asked", "other vertices", "returned"],
)
def test_refuses(spaces, line, result):
    refuses(
        SinkVertexWork(spaces),
        f"""\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          {line}
          c: f32[edge, 3] = a[u] + b[u]
          d: f32[dst, 3] = sum over (u -> v) of c
          return {result}
        """,
    )


def test_refuses_what_a_vertex_computes_with():
    fires(SinkVertexWork(SRC), """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = exp(a)
          c: f32[src, 3] = tanh(b)
          d: f32[dst, 3] = sum over (u -> v) of c[u]
          return d, b
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = exp(a)
          c: f32[edge, 3] = tanh(b[u])
          d: f32[dst, 3] = sum over (u -> v) of c
          return d, b
        """)  # fmt: skip


def test_refuses_what_is_made_of_a_reduction():
    refuses(
        SinkVertexWork(BOTH),
        """\
        layer f(x: f32[edge, 2])
          a: f32[dst, 2] = max over (u -> v) of x
          b: f32[dst, 2] = stop_gradient(a)
          c: f32[edge, 2] = x - b[v]
          d: f32[dst, 2] = sum over (u -> v) of c
          return d
        """,
    )


def test_the_smallest_space_is_not_that_of_kept_vertices():
    refuses(PlaceInSmallestSpace(SRC), ON_EDGES)
    fires(PlaceInSmallestSpace(DST), ON_EDGES, ON_SOURCES)


def test_a_matmul_is_split_only_for_vertices_that_are_not_kept():
    text = """\
        layer f(x: f32[src, 2], y: f32[{0}, 2], w: f32[4, 3])
          a: f32[edge, 4] = concatenate(x[u], y[{1}], dimension=0)
          b: f32[edge, 3] = a @ w
          c: f32[dst, 3] = max over (u -> v) of b
          return c
        """
    refuses(SplitConcatMatmul(keep=SRC), text.format("edge", "e"))
    refuses(SplitConcatMatmul(keep=BOTH), text.format("dst", "v"))
    with pytest.raises(AssertionError):
        refuses(SplitConcatMatmul(keep=SRC), text.format("dst", "v"))


def test_a_matmul_of_kept_vertices_stays_in_the_sum():
    text = """\
        layer f(x: f32[src, 3], y: f32[dst, 2], w: f32[2, 3])
          a: f32[dst, 3] = y @ w
          b: f32[edge, 3] = a[v] * x[u]
          c: f32[dst, 3] = sum over (u -> v) of b
          return c
        """
    refuses(FactorOutOfReduce(keep=DST), text)
    with pytest.raises(AssertionError):
        refuses(FactorOutOfReduce(), text)


@given(expressions())
@settings(max_examples=10)
def test_generated_functions_keep_their_meaning(fn):
    def layer(g: Any, v: Any, e: Any, p: Any) -> Any:
        return g.sum(jnp.tanh(fn(g, v, e, p) + (e.src @ p["w"])[0]) * e.data), g.softmax(e.src)

    before = written(layer)
    same(
        before,
        pipeline.run(before, pipeline.default_passes(Choices(on_edges=BOTH))),
        1e-3,
        ["padding"],
    )


# ------------------------------------------------------------------ compiled, with derivatives

N, M, E, F, G = 1000, 12, 20, 5, 7


def case(mask: bool = False) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, N, E), rng.integers(0, M, E)
    real = rng.random(E) < 0.7 if mask else None
    graph = gnnjit.Graph.from_edges(src, dst, num_src=N, num_dst=M, edge_mask=real)
    shapes = (N, F), (M, F), (E, F), (F, G), (3 * F, G)
    xs, xd, data, w, c = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
    # A softmax of scores beyond ten is all or nothing, and its derivatives are rounding.
    w, c = w / 4, c / 4
    if mask:
        data = jnp.where(jnp.asarray(real)[:, None], data, jnp.nan)
        unread = np.setdiff1d(np.arange(N), src[real])
        xs = xs.at[unread].set(jnp.nan)
    return graph, gnnjit.Bipartite(xs, xd), {"w": w, "c": c}, data


def plain(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(jax.nn.relu(e.src @ p["w"]))


def concatenated(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.max(jnp.tanh(jnp.concatenate([e.src, v, e.data]) @ p["c"]))


def attention(v: Any, e: Any, p: Any) -> Any:
    h = e.src @ p["w"]
    weight = gnnjit.softmax(jax.nn.leaky_relu(jnp.sum(h * h) + jnp.sum(v @ p["w"])))
    return gnnjit.sum(weight * h)


def returned(v: Any, e: Any, p: Any) -> Any:
    h = e.src @ p["w"]
    return jnp.sin(e.data) * jnp.sum(jnp.tanh(h)), gnnjit.sum(h * e.data[0])


LAYERS = {"plain": plain, "concatenated": concatenated, "attention": attention,
          "returned": returned}  # fmt: skip


def loss_of(layer: Any) -> Any:
    layer = with_edges_as_read(layer, layer)

    def loss(x: Any, p: Any, data: Any, graph: Any) -> Any:
        outs = jax.tree.leaves(layer(graph, x, p, edges=data))
        return sum(jnp.sum(jnp.sin(o)) for o in outs)

    return loss


def second_order(loss: Any) -> Any:
    def slope(x: Any, p: Any, data: Any, graph: Any) -> Any:
        grads = jax.grad(loss, (0, 1, 2))(x, p, data, graph)
        return sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(grads))

    return jax.grad(slope, (0, 1, 2))


def moved(fn: Any) -> Any:
    return planned(fn, pipeline.default_passes(Choices(on_edges=SRC)))


@pytest.mark.long
@pytest.mark.parametrize("padded", [False, True], ids=["all edges", "padding"])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name, padded):
    graph, x, p, data = case(padded)
    for order in (loss_of, lambda f: jax.grad(loss_of(f), (0, 1, 2)),
                  lambda f: second_order(loss_of(f))):  # fmt: skip
        have, want = (jax.jit(order(f(LAYERS[name])))(x, p, data, graph) for f in (moved, planned))
        for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
            assert np.isfinite(np.asarray(a)).all()
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def matmuls_of_all_sources(f: Any, *args: Any) -> list[str]:
    """The matmuls with 1000 rows (or columns) in the lowered and the compiled program."""
    lowered = jax.jit(f).lower(*args)
    lines = f"{lowered.as_text()}\n{lowered.compile().as_text()}".splitlines()
    dots = [line for line in lines if re.search(r"dot_general|\bdot\(|matmul|tall", line)]
    return [line for line in dots if re.search(rf"\b{N}[x,\]]|,{N}\]", line)]


@pytest.mark.parametrize("kernel", ["cpu", "segment"])
@pytest.mark.parametrize("name", ["plain", "concatenated", "attention"])
def test_no_matmul_of_all_sources_is_left(name, kernel):
    graph, x, p, data = case()
    args = (x, p, data, graph)
    with choose.prefer(kernel):
        for order in (loss_of, lambda f: jax.grad(loss_of(f), (0, 1))):
            assert matmuls_of_all_sources(order(moved(LAYERS[name])), *args) == []
            assert matmuls_of_all_sources(order(planned(LAYERS[name])), *args)


@pytest.mark.parametrize("layer", [plain, concatenated])
def test_traversals_keep_the_matmul(layer):
    graph, x, p, data = case()
    jaxpr = jax.make_jaxpr(jax.grad(loss_of(moved(layer)), (0, 1)))(x, p, data, graph)
    found = [e for e in jaxpr.jaxpr.eqns if e.primitive.name == "aggregate"]
    assert found
    for eqn in found:
        prog = choose.traversals(eqn.params["body"], eqn.params["reductions"], graph, "cpu")
        for outer in prog.equations:
            vertex = isinstance(outer.op, Lax) and outer.space is Space.SRC
            assert not (vertex and outer.op.name == "dot_general")


def test_crowded_spaces_are_those_with_a_matmul():
    graph, x, p, data = case()
    jaxpr = jax.make_jaxpr(loss_of(planned(plain)))(x, p, data, graph)  # its matmul is outside
    bodies = [e.params["body"] for e in jaxpr.jaxpr.eqns if e.primitive.name == "aggregate"]
    assert [choose.crowded(b, graph) for b in bodies] == [frozenset()]
    jaxpr = jax.make_jaxpr(loss_of(moved(plain)))(x, p, data, graph)
    bodies = [e.params["body"] for e in jaxpr.jaxpr.eqns if e.primitive.name == "aggregate"]
    assert [choose.crowded(b, graph) for b in bodies] == [SRC]
    many = gnnjit.Graph.from_edges(np.zeros(2000, int), np.zeros(2000, int), N)
    assert [choose.crowded(b, many) for b in bodies] == [frozenset()]
