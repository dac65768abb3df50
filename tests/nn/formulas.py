"""The modules' formulas over plain arrays: gather, `segment_sum`, no gnnjit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NUM_NODES = 9


def random_edges(seed: int, *, undirected: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Edges among the first 7 of `NUM_NODES` vertices, with duplicates and a self loop.

    Undirected: each pair in both directions once, and no self loop.
    """
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 7, (2, 20))
    if not undirected:
        return np.append(src, 3), np.append(dst, 3)
    pairs = {(a, b) for a, b in zip(src, dst, strict=True) if a != b}
    pairs |= {(b, a) for a, b in pairs}
    return tuple(np.array(sorted(pairs)).T)


def linear(module: Any, x: jax.Array) -> jax.Array:
    out = x @ module.kernel[...]
    return out if module.bias is None else out + module.bias[...]


def total(x: jax.Array, dst: np.ndarray) -> jax.Array:
    return jax.ops.segment_sum(x, dst, NUM_NODES)


def degree(dst: np.ndarray) -> np.ndarray:
    return np.bincount(dst, minlength=NUM_NODES)


def mean(x: jax.Array, dst: np.ndarray) -> jax.Array:
    return total(x, dst) / np.maximum(degree(dst), 1)[:, None]


def largest(x: jax.Array, dst: np.ndarray) -> jax.Array:
    """Row by row, over the edges of each vertex; 0 where there are none."""
    rows = [x[np.flatnonzero(dst == v)] for v in range(NUM_NODES)]
    return jnp.stack([r.max(axis=0) if len(r) else jnp.zeros(x.shape[1]) for r in rows])


def normalized(src: np.ndarray, dst: np.ndarray, edges: Any, own: bool) -> jax.Array:
    """`D^-1/2 A D^-1/2` as a dense matrix, row v, column u; of `A + I` with `own`."""
    weight = jnp.ones(len(src)) if edges is None else edges
    a = jnp.zeros((NUM_NODES, NUM_NODES)).at[dst, src].add(weight)
    a = a + jnp.eye(NUM_NODES) if own else a
    some = a.sum(1) > 0
    root = jnp.diag(jnp.where(some, jnp.where(some, a.sum(1), 1) ** -0.5, 0))
    return root @ a @ root


