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
# # A graph that does not fit
#
# The features of a large graph, and what training keeps for its backward pass, may need more
# memory than the device has. `gnnjit.stream` runs the same function block by block: the arrays lie
# in a store (host memory, or files), and only what a block needs is on the device. This notebook
# trains a small graph under a budget that is far too small for it.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import gnnjit
from gnnjit import stream
from gnnjit.data import communities
from gnnjit.streaming import StreamedGraph

smoke = os.environ.get("GNNJIT_SMOKE") == "1"  # tiny sizes, to test that this notebook runs
num_nodes = 300 if smoke else 20_000
data = communities(num_nodes=num_nodes, num_features=64, avg_degree=10, homophily=0.95, seed=0)
print(data.graph)

# %% [markdown]
# ## In memory
#
# Two layers, a loss, its gradient and a step: any function of a graph.


# %%
@gnnjit.layer
def convolution(v, e, w):
    return gnnjit.mean(e.src @ w) + v @ w


def loss(params, graph, x, y):
    hidden = jax.nn.relu(convolution(graph, x, params[0]))
    scores = jax.nn.log_softmax(convolution(graph, hidden, params[1]))
    return -jnp.mean(jnp.sum(scores * jax.nn.one_hot(y, data.num_classes), axis=-1))


def step(graph, params, x, y):
    value, gradients = jax.value_and_grad(loss)(params, graph, x, y)
    return [p - 2.0 * g for p, g in zip(params, gradients, strict=True)], value


keys = jax.random.split(jax.random.key(0))
start = [0.1 * jax.random.normal(k, s) for k, s in zip(keys, [(64, 16), (16, 8)], strict=True)]

in_memory = jax.jit(step).lower(data.graph, start, data.x, data.y).compile()
found = in_memory.memory_analysis()
need = found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes
print(f"needs {need / 2**20:.1f} MiB")

# %% [markdown]
# ## Out of memory
#
# `StreamedGraph.from_edges` puts the edges into a store; `put` adds rows of the vertices. With
# `store=DiskStore.create("folder")` they would lie in files. The vertices get an order that brings
# neighbours together: by default reverse Cuthill-McKee, which suits meshes; `"metis"`; or one of
# your own. Here the communities are known. The function stays as it is.

# %%
order = np.argsort(data.y, kind="stable")
graph = StreamedGraph.from_edges(data.graph.src, data.graph.dst, num_nodes, order=order)
x, y = graph.put("x", data.x), graph.put("y", data.y)

budget = need // 4
streamed = stream(step, memory_budget=budget)
print(f"budget {budget / 2**20:.1f} MiB")

# %%
params, others = start, start
for epoch in range(5):
    params, value = streamed(graph, params, x, y)
    others, wanted = in_memory(data.graph, others, data.x, data.y)
    print(f"epoch {epoch}: streamed {value:.5f}, in memory {wanted:.5f}")
np.testing.assert_allclose(value, wanted, rtol=1e-4)

# %% [markdown]
# ## What happened
#
# - **grid**: the vertices in P blocks, the edges in P x P chunks. P is the smallest that fits.
# - **sweeps**: the function cut at its aggregates. Where results belong to destinations, a sweep
#   goes by columns of the grid; the gradients of sources go by rows. Arrays have letters: what one
#   sweep stores, a later one reads.
# - **memory**: what stays on the device, and the bytes that move in an epoch, and why.
# - **time**: loads and computations of the last run. A simulation with two engines says how much
#   of the loads the computation hides.

# %%
story = streamed.explain(graph, params, x, y)
print(story)

# %% [markdown]
# The same in pictures: where the edges are, and when the chunks of the slowest block travel and are
# computed with. Thanks to the order of the vertices most edges are near the diagonal.

# %%
story.plot()
plt.show()

# %% [markdown]
# ## What each part is worth
#
# The parts can be switched off. Without `cached` nothing stays on the device between operations;
# without `selective` a chunk always reads all rows of the block at its other end, though its edges
# may use few of them. (On such a small graph, and on one machine, the seconds say little: the bytes
# are what a device behind a slow bus waits for.)

# %%
parts = streamed.prepare(graph, params, x, y).blocks.num_parts
switches = {
    "everything": {},
    "not cached": {"cached": False},
    "nor selective": {"cached": False, "selective": False},
    "nor overlapped": {"cached": False, "selective": False, "overlapped": False},
}
moved = {}
for name, options in switches.items():
    other = stream(step, memory_budget=budget, parts=parts, **options)
    for _ in range(2):
        _, value = other(graph, start, x, y)
    moved[name] = dict(other.traffic.moved)
    total, seconds = other.traffic.bytes / 2**20, other.traffic.seconds
    print(f"{name:15} loss {value:.5f}, {total:6.1f} MiB in {1e3 * seconds:.0f} ms")

# %%
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
left = np.zeros(len(moved))
for cause in ("own rows", "other rows", "selected rows", "edges", "stored"):
    amount = np.array([found.get(cause, 0) / 2**20 for found in moved.values()])
    axes.barh(list(moved), amount, left=left, label=cause)
    left += amount
axes.set(xlabel="MiB moved in an epoch")
axes.invert_yaxis()
axes.legend(frameon=False)
plt.show()
