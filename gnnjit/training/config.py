"""What a training run depends on: the same configuration and data give the same numbers."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnjit.nn.recipes import MODELS, MODELS_OF, RECIPES, Recipe, recipe_for
from gnnjit.training.errors import TrainError

OPTIMIZERS = ("adam", "adamw")
DECAYS = ("first", "all", "batch")
SPLITTINGS = ("given", "random")
LOSSES = ("pairs", "softmax")
BEST_BY = ("accuracy", "loss")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Hyperparameters of one run.

    Attributes:
        model: a name in `gnnjit.nn.recipes.MODELS_OF`.
        layers: message-passing layers.
        hidden: width of the hidden layers; of each head, for models with attention; of the
            embeddings, where links are predicted.
        heads, out_heads: heads of the hidden layers and of the last one, for such models.
        dropout: rate, in [0, 1).
        lr: learning rate, above 0.
        weight_decay: L2 coefficient, see `optimizer`.
        decay: which weights it acts on, the "first" layer's or "all"; never biases and norms. With
            "batch" it acts, in the loss, on the embeddings that a batch of links reads.
        optimizer: "adam" adds the L2 gradient before Adam's scaling, as GCN and GAT do; "adamw"
            decays the weights apart from it (Loshchilov & Hutter 2019).
        epochs: the most epochs to train.
        patience: stop after so many epochs in which neither the validation accuracy rose nor the
            validation loss fell below all before (the rule of GAT, section 3.3); 0 never stops.
        best_by: the epoch whose weights are kept has the highest validation "accuracy", or the
            lowest "loss", of which alone `patience` then counts: vertices with labels only.
        seed: of initial weights, dropout, folds and batches.
        batch_size: graphs per step, for datasets of many graphs, or links; 0 takes all in one step.
        steps_per_epoch: steps that make an epoch, for datasets of many graphs, and of a knowledge
            graph.
        halve_every: halve the learning rate every so many epochs; 0 keeps it.
        normalize_features: divide each vertex's features by their sum.
        negatives: false links for each true one, where links are predicted.
        clip: the largest norm of all gradients together; 0 leaves them as they are.
        evaluate_every: epochs from one evaluation to the next; the last epoch is evaluated too.
        split: "given" is the dataset's own; "random" draws 60, 20 and 20 % of the labelled vertices
            to train on, for validation and for the test, anew for each seed.
        loss: of recommendation: "pairs" ranks each item above one that the user did not take,
            "softmax" above many that a batch shares.
        select_every: epochs after which walks or anchor sets are drawn anew, for models that have
            some; 0 keeps the first. What is evaluated has the first.

    Raises:
        TrainError: listing every field that is out of range.
    """

    model: str = "gat"
    layers: int = 2
    hidden: int = 16
    heads: int = 4
    out_heads: int = 1
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 5e-4
    decay: str = "all"
    optimizer: str = "adam"
    epochs: int = 200
    patience: int = 0
    best_by: str = "accuracy"
    seed: int = 0
    batch_size: int = 0
    steps_per_epoch: int = 1
    halve_every: int = 0
    normalize_features: bool = False
    negatives: int = 1
    clip: float = 0.0
    evaluate_every: int = 1
    split: str = "given"
    loss: str = "pairs"
    select_every: int = 0

    def __post_init__(self) -> None:
        wrong = [
            f"{field.name} is {getattr(self, field.name)!r}, expected {_KINDS[field.type][1]}"
            for field in dataclasses.fields(self)
            if not _is_a(str(field.type), getattr(self, field.name))
        ]
        if wrong:
            raise TrainError("; ".join(wrong))
        rules = (
            ("model", self.model in _KNOWN, f"one of {', '.join(_KNOWN)}"),
            ("layers", 1 <= self.layers <= 1000, "1 to 1000"),
            ("hidden", self.hidden >= 1, "at least 1"),
            ("heads", self.heads >= 1, "at least 1"),
            ("out_heads", self.out_heads >= 1, "at least 1"),
            ("dropout", 0 <= self.dropout < 1, "from 0 to below 1"),
            ("lr", 0 < self.lr < math.inf, "above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            ("decay", self.decay in DECAYS, " or ".join(DECAYS)),
            ("optimizer", self.optimizer in OPTIMIZERS, " or ".join(OPTIMIZERS)),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("patience", self.patience >= 0, "at least 0 (0 never stops early)"),
            ("best_by", self.best_by in BEST_BY, " or ".join(BEST_BY)),
            ("seed", 0 <= self.seed < 2**31, "0 to 2**31 - 1"),
            ("batch_size", self.batch_size >= 0, "at least 0 (0 is all at once)"),
            ("steps_per_epoch", self.steps_per_epoch >= 1, "at least 1"),
            ("halve_every", self.halve_every >= 0, "at least 0 (0 never halves)"),
            ("negatives", self.negatives >= 1, "at least 1"),
            ("clip", 0 <= self.clip < math.inf, "at least 0 (0 does not clip)"),
            ("evaluate_every", self.evaluate_every >= 1, "at least 1"),
            ("split", self.split in SPLITTINGS, " or ".join(SPLITTINGS)),
            ("loss", self.loss in LOSSES, " or ".join(LOSSES)),
            ("select_every", self.select_every >= 0, "at least 0 (0 selects once)"),
        )
        wrong = [
            f"{name} is {getattr(self, name)!r}, expected {wanted}"
            for name, fine, wanted in rules
            if not fine
        ]
        if wrong:
            raise TrainError("; ".join(wrong))

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def recipe(self, task: Any = "vertex") -> Recipe:
        """The same as a recipe for a task, which can build the model."""
        names = {field.name for field in dataclasses.fields(Recipe)}
        same = {name: value for name, value in self.to_dict().items() if name in names}
        same["batch_size"] = self.batch_size or None
        same["halve_every"] = self.halve_every or None
        return Recipe(**same, task=task, learning_rate=self.lr)


_KNOWN = tuple(dict.fromkeys(name for names in MODELS_OF.values() for name in names))

_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    "int": ((int, np.integer), "a whole number below 2**31"),
    "float": ((int, float, np.integer, np.floating), "a number"),
    "bool": ((bool, np.bool_), "True or False"),
    "str": ((str,), "text"),
}


