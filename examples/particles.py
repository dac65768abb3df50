"""A simulator that is learned: GNS on three Lennard-Jones particles in a periodic box.

    pip install h5py && python examples/particles.py --data-dir ../shared/data

Sanchez-Gonzalez et al., "Learning to Simulate Complex Physics with Graph Networks" (2020). Their
arithmetic: a particle's features are its last velocities, an edge's the way between its ends, which
are within a radius of each other; an encoder, message-passing steps with residual connections that
share no weights, and a decoder give accelerations (sections 3.2, 4.2); a semi-implicit Euler step
moves the particles (section 3.1). Training looks one step ahead, from inputs with the noise of a
random walk, and the target makes up for the noise (section 4.3).

Where this differs: 64 wide and 2 steps, not 128 and 10. The simulation had a thermostat, whose
friction no snapshot shows: it is read off the last ten accelerations. The network therefore sees
more of the past than five velocities, and predicts what the next acceleration adds to the mean of
those ten, as the original predicts what the next velocity adds to the last. The noise is so small
that it only keeps the network from reading more into rounded positions, and the target stays as it
is. There is one trajectory to learn from, so it is seen turned at random and backwards in time,
which its laws do not tell apart. The radius is half of the box, not 3, so that a particle meets one
image of another. The first 60 steps are left out: the particles begin on top of each other, and
what drives them apart dwarfs all that follows. So do close encounters, and the loss is therefore of
absolute errors, not of squares.

Ends with the error of rollouts, beside particles that fly straight on and such that keep their
acceleration, and with a picture of the kinetic energy along a rollout.
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

HISTORY = 12  # positions that the model sees: eleven velocities, ten accelerations
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
    """What the next accelerations add to the mean of the last ones, in units of its usual size."""

    def __init__(self, box, radius, scales, width, steps, rngs):
        self.box, self.radius, self.scales = box, radius, scales
        self.encode_node = mlp(3 * HISTORY, width, width, rngs)
        self.encode_edge = mlp(4, width, width, rngs)
        self.processor = nnx.List([Interaction(width, rngs) for _ in range(steps)])
        self.decode = mlp(width, width, 3, rngs, norm=False)

    @gnnjit.layer
    def edges(self, v, e, turn):
        way = displacement(e.src, v, self.box) @ turn / self.radius
        return self.encode_edge(jnp.append(way, jnp.sqrt(jnp.square(way).sum())))

    def __call__(self, graph, positions, turn):
        """`positions`: [HISTORY, N, 3], seen after the rotation `turn`, [3, 3]."""
        velocities, accelerations = motion(positions, self.box)
        mean = accelerations.mean(axis=0)
        seen = [velocities[-1], mean, *(accelerations - mean)]
        scales = [*self.scales, *self.scales[-1:] * (HISTORY - 3)]
        scaled = [x @ turn / scale for x, scale in zip(seen, scales, strict=True)]
        h = self.encode_node(jnp.concatenate(scaled, axis=-1))
        e = self.edges(graph, positions[-1], turn)
        for step in self.processor:
            h, e = step(graph, h, edges=e)
        return self.decode(h) @ turn.T


def motion(positions, box):
    """Velocities and accelerations along [T, N, 3], by differences: a step takes a unit of time."""
    velocities = displacement(positions[1:], positions[:-1], box)
    return velocities, jnp.diff(velocities, axis=0)


class World:
    """The data's box and scales, and what moves particles in it."""

    def __init__(self, data, width, depth, seed):
        self.box, self.count = float(data.box[0, 1] - data.box[0, 0]), data.num_particles
        self.radius = min(data.radius, self.box / 2)
        self.train = jnp.asarray(data.train[0][SETTLED:])
        velocities, found = motion(self.train, self.box)
        past = HISTORY - 2
        means = jnp.stack([found[i : i - past] for i in range(past)]).mean(axis=0)
        self.unit = float(jnp.abs(found[past:] - means).mean())
        scales = (float(velocities.std()), float(jnp.abs(found).mean()), self.unit)
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
        """[HISTORY + 1, batch * N, 3]: parts of the trajectory, some of them backwards."""
        choice, back = jax.random.split(key)
        start = jax.random.randint(choice, (batch,), 0, len(self.train) - HISTORY)
        backwards = jax.random.bernoulli(back, shape=(batch,))

        def one(start, backwards):
            window = jax.lax.dynamic_slice_in_dim(self.train, start, HISTORY + 1)
            return jnp.where(backwards, window[::-1], window)

        return jnp.concatenate([*jax.vmap(one)(start, backwards)], axis=1)

    def trainer(self, optimizer, batch, noise):
        """A step of training: (weights, state, key) -> (weights, state, loss)."""
        search = self.search(batch)

        def step(weights, state, key):
            choice, walk, about = jax.random.split(key, 3)
            windows = self.windows(choice, batch)
            target = motion(windows[-3:], self.box)[1][0]
            drawn = noise / np.sqrt(HISTORY - 1) * jax.random.normal(walk, windows[1:-1].shape)
            added = jnp.cumsum(jnp.cumsum(drawn, axis=0), axis=0)  # of velocities, of positions
            seen = windows[:-1].at[1:].add(added)
            adds = (target - motion(seen, self.box)[1].mean(axis=0)) / self.unit
            graph, turn = search(seen[-1]), jax.random.orthogonal(about, 3)

            def loss(weights):
                predicted = nnx.merge(self.definition, weights)(graph, seen, turn)
                return jnp.abs(predicted - adds).mean()

            value, gradient = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(weights, updates), state, value

        return jax.jit(step)

    def simulation(self):
        """(weights, start, steps) -> [steps, N, 3], what follows [HISTORY, N, 3]."""
        search = self.search(1)

        def move(simulator, seen, _):
            velocities, accelerations = motion(seen, self.box)
            adds = self.unit * simulator(search(seen[-1]), seen, jnp.eye(3))
            following = seen[-1] + velocities[-1] + accelerations.mean(axis=0) + adds
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
    schedule = optax.exponential_decay(1e-3, steps, 1e-2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    step = world.trainer(optimizer, batch, noise=3e-6)
    simulate, key = world.simulation(), jax.random.key(args.seed)
    weights, state = world.weights, optimizer.init(world.weights)
    for i in range(steps):
        weights, state, loss = step(weights, state, jax.random.fold_in(key, i))
        if (i + 1) % max(1, steps // 8) == 0:
            said = world.errors(truth, partial(simulate, weights, steps=FAR))
            print(f"step {i + 1:5}: one-step loss {loss:.4f}, squared error {said}")
    ahead = jnp.arange(1, FAR + 1)[:, None, None]

    def kept(share, seen):
        """With the last velocity, and this share of the last accelerations, all the way."""
        velocities, accelerations = motion(seen, world.box)
        bent = share * ahead * (ahead + 1) / 2 * accelerations.mean(axis=0)
        return seen[-1] + ahead * velocities[-1] + bent

    print(f"flying straight on: squared error {world.errors(truth, partial(kept, 0))}")
    print(f"accelerations stay: squared error {world.errors(truth, partial(kept, 1))}")

    length = FAR if args.smoke else 2 * FAR
    rollout = simulate(weights, truth[:HISTORY], steps=length)
    both = jnp.stack([truth[HISTORY:][:length], rollout])
    speeds = world.way(both[:, :-1], both[:, 1:]) / data.dt
    energy = np.asarray(0.5 * jnp.square(speeds).sum((2, 3)))
    print(f"{length} steps:", end=" ")
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
