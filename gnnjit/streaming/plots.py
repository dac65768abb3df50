"""Pictures of a grid and of what ran on it; matplotlib is needed only to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.shapes import HostArray
from gnnjit.streaming.grid.edge_grid import summed_to
from gnnjit.streaming.runtime.timeline import Timeline
from gnnjit.system.optional import optional

CELLS = 256
"""Rows and columns of a picture at most; of a larger grid, chunks are summed."""

WRITTEN = 12
"""Rows and columns of a picture up to which each chunk has its number written into it."""
NAMED = 8
"""Jobs up to which a legend names them."""

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")


def plot(
    counts: HostArray,
    name: str,
    timelines: Mapping[str, Timeline],
    axes: Sequence[Any] | None = None,
) -> Any:
    """The heat map, and the timelines of block `name`, into two axes; the figure."""
    if axes is None:
        how = "pip install 'gnnjit[notebooks]', or print the explanation"
        pyplot = optional("matplotlib.pyplot", "plot()", how)
        _, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    assert axes is not None
    left, right = axes
    plot_heat_map(counts, left)
    plot_timelines(name, timelines, right)
    return left.figure


def plot_heat_map(counts: HostArray, axes: Any) -> None:
    """The edges of each chunk: sources down, destinations across."""
    cells = summed_to(counts, CELLS)
    shown = cells.astype(float)
    shown[cells == 0] = float("nan")
    image = axes.imshow(shown, cmap="viridis", interpolation="nearest", norm=_scale(shown))
    axes.figure.colorbar(image, ax=axes, label="edges")
    if len(cells) <= WRITTEN:
        axes.set(xticks=range(len(cells)), yticks=range(len(cells)))
        for (i, j), count in np.ndenumerate(cells):
            light = image.norm(max(count, 1)) < 0.6 and count
            axes.text(j, i, f"{count:,}", ha="center", va="center", fontsize=7,
                      color="white" if light else "black")  # fmt: skip
    axes.set(title="edges of each chunk", xlabel="destinations", ylabel="sources")


def _scale(shown: HostArray) -> str:
    """Logarithmic where a few chunks have most edges: else all others would look the same."""
    counts = shown[np.isfinite(shown)]
    return "log" if counts.size and counts.max() > 20 * np.median(counts) else "linear"


def plot_timelines(name: str, timelines: Mapping[str, Timeline], axes: Any) -> None:
    """Two lanes for each timeline: what travels, and what is computed with. A job has one colour
    everywhere."""
    found = list(timelines.items())
    every = [job.name for _, t in found[:1] for job in t.jobs]
    colour = {job: COLOURS[k % len(COLOURS)] for k, job in enumerate(every)}
    lanes: list[str] = []
    for title, shown in found:
        for engine in ("transfer", "compute"):
            for job in shown.jobs:
                label = job.name if len(lanes) == 0 and len(every) <= NAMED else None
                start, end = (getattr(job, f"{engine}_{when}") for when in ("start", "end"))
                axes.barh(len(lanes), 1e3 * (end - start), left=1e3 * start, color=colour[job.name],
                          edgecolor="white", linewidth=0.5, label=label)  # fmt: skip
            lanes.append(f"{title}: {engine}")
    axes.set(yticks=range(len(lanes)), yticklabels=lanes, xlabel="ms")
    axes.set(title=f"block {name}, simulated" if found else "nothing has run yet")
    axes.invert_yaxis()
    if found and len(every) <= NAMED:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, fontsize=7, frameon=False
        )
