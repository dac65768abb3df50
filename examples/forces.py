"""Energies and forces of molecules: SchNet, whose forces are the gradient of its energy.

    pip install rdkit && python examples/forces.py --data-dir ../shared/data

Schütt et al., "SchNet: A continuous-filter convolutional neural network for modeling quantum
interactions" (2017). Their arithmetic: an atom's features begin with its element's; a step adds
`W2 ssp(W1 sum over (u -> v) of (W h[u]) * filter(|x[u] - x[v]|) + b)`, whose filter is a network of
Gaussians of the distance (section 3.1); the energy is a sum over atoms, forces are its negative
gradient (section 3.2), and the loss has both (section 4). Training differentiates forces again.

Where this differs: filters end smoothly at 5 Angstrom, edges are found inside `jit`, and the
features are 64 wide. The shared molecules have no quantum chemistry: what is learned is MMFF94
(Halgren 1996), a published force field, as RDKit computes it. Each molecule is relaxed by it and
then shaken: places differ by 0.05 Angstrom. The energy is that above the relaxed molecule's.

Ends with errors of energies and forces on molecules that were not seen, beside the constants that
are best, and with a picture of both along training.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import gnnjit
from gnnjit.geometry import RadiusSearch

CUTOFF, GAUSSIANS = 5.0, 32  # Angstrom, and how many tell distances
SHAKE, COPIES = 0.05, 4  # Angstrom, of each coordinate; shaken copies of each molecule


def shaken(path, molecules, seed):
    """Element, place [A, 3], energy in kcal/mol and forces, copies of a molecule one after the
    other, each padded to as many atoms as the largest molecule has."""
    from rdkit import Chem, RDLogger
    from rdkit.Chem import AllChem

    RDLogger.DisableLog("rdApp.*")
    rng, found = np.random.default_rng(seed), []
    for molecule in Chem.SDMolSupplier(str(path), removeHs=False):
        parameters = molecule and AllChem.MMFFGetMoleculeProperties(molecule)
        if not parameters or len(found) == molecules * COPIES:
            continue  # RDKit takes it for no molecule, or MMFF94 does not know its atoms
        field = AllChem.MMFFGetMoleculeForceField(molecule, parameters)
        if field.Minimize(maxIts=2000) or molecule.GetNumAtoms() < 2:
            continue
        least, element = field.CalcEnergy(), [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
        relaxed = np.array(field.Positions()).reshape(-1, 3)
        for _ in range(COPIES):
            place = relaxed + SHAKE * rng.normal(size=relaxed.shape)
            flat = place.ravel().tolist()
            energy, forces = field.CalcEnergy(flat) - least, -np.array(field.CalcGrad(flat))
            found.append((element, place, energy, forces.reshape(-1, 3)))
    most = max(len(element) for element, *_ in found)
    data = {
        "element": np.stack([np.pad(element, (0, most - len(element))) for element, *_ in found]),
        "energy": np.array([energy for _, _, energy, _ in found], np.float32),
    }
    for name, at in (("place", 1), ("force", 3)):
        rows = [np.pad(one[at], ((0, most - len(one[at])), (0, 0))) for one in found]
        data[name] = np.stack(rows).astype(np.float32)
    return data


def ssp(x):
    """The shifted softplus of section 3.1."""
    return jax.nn.softplus(x) - np.log(2)


class Interaction(nnx.Module):
    """One step, a continuous-filter convolution."""

    def __init__(self, width, rngs):
        self.of_neighbour = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.first = nnx.Linear(GAUSSIANS, width, rngs=rngs)
        self.second = nnx.Linear(width, width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)

    @gnnjit.layer
    def __call__(self, v, e):
        """Two atoms are as far from one another both ways: the filter is computed once for both."""
        apart = jnp.sqrt(jnp.square(v["place"] - e.src["place"]).sum() + 1e-12)
        centres = jnp.linspace(0, CUTOFF, GAUSSIANS)
        told = jnp.exp(-jnp.square((apart - centres) * GAUSSIANS / CUTOFF))
        ends = jnp.where(apart < CUTOFF, jnp.square(jnp.cos(np.pi / 2 * apart / CUTOFF)), 0)
        weight = ends * self.second(ssp(self.first(told)))
        gathered = gnnjit.sum(weight * self.of_neighbour(e.src["h"]))
        return v["h"] + self.out(ssp(self.hidden(gathered)))


class SchNet(nnx.Module):
    """The energies of molecules, [molecules], in units of their deviation."""

    def __init__(self, elements, width, steps, rngs):
        self.embedding = nnx.Embed(elements, width, rngs=rngs)
        self.steps = nnx.List([Interaction(width, rngs) for _ in range(steps)])
        self.hidden = nnx.Linear(width, width // 2, rngs=rngs)
        self.out = nnx.Linear(width // 2, 1, rngs=rngs)

    def __call__(self, graph, element, place, molecules):
        h = self.embedding(element)
        for step in self.steps:
            h = step(graph, {"h": h, "place": place})
        of_atoms = jnp.where(element > 0, self.out(ssp(self.hidden(h)))[:, 0], 0)
        return of_atoms.reshape(molecules, -1).sum(axis=1)


class Potential:
    """A model for molecules of these sizes: energies, forces, and a step of training."""

    def __init__(self, data, part, batch, width, depth, seed):
        self.batch = batch
        elements = int(data["element"].max()) + 1
        model = SchNet(elements, width, depth, nnx.Rngs(seed))
        self.definition, self.weights = nnx.split(model)
        self.mean, self.unit = data["energy"][part].mean(), data["energy"][part].std()
        self.owner = np.repeat(np.arange(batch, dtype=np.int32), data["element"].shape[1])
        # The largest molecules, so that all others fit too.
        largest = np.argsort((data["element"] == 0).sum(axis=1), kind="stable")[:batch]
        one = {name: rows[largest] for name, rows in data.items()}
        self.search = RadiusSearch.fit(
            one["place"].reshape(-1, 3) / 2, CUTOFF, graph_index=self.owner,
            mask=one["element"].reshape(-1) > 0, slack=1,
        )  # fmt: skip

    def __call__(self, weights, some):
        """Energies [batch] and forces [batch, A, 3], and whether all edges were found."""
        element, place = some["element"].reshape(-1), some["place"].reshape(-1, 3)
        found = self.search(place, graph_index=self.owner, mask=element > 0)
        model = nnx.merge(self.definition, weights)

        def energy(place):
            energies = self.unit * model(found.graph, element, place, self.batch) + self.mean
            return energies.sum(), energies

        gradient, energies = jax.grad(energy, has_aux=True)(place)
        return energies, -gradient.reshape(some["place"].shape), found.overflow

    def trainer(self, optimizer):
        def step(weights, state, some):
            def loss(weights):
                energies, forces, overflow = self(weights, some)
                atoms = (some["element"] > 0).sum()
                wrong = jnp.square(energies - some["energy"]).mean() / self.unit**2
                force = jnp.square(forces - some["force"]).sum() / (3 * atoms) / self.unit**2
                return jnp.where(overflow, jnp.nan, 0.01 * wrong + force)

            value, gradient = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(gradient, state, weights)
            return optax.apply_updates(weights, updates), state, value

        return jax.jit(step)

    def errors(self, weights, data, part):
        """Mean absolute errors of energies and of forces, by component."""
        run = jax.jit(self.__call__)
        energy, force, atoms = [], [], 0
        for start in range(0, len(part) - self.batch + 1, self.batch):
            some = {name: rows[part[start : start + self.batch]] for name, rows in data.items()}
            energies, forces, _ = run(weights, some)
            energy.append(np.abs(energies - some["energy"]).mean())
            force.append(np.abs(forces - some["force"]).sum())
            atoms += int((some["element"] > 0).sum())
        return float(np.mean(energy)), float(np.sum(force)) / (3 * atoms)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=".", help="a folder with molecules")
    parser.add_argument("--steps", type=int, default=1000, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="forces.png", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="tiny, in seconds")
    args = parser.parse_args()
    width, depth, batch, steps, molecules = (64, 3, 16, args.steps, 1000)
    if args.smoke:
        width, depth, batch, steps, molecules = 8, 1, 4, 8, 20

    begun = time.perf_counter()
    data = shaken(Path(args.data_dir) / "molecules" / "gdb1k.sdf", molecules, args.seed)
    rng = np.random.default_rng(args.seed)
    order = rng.permutation(len(data["energy"]) // COPIES)
    parts = np.split(order, [int(0.8 * len(order)), int(0.9 * len(order))])
    # All copies of a molecule are in one part.
    train, val, test = (np.add.outer(part * COPIES, np.arange(COPIES)).ravel() for part in parts)
    print(f"{len(order)} molecules of up to {data['element'].shape[1]} atoms, {COPIES} copies each")
    world = Potential(data, train, batch, width, depth, args.seed)
    schedule = optax.warmup_cosine_decay_schedule(0, 2e-3, steps // 20 + 1, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    step, weights, state = world.trainer(optimizer), world.weights, optimizer.init(world.weights)
    along = []
    for i in range(steps):
        chosen = rng.choice(train, batch, replace=False)
        some = {name: rows[chosen] for name, rows in data.items()}
        weights, state, _ = step(weights, state, some)
        if (i + 1) % max(1, steps // 10) == 0:
            along.append((i + 1, *world.errors(weights, data, val)))
            print("step {:5}: validation, energy {:.3f}, forces {:.3f}".format(*along[-1]))
    energy, force = world.errors(weights, data, test)
    atoms = data["element"][test] > 0
    constant = np.abs(data["energy"][test] - np.median(data["energy"][train])).mean()
    still = np.abs(data["force"][test][atoms]).mean()
    print("mean absolute error on test       SchNet   a constant")
    print(f"energy, kcal/mol              {energy:10.3f} {constant:12.3f}")
    print(f"forces, kcal/mol/Angstrom     {force:10.3f} {still:12.3f}")
    print(f"{time.perf_counter() - begun:.0f} s")
    picture(args.picture, np.array(along), constant, still)


def picture(path, along, constant, still):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure, both = pyplot.subplots(1, 2, figsize=(9, 4))
    names = ("energy, kcal/mol", "forces, kcal/mol/Å")
    for axes, name, errors, best in zip(both, names, along.T[1:], (constant, still), strict=True):
        axes.semilogy(along[:, 0], errors, label="SchNet")
        axes.axhline(best, color="black", linewidth=0.5, label="a constant")
        axes.set(xlabel="step", ylabel="mean absolute error", title=name)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
