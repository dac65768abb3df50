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
from gnnjit.ir.program import Aggregate, Equation, Program
from gnnjit.ir.space import Space
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.choose import default_passes, run_passes
from gnnjit.lower.execute import execute, spread


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
        given = tuple(o.space for o in traced.program.outputs)
        outs = _run(optimise(traced.program), given, graph, traced.operands)
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


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(program: Program, given: tuple[Space, ...], graph: Graph, operands: Any) -> list[Any]:
    """The optimised program; `given` are the spaces in which the user returned the outputs."""

    def bind(graph: Graph, eqn: Equation, args: list[Any]) -> list[Any]:
        assert isinstance(eqn.op, Aggregate)
        return aggregate(graph, eqn.op.body, eqn.op.reductions, args)

    outs = execute(program, graph, operands, bind)
    return [
        spread(graph, x, o.space) if s in (Space.EDGE, Space.SRC) else x
        for x, o, s in zip(outs, program.outputs, given, strict=True)
    ]


@functools.lru_cache(maxsize=4096)
def optimise(program: Program) -> Program:
    return run_passes(program, default_passes())
