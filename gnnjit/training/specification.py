"""What is to be trained, and how: every option of a training, checked before any data is read."""

from __future__ import annotations

import dataclasses
import os

from gnnjit.sharding.cut import PARTITIONS
from gnnjit.sharding.exchange import EXCHANGES
from gnnjit.system.memory_budget import parse_size
from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import CheckpointError, TrainError
from gnnjit.training.neighborhoods import DRAWN, SELECTED_FOR
from gnnjit.training.processes import processes
from gnnjit.training.sampled import SUBGRAPHS, Sampling
from gnnjit.training.sharded import Spread


@dataclasses.dataclass(frozen=True)
class Specification:
    """The options of one training, which fit each other.

    Attributes:
        name: the dataset's.
        task: a key of `gnnjit.nn.recipes.MODELS_OF`.
        config: hyperparameters, of the first run.
        stored: whether the dataset is a `StoredDataset`.
        sampling: what batches it runs on; None for the whole graph in every step.
        seeds, folds, checkpoint, resume, checkpoint_every, compare, memory_budget, store, devices,
            partition, exchange: as in `gnnjit.training.train`.
        budget: bytes of `memory_budget`.
        spread: over which devices; None for one device, and for one in each process that streams.

    Raises:
        TrainError, CheckpointError: where options do not fit each other, or this machine.
        PlanError: where the budget is no size.
    """

    name: str
    task: str
    config: TrainConfig
    stored: bool = False
    sampling: Sampling | None = None
    seeds: int = 1
    folds: int = 10
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    checkpoint_every: int = 10
    compare: bool = False
    memory_budget: int | str | None = None
    store: str | os.PathLike[str] | None = None
    devices: int | None = None
    partition: str = "auto"
    exchange: str = "auto"
    budget: int | None = dataclasses.field(init=False)
    spread: Spread | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._check_neighborhoods()
        self._check_choices()
        self._check_task()
        object.__setattr__(self, "spread", self._spread())
        self._check_budget()
        budget = None if self.memory_budget is None else parse_size(self.memory_budget)
        object.__setattr__(self, "budget", budget)
        self._check_store()
        self._check_sampling()
        self._check_runs()

    def _check_neighborhoods(self) -> None:
        """Neighbourhoods and drawn splits are those of a whole graph in memory."""
        model = self.config.model
        selects = model in SELECTED_FOR
        for what, used in (
            ("a memory budget", self.memory_budget is not None),
            ("a store", self.stored or self.store is not None),
            ("several devices", self.devices is not None or processes() > 1),
            ("a sampler", self.sampling is not None),
        ):
            if used and selects:
                raise TrainError(
                    f"{model} selects neighbours of the whole graph, in memory, on one device, and "
                    f"{what} does not go with it: leave it out, or choose another model"
                )
            if used and self.config.split == "random":
                raise TrainError(
                    f"the split is 'random', which is drawn for a graph in memory on one device, "
                    f"and {what} does not go with it: leave it out, or take the given split "
                    "(--split given)"
                )

    def _check_choices(self) -> None:
        """What the configuration chooses is there to be chosen, for this task and model."""
        if self.config.split == "random" and self.task not in ("vertex", "typed"):
            raise TrainError(
                f"the split is 'random', expected 'given': {self.name} has no classes of the "
                "vertices of one graph"
            )
        if self.config.select_every and self.config.model not in DRAWN:
            raise TrainError(
                f"select_every is {self.config.select_every}, expected 0: {self.config.model} "
                f"draws no neighbours at random, which {' and '.join(DRAWN)} do"
            )
        if self.config.best_by == "loss" and self.task not in ("vertex", "typed"):
            raise TrainError(
                f"best_by is 'loss', expected 'accuracy': {self.name} has no labels of the "
                "vertices of one graph, which have a validation loss"
            )
        if self.config.loss != "pairs" and self.task != "recommendation":
            raise TrainError(
                f"the loss is {self.config.loss!r}, expected 'pairs': {self.name} has no items to "
                "rank"
            )

    def _check_task(self) -> None:
        """What only datasets of one graph with features and classes can be trained with."""
        if self.task in ("vertex", "graph"):
            return
        typed = self.task == "typed"
        sampled = self.task == "link" and self._samples_parts()
        for what, used in (
            ("a memory budget", self.memory_budget is not None),
            ("a store", self.stored or self.store is not None),
            ("several devices", not typed and (self.devices is not None or processes() > 1)),
            ("a sampler", self.sampling is not None and not sampled),
            ("a comparison with plain segment operations", self.compare and not typed),
        ):
            if used and typed:
                raise TrainError(
                    f"{self.name} has vertices of several types and is trained in memory, and "
                    f"{what} is for graphs without types: leave it out; where memory is short, "
                    "take several devices (--devices 8, devices=)"
                )
            if used:
                raise TrainError(
                    f"{self.name} is trained in memory, on one device, in one process, and {what} "
                    "is for classes of the vertices of one graph: leave it out"
                )

    def _samples_parts(self) -> bool:
        """Whether links of sampled parts are trained on. Raises TrainError where the sampler draws
        no parts, or is to weigh them."""
        if self.sampling is None:
            return False
        if self.sampling.sampler not in SUBGRAPHS:
            raise TrainError(
                f"{self.name} is trained on the facts of a part of the graph, and the sampler "
                f"{self.sampling.sampler} draws neighbours or clusters of seeds: take one of "
                f"{', '.join(SUBGRAPHS)}"
            )
        if self.sampling.normalize:
            raise TrainError(
                f"normalize weighs the losses of vertices, and {self.name} is trained on facts: "
                "leave it out"
            )
        return True

    def _spread(self) -> Spread | None:
        """Several processes without a budget take all devices, if nothing else is said."""
        for option, value, known in (
            ("partition", self.partition, PARTITIONS),
            ("exchange", self.exchange, ("auto", *EXCHANGES)),
        ):
            if value not in known:
                raise TrainError(f"{option} is {value!r}, expected one of {', '.join(known)}")
        several = processes() > 1
        if self.devices is None and (self.memory_budget is not None or not several):
            self._check_one_device()
            return None
        if self.devices is not None and self.devices < 1:
            raise TrainError(f"devices is {self.devices}, expected at least 1")
        self._check_many_devices("start one process" if several else "leave out --devices")
        spread = Spread(self.devices, self.partition, self.exchange)
        spread.mesh()  # raises TrainError
        return spread

    def _check_one_device(self) -> None:
        for option, value in (("partition", self.partition), ("exchange", self.exchange)):
            if value != "auto":
                raise TrainError(
                    f"{option} is {value!r}, which is for training over many devices: say how many "
                    "(--devices 8, devices=)"
                )

    def _check_many_devices(self, one: str) -> None:
        """`one`: how to get one device."""
        if self.task == "graph":
            raise TrainError(
                f"{self.name} is a dataset of many graphs, and only datasets of one graph are "
                f"trained on over many devices: {one}"
            )
        if self.memory_budget is not None:
            raise TrainError(
                "a memory budget and --devices cannot be combined: each process streams on one "
                "device, and several do so together (gnnjit launch): leave out --devices"
            )
        if self.compare:
            raise TrainError(
                "a comparison with plain segment operations is of one device: leave out --compare, "
                f"or {one}"
            )

    def _check_budget(self) -> None:
        in_store = (self.stored or self.store is not None) and self.spread is None
        if self.memory_budget is None:
            if in_store:
                raise TrainError(
                    f"{self.name} is in a store, which is for training within a memory budget or "
                    "over many devices: pass one too (--memory-budget 512MiB, memory_budget=), or "
                    "how many (--devices 8, devices=)"
                )
            return
        if self.task == "graph":
            raise TrainError(
                f"{self.name} is a dataset of many graphs, and a memory budget is for datasets of "
                "one graph: leave it out; where memory is short, take fewer graphs at once "
                "(--batch-size)"
            )
        if self.compare:
            raise TrainError(
                "a comparison with plain segment operations needs the whole graph in memory: leave "
                "out either --compare or the memory budget"
            )
        if processes() > 1 and not in_store:
            raise TrainError(
                f"{self.name} is in the memory of each of {processes()} processes, which train "
                "within a budget together from a folder: pass one (--store DIR, store=)"
            )

    def _check_store(self) -> None:
        if self.store is None:
            return
        if self.stored:
            raise TrainError(f"{self.name} is in a store of its own: leave out store")
        if self.spread is not None:
            raise TrainError(
                f"{self.name} is in memory, and store is {os.fspath(self.store)!r}: to have each "
                "process read its part, pass what gnnjit.data.stored.prepare.prepare gives"
            )

    def _check_sampling(self) -> None:
        if self.sampling is None:
            return
        if self.task == "graph":
            raise TrainError(
                f"{self.name} is a dataset of many graphs, whose batches are of whole graphs, and "
                "samplers are for datasets of one graph: leave out --sampler, and choose "
                "--batch-size"
            )
        for what, used in (
            ("a store", self.stored or self.store is not None),
            ("a partition", self.partition != "auto" or self.exchange != "auto"),
            ("a comparison with plain segment operations", self.compare),
        ):
            if used:
                raise TrainError(
                    f"{self.name} is trained on sampled batches, with the graph in the memory of "
                    f"each process, which {what} does not go with: leave out either"
                )

    def _check_runs(self) -> None:
        first = self.config.seed
        if not 1 <= self.seeds <= 2**31 - first:
            most = f"2**31 - {first}" if first else "2**31"
            raise TrainError(f"seeds is {self.seeds}, expected 1 to {most}")
        if self.checkpoint_every < 1:
            raise TrainError(f"checkpoint_every is {self.checkpoint_every}, expected at least 1")
        if self.resume and self.checkpoint is None:
            raise CheckpointError(
                "there is nothing to resume without a checkpoint directory: pass --checkpoint DIR"
            )
        if self.task != "graph":
            return
        if self.seeds != 1:
            raise TrainError(
                f"{self.name} is judged by cross-validation, got {self.seeds} seeds: choose the "
                "number of runs by --folds"
            )
        if self.config.patience:
            raise TrainError(
                f"patience is {self.config.patience}, expected 0: every fold of {self.name} runs "
                "all epochs, since one epoch is chosen for all"
            )
