"""`store-edge-values` writes what is expensive, and nothing computes it again."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from planned import optimised, planned, traced_call
from reads import with_edges_as_read
from strategies import expressions

import gnnjit
from gnnjit._compat import subjaxprs
from gnnjit.ir.program import Aggregate, Program, Store
from gnnjit.ir.space import Space
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.choose import traversals
from gnnjit.passes import pipeline
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather
from gnnjit.passes.pipeline import Choices
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.store_edge_values import StoreEdgeValues, storable_values

from .golden import fires, program, refuses, same
from .test_pipeline import written


def before_the_pass(prog: Program) -> Program:
    """`prog` as `store-edge-values` is given it."""
    steps = pipeline.default_passes(Choices(stored=(0,)))
    at = [s.name for s in steps].index("store-edge-values")
    return pipeline.run(prog, steps[:at])


def test_fires_on_a_matmul_that_a_gradient_needs():
    fires(StoreEdgeValues((0,)), """\
        layer f(x: f32[edge, 2], w: f32[2, 3], k: f32[3, 3])
          a: f32[edge, 3] = x @ w
          b: f32[edge, 3] = tanh(a)
          c: f32[edge, 3] = b @ k
          d: f32[dst, 3] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[edge, 2], w: f32[2, 3], k: f32[3, 3])
          a: f32[edge, 3] = x @ w
          s: f32[edge, 3] = kept(a)
          b: f32[edge, 3] = tanh(s)
          c: f32[edge, 3] = b @ k
          d: f32[dst, 3] = sum over (u -> v) of c
          return d
        """)  # fmt: skip


def test_what_the_ends_add_to_a_matmul_is_stored_with_it():
    fires(StoreEdgeValues((0,)), """\
        layer f(x: f32[edge, 3], y: f32[src, 3], z: f32[dst, 3], w: f32[3, 3])
          a: f32[edge, 3] = x @ w
          b: f32[edge, 3] = a + y[u]
          c: f32[edge, 3] = b - z[v]
          d: f32[edge, 3] = tanh(c)
          f: f32[dst, 3] = sum over (u -> v) of d
          return f
        """, """\
        layer f(x: f32[edge, 3], y: f32[src, 3], z: f32[dst, 3], w: f32[3, 3])
          a: f32[edge, 3] = x @ w
          b: f32[edge, 3] = a + y[u]
          c: f32[edge, 3] = b - z[v]
          k: f32[edge, 3] = kept(c)
          d: f32[edge, 3] = tanh(k)
          f: f32[dst, 3] = sum over (u -> v) of d
          return f
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "stored"),
    [
        ("b: f32[edge, 3] = a + y[u]\n d: f32[edge, 3] = a * b", "a"),
        ("b: f32[edge, 3] = a * y[u]\n d: f32[edge, 3] = b + y[u]", "a"),
        ("b: f32[edge, 1, 3] = reshape(a)\n c: f32[edge, 2, 3] = b + g[u]\n"
         " d: f32[edge, 3] = reduce_max(c, axes=(0,))", "a"),
        ("b: f32[edge, 3] = x @ w\n c: f32[edge, 3] = a + b\n d: f32[edge, 3] = tanh(c)", "c"),
    ],
    ids=["something else reads it", "no sum", "the sum is larger", "both are matmuls"],
)  # fmt: skip
def test_what_is_stored_of_a_matmul(lines, stored):
    text = "layer f(x: f32[edge, 3], y: f32[src, 3], g: f32[src, 2, 3], w: f32[3, 3])\n"
    text += f" a: f32[edge, 3] = x @ w\n {lines}\n"
    text += " h: f32[edge, 3] = sin(d)\n i: f32[dst, 3] = sum over (u -> v) of h\n return i"
    assert {s.value.name for s in storable_values(program(text))} == {stored}


@pytest.mark.parametrize("kind", ["max", "min", "prod"])
def test_stores_before_a_traversal_that_sums_nothing_alone(kind):
    """Edges are compared with an extreme by the same bits that it is the extreme of."""
    fires(StoreEdgeValues((0,)), f"""\
        layer f(x: f32[edge, 2], w: f32[2, 3])
          a: f32[edge, 3] = x @ w
          b: f32[edge, 3] = tanh(a)
          c: f32[dst, 3] = sum over (u -> v) of b
          d: f32[dst, 3] = {kind} over (u -> v) of b
          return c, d
        """, f"""\
        layer f(x: f32[edge, 2], w: f32[2, 3])
          a: f32[edge, 3] = x @ w
          s: f32[edge, 3] = store(a)
          b: f32[edge, 3] = tanh(s)
          c: f32[dst, 3] = sum over (u -> v) of b
          d: f32[dst, 3] = {kind} over (u -> v) of b
          return c, d
        """)  # fmt: skip


