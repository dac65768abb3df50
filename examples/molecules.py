"""Properties of molecules: solubility, energy of hydration and lipophilicity, by GINE.

    pip install rdkit && python examples/molecules.py --data-dir ../shared/data

Hu, Liu et al., "Strategies for Pre-training Graph Neural Networks" (2020), section 5.1 and appendix
A: a step adds to an atom's features those of its neighbours, each with the features of the bond,
`MLP((1 + eps) h[v] + sum over (u -> v) of relu(h[u] + W e[u, v]))`. One more MLP reads the sum over
a molecule's atoms (Xu et al. 2019, section 4.2). Sets, random splits of 80, 10 and 10 % and the
error are those of Wu et al., "MoleculeNet" (2018), section 3; their figures stand beside ours.

Where this differs: layers are normalised and residual, no weights are pre-trained, atoms have the
features of `gnnjit.data.molecules`, and sums are of the atoms, divided by a constant.

Ends with the error (RMSE) on molecules that were not seen, and a picture of what is predicted.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from gnnjit import Graph, nn
from gnnjit.data import open_dataset

# Wu et al. 2018, section 5: RMSE on random splits of a graph convolution and of the MPNN.
LITERATURE = {"esol": (0.97, 0.58), "freesolv": (1.40, 1.15), "lipophilicity": (0.655, 0.719)}
UNITS = {"esol": "log mol/l", "freesolv": "kcal/mol", "lipophilicity": "log D"}
BONDS = 4


class Property(nnx.Module):
    """A number for each molecule."""

    def __init__(self, features, width, layers, rngs):
        self.encode = nnx.Linear(features, width, rngs=rngs)
        self.layers = nnx.List(
            [
                nn.GINE(width, 2 * width, width, edge_features=BONDS, rngs=rngs)
                for _ in range(layers)
            ]
        )
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(layers)])
        self.dropout = nnx.Dropout(0.1)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, batch, count, key=None):
        h = self.encode(batch["x"])
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = h + jax.nn.relu(norm(layer(batch["graph"], h, edges=batch["bonds"])))
        # Atoms that are padding belong to molecule `count`, which is dropped.
        pooled = jax.ops.segment_sum(h, batch["molecule"], num_segments=count + 1)[:count] / 10
        if key is not None:
            pooled = self.dropout(pooled, deterministic=False, rngs=key)
        return self.out(jax.nn.relu(self.hidden(pooled)))[:, 0]


def as_batch(data, molecules, atoms, bonds):
    """These molecules as one graph, padded to so many atoms and bonds."""
    part = data.select(molecules)
    more, missing = atoms - part.num_nodes, bonds - part.num_edges
    ends = [np.pad(end, (0, missing)) for end in (part.src, part.dst)]
    graph = Graph.from_edges(*ends, num_nodes=atoms, edge_mask=np.arange(bonds) < part.num_edges)
    return {
        "graph": graph,
        "x": np.pad(part.x, ((0, more), (0, 0))),
        "bonds": np.pad(np.eye(BONDS, dtype=np.float32)[part.edge_label], ((0, missing), (0, 0))),
        "molecule": np.pad(part.node_graph, (0, more), constant_values=len(part)),
        "y": part.y[:, 0],
    }


def split(data, steps, size, seed):
    """Training, validation and test molecules, and the batches to train on, [steps, size]."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    train, val, test = np.split(order, [int(0.8 * len(data)), int(0.9 * len(data))])
    epochs = -(-steps * size // len(train))
    drawn = np.concatenate([rng.permutation(train) for _ in range(epochs)])
    return train, val, test, drawn[: steps * size].reshape(steps, size)


def fit(data, splits, args, width, layers, size):
    """For each split the test RMSE where that of validation is least, and the predictions there."""
    sizes = [np.diff(data.node_offsets), np.diff(data.edge_offsets)]
    most = [max(int(s[batches].sum(axis=1).max()) for *_, batches in splits) for s in sizes]
    definition, weights = nnx.split(Property(data.num_features, width, layers, nnx.Rngs(args.seed)))
    schedule = optax.warmup_cosine_decay_schedule(0, 2e-3, args.steps // 20 + 1, args.steps)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-2)
    )

    @jax.jit
    def step(weights, state, batch, key, mean, std):
        def loss(weights):
            model = nnx.merge(definition, weights)
            predicted = model(batch, size, key)
            return jnp.square(predicted - (batch["y"] - mean) / std).mean()

        gradient = jax.grad(loss)(weights)
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state

    @jax.jit
    def predict(weights, batch):
        return nnx.merge(definition, weights)(batch, len(batch["y"]))

    results = []
    for number, (train, val, test, batches) in enumerate(splits):
        mean, std = data.y[train].mean(), data.y[train].std()
        seed = args.seed + number
        model = Property(data.num_features, width, layers, nnx.Rngs(seed))
        weights = nnx.split(model)[1]
        state, key = optimizer.init(weights), jax.random.key(seed)
        # Both in one batch, of one size for all splits.
        rest = as_batch(data, np.concatenate([val, test]), *(_held_out(s, splits) for s in sizes))
        best = (np.inf, np.inf, None)
        for i, molecules in enumerate(batches):
            batch = as_batch(data, molecules, *most)
            weights, state = step(weights, state, batch, jax.random.fold_in(key, i), mean, std)
            if (i + 1) % 50 == 0 or i + 1 == len(batches):
                found = mean + std * np.asarray(predict(weights, rest))
                wrong = np.square(found - rest["y"])
                of_val, of_test = (
                    float(np.sqrt(part.mean())) for part in (wrong[: len(val)], wrong[len(val) :])
                )
                if of_val < best[0]:
                    best = (of_val, of_test, (rest["y"][len(val) :], found[len(val) :]))
        results.append(best[1:])
        print(f"  {data.name}, split {number}: val RMSE {best[0]:.3f}, test RMSE {best[1]:.3f}")
    return results


def _held_out(sizes, splits):
    return max(int(sizes[np.concatenate([val, test])].sum()) for _, val, test, _ in splits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="a folder with molecules")
    parser.add_argument("--sets", nargs="+", choices=LITERATURE, default=list(LITERATURE))
    parser.add_argument("--splits", type=int, default=3, help="of each set")
    parser.add_argument("--steps", type=int, default=2000, help="of training, for each split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="molecules.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, layers, size = (8, 1, 16) if args.smoke else (64, 4, 64)
    if args.smoke:
        args.sets, args.splits, args.steps = args.sets[:1], 1, 10

    lines, shown = [], {}
    for name in args.sets:
        begun, data = time.perf_counter(), open_dataset(name, args.data_dir)
        print(data)
        splits = [split(data, args.steps, size, args.seed + i) for i in range(args.splits)]
        results = fit(data, splits, args, width, layers, size)
        errors, shown[name] = [error for error, _ in results], results[0][1]
        lines.append(
            f"{name:14} {np.mean(errors):.3f} ± {np.std(errors):.3f} {UNITS[name]:9} "
            f"{LITERATURE[name][0]:11.3f} {LITERATURE[name][1]:9.3f} {data.y.std():9.3f} "
            f"{time.perf_counter() - begun:8.0f}"
        )
    print("test RMSE      ours          in        graph conv.      MPNN deviation  seconds")
    print("\n".join(lines))
    picture(args.picture, shown)


def picture(path, shown):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, all_axes = pyplot.subplots(1, len(shown), figsize=(4 * len(shown), 4), squeeze=False)
    for axes, (name, (truth, found)) in zip(all_axes[0], shown.items(), strict=True):
        axes.plot(truth, found, ".", alpha=0.5)
        axes.axline((truth.mean(), truth.mean()), slope=1, color="black", linewidth=0.5)
        axes.set(title=name, xlabel=f"measured, {UNITS[name]}", ylabel="predicted")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
