"""`sink-picked-matrices` leaves a matrix that a vertex's number stands for in its table."""

import pytest

from gnnjit.passes.sink_picked_matrices import SinkPickedMatrices

from .golden import fires, refuses

PICKED = """\
    layer f(x: f32[src, 16], k: i32[dst], w: f32[{rows}, {wide}, 16])
      a: f32[{space}, 1, {wide}, 16] = dynamic_slice(w, k{at}, 0, 0, slice_sizes=(1, {wide}, 16))
      m: f32[{space}, {wide}, 16] = squeeze(a, dimensions=(0,))
      {rest}
      return c
    """
PRODUCT = """\
h: f32[edge, {wide}] = m{of} @ x[u]
      c: f32[dst, {wide}] = sum over (u -> v) of h"""


def layer(space: str, wide: int = 16, rest: str = PRODUCT) -> str:
    at, of = ("[v]", "") if space == "edge" else ("", "[v]")
    rest = rest.format(wide=wide, of=of)
    return PICKED.format(space=space, at=at, wide=wide, rows=3, rest=rest)


def test_fires_on_a_matrix_of_the_destination():
    fires(SinkPickedMatrices(), layer("dst"), layer("edge"))


@pytest.mark.parametrize(
    ("wide", "rest"),
    [(15, PRODUCT), (16, "c: f32[dst, {wide}] = reduce_sum(m, axes=(1,))")],
    ids=["a small matrix", "a vertex's own work"],
)
def test_refuses(wide, rest):
    refuses(SinkPickedMatrices(), layer("dst", wide, rest))