def gcn(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    """Kipf & Welling, equation 2; weights as in PyG."""
    return normalized(src, dst, edges, m.self_loops) @ x @ m.linear.kernel[...] + m.bias[...]


def sage(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    h = x[src] if m.pool is None else jax.nn.relu(linear(m.pool, x))[src]
    h = h if edges is None else edges[:, None] * h
    h = {"mean": mean, "sum": total, "max": largest, "pool": largest}[m.aggregator](h, dst)
    out = linear(m.own, x) + linear(m.neighbors, h)
    if m.normalize:
        out = out / jnp.sqrt((out * out).sum(-1, keepdims=True))
    return out


def _with_loops(m: Any, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    loops = np.arange(NUM_NODES if m.self_loops else 0)
    return np.append(src, loops), np.append(dst, loops)


def _attention(m: Any, score: jax.Array, value: jax.Array, dst: np.ndarray) -> jax.Array:
    weight = jnp.exp(score)
    alpha = weight / total(weight, dst)[dst]
    out = total(alpha[..., None] * value, dst)
    return (out.reshape(NUM_NODES, -1) if m.concat else out.mean(1)) + m.bias[...]


def _features_with_loops(m: Any, edges: Any, dst: np.ndarray) -> Any:
    """PyG's `add_self_loops(fill_value="mean")`."""
    return jnp.concatenate([edges, mean(edges, dst)]) if m.self_loops else edges


def gat(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    edges = None if edges is None else _features_with_loops(m, edges, dst)
    src, dst = _with_loops(m, src, dst)
    z = linear(m.linear, x).reshape(NUM_NODES, *m.shape)
    score = (z * m.attend_src[...]).sum(-1)[src] + (z * m.attend_dst[...]).sum(-1)[dst]
    if edges is not None:
        z_e = linear(m.edge, edges).reshape(-1, *m.shape)
        score = score + (z_e * m.attend_edge[...]).sum(-1)
    return _attention(m, jax.nn.leaky_relu(score, 0.2), z[src], dst)


def gatv2(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    edges = None if edges is None else _features_with_loops(m, edges, dst)
    src, dst = _with_loops(m, src, dst)
    z_u = linear(m.src, x).reshape(NUM_NODES, *m.shape)
    z_v = linear(m.dst, x).reshape(NUM_NODES, *m.shape)
    z = z_u[src] + z_v[dst]
    z = z if edges is None else z + linear(m.edge, edges).reshape(-1, *m.shape)
    score = (jax.nn.leaky_relu(z, 0.2) * m.attention[...]).sum(-1)
    return _attention(m, score, z_u[src], dst)


def gin(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    message = x[src] if edges is None else jax.nn.relu(x[src] + linear(m.edge, edges))
    h = linear(m.hidden, (1 + m.eps) * x + total(message, dst))
    return linear(m.out, jax.nn.relu(h))


def gated_gcn(
    m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None
) -> jax.Array:
    eta = linear(m.gate_dst, x)[dst] + linear(m.gate_src, x)[src]
    eta = eta if edges is None else eta + linear(m.gate_edge, edges)
    return linear(m.linear, total(jax.nn.sigmoid(eta) * x[src], dst))


def commnet(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array) -> jax.Array:
    heard = {"mean": mean, "sum": total}[m.aggregator](x[src], dst)
    return linear(m.own, x) + linear(m.heard, heard)


def edge_conv(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array) -> jax.Array:
    pair = jnp.concatenate([x[dst], x[src] - x[dst]], axis=1)
    return largest(linear(m.out, jax.nn.relu(linear(m.hidden, pair))), dst)


def ggnn(
    m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, types: np.ndarray | None = None
) -> jax.Array:
    """Li et al., equations 1 to 6."""
    types = np.zeros(len(src), int) if types is None else types
    h = jnp.concatenate([x, jnp.zeros((NUM_NODES, m.features - x.shape[1]))], axis=1)
    weight = m.message.kernel[...].reshape(m.features, m.edge_types, m.features)
    bias = m.message.bias[...].reshape(m.edge_types, m.features)
    for _ in range(m.steps):
        message = jnp.einsum("ei,eio->eo", h[src], weight.transpose(1, 0, 2)[types]) + bias[types]
        a = total(message, dst)
        gates = jax.nn.sigmoid(linear(m.gates_in, a) + linear(m.gates_own, h))
        update, reset = gates[:, : m.features], gates[:, m.features :]
        candidate = linear(m.candidate_in, a) + linear(m.candidate_own, reset * h)
        h = (1 - update) * h + update * jnp.tanh(candidate)
    return h


def light_gcn(
    m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None
) -> jax.Array:
    powers = [x]
    for _ in range(m.steps):
        powers.append(normalized(src, dst, edges, own=False) @ powers[-1])
    return sum(a * h for a, h in zip(m.weights, powers, strict=True))


def ngcf(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    """Wang et al., equation 7, and the authors' code."""
    weights = jnp.zeros((NUM_NODES, NUM_NODES)).at[dst, src].add(1.0 if edges is None else edges)
    with_own = weights + jnp.eye(NUM_NODES)
    mean = with_own / with_own.sum(1, keepdims=True)
    found = [x]
    for own, both in zip(m.own, m.both, strict=True):
        if m.form == "code":
            near = mean @ x
            first, second = linear(own, near), linear(both, near * x)
            x = jax.nn.leaky_relu(first, 0.2) + jax.nn.leaky_relu(second, 0.2)
        else:
            near = normalized(src, dst, edges, own=False) @ x
            x = jax.nn.leaky_relu(linear(own, near + x) + linear(both, near * x), 0.2)
        square = (x * x).sum(1, keepdims=True)
        safe = jnp.sqrt(jnp.where(square > 0, square, 1))
        found.append(x / safe if m.normalize else x)
    return jnp.concatenate(found, axis=1)


def appnp(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    h, a = x, normalized(src, dst, edges, m.self_loops)
    for _ in range(m.steps):
        h = (1 - m.alpha) * a @ h + m.alpha * x
    return h


def cheb(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    """Defferrard et al., equation 4, with Chebyshev's polynomials of the dense Laplacian."""
    one = jnp.eye(NUM_NODES)
    scaled = 2 / m.lambda_max * (one - normalized(src, dst, edges, own=False)) - one
    polynomials = [one, scaled]
    for _ in range(2, m.terms):
        polynomials.append(2 * scaled @ polynomials[-1] - polynomials[-2])
    return linear(m.linear, jnp.concatenate([p @ x for p in polynomials[: m.terms]], axis=1))


def transformer(
    m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None
) -> jax.Array:
    q, k, v = (linear(part, x).reshape(-1, *m.shape) for part in (m.query, m.key, m.value))
    k, v = k[src], v[src]
    if edges is not None:
        z = linear(m.edge, edges).reshape(-1, *m.shape)
        k, v = k + z, v + z
    score = (q[dst] * k).sum(-1) / np.sqrt(m.shape[1])
    alpha = jnp.exp(score) / total(jnp.exp(score), dst)[dst]
    out = total(alpha[..., None] * v, dst)
    out, own = out.reshape(NUM_NODES, -1) if m.concat else out.mean(1), linear(m.own, x)
    if m.gate is None:
        return own + out
    gate = jax.nn.sigmoid(linear(m.gate, jnp.concatenate([out, own, out - own], axis=1)))
    return gate * own + (1 - gate) * out


def nn_conv(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: jax.Array) -> jax.Array:
    matrix = linear(m.matrix, jax.nn.relu(linear(m.hidden, edges)))
    message = jnp.einsum("ei,eio->eo", x[src], matrix.reshape(len(src), x.shape[1], -1))
    reduce = {"sum": total, "mean": mean, "max": largest}[m.aggregator]
    return linear(m.own, x) + reduce(message, dst)


def pna(m: Any, src: np.ndarray, dst: np.ndarray, x: jax.Array, edges: Any = None) -> jax.Array:
    """Corso et al., equations 5 to 8; of a vertex without edges everything is 0."""
    d = degree(dst)
    delta = np.log(d[d > 0] + 1).mean() if m.delta is None and len(dst) else m.delta
    pair = [x[dst], x[src]] if edges is None else [x[dst], x[src], edges]
    h = linear(m.message, jnp.concatenate(pair, axis=1))
    centred = h - mean(h, dst)[dst]
    var = mean(centred * centred, dst)
    some = var > 0
    found = {
        "mean": mean(h, dst), "min": -largest(-h, dst), "max": largest(h, dst),
        "sum": total(h, dst), "var": var,
        "std": jnp.where(some, jnp.sqrt(jnp.where(some, var, 1)), 0),
    }  # fmt: skip
    a = jnp.concatenate([found[name] for name in m.aggregators], axis=1)
    log = np.log(np.maximum(d, 1) + 1)[:, None]
    scale = {"identity": 1, "amplification": log / (delta or 1), "attenuation": (delta or 1) / log}
    return linear(m.out, jnp.concatenate([x, *(scale[name] * a for name in m.scalers)], axis=1))


def graph_net(
    m: Any,
    src: np.ndarray,
    dst: np.ndarray,
    x: jax.Array,
    owner: np.ndarray,
    edges: Any,
    whole: Any,
) -> Any:
    """Battaglia et al., algorithm 1; `owner` is the graph of each vertex."""

    def mlp(part: Any, *values: Any) -> jax.Array:
        values = [v for v in values if v is not None]
        return linear(part["out"], jax.nn.relu(linear(part["hidden"], jnp.concatenate(values, 1))))

    at_edges, at_nodes = (None, None) if whole is None else (whole[owner[dst]], whole[owner])
    new_edges = mlp(m.edge, edges, x[src], x[dst], at_edges)
    new_nodes = mlp(m.node, total(new_edges, dst), x, at_nodes)
    graphs = owner.max() + 1
    pooled = [
        jax.ops.segment_sum(v, o, graphs) for v, o in ((new_edges, owner[dst]), (new_nodes, owner))
    ]
    return new_nodes, new_edges, mlp(m.whole, *pooled, whole)
