"""Times of streams, events and the host are those that CUDA's rules give, to the bit.

Estimates of them: what a kernel takes by its flops and bytes, and what a step is.
"""

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import NoDevicesError, NotReadyError
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


GAP, SHARE = 2e-6, 0.75
RATES = {
    torch.float32: 19.5e12,
    torch.float16: 312e12,
    torch.bfloat16: 312e12,
    torch.float64: 9.75e12,
}
sizes = st.integers(1, 16).map(lambda size: 16 * size)


def duration(estimate, device=0):
    (span,) = estimate.timelines[device, 0]
    return span.end - span.begin


@given(
    m=sizes,
    k=sizes,
    n=sizes,
    dtype=st.sampled_from(list(RATES)),
    tf32=st.tuples(st.booleans(), st.booleans()),
    convolves=st.booleans(),
)
@example(m=256, k=256, n=256, dtype=torch.float32, tf32=(True, False), convolves=True)
def test_a_product_takes_its_flops_or_its_bytes(simulated, m, k, n, dtype, tf32, convolves):
    """`tf32` is set for products and for convolutions; one of single numbers is a product."""
    shapes = ((1, k, m, 1), (n, k, 1, 1)) if convolves else ((m, k), (k, n))
    a, b = (torch.zeros(*shape, dtype=dtype, device=simulated[0]) for shape in shapes)
    was, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32[0]
    try:
        with (
            torch.backends.cudnn.flags(allow_tf32=tf32[1]),
            simgpu.clock("A100", host_cost=0.0) as estimate,
        ):
            torch.conv2d(a, b) if convolves else a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was
    rate = 156e12 if tf32[convolves] and dtype is torch.float32 else RATES[dtype]
    moved = (m * k + k * n + m * n) * dtype.itemsize
    assert duration(estimate) == GAP + max(2 * m * n * k / (SHARE * rate), moved / 1555e9)


def test_each_device_has_the_rates_of_its_model(simulated):
    models = ["A100"] * 7 + ["T4"]
    x = [torch.zeros(2**20, device=device) for device in simulated]
    with simgpu.clock(models, host_cost=0.0) as estimate:
        for each in x:
            each.neg_()
        x[0].expand(3, 2**20).sum(0)  # which is read once
    fast = GAP + 2 * x[0].nbytes / 1555e9
    first, second = estimate.timelines[0, 0]
    assert first.end - first.begin == fast
    assert second.end - second.begin == pytest.approx(fast)
    assert duration(estimate, 7) == GAP + 2 * x[0].nbytes / 320e9


def test_trace_has_the_same_times(simulated):
    with simgpu.trace() as seen, simgpu.clock("A100") as estimate:
        x = torch.ones(100).to(simulated[1])
        (x + 1).to(simulated[2]).sum().item()
    spans = [span for each in estimate.timelines.values() for span in each]
    for record in seen:
        assert any((record.begin, record.end) == (span.begin, span.end) for span in spans)
    assert estimate.now == estimate.end  # item() has waited


def test_fresh_memory_takes_no_time_and_unknown_sizes_wait(simulated):
    with simgpu.clock("A100") as estimate:
        x = torch.empty(2**20, device=simulated[0])
        assert estimate.end == 0.0
        x.fill_(1.0)
        assert estimate.now < estimate.end
        x.nonzero()
        assert estimate.now == estimate.end
        x[torch.arange(3, device=simulated[0])]
        assert estimate.now < estimate.end


def test_pageable_memory_is_waited_for_and_pinned_memory_is_not(simulated):
    pageable = torch.zeros(2**20)
    pinned = pageable.pin_memory()
    x = torch.zeros(2**20, device=simulated[0])
    for source, waits in ((pageable, True), (pinned, False)):
        with simgpu.clock("A100") as estimate:
            x.copy_(source, non_blocking=True)
            assert (estimate.now == estimate.end) is waits
            ((span,),) = estimate.timelines.values()
            assert span.route == "host to simgpu:0"


def test_an_estimate_is_called_one_and_counts_steps(simulated):
    parameter = torch.nn.Parameter(torch.ones(2**16, device=simulated[0]))
    optimizer = torch.optim.SGD([parameter], 0.1)
    with simgpu.clock("A100") as estimate:
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * 2).sum().backward()
            optimizer.step()
    summary = estimate.summary()
    assert len(summary.steps) == 3
    assert sum(summary.steps) == pytest.approx(estimate.end)
    text = str(estimate)
    assert text.startswith("estimate for 8 x A100, pcie: ")
    assert "critical path (estimate)" in text
    assert "simgpu:7" in text
    assert simgpu.clock("A100").__enter__  # and what was left can be entered again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "A1000"}, "there are K80, P100, V100"),
        ({"model": ["A100"]}, "has 1 entry for 8 devices"),
        ({}, "name one of K80"),
        ({"model": "A100", "topology": "ring"}, "there are pcie, nvlink"),
        ({"model": "A100", "host_cost": -1.0}, "from 0 on"),
        ({"model": "A100", "launch_gap": float("nan")}, "from 0 on"),
    ],
)
def test_impossible_clock_is_refused(simulated, arguments, words):
    with pytest.raises(ValueError, match=words), simgpu.clock(**arguments):
        pass
    with simgpu.clock("A100"):  # nothing is left of it
        pass


@given(models=st.lists(st.sampled_from(["A100", "T4"]), min_size=1, max_size=4))
def test_estimate_counts_devices_of_each_model(models):
    with simgpu.devices(len(models)), simgpu.clock(models) as estimate:
        reported = str(estimate).partition(": ")[0].removeprefix("estimate for ").split(", ")
    assert set(reported) == {f"{models.count(name)} x {name}" for name in models} | {"pcie"}


@given(sizes=st.lists(st.sampled_from([8, 512, 2048]), max_size=5))
def test_a_step_is_the_median_of_those_after_the_first(simulated, sizes):
    parameter = torch.nn.Parameter(torch.ones(1, device=simulated[0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with simgpu.clock("A100") as estimate:
        for size in sizes:
            torch.ones(size, size, device=simulated[0]).exp()
            torch.simgpu.synchronize()
            optimizer.step()
    summary = estimate.summary()
    later = sorted(summary.steps[1:])
    if later:
        assert summary.step_seconds == later[(len(later) - 1) // 2]
        assert f"(median of {len(later)} after the first)" in str(summary)
    else:
        assert summary.step_seconds == (summary.steps[0] if sizes else None)
        assert ("(the only one)" in str(summary)) is bool(sizes)
    assert ("critical path" in str(summary)) is bool(sizes)


def test_clocks_need_devices_and_do_not_nest():
    with pytest.raises(NoDevicesError), simgpu.clock("A100"):
        pass
    with simgpu.devices(1, model="H100"), simgpu.clock() as estimate:
        with pytest.raises(ValueError, match="in force already"), simgpu.clock():
            pass
        assert "H100 SXM" in str(estimate)
