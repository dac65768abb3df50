"""Code for the wide values of one edge as loops over vectors, as long for 512 features as for 128.

    z = a + b                       for each vector:  z = a + b; store z; sum += z
    h = (z - mean(z)) * scale       for each vector:  h = (z - mean) * scale; store h

A loop takes the scalars of values of one size, those at hand together. What it makes is kept in
memory where something else than the loop reads it. A sum over a value's scalars ends a loop: what
is made of it belongs to a later one. Products of two values of the edge, and repeats and sums of
rows, have loops of their own (`edge_products`, `edge_rows`). All other code ("narrow") is written
out, vector by vector: values of a few vectors, scalars, and what moves scalars about.

A reshaped value is the value. Memory that nothing reads any more is taken again: what an edge
computes should fit the first cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Equation, Lax, Literal, Value
from gnnjit.lower.cpu.control_flow import Block, Emitter
from gnnjit.lower.cpu.edge_products import EdgeProduct, without_transposes
from gnnjit.lower.cpu.edge_rows import REDUCTIONS, EdgeRows, Joined, cut, with_repeats
from gnnjit.lower.cpu.elementwise_rules import RULES, CodeSite
from gnnjit.lower.cpu.index_rules import combiner, identity
from gnnjit.lower.cpu.math_rules import ELEMENTWISE
from gnnjit.lower.cpu.simd import I64, Vec
from gnnjit.lower.cpu.stored import Env, Stored, is_looped, scratch

RESHAPES = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")

CHAINS = frozenset("exp exp2 expm1 log log1p log2 tanh logistic erf erfc sin cos".split())
"""Functions of dozens of instructions, of which each waits for the one before it (float32)."""

AT_ONCE = 4
"""Vectors that a loop with several of them takes at a time: a processor runs the chains side by
side. Of one function, it has the next vectors at hand anyway."""

Sink = tuple[Atom, Callable[[Vec, ir.Value], None]]
"""A value, and what takes its scalars from a place on."""


@dataclasses.dataclass(frozen=True)
class _Step:
    """Where an equation runs: in the narrow code of a level, or in its loop over so many scalars.
    The loops of a level follow its narrow code."""

    level: int
    size: int | None


@dataclasses.dataclass(frozen=True)
class _Part:
    """A loop over so many scalars, or narrow code."""

    size: int | None
    equations: list[Equation]
    sinks: list[Sink]

    @property
    def atoms(self) -> Iterator[Atom]:
        """What is made and read."""
        for eqn in self.equations:
            yield from (*eqn.outputs, *eqn.inputs)
        yield from (atom for atom, _ in self.sinks)


class VectorLoops:
    """Emits some equations of one element.

    env: the values that are known; those that are made are added.
    written_out: the code of an equation that no loop takes; it reads `env`.
    apart: equations with what is shared, which they read where it lies: it is not in `env`.
    """

    def __init__(
        self,
        m: Emitter,
        env: Env,
        written_out: Callable[[Equation], list[Vec]],
        apart: Container[Equation] = (),
    ):
        self.m, self.env, self.written_out, self.apart = m, env, written_out, apart
        self._same: dict[Atom, Atom] = {}  # of reshaped values, what they are made of
        self._reshaped: dict[Atom, list[Value]] = {}

    def run(
        self, equations: Sequence[Equation], kept: Iterable[Atom] = (), sinks: Sequence[Sink] = ()
    ) -> None:
        """kept: values that `env` must have afterwards; it may have lost others that were made."""
        kept = set(kept)
        read = {*kept, *(atom for atom, _ in sinks)}
        equations = with_repeats(without_transposes(equations, read), self.m.lanes)
        equations = self._without_reshapes(equations)
        steps = self._steps(equations)
        made: dict[Atom, _Step] = {v: steps[e] for e in equations for v in e.outputs}
        stored = {self._made_of(a) for a in kept}
        for eqn in equations:
            inputs = map(self._made_of, eqn.inputs)
            stored.update(a for a in inputs if a in made and made[a] != steps[eqn])
        of_step: dict[_Step, list[Sink]] = {}
        for atom, take in sinks:
            of_step.setdefault(self._step_of_sink(atom, made), []).append((atom, take))
        by_step: dict[_Step, list[Equation]] = {}
        for eqn in equations:
            by_step.setdefault(steps[eqn], []).append(eqn)
        parts: list[_Part] = []
        for step in sorted({*by_step, *of_step}, key=lambda s: (s.level, s.size or 0)):
            some, taken = by_step.get(step, []), of_step.get(step, [])
            if step.size is not None:
                parts.append(_Part(step.size, some, taken))
                continue
            parts += [_Part(None, [eqn], []) for eqn in some]
            parts += [_Part(None, [], [sink]) for sink in taken]
        self._emit(parts, stored, {self._made_of(a) for a in kept})

    def _without_reshapes(self, equations: Sequence[Equation]) -> list[Equation]:
        found = []
        for eqn in equations:
            if eqn.op.name in RESHAPES and eqn not in self.apart and isinstance(eqn.op, Lax):
                (x,), (out,) = eqn.inputs, eqn.outputs
                if isinstance(x, Value) and _scalars(x) == out.size:
                    self._same[out] = self._made_of(x)
                    self._reshaped.setdefault(self._made_of(x), []).append(out)
                    continue
            found.append(eqn)
        for value in self.env.keys() & self._reshaped.keys():
            self._set(value, self.env[value])
        return found

    def _set(self, value: Value, found: Vec | Stored) -> None:
        for each in self._names(value):
            self.env[each] = found

    def _names(self, value: Value) -> list[Value]:
        """It, and what it is called after it was reshaped."""
        return [value, *self._reshaped.get(value, ())]

    def _made_of(self, atom: Atom) -> Atom:
        return self._same.get(atom, atom)

    def _emit(self, parts: Sequence[_Part], stored: set[Atom], kept: set[Atom]) -> None:
        """One part after the other. Memory that no later part reads is free for the next."""
        last: dict[Atom, int] = {}
        for k, part in enumerate(parts):
            last.update((self._made_of(atom), k) for atom in part.atoms)
        done: list[list[Atom]] = [[] for _ in parts]
        for atom, k in last.items():
            if atom not in kept:
                done[k].append(atom)
        values: dict[Block, set[Atom]] = {}  # that lie there, and are still read
        for part, gone in zip(parts, done, strict=True):
            with self.m.taken_blocks() as taken:
                self._part(part, stored)
            values.update((block, set()) for block in taken)
            for atom in (v for e in part.equations for v in e.outputs):
                if (block := self._block_of(atom)) in values:
                    values[block].add(atom)
            self._give_back(values, taken, gone)

    def _give_back(
        self, values: dict[Block, set[Atom]], taken: Iterable[Block], gone: Iterable[Atom]
    ) -> None:
        """The blocks of values that are gone, and of what was taken for no value."""
        empty = [block for block in taken if not values[block]]
        for atom in gone:
            block = self._block_of(atom)
            if block not in values or not isinstance(atom, Value):
                continue
            for each in self._names(atom):
                del self.env[each]
            values[block].discard(atom)
            if not values[block]:
                empty.append(block)
        for block in empty:
            del values[block]
            self.m.give_back(block)

    def _block_of(self, atom: Atom) -> Block | None:
        found = self.env.get(atom) if isinstance(atom, Value) else None
        return found.block if isinstance(found, Stored) else None

    def _part(self, part: _Part, stored: set[Atom]) -> None:
        if part.size is not None:
            self._loop(part.size, part.equations, stored, part.sinks)
            return
        for eqn in part.equations:
            self._write_out(eqn, stored)
        for atom, take in part.sinks:
            self._take(atom, take)

    # -- what runs where --------------------------------------------------------------------

    def _steps(self, equations: Sequence[Equation]) -> dict[Equation, _Step]:
        steps: dict[Equation, _Step] = {}
        made: dict[Atom, tuple[_Step, bool]] = {}
        for eqn in equations:
            size = self._size(eqn)
            level = 0
            for atom in map(self._made_of, eqn.inputs):
                if atom in made:
                    step, at_end = made[atom]
                    waits = step.size is not None and (at_end or step.size != size)
                    level = max(level, step.level + waits)
            steps[eqn] = _Step(level, size)
            reduces = isinstance(eqn.op, Lax) and eqn.op.name in REDUCTIONS
            made.update((v, (steps[eqn], reduces)) for v in eqn.outputs)
        return steps

    def _step_of_sink(self, atom: Atom, made: Mapping[Atom, _Step]) -> _Step:
        atom = self._made_of(atom)
        if atom in made and made[atom].size in (None, _scalars(atom)):
            return made[atom]
        if atom in made:  # the result of a reduction
            return _Step(made[atom].level + 1, None)
        return _Step(0, _scalars(atom) if self._is_looped(atom) else None)

    def _is_looped(self, atom: Atom) -> bool:
        """Whether a value is in memory, and long enough that sinks take it in a loop. A short one
        may be in memory as a part of a long one."""
        found = self.env.get(atom) if isinstance(atom, Value) else None
        return isinstance(found, Stored) and is_looped(self.m.lanes, _scalars(atom))

    def _size(self, eqn: Equation) -> int | None:
        """The scalars of the loop that can take an equation; None where it is written out."""
        op = eqn.op
        if not isinstance(op, Lax) or len(eqn.outputs) != 1:
            return None
        (out,) = eqn.outputs
        sizes = {_scalars(a) for a in eqn.inputs}
        if op.name in REDUCTIONS:
            (size,) = sizes
            return size if out.size == 1 and is_looped(self.m.lanes, size) else None
        if not is_looped(self.m.lanes, out.size) or not sizes or not sizes <= {1, out.size}:
            return None
        if op.name in RESHAPES:
            return out.size
        wide = [a for a in eqn.inputs if _scalars(a) == out.size]
        lengths = {tuple(n for n in a.shape if n != 1) for a in wide}
        if op.name in ELEMENTWISE and len(lengths) < 2:
            return out.size
        return None

    # -- narrow code ------------------------------------------------------------------------

    def _write_out(self, eqn: Equation, stored: set[Atom]) -> None:
        views = self._views(eqn)
        if views is not None:
            for value, view in zip(eqn.outputs, views, strict=True):
                self._set(value, view)
            return
        kinds = () if eqn in self.apart else (EdgeProduct, EdgeRows, Joined)
        looped = next(filter(None, (kind.of(eqn, self.m.lanes) for kind in kinds)), None)
        if looped is not None:
            self._set(eqn.outputs[0], looped.emit(self.m, self._operand))
            return
        for value, vec in zip(eqn.outputs, self.written_out(eqn), strict=True):
            self._set(value, vec)
            if is_looped(self.m.lanes, value.size) and value in stored:
                memory = scratch(self.m, value)
                memory.store(self.m, vec, I64(0))
                self._set(value, memory)

    def _views(self, eqn: Equation) -> list[Stored] | None:
        """Parts of a value in memory: where they lie if their scalars are consecutive, else rows of
        their own."""
        if not isinstance(eqn.op, Lax) or eqn.op.name not in ("slice", "split"):
            return None
        (source,) = eqn.inputs
        found = self.env.get(source) if isinstance(source, Value) else None
        if not isinstance(found, Stored):
            return None
        if eqn.op.name == "split":
            axis = eqn.op["axis"]
            starts = np.cumsum([0, *eqn.op["sizes"][:-1]])
        else:
            strides = eqn.op["strides"] or (1,) * len(source.shape)
            moved = [k for k, n in enumerate(eqn.outputs[0].shape) if n != source.shape[k]]
            axis = moved[0] if moved else 0
            starts = np.array(eqn.op["start_indices"])[[axis]]
            if len(moved) > 1 or strides[axis] != 1:
                return None
        rows, step = math.prod(source.shape[:axis]), math.prod(source.shape[axis + 1 :])
        pairs = list(zip((starts * step).tolist(), eqn.outputs, strict=True))
        if rows == 1:
            return [found.part(self.m, at, out.size) for at, out in pairs]
        if not any(is_looped(self.m.lanes, out.size) for out in eqn.outputs):
            return None
        return [cut(self.m, found, rows, at, out) for at, out in pairs]

    def _operand(self, atom: Atom) -> Vec | Stored:
        found = self.env.get(atom) if isinstance(atom, Value) else None
        return self.read(atom) if found is None else found

    def _take(self, atom: Atom, take: Callable[[Vec, ir.Value], None]) -> None:
        if self._is_looped(atom):
            self._loop(_scalars(atom), [], set(), [(atom, take)])
            return
        vec = self.read(atom)
        at = 0
        for chunk, width in zip(vec.chunks, self.m.widths(vec.size), strict=True):
            take(Vec(vec.dtype, width, (chunk,)), I64(at))
            at += width

    def read(self, atom: Atom) -> Vec:
        """All scalars of a value."""
        if isinstance(atom, Literal):
            return self.m.literal(atom.dtype, np.asarray(atom.value).item())
        found = self.env[atom]
        return found.whole(self.m) if isinstance(found, Stored) else found

    # -- loops ------------------------------------------------------------------------------

    def _loop(
        self, size: int, equations: list[Equation], stored: set[Atom], sinks: list[Sink]
    ) -> None:
        m = self.m
        own = {v for e in equations for v in e.outputs if v.size == size}
        memory = {v: scratch(m, v) for v in own & stored}
        count = AT_ONCE if sum(map(_is_chain, equations)) > 1 else 1
        step = count * m.lanes
        parts = [width for width in (step, size % step) if width]
        sums = {e: [self._fresh(e, w) for w in parts] for e in equations if _reduces(e)}

        def vector(at: ir.Value, width: int) -> None:
            grown = {e: places[parts.index(width)] for e, places in sums.items()}
            self._vector(equations, memory, sinks, grown, at, width)

        m.each_vector(size, vector, count)
        for value, found in memory.items():
            self._set(value, found)
        for eqn, places in sums.items():
            pairs = zip(places, parts, strict=True)
            total = self._total(eqn, [self._value(eqn, p, w) for p, w in pairs])
            self._set(eqn.outputs[0], total)

    def _vector(
        self, equations: list[Equation], memory: dict[Value, Stored], sinks: list[Sink],
        grown: dict[Equation, tuple[ir.Value, ...]], at: ir.Value, width: int,
    ) -> None:  # fmt: skip
        """The scalars `at .. at + width` of all values."""
        m, local = self.m, dict[Atom, Vec]()

        def read(atom: Atom) -> Vec:
            atom = self._made_of(atom)
            if atom not in local:
                found = self.env[atom] if isinstance(atom, Value) else self.read(atom)
                local[atom] = found.load(m, at, width) if isinstance(found, Stored) else found
                if local[atom].size not in (1, width):  # written out before
                    raise AssertionError(f"{atom} is in no memory")
            return local[atom]

        for eqn in equations:
            (out,) = eqn.outputs
            if _reduces(eqn):
                combine = combiner(m, _kind(eqn), out.dtype)
                new = m.spread(read(eqn.inputs[0]), width)
                m.assign(grown[eqn], combine(self._value(eqn, grown[eqn], width), new))
                continue
            inputs = [read(a) for a in eqn.inputs]
            if eqn.op.name in RESHAPES:
                local[out] = inputs[0]
            else:
                local[out] = self._elementwise(eqn, inputs, width)
            if out in memory:
                memory[out].store(m, m.spread(local[out], width), at)
        for atom, take in sinks:
            take(m.spread(read(atom), width), at)

    def _elementwise(self, eqn: Equation, inputs: list[Vec], width: int) -> Vec:
        assert isinstance(eqn.op, Lax)
        (out,) = eqn.outputs
        shapes = [(v.size,) if v.size > 1 else () for v in inputs]
        params = dict(eqn.op.params)
        site = CodeSite(self.m, eqn.op.name, params, inputs, shapes, [out.dtype], [(width,)])
        (found,) = RULES[eqn.op.name](site)
        return found

    def _fresh(self, eqn: Equation, width: int) -> tuple[ir.Value, ...]:
        like = self._like(eqn, width)
        places = self.m.variable(like)
        self.m.assign(places, like)
        return places

    def _like(self, eqn: Equation, width: int) -> Vec:
        """What a reduction starts with."""
        dtype = eqn.outputs[0].dtype
        return self.m.literal(dtype, identity(_kind(eqn), dtype), width)

    def _value(self, eqn: Equation, places: tuple[ir.Value, ...], width: int) -> Vec:
        return self.m.value_of(places, self._like(eqn, width))

    def _total(self, eqn: Equation, parts: list[Vec]) -> Vec:
        combine = combiner(self.m, _kind(eqn), eqn.outputs[0].dtype)
        totals = [self.m.fold(combine, p, np.arange(p.size).reshape(1, -1)) for p in parts]
        return totals[0] if len(totals) == 1 else combine(*totals)


def _scalars(atom: Atom) -> int:
    return math.prod(atom.shape)


def _reduces(eqn: Equation) -> bool:
    return eqn.op.name in REDUCTIONS


def _is_chain(eqn: Equation) -> bool:
    return eqn.op.name in CHAINS and eqn.outputs[0].dtype != np.float64


def _kind(eqn: Equation) -> str:
    return REDUCTIONS[eqn.op.name]
