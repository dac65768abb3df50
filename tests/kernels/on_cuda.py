"""A JAX function as a GPU would run it: its kernels, as emitted, in NumPy; all else by XLA's CPU.

What layers and traversals become on CUDA is written out until only plain JAX and kernels are left.
Each kernel is lowered for CUDA, and its Triton IR executed (`ttir.py`). What kernels leave
unwritten is followed: it may reach further launches, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pallas
import pytest

from gnnjit._compat import JaxprLiteral, open_jaxpr, subjaxprs
from gnnjit.compiler import primitive
from gnnjit.compiler.primitive import layer_p
from gnnjit.lower import dispatch
from gnnjit.lower.application import aggregate_p

from . import ttir
from .memory import Buffer, Fault, poison
from .module import Module, decode

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "remat2")
Change = Callable[[Module], Module]


@dataclasses.dataclass
class Run:
    """What happened: the outputs, and the launches by name."""

    outputs: Any
    launches: list[str]


@contextlib.contextmanager
def planned_for_cuda() -> Iterator[None]:
    """Plans, also those of gradients, are those of a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch, pallas.abstract_gpu():
        patch.setattr(primitive, "platform_here", lambda: "cuda")
        yield


def run(fn: Callable[..., Any], *args: Any, tf32: bool = False, change: Any = None) -> Run:
    """`fn(*args)`. tf32: products in kernels round as on tensor cores. change: a function of each
    kernel's module, to plant faults."""
    leaves, treedef = jax.tree.flatten(args)
    with planned_for_cuda():
        out_tree: list[Any] = []

        def flat(*xs: Any) -> Any:
            outs, tree = jax.tree.flatten(fn(*jax.tree.unflatten(treedef, xs)))
            out_tree.append(tree)
            return outs

        made = jax.make_jaxpr(flat)(*leaves)
        plain = jax.make_jaxpr(functools.partial(_written_out, made))(*leaves)
        machine = _Machine(tf32, change)
        outs = machine.run(plain, leaves)
    return Run(jax.tree.unflatten(out_tree[0], outs), machine.launches)


# ------------------------------------------------------------------------- what GPUs would be given


def _written_out(closed: Any, *args: Any) -> list[Any]:
    """The outputs of a jaxpr, traced again with layers and traversals as they become on CUDA."""
    jaxpr, consts = open_jaxpr(closed)
    env = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        given = [_read(env, a) for a in eqn.invars]
        env.update(zip(eqn.outvars, _meaning(eqn, given), strict=True))
    return [_read(env, a) for a in jaxpr.outvars]


def _meaning(eqn: Any, given: list[Any]) -> list[Any]:
    rules = {layer_p: primitive._lower, aggregate_p: dispatch.lower}
    if eqn.primitive in rules:
        fn = functools.partial(rules[eqn.primitive], platform="cuda", **eqn.params)
        return _written_out(jax.make_jaxpr(fn)(*given), *given)
    if not _has_kernels(eqn) or eqn.primitive.name == "pallas_call":
        return _bind(eqn, given)
    assert eqn.primitive.name in CALLS, f"kernels inside {eqn.primitive.name}"
    closed = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
    return _written_out(closed, *given)


def _has_kernels(eqn: Any) -> bool:
    if eqn.primitive in (layer_p, aggregate_p) or eqn.primitive.name == "pallas_call":
        return True
    return any(_has_kernels(e) for sub in subjaxprs(eqn) for e in sub.eqns)


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, JaxprLiteral) else env[atom]


