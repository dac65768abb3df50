"""`gnnjit explain`: what the compiler makes of a model's layers on a dataset."""

from __future__ import annotations

import argparse

from flax import nnx

from gnnjit.cli.output import add_json_option, check_json, for_people, write_json
from gnnjit.compiler.explain import Explanation, explain
from gnnjit.data import Dataset, GraphDataset, open_dataset
from gnnjit.data.registry import entry_of
from gnnjit.errors import DataError, LayerError
from gnnjit.nn.recipes import MODELS, build
from gnnjit.training.config import TrainConfig

SUMMARY = "print the plans of a model's layers, their passes, buffers and kernels"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit explain`."""
    parser.add_argument("dataset", nargs="?", default="karate", help="default: karate")
    parser.add_argument(
        "--model", default="gat", choices=sorted(MODELS), help="the model (default: gat)"
    )
    parser.add_argument("--layers", type=int, default=1, help="message-passing layers (default: 1)")
    parser.add_argument("--hidden", type=int, default=16, help="width of a layer (default: 16)")
    parser.add_argument(
        "--heads",
        type=int,
        metavar="N",
        help="attention heads, of models that have some (default: 4)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where the dataset's files are")
    parser.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="explain training too: plan and traversals of the gradient (default: yes)",
    )
    parser.add_argument(
        "--wrt",
        choices=["all", "params"],
        default="all",
        help="gradients of all floating-point inputs, or of parameters alone (default: all)",
    )
    parser.add_argument(
        "--measure", action="store_true", help="time the alternatives of each layer, for seconds"
    )
    add_json_option(parser, "what is printed, in parts")
    parser.add_argument(
        "--learn",
        action="store_true",
        help="with --measure: keep the times for the cost model of this device",
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation; the exit code."""
    check_json(args.json)
    if args.heads is not None and not MODELS[args.model].attention:
        raise LayerError(f"--heads: {args.model} has no attention heads: leave it out")
    heads = 4 if args.heads is None else args.heads
    TrainConfig(model=args.model, layers=args.layers, hidden=args.hidden, heads=heads)  # checks
    task = entry_of(args.dataset).task
    if task not in ("vertex", "graph"):
        raise DataError(
            f"{args.dataset} is for predicting links, has vertices of several types, or is of "
            "another form, and this command builds classifiers of vertices and graphs: call "
            "gnnjit.explain with your model"
        )
    dataset = open_dataset(args.dataset, args.data_dir)
    assert isinstance(dataset, Dataset | GraphDataset)
    graph = dataset.union() if isinstance(dataset, GraphDataset) else dataset.graph
    model = build(
        args.model,
        in_features=dataset.num_features,
        hidden=args.hidden,
        num_classes=dataset.num_outputs,
        layers=args.layers,
        heads=heads,
        dropout=0.0,
        rngs=nnx.Rngs(0),
    )
    found = explain(
        model,
        graph,
        dataset.x,
        backward=args.backward,
        wrt=args.wrt,
        measure=args.measure,
        learn=args.learn,
    )
    assert isinstance(found, Explanation)
    write_json(args.json, found.to_dict())
    print(found, file=for_people(args))
    return 0
