"""Training: configuration, tasks, steps, checkpoints, progress, reports.

In: a data set, by name or prepared on disk. Out: a `Result` with the history of each run. `train`
runs on one device, over devices and processes, or streamed within a memory budget; `cli` calls it.
"""

from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import CheckpointError, TrainError
from gnnjit.training.loop import Epoch, Run
from gnnjit.training.sampled import Sampling
from gnnjit.training.train import Result, Summary, train

__all__ = [
    "CheckpointError",
    "Epoch",
    "Result",
    "Run",
    "Sampling",
    "Summary",
    "TrainConfig",
    "TrainError",
    "train",
]
