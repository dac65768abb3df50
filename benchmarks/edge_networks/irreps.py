"""NequIP with e3nn-jax, whose functions run inside a layer as they are.

Batzner et al., "E(3)-equivariant graph neural networks for data-efficient and accurate interatomic
potentials" (2022), figure 1: F scalars, F vectors and F tensors of l = 2 of each vertex, as one row
`[9 F]`. Without species. The loss is one of forces.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import gnnjit
from edge_networks.network import (
    BLOCKS,
    Arrays,
    Inputs,
    Network,
    Shapes,
    mean_square,
    product,
    segment_sum,
    sum_both_ways,
)

WAVES = 8
HIDDEN = 64
CUTOFF = 6.0
NEIGHBOURS = 10
"""Sums are divided by about the square root of the number of neighbours."""


@functools.cache
def _irreps(f: int) -> Any:
    import e3nn_jax as e3nn

    return (f * e3nn.Irreps("0e + 1o + 2e")).regroup()


@functools.cache
def _of_messages(f: int) -> Any:
    import jax
    import jax.numpy as jnp

    shapes = jax.eval_shape(_angular, jnp.zeros(9 * f), jnp.zeros(3))
    return shapes.irreps


@functools.cache
def _linear(f: int, name: str) -> Any:
    """A linear map: before the messages, after their sum, or of what a vertex keeps. There are two
    scalars more for each gate."""
    import e3nn_jax as e3nn

    gated = (_irreps(f) + e3nn.Irreps(f"{2 * f}x0e")).regroup()
    before = _of_messages(f) if name == "after" else _irreps(f)
    after = _irreps(f) if name == "before" else gated
    return e3nn.FunctionalLinear(before, after, gradient_normalization="element")


def _paths(f: int, name: str) -> list[tuple[int, ...]]:
    return [path.path_shape for path in _linear(f, name).instructions]


def _shapes(f: int) -> Shapes:
    radial = {"r1": (WAVES, HIDDEN), "r2": (HIDDEN, HIDDEN),
              "r3": (HIDDEN, _of_messages(f).num_irreps)}  # fmt: skip
    names = ("before", "after", "kept")
    return radial | {f"{n}{i}": s for n in names for i, s in enumerate(_paths(f, n))}


def _mapped(p: Arrays, f: int, name: str, x: Any) -> Any:
    """Of one row or of several."""
    import e3nn_jax as e3nn
    import jax

    linear = _linear(f, name)
    weights = [p[f"{name}{i}"] for i in range(len(linear.instructions))]
    x = e3nn.IrrepsArray(linear.irreps_in, x)
    each = functools.partial(linear, weights)
    return each(x) if x.ndim == 1 else jax.vmap(each)(x)


def _angular(x: Any, step: Any) -> Any:
    """The products of what a source says with the spherical harmonics of the edge."""
    import e3nn_jax as e3nn

    kept = "0e + 1o + 2e"
    x = e3nn.IrrepsArray(_irreps(x.shape[-1] // 9), x)
    step = e3nn.IrrepsArray("1o", step)
    harmonics = e3nn.spherical_harmonics([1, 2], step, True, normalization="component")
    products = e3nn.tensor_product(x, harmonics, filter_ir_out=kept)
    return e3nn.concatenate([x.filter(kept), products]).regroup()


def _radial(p: Arrays, step: Any) -> Any:
    """A weight for each of a message's irreps."""
    import e3nn_jax as e3nn
    import jax

    distance = e3nn.norm(e3nn.IrrepsArray("1o", step)).array[..., 0]
    smooth = e3nn.poly_envelope(5, 2, CUTOFF)(distance)[..., None]
    waves = e3nn.bessel(distance, WAVES, CUTOFF) * smooth
    return jax.nn.silu(jax.nn.silu(waves @ p["r1"]) @ p["r2"]) @ p["r3"]


def _update(p: Arrays, x: Any, total: Any) -> Any:
    import e3nn_jax as e3nn

    f = x.shape[-1] // 9
    after = _mapped(p, f, "after", total / math.sqrt(NEIGHBOURS))
    return {"x": e3nn.gate(after + _mapped(p, f, "kept", x)).array}


@gnnjit.layer
def _step(v: Any, e: Any, p: Arrays) -> Any:
    step = v["r"] - e.src["r"]
    up = _mapped(p, e.src["x"].shape[-1] // 9, "before", e.src["x"])
    message = _angular(up.array, step) * _radial(p, step)
    return _update(p, v["x"], gnnjit.sum(message.array))


def _layer(p: Arrays, state: Arrays, i: Inputs) -> Any:
    return _step(i.graph, {"x": state["x"], "r": i.r}, p)


def _up(p: Arrays, state: Arrays) -> Any:
    return _mapped(p, state["x"].shape[-1] // 9, "before", state["x"]).array


def _plain(p: Arrays, state: Arrays, i: Inputs) -> Any:
    """Split already: what a source is multiplied with reads nothing else."""
    step = i.r[i.dst] - i.r[i.src]
    message = _angular(_up(p, state)[i.src], step) * _radial(p, step)
    return _update(p, state["x"], segment_sum(message.array, i))


def _split(p: Arrays, state: Arrays, i: Inputs) -> Any:
    """Weights once for each pair."""
    up, step = _up(p, state), i.r[i.pair_dst] - i.r[i.pair_src]
    weights = _radial(p, step)
    total = sum_both_ways(lambda a, b, sign: (_angular(up[a], sign * step) * weights).array, i)
    return _update(p, state["x"], total)


def _flops(n: int, e: int, f: int) -> float:
    """Linear maps of vertices; of pairs, the radial network. Tensor products are not counted.

    Each product once forward and once for the forces, and twice as many for the gradient: 6. 3 for
    those of the first block that no position reaches, and 5 for the first of the radial network,
    whose gradient to the positions is not asked for at the end.
    """

    def rows(name: str, times: int) -> float:
        linear = _linear(f, name)
        return sum(
            product(n * linear.irreps_in[path.i_in].ir.dim, *path.path_shape, times=times)
            for path in linear.instructions
        )

    pairs, outer = e // 2, _of_messages(f).num_irreps
    radial = product(pairs, WAVES, HIDDEN, times=5)
    radial += product(pairs, HIDDEN, HIDDEN + outer, times=6)
    both = rows("before", 6) + rows("after", 6) + rows("kept", 6) + radial
    return BLOCKS * both - rows("before", 3) - rows("kept", 3)


def _energy(p: Arrays, state: Arrays) -> Any:
    """The sum of the vertices' energies."""
    return mean_square(state) * len(state["x"])


NEQUIP = Network(
    _shapes, lambda f: {"x": (9 * f,)}, _layer, _plain, _split, _flops,
    finish=_energy, narrower=8, forces=True, both_ways=True,
)  # fmt: skip
