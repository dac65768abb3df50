"""The values that decide which edges attain a maximum: in float32, also where the layer's are half.

before:  m: bf16[edge, 8] = h @ W            after:  m: f32[edge, 8] = float32(h) @ float32(W)

Gradients compare edges with the maximum again. Lowerings round intermediate values of half
precision in different places, or nowhere: a bound on that rounding would take many edges for the
largest, and share the gradient among them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit._compat import primitive_names
from gnnjit.frontend.capture import capture, inline_custom_calls
from gnnjit.ir.dtypes import is_half
from gnnjit.ir.evaluate import bind, literal_array
from gnnjit.ir.program import Lax, Literal, Program
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.extremes_in_full_precision import in_full_precision

_OF_THE_TYPE = frozenset("bitcast_convert_type nextafter reduce_precision".split())
"""Operations whose result says something about how a number is stored."""


@functools.lru_cache(maxsize=1024)
def in_float32(body: Program, numbers: tuple[int, ...]) -> Program | None:
    """The outputs of these numbers, of the same inputs, in float32; None where none of them is
    computed in half precision, or one by an operation that depends on it."""
    outputs = tuple(body.outputs[k] for k in numbers)
    program = DropDead()(dataclasses.replace(body, outputs=outputs))
    computed = {o for e in program.equations for o in e.outputs}
    if not any(is_half(o.dtype) and o in computed for o in outputs):
        return None
    program = inline_custom_calls(program)
    if any(not _has_wider(e.op) for e in program.equations):
        return None
    found = capture(functools.partial(_evaluate, program), list(body.inputs))
    assert not found.constants
    return found.program


def _has_wider(op: Any) -> bool:
    return isinstance(op, Lax) and op.name not in _OF_THE_TYPE and not any(primitive_names(op))


def _evaluate(program: Program, *args: Any) -> list[Any]:
    values: dict[Any, Any] = {v: _wide(x) for v, x in zip(program.inputs, args, strict=True)}

    def read(atom: Any) -> Any:
        return _wide(literal_array(atom)) if isinstance(atom, Literal) else values[atom]

    for eqn in program.equations:
        assert isinstance(eqn.op, Lax)
        outs = bind(_wider(eqn.op), [read(a) for a in eqn.inputs])
        values.update(zip(eqn.outputs, map(_wide, outs), strict=True))
    return [read(o) for o in program.outputs]


def _wide(x: Any) -> Any:
    return x.astype(jnp.float32) if is_half(x.dtype) else x


def _wider(op: Lax) -> Lax:
    """The operation with float32 where its parameters name a type of half precision."""
    params: Sequence[tuple[str, Any]] = [
        (k, np.dtype(np.float32) if _names_half(p) else p) for k, p in op.params
    ]
    op = dataclasses.replace(op, params=tuple(params))
    return in_full_precision(op) if op.name == "dot_general" else op


def _names_half(param: Any) -> bool:
    return isinstance(param, np.dtype) and is_half(param)
