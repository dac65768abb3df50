"""Edge networks in tiles of edges, against the interpreter, which goes edge by edge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit.ir.program import Reduce
from gnnjit.lower.cpu import compile, kernel
from gnnjit.lower.cpu.control_flow import PART, PARTS
from gnnjit.lower.cpu.edge_tiles import FEWEST
from gnnjit.lower.cpu.spec import INT32, Spec
from gnnjit.system.cpu_caches import Caches

from .test_kernel import (
    DST,
    EDGE,
    F32,
    GRAPHS,
    OVER_ALL,
    SHARED,
    SRC,
    check,
    compute,
    data,
    graph,
    oracle,
    trace,
)  # fmt: skip

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

F, G = 84, 75  # no whole vectors; more of them than are written out


def network(own, other, edge, first, second, bias):
    """Two products after each other; all of their inputs and results are read again at the end."""
    hidden = jax.nn.relu(own + other + edge @ first + bias)
    message = hidden @ second
    scale = jnp.tanh(message).mean()
    outer = jax.lax.dot_general(hidden, message, (((), ()), ((), ())))
    late = jnp.where(hidden.sum() > 3, message, 2 * message) * scale
    return late, message + 1, hidden[:5] * edge[0], outer, late.sum(), message[2] * own[0]


def inputs(dtype=F32, f=F, g=G):
    shapes = [(DST, (f,)), (SRC, (f,)), (EDGE, (g,)), (SHARED, (g, f)), (SHARED, (f, f))]
    return [(*s, dtype) for s in [*shapes, (SHARED, (f,))]]


def reductions(rows):
    return (Reduce("sum", rows), Reduce("max", rows), None, OVER_ALL, OVER_ALL, None)


def spec_of(body, reductions, rows=DST, **config):
    return Spec(body, reductions, rows, INT32, kernel.default_config(**config))


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("piece", [50, pytest.param(8192, marks=pytest.mark.long)])
def test_a_network_on_graphs(name, rows, piece):
    body = trace(network, *inputs())
    found = spec_of(body, reductions(rows), rows).tiling
    assert found is not None
    assert found.stages == 2
    assert [p.stage for p in found.products] == [0, 1]
    case = GRAPHS[name]
    args = [a / 4 for a in data(case, body)]
    check(body, reductions(rows), case, args, rows=rows, piece=piece, tol=2e-3)


@pytest.mark.parametrize("f", [36, 64, 96])
def test_other_widths(f):
    """Written out, whole vectors, and whole vectors in loops."""
    body, case = trace(network, *inputs(f=f, g=33)), graph()
    check(body, reductions(DST), case, [a / 4 for a in data(case, body)], tol=2e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("f", [36, 96])
def test_products_of_rows_beside_those_of_edges(f, axis):
    """A matrix that only rows are multiplied with, as it lies or turned."""

    def beside(own, other, edge, first, second, bias):
        of_row = jax.lax.dot_general(jnp.tanh(own + bias), second, (((0,), (axis,)), ((), ())))
        message = jax.nn.relu(other + edge @ first)
        return of_row * message, message + of_row, edge[:5] * of_row[0]

    body, case = trace(beside, *inputs(f=f, g=33)), graph()
    assert spec_of(body, reductions(DST)[:3]).tiling is not None
    check(body, reductions(DST)[:3], case, [a / 4 for a in data(case, body)], tol=2e-3)


def normalized(own, other, edge, first, second, scale):
    """What a loop over vectors cannot take, between what it can: sums over features, parts of
    vectors, single scalars, masks, values that are spread, and those of other sizes."""
    gates, values = jnp.split((own + other) @ first, 2)
    hidden = gates * jax.nn.sigmoid(values) + edge
    centred = hidden - hidden.mean(keepdims=True)
    normal = centred * jax.lax.rsqrt((centred**2).mean() + 1e-3) * scale
    masked = jnp.where(normal > 0.5 * normal.max(), normal, 0.1 * normal)
    message = masked @ second
    near = (message > 0).astype(jnp.int32).sum()
    both = jnp.concatenate([message[::2], normal[: F // 2], jnp.full((3,), normal[0])])
    lowest = message.min()
    return message - lowest, jnp.broadcast_to(lowest, (F,)) * own, both, near * scale, normal, edge


def test_sums_over_features_and_parts_of_vectors():
    shapes = [(DST, (F,)), (SRC, (F,)), (EDGE, (F,)), (SHARED, (F, 2 * F)), (SHARED, (F, F))]
    body = trace(normalized, *[(*s, F32) for s in [*shapes, (SHARED, (F,))]])
    case = graph(700, 40, 50)
    args = [a / 4 for a in data(case, body)]
    for rows in (DST, SRC):
        total = Reduce("sum", rows)
        wanted = (total, Reduce("max", rows), None, total, OVER_ALL, OVER_ALL)
        check(body, wanted, case, args, rows=rows, tol=2e-3)


def test_half_and_double_precision():
    with jax.enable_x64(True):
        check(trace(network, *inputs(np.float64)), reductions(DST), tol=1e-9)
    case, exact = graph(), trace(network, *inputs())
    args = [jnp.round(4 * a) / 16 for a in data(case, exact)]
    body = trace(network, *inputs(jnp.bfloat16))
    got = compute(body, reductions(DST), case, [a.astype(jnp.bfloat16) for a in args])
    want = oracle(exact, reductions(DST), case, args)
    for have, due in list(zip(got, want, strict=True))[1:3]:  # written once, rounded once
        scale = np.abs(np.asarray(due)).max()
        np.testing.assert_allclose(np.asarray(have, F32), due, atol=0.02 * scale)


@settings(max_examples=6, deadline=None)
@given(
    edges=st.integers(0, 400),
    vertices=st.integers(4, 60),
    tile=st.sampled_from([16, 36, 72]),
    piece=st.sampled_from([16, 64, 4096]),
    seed=st.integers(0, 99),
)
def test_any_graph_and_tile(edges, vertices, tile, piece, seed):
    case = graph(edges, vertices, vertices + 3, hub=seed % 2 == 0, seed=seed)
    body = trace(network, *inputs())
    args = [a / 4 for a in data(case, body, seed)]
    check(body, reductions(DST), case, args, piece=piece, tile=tile, tol=2e-3)


def test_the_bits_do_not_depend_on_threads_or_tiles():
    body, case = trace(network, *inputs()), graph(5000, 200, 300)
    args = data(case, body)
    found = [
        compute(body, reductions(DST), case, args, piece=512, **config)
        for config in ({"threads": 1}, {"threads": 2}, {"threads": 3}, {"threads": 2})
    ]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_large_copies_take_fewer_tasks():
    """Each task has its own sum of outer products."""
    body = trace(network, *inputs(f=512, g=20))
    spec = spec_of(body, reductions(DST))
    assert list(spec.outers) == [3]
    copy, limit, few = 512 * 512 * 4, kernel.LARGE_COPIES, kernel.FEW_TASKS
    for keys in (10_000, 1_000_000, 100_000_000):
        piece = kernel.piece_of(spec, keys)
        tasks = keys / piece
        assert tasks * copy <= limit or few / 2 < tasks <= few
        assert piece <= 8192 or 2 * tasks * copy > limit
    assert kernel.piece_of(spec_of(body, (Reduce("sum", DST),) * 3 + (None,) * 3), 10**9) == 8192


def test_small_networks_take_more_tasks():
    """Threads of eight tasks would wait for the last one."""
    spec = spec_of(trace(network, *inputs()), (None,) * 6)
    pieces = [kernel.piece_of(spec, keys) for keys in (10_000, 60_000, 200_000, 300_000, 10**6)]
    assert pieces == [2048, 2048, 2048, 4096, 8192]
    plain = spec_of(trace(lambda x: x + 1, (SRC, (8,), F32)), (Reduce("sum", DST),))
    assert kernel.piece_of(plain, 10_000) == 8192


def chain(own, other, edge, first, second, ct):
    """Gradients of both matrices; the factors are an operand, results, an input and a product of
    the end."""
    hidden = edge @ first
    message = (hidden + own + other) @ second
    outer = jax.lax.dot_general(edge, hidden, (((), ()), ((), ())))
    late = jax.lax.dot_general(ct, message * ct, (((), ()), ((), ())))
    return outer, late, message, hidden


def chain_of(dtype, f=64):
    shapes = [(DST, (f,)), (SRC, (f,)), (EDGE, (f,)), (SHARED, (f, f)), (SHARED, (f, f))]
    return trace(chain, *[(*s, dtype) for s in [*shapes, (EDGE, (f,))]])


def test_factors_stay_where_they_are():
    body = chain_of(F32)
    tiling = spec_of(body, (OVER_ALL, OVER_ALL, None, None)).tiling
    assert tiling is not None
    first, second = tiling.products
    (edge, hidden), (ct, scaled) = (
        [tiling.factors[number, f] for pair in pairs for f in pair.values]
        for number, pairs in spec_of(body, (OVER_ALL, OVER_ALL, None, None)).outers.items()
    )
    assert edge.array == first.operand
    assert hidden.array == first.result
    assert [f.late for f in (edge, hidden, ct, scaled)] == [False, False, True, True]
    assert len({f.array.at for f in (edge, hidden, ct, scaled)}) == 4
    assert second.operand not in {ct.array, scaled.array}


def test_a_factor_of_several_products():
    """On both sides of one, and in another sum."""

    def squares(own, other, edge, first):
        hidden = jnp.tanh(edge) * own
        message = (other + edge) @ first
        outer = jax.lax.dot_general(hidden, hidden, (((), ()), ((), ())))
        other = jax.lax.dot_general(hidden, message, (((), ()), ((), ())))
        return outer, outer + other, message

    shapes = [(DST, (F,)), (SRC, (F,)), (EDGE, (F,)), (SHARED, (F, F))]
    body, case = trace(squares, *[(*s, F32) for s in shapes]), graph()
    wanted = (OVER_ALL, OVER_ALL, Reduce("sum", DST))
    assert spec_of(body, wanted).tiling is not None
    check(body, wanted, case, [a / 4 for a in data(case, body)], tol=2e-3)


def backward(own, other, edge, written, ct, first, second):
    """The gradient of a network of two products, of which the first is written."""
    sums = own + other + written
    hidden = jnp.maximum(sums, 0)
    moved = jnp.where(sums > 0, ct @ second, 0)
    outer = jax.lax.dot_general(hidden, ct, (((), ()), ((), ())))
    other = jax.lax.dot_general(edge, moved, (((), ()), ((), ())))
    last = jnp.tanh(moved @ first)
    return outer, other, moved, jax.lax.dot_general(last, edge, (((), ()), ((), ())))


BACKWARD = (OVER_ALL, OVER_ALL, Reduce("sum", DST), OVER_ALL)


def backward_of(f):
    shapes = [(DST, (f,)), (SRC, (f,)), *[(EDGE, (f,))] * 3, *[(SHARED, (f, f))] * 2]
    return trace(backward, *[(*s, F32) for s in shapes])


def test_factors_are_made_where_their_parts_are_at_hand():
    body = backward_of(64)
    found = spec_of(body, BACKWARD)
    assert found.tiling is not None
    sizes = {
        number: [found.tiling.factors[number, f].late for pair in pairs for f in pair.values]
        for number, pairs in found.outers.items()
    }
    # A stage has the sums at hand, not the edge; what follows the last product comes at the end.
    assert sizes == {0: [False, False], 1: [True, False], 3: [True, False]}
    case = GRAPHS["hub"]
    check(body, BACKWARD, case, [a / 4 for a in data(case, body)], tol=2e-3)


def test_what_a_stage_stores_is_multiplied_there():
    tiling = spec_of(backward_of(64), BACKWARD).tiling
    assert tiling is not None
    assert any(tiling.is_stored(p.operand) for p in tiling.products)


def test_late_factors_take_the_place_of_results_that_nobody_reads():
    tiling = spec_of(backward_of(64), BACKWARD).tiling
    assert tiling is not None
    late = [f.array for f in tiling.factors.values() if f.late]
    results = [p.result for p in tiling.products if p.eqn.outputs[0] not in tiling.loads[-1]]
    assert results
    assert set(results) <= set(late)
    assert len({a.at for a in late}) == len(late)


def test_lines_of_edges_do_not_collide():
    tiling = spec_of(chain_of(F32, 128), (OVER_ALL, OVER_ALL, None, None)).tiling
    assert tiling is not None
    arrays = [a for p in tiling.products for a in (p.operand, p.result)]
    arrays += [f.array for f in tiling.factors.values()]
    assert {a.step for a in arrays} == {4 * 128 + 64}


@pytest.mark.parametrize("dtype", [F32, np.dtype(np.float64), np.dtype(jnp.bfloat16)])
@pytest.mark.parametrize("tile", [0, 72])
def test_edge_values_past_the_caches(dtype, tile):
    """The same bits, where each edge has whole lines; other outputs are left alone."""
    wanted = (OVER_ALL, OVER_ALL, None, None)
    with jax.enable_x64(dtype == np.float64):
        body, case = chain_of(dtype), graph(500, 40, 50, padding=7)
        assert spec_of(body, wanted, stream=True, tile=tile).streamed == {2, 3}
        assert not spec_of(chain_of(dtype, 36), wanted, stream=True, tile=tile).streamed
        args = [a / 8 for a in data(case, body)]
        ours, theirs = (
            compute(body, wanted, case, args, stream=stream, tile=tile) for stream in (True, False)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(np.asarray(a), np.asarray(b))


def writing(own, other, edge, first, second):
    """What a stage gives, what a product gives, and what comes after it, on the edges."""
    sums = own + other + edge @ first
    message = jax.nn.relu(sums) @ second
    return message, sums, message, edge + message


WRITING = (Reduce("sum", DST), None, None, None)


@pytest.mark.parametrize("f", [48, 64, 75])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_on_edges_are_written_where_they_are_made(name, stream, f):
    shapes = [(DST, (f,)), (SRC, (f,)), (EDGE, (f,)), *[(SHARED, (f, f))] * 2]
    body, case = trace(writing, *[(*s, F32) for s in shapes]), GRAPHS[name]
    tiling = spec_of(body, WRITING).tiling
    assert tiling is not None
    assert tiling.written == {1: 1, 2: 1}
    assert [p.output for p in tiling.products] == [None, 2]
    args = [a / 4 for a in data(case, body)]
    check(body, WRITING, case, args, tol=2e-3, stream=stream)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(jnp.bfloat16)], ids=str)
def test_the_end_writes_products_in_half_precision(dtype):
    """A product gives float32."""
    shapes = [(DST, (64,)), (SRC, (64,)), (EDGE, (64,)), *[(SHARED, (64, 64))] * 2]
    tiling = spec_of(trace(writing, *[(*s, dtype) for s in shapes]), WRITING).tiling
    assert tiling is not None
    assert 2 not in tiling.written


def test_products_ask_for_what_is_read_after_them():
    """The first stage reads 3 arrays of edges, 256 bytes each; the end reads a fourth one."""

    def gradient(own, written, given, scale, edge, first, second):
        hidden = jnp.maximum(own + written, 0)
        moved = jnp.where(written > 0, (given * scale) @ second, 0)
        outer = jax.lax.dot_general(edge, moved, (((), ()), ((), ())))
        return outer, jnp.sin(edge) + moved @ first, hidden

    shapes = [(DST, (64,)), *[(EDGE, (64,))] * 4, *[(SHARED, (64, 64))] * 2]
    body = trace(gradient, *[(*s, F32) for s in shapes])
    code = kernel._code(spec_of(body, (OVER_ALL, Reduce("sum", DST), Reduce("sum", DST)), tile=72))
    assert isinstance(code, str)
    names = {n.removeprefix(PART) for n in compile.parts_of(code)}
    # Named by the sizes, the registers, the lines that each block asks for, and the lanes.
    found = {(n.split("_")[0], len(n.split("_")) - 9) for n in names}
    assert found == {("matmul", 0), ("matmul", 1), ("outer", 3)}


def test_values_that_the_last_cache_holds_stay_there():
    spec, cache = spec_of(chain_of(F32), (OVER_ALL, OVER_ALL, None, None)), Caches(1, 1 << 20, 1)
    assert not kernel.streams(spec, 2048, cache)  # two outputs of 64 float32
    assert kernel.streams(spec, 2049, cache)
    assert not kernel.streams(spec, 1 << 30, None)


def heads(x, w, v):
    """Three vectors of each edge; then a matrix that is read another way round."""
    many = jnp.tanh(x @ w)
    return (v @ many[1]) * many.sum()


def test_rows_of_several_vectors():
    body = trace(heads, (SRC, (3, 20), F32), (SHARED, (20, 64), F32), (SHARED, (40, 64), F32))
    found = spec_of(body, (Reduce("sum", DST),)).tiling
    assert found is not None
    assert found.products[0].plan.places.shape == (1, 3, 20)
    check(body, (Reduce("sum", DST),), tol=2e-3)


def test_what_no_product_needs_runs_once_an_edge():
    body = trace(network, *inputs())
    found = spec_of(body, reductions(DST)).tiling
    assert found is not None
    names = {e.op.name for e in found.late}
    assert {"tanh", "select_n"} <= names
    assert "max" in {e.op.name for stage in found.early for e in stage}


@pytest.mark.parametrize("f", [16, 48, 64, 65])
def test_short_parts_of_a_long_product(f):
    """Three parts, each written out or not, of a product that is in memory."""

    def body(own, edge, w):
        a, b, c = jnp.split(edge @ w, 3)
        return a, b * own, c.sum(), a + c, b

    args = [(DST, (f,), F32), (EDGE, (40,), F32), (SHARED, (40, 3 * f), F32)]
    program = trace(body, *args)
    into = (Reduce("sum", DST), Reduce("max", DST), Reduce("sum", DST), None, OVER_ALL)
    assert spec_of(program, into).tiling is not None
    case = GRAPHS["hub"]
    check(program, into, case, [a / 4 for a in data(case, program)], rows=DST, tol=2e-3)


def test_tiles_shrink_where_much_is_kept():
    def wide(x, *matrices):
        values = [x]
        for w in matrices:
            values.append(jnp.tanh(values[-1] @ w))
        return sum(values[1:], values[0])

    shapes = [(SHARED, (512, 512), F32)] * 4
    body = trace(wide, (EDGE, (512,), F32), *shapes)
    found = spec_of(body, (Reduce("sum", DST),)).tiling
    assert found is not None
    assert FEWEST <= found.size < 64


def test_small_products_stay_with_their_edge():
    body = trace(lambda x, w: x @ w, (EDGE, (8,), F32), (SHARED, (8, 30), F32))
    spec = spec_of(body, (Reduce("sum", DST),))
    assert spec.tiling is None


def test_code_does_not_grow_with_the_widths():
    def lines(width):
        body = trace(
            lambda x, a, b: jax.nn.relu(x @ a) @ b,
            (EDGE, (width,), F32),
            *[(SHARED, (width, width), F32)] * 2,
        )
        code = kernel._code(spec_of(body, (Reduce("sum", DST),)))
        assert isinstance(code, str)
        return compile.with_parts(code).count("\n")

    assert lines(512) < 1.25 * lines(128)  # what is done for a row is written out


def test_rows_of_large_matrices_are_asked_for_ahead():
    """Of small ones, the nearest cache has all."""

    def asked(width):
        body = trace(lambda x, a: x @ a, (EDGE, (width,), F32), (SHARED, (width, width), F32))
        code = kernel._code(spec_of(body, (Reduce("sum", DST),)))
        assert isinstance(code, str)
        (product,) = [name for name in compile.parts_of(code) if "matmul" in name]
        calls = [line for line in PARTS[product].splitlines() if "call" in line]
        return sum("llvm.prefetch" in line and "i32 3, i32 1" in line for line in calls)

    assert asked(64) == 0
    assert asked(128) > 0
