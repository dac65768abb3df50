"""Which lowering runs a traversal, and why not another."""

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
from gnnjit.lower.execute import size
from gnnjit.lower.flatten import flat
from gnnjit.lower.lowering import WRITTEN, Lowering, LoweringRequest, Reductions
from gnnjit.lower.predicted import seconds
from gnnjit.lower.xla import bucketed, csr, dense, segment, staged
from gnnjit.passes.pipeline import lowering_passes
from gnnjit.passes.pipeline import run as run_passes
from gnnjit.system.contexts import Context, cached

STAGED = Lowering("staged", staged.why_not, staged.run, ("cuda",), interpreted=("staged",))
PALLAS = Lowering("pallas", pallas.why_not, pallas.run, ("cuda",), interpreted=("staged", "pallas"))

DENSE = Lowering("dense", dense.why_not, dense.run)
"""For graphs with `Graph.fan_in` alone, where the cost model prefers it to a generated kernel of
the CPU. That mostly takes 0.1 to 1.1 times as long (gnnjit/design/0020)."""

LOWERINGS = (
    STAGED,  # products of edges with matrices in XLA, rows on a GPU kernel
    PALLAS,  # the Triton backend of Pallas
    Lowering("mosaic", pallas.mosaic.why_not, pallas.mosaic.run, ("cuda",)),
    Lowering("cpu", cpu.why_not, cpu.run, ("cpu",), why_no_start=cpu.why_no_start),
    DENSE,
    Lowering("csr", csr.why_not, csr.run, ("cpu",)),
    Lowering("bucketed", bucketed.why_not, bucketed.run),
    Lowering("segment", segment.why_not, segment.run),
)
"""In the order in which they are tried. `segment` has no reason against itself but `exp_sum`."""

KERNELS = tuple(lowering.name for lowering in LOWERINGS)


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The lowering chosen for one traversal, and the reasons against each one tried before.

    predicted: at a schema level, seconds of each lowering that the cost model weighed.
    """

    lowering: Lowering
    request: LoweringRequest
    refused: tuple[tuple[str, tuple[str, ...]], ...]
    predicted: tuple[tuple[str, float], ...] = ()

    @property
    def kernel(self) -> str:
        return self.lowering.name

    def run(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The outputs of the traversal, both as `aggregate` has them."""
        return self.lowering.run(self.request, operands)


_preferred: Context[str | None] = Context(None)


@contextlib.contextmanager
def prefer(kernel: str) -> Iterator[None]:
    """Within it, traversals run on `kernel`, or on one tried after it where it has a reason
    against itself: to test and to measure one lowering. On a CPU, kernels of `staged` and `pallas`
    are interpreted; those of `mosaic` cannot be: its interpreter orders side effects, which no
    primitive's rule may add."""
    if kernel not in KERNELS:
        raise ValueError(f"prefer({kernel!r}): the lowerings are {', '.join(KERNELS)}")
    with _preferred(kernel):
        yield


def preferred() -> str | None:
    """What `prefer` says, if anything."""
    return _preferred.value


def skipped(kernel: str) -> list[str]:
    """The reason against a lowering that is tried before the preferred one."""
    wanted = preferred()
    before = wanted is not None and KERNELS.index(kernel) < KERNELS.index(wanted)
    return [f"{wanted} is preferred"] if before else []


def rows_of(reductions: Sequence[Reduce | None]) -> Space:
    """The space whose elements own the rows: the one that outputs are reduced into."""
    owners = {r.into for r in reductions if r is not None} - {Space.SHARED}
    return owners.pop() if owners else Space.DST


def requested(
    op: Aggregate, graph: Graph, platform: str, limit: int | None = None
) -> LoweringRequest:
    """`limit` bounds the chunks of a lowering that takes edges in chunks."""
    rows = rows_of(op.reductions)
    return LoweringRequest(op.body, op.reductions, rows, graph, platform, preferred(), limit)


