"""The closing table."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gnnjit.training.train import Result


def print_table(result: Result, console: Console) -> None:
    """Accuracy, time and memory, with the reference beside them where it was timed."""
    console.print(_title(result), highlight=False, soft_wrap=True)
    console.print(_accuracy_table(result))
    if set(result.scores) - {result.metric}:
        console.print(_scores_table(result))
    console.print(_cost_table(result))
    note = _note(result)
    for line in ([note] if note else []) + result.notes:
        console.print(line, highlight=False, soft_wrap=True)


def _title(result: Result) -> str:
    dataset = result.dataset
    sizes = [f"{dataset[k]:,} {k}" for k in ("graphs", "vertices", "edges") if k in dataset]
    return f"{result.config.model} on {dataset['name']}: {', '.join(sizes)}"


def _accuracy_table(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(f"{result.metric}, %")
    for split in result.accuracy:
        table.add_column(_split_name(split, result), justify="right")
    table.add_column("epochs", justify="right")
    shown = result.runs if len(result.runs) > 1 else []
    for run in shown:
        record = run.best if result.epoch is None else run.history[result.epoch - 1]
        cells = [f"{100 * (record.accuracy[split] or 0):.1f}" for split in result.accuracy]
        table.add_row(run.name, *cells, str(len(run.history)))
    if shown:
        table.add_section()
    cells = [f"{100 * s.mean:.1f}{_spread(s.std, result)}" for s in result.accuracy.values()]
    name = "mean ± std" if shown else result.runs[0].name
    epochs = sum(len(run.history) for run in result.runs)
    table.add_row(name, *cells, str(epochs))
    return table


def _scores_table(result: Result) -> Table:
    """The scores beside the first; RMSE and MAE are in the units of the targets."""
    splits = list(result.accuracy)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("other scores")
    for split in splits:
        table.add_column(_split_name(split, result), justify="right")
    for name, of_split in result.scores.items():
        if name == result.metric:
            continue
        scale, unit = (1, "") if name in ("RMSE", "MAE") else (100, ", %")
        cells = [
            ""
            if (s := of_split.get(split)) is None
            else f"{scale * s.mean:.4g}{_spread(scale * s.std / 100, result)}"
            for split in splits
        ]
        table.add_row(f"{name}{unit}", *cells)
    return table


def _split_name(split: str, result: Result) -> str:
    return "held-out fold" if split == "val" and result.protocol == "folds" else split


def _spread(std: float, result: Result) -> str:
    return f" ± {100 * std:.1f}" if len(result.runs) > 1 else ""


def _cost_table(result: Result) -> Table:
    mine = result.performance
    other = mine.get("reference")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("cost")
    table.add_column("gnnjit", justify="right")
    if other:
        table.add_column("segment_sum", justify="right")
        table.add_column("ratio", justify="right")
    rows = (
        ("median epoch (update + evaluation)", "median_epoch_seconds", seconds),
        ("compile", "compile_seconds", seconds),
        ("temporary buffers of the step", "temp_bytes", size),
    )
    for name, key, show in rows:
        if key not in mine:
            continue
        cells = [show(mine[key])]
        if other:
            cells += [show(other[key]), _ratio(other[key], mine[key])]
        table.add_row(name, *cells)
    if "memory_budget_bytes" in mine:
        _add_streaming(table, mine)
    if result.sharding is not None:
        _add_sharding(table, result.sharding)
    blank = ["", ""] if other else []
    table.add_row("peak memory of the process (RSS)", size(mine["peak_rss_bytes"]), *blank)
    if mine["peak_device_bytes"] is not None:
        table.add_row("peak memory of the device", size(mine["peak_device_bytes"]), *blank)
    return table


def _add_streaming(table: Table, mine: dict[str, Any]) -> None:
    """What keeping to a memory budget took."""
    moved = mine["moved_bytes"]
    if moved is not None:  # an epoch was run
        sliced = f", each in {mine['slices']} slices" if mine["slices"] > 1 else ""
        table.add_row("blocks of vertices", f"{mine['parts']:,}{sliced}")
        table.add_row("moved in an epoch", size(sum(moved.values())))
        for cause, count in sorted(moved.items(), key=lambda item: -item[1]):
            table.add_row(f"    {cause}", size(count))
    if mine["prepared_seconds"] is not None:
        table.add_row("preparing the dataset", seconds(mine["prepared_seconds"]))
        table.add_row("    peak memory of its process (RSS)", size(mine["prepared_peak_bytes"]))
    name = f"memory budget of the {mine['memory_budget_of']}"
    table.add_row(name, size(mine["memory_budget_bytes"]))


def _add_sharding(table: Table, found: dict[str, Any]) -> None:
    """The devices and processes over which the graph is spread, and how evenly."""
    processes = f" in {found['processes']} processes" if found["processes"] > 1 else ""
    table.add_row("devices", f"{found['devices']}{processes}")
    table.add_row("    exchange of rows", found["exchange"])
    table.add_row("    most edges of one, over the mean", f"{found['imbalance']:.3f}")


def _note(result: Result) -> str:
    if result.protocol == "folds":
        return (
            f"Epoch {result.epoch}, the best mean over the {len(result.runs)} held-out folds "
            f"(protocol of Xu et al. 2019, section 7)."
        )
    if "val" not in result.accuracy:
        return "No validation vertices: the weights are those of the last epoch."
    if len(result.runs) > 1:
        return ""
    run = result.runs[0]
    why = "patience ran out" if run.stopped_early else "all epochs were run"
    return f"Best validation at epoch {run.best_epoch} of {len(run.history)} ({why})."


def _ratio(other: float | None, mine: float | None) -> str:
    return f"{other / mine:.1f} x" if other and mine else ""


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "unknown"
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.2f} ms"


def size(value: float | None) -> str:
    """A number of bytes for people."""
    if value is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
