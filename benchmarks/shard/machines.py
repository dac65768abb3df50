"""How long a step takes on many devices, from rates: arithmetic alone. (`bench_shard.py`)

A step is the compute of the slowest shard, and the exchange of rows in each layer, there and, for
gradients, back; then the gradients of the parameters are added up. A ring computes while it
exchanges, hop by hop; what the others exchange is there before they compute.
"""

from __future__ import annotations

import dataclasses
import math

from common import workloads


@dataclasses.dataclass(frozen=True)
class Link:
    """Seconds to begin a collective, and bytes per second, of each device, one way."""

    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """Devices and their links.

    Attributes:
        within, between: links between devices of a node, and of two nodes.
        node: devices of a node.
        message: seconds for each further step of a collective.
        copies: bytes per second that a device reads and writes.
        shared: whether all devices are the same cores: what they do adds up.
        parameters: bytes that are added up over all devices after a step.
        summed: the link where rows are added up on the way, if that is another.
    """

    name: str
    within: Link
    between: Link
    node: int
    message: float
    copies: float
    shared: bool = False
    parameters: int = 0
    summed: Link | None = None

    def link(self, devices: int) -> Link:
        """The slowest that a step to the next device takes."""
        return self.within if devices <= self.node else self.between


@dataclasses.dataclass(frozen=True)
class Compute:
    """Seconds of one layer, forward and backward: for the call, for each edge, for each vertex."""

    start: float
    per_edge: float
    per_row: float

    def seconds(self, edges: float, rows: float) -> float:
        return self.start + self.per_edge * edges + self.per_row * rows


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device by its data sheet, and what share of it is reached."""

    bandwidth: float
    flops: float
    share: float
    flops_share: float
    start: float

    def compute(self, layer: str, features: int) -> Compute:
        """Compute by the roofline: what edges must read and vertices must move, and the three
        products with a matrix."""
        scalars = workloads.gathered(layer, "both", features)
        rate = self.share * self.bandwidth
        products = 3 * 2 * features**2 / (self.flops_share * self.flops)
        return Compute(self.start, (4 * scalars + 8) / rate, 20 * features / rate + products)


H200 = Accelerator(4.8e12, 494e12, 0.5, 0.4, 50e-6)
"""NVIDIA's data sheet: 4.8 TB/s, 494 TFLOP/s in TF32 without sparsity. Assumed: half of the
bandwidth is reached where rows are gathered, 40 % of the flops, and 50 us for a layer's kernels to
start."""

CLUSTER = Machine(
    "H200, 8 a node", Link(10e-6, 0.8 * 450e9), Link(20e-6, 0.9 * 50e9), 8, 2e-6, 0.5 * 4.8e12
)
"""NVLink 4: 450 GB/s one way per GPU, 80 % reached; a 400 Gb/s NDR port per GPU, 90 % reached, and
a network that does not block. Assumed: 10 and 20 us to start a collective, 2 us a further step."""


@dataclasses.dataclass(frozen=True)
class Sent:
    """What the exchanges of a graph on `devices` shards depend on.

    Attributes:
        rows, edges: of the largest shard, and `all_rows`, `all_edges` of all.
        path: edges on which a ring waits, stop by stop; hops: of a ring.
        halo, cover: rows of the device that must receive or send most, padding included.
        halo_mean, cover_mean: of the average device, where that is known.
        halo_least, cover_least: of the device that must send or receive most, without padding.
        messages, cover_messages: collectives that move them, where those are `ppermute`s.
        at_once: whether a halo is one `all_to_all`.
    """

    devices: int
    rows: float
    edges: float
    all_rows: float
    all_edges: float
    path: float
    hops: float
    halo: float
    halo_least: float
    cover: float
    cover_least: float
    messages: float
    cover_messages: float
    at_once: bool = False
    halo_mean: float | None = None
    cover_mean: float | None = None


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of one layer: computing, exchanging, and both together."""

    compute: float
    exchange: float
    total: float


KINDS = ("all_gather", "halo", "cover", "ring", "halo, no padding", "cover, no padding")
"""The last two do not exist: they are what one `all_to_all` of blocks of unequal size, without
padding, would take."""


