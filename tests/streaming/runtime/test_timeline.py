"""The pipeline of transfers and computations, against a simulation event by event and against all
orders."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit.errors import PlanError
from gnnjit.streaming.runtime.timeline import Job, refine, timeline

from .estimates import Profile

pytestmark = pytest.mark.once

SECONDS = st.integers(0, 12).map(float)
JOBS = st.lists(st.builds(Job, st.sampled_from("abc"), SECONDS, SECONDS), max_size=8)
FEW = st.lists(st.builds(Job, st.just("a"), SECONDS, SECONDS), min_size=1, max_size=6)


def events(jobs: list[Job], buffers: int) -> tuple[dict[str, list[float]], int]:
    """Whole seconds one after another: starts and ends of each engine's jobs, and the seconds in
    which both worked."""
    log: dict[str, list[float]] = {"transfer": [], "compute": []}
    left = {"transfer": 0.0, "compute": 0.0}
    busy = {"transfer": False, "compute": False}
    arrived = finished = sent = taken = both = 0
    now = 0.0
    while finished < len(jobs):
        changed = True
        while changed:  # Jobs of no duration begin and end within one moment.
            changed = False
            if busy["transfer"] and left["transfer"] == 0:
                busy["transfer"], changed, arrived = False, True, arrived + 1
                log["transfer"].append(now)
            if busy["compute"] and left["compute"] == 0:
                busy["compute"], changed, finished = False, True, finished + 1
                log["compute"].append(now)
            if not busy["transfer"] and sent < len(jobs) and sent - finished < buffers:
                busy["transfer"], changed, left["transfer"] = True, True, jobs[sent].transfer
                log["transfer"].append(now)
                sent += 1
            if not busy["compute"] and taken < arrived:
                busy["compute"], changed, left["compute"] = True, True, jobs[taken].compute
                log["compute"].append(now)
                taken += 1
        both += busy["transfer"] and busy["compute"]
        left = {engine: seconds - busy[engine] for engine, seconds in left.items()}
        now += 1
    return log, both


def totals(jobs: list[Job], buffers: int) -> list[float]:
    """The total time of each order of the jobs."""
    return [timeline(order, buffers).total for order in itertools.permutations(jobs)]


@given(JOBS, st.integers(1, 4))
def test_the_timeline_is_what_happens(jobs, buffers):
    found = timeline(jobs, buffers)
    log, both = events(jobs, buffers)
    assert [j.name for j in found.jobs] == [j.name for j in jobs]
    assert log["transfer"] == [t for j in found.jobs for t in (j.transfer_start, j.transfer_end)]
    assert log["compute"] == [t for j in found.jobs for t in (j.compute_start, j.compute_end)]
    assert found.total == max(log["compute"], default=0.0)
    transfer, compute = sum(j.transfer for j in jobs), sum(j.compute for j in jobs)
    assert found.total >= max(transfer, compute)
    assert found.transfer_idle == found.total - transfer
    assert found.compute_idle == found.total - compute
    assert found.overlap == (both / transfer if transfer else 1.0)


@given(JOBS)
def test_one_buffer_overlaps_nothing_and_more_are_never_slower(jobs):
    by_buffers = [timeline(jobs, b).total for b in (1, 2, 3, len(jobs) + 1)]
    assert by_buffers[0] == sum(j.transfer + j.compute for j in jobs)
    assert by_buffers == sorted(by_buffers, reverse=True)


@settings(max_examples=30)
@given(FEW)
def test_with_a_slot_for_each_job_the_refined_order_is_the_best(jobs):
    """Johnson's rule: a flow shop of two machines."""
    order = refine(jobs, buffers=len(jobs))
    assert sorted(order) == list(range(len(jobs)))
    found = timeline([jobs[i] for i in order], len(jobs)).total
    assert found == min(totals(jobs, len(jobs)))


@settings(max_examples=30)
@given(FEW)
def test_with_two_slots_the_refined_order_is_close_to_the_best(jobs):
    order = refine(jobs)
    assert order == refine(jobs)
    found = timeline([jobs[i] for i in order]).total
    assert found <= 1.1 * min(totals(jobs, 2))


