"""`aggregate` on the shards of a graph: the work of one device, and the exchange between devices.

A shard has the edges that end at its vertices. A traversal reads the sources of other shards from
a table that was exchanged before (`all_gather`, `Halo`), or shard by shard while their rows pass by
(`Ring`; NeuGraph, section 3.3). Sums for sources go the way back and are added up by their owner: a
shard sends one sum for each source that it read, however many edges read it (FlexGraph, section 5,
"partial aggregation"). Reductions over all edges are combined over the axis. Each result has one
owner and a fixed order: the same bits in every run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Atom, Equation, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.execute import execute
from gnnjit.lower.lowering import Reductions
from gnnjit.lower.partial_results import (
    empty,
    finish,
    highest,
    lowest,
    merge,
    merge_partials,
    wide_sums,
)
from gnnjit.lower.sharded import outgoing
from gnnjit.lower.sharded.feature_parallel import narrowed
from gnnjit.sharding.exchange import Halo, Ring
from gnnjit.sharding.local_shard import LocalShard, local
from gnnjit.sharding.sharded_graph import ShardedGraph


def lower(
    graph: ShardedGraph,
    body: Program,
    reductions: Reductions,
    operands: Sequence[Any],
    platform: str,
    limit: int | None = None,
) -> list[Any]:
    """The aggregate as one `shard_map` over the axis of the graph, and over that of the features
    where the body works on each feature by itself."""
    parts = 1 if graph.features is None else graph.mesh.shape[graph.features]
    part = narrowed(body, parts)
    homes = [Space.EDGE if r is None else r.into for r in reductions]
    split = [(False,) * len(body.inputs), (False,) * len(homes)]
    if part is not None:
        body, *split = part.body, part.inputs, part.outputs
    spaces = [v.space for v in body.inputs]
    inputs = [spec(graph, *at) for at in zip(spaces, body.inputs, split[0], strict=True)]
    outs = [spec(graph, *at) for at in zip(homes, body.outputs, split[1], strict=True)]

    def run(graph: ShardedGraph, *operands: Any) -> list[Any]:
        device = Device(graph, platform, limit)
        return device.outputs(body, reductions, operands)

    specs = jax.tree.map(lambda _: graph.spec, graph)
    mapped = jax.shard_map(
        run, mesh=graph.mesh, in_specs=(specs, *inputs), out_specs=outs, check_vma=False
    )
    return list(mapped(graph, *operands))


def spec(graph: ShardedGraph, space: Space, atom: Atom, split: bool) -> PartitionSpec:
    """How an array of `atom`s in a space lies on the devices."""
    rows = () if space is Space.SHARED else (graph.axis,)
    if not split:
        return PartitionSpec(*rows)
    return PartitionSpec(*rows, *(None,) * (len(atom.shape) - 1), graph.features)


class Device:
    """One device's part of the work."""

    def __init__(self, graph: ShardedGraph, platform: str, limit: int | None) -> None:
        self.graph, self.platform, self.limit = graph, platform, limit
        self.axis, self.alone = graph.axis, graph.alone_of is not None
        self.count = graph.alone_of or graph.num_shards
        self.shard = local(graph)
        self.tables: dict[tuple[int, int], tuple[Any, Any]] = {}

    @property
    def halo(self) -> Halo | None:
        exchange = self.shard.exchange
        return exchange if isinstance(exchange, Halo) else None

    def outputs(self, body: Program, reductions: Reductions, operands: Sequence[Any]) -> list[Any]:
        program = choose.traversals(
            body, reductions, self.sample(), self.platform, self.limit, moved=True
        )
        outs = execute(program, self.shard, operands, self.traverse)
        return [
            x if r is not None else self.on_edges(x, atom)
            for x, atom, r in zip(outs, program.outputs, reductions, strict=True)
        ]

    def sample(self) -> Graph:
        """A graph of the kind that this device traverses."""
        return self.shard.graph(0)

    def traverse(self, shard: LocalShard, eqn: Equation, args: list[Any]) -> Sequence[Any]:
        assert isinstance(eqn.op, Aggregate)
        return self.aggregate(eqn.op, args)

    def aggregate(self, original: Aggregate, args: Sequence[Any]) -> list[Any]:
        op = wide_sums(original)
        if isinstance(self.shard.exchange, Ring):
            outs = _RingTraversal(self, op, args).outputs()
        elif self.pays_to_cover(op):
            outs = self.covered(op, args)
        else:
            outs = self.at_table(op, args)
        outs = [
            self.over_all(x, r) if r is not None and r.into is Space.SHARED else x
            for x, r in zip(outs, op.reductions, strict=True)
        ]
        return [x.astype(o.dtype) for x, o in zip(outs, original.body.outputs, strict=True)]

    def run(self, op: Aggregate, graph: Graph, args: Sequence[Any]) -> list[Any]:
        return list(choose.choose(op, graph, self.platform, self.limit).run(args))

    def on_edges(self, x: Any, atom: Any) -> Any:
        """An output that stays on the edges, wherever it was computed."""
        if atom.space is Space.SRC:
            value = Value(tuple(atom.shape), atom.dtype, Space.SRC)
            return self.aggregate(_copied(value), [x])[0]
        if atom.space is Space.SHARED:
            x = jnp.broadcast_to(x, (self.shard.num_edges, *jnp.shape(x)))
        elif atom.space is Space.DST:
            x = x[self.graph.dst]
        return _masked(x, self.shard.mask)

    def over_all(self, x: Any, reduction: Reduce) -> Any:
        """One value for all edges, from those of the shards."""
        if reduction.kind == "sum":
            return lax.psum(x, self.axis)
        some = self.shard.edge_count > 0
        worst, best = (lowest, lax.pmax) if reduction.kind == "max" else (highest, lax.pmin)
        extreme = best(jnp.where(some, x, worst(x.dtype)), self.axis)
        return jnp.where(lax.psum(self.shard.edge_count, self.axis) > 0, extreme, 0).astype(x.dtype)

    # -- with a table of all sources ------------------------------------------------------------

    def at_table(self, op: Aggregate, args: Sequence[Any]) -> list[Any]:
        return self.with_tables(op, args, self.sample(), {Space.SRC: self.halo})

    def with_tables(
        self,
        op: Aggregate,
        args: Sequence[Any],
        graph: Graph,
        halos: Mapping[Space, Halo | None],
    ) -> list[Any]:
        """The aggregate over a graph whose vertices of these spaces lie in tables."""
        read = list(args)
        for space, halo in halos.items():
            at = [i for i, v in enumerate(op.body.inputs) if v.space is space]
            for i, x in zip(at, self.at_tables([args[i] for i in at], halo), strict=True):
                read[i] = x
        outs = self.run(op, graph, read)
        for space, halo in halos.items():
            at = [k for k, r in enumerate(op.reductions) if r is not None and r.into is space]
            found = [outs[k] for k in at]
            if outgoing.is_sum(op, at):
                found = self.to_owners(found, halo)
            else:
                degree = graph.structure(space).degree()
                found = outgoing.at_owners(self, op, at, found, degree, halo)
            for k, x in zip(at, found, strict=True):
                outs[k] = x
        return outs

    def at_tables(self, arrays: Sequence[Any], halo: Halo | None) -> list[Any]:
        """The tables of arrays of vertices: this shard's rows and all others that its edges read.
        Each array travels by itself, so that XLA finds it again where the backward pass reads it.
        """
        new = {id(x): x for x in arrays if (id(x), id(halo)) not in self.tables}
        tables = self.fetched(list(new.values()), halo)
        for x, table in zip(new.values(), tables, strict=True):
            self.tables[id(x), id(halo)] = (x, table)
        return [self.tables[id(x), id(halo)][1] for x in arrays]

    def fetched(self, arrays: Sequence[Any], halo: Halo | None) -> list[Any]:
        if halo is None and self.alone:
            return [jnp.concatenate([x] * self.count) for x in arrays]
        if halo is None:
            return [lax.all_gather(x, self.axis, tiled=True) for x in arrays]
        if not halo.rows:
            return list(arrays)
        if halo.at_once:
            return [jnp.concatenate([x, self.all_to_all(x[halo.send])]) for x in arrays]
        tables = [jnp.concatenate([x, _zeros(halo.rows, x)]) for x in arrays]
        for k, block in enumerate(halo.blocks):
            sent = lax.dynamic_slice_in_dim(halo.send, halo.origins[k], block.height)
            got = [self.moved(x[sent], -block.distance, block.readers) for x in arrays]
            at = halo.returned.num_rows + halo.places[k]
            tables = _written(tables, got, at)
        return tables

    def brought_back(self, arrays: Sequence[Any], halo: Halo) -> list[Any]:
        """The blocks of each array (a table without the local rows), at their owners."""
        if halo.at_once:
            return side_by_side(self.all_to_all, arrays)
        backs = [_zeros(halo.send.shape[0], x) for x in arrays]
        for k, block in enumerate(halo.blocks):
            rows = [lax.dynamic_slice_in_dim(x, halo.places[k], block.height) for x in arrays]
            move = functools.partial(self.moved, by=block.distance, readers=block.readers)
            backs = _written(backs, side_by_side(move, rows), halo.origins[k])
        return backs

    def all_to_all(self, x: Any) -> Any:
        return x if self.alone else lax.all_to_all(x, self.axis, 0, 0, tiled=True)

    def moved(self, x: Any, by: int, readers: Sequence[int] | None = None) -> Any:
        """`x`, moved to the shard so many after this one; only from or to `readers`, if given."""
        if self.alone:
            return x
        shards = range(self.count) if readers is None else readers
        pairs = [(p, (p + by) % self.count) for p in shards]
        if by < 0:  # they are where it arrives
            pairs = [((p - by) % self.count, p) for p in shards]
        return lax.ppermute(x, self.axis, pairs)

    def to_owners(self, sums: Sequence[Any], halo: Halo | None) -> list[Any]:
        """The sum for each local vertex, from the sums for the rows of all tables."""
        if halo is None and not self.alone:
            return [lax.psum_scatter(x, self.axis, tiled=True) for x in sums]
        if halo is None:
            return [x[: self.shard.num_src] for x in sums]
        rows = halo.returned.num_rows
        local_rows = [x[:rows] for x in sums]
        if not halo.rows:
            return local_rows
        back = self.brought_back([x[rows:] for x in sums], halo)
        return [
            x + self.returned(b, halo).astype(x.dtype)
            for x, b in zip(local_rows, back, strict=True)
        ]

    def returned(self, back: Any, halo: Halo, kind: str = "sum") -> Any:
        """For each local row, the partial results that came back, reduced: 0 where none did."""
        structure = halo.returned
        sent, rows = back.shape[0], structure.num_rows
        slot = jnp.arange(sent, dtype=structure.edge.dtype)
        real = slot < structure.indptr[-1]
        # Edge i of this graph is entry i of what was sent.
        graph = Graph(
            src=slot,
            dst=halo.send,
            mask=real,
            in_structure=structure,
            out_structure=structure,
            dropped=None,
            num_src=sent,
            num_dst=rows,
            num_edges=sent,
            bipartite=True,
        )
        value = Value(tuple(back.shape[1:]), back.dtype, Space.SRC)
        return self.run(_copied(value, Reduce(kind, Space.DST)), graph, [back])[0]

    # -- with rows and sums, whichever are fewer --------------------------------------------------

    def pays_to_cover(self, op: Aggregate) -> bool:
        """Whether the aggregate may use the cover, and moves less that way."""
        cover, halo = self.shard.cover, self.shard.exchange
        if cover is None or not isinstance(halo, Halo):
            return False
        homes = [r.into if r is not None and r.kind == "sum" else None for r in op.reductions]
        if None in homes or any(v.space is Space.EDGE for v in op.body.inputs):
            return False
        width: dict[Any, int] = dict.fromkeys((Space.SRC, Space.DST, Space.SHARED), 0)
        read = dict(width)
        for atom, home in zip(op.body.outputs, homes, strict=True):
            width[home] += _bytes(atom)
        for v in op.body.inputs:
            read[v.space] += _bytes(v)
        of_src, of_dst = (width[s] + read[s] for s in (Space.SRC, Space.DST))
        covered = cover.rows.moved * of_src + cover.sums.moved * of_dst
        return covered < halo.moved * of_src

    def covered(self, op: Aggregate, args: Sequence[Any]) -> list[Any]:
        cover = self.shard.cover
        assert cover is not None
        halos = {Space.SRC: cover.rows, Space.DST: cover.sums}
        return self.with_tables(op, args, cover.graph(), halos)


