"""Spaces are a lattice of values: one object each, joined, written and read."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import LayerError, VerifyError
from gnnjit.ir.parse import ParseError, parse
from gnnjit.ir.program import Equation, Program
from gnnjit.ir.show import show
from gnnjit.ir.space import Space, join
from gnnjit.ir.verify import verify

from .layers import value

SPACES = [Space.SHARED, Space.GRAPH] + [
    Space(kind, of) for kind in ("src", "dst", "edge") for of in (None, "cites", "writes")
]
some = st.sampled_from(SPACES)

TYPED = """\
layer typed(x: f32[src:cites, 4], w: f32[graph], y: f32[dst:cites, 4], b: bool[edge:cites])
  a: f32[dst:cites] = w[graph of v]
  c: f32[dst:cites, 4] = a * y
  d: f32[edge:cites, 4] = x[u] + c[v]
  f: f32[dst:cites, 4] = sum over (u -> v) of d
  return f"""


def joined(*spaces: Space | None) -> Space | None:
    """Their join; None, which is above all, where there is none."""
    try:
        return None if None in spaces else join(*(s for s in spaces if s is not None))
    except LayerError:
        return None


@given(some, some, some)
def test_join_is_commutative_associative_and_idempotent(a: Space, b: Space, c: Space) -> None:
    assert joined(a, a) is a
    assert joined(a, b) is joined(b, a)
    assert joined(joined(a, b), c) is joined(a, joined(b, c)) is joined(a, b, c)


@given(some, some)
def test_order_is_that_of_the_join(a: Space, b: Space) -> None:
    assert (a <= b) == (joined(a, b) is b)
    assert not (a <= b <= a) or a is b


@given(some, some)
def test_join_on_the_reversed_graph(a: Space, b: Space) -> None:
    both = joined(a, b)
    assert joined(a.flipped, b.flipped) is (both and both.flipped)
    assert a.flipped.flipped is a


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (Space.SRC, Space.DST, Space.EDGE),
        (Space.SHARED, Space.GRAPH, Space.GRAPH),
        (Space.GRAPH, Space("dst", "cites"), Space("dst", "cites")),
        (Space("src", "cites"), Space("dst", "cites"), Space("edge", "cites")),
        (Space("src", "cites"), Space("edge", "cites"), Space("edge", "cites")),
    ],
)
def test_joins(a: Space, b: Space, expected: Space) -> None:
    assert join(a, b) is expected


def test_join_of_no_spaces() -> None:
    assert join() is Space.SHARED


@pytest.mark.parametrize("other", [Space("dst", "writes"), Space("src", "writes"), Space.EDGE])
def test_values_of_different_relations_do_not_meet(other: Space) -> None:
    with pytest.raises(LayerError, match=f"a value of dst:cites and one of {other.value} meet on"):
        join(Space("dst", "cites"), other)


@pytest.mark.parametrize("space", SPACES, ids=lambda s: s.value)
def test_there_is_one_object_for_each_space(space: Space) -> None:
    assert pickle.loads(pickle.dumps(space)) is space
    assert copy.deepcopy(space) is space
    assert Space(space.kind, space.of) is space
    assert {space: 1}[Space(space.kind, space.of)] == 1
    assert eval(repr(space)) is space


@pytest.mark.parametrize("args", [("vertex",), ("shared", "cites"), ("dst", "a b")])
def test_spaces_that_do_not_exist(args: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"no kind of space|belong to a name"):
        Space(*args)  # type: ignore


def test_names_are_printed_and_parsed() -> None:
    program = parse(TYPED)
    verify(program)
    assert show(program, locations=False) == TYPED
    assert [v.space for v in program.values()] == [
        Space("src", "cites"), Space.GRAPH, Space("dst", "cites"), Space("edge", "cites"),
        Space("dst", "cites"), Space("dst", "cites"), Space("edge", "cites"),
        Space("dst", "cites"),
    ]  # fmt: skip


def test_a_name_that_cannot_be_parsed() -> None:
    with pytest.raises(ParseError, match=r"line 1: .*'a\.b'"):
        parse("layer f(x: f32[dst:a.b, 4])\n  return x")


def test_the_verifier_names_relations_that_do_not_meet() -> None:
    x, y = (value("x", Space("dst", of), 4) for of in ("cites", "writes"))
    (op,) = [e.op for e in parse(TYPED).equations if e.op.name == "add"]
    program = Program((x, y), (Equation(op, (x, y), (value("z", x.space, 4),)),), ())
    with pytest.raises(VerifyError, match="a value of dst:cites and one of dst:writes"):
        verify(program)
