"""Which task a dataset is for, which model is trained on it, and what its score is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnjit.data import (
    Dataset,
    EdgeList,
    GraphDataset,
    ParticleDataset,
    SensorDataset,
    split_links,
)
from gnnjit.data.links import LinkDataset
from gnnjit.data.pairs import PairDataset
from gnnjit.data.registry import entry_of
from gnnjit.neighborhood import HDG
from gnnjit.nn.embedded import Embedded
from gnnjit.nn.link_predictor import LinkPredictor
from gnnjit.nn.neighborhood_models import MetapathClassifier, PositionModel
from gnnjit.nn.path_predictor import PathPredictor
from gnnjit.nn.recipes import RECIPES
from gnnjit.nn.recommender import Recommender
from gnnjit.nn.typed_classifier import TypedClassifier
from gnnjit.training.config import TrainConfig, has_heads
from gnnjit.training.errors import TrainError
from gnnjit.training.neighborhoods import metapaths_of, numbered_steps
from gnnjit.training.steps import Build

TRAINED_AS = {"particles": "vertex"}
"""The task that another one is trained as."""


def trainable(dataset: Any) -> Any:
    """The dataset in the form that a model is trained on: moving particles step by step, a graph
    alone by its links.

    Raises TrainError where there is nothing to predict.
    """
    if isinstance(dataset, ParticleDataset):
        return dataset.one_step()
    if isinstance(dataset, EdgeList):
        return split_links(dataset)
    if isinstance(dataset, SensorDataset):
        raise TrainError(
            f"{dataset.name} is a series of measurements on a graph, which no model here is "
            "trained on: take dataset.graph() and dataset.windows(part) for one of your own"
        )
    if isinstance(dataset, GraphDataset) and not dataset.num_outputs:
        raise TrainError(
            f"{dataset.name} has no targets, expected a class or numbers for each graph: name them "
            "(targets=), or replace y (dataclasses.replace(dataset, y=...))"
        )
    return dataset


def task_of(dataset: Any) -> str:
    """The task of a dataset, a key of `gnnjit.nn.recipes.MODELS_OF`."""
    if isinstance(dataset, GraphDataset):
        return "graph"
    if isinstance(dataset, LinkDataset):
        return dataset.task
    if isinstance(dataset, PairDataset):
        return "pair"
    return "typed" if getattr(dataset, "is_typed", False) else "vertex"


def usual_model(dataset: Any) -> dict[str, str]:
    """The model of a dataset, or of the name of one, where none is named: nothing, where its task
    alone decides."""
    if isinstance(dataset, str):
        one = entry_of(dataset).task == "link" and (dataset, "rgcn") not in RECIPES
    elif isinstance(dataset, LinkDataset):
        one = dataset.task == "link" and dataset.num_relations == 1
    else:
        one = isinstance(dataset, EdgeList) and dataset.num_sources is None
    return {"model": "paths"} if one else {}


def _link_builder(dataset: LinkDataset, config: TrainConfig) -> Build:
    sizes = {"hidden": config.hidden, "layers": config.layers, "dropout": config.dropout}
    if dataset.task == "recommendation":
        return lambda rngs: Recommender(config.model, dataset.num_nodes, **sizes, rngs=rngs)
    if config.model == "paths":
        if dataset.num_relations > 1:
            raise TrainError(
                f"{dataset.name} has {dataset.num_relations} relations, and paths is for graphs of "
                "one: choose rgcn (--model rgcn)"
            )
        return lambda rngs: PathPredictor(config.layers, hidden=config.hidden, rngs=rngs)
    return lambda rngs: LinkPredictor(
        config.model, dataset.num_nodes, dataset.num_relations, **sizes, rngs=rngs
    )


def metric_of(dataset: Any, task: str) -> str:
    """What the score is called that epochs are compared by."""
    if task in ("link", "recommendation", "pair"):
        return {"link": "MRR", "recommendation": "recall@20", "pair": "AUC"}[task]
    if getattr(dataset, "is_regression", False):
        return "R2"
    return "micro-F1" if getattr(dataset, "has_several_labels", False) else "accuracy"


def _metapath_builder(dataset: Dataset, config: TrainConfig, hdgs: Mapping[str, HDG]) -> Build:
    paths = metapaths_of(dataset, config.layers)
    return lambda rngs: MetapathClassifier(
        dataset.widths,
        dataset.num_outputs,
        hdgs=hdgs,
        target=str(dataset.target),
        hidden=config.hidden,
        heads=config.heads,
        layers=config.layers,
        relations={t: numbered_steps(dataset, of_type) for t, of_type in paths.items()},
        dropout=config.dropout,
        rngs=rngs,
    )


def _pair_builder(dataset: PairDataset, config: TrainConfig) -> Build:
    return lambda rngs: PositionModel(
        dataset.num_features,
        hidden=config.hidden,
        layers=config.layers,
        dropout=config.dropout,
        rngs=rngs,
    )


def builder(dataset: Any, config: TrainConfig, task: str, hdg: Any = None) -> Build:
    """Makes the model that the configuration names, for the sizes of the dataset and of `hdg`, the
    neighbourhoods of a model that has such."""
    if isinstance(dataset, LinkDataset):
        return _link_builder(dataset, config)
    if isinstance(dataset, PairDataset):
        return _pair_builder(dataset, config)
    if task == "typed" and hdg is not None:
        return _metapath_builder(dataset, config, hdg)
    if task == "typed":
        return lambda rngs: TypedClassifier(
            config.model,
            in_features=dataset.widths,
            num_classes=dataset.num_outputs,
            types=dataset.graph.types,
            relations=dataset.graph.relations,
            target=dataset.target,
            hidden=config.hidden,
            layers=config.layers,
            heads=config.heads,
            dropout=config.dropout,
            rngs=rngs,
        )
    recipe = config.recipe(task)
    known = isinstance(dataset, Dataset | GraphDataset)
    outputs = dataset.num_outputs if known else dataset.num_classes
    if dataset.num_features or task != "vertex":
        return lambda rngs: recipe.build(dataset.num_features, outputs, rngs)
    width = config.hidden * (config.heads if has_heads(config.model) else 1)
    return lambda rngs: Embedded(
        dataset.num_nodes, width, lambda rngs: recipe.build(width, outputs, rngs), rngs
    )
