"""Each primitive of the CPU kernels against JAX, scalar by scalar on the edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from llvmlite import ir

from gnnjit.ir.space import Space
from gnnjit.lower.cpu import kernel, transcendentals
from gnnjit.lower.cpu.simd import Codegen

from .test_kernel import F32, Structure, trace

EDGE = Space.EDGE
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e-7,
    -1e-7,
    1e-3,
    88.0,
    89.5,
    -87.0,
    -110.0,
    1e30,
    -1e30,
    3.0,
    7.5,
    -9.0,
    1e-30,
]
unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def per_edge(fn, *arrays):
    """`fn` on every row, by a kernel and by JAX."""
    n = len(arrays[0])
    body = trace(fn, *[(EDGE, a.shape[1:], a.dtype) for a in arrays])
    rows = jnp.asarray([0, n], jnp.int32)
    ids = jnp.arange(n, dtype=jnp.int32)
    structure = Structure(rows, jnp.zeros(n, jnp.int32), ids)
    reductions = (None,) * len(body.outputs)
    assert kernel.reasons(body, reductions, Space.DST) == []
    call = jax.jit(lambda *xs: kernel.call(body, reductions, Space.DST, structure, 1, n, xs))
    return call(*arrays), jax.tree.leaves(jax.vmap(fn)(*arrays))


def check(fn, *arrays, ulp=4):
    got, want = per_edge(fn, *map(jnp.asarray, arrays))
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        g, w = np.asarray(g), np.asarray(w)
        if g.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
        else:
            eps, tiny = float(jnp.finfo(g.dtype).eps), float(jnp.finfo(g.dtype).tiny)
            g, w = g.astype(np.float64), w.astype(np.float64)
            np.testing.assert_allclose(g, w, rtol=ulp * eps, atol=4 * tiny)


NEWER = {
    "log2": lambda x: lax.log2(jnp.abs(x)),
    "one_minus_square": lambda x: lax.one_minus_square(x),
    "polynomial": lambda x: lax.polynomial(jnp.abs(x), (1.0, 2.0, 0.5)),
    "tile": lambda x: lax.tile(x, (3,)),
    "population_count": lambda x: lax.population_count(x.astype(np.int32)),
    "mulhi": lambda x: lax.mulhi((x * 1e9).astype(np.int32), x.astype(np.int32) - 77777),
}


@pytest.mark.parametrize("name", NEWER)
def test_primitives_of_newer_releases(name):
    if not hasattr(lax, name):
        pytest.skip(f"this JAX has no lax.{name}")
    check(NEWER[name], floats(30, 19, special=False), ulp=16)


def floats(*shape, dtype=F32, special=True, scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    out = rng.standard_normal(shape) * scale
    if special:
        out.flat[: len(SPECIAL)] = SPECIAL
        out.flat[-len(SPECIAL) :] = SPECIAL[::-1]
    return out.astype(dtype)


UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "logistic",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "erf",
    "floor",
    "ceil",
    "round",
    "neg",
    "abs",
    "sign",
    "is_finite",
    "square",
    "tan",
    "atan",
    "asinh",
    "cbrt",
    "erfc",
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    with jax.enable_x64(dtype == np.float64):
        x = floats(40, 19, dtype=dtype)
        if name in ("sin", "cos", "tan"):
            x = x[np.abs(x).max(axis=1) < 1e5]
        check(getattr(lax, name), x, ulp=128 if dtype == np.float64 else 16)


ACCURATE = [
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "tanh", "logistic", "erf", "erfc"),
    *("sin", "cos"),
]


@pytest.mark.parametrize("name", ACCURATE)
def test_float32_functions_are_accurate(name):
    """Against float64; measured in units in the last place of the float32 result."""
    if not hasattr(lax, name):
        pytest.skip(f"this JAX has no lax.{name}")
    with jax.enable_x64(True):
        size = np.float32(2.0) ** np.linspace(-40, 6.4, 20_000, dtype=np.float32)
        x = np.concatenate([-size, size]).reshape(-1, 16)
        if name in ("log", "log2"):
            x = np.abs(x) ** 2
        if name == "log1p":
            x = np.where(x < -1, -x, x)
        (got,), _ = per_edge(getattr(lax, name), jnp.asarray(x, jnp.float32))
        want = np.asarray(getattr(lax, name)(jnp.asarray(x, jnp.float64)))
        usual = (np.abs(want) > 1.2e-38) & (np.abs(want) < 3.4e38)
        ulps = np.abs(np.asarray(got, np.float64) - want) / np.spacing(np.abs(want).astype(F32))
        assert ulps[usual].max() <= 4.0
        huge = np.abs(want) > 3.5e38
        assert np.isinf(np.asarray(got)[huge]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5])
def test_powers(exponent, dtype):
    with jax.enable_x64(dtype == np.float64):
        check(lambda x: lax.pow(x, dtype(exponent)), floats(30, 19, dtype=dtype))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_angles_are_exact_and_change_no_other(name):
    x = np.linspace(-9e4, 9e4, 160, dtype=np.float32).reshape(10, 16)
    (small,), _ = per_edge(getattr(lax, name), jnp.asarray(x))
    large = x.copy()
    large[::2, 5] = [1.1e5, -1e7, 3e20, -3.4e38, np.inf]
    (got,), _ = per_edge(getattr(lax, name), jnp.asarray(large))
    with np.errstate(invalid="ignore"):
        want = getattr(np, name)(large[:, 5].astype(np.float64))
    np.testing.assert_allclose(got[:, 5], want, rtol=3e-7)
    others = np.arange(16) != 5
    np.testing.assert_array_equal(got[:, others], small[:, others])


@pytest.mark.parametrize("name", ["sin", "cos", "erfc"])
def test_libm_computes_them_where_products_are_not_fused(monkeypatch, name):
    monkeypatch.setattr(transcendentals, "is_x86", lambda: True)
    monkeypatch.setattr(transcendentals, "features", frozenset)
    module, chunk = ir.Module(), ir.VectorType(ir.FloatType(), 8)
    function = ir.Function(module, ir.FunctionType(chunk, [chunk]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    code = transcendentals.Elementary(Codegen(module, builder, 8))
    builder.ret(getattr(code, name)(*function.args))
    assert str(module).count(f'call float @"{name}f"') == 8


@pytest.mark.parametrize("fn", [lax.sin, lax.log1p, lax.expm1, lax.tanh])
def test_zeros_keep_their_signs(fn):
    x = jnp.asarray(np.resize([0.0, -0.0], (4, 16)), jnp.float32)
    (got,), _ = per_edge(fn, x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


BINARY = ["add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "rem"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32, np.int8, np.int64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        if np.dtype(dtype).kind == "f":
            x, y = (floats(30, 17, dtype=dtype, seed=s) for s in (0, 1))
            y = np.roll(y, 5)
        else:
            info = np.iinfo(dtype)
            x, y = rng.integers(info.min, info.max, (2, 30, 17), dtype=dtype)
            y[::2] = rng.integers(max(info.min, -3), 4, y[::2].shape)
            x[::3] = info.min
        check(getattr(lax, name), x, y)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.bool_])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name, dtype):
    x, y = np.random.default_rng(0).integers(-(2**31), 2**31 - 1, (2, 20, 5)).astype(dtype)
    check(getattr(lax, name), x, y)
    check(lax.bitwise_not, x)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts(name, dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31 - 1, (30, 5)).astype(dtype)
    check(getattr(lax, name), x, rng.integers(0, 40, (30, 5)).astype(dtype))


KINDS = [
    np.float32,
    np.float64,
    np.int32,
    np.uint8,
    np.int64,
    np.uint32,
    np.bool_,
    jnp.bfloat16,
    np.float16,
]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_conversions(source, target):
    with jax.enable_x64(True):
        x = np.array([0, 1, 2, 100, 3, 7, 120, 5] * 3).reshape(4, 6).astype(source)
        if np.dtype(source).kind == "f":
            x = x + np.array(0.75, source)
        check(lambda v: lax.convert_element_type(v, target), x)


def test_float_to_integer_saturates():
    x = floats(4, 30)
    check(lambda v: lax.convert_element_type(v, np.int32), x)


def test_bitcast_and_hash():
    """The counter-based hash of dropout: multiplies, shifts, a float in [0, 1)."""

    def draw(i):
        h = i.astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
        h = (h ^ (h >> 15)) * jnp.uint32(0x85EBCA77)
        h = h ^ (h >> 13)
        bits = (h >> 9) | jnp.uint32(0x3F800000)
        return lax.bitcast_convert_type(bits, jnp.float32) - 1.0

    check(draw, np.arange(400, dtype=np.int32).reshape(20, 20))


X = floats(12, 4, 6, special=False)
STRUCTURE = {
    "transpose": lambda x: x.T,
    "slice": lambda x: x[1:3, ::2],
    "reverse": lambda x: x[::-1, ::-1],
    "concatenate": lambda x: jnp.concatenate([x, x[:, :3] * 2], 1),
    "concatenate 0": lambda x: jnp.concatenate([x[1:], x[:1]], 0),
    "pad": lambda x: jnp.pad(x, ((1, 0), (2, 3)), constant_values=7.0),
    "reshape": lambda x: x.reshape(2, 12)[:, None],
    "squeeze": lambda x: x[:1].squeeze(0),
    "broadcast": lambda x: jnp.broadcast_to(x[:, :, None], (4, 6, 5)),
    "split": lambda x: jnp.split(x, [1, 4], axis=1),
    "iota": lambda x: x + jnp.arange(6.0) * 2 + lax.broadcasted_iota(F32, (4, 6), 0),
    "stack": lambda x: (jnp.stack([x.sum(0), x.max(0)]), jnp.stack([x, x + 1], axis=1)),
    "unstack": lambda x: jnp.unstack(x, axis=1),
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(1)),
    "max": lambda x: (x.max(), x.max(0), x.min(1)),
    "prod": lambda x: (x.prod(0), (x > 0).all(1), (x > 0).any(0)),
    "mean": lambda x: x.mean(-1) + x.var(-1),
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "dot": lambda x: x[0] @ x[1],
    "matvec": lambda x: x @ x[0],
    "matmul": lambda x: x @ x.T,
    "matmul wide": lambda x: x.T @ x,
    "batched": lambda x: jnp.einsum("hf,hf->h", x, x + 1),
    "outer": lambda x: jnp.einsum("i,j->ij", x[0], x[1]),
    "cross": lambda x: jnp.cross(x[0, :3], x[1, :3]),
    "select": lambda x: jnp.where(x > 0, x, -2 * x),
    "select_n": lambda x: lax.select_n((x > 0).astype(np.int32) + (x > 1), x, x * 2, x * 3),
    "clamp": lambda x: jnp.clip(x, -0.5, 0.7),
    "powers": lambda x: (x**2, x**3, x**-2, x**0, jnp.abs(x) ** 1.7),
    "arctan2": lambda x: jnp.arctan2(x, x[::-1]),
    "gelu": lambda x: (jax.nn.gelu(x, approximate=False), jax.nn.gelu(x)),
    "silu": lambda x: (jax.nn.silu(x), jax.nn.softplus(x), jax.nn.elu(x), jax.nn.selu(x)),
    "norm": lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=0),
    "gradient": lambda x: jax.grad(lambda z: (jnp.tanh(z) @ z.T).max())(x),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure(name):
    got, want = per_edge(STRUCTURE[name], jnp.asarray(X))
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=3e-5, atol=3e-6)
