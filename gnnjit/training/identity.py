"""What a dataset is, and what a run depends on."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from gnnjit.data import Dataset, GraphDataset
from gnnjit.data.links import LinkDataset
from gnnjit.data.pairs import PairDataset
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.data.stored.write import contents_of
from gnnjit.training.config import TrainConfig


def describe_dataset(
    dataset: Dataset | GraphDataset | LinkDataset | PairDataset | StoredDataset,
) -> dict[str, Any]:
    """The name and sizes of a dataset, as `Result` and checkpoints record them."""
    sizes = {"graphs": len(dataset)} if isinstance(dataset, GraphDataset) else {}
    return {
        "name": dataset.name,
        **sizes,
        "vertices": dataset.num_nodes,
        "edges": dataset.num_edges,
        "features": dataset.num_features,
        "classes": dataset.num_classes,
    }


def identity_of(dataset: Any, config: TrainConfig, folds: int) -> dict[str, Any]:
    """What must be equal for a run to be continued. The number of epochs and seeds may grow."""
    described = describe_dataset(dataset)
    found = {"dataset": described.pop("name"), **described, "contents": contents(dataset)}
    found.update({k: v for k, v in config.to_dict().items() if k != "epochs"})
    if isinstance(dataset, GraphDataset):
        found["folds"] = folds
    return found


def contents(dataset: Any) -> str:
    """A short hash of the dataset's arrays."""
    if isinstance(dataset, StoredDataset):
        return dataset.contents
    if isinstance(dataset, Dataset) and not dataset.is_typed:
        return contents_of(dataset)
    sha = hashlib.sha256()
    for array in _arrays(dataset):
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def _arrays(dataset: Any) -> list[Any]:
    if isinstance(dataset, LinkDataset):
        return [dataset.train, dataset.val, dataset.test]
    if isinstance(dataset, PairDataset):
        pairs = dataset.train, dataset.val, dataset.test
        return jax.tree.leaves((dataset.graph, dataset.x, dataset.y, pairs))
    if isinstance(dataset, Dataset):
        masks = dataset.train_mask, dataset.val_mask, dataset.test_mask
        return jax.tree.leaves((dataset.graph, dataset.x, dataset.y, masks))
    return [dataset.src, dataset.dst, dataset.x, dataset.y, dataset.node_offsets]
