"""The rules every program keeps; they are checked between passes.

- A value is defined once, before it is used.
- A `Lax` equation sits in the join of its operands' spaces or above, never below, all its outputs
  in one space, and their shapes and dtypes are those of the primitive.
- `Reduce` writes the space it names and keeps shape and dtype of its operand; an `exp_sum` those of
  its value, whose first axes are its score's, both of them floating.
- `Pool` takes a value of destinations (or a shared one) into the graphs; an extreme may come with
  `int32` counts, one for each vertex and one for each entry. `OfGraph` brings a value of graphs to
  sources or destinations; no `Lax` equation reads one outside of the graphs. `AtVertex` brings a
  value of sources to destinations.
- `Store` keeps one edge value as it is.
- `Degree` is `int32[]` per source, destination or graph; `Index` also per edge.
- `Select` and `Fold` take operands of sources or destinations, whichever they go into, and others
  that their body reads on the edges. A `Fold`'s state has one type, from its start to its end.
- `Aggregate` holds only `Lax` equations. Its body's inputs are its operands one for one, its
  outputs are the body's, each in the space its reduction names (on the edges where it has none).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from gnnjit.errors import LayerError, VerifyError
from gnnjit.ir.dtypes import is_extended, is_floating
from gnnjit.ir.evaluate import Kind, result_kinds
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    OfGraph,
    Pool,
    Program,
    Reduce,
    Select,
    Store,
    Value,
)
from gnnjit.ir.show import Printer, kind
from gnnjit.ir.space import Space, SpaceKind, join

_KINDS = ("sum", "max", "min", "prod", "exp_sum")

_sound: weakref.WeakSet[Equation] = weakref.WeakSet()
"""Equations that keep the rules, wherever they stand: passes leave most of them as they are."""


def verify(program: Program) -> None:
    """Raise `VerifyError` naming the equation and the rule it breaks; return nothing if all hold.

    It checks structure and types, not meaning: two programs that differ can both be well formed.
    """
    defined: set[Atom] = set()
    for value in program.inputs:
        if value in defined:
            _fail(program, None, f"the input {_named(value)} is listed twice")
        defined.add(value)
    for eqn in program.equations:
        _check_order(program, eqn, defined)
        if eqn in _sound:
            continue
        reason = _broken_rule(eqn)
        if reason is not None:
            _fail(program, eqn, reason)
        if isinstance(eqn.op, (Aggregate, Select, Fold)):
            _check_body(program, eqn, eqn.op.body)
        _sound.add(eqn)
    for i, atom in enumerate(program.outputs):
        if isinstance(atom, Value) and atom not in defined:
            _fail(program, None, f"output {i} ({_named(atom)}) is never defined")


def _check_order(program: Program, eqn: Equation, defined: set[Atom]) -> None:
    for i, atom in enumerate(eqn.inputs):
        if atom not in defined and isinstance(atom, Value):
            _fail(program, eqn, f"operand {i} ({_named(atom)}) is used before it is defined")
    for i, value in enumerate(eqn.outputs):
        if value in defined:
            _fail(program, eqn, f"output {i} ({_named(value)}) is already defined")
        defined.add(value)


def _check_body(program: Program, eqn: Equation, body: Program) -> None:
    try:
        verify(body)
    except VerifyError as error:
        raise VerifyError(f"{error}\n  which is the body of: {_print(program, eqn)}") from error


def _broken_rule(eqn: Equation) -> str | None:
    if not eqn.outputs:
        return "it has no outputs"
    match eqn.op:
        case Lax():
            return _lax(eqn, eqn.op)
        case Reduce():
            return _reduce(eqn, eqn.op)
        case Pool():
            return _pool(eqn, eqn.op)
        case OfGraph() | AtVertex():
            return _brought(eqn)
        case Store():
            return _store(eqn)
        case Degree() | Index():
            return _number(eqn)
        case Aggregate():
            return _aggregate(eqn, eqn.op)
        case Select() | Fold():
            return _in_turn(eqn, eqn.op)


def _lax(eqn: Equation, op: Lax) -> str | None:
    spaces = {o.space for o in eqn.outputs}
    if len(spaces) != 1:
        return f"its outputs lie in {len(spaces)} spaces; all outputs of {op.name} share one"
    (found,) = spaces
    try:
        needed = join(*(a.space for a in eqn.inputs))
    except LayerError as error:
        return str(error)
    if found is not Space.GRAPH and any(a.space is Space.GRAPH for a in eqn.inputs):
        return f"it reads a value of graphs in {found.value}, where of_graph should have brought it"
    if not needed <= found:
        return f"its operands can be read together in {needed.value}, but it sits in {found.value}"
    if any(is_extended(v.dtype) for v in (*eqn.inputs, *eqn.outputs)):
        return None
    try:
        kinds = tuple((tuple(a.shape), np.dtype(a.dtype)) for a in eqn.inputs)
        expected = result_kinds(op, kinds)
    except (TypeError, ValueError) as error:
        return f"{op.name} does not accept its operands: {error}"
    return _compare(eqn.outputs, expected, op.name)


def _reduce(eqn: Equation, op: Reduce) -> str | None:
    if op.score is not None:
        return "a reduction names the number of its score only in a traversal"
    if op.kind == "exp_sum":
        if len(eqn.inputs) != 2 or len(eqn.outputs) != 1:
            return "exp_sum has two operands, score and value, and one output"
        wrong = _reduction(op, eqn.outputs[0]) or _scored(op, *eqn.inputs)
    elif len(eqn.inputs) != 1 or len(eqn.outputs) != 1:
        return "a reduction has one operand and one output"
    else:
        wrong = _reduction(op, eqn.outputs[0])
    return wrong or _compare(eqn.outputs, [_aval(eqn.inputs[-1])], op.kind)


def _pool(eqn: Equation, op: Pool) -> str | None:
    if op.kind not in ("sum", "max", "min"):
        return f"unknown reduction {op.kind!r} into graphs; known are sum, max, min"
    counted = len(eqn.inputs) == 3 and op.kind != "sum"
    if not (counted or len(eqn.inputs) == 1) or len(eqn.outputs) != 1:
        return "a pool has one operand, or an extreme and two counts, and one output"
    for i, atom in enumerate(eqn.inputs):
        if atom.space not in (Space.DST, Space.SHARED):
            return f"a pool takes values of dst, but operand {i} lies in {atom.space.value}"
    if eqn.space is not Space.GRAPH:
        return f"a pool goes into graph, not into {eqn.space.value}"
    shape, counts = tuple(eqn.inputs[0].shape), list(map(_aval, eqn.inputs[1:]))
    if counts and counts != [((), np.dtype(np.int32)), (shape, np.dtype(np.int32))]:
        return f"its counts are {', '.join(map(kind, eqn.inputs[1:]))}"
    return _compare(eqn.outputs, [_aval(eqn.inputs[0])], "pool")


def _brought(eqn: Equation) -> str | None:
    name = eqn.op.name
    if len(eqn.inputs) != 1 or len(eqn.outputs) != 1:
        return f"{name} has one operand and one output"
    before, after = eqn.inputs[0].space, eqn.space
    if isinstance(eqn.op, AtVertex):
        allowed, right = "from src to dst", before is Space.SRC and after is Space.DST
    else:
        allowed, right = "from graph to src or dst", before is Space.GRAPH and after.is_vertex
    if not right:
        return f"{name} goes {allowed}, not from {before.value} to {after.value}"
    return _compare(eqn.outputs, [_aval(eqn.inputs[0])], name)


def _store(eqn: Equation) -> str | None:
    if len(eqn.inputs) != 1 or len(eqn.outputs) != 1:
        return "store has one operand and one output"
    for what, atom in (("operand", eqn.inputs[0]), ("output", eqn.outputs[0])):
        if atom.space is not Space.EDGE:
            return f"store keeps values on the edges, but its {what} lies in {atom.space.value}"
    return _compare(eqn.outputs, [_aval(eqn.inputs[0])], "store")


def _scored(op: Reduce, score: Atom, value: Atom) -> str | None:
    """Whether `exp_sum` can take this score and value."""
    if op.into is Space.SHARED:
        return "exp_sum goes into src or dst, not into shared"
    for atom in (score, value):
        if not is_floating(atom.dtype):
            return f"exp_sum takes floating-point numbers, not {kind(atom)}"
    if tuple(value.shape[: len(score.shape)]) != tuple(score.shape):
        return f"the shape of the score, {kind(score)}, is no prefix of the value's, {kind(value)}"
    return None


def _reduction(op: Reduce, out: Value) -> str | None:
    if op.kind not in _KINDS:
        return f"unknown reduction {op.kind!r}; known are {', '.join(_KINDS)}"
    if op.into is not Space.SHARED and not op.into.is_vertex:
        return f"a reduction goes into src, dst or shared, not into {op.into.value}"
    if out.space is not op.into:
        return f"it reduces into {op.into.value}, but its output lies in {out.space.value}"
    return None


def _number(eqn: Equation) -> str | None:
    allowed: tuple[SpaceKind, ...] = ("src", "dst", "edge", "graph")
    if isinstance(eqn.op, Degree):
        allowed = ("src", "dst", "graph")
    if eqn.inputs or len(eqn.outputs) != 1:
        return f"{eqn.op.name} has no operands and one output"
    if eqn.space.kind not in allowed:
        return f"{eqn.op.name} is defined in {' or '.join(allowed)}, not in {eqn.space.value}"
    return _compare(eqn.outputs, [((), np.dtype(np.int32))], eqn.op.name)


def _in_turn(eqn: Equation, op: Select | Fold) -> str | None:
    """A selection or a fold."""
    for inner in op.body.equations:
        if not isinstance(inner.op, Lax):
            return f"its body holds {inner.op.name}; only primitives of JAX may stand there"
    own, read = eqn.inputs[: op.own], eqn.inputs[op.own :]
    if len(read) != len(op.body.inputs) - op.carried:
        return f"it has {len(read)} operands on the edges, its body {len(op.body.inputs)} inputs"
    for given, wanted in zip(read, op.body.inputs[op.carried :], strict=True):
        if not given.space <= wanted.space or _aval(given) != _aval(wanted):
            return f"an operand is {kind(given)}, its body's input is {kind(wanted)}"
    if not op.into.is_vertex or any(o.space is not op.into for o in eqn.outputs):
        return f"it goes into {op.into.value}, a space of vertices that its outputs lie in"
    start = own[isinstance(op, Fold) and op.ordered :]
    if any(not a.space <= op.into for a in start):
        return f"what it starts from cannot be read in {op.into.value}"
    if isinstance(op, Select):
        count = own[0].shape[0] if len(own[0].shape) == 1 else -1
        shape = (count, *op.body.outputs[0].shape)
        return _compare(eqn.outputs, [(shape, np.dtype(np.int32))], op.name)
    expected = [_aval(a) for a in op.body.outputs]
    if [_aval(a) for a in start] != expected or [_aval(a) for a in op.body.inputs][
        : op.carried
    ] != expected:
        return "its state has another type at its start, in its body, or after it"
    return _compare(eqn.outputs, expected, op.name)


def _aggregate(eqn: Equation, op: Aggregate) -> str | None:
    for inner in op.body.equations:
        if not isinstance(inner.op, Lax):
            return f"its body holds {inner.op.name}; only primitives of JAX may stand there"
    if len(op.reductions) != len(op.body.outputs) or len(op.reductions) != len(eqn.outputs):
        return (
            f"{len(op.body.outputs)} body outputs, {len(op.reductions)} reductions and "
            f"{len(eqn.outputs)} outputs should be as many"
        )
    if len(eqn.inputs) != len(op.body.inputs):
        return f"it has {len(eqn.inputs)} operands, its body {len(op.body.inputs)} inputs"
    for i, (given, wanted) in enumerate(zip(eqn.inputs, op.body.inputs, strict=True)):
        if (given.space, _aval(given)) != (wanted.space, _aval(wanted)):
            return f"operand {i} is {kind(given)}, its body's input is {kind(wanted)}"
    return _aggregate_outputs(eqn, op)


def _aggregate_outputs(eqn: Equation, op: Aggregate) -> str | None:
    for i, (out, reduction) in enumerate(zip(eqn.outputs, op.reductions, strict=True)):
        if reduction is not None:
            wrong = _reduction(reduction, out) or _scored_output(op, i, reduction)
            if wrong is not None:
                return f"output {i}: {wrong}"
        elif out.space is not Space.EDGE:
            return f"output {i} has no reduction, so it lies in edge, not in {out.space.value}"
    return _compare(eqn.outputs, [_aval(o) for o in op.body.outputs], op.name)


def _scored_output(op: Aggregate, i: int, reduction: Reduce) -> str | None:
    """Whether output `i` has the score that it needs, if it needs one."""
    k = reduction.score
    if reduction.kind != "exp_sum":
        return None if k is None else f"{reduction.kind} has no score"
    found = op.reductions[k] if k is not None and 0 <= k < len(op.reductions) else None
    if k is None or found != Reduce("max", reduction.into):
        return f"its score should be an output with max into {reduction.into.value}, not output {k}"
    return _scored(reduction, op.body.outputs[k], op.body.outputs[i])


def _compare(outputs: Sequence[Value], expected: Sequence[Kind], name: str) -> str | None:
    if len(outputs) != len(expected):
        return f"{name} has {len(expected)} outputs, not {len(outputs)}"
    for i, (out, (shape, dtype)) in enumerate(zip(outputs, expected, strict=True)):
        if (tuple(out.shape), out.dtype) != (tuple(shape), dtype):
            right = Value(tuple(shape), dtype, out.space)
            return f"output {i} is {kind(out)}, but {name} gives {kind(right)}"
    return None


def _aval(atom: Atom) -> Kind:
    return tuple(atom.shape), atom.dtype


def _named(atom: Atom) -> str:
    label = f"{atom.name}: " if isinstance(atom, Value) and atom.name else ""
    return label + kind(atom)


def _print(program: Program, eqn: Equation) -> str:
    """The equation, named as in the text of the whole program."""
    printer = Printer(program)
    before = itertools.takewhile(lambda e: e is not eqn, program.equations)
    for other in before:
        printer.equation(other)
    lines = printer.equation(eqn)
    at = f"    # {eqn.location}" if eqn.location else ""
    return lines[0][0] + at + "".join(f"\n      {text}" for text, _ in lines[1:])


def _fail(program: Program, eqn: Equation | None, reason: str) -> NoReturn:
    where = "" if eqn is None else f"\n  in: {_print(program, eqn)}"
    raise VerifyError(f"{program.name}: {reason}{where}")
