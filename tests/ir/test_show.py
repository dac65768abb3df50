"""The text of programs: golden texts, and the notation piece by piece."""

from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.program import Equation, Lax, Literal, Location, Program
from gnnjit.ir.show import literal, show
from gnnjit.ir.space import Space

from .layers import LAYERS, gcn, trace, value

GOLDEN = {
    "gat": """\
        layer gat(e.src: f32[src, 4], v': f32[dst, 4], p.w: f32[4, 3], p.a.0: f32[3], p.a.1: f32[3])
          a: f32[src, 3] = e.src @ p.w
          b: f32[src] = a @ p.a.0
          c: f32[dst, 3] = v' @ p.w
          d: f32[dst] = c @ p.a.1
          f: f32[edge] = b[u] + d[v]
          g: f32[dst] = max over (u -> v) of f
          h: f32[edge] = f - g[v]
          i: f32[edge] = exp(h)
          j: f32[edge, 3] = i * a[u]
          k: f32[dst, 3] = sum over (u -> v) of j
          m: f32[dst] = sum over (u -> v) of i
          n: f32[dst, 3] = k / m
          return n""",
    "gcn": """\
        layer gcn(e.src: f32[src, 4], e.data: f32[edge], w: f32[4, 3], b: f32[3])
          a: f32[edge, 4] = e.data * e.src[u]
          c: f32[dst, 4] = sum over (u -> v) of a
          d: f32[dst, 3] = c @ w
          f: f32[dst, 3] = d + b
          g: f32[dst, 3] = max(f, 0.0)
          return g""",
    "sage": """\
        layer sage(x: f32[src, 2], x': f32[dst, 2], w: f32[4, 3])
          a: i32[dst] = degree of v
          b: i32[dst] = max(a, 1)
          c: f32[dst] = convert_element_type(b)
          d: f32[dst, 2] = sum over (u -> v) of x[u]
          f: f32[dst, 2] = d / c
          g: f32[dst, 4] = concatenate(x', f, dimension=0)
          h: f32[dst, 3] = g @ w
          return h""",
    "several": """\
        layer several(x: f32[src, 2], g: f32[dst, 2])
          for each edge (u -> v) of x[u], g[v]
            a: f32[edge, 2] = x[u] * g[v]
            b: f32[edge, 2] = -a
            c: f32[dst, 2] = sum over (u -> v) of a
            d: f32[src, 2] = max over (v <- u) of b
            f: f32[2] = sum over all edges of a
            h: f32[edge, 2] = on each edge a
          return c, d, f, h""",
    "sent": """\
        layer sent(e.src: f32[src], v': f32[dst])
          a: f32[edge] = e.src[u] * v'[v]
          b: f32[src] = sum over (v <- u) of a
          c: f32[dst] = b[source v]
          d: i32[src] = degree of u
          f: i32[dst] = d[source v]
          g: f32[dst] = convert_element_type(f)
          h: f32[dst] = c * g
          return h""",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    assert show(LAYERS[name](), locations=False) == textwrap.dedent(GOLDEN[name])


def test_locations_stand_in_one_column() -> None:
    lines = show(gcn()).splitlines()[1:-1]
    assert all("    # layers.py:" in line for line in lines)
    assert len({line.index("#") for line in lines}) == 1


def test_a_location_shows_the_file_without_its_folder() -> None:
    program = gcn()
    assert str(Location("/somewhere/model.py", 12)) == "model.py:12"
    assert "/" not in show(program).replace(" / ", "")


def test_names_of_inputs_are_made_unique_and_not_confused_with_indices() -> None:
    names = ["u", "p['a']", "p.a", "p[0]['w-1']", "sum", "", "3"]
    inputs = tuple(value(n, Space.SHARED) for n in names)
    assert show(Program(inputs, (), ())).splitlines()[0] == (
        "layer layer(u': f32[], p.a: f32[], p.a': f32[], p.0.w.1: f32[], sum': f32[], a: f32[], "
        "x.3: f32[])"
    )


def test_long_headers_put_one_input_on_a_line() -> None:
    inputs = tuple(value(f"parameter.{i}", Space.SHARED, 128) for i in range(6))
    lines = show(Program(inputs, (), inputs[:1])).splitlines()
    assert lines[0] == "layer layer("
    assert lines[1] == "    parameter.0: f32[128],"
    assert lines[7:] == [")", "  return parameter.0"]


def test_parameters_that_text_cannot_hold_are_collected_once() -> None:
    objects: list[object] = []
    program = trace(lambda x: [jax.nn.relu(x), jax.nn.relu(x)], [value("x", Space.DST, 3)])
    text = show(program, objects=objects)
    assert "custom_jvp_call(x, call_jaxpr=&0, jvp_jaxpr_fun=&1" in text
    assert len({id(o) for o in objects}) == len(objects)


def test_numbers_of_numpy_are_numbers() -> None:
    """JAX leaves some sizes and axes so; a kernel whose text is not all of it is not kept."""
    objects: list[object] = []
    x = value("x", Space.DST, 3)
    params = {"shape": (2, 3), "broadcast_dimensions": (np.int64(1),), "sharding": None}
    op = Lax(jax.lax.broadcast_in_dim_p, tuple(params.items()))
    out = value("y", Space.DST, 2, 3)
    text = show(Program((x,), (Equation(op, (x,), (out,), None),), (out,)), objects=objects)
    assert "broadcast_in_dim(x, broadcast_dimensions=(1,))" in text
    assert not objects


@pytest.mark.parametrize(
    ("fn", "line"),
    [
        (lambda x: x[::-1], "rev(x, dimensions=(0,))"),
        (lambda x: x > 0.5, "x > 0.5"),
        (lambda x: jnp.sum(x), "reduce_sum(x, axes=(0,))"),
        (lambda x: x**3, "integer_pow(x, y=3)"),
        (lambda x: jnp.dot(x, x, precision="highest"),
         "dot_general(x, x, precision=(Precision.HIGHEST, Precision.HIGHEST))"),
        (lambda x: x[1:], "slice(x, limit_indices=(3,), start_indices=(1,))"),
        (lambda x: jnp.outer(x, x), "a * b"),
        (lambda x: x - 1, "x - 1.0"),
        (lambda x: -1 - x, "-1.0 - x"),
    ],
)  # fmt: skip
def test_expressions(fn: object, line: str) -> None:
    program = trace(lambda x: [fn(x)], [value("x", Space.DST, 3)])  # type: ignore[operator]
    assert show(program, locations=False).splitlines()[-2].split(" = ", 1)[1] == line


@pytest.mark.parametrize(
    ("held", "dtype", "text"),
    [
        (np.float32(0.2), "float32", "0.2"),
        (np.float64(0.2), "float32", "f32(0.2)"),
        (np.float16(0.1), "float16", "0.0999755859375:f16"),
        (np.float32(0.5), "bfloat16", "bf16(0.5:f32)"),
        (np.int32(3), "int32", "3"),
        (np.uint32(3), "uint32", "3:u32"),
        (np.bool_(True), "bool", "True"),
        (np.float32(-np.inf), "float32", "-inf"),
        (np.float32(-0.0), "float32", "-0.0"),
        (np.complex64(1 - 2j), "complex64", "(1.0, -2.0):c64"),
    ],
)
def test_literals(held: object, dtype: str, text: str) -> None:
    assert literal(Literal(held, jnp.dtype(dtype))) == text


def test_a_primitive_that_is_not_of_jax_is_a_reference() -> None:
    mine = jax.extend.core.Primitive("my-own")
    x = value("x", Space.DST)
    y = value("", Space.DST)
    objects: list[object] = []
    text = show(Program((x,), (Equation(Lax(mine, ()), (x,), (y,)),), (y,)), objects=objects)
    assert "  a: f32[dst] = my_own&0(x)" in text
    assert objects == [mine]
