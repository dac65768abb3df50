"""Programs as text: mathematics, one line per equation; `gnnjit.ir.parse` reads it back.

    layer gcn(e.src: f32[src, 4], p.w: f32[4, 3])
      a: f32[src, 3] = e.src @ p.w                  # model.py:12
      b: f32[dst, 3] = sum over (u -> v) of a[u]    # model.py:13
      return b

*Types* give the space, then the shape of one element: `f32[dst, 3]`, `bool[edge]`; a shared value
names no space: `f32[4, 3]`, `i32[]`. A space of one relation says which: `f32[dst:cites, 3]`.

*Names.* Inputs keep theirs (`p['w']` prints as `p.w`); other values get letters. `u`, `v`, `e` are
one source, destination and edge, so an input of that name gets a prime: `v'`.

*Reading.* A value read in a larger space shows where it is read: `a[u]` at the edge's source,
`b[v]` at its destination.

*Operations.* `x + y`, `x - y`, `x * y`, `x / y`, `-x`, comparisons, and `x @ y` (the last axis of
x with the first of y) are infix; other primitives are `name(operands, parameter=value, ...)`.
Parameters that JAX sets when nothing is said, or that the output's type tells, are left out
(`name=absent` where a program lacks a parameter that JAX sets).
`&0` is a parameter that text cannot hold (a function, a jaxpr), `name&0` a primitive that is not
JAX's own: they are numbered in a list beside the text.

*Reductions.* The arrow ends at the element that owns the result:

    sum over (u -> v) of x     for each destination v, over its incoming edges
    sum over (v <- u) of x     for each source u, over its outgoing edges
    sum over all edges of x    one shared value
    sum over (u -> v) of exp(s - max s) * x    a score s shifted by its maximum at v, in one go
    degree of v, index of u    number of edges at v; number of the element itself
    sum over (v in graph) of x    for each graph, over its vertices; `of x, n, k` if x is the
                               extreme over n edges of v, k of which attain it
    x[graph of v]              the value x of the graph that v belongs to
    x[source v]                the value x that v has as a source, where it is one
    store(x)                   the edge value x, written to memory once

*Traversals* (`Aggregate`) name what they read, then their equations, then their outputs in order:

    for each edge (u -> v) of a[u], p.w
      c: f32[edge, 3] = a[u] * p.w
      d: f32[dst, 3] = sum over (u -> v) of c
      f: f32[edge, 3] = on each edge c

Selections and folds are such blocks too:

    select over (u -> v) of a[u], n        the number n of the edge at which c has rank r in its row
      c: f32[edge, 3] = tanh(a[u])         (`first rank r` where all of r are 0)
      d: i32[dst, 2, 3] = number n at rank r of c, largest first

    fold over (u -> v) in order of t, of a[u], p.w    edge after edge, from state s to the next
      ...
      h: f32[dst, 3] = s from 0.0 to g

An operand read twice, or a constant, is listed with a name of its own: `g = 2.0`.

*Constants* without a suffix are `f32`, `i32` or `bool`; others say so: `1:u32`. `f32(0.2)` is the
double 0.2 that a program holds as a constant of type f32.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive, primitives

from gnnjit.ir.at_most import at_most_p
from gnnjit.ir.kept import kept_p
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    Literal,
    OfGraph,
    Pool,
    Program,
    Reduce,
    Select,
    Store,
    Value,
)
from gnnjit.ir.space import Space, SpaceKind

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "dot_general": "@",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
OVER: dict[SpaceKind, str] = {
    "dst": "over (u -> v)",
    "src": "over (v <- u)",
    "shared": "over all edges",
    "graph": "over each graph",  # ill-formed like the next; shown in the verifier's messages
    "edge": "over each edge",
}
MEMBERS = "over (v in graph)"
TRAVERSAL = "for each edge (u -> v)"
SHORT_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
BARE_DTYPES = ("float32", "int32", "bool")  # of constants without a suffix

_LETTERS = "abcdfghijkmnpqrstwxyz"
_RESERVED = frozenset(
    "u v e sum max min degree index over of on for each all edges return layer inf nan absent "
    "True False None".split()
)
_WIDTH, _COLUMN = 100, 56


def show(
    program: Program,
    *,
    locations: bool = True,
    objects: list[Any] | None = None,
    names: Mapping[int, str] | None = None,
) -> str:
    """The text of `program`; `locations` adds the user's lines as comments, `names` says what some
    inputs are called, by their number.

    Parameters that cannot be written are appended to `objects`, if given, and printed as their
    number there. `parse(show(p, objects=found), found) == p`.
    """
    printer = Printer(program, objects, names)
    lines = [(text, None) for text in printer.header()]
    for eqn in program.equations:
        lines += printer.equation(eqn, "  ")
    returned = ", ".join(printer.atom(o) for o in program.outputs)
    lines.append((f"  return {returned}".rstrip(), None))
    short = [len(text) for text, where in lines if where and len(text) <= _COLUMN]
    column = max(short, default=0) + 4
    return "\n".join(
        f"{text:<{column - 4}}    # {where}" if where and locations else text
        for text, where in lines
    )


Line = tuple[str, Any]  # text and location


class Printer:
    """Names the values of one program and writes its equations."""

    def __init__(
        self,
        program: Program,
        objects: list[Any] | None = None,
        names: Mapping[int, str] | None = None,
    ):
        self.program = program
        self.objects: list[Any] = [] if objects is None else objects
        self.names: dict[Value, str] = {}
        self.used: set[str] = set(_RESERVED)
        letters = (
            a + n for n in itertools.chain([""], map(str, itertools.count(1))) for a in _LETTERS
        )
        self.fresh = (name for name in letters if name not in self.used)
        for number, value in enumerate(program.inputs):
            self.name(value, (names or {}).get(number))

    def name(self, value: Value, called: str | None = None) -> str:
        if value not in self.names:
            wanted = identifier(called or value.name) or next(self.fresh)
            found = next(n for n in _variants(wanted) if n not in self.used)
            self.used.add(found)
            self.names[value] = found
        return self.names[value]

    def header(self) -> list[str]:
        inputs = [f"{self.name(v)}: {kind(v)}" for v in self.program.inputs]
        start = f"layer {identifier(self.program.name) or 'layer'}("
        line = start + ", ".join(inputs) + ")"
        if len(line) <= _WIDTH:
            return [line]
        return [start, *(f"    {text}," for text in inputs), ")"]

    def atom(self, atom: Atom, at: Space | None = None) -> str:
        """The atom as it is read in the space `at`."""
        if isinstance(atom, Literal):
            return literal(atom)
        here = at is None or atom.space.kind in (at.kind, "shared")
        return self.name(atom) if here else f"{self.name(atom)}[{atom.space.index}]"

    def equation(self, eqn: Equation, indent: str = "") -> list[Line]:
        """The lines of one equation, each with its location."""
        if isinstance(eqn.op, Aggregate):
            return self.traversal(eqn, eqn.op, indent)
        if isinstance(eqn.op, (Select, Fold)):
            return self.in_turn(eqn, eqn.op, indent)
        if not eqn.outputs:  # ill-formed; shown in the verifier's messages
            operands = ", ".join(map(self.atom, eqn.inputs))
            return [(f"{indent}{eqn.op.name}({operands})", eqn.location)]
        expression = self.expression(eqn)
        return [(f"{indent}{self.typed(eqn.outputs)} = {expression}", eqn.location)]

    def typed(self, outputs: tuple[Value, ...]) -> str:
        return ", ".join(f"{self.name(o)}: {kind(o)}" for o in outputs)

    def expression(self, eqn: Equation) -> str:
        match eqn.op:
            case Reduce():
                return self.reduction(eqn.op, eqn.inputs)
            case Pool():
                return f"{eqn.op.kind} {MEMBERS} of {', '.join(map(self.atom, eqn.inputs))}"
            case OfGraph():
                return f"{', '.join(map(self.atom, eqn.inputs))}[graph of {eqn.space.index}]"
            case AtVertex():
                return f"{', '.join(map(self.atom, eqn.inputs))}[source v]"
            case Degree() | Index():
                return f"{eqn.op.name} of {eqn.space.index or eqn.space.value}"
            case Store():
                return f"store({', '.join(self.atom(a, Space.EDGE) for a in eqn.inputs)})"
            case Lax():
                return self.lax(eqn, eqn.op)
        raise AssertionError(eqn.op)

    def reduction(self, op: Reduce, operands: tuple[Atom, ...]) -> str:
        """A reduction of one operand, or of a score and a value."""
        read = [self.atom(a, Space.EDGE) for a in operands]
        if op.kind == "exp_sum" and len(read) == 2:
            return f"sum {OVER[op.into.kind]} of exp({read[0]} - max {read[0]}) * {read[1]}"
        return f"{op.kind} {OVER[op.into.kind]} of {', '.join(read)}"

    def lax(self, eqn: Equation, op: Lax) -> str:
        args = [self.atom(a, eqn.space) for a in eqn.inputs]
        params = [f"{k}={self.param(p)}" for k, p in spoken_params(eqn, op).items()]
        params += [f"{k}=absent" for k in default_params(op.name) if k not in dict(op.params)]
        of_jax = jax_primitives().get(_plain(op.name)) is op.primitive
        if of_jax and not params and len(eqn.outputs) == 1:
            if op.name in INFIX and len(args) == 2:
                return f"{args[0]} {INFIX[op.name]} {args[1]}"
            if op.name == "neg" and isinstance(eqn.inputs[0], Value):
                return f"-{args[0]}"
        name = _plain(op.name) + ("" if of_jax else self.reference(op.primitive))
        return f"{name}({', '.join(args + params)})"

    def reference(self, thing: Any) -> str:
        for i, known in enumerate(self.objects):
            if known is thing:
                return f"&{i}"
        self.objects.append(thing)
        return f"&{len(self.objects) - 1}"

    def param(self, param: Any) -> str:
        """A parameter's value; `&k` where text cannot hold it."""
        if isinstance(param, np.integer):  # JAX leaves some of its sizes and axes so
            param = param.item()
        if param is None or type(param) in (bool, int):
            return str(param)
        if type(param) is float:
            return number(param)
        if type(param) is str:
            return json.dumps(param)
        if isinstance(param, np.dtype):
            return dtype_name(param)
        of_jax = jax_types().get(type(param).__name__) is type(param)
        if isinstance(param, enum.Enum):
            return f"{type(param).__name__}.{param.name}" if of_jax else self.reference(param)
        if type(param) is tuple:
            inside = ", ".join(map(self.param, param))
            return f"({inside},)" if len(param) == 1 else f"({inside})"
        if of_jax:
            implied, given = param._field_defaults, param._asdict().items()
            said = [(k, p) for k, p in given if k not in implied or not _same(p, implied[k])]
            return f"{type(param).__name__}({', '.join(f'{k}={self.param(p)}' for k, p in said)})"
        return self.reference(param)

    def in_turn(self, eqn: Equation, op: Select | Fold, indent: str) -> list[Line]:
        """A selection or a fold."""
        own, body = [self.atom(a) for a in eqn.inputs[: op.own]], op.body
        for state in body.inputs[: op.carried]:
            self.name(state)
        operands = self.operands(eqn.inputs[op.own :], body.inputs[op.carried :], body)
        head = f"{indent}{op.name} {OVER[op.into.kind]}"
        if isinstance(op, Fold) and op.ordered:
            head += f" in order of {self.atom(eqn.inputs[0], Space.EDGE)},"
        lines: list[Line] = [
            (head + (f" of {', '.join(operands)}" if operands else ""), eqn.location)
        ]
        for inner in body.equations:
            lines += self.equation(inner, indent + "  ")
        ends = [self.atom(a, Space.EDGE) for a in body.outputs]
        if isinstance(op, Select):
            first = ", largest first" if op.descending else ""
            rank = f"{'first ' if op.first else ''}rank {own[0]}"
            hows = [f"number {ends[1]} at {rank} of {ends[0]}{first}"]
        else:
            states = map(self.atom, body.inputs[: op.carried])
            pairs = zip(states, own[op.ordered :], ends, strict=False)
            hows = [f"{state} from {start} to {end}" for state, start, end in pairs]
        for out, how in zip(eqn.outputs, hows, strict=False):
            lines.append((f"{indent}  {self.typed((out,))} = {how}", None))
        return lines

    def operands(self, given: Sequence[Atom], inputs: Sequence[Value], body: Program) -> list[str]:
        """What a block reads, as its head says it; names the inputs of its body."""
        operands = []
        for outer, inner in zip(given, inputs, strict=False):
            text = self.atom(outer, Space.EDGE)
            taken = [self.names.get(v) for v in body.inputs]
            if isinstance(outer, Value) and self.name(outer) not in taken:
                self.names[inner] = self.name(outer)
            else:
                text = f"{self.name(inner)} = {text}"
            operands.append(text)
        return operands

    def traversal(self, eqn: Equation, op: Aggregate, indent: str) -> list[Line]:
        operands = self.operands(eqn.inputs, op.body.inputs, op.body)
        head = f"{indent}{TRAVERSAL}" + (f" of {', '.join(operands)}" if operands else "")
        lines: list[Line] = [(head, eqn.location)]
        for inner in op.body.equations:
            lines += self.equation(inner, indent + "  ")
        results = zip(eqn.outputs, op.body.outputs, op.reductions, strict=False)
        for i, (out, atom, reduction) in enumerate(results):
            how = f"on each edge {self.atom(atom, Space.EDGE)}"
            if reduction is not None:
                how = self.reduction(reduction, op.operands(i))
            lines.append((f"{indent}  {self.typed((out,))} = {how}", None))
        return lines


