"""`online-softmax` fires on every softmax, and refuses what is none or would save no traversal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from ir.layers import trace, value

import gnnjit
from gnnjit.ir.program import Aggregate, Program
from gnnjit.ir.space import Space
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather
from gnnjit.passes.online_softmax import OnlineSoftmax
from gnnjit.passes.pipeline import default_passes, run

from .golden import fires, refuses, same

H, F = 2, 3
SRC = value("x", Space.SRC, H, F)
DST = value("y", Space.DST, H, F)
EDGE = value("d", Space.EDGE, H)

SOFTMAX = """\
layer f(s: f32[src], x: f32[src, 3])
  m: f32[dst] = max over (u -> v) of s[u]
  a: f32[dst] = stop_gradient(m)
  b: bool[dst] = is_finite(a)
  k: f32[dst] = select_n(b, 0.0, a)
  o: f32[edge] = at_most(s[u], a[v])
  c: f32[edge] = o - k[v]
  w: f32[edge] = exp(c)
  t: f32[dst] = sum over (u -> v) of w
"""


def test_fires_on_gat():
    fires(OnlineSoftmax(), SOFTMAX + """\
          f: f32[edge, 3] = broadcast_in_dim(w, broadcast_dimensions=())
          g: f32[edge, 3] = f * x[u]
          h: f32[dst, 3] = sum over (u -> v) of g
          return t, h
        """, """\
        layer f(s: f32[src], x: f32[src, 3])
          t: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
          h: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]
          return t, h
        """)  # fmt: skip


def test_its_outputs_share_a_traversal_with_the_maximum():
    fires(FuseScatterApplyGather(), """\
        layer f(s: f32[src], x: f32[src, 3])
          t: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
          h: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]
          return t, h
        """, """\
        layer f(s: f32[src], x: f32[src, 3])
          for each edge (u -> v) of x[u], s[u]
            t: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
            h: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]
            m: f32[dst] = max over (u -> v) of s[u]
          return t, h
        """)  # fmt: skip


def test_a_number_that_is_repeated_stays_one_number():
    """No array `[N, 3]` holds each number three times, whichever way it is brought there."""
    fires(OnlineSoftmax(), SOFTMAX.replace("src, 3]", "src, 3], z: f32[dst]") + """\
          n: f32[dst, 1] = broadcast_in_dim(z, broadcast_dimensions=())
          y: f32[edge, 1] = broadcast_in_dim(w, broadcast_dimensions=())
          r: f32[edge, 1] = n[v] * y
          f: f32[edge, 3] = broadcast_in_dim(r, broadcast_dimensions=(0,))
          g: f32[edge, 3] = f * x[u]
          h: f32[dst, 3] = sum over (u -> v) of g
          return h
        """, """\
        layer f(s: f32[src], x: f32[src, 3], z: f32[dst])
          f: f32[edge, 3] = broadcast_in_dim(z[v], broadcast_dimensions=())
          g: f32[edge, 3] = f * x[u]
          h: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * g
          return h
        """)  # fmt: skip


def test_drop_dead_keeps_the_maximum_of_a_sum_that_is_read():
    fires(DropDead(), """\
        layer f(s: f32[src], x: f32[src, 3])
          for each edge (u -> v) of s[u], x[u]
            a: f32[dst, 3] = sum over (u -> v) of x[u]
            t: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
            h: f32[dst, 3] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]
            m: f32[dst] = max over (u -> v) of s[u]
          return t
        """, """\
        layer f(s: f32[src], x: f32[src, 3])
          for each edge (u -> v) of s[u]
            t: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
            m: f32[dst] = max over (u -> v) of s[u]
          return t
        """)  # fmt: skip


def test_fires_through_dropout_and_takes_the_normaliser_out():
    fires(OnlineSoftmax(), SOFTMAX + """\
          p: bool[dst] = t == 0.0
          n: f32[dst] = select_n(p, t, 1.0)
          q: f32[edge] = w / n[v]
          r: f32[edge] = q / 0.5
          f: bool[edge] = s[u] >= 0.0
          g: f32[edge] = select_n(f, 0.0, r)
          h: f32[dst] = sum over (u -> v) of g
          return h
        """, """\
        layer f(s: f32[src], x: f32[src, 3])
          a: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0
          p: bool[dst] = a == 0.0
          n: f32[dst] = select_n(p, a, 1.0)
          f: bool[edge] = s[u] >= 0.0
          b: f32[] = 1.0 / 0.5
          c: f32[edge] = select_n(f, 0.0, b)
          d: i32[dst] = degree of v
          g: i32[dst] = max(d, 1)
          h: f32[dst] = convert_element_type(g)
          i: f32[dst] = h * 1.5
          j: f32[dst] = reduce_precision(i, exponent_bits=8, mantissa_bits=0)
          k: f32[dst] = 1.0 / j
          m: f32[edge] = k[v] * c
          q: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * m
          r: f32[dst] = 1.0 / j
          t: f32[dst] = n * r
          w: f32[dst] = q / t
          return w
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("stop_gradient(m)", "copy(m)", id="the shift carries a gradient"),
        pytest.param("select_n(b, 0.0, a)", "select_n(b, 1.0, a)", id="another guard"),
        pytest.param("max over (u -> v) of s[u]", "max over (u -> v) of r[u]", id="another score"),
        pytest.param("max over (u -> v)", "min over (u -> v)", id="a minimum"),
        pytest.param("sum over (u -> v) of w", "max over (u -> v) of w", id="no sum"),
        pytest.param("sum over (u -> v) of w", "sum over (u -> v) of c", id="the score itself"),
    ],
)
def test_refuses(old: str, new: str):
    assert old in SOFTMAX
    refuses(OnlineSoftmax(), SOFTMAX.replace(old, new).replace("x:", "r: f32[src], x:")
            + "  return t")  # fmt: skip


