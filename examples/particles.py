"""A simulator that is learned: GNS on three Lennard-Jones particles in a periodic box.

    pip install h5py && python examples/particles.py --data-dir ../shared/data

Sanchez-Gonzalez et al., "Learning to Simulate Complex Physics with Graph Networks" (2020). Their
arithmetic: a particle's features are its last velocities, an edge's the way between its ends, which
are within a radius of each other; an encoder, message-passing steps with residual connections that
share no weights, and a decoder give accelerations (sections 3.2, 4.2); a semi-implicit Euler step
moves the particles (section 3.1). Training looks one step ahead, from inputs with the noise of a
random walk, and the target makes up for the noise (section 4.3).

Where this differs: 64 wide and 2 steps, not 128 and 10. There is one trajectory to learn from, so
it is seen in all ways that its laws do not tell apart: the box mirrored, its axes swapped, and
backwards in time; and all axes are scaled alike. The radius is half of the box, not 3, so that a
particle meets one image of another. The first 60 steps are left out: the particles begin on top of
each other, and what drives them apart dwarfs all that follows. So do close encounters, and the loss
is therefore of absolute errors, not of squares. Steps are so short that velocities hardly differ:
the network is given the last one, and the scaled differences of the five.

Ends with the error of rollouts, beside particles that fly straight on, and with a picture of the
kinetic energy along a rollout.
"""

import argparse
import itertools
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gnnjit
from gnnjit.data import open_dataset
from gnnjit.geometry import RadiusSearch, displacement

HISTORY = 6  # positions that the model sees: five velocities
FAR = 100  # steps of the rollouts that are compared
SETTLED = 60  # steps until the particles are apart


def mlp(inputs, width, outputs, rngs, norm=True):
    """Two hidden layers and, where wanted, a normalised result: section 4.2."""
    sizes, layers = [inputs, width, width, outputs], []
    for pair in itertools.pairwise(sizes):
        layers += [nnx.Linear(*pair, rngs=rngs), jax.nn.relu]
    return nnx.Sequential(*layers[:-1], *([nnx.LayerNorm(outputs, rngs=rngs)] if norm else []))


class Interaction(nnx.Module):
    """One step of the processor: an interaction network with residual connections."""

    def __init__(self, width, rngs):
        self.edge = mlp(3 * width, width, width, rngs)
        self.node = mlp(2 * width, width, width, rngs)

    @gnnjit.layer
    def __call__(self, v, e):
        message = self.edge(jnp.concatenate([e.data, e.src, v]))
        return v + self.node(jnp.concatenate([v, gnnjit.sum(message)])), e.data + message


class Simulator(nnx.Module):
    """Accelerations, in units of their deviation, from positions."""

    def __init__(self, box, radius, scales, width, steps, rngs):
        self.box, self.radius, self.scales = box, radius, scales
        self.encode_node = mlp(3 * (HISTORY - 1), width, width, rngs)
        self.encode_edge = mlp(4, width, width, rngs)
        self.processor = nnx.List([Interaction(width, rngs) for _ in range(steps)])
        self.decode = mlp(width, width, 3, rngs, norm=False)

    @gnnjit.layer
    def edges(self, v, e):
        way = displacement(e.src, v, self.box) / self.radius
        return self.encode_edge(jnp.append(way, jnp.sqrt(jnp.square(way).sum())))

    def __call__(self, graph, positions):
        """`positions`: [HISTORY, N, 3]."""
        velocities = displacement(positions[1:], positions[:-1], self.box)
        seen = [velocities[-1] / self.scales[0], *jnp.diff(velocities, axis=0) / self.scales[1]]
        h = self.encode_node(jnp.concatenate(seen, axis=-1))
        e = self.edges(graph, positions[-1])
        for step in self.processor:
            h, e = step(graph, h, edges=e)
        return self.decode(h)


