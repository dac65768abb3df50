"""GPU kernels in tests: compiled where a GPU is JAX's default backend, else interpreted; and the
programs that a GPU would be given, lowered on any machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import gnnjit
from gnnjit._compat import open_jaxpr, subjaxprs
from gnnjit.compiler import primitive
from gnnjit.compiler.primitive import layer_p
from gnnjit.graph.row_tasks import build_tasks
from gnnjit.ir.program import Aggregate
from gnnjit.lower import choose
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.pallas import kernel
from gnnjit.lower.xla import staged

INTERPRET = jax.default_backend() != "gpu"

numeric = pytest.mark.gpu
"""For tests of values: `pytest -m gpu` is the selection to run on a machine with a GPU."""


@contextlib.contextmanager
def on_kernels() -> Iterator[None]:
    """Traversals run on the GPU kernels where they can: compiled on a GPU, else interpreted."""
    with choose.prefer("staged"):
        yield


def with_tasks(graph: gnnjit.Graph, short: int = 16, piece: int = 64) -> gnnjit.Graph:
    """`graph` with the tasks that it has on a GPU, small enough to have hubs."""

    def add(structure: Any) -> Any:
        tasks = build_tasks(np.asarray(structure.indptr), short, piece)
        return dataclasses.replace(structure, tasks=tasks)

    return dataclasses.replace(
        graph, in_structure=add(graph.in_structure), out_structure=add(graph.out_structure)
    )


# ------------------------------------------------------------------------- lowering without a GPU


def abstract_gpu() -> Any:
    """JAX from 0.11 on asks which GPU is lowered for; before, there is nothing to tell it."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def trace_for_cuda(f: Any, *args: Any) -> Any:
    """args: arrays or `jax.ShapeDtypeStruct`s."""
    with abstract_gpu():
        return jax.jit(f).trace(*args)


def lower_for_cuda(traced: Any) -> Any:
    """What `trace_for_cuda` gave, lowered."""
    with abstract_gpu(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        return traced.lower(lowering_platforms=("cuda",))


def choices_of(traced: Any) -> list[choose.Choice]:
    """What is chosen on a GPU for every traversal of a `jax.jit(f).trace(...)`."""
    found: list[choose.Choice] = []
    for eqn in _aggregates(traced.jaxpr):
        treedef, leaves = eqn.params["graph_def"]
        graph = jax.tree.unflatten(treedef, [v.aval for v in eqn.invars[:leaves]])
        body, reductions, limit = (eqn.params[k] for k in ("body", "reductions", "limit"))
        program = choose.traversals(body, reductions, graph, "cuda", limit)
        ops = [e.op for e in program.equations if isinstance(e.op, Aggregate)]
        found += [choose.choose(op, graph, "cuda", limit) for op in ops]
    return found


def _aggregates(jaxpr: Any) -> Iterator[Any]:
    """Those of a layer's call too, as its lowering for a GPU plans it."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive is aggregate_p:
            yield eqn
        if eqn.primitive is layer_p:
            planned = functools.partial(primitive._lower, platform="cuda", **eqn.params)
            yield from _aggregates(jax.make_jaxpr(planned)(*(v.aval for v in eqn.invars)))
        for inner in subjaxprs(eqn):
            yield from _aggregates(inner)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One Triton kernel of a lowered program."""

    name: str
    code: bytes
    warps: int
    stages: int
    programs: int

    def text(self) -> str:
        """The Triton IR."""
        from jaxlib.mlir import ir
        from jaxlib.triton import dialect

        with ir.Context() as context:
            dialect.register_dialect(context)
            module = ir.Module.parse(self.code)
            return str(module.operation.get_asm(enable_debug_info=False))


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


def custom_calls(lowered: Any) -> list[str]:
    """The targets of all custom calls, those of a function as often as it is called."""
    from jaxlib.mlir import ir

    module = lowered.compiler_ir("stablehlo")
    with module.context:
        bodies = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in module.body.operations}

        def walk(name: str) -> list[str]:
            found = []
            for op in _operations(bodies[name].operation):
                if op.name == "stablehlo.custom_call":
                    found.append(ir.StringAttr(op.attributes["call_target_name"]).value)
                elif op.name == "func.call":
                    found += walk(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            return found

        return walk("main")


def kernels(lowered: Any) -> list[Kernel]:
    """The Triton kernels of a lowered program, in order."""
    from jaxlib.mlir import ir

    found = []
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        for op in _operations(module.operation):
            if op.name != "stablehlo.custom_call":
                continue
            if "triton" not in ir.StringAttr(op.attributes["call_target_name"]).value:
                continue
            config = {named.name: named.attr for named in op.attributes["mhlo.backend_config"]}
            number = {k: ir.IntegerAttr(config[k]).value for k in config if k[:4] in _NUMBERS}
            found.append(
                Kernel(
                    ir.StringAttr(config["name"]).value,
                    ir.StringAttr(config["ir"]).value_bytes,
                    number["num_warps"],
                    number["num_stages"],
                    number["grid_x"],
                )
            )
    return found


_NUMBERS = ("num_", "grid")


def array_sizes(lowered: Any) -> dict[str, int]:
    """The elements of every array type outside the kernels, whose code stands in strings."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', lowered.as_text())
    types = set(re.findall(r"tensor<((?:\d+x)+)\w+>", text))
    return {t: math.prod(map(int, t.rstrip("x").split("x"))) for t in types}


def launches(choice: choose.Choice, graph: gnnjit.Graph) -> int:
    """Kernels that a traversal on the GPU takes: one for each list of tasks with anything in it,
    or one where there are none; one for what the whole graph shares."""
    request: Any = choice.request
    if choice.kernel == "staged":
        found = staged.stages(request.body, request.reductions, request.rows)
        request = found.request_of_rows(request)
        if request is None:
            return 0
    plan = graph.structure(request.rows).tasks
    lists = 1 if plan is None else sum(len(t.row) > 0 for t in (plan.long, plan.short, plan.hubs))
    parts = kernel.parts(request.body, request.reductions, request.rows)
    return sum(lists if part.by_row else 1 for part in parts)
