"""From a layer function and its arguments to a program and its operands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend import arguments, mistakes, suspicions
from gnnjit.frontend.capture import MUTABLE, Captured, capture
from gnnjit.frontend.state import library_message
from gnnjit.frontend.vocabulary import layer_scope
from gnnjit.ir.program import AtVertex, Program, Value
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class Edge:
    """One incoming edge as a layer function sees it: `src`, `dst`, `data` and `globals` (of its
    graph), each a pytree of per-element arrays; `relation` and `relation_degree`, integers,
    and `num_relations`, which is known. Reading what the call did not bring is an error."""

    _fields: dict[str, Any]
    _missing: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._fields:
            return self._fields[name]
        if name in self._missing:
            raise LayerError(self._missing[name])
        if name in _OF_ARRAYS:
            return self._fail()
        if name in ("relations", "map", "dst_type"):
            raise LayerError(
                f"the layer reads e.{name}, which edges of a gnnjit.TypedGraph have, but it was "
                "called on a graph of one type: call it on a TypedGraph with dictionaries of "
                "features, or write e.src and e.data"
            )
        raise LayerError(
            f"an edge has src, dst, data, globals, relation and relation_degree; it has no {name!r}"
        )

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise LayerError(_AS_ARRAY)

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __neg__ = __iter__ = _fail
    __pow__ = __rpow__ = __abs__ = __len__ = __bool__ = __jax_array__ = _fail
    __lt__ = __le__ = __gt__ = __ge__ = __array__ = _fail


_AS_ARRAY = (
    "an edge was used as an array; its arrays are e.src and e.dst (features of its ends) and "
    "e.data (its own). Write e.src for the neighbour's features"
)
_OF_ARRAYS = frozenset("T aval dtype shape ndim size sum mean max min astype reshape at".split())


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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "relation", "relation_degree"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class OfEdge:
    """What edges have of their own: by the call, and by the graph (`Relations`)."""

    data: Any
    relation: Any
    relation_degree: Any


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What one call of a layer brings. Leaves of `src`, `dst`, `edges` have a leading axis of
    their space's size, and those of `globals` one for each graph; `params` leaves are shared. A
    missing part is None. `relations` are the graph's."""

    src: Any
    dst: Any
    edges: Any
    params: tuple[Any, ...]
    keywords: dict[str, Any]
    globals: Any = None
    relations: Any = None

    @property
    def of_edge(self) -> OfEdge:
        """What edges have of their own."""
        found = self.relations
        relation, degree = (None, None) if found is None else (found.number, found.degree)
        return OfEdge(self.edges, relation, degree)


@dataclasses.dataclass(frozen=True)
class TracedLayer:
    """A layer as a program, with the arrays of its inputs and the tree of its outputs."""

    program: Program
    operands: tuple[Any, ...]
    out_tree: Any


def trace(
    fn: Callable[..., Any],
    args: Arguments,
    graph: Any,
    *,
    name: str,
    where: str,
    effects: bool = False,
) -> TracedLayer:
    """Trace `fn(v, e, *params, **keywords)` once, per element.

    effects: whether what has an effect and no result is left out, instead of an error.
    """
    parts = {
        Space.SRC: ("e.src", args.src),
        Space.DST: ("v", args.dst),
        Space.EDGE: ("e", args.of_edge),
        Space.GRAPH: ("e.globals", args.globals),
        Space.SHARED: ("", (args.params, args.keywords)),
    }
    mistakes.check_call(fn, args.params, list(args.keywords), name, where)
    names = parameter_names(fn)
    values, operands, trees = [], [], {}
    arrays: dict[int, Any] = {}  # a leaf given twice (e.src and v) stays one array
    for space, (label, tree) in parts.items():
        leaves, treedef = jax.tree.flatten_with_path(tree, is_leaf=_is_sparse)
        trees[space] = (treedef, len(leaves))
        for path, leaf in leaves:
            title = leaf_title(label, path, names)
            array = arrays.setdefault(
                id(leaf), as_array(leaf, f"{where}: {name}: argument {title}")
            )
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
        if not leaves:
            raise LayerError(nothing_returned(out, name, where))
        out_trees.append(treedef)
        return [returned(leaf, f"{where}: {name}") for leaf in leaves]

    try:
        captured = capture(flat, values, name=name, edge_values=True, effects=effects)
    except Exception as error:
        if (said := in_words(error, args, values, name, where)) is None:
            raise
        raise said from error
    refuse_batched_constants(captured, graph, f"{where}: {name}")
    for space in (Space.EDGE, Space.GRAPH):
        _refuse_unread(captured, space, f"{where}: {name}")
    _refuse_two_vertex_sets(captured.program, graph, f"{where}: {name}")
    if not getattr(fn, "args", ()):  # a module's parameters are captured too
        suspicions.look_through(captured.program, captured.own, graph)
    return TracedLayer(captured.program, (*operands, *captured.constants), out_trees[-1])


