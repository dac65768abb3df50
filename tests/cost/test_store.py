"""Calibrated models on disk, and the one in use."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gnnjit.cost import current as current_module
from gnnjit.cost import store
from gnnjit.cost.current import current, forget, use
from gnnjit.cost.defaults import default_model
from gnnjit.cost.kinds import KINDS, NAMES
from gnnjit.cost.learner import Learner
from gnnjit.cost.model import CostModel, Work
from gnnjit.cost.store import Key, Stored
from gnnjit.errors import CostError
from gnnjit.system.cache import digest

KEY = Key("a processor", "cpu", "float32", 2, "0.10.2", "0.10.2", "0.1.0")
MODEL = CostModel(np.linspace(1e-6, 2e-6, len(NAMES)))
KIND, FEATURE = next((k, f[0]) for k, f in KINDS.items())


def stored() -> Stored:
    learner = Learner(MODEL)
    learner.observe(Work(np.ones(len(NAMES))), 1e-3)
    return Stored(MODEL, learner, 0.125)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "gnnjit" / "cost-model"
    forget()


def ignored(reason: str, key: Key = KEY) -> None:
    """The whole text of the one warning that `load` gives; it finds nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert store.load(key) is None
    (warning,) = caught
    assert re.fullmatch(
        re.escape(f"{key.path()}: not a cost model for this device (")
        + reason
        + re.escape("); it is ignored: run `gnnjit calibrate` to write it anew"),
        str(warning.message),
    )


def rewrite(change: dict[str, Any]) -> None:
    """The stored file with some entries changed, and a checksum that fits."""
    file = store.save(KEY, stored())
    data = {**json.loads(file.read_text()), **change}
    del data["checksum"]
    data["checksum"] = digest(data)
    file.write_text(json.dumps(data))


def test_what_is_stored_is_loaded(cache):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load(KEY) is None
        file = store.save(KEY, stored())
        found = store.load(KEY)
    assert file == KEY.path()
    assert file.parent == cache
    assert file.name.startswith("cpu-float32-")
    assert [p.name for p in cache.iterdir()] == [file.name]
    assert found is not None
    assert found.model == MODEL
    assert found.model.source == "calibrated: a processor, 1 points, mean error 12%"
    assert found.learner.model() == stored().learner.model()
    assert found.error == 0.125


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Key)])
def test_every_part_of_the_key_has_its_own_file(name):
    changed = 4 if name == "cores" else "other"
    assert dataclasses.replace(KEY, **{name: changed}).path() != KEY.path()


def test_the_key_of_this_process():
    key = Key.here(dtype="bfloat16")
    first = jax.devices()[0]
    assert (key.platform, key.dtype, key.jax) == (first.platform, "bfloat16", jax.__version__)
    assert key.cores >= 1
    assert key.device not in ("", "cpu")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON, JSONDecodeError: .*"),
        ("cost", "not JSON, JSONDecodeError: .*"),
        ("\udcff", "not JSON, UnicodeDecodeError: .*"),
        ("[" * 100_000, "not JSON, RecursionError: .*"),
        ("[]", "it has no format"),
        ("{}", "it has no format"),
        ('{"format": 7}', "it has the format 7, expected 1"),
        ('{"format": NaN}', "it holds NaN, expected finite numbers"),
        ('{"format": 1}', "its checksum is wrong: it is damaged, or was edited"),
    ],
)
def test_files_of_others_are_ignored(text, reason, cache):
    cache.mkdir(parents=True)
    KEY.path().write_bytes(text.encode(errors="surrogateescape"))
    ignored(reason)


def test_a_truncated_file_is_ignored():
    file = store.save(KEY, stored())
    file.write_bytes(file.read_bytes()[:-100])
    ignored("not JSON, JSONDecodeError: .*")


def test_an_edited_file_is_ignored():
    file = store.save(KEY, stored())
    file.write_text(file.read_text().replace("0.125", "0.126"))
    ignored("its checksum is wrong: it is damaged, or was edited")


def test_a_file_of_another_key_is_ignored():
    other = dataclasses.replace(KEY, cores=8, schema="other")
    store.save(KEY, stored()).rename(other.path())
    ignored(f"it is for cores 2, expected 8; schema '{KEY.schema}', expected 'other'", other)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (-1.0, f"the weight {KIND}.{FEATURE} is -1.0, expected a finite number >= 0"),
        (float("nan"), "it holds NaN, expected finite numbers"),
        (float("inf"), "it holds Infinity, expected finite numbers"),
        (10**400, "OverflowError: .*"),
        ("fast", f"the weight {KIND}.{FEATURE} is 'fast', expected a number"),
    ],
)
def test_impossible_weights_are_ignored(weight, reason):
    weights = MODEL.to_json()
    weights[KIND][FEATURE] = weight
    rewrite({"weights": weights})
    ignored(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": None}, "it does not say what it is for"),
        ({"weights": {}}, r"the weight [a-z_.]+ is missing"),
        ({"learner": None}, r"the learner is damaged \(TypeError: .*\)"),
        ({"error": None}, "its error is None, expected a number >= 0"),
        ({"error": -0.5}, "its error is -0.5, expected a number >= 0"),
    ],
)
def test_incomplete_files_are_ignored(change, reason):
    rewrite(change)
    ignored(reason)


def test_a_file_that_cannot_be_read_is_ignored():
    KEY.path().mkdir(parents=True)
    ignored("cannot be read, Is a directory")


def test_a_directory_that_cannot_be_written(cache):
    cache.parent.write_text("a file in the way")
    message = re.escape(
        f"{cache}: the cost model cannot be stored there (Not a directory); set XDG_CACHE_HOME to "
        "a directory that can be written, or pass --dry-run to store nothing"
    )
    with pytest.raises(CostError, match=message):
        store.check_writable()
    with pytest.raises(CostError, match=message):
        store.save(KEY, stored())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load(KEY) is None
        assert current() == default_model(jax.default_backend())


def test_a_directory_that_can_be_written_is_left_empty(cache):
    store.check_writable()
    assert list(cache.iterdir()) == []


def test_the_current_model_is_read_once():
    shipped = default_model(jax.default_backend())
    assert current().source == shipped.source
    store.save(Key.here(), stored())
    assert current() == shipped
    forget()
    assert current() == current(jax.default_backend(), "float32") == MODEL
    assert current().source.startswith("calibrated: ")
    assert current(dtype="bfloat16") == shipped


def test_a_damaged_file_is_warned_of_once():
    store.save(Key.here(), stored()).write_text("{")
    with pytest.warns(UserWarning, match="not a cost model for this device") as caught:
        found = [current(), current(), current(jax.default_backend())]
    assert len(caught) == 1
    assert found == [default_model(jax.default_backend())] * 3


def test_platforms_without_a_device(monkeypatch):
    def none(platform=None):
        raise RuntimeError("Unknown backend")

    monkeypatch.setattr(current_module.Key, "here", lambda *_: none())
    assert current("cuda").source == current("gpu").source == default_model("gpu").source
    assert current("tpu").source == default_model("tpu").source


def test_use_forces_a_model_and_compiles_anew():
    seen = []

    @jax.jit
    def f(x):
        seen.append(current())
        return x

    shipped = current()
    f(1.0)
    with use(MODEL):
        assert current() == current("gpu", "bfloat16") == MODEL
        f(1.0)
        with use(shipped):
            assert current() == shipped
    with use(CostModel(MODEL.weights)):
        f(1.0)
    f(1.0)
    assert seen == [shipped, MODEL]
    assert current() == shipped