def test_fires_on_a_matmul_that_two_traversals_read():
    fires(StoreEdgeValues((0,)), """\
        layer f(x: f32[edge, 2], w: f32[2, 3])
          a: f32[edge, 3] = x @ w
          b: f32[dst, 3] = sum over (u -> v) of a
          c: f32[edge, 3] = a - b[v]
          d: f32[dst, 3] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[edge, 2], w: f32[2, 3])
          a: f32[edge, 3] = x @ w
          s: f32[edge, 3] = store(a)
          b: f32[dst, 3] = sum over (u -> v) of s
          c: f32[edge, 3] = s - b[v]
          d: f32[dst, 3] = sum over (u -> v) of c
          return d
        """)  # fmt: skip


def test_fires_on_the_weights_of_an_attention():
    fires(StoreEdgeValues((0,)), """\
        layer f(s: f32[src, 2], t: f32[dst, 2], x: f32[src, 2, 4])
          a: f32[edge, 2] = s[u] + t[v]
          b: f32[edge, 2] = exp(a)
          c: f32[edge, 2, 1] = reshape(b)
          d: f32[edge, 2, 4] = broadcast_in_dim(c, broadcast_dimensions=(0, 1))
          f: f32[edge, 2, 4] = d * x[u]
          g: f32[dst, 2, 4] = sum over (u -> v) of f
          h: f32[dst, 2] = sum over (u -> v) of b
          return g, h
        """, """\
        layer f(s: f32[src, 2], t: f32[dst, 2], x: f32[src, 2, 4])
          a: f32[edge, 2] = s[u] + t[v]
          b: f32[edge, 2] = exp(a)
          k: f32[edge, 2] = kept(b)
          c: f32[edge, 2, 1] = reshape(k)
          d: f32[edge, 2, 4] = broadcast_in_dim(c, broadcast_dimensions=(0, 1))
          f: f32[edge, 2, 4] = d * x[u]
          g: f32[dst, 2, 4] = sum over (u -> v) of f
          h: f32[dst, 2] = sum over (u -> v) of k
          return g, h
        """)  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        "a: f32[edge, 2] = x @ w\n b: f32[dst, 2] = sum over (u -> v) of a",
        "a: f32[edge, 2] = tanh(x)\n b: f32[dst, 2] = sum over (u -> v) of a",
        "a: f32[edge, 2] = y[u] * x\n b: f32[dst, 2] = max over (u -> v) of a",
        "c: f32[src, 2] = y @ w\n a: f32[edge, 2] = c[u] * x\n"
        " b: f32[dst, 2] = max over (u -> v) of a",
        "c: f32[edge, 2] = x @ w\n d: f32[edge, 2] = store(c)\n a: f32[edge, 2] = tanh(d)\n"
        " b: f32[dst, 2] = sum over (u -> v) of a",
    ],
    ids=["only a sum reads it", "the widest", "products", "vertices", "stored already"],
)
def test_refuses(lines):
    text = "layer f(x: f32[edge, 2], y: f32[src, 2], w: f32[2, 2])\n " + lines + "\n return b"
    assert storable_values(program(text)) == ()
    refuses(StoreEdgeValues(), text)
    with pytest.raises(ValueError, match="f has 0 candidates, but number 0 is to be stored"):
        StoreEdgeValues((0,))(program(text))


def test_a_part_of_the_weights_has_their_name():
    graph, x, data = case()

    def layer(v: Any, e: Any, p: Any) -> Any:
        return gnnjit.sum(jnp.tanh(jnp.concatenate([v, e.data]) @ p["c"]))

    call = traced_call(layer, graph, x, {"c": normal(F + D, H)}, edges=data)
    (found,) = storable_values(before_the_pass(call.program))
    assert found.description == "matmul with p.c: f32[edge, 6]"


def test_candidates_are_few_and_say_what_they_cost():
    lines = [f"  a{i}: f32[edge, {i}] = x @ w{i}\n  b{i}: f32[dst, {i}] = max over (u -> v) of a{i}"
             for i in range(1, 6)]  # fmt: skip
    weights = ", ".join(f"w{i}: f32[2, {i}]" for i in range(1, 6))
    text = [f"layer f(x: f32[edge, 2], {weights})", *lines, "  return b1, b2, b3, b4, b5"]
    found = storable_values(program("\n".join(text)))
    assert [c.description for c in found] == [
        f"matmul with w{i}: f32[edge, {i}]" for i in (1, 2, 3)
    ]
    assert [c.width for c in found] == [4, 8, 12]


STORED = """\
    layer f(x: f32[edge, 2], w: f32[2, 3])
      a: f32[edge, 3] = x @ w
      s: f32[edge, 3] = store(a)
      b: f32[edge, 3] = tanh(s)
      c: f32[dst, 3] = max over (u -> v) of b
      d: f32[edge, 3] = b - c[v]
      f: f32[dst, 3] = sum over (u -> v) of d
      return f, s
    """


