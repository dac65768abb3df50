"""One run: epochs, early stopping, checkpoints."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.distributed.process_group import of_main
from gnnjit.training.checkpoint import RunCheckpoint, digest, fill, named_arrays
from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import CheckpointError, TrainError
from gnnjit.training.metrics import Sums
from gnnjit.training.processes import SharedCheckpoint
from gnnjit.training.scores import scores_of
from gnnjit.training.steps import ModelFunctions, TrainState
from gnnjit.training.tasks import SPLITS, Task


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What an epoch showed. `loss` is of the update; the rest is evaluated after it.

    `accuracy`, the score by which epochs are compared, and `losses` are by split, None for a split
    without labels and in an epoch that was not evaluated (`evaluate_every`). `scores` are the
    other scores, by name and split. `seconds` is the wall time of update and evaluation; it is the
    one field that two equal runs do not share.
    """

    epoch: int
    loss: float
    accuracy: dict[str, float | None]
    losses: dict[str, float | None]
    seconds: float
    scores: dict[str, dict[str, float | None]] = dataclasses.field(default_factory=dict)

    @property
    def evaluated(self) -> bool:
        """Whether it was evaluated."""
        return any(value is not None for value in self.accuracy.values())

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Stopping:
    """Which epoch was best, and since when nothing improved.

    Best is the highest validation accuracy, among equals the lowest validation loss; without a
    validation split, the last epoch. Any new top accuracy or lowest loss resets `stale`. `by_loss`
    compares epochs by the validation loss alone.
    """

    best_epoch: int = 0
    best_accuracy: float = -math.inf
    best_loss: float = math.inf
    lowest_loss: float = math.inf
    stale: int = 0
    by_loss: bool = False

    def update(self, record: Epoch) -> bool:
        """Take note of an epoch; whether it is the best so far."""
        if not record.evaluated:
            self.stale += 1
            return False
        accuracy, loss = record.accuracy["val"], record.losses["val"]
        if accuracy is None:
            self.best_epoch = record.epoch
            return True
        loss = math.inf if loss is None else loss
        rose, fell = accuracy > self.best_accuracy and not self.by_loss, loss < self.lowest_loss
        self.stale = 0 if rose or fell else self.stale + 1
        self.lowest_loss = min(self.lowest_loss, loss)
        equal = self.by_loss or accuracy == self.best_accuracy
        better = rose or (equal and loss < self.best_loss)
        if better:
            self.best_epoch, self.best_accuracy, self.best_loss = record.epoch, accuracy, loss
        return better


class Steps(Protocol):
    """The functions of a run: `steps.CompiledSteps`, or `streamed.Streamed` within a budget."""

    @property
    def update(self) -> Callable[..., tuple[TrainState, jax.Array]]: ...

    @property
    def evaluate(self) -> Callable[..., Sums]: ...

    def figures(self) -> dict[str, Any]: ...


class Watcher:
    """Is told what a training does. This one shows nothing; see `progress` for those that do."""

    def start(self, name: str, done: int, epochs: int) -> None:
        """A run starts, or continues after `done` epochs."""

    def stage(self, name: str, done: int, total: int) -> None:
        """So much is done of what comes before an epoch: a stage of the dataset's preparation, and
        within a budget building the grid and compiling."""

    def part(self, done: float) -> None:
        """So much of an epoch is done, from 0 to 1; told only where a budget is kept to."""

    def epoch(self, record: Epoch) -> None:
        """An epoch has ended, and its checkpoint (if it has one) is written."""

    def finish(self) -> None:
        """The run has ended, by itself or by an error."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        name: "seed-3" or "fold-7".
        seed: of weights and dropout.
        best_epoch: the epoch whose weights were kept, counted from 1.
        stopped_early: whether patience ran out before the epochs did.
        history: every epoch.
        params, buffers: the weights of the best epoch.
    """

    name: str
    seed: int
    best_epoch: int
    stopped_early: bool
    history: list[Epoch]
    params: Any
    buffers: Any

    @property
    def best(self) -> Epoch:
        """The record of the best epoch."""
        return self.history[self.best_epoch - 1]

    def to_dict(self) -> dict[str, Any]:
        """What JSON holds of the run: all but the weights."""
        return {
            "name": self.name,
            "seed": self.seed,
            "epochs": len(self.history),
            "best_epoch": self.best_epoch,
            "stopped_early": self.stopped_early,
            "accuracy": self.best.accuracy,
            "losses": self.best.losses,
            "weights_sha256": digest(named_arrays((self.params, self.buffers))),
            "history": [record.to_dict() for record in self.history],
        }


@dataclasses.dataclass
class _Progress:
    """All that a checkpoint holds."""

    state: TrainState
    best: tuple[Any, Any]
    stopping: Stopping
    history: list[Epoch]

    def arrays(self) -> dict[str, np.ndarray]:
        return named_arrays((self.state, self.best))

    def record(self) -> dict[str, Any]:
        return {
            "stopping": dataclasses.asdict(self.stopping),
            "history": [record.to_dict() for record in self.history],
        }

    def restore(self, arrays: dict[str, np.ndarray], record: dict[str, Any]) -> None:
        self.state, self.best = fill((self.state, self.best), arrays)
        self.stopping = Stopping(**record["stopping"])
        self.history = [Epoch(**entry) for entry in record["history"]]


