"""`simgpu.schedules`: finds what is wrong in some orders, and names the fewest deviations."""

import threading
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import DeadlockError
from tests.support.ordering_faults import (
    ALWAYS_WRONG,
    PROGRAMS,
    lock_cycle,
    lost_update,
    made_twice,
    outcome,
)
from tests.support.threads import in_threads

STRATEGIES = ("deviate", "random", "pct")


@pytest.mark.parametrize("program", PROGRAMS + ALWAYS_WRONG, ids=lambda program: program.__name__)
def test_order_dependent_failure_is_found_and_repeated(simulated, program):
    step = partial(program, simulated)
    report = simgpu.schedules(step, 150)
    assert len(report.problems) == 1
    (token,) = report.tokens
    assert len(token) < 100
    assert token in str(report)
    failed = outcome(step, replay=token)
    assert (failed != outcome(step)) == (program in PROGRAMS)
    assert [outcome(step, replay=token) for _ in range(5)] == [failed] * 5


@given(strategy=st.sampled_from(STRATEGIES), seed=st.integers(0, 3), n=st.integers(1, 30))
def test_program_right_in_every_order_has_no_problems(simulated, strategy, seed, n):
    total, lock = torch.zeros(1, device=simulated[0]), threading.Lock()

    def add():
        with lock:
            total.copy_(total.clone() + 1)

    report = simgpu.schedules(
        lambda: in_threads(add, add), n, strategy=strategy, seed=seed, state=[total]
    )
    assert report.problems == []
    assert report.count == n or strategy == "deviate"
    assert f"{report.count} schedules tried" in str(report)
    assert float(total) == 0  # all of it is put back


def test_every_deviation_is_tried_once(simulated):
    report = simgpu.schedules(partial(lost_update, simulated), 10**4, compare=False)
    tokens = [run.token for run in report.runs]
    assert len(tokens) == len(set(tokens))
    first = report.runs[0].trace
    singles = sum(len(choice.options) - 1 for choice in first)
    ones = [run for run in report.runs if sum(choice.rank > 0 for choice in run.trace) == 1]
    assert len(ones) == singles


@pytest.mark.parametrize("strategy", ["random", "pct"])
@pytest.mark.parametrize("program", [lost_update, lock_cycle, made_twice])
def test_a_failed_schedule_is_made_as_short_as_can_be(simulated, strategy, program):
    """One deviation is enough for each of these, whatever chance has found."""
    for seed in range(4):
        report = simgpu.schedules(partial(program, simulated), 150, strategy=strategy, seed=seed)
        assert isinstance(report.runs[-1].error, DeadlockError) == (program is lock_cycle)
        assert report.problems
        assert sum(choice.rank > 0 for choice in report.runs[-1].trace) == 1


@pytest.mark.parametrize("how", [{"n": 0}, {"n": True}, {"strategy": "dfs"}, {"seed": -3}])
def test_invalid_schedules_are_refused(how):
    with pytest.raises(ValueError, match=next(iter(how))):
        simgpu.schedules(lambda: None, **how)
