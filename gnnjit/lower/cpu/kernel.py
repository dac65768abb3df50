"""The lowering of a traversal to generated CPU kernels; sorts by such kernels, too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.config import cores
from gnnjit.ir.dtypes import is_extended
from gnnjit.ir.program import Lax, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.ir.tables import READS, SUMS
from gnnjit.lower.lowering import LoweringRequest, Reductions, Unsupported
from gnnjit.system.contexts import Context
from gnnjit.system.cpu_caches import Caches, caches
from gnnjit.system.cpu_features import features, is_x86, vector_bytes
from gnnjit.system.portable import PORTABLE, is_portable

try:
    import llvmlite  # noqa: F401
except ImportError:  # an optional dependency
    HAVE_LLVM = False
else:
    HAVE_LLVM = True
    from gnnjit.lower.cpu import compile as compiler
    from gnnjit.lower.cpu import (
        edge_lanes,
        feature_width,
        index_rules,
        kept_code,
        registered,
        table_sums,
        worth,
    )
    from gnnjit.lower.cpu.elementwise_rules import RULES
    from gnnjit.lower.cpu.simd import DTYPES, is_half
    from gnnjit.lower.cpu.spec import INT32, CodeConfig, IndexDtypes, Spec

    assert index_rules.RULES is RULES  # importing it registers its rules

MAX_WORK = 16384
"""Vector operations per edge that are unrolled at most."""

_lock = threading.RLock()
_emitted: dict[Hashable, str | list[str]] = {}
_registered: dict[Hashable, str] = {}
_loaded: dict[Hashable, kept_code.KeptKernel | None] = {}


_left = Context(False)


def left_to_pool() -> contextlib.AbstractContextManager[None]:
    """What is compiled within it leaves kernels that take long to XLA's thread pool, so that one
    operation after the other has all cores, whichever threads call them.

    Only for programs that nothing else waits for in that pool: a kernel ends when a thread of the
    pool has time for it, and a collective operation, or a host callback, may wait in there for
    others.
    """
    return _left(True)


LARGE_COPIES, FEW_TASKS = 1 << 26, 64
"""Bytes of all tasks' copies of sums over all edges, and tasks."""

LEAST_PIECE = 2048
"""Rows plus edges of a task of an edge network."""


