"""`gnnjit opt`: passes over a program in the text of the IR."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Callable
from typing import Any

from gnnjit.cli.output import add_json_option, check_json, for_people, write_json
from gnnjit.config import path_of
from gnnjit.errors import LayerError, VerifyError
from gnnjit.ir.lines import ParseError
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.pipeline import Pass, layer_passes, lowering_passes
from gnnjit.passes.pipeline import run as run_passes
from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine, movable_matmuls
from gnnjit.passes.scores_as_products import MOST, ScoresAsProducts
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices
from gnnjit.passes.sink_vertex_work import SinkVertexWork
from gnnjit.passes.store_edge_values import StoreEdgeValues, storable_values

SUMMARY = "run passes of the compiler over a program that is written as text"

STDIN = "-"
ALL = "all"

EPILOG = """examples:
  gnnjit opt layer.txt                                     what every layer goes through
  gnnjit opt layer.txt --passes fold-constants,drop-dead   these alone, in this order
  gnnjit opt - --each < layer.txt                          the program after each pass

A program is written as layer.explain(...), gnnjit explain and GNNJIT_DEBUG=3 print it:

  layer gcn(e.src: f32[src, 4], w: f32[4, 3])
    a: f32[edge, 3] = e.src[u] @ w
    b: f32[dst, 3] = sum over (u -> v) of a
    return b

A pass that leaves a choice to the planner does all that it can where it is named: it moves every
matrix to the other side of its sums, stores every edge value, moves all work to the edges.
"""


@dataclasses.dataclass(frozen=True)
class Everywhere:
    """A pass with a choice at each place of a program, made the same at all of them."""

    name: str
    chosen: Callable[[Program], Pass]

    def __call__(self, program: Program) -> Program:
        return self.chosen(program)(program)


def _other_orders(program: Program) -> Pass:
    other: dict[Order, Order] = {
        "aggregate-first": "combine-first",
        "combine-first": "aggregate-first",
    }
    return ReorderAggregateCombine(tuple(other[site.written] for site in movable_matmuls(program)))


def _all_stored(program: Program) -> Pass:
    return StoreEdgeValues(tuple(range(len(storable_values(program)))))


def passes_by_name() -> dict[str, Pass]:
    """Every pass of the compiler, set as the pipeline of a layer has it, if it has it."""
    every: list[Pass] = [
        *lowering_passes(online=True, scale_on_edges=True, store_shared=True),
        *layer_passes(padded=False),
        ShieldUnreadVertices(True),
        Everywhere(ReorderAggregateCombine.name, _other_orders),
        ScoresAsProducts(MOST),
        SinkVertexWork(frozenset({Space.SRC, Space.DST})),
        Everywhere(StoreEdgeValues.name, _all_stored),
    ]
    return {step.name: step for step in every}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit opt`."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", metavar="FILE", help="a text of the IR; - is standard input")
    parser.add_argument(
        "--passes",
        default=ALL,
        metavar="NAMES",
        help=f"passes by name, with commas between them: {', '.join(sorted(passes_by_name()))}; "
        f"{ALL} stands for those that every layer goes through (default: {ALL})",
    )
    parser.add_argument(
        "--each", action="store_true", help="print the program after every pass that changed it"
    )
    add_json_option(parser, "the program, and after each pass that changed it")


def run(args: argparse.Namespace) -> int:
    """Print the program after the passes; the exit code."""
    check_json(args.json)
    passes = _passes(args.passes)
    program = _read(args.file)
    after: list[dict[str, Any]] = []

    def observe(step: Pass, before: Program, made: Program) -> None:
        if made != before:
            after.append({"pass": step.name, "program": show(made)})

    text = show(run_passes(program, passes, [observe]))
    write_json(args.json, {"program": text, "steps": after})
    out = for_people(args)
    if args.each and after:
        text = "\n\n".join(f"--- after {s['pass']}\n{s['program']}" for s in after)
    print(text, file=out)
    return 0


def _passes(names: str) -> list[Pass]:
    """Raises LayerError for a name of none."""
    known, out = passes_by_name(), list[Pass]()
    for name in names.split(","):
        if name == ALL:
            out += layer_passes(padded=False)
        elif name in known:
            out.append(known[name])
        else:
            close = difflib.get_close_matches(name, [*known, ALL], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            some = ", ".join(sorted(known))
            raise LayerError(f"--passes: got {name!r}, expected {ALL} or some of {some}{hint}")
    return out


def _read(file: str) -> Program:
    """The program in a file. Raises ParseError, which names the file and the line."""
    name = "standard input" if file == STDIN else file
    try:
        if file == STDIN:
            text = sys.stdin.read()
        else:
            text = path_of(file, "FILE", ParseError).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ParseError(
            f"{name} cannot be read ({reason}): name a file that holds a program, or - for "
            "standard input"
        ) from error
    try:
        program = parse(text)
        verify(program)
    except (ParseError, VerifyError) as error:
        raise ParseError(f"{name}: {error}") from error
    return program
