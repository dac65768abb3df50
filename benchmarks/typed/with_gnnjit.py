"""gnnjit's modules, and R-GCN as a layer of a graph whose edges carry numbers of relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import gnnjit
from gnnjit import nn
from gnnjit.nn.schema import of_relation
from typed.graphs import Size, Typed

MODULES = {"rgcn": nn.RGCN, "hgt": nn.HGT, "han": nn.HAN}

Weights = dict[str, np.ndarray]


def module(model: str, data: Typed, size: Size) -> Any:
    options: dict[str, Any] = {} if model == "rgcn" else {"heads": size.heads}
    if model == "han":
        options["semantic_features"] = size.width  # as PyG has it
    schema = {"types": tuple(data.features), "relations": tuple(data.edges)}
    return MODULES[model](size.width, size.width, **options, **schema, rngs=nnx.Rngs(0))


def weights(model: str, net: Any, data: Typed) -> Weights:
    """By names that both sides know."""
    found: dict[str, Any] = {}

    def linear(name: str, maps: Any) -> None:
        for t in data.features:
            found[f"{name}.{t}.kernel"], found[f"{name}.{t}.bias"] = maps[t].kernel, maps[t].bias

    def relations(name: str, values: Any) -> None:
        for key in data.edges:
            found[f"{name}.{of_relation(key)}"] = values[of_relation(key)]

    if model == "rgcn":
        linear("own", net.own)
        relations("weight", net.weight)
    elif model == "hgt":
        for name in ("key", "query", "value", "out"):
            linear(name, getattr(net, name))
        for name in ("attend", "message", "prior"):
            relations(name, getattr(net, name))
        found |= {f"skip.{t}": net.skip[t] for t in data.features}
    else:
        linear("linear", net.linear)
        relations("src", net.attend_src)
        relations("dst", net.attend_dst)
        found |= {"semantic.kernel": net.semantic.kernel, "semantic.bias": net.semantic.bias}
        found["query"] = net.query
    return {name: np.asarray(value[...]) for name, value in found.items()}


@gnnjit.layer
def by_number(v: Any, e: Any, p: Any) -> Any:
    """R-GCN, whose edges carry their relation."""
    messages = (e.src @ p["weight"][e.relation]) / e.relation_degree
    return v @ p["own"] + p["bias"] + gnnjit.sum(messages)


def step(model: str, form: str, data: Typed, size: Size) -> tuple[Callable[[], Any], Weights]:
    """What runs value and gradients once: `(results, gradients of features)`; and its weights."""
    net = module(model, data, size)
    known = weights(model, net, data)
    counts = {t: len(x) for t, x in data.features.items()}
    features, cotangents = jax.device_put((dict(data.features), dict(data.cotangents)))
    if form == "by number":
        graph, params = _numbered(data, known)

        def apply(params: Any, x: Any, graph: Any) -> Any:
            return {"a": by_number(graph, x["a"], params)}
    else:
        graph = gnnjit.TypedGraph.from_edges(dict(data.edges), counts)
        definition, params = nnx.split(net)

        def apply(params: Any, x: Any, graph: Any) -> Any:
            return nnx.merge(definition, params)(graph, x)

    def loss(params: Any, x: Any, graph: Any) -> Any:
        out = apply(params, x, graph)
        return sum(jnp.sum(out[t] * cotangents[t]) for t in out), out

    gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    compiled = gradients.lower(params, features, graph).compile()

    def run() -> Any:
        (_, out), (_, of_features) = compiled(params, features, graph)
        return jax.block_until_ready((out, of_features))

    return run, known


def _numbered(data: Typed, known: Weights) -> tuple[gnnjit.Graph, Any]:
    ends = np.concatenate(list(data.edges.values()), axis=1)
    relation = np.repeat(np.arange(len(data.edges)), [e.shape[1] for e in data.edges.values()])
    params = {
        "weight": np.stack([known[f"weight.{of_relation(key)}"] for key in data.edges]),
        "own": known["own.a.kernel"], "bias": known["own.a.bias"],
    }  # fmt: skip
    n, count = len(data.features["a"]), len(data.edges)
    graph = gnnjit.Graph.from_edges(*ends, n, relation=relation, num_relations=count)
    return graph, jax.device_put(params)


def prepare() -> None:
    assert gnnjit.keep_memory()
