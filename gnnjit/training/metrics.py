"""Scores of answers, as pure functions of arrays: classes, several labels, numbers, ranks.

What is summed over vertices or queries is given as a sum, and divided by the caller, so that parts
may be added up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Sums(NamedTuple):
    """Over each split, float32[3].

    Attributes:
        loss: of all labelled vertices (or graphs); NaN where none is defined.
        count: how many they are.
        right, answers: their quotient is the score. With one label each: correct answers, labels.
            With several: twice the true positives, and what was answered plus what is true. Of
            ranks: sums of reciprocal ranks, or of recalls, and the number of queries. Of numbers:
            the explained share of their variance, times how many they are, and how many they are.
        more: sums for other scores, float32[..., 3], by name.
    """

    loss: Any
    count: Any
    right: Any
    answers: Any
    more: Any = {}  # noqa: RUF012, which is never written to


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """`float[L]`, of classes `int[L]`; of several labels `bool[L, C]` the mean over the classes; of
    numbers `float[L, T]` the mean square."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if jnp.issubdtype(labels.dtype, jnp.floating):
        return jnp.mean(jnp.square(logits - labels), axis=-1)
    if labels.ndim == 2:
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, labels), axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def answers(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`float32[L]` twice, as in `Sums`: their quotient is the accuracy, with several labels the
    micro-F1."""
    if labels.ndim == 2:
        said = logits > 0
        both = jnp.sum(said & labels, axis=-1, dtype=jnp.float32)
        return 2 * both, jnp.sum(said, -1, jnp.float32) + jnp.sum(labels, -1, jnp.float32)
    right = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return right, jnp.ones_like(right)


def class_counts(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """For each class and split `float32[C, 3]`: how often it was said and true, said, and true.

    Of several labels also, as "known ...", where as many are said as the vertex has, the most
    likely ones: the protocol of DeepWalk (Perozzi et al. 2014, section 6.1).

    Args:
        logits: `[L, C]`.
        labels: classes `int[L]`, or `bool[L, C]`.
        weights: `float32[L, 3]`, of each label in each split.
    """
    if labels.ndim == 2:
        said, true = logits > 0, labels
    else:
        said = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=bool)
        true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    parts = {"both": said & true, "said": said, "true": true}
    if labels.ndim == 2:
        ordered = -jnp.sort(-logits, axis=-1)
        last = jnp.maximum(jnp.sum(labels, axis=-1, keepdims=True) - 1, 0)
        first = (logits >= jnp.take_along_axis(ordered, last, axis=-1)) & labels.any(-1)[:, None]
        parts |= {"known both": first & true, "known said": first}
    return {k: part.astype(jnp.float32).T @ weights for k, part in parts.items()}


def micro_f1(both: Any, said: Any, true: Any) -> Any:
    """`2 both / (said + true)`, each summed over the classes, the first axis."""
    both, said, true = (np.asarray(n, np.float64).sum(axis=0) for n in (both, said, true))
    return 2 * both / np.maximum(said + true, 1)


def macro_f1(both: Any, said: Any, true: Any) -> Any:
    """The mean over the classes, the first axis, of `2 both / (said + true)`; 0 for a class that is
    neither said nor true, as in scikit-learn."""
    total = np.asarray(said, np.float64) + np.asarray(true, np.float64)
    return np.mean(2 * np.asarray(both, np.float64) / np.where(total > 0, total, 1), axis=0)


class Ranks(NamedTuple):
    """The ranks of the true answers of some queries, from 1, `float32[Q]`.

    Attributes:
        raw: among all candidates.
        filtered: among those that are not known to be true as well.
    """

    raw: jax.Array
    filtered: jax.Array


def ranks(scores: jax.Array, target: jax.Array, query: jax.Array, known: jax.Array) -> Ranks:
    """How many candidates score higher than the true answer, plus one; of ties, the mean rank.

    That is `1 + higher + equal / 2`, with `equal` others that score the same, so that a model that
    scores all candidates alike is in the middle of them. NaN scores lowest.

    Args:
        scores: `[Q, N]`, of each candidate.
        target: `int[Q]`, the true one.
        query, known: `int[P]` twice, pairs of a query and a candidate that is known to be a true
            answer, each once; the target itself may be among them. `query = Q` is padding.
    """
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    own = jnp.take_along_axis(scores, target[:, None], axis=1)
    half = jnp.asarray(0.5, jnp.float32)
    above = jnp.where(scores > own, 1, jnp.where(scores == own, half, 0))
    raw = jnp.sum(above, axis=1) + half  # the target equals itself
    at = jnp.minimum(query, len(scores) - 1)
    other = (query < len(scores)) & (known != target[at])
    score, own = scores[at, known], own[at, 0]
    taken = jnp.where(score > own, 1, jnp.where(score == own, half, 0))
    known_above = jnp.zeros(len(scores)).at[at].add(jnp.where(other, taken, 0))
    return Ranks(raw, raw - known_above)


def hits_at(rank: jax.Array, k: int) -> jax.Array:
    """`float32[Q]`: whether the true answer is among the first k."""
    return (rank <= k).astype(jnp.float32)


def hits_among(share: jax.Array, *, k: int = 10, drawn: int = 100) -> jax.Array:
    """`float32[Q]`: the chance that a true answer is among the first k where `drawn` false ones
    stand beside it, as many benchmarks draw them (Hu et al. 2020, section 5); nothing is drawn.

    Args:
        share: `float32[Q]`, of all false candidates those that score higher.
    """
    return jax.scipy.special.betainc(drawn - k + 1.0, float(k), 1 - share)


def recall_at(hit: jax.Array, count: jax.Array) -> jax.Array:
    """`float32[Q]`: the share of a query's true answers that is among its first k.

    Args:
        hit: `bool[Q, k]`, whether the k-th answer is true, the best first.
        count: `int[Q]`, how many are true in all; 0 gives 0.
    """
    return jnp.sum(hit, axis=1) / jnp.maximum(count, 1).astype(jnp.float32)


def ndcg_at(hit: jax.Array, count: jax.Array) -> jax.Array:
    """`float32[Q]`: `sum over the hits of 1 / log2(1 + place)`, over the same sum if the first
    `min(k, count)` were all hits: as LightGCN (He et al. 2020) computes it. The rest as in
    `recall_at`."""
    k = hit.shape[1]
    gain = 1 / jnp.log2(jnp.arange(2, k + 2, dtype=jnp.float32))
    ideal = jnp.concatenate([jnp.zeros(1), jnp.cumsum(gain)])[jnp.minimum(count, k)]
    return jnp.where(hit, gain, 0).sum(axis=1) / jnp.where(count > 0, ideal, 1)


def squares(said: jax.Array, true: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """For `numbers_of`: sums over the rows of each split, of all targets, `float32[3]`."""
    error = said.astype(jnp.float32) - true
    return {
        "squared": jnp.mean(jnp.square(error), axis=-1) @ weights,
        "absolute": jnp.mean(jnp.abs(error), axis=-1) @ weights,
    }


def explained(said: jax.Array, true: jax.Array, weights: jax.Array) -> jax.Array:
    """`float32[3]`, R2 of the rows of each split: `1 - squared errors / squares around the mean`,
    both over all targets."""
    count = jnp.maximum(weights.sum(axis=0), 1)
    center = (weights.T @ true) / count[:, None]
    around = jnp.sum(jnp.square(true[:, None] - center), axis=-1)
    total = jnp.sum(weights * around, axis=0)
    error = jnp.sum(jnp.square(said - true), axis=-1) @ weights
    return 1 - error / jnp.where(total > 0, total, 1)


def rmse(squared: Any, count: Any) -> Any:
    """The root of the mean squared error, from the sum of squares."""
    return np.sqrt(np.asarray(squared, np.float64) / np.maximum(count, 1))


def mae(absolute: Any, count: Any) -> Any:
    """The mean absolute error, from the sum."""
    return np.asarray(absolute, np.float64) / np.maximum(count, 1)


def auc(true: jax.Array, false: jax.Array) -> jax.Array:
    """The area under the ROC curve: how often one of the scores `true` is above one of `false`,
    equal ones counting half. NaN is below all others."""
    true, false = (jnp.where(jnp.isnan(s), -jnp.inf, s) for s in (true, false))
    ordered = jnp.sort(false)
    below = jnp.searchsorted(ordered, true, side="left")
    upto = jnp.searchsorted(ordered, true, side="right")
    return jnp.mean((below + upto).astype(jnp.float32)) / (2 * len(false))
