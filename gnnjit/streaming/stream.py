"""`gnnjit.stream`: a function of a graph that is larger than the device's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gnnjit.compiler.primitive import layer_p, planned_as, written_out
from gnnjit.cost.sketch import GraphSizes
from gnnjit.lower import dispatch, sort_edges  # noqa: F401  (they register lowerings)
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
    """Run `fn` over a graph in a store, block by block, with the numbers that it gives in memory.

    `fn` is any pure function of one graph: a model, its loss, `jax.grad` of it, a whole training
    step with its optimizer. It is called as usual, with a `gnnjit.streaming.StreamedGraph` where
    the graph is expected, and that graph's arrays where data of its vertices (`graph.put`,
    `graph.array`) and edges (`graph.put_edges`, `graph.edge_array`) are; everything else is shared
    (parameters, keys, numbers). Shared results come back as JAX arrays, results with a row for each
    vertex as `gnnjit.streaming.VertexArray`s, with one for each edge as
    `gnnjit.streaming.EdgeArray`s.

    Inside, layers see the graph; between them `fn` may do whatever needs a vertex's own row alone,
    and sums, means and extremes over all vertices. The function is cut into sweeps over the P x P
    chunks of edges, by columns where results belong to destinations and by rows where they belong
    to sources (NeuGraph, section 3.2: forward and backward). What they leave to each other goes to
    the store, or stays on the device where the memory plan keeps it (ROC, section 5).

    Where several processes are connected (`gnnjit.distributed`), all call the same functions with
    the same arguments, on a graph in a `gnnjit.store.CrewStore`: each does its share of the
    blocks, within its own budget, and all get the same results, to the bit.

    The result has two methods: `prepare(*args)` does all that comes before the first run, and
    `explain(*args)` shows the grid, the sweeps, the plan, and the times of the last run. Its
    attribute `traffic` has what that run moved, `watch` is told (operations done, all) meanwhile.

    Args:
        memory_budget: bytes of device memory ("256MiB", or a number) for what is streamed.
        process: the budget is that of this process's resident memory instead, what Python, JAX and
            compiled code take included; for graphs in a `DiskStore`. What the process frees goes
            back to the system at once from then on, unless `keep_memory` was called, with which no
            such budget can be kept. Linux only: elsewhere it counts device memory all the same.
        parts: P; None for the smallest that fits.
        slices: of each block, one after the other, for row-wise work; None for the fewest.
        selective: read only the used rows of a block where that is faster.
        overlapped: move data while computing.
        cached: keep on the device what the memory plan says; else every operation loads anew.
        refined: after the first run, order the chunks of a block by measured times. The last bits
            of sums may then differ from process to process; without it, the same layout gives the
            same bits.

    Raises:
        StreamError: from the call: `fn` does something that needs all vertices at once, or depends
            on their number; or no layout fits the budget. The message names the line. Several
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