class _RingTraversal:
    """One traversal while the rows of other shards pass by.

    Results for sources travel with their rows, and return to their owners after the last stop.
    """

    def __init__(self, device: Device, op: Aggregate, args: Sequence[Any]) -> None:
        self.device, self.op, self.args = device, op, list(args)
        assert isinstance(device.shard.exchange, Ring)
        self.ring = device.shard.exchange
        self.passing = [i for i, v in enumerate(op.body.inputs) if v.space is Space.SRC]
        homes = [None if r is None else r.into for r in op.reductions]
        self.into_src = [k for k, home in enumerate(homes) if home is Space.SRC]
        self.on_edges = [k for k, home in enumerate(homes) if home is None]
        self.reduced = [k for k in range(len(homes)) if k not in self.into_src + self.on_edges]
        self.merged = op.select(self.reduced).op if self.into_src else op
        self.sent = op.select(self.into_src).op if self.reduced or self.on_edges else op

    def outputs(self) -> list[Any]:
        """The outputs of the traversal."""
        rows = [self.args[i] for i in self.passing]
        merged, home, edges = self.step(0, rows, self.start())
        state = merged, self.none_sent(), edges
        stop, distance = 1, 0
        for run in self.ring.runs:
            rows = self.moved(rows, run.first - distance)
            if distance:
                state = self.pass_on(state, run.first - distance)
            if run.count > 1:
                stops = jnp.arange(stop, stop + run.count - 1)
                (rows, state), _ = lax.scan(self.to_next, (rows, state), stops)
            stop, distance = stop + run.count, run.first + run.count - 1
            state = self.step(jnp.asarray(stop - 1), rows, state)
        merged, away, edges = state
        if distance:
            back = self.moved(away, self.device.count - distance)
            home = merge_partials(self.sent, home, back) if self.into_src else home
        return self.collected(merged, home, edges)

    def to_next(self, carry: Any, stop: Any) -> tuple[Any, None]:
        rows, state = carry
        after = self.moved(rows, 1)  # does not wait for what is computed here
        return (after, self.pass_on(self.step(stop, rows, state), 1)), None

    def pass_on(self, state: Any, by: int) -> Any:
        merged, away, edges = state
        return merged, self.moved(away, by), edges

    def moved(self, arrays: Sequence[Any], by: int) -> list[Any]:
        """The arrays, moved to the shard so many before this one, which reads them next."""
        return [self.device.moved(x, -by) for x in arrays]

    def start(self) -> Any:
        shard, atoms = self.device.shard, self.op.body.outputs
        edges = [
            jnp.zeros((shard.num_edges, *atoms[k].shape), atoms[k].dtype) for k in self.on_edges
        ]
        return empty(self.merged, shard.num_dst, jnp), self.none_sent(), edges

    def none_sent(self) -> list[Any]:
        """Results for sources before any edge."""
        return empty(self.sent, self.device.shard.num_src, jnp) if self.into_src else []

    def step(self, stop: Any, rows: Sequence[Any], state: Any) -> Any:
        """The state after the edges from the shard whose `rows` are here."""
        graph = self.device.shard.graph(stop)
        first = self.ring.starts[stop]
        passing = dict(zip(self.passing, rows, strict=True))
        args = []
        for i, (x, v) in enumerate(zip(self.args, self.op.body.inputs, strict=True)):
            if v.space is Space.EDGE:
                x = lax.dynamic_slice_in_dim(x, first, graph.num_edges)
            args.append(passing.get(i, x))
        outs = self.device.run(self.op, graph, args)
        merged, sent, edges = state
        some = [outs[k] for k in self.reduced] if self.into_src else outs
        merged = merge(self.merged, merged, some, jnp.diff(graph.in_structure.indptr))
        if self.into_src:
            degree = jnp.diff(graph.out_structure.indptr)
            sent = merge(self.sent, sent, [outs[k] for k in self.into_src], degree)
        # What is written beyond the chunk is 0, or overwritten by the next one.
        edges = [
            lax.dynamic_update_slice_in_dim(a, outs[k], first, 0)
            for a, k in zip(edges, self.on_edges, strict=True)
        ]
        return merged, sent, edges

    def collected(self, merged: Any, sent: Any, edges: Any) -> list[Any]:
        outs: list[Any] = [None] * len(self.op.reductions)
        reduced = finish(self.merged, merged)
        for k, x in zip(self.reduced, (x for x in reduced if x is not None), strict=True):
            outs[k] = x
        sums = finish(self.sent, sent) if self.into_src else []
        for k, x in zip(self.into_src + self.on_edges, [*sums, *edges], strict=True):
            outs[k] = x
        return outs


