"""`extremes-in-full-precision` asks for float32 in what decides a maximum, and nowhere else."""

import pytest

from gnnjit.passes.extremes_in_full_precision import ExtremesInFullPrecision

from .golden import fires, refuses

STEP = ExtremesInFullPrecision()
FULL = "precision=(Precision.HIGHEST, Precision.HIGHEST)"


@pytest.mark.parametrize("word", ["max", "min"])
def test_fires_on_all_products_that_lead_to_an_extreme(word):
    fires(STEP, f"""\
        layer f(x: f32[src, 4], w: f32[4, 8], z: f32[8, 2])
          a: f32[edge, 8] = x[u] @ w
          b: f32[edge, 8] = tanh(a, accuracy=None)
          c: f32[edge, 2] = b @ z
          d: f32[dst, 2] = {word} over (u -> v) of c
          return d
        """, f"""\
        layer f(x: f32[src, 4], w: f32[4, 8], z: f32[8, 2])
          a: f32[edge, 8] = dot_general(x[u], w, {FULL})
          b: f32[edge, 8] = tanh(a, accuracy=None)
          c: f32[edge, 2] = dot_general(b, z, {FULL})
          d: f32[dst, 2] = {word} over (u -> v) of c
          return d
        """)  # fmt: skip


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGH"])
def test_fires_on_a_lower_precision_that_was_asked_for(precision):
    lower = f"precision=(Precision.{precision}, Precision.{precision})"
    fires(STEP, f"""\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[edge, 8] = dot_general(x[u], w, {lower})
          b: f32[dst, 8] = max over (u -> v) of a
          return b
        """, f"""\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[edge, 8] = dot_general(x[u], w, {FULL})
          b: f32[dst, 8] = max over (u -> v) of a
          return b
        """)  # fmt: skip


def test_fires_on_one_of_two_products():
    fires(STEP, """\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[edge, 8] = x[u] @ w
          b: f32[dst, 8] = sum over (u -> v) of a
          c: f32[edge, 4] = -x[u]
          d: f32[edge, 8] = c @ w
          e: f32[dst, 8] = max over (u -> v) of d
          return b, e
        """, f"""\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[edge, 8] = x[u] @ w
          b: f32[dst, 8] = sum over (u -> v) of a
          c: f32[edge, 4] = -x[u]
          d: f32[edge, 8] = dot_general(c, w, {FULL})
          e: f32[dst, 8] = max over (u -> v) of d
          return b, e
        """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        """\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[src, 8] = x @ w
          b: f32[dst, 8] = max over (u -> v) of a[u]
          return b
        """,
        """\
        layer f(x: bf16[src, 4], w: bf16[4, 8])
          a: bf16[edge, 8] = x[u] @ w
          b: bf16[dst, 8] = max over (u -> v) of a
          return b
        """,
        f"""\
        layer f(x: f32[src, 4], w: f32[4, 8])
          a: f32[edge, 8] = dot_general(x[u], w, {FULL})
          b: f32[dst, 8] = max over (u -> v) of a
          return b
        """,
    ],
    ids=["on vertices", "half precision", "full already"],
)
def test_refuses(text):
    refuses(STEP, text)
