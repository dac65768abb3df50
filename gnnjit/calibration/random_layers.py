"""Layers at random sizes, each with its alternatives: for calibration and for benchmarks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from gnnjit.compiler.call import trace_call
from gnnjit.cost.current import use
from gnnjit.cost.model import CostModel
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.plan import Alternative
from gnnjit.planner.search import force, plan, weigh
from gnnjit.system.autotuning import autotuning

MODELS = {
    "gcn": 2, "sage": 2, "gin": 2, "gat": 2, "gat4": 2, "gated": 2, "mlp": 2, "norm": 2,
    "bessel": 1,
}  # fmt: skip
"""Names, and how often each is drawn. mlp, norm: edge networks; bessel: a function that CPU kernels
have no code for, so that it runs in chunks of edges."""

NETWORKS = ("mlp", "norm")
_SHARES = np.array([*MODELS.values()]) / sum(MODELS.values())
DIRECTIONS = ("inference", "first layer", "inner layer")
"""Forward alone; with the gradients of the parameters; with those of the features too."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer on one graph. `skewed`: vertices are chosen with a power law."""

    model: str
    direction: str
    vertices: int
    edges: int
    f_in: int
    f_out: int
    skewed: bool
    seed: int

    def __str__(self) -> str:
        shape = f"{self.vertices} vertices, {self.edges} edges, {self.f_in} -> {self.f_out}"
        return f"{self.model}, {self.direction}, {shape}{', skewed' * self.skewed}"


