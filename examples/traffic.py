"""Speeds on highways an hour ahead: DCRNN on the sensors of METR-LA.

    python examples/traffic.py --data-dir ../shared/data

Li et al., "Diffusion Convolutional Recurrent Neural Network: Data-Driven Traffic Forecasting"
(2018): a diffusion convolution sums `K` hops of random walks along the edges and against them
(equation 2); a GRU whose products are such convolutions (section 2.3) reads 12 measurements, and a
second one foretells the 12 that follow. The error is the mean absolute one after 15, 30 and 60
minutes, on the last fifth of the series (section 4.1).

The speeds are generated here unless `metr-la.h5` lies beside the other files (with h5py): the
authors' repository has the sensors and roads alone. Generated speeds have rush hours, and jams that
begin at random and move upstream. The paper's figures are those of the real speeds: on generated
ones, compare with the other rows.

Where this differs: one layer of 32 units, not two of 64; the decoder always reads what it said
before, without scheduled sampling.

Ends with these errors beside those of the same network without its graph, of the last measurement
and of the average at that time of the day, and with a picture.
"""

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gnnjit
from gnnjit import Graph
from gnnjit.data import open_dataset

DAY, STEPS = 288, 12  # measurements of a day, each five minutes; those that are read and foretold
PAPER = {"DCRNN": (2.77, 3.15, 3.60), "average at that time": (4.16, 4.16, 4.16)}


def generate(data, days, seed):
    """float32[days * DAY, N], miles per hour: jams move from a sensor to those before it."""
    rng, count = np.random.default_rng(seed), data.num_nodes
    share = data.weight / np.bincount(data.src, data.weight, minlength=count)[data.src]
    jam, rows = np.zeros(count), []
    size, peak = rng.uniform(0, 0.5, (2, count)), rng.normal([[8], [17.5]], 0.7, (2, count))
    for t in range(days * DAY):
        ahead = np.bincount(data.src, share * jam[data.dst], minlength=count)
        begins = rng.random(count) < 0.002
        jam = 0.45 * jam + 0.52 * ahead + begins * rng.uniform(0.5, 2, count)
        rush = (size * np.exp(-np.square(t % DAY * 24 / DAY - peak))).sum(axis=0)
        rows.append(65 - 50 * np.tanh(jam + rush) + rng.normal(0, 1, count))
    return np.array(rows, np.float32)


def walks(data):
    """The two random walks, each a graph and the weights of its edges; as in the authors' code,
    each sensor is joined to itself."""
    own = np.arange(data.num_nodes)
    src, dst = np.append(data.src, own), np.append(data.dst, own)
    weight = np.append(data.weight, np.ones(len(own), np.float32))
    found = []
    for here, there in ((src, dst), (dst, src)):
        share = weight / np.bincount(here, weight)[here]
        found.append((Graph.from_edges(there, here, len(own)), jnp.asarray(share, jnp.float32)))
    return found


@gnnjit.layer
def hop(v, e):
    """Of a random walk: `D^-1 W x`."""
    return gnnjit.sum(e.data * e.src)


class Diffusion(nnx.Module):
    """Equation 2: a product for each hop of each walk, and for the vertex itself."""

    def __init__(self, inputs, outputs, hops, rngs):
        self.hops = hops
        self.linear = nnx.Linear((2 * hops + 1) * inputs, outputs, rngs=rngs)

    def __call__(self, walks, x):
        terms = [x]
        for graph, share in walks:
            h = x
            for _ in range(self.hops):
                h = hop(graph, h, edges=share)
                terms.append(h)
        return self.linear(jnp.concatenate(terms, axis=-1))


class Cell(nnx.Module):
    """Section 2.3: a gated recurrent unit of diffusion convolutions."""

    def __init__(self, inputs, width, hops, rngs):
        self.gates = Diffusion(inputs + width, 2 * width, hops, rngs)
        self.state = Diffusion(inputs + width, width, hops, rngs)

    def __call__(self, walks, x, h):
        gates = jax.nn.sigmoid(self.gates(walks, jnp.concatenate([x, h], axis=-1)))
        reset, update = jnp.split(gates, 2, axis=-1)
        new = jnp.tanh(self.state(walks, jnp.concatenate([x, reset * h], axis=-1)))
        return update * h + (1 - update) * new