def step(
    machine: Machine, compute: Compute, sent: Sent, kind: str, widths: tuple[int, int],
    arrays: int = 1,
) -> StepTime:  # fmt: skip
    """The time of one layer, forward and backward.

    Args:
        widths: bytes of a row, there and back.
        arrays: how many arrays a row is made of. Each comes by itself; what goes back by a halo or
            a cover goes together.
    """
    if sent.devices == 1:
        alone = compute.seconds(sent.edges, sent.rows)
        return StepTime(alone, 0.0, alone)
    if kind == "ring":
        return _ring(machine, compute, sent, widths, arrays)
    work = compute.seconds(sent.edges, sent.rows)
    if machine.shared:
        work = compute.per_edge * sent.all_edges + compute.per_row * sent.all_rows
        work += sent.devices * compute.start
    there, *back = widths
    moved = _exchange(machine, sent, kind, there, arrays, THERE)
    moved += sum(_exchange(machine, sent, kind, w, arrays, BACK) for w in back)
    moved += _parameters(machine, sent.devices)
    return StepTime(work, moved, work + moved)


def _ring(
    machine: Machine, compute: Compute, sent: Sent, widths: tuple[int, int], arrays: int
) -> StepTime:
    """Hop by hop the slower of both. In every hop the sums so far are read and written."""
    p, stops, link = sent.devices, sent.hops + 1, machine.link(sent.devices)
    every = p if machine.shared else 1
    merge = 4 * sent.rows * sum(widths) / machine.copies
    work = (compute.per_edge * sent.path + compute.per_row * sent.rows) / stops
    if machine.shared:
        everything = compute.per_edge * sent.all_edges + compute.per_row * sent.all_rows
        work = everything / p / stops
    work = every * (work + merge + compute.start)
    hop = len(widths) * arrays * link.latency + every * sent.rows * sum(widths) / link.bandwidth
    computed, moved = stops * work, sent.hops * hop
    together = computed + moved if machine.shared else work + sent.hops * max(work, hop)
    rest = _parameters(machine, p)
    return StepTime(computed, moved + rest, together + rest)


THERE, BACK = 2, 6
"""Passes over a shard's own rows: there, each is read and written into the table; back, each is cut
out of it, what came back for it is written, and both are read and added up."""


def _exchange(
    machine: Machine, sent: Sent, kind: str, width: int, arrays: int, passes: int
) -> float:
    """Seconds to exchange one table of sources, one way."""
    if kind == "all_gather":
        if passes == BACK and machine.summed is not None:
            machine = dataclasses.replace(machine, within=machine.summed)
        return _all_gather(machine, sent, width, arrays)
    name = kind.removesuffix(", no padding")
    padded = name == kind
    rows = getattr(sent, name if padded else f"{name}_least")
    if machine.shared:  # what all do adds up
        rows = getattr(sent, f"{name}_mean") or rows
    times = arrays if passes == THERE else 1
    tables = 2 if name == "cover" and sent.cover < sent.halo else 1  # else it is a halo
    p, every = sent.devices, sent.devices if machine.shared else 1
    # Gathered, cut into blocks, and put behind a shard's own rows: each read and written.
    copied = (6 * rows + passes * tables * sent.rows) * width / machine.copies
    if padded and not sent.at_once:
        link = machine.link(p)
        messages = sent.cover_messages if tables == 2 else sent.messages
        begun = times * messages * link.latency
        return begun + every * (rows * width / link.bandwidth + copied)
    return _at_once(machine, p, rows * width, tables * times) + every * copied


def _at_once(machine: Machine, p: int, size: float, times: int) -> float:
    """An `all_to_all` of `size` bytes from each device, spread evenly over the others."""
    link, every = machine.link(p), p if machine.shared else 1
    begun = times * (link.latency + (p - 2) * machine.message)
    near = size * min(1.0, (machine.node - 1) / (p - 1))
    far = size - near
    return begun + every * max(near / machine.within.bandwidth, far / machine.between.bandwidth)


def _all_gather(machine: Machine, sent: Sent, width: int, arrays: int) -> float:
    """What comes from other nodes comes once to each node, over the ports of all its devices, and
    passes on within."""
    p, link = sent.devices, machine.link(sent.devices)
    size = sent.rows * width
    begun = arrays * (link.latency + (p - 2) * machine.message)
    if machine.shared:
        return begun + p * (p - 1) * size / link.bandwidth
    inside = (p - 1) * size / machine.within.bandwidth
    outside = max(p - machine.node, 0) * size / (machine.node * machine.between.bandwidth)
    return begun + max(inside, outside)


def _parameters(machine: Machine, p: int) -> float:
    link = machine.link(p)
    if not machine.parameters:
        return 0.0
    steps = 2 * math.ceil(math.log2(p))
    return link.latency + steps * machine.message + 2 * machine.parameters / link.bandwidth