def kind(value: Atom) -> str:
    """The type of a value: `f32[dst, 3]`."""
    space = [value.space.value] if value.space is not Space.SHARED else []
    return f"{dtype_name(value.dtype)}[{', '.join([*space, *map(str, value.shape)])}]"


def dtype_name(dtype: Any) -> str:
    return SHORT_DTYPES.get(dtype.name) or dtype.name


@functools.cache
def find_dtype(name: str) -> Any:
    """The dtype of that name, short or long, or None."""
    if name.startswith("key<"):
        impls = ("threefry2x32", "rbg", "unsafe_rbg")
        keys = [jax.eval_shape(functools.partial(jax.random.key, impl=i), 0) for i in impls]
        return next((k.dtype for k in keys if k.dtype.name == name), None)
    full = next((long for long, short in SHORT_DTYPES.items() if short == name), name)
    try:
        return jax.numpy.dtype(full) if re.match(r"(u?int|b?float|complex)\d|bool$", full) else None
    except TypeError:
        return None


def literal(lit: Literal) -> str:
    held = np.asarray(lit.value)[()]
    text = number(held)
    if held.dtype == lit.dtype:
        return text if held.dtype.name in BARE_DTYPES else f"{text}:{dtype_name(held.dtype)}"
    python = np.asarray(held.item()).dtype == held.dtype
    return f"{dtype_name(lit.dtype)}({text if python else f'{text}:{dtype_name(held.dtype)}'})"