def in_words(
    error: Exception, args: Arguments, values: list[Value], name: str, where: str
) -> LayerError | None:
    """The error to raise instead, or None where it says itself what is wrong, and where."""
    if isinstance(error, LayerError):
        if _PLACE.match(str(error)):
            return None
        return LayerError(f"{_compat.raised_at(error) or where}: {error}")
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return LayerError(leak_message(name, where))
    if args.dst is None and ("_Missing" in str(error) or "__jax_array__" in str(error)):
        return LayerError(_no_destination(name, where))
    if isinstance(error, (TypeError, ValueError)) and "__jax_array__" in str(error):
        return LayerError(f"{_compat.raised_at(error) or where}: {_AS_ARRAY}")
    if (said := library_message(error)) is not None:
        return LayerError(f"{_compat.raised_at(error) or where}: {name} {said}")
    return mistakes.in_words(error, values, name, where)


_PLACE = re.compile(r"\S+:\d+: ")


def call_element(
    fn: Callable[..., Any], args: Arguments, src: Any, dst: Any, data: Any, name: str, where: str
) -> list[Any]:
    """The leaves of what `fn` returns for one vertex and one incoming edge."""
    shared = jax.tree.map(jnp.asarray, (args.params, args.keywords))
    groups = {
        Space.SRC: src, Space.DST: dst, Space.EDGE: data, Space.GRAPH: None, Space.SHARED: shared,
    }  # fmt: skip
    out = _call(fn, args, groups, name, where)
    return [returned(leaf, f"{where}: {name}") for leaf in jax.tree.leaves(out)]


@contextlib.contextmanager
def fresh_names(owner: Any) -> Iterator[None]:
    """Within it, a linen module names its submodules from the start, as in a call of its own."""
    state = getattr(owner, "_state", None)
    names, scope = getattr(state, "autoname_cursor", None), getattr(owner, "scope", None)
    if state is None or names is None or scope is None:
        yield
        return
    compact = state.in_compact_method
    state.autoname_cursor = {}
    object.__setattr__(owner, "scope", scope.rewound())
    try:
        yield
    finally:
        state.autoname_cursor, state.in_compact_method = names, compact
        object.__setattr__(owner, "scope", scope)


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
        Space.EDGE: jax.tree.map(element, args.of_edge),
        Space.GRAPH: jax.tree.map(element, args.globals),
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
    counts = {graph.num_src: "vertices", graph.num_dst: "vertices", graph.num_edges: "edges"}
    suspects = {
        v for v in captured.own if len(v.shape) > 1 and v.shape[0] in counts and v.shape[0] > 1
    }
    made = {o: e for e in program.equations for o in e.outputs}
    for eqn in program.equations:
        found = suspects.intersection(eqn.inputs)
        others = [a for a in eqn.inputs if a.space is not Space.SHARED and _is_spread(a, made)]
        out = eqn.outputs[0]
        if not found or not others or eqn.op.name in ("dot_general", "fold"):
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


def _refuse_unread(captured: Captured, space: Space, what: str) -> None:
    """Error where a call brought features of edges, or of graphs, and the layer's results depend on
    none of them.

    A layer that reads some leaves of a pytree is no mistake: layers of a model may share one.
    """
    of_graph = ("e.relation", "e.relation_degree")
    inputs = captured.program.inputs
    given = [v for v in inputs if v.space is space and v.name not in of_graph]
    if not given or not captured.unread.issuperset(given):
        return
    shown: list[str] = []
    for v in given:
        name = v.name if len(v.name) <= 120 else v.name[:117] + "..."
        shown.append(f"{name}: {v.dtype.name}{list(v.shape)}")
        if sum(map(len, shown)) > 300:
            break
    more = f" and {len(given) - len(shown)} more" if len(given) > len(shown) else ""
    if space is Space.GRAPH:
        raise LayerError(
            f"{what} was given globals=, and its results depend on none of it (per graph: "
            f"{', '.join(shown)}{more}). Read it in the layer as e.globals, as in v + e.globals; "
            "or leave globals= out"
        )
    raise LayerError(
        f"{what} was given edges=, and its results depend on none of it (per edge: "
        f"{', '.join(shown)}{more}). "
        "Read it in the layer as e.data, as in gnnjit.sum(e.data * e.src); of a module of "
        "gnnjit.nn, ask for it where the module is made (edge_features=...) or take one that has "
        "edge features; or leave edges= out"
    )


