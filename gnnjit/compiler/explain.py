"""`explain`: a layer's plans, the program before and after each pass, its buffers, its kernels."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import numpy as np

from gnnjit import _compat
from gnnjit.compiler.call import TracedCall, calls_of, is_layer
from gnnjit.compiler.explain_plans import Asked, explain_plans
from gnnjit.compiler.explain_traversals import (
    Kernel,
    backward_kernels,
    forward_kernels,
    products_of,
)
from gnnjit.compiler.plan_tables import PlanExplanation, Wrt
from gnnjit.errors import LayerError
from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.graph import Graph
from gnnjit.graph.validate import shown
from gnnjit.ir.changes import changes
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.passes.pipeline import layer_passes, run
from gnnjit.sharding.local_shard import shapes
from gnnjit.sharding.sharded_graph import ShardedGraph
from gnnjit.system.memory_budget import human


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One pass that changed the program.

    Attributes:
        name: of the pass.
        before, after: the program as text.
    """

    name: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array that the optimised program writes.

    Attributes:
        name: its name in the program, or the operation that writes it.
        space: what it has a row for: "src", "dst" or "edge" ("shared": the whole graph).
        shape: with the axis of the vertices or edges first.
        dtype: its name.
        bytes: its size.
    """

    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class LayerExplanation:
    """What the compiler did with one layer call. Print it, or leave it last in a notebook cell.

    Attributes:
        name: of the layer.
        where: its file and line.
        graph: what it was called on, in words.
        written: the program as it was traced.
        steps: the passes that changed it, in order.
        program: what runs.
        buffers: the arrays that this writes.
        kernels: the code of each traversal, forward and backward.
        products: the matrix products over all vertices that the gradient takes.
        plans: the alternatives that were weighed, for inference and for training.
        no_gradient: why training is not shown; None where it is.
    """

    name: str
    where: str
    graph: str
    written: str
    steps: tuple[Rewrite, ...]
    program: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    products: tuple[str, ...] = ()
    plans: tuple[PlanExplanation, ...] = ()
    no_gradient: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        found = {name: getattr(self, name) for name in ("name", "where", "graph", "written")}
        found["plans"] = [plan.to_dict() for plan in self.plans]
        found["program"] = self.program
        for name in ("steps", "buffers", "kernels"):
            found[name] = [dataclasses.asdict(x) for x in getattr(self, name)]
        return found | {"products": list(self.products)}

    def sections(self) -> list[tuple[str, str]]:
        """Title and text of each part, in order."""
        parts = [("as written", self.written)]
        parts += [(plan.title, str(plan)) for plan in self.plans]
        if self.no_gradient:
            parts.append(("training", f"not shown, the layer has no gradient: {self.no_gradient}"))
        parts += [(f"after {s.name}", changes(s.before, s.after)) for s in self.steps]
        parts.append(("the program that runs", self.program))
        parts.append(("buffers", _buffer_table(self.buffers)))
        parts.append(("kernels", "\n\n".join(map(str, (*self.kernels, *self.products)))))
        return parts

    def __str__(self) -> str:
        head = f"{self.name} ({self.where}) on {self.graph}"
        body = [f"--- {title}\n{text}" for title, text in self.sections()]
        return "\n\n".join([head, *body])

    def _repr_html_(self) -> str:
        out = [f"<h4>{html.escape(self.name)} <small>{html.escape(self.where)}</small></h4>"]
        last = len(self.sections()) - 3
        folded = range(1 + len(self.plans) + bool(self.no_gradient), last)  # the passes
        for i, (title, text) in enumerate(self.sections()):
            shown = "" if i in folded else " open"
            out.append(
                f"<details{shown}><summary>{html.escape(title)}</summary>"
                f"<pre>{html.escape(text)}</pre></details>"
            )
        return "\n".join(out)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The explanations of every layer that a call ran, in order; `explanation[0]` is the first.

    Attributes:
        layers: one for each call of a layer.
    """

    layers: tuple[LayerExplanation, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {"layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        return ("\n\n" + "=" * 80 + "\n\n").join(map(str, self.layers))

    def _repr_html_(self) -> str:
        return "<hr>".join(x._repr_html_() for x in self.layers)

    def __getitem__(self, i: int) -> LayerExplanation:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)


def explain(
    target: Callable[..., Any],
    *args: Any,
    backward: bool = True,
    wrt: Wrt | None = "all",
    measure: bool = False,
    learn: bool = False,
    **keywords: Any,
) -> LayerExplanation | Explanation:
    """Explain `target(*args, **keywords)`: a layer, or any function or module that calls layers.

    A layer is only traced. Anything else is called once, and each layer it runs is explained (a
    function that `jax.jit` has compiled before calls none). The passes and buffers shown are those
    of inference.

    Args:
        target: the layer, function or module.
        args, keywords: what it is called with.
        backward: explain training too: its plan, and the traversals of the gradient.
        wrt: what training takes gradients of: "all" floating-point inputs, or the "params" alone
            (arrays that the whole graph shares), as in a first layer; None as `backward=False`.
        measure: compile each alternative (of many, the 16 fastest as predicted) and time it, the
            layer alone, for seconds; the arguments must be arrays.
        learn: keep what was measured: for the cost model of this device, as `gnnjit calibrate`
            does, and as the times of this call, which decide where it is planned again, as those
            of `gnnjit.autotuning` do. This process goes on with the model that it has; the next
            one uses the new one.

    Returns:
        For a layer a `LayerExplanation`, for anything else an `Explanation`, which holds one for
        each layer. So it does for a layer on a `TypedGraph`, of one for each relation.

    Raises:
        LayerError: the call ran no layer, an option means nothing, or the call is to be measured
            while it is traced.
    """
    _check_options(wrt, backward=backward, measure=measure, learn=learn)
    options: dict[str, Any] = {"wrt": wrt if backward else None}
    options |= {"measure": measure, "learn": learn}
    found = [explain_call(c, **options) for c in calls_of("explain", target, args, keywords)]
    return found[0] if is_layer(target) and len(found) == 1 else Explanation(tuple(found))


def _check_options(wrt: Any, **flags: Any) -> None:
    """Raises LayerError on options that mean nothing."""
    if not (wrt is None or (isinstance(wrt, str) and wrt in get_args(Wrt))):
        raise LayerError(f'explain: wrt is {shown(wrt)}, expected "all" or "params"')
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise LayerError(f"explain: {name} is {shown(value)}, expected True or False")


def explain_call(
    call: TracedCall, *, wrt: Wrt | None = "all", measure: bool = False, learn: bool = False
) -> LayerExplanation:
    """`wrt`: what gradients are taken of; None for inference alone."""
    with jax.disable_jit(False):  # what is compiled is what is explained
        return _explain_call(call, wrt, measure, learn)


def _explain_call(
    call: TracedCall, wrt: Wrt | None, measure: bool, learn: bool
) -> LayerExplanation:
    whole, call = call.graph, call.chosen()
    no_gradient = _why_no_gradient(call, wrt) if wrt else None
    wrt = None if no_gradient else wrt
    inference, *training = plans = explain_plans(call, wrt=wrt, measure=measure, learn=learn)
    steps: list[Rewrite] = []

    names = call.input_names()

    def text(program: Program) -> str:
        return _text(program, names)

    def observe(step: Any, before: Program, after: Program) -> None:
        if before != after:
            steps.append(Rewrite(step.name, text(before), text(after)))

    passes = layer_passes(call.padded, inference.chosen.choices)
    program = run(call.program, passes, [observe])
    graph, named = call.graph, repr(whole)
    if graph is not whole:
        named += f": each two edges u -> v and v -> u as one, {graph.num_edges} in all"
    if isinstance(graph, ShardedGraph):
        named = f"{named}\n{graph.report}"
        graph = shapes(graph)
    kernels, products = forward_kernels(program, graph), []
    for plan in training:
        gradient = _gradient(Asked.of(call, plan.wrt))
        kernels += backward_kernels(plan.program, gradient, graph)
        products = products_of(gradient)
    return LayerExplanation(
        call.definition.name,
        call.definition.where,
        named,
        text(call.program),
        tuple(steps),
        text(program),
        tuple(_buffers(program, graph)),
        tuple(kernels),
        tuple(products),
        plans,
        no_gradient,
    )


def _why_no_gradient(call: TracedCall, wrt: Wrt) -> str | None:
    asked = Asked.of(call, wrt)
    wanted = asked.differentiated or ()
    differentiated = [i for i, slot in enumerate(asked.call.slots) if wanted[slot]]
    return call.why_no_gradient(differentiated) if differentiated else None


def _text(program: Program, names: Mapping[int, str]) -> str:
    """The printed program, with `jax.nn.relu` and its like as what they compute."""
    return show(inline_custom_calls(program), objects=[], names=names)


def _buffers(program: Program, graph: Graph) -> list[Buffer]:
    out = []
    for eqn in program.equations:
        for value in eqn.outputs:
            shape = tuple(value.shape)
            if value.space is not Space.SHARED:
                shape = (size(graph, value.space), *shape)
            count = 1
            for n in shape:
                count *= n
            width = getattr(value.dtype, "itemsize", 4)
            name = value.name or eqn.op.name
            out.append(Buffer(name, value.space.value, shape, str(value.dtype), count * width))
    return out


def _buffer_table(buffers: Sequence[Buffer]) -> str:
    rows = [
        f"{b.space:7}{b.dtype}{list(b.shape)!s:24}{human(b.bytes):>12}  {b.name}"
        for b in buffers
        if b.bytes >= 1024
    ]
    total = sum(b.bytes for b in buffers)
    return "\n".join([*rows, f"all together, before XLA fuses and reuses them: {human(total)}"])


def _gradient(training: Asked) -> Any:
    """The jaxpr of the call and its gradients."""
    function, arguments = training.function()
    return _compat.open_jaxpr(jax.make_jaxpr(function)(*arguments))[0]
