"""`gnnjit.stream`: a function of a graph that is larger than the device's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gnnjit.budget import parse_size
from gnnjit.cost.sketch import Sizes
from gnnjit.grid.compile import StreamedFunction
from gnnjit.grid.fit import Options
from gnnjit.layer_call import as_jaxpr, layer_p, planned_as
from gnnjit.lower import choose  # noqa: F401  (registers the lowerings of aggregate)

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
) -> Any:
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
        )
    options = Options(parse_size(memory_budget), process, parts, slices, selective, overlapped, cached)
    return StreamedFunction(fn, options, {layer_p: as_jaxpr}, _planned)


def _planned(num_nodes: int, num_edges: int) -> Any:
    return planned_as(Sizes(num_nodes, num_nodes, num_edges))
