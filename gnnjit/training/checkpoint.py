"""Checkpoints on disk: a directory per run, written so that a kill at any moment leaves it usable.

    DIR/identity.json        what the run depends on, compared on resume; empty until that is known
    DIR/streamed.json        into how many blocks a memory budget cut the vertices
    DIR/seed-0/20/           Orbax: arrays, and a record with everything else
    DIR/seed-0/30/           the two newest epochs are kept

Orbax writes into a temporary directory and renames it; `identity.json` is renamed into place too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from gnnjit.config import write_atomically
from gnnjit.training.errors import CheckpointError

_IDENTITY = "identity.json"
_STREAMED = "streamed.json"
_MISSING = "nothing"


class Checkpoints:
    """The checkpoint directory of a command: made new, or found and checked on resume."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, root: str | os.PathLike[str], identity: dict[str, Any], resume: bool) -> Any:
        """The checkpoints under `root`, of the run that `identity` describes.

        Raises:
            CheckpointError: if `root` holds something already and `resume` is False; if `resume`
                is True and there is nothing, or it belongs to a run with another identity.
        """
        root = _claimed(root, resume)
        saved = _read_identity(root) if resume else {}
        if saved:
            _same_identity(root, saved, identity)
        else:
            _write_json(root / _IDENTITY, identity)
        return cls(root)

    @classmethod
    def claim(cls, root: str | os.PathLike[str], resume: bool) -> None:
        """Before the identity is known, raise what `open` would of the directory, and make it: a
        run that is killed from now on can be resumed.

        Raises:
            CheckpointError: as `open`.
        """
        root = _claimed(root, resume)
        if not resume:
            _write_json(root / _IDENTITY, {})

    def remember(self, streamed: dict[str, Any]) -> None:
        """How the run is streamed, for `recall`."""
        _write_json(self.root / _STREAMED, streamed)

    def recall(self) -> dict[str, Any]:
        """What `remember` was told last; empty where nothing was."""
        try:
            return json.loads((self.root / _STREAMED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.root / _STREAMED} cannot be read ({error}): delete it, which may change "
                "the last bits of what follows"
            ) from error

    def run(self, name: str) -> RunCheckpoint:
        """The checkpoints of one run (a seed, a fold)."""
        return RunCheckpoint(self.root / name)


def _claimed(root: str | os.PathLike[str], resume: bool) -> Path:
    """Where checkpoints are, on resume, or may be put."""
    root = Path(root).expanduser().absolute()
    if resume:
        _read_identity(root)
    elif root.is_dir() and any(_IDENTITY not in path.name for path in root.iterdir()):
        raise CheckpointError(
            f"{root} is not empty, and nothing is overwritten: add --resume to continue the "
            f"run in it, or choose another directory"
        )
    return root


def _write_json(path: Path, data: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        raise CheckpointError(
            f"{path.parent} cannot be written ({error.strerror}): choose another --checkpoint "
            f"directory"
        ) from error


def _read_identity(root: Path) -> dict[str, Any]:
    path = root / _IDENTITY
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{root} holds no checkpoint to resume: leave out --resume to start a new run in it"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): the checkpoint is damaged; start anew in another "
            f"directory"
        ) from error


def _same_identity(root: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises CheckpointError naming every field in which the two differ."""
    differing = [
        f"{name} (checkpoint: {saved.get(name, _MISSING)}, now: {wanted.get(name, _MISSING)})"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name, _MISSING) != wanted.get(name, _MISSING)
    ]
    if differing:
        raise CheckpointError(
            f"{root} is of a run that differs in {', '.join(differing)}: pass the same options "
            f"again, or another --checkpoint directory without --resume"
        )


class RunCheckpoint:
    """Saves and restores (arrays, record) of one run, by epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, epoch: int, arrays: Mapping[str, np.ndarray], record: dict[str, Any]) -> None:
        """Write a checkpoint; on return it is complete and the one before last is deleted.

        Raises:
            CheckpointError: if the disk refuses it; the ones before stay.
        """
        arrays = dict(arrays)
        stored = {**record, "digest": digest(arrays)}
        args = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(stored)
        )
        try:
            with _manager(self.path) as manager:
                manager.save(epoch, args=args, force=True)
        except Exception as error:  # Orbax and TensorStore raise dozens of types
            raise CheckpointError(
                f"{self.path / str(epoch)} cannot be written ({_first_line(error)}): check the "
                f"disk, and continue from the checkpoint before it with --resume"
            ) from error

    def load(self, template: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The newest checkpoint; empty dictionaries where none was completed.

        Args:
            template: name -> anything with the `shape` and `dtype` that the array must have.

        Raises:
            CheckpointError: if it cannot be read, or does not hold what was written.
        """
        if not self.path.is_dir():
            return {}, {}
        with _manager(self.path) as manager:
            epoch = manager.latest_step()
            if epoch is None:
                return {}, {}
            shapes = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in template.items()}
            args = ocp.args.Composite(
                arrays=ocp.args.StandardRestore(shapes), record=ocp.args.JsonRestore()
            )
            where = self.path / str(epoch)
            try:
                restored = manager.restore(epoch, args=args)
            except Exception as error:  # Orbax and TensorStore raise dozens of types
                raise _damaged(where, _first_line(error)) from error
        arrays = {name: np.asarray(value) for name, value in restored["arrays"].items()}
        record = dict(restored["record"])
        if record.pop("digest", None) != digest(arrays):
            raise _damaged(where, "its arrays are not those that were saved")
        return arrays, record


def _manager(path: Path) -> ocp.CheckpointManager:
    """Of several processes, process 0 alone has one: Orbax waits for no others."""
    given: dict[str, Any] = {}
    if jax.process_count() > 1:
        path.mkdir(parents=True, exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix="gnnjit"
        )
        given = {"create": False, "multiprocessing_options": alone}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False, **given)
    return ocp.CheckpointManager(path, options=options)


def _damaged(where: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is damaged ({why}): delete it to resume from the checkpoint before it, or start "
        f"anew in another directory"
    )


def _first_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of names, types, shapes and contents."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name}:{array.dtype}:{np.shape(arrays[name])};".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree on the host, by number and path; random keys by their data."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(i, path): np.asarray(_plain(leaf)) for i, (path, leaf) in enumerate(flat)}


def fill(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """`tree` with its leaves replaced by those that `named_arrays` made from its like."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = []
    for i, (path, leaf) in enumerate(flat):
        array = jax.numpy.asarray(arrays[_name(i, path)])
        leaves.append(jax.random.wrap_key_data(array) if _is_key(leaf) else array)
    return jax.tree.unflatten(structure, leaves)


def _name(number: int, path: Any) -> str:
    words = re.sub(r"[^\w]+", ".", jax.tree_util.keystr(path)).strip(".")
    return f"{number}.{words}"


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
