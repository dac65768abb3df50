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
# # Which program runs
#
# One layer can be run by several programs that mean the same. Should a matrix be applied to every
# vertex before its neighbours are summed, or to the sum? Should a value on the edges be kept for
# the backward pass, or computed again? The answer depends on the widths, on the graph, and on which
# gradients are needed. gnnjit predicts how long each takes, and runs the fastest. This notebook
# looks at the predictions, and at how far they are from the clock.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import gnnjit
from gnnjit.data import communities
from gnnjit.errors import PlanError

smoke = os.environ.get("GNNJIT_SMOKE") == "1"  # tiny sizes, to test that this notebook runs
num_nodes = 300 if smoke else 20_000
graph = communities(num_nodes=num_nodes, num_features=8, avg_degree=10, seed=0).graph
print(graph)


def normal(*shape):
    return jax.random.normal(jax.random.key(len(shape)), shape) / np.sqrt(shape[-1])


# %% [markdown]
# ## One layer, explained
#
# A graph convolution, with the matrix after the sum:


# %%
@gnnjit.layer
def convolution(v, e, w):
    scale = jax.lax.rsqrt(1.0 + gnnjit.degree())
    return scale * (gnnjit.sum(e.src) + v) @ w


story = convolution.explain(graph, normal(num_nodes, 64), normal(64, 32), measure=True)
for plan in story.plans:
    print(f"{plan.title}\n{plan}\n")

# %% [markdown]
# How to read it:
#
# - **predicted** is the time of one call by the *cost model*: a weighted sum of how much of what
#   there is to do. The weights are shipped, or measured on your machine by `gnnjit calibrate`.
# - **measured** is there because of `measure=True`: each alternative was compiled and timed, the
#   layer alone. Without it, nothing is run.
# - `*` marks the one that runs. **Training** counts forward and backward together, so it may choose
#   another one than **inference**. By default all inputs need gradients; the features of a first
#   layer do not, which `wrt="params"` says.
#
# From Python:

# %%
for plan in story.plans:
    for alternative in plan.alternatives:
        error = alternative.predicted / alternative.measured - 1
        print(f"{plan.direction:10} {'; '.join(alternative.words):60} {error:+.0%}")

# %% [markdown]
# ## Predicted against measured
#
# Three kinds of layers at several widths, each with all its alternatives, both ways. After `gnnjit
# calibrate`, the grey band is 12.5 % to either side. Shipped weights are those of another machine:
# then the dashed line shows by what factor all predictions are off here, in the median. A common
# factor changes no choice; how the points scatter around it does.


# %%
@gnnjit.layer
def attention(v, e, w, a):
    score = jax.nn.leaky_relu((e.src @ w) @ a[0] + (v @ w) @ a[1], 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * (e.src @ w))


@gnnjit.layer
def edge_network(v, e, w1, w2):
    return gnnjit.sum(jax.nn.relu((e.dst + e.src) @ w1) @ w2)


widths = [(8, 8)] if smoke else [(16, 16), (64, 16), (16, 64), (64, 64)]
points, weights_of = {}, ""
for wide, narrow in widths:
    x, w = normal(num_nodes, wide), normal(wide, narrow)
    calls = {
        "convolution": (convolution, (w,)),
        "attention": (attention, (w, normal(2, narrow))),
        "edge network": (edge_network, (w, normal(narrow, narrow))),
    }
    for name, (layer, weights) in calls.items():
        for plan in layer.explain(graph, x, *weights, measure=True).plans:
            found = points.setdefault((name, plan.direction), [])
            found += [(a.measured, a.predicted) for a in plan.alternatives]
            weights_of = plan.model
factor = np.median([b / a for found in points.values() for a, b in found])
print(f"{sum(map(len, points.values()))} points, predicted over measured: {factor:.2f} (median)")
print("cost model:", weights_of)

# %%
figure, axes = plt.subplots(figsize=(6, 5))
shapes = {"convolution": "o", "attention": "s", "edge network": "^"}
colours = {"inference": "#4c72b0", "training": "#c44e52"}
every = 1e3 * np.array([seconds for found in points.values() for seconds, _ in found])
ends = np.array([every.min() / 2, every.max() * 2])
axes.plot(ends, ends, color="0.5", linewidth=1, label="as predicted")
if weights_of.startswith("calibrated"):
    axes.fill_between(ends, 0.875 * ends, 1.125 * ends, color="0.85", label="within 12.5 %")
