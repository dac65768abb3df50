"""From a layer function and its arguments to a program and its operands."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import LayerError
from gnnjit.frontend.capture import MUTABLE, Captured, capture
from gnnjit.frontend.state import library_message
from gnnjit.frontend.vocabulary import layer_scope
from gnnjit.ir.program import Program, Value
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class Edge:
    """One incoming edge as a layer function sees it: `src`, `dst` and `data`, each a pytree of
    per-element arrays. Reading what the call did not bring is an error."""

    _fields: dict[str, Any]
    _missing: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._fields:
            return self._fields[name]
        if name in self._missing:
            raise LayerError(self._missing[name])
        raise LayerError(f"an edge has src, dst and data; it has no {name!r}")


class _Missing:
    """Stands for a destination without features; any use of it is an error."""

    def __init__(self, message: str):
        object.__setattr__(self, "_message", message)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise LayerError(object.__getattribute__(self, "_message"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._fail()

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __neg__ = __iter__ = _fail
    __pow__ = __rpow__ = __abs__ = __len__ = __bool__ = __jax_array__ = _fail
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _fail
    __hash__ = object.__hash__


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What one call of a layer brings. Leaves of `src`, `dst`, `edges` have a leading axis of
    their space's size; `params` leaves are shared. A missing part is None."""

    src: Any
    dst: Any
    edges: Any
    params: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A layer as a program, with the arrays of its inputs and the tree of its outputs."""

    program: Program
    operands: tuple[Any, ...]
    out_tree: Any


def trace(fn: Callable[..., Any], args: Arguments, graph: Any, *, name: str, where: str) -> Traced:
    """Trace `fn(v, e, *params, **keywords)` once, per element."""
    parts = {
        Space.SRC: ("e.src", args.src),
        Space.DST: ("v", args.dst),
        Space.EDGE: ("e.data", args.edges),
        Space.SHARED: ("", (args.params, args.keywords)),
    }
    names = _parameter_names(fn)
    values, operands, trees = [], [], {}
    arrays: dict[int, Any] = {}  # a leaf given twice (e.src and v) stays one array
    for space, (label, tree) in parts.items():
        leaves, treedef = jax.tree.flatten_with_path(tree, is_leaf=_is_sparse)
        trees[space] = (treedef, len(leaves))
        for path, leaf in leaves:
            title = _title(label, path, names)
            array = arrays.setdefault(id(leaf), _array(leaf, f"{where}: {name}: argument {title}"))
            shape = array.shape if space is Space.SHARED else array.shape[1:]
            weak = bool(getattr(array, "weak_type", False))
            values.append(Value(tuple(shape), array.dtype, space, title, weak))
            operands.append(array)
    out_trees: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        groups, rest = {}, list(xs)
        for space, (treedef, n) in trees.items():
            groups[space], rest = jax.tree.unflatten(treedef, rest[:n]), rest[n:]
        out = _call(fn, args, groups, name, where)
        leaves, treedef = jax.tree.flatten(out)
        out_trees.append(treedef)
        return [_output(leaf, f"{where}: {name}") for leaf in leaves]

    try:
        captured = _capture(flat, values, name, where)
    except LayerError as error:
        if _PLACE.match(str(error)):
            raise
        raise LayerError(f"{_user_place(error) or where}: {error}") from error
    except jax.errors.UnexpectedTracerError as error:
        raise LayerError(leak_message(name, where)) from error
    except (TypeError, ValueError) as error:
        if args.dst is None and ("_Missing" in str(error) or "__jax_array__" in str(error)):
            raise LayerError(_no_destination(name, where)) from error
        at = _user_place(error) or where
        raise LayerError(_shape_message(error, values, name, at)) from error
    refuse_batched_constants(captured, graph, f"{where}: {name}")
    _refuse_unread_edges(captured, f"{where}: {name}")
    return Traced(captured.program, (*operands, *captured.constants), out_trees[-1])


def _capture(flat: Any, values: list[Value], name: str, where: str) -> Captured:
    """`capture`, with the errors of Flax about its state in the user's terms."""
    try:
        return capture(flat, values, name=name, edge_values=True)
    except Exception as error:
        said = library_message(error)
        if said is None:
            raise
        raise LayerError(f"{_user_place(error) or where}: {name} {said}") from error


