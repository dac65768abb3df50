"""The closing table of `gnnjit train` compares two programs."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import gnnjit
from gnnjit.data import communities
from gnnjit.lower import cpu
from gnnjit.training import TrainConfig, performance, steps
from gnnjit.training.tasks import VertexTask


def durations(f: Any) -> tuple[Any, list[float]]:
    """What `f` gives, and the seconds of each of XLA's compilations in it."""
    found: list[float] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        return f(), found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(scope="module")
def made():
    """A program of training, its task, and what both compile to."""
    dataset = communities(num_nodes=400, num_classes=3, num_features=8, avg_degree=20)
    config = TrainConfig(model="gcn", hidden=8, epochs=1)
    recipe = config.recipe("vertex")
    task = VertexTask(dataset)

    def build(rngs: Any) -> Any:
        return recipe.build(dataset.num_features, dataset.num_classes, rngs)

    program = steps.ModelFunctions(build, config)
    mine = program.compile(task)
    other, seconds = durations(lambda: program.compile(task, gnnjit.reference()))
    return program, task, mine, other, seconds


@pytest.mark.parametrize("which", ["update", "evaluate"])
def test_the_programs_differ(made, which):
    mine, other = (getattr(x, which).as_text() for x in made[2:4])
    assert mine != other
    assert "gnnjit_cpu_" not in other
    assert ("gnnjit_cpu_" in mine) is cpu.available()


def test_the_reference_has_the_buffers_of_edges(made):
    _, task, mine, other, _ = made
    edges = task.eval_batches()[0].graph.num_edges
    assert other.temp_bytes > mine.temp_bytes + 4 * 8 * edges


def test_its_time_is_that_of_compiling(made):
    *_, other, seconds = made
    assert len(seconds) >= 2  # an update, an evaluation
    assert other.seconds > sum(seconds)


def test_afterwards_the_program_is_what_it_was(made):
    program, task, mine, *_ = made
    again = program.compile(task)
    assert again.update.as_text() == mine.update.as_text()


def test_what_is_reported_is_of_the_reference(made):
    program, task, mine, other, _ = made
    found = performance.reference_cost(program, task, epochs=1)
    assert found["temp_bytes"] == other.temp_bytes > mine.temp_bytes
