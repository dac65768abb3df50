"""What changed from one printed program to the next."""

from __future__ import annotations

from gnnjit.ir.changes import changes

BEFORE = """\
layer f(e.src: f32[src, 4], w: f32[4, 3])
  a: f32[edge, 3] = e.src[u] @ w    # m.py:1
  b: f32[dst, 3] = sum over (u -> v) of a
  return b"""


def test_lines_that_stay_are_counted() -> None:
    after = BEFORE.replace("a: f32[edge, 3] = e.src[u] @ w    #", "a: f32[src, 3] = e.src @ w    #")
    assert changes(BEFORE, after) == (
        "  (1 line as before)\n"
        "- a: f32[edge, 3] = e.src[u] @ w    # m.py:1\n"
        "+ a: f32[src, 3] = e.src @ w    # m.py:1\n"
        "  (2 lines as before)"
    )


def test_other_names_are_no_change() -> None:
    after = BEFORE.replace("b", "c12").replace("a:", "d:").replace("of a", "of d")
    assert changes(BEFORE, after) == "  (4 lines as before)"


def test_another_type_is_one() -> None:
    after = BEFORE.replace("b: f32", "b: f16")
    assert "+ b: f16[dst, 3]" in changes(BEFORE, after)
    assert "+ b: i32[dst, 3]" in changes(BEFORE, BEFORE.replace("b: f32", "b: i32"))


def test_inner_lines_keep_their_indent() -> None:
    after = BEFORE.replace(
        "  b:", "  for each edge (u -> v) of a[u]\n    k: f32[edge] = a[u]\n  b:"
    )
    assert "+   k: f32[edge] = a[u]" in changes(BEFORE, after)
