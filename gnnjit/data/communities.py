"""A seeded generator of labelled power-law graphs of any size.

The result depends on the arguments alone, bit for bit, on any machine: random numbers come from
PCG64, and floating point is limited to +, -, *, / and sqrt, which IEEE 754 rounds exactly
(exponentials and logarithms differ between maths libraries, sums between vector widths).
"""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnjit.data.edges import symmetric_edges
from gnnjit.data.splits import Masks, masks_from_indices
from gnnjit.data.types import Dataset
from gnnjit.errors import DataError
from gnnjit.graph import Graph

_NUMBERS_AT_ONCE = 1 << 20


def communities(
    num_nodes: int = 10_000,
    num_classes: int = 8,
    num_features: int = 64,
    avg_degree: float = 20.0,
    seed: int = 0,
    *,
    homophily: float = 0.6,
    exponent: float = 2.5,
    max_degree: int | None = None,
    separation: float = 2.0,
    train_fraction: float = 0.1,
    val_fraction: float = 0.1,
) -> Dataset:
    """Communities whose members are hard to tell by themselves and easy by their neighbours.

    A degree-corrected stochastic block model (Karrer & Newman 2011) in its microcanonical form
    (Peixoto 2017): vertices draw power-law degrees, their half-edges are matched at random within
    the class or over the whole graph. Features are the class's centroid plus noise of unit
    variance per feature. Time and memory grow with edges + vertices * features.

    Args:
      num_nodes: N.
      num_classes: C, of equal size up to one vertex.
      num_features: F.
      avg_degree: edges into a vertex, on average. Dropping duplicates and self loops leaves
        slightly fewer.
      seed: changes everything. The graph does not depend on num_features, separation or split.
      homophily: share of edges within a class, from 1/C (no communities) to 1.
      exponent: of the degrees' power law, above 2; smaller means heavier hubs.
      max_degree: cap on a vertex's degree; default sqrt(num_nodes * avg_degree).
      separation: distance between two centroids in units of the noise; at 2 features alone
        say little and the mean over 20 neighbours says much.
      train_fraction, val_fraction: of the vertices, at random; the rest is test.

    Raises:
      DataError: naming the argument that is out of range.
    """
    drawn = draw(
        num_nodes,
        num_classes,
        num_features,
        avg_degree,
        seed,
        homophily=homophily,
        exponent=exponent,
        max_degree=max_degree,
        separation=separation,
        train_fraction=train_fraction,
        val_fraction=val_fraction,
    )
    x = np.empty((num_nodes, num_features), np.float32)
    for first, rows in drawn.rows():
        x[first : first + len(rows)] = rows
    return Dataset(
        name="communities",
        graph=Graph.from_edges(drawn.src, drawn.dst, num_nodes),
        x=x,
        y=drawn.y,
        train_mask=drawn.masks.train,
        val_mask=drawn.masks.val,
        test_mask=drawn.masks.test,
        num_classes=num_classes,
        source="Karrer & Newman 2011, arXiv:1008.3926",
    )


