"""Generated CPU kernels against the interpreter, which gathers and reduces edge by edge."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Aggregate, Equation, Lax, Literal, Program, Reduce, Value
from gnnjit.ir.space import Space, join
from gnnjit.lower.cpu import ffi_abi, kernel
from gnnjit.lower.cpu.spec import INT32, PER_EDGE, Spec

SRC, DST, EDGE, SHARED = Space.SRC, Space.DST, Space.EDGE, Space.SHARED
INLINE = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "closed_call")
F32 = np.float32
SUM, MAX, MIN = (Reduce(kind, DST) for kind in ("sum", "max", "min"))

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def trace(fn, *inputs) -> Program:
    """A body from a per-element function; `inputs` are (space, shape, dtype)."""
    values = [Value(tuple(shape), np.dtype(dtype), space) for space, shape, dtype in inputs]
    closed = jax.make_jaxpr(fn)(*[v.aval for v in values])
    equations: list[Equation] = []

    def walk(jaxpr, consts, args):
        env = dict(zip(jaxpr.invars, args, strict=True))
        env |= {
            v: Literal(np.asarray(c), np.dtype(c.dtype))
            for v, c in zip(jaxpr.constvars, consts, strict=True)
        }

        def read(a):
            return Literal(a.val, np.dtype(a.aval.dtype)) if hasattr(a, "val") else env[a]

        for eqn in jaxpr.eqns:
            ins = [read(a) for a in eqn.invars]
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            if eqn.primitive.name in INLINE:
                outs = walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), ins)
            else:
                space = join(*(a.space for a in ins))
                outs = [
                    Value(tuple(o.aval.shape), np.dtype(o.aval.dtype), space) for o in eqn.outvars
                ]
                op = Lax(eqn.primitive, tuple(eqn.params.items()))
                equations.append(Equation(op, tuple(ins), tuple(outs)))
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(o) for o in jaxpr.outvars]

    outs = walk(getattr(closed, "jaxpr", closed), closed.consts, values)
    return Program(tuple(values), tuple(equations), tuple(outs))


@dataclasses.dataclass
class Structure:
    indptr: jax.Array
    neighbor: jax.Array
    edge: jax.Array


@dataclasses.dataclass
class Case:
    """A graph with `real` edges; those after are padding (endpoints 0)."""

    src: np.ndarray
    dst: np.ndarray
    num_src: int
    num_dst: int
    real: int

    def structure(self, rows: Space, index=np.int32) -> Structure:
        row, other = (self.dst, self.src) if rows is DST else (self.src, self.dst)
        (n,) = self.size(rows)
        order = np.argsort(row[: self.real], kind="stable")
        padding = np.arange(self.real, len(row))
        counts = np.bincount(row[: self.real], minlength=n)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        order = np.concatenate([order, padding])
        arrays = (indptr, other[order], order)
        return Structure(*(jnp.asarray(a.astype(index)) for a in arrays))

    def incidence(self) -> Incidence:
        mask = jnp.arange(len(self.src)) < self.real
        return Incidence(
            jnp.asarray(self.src), jnp.asarray(self.dst), self.num_src, self.num_dst, mask
        )

    def size(self, space: Space) -> tuple[int, ...]:
        sizes = {SRC: (self.num_src,), DST: (self.num_dst,), EDGE: (len(self.src),), SHARED: ()}
        return sizes[space]


def graph(edges=300, num_src=40, num_dst=50, padding=0, hub=True, seed=0) -> Case:
    """Random edges with duplicates; half of them at one hub per side; some isolated rows."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_src, edges), rng.integers(0, num_dst, edges)
    src, dst = np.minimum(src, num_src - 3), np.maximum(dst, 2)
    if hub and edges:
        dst[rng.permutation(edges)[: edges // 2]] = num_dst // 3
        src[rng.permutation(edges)[: edges // 2]] = num_src // 3
    zeros = np.zeros(padding, np.int64)
    src, dst = np.concatenate([src, zeros]), np.concatenate([dst, zeros])
    return Case(src.astype(np.int32), dst.astype(np.int32), num_src, num_dst, edges)


def data(case: Case, body: Program, seed=0, draw=None) -> list[jax.Array]:
    rng = np.random.default_rng(seed)
    out = []
    for v in body.inputs:
        shape = (*case.size(v.space), *v.shape)
        if draw is not None:
            array = draw(rng, shape)
        elif v.dtype.kind in "iu":
            array = rng.integers(0 if v.dtype.kind == "u" else -50, 50, shape)
        elif v.dtype == np.bool_:
            array = rng.random(shape) < 0.5
        else:
            array = rng.standard_normal(shape)
        out.append(jnp.asarray(array, dtype=v.dtype))
    return out


def compute(body, reductions, case, args, rows=DST, index=np.int32, **config):
    config = {"piece": 64, **config}
    settings = kernel.default_config(**config)
    assert kernel.reasons(body, reductions, rows, lambda: settings) == []
    n = case.size(rows)[0]

    @jax.jit
    def call(indptr, neighbor, edge, *operands):
        structure = Structure(indptr, neighbor, edge)
        return kernel.call(body, reductions, rows, structure, n, len(case.src), operands, settings)

    s = case.structure(rows, index)
    return call(s.indptr, s.neighbor, s.edge, *args)


def oracle(body, reductions, case, args):
    spaces = [EDGE if r is None else r.into for r in reductions]
    outs = tuple(Value(o.shape, o.dtype, s) for o, s in zip(body.outputs, spaces, strict=True))
    equation = Equation(Aggregate(body, reductions), body.inputs, outs)
    return interpret(Program(body.inputs, (equation,), outs), case.incidence(), args)


def check(body, reductions, case=None, args=None, rows=DST, tol=2e-5, index=np.int32, **config):
    case = graph() if case is None else case
    args = data(case, body) if args is None else args
    got = compute(body, reductions, case, args, rows, index, **config)
    want = oracle(body, reductions, case, args)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        g, w = np.asarray(g), np.asarray(w)
        if g.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
        else:
            g, w = g.astype(np.float64), w.astype(np.float64)
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol)


# -- graphs -------------------------------------------------------------------------------

GRAPHS = {
    "hub": graph(),
    "even": graph(hub=False),
    "padded": graph(padding=37),
    "one edge": graph(edges=1),
    "no edges": graph(edges=0),
    "only padding": graph(edges=0, padding=9),
    "long": graph(edges=5000, num_dst=700, padding=100),
    "dense": graph(edges=4000, num_src=3, num_dst=3),
}


def gated(a, b, x):
    return jax.nn.sigmoid(a + b) * x


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("piece", [16, 100, 8192])
def test_gated_sum_on_graphs(name, rows, piece):
    body = trace(gated, (DST, (20,), F32), (SRC, (20,), F32), (EDGE, (20,), F32))
    check(body, (Reduce("sum", rows),), GRAPHS[name], rows=rows, piece=piece)


@pytest.mark.parametrize("name", GRAPHS)
def test_several_outputs(name):
    """Reduced, kept on edges (also a value that all edges share) and reduced over all edges."""

    def fn(x, y, w, p):
        m = x * w + y
        return m, m.sum(), m, y, (m * p).sum(), m.max(), 1.0

    body = trace(fn, (SRC, (5,), F32), (DST, (5,), F32), (EDGE, (), F32), (SHARED, (5,), F32))
    reductions = (SUM, MAX, None, None, Reduce("sum", SHARED), Reduce("max", SHARED), SUM)
    check(body, reductions, GRAPHS[name], tol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64, np.float64, jnp.float16])
@pytest.mark.parametrize("into", [DST, SHARED])
def test_reductions(kind, dtype, into):
    with jax.enable_x64(True):
        case = graph(edges=90)
        body = trace(lambda x: x, (SRC, (7,), dtype))
        check(body, (Reduce(kind, into),), case, tol=2e-2 if dtype == jnp.float16 else 1e-5)


@pytest.mark.parametrize("features", [1, 3, 16, 17, 64, 100, 600, 1000])
def test_feature_counts(features):
    body = trace(gated, (DST, (features,), F32), (SRC, (features,), F32), (SRC, (features,), F32))
    check(body, (SUM,))


@pytest.mark.parametrize("shape", [(2, 700), (3, 530), (1200,)])
def test_wide_values_in_blocks(shape):
    def fn(a, x, w):
        s = jax.nn.sigmoid(a.sum() + w)
        return s * jnp.broadcast_to(a[..., None], shape) * x, s, x

    body = trace(fn, (DST, shape[:-1], F32), (SRC, shape, F32), (EDGE, (), F32))
    check(body, (SUM, MAX, None), graph(padding=5))


def test_wide_dot_product_is_unrolled():
    body = trace(lambda x, y: (x @ y) * x, (SRC, (900,), F32), (DST, (900,), F32))
    check(body, (SUM,), tol=1e-3)


def test_index_arrays_of_64_bits():
    with jax.enable_x64(True):
        body = trace(lambda x, w: x * w, (SRC, (9,), F32), (EDGE, (9,), F32))
        check(body, (SUM,), graph(padding=4), index=np.int64)


def test_attention_forward_and_backward():
    def forward(a, b, m, z):
        s = jnp.exp(jax.nn.leaky_relu(a + b, 0.2) - m)
        return s, s[:, None] * z

    def backward(a, b, z, g):
        s = jnp.exp(jax.nn.leaky_relu(a + b, 0.2))
        return s * (z * g).sum(-1), s[:, None] * g, jnp.einsum("hf,hf->h", z, g)

    heads, wide = ((SRC, (4,), F32), (DST, (4,), F32)), (4, 16)
    check(trace(forward, *heads, (DST, (4,), F32), (SRC, wide, F32)), (SUM, SUM), tol=1e-4)
    check(trace(backward, *heads, (SRC, wide, F32), (DST, wide, F32)), (SUM, SUM, None), tol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_do_not_depend_on_threads(threads):
    case = graph(edges=60_000, num_src=500, num_dst=900)

    def fn(x, y):
        return jnp.tanh(x + y), x * y, jax.lax.dot_general(x, y, (((), ()), ((), ())))

    body = trace(fn, (SRC, (24,), F32), (DST, (24,), F32))
    reductions = (SUM, OVER_ALL, OVER_ALL)
    args = data(case, body)
    first = compute(body, reductions, case, args, piece=512, threads=1)
    for _ in range(3):
        again = compute(body, reductions, case, args, piece=512, threads=threads)
        for a, b in zip(first, again, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# -- sums of outer products ---------------------------------------------------------------


def weight_gradient(left: int, right: int, dtype: np.dtype = F32, swapped: bool = False) -> Program:
    """On each edge `(x w) y^T` and, of the same operands, another sum and a message."""

    def fn(x, y, w):
        outer = jax.lax.dot_general(x * w, y, (((), ()), ((), ())))
        return outer.T if swapped else outer, x * w, y * x.sum()

    return trace(fn, (SRC, (left,), dtype), (DST, (right,), dtype), (EDGE, (), dtype))


OVER_ALL = Reduce("sum", SHARED)
OUTER_SUMS = (OVER_ALL, SUM, OVER_ALL)


def test_where_rows_are_asked_for_ahead():
    """Rows of two lines or more, and the sums that they go on from, of parts of a graph."""
    body = trace(lambda x, y, z: x * y + z, (SRC, (32,), F32), (DST, (32,), F32), (DST, (), F32))

    def asked(ahead, **options):
        settings = kernel.default_config(rows_ahead=ahead)
        code = kernel._code(Spec(body, (SUM,), DST, INT32, settings, **options))
        assert isinstance(code, str)
        return sum("call void" in line and "prefetch" in line for line in code.splitlines())

    of_edges = asked(0, partial=True)
    assert of_edges == 2
    assert asked(3) == of_edges
    assert asked(3, partial=True) == of_edges + 2
    assert asked(3, partial=True, starts=(0,)) == of_edges + 4


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("sizes", [(64, 64), (20, 24), (17, 33), (128, 64), (3, 100), (100, 3)])
def test_sums_of_outer_products(sizes, swapped):
    """Many edges at a time fill the room more than once, and leave a rest."""
    body = weight_gradient(*sizes, swapped=swapped)
    spec = Spec(body, OUTER_SUMS, DST, INT32, kernel.default_config())
    assert list(spec.outers) == [0]
    assert not any(e.op.name in ("dot_general", "transpose") for e in spec.equations(PER_EDGE))
    check(body, OUTER_SUMS, GRAPHS["long"], tol=1e-3)


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_of_outer_products_on_graphs(name, rows):
    reductions = (OVER_ALL, Reduce("sum", rows), OVER_ALL)
    check(weight_gradient(20, 24), reductions, GRAPHS[name], rows=rows, tol=1e-3)


def of_rows(rows: Space) -> tuple[Reduce | None, ...]:
    """An outer product and a message summed by row, and a number of each edge."""
    return Reduce("sum", rows), None, Reduce("sum", rows)


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("sizes", [(20, 24), (33, 32), (3, 100)])
@pytest.mark.parametrize("name", GRAPHS)
def test_outer_products_are_summed_by_row(name, sizes, rows):
    """Edge matrices whose products are summed, as in NNConv; hubs have parts in several tasks."""
    body = weight_gradient(*sizes)
    spec = Spec(body, of_rows(rows), rows, INT32, kernel.default_config())
    assert list(spec.outers) == [0]
    check(body, of_rows(rows), GRAPHS[name], rows=rows, tol=1e-3)


def test_outer_products_are_summed_by_row_beside_a_tile():
    """A product with a matrix takes edges in tiles; one factor is what it gives."""

    def fn(x, y, w):
        hidden = jnp.tanh(x @ w)
        outer = jax.lax.dot_general(hidden, y, (((), ()), ((), ())))
        return outer, hidden, jax.lax.dot_general(y, x, (((), ()), ((), ())))

    body = trace(fn, (SRC, (40,), F32), (EDGE, (24,), F32), (SHARED, (40, 48), F32))
    reductions = (SUM, SUM, SUM)
    spec = Spec(body, reductions, DST, INT32, kernel.default_config())
    assert spec.tiling is not None
    assert list(spec.outers) == [0, 2]
    for name in GRAPHS:
        check(body, reductions, GRAPHS[name], tol=1e-3)
    case, bits = graph(edges=3000), []
    args = data(case, body)
    for threads in (1, 2, 3):
        out = compute(body, reductions, case, args, threads=threads)
        bits.append([np.asarray(x).tobytes() for x in out])
    assert bits[0] == bits[1] == bits[2]


def test_outer_products_of_rows_are_left_to_registers_beside_those_of_all_edges():
    def fn(x, y):
        outer = jax.lax.dot_general(x, y, (((), ()), ((), ())))
        return outer, outer * 2

    body = trace(fn, (SRC, (20,), F32), (DST, (24,), F32))
    body = dataclasses.replace(body, outputs=(body.outputs[0], body.outputs[0]))
    spec = Spec(body, (SUM, OVER_ALL), DST, INT32, kernel.default_config())
    assert list(spec.outers) == [1]
    check(body, (SUM, OVER_ALL), tol=1e-4)


def test_outer_products_of_rows_that_go_on_from_others_are_left_to_registers():
    body = weight_gradient(20, 24)
    settings = kernel.default_config()
    assert not Spec(body, of_rows(DST), DST, INT32, settings, partial=True, starts=(0,)).outers
    assert list(Spec(body, of_rows(DST), DST, INT32, settings, partial=True).outers) == [0]


def test_sums_of_outer_products_in_double_precision():
    with jax.enable_x64(True):
        check(weight_gradient(24, 40, np.float64), OUTER_SUMS, tol=1e-11)


def test_an_outer_product_that_is_an_output_too():
    def fn(x, y):
        outer = jax.lax.dot_general(x, y, (((), ()), ((), ())))
        return outer, outer, outer.max()

    body = trace(fn, (SRC, (20,), F32), (DST, (24,), F32))
    check(body, (OVER_ALL, SUM, None), graph(padding=5), tol=1e-4)


def test_sums_of_two_outer_products():
    """They share the room; one factor is the row's, another what all edges share."""

    def fn(x, y, p):
        outer = lambda a, b: jax.lax.dot_general(a, b, (((), ()), ((), ())))  # noqa: E731
        return outer(x, y), outer(y, p), outer(x, p), (x * p[:20]).sum()

    body = trace(fn, (SRC, (20,), F32), (DST, (24,), F32), (SHARED, (200,), F32))
    check(body, (OVER_ALL, OVER_ALL, OVER_ALL, SUM), tol=1e-4)


def test_small_and_huge_outer_products_are_left_alone():
    for sizes in ((2, 3), (4, 16), (1024, 520), (32, 16400)):
        body = weight_gradient(*sizes)
        assert not Spec(body, OUTER_SUMS, DST, INT32, kernel.default_config()).outers


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_outer_products_of_half_precision(dtype):
    """Exact products are summed in float32 and rounded in the end."""
    case = graph(edges=2000)
    body = weight_gradient(20, 24, dtype)
    args = [jnp.round(4 * a) / 4 for a in data(case, body)]
    got, *_ = compute(body, OUTER_SUMS, case, args)
    want, *_ = oracle(weight_gradient(20, 24), OUTER_SUMS, case, [a.astype(F32) for a in args])
    np.testing.assert_allclose(
        np.asarray(got, F32), np.asarray(want.astype(dtype), F32), rtol=2.0**-7
    )


def test_half_precision_accumulates_in_float32():
    case = graph(edges=2000, num_dst=5)
    for dtype in (jnp.bfloat16, jnp.float16):
        body = trace(lambda x: x, (SRC, (19,), dtype))
        args = data(case, body)
        (got,) = compute(body, (SUM,), case, args)
        wide = trace(lambda x: x, (SRC, (19,), F32))
        (want,) = oracle(wide, (SUM,), case, [args[0].astype(F32)])
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want.astype(dtype)))


def test_half_precision_ties_are_found():
    """The gradient of max compares a recomputed value with the stored, rounded maximum."""
    case = graph()
    for dtype in (jnp.bfloat16, jnp.float16):
        kinds = (SRC, (6,), dtype), (DST, (6,), dtype)
        args = data(case, trace(lambda x, y: x * y, *kinds))
        (top,) = compute(trace(lambda x, y: x * y, *kinds), (MAX,), case, args)
        tie = trace(lambda x, y, t: (x * y == t).astype(F32), *kinds, (DST, (6,), dtype))
        (ties,) = compute(tie, (SUM,), case, [*args, top])
        degree = np.bincount(case.dst, minlength=case.num_dst)
        assert (np.asarray(ties)[degree > 0] >= 1).all()


@pytest.mark.parametrize("reduce", [SUM, MAX, MIN])
def test_nan_and_infinity(reduce):
    def draw(rng, shape):
        special = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0] + [3.0] * 40)
        return rng.choice(special, shape)

    body = trace(lambda x: x, (SRC, (18,), F32))
    case = graph(edges=100, hub=False)
    check(body, (reduce,), case, data(case, body, draw=draw))


