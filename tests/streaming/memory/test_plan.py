"""ROC's memory plan, against brute force, the paper's table, and a replay from scratch."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gnnjit.errors import PlanError
from gnnjit.streaming.memory.plan import (
    MemoryPlan,
    Operation,
    lru,
    plan_memory,
    streaming,
)

from .roc import plan_in_any_order, simulate, valid_states

pytestmark = pytest.mark.once

Problem = tuple[list[Operation], dict[str, int], int, tuple[str, ...]]

GIN = [
    Operation("1", ["h0", "g"], ["a"]),
    Operation("2", ["a", "w1"], ["b"]),
    Operation("3", ["b", "w2"], ["h1"]),
    Operation("4", ["h1"], ["dh1"]),
    Operation("5", ["dh1", "b", "w2"], ["db", "dw2"]),
    Operation("6", ["db", "b", "a", "w1"], ["da", "dw1"]),
    Operation("7", ["da", "a", "g"], ["dh0"]),
]
"""Figure 3 of ROC, after Table 3, which keeps `b` for operation 6 and `a` for operation 7."""


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """At most 6 operations over at most 7 tensors, that fit the device one by one."""
    names = [f"t{i}" for i in range(draw(st.integers(2, 6)))]
    made = draw(st.integers(1, min(6, len(names))))
    ops = []
    for i in range(draw(st.integers(1, 6))):
        outputs = names[i : i + 1] if i < made else []
        if i == made - 1 and draw(st.booleans()):
            outputs = [*outputs, "twin"]
        others = [*names[:i], *names[made:]] if i < made else names
        inputs = draw(st.lists(st.sampled_from(others), max_size=3)) if others else []
        ops.append(Operation(f"o{i}", inputs, outputs, draw(st.integers(0, 1))))
    ops = draw(st.permutations(ops))
    sizes = {t: draw(st.integers(0, 4)) for t in [*names, "twin"]}
    used = sorted({t for o in ops for t in (*o.inputs, *o.outputs)})
    assume(used)
    results = draw(st.lists(st.sampled_from(used), max_size=2, unique=True))
    alone = max(need(o, sizes) for o in ops)
    return ops, sizes, alone + draw(st.integers(0, 6)), tuple(results)


def need(op: Operation, sizes: dict[str, int]) -> int:
    return sum(sizes[t] for t in {*op.inputs, *op.outputs}) + op.workspace


def brute_force(problem: Problem) -> int:
    """Fewest bytes over all orders, and over everything that may stay on the device after each
    operation and be copied to the host before it leaves."""
    ops, sizes, capacity, results = problem
    made = {t for o in ops for t in o.outputs}
    at_first = frozenset(t for o in ops for t in o.inputs) - made

    def size(tensors: frozenset[str]) -> int:
        return sum(sizes[t] for t in tensors)

    @functools.cache
    def least(done: frozenset[int], device: frozenset[str], host: frozenset[str]) -> float:
        if len(done) == len(ops):
            missing = frozenset(results) - host
            return size(missing) if missing <= device else float("inf")
        costs = [float("inf")]
        for i, op in enumerate(ops):
            late = any(made & set(op.inputs) & set(o.outputs) for o in without(ops, done))
            loads = frozenset(op.inputs) - device
            full = device | loads | frozenset(op.outputs)
            if i in done or late or not loads <= host or size(full) + op.workspace > capacity:
                continue
            for kept in subsets(full):
                # Copying what leaves is optional: whoever needs it later finds out.
                for stored in subsets(full - kept - host):
                    rest = least(done | {i}, kept, host | stored)
                    costs.append(size(loads) + size(stored) + rest)
        return min(costs)

    found = least(frozenset(), frozenset(), at_first)
    assert found < float("inf")
    return int(found)


def without(ops: list[Operation], done: frozenset[int]) -> list[Operation]:
    return [o for i, o in enumerate(ops) if i not in done]


def subsets(tensors: frozenset[str]) -> Iterator[frozenset[str]]:
    for count in range(len(tensors) + 1):
        yield from map(frozenset, itertools.combinations(sorted(tensors), count))


def replay(plan: MemoryPlan, problem: Problem) -> int:
    ops, sizes, capacity, results = problem
    return simulate(plan, ops, sizes, capacity, results)


def gcn(layers: int) -> Problem:
    """Training of a GCN on 1000 vertices with 64 features, and 20 000 edges; the activations are
    kept for the backward. Capacity: of everything at once."""
    ops, sizes = [], {"g": 4 * 21_000, "h0": 256_000, "labels": 4_000}
    for i in range(1, layers + 1):
        ops.append(Operation(f"gather{i}", [f"h{i - 1}", "g"], [f"a{i}"]))
        ops.append(Operation(f"linear{i}", [f"a{i}", f"w{i}"], [f"h{i}"]))
    ops.append(Operation("loss", [f"h{layers}", "labels"], [f"dh{layers}"]))
    for i in range(layers, 0, -1):
        outputs = [f"da{i}", f"dw{i}"]
        ops.append(Operation(f"linear{i}'", [f"dh{i}", f"a{i}", f"h{i}", f"w{i}"], outputs))
        if i > 1:
            ops.append(Operation(f"gather{i}'", [f"da{i}", "g"], [f"dh{i - 1}"]))
        sizes |= {f"{t}{i}": 256_000 for t in ("a", "h", "da", "dh")}
        sizes |= {f"{t}{i}": 16_384 for t in ("w", "dw")}
    return ops, sizes, sum(sizes.values()), tuple(f"dw{i}" for i in range(1, layers + 1))


@settings(max_examples=60)
@given(problems())
def test_no_plan_moves_fewer_bytes(problem):
    plan = plan_in_any_order(*problem)
    assert plan.method == "any order"
    assert plan.bytes_moved == replay(plan, problem) == brute_force(problem)


@settings(max_examples=100)
@given(problems())
def test_each_method_moves_no_more_than_the_next(problem):
    ops, sizes, capacity, results = problem
    exact = plan_in_any_order(*problem)
    fixed = [o for s in streaming(*problem).steps for o in ops if o.name == s.name]
    greedy = plan_memory(*problem, max_operations=0)
    integer = plan_memory(*problem)
    tokens = {f"token{i}": 0 for i in range(len(ops))}
    given_order = plan_in_any_order(chained(fixed), sizes | tokens, capacity, results)
    recent, streamed = lru(*problem), streaming(*problem)
    for plan in (exact, integer, greedy, recent, streamed):
        assert plan.bytes_moved == replay(plan, problem)
        assert plan.peak_bytes <= capacity
    assert integer.method == "given order"
    assert integer.bytes_moved == given_order.bytes_moved
    bytes_moved = [p.bytes_moved for p in (exact, given_order, greedy, recent, streamed)]
    assert bytes_moved == sorted(bytes_moved)


def chained(ops: list[Operation]) -> list[Operation]:
    """With the given order as the only one: each also reads a token of the one before it."""
    tokens = [f"token{i}" for i in range(len(ops))]
    return [
        Operation(o.name, [*o.inputs, *tokens[i - 1 : i]], [*o.outputs, tokens[i]], o.workspace)
        for i, o in enumerate(ops)
    ]


def without_tokens(plan: MemoryPlan) -> MemoryPlan:
    def names(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(n for n in some if not n.startswith("token"))

    steps = tuple(
        dataclasses.replace(
            s, loads=names(s.loads), stores=names(s.stores), evictions=names(s.evictions),
            cached=names(s.cached),
        )
        for s in plan.steps
    )  # fmt: skip
    return dataclasses.replace(plan, steps=steps)


def test_the_valid_states_of_rocs_table():
    table = [
        ("", ""),
        ("1", "g a"),
        ("12", "g a b w1"),
        ("123", "g a b h1 w1 w2"),
        ("1234", "g a b w1 w2 dh1"),
        ("12345", "g a b w1 db"),
        ("123456", "g a da"),
        ("1234567", ""),
    ]
    expected = {frozenset(ops): frozenset(tensors.split()) for ops, tensors in table}
    assert valid_states(GIN) == expected


def test_valid_states_hold_every_order():
    ops = [Operation(name, [f"x{name}"], [f"y{name}"]) for name in "abc"]
    assert len(valid_states(ops)) == 8
    assert len(valid_states([*ops, Operation("d", ["ya", "yb", "yc"], ["z"])])) == 9


def test_a_tensor_at_its_last_use_may_be_cached():
    """Algorithm 1 as printed counts `b` as loaded, though it has just been made."""
    ops = [Operation("make", ["a"], ["b"]), Operation("use", ["b"], ["c"])]
    plan = plan_memory(ops, {"a": 5, "b": 3, "c": 1}, 8, ["c"])
    assert plan.bytes_moved == 5 + 1
    assert [s.cached for s in plan.steps] == [("b",), ()]


def test_an_evicted_tensor_is_stored_once():
    """`a` gives way twice, to x and to y, as it is needed between and after them."""
    ops = [
        Operation("make", [], ["a"]),
        Operation("first", ["x"], ["b"]),
        Operation("read", ["a", "b"], ["c"]),
        Operation("second", ["y", "c"], ["d"]),
        Operation("last", ["a", "d"], ["e"]),
    ]
    sizes = {"a": 10, "x": 11, "y": 11, "b": 1, "c": 1, "d": 1, "e": 1}
    tokens = {f"token{i}": 0 for i in range(len(ops))}
    chain = chained(ops)  # in another order less is moved
    plan = plan_in_any_order(chain, sizes | tokens, 13)
    assert plan.bytes_moved == 11 + 11 + 10 + 10 + 10
    plan = without_tokens(plan)
    assert [s.stores for s in plan.steps] == [(), ("a",), (), (), ()]
    assert [s.loads for s in plan.steps] == [(), ("x",), ("a",), ("y",), ("a",)]
    assert [s.evictions for s in plan.steps] == [(), ("a",), (), ("a",), ()]
    assert [s.peak_bytes for s in plan.steps] == [10, 12, 12, 13, 12]


def test_a_better_order_is_found():
    """Two chains, given in turns: one after the other, nothing is evicted."""
    ops = [Operation(f"{c}{i}", [f"{c}{i}"], [f"{c}{i + 1}"]) for i in range(3) for c in "xy"]
    sizes = {f"{c}{i}": 4 for i in range(4) for c in "xy"}
    plan = plan_in_any_order(ops, sizes, 8, ["x3", "y3"])
    assert plan.bytes_moved == 4 * 4
    assert [s.name for s in plan.steps] == ["x0", "x1", "x2", "y0", "y1", "y2"]
    assert lru(ops, sizes, 8, ["x3", "y3"]).bytes_moved == 4 * 4 + 4 * 4 * 2


def test_beyond_the_limit_the_plans_are_simpler():
    """Five chains, given in turns: a search over all orders looks at far more than one of them."""
    chains = "uvxyz"
    ops = [Operation(f"{c}{i}", [f"{c}{i}"], [f"{c}{i + 1}"]) for i in range(3) for c in chains]
    sizes = {f"{c}{i}": 4 for i in range(4) for c in chains}
    found = []
    for states, most in ((0, 14), (0, 15), *((4**k, 15) for k in range(9))):
        plan = plan_in_any_order(
            ops, sizes, 12, [f"{c}3" for c in chains], max_states=states, max_operations=most
        )
        found.append(plan.method)
    methods = list(dict.fromkeys(found))
    assert methods[0] in ("farthest next use", "least recently used")
    assert methods[1:] == ["given order", "any order"]


def test_of_many_operations_the_fewest_bytes_in_their_order():
    """Twenty blocks are read in turn, five times, and there is room for ten: of the results of the
    rounds, which are needed in the end, Belady's rule stores some. LRU keeps no block until the
    last round, in which those that were read leave room."""
    rounds, blocks = 5, 20
    ops = [
        Operation(f"{r}.{b}", [f"x{b}"], [f"y{r}"] if b == 0 else [])
        for r in range(rounds)
        for b in range(blocks)
    ]
    ops.append(Operation("end", [f"y{r}" for r in range(rounds)], ["z"]))
    sizes = {"z": 0} | {f"x{b}": 10 for b in range(blocks)} | {f"y{r}": 1 for r in range(rounds)}
    plan = plan_memory(ops, sizes, 105, ["z"])
    simple = plan_memory(ops, sizes, 105, ["z"], max_operations=0)
    assert plan.method == "given order"
    assert plan.bytes_moved == replay(plan, (ops, sizes, 105, ("z",)))
    assert plan.bytes_moved == 200 + 4 * 100
    assert simple.bytes_moved == 200 + 4 * 100 + 4 * 2
    assert lru(ops, sizes, 105, ["z"]).bytes_moved >= 4 * 200


def test_a_tensor_that_must_be_stored_is_not_what_leaves():
    """Belady's rule lets go of what is read last, though the host has no copy of it."""
    ops = [
        Operation("make", [], ["a"]),
        Operation("read", ["b"], ["c"]),
        Operation("large", ["d", "c"], ["e"]),
        Operation("again", ["b", "e"], ["f"]),
        Operation("end", ["a", "f"], ["g"]),
    ]
    sizes = {"a": 4, "b": 4, "c": 1, "d": 4, "e": 1, "f": 1, "g": 1}
    plan = plan_memory(ops, sizes, 11, ["g"])
    simple = plan_memory(ops, sizes, 11, ["g"], max_operations=0)
    assert plan.method == "given order"
    assert plan.bytes_moved == 4 + 4 + 4 + 1
    assert simple.bytes_moved == 4 + 4 + (4 + 4) + 1


