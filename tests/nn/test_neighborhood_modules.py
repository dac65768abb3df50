"""Modules on hierarchical dependency graphs against naive enumeration, in value and gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from neighborhood.naive import in_neighbors, instances, movies

import gnnjit
from gnnjit import neighborhood
from gnnjit.errors import LayerError
from gnnjit.nn import MAGNN, PGNN, JKNet, PinSage
from gnnjit.nn.recipes import MetapathClassifier

GRAPH = gnnjit.Graph.from_edges(
    [0, 1, 2, 0, 3, 4, 5, 1, 2, 2], [1, 2, 0, 3, 4, 5, 0, 1, 3, 3], num_nodes=7
)
"""Two circles that share vertex 0, a self loop, an edge twice, an isolated vertex."""

MOVIES = movies()
PATHS = [["m", "d", "m"], ["m", "a", "m"], ["m", "a", "m", "d", "m"]]


def randomised(module: Any) -> Any:
    """The module with random parameters, biases too."""
    graphdef, state = nnx.split(module)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), state)
    return nnx.merge(graphdef, state)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).normal(size=shape), jnp.float32)


def far() -> np.ndarray:
    """`[root, vertex]`: edges from the vertex to the root; inf without a path."""
    size, into = GRAPH.num_nodes, in_neighbors(GRAPH)
    found = np.where(np.eye(size), 0.0, np.inf)
    for _ in range(size):
        for root in range(size):
            for u in into[root]:
                found[root] = np.minimum(found[root], found[u] + 1)
    return found


def assert_same(module: Any, run: Any, plain: Any, x: Any) -> None:
    """Values, and gradients by parameters and features, of two functions of a module and `x`."""
    graphdef, state = nnx.split(module)

    def found(fn: Any) -> Any:
        def loss(state: Any, x: Any) -> Any:
            out = fn(nnx.merge(graphdef, state), x)
            return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(out)), out

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(state, x)

    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, found(run), found(plain))


@pytest.mark.parametrize("jump", ["max", "concat", "attention"])
def test_jk_net(jump: Any) -> None:
    hops, distance = 3, far()
    weights = np.stack([distance == i for i in range(hops + 1)]).astype(np.float32)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1)

    def plain(m: Any, x: Any) -> Any:
        h = jax.nn.relu(jnp.einsum("kvu,uf,kfo->vko", weights, x, m.kernel[...]) + m.bias[...])
        if jump == "max":
            return h.max(1)
        if jump == "concat":
            return h.reshape(7, -1)
        weight = jax.nn.softmax(h @ m.query[...], axis=1)
        return jnp.sum(weight[..., None] * h, axis=1)

    module = randomised(JKNet(4, 3, hops=hops, jump=jump, rngs=nnx.Rngs(0)))
    hdg = neighborhood.hops(GRAPH, hops)
    assert_same(module, lambda m, x: m(hdg, x), plain, normal(7, 4))


@pytest.mark.parametrize("weighted", [True, False])
def test_pinsage(weighted: bool) -> None:
    walks = neighborhood.random_walks(GRAPH, num_walks=4, length=3, top_k=2)
    level = walks.levels[0]
    matrix = np.zeros((7, 7), np.float32)
    share = np.asarray(walks.edges[0]) if weighted else 1 / np.asarray(level.in_degree)[level.dst]
    np.add.at(matrix, (np.asarray(level.dst), np.asarray(level.src)), share)

    def plain(m: Any, x: Any) -> Any:
        pooled = matrix @ jax.nn.relu(x @ m.message.kernel + m.message.bias)
        out = jnp.concatenate([x, pooled], axis=1) @ m.update.kernel + m.update.bias
        out = jax.nn.relu(out)
        length = jnp.sqrt(jnp.sum(out * out, axis=1, keepdims=True) + 1e-20)
        return out / length

    module = randomised(PinSage(4, 3, hidden=5, rngs=nnx.Rngs(0)))
    assert_same(module, lambda m, x: walks(x, m) if weighted else m(level, x), plain, normal(7, 4))


@pytest.mark.parametrize(
    ("encoder", "relations"),
    [
        pytest.param("mean", None, marks=pytest.mark.long),
        ("rotation", None),
        ("rotation", [[1, -1], [2, -2], [2, -2, 1, -1]]),
    ],
)
def test_magnn(encoder: Any, relations: Any) -> None:
    hdg = neighborhood.metapaths(MOVIES, PATHS, cap=5)
    found = instances(hdg)
    longest = max(map(len, found.values()))
    at, real = np.zeros((6, 3, longest, 5), int), np.zeros((6, 3, longest), bool)
    length = np.array([3, 3, 5])
    for (root, path), some in found.items():
        real[root, path, : len(some)] = True
        at[root, path, : len(some), : length[path]] = np.reshape(some, (-1, length[path]))
    inside = (np.arange(5) < length[:, None]).astype(np.float32)

    def encoded(m: Any, z: Any) -> Any:
        """`o_j = z_j + o_{j-1} * r_j`, step by step, as complex numbers."""
        a, b = jnp.split(z[at], 2, axis=-1)
        angle = m.angle[...] if encoder == "rotation" else jnp.zeros((3, 4, 2))
        if relations is not None:
            first, second = angle
            none = jnp.zeros(2)
            angle = jnp.array([[first, -first, none, none], [second, -second, none, none],
                               [second, -second, first, -first]])  # fmt: skip
        turn = jnp.exp(1j * angle)
        o = (a + 1j * b)[..., 0, :]
        for j in range(1, 5):
            here = (a + 1j * b)[..., j, :] * inside[:, j][None, :, None, None]
            o = here + o * turn[None, :, None, j - 1]
        o = o / length[None, :, None, None]
        return jnp.concatenate([o.real, o.imag], axis=-1)

    def plain(m: Any, x: Any) -> Any:
        z = jnp.concatenate([x[t] @ m.linear[t].kernel + m.linear[t].bias for t in hdg.types])
        i = encoded(m, z)
        score = jnp.einsum("vf,phf->vph", z[:6], m.attend_root[...])[:, :, None]
        score = score + jnp.einsum("vpif,phf->vpih", i, m.attend_instance[...])
        weight = jax.nn.softmax(jax.nn.leaky_relu(score, 0.2), axis=2, where=real[..., None])
        weight = jnp.where(real[..., None], weight, 0)
        h = jax.nn.elu(jnp.einsum("vpih,vpif->vphf", weight, i)).reshape(6, 3, -1)
        s = jnp.tanh(h @ m.semantic.kernel + m.semantic.bias).mean(0) @ m.query[...]
        return jnp.einsum("p,vpf->vf", jax.nn.softmax(s), h) @ m.out.kernel + m.out.bias

    module = MAGNN(
        {"m": 3, "d": 2, "a": 5}, 3, hidden=4, heads=2, types=hdg.types, paths=3, longest=5,
        encoder=encoder, relations=relations, semantic_features=3, rngs=nnx.Rngs(0),
    )  # fmt: skip
    x = {"m": normal(6, 3), "d": normal(3, 2), "a": normal(4, 5)}
    assert_same(randomised(module), lambda m, x: m(hdg, x), plain, x)


@pytest.mark.long
def test_layers_of_magnn() -> None:
    paths = {"m": PATHS[:2], "d": [["d", "m", "d"]], "a": [["a", "m", "a"]]}
    hdgs = {t: neighborhood.metapaths(MOVIES, some) for t, some in paths.items()}
    classifier = MetapathClassifier(
        {"m": 3, "d": 2, "a": 5}, 3, hdgs=hdgs, target="m", hidden=4, heads=2, layers=2,
        rngs=nnx.Rngs(0),
    )  # fmt: skip

    def plain(m: Any, x: Any) -> Any:
        z = {t: x[t] @ m.encode[t].kernel + m.encode[t].bias for t in x}
        h = {t: jax.nn.elu(m.layers[0][t](hdgs[t], z)) for t in x}
        rows = m.decode.embed(hdgs["m"], h)
        return rows @ m.decode.out.kernel + m.decode.out.bias, rows

    x = {"m": normal(6, 3), "d": normal(3, 2), "a": normal(4, 5)}
    assert_same(randomised(classifier), lambda m, x: (m(hdgs, x), m.embed(hdgs, x)), plain, x)


def test_pgnn() -> None:
    sets, distance = [[5, 2], [6], [0, 1, 3]], far()
    near = np.array([[min(s, key=lambda u: distance[v, u]) for s in sets] for v in range(7)])
    closeness = 1 / (1 + np.take_along_axis(distance, near, axis=1))

    def plain(m: Any, x: Any) -> Any:
        own = jnp.broadcast_to(x[:, None], (7, 3, 4))
        both = jnp.concatenate([closeness[..., None] * x[near], own], axis=-1)
        message = jax.nn.relu(both @ m.message.kernel + m.message.bias)
        return message.mean(1), (message @ m.position.kernel + m.position.bias)[..., 0]

    hdg = neighborhood.anchors(GRAPH, sets)
    module = randomised(PGNN(4, 3, rngs=nnx.Rngs(0)))
    assert_same(module, lambda m, x: m(hdg, x), plain, normal(7, 4))


RNGS = nnx.Rngs(0)
HOPS = neighborhood.hops(GRAPH, 2)
WALKS = neighborhood.random_walks(GRAPH)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: JKNet(4, 3, hops=0, rngs=RNGS), "nn.JKNet: hops is 0, expected a whole number"),
        (lambda: JKNet(4, 3, hops=1, jump="min", rngs=RNGS), "nn.JKNet: jump is 'min', expected"),  # type: ignore
        (
            lambda: JKNet(4, 3, hops=3, rngs=RNGS)(HOPS, normal(7, 4)),
            r"nn.JKNet: got HDG\(hops: 7 roots, 2 neighbour types; .*\), expected rings of 3 hops",
        ),
        (
            lambda: MAGNN(4, 3, hidden=3, types=["m"], paths=1, rngs=RNGS),
            "nn.MAGNN: hidden is 3 and encoder 'rotation', expected an even number",
        ),
        (
            lambda: MAGNN(4, 3, hidden=4, types=["m"], paths=1, rngs=RNGS)(HOPS, {}),
            "expected 1 metapaths of at most 3: pass paths=hdg.num_types",
        ),
        (
            lambda: MAGNN(4, 3, hidden=4, types=["m"], paths=1, relations=[[1, 0]], rngs=RNGS),
            r"nn.MAGNN: relations is \[\[1, 0\]\], expected 1 lists of 1 to 2 numbers, from 1 on",
        ),
        (
            lambda: MetapathClassifier(
                4, 3, hdgs={"m": neighborhood.metapaths(MOVIES, PATHS[:1])}, target="m", hidden=4,
                layers=2, rngs=RNGS,
            ),
            "nn.MetapathClassifier: hdgs has no 'd', expected metapaths that end at each of",
        ),
        (
            lambda: PGNN(4, 3, rngs=RNGS)(WALKS, normal(7, 4)),
            r"nn.PGNN: got HDG\(random_walks: 7 roots; levels .*, expected anchor sets",
        ),
        (lambda: PinSage(4, 3, hidden=0, rngs=RNGS), "nn.PinSage: hidden is 0, expected a whole"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        call()
