"""`GNNJIT_DEBUG`: what each level prints about a plan, and how often."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import config
from gnnjit.compiler import debug
from gnnjit.lower import cpu
from gnnjit.lower.choose import prefer

N = 5000
G = gnnjit.Graph.from_edges(np.arange(N), np.roll(np.arange(N), 1), N)
X, W = jnp.ones((N, 64)), jnp.ones((64, 3))


@gnnjit.layer
def gcn(v, e, w):
    return gnnjit.sum(e.src @ w)


LINE = gcn.__gnnjit_layer__.where.split(":")[1]
AT = f"test_debug.py:{int(LINE) + 2}"
HEAD = f"gnnjit: test_debug.py:{LINE}: gcn: plan for "

PASSES = "  passes: place-in-smallest-space, fuse-scatter-apply-gather\n"
COSTS = f"""\
     predicted  choices
  * TIME  w f32[64, 3] ({AT}): combine-first
 TIME  w f32[64, 3] ({AT}): aggregate-first
  the one that runs, predicted: KINDS
  cost model: shipped: two CPU cores, run `gnnjit calibrate` for this machine's
"""
PROGRAMS = f"""\
  --- as written
  layer gcn(e.src: f32[src, 64], w: f32[64, 3])
    a: f32[edge, 3] = e.src[u] @ w             # {AT}
    b: f32[dst, 3] = sum over (u -> v) of a    # {AT}
    return b
  --- after place-in-smallest-space
  layer gcn(e.src: f32[src, 64], w: f32[64, 3])
    a: f32[src, 3] = e.src @ w                    # {AT}
    b: f32[dst, 3] = sum over (u -> v) of a[u]    # {AT}
    return b
  --- after fuse-scatter-apply-gather
  layer gcn(e.src: f32[src, 64], w: f32[64, 3])
    a: f32[src, 3] = e.src @ w        # {AT}
    for each edge (u -> v) of a[u]    # {AT}
      b: f32[dst, 3] = sum over (u -> v) of a[u]
    return b
"""
LOWERING = """\
  forward: segment, one row per destination
    not pallas: segment is preferred
    not mosaic: segment is preferred
    not cpu: segment is preferred
    not csr: segment is preferred
    not bucketed: segment is preferred
"""
TRAVERSAL = """\
    reads a: f32[src, 3]
      return a
    reduced by: sum
"""
LEVELS = {
    0: "",
    1: HEAD + "inference\n" + PASSES + LOWERING,
    2: HEAD + "inference\n" + PASSES + COSTS + LOWERING,
    3: HEAD + "inference\n" + PASSES + COSTS + PROGRAMS + LOWERING + TRAVERSAL,
}


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Runs a function at a level, as a process that has printed nothing yet; what it prints."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(debug, "_printed", set())

    def run(level, function):
        monkeypatch.setattr(config, "DEBUG", level)
        jax.clear_caches()
        function()
        out, err = capsys.readouterr()
        assert out == ""
        return re.sub(r" +[\d.]+ (us|ms|s)\b", " TIME", re.sub(r"(predicted: ).*", r"\1KINDS", err))

    return run


@pytest.mark.parametrize("level", LEVELS)
def test_levels(printed, level):
    with prefer("segment"):
        assert printed(level, lambda: gcn(G, X, W)) == LEVELS[level]


def test_generated_code(printed):
    def run():
        gcn(G, X, W)

    with prefer("segment"):
        text = printed(4, run)
    head, code = text.split("  --- code\n")
    assert head == LEVELS[3]
    assert "{ lambda ;" in code
    assert "gather" in code
    if cpu.available():
        assert 'define ptr @"entry"' in printed(4, run).split("  --- code\n")[1]


def test_once_for_each_plan(printed):
    def run():
        for _ in range(2):
            jax.jit(gcn)(G, X, W)
            jax.clear_caches()
            jax.grad(lambda w: gcn(G, X, w).sum())(W)

    titles = [line for line in printed(1, run).splitlines() if line.startswith("gnnjit: ")]
    assert titles == [f"{HEAD}inference", f"{HEAD}training, gradients of w"]


def test_traversals_of_a_gradient(printed):
    lines = printed(1, lambda: jax.grad(lambda x: gcn(G, x, W).sum())(X)).splitlines()
    assert lines[0] == f"{HEAD}training, gradients of e.src, v"
    directions = [line.split(":")[0].strip() for line in lines if ", one row per " in line]
    assert directions == ["forward", "backward"]


def test_a_sharded_graph(printed):
    sharded = gnnjit.shard(G, jax.make_mesh((1,), ("shards",)))
    x = sharded.put(np.asarray(X))
    assert printed(4, lambda: gcn(sharded, x, W)).startswith(f"{HEAD}inference\n")