_PLACE = re.compile(r"\S+:\d+: ")
_LIBRARIES = ("jax", "flax", "numpy", "gnnjit/frontend", "gnnjit/lower", "gnnjit/ir")


def _user_place(error: BaseException) -> str | None:
    """`file:line` of the innermost line outside libraries that `error` passed through."""
    frames = [
        (frame.f_code.co_filename.replace(os.sep, "/"), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [
        f"{file.rsplit('/', 1)[-1]}:{line}"
        for file, line in frames
        if not any(f"/{library}/" in file for library in _LIBRARIES)
        and not file.endswith("gnnjit/layer.py")
        and not file.startswith("<")
    ]
    return own[-1] if own else None


def call_once(
    fn: Callable[..., Any], args: Arguments, owner: Any, *, name: str, where: str
) -> None:
    """Call `fn` on one element of zeros, outside any trace of ours: linen modules create their
    parameters while they are called."""

    def element(x: Any) -> Any:
        return jnp.zeros(x.shape[1:], x.dtype)

    groups = {
        Space.SRC: jax.tree.map(element, args.src),
        Space.DST: jax.tree.map(element, args.dst),
        Space.EDGE: jax.tree.map(element, args.edges),
        Space.SHARED: (args.params, args.keywords),
    }
    state = getattr(owner, "_state", None)
    names = dict(getattr(state, "autoname_cursor", {}))
    _call(fn, args, groups, name, where)
    if getattr(state, "in_compact_method", False):  # the trace creates them again, by those names
        state.autoname_cursor = names  # type: ignore[union-attr]
        object.__setattr__(owner, "scope", owner.scope.rewound())


def refuse_batched_constants(captured: Any, graph: Any, what: str) -> None:
    """Error where an array of the whole graph was captured and mixed with one element's values."""
    program = captured.program
    n = len(captured.constants)
    counts = {graph.num_src: "vertices", graph.num_dst: "vertices", graph.num_edges: "edges"}
    suspects = {
        v
        for v in program.inputs[len(program.inputs) - n :]
        if len(v.shape) > 1 and v.shape[0] in counts and v.shape[0] > 1
    }
    made = {o: e for e in program.equations for o in e.outputs}
    for eqn in program.equations:
        found = suspects.intersection(eqn.inputs)
        others = [a for a in eqn.inputs if a.space is not Space.SHARED and _is_spread(a, made)]
        out = eqn.outputs[0]
        if not found or not others or eqn.op.name == "dot_general":
            continue
        array = found.pop()
        if out.shape[:1] == array.shape[:1]:
            at = eqn.location or what
            raise LayerError(
                f"{at}: an array of shape {list(array.shape)} that the layer captured is combined "
                f"with a value of one element, and {array.shape[0]} is the number of "
                f"{counts[array.shape[0]]}. Inside a layer everything is per element: pass the "
                "array in x (or edges) and read it through v, e.src or e.data"
            )


def _refuse_unread_edges(captured: Captured, what: str) -> None:
    """Error where a call brought edge features and the layer's results depend on none of them.

    A layer that reads some leaves of a pytree is no mistake: layers of a model may share one.
    """
    given = [v for v in captured.program.inputs if v.space is Space.EDGE]
    if not given or not captured.unread.issuperset(given):
        return
    shown: list[str] = []
    for v in given:
        name = v.name if len(v.name) <= 120 else v.name[:117] + "..."
        shown.append(f"{name}: {v.dtype.name}{list(v.shape)}")
        if sum(map(len, shown)) > 300:
            break
    more = f" and {len(given) - len(shown)} more" if len(given) > len(shown) else ""
    raise LayerError(
        f"{what} was given edges=, and its results depend on none of it (per edge: "
        f"{', '.join(shown)}{more}). "
        "Read it in the layer as e.data, as in gnnjit.sum(e.data * e.src); of a module of "
        "gnnjit.nn, ask for it where the module is made (edge_features=...) or take one that has "
        "edge features; or leave edges= out"
    )


def _is_spread(atom: Any, made: dict[Any, Any]) -> bool:
    """Whether a value is repeated along its first axis: a weight meets a value that has the axis,
    an array of the whole graph one that lacks it."""
    eqn = made.get(atom)
    if eqn is None or eqn.op.name != "broadcast_in_dim":
        return len(atom.shape) < 2 or atom.shape[0] == 1
    before = eqn.inputs[0].shape
    where = eqn.op["broadcast_dimensions"]
    return 0 not in where or before[where.index(0)] == 1


def _title(label: str, path: Any, names: list[str]) -> str:
    """How messages and printed programs call an input: `e.src['pos']`, `p['w']`."""
    if label:
        return label + jax.tree_util.keystr(path)
    _, which, *rest = path  # positional or keyword, then which of them
    if hasattr(which, "key"):
        name = which.key
    else:
        name = names[which.idx] if which.idx < len(names) else f"p{which.idx}"
    return name + jax.tree_util.keystr(tuple(rest))


def _parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of the parameters after `v` and `e`."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds][2:]


def _array(leaf: Any, what: str) -> Any:
    if _is_sparse(leaf):
        raise LayerError(
            f"{what} is a sparse array ({type(leaf).__name__}), expected a dense one: multiply by "
            "it outside the layer, on arrays of all vertices, or pass it dense (todense, toarray)"
        )
    if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic, list)):
        return jnp.asarray(leaf)
    if isinstance(leaf, jax.Ref):
        raise LayerError(f"{what}: {MUTABLE}")
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf
    raise LayerError(
        f"{what} is a {type(leaf).__name__}, not an array. Capture it by closure, or name it in "
        "@gnnjit.layer(static_argnames=...)"
    )


