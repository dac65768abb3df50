"""Warnings of what a layer says, where it is probably not what was meant."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from gnnjit.errors import GnnjitWarning
from gnnjit.ir.program import Degree, Equation, Lax, Location, Pool, Program, Reduce, Value
from gnnjit.ir.space import Space

_seen: dict[Any, Any] = {}
"""What `warnings` remembers of the places that were warned of."""

_COLLAPSES = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
_CUTS = ("slice", "dynamic_slice", "unstack")
_ELEMENTWISE = frozenset("add sub mul div max min pow rem atan2 select_n".split())


def warn(where: Location | None, message: str) -> None:
    """Warn of the user's line, once for each."""
    file, line = (where.file, where.line) if where else ("?", 0)
    at = f"{where}: " if where else ""
    warnings.warn_explicit(at + message, GnnjitWarning, file, line, registry=_seen)


def reduced_vertex_value(said: str, value: Any, of_sum: bool) -> str:
    """What it means to reduce a value that all edges of a vertex share."""
    kind = f"{value.dtype.name}{list(value.shape)}"
    hops = (
        "a layer reaches one hop: for two, call two layers, one on what the other returns"
        if of_sum
        else "e.src is the neighbour's value"
    )
    means = {
        "sum": "so this is gnnjit.degree() times the value",
        "softmax": "so all weights are 1 / gnnjit.degree()",
        "var": "so this is 0", "std": "so this is 0",
        "logsumexp": "so this is the value and the logarithm of gnnjit.degree()",
    }.get(said, "so this is the value itself, where there are edges")  # fmt: skip
    write = " Write gnnjit.degree() * value if that is meant" if said == "sum" else ""
    return (
        f"gnnjit.{said}() of a vertex value ({kind}), the same for all incoming edges, {means}; "
        f"{hops}.{write}"
    )


def look_through(program: Program, captured: Sequence[Value], graph: Any) -> None:
    """Warn of what a traced layer does; these of its inputs it closed over itself."""
    _warn_of_own_features(program)
    rows = {graph.num_dst: "vertices", graph.num_edges: "edges"}
    vectors = {v for v in captured if len(v.shape) == 1 and v.shape[0] in rows}
    for eqn in program.equations if vectors else ():
        found = vectors.intersection(eqn.inputs)
        if found and _is_per_feature(eqn):
            (n,) = found.pop().shape
            warn(
                eqn.location,
                f"a captured array of shape [{n}] is combined with {n} features, and {n} is also "
                f"the number of {rows[n]}: it is read as one number per feature. If it has one for "
                f"each of the {rows[n]}, pass it in {'x' if n == graph.num_dst else 'edges'}; if "
                "one per feature, pass it as a parameter, which silences this",
            )
            return


def _is_per_feature(eqn: Equation) -> bool:
    others = [a for a in eqn.inputs if a.space is not Space.SHARED]
    return eqn.op.name in _ELEMENTWISE and any(a.shape == eqn.outputs[0].shape for a in others)


def _warn_of_own_features(program: Program) -> None:
    """Where a layer reduces over no edges, and adds up the features of one source instead."""
    if any(isinstance(e.op, (Reduce, Pool, Degree)) for e in program.equations):
        return
    for v in program.inputs:
        if v.space is not Space.SRC or not v.shape:
            continue
        eqn = _collapse(program, v)
        if eqn is not None:
            warn(
                eqn.location,
                f"this adds up the {v.shape[0]} features of one edge's source ({v.name}), and the "
                "layer reduces over no edges, so it returns a value per edge. Python's sum and "
                f"jnp.sum know one element: gnnjit.sum({v.name}) adds up over the incoming edges",
            )


def _collapse(program: Program, v: Value) -> Equation | None:
    """The equation that reduces the first axis of `v`, if nothing else reads it."""
    readers = [e for e in program.equations if v in e.inputs]
    op = readers[0].op if len(readers) == 1 else None
    if isinstance(op, Lax) and op.name in _COLLAPSES:
        return readers[0] if 0 in op["axes"] else None
    if v.shape[0] < 2 or any(e.op.name not in _CUTS for e in readers):
        return None
    # What was cut out of each value, and added to it.
    parts = {o: {o} for e in readers for o in e.outputs}
    for eqn in program.equations:
        if eqn.op.name in ("squeeze", "add"):
            added = set().union(*(parts.get(a, set()) for a in eqn.inputs))  # type: ignore[arg-type]
            parts[eqn.outputs[0]] = added
            if len(added) == v.shape[0]:
                return eqn
    return None