@pytest.mark.parametrize("op", ["w * w", "x / w", "exp(w)", "w + x"])
def test_refuses_what_is_not_linear(op):
    refuses(OnlineSoftmax(), f"""\
        layer f(s: f32[edge], x: f32[edge])
          m: f32[dst] = max over (u -> v) of s
          a: f32[dst] = stop_gradient(m)
          b: bool[dst] = is_finite(a)
          k: f32[dst] = select_n(b, 0.0, a)
          o: f32[edge] = at_most(s, a[v])
          c: f32[edge] = o - k[v]
          w: f32[edge] = exp(c)
          g: f32[edge] = {op}
          t: f32[dst] = sum over (u -> v) of g
          return t
        """)  # fmt: skip


def test_refuses_sums_over_other_rows():
    into_dst, into_src = "t: f32[dst] = sum over (u -> v)", "t: f32[src] = sum over (v <- u)"
    assert into_dst in SOFTMAX
    refuses(OnlineSoftmax(), SOFTMAX.replace(into_dst, into_src) + "  return t")


def test_refuses_where_no_traversal_is_saved():
    refuses(OnlineSoftmax(), SOFTMAX + """\
          f: f32[dst, 3] = sum over (u -> v) of x[u]
          g: f32[edge, 3] = f[v] * x[u]
          h: f32[dst, 3] = max over (u -> v) of g
          return t, h
        """)  # fmt: skip


def test_refuses_axes_that_do_not_come_first():
    refuses(OnlineSoftmax(), """\
        layer f(s: f32[edge, 3], x: f32[src, 3, 3])
          m: f32[dst, 3] = max over (u -> v) of s
          a: f32[dst, 3] = stop_gradient(m)
          b: bool[dst, 3] = is_finite(a)
          z: f32[3] = broadcast_in_dim(0.0, broadcast_dimensions=())
          k: f32[dst, 3] = select_n(b, z, a)
          o: f32[edge, 3] = at_most(s, a[v])
          c: f32[edge, 3] = o - k[v]
          w: f32[edge, 3] = exp(c)
          f: f32[edge, 3, 3] = broadcast_in_dim(w, broadcast_dimensions=(1,))
          g: f32[edge, 3, 3] = f * x[u]
          t: f32[dst, 3, 3] = sum over (u -> v) of g
          return t
        """)  # fmt: skip


def score(x, y):
    return jnp.sum(jax.nn.leaky_relu(x * 0.5 + y, 0.2), axis=-1)


def gat(x, y, d):
    weight = gnnjit.softmax(jnp.sum(score(x, y)))
    return gnnjit.sum(weight * x[0])


def heads(x, y, d):
    return gnnjit.sum(gnnjit.softmax(score(x, y))[:, None] * x)


def last_axis_of_one(x, y, d):
    return gnnjit.sum(gnnjit.softmax(score(x, y)[:, None]) * x)


def concatenated(x, y, d):
    return gnnjit.sum((gnnjit.softmax(score(x, y))[:, None] * x).reshape(-1))


def transformer(x, y, d):
    s = jnp.einsum("hf,hf->h", x, y) / jnp.sqrt(F)
    return gnnjit.sum(gnnjit.softmax(s + d)[:, None] * (x + d[:, None]))


def dropout(x, y, d):
    weight = gnnjit.softmax(score(x, y))
    return gnnjit.sum(jnp.where(d > 0, weight / 0.8, 0)[:, None] * x)


def logsumexp(x, y, d):
    return gnnjit.logsumexp(score(x, y) * d)


def several_at_once(x, y, d):
    s = score(x, y)
    one = gnnjit.sum(gnnjit.softmax(s)[:, None] * x)
    return one - gnnjit.sum(gnnjit.softmax(-s)[:, None] * x), gnnjit.logsumexp(s)


def returned(x, y, d):
    weight = gnnjit.softmax(score(x, y))
    return weight, gnnjit.sum(weight[:, None] * x)


def stacked(x, y, d):
    return heads(x, heads(x, y, d), d)


def half(x, y, d):
    weight = gnnjit.softmax(score(x, y)).astype(jnp.bfloat16)
    return gnnjit.sum(weight[:, None] * x.astype(jnp.bfloat16)).astype(jnp.float32)


TRAVERSALS = {gat: (2, 1), heads: (2, 1), last_axis_of_one: (2, 1), concatenated: (3, 1),
              transformer: (2, 1), dropout: (3, 1), logsumexp: (2, 1), several_at_once: (2, 1),
              returned: (3, 2), stacked: (4, 2), half: (2, 1)}  # fmt: skip


def traversals(prog: Program) -> int:
    return sum(isinstance(e.op, Aggregate) for e in prog.equations)


@pytest.mark.parametrize("fn", TRAVERSALS, ids=lambda f: f.__name__)
def test_traversals(fn):
    """How many there are without and with the pass; and both compute the same."""
    written = trace(fn, [SRC, DST, EDGE], edge_values=True)
    before, after = (run(written, default_passes(online=online)) for online in (False, True))
    assert (traversals(before), traversals(after)) == TRAVERSALS[fn]
    same(before, after, rtol=2e-2 if fn is half else 1e-5)
