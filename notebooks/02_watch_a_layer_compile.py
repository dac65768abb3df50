# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Watch a layer compile
#
# A layer that reads like the formula in a paper is usually slow: taken literally, it computes and
# stores things for every edge. This notebook follows one through gnnjit's passes and counts the
# bytes that are written before and after.

# %%
import os
from collections import Counter

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import gnnjit
from gnnjit.data import communities
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Aggregate

smoke = os.environ.get("GNNJIT_SMOKE") == "1"  # tiny sizes, to test that this notebook runs

# %% [markdown]
# ## Attention, as in the paper
#
# Graph attention (Veličković et al., 2018, equation 3) scores an edge by a vector `a` times the
# *concatenation* of both ends, each transformed by `W`. Written down as it stands there:


# %%
@gnnjit.layer
def attention(v, e, p):
    pair = jnp.concatenate([e.dst @ p["w"], e.src @ p["w"]])
    score = jax.nn.leaky_relu(pair @ p["a"], 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * (e.src @ p["w"]))


data = communities(num_nodes=300 if smoke else 20_000, num_features=64, avg_degree=20, seed=0)
keys = jax.random.split(jax.random.key(0))
params = {
    "w": 0.1 * jax.random.normal(keys[0], (64, 64)),
    "a": 0.1 * jax.random.normal(keys[1], (128,)),
}
graph, x = data.graph, data.x
print(graph)

# %%
story = attention.explain(graph, x, params)
print(story.written)

# %% [markdown]
# How to read it:
#
# - Each line is one value. `f32[edge, 128]` means 128 numbers for *every edge*; `f32[dst, 64]` is
#   64 for every vertex as a destination, `f32[src, 64]` as a source, `f32[64, 64]` one array that
#   the whole graph shares.
# - `x[u]` reads a value at the edge's source, `x[v]` at its destination.
# - The comment is the line of your code, here of the notebook's cell.
#
# The **space** of a value is inferred, not declared: an operation lives where its operands meet. A
# source value and a destination value meet on the edge.

# %% [markdown]
# ## Pass by pass
#
# Each pass is one small rewrite that keeps the meaning. Here is what each of them added (`+`) and
# took away (`-`). Names are given anew after each pass, so we compare lines without them.


# %%
def shape_of(value):
    space = "" if value.space.value == "shared" else f"{value.space.value}: "
    return f"{value.dtype}[{space}{' x '.join(map(str, value.shape))}]"


def operations(text):
    """What a program computes, and how often, without the names of the values."""
    found = Counter()

    def visit(equations):
        for equation in equations:
            if isinstance(equation.op, Aggregate):
                visit(equation.op.body.equations)
                names = [r.kind if r else "on the edges" for r in equation.op.reductions]
                found["traversal of the edges"] += 1
            else:
                names = [equation.op.name]
            for name, value in zip(names, equation.outputs, strict=True):
                found[f"{name}  {shape_of(value)}"] += 1

    visit(parse(text).equations)
    return found


for pass_ in story.steps:
    before, after = operations(pass_.before), operations(pass_.after)
    print(pass_.name)
    for line, count in (before - after).items():
        print(f"   - {count} x {line}")
    for line, count in (after - before).items():
        print(f"   + {count} x {line}")

# %% [markdown]
# The important ones:
#
# - **place-in-smallest-space**: `e.src @ w` depends on the source alone, so it becomes a `src`
#   value: computed once per vertex and not once per edge.
# - **split-concat-matmul**: `concat(z_v, z_u) @ a` is `z_v @ a_1 + z_u @ a_2`. What was one product
#   on the edge is two on the vertices, and one number per end is added on the edge. The parameter
#   `a` keeps its shape: checkpoints stay valid.
# - **factor-out-of-reduce**: the softmax divides every edge by a number that belongs to its
#   destination. The division moves behind the sum.
# - **online-softmax**: the largest score, the sum of exponentials and the weighted sum become one
#   traversal. A kernel that cannot rescale what it has summed so far gets two, as before.
# - **fuse-scatter-apply-gather**: what is left on the edges becomes a few *traversals*. Inside one,
#   an edge value lives in registers and is never written to memory.
#
# And this is the program that runs. Edge values appear only inside `for each edge`:

# %%
print(story.program)

