"""One form of one network, in a process of its own that answers when asked."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MOST = 20
"""Steps of one turn at most."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A network of two blocks, in a form, on a graph."""

    network: str
    form: str
    vertices: int
    edges: int
    width: int


class Failed(RuntimeError):
    """A form cannot be run; the message says why."""


class JaxCase:
    """A form in JAX, compiled when it is made."""

    def __init__(self, task: Task):
        import jax

        import gnnjit
        from edge_networks import network
        from edge_networks.table import NETWORKS
        from gnnjit.lower.cpu import registered

        gnnjit.keep_memory()
        found = NETWORKS[task.network]
        i = network.make(task.vertices, task.edges, both_ways=found.both_ways)
        features = network.state(found, i, task.width)
        self._arguments = network.stack_parameters(found, task.width), features, i
        warm_up()
        step = jax.value_and_grad(network.stack(found, task.form), argnums=(0, 1))
        wall, cpu = time.perf_counter(), time.process_time()
        self._step = jax.jit(step).trace(*self._arguments).lower().compile()
        registered.finish()
        self._compiled = time.perf_counter() - wall, time.process_time() - cpu

    def facts(self) -> dict[str, Any]:
        """Seconds to compile, and bytes of XLA's temporaries."""
        memory: Any = self._step.memory_analysis()
        seconds, cpu = self._compiled
        return {"compile_seconds": seconds, "compile_cpu_seconds": cpu,
                "temp_bytes": memory.temp_size_in_bytes}  # fmt: skip

    def values(self) -> list[np.ndarray]:
        """The value, and the gradient by parameters and features."""
        import jax

        leaves = jax.tree.leaves(self._step(*self._arguments))
        return [np.asarray(x, np.float32) for x in leaves]

    def run(self, fill: float) -> list[float]:
        """Seconds of each of some steps, which fill `fill` seconds together."""
        import jax

        return in_row(lambda: jax.block_until_ready(self._step(*self._arguments)), fill)


def in_row(call: Any, fill: float) -> list[float]:
    """Seconds of each of up to `MOST` calls, until `fill` seconds are over."""
    found: list[float] = []
    while not found or (sum(found) < fill and len(found) < MOST):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return found


def warm_up() -> None:
    """Do what a process does once, whatever it compiles: it is not counted."""
    import jax
    import jax.numpy as jnp

    import gnnjit

    first = gnnjit.layer(lambda v, e: gnnjit.sum(jax.nn.relu(e.src + v)))
    graph = gnnjit.Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    x = jnp.ones((2, 3))
    loss = jax.grad(lambda x: jnp.square(first(graph, x) @ x.T).sum())
    jax.block_until_ready(jax.jit(loss)(x))


class Rate:
    """The machine's matrix peak."""

    def __init__(self, size: int):
        self._size = size

    def measure(self) -> float:
        """Operations a second of a square product in float32: the best of 5."""
        import jax
        import jax.numpy as jnp

        x = jnp.ones((self._size, self._size), jnp.float32)
        multiply = jax.jit(lambda x: x @ x)
        jax.block_until_ready(multiply(x))
        times = [in_row(lambda: jax.block_until_ready(multiply(x)), 0)[0] for _ in range(5)]
        return 2.0 * self._size**3 / min(times)


def _make(what: Task | int) -> Any:
    """A case, or the rate of a matrix product of that size."""
    if isinstance(what, int):
        return Rate(what)
    if what.form == "pyg":
        return importlib.import_module("edge_networks.with_pyg").PygCase(what)
    return JaxCase(what)


class Local:
    """A case in this process."""

    def __init__(self, what: Task | int):
        self._case = _make(what)

    def ask(self, method: str, *args: Any) -> Any:
        return getattr(self._case, method)(*args)

    def close(self) -> None:
        """Nothing to end."""


class Remote:
    """A case in a process of its own, with the same methods.

    Raises:
        Failed: where the case does, in the process.
    """

    def __init__(self, what: Task | int, variables: Mapping[str, str]):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        with _environment(variables):  # before the process loads JAX
            self._process = context.Process(target=_serve, args=(other, what), daemon=True)
            self._process.start()
        other.close()
        try:
            self._answer()
        except Failed:
            self.close()
            raise

    def ask(self, method: str, *args: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its answer says
            self._pipe.send((method, args))
        return self._answer()

    def _answer(self) -> Any:
        try:
            fine, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            raise Failed(f"the process ended with {self._process.exitcode}") from None
        if not fine:
            raise Failed(answer)
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(pipe: Any, what: Task | int) -> None:
    case: Any = None
    method, args = None, ()
    while True:
        try:
            if method is None:
                case, answer = _make(what), None
            else:
                answer = getattr(case, method)(*args)
            pipe.send((True, answer))
        except Exception as error:
            traceback.print_exc()
            text = (str(error).strip() or "no message").splitlines()[0]
            pipe.send((False, f"{type(error).__name__}: {text[:300]}"))
        try:
            method, args = pipe.recv()
        except EOFError:
            return
