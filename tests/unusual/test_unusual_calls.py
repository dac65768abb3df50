"""2,000 malformed or unusual calls, drawn from a seed: a named error, or the right result.

Each family is a function that draws one call: what it was (for the message), the call, and an
oracle in NumPy that gives the right result or raises where there is none. To cover more, write
another family and list it in `FAMILIES`.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.errors import LayerError

from .calls import Call, Pick, complaint, nothing_right
from .graphs import (
    batch_call,
    edges_call,
    graph_call,
    other_call,
    pad_call,
    streamed_call,
)
from .layers import (
    arguments_call,
    dropout_call,
    layer_call,
    tool_call,
    tool_options_call,
    word_call,
)
from .modules import make_call, module_call

CALLS = 2_000

FAMILIES: dict[Callable[[Pick], Call], int] = {
    layer_call: 14, word_call: 3, dropout_call: 1, arguments_call: 2, tool_call: 1,
    tool_options_call: 1, module_call: 3, make_call: 4, edges_call: 8, batch_call: 2, pad_call: 2,
    graph_call: 1, streamed_call: 3, other_call: 6,
}  # fmt: skip
"""Each family, and how often it is drawn."""


def drawn(seed: int) -> tuple[str, Call]:
    pick = Pick(seed)
    families = [f for f, weight in FAMILIES.items() for _ in range(weight)]
    call = families[pick.rng.integers(len(families))](pick)
    return f"{seed}: {call.what}({', '.join(pick.names)})", call


@pytest.mark.long
def test_unusual_calls_have_named_errors_or_right_results():
    """In one test: each process that runs a part of them compiles what it needs anew."""
    complaints = []
    for seed in range(CALLS):
        name, call = drawn(seed)
        if (wrong := complaint(call)) is not None:
            complaints.append(f"{name}: {wrong}")
    assert not complaints, "\n".join([f"{len(complaints)} of {CALLS}", *complaints[:40]])


@pytest.mark.once
def test_the_calls_are_many_kinds_and_the_oracle_is_asked():
    """Neither all right nor all wrong; and the judge sees what it is there to see."""
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(0, CALLS, 10):
        _, call = drawn(seed)
        try:
            kinds["unknown" if call.oracle() is None else "right"] += 1
        except Exception:
            kinds["wrong"] += 1
    assert min(kinds[k] for k in ("right", "wrong", "unknown")) > 20, kinds

    def fails(error: Exception) -> Callable[[], Any]:
        def call() -> Any:
            raise error

        return call

    planted = [
        Call("", lambda: os.environ["no such variable"], nothing_right),
        Call("", fails(LayerError("x" * 1001)), nothing_right),
        Call("", fails(LayerError("named")), lambda: np.ones(3)),
        Call("", lambda: jnp.ones(3), nothing_right),
        Call("", lambda: jnp.ones(3), lambda: np.ones(4)),
        Call("", lambda: jnp.ones(3), lambda: np.zeros(3), values=True),
    ]
    assert all(complaint(call) for call in planted)
    assert complaint(Call("", lambda: jnp.ones(3), lambda: np.ones(3), values=True)) is None
