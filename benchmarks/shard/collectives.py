"""What a compiled program moves between devices, read from its HLO text.

`moved(compiled.as_text())` is the list of its collectives with the bytes that each device receives
and how often: those in the body of a `while` as often as XLA knows that it runs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

KINDS = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0}
"""Bits of types whose name does not tell them."""

_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\]")
_HEAD = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_OP = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+) = (.+)$")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class UnknownError(ValueError):
    """Something in the text cannot be counted."""


@dataclasses.dataclass(frozen=True)
class Array:
    """A shape in the text: `f32[8,64]`."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.dims) * bits(self.dtype) // 8

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("f", "bf"))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Collective:
    """One instruction.

    Attributes:
        kind: of `KINDS`.
        shapes: of its results.
        received: bytes that come to the device that receives the most, each time. Of an all-reduce,
            those of a reduce-scatter and an all-gather.
        total: bytes that all devices receive, each time.
        times: how often it runs.
        backward: whether it is there for a gradient, by its name.
    """

    kind: str
    shapes: tuple[Array, ...]
    received: int
    total: int
    times: int
    backward: bool

    def __str__(self) -> str:
        shapes = ", ".join(map(str, self.shapes))
        return f"{self.times} x {self.kind} {shapes}"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation: `%name = shape op(operands), attributes`."""

    name: str
    op: str
    results: tuple[Array, ...]
    text: str


def bits(dtype: str) -> int:
    """Bits of one number. Raises UnknownError for a type without a size."""
    found = BITS.get(dtype)
    if found is not None:
        return found
    number = re.match(r"[a-z]+?(\d+)", dtype)
    if number is None:
        raise UnknownError(f"the type {dtype} has no known size")
    return int(number[1])


def shapes(text: str) -> tuple[Array, ...]:
    """All shapes in a piece of text; a bound `<=8` counts as 8."""
    return tuple(
        Array(t, tuple(int(d.removeprefix("<=")) for d in dims.split(",") if d))
        for t, dims in _SHAPE.findall(text)
    )


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations by name, and the name of the entry."""
    found: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and "->" in line and not line.startswith((" ", "HloModule")):
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (op := _OP.match(line)):
            current.append(_instruction(op[1], op[2]))
    if not entry:
        raise UnknownError("the text has no ENTRY computation, expected that of an HLO module")
    return found, entry


def _instruction(name: str, rest: str) -> Instruction:
    end = _close(rest) if rest.startswith("(") else rest.index(" ")
    op = rest[end:].strip().split("(", 1)[0]
    return Instruction(name, op, shapes(rest[:end]), rest[end:])


def _close(text: str) -> int:
    """Where the parenthesis that `text` begins with is closed, and one further."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return i + 1
    raise UnknownError(f"a parenthesis is open: {text[:80]}")


def runs(found: dict[str, list[Instruction]], entry: str) -> Counter[str]:
    """How often each computation runs."""
    times: Counter[str] = Counter()

    def visit(name: str, count: int) -> None:
        times[name] += count
        for instruction in found.get(name, ()):
            inside = count * (trips(instruction) if instruction.op == "while" else 1)
            for called in called_by(instruction):
                visit(called, inside)

    visit(entry, 1)
    return times


def trips(instruction: Instruction) -> int:
    """How often a loop runs. Raises UnknownError where XLA does not know."""
    known = _TRIPS.search(instruction.text)
    if known is None:
        raise UnknownError(f"how often %{instruction.name} runs is not known")
    return int(known[1])


def called_by(instruction: Instruction) -> Iterator[str]:
    """Names of computations."""
    for names in _CALLED.findall(instruction.text):
        yield from (name.strip().removeprefix("%") for name in names.strip("{}").split(","))


def moved(text: str) -> list[Collective]:
    """The collectives of a program, in its order; none that runs zero times."""
    devices = re.search(r"\bnum_partitions=(\d+)", text)
    everyone = int(devices[1]) if devices else 1
    found, entry = computations(text)
    times = runs(found, entry)
    out = []
    for name, instructions in found.items():
        for i in instructions:
            kind = i.op.removesuffix("-start")
            if kind in KINDS and times[name]:
                out.append(_collective(kind, i, everyone, times[name]))
    return out


def _collective(kind: str, i: Instruction, everyone: int, times: int) -> Collective:
    results = _of_start(kind, i) if i.op.endswith("-start") else i.results
    size = sum(a.bytes for a in results)
    if kind == "collective-permute":
        pairs = _pairs(i.text)
        movers = [(a, b) for a, b in pairs if a != b]
        received, total = size if movers else 0, size * len(movers)
    else:
        of_group, every = groups(i.text, everyone)
        share = {"reduce-scatter": of_group - 1, "all-reduce": 2 * (of_group - 1) / of_group}
        received = int(size * share.get(kind, (of_group - 1) / of_group))
        total = received * every
    return Collective(kind, results, received, total, times, "transpose(" in i.text)


def _of_start(kind: str, i: Instruction) -> tuple[Array, ...]:
    """The results among what an asynchronous start has: operands, results, context."""
    if kind == "all-reduce":
        return i.results
    arrays = [a for a in i.results if a.dims or not a.dtype.startswith(("u", "s"))]
    return tuple(arrays[len(arrays) // 2 :])


def _pairs(text: str) -> list[tuple[int, int]]:
    found = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?\s*)*)\}", text)
    if found is None:
        raise UnknownError(f"no source_target_pairs: {text[:80]}")
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", found[1])]


def groups(text: str, everyone: int) -> tuple[int, int]:
    """The size of the largest group, and the devices in all groups."""
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", text)
    if listed is not None:
        sizes = [len(g.split(",")) for g in re.findall(r"\{([\d,]+)\}", listed[1])]
        return (max(sizes), sum(sizes)) if sizes else (everyone, everyone)
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", text)
    if counted is not None:
        return int(counted[2]), int(counted[1]) * int(counted[2])
    named = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text)
    if named is not None:
        axes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        over = re.findall(r"'([^']+)'", named[2])
        return math.prod(int(axes[a]) for a in over), math.prod(map(int, axes.values()))
    raise UnknownError(f"no replica_groups that can be read: {text[:80]}")


def buffers(text: str) -> list[Array]:
    """Every array that the program writes, its parameters included; not what lies within a fusion
    or the function of a reduction."""
    found, entry = computations(text)
    inside = {
        called
        for instructions in found.values()
        for i in instructions
        if i.op not in ("while", "conditional", "call", "async-start")
        for called in called_by(i)
    }
    written: dict[Array, None] = {}
    for name, instructions in found.items():
        if name not in inside or name == entry:
            for i in instructions:
                written.update(dict.fromkeys(i.results))
    return list(written)


def largest(arrays: Sequence[Array]) -> Array:
    """The floating-point array of most bytes."""
    return max((a for a in arrays if a.floating), key=lambda a: a.bytes)