def _is_sparse(x: Any) -> bool:
    """JAX's sparse arrays are pytrees, of numbers that mean nothing one by one."""
    return hasattr(x, "todense")


_ABSENT = "{}: {} reads {}, but no {} were given: call it with {}"


def _no_destination(name: str, where: str) -> str:
    return _ABSENT.format(
        where, name, "v or e.dst", "destination features", "Bipartite(src=..., dst=...)"
    )


def _call(fn: Any, args: Arguments, groups: dict[Space, Any], name: str, where: str) -> Any:
    fields, missing = {}, {}
    if args.src is None:
        missing["src"] = _ABSENT.format(
            where, name, "e.src", "source features", "Bipartite(src=..., dst=...)"
        )
    else:
        fields["src"] = groups[Space.SRC]
    no_dst = _no_destination(name, where)
    if args.dst is None:
        missing["dst"] = no_dst
    else:
        fields["dst"] = groups[Space.DST]
    if args.edges is None:
        missing["data"] = _ABSENT.format(where, name, "e.data", "edge features", "edges=...")
    else:
        fields["data"] = groups[Space.EDGE]
    v = groups[Space.DST] if args.dst is not None else _Missing(no_dst)
    params, keywords = groups[Space.SHARED]
    with layer_scope():
        return fn(v, Edge(fields, missing), *params, **keywords)


def _output(leaf: Any, what: str) -> Any:
    if isinstance(leaf, _Missing):
        leaf._fail()
    if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic)):
        return jnp.asarray(leaf)
    if isinstance(leaf, jax.Array):
        return leaf
    raise LayerError(
        f"{what} returned a {type(leaf).__name__}; return arrays, or pytrees of arrays"
    )


def leak_message(name: str, where: str) -> str:
    return (
        f"{where}: {name} used a value that was kept from an earlier trace (a tracer that left the "
        "function in which it lived, through a global, an attribute or a list). A layer must not "
        "store e.src, v or anything computed from them; return it instead"
    )


def _shape_message(error: Exception, values: list[Value], name: str, where: str) -> str:
    given = ", ".join(f"{v.name}: {v.dtype.name}{list(v.shape)}" for v in values[:8])
    more = f" and {len(values) - 8} more" if len(values) > 8 else ""
    return (
        f"{where}: {name} cannot be traced for one element: {error}\n"
        f"  per element: {given}{more}. A feature vector is [F] here, never [N, F] or [E, F]"
    )