def test_the_stored_value_is_written_once_and_read_by_later_traversals():
    fires(FuseScatterApplyGather(), STORED, """\
        layer f(x: f32[edge, 2], w: f32[2, 3])
          for each edge (u -> v) of x, w
            a: f32[edge, 3] = x @ w
            s: f32[edge, 3] = on each edge a
          for each edge (u -> v) of s
            b: f32[edge, 3] = tanh(s)
            c: f32[dst, 3] = max over (u -> v) of b
          for each edge (u -> v) of s, c[v]
            d: f32[edge, 3] = tanh(s)
            g: f32[edge, 3] = d - c[v]
            f: f32[dst, 3] = sum over (u -> v) of g
          return f, s
        """)  # fmt: skip


@pytest.mark.parametrize("step", [DropDead(), PlaceInSmallestSpace(), ShareSubexpressions()])
def test_other_passes_leave_a_stored_value(step):
    refuses(step, STORED)


def test_what_leaves_the_edges_is_not_stored():
    fires(PlaceInSmallestSpace(), """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[edge, 3] = x[u] @ w
          s: f32[edge, 3] = store(a)
          b: f32[edge, 3] = tanh(s)
          c: f32[dst, 3] = sum over (u -> v) of b
          return c
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = tanh(a)
          c: f32[dst, 3] = sum over (u -> v) of b[u]
          return c
        """)  # fmt: skip


def test_the_same_is_stored_once_and_what_nobody_reads_never():
    text = """\
        layer f(x: f32[edge, 2])
          a: f32[edge, 2] = store(x)
          b: f32[edge, 2] = store(x)
          c: f32[dst, 2] = sum over (u -> v) of {0}
          d: f32[dst, 2] = max over (u -> v) of b
          return c, {1}
        """
    once = text.replace("          b: f32[edge, 2] = store(x)\n", "").replace("of b", "of a")
    fires(ShareSubexpressions(), text.format("a", "d"), once.format("a", "d"))
    kept = DropDead()(program(text.format("a", "c")))
    assert sum(isinstance(e.op, Store) for e in kept.equations) == 1


@given(expressions())
@settings(max_examples=10)
def test_generated_functions_keep_their_meaning(fn):
    def layer(g: Any, v: Any, e: Any, p: Any) -> Any:
        m = jnp.tanh(fn(g, v, e, p) @ p["w"] + e.data @ p["u"])
        return g.sum(g.softmax(jnp.sum(m)) * m), g.max(m) + g.sum(jnp.exp(m[:2]))[0]

    before = written(layer)
    every = tuple(range(len(storable_values(before_the_pass(before)))))
    assert every
    after = pipeline.run(before, pipeline.default_passes(Choices(stored=every)))
    same(before, after, 1e-3, ["padding"])


F, H, D = 4, 6, 3
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


P = {"w1": normal(F, H), "w2": normal(F, H), "w3": normal(D, H), "w4": normal(H, 2), "a": normal(H)}


def edge_mlp(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(jax.nn.relu(e.src @ p["w1"] + v @ p["w2"] + e.data @ p["w3"]) @ p["w4"])


def gatv2(v: Any, e: Any, p: Any) -> Any:
    h = e.src @ p["w1"]
    score = jax.nn.leaky_relu(h + v @ p["w2"] + e.data @ p["w3"]) @ p["a"]
    return gnnjit.sum(gnnjit.softmax(score) * h)


def gat(v: Any, e: Any, p: Any) -> Any:
    h = e.src @ p["w1"]
    score = jax.nn.leaky_relu(h @ p["a"] + v @ p["w2"] @ p["a"] + jnp.sum(e.data))
    return gnnjit.sum(gnnjit.softmax(score) * h)


def returned(v: Any, e: Any, p: Any) -> Any:
    m = jnp.tanh(e.data @ p["w3"] + v @ p["w2"])
    return gnnjit.max(m), e.data @ p["w3"]


LAYERS = {"edge_mlp": edge_mlp, "gatv2": gatv2, "gat": gat, "returned": returned}


def case(padded: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, 9, 30), rng.integers(0, 9, 30)
    mask = rng.random(30) < 0.6 if padded else None
    data = normal(30, D)
    if mask is not None:
        src[~mask], dst[~mask] = -1, 77
        data = jnp.where(jnp.asarray(mask)[:, None], data, jnp.nan)
    return gnnjit.Graph.from_edges(src, dst, 9, edge_mask=mask), normal(9, F), data


def stored(fn: Any, graph: Any, x: Any, data: Any) -> tuple[int, ...]:
    """All candidates."""
    steps = pipeline.default_passes(Choices(stored=(0,)))
    at = [s.name for s in steps].index("store-edge-values")
    prog = optimised(traced_call(fn, graph, x, P, edges=data), steps[:at])
    return tuple(range(len(storable_values(prog))))


def loss_of(layer: Any) -> Any:
    layer = with_edges_as_read(layer, layer)

    def loss(x: Any, p: Any, data: Any, graph: Any) -> Any:
        outs = jax.tree.leaves(layer(graph, x, p, edges=data))
        return sum(jnp.sum(jnp.sin(o)) for o in outs)

    return loss


def second_order(loss: Any, x: Any, p: Any, data: Any, graph: Any) -> Any:
    def slope(x: Any, p: Any, data: Any) -> Any:
        grads = jax.grad(loss, (0, 1, 2))(x, p, data, graph)
        return sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(grads))

    return jax.jit(jax.grad(slope, (0, 1, 2)))(x, p, data)


