"""The walk through a jaxpr, nested calls inlined, that `capture` and `trace_arrays` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from gnnjit import _compat

CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"})
"""Primitives that stand for a jaxpr, whatever is done with their results."""

Held = TypeVar("Held")
"""What a variable of the jaxpr becomes."""


class Walker(Generic[Held]):
    """Walks one jaxpr, or several traces of one function side by side, equation by equation.

    `jaxprs`, `eqns` and `variables` are those that correspond in the traces; of the first one, the
    variables are bound. A vocabulary says what equations and constants become.

    outermost: the equation that is read, or the outermost call that it is a part of: JAX traces a
        `jit` once, so that its own lines are those of whoever called it first.
    where: the user's line of `outermost`, or of the first call within it that has one.
    """

    calls: ClassVar[frozenset[str]] = CALLS
    outermost: Any = None
    where: Any = None

    def equation(self, eqns: Sequence[Any], ins: list[Held]) -> Sequence[Held]:
        """The results of equations that stand for themselves."""
        raise NotImplementedError

    def constant(self, variables: Sequence[Any], value: Any) -> Held:
        """An array or scalar that a nested jaxpr closed over."""
        raise NotImplementedError

    def literal(self, variable: Any) -> Held:
        """A scalar that stands in the jaxpr."""
        return self.constant([variable], variable.val)

    def line(self, eqn: Any) -> Any:
        """The user's line of an equation."""
        raise NotImplementedError

    def nested(self, eqns: Sequence[Any], ins: list[Held]) -> Sequence[Held] | None:
        """The results of equations that stand for others; None for all else."""
        if eqns[0].primitive.name not in self.calls:
            return None
        return self.call([e.params.get("jaxpr", e.params.get("call_jaxpr")) for e in eqns], ins)

    def call(self, closed: Sequence[Any], args: Sequence[Held]) -> list[Held]:
        """The results of jaxprs with their constants."""
        opened = [_compat.open_jaxpr(each) for each in closed]
        jaxprs = [jaxpr for jaxpr, _ in opened]
        variables = zip(*(jaxpr.constvars for jaxpr in jaxprs), strict=True)
        lifted = [self.constant(v, x) for v, x in zip(variables, opened[0][1], strict=True)]
        return self.run(jaxprs, lifted, args)

    def run(
        self, jaxprs: Sequence[Any], consts: Sequence[Held], args: Sequence[Held]
    ) -> list[Held]:
        """The results of open jaxprs."""
        first = jaxprs[0]
        env: dict[Any, Held] = dict(zip(first.constvars, consts, strict=True))
        env.update(zip(first.invars, args, strict=True))
        for eqns in zip(*(jaxpr.eqns for jaxpr in jaxprs), strict=False):
            ins = [self._read(env, v) for v in eqns[0].invars]
            env.update(zip(eqns[0].outvars, self._step(eqns, ins), strict=True))
        return [self._read(env, v) for v in first.outvars]

    def _step(self, eqns: Sequence[Any], ins: list[Held]) -> Sequence[Held]:
        outer = self.outermost, self.where
        self.outermost = outer[0] or eqns[0]
        self.where = outer[1] or self.line(eqns[0])
        outs = self.nested(eqns, ins)
        if outs is None:
            outs = self.equation(eqns, ins)
        self.outermost, self.where = outer
        return outs

    def _read(self, env: Mapping[Any, Held], variable: Any) -> Held:
        is_literal = isinstance(variable, _compat.JaxprLiteral)
        return self.literal(variable) if is_literal else env[variable]