def _bind(eqn: Any, given: Sequence[Any]) -> list[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(params, tuple):  # before JAX 0.11: functions, and the rest
        subfuns, params = params
        given = [*subfuns, *given]
    outs = eqn.primitive.bind(*given, **params)
    return list(outs) if eqn.primitive.multiple_results else [outs]


# ----------------------------------------------------------------------------------- the machine


class _Machine:
    """Equations in order: those between kernels compiled together."""

    def __init__(self, tf32: bool, change: Any):
        self.tf32, self.change = tf32, change or (lambda module: module)
        self.launches: list[str] = []
        self.env: dict[Any, Any] = {}
        self.unwritten: dict[Any, np.ndarray] = {}

    def run(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        jaxpr, consts = open_jaxpr(closed)
        self.env.update(zip(jaxpr.constvars, consts, strict=True))
        self.env.update(zip(jaxpr.invars, args, strict=True))
        outputs = [a for a in jaxpr.outvars if not isinstance(a, JaxprLiteral)]
        live, pending = _live(jaxpr.eqns, outputs), []
        for number, eqn in enumerate(live):
            if eqn.primitive.name != "pallas_call":
                pending.append(eqn)
                continue
            self._between(pending, live[number:], outputs)
            self._launch(eqn)
            pending = []
        self._between(pending, [], outputs)
        for a in outputs:
            self._written(a, "an output")
        return [np.asarray(_read(self.env, a)) for a in jaxpr.outvars]

    def _written(self, atom: Any, what: str) -> None:
        mask = None if isinstance(atom, JaxprLiteral) else self.unwritten.get(atom)
        if mask is not None and mask.any():
            at = tuple(int(k[0]) for k in np.nonzero(mask))
            raise Fault(f"{what} has {int(mask.sum())} elements that no program wrote: {at}")

    def _between(self, eqns: list[Any], after: list[Any], outputs: list[Any]) -> None:
        made = {v for e in eqns for v in e.outvars}
        read = {a for e in eqns for a in e.invars if not isinstance(a, JaxprLiteral)}
        for a in read - made:
            self._written(a, "an operand of XLA")
        ins = sorted(read - made, key=id)
        wanted = {a for e in after for a in e.invars if not isinstance(a, JaxprLiteral)}
        outs = sorted(made & (wanted | set(outputs)), key=id)
        if not outs:
            return

        def fn(*xs: Any) -> list[Any]:
            env = dict(zip(ins, xs, strict=True))
            for e in eqns:
                found = _bind(e, [_read(env, a) for a in e.invars])
                env.update(zip(e.outvars, found, strict=True))
            return [env[a] for a in outs]

        found = jax.jit(fn)(*(self.env[a] for a in ins))
        self.env.update(zip(outs, found, strict=True))

    def _launch(self, eqn: Any) -> None:
        kernel = _kernel(eqn)
        self.launches.append(kernel.name)
        onto = {i: o for i, o in eqn.params["input_output_aliases"]}
        buffers, of_outputs = [], {}
        for i, a in enumerate(eqn.invars):
            data = np.array(_read(self.env, a))
            unwritten = None if isinstance(a, JaxprLiteral) else self.unwritten.get(a)
            name = f"{kernel.name}, operand {i}"
            if i in onto:
                of_outputs[onto[i]] = Buffer(name, data, True, unwritten)
            elif unwritten is not None and unwritten.any():
                of_outputs[("read", i)] = Buffer(name, data, True, unwritten)
            buffers.append(of_outputs.get(onto.get(i, ("read", i))) or Buffer(name, data, False))
        for o, v in enumerate(eqn.outvars):
            if o not in of_outputs:
                data = np.full(v.aval.shape, poison(v.aval.dtype), v.aval.dtype)
                name = f"{kernel.name}, output {o}"
                of_outputs[o] = Buffer(name, data, True, np.ones(data.shape, bool))
            buffers.append(of_outputs[o])
        module = self.change(decode(kernel.code))
        ttir.launch(module, buffers, np.arange(kernel.programs), tf32=self.tf32)
        for o, v in enumerate(eqn.outvars):
            self.env[v] = of_outputs[o].data.reshape(v.aval.shape)
            self.unwritten[v] = of_outputs[o].unwritten.reshape(v.aval.shape)


def _live(eqns: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The equations that the outputs depend on, as XLA keeps them."""
    wanted, kept = set(outputs), []
    for eqn in reversed(eqns):
        if wanted.intersection(eqn.outvars):
            wanted.update(a for a in eqn.invars if not isinstance(a, JaxprLiteral))
            kept.append(eqn)
    return kept[::-1]


def _kernel(eqn: Any) -> pallas.Kernel:
    assert not eqn.params["interpret"]

    def call(*xs: Any) -> list[Any]:
        return _bind(eqn, xs)

    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars]
    (kernel,) = pallas.kernels(pallas.lower_for_cuda(pallas.trace_for_cuda(call, *avals)))
    return kernel
