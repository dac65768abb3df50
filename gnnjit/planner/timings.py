"""Plans by time: what alternatives of one call took, measured once and kept on disk.

The cost model ranks alternatives within some ten percent, which is not enough where they are
close, and small programs are. Where `gnnjit.autotuning()` is on, close ones are timed while the
layer is planned, on made-up arrays and edges of the call's shapes, and where that is wanted again
in later processes; `explain(measure=True, learn=True)` times them on the user's own.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.cost.store import Key
from gnnjit.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.ir.show import show
from gnnjit.lower.choose import preferred
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.candidate import Candidate, compiled
from gnnjit.planner.plan import Alternative, Problem
from gnnjit.system import autotuning
from gnnjit.system.allocator import keeps_memory
from gnnjit.system.cache import Table
from gnnjit.system.portable import is_portable
from gnnjit.system.timing import compare

CLOSE = 1.5
"""Alternatives whose predicted times are within this factor are timed, where autotuning is on."""

MOST = 4
"""Alternatives of one call that are timed, at most."""

NEAR = 1.2
"""Alternatives whose times are within this factor are timed in further stretches of time."""

OWN = "own "
"""Before the key of a call: what was measured on a user's own arrays, which decides."""

DIGITS = 3
"""Binary digits of the sizes of a graph that count: within an eighth they are alike."""

Times = Mapping[str, Sequence[float | None]]
"""Seconds by `name_of` choices, in each stretch of time. All of a call have a time in the first,
and some of them, measured together, in each of the others."""

T = TypeVar("T")


def by_time(
    problem: Problem,
    every: list[Alternative],
    candidate: Callable[[Alternative], Candidate] | None,
    stretches: int,
) -> list[Alternative]:
    """`every`, sorted by prediction, with the fastest by the clock in front, if that is known.

    candidate: what is compiled of an alternative, to time close ones; None: they are not timed.
    stretches: of time, in which they are, one in each process.
    """
    # All processes of a program have to run the same.
    if len(every) == 1 or jax.process_count() > 1 or not (candidate or TIMES.load()):
        return every
    key = key_of(problem)
    if candidate:
        _time(key, every, candidate, stretches)
    times = known(key)
    every = [dataclasses.replace(a, measured=times.get(name_of(a.choices))) for a in every]
    if every[0].measured is None:
        return every
    _, at = min((a.measured, i) for i, a in enumerate(every) if a.measured is not None)
    return [every[at], *every[:at], *every[at + 1 :]]


def _time(
    key: str,
    every: list[Alternative],
    candidate: Callable[[Alternative], Candidate],
    stretches: int,
) -> None:
    """Close alternatives, if they are not known; then, in further stretches, those near the
    fastest."""
    close = [a for a in every if a.seconds <= CLOSE * every[0].seconds][:MOST]
    names = {name_of(a.choices) for a in close}
    entry, own = (TIMES.load().get(k, {}) for k in (key, OWN + key))
    again = names <= entry.keys()
    if names <= own.keys() or (again and len(next(iter(entry.values()))) >= stretches):
        return
    if again:
        times = _combined(entry)
        near = NEAR * min(times[name_of(a.choices)] for a in close)
        close = [a for a in close if times[name_of(a.choices)] <= near]
    if len(close) > 1:
        found = measured([candidate(a) for a in close])
        remember(key, {a.choices: t for a, t in zip(close, found, strict=True)}, again)


