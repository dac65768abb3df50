"""State beside a function's arguments: what the trace of a layer may not change.

A layer is traced once for all vertices and edges. What it would store (the statistics of batch
normalisation, a sown value, a parameter made on the spot) is a placeholder of the trace, no array.
nnx notices by itself; linen, Haiku and plain objects are compared before and after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.errors import LayerError

_BATCH_NORM = (
    "runs batch normalisation in training mode: its mean and variance are over all vertices, and a "
    "layer computes one. Apply it between layers, on arrays [N, F], or pass "
    "use_running_average=True inside"
)
_SOWN = (
    "sows a value: a layer is traced once for all vertices and edges, so there is no array to keep "
    "yet. Return the value too (return y, value) and sow it where the layer is called"
)
_DRAWN = (
    "draws a key from {0}, which counts: the layer is traced once, apart from the state of the "
    "model. Draw the key outside and pass it, layer(graph, x, key={1}); inside, use "
    "gnnjit.dropout(value, rate, key) in place of Dropout"
)
_STORED = (
    "stores a value of its trace in {0}: a layer is traced once for all vertices and edges, so "
    "there is no array to keep yet. Return the value too, and store it where the layer is called"
)
_MADE = (
    "makes {0} while it is traced, so there is no array to keep yet. Make it before the layer, and "
    "let the layer capture it or pass it as a parameter: w = {1}(...); layer(graph, x, w)"
)


def active_linen(owner: Any) -> Any:
    """The linen module whose method is running: `owner`, or the one around a layer without an
    owner; None where there is none."""
    if owner is not None:
        return owner if hasattr(owner, "is_initializing") else None
    linen = sys.modules.get("flax.linen.module")
    return linen._context.module_stack[-1] if linen is not None else None


def library_message(error: Exception) -> str | None:
    """What a layer does wrong where Flax refuses a change of its state, to follow the layer's name;
    None on other errors."""
    if not type(error).__module__.startswith("flax."):
        return None
    text, kind = str(error), type(error).__name__
    if kind == "ModifyScopeVariableError":
        found = re.search(r'variable "(.*?)" in "/?(.*?)" because collection "(.*?)"', text)
        return None if found is None else _of_linen(found[3], f"{found[2]}/{found[1]}".strip("/"))
    found = re.search(r"Cannot mutate '?(\w+)'?", text)
    if kind == "ImmutableVariableError":
        return _STORED.format("a Variable of nnx")
    if kind != "TraceContextError" or found is None:
        return None
    if found[1] == "BatchStat" and "._spectral_normalize" not in _functions(error):
        return _BATCH_NORM
    if found[1] in ("RngCount", "RngKey"):
        return _DRAWN.format("nnx.Rngs", "rngs()")
    if found[1] == "Intermediate" or ".sow" in _functions(error):
        return _SOWN
    return _STORED.format(f"an object of nnx ({found[1]})")


def _functions(error: BaseException) -> str:
    """The functions that an error passed through, each after a dot."""
    names, at = [], error.__traceback__
    while at is not None:
        names.append("." + at.tb_frame.f_code.co_name)
        at = at.tb_next
    return " ".join(names)


@contextlib.contextmanager
def unchanged(owner: Any, what: str) -> Iterator[None]:
    """Within it, a layer is traced; afterwards no state holds a value of that trace.

    Raises LayerError, with the state as it was, where a layer stored one. Values that are no
    tracers (counters, names) stay changed.
    """
    kept = list(_states(owner))
    try:
        yield
    except LayerError as error:
        found = _first(kept)
        _restore(kept)
        if found is None:
            raise
        raise LayerError(f"{what} {found}") from error  # what it did first
    except BaseException:
        _restore(kept)
        raise
    found = _first(kept)
    if found is not None:
        _restore(kept)
        raise LayerError(f"{what} {found}")


@dataclasses.dataclass(frozen=True)
class _State:
    """Nested containers that may change: how to read them, what they held, how to put that back,
    and what to say of a change at a path."""

    read: Callable[[], Any]
    before: Any
    restore: Callable[[Any], None]
    message: Callable[[tuple[str, ...]], str]


def _first(kept: list[_State]) -> str | None:
    """What to say of the first state that holds a value of the trace, if any does."""
    for state in kept:
        path = _changed(state.read(), state.before)
        if path is not None:
            return state.message(path)
    return None


def _in(tree: Any, message: Callable[[tuple[str, ...]], str], before: Any = None) -> _State:
    """Containers that are changed in place."""
    held = _copy(tree) if before is None else before
    return _State(lambda: tree, held, lambda was: _put_back(tree, was), message)


def _states(owner: Any) -> Iterator[_State]:
    root = getattr(getattr(active_linen(owner), "scope", None), "root", None)
    if root is not None and hasattr(root, "_variables"):
        mutable = root.is_mutable_collection
        before = {k: _copy(v) if mutable(k) else v for k, v in root._variables.items()}
        yield _in(root._variables, lambda p: _of_linen(p[0], "/".join(p[1:])), before)
    elif hasattr(owner, "__dict__") and not isinstance(owner, type):
        kind = type(owner).__name__
        yield _in(vars(owner), lambda p: _STORED.format(".".join([kind, *p])))
    haiku = sys.modules.get("haiku._src.base")
    for frame in haiku.frame_stack if haiku is not None else ():
        yield from _of_haiku(frame)


def _of_haiku(frame: Any) -> Iterator[_State]:
    yield _in(
        frame.params,
        lambda p: _MADE.format(f"the parameter {'/'.join(p)} of Haiku", "hk.get_parameter"),
    )
    if frame.state is not None:
        yield _in(frame.state, lambda p: _STORED.format(f"the state {'/'.join(p[:2])} of Haiku"))
    keys = frame.rng_stack.peek() if frame.rng_stack else None
    if keys is not None:
        yield _State(
            lambda: keys.internal_state,
            keys.internal_state,
            keys.replace_internal_state,
            lambda p: _DRAWN.format("Haiku", "hk.next_rng_key()"),
        )


def _of_linen(collection: str, path: str) -> str:
    if collection == "batch_stats" and path.split("/")[-1] in ("mean", "var"):
        return _BATCH_NORM
    if collection == "intermediates":
        return _SOWN
    if collection == "params":
        return _MADE.format(f"the parameter {path} of linen", "self.param")
    return _STORED.format(f"the variable {collection}/{path} of linen")


_MOST = 1000
"""Entries of a container that is looked into: a longer one is data, or a history."""


def _copy(tree: Any) -> Any:
    """Other containers of the same values; what is no container, or too long, as it is."""
    if isinstance(tree, dict) and len(tree) <= _MOST:
        return {k: _copy(v) for k, v in tree.items()}
    if isinstance(tree, (list, deque)) and len(tree) <= _MOST:
        return [_copy(v) for v in tree]
    return tree


def _items(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict):
        yield from tree.items()
    elif isinstance(tree, (list, tuple, deque)):
        yield from enumerate(tree)


def _changed(tree: Any, before: Any) -> tuple[str, ...] | None:
    """The path of a tracer in `tree` that was not there before, if any."""
    if isinstance(tree, _compat.Tracer):
        return () if tree is not before else None
    was = dict(_items(before))
    for key, value in _items(tree):
        if value is was.get(key, _ABSENT):  # a container: not copied, so nothing to compare
            continue
        path = _changed(value, was.get(key, _ABSENT))
        if path is not None:
            return (str(key), *path)
    return None


_ABSENT = object()


def _restore(kept: list[_State]) -> None:
    for state in kept:
        state.restore(state.before)


def _put_back(tree: Any, before: Any) -> None:
    """`tree` as it was when copied, in place: scopes share parts of it."""
    was = dict(_items(before))
    if isinstance(tree, (list, deque)):
        tree.clear()
        tree.extend(before)
        return
    for key in [k for k in tree if k not in was]:
        del tree[key]
    for key, value in was.items():
        now = tree.get(key, _ABSENT)
        if now is value:
            continue
        if type(now) in (dict, list, deque) and isinstance(value, (dict, list)):
            _put_back(now, value)
        else:
            tree[key] = value


def names_of(owner: Any, arrays: Sequence[Any]) -> list[str | None]:
    """What the module `owner` calls each of some arrays, as a path: `self.linear.kernel`; None for
    those that are none of its parameters."""
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    found: dict[int, str] = {}
    if nnx is not None and isinstance(owner, nnx.Module):
        for path, variable in nnx.to_flat_state(nnx.state(owner)):
            for leaf in jax.tree.leaves(variable):
                found.setdefault(id(leaf), ".".join(["self", *map(str, path)]))
    elif linen is not None and isinstance(owner, linen.Module):
        for path, leaf in jax.tree_util.tree_flatten_with_path(dict(owner.variables))[0]:
            keys = [str(getattr(key, "key", key)) for key in path[1:]]
            found.setdefault(id(leaf), ".".join(["self", *keys]))
    return [found.get(id(array)) for array in arrays]
