"""The options of `gnnjit train` that say what batches are sampled."""

from __future__ import annotations

import argparse
from typing import Any

from gnnjit.cli.output import named_options
from gnnjit.training.errors import TrainError
from gnnjit.training.sampled import SAMPLERS, Sampling


def add_sampling_options(group: Any) -> None:
    """Add the options that say what batches are sampled."""
    group.add_argument(
        "--sampler",
        choices=(*SAMPLERS, "none"),
        help="train on sampled batches instead of the whole graph; it is still evaluated on the "
        "whole one. neighbor: labelled vertices and some neighbours of each; frontier, walk, "
        "vertex, edge: subgraphs, also those that facts are drawn from; cluster: parts of the "
        "graph; none: the whole graph (default: recipe)",
    )
    group.add_argument(
        "--fanouts",
        metavar="N,N",
        help="neighbours that a vertex draws, for each layer, from the labelled vertices on; -1 "
        "for all (default: 15,10)",
    )
    group.add_argument(
        "--sampler-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the sampler, such as vertices=4000; may be repeated",
    )
    group.add_argument(
        "--normalize",
        action="store_true",
        help="weigh losses and means by how often frontier, walk, vertex or edge draws a vertex or "
        "edge",
    )
    group.add_argument(
        "--shapes",
        type=int,
        metavar="K",
        help="sizes that batches are padded to, and programs that are compiled (default: 4)",
    )
    group.add_argument(
        "--sample-threads",
        type=int,
        metavar="N",
        help="threads that make batches (default: 2)",
    )


def sampling_of(args: argparse.Namespace, task: str) -> Sampling | None:
    """What the options say of batches. Raises TrainError where they say it without a sampler."""
    links = task == "link"  # whose batch size and steps are the configuration's
    values = {
        "fanouts": args.fanouts and _fanouts(args.fanouts),
        "batch_size": None if links else args.batch_size,
        "steps": None if links else args.steps_per_epoch,
        "normalize": args.normalize or None,
        "shapes": args.shapes,
        "threads": args.sample_threads,
        "options": named_options("--sampler-option", args.sampler_option) or None,
    }
    values = {name: value for name, value in values.items() if value is not None}
    if args.sampler in (None, "none"):
        for name in sorted(set(values) - {"batch_size", "steps"}):
            option = {"threads": "sample-threads", "options": "sampler-option"}.get(name, name)
            raise TrainError(f"--{option} is for sampled batches: say by which --sampler")
        return None
    if args.sampler == "cluster":
        values.setdefault("batch_size", 20)
    if links:
        values.setdefault("shapes", 1)
    return Sampling(args.sampler, **values)


def _fanouts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise TrainError(
            f"--fanouts {text}: expected whole numbers with commas between them, as in 15,10"
        ) from error
