"""Modules of e3nn-jax and Equinox inside a layer, beside the same over arrays of edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import gnnjit
from gnnjit.lower import cpu

RNG = np.random.default_rng(5)
SRC, DST = RNG.integers(0, 12, (2, 50))
G = gnnjit.Graph.from_edges(SRC, DST, num_nodes=12)
POSITIONS = jnp.asarray(RNG.normal(size=(12, 3)), jnp.float32)


def close(have: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(b).max() + 1))


@pytest.fixture
def e3nn():
    return pytest.importorskip("e3nn_jax")


class Convolution(linen.Module):
    """A block of NequIP, of one element or of all."""

    features: int

    @linen.compact
    def __call__(self, x: Any, steps: Any, ends: Any, total: Any) -> Any:
        import e3nn_jax as e3nn

        irreps = e3nn.Irreps(f"{self.features}x0e + {self.features}x1o + {self.features}x2e")
        up = ends(e3nn.flax.Linear(irreps, name="up")(x))
        harmonics = e3nn.spherical_harmonics([1, 2], steps, normalize=True)
        products = e3nn.tensor_product(up, harmonics, filter_ir_out=irreps)
        message = e3nn.concatenate([up, products]).regroup()
        distance = e3nn.norm(steps).array[..., 0]
        waves = e3nn.bessel(distance, 8, 4.0) * e3nn.poly_envelope(5, 2, 4.0)(distance)[..., None]
        widths = (16, message.irreps.num_irreps)
        network = e3nn.flax.MultiLayerPerceptron(widths, jax.nn.silu, output_activation=False)
        out = e3nn.flax.Linear(irreps + e3nn.Irreps(f"{2 * self.features}x0e"), name="down")
        return e3nn.gate(out(total(message * network(waves))))


class InLayer(linen.Module):
    features: int

    @linen.compact
    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> Any:
        import e3nn_jax as e3nn

        steps = e3nn.IrrepsArray("1o", v["r"] - e.src["r"])
        inner = Convolution(self.features, name="inner")
        return inner(e.src["x"], steps, lambda up: up, gnnjit.sum)


class OverArrays(linen.Module):
    features: int

    @linen.compact
    def __call__(self, x: Any, r: Any) -> Any:
        import e3nn_jax as e3nn

        steps = e3nn.IrrepsArray("1o", r[DST] - r[SRC])
        return Convolution(self.features, name="inner")(
            x, steps, lambda up: up[SRC], lambda m: e3nn.scatter_sum(m, dst=DST, output_size=12)
        )


@pytest.mark.parametrize("features", [4, pytest.param(20, marks=pytest.mark.long)])
def test_modules_of_e3nn_for_flax(e3nn, features):
    x = e3nn.normal(f"{features}x0e + {features}x1o + {features}x2e", jax.random.key(0), (12,))
    layer, arrays = InLayer(features), OverArrays(features)
    params = layer.init(jax.random.key(1), G, {"x": x, "r": POSITIONS})
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, arrays.init(jax.random.key(1), x, POSITIONS)
    )

    def energy(of: Any) -> Any:
        return lambda p, r: jnp.sum(jnp.tanh(of(p, r).array))

    of_layer = energy(lambda p, r: layer.apply(p, G, {"x": x, "r": r}))
    of_arrays = energy(lambda p, r: arrays.apply(p, x, r))

    def trained(f: Any) -> Any:
        """The gradient of a loss of energy and forces, and both."""

        def loss(p: Any) -> Any:
            found, forces = jax.value_and_grad(f, 1)(p, POSITIONS)
            return found + jnp.sum(forces**2), (found, forces)

        return jax.jit(jax.grad(loss, has_aux=True))

    close(trained(of_layer)(params), trained(of_arrays)(params))


@pytest.mark.long
def test_symmetric_contraction_of_mace(e3nn):
    """Batatia et al., "MACE" (2022), equation 10, to the second order, with matrices that the
    species of a vertex picks: it takes what the layer has summed."""
    irreps, features = e3nn.Irreps("0e + 1o"), 4
    every = e3nn.reduced_symmetric_tensor_product_basis(irreps, 2, keep_ir="0e + 1o")
    once = e3nn.reduced_symmetric_tensor_product_basis(irreps, 1, keep_ir="0e + 1o")
    pairs = [(u, v) for u, v in zip(every.chunks, once.chunks, strict=True)]
    shapes = [(3, u.shape[-2], features) for both in pairs for u in both]
    weights = [jnp.asarray(RNG.normal(size=s), jnp.float32) for s in shapes]
    species = jnp.asarray(RNG.integers(0, 3, 12))

    def contracted(total: Any, kind: Any, w: list[Any]) -> Any:
        found = []
        for k, (u, v) in enumerate(pairs):
            first = jnp.einsum("abki,kc,cb->cai", u, w[2 * k][kind], total)
            first += jnp.einsum("aki,kc->cai", v, w[2 * k + 1][kind])
            found.append(jnp.einsum("cai,ca->ci", first, total))
        return jnp.concatenate(found, -1)

    def message(x: Any, step: Any) -> Any:
        harmonics = e3nn.spherical_harmonics("0e + 1o", e3nn.IrrepsArray("1o", step), True)
        return x[:, None] * harmonics.array

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        total = gnnjit.sum(message(e.src["x"], v["r"] - e.src["r"]))
        return contracted(total, v["species"], w)

    def over_arrays(x: Any, r: Any, w: Any) -> Any:
        messages = jax.vmap(message)(x[SRC], r[DST] - r[SRC])
        total = jax.ops.segment_sum(messages, DST, 12)
        return jax.vmap(contracted, (0, 0, None))(total, species, w)

    def in_layer(x: Any, r: Any, w: Any) -> Any:
        return layer(G, {"x": x, "r": r, "species": species}, w)

    x = jnp.asarray(RNG.normal(size=(12, features)), jnp.float32)

    def loss(f: Any) -> Any:
        force = jax.grad(lambda r, x, w: jnp.sum(jnp.tanh(f(x, r, w))))
        return jax.jit(jax.grad(lambda w: jnp.sum(force(POSITIONS, x, w) ** 2)))

    close(jax.jit(in_layer)(x, POSITIONS, weights), over_arrays(x, POSITIONS, weights))
    close(loss(in_layer)(weights), loss(over_arrays)(weights))


def test_a_message_of_e3nn_has_a_kernel(e3nn):
    """Its envelope is a loop of a few steps, its coefficients are arrays under `jit`."""
    layer, n = InLayer(16), 3000
    graph = gnnjit.Graph.from_edges(*RNG.integers(0, n, (2, 10 * n)), num_nodes=n)
    x = e3nn.normal("16x0e + 16x1o + 16x2e", jax.random.key(0), (n,))
    given = graph, {"x": x, "r": jnp.ones((n, 3))}
    params = layer.init(jax.random.key(1), *given)
    if not cpu.why_no_row_sums(np.dtype(np.float32)):
        told = layer.apply(params, *given, method=lambda m, *some: gnnjit.explain(m, *some))
        assert {k.kernel for k in told[0].kernels} == {"cpu"}


def test_modules_of_equinox():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        network: Any
        norm: Any

        @gnnjit.layer
        def __call__(self, v: Any, e: Any) -> Any:
            total = gnnjit.sum(self.network(jnp.concatenate([v, e.src])))
            return self.norm(v + jnp.tanh(total))

        def over_arrays(self, x: Any) -> Any:
            messages = jax.vmap(self.network)(jnp.concatenate([x[DST], x[SRC]], -1))
            total = jax.ops.segment_sum(messages, DST, 12)
            return jax.vmap(self.norm)(x + jnp.tanh(total))

    network = eqx.nn.MLP(6, 3, 16, 2, key=jax.random.key(0))
    block = Block(network, eqx.nn.LayerNorm(3))
    given = block, POSITIONS
    weights = jnp.arange(36.0).reshape(12, 3)
    have = eqx.filter_grad(lambda b, x: jnp.sum(weights * b(G, x)))(*given)
    want = eqx.filter_grad(lambda b, x: jnp.sum(weights * b.over_arrays(x)))(*given)
    close(have, want)
