"""Times of streams, events and the host are those that CUDA's rules give, to the bit."""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import NotReadyError
from tests.simulator.timing import programs
from tests.simulator.timing.programs import by_hand, run

without_races = pytest.mark.without("--races", reason="streams in no order use one tensor")


@without_races
@given(program=programs.programs)
def test_any_program_takes_the_time_worked_out_by_hand(simulated, program):
    estimate, events, queues = run(program)
    host, passed, spans = by_hand(program)
    assert estimate.now == host
    numbers = {(d, queue.stream_id): (d, s) for (d, s), queue in queues.items()}
    seen = {
        numbers[key]: [(span.begin, span.end) for span in each]
        for key, each in estimate.timelines.items()
    }
    assert seen == spans
    for (one, first), begin in passed.items():
        for (other, second), end in passed.items():
            if one == other:
                elapsed = events[one, first].elapsed_time(events[other, second])
                assert elapsed == (end - begin) * 1e3


def union(spans):
    """The seconds in which one of the spans runs at least, moment by moment."""
    moments = sorted({moment for span in spans for moment in (span.begin, span.end)})
    return sum(
        Fraction(end) - Fraction(begin)
        for begin, end in itertools.pairwise(moments)
        if any(span.begin <= begin and end <= span.end for span in spans)
    )


@without_races
@given(program=programs.programs)
def test_time_goes_on_and_nothing_is_lost(simulated, program):
    times = [0.0]
    estimate, _, _ = run(program, after_each=lambda estimate: times.append(estimate.now))
    assert times == sorted(times)
    for spans in estimate.timelines.values():
        moments = [moment for span in spans for moment in (span.begin, span.end)]
        assert moments == sorted(moments)
        assert all(span.launched <= span.begin for span in spans)
        busy = sum(Fraction(span.end) - Fraction(span.begin) for span in spans)
        assert busy <= Fraction(estimate.end)
    for share in estimate.summary().shares:
        spans = (
            span
            for (device, _), each in estimate.timelines.items()
            for span in each
            if share.device == f"simgpu:{device}"
        )
        kernels = [span for span in spans if span.kind == "kernel"]
        assert share.busy == pytest.approx(float(union(kernels)), rel=1e-12)
        since = max(0.0, estimate.end - 1)
        late = [replace(span, begin=max(span.begin, since)) for span in kernels if span.end > since]
        utilization = estimate._machine.utilization(int(share.device.removeprefix("simgpu:")))
        rate = 100 * float(union(late)) / (estimate.end - since) if estimate.end else 0
        assert utilization == pytest.approx(rate, abs=0.5001)
        parts = share.busy, share.copying, share.waiting
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(estimate.end, rel=1e-12)


@without_races
@given(program=programs.programs)
def test_the_critical_path_leads_from_the_beginning_to_the_end(simulated, program):
    estimate, _, _ = run(program)
    path = estimate.critical_path()
    assert [step.begin for step in path] == [0.0, *(step.end for step in path)][: len(path)]
    assert (path[-1].end if path else 0.0) == estimate.end
    work = [span for spans in estimate.timelines.values() for span in spans]
    launching = sum(step.seconds for step in path if step.kind == "launch")
    assert launching <= len(work) * programs.HOST_COST * (1 + 1e-9)
    for step in path:
        if step.kind != "launch":
            assert any(step.begin == span.begin for span in work if span.kind == step.kind)


@without_races
@given(program=programs.programs)
def test_a_program_takes_equal_times_again_and_no_more_on_faster_links(simulated, program):
    first, second = run(program)[0], run(program)[0]
    assert (first.now, first.end) == (second.now, second.end)
    faster = run(program, programs.FASTER)[0]
    assert faster.now <= first.now
    assert faster.end <= first.end


@without_races
def test_two_copies_over_one_link_queue_and_over_two_do_not(simulated):
    shared = [(0, "switch", 2**30), (1, 2, 2**31), ("switch", 1, 2**30), ("switch", 2, 2**30)]
    shared += [("switch", end, 2**30) for end in ("host", 3, 4, 5, 6, 7)]
    x = [torch.ones(2**18, device=device) for device in simulated[:3]]
    took = {}
    for name, pairs in {"one": [(0, 1), (0, 2)], "two": [(0, 1), (1, 2)]}.items():
        with simgpu.clock("A100", shared, host_cost=0.0) as estimate:
            for source, target in pairs:
                here, there = (torch.simgpu.Stream(simulated[end]) for end in (source, target))
                with torch.simgpu.stream(here), torch.simgpu.stream(there):
                    x[target].copy_(x[source])
        took[name] = estimate.end
    assert took == {"one": 2 * 2**20 / 2**30, "two": 2**20 / 2**30}


def test_a_straggler_is_as_late_as_it_is_slow(simulated):
    x = [torch.ones(2**20, device=device) for device in simulated[:3]]
    with simgpu.faults(slow={1: 4.0}), simgpu.clock("A100", host_cost=0.0) as estimate:
        for each in x:
            each.neg_()
    spans = {key[0]: span.end - span.begin for key, (span,) in estimate.timelines.items()}
    assert spans[0] == spans[2] == 2e-6 + 2 * 2**22 / programs.BYTES_PER_SECOND
    assert spans[1] == 4 * spans[0] == estimate.end


@given(kernels=st.integers(1, 4), waits=st.booleans(), swapped=st.booleans())
def test_events_have_times_once_passed(simulated, kernels, waits, swapped):
    with simgpu.clock("A100"):
        x = torch.ones(512, 512, device=simulated[0])
        events = [torch.simgpu.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for _ in range(kernels):
            x @ x
        events[1].record()
        one, other = reversed(events) if swapped else events
        if waits:
            events[1].synchronize()
        else:
            with pytest.raises(NotReadyError, match=r"call end_event\.synchronize\(\) first"):
                one.elapsed_time(other)
            torch.simgpu.synchronize()
        assert (one.elapsed_time(other) > 0) is not swapped
