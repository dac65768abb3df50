"""`@gnnjit.layer`: where tracing, passes and lowering are chained."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit.errors import LayerError
from gnnjit.frontend.trace import Arguments, Traced, trace
from gnnjit.graph import Bipartite, Graph
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Program


def layer(fn: Callable[..., Any] | None = None, *, static_argnames: Sequence[str] | str = ()) -> Any:
    """Compile `fn(v, e, *params)`, which says what one vertex does with its incoming edges.

    The result is called as `layer(graph, x, *params, edges=None)`; on a method, `self` counts as
    captured.
    """
    if fn is None:
        return functools.partial(layer, static_argnames=static_argnames)
    statics = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    where = _where(fn)

    @functools.wraps(fn)
    def call(*args: Any, edges: Any = None, **keywords: Any) -> Any:
        graph, traced = stage(fn, statics, where, args, edges, keywords)
        outs = execute(traced.program, graph, traced.operands)
        return jax.tree.unflatten(traced.out_tree, outs)

    call.__gnnjit_layer__ = (fn, statics, where)
    return call


def _where(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code else "?"


def stage(
    fn: Any, statics: Sequence[str], where: str, args: Any, edges: Any, keywords: Any
) -> tuple[Graph, Traced]:
    bound, graph, x, params = _split(fn, args)
    src, dst = (x.src, x.dst) if isinstance(x, Bipartite) else (x, x)
    fixed = {k: keywords[k] for k in statics if k in keywords}
    shared = {k: v for k, v in keywords.items() if k not in fixed}
    fn = functools.partial(bound, **fixed)
    arguments = Arguments(src, dst, edges, tuple(params), shared)
    return graph, trace(fn, arguments, name=getattr(bound, "__name__", "layer"), where=where)


def _split(fn: Any, args: tuple[Any, ...]) -> tuple[Any, Graph, Any, tuple[Any, ...]]:
    if args and isinstance(args[0], Graph):
        graph, *rest = args
    elif len(args) > 1 and isinstance(args[1], Graph):
        owner, graph, *rest = args
        fn = functools.wraps(fn)(functools.partial(fn, owner))
    else:
        raise LayerError("a layer is called as layer(graph, x, *params)")
    return fn, graph, rest[0], tuple(rest[1:])


def execute(program: Program, graph: Graph, operands: Sequence[Any]) -> list[Any]:
    inc = Incidence(graph.src, graph.dst, graph.num_src, graph.num_dst, graph.mask)
    return interpret(program, inc, operands)
