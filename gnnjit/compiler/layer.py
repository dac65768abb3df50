"""`@gnnjit.layer`, the decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gnnjit.compiler.call import Definition, location, reference, trace_call
from gnnjit.compiler.check import check
from gnnjit.compiler.explain import explain
from gnnjit.compiler.typed import call_typed, is_typed
from gnnjit.errors import LayerError
from gnnjit.system import collection
from gnnjit.system.memory_budget import parse_size

__all__ = ["layer", "reference"]


def layer(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnames: Sequence[str] | str = (),
    memory_budget: int | str | None = None,
) -> Any:
    """Compile `fn(v, e, *params)`, which says what one vertex does with its incoming edges.

    Inside, everything is per element: `v` are the vertex's own features (`[F]`, or any pytree),
    `e.src`, `e.dst` and `e.data` those of one incoming edge; further arguments and values captured
    by closure are shared by the whole graph. Reductions (`gnnjit.sum`, ...) run over the incoming
    edges. A vertex value that is returned comes back as `[num_dst, ...]`, an edge value as
    `[num_edges, ...]` in the order in which the edges were given, a shared value as it is.

    The result is called as `layer(graph, x, *params, edges=None, globals=None, **params)`:

    - `graph` is a `gnnjit.Graph`, or what `gnnjit.shard` made of one.
    - `x` is a pytree of `[num_nodes, ...]`, or `Bipartite(src=..., dst=...)`.
    - `edges` is a pytree of `[num_edges, ...]`, read as `e.data`.
    - `globals` is a pytree of `[num_graphs, ...]`, one row for each graph of a batch, read as
      `e.globals`. What is computed from it and from `gnnjit.readout` alone is computed once a
      graph, and comes back as `[num_graphs, ...]`.

    Called on a `gnnjit.TypedGraph`, the function runs once for each vertex type, and `x`, `edges`
    and the result are dictionaries: features by type, edge data by relation, results by type.
    There `e.dst_type` is this vertex's type, `e.relations` the relations that end at it (each with
    `name key src_type dst_type`, and `src dst data` of one edge), and `e.map(f)` is one value over
    the incoming edges of all relations, `f(r)` on those of `r`. Where no relation ends at a type,
    `e.relations` is empty, and `e.map` asks `f` for the shape alone, with the graph's first
    relation.

    It composes with `jit`, `grad`, `vmap`, `scan` and the rest of JAX. On a method, `self` counts
    as captured. `layer.explain(...)` and `layer.check(...)` take the arguments of a call; see
    `gnnjit.explain` and `gnnjit.check`.

    Values in the padding of `edges`, NaN included, reach no result and no gradient. The same holds
    for rows of `x` that no edge reads, as far as edges compute with them. A vertex value that is
    returned is computed for every row, as in plain JAX: NaN in a padded row stays in that row of
    the result, and makes the gradient of a weight that it meets NaN. Fill padded rows with zeros.
    A layer that uses `gnnjit.readout` reads the vertices that `Graph.pad` added as zeros.

    Args:
        static_argnames: keyword arguments that are Python values, as in `jax.jit`.
        memory_budget: bytes of device memory ("256MiB", or a number) that one call may need at its
            peak. Arguments (the whole graph among them), results and temporaries count, and where
            a gradient is taken the cotangents and gradients too: what `memory_analysis()` of the
            compiled call says, arguments + outputs + temporaries - aliases. The fastest plan that
            fits runs. Under `vmap` the budget is for one element of the batch, and does not count
            a gradient that is taken of the whole `vmap`. None: `gnnjit.memory_budget` decides.

    Returns:
        The layer, a function; without `fn`, a decorator that makes one.

    Raises:
        LayerError: the function cannot be compiled as it is written; the message names the line.
        GraphError: an array does not fit the graph.
        PlanError: no plan fits the budget; the message names the smallest that one fits.

    The model of computation is SAGA-NN of Ma et al., "NeuGraph" (2019), section 3.1. Where we
    differ: a layer is one function in JAX, and the compiler finds the four stages in it.
    """
    if fn is None:
        return functools.partial(
            layer, static_argnames=static_argnames, memory_budget=memory_budget
        )
    if not callable(fn):
        raise LayerError(
            f"gnnjit.layer decorates a function of (v, e, *params), got {type(fn).__name__}; "
            "options are keywords, as in @gnnjit.layer(memory_budget=...)"
        )
    statics = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    budget = None if memory_budget is None else parse_size(memory_budget)
    definition = Definition(fn, statics, location(fn), budget)

    @functools.wraps(fn)
    def call(*args: Any, edges: Any = None, globals: Any = None, **keywords: Any) -> Any:
        with collection.put_off():
            if is_typed(args):
                return call_typed(definition, args, edges, keywords, globals)
            return trace_call(definition, args, edges, keywords, globals).run_recorded()

    call.__gnnjit_layer__ = definition  # type: ignore[attr-defined]
    signature = _called_as(definition)
    if signature is not None:
        call.__signature__ = signature  # type: ignore[attr-defined]
    call.explain = functools.partial(explain, call)  # type: ignore[attr-defined]
    call.check = functools.partial(check, call)  # type: ignore[attr-defined]
    return call


def _called_as(definition: Definition) -> inspect.Signature | None:
    """How a layer is called, for `help`: a graph and features in place of `v` and `e`. None where
    the function's own signature is not known, or is none of a layer."""
    try:
        own = list(inspect.signature(definition.fn).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    at = 1 if definition.is_method else 0
    if len(own) < at + 2 or any(p.kind not in positional for p in own[: at + 2]):
        return None
    taken = {p.name for p in own}
    if taken & {"graph", "x", "edges", "globals"}:
        return None
    graph, x = (inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in ("graph", "x"))
    head = [p.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for p in own[:at]]
    given = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in ("edges", "globals")
    ]
    rest = sorted([*given, *own[at + 2 :]], key=lambda p: p.kind)  # stable: these come first
    return inspect.Signature([*head, graph, x, *rest])
