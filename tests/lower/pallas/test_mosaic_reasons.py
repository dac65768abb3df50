"""Why the Mosaic GPU kernels are refused, and when they are chosen."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.program import Aggregate, Equation, Lax, Literal, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.pallas import mosaic as lowering
from lower.requests import TINY, request
from pallas_kernels import mosaic

SRC, DST, EDGE, SHARED = Space.SRC, Space.DST, Space.EDGE, Space.SHARED
SUM = (Reduce("sum", DST),)


def program(fn: Any, *inputs: Any) -> Program:
    """`inputs` are (space, shape, dtype); the equations are those of `fn`, without calls."""
    values = [Value(shape, np.dtype(dtype), space) for space, shape, dtype in inputs]
    traced = jax.jit(fn).trace(*[v.aval for v in values]).jaxpr
    jaxpr = getattr(traced, "jaxpr", traced)
    env: dict[Any, Any] = dict(zip(jaxpr.invars, values, strict=True))
    equations = []

    def read(a: Any) -> Any:
        return Literal(a.val, np.dtype(a.aval.dtype)) if hasattr(a, "val") else env[a]

    for eqn in jaxpr.eqns:
        outs = tuple(Value(tuple(o.aval.shape), o.aval.dtype, EDGE) for o in eqn.outvars)
        ins = tuple(read(a) for a in eqn.invars)
        equations.append(Equation(Lax(eqn.primitive, tuple(eqn.params.items())), ins, outs))
        env.update(zip(eqn.outvars, outs, strict=True))
    return Program(tuple(values), tuple(equations), tuple(read(o) for o in jaxpr.outvars))


def vector(width: int = 128, dtype: Any = "float32", space: Space = SRC) -> Any:
    return (space, (width,), dtype)


def one(name: str, fn: Any, *inputs: Any) -> Any:
    """A primitive that is refused by its name alone."""
    reason = f"no Mosaic GPU kernel code for the primitive {name}"
    return pytest.param(fn, inputs or (vector(),), SUM, reason, id=name)


SAME = (lambda x: jax.lax.neg(x), (vector(),))
CASES = [
    pytest.param(lambda x: x, (vector(100),), SUM,
                 "Mosaic GPU kernels take vectors of 128, 256, 512, 768, 1024, not of 100",
                 id="width"),
    pytest.param(lambda x: x, (vector(384),), SUM,
                 "Mosaic GPU kernels take vectors of 128, 256, 512, 768, 1024, not of 384",
                 id="width of three"),
    pytest.param(lambda x: x, ((SRC, (2, 128), "float32"),), SUM,
                 "Mosaic GPU kernels take scalars and vectors on the edges, not [2, 128]",
                 id="rank"),
    pytest.param(lambda x: x, (vector(dtype="float16"),), SUM,
                 "no Mosaic GPU kernel code for values of type float16", id="float16"),
    pytest.param(lambda x: x, (vector(dtype="int32"),), SUM,
                 "no Mosaic GPU kernel code for values of type int32", id="int32"),
    pytest.param(lambda x: x, (vector(dtype="bool"),), (None,),
                 "no Mosaic GPU kernel code for values of type bool", id="bool"),
    pytest.param(*SAME, (Reduce("sum", SHARED),),
                 "no Mosaic GPU kernel code for reductions over all edges", id="all edges"),
    pytest.param(*SAME, (Reduce("sum", SRC),),
                 "a reduction into src in a traversal by dst", id="other rows"),
    pytest.param(*SAME, (Reduce("exp_sum", DST),),
                 "no Mosaic GPU kernel code for exp_sum", id="exp_sum"),
    pytest.param(lambda i, x: jax.lax.select_n(i, x, x),
                 ((EDGE, (), "int32"), (SRC, (), "float32")),
                 SUM, "no Mosaic GPU kernel code for this form of select_n (of [], [], [])",
                 id="select_n"),
    one("dot_general", lambda x: jnp.dot(x, x)),
    one("pow", lambda x: jax.lax.pow(x, x)),
    one("log1p", jax.lax.log1p),
    one("expm1", jax.lax.expm1),
    one("floor", jax.lax.floor),
    one("ceil", jax.lax.ceil),
    one("erf", jax.lax.erf),
    one("rem", lambda x: jax.lax.rem(x, x)),
    one("atan2", lambda x: jax.lax.atan2(x, x)),
    one("tan", jax.lax.tan),
    one("cumsum", lambda x: jax.lax.cumsum(x)),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "inputs", "reductions", "reason"), CASES)
def test_reasons(fn, inputs, reductions, reason):
    assert reason in lowering.why_not(request(program(fn, *inputs), reductions))


def test_broadcasting_along_a_new_axis_is_refused():
    body = program(lambda x: jax.lax.broadcast_in_dim(x, (2, 128), (1,)), vector())
    assert lowering.why_not(request(body, SUM)) == [
        "Mosaic GPU kernels take scalars and vectors on the edges, not [2, 128]",
        "no Mosaic GPU kernel code for this form of broadcast_in_dim (of [128])",
    ]


@pytest.mark.skipif(bool(mosaic.missing()), reason="no Mosaic GPU")
def test_nothing_against_a_sum():
    assert lowering.why_not(request(program(SAME[0], *SAME[1]), SUM)) == []


def test_old_gpus_are_refused(monkeypatch):
    class Device:
        compute_capability = "7.5"

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert lowering.why_not(request(program(SAME[0], *SAME[1]), SUM)) == [
        "the GPU's compute capability is 7.5, Mosaic GPU kernels are for 9.0 up"
    ]
    Device.compute_capability = "9.0"
    assert lowering.why_not(request(program(SAME[0], *SAME[1]), SUM)) == mosaic.missing()


def test_missing_names_are_reasons(monkeypatch):
    monkeypatch.setattr(mosaic, "missing", lambda: ["the Mosaic GPU backend of JAX 0.9 lacks load"])
    assert lowering.why_not(request(program(SAME[0], *SAME[1]), SUM)) == mosaic.missing()


# ------------------------------------------------------------------------------------ choice


def chosen(body: Program, platform: str = "cuda", reductions: Any = SUM) -> choose.Choice:
    return choose.choose(Aggregate(body, reductions), TINY, platform)


def test_triton_comes_first():
    choice = chosen(program(SAME[0], *SAME[1]))
    assert (choice.kernel, choice.refused) == ("pallas", ())


def test_mosaic_comes_second(monkeypatch):
    first = dataclasses.replace(choose.PALLAS, why_not=lambda request: ["no"])
    rest = [x for x in choose.LOWERINGS if x is not choose.PALLAS]
    monkeypatch.setattr(choose, "LOWERINGS", (first, *rest))
    choice = chosen(program(SAME[0], *SAME[1]))
    assert (choice.kernel, choice.refused) == ("mosaic", (("pallas", ("no",)),))


def test_mosaic_is_preferred_on_a_gpu_alone():
    with choose.prefer("mosaic"):
        choice = chosen(program(SAME[0], *SAME[1]))
        assert choice.kernel == "mosaic"
        assert choice.refused == (("pallas", ("mosaic is preferred",)),)
        refused = dict(chosen(program(SAME[0], *SAME[1]), "cpu").refused)
    assert refused["mosaic"] == ("the platform is cpu",)


def test_a_refusal_goes_on_to_the_next():
    with choose.prefer("mosaic"):
        choice = chosen(program(jax.lax.floor, vector()))
    assert choice.kernel not in ("pallas", "mosaic")
    reason = "no Mosaic GPU kernel code for the primitive floor"
    assert dict(choice.refused)["mosaic"] == (reason,)


HIDE = """
import sys
sys.modules["jax.experimental.pallas.{hidden}"] = None
import gnnjit, jax, jax.numpy as jnp, numpy as np
from gnnjit.lower import choose

