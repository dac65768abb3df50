"""Which code runs a traversal, and why not another."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Atom, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower import cpu, pallas
from gnnjit.lower.aggregate import Reductions
from gnnjit.lower.execute import size
from gnnjit.lower.flatten import flat
from gnnjit.lower.xla import bucketed, csr, segment
from gnnjit.passes.pipeline import lowering_passes
from gnnjit.passes.pipeline import run as run_passes
from gnnjit.system.contexts import Context, cached
from gnnjit.system.portable import PORTABLE, is_portable


@dataclasses.dataclass(frozen=True)
class Choice:
    """The code chosen for one traversal, and the reasons against each other that was tried.

    interpreted: a GPU kernel is interpreted on the CPU, to test it.
    """

    kernel: str
    rows: Space
    body: Program
    reductions: Reductions
    refused: tuple[tuple[str, tuple[str, ...]], ...]
    interpreted: bool = False


_preferred: Context[str | None] = Context(None)


@contextlib.contextmanager
def prefer(kernel: str) -> Iterator[None]:
    """Within it, traversals run on `kernel`, or on one tried after it where it has a reason
    against itself: to test and to measure one lowering. On a CPU, `pallas` is interpreted;
    `mosaic` cannot be: its interpreter orders side effects, which no primitive's rule may add."""
    if kernel not in KERNELS:
        raise ValueError(f"prefer({kernel!r}): the lowerings are {', '.join(KERNELS)}")
    with _preferred(kernel):
        yield


def preferred() -> str | None:
    """What `prefer` says, if anything."""
    return _preferred.value


KERNELS = ("pallas", "mosaic", "cpu", "csr", "bucketed", "segment")
"""In the order in which they are tried. `pallas` is its Triton backend, `mosaic` its Mosaic GPU
backend."""


def rows_of(reductions: Sequence[Reduce | None]) -> Space:
    """The space whose elements own the rows: the one that outputs are reduced into."""
    owners = {r.into for r in reductions if r is not None} - {Space.SHARED}
    return owners.pop() if owners else Space.DST


def choose(body: Program, reductions: Reductions, graph: Graph, platform: str) -> Choice:
    """The first lowering without a reason against it; `segment` has none but for `exp_sum`."""
    rows = rows_of(reductions)
    structure = graph.in_structure if rows is Space.DST else graph.out_structure
    refused: list[tuple[str, tuple[str, ...]]] = []
    off = [] if platform == "cpu" else [f"the platform is {platform}"]
    wanted = _preferred.value
    interpreted = _interprets(platform)
    no_gpu = [] if platform == "cuda" else [f"the platform is {platform}"]
    no_triton = [] if interpreted else no_gpu
    here = [PORTABLE] if is_portable() else []
    edges = None if wanted == "cpu" else graph.num_edges
    tried = {
        "pallas": lambda: here or no_triton or pallas.why_not(body, tuple(reductions), rows, graph),
        "mosaic": lambda: here or no_gpu or pallas.mosaic.why_not(body, reductions, rows, graph),
        "cpu": lambda: off or cpu.why_not(body, tuple(reductions), rows, edges=edges),
        "csr": lambda: here or csr.why_not(body, reductions, rows, platform),
        "bucketed": lambda: bucketed.why_not(body, reductions, rows, structure),
        "segment": lambda: segment.why_not(reductions),
    }
    first = KERNELS.index(wanted or KERNELS[0])
    for number, kernel in enumerate(KERNELS):
        reasons = tried[kernel]() if number >= first else [f"{KERNELS[first]} is preferred"]
        if not reasons:
            alone = interpreted and kernel == "pallas"
            return Choice(kernel, rows, body, tuple(reductions), tuple(refused), alone)
        refused.append((kernel, tuple(reasons)))
    raise AssertionError(f"no lowering takes this traversal: {refused}")


