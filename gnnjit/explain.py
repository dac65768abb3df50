"""`explain`: a layer before and after each pass, its buffers, and the kernels chosen."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Program
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.aggregate import aggregate_p
from gnnjit.lower.choose import Choice, choose, traversals
from gnnjit.lower.execute import size
from gnnjit.lower.vertex_matmul import tall_p
from gnnjit.passes.pipeline import layer_passes, run
from gnnjit.stage import Staged, recording, stage


@dataclasses.dataclass(frozen=True)
class Step:
    """One pass that changed the program."""

    name: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array that the optimised program writes."""

    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The code chosen for one traversal."""

    direction: str
    traversal: str
    kernel: str
    rows: str
    refused: tuple[tuple[str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        lines = [f"{self.direction}: {self.kernel}, one row per {self.rows}"]
        for other, reasons in self.refused:
            lines.append(f"  not {other}: {'; '.join(reasons)}")
        return "\n".join([*lines, *("  " + line for line in self.traversal.splitlines())])


@dataclasses.dataclass(frozen=True)
class LayerExplanation:
    """What the compiler did with one layer call. Print it, or leave it last in a notebook cell."""

    name: str
    where: str
    graph: str
    written: str
    steps: tuple[Step, ...]
    program: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    products: tuple[str, ...] = ()

    def sections(self) -> list[tuple[str, str]]:
        """Title and text of each part, in order."""
        parts = [("as written", self.written)]
        parts += [(f"after {s.name}", s.after) for s in self.steps]
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
        for i, (title, text) in enumerate(self.sections()):
            shown = " open" if i in (0, last) or title in ("buffers", "kernels") else ""
            out.append(
                f"<details{shown}><summary>{html.escape(title)}</summary>"
                f"<pre>{html.escape(text)}</pre></details>"
            )
        return "\n".join(out)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The explanations of every layer that a call ran, in order."""

    layers: tuple[LayerExplanation, ...]

    def __str__(self) -> str:
        return ("\n\n" + "=" * 80 + "\n\n").join(map(str, self.layers))

    def _repr_html_(self) -> str:
        return "<hr>".join(x._repr_html_() for x in self.layers)

    def __getitem__(self, i: int) -> LayerExplanation:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)


def explain(
    target: Callable[..., Any], *args: Any, backward: bool = True, **keywords: Any
) -> LayerExplanation | Explanation:
    """Explain `target(*args, **keywords)`: a layer, or any function or module that calls layers.

    A layer is only traced. Anything else is called once, and each layer it runs is explained (a
    function that `jax.jit` has compiled before calls none). With `backward`, the traversals of
    the gradient are listed too.

    Raises:
        LayerError: the call ran no layer.
    """
    definition = getattr(target, "__gnnjit_layer__", None)
    if definition is not None:
        owner = getattr(target, "__self__", None)
        args = args if owner is None else (owner, *args)
        edges = keywords.pop("edges", None)
        return explain_call(stage(definition, args, edges, keywords), backward=backward)
    with recording() as calls:
        target(*args, **keywords)
    if not calls:
        raise LayerError("explain: the call ran no layer (was it compiled by jax.jit before?)")
    return Explanation(tuple(explain_call(c, backward=backward) for c in calls))


def explain_call(call: Staged, *, backward: bool = True) -> LayerExplanation:
    steps: list[Step] = []

    def observe(step: Any, before: Program, after: Program) -> None:
        if before != after:
            steps.append(Step(step.name, _text(before), _text(after)))

    program = run(call.program, layer_passes(call.padded), [observe])
    kernels, products = _kernels("forward", program, call.graph), []
    if backward:
        gradient = _gradient(call)
        kernels += _backward_kernels(call, program, gradient)
        products = [_product(e) for e in _equations(gradient) if e.primitive is tall_p]
    return LayerExplanation(
        call.definition.name,
        call.definition.where,
        repr(call.graph),
        _text(call.program),
        tuple(steps),
        _text(program),
        tuple(_buffers(program, call.graph)),
        tuple(kernels),
        tuple(dict.fromkeys(products)),
    )


def _text(program: Program) -> str:
    """The printed program, with `jax.nn.relu` and its like as what they compute."""
    return show(inline_custom_calls(program), objects=[])


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


def human(count: int) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _kernels(direction: str, program: Program, graph: Graph) -> list[Kernel]:
    found = []
    for eqn in program.equations:
        if isinstance(eqn.op, Aggregate):
            found += _chosen(direction, eqn.op, graph)
    return found


def _chosen(direction: str, op: Aggregate, graph: Graph) -> list[Kernel]:
    """The traversals that one aggregate becomes when it is lowered."""
    found = []
    platform = jax.default_backend()
    for eqn in traversals(op.body, op.reductions, graph, platform).equations:
        if isinstance(eqn.op, Aggregate):
            choice = choose(eqn.op.body, eqn.op.reductions, graph, platform)
            found.append(_kernel(direction, choice))
    return found


def _kernel(direction: str, choice: Choice) -> Kernel:
    rows = "destination" if choice.rows is Space.DST else "source"
    lines = show(choice.body, locations=False, objects=[]).splitlines()[1:]
    reductions = [r.kind if r else "on the edges" for r in choice.reductions]
    text = "\n".join([*lines, f"reduced by: {', '.join(reductions)}"])
    return Kernel(direction, text, choice.kernel, rows, choice.refused)


def _gradient(call: Staged) -> Any:
    """The jaxpr of the gradient with respect to every floating-point input; None without any."""
    operands = call.traced.operands
    moving = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def loss(some: list[Any]) -> Any:
        full = list(operands)
        for i, x in zip(moving, some, strict=True):
            full[i] = x
        staged = dataclasses.replace(
            call, traced=dataclasses.replace(call.traced, operands=tuple(full))
        )
        outs = jax.tree.leaves(staged.run())
        return sum(jnp.sum(o) for o in outs if jnp.issubdtype(o.dtype, jnp.inexact))

    try:
        jaxpr = jax.make_jaxpr(jax.grad(loss))([operands[i] for i in moving])
    except TypeError:  # nothing to differentiate
        return None
    return _compat.open_jaxpr(jaxpr)[0]


def _backward_kernels(call: Staged, program: Program, gradient: Any) -> list[Kernel]:
    """The traversals of the gradient that are not the forward's."""
    ops = [
        (e.params["body"], e.params["reductions"])
        for e in _equations(gradient)
        if e.primitive is aggregate_p
    ]
    forward = [e.op for e in program.equations if isinstance(e.op, Aggregate)]
    seen = {(op.body, op.reductions) for op in forward}
    fresh = dict.fromkeys(key for key in ops if key not in seen)
    return [k for body, r in fresh for k in _chosen("backward", Aggregate(body, r), call.graph)]


def _product(eqn: Any) -> str:
    """How the gradient of a matrix is computed."""
    (left, right), dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    text = f"a.T @ b over all vertices, {dtype}[{left}, {right}]"
    if jax.default_backend() != "cpu":
        return f"backward: xla, {text}"
    reasons = cpu.why_no_product(left, right, dtype)
    head = f"backward: {'xla' if reasons else 'cpu'}, {text}"
    return "\n".join([head, *(f"  not cpu: {r}" for r in reasons)])


def _equations(jaxpr: Any) -> Any:
    """All equations, those of inner jaxprs too."""
    for eqn in [] if jaxpr is None else jaxpr.eqns:
        yield eqn
        for sub in _compat.subjaxprs(eqn):
            yield from _equations(sub)