def close(have: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        assert np.isfinite(np.asarray(a)).all()
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("padded", [False, True], ids=["all edges", "padding is NaN"])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name, padded):
    fn, (graph, x, data) = LAYERS[name], case(padded)
    every = stored(fn, graph, x, data)
    assert every
    usual, storing = planned(fn), planned(fn, pipeline.default_passes(Choices(stored=every)))
    close(storing(graph, x, P, edges=data), usual(graph, x, P, edges=data))
    args = (x, P, data, graph)
    both = [jax.jit(jax.value_and_grad(loss_of(f), (0, 1, 2)))(*args) for f in (storing, usual)]
    close(*both)
    close(second_order(loss_of(storing), *args), second_order(loss_of(usual), *args))


def matmuls_with_edge_features(jaxpr: Any, graph: Any) -> int:
    """How often traversals compute `e.data @ w3`."""
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive is aggregate_p:
            prog = traversals(eqn.params["body"], eqn.params["reductions"], graph, "cpu")
            bodies = [e.op.body for e in prog.equations if isinstance(e.op, Aggregate)]
            found += sum(map(_multiplies, (e for b in bodies for e in b.equations)))
        found += sum(matmuls_with_edge_features(sub, graph) for sub in subjaxprs(eqn))
    return found


def _multiplies(eqn: Any) -> bool:
    shapes = [(a.space, tuple(a.shape)) for a in eqn.inputs]
    wanted = [(Space.EDGE, (D,)), (Space.SHARED, (D, H))]
    return eqn.op.name == "dot_general" and shapes == wanted and eqn.outputs[0].shape == (H,)


def test_the_gradient_reads_what_was_stored():
    graph, x, data = case()
    loss = functools.partial(loss_of(planned(edge_mlp)), graph=graph)
    count = functools.partial(matmuls_with_edge_features, graph=graph)
    gradient = jax.grad(loss, (0, 1))  # of the vertices and parameters
    assert count(jax.make_jaxpr(gradient)(x, P, data).jaxpr) > 1
    storing = planned(edge_mlp, pipeline.default_passes(Choices(stored=(0,))))
    loss = functools.partial(loss_of(storing), graph=graph)
    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, P, data).jaxpr
    assert count(jaxpr) == 1


def results(jaxpr: Any) -> list[int]:
    """How many results each aggregate has."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is aggregate_p:
            found.append(len(eqn.outvars))
        found += [n for sub in subjaxprs(eqn) for n in results(sub)]
    return found


def test_only_a_traversal_that_is_differentiated_writes_it():
    graph, x, data = case()
    storing = planned(edge_mlp, pipeline.default_passes(Choices(stored=(0,))))

    def value(x: Any) -> Any:
        return jnp.sum(storing(graph, x, P, edges=data))

    assert results(jax.make_jaxpr(value)(x).jaxpr) == [1]
    assert results(jax.make_jaxpr(jax.grad(value))(x).jaxpr)[0] == 2


def test_a_stored_score_stays_one_softmax_traversal():
    graph, x, data = case()
    call = traced_call(gatv2, graph, x, P, edges=data)
    prog = optimised(call, pipeline.default_passes(Choices(stored=(1,))))
    kinds = [[r.kind if r else "edge" for r in e.op.reductions]
             for e in prog.equations if isinstance(e.op, Aggregate)]  # fmt: skip
    assert kinds[0] == ["edge"]
    assert sorted(kinds[1]) == ["exp_sum", "exp_sum", "max"]
    assert len(kinds) == 2


def test_stored_weights_are_not_hidden_in_a_softmax_traversal():
    graph, x, data = case()
    call = traced_call(gat, graph, x, P, edges=data)
    prog = optimised(call, pipeline.default_passes(Choices(stored=(0,))))
    kinds = [[r.kind if r else "edge" for r in e.op.reductions]
             for e in prog.equations if isinstance(e.op, Aggregate)]  # fmt: skip
    assert kinds == [["max"], ["sum", "sum"]]