def test_training_a_gcn_in_half_its_memory():
    ops, sizes, everything, results = gcn(4)
    roomy = plan_in_any_order(ops, sizes, everything, results)
    needed = roomy.peak_bytes
    least = sum(sizes[t] for t in ("g", "h0", "labels", "w1", "w2", "w3", "w4", *results))
    assert roomy.bytes_moved == least
    half = plan_in_any_order(ops, sizes, needed // 2, results)
    streamed = streaming(ops, sizes, needed // 2, results)
    assert half.method == "any order"
    assert half.peak_bytes <= needed // 2 < needed
    assert simulate(half, ops, sizes, needed // 2, results) == half.bytes_moved > least
    assert streamed.bytes_moved / half.bytes_moved > 1.4


def test_the_given_order_is_kept_where_it_can_be():
    ops = [Operation(n, i, [n]) for n, i in [("c", ["b"]), ("d", []), ("b", ["a"]), ("e", [])]]
    sizes = dict.fromkeys("abcde", 1)
    assert [s.name for s in lru(ops, sizes, 9).steps] == ["d", "b", "c", "e"]


def test_no_operations():
    plan = plan_memory([], {}, 0)
    assert (plan.steps, plan.bytes_moved, plan.peak_bytes) == ((), 0, 0)


def test_a_plan_prints_as_a_table():
    ops = [Operation("gather", ["h", "g"], ["a"]), Operation("linear", ["a", "w"], ["y"], 100)]
    sizes = {"h": 1024, "g": 512, "a": 1024, "w": 64, "y": 2048}
    assert str(plan_memory(ops, sizes, 4096, ["y"])).splitlines() == [
        "operation  loads  stores  evicts  cached after  peak",
        "gather     h g    -       -       a             2.5 KiB",
        "linear     w      y       -       -             3.2 KiB",
        "3.6 KiB moved (least for the given order), at most 3.2 KiB of 4.0 KiB on the device",
    ]


A = Operation("a", ["x"], ["y"])
ONE = {"x": 1, "y": 1, "z": 1}


@pytest.mark.parametrize(
    ("ops", "sizes", "capacity", "results", "message"),
    [
        (
            [Operation("big", ["x"], ["y"], 5), Operation("bigger", ["y"], ["z"], 6)],
            ONE,
            6,
            (),
            "operation 'big' needs 7 bytes on the device (inputs, outputs and workspace), the "
            "capacity is 6. The smallest capacity that does is 8: make the chunks smaller or the "
            "capacity larger",
        ),
        (
            [A],
            {"x": 1},
            9,
            (),
            "tensor 'y' of operation 'a' has no size: give its bytes as sizes['y']",
        ),
        (
            [A, Operation("b", [], ["y"])],
            ONE,
            9,
            (),
            "tensor 'y' is made by operation 'a' and again by 'b': give what each of them makes a "
            "name of its own",
        ),
        ([A, A], ONE, 9, (), "two operations are named 'a', expected a name of each's own"),
        (
            [Operation("b", ["z"], []), A, Operation("c", ["y"], ["z", "x"])],
            ONE,
            9,
            (),
            "the operations need one another in a cycle: 'c' needs 'a' needs 'c'. Expected none to "
            "need its own output: give a tensor that is updated a new name",
        ),
        (
            [Operation("a", ["x"], ["x"])],
            ONE,
            9,
            (),
            "the operations need one another in a cycle: 'a' needs 'a'. Expected none to need its "
            "own output: give a tensor that is updated a new name",
        ),
        (
            [A],
            ONE,
            9,
            ("w",),
            "the result 'w' is no tensor of the operations, expected one of 'x', 'y'",
        ),
        (
            [A],
            ONE | {"x": -1},
            9,
            (),
            "the size of tensor 'x' is -1, expected bytes: a whole number >= 0",
        ),
        ([A], ONE, 0.5, (), "the capacity is 0.5, expected bytes: a whole number >= 0"),
        (
            [Operation("a", ["x"], ["y"], True)],
            ONE,
            9,
            (),
            "the workspace of operation 'a' is True, expected bytes: a whole number >= 0",
        ),
    ],
)
@pytest.mark.parametrize("planner", [plan_memory, lru, streaming])
def test_what_cannot_be_planned(planner, ops, sizes, capacity, results, message):
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        planner(ops, sizes, capacity, results)


def test_names_are_a_sequence():
    message = "operation 'a': inputs is the text 'xy', expected a sequence of names: write ('xy',)"
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        Operation("a", "xy", [])


OPS = [Operation("make", ["x"], ["a"]), Operation("use", ["a", "x"], ["b"])]
SIZES = {"x": 2, "a": 3, "b": 4}
GOOD = plan_memory(OPS, SIZES, 9, ["b"])


@pytest.mark.parametrize(
    ("step", "change", "what"),
    [
        (0, {"loads": ()}, "reads ['x'], not on the device"),
        (0, {"cached": ()}, "reads ['a', 'x'], not on the device"),
        (0, {"cached": ("a", "b", "x")}, "keeps ['b'], not on the device"),
        (1, {"loads": ("a",), "evictions": ("a",)}, "loads ['a'], not on the host"),
        (1, {"evictions": ("b",)}, "evicts ('b',) and stores ('b',) beyond what is there"),
        (0, {"stores": ("b",)}, "evicts () and stores ('b',) beyond what is there"),
    ],
)
def test_the_replay_refuses_a_wrong_plan(step, change, what):
    steps = list(GOOD.steps)
    steps[step] = dataclasses.replace(steps[step], **change)
    wrong = dataclasses.replace(GOOD, steps=tuple(steps))
    message = f"step '(make|use)' of the plan {re.escape(what)}: plan these operations anew"
    with pytest.raises(PlanError, match=f"^{message}$"):
        simulate(wrong, OPS, SIZES, 9, ["b"])


def test_the_replay_refuses_another_program():
    assert simulate(GOOD, OPS, SIZES, 9, ["b"]) == 2 + 4
    with pytest.raises(PlanError, match=r"^step 'use' of the plan holds 9 bytes on the device, "):
        simulate(GOOD, OPS, SIZES, 8, ["b"])
    with pytest.raises(PlanError, match=r"^the plan does not run every operation once: plan"):
        simulate(GOOD, OPS[:1], SIZES, 9)
    with pytest.raises(PlanError, match=r"^the plan leaves the results \['a'\] off the host: "):
        simulate(GOOD, OPS, SIZES, 9, ["a", "b"])
