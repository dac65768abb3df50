"""The two compiled functions of a run: one update, and one evaluation of all splits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding

from gnnjit.training.config import TrainConfig
from gnnjit.training.metrics import Sums
from gnnjit.training.optimizers import halved, make_optimizer
from gnnjit.training.processes import check_program, one_cost_model
from gnnjit.training.sharded import on_one_device, replicated
from gnnjit.training.tasks import Batch, Task

Build = Callable[[nnx.Rngs], nnx.Module]
"""Makes a model with fresh weights."""


class TrainState(NamedTuple):
    """What an update replaces: weights, other variables (running means), optimizer state."""

    params: Any
    buffers: Any
    opt: Any


class CompiledSteps(NamedTuple):
    """The functions, and what compiling them took.

    Attributes:
        update: (state, batch, seed, epoch, index) -> (state, loss); donates the state.
        evaluate: (params, buffers, batch) -> `Sums`.
        seconds: to trace and compile both.
        temp_bytes: the larger of the two functions' temporary buffers; None if unknown.
    """

    update: Callable[..., tuple[TrainState, jax.Array]]
    evaluate: Callable[..., Sums]
    seconds: float
    temp_bytes: int | None

    def figures(self) -> dict[str, Any]:
        """What is reported of them."""
        return {"compile_seconds": self.seconds, "temp_bytes": self.temp_bytes}


class ModelFunctions:
    """A model and its configuration, as pure functions over `TrainState`.

    Attributes:
        update, evaluate: as in `CompiledSteps`, not compiled yet.
    """

    def __init__(
        self,
        build: Build,
        config: TrainConfig,
        everywhere: NamedSharding | None = None,
        axis: str | None = None,
    ) -> None:
        """`everywhere`: over which devices the state is to be replicated, if over several.
        `axis`: of a mesh, along which each device has a batch of its own; an update is then called
        within `jax.shard_map`, and is that of the union of the batches."""
        self._build, self._everywhere, self._axis = build, everywhere, axis
        self._config = config
        self._optimizer = make_optimizer(config)
        self._training, *_ = _split(build(nnx.Rngs(0)), training=True)
        self._evaluating, *_ = _split(build(nnx.Rngs(0)), training=False)
        self.update = self._make_update()
        self.evaluate = self._make_evaluate()

    def initial(self, seed: int) -> TrainState:
        """Fresh weights of `seed`."""
        _, params, buffers = _split(self._build(nnx.Rngs(seed)), training=True)
        return self.placed(TrainState(params, buffers, self._optimizer.init(params)))

    def placed(self, tree: Any) -> Any:
        """The state, or parts of it, where the functions need it."""
        return tree if self._everywhere is None else replicated(tree, self._everywhere)

    def model(self, params: Any, buffers: Any) -> nnx.Module:
        """The model with these weights, on one device, set to evaluate."""
        if self._everywhere is not None:
            params, buffers = on_one_device((params, buffers))
        return nnx.merge(self._evaluating, params, buffers)

    def compile(self, task: Task, context: Any = None) -> CompiledSteps:
        """Compile for the task's shapes, tracing under the context manager `context`."""
        seed = np.int32(0)
        batch, whole = next(iter(task.train_batches(0, 0))), task.eval_batches()[0]
        state = self.initial(0)
        out: dict[str, Any] = (
            {} if self._everywhere is None else {"out_shardings": self._everywhere}
        )
        started = time.perf_counter()
        with context or contextlib.nullcontext(), one_cost_model():
            update = jax.jit(self.update, donate_argnums=0, **out)
            update = update.lower(state, batch, seed, seed, seed).compile()
            evaluate = jax.jit(self.evaluate, **out)
            evaluate = evaluate.lower(state.params, state.buffers, whole).compile()
        seconds = time.perf_counter() - started
        check_program(update, "the program of an update")
        check_program(evaluate, "the program of an evaluation")
        return CompiledSteps(update, evaluate, seconds, temp_bytes(update, evaluate))

    def _make_update(self) -> Callable[..., tuple[TrainState, jax.Array]]:
        optimizer, axis, config = self._optimizer, self._axis, self._config

        def together(x: jax.Array) -> jax.Array:
            return x if axis is None else jax.lax.psum(x, axis)

        def update(
            state: TrainState, batch: Batch, seed: jax.Array, epoch: jax.Array, index: jax.Array
        ) -> tuple[TrainState, jax.Array]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), epoch), index)
            if axis is not None:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))

            def loss_of(params: Any) -> tuple[jax.Array, Any]:
                # Mapped, so that its variables belong to this trace and may be assigned to.
                buffers = jax.tree.map(lambda leaf: leaf, state.buffers)
                model = nnx.merge(self._training, params, buffers)
                total, count = batch.loss(model, key)
                buffers = _split(model, training=True)[2]
                count = together(count)
                return together(total) / jnp.where(count > 0, count, 1), buffers

            (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
            if axis is not None:
                buffers = jax.tree.map(lambda leaf: jax.lax.pmean(leaf, axis), buffers)
            updates, opt = optimizer.update(grads, state.opt, state.params)
            updates = halved(updates, epoch, config)
            return TrainState(optax.apply_updates(state.params, updates), buffers, opt), loss

        return update

    def _make_evaluate(self) -> Callable[..., Sums]:
        def evaluate(params: Any, buffers: Any, batch: Batch) -> Sums:
            return batch.sums(nnx.merge(self._evaluating, params, buffers))

        return evaluate


def _split(model: nnx.Module, *, training: bool) -> tuple[Any, Any, Any]:
    """(definition, parameters, other variables) of the model in the given mode."""
    if training:
        model.train()
    else:
        model.eval()
    definition, params, buffers = nnx.split(model, nnx.Param, ...)
    return definition, params, buffers


def temp_bytes(*compiled: Any) -> int | None:
    """The largest of their temporary buffers; None if none is known."""
    sizes = [getattr(c.memory_analysis(), "temp_size_in_bytes", None) for c in compiled]
    known = [size for size in sizes if size is not None]
    return max(known) if known else None
