"""Training on sampled batches; evaluation stays exact, of the whole graph."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gnnjit.data import Dataset
from gnnjit.graph.validate import shown
from gnnjit.nn.recipes import RECIPES
from gnnjit.sample import (
    ClusterSampler,
    EdgeSampler,
    FrontierSampler,
    Loader,
    NeighborSampler,
    Normalized,
    Shapes,
    VertexSampler,
    WalkSampler,
)
from gnnjit.sample.batch import Batch as Sampled
from gnnjit.streaming.compile import StreamedFunction
from gnnjit.streaming.stream import stream
from gnnjit.training.errors import TrainError
from gnnjit.training.metrics import Sums
from gnnjit.training.processes import one_cost_model
from gnnjit.training.sharded import on_one_device
from gnnjit.training.steps import ModelFunctions, TrainState, temp_bytes
from gnnjit.training.tasks import Batch, Task, split_weights

SAMPLERS: dict[str, type] = {
    "neighbor": NeighborSampler,
    "frontier": FrontierSampler,
    "walk": WalkSampler,
    "vertex": VertexSampler,
    "edge": EdgeSampler,
    "cluster": ClusterSampler,
}
"""What batches can be made by, by name."""

SEEDED = ("neighbor", "cluster")
"""Samplers whose batches are made of seeds: an epoch is each seed once."""

SUBGRAPHS = tuple(name for name in SAMPLERS if name not in SEEDED)
"""The others, which draw a part of the graph: from these, links are drawn too."""

_GIVEN = ("graph", "fanouts", "roots")
"""Arguments of samplers that are no options: a training has its own."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """What batches a training runs on.

    Attributes:
        sampler: a name in `SAMPLERS`.
        fanouts: of "neighbor", for each layer how many neighbours, from the labelled vertices on.
        batch_size: labelled vertices of a batch of "neighbor", clusters of one of "cluster".
        steps: batches of an epoch of the other samplers; None for as many as together have about
            as many labelled vertices as there are.
        normalize: whether losses and means of "frontier", "walk", "vertex" and "edge" are weighted
            to be those of the whole graph on average (GraphSAINT, section 3.2).
        shapes: sizes that batches are padded to, and programs that are compiled; one of facts.
        threads: that make batches.
        options: what the sampler takes beside these, by name.

    Raises:
        TrainError: a value is out of range, or the sampler has no such option.
    """

    sampler: str = "neighbor"
    fanouts: tuple[int, ...] = (15, 10)
    batch_size: int = 1024
    steps: int | None = None
    normalize: bool = False
    shapes: int = 4
    threads: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise TrainError(
                f"sampler is {shown(self.sampler)}, expected one of {', '.join(SAMPLERS)}"
            )
        for name in ("batch_size", "steps", "shapes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrainError(f"{name} is {value}, expected at least 1")
        if self.sampler in SEEDED:
            for name, set_ in (("steps", self.steps is not None), ("normalize", self.normalize)):
                if set_:
                    raise TrainError(
                        f"{name} is for samplers without seeds, and an epoch of the sampler "
                        f"{self.sampler} is each seed once: leave it out"
                    )
        known = [n for n in inspect.signature(SAMPLERS[self.sampler]).parameters if n not in _GIVEN]
        for name in self.options:
            if name not in known:
                raise TrainError(
                    f"the sampler {self.sampler} got the option {name!r}, expected some of "
                    f"{', '.join(known)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """All that decides numbers, for JSON."""
        found = {**dataclasses.asdict(self), "fanouts": list(self.fanouts)}
        del found["threads"]
        return found

    def in_words(self) -> str:
        """On a line."""
        if self.sampler == "neighbor":
            what = f"{self.batch_size} vertices, {', '.join(map(str, self.fanouts))} neighbours"
        elif self.sampler == "cluster":
            what = f"{self.batch_size} clusters"
        else:
            what = "normalised" if self.normalize else ""
        parts = [what, *(f"{k} {v}" for k, v in self.options.items()), f"{self.shapes} shapes"]
        return f"batches by {self.sampler}: {', '.join(p for p in parts if p)}"


def usual_sampling(dataset: str, model: str) -> Sampling | None:
    """How the recipe of a dataset and model samples; None where it trains on the whole graph."""
    recipe = RECIPES.get((dataset, model))
    if recipe is None or recipe.sampler is None:
        return None
    return Sampling(recipe.sampler, shapes=1, options=dict(recipe.sampler_options))


class SampledTask:
    """A graph whose vertices are labelled, in batches that a sampler draws.

    Over several devices each has batches of its own, and a step is that of their union.

    Attributes:
        sampling: how.
        shapes: what batches are padded to, the same for all seeds; one over several devices.
        mesh: of the devices; None of one.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampling: Sampling,
        layers: int,
        seed: int,
        whole: Task,
        mesh: Mesh | None = None,
    ) -> None:
        """`seed`: of the clusters, of the normalisation, and of the batches that shapes are planned
        from. `whole`: what is evaluated."""
        if sampling.sampler == "neighbor" and len(sampling.fanouts) != layers:
            raise TrainError(
                f"fanouts has {len(sampling.fanouts)} numbers and the model {layers} layers, "
                f"expected one for each layer: pass --fanouts or --layers (fanouts=)"
            )
        self.sampling, self.mesh, self._whole = sampling, mesh, whole
        self._dataset = dataset
        self._weights = split_weights(dataset)
        self._sampler = _make(dataset, sampling, seed)
        self._steps = sampling.steps or self._usual_steps(seed)
        self._loaders: dict[int, list[Loader]] = {}
        self.shapes: Shapes | None = None
        self.shapes = self._loaders_of(seed)[0].shapes

    @property
    def everywhere(self) -> NamedSharding | None:
        """The sharding of what is the same on all devices, if there are several."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def _usual_steps(self, seed: int) -> int | None:
        if self.sampling.sampler in SEEDED:
            return None
        labelled = np.asarray(self._dataset.train_mask)
        held = int(labelled[self._sampler.sample(None, seed).vertices].sum())
        return max(1, round(int(labelled.sum()) / max(held, 1)))

    def _loaders_of(self, seed: int) -> list[Loader]:
        """One for each device of this process; they are kept for the next epoch."""
        if seed in self._loaders:
            return self._loaders[seed]
        if self.mesh is None:
            loaders = [self._loader(seed, (0, 1), None)]
        else:
            devices = list(self.mesh.devices.flat)
            here = [i for i, d in enumerate(devices) if d.process_index == jax.process_index()]
            loaders = [self._loader(seed, (i, len(devices)), devices[i]) for i in here]
        self._loaders[seed] = loaders
        return loaders

    def _loader(self, seed: int, share: tuple[int, int], device: Any) -> Loader:
        sampling, train = self.sampling, np.asarray(self._dataset.train_mask)
        by_vertex = sampling.sampler == "neighbor"
        shapes = sampling.shapes if self.mesh is None else 1
        return Loader(
            self._sampler,
            np.asarray(self._dataset.x),
            {"labels": np.asarray(self._dataset.y), "weights": self._weights},
            seeds=train if by_vertex else None,
            labelled=None if by_vertex else train,
            batch_size=sampling.batch_size,
            steps=self._steps,
            seed=seed,
            shapes=self.shapes or shapes,
            threads=sampling.threads,
            share=share,
            device=device,
        )

    def train_batches(self, seed: int, epoch: int) -> Iterator[Any]:
        loaders = self._loaders_of(seed)
        for loader in loaders:
            loader.set_state({**loader.state(), "epoch": epoch, "index": 0, "part": 0})
        if self.mesh is None:
            return iter(loaders[0])
        return (self._side_by_side(parts) for parts in zip(*loaders, strict=True))

    def eval_batches(self) -> list[Batch]:
        """The whole graph, once."""
        return self._whole.eval_batches()

    def _side_by_side(self, parts: Sequence[Sampled]) -> Sampled:
        """The batches of all devices as one, whose arrays are theirs one after the other."""
        assert self.mesh is not None
        along = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names[0]))
        devices = self.mesh.devices.size

        def join(*leaves: jax.Array) -> jax.Array:
            shape = devices * leaves[0].shape[0], *leaves[0].shape[1:]
            return jax.make_array_from_single_device_arrays(shape, along, list(leaves))

        return jax.tree.map(join, *parts)

    def figures(self) -> dict[str, Any]:
        """What is reported of the batches that this process made."""
        reports = [loader.report() for some in self._loaders.values() for loader in some]
        per_shape = np.sum([report.per_shape for report in reports], axis=0)
        padding = [r.padding.work for r in reports if r.padding is not None]
        return {
            **self.sampling.to_dict(),
            "batches_per_shape": [int(n) for n in per_shape],
            "padding_percent": float(np.mean(padding)) if padding else None,
            "splits": sum(r.splits for r in reports),
            "resamples": sum(r.resamples for r in reports),
            "normalization_seconds": getattr(self._sampler, "seconds", None),
        }


class SampledSteps:
    """The two functions of a run on sampled batches; what `steps.CompiledSteps` is without them.

    The update is compiled once for each shape of batches, when the first of that shape comes. The
    whole graph is evaluated on one device, in each process by itself; within `budget` bytes block
    by block, if there is one.
    """

    def __init__(
        self, functions: ModelFunctions, task: SampledTask, budget: int | None = None
    ) -> None:
        self._task = task
        self._compiled: dict[Any, Any] = {}
        self._seconds = 0.0
        self._update = self._jitted(functions, task.mesh)
        state, whole = self._alone(functions.initial(0)), task.eval_batches()[0]
        if budget is not None:
            self._evaluate: Any = stream(functions.evaluate, memory_budget=budget)
            return
        evaluate = jax.jit(functions.evaluate)
        self._evaluate = self._timed(evaluate, state.params, state.buffers, whole)

    @staticmethod
    def _jitted(functions: ModelFunctions, mesh: Mesh | None) -> Any:
        def update(state: TrainState, sampled: Sampled, *counts: Any) -> Any:
            return functions.update(state, batch_of(sampled), *counts)

        if mesh is None:
            return jax.jit(update, donate_argnums=0)
        same, along = PartitionSpec(), PartitionSpec(mesh.axis_names[0])
        spread = jax.shard_map(
            update, mesh=mesh, in_specs=(same, along, same, same, same), out_specs=(same, same)
        )
        return jax.jit(spread, donate_argnums=0)

    def update(
        self, state: TrainState, batch: Sampled, *counts: Any
    ) -> tuple[TrainState, jax.Array]:
        """(state, batch, seed, epoch, index) -> (state, loss); donates the state."""
        leaves, structure = jax.tree.flatten(batch)
        kind = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if kind not in self._compiled:
            self._compiled[kind] = self._timed(self._update, state, batch, *counts)
        return self._compiled[kind](state, batch, *counts)

    def evaluate(self, params: Any, buffers: Any, batch: Batch) -> Sums:
        """(params, buffers, batch) -> `Sums`, of the whole graph."""
        return self._evaluate(*self._alone((params, buffers)), batch)

    def _alone(self, tree: Any) -> Any:
        return tree if self._task.mesh is None else on_one_device(tree)

    def _timed(self, function: Any, *args: Any) -> Any:
        started = time.perf_counter()
        with one_cost_model():
            compiled = function.lower(*args).compile()
        self._seconds += time.perf_counter() - started
        return compiled

    def figures(self) -> dict[str, Any]:
        """What is reported of them."""
        programs = list(self._compiled.values())
        whole = [] if isinstance(self._evaluate, StreamedFunction) else [self._evaluate]
        return {
            "compile_seconds": self._seconds,
            "temp_bytes": temp_bytes(*programs, *whole),
            "programs": len(programs),
            "sampling": self._task.figures(),
        }


def batch_of(sampled: Sampled) -> Batch:
    """A loader's batch, whose labels are those of vertices and of which split they are in, as one
    that a model is trained on."""
    weights = jnp.where(sampled.mask[:, None], sampled.y["weights"], 0)
    if sampled.weight is not None:
        weights = weights * sampled.weight[:, None]
    return Batch(
        graph=sampled.graphs,
        x=sampled.x,
        labels=sampled.y["labels"],
        weights=weights,
        rows=sampled.seeds,
        real=sampled.num_real,
        edge_weight=sampled.edge_weight,
    )


def _make(dataset: Dataset, sampling: Sampling, seed: int) -> Any:
    """The sampler, which starts from the labelled vertices where it starts from some."""
    kind, options = SAMPLERS[sampling.sampler], dict(sampling.options)
    if sampling.sampler == "neighbor":
        return kind(dataset.graph, sampling.fanouts, **options)
    parameters = inspect.signature(kind).parameters
    if "roots" in parameters:
        options["roots"] = np.asarray(dataset.train_mask)
    if "seed" in parameters:
        options.setdefault("seed", seed)
    sampler = kind(dataset.graph, **options)
    return Normalized(sampler, seed=seed) if sampling.normalize else sampler