def choose(op: Aggregate, graph: Graph, platform: str, limit: int | None = None) -> Choice:
    """The first lowering without a reason against it; at a schema level, whichever of a generated
    kernel of the CPU and `dense` the cost model prefers."""
    request = requested(op, graph, platform, limit)
    refused: list[tuple[str, tuple[str, ...]]] = []
    predicted: tuple[tuple[str, float], ...] = ()
    for lowering in LOWERINGS:
        if lowering is DENSE and graph.fan_in is None:
            continue  # which is no reason to show for every other graph
        if lowering is STAGED and not staged.is_meant(request.body):
            continue  # nor for every other edge function
        reasons = skipped(lowering.name) or lowering.reasons(request)
        if lowering.name == "cpu" and not reasons:
            predicted = _predicted(op, request)
            reasons = _slower(predicted)
        if not reasons:
            return Choice(lowering, request, tuple(refused), predicted)
        refused.append((lowering.name, tuple(reasons)))
    raise AssertionError(f"no lowering takes this traversal: {refused}")


def _predicted(op: Aggregate, request: LoweringRequest) -> tuple[tuple[str, float], ...]:
    """Seconds of a generated kernel and of `dense`, where both run and none is preferred."""
    if request.graph.fan_in is None or request.preferred or DENSE.reasons(request):
        return ()
    found = seconds(op, request.graph, request.platform)
    return () if found is None else tuple(zip(("cpu", DENSE.name), found, strict=True))


def _slower(predicted: tuple[tuple[str, float], ...]) -> list[str]:
    times = dict(predicted)
    if not times or times["cpu"] <= times[DENSE.name]:
        return []
    kernel, dense = (f"{1e3 * times[name]:.3g} ms" for name in ("cpu", DENSE.name))
    return [f"it is predicted to take {kernel}, and dense {dense}"]


def _keeps_online(request: LoweringRequest) -> bool:
    return any(not skipped(x.name) and not x.why_not(request) for x in (STAGED, PALLAS))


@cached(maxsize=1024)
def optimised(
    body: Program,
    reductions: Reductions,
    *,
    online: bool,
    scale_on_edges: bool = False,
    keep: frozenset[Space] = frozenset(),
    store_shared: bool = False,
) -> Program:
    """An aggregate as a program of its own, after the passes: nothing more is differentiated.

    `online`: `exp_sum` stays, for kernels that know it. `scale_on_edges`: features are scaled
    where edges read them, for kernels that do so at no cost. `keep`: as `crowded` says.
    `store_shared`: a traversal may write what another one reduces (`store-shared-products`).
    """
    program = inline_custom_calls(flat(body, reductions, online=online, keep=keep))
    passes = lowering_passes(
        online=online, scale_on_edges=scale_on_edges, keep=keep, store_shared=store_shared
    )
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
    body: Program,
    reductions: Reductions,
    graph: Graph,
    platform: str,
    limit: int | None = None,
    *,
    moved: bool = False,
) -> Program:
    """The program that an aggregate is lowered to.

    An `exp_sum` stays one traversal where the GPU kernels take it, and is written out as several
    otherwise. An array over the edges that one traversal would write for another has at most
    `limit` scalars, as a chunk of edges has. `moved`: what edges read of vertices comes from other
    devices, so that less of it is better than less work.
    """
    most = WRITTEN if limit is None else min(limit, WRITTEN)
    program = _traversals(body, reductions, graph, platform, moved, store_shared=True)
    if graph.num_edges * _stored(program) <= most:
        return program
    return _traversals(body, reductions, graph, platform, moved, store_shared=False)


def _stored(program: Program) -> int:
    """The scalars of an edge that traversals write for others."""
    made = [v for e in program.equations if isinstance(e.op, Aggregate) for v in e.outputs]
    return sum(v.size for v in made if v.space is Space.EDGE and v not in program.outputs)


def _traversals(
    body: Program,
    reductions: Reductions,
    graph: Graph,
    platform: str,
    moved: bool,
    store_shared: bool,
) -> Program:
    keep = crowded(body, graph)
    if not PALLAS.why_not_on(platform, preferred()):
        program = optimised(body, reductions, online=True, keep=keep, store_shared=store_shared)
        ops = [e.op for e in program.equations if isinstance(e.op, Aggregate)]
        online = [op for op in ops if any(r and r.kind == "exp_sum" for r in op.reductions)]
        if all(_keeps_online(requested(op, graph, platform)) for op in online):
            return program
    # The CPU's other lowerings know a sum of neighbours by its form, without factors.
    generated = platform == "cpu" and cpu.available() and preferred() in (None, "cpu")
    generated = generated and not moved
    return optimised(
        body,
        reductions,
        online=False,
        scale_on_edges=generated,
        keep=keep,
        store_shared=store_shared,
    )
