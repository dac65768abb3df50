"""PinSage's importance pooling, MAGNN's attention, and attention to anchor sets, level by level,
and their update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from gnnjit.neighborhood import HDG

Params = dict[str, np.ndarray]


def params(model: str, hdg: HDG, width: int) -> Params:
    """`float32`; of an attention `[neighbour types, width]`, of the update `[2 width, width]`."""
    rng = np.random.default_rng(1)
    shapes = {"update": (2 * width, width)}
    if model != "pinsage":
        shapes |= {name: (hdg.num_types, width) for name in ("root", "own", "top_root", "top_own")}
    return {k: 0.1 * rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}


@gnnjit.layer
def pool(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.data * e.src)


@gnnjit.layer
def instance(v: Any, e: Any) -> Any:
    return gnnjit.mean(e.src)


@gnnjit.layer
def attend(v: Any, e: Any, root: Any, own: Any) -> Any:
    score = jax.nn.leaky_relu(v @ root[e.relation] + e.src @ own[e.relation], 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * e.src)


def beside(level: Any, ends: Any, root: Any, own: Any) -> Any:
    """`attend` at the schema level, whose neighbour types lie side by side."""
    h = ends.src.reshape(level.num_dst, -1, ends.src.shape[-1])
    score = jax.nn.leaky_relu(ends.dst @ root.T + jnp.sum(h * own, axis=-1), 0.2)
    return jnp.einsum("np,npf->nf", jax.nn.softmax(score), h)


def stages(model: str, p: Any, top: Callable[..., Any] = beside) -> list[Callable[..., Any]]:
    """A stage for each level."""
    if model == "pinsage":
        return [pool]
    if model == "pgnn":
        return [pool, partial(top, root=p["top_root"], own=p["top_own"])]
    lower = partial(attend, root=p["root"], own=p["own"])
    return [instance, lower, partial(top, root=p["top_root"], own=p["top_own"])]


def update(roots: Any, h: Any, p: Any) -> Any:
    return jax.nn.relu(jnp.concatenate([roots, h], axis=1) @ p["update"])


def steps(
    model: str, hdg: HDG, x: Any, roots: np.ndarray, p: Params, sparse: bool
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What runs aggregation, and what runs the update: each with its gradients, once.

    `sparse`: every level by plain segment operations over stored edges, none side by side.
    """
    hdg = hdg.expanded() if sparse else hdg
    top = attend if sparse else beside

    def loss(x: Any, p: Any, hdg: HDG) -> Any:
        out = hdg(x, *stages(model, p, top))
        return jnp.sum(jnp.sin(out)), out

    def loss_of_update(h: Any, p: Any, roots: Any) -> Any:
        return jnp.sum(jnp.sin(update(roots, h, p)))

    x, p, roots = jax.device_put((x, p, roots))
    gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    if sparse:
        with gnnjit.reference():
            compiled = gradients.lower(x, p, hdg).compile()
    else:
        compiled = gradients.lower(x, p, hdg).compile()
    (_, h), _ = compiled(x, p, hdg)
    of_update = jax.jit(jax.grad(loss_of_update, (0, 1))).lower(h, p, roots).compile()

    def aggregate() -> Any:
        (_, out), (of_x, _) = compiled(x, p, hdg)
        of_types = [of_x[t] for t in hdg.types] if hdg.types else [of_x]
        return jax.block_until_ready((out, of_types))

    return aggregate, lambda: jax.block_until_ready(of_update(h, p, roots))