@dataclass(frozen=True, eq=False)
class Drawn:
    """What `communities` makes a dataset of. The features, which may be larger than the memory,
    are drawn when they are asked for.

    Attributes:
      src, dst: int32 [E], sorted by destination and then by source.
      y: int32 [N], classes.
      masks: bool [N] each.
      centroids: float32 [C, F], the mean features of each class.
      state: where the random numbers of the noise begin.
    """

    src: np.ndarray
    dst: np.ndarray
    y: np.ndarray
    masks: Masks
    centroids: np.ndarray
    state: Any

    def rows(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first vertex, float32 [R, F]): the features of all vertices, a block after the other;
        the same in every call."""
        bits = np.random.PCG64(0)
        bits.state = self.state
        rng = np.random.Generator(bits)
        size = max(1, _NUMBERS_AT_ONCE // self.centroids.shape[1])
        for low in range(0, self.y.shape[0], size):
            rows = self.centroids[self.y[low : low + size]]
            rows += _noise(rng, rows.shape)
            yield low, rows


def draw(
    num_nodes: int,
    num_classes: int,
    num_features: int,
    avg_degree: float,
    seed: int,
    *,
    homophily: float,
    exponent: float,
    max_degree: int | None,
    separation: float,
    train_fraction: float,
    val_fraction: float,
) -> Drawn:
    """What `communities` makes of the same arguments, before the graph's two sorted structures and
    the features. Raises DataError as it does."""
    _check(num_nodes, num_classes, num_features, avg_degree, homophily, exponent, separation)
    if seed < 0:
        raise DataError(f"communities: got seed={seed}, expected at least 0.")
    if max_degree is None:
        max_degree = math.isqrt(int(num_nodes * avg_degree)) + 1
    elif max_degree < 1:
        raise DataError(f"communities: got max_degree={max_degree}, expected at least 1.")
    streams = np.random.SeedSequence(seed).spawn(4)
    labels, degrees, features, split = (np.random.Generator(np.random.PCG64(s)) for s in streams)
    masks = _split(split, num_nodes, train_fraction, val_fraction)
    y = labels.permutation(np.arange(num_nodes, dtype=np.int32) % num_classes)
    degree = _degrees(degrees, num_nodes, avg_degree, exponent, max_degree)
    inside = (homophily - 1 / num_classes) / (1 - 1 / num_classes) if num_classes > 1 else 0.0
    src, dst = symmetric_edges(*_match(degrees, y, degree, num_classes, inside), num_nodes)
    signs = features.integers(0, 2, (num_classes, num_features)).astype(np.float32) * 2 - 1
    # Two rows of signs differ in half their places, hence are sqrt(2 F) apart.
    centroids = signs * np.float32(separation / math.sqrt(2 * num_features))
    return Drawn(src, dst, y, masks, centroids, features.bit_generator.state)


def _check(
    num_nodes: int,
    num_classes: int,
    num_features: int,
    avg_degree: float,
    homophily: float,
    exponent: float,
    separation: float,
) -> None:
    for argument, value in (
        ("num_nodes", num_nodes), ("num_classes", num_classes), ("num_features", num_features),
    ):  # fmt: skip
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise DataError(
                f"communities: got {argument}={reprlib.repr(value)}, expected a whole number."
            )
    for argument, value in (
        ("avg_degree", avg_degree), ("homophily", homophily), ("exponent", exponent),
        ("separation", separation),
    ):  # fmt: skip
        if not hasattr(value, "__float__"):
            raise DataError(
                f"communities: got {argument}={reprlib.repr(value)}, expected a number."
            )
    rules = (
        ("num_nodes", num_nodes, 1 <= num_nodes < 2**31, "1 to 2**31 - 1"),
        ("num_classes", num_classes, 1 <= num_classes <= num_nodes, "1 to num_nodes"),
        ("num_features", num_features, num_features >= 1, "at least 1"),
        ("avg_degree", avg_degree, 0 <= avg_degree < num_nodes, "0 to below num_nodes"),
        ("homophily", homophily, 1 <= homophily * num_classes + 1e-9 and homophily <= 1,
         "1/num_classes to 1"),
        ("exponent", exponent, 2 < exponent < math.inf, "a number above 2"),
        ("separation", separation, 0 <= separation < math.inf, "a number of at least 0"),
    )  # fmt: skip
    for argument, value, fine, wanted in rules:
        if not fine:
            raise DataError(f"communities: got {argument}={value}, expected {wanted}.")


def _degrees(
    rng: np.random.Generator, n: int, average: float, exponent: float, max_degree: int
) -> np.ndarray:
    """int64 [n]: half-edges of each vertex, a Pareto variable rounded up or down at random."""
    smallest = average * (exponent - 2) / (exponent - 1)
    u = 1.0 - rng.random(n)
    weight = 1.0 / _root(u, 1.0 / (exponent - 1))
    weight = np.minimum(weight, max(1.0, max_degree / smallest) if smallest > 0 else 1.0)
    # Whole numbers add up to the same total in any order.
    weight = np.floor(weight * 1024).astype(np.int64)
    wanted = weight * (n * average / int(weight.sum()))
    return np.minimum(np.floor(wanted + rng.random(n)), max_degree).astype(np.int64)


def _root(u: np.ndarray, power: float) -> np.ndarray:
    """u ** power for 0 < power < 1, to 2**-12 in the power, from square roots and products."""
    result, root = np.ones_like(u), u
    for _ in range(12):
        root = np.sqrt(root)
        power *= 2
        if power >= 1:
            result = result * root
            power -= 1
    return result


def _match(
    rng: np.random.Generator, y: np.ndarray, degree: np.ndarray, num_classes: int, inside: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of half-edges: with probability `inside` of one class, else of any two."""
    by_class = np.argsort(y, kind="stable").astype(np.int32)
    stubs = np.repeat(by_class, degree[by_class])
    ends = np.cumsum(np.bincount(y, minlength=num_classes))
    bounds = np.concatenate([[0], np.cumsum(degree[by_class])])[np.concatenate([[0], ends])]
    stays = rng.random(stubs.shape[0]) < inside
    pools = [stubs[low:high][stays[low:high]] for low, high in itertools.pairwise(bounds)]
    pools.append(stubs[~stays])
    for pool in pools:
        rng.shuffle(pool)
    pairs = [pool[: pool.shape[0] // 2 * 2].reshape(-1, 2) for pool in pools]
    matched = np.concatenate(pairs)
    return matched[:, 0], matched[:, 1]


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Nearly normal float32 of unit variance: four 16-bit uniform numbers added up, exactly."""
    raw = rng.integers(0, 2**64, shape, dtype=np.uint64)
    total = np.zeros(shape, np.uint64)
    for shift in (0, 16, 32, 48):
        total += (raw >> np.uint64(shift)) & np.uint64(0xFFFF)
    centred = total.astype(np.float32) - np.float32(2 * 0xFFFF)
    return centred * np.float32(math.sqrt(3) / 2**16)


def _split(rng: np.random.Generator, n: int, train: float, val: float) -> Masks:
    if not (0 <= train and 0 <= val and train + val <= 1):
        raise DataError(
            f"communities: got train_fraction={train}, val_fraction={val}, expected both at least "
            "0 and at most 1 together."
        )
    order = rng.permutation(n)
    first, second = int(n * train), int(n * train) + int(n * val)
    return masks_from_indices(n, order[:first], order[first:second], order[second:])
