"""`aggregate`: the one JAX primitive of gnnjit, closed under differentiation (design/0001).

    outputs = aggregate(graph, operands; body, reductions, limit)

applies `body` on every edge, each operand read in its space, and reduces each output. Its jvp,
transpose and batching rules are aggregates again, so derivatives of every order are fused too. The
only residuals are the operands, and values that stand in `kept` (`ir.kept`), which an aggregate
writes on the edges when it is differentiated. They keep `limit`, which bounds the memory of the
lowering that works in chunks and means nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit import _compat
from gnnjit._compat import ad, batching
from gnnjit.errors import LayerError
from gnnjit.ir.at_most import at_most
from gnnjit.ir.dtypes import is_half
from gnnjit.ir.evaluate import evaluate_element, finite_or_zero, times
from gnnjit.ir.kept import kept_values
from gnnjit.ir.program import Aggregate, Program, Reduce, Value, depends
from gnnjit.ir.space import Space
from gnnjit.lower.application import Application, aggregate_p, as_sum, fresh, home, out_shape
from gnnjit.lower.dispatch import lower
from gnnjit.lower.explicit import on_each_device
from gnnjit.lower.lowering import Reductions
from gnnjit.lower.primitives import lowers_to, runs_alone
from gnnjit.lower.ties import Ties, is_extreme
from gnnjit.sharding.sharded_graph import AnyGraph


def aggregate(
    graph: AnyGraph,
    body: Program,
    reductions: Reductions,
    operands: Sequence[Any],
    limit: int | None = None,
) -> list[Any]:
    """Bind the primitive. `operands[i]` is `[size(space), *shape]` as `body.inputs[i]` says.

    `limit`: scalars of the widest value in one chunk of edges, where edges are taken in chunks;
    None leaves it to the lowering.
    """
    leaves, treedef = jax.tree.flatten(graph)
    return Application(
        leaves, list(operands), (treedef, len(leaves)), body, reductions, limit
    ).rebind()


@aggregate_p.def_abstract_eval
def _abstract(
    *args: Any, body: Program, reductions: Reductions, graph_def: Any, limit: int | None
) -> Any:
    graph = jax.tree.unflatten(graph_def[0], list(args[: graph_def[1]]))
    return [
        _compat.result_aval(args, out_shape(graph, atom, r), atom.dtype)
        for atom, r in zip(body.outputs, reductions, strict=True)
    ]


# ---------------------------------------------------------------------------------------- jvp


def _jvp(
    args: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    call = Application.of(args, **params)
    body, reductions, after = call.body, call.reductions, len(call.leaves)
    differentiated = [
        i
        for i, t in enumerate(tangents[after:])
        if type(t) is not ad.Zero and jnp.issubdtype(body.inputs[i].dtype, jnp.inexact)
    ]
    operand_tangents = [tangents[after + i] for i in differentiated]
    touched, scores = depends(body, set(differentiated)), _scores(reductions)
    live = [
        k
        for k, o in enumerate(body.outputs)
        if (touched[k] or touched[scores.get(k, k)])
        and jnp.issubdtype(o.dtype, jnp.inexact)
        and not _is_fixed(reductions[k])
    ]
    maxima = set(scores.values())
    ties = Ties.of(body, [k for k in live if is_extreme(reductions[k])])
    if ties.wide:
        call = dataclasses.replace(call, operands=[_as_stored(x) for x in call.operands])
    best: dict[int, Any] = {}
    memory: dict[Value, Any] = {}
    if ties.numbers:
        outs, best = ties.extremes(call, maxima)
    else:
        outs, memory = call.kept()
    result: list[Any] = [_compat.zero_tangent(jax.typeof(o)) for o in outs]
    # A softmax stops the gradient of its maximum: apart, that tangent costs nothing if unread.
    for part in ([k for k in live if k not in maxima], [k for k in live if k in maxima]):
        if not part:
            continue
        found = _tangents(call, outs, best, memory, differentiated, operand_tangents, part)
        for k, t in zip(part, found, strict=True):
            result[k] = t
    return outs, result


def _tangents(
    call: Application,
    outs: list[Any],
    best: dict[int, Any],
    memory: dict[Value, Any],
    differentiated: list[int],
    operand_tangents: list[Any],
    live: list[int],
) -> list[Any]:
    """The tangents of outputs `live`, one aggregate. Those of a product are the sum of
    `step / factor`, times the product.

    To an `exp_sum` the maximum is a constant, as in the softmax that it was made from: what shifts
    all scores of a row cancels, or is added again (logsumexp).
    """
    body, score_of = call.body, _scores(call.reductions)
    inputs = [*fresh(body.inputs), *fresh([body.inputs[i] for i in differentiated])]
    n, m = len(body.inputs), len(differentiated)
    ties = Ties.of(body, [k for k in live if is_extreme(call.reductions[k])])
    tops = [best[k] for k in ties.numbers]
    weight = ties.weights(call, tops)
    scores = sorted({score_of[k] for k in live if k in score_of})
    shifts = [lax.stop_gradient(outs[k]) for k in scores]
    for k, x in zip([*ties.numbers, *scores], [*tops, *shifts], strict=True):
        inputs.append(Value(body.outputs[k].shape, x.dtype, home(call.reductions[k])))
    inputs += fresh(list(memory))

    def tangent(*xs: Any) -> list[Any]:
        primals, moved, rest = xs[:n], xs[n : n + m], xs[n + m :]
        extremes, rest = rest[: len(tops)], rest[len(tops) :]
        top = dict(zip(scores, rest[: len(scores)], strict=True))
        written = dict(zip(memory, rest[len(scores) :], strict=True))

        def f(*some: Any) -> list[Any]:
            full = list(primals)
            for i, x in zip(differentiated, some, strict=True):
                full[i] = x
            return _terms(evaluate_element(body, full, written), live, score_of, top)

        values, steps = jax.jvp(f, [primals[i] for i in differentiated], list(moved))
        attained = ties.attained(call, primals, extremes)
        for k, attains in zip(ties.numbers, attained, strict=True):
            at = live.index(k)
            steps[at] = jnp.where(attains, steps[at], 0)
        return _per_factor(steps, values, tuple(call.reductions[k] for k in live))

    into = tuple(as_sum(call.reductions[k]) for k in live)
    operands = [*call.operands, *operand_tangents, *tops, *shifts, *memory.values()]
    found = call.capture(tangent, inputs, into, operands)
    # Here, not on the edges: transposed, the weights multiply the cotangents of rows.
    rows = dict(zip(ties.numbers, weight, strict=True))
    rows |= {k: outs[k] for k in live if _is_product(call.reductions[k])}
    return [x * rows[k] if k in rows else x for k, x in zip(live, found, strict=True)]


def _terms(
    every: Sequence[Any], wanted: Sequence[int], score_of: dict[int, int], top: dict[int, Any]
) -> list[Any]:
    """The terms of the sums of the outputs `wanted`, from all values of an edge. Those of an
    `exp_sum` are its values times their weights, by the largest scores `top`."""
    weight = {k: jnp.exp(at_most(every[k], x) - finite_or_zero(x)) for k, x in top.items()}
    return [times(weight[score_of[k]], every[k]) if k in score_of else every[k] for k in wanted]


def _scores(reductions: Reductions) -> dict[int, int]:
    """For each output that is an `exp_sum`, the output that is its score."""
    return {k: r.score for k, r in enumerate(reductions) if r is not None and r.score is not None}


def _is_fixed(reduction: Reduce | None) -> bool:
    return reduction is not None and reduction.fixed


def _is_product(reduction: Reduce | None) -> bool:
    return reduction is not None and reduction.kind == "prod"


def _per_factor(steps: Sequence[Any], values: Sequence[Any], reductions: Reductions) -> list[Any]:
    """The steps of an edge's values, those of a product's factors divided by them."""
    each = zip(steps, values, reductions, strict=True)
    return [s / x if _is_product(r) else s for s, x, r in each]


def _as_stored(x: Any) -> Any:
    """Half-precision operands as they lie in memory: where a program makes one and reads it in
    float32, XLA would leave out the rounding in between, and another program could not."""
    return lax.optimization_barrier(x) if is_half(x.dtype) else x


ad.primitive_jvps[aggregate_p] = _jvp


# ---------------------------------------------------------------------------------- transpose


def _transpose(cts: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    call = Application.of(args, **params)
    body, reductions = call.body, call.reductions
    linear = [i for i, x in enumerate(call.operands) if ad.is_undefined_primal(x)]
    known = [i for i in range(len(call.operands)) if i not in linear]
    depend = depends(body, set(linear))
    wanted = [k for k, ct in enumerate(cts) if type(ct) is not ad.Zero and depend[k]]
    if any(is_extreme(reductions[k]) or _is_product(reductions[k]) for k in wanted):
        raise LayerError("a maximum, minimum or product is not linear and cannot be transposed")
    reach = _reached(body, linear, wanted)
    score_of = {k: score for k, score in _scores(reductions).items() if k in wanted}
    scores = sorted(set(score_of.values()))
    inputs = fresh([body.inputs[i] for i in known])
    for k in [*wanted, *scores]:
        atom = body.outputs[k]
        inputs.append(Value(atom.shape, atom.dtype, home(reductions[k])))
    n, m = len(known), len(wanted)

    def backward(*xs: Any) -> list[Any]:
        fixed = dict(zip(known, xs[:n], strict=True))
        top = dict(zip(scores, xs[n + m :], strict=True))

        def f(*some: Any) -> list[Any]:
            full = {**fixed, **dict(zip(reach, some, strict=True))}
            zeros = {i: jnp.zeros(body.inputs[i].shape, body.inputs[i].dtype) for i in linear}
            every = evaluate_element(body, [{**zeros, **full}[i] for i in range(len(body.inputs))])
            return _terms(every, wanted, score_of, top)

        avals = [body.inputs[i].aval for i in reach]
        return list(jax.linear_transpose(f, *avals)(list(xs[n : n + m])))

    result: list[Any] = [None] * len(call.operands)
    for i in linear:
        result[i] = ad.Zero(call.operands[i].aval)
    if reach:
        into = tuple(_into(body.inputs[i].space) for i in reach)
        operands = [call.operands[i] for i in known] + [cts[k] for k in wanted]
        operands += _tops(call, scores, linear)
        keep = bool(kept_values(body))
        found = call.capture(backward, inputs, into, operands, keep=keep)
        for i, ct in zip(reach, found, strict=True):
            result[i] = ct
    return [None] * len(call.leaves) + result


def _tops(call: Application, scores: list[int], linear: list[int]) -> list[Any]:
    """The largest scores of a softmax, where only what they weigh is transposed."""
    if not scores:
        return []
    op, _, slots = Aggregate(call.body, call.reductions).select(scores)
    if set(slots) & set(linear):
        raise LayerError("a softmax is not linear in its scores and cannot be transposed")
    return call.bind(op.body, op.reductions, [call.operands[i] for i in slots])


def _into(space: Space) -> Reduce | None:
    return None if space is Space.EDGE else Reduce("sum", space)


def _reached(body: Program, linear: list[int], wanted: list[int]) -> list[int]:
    """The linear operands that some cotangent flows to."""
    return [i for i in linear if any(depends(body, {i})[k] for k in wanted)]


ad.primitive_transposes[aggregate_p] = _transpose


# ----------------------------------------------------------------------------------- batching


def _batch(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], list[int]]:
    of_graphs = any(d is not None for d in dims[: params["graph_def"][1]])
    outs = [0 if of_graphs or home(r) is Space.SHARED else 1 for r in params["reductions"]]
    rule = _batch_of_graphs if of_graphs else _batch_of_operands
    return on_each_device(lambda *xs: rule(xs, dims, params), args, dims, outs), outs


def _batch_of_operands(
    args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    call = Application.of(args, **params)
    n, body, reductions = len(call.leaves), call.body, call.reductions
    (width,) = {x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None}
    operands, inputs, axes = [], [], []
    for x, d, v in zip(call.operands, dims[n:], body.inputs, strict=True):
        axes.append(None if d is None else 0)
        shape = v.shape if d is None else (width, *v.shape)
        inputs.append(Value(tuple(shape), v.dtype, v.space, v.name))
        if d is not None:
            x = jnp.moveaxis(x, d, 0 if v.space is Space.SHARED else 1)
        operands.append(x)

    def f(*xs: Any) -> list[Any]:
        return evaluate_element(body, xs)

    batched = jax.vmap(f, in_axes=axes, out_axes=0, axis_size=width)
    return call.capture(batched, inputs, reductions, operands)


def _batch_of_graphs(args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Each batch element has edges of its own: one after the other."""
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    mapped = [x for x, d in zip(moved, dims, strict=True) if d is not None]

    def one(some: list[Any]) -> list[Any]:
        rest = iter(some)
        full = [x if d is None else next(rest) for x, d in zip(moved, dims, strict=True)]
        return aggregate_p.bind(*full, **params)

    return list(lax.map(one, mapped))


batching.primitive_batchers[aggregate_p] = _batch


# ------------------------------------------------------------------------------- dead outputs


def _drop(read: tuple[int, ...], params: dict[str, Any]) -> _compat.Kept:
    op, keep, slots = Aggregate(params["body"], params["reductions"]).select(read)
    n = params["graph_def"][1]
    left = {**params, "body": op.body, "reductions": op.reductions}
    return [*range(n), *(n + i for i in slots)], keep, left


_compat.drop_unused(aggregate_p, _drop)
runs_alone(aggregate_p)
lowers_to(aggregate_p, lower)
