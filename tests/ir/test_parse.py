"""`parse(show(p)) == p`, for written and for generated programs; errors name the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.ir.interpret import interpret
from gnnjit.ir.parse import ParseError, parse
from gnnjit.ir.program import Aggregate, Equation, Lax, Literal, Location, Program, Reduce, Store
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather

from .layers import GRAPH, LAYERS, gcn, operands, trace, value


def back(program: Program) -> Program:
    objects: list[Any] = []
    text = show(program, objects=objects)
    again = parse(text, objects)
    assert show(again, objects=list(objects)) == text
    return again


def numbers(program: Program, seed: int = 0) -> list[np.ndarray]:
    return [np.asarray(x) for x in interpret(program, GRAPH, operands(program, GRAPH, seed))]


@pytest.mark.parametrize("name", LAYERS)
def test_round_trip(name: str) -> None:
    program = LAYERS[name]()
    again = back(program)
    assert again == program
    for a, b in zip(numbers(program), numbers(again), strict=True):
        np.testing.assert_array_equal(a, b)


# Each makes a value of shape [3], f32, from two such.
UNARY: list[Callable[[Any], Any]] = [
    jnp.tanh,
    jax.nn.relu,
    jnp.sort,
    jnp.cumsum,
    lambda x: -x,
    lambda x: x[::-1],
    lambda x: x[jnp.array([2, 0, 0])],
    lambda x: x * 0.2 - 1,
    lambda x: x**3,
    lambda x: jnp.sum(x) - x,
    lambda x: x.astype(jnp.float16).astype(jnp.float32) * jnp.float16(0.1),
    lambda x: x.astype(jnp.int32) // 2 + 0.0,
    lambda x: (x.astype(jnp.uint32) ^ np.uint32(7)).astype(jnp.float32),
    lambda x: jax.lax.top_k(x, 3)[0] + jax.lax.top_k(x, 3)[1],
    lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x),
    lambda x: jnp.broadcast_to(jnp.argmax(x), (3,)) + jnp.arange(3.0),
    lambda x: x.reshape(1, 3).T[:, 0],
    lambda x: jnp.where(jnp.isnan(x), jnp.inf, x),
    lambda x: x.at[1].add(2.0),
    lambda x: jax.lax.cond(x[0] > 0, lambda y: y + 1, lambda y: y, x),
    gnnjit.sum,
    gnnjit.max,
    gnnjit.min,
    gnnjit.mean,
    gnnjit.softmax,
    lambda x: x * gnnjit.degree(),
    lambda x: gnnjit.random_uniform(jnp.array([3, 4], jnp.uint32), x) - x,
]
BINARY: list[Callable[[Any, Any], Any]] = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.minimum,
    lambda x, y: jnp.where(x <= y, x, 2.5),
    lambda x, y: (x == y) + y,
    lambda x, y: x / (jnp.abs(y) + 1),
    lambda x, y: jnp.concatenate([x, y])[1:4],
    lambda x, y: jnp.vdot(x, y) * x,
    lambda x, y: jnp.outer(x, y)[0],
]

step = st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))


@st.composite
def programs(draw: Any) -> Program:
    """Programs of up to six steps on a growing pool of values."""
    steps = draw(st.lists(step, min_size=1, max_size=6))
    edge_values = draw(st.booleans())

    def layer(src: Any, dst: Any, edge: Any, w: Any) -> Any:
        pool = [src, dst, edge]
        operations = [*UNARY, *BINARY, lambda x: x @ w]
        for which, i, j in steps:
            f = operations[which % len(operations)]
            x, y = pool[i % len(pool)], pool[j % len(pool)]
            pool.append(f(x, y) if f in BINARY else f(x))
        return pool[-2:]

    inputs = [value("e.src", Space.SRC, 3), value("v", Space.DST, 3),
              value("e.data['x']", Space.EDGE, 3), value("p.0", Space.SHARED, 3, 3)]  # fmt: skip
    return trace(layer, inputs, edge_values)


@settings(max_examples=60, deadline=None)
@given(programs(), st.booleans())
def test_round_trip_of_generated_programs(program: Program, fused: bool) -> None:
    if fused:
        program = FuseScatterApplyGather()(program)
    verify(program)
    again = back(program)
    assert again == program
    verify(again)


@settings(max_examples=12, deadline=None)
@given(programs())
def test_generated_programs_give_the_same_numbers_after_a_round_trip(program: Program) -> None:
    for a, b in zip(numbers(program, 1), numbers(back(program), 1), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "lit",
    [
        Literal(np.float32(-np.nan), np.dtype("float32")),
        Literal(np.float32(1e-30), np.dtype("float32")),
        Literal(np.float64(0.2), np.dtype("float32")),
        Literal(np.int64(-3), np.dtype("float32")),
        Literal(np.uint64(2**63 + 1), np.dtype("uint64")),
        Literal(np.bool_(False), np.dtype("bool")),
        Literal(np.complex64(1 - 2j), np.dtype("complex64")),
        Literal(np.complex128(1 - 2j), np.dtype("complex64")),
        Literal(np.float16(0.1), np.dtype("float16")),
        Literal(jnp.bfloat16(0.1), jnp.dtype("bfloat16")),
        Literal(np.float32(0.1), jnp.dtype("bfloat16")),
        Literal(True, np.dtype("bool")),
        Literal(-0.0, np.dtype("float32")),
    ],
)
def test_literals_come_back_bit_by_bit(lit: Literal) -> None:
    program = Program((), (), (lit,))
    assert back(program) == program


@pytest.mark.parametrize(
    "param",
    [
        None,
        True,
        -3,
        0.1,
        float("-inf"),
        'a "word", # no comment\n',
        (),
        (1,),
        ((1, 2), (None, "x")),
        np.dtype("float32"),
        jnp.dtype("bfloat16"),
        np.dtype("bool"),
        jax.lax.GatherScatterMode.CLIP,
        jax.lax.Precision.HIGH,
        jax.lax.GatherDimensionNumbers((0,), (), (1,)),
        jax.lax.DotAlgorithmPreset.F16_F16_F32,
        [1, 2],
        np.float32(0.1),
        max,
        (max, (1, min)),
    ],
)
def test_parameters_come_back(param: Any) -> None:
    x, y = value("x", Space.DST), value("", Space.DST)
    op = Lax(jax.lax.rev_p, (("dimensions", param),))
    program = Program((x,), (Equation(op, (x,), (y,)),), (y,))
    again = back(program)
    assert again == program
    assert type(again.equations[0].op["dimensions"]) is type(param)  # type: ignore[index]


def test_a_parameter_that_a_program_lacks_stays_away() -> None:
    x, y = value("x", Space.DST), value("", Space.DST)
    program = Program((x,), (Equation(Lax(jax.lax.exp_p, ()), (x,), (y,)),), (y,))
    assert "exp(x, accuracy=absent)" in show(program)
    assert back(program) == program


def test_keys_are_inputs_of_an_extended_dtype() -> None:
    dtype = jax.random.key(0).dtype
    x = value("x", Space.SHARED, 2)
    x = type(x)((2,), dtype, Space.SHARED, "key")
    again = back(Program((x,), (), (x,)))
    assert again.inputs[0].dtype == dtype


def test_constants_and_repeated_operands_of_a_traversal() -> None:
    text = (
        "layer f(x: f32[src])\n"
        "  for each edge (u -> v) of x[u], a = x[u], b = 2.0\n"
        "    c: f32[edge] = a[u] * b\n"
        "    d: f32[dst] = sum over (u -> v) of c\n"
        "    g: f32[dst] = sum over (u -> v) of 1.0\n"
        "  return d, g, x, 3:i8"
    )
    program = parse(text)
    verify(program)
    assert len(program.equations[0].inputs) == 3
    assert show(program) == text


def test_sums_of_exponentials() -> None:
    text = (
        "layer f(s: f32[src], x: f32[src, 2])\n"
        "  a: f32[dst, 2] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]\n"
        "  for each edge (u -> v) of s[u], x[u]\n"
        "    b: f32[dst] = sum over (u -> v) of exp(s[u] - max s[u]) * 1.0\n"
        "    c: f32[src] = max over (v <- u) of s[u]\n"
        "    d: f32[dst] = max over (u -> v) of s[u]\n"
        "  return a, b, c, d"
    )
    program = parse(text)
    verify(program)
    flat, fused = (e.op for e in program.equations)
    assert flat == Reduce("exp_sum", Space.DST)
    assert isinstance(fused, Aggregate)
    assert fused.reductions[0] == Reduce("exp_sum", Space.DST, score=2)
    assert show(program) == text


def test_comments_give_locations_back() -> None:
    again = parse(
        "# a layer\n\nlayer f()  # model.py:7\n  a: i32[dst] = index of v  # m.py:12\n  return a"
    )
    assert again.equations[0].location == Location("m.py", 12)
    locations = [e.location.line for e in parse(show(gcn())).equations if e.location]
    assert locations == [e.location.line for e in gcn().equations if e.location]


HEAD = "layer f(x: f32[src, 3], w: f32[3])\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no text; a program starts with `layer name(inputs)`"),
        ("program f()", "line 1: expected 'layer', got 'program'"),
        ("layer f(x: f32[src], x: f32[])", "line 1: x is already defined"),
        ("layer f(x: float[src])", "line 1: 'float' is not a type"),
        ("layer f(x: f32[nodes])", "line 1: expected a whole number, got 'nodes'"),
        ("layer f()", "line 1: the program ends without `return`"),
        (HEAD + "  return y", "line 2: y is not defined"),
        (HEAD + "  return x\n  return x", "line 3: text after `return`"),
        (HEAD + "  a: f32[src, 3] = x ? w", "line 2: cannot read '?'"),
        (HEAD + "  a: f32[src, 3] = x : w", "line 2: expected one of + - * / @ == != < <= > >="),
        (HEAD + "\n  a: f32[src, 3] = x + w w", "line 3: expected 'end of line', got 'w'"),
        (HEAD + "  a: f32[edge, 3] = x[v] * w", "line 2: x lies in src; v cannot read it"),
        (HEAD + "  a: f32[src, 3] = frob(x)", "line 2: 'frob' is not a primitive of JAX"),
        (HEAD + "  a: f32[src, 3] = rev(x, dimensions=&1)", "line 2: &1 is not among the 0"),
        (HEAD + "  a: f32[src, 3] = rev(dimensions=(0,), x)", "line 2: an operand stands after"),
        (HEAD + "  a: f32[dst, 3] = sum over x", "line 2: expected (u -> v), (v <- u) or"),
        (HEAD + "  a: i32[dst] = degree of u", "line 2: degree in dst is not of 'u'"),
        (HEAD + "  for each edge (u -> v) of x[u]\n    a: f32[dst, 3] = sum over (u -> v) of w",
         "line 3: w is not defined"),
        (HEAD + "  a: f32[dst, 3] = sum over (u -> v) of exp(x[u] - max w) * x[u]",
         "line 2: the maximum should be that of the score"),
        (HEAD + "  for each edge (u -> v) of x[u]\n"
         "    a: f32[dst, 3] = sum over (u -> v) of exp(x[u] - max x[u]) * x[u]\n  return a",
         "line 2: the maximum of a score is not among the outputs of its traversal"),
        (HEAD + "  for each edge (u -> v) of 2.0", "line 2: expected a name, got '2.0'"),
    ],
)  # fmt: skip
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert message in str(error.value)


def test_a_stored_value() -> None:
    text = """\
layer f(x: f32[edge, 2], store: f32[edge, 2])
  a: f32[edge, 2] = x + store
  b: f32[edge, 2] = store(a)
  return b"""
    assert show(parse(text)) == text
    assert isinstance(parse(text).equations[1].op, Store)
