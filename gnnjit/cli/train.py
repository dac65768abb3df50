"""`gnnjit train`: options, and what is done with them."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from rich.console import Console

from gnnjit.cli.output import (
    add_json_option,
    check_json,
    for_people,
    named_options,
    write_json,
)
from gnnjit.cli.sampling import add_sampling_options, sampling_of
from gnnjit.data import DATASETS, open_dataset
from gnnjit.data.registry import entry_of, is_path
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.data.stored.prepare import prepare
from gnnjit.distributed.connection import connect, is_main
from gnnjit.errors import DataError
from gnnjit.nn.recipes import MODELS_OF, data_options
from gnnjit.sharding.cut import PARTITIONS
from gnnjit.sharding.exchange import EXCHANGES
from gnnjit.training.checkpoint import Checkpoints
from gnnjit.training.config import (
    BEST_BY,
    DECAYS,
    FIELDS,
    LOSSES,
    OPTIMIZERS,
    SPLITTINGS,
    in_words,
    resolve,
)
from gnnjit.training.errors import TrainError
from gnnjit.training.loop import Watcher
from gnnjit.training.models import TRAINED_AS, task_of, trainable, usual_model
from gnnjit.training.processes import main_first, open_in_all, processes
from gnnjit.training.progress import watcher
from gnnjit.training.report import print_table
from gnnjit.training.sampled import usual_sampling
from gnnjit.training.sharded import provide
from gnnjit.training.specification import Specification
from gnnjit.training.train import run_training

SUMMARY = "train a graph neural network and report accuracy, time and memory"
# Large enough to show what compiling is worth, small enough for two minutes on two cores.
_DATA_OPTIONS: dict[str, dict[str, Any]] = {"communities": {"num_nodes": 30_000}}

EPILOG = """examples:
  gnnjit train                                     attention on generated communities
  gnnjit train cora --model gcn --seeds 10         mean and deviation over ten seeds
  gnnjit train mutag --data-dir DIR                GIN, 10-fold cross-validation
  gnnjit train cora --checkpoint run1              keep checkpoints in run1 ...
  gnnjit train cora --checkpoint run1 --resume     ... and continue after a kill
  gnnjit train communities --option num_nodes=1000 --json -
  gnnjit train gowalla --model lightgcn            items for users, recall@20 and ndcg@20
  gnnjit train fb15k-237                           facts of a knowledge graph, MRR and hits
  gnnjit train imdb --seeds 5                      movies of a typed graph, by HAN
  gnnjit train imdb --model magnn                  ... over metapaths, by MAGNN
  gnnjit train cora --model jknet --seeds 5        rings of hops, 60/20/20 % drawn by each seed
  gnnjit train caveman                             pairs of one community, by P-GNN
  gnnjit train my-edges.csv                        links of a graph of your own
  gnnjit train my-edges.csv --option labels=my-labels.csv --option features=my-features.csv
  gnnjit train --memory-budget 1GiB --store DIR    a graph on the disk, within 1 GiB of memory
  gnnjit train ppi --model sage --sampler frontier batches of subgraphs, evaluated on all
  gnnjit train --devices 8                         over 8 GPUs, or 8 parts of the CPU
  gnnjit launch -n 4 -- train --checkpoint run1    in 4 processes, one GPU each
  gnnjit launch -n 4 -- train --store DIR          each of which reads its part of the dataset