def side_by_side(move: Callable[[Any], Any], arrays: Sequence[Any]) -> list[Any]:
    """`move` applied to each array. Rows of one dtype travel side by side: a collective takes time
    to start."""
    moved: list[Any] = list(arrays)
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        at = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        if len(at) == 1:
            moved[at[0]] = move(arrays[at[0]])
            continue
        widths = [math.prod(arrays[i].shape[1:]) for i in at]
        flat = [arrays[i].reshape(len(arrays[i]), w) for i, w in zip(at, widths, strict=True)]
        ends = np.cumsum(widths)[:-1].tolist()
        parts = jnp.split(move(jnp.concatenate(flat, axis=1)), ends, axis=1)
        for i, x in zip(at, parts, strict=True):
            moved[i] = x.reshape(arrays[i].shape)
    return moved


def _written(arrays: Sequence[Any], blocks: Sequence[Any], at: Any) -> list[Any]:
    pairs = zip(arrays, blocks, strict=True)
    return [lax.dynamic_update_slice_in_dim(x, block, at, 0) for x, block in pairs]


def _zeros(rows: int, like: Any) -> Any:
    return jnp.zeros((rows, *like.shape[1:]), like.dtype)


def _bytes(atom: Any) -> int:
    return math.prod(atom.shape) * atom.dtype.itemsize


def _copied(value: Value, reduction: Reduce | None = None) -> Aggregate:
    """The aggregate that reads a value on every edge, and reduces it."""
    return Aggregate(Program((value,), (), (value,)), (reduction,))


def _masked(x: Any, mask: Any) -> Any:
    return jnp.where(mask.reshape((-1,) + (1,) * (x.ndim - 1)), x, jnp.zeros_like(x))