class Trainer:
    """Runs of one model on one task: seeds share what was compiled."""

    def __init__(
        self,
        functions: ModelFunctions,
        steps: Steps,
        config: TrainConfig,
        watcher: Watcher,
        checkpoint_every: int,
    ) -> None:
        self._functions = functions
        self._steps = steps
        self._config = config
        self._watcher = watcher
        self._every = checkpoint_every

    def run(
        self, task: Task, name: str, seed: int, checkpoint: RunCheckpoint | SharedCheckpoint | None
    ) -> Run:
        """Train from scratch, or from the newest checkpoint if there is one."""
        progress = self._begin(seed, checkpoint)
        done = len(progress.history)
        self._watcher.start(name, done, self._config.epochs)
        try:
            while not self._finished(progress):
                self._advance(task, seed, progress)
                done += 1
                if checkpoint and (done % self._every == 0 or self._finished(progress)):
                    checkpoint.save(done, progress.arrays(), progress.record())
                self._watcher.epoch(progress.history[-1])
        finally:
            self._watcher.finish()
        params, buffers = progress.best
        return Run(
            name=name,
            seed=seed,
            best_epoch=progress.stopping.best_epoch,
            stopped_early=done < self._config.epochs,
            history=progress.history,
            params=params,
            buffers=buffers,
        )

    def _begin(self, seed: int, checkpoint: RunCheckpoint | SharedCheckpoint | None) -> _Progress:
        state = self._functions.initial(seed)
        progress = _Progress(state, _copy(state), self._stopping(), [])
        if checkpoint is None:
            return progress
        arrays, record = checkpoint.load(progress.arrays())
        if not record:
            return progress
        progress.restore(arrays, record)
        progress.state, progress.best = self._functions.placed((progress.state, progress.best))
        done = len(progress.history)
        if done > self._config.epochs:
            raise CheckpointError(
                f"{checkpoint.path} is at epoch {done}, expected at most {self._config.epochs}: "
                f"pass --epochs {done} or more"
            )
        return progress

    def _stopping(self) -> Stopping:
        return Stopping(by_loss=self._config.best_by == "loss")

    def _finished(self, progress: _Progress) -> bool:
        patience = self._config.patience
        out_of_patience = patience > 0 and progress.stopping.stale >= patience
        return out_of_patience or len(progress.history) >= self._config.epochs

    def _advance(self, task: Task, seed: int, progress: _Progress) -> None:
        number = len(progress.history) + 1
        started = time.perf_counter()
        progress.state, loss = train_epoch(self._steps, task, progress.state, seed, number)
        sums = None
        if number % self._config.evaluate_every == 0 or number == self._config.epochs:
            sums = evaluate(self._steps, task, progress.state)
        loss, sums = _agreed(loss, sums)
        seconds = time.perf_counter() - started
        if not math.isfinite(loss):
            raise TrainError(
                f"the training loss is {loss} at epoch {number}, expected a finite number: lower "
                f"the learning rate (--lr, now {self._config.lr})"
            )
        record = Epoch(number, loss, *_evaluated(sums), seconds)
        if sums is not None:
            record.scores.update(scores_of(sums))
        progress.history.append(record)
        if progress.stopping.update(record):
            progress.best = _copy(progress.state)


def train_epoch(
    steps: Steps, task: Task, state: TrainState, seed: int, number: int
) -> tuple[TrainState, float]:
    """One pass over the training batches; the mean of their losses. Consumes `state`."""
    losses = []
    for index, batch in enumerate(task.train_batches(seed, number)):
        counts = np.int32(seed), np.int32(number - 1), np.int32(index)
        state, loss = steps.update(state, batch, *counts)
        losses.append(loss)
    return state, float(np.mean([np.float64(loss) for loss in losses]))


def evaluate(steps: Steps, task: Task, state: TrainState) -> Sums:
    """The sums over all labels, as float64 on the host."""
    parts = [steps.evaluate(state.params, state.buffers, b) for b in task.eval_batches()]
    return jax.tree.map(lambda *leaves: sum(np.asarray(x, np.float64) for x in leaves), *parts)


def _agreed(loss: float, sums: Sums | None) -> tuple[float, Sums | None]:
    """Those of process 0: all must find the same epoch best, and stop at the same."""
    leaves, structure = jax.tree.flatten((np.float64(loss), sums))
    numbers = of_main(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    parts = np.split(numbers, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    same = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    loss, sums = jax.tree.unflatten(structure, same)
    return float(loss), sums


def _evaluated(sums: Sums | None) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """The score and the loss of each split; None where it was not evaluated."""
    if sums is None:
        return dict.fromkeys(SPLITS), dict.fromkeys(SPLITS)
    score = _quotients(sums.right, sums.answers, sums.count)
    return score, _quotients(sums.loss, sums.count, sums.count)


def _quotients(total: np.ndarray, by: np.ndarray, count: np.ndarray) -> dict[str, float | None]:
    """Of each split; None where it has no labels, or the total is no number."""
    return {
        split: float(total[i] / max(by[i], 1)) if count[i] and np.isfinite(total[i]) else None
        for i, split in enumerate(SPLITS)
    }


def _copy(state: TrainState) -> tuple[Any, Any]:
    """(params, buffers) in buffers of their own, since an update donates the state's."""
    return jax.tree.map(jnp.copy, (state.params, state.buffers))