def number(x: Any) -> str:
    """The shortest text that gives back the number in its own dtype."""
    if isinstance(x, (bool, np.bool_, int, np.integer)):
        return str(x)
    if np.iscomplexobj(x):
        return f"({number(x.real)}, {number(x.imag)})"
    if not np.isfinite(x):
        return ("-" if np.signbit(x) else "") + ("nan" if np.isnan(x) else "inf")
    return str(x) if type(x) is np.float32 else repr(float(x))


def identifier(name: str) -> str:
    """`name` as an identifier with dots: `p['layers'][0]` is `p.layers.0`."""
    found = ".".join(re.findall(r"[A-Za-z0-9_]+", name))
    return f"x.{found}" if found[:1].isdigit() else found


def _variants(name: str) -> Iterator[str]:
    yield from (name, name + "'", name + "''")
    yield from (f"{name}_{i}" for i in itertools.count(3))


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


@functools.cache
def jax_primitives() -> Mapping[str, Any]:
    """JAX's primitives by name, hyphens as underscores; and ours."""
    found = [vars(m).get(n) for m in (lax, primitives) for n in vars(m)]
    ours = {p.name: p for p in (at_most_p, kept_p)}
    return ours | {_plain(p.name): p for p in found if isinstance(p, Primitive)}


@functools.cache
def jax_types() -> Mapping[str, type]:
    """The enumerations and named tuples of `jax.lax` that are parameters, by name."""
    classes = [c for c in vars(lax).values() if isinstance(c, type)]
    return {c.__name__: c for c in classes if issubclass(c, enum.Enum) or hasattr(c, "_fields")}


