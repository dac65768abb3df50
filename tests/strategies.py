"""Generated layer functions and edge lists."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from compiler.cases import F
from hypothesis import strategies as st


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Any:
    """A random layer function of `[F]` values; reductions of edge values, nested once or twice."""
    if depth == 0 or (depth < 3 and draw(st.booleans())):
        leaf = draw(st.sampled_from(["src", "dst", "data", "a"]))
        return lambda g, v, e, p: p["a"][:F] if leaf == "a" else getattr(e, leaf)
    kind = draw(st.sampled_from(["add", "sub", "mul", "div", "tanh", "neg", "matmul", "sum",
                                 "max", "mean", "softmax", "where"]))  # fmt: skip
    one = draw(expressions(depth=depth - 1))
    if kind in ("add", "sub", "mul", "div", "where"):
        two = draw(expressions(depth=depth - 1))
        how = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply,
               "div": lambda a, b: a / (2 + jnp.abs(b)),
               "where": lambda a, b: jnp.where(a > 0, a, b)}[kind]  # fmt: skip
        return lambda g, v, e, p: how(one(g, v, e, p), two(g, v, e, p))
    if kind in ("sum", "max", "mean", "softmax"):  # 0 * e.data keeps a shared value on the edges
        return lambda g, v, e, p: getattr(g, kind)(one(g, v, e, p) + e.src * 0.5)
    how = {"tanh": jnp.tanh, "neg": jnp.negative}.get(kind)
    if how is None:
        return lambda g, v, e, p: (one(g, v, e, p) @ p["w"])[:F]
    return lambda g, v, e, p: how(one(g, v, e, p))


@st.composite
def edge_lists(draw: st.DrawFn, vertices: int, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Up to `capacity` edges: loops, duplicates, and sometimes a hub with half of all edges."""
    ends = st.lists(st.integers(0, vertices - 1), min_size=capacity, max_size=capacity)
    src, dst = np.array(draw(ends), np.int32), np.array(draw(ends), np.int32)
    if draw(st.booleans()):
        dst[::2] = dst[0]
    count = draw(st.integers(0, capacity))
    return src[:count], dst[:count]