else:
    axes.plot(ends, factor * ends, "--", color="0.5", label=f"predicted {factor:.2f} x measured")
    axes.set_title("shipped weights: gnnjit calibrate measures this machine", fontsize=9)
for (name, direction), found in points.items():
    measured, predicted = 1e3 * np.array(found).T
    face = "none" if direction == "inference" else colours[direction]
    axes.plot(measured, predicted, shapes[name], color=colours[direction], markerfacecolor=face,
              label=f"{name}, {direction}")  # fmt: skip
axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)", xlim=ends)
axes.legend(frameon=False, fontsize=8)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Where the decision changes
#
# Now without running anything: for every pair of widths, the predicted time with the sum first
# over that with the matrix first, as a number in each cell; the colour is its logarithm. Above 1
# (the thick line) the matrix comes first, below it the sum.
#
# In training, the gradient of the features goes back over the edges too: with the matrix first it
# has the width behind the matrix. Where the features need no gradient, the sum first has no
# traversal in its backward pass at all, and pays off more often. This is why the planner asks which
# gradients are taken.

# %%
powers = [3, 6] if smoke else [3, 4, 5, 6, 7, 8, 9]
titles = ["inference", "training, all gradients", "training, parameters only"]
ratios = np.full((3, len(powers), len(powers)), np.nan)


def least(plan, order):
    """Predicted seconds of the best alternative with this order."""
    return min(a.predicted for a in plan.alternatives if a.choices.orders == (order,))


def log2_ratio(plan):
    first, second = least(plan, "aggregate-first"), least(plan, "combine-first")
    return np.log2(first / second) if first and second else np.nan


for i, wide in enumerate(powers):
    x = jnp.zeros((num_nodes, 2**wide))
    for j, narrow in enumerate(powers):
        w = jnp.zeros((2**wide, 2**narrow))
        inference, everything = convolution.explain(graph, x, w).plans
        _, parameters = convolution.explain(graph, x, w, wrt="params").plans
        ratios[:, i, j] = [log2_ratio(p) for p in (inference, everything, parameters)]

# %%
figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True, layout="constrained")
limit = np.nanmax(np.abs(ratios)) if np.isfinite(ratios).any() else 1.0
for axes, title, ratio in zip(panels, titles, ratios, strict=True):
    image = axes.pcolormesh(powers, powers, ratio, cmap="RdBu", vmin=-limit, vmax=limit)
    if np.isfinite(ratio).all():
        axes.contour(powers, powers, ratio, [0.0], colors="k", linewidths=2.5)
        for i, j in np.ndindex(ratio.shape):
            colour = "white" if abs(ratio[i, j]) > 0.6 * limit else "black"
            text = f"{2 ** ratio[i, j]:.2g}"
            axes.text(
                powers[j], powers[i], text, color=colour, ha="center", va="center", fontsize=7
            )
    labels = [f"{2**p}" for p in powers]
    axes.set(title=title, xlabel="features behind the matrix", xticks=powers, xticklabels=labels)
panels[0].set(ylabel="features before it", yticks=powers, yticklabels=labels)
bar = figure.colorbar(image, ax=panels)
bar.set_label("log2 (sum first / matrix first)")
plt.show()

# %% [markdown]
# ## Less memory
#
# Under a memory budget, the fastest alternative that fits runs; smaller chunks of edges are
# alternatives too. The peak in the table is an upper bound of what one call needs, arguments,
# results and gradients included. What may fit or not is compiled to see, and where nothing fits,
# the error names the smallest budget that would do.

# %%
x, weights = normal(num_nodes, 32), (normal(32, 64), normal(64, 64))
with gnnjit.memory_budget("1TiB"):
    most = edge_network.explain(graph, x, *weights).plans[1].chosen.peak
for share in (1, 0.8, 0.25):
    budget = int(share * most)
    try:
        with gnnjit.memory_budget(budget):
            plan = edge_network.explain(graph, x, *weights).plans[1]
        print(f"{budget / 2**20:.1f} MiB\n{plan.table()}\n")
    except PlanError as error:
        print(f"{budget / 2**20:.1f} MiB: {error}")