def random_case(rng: np.random.Generator, most_bytes: float = 1.5e8) -> Case:
    """Sizes are log-uniform; no array of vertices has more than `most_bytes`."""
    while True:
        model = str(rng.choice([*MODELS], p=_SHARES))
        vertices = int(2 ** rng.uniform(10, 17))
        edges = int(vertices * 2 ** rng.uniform(1, 5.5))
        f_in, f_out = (int(2 ** rng.uniform(3, 9)) for _ in range(2))
        if rng.random() < 0.75:
            f_in, f_out = (8 * max(1, round(f / 8)) for f in (f_in, f_out))
        heads = 4 if model == "gat4" else 1
        f_out = max(heads, f_out // heads * heads)
        f_in = f_out if model == "gated" else f_in
        case = Case(
            model, str(rng.choice(DIRECTIONS)), vertices, edges, f_in, f_out,
            bool(rng.random() < 0.5), int(rng.integers(1 << 30)),
        )  # fmt: skip
        widest = max(f_in * heads, f_out)
        product = edges * f_out**2 if model in NETWORKS else 0
        if vertices * widest * 4 <= most_bytes and edges * widest <= 4e8 and product <= 3e9:
            return case


def graph_of(case: Case) -> gnnjit.Graph:
    """Edges between vertices chosen uniformly, or each with a weight from a Pareto law."""
    rng = np.random.default_rng(case.seed)
    n, m = case.vertices, case.edges
    if not case.skewed:
        return gnnjit.Graph.from_edges(rng.integers(0, n, m), rng.integers(0, n, m), num_nodes=n)
    weight = np.cumsum(rng.pareto(2.0, n) + 0.5)
    ends = [np.searchsorted(weight, rng.random(m) * weight[-1]) for _ in range(2)]
    return gnnjit.Graph.from_edges(ends[0], rng.permutation(n)[ends[1]], num_nodes=n)


def layer_of(model: str) -> Callable[..., Any]:
    """`layer(graph, (x, number per vertex), parameters)`, as a user writes it."""
    heads = 4 if model == "gat4" else 1

    def gcn(v: Any, e: Any, p: Any) -> Any:
        (x_v, d_v), (x_u, d_u) = v, e.src
        d_v, d_u = jax.lax.stop_gradient((d_v, d_u))
        return (d_v * gnnjit.sum(d_u * x_u) + d_v * d_v * x_v) @ p["w"] + p["b"]

    def sage(v: Any, e: Any, p: Any) -> Any:
        return v[0] @ p["own"] + gnnjit.mean(e.src[0] @ p["w"]) + p["b"]

    def gin(v: Any, e: Any, p: Any) -> Any:
        h = (v[0] + gnnjit.sum(e.src[0])) @ p["w"] + p["b"]
        return jax.nn.relu(h) @ p["w2"]

    def gat(v: Any, e: Any, p: Any) -> Any:
        z_u, z_v = ((h[0] @ p["w"]).reshape(heads, -1) for h in (e.src, v))
        score = jnp.sum(z_u * p["a_src"], -1) + jnp.sum(z_v * p["a_dst"], -1)
        alpha = gnnjit.softmax(jax.nn.leaky_relu(score, 0.2))
        return gnnjit.sum(alpha[:, None] * z_u).reshape(-1) + p["b"]

    def gated(v: Any, e: Any, p: Any) -> Any:
        gate = jax.nn.sigmoid(e.src[0] @ p["w"] + v[0] @ p["own"])
        return v[0] @ p["w2"] + gnnjit.sum(gate * e.src[0])

    def mlp(v: Any, e: Any, p: Any) -> Any:
        hidden = jax.nn.relu(e.src[0] @ p["w"] + v[0] @ p["own"])
        return gnnjit.sum(jax.nn.relu(hidden @ p["w2"])) + p["b"]

    def norm(v: Any, e: Any, p: Any) -> Any:
        h = jax.nn.silu(e.src[0] @ p["w"] + v[0] @ p["own"] + p["b"]) @ p["w2"]
        return gnnjit.sum(jax.nn.standardize(h) + e.src[0] @ p["w"])

    def bessel(v: Any, e: Any, p: Any) -> Any:
        return gnnjit.sum(jax.scipy.special.i0e(e.src[0] @ p["w"] - v[0] @ p["own"])) @ p["w2"]

    fn = {
        "gcn": gcn, "sage": sage, "gin": gin, "gated": gated, "mlp": mlp, "norm": norm,
        "bessel": bessel,
    }.get(model, gat)  # fmt: skip
    return gnnjit.layer(fn)


def parameters(case: Case) -> dict[str, jax.Array]:
    rng = np.random.default_rng(case.seed)
    f, g, heads = case.f_in, case.f_out, 4 if case.model == "gat4" else 1
    shapes = {
        "w": (f, g), "b": (g,), "own": (f, g), "w2": (g, g),
        "a_src": (heads, g // heads), "a_dst": (heads, g // heads),
    }  # fmt: skip
    used = {
        "gcn": "w b", "sage": "own w b", "gin": "w b w2", "gated": "w own w2", "mlp": "w own w2 b",
        "norm": "w own w2 b", "bessel": "w own w2",
    }  # fmt: skip
    names = used.get(case.model, "w a_src a_dst b").split()
    return {k: jnp.asarray(rng.normal(size=shapes[k]) / 8, jnp.float32) for k in names}


@dataclasses.dataclass(frozen=True)
class Ready:
    """A case on the device: its alternatives, and a function to run with one of them."""

    case: Case
    alternatives: tuple[Alternative, ...]
    arrays: tuple[Any, ...]

    def compiled(self, choices: Choices) -> Callable[..., Any]:
        """A function of `arrays` that runs the layer with `choices`, and its gradient where the
        direction has one."""
        with force(choices):
            return (
                jax.jit(_runner(self.case.model, self.case.direction)).lower(*self.arrays).compile()
            )


def prepare(
    case: Case,
    model: CostModel | None = None,
    stretches: int = 0,
    graph: gnnjit.Graph | None = None,
) -> Ready:
    """`stretches`: those of `autotuning`, whose choice comes first; 0: that of the model does.
    `graph`: a given one, of the vertices and edges of the case."""
    graph = graph_of(case) if graph is None else graph
    p, rng = parameters(case), np.random.default_rng(case.seed + 1)
    x = jnp.asarray(rng.normal(size=(case.vertices, case.f_in)), jnp.float32)
    degree = np.maximum(np.asarray(graph.in_degree), 1)
    number = jnp.asarray(degree**-0.5, jnp.float32)
    layer = layer_of(case.model)
    differentiated = {"inference": None, "first layer": (p,), "inner layer": (p, x)}[case.direction]
    call = trace_call(layer.__gnnjit_layer__, (graph, (x, number), p), None, {})
    tunes = autotuning(stretches > 0, stretches=max(stretches, 1))
    with tunes, use(model) if model else contextlib.nullcontext():
        problem = call.problem(differentiated)
        found = plan(problem).every if stretches else weigh(problem)
    return Ready(case, found, (graph, x, number, p))


@functools.cache
def _runner(model: str, direction: str) -> Callable[..., Any]:
    layer = layer_of(model)

    def run(graph: Any, x: Any, number: Any, p: Any) -> Any:
        if direction == "inference":
            return layer(graph, (x, number), p)
        if direction == "first layer":
            out, back = jax.vjp(lambda p: layer(graph, (x, number), p), p)
        else:
            # The features come first: XLA computes results in their order, and in a network those
            # of the layers before wait for this gradient.
            out, back = jax.vjp(lambda x, p: layer(graph, (x, number), p), x, p)
        # The gradient of half the sum of squares: as in training, the backward pass needs the
        # result of the forward pass. Without that, XLA overlaps the two.
        return out, back(out)

    return run


def cases(seed: int, count: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    return list(itertools.islice(iter(lambda: random_case(rng), None), count))
