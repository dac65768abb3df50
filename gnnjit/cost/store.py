"""Calibrated models on disk: one file a device, versions, dtype and vocabulary.

`cache_dir()/cost-model/PLATFORM-DTYPE-DIGEST.json`, where the digest is of the whole key: a model
of another device or version is not found, rather than found and wrong.
"""

from __future__ import annotations

import dataclasses
import platform as machine
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import jax

from gnnjit import config
from gnnjit.cost.kinds import SCHEMA
from gnnjit.cost.learner import Learner
from gnnjit.cost.model import CostModel
from gnnjit.errors import CostError
from gnnjit.system import cache

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Key:
    """What a model holds for. `device`: its name; `cores`: CPUs that the process may use;
    `schema`: of the kinds and features."""

    device: str
    platform: str
    dtype: str
    cores: int
    jax: str = jax.__version__
    jaxlib: str = config.version("jaxlib")
    gnnjit: str = config.version("gnnjit")
    schema: str = SCHEMA

    @classmethod
    def here(cls, platform: str | None = None, dtype: str = "float32") -> Key:
        """The key of this process's first device, or the first of `platform`. Raises RuntimeError
        where there is none."""
        device = jax.devices(platform)[0]
        name = _cpu_name() if device.platform == "cpu" else device.device_kind
        return cls(name, device.platform, str(dtype), config.cores())

    def path(self) -> Path:
        """Its file, which need not exist."""
        digest = cache.digest(dataclasses.asdict(self))[:16]
        return folder() / f"{self.platform}-{self.dtype}-{digest}.json"


@dataclasses.dataclass(frozen=True)
class Stored:
    """A calibrated model.

    Attributes:
        model: the weights.
        learner: what learning goes on from.
        error: mean absolute relative error on the points of the calibration.
    """

    model: CostModel
    learner: Learner
    error: float


def folder() -> Path:
    return config.cache_dir() / "cost-model"


def load(key: Key) -> Stored | None:
    """What is stored for `key`; nothing, with a warning, where the file is damaged or not ours."""
    return cache.load(
        key.path(),
        lambda data: _parse(data, key),
        "a cost model for this device",
        ": run `gnnjit calibrate` to write it anew",
    )


def save(key: Key, stored: Stored) -> Path:
    """Store, in place of what was stored for `key`; the file. Raises CostError where it cannot be
    written."""
    fields = {
        "weights": stored.model.to_json(),
        "learner": stored.learner.to_json(),
        "error": stored.error,
    }
    try:
        cache.write_sealed(key.path(), FORMAT, _key(key), fields)
    except OSError as error:
        _unwritable(error)
    return key.path()


def check_writable() -> None:
    """Raises CostError if `save` could not write: known before the measuring."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            pass
    except OSError as error:
        _unwritable(error)


def _unwritable(error: OSError) -> NoReturn:
    raise CostError(
        f"{folder()}: the cost model cannot be stored there ({error.strerror}); set "
        "XDG_CACHE_HOME to a directory that can be written, or pass --dry-run to store nothing"
    ) from error


def _key(key: Key) -> dict[str, Any]:
    return {"key": dataclasses.asdict(key)}


def _parse(data: Any, key: Key) -> Stored:
    """Raises what `load` catches for a file that `save` has not written."""
    data = cache.unsealed(data, FORMAT, _key(key))
    learner = Learner.from_json(data.get("learner"))
    error = data.get("error")
    if not isinstance(error, int | float) or not 0 <= error < float("inf"):
        raise CostError(f"its error is {error!r}, expected a number >= 0")
    source = f"calibrated: {key.device}, {learner.points} points, mean error {error:.0%}"
    return Stored(CostModel.from_json(data.get("weights"), source), learner, float(error))


def _cpu_name() -> str:
    """JAX calls every CPU `cpu`; a home directory is often that of several."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else machine.processor() or machine.machine() or "cpu"