@given(JOBS, st.integers(1, 4), st.integers(0, 3))
def test_refining_is_never_worse(jobs, buffers, rounds):
    order = refine(jobs, buffers, rounds)
    assert sorted(order) == list(range(len(jobs)))
    assert timeline([jobs[i] for i in order], buffers).total <= timeline(jobs, buffers).total


def test_neugraphs_swap():
    """Figure 6: what travels long goes beside what computes long."""
    jobs = [Job("a", 1, 1), Job("b", 6, 1), Job("c", 1, 6), Job("d", 1, 1)]
    assert timeline(jobs).total == 15
    assert timeline([jobs[i] for i in refine(jobs)]).total == 10 == min(totals(jobs, 2))


def test_an_order_that_cannot_be_better_is_kept():
    assert refine([Job("a", 1, 2), Job("b", 1, 2), Job("c", 2, 1)]) == [0, 1, 2]
    assert refine([]) == []


def test_many_jobs_are_refined_too():
    jobs = [Job(str(i), 1 + i * 7 % 11, 1 + i * 5 % 13) for i in range(40)]
    order = refine(jobs)
    total = timeline([jobs[i] for i in order]).total
    busiest = max(sum(j.transfer for j in jobs), sum(j.compute for j in jobs))
    assert busiest <= total < 1.02 * busiest < timeline(jobs).total


def test_a_timeline_prints_as_a_chart():
    jobs = [Job("a", 1, 2), Job("b", 2, 2), Job("c", 2.1, 2)]
    assert str(timeline(jobs)).splitlines() == [
        "transfer " + "0" * 10 + "1" * 20 + "2" * 21 + "." * 20,
        "compute  " + "." * 10 + "0" * 20 + "1" * 20 + "." + "2" * 20,
        "7.1 s, 78% of the transfers hidden, idle 2 s and 1.1 s",
    ]
    assert str(timeline([])) == (
        "transfer \ncompute  \n0 s, 100% of the transfers hidden, idle 0 s and 0 s"
    )


@given(st.lists(st.builds(Job, st.just("long name" * 20), SECONDS, SECONDS), max_size=90))
def test_a_chart_is_narrow(jobs):
    jobs = [Job(j.name, j.transfer / 7e5, j.compute / 7e5) for j in jobs]
    lines = str(timeline(jobs)).splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert len(lines[0]) == len(lines[1])


def test_a_profile_averages():
    profile = Profile(weight=0.25)
    profile.observe("a", transfer=4.0)
    assert not profile.knows("a")
    profile.observe("a", compute=1.0)
    profile.observe("b", transfer=1.0, compute=1.0)
    profile.observe("a", transfer=8.0, compute=1.0)
    assert profile.knows("a")
    assert profile.jobs(["b", "a"]) == [Job("b", 1, 1), Job("a", 5, 1)]


@given(st.lists(SECONDS, min_size=1, max_size=6), st.sampled_from([0.25, 0.5, 1.0]))
def test_an_estimate_is_an_exponential_average(measured, weight):
    profile = Profile(weight)
    for seconds in measured:
        profile.observe("a", transfer=seconds, compute=0.0)
    weights = [weight * (1 - weight) ** age for age in range(len(measured) - 1)]
    expected = sum(w * s for w, s in zip([*weights, 1 - sum(weights)], measured[::-1], strict=True))
    (job,) = profile.jobs("a")
    assert math.isclose(job.transfer, expected, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Job("a", -1.0, 0),
            "job 'a': its transfer takes -1.0 s, expected a finite number >= 0",
        ),
        (
            lambda: Job("a", 0, math.inf),
            "job 'a': its compute takes inf s, expected a finite number >= 0",
        ),
        (
            lambda: Profile().observe("a", compute=math.nan),
            "job 'a': its compute takes nan s, expected a finite number >= 0",
        ),
        (lambda: Profile(0), "weight is 0, expected a number above 0 and at most 1"),
        (lambda: Profile(1.5), "weight is 1.5, expected a number above 0 and at most 1"),
        (
            lambda: Profile().jobs(["a", "b"]),
            "no times of 'a', 'b' have been measured: observe() a transfer and a computation of "
            "each first",
        ),
        (
            lambda: timeline([], 0),
            "buffers=0, expected at least 1 (2 for double buffering)",
        ),
        (
            lambda: refine([], -1),
            "buffers=-1, expected at least 1 (2 for double buffering)",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        call()
