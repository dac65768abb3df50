"""Registers, spills and shared memory of the kernels, compiled for an H200 on any machine.

    python tests/lower/pallas/registers.py            # a table, with warps that fit
    python tests/lower/pallas/registers.py --write    # renews registers.json, for the tests

XLA carries a Triton of its own, so what runs may differ: the table is there to see changes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import pallas
from reads import with_edges_as_read

import gnnjit
from gnnjit import nn

TABLE = Path(__file__).with_name("registers.json")
REGISTERS, MAX_WARPS = 65536, 64
"""What one multiprocessor of compute capability 9.0 has."""

SHARED = 227 * 1024
HEADS = 4


@dataclasses.dataclass(frozen=True)
class Use:
    """What one kernel takes: registers and spilled bytes of a thread, shared bytes, warps."""

    registers: int
    spills: int
    shared: int
    warps: int

    @property
    def resident(self) -> int:
        """Warps that fit a multiprocessor; registers are handed out to warps by 256."""
        by_registers = REGISTERS // (-(-self.registers * 32 // 256) * 256) // self.warps
        by_shared = SHARED // max(self.shared + 1024, 1)
        return min(MAX_WARPS // self.warps, by_registers, by_shared) * self.warps


def _spmm(v, e):
    return gnnjit.sum(e.data * e.src)


def _max(v, e):
    return gnnjit.max(e.src)


def _edge_mlp(v, e, p):
    hidden = jax.nn.relu(e.src @ p["a"] + v @ p["b"] + e.data * p["c"])
    return gnnjit.sum(jax.nn.relu(hidden @ p["d"]))


def _mlp_params(width: int) -> dict[str, Any]:
    square = jnp.ones((width, width))
    return {"a": square, "b": square, "c": jnp.ones(width), "d": square}


MODULES = {
    "GCN": lambda f, r: nn.GCN(f, f, rngs=r),
    "GAT": lambda f, r: nn.GAT(f, f // HEADS, heads=HEADS, rngs=r),
    "GATv2": lambda f, r: nn.GATv2(f, f // HEADS, heads=HEADS, rngs=r),
    "GatedGCN": lambda f, r: nn.GatedGCN(f, f, rngs=r),
}
LAYERS = {
    "SpMM": (gnnjit.layer(_spmm), lambda width: ()),
    "max": (gnnjit.layer(_max), lambda width: ()),
    "edge MLP": (gnnjit.layer(_edge_mlp), lambda width: (_mlp_params(width),)),
}
FAMILIES = (*LAYERS, *MODULES)


def widths(family: str) -> tuple[int, ...]:
    return (64, 128, 256) if family == "SpMM" else (64, 128)


@functools.cache
def _graph() -> gnnjit.Graph:
    """Long rows, short rows and no hubs: their second launch is the same for all."""
    rng = np.random.default_rng(0)
    dst = np.where(rng.random(4000) < 0.5, rng.integers(0, 20, 4000), rng.integers(0, 400, 4000))
    graph = gnnjit.Graph.from_edges(rng.integers(0, 400, 4000), dst, num_nodes=400)
    return pallas.with_tasks(graph, 8, 1 << 20)


def loss_of(family: str, width: int, dtype: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function whose gradients run all kernels of a family, and its arguments."""
    graph = _graph()
    x, data = jnp.ones((400, width), dtype), jnp.ones(4000, dtype)
    if family in MODULES:
        definition, params = nnx.split(MODULES[family](width, nnx.Rngs(0)))

        def apply(params: Any, x: Any, data: Any) -> Any:
            return nnx.merge(definition, params)(graph, x)
    else:
        layer, make = LAYERS[family]
        params = make(width)
        layer = with_edges_as_read(layer, layer)

        def apply(params: Any, x: Any, data: Any) -> Any:
            return layer(graph, x, *params, edges=data)

    params = jax.tree.map(lambda a: a.astype(dtype), params)
    return lambda *args: jnp.sum(jnp.sin(apply(*args))), (params, x, data)


def kernels(family: str, width: int, dtype: Any) -> list[tuple[str, pallas.Kernel]]:
    """The different kernels of forward and backward, named by their order."""
    loss, args = loss_of(family, width, jnp.dtype(dtype))
    traced = pallas.trace_for_cuda(jax.value_and_grad(loss, (0, 1)), *args)
    found = {k.code: k for k in pallas.kernels(pallas.lower_for_cuda(traced))}
    count: collections.Counter[str] = collections.Counter()
    named = []
    for kernel in found.values():
        count[kernel.name] += 1
        named.append((f"{kernel.name} {count[kernel.name]}", kernel))
    return named


def compile_kernel(kernel: pallas.Kernel) -> Use:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as compile_triton

    target = GPUTarget("cuda", 90, 32)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(None):
        code, binary = Path(folder, "kernel.ttir"), Path(folder, "kernel.cubin")
        code.write_text(kernel.text())
        made = compile_triton(str(code), target=target, options=options)
        binary.write_bytes(made.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [tool, "-res-usage", binary]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", said)[0]
    return Use(int(registers), int(stack), made.metadata.shared, kernel.warps)


def measure(family: str, width: int, dtype: str) -> dict[str, Use]:
    return {name: compile_kernel(k) for name, k in kernels(family, width, dtype)}


def key(family: str, width: int, dtype: str) -> str:
    return f"{family} {width} {dtype}"


def _written(version: str, table: dict[str, Any]) -> str:
    """A line for each kernel."""
    rows = [
        f"  {json.dumps(name)}: {{"
        + ",".join(f"\n   {json.dumps(k)}: {json.dumps(use)}" for k, use in uses.items())
        + "}"
        for name, uses in table.items()
    ]
    return f'{{"triton": {json.dumps(version)},\n "kernels": {{\n' + ",\n".join(rows) + "}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="renew registers.json")
    parser.add_argument("--only", choices=FAMILIES, help="one family of kernels")
    given = parser.parse_args()
    import triton

    table: dict[str, Any] = {}
    for family in [given.only] if given.only else FAMILIES:
        for width in widths(family):
            for dtype in ("float32", "bfloat16"):
                row = table[key(family, width, dtype)] = {}
                for name, use in measure(family, width, dtype).items():
                    row[name] = dataclasses.asdict(use)
                    print(f"{key(family, width, dtype):24} {name:22} {use} {use.resident} warps")
    if given.write and not given.only:
        TABLE.write_text(_written(triton.__version__, table))


if __name__ == "__main__":
    main()