_ELEMENTWISE = ("cbrt", "cos", "exp", "exp2", "expm1", "log", "log1p", "logistic", "rsqrt", "sin",
                "sqrt", "tan", "tanh")  # fmt: skip
_CUMULATIVE = ("cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp")
_EXAMPLES: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(lax, name) for name in _ELEMENTWISE},
    **{name: getattr(lax, name) for name in _CUMULATIVE},
    "mul": lambda x: lax.mul(x, x),
    "dot_general": lambda x: lax.dot(x, x),
    "convert_element_type": lambda x: lax.convert_element_type(x, np.int32),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 2), (0,)),
    "reshape": lambda x: lax.reshape(x, (2, 1)),
    "iota": lambda _: lax.iota(np.int32, 2),
    "reduce_sum": lambda x: jax.numpy.sum(x),
    "reduce_max": lambda x: jax.numpy.max(x),
    "reduce_min": lambda x: jax.numpy.min(x),
    "reduce_prod": lambda x: jax.numpy.prod(x),
    "gather": lambda x: x.at[np.array([0])].get(mode="clip"),
    "slice": lambda x: lax.slice(x, (0,), (1,)),
}
_FROM_OUTPUT: dict[tuple[str, str], Callable[[Value], Any]] = {
    ("dot_general", "preferred_element_type"): lambda out: out.dtype,
    ("convert_element_type", "new_dtype"): lambda out: out.dtype,
    ("bitcast_convert_type", "new_dtype"): lambda out: out.dtype,
    ("iota", "dtype"): lambda out: out.dtype,
    ("iota", "shape"): lambda out: out.shape,
    ("argmax", "index_dtype"): lambda out: out.dtype,
    ("argmin", "index_dtype"): lambda out: out.dtype,
    ("broadcast_in_dim", "shape"): lambda out: out.shape,
    ("reshape", "new_sizes"): lambda out: out.shape,
}


