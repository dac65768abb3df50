"""Hypothesis draws the same examples in every run: a red test stays red."""

from __future__ import annotations

import collections
import gc
import os
import tempfile
import threading
from collections.abc import Iterator

import hypothesis
import jax
import pytest
from jax._src.interpreters import mlir

hypothesis.settings.register_profile(
    "gnnjit", derandomize=True, deadline=None, max_examples=20, print_blob=False
)
# For `.ci/run` on the newest JAX: what does not depend on its version was drawn before.
hypothesis.settings.register_profile(
    "few", hypothesis.settings.get_profile("gnnjit"), max_examples=6
)
hypothesis.settings.load_profile("gnnjit")

# The processor counts as 8 devices, for tests/shard; all others use the first. It must be said
# before JAX starts, so it is said to all: they took the same processor time with it.
jax.config.update("jax_num_cpu_devices", 8)

if jax.__version_info__ < (0, 11):
    # XLA emits loops without MLIR, as it did until 2025. That compiles faster, and most tests
    # spend their time compiling: tests/nn takes two thirds of the time. Later releases of XLA have
    # no such flag. Processes that tests start have them too, but for a few tests that clear them.
    os.environ["XLA_FLAGS"] = " ".join([
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ])  # fmt: skip


COMPILED = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
"""Where JAX keeps compiled programs, and which."""


@pytest.fixture
def loops_stay(monkeypatch):
    """Short loops and conditions stay loops and conditions in layers, as long ones do."""
    monkeypatch.setattr("gnnjit.frontend.straightened.MOST", 0)


def pytest_configure(config: pytest.Config) -> None:
    """What one test has compiled is not compiled again for another (8 % of all tests' time).

    In processes that tests start, too, where the test says so (`shared_compilation`): others are
    killed, and JAX writes its cache in place.
    """
    # Before JAX compiles anything: it looks once whether there is a cache.
    compiled = tempfile.TemporaryDirectory(prefix="gnnjit-compiled-", ignore_cleanup_errors=True)
    config.add_cleanup(compiled.cleanup)
    for name, value in zip(COMPILED, (compiled.name, 0.0, -1), strict=True):
        jax.config.update(name, value)
    share_contexts_of_mlir()


def share_contexts_of_mlir() -> None:
    """JAX makes a context of MLIR whenever it lowers a function, and each reads all operations that
    there are: a fifth of the time of tests in this process. Here a thread makes one for 200
    functions; more would keep too many of their types and constants. What is lowered while another
    function is has one of its own, or it would become a part of the other."""
    make = getattr(mlir, "make_ir_context", None)
    if make is None:  # another JAX: slower, and the same
        return
    made = threading.local()

    def context() -> object:
        if mlir.ir.Context.current is not None:
            return make()
        made.uses = getattr(made, "uses", 0) + 1
        if made.uses % 200 == 1:
            made.context = make()
        return made.context

    mlir.make_ir_context = context


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is in memory now stays, and collections of garbage pass it by: a twelfth less time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in", type=int, default=1, metavar="N",
        help="of the tests of each module, run the first and every Nth after it",
    )  # fmt: skip
    parser.addoption("--long", action="store_true", help="the long cases too, as CI runs them")
    parser.addoption(
        "--all-cases", action="store_true",
        help="tests/kernels/test_executed.py: every layer on every graph, at every width",
    )  # fmt: skip


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """All cores for all tests, and this process alone for a part of them that is named."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return 0
    from gnnjit.config import cores

    return min(cores(), 8)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: collections.Counter[str] = collections.Counter()
    kept, left_out = [], []
    long = config.getoption("long") or config.getoption("all_cases")
    for item in items:
        if item.get_closest_marker("long") and not long:
            left_out.append(item)
            continue
        module = item.nodeid.partition("::")[0]
        (left_out if seen[module] % config.getoption("one_in") else kept).append(item)
        seen[module] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def few_readings() -> Iterator[None]:
    """Whatever is timed while layers are tested: not for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnnjit.system.timing.FILL", 0.0)
        patch.setattr("gnnjit.system.timing.ROUNDS", 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was calibrated and tuned on this machine decides nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def little_to_collect() -> None:
    """For tests that collect garbage: not again and again what hundreds of tests before have left
    in JAX's caches. Layouts within the memory of a process did, for forty seconds in a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """XLA optimises machine code little, in processes started meanwhile too."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name.upper(), "1")
        jax.config.update(name, True)
        yield
        jax.config.update(name, before)


@pytest.fixture(scope="module")
def shared_compilation() -> Iterator[None]:
    """What a process has compiled is not compiled again by those that are started after it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in COMPILED:
            patch.setenv(name.upper(), str(getattr(jax.config, name)))
        yield


@pytest.fixture(scope="module", autouse=True)
def compilation(request: pytest.FixtureRequest) -> None:
    """Most modules compile far longer than they run, and compare values. Those of the lowerings
    have the values of optimised machine code, but for what says so itself."""
    if "lower" not in request.path.parts:
        request.getfixturevalue("quick_compilation")
