"""`contract-with-shared-first` multiplies a vertex's factor with the shared one first."""

import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.ir.space import Space
from gnnjit.passes.contract_with_shared_first import ContractWithSharedFirst
from gnnjit.passes.drop_dead import DropDead

from .golden import program, refuses, same


def both(text: str):
    old = program(text)
    return old, DropDead()(ContractWithSharedFirst()(old))


OUTER_FIRST = """\
    layer f(c: f32[edge, 3], basis: f32[3, 6, 5], x: f32[src, 6])
      a: f32[edge, 6, 3] = dot_general(x[u], c, dimension_numbers=(((), ()), ((), ())))
      b: f32[edge, 5] = dot_general(basis, a, dimension_numbers=(((0, 1), (1, 0)), ((), ())))
      d: f32[dst, 5] = sum over (u -> v) of b
      return d
    """
MATRIX_FIRST = """\
    layer f(c: f32[edge, 3], basis: f32[3, 6, 5], y: f32[dst, 6])
      a: f32[edge, 6, 5] = dot_general(c, basis, dimension_numbers=(((0,), (0,)), ((), ())))
      b: f32[edge, 5] = dot_general(y[v], a, dimension_numbers=(((0,), (0,)), ((), ())))
      d: f32[dst, 5] = sum over (u -> v) of b
      return d
    """
HEADS = """\
    layer f(c: f32[edge, 2, 3], basis: f32[2, 6, 5, 3], y: f32[dst, 2, 6])
      a: f32[edge, 2, 6, 5] = dot_general(basis, c, dimension_numbers=(((3,), (1,)), ((0,), (0,))))
      b: f32[edge, 2, 5] = dot_general(a, y[v], dimension_numbers=(((1,), (1,)), ((0,), (0,))))
      return b
    """


@pytest.mark.parametrize("text", [OUTER_FIRST, MATRIX_FIRST, HEADS])
def test_fires_on_three_factors(text):
    old, new = both(text)
    made = [e for e in new.equations if e.op.name == "dot_general"]
    assert [e.space is Space.EDGE for e in made] == [False, True]
    assert made[0].outputs[0].size == 15 * (2 if text is HEADS else 1)
    same(old, new)


@pytest.mark.parametrize(
    "text",
    [
        OUTER_FIRST.replace("x: f32[src, 6]", "x: f32[edge, 6]").replace("x[u]", "x"),
        OUTER_FIRST.replace("return d", "return d, a"),
    ],
    ids=["no vertex", "read elsewhere"],
)
def test_refuses(text):
    refuses(ContractWithSharedFirst(), text)


def test_refuses_where_an_edge_would_read_more_than_it_saves():
    refuses(ContractWithSharedFirst(), """\
        layer f(c: f32[edge, 40], basis: f32[40, 2, 500], x: f32[src, 2])
          a: f32[edge, 2, 40] = dot_general(x[u], c, dimension_numbers=(((), ()), ((), ())))
          b: f32[edge, 500] = dot_general(basis, a, dimension_numbers=(((0, 1), (1, 0)), ((), ())))
          d: f32[dst, 500] = sum over (u -> v) of b
          return d
        """)  # fmt: skip


def test_refuses_vertices_whose_work_stays_on_the_edges():
    refuses(ContractWithSharedFirst(frozenset({Space.SRC})), OUTER_FIRST)


@gnnjit.layer
def relational(v, e, coef, basis):
    return gnnjit.sum(jnp.einsum("b,bio,i->o", coef[e.data], basis, e.src))


def test_a_relational_layer_has_no_matrix_for_each_edge():
    src, dst = np.random.default_rng(0).integers(0, 30, (2, 200))
    g = gnnjit.Graph.from_edges(src, dst, num_nodes=30)
    args = jnp.ones((30, 12)), jnp.ones((7, 4)), jnp.ones((4, 12, 12))
    kernels = relational.explain(g, *args, edges=jnp.arange(200) % 7).kernels
    assert {k.direction for k in kernels} == {"forward", "backward"}
    assert not any("[edge, 12, 12]" in k.traversal for k in kernels)
