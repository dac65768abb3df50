"""A forecast in the manner of GraphCast: from a fine mesh to a coarse one, and back.

    python examples/weather.py --data-dir ../shared/data

Lam et al., "Learning skillful medium-range global weather forecasting" (2023), supplement, section
3: an encoder carries the state of the grid to the vertices of a coarser mesh, over a bipartite
graph; a processor passes messages on the multi-mesh, which has short edges and long ones; a decoder
carries them back to the grid and gives the change of the state. All three are interaction networks
with residual connections. The loss is a mean square, in units of the changes' deviation.

The field is generated here, since no weather lies beside the meshes: damped waves on a mesh of
finite elements, `u'' = -c^2 L u - d u'` with its Laplacian L, from bumps at random. The mesh of
4,253 vertices is the "grid". The coarser mesh joins patches that grow around seeds; its long edges
join patches of patches. A forecast leaps over 12 steps of the waves, further than neighbours see.

Where this differs: 32 wide and 4 steps of the processor, not 512 and 16; one state is seen, not
two; training looks one leap ahead.

Ends with the error of forecasts, beside those of a state that stays and of 0, and with a picture.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse as sp
from flax import nnx

import gnnjit
from gnnjit import Bipartite, Graph
from gnnjit.data import largest_component, read_edges, with_laplacian

LEAP, LEAPS = 12, 10  # steps of the waves in a forecast; forecasts in a run


def waves(mesh, runs, seed):
    """[runs, LEAPS + 1, N, 2]: u and u' along runs of damped waves."""
    rng, count = np.random.default_rng(seed), mesh.num_nodes
    share = 1 / np.bincount(mesh.dst, minlength=count)[mesh.dst]
    average = sp.csr_array((share, (mesh.dst, mesh.src)), (count, count))  # I - L
    bumps = rng.normal(size=(count, runs)) * (rng.random((count, runs)) < 0.02)
    for _ in range(40):
        bumps = 0.5 * (bumps + average @ bumps)
    u, speed, found = bumps / bumps.std(), np.zeros_like(bumps), []
    for step in range(LEAP * LEAPS + 1):
        if step % LEAP == 0:
            found.append(np.stack([u, 3 * speed], axis=-1))
        speed = 0.995 * speed - 0.5 * (u - average @ u)
        u = u + speed
    return np.stack(found).swapaxes(1, 2).swapaxes(0, 1).astype(np.float32)


def grow(src, dst, vertices, patches, seed):
    """int[vertices]: patches grow around seeds, one hop at a time, until they meet."""
    patch = np.full(vertices, -1)
    patch[np.random.default_rng(seed).permutation(vertices)[:patches]] = np.arange(patches)
    while (joins := (patch[src] >= 0) & (patch[dst] < 0)).any():
        patch[dst[joins]] = patch[src[joins]]
    return patch


def meet(src, dst, patch):
    """The edges between patches, each once, int[2, E]."""
    pairs = np.unique(np.stack([patch[src], patch[dst]]), axis=1)
    return pairs[:, pairs[0] != pairs[1]]


