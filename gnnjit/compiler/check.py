"""`check`: the optimised layer against the interpreter, in value and gradient."""

from __future__ import annotations

import dataclasses
import html
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.compiler.call import TracedCall, calls_of, is_layer
from gnnjit.errors import CheckError, LayerError, shortened
from gnnjit.graph.validate import is_traced, shown
from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import layer_passes, run
from gnnjit.sharding.sharded_graph import ShardedGraph


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference of one array: where, and between what.

    Attributes:
        what: the array, such as "output" or the gradient of an input.
        error: the largest absolute difference.
        index: of the entry that has it.
        got: this entry in the compiled layer's array.
        expected: the same entry, computed edge by edge.
        tolerance: the largest error that counts as equal.
    """

    what: str
    error: float
    index: tuple[int, ...]
    got: float
    expected: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        mark = "equal" if self.ok else "DIFFERS"
        text = f"{self.what}: {mark}, largest difference {self.error:.2g}"
        if self.ok:
            return text
        return f"{text} at {list(self.index)}: got {self.got:.8g}, expected {self.expected:.8g}"


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What `gnnjit.check` compared of one layer. Print it, or leave it last in a notebook cell.

    Attributes:
        name: of the layer.
        differences: one for each array that was compared.
        first_wrong_pass: the pass that the first difference comes from; None where none is found.
        no_gradient: why gradients were not compared; None where they were.
    """

    name: str
    differences: tuple[Difference, ...]
    first_wrong_pass: str | None = None
    no_gradient: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all arrays are equal within their tolerances."""
        return all(d.ok for d in self.differences)

    def __str__(self) -> str:
        lines = [f"{self.name}: optimised against interpreted"]
        lines += [f"  {d}" for d in self.differences]
        if self.no_gradient:
            lines.append(f"  gradients: not compared, the layer has none: {self.no_gradient}")
        if self.first_wrong_pass:
            lines.append(f"  first wrong after: {self.first_wrong_pass}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{html.escape(d.what)}</td><td>{'equal' if d.ok else '<b>differs</b>'}</td>"
            f"<td>{d.error:.2g}</td><td>{d.tolerance:.2g}</td></tr>"
            for d in self.differences
        ]
        if self.no_gradient:
            rows.append(
                f'<tr><td colspan="4">no gradient: {html.escape(self.no_gradient)}</td></tr>'
            )
        head = "".join(f"<th>{x}</th>" for x in ("array", "", "largest difference", "allowed"))
        title = f"{html.escape(self.name)}: optimised against interpreted"
        return f"<h4>{title}</h4><table><tr>{head}</tr>{''.join(rows)}</table>"


class CheckReports(list[CheckReport]):
    """The reports of all layers that a call ran, in order."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "".join(report._repr_html_() for report in self)


def check(
    target: Callable[..., Any],
    *args: Any,
    rtol: float | None = None,
    seed: int = 0,
    **keywords: Any,
) -> CheckReport | CheckReports:
    """Compare `target(*args, **keywords)` with the program as written, run edge by edge.

    It compares values, and the gradients of a random linear function of the outputs with respect to
    every floating-point input. Of a layer without a gradient (`while_loop` has none) it compares
    values alone.

    Args:
        target: a layer, or any function or module that calls layers.
        args, keywords: what it is called with; take a small graph.
        rtol: how far an entry may be off, as a share of the largest magnitude in its array; by
            default 2e-4 in float32, 1e-9 in float64, 5e-2 in half precision. A hundredth of the
            largest gradient's magnitude counts too: a gradient that cancels is all rounding.
        seed: of the random function.

    Returns:
        A `CheckReport` for a layer, and a list of them for anything else.

    Raises:
        LayerError: the call ran no layer, or is only traced; `rtol` or `seed` is no such number.
        CheckError: something differs; the message names the array, the entry and the pass.
    """
    if rtol is not None and not (isinstance(rtol, numbers.Real) and rtol >= 0):
        came = shortened(repr(rtol), 100)
        raise LayerError(f"check: rtol is {came}, expected a number, 0 or more")
    if isinstance(seed, bool | np.bool_) or not hasattr(seed, "__index__") or seed < 0:
        raise LayerError(f"check: seed is {shown(seed)}, expected a whole number, 0 or more")
    reports = [check_call(c, rtol, seed) for c in calls_of("check", target, args, keywords)]
    return reports[0] if is_layer(target) and len(reports) == 1 else CheckReports(reports)


def check_call(call: TracedCall, rtol: float | None = None, seed: int = 0) -> CheckReport:
    with jax.disable_jit(False):  # what is compiled is what is checked
        return _check_call(call, rtol, seed)