def default_config(**changes: Any) -> CodeConfig:
    """The configuration for this machine."""
    base = {"threads": cores(), "lanes_bytes": vector_bytes(), "left": _left.value}
    return CodeConfig(**(base | changes))


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons why `run` cannot be used or, unless these kernels are preferred, why it should not;
    none means that it runs."""
    edges = None if request.preferred == "cpu" else request.graph.num_edges
    body, reductions, rows = request.body, request.reductions, request.rows
    return reasons(body, reductions, rows, lambda: _config_of(_rest(request)), edges=edges)


def why_no_network(body: Program) -> list[str]:
    """Reasons why there is no code for an operation of `body`; none means that there is, unless it
    is too large."""
    return unavailable() or _unsupported(body, (None,) * len(body.outputs), Space.DST)


def _rest(request: LoweringRequest) -> LoweringRequest:
    """The request without sums that are taken apart, if anything is left then."""
    split = table_sums.split(request.body, request.reductions)
    if split is None or split.body is None:
        return request
    starts = {split.kept.index(k): x for k, x in request.starts.items()}
    parts = {"body": split.body, "reductions": split.reductions, "starts": starts}
    return dataclasses.replace(request, **parts)


def run(request: LoweringRequest, operands: Sequence[jax.Array]) -> list[jax.Array]:
    split = table_sums.split(request.body, request.reductions)
    if split is None:
        return _traverse(request, operands)
    outs: dict[int, jax.Array] = {}
    if split.body is not None:
        found = _traverse(_rest(request), [operands[k] for k in split.operands])
        outs = dict(zip(split.kept, found, strict=True))
    for number, parts in split.sums.items():
        shape = request.body.outputs[number].shape
        each = [_sum_by_row(request, one, operands).reshape(shape) for one in parts]
        outs[number] = functools.reduce(jnp.add, each)
    return [outs[k] for k in range(len(request.reductions))]


def _sum_by_row(
    request: LoweringRequest, one: table_sums.GroupedSum, operands: Sequence[jax.Array]
) -> jax.Array:
    """`[rows of the table, *what an edge adds]`."""
    structure = table_sums.sort(request, one, operands, sort)
    own = [operands[k] for k in one.operands]
    edges = request.graph.num_edges
    (out,) = call(
        one.body, table_sums.REDUCTIONS, Space.GRAPH, structure, one.count, edges, own,
        default_config(),
    )  # fmt: skip
    return out


def _traverse(request: LoweringRequest, operands: Sequence[jax.Array]) -> list[jax.Array]:
    body, reductions, rows, graph = request.body, request.reductions, request.rows, request.graph
    return call(
        body, reductions, rows, request.structure, request.num_rows, graph.num_edges, operands,
        _config_of(request),
        partial=request.partial, starts=request.starts,
    )  # fmt: skip


def _config_of(request: LoweringRequest) -> CodeConfig:
    config = _lanes_of(request)
    spec = Spec(request.body, request.reductions, request.rows, INT32, config)
    edges = request.graph.num_edges
    piece, stream = piece_of(spec, request.num_rows + edges), streams(spec, edges, caches())
    return dataclasses.replace(config, width=feature_width_of(request), piece=piece, stream=stream)


def streams(spec: Spec, edges: int, found: Caches | None) -> bool:
    """Whether values of edges are written past the caches: where the last cache cannot hold them.
    `found`: the caches of this machine, where they are known."""
    outputs = zip(spec.reductions, spec.body.outputs, strict=True)
    written = sum(math.prod(v.shape) * v.dtype.itemsize for op, v in outputs if op is None)
    return found is not None and edges * written > found.last


def piece_of(spec: Spec, keys: int) -> int:
    """Rows plus edges of a task, of `keys` in all. Edge networks, which take long for each edge,
    have more tasks on small graphs, so that threads finish together. Each task has a copy of what
    is summed over all edges; where the copies are large there are fewer tasks, down to
    `FEW_TASKS`."""
    summed = (spec.body.outputs[i] for i in (*spec.outers, *spec.sums))
    copy = sum(math.prod(v.shape) * max(v.dtype.itemsize, 4) for v in summed)
    piece = spec.config.piece
    while spec.tiling is not None and keys < FEW_TASKS * piece and piece > LEAST_PIECE:
        piece //= 2
    while copy * keys > LARGE_COPIES * piece and keys > FEW_TASKS * piece:
        piece *= 2
    return piece


def _lanes_of(request: LoweringRequest) -> CodeConfig:
    """The configuration for this machine, with edges side by side where that pays."""
    config = default_config()
    spec = Spec(request.body, request.reductions, request.rows, INT32, config)
    pays = edge_lanes.pays(spec, request.graph.num_edges / max(1, request.num_rows))
    return dataclasses.replace(config, lanes=pays)


def feature_width_of(request: LoweringRequest) -> int:
    """Features that `run` takes at a time, edge by edge; 0: all of them."""
    if request.partial or request.starts:  # a part of a graph has few edges for each source
        return 0
    graph = request.graph
    sources = graph.num_src if request.rows is Space.DST else graph.num_dst
    spec = Spec(request.body, request.reductions, request.rows, INT32, default_config())
    return feature_width.width(spec, sources, graph.num_edges, caches())


def reasons(
    body: Program,
    reductions: Reductions,
    rows: Space,
    config: Callable[[], CodeConfig] | None = None,
    *,
    edges: int | None = None,
) -> list[str]:
    """Reasons why `call` cannot be used or, given the number of edges, why it should not; none
    means that it can. `config` is asked where there is code for the program."""
    if found := unavailable() or _unsupported(body, reductions, rows):
        return found
    split = table_sums.split(body, reductions)
    apart = [] if split is None else [one for some in split.sums.values() for one in some]
    specs = [one.spec(default_config()) for one in apart]
    rest, left = (body, reductions) if split is None else (split.body, split.reductions)
    if rest is not None:
        specs.append(Spec(rest, left, rows, INT32, (config or default_config)()))
    return next(filter(None, (_why_not(spec, edges) for spec in specs)), [])


def _why_not(spec: Spec, edges: int | None) -> list[str]:
    """As `reasons`, of what is one kernel."""
    if edges is not None and (found := worth.why_not(spec, edges)):
        return found
    lines = _lines(spec)
    if isinstance(lines, list):
        return lines
    return [] if edges is None else worth.why_not(spec, edges, lines)


def code(request: LoweringRequest) -> str:
    """The LLVM IR of a traversal that `why_not` has no reason against, for 32-bit indices, but for
    sums that are taken apart; after it, that of the parts that it calls."""
    request = _rest(request)
    config = _config_of(request)
    found = _code(Spec(request.body, request.reductions, request.rows, INT32, config))
    assert isinstance(found, str), found
    return compiler.with_parts(found)


def call(
    body: Program,
    reductions: Reductions,
    rows: Space,
    structure: Any,
    num_rows: int,
    num_edges: int,
    operands: Sequence[jax.Array],
    config: CodeConfig | None = None,
    *,
    partial: bool = False,
    starts: Mapping[int, jax.Array] | None = None,
) -> list[jax.Array]:
    """Run the traversal.

    structure: `indptr [num_rows + 1]`, `neighbor [E]`, `edge [E]`, slots sorted by row; slots
        from `indptr[-1]` on are padding.
    operands: per input of `body`: `[num_rows, *shape]` in the space `rows`,
        `[num_neighbors, *shape]` in the opposite one, `[num_edges, *shape]` of edges, `[*shape]`
        shared.
    partial, starts: as in `LoweringRequest`.
    Returns, per output: `[num_rows, *shape]`, `[*shape]` (into SHARED) or, unreduced,
        `[num_edges, *shape]` with 0 on padding.
    """
    arrays = [jnp.asarray(a) for a in (structure.indptr, structure.neighbor, structure.edge)]
    index = IndexDtypes(*(np.dtype(a.dtype) for a in arrays))
    given = starts or {}
    config = config or default_config()
    spec = Spec(body, reductions, rows, index, config, partial, tuple(given))
    name = _target(spec)
    shapes = []
    for op, out in zip(reductions, body.outputs, strict=True):
        lead = (num_edges,) if op is None else () if op.into is Space.SHARED else (num_rows,)
        shapes.append(jax.ShapeDtypeStruct((*lead, *out.shape), out.dtype))
    arrays = arrays[: 3 if spec.needs_edge or spec.grouped else 2]
    if spec.grouped:
        arrays.append(jnp.asarray(structure.other))
    first = len(arrays) + len(operands)
    places = {first + i: k for i, k in enumerate(given)}
    compiled = jax.ffi.ffi_call(name, shapes, input_output_aliases=places)
    return list(compiled(*arrays, *operands, *given.values()))


def why_no_start(request: LoweringRequest, output: int) -> list[str]:
    """Reasons why rows of an output cannot go on from given ones; none means that they can, where
    `why_not` has none."""
    body, reductions, rows = request.body, request.reductions, request.rows
    op, dtype = reductions[output], body.outputs[output].dtype
    if op is None or op.into is not rows:
        return ["it has no rows"]
    if is_half(dtype):
        return [f"{dtype} is summed as float32"]
    block = Spec(body, reductions, rows, INT32, default_config()).block
    if block and block.full % block.size:
        return ["some features are computed twice"]
    return []


def available() -> bool:
    """Whether kernels can be generated and run on this machine."""
    return not unavailable()


def why_no_sort(dtype: Any) -> list[str]:
    """Reasons why `sort` cannot be used; none means that it can."""
    if unavailable():
        return unavailable()
    return [] if dtype in (np.int32, np.int64) else [f"no CPU kernel code for indices of {dtype}"]


def sort(key: jax.Array, payload: jax.Array, num_rows: int) -> list[jax.Array]:
    """`(indptr[..., rows + 1], payload by slot, position by slot)`, edges sorted by key, stable.

    key: `int[..., E]`, the row of each edge; `num_rows` on padding, which comes last.
    """
    lead, length, dtype = key.shape[:-1], key.shape[-1], np.dtype(key.dtype)
    flat = math.prod(lead)
    rows, edges = (jax.ShapeDtypeStruct((flat, n), dtype) for n in (num_rows + 1, length))
    call = jax.ffi.ffi_call(_sort_target(dtype), [rows, edges, edges, rows])
    outs = call(key.reshape(flat, length), payload.reshape(flat, length))
    return [x.reshape(*lead, x.shape[1]) for x in outs[:3]]


@functools.cache
def _sort_target(dtype: np.dtype) -> str:
    return made("sort", [dtype.name], lambda: compiler.emit_sort(dtype))


def _unsupported(body: Program, reductions: Sequence[Reduce | None], rows: Space) -> list[str]:
    ops = [eqn.op for eqn in body.equations]
    out = [
        f"no CPU kernel code for the primitive {op.name}"
        for op in ops
        if not isinstance(op, Lax) or op.name not in (*RULES, *READS, *SUMS)
    ]
    out += [reason for v in body.values() for reason in _unsupported_value(v)]
    for op, value in zip(reductions, body.outputs, strict=True):
        if op is None:
            continue
        if op.into not in (rows, Space.SHARED):
            out.append(f"a reduction into {op.into.value} in a traversal by {rows.value}")
        if op.kind not in ("sum", "max", "min", "prod") or value.dtype == np.bool_:
            out.append(f"no CPU kernel code for {op.kind} of {value.dtype}")
    return sorted(set(out))


def _unsupported_value(value: Value) -> list[str]:
    if is_extended(value.dtype) or np.dtype(value.dtype) not in DTYPES:
        return [f"no CPU kernel code for values of type {value.dtype}"]
    if value.dtype == np.float16 and is_x86() and "f16c" not in features():
        return ["this CPU cannot convert float16"]
    return ["a value without scalars"] if value.size == 0 else []


def _code(spec: Spec) -> str | list[str]:
    """LLVM IR, or reasons why there is none."""
    with _lock:
        key = spec.key()
        if key not in _emitted:
            _emitted[key] = _emit(spec)
        return _emitted[key]


def _emit(spec: Spec) -> str | list[str]:
    if spec.written_out > MAX_WORK:
        return [f"too large to unroll: about {spec.written_out} vector operations per edge"]
    try:
        return compiler.emit(spec)
    except Unsupported as reason:
        return [str(reason)]


def _lines(spec: Spec) -> int | list[str]:
    """The lines of the LLVM IR, or reasons why there is none."""
    with _lock:
        found = _kept(spec)
        if found is not None:
            return found.lines
        code = _code(spec)
        return code if isinstance(code, list) else code.count("\n")


def _kept(spec: Spec) -> kept_code.KeptKernel | None:
    """What an earlier process has compiled."""
    key = spec.key()
    if key not in _loaded:
        _loaded[key] = kept_code.load(kept_code.key_of(spec))
    return _loaded[key]


def _target(spec: Spec) -> str:
    """The name of the registered custom call."""
    with _lock:
        key = spec.key()
        if key not in _registered:
            found = _kept(spec)
            if found is None:
                code = _code(spec)
                if isinstance(code, list):
                    raise NotImplementedError("; ".join(code))
                _registered[key] = _compiled_later(kept_code.key_of(spec), code)
            else:
                registered.register(found.name, found.code)
                _registered[key] = found.name
        return _registered[key]


def _compiled_later(key: str | None, text: str) -> str:
    """The registered custom call of a kernel of this IR, which is kept for later processes."""
    name = compiler.name_of(text)

    def make() -> bytes:
        code = compiler.object_code(text)
        kept_code.store(key, kept_code.KeptKernel(name, text.count("\n"), code))
        return code

    registered.register_later(name, make)
    return name


def made(kind: str, parts: Sequence[Any], emit: Callable[[], str]) -> str:
    """The registered custom call of a kernel that is no traversal."""
    with _lock:
        key = kept_code.key([kind, repr(parts)])
        found = kept_code.load(key)
        if found is None:
            return _compiled_later(key, emit())
        registered.register(found.name, found.code)
        return found.name


def unavailable() -> list[str]:
    """Reasons that hold for every program."""
    return [PORTABLE] if is_portable() else _broken()


@functools.cache
def _broken() -> list[str]:
    """Reasons that hold in this process; runs a tiny kernel once."""
    if not HAVE_LLVM:
        return ["llvmlite is not installed"]
    return compiler.why_not_here() or _self_test()


def _self_test() -> list[str]:
    """Compare one small kernel with NumPy. The struct layouts were compared before."""
    data = np.arange(1, 5, dtype=np.float32)
    shape = jax.ShapeDtypeStruct(data.shape, data.dtype)
    try:
        here = jax.local_devices(backend="cpu")[0]
        with jax.ensure_compile_time_eval(), jax.default_device(here):
            call = jax.ffi.ffi_call(registered.register_self_test(), shape)
            got = np.asarray(jax.jit(call)(data))
    except Exception as error:
        return [f"the self-test of CPU kernels failed: {type(error).__name__}: {error}"]
    want = data + data[0]
    return [] if np.array_equal(got, want) else ["the self-test of CPU kernels gave wrong numbers"]
