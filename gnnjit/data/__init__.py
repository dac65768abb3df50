"""Datasets: built in, generated, or read from files in their papers' own formats."""

from gnnjit.config import cache_dir
from gnnjit.data.blogcatalog import blogcatalog
from gnnjit.data.citation import citation_full
from gnnjit.data.communities import communities
from gnnjit.data.fb15k import fb15k_237
from gnnjit.data.gowalla import gowalla, lastfm
from gnnjit.data.imdb import imdb
from gnnjit.data.karate import karate
from gnnjit.data.links import LinkDataset
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
    "LinkDataset",
    "blogcatalog",
    "cache_dir",
    "citation_full",
    "communities",
    "fb15k_237",
    "gowalla",
    "imdb",
    "karate",
    "lastfm",
    "open_dataset",
    "planetoid",
    "ppi",
    "row_normalize",
    "tu",
]
