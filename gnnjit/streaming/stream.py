"""`gnnjit.stream`: a function of a graph that is larger than the device's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gnnjit.compiler.primitive import layer_p, planned_as, written_out
from gnnjit.cost.sketch import GraphSizes
from gnnjit.streaming.compile import StreamedFunction
from gnnjit.streaming.memory.layout import Options
from gnnjit.system.allocator import give_memory_back
from gnnjit.system.memory_budget import parse_size

__all__ = ["stream"]


def stream(
    fn: Callable[..., Any] | None = None,
    *,
    memory_budget: int | str,
    process: bool = False,
    parts: int | None = None,
    slices: int | None = None,
    selective: bool = True,
    overlapped: bool = True,
    cached: bool = True,
    refined: bool = False,
) -> Any:
    """Run `fn` over a graph in a store, block by block, to the same numbers up to rounding.

    `fn` is any pure function of one graph: a model, its loss, `jax.grad` of it, a whole training
    step with its optimizer. Call the result as you would call `fn`, with a
    `gnnjit.streaming.StreamedGraph` in place of the graph. Pass data of its vertices as what
    `graph.put` or `graph.array` gives, and data of its edges as what `graph.put_edges` or
    `graph.edge_array` gives. Everything else is shared (parameters, keys, numbers).

    Inside, layers take the graph. Between them, `fn` may do whatever needs a vertex's own row
    alone, and take sums, means and extremes over all vertices. The function is cut into sweeps over
    the P x P chunks of edges: by columns where results belong to destinations, by rows where they
    belong to sources (NeuGraph, 2019, section 3.2). What one sweep leaves for another goes to the
    store, or stays on the device where the memory plan keeps it (ROC, 2020, section 5).

    If several processes are connected (`gnnjit.distributed`), all call the same functions with the
    same arguments, on a graph in a `gnnjit.store.CollectiveStore`. Each does its share of the
    blocks, within its own budget, and all get the same results, to the bit.

    Args:
        fn: the function.
        memory_budget: bytes of device memory ("256MiB", or a number) for what is streamed.
        process: limit the resident memory of this process instead, Python, JAX and compiled code
            included; for graphs in a `DiskStore`. From then on, memory that the process frees goes
            back to the system at once. No such budget can be kept after `keep_memory`. Linux only;
            elsewhere the budget limits device memory all the same.
        parts: P, the blocks that vertices are cut into; None for the fewest that fit.
        slices: parts in which a block is loaded for row-wise work; None for the fewest.
        selective: read only the used rows of a block where that is faster.
        overlapped: move data while computing.
        cached: keep on the device what the memory plan says; else every operation loads anew.
        refined: after the first run, order the chunks of a block by measured times. The last bits
            of sums may then differ from process to process; without it, the same layout gives the
            same bits.

    Returns:
        A `gnnjit.streaming.compile.StreamedFunction`; without `fn`, a decorator that makes one. Its
        results are JAX arrays, or `gnnjit.streaming.VertexArray` and
        `gnnjit.streaming.EdgeArray` where they have a row for each vertex or edge.

    Raises:
        StreamError: from the call: `fn` does something that needs all vertices at once, or depends
            on their number (the message names the line); no layout fits the budget; or several
            processes are connected, and the graph's store is not one that they share.
        DistributedError: processes call different functions, or with different arguments.
        PlanError: `memory_budget` is no size; or, from the call, `parts` does not fit it.
    """
    if fn is None:
        return functools.partial(
            stream,
            memory_budget=memory_budget,
            process=process,
            parts=parts,
            slices=slices,
            selective=selective,
            overlapped=overlapped,
            cached=cached,
            refined=refined,
        )
    options = Options(
        parse_size(memory_budget), process, parts, slices, selective, overlapped, cached, refined
    )
    if process:
        give_memory_back()
    return StreamedFunction(fn, options, {layer_p: written_out}, _planned)


def _planned(num_nodes: int, num_edges: int) -> Any:
    return planned_as(GraphSizes(num_nodes, num_nodes, num_edges))
