"""Arrays whose types say how they lie on a mesh: its axes are `jax.sharding.AxisType.Explicit`.

A layer on a `Graph` needs every row that an edge may read, so arrays that are sharded within one
call are gathered (`gnnjit.shard` deals a graph out instead). Arrays that are sharded over a batch
of calls stay where they are: each device runs its part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, reshard


def gathered(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, each whole on every device."""
    return [_placed(x, ()) if any(_spec(x)) else x for x in arrays]


def on_each_device(
    fn: Callable[..., list[Any]], args: Sequence[Any], dims: Sequence[Any], outs: Sequence[int]
) -> list[Any]:
    """`fn(*args)`, where axis `dims[i]` of an argument (if any) and axis `outs[k]` of a result is a
    batch whose elements do not know of each other: those of one device are done there."""
    batch = {
        a: jax.typeof(x).sharding.mesh
        for x, d in zip(args, dims, strict=True)
        if d is not None
        for a in _names(x, d)
    }
    if not batch:
        return fn(*args)
    mesh = next(iter(batch.values()))
    names = tuple(a for a in mesh.axis_names if a in batch)
    placed, specs = [], []
    for x, d in zip(args, dims, strict=True):
        elsewhere = [tuple(a for a in _names(x, i) if a not in batch) for i in range(x.ndim)]
        spec = [names if i == d else e or None for i, e in enumerate(elsewhere)]
        placed.append(_placed(x, spec, mesh))
        specs.append(PartitionSpec(*(names if i == d else None for i in range(x.ndim))))
    back = [PartitionSpec(*(None,) * d, names) for d in outs]
    manual = {"axis_names": set(names), "in_specs": tuple(specs), "out_specs": back}
    return list(jax.shard_map(fn, mesh=mesh, **manual)(*placed))


def _placed(x: Any, spec: Sequence[Any], mesh: Any = None) -> Any:
    return reshard(x, NamedSharding(mesh or jax.typeof(x).sharding.mesh, PartitionSpec(*spec)))


def _spec(x: Any) -> tuple[Any, ...]:
    """For each axis of an array, the axes of the mesh that its type shards it over."""
    found = jax.typeof(x).sharding
    return () if found.mesh.empty else tuple(found.spec)


def _names(x: Any, axis: int) -> tuple[Any, ...]:
    spec = _spec(x)
    name = spec[axis] if axis < len(spec) else None
    return () if name is None else name if isinstance(name, tuple) else (name,)
