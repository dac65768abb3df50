"""Programs from text: the inverse of `gnnjit.ir.show`, whose docstring describes the notation."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gnnjit.ir import program as ir
from gnnjit.ir.lines import END, Line, ParseError, logical_lines
from gnnjit.ir.program import Aggregate, Atom, Equation, Lax, Literal, Program, Reduce, Value
from gnnjit.ir.show import INFIX, OVER, find_dtype, implied_params, jax_primitives, jax_types
from gnnjit.ir.space import Space, SpaceKind

_PRIMITIVES = {sign: name for name, sign in INFIX.items()}
_KINDS: tuple[SpaceKind, ...] = ("graph", "src", "dst", "edge")
_OVER: dict[tuple[str, ...], SpaceKind] = {
    tuple(re.findall(r"\w+|[-<>]+|[()]", text))[1:]: kind for kind, text in OVER.items()
}
_WORDS = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}
_ABSENT = object()

Scope = dict[str, Value]


def parse(text: str, objects: Sequence[Any] | None = None) -> Program:
    """The program that `text` shows; `objects` are what its `&0`, `&1`, ... stand for.

    Raises `ParseError` with the number of the line.
    """
    lines = logical_lines(text)
    if not lines:
        raise ParseError("line 1: no text; a program starts with `layer name(inputs)`")
    return _Parser(lines, list(objects or ())).program()


class _Parser:
    def __init__(self, lines: list[Line], objects: list[Any]):
        self.lines = lines
        self.objects = objects
        self.row = 0

    @property
    def line(self) -> Line:
        return self.lines[self.row]

    def program(self) -> Program:
        self.line.expect("layer")
        name = self.line.name("the layer's name")
        self.line.expect("(")
        inputs = self.line.listed(self.declared, ")")
        self.line.expect(END.text)
        scope: Scope = {}
        for value in inputs:
            self.define(scope, value)
        equations: list[Equation] = []
        self.row += 1
        while self.row < len(self.lines) and not self.line.sees("return"):
            equations.append(self.equation(scope))
        if self.row == len(self.lines):
            raise ParseError(f"line {self.lines[-1].number}: the program ends without `return`")
        self.line.expect("return")
        outputs = self.line.listed(lambda: self.atom(scope), END.text)
        if self.row + 1 < len(self.lines):
            self.lines[self.row + 1].fail("text after `return`")
        return Program(tuple(inputs), tuple(equations), tuple(outputs), name)

    def define(self, scope: Scope, value: Value) -> None:
        if value.name in scope:
            self.line.fail(f"{value.name} is already defined")
        scope[value.name] = value

    def declared(self) -> Value:
        """`name: type`"""
        name = self.line.name("the name of a value")
        self.line.expect(":")
        dtype = self.dtype(self.line.name("a type"))
        self.line.expect("[")
        space = self.space()
        if space is not Space.SHARED and not self.line.sees("]"):
            self.line.expect(",")
        shape = tuple(self.line.listed(self.line.integer, "]"))
        return Value(shape, dtype, space, name)

    def space(self) -> Space:
        """`dst` or `dst:paper`; a shared value has none."""
        for kind in _KINDS:
            if self.line.skip(kind):
                break
        else:
            return Space.SHARED
        of = self.line.name("a relation") if self.line.skip(":") else None
        try:
            return Space(kind, of)
        except ValueError as error:
            self.line.fail(str(error))

    def dtype(self, name: str) -> Any:
        if name == "key" and self.line.skip("<"):
            name = f"key<{self.line.name('the kind of the key')}>"
            self.line.expect(">")
        dtype = find_dtype(name)
        if dtype is None:
            self.line.fail(f"{name!r} is not a type")
        return dtype

    def equation(self, scope: Scope) -> Equation:
        if self.line.sees("for"):
            return self.traversal(scope)
        if self.line.peek().text in ("select", "fold") and self.line.peek(1).text == "over":
            return self.in_turn(scope)
        line = self.line
        outputs = (self.declared(), *(self.declared() for _ in iter(lambda: line.skip(","), False)))
        line.expect("=")
        op, inputs = self.expression(scope, outputs)
        line.expect(END.text)
        for out in outputs:
            self.define(scope, out)
        self.row += 1
        return Equation(op, tuple(inputs), outputs, line.location)

    def expression(self, scope: Scope, outputs: tuple[Value, ...]) -> tuple[Any, list[Atom]]:
        line = self.line
        if line.peek(1).text == "over":
            return self.reduction(scope, outputs[0])
        if line.peek(1).text == "[" and line.peek(2).text == "graph" and line.peek(3).text == "of":
            return ir.OfGraph(), [self.of_graph(scope, outputs[0])]
        if line.peek(1).text == "[" and line.peek(2).text == "source":
            value = scope.get(line.name("a value of sources"))
            if value is None:
                line.fail("a value that is not defined is read at a vertex")
            line.expect("[", "source", "v", "]")
            return ir.AtVertex(), [value]
        if line.peek(1).text == "of" and line.peek().text in ("degree", "index"):
            return self.vertex_number(outputs[0]), []
        if line.sees("store") and line.peek(1).text == "(":
            line.expect("store", "(")
            return ir.Store(), line.listed(lambda: self.atom(scope), ")")
        if line.sees("-") and line.peek(1).kind == "name" and line.peek(1).text not in _WORDS:
            line.next()
            primitive, operands, params = jax_primitives()["neg"], [self.atom(scope)], {}
        elif self.at_call():
            primitive, operands, params = self.call(scope)
        else:
            left, sign, right = self.atom(scope), line.next().text, self.atom(scope)
            if sign not in _PRIMITIVES:
                line.fail(f"expected one of {' '.join(_PRIMITIVES)}, got {sign!r}")
            primitive, operands, params = jax_primitives()[_PRIMITIVES[sign]], [left, right], {}
        implied = implied_params(tuple(operands), outputs[0], primitive.name)
        said = {k: p for k, p in (implied | params).items() if p is not _ABSENT}
        return Lax(primitive, tuple(sorted(said.items()))), operands

    def of_graph(self, scope: Scope, out: Value) -> Atom:
        """`x[graph of v]`"""
        name = self.line.name("a value of graphs")
        if name not in scope:
            self.line.fail(f"{name} is not defined")
        self.line.expect("[", "graph", "of", out.space.index, "]")
        return scope[name]

    def reduction(self, scope: Scope, out: Value) -> tuple[Any, list[Atom]]:
        """`sum over (u -> v) of x`, or `... of exp(s - max s) * x`, whose operands are s and x"""
        kind = self.line.name("a reduction")
        self.line.expect("over")
        if self.line.skip("(", "v", "in", "graph", ")"):
            self.line.expect("of")
            return ir.Pool(kind), self.line.listed(lambda: self.atom(scope), END.text)
        homes: list[SpaceKind] = [home for words, home in _OVER.items() if self.line.skip(*words)]
        if not homes:
            self.line.fail("expected (u -> v), (v <- u) or `all edges` after `over`")
        self.line.expect("of")
        into = Space(homes[0], out.space.of if homes[0] in ("src", "dst") else None)
        if kind != "sum" or not self.line.skip("exp", "("):
            return Reduce(kind, into), [self.atom(scope)]
        score = self.atom(scope)
        self.line.expect("-", "max")
        if self.atom(scope) is not score:
            self.line.fail("the maximum should be that of the score")
        self.line.expect(")", "*")
        return Reduce("exp_sum", into), [score, self.atom(scope)]

    def vertex_number(self, out: Value) -> ir.Degree | ir.Index:
        op = ir.Degree() if self.line.next().text == "degree" else ir.Index()
        self.line.expect("of")
        if not self.line.skip(out.space.index):
            self.line.fail(f"{op.name} in {out.space.value} is not of {self.line.peek().text!r}")
        return op

    def at_call(self) -> bool:
        (kind, text), after = self.line.peek(), self.line.peek(1).text
        return kind == "name" and (after == "&" or (after == "(" and find_dtype(text) is None))

    def call(self, scope: Scope) -> tuple[Any, list[Atom], dict[str, Any]]:
        line = self.line
        name = line.name("a primitive")
        primitive = self.object() if line.sees("&") else jax_primitives().get(name)
        if primitive is None:
            line.fail(f"{name!r} is not a primitive of JAX")
        line.expect("(")
        operands: list[Atom] = []
        params: dict[str, Any] = {}

        def argument() -> None:
            if line.peek(1).text == "=":
                self.keyword(params)
            elif params:
                line.fail("an operand stands after a parameter")
            else:
                operands.append(self.atom(scope))

        line.listed(argument, ")")
        return primitive, operands, params

    def keyword(self, into: dict[str, Any]) -> None:
        """`name=value`"""
        name = self.line.name("a parameter")
        self.line.expect("=")
        into[name] = _ABSENT if self.line.skip("absent") else self.param()

    def object(self) -> Any:
        self.line.expect("&")
        i = self.line.integer()
        if i < len(self.objects):
            return self.objects[i]
        self.line.fail(f"&{i} is not among the {len(self.objects)} objects given")

    def traversal(self, scope: Scope) -> Equation:
        """`for each edge (u -> v) of operands`, then lines that are further in."""
        head = self.line
        head.expect("for", "each", "edge", "(", "u", "->", "v", ")")
        inner: Scope = {}
        if not head.sees(END.text):
            head.expect("of")
        operands = head.listed(lambda: self.operand(scope, inner), END.text)
        inputs = tuple(inner.values())
        equations: list[Equation] = []
        results: list[tuple[Value, Reduce | None, list[Atom]]] = []
        self.row += 1
        while self.row < len(self.lines) and self.line.indent > head.indent:
            if self.is_result():
                results.append(self.result(inner))
            elif results:
                self.line.fail("an equation stands after an output of the traversal")
            else:
                equations.append(self.equation(inner))
        for out, _, _ in results:
            self.define(scope, out)
        atoms = tuple(operands[-1] for _, _, operands in results)
        body = Program(inputs, tuple(equations), atoms, "body")
        op = Aggregate(body, self.scored(head, results))
        return Equation(op, tuple(operands), tuple(out for out, _, _ in results), head.location)

    def in_turn(self, scope: Scope) -> Equation:
        """`select over (u -> v) of operands` or `fold over (u -> v) in order of t, of operands`,
        then lines that are further in."""
        head = self.line
        kind = head.next().text
        head.expect("over")
        into = next((Space(home) for words, home in _OVER.items() if head.skip(*words)), None)
        if into is None:
            head.fail("expected (u -> v) or (v <- u) after `over`")
        order: list[Atom] = []
        if head.skip("in", "order", "of"):
            order.append(self.atom(scope))
            head.expect(",")
        inner: Scope = {}
        operands: list[Atom] = []
        if head.skip("of"):
            operands = head.listed(lambda: self.operand(scope, inner), END.text)
        head.expect(END.text)
        read = tuple(inner.values())
        states = self.states(head, inner)
        equations: list[Equation] = []
        starts: list[Atom] = []
        ends: list[Atom] = []
        outs: list[Value] = []
        descending = first = False
        self.row += 1
        while self.row < len(self.lines) and self.line.indent > head.indent:
            texts = [t.text for t in self.line.tokens]
            at = texts.index("=") + 1 if "=" in texts else len(texts)
            if "number" not in texts[at : at + 1] and "from" not in texts[at + 1 : at + 2]:
                equations.append(self.equation(inner))
                continue
            outs.append(self.declared())
            if kind == "select":
                descending, first = self.selected(scope, inner, starts, ends)
            else:
                self.line.expect("=")
                self.line.name("a state")
                self.line.expect("from")
                starts.append(self.atom(scope))
                self.line.expect("to")
                ends.append(self.atom(inner))
            self.line.expect(END.text)
            self.row += 1
        for out in outs:
            self.define(scope, out)
        body = Program((*states, *read), tuple(equations), tuple(ends), "body")
        op = (
            ir.Select(body, into, descending, first) if kind == "select"
            else ir.Fold(body, into, bool(order))
        )  # fmt: skip
        return Equation(op, (*order, *starts, *operands), tuple(outs), head.location)

    def states(self, head: Line, inner: Scope) -> list[Value]:
        """The states of a fold, which its last lines name, before any line reads them."""
        found, start = [], self.row
        self.row += 1
        while self.row < len(self.lines) and self.line.indent > head.indent:
            if "from" in [t.text for t in self.line.tokens]:
                out = self.declared()
                self.line.expect("=")
                name = self.line.name("a state")
                found.append(Value(out.shape, out.dtype, out.space, name))
                self.define(inner, found[-1])
                self.line.at = 0
            self.row += 1
        self.row = start
        return found

    def selected(
        self, scope: Scope, inner: Scope, ranks: list[Atom], ends: list[Atom]
    ) -> tuple[bool, bool]:
        """`= number n at rank r of c, largest first`"""
        self.line.expect("=", "number")
        number = self.atom(inner)
        self.line.expect("at")
        first = self.line.skip("first")
        self.line.expect("rank")
        ranks.append(self.atom(scope))
        self.line.expect("of")
        ends += [self.atom(inner), number]
        return self.line.skip(",", "largest", "first"), first

    def operand(self, scope: Scope, inner: Scope) -> Atom:
        """`x[u]`, or `name = x[u]`; defines the body's input."""
        name = self.line.name("a name")  # a constant has to be given one
        if not self.line.skip("="):
            self.line.at -= 1
        atom = self.atom(scope)
        self.define(inner, Value(atom.shape, atom.dtype, atom.space, name))
        return atom

    def is_result(self) -> bool:
        texts = [t.text for t in self.line.tokens]
        start = texts.index("=") + 1 if "=" in texts else len(texts)
        return texts[start : start + 2] == ["on", "each"] or "over" in texts[start + 1 : start + 2]

    def result(self, inner: Scope) -> tuple[Value, Reduce | None, list[Atom]]:
        out = self.declared()
        self.line.expect("=")
        if self.line.skip("on", "each", "edge"):
            reduction, atoms = None, [self.atom(inner)]
        else:
            reduction, atoms = self.reduction(inner, out)
        self.line.expect(END.text)
        self.row += 1
        return out, reduction, atoms

    def scored(self, head: Line, results: Sequence[Any]) -> tuple[Reduce | None, ...]:
        """The reductions, each `exp_sum` with the number of the output that is its maximum."""
        tops = [(atoms[0], r) for _, r, atoms in results]
        found: list[Reduce | None] = []
        for _, reduction, atoms in results:
            if reduction is not None and reduction.kind == "exp_sum":
                top = Reduce("max", reduction.into)
                k = next((k for k, (a, r) in enumerate(tops) if a is atoms[0] and r == top), None)
                if k is None:
                    head.fail("the maximum of a score is not among the outputs of its traversal")
                reduction = dataclasses.replace(reduction, score=k)
            found.append(reduction)
        return tuple(found)

    def atom(self, scope: Scope) -> Atom:
        token = self.line.peek()
        dtype = find_dtype(token.text) if self.line.peek(1).text == "(" else None
        if dtype is not None:
            self.line.expect(token.text, "(")
            held = self.number(bare=False)
            self.line.expect(")")
            return Literal(held, np.dtype(dtype))
        if token.kind != "name" or token.text in _WORDS:
            held = self.number(bare=True)
            return Literal(held, held.dtype)
        self.line.next()
        if token.text not in scope:
            self.line.fail(f"{token.text} is not defined")
        value = scope[token.text]
        if self.line.skip("["):
            letter = self.line.name("u, v or e")
            self.line.expect("]")
            if letter != value.space.index:
                self.line.fail(f"{token.text} lies in {value.space.value}; {letter} cannot read it")
        return value

    def number(self, bare: bool) -> Any:
        """A NumPy scalar: `2`, `-0.5:f16`, `(1.0, 2.0):c64`; a `bare` one is f32, i32 or bool."""
        plain = self.signed() if not self.line.sees("(") else complex(*self.param())
        if self.line.skip(":"):
            return np.asarray(plain, self.dtype(self.line.name("a type")))[()]
        narrow = {float: np.float32, int: np.int32, bool: np.bool_}.get(type(plain), np.complex64)
        return narrow(plain) if bare else np.asarray(plain)[()]

    def signed(self) -> Any:
        """A number or a word; a minus is applied to the number, so that `-0.0` and `-nan` last."""
        minus, token = self.line.skip("-"), self.line.next()
        if token.kind == "name" and _WORDS.get(token.text) is not None:
            value = _WORDS[token.text]
        elif token.kind == "number":
            value = int(token.text) if token.text.isdigit() else float(token.text)
        else:
            self.line.fail(f"expected a value or a number, got {token.text!r}")
        return -value if minus else value

    def param(self) -> Any:
        """The value of a parameter."""
        line = self.line
        kind, text = line.peek()
        if text == "&":
            return self.object()
        if line.skip("("):
            return tuple(line.listed(self.param, ")"))
        if line.skip("None"):
            return None
        if kind == "string":
            return json.loads(line.next().text)
        if kind == "name" and text not in _WORDS:
            return self.named_param(line.next().text)
        return self.signed()

    def named_param(self, name: str) -> Any:
        """A dtype, `Enumeration.MEMBER`, or `NamedTuple(field=value)`."""
        owner, _, member = name.partition(".")
        found = jax_types().get(owner)
        if found is not None and member in getattr(found, "__members__", ()):
            return found.__members__[member]
        if found is not None and self.line.skip("("):
            fields: dict[str, Any] = {}
            self.line.listed(lambda: self.keyword(fields), ")")
            return found(**fields)
        return self.dtype(name)
