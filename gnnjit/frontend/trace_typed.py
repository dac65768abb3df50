"""From a layer function and the features of a `TypedGraph` to a program for one vertex type."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend import mistakes
from gnnjit.frontend.trace_layer import (
    Arguments,
    _Missing,
    as_array,
    in_words,
    leaf_title,
    nothing_returned,
    parameter_names,
    returned,
)
from gnnjit.frontend.typed_capture import TypedProgram, capture_typed
from gnnjit.frontend.typed_words import Ends, typed_edge
from gnnjit.frontend.vocabulary import by_relation, layer_scope
from gnnjit.graph.schema import Relation
from gnnjit.ir.program import Value
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class TypedArguments:
    """What one call of a layer brings.

    x: for each vertex type a pytree of `[vertices, ...]`, or None.
    edges: for some relations a pytree of `[edges, ...]`.
    params, keywords: shared by the whole graph.
    """

    x: Mapping[str, Any]
    edges: Mapping[Relation, Any]
    params: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TracedType:
    """A layer as a program for one vertex type, with the arrays of its inputs, and the tree of its
    outputs.

    relations: the key of each relation that a space is named after.
    stand_in: whether that is the relation without edges that `e.map` reads where none ends at the
        type.
    """

    typed: TypedProgram
    operands: tuple[Any, ...]
    out_tree: Any
    relations: Mapping[str, Relation]
    stand_in: bool


def trace_type(
    fn: Callable[..., Any],
    args: TypedArguments,
    dst_type: str,
    relations: Sequence[Relation],
    other: Relation | None,
    *,
    name: str,
    where: str,
) -> TracedType:
    """Trace `fn(v, e, *params, **keywords)` once, for one vertex of type `dst_type`.

    relations: those that end there. other: any relation of the graph, whose source features stand
        in for those of a relation without edges where none ends at the type.
    """
    mistakes.check_call(fn, args.params, list(args.keywords), name, where)
    own = () if relations or other is None else ((other[0], other[1], dst_type),)
    if own and other is not None:
        of_other = jax.tree.map(lambda x: x[:0], args.edges.get(other))
        args = dataclasses.replace(args, edges={**args.edges, own[0]: of_other})
    layer = _Layer(fn, args, dst_type, tuple(relations), own, other, name, where)
    inputs = layer.inputs()
    try:
        typed = capture_typed(layer.flat(inputs), inputs.values, layer.spaces, dst_type, name)
    except Exception as error:
        if (said := layer.in_words(error, inputs.values)) is None:
            raise
        raise said from error
    operands = (*inputs.operands, *typed.constants)
    return TracedType(typed, operands, layer.out_tree, layer.spaces(), layer.used_stand_in)


@dataclasses.dataclass
class _Layer:
    """A layer function, and what it is called with for one vertex type.

    stand_in: the relation without edges, if there is one; the function sees the name of `other`.
    """

    fn: Callable[..., Any]
    args: TypedArguments
    dst_type: str
    relations: tuple[Relation, ...]
    stand_in: tuple[Relation, ...]
    other: Relation | None
    name: str
    where: str
    used_stand_in: bool = False
    out_tree: Any = None

    def inputs(self) -> _Inputs:
        keys, named = (*self.relations, *self.stand_in), self.names()
        inputs, x = _Inputs(self.fn, f"{self.where}: {self.name}"), self.args.x
        for key in keys:
            inputs.add(("src", key), Space("src", named[key]), f"{key[1]}: r.src", x[key[0]])
        inputs.add("dst", Space.DST, "v", x[self.dst_type])
        for key in keys:
            data = self.args.edges.get(key)
            inputs.add(("data", key), Space("edge", named[key]), f"{key[1]}: r.data", data)
        inputs.add("shared", Space.SHARED, "", (self.args.params, self.args.keywords))
        return inputs

    def names(self) -> dict[Relation, str]:
        """How the program calls relations, in its spaces: a number, and what an identifier may have
        of their names."""
        keys = (*self.relations, *self.stand_in)
        return {key: f"r{i}_" + re.sub(r"\W", "_", key[1]) for i, key in enumerate(keys)}

    def spaces(self) -> dict[str, Relation]:
        """The relations of the program, once it is traced."""
        keys = (*self.relations, *self.stand_in) if self.used_stand_in else self.relations
        return {name: key for key, name in self.names().items() if key in keys}

    def flat(self, inputs: _Inputs) -> Callable[..., list[Any]]:
        """The function of arrays alone."""
        where = f"{self.where}: {self.name}"

        def flat(*xs: Any) -> list[Any]:
            out = self.call(inputs.trees(xs))
            leaves, self.out_tree = jax.tree.flatten(out)
            if not leaves:
                raise LayerError(nothing_returned(out, self.name, self.where))
            return [returned(leaf, where) for leaf in leaves]

        return flat

    def call(self, groups: dict[Any, Any]) -> Any:
        v = groups["dst"]
        ends = {
            key: Ends(key, groups["src", key], v, groups["data", key])
            for key in (*self.relations, *self.stand_in)
        }

        def without_edges() -> Ends:
            if not self.stand_in:
                raise LayerError(f"{self.where}: e.map in a graph that has no relation")
            self.used_stand_in = True
            return dataclasses.replace(ends[self.stand_in[0]], key=self.other)

        own = [ends[key] for key in self.relations]
        e = typed_edge(self.dst_type, v, own, without_edges, self.where)
        if v is None:
            v = _Missing(f"{self.where}: {self.name} reads v, but x[{self.dst_type!r}] is None")
        params, keywords = groups["shared"]
        with layer_scope(), by_relation(True):
            return self.fn(v, e, *params, **keywords)

    def in_words(self, error: Exception, values: list[Value]) -> Exception | None:
        """The error to raise instead, in the terms of the layer's user."""
        if isinstance(error, KeyError) and (at := _compat.raised_at(error)):
            return LayerError(
                f"{at}: {self.name} found no {error.args[0]!r} in a dictionary, for vertices of "
                f"type {self.dst_type!r}: parameters of relations and types are read by their "
                "names, as in w[r.name]; give one for each"
            )
        args = self.args
        plain = Arguments(None, args.x[self.dst_type], None, args.params, args.keywords)
        return in_words(error, plain, values, self.name, self.where)


class _Inputs:
    """The inputs of a trace, group by group."""

    def __init__(self, fn: Callable[..., Any], what: str):
        self.what = what
        self.names = parameter_names(fn)
        self.values: list[Value] = []
        self.operands: list[Any] = []
        self.groups: list[tuple[Any, Any, int]] = []
        self.arrays: dict[int, Any] = {}

    def add(self, group: Any, space: Space, label: str, tree: Any) -> None:
        leaves, treedef = jax.tree.flatten_with_path(tree, is_leaf=_is_sparse)
        self.groups.append((group, treedef, len(leaves)))
        for path, leaf in leaves:
            title = leaf_title(label, path, self.names)
            array = self.arrays.get(id(leaf))
            if array is None:
                array = as_array(leaf, f"{self.what}: argument {title}")
                self.arrays[id(leaf)] = array
            shape = array.shape if space is Space.SHARED else array.shape[1:]
            weak = bool(getattr(array, "weak_type", False))
            self.values.append(Value(tuple(shape), array.dtype, space, title, weak))
            self.operands.append(array)

    def trees(self, xs: Sequence[Any]) -> dict[Any, Any]:
        rest, found = list(xs), {}
        for group, treedef, n in self.groups:
            found[group], rest = jax.tree.unflatten(treedef, rest[:n]), rest[n:]
        return found


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "todense")