def test_padding_never_leaks():
    case = graph(padding=20)
    body = trace(lambda x, w: (x / w, x / w), (SRC, (3,), F32), (EDGE, (), F32))
    args = data(case, body)
    args[1] = args[1].at[case.real :].set(0.0)
    check(body, (SUM, None), case, args, tol=1e-4)


def test_concurrent_calls():
    """Two custom calls in one program, which XLA may run at once."""
    case = graph(edges=30_000, num_src=300, num_dst=400, hub=False)
    body = trace(gated, (DST, (16,), F32), (SRC, (16,), F32), (SRC, (16,), F32))
    kinds = [(v.space, v.shape, F32) for v in body.inputs]
    other = trace(lambda a, b, x: jnp.tanh(a) - b * x, *kinds)
    args = data(case, body)
    s = case.structure(DST)

    @jax.jit
    def both(*args):
        return [
            kernel.call(b, (SUM,), DST, s, case.num_dst, len(case.src), args)[0]
            for b in (body, other, body)
        ]

    for got, b in zip(both(*args), (body, other, body), strict=True):
        np.testing.assert_allclose(got, oracle(b, (SUM,), case, args)[0], rtol=1e-4, atol=1e-3)


# -- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "inputs", "reduce", "reason"),
    [
        (jnp.sort, [(SRC, (4,), F32)], SUM, "primitive sort"),
        (lambda x: x, [(SRC, (4,), np.complex64)], SUM, "complex64"),
        (lambda x: x, [(SRC, (4,), F32)], Reduce("sum", SRC), "into src"),
        (lambda x: x, [(SRC, (4,), np.bool_)], MAX, "max of bool"),
        (lambda x, w: w @ x, [(SRC, (128,), F32), (EDGE, (128, 128), F32)], SUM, "matmul"),
        (lambda x: x[::-1], [(SRC, (600_000,), F32)], SUM, "too large"),
    ],
)
def test_why_not(fn, inputs, reduce, reason):
    (found,) = kernel.reasons(trace(fn, *inputs), (reduce,), DST)
    assert reason in found


def test_unknown_header_is_refused():
    assert "XLA_FFI_Buffer" in ffi_abi.parse("struct XLA_FFI_Buffer { size_t struct_size; }")
    assert isinstance(ffi_abi.read_abi(), ffi_abi.Abi)