def graphs(mesh, patches, seed):
    """Grid to mesh, mesh to mesh, mesh to grid, and where the vertices of both are: as far as
    distances in a graph without positions go, coordinates are eigenvectors of its Laplacian."""
    count, grid = mesh.num_nodes, mesh.nodes["x"] * np.sqrt(mesh.num_nodes)
    patch = grow(mesh.src, mesh.dst, count, patches, seed)
    fine = meet(mesh.src, mesh.dst, patch)
    of_patches = grow(*fine, patches, max(2, patches // 10), seed)
    centre = np.unique(of_patches, return_index=True)[1]  # a patch for each patch of patches
    multi = np.concatenate([fine, centre[meet(*fine, of_patches)]], axis=1)
    # A vertex of the grid is joined to its own patch, and to those of its neighbours.
    both = np.concatenate([[np.arange(count), patch], [mesh.dst, patch[mesh.src]]], axis=1)
    vertex, near = np.unique(both, axis=1)
    middle = np.stack([grid[patch == p].mean(axis=0) for p in range(patches)])
    return {
        "up": Graph.from_edges(vertex, near, num_src=count, num_dst=patches),
        "across": Graph.from_edges(*multi, patches),
        "down": Graph.from_edges(near, vertex, num_src=patches, num_dst=count),
        "ways": {
            "up": middle[near] - grid[vertex],
            "across": middle[multi[1]] - middle[multi[0]],
            "down": grid[vertex] - middle[near],
        },
        "grid": grid,
        "mesh": middle,
    }


def mlp(inputs, width, outputs, rngs, norm=True):
    """One hidden layer, swish, and a normalised result."""
    first, last = nnx.Linear(inputs, width, rngs=rngs), nnx.Linear(width, outputs, rngs=rngs)
    norms = [nnx.LayerNorm(outputs, rngs=rngs)] if norm else []
    return nnx.Sequential(first, nnx.swish, last, *norms)


class Interaction(nnx.Module):
    """An interaction network: new edges, and new destinations."""

    def __init__(self, width, rngs):
        self.edge = mlp(3 * width, width, width, rngs)
        self.node = mlp(2 * width, width, width, rngs)

    @gnnjit.layer
    def __call__(self, v, e):
        message = self.edge(jnp.concatenate([e.data, e.src, v]))
        return v + self.node(jnp.concatenate([v, gnnjit.sum(message)])), e.data + message


class Forecast(nnx.Module):
    """The change of the state, [N, 2], from the state."""

    def __init__(self, places, width, steps, rngs):
        self.embed = nnx.Dict({"grid": mlp(2 + places, width, width, rngs)})
        for part in ("mesh", "up", "across", "down"):
            self.embed[part] = mlp(places, width, width, rngs)
        self.up, self.down = Interaction(width, rngs), Interaction(width, rngs)
        self.grid = mlp(width, width, width, rngs)
        self.processor = nnx.List([Interaction(width, rngs) for _ in range(steps)])
        self.out = mlp(width, width, 2, rngs, norm=False)

    def __call__(self, parts, state):
        grid = self.embed["grid"](jnp.concatenate([state, parts["grid"]], axis=1))
        mesh = self.embed["mesh"](parts["mesh"])
        edge = {part: self.embed[part](way) for part, way in parts["ways"].items()}
        mesh, _ = self.up(parts["up"], Bipartite(grid, mesh), edges=edge["up"])
        grid, messages = grid + self.grid(grid), edge["across"]
        for step in self.processor:
            mesh, messages = step(parts["across"], mesh, edges=messages)
        grid, _ = self.down(parts["down"], Bipartite(mesh, grid), edges=edge["down"])
        return self.out(grid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=".", help="a folder with meshes")
    parser.add_argument("--mesh", default="airfoil1", help="airfoil1, 4elt or wing")
    parser.add_argument("--steps", type=int, default=1000, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="weather.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, depth, runs, steps = (8, 1, 4, 8) if args.smoke else (32, 4, 40, args.steps)

    begun = time.perf_counter()
    file = Path(args.data_dir) / "meshes" / f"{args.mesh}.graph"
    mesh = with_laplacian(largest_component(read_edges(file)), 4, seed=args.seed)
    states = waves(mesh, runs, args.seed)
    parts = graphs(mesh, mesh.num_nodes // 10, args.seed)
    print(mesh, *(f"{name}: {parts[name]}" for name in ("up", "across", "down")), sep="\n")
    train, test = jnp.asarray(states[: -runs // 4]), jnp.asarray(states[-runs // 4 :])
    scale = jnp.diff(train, axis=1).std(axis=(0, 1, 2))

    model = Forecast(parts["grid"].shape[1], width, depth, nnx.Rngs(args.seed))
    definition, weights = nnx.split(model)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, steps // 20 + 1, steps))
    state, key = optimizer.init(weights), jax.random.key(args.seed)

    @jax.jit
    def step(weights, state, parts, key):
        run, leap = jax.random.split(key)
        now = train[jax.random.randint(run, (), 0, len(train))]
        at = jax.random.randint(leap, (), 0, LEAPS)
        change = (now[at + 1] - now[at]) / scale

        def loss(weights):
            return jnp.square(nnx.merge(definition, weights)(parts, now[at]) - change).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, value

    @jax.jit
    def forecast(weights, parts, start):
        """[LEAPS, N, 2], each leap from the one before."""

        def leap(now, _):
            now = now + scale * nnx.merge(definition, weights)(parts, now)
            return now, now

        return jax.lax.scan(leap, start, length=LEAPS)[1]

    for i in range(steps):
        weights, state, loss = step(weights, state, parts, jax.random.fold_in(key, i))
        if (i + 1) % max(1, steps // 8) == 0:
            print(f"step {i + 1:5}: loss {loss:.4f} (1: nothing changes)")
    found = jnp.stack([forecast(weights, parts, run[0]) for run in test])
    print("RMSE of u after     forecast   a state that stays   0 everywhere")
    for leap in (1, 2, 4, 8):
        wrong = [found[:, leap - 1] - test[:, leap], test[:, 0] - test[:, leap], test[:, leap]]
        errors = [float(jnp.sqrt(jnp.square(w[..., 0]).mean())) for w in wrong]
        print(f"{leap * LEAP:4} steps {errors[0]:17.4f} {errors[1]:12.4f} {errors[2]:19.4f}")
    print(f"{time.perf_counter() - begun:.0f} s")
    picture(args.picture, parts["grid"], np.asarray(test[0, 4]), np.asarray(found[0, 3]))


def picture(path, place, truth, found):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axes, title, u in zip(both, ("truth", "forecast"), (truth, found), strict=True):
        limit = np.abs(truth[:, 0]).max()
        axes.scatter(*place[:, :2].T, c=u[:, 0], s=4, cmap="RdBu", vmin=-limit, vmax=limit)
        axes.set(title=f"{title}, after {4 * LEAP} steps")
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
