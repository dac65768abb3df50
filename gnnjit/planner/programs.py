"""The programs of one call's alternatives, each made once.

Alternatives differ in few choices, so they share most passes: `prefix` depends on `on_edges` alone,
`middle` on all choices but those about traversals, which `weighed` and `optimise` add.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.pipeline import (
    AS_WRITTEN,
    Choices,
    layer_middle,
    layer_prefix,
    layer_suffix,
    run,
)
from gnnjit.system.contexts import cached


@cached(maxsize=4096)
def prefix(program: Program, padded: bool, on_edges: frozenset[Space]) -> Program:
    """A layer as it was written, after the passes that come before most choices."""
    return run(program, layer_prefix(padded, on_edges))


def middle(program: Program, padded: bool, choices: Choices) -> Program:
    """The program from which `store-edge-values` chooses. It is not verified: most never run."""
    choices = dataclasses.replace(choices, stored=(), split=False, limit=None)
    return _middle(program, padded, choices)


@cached(maxsize=8192)
def _middle(program: Program, padded: bool, choices: Choices) -> Program:
    return run(prefix(program, padded, choices.on_edges), layer_middle(choices), verified=False)


def weighed(program: Program, padded: bool, choices: Choices, *, online: bool) -> Program:
    """The program that an alternative is weighed by, not verified. Not `online`: as it is lowered
    where no kernel does a softmax in one traversal."""
    return _weighed(program, padded, _without_limit(choices), online)


@cached(maxsize=8192)
def _weighed(program: Program, padded: bool, choices: Choices, online: bool) -> Program:
    suffix = layer_suffix(choices, online=online)
    return run(middle(program, padded, choices), suffix, verified=False)


def optimise(program: Program, padded: bool, choices: Choices = AS_WRITTEN) -> Program:
    """The program that runs, verified at last."""
    return _optimised(program, padded, _without_limit(choices))


@cached(maxsize=8192)
def _optimised(program: Program, padded: bool, choices: Choices) -> Program:
    before = middle(program, padded, choices)
    verify(before)
    return run(before, layer_suffix(choices))


def _without_limit(choices: Choices) -> Choices:
    """The choices that make a program: the size of chunks does not change it."""
    return dataclasses.replace(choices, limit=None)