class Forecaster(nnx.Module):
    """Speeds of the steps that follow, scaled, [STEPS, N, B]."""

    def __init__(self, width, hops, rngs):
        self.width = width
        self.encoder, self.decoder = Cell(3, width, hops, rngs), Cell(3, width, hops, rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, walks, past, clock):
        """`past`: [STEPS, N, B]; `clock`: [2 * STEPS, N, B, 2], the time of the day."""

        def read(h, step):
            speed, when = step
            return self.encoder(walks, jnp.concatenate([speed[..., None], when], -1), h), None

        def say(carry, when):
            speed, h = carry
            h = self.decoder(walks, jnp.concatenate([speed[..., None], when], -1), h)
            speed = speed + self.out(h)[..., 0]
            return (speed, h), speed

        h = jnp.zeros((*past.shape[1:], self.width))
        h, _ = jax.lax.scan(read, h, (past, clock[:STEPS]))
        return jax.lax.scan(say, (past[-1], h), clock[STEPS:])[1]


def windows(series, first):
    """[2 * STEPS, N, B] from these rows on, and the time of the day."""
    rows = np.arange(2 * STEPS)[:, None] + first
    angle = 2 * np.pi * (rows % DAY) / DAY
    clock = np.stack([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)
    speeds = series[rows].swapaxes(1, 2)
    return speeds, np.broadcast_to(clock[:, None], (*speeds.shape, 2))


def fit(series, both, hops, args, width, steps, batch):
    """A function from (first rows) to speeds [STEPS, N, B] of a network that was trained."""
    end = int(0.7 * len(series))
    mean, std = np.nanmean(series[:end]), np.nanstd(series[:end])
    definition, weights = nnx.split(Forecaster(width, hops, nnx.Rngs(args.seed)))
    rate = optax.cosine_decay_schedule(1e-2, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(rate))
    state, rng = optimizer.init(weights), np.random.default_rng(args.seed)

    def run(weights, both, speeds, clock):
        past = jnp.nan_to_num((speeds[:STEPS] - mean) / std)
        return mean + std * nnx.merge(definition, weights)(both, past, clock)

    @jax.jit
    def step(weights, state, both, speeds, clock):
        def loss(weights):
            wrong = jnp.abs(run(weights, both, speeds, clock) - speeds[STEPS:])
            return jnp.nanmean(wrong)

        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    for i in range(steps):
        drawn = windows(series, rng.integers(0, end - 2 * STEPS, batch))
        weights, state, value = step(weights, state, both, *drawn)
        if (i + 1) % max(1, steps // 4) == 0:
            print(f"  step {i + 1:5}: mean absolute error {value:.3f}")
    predict = jax.jit(run)
    return lambda first: np.asarray(predict(weights, both, *windows(series, first)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="a folder with metr-la")
    parser.add_argument("--steps", type=int, default=120, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="traffic.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, steps, batch, days = (4, 4, 2, 3) if args.smoke else (32, args.steps, 16, 28)

    data, begun = open_dataset("metr-la", args.data_dir), time.perf_counter()
    real = data.series is not None
    if not real:
        data = dataclasses.replace(data, series=generate(data, days, args.seed))
    print(data, "" if real else "of generated speeds")
    series, both, found = data.series, walks(data), {}
    first = np.linspace(0.8 * len(series), len(series) - 2 * STEPS, 16 * batch).astype(int)
    for name, hops in (("DCRNN", 2), ("without its graph", 0)):
        print(f"{name}:")
        predict = fit(series, both, hops, args, width, steps, batch)
        parts = [predict(part) for part in first.reshape(-1, batch)]
        found[name] = np.concatenate(parts, axis=-1)
    rows = np.arange(STEPS, 2 * STEPS)[:, None] + first
    truth, train = series[rows].swapaxes(1, 2), series[: int(0.7 * len(series)) // DAY * DAY]
    usual = np.nanmean(train.reshape(-1, DAY, data.num_nodes), axis=0)
    found["average at that time"] = usual[rows % DAY].swapaxes(1, 2)
    found["last measurement"] = np.broadcast_to(series[first + STEPS - 1].T, truth.shape)

    print("mean absolute error in miles per hour     15 min  30 min  60 min")
    for name, speeds in found.items():
        errors = [np.nanmean(np.abs(speeds - truth)[at]) for at in (2, 5, 11)]
        print(f"{name:40} {errors[0]:7.2f} {errors[1]:7.2f} {errors[2]:7.2f}")
    for name, errors in PAPER.items():
        print("{:40} {:7.2f} {:7.2f} {:7.2f}".format(f"paper, real speeds: {name}", *errors))
    print(f"{time.perf_counter() - begun:.0f} s")
    picture(args.picture, truth, found)


def picture(path, truth, found):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, speeds in found.items():
        errors = np.nanmean(np.abs(speeds - truth), axis=(1, 2))
        axes.plot(5 * np.arange(1, STEPS + 1), errors, label=name)
    axes.set(xlabel="minutes ahead", ylabel="mean absolute error, mph")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