@functools.cache
def default_params(name: str) -> Mapping[str, Any]:
    """The parameters of a primitive that are None or False when nothing is said.

    They are read off an example, because they differ between releases of JAX.
    """
    if name not in _EXAMPLES:
        return {}
    with jax.enable_x64(False):
        jaxpr = jax.make_jaxpr(_EXAMPLES[name])(np.ones(2, np.float32))
    (params,) = [e.params for e in jaxpr.eqns if e.primitive.name == name]
    return {k: p for k, p in params.items() if p is None or p is False}


def implied_params(eqn_inputs: tuple[Atom, ...], out: Value, name: str) -> dict[str, Any]:
    """What the text leaves out: defaults, and what the types of operands and output tell."""
    implied = dict(default_params(name))
    for (primitive, param), from_output in _FROM_OUTPUT.items():
        if primitive == name:
            implied[param] = from_output(out)
    if name == "dot_general" and eqn_inputs:
        last = len(eqn_inputs[0].shape) - 1
        implied["dimension_numbers"] = (((last,), (0,)), ((), ()))
    return implied


def spoken_params(eqn: Equation, op: Lax) -> dict[str, Any]:
    """The parameters of `eqn` that have to be printed."""
    implied = implied_params(eqn.inputs, eqn.outputs[0], op.name)
    return {k: p for k, p in op.params if k not in implied or not _same(p, implied[k])}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b