class World:
    """The data's box and scales, and what moves particles in it."""

    def __init__(self, data, width, depth, seed):
        self.box, self.count = float(data.box[0, 1] - data.box[0, 0]), data.num_particles
        self.radius = min(data.radius, self.box / 2)
        self.train = jnp.asarray(data.train[0][SETTLED:])
        velocity = self.way(self.train[:-1], self.train[1:])
        scale, self.acc_std = float(velocity.std()), float(jnp.diff(velocity, axis=0).std())
        scales = (scale, self.acc_std)
        model = Simulator(self.box, self.radius, scales, width, depth, nnx.Rngs(seed))
        self.definition, self.weights = nnx.split(model)

    def search(self, graphs):
        """Finds edges in so many boxes at once. All particles in one place: the most pairs."""
        owner = np.repeat(np.arange(graphs, dtype=np.int32), self.count)
        touching = jnp.zeros((len(owner), 3))
        fitted = RadiusSearch.fit(touching, self.radius, box=self.box, graph_index=owner, slack=1)
        return lambda x: fitted(x % self.box, graph_index=owner).graph

    def way(self, a, b):
        """From `a` to `b`."""
        return displacement(b, a, self.box)

    def windows(self, key, batch):
        """[HISTORY + 1, batch * N, 3]: parts of the trajectory, each seen in another way."""
        choice, swap, mirror, back = jax.random.split(key, 4)
        start = jax.random.randint(choice, (batch,), 0, len(self.train) - HISTORY)
        backwards = jax.random.bernoulli(back, shape=(batch,))
        flip = jax.random.bernoulli(mirror, shape=(batch, 3))

        def one(start, key, backwards, flip):
            window = jax.lax.dynamic_slice_in_dim(self.train, start, HISTORY + 1)
            window = jnp.where(backwards, window[::-1], window)[..., jax.random.permutation(key, 3)]
            return jnp.where(flip, self.box - window, window)

        keys = jax.random.split(swap, batch)
        return jnp.concatenate([*jax.vmap(one)(start, keys, backwards, flip)], axis=1)

    def trainer(self, optimizer, batch, noise):
        """A step of training: (weights, state, key) -> (weights, state, loss)."""
        search = self.search(batch)

        def step(weights, state, key):
            choice, walk = jax.random.split(key)
            windows = self.windows(choice, batch)
            drawn = noise / np.sqrt(HISTORY - 1) * jax.random.normal(walk, windows[1:-1].shape)
            added = jnp.cumsum(jnp.cumsum(drawn, axis=0), axis=0)  # of velocities, of positions
            seen = windows[:-1].at[1:].add(added)
            following = windows[-1] + added[-1]  # so that the next velocity is the true one
            change = self.way(seen[-1], following) - self.way(seen[-2], seen[-1])
            graph = search(seen[-1])

            def loss(weights):
                predicted = nnx.merge(self.definition, weights)(graph, seen)
                return jnp.abs(predicted - change / self.acc_std).mean()

            value, gradient = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(weights, updates), state, value

        return jax.jit(step)

    def simulation(self):
        """(weights, start, steps) -> [steps, N, 3], what follows [HISTORY, N, 3]."""
        search = self.search(1)

        def move(simulator, seen, _):
            acceleration = self.acc_std * simulator(search(seen[-1]), seen)
            following = seen[-1] + self.way(seen[-2], seen[-1]) + acceleration
            return jnp.concatenate([seen[1:], following[None]]), following

        @partial(jax.jit, static_argnames="steps")
        def simulate(weights, start, steps):
            simulator = nnx.merge(self.definition, weights)
            return jax.lax.scan(partial(move, simulator), start, length=steps)[1]

        return simulate

    def errors(self, truth, simulate):
        """Squared error of positions, the mean over ten rollouts."""
        found = []
        for at in np.linspace(HISTORY, len(truth) - FAR, 10).astype(int):
            way = self.way(simulate(truth[at - HISTORY : at]), truth[at : at + FAR])
            found.append([jnp.square(way[:20]).mean(), jnp.square(way).mean()])
        return "{:.2e} over 20 steps, {:.2e} over 100".format(*np.mean(found, axis=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="a folder with lagrange-lj3d")
    parser.add_argument("--steps", type=int, default=1500, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="particles.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, depth, batch, steps = (8, 1, 4, 16) if args.smoke else (64, 2, 32, args.steps)

    data, begun = open_dataset("lj3d", args.data_dir), time.perf_counter()
    print(data)
    world, truth = World(data, width, depth, args.seed), jnp.asarray(data.test[0])
    optimizer = optax.adam(optax.exponential_decay(1e-3, steps, 1e-2))
    step = world.trainer(optimizer, batch, noise=3e-6)
    simulate, key = world.simulation(), jax.random.key(args.seed)
    weights, state = world.weights, optimizer.init(world.weights)
    for i in range(steps):
        weights, state, loss = step(weights, state, jax.random.fold_in(key, i))
        if (i + 1) % max(1, steps // 8) == 0:
            said = world.errors(truth, partial(simulate, weights, steps=FAR))
            print(f"step {i + 1:5}: one-step loss {loss:.4f}, squared error {said}")
    ahead = jnp.arange(1, FAR + 1)[:, None, None]
    said = world.errors(truth, lambda seen: seen[-1] + ahead * world.way(seen[-2], seen[-1]))
    print(f"flying straight on: squared error {said}")

    length = FAR if args.smoke else len(truth) - HISTORY
    rollout = simulate(weights, truth[:HISTORY], steps=length)
    both = jnp.stack([truth[HISTORY:][:length], rollout])
    speeds = world.way(both[:, :-1], both[:, 1:]) / data.dt
    energy = np.asarray(0.5 * jnp.square(speeds).sum((2, 3)))
    print("kinetic energy: {:.3f} in truth, {:.3f} in the rollout".format(*map(np.mean, energy)))
    print(f"{time.perf_counter() - begun:.0f} s")
    picture(args.picture, data.dt * np.arange(len(energy[0])), *energy)


def picture(path, when, truth, found):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(when, truth, label="truth")
    axes.plot(when, found, "--", label="rollout")
    axes.set(xlabel="time", ylabel="kinetic energy", title="Three particles, learned")
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