Hyperparameters that are not given come from the recipe of the dataset and model; where the
literature has none, from GCN's on Cora (GAT's, with attention). The JSON lists what was used.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit train`."""
    parser.epilog = EPILOG
    parser.usage = "gnnjit train [-h] [DATASET] [OPTION ...]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "dataset",
        nargs="?",
        default="communities",
        metavar="DATASET",
        help=f"one of {', '.join(DATASETS)} (default: communities, of 30,000 vertices), or the "
        "path of a file with edges or of a folder with the files of a dataset (gnnjit data show)",
    )
    _model_options(parser.add_argument_group("model"))
    optimisation = parser.add_argument_group("optimisation")
    _optimisation_options(optimisation)
    _more_optimisation_options(optimisation)
    _choice_options(optimisation)
    add_sampling_options(parser.add_argument_group("sampling"))
    _run_options(parser.add_argument_group("runs and data"))
    _memory_options(parser.add_argument_group("memory"))
    _device_options(parser.add_argument_group("devices"))
    _output_options(parser.add_argument_group("output"))


def _model_options(group: Any) -> None:
    group.add_argument(
        "--model",
        help=f"one of {', '.join(MODELS_OF['vertex'])} (default: gat for vertices, gin "
        "for graphs), for graphs without jknet; for typed graphs "
        f"{', '.join(MODELS_OF['typed'])}, for links {', '.join(MODELS_OF['link'])} (default: "
        "paths where they are of one kind), for "
        f"recommendation {', '.join(MODELS_OF['recommendation'])}, for pairs "
        f"{', '.join(MODELS_OF['pair'])}",
    )
    group.add_argument("--layers", type=int, metavar="N", help="layers (default: recipe)")
    group.add_argument(
        "--hidden",
        type=int,
        metavar="N",
        help="width of hidden layers, per attention head (default: recipe)",
    )
    group.add_argument("--heads", type=int, metavar="N", help="attention heads (default: recipe)")
    group.add_argument("--dropout", type=float, metavar="P", help="dropout rate (default: recipe)")
    group.add_argument(
        "--normalize-features",
        action=argparse.BooleanOptionalAction,
        help="divide each vertex's features by their sum (default: recipe)",
    )


def _optimisation_options(group: Any) -> None:
    group.add_argument("--lr", type=float, metavar="RATE", help="learning rate (default: recipe)")
    group.add_argument("--weight-decay", type=float, metavar="L2", help="L2 (default: recipe)")
    group.add_argument("--decay", choices=DECAYS, help="whose weights decay (default: recipe)")
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="adam adds the L2 term to the gradient, adamw shrinks the weights after the step "
        "(default: adam)",
    )
    group.add_argument("--epochs", type=int, metavar="N", help="the most epochs (default: recipe)")
    group.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="stop after N epochs without a better validation accuracy or loss; 0 never "
        "(default: recipe)",
    )
    group.add_argument(
        "--halve-every",
        type=int,
        metavar="N",
        help="halve the learning rate every N epochs; 0 never (default: recipe)",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="graphs or links per step; 0 takes all (default: recipe). With --sampler neighbor, "
        "labelled vertices (default: 1024); with cluster, clusters (default: 20)",
    )
    group.add_argument(
        "--steps-per-epoch",
        type=int,
        metavar="N",
        help="steps of an epoch, with --batch-size (default: recipe); or of a sampler without "
        "seeds (default: as many as hold the labelled vertices once)",
    )


def _more_optimisation_options(group: Any) -> None:
    group.add_argument(
        "--negatives",
        type=int,
        metavar="N",
        help="false links for each true one, where links are predicted (default: recipe)",
    )
    group.add_argument(
        "--clip",
        type=float,
        metavar="NORM",
        help="the largest norm of all gradients together; 0 for any (default: recipe)",
    )
    group.add_argument(
        "--evaluate-every",
        type=int,
        metavar="N",
        help="epochs from one evaluation to the next; the last one is evaluated too "
        "(default: recipe)",
    )


def _choice_options(group: Any) -> None:
    group.add_argument(
        "--best-by",
        choices=BEST_BY,
        help="keep the weights of the epoch of the highest validation accuracy, or of the lowest "
        "loss (default: recipe)",
    )
    group.add_argument(
        "--loss",
        choices=LOSSES,
        help="rank items above one other, or by a softmax above many (default: recipe)",
    )
    group.add_argument(
        "--select-every",
        type=int,
        metavar="N",
        help="draw walks or anchor sets anew every N epochs; 0 never (default: recipe)",
    )
    group.add_argument(
        "--split",
        choices=SPLITTINGS,
        help="given: the dataset's own; random: 60, 20 and 20 %% of the labelled vertices, drawn "
        "anew for each seed (default: recipe)",
    )


def _run_options(group: Any) -> None:
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="of weights, dropout, batches and folds (default: 0)",
    )
    group.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="train with N seeds from --seed on; report mean and deviation (default: 1)",
    )
    group.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="folds of cross-validation, for datasets of many graphs (default: 10)",
    )
    group.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the dataset's files are (default: $GNNJIT_DATA_DIR, else download to a cache)",
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the dataset, such as num_nodes=1000; may be repeated",
    )


def _memory_options(group: Any) -> None:
    group.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="train block by block with at most so much memory of the device, such as 256MiB; with "
        "--store, of this process, Python and JAX included. For datasets of one graph; the results "
        "are the same up to rounding (default: all at once)",
    )
    group.add_argument(
        "--store",
        metavar="DIR",
        help="keep the dataset in files in this directory. Another process makes it there, which "
        "may need more memory; later runs find it. With --memory-budget, what is computed is kept "
        "there too; with --devices or in several processes, each process reads its part alone, and "
        "the directory must be the same for all (default: in memory)",
    )


def _device_options(group: Any) -> None:
    group.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="train over N devices, each of which has a part of the vertices and the edges that "
        "end there; on a computer without GPUs, they are N parts of the CPU. For datasets of one "
        "graph; the results are the same up to rounding. In several processes (gnnjit launch) it "
        "is how many they have together (default: one; in several processes, all)",
    )
    group.add_argument(
        "--partition",
        choices=PARTITIONS,
        default="auto",
        help="which vertices go together, as of gnnjit.shard (default: auto)",
    )
    group.add_argument(
        "--exchange",
        choices=("auto", *EXCHANGES),
        default="auto",
        help="how the rows of other devices' vertices come to a device, as of gnnjit.shard "
        "(default: auto)",
    )


def _output_options(group: Any) -> None:
    add_json_option(group, "configuration, history, results, versions and device")
    group.add_argument("--checkpoint", metavar="DIR", help="keep checkpoints in a new directory")
    group.add_argument(
        "--checkpoint-every",
        type=int,
        default=10,
        metavar="N",
        help="epochs between checkpoints; the result does not depend on it (default: 10)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --checkpoint, to the numbers of one never interrupted",
    )
    group.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        help="also time epochs of the same model on plain jax.ops.segment_sum (default: yes, "
        "without --memory-budget, on one device)",
    )
    group.add_argument(
        "--log-every",
        type=int,
        default=0,
        metavar="N",
        help="print a line every N epochs instead of a bar (default: a tenth of the epochs, "
        "where the output is no terminal)",
    )
    group.add_argument("--quiet", action="store_true", help="no progress, only the closing table")


def run(args: argparse.Namespace) -> int:
    """Train as the options say, with the other processes of the job, if there are any; the exit
    code."""
    connect()
    with main_first():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    people = Console(file=for_people(args, to_the_end=args.checkpoint is not None))
    if is_main():
        check_json(args.json)
    given = _of_path(args)
    spec = _specification(args, given)
    if args.log_every < 0:
        raise TrainError(f"--log-every is {args.log_every}, expected at least 0 (0: a bar)")
    shown = watcher(people, quiet=args.quiet or not is_main(), every=args.log_every)
    with _dataset(spec, args, shown, given) as dataset:
        if not args.quiet and is_main():
            lines = [repr(dataset), in_words(spec.config, spec.task)]
            lines += [spec.sampling.in_words()] if spec.sampling else []
            for line in lines:
                people.print(line, highlight=False, soft_wrap=True)
        result = run_training(spec, dataset, watcher=shown)
    if is_main():
        write_json(args.json, result.to_dict())
        print_table(result, people)
    return 0


def _of_path(args: argparse.Namespace) -> Any:
    """The dataset, where a path is given; None for a name. Raises TrainError with --store."""
    if not is_path(args.dataset):
        return None
    if args.store is not None:
        raise TrainError(
            f"--store {args.store}: datasets in a store are made by name, and {args.dataset} is a "
            f"path: leave out --store, or pass --data-dir {args.dataset} and the name"
        )
    return trainable(_open(args.dataset, args))


def _specification(args: argparse.Namespace, given: Any) -> Specification:
    """What the options say, checked. `given`: the dataset, if it is of a path."""
    name = args.dataset.lower() if given is None else given.name.lower()
    task = entry_of(name).task if given is None else task_of(given)
    if task == "sensors":
        trainable(_open(name, args))  # raises TrainError
    task = TRAINED_AS.get(task, task)
    sampling = sampling_of(args, task)
    taken = ("batch_size", "steps_per_epoch") if sampling and task != "link" else ()
    told = {f: getattr(args, f, None) for f in FIELDS if f not in taken}
    usual = {} if told["model"] else usual_model(name if given is None else given)
    config = resolve(name, task, {**told, **usual})
    sampling = usual_sampling(name, config.model) if args.sampler is None else sampling
    if args.folds is not None and task != "graph":
        raise TrainError(
            f"--folds is for datasets of many graphs, {name} is one graph with a fixed split: use "
            f"--seeds"
        )
    provide(args.devices)
    plain = args.memory_budget is None and args.devices is None and processes() == 1
    plain = plain and sampling is None and task in ("vertex", "graph", "typed")
    return Specification(
        name,
        task,
        config,
        args.store is not None,
        sampling,
        seeds=args.seeds,
        folds=10 if args.folds is None else args.folds,
        checkpoint=args.checkpoint,
        resume=args.resume,
        checkpoint_every=args.checkpoint_every,
        compare=plain if args.compare is None else args.compare,
        memory_budget=args.memory_budget,
        devices=args.devices,
        partition=args.partition,
        exchange=args.exchange,
    )


def _dataset(
    spec: Specification, args: argparse.Namespace, shown: Watcher, given: Any
) -> contextlib.AbstractContextManager[Any]:
    """The dataset, open while it is trained on."""
    if given is not None:
        return contextlib.nullcontext(given)
    if args.store is None:
        return contextlib.nullcontext(trainable(_open(spec.name, args, spec.config.model)))
    return open_in_all(
        lambda: _prepare(spec, args, shown), args.store, to_read=spec.spread is not None
    )


def _open(name: str, args: argparse.Namespace, model: str = "") -> Any:
    """The dataset, with the options that a recipe has for the model, unless others are given."""
    options = {**data_options(name, model), **_options(name, args.option)}
    try:
        return open_dataset(name, args.data_dir, **options)
    except TypeError as error:
        raise DataError(f"{name}: an --option has a value of the wrong type ({error})") from error


def _prepare(spec: Specification, args: argparse.Namespace, shown: Watcher) -> StoredDataset:
    """The dataset in --store, made if need be; what the checkpoints are in the way of is told
    before that."""
    if spec.checkpoint is not None:
        Checkpoints.claim(spec.checkpoint, spec.resume)
    try:
        return prepare(
            spec.name,
            args.store,
            data_dir=args.data_dir,
            options=_options(spec.name, args.option),
            normalize_features=spec.config.normalize_features,
            watch=shown.stage,
        )
    finally:
        shown.finish()


def _options(name: str, options: list[str]) -> dict[str, Any]:
    return {**_DATA_OPTIONS.get(name, {}), **named_options("--option", options)}
