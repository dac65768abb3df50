"""Training: configuration, tasks, steps, checkpoints, progress, reports.

In: a data set, by name or prepared on disk. Out: a `Result` with the history of each run. `train`
runs on one device, over devices and processes, or streamed within a memory budget; `cli` calls it.
"""

from gnnjit.training.train import (
    CheckpointError,
    Epoch,
    Result,
    Run,
    Summary,
    TrainConfig,
    TrainError,
    train,
)

__all__ = [
    "CheckpointError",
    "Epoch",
    "Result",
    "Run",
    "Summary",
    "TrainConfig",
    "TrainError",
    "train",
]
