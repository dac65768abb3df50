"""`reorder-aggregate-combine` moves a matrix past the sums it is told to, and past nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ir.layers import GRAPH, operands

from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine, movable_matmuls

from .golden import fires, program, refuses, same

AGGREGATE = ReorderAggregateCombine(("aggregate-first",))
COMBINE = ReorderAggregateCombine(("combine-first",))
TWINS = ReorderAggregateCombine(("combine-first",), aliased_inputs=((0, 1),))

SUM_FIRST = """\
    layer f(x: f32[src, 2], w: f32[2, 3])
      a: f32[dst, 2] = sum over (u -> v) of x[u]
      b: f32[dst, 3] = a @ w
      return b
    """
MEAN_FIRST = """\
    layer f(x: f32[src, 2], w: f32[2, 3])
      a: i32[dst] = degree of v
      b: i32[dst] = max(a, 1)
      c: f32[dst] = convert_element_type(b)
      d: f32[dst] = c * 1.5
      f: f32[dst] = reduce_precision(d, exponent_bits=8, mantissa_bits=0)
      g: f32[dst] = 1.0 / f
      h: f32[dst, 2] = broadcast_in_dim(g, broadcast_dimensions=())
      i: f32[edge, 2] = h[v] * x[u]
      j: f32[dst, 2] = sum over (u -> v) of i
      k: f32[dst, 3] = j @ w
      m: f32[dst, 3] = broadcast_in_dim(f, broadcast_dimensions=())
      n: f32[dst, 3] = k * m
      return n
    """
MATRIX_FIRST = """\
    layer f(x: f32[src, 2], w: f32[2, 3])
      a: f32[src, 3] = x @ w
      b: f32[dst, 3] = sum over (u -> v) of a[u]
      return b
    """
WITH_OWN_TERM = """\
    layer f(x: f32[src, 2], v: f32[dst, 2], w: f32[2, 3])
      a: f32[dst, 2] = sum over (u -> v) of x[u]
      b: f32[dst, 2] = a + v
      c: f32[dst, 3] = b @ w
      return c
    """


def products(prog: Program) -> int:
    return sum(eqn.op.name == "dot_general" for eqn in prog.equations)


def test_sums_first():
    fires(AGGREGATE, MATRIX_FIRST, MEAN_FIRST)


def test_the_product_of_the_vertex_itself_is_shared():
    fires(TWINS, WITH_OWN_TERM, """\
        layer f(x: f32[src, 2], v: f32[dst, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[dst, 3] = sum over (u -> v) of a[u]
          c: f32[dst, 3] = v @ w
          d: f32[dst, 3] = b + c
          return d
        """)  # fmt: skip


def test_matrix_first_with_zeros_where_no_edge_reads():
    fires(COMBINE, SUM_FIRST, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: bool[src, 2] = broadcast_in_dim(b, broadcast_dimensions=())
          d: f32[2] = broadcast_in_dim(0.0, broadcast_dimensions=())
          f: f32[src, 2] = select_n(c, d, x)
          g: f32[src, 3] = f @ w
          h: f32[dst, 3] = sum over (u -> v) of g[u]
          return h
        """)  # fmt: skip


def test_no_second_shield_on_what_is_shielded():
    fires(COMBINE, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: bool[src, 2] = broadcast_in_dim(b, broadcast_dimensions=())
          d: f32[2] = broadcast_in_dim(0.5, broadcast_dimensions=())
          f: f32[src, 2] = select_n(c, d, x)
          g: f32[dst, 2] = sum over (u -> v) of f[u]
          h: f32[dst, 3] = g @ w
          return h
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: bool[src, 2] = broadcast_in_dim(b, broadcast_dimensions=())
          d: f32[2] = broadcast_in_dim(0.5, broadcast_dimensions=())
          f: f32[src, 2] = select_n(c, d, x)
          g: f32[src, 3] = f @ w
          h: f32[dst, 3] = sum over (u -> v) of g[u]
          return h
        """)  # fmt: skip


def test_scaled_at_both_ends_with_an_own_term_and_a_transposed_matrix():
    fires(TWINS, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], s: f32[src], t: f32[dst], w: f32[3, 2])
          a: f32[src, 2] = s * x
          b: f32[edge, 2] = t[v] * a[u]
          c: f32[dst, 2] = sum over (u -> v) of b
          d: f32[dst, 2] = t * y
          f: f32[dst, 2] = c + d
          g: f32[dst, 3] = w @ f
          return g
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], s: f32[src], t: f32[dst], w: f32[3, 2])
          a: f32[src, 3] = w @ x
          b: f32[src, 3] = s * a
          c: f32[edge, 3] = t[v] * b[u]
          d: f32[dst, 3] = sum over (u -> v) of c
          f: f32[dst, 3] = w @ y
          g: f32[dst, 3] = t * f
          h: f32[dst, 3] = d + g
          return h
        """)  # fmt: skip


def test_mean_and_what_follows_it():
    fires(AGGREGATE, """\
        layer f(x: f32[src, 2], w: f32[2, 3], b: f32[3])
          h: f32[src, 3] = x @ w
          a: f32[dst, 3] = sum over (u -> v) of h[u]
          c: i32[dst] = degree of v
          d: i32[dst] = max(c, 1)
          f: f32[dst] = convert_element_type(d)
          g: f32[dst, 3] = broadcast_in_dim(f, broadcast_dimensions=())
          i: f32[dst, 3] = a / g
          j: f32[dst, 3] = i + b
          return j
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3], b: f32[3])
          c: i32[dst] = degree of v
          d: i32[dst] = max(c, 1)
          f: f32[dst] = convert_element_type(d)
          a: i32[dst] = degree of v
          g: i32[dst] = max(a, 1)
          h: f32[dst] = convert_element_type(g)
          i: f32[dst] = h * 1.5
          j: f32[dst] = reduce_precision(i, exponent_bits=8, mantissa_bits=0)
          k: f32[dst] = 1.0 / j
          m: f32[dst, 2] = broadcast_in_dim(k, broadcast_dimensions=())
          n: f32[edge, 2] = m[v] * x[u]
          p: f32[dst, 2] = sum over (u -> v) of n
          q: f32[dst, 2] = broadcast_in_dim(f, broadcast_dimensions=())
          r: f32[dst, 2] = p / q
          s: f32[dst, 3] = r @ w
          t: f32[dst, 3] = broadcast_in_dim(j, broadcast_dimensions=())
          y: f32[dst, 3] = s * t
          j': f32[dst, 3] = y + b
          return j'
        """)  # fmt: skip


def test_a_factor_that_was_computed_at_full_width_is_computed_per_element():
    fires(AGGREGATE, """\
        layer f(x: f32[src, 2], t: f32[dst], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          d: f32[dst, 3] = sum over (u -> v) of a[u]
          f: f32[3] = broadcast_in_dim(2.0, broadcast_dimensions=())
          g: f32[dst, 3] = broadcast_in_dim(t, broadcast_dimensions=())
          h: f32[dst, 3] = f * g
          i: f32[dst, 3] = h * d
          return i
        """, """\
        layer f(x: f32[src, 2], t: f32[dst], w: f32[2, 3])
          a: i32[dst] = degree of v
          b: i32[dst] = max(a, 1)
          c: f32[dst] = convert_element_type(b)
          d: f32[dst] = c * 1.5
          f: f32[dst] = reduce_precision(d, exponent_bits=8, mantissa_bits=0)
          g: f32[dst] = 1.0 / f
          h: f32[dst, 2] = broadcast_in_dim(g, broadcast_dimensions=())
          i: f32[edge, 2] = h[v] * x[u]
          j: f32[dst, 2] = sum over (u -> v) of i
          k: f32[dst] = 2.0 * t
          m: f32[dst, 2] = broadcast_in_dim(k, broadcast_dimensions=())
          n: f32[dst, 2] = m * j
          p: f32[dst, 3] = n @ w
          q: f32[dst, 3] = broadcast_in_dim(f, broadcast_dimensions=())
          r: f32[dst, 3] = p * q
          return r
        """)  # fmt: skip


EDGE_MLP = """\
    layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3], b: f32[3])
      a: f32[edge, 2] = x[u] + y[v]
      c: f32[edge, 2] = tanh(a)
      d: f32[edge, 3] = c @ w
      f: f32[edge, 3] = d + b
      g: f32[dst, 3] = sum over (u -> v) of f
      return g
    """


def test_last_matrix_of_an_edge_mlp_and_its_bias():
    fires(AGGREGATE, EDGE_MLP, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3], b: f32[3])
          a: f32[edge, 2] = x[u] + y[v]
          c: f32[edge, 2] = tanh(a)
          d: i32[dst] = degree of v
          f: i32[dst] = max(d, 1)
          g: f32[dst] = convert_element_type(f)
          h: f32[dst] = g * 1.5
          i: f32[dst] = reduce_precision(h, exponent_bits=8, mantissa_bits=0)
          j: f32[dst] = 1.0 / i
          k: f32[dst, 2] = broadcast_in_dim(j, broadcast_dimensions=())
          m: f32[edge, 2] = k[v] * c
          n: f32[dst, 2] = sum over (u -> v) of m
          p: f32[dst, 3] = n @ w
          q: f32[dst, 3] = broadcast_in_dim(i, broadcast_dimensions=())
          r: f32[dst, 3] = p * q
          s: i32[dst] = degree of v
          t: f32[dst] = convert_element_type(s)
          z: f32[dst, 3] = broadcast_in_dim(t, broadcast_dimensions=())
          a1: i32[dst] = degree of v
          b1: bool[dst] = a1 > 0
          c1: bool[dst, 3] = broadcast_in_dim(b1, broadcast_dimensions=())
          d1: f32[3] = broadcast_in_dim(0.0, broadcast_dimensions=())
          f1: f32[dst, 3] = select_n(c1, d1, b)
          g1: f32[dst, 3] = z * f1
          g': f32[dst, 3] = r + g1
          return g'
        """)  # fmt: skip


@pytest.mark.parametrize("asked", ["DEFAULT", "HIGH", "HIGHEST"])
def test_a_precision_moves_with_its_product(asked):
    """As where `jax.default_matmul_precision` is set."""
    precise = f"precision=(Precision.{asked}, Precision.{asked}), preferred_element_type=None"
    fires(COMBINE, SUM_FIRST.replace("a @ w", f"dot_general(a, w, {precise})"), f"""\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: bool[src, 2] = broadcast_in_dim(b, broadcast_dimensions=())
          d: f32[2] = broadcast_in_dim(0.0, broadcast_dimensions=())
          f: f32[src, 2] = select_n(c, d, x)
          g: f32[src, 3] = dot_general(f, w, {precise})
          h: f32[dst, 3] = sum over (u -> v) of g[u]
          return h
        """)  # fmt: skip


def test_products_of_different_precisions_stay_apart():
    precise = "precision=(Precision.HIGHEST, Precision.HIGHEST), preferred_element_type=None"
    old = program(f"""\
        layer f(x: f32[src, 2], v: f32[dst, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[dst, 3] = sum over (u -> v) of a[u]
          c: f32[dst, 3] = dot_general(v, w, {precise})
          d: f32[dst, 3] = b + c
          return d
        """)  # fmt: skip
    new = AGGREGATE(old)
    assert products(new) == 2
    assert show(new).count(precise) == 1
    same(old, new)


def test_a_matrix_moves_onto_the_edges_only_when_told():
    text = """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = x[u] + y[v]
          c: f32[edge, 2] = tanh(a)
          d: f32[dst, 2] = sum over (u -> v) of c
          f: f32[dst, 3] = d @ w
          return f
        """
    refuses(ReorderAggregateCombine((None,)), text)
    fires(COMBINE, text, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = x[u] + y[v]
          c: f32[edge, 2] = tanh(a)
          d: f32[edge, 3] = c @ w
          f: f32[dst, 3] = sum over (u -> v) of d
          return f
        """)  # fmt: skip


def test_a_choice_stays_a_choice():
    fires(COMBINE, """\
        layer f(x: f32[src, 2], k: bool[edge], w: f32[2, 3])
          z: f32[2] = broadcast_in_dim(0.0, broadcast_dimensions=())
          m: bool[edge, 2] = broadcast_in_dim(k, broadcast_dimensions=())
          a: f32[edge, 2] = select_n(m, x[u], z)
          b: f32[dst, 2] = sum over (u -> v) of a
          c: f32[dst, 3] = b @ w
          return c
        """, """\
        layer f(x: f32[src, 2], k: bool[edge], w: f32[2, 3])
          n: i32[src] = degree of u
          p: bool[src] = n > 0
          q: bool[src, 2] = broadcast_in_dim(p, broadcast_dimensions=())
          r: f32[2] = broadcast_in_dim(0.0, broadcast_dimensions=())
          s: f32[src, 2] = select_n(q, r, x)
          g: f32[src, 3] = s @ w
          h: bool[edge, 3] = broadcast_in_dim(k, broadcast_dimensions=())
          i: f32[3] = broadcast_in_dim(0.0, broadcast_dimensions=())
          j: f32[edge, 3] = select_n(h, g[u], i)
          m: f32[dst, 3] = sum over (u -> v) of j
          return m
        """)  # fmt: skip


ATTENTION = """\
    layer f(x: f32[src, 3], y: f32[dst, 3], p: f32[edge, 2], w: f32[3, 4], a: f32[2, 2])
      b: f32[src, 4] = x @ w
      c: f32[src, 2, 2] = reshape(b)
      d: f32[src, 2, 2] = c * a
      f: f32[src, 2] = reduce_sum(d, axes=(1,))
      g: f32[edge, 2] = p * f[u]
      h: f32[edge, 2, 1] = broadcast_in_dim(g, broadcast_dimensions=(0,))
      i: f32[edge, 2, 2] = h * c[u]
      j: f32[dst, 2, 2] = sum over (u -> v) of i
      k: f32[dst, 4] = reshape(j)
      m: f32[dst, 4] = y @ w
      n: f32[dst, 4] = k + m
      return n{more}
    """


def test_heads_and_their_scores():
    fires(AGGREGATE, ATTENTION.format(more=""), """\
        layer f(x: f32[src, 3], y: f32[dst, 3], p: f32[edge, 2], w: f32[3, 4], a: f32[2, 2])
          b: f32[3, 2, 2] = reshape(w)
          c: f32[2, 3] = dot_general(a, b, dimension_numbers=(((1,), (2,)), ((0,), (1,))))
          d: f32[src, 2] = c @ x
          g: f32[edge, 2] = p * d[u]
          f: i32[dst] = degree of v
          h: i32[dst] = max(f, 1)
          i: f32[dst] = convert_element_type(h)
          j: f32[dst] = i * 1.5
          k: f32[dst] = reduce_precision(j, exponent_bits=8, mantissa_bits=0)
          m: f32[dst] = 1.0 / k
          n: f32[edge, 2, 3] = broadcast_in_dim(g, broadcast_dimensions=(0,))
          q: f32[edge, 2, 3] = broadcast_in_dim(x[u], broadcast_dimensions=(1,))
          r: f32[edge, 2, 3] = n * q
          s: f32[dst, 2, 3] = broadcast_in_dim(m, broadcast_dimensions=())
          t: f32[edge, 2, 3] = s[v] * r
          z: f32[dst, 2, 3] = sum over (u -> v) of t
          a1: f32[dst, 3] = broadcast_in_dim(m, broadcast_dimensions=())
          b1: f32[dst, 3] = a1 * y
          c1: f32[dst, 2, 3] = broadcast_in_dim(b1, broadcast_dimensions=(1,))
          d1: f32[dst, 2, 3] = z + c1
          f1: f32[3, 2, 2] = reshape(w)
          g1: f32[dst, 2, 2] = dot_general(d1, f1, dimension_numbers=(((1,), (0,)), ((0,), (1,))))
          h1: f32[dst, 4] = reshape(g1)
          i1: f32[dst, 4] = broadcast_in_dim(k, broadcast_dimensions=())
          j1: f32[dst, 4] = h1 * i1
          return j1
        """)  # fmt: skip


def test_scores_stay_where_the_product_is_read_anyway():
    old = program(ATTENTION.format(more=", b"))
    new = AGGREGATE(old)
    same(old, new)
    assert "f: f32[src, 2] = reduce_sum(d, axes=(1,))" in show(new, locations=False)
    assert "f32[dst, 2, 3] = sum over" in show(new, locations=False)


def test_scores_by_a_product_and_by_a_matrix():
    fires(AGGREGATE, """\
        layer f(x: f32[src, 2], w: f32[2, 3], a: f32[3], c: f32[3, 4])
          b: f32[src, 3] = x @ w
          d: f32[src] = b @ a
          f: f32[src, 4] = b @ c
          g: f32[src, 3] = d * b
          h: f32[dst, 3] = sum over (u -> v) of g[u]
          return h, f
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3], a: f32[3], c: f32[3, 4])
          b: f32[2] = w @ a
          d: f32[src] = x @ b
          f: f32[2, 4] = w @ c
          g: f32[src, 4] = x @ f
          h: i32[dst] = degree of v
          i: i32[dst] = max(h, 1)
          j: f32[dst] = convert_element_type(i)
          k: f32[dst] = j * 1.5
          m: f32[dst] = reduce_precision(k, exponent_bits=8, mantissa_bits=0)
          n: f32[dst] = 1.0 / m
          p: f32[src, 2] = d * x
          q: f32[dst, 2] = broadcast_in_dim(n, broadcast_dimensions=())
          r: f32[edge, 2] = q[v] * p[u]
          s: f32[dst, 2] = sum over (u -> v) of r
          t: f32[dst, 3] = s @ w
          y: f32[dst, 3] = broadcast_in_dim(m, broadcast_dimensions=())
          z: f32[dst, 3] = t * y
          return z, g
        """)  # fmt: skip


NESTED = """\
    layer f(x: f32[src, 2], w: f32[2, 2], q: f32[2, 3])
      a: f32[src, 2] = x @ w
      b: f32[dst, 2] = sum over (u -> v) of a[u]
      c: f32[dst, 3] = b @ q
      return c
    """


@pytest.mark.parametrize(
    ("orders", "equations"),
    [
        (("aggregate-first", None), ["sum", "dot_general", "dot_general"]),
        ((None, "combine-first"), ["dot_general", "dot_general", "sum"]),
        (("aggregate-first", "combine-first"), ["dot_general", "dot_general", "sum"]),
    ],
)
def test_the_outer_of_two_sites_decides(orders, equations):
    old = program(NESTED)
    assert [s.written for s in movable_matmuls(old)] == ["combine-first", "aggregate-first"]
    new = ReorderAggregateCombine(orders)(old)
    moved = [eqn.op.name for eqn in new.equations if eqn.op.name in ("sum", "dot_general")]
    assert moved == equations
    same(old, new)


def test_sites_say_what_they_are():
    (site,) = movable_matmuls(program(SUM_FIRST))
    assert (site.written, site.location) == ("aggregate-first", None)
    assert site.description == "f32[2, 3] with 1 sum"


@pytest.mark.parametrize("orders", [(), (None,), ("aggregate-first",)])
def test_what_is_written_so_stays(orders):
    refuses(ReorderAggregateCombine(orders), SUM_FIRST)


def test_sums_of_other_sites_stay_as_they_are():
    text = EDGE_MLP.replace("return g", "h: f32[src, 3] = x @ w\n      i: f32[dst, 3] = "
                            "sum over (u -> v) of h[u]\n      return g, i")  # fmt: skip
    old = program(text)
    new = ReorderAggregateCombine((None, "aggregate-first"))(old)
    same(old, new)
    assert "d: f32[edge, 3] = c @ w\n  f: f32[edge, 3] = d + b" in show(new, locations=False)
    assert products(new) == 2


def gradients(prog: Program, incidence: Incidence, args: list) -> list[np.ndarray]:
    def loss(args: list) -> jax.Array:
        return sum(jnp.sum(jnp.sin(out)) for out in interpret(prog, incidence, args))

    return [np.asarray(x) for x in (interpret(prog, incidence, args)[0], *jax.grad(loss)(args))]


@pytest.mark.parametrize("order", ["aggregate-first", "combine-first"])
def test_nan_at_a_vertex_that_no_edge_reads_has_no_effect(order: Order):
    """Where the program as it is written has none, nor has it after either order."""
    old = program(SUM_FIRST)
    edges = Incidence(GRAPH.src.at[3].set(1), GRAPH.dst, 4, 5)  # none from 2 and 3
    x, w = operands(old, edges)
    spoilt = [x.at[2:].set(jnp.nan), w]
    new = ReorderAggregateCombine((order,))(old)
    for prog in (new, AGGREGATE(new)):
        have, want = gradients(prog, edges, spoilt), gradients(old, edges, [x, w])
        for a, b in zip(have, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_there_and_back():
    old = program(WITH_OWN_TERM)
    there = TWINS(old)
    assert [s.written for s in movable_matmuls(there)] == ["combine-first"]
    back = AGGREGATE(there)
    assert [s.written for s in movable_matmuls(back)] == ["aggregate-first"]
    same(old, back)
    assert len(AGGREGATE(TWINS(back)).equations) == len(back.equations)  # means stay means