@gnnjit.layer
def layer(v, e):
    return gnnjit.sum(e.src * 2.0)

g = gnnjit.Graph.from_edges(np.array([0, 1]), np.array([1, 0]), num_nodes=2)
old = choose.choose

def spy(*args):
    choice = old(*args)
    print(choice.kernel, dict(choice.refused))
    return choice

choose.choose = spy
device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
with jax.sharding.use_abstract_mesh(mesh), choose.prefer("{prefer}"):
    lowered = jax.jit(layer).trace(g, x).lower(lowering_platforms=("cuda",))
    print(lowered.as_text().count("mosaic_gpu_v2"))
"""


def without(hidden: str, prefer: str) -> list[str]:
    code = HIDE.format(hidden=hidden, prefer=prefer)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(bool(mosaic.missing()), reason="no Mosaic GPU")
def test_without_triton_there_is_mosaic():
    choice, calls = without("triton", "pallas")
    assert choice.startswith(f"mosaic {{'pallas': ('JAX {jax.__version__} has no Triton backend of")
    assert int(calls) == 1


def test_without_mosaic_there_are_the_others():
    choice, calls = without("mosaic_gpu", "mosaic")
    assert f"JAX {jax.__version__} has no Mosaic GPU backend of Pallas: " in choice
    assert int(calls) == 0
