"""Checkpoints on disk: a directory per run, written so that a kill at any moment leaves it usable.

    DIR/identity.json        what the run depends on, compared on resume; empty until that is known
    DIR/streamed.json        into how many blocks a memory budget cut the vertices
    DIR/seed-0/20/           Orbax: arrays, and a record with everything else
    DIR/seed-0/30/           the two newest epochs are kept

Orbax writes into a temporary directory and renames it; the JSON files are renamed into place too.
Each JSON file holds a digest of its contents; the record of an epoch holds one of the arrays, of
itself, and of the identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from gnnjit.config import path_of
from gnnjit.system import cache
from gnnjit.training.errors import CheckpointError

_IDENTITY = "identity.json"
_STREAMED = "streamed.json"
_MISSING = "nothing"
_DIGEST = "sha256"
# What asyncio's messages about futures and tasks of Orbax and of TensorStore name.
_STORAGE = re.compile("OCDBT|orbax|tensorstore", re.IGNORECASE)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context in which Orbax prints nothing: no log, and no exceptions of its threads, of its
    futures and of TensorStore's callbacks; it raises those in the thread that asked as well.
    Callbacks and futures of what failed may come later, and say nothing then either."""
    logger, futures = logging.getLogger("absl"), logging.getLogger("asyncio")
    unraisable, threads = sys.unraisablehook, threading.excepthook
    level = logger.level

    def unraised(found: Any) -> None:
        if not (isinstance(found.exc_value, RuntimeError) and "Event loop" in str(found.exc_value)):
            unraisable(found)

    def in_thread(found: Any) -> None:
        if not (found.thread and type(found.thread).__module__.startswith("orbax.")):
            threads(found)

    def of_others(record: logging.LogRecord) -> bool:
        return not _STORAGE.search(record.getMessage())

    logger.setLevel(logging.CRITICAL + 1)
    futures.addFilter(of_others)
    sys.unraisablehook, threading.excepthook = unraised, in_thread
    failed = True
    try:
        yield
        failed = False
    finally:
        logger.setLevel(level)
        threading.excepthook = threads
        if not failed:
            futures.removeFilter(of_others)
            if sys.unraisablehook is unraised:  # else one within this context stays
                sys.unraisablehook = unraisable


class Checkpoints:
    """The checkpoint directory of a command: made new, or found and checked on resume."""

    def __init__(self, root: Path, identity: dict[str, Any]) -> None:
        self.root, self._identity = root, identity

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
        return cls(root, identity)

    @classmethod
    def claim(cls, root: str | os.PathLike[str], resume: bool) -> None:
        """Check and make the directory as `open` does, before the identity is known: a run that is
        killed from now on can be resumed.

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
        path = self.root / _STREAMED
        if not path.exists():
            return {}
        return _read_json(path, "delete it, which may change the last bits of what follows")

    def run(self, name: str) -> RunCheckpoint:
        """The checkpoints of one run (a seed, a fold)."""
        return RunCheckpoint(self.root / name, self._identity)


def _claimed(root: str | os.PathLike[str], resume: bool) -> Path:
    """Where checkpoints are, on resume, or may be put."""
    root = path_of(root, "--checkpoint", CheckpointError)
    if resume:
        _read_identity(root)
    elif root.is_dir() and any(_IDENTITY not in path.name for path in root.iterdir()):
        raise CheckpointError(
            f"{root} is not empty, and nothing is overwritten: add --resume to continue the "
            f"run in it, or choose another directory"
        )
    return root


def _write_json(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps({**data, _DIGEST: _digest_of_json(data)}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cache.write_atomically(path, text.encode())
    except OSError as error:
        raise CheckpointError(
            f"{path.parent} cannot be written ({error.strerror}): choose another --checkpoint "
            f"directory"
        ) from error


def _read_json(path: Path, do: str) -> dict[str, Any]:
    """What `_write_json` wrote. Raises CheckpointError, which says what to `do`, for anything
    else."""
    try:
        data = cache.read(path, finite=False)
    except (OSError, cache.Unusable) as error:
        raise CheckpointError(f"{path} cannot be read ({_first_line(error)}): {do}") from error
    if not isinstance(data, dict) or data.pop(_DIGEST, None) != _digest_of_json(data):
        raise CheckpointError(f"{path} is not as it was written, its digest is another: {do}")
    return data


def _read_identity(root: Path) -> dict[str, Any]:
    path = root / _IDENTITY
    if not path.exists():
        raise CheckpointError(
            f"{root} holds no checkpoint to resume: leave out --resume to start a new run in it"
        )
    return _read_json(path, "the checkpoint is damaged; start anew in another directory")


def _same_identity(root: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises CheckpointError naming every field in which the two differ."""
    differing = [
        f"{name} (checkpoint: {saved.get(name, _MISSING)}, now: {wanted.get(name, _MISSING)})"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name, _MISSING) != wanted.get(name, _MISSING)
    ]
    if differing:
        raise CheckpointError(
            f"{root} holds a run that differs in {', '.join(differing)}: pass the same options "
            f"again, or another --checkpoint directory without --resume"
        )


class RunCheckpoint:
    """Saves and restores (arrays, record) of one run, by epoch."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        """The checkpoints in `path`, of a run that `identity` describes."""
        self.path, self._identity = path, identity

    def save(self, epoch: int, arrays: Mapping[str, np.ndarray], record: dict[str, Any]) -> None:
        """Write a checkpoint; on return it is complete and the one before last is deleted.

        Raises:
            CheckpointError: if the disk refuses it; the ones before stay.
        """
        arrays = dict(arrays)
        stored = {**record, _DIGEST: self._digest(epoch, arrays, record)}
        args = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(stored)
        )
        try:
            with quiet(), _manager(self.path) as manager:
                manager.save(epoch, args=args, force=True)
        except Exception as error:  # Orbax and TensorStore raise dozens of types
            _raise_interrupt(error)
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
        with quiet(), _manager(self.path) as manager:
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
                _raise_interrupt(error)
                raise _damaged(where, _first_line(error)) from error
        arrays = {name: np.asarray(value) for name, value in restored["arrays"].items()}
        record = dict(restored["record"])
        if record.pop(_DIGEST, None) != self._digest(epoch, arrays, record):
            raise _damaged(where, "its arrays or its record are not those that were saved")
        return arrays, record

    def _digest(self, epoch: int, arrays: Mapping[str, Any], record: dict[str, Any]) -> str:
        """A hash of all that must not change between saving and loading."""
        return _digest_of_json([self._identity, epoch, digest(arrays), record])


def _manager(path: Path) -> ocp.CheckpointManager:
    """Orbax's manager of a folder. Where there are several processes, process 0 alone has one, and
    waits for no others."""
    given: dict[str, Any] = {}
    if jax.process_count() > 1:
        path.mkdir(parents=True, exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix="gnnjit"
        )
        given = {"create": False, "multiprocessing_options": alone}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False, **given)
    return ocp.CheckpointManager(path, options=options)


def _raise_interrupt(error: BaseException) -> None:
    """Raises KeyboardInterrupt where one of the user led to `error`."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        found = found.__cause__ or found.__context__


def _damaged(where: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is damaged ({why}): delete it to resume from the checkpoint before it, or start "
        f"anew in another directory"
    )


def _first_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def _digest_of_json(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
    """`tree` with its leaves replaced by `arrays`, made by `named_arrays` from a tree like it."""
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
