"""Calibrated models on disk: one file a device, versions, dtype and vocabulary.

`cache_dir()/cost-model/PLATFORM-DTYPE-DIGEST.json`, where the digest is of the whole key: a model
of another device or version is not found, rather than found and wrong.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform as machine
import tempfile
import warnings
from pathlib import Path
from typing import Any, NoReturn

import jax

from gnnjit import config
from gnnjit.cost.kinds import SCHEMA
from gnnjit.cost.learner import Learner
from gnnjit.cost.model import CostModel
from gnnjit.errors import CostError

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
        """Of this process's first device, of `platform` where that is given. Raises RuntimeError
        where there is none."""
        device = jax.devices(platform)[0]
        name = _cpu_name() if device.platform == "cpu" else device.device_kind
        return cls(name, device.platform, str(dtype), config.cores())

    def path(self) -> Path:
        """Its file, which need not exist."""
        digest = _digest(dataclasses.asdict(self))[:16]
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
    file = key.path()
    try:
        return _parse(file.read_text(encoding="utf-8"), key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, CostError) as error:
        why = f"cannot be read, {error.strerror}" if isinstance(error, OSError) else error
    except (ValueError, OverflowError, RecursionError) as error:
        why = f"not JSON, {type(error).__name__}: {error}"
    warnings.warn(
        f"{file}: not a cost model for this device ({why}); it is ignored: run `gnnjit calibrate` "
        "to write it anew",
        stacklevel=2,
    )
    return None


def save(key: Key, stored: Stored) -> Path:
    """Store, in place of what was stored for `key`; the file. Raises CostError where it cannot be
    written."""
    data = {
        "format": FORMAT,
        "key": dataclasses.asdict(key),
        "weights": stored.model.to_json(),
        "learner": stored.learner.to_json(),
        "error": stored.error,
    }
    try:
        config.write_json(key.path(), {**data, "checksum": _digest(data)})
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


def _parse(text: str, key: Key) -> Stored:
    """Raises what `load` catches for a text that `save` has not written."""
    data = json.loads(text, parse_constant=_no_number)
    if not isinstance(data, dict) or "format" not in data:
        raise CostError("it has no format")
    if data["format"] != FORMAT:
        raise CostError(f"it has the format {data['format']!r}, expected {FORMAT}")
    checksum = data.pop("checksum", None)
    if checksum != _digest(data):
        raise CostError("its checksum is wrong: it is damaged, or was edited")
    found = data.get("key")
    expected = dataclasses.asdict(key)
    if found != expected:
        raise CostError(_difference(found, expected))
    learner = Learner.from_json(data.get("learner"))
    error = data.get("error")
    if not isinstance(error, int | float) or not 0 <= error < float("inf"):
        raise CostError(f"its error is {error!r}, expected a number >= 0")
    source = f"calibrated: {key.device}, {learner.points} points, mean error {error:.0%}"
    return Stored(CostModel.from_json(data.get("weights"), source), learner, float(error))


def _difference(found: Any, expected: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return "it does not say what it is for"
    wrong = [k for k in expected if found.get(k) != expected[k]]
    parts = [f"{k} {found.get(k)!r}, expected {expected[k]!r}" for k in wrong]
    return f"it is for {'; '.join(parts) or 'more than its key'}"


def _no_number(text: str) -> NoReturn:
    raise CostError(f"it holds {text}, expected finite numbers")


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _cpu_name() -> str:
    """JAX calls every CPU `cpu`; a home directory is often that of several."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else machine.processor() or machine.machine() or "cpu"
