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
# # A first layer
#
# You say what **one vertex** does with its incoming edges, in plain JAX. gnnjit runs it over the
# whole graph. Here we write a layer, look at what becomes of it, and train it with Flax and Optax.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

import gnnjit
from gnnjit.data import communities, karate

smoke = os.environ.get("GNNJIT_SMOKE") == "1"  # tiny sizes, to test that this notebook runs

# %% [markdown]
# ## One vertex at a time
#
# Inside a layer, `v` are the features of one vertex and `e.src` those of the vertex at the other
# end of one incoming edge. Both have the shape `[F]`: no batch dimension, no edge list.
# `gnnjit.mean` takes an edge value to a vertex value.
#
# Zachary's karate club has 34 members. With one number per member, the mean over friends is easy
# to check by hand.

# %%
club = karate()


@gnnjit.layer
def friends(v, e):
    return {"mean": gnnjit.mean(e.src), "count": gnnjit.degree(), "above": gnnjit.max(e.src) > v}


age = jnp.arange(34.0)
result = friends(club.graph, age)
print({name: value[:4] for name, value in result.items()})

mine = club.graph.src[club.graph.dst == 2].tolist()
print("friends of member 2:", mine, "mean", sum(mine) / len(mine))

# %% [markdown]
# ## A layer with parameters
#
# `@gnnjit.layer` also decorates methods. A Flax module's weights are then shared by the whole
# graph, and everything in `nnx` works on them as usual.


# %%
class Neighbours(nnx.Module):
    """relu(W_own h[v] + W mean of h[u])."""

    def __init__(self, features: int, out: int, *, rngs: nnx.Rngs):
        self.own = nnx.Linear(features, out, rngs=rngs)
        self.others = nnx.Linear(features, out, use_bias=False, rngs=rngs)

    @gnnjit.layer
    def __call__(self, v, e):
        return jax.nn.relu(self.own(v) + gnnjit.mean(self.others(e.src)))


class Model(nnx.Module):
    """Two layers, and a linear map to the classes."""

    def __init__(self, features: int, hidden: int, classes: int, *, rngs: nnx.Rngs):
        self.first = Neighbours(features, hidden, rngs=rngs)
        self.second = Neighbours(hidden, hidden, rngs=rngs)
        self.last = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(self, graph, x):
        return self.last(self.second(graph, self.first(graph, x)))


# %% [markdown]
# ## A graph to learn on
#
# `communities` draws a random graph in which members of a class meet more often. A member's own
# features say little about its class; the mean over its neighbours says a lot. One vertex in ten
# has a label to train on.

# %%
data = communities(num_nodes=500 if smoke else 4_000, num_features=16, seed=0)
print(data)
print(data.graph.statistics())

# %% [markdown]
# ## What the compiler makes of it
#
# `explain` takes a layer, or anything that calls layers. It shows each as it was written, after
# each pass that changed it, the buffers that it writes, and which kernels run it forward and
# backward. Read the last program: both matrices are applied once per *vertex*, and only a plain sum
# is left to do on the edges.

# %%
model = Model(16, 32, data.num_classes, rngs=nnx.Rngs(0))
story = gnnjit.explain(model.first, data.graph, data.x)[0]
print(story.program)
print()
print("kernels:", [f"{k.direction} {k.kernel} by {k.rows}" for k in story.kernels])
print("passes that changed it:", [step.name for step in story.steps])

# %% [markdown]
# `check` runs the layer a second time, edge by edge and without any pass, and compares values and
# gradients. It is a good first thing to do with a layer of your own.

# %%
print(gnnjit.check(model.first, data.graph, data.x)[0])

# %% [markdown]
# ## Train
#
# Nothing here is special to gnnjit. The graph is an argument like the features, so `nnx.jit`
# compiles once for all steps.


# %%
def loss_of(model, graph, x, y, mask):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(graph, x), y)
    return jnp.sum(losses * mask) / jnp.sum(mask)


@nnx.jit
def step(model, optimizer, graph, x, y, mask):
    loss, grads = nnx.value_and_grad(loss_of)(model, graph, x, y, mask)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def accuracy(model, graph, x, y, mask):
    right = jnp.argmax(model(graph, x), axis=-1) == y
    return jnp.sum(right * mask) / jnp.sum(mask)


def train(graph, epochs):
    model = Model(16, 32, data.num_classes, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    curve = []
    for _ in range(epochs):
        loss = step(model, optimizer, graph, data.x, data.y, data.train_mask)
        curve.append((float(loss), float(accuracy(model, graph, data.x, data.y, data.val_mask))))
    test = float(accuracy(model, graph, data.x, data.y, data.test_mask))
    return curve, test


# %% [markdown]
# To see what the edges are worth, the same model also trains on a graph without any. Over no edges
# a mean is 0, with a zero gradient, so only the vertex's own features are left.

# %%
epochs = 5 if smoke else 60
no_edges = gnnjit.Graph.from_edges([], [], num_nodes=data.num_nodes)
with_edges, test_with = train(data.graph, epochs)
without, test_without = train(no_edges, epochs)
print(f"test accuracy: {test_with:.3f} with edges, {test_without:.3f} without")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
numbers = range(1, epochs + 1)
for label, curve in {"with edges": with_edges, "own features only": without}.items():
    losses, accuracies = zip(*curve, strict=True)
    left.plot(numbers, losses, label=label)
    right.plot(numbers, accuracies, label=label)
    best = max(accuracies)
    right.annotate(
        f"{best:.2f}", (1 + accuracies.index(best), best), xytext=(0, 4), ha="center",
        textcoords="offset points",
    )  # fmt: skip
right.axhline(1 / data.num_classes, color="grey", linewidth=1, linestyle=":", label="chance")
left.set(xlabel="epoch", ylabel="loss of the training vertices", yscale="log")
right.set(xlabel="epoch", ylabel="accuracy of the validation vertices", ylim=(0, 1))
right.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# ## Where to go from here
#
# - Ready-made layers are in `gnnjit.nn`; each is one short file that you can copy and change.
# - The next notebook watches a layer being compiled, pass by pass.
# - `gnnjit train --help` trains any of them on built-in and published datasets.
