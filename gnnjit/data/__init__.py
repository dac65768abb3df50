"""Datasets: built in, generated, or read from files in their papers' own formats."""

from gnnjit.config import cache_dir
from gnnjit.data.blogcatalog import blogcatalog
from gnnjit.data.citation import citation_full
from gnnjit.data.communities import communities
from gnnjit.data.fb15k import fb15k_237
from gnnjit.data.gowalla import gowalla, lastfm
from gnnjit.data.imdb import imdb
from gnnjit.data.karate import karate
from gnnjit.data.link_splits import negative_links, split_links
from gnnjit.data.links import LinkDataset
from gnnjit.data.molecules import molecule_set, molecules
from gnnjit.data.networks import network
from gnnjit.data.own import own_dataset
from gnnjit.data.pairs import PairDataset, caveman
from gnnjit.data.particles import ParticleDataset, lagrange
from gnnjit.data.planetoid import planetoid
from gnnjit.data.ppi import ppi
from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.reading.read import read_edges
from gnnjit.data.registry import DATASETS, Entry, open_dataset
from gnnjit.data.sensors import SensorDataset, metr_la
from gnnjit.data.splits import random_split, row_normalize, time_split
from gnnjit.data.transforms import (
    deduplicated,
    induced,
    largest_component,
    to_undirected,
    training_part,
    with_degrees,
    with_laplacian,
    with_random_walks,
    without_self_loops,
)
from gnnjit.data.tu import tu
from gnnjit.data.types import Dataset, Fold, GraphDataset

__all__ = [
    "DATASETS",
    "Dataset",
    "EdgeList",
    "Entry",
    "Fold",
    "GraphDataset",
    "LinkDataset",
    "PairDataset",
    "ParticleDataset",
    "SensorDataset",
    "blogcatalog",
    "cache_dir",
    "caveman",
    "citation_full",
    "communities",
    "deduplicated",
    "fb15k_237",
    "gowalla",
    "imdb",
    "induced",
    "karate",
    "lagrange",
    "largest_component",
    "lastfm",
    "metr_la",
    "molecule_set",
    "molecules",
    "negative_links",
    "network",
    "open_dataset",
    "own_dataset",
    "planetoid",
    "ppi",
    "random_split",
    "read_edges",
    "row_normalize",
    "split_links",
    "time_split",
    "to_undirected",
    "training_part",
    "tu",
    "with_degrees",
    "with_laplacian",
    "with_random_walks",
    "without_self_loops",
]
