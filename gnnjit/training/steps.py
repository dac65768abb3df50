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
from gnnjit.training.optimizers import make_optimizer
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


class Sums(NamedTuple):
    """Over each split, float32[3].

    Attributes:
        loss: of all labelled vertices (or graphs).
        count: how many they are.
        right, answers: their quotient is the score. With one label each: correct answers, labels.
            With several: twice the true positives, and what was answered plus what is true.
    """

    loss: Any
    count: Any
    right: Any
    answers: Any


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
        optimizer, axis = self._optimizer, self._axis

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
                logits = batch.logits(model, key)
                buffers = _split(model, training=True)[2]
                weights = batch.weights[:, 0]
                losses = cross_entropy(logits, batch.labels)
                total = jnp.sum(jnp.where(weights > 0, weights * losses, 0))
                count = together(jnp.sum(weights))
                return together(total) / jnp.where(count > 0, count, 1), buffers

            (loss, buffers), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
            if axis is not None:
                buffers = jax.tree.map(lambda leaf: jax.lax.pmean(leaf, axis), buffers)
            updates, opt = optimizer.update(grads, state.opt, state.params)
            return TrainState(optax.apply_updates(state.params, updates), buffers, opt), loss

        return update

    def _make_evaluate(self) -> Callable[..., Sums]:
        def evaluate(params: Any, buffers: Any, batch: Batch) -> Sums:
            logits = batch.logits(nnx.merge(self._evaluating, params, buffers), None)
            loss = cross_entropy(logits, batch.labels)
            right, answers = _answers(logits, batch.labels)
            weights = batch.weights
            of_all = right @ weights, answers @ weights
            return Sums(loss @ weights, jnp.sum(weights, axis=0), *of_all)

        return evaluate


def _split(model: nnx.Module, *, training: bool) -> tuple[Any, Any, Any]:
    """(definition, parameters, other variables) of the model in the given mode."""
    if training:
        model.train()
    else:
        model.eval()
    definition, params, buffers = nnx.split(model, nnx.Param, ...)
    return definition, params, buffers


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """`float[L]`, of classes `int[L]`; of several labels `bool[L, C]` the mean over the classes."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if labels.ndim == 2:
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels), axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def _answers(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`float32[L]` twice, as in `Sums`: with several labels their quotient is the micro-F1."""
    if labels.ndim == 2:
        said = logits > 0
        both = jnp.sum(said & labels, axis=-1, dtype=jnp.float32)
        return 2 * both, jnp.sum(said, -1, jnp.float32) + jnp.sum(labels, -1, jnp.float32)
    right = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return right, jnp.ones_like(right)


def temp_bytes(*compiled: Any) -> int | None:
    """The largest of their temporary buffers; None if none is known."""
    sizes = [getattr(c.memory_analysis(), "temp_size_in_bytes", None) for c in compiled]
    known = [size for size in sizes if size is not None]
    return max(known) if known else None
