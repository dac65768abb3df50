"""Maxima and minima in derivatives: which edges attain them, and how edges that tie share.

The gradient is shared evenly among edges that tie (design/0004).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.lower.application import Application, as_sum, fresh, home
from gnnjit.lower.deciding import in_float32
from gnnjit.lower.error_bounds import with_error_bounds


@dataclasses.dataclass(frozen=True)
class Ties:
    """The maxima and minima among the outputs, and the program that edges are compared by.

    body: a program with one output for each, in float32 where theirs are half precision.
    wide: whether any of them is.
    """

    numbers: list[int]
    body: Program
    wide: bool

    @staticmethod
    def of(body: Program, numbers: list[int]) -> Ties:
        found = in_float32(body, tuple(numbers)) if numbers else None
        if found is not None:
            return Ties(numbers, found, True)
        outputs = tuple(body.outputs[k] for k in numbers)
        return Ties(numbers, dataclasses.replace(body, outputs=outputs), False)

    def extremes(self, call: Application, scores: set[int]) -> tuple[list[Any], dict[int, Any]]:
        """The outputs of the call; and the extremes that edges will be compared with, constants."""
        wider = [k for k in self.numbers if k not in scores] if self.wide else []
        if not wider:
            outs = call.rebind()
            return outs, {k: lax.stop_gradient(outs[k]) for k in self.numbers}

        def body(*xs: Any) -> list[Any]:
            every = evaluate_element(call.body, xs)
            wide = evaluate_element(self.body, xs)
            for k in wider:
                every[k] = wide[self.numbers.index(k)]
            return every

        found = call.capture(body, fresh(call.body.inputs), call.reductions, call.operands)
        outs = [x.astype(o.dtype) for x, o in zip(found, call.body.outputs, strict=True)]
        return outs, {k: lax.stop_gradient(found[k]) for k in self.numbers}

    def weights(self, call: Application, best: list[Any]) -> list[Any]:
        """One over the number of edges that attain each."""
        if not self.numbers:
            return []
        inputs = fresh(self.body.inputs)
        for k, x in zip(self.numbers, best, strict=True):
            atom = call.body.outputs[k]
            inputs.append(Value(atom.shape, x.dtype, home(call.reductions[k])))
        n = len(self.body.inputs)

        def ones(*xs: Any) -> list[Any]:
            attained = self.attained(call, xs[:n], xs[n:])
            return [attains.astype(jnp.float32) for attains in attained]

        into = tuple(as_sum(call.reductions[k]) for k in self.numbers)
        operands = [lax.stop_gradient(x) for x in call.operands]
        counts = call.capture(ones, inputs, into, [*operands, *best])
        shares = []
        for k, count in zip(self.numbers, counts, strict=True):
            dtype = call.body.outputs[k].dtype
            precise = jnp.maximum(count, 1).astype(jnp.promote_types(dtype, jnp.float32))
            shares.append((1 / precise).astype(dtype))
        return shares

    def attained(self, call: Application, primals: Sequence[Any], best: Sequence[Any]) -> list[Any]:
        """Whether an edge attains each extreme.

        A value that has to be computed is computed again in another traversal, perhaps rounded
        otherwise: an edge may miss the extreme by the bound on that. What is only read is exact.
        """
        if not self.numbers:
            return []
        constants = [lax.stop_gradient(x) for x in primals]
        each = zip(self.numbers, best, with_error_bounds(self.body, constants), strict=True)
        return [_attains(value, b, off, call.reductions[k]) for k, b, (value, off) in each]


def _attains(value: Any, best: Any, slack: Any, reduction: Reduce | None) -> Any:
    """Whether an edge attains the extreme; where that is NaN, every edge does, so that gradients
    are NaN too."""
    assert reduction is not None
    largest = reduction.kind == "max"
    exactly = ~(value < best if largest else value > best)
    if slack is None:
        return exactly
    slack = 2 * slack.astype(best.dtype) + jnp.finfo(best.dtype).eps * jnp.abs(best)
    near = value >= best - slack if largest else value <= best + slack
    return exactly | near


def is_extreme(reduction: Reduce | None) -> bool:
    return reduction is not None and reduction.kind in ("max", "min")