@cached(maxsize=1024)
def optimised(
    body: Program,
    reductions: Reductions,
    *,
    online: bool,
    scale_on_edges: bool = False,
    keep: frozenset[Space] = frozenset(),
) -> Program:
    """An aggregate as a program of its own, after the passes: nothing more is differentiated.

    `online`: `exp_sum` stays, for kernels that know it. `scale_on_edges`: features are scaled
    where edges read them, for kernels that do so at no cost. `keep`: as `crowded` says.
    """
    program = inline_custom_calls(flat(body, reductions, online=online, keep=keep))
    passes = lowering_passes(online=online, scale_on_edges=scale_on_edges, keep=keep)
    return run_passes(program, passes)


def crowded(body: Program, graph: Graph) -> frozenset[Space]:
    """The vertex spaces that have more elements than the graph has edges, if a matmul of `body`
    reads them: all work of `body` on them is done on the edges. Without a matmul, it is cheap."""
    reads: dict[Atom, set[Space]] = {v: {v.space} for v in body.inputs}
    found: set[Space] = set()
    for eqn in body.equations:
        below: set[Space] = set().union(*(reads.get(a, set()) for a in eqn.inputs))
        reads.update(dict.fromkeys(eqn.outputs, below))
        if eqn.op.name == "dot_general":
            found |= below
    return frozenset(s for s in found if s.is_vertex and size(graph, s) > graph.num_edges)


def traversals(
    body: Program, reductions: Reductions, graph: Graph, platform: str, *, moved: bool = False
) -> Program:
    """The program that an aggregate is lowered to: an `exp_sum` stays one traversal where the GPU
    kernels take it, and is written out as several otherwise. `moved`: what edges read of vertices
    comes from other devices, so that less of it is better than less work."""
    keep = crowded(body, graph)
    if not is_portable() and (platform == "cuda" or _interprets(platform)):
        program = optimised(body, reductions, online=True, keep=keep)
        ops = [e.op for e in program.equations if isinstance(e.op, Aggregate)]
        if not any(_refused(op, graph) for op in ops):
            return program
    # The CPU's other lowerings know a sum of neighbours by its form, without factors.
    generated = platform == "cpu" and cpu.available() and _preferred.value in (None, "cpu")
    generated = generated and not moved
    return optimised(body, reductions, online=False, scale_on_edges=generated, keep=keep)


def _refused(op: Aggregate, graph: Graph) -> bool:
    """Whether a traversal with an `exp_sum` has no kernel."""
    online = any(r is not None and r.kind == "exp_sum" for r in op.reductions)
    return online and bool(pallas.why_not(op.body, op.reductions, rows_of(op.reductions), graph))


def _interprets(platform: str) -> bool:
    return platform == "cpu" and _preferred.value == "pallas"


def run_choice(
    choice: Choice,
    graph: Graph,
    operands: Sequence[Any],
    limit: int | None = None,
    **partial: Any,
) -> Sequence[Any]:
    """The outputs of one traversal; `limit` bounds the chunks of `segment`. `partial`: further
    arguments of `cpu.run`, where that is the choice."""
    body, reductions, rows = choice.body, choice.reductions, choice.rows
    if choice.kernel == "cpu":
        by_rows = rows is Space.DST
        structure = graph.in_structure if by_rows else graph.out_structure
        num_rows = graph.num_dst if by_rows else graph.num_src
        edges = graph.num_edges
        return cpu.run(body, reductions, rows, structure, num_rows, edges, operands, **partial)
    if choice.kernel == "pallas":
        interpret = choice.interpreted
        return pallas.run(body, reductions, rows, graph, operands, interpret=interpret)
    if choice.kernel == "segment":
        return segment.run(body, reductions, rows, graph, operands, limit=limit)
    module = {"mosaic": pallas.mosaic, "csr": csr, "bucketed": bucketed}[choice.kernel]
    return module.run(body, reductions, rows, graph, operands)
