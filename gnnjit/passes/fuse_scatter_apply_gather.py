"""`fuse-scatter-apply-gather`: edge equations and their reductions, as few traversals as can be.

before:  s: f32[edge] = a[u] + b[v]        after:  y, t = aggregate over (u -> v)
         w: f32[edge] = exp(s)                         s = a[u] + b[v]; w = exp(s)
         y: f32[dst] = sum of w                        sum of w; sum of w * x[u]
         t: f32[dst, 8] = sum of w * x[u]

A value that two traversals need is computed in both (NeuGraph 3.4's fused scatter-apply-gather),
unless a `store` says otherwise: then a traversal writes it on the edges, and those that need it
come later and read it, as do the derivatives of what they compute. Reductions share a traversal
when they own the same rows (destinations or sources) and stand at the same *level*: as many
reductions and stores lie before each of them. Values returned on the edges are written by the
traversal of their level. An `exp_sum` brings the maximum of its score into its traversal. Always
legal.

With `split`, every reduction into vertices is a traversal of its own (an `exp_sum` still with the
maximum of its score): for bodies that are too large for a kernel's registers, or reductions whose
neighbours in a traversal have no fast kernel. What is left on the edges, or reduced over all of
them, joins one of these.

With `both_ends`, reductions into sources and into destinations that share work on the edges are one
aggregate all the same: it is differentiated as one, so that the gradient computes the edge function
once for both, and becomes a traversal for each when it is lowered (`store-shared-products`).

split:   y = aggregate over (u -> v)          t = aggregate over (u -> v)
                 s = a[u] + b[v]; w = exp(s)           s = a[u] + b[v]; w = exp(s)
                 sum of w                              sum of w * x[u]
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from gnnjit.ir.program import Aggregate, Atom, Builder, Equation, Lax, Program, Reduce, Store, Value
from gnnjit.ir.space import Space

_STEPS = (Reduce, Store, Aggregate)


@dataclasses.dataclass(frozen=True)
class FuseScatterApplyGather:
    """`split`: one traversal for each reduction into vertices. `both_ends`: those into sources and
    into destinations may be one aggregate."""

    split: bool = False
    both_ends: bool = False
    name: str = "fuse-scatter-apply-gather"

    def __call__(self, program: Program) -> Program:
        return _Fusion(program, self.split, self.both_ends).run()


def traversals(program: Program) -> int:
    """How many there will be of a program without any."""
    return len(_Fusion(program, split=False).group())


def levels(inputs: Iterable[Value], equations: Iterable[Equation]) -> dict[Value, int]:
    """How many reductions and stores, one after the other, lie before each value."""
    level: dict[Value, int] = dict.fromkeys(inputs, 0)
    for eqn in equations:
        below = [level[a] for a in eqn.inputs if isinstance(a, Value)]
        here = (max(below) if below else 0) + isinstance(eqn.op, _STEPS)
        for out in eqn.outputs:
            level[out] = here
    return level


@dataclasses.dataclass(frozen=True)
class _Output:
    """One output of a traversal: `atom` reduced by `reduction` (with `score`) gives `result`."""

    atom: Atom
    reduction: Reduce | None
    result: Value
    eqn: Equation | None
    score: Atom | None = None


_Group = tuple[int, Space, int]
"""Level and rows of a traversal; with `split`, also the number of its first reduction."""


class _Fusion:
    def __init__(self, program: Program, split: bool, both_ends: bool = False):
        self.program, self.split = program, split
        self.both_ends = both_ends and not split
        self.made = {o: e for e in program.equations for o in e.outputs}
        self.level = levels(program.inputs, program.equations)
        self.builder = Builder(program.inputs)

    def run(self) -> Program:
        groups = self.group()
        fused: dict[int, list[Equation]] = collections.defaultdict(list)
        for (level, *_), outputs in groups.items():
            fused[level].append(self.aggregate(_with_maxima(outputs)))
        kept: dict[int, list[Equation]] = collections.defaultdict(list)
        for eqn in self.program.equations:
            if not _is_edge_work(eqn):
                kept[self.level[eqn.outputs[0]]].append(eqn)
        equations: list[Equation] = []
        for level in sorted({*kept, *fused}):
            equations += kept[level] + fused[level]
        outputs = tuple(self.results.get(o, o) for o in self.program.outputs)  # type: ignore[arg-type]
        return dataclasses.replace(self.program, equations=tuple(equations), outputs=outputs)

    def group(self) -> dict[_Group, list[_Output]]:
        groups: dict[_Group, list[_Output]] = {}
        loose: list[tuple[int, _Output]] = []
        self.results: dict[Atom, Value] = {}
        for eqn in self.program.equations:
            if isinstance(eqn.op, Store):
                output = _Output(eqn.inputs[0], None, eqn.outputs[0], eqn)
                loose.append((self.level[eqn.outputs[0]] - 1, output))
            if isinstance(eqn.op, Reduce):
                level = self.level[eqn.outputs[0]] - 1
                *score, atom = eqn.inputs
                output = _Output(atom, eqn.op, eqn.outputs[0], eqn, *score)
                if eqn.op.into is Space.SHARED:
                    loose.append((level, output))
                else:
                    groups.setdefault(self.key(level, output), []).append(output)
        for atom in dict.fromkeys(self.program.outputs):
            if isinstance(atom, Value) and self.must_be_written(atom):
                result = Value(atom.shape, atom.dtype, Space.EDGE)
                self.results[atom] = result
                loose.append((self.level[atom], _Output(atom, None, result, self.made.get(atom))))
        for level, into, number in list(groups) if self.both_ends else ():
            other = level, into.flipped, number
            if into is Space.SRC and other in groups and self.share(groups, other, level):
                groups[other] += groups.pop((level, into, number))
        for level, output in loose:
            here = [k for k in groups if k[0] == level]
            key = next((k for k in here if k[1] is Space.DST), here[0] if here else None)
            groups.setdefault(key or (level, Space.DST, 0), []).append(output)
        return groups

    def share(self, groups: Mapping[_Group, list[_Output]], other: _Group, level: int) -> bool:
        """Whether the reductions of one level into sources and destinations do the same work, or
        read the same values of edges, whose gradient is then one."""
        every = [groups[other], groups[level, other[1].flipped, other[2]]]
        ours, theirs = (self.work([o.atom for o in outputs]) for outputs in every)
        return not ours.isdisjoint(theirs)

    def work(self, roots: list[Atom]) -> set[int]:
        """The edge equations that `roots` need, and the values of edges that these read."""
        needed = self.slice(roots)
        read = (a for e in needed for a in e.inputs)
        return {id(x) for x in (*needed, *roots, *read) if x.space is Space.EDGE}

    def key(self, level: int, output: _Output) -> _Group:
        """The traversal of a reduction; that of a maximum is the `exp_sum`'s that needs it."""
        assert output.reduction is not None
        assert output.eqn is not None
        into, owner = output.reduction.into, output.eqn
        if not self.split:
            return level, into, 0
        if output.reduction.kind == "max":
            owner = next((e for e in self.program.equations if self.needs(e, output)), owner)
        return level, into, self.program.equations.index(owner)

    def needs(self, eqn: Equation, top: _Output) -> bool:
        """Whether `eqn` is an `exp_sum` with the maximum `top`, of the same level."""
        assert top.reduction is not None
        assert top.eqn is not None
        same = eqn.op == Reduce("exp_sum", top.reduction.into) and eqn.inputs[0] is top.atom
        return same and self.level[eqn.outputs[0]] == self.level[top.eqn.outputs[0]]

    def must_be_written(self, atom: Value) -> bool:
        eqn = self.made.get(atom)
        return eqn is not None and isinstance(eqn.op, Lax) and atom.space is Space.EDGE

    def aggregate(self, outputs: list[_Output]) -> Equation:
        needed = self.slice([o.atom for o in outputs])
        inner = {o for e in needed for o in e.outputs}
        reads = [a for e in needed for a in e.inputs] + [o.atom for o in outputs]
        operands = [a for a in dict.fromkeys(reads) if isinstance(a, Value) and a not in inner]
        fresh = {a: Value(a.shape, a.dtype, a.space, a.name) for a in operands}
        body = Builder()
        body.env.update(fresh)
        for eqn in needed:
            outs = [Value(o.shape, o.dtype, o.space, o.name) for o in eqn.outputs]
            body.emit(eqn.op, [body[a] for a in eqn.inputs], outs, eqn.location)
            body.env.update(zip(eqn.outputs, outs, strict=True))
        results = tuple(body[o.atom] for o in outputs)
        program = Program(tuple(fresh.values()), tuple(body.equations), results, "body")
        op = Aggregate(program, tuple(o.reduction for o in outputs))
        where = next((o.eqn.location for o in outputs if o.eqn is not None), None)
        return Equation(op, tuple(operands), tuple(o.result for o in outputs), where)

    def slice(self, roots: list[Atom]) -> list[Equation]:
        """The edge equations that `roots` need, in order."""
        live = set(roots)
        needed: list[Equation] = []
        for eqn in reversed(self.program.equations):
            if _is_on_the_edges(eqn) and not live.isdisjoint(eqn.outputs):
                needed.append(eqn)
                live.update(eqn.inputs)
        return needed[::-1]


def _is_edge_work(eqn: Equation) -> bool:
    return _is_on_the_edges(eqn) or isinstance(eqn.op, (Reduce, Store))


def _is_on_the_edges(eqn: Equation) -> bool:
    return isinstance(eqn.op, Lax) and eqn.space is Space.EDGE


def _with_maxima(outputs: Sequence[_Output]) -> list[_Output]:
    """The outputs, each `exp_sum` with the number of the one that is the maximum of its score."""
    found = list(outputs)
    for i, output in enumerate(outputs):
        if output.score is None:
            continue
        assert output.reduction is not None
        top = Reduce("max", output.reduction.into)
        same = (k for k, o in enumerate(found) if o.atom is output.score and o.reduction == top)
        k = next(same, None)
        if k is None:
            k = len(found)
            result = Value(tuple(output.score.shape), output.score.dtype, top.into)
            found.append(_Output(output.score, top, result, output.eqn))
        found[i] = dataclasses.replace(
            output, reduction=dataclasses.replace(output.reduction, score=k)
        )
    return found
