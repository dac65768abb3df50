"""Adam with L2, in both senses, and which weights it acts on."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gnnjit.training.config import TrainConfig

_NEVER = ("bias", "scale", "eps")


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Adam or AdamW at the configured rate, with decay on the weights that `decay` names; `halved`
    lowers the rate."""
    clip = [optax.clip_by_global_norm(config.clip)] if config.clip else []
    if config.decay == "batch":  # it is in the loss
        return optax.chain(*clip, optax.adam(config.lr))
    mask = functools.partial(decayed, decay=config.decay)
    if config.optimizer == "adamw":
        return optax.chain(
            *clip, optax.adamw(config.lr, weight_decay=config.weight_decay, mask=mask)
        )
    penalty = optax.add_decayed_weights(config.weight_decay, mask=mask)
    return optax.chain(*clip, penalty, optax.adam(config.lr))


def halved(updates: Any, epoch: jax.Array, config: TrainConfig) -> Any:
    """The optimizer's updates at the rate of `epoch`, which counts from 0: they are proportional to
    the rate. The optimizer itself counts steps, and does not know how many make an epoch."""
    if not config.halve_every:
        return updates
    return jax.tree.map(lambda u: jnp.ldexp(u, -(epoch // config.halve_every)), updates)


def decayed(params: Any, *, decay: str) -> Any:
    """A pytree of bools, like `params`: which of them shrink.

    Biases, scales of norms and GIN's eps never do; with `decay="first"` only the first layer of
    `layers`, and what stands before it in `encode`, does (Kipf & Welling 2017, section 5.2).
    """

    def one(path: Any, leaf: Any) -> bool:
        names = [str(getattr(k, "key", getattr(k, "name", k))) for k in path]
        if any(name in _NEVER for name in names):
            return False
        return decay == "all" or names[:2] == ["layers", "0"] or names[:1] == ["encode"]

    return jax.tree_util.tree_map_with_path(one, params)