def _refuse_two_vertex_sets(program: Program, graph: Any, what: str) -> None:
    """Error where sources are to be destinations, and are others."""
    found = next((e for e in program.equations if isinstance(e.op, AtVertex)), None)
    if found is not None and graph.bipartite:
        kinds = "a block of a sampled batch" if graph.nested else "two vertex sets"
        raise LayerError(
            f'{found.location or what}: over="out" gives a value of this vertex over the edges '
            f"that leave it, but the graph has {kinds} ({graph.num_src} sources, {graph.num_dst} "
            "destinations), and no edge leaves a destination. Reduce into the sources by a layer "
            'on graph.reverse(), or use a graph of one vertex set. gnnjit.softmax(..., over="out") '
            "is an edge value and works on both"
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


def leaf_title(label: str, path: Any, names: list[str]) -> str:
    """How messages and printed programs call an input: `e.src['pos']`, `p['w']`."""
    if label:
        return label + jax.tree_util.keystr(path)
    _, which, *rest = path  # positional or keyword, then which of them
    if hasattr(which, "key"):
        name = which.key
    else:
        name = names[which.idx] if which.idx < len(names) else f"p{which.idx}"
    return name + jax.tree_util.keystr(tuple(rest))


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of the parameters after `v` and `e`."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds][2:]


def as_array(leaf: Any, what: str) -> Any:
    if _is_sparse(leaf):
        raise LayerError(
            f"{what} is a sparse array ({type(leaf).__name__}), expected a dense one: multiply by "
            "it outside the layer, on arrays of all vertices, or pass it dense (todense, toarray)"
        )
    if isinstance(leaf, jax.Ref):
        raise LayerError(f"{what}: {MUTABLE}")
    if isinstance(leaf, (np.ndarray, np.generic)):
        return jnp.asarray(arguments.numbers(leaf, what))
    if isinstance(leaf, (bool, int, float, complex)):
        return jnp.asarray(leaf)
    if arguments.is_array(leaf):
        if all(isinstance(n, (int, np.integer)) for n in leaf.shape):
            return leaf
        raise LayerError(
            f"{what} has the symbolic shape {leaf.shape}, but a layer is planned for sizes that "
            "are known: export one program for each size, or for the largest one and pad to it"
        )
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
        fields["data"] = groups[Space.EDGE].data
    for word in ("relation", "relation_degree", "num_relations"):
        if args.relations is None:
            missing[word] = (
                f"{where}: {name} reads e.{word}, but the edges of the graph have no relations: "
                "make it by gnnjit.Graph.from_edges(..., relation=, num_relations=); where edges "
                "are streamed or sampled, pass relations in edges= and read e.data"
            )
        elif word == "num_relations":
            fields[word] = args.relations.count
        else:
            fields[word] = getattr(groups[Space.EDGE], word)
    if args.globals is None:
        missing["globals"] = _ABSENT.format(
            where, name, "e.globals", "features of graphs", "globals=..., [num_graphs, ...]"
        )
    else:
        fields["globals"] = groups[Space.GRAPH]
    v = groups[Space.DST] if args.dst is not None else _Missing(no_dst)
    params, keywords = groups[Space.SHARED]
    with layer_scope():
        return fn(v, Edge(fields, missing), *params, **keywords)


def nothing_returned(out: Any, name: str, where: str) -> str:
    what = "None" if out is None else f"{type(out).__name__} without arrays"
    return (
        f"{where}: {name} returned {what}, expected arrays: does it end with `return`? Reductions "
        "give their results back, they store nothing"
    )


def returned(leaf: Any, what: str) -> Any:
    if isinstance(leaf, (_Missing, Edge)):
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