def _check_call(call: TracedCall, rtol: float | None, seed: int) -> CheckReport:
    operands = call.traced.operands
    differentiated = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def fast(ops: Sequence[Any]) -> list[Any]:
        traced = dataclasses.replace(call.traced, operands=tuple(ops))
        return _results(call, jax.tree.leaves(dataclasses.replace(call, traced=traced).run()))

    def slow(ops: Sequence[Any]) -> list[Any]:
        return _results(call, call.interpret(call.program, ops))

    got, expected = fast(operands), slow(operands)
    if is_traced(got, expected):
        own = call.definition
        raise LayerError(
            f"{own.where}: {own.name}: check compares numbers, and the call is only traced here. "
            "Call it outside of jax.jit, jax.grad and the like"
        )
    pairs = enumerate(zip(got, expected, strict=True))
    found = [_compare(f"output {i}", a, b, rtol) for i, (a, b) in pairs]
    no_gradient = call.why_no_gradient(differentiated) if differentiated else None
    if no_gradient:
        differentiated = []
    grads = [_gradient(f, operands, differentiated, seed) for f in (fast, slow)]
    called = call.input_names()
    inputs = call.program.inputs
    names = [called.get(i) or inputs[i].name or f"constant {i}" for i in differentiated]
    floor = 1e-2 * max(map(_magnitude, grads[1]), default=0.0)
    found += [
        _compare(f"gradient of {n}", a, b, rtol, floor)
        for n, a, b in zip(names, *grads, strict=True)
    ]
    report = CheckReport(call.definition.name, tuple(found), no_gradient=no_gradient)
    if report.ok:
        return report
    raise CheckError(str(dataclasses.replace(report, first_wrong_pass=_blame(call, rtol))))


def _results(call: TracedCall, outs: Sequence[Any]) -> list[Any]:
    """The results, without what stands in the padding of a sharded graph."""
    graph = call.graph
    if not isinstance(graph, ShardedGraph):
        return list(outs)
    real = {Space.SHARED: True, Space.GRAPH: True, Space.DST: graph.vertex_mask}
    return [
        jnp.where(jnp.reshape(real.get(space, graph.mask), (-1,) + (1,) * (x.ndim - 1)), x, 0)
        if x.ndim else x
        for x, space in zip(outs, call.output_spaces, strict=True)
    ]  # fmt: skip


def _gradient(f: Any, operands: Sequence[Any], differentiated: list[int], seed: int) -> list[Any]:
    def loss(some: list[Any]) -> Any:
        full = list(operands)
        for i, x in zip(differentiated, some, strict=True):
            full[i] = x
        rng = np.random.default_rng(seed)
        outs = [o for o in f(full) if jnp.issubdtype(o.dtype, jnp.inexact)]
        weights = [jnp.asarray(rng.normal(size=o.shape), o.dtype) for o in outs]
        return sum((jnp.sum(o * w) for o, w in zip(outs, weights, strict=True)), jnp.zeros(()))

    return jax.grad(loss)([operands[i] for i in differentiated]) if differentiated else []


def _default_rtol(dtype: Any) -> float:
    if dtype == jnp.float64:
        return 1e-9
    return 2e-4 if jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.float32 else 5e-2


def _magnitude(x: Any) -> float:
    """The largest finite magnitude in an array; 0 if there is none."""
    a = np.abs(np.asarray(x, np.float64))
    return float(a[np.isfinite(a)].max(initial=0.0))


def _compare(
    what: str, got: Any, expected: Any, rtol: float | None, floor: float = 0.0
) -> Difference:
    rtol = _default_rtol(got.dtype) if rtol is None else rtol
    a, b = (np.asarray(x, np.float64) for x in (got, expected))
    if a.size == 0:
        return Difference(what, 0.0, (), 0.0, 0.0, 0.0)
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    at = np.unravel_index(int(np.argmax(gap)), gap.shape)
    index = tuple(int(i) for i in at)
    limit = rtol * max(_magnitude(b), floor, 1e-30)
    return Difference(what, float(gap[at]), index, float(a[at]), float(b[at]), limit)


def _blame(call: TracedCall, rtol: float | None) -> str:
    """The first pass after which the interpreted program gives other values."""
    expected = _results(call, call.interpret(call.program))
    wrong: list[str] = []

    def observe(step: Any, _: Program, after: Program) -> None:
        got = _results(call, call.interpret(after))
        same = all(_compare("", a, b, rtol).ok for a, b in zip(got, expected, strict=True))
        if not same:
            wrong.append(step.name)

    run(call.program, layer_passes(call.padded), [observe])
    return wrong[0] if wrong else "lowering or differentiation (no pass changed the values)"