def key_of(problem: Problem) -> str:
    """The key of a call on this process's first device, the same in every process."""
    p = problem
    sizes = [
        n >> (less := max(n.bit_length() - DIGITS, 0)) << less for n in dataclasses.astuple(p.sizes)
    ]
    parts = (
        show(p.program, locations=False), p.slots, p.padded, sizes, p.differentiated, p.platform,
        _lowering(), keeps_memory(), Key.here(),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _lowering() -> str | None:
    return f"portable, {preferred()}" if is_portable() else preferred()


def name_of(choices: Choices) -> str:
    """The name of choices, the same in every process."""
    c = choices
    on_edges = sorted(space.value for space in c.on_edges)
    return json.dumps(
        [c.orders, c.aliased_inputs, c.products, c.stored, c.split, on_edges, c.limit]
    )


def known(key: str) -> dict[str, float]:
    """Seconds of alternatives of a call, of all stretches; nothing where nothing was measured."""
    made_up, own = (_combined(TIMES.load().get(k, {})) for k in (key, OWN + key))
    return {**made_up, **own}


def _combined(entry: Times) -> dict[str, float]:
    """The medians. What a stretch took longer than the first, on the whole, does not count."""
    if not entry:
        return {}
    logs = np.array([[math.nan if t is None else math.log(t) for t in e] for e in entry.values()])
    logs -= np.nanmean(logs - logs[:, :1], axis=0)
    return dict(zip(entry, np.exp(np.nanmedian(logs, axis=1)).tolist(), strict=True))


def remember(key: str, times: Mapping[Choices, float | None], again: bool = False) -> None:
    """Beside what is known of a call. A time that is measured again replaces the earlier one, or
    with `again` is that of a further stretch, of alternatives that are known."""
    found = {name_of(choices): t for choices, t in times.items() if t is not None}
    if not found:
        return
    entry = TIMES.load().get(key, {})
    if again and found.keys() <= entry.keys():  # nobody removed it meanwhile
        entry = {name: (*e, found.get(name)) for name, e in entry.items()}
    else:
        entry = {name: (t,) for name, t in {**_combined(entry), **found}.items()}
    TIMES.store(key, entry)


def measured(candidates: Sequence[Candidate]) -> list[float | None]:
    """Seconds of each plan of one call, in turns, on made-up arrays; None for one that does not
    compile or run."""
    shapes, rng = candidates[0].shapes, np.random.default_rng(0)
    graph = jax.tree.unflatten(shapes.graph_def, shapes.graph)
    leaves, treedef = autotuning.untraced(lambda: jax.tree.flatten(_graph_like(graph, rng)))
    of_leaves = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    here = dataclasses.replace(shapes, graph_def=treedef, graph=of_leaves)
    candidates = [dataclasses.replace(c, shapes=here) for c in candidates]
    executables = [_fails_to_none(functools.partial(compiled, c)) for c in candidates]

    def clocked() -> list[float | None]:
        arguments = tuple(leaves), tuple(_like(x, rng) for x in shapes.arrays)
        runs = [f if f and _fails_to_none(functools.partial(_runs, f, arguments)) else None
                for f in executables]  # fmt: skip
        able = [f for f in runs if f]
        times = iter(_fails_to_none(functools.partial(compare, able, arguments)) or ())
        return [f and next(times, None) for f in runs]

    return autotuning.untraced(clocked)


def _runs(f: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    jax.block_until_ready(f(*arguments))
    return True


def _fails_to_none(make: Callable[[], T]) -> T | None:
    """None where it does not fit beside what else is there."""
    try:
        return make()
    except (jax.errors.JaxRuntimeError, MemoryError):
        return None


def _graph_like(graph: Graph, rng: np.random.Generator) -> Graph:
    """As many vertices and edges, with random ends."""
    src = rng.integers(0, max(graph.num_src, 1), graph.num_edges)
    dst = rng.integers(0, max(graph.num_dst, 1), graph.num_edges)
    sizes: Any = {"num_nodes": graph.num_dst}
    if graph.bipartite:
        sizes = {"num_src": graph.num_src, "num_dst": graph.num_dst}
    mask = None if graph.mask is None else np.ones(graph.num_edges, bool)
    made = Graph.from_edges(src, dst, edge_mask=mask, **sizes)
    return dataclasses.replace(
        made,
        in_structure=_with_parts_of(graph.in_structure, made.in_structure),
        out_structure=_with_parts_of(graph.out_structure, made.out_structure),
    )


def _with_parts_of(like: Structure, made: Structure) -> Structure:
    """`made` without the buckets and tasks that `like` lacks, as traced and padded ones do."""
    return dataclasses.replace(
        made,
        buckets=None if like.buckets is None else made.buckets,
        tasks=None if like.tasks is None else made.tasks,
    )


def _like(x: jax.ShapeDtypeStruct, rng: np.random.Generator) -> jax.Array:
    """Floats are random: zeros would be cheap to add up."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.device_put(rng.standard_normal(x.shape, np.float32).astype(x.dtype))
    return jax.lax.full(x.shape, 0, x.dtype)  # of random keys too


def _parse(key: str, entry: Any) -> Times:
    lengths = {len(times) for times in entry.values()}
    for name, times in entry.items():
        if len(lengths) > 1 or not times or times[0] is None:
            raise ValueError(f"{key} has {times!r} for {name}, expected times of each stretch")
        for seconds in times:
            if seconds is not None and (type(seconds) is not float or not 0 < seconds < math.inf):
                raise ValueError(
                    f"{key} has the time {seconds!r} for {name}, expected seconds above 0"
                )
    return dict(entry)


TIMES: Table[Times] = Table("plans", _parse, dict, format=2)
