"""Datasets: built in, generated, or read from files in their papers' own formats."""

from gnnjit.config import cache_dir
from gnnjit.data.citation import citation_full
from gnnjit.data.communities import communities
from gnnjit.data.karate import karate
from gnnjit.data.planetoid import planetoid
from gnnjit.data.ppi import ppi
from gnnjit.data.registry import DATASETS, Entry, open_dataset
from gnnjit.data.splits import row_normalize
from gnnjit.data.tu import tu
from gnnjit.data.types import Dataset, Fold, GraphDataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "Fold",
    "GraphDataset",
    "cache_dir",
    "citation_full",
    "communities",
    "karate",
    "open_dataset",
    "planetoid",
    "ppi",
    "row_normalize",
    "tu",
]