def _is_a(kind: str, value: Any) -> bool:
    if (kind == "bool") != isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, _KINDS[kind][0]) and not (kind == "int" and abs(value) >= 2**31)


FIELDS = tuple(field.name for field in dataclasses.fields(TrainConfig))

_RENAMED = {"learning_rate": "lr"}
# For the generated graph, which the literature has no numbers for.
_COMMUNITIES = {"hidden": 16, "heads": 4, "dropout": 0.3, "lr": 0.01, "epochs": 60, "patience": 20}


def recipe_values(dataset: str, model: str, task: str) -> dict[str, Any]:
    """The hyperparameters that `gnnjit.nn.recipes` gives for a dataset and model.

    Where there is no recipe for that pair, features stay as they are.

    Raises:
        TrainError: on an unknown model.
    """
    known_models = MODELS_OF[task]
    if model not in known_models:
        close = difflib.get_close_matches(model, known_models, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        what = f"unknown model {model!r}"
        if model in _KNOWN:
            what = f"{model} is no model for {dataset}"
        raise TrainError(f"{what}, expected one of {', '.join(known_models)}{hint}")
    known = RECIPES.get((dataset, model))
    if known is None and task == "graph":
        other = next((r for r in RECIPES.values() if r.task == "graph"), None)
        known = dataclasses.replace(other, model=model) if other else None
    values = dataclasses.asdict(known or recipe_for(dataset, model))
    values = {_RENAMED.get(k, k): v for k, v in values.items()}
    values = {k: v for k, v in values.items() if k in FIELDS}
    for field in ("patience", "batch_size", "halve_every"):
        values[field] = values[field] or 0
    if (dataset, model) not in RECIPES:
        values["normalize_features"] = False
    return {**values, **(_COMMUNITIES if dataset == "communities" else {})}


def resolve(dataset: str, task: str, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration: what is `given` (None is not given), else the recipe's, else the default.

    The model defaults to attention for vertices, GIN for graphs, and else to the first of
    `MODELS_OF`.

    Raises:
        TrainError: on a name that is no field, or a value out of range.
    """
    given = {k: v for k, v in given.items() if v is not None}
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise TrainError(
            f"{', '.join(unknown)}: no such hyperparameter, expected some of {', '.join(FIELDS)}"
        )
    model = given.setdefault(
        "model", {"vertex": "gat", "graph": "gin"}.get(task, MODELS_OF[task][0])
    )
    unused = _unused(model, task, given)
    if unused:
        raise TrainError("; ".join(unused))
    return TrainConfig(**{**recipe_values(dataset, model, task), **given})


def _unused(model: str, task: str, given: Mapping[str, Any]) -> list[str]:
    """What is given but would decide nothing, in words."""
    out = []
    heads = [name for name in ("heads", "out_heads") if name in given]
    if heads and model in MODELS_OF[task] and not has_heads(model):
        some = ", ".join(name for name in MODELS_OF[task] if has_heads(name)) or "others"
        out.append(
            f"{', '.join(heads)}: {model} has no attention heads, which {some} have: leave it out"
        )
    graphs = [name for name in ("batch_size", "steps_per_epoch") if name in given]
    if "steps_per_epoch" in given and task == "recommendation":
        out.append(
            "steps_per_epoch: an epoch has as many pairs as there are interactions to train on: "
            "leave it out"
        )
    elif graphs and task not in ("graph", "link", "recommendation"):
        out.append(
            f"{', '.join(graphs)}: for datasets of many graphs, and this is one, which is trained "
            "on as a whole: leave it out"
        )
    elif "steps_per_epoch" in given and not given.get("batch_size", 1):
        out.append("steps_per_epoch: without a batch_size, an epoch is one step: leave it out")
    return out


def has_heads(model: str) -> bool:
    """Whether a model has attention heads."""
    return model in ("han", "hgt", "magnn") or (model in MODELS and MODELS[model].attention)


def in_words(config: TrainConfig, task: str) -> str:
    """The hyperparameters that decide something, on a line."""
    of_links = task in ("link", "recommendation")
    parts = [
        f"{config.layers} layers",
        f"hidden {config.hidden}",
        f"{config.heads} heads" if has_heads(config.model) else "",
        f"dropout {config.dropout:g}",
        f"{config.optimizer} with lr {config.lr:g}",
        f"halved every {config.halve_every} epochs" if config.halve_every else "",
        f"weight decay {config.weight_decay:g} ({config.decay})" if config.weight_decay else "",
        f"{config.steps_per_epoch} steps of {config.batch_size} graphs an epoch"
        if config.batch_size and task == "graph"
        else "",
        f"batches of {config.batch_size} links" if config.batch_size and of_links else "",
        f"{config.steps_per_epoch} steps an epoch" if task == "link" else "",
        f"{config.negatives} negatives" if of_links else "",
        f"gradients clipped at {config.clip:g}" if config.clip else "",
        f"at most {config.epochs} epochs",
        f"evaluated every {config.evaluate_every}" if config.evaluate_every > 1 else "",
        f"patience {config.patience}" if config.patience else "",
        "the epoch of the lowest loss" if config.best_by == "loss" else "",
        "normalised features" if config.normalize_features else "",
        "60/20/20 % drawn by the seed" if config.split == "random" else "",
        "softmax over the items of a batch" if config.loss == "softmax" else "",
        f"neighbours selected anew every {config.select_every} epochs"
        if config.select_every
        else "",
        f"seed {config.seed}",
    ]
    return f"{config.model}: {', '.join(part for part in parts if part)}"