# %% [markdown]
# ## What it saves
#
# `parse` reads a printed program back, so we can count. A value of a space is written once for
# each of its elements, unless it only exists inside a traversal.

# %%
elements = {"src": graph.num_src, "dst": graph.num_dst, "edge": graph.num_edges, "shared": 1}


def bytes_written(text):
    """Bytes of the values that a program writes, by space."""
    total = dict.fromkeys(elements, 0)
    for equation in parse(text).equations:
        for value in equation.outputs:
            size = elements[value.space.value] * value.size * value.dtype.itemsize
            total[value.space.value] += size
    return total


stages = [("as written", story.written), *((step.name, step.after) for step in story.steps)]
labels = [f"{number}. {name}" for number, (name, _) in enumerate(stages)]
amounts = [bytes_written(text) for _, text in stages]

figure, axes = plt.subplots(figsize=(7, 3.4))
left = [0.0] * len(stages)
colours = {"edge": "#c44e52", "src": "#4c72b0", "dst": "#8fb0d9"}
for space, colour in colours.items():
    widths = [amount[space] / 2**20 for amount in amounts]
    axes.barh(labels, widths, left=left, color=colour, label=f"one per {space}")
    left = [a + b for a, b in zip(left, widths, strict=True)]
axes.invert_yaxis()
axes.set(xlabel="MiB written by the forward pass, every value stored")
axes.legend(frameon=False, loc="lower right")
figure.tight_layout()
plt.show()

# %%
written, *_, optimised = amounts
for name, amount in {"as written": written, "optimised": optimised}.items():
    print(f"{name}: {sum(amount.values()) / 2**20:.1f} MiB, on the edges {amount['edge']} bytes")
assert optimised["edge"] == 0

# %% [markdown]
# A pass may write more for a while (factor-out-of-reduce leaves the old softmax standing until
# drop-dead takes it away); what counts is the end.
#
# Each buffer of the optimised program, the largest first. None has a row per edge:

# %%
largest = sorted(story.buffers, key=lambda b: -b.bytes)[:8]
names = [f"{i}. {b.name} {b.dtype}{list(b.shape)}" for i, b in enumerate(largest, 1)]
sizes = [b.bytes / 2**10 for b in largest]
per_edge = 4 * graph.num_edges * 64 / 2**10
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
bars = axes.barh(names, sizes, color=[colours[b.space] for b in largest])
axes.bar_label(bars, [f"{size:,.0f}" for size in sizes], padding=3, fontsize=8)
axes.axvline(per_edge, color=colours["edge"], linestyle=":")
axes.text(per_edge, -0.9, "64 features an edge", color=colours["edge"], ha="right", fontsize=8)
axes.invert_yaxis()
axes.set(xscale="log", xlabel="KiB (a logarithmic scale)", xlim=(min(sizes) / 3, 3 * per_edge))
plt.show()

# %% [markdown]
# These are upper bounds: XLA fuses the vertex-wise steps further and reuses memory.
#
# ## Backward, too
#
# The gradient of a traversal is a traversal. Edge values are computed again rather than stored, so
# the backward pass has no edge buffers either. Gradients of sources run over the out-edges:

# %%
for kernel in story.kernels:
    print(f"{kernel.direction:9} {kernel.kernel}, one row per {kernel.rows}")

# %% [markdown]
# What XLA itself says about the temporary memory of value and gradient, beside the same layer run
# edge by edge (`gnnjit.reference()`, plain gathers and `segment_sum`):


# %%
def loss(p, graph, x):
    return jnp.sum(attention(graph, x, p) ** 2)


def temporary_bytes():
    compiled = jax.jit(jax.value_and_grad(lambda *args: loss(*args))).lower(params, graph, x)
    return compiled.compile().memory_analysis().temp_size_in_bytes


fused = temporary_bytes()
with gnnjit.reference():
    edge_by_edge = temporary_bytes()
print(f"temporary memory: {edge_by_edge / 2**20:.1f} MiB edge by edge, {fused / 2**20:.1f} MiB")

# %% [markdown]
# ## And is it still the same layer?
#
# `check` compares the optimised layer with the program as written, in value and gradient, and names
# the first pass that went wrong if they part.

# %%
print(attention.check(graph, x, params))
